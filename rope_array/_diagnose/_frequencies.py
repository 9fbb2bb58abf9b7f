"""The frequencies behind the turns of a lane: the bases that models use, then an estimate and its rule."""

import math
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np

from rope_array._diagnose._case import Case, Complex, Floats
from rope_array._diagnose._rounding import CUTS
from rope_array._errors import SpecError
from rope_array._rope import RoPE
from rope_array._spec.frequencies import Scaling
from rope_array._spec.scaling import Linear, Llama3, Proportional, YaRN

# Bases of published models, the commonest first.
BASES = (1e4, 5e5, 1e6, 1e5, 1.5e5, 1.6e5, 100.0, 1e3, 2.5e4, 5e4, 2e6, 5e6, 8e6, 1e7, 1e8, 1e9, 1e11)
_CONTEXTS = (2048, 4096, 8192, 16384, 32768, 65536, 131072)
NO_RULE = (
    "the frequencies follow no rule that was tried: `rope.frequencies` has the estimates, of which the "
    "output may be off by twice the tolerance"
)


class Series(NamedTuple):
    """What a lane's turns are made of: one complex number for each position, of size 1."""

    at: Floats  # (K,), ascending
    turns: Complex  # (K, lanes)
    weight: Floats


class Found(NamedTuple):
    """Fields of a RoPE that may explain a series."""

    fields: dict[str, Any]
    omegas: Floats
    sign: int = 1
    offset: float = 0.0
    mistake: str = ""
    notes: tuple[str, ...] = ()
    estimate: bool = False  # frequencies are numbers, of which no rule is known


def _misfit(series: Series, omegas: Floats, case: Case, offset: float = 0.0) -> float:
    """How far lanes are from turning by these frequencies, in units of the tolerance (1 is its edge)."""
    chosen = np.unique(np.linspace(0, len(series.at) - 1, 96).round().astype(int))
    at, turns, weight = series.at[chosen] + offset, series.turns[chosen], series.weight[chosen]
    total = weight.sum()
    if not total:
        return 0.0

    def misfit(angles: Floats) -> float:
        off = abs(turns - np.exp(1j * angles)) / case.allowed(angles)
        return float(np.sqrt((weight * off**2).sum() / total))

    found = misfit(np.multiply.outer(at, omegas))
    if found > 1.0 and case.far:
        rounded = np.multiply.outer(at.astype(np.float32), omegas.astype(np.float32))
        return min(found, misfit(rounded.astype(np.float64)))
    return found


def amplitude_of(turns: Complex, weight: Floats, tol: float) -> float:
    """Return the factor on cos and sin, in as few digits as rounding leaves."""
    sizes = abs(turns[weight > 0])
    if not len(sizes):
        return 1.0
    size = float(np.median(sizes))
    return shortest(size, tol / 8) if size > 0 else 1.0


def shortest(size: float, close: float) -> float:
    """Return the number of fewest digits that is as close."""
    tried = (float(f"{size:.{n}g}") for n in range(1, 17))
    return next((v for v in tried if abs(v - size) <= (close + 2**-52) * size), size)


def anchored(series: Series) -> Series:
    """Add the position 0, where nothing turns."""
    if (series.at == 0).any():
        return series
    place = int(np.searchsorted(series.at, 0.0))
    ones = np.ones(series.turns.shape[1])
    return Series(
        np.insert(series.at, place, 0.0),
        np.insert(series.turns, place, ones, axis=0),
        np.insert(series.weight, place, ones * series.weight.max(initial=1.0), axis=0),
    )


