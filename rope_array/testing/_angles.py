"""Cosines and sines of exact angles, and rotations by them, for the definition.

A float64 product pos * omega is too coarse to judge with, so angles are decimals, reduced modulo 2 pi before
they are rounded. A table has each number with its rounding error, and products are added in twice the
precision.
"""

from __future__ import annotations

import operator
from decimal import (
    ROUND_HALF_EVEN,
    Context,
    Decimal,
    DivisionByZero,
    InvalidOperation,
    Overflow,
    localcontext,
)
from functools import lru_cache
from math import factorial, inf, isfinite
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from . import _rules
from ._rules import PI

Floats: TypeAlias = NDArray[np.float64]
# Numbers, and their halves of at most 26 bits each.
_Split: TypeAlias = tuple[Floats, Floats, Floats]


def _context(digits: int) -> Context:
    # Set every attribute: the others would come from decimal.DefaultContext, which a caller may change.
    traps = [InvalidOperation, DivisionByZero, Overflow]
    limits = {"Emin": -999_999, "Emax": 999_999, "capitals": 1, "clamp": 0}
    return Context(prec=digits, rounding=ROUND_HALF_EVEN, flags=[], traps=traps, **limits)


# An angle below 1e40 keeps about 80 decimals in the reduction. Products of two float64 are unlikely to be
# within 1e-50 of a multiple of pi/2; the remaining 30 digits are more than the rounding needs.
REDUCTION = _context(120)
_ANGLE_LIMIT = Decimal("1e40")
with localcontext(REDUCTION):
    _HALF_PI = PI / 2
    _TWO_OVER_PI = 2 / PI
