"""Ropes, memory layouts and comparisons for the kernel's tests, which are skipped without the kernel."""

import itertools
import os

import compare
import numpy as np
import pytest
from compare import assert_same
from conftest import LEVELS, NIGHTLY
from ropes import SEVERAL, SPECS  # noqa: F401

import rope_array as ra
from rope_array._backends import _native

if _native.kernel is None and os.environ.get("ROPE_ARRAY_REQUIRE_KERNEL"):
    raise RuntimeError(f"ROPE_ARRAY_REQUIRE_KERNEL is set, and {_native.unavailable_reason()}")
if _native.kernel is None:
    pytest.skip(_native.unavailable_reason(), allow_module_level=True)

kernel = _native.kernel
THREADS, OF_OPENMP, LEVEL = "ROPE_ARRAY_NUM_THREADS", "OMP_NUM_THREADS", "ROPE_ARRAY_KERNEL_LEVEL"
ALL_THREADS = (1, 2, 3, 7)
MIB = 2**20

F32, F64, F16 = map(np.dtype, ("float32", "float64", "float16"))
try:
    import ml_dtypes
except ImportError:  # its dependency group is not installed
    BF16 = None
else:
    BF16 = np.dtype(ml_dtypes.bfloat16)
DTYPES = [dtype for dtype in (F32, F64, F16, BF16) if dtype is not None]
B = DTYPES[-1]
by_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)
RoPE, Axes = ra.RoPE, ra.Axes


def covering(*parameters):
    """Return cases in which each two values of two parameters meet; in `nightly`, all cases."""
    cases = list(itertools.product(*parameters))
    if NIGHTLY:
        return cases
    pairs = {case: set(itertools.combinations(enumerate(case), 2)) for case in cases}
    missing, sample = set().union(*pairs.values()), []
    while missing:
        sample.append(max(cases, key=lambda case: len(pairs[case] & missing)))
        missing -= pairs[sample[-1]]
    return sample


def in_pairs_of(*, indirect=("level",), **parameters):
    """Parametrize a test by levels, dtypes and more parameters, by a covering sample of their values."""
    parameters = {"level": LEVELS, "dtype": DTYPES, **parameters}
    cases = covering(*parameters.values())
    ids = ["-".join(map(str, case)) for case in cases]
    return pytest.mark.parametrize(", ".join(parameters), cases, ids=ids, indirect=[*indirect])


def normal(shape, dtype=F32, seed=0):
    return compare.normal("numpy", *np.atleast_1d(shape), dtype=dtype, seed=seed)


def each_level_and_thread_count(monkeypatch):
    """Switch to each level and thread count, in `nightly` to each pair of them; yield their names."""
    pairs = list(itertools.product(LEVELS, ALL_THREADS))
    if not NIGHTLY:
        count = max(len(LEVELS), len(ALL_THREADS))
        pairs = list(itertools.islice(zip(itertools.cycle(LEVELS), itertools.cycle(ALL_THREADS)), count))
    for name, threads in pairs:
        kernel.use_level(name)
        monkeypatch.setenv(THREADS, str(threads))
        yield f"{name}, {threads} threads"


def by_array_api(rope, x, pos, **kwargs):
    return rope.apply(x, pos, backend="array-api", **kwargs)


def copied(x):
    return tuple(map(np.copy, x)) if type(x) is tuple else np.copy(x)


def empty(x):
    return tuple(map(empty, x)) if type(x) is tuple else np.empty(x.shape, x.dtype)


def check(rope, x, pos, call_text="", **kwargs):
    """Compare with the array-api backend: by default, by name, into another array, in place, and inverted."""
    for direction in ({}, {"inverse": True}):
        expected = by_array_api(rope, x, pos, **kwargs, **direction)
        assert_same(rope.apply(x, pos, **kwargs, **direction), expected, f"{call_text} {direction}")
        y = copied(x)
        assert rope.apply(y, pos, out=y, **kwargs, **direction) is y
        assert_same(y, expected, f"{call_text} {direction}, in place")
        if not direction:
            assert_same(rope.apply(x, pos, backend="native", **kwargs), expected, f"{call_text}, by name")
            assert_same(rope.apply(x, pos, out=empty(x), **kwargs), expected, f"{call_text}, out")


PAIRINGS = list(itertools.product(("interleaved", "half"), repeat=2))


def unaligned(x):
    """Return a copy of x at an address that is not aligned for its dtype."""
    view = np.ndarray(x.shape, x.dtype, np.empty(x.nbytes + 1, np.uint8), offset=1)
    view[...] = x
    return view


def spaced(x):
    spread = np.zeros((*x.shape[:-1], 3 * x.shape[-1]), x.dtype)
    spread[..., 1::3] = x
    return spread[..., 1::3]


def case(shape, dtype=F32, pos=None, change=None, seq_axis=-2, **fields):
    rope = RoPE(fields.pop("head_dim", shape[-1]), **fields)
    return rope, shape, dtype, range(shape[seq_axis]) if pos is None else pos, change, seq_axis


def made(shape, dtype, change, seed=0):
    x = np.resize(normal(1_000_003, dtype, seed), shape)
    return x if change is None else change(x)


def uneven(shape, seed=3):
    """Return positions in runs of equal steps: 40 runs of 1 to 40 positions, and 40 of step 3."""
    rng = np.random.default_rng(seed)
    starts, steps = rng.integers(-(2**40), 2**40, 40), rng.integers(-5, 6, 40)
    runs = [starts[n] + steps[n] * np.arange(n + 1) for n in range(40)]
    runs += [run[-1] + 3 * np.arange(5) for run in runs]
    rng.shuffle(runs)
    return np.resize(np.concatenate(runs), shape)


def in_pairs(first, second, pairing):
    axis = -2 if pairing == "half" else -1
    return np.stack([first, second], axis).reshape(first.shape[0], -1)


def apart(y, pairing):
    pairs = y.reshape((len(y), 2, -1) if pairing == "half" else (len(y), -1, 2))
    return (pairs[:, 0], pairs[:, 1]) if pairing == "half" else (pairs[..., 0], pairs[..., 1])
