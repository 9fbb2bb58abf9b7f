"""The rotation as a Triton kernel: one launch rotates the rows of two arrays, such as q and k.

A program takes a few tokens and a chunk of their heads. It computes cos and sin of each token once, or reads
them, and rotates all of its heads in both arrays, in tiles:

    cos, sin    (TOKENS, WIDTH)               a column for each pair, up to a power of two
    a, b        (TOKENS, HEADS, WIDTH)        the two features of each pair
    half pairing          a at START + pair, b `per_block` features later: two loads
    interleaved pairing   one load of (TOKENS, HEADS, 2 * WIDTH) features a0 b0 a1 b1 ..., split into a and b

The angles are the same float operations as in rope_array/_array_api/angles.py; the integer steps differ but
give the same bits. Each product and sum is rounded, as on the CPU: the kernel is compiled with
`enable_fp_fusion=False`, and none of its operations depends on the GPU. So the bits, and with them the
errors, equal the array-api backend's.
"""

import triton
import triton.language as tl

from rope_array._array_api.angles import COS_32, COS_64, SIN_32, SIN_64
from rope_array._backends._gpu import Kind

# One constant each: older versions of Triton read no tuple of a module.
S0, S1, S2, S3 = map(tl.constexpr, SIN_32)
C1, C2, C3, C4 = map(tl.constexpr, COS_32)
D0, D1, D2, D3, D4, D5, D6 = map(tl.constexpr, SIN_64)
E1, E2, E3, E4, E5, E6, E7 = map(tl.constexpr, COS_64)
_SPACED = tl.constexpr(int(Kind.SPACED))
_TABLES = tl.constexpr(int(Kind.TABLES))

# Not specialized. Strides are passed in units of UNIT and SOURCE_UNIT elements, so the compiler knows the
# alignment.
_NUMBERS = [
    *("position", "seq", "chunks", "heads0", "heads1"),
    *(
        f"{array}_{axis}"
        for array in ("x0", "y0", "x1", "y1")
        for axis in ("outer", "seq", "head", "feature")
    ),
    *("first_outer", "first_seq", "second_outer", "second_seq", "coordinate_stride"),
]


