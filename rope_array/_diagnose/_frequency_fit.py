"""Find the frequencies of estimated phases: by the bases of published models, then by estimate and rule."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from rope_array._errors import SpecError
from rope_array._rope import RoPE
from rope_array._spec.frequencies import Scaling
from rope_array._spec.scaling import Linear, Llama3, Proportional, Reversed, YaRN

from ._mistakes import ROUNDERS, odd_pairs
from ._observation import EPS32, Complex, Floats, Observation
from ._pair_hypotheses import Amplitude, PairHypothesis, Series, shortest
from ._verdict import Rank

# Bases of published models, the commonest first.
BASES = (1e4, 5e5, 1e6, 1e5, 1.5e5, 1.6e5, 100.0, 1e3, 2.5e4, 5e4, 2e6, 5e6, 8e6, 1e7, 1e8, 1e9, 1e11)
_CONTEXTS = (2048, 4096, 8192, 16384, 32768, 65536, 131072)
_INFINITE = 1e300  # a factor
_FACTORS = (2.0, 4.0, 8.0, 16.0, 32.0, 40.0, 64.0)
_COHERENT = 0.5  # a larger misfit is another rotation
_BLOCK = 2**16  # angles of hypotheses that are compared at a time: their arrays fit the caches
_OFFSETS = np.arange(-1024, 2048, 64), np.arange(64)  # constants added to positions: sums of both
_LOOKED_AT, _PLAIN = 64, 4  # hypotheses of a series, and plain ones after them
NO_RULE = "the frequencies follow no rule that was tried: `rope.frequencies` has least-squares estimates"


class FrequencyFit(NamedTuple):
    """Fields of a RoPE that may explain a series."""

    fields: dict[str, Any]  # without attention_factor
    omegas: Floats  # with their sign
    rank: Rank = Rank.KNOWN
    uncertainty: float = 0.0
    offset: int = 0  # of the positions
    mistake: str = ""
    notes: tuple[str, ...] = ()
    misfit: float = math.inf
    amplitude: Amplitude = Amplitude(1.0)

    @property
    def is_plain(self) -> bool:
        """Whether a base alone gives the frequencies."""
        return "base" in self.fields and self.fields.get("scaling") in (None, Reversed())


def first_fits(fits: list[FrequencyFit], count: int) -> list[FrequencyFit]:
    """Return the first fits, and the first plain fits: many rules may fit as well as a base."""
    plain = [fit for fit in fits[count:] if fit.is_plain]
    return fits[:count] + plain[:_PLAIN]


def estimate_frequencies(series: Series) -> tuple[Floats, float, float]:
    """Estimate the frequency of each pair, modulo 2π over the step of the positions.

    Return the step too, and the largest ratio of successive differences of positions.
    Short differences of positions give a rough, unambiguous estimate; long differences refine it.
    """
    at, phasors, weight, _ = series
    count = len(at)
    lags = [2**n for n in range(count.bit_length()) if 2**n < count]
    ends = np.array([(j, j + lag) for lag in lags for j in range(count - lag)]).reshape(-1, 2)
    if not len(ends):
        return np.zeros(phasors.shape[1]), 0.0, 1.0
    gaps = at[ends[:, 1]] - at[ends[:, 0]]
    order = np.argsort(gaps, kind="stable")
    ends, gaps = ends[order], gaps[order]
    shortest_gap, step = float(gaps[0]), _step(at, float(gaps[0]))
    between = phasors[ends[:, 1]] * phasors[ends[:, 0]].conj()
    weights = np.minimum(weight[ends[:, 1]], weight[ends[:, 0]])
    near = gaps <= shortest_gap * (1 + 1e-9)
    rough = np.angle((weights[near] * between[near]).sum(0)) / shortest_gap
    best, score = rough, np.full(len(rough), -1.0)
    turns = min(64, max(1, round(shortest_gap / step)))
    for n in range(turns):
        start = rough + 2 * np.pi / shortest_gap * (n - turns // 2)
        tried = _refined(start, gaps, between, weights)
        coherence = abs((weight * phasors * np.exp(-1j * np.multiply.outer(at, tried))).sum(0))
        better = coherence > score * (1 + 1e-9)
        best, score = np.where(better, tried, best), np.where(better, coherence, score)
    return best, step, float((gaps[1:] / gaps[:-1]).max(initial=1.0))


def with_origin(series: Series) -> Series:
    """Add the position 0, with no rotation."""
    if (series.at == 0).any():
        return series
    place = int(np.searchsorted(series.at, 0.0))
    return series._replace(
        at=np.insert(series.at, place, 0.0),
        phasors=np.insert(series.phasors, place, 1.0, axis=0),
        weight=np.insert(series.weight, place, series.weight.max(initial=1.0), axis=0),
    )


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


def _step(at: Floats, shortest_gap: float) -> float:
    """Return the greatest common step of positions."""
    if (at == at.round()).all() and abs(at).max() < 2**53:
        return float(math.gcd(*(int(d) for d in np.diff(at))) or 1)
    return shortest_gap


def fit_line(omegas: Floats, exponents: Floats, free: bool = False) -> tuple[float, float]:
    """Fit ω = s · base^(-exponent), with s = 1 unless `free`; fast pairs weigh more. Return base and s."""
    logs, weight, log_s = np.log(omegas), omegas**2, 0.0
    if free:
        slope, log_s = np.polyfit(exponents, logs, 1, w=np.sqrt(weight))
    else:
        scale = (weight * exponents**2).sum()
        slope = (weight * exponents * logs).sum() / scale if scale > 0 else 0.0
    return float(np.exp(np.clip(-slope, -700, 700))), float(np.exp(log_s))


def _unwrapped(omegas: Floats, step: float) -> Floats:
    """Resolve frequencies known modulo 2π over the step: from slow to fast, as a geometric series."""
    unwrapped, period = omegas.copy(), 2 * np.pi / step
    for i in range(len(unwrapped) - 3, -1, -1):
        if unwrapped[i + 1] > 0 and unwrapped[i + 2] > 0:
            expected = unwrapped[i + 1] ** 2 / unwrapped[i + 2]
            unwrapped[i] += period * np.round((expected - unwrapped[i]) / period)
    return unwrapped


class FrequencyFitter:
    """Finds the frequencies of one series over a width: known ropes, fits of one or two numbers, an estimate.

    Every hypothesis is ranked by its misfit; no tolerance decides.
    """

    def __init__(
        self, series: Series, pairs: PairHypothesis, observation: Observation, bases: tuple[float, ...],
        rules: Sequence[Scaling], free: bool,
    ):  # fmt: skip
        """With `free`, positions may differ by a constant."""
        self.series, self.observation, self.pairs, self.free = series, observation, pairs, free
        self.bases, self.rules, self.width, self.exponents = bases, rules, pairs.width, pairs.exponents
        # Interleaved pairs show no width: the same frequencies begin a wider slice with another base.
        self.shows_width = "half" in (pairs.pairing, pairs.out_pairing)
        self.ends_inside = pairs.start + pairs.width < observation.x.shape[1]
        # Rounding errors are relative, so a large feature is not more precise than another.
        positive = series.weight[series.weight > 0]
        self.weight = np.minimum(series.weight, np.median(positive) if len(positive) else 0.0)
        self.omegas, self.step, self.jump = estimate_frequencies(series if free else with_origin(series))
        at = series.at[:, None]
        squares = np.maximum((self.weight * at**2).sum(0), 1e-300)
        for _ in range(0 if free else 4):  # least squares
            left = series.phasors * np.exp(-1j * at * self.omegas)
            self.omegas = self.omegas + (self.weight * at * left.imag).sum(0) / squares
        self.misfit = float(self._misfits([FrequencyFit({}, self.omegas)], len(at))[0])
        # Four standard deviations of an estimated frequency.
        self.deviation = 4 * self.misfit / max(math.sqrt((at**2).sum()), 1e-300)
        # Aliasing may flip the sign of fast pairs.
        sign = 1 if self.omegas.sum() >= 0 else -1
        self.signs = (1, -1) if self.step > 2 or not self.step else (sign,)

    def find(self) -> list[FrequencyFit]:
        """Return the best fits, with their misfit."""
        if self.free:
            return self._best([*self._by_shifted_positions()])
        fits = [*self._published()]
        if self.step:
            fits += [*self._fitted(), self._as_estimate()]
        ranked = self._best(fits)
        if self.width > 2 and ranked[0].misfit < _COHERENT:
            ranked = self._best([*fits, *self._stretched()])
        return [f._replace(uncertainty=1.0) if self._is_open(f) else f for f in ranked]

    def _is_open(self, fit: FrequencyFit) -> bool:
        """Return whether the pairs that tell a fit from other numbers rotate by less than the noise."""
        omegas, rule = abs(fit.omegas), fit.fields.get("scaling")
        rule = rule.rule if isinstance(rule, Reversed) else rule
        if isinstance(rule, (Llama3, YaRN)) and rule not in self.rules:  # a guess of its numbers
            ratio = fit.fields["base"] ** -self.exponents / np.maximum(omegas, 1e-300)
            slow = omegas[ratio > 0.999 * rule.factor]
            return bool(self.deviation > 0.5 * slow.max(initial=0.0))
        numbers = fit.rank - Rank.KNOWN if fit.rank < Rank.ESTIMATE else 0
        if isinstance(rule, Linear) and numbers:
            numbers = 2  # the factor depends on the base
        if numbers and (omegas > 100 * self.deviation).sum() < min(numbers + 1, len(omegas)):
            return True  # no pair confirms the numbers
        if self.shows_width or fit.rank == Rank.ESTIMATE or (fit.rank == Rank.KNOWN and not self.ends_inside):
            return False
        # Look at the last pair; or at the pair after it, if the slice ends inside the head.
        ratio = omegas[-1] / max(omegas[-2], 1e-300) if self.ends_inside and len(omegas) > 1 else 1.0
        return bool(omegas[-1] * ratio < 2 * self.deviation)

    def _best(self, fits: list[FrequencyFit]) -> list[FrequencyFit]:
        """Return the fits that a closer look may find to be the best, with their misfit."""
        if not fits:
            return []
        order = np.argsort(self._misfits(fits, 8), kind="stable")
        chosen = first_fits([fits[i] for i in order], _LOOKED_AT)
        ranked = [
            fit._replace(
                fields={**fit.fields, **self.pairs.fields}, misfit=misfit, amplitude=self.series.amplitude
            )
            for fit, misfit in zip(chosen, self._misfits(chosen, 96).tolist(), strict=True)
        ]
        ranked.sort(key=lambda f: f.misfit)
        limit, reach = 3 * ranked[0].misfit + self.observation.tol, abs(self.series.at).max()
        slack = self.observation.angle_errors(np.array([reach * abs(f.omegas).max() for f in ranked]), 1.0)
        return [f for f, error in zip(ranked, slack, strict=True) if f.misfit <= limit + error]

    def _misfits(self, fits: list[FrequencyFit], count: int) -> Floats:
        """Return the distance of each fit's phases from the measured phases, at `count` positions."""
        chosen = np.unique(np.linspace(0, len(self.series.at) - 1, count).round().astype(int))
        at, phasors, weight = self.series.at[chosen], self.series.phasors[chosen], self.weight[chosen]
        total = max(float(weight.sum()), 1e-300)

        def distance(angles: Floats) -> Floats:
            off = (phasors.real - np.cos(angles)) ** 2 + (phasors.imag - np.sin(angles)) ** 2
            return np.asarray(np.sqrt((weight * off).sum((1, 2)) / total))

        # Float32 angles may differ from exact angles: then try both.
        observation = self.observation
        by_float32 = observation.eps >= EPS32 and observation.reach > observation.decidable_reach
        misfits, size = [], max(1, min(64, _BLOCK // max(1, phasors.size)))
        for n in range(0, len(fits), size):
            block = fits[n : n + size]
            omegas = np.array([f.omegas for f in block])[:, None]
            moved = at[:, None] + np.array([f.offset for f in block])[:, None, None]
            misfit = distance(moved * omegas)
            if by_float32:
                rounded = self._float32_frequencies(block, omegas, len(fits))
                misfit = np.minimum(misfit, distance(_float32(_float32(moved) * _float32(rounded))))
            misfits.append(misfit)
        return np.concatenate(misfits)

    def _float32_frequencies(self, fits: list[FrequencyFit], omegas: Floats, among: int) -> Floats:
        """Return frequencies as Hugging Face's code rounds them; of a rule only if it is among few."""
        rounded = omegas.copy()
        for n, fit in enumerate(fits):
            rule = fit.fields.get("scaling")
            if fit.rank == Rank.KNOWN and "base" in fit.fields and (rule is None or among <= _LOOKED_AT):
                rounded[n] = _float32_omegas(self.width, fit.fields["base"], rule)
        return rounded

    def _published(self) -> Iterator[FrequencyFit]:
        """Yield the bases of models, without a rule, with the caller's rules, and in 16 bits."""
        # The frequency of one pair is 1 in any base.
        for base in self.bases if self.width > 2 else self.bases[:1]:
            omegas = base**-self.exponents
            yield from _both_signs(base, None, omegas)
            for rule in self.rules:
                try:
                    stretched = np.array(RoPE(self.width, base=base, scaling=rule).frequencies)
                except SpecError:
                    continue
                yield from _both_signs(base, rule, stretched)
            for dtype_name, rounded in ROUNDERS.items():
                text = f"frequencies are {dtype_name}: base {base:g}, rounded"
                for narrow in (rounded(omegas), -rounded(omegas)):
                    fields = {"inv_freq": tuple(map(float, narrow))}
                    yield FrequencyFit(fields, narrow, Rank.TWO_NUMBERS, mistake=text)

    def _by_shifted_positions(self) -> Iterator[FrequencyFit]:
        """Yield fits with a constant added to positions: the phase at 0 is the constant times ω."""
        bases, omegas = list(self.bases), abs(self.omegas)
        moving = omegas > 1e-6
        if moving.sum() > 1 and np.ptp(self.series.at) > 0:
            bases.append(float(f"{fit_line(omegas[moving], self.exponents[moving])[0]:.5g}"))
        for base in bases:
            for fit in _both_signs(base, None, base**-self.exponents):
                offset = self._offset(fit.omegas)
                if offset and (fit.omegas[0] > 0 or len(self.series.at) > 1):
                    yield fit._replace(offset=offset, rank=Rank.ONE_NUMBER)

    def _offset(self, omegas: Floats) -> int:
        at, phasors, weight, _ = self.series
        phases = (weight * phasors * np.exp(-1j * np.multiply.outer(at, omegas))).sum(0)
        if abs(phases).sum() < 0.9 * weight.sum():
            return 0  # no constant makes these frequencies fit
        # e^(-iω(64a + b)) is a product, so that a matrix product tries all constants from -1024 on.
        by_64, by_1 = (np.exp(-1j * np.multiply.outer(tried, omegas)) for tried in _OFFSETS)
        return int(np.argmax(((by_64 * phases) @ by_1.T).real)) + int(_OFFSETS[0][0])

    def _as_estimate(self) -> FrequencyFit:
        notes, step = [NO_RULE], f"{self.step:g}"
        if self.step > 1:
            multiples = np.diff(self.series.at) / self.step
            regular = f"positions have a step of {step}, so that frequencies are known modulo 2π/{step}"
            irregular = f"positions are {step} apart or more: frequencies are sure below π/{step} only"
            is_regular = abs(multiples - multiples.round()).max(initial=0.0) < 1e-3
            notes.append(regular if is_regular else irregular)
        unsure = float((self.deviation / np.maximum(abs(self.omegas), 1e-300)).max())
        if 4 * math.sqrt(2) * self.misfit * self.jump > np.pi:
            unsure = 1.0  # pairs may make another full turn within the jump
        omegas, close = self.omegas.copy(), 2 * self.deviation + 1e-12
        if odd := odd_pairs(omegas, self.bases, close):
            base, pairs = odd
            right = base**-self.exponents
            notes = [f"pair {i} of {len(omegas)} has {omegas[i]:.5g}, base {base:g} gives {right[i]:.5g}"
                     for i in pairs]  # fmt: skip
            followed = np.isin(np.arange(len(omegas)), pairs, invert=True)
            omegas[followed] = np.copysign(right, omegas)[followed]
        fields = {"inv_freq": tuple(map(float, omegas))}
        return FrequencyFit(fields, omegas, Rank.ESTIMATE, unsure, notes=tuple(notes))

    def _fitted(self) -> Iterator[FrequencyFit]:
        """Yield fits of a base, of a factor, and of both; and with a tail of zeros."""
        for sign in self.signs:
            omegas = sign * self.omegas
            omegas = _unwrapped(omegas, self.step) if self.step > 2 else omegas
            clear = omegas > 2 * self.deviation
            if not clear.any():
                continue
            last = int(np.flatnonzero(clear)[-1]) + 1
            # A zero tail of interleaved pairs is a narrower slice, another hypothesis.
            for end in (None, last) if self.shows_width and last < len(omegas) else (None,):
                yield from self._geometric(omegas, clear, sign, end)

    def _geometric(self, omegas: Floats, clear: Any, sign: int, last: int | None) -> Iterator[FrequencyFit]:
        """Yield ω = s · base^(-exponent), fitted to the clear pairs; numbers have the fewest digits."""
        w, e = omegas[clear], self.exponents[clear]
        rounding = 2 * self.observation.angle_tol() + 1e-14
        for base in self.bases:
            expected = base**-e
            size = (expected**2).sum()
            scale = float((expected * w).sum() / size)
            error = self.deviation / math.sqrt(size) / scale + rounding
            factor = shortest(1 / scale, error)
            factor = 1.0 if last and abs(factor - 1) <= error else factor
            yield self._by_numbers(base, factor, sign, last, error)
        for free in (False, True):
            if len(w) <= free or not e.any():
                continue
            base, scale = fit_line(w, e, free)
            if not 1e-300 < base < 1e300:
                continue
            size = (w**2).sum()
            spread = e - (e * w**2).sum() / size if free else e
            error = self.deviation / math.sqrt((w**2 * spread**2).sum()) + rounding
            unsure = error + (error + self.deviation / math.sqrt(size)) * free
            numbers = shortest(base, error), shortest(1 / scale, error)
            yield self._by_numbers(*numbers, sign, last, unsure, free)

    def _by_numbers(
        self, base: float, factor: float, sign: int, last: int | None, error: float, free: bool = False
    ) -> FrequencyFit:
        """Write a base and a factor as the fields of a rope; pairs from `last` on do not rotate."""
        omegas = base**-self.exponents / factor
        rank = Rank.TWO_NUMBERS if free or last is not None or factor == 0.5 else Rank.ONE_NUMBER
        rule: Scaling | None = None
        notes: tuple[str, ...] = ()
        if last is not None:
            if omegas[last] * abs(self.series.at).max() < self.observation.tol:
                error = 1.0  # rounding hides whether the tail is zero
            omegas[last:] = 0.0
            rule = Proportional(2 * last / self.width, factor=factor)
        elif factor != 1.0:
            rule = Linear(factor)
            notes = (f"every frequency, or every position, is divided by {factor:g}",)
        fit = FrequencyFit({"base": base, "scaling": signed(rule, sign)}, sign * omegas, rank, error)
        if factor == 0.5 and last is None:
            return fit._replace(mistake="rotated twice: every angle is doubled")
        return fit._replace(notes=notes)

    def _stretched(self) -> Iterator[FrequencyFit]:
        """Yield Llama 3's rule and YaRN with usual contexts; factors are usual, or read off slow pairs."""
        omegas = abs(self.omegas)
        clear = omegas[omegas > 8 * self.deviation]
        for base in self.bases:
            ratios = base ** -self.exponents[: len(clear)] / clear
            factors = {round(2 * float(r)) / 2 for r in ratios[-3:] if 1.25 < r < 256}
            for factor in sorted({*_FACTORS, *factors}):
                for sign in self.signs:
                    yield from _usual_rules(base, self.width, factor, sign)


def signed(rule: Scaling | None, sign: int) -> Scaling | None:
    """Return the rule for frequencies of a sign."""
    return rule if sign > 0 else Reversed(rule)


def _both_signs(base: float, rule: Scaling | None, omegas: Floats) -> Iterator[FrequencyFit]:
    for sign in (1, -1):
        yield FrequencyFit({"base": base, "scaling": signed(rule, sign)}, sign * omegas)


def _float32(x: Floats) -> Floats:
    with np.errstate(over="ignore"):
        return np.clip(x.astype(np.float32), -3e38, 3e38).astype(np.float64)


@lru_cache(maxsize=4096)
def _float32_omegas(width: int, base: float, rule: Scaling | None) -> Floats:
    return np.array(RoPE(width, base=base, scaling=rule, angles="float32").frequencies)


@lru_cache(maxsize=64)
def _rules_of_contexts(base: float, width: int) -> list[tuple[Llama3 | YaRN, Floats]]:
    """Return rules with usual contexts, and the part of each frequency that the factor does not divide."""
    series = (base ** -(2 * np.arange(width // 2) / width)).tolist()
    rules: list[tuple[Llama3 | YaRN, Floats]] = []
    for context in _CONTEXTS:
        llama3 = Llama3(factor=_INFINITE, original_max_position_embeddings=context)
        for rule in (llama3, YaRN(_INFINITE, context), YaRN(_INFINITE, context, truncate=False)):
            rules.append((rule, np.array(rule._stretched(series, base, width))))
    return rules


def _usual_rules(base: float, width: int, factor: float, sign: int) -> Iterator[FrequencyFit]:
    """Yield fits by rules with usual contexts."""
    series = base ** -(2 * np.arange(width // 2) / width)
    for rule, kept in _rules_of_contexts(base, width):
        omegas = kept + (series - kept) / factor
        if omegas[-1] < 0.999 * series[-1]:  # else it is no other rope
            fields = {"base": base, "scaling": signed(replace(rule, factor=factor), sign)}
            yield FrequencyFit(fields, sign * omegas)
