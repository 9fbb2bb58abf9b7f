"""Positions of sequences: after a cache, packed, padded, sharded, and text in a model of several axes."""

import operator
from itertools import pairwise
from numbers import Integral
from typing import Any, Literal, get_args

from rope_array._array_api.library import POSITION_DTYPES, Library, dtype_name
from rope_array._errors import ArrayTypeError, PositionError, ShapeError, SpecError, describe, short
from rope_array._spec import validation
from rope_array._spec.shape_rule import is_unknown_size

from . import _factory

ChunkLayout = Literal["contiguous", "zigzag"]


def offset(length: int, offsets: Any = 0, *, like: Any = None, dtype: Any = None) -> Any:
    """Return the positions of `length` consecutive tokens from an offset: decoding with a cache.

    Parameters
    ----------
    length : int
        Tokens in each sequence.
    offsets : int, sequence of int, or integer array of shape (...)
        The position of the first token: one for all sequences, or one for each, (B,).
    like : array, optional
        An array with the library and device of the result, if `offsets` is on the host. NumPy by default.
    dtype : {"int64", "int32"}, optional
        By default int64, or int32 where the library has no 64-bit integers.

    Returns
    -------
    array of shape (..., length)
        offsets[..., None] + arange(length): (length,) for an int, (B, length) for an array (B,).

    Raises
    ------
    ArrayTypeError
        A type, dtype, library or device is not supported.
    ShapeError
        `length` is negative.
    PositionError
        A position, computed from an offset on the host, is out of the range of the dtype.

    Examples
    --------
    >>> from rope_array import positions
    >>> positions.offset(3, [0, 10])
    array([[ 0,  1,  2],
           [10, 11, 12]])
    """
    length = _factory.size_of("length", length)
    factory = _factory.integers(dtype, like, offsets=offsets)
    _factory.check_range("offsets", offsets, factory, length)
    start, tokens = factory.array("offsets", offsets), factory.arange(length)
    # As many axes as `start` has: jax_numpy_rank_promotion may forbid others.
    return start[..., None] + tokens[(*(None,) * start.ndim, ...)]


def packed(
    cu_seqlens: Any,
    total: int | None = None,
    *,
    offsets: Any = None,
    pad: int = 0,
    like: Any = None,
    dtype: Any = None,
) -> Any:
    """Return the positions of packed sequences, which follow one another on one axis.

    Parameters
    ----------
    cu_seqlens : sequence of int, or integer array of shape (n + 1,)
        Cumulative lengths, from 0: sequence i has the tokens cu_seqlens[i] to cu_seqlens[i + 1]. An empty
        sequence repeats a number.
    total : int, optional
        Tokens on the axis, padding included: the size of the result. By default the last of `cu_seqlens`.
        Required for a `cu_seqlens` on a device, whose values are not read.
    offsets : int, sequence of int, or integer array of shape (n,), optional
        The position of each sequence's first token, 0 by default: the number of tokens in its cache.
    pad : int
        The position of the tokens after the last sequence.
    like, dtype
        See `offset`.

    Returns
    -------
    array of shape (total,)
        Positions that restart with each sequence.

    Raises
    ------
    ArrayTypeError
        A type, dtype, library or device is not supported.
    ShapeError
        `cu_seqlens` is not of shape (n + 1,), `offsets` not of shape (n,), or `total` negative or unknown.
    PositionError
        `cu_seqlens`, on the host, does not begin at 0, decreases, ends beyond `total`, or holds document ids;
        or a position is out of the range of the dtype.

    See Also
    --------
    documents : of a document id for each token, in place of cumulative lengths.
    context_parallel : with `cu_seqlens`, one rank's part of packed sequences.

    Notes
    -----
    Tensors on the CPU are checked as values on the host are, except in compiled programs. The values of other
    arrays are not checked: tokens beyond `total` are left out, and the positions are meaningless if the
    lengths decrease or do not begin at 0, or if they are document ids.

    Examples
    --------
    >>> from rope_array import positions
    >>> positions.packed([0, 3, 5], total=6)
    array([0, 1, 2, 0, 1, 0])
    >>> positions.packed([0, 3, 5], offsets=[7, 0])
    array([7, 8, 9, 0, 1])
    """
    factory = _factory.integers(dtype, like, cu_seqlens=cu_seqlens, offsets=offsets)
    count = count_sequences(cu_seqlens)
    given, total = total, total_of(cu_seqlens, total)
    if offsets is None:
        refuse_document_ids(cu_seqlens, given)
    pad = _factory.pad_of(pad, factory)
    _check_offsets(offsets, count, total, factory)
    ends = factory.array("cu_seqlens", cu_seqlens)
    token = factory.arange(total)
    if not count:
        return token * 0 + pad
    xp = factory.xp
    index = _sequence_of(token, ends, factory)
    inside = token < ends[-1]
    index = xp.where(inside, index, factory.scalar(0))
    position = token - xp.take(ends, index, axis=0)
    if offsets is not None:
        first = factory.array("offsets", offsets)
        position = position + (xp.take(first, index, axis=0) if first.ndim else first)
    return xp.where(inside, position, factory.scalar(pad))


