"""How positions are given: shapes, kinds, dtypes, and which row each belongs to."""

import numpy as np

from rope_array.testing._judge import Judge, check


@check("any_positions")
def positions_of_their_own(j: Judge) -> None:
    """Each row has the position given for it: unordered, repeated, packed sequences that start anew."""
    for pos in ([0, 1, 2, 0, 1], [9, 3, 3, 7, 0], [4, 3, 2, 1, 0]):
        j.rotated(j.x(), np.array(pos))


@check("offset_positions")
def positions_offset(j: Judge) -> None:
    """A decoding step: one row, at its own position, is rotated by that position."""
    for start in (1, 17, 300):
        j.rotated(j.x(2, 3, 1, 16), np.array([min(start, j.target.furthest)]))


@check("batch_positions", "any_positions")
def positions_of_a_batch(j: Judge) -> None:
    """Positions of shape (B, S): each batch has its own, and B is paired with x's first axis."""
    pos = np.array([[0, 1, 2, 3, 4], [7, 3, 100, 0, 5]])
    j.rotated(j.x(), pos)
    j.rotated(j.x(5, 3, 5, 16), np.arange(25).reshape(5, 5) * 7)  # B equal to S: neither stands for the other


@check("head_positions", "any_positions")
def positions_of_heads(j: Judge) -> None:
    """Positions of shape (B, H, S): each head has its own."""
    j.rotated(j.x(), np.random.default_rng(3).integers(0, 50, (2, 3, 5)))


@check("broadcast_positions", "any_positions")
def positions_broadcast(j: Judge) -> None:
    """A scalar serves all rows; a size of 1 serves all of its axis: (1,), (1, S), (B, 1)."""
    for pos in (np.array(3), np.array([7]), np.array([[1, 2, 3, 4, 9]]), np.array([[3], [8]])):
        if pos.ndim == 2 and not j.claims("batch_positions"):
            continue
        j.rotated(j.x(), pos)


@check("broadcast_positions", "offset_positions")
def size_one_axes(j: Judge) -> None:
    """Axes of size 1 in x are as any other: one batch, one head, one row."""
    for shape in ((1, 1, 1, 16), (2, 1, 5, 16), (1, 3, 5, 16), (2, 3, 1, 16), (1, 1, 5, 16)):
        j.rotated(j.x(*shape), j.places(shape[2]))


@check("python_positions", "any_positions")
def positions_of_python(j: Judge) -> None:
    """An int, a range and a list of ints are positions too."""
    for pos in (3, range(2, 7), [4, 0, 2, 9, 1]):
        j.rotated(j.x(), pos)


@check("narrow_positions", "offset_positions")
def positions_of_narrow_dtypes(j: Judge) -> None:
    """Positions of int8, uint8, int16 and so on are served up to their ends: nothing wraps in their dtype."""
    for kind in j.lib.integers:
        ends = np.iinfo(kind)
        top = min(int(ends.max), j.target.furthest, 2**31 - 1)
        signed = ends.min < 0 and j.claims("negative_positions", "any_positions")
        bottom = -(2**31) if j.claims("reaches_int32") else -j.target.furthest
        low = max(int(ends.min), bottom) if signed else top - 4
        values = np.array([low, top - 3, top - 2, top - 1, top])
        x = j.x(1, 2, 5, 16)
        j.check(j.call(x, j.pos(values, kind)), x, values)


@check("any_positions")
def positions_of_length_of_batch(j: Judge) -> None:
    """Positions of shape (S,) belong to the rows, also where the heads or the batch are as many."""
    j.rotated(j.x(4, 4, 4, 16), np.array([5, 0, 9, 2]))
