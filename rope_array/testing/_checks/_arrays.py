"""Inputs are not written, results have memory of their own, and strides do not matter."""

import numpy as np

from rope_array.testing._judge import Input, Judge, check


def _specs(j: Judge) -> list[dict[str, int]]:
    """Return specs for which an implementation might return x, or a view of it."""
    return [{}, *([{"rotary_dim": 8}, {"rotary_dim": 0}] if j.claims("rotary_dim") else [])]


@check(each_dtype=True)
def inputs_unchanged(j: Judge, dtype: str) -> None:
    """Neither x nor pos is written, in any dtype, for one head, and for a partial rotation."""
    for spec in _specs(j):
        for shape in ((2, 3, 5, 16), (1, 1, 5, 16)):
            x, pos = j.x(*shape, dtype=dtype), j.pos(j.positions())
            before = j.lib.snapshot(x.array), j.lib.snapshot(pos)
            with j.if_served():
                j.numbers(j.call(x, pos, **spec))
            assert j.lib.snapshot(x.array) == before[0], f"x was written (fields {spec}, shape {shape})"
            assert j.lib.snapshot(pos) == before[1], f"positions were written (fields {spec})"


@check("batch_positions", "offset_positions")
def positions_unchanged(j: Judge) -> None:
    """Positions of a batch, of several rows or of one, are not written."""
    for values in (np.stack([j.row(3, 5), j.row(9, 5)]), np.stack([j.row(3, 1), j.row(9, 1)])):
        pos = j.pos(values)
        before = j.lib.snapshot(pos)
        with j.if_served():
            j.numbers(j.call(j.x(2, 3, values.shape[1], 16), pos))
        assert j.lib.snapshot(pos) == before, f"positions of shape {values.shape} were written"


@check("strides", "keeps_x")
def neighbours_unchanged(j: Judge) -> None:
    """The memory around x is not written if x is a view of a larger array."""
    for name, array, whole in j.lib.parts(j.x().array):
        before = j.lib.snapshot(whole)
        j.try_call(j.x()._replace(array=array), j.pos(j.positions()))
        assert j.lib.snapshot(whole) == before, f"{name}: memory around x was written"


@check("keeps_x", each_dtype=True)
def no_aliasing(j: Judge, dtype: str) -> None:
    """A result shares no memory with x, even if nothing is rotated."""
    for spec in _specs(j):
        for pos in (j.positions(), np.zeros(5, np.int64)) if j.claims("any_positions") else (j.positions(),):
            x = j.x(dtype=dtype)
            with j.if_served():
                y = j.run(x, pos, **spec)
                assert y is not x.array, f"the result is x itself (fields {spec})"
                assert not j.lib.shares_memory(y, x.array), f"the result shares memory with x (fields {spec})"


@check("strides", each_dtype=True)
def strides(j: Judge, dtype: str) -> None:
    """An x of any strides is rotated correctly: transposed, sliced, reversed, in Fortran order."""
    x = j.x(dtype=dtype)
    for name, array in j.lib.strided(x.array, exotic=j.claims("same_bits")):
        before = j.lib.snapshot(array)
        y = j.try_call(x._replace(array=array), j.pos(j.positions()))
        if y is None:
            continue
        try:
            j.check_values(j.numbers(y), x, j.positions())
        except AssertionError as error:
            raise AssertionError(f"{name}: {error}") from None
        assert j.lib.snapshot(array) == before, f"{name}: x was written"


@check("strides")
def strides_of_zero(j: Judge) -> None:
    """An x that is broadcast from one batch or one head is rotated correctly."""
    for lead in ((1, 3, 5), (2, 1, 5), (1, 1, 5)):
        one = j.x(*lead, 16)
        values = np.broadcast_to(one.values, (2, 3, *one.values.shape[2:]))
        x = Input(j.lib.expanded(one.array, values.shape), values, one.dtype)
        if (y := j.try_call(x, j.pos(j.positions()))) is not None:
            j.check(y, x, j.positions())


@check("strides", "any_positions")
def strides_of_positions(j: Judge) -> None:
    """Positions of any strides are read correctly."""
    wide = np.stack([j.positions(), j.positions() + 1], axis=-1)
    array = j.pos(wide)[:, 1]
    x = j.x()
    j.check(j.call(x, array), x, wide[:, 1])


@check("nonfinite", "rotary_dim")
def nonfinite(j: Judge) -> None:
    """NaN and infinities stay inside their pair; every other element is rotated as usual."""
    values = np.random.default_rng(5).standard_normal((2, 3, 5, j.width))
    values[0, 1, 2, 3], values[1, 2, 4, 0], values[1, 0, 0, 15] = np.nan, np.inf, -np.inf
    values[0, 2, 1, 14] = np.nan
    x = j.array(values)
    for width in (16, 8):
        with j.if_served():
            y = j.rotated(x, j.positions(), rotary_dim=width)
            expected = j.nonfinite(values, {"rotary_dim": width})
            assert np.isfinite(y[~expected]).all(), "a NaN or an infinity left its pair"
            j.check_nonfinite(y, values, {"rotary_dim": width})
