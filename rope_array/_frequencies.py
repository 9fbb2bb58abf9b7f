"""Frequencies in plain Python numbers: no arrays, exact where the contract says exact.

A frequency is the angle in radians that one lane (one pair of features) turns per position. RoFormer
(arXiv 2104.09864, eq. 15) takes base^(-2i/d) for lane i of d/2: a series that its width d fixes. A rule for
longer contexts (`_scaling`) makes another series of it.
"""

import struct
from collections.abc import Iterable
from decimal import Context, Decimal, localcontext
from functools import lru_cache

# A word must be right to half a unit in its last of 96 bits (29 digits) and lane i is the i-th power of a
# ratio, whose error grows with i: 60 digits leave more than 25 to spare.
_DIGITS = 60


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
