"""NumPy by the C++ kernel, which computes exact angles of integer positions; other sources become tables."""

from typing import Any

import numpy as np

from rope_array._array_api.source import Call, Source
from rope_array._backends import _native
from rope_array._backends.numpy import decline_reason as decline_reason_without_kernel

name = "native"
accepts_outs = True
description, unavailable_reason, outdated = _native.description, _native.unavailable_reason, _native.outdated

__all__ = [
    "accepts_outs",
    "decline_reason",
    "description",
    "name",
    "outdated",
    "rotate",
    "unavailable_reason",
]

if _native.kernel is not None:
    # Declines the first call of each plan: the checked path prepares the plan for the kernel.
    try_fast = _native.kernel.rotate
    __all__ += ["try_fast"]


def decline_reason(xs: Any, source: Source) -> str | None:
    """Return why arrays are declined, or None."""
    if _native.kernel is None:
        return unavailable_reason()
    return decline_reason_without_kernel(xs, source)


def rotate(call: Call, outs: Any = None) -> Any:
    """Rotate the arrays of a call, memory-mapped files too."""
    return _native.rotate_checked(call, outs, _rotate, _native.sources(call, _readable))


def _rotate(xs: Any, source: Source, seq_axis: int, outs: Any) -> Any:
    plain_outs = outs if outs is None else tuple(map(np.asarray, outs))
    return _native.kernel.rotate(tuple(map(np.asarray, xs)), source, seq_axis, plain_outs, checked=True)


def _readable(array: Any, dtype: Any) -> Any:
    """Return a plain aligned array: positions with any strides, tables contiguous; a copy only if need be."""
    return np.require(array, dtype, ["A", "E"] if dtype is np.int64 else ["C", "A", "E"])
