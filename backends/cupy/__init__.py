"""CuPy by one CUDA kernel, which computes exact angles of positions; other sources become tables."""

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import cupy

from rope_array._array_api.angles import cos_sin
from rope_array._array_api.source import Call, Source, Tables
from rope_array._array_api.tables import cast_tables
from rope_array._backends._gpu import Kind, SourceView, is_spaced, view_spaced
from rope_array._spec.plan import Plan

from . import _launch
from ._launch import Angles, strides

name = "cuda"
accepts_outs = True


def unavailable_reason() -> str:
    """Return why the kernel cannot be used; an empty string if it can."""
    return "this CuPy is built for ROCm, and the kernel is for CUDA" if cupy.cuda.runtime.is_hip else ""


def description() -> str:
    """Return a description of the backend."""
    return unavailable_reason() or "a CUDA kernel that CuPy compiles on its first call"


def decline_reason(xs: Any, source: Source) -> str | None:
    """Return why arrays are declined, or None."""
    for x in xs:
        if type(x) is not cupy.ndarray:
            return f"{type(x).__name__} is a subclass of CuPy's array, which its own operations serve"
        if not _launch.is_aligned(x):
            return "its memory is not aligned for its dtype"
    return unavailable_reason() or None


def rotate(call: Call, outs: Any = None) -> Any:
    """Rotate the arrays of a call, two in one launch if they share dtype and positions.

    Serves aligned arrays of any strides. The bits, and with them the errors, equal the array-api backend's.
    """
    ys = tuple(map(cupy.empty_like, call.xs)) if outs is None else outs
    layout = call.source.layout
    mixed = layout.pairing != layout.out_pairing
    with call.xs[0].device:
        source_for = cache(_sources(call))
        for dtype in {x.dtype for x in call.xs}:
            chosen = [i for i, x in enumerate(call.xs) if x.dtype == dtype]
            # Threads would overwrite features that others have not read yet.
            apart = {i for i in chosen if mixed and ys[i].data.ptr == call.xs[i].data.ptr}
            apart |= {i for i in chosen if not _launch.is_aligned(ys[i])}
            into = {i: cupy.empty_like(call.xs[i]) if i in apart else ys[i] for i in chosen}
            arrays = [(call.xs[i], into[i]) for i in chosen]
            _launch.launch_rotations(arrays, source_for(call.float64[chosen[0]]), layout, call.options)
            for i in apart:
                ys[i][...] = into[i]
    return ys


def _sources(call: Call) -> Callable[[bool], Angles]:
    """Return `source_for(use_float64)`: the source as the kernel reads it."""
    source, ops = call.source, call.ops
    if isinstance(source, Tables):
        return lambda use_float64: _of_tables(*cast_tables(source, use_float64, ops))
    plan = source.plan
    values = call.pos.values
    if plan.exact and plan.coordinates is None and is_spaced(values):
        first = values.start if isinstance(values, range) else values
        spaced = Angles(view_spaced(values), (), first, plan)
        return lambda use_float64: spaced
    integers, fraction = call.pos.read(call.lib, ops, any(call.float64), split=not plan.takes_fractions)
    if plan.exact and fraction is None:
        return partial(_of_positions, integers, plan)
    return lambda use_float64: _of_tables(*cos_sin(integers, fraction, plan, use_float64, ops))


def _of_positions(pos: Any, plan: Plan, use_float64: bool = False) -> Angles:
    dtype = pos.dtype.name if pos.dtype.name in ("int32", "float32", "float64") else "int64"
    if pos.dtype.name != dtype or not _launch.is_aligned(pos):
        pos = pos.astype(dtype)
    last = plan.coordinates is not None
    shape, steps = (pos.shape[:-1], strides(pos)[:-1]) if last else (pos.shape, strides(pos))
    return Angles(SourceView(Kind.POSITIONS, shape, (steps,)), (pos,), 0, plan)


def _of_tables(cos: Any, sin: Any) -> Angles:
    tables = tuple(map(_with_contiguous_pairs, (cos, sin)))
    return Angles(
        SourceView(Kind.TABLES, cos.shape[:-1], tuple(strides(table)[:-1] for table in tables)), tables
    )


def _with_contiguous_pairs(table: Any) -> Any:
    contiguous = table.shape[-1] < 2 or table.strides[-1] == table.itemsize
    return table if contiguous and _launch.is_aligned(table) else table.copy()
