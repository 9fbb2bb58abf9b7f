"""Frequencies by the float32 steps of Hugging Face's code on PyTorch's CPU, in Python floats.

PyTorch rounds each operation to float32. A sum, product or quotient of two float32 numbers in float64,
rounded to float32, is the same number, so `float32` after each operation follows PyTorch to the bit.

Its power is not correctly rounded: whole blocks of 32 numbers go through SLEEF's ``Sleef_powf16_u10``, the
rest through the C library's ``powf`` [1]_. Of SLEEF's results some 1.5 % are not the nearest float32, so
`powers` follows its steps: a logarithm and an exponential in pairs of float32 numbers, with fused products
[2]_.

References
----------
.. [1] pytorch/pytorch, aten/src/ATen/cpu/vec/vec512/vec512_float.h and aten/src/ATen/native/cpu/Loops.h.
.. [2] shibatch/sleef, src/libm/sleefsimdsp.c and src/common/df.h: ``xpowf``, ``logkf``, ``expkf``, ``df...``.
"""

import math
import struct
from collections.abc import Iterable
from functools import lru_cache
from typing import TypeAlias

# High and low part: their sum has twice the digits of a float32.
Double: TypeAlias = tuple[float, float]

_FLOAT32 = struct.Struct("f")
BLOCK = 32  # PyTorch computes two AVX-512 registers at a time


def float32(value: float) -> float:
    """Round a float64 to the nearest float32, to infinity beyond its range."""
    try:
        return _FLOAT32.unpack(_FLOAT32.pack(value))[0]  # type: ignore[no-any-return]
    except OverflowError:
        return math.copysign(math.inf, value)


@lru_cache(maxsize=32)  # `ra.diagnose` tries many rules of a base
def powers(base: float, width: int, count: int) -> tuple[float, ...]:
    """Return base^(2i/width) for i = 0 .. count - 1.

    Source: ``base ** (torch.arange(0, dim, 2).float() / dim)``, transformers modeling_rope_utils.
    """
    x, exponents = float32(base), [float32(2 * i / width) for i in range(count)]
    in_blocks = count - count % BLOCK if 0 < x < math.inf and x != 1 else 0
    log = _log(x) if in_blocks else (0.0, 0.0)
    blocks = [_exp(_times(log, e)) if e else 1.0 for e in exponents[:in_blocks]]
    return (*blocks, *[float32(x**e) for e in exponents[in_blocks:]])


def inverse(number: float) -> float:
    """Return 1/number, as ``1.0 / tensor``."""
    return float32(1.0 / number) if number else math.inf


def inverses(numbers: Iterable[float]) -> list[float]:
    """Return 1/number for each number."""
    return [inverse(number) for number in numbers]


# SLEEF's polynomials, highest power first, and its ln 2 and 1/ln 2; all are float32 numbers.
_LOG = (0.2403203547000885, 0.2851126790046692, 0.4000079929828644)
_LOG_LAST = (0.6666666269302368, 3.6918386125961433e-09)
_EXP = (
    0.0013632464688271284,
    0.00836596917361021,
    0.04167108237743378,
    0.16666552424430847,
    0.49999985098838806,
)
_LN2 = (0.6931471824645996, -1.9046542121259336e-09)
_LN2_UPPER, _LN2_LOWER = 0.693145751953125, 1.428606765330187e-06
_PER_LN2 = 1.4426950216293335


def _log(x: float) -> Double:
    """Return ln x = e·ln 2 + 2·artanh((m - 1)/(m + 1)) for x = m·2^e with 3/4 ≤ m < 3/2."""
    m, e = math.frexp(x)
    if m < 0.75:
        m, e = 2 * m, e - 1
    ratio = _over(_sum((-1.0, 0.0), (m, 0.0)), _sum((1.0, 0.0), (m, 0.0)))
    square = _square(ratio)
    tail = _sum(_times(square, _polynomial(_LOG, square[0])), _LOG_LAST)
    total = _quick_sum(_times(_LN2, float(e)), (2 * ratio[0], 2 * ratio[1]))
    return _quick_sum(total, _product(_product(square, ratio), tail))


def _exp(d: Double) -> float:
    """Return e^d = 2^q·e^s for the multiple q·ln 2 next to d."""
    q = round(float32(float32(d[0] + d[1]) * _PER_LN2))
    s = _sum(_sum(d, (float32(q * -_LN2_UPPER), 0.0)), (float32(q * -_LN2_LOWER), 0.0))
    high = float32(s[0] + s[1])
    s = high, float32(float32(s[0] - high) + s[1])
    square = _square(s)
    t = _quick_sum((1.0, 0.0), _quick_sum(s, _times(square, _polynomial(_EXP, high))))
    return float32(math.ldexp(float32(t[0] + t[1]), q))


def _polynomial(coefficients: tuple[float, ...], x: float) -> float:
    total = coefficients[0]
    for coefficient in coefficients[1:]:
        total = _fused(total, x, coefficient)
    return total


def _fused(a: float, b: float, c: float) -> float:
    """Return a·b + c, as a fused operation rounds it.

    The product is exact in float64; the sum is rounded to float64 first, by at most 2^-30 of float32's last
    place.
    """
    return float32(a * b + c)


def _sum(x: Double, y: Double) -> Double:
    high = float32(x[0] + y[0])
    added = float32(high - x[0])  # the share of y[0] that is in high
    low = float32(float32(x[0] - float32(high - added)) + float32(y[0] - added))
    return high, float32(low + float32(x[1] + y[1]))


def _quick_sum(x: Double, y: Double) -> Double:
    """Return x + y for |x| ≥ |y|."""
    high = float32(x[0] + y[0])
    return high, float32(float32(float32(float32(x[0] - high) + y[0]) + x[1]) + y[1])


def _times(x: Double, y: float) -> Double:
    high = float32(x[0] * y)
    return high, _fused(x[1], y, float32(x[0] * y - high))


def _product(x: Double, y: Double) -> Double:
    high = float32(x[0] * y[0])
    return high, _fused(x[0], y[1], _fused(x[1], y[0], float32(x[0] * y[0] - high)))


def _square(x: Double) -> Double:
    high = float32(x[0] * x[0])
    return high, _fused(float32(x[0] + x[0]), x[1], float32(x[0] * x[0] - high))


def _over(x: Double, y: Double) -> Double:
    reciprocal = float32(1.0 / y[0])
    high = float32(x[0] * reciprocal)
    error = float32(reciprocal * x[0] - high)
    correction = _fused(-y[1], reciprocal, float32(1.0 - y[0] * reciprocal))
    return high, _fused(high, correction, _fused(x[1], reciprocal, error))
