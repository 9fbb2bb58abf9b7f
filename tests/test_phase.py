"""The one function that multiplies positions by frequencies: equal bits on every library.

Python's integers and mpmath's frequencies give the expected bits.
"""

import contextlib
import copy
import functools

import numpy as np
import oracle
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_spec import word

import rope_array as ra
from rope_array import _registry
from rope_array._array_api import angles as _angles
from rope_array._array_api.library import library

INT32_ENDS = [0, 1, -1, 2, -2, 0xFFFF, 0x10000, -0xFFFF, -0x10000, -0x10001, 2**31 - 1, -(2**31)]
INT64_ENDS = [2**32 - 1, 2**32, -(2**32), 2**33 + 1, 2**53 + 1, 2**62, 2**63 - 1, -(2**63), -(2**63) + 1]
# 1, a power of ten, many turns per position, negative, tiny, a few units of the last bit, zero, one turn per
# position.
OMEGAS = (1.0, 0.01, 123456.789, -0.3162277660168379, 1e-9, 2.0**-60, 0.0, 6.283185307179586)
SPECS = {"default": {"head_dim": 32}, "inv_freq": {"head_dim": 16, "inv_freq": OMEGAS}}


def random_positions(bits, count=300, seed=0):
    rng = np.random.default_rng(seed)
    return rng.integers(-(2**bits), 2**bits, count, dtype=np.int64)


def positions_of(dtype):
    """The ends of an integer dtype and numbers between them."""
    limits = np.iinfo(dtype)
    rng = np.random.default_rng(7)
    between = rng.integers(limits.min, limits.max, 50, dtype=dtype, endpoint=True)
    return np.concatenate([np.array([limits.min, limits.max, 0, 1, limits.max // 2], dtype), between])


@functools.cache
def words(name, bits):
    """Return the word of each pair."""
    omegas = SPECS[name].get("inv_freq") or oracle.frequencies(SPECS[name]["head_dim"])
    return [word(omega, bits) for omega in omegas]


def expected(pos, name, double, sign=1):
    """Compute the phase in Python's integers, as an object array of shape pos.shape + (num_pairs,)."""
    bits = 96 if double else 64
    pos = np.asarray(pos)
    steps = [sign * word for word in words(name, bits)]
    rows = [[p * step % 2**bits >> 32 for step in steps] for p in pos.ravel().tolist()]
    return np.array(rows, dtype=object).reshape(*pos.shape, len(steps))


def phase_of(pos, plan, double, ops):
    return _angles.phase([_angles.term_of_plan(pos, None, plan, double, ops)], double, ops)


def got(phase, lib, double):
    """Return the significant bits of a phase as Python integers."""
    phase = lib.to_numpy(phase)
    assert phase.dtype in (np.int64, np.uint32)
    return phase.astype(object) & (2**64 - 1 if double else 2**32 - 1)


def all_ops(lib):
    """Return the operations that a call may use: its backend's, and the array-api backend's."""
    array = lib.asarray(np.zeros(1, np.float32))
    owners = (_registry.library_of(array), library(array))
    return [owner.ops(array) for owner in dict.fromkeys(owners)]


def with_int64(ops, has_int64):
    """Return operations that take the route of a device with or without 64-bit integers."""
    changed = copy.copy(ops)
    changed.has_int64 = has_int64
    return changed


def x64(lib, on):
    """Switch JAX's 64-bit integers on or off; other libraries always have them."""
    return lib.native.enable_x64(on) if lib.name == "jax" else contextlib.nullcontext()


# ---- equal bits ----


def check(lib, route, pos, name="default", sign=1, dtype=None):
    """Compare with Python's integers, by the operations of each backend."""
    double, int64 = ROUTES[route]
    exact, plan = expected(pos, name, double, sign), ra.RoPE(**SPECS[name])._plan
    plan = plan if sign == 1 else plan.inverse
    with x64(lib, int64), np.errstate(all="raise"):
        array = lib.asarray(pos) if dtype is None else lib.xp.asarray(pos.astype(dtype))
        for ops in all_ops(lib):
            assert ops.has_int64 or not int64
            phase = phase_of(array, plan, double, with_int64(ops, int64))
            assert int64 or lib.to_numpy(phase).dtype == np.uint32
            np.testing.assert_array_equal(got(phase, lib, double), exact)


# Whether the phase has 64 bits, and the integers of its arithmetic.
ROUTES = {"phase32": (False, True), "phase64": (True, True), "phase32 in uint32": (False, False)}


def check_positions(lib, route):
    """At the ends of each dtype and of the range, of any shape, forward and inverse.

    So the distance to the exact angle has the documented bound: half a unit of the word for each position,
    and less than one unit of the last place, as the lower bits are cut off.
    """
    _, int64 = ROUTES[route]
    pos = np.concatenate([INT32_ENDS, random_positions(31), random_positions(16)])
    pos = np.concatenate([pos, INT64_ENDS, random_positions(62)]) if int64 else pos.astype(np.int32)
    for name in SPECS:
        check(lib, route, pos, name)
    check(lib, route, pos, sign=-1)
    for dtype in ("int8", "int32", "uint16", "uint32", *(["int64"] if int64 else [])):
        check(lib, route, positions_of(dtype), "inv_freq")
    for shape in ((), (2, 3)):
        check(lib, route, random_positions(31, int(np.prod(shape))).reshape(shape).astype(np.int32))


@pytest.mark.parametrize("route", ["phase32", "phase64"])
def test_all_libraries_and_routes_agree(lib, route):
    check_positions(lib, route)


@pytest.mark.without("torch")  # PyTorch has no arithmetic on uint32
def test_all_libraries_agree_without_int64(lib):
    check_positions(lib, "phase32 in uint32")


@pytest.mark.library("numpy", "jax")
@pytest.mark.parametrize("dtype", ["int4", "uint4"])
def test_integers_of_four_bits(lib, dtype):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    for route in ("phase32", "phase32 in uint32"):
        pos = np.arange(16) - (8 if dtype == "int4" else 0)
        check(lib, route, pos, dtype=getattr(ml_dtypes, dtype))


@given(pos=st.integers(-(2**63), 2**63 - 1), omega=st.floats(-1e6, 1e6))
def test_any_position_and_frequency(pos, omega):
    plan = ra.RoPE(2, inv_freq=(omega,))._plan
    array = np.array([pos])
    ops = library(array).ops(array)
    for bits, double in ((64, False), (96, True)):
        phase = int(phase_of(array, plan, double, ops)[0, 0])
        assert (phase - (pos * word(omega, bits) % 2**bits >> 32)) % 2 ** (bits - 32) == 0
    if -(2**31) <= pos < 2**31:
        phase = phase_of(array.astype(np.int32), plan, False, with_int64(ops, False))
        assert int(phase[0, 0]) == pos * word(omega, 64) % 2**64 >> 32


@pytest.mark.library("numpy")
def test_no_floating_point_error_is_raised():
    """At integers, `check` raises too."""
    with np.errstate(all="raise"):
        for dtype in ("float16", "float32", "float64"):
            for pos in (INT32_ENDS[:5], -(2**63), 0.5, np.array([0.0, 0.25, -1.5, 1e9, -1e-9])):
                assert np.isfinite(ra.apply(np.ones((5, 16), dtype), pos)).all()
