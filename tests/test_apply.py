"""Positions of the host, and memory that only NumPy has.

The rows of the suite check the shape rule, dtypes, strides, tuples and sizes on every library and backend.
"""

import numpy as np
import pytest
from compare import array_and_values, judge
from test_out import read_only

import rope_array as ra
from rope_array.testing._contract import assert_contract

B, S, D = 2, 5, 8


def test_positions_of_the_host(lib):
    x, _ = array_and_values(lib, "float32", B, S, D)
    positions = [
        *(2.5, [0.5, 1, 2, 3, 4], [[0, 1, 2, 3, 4], [10, 11, 12, 13, 14]], [np.int64(k) for k in range(5)]),
        *(np.int64(5), np.int8(-5), np.uint32(5), np.float32(2.5), np.float64(2.5), [1e9 + 0.125] * 5),
    ]
    if lib.name in ("numpy", "jax"):  # JAX takes arrays of NumPy
        positions += [np.array([0, 1, 50, 7, 2**32 - 1], np.uint32), np.array([0, 1, 50, 7, 0.1])]
    for pos in positions:
        judge(ra.apply(x, pos), x, np.array(pos).tolist())


@pytest.mark.parametrize("rotary_dim", [0, 4, 8])
def test_x_is_not_written_and_not_aliased(lib, rotary_dim):
    x, before = array_and_values(lib, "float32", B, S, D)
    y = ra.apply(x, 0, rotary_dim=rotary_dim)
    np.testing.assert_array_equal(lib.to_numpy(x), before)
    assert not lib.shares_memory(x, y)
    if lib.name in ("numpy", "torch"):
        kept = lib.to_numpy(y).copy()
        x[...] = 7
        np.testing.assert_array_equal(lib.to_numpy(y), kept)


# Memory that the suite's check `memory` does not make.
MEMORY = {
    "one feature broadcast": lambda x: np.broadcast_to(x[..., :1], x.shape),
    "read-only": read_only,
    "another byte order": lambda x: x.astype(">f4"),
    "a subclass": lambda x: x.view(type("Sub", (np.ndarray,), {})),
}


@pytest.mark.parametrize("pairing", ["interleaved", "half"])
@pytest.mark.parametrize("name", MEMORY)
def test_strides(name, pairing):
    """Memory layouts of NumPy, of x and of positions, where each floating-point error is raised."""
    x = MEMORY[name](np.random.default_rng(0).standard_normal((B, S, D)).astype(np.float32))
    before, ends = np.array(x), np.array([0, 1, -(2**31), 2**31 - 1, 12345])
    for pos in (ends, np.arange(S).astype(">i8"), read_only(np.arange(S))):
        with np.errstate(all="raise"):
            y = ra.apply(x, pos, pairing=pairing)
        assert y.dtype == x.dtype
        assert_contract(y, before, pos, dtype="float32", pairing=pairing)
        np.testing.assert_array_equal(x, before)
        assert not np.shares_memory(y, x)
