"""The kernel has the bits of the array-api backend, for every spec, position and table."""

import itertools

import numpy as np
import pytest
from compare import assert_same, words
from native_cases import (
    DTYPES,
    F16,
    F32,
    F64,
    PAIRINGS,
    SEVERAL,
    SPECS,
    B,
    RoPE,
    apart,
    by_array_api,
    by_dtype,
    check,
    normal,
    spaced,
    unaligned,
    uneven,
)

from rope_array._errors import RoPEError
from rope_array.testing._contract import assert_contract

pytestmark = pytest.mark.usefixtures("kernel_settings")


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.library("numpy")
@by_dtype
def test_every_kind_of_spec(level, dtype, spec):
    rope = SPECS[spec]
    x = normal((2, 3, 5, rope.head_dim), dtype)
    check(rope, x, np.array([0, 1, -7, 123_456_789, 2**40]))
    check(rope, x[:1, :1], range(5), "one head")


@pytest.mark.parametrize("spec", SEVERAL)
@pytest.mark.library("numpy")
@by_dtype
def test_several_coordinates(level, dtype, spec):
    rope = SEVERAL[spec]
    pos = np.random.default_rng(1).integers(-(2**31), 2**31, (2, 5, 3))
    x = normal((2, 3, 5, rope.head_dim), dtype)
    check(rope, x, pos)
    check(rope, x, pos[0, :, ::-1].astype(np.int32), "int32")
    check(rope, x[:, :1], pos, "one head")
    check(rope, x[0, 0, 0], [1, 2, 3], "a vector")


@pytest.mark.parametrize(("pairing", "out_pairing"), PAIRINGS)
@pytest.mark.library("numpy")
@by_dtype
def test_every_number_of_pairs(level, dtype, pairing, out_pairing):
    for num_pairs in [*range(1, 36), 47, 63, 64, 65, 80]:
        rope = RoPE(2 * num_pairs, pairing=pairing, out_pairing=out_pairing)
        x = normal((2, 3, 2 * num_pairs), dtype, seed=num_pairs)
        assert_same(rope.apply(x, [5, -6, 10**9]), by_array_api(rope, x, [5, -6, 10**9]), num_pairs)
        assert_same(
            rope.apply(x[:1], range(3)), by_array_api(rope, x[:1], range(3)), f"{num_pairs}, one head"
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
    *(
        np.broadcast_to(np.int64(6), 5),
        np.arange(10).reshape(2, 5),
        np.arange(10, dtype="i4").reshape(5, 2).T,
    ),
    *(np.array([[3], [400]]), np.array([[1, 2, 3, 4, 5]]), np.array([[[1, 2, 3, 4, 5]] * 3] * 2)),
    *(np.ones((1, 3, 1), "i8"), np.arange(5, dtype=np.intc)),
]


@pytest.mark.parametrize("pos", POSITIONS, ids=lambda pos: f"pos {words(pos)}")
@pytest.mark.library("numpy")
@by_dtype
def test_positions(level, dtype, pos):
    for heads in (3, 1) if getattr(pos, "ndim", 0) < 3 else (3,):
        check(RoPE(12, pairing="half"), normal((2, heads, 5, 12), dtype), pos, f"{heads} heads")


@pytest.mark.library("numpy")
@by_dtype
def test_positions_in_uneven_steps(level, dtype):
    pos = uneven(1009)
    for width in (46, 130, 4_000):
        x = normal((1009 if width < 200 else 41, width), dtype)
        check(RoPE(width, pairing="half", rotary_dim=44), x, pos[: len(x)], width)
        check(RoPE(width, out_pairing="half", attention_factor=1.7), x, pos[: len(x)], width)


@pytest.mark.library("numpy")
@by_dtype
def test_coordinates_in_uneven_steps(level, dtype):
    rows, columns = np.divmod(np.arange(1009), 37)
    grid = np.stack([rows, columns, uneven(1009)], axis=-1)
    for pos in (grid, grid[:, [0, 1, 1]], grid[::-1], uneven((1009, 3))):
        check(SEVERAL["interleaved axes"], normal((1009, 80), dtype), pos)
        check(SEVERAL["blocks to pairs"], normal((1009, 54), dtype), pos)


@pytest.mark.library("numpy")
@by_dtype
def test_unaligned_positions(level, dtype):
    for name in ("int32", "int64"):
        pos = unaligned(np.array([3, 1, -4, 1, 5], name))
        check(RoPE(12), normal((2, 5, 12), dtype), pos)


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


@pytest.mark.parametrize(("shape", "seq_axis", "pos_shapes"), SPREAD, ids=words)
@pytest.mark.library("numpy")
@by_dtype
def test_shapes_of_positions(level, dtype, shape, seq_axis, pos_shapes):
    for pos_shape in pos_shapes:
        pos = np.random.default_rng(2).integers(-1000, 1000, pos_shape)
        check(RoPE(6), normal(shape, dtype), pos, pos_shape, seq_axis=seq_axis)


