"""Large sizes, one at a time: heads, batches, rows, widths, elements, and the rows of positions."""

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rope_array.testing._case import with_layout
from rope_array.testing._contract import allowed
from rope_array.testing._judge import Input, Judge, check

# Batches, heads and rows repeat with these periods, no powers of two: few rows are computed exactly.
_PERIODS = (5, 7, 61)
# Parts of wide heads to rotate.
_ROTARY_DIMS = {64: (24, 48, 32, 20), 80: (32, 20), 128: (96, 64, 32), 256: (64, 192)}


class _Large(NamedTuple):
    """A large array whose batches, heads and rows repeat, its positions, and the rows to judge.

    `places` holds the place of each batch, head and row in `block` and `numbers`, the repeated part. The
    rows of x may be along another axis; those of `block` are along the third.
    """

    x: Input
    pos: NDArray[Any]
    block: NDArray[np.float64]
    numbers: NDArray[Any]
    places: tuple[NDArray[np.intp], ...]
    rows: NDArray[np.intp]


def _repeated(
    j: Judge,
    shape: tuple[int, ...],
    start: int,
    dtype: str | None,
    per_batch: bool,
    distinct: int,
    seq_axis: int,
) -> _Large:
    shape = (
        tuple(min(n, 2) if axis in j.target.looped else n for axis, n in zip("bhs", shape, strict=False))
        + shape[3:]
    )
    most = shape[2] if j.claims("any_positions") else j.target.reach + 1
    shape = (*shape[:2], min(shape[2], most), j.target.width_of(shape[3]))
    index = [np.arange(n) % period for n, period in zip(shape, _PERIODS, strict=False)]
    rows = np.arange(shape[2])
    if j.claims("any_positions"):
        numbers = j.wrap(start + 13 * (np.arange(min(shape[2], _PERIODS[2])) % distinct))
    else:  # consecutive: judge some rows only
        index[2], numbers, rows = rows, j.row(start, shape[2]), _some_rows(shape[2])
    sizes = [int(places.max()) + 1 for places in index]
    if per_batch:
        numbers = np.stack([j.wrap(numbers + b) if j.claims("any_positions") else _next(j, numbers, b)
                            for b in range(sizes[0])])  # fmt: skip
    block = np.random.default_rng(8).standard_normal((*sizes, shape[3]))
    x = j.array(np.moveaxis(block[np.ix_(*index)], 2, seq_axis), dtype)
    first = [np.unique(places, return_index=True)[1] for places in index]
    pos = numbers[np.ix_(index[0], index[2])] if per_batch else numbers[index[2]]
    values = np.moveaxis(x.values, seq_axis, 2)
    return _Large(x, pos, values[np.ix_(*first)], numbers, tuple(index), rows)


def _next(j: Judge, row: NDArray[Any], b: int) -> NDArray[Any]:
    """Return consecutive positions that start b later, if there are as many."""
    return row + min(b, j.target.reach - int(row[-1])) if j.claims("offset_positions") else row


def _some_rows(count: int) -> NDArray[np.intp]:
    """Return the rows next to powers of two, the first and last ones, and some between."""
    edges = [2**n + near for n in range(2, 20) for near in (-1, 0, 1)]
    some = [*range(4), *edges, *range(0, count, 997), *range(count - 4, count)]
    return np.unique([row for row in some if 0 <= row < count]).astype(np.intp)


def check_large(
    j: Judge,
    shape: tuple[int, ...],
    *,
    start: int = 3,
    dtype: str | None = None,
    per_batch: bool = False,
    layout: str | None = None,
    **spec: Any,
) -> None:
    """Rotate a large array whose parts repeat, and judge it by the exact result of one part."""
    with j.if_served():
        # Each field and wide head has many angles of its own, which take long to compute: few positions.
        distinct = 7 if spec or shape[-1] > 64 else _PERIODS[2]
        seq_axis = spec.get("seq_axis", 2)
        large = _repeated(j, shape, start, dtype, per_batch, distinct, seq_axis)
        y = j.run(with_layout(j, large.x, layout), large.pos, **spec)
        j.check_kind(y, large.x)
        numbers = j.numbers(y)
        if not _is_right(j, np.moveaxis(numbers, seq_axis, 2), large, {**spec, "seq_axis": 2}):
            j.check_values(numbers, large.x, large.pos, **spec)  # all rows, for the message
            raise AssertionError(f"an x of shape {large.x.values.shape} is not rotated correctly")


def _is_right(j: Judge, y: NDArray[Any], large: _Large, spec: dict[str, Any]) -> bool:
    b, h, s = large.places
    used, kept = np.unique(s[large.rows], return_inverse=True)
    x, pos = large.block[:, :, used], large.numbers[..., used]
    exact = j.exact(x, pos, **spec)
    call = {"exact": exact, "pos": pos, "inverse": spec.get("inverse", False), "flushes": True}
    bound = allowed(x, large.x.dtype, j.fields(spec), accuracy=j.target.accuracy, **call)
    chosen = np.ix_(b, h, kept)
    return bool((np.abs(y[:, :, large.rows] - exact[chosen]) <= bound[chosen]).all())


def _narrow(j: Judge) -> int:
    return 4 if j.claims("narrow_heads[4]") else 16


# ---- batches and heads ----


