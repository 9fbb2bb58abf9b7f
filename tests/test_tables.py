"""`RoPE.tables`: exact numbers in each format, on each library; chunks, memory, refusals.

tests/test_engines.py compares the formats with the tables of engines.
"""

import tracemalloc
import types
from pathlib import Path

import child
import numpy as np
import oracle
import pytest
import ropes
from compare import assert_same, name_of, on_host
from refusals import refusals, refused

import rope_array as ra
from rope_array import Axes, RoPE

FORMATS = ("split", "joined", "full", "stacked", "complex", "angles")
POSITIONS = [0, 1, 4095, 100_000, 2**20, 2**31 - 1, -3]
COORDINATES = [[0, 1, 2], [4095, 100_000, 2**20], [2**31 - 1, 7, -3]]
REAL = oracle.frequencies(8)  # real numbers; of the other rules the frequencies are floats
ROPES = {
    "half": (RoPE(8, pairing="half"), REAL),
    "interleaved": (RoPE(8), REAL),
    "partial": (RoPE(16, rotary_dim=8, rotary_start=4, pairing="half"), REAL),
    "linear": (RoPE(8, pairing="half", scaling=ra.Linear(4.0)), [omega / 4 for omega in REAL]),
    "amplitude": (RoPE(8, pairing="half", scaling=ra.YaRN(16.0, 512)), None),
    "axes": (RoPE(8, axes=Axes.chunked(2, 1, 1)), REAL),
}
EPS = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}


def exact(name):
    """Return the positions of a rope, and angles modulo 2π, cos and sin of mpmath, (positions, pairs)."""
    rope, omegas = ROPES[name]
    positions, coordinates = (COORDINATES, (0, 0, 1, 2)) if name == "axes" else (POSITIONS, None)
    rows = [[p[c] for c in coordinates] if coordinates else [p] * 4 for p in positions]
    exact = [
        [oracle.exact_cos_sin(*each) for each in zip(row, omegas or rope.frequencies, strict=True)]
        for row in rows
    ]
    angles = [[oracle.to_float(oracle.CONTEXT.atan2(s, c)) for c, s in row] for row in exact]
    cos, sin = (
        np.array([[oracle.to_float(pair[i] * rope.amplitude) for pair in row] for row in exact])
        for i in (0, 1)
    )
    return positions, np.array(angles), cos, sin


def arranged(format, pairing, angles, cos, sin):
    """Return the arrays of a format."""

    def full(table):
        return np.repeat(table, 2, -1) if pairing == "interleaved" else np.concatenate([table, table], -1)

    return {
        "split": (cos, sin),
        "joined": (np.concatenate([cos, sin], -1),),
        "full": (full(cos), full(sin)),
        "stacked": (np.stack([cos, sin], -1),),
        "complex": (cos + 1j * sin,),
        "angles": (full(angles),),
    }[format]


def assert_rounded_once(table, expected, dtype, extra):
    """Half a unit of the last place, half of float64's for `expected`, and `extra`."""
    if np.iscomplexobj(expected):
        parts = ((table.real, expected.real), (table.imag, expected.imag))
        return [assert_rounded_once(*each, dtype, extra) for each in parts]
    error = np.abs(table.astype(np.float64) - expected)
    unit = np.ldexp(EPS[dtype], np.frexp(expected)[1] - 1)
    unit = np.maximum(unit, 2.0**-24 if dtype == "float16" else 0.0)  # of its subnormal numbers
    assert (error <= (unit + np.spacing(np.abs(expected))) / 2 + extra).all(), error.max()


