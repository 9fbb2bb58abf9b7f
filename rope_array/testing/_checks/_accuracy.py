"""Errors of results against the definition, for each dtype and range of positions."""

import itertools
from typing import Any

import numpy as np

from rope_array.testing._call import CallInputs, Ints, make_at
from rope_array.testing._claims import RANGES
from rope_array.testing._factors import DTYPES
from rope_array.testing._failure import named
from rope_array.testing._judge import Check, Floats, Input, Judge, check
from rope_array.testing._observe import judge_results, rotated
from rope_array.testing._row import read_calls

# The ranges in words.
_RANGES = {
    "small": "at positions below 4,096, or up to the largest one claimed. The contract's bound is 2.5 eps of "
             "float32 (float64 for float64) of the pair, and half an ulp of the result.",
    "2^16": "from 4,096 to 2^16, or up to the largest position claimed.",
    "2^20": "from 2^16 to 2^20, or up to the largest position claimed. A float32 angle is off by "
            "hundredths of a radian there.",
    "2^24": "from 2^20 to 2^24 + 3, where float32 skips integers.",
    "int32": "from 2^24 + 4 to the end of int32.",
}  # fmt: skip
# More heads are tried for a backend that declines small arrays.
_HEADS = (2, 32, 512)
_ARRAYS = ("inv_freq=True:float32", "inv_freq=any_size:float64")
_NEGATIVE = (1, 2, 3, 15, 127, 128, 4095, 2**15 + 1, 2**16, 2**20 - 1, 2**24 + 1, 2**30 + 7, 2**31 - 1)


def _within(j: Judge, name: str, dtype: str) -> None:
    pos = positions_in(j, name)
    is_last = pos[0] and not j.claims("offset_positions")
    inputs, y = _last_rows(j, pos, dtype) if is_last else _served(j, pos, dtype)
    numbers = j.numbers(y)
    if dtype == j.dtype:
        _record_error(j, name, inputs, numbers)
    j.check_values(numbers, inputs.xs[0], inputs.numbers)
    _check_arrays(j, pos, dtype)


def positions_in(j: Judge, name: str, count: int = 40) -> Ints:
    """Return positions in a range, among them its ends and powers of two, of the kind that is claimed."""
    _, low, high = RANGES[name]
    high = min(high, j.target.reach)
    if not j.claims("any_positions"):
        last = high + 1 if name != "small" or j.claims("offset_positions") else min(count, high + 1)
        return np.arange(max(last - count, 0), last)
    edges = {2**n + near for n in range(31) for near in (-1, 0, 1, 2, 3)} | {low, low + 1, high - 1, high}
    # Draw equally from each octave, so that an error in any part of the range is found.
    drawn = np.exp(np.random.default_rng(11).uniform(np.log(low + 1), np.log(high + 1), count))
    drawn = np.clip(drawn.astype(np.int64), low, high)
    return np.concatenate([sorted(edge for edge in edges if low <= edge <= high), drawn])


def _record_error(j: Judge, name: str, inputs: CallInputs, y: Floats) -> None:
    """Update the largest error of a range, in lengths of the pair."""
    values = inputs.xs[0].values
    exact = j.exact(values, inputs.numbers)
    (a, b), out = j.pairs(width=values.shape[-1])
    length = np.hypot(values[..., a], values[..., b])
    for member in out:
        error = float(np.max(np.abs(y[..., member] - exact[..., member]) / length))
        j.worst[name] = max(j.worst.get(name, 0.0), error if np.isfinite(error) else np.inf)


def _served(j: Judge, pos: Any, dtype: str) -> tuple[CallInputs, Any]:
    """Return the arguments and the result of a call with as many heads as the target needs to serve it."""
    for heads in _HEADS:
        inputs = make_at(j, pos, rows=(1, heads, len(pos)), width=64, dtype=dtype)
        with j.if_served():
            y = j.call(inputs.x, inputs.pos)
            j.check_kind(y, inputs.xs[0])
            return inputs, y
    j.raise_refused("refuses these positions with any number of heads")


