"""Sollya: bounds of the approximation errors, ranges of the derivatives, and fits to compare with.

`supnorm` and `evaluate` return intervals that contain the result, by interval arithmetic and, for the norm, a
verified decomposition of the error into sums of squares.
"""

from __future__ import annotations

import re
from fractions import Fraction
from typing import NamedTuple

from .expressions import ProofError, Real
from .tools import run

FUNCTIONS = {"cos": "cos(pi/4*x)", "sin": "sin(pi/4*x)"}
DERIVATIVES = {"cos": "-pi/4*sin(pi/4*x)", "sin": "pi/4*cos(pi/4*x)"}
_FORMATS = {"float32": "SG", "float64": "D"}


class Interval(NamedTuple):
    low: Fraction
    high: Fraction


def dyadic(number: Fraction | float) -> str:
    """Return a number with a power of two as denominator in the form 3b-2 of Sollya and Gappa: 3·2^-2."""
    fraction = Fraction(number)
    bits = fraction.denominator.bit_length() - 1
    if fraction.denominator != 1 << bits:
        raise ProofError(f"{number} has no finite binary form")
    return f"{fraction.numerator}b-{bits}" if bits else str(fraction.numerator)


def from_dyadic(text: str) -> Fraction:
    """Return the number of a text such as 3b-2 or 3."""
    mantissa, _, exponent = text.strip().partition("b")
    return Fraction(int(mantissa)) * Fraction(2) ** int(exponent or 0)


def coefficients(expression: Real, symbol: str) -> dict[int, Fraction]:
    """Return a polynomial in one leaf, without roundings, as factors of its powers."""
    if expression.op == "leaf":
        return {1: Fraction(1)}
    if expression.op == "constant":
        return {0: Fraction(expression.operands[0])}
    one, other = (coefficients(operand, symbol) for operand in expression.operands)
    found: dict[int, Fraction] = {}
    if expression.op == "mul":
        for i, c in one.items():
            for j, d in other.items():
                found[i + j] = found.get(i + j, Fraction(0)) + c * d
    elif expression.op in ("add", "sub"):
        sign = -1 if expression.op == "sub" else 1
        found = {i: one.get(i, Fraction(0)) + sign * other.get(i, Fraction(0)) for i in {*one, *other}}
    else:
        raise ProofError(f"{expression.op} is no operation of a polynomial")
    return found


def _sollya(script: list[str]) -> list[str]:
    lines = ["prec = 200!;", "display = dyadic!;", *script, "quit;"]
    return [line for line in run("sollya", "\n".join(lines)).splitlines() if line.strip()]


def _number(text: Fraction) -> str:
    """Return a number as Sollya reads it: exactly."""
    return f"({text.numerator} / {text.denominator})"


def _intervals(lines: list[str]) -> list[Interval]:
    found = []
    for line in lines:
        match = re.fullmatch(r"\[(.+);(.+)\]", line.strip())
        if not match:
            raise ProofError(f"Sollya returned {line!r}")
        found.append(Interval(*map(from_dyadic, match.groups())))
    return found


def sup_norms(polynomials: dict[str, Real], reach: Fraction) -> dict[str, Fraction]:
    """Return the largest distance of each polynomial to its function for |u| <= reach, rounded up."""
    script = []
    for name, expression in polynomials.items():
        terms = coefficients(expression, "u").items()
        polynomial = " + ".join(f"{_number(c)}*x^{power}" for power, c in sorted(terms) if c)
        script.append(f"supnorm({polynomial}, {FUNCTIONS[name]}, [0;{_number(reach)}], absolute, 2^(-10));")
    return {name: norm.high for name, norm in zip(polynomials, _intervals(_sollya(script)), strict=True)}


def derivatives(name: str, cells: list[Interval]) -> list[Interval]:
    """Return an interval for each cell that contains the function's derivative there."""
    ends = (f"[{_number(max(cell.low, Fraction(0)))};{_number(cell.high)}]" for cell in cells)
    return _intervals(_sollya([f"evaluate({DERIVATIVES[name]}, {end});" for end in ends]))


def fits(dtype: str) -> dict[str, Fraction]:
    """Return the sup norms of Sollya's own fits, with as many coefficients of the same format."""
    number = 4 if dtype == "float32" else 7
    formats = f"[|{_FORMATS[dtype]}...|]"
    powers = {
        "cos": (", ".join(str(2 * i) for i in range(1, number + 1)), ", 1"),
        "sin": (", ".join(str(2 * i + 1) for i in range(number)), ""),
    }
    script = []
    for name, (monomials, fixed) in powers.items():
        # The powers have no constant, so 0 is left out: there the errors of all fits are 0.
        fit = f"fpminimax({FUNCTIONS[name]}, [|{monomials}|], {formats}, [2^(-10);1]{fixed}, absolute)"
        script.append(f"supnorm({fit}, {FUNCTIONS[name]}, [0;1], absolute, 2^(-10));")
    return {name: norm.low for name, norm in zip(powers, _intervals(_sollya(script)), strict=True)}
