"""Builders of positions: what to hand to `apply` and `rotation` as `pos`, on every array library.

A position is where a token stands, and no shape tells it: a cache, padding, packing and sharding each need
their own. The builders here take plain numbers and arrays. Python numbers, sequences and NumPy arrays are on
the host: their values are checked, and go where the other arrays of the call are, or `like`. Values of any
other array are never looked at (but by `mrope`, which says so), and no shape depends on them, so that all
builders work under a tracer.

Integers are int64, or int32 where the library has no wider ones. Coordinates that are not whole are float32,
or float64 where asked for: 16-bit floats skip integers, and are never made.
"""

import math
import operator
from itertools import pairwise
from numbers import Integral, Real
from typing import Any, Literal, get_args

from rope_array import _errors
from rope_array._array_api import library as _namespace
from rope_array._spec import shape_rule as _shape_rule
from rope_array._spec import validation as _values

from . import _factory as _making
from . import _mrope

__all__ = [
    "context_parallel",
    "from_mask",
    "grid",
    "jitter",
    "mrope",
    "normalized_grid",
    "offset",
    "packed",
    "rescale",
    "shift",
    "text",
    "video_grid",
]

ChunkLayout = Literal["contiguous", "zigzag"]
Normalize = Literal["separate", "min", "max"]
Advance = Literal["max", "spatial"]


# ---- sequences ----


def offset(length: int, offsets: Any = 0, *, like: Any = None, dtype: Any = None) -> Any:
    """Return the positions of `length` tokens in a row, from an offset: decoding with a cache.

    Parameters
    ----------
    length : int
        How many tokens each sequence has.
    offsets : int, sequence of int, or integer array of shape (...)
        The position of the first token: one for all, or one for each sequence, (B,).
    like : array, optional
        Whose library and device the result has, where `offsets` is on the host. NumPy without.
    dtype : {"int64", "int32"}, optional
        By default int64, or int32 where the library has no 64-bit integers.

    Returns
    -------
    array of shape (..., length)
        offsets[..., None] + arange(length): (length,) for an int, (B, length) for an array (B,).

    Raises
    ------
    ArrayTypeError
        A type, dtype, library or device that is not served.
    ShapeError
        `length` is negative.
    PositionError
        An offset that the host can see leads out of the range of the dtype.

    Examples
    --------
    >>> from rope_array import positions
    >>> positions.offset(3, [0, 10])
    array([[ 0,  1,  2],
           [10, 11, 12]])
    """
    length = _making.size_of("length", length)
    make = _making.integers(dtype, like, offsets=offsets)
    _making.check_range("offsets", offsets, make, length)
    start = make.array("offsets", offsets)
    return start[..., None] + make.arange(length)


def packed(
    cu_seqlens: Any,
    total: int | None = None,
    *,
    offsets: Any = None,
    pad: int = 0,
    like: Any = None,
    dtype: Any = None,
) -> Any:
    """Return the positions of packed sequences, which stand one behind another on one axis.

    Parameters
    ----------
    cu_seqlens : sequence of int, or integer array of shape (n + 1,)
        Cumulative lengths, from 0: sequence i has the tokens cu_seqlens[i] to cu_seqlens[i + 1]. An empty
        sequence repeats a number.
    total : int, optional
        Tokens on the axis, padding included: the size of the result. By default the last of `cu_seqlens`,
        if it is on the host; beside any other array it must be given, as its values are not looked at.
    offsets : int, sequence of int, or integer array of shape (n,), optional
        The position of each sequence's first token, which is 0 without: the tokens that its cache holds.
    pad : int
        The position of the tokens behind the last sequence.
    like, dtype
        As of `offset`.

    Returns
    -------
    array of shape (total,)
        Positions that begin anew with each sequence.

    Raises
    ------
    ArrayTypeError
        A type, dtype, library or device that is not served.
    ShapeError
        `cu_seqlens` is not of shape (n + 1,), `offsets` not of shape (n,), or `total` negative or unknown.
    PositionError
        `cu_seqlens`, seen by the host, does not begin at 0, falls, or ends beyond `total`; or a position is
        out of the range of the dtype.

    Notes
    -----
    Where the host cannot see `cu_seqlens`, tokens beyond `total` are left out, and numbers that fall or do
    not begin at 0 give positions without meaning.

    Examples
    --------
    >>> from rope_array import positions
    >>> positions.packed([0, 3, 5], total=6)
    array([0, 1, 2, 0, 1, 0])
    >>> positions.packed([0, 3, 5], offsets=[7, 0])
    array([7, 8, 9, 0, 1])
    """
    make = _making.integers(dtype, like, cu_seqlens=cu_seqlens, offsets=offsets)
    count = _sequences(cu_seqlens)
    total = _total(cu_seqlens, total)
    pad = _pad(pad, make)
    _check_offsets(offsets, count, total, make)
    ends = make.array("cu_seqlens", cu_seqlens)
    token = make.arange(total)
    if not count:
        return token * 0 + pad
    xp = make.xp
    # Where empty sequences share a start the last of them is found, which is the one that has the token. One
    # beyond the last sequence is padding.
    index = make.cast(xp.searchsorted(ends[1:] + 0, token, side="right"))
    inside = token < ends[-1]
    index = xp.where(inside, index, make.number(0))
    position = token - xp.take(ends, index, axis=0)
    if offsets is not None:
        first = make.array("offsets", offsets)
        position = position + (xp.take(first, index, axis=0) if first.ndim else first)
    return xp.where(inside, position, make.number(pad))


