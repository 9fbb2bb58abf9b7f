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

from rope_array._errors import RoPEError

pytestmark = pytest.mark.usefixtures("kernel_settings")


def check_tables(rope, pos, x, **kwargs):
    """Compare the kernel's rotations by tables with the array-api backend's."""
    rotation = rope.rotation(pos, like=x, **kwargs)
    for each in (rotation, rotation.inverse(), rotation.adjoint()):
        want = each.apply(x, backend="array-api")
        assert_same(each.apply(x), want)
        assert_same(each.apply(x, out=np.empty(x.shape, x.dtype)), want)
        y = np.copy(x)
        each.apply(y, out=y)
        assert_same(y, want, "in place")
    assert_same(rotation.apply(x, backend="native"), rotation.apply(x, backend="array-api"), "by name")


@in_pairs_of(spec=[*SPECS, *SEVERAL])
def test_every_kind_of_spec(level, dtype, spec):
    """By positions with several heads and with one, where the loop computes the angles; and by tables."""
    rope = (SPECS | SEVERAL)[spec]
    last = (rope.axes.count,) if spec in SEVERAL else ()
    x, rng = normal((2, 3, 5, rope.head_dim), dtype), np.random.default_rng(1)
    check(rope, x, rng.integers(-(2**31), 2**31, (2, 5, *last)))
    check(rope, x, np.resize([0, 1, -7, 123_456_789, 2**40], (5, *last)))
    check(rope, x, rng.integers(-(2**31), 2**31, (5, *last), dtype=np.int32)[::-1], "int32")
    check(rope, x[:, :1], rng.integers(-(2**31), 2**31, (2, 5, *last)), "one head")
    check(rope, x[0, 0, 0], [1, 2, 3][: last[0]] if last else 3, "a vector")
    for shape in [(5,), (2, 5), (2, 1), (1,), (2, 3, 5), ()]:
        check_tables(rope, rng.integers(-999, 999, shape + last), x)
    check_tables(rope, rng.uniform(-999, 999, (5, *last)).astype(F32), x[::-1, :, :, ::-1])


