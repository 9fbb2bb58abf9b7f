"""cubed: one operation of bounded memory rotates each chunk, with the bits of NumPy."""

import functools

import child
import cluster_cases
import numpy as np
import position_cases
import pytest
import test_turns
from ropes import ropes_of

import rope_array as ra
from rope_array._backends import _native

cubed = pytest.importorskip("cubed")
pytestmark = pytest.mark.library("cubed")

B, H, S = 2, 3, 6
X = np.random.default_rng(0).standard_normal((B, H, S, 16)).astype(np.float32)
CHUNKS = (1, 3, 4, 16)
BS = np.random.default_rng(1).integers(-(10**9), 10**9, (B, S))
HALF = {"pairing": "half", "base": 500_000.0}
ROPE = ra.RoPE(16, **HALF)


@pytest.fixture
def spec(tmp_path):
    """A folder for results in between, and the memory that a task may use."""
    return cubed.Spec(work_dir=str(tmp_path), allowed_mem="100MB")


def chunked(x, spec, chunks=CHUNKS):
    return cubed.from_array(x, chunks=chunks, spec=spec)


def operations(array):
    """Return the number of the operations that compute an array."""
    return sum("primitive_op" in node for _, node in array.plan().dag.nodes(data=True))


def test_positions(spec):
    x, lazy_pos = chunked(X, spec), cubed.from_array(BS, chunks=(1, 5), spec=spec)
    for pos in (7, range(12, 6, -1), [9, 8, 2**31 - 1, -(2**31), 0, 5], BS[:, :1], BS[:, None], lazy_pos):
        y = ROPE.apply(x, pos)
        assert y.chunks == x.chunks
        host = BS if pos is lazy_pos else pos
        np.testing.assert_array_equal(y.compute(), ROPE.apply(X, host), strict=True)
    for y in (ROPE.apply(x, lazy_pos, backend="array-api"), ROPE.rotation(lazy_pos, like=x).apply(x)):
        np.testing.assert_array_equal(y.compute(), ROPE.apply(X, BS), strict=True)


SLOW = [pytest.param(check, marks=pytest.mark.nightly) for check in test_turns.CHECKS[1:]]


@pytest.mark.parametrize("check", [test_turns.CHECKS[0], *SLOW])
def test_frequencies_in_arrays(lib, check):
    check(lib)


# The array-api backend joins parts; a part of width 0, or parts of several sizes, were beyond cubed.
PARTS = ropes_of("first features", "features inside", "no features", "interleaved to half")
LAYOUTS = PARTS | ropes_of("two axes", "blocks")


@pytest.mark.parametrize("rope", LAYOUTS.values(), ids=LAYOUTS)
def test_fields(rope, spec):
    pos = np.stack([BS[0], BS[1]], axis=-1) if rope.axes else BS[0]
    for backend in (None,) if rope.axes else (None, "array-api"):  # the latter serves coordinates
        y = rope.apply(chunked(X, spec, (2, 3, 4, 16)), pos, backend=backend)
        np.testing.assert_array_equal(y.compute(), rope.apply(X, pos), strict=True)


def test_split_heads_of_two_dtypes_and_sequence_before_heads(spec):
    q, k = X.transpose(0, 2, 1, 3), X.transpose(0, 2, 1, 3)[:, :, :1].astype(np.float64)
    lazy = chunked(q, spec, (2, 4, 3, 9)), chunked(k, spec, (1, 6, 1, 16))
    for backend in (None, "array-api"):
        ys = ROPE.apply(lazy, BS, seq_axis=-3, backend=backend)
        for y, expected in zip(ys, ROPE.apply((q, k), BS, seq_axis=-3), strict=True):
            np.testing.assert_array_equal(y.compute(), expected, strict=True)


def test_functions_that_make_positions(spec):
    """cubed's own take returns the array itself if there are as many indices as elements."""
    make = functools.partial(cubed.from_array, chunks=3, spec=spec)
    for name in position_cases.MAKERS:
        position_cases.check(name, make, cubed.Array.compute)
    eight = functools.partial(cubed.from_array, chunks=8, spec=spec)
    position_cases.check_as_many_coordinates_as_pairs(eight, cubed.Array.compute)


def test_positions_are_those_of_the_call(spec):
    make = functools.partial(cubed.from_array, chunks=(2, 16), spec=spec)
    position_cases.check_written_after_the_call(make, cubed.Array.compute)


def test_one_operation_rotates(spec):
    x, pos = chunked(X, spec), cubed.from_array(BS, chunks=(2, 4), spec=spec)
    assert ra.explain(x, BS, ROPE).backend == "cubed"
    assert operations(ROPE.apply(x, pos)) <= 4 < operations(ROPE.apply(x, pos, backend="array-api"))


def test_nothing_is_computed(spec):
    def refuse(block):
        raise AssertionError("something was computed")

    x = cubed.map_blocks(refuse, chunked(X, spec), dtype=X.dtype)
    for pos in (BS, range(S), cubed.map_blocks(refuse, cubed.from_array(BS, spec=spec), dtype=BS.dtype)):
        assert ROPE.apply(x, pos).shape == X.shape
        assert ROPE.rotation(pos, like=x).apply(x).shape == X.shape


def test_memory_is_known_before_anything_runs(spec):
    def ones(tokens):
        return cubed.ones((1, 8, 2**20, 128), dtype=np.float32, chunks=(1, 8, tokens, 128), spec=spec)

    y = ra.RoPE(128).apply(ones(2**12), range(2**20))
    assert y.nbytes > 4e9
    assert y.plan().max_projected_mem <= spec.allowed_mem
    y = ra.RoPE(128).apply(ones(2**16), range(2**20))
    assert y.plan().max_projected_mem > spec.allowed_mem


def test_many_positions_of_the_host_are_in_chunks(spec):
    """More than the megabyte that cubed's own asarray takes, in tables and by the array-api backend."""
    x, rope = cubed.ones((2, 2**17, 64), dtype=np.float32, chunks=(1, 2**10, 64), spec=spec), ra.RoPE(64)
    for pos in (range(2**17), np.arange(2**18).reshape(2, -1)):
        for y in (rope.rotation(pos, like=x).apply(x), rope.apply(x, pos, backend="array-api")):
            assert y.plan().max_projected_mem <= spec.allowed_mem


@pytest.mark.skipif(_native.kernel is None, reason="the C++ kernel is not built")
def test_the_kernel_rotates_each_chunk(spec, monkeypatch):
    y = ROPE.apply(chunked(X, spec), BS)
    expected = ROPE.apply(X, BS)
    cluster_cases.leave_the_kernel_alone(monkeypatch.setattr)
    np.testing.assert_array_equal(y.compute(), expected, strict=True)


def test_misfits_raise_at_once(spec):
    x = chunked(X, spec)
    of_another_spec = cubed.from_array(np.arange(S))
    for pos, error, message in (
        (range(S + 1), ra.ShapeError, "line up"),
        ([2**63] * S, ra.PositionError, "out of range"),
        (of_another_spec, ra.ArrayTypeError, "two specs"),
    ):
        with pytest.raises(error, match=message):
            ROPE.apply(x, pos)
    with pytest.raises(ra.BackendError, match="Rotation"):
        ROPE.rotation(3, like=x).apply(x, backend="cubed")


@pytest.mark.nightly
def test_the_first_computation_is_no_change_by_a_call():
    """cubed sets variables that limit threads when it computes first."""
    child.run("""
        from rope_array.testing import run_checks
        report = run_checks("cubed", only=["settings_unchanged"])
        assert report.ok, report
    """)