def from_mask(mask: Any, *, pad: int = 0, like: Any = None, dtype: Any = None) -> Any:
    """Return positions that count the tokens that an attention mask keeps: left padding, right padding.

    Parameters
    ----------
    mask : sequence, or array of shape (..., S)
        The attention mask: booleans, or integers 0 and 1; true for tokens and false for padding.
    pad : int
        The position of padding. It has no meaning, as nothing attends to it; 0 and 1 are both in use.
    like, dtype
        As of `offset`.

    Returns
    -------
    array of shape (..., S)
        cumsum(mask) - 1 where the mask is true, and `pad` elsewhere.

    Raises
    ------
    ArrayTypeError
        A type, dtype, library or device that is not served: an additive mask of floats is none of tokens.
    ShapeError
        The mask is a single value.
    PositionError
        The mask, seen by the host, holds another number than 0 and 1.

    Examples
    --------
    >>> from rope_array import positions
    >>> positions.from_mask([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]])
    array([[0, 0, 0, 1, 2],
           [0, 1, 2, 3, 4]])
    """
    make = _making.integers(dtype, like, mask=mask)
    if not _making.shape_of("mask", mask):
        raise _errors.ShapeError(f"mask is {_errors.describe(mask)}; give an array of shape (..., S).")
    _making.check_mask(mask)
    pad = _pad(pad, make)
    kept = make.array("mask", mask, boolean=True) != 0
    return make.xp.where(kept, make.running_sum(make.cast(kept)) - 1, make.number(pad))


def context_parallel(
    sequence: Any,
    rank: Any,
    size: int,
    *,
    layout: ChunkLayout = "contiguous",
    axis: int = -1,
    like: Any = None,
    dtype: Any = None,
) -> Any:
    """Return the part of a sequence that one rank of a context-parallel group holds.

    Parameters
    ----------
    sequence : int, or array with an axis of S tokens
        The length S, for the positions 0 ... S - 1, which are the tokens' indices too; or what is to be cut:
        positions of any kind, token ids, hidden states.
    rank : int, or integer array of shape ()
        Which rank. An array may be a tracer's, such as ``jax.lax.axis_index`` gives.
    size : int
        How many ranks there are.
    layout : {"contiguous", "zigzag"}
        "contiguous" gives each rank one run of S/size tokens. "zigzag", that of Megatron-LM and Transformer
        Engine, cuts 2·size chunks and gives rank r the chunks r and 2·size - 1 - r, in this order, so that
        causal attention is as much work for every rank.
    axis : int
        The axis of the tokens, where an array is given.
    like, dtype
        As of `offset`, for a length; an array keeps what it has.

    Returns
    -------
    array of shape (S/size,), or as `sequence` with S/size tokens on the axis
        Never a view.

    Raises
    ------
    ArrayTypeError
        A type, dtype, library or device that is not served.
    ShapeError
        S is not a multiple of `size`, or of 2·size for zigzag; or there is no such axis.
    SpecError
        `layout` names none, `size` is below 1, or `rank` is not below `size`.

    Examples
    --------
    >>> from rope_array import positions
    >>> positions.context_parallel(8, 1, 2)
    array([4, 5, 6, 7])
    >>> positions.context_parallel(8, 0, 2, layout="zigzag")
    array([0, 1, 6, 7])
    >>> positions.context_parallel(positions.packed([0, 5, 8]), 0, 2, layout="zigzag")
    array([0, 1, 1, 2])
    """
    size = _values.integer("size", size, 1)
    pieces = 2 if _values.choice("layout", layout, get_args(ChunkLayout)) == "zigzag" else 1
    cut = _making.is_array(sequence)
    axis = _axis(sequence, axis) if cut else 0
    length = sequence.shape[axis] if cut else _making.size_of("sequence", sequence)
    chunk = _chunk(length, size, pieces)
    rank = _rank(rank, size)
    if cut and not _making.is_array(rank):
        return _slices(sequence, _starts(rank, size, pieces, chunk), chunk, axis, like)
    make = _making.integers(dtype, like, sequence=sequence if cut else None, rank=rank)
    if cut:
        _check_cut(sequence, make.lib, make.beside)
    else:
        _making.check_range("sequence", 0, make, length)
    number = make.array("rank", rank)
    run = make.arange(chunk)
    index = make.xp.concat([run + start for start in _starts(number, size, pieces, chunk)])
    return make.xp.take(sequence, index, axis=axis) if cut else index


