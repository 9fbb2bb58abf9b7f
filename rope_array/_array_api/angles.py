"""Angles: from positions to cos and sin, exact at every integer position. Array API only.

The angle of a pair in turns, pos·ω/2π mod 1, is computed in fixed point. The host makes F = round(ω/2π · 2^k)
by exact integer arithmetic; the product pos·F modulo 2^k is integer arithmetic on the device, and its top
bits are the phase. k is 64 with a 32-bit phase for float32 tables, and 96 with a 64-bit phase for float64
tables. No step rounds, so the phase has the same bits on every library. Its error is |pos|·2^-(k+1) turns
from rounding F, and less than one unit in its own last place, which is 1.5e-9 radians for 32 bits.

An eighth of a turn is added to the phase; its top two bits are then the quadrant. The other bits, less an
eighth of a turn, are the signed angle from the nearest axis, at most an eighth of a turn. For float32:

    bit  63  62  61               32  31                       0
        +------+--------------------+---------------------------+
        |  q   |    r: 30 bits      |  dropped: below 2^-32     |   (pos·F mod 2^64) + 2^61
        +------+--------------------+---------------------------+
    The quadrant is q, and u = (r - 2^29) / 2^29, in eighths of a turn: -1 ≤ u < 1.

Two short polynomials give sin and cos of u. They use only sums and products, so the bits do not depend on a
library's sin, nor on whether an element is computed in a vector loop or in its tail.
"""

from typing import Any

from rope_array._spec.plan import Constants, Plan

from . import digits
from .ops import ArrayOps

# sin(π/4·u)/u and cos(π/4·u) in powers of u², |u| ≤ 1: minimax in absolute error, each coefficient rounded to
# the precision it is used in. Errors against the functions: 5.1e-9 and 4.1e-10 for float32, 2.2e-18 and
# 3.1e-19 for float64, far below the error of rounding.
SIN_32 = (0.7853981256484985, -0.08074513077735901, 0.002489370759576559, -3.5579418181441724e-05)
COS_32 = (-0.3084251284599304, 0.015854282304644585, -0.000325863336911425, 3.4905178836197592e-06)
SIN_64 = (
    0.7853981633974483,
    -0.08074551218827972,
    0.002490394570182007,
    -3.6576204134671484e-05,
    3.1336158090831277e-07,
    -1.7571158584135306e-09,
    6.866574506874848e-12,
)
COS_64 = (
    -0.30842513753404244,
    0.015854344243815096,
    -0.0003259918869245824,
    3.5908604394852376e-06,
    -2.4611354040888294e-08,
    1.1499763569296203e-10,
    -3.836316280346648e-13,
)


def cos_sin(integers: Any, fraction: Any, plan: Plan, use_float64: bool, ops: ArrayOps) -> tuple[Any, Any]:
    """Return cos and sin of every pair at every position, amplitude included, shape pos.shape + (pairs,).

    `fraction` is an array of floats, |f| ≤ 1/2, or None. The tables are float64 if `use_float64`, else
    float32. Errors for integer positions of int32: at most 9.5e-8 in float32 and 1.7e-16 in float64, before
    the amplitude (proof/).
    """
    dtype = ops.xp.float64 if use_float64 else ops.xp.float32
    if not plan.exact:
        return _float32_angles(integers, fraction, plan, dtype, ops)
    if ops.is_exported:
        pos = positions_per_pair(ops.cast(integers, ops.xp.int64), plan, ops)
        quadrant, u = digits.quadrant(pos, plan, use_float64, dtype, ops)
    else:
        quadrant, u = _quadrant(phase(integers, plan, use_float64, ops), use_float64, dtype, ops)
    if fraction is not None:
        # With a large ω the product fraction·ω has a large error of rounding. So a fraction in float64 is
        # multiplied, added and reduced in float64.
        sum_dtype = ops.xp.float64 if "float64" in str(fraction.dtype) else dtype
        quadrant, u = _add_fraction(quadrant, ops.cast(u, sum_dtype), fraction, plan, sum_dtype, ops)
        u = ops.cast(u, dtype)
    if use_float64:
        cos, sin = _polynomials64(u, _numbers(COS_64, dtype, ops), _numbers(SIN_64, dtype, ops))
    else:
        cos, sin = _polynomials32(u)
    cos, sin = _rotate_quadrants(quadrant, cos, sin, dtype, ops)
    return (cos, sin) if plan.layout.amplitude == 1.0 else _amplified(cos, sin, plan, dtype, ops)


def floats(integers: Any, fraction: Any, dtype: Any, xp: Any) -> Any:
    """Return positions as floats, rounded as a cast does."""
    numbers = xp.astype(integers, dtype)
    return numbers if fraction is None else numbers + xp.astype(fraction, dtype)


