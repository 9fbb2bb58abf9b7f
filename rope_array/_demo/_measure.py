"""Rotate a text's queries and keys on one library: how far from the definition, and how long it takes."""

import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

import rope_array as ra
from rope_array import _registry
from rope_array._demo._libraries import NumPy
from rope_array.testing import apply_definition

Floats = NDArray[np.float64]

# Where the text starts in each of its copies: the last nears the end of the int32 range.
STARTS = (0, 1_000_000, 2_000_000_000)
_EPS = {"float32": 2.0**-23, "bfloat16": 2.0**-7, "float64": 2.0**-52}
_SECONDS_PER_TIMING = 0.1
_LEAST_ROUNDS = 5


class Case(NamedTuple):
    """Queries and keys of one dtype, shape (copies, heads, tokens, features), and what they should become."""

    dtype: str
    arrays: tuple[Floats, Floats]
    truths: tuple[Floats, Floats]


class Row(NamedTuple):
    """What the table says of one library in one dtype."""

    path: str
    worst: float
    within: bool
    copies: float


def _positions(count: int) -> NDArray[np.int32]:
    """Positions of every copy of the text, shape (copies, count)."""
    return (np.array(STARTS)[:, None] + np.arange(count)).astype(np.int32)


def cases(q: Floats, k: Floats) -> list[Case]:
    """Make queries and keys in every dtype, and have the definition rotate all of them at once."""
    pairs = [tuple(_rounded(np.stack([x] * len(STARTS)), dtype) for x in (q, k)) for dtype in _EPS]
    exact = apply_definition(np.concatenate([x for pair in pairs for x in pair], 1), _positions(q.shape[-2]))
    truths = np.split(exact, 2 * len(pairs), axis=1)
    return [
        Case(dtype, (pair[0], pair[1]), (truths[2 * i], truths[2 * i + 1]))
        for i, (dtype, pair) in enumerate(zip(_EPS, pairs, strict=True))
    ]


def _rounded(values: Floats, dtype: str) -> Floats:
    """Round numbers to a dtype; they stay float64, so that every library starts from the same ones."""
    if dtype == "float64":
        return values
    bits = values.astype(np.float32).view(np.uint32)
    if dtype == "bfloat16":  # which NumPy lacks: the upper half of a float32, rounded to even
        bits = bits + 0x7FFF + (bits >> 16 & 1) & np.uint32(0xFFFF0000)
    return bits.view(np.float32).astype(np.float64)


def measure(library: NumPy, case: Case) -> Row:
    """Rotate a case on a library; return the path taken, the worst error and the time."""
    q, k = (library.asarray(x, case.dtype) for x in case.arrays)
    pos = library.xp.asarray(_positions(case.arrays[0].shape[-2]))

    def rotate() -> tuple[Any, ...]:
        return library.finish(ra.apply((q, k), pos))

    def copy() -> tuple[Any, ...]:
        return library.finish((library.copy(q), library.copy(k)))

    checks = [judge(library.to_numpy(y), t, case.dtype) for y, t in zip(rotate(), case.truths, strict=True)]
    path = _registry.choose((q, k), None).name
    copies = _ratio(rotate, copy)
    return Row(path, float(np.max([worst for worst, _ in checks])), all(ok for _, ok in checks), copies)


def judge(y: Floats, exact: Floats, dtype: str) -> tuple[float, bool]:
    """Compare a result with the definition's: the worst error in ulps, and whether all are in the contract.

    The contract: |y - exact| ≤ 2.5·eps(compute)·|pair| and half of y's own spacing, for rounding once.
    """
    if y.shape != exact.shape:
        return np.inf, False
    eps, error, length = _EPS[dtype], np.abs(y - exact), _pair_lengths(exact)
    bound = 2.5 * _compute_eps(dtype) * length + _spacing(np.maximum(np.abs(y), np.abs(exact)), eps) / 2
    # The definition's result is float64, itself rounded.
    bound += _spacing(exact, _EPS["float64"]) * 0.500001
    in_ulps = np.divide(error, eps * length, out=np.where(error == 0.0, 0.0, np.inf), where=length > 0)
    return float(np.max(in_ulps)), bool(np.all(error <= bound))


def allowed(dtype: str) -> float:
    """Return the contract's bound in ulps of eps times the length of the pair."""
    return 2.5 * _compute_eps(dtype) / _EPS[dtype] + 0.5


def _compute_eps(dtype: str) -> float:
    return _EPS["float64" if dtype == "float64" else "float32"]


def _pair_lengths(exact: Floats) -> Floats:
    """Return the length of the pair that each number is of; a rotation does not change it."""
    return np.asarray(np.repeat(np.hypot(exact[..., ::2], exact[..., 1::2]), 2, axis=-1))


def _spacing(values: Floats, eps: float) -> Floats:
    """Return the distance between neighbouring floats where the values are; none at 0, which is exact."""
    return np.where(values == 0, 0.0, np.ldexp(eps, np.frexp(values)[1] - 1))


def _ratio(rotate: Callable[[], Any], copy: Callable[[], Any]) -> float:
    """Return the time of one call over that of another: of each the best of rounds that take turns.

    The best, as a busy machine makes calls slower and never faster.
    """
    for call in (rotate, copy):
        call()  # warm: caches, compilation, threads
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