def text(pos: Any, n: int = 3, *, like: Any = None) -> Any:
    """Return positions on one axis as coordinates on n: those of text in a model of several axes (M-RoPE).

    Parameters
    ----------
    pos : int, range, sequence of int, or array of shape (...)
        Positions of tokens. An array may hold floats too, and keeps its dtype.
    n : int
        How many coordinates the rope has.
    like : array, optional
        As of `offset`.

    Returns
    -------
    array of shape (..., n)
        Each position n times.

    Raises
    ------
    ArrayTypeError
        A type, dtype, library or device that is not served.
    ShapeError
        `n` is below 1.
    PositionError
        A position that the host can see is out of the range of the dtype.

    Examples
    --------
    >>> from rope_array import positions
    >>> positions.text(range(2))
    array([[0, 0, 0],
           [1, 1, 1]])
    """
    n = _making.size_of("n", n, 1)
    make = _making.integers(None, like, pos=pos)
    if make.lib.is_array(pos):
        make.check("pos", pos, _namespace.POSITION_DTYPES, "integers, float32 or float64")
    else:
        _making.check_range("pos", pos, make)
        pos = make.array("pos", pos)
    return make.xp.stack([pos] * n, axis=-1)


# ---- grids ----


def grid(*sizes: int, origin: Any = 0, step: Any = 1, like: Any = None, dtype: Any = None) -> Any:
    """Return the coordinates of a grid's points, the last axis running fastest: patches of an image, (h, w).

    Parameters
    ----------
    *sizes : int
        Points along each axis.
    origin : number, or one for each axis
        The coordinate of the first point.
    step : number, or one for each axis
        The distance of neighbours.
    like : array, optional
        Whose library and device the result has. NumPy without.
    dtype : {"int64", "int32", "float32", "float64"}, optional
        By default integers where `origin` and `step` are, and else float32.

    Returns
    -------
    array of shape (product of sizes, number of axes)
        origin + step · index, floats rounded once.

    Raises
    ------
    ArrayTypeError
        A type or dtype that is not served.
    ShapeError
        No size, a negative one, or another number of origins or steps than of axes.
    SpecError
        An origin or a step is no finite number, or no integer though the dtype is one.
    PositionError
        A coordinate is out of the range of the dtype.

    Examples
    --------
    >>> from rope_array import positions
    >>> positions.grid(2, 2)
    array([[0, 0],
           [0, 1],
           [1, 0],
           [1, 1]])
    >>> positions.grid(3, origin=0.5, step=2)
    array([[0.5],
           [2.5],
           [4.5]], dtype=float32)
    """
    extents = _making.sizes_of(sizes)
    make, series = _ruled(extents, origin, step, like, dtype)
    return _mesh(series, *_row_major(extents), make)


def video_grid(
    frames: int,
    height: int,
    width: int,
    *,
    origin: Any = 0,
    step: Any = 1,
    spatial_merge_size: int = 1,
    like: Any = None,
    dtype: Any = None,
) -> Any:
    """Return the coordinates (t, h, w) of a video's patches, frame by frame.

    Parameters
    ----------
    frames, height, width : int
        Patches along each axis.
    origin, step : number, or one each for t, h and w
        As of `grid`: ``step=(seconds_per_frame, 1, 1)`` gives time in seconds.
    spatial_merge_size : int
        Side of the blocks of patches that a model merges into one token. The patches of a block follow one
        another, and blocks run row by row: the order of Qwen2-VL's vision tower. 1 is plain row by row.
    like, dtype
        As of `grid`.

    Returns
    -------
    array of shape (frames · height · width, 3)
        Take ``[:, 1:]`` where a model's patches have no time.

    Raises
    ------
    ArrayTypeError, SpecError, PositionError
        As of `grid`.
    ShapeError
        As of `grid`; or height or width is no multiple of `spatial_merge_size`.

    Examples
    --------
    >>> from rope_array import positions
    >>> positions.video_grid(1, 2, 4, spatial_merge_size=2)[:, 1:].tolist()
    [[0, 0], [0, 1], [1, 0], [1, 1], [0, 2], [0, 3], [1, 2], [1, 3]]
    """
    frames, height, width = sizes = _making.sizes_of((frames, height, width))
    merge = _making.size_of("spatial_merge_size", spatial_merge_size, 1)
    for name, extent in (("height", height), ("width", width)):
        if extent % merge:
            raise _errors.ShapeError(
                f"{name} is {extent}, no multiple of spatial_merge_size {merge}; give whole blocks of "
                "patches."
            )
    make, series = _ruled(sizes, origin, step, like, dtype)
    h, w = height // merge, width // merge
    # The axes: frame, row of blocks, block of the row, row in the block, patch of that row.
    shapes = [(frames, 1, 1, 1, 1), (1, h, 1, merge, 1), (1, 1, w, 1, merge)]
    return _mesh(series, shapes, (frames, h, w, merge, merge), make)