@by_dtype
@pytest.mark.parametrize("pairings", PAIRINGS, ids=words)
def test_every_number_of_pairs(level, dtype, pairings):
    """Chunks of each power of two, by columns, by rows and fused; NaN and infinity stay in their pair."""
    for num_pairs in [*range(1, 36), 47, 63, 64, 65, 80, 127] if NIGHTLY else [1, 2, 3, 7, 17, 31, 64, 127]:
        rope, pos = RoPE(2 * num_pairs, pairing=pairings[0], out_pairing=pairings[1]), [5, -6, 10**9, 7, 8]
        x = normal((2, 5, 2 * num_pairs), dtype, seed=num_pairs)
        x[0, 1, num_pairs // 2], x[1, 2, -1] = np.nan, np.inf
        for name, part in {"by columns": np.s_[:], "by rows": np.s_[:, :3], "fused": np.s_[1:]}.items():
            at = pos[: x[part].shape[1]]
            assert_same(
                rope.apply(x[part], at), by_array_api(rope, x[part], at), f"{num_pairs} pairs, {name}"
            )


SIGNED = ["int8", "int16", "int32", "int64"]
POSITIONS = [
    *(0, 7, -7, 2**62, -(2**63), 2**63 - 1, np.int32(5), np.uint8(200), np.int64(-(2**62))),
    *(range(5), range(-3, 2), range(4, -1, -1), range(0, 50, 10), range(9, 10), [1, 2, 3, 5, 8]),
    *(range(2**62, 2**62 + 5), range(2**31 - 2, 2**31 + 3), range(2**63 - 5, 2**63)),
    range(-(2**62), 2**62, 2**61 - 2**59 + 2**57),
    *(np.arange(100, 105, dtype=name) for name in [*SIGNED, "uint8", "uint16", "uint32"]),
    *(np.arange(5) + far for far in (2**24, 2**31 - 2, -(2**31) - 2, 2**62, -(2**63), 2**63 - 5)),
    *(np.array([-1, 0, 2**31 - 1, -(2**31), 5], np.int32), np.array(3), np.array([9]), np.array([[9]])),
    *(np.arange(10)[::-2], np.arange(5, dtype=np.int32)[::-1], np.arange(5, dtype=">i8"), np.full(1, 4)),
    *(unaligned(np.array([3, 1, -4, 1, 5], name)) for name in ("int32", "int64")),
    *(
        np.broadcast_to(np.int64(6), 5),
        np.arange(10).reshape(2, 5),
        np.arange(10, dtype="i4").reshape(5, 2).T,
    ),
    *(np.array([[3], [400]]), np.array([[1, 2, 3, 4, 5]]), np.array([[[1, 2, 3, 4, 5]] * 3] * 2)),
    *(np.arange(10).reshape(2, 5), np.ones((1, 3, 1), "i8"), np.arange(2**32 - 5, 2**32, dtype="u4")),
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


@in_pairs_of(width=[46, 130, 4_000])
def test_positions_in_uneven_steps(level, dtype, width):
    pos = uneven(1009 if width < 200 else 41)
    x = normal((len(pos), width), dtype)
    check(RoPE(width, pairing="half", rotary_dim=44), x, pos)
    check(RoPE(width, out_pairing="half", attention_factor=1.7), x, pos)


@in_pairs_of()
def test_coordinates_in_uneven_steps(level, dtype):
    grid = np.stack([*np.divmod(np.arange(1009), 37), uneven(1009)], axis=-1)
    for pos, name in ((grid, "interleaved axes"), (grid[:, [0, 1, 1]], "blocks to pairs")):
        check(SEVERAL[name], normal((1009, SEVERAL[name].head_dim), dtype), pos)
    check(SEVERAL["blocks to pairs"], normal((1009, 54), dtype), uneven((1009, 3)))


SPREAD = [
    ((6,), -2, [()]),
    ((5, 6), -2, [(), (1,), (5,)]),
    ((2, 3, 5, 6), -2, [(1,), (5,), (1, 5), (2, 5), (2, 1), (2, 3, 5), (1, 3, 1), (2, 1, 5), (1, 1, 1)]),
    ((2, 5, 3, 6), -3, [(), (5,), (2, 5), (2, 1), (1, 5), (2, 3, 5), (1, 3, 5)]),
    ((5, 2, 3, 6), 0, [(), (5,), (2, 5), (2, 3, 5), (2, 1, 1)]),
    ((2, 3, 2, 5, 6), -2, [(5,), (2, 5), (2, 3, 5), (2, 3, 2, 5), (1, 3, 1, 5)]),
    ((2, 3, 5, 2, 6), 1, [(3,), (2, 3), (2, 5, 3), (2, 1, 2, 3)]),
    ((0, 5, 6), -2, [(5,), (0, 5)]),
    ((2, 0, 6), -2, [(0,), (2, 0), (1,), ()]),
    ((1, 1, 1, 6), 0, [(1,), (1, 1, 1), ()]),
]


@by_dtype
def test_shapes_of_positions(dtype):
    for shape, seq_axis, pos_shapes in SPREAD:
        for pos_shape in pos_shapes:
            pos = np.random.default_rng(2).integers(-1000, 1000, pos_shape)
            check(RoPE(6), normal(shape, dtype), pos, pos_shape, seq_axis=seq_axis)


def test_tuples(level):
    """Of each dtype, of an empty array, of strided features and of fewer axes."""
    xs = (
        *(normal((2, 4, 5, 16), F32), normal((2, 1, 5, 16), DTYPES[-1], 1), normal((2, 2, 5, 16), F64, 2)),
        *(normal((2, 0, 5, 16), F32), normal((2, 3, 5, 32), F16, 3)[..., ::2], normal((1, 5, 16), F64, 4)),
    )
    for pos in (range(5), np.arange(5), np.array([3]), 4, [[0.5, 1, 2, 3, 4]]):
        given = xs if np.ndim(pos) < 2 else xs[:5]
        for number in (1, 2, 3, len(given)):
            check(RoPE(16, pairing="half"), given[:number], pos)
    assert_same(RoPE(16).apply((xs[0], xs[0]), 3), by_array_api(RoPE(16), (xs[0], xs[0]), 3))
    fewer = (normal((5, 8)), normal((2, 5, 8), F16), normal((3, 2, 5, 8)))
    check(RoPE(8), fewer, range(5))
    check(RoPE(8), fewer[1:], np.arange(5)[None])


@by_dtype
def test_other_angles(dtype):
    """Float positions, float32 angles, learned frequencies, and a table for each head."""
    x = normal((2, 3, 5, 16), dtype)
    floats = np.linspace(-9, 9, 10, dtype="f4").reshape(2, 5)
    for pos in (2.5, [0.5, 1, 2, 3, 1e6], np.linspace(-9, 9, 5), floats):
        check(RoPE(16, attention_factor=1.1), x, pos)
    check(RoPE(16, pairing="half", angles="float32"), x, range(1000, 1005))
    learned = np.random.default_rng(5).uniform(0, 1, 8)
    for one in (learned.astype(F32), learned):
        check_tables(RoPE(16), np.arange(5), x, inv_freq=one)
    mixed = RoPE(16).rotation_mixed(np.arange(10).reshape(5, 2), like=x, inv_freq=normal((3, 2, 8)))
    for rotation in (mixed, mixed.inverse(), *RoPE(16).rotation_xpos(range(5), like=x)):
        for array, axis in ((x, -2), (np.swapaxes(x, 1, 2), -3)):
            want = rotation.apply(array, seq_axis=axis, backend="array-api")
            assert_same(rotation.apply(array, seq_axis=axis), want)


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
    for change, other in pairs if NIGHTLY else pairs[:: len(LAYOUTS) + 1] + pairs[1 :: len(LAYOUTS) + 1]:
        given = rotation._replace(cos=change(rotation.cos), sin=other(rotation.sin))
        if given.cos.dtype == given.sin.dtype and (given.cos.dtype == F64 or dtype != F64):
            assert_same(given.apply(x), given.apply(x, backend="array-api"))
    both = normal(x.shape, F32), x
    wide = RoPE(16).rotation(range(length), like=np.empty(1))
    assert_same(wide.apply(both), wide.apply(both, backend="array-api"))


def misfits(rotation):
    """Return rotations by tables of other shapes: sin alone, or both."""
    cos, sin = rotation[:2]
    for other in (sin[:1], sin[0], sin[:, :1], sin[:3], np.tile(sin, (2, 1))):
        yield rotation._replace(sin=other)
    for at in (np.s_[:, :2], np.s_[:, :1], np.s_[:, [0, 1, 2, 3] * 2]):
        yield rotation._replace(cos=cos[at], sin=sin[at])


@pytest.mark.parametrize("library", ["numpy", pytest.param("torch", marks=pytest.mark.library("torch"))])
def test_tables_that_do_not_fit_are_refused_or_broadcast(library):
    """Users can build a Rotation of any tables: raise, or return the array-api backend's result."""
    x, rotation = normal((5, 8)), RoPE(8).rotation(range(5), like=normal((5, 8)))
    wrong = list(misfits(rotation))
    if library == "torch":
        torch = pytest.importorskip("torch")
        x = torch.from_numpy(x)
        wrong = [r._replace(cos=torch.tensor(r.cos), sin=torch.tensor(r.sin)) for r in wrong]
    for given in wrong:
        try:
            got = given.apply(x)
        except (RoPEError, ValueError, RuntimeError):
            continue
        assert_same(np.asarray(got), np.asarray(given.apply(x, backend="array-api")), given.sin.shape)
    cos, sin = wrong[0][:2]
    one = (cos,)
    for change in ({"cos": ()}, {"sin": ()}, {"cos": one}, {"cos": one, "sin": (sin,)}, {"cos": (cos, sin)}):
        with pytest.raises(RoPEError):
            wrong[0]._replace(**change).apply(x)
