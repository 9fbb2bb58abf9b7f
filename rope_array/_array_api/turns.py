"""Radians as turns: an array of floats divided by 2π in integers, rounded once. Array API only.

A float is a rational number, so its quotient by 2π modulo one turn has exact digits (Payne and Hanek, "Radian
reduction for trigonometric functions", 1983). They are multiplied out in digits of b bits: 28, or 14 where
integers have 32 bits. The exponent e places the first digit of the float:

        x0 x1 x2               the float over 2^(b·e): x0 at least 1, and two to five digits in all
    ×   L(e) L(e+1) L(e+2)…    the digits of 1/2π from the e-th on; earlier digits give whole turns
    =   t1 t2 t3 t4 t5         t_c: the sum of x_j·L(e+c-1-j) over j, and the carry of t_(c+1)

The result is rounded to the nearest unit of the word, from so many columns that the columns left out cannot
change it: no float is that near to a tie (`tests/test_turns.py` shows it by continued fractions). So a word
has the bits of `_spec.frequencies.turns` for the same float.
"""

from math import inf, nan
from typing import Any, NamedTuple

from rope_array._spec.frequencies import inverse_two_pi
from rope_array._spec.plan import Constants

from .ops import ArrayOps

# 1/2π to more places than the last digit of the largest float reads.
_PLACES = 1260
_INVERSE = inverse_two_pi(_PLACES)


