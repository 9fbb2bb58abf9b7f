"""The mode `tables`: vLLM keeps its classes and kernels, and each layer gets exact tables when it is made."""

from collections.abc import Callable
from functools import cache, wraps
from typing import Any
from weakref import WeakSet

from vllm.config import get_current_vllm_config_or_none
from vllm.logger import init_logger
from vllm.model_executor.layers import rotary_embedding

from rope_array._engines import fill
from rope_array._engines.report import reason_of_tables
from rope_array._engines.ropes import REFUSED
from rope_array._errors import PatchError

__all__ = ["filling", "layers", "reason_of"]

logger = init_logger("vllm.rope_array")
layers: WeakSet[Any] = WeakSet()  # those that were made in this mode


def filling(new: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method `__new__` whose instances fill their tables at the end of their `__init__`."""

    def __new__(cls: Any, *args: Any, **kwargs: Any) -> Any:
        layer = new(cls)
        made: Any = type(layer)  # for mypy: a class is hashable
        _fill_after_init(made)  # Python looks `__init__` up after this
        return layer

    return __new__


@cache
def _fill_after_init(cls: Any) -> None:
    """Let `cls.__init__` fill the tables. Models copy tables of layers, so a later time would be too late."""
    init = cls.__init__

    @wraps(init)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        if type(self) is cls:  # a subclass has more to do
            _fill(self)

    cls.__init__ = __init__


def _fill(layer: Any) -> None:
    layers.add(layer)
    name, length = type(layer).__name__, _max_model_len()
    if reason := reason_of(layer, length):
        _check_length(layer, length, reason)
        logger.warning("ROPE_ARRAY_VLLM=tables does not fill the tables of %s: %s", name, reason)
        return
    for table in fill.fill_tables(layer, length):
        logger.info("ROPE_ARRAY_VLLM=tables makes %s of %s longer: %d positions", table, name, length)


def _max_model_len() -> int:
    config = get_current_vllm_config_or_none()
    return 0 if config is None or config.model_config is None else config.model_config.max_model_len


def reason_of(layer: Any, length: int = 0) -> str:
    """Return why the tables of a layer cannot be filled, or ""."""
    return reason_of_tables(layer, rotary_embedding.__name__, fill.RUNS, length)


def _check_length(layer: Any, length: int, reason: str) -> None:
    """Raise if vLLM would read past the end of a table that stays vLLM's."""
    table = getattr(layer, "cos_sin_cache", None)
    is_known = type(layer).__name__ in {*fill.RUNS, *REFUSED}  # positions of others may have another meaning
    if is_known and table is not None and len(table) < length:
        raise PatchError(
            f"The table of vLLM's {type(layer).__name__} ends at position {len(table)}, max_model_len is "
            f"{length}, and rope_array cannot make the table longer: {reason}. "
            f"Set --max-model-len to at most {len(table)}."
        )
