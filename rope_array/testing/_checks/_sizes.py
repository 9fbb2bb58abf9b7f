"""Long sequences of distinct positions; some of their rows are judged."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from rope_array.testing._judge import Input, Judge, check
from rope_array.testing._large import some_rows


@check("offset_positions")
def long_sequences_from_an_offset(j: Judge) -> None:
    """A long sequence of consecutive positions may start anywhere: prefill after a cached prefix."""
    most_rows = j.target.reach // 4 * 3 + 1  # not all: it has to start anywhere
    for start, count in ((17, 3001), (4099, 5003)):
        with j.if_served():
            _check_long(j, j.row(start, min(count, most_rows)))


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


@check("batch_positions", "offset_positions")
def many_different_positions_of_a_batch(j: Judge) -> None:
    """Positions of shape (B, 2) are right if the rows of 300 batches all differ."""
    # Small positions, so that code with inexact angles fails other checks first.
    i = np.arange(300)
    pos = np.stack([i % 20, i // 20], -1) if j.claims("any_positions") else i[:, None] + np.arange(2)
    if "b" not in j.target.looped and j.target.reach > 300:
        j.check_call(j.x(300, 1, 2, _narrow(j)), pos)


def _narrow(j: Judge) -> int:
    return 4 if j.claims("narrow_heads[4]") else 16


def _check_long(j: Judge, pos: NDArray[Any], explained: bool = True) -> None:
    """Judge some rows of a long sequence; `explained` to judge all for the message, which takes long."""
    count = pos.shape[-1]
    x = j.x(*(pos.shape[:-1] or (1,)), 1, count, _narrow(j))
    y = j.run(x, pos)
    j.check_kind(y, x)
    rows, numbers = some_rows(count), j.numbers(y)
    judged_x = Input(None, x.values[:, :, rows], x.dtype)
    try:
        j.check_values(numbers[:, :, rows], judged_x, pos[..., rows])
    except AssertionError:
        if explained:
            j.check_values(numbers, x, pos)
        raise