class Radix(NamedTuple):
    """How floats of one dtype are written in digits.

    Attributes
    ----------
    bits
        Of a digit.
    digits
        Of a float.
    first, last
        The smallest and the largest e.
    margin
        The columns left out are less than 2^-margin units of the word.
    """

    bits: int
    digits: int
    first: int
    last: int
    margin: int

    def columns(self, word_bits: int) -> int:
        """Return the number of columns that a word needs."""
        # The columns left out are below digits · 2^bits at the place of the last column.
        return -(-(word_bits + self.margin + self.bits + self.digits.bit_length()) // self.bits)

    def limbs(self, columns: int) -> Constants:
        """Return the digits of 1/2π that products read, after zeros for the digits before the point."""
        zeros, places = self.digits - 1 - self.first, range(1, self.last + columns + 1)
        digits = (_INVERSE >> _PLACES - self.bits * place & 2**self.bits - 1 for place in places)
        return Constants([0] * zeros + [*digits])

    def scales(self) -> Constants:
        """Return 2^(-bits·e) for each e."""
        return Constants([2.0 ** (-self.bits * e) for e in range(self.first, self.last + 1)])


# By whether floats are float64, and the bits of a digit. Floats below 2^(bits·first) are 0 in every word.
_RADIX = {
    (False, 28): Radix(28, 2, -4, 4, 36),
    (False, 14): Radix(14, 3, -8, 9, 36),
    (True, 28): Radix(28, 3, -4, 36, 67),
    (True, 14): Radix(14, 5, -8, 73, 67),
}
_LIMBS = {(key, bits): r.limbs(r.columns(bits)) for key, r in _RADIX.items() for bits in (32, 64, 96)}
_SCALES = {key: r.scales() for key, r in _RADIX.items()}


class Turns(NamedTuple):
    """Radians as a word of turns modulo 1.

    Attributes
    ----------
    digits
        The digits of the word from its top, as signed integers of 0 and more. Zeros pad the last digit.
    bits
        Of a digit.
    lost
        The radians less the number that was read: 0, or below 2^-112 for floats below it. It has the
        derivative 1 by the radians, which integers lack, and is NaN for NaN and infinities.
    """

    digits: list[Any]
    bits: int
    lost: Any


def turns(radians: Any, word_bits: int, ops: ArrayOps, added: list[int] | None = None) -> Turns:
    """Return round(radians/2π · 2^word_bits), plus integers `added` along the last axis, modulo 2^word_bits.

    `radians` are float32 or float64; a word has 32, 64 or 96 bits.
    """
    key = "float64" in str(radians.dtype), 28 if ops.has_int64 and not ops.is_exported else 14
    radix, limbs = _RADIX[key], _LIMBS[key, word_bits]
    digits, place, lost = _read(radians, key, ops)
    count, kept = radix.columns(word_bits), -(-word_bits // radix.bits)
    # By the index of a digit of 1/2π: c - j for digit j in column c.
    factors = {
        m: ops.look_up(limbs, place + (m + radix.digits - 2), digits[0].dtype)
        for m in range(2 - radix.digits, count + 1)
    }
    half_column, half_bit = divmod(
        radix.bits * count - word_bits - 1, radix.bits
    )  # of half a unit, from below
    words: list[Any] = []
    carry: Any = None
    for c in range(count, 0, -1):
        column = digits[0] * factors[c]
        for j in range(1, radix.digits):
            column = column + digits[j] * factors[c - j]
        if c == count - half_column:
            column = column + 2**half_bit
        if carry is not None:
            column = column + carry
        if added is not None and c <= kept:
            column = column + _added_digits(added, word_bits, c, radix.bits, column, ops)
        carry = _shift(column, radix.bits, ops)
        if c <= kept:
            words.append(column - carry * 2**radix.bits)
    padding = radix.bits * kept - word_bits
    words[0] = ops.right_shift(words[0], padding) * 2**padding
    return Turns(words[::-1], radix.bits, lost)


def _read(radians: Any, key: tuple[bool, int], ops: ArrayOps) -> tuple[list[Any], Any, Any]:
    """Return the digits of floats, with their sign; the place of each float's e; and `Turns.lost`."""
    xp, radix, dtype = ops.xp, _RADIX[key], radians.dtype
    integer = xp.int64 if ops.has_int64 and (key[0] or radix.bits == 28) else xp.int32
    magnitude, smallest = abs(radians), 2.0 ** (radix.bits * radix.first)
    zeros = xp.zeros_like(radians)
    is_read = (magnitude > smallest) & (magnitude < inf)
    magnitude = xp.where(is_read, magnitude, zeros)
    # A logarithm that is rounded to the next e is harmless: the digits reach one bit beyond both ends.
    exponent = xp.floor(xp.log2(magnitude + 1.5 * smallest) * (1.0 / radix.bits))
    place = ops.cast(exponent - float(radix.first), integer)
    scale = ops.look_up(_SCALES[key], place, dtype)
    sign = 1 - 2 * ops.cast(radians < 0, integer)
    rest, digits, number = magnitude * scale, [], zeros
    for j in range(radix.digits):
        digit = xp.floor(rest)
        rest = (rest - digit) * 2.0**radix.bits
        digits.append(ops.cast(digit, integer) * sign)
        # Of the integer, which has no gradient. Every sum is exact.
        number = number + ops.cast(digits[-1], dtype) * 2.0 ** (-radix.bits * j)
    return digits, place, xp.where(abs(radians) < inf, radians - number / scale, zeros + nan)


def _added_digits(added: list[int], word_bits: int, c: int, bits: int, like: Any, ops: ArrayOps) -> Any:
    """Return digit c of the integers to add, along the last axis of `like`."""
    padding = -word_bits % bits
    numbers = [(n << padding) >> (word_bits + padding - bits * c) & 2**bits - 1 for n in added]
    return ops.constants(Constants(numbers), like.dtype)[(None,) * (like.ndim - 1) + (...,)]


def _shift(column: Any, bits: int, ops: ArrayOps) -> Any:
    """Return a sum of products without its lowest bits, rounded down."""
    if not ops.is_exported:
        return ops.right_shift(column, bits)
    # Shift no negative integer: see `digits`. A column of float32 is above -2^30, of float64 above -2^31.
    bias = 2**30 if "int32" in str(column.dtype) else 2**31
    return ops.right_shift(column + bias, bits) - (bias >> bits)
