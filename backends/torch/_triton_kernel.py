"""The rotation as a Triton kernel: one launch rotates the rows of two arrays, such as q and k.

A second entry point, `make_inputs`, norms the heads too, and writes k and v into caches.

A program takes a few tokens and a chunk of their heads. It computes cos and sin of each token once, or reads
them, and rotates all of its heads in both arrays, in tiles:

    cos, sin    (TOKENS, WIDTH)               a column for each pair, up to a power of two
    a, b        (HEADS, TOKENS, WIDTH)        the two features of each pair
    half pairing          a at START + pair, b `per_block` features later: two loads
    interleaved pairing   one load of (HEADS, TOKENS, 2 * WIDTH) features a0 b0 a1 b1 ..., split into a and b

The compiler gives neighbouring threads the last axes: a thread has all heads of few tokens, and few angles.

The angles are the same float operations as in rope_array/_array_api/angles.py; the integer steps differ but
give the same bits. Each product and sum is rounded, as on the CPU: the kernel is compiled with
`enable_fp_fusion=False`, and none of its operations depends on the GPU. So the bits, and with them the
errors, equal the array-api backend's.
"""

import triton
import triton.language as tl

from rope_array._array_api.angles import COS_32, COS_64, SIN_32, SIN_64
from rope_array._array_api.norm import COLUMNS
from rope_array._backends._gpu import Kind

# One constant each: older versions of Triton read no tuple of a module.
S0, S1, S2, S3 = map(tl.constexpr, SIN_32)
C1, C2, C3, C4 = map(tl.constexpr, COS_32)
D0, D1, D2, D3, D4, D5, D6 = map(tl.constexpr, SIN_64)
E1, E2, E3, E4, E5, E6, E7 = map(tl.constexpr, COS_64)
_SPACED = tl.constexpr(int(Kind.SPACED))
_TABLES = tl.constexpr(int(Kind.TABLES))

# Not specialized. Strides are passed in units of UNIT and SOURCE_UNIT elements, so the compiler knows the
# alignment. In a program of Inductor a number has 32 bits if it fits, and 1 is a constant. So tl.cast comes
# before a product.
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
    FUSED: tl.constexpr,  # whether the compiler fuses products and sums
    CHUNKS: tl.constexpr,  # of x0 and then of x1, of HEADS0 each; 0: all chunks have heads of both arrays
):  # fmt: skip
    outer, token, chunk = _place(seq, chunks, TOKENS, CHUNKS)
    if CHUNKS > 0:
        chunks0 = tl.cdiv(heads0, HEADS0)
        is_x1 = chunk >= chunks0
        x0, y0, chunk = tl.where(is_x1, x1, x0), tl.where(is_x1, y1, y0), chunk - tl.where(is_x1, chunks0, 0)
        heads0 = _either(is_x1, heads1, heads0)
        x0_outer, x0_seq = _either(is_x1, x1_outer, x0_outer), _either(is_x1, x1_seq, x0_seq)
        x0_head, x0_feature = _either(is_x1, x1_head, x0_head), _either(is_x1, x1_feature, x0_feature)
        y0_outer, y0_seq = _either(is_x1, y1_outer, y0_outer), _either(is_x1, y1_seq, y0_seq)
        y0_head, y0_feature = _either(is_x1, y1_head, y0_head), _either(is_x1, y1_feature, y0_feature)
    x0_feature, y0_feature = _feature_stride(x0_feature, STRIDED), _feature_stride(y0_feature, STRIDED)
    x1_feature, y1_feature = _feature_stride(x1_feature, STRIDED), _feature_stride(y1_feature, STRIDED)
    # The loads of q and k come before the angles, which take as long as a load, and before the first store: a
    # load would wait for a store that it might read.
    x, present0 = _rows(x0, outer, token, seq, chunk, heads0, x0_outer, x0_seq, x0_head, UNIT, HEADS0)
    q_a, q_b, q_before, q_after = _load_heads(
        x, present0, x0_feature, HEAD_DIM, START, PAIRS, BLOCKS, READS_HALF, COPIES, WIDTH
    )
    if HEADS1 > 0:
        x, present1 = _rows(x1, outer, token, seq, chunk, heads1, x1_outer, x1_seq, x1_head, UNIT, HEADS1)
        k_a, k_b, k_before, k_after = _load_heads(
            x, present1, x1_feature, HEAD_DIM, START, PAIRS, BLOCKS, READS_HALF, COPIES, WIDTH
        )
    cos, sin = _angles(
        first, second, words, position, outer, token, seq, first_outer, first_seq, second_outer, second_seq,
        coordinate_stride, KIND, SOURCE_UNIT, PAIRS, COORDINATES, SCALED, TRANSPOSED, REAL, WIDTH, FUSED,
    )  # fmt: skip
    if IN_PLACE and READS_HALF != WRITES_HALF:
        tl.debug_barrier()  # a thread writes features that another thread reads
    y, present0 = _rows(y0, outer, token, seq, chunk, heads0, y0_outer, y0_seq, y0_head, UNIT, HEADS0)
    q_a, q_b = _rotated(q_a, q_b, cos, sin, PAIRS, REAL, FUSED)
    _store_heads(
        y, q_a, q_b, q_before, q_after, present0, y0_feature, 1.0, HEAD_DIM, START, PAIRS, BLOCKS,
        WRITES_HALF, COPIES, TOKENS, HEADS0, WIDTH,
    )  # fmt: skip
    if HEADS1 > 0:
        y, present1 = _rows(y1, outer, token, seq, chunk, heads1, y1_outer, y1_seq, y1_head, UNIT, HEADS1)
        k_a, k_b = _rotated(k_a, k_b, cos, sin, PAIRS, REAL, FUSED)
        _store_heads(
            y, k_a, k_b, k_before, k_after, present1, y1_feature, 1.0, HEAD_DIM, START, PAIRS, BLOCKS,
            WRITES_HALF, COPIES, TOKENS, HEADS1, WIDTH,
        )  # fmt: skip


