"""dask: one task for each chunk of x rotates it by the backend of the chunk's own library. Nothing runs here.

The task is a `blockwise`: array operations would split the features into two chunks, and `map_blocks` pairs
the axes of x and pos from the end (dask issue 11686).
"""

from itertools import product
from typing import Any

import array_api_compat.dask.array as xp
import dask.array as da
import numpy as np
from dask.array.core import normalize_chunks, slices_from_chunks
from dask.layers import ArrayBlockwiseDep
from dask.tokenize import normalize_token

from rope_array._array_api.library import Library, computes_in_float64, numpy_library
from rope_array._array_api.library import library as library_of
from rope_array._array_api.position_input import PositionInput, parse
from rope_array._array_api.tables import with_axes_of
from rope_array._errors import ArrayTypeError, ShapeError
from rope_array._spec.plan import Layout, Plan
from rope_array._spec.shape_rule import is_unknown_size, paired_axes, without_coordinates
from rope_array.backend_tools import Call, CallOptions, Positions, Tables, make_tables_for, rotate_by

name = "dask"


class Dask(Library):
    """dask: accepts NumPy arrays too; the chunks know their devices."""

    converter = "numpy.asarray(pos)"
    keeps_float64 = True

    def is_array(self, value: Any) -> bool:
        return isinstance(value, da.Array)

    def check_supported(self, value: Any) -> None:
        try:
            library_of(value._meta)
        except ArrayTypeError as error:  # chunks that are masked or sparse arrays
            text = "a dask array cannot be used for its chunks, which x.map_blocks can convert. Of a chunk"
            raise ArrayTypeError(f"{text}: {error}") from None


LIBRARY = Dask("dask", xp, takes_numpy=True, implicit_device=True)
# Labels of axes that x does not have; x's own are labelled 0, 1, ...
_PAIR, _TABLE, _COORDINATE, _HEAD, _FREQUENCY = -1, -2, -3, -4, -5


def library(x: Any) -> Library:
    """Return dask."""
    return LIBRARY


def rotate(call: Call) -> Any:
    """Rotate the arrays of a call, lazily."""
    source, options = call.source, call.options
    if isinstance(source, Tables):
        return tuple(_rotate_by_tables(x, source, options) for x in call.xs)
    pos = _checked(call.pos, source.plan)
    return tuple(_rotate_at(x, pos, source.plan, options) for x in call.xs)


def make_tables(source: Positions, like: Any) -> Any:
    """Make cos and sin as lazy arrays, chunked as the positions are."""
    inv_freq, plan = source.inv_freq, source.plan
    pos = _in_chunks(_checked(parse(source.values, like, LIBRARY), plan), plan, like)
    pos = with_axes_of(like, pos, source)
    labels = _coordinate_labels(plan)
    pos = _rechunk_last(pos) if labels else pos
    axes: tuple[int, ...] = tuple(range(pos.ndim - len(labels)))
    frequencies: tuple[Any, ...] = ()
    out_axes, new_axes = (*axes, _PAIR), {_PAIR: plan.layout.num_pairs}
    if inv_freq is not None:
        # All of one head or coordinate in one chunk: each task gets the frequencies whole.
        frequencies = inv_freq.rechunk(-1), ((), (), (_HEAD,), (_HEAD, _FREQUENCY))[inv_freq.ndim] + (_PAIR,)
        new_axes = {}
        if inv_freq.ndim > 1:
            out_axes = (*axes[:-1], _HEAD, axes[-1], _PAIR)
    cos_and_sin = da.blockwise(
        _tables_of_chunk,
        (_TABLE, *out_axes),
        pos,
        (*axes, *labels),
        *frequencies,
        like=like._meta,
        plan=plan,
        new_axes={_TABLE: 2} | new_axes,
        dtype=np.float64 if computes_in_float64(like) else np.float32,
        concatenate=True,
    )
    return cos_and_sin[0], cos_and_sin[1]


