"""Find the frequencies of estimated phases: by the bases of published models, then by estimate and rule."""

import math
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from rope_array._diagnose._case import Case, Complex, Floats
from rope_array._diagnose._narrow_dtypes import ROUNDERS
from rope_array._diagnose._pair_hypotheses import PairHypothesis
from rope_array._diagnose._report import ESTIMATE, KNOWN, ONE_NUMBER, TWO_NUMBERS
from rope_array._errors import SpecError
from rope_array._rope import RoPE
from rope_array._spec.frequencies import Scaling
from rope_array._spec.scaling import Linear, Llama3, Proportional, Reversed, YaRN

# Bases of published models, the commonest first.
BASES = (1e4, 5e5, 1e6, 1e5, 1.5e5, 1.6e5, 100.0, 1e3, 2.5e4, 5e4, 2e6, 5e6, 8e6, 1e7, 1e8, 1e9, 1e11)
_CONTEXTS = (2048, 4096, 8192, 16384, 32768, 65536, 131072)
_FACTORS = (2.0, 4.0, 8.0, 16.0, 32.0, 40.0, 64.0)
_COHERENT = 0.5  # a larger misfit is another rotation
_LOOKED_AT = 64  # hypotheses of a series
NO_RULE = "the frequencies follow no rule that was tried: `rope.frequencies` has least-squares estimates"


class Series(NamedTuple):
    """The phases of all pairs: cos + i sin for each position and pair."""

    at: Floats  # (K,), ascending
    phasors: Complex  # (K, pairs)
    weight: Floats


class FrequencyFit(NamedTuple):
    """Fields of a RoPE that may explain a series."""

    fields: dict[str, Any]
    omegas: Floats  # with their sign
    kind: int = KNOWN
    uncertainty: float = 0.0
    offset: float = 0.0
    mistake: str = ""
    notes: tuple[str, ...] = ()
    misfit: float = math.inf


class Amplitude(NamedTuple):
    """The factor on cos and sin, and its relative error."""

    value: float
    error: float = 0.0


def amplitude_of(phasors: Complex, weight: Floats) -> Amplitude:
    """Return the factor with the fewest digits within the noise."""
    sizes = abs(phasors[weight > 0])
    middle = float(np.median(sizes)) if len(sizes) else 0.0
    if not middle:
        return Amplitude(1.0)
    near = sizes[abs(sizes - middle) <= 0.2 * middle]  # not empty, or the median is between two groups
    size = float(near.mean()) if len(near) else middle
    error = float(4 * near.std() / size / math.sqrt(len(near))) if len(near) else 0.1
    return Amplitude(shortest(size, error), error)


def shortest(size: float, close: float) -> float:
    """Return the number with the fewest digits that is close to `size`."""
    tried = (float(f"{size:.{n}g}") for n in range(1, 17))
    return next((v for v in tried if abs(v - size) <= (close + 2**-52) * size), size)


def with_origin(series: Series) -> Series:
    """Add the position 0, with no rotation."""
    if (series.at == 0).any():
        return series
    place = int(np.searchsorted(series.at, 0.0))
    ones = np.ones(series.phasors.shape[1])
    return Series(
        np.insert(series.at, place, 0.0),
        np.insert(series.phasors, place, ones, axis=0),
        np.insert(series.weight, place, ones * series.weight.max(initial=1.0), axis=0),
    )


