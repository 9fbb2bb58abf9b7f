"""The first call: of the target, in each dtype, and with each field."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from rope_array.testing._call import make
from rope_array.testing._judge import Input, Judge, check
from rope_array.testing._row import read_calls

# Values that no other check uses, so that compiled code is compiled here first.
_CALLS = (
    "dtype=float32|float64|float16|bfloat16", "base=500000.0", "rotary_dim=8", "pairing=half",
    "attention_factor=1.25", "inverse=True",
)  # fmt: skip


@check()
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
