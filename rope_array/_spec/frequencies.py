"""Frequencies in plain Python numbers: no arrays, exact where the contract says exact.

A frequency is the angle in radians that one lane (one pair of features) turns per position. RoFormer
(arXiv 2104.09864, eq. 15) takes base^(-2i/d) for lane i of d/2: a series that its width d fixes. A rule for
longer contexts makes another series of it. Here is what all rules have in common; the rules themselves are in
`_scaling`, which is imported when the first of them is asked for.
"""

import struct
from collections.abc import Iterable, Sequence
from decimal import Context, Decimal, localcontext
from functools import lru_cache
from typing import Any, TypeAlias

from rope_array._errors import SpecError, short

Omegas: TypeAlias = Sequence[float]
# A word must be right to half a unit in its last of 96 bits (29 digits) and lane i is the i-th power of a
# ratio, whose error grows with i: 60 digits leave more than 25 to spare.
_DIGITS = 60


class Scaling:
    """What all rules have in common: they change nothing, unless they say so."""

    @property
    def resolved(self) -> bool:
        """Tell whether frequencies follow from the record; where not, `at_length` makes one where they do."""
        return True

    @property
    def amplitude(self) -> float:
        """The factor on cos and sin."""
        return 1.0

    def _new_base(self, base: float, width: int) -> float:
        """Return the base that the series is made of."""
        return base

    def _stretched(self, omegas: Omegas, base: float, width: int) -> Omegas:
        """Return the frequencies that the rule makes of a series."""
        return omegas

    def _at_length(self, length: int) -> "Scaling":
        """Return the rule for a sequence of `length` positions."""
        return self

    def _exact(self, series: tuple[Decimal, ...]) -> tuple[Decimal, ...] | None:
        """Return the series that real numbers give, where the rule is one of real numbers."""
        return None

    def _check_series(self, width: int, count: int) -> None:
        """Refuse a series that the rule does not fit, as far as can be seen without a length."""

    def _check_length(self) -> None:
        """Refuse a rule that waits for a length."""
        if not self.resolved:
            raise SpecError(
                f"{type(self).__name__} depends on the length of the sequence, which is never read off "
                "positions; give it first: rope.at_length(n), with n the longest sequence that keys of one "
                "cache will see."
            )

    def _settle(self, **checked: Any) -> None:
        for name, value in checked.items():
            object.__setattr__(self, name, value)


def frequencies(
    base: float, width: int, count: int, rule: Scaling | None, angles: str
) -> tuple[Decimal, ...]:
    """Return the frequencies of one series: what the angles are made of, each an exact number.

    With exact angles the default and `Linear` are real numbers; what any other rule gives is a float64, taken
    exactly. With float32 angles each is a float32, the rule applied to float32 frequencies.
    """
    if rule is not None:
        rule._check_length()
    try:
        if angles == "float32":
            return tuple(map(Decimal, _float32_series(base, width, count, rule)))
        if rule is None:
            return default_frequencies(base, width, count)
        made = default_frequencies(rule._new_base(base, width), width, count)
        if (exact := rule._exact(made)) is not None:
            return exact
        return tuple(Decimal(float(w)) for w in rule._stretched([*map(float, made)], base, width))
    except SpecError:
        raise
    except (ArithmeticError, ValueError):  # beyond floats: a power, a logarithm of 0
        raise SpecError(
            f"base {base} and scaling {short(rule)} over a width of {width} give frequencies beyond the "
            "range of floats; give values nearer to 1."
        ) from None


def _float32_series(base: float, width: int, count: int, rule: Scaling | None) -> Omegas:
    if rule is None:
        return float32_frequencies(base, width, count)
    made = float32_frequencies(rule._new_base(base, width), width, count)
    return [float32(omega) for omega in rule._stretched(made, base, width)]


def default_frequencies(base: float, width: int, count: int) -> tuple[Decimal, ...]:
    """Real numbers base^(-2i/width) for i = 0 .. count - 1 (RoFormer, eq. 15)."""
    if not count:
        return ()
    # A base below 1 gives frequencies above 1, whose digits before the point come on top.
    with localcontext(Context(prec=_DIGITS + max(0, -Decimal(base).adjusted()))):
        ratio = (Decimal(base).ln() * -2 / width).exp()
        powers = [Decimal(1)]
        while len(powers) < count:
            powers.append(powers[-1] * ratio)
        return tuple(powers)


def divided(frequencies: Iterable[Decimal], factor: float) -> tuple[Decimal, ...]:
    """Divide exact frequencies by a factor, to as many digits behind the point as they have."""
    divisor = Decimal(factor)
    return tuple(
        Context(prec=_DIGITS + max(0, omega.adjusted() - divisor.adjusted() + 1)).divide(omega, divisor)
        for omega in frequencies
    )


def float32_frequencies(base: float, width: int, count: int) -> tuple[float, ...]:
    """Round as Hugging Face's code does: exponent, power and reciprocal each to float32.

    Source: ``1.0 / (base ** (torch.arange(0, dim, 2).float() / dim))``, transformers modeling_rope_utils.
    """
    exponents = (float32(2 * i / width) for i in range(count))
    powers = [float32(float32(base) ** e) for e in exponents]
    return tuple(float32(1.0 / power) if power else float("inf") for power in powers)


def float32(value: float) -> float:
    """Round a float64 to the nearest float32, to infinity beyond its range."""
    try:
        return float(struct.unpack("f", struct.pack("f", value))[0])
    except OverflowError:
        return float("inf") if value > 0 else float("-inf")


def turns(frequencies: Iterable[Decimal], bits: int) -> tuple[int, ...]:
    """F = round(ω/2π · 2^bits): the turns per position of each lane, in units of 2^-bits turn."""
    return tuple(_turns(omega, bits) for omega in frequencies)


def _turns(omega: Decimal, bits: int) -> int:
    digits = _DIGITS + max(0, omega.adjusted())
    context = Context(prec=digits)
    product = context.divide(context.multiply(omega, Decimal(2**bits)), _two_pi(digits))
    return int(product.to_integral_value())


@lru_cache(maxsize=8)
def _two_pi(digits: int) -> Decimal:
    """2π by Machin's formula, 32 arctan(1/5) - 8 arctan(1/239), in integers with ten guard digits."""
    unit = 10 ** (digits + 10)
    scaled = 32 * _arctan_inverse(5, unit) - 8 * _arctan_inverse(239, unit)
    return Decimal(scaled).scaleb(-digits - 10, Context(prec=digits + 12))


def _arctan_inverse(x: int, unit: int) -> int:
    """Sum unit · arctan(1/x) by its Taylor series."""
    term = total = unit // x
    n = 1
    while term:
        term //= -x * x
        n += 2
        total += term // n
    return total
