"""NumPy without the C++ kernel: block by block, in scratch memory that is made once a call."""

from typing import Any

import numpy as np

from rope_array._array_api import rotate as _core
from rope_array._array_api.library import library
from rope_array._spec.plan import Layout, Plan

from . import _blocks

name = "numpy"
writes = True

__all__ = ["apply", "library", "name", "rotate", "supports", "tables", "writes"]


def supports(xs: Any, beside: Any, layout: Layout) -> str | None:
    """Say why arrays are not served; None where they are."""
    for x in xs:
        # Memory-mapped files are plain memory; other subclasses may mean something by their operators.
        if type(x) is not np.ndarray and type(x) is not np.memmap:
            return f"{type(x).__name__} is a subclass of NumPy's array, which its own operations serve"
        if not x.dtype.isnative:
            return "its numbers are of the other byte order"
    return None


def apply(xs: Any, pos: Any, plan: Plan, seq_axis: Any, run: Any, outs: Any = None) -> Any:
    """Rotate each of xs by its positions."""
    lib = library(xs[0])
    kit = lib.kit(xs[0])
    whole, fraction = _core.positions(xs, pos, plan, seq_axis, lib)
    ys = results(xs, outs)
    for double, pairs in _core.by_precision(xs, ys):
        made = _core.make_tables(whole, fraction, plan, double, kit)
        for x, y in pairs:
            _blocks.turn(x, *_core.laid_out(x, *made, seq_axis, kit), plan.layout, y)
    return ys


def results(xs: Any, outs: Any) -> Any:
    """Return the arrays that results are written to: those given, or new ones."""
    return tuple(np.empty_like(x, subok=False) for x in xs) if outs is None else outs


def tables(pos: Any, like: Any, plan: Plan, inv_freq: Any, run: Any) -> Any:
    """Make cos and sin."""
    return _core.tables(pos, like, plan, inv_freq, library(like))


def rotate(xs: Any, cos: Any, sin: Any, layout: Layout, seq_axis: Any, run: Any, outs: Any = None) -> Any:
    """Rotate each of xs by tables."""
    lib = library(xs[0])
    kit = lib.kit(xs[0])
    _core.check_rotation(xs, cos, sin, layout, seq_axis, lib)
    ys = results(xs, outs)
    for double, pairs in _core.by_precision(xs, ys):
        dtype = np.float64 if double else np.float32
        made = cos.astype(dtype, copy=False), sin.astype(dtype, copy=False)
        for x, y in pairs:
            _blocks.turn(x, *_core.laid_out(x, *made, seq_axis, kit), layout, y)
    return ys