@pytest.mark.library("numpy")
def test_tuples(level):
    one, other = DTYPES[-1], F16
    xs = (
        *(normal((2, 4, 5, 16), F32), normal((2, 1, 5, 16), one, 1), normal((2, 2, 5, 16), F64, 2)),
        *(normal((2, 0, 5, 16), F32), normal((2, 3, 5, 32), other, 3)[..., ::2], normal((1, 5, 16), F64, 4)),
    )
    for pos in (range(5), np.arange(5), np.array([3]), 4, [[0.5, 1, 2, 3, 4]]):
        given = xs if np.ndim(pos) < 2 else xs[:5]
        check(RoPE(16, pairing="half"), given, pos)
        for n in range(1, 4):
            check(RoPE(16, pairing="half"), given[:n], pos)
    assert_same(RoPE(16).apply((xs[0], xs[0]), 3), by_array_api(RoPE(16), (xs[0], xs[0]), 3))


@pytest.mark.library("numpy")
def test_tuples_of_different_ndim(level):
    xs = (normal((5, 8)), normal((2, 5, 8), F16), normal((3, 2, 5, 8)))
    check(RoPE(8), xs, range(5))
    check(RoPE(8), xs[1:], np.arange(5)[None])


def check_tables(rope, pos, x, **kwargs):
    """Compare the kernel's rotations by tables with the array-api backend's."""
    rotation = rope.rotation(pos, like=x, **kwargs)
    for each in (rotation, rotation.inverse(), rotation.adjoint()):
        want = each.apply(x, backend="array-api")
        assert_same(each.apply(x), want)
        assert_same(each.apply(x, backend="native"), want, "asked for by name")
        assert_same(each.apply(x, out=np.empty(x.shape, x.dtype)), want)
        y = np.copy(x)
        each.apply(y, out=y)
        assert_same(y, want, "in place")


@pytest.mark.parametrize("spec", [*SPECS, *SEVERAL])
@pytest.mark.library("numpy")
@by_dtype
def test_tables(level, dtype, spec):
    rope = (SPECS | SEVERAL)[spec]
    x = normal((2, 3, 5, rope.head_dim), dtype)
    last = (3,) if spec in SEVERAL else ()
    for shape in [(5,), (2, 5), (2, 1), (1,), (2, 3, 5), ()]:
        check_tables(rope, np.random.default_rng(4).integers(-999, 999, shape + last), x)
    check_tables(rope, np.random.default_rng(4).uniform(-999, 999, (5, *last)), x)
    check_tables(
        rope, np.random.default_rng(4).uniform(-999, 999, (5, *last)).astype(F32), x[::-1, :, :, ::-1]
    )


@pytest.mark.library("numpy")
@by_dtype
def test_other_angles(level, dtype):
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
        assert_same(rotation.apply(x), rotation.apply(x, backend="array-api"))
        there = np.swapaxes(x, 1, 2)
        assert_same(
            rotation.apply(there, seq_axis=-3), rotation.apply(there, seq_axis=-3, backend="array-api")
        )


@pytest.mark.parametrize("length", [5, 601], ids=["one group of rows", "several groups"])
@pytest.mark.library("numpy")
@by_dtype
def test_tables_of_any_layout(level, dtype, length):
    x = normal((2, 3, length, 16), dtype)
    rotation = RoPE(16).rotation(np.arange(2 * length).reshape(2, length), like=x)
    changes = [np.asfortranarray, unaligned, spaced, lambda t: np.flip(np.flip(t).copy())]
    changes += [lambda t: t[:, ::-1], lambda t: np.broadcast_to(t[:, :1], t.shape)]
    changes += [lambda t: np.broadcast_to(t[:1], t.shape), lambda t: t.astype(F64), lambda t: t[..., ::-1]]
    for change, other in itertools.product(changes, changes):
        given = rotation._replace(cos=change(rotation.cos), sin=other(rotation.sin))
        if given.cos.dtype == given.sin.dtype and (given.cos.dtype == F64 or dtype != F64):
            assert_same(given.apply(x), given.apply(x, backend="array-api"))
    both = normal(x.shape, F32), x
    wide = RoPE(16).rotation(range(length), like=np.empty(1))
    assert_same(wide.apply(both), wide.apply(both, backend="array-api"))


MISFIT_TABLES = {
    "sin of one row": lambda r: r._replace(sin=r.sin[:1]),
    "sin without rows": lambda r: r._replace(sin=r.sin[0]),
    "sin of one pair": lambda r: r._replace(sin=r.sin[:, :1]),
    "too few pairs": lambda r: r._replace(cos=r.cos[:, :2], sin=r.sin[:, :2]),
    "one pair": lambda r: r._replace(cos=r.cos[:, :1], sin=r.sin[:, :1]),
    "too many pairs": lambda r: r._replace(cos=np.tile(r.cos, 2), sin=np.tile(r.sin, 2)),
    "sin of fewer rows": lambda r: r._replace(sin=r.sin[:3]),
    "sin of more rows": lambda r: r._replace(sin=np.tile(r.sin, (2, 1))),
}


