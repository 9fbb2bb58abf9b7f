"""The kernel has the bits of the array-api backend, for every spec, position and table."""

import itertools

import numpy as np
import pytest
from compare import assert_same, words
from conftest import LEVELS, NIGHTLY
from native_cases import (
    DTYPES,
    F16,
    F32,
    F64,
    PAIRINGS,
    SEVERAL,
    SPECS,
    RoPE,
    by_array_api,
    by_dtype,
    check,
    in_pairs_of,
    kernel,
    normal,
    spaced,
    unaligned,
    uneven,
)

pytestmark = pytest.mark.usefixtures("kernel_settings")


def check_tables(rope, pos, x, **kwargs):
    """Compare the kernel's rotations by tables with the array-api backend's."""
    rotation = rope.rotation(pos, like=x, **kwargs)
    for form in (rotation, rotation.inverse(), rotation.adjoint()):
        expected = form.apply(x, backend="array-api")
        assert_same(form.apply(x), expected)
        assert_same(form.apply(x, out=np.empty(x.shape, x.dtype)), expected)
        y = np.copy(x)
        form.apply(y, out=y)
        assert_same(y, expected, "in place")
    assert_same(rotation.apply(x, backend="native"), rotation.apply(x, backend="array-api"), "by name")


@in_pairs_of(spec=[*SPECS, *SEVERAL])
def test_every_kind_of_spec(level, dtype, spec):
    """By positions with several heads and with one, where the loop computes the angles; and by tables."""
    rope = (SPECS | SEVERAL)[spec]
    last = (rope.axes.count,) if spec in SEVERAL else ()
    x, rng = normal((2, 3, 5, rope.head_dim), dtype), np.random.default_rng(1)
    check(rope, x, rng.integers(-(2**31), 2**31, (2, 5, *last)))
    check(rope, x, np.resize([0, 1, -7, 123_456_789, 2**40], (5, *last)))
    check(rope, x, rng.integers(-(2**31), 2**31, (*last, 5), dtype=np.int32).T[::-1], "int32, transposed")
    check(rope, x[:, :1], rng.integers(-(2**31), 2**31, (2, 5, *last)), "one head")
    check(rope, x[0, 0, 0], [1, 2, 3][: last[0]] if last else 3, "a vector")
    for shape in [(5,), (2, 5), (2, 1), (1,), (2, 3, 5), ()]:
        check_tables(rope, rng.integers(-999, 999, shape + last), x)
    check_tables(rope, rng.uniform(-999, 999, (5, *last)).astype(F32), x[::-1, :, :, ::-1])


FAST = RoPE(40, inv_freq=(1e5, -3.0, 0.1, 0.0, 7.0, 1e3, 2.0, 30.0, 4.0, 5.0) * 2, attention_factor=1.3)


@by_dtype
@pytest.mark.parametrize("largest", [1.0, 1e3, 2.0**31, 2.0**40, 2.0**62], ids="{:g}".format)
def test_positions_of_any_spacing(level, dtype, largest):
    """A fraction moves a fast pair by many turns; beyond int32, positions have two words."""
    x, rng = normal((2, 3, 40, 40), dtype), np.random.default_rng(2)
    uniform = rng.uniform(-largest, largest, (2, 40))
    uniform[:, :6] = [0.5, -0.5, 1.5, np.nan, np.inf, -0.0]
    for pos in (uniform, uniform.astype(F32), rng.integers(-int(largest), int(largest), (2, 40))):
        with np.errstate(invalid="ignore"):  # NaN as an integer, in the array-api backend
            check(FAST, x, pos)
            check(FAST, x[:, 0], pos, "one head")
            tables = (FAST.rotation(pos, like=x, backend=backend) for backend in (None, "array-api"))
            for table, expected in zip(*tables, strict=True):
                assert_same(table, expected)