@triton.jit(do_not_specialize=_NUMBERS)
def rotate_rows(
    x0, y0, x1, y1,
    first,  # positions, integers or floats, or cos
    second,  # sin
    words,  # the plan's constants, of rope_array._backends._gpu.plan_rows
    position: tl.int64,  # of the first token, if positions are spaced
    seq: tl.int64,
    chunks: tl.int64,  # of heads
    heads0: tl.int64, heads1: tl.int64,
    # Strides of the rows in units of UNIT elements, and of features in elements.
    x0_outer: tl.int64, x0_seq: tl.int64, x0_head: tl.int64, x0_feature: tl.int64,
    y0_outer: tl.int64, y0_seq: tl.int64, y0_head: tl.int64, y0_feature: tl.int64,
    x1_outer: tl.int64, x1_seq: tl.int64, x1_head: tl.int64, x1_feature: tl.int64,
    y1_outer: tl.int64, y1_seq: tl.int64, y1_head: tl.int64, y1_feature: tl.int64,
    # Strides of positions or tables in units of SOURCE_UNIT elements; the steps of spaced positions.
    first_outer: tl.int64, first_seq: tl.int64, second_outer: tl.int64, second_seq: tl.int64,
    coordinate_stride: tl.int64,
    KIND: tl.constexpr,  # of the source: a `Kind` of rope_array._backends._gpu
    UNIT: tl.constexpr, SOURCE_UNIT: tl.constexpr,
    STRIDED: tl.constexpr,  # features have a stride other than 1
    HEAD_DIM: tl.constexpr, START: tl.constexpr, PAIRS: tl.constexpr, BLOCKS: tl.constexpr,
    READS_HALF: tl.constexpr, WRITES_HALF: tl.constexpr,
    COPIES: tl.constexpr,  # write the features outside of the slice too
    COORDINATES: tl.constexpr,  # whether a position has several
    SCALED: tl.constexpr,  # whether the amplitude is not 1
    TRANSPOSED: tl.constexpr, IN_PLACE: tl.constexpr,
    REAL: tl.constexpr,  # the compute dtype
    TOKENS: tl.constexpr,  # of a program
    HEADS0: tl.constexpr,
    HEADS1: tl.constexpr,  # 0: there is one array
    WIDTH: tl.constexpr,  # PAIRS, up to a power of two
):  # fmt: skip
    # Row offsets have 64 bits, program numbers 32: a division of 64 bits takes 100 instructions. One axis of
    # programs, as CUDA limits the others to 65,535. With 2 chunks of heads and 3 tiles of tokens:
    #
    #     program    0   1   2   3   4   5 | 6   7 ...
    #     chunk      0   1   0   1   0   1 | 0   1
    #     tile       0   0   1   1   2   2 | 3   3       of all tokens: outer = tile // tiles
    tiles, chunks = tl.cdiv(seq, TOKENS).to(tl.int32), chunks.to(tl.int32)
    program = tl.program_id(0)
    chunk, tile = (program % chunks).to(tl.int64), program // chunks
    outer = (tile // tiles).to(tl.int64)
    token = (tile % tiles).to(tl.int64) * TOKENS + tl.arange(0, TOKENS)
    pair = tl.arange(0, WIDTH)
    present = (token < seq)[:, None] & (pair < PAIRS)[None, :]
    if PAIRS == 0:
        cos, sin = 0, 0
    elif KIND == _TABLES:
        row = outer * (first_outer * SOURCE_UNIT) + token * (first_seq * SOURCE_UNIT)
        cos = tl.load(first + row[:, None] + pair[None, :], present)
        row = outer * (second_outer * SOURCE_UNIT) + token * (second_seq * SOURCE_UNIT)
        sin = tl.load(second + row[:, None] + pair[None, :], present)
        if TRANSPOSED:
            sin = -sin
    else:
        if KIND == _SPACED:
            numbers = (position.to(tl.int64) + outer * first_outer + token * first_seq)[:, None]
        else:
            at = first + (outer * first_outer + token * first_seq)[:, None]  # SOURCE_UNIT is 1
            if COORDINATES:
                driver = tl.load(words + 3 * PAIRS + pair, pair < PAIRS, other=0)
                numbers = tl.load(at + driver[None, :] * coordinate_stride, present)
            else:
                numbers = tl.load(at, (token < seq)[:, None])
        cos, sin = _cos_sin(numbers, words, pair, PAIRS, REAL)
        if SCALED:
            amplitude = tl.load(words + 4 * PAIRS).to(tl.float64, bitcast=True).to(REAL)
            cos, sin = cos * amplitude, sin * amplitude
        if TRANSPOSED:
            sin = -sin
    _rotate_array(
        x0, y0, cos, sin, outer, token, seq, chunk, heads0,
        x0_outer.to(tl.int64) * UNIT, x0_seq.to(tl.int64) * UNIT, x0_head.to(tl.int64) * UNIT, x0_feature,
        y0_outer.to(tl.int64) * UNIT, y0_seq.to(tl.int64) * UNIT, y0_head.to(tl.int64) * UNIT, y0_feature,
        STRIDED, HEAD_DIM, START, PAIRS, BLOCKS, READS_HALF, WRITES_HALF, COPIES, IN_PLACE, REAL, TOKENS,
        HEADS0, WIDTH,
    )  # fmt: skip
    if HEADS1 > 0:
        _rotate_array(
            x1, y1, cos, sin, outer, token, seq, chunk, heads1,
            x1_outer.to(tl.int64) * UNIT, x1_seq.to(tl.int64) * UNIT, x1_head.to(tl.int64) * UNIT, x1_feature,
            y1_outer.to(tl.int64) * UNIT, y1_seq.to(tl.int64) * UNIT, y1_head.to(tl.int64) * UNIT, y1_feature,
            STRIDED, HEAD_DIM, START, PAIRS, BLOCKS, READS_HALF, WRITES_HALF, COPIES, IN_PLACE, REAL, TOKENS,
            HEADS1, WIDTH,
        )  # fmt: skip


@triton.jit
def _cos_sin(positions, words, pair, PAIRS: tl.constexpr, REAL: tl.constexpr):
    """Return cos and sin of pairs at positions: (tokens, 1) or (tokens, pairs) integers or floats.

    Valid for int64 positions. Max error at int32 positions: 9.5e-8 (float32), 1.7e-16 (float64). At int64
    positions 2π · |position| · 2^-65 (2^-97) is added. _native/cos_sin.h has figures of phase and quadrant.
    """
    mask = pair < PAIRS
    if positions.dtype.is_floating():
        numbers, fraction = _split(positions)
    else:
        numbers = positions.to(tl.int64)
    if REAL == tl.float64:  # noqa: SIM300 (Triton 3.3 compares a constant with a dtype, not the reverse)
        upper = tl.load(words + PAIRS + pair, mask, other=0)[None, :]
        lower = tl.load(words + 2 * PAIRS + pair, mask, other=0)[None, :]
        # (position · F mod 2^96) >> 32 for F = upper·2^32 + lower.
        carry = ((numbers & 0xFFFFFFFF) * lower).to(tl.uint64) >> 32
        phase = numbers * upper + (numbers >> 32) * lower + carry.to(tl.int64)
        u = (phase << 2).to(tl.float64) * 1.0842021724855044e-19  # 2^-63
        quadrant = phase + (1 << 61)
        if positions.dtype.is_floating():
            u, quarters = _add_fraction(u, fraction, words, pair, PAIRS)
            quadrant += quarters << 62
        z = u * u
        cos = (((((z * E7 + E6) * z + E5) * z + E4) * z + E3) * z + E2) * z + E1
        sin = (((((z * D6 + D5) * z + D4) * z + D3) * z + D2) * z + D1) * z + D0
        odd = (quadrant & (1 << 62)) != 0
        cos, sin = cos * z + 1.0, u * sin
        sign: tl.constexpr = -(1 << 63)
        cos_sign = (quadrant + (1 << 62)) & sign
        word = tl.int64
    else:
        turns = tl.load(words + pair, mask, other=0)[None, :]
        phase = ((numbers * turns) >> 32).to(tl.int32)  # position · F mod 2^64, its upper half
        u = (phase << 2).to(tl.float32) * 4.656612873077393e-10  # 2^-31
        quadrant = phase + (1 << 29)
        if positions.dtype.is_floating():
            u, quarters = _add_fraction(u, fraction, words, pair, PAIRS)
            u, quadrant = u.to(tl.float32), quadrant + (quarters << 30).to(tl.int32)
        z = u * u
        cos = ((z * C4 + C3) * z + C2) * z + C1
        sin = ((z * S3 + S2) * z + S1) * z + S0
        odd = (quadrant & (1 << 30)) != 0
        cos, sin = cos * z + 1.0, u * sin
        sign: tl.constexpr = -(1 << 31)
        cos_sign = (quadrant + (1 << 30)) & sign
        word = tl.int32
    even_cos, even_sin = cos, sin
    cos = tl.where(odd, even_sin, even_cos)
    sin = tl.where(odd, even_cos, even_sin)
    cos = (cos.to(word, bitcast=True) ^ cos_sign).to(REAL, bitcast=True)
    sin = (sin.to(word, bitcast=True) ^ (quadrant & sign)).to(REAL, bitcast=True)
    return cos, sin


@triton.jit
def _split(x):
    """Split floats into the nearest integers, ties to even, and the rest, which is exact."""
    unit: tl.constexpr = 2.0**52 if x.dtype == tl.float64 else 2.0**23
    shift = tl.where(x < 0, -unit, unit)  # a sum with it is rounded to an integer
    nearest = tl.where(tl.abs(x) < unit, (x + shift) - shift, x)  # larger floats are integers
    # The conversion of NaN and of floats beyond int64 is undefined: convert the result of x86 processors.
    return tl.where(tl.abs(nearest) < 2.0**63, nearest, -(2.0**63)).to(tl.int64), x - nearest


@triton.jit
def _add_fraction(u, fraction, words, pair, PAIRS: tl.constexpr):
    """Add the angles of fractions of positions, |f| <= 1/2, to u eighths of a turn from an axis.

    Return the distance from the nearest axis, in float64 for fractions in float64, and integers: their lower
    two bits are the quarters of a turn to that axis. Valid if `Plan.takes_fractions`.
    """
    eighths = tl.load(words + 5 * PAIRS + pair, pair < PAIRS, other=0).to(tl.float64, bitcast=True)[None, :]
    if fraction.dtype == tl.float64:
        u = u.to(tl.float64)
    u += fraction.to(u.dtype) * eighths.to(u.dtype)
    # Round u / 2 to an integer, ties to even: floats around 1.5·2^24, or 1.5·2^53, are 2 apart.
    rounder: tl.constexpr = 1.5 * 2.0**53 if u.dtype == tl.float64 else 1.5 * 2.0**24
    word: tl.constexpr = tl.int64 if u.dtype == tl.float64 else tl.int32
    sum = u + rounder
    return u - (sum - rounder), sum.to(word, bitcast=True)


@triton.jit
def _rotate_array(
    x, y, cos, sin, outer, token, seq, chunk, heads,
    x_outer, x_seq, x_head, x_feature,
    y_outer, y_seq, y_head, y_feature,
    STRIDED: tl.constexpr, HEAD_DIM: tl.constexpr, START: tl.constexpr, PAIRS: tl.constexpr,
    BLOCKS: tl.constexpr, READS_HALF: tl.constexpr, WRITES_HALF: tl.constexpr, COPIES: tl.constexpr,
    IN_PLACE: tl.constexpr, REAL: tl.constexpr, TOKENS: tl.constexpr, HEADS: tl.constexpr,
    WIDTH: tl.constexpr,
):  # fmt: skip
    """Rotate a chunk of the heads of some tokens: tiles of shape (tokens, heads, features)."""
    head = chunk * HEADS + tl.arange(0, HEADS)
    present = (token < seq)[:, None, None] & (head < heads)[None, :, None]
    x += (outer * x_outer + token * x_seq)[:, None, None] + (head * x_head)[None, :, None]
    y += (outer * y_outer + token * y_seq)[:, None, None] + (head * y_head)[None, :, None]
    if not STRIDED:
        x_feature, y_feature = 1, 1
    if PAIRS > 0:
        dtype = x.dtype.element_ty
        cos, sin = cos[:, None, :], sin[:, None, :]
        pair = tl.arange(0, WIDTH)
        per_block: tl.constexpr = PAIRS // BLOCKS
        # With half pairing, the first feature of each pair; the second comes `per_block` later. In two blocks
        # of three pairs, pair 4 begins at START + 1 * 6 + 1:
        #
        #     feature    0  1  2  3  4  5 | 6  7  8  9  10 11
        #                a0 a1 a2 b0 b1 b2| a3 a4 a5 b3 b4 b5
        half = (
            START + (pair // per_block) * (2 * per_block) + pair % per_block if BLOCKS > 1 else START + pair
        )
        half = half[None, None, :]
        half_present = present & (pair < PAIRS)[None, None, :]
        feature = tl.arange(0, 2 * WIDTH)
        both = (START + feature)[None, None, :]
        both_present = present & (feature < 2 * PAIRS)[None, None, :]
        if READS_HALF:
            a = tl.load(x + half * x_feature, half_present)
            b = tl.load(x + (half + per_block) * x_feature, half_present)
        else:
            pairs = tl.load(x + both * x_feature, both_present)
            a, b = tl.split(tl.reshape(pairs, (TOKENS, HEADS, WIDTH, 2)))
        a, b = a.to(REAL), b.to(REAL)
        rotated_a = (a * cos - b * sin).to(dtype)
        rotated_b = (b * cos + a * sin).to(dtype)
        if IN_PLACE and READS_HALF != WRITES_HALF:
            tl.debug_barrier()  # a thread writes features that another thread reads
        if WRITES_HALF:
            tl.store(y + half * y_feature, rotated_a, half_present)
            tl.store(y + (half + per_block) * y_feature, rotated_b, half_present)
        else:
            pairs = tl.reshape(tl.join(rotated_a, rotated_b), (TOKENS, HEADS, 2 * WIDTH))
            tl.store(y + both * y_feature, pairs, both_present)
    if COPIES:
        _copy_features(x, y, present, x_feature, y_feature, 0, START)
        _copy_features(x, y, present, x_feature, y_feature, START + 2 * PAIRS, HEAD_DIM)


@triton.jit
def _copy_features(x, y, present, x_feature, y_feature, BEGIN: tl.constexpr, END: tl.constexpr):
    if END > BEGIN:
        width: tl.constexpr = triton.next_power_of_2(END - BEGIN)
        feature = tl.arange(0, width)
        mask = present & (feature < END - BEGIN)[None, None, :]
        at = (BEGIN + feature)[None, None, :]
        tl.store(y + at * y_feature, tl.load(x + at * x_feature, mask), mask)
