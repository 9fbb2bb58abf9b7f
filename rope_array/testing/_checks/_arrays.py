"""Inputs are not written, results have memory of their own, and strides do not matter."""

from typing import Any

import numpy as np

from rope_array.testing._judge import Input, Judge, check


def _specs(j: Judge) -> list[dict[str, int]]:
    """Return specs for which an implementation might return x, or a view of it."""
    return [{}, *([{"rotary_dim": 8}, {"rotary_dim": 0}] if j.claims("rotary_dim") else [])]


@check(each_dtype=True)
def inputs_unchanged(j: Judge, dtype: str) -> None:
    """Neither x nor pos is written, in any dtype, for one head, and for a partial rotation."""
    for spec in _specs(j):
        for shape in ((2, 3, 5, 16), (1, 1, 5, 16), (1, 2, 130, 64)):
            if shape[2] > 5 and (spec or j.lib.calls < 1000):
                continue  # one long x, where it is not compiled
            if not j.claims("any_positions") and shape[2] > j.target.reach + 1:
                continue
            x, pos = j.x(*shape, dtype=dtype), j.pos(j.positions(shape[2]))
            before = j.lib.snapshot(x.array), j.lib.snapshot(pos)
            with j.if_served():
                j.numbers(j.call(x, pos, **spec))
            assert j.lib.snapshot(x.array) == before[0], f"x was written (fields {spec}, shape {shape})"
            assert j.lib.snapshot(pos) == before[1], f"positions were written (fields {spec})"


@check("tuple", "keeps_x")
def tuples_unchanged(j: Judge) -> None:
    """Neither the arrays of a tuple nor positions are written, and each result has memory of its own."""
    for count in map(int, j.parts("tuple")):
        x = [j.x(2, heads, 5, 16, seed=heads) for heads in (4, 1, 2)[:count]]
        pos = j.pos(j.positions())
        before = [j.lib.snapshot(one) for one in (*(one.array for one in x), pos)]
        with j.if_served():
            ys = list(j.call(tuple(x), pos))
            for y in ys:
                j.lib.snapshot(y)  # computes it
            after = [j.lib.snapshot(one) for one in (*(one.array for one in x), pos)]
            for i, name in enumerate([f"array {i} of {count}" for i in range(count)] + ["pos"]):
                assert after[i] == before[i], f"{name} was written"
            _check_apart(j, ys, [one.array for one in x])


def _check_apart(j: Judge, ys: list[Any], xs: list[Any]) -> None:
    """Assert that each result shares memory with no other result, and with no x."""
    for i, y in enumerate(ys):
        for name, others in (("result", ys[:i]), ("x", xs)):
            for k, other in enumerate(others):
                apart = y is not other and not j.lib.shares_memory(y, other)
                assert apart, f"result {i} of {len(ys)} shares memory with {name} {k}"


@check("offset_positions")
def positions_unchanged(j: Judge) -> None:
    """Positions are not written: of a batch or of each head, of one row or many, integers or floats."""
    for values in _some_positions(j):
        pos = j.pos(values)
        before = j.lib.snapshot(pos)
        with j.if_served():
            j.numbers(j.call(j.x(2, 3, values.shape[-1], 16), pos))
        assert j.lib.snapshot(pos) == before, f"positions of shape {values.shape} were written"


def _some_positions(j: Judge) -> list[Any]:
    found = [np.stack([j.row(start, rows) for start in (3, 9)]) for rows in (5, 1)]
    found = found if j.claims("batch_positions") else []
    if j.lib.calls < 1000 or not j.claims("any_positions"):
        return found  # each call is compiled
    found += [j.wrap(np.arange(rows)[::-1] * 3) for rows in (70, 1100)]
    if j.claims("batch_positions"):
        found += [j.wrap(np.arange(140)[::-1].reshape(2, 70))]
    if j.claims("head_positions"):
        found += [j.wrap(np.arange(30)[::-1].reshape(2, 3, 5))]
    if j.claims("float_positions[float32]"):
        found += [np.minimum(np.arange(70)[::-1] + 0.5, j.target.reach).astype("float32")]
    return found


@check("strides", "keeps_x")
def neighbours_unchanged(j: Judge) -> None:
    """The memory around x is not written if x, of any number of axes, is a view of a larger array."""
    shapes = [(2, 3, 5, 16), *(shape for shape in ((5, 16), (3, 5, 16)) if j.claims(f"ranks[{len(shape)}]"))]
    for x in (j.x(*shape) for shape in shapes):
        for name, array, whole in j.lib.parts(x.array):
            before = j.lib.snapshot(whole)
            j.try_call(x._replace(array=array), j.pos(j.positions()))
            assert j.lib.snapshot(whole) == before, f"{name}: memory around x was written, x {x.values.shape}"


@check("keeps_x", each_dtype=True)
def no_aliasing(j: Judge, dtype: str) -> None:
    """A result shares no memory with x, even if nothing is rotated: at position 0, of one row or several."""
    shapes: list[tuple[int, ...]] = [(5,)] if j.claims("any_positions") else []
    if j.lib.calls >= 1000:  # new shapes are not compiled
        shapes += [(1,), *([(2, 1)] if j.claims("batch_positions", "offset_positions") else [])]
    for spec in _specs(j):
        for pos in (j.positions(), *(np.zeros(shape, np.int64) for shape in shapes)):
            x = j.x(2, 3, pos.shape[-1], 16, dtype=dtype)
            with j.if_served():
                y = j.run(x, pos, **spec)
                assert y is not x.array, f"the result is x itself (fields {spec})"
                assert not j.lib.shares_memory(y, x.array), f"the result shares memory with x (fields {spec})"


