"""Find the frequencies of estimated phases: by the bases of published models, then by estimate and rule."""

import math
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np

from rope_array._diagnose._case import Case, Complex, Floats
from rope_array._diagnose._narrow_dtypes import ROUNDERS
from rope_array._errors import SpecError
from rope_array._rope import RoPE
from rope_array._spec.frequencies import Scaling
from rope_array._spec.scaling import Linear, Llama3, Proportional, YaRN

# Bases of published models, the commonest first.
BASES = (1e4, 5e5, 1e6, 1e5, 1.5e5, 1.6e5, 100.0, 1e3, 2.5e4, 5e4, 2e6, 5e6, 8e6, 1e7, 1e8, 1e9, 1e11)
_CONTEXTS = (2048, 4096, 8192, 16384, 32768, 65536, 131072)
NO_RULE = (
    "the frequencies follow no rule that was tried: `rope.frequencies` has estimates, with an error of up to "
    "twice the tolerance in the output"
)


class Series(NamedTuple):
    """The phases of all pairs: cos + i sin for each position and pair."""

    at: Floats  # (K,), ascending
    phasors: Complex  # (K, pairs)
    weight: Floats


class FrequencyFit(NamedTuple):
    """Fields of a RoPE that may explain a series."""

    fields: dict[str, Any]
    omegas: Floats
    sign: int = 1
    offset: float = 0.0
    mistake: str = ""
    notes: tuple[str, ...] = ()
    estimate: bool = False  # the frequencies follow no known rule


def _misfit(series: Series, omegas: Floats, case: Case, offset: float = 0.0) -> float:
    """Return the distance of the phases from these frequencies, in units of the tolerance."""
    chosen = np.unique(np.linspace(0, len(series.at) - 1, 96).round().astype(int))
    at, phasors, weight = series.at[chosen] + offset, series.phasors[chosen], series.weight[chosen]
    total = weight.sum()
    if not total:
        return 0.0

    def misfit(angles: Floats) -> float:
        off = abs(phasors - np.exp(1j * angles)) / case.allowed(angles)
        return float(np.sqrt((weight * off**2).sum() / total))

    found = misfit(np.multiply.outer(at, omegas))
    if found > 1.0 and case.float32_differs:
        rounded = np.multiply.outer(at.astype(np.float32), omegas.astype(np.float32))
        return min(found, misfit(rounded.astype(np.float64)))
    return found


def amplitude_of(phasors: Complex, weight: Floats, tol: float) -> float:
    """Return the factor on cos and sin, with the fewest digits within the tolerance."""
    sizes = abs(phasors[weight > 0])
    if not len(sizes):
        return 1.0
    size = float(np.median(sizes))
    return shortest(size, tol / 8) if size > 0 else 1.0


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


def estimate_frequencies(series: Series) -> tuple[Floats, float]:
    """Estimate each pair's frequency, modulo 2π over the step of the positions; return the step too.

    Short differences of positions give a rough, unambiguous estimate; long differences refine it.
    """
    at, phasors, weight = series
    count = len(at)
    lags = [2**n for n in range(count.bit_length()) if 2**n < count]
    ends = np.array([(j, j + lag) for lag in lags for j in range(count - lag)]).reshape(-1, 2)
    if not len(ends):
        return np.zeros(phasors.shape[1]), 0.0
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
    return best, step


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


def _simplest(value: float, fits: Any) -> float | None:
    """Return the number with the fewest digits near a value that fits."""
    for digits in range(1, 17):
        near = float(f"{value:.{digits}g}")
        if abs(near - value) < 0.1 * value and fits(near):
            return near
    return None


def _unwrapped(omegas: Floats, step: float) -> Floats:
    """Resolve frequencies known modulo 2π over the step: from slow to fast, as a geometric series."""
    unwrapped, period = omegas.copy(), 2 * np.pi / step
    for i in range(len(unwrapped) - 3, -1, -1):
        if unwrapped[i + 1] > 0 and unwrapped[i + 2] > 0:
            wanted = unwrapped[i + 1] ** 2 / unwrapped[i + 2]
            unwrapped[i] += period * np.round((wanted - unwrapped[i]) / period)
    return unwrapped


