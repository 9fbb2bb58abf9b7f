"""The C++ kernel: its bits are the core's, in every layout of memory, at every level, by any threads."""

import copy
import itertools
import os
import sys
import threading
import time

import child
import numpy as np
import pytest

import rope_array as ra
from rope_array._array_api.source import Positions, Tables
from rope_array._backends import _native
from rope_array._errors import RoPEError
from rope_array._spec.plan import Layout
from rope_array.testing._contract import assert_contract

if _native.kernel is None and os.environ.get("ROPE_ARRAY_REQUIRE_KERNEL"):
    raise RuntimeError(f"ROPE_ARRAY_REQUIRE_KERNEL is set, and {_native.unavailable_reason()}")
if _native.kernel is None:
    pytest.skip(_native.unavailable_reason(), allow_module_level=True)

kernel = _native.kernel
LEVELS = kernel.level_names()
TIMES = int(os.environ.get("ROPE_ARRAY_EXAMPLES", "1"))
THREADS, OF_OPENMP, LEVEL = "ROPE_ARRAY_NUM_THREADS", "OMP_NUM_THREADS", "ROPE_ARRAY_KERNEL_LEVEL"
ALL_THREADS = (1, 2, 3, 7)
MIB = 2**20

F32, F64, F16 = map(np.dtype, ("float32", "float64", "float16"))
try:
    import ml_dtypes
except ImportError:  # where NumPy is not chosen
    BF16 = None
else:
    BF16 = np.dtype(ml_dtypes.bfloat16)
DTYPES = [dtype for dtype in (F32, F64, F16, BF16) if dtype is not None]
RoPE, Axes = ra.RoPE, ra.Axes


@pytest.fixture(autouse=True)
def settings(monkeypatch):
    """Restore the level, and let no variable of this process say how many threads there are."""
    before = kernel.level_name()
    monkeypatch.delenv(THREADS, raising=False)
    with np.errstate(all="ignore"):
        yield
    kernel.use_level(before)


@pytest.fixture(params=LEVELS)
def level(request):
    """Each level of instructions that this processor has."""
    kernel.use_level(request.param)
    return request.param


@pytest.fixture(params=DTYPES, ids=str)
def dtype(request):
    """Each dtype that is rotated."""
    return request.param


def each_way(monkeypatch):
    """Go through all levels and thread counts."""
    for name, threads in itertools.product(LEVELS, ALL_THREADS):
        kernel.use_level(name)
        monkeypatch.setenv(THREADS, str(threads))
        yield f"{name}, {threads} threads"


def pattern(y):
    return y.view(f"u{y.dtype.itemsize}")


def assert_same(got, want, what=""):
    """Assert equal bits; of NaNs, that both are."""
    if type(want) is tuple:
        assert type(got) is tuple
        for one, other in zip(got, want, strict=True):
            assert_same(one, other, what)
        return
    assert (got.dtype, got.shape) == (want.dtype, want.shape), what
    wrong = (pattern(got) != pattern(want)) & ~((got != got) & (want != want))
    if wrong.any():
        at = tuple(map(int, np.argwhere(wrong)[0]))
        text = f"{wrong.sum()} of {wrong.size} differ, the first at {at}: {got[at]!r}, not {want[at]!r}"
        raise AssertionError(f"{what}: {text}")


def normal(shape, dtype=F32, seed=0):
    return np.random.default_rng(seed).standard_normal(shape, np.float32).astype(dtype)


def core(rope, x, pos, **kwargs):
    return rope.apply(x, pos, backend="array-api", **kwargs)


def copied(x):
    return tuple(map(np.copy, x)) if type(x) is tuple else np.copy(x)


def empty(x):
    return (
        tuple(np.empty(one.shape, one.dtype) for one in x) if type(x) is tuple else np.empty(x.shape, x.dtype)
    )


def check(rope, x, pos, what="", **kwargs):
    """Compare with the core: the short way, the long way, the inverse, into another array, and in place."""
    for more in ({}, {"inverse": True}):
        want = core(rope, x, pos, **kwargs, **more)
        assert_same(rope.apply(x, pos, **kwargs, **more), want, f"{what} {more}")
        assert_same(
            rope.apply(x, pos, backend="native", **kwargs, **more), want, f"{what} {more}, the long way"
        )
        assert_same(rope.apply(x, pos, out=empty(x), **kwargs, **more), want, f"{what} {more}, out")
        y = copied(x)
        assert rope.apply(y, pos, out=y, **kwargs, **more) is y
        assert_same(y, want, f"{what} {more}, in place")


# ---- what is rotated ----

PAIRINGS = list(itertools.product(("interleaved", "half"), repeat=2))
SPECS = {
    "interleaved": RoPE(72),
    "half": RoPE(72, pairing="half", base=500_000.0),
    "half to interleaved": RoPE(68, pairing="half", out_pairing="interleaved"),
    "interleaved to half": RoPE(68, pairing="interleaved", out_pairing="half"),
    "slice": RoPE(61, rotary_dim=34, pairing="half"),
    "offset slice": RoPE(61, rotary_dim=34, rotary_start=5),
    "offset slice to half": RoPE(61, rotary_dim=34, rotary_start=5, out_pairing="half"),
    "end": RoPE(20, rotary_start=6, pairing="half", out_pairing="interleaved"),
    "amplitude": RoPE(40, attention_factor=1.3),
    "frequencies": RoPE(8, inv_freq=(3.0, -0.5, 0.0, 1e-9), pairing="half"),
    "rule": RoPE(64, pairing="half", scaling=ra.Llama3(factor=8.0)),
    "nothing of an odd head": RoPE(7, rotary_dim=0),
    "nothing of one feature": RoPE(1, rotary_dim=0),
    "one pair": RoPE(2),
}
SEVERAL = {
    "runs": RoPE(72, pairing="half", axes=Axes.chunked(12, 12, 12)),
    "turns": RoPE(80, rotary_dim=72, axes=Axes.interleaved(12, 12, 12), attention_factor=0.7),
    "axial": RoPE(72, out_pairing="half", axes=Axes.axial(16, 28, 28)),
    "blocks": RoPE(
        110, rotary_dim=108, rotary_start=1, pairing="half", axes=Axes.axial(36, 36, 36, blocks=True)
    ),
    "blocks to pairs": RoPE(
        54, pairing="half", out_pairing="interleaved", axes=Axes.axial(18, 18, 18, blocks=True)
    ),
    "still lanes": RoPE(20, rotary_dim=16, axes=Axes((0, None, 2, 1, None, 0, None, None), count=3)),
}


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.library("numpy")
def test_specs(level, dtype, spec):
    rope = SPECS[spec]
    x = normal((2, 3, 5, rope.head_dim), dtype)
    check(rope, x, np.array([0, 1, -7, 123_456_789, 2**40]))
    check(rope, x[:1, :1], range(5), "one head")


@pytest.mark.parametrize("spec", SEVERAL)
@pytest.mark.library("numpy")
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
def test_every_number_of_lanes(level, dtype, pairing, out_pairing):
    for lanes in [*range(1, 36), 47, 63, 64, 65, 80]:
        rope = RoPE(2 * lanes, pairing=pairing, out_pairing=out_pairing)
        x = normal((2, 3, 2 * lanes), dtype, seed=lanes)
        assert_same(rope.apply(x, [5, -6, 10**9]), core(rope, x, [5, -6, 10**9]), lanes)
        assert_same(rope.apply(x[:1], range(3)), core(rope, x[:1], range(3)), f"{lanes}, one head")


@pytest.mark.library("numpy")
def test_a_head_of_ten_thousand(level, dtype):
    check(
        RoPE(10_000, rotary_dim=9_990, rotary_start=3, out_pairing="half"),
        normal((2, 3, 10_000), dtype),
        range(3),
    )


# ---- positions ----

SIGNED = ["int8", "int16", "int32", "int64"]
POSITIONS = [
    *(0, 7, -7, 2**62, -(2**63), 2**63 - 1, np.int32(5), np.uint8(200), np.int64(-(2**62))),
    *(
        range(5),
        range(-3, 2),
        range(4, -1, -1),
        range(0, 50, 10),
        range(2**62, 2**62 + 5),
        range(2**31 - 2, 2**31 + 3),
    ),
    *(range(-(2**62), 2**62, 2**61 - 2**59 + 2**57), range(9, 10), range(2**63 - 5, 2**63), [1, 2, 3, 5, 8]),
    *(np.arange(100, 105, dtype=name) for name in [*SIGNED, "uint8", "uint16", "uint32"]),
    *(np.arange(5) + far for far in (2**24, 2**31 - 2, -(2**31) - 2, 2**62, -(2**63), 2**63 - 5)),
    *(np.array([-1, 0, 2**31 - 1, -(2**31), 5], np.int32), np.array(3), np.array([9]), np.array([[9]])),
    *(np.arange(10)[::-2], np.arange(5, dtype=np.int32)[::-1], np.arange(5, dtype=">i8"), np.full(1, 4)),
    *(
        np.broadcast_to(np.int64(6), 5),
        np.arange(10).reshape(2, 5),
        np.arange(10, dtype="i4").reshape(5, 2).T,
    ),
    *(
        np.array([[3], [400]]),
        np.array([[1, 2, 3, 4, 5]]),
        np.array([[[1, 2, 3, 4, 5]] * 3] * 2),
        np.ones((1, 3, 1), "i8"),
    ),
    np.arange(5, dtype=np.intc),
]


@pytest.mark.parametrize("pos", POSITIONS, ids=range(len(POSITIONS)))
@pytest.mark.library("numpy")
def test_positions(level, dtype, pos):
    for heads in (3, 1) if getattr(pos, "ndim", 0) < 3 else (3,):
        check(RoPE(12, pairing="half"), normal((2, heads, 5, 12), dtype), pos, f"{heads} heads")


