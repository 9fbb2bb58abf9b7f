"""NumPy by the C++ kernel, which computes exact angles of integer positions; other sources become tables."""

from typing import Any

import numpy as np

from rope_array._array_api.attention import AttentionCall
from rope_array._array_api.library import library
from rope_array._array_api.shift import KeyShift
from rope_array._array_api.source import Call, CallOptions, Positions, Source
from rope_array._array_api.tables import make_tables as make_tables_by_array_api
from rope_array._backends import _native
from rope_array._spec.plan import Plan

name = "native"
accepts_outs = True
description, unavailable_reason, outdated = _native.description, _native.unavailable_reason, _native.outdated

__all__ = [
    "accepts_outs",
    "attention_inputs",
    "decline_reason",
    "description",
    "make_tables",
    "name",
    "outdated",
    "rotate",
    "shift_keys",
    "unavailable_reason",
]

if _native.kernel is not None:
    # Declines the first call of each plan: the checked path prepares the plan for the kernel.
    try_fast = _native.kernel.rotate
    try_fast_inputs = _native.kernel.attention_inputs
    try_fast_shift = _native.kernel.shift_keys
    __all__ += ["try_fast", "try_fast_inputs", "try_fast_shift"]


def decline_reason(xs: Any, source: Source) -> str | None:
    """Return why arrays are declined, or None."""
    for x in xs:
        # Memory-mapped files are plain memory. Any other subclass may redefine operators.
        if type(x) is not np.ndarray and type(x) is not np.memmap:
            return f"{type(x).__name__} is a subclass of NumPy's array, which its own operations serve"
        if not x.dtype.isnative:
            return "its numbers are of the other byte order"
    return unavailable_reason() or None


def rotate(call: Call, outs: Any = None) -> Any:
    """Rotate the arrays of a call, memory-mapped files too."""
    return _native.rotate_checked(call, outs, _rotate, _native.sources(call, _readable))


def attention_inputs(inputs: AttentionCall) -> Any:
    """Norm, rotate and write into caches in one pass; NotImplemented for calls that are not served."""
    return _native.attention_inputs(inputs, _native.sources(inputs.call, _readable))


def shift_keys(shift: KeyShift) -> Any:
    """Rotate rows of caches in place; NotImplemented for a shift that array operations serve."""
    caches = tuple(map(np.asarray, shift.caches))
    shifted = _native.shift_keys(shift._replace(caches=caches), library(shift.caches[0]), _readable)
    return shifted if shifted is NotImplemented else shift.caches


def make_tables(source: Positions, like: Any) -> Any:
    """Make cos and sin, with the bits of the array-api backend."""
    lib = library(like)
    tables = NotImplemented
    if _native.kernel is not None:
        tables = _native.make_tables(source, like, lib, _fill_tables, _native.plan_of_array, True)
    if tables is NotImplemented:
        return make_tables_by_array_api(source, like, lib)
    return tuple(map(np.ascontiguousarray, tables))


def _fill_tables(values: Any, plan: Plan, use_float64: bool) -> Any:
    # In one allocation, which comes in huge pages if it is large.
    empty = lambda shape: np.empty((2, *shape), np.float64 if use_float64 else np.float32)  # noqa: E731
    dtype = values.dtype.newbyteorder("=") if values.dtype.kind == "f" else np.int64
    return _native.fill_tables(empty, _readable(values, dtype), plan)


def _rotate(xs: Any, source: Source, options: CallOptions, outs: Any) -> Any:
    plain_outs = outs if outs is None else tuple(map(np.asarray, outs))
    return _native.kernel.rotate(tuple(map(np.asarray, xs)), source, options, plain_outs, checked=True)


def _readable(array: Any, dtype: Any) -> Any:
    """Return a plain aligned array: positions with any strides, tables contiguous; a copy only if need be."""
    return np.require(array, dtype, ["A", "E"] if dtype is np.int64 else ["C", "A", "E"])
