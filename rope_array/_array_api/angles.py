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

from math import pi
from typing import Any, NamedTuple

from rope_array._spec.plan import Constants, Plan

from . import digits
from .ops import ArrayOps
from .turns import Turns, turns

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


class Term(NamedTuple):
    """Positions times frequencies, for each pair. An angle is the sum of its terms.

    All arrays have equally many axes, the last for pairs, and broadcast with one another.

    Attributes
    ----------
    integers
        The nearest integers of positions: int64, or any integers where there is no int64.
    fraction
        The rest of float positions, |f| ≤ 1/2, or None.
    words
        The frequencies in turns. For float32 one int64 in units of 2^-64; without int64 its lower and its
        upper 32 bits as uint32. For float64 the upper 64 and the lower 32 bits in units of 2^-96, as int64.
        For exports the digits that `digits` multiplies.
    plan, inv_freq
        The frequencies as floats, for fractions: of a plan, of an array, or the sum of both.
    lost
        `Turns.lost` of the array.
    """

    integers: Any
    fraction: Any
    words: Any
    plan: Plan
    inv_freq: Any = None
    lost: Any = None


def cos_sin(
    integers: Any, fraction: Any, plan: Plan, use_float64: bool, ops: ArrayOps, inv_freq: Any = None
) -> tuple[Any, Any]:
    """Return cos and sin of every pair at every position, amplitude included, shape pos.shape + (pairs,).

    `fraction` is an array of floats, |f| ≤ 1/2, or None. The tables are float64 if `use_float64`, else
    float32. `inv_freq` is an array of frequencies that are added to the plan's. Its shape is (pairs,), or
    (heads, 1, pairs), which gives the result an axis of heads before the axis of the sequence.

    Errors for integer positions of int32: at most 9.5e-8 in float32 and 1.7e-16 in float64, before the
    amplitude (proof/).
    """
    if plan.takes_angles:
        return _cos_sin_of_radians(integers, plan, use_float64, ops)
    if not plan.exact:
        return _float32_angles(integers, fraction, plan, use_float64, ops, inv_freq)
    if inv_freq is None:
        terms = [term_of_plan(integers, fraction, plan, use_float64, ops)]
    else:
        terms = _terms_of_array(integers, fraction, plan, inv_freq, use_float64, ops)
    return _cos_sin_of_terms(terms, plan.layout.amplitude, use_float64, ops)


def _cos_sin_of_terms(
    terms: list[Term], amplitude: float | None, use_float64: bool, ops: ArrayOps
) -> tuple[Any, Any]:
    """Return cos and sin of sums of terms, times the amplitude."""
    dtype = ops.xp.float64 if use_float64 else ops.xp.float32
    if ops.is_exported:
        quadrant, u = digits.quadrant([(t.integers, t.words) for t in terms], use_float64, dtype, ops)
    else:
        quadrant, u = _quadrant(phase(terms, use_float64, ops), use_float64, dtype, ops)
    if terms[0].fraction is not None:
        # With a large ω the product fraction·ω has a large error of rounding. So a fraction in float64 is
        # multiplied, added and reduced in float64.
        sum_dtype = ops.xp.float64 if "float64" in str(terms[0].fraction.dtype) else dtype
        quadrant, u = _add_fractions(quadrant, ops.cast(u, sum_dtype), terms, sum_dtype, ops)
        u = ops.cast(u, dtype)
    for term in terms:
        if term.lost is not None:  # adds 0, and what the integers lack of the gradient by the frequencies
            u = u + ops.cast(term.integers, dtype) * _in_eighths(term.lost, dtype, ops)
    return _cos_sin_of_quadrant(quadrant, u, amplitude, use_float64, ops)


def _cos_sin_of_radians(radians: Any, plan: Plan, use_float64: bool, ops: ArrayOps) -> tuple[Any, Any]:
    """Return cos and sin of angles in float32 or float64, of any size, times the plan's amplitude.

    The angles are reduced exactly. So the errors are at most those of `cos_sin`.
    """
    dtype = ops.xp.float64 if use_float64 else ops.xp.float32
    if not plan.exact:
        return product_cos_sin(ops.cast(radians, ops.xp.float32), plan, use_float64, ops)
    reduced = turns(radians, 64 if use_float64 else 32, ops)
    if ops.is_exported:
        quadrant, u = digits.quadrant_of_turns(reduced.digits, use_float64, dtype, ops)
    else:
        quadrant, u = _quadrant(_upper_word(reduced, ops, use_float64), use_float64, dtype, ops)
    u = u + _in_eighths(reduced.lost, dtype, ops)  # adds 0, and the gradient
    return _cos_sin_of_quadrant(quadrant, u, plan.layout.amplitude, use_float64, ops)