@by_dtype
@pytest.mark.parametrize("pairings", PAIRINGS, ids=words)
def test_every_number_of_pairs(level, dtype, pairings):
    """Chunks of each power of two, by columns, by rows and fused; NaN and infinity stay in their pair."""
    for num_pairs in [*range(1, 36), 47, 63, 64, 65, 80, 127] if NIGHTLY else [1, 2, 3, 7, 17, 31, 64, 127]:
        rope, pos = RoPE(2 * num_pairs, pairing=pairings[0], out_pairing=pairings[1]), [5, -6, 10**9, 7, 8]
        x = normal((2, 5, 2 * num_pairs), dtype, seed=num_pairs)
        x[0, 1, num_pairs // 2], x[1, 2, -1] = np.nan, np.inf
        for name, index in {"by columns": np.s_[:], "by rows": np.s_[:, :3], "fused": np.s_[1:]}.items():
            at = pos[: x[index].shape[1]]
            assert_same(
                rope.apply(x[index], at), by_array_api(rope, x[index], at), f"{num_pairs} pairs, {name}"
            )


# Random calls have the others: integers of each dtype with any bits, strides, shapes and steps.
POSITIONS = [
    *(-(2**63), 2**63 - 1, np.int32(5), np.uint8(200), np.int64(-(2**62)), [1, 2, 3, 5, 8]),
    *(range(2**63 - 5, 2**63), range(-(2**62), 2**62, 2**61 - 2**59 + 2**57), range(9, 10)),
    *(np.arange(5) + far for far in (2**31 - 2, -(2**63), 2**63 - 5)),
    *(np.arange(5, dtype=">i8"), np.arange(5, dtype="uint16"), np.arange(2**32 - 5, 2**32, dtype="u4")),
    *(unaligned(np.array([3, 1, -4, 1, 5], name)) for name in ("int32", "int64")),
    *(np.broadcast_to(np.int64(6), 5), np.full(1, 4), np.array(3), np.array([[9]]), np.ones((1, 3, 1), "i8")),
]


@pytest.mark.parametrize("pos", POSITIONS, ids=lambda pos: f"pos {words(pos)}")
def test_positions(pos):
    """Each level has another dtype; all levels have all dtypes in `nightly`."""
    rope = RoPE(12, pairing="half")
    for n, level in enumerate(LEVELS):
        kernel.use_level(level)
        for dtype in DTYPES if NIGHTLY else (DTYPES[n % len(DTYPES)],):
            for heads in (3, 1) if getattr(pos, "ndim", 0) < 3 else (3,):
                check(rope, normal((2, heads, 5, 12), dtype), pos, f"{level}, {dtype}, {heads} heads")


COORDINATES = np.stack([*np.divmod(np.arange(1009), 37), uneven(1009)], axis=-1)
UNEVEN = {
    "half": (RoPE(46, pairing="half", rotary_dim=44), uneven(1009)),
    "written in halves": (RoPE(130, out_pairing="half", attention_factor=1.7), uneven(1009)),
    "wide heads": (RoPE(4_000, pairing="half", rotary_dim=44), uneven(41)),
    "interleaved axes": (SEVERAL["interleaved axes"], COORDINATES),
    "blocks": (SEVERAL["blocks to pairs"], COORDINATES[:, [0, 1, 1]]),
    "blocks of uneven coordinates": (SEVERAL["blocks to pairs"], uneven((1009, 3))),
}


@in_pairs_of(name=UNEVEN)
def test_positions_in_uneven_steps(level, dtype, name):
    rope, pos = UNEVEN[name]
    check(rope, normal((len(pos), rope.head_dim), dtype), pos)


def test_tuples(level):
    """Of arrays with several numbers of axes, and of one array twice; random calls show other tuples."""
    xs = (normal((5, 8)), normal((2, 5, 8), F16), normal((3, 2, 5, 8)))
    check(RoPE(8), xs, range(5))
    check(RoPE(8), xs[1:], np.arange(5)[None])
    assert_same(RoPE(8).apply((xs[0], xs[0]), 3), by_array_api(RoPE(8), (xs[0], xs[0]), 3))


@by_dtype
def test_other_angles(dtype):
    """Float32 angles, learned frequencies, and a table for each head; random calls have float positions."""
    x = normal((2, 3, 5, 16), dtype)
    check(RoPE(16, pairing="half", angles="float32"), x, range(1000, 1005))
    learned = np.random.default_rng(5).uniform(0, 1, 8)
    for omegas in (learned.astype(F32), learned):
        check_tables(RoPE(16), np.arange(5), x, inv_freq=omegas)
    mixed = RoPE(16).rotation_mixed(np.arange(10).reshape(5, 2), like=x, inv_freq=normal((3, 2, 8)))
    for rotation in (mixed, mixed.inverse(), *RoPE(16).rotation_xpos(range(5), like=x)):
        for array, axis in ((x, -2), (np.swapaxes(x, 1, 2), -3)):
            expected = rotation.apply(array, seq_axis=axis, backend="array-api")
            assert_same(rotation.apply(array, seq_axis=axis), expected)


LAYOUTS = [
    *(np.asarray, np.asfortranarray, unaligned, spaced, lambda t: np.flip(np.flip(t).copy())),
    *(lambda t: t[:, ::-1], lambda t: t[..., ::-1], lambda t: t.astype(F64)),
    *(lambda t: np.broadcast_to(t[:, :1], t.shape), lambda t: np.broadcast_to(t[:1], t.shape)),
]


@in_pairs_of(length=[5, 601])  # one group of rows, and several
def test_tables_of_any_layout(level, dtype, length):
    x = normal((2, 3, length, 16), dtype)
    rotation = RoPE(16).rotation(np.arange(2 * length).reshape(2, length), like=x)
    pairs = list(itertools.product(LAYOUTS, LAYOUTS))
    for change, change_sin in pairs if NIGHTLY else pairs[:: len(LAYOUTS) + 1] + pairs[1 :: len(LAYOUTS) + 1]:
        changed = rotation._replace(cos=change(rotation.cos), sin=change_sin(rotation.sin))
        if changed.cos.dtype == changed.sin.dtype and (changed.cos.dtype == F64 or dtype != F64):
            assert_same(changed.apply(x), changed.apply(x, backend="array-api"))
    arrays = normal(x.shape, F32), x
    float64_tables = RoPE(16).rotation(range(length), like=np.empty(1))
    assert_same(float64_tables.apply(arrays), float64_tables.apply(arrays, backend="array-api"))
