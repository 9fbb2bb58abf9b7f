"""NumPy by the C++ kernel: exact angles from integer positions inside it, tables for all other positions."""

from typing import Any

import numpy as np

from rope_array._array_api.library import dtype_name, library
from rope_array._array_api.position_input import read_positions
from rope_array._array_api.source import Call, Positions, Source, Tables
from rope_array._array_api.tables import tables_at
from rope_array._backends import _native
from rope_array._backends.numpy import decline_reason as decline_reason_without_kernel
from rope_array._backends.numpy import results

name = "native"
accepts_outs = True
description, unavailable_reason = _native.description, _native.unavailable_reason

__all__ = [
    "accepts_outs",
    "decline_reason",
    "description",
    "library",
    "name",
    "rotate",
    "try_fast",
    "unavailable_reason",
]


def decline_reason(xs: Any, source: Source) -> str | None:
    """Return why arrays are declined, or None."""
    if _native.kernel is None:
        return _native.unavailable_reason()
    return decline_reason_without_kernel(xs, source)


def try_fast(x: Any, source: Source, seq_axis: Any, out: Any) -> Any:
    """Rotate plain arrays, all checks in the kernel; return NotImplemented for every other call."""
    if _native.kernel is None:
        return NotImplemented
    if isinstance(source, Tables):
        spec = _native.spec_of_tables(source.layout)
        return _native.kernel.quick_tables(x, source.cos, source.sin, spec, seq_axis, out)
    if source.plan.native is None and _native.spec_of(source.plan) is None:
        return NotImplemented
    return _native.kernel.quick(x, source.values, source.plan, seq_axis, out)


def rotate(call: Call, outs: Any = None) -> Any:
    """Rotate the arrays of a call."""
    source, lib, seq_axis = call.source, call.lib, call.seq_axis
    ys = results(call.xs, outs)
    whole: Any = None
    fraction: Any = None
    if isinstance(source, Positions):
        whole, fraction = read_positions(source.values, lib, call.ops, any(call.float64))
    for use_float64 in {*call.float64}:
        pairs = [(x, y) for x, y, wide in zip(call.xs, ys, call.float64, strict=True) if wide == use_float64]
        if isinstance(source, Tables):
            _rotate_by(pairs, source.cos, source.sin, use_float64, source.layout, seq_axis)
        elif source.plan.exact and fraction is None:
            _run(pairs, _native.spec_of(source.plan), _given_positions(whole), seq_axis)
        else:
            cos, sin = tables_at(whole, fraction, source.plan, use_float64, call.ops)
            _rotate_by(pairs, cos, sin, use_float64, source.layout, seq_axis)
    return ys


def _rotate_by(pairs: Any, cos: Any, sin: Any, use_float64: bool, layout: Any, seq_axis: Any) -> None:
    dtype = np.float64 if use_float64 else np.float32
    cos, sin = (np.require(table, dtype, "A") for table in (cos, sin))
    if cos.strides[-1] != cos.itemsize or sin.strides[-1] != sin.itemsize:
        cos, sin = np.ascontiguousarray(cos), np.ascontiguousarray(sin)
    given = (_native.TABLES, _address(cos), cos.strides, cos.shape, 1, _address(sin), sin.strides)
    _run(pairs, _native.spec_of_tables(layout), given, seq_axis)


def _given_positions(pos: Any) -> Any:
    pos = np.require(pos, np.int64, "A")
    # The array too: its memory is read until the call returns.
    return (_native.INT64, _address(pos), pos.strides, pos.shape, 1, pos)


def _run(pairs: Any, spec: Any, given: Any, seq_axis: Any) -> None:
    arrays = tuple(
        (_native.TYPES[dtype_name(x)], x.shape, _address(x), x.strides, _address(y), y.strides, 1)
        for x, y in pairs
    )
    fresh = False  # of which the kernel would make huge pages: NumPy has done so
    done = _native.kernel.run(spec, arrays, given, int(seq_axis), None, fresh)
    assert done, "shapes were checked before"


def _address(array: Any) -> int:
    address: int = array.__array_interface__["data"][0]
    return address