def phase(integers: Any, plan: Plan, use_float64: bool, ops: ArrayOps) -> Any:
    """Return the fraction of a turn of every pair at integer positions, in units of 2^-32 (float64: 2^-64).

    Every fixed-point product of positions and frequencies is computed here, or in `digits` while PyTorch
    exports. The result, shape pos.shape + (pairs,), is int64 if the library has 64-bit integers, else uint32.
    Modulo 2^32, or 2^64 for float64, its bits are the same on every library.
    """
    if not ops.has_int64:
        return _phase_in_uint32(positions_per_pair(integers, plan, ops), plan, ops)
    if plan.coordinates is None:
        # Add the axis first: a cast of a 0-d array may return a scalar in NumPy.
        pos = ops.cast(integers[..., None], ops.xp.int64)
    else:
        # Cast first: PyTorch cannot index uint32.
        pos = positions_per_pair(ops.cast(integers, ops.xp.int64), plan, ops)
    if use_float64:
        return _phase_of_96(pos, plan, ops)
    # Signed integers wrap modulo 2^64 in every array library, and the shift keeps the sign: floor division.
    return ops.right_shift(pos * _row(plan.turns_q64, pos, ops.xp.int64, ops), 32)


def positions_per_pair(pos: Any, plan: Plan, ops: ArrayOps) -> Any:
    """Give positions an axis of pairs: a new axis, or for each pair the coordinate that drives it."""
    if plan.coordinates is None:
        return pos[..., None]
    # Indices, not slices: slices with a stride have been miscompiled (pytorch issue 193183).
    integer = ops.xp.int64 if ops.has_int64 else ops.xp.int32
    index = ops.constants(plan.coordinates.of_pairs, integer)
    return ops.xp.take(pos, index, axis=pos.ndim - 1)  # cubed reads -1 wrong


def _phase_of_96(pos: Any, plan: Plan, ops: ArrayOps) -> Any:
    """Return (pos·F mod 2^96) >> 32 for F = upper·2^32 + lower, by products of 64 bits.

    With pos = high·2^32 + low, high signed and low unsigned:

        bit   95              64              32               0
              |         pos·upper              |
              |        high·lower              |
                              |           low·lower            |   its upper 32 bits are the carry
              +--------------------------------+
              the result, modulo 2^64

    low·lower may exceed a signed 64-bit integer: so its upper bits are computed from two products of 16 by 32
    bits.
    """
    upper, lower = (_row(words, pos, ops.xp.int64, ops) for words in plan.turns_q96)
    shift = ops.right_shift
    low, high = pos & 0xFFFFFFFF, shift(pos, 32)
    upper_48_bits = shift((low & 0xFFFF) * lower, 16) + shift(low, 16) * lower  # of low·lower
    return pos * upper + high * lower + shift(upper_48_bits, 16)


def _phase_in_uint32(pos: Any, plan: Plan, ops: ArrayOps) -> Any:
    """Return (pos·F mod 2^64) >> 32 in 32-bit arithmetic, by the high word of a product of 32 bits."""
    xp = ops.xp
    low, high = (
        _row(Constants([f >> shift & 0xFFFFFFFF for f in plan.turns_q64.values]), pos, xp.uint32, ops)
        for shift in (0, 32)
    )
    bits = xp.astype(pos, xp.uint32)
    product = bits * high + _high_word(bits, low)
    if "uint" in str(pos.dtype):
        return product
    # As uint32, a negative position is pos + 2^32: subtract 2^32·F, whose top word is the lower word of F.
    return product - xp.where(pos < 0, low, xp.zeros_like(low))


def _high_word(a: Any, b: Any) -> Any:
    """Return the upper 32 bits of the 64-bit product of two uint32 arrays.

    The four products of their halves of 16 bits, at their places:

        bit   63      48      32      16       0
                              |     a0·b0      |
                      |     a1·b0      |           and the upper half of a0·b0: `middle`
                      |     a0·b1      |           and the lower half of `middle`: `other`
              |     a1·b1      |                   and the upper halves of both: the result
    """
    a0, a1, b0, b1 = a & 0xFFFF, a >> 16, b & 0xFFFF, b >> 16
    middle = a1 * b0 + (a0 * b0 >> 16)
    other = a0 * b1 + (middle & 0xFFFF)
    return a1 * b1 + (middle >> 16) + (other >> 16)


def _row(numbers: Constants, like: Any, dtype: Any, ops: ArrayOps) -> Any:
    """Return one number for each pair along the last axis, ready to multiply with `like`."""
    row = ops.constants(numbers, dtype)
    return row[(None,) * (like.ndim - 1) + (...,)] if ops.needs_equal_ndim else row


def _quadrant(phase: Any, use_float64: bool, dtype: Any, ops: ArrayOps) -> tuple[Any, Any]:
    """Split a phase into its quadrant, an integer modulo 4, and u in eighths of a turn, |u| ≤ 1."""
    quadrant_bit, eighth, mask, unit = _SPLIT64 if use_float64 else _SPLIT32
    shifted = phase + eighth
    quadrant, lower = ops.right_shift(shifted, quadrant_bit), shifted & mask
    if not ops.has_int64:
        # The subtraction below needs signed integers, and both now fit into them.
        quadrant, lower = ops.cast(quadrant, ops.xp.int32), ops.cast(lower, ops.xp.int32)
    return quadrant, ops.cast(lower - eighth, dtype) * unit


