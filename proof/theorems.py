"""The bounds of the contract: cos and sin, float positions, the amplitude, and the rotated pair.

An angle is cut into cells. For each cell Gappa bounds the rounding errors, Sollya the derivative, and the
largest sum is the bound. cos is even and sin is odd, as are the computed ones, so cells are of u >= 0.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from itertools import pairwise
from math import isqrt, pi
from os import cpu_count
from typing import Any, NamedTuple, TypeVar

from rope_array._spec.float32_steps import float32

from . import approximation, kernel, recorded
from .approximation import Interval
from .expressions import ProofError, Real, leaf
from .rounding import Errors, Script, size, unit

DTYPES = ("float32", "float64")
ZERO, ONE = Fraction(0), Fraction(1)
NAMES = ("cos", "sin")
T = TypeVar("T")
R = TypeVar("R")
# Positions of int32, and float positions, are at most this large.
LARGEST_POSITION = 2**31
# 4/π and π/4, rounded up.
FOUR_OVER_PI, QUARTER_PI = Fraction(1367130552, 2**30), Fraction(3373259427, 2**32)
# π to 30 digits, rounded down and up.
PI = Interval(*(Fraction(3141592653589793238462643383279 + i, 10**30) for i in (0, 1)))
# Ends of cells of ω; a sum that reaches 2 at 1.57 has a larger last bit.
FREQUENCIES = [Fraction(n, 256) for n in (0, 256, 320, 384, 402, 448, 512, 640, 768, 1024)]
# The largest frequency for which the error of a float position is much smaller than a cell.
LOCAL = 1024


class Cell(NamedTuple):
    """Bounds for the angles of a cell, each for cos and sin.

    Attributes
    ----------
    error
        Of the computed from the exact value.
    polynomial
        Of the computed value from the exact value of the rounded u.
    value
        The computed value.
    slope
        The derivative by u.
    """

    error: dict[str, Fraction]
    polynomial: dict[str, Fraction]
    value: dict[str, Interval]
    slope: dict[str, Fraction]


class Bounds(NamedTuple):
    """The proved bounds for a compute dtype.

    Attributes
    ----------
    approximation
        Of each polynomial from its function.
    cos, sin
        At int32 positions, without an amplitude.
    floats, floats_of_array
        At float positions, over max(1, ω): with the frequencies of a plan, and with those of an array.
    amplified
        At int32 positions, with an amplitude, over the amplitude.
    rotated
        Of a rotated pair from the exact pair, in eps of the compute dtype times the amplitude times the
        length of the pair, before the last rounding: for an amplitude of 1, and for any other.
    narrowed
        The same for a result of 16 bits, before it is rounded to them.
    """

    approximation: dict[str, Fraction]
    cos: Fraction
    sin: Fraction
    floats: Fraction
    floats_of_array: Fraction
    amplified: Fraction
    rotated: tuple[Fraction, Fraction]
    narrowed: tuple[Fraction, Fraction]


def prove(dtype: str, fused: bool = True) -> Bounds:
    """Prove the bounds for a compute dtype, for fused products or for none."""
    check_kernel(dtype)
    norms, cells = bound_cells(dtype, fused)
    plain = _in_threads(lambda cell: _largest(dtype, cell.error, cell.value), cells)
    scaled_errors = _in_threads(lambda cell: _amplified(dtype, cell), cells)
    scaled = _in_threads(lambda i: _largest(dtype, scaled_errors[i], cells[i].value), range(len(cells)))
    eps, worst = 2 * unit(dtype), (max(plain), max(scaled))
    # The length of the rotated pair is at most 1 + its error, and one more rounding is relative to that.
    narrowed = [error + unit(dtype) * (1 + error) for error in worst]
    return Bounds(
        approximation=norms,
        cos=max(cell.error["cos"] for cell in cells),
        sin=max(cell.error["sin"] for cell in cells),
        floats=_floats(dtype, cells, of_array=False),
        floats_of_array=_floats(dtype, cells, of_array=True),
        amplified=max(max(error.values()) for error in scaled_errors),
        rotated=(worst[0] / eps, worst[1] / eps),
        narrowed=(narrowed[0] / eps, narrowed[1] / eps),
    )


def bound_cells(
    dtype: str, fused: bool = True, above: Fraction = ZERO
) -> tuple[dict[str, Fraction], list[Cell]]:
    """Return the distances of the polynomials to cos and sin, and the bounds of the cells from `above` on."""
    code, rest = recorded.tables(dtype), recorded.remainder(dtype)
    reach = Fraction(rest.unit) * max(-rest.lowest, rest.highest)
    norms = approximation.sup_norms(code._asdict(), reach)
    ends = [edge for edge in edges(reach) if edge >= above]
    return norms, _cells(dtype, fused, code, norms, ends)


def check_kernel(dtype: str) -> None:
    """Check that the kernel has the operations of the array-api backend, in the same order."""
    text, code = kernel.source("angles"), recorded.tables(dtype)
    found = kernel.tables(text, dtype)
    for name in NAMES:
        if getattr(found, name).key() != getattr(code, name).key():
            raise ProofError(f"the kernel computes {name} of {dtype} in another way than angles.py")
    kernel.check_quadrants(text, dtype)
    kernel.check_fractions(text)
    kernel.check_amplitude(text)
    for pairing in ("half", "interleaved"):
        one, other = recorded.rotated(dtype, dtype, pairing), kernel.rotated(kernel.source("rotate"), dtype)
        if [member.key() for member in one] != [member.key() for member in other]:
            raise ProofError("the kernel rotates a pair in another way than pairs.py")


def phase_error(dtype: str, largest: int = LARGEST_POSITION) -> Fraction:
    """Return the largest error of a phase, in eighths of a turn.

    The phase is cut off below its last bit, and the fixed-point frequency is off by half a unit.
    """
    cut, word = (
        Fraction(1, 2 ** recorded.PHASE_BITS[dtype]),
        Fraction(1, 2 ** (recorded.WORD_BITS[dtype] + 1)),
    )
    return 8 * (cut + largest * word)


def edges(reach: Fraction) -> list[Fraction]:
    """Return the ends of the cells: powers of two, and in the last octaves parts of them."""
    powers = [ZERO, *(Fraction(1, 2**i) for i in range(6, 2, -1))]
    parts = [Fraction(i, 32) for i in range(5, 16)] + [Fraction(i, 64) for i in range(32, 64)]
    found = sorted({edge for edge in (*powers, *parts) if edge < reach})
    return [*found, reach]


def _in_threads(function: Callable[[T], R], items: Iterable[T]) -> list[R]:
    with ThreadPoolExecutor(cpu_count()) as pool:
        return list(pool.map(function, items))


def _cells(
    dtype: str, fused: bool, code: recorded.Tables, norms: dict[str, Fraction], ends: list[Fraction]
) -> list[Cell]:
    cells = [Interval(*both) for both in pairwise(ends)]
    # Between the exact angle and u, at float positions of a frequency up to LOCAL too.
    near = 8 * LOCAL * unit(dtype) + phase_error(dtype)
    wider = [Interval(cell.low - near, cell.high + near) for cell in cells]
    slopes = {name: approximation.derivatives(name, wider) for name in NAMES}

    def bound(i: int) -> Cell:
        found = {
            name: _cell(dtype, fused, getattr(code, name), cells[i], norms[name], slopes[name][i])
            for name in NAMES
        }
        return Cell(
            error={name: size(found[name]["all"]) for name in NAMES},
            polynomial={name: size(found[name]["polynomial"]) for name in NAMES},
            value={name: found[name]["value"] for name in NAMES},
            slope={name: size(slopes[name][i]) for name in NAMES},
        )

    return _in_threads(bound, range(len(cells)))


def _cell(
    dtype: str, fused: bool, expression: Real, cell: Interval, norm: Fraction, slope: Interval
) -> dict[str, Interval]:
    """Return intervals of the error, of the polynomial's error, and of the computed value."""
    script = Script(dtype, fused)
    script.define("u", f"rnd({script.assume('U', cell)})")
    computed, exact = script.rounded(expression, {"u": "u"})
    lost = phase_error(dtype)
    for name, interval in {
        "approximation": Interval(-norm, norm),
        "slope": slope,
        "phase": Interval(-lost, lost),
    }.items():
        script.assume(name, interval)
    script.define("polynomial", f"({computed} - {exact}) + approximation")
    script.define("all", "polynomial + slope * ((u - U) - phase)")
    script.define("value", f"{computed} + 0")
    return script.run_for("all", "polynomial", "value")