def documents(ids: Any, *, like: Any = None, dtype: Any = None) -> Any:
    """Return positions that restart where the document id of the tokens changes.

    For packed rows that hold a document id for each token, as the masks of FlexAttention and the segment ids
    of attention in JAX do [1]_, in place of cumulative lengths.

    Parameters
    ----------
    ids : sequence, or integer array of shape (..., S)
        The document of each token: equal neighbours are of one document. Ids are any integers, and need not
        rise. Padding with an id of its own counts as a document, as nothing attends to it.
    like, dtype
        See `offset`.

    Returns
    -------
    array of shape (..., S)
        The number of tokens of the same document before each token, in its row.

    Raises
    ------
    ArrayTypeError
        A type, dtype, library or device is not supported.
    ShapeError
        `ids` is a single value, or ragged.
    PositionError
        An id on the host does not fit the dtype of the result.

    See Also
    --------
    packed : of cumulative lengths.

    References
    ----------
    .. [1] PyTorch, "FlexAttention", document masking: ``document_id[q_idx] == document_id[kv_idx]``; JAX,
       ``jax.experimental.pallas.ops.tpu.splash_attention.SegmentIds``.

    Examples
    --------
    >>> from rope_array import positions
    >>> positions.documents([0, 0, 0, 1, 1, 2])
    array([0, 1, 2, 0, 1, 0])
    """
    factory = _factory.integers(dtype, like, ids=ids)
    if not _factory.shape_of("ids", ids):
        raise ShapeError(f"ids is {describe(ids)}; give an array of shape (..., S).")
    if factory.lib.is_array(ids):
        factory.check("ids", ids, _factory.SIGNED, _factory.need_of(False))
        if dtype_name(ids) != "int64":  # a cast to 32 bits could make its ids equal
            ids = factory.cast(ids)
    else:
        _factory.check_range("ids", ids, factory)
        ids = factory.array("ids", ids)
    column = factory.cumulative_sum(factory.cast(ids) * 0 + 1) - 1
    if ids.ndim == 1:
        return _within_runs(ids, column, factory)
    if 0 in ids.shape:  # dask cannot reshape it
        return column
    flat, columns = (factory.ops.reshape(array, (-1,)) for array in (ids, column))
    position = _within_runs(flat, columns, factory)
    if any(map(is_unknown_size, ids.shape)):
        return factory.ops.with_shape_of(position, ids)
    return factory.ops.reshape(position, ids.shape)


