"""An independent oracle in mpmath: 150 digits, one element at a time, rounded to float64 once at the end.

It shares no code with the package or with the suite's definition, and confirms both.
"""

from __future__ import annotations

import json
import operator
from collections.abc import Iterable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import mpmath

# Not mpmath.mp, whose precision other code may set.
CONTEXT = mpmath.MPContext()
CONTEXT.dps = 150

GOLDEN = Path(__file__).with_name("golden")


def real(value: Any) -> Any:
    """Return the exact value of an int, float or NumPy scalar as an mpf; an mpf unchanged."""
    if isinstance(value, CONTEXT.mpf):
        return value
    if hasattr(value, "__index__"):
        return CONTEXT.mpf(operator.index(value))
    return CONTEXT.mpf(float(value))


def fraction(value: Any) -> Fraction:
    """The exact value of an mpf as a Fraction."""
    sign, mantissa, exponent, _ = value._mpf_
    magnitude = int(mantissa) * Fraction(2) ** int(exponent)
    return -magnitude if sign else magnitude


def to_float(value: Any) -> float:
    """The float64 nearest to an mpf; Fraction rounds correctly in the subnormal range too."""
    return float(fraction(value))


def frequencies(rotary_dim: int, base: float = 10000.0) -> list[Any]:
    """base^(-2i/d) as mpf, one for each pair."""
    return [CONTEXT.power(real(base), CONTEXT.mpf(-2 * i) / rotary_dim) for i in range(rotary_dim // 2)]


def exact_cos_sin(pos: Any, omega: Any) -> tuple[Any, Any]:
    """cos(pos * omega) and sin(pos * omega) as mpf."""
    angle = real(pos) * real(omega)
    return CONTEXT.cos(angle), CONTEXT.sin(angle)


def cos_sin(pos: Any, omega: Any) -> tuple[float, float]:
    """cos(pos * omega) and sin(pos * omega), each the nearest float64."""
    cos, sin = exact_cos_sin(pos, omega)
    return to_float(cos), to_float(sin)


def pair(pairing: str, i: int, rotary_dim: int, rotary_start: int) -> tuple[int, int]:
    """Return the two features of a pair."""
    first, second = {"interleaved": (2 * i, 2 * i + 1), "half": (i, i + rotary_dim // 2)}[pairing]
    return rotary_start + first, rotary_start + second


def exact_rotate(
    x: Iterable[Any],
    pos: Any,
    *,
    base: float = 10000.0,
    rotary_dim: int | None = None,
    rotary_start: int = 0,
    pairing: str = "interleaved",
    out_pairing: str | None = None,
    inv_freq: Sequence[Any] | None = None,
    attention_factor: float | None = None,
    inverse: bool = False,
) -> list[Any]:
    """Rotate one vector x to one position, as mpf; the fields have the definition's names."""
    values = [real(value) for value in x]
    width = len(values) - rotary_start if rotary_dim is None else rotary_dim
    omegas = frequencies(width, base) if inv_freq is None else inv_freq
    amplitude = real(1 if attention_factor is None else attention_factor)
    rotated_values = list(values)
    for i in range(width // 2):
        source = pair(pairing, i, width, rotary_start)
        target = pair(out_pairing or pairing, i, width, rotary_start)
        factor = amplitude * CONTEXT.expj(real(pos) * real(omegas[i]))
        if inverse:
            source, target, factor = target, source, 1 / factor
        rotated = CONTEXT.mpc(values[source[0]], values[source[1]]) * factor
        rotated_values[target[0]], rotated_values[target[1]] = rotated.real, rotated.imag
    return rotated_values


def rotate(x: Iterable[Any], pos: Any, **fields: Any) -> list[float]:
    """Rotate one vector x to one position; round each element to the nearest float64."""
    return [to_float(value) for value in exact_rotate(x, pos, **fields)]


def golden(name: str) -> list[dict[str, Any]]:
    """Return the cases of one golden file, with hexadecimal results as floats."""
    cases = json.loads((GOLDEN / f"{name}.json").read_text(encoding="utf-8"))["cases"]
    for row in (row for case in cases for row in case["rows"]):
        row.update({key: [float.fromhex(text) for text in row[key]] for key in row.keys() - {"pos"}})
    return list(cases)
