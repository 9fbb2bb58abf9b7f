"""Frequencies in plain Python numbers: no arrays, exact where the contract demands it.

A frequency ω is the angle in radians that one pair of features rotates by per position. RoFormer
(arXiv 2104.09864, eq. 15) takes base^(-2i/d) for pair i of d/2: a series that its width d fixes. A rule for
longer contexts computes another series from it. `Scaling` is the base class of all rules; the rules are in
`scaling`, which is imported when a program asks for the first of them.
"""

import math
from collections.abc import Sequence
from dataclasses import fields
from decimal import ROUND_FLOOR, ROUND_HALF_EVEN, Context, Decimal, localcontext
from functools import cache
from typing import Any, ClassVar, TypeAlias

from rope_array._errors import SpecError, short

from .float32_steps import float32, inverses, powers
from .validation import Check

Omegas: TypeAlias = Sequence[float]
# Turns must be right to half a unit in the last of 96 bits (29 digits), and frequency i is the i-th power of
# a ratio, whose error grows with i: 60 digits leave more than 25 to spare.
_DIGITS = 60
# Frequencies and their divisors are below 1e309, so exponents stay below 620; more counts as infinity.
_LARGEST_EXPONENT = 700
RULE_REMEDY = (
    "a rule, such as Linear(factor=4.0), or the frequencies of a rule of your own, as "
    "dataclasses.replace(rope, scaling=None, inv_freq=..., attention_factor=...)"
)


def _context(digits: int, Emax: int = 999_999) -> Context:
    """Return a decimal context with every attribute set: callers may change the defaults of the others."""
    limits = {"Emin": -999_999, "Emax": Emax, "capitals": 1, "clamp": 0}
    return Context(prec=digits, rounding=ROUND_HALF_EVEN, flags=[], traps=[], **limits)


class Scaling:
    """A rule that changes nothing: the base class, whose methods each rule overrides in part.

    `_rope_type` is the rule's name in configs, and its fields are its keys there; "" if no config has it.
    `_example` has the arguments of a rule that an error suggests.
    """

    _rope_type: ClassVar[str] = ""
    _example: ClassVar[str] = ""

    def __repr__(self) -> str:
        values = {field.name: getattr(self, field.name) for field in fields(self)}  # type: ignore[arg-type]
        text = ", ".join(f"{name}={value!r}" for name, value in values.items() if value is not None)
        return f"{type(self).__name__}({text})"

    @property
    def resolved(self) -> bool:
        """Whether the record gives frequencies; if not, `_at_length` returns a rule that does."""
        return True

    @property
    def amplitude(self) -> float:
        """The factor on cos and sin."""
        return 1.0

    def _new_base(self, base: float, width: int) -> float:
        """Return the base of the series."""
        return base

    def _stretched(self, omegas: Omegas, base: float, width: int) -> Omegas:
        """Return the frequencies of the rule for a series."""
        return omegas

    def _float32_series(self, base: float, width: int, count: int) -> Omegas:
        """Return the frequencies of the rule for `count` pairs, by the float32 steps of Hugging Face's code.

        A rule that Hugging Face does not have is applied to float32 frequencies.
        """
        omegas = inverses(powers(self._new_base(base, width), width, count))
        return self._stretched(omegas, base, width)

    def _at_length(self, length: int) -> "Scaling":
        """Return the rule for a sequence of `length` positions."""
        return self

    def _representative(self, length: int) -> int:
        """Return one length for all lengths at which the rule is the same. Dynamo traces it."""
        return 1

    def _exact(self, series: tuple[Decimal, ...]) -> tuple[Decimal, ...] | None:
        """Return the frequencies as real numbers, None if the rule is stated in float64."""
        return None

    def _check_series(self, width: int, count: int) -> None:
        """Refuse a series that the rule does not fit, as far as the rule knows without a length."""

    def _check_length(self) -> None:
        """Refuse a rule that has no length yet but needs one."""
        if not self.resolved:
            raise SpecError(
                f"{type(self).__name__} depends on the length of the sequence, which is never read off "
                "positions; give it first: rope.at_length(n), with n the longest sequence that keys of one "
                "cache will see."
            )

    def _set_fields(self, **values: Any) -> None:
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def _check_fields(self, check: Check, *names: str, optional: bool = False) -> None:
        """Replace each field by its checked value; an optional one may be None."""
        for name in names:
            value = getattr(self, name)
            if not (optional and value is None):
                object.__setattr__(self, name, check(name, value))