def _cos_sin_of_quadrant(
    quadrant: Any, u: Any, amplitude: float | None, use_float64: bool, ops: ArrayOps
) -> tuple[Any, Any]:
    """Return cos and sin of u eighths of a turn from the axis of a quadrant, times the amplitude."""
    dtype = ops.xp.float64 if use_float64 else ops.xp.float32
    if ops.cos_sin is not None:
        cos, sin = ops.cos_sin(quadrant, u)
    else:
        if use_float64:
            cos, sin = polynomials64(u, _numbers(COS_64, dtype, ops), _numbers(SIN_64, dtype, ops))
        else:
            cos, sin = polynomials32(u)
        cos, sin = rotate_quadrants(quadrant, cos, sin, dtype, ops)
    return (cos, sin) if amplitude == 1.0 else _amplified(cos, sin, amplitude, dtype, ops)


def floats(integers: Any, fraction: Any, dtype: Any, xp: Any) -> Any:
    """Return positions as floats, rounded as a cast does."""
    numbers = xp.astype(integers, dtype)
    return numbers if fraction is None else numbers + xp.astype(fraction, dtype)


# ---- terms ----


def term_of_plan(integers: Any, fraction: Any, plan: Plan, use_float64: bool, ops: ArrayOps) -> Term:
    """Return the term of a plan's frequencies at positions."""
    pos, fraction = _integers_per_pair(integers, plan, ops), _fraction_per_pair(fraction, plan, ops)
    if ops.is_exported:
        words: Any = digits.rows_of_plan(plan, use_float64, pos.ndim, ops)
    elif use_float64:
        words = [_row(part, pos, ops.xp.int64, ops) for part in plan.turns_q96]
    elif ops.has_int64:
        words = [_row(plan.turns_q64, pos, ops.xp.int64, ops)]
    else:
        halves = ([f >> shift & 0xFFFFFFFF for f in plan.turns_q64.values] for shift in (0, 32))
        words = [_row(Constants(half), pos, ops.xp.uint32, ops) for half in halves]
    return Term(pos, fraction, words, plan)


def _factors(
    integers: Any, fraction: Any, plan: Plan, inv_freq: Any, ops: ArrayOps
) -> list[tuple[Any, Any, Any]]:
    """Return positions per pair and their frequencies, with equally many axes; of mixed ones, per coordinate.

    The shapes for frequencies of each head, with S positions of n coordinates:

        integers        inv_freq              factors
        (..., S)        (heads, 1, pairs)     (..., 1, S, 1) and (1..., heads, 1, pairs)
        (..., S, n)     (heads, 1, pairs)     (..., 1, S, pairs) and the same: axes
        (..., S, n)     (heads, n, pairs)     (..., 1, S, 1) and the same, n times: mixed
    """
    inv_freq = _driven(inv_freq, plan, ops)
    if inv_freq.ndim == 3 and inv_freq.shape[1] != 1:
        integers = ops.cast(integers, ops.xp.int64) if ops.has_int64 else integers
        factors = [
            (*(p if p is None else p[..., a, None] for p in (integers, fraction)), inv_freq[:, a, None, :])
            for a in range(inv_freq.shape[1])
        ]
    else:
        inv_freq = inv_freq[:, None, :] if inv_freq.ndim == 2 else inv_freq
        pos, fraction = _integers_per_pair(integers, plan, ops), _fraction_per_pair(fraction, plan, ops)
        factors = [(pos, fraction, inv_freq)]
    if inv_freq.ndim == 3:
        factors = [
            (*(p if p is None else p[..., None, :, :] for p in pos), omegas) for *pos, omegas in factors
        ]
    return [(p, f, omegas[(None,) * (p.ndim - omegas.ndim) + (...,)]) for p, f, omegas in factors]


