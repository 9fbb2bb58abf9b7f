"""Maps of pairs to coordinates: the estimate from the data, and the maps of models that agree with it."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from rope_array._errors import SpecError
from rope_array._spec.axes import Axes
from rope_array._spec.scaling import Periods

from ._frequency_fit import NO_RULE, FrequencyFit, estimate_frequencies, fit_line, signed, with_origin
from ._observation import Floats, Indices, Observation
from ._pair_hypotheses import Amplitude, PairHypothesis, PhaseEstimates
from ._verdict import Rank

# Proportions of three coordinates in models: Qwen2-VL's, Qwen3-VL's, and equal proportions.
_PROPORTIONS = {3: [(2, 3, 3), (6, 5, 5), (1, 1, 1)]}


class AxisEstimate(NamedTuple):
    """The coordinate of each pair, its frequency under each coordinate, and the amplitude."""

    coordinates: Indices  # -1 if unknown
    omegas: Floats  # (coordinates, pairs); NaN if the coordinate does not vary
    slack: float  # the error of a frequency by the rounding
    amplitude: Amplitude


def estimate_axes(phases: PhaseEstimates, rows: Floats, observation: Observation) -> AxisEstimate:
    """Estimate which coordinate drives each pair: by it alone the phases of the pair are determined."""
    amplitude = phases.series(rows).amplitude
    omegas, coherence = [], []
    for column in rows.T:
        series = phases.series(column)
        series = series._replace(phasors=series.phasors * (series.amplitude.value / amplitude.value))
        unknown = np.full(series.phasors.shape[1], np.nan)
        omegas.append(estimate_frequencies(with_origin(series))[0] if len(series.at) > 1 else unknown)
        total = np.maximum(series.weight.sum(0), 1e-300)
        coherence.append((series.weight * abs(series.phasors)).sum(0) / total)
    scores = np.array(coherence)
    coordinates = scores.argmax(0)
    if len(scores) > 1:
        second, best = np.sort(scores, axis=0)[-2:]
        coordinates[best - second <= max(observation.tol**2, 1e-9)] = -1
    slack = observation.tol / max(abs(rows).max(), 1e-9)
    return AxisEstimate(coordinates, np.array(omegas), slack, amplitude)


def filled_map(coordinates: Indices) -> list[int]:
    """Replace each unknown coordinate by the coordinate of the pair before."""
    filled, last = [], next((int(a) for a in coordinates if a >= 0), 0)
    for a in coordinates:
        last = int(a) if a >= 0 else last
        filled.append(last)
    return filled


def maps_of_models(coordinates: Indices, count: int, blocks: int) -> Iterator[Axes]:
    """Yield the maps of models that agree with the estimated map, with its sections or usual sections."""
    n, filled = len(coordinates), filled_map(coordinates)
    counts = [int((coordinates == a).sum()) for a in range(count)]
    sections = [tuple(filled.count(a) for a in range(count)), (n - sum(counts[1:]), *counts[1:])]
    for proportions in _PROPORTIONS.get(count, [(1,) * count]):
        if all(n * p % sum(proportions) == 0 for p in proportions):
            sections.append(tuple(n * p // sum(proportions) for p in proportions))
    order = dict.fromkeys([*filled, *range(count)])
    for sizes in dict.fromkeys(sections) if count > 1 else ():
        chunks = Axes(tuple(a for a in order for _ in range(sizes[a])), blocks=blocks, count=count)
        for name, arguments, options in chunks._candidates():
            try:
                axes = getattr(Axes, name)(*arguments, **options)
            except SpecError:
                continue
            drivers = np.array(axes.coordinates)
            agrees = len(drivers) == n and ((coordinates < 0) | (coordinates == drivers)).all()
            if agrees and (axes.count, axes.blocks) == (count, blocks):
                yield axes


def axis_fits(
    axes: Axes, estimate: AxisEstimate, pairs: PairHypothesis, bases: tuple[float, ...]
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
                fields = {**pairs.fields, "axes": axes, "base": base, "scaling": signed(rule, sign)}
                yield FrequencyFit(fields, series, rank, amplitude=estimate.amplitude)
    if (estimate.coordinates >= 0).any():
        fields = {**pairs.fields, "axes": axes, "inv_freq": tuple(map(float, omegas))}
        yield FrequencyFit(fields, omegas, Rank.ESTIMATE, notes=(NO_RULE,), amplitude=estimate.amplitude)


def _bases_near(omegas: Floats, exponents: Floats, bases: tuple[float, ...]) -> dict[float, Rank]:
    """Return the bases of models, then the estimate and its rounded forms, with their ranks."""
    ranks = dict.fromkeys(bases, Rank.KNOWN)
    fast = omegas > 0
    estimate = fit_line(omegas[fast], exponents[fast])[0] if fast.any() else 0.0
    for digits in (2, 3, 5, 9) if 1e-30 < estimate < 1e30 else ():
        ranks.setdefault(float(f"{estimate:.{digits}g}"), Rank.ONE_NUMBER)
    return ranks
