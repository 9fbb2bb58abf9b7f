"""The fields of a rotary embedding: rotated slice, frequencies, pairings, amplitude, inverse, seq_axis."""

from typing import Any

import numpy as np

from rope_array.testing._claims import one_line
from rope_array.testing._judge import Input, Judge, check
from rope_array.testing._own import Declined

_CALLED = (
    "the suite calls rotate(x, pos) with x of shape (batch, heads, sequence, features); for another call, "
    "claim a layout, a head_dim, positions or a library"
)


@check()
def definition(j: Judge) -> None:
    """Each pair is rotated counter-clockwise by pos·ω_i, ω_i = base^(-2i/d): y = R(Θ, pos)·x."""
    for head_dim in (16, 64):
        x, pos = j.x(2, 3, 5, head_dim), j.positions()
        with j.if_served():
            y = _first_call(j, x, pos)
            j.check(y, x, pos)


def _first_call(j: Judge, x: Input, pos: Any) -> Any:
    """Call; if that raises, report the call."""
    try:
        return j.run(x, pos)
    except Declined:
        raise
    except Exception as error:
        shape = tuple(x.values.shape)
        called = f"x of shape {shape} and positions of shape {pos.shape} raise {one_line(error)}"
        # A rotary embedding has to take this call: NotImplementedError is a failure too.
        raise AssertionError(f"{called}; {_CALLED}") from None


@check()
def direction(j: Judge) -> None:
    """A pair (1, 0) becomes (cos, sin): its second member is positive at a small angle."""
    values = np.zeros((1, 1, 2, j.width))
    (a, _), _ = j.pairs()
    values[..., a[0]] = 1.0
    x = j.array(values)
    j.check_call(x, np.arange(2))


@check("narrow_heads")
def narrow_heads(j: Judge) -> None:
    """Narrow even head_dims are rotated: 2 to 14."""
    for head_dim in j.widths("narrow_heads"):
        j.check_call(j.x(1, 2, 3, head_dim), j.positions(3))


@check("widths")
def widths(j: Judge) -> None:
    """The head_dims of models are rotated: from 16 to 256."""
    for head_dim in j.widths("widths"):
        j.check_call(j.x(1, 2, 3, head_dim), j.positions(3))


@check("wide_heads")
def wide_heads(j: Judge) -> None:
    """Wide head_dims are rotated: 320 to 2048."""
    for head_dim in j.widths("wide_heads"):
        j.check_call(j.x(1, 2, 3, head_dim), j.positions(3))


@check("pairing")
def pairing(j: Judge) -> None:
    """Pairs are (2i, 2i+1) for "interleaved" and (i, i + d/2) for "half", in any order of calls."""
    x = j.x()
    for name in ("interleaved", "half", "interleaved"):
        j.check_call(x, j.positions(), pairing=name)


@check("pairing", "out_pairing")
def out_pairing(j: Judge) -> None:
    """Pairs are read by `pairing` and written by `out_pairing`."""
    x = j.x()
    for read, written in (("interleaved", "half"), ("half", "interleaved"), ("half", "half")):
        j.check_call(x, j.positions(), pairing=read, out_pairing=written)


@check("base")
def base(j: Judge) -> None:
    """The base of each call sets its frequencies: no cache leaves the base out of its key."""
    x = j.x()
    for number in (10_000.0, 500_000.0, 10_000.0, 100.0, 1_000_000.0, 500_000.0):
        j.check_call(x, j.positions(), base=number)


@check("base")
def base_of_any_size(j: Judge) -> None:
    """The base is any positive number: an int, a fraction, beyond int32, below 1."""
    pos = j.positions_in("2^16") if j.claims("reaches_2e16", "any_positions") else j.positions()
    x = j.x(1, 2, len(pos), 16)
    for number in (20_000, 10_000.0, 10_000.5, 1234.56789, 1e10, 5_000_000.0, 10.0):
        j.check_call(x, pos, base=number)
    j.check_call(j.x(), j.positions(), base=0.25)


@check("rotary_dim")
def rotary_dim(j: Judge) -> None:
    """The first rotary_dim features are rotated, by base^(-2i/rotary_dim); the others do not change."""
    x = j.x()
    for width in (4, 16, 8, 2, 0):
        j.check_call(x, j.positions(), rotary_dim=width)


