"""Random specs, positions and vectors against the definition, and the paper's three forms written out.

The rows of the suite check norms, sums of positions, relative scores, linearity and gradients.
"""

import itertools

import numpy as np
import pytest
from compare import judge, normal, on_host
from conftest import TIMES
from hypothesis import given, settings
from hypothesis import strategies as st

import rope_array as ra
from rope_array.testing import rotation_matrix

FIELDS = ("base", "rotary_dim", "rotary_start", "pairing", "out_pairing")
PAIRINGS = ("interleaved", "half")


@st.composite
def specs(draw):
    head_dim = draw(st.integers(1, 24))
    start = draw(st.integers(0, head_dim))
    return ra.RoPE(
        head_dim,
        base=draw(st.sampled_from([10_000.0, 500_000.0, 2.0, 0.5])),
        rotary_dim=2 * draw(st.integers(0, (head_dim - start) // 2)),
        rotary_start=start,
        pairing=draw(st.sampled_from(PAIRINGS)),
        out_pairing=draw(st.sampled_from(PAIRINGS)),
    )


@pytest.mark.neutral  # JAX compiles each random spec: one dtype runs by default
@settings(max_examples=25 * TIMES)
@given(specs(), st.integers(-(2**31), 2**31 - 1), st.integers(0, 2**32 - 1))
def test_random_specs(lib, float_dtype, rope, pos, seed):
    """One-shot calls, rotations by tables and dense matrices agree with the definition, forwards and back."""
    x = normal(lib, 3, rope.head_dim, dtype=float_dtype, seed=seed)
    fields = {name: getattr(rope, name) for name in FIELDS}
    rotation = rope.rotation(pos, like=x)
    for inverse, tables in ((False, rotation), (True, rotation.inverse())):
        for y in (rope.apply(x, pos, inverse=inverse), tables.apply(x)):
            judge(y, x, pos, inverse=inverse, **fields)
    exact = rotation_matrix(pos, head_dim=rope.head_dim, **fields)
    np.testing.assert_allclose(rope.matrix(pos), exact, rtol=0, atol=4e-16)


# RoFormer (arXiv 2104.09864): eq. 15 is the block-diagonal matrix, eq. 12 the complex number e^{imθ}, eq. 34
# the elementwise product. Each takes x, the features a and b of the pairs, and their angles.


def as_matrix(x, a, b, angles):
    blocks = np.tile(np.eye(x.shape[-1]), (len(x), 1, 1))
    blocks[:, a, a] = blocks[:, b, b] = np.cos(angles)
    blocks[:, b, a] = np.sin(angles)
    blocks[:, a, b] = -np.sin(angles)
    return np.einsum("sij,sj->si", blocks, x)


def as_complex(x, a, b, angles):
    y, rotated = x.copy(), (x[:, a] + 1j * x[:, b]) * np.exp(1j * angles)
    y[:, a], y[:, b] = rotated.real, rotated.imag
    return y


def as_product(x, a, b, angles):
    cos, sin, moved = np.ones_like(x), np.zeros_like(x), np.zeros_like(x)
    cos[:, a] = cos[:, b] = np.cos(angles)
    sin[:, a] = sin[:, b] = np.sin(angles)
    moved[:, a], moved[:, b] = -x[:, b], x[:, a]
    return x * cos + moved * sin


@pytest.mark.neutral
@pytest.mark.parametrize("form", [as_matrix, as_complex, as_product])
def test_three_forms_of_the_paper(lib, form):
    x, pos = normal(lib, 6, 8), np.array([0, 1, 2, 3, 50, -1000])
    for pairing, (width, start) in itertools.product(PAIRINGS, [(8, 0), (4, 0), (4, 3), (2, 6)]):
        first = np.arange(width // 2)
        a, b = (2 * first, 2 * first + 1) if pairing == "interleaved" else (first, first + width // 2)
        angles = pos[:, None] * 10_000.0 ** (-2 * first / width)
        want = form(on_host(x).astype(np.float64), start + a, start + b, angles)
        y = ra.apply(x, pos.tolist(), rotary_dim=width, rotary_start=start, pairing=pairing)
        np.testing.assert_allclose(on_host(y), want, rtol=0, atol=2e-6)
