"""Positions of the host, and memory that only NumPy has.

The rows of the suite check the shape rule, dtypes, strides, tuples and sizes on every library and backend.
"""

import inspect
from typing import get_args

import numpy as np
import pytest
from compare import array_and_values, judge
from test_out import read_only

import rope_array as ra
from rope_array._array_api.position_input import parse
from rope_array._array_api.source import CallOptions, OptionFields
from rope_array._registry import library_of
from rope_array._spec import spec
from rope_array.testing._contract import assert_contract

B, S, D = 2, 5, 8


def test_positions_of_the_host(lib):
    x, _ = array_and_values(lib, "float32", B, S, D)
    positions = [
        *(2.5, [0.5, 1, 2, 3, 4], [[0, 1, 2, 3, 4], [10, 11, 12, 13, 14]], [np.int64(k) for k in range(5)]),
        *(np.int64(5), np.int8(-5), np.uint32(5), np.float32(2.5), np.float64(2.5), [1e9 + 0.125] * 5),
    ]
    positions += [
        ((0, 1.5, 2, 3, 4), [10, -0.5, 12, 13, 2**31 - 1]),
        (np.int64(3), 0.5, *range(3)),
        (5, 4, 3, 2, 1),
    ]
    if lib.name in ("numpy", "jax"):  # JAX takes arrays of NumPy
        positions += [np.array([0, 1, 50, 7, 2**32 - 1], np.uint32), np.array([0, 1, 50, 7, 0.1])]
    for pos in positions:
        judge(ra.apply(x, pos), x, np.array(pos).tolist())


def test_positions_that_are_not_split(lib):
    """Floats stay floats of the same values; without x64 JAX has no float64, and they are split."""
    x, _ = array_and_values(lib, "float32", B, S, D)
    of_x = library_of(x)
    for pos in (2.5, np.float64(-0.1), [0.5, 2**31 - 1], [[0.1, 3.0], [7, -1.5]], [2**31 - 1, 0], range(4)):
        numbers, fraction = parse(pos, x, of_x).read(of_x, of_x.ops(x), False, split=False)
        is_split = lib.name == "jax" and np.array(pos).dtype.kind == "f"
        assert (fraction is not None) == is_split
        assert ("float64" in str(numbers.dtype)) == (np.array(pos).dtype.kind == "f" and not is_split)
        total = np.float64(numbers) + fraction if is_split else lib.to_numpy(numbers)
        np.testing.assert_allclose(total, np.array(pos), rtol=1e-7 if is_split else 0)


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


def test_options_of_a_call_are_arguments_of_each_front_function():
    """All signatures need an option of the record, and so does the list of names that errors suggest."""
    options = CallOptions()._asdict()
    assert len(get_args(OptionFields)) == len(options)
    for function in (ra.apply, ra.RoPE.apply, ra.Rotation.apply, ra.explain):
        parameters = inspect.signature(function).parameters
        assert {name: parameters[name].default for name in options} == options
    parameters = inspect.signature(ra.apply).parameters.values()
    assert {p.name for p in parameters if p.kind is p.KEYWORD_ONLY} == {*spec._OPTIONS}
