"""dask: one task per chunk of x, which hands the chunk to the path of its own library. Nothing runs here.

`blockwise`, not array operations, which would split the features in two chunks, and not `map_blocks`, which
pairs the axes of x and pos from the end (dask issue 11686).
"""

from itertools import product
from typing import Any

import array_api_compat.dask.array as xp
import dask.array as da
import numpy as np
from dask.array.core import slices_from_chunks
from dask.layers import ArrayValuesDep

from rope_array._array_api import position_input as _host
from rope_array._array_api import rotate as _core
from rope_array._array_api.library import Library
from rope_array._array_api.library import library as library_of
from rope_array._errors import ShapeError
from rope_array._spec.plan import Layout, Plan
from rope_array._spec.shape_rule import covered_axes, unknown, without_coordinates

name = "dask"
is_core = False


class Dask(Library):
    """dask: takes NumPy beside its own, and its chunks know where they are."""

    def owns(self, value: Any) -> bool:
        return isinstance(value, da.Array)

    def check_sound(self, value: Any) -> None:
        library_of(value._meta)  # refuses chunks that are masked arrays


LIBRARY = Dask("dask", xp, takes_numpy=True, placeless=True)
# Labels of axes that x does not have; its own are labelled 0, 1, ...
_LANE, _TABLE, _COORDINATE = -1, -2, -3


def library(x: Any) -> Library:
    """Return dask."""
    return LIBRARY


def apply(xs: Any, pos: Any, plan: Plan, seq_axis: int, run: Any) -> Any:
    """Rotate each of xs by its positions, lazily."""
    _core.positions(xs, pos, plan, seq_axis, LIBRARY)
    values = _lazy(pos)
    return tuple(_apply_one(x, values, plan, seq_axis, run) for x in xs)


def tables(pos: Any, like: Any, plan: Plan, inv_freq: Any, run: Any) -> Any:
    """Make cos and sin as lazy arrays, chunked as the positions are."""
    _core.table_positions(pos, like, plan, inv_freq, LIBRARY)
    pos = da.asarray(_lazy(pos))
    more = _more_axes(plan)
    pos = _whole_last(pos) if more else pos
    axes = tuple(range(pos.ndim - len(more)))
    frequencies = () if inv_freq is None else (inv_freq.rechunk(-1), (_LANE,))
    both = da.blockwise(
        _tables_of_chunk,
        (_TABLE, *axes, _LANE),
        pos,
        (*axes, *more),
        *frequencies,
        like=like._meta,
        plan=plan,
        run=run,
        new_axes={_TABLE: 2} | ({_LANE: plan.layout.lanes} if inv_freq is None else {}),
        dtype=np.float64 if _core.is_double(like) else np.float32,
        concatenate=True,
    )
    return both[0], both[1]


def rotate(xs: Any, cos: Any, sin: Any, layout: Layout, seq_axis: int, run: Any) -> Any:
    """Rotate each of xs by tables, lazily."""
    _core.check_rotation(xs, cos, sin, layout, seq_axis, LIBRARY)
    return tuple(_rotate_one(x, cos, sin, layout, seq_axis, run) for x in xs)


def _apply_one(x: Any, pos: Any, plan: Plan, seq_axis: int, run: Any) -> Any:
    x = _whole_last(x)
    shape = without_coordinates(_host.shape_of(pos), plan)
    axes = covered_axes(x.ndim, len(shape), seq_axis)
    operand = _operand(pos, x, axes, _more_axes(plan))
    spread = tuple(size == 1 for size in shape)
    return _blockwise(_apply_to_chunk, x, *operand, plan=plan, seq_axis=seq_axis, spread=spread, run=run)


def _operand(pos: Any, x: Any, axes: tuple[int, ...], more: tuple[int, ...]) -> tuple[Any, Any]:
    """Return positions with the labels of their axes; None where they go into every task as they are."""
    if LIBRARY.owns(pos):
        return _chunked_like(_whole_last(pos) if more else pos, x, axes), (*axes, *more)
    return (_chunked_like(pos, x, axes), axes) if axes else (pos, None)


def _more_axes(plan: Plan) -> tuple[int, ...]:
    return () if plan.coordinates is None else (_COORDINATE,)


def _rotate_one(x: Any, cos: Any, sin: Any, layout: Layout, seq_axis: int, run: Any) -> Any:
    x = _whole_last(x)
    axes = covered_axes(x.ndim, cos.ndim - 1, seq_axis)
    operands = [a for t in (cos, sin) for a in (_chunked_like(_whole_last(t), x, axes), (*axes, _LANE))]
    spread = tuple(size == 1 for size in cos.shape[:-1])
    return _blockwise(_rotate_chunk, x, *operands, layout=layout, seq_axis=seq_axis, spread=spread, run=run)