def _terms_of_array(
    integers: Any, fraction: Any, plan: Plan, inv_freq: Any, use_float64: bool, ops: ArrayOps
) -> list[Term]:
    """Return the terms of frequencies in an array, plus the plan's: one, or one for each mixed coordinate."""
    factors = _factors(integers, fraction, plan, inv_freq, ops)
    return [_term_of_array(*factor, plan, use_float64, ops) for factor in factors]


def mixed_turns(integers: Any, plan: Plan, inv_freq: Any, use_float64: bool, ops: ArrayOps) -> Any:
    """Return the sums of integer positions times mixed frequencies: int64, modulo a turn.

    In units of 2^-64 of a turn, of all heads: shape (..., heads, S, pairs).
    """
    terms = _terms_of_array(integers, None, plan, inv_freq, use_float64, ops)
    return _sum_of_products(terms, use_float64, ops)


def turns_of_array(inv_freq: Any, plan: Plan, use_float64: bool, ops: ArrayOps) -> tuple[Any, Any]:
    """Return `Term.words` and `Term.lost` of frequencies in an array, plus the plan's."""
    term = _term_of_array(None, None, _driven(inv_freq, plan, ops), plan, use_float64, ops)
    return term.words, term.lost


def _driven(inv_freq: Any, plan: Plan, ops: ArrayOps) -> Any:
    """Return frequencies as float32 or float64, with 0 for pairs that no coordinate drives."""
    if "float64" not in str(inv_freq.dtype):
        inv_freq = ops.cast(inv_freq, ops.xp.float32)
    if plan.coordinates is None or plan.coordinates.driven_mask is None:
        return inv_freq
    # Not a product: a NaN must not reach the pairs that do not rotate.
    is_driven = ops.constants(plan.coordinates.driven_mask, inv_freq.dtype) > 0
    return ops.xp.where(is_driven, inv_freq, ops.xp.zeros_like(inv_freq))


def _term_of_array(
    pos: Any, fraction: Any, inv_freq: Any, plan: Plan, use_float64: bool, ops: ArrayOps
) -> Term:
    """Return the term of frequencies in an array, each a rational number taken exactly, plus the plan's."""
    added = None
    if any(plan.frequencies.values):
        _, turns64, turns96 = plan.words()
        added = turns96 if use_float64 else turns64
    in_turns = turns(inv_freq, 96 if use_float64 else 64, ops, added)
    digit, shift = in_turns.digits, ops.right_shift
    if ops.is_exported:
        words: Any = digit[::-1]
    elif use_float64:
        words = [_upper_word(in_turns, ops), (digit[2] & 0xFFFFF) * 2**12 + shift(digit[3], 16)]
    elif ops.has_int64:
        words = [_upper_word(in_turns, ops)]
    else:
        digit = [ops.cast(d, ops.xp.uint32) for d in digit]
        lower = (digit[2] & 0x3FF) * 2**22 + digit[3] * 2**8 + (digit[4] >> 6)
        words = [lower, _upper_word(in_turns, ops)]
    return Term(pos, fraction, [ops.stored(word) for word in words], plan, inv_freq, in_turns.lost)


def _upper_word(in_turns: Turns, ops: ArrayOps, use_float64: bool = True) -> Any:
    """Return the upper 64 bits of turns as int64, or 32; without int64 the upper 32 as uint32."""
    digit, shift = in_turns.digits, ops.right_shift
    if not ops.has_int64:
        digit = [ops.cast(d, ops.xp.uint32) for d in digit]
        return digit[0] * 2**18 + digit[1] * 2**4 + (digit[2] >> 10)
    if not use_float64:
        return digit[0] * 2**4 + shift(digit[1], 24)
    return digit[0] * 2**36 + digit[1] * 2**8 + shift(digit[2], 20)


def _eighth_turns(term: Term, dtype: Any, ops: ArrayOps) -> Any:
    """Return the frequencies of a term in eighths of a turn per position."""
    if term.inv_freq is None:
        return _row(term.plan.eighth_turns, term.fraction, dtype, ops)
    if not any(term.plan.frequencies.values):
        return _in_eighths(term.inv_freq, dtype, ops)
    wide = term.inv_freq.dtype if "float64" in str(term.inv_freq.dtype) else dtype
    eighths = _in_eighths(term.inv_freq, wide, ops)
    return ops.cast(eighths + _row(term.plan.eighth_turns, eighths, wide, ops), dtype)