def normalized_grid(
    *sizes: int, normalize: Normalize = "separate", like: Any = None, dtype: Any = None
) -> Any:
    """Return the centres of a grid's patches, from -1 to 1 over its extent: the coordinates of DINOv3.

    Parameters
    ----------
    *sizes : int
        Patches along each axis.
    normalize : {"separate", "min", "max"}
        The extent that is from -1 to 1: that of each axis, or for all axes that of the shortest or longest.
    like : array, optional
        Whose library and device the result has. NumPy without.
    dtype : {"float32", "float64"}, optional
        float32 by default.

    Returns
    -------
    array of shape (product of sizes, number of axes)
        2·(index + 1/2)/extent - 1, rounded once, the last axis running fastest.

    Raises
    ------
    ArrayTypeError
        A type or dtype that is not served.
    ShapeError
        No size, or a negative one.
    SpecError
        `normalize` names no rule.

    Examples
    --------
    >>> from rope_array import positions
    >>> positions.normalized_grid(1, 4)
    array([[ 0.  , -0.75],
           [ 0.  , -0.25],
           [ 0.  ,  0.25],
           [ 0.  ,  0.75]], dtype=float32)
    """
    counts = _making.sizes_of(sizes)
    rule = _values.choice("normalize", normalize, get_args(Normalize))
    extents = counts if rule == "separate" else [min(counts) if rule == "min" else max(counts)] * len(counts)
    make = _making.floats(dtype, like)
    # An extent of 0 is of a grid without points, but for the sizes of the other axes.
    series = [
        make.filled([(2 * i + 1 - (e or 1)) / (e or 1) for i in range(n)])
        for n, e in zip(counts, extents, strict=True)
    ]
    return _mesh(series, *_row_major(counts), make)


# ---- augmentation ----


def shift(coords: Any, amount: float, uniform: Any) -> Any:
    """Shift coordinates at random, each axis by its own amount: the first step of DINOv3's augmentation.

    DINOv3 shifts, then jitters, then rescales, in training alone.

    Parameters
    ----------
    coords : array of shape (..., S, n)
        Coordinates, float32 or float64.
    amount : float
        The largest shift s.
    uniform : array of shape (..., n), sequence of n floats, or random generator
        Random numbers u of [0, 1), one for each axis; or for each axis and image where it has more axes,
        which line up with those of `coords` before S. Or a ``numpy.random.Generator`` or ``random.Random``,
        of which n numbers are drawn on the host: under a tracer they become constants, so give an array
        there.

    Returns
    -------
    array of shape (..., S, n)
        coords + s·(2u - 1), of coords' dtype.

    Raises
    ------
    ArrayTypeError
        A type, dtype, library or device that is not served.
    ShapeError
        Shapes that do not fit.
    SpecError
        `amount` is no finite number of at least 0.

    Examples
    --------
    >>> from rope_array import positions
    >>> coords = positions.normalized_grid(1, 2)
    >>> positions.shift(coords, 0.5, [0.0, 0.75])
    array([[-0.5 , -0.25],
           [-0.5 ,  0.75]], dtype=float32)
    """
    limit = _values.number("amount", amount, "a finite number of at least 0")
    if limit < 0:
        raise _errors.SpecError(f"amount is {limit}; give a finite number of at least 0.")
    draw, _ = _draw(coords, uniform, per_axis=True)
    return coords + limit * draw


def jitter(coords: Any, factor: float, uniform: Any) -> Any:
    """Stretch coordinates at random, each axis by its own factor: the second step of DINOv3's augmentation.

    Parameters
    ----------
    coords : array of shape (..., S, n)
        Coordinates, float32 or float64.
    factor : float
        The largest factor J, at least 1; the smallest is 1/J, and their logarithm is uniform.
    uniform : array of shape (..., n), sequence of n floats, or random generator
        As of `shift`.

    Returns
    -------
    array of shape (..., S, n)
        coords · exp(ln J·(2u - 1)), of coords' dtype.

    Raises
    ------
    ArrayTypeError, ShapeError
        As of `shift`.
    SpecError
        `factor` is no finite number of at least 1.

    Examples
    --------
    >>> from rope_array import positions
    >>> coords = positions.normalized_grid(2, 2, dtype="float64")
    >>> positions.jitter(coords, 2.0, [0.5, 0.0])
    array([[-0.5 , -0.25],
           [-0.5 ,  0.25],
           [ 0.5 , -0.25],
           [ 0.5 ,  0.25]])
    """
    limit = _log("factor", factor)
    draw, xp = _draw(coords, uniform, per_axis=True)
    return coords * xp.exp(limit * draw)