def uneven(shape, seed=3):
    """Positions in runs of 1 to 40 of equal steps, of which some end where a run of another step begins."""
    rng = np.random.default_rng(seed)
    starts, steps = rng.integers(-(2**40), 2**40, 40), rng.integers(-5, 6, 40)
    runs = [starts[n] + steps[n] * np.arange(n + 1) for n in range(40)]
    runs += [run[-1] + 3 * np.arange(5) for run in runs]
    rng.shuffle(runs)
    return np.resize(np.concatenate(runs), shape)


@pytest.mark.library("numpy")
def test_positions_in_uneven_steps(level, dtype):
    pos = uneven(1009)
    for width in (46, 130, 4_000):
        x = normal((1009 if width < 200 else 41, width), dtype)
        check(RoPE(width, pairing="half", rotary_dim=44), x, pos[: len(x)], width)
        check(RoPE(width, out_pairing="half", attention_factor=1.7), x, pos[: len(x)], width)


@pytest.mark.library("numpy")
def test_coordinates_in_uneven_steps(level, dtype):
    rows, columns = np.divmod(np.arange(1009), 37)
    grid = np.stack([rows, columns, uneven(1009)], axis=-1)
    for pos in (grid, grid[:, [0, 1, 1]], grid[::-1], uneven((1009, 3))):
        check(SEVERAL["turns"], normal((1009, 80), dtype), pos)
        check(SEVERAL["blocks to pairs"], normal((1009, 54), dtype), pos)


@pytest.mark.library("numpy")
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


@pytest.mark.parametrize(("shape", "seq_axis", "pos_shapes"), SPREAD, ids=range(len(SPREAD)))
@pytest.mark.library("numpy")
def test_shapes_of_positions(level, dtype, shape, seq_axis, pos_shapes):
    for pos_shape in pos_shapes:
        pos = np.random.default_rng(2).integers(-1000, 1000, pos_shape)
        check(RoPE(6), normal(shape, dtype), pos, pos_shape, seq_axis=seq_axis)


# ---- layouts of memory ----


def unaligned(x):
    """The same numbers where they may not stand by their type."""
    view = np.ndarray(x.shape, x.dtype, np.empty(x.nbytes + 1, np.uint8), offset=1)
    view[...] = x
    return view


def spaced(x):
    wide = np.zeros((*x.shape[:-1], 3 * x.shape[-1]), x.dtype)
    wide[..., 1::3] = x
    return wide[..., 1::3]


def with_gaps(x):
    wide = np.zeros(tuple(n + 3 for n in x.shape), x.dtype)
    part = wide[tuple(slice(1, n + 1) for n in x.shape)]
    part[...] = x
    return part


LAYOUTS = {
    "reversed features": lambda x: x[..., ::-1],
    "all reversed": lambda x: x[::-1, ::-1, ::-1, ::-1],
    "reversed rows": lambda x: x[:, :, ::-1],
    "Fortran": np.asfortranarray,
    "transposed": lambda x: np.ascontiguousarray(x.swapaxes(1, 2)).swapaxes(1, 2),
    "features first": lambda x: np.ascontiguousarray(np.moveaxis(x, -1, 0)).transpose(1, 2, 3, 0),
    "spaced": spaced,
    "with gaps": with_gaps,
    "unaligned": unaligned,
    "unaligned and reversed": lambda x: unaligned(x)[::-1, :, ::-1, ::-1],
    "one row for all": lambda x: np.broadcast_to(x[:1, :1, :1], x.shape),
    "one head for all": lambda x: np.broadcast_to(x[:, :1], x.shape),
    "one number for all": lambda x: np.broadcast_to(x[:1, :1, :1, :1], x.shape),
    "read-only": lambda x: np.frombuffer(x.tobytes(), x.dtype).reshape(x.shape),
    "every other": lambda x: np.repeat(x, 2, axis=2)[:, :, ::2],
}


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.library("numpy")
def test_layouts(level, dtype, name):
    for (pairing, out_pairing), heads in itertools.product(PAIRINGS, (3, 1)):
        rope = RoPE(22, rotary_dim=20, rotary_start=1, pairing=pairing, out_pairing=out_pairing)
        x = LAYOUTS[name](normal((2, heads, 5, 22), dtype))
        what = (pairing, out_pairing, heads)
        check(rope, x, range(-2, 3), what)
        if x.flags.writeable and "for all" not in name:
            y = LAYOUTS[name](normal((2, heads, 5, 22), dtype))
            want = core(rope, x, range(-2, 3))
            assert_same(rope.apply(x, range(-2, 3), out=empty(x)), want, what)
            assert rope.apply(y, range(-2, 3), out=y) is y
            assert_same(y, want, f"{what}, in place where it lies")


@pytest.mark.library("numpy")
def test_results_of_any_layout(level, dtype):
    rope = RoPE(22, out_pairing="half")
    x = normal((2, 3, 5, 22), dtype)
    want = core(rope, x, range(5))
    for name, layout in LAYOUTS.items():
        if "for all" not in name and name != "read-only":
            out = layout(np.zeros_like(x))
            rope.apply(x, range(5), out=out)
            assert_same(out, want, name)


@pytest.mark.library("numpy")
def test_twelve_axes(level, dtype):
    shape = (2, 1, 2, 1, 3, 1, 2, 1, 1, 2, 5, 6)
    x = normal(shape, dtype)
    turned = x.transpose(4, 0, 2, 1, 3, 6, 5, 8, 7, 9, 10, 11)
    for pos_shape in [
        (),
        (5,),
        (2, 1, 2, 1, 3, 1, 2, 1, 1, 2, 5),
        (1,) * 10 + (5,),
        (2, 1, 2, 1, 1, 1, 1, 1, 1, 1, 1),
    ]:
        check(RoPE(6), x, np.random.default_rng(3).integers(-99, 99, pos_shape), pos_shape)
    for axis in (0, 4, 6, -3):
        check(RoPE(6), turned, np.arange(turned.shape[axis]), axis, seq_axis=axis)
    check(RoPE(6), turned, 3)


@pytest.mark.library("numpy")
def test_as_many_axes_as_numpy_has(level):
    x = normal((1,) * 61 + (2, 3, 4))
    few = x.reshape(2, 3, 4)
    for pos in (range(3), np.arange(6).reshape((1,) * 61 + (2, 3))):
        y = RoPE(4).apply(x, pos)  # the core makes one axis more, which NumPy does not have
        assert_same(y.reshape(few.shape), core(RoPE(4), few, np.reshape(pos, np.shape(pos)[-2:])))


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
    assert_same(RoPE(16).apply((xs[0], xs[0]), 3), core(RoPE(16), (xs[0], xs[0]), 3))


@pytest.mark.library("numpy")
def test_tuples_of_many_axes_and_numbers_of_axes(level):
    xs = (normal((5, 8)), normal((2, 5, 8), F16), normal((3, 2, 5, 8)))
    check(RoPE(8), xs, range(5))
    check(RoPE(8), xs[1:], np.arange(5)[None])


@pytest.mark.library("numpy")
def test_memory_mapped_files(level, dtype, tmp_path):
    x = np.memmap(tmp_path / "x", dtype, "w+", shape=(3, 5, 8))
    x[...] = normal(x.shape, dtype)
    assert_same(RoPE(8).apply(x, range(5)), np.asarray(core(RoPE(8), np.asarray(x), range(5))))


# ---- tables ----


def turned_by(rope, pos, x, **kwargs):
    """A rotation by tables, by the kernel and by the core."""
    rotation = rope.rotation(pos, like=x, **kwargs)
    for each in (rotation, rotation.inverse(), rotation.adjoint()):
        want = each.apply(x, backend="array-api")
        assert_same(each.apply(x), want)
        assert_same(each.apply(x, backend="native"), want, "the long way")
        assert_same(each.apply(x, out=np.empty(x.shape, x.dtype)), want)
        y = np.copy(x)
        each.apply(y, out=y)
        assert_same(y, want, "in place")


@pytest.mark.parametrize("spec", [*SPECS, *SEVERAL])
@pytest.mark.library("numpy")
def test_tables(level, dtype, spec):
    rope = (SPECS | SEVERAL)[spec]
    x = normal((2, 3, 5, rope.head_dim), dtype)
    last = (3,) if spec in SEVERAL else ()
    for shape in [(5,), (2, 5), (2, 1), (1,), (2, 3, 5), ()]:
        turned_by(rope, np.random.default_rng(4).integers(-999, 999, shape + last), x)
    turned_by(rope, np.random.default_rng(4).uniform(-999, 999, (5, *last)), x)
    turned_by(rope, np.random.default_rng(4).uniform(-999, 999, (5, *last)).astype(F32), x[::-1, :, :, ::-1])


@pytest.mark.library("numpy")
def test_other_angles(level, dtype):
    x = normal((2, 3, 5, 16), dtype)
    for pos in (
        2.5,
        [0.5, 1, 2, 3, 1e6],
        np.linspace(-9, 9, 5),
        np.linspace(-9, 9, 10, dtype="f4").reshape(2, 5),
    ):
        check(RoPE(16, attention_factor=1.1), x, pos)
    check(RoPE(16, pairing="half", angles="float32"), x, range(1000, 1005))
    learned = np.random.default_rng(5).uniform(0, 1, 8)
    for one in (learned.astype(F32), learned):
        turned_by(RoPE(16), np.arange(5), x, inv_freq=one)
    mixed = RoPE(16).rotation_mixed(np.arange(10).reshape(5, 2), like=x, inv_freq=normal((3, 2, 8)))
    for rotation in (mixed, mixed.inverse(), *RoPE(16).rotation_xpos(range(5), like=x)):
        assert_same(rotation.apply(x), rotation.apply(x, backend="array-api"))
        there = np.swapaxes(x, 1, 2)
        assert_same(
            rotation.apply(there, seq_axis=-3), rotation.apply(there, seq_axis=-3, backend="array-api")
        )