def frequencies(
    base: float, width: int, count: int, rule: Scaling | None, angles: str
) -> tuple[Decimal, ...]:
    """Return the frequencies of one series, each an exact number.

    With exact angles the default and `Linear` give real numbers; every other rule gives float64 numbers,
    taken exactly. With float32 angles they are the float32 numbers of Hugging Face's code.
    """
    used = rule or Scaling()
    try:
        new_base = used._new_base(base, width)
        if math.isinf(new_base):
            raise OverflowError
        if angles == "float32":
            narrow = used._float32_series(base, width, count)
            return tuple(Decimal.from_float(float32(omega)) for omega in narrow)
        series = default_frequencies(new_base, width, count)
        exact = series if rule is None else rule._exact(series)
        if exact is not None:
            return exact
        return tuple(
            Decimal.from_float(float(w)) for w in used._stretched([*map(float, series)], base, width)
        )
    except SpecError:
        raise
    except (ArithmeticError, ValueError):  # beyond floats: a power, a logarithm of 0
        scaling = "" if rule is None else f" and scaling {short(rule)}"
        raise SpecError(
            f"base {base}{scaling} over a width of {width} give frequencies beyond the range of floats; give "
            "values nearer to 1."
        ) from None


def default_frequencies(base: float, width: int, count: int) -> tuple[Decimal, ...]:
    """Real numbers base^(-2i/width) for i = 0 .. count - 1 (RoFormer, eq. 15)."""
    if not count:
        return ()
    # A base below 1 gives frequencies above 1, which need digits before the point too.
    exact = Decimal.from_float(base)
    digits = _DIGITS + max(0, -exact.adjusted())
    with localcontext(_context(digits, Emax=_LARGEST_EXPONENT)):
        ratio = (exact.ln() * -2 / width).exp()
        powers = [Decimal(1)]
        while len(powers) < count:
            powers.append(powers[-1] * ratio)
        return tuple(powers)


def divided(frequencies: Sequence[Decimal], factor: float) -> tuple[Decimal, ...]:
    """Divide exact frequencies by a factor, to as many digits after the point as they have."""
    divisor = Decimal.from_float(factor)
    with localcontext(_context(_digits(frequencies, 1 - divisor.adjusted()))):
        return tuple([omega / divisor for omega in frequencies])


def turns(frequencies: Sequence[Decimal], *bits: int) -> list[list[int]]:
    """Return the turns per position of each pair as integers, F = round(ω/2π · 2^b), for bits b.

    Of ω = 1, such as pair 0::

        ω/2π     0.159154943091895335768883763373
        b = 64            2935890503282001226   units of 2^-64 turn
        b = 96  12609553696233175933233255924   units of 2^-96 turn
    """
    digits = _digits(frequencies)
    with localcontext(_context(digits)):
        two_pi = _two_pi(digits)
        exact = [omega / two_pi for omega in frequencies]
        return [[int((number * 2**b).to_integral_value()) for number in exact] for b in bits]


def turns_of_floats(frequencies: Sequence[float], *bits: int) -> list[list[int]]:
    """Return `turns` of finite floats, in less time: a float is a ratio of integers."""
    ratios = [omega.as_integer_ratio() for omega in frequencies]
    largest = max((abs(n).bit_length() for n, _ in ratios), default=0)
    # The quotient is off by less than 2^-70 units; no float is nearer to a tie (tests/test_turns.py).
    places = largest + max(bits) + 70
    inverse = inverse_two_pi(places)
    shifts = [places + d.bit_length() - 1 for _, d in ratios]
    return [
        [((n * inverse >> shift - b - 1) + 1) >> 1 for (n, _), shift in zip(ratios, shifts, strict=True)]
        for b in bits
    ]


@cache  # one entry for each size of a numerator, and so at most some thousand
def inverse_two_pi(bits: int) -> int:
    """Return floor(2^bits / 2π)."""
    digits = bits * 3 // 10 + 30  # log10(2) is 0.301; the digits beyond decide the last bit
    with localcontext(_context(digits)):
        return int((Decimal(2**bits) / _two_pi(digits)).to_integral_value(ROUND_FLOOR))


def _digits(frequencies: Sequence[Decimal], shift: int = 0) -> int:
    """Return the digits of a context in which the largest ω·10^shift has `_DIGITS` after the point."""
    return _DIGITS + max(0, *[omega.adjusted() + shift for omega in frequencies], 0)


@cache  # at most 309 entries: a frequency is below 1e309
def _two_pi(digits: int) -> Decimal:
    """2π by Machin's formula, 32 arctan(1/5) - 8 arctan(1/239), in integers with ten guard digits."""
    unit = 10 ** (digits + 10)
    scaled = 32 * _arctan_inverse(5, unit) - 8 * _arctan_inverse(239, unit)
    return Decimal(scaled).scaleb(-digits - 10, _context(digits + 12))


def _arctan_inverse(x: int, unit: int) -> int:
    """Sum unit · arctan(1/x) by its Taylor series."""
    term = total = unit // x
    n = 1
    while term:
        term //= -x * x
        n += 2
        total += term // n
    return total