@pytest.mark.parametrize("name", MISFIT_TABLES)
@pytest.mark.parametrize("library", ["numpy", pytest.param("torch", marks=pytest.mark.library("torch"))])
def test_tables_that_do_not_fit_are_refused_or_broadcast(name, library):
    """Users can build a Rotation of any tables: raise, or return the array-api backend's result."""
    x, rotation = normal((5, 8)), MISFIT_TABLES[name](RoPE(8).rotation(range(5), like=normal((5, 8))))
    if library == "torch":
        torch = pytest.importorskip("torch")
        x, cos, sin = map(torch.from_numpy, (x, np.array(rotation.cos), np.array(rotation.sin)))
        rotation = rotation._replace(cos=cos, sin=sin)
    try:
        got = rotation.apply(x)
    except (RoPEError, ValueError, RuntimeError):
        return
    assert_same(np.asarray(got), np.asarray(rotation.apply(x, backend="array-api")))


@pytest.mark.parametrize("kind", ["numpy", pytest.param("torch", marks=pytest.mark.library("torch"))])
def test_tables_in_a_tuple_are_refused(kind):
    x, rotation = normal((5, 8)), RoPE(8).rotation(range(5), like=normal((5, 8)))
    cos, sin = rotation[:2]
    if kind == "torch":
        torch = pytest.importorskip("torch")
        x, cos, sin = map(torch.from_numpy, (x, cos, sin))
    one = (cos,)
    for change in ({"cos": ()}, {"sin": ()}, {"cos": one}, {"cos": one, "sin": (sin,)}, {"cos": (cos, sin)}):
        given = rotation._replace(**{"cos": cos, "sin": sin} | change)
        with pytest.raises(RoPEError):
            given.apply(x)


TRUE = [
    {"pairing": "interleaved"},
    {"pairing": "half", "base": 500_000.0},
    {"pairing": "half", "out_pairing": "interleaved", "rotary_dim": 36, "rotary_start": 3},
    {"pairing": "interleaved", "out_pairing": "half", "rotary_dim": 8, "attention_factor": 1.3},
]


@pytest.mark.parametrize("spec", TRUE, ids=words)
@pytest.mark.library("numpy")
@by_dtype
def test_the_contract(level, dtype, spec):
    pos = np.array([0, 1, -1, 511, 2**20 + 1, -(2**31), 2**31 - 1, 123_456_789, 99_999])
    for heads in (3, 1):
        x = normal((2, heads, len(pos), 40), dtype)
        for more in ({}, {"inverse": True}):
            y = RoPE(40, **spec).apply(x, pos, **more)
            assert_contract(y, x.astype(F64), pos, dtype=dtype.name, **more, **spec)


@pytest.mark.library("numpy")
@by_dtype
def test_pairs_by_hand(level, dtype):
    """Rotate by a quarter turn and compare every element: this shows which feature moves where."""
    quarter = 3 * 2 * np.pi / 4
    for (pairing, out_pairing), num_pairs in itertools.product(PAIRINGS, (1, 3, 16, 21)):
        x = np.arange(1, 2 * num_pairs + 1).astype(dtype)[None]
        first, second = apart(x, pairing)
        rope = RoPE(2 * num_pairs, inv_freq=(quarter,) * num_pairs, pairing=pairing, out_pairing=out_pairing)
        got = apart(rope.apply(x, 1), out_pairing)
        np.testing.assert_allclose(got[0].astype(F64), second.astype(F64), rtol=1e-2 if dtype == B else 1e-3)
        np.testing.assert_allclose(got[1].astype(F64), -first.astype(F64), rtol=1e-2 if dtype == B else 1e-3)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf], ids=str)
@pytest.mark.library("numpy")
@by_dtype
def test_nan_and_infinity_stay_in_their_pair(level, dtype, bad):
    for (pairing, out_pairing), at in itertools.product(PAIRINGS, (0, 1, 13, 32, 38, 44)):
        rope = RoPE(45, rotary_dim=42, rotary_start=1, pairing=pairing, out_pairing=out_pairing)
        x = normal((2, 3, 45), dtype)
        good = rope.apply(x, range(3))
        x[1, 2, at] = bad
        y = rope.apply(x, range(3))
        words = f"u{dtype.itemsize}"
        other = y.view(words) != good.view(words)
        i = None if not 1 <= at < 43 else (at - 1) // 2 if pairing == "interleaved" else (at - 1) % 21
        pair = [at] if i is None else [1 + 2 * i, 2 + 2 * i]
        if i is not None and out_pairing == "half":
            pair = [1 + i, 22 + i]
        assert not np.isfinite(y[1, 2, pair]).any()
        other[1, 2, pair] = False
        assert not other.any()
