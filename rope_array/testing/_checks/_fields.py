"""The fields of a rotary embedding: what is rotated, by which frequencies, and how pairs are laid."""

from dataclasses import replace
from typing import Any

import numpy as np

from rope_array.testing._claims import one_line
from rope_array.testing._judge import Given, Judge, check
from rope_array.testing._target import Target

_CALLED = (
    "the suite calls rotate(x, pos), x of shape (batch, heads, sequence, features); where another call is "
    "meant, claim a layout, a head_dim, positions or a library"
)


@check()
def definition(j: Judge) -> None:
    """Each pair is turned counter-clockwise by pos·ω_i, ω_i = base^(-2i/d): y = R(Θ, pos)·x."""
    for head_dim in (16, 64):
        x, pos = j.x(2, 3, 5, head_dim), j.places()
        y = _first_call(j, x, pos)
        j.check_kind(y, x)
        try:
            j.check_values(j.numbers(y), x, pos)
        except AssertionError as error:
            raise AssertionError(f"{error}{_likeness(j, y, x, pos)}") from None


def _first_call(j: Judge, x: Given, pos: Any) -> Any:
    """Call; where that raises, say what was called, and which claim the callable may lack."""
    try:
        return j.run(x, pos)
    except Exception as error:
        shape = tuple(x.values.shape)
        called = f"x of shape {shape} and positions of shape {pos.shape} raise {one_line(error)}"
        # No call of a rotary embedding's is refused: NotImplementedError too is a failure here.
        raise AssertionError(f"{called}; {_layout_that_helps(j.target) or _CALLED}") from None


def _layout_that_helps(target: Target) -> str:
    """Say by which layout a callable is served; nothing where it is by none."""
    for layout in ("bshd", "sbhd", "hsd", "shd", "bsd", "sd"):
        j = Judge(replace(target, declared=True, dtypes=("float32",), layout=layout))
        try:
            x, pos = j.x(), j.places()
            j.check(j.run(x, pos), x, pos)
        except Exception:
            continue
        return f"it is served where layout={layout} is claimed"
    return ""


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
    helps = _layout_that_helps(j.target)
    return f"; {helps}" if helps else ""


@check()
def direction(j: Judge) -> None:
    """The first member of a pair, alone, goes to (cos, sin).

    So the second result is positive for a small angle.
    """
    values = np.zeros((1, 1, 2, j.width))
    (a, _), (_, b) = j.pairs()
    values[..., a[0]] = 1.0
    x = j.given(values)
    y = j.rotated(x, np.arange(2))
    assert y[0, 0, 1, b[0]] > 0, "the rotation goes the other way"


@check("narrow_heads")
def narrow_heads(j: Judge) -> None:
    """Every even head_dim is served from 2 on: 2, 4, 6, 10."""
    for head_dim in (2, 4, 6, 10):
        j.rotated(j.x(1, 2, 3, head_dim), j.places(3))


@check("widths")
def widths(j: Judge) -> None:
    """The head_dims of models are served: 64, 80, 96, 128, 192, 256."""
    for head_dim in (64, 80, 96, 128, 192, 256):
        j.rotated(j.x(1, 2, 3, head_dim), j.places(3))


@check("wide_heads")
def wide_heads(j: Judge) -> None:
    """Heads are as wide as 512 features, 576, or 2048."""
    for head_dim in (512, 576, 2048):
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


@check("base")
def base_of_any_size(j: Judge) -> None:
    """The base is the number given: an int, one with a fraction, one beyond int32, one below 1."""
    pos = j.spread("2^16") if j.claims("reaches_2e16", "any_positions") else j.places()
    x = j.x(1, 2, len(pos), 16)
    for number in (20_000, 10_000.0, 10_000.5, 1234.56789, 1e10, 5_000_000.0, 10.0):
        j.rotated(x, pos, base=number)
    j.rotated(j.x(), j.places(), base=0.25)


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
    if j.target.defaults.get("rotary_dim") is None:
        j.rotated(x, j.places(), rotary_start=4 + j.width % 2)  # all from there on


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
    x = j.x()
    lanes = len(j.pairs()[0][0])
    falling = tuple(1.75 * 0.6**i for i in range(lanes))
    mixed = tuple((0.1, 0.2, 0.0, -0.4)[i % 4] for i in range(lanes))
    for omegas in (falling, mixed, (*falling[:-1], 0.002)):
        j.rotated(x, j.places(), inv_freq=omegas)
    given = list(mixed)
    if (y := j.offered(x, j.pos(j.places()), inv_freq=given)) is not None:
        j.check(y, x, j.places(), inv_freq=mixed)
        assert given == list(mixed), "the list of frequencies was written"


@check("attention_factor")
def attention_factor(j: Judge) -> None:
    """The factor multiplies cos and sin, once."""
    x = j.x()
    for factor in (1.25, 0.1, 1.0, 1.1386294361119891):
        j.rotated(x, j.places(), attention_factor=factor)
        if j.claims("any_positions"):
            j.rotated(x, np.zeros(5, np.int64), attention_factor=factor)


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
    j.rotated(x, j.places(2), seq_axis=-4)
    for axis in (-2, -3, -4):  # which the sizes do not tell
        j.rotated(j.x(4, 4, 4, 16), j.places(4), seq_axis=axis)


@check("seq_axis", "batch_positions")
def seq_axis_and_batch(j: Judge) -> None:
    """Positions of shape (B, S) serve an x of shape (B, S, H, D) with seq_axis=-3."""
    pos = np.stack([j.places(5), j.places(5)[::-1]])
    j.rotated(j.x(2, 5, 3, 16), pos, seq_axis=-3)