def _rotate_at(x: Any, pos: Any, plan: Plan, options: CallOptions) -> Any:
    x = _rechunk_last(x)
    if plan.coordinates is not None and pos.ndim == 1 and x.ndim > 1:
        pos = pos[None]  # one position of all tokens: a chunk may have as many tokens as coordinates
    shape = without_coordinates(_shape(pos), plan)
    axes = paired_axes(x.ndim, len(shape), options.seq_axis)
    operand = _operand(pos, x, axes, _coordinate_labels(plan))
    broadcast_axes = tuple(size == 1 for size in shape)
    return _blockwise(
        _rotate_chunk_at, x, *operand, plan=plan, options=options, broadcast_axes=broadcast_axes
    )


def _operand(pos: Any, x: Any, axes: tuple[int, ...], labels: tuple[int, ...]) -> tuple[Any, Any]:
    """Return positions with the labels of their axes; None if every task gets them whole."""
    if LIBRARY.is_array(pos):
        return _chunked_like(_rechunk_last(pos) if labels else pos, x, axes), (*axes, *labels)
    return (_chunked_like(pos, x, axes), axes) if axes else (pos, None)


def _coordinate_labels(plan: Plan) -> tuple[int, ...]:
    return () if plan.coordinates is None else (_COORDINATE,)


def _rotate_by_tables(x: Any, tables: Tables, options: CallOptions) -> Any:
    x = _rechunk_last(x)
    axes = paired_axes(x.ndim, tables.cos.ndim - 1, options.seq_axis)
    operands = [a for t in tables.arrays for a in (_chunked_like(_rechunk_last(t), x, axes), (*axes, _PAIR))]
    broadcast_axes = tuple(size == 1 for size in tables.cos.shape[:-1])
    static = {"layout": tables.layout, "options": options, "broadcast_axes": broadcast_axes}
    return _blockwise(_rotate_chunk_by_tables, x, *operands, **static)


def _blockwise(function: Any, x: Any, *operands: Any, **constants: Any) -> Any:
    """Call a function on each chunk of x with the matching chunks of the operands, paired by axis labels."""
    axes = tuple(range(x.ndim))
    options = {"dtype": x.dtype, "meta": x._meta, "concatenate": True, "align_arrays": False}
    return da.blockwise(function, axes, x, axes, *operands, **constants, **options)


def _rotate_chunk_at(x: Any, pos: Any, *, plan: Plan, options: CallOptions, broadcast_axes: Any) -> Any:
    _check_sizes(x, without_coordinates(_shape(pos), plan), options.seq_axis, broadcast_axes)
    pos = pos if library_of(x).takes_numpy else _in_library_of(x, pos)
    return rotate_by(x, Positions(pos, plan), options)


def _in_library_of(x: Any, array: Any) -> Any:
    """Return an array of x's library: dask concatenates the chunks of any library into a NumPy array."""
    is_converted = isinstance(array, np.ndarray) and not isinstance(x, np.ndarray)
    return library_of(x).xp.asarray(array) if is_converted else array


def _check_sizes(x: Any, pos_shape: Any, seq_axis: int, broadcast_axes: Any) -> None:
    """Check sizes that were unknown until now: size 1 broadcasts only if the whole axis has size 1."""
    axes = paired_axes(x.ndim, len(pos_shape), seq_axis)
    for size, axis, is_broadcast in zip(pos_shape, axes, broadcast_axes, strict=True):
        if size != x.shape[axis] and not is_broadcast:
            raise ShapeError(
                f"a chunk of x has the size {x.shape[axis]} along axis {axis}, and its positions {size}; "
                "chunk positions as x is chunked."
            )


def _tables_of_chunk(pos: Any, inv_freq: Any = None, *, like: Any, plan: Plan) -> Any:
    tables = make_tables_for(Positions(pos, plan, inv_freq), like)
    return library_of(tables.cos).xp.stack([tables.cos, tables.sin])


def _rotate_chunk_by_tables(
    x: Any, cos: Any, sin: Any, *, layout: Layout, options: CallOptions, broadcast_axes: Any
) -> Any:
    _check_sizes(x, cos.shape[:-1], options.seq_axis, broadcast_axes)
    return rotate_by(x, Tables(_in_library_of(x, cos), _in_library_of(x, sin), layout), options)


