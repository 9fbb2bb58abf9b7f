"""Random specs, positions and vectors against the definition.

The rows of the suite check norms, sums of positions, relative scores, linearity and gradients.
"""

import numpy as np
import pytest
from compare import judge, normal
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