@check("rotary_dim", "rotary_start")
def rotary_start(j: Judge) -> None:
    """The rotated slice starts at rotary_start; the features before and after it do not change."""
    x = j.x()
    for start, width in ((4, 8), (12, 4), (1, 6), (0, 8)):
        j.check_call(x, j.positions(), rotary_start=start, rotary_dim=width)
    if j.target.defaults.get("rotary_dim") is None:
        j.check_call(x, j.positions(), rotary_start=4 + j.width % 2)  # the rest of the head


@check("rotary_dim", "pairing")
def partial_pairing(j: Judge) -> None:
    """The pairing "half" pairs halves of the rotated slice, not of the head."""
    j.check_call(j.x(), j.positions(), rotary_dim=8, pairing="half")


@check("rotary_dim", "odd_width")
def odd_width(j: Judge) -> None:
    """A head of odd width is rotated if rotary_dim is even."""
    j.check_call(j.x(2, 3, 5, 13), j.positions(), rotary_dim=6)


@check("inv_freq")
def inv_freq(j: Judge) -> None:
    """Frequencies of inv_freq are used exactly, in their order, and anew in every call."""
    x = j.x()
    num_pairs = len(j.pairs()[0][0])
    falling = tuple(1.75 * 0.6**i for i in range(num_pairs))
    mixed = tuple((0.1, 0.2, 0.0, -0.4)[i % 4] for i in range(num_pairs))
    for omegas in (falling, mixed, (*falling[:-1], 0.002)):
        j.check_call(x, j.positions(), inv_freq=omegas)
    given = list(mixed)
    if (y := j.try_call(x, j.pos(j.positions()), inv_freq=given)) is not None:
        j.check(y, x, j.positions(), inv_freq=mixed)
        assert given == list(mixed), "the list of frequencies was written"


@check("attention_factor")
def attention_factor(j: Judge) -> None:
    """The attention factor multiplies cos and sin once."""
    x = j.x()
    for factor in (1.25, 0.1, 1.0, 1.1386294361119891):
        j.check_call(x, j.positions(), attention_factor=factor)
        if j.claims("any_positions"):
            j.check_call(x, np.zeros(5, np.int64), attention_factor=factor)


@check("attention_factor", "rotary_dim")
def attention_factor_of_a_part(j: Judge) -> None:
    """The attention factor does not multiply features outside the rotated slice."""
    j.check_call(j.x(), j.positions(), attention_factor=1.5, rotary_dim=8)


@check("inverse")
def inverse(j: Judge) -> None:
    """The call with inverse=True multiplies by the inverse matrix."""
    j.check_call(j.x(), j.positions(), inverse=True)


@check("inverse", "attention_factor")
def inverse_of_amplitude(j: Judge) -> None:
    """The inverse divides by the attention factor."""
    j.check_call(j.x(), j.positions(), inverse=True, attention_factor=1.5)


@check("inverse", "pairing", "out_pairing")
def inverse_of_layout(j: Judge) -> None:
    """The inverse reads pairs by out_pairing and writes them by pairing."""
    j.check_call(j.x(), j.positions(), inverse=True, pairing="interleaved", out_pairing="half")


@check("seq_axis")
def seq_axis(j: Judge) -> None:
    """Positions run along seq_axis, which counts from either end."""
    x = j.x(2, 5, 3, 16)
    j.check_call(x, j.positions(), seq_axis=-3)
    j.check_call(x, j.positions(), seq_axis=1)
    j.check_call(x, j.positions(2), seq_axis=0)
    j.check_call(x, j.positions(2), seq_axis=-4)
    for axis in (-2, -3, -4):  # equal sizes: no axis can be guessed
        j.check_call(j.x(4, 4, 4, 16), j.positions(4), seq_axis=axis)


@check("seq_axis", "batch_positions")
def seq_axis_and_batch(j: Judge) -> None:
    """Positions of shape (B, S) match an x of shape (B, S, H, D) with seq_axis=-3."""
    pos = np.stack([j.positions(5), j.positions(5)[::-1]])
    j.check_call(j.x(2, 5, 3, 16), pos, seq_axis=-3)
