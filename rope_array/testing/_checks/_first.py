"""The first call: of the target, in each dtype, and with each field."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from rope_array.testing._judge import Input, Judge, check
from rope_array.testing._parts import MODEL_WIDTHS

# An x, its positions, and the fields of a call.
Call = tuple[Input, np.ndarray, dict[str, Any]]
# Head_dims that no other check gives: a table that is kept by the head_dim has to be made anew.
_NEW_WIDTHS = [width for width in range(18, 200, 2) if width not in MODEL_WIDTHS]

# A call of each field with values, sizes and positions of its own check: compiled code is compiled once.
_FIELDS: dict[str, Any] = {
    "base": 500_000.0,
    "rotary_dim": 8,
    "pairing": "half",
    "attention_factor": 1.25,
    "inverse": True,
}


def new_call(j: Judge, dtype: str | None = None, positions: str = "S") -> Call:
    """Return a call that no earlier check made, so that a cache of tables has to be filled for it.

    `positions` are the axes of its positions: S, BS, or B1 for a decoding step.
    """
    j.fresh += 1
    rows = 1 if positions == "B1" else 3 + j.fresh % 7
    spec = {"base": 20000.0 + j.fresh} if j.claims("base") and not j.fields({}).get("inv_freq") else {}
    width = _NEW_WIDTHS[j.fresh % len(_NEW_WIDTHS)] if j.claims("widths") else 16
    pos = far_row(j, rows, j.fresh % 3)
    pos = np.stack([pos, far_row(j, rows, j.fresh % 3 + 1)]) if positions != "S" else pos
    return j.x(2, 3, rows, width, dtype=dtype, seed=j.fresh), pos, spec


def far_row(j: Judge, rows: int, i: int = 0) -> np.ndarray:
    """Return consecutive positions: 16-bit floats round them, and products of them that are too narrow."""
    return j.row((4001, 2101, 12345)[i % 3], rows)


@check()
def first_call(j: Judge) -> None:
    """The first call of all is as right as the second, and so is the first in each dtype and with each field.

    Trial calls that find the claims count.
    """
    for x, pos, spec, y in (*_tried(j), *_fresh(j)):
        first = error_of(j, y, x, pos, spec)
        if first and not error_of(j, _again(j, x, pos, spec), x, pos, spec):
            fields = f" with {spec}" if spec else ""
            raise AssertionError(
                f"the first call in {x.dtype}{fields} is wrong, the second is right: {first}"
            )


def _tried(j: Judge) -> Iterator[tuple[Input, Any, dict[str, Any], Any]]:
    for call in j.target.first_calls.of(j.target.claimed):
        yield Input(None, call.x, call.dtype), call.pos, call.spec, call.y


def _fresh(j: Judge) -> Iterator[tuple[Input, Any, dict[str, Any], Any]]:
    specs = [{name: value} for name, value in _FIELDS.items() if j.claims(name)]
    calls = [*((dtype, {}) for dtype in j.dtypes), *((j.dtype, spec) for spec in specs)]
    for dtype, spec in calls:
        x, pos = j.x(dtype=dtype), j.positions()
        yield x, pos, spec, _again(j, x, pos, spec)


def _again(j: Judge, x: Input, pos: Any, spec: dict[str, Any]) -> np.ndarray | None:
    """Call with a new copy of x; return the numbers, or None if the call raises."""
    try:
        return j.numbers(j.run(j.array(x.values, x.dtype), pos, **spec))
    except Exception:  # the checks of these calls report it
        return None


def error_of(j: Judge, y: Any, x: Input, pos: Any, spec: dict[str, Any]) -> str:
    """Return why a result is wrong, or ""."""
    try:
        assert y is not None, "it raises"
        j.check_values(y, x, pos, **spec)
    except AssertionError as error:
        return str(error)
    return ""
