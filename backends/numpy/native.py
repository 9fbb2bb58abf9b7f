"""NumPy by the C++ kernel: exact angles from integer positions inside it, tables for all others."""

from typing import Any

import numpy as np

from rope_array._array_api import rotate as _core
from rope_array._array_api.library import dtype_name, library
from rope_array._backends import _native
from rope_array._backends.numpy import results
from rope_array._backends.numpy import supports as supports_plain
from rope_array._spec.plan import Layout, Plan

name = "native"
writes = True

__all__ = [
    "about",
    "apply",
    "library",
    "missing",
    "name",
    "quick",
    "quick_rotate",
    "rotate",
    "supports",
    "tables",
    "writes",
]

about, missing = _native.about, _native.missing


def supports(xs: Any, beside: Any, layout: Layout) -> str | None:
    """Say why arrays are not served; None where they are."""
    if _native.kernel is None:
        return missing()
    return supports_plain(xs, beside, layout)


def quick(x: Any, pos: Any, plan: Plan, seq_axis: Any, out: Any) -> Any:
    """Rotate plain arrays by integers, all checks in the kernel; NotImplemented for every other call."""
    if plan.native is None and _native.spec_of(plan) is None:
        return NotImplemented
    return _native.kernel.quick(x, pos, plan, seq_axis, out)


def quick_rotate(x: Any, cos: Any, sin: Any, layout: Layout, seq_axis: Any, out: Any) -> Any:
    """Rotate plain arrays by tables of their precision, as `quick` does by positions."""
    if _native.kernel is None:
        return NotImplemented
    return _native.kernel.quick_tables(x, cos, sin, _native.spec_of_tables(layout), seq_axis, out)


def apply(xs: Any, pos: Any, plan: Plan, seq_axis: Any, run: Any, outs: Any = None) -> Any:
    """Rotate each of xs by its positions."""
    lib = library(xs[0])
    whole, fraction = _core.positions(xs, pos, plan, seq_axis, lib)
    ys = results(xs, outs)
    for double, pairs in _core.by_precision(xs, ys):
        if plan.exact and fraction is None and whole.dtype.kind != "f":
            _turn(pairs, _native.spec_of(plan), _given_positions(whole), seq_axis)
        else:
            cos, sin = _core.make_tables(whole, fraction, plan, double, lib.kit(xs[0]))
            _turn_by(pairs, cos, sin, double, plan.layout, seq_axis)
    return ys


def tables(pos: Any, like: Any, plan: Plan, inv_freq: Any, run: Any) -> Any:
    """Make cos and sin."""
    return _core.tables(pos, like, plan, inv_freq, library(like))


def rotate(xs: Any, cos: Any, sin: Any, layout: Layout, seq_axis: Any, run: Any, outs: Any = None) -> Any:
    """Rotate each of xs by tables."""
    _core.check_rotation(xs, cos, sin, layout, seq_axis, library(xs[0]))
    ys = results(xs, outs)
    for double, pairs in _core.by_precision(xs, ys):
        _turn_by(pairs, cos, sin, double, layout, seq_axis)
    return ys


def _turn_by(pairs: Any, cos: Any, sin: Any, double: bool, layout: Layout, seq_axis: Any) -> None:
    """Rotate arrays of one precision by tables, brought to that precision."""
    dtype = np.float64 if double else np.float32
    # Lanes side by side, as the kernel reads them.
    cos, sin = (np.require(table, dtype, "A") for table in (cos, sin))
    if cos.strides[-1] != cos.itemsize or sin.strides[-1] != sin.itemsize:
        cos, sin = np.ascontiguousarray(cos), np.ascontiguousarray(sin)
    given = (_native.TABLES, _address(cos), cos.strides, cos.shape, 1, _address(sin), sin.strides)
    _turn(pairs, _native.spec_of_tables(layout), given, seq_axis)


def _given_positions(pos: Any) -> Any:
    pos = np.require(pos, np.int64, "A")
    # The array too: its memory is read until the call returns.
    return (_native.INT64, _address(pos), pos.strides, pos.shape, 1, pos)


def _turn(pairs: Any, spec: Any, given: Any, seq_axis: Any) -> None:
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
