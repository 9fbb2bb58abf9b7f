"""Rotate a text's queries and keys on one library; measure the error and the time."""

import time
from collections.abc import Callable
from timeit import timeit
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

import rope_array as ra
from rope_array._demo._libraries import copy, finish
from rope_array.testing import apply_definition
from rope_array.testing._contract import compute_dtype, eps
from rope_array.testing._libraries import ArrayLibrary, rounded

Floats = NDArray[np.float64]

# The first position of each copy of the text; the last is near the end of the int32 range.
STARTS = (0, 1_000_000, 2_000_000_000)
DTYPES = ("float32", "bfloat16", "float64")
_SECONDS_PER_TIMING = 0.1
_LEAST_ROUNDS = 5


class DtypeCase(NamedTuple):
    """Queries and keys of one dtype, shape (copies, heads, tokens, features), and the exact results."""

    dtype: str
    arrays: tuple[Floats, Floats]
    truths: tuple[Floats, Floats]


class Measurement(NamedTuple):
    """The table's row of one library in one dtype."""

    backend: str
    worst: float
    allowed: float
    copies: float


def _positions(count: int) -> NDArray[np.int32]:
    """Return the positions of every copy of the text, shape (copies, count)."""
    return (np.array(STARTS)[:, None] + np.arange(count)).astype(np.int32)


def cases(q: Floats, k: Floats) -> list[DtypeCase]:
    """Return queries and keys in every dtype, with exact results: one call of the slow definition."""
    pairs = [tuple(rounded(np.stack([x] * len(STARTS)), dtype) for x in (q, k)) for dtype in DTYPES]
    exact = apply_definition(np.concatenate([x for pair in pairs for x in pair], 1), _positions(q.shape[-2]))
    truths = np.split(exact, 2 * len(pairs), axis=1)
    return [
        DtypeCase(dtype, (pair[0], pair[1]), (truths[2 * i], truths[2 * i + 1]))
        for i, (dtype, pair) in enumerate(zip(DTYPES, pairs, strict=True))
    ]


def measure(library: ArrayLibrary, case: DtypeCase) -> Measurement:
    """Rotate a case on a library; return the backend, the worst error and the time."""
    q, k = (library.asarray(x, case.dtype) for x in case.arrays)
    pos = library.asarray(_positions(case.arrays[0].shape[-2]))

    def rotated() -> tuple[Any, ...]:
        return finish(library, ra.apply((q, k), pos))

    def copied() -> tuple[Any, ...]:
        return finish(library, (copy(library, q), copy(library, k)))

    numbers = (library.to_numpy(y).astype(np.float64) for y in rotated())
    worst = max(_worst_error(y, truth, case.dtype) for y, truth in zip(numbers, case.truths, strict=True))
    backend = ra.explain((q, k), pos).backend
    return Measurement(backend, worst, _allowed(case.dtype), _ratio(rotated, copied))


def _worst_error(y: Floats, exact: Floats, dtype: str) -> float:
    """Return the worst error of a result in ulps: eps times the length of the rotated pair."""
    if y.shape != exact.shape or np.isnan(y).any():
        return np.inf
    length = np.repeat(np.hypot(exact[..., ::2], exact[..., 1::2]), 2, axis=-1)
    error = np.abs(y - exact)
    of_zero_pairs = np.where(error == 0.0, 0.0, np.inf)
    return float(np.max(np.divide(error, eps(dtype) * length, out=of_zero_pairs, where=length > 0)))


def _allowed(dtype: str) -> float:
    """Return the contract's bound in ulps."""
    return 2.5 * eps(compute_dtype(dtype)) / eps(dtype) + 0.5


def _ratio(*calls: Callable[[], Any]) -> float:
    """Return the ratio of the best times of two calls: a busy machine makes calls slower, never faster."""
    for call in calls:
        call()  # warm up caches, compilation, threads
    rounds: list[list[float]] = []
    end = time.perf_counter() + _SECONDS_PER_TIMING
    while len(rounds) < _LEAST_ROUNDS or time.perf_counter() < end:
        rounds.append([timeit(call, number=1) for call in calls])
    first, second = (min(times) for times in zip(*rounds, strict=True))
    return float(first / second)