@check()
def many_heads(j: Judge) -> None:
    """Every head is rotated, however many: from the 65th, the 129th and the 1,025th on."""
    if "h" not in j.target.looped:
        check_large(j, (1, 1030, 2, 16))
        check_large(j, (2, 131, 3, 16))


@check()
def many_batches(j: Judge) -> None:
    """Every batch is rotated, however many: from the 33rd, the 257th and the 1,025th on."""
    if "b" not in j.target.looped:
        check_large(j, (1030, 1, 2, 16))
        check_large(j, (261, 3, 2, 16))


@check()
def batches_times_heads(j: Judge) -> None:
    """More than 65,535 batches times heads are rotated, as many as one axis of a GPU's grid cannot hold."""
    if not j.target.looped:
        check_large(j, (258, 256, 1, _narrow(j)))


# ---- rows ----


@check(each_dtype=True)
def many_rows(j: Judge, dtype: str) -> None:
    """Every row is rotated, in each dtype: from the 513th, the 1,025th, the 4,097th and the 8,193rd on."""
    check_large(j, (1, 2, 8301, 16), dtype=dtype)


@check("any_positions")
def more_rows_than_2e16(j: Judge) -> None:
    """More than 2^16 rows are rotated, as many as an index of 16 bits cannot count."""
    check_large(j, (1, 1, 2**16 + 40, _narrow(j)))


@check("offset_positions")
def long_sequences_from_an_offset(j: Judge) -> None:
    """A long sequence of consecutive positions may start anywhere: prefill after a cached prefix."""
    most = j.target.reach // 4 * 3 + 1  # not all: it has to start anywhere
    for start, count in ((17, 3001), (4099, 5003)):
        with j.if_served():
            _check_long(j, j.row(start, min(count, most)))


@check("offset_positions")
def more_positions_than_2e16(j: Judge) -> None:
    """More than 2^16 different positions are read, as many as an index of 16 bits cannot count."""
    count = min(2**16 + 40, j.target.reach + 1)
    shapes = [j.row(0, count)]
    if j.claims("batch_positions") and count > 1:
        shapes.append(np.stack([j.row(0, count // 2), j.row(count // 2, count // 2)]))
    for pos in shapes:
        with j.if_served(), j.part("of some rows"):
            _check_long(j, pos, explained=False)


def _check_long(j: Judge, pos: NDArray[Any], explained: bool = True) -> None:
    """Judge some rows of a long sequence; `explained` to judge all for the message, which takes long."""
    count = pos.shape[-1]
    x = j.x(*(pos.shape[:-1] or (1,)), 1, count, _narrow(j))
    y = j.run(x, pos)
    j.check_kind(y, x)
    rows, numbers = _some_rows(count), j.numbers(y)
    some = Input(None, x.values[:, :, rows], x.dtype)
    try:
        j.check_values(numbers[:, :, rows], some, pos[..., rows])
    except AssertionError:
        if explained:
            j.check_values(numbers, x, pos)
        raise


@check("batch_positions", "offset_positions")
def positions_of_a_long_batch(j: Judge) -> None:
    """Positions of shape (B, S) are right for a long S."""
    for dtype in j.dtypes[: 1 if j.target.compiled else None]:
        check_large(j, (2, 1, 4200, 16), dtype=dtype, per_batch=True)


@check("batch_positions", "offset_positions")
def positions_of_many_batches(j: Judge) -> None:
    """Positions of shape (B, S) and (B, 1) are right for many batches, and more than 2^16 in all."""
    if "b" not in j.target.looped:
        check_large(j, (25, 1, 2700, _narrow(j)), per_batch=True)
        check_large(j, (300, 2, 3, 16), per_batch=True)
        check_large(j, (1030, 1, 1, 16), per_batch=True)
        # Small positions, so that code with inexact angles fails other checks first.
        i = np.arange(300)
        pos = np.stack([i % 20, i // 20], -1) if j.claims("any_positions") else i[:, None] + np.arange(2)
        if j.target.reach > 300:
            with j.part("300 rows of positions that all differ"), j.if_served():
                j.check_call(j.x(300, 1, 2, _narrow(j)), pos)


# ---- features and elements ----


@check("widths", each_dtype=True)
def widths_of_each_dtype(j: Judge, dtype: str) -> None:
    """Every feature of a wide head is rotated in each dtype."""
    for width in (96, 256, 512):
        if j.claims(f"widths[{width}]") or j.claims(f"wide_heads[{width}]"):
            j.check_call(j.x(1, 2, 3, width, dtype=dtype), j.positions(3))


@check("rotary_dim", "widths")
def rotary_dims_of_models(j: Judge) -> None:
    """A rotary_dim that is no power of two, or a part of a wide head, rotates its features only."""
    for width, parts in _ROTARY_DIMS.items():
        for part in parts if j.claims(f"widths[{width}]") else ():
            x, pos = j.x(1, 2, 3, width), j.positions(3)
            with j.if_served():
                if (y := j.try_call(x, j.pos(pos), rotary_dim=part)) is not None:
                    j.check(y, x, pos, rotary_dim=part)


@check(each_dtype=True)
def many_elements(j: Judge, dtype: str) -> None:
    """Every element of an x of more than 2^20 is rotated, in each dtype."""
    width = 128 if j.claims("widths[128]") else 64
    heads = math.ceil(2**20 / (2 * 701 * j.target.width_of(width))) + 1
    check_large(j, (2, heads, 701, width), dtype=dtype)