@pytest.mark.parametrize("length", [5, 601])  # the latter in several groups of rows
@pytest.mark.library("numpy")
def test_tables_of_any_layout(level, dtype, length):
    x = normal((2, 3, length, 16), dtype)
    rotation = RoPE(16).rotation(np.arange(2 * length).reshape(2, length), like=x)
    changes = [
        lambda t: t[:, ::-1],
        np.asfortranarray,
        unaligned,
        spaced,
        lambda t: np.flip(np.flip(t).copy()),
    ]
    changes += [lambda t: np.broadcast_to(t[:, :1], t.shape)]
    changes += [lambda t: np.broadcast_to(t[:1], t.shape), lambda t: t.astype(F64), lambda t: t[..., ::-1]]
    for change, other in itertools.product(changes, changes):
        given = rotation._replace(cos=change(rotation.cos), sin=other(rotation.sin))
        if given.cos.dtype == given.sin.dtype and (given.cos.dtype == F64 or dtype != F64):
            assert_same(given.apply(x), given.apply(x, backend="array-api"))
    both = normal(x.shape, F32), x
    wide = RoPE(16).rotation(range(length), like=np.empty(1))
    assert_same(wide.apply(both), wide.apply(both, backend="array-api"))


TAKEN_APART = {
    "sin of one row": lambda r: r._replace(sin=r.sin[:1]),
    "sin without rows": lambda r: r._replace(sin=r.sin[0]),
    "sin of one lane": lambda r: r._replace(sin=r.sin[:, :1]),
    "too few lanes": lambda r: r._replace(cos=r.cos[:, :2], sin=r.sin[:, :2]),
    "one lane": lambda r: r._replace(cos=r.cos[:, :1], sin=r.sin[:, :1]),
    "too many lanes": lambda r: r._replace(cos=np.tile(r.cos, 2), sin=np.tile(r.sin, 2)),
    "sin of fewer rows": lambda r: r._replace(sin=r.sin[:3]),
    "sin of more rows": lambda r: r._replace(sin=np.tile(r.sin, (2, 1))),
}


@pytest.mark.parametrize("name", TAKEN_APART)
@pytest.mark.parametrize("library", ["numpy", pytest.param("torch", marks=pytest.mark.library("torch"))])
def test_tables_that_do_not_fit_are_never_read_beyond_their_end(name, library):
    """A Rotation is a tuple, which anyone may make: it is refused, or served as the core serves it."""
    x, rotation = normal((5, 8)), TAKEN_APART[name](RoPE(8).rotation(range(5), like=normal((5, 8))))
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
    for change in (
        {"cos": ()},
        {"sin": ()},
        {"cos": (cos,)},
        {"cos": (cos,), "sin": (sin,)},
        {"cos": (cos, sin)},
    ):
        given = rotation._replace(**{"cos": cos, "sin": sin} | change)
        with pytest.raises(RoPEError):
            given.apply(x)


# ---- large arrays: threads, blocks, results past the caches ----


def case(shape, dtype=F32, pos=None, change=None, seq_axis=-2, **fields):
    rope = RoPE(fields.pop("head_dim", shape[-1]), **fields)
    return rope, shape, dtype, range(shape[seq_axis]) if pos is None else pos, change, seq_axis


B = DTYPES[-1]
LARGE = {
    "one head": case((1, 1, 4099, 72)),
    "one head of coordinates": case(
        (4099, 72), pos=np.arange(4099 * 3).reshape(-1, 3), axes=Axes.chunked(12, 12, 12)
    ),
    "heads": case((2, 3, 301, 160), pairing="half"),
    "heads inside": case((2, 211, 11, 130), B, seq_axis=-3, pairing="half", out_pairing="interleaved"),
    "heads inside by batch": case((2, 211, 11, 130), B, np.arange(422).reshape(2, 211), seq_axis=-3),
    "one position": case((1, 4099, 1, 144), F16, 7),
    "one position and one row": case((1, 700_000), F16, 7, head_dim=700_000, rotary_dim=64),
    "one token of each": case((701, 2, 1, 208), pos=np.arange(701)[:, None] * 1000),
    "one token, one head": case((2801, 1, 1, 104), pos=np.arange(2801)[:, None] * 1000),
    "wide heads": case((1, 15, 10_000), F64, pairing="half"),
    "wide heads, few positions": case((40, 2, 4_000), F32),
    "slices": case((2, 2101, 2, 67), seq_axis=1, rotary_dim=50, rotary_start=3, pairing="half"),
    "reversed features": case((3, 301, 320), change=lambda x: x[..., ::-1], pairing="half"),
    "transposed": case((602, 3, 320), F16, range(602), lambda x: x.transpose(1, 0, 2)),
    "broadcast": case((64, 33, 160), change=lambda x: np.broadcast_to(x[:1], x.shape)),
    "three heads of a few": case((3, 2, 200_000), head_dim=200_000, rotary_dim=128, dtype=F32),
    "by each head": case((2, 3, 301, 160), pos=np.arange(1806).reshape(2, 3, 301)),
    "many rows of positions": case((331, 2, 9, 52), pos=np.arange(331 * 9).reshape(331, 9)),
    "nothing": case((4001, 77), rotary_dim=0),
}


@pytest.fixture(autouse=True)
def small_calls_have_threads_too():
    """A quarter of what is shared out by itself: arrays of some MiB would take the tests' time."""
    before = kernel.share_out_from(MIB)
    yield
    kernel.share_out_from(before)


@pytest.fixture(params=[False, True], ids=["", "past the caches"])
def streamed(request):
    """As results are written by themselves, and all of them as large ones are."""
    before = kernel.stream_from(0) if request.param else None
    yield
    if before is not None:
        kernel.stream_from(before)


def made(shape, dtype, change, seed=0):
    x = np.resize(normal(1_000_003, dtype, seed), shape)
    return x if change is None else change(x)


@pytest.mark.parametrize("name", LARGE)
@pytest.mark.usefixtures("streamed")
@pytest.mark.library("numpy")
def test_threads(name, monkeypatch):
    rope, shape, dtype, pos, change, seq_axis = LARGE[name]
    x = made(shape, dtype, change)
    assert x.nbytes > MIB
    want = core(rope, x, pos, seq_axis=seq_axis)
    for way in each_way(monkeypatch):
        assert_same(rope.apply(x, pos, seq_axis=seq_axis), want, way)
        y = np.copy(x)
        assert_same(rope.apply(y, pos, seq_axis=seq_axis, out=y), want, f"{way}, in place")


@pytest.mark.library("numpy")
def test_threads_of_tuples_and_tables(monkeypatch):
    xs = tuple(normal((2, h, 257, 96), d) for h, d in ((6, F32), (1, F64), (2, F16), (5, B), (3, F32)))
    rope = RoPE(96, pairing="half", out_pairing="interleaved")
    rotation = rope.rotation(range(257), like=xs[1])
    want, by_tables = core(rope, xs, range(257)), rotation.apply(xs, backend="array-api")
    for way in each_way(monkeypatch):
        assert_same(rope.apply(xs, range(257)), want, way)
        assert_same(rope.apply(xs[::2], range(257)), want[::2], way)
        assert_same(rotation.apply(xs), by_tables, way)


STREAMED = {
    "heads": case((2, 8, 4099, 130), F16, pairing="half"),
    "one head": case((65_537, 66)),
    "one head of a cache line": case((131_073, 64), B, pairing="half"),
    "one head in uneven steps": case((65_537, 136), F16, uneven(65_537), rotary_dim=128),
    "one head of gaps": case((2, 32_801, 130), B, change=lambda x: x[:, :, 1:-1], head_dim=128),
    "odd heads": case(
        (130_001, 67), B, rotary_dim=64, rotary_start=1, pairing="half", out_pairing="interleaved"
    ),
    "wide heads": case((3, 141, 5_000), F64, pairing="half"),
    "reversed features": case((4, 1025, 1056), change=lambda x: x[..., ::-1], out_pairing="half"),
    "heads inside": case((2, 1031, 16, 130), seq_axis=1),
    "transposed": case((1031, 32, 130), F32, range(1031), lambda x: x.swapaxes(0, 1)),
    "heads of two": case((1031, 2100, 2), seq_axis=0),
}


