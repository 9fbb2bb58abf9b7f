"""The one function that multiplies positions by frequencies: equal bits on every library, by either route.

Python's integers and mpmath's frequencies give the expected bits.
"""

import contextlib
import functools

import numpy as np
import oracle
import pytest
from hypothesis import given
from hypothesis import strategies as st

import rope_array as ra
from rope_array import _registry
from rope_array._array_api import angles as _angles
from rope_array._array_api.library import library
from rope_array._backends import _native

INT32_ENDS = [0, 1, -1, 2, -2, 0xFFFF, 0x10000, -0xFFFF, -0x10000, -0x10001, 2**31 - 1, -(2**31)]
INT64_ENDS = [2**32 - 1, 2**32, -(2**32), 2**33 + 1, 2**53 + 1, 2**62, 2**63 - 1, -(2**63), -(2**63) + 1]
# 1, a power of ten, many turns per position, negative, tiny, a few units of the last bit, zero, one turn per
# position.
OMEGAS = (1.0, 0.01, 123456.789, -0.3162277660168379, 1e-9, 2.0**-60, 0.0, 6.283185307179586)
SPECS = {
    "default": {"head_dim": 32},
    "base": {"head_dim": 24, "base": 500_000.0},
    "inv_freq": {"head_dim": 16, "inv_freq": OMEGAS},
}
SIGNED = ["int8", "int16", "int32", "int64"]
UNSIGNED = ["uint8", "uint16", "uint32"]


def random_positions(bits, count=300, seed=0):
    rng = np.random.default_rng(seed)
    return rng.integers(-(2**bits), 2**bits, count, dtype=np.int64)