def rescale(coords: Any, factor: float, uniform: Any) -> Any:
    """Stretch coordinates at random, all axes by one factor: the last step of DINOv3's augmentation.

    Parameters
    ----------
    coords : array of shape (..., S, n)
        Coordinates, float32 or float64.
    factor : float
        The largest factor R, at least 1; the smallest is 1/R, and their logarithm is uniform.
    uniform : array of shape (...), float, sequence of floats, or random generator
        As of `shift`, but one number for all axes: of shape (), or one for each image.

    Returns
    -------
    array of shape (..., S, n)
        coords · exp(ln R·(2u - 1)), of coords' dtype.

    Raises
    ------
    ArrayTypeError, ShapeError
        As of `shift`.
    SpecError
        `factor` is no finite number of at least 1.

    Examples
    --------
    >>> import numpy as np
    >>> from rope_array import positions
    >>> coords = positions.normalized_grid(1, 2, dtype="float64")
    >>> positions.rescale(coords, 2.0, 0.0)
    array([[ 0.  , -0.25],
           [ 0.  ,  0.25]])
    >>> positions.rescale(coords, 2.0, np.random.default_rng(0)).shape
    (2, 2)
    """
    limit = _log("factor", factor)
    draw, xp = _draw(coords, uniform, per_axis=False)
    return coords * xp.exp(limit * draw)


# ---- vision and text ----


def mrope(
    tokens: Any,
    image_grid_thw: Any = (),
    video_grid_thw: Any = (),
    *,
    mask: Any = None,
    image_token_id: int = 1,
    video_token_id: int = 2,
    spatial_merge_size: int = 2,
    tokens_per_second: float = 1,
    second_per_grid_ts: Any = 1,
    split_frames: bool = False,
    advance: Advance = "max",
    pad: int = 0,
    like: Any = None,
    dtype: Any = None,
) -> tuple[Any, Any]:
    """Return the coordinates (t, h, w) of tokens of text, images and videos: the M-RoPE of Qwen2-VL.

    A token of text has its position three times. The tokens of an image or a frame, from the position p
    that comes next, have the coordinates p + (time, row, column), rows and columns counted in tokens. The
    text behind goes on from the largest coordinate plus 1.

    This works on the host: it reads the values of `tokens`, which waits for a device that has them, and no
    tracer allows.

    Parameters
    ----------
    tokens : sequence of int, or integer array of shape (S,) or (B, S)
        Token types, 0 for text, 1 for images and 2 for videos; or token ids, with the two ids below.
    image_grid_thw, video_grid_thw : sequence or integer array of shape (number, 3)
        The grid (t, h, w) of each image and each video in patches, before merging, in the order of the
        tokens, row after row of the batch.
    mask : sequence or array of tokens' shape, optional
        The attention mask, as of `from_mask`: padding is left out.
    image_token_id, video_token_id : int
        Which tokens stand for patches; all others are text.
    spatial_merge_size : int
        Side of the blocks of patches that are one token.
    tokens_per_second : float
        How fast time runs in a video (Qwen2.5-VL).
    second_per_grid_ts : float, or one for each video
        Seconds between the frames of a video's grid. Frame k has the time
        int(k · tokens_per_second · second_per_grid_ts), the product in float32, as models were trained.
    split_frames : bool
        Every frame of a video is a vision block of its own, with text between them: Qwen3-VL, whose prompts
        have time stamps there.
    advance : {"max", "spatial"}
        Where the text behind goes on: from the largest coordinate plus 1 [1]_, or from the block's start
        plus the larger of its rows and columns, whatever its time (transformers 5.23). They differ where the
        time of a video runs further than its rows and columns.
    pad : int
        The coordinates of padding.
    like : array, optional
        Whose library and device the results have. Those of `tokens` without.
    dtype : {"int64", "int32"}, optional
        As of `offset`.

    Returns
    -------
    positions : array of shape (S, 3) or (B, S, 3)
        Coordinates (t, h, w) on the last axis.
    deltas : array of shape () or (B,)
        Largest coordinate plus 1, less the number of tokens (padding not counted), for each sequence. In
        decoding, the token that has n tokens before it is at the position n + delta, on all three axes.

    Raises
    ------
    ArrayTypeError
        A type, dtype, library or device that is not served; tokens whose values cannot be read.
    ShapeError
        Grids that do not fit the tokens, or are not (t, h, w) in whole blocks; a mask of another shape.
    SpecError
        An option without meaning.
    PositionError
        A mask that holds another number than 0 and 1, or a coordinate out of the range of the dtype.

    References
    ----------
    .. [1] Wang et al., "Qwen2-VL", arXiv 2409.12191, section 2.1.
    .. [2] Bai et al., "Qwen2.5-VL Technical Report", arXiv 2502.13923, section 2.1.2.

    Examples
    --------
    >>> from rope_array import positions
    >>> pos, delta = positions.mrope([0, 0, 1, 1, 0, 0], [(1, 2, 4)])
    >>> pos.tolist()
    [[0, 0, 0], [1, 1, 1], [2, 2, 2], [2, 2, 3], [4, 4, 4], [5, 5, 5]]
    >>> int(delta)
    0
    """
    make = _making.integers(dtype, like, tokens=tokens)
    rows, shape = _mrope.rows_of(tokens)
    kept = _mrope.kept_of(mask, shape)
    ids = _mrope.ids_of(image_token_id, video_token_id)
    merge = _making.size_of("spatial_merge_size", spatial_merge_size, 1)
    spatial = _values.choice("advance", advance, get_args(Advance)) == "spatial"
    images = _mrope.blocks_of("image_grid_thw", image_grid_thw, merge)
    videos = _mrope.blocks_of("video_grid_thw", video_grid_thw, merge)
    videos = _mrope.timed(videos, tokens_per_second, second_per_grid_ts)
    if _values.truth("split_frames", split_frames):
        videos = [_mrope.Block(1, h, w, 1.0) for t, h, w, _ in videos for _ in range(t)]
    pad = _pad(pad, make)
    queues = dict(
        zip(ids, (_mrope.Queue("image", iter(images)), _mrope.Queue("video", iter(videos))), strict=True)
    )
    made = [_mrope.walk(row, keep, queues, spatial, pad) for row, keep in zip(rows, kept, strict=True)]
    _mrope.check_rest(queues)
    return _mrope.as_arrays(made, shape, make)


