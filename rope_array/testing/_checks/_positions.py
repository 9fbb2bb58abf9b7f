"""Positions: shapes, types, dtypes, and the row of each."""

from typing import Any

import numpy as np

from rope_array.testing._judge import Judge, check


@check("python_positions", "any_positions")
def positions_of_python(j: Judge) -> None:
    """Positions may be an int, a range, a list or a tuple of ints, negative and in steps, and of floats."""
    for python_type in j.parts("python_positions"):
        for pos in _python_positions(j, python_type):
            j.check_call(j.x(), pos)
        for dtype in j.dtypes[1:] if j.target.reach >= 4 else ():
            j.check_call(j.x(dtype=dtype), _far_positions(j, python_type))
    if j.claims("float_positions") and j.target.reach >= 9:
        values = {"int": 2.5, "list": [4.5, 0.0, 2.25, 8.75, 1.0], "tuple": (0.5, 1.0, 1.5, 2.0, 2.5)}
        for python_type in values.keys() & {*j.parts("python_positions")}:
            with j.if_served():
                if (y := j.try_call(j.x(), values[python_type])) is not None:
                    j.check(y, j.x(), np.array(values[python_type]))


def _far_positions(j: Judge, python_type: str) -> Any:
    """Return positions of Python that 16-bit floats round."""
    last = min(4005, j.target.reach)
    row = range(last - 4, last + 1)
    return {"int": last, "range": row, "list": list(row), "tuple": tuple(row)}[python_type]


def _python_positions(j: Judge, python_type: str) -> list[Any]:
    """Return positions of a kind: of ints, or of ranges, lists or tuples of five ints."""
    negative, beyond_int32 = j.claims("negative_positions"), j.claims("wide_positions")
    if python_type == "int":
        pos: list[Any] = [3, *([-3] if negative else []), *([2**33 + 5] if beyond_int32 else [])]
    elif python_type == "range":
        pos = [range(2, 7), range(0, 15, 3), *([range(-4, 1), range(9, -1, -2)] if negative else [])]
    else:
        pos = [[4, 0, 2, 9, 1], *([[4, -2, 0, -9, 1]] if negative else [])]
        pos += [[2**40, 0, 1, 2**31, 2**32 + 7]] if beyond_int32 else []
    pos = [row for row in pos if np.max(row) <= j.target.reach and np.min(row) >= -j.target.depth]
    if not pos and python_type != "range":
        pos = [0 if python_type == "int" else j.wrap(range(5)).tolist()]
    return [tuple(row) for row in pos] if python_type == "tuple" else pos


@check("narrow_positions", "offset_positions")
def positions_of_narrow_dtypes(j: Judge) -> None:
    """Positions of int8, uint8, int16, ... are correct up to the ends of their dtype, without wrapping."""
    batched = j.claims("batch_positions", "any_positions")
    for dtype in j.parts("narrow_positions"):
        near = _near_the_ends(j, dtype)
        spread_out = near // 4 * 3  # their differences are too large for the dtype too
        for values in (near, *([np.stack([spread_out, spread_out[::-1]])] if batched else [])):
            _check_narrow(j, values, dtype)


def _check_narrow(j: Judge, values: np.ndarray[Any, Any], dtype: str) -> None:
    x = j.x(2, 2, 5, 16)
    beyond = max(int(values.max()) - j.target.reach, 0)
    with j.if_served():
        # As `j.pos`, which wraps positions beyond the reach.
        y = j.try_call(x, j.lib.asarray(values.astype(dtype))) if beyond else None
        if y is None:
            values = values - beyond
            y = j.call(x, j.pos(values, dtype))
        j.check_kind(y, x)
        j.check_values_at(j.numbers(y), x, values)


def _near_the_ends(j: Judge, dtype: str) -> np.ndarray[Any, Any]:
    """Return positions near the ends of a dtype: of uint32, beyond int32's end, where most targets end."""
    ends, int32 = np.iinfo(dtype), 2**31 - 1
    last = min(j.target.reach, 2**62 if j.claims("wide_positions") else int32)
    last = 2**32 - 1 if dtype == "uint32" and last == int32 else last
    top = min(int(ends.max), last)
    signed = ends.min < 0 and j.claims("negative_positions", "any_positions")
    bottom = -(2**31) if signed and j.target.depth >= 2**31 - 1 else -j.target.depth
    low = max(int(ends.min), bottom) if signed else top - 4
    values = np.array([low, low + 1 if signed else top - 3, top - 2, top - 1, top]).clip(-top - 1, top)
    return values if signed else values.clip(0)
