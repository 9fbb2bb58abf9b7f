"""cubed: one operation rotates each chunk of x by the backend of the chunk's own library. Nothing runs here.

Positions get the axes of x, so that cubed pairs their chunks. Tables and coordinates have an axis that x
lacks, which cubed cannot pair: the array-api backend serves these, by cubed's own operations.
"""

from functools import partial
from types import SimpleNamespace
from typing import Any

import cubed
import cubed.array_api
import numpy as np

from rope_array._array_api.library import Library, numpy_library
from rope_array._array_api.library import library as library_of
from rope_array._array_api.ops import ArrayOps
from rope_array._spec.plan import Constants, Plan
from rope_array._spec.shape_rule import placement, sequence_axis
from rope_array.backend_tools import ArrayTypeError, Call, CallOptions, Positions, Source, Tables, rotate_by

name = "cubed"
_CHUNK = 4096  # numbers of the host in a chunk: positions, whose tables have a number for each pair


def _concat(arrays: Any, /, *, axis: int = 0) -> Any:
    """Concatenate into one chunk along the axis: cubed mixes up arrays that are chunked differently there."""
    chunks = list(arrays[0].chunks)
    chunks[axis] = (sum(a.shape[axis] for a in arrays),)
    return cubed.array_api.concat([_in_one_chunk(a, axis) for a in arrays], axis=axis, chunks=tuple(chunks))


def _asarray(values: Any, /, *, dtype: Any = None, copy: bool | None = None, spec: Any = None) -> Any:
    """Make an array of host values, in chunks that tables fit in; cubed's own function takes 1 MB at most."""
    if LIBRARY.is_array(values):
        return values
    array, chunks, room = np.asarray(values, dtype=dtype), [], _CHUNK
    for size in reversed(array.shape):
        chunks.append(min(size, room))
        room = max(1, room // max(1, size))
    return cubed.from_array(array, tuple(reversed(chunks)), spec=spec)


def _arange(*ends: int, dtype: Any = None, spec: Any = None) -> Any:
    """Return the integers of a range; cubed's own function fails for a negative step."""
    return _asarray(np.arange(*ends, dtype=dtype), spec=spec)


def _searchsorted(values: Any, x: Any, /, *, side: str = "left") -> Any:
    """Find places in sorted values, which are computed; cubed's own function makes arrays of another spec."""
    find = partial(np.searchsorted, values.compute(), side=side)
    return cubed.map_blocks(find, x, dtype=np.int64)


def _take(x: Any, indices: Any, /, *, axis: int) -> Any:
    """Take elements along an axis; for as many indices as elements, cubed's own function returns x."""
    indices = np.asarray(indices.compute() if LIBRARY.is_array(indices) else indices)
    before = (slice(None),) * (axis % x.ndim)
    return x[(*before, np.append(indices, 0))][(*before, slice(indices.size))]


class CubedOps(ArrayOps):
    """cubed's operations."""

    def look_up(self, numbers: Constants, indices: Any, dtype: Any) -> Any:
        row = np.asarray(numbers.values, dtype)
        return cubed.map_blocks(lambda block: row[block], indices, dtype=dtype)


class Cubed(Library):
    """cubed: accepts NumPy arrays too; all arrays of a call need one spec."""

    converter = "numpy.asarray(pos)"

    def is_array(self, value: Any) -> bool:
        return isinstance(value, cubed.Array)

    def check_mix(self, xs: tuple[Any, ...], source: Source) -> None:
        for array in (*xs[1:], *source.arrays):
            if self.is_array(array) and array.spec != xs[0].spec:
                raise ArrayTypeError(
                    "the arrays of one call have two specs, and cubed computes with one; make positions by "
                    "cubed.from_array(pos, spec=x.spec)."
                )

    def ops(self, x: Any) -> ArrayOps:
        return CubedOps(self.xp, True, {"spec": x.spec})


_REPLACEMENTS = {
    "arange": _arange,
    "asarray": _asarray,
    "concat": _concat,
    "searchsorted": _searchsorted,
    "take": _take,
}
_xp = SimpleNamespace(**{**vars(cubed.array_api), **_REPLACEMENTS})
LIBRARY = Cubed("cubed", _xp, takes_numpy=True, implicit_device=True)


def library(x: Any) -> Library:
    """Return cubed."""
    return LIBRARY


def decline_reason(xs: Any, source: Source) -> str | None:
    """Return why cubed's own operations rotate by the source, or None."""
    if isinstance(source, Tables):
        return "it takes positions, not a Rotation"
    return None if source.plan.coordinates is None else "it takes positions of one coordinate"


def rotate(call: Call) -> Any:
    """Rotate the arrays of a call, lazily."""
    assert isinstance(call.source, Positions)
    # Checks the values, whose range depends on their type.
    call.pos.read(LIBRARY, numpy_library().ops(None), use_float64=False, split=False)
    pos = call.pos.values
    # Copy NumPy's: the operation runs later, when the caller may have written to the array.
    pos = pos if LIBRARY.is_array(pos) else np.array(pos).reshape(call.pos.shape)
    return tuple(_rotate(_in_one_chunk(x, x.ndim - 1), pos, call.source.plan, call.options) for x in call.xs)


def _rotate(x: Any, pos: Any, plan: Plan, options: CallOptions) -> Any:
    pos = _chunked_like(_with_axes_of(x, pos, options.seq_axis), x)
    return cubed.map_blocks(_rotate_chunk, x, pos, dtype=x.dtype, plan=plan, options=options)


def _with_axes_of(x: Any, pos: Any, seq_axis: int) -> Any:
    """Give positions the axes of x: size 1 where they have none, and along the features."""
    order, index = placement(x.ndim, pos.ndim, seq_axis)
    pos = pos[..., None]
    if order is not None:
        pos = (cubed.array_api if LIBRARY.is_array(pos) else np).permute_dims(pos, order)
    return pos[index]


def _chunked_like(pos: Any, x: Any) -> Any:
    chunks = tuple(1 if n == 1 else c for n, c in zip(pos.shape, x.chunksize, strict=True))
    return pos.rechunk(chunks) if LIBRARY.is_array(pos) else cubed.from_array(pos, chunks, spec=x.spec)


def _rotate_chunk(x: Any, pos: Any, *, plan: Plan, options: CallOptions) -> Any:
    pos = pos[..., 0]
    if pos.ndim:  # the sequence last, as in the shape rule
        pos = library_of(pos).xp.moveaxis(pos, sequence_axis(x.ndim, options.seq_axis), -1)
    return rotate_by(x, Positions(pos, plan), options)


def _in_one_chunk(x: Any, axis: int) -> Any:
    """Rechunk an axis into one chunk."""
    return x if x.numblocks[axis] == 1 else x.rechunk({axis: x.shape[axis]})
