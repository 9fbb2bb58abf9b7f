"""The hooks of both modes; in mode 1 each class that is instantiated becomes a subclass that is exact."""

from collections.abc import Callable, Iterator
from functools import cache, wraps
from typing import Any

import vllm
from vllm import envs
from vllm.logger import init_logger
from vllm.model_executor.layers import rotary_embedding
from vllm.model_executor.layers.rotary_embedding.base import RotaryEmbeddingBase
from vllm.model_executor.model_loader.base_loader import BaseModelLoader

from rope_array._engines.ropes import REFUSED, ROPES
from rope_array._errors import PatchError
from rope_array._version import version

from . import _tables, _transformers
from ._layer import ExactLayer, exact_class
from ._report import report

logger = init_logger("vllm.rope_array")


@cache  # vLLM may load its plugins more than once in a process
def register(mode: str) -> None:
    """Let vLLM instantiate exact classes, and none that this package does not know; or let it fill tables.

    vLLM's own hook, `CustomOp.register_oot`, replaces classes by name. It would leave a class that is new in
    vLLM as it is, and has no effect on a class that is no `CustomOp`.
    """
    for root in _roots():
        hook = _tables.filling if mode == "tables" else _instantiating
        root.__new__ = hook(root.__new__)  # type: ignore[method-assign]
    BaseModelLoader.create_model = _logging(BaseModelLoader.create_model, mode)
    # vLLM keys its cache of compiled graphs by the variables in this table. Longer tables change graphs too.
    envs.environment_variables["ROPE_ARRAY_VLLM"] = lambda: f"{mode}, {version()}"


def _logging(create_model: Callable[..., Any], mode: str) -> Callable[..., Any]:
    """Return a method that also replaces the rotary embeddings of transformers, and logs the report."""

    @wraps(create_model)
    def create(*args: Any, **kwargs: Any) -> Any:
        model = create_model(*args, **kwargs)
        _transformers.patch_modules(model)
        logger.info("ROPE_ARRAY_VLLM=%s, rope_array %s\n%r", mode, version(), report(model))
        return model

    return create


def _roots() -> Iterator[type]:
    """Yield classes, one of which each rotary embedding of vLLM's package derives from."""
    yield RotaryEmbeddingBase
    for name, cls in vars(rotary_embedding).items():
        if isinstance(cls, type) and "RotaryEmbedding" in name and not issubclass(cls, RotaryEmbeddingBase):
            yield cls


def _instantiating(new: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method `__new__` that makes an instance of the exact class instead."""

    def __new__(cls: Any, *args: Any, **kwargs: Any) -> Any:
        layer = new(cls if issubclass(cls, ExactLayer) else _exact_subclass(cls))
        if not isinstance(layer, ExactLayer):
            raise PatchError(
                f"Another plugin replaces vLLM's {cls.__name__} by {type(layer).__name__}. "
                "Set ROPE_ARRAY_VLLM=0, or name the plugins to load in VLLM_PLUGINS."
            )
        return layer

    return __new__


@cache
def _exact_subclass(cls: Any) -> type:
    """Return the exact subclass of a class, or raise PatchError with the reason why there is none."""
    if cls.__name__ in ROPES and cls.__module__.startswith(rotary_embedding.__name__):
        return exact_class(cls)
    reason = REFUSED.get(cls.__name__, f"this class of vLLM {vllm.__version__} is unknown to rope_array")
    raise PatchError(
        f"rope_array does not replace vLLM's {cls.__name__}: {reason}. Set ROPE_ARRAY_VLLM=0 for this model."
    )
