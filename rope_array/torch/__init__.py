"""Rotary embeddings as PyTorch modules: fixed and learned frequencies, also with norm and caches.

A module is called in two ways: ``module(q, k, positions)`` returns q and k rotated, and
``module(x, position_ids)`` returns cos and sin as the rotary modules of Hugging Face do. Needs PyTorch:
``python -m pip install torch``. ``from rope_array import *`` leaves the name out, which would hide PyTorch's.
"""

try:
    import torch as _torch  # noqa: F401  # first, so that its absence has one message
except ImportError as _error:
    raise ImportError(
        f"rope_array.torch needs PyTorch, which cannot be imported ({_error}): "
        "python -m pip install torch, or PyTorch's build for your hardware."
    ) from _error

from ._attention import AttentionInputs
from ._learned import LearnedRotaryEmbedding, MixedRotaryEmbedding
from ._rotary import RotaryEmbedding

__all__ = ["AttentionInputs", "LearnedRotaryEmbedding", "MixedRotaryEmbedding", "RotaryEmbedding"]


def __dir__() -> list[str]:
    return __all__


for _name in __all__:
    globals()[_name].__module__ = __name__  # the public name, in errors and in pickles