def _in_eighths(radians: Any, dtype: Any, ops: ArrayOps) -> Any:
    """Return radians in eighths of a turn, as floats of a dtype; float64 is multiplied before it is cast."""
    is_wider = "float64" in str(radians.dtype) and dtype != ops.xp.float64
    radians = radians if is_wider else ops.cast(radians, dtype)
    (factor,) = _numbers((4 / pi,), radians.dtype, ops)
    return ops.cast(radians * factor, dtype)


# ---- the phase ----


def phase(terms: list[Term], use_float64: bool, ops: ArrayOps) -> Any:
    """Return a sum of terms at integer positions, modulo a turn, in units of 2^-32 (float64: 2^-64).

    Every fixed-point product of positions and frequencies is computed here, or in `digits` while PyTorch
    exports. The result is int64 if the library has 64-bit integers, else uint32. Modulo 2^32, or 2^64 for
    float64, its bits are the same on every library.
    """
    if not ops.has_int64:
        return _phase_in_uint32(terms, ops)
    total = _sum_of_products(terms, use_float64, ops)
    # The shift keeps the sign: floor division.
    return total if use_float64 else ops.right_shift(total, 32)


def _sum_of_products(terms: list[Term], use_float64: bool, ops: ArrayOps) -> Any:
    """Return the sum of terms in units of 2^-64 of a turn. Signed integers wrap in every array library."""
    multiply = _product_of_96 if use_float64 else _product_of_64
    total = multiply(terms[0], ops)
    for term in terms[1:]:
        total = total + multiply(term, ops)
    return total


def _integers_per_pair(integers: Any, plan: Plan, ops: ArrayOps) -> Any:
    """Return integer positions per pair: int64, or without it as they are."""
    if not ops.has_int64:
        return positions_per_pair(integers, plan, ops)
    if plan.coordinates is None:
        # Add the axis first: a cast of a 0-d array may return a scalar in NumPy.
        return ops.cast(integers[..., None], ops.xp.int64)
    # Cast first: PyTorch cannot index uint32.
    return positions_per_pair(ops.cast(integers, ops.xp.int64), plan, ops)


def _fraction_per_pair(fraction: Any, plan: Plan, ops: ArrayOps) -> Any:
    return None if fraction is None else positions_per_pair(fraction, plan, ops)


def positions_per_pair(pos: Any, plan: Plan, ops: ArrayOps) -> Any:
    """Give positions an axis of pairs: a new axis, or for each pair the coordinate that drives it."""
    if plan.coordinates is None:
        return pos[..., None]
    # Indices, not slices: slices with a stride have been miscompiled (pytorch issue 193183).
    integer = ops.xp.int64 if ops.has_int64 else ops.xp.int32
    index = ops.constants(plan.coordinates.of_pairs, integer)
    return ops.xp.take(pos, index, axis=pos.ndim - 1)  # cubed reads -1 wrong


def _product_of_64(term: Term, ops: ArrayOps) -> Any:
    return term.integers * term.words[0]


def _product_of_96(term: Term, ops: ArrayOps) -> Any:
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
    pos, (upper, lower), shift = term.integers, term.words, ops.right_shift
    low, high = pos & 0xFFFFFFFF, shift(pos, 32)
    upper_48_bits = shift((low & 0xFFFF) * lower, 16) + shift(low, 16) * lower  # of low·lower
    return pos * upper + high * lower + shift(upper_48_bits, 16)


def _phase_in_uint32(terms: list[Term], ops: ArrayOps) -> Any:
    """Return the sum of (pos·F mod 2^64) over terms, >> 32, in 32-bit arithmetic."""
    xp, total, total_low = ops.xp, None, None
    for pos, _, (low, high), *_ in terms:
        bits = xp.astype(pos, xp.uint32)
        product, product_low = bits * high + _high_word(bits, low), bits * low
        if "uint" not in str(pos.dtype):
            # As uint32, a negative position is pos + 2^32: subtract 2^32·F, whose top word is F's lower word.
            product = product - xp.where(pos < 0, low, xp.zeros_like(low))
        if total is None:
            total, total_low = product, product_low
        else:
            total_low = total_low + product_low
            total = total + product + xp.astype(total_low < product_low, xp.uint32)  # the carry
    return total


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