@pytest.mark.parametrize("name", ROPES)
@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.neutral
def test_each_number_is_the_exact_one_rounded_once(lib, float_dtype, format, name):
    rope, (positions, *numbers) = ROPES[name][0], exact(name)
    if format == "angles" and rope.amplitude != 1.0:
        rope = RoPE(8, pairing=rope.pairing, axes=rope.axes, inv_freq=rope.frequencies)
    is_complex = format == "complex"
    dtype = "float64" if is_complex and float_dtype == "float64" else "float32" if is_complex else float_dtype
    like = lib.asarray(np.ones(1), "float32")
    tables = rope.tables(positions, format, dtype=lib.dtype(dtype), like=like)
    expected = arranged(format, rope.pairing, *numbers)
    tables = tables if isinstance(tables, tuple) else (tables,)
    for table, wanted in zip(tables, expected, strict=True):
        assert type(table) is type(like)
        assert tuple(table.shape) == wanted.shape
        names = {"float32": "complex64", "float64": "complex128"}
        assert name_of(table.dtype) == (names[dtype] if is_complex else dtype)
        extra = 1e-15 if format == "angles" else 2e-16 * rope.amplitude
        assert_rounded_once(np.asarray(on_host(table)), wanted, dtype, extra)


@pytest.mark.parametrize("name", [n for n in ropes.FIELDS if "out_pairing" not in ropes.FIELDS[n]])
def test_full_tables_are_at_the_features_of_the_matrix(name):
    rope = ropes.rope(name)
    positions = np.arange(3 * 4).reshape(4, 3)[:, : rope.axes.count] * 1001 if rope.axes else [0, 5, 4095]
    cos, sin = rope.tables(positions, "full", dtype="float64")
    part = slice(rope.rotary_start, rope.rotary_start + rope.rotary_dim)
    matrix = rope.matrix(positions)[..., part, part]
    diagonal = np.diagonal(matrix, axis1=-2, axis2=-1)
    # Of each row and its pair: cos and sin, of which the first feature has -sin.
    np.testing.assert_allclose(cos, diagonal, rtol=0, atol=1e-15)
    other = matrix - diagonal[..., None] * np.eye(rope.rotary_dim)
    np.testing.assert_allclose(np.abs(sin), np.abs(other).sum(-1), rtol=0, atol=1e-15)


def test_positions_may_have_fractions():
    positions = np.array([[0.5, 1234.25], [2.0**20 + 0.125, -0.75]])
    cos, sin = RoPE(8).tables(positions, dtype="float64")
    for index in np.ndindex(2, 2):
        for pair, omega in enumerate(REAL):
            wanted = oracle.cos_sin(positions[index], omega)
            assert abs(np.array([cos[index][pair], sin[index][pair]]) - wanted).max() <= 3e-16


def test_a_length_is_the_positions_from_zero(lib):
    like = lib.asarray(np.ones(1), "float32")
    for rope, positions in ((RoPE(8), range(5)), (ROPES["axes"][0], [[p] * 3 for p in range(5)])):
        for table, wanted in zip(rope.tables(5, like=like), rope.tables(positions, like=like), strict=True):
            assert_same(table, wanted)
        assert_same(rope.tables(np.int64(5), "joined", like=like), rope.tables(5, "joined", like=like))


@pytest.mark.parametrize("shape", [(6000,), (2, 3000), (1, 6000), (3000, 2)], ids=str)
def test_long_tables_have_the_bits_of_their_rows(lib, shape):
    """6,000 rows of 64 pairs are three chunks."""
    rope, like = RoPE(128, pairing="half"), lib.asarray(np.ones(1), "float32")
    positions = np.arange(6000).reshape(shape) * 349_525
    for format in FORMATS:
        tables = rope.tables(positions, format, like=like)
        for i, table in enumerate(tables if isinstance(tables, tuple) else (tables,)):
            assert table.shape[: len(shape)] == shape
            rows = on_host(table).reshape(6000, -1)
            for row in (0, 2047, 2048, 4095, 4096, 5999):
                alone = rope.tables([row * 349_525], format, like=like)
                assert_same(rows[row], on_host(alone[i] if isinstance(tables, tuple) else alone).reshape(-1))


