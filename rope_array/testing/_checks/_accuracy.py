"""Errors of results against the definition, for each dtype and range of positions."""

import itertools
from typing import Any

import numpy as np

from rope_array.testing._call import plain_call, spec_of
from rope_array.testing._claims import RANGES
from rope_array.testing._factors import DTYPES
from rope_array.testing._judge import Check, Input, Judge, check
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
    pos = j.positions_in(name)
    x, y = _last_rows(j, pos, dtype) if pos[0] and not j.claims("offset_positions") else _rows(j, pos, dtype)
    if dtype == j.dtype:
        j.record_error(name, j.numbers(y), x, pos)
    j.check_values(j.numbers(y), x, pos)
    _check_arrays(j, pos, dtype)


def _rows(j: Judge, pos: Any, dtype: str) -> tuple[Input, Any]:
    for heads in _HEADS:
        x = j.x(1, heads, len(pos), 64, dtype=dtype)
        with j.if_served():
            y = j.run(x, pos)
            j.check_kind(y, x)
            return x, y
    j.raise_refused("refuses these positions with any number of heads")


def _last_rows(j: Judge, pos: Any, dtype: str) -> tuple[Input, Any]:
    """Rotate rows 0 to pos[-1], random at pos; return the rows at pos."""
    values = np.zeros((1, 1, pos[-1] + 1, j.width))
    values[:, :, pos] = np.random.default_rng(0).standard_normal((1, 1, len(pos), j.width))
    all_rows = j.array(values, dtype)
    y = j.run(all_rows, np.arange(pos[-1] + 1))
    j.check_kind(y, all_rows)
    return Input(None, all_rows.values[:, :, pos], dtype), y[:, :, int(pos[0]) :, :]


def _check_arrays(j: Judge, pos: Any, dtype: str) -> None:
    """Judge calls with frequencies in an array, which are as exact."""
    for call in read_calls(j, *_ARRAYS, dtype=dtype):
        x, spec = j.x(1, 2, len(pos), 16, dtype=dtype), spec_of(j, call)
        with j.part(call.text(plain_call(j))):
            j.check_call(x, pos, **spec)


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


@check("negative_positions", "any_positions", each_dtype=True)
def accuracy_negative(j: Judge, dtype: str) -> None:
    """Errors are within the class's bound at negative positions, down to the end of int32.

    If positions below some limit are refused, down to this limit.
    """
    depth = min(j.target.depth, 2**31 - 1)
    pos = -np.array([p for p in (*_NEGATIVE, 5_003, 70_001, depth - 1, depth) if 0 < p <= depth], np.int64)
    if depth >= 2**31 - 1:
        pos = np.append(pos, -(2**31))
    x, y = _rows(j, pos, dtype)
    j.check_values(j.numbers(y), x, pos)
    _check_arrays(j, pos, dtype)


@check("wide_positions", "any_positions", each_dtype=True)
def accuracy_wide(j: Judge, dtype: str) -> None:
    """Beyond int32, errors are within the bound plus 2π·|pos|·2^-65 (2^-97 for float64)."""
    pos = np.array([2**31, 2**32 - 1, 2**32 + 1, 2**40 + 5, -(2**33) - 3, 2**53 + 1])
    x, y = _rows(j, pos, dtype)
    j.check_values(j.numbers(y), x, pos)
    _check_arrays(j, pos, dtype)


@check("float_positions", "any_positions", each_dtype=True)
def accuracy_float(j: Judge, dtype: str) -> None:
    """At float32 positions, whole or not, errors are within the bound plus 2.1e-7·max(1, ω) of the pair."""
    pos = np.array([0.0, 0.5, 1.25, -3.75, 1000.125, 65_535.5, 3.0], np.float32)
    pos = pos[(np.abs(pos) <= j.target.reach) & ((pos >= 0) | (-pos <= j.target.depth))]
    x = j.x(1, 2, len(pos), 64, dtype=dtype)
    # An angle that is a product is as exact as the dtype of its position.
    use_float64 = j.target.angles == "float64" and j.claims("float64", "float_positions[float64]")
    use_float64 = use_float64 or not j.claims("float_positions[float32]")
    j.check(j.call(x, j.pos(pos, "float64" if use_float64 else "float32")), x, pos)


@check("float_positions", "any_positions", "float64", "float_positions[float64]")
def accuracy_float64_positions(j: Judge) -> None:
    """Positions of float64 keep their fraction for an x of float64."""
    pos = np.array([0.1, 1.7, 100.3, 4000.9])
    pos = pos[pos <= j.target.reach]
    x = j.x(1, 2, len(pos), 16, dtype="float64")
    y = j.call(x, j.pos(pos, "float64"))
    j.check(y, x, pos)
