"""The fields of a rotary embedding: rotated slice, frequencies, pairings, amplitude, inverse, seq_axis."""

from typing import Any

from rope_array.testing._claims import one_line
from rope_array.testing._judge import Input, Judge, check
from rope_array.testing._library_target import Declined

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