def offset(shape, dtype, by):
    """Memory that begins so many elements after a cache line, with a margin that must stay as it is."""
    size = int(np.prod(shape))
    buffer = np.full(size + 256, 7, dtype)
    first = -(buffer.ctypes.data // dtype.itemsize) % (64 // dtype.itemsize) + by
    return buffer, first, buffer[first : first + size].reshape(shape)


@pytest.mark.parametrize("name", STREAMED)
@pytest.mark.library("numpy")
def test_results_that_do_not_go_through_the_caches(name, monkeypatch):
    rope, shape, dtype, pos, change, seq_axis = STREAMED[name]
    x = made(shape, dtype, change)
    assert x.nbytes >= 16 * MIB
    want = core(rope, x, pos, seq_axis=seq_axis)
    for threads, by, level in zip((1, 3, 2), (1, 5, 0), itertools.cycle(LEVELS), strict=False):
        kernel.use_level(level)
        monkeypatch.setenv(THREADS, str(threads))
        assert_same(rope.apply(x, pos, seq_axis=seq_axis), want, level)
        buffer, first, out = offset(x.shape, dtype, by)
        assert_same(rope.apply(x, pos, seq_axis=seq_axis, out=out), want, f"{level}, {by} elements on")
        assert (buffer[:first] == 7).all()
        assert (buffer[first + out.size :] == 7).all()
        out[...] = x
        assert_same(rope.apply(out, pos, seq_axis=seq_axis, out=out), want, f"{level}, in place")


@pytest.mark.library("numpy")
def test_a_tuple_that_does_not_go_through_the_caches(level):
    xs = normal((2, 4, 2051, 128), F16), normal((2, 6, 2051, 128)), normal((2, 1, 2051, 256))[..., ::2]
    assert_same(RoPE(128).apply(xs, range(2051)), core(RoPE(128), xs, range(2051)))


@pytest.fixture(scope="module")
def far():
    """Memory of more than 2^32 bytes, of which only what is written comes to be."""
    if sys.maxsize < 2**33:
        pytest.skip("the address space ends before")
    try:
        return np.empty(2**31 + 2**20, F16)
    except MemoryError:
        pytest.skip("the system promises no memory of this size")


@pytest.mark.library("numpy")
def test_distances_beyond_32_bits(level, far):
    rope, x = RoPE(6, pairing="half", out_pairing="interleaved"), normal((2, 5, 6), F16)
    want = core(rope, x, range(5))
    rows = far[: 2**31].reshape(4, 2**29)
    rows = np.lib.stride_tricks.as_strided(rows, (5, 2**19), (2**30, 2))  # the last begins 2^32 bytes on
    for there in (rows[:, :6], rows[::-1, 100:106], rows[:, 205:199:-1], rows[:, 301:313:2]):
        there[...] = x[0]
        assert_same(rope.apply(there, range(5)), want[0])
        out = rows[:, 1000:1006]
        assert_same(rope.apply(there, range(5), out=out), want[0], "to another place")
        assert_same(rope.apply(there, range(5), out=there), want[0], "in place")
    for axes in ((0, 1, 2), (1, 0, 2)):  # heads far apart; then positions
        there = np.lib.stride_tricks.as_strided(rows, (5, 2, 6), (2**30, 12, 2)).transpose(axes)
        there[...] = y = normal(there.shape, F16)
        assert_same(rope.apply(there, range(len(y[0])), out=there), core(rope, y, range(len(y[0]))))
    features = np.lib.stride_tricks.as_strided(far, (2, 4), (2, 2**30))
    features[...] = x[0, :2, :4]
    want = core(RoPE(4), x[0, :2, :4], range(2))
    assert_same(RoPE(4).apply(features, range(2)), want, "features far apart")
    assert_same(RoPE(4).apply(features, range(2), out=features), want, "and in place")
    pos = np.lib.stride_tricks.as_strided(far.view(np.int64)[2000:], (5,), (2**30,))
    pos[...] = [4, 3, 2, 1, 0]
    assert_same(rope.apply(x, pos), core(rope, x, [4, 3, 2, 1, 0]), "positions far apart")


@pytest.mark.library("numpy")
def test_more_than_2_to_the_31_elements(monkeypatch):
    """Every row is read from one place and written to another, which shows the last one."""
    monkeypatch.setenv(THREADS, "1")
    heads, length, width = 2**12, 2**13 + 1, 64
    assert heads * length * width > 2**31
    x, y, plan = normal(width, F16), np.zeros(width, F16), prepared(RoPE(width)._plan)
    repeated = (np.lib.stride_tricks.as_strided(a, (heads, length, width), (0, 0, 2)) for a in (x, y))
    source = Positions(range(5, 5 + 3 * length, 3), plan)
    assert kernel.rotate(next(repeated), source, -2, next(repeated), checked=True) is not NotImplemented
    assert_same(y, core(RoPE(width), x, 5 + 3 * (length - 1)))


# ---- numbers of 16 bits ----

SIXTEEN = [dtype for dtype in (F16, BF16) if dtype is not None]


def by_tables(x, cos, sin, pairing, out_pairing):
    """Rotate heads, each a row of x, by any numbers as cos and sin."""
    layout = Layout(x.shape[-1], 0, x.shape[-1], pairing, out_pairing, 1.0)
    return ra.Rotation(cos, sin, {layout: ()}).apply(x)


def in_pairs(first, second, pairing):
    axis = -2 if pairing == "half" else -1
    return np.stack([first, second], axis).reshape(first.shape[0], -1)


def apart(y, pairing):
    pairs = y.reshape((len(y), 2, -1) if pairing == "half" else (len(y), -1, 2))
    return (pairs[:, 0], pairs[:, 1]) if pairing == "half" else (pairs[..., 0], pairs[..., 1])


@pytest.mark.parametrize("lanes", [1, 4, 32])
@pytest.mark.parametrize("sixteen", SIXTEEN, ids=str)
@pytest.mark.library("numpy")
def test_every_number_of_16_bits_is_widened(level, sixteen, lanes):
    numbers = np.arange(65536, dtype=np.uint16).view(sixteen).reshape(-1, lanes)
    nothing = np.zeros_like(numbers)
    wide = numbers.astype(F32)
    factors = [np.full((1, lanes), f, F32) for f in (1.0, 1.5, 2.0**-9, 0.0)]
    for (pairing, out_pairing), factor in itertools.product(PAIRINGS, factors[:-1]):
        want = (wide * factor).astype(sixteen)
        y = by_tables(in_pairs(numbers, nothing, pairing), factor, factors[-1], pairing, out_pairing)
        assert_same(apart(y, out_pairing)[0], want, (pairing, out_pairing, factor))
        y = by_tables(in_pairs(nothing, numbers, pairing), factor, factors[-1], pairing, out_pairing)
        assert_same(apart(y, out_pairing)[1] + nothing, want + nothing, "as the second of a pair, but for -0")


@pytest.mark.parametrize("sixteen", SIXTEEN, ids=str)
@pytest.mark.library("numpy")
def test_position_zero_is_the_identity(level, sixteen):
    numbers = np.arange(65536, dtype=np.uint16).view(sixteen)
    numbers = np.where(np.isfinite(numbers), numbers, sixteen.type(1))  # what is not makes NaN of its pair
    for pairing, head_dim in itertools.product(("interleaved", "half"), (2, 64)):
        x = numbers.reshape(-1, head_dim)
        assert (RoPE(head_dim, pairing=pairing).apply(x, 0) == x).all()


def chosen_numbers(sixteen):
    """All numbers of a type in float32, what lies in the middle of neighbours, and what is next to each."""
    exact = np.arange(65536, dtype=np.uint16).view(sixteen).astype(F32)
    words = exact.view(np.uint32)
    half = np.uint32(1 << (12 if sixteen == F16 else 15))
    middle = words + half
    below = ((np.nextafter(exact, F32.type(0)) + exact) * F32.type(0.5)).view(np.uint32)
    tiny = np.arange(2**11 * 4, dtype=np.float64) * 2.0**-26 if sixteen == F16 else np.zeros(0)
    tiny = tiny.astype(F32).view(np.uint32)
    rest = np.random.default_rng(6).integers(0, 2**32, 2**16, dtype=np.uint32)
    around = [w + np.uint32(d) for w in (words, middle, tiny, tiny ^ 0x80000000) for d in (0, 1, 2**32 - 1)]
    numbers = np.concatenate([*around, below, rest])
    return np.resize(numbers, -(-len(numbers) // 32) * 32).view(F32)


@pytest.mark.parametrize("lanes", [1, 32])
@pytest.mark.parametrize("sixteen", SIXTEEN, ids=str)
@pytest.mark.library("numpy")
def test_results_of_16_bits_are_rounded_to_the_nearest_even(level, sixteen, lanes):
    numbers = chosen_numbers(sixteen)
    want = numbers.astype(sixteen)
    finite = np.isfinite(numbers)
    for pairing, out_pairing in PAIRINGS:
        table = numbers.reshape(-1, lanes)
        one = in_pairs(np.ones_like(table, sixteen), np.zeros_like(table, sixteen), pairing)
        nothing = np.zeros_like(table)
        y = apart(by_tables(one, table, nothing, pairing, out_pairing), out_pairing)[0].ravel()
        # 1·c - 0·0
        assert_same(y, want, (pairing, out_pairing))
        y = apart(by_tables(one, nothing, table, pairing, out_pairing), out_pairing)[1].ravel()
        # 0·0 + 1·s, where -0 becomes 0
        assert_same(y[finite], (numbers + F32.type(0)).astype(sixteen)[finite], (pairing, out_pairing))


@pytest.mark.library("numpy")
def test_the_nearest_even_by_example(level):
    """Against numbers that are known, not another implementation."""
    cases = {
        F16: {
            1 + 2.0**-11: 1.0,
            1 + 3 * 2.0**-11: 1 + 2.0**-9,
            65519.99: 65504.0,
            65520.0: np.inf,
            1e30: np.inf,
        },
        BF16: {
            1 + 2.0**-8: 1.0,
            1 + 3 * 2.0**-8: 1 + 2.0**-6,
            (2 - 2.0**-8) * 2.0**127: np.inf,
            3.39e38: 3.3895313892515355e38,
        },
    }
    cases[F16] |= {
        2.0**-25: 0.0,
        2.0**-25 * 1.001: 2.0**-24,
        3 * 2.0**-25: 2.0**-23,
        2.0**-14 - 2.0**-26: 2.0**-14,
    }
    for dtype in SIXTEEN:
        for given, want in cases[dtype].items():
            for sign in (1, -1):
                cos = np.full((1, 16), sign * given, F32)
                x = in_pairs(np.ones((1, 16), dtype), np.zeros((1, 16), dtype), "half")
                y = by_tables(x, cos, np.zeros_like(cos), "half", "half")[0, :16]
                assert (y.astype(F64) == sign * want).all(), (dtype, sign * given)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.library("numpy")
def test_what_is_not_finite_stays_in_its_pair(level, dtype, bad):
    for (pairing, out_pairing), at in itertools.product(PAIRINGS, (0, 1, 13, 32, 38, 44)):
        rope = RoPE(45, rotary_dim=42, rotary_start=1, pairing=pairing, out_pairing=out_pairing)
        x = normal((2, 3, 45), dtype)
        good = rope.apply(x, range(3))
        x[1, 2, at] = bad
        y = rope.apply(x, range(3))
        other = pattern(y) != pattern(good)
        lane = None if not 1 <= at < 43 else (at - 1) // 2 if pairing == "interleaved" else (at - 1) % 21
        pair = [at] if lane is None else [1 + 2 * lane, 2 + 2 * lane]
        if lane is not None and out_pairing == "half":
            pair = [1 + lane, 22 + lane]
        assert not np.isfinite(y[1, 2, pair]).any()
        other[1, 2, pair] = False
        assert not other.any()


# ---- the truth, not the core ----

TRUE = [
    {"pairing": "interleaved"},
    {"pairing": "half", "base": 500_000.0},
    {"pairing": "half", "out_pairing": "interleaved", "rotary_dim": 36, "rotary_start": 3},
    {"pairing": "interleaved", "out_pairing": "half", "rotary_dim": 8, "attention_factor": 1.3},
]


@pytest.mark.parametrize("spec", TRUE, ids=range(len(TRUE)))
@pytest.mark.library("numpy")
def test_the_definition(level, dtype, spec):
    pos = np.array([0, 1, -1, 511, 2**20 + 1, -(2**31), 2**31 - 1, 123_456_789, 99_999])
    for heads in (3, 1):
        x = normal((2, heads, len(pos), 40), dtype)
        for more in ({}, {"inverse": True}):
            y = RoPE(40, **spec).apply(x, pos, **more)
            assert_contract(y, x.astype(F64), pos, dtype=dtype.name, **more, **spec)


@pytest.mark.library("numpy")
def test_pairs_by_hand(level, dtype):
    """A quarter of a turn, element by element: which feature goes where."""
    quarter = 3 * 2 * np.pi / 4
    for (pairing, out_pairing), lanes in itertools.product(PAIRINGS, (1, 3, 16, 21)):
        x = np.arange(1, 2 * lanes + 1).astype(dtype)[None]
        first, second = apart(x, pairing)
        rope = RoPE(2 * lanes, inv_freq=(quarter,) * lanes, pairing=pairing, out_pairing=out_pairing)
        got = apart(rope.apply(x, 1), out_pairing)
        np.testing.assert_allclose(got[0].astype(F64), second.astype(F64), rtol=1e-2 if dtype == B else 1e-3)
        np.testing.assert_allclose(got[1].astype(F64), -first.astype(F64), rtol=1e-2 if dtype == B else 1e-3)


# ---- any shape, any stride, any spec ----

ROPES = [
    RoPE(
        head_dim,
        base=base,
        rotary_dim=2 * lanes,
        rotary_start=start,
        pairing=pairing,
        out_pairing=out_pairing,
        attention_factor=amplitude,
    )
    for (head_dim, lanes, start), (pairing, out_pairing), (base, amplitude) in zip(
        [(1, 0, 0), (2, 1, 0), (7, 2, 3), (16, 8, 0), (33, 16, 1), (40, 17, 2), (64, 32, 0), (70, 35, 0)] * 2,
        PAIRINGS * 4,
        [(10_000.0, None), (500_000.0, 1.25), (100.0, None)] * 5 + [(7.0, 0.3)],
        strict=True,
    )
]


def placed(rng, dtype, shape, *, shared):
    """Random numbers by random strides in random bytes: (buffer, which bytes are not theirs, view)."""
    size, strides, reach = dtype.itemsize, [0] * len(shape), dtype.itemsize
    axes = (
        [len(shape) - 1, *rng.permutation(len(shape) - 1)]
        if rng.random() < 0.6
        else rng.permutation(len(shape))
    )
    for a in axes:
        if shared and rng.random() < 0.15:
            continue
        step = reach + size * int(rng.choice([0, 0, 0, 1, 5]))
        strides[a] = step if rng.random() < 0.8 else -step
        reach = step * max(shape[a] - 1, 0) + reach
    low = sum(min(0, (n - 1) * s) for n, s in zip(shape, strides, strict=True) if n)
    high = sum(max(0, (n - 1) * s) for n, s in zip(shape, strides, strict=True) if n) + size
    start = 64 + int(rng.random() < 0.15) - low
    buffer = rng.integers(0, 256, 128 + high - low + 8, dtype=np.uint8)
    theirs = np.zeros(len(buffer), bool)
    view = np.ndarray(shape, dtype, buffer, start, strides)
    np.ndarray((*shape, size), bool, theirs, start, (*strides, 1))[...] = True
    if rng.random() < 0.8:  # else any bits
        view[...] = rng.standard_normal(shape).astype(dtype)
    return buffer, ~theirs, view


def random_positions(rng, shape, seq_axis):
    """Positions that line up with an x of this shape."""
    lead = [n for a, n in enumerate(shape[:-1]) if a != seq_axis]
    want = [*lead[: rng.integers(0, len(lead) + 1)], shape[seq_axis]] if rng.random() < 0.8 else []
    want = tuple(n if rng.random() < 0.8 else 1 for n in want)
    kind = rng.choice(
        ["int", "range", "int8", "int16", "int32", "int64", "int64", "uint32", "float32", "float64"]
    )
    if kind == "int":
        return int(rng.integers(-(2**62), 2**62))
    if kind == "range":
        start, step = int(rng.integers(-(2**40), 2**40)), int(rng.choice([1, 1, 2, -1, -7, 2**33]))
        return range(start, start + step * shape[seq_axis], step)
    _, _, pos = placed(rng, np.dtype(kind), want, shared=True) if want else (0, 0, np.zeros((), kind))
    if pos.dtype.kind == "f":
        pos[...] = rng.uniform(-1000, 1000, want)
    elif rng.random() < 0.5:
        pos[...] = rng.integers(0, 100, want)
    return pos


def random_call(rng):
    rope = ROPES[rng.integers(len(ROPES))]
    ndim = int(rng.integers(2, 6))
    shape = (*map(int, rng.choice([0, 1, 1, 2, 3, 4, 9], ndim - 1, p=[0.03, *[0.97 / 6] * 6])), rope.head_dim)
    seq_axis = int(rng.integers(0, ndim - 1))
    pos = random_positions(rng, shape, seq_axis)
    shapes = [shape]
    if rng.random() < 0.3:
        free = [a for a in range(ndim - 1) if a != seq_axis]
        if free and np.ndim(pos) == 1 and free:
            a = free[int(rng.integers(len(free)))]
            shapes += [tuple(2 if b == a else n for b, n in enumerate(shape)), shape]
        else:
            shapes += [shape]
    dtypes = [DTYPES[i] for i in rng.integers(len(DTYPES), size=len(shapes))]
    mode = str(rng.choice(["none", "out", "in place"]))
    return rope, shapes, dtypes, pos, seq_axis, mode


def run_random_call(rng):
    rope, shapes, dtypes, pos, seq_axis, mode = random_call(rng)
    xs = [placed(rng, d, s, shared=mode != "in place") for s, d in zip(shapes, dtypes, strict=True)]
    outs = (
        [placed(rng, d, s, shared=False) for s, d in zip(shapes, dtypes, strict=True)]
        if mode == "out"
        else []
    )
    written = xs if mode == "in place" else outs
    before = [np.copy(buffer) for buffer, _, _ in (*xs, *outs)]
    given = tuple(x for _, _, x in xs)
    inverse = bool(rng.random() < 0.3)
    strides = [x.strides for x in given], [y.strides for _, _, y in outs]
    what = f"{rope!r}, {shapes}, {strides}, {dtypes}, {pos!r}, {seq_axis=}, {mode}, {inverse=}"
    want = core(rope, given, pos, seq_axis=seq_axis, inverse=inverse)
    into = tuple(y for _, _, y in written) or None
    if len(given) == 1 and rng.random() < 0.7:
        given, want, into = given[0], want[0], into and into[0]
    got = rope.apply(given, pos, seq_axis=seq_axis, inverse=inverse, out=into)
    assert into is None or got is into, what
    assert_same(got, want, what)
    for old, (buffer, kept, view) in zip(before, (*xs, *outs), strict=True):
        kept = kept if any(view is w for _, _, w in written) else slice(None)
        assert (buffer[kept] == old[kept]).all(), f"written outside of the result: {what}"


@pytest.mark.parametrize("seed", range(10 * TIMES))
@pytest.mark.usefixtures("streamed")
@pytest.mark.library("numpy")
def test_random_calls(seed):
    rng = np.random.default_rng(seed)
    for i in range(60):
        kernel.use_level(LEVELS[i % len(LEVELS)])
        run_random_call(rng)


@pytest.mark.parametrize("seed", range(12 * TIMES))
@pytest.mark.usefixtures("streamed")
@pytest.mark.library("numpy")
def test_random_large_calls(seed, monkeypatch):
    rng = np.random.default_rng(seed)
    rope = ROPES[rng.integers(1, len(ROPES))]
    heads, batch = (int(n) for n in rng.choice([1, 1, 2, 5, 40], 2))
    length = -(-int(rng.integers(MIB, 3 * MIB)) // (2 * heads * batch * rope.head_dim))
    shape = (*map(int, rng.permutation([batch, heads, length])), rope.head_dim)
    seq_axis = int(rng.integers(3))
    dtype = DTYPES[rng.integers(len(DTYPES))]
    _, _, x = placed(rng, dtype, shape, shared=False)
    pos = range(shape[seq_axis]) if rng.random() < 0.5 else int(rng.integers(1000))
    want = core(rope, x, pos, seq_axis=seq_axis)
    for way in each_way(monkeypatch):
        assert_same(rope.apply(x, pos, seq_axis=seq_axis), want, f"{shape}, {x.strides}, {dtype}, {way}")


# ---- threads and processes ----


@pytest.mark.library("numpy")
def test_calls_from_eight_threads(monkeypatch):
    monkeypatch.setenv(THREADS, "3")
    rope = RoPE(64, pairing="half")
    xs = [normal(shape, d) for shape in ((2, 3, 64), (4, 300, 64), (8, 1100, 64)) for d in (F32, F16)]
    xs.append((xs[0], normal((2, 3, 64), F64)))
    cases = [(x, rope.apply(x, range((x[0] if type(x) is tuple else x).shape[-2]))) for x in xs]
    barrier, errors, until = threading.Barrier(8), [], time.monotonic() + 1.5

    def hammer(number):
        try:
            barrier.wait()
            for i in itertools.count(number):
                x, want = cases[i % len(cases)]
                assert_same(
                    RoPE(64, pairing="half").apply(x, range((x[0] if type(x) is tuple else x).shape[-2])),
                    want,
                )
                if time.monotonic() > until:
                    return
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=hammer, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors, errors[0]


def while_a_thread_waits(call):
    """Tell whether another Python thread ran during a call, which itself runs no Python."""
    interval, gate, seen = sys.getswitchinterval(), threading.Lock(), []

    def wait():
        with gate:
            seen.append(True)

    try:
        sys.setswitchinterval(1000.0)  # so that it runs only if it is let
        for _ in range(50):
            seen.clear()
            gate.acquire()
            thread = threading.Thread(target=wait)
            thread.start()
            time.sleep(0.01)  # until it waits at the gate
            gate.release()
            call()
            ran = bool(seen)
            thread.join()
            if ran:
                return True
    finally:
        sys.setswitchinterval(interval)
    return False


@pytest.mark.library("numpy")
def test_other_python_threads_run_during_a_large_call(monkeypatch):
    monkeypatch.setenv(THREADS, "1")
    x, rope, nothing = np.zeros((4 * MIB // 64, 64), F32), RoPE(64), lambda: None
    out = np.zeros_like(x)
    rope.apply(x, range(len(x)), out=out)
    assert while_a_thread_waits(lambda: rope.apply(x, range(len(x)), out=out))
    if getattr(sys, "_is_gil_enabled", lambda: True)():
        assert not while_a_thread_waits(nothing)


FORKED = """
    import multiprocessing, os, sys, threading
    import numpy as np, rope_array as ra
    from rope_array._backends import _native

    rope = ra.RoPE(64)
    x = np.resize(np.random.default_rng(0).standard_normal(10_007, np.float32), (9001, 64))
    _native.kernel.share_out_from(2**20)
    want = rope.apply(x, range(9001))  # starts threads
    assert (want == rope.apply(x, range(9001), backend="array-api")).all()

    def same():
        return all((rope.apply(x, range(9001)) == want).all() for _ in range(3))

    running, stop = threading.Event(), threading.Event()

    def hammer():
        while not stop.is_set():
            rope.apply(x, range(9001))
            running.set()

    thread = threading.Thread(target=hammer)
    thread.start()
    running.wait()
    children = []
    for _ in range(8):  # while another thread has the kernel's
        child = os.fork()
        if not child:
            import signal
            signal.alarm(30)
            grandchild = os.fork()
            good = same()
            if not grandchild:
                os._exit(0 if good else 1)
            os._exit(0 if good and os.waitpid(grandchild, 0)[1] == 0 else 1)
        children.append(child)
    codes = [os.waitpid(child, 0)[1] for child in children]
    stop.set()
    thread.join()
    assert codes == [0] * 8, codes
    for method in ("fork", "spawn"):
        with multiprocessing.get_context(method).Pool(2) as pool:
            ys = pool.starmap(rope.apply, [(x, range(9001))] * 4)
        assert all((y == want).all() for y in ys), method
    assert same()
    print("good")
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
@pytest.mark.library("numpy")
def test_children_rotate_after_threads_were_started():
    assert child.run(FORKED, **{THREADS: "4"}).strip() == "good"


DAEMONS = """
    import threading, time
    import numpy as np, rope_array as ra

    rope, x = ra.RoPE(64), np.ones(({heads}, 64, 64), np.float32)

    def rotate_for_ever():
        while True:
            rope.apply(x, range(64))

    for _ in range(4):
        threading.Thread(target=rotate_for_ever, daemon=True).start()
    time.sleep(0.05)
    print("good")
"""


@pytest.mark.parametrize("heads", [2, 16, 256], ids=["32 KiB", "256 KiB", "4 MiB"])
@pytest.mark.library("numpy")
def test_the_interpreter_exits_while_daemon_threads_rotate(heads):
    """A daemon thread that wants the interpreter lock back then neither ends the process nor keeps it."""
    for _ in range(4):
        assert child.run(DAEMONS.format(heads=heads), **{THREADS: "2"}).strip() == "good"


@pytest.mark.parametrize("text", ["0", "-3", "abc", "", "100000", "99999999999999999999", " 5", "2.7", "1"])
@pytest.mark.library("numpy")
def test_odd_numbers_of_threads(text, monkeypatch):
    want = {"100000": 1024, "99999999999999999999": 1024, " 5": 5, "2.7": 2, "1": 1}.get(text)
    x = normal((5000, 64))
    y = core(RoPE(64), x, range(5000))
    monkeypatch.setenv(OF_OPENMP, "6")
    assert kernel.threads_of(0) == 6
    monkeypatch.setenv(THREADS, text)
    assert kernel.threads_of(0) == (want or 6)
    assert_same(RoPE(64).apply(x, range(5000)), y)
    monkeypatch.delenv(THREADS)
    monkeypatch.setenv(OF_OPENMP, text)
    assert kernel.threads_of(0) == (want or kernel.threads_of(0))
    assert kernel.threads_of(0) >= 1
    assert_same(RoPE(64).apply(x, range(5000)), y)


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="the system has no affinity")
@pytest.mark.library("numpy")
def test_as_many_threads_as_processors_that_may_be_used():
    script = """
        import os
        from rope_array._backends import _native
        mine = os.sched_getaffinity(0)
        assert _native.kernel.threads_of(0) == len(mine)
        os.sched_setaffinity(0, {min(mine)})
        assert _native.kernel.threads_of(0) == 1
        os.environ["OMP_NUM_THREADS"] = "3"
        assert _native.kernel.threads_of(0) == 3
    """
    child.run(script, **{THREADS: "", OF_OPENMP: ""})


# ---- which level runs ----

WHICH = """
    import hashlib
    import numpy as np, rope_array as ra
    x = np.linspace(-3, 3, 5 * 46, dtype=np.float32).reshape(5, 46)
    y = ra.apply(x, range(5))
    from rope_array._backends import _native
    print(_native.kernel and _native.kernel.level_name())
    print(ra.explain(x, range(5)).backend)
    print(hashlib.sha256(y.tobytes()).hexdigest())
"""


@pytest.mark.library("numpy")
def test_the_level_of_the_environment():
    first = child.run(WHICH, **{LEVEL: ""}).split()
    assert first[:2] == [LEVELS[0], "native"]
    for name in LEVELS:
        assert child.run(WHICH, **{LEVEL: name}).split() == [name, *first[1:]]
    assert child.run(WHICH, **{LEVEL: "none"}).split()[:2] == ["None", "numpy"]


@pytest.mark.library("numpy")
def test_no_kernel_is_a_reason():
    script = """
        import numpy as np, rope_array as ra
        try:
            ra.apply(np.ones((2, 4)), range(2), backend="native")
        except ra.BackendError as error:
            print(error)
        print(ra.backends())
    """
    said = child.run(script, **{LEVEL: "none"})
    assert said.count(f"switched off: {LEVEL} is 'none'") >= 1
    assert "BackendError" not in said


@pytest.mark.library("numpy")
def test_an_unknown_level_is_refused():
    script = """
        import numpy as np, rope_array as ra
        try:
            ra.apply(np.ones((2, 4)), range(2))
        except ra.BackendError as error:
            print(error)
    """
    said = child.run(script, **{LEVEL: "x86-64-v9"})
    assert "'x86-64-v9'" in said
    assert all(repr(name) in said for name in LEVELS)


@pytest.mark.library("numpy")
def test_names_of_levels(level):
    assert kernel.level_name() == level
    assert level in _native.description()
    with pytest.raises(ValueError, match="no such level"):
        kernel.use_level("none")
    assert kernel.level_name() == level


@pytest.mark.library("numpy")
def test_the_kernel_is_the_first_path(dtype):
    assert ra.explain(normal((3, 8), dtype), range(3)).backend == "native"


# ---- what is refused ----


def prepared(plan):
    """Return a plan that has the kernel's handle."""
    _native._prepare(plan)
    return plan


X = np.zeros((3, 5, 8), F32)
PLAN = RoPE(8)._plan


class Sub(np.ndarray):
    pass


def named(value):
    """Name an argument in a test's name."""
    if type(value) is dict:
        return ", ".join(f"{name} {named(one)}" for name, one in value.items())
    if type(value) in (tuple, list):
        return f"({', '.join(map(named, value))})"
    if isinstance(value, np.ndarray):
        return f"{type(value).__name__} {value.dtype}{value.shape}"
    return repr(value) if type(value) in (int, float, bool, str, range) else type(value).__name__


def address(array):
    return array.__array_interface__["data"][0]


@pytest.mark.parametrize(
    "given",
    [
        *(
            {"x": value}
            for value in ((), (X, (X,)), "x", ("x",), (None,), [X], X.view(Sub), X.astype(">f4"), 3.0)
        ),
        *(
            {"x": value}
            for value in (X[..., :6], np.zeros((3, 5, 8), int), np.float32(3), np.array(3.0), X[0, 0, 0])
        ),
        *({"x": (X, value)} for value in (X.astype(F64), X[:, :4], X[..., :4], "x", None)),
        *({"pos": value} for value in ("a", 2.5, True, 2**63, [1, 2], (), range(4), range(2**70, 2**70 + 5))),
        *(
            {"pos": value}
            for value in (np.arange(4), np.arange(5.0), np.arange(5).view(Sub), np.arange(5, dtype="i2"))
        ),
        *(
            {"pos": value}
            for value in (np.zeros((1, 3, 5), int), np.zeros((1, 1, 1, 5), int), np.zeros(5, bool))
        ),
        *({"seq_axis": value} for value in ("a", 1.0, True, 2**70, -1, 2, -4, 9)),
        *({"out": value} for value in ("o", (X,), X[:2], X.astype(F16), (None,), [X], X.view(Sub))),
        *({"x": (X,), "out": value} for value in (X, (X, X), ("o",), ())),
        *(
            {"out": value}
            for value in (np.broadcast_to(F32.type(0), X.shape), X[..., ::-1], np.zeros((3, 5, 16))[..., ::2])
        ),
    ],
    ids=named,
)
@pytest.mark.library("numpy")
def test_declined_by_positions(given):
    arguments = {"x": X, "pos": range(5), "seq_axis": -2, "out": None} | given
    x, pos, seq_axis, out = arguments.values()
    assert kernel.rotate(x, Positions(pos, prepared(PLAN)), seq_axis, out) is NotImplemented


COS = np.ones((5, 4), F32)
HOSTILE = [
    *(("head_dim", value) for value in (2**62, 2**70, 8.0, 6, -8)),
    *(("start", value) for value in (-2, 2, 9, 2**62, -(2**63), 0.0, False)),
    *(("stop", value) for value in (9, 7, 6, -8, 2**62, 2**63 - 1, None)),
    *(("blocks", value) for value in (0, 3, 8, -1, -(2**63), True, 2**64)),
    *((name, value) for name in ("pairing", "out_pairing") for value in ("foo", None, 1, b"half", "halfé")),
]
TABLES = {"x": X, "cos": COS, "sin": COS, "layout": PLAN.layout, "seq_axis": -2, "out": None}
LAYOUT = PLAN.layout


@pytest.mark.parametrize(
    "given",
    [
        *(
            {"cos": value}
            for value in ((), None, "c", (COS,), COS[:3], COS[:, :2], COS.astype(F64), COS.view(Sub))
        ),
        *(
            {"sin": value}
            for value in ((), None, "s", (COS,), COS[:1], COS[0], np.asfortranarray(COS), COS[:, ::-1])
        ),
        *(
            {"cos": c, "sin": c}
            for c in (COS[:4], COS[:, :2], COS[:, :1], COS[0, 0], np.array(1, F32), COS.astype(">f4"))
        ),
        *(
            {"cos": c, "sin": c}
            for c in (np.ones((5, 8), F32), np.ones((2, 5, 4), F32), np.ones((1, 1, 1, 5, 4), F32))
        ),
        *(
            {"x": value}
            for value in ((), (X, (X,)), None, X.astype(F64), (X, X.astype(F64)), X[0, 0, 0], X[:, :4])
        ),
        *({"layout": value} for value in ("layout", PLAN, (), LAYOUT[:6])),
        *({"layout": LAYOUT._replace(**{name: value})} for name, value in HOSTILE),
        *({"seq_axis": value} for value in (None, 2**70, -1, 2)),
        *(
            {"out": value}
            for value in ((X,), X[:2], X[..., ::-1], np.zeros(200, F32)[::-1][:120].reshape(X.shape))
        ),
    ],
    ids=named,
)
@pytest.mark.library("numpy")
def test_declined_by_tables(given):
    def rotated(x, cos, sin, layout, seq_axis, out):
        return kernel.rotate(x, Tables(cos, sin, layout), seq_axis, out)

    assert_same(rotated(**TABLES), X)
    assert rotated(**TABLES | given) is NotImplemented


@pytest.mark.parametrize("name", ["native", "numpy", "array-api", None])
@pytest.mark.parametrize(("field", "value"), HOSTILE)
@pytest.mark.library("numpy")
def test_hostile_layouts_are_refused(name, field, value):
    layout = LAYOUT._replace(**{field: value})
    for cos in (COS, np.ones((5, 2**10), F32)):
        for x in (X, X.astype(F16)[::2], np.zeros((3, 5, 6), F32)):
            with pytest.raises(RoPEError):
                ra.Rotation(cos, cos, {layout: ()}).apply(x, backend=name)


@pytest.mark.parametrize(("field", "value"), HOSTILE)
@pytest.mark.library("numpy")
def test_hostile_plans_are_refused(field, value):
    rope, plan = RoPE(8, base=99.0), copy.copy(RoPE(8, base=99.0)._plan)
    plan.layout = LAYOUT._replace(**{field: value})
    object.__setattr__(rope, "_plan", plan)
    for x in (X, np.zeros((3, 5, 6), F32)):
        with pytest.raises(RoPEError):
            rope.apply(x, range(5))
        with pytest.raises(RoPEError):
            rope.apply(x, range(5))


@pytest.mark.library("numpy")
def test_sources_that_are_none():
    class Other:
        native = "plan"

    with pytest.raises(AttributeError):
        kernel.rotate(X, Positions(0, "plan"), -2, None)
    for source in (
        None,
        (),
        (0,),
        X,
        Positions(0, Other()),
        Positions(0, RoPE(8, base=77)._plan),
        [0, PLAN, None],
    ):
        assert kernel.rotate(X, source, -2, None) is NotImplemented
    assert kernel.rotate(X, Positions(0, prepared(PLAN), X), -2, None) is NotImplemented
    for pos in (np.zeros((5, 2), int), np.zeros(5, int), np.zeros((), int), 3, range(5)):  # it takes three
        source = Positions(pos, prepared(SEVERAL["runs"]._plan))
        assert kernel.rotate(np.zeros((5, 72), F32), source, -2, None) is NotImplemented
    with pytest.raises(ValueError, match="layout"):
        kernel.make_plan(LAYOUT._replace(start=-2), 1.0, *[(0,) * 4] * 3, (), 0)


@pytest.mark.parametrize(
    "given", [{"pos": None}, {"seq_axis": None}, {"seq_axis": "a"}, {"x": None}, {"x": ()}], ids=named
)
@pytest.mark.library("numpy", "torch")
def test_refused_as_the_core_refuses(given):
    torch = pytest.importorskip("torch")
    for x in (X, torch.zeros(3, 5, 8)):
        arguments = {"x": x, "pos": range(5)} | given
        with pytest.raises(RoPEError) as of_core:
            RoPE(8).apply(**arguments, backend="array-api")
        with pytest.raises(type(of_core.value)):
            RoPE(8).apply(**arguments)


@pytest.mark.library("numpy")
def test_a_range_without_end():
    with pytest.raises((RoPEError, OverflowError)):
        RoPE(8).apply(X, range(-(2**63), 2**63 - 1))


@pytest.mark.library("numpy")
def test_results_that_overlap_are_refused():
    buffer = np.zeros(2 * X.size, F32)
    x = buffer[: X.size].reshape(X.shape)
    for out in (buffer[1 : X.size + 1].reshape(X.shape), x[::-1], buffer[8 : X.size + 8].reshape(X.shape)):
        with pytest.raises(ra.ArrayTypeError, match="shares memory"):
            RoPE(8).apply(x, range(5), out=out)
    for turned in (x[::-1], x[:, ::-1], x[..., ::-1], x[::-1, ::-1, ::-1]):
        for out in (x, buffer[8 : X.size + 8].reshape(X.shape)):
            with pytest.raises(ra.ArrayTypeError, match="shares memory"):
                RoPE(8).apply(turned, range(5), out=out)
    pos = np.arange(15.0).view(np.int64).reshape(3, 5)
    for given in (pos, pos[::-1], pos[:, ::-1]):
        with pytest.raises(ra.ArrayTypeError, match="shares memory"):
            RoPE(2).apply(np.zeros((3, 5, 2), F32), given, out=pos.view(F32).reshape(3, 5, 2))
    rotation = RoPE(8).rotation(range(5), like=x)
    for change in ({"cos": buffer[:20].reshape(5, 4)}, {"sin": buffer[100:120].reshape(5, 4)}):
        with pytest.raises(ra.ArrayTypeError, match="shares memory"):
            rotation._replace(**change).apply(np.zeros_like(x), out=x)
    one, other = np.zeros((5, 8), F32), np.zeros((5, 8), F32)
    for outs in ((other, other), (one, one), (other, one)):
        with pytest.raises(ra.ArrayTypeError, match="shares memory"):
            RoPE(8).apply((one, other), range(5), out=outs)


# ---- PyTorch ----


@pytest.fixture(params=["table", "attributes"])
def door(request):
    """The kernel reads tensors by DLPack's exchange table if PyTorch has one, or by their attributes."""
    import torch

    def use(table):
        return kernel.use_tensors(
            torch.Tensor, torch.nn.Parameter, torch.empty_like, torch.get_num_threads, table
        )

    if use(request.param == "table") != (request.param == "table"):
        pytest.skip("this version of PyTorch has no exchange table")
    yield
    use(True)


def tensor(x):
    """A tensor of an array's numbers, also where they are ml_dtypes'."""
    import torch

    bits = torch.from_numpy(np.ascontiguousarray(x).view(f"i{x.dtype.itemsize}").copy())
    return bits.view(getattr(torch, x.dtype.name))


def of_tensor(y):
    """An array of a tensor's bits, in what NumPy calls its dtype; those of bfloat16 as float32."""
    if type(y) is tuple:
        return tuple(map(of_tensor, y))
    y = y.detach().resolve_neg()
    return (y.float() if str(y.dtype) == "torch.bfloat16" else y).numpy()


def torch_layouts(x):
    """Ways that a tensor may lie; in torch no stride is negative."""
    import torch

    wide = torch.zeros((*x.shape[:-1], 2 * x.shape[-1] + 3), dtype=x.dtype)
    wide[..., 3::2] = x
    odd = torch.zeros(x.numel() + 1, dtype=x.dtype)[1:].view(x.shape)
    yield from (x, wide[..., 3::2], odd.copy_(x), x.transpose(1, 2).contiguous().transpose(1, 2))
    yield from (
        x[:1].expand(x.shape),
        x.permute(3, 1, 0, 2).contiguous().permute(2, 1, 3, 0),
        x.narrow(2, 1, 3),
    )


@pytest.mark.parametrize("name", ["float32", "float64", "float16", "bfloat16"])
@pytest.mark.library("torch")
def test_torch(level, name, door):
    import torch

    x = torch.randn(2, 3, 5, 20, generator=torch.Generator().manual_seed(0)).to(getattr(torch, name))
    for (pairing, out_pairing), there in itertools.product(PAIRINGS, torch_layouts(x)):
        rope = RoPE(20, rotary_dim=18, rotary_start=1, pairing=pairing, out_pairing=out_pairing)
        length = there.shape[2]
        for pos in (
            7,
            -(2**62),
            torch.arange(length),
            torch.arange(2 * length, dtype=torch.int32).view(2, -1),
            range(length),
        ):
            for more in ({}, {"inverse": True}):
                want = of_tensor(core(rope, there, pos, **more))
                assert_same(of_tensor(rope.apply(there, pos, **more)), want)
                assert_same(of_tensor(rope.apply(there, pos, backend="native", **more)), want)
                assert_same(
                    of_tensor(rope.apply(there, pos, out=torch.empty(there.shape, dtype=x.dtype), **more)),
                    want,
                )
                y = there.clone()
                assert_same(of_tensor(rope.apply(y, pos, out=y, **more)), want)


@pytest.mark.library("torch")
def test_torch_positions_and_tables(level, door):
    import torch

    xs = (
        torch.randn(2, 3, 5, 16),
        torch.randn(2, 1, 5, 16).double(),
        torch.randn(2, 2, 5, 16).bfloat16(),
        torch.zeros(2, 0, 5, 16),
    )
    rope, several = RoPE(16, pairing="half", attention_factor=1.2), RoPE(16, axes=Axes.axial(8, 8))
    strided = torch.arange(20).view(2, 10)[:, ::2]
    for pos in (
        strided,
        strided.short(),
        strided[:1],
        strided[:, :1],
        strided / 7,
        2.5,
        [1, 2, 3, 4, 5],
        torch.tensor(3),
        torch.tensor([3]).expand(5),
    ):
        assert_same(of_tensor(rope.apply(xs, pos)), of_tensor(core(rope, xs, pos)))
    pos = torch.arange(20).view(2, 5, 2)
    assert_same(of_tensor(several.apply(xs, pos)), of_tensor(core(several, xs, pos)))
    assert_same(
        of_tensor(several.apply(xs[0], pos.flip(-1)[..., ::1])), of_tensor(core(several, xs[0], pos.flip(-1)))
    )
    for rotation in (
        rope.rotation(strided, like=xs[1]),
        rope.rotation(strided, like=xs[1]).inverse(),
        several.rotation(pos, like=xs[1]),
    ):
        want = of_tensor(rotation.apply(xs, backend="array-api"))
        assert_same(of_tensor(rotation.apply(xs)), want)
        sliced = rotation._replace(cos=rotation.cos.repeat_interleave(2, -1)[..., ::2])
        assert_same(of_tensor(sliced.apply(xs)), want)


@pytest.mark.library("torch")
def test_torch_gradients(level, door):
    import torch

    for name, rope in ({**SPECS, "several": SEVERAL["blocks"]}).items():
        x = torch.randn(2, 5, rope.head_dim, dtype=torch.float32, requires_grad=True)
        pos = torch.arange(15).view(5, 3) if name == "several" else torch.arange(5)
        there = torch.randn(2, 5, rope.head_dim)
        (got,) = torch.autograd.grad(rope.apply(x, pos), x, there)
        (want,) = torch.autograd.grad(core(rope, x, pos), x, there)
        torch.testing.assert_close(got, want, rtol=0, atol=0)
        if name != "several":
            y, want = rope.apply(x, 7), core(rope, x, 7)
            assert_same(of_tensor(y), of_tensor(want))
            grads = (torch.autograd.grad(each, x, there)[0] for each in (y, want))
            torch.testing.assert_close(*grads, rtol=0, atol=0)


@pytest.mark.library("torch")
def test_torch_results(door):
    """What is written is seen to be, and what overlaps is refused."""
    import torch

    rope, base = RoPE(8), torch.zeros(100)
    x = base[:40].view(5, 8)
    for pos in (3, torch.arange(5)):
        before = x._version
        rope.apply(x, pos, out=x)
        assert x._version > before
        for out in (
            base[8:48].view(5, 8),
            base[1:41].view(5, 8),
            base[:40].view(8, 5).T,
            x.expand(5, 8)[:, :],
        ):
            if out.data_ptr() != x.data_ptr() or out.stride() != x.stride():
                with pytest.raises(ra.ArrayTypeError, match="shares memory"):
                    rope.apply(x, pos, out=out)
        with pytest.raises(ra.ArrayTypeError):
            rope.apply(x, pos, out=torch.zeros(8).expand(5, 8))
        far, want = base[40:80].view(5, 8), core(rope, torch.ones(5, 8), pos)
        x.fill_(1)
        assert rope.apply(x, pos, out=far) is far
        assert_same(of_tensor(far), of_tensor(want))


@pytest.mark.library("torch")
def test_torch_threads(monkeypatch):
    import torch

    before = torch.get_num_threads()
    x = torch.randn(2, 8, 2100, 130)
    rope = RoPE(130, pairing="half")
    rotation = rope.rotation(range(2100), like=x)
    want = of_tensor(core(rope, x, range(2100)))
    try:
        for name, threads in itertools.product(LEVELS, (1, 2, 7)):
            kernel.use_level(name)
            torch.set_num_threads(threads)
            assert_same(of_tensor(rope.apply(x, torch.arange(2100))), want, threads)
            assert_same(of_tensor(rotation.apply(x)), want, threads)
            monkeypatch.setenv(THREADS, "3")
            assert_same(of_tensor(rope.apply(x, range(2100), out=torch.empty_like(x))), want, threads)
            monkeypatch.delenv(THREADS)
    finally:
        torch.set_num_threads(before)


@pytest.mark.library("torch")
def test_tensors_that_are_not_for_the_kernel(door):
    import torch

    x, out, plan = torch.ones(5, 8), torch.zeros(5, 8), prepared(PLAN)

    def done(x=x, out=out, pos=3, axis=-2):
        return kernel.rotate(x, Positions(pos, plan), axis, out) is not NotImplemented

    assert done()
    for pos in (torch.arange(5), torch.arange(5, dtype=torch.int32), range(5)):
        assert done(pos=pos)
    out.zero_()
    for pos in (torch.arange(4), torch.zeros((5, 1, 1), dtype=torch.int64), torch.arange(5.0), range(4), "3"):
        assert not done(pos=pos)
    for pos in (2**63, -(2**63) - 1, torch.arange(5, dtype=torch.uint8), np.arange(5), np.int64(3), True):
        assert not done(pos=pos)
    for other in (torch.int32, torch.complex64, torch.bool):
        assert not done(x=torch.ones(5, 8, dtype=other))
    for other in (torch.ones(5, 6), torch.ones(()), torch.ones(5, 8).double(), np.ones((5, 8), F32)):
        assert not done(x=other)
    for other in ((out,), out.numpy(), out.double(), out.T, out[:4], torch.zeros(8).expand(5, 8)):
        assert not done(out=other)
    for axis in (-1, 1, 2, -4, 2**62, -(2**63)):
        assert not done(axis=axis)
    freed = torch.ones(5, 8)
    freed.untyped_storage().resize_(0)
    for other in (freed, torch.complex(x, x).conj().imag, torch._efficientzerotensor(5, 8), x.to("meta")):
        assert not done(x=other)
        assert not done(out=other)
    assert not out.any()
    assert done()


@pytest.mark.library("torch")
def test_torch_odd_calls(door):
    import torch

    x = torch.randn(5, 8)
    with pytest.raises(ra.ShapeError):
        RoPE(8).apply(x, 3, seq_axis=2**70)
    axes = x.view([1] * 70 + [5, 8])
    assert_same(of_tensor(RoPE(8).apply(axes, 3).view(5, 8)), of_tensor(core(RoPE(8), x, 3)))
    pos = torch.frombuffer(
        bytearray(1) + bytearray(np.arange(5).tobytes()), dtype=torch.int64, count=5, offset=1
    )
    assert pos.data_ptr() % 8
    assert_same(of_tensor(RoPE(8).apply(x, pos)), of_tensor(core(RoPE(8), x, range(5))))


@pytest.mark.library("torch")
def test_other_python_threads_run_during_a_large_call_of_torch(monkeypatch):
    import torch

    monkeypatch.setenv(THREADS, "1")
    x, rope = torch.zeros(MIB // 16, 64), RoPE(64)
    assert while_a_thread_waits(lambda: rope.apply(x, 3))


@pytest.mark.library("numpy", "torch")
def test_numpy_and_torch_have_the_same_bits(dtype, level):
    x = normal((2, 3, 5, 40), dtype)
    y = RoPE(40, pairing="half").apply(tensor(x), range(5))
    want = RoPE(40, pairing="half").apply(x, range(5))
    assert_same(of_tensor(y), want.astype(F32) if dtype == BF16 else want)