def _floats(dtype: str, cells: list[Cell], of_array: bool) -> Fraction:
    """Return the bound of cos and sin at float positions, over max(1, ω)."""
    turned = _sum_error(dtype, of_array)
    near = [cell.polynomial[name] + cell.slope[name] * turned for cell in cells for name in NAMES]
    # For larger frequencies the angle may be in another cell; the slope is at most π/4.
    largest: Fraction = max(max(cell.polynomial.values()) for cell in cells)
    return max(*near, largest / LOCAL + turned * QUARTER_PI)


def _sum_error(dtype: str, of_array: bool) -> Fraction:
    """Return the largest error of u with a fraction's angle, in eighths of a turn, over max(1, ω)."""
    found: list[Fraction] = []
    for low, high in pairwise(FREQUENCIES):
        largest = 1 + FOUR_OVER_PI * high / 2 + Fraction(1, 2**13)  # more than all errors
        found.append(_sum_error_at(dtype, low, high, of_array) + _half_ulp(dtype, largest) / max(ONE, low))
    return max(*found, _sum_error_at(dtype, FREQUENCIES[-1], None, of_array))


def _rounded(number: float, dtype: str) -> Fraction:
    """Return a float64 as a constant of a dtype."""
    return Fraction(float32(number) if dtype == "float32" else number)