def from_mask(mask: Any, *, pad: int = 0, like: Any = None, dtype: Any = None) -> Any:
    """Return positions that count the tokens of an attention mask, with padding on any side.

    Parameters
    ----------
    mask : sequence, or array of shape (..., S)
        The attention mask: booleans, or integers 0 and 1; true for tokens and false for padding.
    pad : int
        The position of padding. Nothing attends to padding; models use 0 or 1.
    like, dtype
        See `offset`.

    Returns
    -------
    array of shape (..., S)
        cumsum(mask) - 1 where the mask is true, and `pad` elsewhere.

    Raises
    ------
    ArrayTypeError
        A type, dtype, library or device is not supported; additive float masks are not.
    ShapeError
        The mask is a single value.
    PositionError
        The mask, on the host, holds another number than 0 and 1.

    Examples
    --------
    >>> from rope_array import positions
    >>> positions.from_mask([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]])
    array([[0, 0, 0, 1, 2],
           [0, 1, 2, 3, 4]])
    """
    factory = _factory.integers(dtype, like, mask=mask)
    if not _factory.shape_of("mask", mask):
        raise ShapeError(f"mask is {describe(mask)}; give an array of shape (..., S).")
    _factory.check_mask(mask)
    pad = _factory.pad_of(pad, factory)
    kept = factory.array("mask", mask, boolean=True) != 0
    return factory.xp.where(kept, factory.cumulative_sum(factory.cast(kept)) - 1, factory.scalar(pad))


def context_parallel(
    sequence: Any,
    rank: Any,
    size: int,
    *,
    layout: ChunkLayout = "contiguous",
    cu_seqlens: Any = None,
    axis: int = -1,
    like: Any = None,
    dtype: Any = None,
) -> Any:
    """Return the part of a sequence that one rank of a context-parallel group holds.

    With `cu_seqlens`, the axis holds packed sequences, and each of them is cut on its own.

    Parameters
    ----------
    sequence : int, or array with an axis of S tokens
        The length S: the result is positions, which are the indices of the rank's tokens too. Or an array:
        the result is the rank's part of it. Positions of any kind, token ids and hidden states all work.
    rank : int, or integer array of shape ()
        The rank, which may be traced, such as ``jax.lax.axis_index``.
    size : int
        Number of ranks.
    layout : {"contiguous", "zigzag"}
        "contiguous" gives each rank S/size consecutive tokens. "zigzag" is the layout of Megatron-LM and
        Transformer Engine: of 2·size chunks, rank r has the chunks r and 2·size - 1 - r, in this order. Every
        rank then does the same work in causal attention.
    cu_seqlens : sequence of int, or integer array of shape (n + 1,), optional
        Cumulative lengths of packed sequences, from 0, as for `packed`. They count the tokens of all ranks,
        padding included. Each length is a multiple of `size`, or of 2·size for zigzag. A rank has its chunks
        of the first sequence, then its chunks of the second, and so on [1]_. Tokens after the last sequence
        are cut as one more sequence.
    axis : int
        The axis of the tokens, if `sequence` is an array.
    like, dtype
        See `offset`. An array keeps its library and dtype.

    Returns
    -------
    array of shape (S/size,), or as `sequence` with S/size tokens on the axis
        Never a view.

    Raises
    ------
    ArrayTypeError
        A type, dtype, library or device is not supported.
    ShapeError
        S, or the length of a sequence on the host, is not a multiple of `size`, or of 2·size for zigzag;
        `cu_seqlens` is not of shape (n + 1,); or the axis does not exist.
    SpecError
        `layout` is unknown, `size` is below 1, or `rank` is not below `size`.
    PositionError
        `cu_seqlens`, on the host, does not begin at 0, decreases, or ends beyond S.

    Notes
    -----
    A `cu_seqlens` is checked as in `packed`. On a device or in a trace it is not: the result is meaningless
    if a length is not a multiple.

    References
    ----------
    .. [1] Transformer Engine, the format "thd" of ``apply_rotary_pos_emb`` with ``cp_size`` and ``cp_rank``,
       and ``thd_get_partitioned_indices``.

    Examples
    --------
    >>> from rope_array import positions
    >>> positions.context_parallel(8, 1, 2)
    array([4, 5, 6, 7])
    >>> positions.context_parallel(8, 0, 2, layout="zigzag")
    array([0, 1, 6, 7])

    Two packed sequences, of 8 tokens and 4:

    >>> cu = [0, 8, 12]
    >>> positions.context_parallel(positions.packed(cu), 0, 2, layout="zigzag", cu_seqlens=cu)
    array([0, 1, 6, 7, 0, 3])
    """
    size = validation.integer("size", size, 1)
    pieces = 2 if validation.choice("layout", layout, get_args(ChunkLayout)) == "zigzag" else 1
    is_array = _factory.is_array(sequence)
    axis = _axis(sequence, axis) if is_array else 0
    length = sequence.shape[axis] if is_array else _factory.size_of("sequence", sequence)
    chunk = _chunk(length, size, pieces)
    rank = _rank(rank, size)
    if cu_seqlens is None and is_array and not _factory.is_array(rank):
        return _slices(sequence, _starts(rank, size, pieces, chunk), chunk, axis, like)
    arrays = {"sequence": sequence if is_array else None, "rank": rank, "cu_seqlens": cu_seqlens}
    factory = _factory.integers(dtype, like, **arrays)
    if is_array:
        _check_same_device(sequence, factory.lib, factory.like)
    else:
        _factory.check_range("sequence", 0, factory, length)
    number = factory.array("rank", rank)
    if cu_seqlens is None:
        tokens = factory.arange(chunk)
        index = factory.xp.concat([tokens + start for start in _starts(number, size, pieces, chunk)])
    else:
        _check_lengths(cu_seqlens, length, size, pieces)
        index = _index_by_sequence(cu_seqlens, length, number, size, pieces, factory)
    return factory.xp.take(sequence, index, axis=axis) if is_array else index


