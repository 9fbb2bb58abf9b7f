"""Positions near the ends of their dtype."""

from typing import Any

import numpy as np

from rope_array.testing._call import make_at
from rope_array.testing._judge import Judge, check
from rope_array.testing._observe import judge_results, rotated


@check("narrow_positions", "offset_positions")
def positions_of_narrow_dtypes(j: Judge) -> None:
    """Positions of int8, uint8, int16, ... are correct up to the ends of their dtype, without wrapping."""
    batched = j.claims("batch_positions", "any_positions")
    for dtype in j.parts("narrow_positions"):
        near = _near_the_ends(j, dtype)
        spread_out = near // 4 * 3  # their differences are too large for the dtype too
        for values in (near, *([np.stack([spread_out, spread_out[::-1]])] if batched else [])):
            with j.if_served():
                _check_narrow(j, values, dtype)


def _check_narrow(j: Judge, values: np.ndarray[Any, Any], dtype: str) -> None:
    """Judge a call at positions that may be beyond the target's reach, or else at its end."""
    beyond = max(int(values.max()) - j.target.reach, 0)
    inputs = make_at(j, values - beyond, kind=dtype, rows=(2, 2, 5))
    if beyond:  # the largest of uint32
        pos = j.lib.asarray(values.astype(dtype))
        if (y := j.try_call(inputs.x, pos)) is not None:
            judge_results(j, inputs._replace(pos=pos, numbers=values), y)
            return
    rotated(j, inputs)


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