def _half_ulp(dtype: str, largest: Fraction) -> Fraction:
    """Return the largest error of rounding a number up to `largest`, which is not below 1."""
    return unit(dtype) * (1 << (int(largest).bit_length() - 1))


def _sum_error_at(dtype: str, low: Fraction, high: Fraction | None, of_array: bool) -> Fraction:
    """Return the error of the sum over max(1, ω) for frequencies from `low` to `high`; None is any beyond.

    The sum is divided by max(1, ω). Its own rounding is left out, except beyond all frequencies.
    """
    script = Script(dtype, fused=True)
    largest = 1 / max(ONE, low)
    off = (unit(dtype) / 2 + phase_error(dtype)) * largest  # u is rounded, and is at most 1
    script.assume("U", Interval(-largest, largest))
    script.assume("dU", Interval(-off, off))
    script.assume("F", Interval(Fraction(-1, 2), Fraction(1, 2)))
    leaves: dict[Any, tuple[str, str]] = {"u": ("U", "dU"), "fraction": ("F", "0")}
    if of_array:
        script.assume("W", Interval(ZERO, ONE))
        script.assume("K", Interval(4 / PI.high, 4 / PI.low))
        off = max(abs(_rounded(4 / pi, dtype) - 4 / end) for end in PI)
        leaves |= {"inv_freq": ("W", "0"), 4 / pi: ("K", script.assume("dK", Interval(-off, off)))}
    else:
        script.assume("W", Interval(ZERO, FOUR_OVER_PI))
        # The float64 of ω·4/π: ω, π (whose float64 is off by 0.36 units) and the quotient are rounded.
        off = 3 * unit("float64")
        script.define("dW", f"W * {script.assume('R', Interval(-off, off))}")
        leaves["eighth_turns"] = ("W", "dW")
    expression = recorded.sum_with_fraction(dtype, of_array)
    errors = Errors(script).of(expression, leaves, last_rounded=high is None)
    return size(script.run_for(errors[1])[errors[1]])


