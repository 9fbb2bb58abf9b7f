"""Maps of pairs to coordinates: the estimate from the data, and the maps of models that agree with it."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from rope_array._diagnose._case import Case, Floats, Indices
from rope_array._diagnose._frequency_fit import Series, estimate_frequencies, with_origin
from rope_array._diagnose._pair_hypotheses import PhaseEstimates
from rope_array._errors import SpecError
from rope_array._spec.axes import Axes


def axis_map(phases: PhaseEstimates, rows: Floats, amplitude: float, case: Case) -> tuple[Indices, Floats]:
    """Return the coordinate of each pair (-1 if unknown), and its frequency under each coordinate."""
    series, coherence = [], []
    for a in range(rows.shape[1]):
        at, inverse = np.unique(rows[:, a], return_inverse=True)
        phasors, weight = phases.at(inverse.ravel(), len(at))
        series.append(Series(at, phasors / amplitude, weight))
        coherence.append((weight * abs(phasors / amplitude)).sum(0) / np.maximum(weight.sum(0), 1e-300))
    scores = np.array(coherence)  # 1 if this coordinate alone determines the phases of the pair
    best = scores.argmax(0)
    ordered = np.sort(scores, axis=0)
    margin = max(case.tol**2, 1e-9)
    coordinates = np.where(ordered[-1] - ordered[-2] > margin, best, -1) if len(scores) > 1 else best
    unknown = np.full(scores.shape[1], np.nan)
    omegas = [estimate_frequencies(with_origin(s))[0] if len(s.at) > 1 else unknown for s in series]
    return coordinates, np.array(omegas)


def filled_map(coordinates: Indices) -> list[int]:
    """Replace each unknown coordinate by the coordinate of the pair before."""
    filled, last = [], next((int(a) for a in coordinates if a >= 0), 0)
    for a in coordinates:
        last = int(a) if a >= 0 else last
        filled.append(last)
    return filled


# Proportions of the coordinates in models: Qwen2-VL's, Qwen3-VL's, and equal ones.
_PARTS: dict[int, list[tuple[float, ...]]] = {
    2: [(1.0, 1.0)],
    3: [(2.0, 3.0, 3.0), (6.0, 5.0, 5.0), (1.0, 1.0, 1.0)],
}


def axes_guesses(coordinates: Indices, count: int, blocks: int) -> Iterator[tuple[Axes, str]]:
    """Yield models' maps with the estimated sections, or with usual sections."""
    n, filled = len(coordinates), filled_map(coordinates)
    estimated = tuple(filled.count(a) for a in range(count))
    if blocks > 1:
        if n % blocks == 0 and count == blocks:
            yield _named_axes("axial", (2 * n // count,) * count, blocks=True)
        return
    counts = [int((coordinates == a).sum()) for a in range(count)]
    first = (n - sum(counts[1:]), *counts[1:])
    usual = [estimated, first]
    parts: Sequence[tuple[float, ...]] = _PARTS.get(count, [(1.0,) * count])
    for part in parts:
        sizes = [n * p / sum(part) for p in part]
        if all(size == int(size) for size in sizes):
            usual.append(tuple(int(size) for size in sizes))
    if count == 1:
        return
    for sections in dict.fromkeys(usual):
        order = tuple(dict.fromkeys([*filled, *range(count)]))
        yield from _named_axes_if_valid("chunked", sections)
        yield from _named_axes_if_valid("interleaved", sections)
        if count == 3:
            yield from _named_axes_if_valid("alternating", sections)
        widths = tuple(2 * s for s in sections)
        yield from _named_axes_if_valid(
            "axial", widths, **({} if order == tuple(range(count)) else {"order": order})
        )
    if count == 2 and n % 2 == 0:
        yield from _named_axes_if_valid("even_odd", (2 * n,))


def _named_axes_if_valid(name: str, args: tuple[int, ...], **kwargs: Any) -> Iterator[tuple[Axes, str]]:
    try:
        yield _named_axes(name, args, **kwargs)
    except SpecError:
        return


def _named_axes(name: str, args: tuple[int, ...], **kwargs: Any) -> tuple[Axes, str]:
    words = [*map(repr, args), *(f"{k}={v!r}" for k, v in kwargs.items())]
    return getattr(Axes, name)(*args, **kwargs), f"ra.Axes.{name}({', '.join(words)})"