@triton.jit
def _feature_stride(stride, STRIDED: tl.constexpr):
    """Return the stride of features in 64 bits; 1 is a constant."""
    return tl.cast(stride, tl.int64) if STRIDED else 1


@triton.jit
def _either(condition, a, b):
    """Return one of two numbers, of which a compiler may know one."""
    return tl.where(condition, tl.cast(a, tl.int64), tl.cast(b, tl.int64))


@triton.jit
def _place(seq, chunks, TOKENS: tl.constexpr, CHUNKS: tl.constexpr):
    """Return a program's index along `outer`, its tokens along `seq`, and its chunk of heads."""
    # Row offsets have 64 bits, program numbers 32: a division of 64 bits takes 100 instructions. One axis of
    # programs, as CUDA limits the others to 65,535. With 2 chunks of heads and 3 tiles of tokens:
    #
    #     program    0   1   2   3   4   5 | 6   7 ...
    #     chunk      0   1   0   1   0   1 | 0   1
    #     tile       0   0   1   1   2   2 | 3   3       of all tokens: outer = tile // tiles
    # Most launches have one chunk, or one index along `outer`: branches skip divisions, whose 35 instructions
    # each all loads would wait for.
    tiles, chunks = tl.cast(tl.cdiv(seq, TOKENS), tl.int32), tl.cast(chunks, tl.int32)
    tile = tl.program_id(0)
    chunk, outer = tile * 0, tile * 0
    if CHUNKS > 0:
        chunk, tile = tile % CHUNKS, tile // CHUNKS
    elif chunks > 1:
        chunk, tile = tile % chunks, tile // chunks
    if tile >= tiles:
        outer, tile = tile // tiles, tile % tiles
    token = tile.to(tl.int64) * TOKENS + tl.arange(0, TOKENS)
    return outer.to(tl.int64), token, chunk.to(tl.int64)


@triton.jit
def _angles(
    first, second, words, position, outer, token, seq, first_outer, first_seq, second_outer, second_seq,
    coordinate_stride, KIND: tl.constexpr, SOURCE_UNIT: tl.constexpr, PAIRS: tl.constexpr,
    COORDINATES: tl.constexpr, SCALED: tl.constexpr, TRANSPOSED: tl.constexpr, REAL: tl.constexpr,
    WIDTH: tl.constexpr, FUSED: tl.constexpr,
):  # fmt: skip
    """Return cos and sin of a program's tokens: (tokens, pairs)."""
    pair = tl.arange(0, WIDTH)
    present = (token < seq)[:, None] & (pair < PAIRS)[None, :]
    if PAIRS == 0:
        cos, sin = 0, 0
    elif KIND == _TABLES:
        row = outer * first_outer * SOURCE_UNIT + token * first_seq * SOURCE_UNIT
        cos = tl.load(first + row[:, None] + pair[None, :], present).to(REAL)
        row = outer * second_outer * SOURCE_UNIT + token * second_seq * SOURCE_UNIT
        sin = tl.load(second + row[:, None] + pair[None, :], present).to(REAL)
        if TRANSPOSED:
            sin = -sin
    else:
        if KIND == _SPACED:
            numbers = (tl.cast(position, tl.int64) + outer * first_outer + token * first_seq)[:, None]
        else:
            at = first + (outer * first_outer + token * first_seq)[:, None]  # SOURCE_UNIT is 1
            if COORDINATES:
                driver = tl.load(words + 3 * PAIRS + pair, pair < PAIRS, other=0)
                numbers = tl.load(at + driver[None, :] * coordinate_stride, present)
            else:
                numbers = tl.load(at, (token < seq)[:, None])
        cos, sin = _cos_sin(numbers, words, pair, PAIRS, REAL, FUSED)
        if SCALED:
            amplitude = tl.load(words + 4 * PAIRS).to(tl.float64, bitcast=True).to(REAL)
            cos, sin = cos * amplitude, sin * amplitude
        if TRANSPOSED:
            sin = -sin
    return cos, sin