def text(pos: Any, n: int = 3, *, like: Any = None) -> Any:
    """Return positions on one axis as n equal coordinates: text in a model of several axes (M-RoPE).

    Parameters
    ----------
    pos : int, range, sequence of int, or array of shape (...)
        Positions of tokens. An array may hold floats too, and keeps its dtype.
    n : int
        Coordinates of the rope.
    like : array, optional
        See `offset`.

    Returns
    -------
    array of shape (..., n)
        Each position n times.

    Raises
    ------
    ArrayTypeError
        A type, dtype, library or device is not supported.
    ShapeError
        `n` is below 1.
    PositionError
        A position on the host is out of the range of the dtype.

    Examples
    --------
    >>> from rope_array import positions
    >>> positions.text(range(2))
    array([[0, 0, 0],
           [1, 1, 1]])
    """
    n = _factory.size_of("n", n, 1)
    factory = _factory.integers(None, like, pos=pos)
    if factory.lib.is_array(pos):
        factory.check("pos", pos, POSITION_DTYPES, "integers, float32 or float64")
    else:
        _factory.check_range("pos", pos, factory)
        pos = factory.array("pos", pos)
    return factory.xp.stack([pos] * n, axis=-1)


# ---- packed sequences ----

_FOR_IDS = "Of a document id for each token, call positions.documents(ids)."


def refuse_document_ids(cu_seqlens: Any, total: Any) -> None:
    """Raise for host values, or a tensor of the CPU, that are the document ids of all tokens.

    Document ids rise by 0 or 1.

    As cumulative lengths they mean sequences of one token or none, whose positions are all 0.
    """
    ends = _factory.numbers_of(cu_seqlens)
    if ends is None:
        return
    rises = {end - before for before, end in pairwise(ends)}
    if 0 in rises and rises <= {0, 1} and (total == len(ends) if total is not None else ends[-1] > 0):
        raise PositionError(
            f"cu_seqlens has {len(ends)} numbers that rise by 0 or 1, as document ids of {len(ends)} tokens "
            f"do. {_FOR_IDS} If they are cumulative lengths, leave out the empty sequences."
        )


