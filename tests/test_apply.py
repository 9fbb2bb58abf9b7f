"""The shape rule, positions of the host, and memory that only NumPy has.

The rows of the suite check shapes, dtypes, strides, tuples and sizes on every library and backend.
"""

import numpy as np
import pytest
from compare import array_and_values, judge, normal, words

import rope_array as ra
from rope_array.testing._contract import assert_contract

B, H, S, D = 2, 3, 5, 8
# The shape rule: for x of these axes and seq_axis, all these shapes of pos.
RULE = [
    ((D,), -2, [()]),
    ((S, D), -2, [(), (1,), (S,)]),
    ((B, H, S, D), -2, [(), (1,), (S,), (1, S), (B, S), (B, 1), (B, H, S), (1, H, 1), (B, 1, S), (1, 1, 1)]),
    ((B, S, H, D), -3, [(), (S,), (B, S), (B, 1), (1, S), (B, H, S), (1, H, S)]),
    ((S, B, H, D), 0, [(), (S,), (B, S), (B, H, S), (B, 1, 1)]),
    ((B, S, H, D), 1, [(S,), (B, S)]),
    ((B, H, 2, S, D), -2, [(S,), (B, S), (B, H, S), (B, H, 2, S)]),
]


@pytest.mark.neutral
@pytest.mark.parametrize(("shape", "seq_axis", "pos_shapes"), RULE, ids=words)
def test_shape_rule(lib, shape, seq_axis, pos_shapes):
    """Calls and rotations follow it, as the definition does: test_definition.py compares it row by row."""
    x, rope = normal(lib, *shape), ra.RoPE(D)
    for i, pos_shape in enumerate(pos_shapes):
        pos = lib.asarray(np.random.default_rng(i).integers(-1000, 1000, pos_shape).astype(np.int32))
        for y in (
            ra.apply(x, pos, seq_axis=seq_axis),
            rope.rotation(pos, like=x).apply(x, seq_axis=seq_axis),
        ):
            judge(y, x, pos, seq_axis=seq_axis)


def test_positions_of_the_host(lib):
    x, _ = array_and_values(lib, "float32", B, S, D)
    given = [
        *(7, -7, 2.5, True + 1, range(5), range(9, -1, -2), [4, 3, 2, 1, 0], (1, 2, 3, 4, 5)),
        *([0.5, 1, 2, 3, 4], [[0, 1, 2, 3, 4], [10, 11, 12, 13, 14]], [np.int64(k) for k in range(5)]),
        *(np.int64(5), np.int8(-5), np.uint32(5), np.float32(2.5), np.float64(2.5), [1e9 + 0.125] * 5),
    ]
    if lib.name in ("numpy", "jax"):  # JAX takes arrays of NumPy
        given += [np.array([0, 1, 50, 7, 2**32 - 1], np.uint32), np.array([0, 1, 50, 7, 0.1])]
    for pos in given:
        judge(ra.apply(x, pos), x, [*pos] if isinstance(pos, range) else np.array(pos).tolist())


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


def read_only(x):
    x.flags.writeable = False
    return x


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
