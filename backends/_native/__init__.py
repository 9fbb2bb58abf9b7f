"""The C++ kernel, for arrays in host memory: what the backends of NumPy and PyTorch share.

The compiled module is optional. Without it `kernel` is None, `unavailable_reason()` gives the reason, and the
backends decline every call.
"""

import os
from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

from rope_array._array_api.library import Library, computes_in_float64, dtype_name
from rope_array._array_api.position_input import read_positions
from rope_array._array_api.source import Positions, Source, Tables
from rope_array._array_api.tables import tables_at
from rope_array._errors import BackendError
from rope_array._spec.plan import Plan

_LEVEL = "ROPE_ARRAY_KERNEL_LEVEL"


def _load() -> tuple[Any, str]:
    if os.environ.get(_LEVEL) == "none":
        return None, f"the C++ kernel is switched off: {_LEVEL} is 'none'"
    try:
        _kernel = import_module(f"{__name__}._kernel")
    except ImportError as error:
        return None, f"the C++ kernel is not built ({error})"
    wanted = os.environ.get(_LEVEL)
    if wanted and wanted not in _kernel.level_names():
        raise BackendError(
            f"the environment variable {_LEVEL} is {wanted!r}; this processor has "
            f"{', '.join(map(repr, _kernel.level_names()))}, and 'none' switches the kernel off."
        )
    if wanted:
        _kernel.use_level(wanted)
    return _kernel, ""


kernel, _reason = _load()


def unavailable_reason() -> str:
    """Return why the kernel cannot be used; an empty string if it can."""
    return _reason


def description(library_threads: int = 0) -> str:
    """Return the instruction set that runs, and the largest number of threads."""
    if kernel is None:
        return _reason
    return f"{kernel.level_name()} instructions, up to {kernel.threads_of(library_threads)} threads"


def _prepare(plan: Plan) -> None:
    """Create the kernel's handle for an exact-angle plan, and cache it on `plan.native`."""
    if plan.native is None:
        plan.check()
        amplitude = 1.0 if plan.layout.amplitude is None else plan.layout.amplitude
        turns = (plan.turns_q64.values, plan.turns_q96[0].values, plan.turns_q96[1].values)
        axes = ((), 0)
        if plan.coordinates is not None:
            axes = (plan.coordinates.of_pairs.values, plan.coordinates.number)
        plan.native = kernel.make_plan(plan.layout, amplitude, *turns, *axes)


def rotate_checked(
    xs: Any, source: Source, seq_axis: Any, outs: Any, lib: Library, rotate: Any, contiguous: Any
) -> Any:
    """Rotate checked arrays of any dtypes by any source: for calls that the kernel's entry declines.

    ``rotate(xs, source, seq_axis, outs)`` rotates arrays of one compute dtype; ``contiguous(array, dtype)``
    returns positions or tables as the kernel reads them.
    """
    source_for = _kernel_sources(source, xs, lib, contiguous)
    ys: list[Any] = [None] * len(xs)
    for use_float64 in {*map(computes_in_float64, xs)}:
        chosen = [i for i, x in enumerate(xs) if computes_in_float64(x) == use_float64]
        into = None if outs is None else tuple(outs[i] for i in chosen)
        rotated = rotate(tuple(xs[i] for i in chosen), source_for(use_float64), int(seq_axis), into)
        assert rotated is not NotImplemented, "the dispatch has checked the call"
        for i, y in zip(chosen, rotated, strict=True):
            ys[i] = y
    return tuple(ys)


def _kernel_sources(source: Source, xs: Any, lib: Library, contiguous: Any) -> Callable[[bool], Source]:
    """Return the function that gives the source as the kernel reads it, for float64 arithmetic or float32."""

    def tables(cos: Any, sin: Any, use_float64: bool) -> Tables:
        dtype = xp.float64 if use_float64 else xp.float32
        return Tables(contiguous(cos, dtype), contiguous(sin, dtype), source.layout)

    ops = lib.ops(xs[0])
    xp = ops.xp
    if isinstance(source, Tables):
        return partial(tables, source.cos, source.sin)
    whole, fraction = read_positions(source.values, xs[0], lib, any(map(computes_in_float64, xs)))
    if source.plan.exact and fraction is None and "float" not in dtype_name(whole):
        _prepare(source.plan)
        positions = Positions(contiguous(whole, xp.int64), source.plan)
        return lambda use_float64: positions
    return lambda use_float64: tables(*tables_at(whole, fraction, source.plan, use_float64, ops), use_float64)