def count_sequences(cu_seqlens: Any) -> Any:
    """Return the number of sequences that cumulative lengths describe."""
    shape = _factory.shape_of("cu_seqlens", cu_seqlens)
    if len(shape) != 1 or is_unknown_size(shape[0]) or shape[0] < 1:
        raise ShapeError(
            f"cu_seqlens is {describe(cu_seqlens)}; give the cumulative lengths of n sequences, from 0, in "
            f"one array of n + 1. {_FOR_IDS}"
        )
    return shape[0] - 1


def total_of(cu_seqlens: Any, total: Any) -> Any:
    """Return the number of tokens; check cumulative lengths on the host, or in a tensor of the CPU."""
    total = None if total is None else _factory.size_of("total", total)
    if not _factory.is_host(cu_seqlens):
        if total is None:
            raise ShapeError(
                f"total is missing, and cu_seqlens is {describe(cu_seqlens)}, whose values are not read for "
                "it; give the number of tokens: total=x.shape[0]."
            )
    elif _factory.is_array(cu_seqlens):
        _factory.check_numpy("cu_seqlens", cu_seqlens, boolean=False)
    ends = _factory.numbers_of(cu_seqlens)
    if ends is None:
        return total
    if any(isinstance(end, bool) for end in ends):
        raise ArrayTypeError(f"cu_seqlens is {describe(cu_seqlens)}; give integers, no bools.")
    if ends[0] != 0:
        raise PositionError(
            f"cu_seqlens begins with {short(ends[0])}; it must begin with 0. Give cumulative lengths, not "
            f"lengths: 0, then the end of each sequence. {_FOR_IDS}"
        )
    for before, end in pairwise(ends):
        if end < before:
            raise PositionError(
                f"cu_seqlens falls from {before} to {end}; give cumulative lengths, not lengths. {_FOR_IDS}"
            )
    if total is not None and ends[-1] > total:
        raise PositionError(
            f"cu_seqlens ends with {short(ends[-1])}, beyond total {total}; give a larger total."
        )
    return ends[-1] if total is None else total


def _within_runs(ids: Any, columns: Any, factory: _factory.ArrayFactory) -> Any:
    """Return the index of each token in its run of equal ids. A run also ends where `columns` is 0 again."""
    xp = factory.xp
    token = factory.cumulative_sum(columns * 0 + 1) - 1
    # A slice without the first token would add a guard on its size in torch.export.
    before = xp.take(ids, xp.where(token > 0, token - 1, token), axis=0)
    number = factory.cumulative_sum(factory.cast((ids != before) | (columns == 0)))
    return token - factory.cast(xp.searchsorted(number, number))  # a run starts at its number's first place


def _sequence_of(token: Any, ends: Any, factory: _factory.ArrayFactory) -> Any:
    """Return the number of each token's sequence; ends are cumulative lengths, from 0."""
    # side="right" finds the last sequence with this start; earlier ones are empty. Adding 0 makes strided
    # ends contiguous: torch.searchsorted warns of strided tensors.
    return factory.cast(factory.xp.searchsorted(ends[1:] + 0, token, side="right"))


def _check_offsets(offsets: Any, count: Any, total: Any, factory: _factory.ArrayFactory) -> None:
    shape = () if offsets is None else _factory.shape_of("offsets", offsets)
    if shape and (len(shape) > 1 or shape[0] != count):  # Dynamo finds no symbol among the items of a tuple
        raise ShapeError(
            f"offsets has the shape {shape}, and cu_seqlens is of {count} sequences; give one number, or "
            f"({count},)."
        )
    _factory.check_range("offsets", 0 if offsets is None else offsets, factory, total)


# ---- ranks ----