class FrequencyFitter:
    """Finds the frequencies of one series over a width: bases of models, then estimates."""

    def __init__(
        self, series: Series, width: int, case: Case, bases: Iterable[float], rules: Any, tails: bool
    ):
        self.series, self.width, self.case = series, width, case
        self.bases, self.rules = tuple(bases), tuple(rules)
        self.exponents = 2 * np.arange(width // 2) / width
        self.tails = tails

    def find(self, free: bool) -> list[FrequencyFit]:
        """Return the fits; with `free`, positions may differ by a constant."""
        if free:
            return [*self._by_shifted_positions()]
        known = [*self._by_known_base()]
        if not known:
            return [*self._by_candidate_rule(), *self._by_16_bit_base()] or [*self._by_estimate()][:3]
        near = min(_misfit(self.series, f.sign * f.omegas, self.case) for f in known)
        # An unpublished base may fit better than a published base near it.
        closer = self._by_estimate() if near > 0.05 else ()
        better = [f for f in closer if _misfit(self.series, f.sign * f.omegas, self.case) < 0.8 * near]
        return known + [f for f in better if not f.estimate]

    def fits(self, omegas: Floats, offset: float = 0.0) -> bool:
        return _misfit(self.series, omegas, self.case, offset) <= 1.0

    def _by_known_base(self) -> Iterator[FrequencyFit]:
        # The frequency of one pair is 1 in any base.
        for base in self.bases if self.width > 2 else self.bases[:1]:
            omegas = base**-self.exponents
            for sign in (1, -1):
                if self.fits(sign * omegas) or self._fits_rounded(sign, base, None):
                    yield FrequencyFit({"base": base}, omegas, sign)

    def _by_candidate_rule(self) -> Iterator[FrequencyFit]:
        for rule in self.rules:
            for base in self.bases:
                yield from self._by_rule(base, rule)

    def _by_16_bit_base(self) -> Iterator[FrequencyFit]:
        """Yield 16-bit frequencies, of a module that was cast with its buffers."""
        for base in self.bases:
            for name, rounded in ROUNDERS:
                omegas = rounded(base**-self.exponents)
                for sign in (1, -1):
                    if self.fits(sign * omegas):
                        fields = {"inv_freq": tuple(map(float, omegas))}
                        text = f"frequencies are {name}: base {base:g}, rounded"
                        yield FrequencyFit(fields, omegas, sign, mistake=text)

    def _by_rule(self, base: float, rule: Scaling) -> Iterator[FrequencyFit]:
        try:
            omegas = np.array(RoPE(self.width, base=base, scaling=rule).frequencies)
        except SpecError:
            return
        for sign in (1, -1):
            if self.fits(sign * omegas) or self._fits_rounded(sign, base, rule):
                yield FrequencyFit({"base": base, "scaling": rule}, omegas, sign)

    def _fits_rounded(self, sign: int, base: float, rule: Scaling | None) -> bool:
        """Return whether float32 frequencies fit, at positions where their rounding changes angles."""
        if not self.case.float32_differs:
            return False
        rope = RoPE(self.width, base=base, scaling=rule, angles="float32")
        return self.fits(sign * np.array(rope.frequencies))

    def _by_shifted_positions(self) -> Iterator[FrequencyFit]:
        """Yield fits with a constant added to positions: the phase at 0 is the constant times ω."""
        for base in self._plausible_bases():
            omegas = base**-self.exponents
            for sign in (1, -1) if len(self.series.at) > 1 else (1,):
                offset = self._offset(sign * omegas)
                if offset and self.fits(sign * omegas, offset):
                    yield FrequencyFit({"base": base}, omegas, sign, offset)

    def _plausible_bases(self) -> Iterator[float]:
        yield from self.bases
        omegas, _ = estimate_frequencies(self.series)
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

    def _by_estimate(self) -> Iterator[FrequencyFit]:
        omegas, step = estimate_frequencies(with_origin(self.series))
        if not step or not self.fits(omegas):
            return
        span = max(abs(self.series.at).max(), np.ptp(self.series.at))
        known = abs(omegas) * span > self.case.tol
        for sign in self._signs(omegas, known, step):
            unwrapped = _unwrapped(sign * omegas, step) if step > 2 else sign * omegas
            yield from self._named(unwrapped, known & (unwrapped > 0), sign)
        notes: tuple[str, ...] = (NO_RULE,)
        if step > 1:
            notes += (f"positions have a step of {step:g}, so that frequencies are known modulo 2π/{step:g}",)
        yield FrequencyFit({"inv_freq": tuple(map(float, omegas))}, omegas, notes=notes, estimate=True)

    def _signs(self, omegas: Floats, known: Any, step: float) -> list[int]:
        if step > 2:  # aliasing may flip the sign of fast pairs
            return [1, -1]
        return [1 if omegas[known].sum() >= 0 else -1]

    def _named(self, omegas: Floats, known: Any, sign: int) -> Iterator[FrequencyFit]:
        """Yield fits by rule: default, a zero tail, a factor, then Llama 3 and YaRN."""
        if not known.any():
            return
        last = int(np.flatnonzero(known)[-1]) + 1
        for zero in (False, True):
            for free in (False, True):
                # A zero tail of interleaved pairs is a narrower slice, another hypothesis.
                if zero and (last == len(omegas) or not self.tails):
                    continue
                fit = self._geometric(omegas, known, sign, free, last if zero else None)
                if fit:
                    yield fit
                    return
        yield from self._stretched(omegas, known, sign)

    def _geometric(self, omegas: Floats, known: Any, sign: int, free: bool, last: int | None) -> Any:
        if known.sum() < 1 + free:
            return None
        base, factor = fit_line(omegas[known], self.exponents[known], free)

        def series(base: float, factor: float) -> Floats:
            full = factor * base**-self.exponents
            return full if last is None else np.where(np.arange(len(full)) < last, full, 0.0)

        def good(base: float, factor: float) -> bool:
            limit = 0.01 + 1.2 * _misfit(self.series, sign * series(*raw), self.case)
            return bool(_misfit(self.series, sign * series(base, factor), self.case) <= min(limit, 1.0))

        raw = base, factor
        if not (1e-300 < base < 1e300) or _misfit(self.series, sign * series(*raw), self.case) > 1.0:
            return None
        if free:
            factor = 1 / (_simplest(1 / factor, lambda f: good(base, 1 / f)) or 1 / factor)
        base = _simplest(base, lambda b: good(b, factor)) or base
        return self._written(base, factor, series(base, factor), sign, last)

    def _written(self, base: float, factor: float, omegas: Floats, sign: int, last: int | None) -> Any:
        fields: dict[str, Any] = {"base": base}
        notes: tuple[str, ...] = ()
        mistake = ""
        if last is not None:
            fields["scaling"] = Proportional(2 * last / self.width, factor=1 / factor)
        elif factor == 2.0:
            fields["scaling"] = Linear(0.5)
            mistake = "rotated twice: every angle is doubled"
        elif factor != 1.0:
            fields["scaling"] = Linear(1 / factor)
            notes = (f"every frequency, or every position, is divided by {1 / factor:g}",)
        return FrequencyFit(fields, omegas, sign, 0.0, mistake, notes)

    def _stretched(self, omegas: Floats, known: Any, sign: int) -> Iterator[FrequencyFit]:
        """Yield fits of Llama 3's rule and YaRN, with factors from the slow pairs and usual contexts."""
        # Pairs with a precise frequency. Without the first pair the base is unknown, as others may be scaled.
        at = abs(self.series.at).max()
        well = np.flatnonzero(known & (abs(omegas) * at > 64 * self.case.tol))
        if not len(well) or well[0]:
            return
        for base in self.bases:
            ratios = base ** -self.exponents[well] / omegas[well]
            if abs(ratios[0] - 1) > 2e-2 or (np.diff(ratios) < -2e-2 * ratios[1:]).any():
                continue
            factors = {round(2 * float(r)) / 2 for r in ratios[-3:]} | {8.0, 32.0}
            for factor in sorted(f for f in factors if f > 1 and f > 0.95 * ratios[-1]):
                fits = [f for rule in _usual_rules(factor) for f in self._by_rule(base, rule)]
                yield from _merged([f for f in fits if f.sign == sign])


def _merged(found: list[FrequencyFit]) -> Iterator[FrequencyFit]:
    """Merge fits with the same frequencies: the first, with the other rules in its notes."""
    while found:
        first = found[0]
        same = [f for f in found if np.allclose(f.omegas, first.omegas, rtol=1e-12, atol=0.0)]
        found = [f for f in found if not any(f is s for s in same)]
        names = ", ".join(_rule_name(f.fields["scaling"]) for f in same[1:])
        notes = (f"other rules give the same frequencies: {names}",) if names else ()
        yield first._replace(notes=notes)


def _rule_name(rule: Any) -> str:
    exact = ", truncate=False" if isinstance(rule, YaRN) and not rule.truncate else ""
    return f"{type(rule).__name__}({rule.factor:g}, {rule.original_max_position_embeddings:g}{exact})"


def _usual_rules(factor: float) -> Iterator[Scaling]:
    for context in _CONTEXTS:
        yield Llama3(factor=factor, original_max_position_embeddings=context)
        yield YaRN(factor, context)
        yield YaRN(factor, context, truncate=False)
