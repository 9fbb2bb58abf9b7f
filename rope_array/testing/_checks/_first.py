"""The plain call, and first calls: of the target, in each dtype, and with each field."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from rope_array.testing._call import CallInputs, make
from rope_array.testing._claims import one_line
from rope_array.testing._judge import Input, Judge, check
from rope_array.testing._observe import judge_results
from rope_array.testing._refused import Declined
from rope_array.testing._row import read_calls
from rope_array.testing._trial_log import ends_of

_CALLED = (
    "the suite calls rotate(x, pos) with x of shape (batch, heads, sequence, features); for another call, "
    "claim a layout, a head_dim, positions or a library"
)
# Values that no other check uses, so that compiled code is compiled here first.
_CALLS = (
    "dtype=float32|float64|float16|bfloat16", "base=500000.0", "rotary_dim=8", "pairing=half",
    "attention_factor=1.25", "inverse=True",
)  # fmt: skip


@check("refusals", values=False)
def refusals_raise(j: Judge) -> None:
    """A call that the target does not take raises an exception: it does not end the process."""
    ended = ends_of(j.target)
    assert not ended, f"a trial call: {'; '.join(dict.fromkeys(ended))}"


@check("fields")
def definition(j: Judge) -> None:
    """Each pair is rotated counter-clockwise by pos·ω_i, ω_i = base^(-2i/d): y = R(Θ, pos)·x."""
    for head_dim in (16, 64):
        with j.if_served():
            _check_first_call(j, make(j, j.plain.replace(width=j.target.width_of(head_dim))))


def _check_first_call(j: Judge, inputs: CallInputs) -> None:
    """Judge a call; if that raises, report the call."""
    try:
        y = j.call(inputs.x, inputs.pos)
    except Declined:
        raise
    except Exception as error:
        shapes = f"x of shape {inputs.xs[0].values.shape} and positions of shape {inputs.pos.shape}"
        # Every rotary embedding takes this call, so NotImplementedError fails the check too.
        raise AssertionError(f"{shapes} raise {one_line(error)}; {_CALLED}") from None
    judge_results(j, inputs, y)


@check("first calls")
def first_call(j: Judge) -> None:
    """The first call of all is as right as the second, and so is the first in each dtype and with each field.

    Trial calls that find the claims count.
    """
    for x, pos, spec, y in (*_tried(j), *_fresh(j)):
        first = _error_of(j, y, x, pos, spec)
        if first and not _error_of(j, _again(j, x, pos, spec), x, pos, spec):
            fields = f" with {spec}" if spec else ""
            raise AssertionError(
                f"the first call in {x.dtype}{fields} is wrong, the second is right: {first}"
            )


def _tried(j: Judge) -> Iterator[tuple[Input, Any, dict[str, Any], Any]]:
    for call in j.target.trials.first_calls(j.target.claimed):
        yield Input(None, call.x, call.dtype), call.pos, call.spec, call.y


def _fresh(j: Judge) -> Iterator[tuple[Input, Any, dict[str, Any], Any]]:
    for call in read_calls(j, *_CALLS):
        inputs = make(j, call)
        yield inputs.x, inputs.numbers, inputs.spec, _again(j, inputs.x, inputs.numbers, inputs.spec)


def _again(j: Judge, x: Input, pos: Any, spec: dict[str, Any]) -> np.ndarray | None:
    """Call with a new copy of x; return the numbers, or None if the call raises."""
    try:
        return j.numbers(j.call(j.array(x.values, x.dtype), j.pos(pos), **spec))
    except Exception:  # the checks of these calls report it
        return None


def _error_of(j: Judge, y: Any, x: Input, pos: Any, spec: dict[str, Any]) -> str:
    """Return why a result is wrong, or ""."""
    try:
        assert y is not None, "it raises"
        j.check_values(y, x, pos, **spec)
    except AssertionError as error:
        return str(error)
    return ""