def _add_fractions(quadrant: Any, u: Any, terms: list[Term], dtype: Any, ops: ArrayOps) -> tuple[Any, Any]:
    """Add the angles of the fractions of positions; reduce the sum to at most an eighth of a turn."""
    for term in terms:
        u = u + ops.product(ops.xp.astype(term.fraction, dtype), _eighth_turns(term, dtype, ops))
    quarters = ops.xp.round(u * 0.5)
    return quadrant + ops.xp.astype(quarters, quadrant.dtype), u - 2.0 * quarters


def polynomials32(u: Any) -> tuple[Any, Any]:
    """Return cos and sin of u eighths of a turn, |u| ≤ 1, in float32; written out, as a loop costs time."""
    z = u * u
    s0, s1, s2, s3 = SIN_32
    c1, c2, c3, c4 = COS_32
    return (((z * c4 + c3) * z + c2) * z + c1) * z + 1.0, u * (((z * s3 + s2) * z + s1) * z + s0)


def polynomials64(u: Any, of_cos: Any, of_sin: Any) -> tuple[Any, Any]:
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


def rotate_quadrants(quadrant: Any, cos: Any, sin: Any, dtype: Any, ops: ArrayOps) -> tuple[Any, Any]:
    """Rotate (cos, sin) by `quadrant` right angles."""
    if ops.is_exported:
        return digits.rotate_quadrants(quadrant, cos, sin, ops)
    odd = (quadrant & 1) > 0  # in graphs of TensorFlow 1, != compares the tensor objects
    cos, sin = ops.xp.where(odd, sin, cos), ops.xp.where(odd, cos, sin)
    # 1 - 0 or 1 - 2: cos is negative in the quadrants 1 and 2, sin in 2 and 3.
    return cos * ops.cast(1 - (quadrant + 1 & 2), dtype), sin * ops.cast(1 - (quadrant & 2), dtype)


def _float32_angles(
    integers: Any, fraction: Any, plan: Plan, use_float64: bool, ops: ArrayOps, inv_freq: Any = None
) -> tuple[Any, Any]:
    """Follow Hugging Face's steps: float32 position times float32 frequency, float32 cos and sin.

    Source: LlamaRotaryEmbedding.forward, transformers modeling_llama.py.
    """
    angle = rounded_angle(integers, fraction, plan, False, ops, inv_freq)
    return product_cos_sin(angle, plan, use_float64, ops)


def rounded_angle(
    integers: Any, fraction: Any, plan: Plan, use_float64: bool, ops: ArrayOps, inv_freq: Any = None
) -> Any:
    """Return the products of positions and frequencies as float32 or float64 computes them."""
    xp, dtype = ops.xp, ops.xp.float64 if use_float64 else ops.xp.float32
    if inv_freq is None:
        pos = positions_per_pair(floats(integers, fraction, dtype, xp), plan, ops)
        return pos * _row(plan.frequencies, pos, dtype, ops)
    angle: Any = 0.0
    for pos, rest, omegas in _factors(integers, fraction, plan, inv_freq, ops):
        omegas = ops.cast(omegas, dtype)
        omegas = omegas + _row(plan.frequencies, omegas, dtype, ops)
        angle = floats(pos, rest, dtype, xp) * omegas + angle
    return angle


def product_cos_sin(angle: Any, plan: Plan, use_float64: bool, ops: ArrayOps) -> tuple[Any, Any]:
    """Return cos and sin of float32 angles by the library's own functions, times the plan's amplitude."""
    xp, dtype = ops.xp, ops.xp.float64 if use_float64 else ops.xp.float32
    cos, sin, amplitude = (
        xp.astype(xp.cos(angle), dtype),
        xp.astype(xp.sin(angle), dtype),
        plan.layout.amplitude,
    )
    return (cos, sin) if amplitude == 1.0 else _amplified(cos, sin, amplitude, dtype, ops)


def _amplified(cos: Any, sin: Any, amplitude: Any, dtype: Any, ops: ArrayOps) -> tuple[Any, Any]:
    (factor,) = _numbers((amplitude,), dtype, ops)
    return ops.product(cos, factor), ops.product(sin, factor)
