"""A table of the proved bounds and the contract's: printed, and part of docs/numerics.md."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import NamedTuple

from rope_array.testing._contract import AMPLIFIED, AT_FLOATS, AT_FLOATS_OF_ARRAY, AT_INTEGERS, ROTATED

from .theorems import DTYPES, Bounds, prove


class Row(NamedTuple):
    """A quantity, its proved bound and the contract's."""

    quantity: str
    proved: Fraction
    contract: float

    @property
    def holds(self) -> bool:
        return self.proved <= Fraction(self.contract)


def rows() -> list[Row]:
    """Prove the bounds of both compute dtypes."""
    return [row for dtype in DTYPES for row in rows_of(dtype, prove(dtype))]


def rows_of(dtype: str, bounds: Bounds) -> list[Row]:
    one, other = ROTATED[dtype]
    found = [
        Row(f"{dtype}: cos", bounds.cos, AT_INTEGERS[dtype]),
        Row(f"{dtype}: sin", bounds.sin, AT_INTEGERS[dtype]),
        Row(f"{dtype}: cos and sin at float positions, over max(1, θ)", bounds.floats, AT_FLOATS[dtype]),
        Row(
            f"{dtype}: the same with frequencies in an array of {dtype}",
            bounds.floats_of_array,
            AT_FLOATS_OF_ARRAY[dtype],
        ),
        Row(
            f"{dtype}: cos and sin with an amplitude, over the amplitude", bounds.amplified, AMPLIFIED[dtype]
        ),
        Row(f"{dtype}: a pair, in eps · length", bounds.rotated[0], one),
        Row(f"{dtype}: a pair with an amplitude, in eps · amplitude · length", bounds.rotated[1], other),
    ]
    if dtype == "float32":
        one, other = ROTATED["bfloat16"]
        found += [
            Row("16 bits: a pair, in eps · length", bounds.narrowed[0], one),
            Row("16 bits: a pair with an amplitude, in eps · amplitude · length", bounds.narrowed[1], other),
        ]
    return found


def table(found: list[Row]) -> str:
    """Return rows as a table of Markdown; bounds are rounded up to three digits."""
    lines = ["| Quantity | Proved | Contract |", "|---|---|---|"]
    for row in found:
        mark = "" if row.holds else " **exceeded**"
        lines.append(f"| {row.quantity} | {shown(row.proved)} | {row.contract:g}{mark} |")
    return "\n".join(lines)


def shown(number: Fraction) -> str:
    """Return a positive number, rounded up to three digits."""
    exponent = math.floor(math.log10(number)) - 2
    digits = math.ceil(number / Fraction(10) ** exponent)
    return f"{float(digits * Fraction(10) ** exponent):.3g}"