# Series are summed in integers, twice as fast as decimals: a number is an integer and the number of
# its bits after the point. 128 of them (38 digits) are more than twice a float64's precision.
_Fixed: TypeAlias = tuple[int, int]
_BITS = 128
# Coefficients of the series of cos and of sin / angle, the last first. 16 terms: (pi/4)^32 / 32! is 2e-39.
_TERMS = tuple(
    ((-1) ** n * (1 << _BITS) // factorial(2 * n), (-1) ** n * (1 << _BITS) // factorial(2 * n + 1))
    for n in reversed(range(16))
)
# The terms that an angle below 10^-size needs, by size: 11 below 0.1, as 0.1^22 / 22! is 9e-44.
_TERMS_BELOW = tuple(_TERMS[-terms:] for terms in (16, 11, 8, 6, 5, 4, 4))


# ---- frequencies ----


def exact(number: Any) -> Decimal:
    """Return the exact value of an integer, a Decimal, or a float of at most 64 bits."""
    if isinstance(number, bool | np.bool_):
        raise TypeError(f"need a number, got the truth value {number!r}")
    if isinstance(number, Decimal):
        value = number
    elif hasattr(number, "__index__"):
        value = Decimal(operator.index(number))
    else:
        value = Decimal.from_float(float(number))
        if value.is_finite() and float(value) != number:
            raise ValueError(f"{number!r} is not exactly a float64")
    if not value.is_finite():
        raise ValueError(f"need a finite number, got {number!r}")
    return value


@lru_cache(maxsize=256)
def series(width: int, number: Decimal) -> tuple[Decimal, ...]:
    with localcontext(REDUCTION):
        ratio = (-2 * _rules.ln(number) / width).exp() if width else Decimal(1)
        powers = [Decimal(1)]
        for _ in range(width // 2 - 1):
            powers.append(powers[-1] * ratio)
        del powers[width // 2 :]
    # Drop the last ten digits, which hold the error of the logarithm and products, so that 0.01 is 0.01.
    with localcontext(_context(110)):
        return tuple((+power).normalize() for power in powers)


# ---- tables of cos and sin ----


def table_of(pos: ArrayLike, omegas: tuple[Decimal, ...], amplitude: Decimal) -> Floats:
    """Return cos, sin (times the amplitude) and their rounding errors, shape pos.shape + (pairs, 4)."""
    # An object array keeps integers beyond 2^53 in a list that holds a float too.
    array = np.asarray(pos) if hasattr(pos, "__array__") else np.array(pos, dtype=object)
    flat = array.ravel().tolist()
    row_of = {value: row for row, value in enumerate(dict.fromkeys(flat))}
    rows = [_row(exact(value), omegas, amplitude) for value in row_of]
    table = np.array(rows, dtype=np.float64).reshape(len(rows), len(omegas), 4)
    chosen = np.array([row_of[value] for value in flat], dtype=np.intp).reshape(array.shape)
    return np.asarray(table[chosen])


@lru_cache(maxsize=2**14)  # the suite repeats the same positions for every dtype
def _row(pos: Decimal, omegas: tuple[Decimal, ...], amplitude: Decimal) -> list[list[float]]:
    factor = amplitude.as_integer_ratio()
    rounded = [(_rounded(cos, factor), _rounded(sin, factor)) for cos, sin in _turns(pos, omegas)]
    if not all(isfinite(near) for pair in rounded for near, _ in pair):
        raise ValueError(f"attention_factor {amplitude:.3e} makes cos and sin overflow: beyond float64")
    return [[cos, sin, cos_rest, sin_rest] for (cos, cos_rest), (sin, sin_rest) in rounded]


@lru_cache(maxsize=2**14)  # the same positions are repeated with several amplitudes
def _turns(pos: Decimal, omegas: tuple[Decimal, ...]) -> list[tuple[_Fixed, _Fixed]]:
    with localcontext(REDUCTION):
        return [_cos_sin_of(*_reduced(pos * omega)) for omega in omegas]


def _reduced(angle: Decimal) -> tuple[int, Decimal]:
    """Return the quadrant, 0 .. 3, and the remainder of the angle, at most pi/4 in size."""
    if abs(angle) > _ANGLE_LIMIT:
        raise ValueError(f"an angle of {angle:.3e} radians is too large; the limit is {_ANGLE_LIMIT}")
    quarters = (angle * _TWO_OVER_PI).to_integral_value()
    return int(quarters) & 3, _HALF_PI.fma(-quarters, angle)


def _cos_sin_of(quadrant: int, angle: Decimal) -> tuple[_Fixed, _Fixed]:
    """Return the cosine and sine of quadrant * pi/2 + angle."""
    size = max(-1 - angle.adjusted(), 0)  # the angle is below 10^-size
    bits = _BITS + 10 * size // 3  # a small angle, and so its sine, keeps its precision
    fixed = int(angle * (1 << bits))
    square = fixed * fixed >> 2 * bits - _BITS
    (cos, sin), *terms = _TERMS_BELOW[min(size, len(_TERMS_BELOW) - 1)]
    for cos_term, sin_term in terms:
        cos, sin = (cos * square >> _BITS) + cos_term, (sin * square >> _BITS) + sin_term
    sin, sin_bits = sin * fixed, _BITS + bits
    return (
        ((cos, _BITS), (sin, sin_bits)),
        ((-sin, sin_bits), (cos, _BITS)),
        ((-cos, _BITS), (-sin, sin_bits)),
        ((sin, sin_bits), (-cos, _BITS)),
    )[quadrant]


def _rounded(fixed: _Fixed, factor: tuple[int, int]) -> tuple[float, float]:
    """Return a number times a fraction, rounded to float64, and the rounding error."""
    numerator, denominator = fixed[0] * factor[0], factor[1] << fixed[1]
    try:
        near = numerator / denominator
    except OverflowError:
        return inf, 0.0
    near_numerator, near_denominator = near.as_integer_ratio()
    difference = numerator * near_denominator - near_numerator * denominator
    return near, difference / (denominator * near_denominator)


# ---- the product ----


def rotate_pairs(first: Floats, second: Floats, table: Floats) -> tuple[Floats, Floats]:
    """Return both results of every pair; `first` and `second` have the shape rows + (pairs,)."""
    cos, sin, cos_rest, sin_rest = np.moveaxis(table, -1, 0)
    # Scale pairs to near 1, where the error terms of products neither overflow nor underflow.
    exponent = np.frexp(np.maximum(abs(first), abs(second)))[1]
    finite = np.isfinite(first) & np.isfinite(second)
    with np.errstate(all="ignore"):
        a, b = np.ldexp(first, -exponent), np.ldexp(second, -exponent)
        c, s, x, y = ((value, *_split(value)) for value in (cos, sin, a, b))
        sin_y, sin_y_rest = _product(s, y)
        rotated_a = _sum(_product(c, x), (-sin_y, -sin_y_rest), cos_rest * a - sin_rest * b)
        rotated_b = _sum(_product(c, y), _product(s, x), cos_rest * b + sin_rest * a)
        rotated = np.ldexp(rotated_a, exponent), np.ldexp(rotated_b, exponent)
        if finite.all():
            return rotated
        plain_a, plain_b = first * cos - second * sin, second * cos + first * sin
    return np.where(finite, rotated[0], plain_a), np.where(finite, rotated[1], plain_b)


def _sum(left: tuple[Floats, Floats], right: tuple[Floats, Floats], correction: Floats) -> Floats:
    """Add two products with their errors, and a small rest; round once."""
    (left_near, left_rest), (right_near, right_rest) = left, right
    total = left_near + right_near
    shifted = total - left_near
    total_rest = (left_near - (total - shifted)) + (right_near - shifted)
    return np.asarray(total + (total_rest + (left_rest + right_rest + correction)))


def _product(a: _Split, b: _Split) -> tuple[Floats, Floats]:
    """Multiply in float64; the second result is the exact error of that rounding."""
    (whole_a, a_high, a_low), (whole_b, b_high, b_low) = a, b
    product = whole_a * whole_b
    return product, ((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low


def _split(a: Floats) -> tuple[Floats, Floats]:
    """Split into two halves of at most 26 bits each, so that products of halves are exact."""
    scaled = a * 134217729.0
    high = scaled - (scaled - a)
    return high, a - high