# ---- packed sequences, masks, ranks ----


def _sequences(cu_seqlens: Any) -> Any:
    """Return how many sequences cumulative lengths are of."""
    shape = _making.shape_of("cu_seqlens", cu_seqlens)
    if len(shape) != 1 or _shape_rule.is_unknown_size(shape[0]) or shape[0] < 1:
        raise _errors.ShapeError(
            f"cu_seqlens is {_errors.describe(cu_seqlens)}; give the cumulative lengths of n sequences, from "
            "0, in one array of n + 1."
        )
    return shape[0] - 1


def _total(cu_seqlens: Any, total: Any) -> Any:
    """Return the number of tokens, and check cumulative lengths that the host can see."""
    total = None if total is None else _making.size_of("total", total)
    if not _making.is_host(cu_seqlens):
        if total is None:
            raise _errors.ShapeError(
                f"total is not given, and cu_seqlens is {_errors.describe(cu_seqlens)}, whose values are not "
                "looked at; give the number of tokens: total=x.shape[0]."
            )
        return total
    if _making.is_array(cu_seqlens):
        _making.check_numpy("cu_seqlens", cu_seqlens, boolean=False)
    ends = _making.as_lists(cu_seqlens)
    if any(isinstance(end, bool) for end in ends):
        raise _errors.ArrayTypeError(
            f"cu_seqlens is {_errors.describe(cu_seqlens)}; give integers, no bools."
        )
    if ends[0] != 0:
        raise _errors.PositionError(f"cu_seqlens begins with {_errors.short(ends[0])}; it begins with 0.")
    for before, end in pairwise(ends):
        if end < before:
            raise _errors.PositionError(
                f"cu_seqlens falls from {before} to {end}; give cumulative lengths, not lengths."
            )
    if total is not None and ends[-1] > total:
        raise _errors.PositionError(
            f"cu_seqlens ends with {_errors.short(ends[-1])}, beyond total {total}; give a total of at "
            "least that."
        )
    return ends[-1] if total is None else total


def _check_offsets(offsets: Any, count: Any, total: Any, make: _making.Make) -> None:
    shape = () if offsets is None else _making.shape_of("offsets", offsets)
    if shape not in ((), (count,)):
        raise _errors.ShapeError(
            f"offsets has the shape {shape}, and cu_seqlens is of {count} sequences; give one number, "
            f"or ({count},)."
        )
    _making.check_range("offsets", 0 if offsets is None else offsets, make, total)


def _pad(pad: Any, make: _making.Make) -> int:
    """Return the position of padding as a Python int."""
    if not isinstance(pad, Integral):
        raise _errors.ArrayTypeError(f"pad is {_errors.describe(pad)}; give a Python int.")
    _making.check_range("pad", pad, make)
    return pad if isinstance(pad, int) else operator.index(pad)