def _last_rows(j: Judge, pos: Any, dtype: str) -> tuple[CallInputs, Any]:
    """Rotate rows 0 to pos[-1], random at pos; return the rows at pos."""
    values = np.zeros((1, 1, pos[-1] + 1, j.width))
    values[:, :, pos] = np.random.default_rng(0).standard_normal((1, 1, len(pos), j.width))
    x = j.array(values, dtype)
    y = j.call(x, j.pos(np.arange(pos[-1] + 1)))
    j.check_kind(y, x)
    rows = make_at(j, pos, rows=(1, 1, len(pos)), dtype=dtype)
    rows = rows._replace(xs=[Input(None, x.values[:, :, pos], dtype)])
    return rows, y[:, :, int(pos[0]) :, :]


def _check_arrays(j: Judge, pos: Any, dtype: str) -> None:
    """Judge calls with frequencies in an array, which are as exact."""
    for call in read_calls(j, *_ARRAYS, dtype=dtype):
        with named(call.text(j.plain)), j.if_served():
            rotated(j, make_at(j, pos, dtype=dtype, inv_freq=call.inv_freq))


def _check_at(j: Judge, pos: Any, dtype: str) -> None:
    """Judge a call at these positions, and calls with frequencies in an array."""
    inputs, y = _served(j, pos, dtype)
    judge_results(j, inputs, y)
    _check_arrays(j, pos, dtype)


def checks_of_ranges() -> list[Check]:
    """Return the check of each range and dtype."""
    range_checks = []
    for (label, where), dtype in itertools.product(_RANGES.items(), DTYPES):
        capability = RANGES[label][0]
        name = f"accuracy_{capability.removeprefix('reaches_') or label}[{dtype}]"
        capabilities = ("values", *([capability] if capability else []), dtype)
        requirement = f"Errors are within the class's bound {where}"
        range_checks.append(Check(name, requirement, capabilities, _within, (label, dtype)))
    return range_checks


@check("accuracy", "negative_positions", "any_positions", each_dtype=True)
def accuracy_negative(j: Judge, dtype: str) -> None:
    """Errors are within the class's bound at negative positions, down to the end of int32.

    If positions below some limit are refused, down to this limit.
    """
    depth = min(j.target.depth, 2**31 - 1)
    pos = -np.array([p for p in (*_NEGATIVE, 5_003, 70_001, depth - 1, depth) if 0 < p <= depth], np.int64)
    if depth >= 2**31 - 1:
        pos = np.append(pos, -(2**31))
    _check_at(j, pos, dtype)


@check("accuracy", "wide_positions", "any_positions", each_dtype=True)
def accuracy_wide(j: Judge, dtype: str) -> None:
    """Beyond int32, errors are within the bound plus 2π·|pos|·2^-65 (2^-97 for float64)."""
    pos = np.array([2**31, 2**32 - 1, 2**32 + 1, 2**40 + 5, -(2**33) - 3, 2**53 + 1])
    _check_at(j, pos, dtype)


@check("accuracy", "float_positions", "any_positions", each_dtype=True)
def accuracy_float(j: Judge, dtype: str) -> None:
    """At float32 positions, whole or not, errors are within the bound plus 2.1e-7·max(1, ω) of the pair."""
    pos = np.array([0.0, 0.5, 1.25, -3.75, 1000.125, 65_535.5, 3.0], np.float32)
    pos = pos[(np.abs(pos) <= j.target.reach) & ((pos >= 0) | (-pos <= j.target.depth))]
    # An angle that is a product is as exact as the dtype of its position.
    use_float64 = j.target.angles == "float64" and j.claims("float64", "float_positions[float64]")
    use_float64 = use_float64 or not j.claims("float_positions[float32]")
    rotated(j, make_at(j, pos, kind="float64" if use_float64 else "float32", width=64, dtype=dtype))


@check("accuracy", "float_positions", "any_positions", "float64", "float_positions[float64]")
def accuracy_float64_positions(j: Judge) -> None:
    """Positions of float64 keep their fraction for an x of float64."""
    pos = np.array([0.1, 1.7, 100.3, 4000.9])
    pos = pos[pos <= j.target.reach]
    rotated(j, make_at(j, pos, kind="float64", dtype="float64"))


@check("positions", "narrow_positions", "offset_positions")
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
