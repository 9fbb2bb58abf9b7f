"""NumPy without the C++ kernel: block by block, in scratch memory that is allocated once for a call."""

from typing import Any

import numpy as np

from rope_array._array_api.source import Call, Source
from rope_array._array_api.tables import aligned_tables

from . import _blocks

name = "numpy"
accepts_outs = True


def decline_reason(xs: Any, source: Source) -> str | None:
    """Return why arrays are declined, or None."""
    for x in xs:
        # Memory-mapped files are plain memory. Any other subclass may redefine operators.
        if type(x) is not np.ndarray and type(x) is not np.memmap:
            return f"{type(x).__name__} is a subclass of NumPy's array, which its own operations serve"
        if not x.dtype.isnative:
            return "its numbers are of the other byte order"
    return None


def rotate(call: Call, outs: Any = None) -> Any:
    """Rotate the arrays of a call."""
    ys = tuple(np.empty_like(x, subok=False) for x in call.xs) if outs is None else outs
    for x, y, (cos, sin) in zip(call.xs, ys, aligned_tables(call), strict=True):
        _blocks.rotate_in_blocks(x, cos, sin, call.source.layout, y)
    return ys