def _amplified(dtype: str, cell: Cell) -> dict[str, Fraction]:
    """Return the errors of cos and sin with an amplitude, over the amplitude.

    A power of two as a factor changes no rounding, so the amplitude is between 1 and 2. It is rounded to
    float64: the inverse has the quotient 1/amplitude.
    """
    found = {}
    check_amplified(dtype)
    for name in NAMES:
        script = Script(dtype, fused=True)
        script.lines.append(f"c = rnd({script.assume('C', cell.value[name])});")
        script.assume("A", Interval(Fraction(1), Fraction(2)))
        script.lines.append("@double = float<ieee_64, ne>;")
        script.define("host", "double(A)")
        script.define("a", "host" if dtype == "float64" else "rnd(host)")
        script.define("product", "rnd(a * c)")
        script.define("relative", "((product - a * c) + ((a - host) + (host - A)) * c) / A")
        script.hints.append("$ A in 32;")
        found[name] = cell.error[name] + size(script.run_for("relative")["relative"])
    return found


def check_amplified(dtype: str) -> None:
    """Check that tables are multiplied by the amplitude, rounded to their dtype."""
    amplitude = leaf("amplitude", "float64")
    rounded = amplitude if dtype == "float64" else recorded.cast(amplitude, dtype)
    for name, table in recorded.amplified(dtype)._asdict().items():
        if table.key() != (leaf(name, dtype) * rounded).key():
            raise ProofError(f"{name} is not multiplied by the amplitude once")


def _largest(dtype: str, error: dict[str, Fraction], value: dict[str, Interval]) -> Fraction:
    """Return the largest error of a rotated pair over its length, before the last rounding.

    The error is at most |a|·p + |b|·q, where p is the error of the factor of a, and q the error of the factor
    of b. This is at most the length times √(p² + q²).
    """
    worst = ZERO
    for members in _rotations(dtype):
        for member in members:
            p, q = (_factor_error(dtype, member, which, error, value) for which in "ab")
            worst = max(worst, _root(p * p + q * q))
    return worst


def _rotations(dtype: str) -> list[list[Real]]:
    """Return the pairs of expressions of each layout and dtype of x, without the last rounding.

    Expressions that differ in widening a and b, which is exact, are returned once.
    """
    found = [recorded.rotated(dtype, dtype, pairing) for pairing in ("half", "interleaved")]
    if dtype == "float32":
        for out in ("float16", "bfloat16"):
            for pairing in ("half", "interleaved"):
                cast = recorded.rotated(dtype, out, pairing)
                if any(y.op != "cast" or y.dtype != out for y in cast):
                    raise ProofError(f"a rotated pair of {out} is not rounded once, at the end")
                found.append([y.operands[0] for y in cast])
    unique: dict[str, list[Real]] = {}
    for pair in found:
        key = re.sub(
            rf"\('cast', '{dtype}', \('leaf', '\w+', '([ab])'\)\)", rf"('leaf', '{dtype}', '\1')", _key(pair)
        )
        unique.setdefault(key, pair)
    return list(unique.values())


def _key(pair: list[Real]) -> str:
    return repr([member.key() for member in pair])


def _factor_error(
    dtype: str, member: Real, which: str, error: dict[str, Fraction], value: dict[str, Interval]
) -> Fraction:
    """Return the error of a rotated member that is 1 in one member of the pair and 0 in the other."""
    script = Script(dtype, fused=True)
    leaves = {}
    for name in ("a", "b"):
        number = Fraction(int(name == which))
        leaves[name] = (script.assume(name.upper(), Interval(number, number)), "0")
    for name in NAMES:
        near = Interval(value[name].low - error[name], value[name].high + error[name])
        exact = script.assume(name.upper(), near)
        leaves[name] = exact, script.assume(f"d{exact}", Interval(-error[name], error[name]))
    _, found = Errors(script).of(member, leaves, last_rounded=False)
    return size(script.run_for(found)[found])


def _root(number: Fraction) -> Fraction:
    """Return the square root, rounded up to a multiple of 2^-100."""
    return Fraction(isqrt(int(number * 4**100)) + 1, 2**100)
