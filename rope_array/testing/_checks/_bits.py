"""The same bits for a row whatever its slice, batch, strides and company; else its values."""

import numpy as np

from rope_array.testing._judge import Judge, check

_SHAPE = (2, 3, 7, 24)


@check("any_positions", each_dtype=True)
def same_bits_in_a_slice(j: Judge, dtype: str) -> None:
    """A row has the same bits whichever rows stand beside it."""
    x, pos = j.x(*_SHAPE, dtype=dtype), j.places(7)
    whole = j.rotated(x, pos)
    for part in (slice(2, 5), slice(6, 7), slice(0, 7, 3)):
        some = j.given(x.values[:, :, part], dtype)
        j.same(j.run(some, pos[part]), whole[:, :, part], some, pos[part], "in a slice of the rows")


@check("any_positions", each_dtype=True)
def same_bits_in_a_batch(j: Judge, dtype: str) -> None:
    """A row has the same bits whatever the batch and the heads."""
    x, pos = j.x(*_SHAPE, dtype=dtype), j.places(7)
    whole = j.rotated(x, pos)
    for part in (np.s_[1:, :], np.s_[:, 1:2], np.s_[:1, 2:]):
        some = j.given(x.values[part], dtype)
        j.same(j.run(some, pos), whole[part], some, pos, "in a part of the batch")


@check("any_positions", "same_bits")
def same_bits_among_many(j: Judge) -> None:
    """A row has the same bits beside many others: what is split among threads or blocks is as what is not."""
    pos = j.served(np.arange(300) * 7)
    x = j.x(2, 4, 300, 64)
    whole = j.rotated(x, pos)
    for part in (slice(0, 1), slice(140, 150), slice(299, 300)):
        some = j.given(x.values[:, :, part])
        j.same(j.run(some, pos[part]), whole[:, :, part], some, pos[part], "beside many rows")


@check("same_bits", "broadcast_positions", "batch_positions", "any_positions")
def same_bits_of_positions(j: Judge) -> None:
    """A row has the same bits however its position is given: for it alone, for its batch, for all."""
    x = j.x(*_SHAPE)
    one, row = j.rotated(x, np.full(7, 11)), j.rotated(x, j.places(7))
    j.same(j.run(x, np.array(11)), one, x, np.array(11), "at a scalar position")
    j.same(j.run(x, np.full((2, 1), 11)), one, x, np.array(11), "at positions of shape (B, 1)")
    j.same(j.run(x, np.stack([j.places(7)] * 2)), row, x, j.places(7), "at positions of shape (B, S)")


@check("strides", "same_bits", each_dtype=True)
def same_bits_of_strides(j: Judge, dtype: str) -> None:
    """A row has the same bits whatever x's strides."""
    x, pos = j.x(dtype=dtype), j.places()
    whole = j.rotated(x, pos)
    for name, array in j.lib.strided(x.array):
        y = j.numbers(j.run(x._replace(array=array), pos))
        assert np.array_equal(y, whole), f"{name}: {(y != whole).sum()} elements have other bits"


@check("tuple", "any_positions")
def same_bits_in_company(j: Judge) -> None:
    """A row has the same bits whatever arrays are rotated in the same call."""
    x, other, pos = j.x(*_SHAPE), j.x(2, 1, 7, 24, dtype=j.dtypes[-1], seed=1), j.places(7)
    alone = [j.rotated(one, pos) for one in (other, x)]
    for y, one, want in zip(j.run((other, x), pos), (other, x), alone, strict=True):
        j.same(y, want, one, pos, "in company")


@check(each_dtype=True)
def same_bits_again(j: Judge, dtype: str) -> None:
    """A second call with the same arguments gives the same bits."""
    x, pos = j.x(dtype=dtype), j.places()
    first, second = (j.numbers(j.run(x, pos)) for _ in range(2))
    assert np.array_equal(first, second), (
        f"{(first != second).sum()} elements have other bits in a second call"
    )
