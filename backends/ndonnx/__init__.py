"""ndonnx: NumPy's backends rotate arrays with values; the array-api backend adds others to the ONNX graph."""

from typing import Any

import ndonnx as xp
import numpy as np
import spox.opset.ai.onnx.v21 as op

from rope_array._spec.plan import Constants
from rope_array.backend_tools import ArrayOps, Call, Library, Positions, Source, make_tables_for, rotate_by

name = "ndonnx"


class NDonnxOps(ArrayOps):
    """ndonnx's operations, also for arrays of unknown sizes."""

    def reshape(self, array: Any, shape: Any) -> Any:
        if None not in shape:
            return xp.reshape(array, shape)
        dynamic_shape = array.dynamic_shape  # an axis of unknown size keeps its place
        sizes = [dynamic_shape[i] if n is None else xp.asarray(n) for i, n in enumerate(shape)]
        return _with_known_sizes(xp.reshape(array, xp.stack(sizes)), shape)

    def look_up(self, numbers: Constants, indices: Any, dtype: Any) -> Any:
        # ONNX takes indices with any axes.
        row = self.constants(numbers, dtype).unwrap_spox()
        gather: Any = vars(op)["gather"]  # the module does not list all of its names for type checkers
        return xp.asarray(gather(row, indices.unwrap_spox(), axis=0))

    def with_shape_of(self, y: Any, x: Any) -> Any:
        return _with_known_sizes(xp.reshape(y, x.dynamic_shape), x.shape)


class NDonnx(Library):
    """ndonnx: arrays of values, and arrays of graphs, whose sizes may be unknown."""

    operations = NDonnxOps

    def is_array(self, value: Any) -> bool:
        return isinstance(value, xp.Array)


def _with_known_sizes(array: Any, shape: Any) -> Any:
    """Return an array whose graph knows these sizes, which a reshape to sizes of the run forgets."""
    sizes = op.const([n or 0 for n in shape], np.int64)  # 0 keeps the size that the axis has
    return xp.asarray(op.reshape(array.unwrap_spox(), sizes))


LIBRARY = NDonnx("ndonnx", xp, implicit_device=True)


def library(x: Any) -> Library:
    """Return ndonnx."""
    return LIBRARY


def decline_reason(xs: tuple[Any, ...], source: Source) -> str | None:
    """Return why a call is declined, or None."""
    try:
        for value in (*xs, *source.arrays):
            _to_numpy(value)
    except ValueError:
        return "an array has no value: it is computed when the ONNX graph runs"
    return None


def rotate(call: Call) -> tuple[Any, ...]:
    """Rotate arrays that have values."""
    xs, source = map(_to_numpy, call.xs), type(call.source)(*map(_to_numpy, call.source))
    ys = rotate_by(tuple(xs), source, call.options)
    return tuple(map(xp.asarray, ys))


def make_tables(source: Positions, like: Any) -> tuple[Any, Any]:
    """Make cos and sin of positions that have values."""
    tables = make_tables_for(Positions(*map(_to_numpy, source)), _to_numpy(like))
    return xp.asarray(tables.cos), xp.asarray(tables.sin)


def _to_numpy(value: Any) -> Any:
    return np.asarray(value.unwrap_numpy()) if isinstance(value, xp.Array) else value
