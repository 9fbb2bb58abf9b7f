"""Rotate a text's queries and keys on one library; measure the error and the time."""

import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

import rope_array as ra
from rope_array._demo._libraries import copy, finish
from rope_array.testing import _contract, apply_definition
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
    within: bool
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

    numbers = [library.to_numpy(y).astype(np.float64) for y in rotated()]
    checks = [judge(y, truth, case.dtype) for y, truth in zip(numbers, case.truths, strict=True)]
    backend = ra.explain((q, k), pos).backend
    worst = float(np.max([worst for worst, _ in checks]))
    return Measurement(backend, worst, all(ok for _, ok in checks), _ratio(rotated, copied))


def judge(y: Floats, exact: Floats, dtype: str) -> tuple[float, bool]:
    """Return the worst error of a result in ulps, and whether all errors are within the contract."""
    if y.shape != exact.shape:
        return np.inf, False
    # The length of each number's pair, which a rotation does not change.
    length = np.repeat(np.hypot(exact[..., ::2], exact[..., 1::2]), 2, axis=-1)
    error, bound = np.abs(y - exact), _contract.allowed(exact, dtype, {}, exact=exact)
    of_zero_pairs = np.where(error == 0.0, 0.0, np.inf)
    in_ulps = np.divide(error, eps(dtype) * length, out=of_zero_pairs, where=length > 0)
    return float(np.max(in_ulps)), bool(np.all(error <= bound))


def allowed(dtype: str) -> float:
    """Return the contract's bound in ulps of eps times the length of the pair."""
    return 2.5 * eps(compute_dtype(dtype)) / eps(dtype) + 0.5


def _ratio(rotate: Callable[[], Any], copy: Callable[[], Any]) -> float:
    """Return the ratio of the best times of two calls in alternating rounds.

    The best time, as a busy machine makes calls slower and never faster.
    """
    for call in (rotate, copy):
        call()  # warm up caches, compilation, threads
    rounds = list(_rounds(rotate, copy))
    return min(first for first, _ in rounds) / min(second for _, second in rounds)


def _rounds(*calls: Callable[[], Any]) -> Iterator[list[float]]:
    end = time.perf_counter() + _SECONDS_PER_TIMING
    count = 0
    while count < _LEAST_ROUNDS or time.perf_counter() < end:
        yield [_seconds(call) for call in calls]
        count += 1


def _seconds(call: Callable[[], Any]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start
