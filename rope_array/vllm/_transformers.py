"""Rotary embeddings of models that vLLM takes from transformers: `rope_array.hf` makes their tables exact."""

from typing import Any
from weakref import WeakKeyDictionary

from rope_array._errors import PatchError

__all__ = ["patch_modules", "reasons", "ropes"]

# By module: the rope of one that was replaced, or the reason why not.
ropes: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()
reasons: WeakKeyDictionary[Any, str] = WeakKeyDictionary()


def patch_modules(model: Any) -> None:
    """Replace the rotary embeddings that are classes of transformers, with exact cos and sin.

    vLLM replaces the methods of the attentions, which go on to multiply by cos and sin themselves.
    """
    from rope_array import hf  # imported late, as by every module

    for module in model.modules():
        cls = type(module)
        if cls.__module__.startswith("transformers.") and "Rotary" in cls.__name__:
            try:
                (entry,) = hf.patch(module)
            except PatchError as error:
                reasons[module] = str(error)
            else:
                ropes[module] = entry.rope