def _axis(array: Any, axis: Any) -> int:
    if isinstance(axis, bool) or not isinstance(axis, Integral):
        raise _errors.ArrayTypeError(f"axis is {_errors.describe(axis)}; give a Python int.")
    if not -array.ndim <= axis < array.ndim:
        raise _errors.ShapeError(
            f"axis is {axis}, and sequence is {_errors.describe(array)}; give an axis of it."
        )
    return operator.index(axis) % len(array.shape)


def _chunk(length: Any, size: int, pieces: int) -> Any:
    """Return how many tokens one chunk has."""
    if _shape_rule.is_unknown_size(length):
        raise _errors.ShapeError("the sequence is of unknown length; compute its size first.")
    if length % (pieces * size):
        times = "2·size" if pieces == 2 else "size"
        raise _errors.ShapeError(
            f"the sequence has {length} tokens, no multiple of {times} = {pieces * size}; pad it to a "
            "multiple first."
        )
    return length // (pieces * size)


def _rank(rank: Any, size: int) -> Any:
    if _making.is_array(rank):
        if tuple(rank.shape):
            raise _errors.ShapeError(f"rank is {_errors.describe(rank)}; give one number.")
        if not _making.is_host(rank):
            return rank
        _making.check_numpy("rank", rank, boolean=False)
        rank = rank[()]
    number = _values.integer("rank", rank, 0)
    if number >= size:
        raise _errors.SpecError(f"rank is {number} of size {size}; give a rank from 0 to {size - 1}.")
    return number


def _starts(rank: Any, size: int, pieces: int, chunk: Any) -> list[Any]:
    """Return where the chunks of a rank begin."""
    return [rank * chunk, (2 * size - 1 - rank) * chunk][:pieces]


def _check_cut(array: Any, lib: _namespace.Library, beside: Any) -> None:
    """Check an array that is cut, which stays where it is."""
    if not lib.is_array(array) or not lib.same_device(array, beside):
        raise _errors.ArrayTypeError(
            f"sequence is {_errors.describe(array)} beside {_errors.describe(beside)}; give arrays of one "
            "library, in one place, and leave like out."
        )
    lib.check_supported(array)


def _slices(array: Any, starts: list[Any], chunk: Any, axis: int, like: Any) -> Any:
    """Cut the runs of a rank out of an array."""
    lib, beside = _making.find_library(like, {"sequence": array})
    _check_cut(array, lib, beside)
    before = (slice(None),) * axis
    return lib.xp.concat([array[(*before, slice(s, s + chunk), ...)] for s in starts], axis=axis)


# ---- grids ----


def _ruled(sizes: list[Any], origin: Any, step: Any, like: Any, dtype: Any) -> tuple[_making.Make, list[Any]]:
    """Return origin + step·index for each axis: integers, or floats, rounded once on the host."""
    origins, steps = _each("origin", origin, len(sizes)), _each("step", step, len(sizes))
    whole = all(isinstance(number, Integral) for number in (*origins, *steps))
    name = None if dtype is None else _making.name_of_dtype(dtype)
    if (whole and name is None) or (name or "").startswith("int"):
        make = _making.integers(dtype, like)
        return make, [_rule(n, o, s, make) for n, o, s in zip(sizes, origins, steps, strict=True)]
    make = _making.floats(dtype, like)
    origins, steps = (
        [_values.number("origin", o) for o in origins],
        [_values.number("step", s) for s in steps],
    )
    axes = zip(sizes, origins, steps, strict=True)
    return make, [make.filled([_fitting(o + s * i, make) for i in range(n)]) for n, o, s in axes]


def _rule(size: Any, origin: Any, step: Any, make: _making.Make) -> Any:
    for name, number in (("origin", origin), ("step", step)):
        if not isinstance(number, Integral):
            raise _errors.SpecError(
                f"{name} is {number}, and the dtype one of integers; give an integer, or dtype='float32'."
            )
    # As of a length: nothing is asked of a size where it is not needed.
    small = make.bits == 63 and max(abs(origin), abs(step)) < 2**31
    for end in () if small else (origin, step, origin + step * max(size - 1, 0)):
        if not -(2**make.bits) <= end < 2**make.bits:
            raise _errors.PositionError(
                f"a coordinate of the grid is {_errors.short(end)}, which does not fit a signed integer "
                f"of {make.bits + 1} bits."
            )
    return make.arange(size) * step + origin


def _fitting(coordinate: float, make: _making.Make) -> float:
    largest = _making.LARGEST[make.bits + 1]
    if not abs(coordinate) <= largest:
        raise _errors.PositionError(
            f"a coordinate of the grid is {coordinate}, beyond float{make.bits + 1}; give a "
            "smaller origin or step."
        )
    return float(coordinate)


