"""Launch the CUDA kernel for attention's inputs: norm, rotation, the write into caches. See rotate.cu."""

from typing import Any, NamedTuple

import numpy as np

from rope_array._array_api.attention import AttentionCall
from rope_array._array_api.cache import last_of_each
from rope_array._array_api.library import dtype_name
from rope_array._array_api.norm import ROUNDINGS
from rope_array._backends._gpu.inputs import (
    MOST_SEARCHED,
    InputRows,
    arrange_inputs,
    contiguous_strides,
    page_size,
)

from . import _launch
from ._launch import Angles, strides

_FORMATS = ("float32", "float64", "float16", "bfloat16", "int8", "float8_e4m3fn")  # rotate.cu's Format
_WEIGHT = ["data", "format", "outer", "seq", "head"]
_CACHE = ["data", "format", "outer", "seq", "head", "feature", "page", "slot", "page_size", "slots", "scale"]
# rotate.cu's Inputs.
INPUTS = [*_launch.CALL, *(f"v_{member}" for member in _launch.ARRAY), "v_dim"]
INPUTS += [f"{weight}_{member}" for weight in ("w0", "w1") for member in _WEIGHT]
INPUTS += [f"{cache}_{member}" for cache in ("kc", "vc") for member in _CACHE]
INPUTS += ["norm", "eps", "offset", "inverse_dim"]
INPUTS += ["slots", "slots_are_wide", "slots_outer", "slots_seq", "num_tokens", "searches"]
_FLOATS = ("eps", "offset", "inverse_dim", "kc_scale", "vc_scale")
_INPUTS = np.dtype([(member, np.float64 if member in _FLOATS else np.int64) for member in INPUTS])
_MAX_HEADS = 8  # of a thread; rotate.cu has it too
_LIMIT = 256  # keys in the cache of launches


class _Prepared(NamedTuple):
    """A launch: its kernel, and the arguments but for addresses, numbers and the first position."""

    name: str
    grid: tuple[int, int]
    block: tuple[int, int, int]
    arguments: Any


_prepared: dict[Any, _Prepared | None] = {}


def attention_inputs(inputs: AttentionCall, ys: Any, angles: Angles) -> bool:
    """Make the inputs of a checked call on the current device; return whether the kernel serves the call."""
    (call, norm, write, targets, _), layout = inputs, inputs.call.source.layout
    values = () if write is None else (write.values, write.slots, *write.caches)
    arrays = (*call.xs, *ys, *(() if norm is None else norm.weights), *values)
    in_place = [x.data.ptr == y.data.ptr for x, y in zip(call.xs, ys, strict=True)]
    numbers = (norm and norm.rounding, write and (write.seq_axis, write.unique_slots), *in_place)
    key = (tuple(map(_facts, arrays)), angles.facts(), layout, call.options, numbers)
    if key not in _prepared:
        if len(_prepared) >= _LIMIT:
            _prepared.clear()
        _prepared[key] = _prepare(inputs, ys, angles)
    prepared = _prepared[key]
    if prepared is None:
        return False
    arguments, kept = _launch.copied(prepared.arguments), []
    _launch.set_addresses(arguments, list(zip(call.xs, ys, strict=True)), angles)
    if norm is not None:
        for member, number in (
            ("eps", norm.eps),
            ("offset", norm.offset),
            ("inverse_dim", 1.0 / layout.head_dim),
        ):
            arguments[member] = number
        for name, weight in zip(("w0", "w1"), norm.weights, strict=False):
            if weight is not None:
                kept.append(_contiguous(weight))
                arguments[f"{name}_data"] = kept[-1].data.ptr
    for name, target in zip(("kc", "vc"), targets, strict=False):
        arguments[f"{name}_data"], arguments[f"{name}_scale"] = target.cache.data.ptr, target.scale
    if write is not None:
        slots = _contiguous(write.slots)
        if not write.unique_slots and slots.size > MOST_SEARCHED:
            slots = last_of_each(call.ops.reshape(call.ops.cast(slots, call.ops.xp.int64), (-1,)), call.ops)
        arguments["slots"], arguments["slots_are_wide"] = slots.data.ptr, slots.itemsize == 8
        if write.values is not None:
            arguments["v_x"] = write.values.data.ptr
        kept.append(slots)  # until the launch
    _launch.kernel(prepared.name)(prepared.grid, prepared.block, (arguments,))
    return True


def _facts(array: Any) -> Any:
    return None if array is None else (array.dtype.name, array.shape, strides(array), array.data.ptr % 16)


def _contiguous(array: Any) -> Any:
    """Return an array whose elements are adjacent, in order."""
    return array if strides(array) == contiguous_strides(array.shape) else array.copy()


def _prepare(inputs: AttentionCall, ys: Any, angles: Angles) -> _Prepared | None:
    """Return the launch of a call; None if its axes take several launches, or threads too many heads."""
    rows = arrange_inputs(inputs, ys, angles.view, strides)
    if rows is None:
        return None
    call, norm = inputs.call, inputs.norm
    v_heads = 0 if rows.v is None else rows.v.heads
    arrays = [_launch.facts_of(x, y) for x, y in zip(call.xs, ys, strict=True)]
    launch = _launch.prepare_inputs(
        arrays, rows.xs, angles.facts(), call.xs[0], call.source.layout, v_heads, norm is not None
    )
    arguments = np.zeros(1, _INPUTS)
    for member in _launch.CALL:
        arguments[member] = launch.call[member]
    for member, number in _members(inputs, rows).items():
        arguments[member] = number
    if launch.call["heads_per_thread"] > _MAX_HEADS:
        return None
    return _Prepared(launch.name, launch.grid, launch.block, arguments)


def _members(inputs: AttentionCall, rows: InputRows) -> dict[str, int]:
    """Return the members of Inputs after the call: strides, formats and sizes."""
    _, norm, write, targets, _ = inputs
    members: dict[str, int] = {}
    weights = () if norm is None else norm.weights
    for name, weight, of_weight in zip(("w0", "w1"), weights, rows.weights, strict=False):
        if weight is not None:
            numbers = (_FORMATS.index(dtype_name(weight)), *of_weight.x)
            members |= {f"{name}_{m}": n for m, n in zip(_WEIGHT[1:], numbers, strict=True)}
    for name, target, of_cache in zip(("kc", "vc"), targets, (rows.weights[-1], rows.v), strict=False):
        steps = strides(target.cache)
        page = steps[0] if target.pages else 0
        sizes = (page_size(target), target.num_slots)
        format_and_rows = (_FORMATS.index(dtype_name(target.cache)), *of_cache.y)  # type: ignore[union-attr]
        numbers = (*format_and_rows, steps[-1], page, steps[target.slot_axis], *sizes)
        members |= {f"{name}_{m}": n for m, n in zip(_CACHE[1:-1], numbers, strict=True)}
    if rows.v is not None:
        v = targets[1].x
        numbers = (rows.v.heads, *rows.v.x, strides(v)[-1])
        members |= {f"v_{m}": n for m, n in zip(_launch.ARRAY[2:7], numbers, strict=True)}
        members["v_dim"] = v.shape[-1]
    if norm is not None:
        members["norm"] = 1 + ROUNDINGS.index(norm.rounding)
    if write is not None:
        count = write.slots.size
        members |= {"slots_outer": rows.slots[0], "slots_seq": rows.slots[1], "num_tokens": count}
        members["searches"] = not write.unique_slots and count <= MOST_SEARCHED
    return members
