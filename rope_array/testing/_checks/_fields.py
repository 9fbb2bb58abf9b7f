"""The fields of a rotary embedding: what is rotated, by which frequencies, and how pairs are laid."""

from typing import Any

import numpy as np

from rope_array.testing._judge import SHAPE, Given, Judge, check


@check()
def definition(j: Judge) -> None:
    """Each pair is turned counter-clockwise by pos·ω_i, ω_i = base^(-2i/d): y = R(Θ, pos)·x."""
    for head_dim in (16, 64):
        x, pos = j.x(2, 3, 5, head_dim), j.places()
        y = j.run(x, pos)
        j.check_kind(y, x)
        try:
            j.check_values(j.numbers(y), x, pos)
        except AssertionError as error:
            raise AssertionError(f"{error}{_likeness(j, y, x, pos)}") from None


def _likeness(j: Judge, y: Any, x: Given, pos: Any) -> str:
    """Say which other rotation a result is, of those that are often taken for each other."""
    for said, spec, shift in (
        ("the rotation with pairing='half'; claim pairing=half if that is meant", {"pairing": "half"}, 0),
        ("the rotation with pairing='interleaved'; claim that if it is meant", {"pairing": "interleaved"}, 0),
        ("the rotation the other way", {"inverse": True}, 0),
        ("the rotation one position further", {}, 1),
        ("the rotation one position back", {}, -1),
    ):
        try:
            j.check_values(j.numbers(y), x, pos + shift, **spec)
        except AssertionError:
            continue
        return f"; it is {said}"
    return ""


@check()
def direction(j: Judge) -> None:
    """The first member of a pair, alone, goes to (cos, sin).

    So the second result is positive for a small angle.
    """
    values = np.zeros((1, 1, 2, 4))
    (a, _), (_, b) = j.pairs(width=4)
    values[..., a[0]] = 1.0
    x = j.given(values)
    y = j.rotated(x, np.arange(2))
    assert y[0, 0, 1, b[0]] > 0, "the rotation goes the other way"


@check()
def widths(j: Judge) -> None:
    """Every even head_dim is served: 2, 4, 6, 10, 80, 128, 192, 256."""
    for head_dim in (2, 4, 6, 10, 80, 128, 192, 256):
        j.rotated(j.x(1, 2, 3, head_dim), j.places(3))


@check("wide_heads")
def wide_heads(j: Judge) -> None:
    """Heads are as wide as 512 features, or 576."""
    for head_dim in (512, 576):
        j.rotated(j.x(1, 2, 3, head_dim), j.places(3))


@check("pairing")
def pairing(j: Judge) -> None:
    """Pairs are (2i, 2i+1) for "interleaved" and (i, i + d/2) for "half"; both in one process."""
    x = j.x()
    for name in ("interleaved", "half", "interleaved"):
        j.rotated(x, j.places(), pairing=name)


@check("pairing", "out_pairing")
def out_pairing(j: Judge) -> None:
    """Pairs are read by `pairing` and written by `out_pairing`."""
    x = j.x()
    for read, written in (("interleaved", "half"), ("half", "interleaved"), ("half", "half")):
        j.rotated(x, j.places(), pairing=read, out_pairing=written)


@check("base")
def base(j: Judge) -> None:
    """The base makes the frequencies, in every call anew: nothing is kept that is keyed by less."""
    x = j.x()
    for number in (10_000.0, 500_000.0, 10_000.0, 100.0, 1_000_000.0, 500_000.0):
        j.rotated(x, j.places(), base=number)


@check("rotary_dim")
def rotary_dim(j: Judge) -> None:
    """The first rotary_dim features are rotated, by frequencies over rotary_dim.

    The others are returned as they are.
    """
    x = j.x()
    for width in (4, 16, 8, 2, 0):
        j.rotated(x, j.places(), rotary_dim=width)


