"""Make random arrays of any library, compare values and bits, and judge results by the contract."""

import os

import numpy as np
import pytest

from rope_array._backends import _native
from rope_array.testing._contract import assert_contract
from rope_array.testing._libraries import LIBRARIES

KERNEL = pytest.mark.skipif(
    _native.kernel is None and not os.environ.get("ROPE_ARRAY_REQUIRE_KERNEL"),
    reason=_native.unavailable_reason() or "built",
)
ROOTS = {name: name for name in ("numpy", "torch", "jax", "dask", "array_api_strict")} | {"jaxlib": "jax"}


def library_of(array):
    """Return the library of an array, or of an instance of a subclass; None for numbers and sequences."""
    roots = (cls.__module__.partition(".")[0] for cls in type(array).__mro__)
    return next((LIBRARIES[ROOTS[root]] for root in roots if root in ROOTS), None)


def name_of(dtype):
    """Return the name of a dtype of any library; a name unchanged."""
    return getattr(dtype, "name", None) or str(dtype).rpartition(".")[2]


def normal(lib, *shape, dtype="float32", seed=0, scale=1.0):
    """Make an array of normally distributed numbers; `lib` is a library or its name."""
    lib = LIBRARIES[lib] if isinstance(lib, str) else lib
    return lib.asarray(scale * np.random.default_rng(seed).standard_normal(shape), name_of(dtype))


def on_host(array):
    """Return an array's values in NumPy, bfloat16 as float32; a value of no library unchanged."""
    lib = library_of(array)
    if lib is None:
        return array
    return lib.to_numpy(array.resolve_neg() if lib.name == "torch" else array)


def values(array):
    """Return an array's values in NumPy's float64."""
    return np.asarray(on_host(array)).astype(np.float64)


def array_and_values(lib, dtype, *shape, seed=0, scale=1.0):
    """Make an array of a library; return it and its values."""
    x = normal(lib, *shape, dtype=dtype, seed=seed, scale=scale)
    return x, values(x)


def bits(array):
    """Return dtype, shape and bits, or a tuple of these."""
    if isinstance(array, tuple):
        return tuple(map(bits, array))
    return name_of(array.dtype), tuple(array.shape), np.ascontiguousarray(on_host(array)).tobytes()


def same(a, b):
    """Return whether two results have the same bits."""
    return bits(a) == bits(b)


def assert_same(y, expected, call=""):
    """Assert equal bits; a NaN equals any NaN."""
    if type(expected) is tuple:
        assert type(y) is tuple
        for y_i, expected_i in zip(y, expected, strict=True):
            assert_same(y_i, expected_i, call)
        return
    assert (y.dtype, y.shape) == (expected.dtype, expected.shape), call
    y, expected = on_host(y), on_host(expected)
    patterns = (array.view(f"u{array.dtype.itemsize}") for array in map(np.ascontiguousarray, (y, expected)))
    wrong = np.not_equal(*patterns).reshape(y.shape) & ~((y != y) & (expected != expected))
    if wrong.any():
        at = tuple(map(int, np.argwhere(wrong)[0]))
        text = f"{wrong.sum()} of {wrong.size} differ, the first at {at}: {y[at]!r}, not {expected[at]!r}"
        raise AssertionError(f"{call}: {text}")


def judge(y, x, pos, **fields):
    """Assert that a result is within the contract, with the dtype, shape and device of x."""
    lib = library_of(x)
    assert library_of(y) is lib
    assert (y.dtype, y.shape, lib.device_of(y)) == (x.dtype, x.shape, lib.device_of(x))
    flushes = lib.name == "jax"
    assert_contract(
        values(y), values(x), on_host(pos), dtype=name_of(x.dtype), **{"flushes": flushes, **fields}
    )


def words(value):
    """Return a readable id of a parameter."""
    if isinstance(value, dict):
        return ", ".join(f"{name} {words(entry)}" for name, entry in value.items()) or "default"
    if isinstance(value, (tuple, list)):
        return f"({', '.join(map(words, value))})"
    if isinstance(value, np.ndarray):
        return f"{type(value).__name__} {value.dtype}{value.shape}"
    return str(value) if isinstance(value, (int, float, str, range)) else type(value).__name__