@check("strides", each_dtype=True)
def strides(j: Judge, dtype: str) -> None:
    """An x of any strides is rotated correctly: transposed, sliced, reversed, in Fortran order."""
    x = j.x(dtype=dtype)
    exotic = j.lib.exotic(x.array) if j.claims("same_bits") else ()
    for name, array in (*j.lib.strided(x.array), *exotic):
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
    """Positions of any strides are read correctly, and those of NumPy in the other byte order."""
    wide = np.stack([j.positions(), j.wrap(j.positions() + 1)], axis=-1)
    array = j.pos(wide)[:, 1]
    _check_view(j, "a column", array, wide[:, 1])
    for name, array in j.lib.exotic(j.pos(j.positions())):
        _check_view(j, name, array, j.positions())


@check("strides", each_dtype=True)
def storage_offsets(j: Judge, dtype: str) -> None:
    """An x that starts inside a longer memory is rotated correctly, at an odd offset too."""
    x, pos = j.x(dtype=dtype), j.positions()
    parts = ((name, part) for name, part, _ in j.lib.parts(x.array))
    for name, array in (*j.lib.shifted(x.array), *parts):
        if (y := j.try_call(x._replace(array=array), j.pos(pos))) is not None:
            _check_named(j, name, y, x, pos)


@check("strides", "offset_positions")
def storage_offsets_of_positions(j: Judge) -> None:
    """Positions that are a part of longer positions are read where they start, in memory of any alignment."""
    long = j.row(3, 9)
    for start in (1, 3, 4):
        part = slice(start, start + 5)
        _check_view(j, f"long[{start}:]", j.pos(long)[part], long[part])
    for name, array in j.lib.shifted(j.pos(j.positions())):
        _check_view(j, name, array, j.positions())


@check("strides", "any_positions")
def positions_reversed(j: Judge) -> None:
    """Positions with a negative stride, or of every third element, are read correctly."""
    long = j.wrap(7 * np.arange(15))
    for name, part in (
        ("reversed", np.s_[4::-1]),
        ("every third, reversed", np.s_[::-3]),
        ("every third", np.s_[::3]),
    ):
        if (array := j.lib.part_of(j.pos(long), part)) is not None:
            _check_view(j, name, array, long[part])


@check("strides", "batch_positions", "any_positions")
def positions_transposed(j: Judge) -> None:
    """Positions of a batch or of heads are read correctly if they are transposed, or part of larger ones."""
    many = j.wrap(np.random.default_rng(9).integers(0, 90, (7, 3)))
    turned = j.lib.permute(j.pos(many), (1, 0))
    _check_view(j, "a part of transposed ones", turned[:2, :5], many.T[:2, :5])
    _check_view(j, "a part", j.pos(many.T)[1:, 2:], many.T[1:, 2:])
    _check_view(j, "transposed", j.lib.permute(j.pos(many[:5, :2]), (1, 0)), many[:5, :2].T)
    if j.claims("head_positions"):
        heads = j.wrap(np.random.default_rng(8).integers(0, 90, (5, 3, 2)))
        for axes in ((2, 1, 0), (2, 0, 1), (1, 2, 0)):
            values = np.ascontiguousarray(heads.transpose(2, 1, 0).transpose(np.argsort(axes)))
            _check_view(j, "transposed", j.lib.permute(j.pos(values), axes), values.transpose(axes))


@check("strides", "any_positions")
def positions_expanded(j: Judge) -> None:
    """Positions that are broadcast, with strides of 0, are read correctly, along rows or batches."""
    row, one = j.positions(), j.wrap([11])
    cases: list[tuple[str, Any, tuple[int, ...]]] = [("one position", one, (5,))]
    if j.claims("batch_positions"):
        cases += [("one row", row[None], (2, 5)), ("one column", j.wrap([[4], [9]]), (2, 5))]
    for name, values, shape in cases:
        array = j.lib.expanded(j.pos(values), shape)
        _check_view(j, f"{name} for all", array, np.broadcast_to(values, shape))


def _check_view(j: Judge, name: str, array: Any, pos: Any) -> None:
    """Check a call with positions of certain strides, unless it is refused."""
    x = j.x()
    if (y := j.try_call(x, array)) is not None:
        _check_named(j, name, y, x, pos)


def _check_named(j: Judge, name: str, y: Any, x: Input, pos: Any) -> None:
    try:
        j.check(y, x, pos)
    except AssertionError as error:
        raise AssertionError(f"{name}: {error}") from None


@check("nonfinite", "rotary_dim")
def nonfinite(j: Judge) -> None:
    """NaN and infinities stay inside their pair; every other element is rotated as usual."""
    values = np.random.default_rng(5).standard_normal((2, 3, 5, j.width))
    values[0, 1, 2, 3 % j.width], values[1, 2, 4, 0], values[1, 0, 0, 15 % j.width] = np.nan, np.inf, -np.inf
    values[0, 2, 1, 14 % j.width] = np.nan
    x = j.array(values)
    for width in (16, 8):
        with j.if_served():
            y = j.rotated(x, j.positions(), rotary_dim=width)
            expected = j.nonfinite(values, {"rotary_dim": width})
            assert np.isfinite(y[~expected]).all(), "a NaN or an infinity left its pair"
            j.check_nonfinite(y, values, {"rotary_dim": width})
