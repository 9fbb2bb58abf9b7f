"""CuPy by one CUDA kernel, which computes exact angles of positions; other sources become tables."""

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import cupy

from rope_array._array_api.angles import cos_sin
from rope_array._array_api.attention import AttentionCall
from rope_array._array_api.library import dtype_name
from rope_array._array_api.source import Call, Source, Tables
from rope_array._array_api.tables import cast_tables
from rope_array._backends._gpu import Kind, SourceView, is_spaced, view_spaced
from rope_array._backends._gpu.inputs import serves_dtypes
from rope_array._spec.plan import Plan

from . import _inputs, _launch
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


def attention_inputs(inputs: AttentionCall) -> Any:
    """Make attention's inputs in one launch; NotImplemented for arrays that the kernel does not serve."""
    call, norm, write, _, outs = inputs
    read = () if norm is None else norm.weights
    read += () if write is None else (write.values, write.slots, *write.caches)
    is_read = [
        type(array) is cupy.ndarray and _launch.is_aligned(array) for array in read if array is not None
    ]
    if not all(is_read) or not serves_dtypes(call.xs[0], call.source, write):
        return NotImplemented
    layout, ops, use_float64 = call.source.layout, call.ops, call.float64[0]
    ys = tuple(map(cupy.empty_like, call.xs)) if outs is None else outs
    apart = {i for i, y in enumerate(ys) if not _launch.is_aligned(y)}
    if layout.pairing != layout.out_pairing:  # threads would overwrite features that they have not read yet
        apart |= {i for i, x in enumerate(call.xs) if ys[i].data.ptr == x.data.ptr}
    into = tuple([cupy.empty_like(y) if i in apart else y for i, y in enumerate(ys)])
    with call.xs[0].device:
        angles = _sources(call)(use_float64)
        if angles.plan is not None and angles.arrays and angles.arrays[0].dtype.name.startswith("float"):
            integers, fraction = call.pos.read(call.lib, ops, use_float64)
            angles = _of_tables(*cos_sin(integers, fraction, angles.plan, use_float64, ops))
        if not _inputs.attention_inputs(inputs, into, angles):
            return NotImplemented
        for i in apart:
            ys[i][...] = into[i]
    return ys, None if write is None else write.caches


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
    name = dtype_name(pos)
    dtype = name if name in ("int32", "float32", "float64") else "int64"
    if name != dtype or not _launch.is_aligned(pos):
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