# Of a phase of 32 or 64 bits: the lowest bit of the quadrant, an eighth of a turn, the mask of the bits below
# the quadrant, and their unit.
_SPLIT32 = (30, 2**29, 2**30 - 1, 2.0**-29)
_SPLIT64 = (62, 2**61, 2**62 - 1, 2.0**-61)


def _add_fraction(
    quadrant: Any, u: Any, fraction: Any, plan: Plan, dtype: Any, ops: ArrayOps
) -> tuple[Any, Any]:
    """Add the angle of a fraction of a position; reduce the sum to at most an eighth of a turn."""
    xp = ops.xp
    fractions = positions_per_pair(xp.astype(fraction, dtype), plan, ops)
    u = u + fractions * _row(plan.eighth_turns, fractions, dtype, ops)
    quarters = xp.round(u * 0.5)
    return quadrant + xp.astype(quarters, quadrant.dtype), u - 2.0 * quarters


def _polynomials32(u: Any) -> tuple[Any, Any]:
    """Return cos and sin of u eighths of a turn, |u| ≤ 1, in float32; written out, as a loop costs time."""
    z = u * u
    s0, s1, s2, s3 = SIN_32
    c1, c2, c3, c4 = COS_32
    return (((z * c4 + c3) * z + c2) * z + c1) * z + 1.0, u * (((z * s3 + s2) * z + s1) * z + s0)


def _polynomials64(u: Any, of_cos: Any, of_sin: Any) -> tuple[Any, Any]:
    """Return cos and sin of u eighths of a turn, |u| ≤ 1, in float64, by COS_64 and SIN_64."""
    z = u * u
    cos, sin = z * of_cos[-1] + of_cos[-2], z * of_sin[-1] + of_sin[-2]
    for c, s in zip(of_cos[-3::-1], of_sin[-3::-1], strict=True):
        cos, sin = cos * z + c, sin * z + s
    return cos * z + 1.0, u * sin


def _numbers(numbers: tuple[float, ...], dtype: Any, ops: ArrayOps) -> Any:
    """Return numbers as they are; in an export of float64, as arrays of one number.

    PyTorch's exporter to ONNX rounds a plain number to float32, also next to float64.
    """
    if not (ops.is_exported and dtype == ops.xp.float64):
        return numbers
    return [ops.constants(Constants([number]), dtype) for number in numbers]


def _rotate_quadrants(quadrant: Any, cos: Any, sin: Any, dtype: Any, ops: ArrayOps) -> tuple[Any, Any]:
    """Rotate (cos, sin) by `quadrant` right angles."""
    if ops.is_exported:
        return digits.rotate_quadrants(quadrant, cos, sin, ops)
    odd = (quadrant & 1) > 0  # in graphs of TensorFlow 1, != compares the tensor objects
    cos, sin = ops.xp.where(odd, sin, cos), ops.xp.where(odd, cos, sin)
    # 1 - 0 or 1 - 2: cos is negative in the quadrants 1 and 2, sin in 2 and 3.
    return cos * ops.cast(1 - (quadrant + 1 & 2), dtype), sin * ops.cast(1 - (quadrant & 2), dtype)


def _float32_angles(integers: Any, fraction: Any, plan: Plan, dtype: Any, ops: ArrayOps) -> tuple[Any, Any]:
    """Follow Hugging Face's steps: float32 position times float32 frequency, float32 cos and sin.

    Source: LlamaRotaryEmbedding.forward, transformers modeling_llama.py.
    """
    xp = ops.xp
    pos = positions_per_pair(floats(integers, fraction, xp.float32, xp), plan, ops)
    return product_cos_sin(pos, _row(plan.frequencies, pos, xp.float32, ops), plan, dtype, ops)


def product_cos_sin(pos: Any, frequencies: Any, plan: Plan, dtype: Any, ops: ArrayOps) -> tuple[Any, Any]:
    """Return cos and sin of the plain product pos·ω, for learned frequencies and float32 angles."""
    angle, xp = pos * frequencies, ops.xp
    cos, sin = xp.astype(xp.cos(angle), dtype), xp.astype(xp.sin(angle), dtype)
    return (cos, sin) if plan.layout.amplitude == 1.0 else _amplified(cos, sin, plan, dtype, ops)


def _amplified(cos: Any, sin: Any, plan: Plan, dtype: Any, ops: ArrayOps) -> tuple[Any, Any]:
    amplitude: Any = plan.layout.amplitude
    (factor,) = _numbers((amplitude,), dtype, ops)
    return cos * factor, sin * factor