def estimate_frequencies(series: Series) -> tuple[Floats, float, float]:
    """Estimate each pair's frequency, modulo 2π over the step of the positions.

    Returns the step too, and the largest ratio of successive differences of positions.
    Short differences of positions give a rough, unambiguous estimate; long differences refine it.
    """
    at, phasors, weight = series
    count = len(at)
    lags = [2**n for n in range(count.bit_length()) if 2**n < count]
    ends = np.array([(j, j + lag) for lag in lags for j in range(count - lag)]).reshape(-1, 2)
    if not len(ends):
        return np.zeros(phasors.shape[1]), 0.0, 1.0
    gaps = at[ends[:, 1]] - at[ends[:, 0]]
    order = np.argsort(gaps, kind="stable")
    ends, gaps = ends[order], gaps[order]
    least, step = float(gaps[0]), _step(at, float(gaps[0]))
    between = phasors[ends[:, 1]] * phasors[ends[:, 0]].conj()
    weights = np.minimum(weight[ends[:, 1]], weight[ends[:, 0]])
    near = gaps <= least * (1 + 1e-9)
    rough = np.angle((weights[near] * between[near]).sum(0)) / least
    best, score = rough, np.full(len(rough), -1.0)
    count = min(64, max(1, round(least / step)))
    for n in range(count):
        start = rough + 2 * np.pi / least * (n - count // 2)
        tried = _refined(start, gaps, between, weights)
        coherence = abs((weight * phasors * np.exp(-1j * np.multiply.outer(at, tried))).sum(0))
        better = coherence > score * (1 + 1e-9)
        best, score = np.where(better, tried, best), np.where(better, coherence, score)
    return best, step, float((gaps[1:] / gaps[:-1]).max(initial=1.0))


def _refined(omegas: Floats, gaps: Floats, between: Complex, weights: Floats) -> Floats:
    reach = float(gaps[0])
    while True:
        reach = max(4 * reach, float(gaps[gaps > reach][0])) if (gaps > reach).any() else reach
        near = gaps <= reach
        g = gaps[near, None]
        left = np.angle(between[near] * np.exp(-1j * g * omegas))
        w = weights[near] * g
        omegas = omegas + (w * left).sum(0) / np.maximum((w * g).sum(0), 1e-300)
        if near.all():
            return omegas


def _step(at: Floats, least: float) -> float:
    """Return the greatest common step of positions."""
    if (at == at.round()).all() and abs(at).max() < 2**53:
        return float(math.gcd(*(int(d) for d in np.diff(at))) or 1)
    return least


def fit_line(omegas: Floats, exponents: Floats, free: bool) -> tuple[float, float]:
    """Fit ω = s · base^(-exponent), with s = 1 unless `free`; fast pairs weigh more."""
    logs, weight = np.log(omegas), omegas**2
    if free and len(omegas) > 1:
        slope, log_s = np.polyfit(exponents, logs, 1, w=np.sqrt(weight))
        return float(np.exp(np.clip(-slope, -700, 700))), float(np.exp(log_s))
    scale = (weight * exponents**2).sum()
    slope = (weight * exponents * logs).sum() / scale if scale > 0 else 0.0
    return float(np.exp(np.clip(-slope, -700, 700))), 1.0


def _unwrapped(omegas: Floats, step: float) -> Floats:
    """Resolve frequencies known modulo 2π over the step: from slow to fast, as a geometric series."""
    unwrapped, period = omegas.copy(), 2 * np.pi / step
    for i in range(len(unwrapped) - 3, -1, -1):
        if unwrapped[i + 1] > 0 and unwrapped[i + 2] > 0:
            wanted = unwrapped[i + 1] ** 2 / unwrapped[i + 2]
            unwrapped[i] += period * np.round((wanted - unwrapped[i]) / period)
    return unwrapped


class FrequencyFitter:
    """Finds the frequencies of one series over a width: known ropes, fits of one or two numbers, an estimate.

    Every hypothesis is ranked by its misfit; no tolerance decides.
    """

    def __init__(
        self, series: Series, pairs: PairHypothesis, case: Case, bases: tuple[float, ...], rules: Any
    ):
        self.series, self.case, self.bases, self.rules = series, case, bases, rules
        self.width = width = pairs.width
        # Interleaved pairs show no width: the same frequencies begin a wider slice with another base.
        self.shows_width = "half" in (pairs.pairing, pairs.out_pairing)
        self.ends_inside = pairs.start + width < case.x.shape[1]
        self.exponents = 2 * np.arange(width // 2) / width
        # Rounding errors are relative, so a large feature is not more precise than another.
        positive = series.weight[series.weight > 0]
        self.weight = np.minimum(series.weight, np.median(positive) if len(positive) else 0.0)

    def find(self, free: bool) -> list[FrequencyFit]:
        """Return the best fits, with their misfit; with `free`, positions may differ by a constant."""
        if free:
            return self._best([*self._by_shifted_positions()])
        found = [*self._known()]
        estimate, step = self._estimate()
        if step:
            found += self._fitted(estimate, step)
            found.append(self._as_estimate(estimate, step))
        ranked = self._best(found)
        if self.width > 2 and (not ranked or ranked[0].misfit < _COHERENT):
            ranked = self._best([*found, *self._stretched(estimate, step)])
        deviation = self._deviation(estimate)
        return [f._replace(uncertainty=1.0) if self._is_open(f, deviation) else f for f in ranked]

    def _is_open(self, fit: FrequencyFit, deviation: float) -> bool:
        """Return whether the pairs that tell a fit from other numbers rotate by less than the noise."""
        omegas, rule = abs(fit.omegas), fit.fields.get("scaling")
        rule = rule.rule if isinstance(rule, Reversed) else rule
        if isinstance(rule, (Llama3, YaRN)) and rule not in self.rules:  # a guess of its numbers
            ratio = fit.fields["base"] ** -self.exponents / np.maximum(omegas, 1e-300)
            slow = omegas[ratio > 0.999 * rule.factor]
            return bool(deviation > 0.5 * slow.max(initial=0.0))
        numbers = fit.kind - KNOWN if fit.kind < ESTIMATE else 0
        if isinstance(rule, Linear) and numbers:
            numbers = 2  # the factor depends on the base
        if numbers and (omegas > 100 * deviation).sum() < min(numbers + 1, len(omegas)):
            return True  # no pair confirms the numbers
        if self.shows_width or fit.kind == ESTIMATE or (fit.kind == KNOWN and not self.ends_inside):
            return False
        return self._next(omegas) < 2 * deviation

    def _next(self, omegas: Floats) -> float:
        """Return the frequency of the last pair; for a slice that ends inside the head, of the pair after."""
        step = omegas[-1] / max(omegas[-2], 1e-300) if self.ends_inside and len(omegas) > 1 else 1.0
        return float(omegas[-1] * step)

    def _best(self, found: list[FrequencyFit]) -> list[FrequencyFit]:
        """Return the fits that a closer look may find to be the best, with their misfit."""
        if not found:
            return []
        order = np.argsort(self._misfits(found, 8), kind="stable")
        chosen = [found[i] for i in order[:_LOOKED_AT]]
        fits = [f._replace(misfit=float(m)) for f, m in zip(chosen, self._misfits(chosen, 96), strict=True)]
        least = min(f.misfit for f in fits)
        near = [f for f in fits if f.misfit <= 3 * least + self._slack(f.omegas)]
        return sorted(near, key=lambda f: f.misfit)

    def _slack(self, omegas: Floats) -> float:
        """Return a misfit that rounding may cause."""
        angles = abs(self.series.at).max() * abs(omegas).max()
        return float(self.case.tol + self.case.angle_errors(angles, 1.0))

    def _misfits(self, fits: list[FrequencyFit], count: int) -> Floats:
        """Return the distance between the measured phases and the phases of each fit, at some positions."""
        chosen = np.unique(np.linspace(0, len(self.series.at) - 1, count).round().astype(int))
        at, phasors, weight = self.series.at[chosen], self.series.phasors[chosen], self.weight[chosen]
        total = max(float(weight.sum()), 1e-300)

        def distance(angles: Floats) -> Floats:
            off = abs(phasors - np.exp(1j * angles)) ** 2
            return np.asarray(np.sqrt((weight * off).sum((1, 2)) / total))

        found = []
        for n in range(0, len(fits), 64):
            omegas = np.array([f.omegas for f in fits[n : n + 64]])[:, None]
            moved = at[:, None] + np.array([f.offset for f in fits[n : n + 64]])[:, None, None]
            misfit = distance(moved * omegas)
            if self.case.float32_differs:
                for tried in (omegas, self._float32_frequencies(fits[n : n + 64], omegas, len(fits))):
                    misfit = np.minimum(misfit, distance(_float32(_float32(moved) * _float32(tried))))
            found.append(misfit)
        return np.concatenate(found)

    def _float32_frequencies(self, fits: list[FrequencyFit], omegas: Floats, among: int) -> Floats:
        """Return frequencies as Hugging Face's code rounds them; of a rule only if it is among few."""
        rounded = omegas.copy()
        for n, fit in enumerate(fits):
            if (
                fit.kind == KNOWN
                and "base" in fit.fields
                and (among <= _LOOKED_AT or "scaling" not in fit.fields)
            ):
                rounded[n] = _float32_omegas(self.width, fit.fields["base"], fit.fields.get("scaling"))
        return rounded

    def _known(self) -> Iterator[FrequencyFit]:
        """Yield the bases of models, without a rule, with the caller's rules, and in 16 bits."""
        # The frequency of one pair is 1 in any base.
        for base in self.bases if self.width > 2 else self.bases[:1]:
            omegas = base**-self.exponents
            yield from _both_signs({"base": base}, omegas)
            for rule in self.rules:
                yield from self._by_rule(base, rule)
            for name, rounded in ROUNDERS:
                narrow = rounded(omegas)
                text = f"frequencies are {name}: base {base:g}, rounded"
                for sign in (1, -1):
                    fields = {"inv_freq": tuple(map(float, sign * narrow))}
                    yield FrequencyFit(fields, sign * narrow, TWO_NUMBERS, mistake=text)

    def _by_rule(self, base: float, rule: Scaling) -> Iterator[FrequencyFit]:
        try:
            omegas = np.array(RoPE(self.width, base=base, scaling=rule).frequencies)
        except SpecError:
            return
        yield from _both_signs({"base": base, "scaling": rule}, omegas)

    def _by_shifted_positions(self) -> Iterator[FrequencyFit]:
        """Yield fits with a constant added to positions: the phase at 0 is the constant times ω."""
        for base in self._plausible_bases():
            for fit in _both_signs({"base": base}, base**-self.exponents):
                offset = self._offset(fit.omegas)
                if offset and (fit.omegas[0] > 0 or len(self.series.at) > 1):
                    yield fit._replace(offset=offset, kind=ONE_NUMBER)

    def _plausible_bases(self) -> Iterator[float]:
        yield from self.bases
        omegas = estimate_frequencies(self.series)[0]
        known = abs(omegas) > 1e-6
        if known.sum() > 1 and np.ptp(self.series.at) > 0:
            yield float(f"{fit_line(abs(omegas[known]), self.exponents[known], False)[0]:.5g}")

    def _offset(self, omegas: Floats) -> float:
        at, phasors, weight = self.series
        phases = (weight * phasors * np.exp(-1j * np.multiply.outer(at, omegas))).sum(0)
        if abs(phases).sum() < 0.9 * weight.sum():
            return 0.0  # no constant makes these frequencies fit
        tried = np.arange(-1024, 2049.0)
        match = (np.exp(-1j * np.multiply.outer(tried, omegas)) * phases).sum(1).real
        return float(tried[int(np.argmax(match))])

    def _estimate(self) -> tuple[Floats, float]:
        """Return the least-squares frequency of each pair, and the step of the positions."""
        omegas, step, self.jump = estimate_frequencies(with_origin(self.series))
        at = self.series.at[:, None]
        norm = np.maximum((self.weight * at**2).sum(0), 1e-300)
        for _ in range(4):
            left = self.series.phasors * np.exp(-1j * at * omegas)
            omegas = omegas + (self.weight * at * left.imag).sum(0) / norm
        return omegas, step

    def _as_estimate(self, omegas: Floats, step: float) -> FrequencyFit:
        notes: tuple[str, ...] = (NO_RULE,)
        if step > 1:
            notes += (f"positions have a step of {step:g}, so that frequencies are known modulo 2π/{step:g}",)
        unsure = float((self._deviation(omegas) / np.maximum(abs(omegas), 1e-300)).max())
        if 4 * math.sqrt(2) * self._misfit(omegas) * self.jump > np.pi:
            unsure = 1.0  # pairs may make another full turn within the jump
        return FrequencyFit({"inv_freq": tuple(map(float, omegas))}, omegas, ESTIMATE, unsure, notes=notes)

    def _deviation(self, omegas: Floats) -> float:
        """Return four standard deviations of an estimated frequency, and the error of rounded angles."""
        reach = math.sqrt((self.series.at**2).sum())
        return 4 * self._misfit(omegas) / max(reach, 1e-300)

    def _misfit(self, omegas: Floats) -> float:
        return float(self._misfits([FrequencyFit({}, omegas)], len(self.series.at))[0])

    def _fitted(self, estimate: Floats, step: float) -> Iterator[FrequencyFit]:
        """Yield fits of a base, of a factor, and of both; and with a tail of zeros."""
        deviation = self._deviation(estimate)
        rounding = 2 * self.case.angle_tol() + 1e-14
        for sign in self._signs(estimate, step):
            omegas = _unwrapped(sign * estimate, step) if step > 2 else sign * estimate
            known = omegas > 2 * deviation
            if not known.any():
                continue
            last = int(np.flatnonzero(known)[-1]) + 1
            # A zero tail of interleaved pairs is a narrower slice, another hypothesis.
            for end in (None, last) if self.shows_width and last < len(omegas) else (None,):
                yield from self._geometric(omegas, known, sign, deviation, rounding, end)

    def _signs(self, omegas: Floats, step: float) -> list[int]:
        if step > 2:  # aliasing may flip the sign of fast pairs
            return [1, -1]
        return [1 if omegas.sum() >= 0 else -1]

    def _geometric(
        self, omegas: Floats, known: Any, sign: int, deviation: float, rounding: float, last: int | None
    ) -> Iterator[FrequencyFit]:
        """Yield ω = s · base^(-exponent), fitted to the known pairs; numbers have the fewest digits."""
        w, e = omegas[known], self.exponents[known]
        for base in self.bases:
            wanted = base**-e
            scale = float((wanted * w).sum() / (wanted**2).sum())
            error = deviation / math.sqrt((wanted**2).sum()) / scale + rounding
            factor = shortest(1 / scale, error)
            yield self._written(base, 1.0 if last and abs(factor - 1) <= error else factor, sign, last, error)
        for free in (False, True):
            if len(w) < 1 + free or not (e > 0).any():
                continue
            base, scale = fit_line(w, e, free)
            if not 1e-300 < base < 1e300:
                continue
            spread = e - (e * w**2).sum() / (w**2).sum() if free else e
            error = deviation / math.sqrt((w**2 * spread**2).sum()) + rounding
            unsure = error + (error + deviation / math.sqrt((w**2).sum())) * free
            yield self._written(
                shortest(base, error), shortest(1 / scale, error), sign, last, unsure, 1 + free
            )

    def _written(
        self, base: float, factor: float, sign: int, last: int | None, error: float, numbers: int = 1
    ) -> FrequencyFit:
        """Write a fit as the fields of a rope."""
        omegas = base**-self.exponents / factor
        fields: dict[str, Any] = {"base": base}
        notes: tuple[str, ...] = ()
        mistake = ""
        if last is not None:
            if omegas[last] * abs(self.series.at).max() < self.case.tol:
                error = 1.0  # rounding hides whether the tail is zero
            omegas = np.where(np.arange(len(omegas)) < last, omegas, 0.0)
            fields["scaling"] = Proportional(2 * last / self.width, factor=factor)
            numbers += 1
        elif factor == 0.5:
            fields["scaling"] = Linear(0.5)
            mistake = "rotated twice: every angle is doubled"
            numbers += 1
        elif factor != 1.0:
            fields["scaling"] = Linear(factor)
            notes = (f"every frequency, or every position, is divided by {factor:g}",)
        kind = ONE_NUMBER if numbers == 1 else TWO_NUMBERS
        fit = FrequencyFit(_signed(fields, sign), sign * omegas, kind, error)
        return fit._replace(mistake=mistake, notes=notes)

    def _stretched(self, estimate: Floats, step: float) -> Iterator[FrequencyFit]:
        """Yield Llama 3's rule and YaRN with usual contexts; factors are usual, or read off slow pairs."""
        well = estimate[abs(estimate) > 8 * self._deviation(estimate)] if step else estimate[:0]
        signs = self._signs(estimate, step) if step else (1, -1)
        for base in self.bases:
            ratios = base ** -self.exponents[: len(well)] / abs(well)
            factors = {round(2 * float(r)) / 2 for r in ratios[-3:] if 1.25 < r < 256}
            for factor in sorted({*_FACTORS, *factors}):
                for sign in signs:
                    yield from _usual_rules(base, self.width, factor, sign)


def _both_signs(fields: dict[str, Any], omegas: Floats) -> Iterator[FrequencyFit]:
    for sign in (1, -1):
        yield FrequencyFit(_signed(fields, sign), sign * omegas)


def _signed(fields: dict[str, Any], sign: int) -> dict[str, Any]:
    return fields if sign > 0 else {**fields, "scaling": Reversed(fields.get("scaling"))}


def _float32(x: Floats) -> Floats:
    with np.errstate(over="ignore"):
        return np.clip(x.astype(np.float32), -3e38, 3e38).astype(np.float64)


@lru_cache(maxsize=4096)
def _float32_omegas(width: int, base: float, rule: Scaling | None) -> Floats:
    return np.array(RoPE(width, base=base, scaling=rule, angles="float32").frequencies)


@lru_cache(maxsize=4096)
def _usual_rules(base: float, width: int, factor: float, sign: int) -> tuple[FrequencyFit, ...]:
    """Return fits by rules with usual contexts."""
    series = (base ** -(2 * np.arange(width // 2) / width)).tolist()
    rules: list[Scaling] = []
    for context in _CONTEXTS:
        rules += [Llama3(factor=factor, original_max_position_embeddings=context)]
        rules += [YaRN(factor, context), YaRN(factor, context, truncate=False)]
    omegas = [sign * np.array(rule._stretched(series, base, width)) for rule in rules]
    fields = [_signed({"base": base, "scaling": rule}, sign) for rule in rules]
    stretched = (abs(w[-1]) < 0.999 * series[-1] for w in omegas)  # else it is no other rope
    return tuple(FrequencyFit(f, w) for f, w, s in zip(fields, omegas, stretched, strict=True) if s)