def positions_of(dtype):
    """The ends of an integer dtype and numbers between them."""
    info = np.iinfo(dtype)
    rng = np.random.default_rng(7)
    between = rng.integers(info.min, info.max, 50, dtype=dtype, endpoint=True)
    return np.concatenate([np.array([info.min, info.max, 0, 1, info.max // 2], dtype), between])


@functools.cache
def turns(name):
    """Exact turns per position of each pair, ω/2π as mpf."""
    fields = SPECS[name]
    omegas = fields.get("inv_freq") or oracle.frequencies(fields["head_dim"], fields.get("base", 10000.0))
    return [oracle.real(omega) / (2 * oracle.CONTEXT.pi) for omega in omegas]


@functools.cache
def words(name, bits):
    """round(ω/2π·2^bits) of each pair."""
    return [int(oracle.CONTEXT.nint(turn * oracle.CONTEXT.mpf(2) ** bits)) for turn in turns(name)]


def expected(pos, name, double, sign=1):
    """Compute the phase in Python's integers, as an object array of shape pos.shape + (num_pairs,)."""
    bits = 96 if double else 64
    pos = np.asarray(pos)
    steps = [sign * word for word in words(name, bits)]
    rows = [[p * step % 2**bits >> 32 for step in steps] for p in pos.ravel().tolist()]
    return np.array(rows, dtype=object).reshape(*pos.shape, len(steps))


def got(phase, lib, double):
    """Return the significant bits of a phase as Python integers."""
    phase = lib.to_numpy(phase)
    assert phase.dtype in (np.int64, np.uint32)
    return phase.astype(object) & (2**64 - 1 if double else 2**32 - 1)


def plan_of(name, sign=1):
    plan = ra.RoPE(**SPECS[name])._plan
    return plan if sign == 1 else plan.inverse


def backend_library(lib):
    """Return the backend's own library, or None if it is the array-api backend's."""
    array = lib.asarray(np.zeros(1, np.float32))
    own = _registry.library_of(array)
    return None if own is library(array) else own


def all_ops(lib):
    """Return the operations that a call may use: its backend's, and the array-api backend's."""
    array = lib.asarray(np.zeros(1, np.float32))
    own = backend_library(lib)
    return [owner.ops(array) for owner in (own, library(array)) if owner is not None]


def narrow_ops(lib):
    return [ops._replace(has_int64=False) for ops in all_ops(lib)]


@contextlib.contextmanager
def x64(lib, on):
    """Switch JAX's 64-bit integers on or off; other libraries always have them."""
    if lib.name != "jax":
        yield
        return
    import jax

    with jax.enable_x64(on):
        yield


@pytest.fixture
def with_x64(lib):
    with x64(lib, True):
        yield


@pytest.fixture
def without_x64(lib):
    with x64(lib, False):
        yield


# ---- equal bits ----


@pytest.mark.usefixtures("with_x64")
@pytest.mark.parametrize("sign", [1, -1], ids=["forward", "inverse"])
@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("double", [False, True], ids=["phase32", "phase64"])
def test_wide_route(lib, name, double, sign):
    pos = np.concatenate([INT32_ENDS, INT64_ENDS, random_positions(31), random_positions(62)])
    truth = expected(pos, name, double, sign)
    for ops in all_ops(lib):
        assert ops.has_int64
        phase = _angles.phase(lib.asarray(pos), plan_of(name, sign), double, ops)
        np.testing.assert_array_equal(got(phase, lib, double), truth)


@pytest.mark.without("torch")  # PyTorch has no arithmetic on uint32
@pytest.mark.usefixtures("without_x64")
@pytest.mark.parametrize("sign", [1, -1], ids=["forward", "inverse"])
@pytest.mark.parametrize("name", SPECS)
def test_route_of_uint32(lib, name, sign):
    pos = np.concatenate([INT32_ENDS, random_positions(31), random_positions(16)]).astype(np.int32)
    truth = expected(pos, name, False, sign)
    for ops in narrow_ops(lib):
        phase = _angles.phase(lib.asarray(pos), plan_of(name, sign), False, ops)
        assert lib.to_numpy(phase).dtype == np.uint32
        np.testing.assert_array_equal(got(phase, lib, False), truth)


@pytest.mark.usefixtures("with_x64")
@pytest.mark.parametrize("dtype", SIGNED + UNSIGNED)
@pytest.mark.parametrize("double", [False, True], ids=["phase32", "phase64"])
def test_wide_route_takes_every_integer(lib, dtype, double):
    pos = positions_of(dtype)
    truth = expected(pos, "base", double)
    for ops in all_ops(lib):
        phase = _angles.phase(lib.asarray(pos), plan_of("base"), double, ops)
        np.testing.assert_array_equal(got(phase, lib, double), truth)


@pytest.mark.without("torch")
@pytest.mark.usefixtures("without_x64")
@pytest.mark.parametrize("dtype", [*SIGNED[:3], *UNSIGNED])
def test_route_of_uint32_takes_every_integer(lib, dtype):
    pos = positions_of(dtype)
    truth = expected(pos, "base", False)
    for ops in narrow_ops(lib):
        phase = _angles.phase(lib.asarray(pos), plan_of("base"), False, ops)
        np.testing.assert_array_equal(got(phase, lib, False), truth)


@pytest.mark.library("numpy", "jax")
@pytest.mark.parametrize("dtype", ["int4", "uint4"])
@pytest.mark.parametrize("wide", [False, True], ids=["uint32", "int64"])
def test_integers_of_four_bits(lib, dtype, wide):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    with x64(lib, wide):
        values = np.arange(16) - (8 if dtype == "int4" else 0)
        pos = lib.xp.asarray(values.astype(getattr(ml_dtypes, dtype)))
        for ops in all_ops(lib) if wide else narrow_ops(lib):
            phase = _angles.phase(pos, plan_of("default"), False, ops)
            np.testing.assert_array_equal(got(phase, lib, False), expected(values, "default", False))


@pytest.mark.usefixtures("with_x64")
@pytest.mark.parametrize("shape", [(), (1,), (0,), (2, 3), (2, 0, 3)], ids=str)
def test_every_shape_of_positions(lib, shape):
    pos = random_positions(31, int(np.prod(shape))).reshape(shape).astype(np.int32)
    for ops in all_ops(lib) + ([] if lib.name == "torch" else narrow_ops(lib)):
        phase = _angles.phase(lib.asarray(pos), plan_of("default"), False, ops)
        np.testing.assert_array_equal(got(phase, lib, False), expected(pos, "default", False))


@pytest.mark.library("numpy", "torch", "jax", "dask", "strict")
def test_all_libraries_and_routes_agree():
    from conftest import LIBS

    pos = np.concatenate([INT32_ENDS, random_positions(31, 3000, seed=3)]).astype(np.int32)
    bits = {}
    for lib in (LIBS[name] for name in ("numpy", "torch", "jax", "dask", "strict")):
        for wide in (True, False):
            if lib.name == "torch" and not wide:
                continue
            with x64(lib, wide):
                ops = (all_ops(lib) if wide else narrow_ops(lib))[0]
                phase = _angles.phase(lib.asarray(pos), plan_of("default"), False, ops)
                bits[lib.name, wide] = got(phase, lib, False)
    assert len(bits) == 9
    first = bits.pop(("numpy", True))
    for other in bits.values():
        np.testing.assert_array_equal(other, first)


@given(pos=st.integers(-(2**63), 2**63 - 1), omega=st.floats(-1e6, 1e6))
def test_any_position_and_frequency(pos, omega):
    plan = ra.RoPE(2, inv_freq=(omega,))._plan
    array = np.array([pos])
    ops = library(array).ops(array)
    turn = oracle.real(omega) / (2 * oracle.CONTEXT.pi)
    for bits, double in ((64, False), (96, True)):
        word = int(oracle.CONTEXT.nint(turn * oracle.CONTEXT.mpf(2) ** bits))
        phase = int(_angles.phase(array, plan, double, ops)[0, 0])
        assert (phase - (pos * word % 2**bits >> 32)) % 2 ** (bits - 32) == 0
    if -(2**31) <= pos < 2**31:
        word = int(oracle.CONTEXT.nint(turn * oracle.CONTEXT.mpf(2) ** 64))
        phase = _angles.phase(array.astype(np.int32), plan, False, ops._replace(has_int64=False))
        assert int(phase[0, 0]) == pos * word % 2**64 >> 32


# ---- which function and which integers a call uses ----


@pytest.mark.parametrize("backend", [None, "array-api"], ids=["default", "array-api"])
def test_a_call_uses_the_phase_function(lib, backend, monkeypatch):
    """Every backend but the kernel; test_native_bits.py compares the kernel's bits."""
    calls = []

    def counted(whole, plan, double, ops):
        calls.append(ops.has_int64)
        return phase(whole, plan, double, ops)

    phase = _angles.phase
    monkeypatch.setattr(_angles, "phase", counted)
    # A base that no other test uses, so that no compiled program is cached.
    x = lib.asarray(np.ones((3, 8), np.float32))
    base = 1234.5 if backend else 1235.5
    monkeypatch.setattr(_native, "kernel", None)
    y = ra.apply(x, lib.asarray(np.arange(3, dtype=np.int32)), base=base, backend=backend)
    lib.to_numpy(y)
    assert calls
    assert set(calls) == {lib.name != "jax"}


@pytest.mark.library("jax")
@pytest.mark.parametrize("on", [False, True], ids=["without x64", "x64"])
def test_jax_chooses_the_route_by_x64(on):
    import jax

    with jax.enable_x64(on):
        x = jax.numpy.zeros(1, "float32")
        for owner in (_registry.library_of(x), library(x)):
            assert owner.ops(x).has_int64 is on


# ---- settings that must not change the bits ----


@pytest.mark.library("numpy")
def test_numpy_error_state_changes_nothing():
    pos = np.concatenate([INT32_ENDS, INT64_ENDS, random_positions(62)])
    small = np.array(INT32_ENDS, np.int32)
    ops = library(pos).ops(pos)
    with np.errstate(all="raise"):
        for double in (False, True):
            phase = _angles.phase(pos, plan_of("default"), double, ops).astype(object)
            assert (phase % 2 ** (64 if double else 32) == expected(pos, "default", double)).all()
        for scalar in (np.int64(-(2**63)), np.int64(2**62), np.array(-5)):
            _angles.phase(scalar, plan_of("default"), True, ops)
        narrow = _angles.phase(small, plan_of("default"), False, ops._replace(has_int64=False))
        assert (narrow.astype(object) == expected(small, "default", False)).all()


@pytest.mark.library("numpy")
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_numpy_calls_raise_no_floating_point_error(dtype):
    x = np.ones((5, 16), dtype)
    with np.errstate(all="raise"):
        for pos in ([0, 1, -1, 2**31 - 1, -(2**31)], -(2**63), 0.5, np.array([0.0, 0.25, -1.5, 1e9, -1e-9])):
            assert np.isfinite(ra.apply(x, pos)).all()


@pytest.mark.library("torch")
def test_torch_modes_change_nothing():
    import torch

    pos = torch.from_numpy(np.concatenate([INT32_ENDS, random_positions(31)]))
    x = torch.zeros(1)
    ops = _registry.library_of(x).ops(x)
    truth = [_angles.phase(pos, plan_of("default"), double, ops) for double in (False, True)]
    before = torch.get_float32_matmul_precision()
    try:
        for dtype in (torch.bfloat16, torch.float16):
            torch.set_float32_matmul_precision("medium")
            torch.set_default_dtype(torch.float64)
            with torch.autocast("cpu", dtype=dtype):
                for double in (False, True):
                    phase = _angles.phase(pos, plan_of("default"), double, ops)
                    assert torch.equal(phase, truth[double])
    finally:
        torch.set_float32_matmul_precision(before)
        torch.set_default_dtype(torch.float32)


@pytest.mark.library("jax")
@pytest.mark.parametrize("on", [False, True], ids=["without x64", "x64"])
@pytest.mark.parametrize("promotion", ["strict", "standard"])
def test_jax_promotion_changes_nothing(on, promotion):
    import jax

    pos = np.concatenate([INT32_ENDS, random_positions(31)]).astype(np.int32)
    with (
        jax.enable_x64(on),
        jax.numpy_dtype_promotion(promotion),
        jax.numpy_rank_promotion("raise"),
        jax.default_matmul_precision("bfloat16"),
    ):
        x = jax.numpy.zeros(1, "float32")
        for owner in (_registry.library_of(x), library(x)):
            for double in (False, True) if on else (False,):
                phase = _angles.phase(jax.numpy.asarray(pos), plan_of("base"), double, owner.ops(x))
                phase = np.asarray(phase).astype(object) % 2 ** (64 if double else 32)
                np.testing.assert_array_equal(phase, expected(pos, "base", double))


# ---- the distance to the exact angle ----


@pytest.mark.parametrize(
    ("double", "wide"),
    [(False, True), (False, False), (True, True)],
    ids=["phase32", "phase32 in uint32", "phase64"],
)
@pytest.mark.parametrize("name", SPECS)
def test_error_is_within_the_documented_bound(name, double, wide):
    # The word is off by |pos|·2^-(k+1) turns, and truncation by less than one unit in the last place.
    bits, unit = (96, 64) if double else (64, 32)
    pos = np.array(INT32_ENDS, np.int32) if not wide else np.array(INT32_ENDS + INT64_ENDS)
    pos = np.concatenate([pos, random_positions(31 if not wide else 50, 100).astype(pos.dtype)])
    ops = library(pos).ops(pos)._replace(has_int64=wide)
    phase = _angles.phase(pos, plan_of(name), double, ops).astype(object)
    scale = oracle.CONTEXT.mpf(2) ** unit
    for p, row in zip(pos.tolist(), phase, strict=True):
        word = abs(p) * oracle.CONTEXT.mpf(2) ** (unit - bits - 1)
        for turn, bits_of_pair in zip(turns(name), row, strict=True):
            difference = int(bits_of_pair) - p * turn * scale
            difference -= scale * oracle.CONTEXT.nint(difference / scale)
            assert -1 - word < difference <= word