@triton.jit
def _cos_sin(positions, words, pair, PAIRS: tl.constexpr, REAL: tl.constexpr, FUSED: tl.constexpr):
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
            u, quarters = _add_fraction(u, fraction, words, pair, PAIRS, FUSED)
            quadrant += quarters << 62
        z = u * u
        cos = _step(_step(_step(tl.full((1, 1), E7, REAL), z, E6, FUSED), z, E5, FUSED), z, E4, FUSED)
        cos = _step(_step(_step(cos, z, E3, FUSED), z, E2, FUSED), z, E1, FUSED)
        sin = _step(_step(_step(tl.full((1, 1), D6, REAL), z, D5, FUSED), z, D4, FUSED), z, D3, FUSED)
        sin = _step(_step(_step(sin, z, D2, FUSED), z, D1, FUSED), z, D0, FUSED)
        odd = (quadrant & (1 << 62)) != 0
        cos, sin = _step(cos, z, 1.0, FUSED), u * sin
        sign: tl.constexpr = -(1 << 63)
        cos_sign = (quadrant + (1 << 62)) & sign
        word = tl.int64
    else:
        turns = tl.load(words + pair, mask, other=0)[None, :]
        phase = ((numbers * turns) >> 32).to(tl.int32)  # position · F mod 2^64, its upper half
        u = (phase << 2).to(tl.float32) * 4.656612873077393e-10  # 2^-31
        quadrant = phase + (1 << 29)
        if positions.dtype.is_floating():
            u, quarters = _add_fraction(u, fraction, words, pair, PAIRS, FUSED)
            u, quadrant = u.to(tl.float32), quadrant + (quarters << 30).to(tl.int32)
        z = u * u
        cos = _step(_step(_step(tl.full((1, 1), C4, REAL), z, C3, FUSED), z, C2, FUSED), z, C1, FUSED)
        sin = _step(_step(_step(tl.full((1, 1), S3, REAL), z, S2, FUSED), z, S1, FUSED), z, S0, FUSED)
        odd = (quadrant & (1 << 30)) != 0
        cos, sin = _step(cos, z, 1.0, FUSED), u * sin
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
def _step(x, y, z, FUSED: tl.constexpr):
    """Return x * y + z, rounded twice; x is a tensor."""
    return _product(x, y, FUSED) + z


@triton.jit
def _product(x, y, FUSED: tl.constexpr):
    """Return x * y, rounded: a compiler that fuses products and sums leaves this instruction as it is."""
    if FUSED:
        if x.dtype == tl.float64:
            x = tl.inline_asm_elementwise("mul.rn.f64 $0, $1, $2;", "=d,d,d", [x, y], tl.float64, True, 1)
        else:
            x = tl.inline_asm_elementwise("mul.rn.f32 $0, $1, $2;", "=f,f,f", [x, y], tl.float32, True, 1)
    else:
        x = x * y
    return x


@triton.jit
def _split(x):
    """Split floats into the nearest integers, ties to even, and the rest, which is exact."""
    unit: tl.constexpr = 2.0**52 if x.dtype == tl.float64 else 2.0**23
    shift = tl.where(x < 0, -unit, unit)  # a sum with it is rounded to an integer
    nearest = tl.where(tl.abs(x) < unit, (x + shift) - shift, x)  # larger floats are integers
    # The conversion of NaN and of floats beyond int64 is undefined: convert the result of x86 processors.
    return tl.where(tl.abs(nearest) < 2.0**63, nearest, -(2.0**63)).to(tl.int64), x - nearest


@triton.jit
def _add_fraction(u, fraction, words, pair, PAIRS: tl.constexpr, FUSED: tl.constexpr):
    """Add the angles of fractions of positions, |f| <= 1/2, to u eighths of a turn from an axis.

    Return the distance from the nearest axis, in float64 for fractions in float64, and integers: their lower
    two bits are the quarters of a turn to that axis. Valid if `Plan.takes_fractions`.
    """
    eighths = tl.load(words + 5 * PAIRS + pair, pair < PAIRS, other=0).to(tl.float64, bitcast=True)[None, :]
    if fraction.dtype == tl.float64:
        u = u.to(tl.float64)
    u = _step(fraction.to(u.dtype), eighths.to(u.dtype), u, FUSED)
    # Round u / 2 to an integer, ties to even: floats around 1.5·2^24, or 1.5·2^53, are 2 apart.
    rounder: tl.constexpr = 1.5 * 2.0**53 if u.dtype == tl.float64 else 1.5 * 2.0**24
    word: tl.constexpr = tl.int64 if u.dtype == tl.float64 else tl.int32
    sum = u + rounder
    return u - (sum - rounder), sum.to(word, bitcast=True)


