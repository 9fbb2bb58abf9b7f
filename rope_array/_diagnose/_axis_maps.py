"""Maps of pairs to coordinates: the estimate from the data, and the maps of models that agree with it."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

import numpy as np

from rope_array._errors import SpecError
from rope_array._spec.axes import Axes
from rope_array._spec.scaling import Periods

from ._frequency_fit import NO_RULE, FrequencyFit, estimate_frequencies, fit_line, signed
from ._observation import Floats, Indices, Observation
from ._pair_hypotheses import PhaseEstimates
from ._verdict import Rank

# Proportions of three coordinates in models: Qwen2-VL's, Qwen3-VL's, and equal proportions.
_PROPORTIONS = {3: [(2, 3, 3), (6, 5, 5), (1, 1, 1)]}


class AxisEstimate(NamedTuple):
    """The coordinate of each pair, and its frequency under each coordinate."""

    coordinates: Indices  # -1 if unknown
    omegas: Floats  # (coordinates, pairs); NaN if the coordinate does not vary
    slack: float  # the error of a frequency by the rounding


def estimate_axes(
    phases: PhaseEstimates, rows: Floats, amplitude: float, observation: Observation
) -> AxisEstimate:
    """Estimate which coordinate drives each pair: by it alone the phases of the pair are determined."""
    omegas, coherence = [], []
    for column in rows.T:
        series = phases.series(column)
        series = series._replace(phasors=series.phasors * (series.amplitude.value / amplitude))
        unknown = np.full(series.phasors.shape[1], np.nan)
        omegas.append(estimate_frequencies(series).omegas if len(series.at) > 1 else unknown)
        total = np.maximum(series.weight.sum(0), 1e-300)
        coherence.append((series.weight * abs(series.phasors)).sum(0) / total)
    scores = np.array(coherence)
    coordinates = scores.argmax(0)
    if len(scores) > 1:
        second, best = np.sort(scores, axis=0)[-2:]
        coordinates[best - second <= max(observation.tol**2, 1e-9)] = -1
    return AxisEstimate(coordinates, np.array(omegas), observation.tol / max(abs(rows).max(), 1e-9))


def filled_map(coordinates: Indices) -> list[int]:
    """Replace each unknown coordinate by the coordinate of the pair before."""
    filled, last = [], next((int(a) for a in coordinates if a >= 0), 0)
    for a in coordinates:
        last = int(a) if a >= 0 else last
        filled.append(last)
    return filled


def maps_of_models(coordinates: Indices, count: int, blocks: int) -> Iterator[Axes]:
    """Yield the maps of models that agree with the estimated coordinates."""
    for make in _constructors(coordinates, count, blocks):
        try:
            axes = make()
        except SpecError:
            continue
        drivers = np.array(axes.coordinates)
        if len(drivers) == len(coordinates) and ((coordinates < 0) | (coordinates == drivers)).all():
            yield axes


def _constructors(coordinates: Indices, count: int, blocks: int) -> Iterator[Callable[[], Axes]]:
    """Yield calls that make maps of models, with the estimated sections or with usual sections."""
    n, filled = len(coordinates), filled_map(coordinates)
    if blocks > 1:
        yield partial(Axes.axial, *[2 * n // count] * count, blocks=True)
    if blocks > 1 or count == 1:
        return
    counts = [int((coordinates == a).sum()) for a in range(count)]
    usual = [tuple(filled.count(a) for a in range(count)), (n - sum(counts[1:]), *counts[1:])]
    for proportions in _PROPORTIONS.get(count, [(1,) * count]):
        if all(n * p % sum(proportions) == 0 for p in proportions):
            usual.append(tuple(n * p // sum(proportions) for p in proportions))
    order = dict.fromkeys([*filled, *range(count)])
    for sections in dict.fromkeys(usual):
        yield partial(Axes.chunked, *sections)
        yield partial(Axes.interleaved, *sections)
        if count == 3:
            yield partial(Axes.alternating, *sections)
        yield partial(Axes.axial, *(2 * s for s in sections), order=[*order])
    if count == 2:
        yield partial(Axes.even_odd, 2 * n)


def axis_fits(
    axes: Axes, estimate: AxisEstimate, bases: tuple[float, ...], with_estimate: bool = False
) -> Iterator[FrequencyFit]:
    """Yield the series of frequencies over a map that are near the estimates; then the estimates."""
    omegas = np.array([estimate.omegas[a or 0, i] for i, a in enumerate(axes.coordinates)])
    sources = axes.sources(2 * len(omegas))
    exponents = np.array([2 * source[1] / source[0] if source else 0.0 for source in sources])
    finite = np.isfinite(omegas)
    omegas = np.where(finite, omegas, 0.0)
    sign = -1 if omegas.sum() < 0 else 1
    for rule, unit in ((None, 1.0), (Periods(), 2 * np.pi)):
        for base, rank in _bases_near(sign * omegas / unit, exponents, bases).items():
            series = sign * unit * base**-exponents
            if np.allclose(omegas[finite], series[finite], rtol=0.02, atol=estimate.slack):
                fields = {"axes": axes, "base": base, "scaling": signed(rule, sign)}
                yield FrequencyFit(fields, series, rank)
    if with_estimate and (estimate.coordinates >= 0).any():
        fields = {"axes": axes, "inv_freq": tuple(map(float, omegas))}
        yield FrequencyFit(fields, omegas, Rank.ESTIMATE, notes=(NO_RULE,))


def _bases_near(omegas: Floats, exponents: Floats, bases: tuple[float, ...]) -> dict[float, Rank]:
    """Return the bases of models, then the estimate and its rounded forms, with their ranks."""
    ranks = dict.fromkeys(bases, Rank.KNOWN)
    fast = omegas > 0
    estimate = fit_line(omegas[fast], exponents[fast])[0] if fast.any() else 0.0
    for digits in (2, 3, 5, 9) if 1e-30 < estimate < 1e30 else ():
        ranks.setdefault(float(f"{estimate:.{digits}g}"), Rank.ONE_NUMBER)
    return ranks
