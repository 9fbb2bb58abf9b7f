"""A row has the same bits in every slice, batch and tuple and with any strides, or at least its values."""

import numpy as np

from rope_array.testing._judge import Judge, check

_SHAPE = (2, 3, 7, 24)


@check("any_positions", each_dtype=True)
def same_bits_in_a_slice(j: Judge, dtype: str) -> None:
    """A row has the same bits for any other rows in x."""
    x, pos = j.x(*_SHAPE, dtype=dtype), j.positions(7)
    whole = j.rotated(x, pos)
    for part in (slice(2, 5), slice(6, 7), slice(0, 7, 3)):
        some = j.array(x.values[:, :, part], dtype)
        with j.if_served():
            j.check_same(j.run(some, pos[part]), whole[:, :, part], some, pos[part], "in a slice of the rows")


@check("any_positions", each_dtype=True)
def same_bits_in_a_batch(j: Judge, dtype: str) -> None:
    """A row has the same bits for any other batches and heads in x."""
    x, pos = j.x(*_SHAPE, dtype=dtype), j.positions(7)
    whole = j.rotated(x, pos)
    for part in (np.s_[1:, :], np.s_[:, 1:2], np.s_[:1, 2:]):
        some = j.array(x.values[part], dtype)
        with j.if_served():
            j.check_same(j.run(some, pos), whole[part], some, pos, "in a part of the batch")


@check("any_positions", "same_bits")
def same_bits_among_many(j: Judge) -> None:
    """A row has the same bits among many rows, which may be split among threads or blocks."""
    pos = j.wrap(np.arange(300) % 31 * 67)  # few different ones, for quick judgement
    x = j.x(2, 4, 300, 64)
    whole = j.rotated(x, pos)
    for part in (slice(0, 1), slice(140, 150), slice(299, 300)):
        some = j.array(x.values[:, :, part])
        with j.if_served():
            j.check_same(j.run(some, pos[part]), whole[:, :, part], some, pos[part], "among many rows")


@check("same_bits", "broadcast_positions", "batch_positions", "any_positions")
def same_bits_of_positions(j: Judge) -> None:
    """A row has the same bits for any shape of positions: (S,), (B, S), (B, 1) or a scalar."""
    x = j.x(*_SHAPE)
    at = j.wrap(11)
    one, row = j.rotated(x, np.full(7, at)), j.rotated(x, j.positions(7))
    j.check_same(j.run(x, at), one, x, at, "at a scalar position")
    j.check_same(j.run(x, np.full((2, 1), at)), one, x, at, "at positions of shape (B, 1)")
    j.check_same(
        j.run(x, np.stack([j.positions(7)] * 2)), row, x, j.positions(7), "at positions of shape (B, S)"
    )


@check("strides", "same_bits", each_dtype=True)
def same_bits_of_strides(j: Judge, dtype: str) -> None:
    """A row has the same bits for any strides of x."""
    x, pos = j.x(dtype=dtype), j.positions()
    whole = j.rotated(x, pos)
    for name, array in j.lib.strided(x.array):
        with j.if_served():
            y = j.numbers(j.run(x._replace(array=array), pos))
            j.check_equal(y, whole, f"have other bits if x is {name}", pos)


@check("tuple", "tuple[2]", "any_positions")
def same_bits_in_company(j: Judge) -> None:
    """A row has the same bits for any other arrays in the same call."""
    x, other, pos = j.x(*_SHAPE), j.x(2, 1, 7, 24, dtype=j.other_dtype(j.dtype), seed=1), j.positions(7)
    alone = [j.rotated(one, pos) for one in (other, x)]
    for y, one, expected in zip(j.run((other, x), pos), (other, x), alone, strict=True):
        j.check_same(y, expected, one, pos, "in a tuple of arrays")


@check(each_dtype=True)
def same_bits_again(j: Judge, dtype: str) -> None:
    """A second call with the same arguments gives the same bits."""
    x, pos = j.x(dtype=dtype), j.positions()
    first, second = (j.numbers(j.run(x, pos)) for _ in range(2))
    j.check_equal(second, first, "have other bits in a second call", pos)
