"""Bound the error of a rotation: the numerical contract, and weaker classes.

The contract: |y − exact| ≤ n·eps(compute)·A·|pair| + half an ulp of the output, with n of `ROTATED`, eps of
float64 for float64 and of float32 for every other dtype, A the amplitude and |pair| the length of an
element's pair; elements outside the rotated slice are equal. `apply_definition` computes the exact result.
The bounds are proved for this library (docs/numerics.md). Here n is at least `_LEAST_N`, as other code may
compute cos and sin of an exact angle that it reduced and rounded to float32.

An `Accuracy` of a weaker class adds the error of its arithmetic. Other code is held to the class it claims.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ._definition import ExactPlan, apply_definition, pairs_of
from ._failure import Failure
from ._wrong_result import WrongResult

Floats = NDArray[np.float64]
Indices = NDArray[np.intp]

# Fraction bits, exponent of the smallest normal number, exponent of the largest number.
FORMATS = {
    "float16": (10, -14, 15),
    "bfloat16": (7, -126, 127),
    "float32": (23, -126, 127),
    "float64": (52, -1022, 1023),
    "float8_e4m3fn": (3, -6, 8),  # of caches
}
# Largest error of cos and sin at integer positions, and at float positions for a frequency of at most 1.
AT_INTEGERS = {"float32": 9.5e-8, "float64": 1.7e-16}
AT_FLOATS = {"float32": 2.1e-7, "float64": 4.2e-16}
# The same with frequencies in an array of the dtype.
AT_FLOATS_OF_ARRAY = {"float32": 2.3e-7, "float64": 4.2e-16}
# Largest error of cos and sin with an amplitude other than 1, over the amplitude.
AMPLIFIED = {"float32": 1.7e-7, "float64": 3.1e-16}
# Largest error of a rotated pair before its last rounding, in eps(compute)·A·|pair|, by x's dtype: for an
# amplitude of 1, and for any other. A result of 16 bits is rounded to float32 first.
ROTATED = {"float32": (1.6, 2.5), "float64": (1.6, 2.5), "float16": (2.1, 3.0), "bfloat16": (2.1, 3.0)}
# The smallest n in the bound of other code.
_LEAST_N = 2.5
WORD_BITS = {"float32": 64, "float64": 96}

ANGLES = {
    "exact": "angles are exact at every position: the contract of rope_array",
    "float64": "angles are the product pos·ω in float64",
    "float32": "angles are the product pos·ω in float32, with an error of at most 2^-7",
}
ARITHMETIC = {
    "float32": "16-bit numbers are rotated in float32 or wider, and rounded once",
    "own": "cos, sin, products and sums are rounded in the dtype of x",
}
# The arithmetic of gradients: products rounded in the dtype of x, then added. No claim has it.
ADDED = "added"
_UNIT = {"float64": 2.0**-53, "float32": 2.0**-24}
# The eps of bfloat16, the coarsest dtype of models: a larger error of an angle is not rounding.
ANGLE_LIMIT = 2.0**-7
# Error of a scaling rule's sums, powers and logarithms in float64, relative to the largest frequency.
_RULE_ERROR = 2.0**-44


class Accuracy(NamedTuple):
    """The accuracy class of a result: how its angles are computed, and how it is rounded."""

    angles: str = "exact"
    arithmetic: str = "float32"


EXACT = Accuracy()


def compute_dtype(dtype: str, accuracy: Accuracy = EXACT) -> str:
    """Return the name of the dtype that an x of dtype `dtype` is rotated in."""
    if accuracy.arithmetic == "own":
        return dtype
    return "float64" if dtype == "float64" else "float32"


def eps(dtype: str) -> float:
    """Return the distance from 1 to the next number of a dtype given by name."""
    return float(2.0 ** -FORMATS[dtype][0])


def largest(dtype: str) -> float:
    """Return the largest finite number of a dtype given by name."""
    bits, _, top = FORMATS[dtype]
    return float((2.0 - 2.0**-bits) * 2.0**top)


def ulp(values: ArrayLike, dtype: str) -> Floats:
    """Return the distance between the numbers of a dtype, given by name, around each of `values`."""
    bits, lowest, _ = FORMATS[dtype]
    exponents = np.frexp(np.abs(values))[1] - 1
    return np.asarray(
        np.ldexp(1.0, np.maximum(np.where(np.equal(values, 0), lowest, exponents), lowest) - bits)
    )


def read_and_written_pairs(
    width: int, fields: Mapping[str, Any], inverse: bool
) -> list[tuple[Indices, Indices]]:
    """Return the indices of the pairs that a rotation reads, then of the pairs that it writes."""
    plan = _plan_of(width, fields, inverse)
    return [plan.source, plan.target]


def _plan_of(width: int, fields: Mapping[str, Any], inverse: bool) -> ExactPlan:
    plan_fields = {name: value for name, value in fields.items() if value is not None and name != "angles"}
    return pairs_of(width, plan_fields, inverse)


def _angle_slack(
    pos: Any, omegas: Floats, dtype: str, fields: Mapping[str, Any], accuracy: Accuracy
) -> Floats:
    """Return the allowed error of cos and sin of each pair, beyond the error at an int32 position.

    `omegas` are the sizes of the frequencies.
    """
    compute = compute_dtype(dtype)
    flat = np.asarray(pos if hasattr(pos, "dtype") else np.array(pos, dtype=object)).ravel().tolist()
    furthest = max((abs(p) for p in flat), default=0)
    slack = np.zeros(len(omegas))
    if any(isinstance(p, float) for p in flat):
        slack += AT_FLOATS[compute] * np.maximum(1.0, omegas)
    if furthest > 2**31:
        slack += 2 * math.pi * float(furthest) * 2.0 ** -(WORD_BITS[compute] + 1)
    if accuracy.angles in _UNIT:
        slack += _product_error(omegas, float(furthest), accuracy.angles)
    if fields.get("scaling"):
        slack += _RULE_ERROR * furthest * max(omegas, default=0.0)
    if accuracy.angles == "float32" and compute == "float64":
        slack += eps("float32")  # cos and sin of float32 angles are float32
    if accuracy.angles == "float64" and compute == "float32":
        slack += 2.0**-22  # a remainder by 2π may be rounded to float32: half an ulp of a number below 8
    return slack


def _product_error(omegas: Floats, furthest: float, angles: str) -> Floats:
    """Bound the error of an angle that is a floating-point product.

    Half an ulp (one unit u, relative) each for the position, a quotient, the product, and two for the power;
    one more in float32, which may round the base. Rounding the exponent 2i/d costs |ln ω| = ln(base^(2i/d))
    once or twice.

    Code may reduce the angle a by the rounded 2π: mod(a, fl(2π)) = a - k·fl(2π) for an integer k of at most
    |a|/2π + 1 in size. fl(2π) is off by 2.21 u in float64 and by 2.94 u in float32, so this is off by
    k·|fl(2π) - 2π|: at most 0.47 u relative to a, counted as one unit more, and 3 u. Where k is negative the
    difference is rounded, by half an ulp of a number below 8: 4 u.
    """
    roundings = 7 if angles == "float32" else 6
    with np.errstate(divide="ignore", invalid="ignore"):
        units = np.where(omegas > 0, omegas * (roundings + 2 * np.abs(np.log(omegas))), 0.0)
    return np.asarray(np.minimum(_UNIT[angles] * (furthest * units + 7.0 * (omegas > 0)), ANGLE_LIMIT))


def allowed(
    x: Floats,
    dtype: str,
    fields: Mapping[str, Any],
    *,
    exact: Floats | None = None,
    pos: Any = 0,
    inverse: bool = False,
    flushes: bool = False,
    accuracy: Accuracy = EXACT,
) -> Floats:
    """Return the largest allowed |y − exact| of each element of y; 0 outside the rotated slice.

    x is in float64, and `dtype` names its dtype before the conversion. The ulp is that of `exact`, by default
    that of the largest possible result, A·|pair|. Float positions, and integers beyond 32 bits, allow a
    larger error. `flushes`: the library may flush a subnormal result to 0.
    """
    assert fields.get("angles", "exact") == "exact", "the contract holds for exact angles only"
    x = np.asarray(x)
    assert x.dtype == np.float64, f"x is {x.dtype}; convert it to float64"
    plan = _plan_of(x.shape[-1], fields, inverse)
    (a, b), (out_a, out_b) = plan.source, plan.target
    amplitude, length = _pair_lengths(x, plan)
    with np.errstate(over="ignore", invalid="ignore"):
        slack = _angle_slack(pos, plan.sizes, dtype, fields, accuracy)
        compute = compute_dtype(dtype, accuracy)
        error = (max(_LEAST_N, ROTATED[dtype][amplitude != 1.0]) * eps(compute) + slack) * length
        bound = np.zeros(x.shape)
        rounded = np.zeros((2, 1))
        if accuracy.arithmetic == ADDED and compute != dtype and exact is not None:
            rounded = _rounded_products(x[..., a], x[..., b], exact[..., out_a], exact[..., out_b], dtype)
        for out, rounding in ((out_a, rounded[0]), (out_b, rounded[1])):
            near = (length if exact is None else np.abs(exact[..., out])) + error + rounding
            # The exact result is itself rounded to float64.
            half = 0.5 * ulp(near, dtype) + 0.51 * np.spacing(near)
            bound[..., out] = error + rounding + half + _underflow(dtype, compute, amplitude, flushes)
    return bound


def _pair_lengths(x: Floats, plan: ExactPlan) -> tuple[float, Floats]:
    """Return the factor A of a rotation, and A·|pair| for each pair that it reads."""
    (a, b), amplitude = plan.source, float(plan.amplitude)
    with np.errstate(over="ignore", invalid="ignore"):
        return amplitude, amplitude * np.hypot(x[..., a], x[..., b])


def _rounded_products(a: Floats, b: Floats, y_a: Floats, y_b: Floats, dtype: str) -> Floats:
    """Bound the error of rounding both products of each number of a rotated pair, from the exact pair."""
    squares = np.maximum(a * a + b * b, np.finfo(float).tiny)
    cos, sin = (a * y_a + b * y_b) / squares, (a * y_b - b * y_a) / squares
    halves = [0.5 * ulp(1.001 * np.abs(product), dtype) for product in (a * cos, b * sin, a * sin, b * cos)]
    return np.stack([halves[0] + halves[1], halves[2] + halves[3]])


def _underflow(dtype: str, compute: str, amplitude: float, flushes: bool) -> float:
    """Bound the error of underflow: of two products, and of a result in a dtype with a smaller range."""
    bits, lowest, _ = FORMATS[compute]
    if not flushes:
        return float(2.0 ** (lowest - bits))  # half a subnormal number for each product
    narrow = 2.0 ** FORMATS[dtype][1] if FORMATS[dtype][1] > lowest else 0.0
    return float(narrow + 2 * max(1.0, amplitude) * 2.0**lowest)


def assert_contract(
    y: ArrayLike,
    x: ArrayLike,
    pos: Any,
    *,
    dtype: str | None = None,
    seq_axis: int = -2,
    inverse: bool = False,
    flushes: bool = False,
    exact: Floats | None = None,
    accuracy: Accuracy = EXACT,
    **fields: Any,
) -> None:
    """Assert that y, a NumPy array, is x rotated by its positions, within the accuracy class.

    x holds the values that were rotated, in any dtype that holds them exactly. `dtype` names the dtype they
    were rotated in, by default y's; name it for a bfloat16 array that was widened. Pairs with a NaN or an
    infinity, and results that overflow, are not judged. `exact` saves computing the exact result again.
    The error is a `Failure` with the wrong elements; their place and values are looked for when it is read.
    """
    y, x = np.asarray(y), np.asarray(x).astype(np.float64)
    dtype = dtype or y.dtype.name
    assert y.shape == x.shape, f"the result has shape {y.shape}, x {x.shape}"
    if exact is None:
        exact = apply_definition(x, pos, seq_axis=seq_axis, inverse=inverse, **fields)
    y = y.astype(np.float64)
    if _is_within_least_bound(y, x, exact, dtype, fields, inverse):
        return
    call = {"exact": exact, "pos": pos, "inverse": inverse, "flushes": flushes}
    bound = allowed(x, dtype, fields, accuracy=accuracy, **call)
    mask = _wrong_elements(y, x, exact, bound, dtype, fields, inverse)
    if mask.any():
        arrays: dict[str, Any] = {"y": y, "x": x, "exact": exact, "bound": bound, "mask": mask}
        if x.ndim > 1:
            arrays = {name: np.moveaxis(array, seq_axis, -2) for name, array in arrays.items()}
        pairs = read_and_written_pairs(x.shape[-1], fields, inverse)[1]
        wrong = WrongResult(
            **arrays, given_pos=pos, pairs=pairs, fields=fields, inverse=inverse, dtype=dtype,
            accuracy=accuracy, flushes=flushes, allowed=allowed,
        )  # fmt: skip
        raise Failure(wrong=wrong)


def _is_within_least_bound(
    y: Floats, x: Floats, exact: Floats, dtype: str, fields: Mapping[str, Any], inverse: bool
) -> bool:
    """Return whether every error is within the smallest bound of any class. Most results need no other bound.

    It is `_LEAST_N` eps of the pair, plus half an ulp of a 16-bit result, and 0 outside the rotated slice.
    """
    compute, bound, plan = compute_dtype(dtype), np.zeros(x.shape), _plan_of(x.shape[-1], fields, inverse)
    with np.errstate(over="ignore", invalid="ignore"):
        of_pair = _LEAST_N * eps(compute) * _pair_lengths(x, plan)[1]
        for member in plan.target:
            half = 0.0 if compute == dtype else 0.5 * ulp(exact[..., member], dtype)
            bound[..., member] = of_pair + half
        return bool((np.abs(y - exact) <= bound).all())


def _wrong_elements(
    y: Floats, x: Floats, exact: Floats, bound: Floats, dtype: str, fields: Mapping[str, Any], inverse: bool
) -> NDArray[np.bool_]:
    """Return the elements beyond the bound; features outside the rotated slice have to be equal."""
    (a, b), out = read_and_written_pairs(x.shape[-1], fields, inverse)
    judged, equal = np.zeros(x.shape, dtype=bool), (y == x) | (np.isnan(y) & np.isnan(x))
    for member in out:
        judged[..., member] = np.isfinite(x[..., a]) & np.isfinite(x[..., b])
    with np.errstate(over="ignore", invalid="ignore"):
        judged &= np.abs(exact) + bound <= largest(dtype)
        wrong = judged & ~(np.abs(y - exact) <= bound)
    outside = np.setdiff1d(np.arange(x.shape[-1]), np.concatenate([a, b]))
    wrong[..., outside] = ~equal[..., outside]
    return wrong
