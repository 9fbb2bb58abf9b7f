"""The quadrant and the rest of an angle in small integers, for programs that other tools run.

`angles.phase` lets 64-bit integers wrap, and shifts negative ones. Tools that take over a recorded program do
not keep this: PyTorch's older ONNX exporter rounds a shift toward zero, OpenVINO computes in 32 bits, a
conversion to float16 makes infinities of large numbers. Here no negative integer is shifted, none reaches
2^31 at a position of 32 bits, and none that becomes a float reaches 2^14. ONNX lacks bitwise operations
before opset 18: there is none but shifts, for which `TorchOps` divides. The angles have the bits of
`angles.phase`.

The product of a position and a frequency is multiplied out in digits of 14 bits, modulo one turn:

      d4 d3 d2 d1 d0     the position, in two's complement
    × f4 f3 f2 f1 f0     the fixed-point frequency, shifted left to whole digits
    = p4 p3 p2 p1 p0     p_k: the sum of d_i·f_(k-i) over i, and the carry of p_(k-1)

The phase is the 32 bits of p4, p3 and the upper part of p2. For float64 there are seven digits, and 64 bits.
"""

from typing import Any

from rope_array._spec.plan import Constants, Plan

from .ops import ArrayOps

_BITS = 14
_RADIX = 2**_BITS
_EIGHTH = 2 ** (_BITS - 3)  # an eighth of a turn, in the uppermost digit
# The bits that count of each column of a product, the lowest first: 32 and 64 in all.
_WIDTHS_32 = (0, 0, 4, _BITS, _BITS)
_WIDTHS_64 = (0, 0, 8, _BITS, _BITS, _BITS, _BITS)
Terms = list[tuple[Any, list[Any]]]


def quadrant(terms: Terms, use_float64: bool, dtype: Any, ops: ArrayOps) -> tuple[Any, Any]:
    """Return the quadrant of an angle, a float of 0 to 3, and the rest in eighths of a turn, |u| ≤ 1.

    The angle is the sum of terms: int64 positions, and the digits of a word of turns, the lowest first.
    """
    widths = _WIDTHS_64 if use_float64 else _WIDTHS_32
    columns, *others = [_columns(_digits(pos, len(widths), ops), rows) for pos, rows in terms]
    for other in others:  # carried first, so that the sum stays below 2^31
        columns = [a + b for a, b in zip(_carried(columns, ops), _carried(other, ops), strict=True)]
    return _split_turns(columns, widths, dtype, ops)


def quadrant_of_turns(digits: list[Any], use_float64: bool, dtype: Any, ops: ArrayOps) -> tuple[Any, Any]:
    """Return the quadrant and the rest of a phase, given by the digits of `turns`, the highest first."""
    widths = _WIDTHS_64 if use_float64 else _WIDTHS_32
    return _split_turns(digits[::-1], widths[2:], dtype, ops)


def rows_of_plan(plan: Plan, use_float64: bool, ndim: int, ops: ArrayOps) -> list[Any]:
    """Return the digits of a plan's turns along the last of `ndim` axes, the lowest first."""
    _, turns64, turns96 = plan.words()
    widths = _WIDTHS_64 if use_float64 else _WIDTHS_32
    # The fixed-point frequency has 32 bits more than the phase; shift it up to whole digits.
    shift = _BITS * len(widths) - 32 - sum(widths)
    return [
        _row([f << shift >> _BITS * k & _RADIX - 1 for f in (turns96 if use_float64 else turns64)], ndim, ops)
        for k in range(len(widths))
    ]


def rotate_quadrants(quadrant: Any, cos: Any, sin: Any, ops: ArrayOps) -> tuple[Any, Any]:
    """Rotate (cos, sin) by `quadrant` right angles, a float that is an integer."""
    xp = ops.xp
    quadrant = quadrant - 4.0 * xp.floor(quadrant * 0.25)
    half = xp.floor(quadrant * 0.5)
    odd = quadrant - 2.0 * half
    sign = 1.0 - 2.0 * half  # of sin; cos is negative in the quadrants 1 and 2
    is_odd = odd > 0
    return xp.where(is_odd, sin, cos) * (sign * (1.0 - 2.0 * odd)), xp.where(is_odd, cos, sin) * sign


def _digits(pos: Any, count: int, ops: ArrayOps) -> list[Any]:
    """Return the digits of positions modulo 2^(14·count), the lowest first."""
    xp = ops.xp
    negative = pos < 0
    upper, digits = xp.where(negative, -1 - pos, pos), []  # all bits inverted, if negative
    for _ in range(4):
        upper, digit = _split(upper, _BITS, ops)
        digits.append(digit)
    digits += [upper, *[xp.zeros_like(upper)] * (count - 5)]
    return [ops.cast(xp.where(negative, _RADIX - 1 - digit, digit), xp.int32) for digit in digits]


def _columns(digits: list[Any], rows: list[Any]) -> list[Any]:
    """Return the columns of the product, the lowest first: the sums of products of digits."""
    columns = []
    for k in range(len(rows)):
        column = digits[0] * rows[k]
        for i in range(1, k + 1):
            column = column + digits[i] * rows[k - i]
        columns.append(column)
    return columns


def _carried(columns: list[Any], ops: ArrayOps) -> list[Any]:
    """Return columns as digits."""
    carry, digits = 0, []
    for column in columns:
        carry, digit = _split(column + carry, _BITS, ops)
        digits.append(digit)
    return digits


def _split_turns(columns: list[Any], widths: tuple[int, ...], dtype: Any, ops: ArrayOps) -> tuple[Any, Any]:
    """Return the quadrant and the rest of turns modulo 1, of columns with so many bits."""
    *lower, upper = _top_bits(columns, widths, ops)
    right_angles, lower_bits = _split(upper, _BITS - 2, ops)
    fraction: Any = 0.0
    for word, bits in zip(lower, filter(None, widths), strict=False):
        fraction = (ops.cast(word, dtype) + fraction) * 2.0**-bits
    # The only sum that rounds, as the cast of all lower bits would.
    u = (ops.cast(lower_bits - _EIGHTH, dtype) + fraction) * (1.0 / _EIGHTH)
    return ops.cast(right_angles, dtype), u


def _top_bits(columns: list[Any], widths: tuple[int, ...], ops: ArrayOps) -> list[Any]:
    """Return the top bits of columns, an eighth of a turn added, the lowest column first.

    `widths` are the numbers of bits to return of each column; a column of 0 bits only carries.
    """
    words, carry = [], None
    for k, (column, width) in enumerate(zip(columns, widths, strict=True)):
        if carry is not None:
            column = column + carry
        if k == len(widths) - 1:
            column = column + _EIGHTH
        carry = column if width == _BITS else ops.right_shift(column, _BITS - width)
        if width:
            carry, low = _split(carry, width, ops)
            words.append(low)
    return words


def _split(number: Any, bits: int, ops: ArrayOps) -> tuple[Any, Any]:
    """Return the upper part of non-negative integers, and the lower `bits`."""
    # The remainder of this very quotient: a runtime that divides in float32 may round it up.
    upper = ops.right_shift(number, bits)
    return upper, number - upper * 2**bits


def _row(numbers: list[int], ndim: int, ops: ArrayOps) -> Any:
    """Return one number for each pair along the last of `ndim` axes."""
    row = ops.constants(Constants(numbers), ops.xp.int32)
    return row[(None,) * (ndim - 1) + (...,)]
