"""What happens to the arrays handed in, and what memory a result has."""

import numpy as np

from rope_array.testing._judge import Given, Judge, check


def _specs(j: Judge) -> list[dict[str, object]]:
    """Return specs whose result a careless implementation might take from x itself."""
    found: list[dict[str, object]] = [{}]
    if j.claims("rotary_dim"):
        found += [{"rotary_dim": 8}, {"rotary_dim": 0}]
    return found


@check(each_dtype=True)
def inputs_unchanged(j: Judge, dtype: str) -> None:
    """x and pos are never written: not in any dtype, nor where one head or a part leaves little to do."""
    for spec in _specs(j):
        for shape in ((2, 3, 5, 16), (1, 1, 5, 16)):
            x, pos = j.x(*shape, dtype=dtype), j.pos(j.places())
            before = j.lib.snapshot(x.array), j.lib.snapshot(pos)
            j.numbers(j.call(x, pos, **spec))
            assert j.lib.snapshot(x.array) == before[0], f"x was written (fields {spec}, shape {shape})"
            assert j.lib.snapshot(pos) == before[1], f"positions were written (fields {spec})"


@check("batch_positions", "offset_positions")
def positions_unchanged(j: Judge) -> None:
    """Nor are positions of a batch, or of one row."""
    for pos in (np.stack([j.row(3, 5), j.row(9, 5)]), np.stack([j.row(3, 1), j.row(9, 1)])):
        given = j.pos(pos)
        before = j.lib.snapshot(given)
        j.numbers(j.call(j.x(2, 3, pos.shape[1], 16), given))
        assert j.lib.snapshot(given) == before, f"positions of shape {pos.shape} were written"


@check("strides")
def neighbours_unchanged(j: Judge) -> None:
    """Nor is the memory around x where x is a part of a larger array."""
    for name, array, whole in j.lib.parts(j.x().array):
        before = j.lib.snapshot(whole)
        j.offered(j.x()._replace(array=array), j.pos(j.places()))
        assert j.lib.snapshot(whole) == before, f"{name}: memory beside x was written"


@check(each_dtype=True)
def no_aliasing(j: Judge, dtype: str) -> None:
    """A result shares no memory with x, also where nothing is rotated."""
    for spec in _specs(j):
        for pos in (j.places(), np.zeros(5, np.int64)) if j.claims("any_positions") else (j.places(),):
            x = j.x(dtype=dtype)
            y = j.run(x, pos, **spec)
            assert y is not x.array, f"the result is x itself (fields {spec})"
            assert not j.lib.shares_memory(y, x.array), f"the result shares memory with x (fields {spec})"


@check("strides", each_dtype=True)
def strides(j: Judge, dtype: str) -> None:
    """An x of any strides is rotated as its values say: transposed, sliced, reversed, in Fortran order."""
    x = j.x(dtype=dtype)
    for name, array in j.lib.strided(x.array, exotic=j.claims("same_bits")):
        laid = x._replace(array=array)
        before = j.lib.snapshot(array)
        y = j.offered(laid, j.pos(j.places()))
        if y is None:
            continue
        try:
            j.check_values(j.numbers(y), x, j.places())
        except AssertionError as error:
            raise AssertionError(f"{name}: {error}") from None
        assert j.lib.snapshot(array) == before, f"{name}: x was written"


@check("strides")
def strides_of_zero(j: Judge) -> None:
    """An x that is one batch or one head, broadcast, is rotated as its values say."""
    for lead in ((1, 3, 5), (2, 1, 5), (1, 1, 5)):
        one = j.x(*lead, 16)
        values = np.broadcast_to(one.values, (2, 3, *one.values.shape[2:]))
        x = Given(j.lib.expanded(one.array, values.shape), values, one.dtype)
        if (y := j.offered(x, j.pos(j.places()))) is not None:
            j.check(y, x, j.places())


@check("strides", "any_positions")
def strides_of_positions(j: Judge) -> None:
    """Positions of any strides are read as their values say."""
    wide = np.stack([j.places(), j.places() + 1], axis=-1)
    array = j.pos(wide)[:, 1]
    x = j.x()
    j.check(j.call(x, array), x, wide[:, 1])


@check("nonfinite", "rotary_dim")
def nonfinite(j: Judge) -> None:
    """NaN and infinities stay inside their pair; every other element is what it would be."""
    values = np.random.default_rng(5).standard_normal((2, 3, 5, j.width))
    values[0, 1, 2, 3], values[1, 2, 4, 0], values[1, 0, 0, 15] = np.nan, np.inf, -np.inf
    values[0, 2, 1, 14] = np.nan
    x = j.given(values)
    for width in (16, 8):
        y = j.rotated(x, j.places(), rotary_dim=width)
        touched = j.touched(values, {"rotary_dim": width})
        assert np.isfinite(y[~touched]).all(), "a NaN or an infinity left its pair"
        j.check_struck(y, values, {"rotary_dim": width})