def _axis(array: Any, axis: Any) -> int:
    if isinstance(axis, bool) or not isinstance(axis, Integral):
        raise ArrayTypeError(f"axis is {describe(axis)}; give a Python int.")
    if not -array.ndim <= axis < array.ndim:
        raise ShapeError(f"axis is {axis}, and sequence is {describe(array)}; give an axis of it.")
    return operator.index(axis) % len(array.shape)


def _chunk(length: Any, size: int, pieces: int) -> Any:
    """Return the number of tokens in one chunk."""
    if is_unknown_size(length):
        raise ShapeError("the sequence is of unknown length; compute its size first.")
    _check_multiple("the sequence", length, size, pieces)
    return length // (pieces * size)


def _check_multiple(name: str, length: Any, size: int, pieces: int) -> None:
    if length % (pieces * size):
        times = "2·size" if pieces == 2 else "size"
        raise ShapeError(
            f"{name} has {length} tokens, no multiple of {times} = {pieces * size}; pad it to a multiple "
            "first."
        )


def _check_lengths(cu_seqlens: Any, total: Any, size: int, pieces: int) -> None:
    """Check the shape of cumulative lengths, and their values on the host."""
    count_sequences(cu_seqlens)
    total_of(cu_seqlens, total)
    refuse_document_ids(cu_seqlens, total)
    for i, (before, end) in enumerate(pairwise(_factory.numbers_of(cu_seqlens) or ())):
        _check_multiple(f"sequence {i} of cu_seqlens", end - before, size, pieces)


def _index_by_sequence(
    cu_seqlens: Any, total: Any, rank: Any, size: int, pieces: int, factory: _factory.ArrayFactory
) -> Any:
    """Return the index of each token of a rank, if every packed sequence is cut on its own."""
    xp, length = factory.xp, factory.scalar(total // size)
    # On the rank, each sequence has 1/size of its tokens. The tokens after the last one end at total.
    ends = factory.array("cu_seqlens", cu_seqlens) // size
    ends = xp.concat([xp.where(ends < length, ends, length), xp.reshape(length, (1,))])
    token = factory.arange(total // size)
    sequence = _sequence_of(token, ends, factory)
    before = xp.take(ends, sequence, axis=0)
    chunk = (xp.take(ends, sequence + 1, axis=0) - before) // pieces
    within = token - before
    starts = _starts(rank, size, pieces, chunk)
    if pieces == 2:
        starts = [xp.where(within < chunk, starts[0], starts[1] - chunk)]
    return before * size + starts[0] + within


def _rank(rank: Any, size: int) -> Any:
    if _factory.is_array(rank):
        if tuple(rank.shape):
            raise ShapeError(f"rank is {describe(rank)}; give one number.")
        if not _factory.is_host(rank):
            return rank
        _factory.check_numpy("rank", rank, boolean=False)
        rank = rank[()]
    number = validation.integer("rank", rank, 0)
    if number >= size:
        raise SpecError(f"rank is {number} of size {size}; give a rank from 0 to {size - 1}.")
    return number


def _starts(rank: Any, size: int, pieces: int, chunk: Any) -> list[Any]:
    """Return the first token of each chunk of a rank."""
    return [rank * chunk, (2 * size - 1 - rank) * chunk][:pieces]


def _check_same_device(array: Any, lib: Library, like: Any) -> None:
    if not lib.is_array(array) or not lib.same_device(array, like):
        raise ArrayTypeError(
            f"sequence is {describe(array)}, and another array of the call {describe(like)}; give arrays of "
            "one library, on one device, and leave out like."
        )
    lib.check_supported(array)


def _slices(array: Any, starts: list[Any], chunk: Any, axis: int, like: Any) -> Any:
    """Return the chunks of a rank, concatenated."""
    lib, like = _factory.find_library(like, {"sequence": array})
    _check_same_device(array, lib, like)
    before = (slice(None),) * axis
    return lib.xp.concat([array[(*before, slice(s, s + chunk), ...)] for s in starts], axis=axis)