@triton.jit
def _rotated(a, b, cos, sin, PAIRS: tl.constexpr, REAL: tl.constexpr, FUSED: tl.constexpr):
    """Return the pairs of some heads, rotated by the angles of their tokens, in REAL."""
    if PAIRS > 0:
        a, b, cos, sin = _real(a, REAL), _real(b, REAL), cos[None, :, :], sin[None, :, :]
        a_cos, b_sin = _product(a, cos, FUSED), _product(b, sin, FUSED)
        a, b = a_cos - b_sin, _product(b, cos, FUSED) + _product(a, sin, FUSED)
    return a, b


@triton.jit
def _real(x, REAL: tl.constexpr):
    """Return numbers in the compute dtype; the upper one of two bfloat16 by one instruction, not by two."""
    if x.dtype == tl.bfloat16:
        return (x.to(tl.uint16, bitcast=True).to(tl.uint32) << 16).to(tl.float32, bitcast=True)
    return x.to(REAL)


@triton.jit
def _rows(
    x, outer, token, seq, chunk, heads, x_outer, x_seq, x_head, UNIT: tl.constexpr, HEADS: tl.constexpr
):
    """Return the addresses of a chunk of the heads of some tokens, (heads, tokens, 1), and which exist."""
    x_outer, x_seq, x_head = tl.cast(x_outer, tl.int64), tl.cast(x_seq, tl.int64), tl.cast(x_head, tl.int64)
    head = chunk * HEADS + tl.arange(0, HEADS)
    present = (head < heads)[:, None, None] & (token < seq)[None, :, None]
    x += (outer * (x_outer * UNIT) + token * (x_seq * UNIT))[None, :, None]
    return x + (head * (x_head * UNIT))[:, None, None], present