def _each(name: str, value: Any, count: int) -> list[Any]:
    """Return one number for each axis, integers as they are."""
    parts = list(value) if isinstance(value, (list, tuple)) else [value] * count
    if len(parts) != count:
        raise _errors.ShapeError(
            f"{name} has {len(parts)} numbers for {count} axes; give one, or one for each."
        )
    return [
        operator.index(part)
        if isinstance(part, Integral) and not isinstance(part, bool)
        else _values.number(name, part, "a finite number, or one for each axis")
        for part in parts
    ]


def _mesh(
    series: list[Any], shapes: list[tuple[Any, ...]], whole: tuple[Any, ...], make: _making.Make
) -> Any:
    """Spread each axis's coordinates, each of its shape, over the whole grid; bring them on a last axis."""
    xp, count = make.xp, math.prod(whole)
    laid = [xp.reshape(array, shape) for array, shape in zip(series, shapes, strict=True)]
    return xp.stack([xp.reshape(xp.broadcast_to(array, whole), (count,)) for array in laid], axis=-1)


def _row_major(sizes: list[Any]) -> tuple[list[tuple[Any, ...]], tuple[Any, ...]]:
    """Return how each axis lies in a grid, and the grid's shape."""
    count = len(sizes)
    return [(1,) * i + (n,) + (1,) * (count - 1 - i) for i, n in enumerate(sizes)], tuple(sizes)


# ---- augmentation ----


def _log(name: str, factor: Any) -> float:
    number = _values.number(name, factor, "a finite number of at least 1")
    if number < 1:
        raise _errors.SpecError(
            f"{name} is {number}; give a finite number of at least 1: the range is 1/{name} to {name}."
        )
    return math.log(number)


def _draw(coords: Any, uniform: Any, *, per_axis: bool) -> tuple[Any, Any]:
    """Return 2u - 1 in coords' dtype, laid so that it lines up with coords; and the namespace."""
    if not _making.is_array(coords):
        raise _errors.ArrayTypeError(
            f"coords is {_errors.describe(coords)}; give an array of float32 or float64."
        )
    lib = _making.library_of(coords)
    make = _making.Make(lib, coords, lib.ops(coords).creation_kwargs, coords.dtype, 0)
    make.check("coords", coords, _making.REAL, "an array of float32 or float64")
    if coords.ndim < 2:
        raise _errors.ShapeError(f"coords is {_errors.describe(coords)}; give an array of shape (..., S, n).")
    u = _uniform(uniform, coords.shape[-1], per_axis, make)
    _check_draw(tuple(u.shape), coords, per_axis)
    centred = 2 * make.cast(u) - 1
    return centred[..., None, :] if per_axis else centred[..., None, None], lib.xp


def _uniform(uniform: Any, n: Any, per_axis: bool, make: _making.Make) -> Any:
    """Make an array of coords' library of random numbers, or draw them."""
    if make.lib.is_array(uniform) and _making.is_array(uniform):
        make.check("uniform", uniform, _making.REAL, "random numbers of [0, 1) in float32 or float64")
        return uniform
    if callable(getattr(uniform, "random", None)):
        drawn = [float(uniform.random()) for _ in range(n if per_axis else 1)]
        return make.filled(drawn if per_axis else drawn[0])
    if not _making.is_host(uniform):
        raise _errors.ArrayTypeError(
            f"uniform is {_errors.describe(uniform)} beside {_errors.describe(make.beside)}; give random "
            "numbers of the same library."
        )
    shape = _making.shape_of("uniform", uniform, Real)
    return make.xp.reshape(make.filled(_unit(uniform)), shape)


def _unit(uniform: Any) -> Any:
    """Make plain floats of random numbers on the host, and check them."""
    if isinstance(uniform, (list, tuple, range)):
        return [_unit(part) for part in uniform]
    if _making.is_array(uniform):
        return _unit(uniform.tolist())
    if isinstance(uniform, bool) or not 0 <= uniform <= 1:
        raise _errors.PositionError(f"uniform holds {uniform}; give random numbers of [0, 1).")
    return float(uniform)


def _check_draw(shape: tuple[Any, ...], coords: Any, per_axis: bool) -> None:
    """Check that random numbers line up with coords: one for each axis, or one for all, for each image."""
    n, lead = coords.shape[-1], tuple(coords.shape[:-2])
    axes = shape[:-1] if per_axis else shape
    fits = not per_axis or (len(shape) > 0 and shape[-1] == n)
    # One number serves all images, and one image has as many results as there are numbers.
    fits = fits and (not axes or not lead or len(axes) == len(lead))
    if not fits or any(1 not in (a, b) and a != b for a, b in zip(axes, lead, strict=False)):
        need = f"({n},)" if per_axis else "()"
        raise _errors.ShapeError(
            f"uniform has the shape {shape}, and coords is {_errors.describe(coords)}; give {need}, or that "
            f"behind the axes of images{f', {lead}' if lead else ''}."
        )