def test_positions_of_any_shape():
    for positions in ([[1, 2, 3]], [], [[]], range(0), np.zeros((2, 0), np.int8), np.zeros((0, 3), int)):
        cos, _ = RoPE(8).tables(positions)
        assert cos.shape == (*np.shape(positions), 4)
    axes = ROPES["axes"][0]
    assert axes.tables([1, 2, 3], "joined").shape == (8,)  # one position
    assert axes.tables(np.zeros((2, 5, 3), int), "stacked").shape == (2, 5, 4, 2)
    assert RoPE(8, rotary_dim=0).tables(3, "full")[0].shape == (3, 0)


def test_dtypes_follow_like(lib):
    cases = {"float64": "float64", "float32": "float32", "float16": "float32", "bfloat16": "float32"}
    for dtype, wanted in cases.items():
        if dtype in lib.dtypes:
            like = lib.asarray(np.ones(1), dtype)
            assert name_of(RoPE(8).tables(3, "joined", like=like).dtype) == wanted
            assert name_of(RoPE(8).tables(3, "complex", like=like).dtype) == f"complex{2 * int(wanted[5:])}"


def test_cos_and_sin_of_float32_angles_are_exact():
    rope = RoPE(8, pairing="half", angles="float32")
    angles = np.arange(5000, dtype=np.float32)[:, None] * np.float32(rope.frequencies)
    cos, sin = rope.tables(5000)
    np.testing.assert_allclose(cos, np.cos(angles.astype(float)), rtol=0, atol=1e-7)
    np.testing.assert_allclose(sin, np.sin(angles.astype(float)), rtol=0, atol=1e-7)


# ---- memory, and where tables are ----


def test_memory_is_a_table_and_a_few_chunks():
    """Of NumPy, which reports its memory; a chunk is 2 MB, in float64, with copies on the way."""
    for positions in (200_000, np.arange(200_000)[None]):
        tracemalloc.start()
        try:
            table = RoPE(128, pairing="half").tables(positions, "joined")
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert table.nbytes == 200_000 * 128 * 4
        assert peak < table.nbytes + 16 * 2**20


@pytest.mark.library("torch")
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the system does not tell the peak")
def test_memory_in_torch():
    peak = child.run(
        """
        import torch, rope_array as ra
        most = lambda: int(open("/proc/self/status").read().partition("VmHWM:")[2].split()[0]) * 1024
        like = torch.ones(1)
        rope = ra.RoPE(128, pairing="half")
        rope.tables(5000, "joined", like=like)
        start = most()
        table = rope.tables(400_000, "joined", like=like)
        print((most() - start) / table.nbytes)
        """
    )
    assert 0.9 < float(peak) < 1.25


@pytest.mark.library("strict", "torch")
def test_tables_are_where_like_is(lib):
    device = "meta" if lib.name == "torch" else lib.native.Device("device1")
    like = lib.native.ones(2, dtype=lib.native.float32, device=device)
    for length in (3, 300_000):
        assert RoPE(8).tables(length, "joined", like=like).device == like.device


@pytest.mark.library("torch")
def test_torch_modes():
    """Fake tensors, and a graph with a break: a table is a constant of it."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

    with FakeTensorMode():
        assert type(RoPE(8).tables(300_000, "joined", like=torch.ones(1))) is FakeTensor
    parameter = torch.nn.Parameter(torch.ones(1))
    assert not RoPE(8).tables(3, "joined", like=parameter).requires_grad
    with torch.device("meta"):
        like = torch.ones(1, device="cpu")
        assert RoPE(8).tables(300_000, "joined", like=like).device.type == "cpu"


# ---- refusals ----


@refusals("tables")
def test_refused(call, error, words):
    names = {"np": np, "ra": ra, "RoPE": RoPE, "rope": RoPE(8, pairing="half"), "types": types}
    names |= {"axes": ROPES["axes"][0], "yarn": ROPES["amplitude"][0]}
    refused(error, words, lambda: eval(call, names))