@triton.jit
def _load_pairs(
    x, present, x_feature, START: tl.constexpr, PAIRS: tl.constexpr, BLOCKS: tl.constexpr, HALF: tl.constexpr,
    WIDTH: tl.constexpr,
):  # fmt: skip
    """Return the two features of each pair of some rows."""
    if HALF:
        half, mask = _first_features(present, START, PAIRS, BLOCKS, WIDTH)
        a = tl.load(x + half * x_feature, mask)
        b = tl.load(x + (half + PAIRS // BLOCKS) * x_feature, mask)
    else:
        feature = tl.arange(0, 2 * WIDTH)
        mask = present & (feature < 2 * PAIRS)[None, None, :]
        pairs = tl.load(x + (START + feature)[None, None, :] * x_feature, mask)
        a, b = tl.split(tl.reshape(pairs, (pairs.shape[0], pairs.shape[1], WIDTH, 2)))
    return a, b


@triton.jit
def _store_pairs(
    y, a, b, present, y_feature, START: tl.constexpr, PAIRS: tl.constexpr, BLOCKS: tl.constexpr,
    HALF: tl.constexpr, TOKENS: tl.constexpr, HEADS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Write the two features of each pair of some rows."""
    if HALF:
        half, mask = _first_features(present, START, PAIRS, BLOCKS, WIDTH)
        tl.store(y + half * y_feature, a, mask)
        tl.store(y + (half + PAIRS // BLOCKS) * y_feature, b, mask)
    else:
        feature = tl.arange(0, 2 * WIDTH)
        mask = present & (feature < 2 * PAIRS)[None, None, :]
        pairs = tl.reshape(tl.join(a, b), (HEADS, TOKENS, 2 * WIDTH))
        tl.store(y + (START + feature)[None, None, :] * y_feature, pairs, mask)


@triton.jit
def _first_features(
    present, START: tl.constexpr, PAIRS: tl.constexpr, BLOCKS: tl.constexpr, WIDTH: tl.constexpr
):
    """Return the first feature of each pair with half pairing, and which exist.

    The second comes `per_block` later. In two blocks of three pairs, pair 4 begins at START + 1 * 6 + 1:

        feature    0  1  2  3  4  5 | 6  7  8  9  10 11
                   a0 a1 a2 b0 b1 b2| a3 a4 a5 b3 b4 b5
    """
    pair = tl.arange(0, WIDTH)
    per_block: tl.constexpr = PAIRS // BLOCKS
    half = START + (pair // per_block) * (2 * per_block) + pair % per_block if BLOCKS > 1 else START + pair
    return half[None, None, :], present & (pair < PAIRS)[None, None, :]


@triton.jit
def _load_heads(
    x, present, x_feature, HEAD_DIM: tl.constexpr, START: tl.constexpr, PAIRS: tl.constexpr,
    BLOCKS: tl.constexpr, HALF: tl.constexpr, COPIES: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Return the pairs of some heads; the features before and after the slice too if COPIES."""
    a, b, before, after = 0, 0, 0, 0
    if PAIRS > 0:
        a, b = _load_pairs(x, present, x_feature, START, PAIRS, BLOCKS, HALF, WIDTH)
    if COPIES:
        before = _load_features(x, present, x_feature, 0, START)
        after = _load_features(x, present, x_feature, START + 2 * PAIRS, HEAD_DIM)
    return a, b, before, after


@triton.jit
def _load_features(x, present, x_feature, BEGIN: tl.constexpr, END: tl.constexpr):
    """Return some features; 0 if END is BEGIN."""
    values = 0
    if END > BEGIN:
        feature = tl.arange(0, triton.next_power_of_2(END - BEGIN))
        mask = present & (feature < END - BEGIN)[None, None, :]
        values = tl.load(x + (BEGIN + feature)[None, None, :] * x_feature, mask)
    return values


@triton.jit
def _store_heads(
    y, a, b, before, after, present, y_feature, scale, HEAD_DIM: tl.constexpr, START: tl.constexpr,
    PAIRS: tl.constexpr, BLOCKS: tl.constexpr, HALF: tl.constexpr, COPIES: tl.constexpr, TOKENS: tl.constexpr,
    HEADS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Write heads in the dtype of y; the features outside of the slice too if COPIES."""
    if PAIRS > 0:
        a, b = _stored(a, scale, y.dtype.element_ty), _stored(b, scale, y.dtype.element_ty)
        _store_pairs(y, a, b, present, y_feature, START, PAIRS, BLOCKS, HALF, TOKENS, HEADS, WIDTH)
    if COPIES:
        _store_features(y, before, present, y_feature, scale, 0, START)
        _store_features(y, after, present, y_feature, scale, START + 2 * PAIRS, HEAD_DIM)


@triton.jit
def _store_features(y, values, present, y_feature, scale, BEGIN: tl.constexpr, END: tl.constexpr):
    if END > BEGIN:
        feature = tl.arange(0, triton.next_power_of_2(END - BEGIN))
        mask = present & (feature < END - BEGIN)[None, None, :]
        values = _stored(values, scale, y.dtype.element_ty)
        tl.store(y + (BEGIN + feature)[None, None, :] * y_feature, values, mask)


# ---- attention's inputs: norm, rotation, and k and v into caches ----

_COLUMNS = tl.constexpr(COLUMNS)
_HEADS_OF = ("outer", "seq", "head", "feature")
_INPUT_NUMBERS = [
    *_NUMBERS,
    *("heads2", "num_tokens", "slots_outer", "slots_seq"),
    *(f"{array}_{axis}" for array in ("w0", "w1") for axis in _HEADS_OF[:3]),
    *(f"v_{axis}" for axis in _HEADS_OF),
    *(f"{array}_{axis}" for array in ("kc", "vc") for axis in (*_HEADS_OF, "page", "slot", "slots")),
    *("k_scale", "v_scale"),
]


@triton.jit(do_not_specialize=_INPUT_NUMBERS)
def make_inputs(
    x0, y0, x1, y1, first, second, words,  # as of rotate_rows, and so all arguments of these names
    weight0, weight1, v, k_cache, v_cache,
    slots,  # the slot of each token, contiguous
    k_scale: tl.float32, v_scale: tl.float32,
    position: tl.int64, seq: tl.int64, chunks: tl.int64, heads0: tl.int64, heads1: tl.int64,
    x0_outer: tl.int64, x0_seq: tl.int64, x0_head: tl.int64, x0_feature: tl.int64,
    y0_outer: tl.int64, y0_seq: tl.int64, y0_head: tl.int64, y0_feature: tl.int64,
    x1_outer: tl.int64, x1_seq: tl.int64, x1_head: tl.int64, x1_feature: tl.int64,
    y1_outer: tl.int64, y1_seq: tl.int64, y1_head: tl.int64, y1_feature: tl.int64,
    first_outer: tl.int64, first_seq: tl.int64, second_outer: tl.int64, second_seq: tl.int64,
    coordinate_stride: tl.int64,
    heads2: tl.int64,  # of v
    num_tokens: tl.int64, slots_outer: tl.int64, slots_seq: tl.int64,
    # Strides of weights in elements; of v and of caches in units of CACHE_UNIT, of features in elements. The
    # last number of a cache is how many slots it has.
    w0_outer: tl.int64, w0_seq: tl.int64, w0_head: tl.int64,
    w1_outer: tl.int64, w1_seq: tl.int64, w1_head: tl.int64,
    v_outer: tl.int64, v_seq: tl.int64, v_head: tl.int64, v_feature: tl.int64,
    kc_outer: tl.int64, kc_seq: tl.int64, kc_head: tl.int64, kc_feature: tl.int64,
    kc_page: tl.int64, kc_slot: tl.int64, kc_slots: tl.int64,
    vc_outer: tl.int64, vc_seq: tl.int64, vc_head: tl.int64, vc_feature: tl.int64,
    vc_page: tl.int64, vc_slot: tl.int64, vc_slots: tl.int64,
    KIND: tl.constexpr, UNIT: tl.constexpr, SOURCE_UNIT: tl.constexpr, STRIDED: tl.constexpr,
    HEAD_DIM: tl.constexpr, START: tl.constexpr, PAIRS: tl.constexpr, BLOCKS: tl.constexpr,
    READS_HALF: tl.constexpr, WRITES_HALF: tl.constexpr, COPIES: tl.constexpr, COORDINATES: tl.constexpr,
    SCALED: tl.constexpr, TRANSPOSED: tl.constexpr, IN_PLACE: tl.constexpr, REAL: tl.constexpr,
    TOKENS: tl.constexpr, HEADS0: tl.constexpr, HEADS1: tl.constexpr, WIDTH: tl.constexpr,
    FUSED: tl.constexpr,
    NORM: tl.constexpr,  # 0: none; its roundings: 1 none, 2 "norm", 3 "steps"
    EPS: tl.constexpr, OFFSET: tl.constexpr,
    WEIGHT0: tl.constexpr, WEIGHT1: tl.constexpr,  # 0: ones; axes of the weight
    HEADS2: tl.constexpr,  # 0: there is no v
    V_DIM: tl.constexpr,
    CACHED: tl.constexpr, CACHE_UNIT: tl.constexpr,
    K_PAGE: tl.constexpr, V_PAGE: tl.constexpr,  # slots of a page; 0: there are no pages
    SEARCHES: tl.constexpr,  # look for a later token with the slot
):  # fmt: skip
    outer, token, chunk = _place(seq, chunks, TOKENS, 0)
    x0_feature, y0_feature = _feature_stride(x0_feature, STRIDED), _feature_stride(y0_feature, STRIDED)
    x1_feature, y1_feature = _feature_stride(x1_feature, STRIDED), _feature_stride(y1_feature, STRIDED)
    if not STRIDED:
        v_feature, kc_feature, vc_feature = 1, 1, 1
    # As in rotate_rows, all loads come before the first store: q, k and v may be views of one array.
    q, present0 = _rows(x0, outer, token, seq, chunk, heads0, x0_outer, x0_seq, x0_head, UNIT, HEADS0)
    q_a, q_b, q_before, q_after = _load_heads(
        q, present0, x0_feature, HEAD_DIM, START, PAIRS, BLOCKS, READS_HALF, True, WIDTH
    )
    w0_a, w0_b, w0_before, w0_after = _load_weights(
        weight0, outer, token, seq, chunk, heads0, w0_outer, w0_seq, w0_head, WEIGHT0, HEADS0, HEAD_DIM,
        START, PAIRS, BLOCKS, READS_HALF, WIDTH,
    )  # fmt: skip
    if HEADS1 > 0:
        k, present1 = _rows(x1, outer, token, seq, chunk, heads1, x1_outer, x1_seq, x1_head, UNIT, HEADS1)
        k_a, k_b, k_before, k_after = _load_heads(
            k, present1, x1_feature, HEAD_DIM, START, PAIRS, BLOCKS, READS_HALF, True, WIDTH
        )
        w1_a, w1_b, w1_before, w1_after = _load_weights(
            weight1, outer, token, seq, chunk, heads1, w1_outer, w1_seq, w1_head, WEIGHT1, HEADS1, HEAD_DIM,
            START, PAIRS, BLOCKS, READS_HALF, WIDTH,
        )  # fmt: skip
    if HEADS2 > 0:
        x, present2 = _rows(v, outer, token, seq, chunk, heads2, v_outer, v_seq, v_head, CACHE_UNIT, HEADS2)
        values = _load_features(x, present2, v_feature, 0, V_DIM)
    if CACHED:
        index = outer * slots_outer + token * slots_seq
        slot = tl.load(slots + index, token < seq, other=-1).to(tl.int64)
        if SEARCHES:
            slot = _slots_of_last_tokens(slot, index, slots, num_tokens)
    cos, sin = _angles(
        first, second, words, position, outer, token, seq, first_outer, first_seq, second_outer, second_seq,
        coordinate_stride, KIND, SOURCE_UNIT, PAIRS, COORDINATES, SCALED, TRANSPOSED, REAL, WIDTH, FUSED,
    )  # fmt: skip
    if NORM > 0:
        q_a, q_b, q_before, q_after = _normed_heads(
            q_a, q_b, q_before, q_after, w0_a, w0_b, w0_before, w0_after, q, present0, x0_feature, HEAD_DIM,
            START, PAIRS, REAL, FUSED, NORM, EPS, OFFSET, WEIGHT0,
        )  # fmt: skip
    q_a, q_b = _rotated(q_a, q_b, cos, sin, PAIRS, REAL, FUSED)
    if HEADS1 > 0:
        if NORM > 0:
            k_a, k_b, k_before, k_after = _normed_heads(
                k_a, k_b, k_before, k_after, w1_a, w1_b, w1_before, w1_after, k, present1, x1_feature,
                HEAD_DIM, START, PAIRS, REAL, FUSED, NORM, EPS, OFFSET, WEIGHT1,
            )  # fmt: skip
        k_a, k_b = _rotated(k_a, k_b, cos, sin, PAIRS, REAL, FUSED)
    if IN_PLACE and (READS_HALF != WRITES_HALF or NORM > 0):
        tl.debug_barrier()  # a thread writes features that another thread reads
    y, present0 = _rows(y0, outer, token, seq, chunk, heads0, y0_outer, y0_seq, y0_head, UNIT, HEADS0)
    _store_heads(
        y, q_a, q_b, q_before, q_after, present0, y0_feature, 1.0, HEAD_DIM, START, PAIRS, BLOCKS,
        WRITES_HALF, COPIES, TOKENS, HEADS0, WIDTH,
    )  # fmt: skip
    if HEADS1 > 0:
        y, present1 = _rows(y1, outer, token, seq, chunk, heads1, y1_outer, y1_seq, y1_head, UNIT, HEADS1)
        _store_heads(
            y, k_a, k_b, k_before, k_after, present1, y1_feature, 1.0, HEAD_DIM, START, PAIRS, BLOCKS,
            WRITES_HALF, COPIES, TOKENS, HEADS1, WIDTH,
        )  # fmt: skip
    if CACHED:
        y, present1 = _rows(
            k_cache, outer, token, seq, chunk, heads1, kc_outer, kc_seq, kc_head, CACHE_UNIT, HEADS1
        )
        y += _slot_offset(slot, K_PAGE, kc_page, kc_slot, CACHE_UNIT)
        present1 = present1 & ((slot >= 0) & (slot < kc_slots))[None, :, None]
        _store_heads(
            y, k_a, k_b, k_before, k_after, present1, kc_feature, k_scale, HEAD_DIM, START, PAIRS, BLOCKS,
            WRITES_HALF, True, TOKENS, HEADS1, WIDTH,
        )  # fmt: skip
    if HEADS2 > 0:
        y, present2 = _rows(
            v_cache, outer, token, seq, chunk, heads2, vc_outer, vc_seq, vc_head, CACHE_UNIT, HEADS2
        )
        y += _slot_offset(slot, V_PAGE, vc_page, vc_slot, CACHE_UNIT)
        present2 = present2 & ((slot >= 0) & (slot < vc_slots))[None, :, None]
        _store_features(y, values, present2, vc_feature, v_scale, 0, V_DIM)


@triton.jit
def _slots_of_last_tokens(slot, index, slots, num_tokens):
    """Return slots with -1 where a later token has the same slot; `index` counts tokens in their order."""
    again = index < 0
    for begin in range(0, num_tokens, 64):
        other = begin + tl.arange(0, 64)
        other_slot = tl.load(slots + other, other < num_tokens, other=-1).to(tl.int64)
        equal = (other_slot[None, :] == slot[:, None]) & (other[None, :] > index[:, None])
        again = again | (tl.max(equal.to(tl.int32), axis=1) > 0)
    return tl.where(again, -1, slot)


@triton.jit
def _slot_offset(slot, PAGE: tl.constexpr, page_stride, slot_stride, UNIT: tl.constexpr):
    """Return where a slot begins in a cache, in 64 bits, for each token."""
    offset = slot * (slot_stride.to(tl.int64) * UNIT)
    if PAGE > 0:
        offset = slot % PAGE * (slot_stride.to(tl.int64) * UNIT)
        offset += slot // PAGE * (page_stride.to(tl.int64) * UNIT)
    return offset[None, :, None]


@triton.jit
def _load_weights(
    weight, outer, token, seq, chunk, heads, w_outer, w_seq, w_head, AXES: tl.constexpr, HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr, START: tl.constexpr, PAIRS: tl.constexpr, BLOCKS: tl.constexpr,
    HALF: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Return the weights of some heads, or the weights that all share, as _load_heads; ones without axes."""
    a, b, before, after = 1.0, 1.0, 1.0, 1.0
    if AXES > 0:
        present = tl.full((1, 1, 1), 1, tl.int1)
        if AXES == 2:
            weight, present = _rows(weight, outer, token, seq, chunk, heads, w_outer, w_seq, w_head, 1, HEADS)
        a, b, before, after = _load_heads(
            weight, present, 1, HEAD_DIM, START, PAIRS, BLOCKS, HALF, True, WIDTH
        )
    return a, b, before, after


@triton.jit
def _normed_heads(
    a, b, before, after, w_a, w_b, w_before, w_after, x, present, x_feature, HEAD_DIM: tl.constexpr,
    START: tl.constexpr, PAIRS: tl.constexpr, REAL: tl.constexpr, FUSED: tl.constexpr, NORM: tl.constexpr,
    EPS: tl.constexpr, OFFSET: tl.constexpr, WEIGHT: tl.constexpr,
):  # fmt: skip
    """Norm the pairs of heads, and their features before and after the slice."""
    dtype = x.dtype.element_ty
    r = _inverse_rms(x, present, x_feature, HEAD_DIM, EPS, REAL, FUSED)
    if PAIRS > 0:
        a = _normed(a, r, w_a, dtype, REAL, NORM, OFFSET, WEIGHT)
        b = _normed(b, r, w_b, dtype, REAL, NORM, OFFSET, WEIGHT)
    if START > 0:
        before = _normed(before, r, w_before, dtype, REAL, NORM, OFFSET, WEIGHT)
    if START + 2 * PAIRS < HEAD_DIM:
        after = _normed(after, r, w_after, dtype, REAL, NORM, OFFSET, WEIGHT)
    return a, b, before, after


@triton.jit
def _inverse_rms(
    x, present, x_feature, HEAD_DIM: tl.constexpr, EPS: tl.constexpr, REAL: tl.constexpr, FUSED: tl.constexpr
):
    """Return 1 / sqrt(mean of squares + eps) of each head, summed as in rope_array/_array_api/norm.py."""
    size: tl.constexpr = min(_COLUMNS, triton.next_power_of_2(HEAD_DIM))
    total = _squares(x, present, x_feature, 0, size, HEAD_DIM, REAL, FUSED)
    for start in tl.static_range(size, HEAD_DIM, size):
        total += _squares(x, present, x_feature, start, size, HEAD_DIM, REAL, FUSED)
    # Each tl.sum has two terms: of more, the order would depend on how the columns are spread over threads.
    for fold in tl.static_range(6):
        if size >> fold > 1:
            halves = tl.reshape(total, (total.shape[0], total.shape[1], 2, size >> (fold + 1)))
            total = tl.sum(halves, axis=2)
    mean = _step(total, tl.full((1, 1), 1.0 / HEAD_DIM, REAL), EPS, FUSED)
    # The _rn functions, which round as IEEE 754 requires, exist for float32; float64 is always rounded so.
    return 1.0 / tl.sqrt(mean) if tl.float64 == REAL else tl.div_rn(1.0, tl.sqrt_rn(mean))


@triton.jit
def _squares(
    x, present, x_feature, START: tl.constexpr, SIZE: tl.constexpr, HEAD_DIM: tl.constexpr,
    REAL: tl.constexpr, FUSED: tl.constexpr,
):  # fmt: skip
    """Return the squares of features from START on; zeros after the last."""
    # Addresses and mask are written as in _load_pairs, so that the compiler loads a head once.
    column = tl.arange(0, SIZE)
    mask = present & (column < min(SIZE, HEAD_DIM - START))[None, None, :]
    value = _real(tl.load(x + (column[None, None, :] + START) * x_feature, mask), REAL)
    if START + SIZE > HEAD_DIM:
        value = tl.where(mask, value, 0.0)
    return _product(value, value, FUSED)


@triton.jit
def _normed(
    value, r, weight, dtype: tl.constexpr, REAL: tl.constexpr, NORM: tl.constexpr, OFFSET: tl.constexpr,
    WEIGHT: tl.constexpr,
):  # fmt: skip
    value = _real(value, REAL) * r
    if NORM == 3:
        value = value.to(dtype).to(REAL)
    if WEIGHT > 0:
        weight = _real(weight, REAL)
        if OFFSET != 0:
            weight = weight + OFFSET
        value = value * weight
    return value if NORM == 1 else value.to(dtype).to(REAL)


@triton.jit
def _stored(values, scale, dtype: tl.constexpr):
    """Return values as memory has them: of int8, or of float8_e4m3fn as uint8, divided by the scale first."""
    if dtype == tl.int8 or dtype == tl.uint8:
        values = tl.div_rn(values.to(tl.float32), scale)
        is_number = values == values
        if dtype == tl.int8:
            values = tl.where(is_number, tl.minimum(tl.maximum(values, -128.0), 127.0), 0.0)
            values = (values + 12582912.0) - 12582912.0  # 1.5 * 2^23: a sum with it is rounded to an integer
        else:
            values = tl.where(is_number, tl.minimum(tl.maximum(values, -448.0), 448.0), values)
            values = _bits_of_e4m3(values)
    return values.to(dtype)


@triton.jit
def _bits_of_e4m3(x):
    """Return float32 numbers, |x| <= 448, rounded to float8_e4m3fn: to nearest, ties to even. NaN is 0x7F.

    By integers: only since compute capability 8.9 is there an instruction.

        float32    s eeeeeeee mmm mmmmmmmmmmmmmmmmmmmm    exponent + 127
        e4m3       s     eeee mmm                         exponent + 7
    """
    bits = x.to(tl.int32, bitcast=True)
    size = bits & 0x7FFFFFFF
    normal = ((size + 0x7FFFF + ((size >> 20) & 1)) >> 20) - ((127 - 7) << 3)
    # Below 2^-6 numbers are multiples of 2^-9, as are the floats around 2^14.
    small = (tl.abs(x) + 16384.0).to(tl.int32, bitcast=True) - 0x46800000
    number = tl.where(size < 0x3C800000, small, normal)
    return tl.where(size > 0x7F800000, 0x7F, number) | ((bits >> 24) & 0x80)
