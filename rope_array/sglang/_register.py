"""The hooks of the mode `tables`: SGLang keeps its classes and kernels; a loaded model gets exact tables."""

import logging
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any
from weakref import WeakSet

import torch
from sglang.srt.layers.rotary_embedding import RotaryEmbedding
from sglang.srt.plugins.hook_registry import HookRegistry, HookType

from rope_array._engines import fill
from rope_array._errors import PatchError
from rope_array._version import version

from ._report import PACKAGE, reason_of, report
from ._runs import RUNS

logger = logging.getLogger("sglang.srt.rope_array")
_filled: WeakSet[Any] = WeakSet()
_GROW = "_ensure_cos_sin_cache_length"


@cache  # a program may call it once more
def register() -> None:
    """Register the hooks, which SGLang applies when all plugins are loaded."""
    # SGLang makes tables longer there, by float32, after it has loaded a model and before it captures graphs.
    reserve = "sglang.srt.utils.common.reserve_rope_cache_for_long_sequences"
    HookRegistry.register(reserve, _fill_model, HookType.AFTER)
    for cls in _classes(RotaryEmbedding):
        if _GROW in vars(cls):
            HookRegistry.register(f"{cls.__module__}.{cls.__qualname__}.{_GROW}", _grow, HookType.AROUND)
    match = f"{PACKAGE}.mrope.MRotaryEmbedding._match_cos_sin_cache_dtype"
    HookRegistry.register(match, _keep_float32, HookType.AROUND)


def _classes(cls: Any) -> Iterator[Any]:
    yield cls
    for subclass in cls.__subclasses__():
        yield from _classes(subclass)


def _fill_model(result: Any, model: Any, model_config: Any, *args: Any, **kwargs: Any) -> None:
    """Fill the tables of a model's layers, and log the report."""
    context = int(getattr(model_config, "context_len", None) or 0)
    for layer in model.modules():
        if type(layer).__module__.startswith(PACKAGE) and type(layer).__name__ in RUNS:
            _fill(layer, context - getattr(layer, "position_start", 0))
    logger.info("ROPE_ARRAY_SGLANG=tables, rope_array %s\n%r", version(), report(model))


def _fill(layer: Any, length: int) -> None:
    """Fill the tables of a layer. Raise if SGLang would read past the end of a table that stays SGLang's."""
    if not (reason := reason_of(layer, length)):
        fill.fill_tables(layer, length, RUNS)
        _filled.add(layer)
    elif (rows := len(getattr(layer, "cos_sin_cache", range(length)))) < length:
        raise PatchError(
            f"The table of SGLang's {type(layer).__name__} ends at position {rows}, the context is {length}, "
            f"and rope_array cannot make the table longer: {reason}. Set --context-length to at most {rows}."
        )


def _grow(make_longer: Callable[..., Any], layer: Any, *args: Any, **kwargs: Any) -> None:
    """Fill a table that SGLang has made longer while it serves."""
    rows = len(layer.cos_sin_cache)
    make_longer(layer, *args, **kwargs)
    if layer in _filled and len(layer.cos_sin_cache) != rows:
        fill.fill_tables(layer, 0, RUNS)


def _keep_float32(match: Callable[..., Any], layer: Any, query: Any) -> None:
    """Leave a float32 table of M-RoPE in float32 on GPUs, where SGLang rounds it to the dtype of q.

    The Triton kernels compute in the dtype of the table, and store in the dtype of q.
    """
    table = layer.cos_sin_cache
    if layer not in _filled or not query.is_cuda or table.dtype != torch.float32:
        match(layer, query)
    elif table.device != query.device:
        layer.cos_sin_cache = table.to(query.device)
