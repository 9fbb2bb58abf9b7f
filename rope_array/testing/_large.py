"""Large calls. Batches, heads and rows repeat, so that the exact result of one block judges all."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ._call import make_at, spec_of, with_layout
from ._contract import allowed
from ._factors import FIELDS, CallFactors
from ._judge import Input, Judge
from ._refused import Declined

_OF_LARGE_CALLS = {"dtype", "rows", "width", "positions", "layout", *FIELDS} - {"axes"}
# Periods of batches, heads and rows: few rows need exact angles. No powers of two, unlike blocks of code.
_PERIODS = (5, 7, 61)


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


def _repeated(j: Judge, call: CallFactors, has_fields: bool) -> _Large:
    """Return a call's arguments: at few positions if exact angles take long, by fields or a wide head."""
    distinct = 7 if has_fields or call.width > 64 else _PERIODS[2]
    shape = [min(n, 2) if axis in j.target.looped else n for axis, n in zip("bhs", call.rows, strict=True)]
    takes_any, width = j.claims("any_positions"), j.target.width_of(call.width)
    shape[2] = min(shape[2], shape[2] if takes_any else j.target.reach + 1)
    index = [np.arange(n) % period for n, period in zip(shape, _PERIODS, strict=True)]
    rows = np.arange(shape[2])
    if takes_any:
        numbers = j.wrap(3 + 13 * (np.arange(min(shape[2], _PERIODS[2])) % distinct))
    else:  # consecutive: judge some rows only
        index[2], numbers, rows = rows, j.row(3, shape[2]), some_rows(shape[2])
    sizes = [int(places.max()) + 1 for places in index]
    if per_batch := call.positions == "BS":
        later = (j.wrap(numbers + b) if takes_any else _row_of_batch(j, numbers, b) for b in range(sizes[0]))
        numbers = np.stack([*later])
    block = np.random.default_rng(8).standard_normal((*sizes, width))
    x = j.array(np.moveaxis(block[np.ix_(*index)], 2, _seq_axis(call)), call.dtype)
    first = [np.unique(places, return_index=True)[1] for places in index]
    pos = numbers[np.ix_(index[0], index[2])] if per_batch else numbers[index[2]]
    values = np.moveaxis(x.values, _seq_axis(call), 2)
    return _Large(x, pos, values[np.ix_(*first)], numbers, tuple(index), rows)


def _seq_axis(call: CallFactors) -> int:
    return 2 if call.seq_axis is None else int(call.seq_axis)


def _row_of_batch(j: Judge, row: NDArray[Any], b: int) -> NDArray[Any]:
    """Return consecutive positions that start b later, if there are as many."""
    return row + min(b, j.target.reach - int(row[-1])) if j.claims("offset_positions") else row


def some_rows(count: int) -> NDArray[np.intp]:
    """Return the rows next to powers of two, the first and last ones, and some between."""
    edges = [2**n + near for n in range(2, 20) for near in (-1, 0, 1)]
    candidates = [*range(4), *edges, *range(0, count, 997), *range(count - 4, count)]
    return np.unique([row for row in candidates if 0 <= row < count]).astype(np.intp)


def _is_right(j: Judge, y: NDArray[Any], large: _Large, spec: dict[str, Any]) -> bool:
    b, h, s = large.places
    used, kept = np.unique(s[large.rows], return_inverse=True)
    x, pos = large.block[:, :, used], large.numbers[..., used]
    exact = j.exact(x, pos, **spec)
    call = {"exact": exact, "pos": pos, "inverse": spec.get("inverse", False), "flushes": True}
    bound = allowed(x, large.x.dtype, j.fields(spec), accuracy=j.target.accuracy, **call)
    chosen = np.ix_(b, h, kept)
    return bool((np.abs(y[:, :, large.rows] - exact[chosen]) <= bound[chosen]).all())


def check_large_call(j: Judge, call: CallFactors, seed: int = 0) -> bool:
    """Make a call of many rows, heads or batches, and judge it by the exact result of one part.

    Return False if the target refuses it. Raise ValueError for a call with a factor that has no meaning for
    large arrays, whose parts repeat.
    """
    if ignored := {*call.differing(j.plain)} - _OF_LARGE_CALLS:
        raise ValueError(f"a large call ignores {', '.join(sorted(ignored))}")
    spec = spec_of(j, call)
    large = _repeated(j, call, bool(spec))
    try:
        y = j.call(with_layout(j, large.x, call.layout)[0], j.pos(large.pos), **spec)
    except Declined:
        return False
    j.check_kind(y, large.x)
    numbers = j.numbers(y)
    if not _is_right(j, np.moveaxis(numbers, _seq_axis(call), 2), large, {**spec, "seq_axis": 2}):
        j.check_values(numbers, large.x, large.pos, **spec)  # all rows, for the message
        raise AssertionError(f"an x of shape {large.x.values.shape} is not rotated correctly")
    return True


def check_consecutive(j: Judge, call: CallFactors, seed: int = 0) -> bool:
    """Judge some rows of a call at consecutive positions, of one batch after another, that end at its reach.

    All rows are judged for the message, unless they are more than 2^16: that takes long.
    """
    *lead, rows = call.rows
    batches = lead[0] if call.positions == "BS" else 1
    rows = min(rows, (j.target.reach + 1) // batches)
    last = min(call.reach, j.target.reach) + 1
    pos = j.row(last - batches * rows, batches * rows).reshape(*([batches] if batches > 1 else []), rows)
    inputs = make_at(j, pos, rows=(*lead, rows), width=call.width, positions=call.positions)
    y = j.try_call(inputs.x, inputs.pos)
    if y is None:
        return False
    (x,) = inputs.xs
    j.check_kind(y, x)
    chosen, numbers = some_rows(rows), j.numbers(y)
    try:
        j.check_values(numbers[:, :, chosen], x._replace(values=x.values[:, :, chosen]), pos[..., chosen])
    except AssertionError:
        if batches * rows < 2**16:
            j.check_values(numbers, x, pos)
        raise
    return True


def check_many_elements(j: Judge, call: CallFactors, seed: int = 0) -> bool:
    """Make and judge a large call with as many elements as at a head_dim of 64."""
    *lead, rows = call.rows
    return check_large_call(j, call.replace(rows=(*lead, -(-rows * 64 // call.width))))