def _blockwise(function: Any, x: Any, *operands: Any, **constants: Any) -> Any:
    """Call a function on each chunk of x with the chunks of the operands that stand beside it."""
    axes = tuple(range(x.ndim))
    known = {"dtype": x.dtype, "meta": x._meta, "concatenate": True, "align_arrays": False}
    return da.blockwise(function, axes, x, axes, *operands, **constants, **known)


def _apply_to_chunk(x: Any, pos: Any, *, plan: Plan, seq_axis: int, spread: Any, run: Any) -> Any:
    _check_sizes(x, without_coordinates(np.shape(pos), plan), seq_axis, spread)
    if isinstance(pos, np.ndarray) and not isinstance(x, np.ndarray) and not library_of(x).takes_numpy:
        pos = library_of(x).xp.asarray(pos)
    return run("apply", x, (x,), pos, plan, seq_axis)[0]


def _check_sizes(x: Any, pos_shape: Any, seq_axis: int, spread: Any) -> None:
    """Check sizes that were unknown until now. Of two chunks that differ, a size 1 is no axis to spread."""
    for have, axis, one in zip(
        pos_shape, covered_axes(x.ndim, len(pos_shape), seq_axis), spread, strict=True
    ):
        if have != x.shape[axis] and not one:
            raise ShapeError(
                f"a chunk of x has the size {x.shape[axis]} along axis {axis}, and its positions {have}; "
                "cut positions as x is cut."
            )


def _tables_of_chunk(pos: Any, inv_freq: Any = None, *, like: Any, plan: Plan, run: Any) -> Any:
    cos, sin = run("tables", like, pos, like, plan, inv_freq)
    return library_of(cos).xp.stack([cos, sin])


def _rotate_chunk(x: Any, cos: Any, sin: Any, *, layout: Layout, seq_axis: int, spread: Any, run: Any) -> Any:
    _check_sizes(x, cos.shape[:-1], seq_axis, spread)
    return run("rotate", x, (x,), cos, sin, layout, seq_axis)[0]


def _lazy(pos: Any) -> Any:
    """Return positions as dask or NumPy has them; a number stays one and goes into every task."""
    return np.asarray(pos) if isinstance(pos, (range, list, tuple)) else pos


def _whole_last(x: Any) -> Any:
    """Bring the last axis into one chunk: a head, whose pairs may stand half of it apart, or coordinates."""
    return x if x.numblocks[-1] == 1 else x.rechunk({x.ndim - 1: -1})


def _chunked_like(pos: Any, x: Any, axes: tuple[int, ...]) -> Any:
    """Cut positions where x is cut along the axes that they cover, so that x itself is never cut anew."""
    chunks = tuple((1,) if size == 1 else x.chunks[axis] for size, axis in zip(pos.shape, axes, strict=False))
    if any(unknown(size) for sizes in chunks for size in sizes):
        return _unknown_chunks(pos, x, axes)
    if not isinstance(pos, da.Array):
        return ArrayValuesDep(chunks, _cut(pos, chunks))
    if any(map(unknown, pos.shape)):
        return _unknown_chunks(pos, x, axes)
    return pos.rechunk(dict(enumerate(chunks)))


def _cut(pos: Any, chunks: Any) -> dict[tuple[int, ...], Any]:
    """Return the part of NumPy positions that each block's task carries: no task of its own brings it."""
    blocks = product(*(range(len(sizes)) for sizes in chunks))
    return dict(zip(blocks, (pos[part] for part in slices_from_chunks(chunks)), strict=True))


def _unknown_chunks(pos: Any, x: Any, axes: tuple[int, ...]) -> Any:
    """Take positions beside an x of unknown sizes as they are cut: each chunk checks its own."""
    blocks = tuple(x.numblocks[a] for a in axes)
    have = pos.numblocks[: len(axes)] if isinstance(pos, da.Array) else (0,)
    if all(
        h in (1, b) and (h == b or pos.shape[i] == 1)
        for i, (h, b) in enumerate(zip(have, blocks, strict=False))
    ):
        return pos
    raise ShapeError(
        f"x has chunks of unknown size along the axes of pos, in {blocks} chunks, and pos cannot be cut to "
        "match. Give pos a dask array in as many chunks of the same sizes, or call x.compute_chunk_sizes() "
        "first."
    )
