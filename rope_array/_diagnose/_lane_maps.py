"""Lane maps: which of several coordinates drives each lane, and the maps of models that agree."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from rope_array._diagnose._case import Case, Floats, Indices
from rope_array._diagnose._frequencies import Series, anchored, estimate_frequencies
from rope_array._diagnose._mixes import Sums
from rope_array._errors import SpecError
from rope_array._spec.axes import Axes


def lane_map(sums: Sums, rows: Floats, amplitude: float, case: Case) -> tuple[Indices, Floats]:
    """Find which coordinate drives each lane (-1: it does not show), and how fast it would turn by each."""
    series, coherence = [], []
    for a in range(rows.shape[1]):
        at, inverse = np.unique(rows[:, a], return_inverse=True)
        turns, weight = sums.at(inverse.ravel(), len(at))
        series.append(Series(at, turns / amplitude, weight))
        coherence.append((weight * abs(turns / amplitude)).sum(0) / np.maximum(weight.sum(0), 1e-300))
    scores = np.array(coherence)  # 1 where turns are the same wherever this coordinate is
    best = scores.argmax(0)
    ordered = np.sort(scores, axis=0)
    margin = max(case.tol**2, 1e-9)
    lanes = np.where(ordered[-1] - ordered[-2] > margin, best, -1) if len(scores) > 1 else best
    unknown = np.full(scores.shape[1], np.nan)
    omegas = [estimate_frequencies(anchored(s))[0] if len(s.at) > 1 else unknown for s in series]
    return lanes, np.array(omegas)


def filled_lanes(lanes: Indices) -> list[int]:
    """Give lanes that do not show the coordinate of the lane before."""
    made, last = [], next((int(a) for a in lanes if a >= 0), 0)
    for a in lanes:
        last = int(a) if a >= 0 else last
        made.append(last)
    return made


# Shares that models give their coordinates: Qwen2-VL's and Qwen3-VL's, and equal ones.
_PARTS: dict[int, list[tuple[float, ...]]] = {
    2: [(1.0, 1.0)],
    3: [(2.0, 3.0, 3.0), (6.0, 5.0, 5.0), (1.0, 1.0, 1.0)],
}


def axes_guesses(lanes: Indices, count: int, blocks: int) -> Iterator[tuple[Axes, str]]:
    """Yield maps of models with the sections that the lanes show, or usual ones."""
    n, filled = len(lanes), filled_lanes(lanes)
    seen = tuple(filled.count(a) for a in range(count))
    if blocks > 1:
        if n % blocks == 0 and count == blocks:
            yield _made("axial", (2 * n // count,) * count, blocks=True)
        return
    shown = [int((lanes == a).sum()) for a in range(count)]
    first = (n - sum(shown[1:]), *shown[1:])
    usual = [seen, first]
    parts: Sequence[tuple[float, ...]] = _PARTS.get(count, [(1.0,) * count])
    for part in parts:
        sizes = [n * p / sum(part) for p in part]
        if all(size == int(size) for size in sizes):
            usual.append(tuple(int(size) for size in sizes))
    if count == 1:
        return
    for sections in dict.fromkeys(usual):
        order = tuple(dict.fromkeys([*filled, *range(count)]))
        yield from _tried("chunked", sections)
        yield from _tried("interleaved", sections)
        if count == 3:
            yield from _tried("alternating", sections)
        widths = tuple(2 * s for s in sections)
        yield from _tried("axial", widths, **({} if order == tuple(range(count)) else {"order": order}))
    if count == 2 and n % 2 == 0:
        yield from _tried("even_odd", (2 * n,))


def _tried(name: str, args: tuple[int, ...], **kwargs: Any) -> Iterator[tuple[Axes, str]]:
    try:
        yield _made(name, args, **kwargs)
    except SpecError:
        return


def _made(name: str, args: tuple[int, ...], **kwargs: Any) -> tuple[Axes, str]:
    words = [*map(repr, args), *(f"{k}={v!r}" for k, v in kwargs.items())]
    return getattr(Axes, name)(*args, **kwargs), f"ra.Axes.{name}({', '.join(words)})"
