"""The plain call, which everything else needs."""

from rope_array.testing._call import CallInputs, make, plain_call
from rope_array.testing._claims import one_line
from rope_array.testing._judge import Judge, check
from rope_array.testing._library_target import Declined
from rope_array.testing._observe import judge_results

_CALLED = (
    "the suite calls rotate(x, pos) with x of shape (batch, heads, sequence, features); for another call, "
    "claim a layout, a head_dim, positions or a library"
)


@check()
def definition(j: Judge) -> None:
    """Each pair is rotated counter-clockwise by pos·ω_i, ω_i = base^(-2i/d): y = R(Θ, pos)·x."""
    plain = plain_call(j)
    for head_dim in (16, 64):
        with j.if_served():
            _check_first_call(j, make(j, plain.replace(width=j.target.width_of(head_dim))))


def _check_first_call(j: Judge, inputs: CallInputs) -> None:
    """Judge a call; if that raises, report the call."""
    try:
        y = j.call(inputs.x, inputs.pos)
    except Declined:
        raise
    except Exception as error:
        shapes = f"x of shape {inputs.xs[0].values.shape} and positions of shape {inputs.pos.shape}"
        # A rotary embedding has to take this call: NotImplementedError is a failure too.
        raise AssertionError(f"{shapes} raise {one_line(error)}; {_CALLED}") from None
    judge_results(j, inputs, y)