def _checked(pos: PositionInput, plan: Plan) -> Any:
    """Check values on the host; return an array of dask or NumPy, or a range."""
    # NumPy's are copied: the tasks run later, when the caller may have written to the array.
    array, _ = pos.read(LIBRARY, numpy_library().ops(None), use_float64=False, split=False)
    # Each task contains its own range, three numbers.
    return pos.values if pos.form == "range" and plan.coordinates is None else array


def _shape(pos: Any) -> tuple[Any, ...]:
    return (len(pos),) if isinstance(pos, range) else getattr(pos, "shape", ())


def _in_chunks(pos: Any, plan: Plan, like: Any) -> Any:
    """Return a dask array of positions; chunk host positions so that their tables get dask's chunk size."""
    if LIBRARY.is_array(pos):
        return pos
    pos = np.asarray(pos)
    shape = without_coordinates(pos.shape, plan)
    itemsize = 2 * max(1, plan.layout.num_pairs) * (8 if computes_in_float64(like) else 4)
    chunks = normalize_chunks("auto", shape, dtype=np.dtype(f"V{itemsize}")) if shape else ()
    return da.from_array(pos, chunks=(*chunks, *((n,) for n in pos.shape[len(shape) :])))


def _rechunk_last(x: Any) -> Any:
    """Rechunk the last axis into one chunk: features, as pairs may be half a head apart, or coordinates."""
    return x if x.numblocks[-1] == 1 else x.rechunk({x.ndim - 1: -1})


def _chunked_like(pos: Any, x: Any, axes: tuple[int, ...]) -> Any:
    """Rechunk positions as x is chunked along their axes, so that x itself is never rechunked."""
    chunks = tuple((1,) if n == 1 else x.chunks[axis] for n, axis in zip(_shape(pos), axes, strict=False))
    if any(is_unknown_size(size) for sizes in chunks for size in sizes):
        return _unknown_chunks(pos, x, axes)
    if not isinstance(pos, da.Array):
        return _HostPositions(chunks, pos)
    if any(map(is_unknown_size, pos.shape)):
        return _unknown_chunks(pos, x, axes)
    return pos.rechunk(dict(enumerate(chunks)))


class _HostPositions(ArrayBlockwiseDep):  # type: ignore[misc,unused-ignore]
    """NumPy positions or a range, in blocks: the task of a block contains its own.

    dask's ArrayValuesDep names values by their repr, which leaves out most of a long array.
    """

    def __init__(self, chunks: Any, pos: Any):
        super().__init__(chunks)
        self.token = normalize_token(pos)
        blocks = product(*(range(len(sizes)) for sizes in chunks))
        indices = (index[0] if isinstance(pos, range) else index for index in slices_from_chunks(chunks))
        self.blocks = {block: pos[index] for block, index in zip(blocks, indices, strict=True)}

    def __getitem__(self, block: tuple[int, ...]) -> Any:
        return self.blocks[block]

    def __dask_tokenize__(self) -> Any:
        return "rope_array.positions", self.chunks, self.token


def _unknown_chunks(pos: Any, x: Any, axes: tuple[int, ...]) -> Any:
    """Return positions as they are chunked, for an x of unknown sizes, which each task checks."""
    blocks = tuple(x.numblocks[a] for a in axes)
    pos_blocks = pos.numblocks[: len(axes)] if isinstance(pos, da.Array) else (0,)
    if all(
        n in (1, b) and (n == b or pos.shape[i] == 1)
        for i, (n, b) in enumerate(zip(pos_blocks, blocks, strict=False))
    ):
        return pos
    raise ShapeError(
        f"x has chunks of unknown size along the axes of pos, in {blocks} chunks, and pos cannot be cut to "
        "match. Give pos a dask array in as many chunks of the same sizes, or call x.compute_chunk_sizes() "
        "first."
    )