def estimate_frequencies(series: Series) -> tuple[Floats, float]:
    """Estimate each lane's frequency from the turns between positions, and the step they show it modulo.

    Short differences give it roughly and without doubt, long ones sharpen it.
    """
    at, turns, weight = series
    count = len(at)
    lags = [2**n for n in range(count.bit_length()) if 2**n < count]
    ends = np.array([(j, j + lag) for lag in lags for j in range(count - lag)]).reshape(-1, 2)
    if not len(ends):
        return np.zeros(turns.shape[1]), 0.0
    gaps = at[ends[:, 1]] - at[ends[:, 0]]
    order = np.argsort(gaps, kind="stable")
    ends, gaps = ends[order], gaps[order]
    least, step = float(gaps[0]), _step(at, float(gaps[0]))
    between = turns[ends[:, 1]] * turns[ends[:, 0]].conj()
    weights = np.minimum(weight[ends[:, 1]], weight[ends[:, 0]])
    near = gaps <= least * (1 + 1e-9)
    rough = np.angle((weights[near] * between[near]).sum(0)) / least
    best, score = rough, np.full(len(rough), -1.0)
    ways = min(64, max(1, round(least / step)))
    for way in range(ways):
        start = rough + 2 * np.pi / least * (way - ways // 2)
        tried = _sharpened(start, gaps, between, weights)
        coherence = abs((weight * turns * np.exp(-1j * np.multiply.outer(at, tried))).sum(0))
        better = coherence > score * (1 + 1e-9)
        best, score = np.where(better, tried, best), np.where(better, coherence, score)
    return best, step


def _sharpened(omegas: Floats, gaps: Floats, between: Complex, weights: Floats) -> Floats:
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
    """Fit ω = s · base^(-exponent), s being 1 unless it is free; fast lanes are known best."""
    logs, weight = np.log(omegas), omegas**2
    if free and len(omegas) > 1:
        slope, log_s = np.polyfit(exponents, logs, 1, w=np.sqrt(weight))
        return float(np.exp(np.clip(-slope, -700, 700))), float(np.exp(log_s))
    scale = (weight * exponents**2).sum()
    slope = (weight * exponents * logs).sum() / scale if scale > 0 else 0.0
    return float(np.exp(np.clip(-slope, -700, 700))), 1.0


def _simplest(value: float, fits: Any) -> float | None:
    """Return the number of fewest digits near a value that fits."""
    for digits in range(1, 17):
        near = float(f"{value:.{digits}g}")
        if abs(near - value) < 0.1 * value and fits(near):
            return near
    return None


def _unfolded(omegas: Floats, step: float) -> Floats:
    """Resolve frequencies that are known modulo 2π over the step: slow lanes first, each from the last."""
    made, turn = omegas.copy(), 2 * np.pi / step
    for i in range(len(made) - 3, -1, -1):
        if made[i + 1] > 0 and made[i + 2] > 0:
            wanted = made[i + 1] ** 2 / made[i + 2]
            made[i] += turn * np.round((wanted - made[i]) / turn)
    return made


class Fit:
    """The frequencies of one series over a width: bases of models, then what the estimate says."""

    def __init__(
        self, series: Series, width: int, case: Case, bases: Iterable[float], rules: Any, tails: bool
    ):
        self.series, self.width, self.case = series, width, case
        self.bases, self.rules = tuple(bases), tuple(rules)
        self.exponents = 2 * np.arange(width // 2) / width
        self.tails = tails

    def found(self, free: bool) -> list[Found]:
        """Return what fits; `free` where the positions may be off by a constant."""
        if free:
            return [*self._shifted()]
        known = [*self._known()]
        if not known:
            return [*self._ruled(), *self._rounded()] or [*self._estimated()][:3]
        near = min(_misfit(self.series, f.sign * f.omegas, self.case) for f in known)
        # A base of nobody's may be near one that fits loosely.
        closer = self._estimated() if near > 0.05 else ()
        better = [f for f in closer if _misfit(self.series, f.sign * f.omegas, self.case) < 0.8 * near]
        return known + [f for f in better if not f.estimate]

    def fits(self, omegas: Floats, offset: float = 0.0) -> bool:
        return _misfit(self.series, omegas, self.case, offset) <= 1.0

    def _known(self) -> Iterator[Found]:
        for base in self.bases if self.width > 2 else self.bases[:1]:  # one pair turns by 1 in any base
            omegas = base**-self.exponents
            for sign in (1, -1):
                if self.fits(sign * omegas) or self._fits_rounded(sign, base, None):
                    yield Found({"base": base}, omegas, sign)

    def _ruled(self) -> Iterator[Found]:
        for rule in self.rules:
            for base in self.bases:
                yield from self._by_rule(base, rule)

    def _rounded(self) -> Iterator[Found]:
        """Frequencies of 16 bits, as of a module cast with its buffers."""
        for base in self.bases:
            for name, cut in CUTS:
                omegas = cut(base**-self.exponents)
                for sign in (1, -1):
                    if self.fits(sign * omegas):
                        given = {"inv_freq": tuple(map(float, omegas))}
                        text = f"frequencies are {name}: those of base {base:g}, rounded"
                        yield Found(given, omegas, sign, mistake=text)

    def _by_rule(self, base: float, rule: Scaling) -> Iterator[Found]:
        try:
            omegas = np.array(RoPE(self.width, base=base, scaling=rule).frequencies)
        except SpecError:
            return
        for sign in (1, -1):
            if self.fits(sign * omegas) or self._fits_rounded(sign, base, rule):
                yield Found({"base": base, "scaling": rule}, omegas, sign)

    def _fits_rounded(self, sign: int, base: float, rule: Scaling | None) -> bool:
        """Whether float32 frequencies fit, far enough that rounding them makes other angles."""
        if not self.case.far:
            return False
        rope = RoPE(self.width, base=base, scaling=rule, angles="float32")
        return self.fits(sign * np.array(rope.frequencies))

    def _shifted(self) -> Iterator[Found]:
        """Positions with a constant added: the phases at 0 are the frequencies times it."""
        for base in self._bases_seen():
            omegas = base**-self.exponents
            for sign in (1, -1) if len(self.series.at) > 1 else (1,):
                offset = self._offset(sign * omegas)
                if offset and self.fits(sign * omegas, offset):
                    yield Found({"base": base}, omegas, sign, offset)

    def _bases_seen(self) -> Iterator[float]:
        yield from self.bases
        omegas, _ = estimate_frequencies(self.series)
        seen = abs(omegas) > 1e-6
        if seen.sum() > 1 and np.ptp(self.series.at) > 0:
            yield float(f"{fit_line(abs(omegas[seen]), self.exponents[seen], False)[0]:.5g}")

    def _offset(self, omegas: Floats) -> float:
        at, turns, weight = self.series
        phases = (weight * turns * np.exp(-1j * np.multiply.outer(at, omegas))).sum(0)
        if abs(phases).sum() < 0.9 * weight.sum():
            return 0.0  # turns are not by these frequencies, wherever they begin
        tried = np.arange(-1024, 2049.0)
        match = (np.exp(-1j * np.multiply.outer(tried, omegas)) * phases).sum(1).real
        return float(tried[int(np.argmax(match))])

    def _estimated(self) -> Iterator[Found]:
        omegas, step = estimate_frequencies(anchored(self.series))
        if not step or not self.fits(omegas):
            return
        span = max(abs(self.series.at).max(), np.ptp(self.series.at))
        seen = abs(omegas) * span > self.case.tol
        for sign in self._signs(omegas, seen, step):
            turned = _unfolded(sign * omegas, step) if step > 2 else sign * omegas
            yield from self._named(turned, seen & (turned > 0), sign)
        notes: tuple[str, ...] = (NO_RULE,)
        if step > 1:
            notes += (f"positions have a step of {step:g}, so that frequencies show modulo 2π/{step:g}",)
        yield Found({"inv_freq": tuple(map(float, omegas))}, omegas, notes=notes, estimate=True)

    def _signs(self, omegas: Floats, seen: Any, step: float) -> list[int]:
        if step > 2:  # a fast lane may seem to turn backwards
            return [1, -1]
        return [1 if omegas[seen].sum() >= 0 else -1]

    def _named(self, omegas: Floats, seen: Any, sign: int) -> Iterator[Found]:
        """Name the rule that frequencies follow: the usual one, a zero tail, a factor, a known rule."""
        if not seen.any():
            return
        last = int(np.flatnonzero(seen)[-1]) + 1
        for zero in (False, True):
            for free in (False, True):
                # A zero tail of interleaved lanes is a narrower slice, which is tried too.
                if zero and (last == len(omegas) or not self.tails):
                    continue
                made = self._geometric(omegas, seen, sign, free, last if zero else None)
                if made:
                    yield made
                    return
        yield from self._stretched(omegas, seen, sign)

    def _geometric(self, omegas: Floats, seen: Any, sign: int, free: bool, last: int | None) -> Any:
        if seen.sum() < 1 + free:
            return None
        base, factor = fit_line(omegas[seen], self.exponents[seen], free)

        def series(base: float, factor: float) -> Floats:
            made = factor * base**-self.exponents
            return made if last is None else np.where(np.arange(len(made)) < last, made, 0.0)

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
        made: dict[str, Any] = {"base": base}
        notes: tuple[str, ...] = ()
        mistake = ""
        if last is not None:
            made["scaling"] = Proportional(2 * last / self.width, factor=1 / factor)
        elif factor == 2.0:
            made["scaling"] = Linear(0.5)
            mistake = "rotated twice: every angle is the double"
        elif factor != 1.0:
            made["scaling"] = Linear(1 / factor)
            notes = (f"every frequency, or every position, is divided by {1 / factor:g}",)
        return Found(made, omegas, sign, 0.0, mistake, notes)

    def _stretched(self, omegas: Floats, seen: Any, sign: int) -> Iterator[Found]:
        """Llama 3's rule and YaRN, of factors as the slow lanes show them and the usual contexts."""
        # The slowest lanes that show well: where few lanes turn, the first ones may be stretched already.
        at = abs(self.series.at).max()
        well = np.flatnonzero(seen & (abs(omegas) * at > 64 * self.case.tol))
        if not len(well) or well[0]:
            return
        for base in self.bases:
            ratios = base ** -self.exponents[well] / omegas[well]
            if abs(ratios[0] - 1) > 2e-2 or (np.diff(ratios) < -2e-2 * ratios[1:]).any():
                continue
            shown = {round(2 * float(r)) / 2 for r in ratios[-3:]} | {8.0, 32.0}
            for factor in sorted(f for f in shown if f > 1 and f > 0.95 * ratios[-1]):
                made = [f for rule in _usual_rules(factor) for f in self._by_rule(base, rule)]
                yield from _alike([f for f in made if f.sign == sign])


def _alike(found: list[Found]) -> Iterator[Found]:
    """Name the rules of the same frequencies in the notes of the first."""
    while found:
        first = found[0]
        same = [f for f in found if np.allclose(f.omegas, first.omegas, rtol=1e-12, atol=0.0)]
        found = [f for f in found if not any(f is s for s in same)]
        names = ", ".join(_short(f.fields["scaling"]) for f in same[1:])
        notes = (f"other rules give the same frequencies: {names}",) if names else ()
        yield first._replace(notes=notes)


def _short(rule: Any) -> str:
    exact = ", truncate=False" if isinstance(rule, YaRN) and not rule.truncate else ""
    return f"{type(rule).__name__}({rule.factor:g}, {rule.original_max_position_embeddings:g}{exact})"


def _usual_rules(factor: float) -> Iterator[Scaling]:
    for context in _CONTEXTS:
        yield Llama3(factor=factor, original_max_position_embeddings=context)
        yield YaRN(factor, context)
        yield YaRN(factor, context, truncate=False)