@check("rotary_dim", "rotary_start")
def rotary_start(j: Judge) -> None:
    """The rotated slice starts at rotary_start; the features before and after it are returned as they are."""
    x = j.x()
    for start, width in ((4, 8), (12, 4), (1, 6), (0, 8)):
        j.rotated(x, j.places(), rotary_start=start, rotary_dim=width)


@check("rotary_dim", "pairing")
def partial_pairing(j: Judge) -> None:
    """Halves are those of the rotated slice, not of the head."""
    j.rotated(j.x(), j.places(), rotary_dim=8, pairing="half")


@check("rotary_dim", "odd_width")
def odd_width(j: Judge) -> None:
    """A head of odd width is served where the rotated part is even."""
    j.rotated(j.x(2, 3, 5, 13), j.places(), rotary_dim=6)


@check("inv_freq")
def inv_freq(j: Judge) -> None:
    """Frequencies given are used as they are.

    Each is the exact number, in the order given, one set after another.
    """
    x = j.x(2, 3, 5, 8)
    for omegas in ((1.0, 0.5, 0.3, 0.001), (0.1, 0.2, 0.0, -0.4), (1.0, 0.5, 0.3, 0.002)):
        j.rotated(x, j.places(), inv_freq=omegas)


@check("attention_factor")
def attention_factor(j: Judge) -> None:
    """The factor multiplies cos and sin, once."""
    x = j.x()
    for factor in (1.25, 0.5, 1.0):
        j.rotated(x, j.places(), attention_factor=factor)


@check("attention_factor", "rotary_dim")
def attention_factor_of_a_part(j: Judge) -> None:
    """The factor does not touch the features that are not rotated."""
    j.rotated(j.x(), j.places(), attention_factor=1.5, rotary_dim=8)


@check("inverse")
def inverse(j: Judge) -> None:
    """inverse=True multiplies by the inverse matrix."""
    j.rotated(j.x(), j.places(), inverse=True)


@check("inverse", "attention_factor")
def inverse_of_amplitude(j: Judge) -> None:
    """The inverse divides by the attention factor."""
    j.rotated(j.x(), j.places(), inverse=True, attention_factor=1.5)


@check("inverse", "pairing", "out_pairing")
def inverse_of_layout(j: Judge) -> None:
    """The inverse reads pairs where they were written, and writes them where they were read."""
    j.rotated(j.x(), j.places(), inverse=True, pairing="interleaved", out_pairing="half")


@check("seq_axis")
def seq_axis(j: Judge) -> None:
    """Positions run along the axis named, counted from either end."""
    x = j.x(2, 5, 3, 16)
    j.rotated(x, j.places(), seq_axis=-3)
    j.rotated(x, j.places(), seq_axis=1)
    j.rotated(x, j.places(2), seq_axis=0)


@check("seq_axis", "batch_positions")
def seq_axis_and_batch(j: Judge) -> None:
    """Positions of shape (B, S) serve an x of shape (B, S, H, D) with seq_axis=-3."""
    pos = np.stack([j.places(5), j.places(5)[::-1]])
    j.rotated(j.x(2, 5, 3, 16), pos, seq_axis=-3)


@check("base", "pairing", "rotary_dim")
def calls_in_turn(j: Judge) -> None:
    """A call depends on its own arguments only: spec, shape, dtype and positions.

    Nothing is left of the calls before it.
    """
    specs: list[dict[str, Any]] = [{"base": 500.0}, {"pairing": "half"}, {"rotary_dim": 8}]
    specs += [{"base": 500.0, "rotary_dim": 8}, {}]
    for _ in range(2):
        for i, spec in enumerate(specs):
            x = j.x(2, 3, 5 - i % 2, SHAPE[3] + 4 * (i % 2), dtype=j.dtypes[i % len(j.dtypes)], seed=i)
            j.rotated(x, j.places(5 - i % 2), **spec)


@check("offset_positions")
def calls_at_other_positions(j: Judge) -> None:
    """Positions count in every call anew: the same shape at other positions is another rotation."""
    x: Given = j.x(1, 2, 4, 8)
    for start in (0, 7, 0, 100):
        j.rotated(x, np.arange(start, start + 4))
