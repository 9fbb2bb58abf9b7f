"""The search: try all explanations of one case, in order."""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any

import numpy as np

from rope_array._diagnose._axis_maps import axes_guesses, axis_map, filled_map
from rope_array._diagnose._case import Case, Floats, Indices
from rope_array._diagnose._frequency_fit import (
    BASES,
    NO_RULE,
    Amplitude,
    FrequencyFit,
    FrequencyFitter,
    Series,
    amplitude_of,
    fit_line,
    shortest,
)
from rope_array._diagnose._narrow_dtypes import narrow_tables
from rope_array._diagnose._pair_hypotheses import (
    PAIRINGS,
    PairHypothesis,
    PhaseEstimates,
    mistaken_hypotheses,
    pair_hypotheses,
)
from rope_array._diagnose._report import (
    CANDIDATE,
    ESTIMATE,
    KNOWN,
    ONE_NUMBER,
    TWO_NUMBERS,
    Diagnosis,
    Explanation,
    Trial,
    fields_of,
    notes_of,
    reason_of,
    rule_name,
)
from rope_array._diagnose._tried_positions import (
    Positions,
    intended_positions,
    mistaken_positions,
    moved_positions,
)
from rope_array._diagnose._verdict import equally_good, judge, measure, reversed_rope
from rope_array._errors import SpecError
from rope_array._rope import RoPE
from rope_array._spec.axes import Axes
from rope_array._spec.frequencies import Scaling
from rope_array._spec.scaling import Linear, Periods, Reversed, YaRN

_SMALL = 2.0**-6  # of noise, relative to a pair: arithmetic in bfloat16 has less
_VERIFIED = 16  # explanations of a sample, by all rows
_JUDGED = 40  # hypotheses of the pairs and frequencies at some positions


class Search:
    """Tries all explanations of one case. Only the report depends on the caller's tolerance."""

    def __init__(self, case: Case, candidates: tuple[Any, ...]):
        self.whole, self.case = case, case.sample()
        self.ropes = [c for c in candidates if isinstance(c, RoPE)]
        self.rules = [c for c in candidates if isinstance(c, Scaling)]
        self.bases = tuple(dict.fromkeys([*BASES, *(r.base for r in self.ropes)]))
        self.trials: list[Trial] = []
        self._phase_cache: dict[Any, PhaseEstimates] = {}

    def run(self) -> Diagnosis:
        """Run the search and return the report."""
        if not self.case.touched.any() and not self.whole.touched.any():
            return self._unrotated(1.0)
        intended = [*intended_positions(self.case)]
        for positions in intended:
            self._candidates(positions)
        factor = self._factor()
        if factor > 0 and not self._fitting():
            return self._unrotated(factor)
        for positions in intended:
            self._rotations(positions)
            if self.case.beyond_float64 and not positions.coordinates:
                self._whole_ropes(positions)
        for positions in mistaken_positions(self.case):
            if any(self._is_plain(t) for t in self._explained()):
                self._retry(positions)
            else:
                self._rotations(positions)
        if not self._explained():
            self._mistakes(intended)
        if not self._fitting() and not math.isnan(factor):
            return self._unrotated(factor)
        if not self._fitting() and not self._chosen():
            self._narrow_dtypes(intended)
        return self._report()

    def _fitting(self) -> list[Trial]:
        return [t for t in self.trials if t.fits]

    def _explained(self) -> list[Trial]:
        """Return the best explanations, if all that they leave is small: no mistake would leave less."""
        best = equally_good(self.trials, self.case)
        return [t for t in best if t.fits or (t.kind < ESTIMATE and t.mean < _SMALL**2)]

    def _is_plain(self, trial: Trial) -> bool:
        """Return whether an explanation has no mistake, and no number that replaces a mistake."""
        rope = trial.explanation.rope
        factor = rope is not None and isinstance(rope.scaling, Linear) and self.case.num_positions == 1
        return not (trial.explanation.mistake or trial.kind == ESTIMATE or factor)

    # Rotations

    def _candidates(self, positions: Positions) -> None:
        for rope in self.ropes:
            for tried in (rope, reversed_rope(rope)):
                self._judge(tried, positions, kind=CANDIDATE)

    def _rotations(self, positions: Positions) -> None:
        """Rank the fits of all pairings and slices, and judge the best."""
        ranked = []
        for pairs in pair_hypotheses(self.case, positions.coordinates):
            phases = self._phases(pairs)
            if not phases.plausible or not (pairs.num_pairs and phases.products.any()):
                continue
            if positions.coordinates:
                self._by_coordinates(pairs, phases, positions)
                continue
            series, size = self._series(phases, positions.rows)
            fits = self._fitter(pairs, series).find(positions.free)
            ranked += [(f.misfit, n, f, pairs, size) for n, f in enumerate(fits)]
        ranked.sort(key=lambda r: r[:2])
        limit = 3 * ranked[0][0] + self.case.tol if ranked else 0.0
        for misfit, _, found, pairs, size in ranked[:_JUDGED]:
            if misfit <= limit + self.case.angle_errors(self.case.reach, 1.0):
                self._keep(found, pairs, size, positions)

    def _whole_ropes(self, positions: Positions) -> None:
        """Try the ropes of models without estimates: float64 does not distinguish such far positions."""
        head_dim = self.case.x.shape[1]
        for pairing in PAIRINGS if not head_dim % 2 else ():
            for base, rule in product(self.bases, (None, *self.rules)):
                try:
                    rope = RoPE(head_dim, base=base, pairing=pairing, scaling=rule)
                except SpecError:  # the rule has a table of another length
                    continue
                for tried in (rope, reversed_rope(rope)):
                    self._judge(tried, positions)

    def _phases(self, pairs: PairHypothesis) -> PhaseEstimates:
        key = (pairs.pairing, pairs.out_pairing, pairs.start, pairs.width, pairs.blocks, pairs.mistake)
        if key not in self._phase_cache:
            self._phase_cache[key] = PhaseEstimates(self.case, pairs)
        return self._phase_cache[key]

    def _series(self, phases: PhaseEstimates, rows: Floats) -> tuple[Series, Amplitude]:
        at, inverse = np.unique(rows, return_inverse=True)
        phasors, weight = phases.at(inverse.ravel(), len(at))
        size = amplitude_of(phasors, weight)
        return Series(at, phasors / size.value, weight), size

    def _fitter(self, pairs: PairHypothesis, series: Series) -> FrequencyFitter:
        return FrequencyFitter(series, pairs, self.case, self.bases, self.rules)

    def _keep(
        self, found: FrequencyFit, pairs: PairHypothesis, size: Amplitude, positions: Positions
    ) -> None:
        if found.kind == ESTIMATE and self.case.beyond_float64:
            return  # float64 merges several positions
        fields = {**found.fields, **pairs.fields(self.case.x.shape[1])}
        try:
            rope = _with_amplitude(RoPE(self.case.x.shape[1], **fields), size)
        except SpecError:  # a base beyond the range of floats
            return
        notes = (*found.notes, *_other_names(rope))
        if isinstance(rope.scaling, YaRN) and rope.attention_factor not in (
            None,
            1.0,
            rope.scaling.amplitude,
        ):
            found = found._replace(uncertainty=1.0)  # another factor has this amplitude
        if found.offset:
            positions = moved_positions(positions, found.offset, self.case.on_host)
        kind = found.kind
        if positions.mistake and not found.offset and kind == ONE_NUMBER:
            kind = TWO_NUMBERS  # the positions are one
        if found.mistake:
            positions = positions._replace(mistake=found.mistake)
        self._judge(rope, positions, notes, kind=kind, uncertainty=found.uncertainty)

    def _by_coordinates(self, pairs: PairHypothesis, phases: PhaseEstimates, positions: Positions) -> None:
        every, inverse = np.unique(positions.rows, axis=0, return_inverse=True)
        size = amplitude_of(*phases.at(inverse.ravel(), len(every)))
        coordinates, omegas = axis_map(phases, positions.rows, size.value, self.case)
        kept = len(self._fitting())
        for axes, text in axes_guesses(coordinates, positions.coordinates, pairs.blocks):
            drivers = np.array([-1 if a is None else a for a in axes.coordinates])
            if len(drivers) == len(coordinates) and ((coordinates < 0) | (coordinates == drivers)).all():
                self._on_axes(axes, text, pairs, size, omegas, coordinates, positions)
        if len(self._fitting()) == kept and pairs.blocks == 1:
            axes = Axes(tuple(filled_map(coordinates)), count=positions.coordinates)
            self._on_axes(axes, f"ra.{axes!r}", pairs, size, omegas, coordinates, positions, last=True)

    def _on_axes(
        self, axes: Axes, text: str, pairs: PairHypothesis, size: Amplitude, by_each: Floats,
        coordinates: Indices, positions: Positions, last: bool = False,
    ) -> None:  # fmt: skip
        head_dim = self.case.x.shape[1]
        drivers = np.array([a or 0 for a in axes.coordinates])
        omegas = by_each[drivers, np.arange(len(coordinates))]
        exponents = np.array([2 * s[1] / s[0] if s else 0.0 for s in axes.sources(pairs.width)])
        known = np.isfinite(omegas)
        omegas = np.where(known, omegas, 0.0)
        sign = -1 if omegas[known].sum() < 0 else 1
        slack = self.case.tol / max(abs(positions.rows).max(), 1e-9)
        fields = {**pairs.fields(head_dim), "axes": axes}
        for rule, unit in ((None, 1.0), (Periods(), 2 * np.pi)):
            for base, kind in self._bases_near(sign * omegas / unit, exponents, known):
                wanted = unit * base**-exponents
                if np.allclose(sign * omegas[known], wanted[known], rtol=0.02, atol=slack):
                    rule_signed = rule if sign > 0 else Reversed(rule)
                    rope = RoPE(head_dim, base=base, scaling=rule_signed, **fields)
                    if self._judge(_with_amplitude(rope, size), positions, axes_text=text, kind=kind):
                        return
        if last and (coordinates >= 0).any():
            rope = RoPE(head_dim, inv_freq=tuple(map(float, omegas)), **fields)
            self._judge(_with_amplitude(rope, size), positions, (NO_RULE,), text, ESTIMATE)

    def _bases_near(self, omegas: Floats, exponents: Floats, known: Any) -> list[tuple[float, int]]:
        """Return the bases of models, then the estimate and its rounded forms."""
        found = dict.fromkeys(self.bases, KNOWN)
        fast = known & (omegas > 0)
        own = fit_line(omegas[fast], exponents[fast], False)[0] if fast.any() else 0.0
        for digits in (2, 3, 5, 9) if 1e-30 < own < 1e30 else ():
            found.setdefault(float(f"{own:.{digits}g}"), ONE_NUMBER)
        return [*found.items()]

    def _retry(self, positions: Positions) -> None:
        """Try the fitting explanations at other positions, which the data may not distinguish."""
        if positions.code == "0" or positions.free:
            return
        for trial in _preferred([t for t in self._explained() if self._is_plain(t)]):
            found = trial.explanation
            if found.rope and found.rope.axes is None:
                self._judge(found.rope, positions, found.notes, "", trial.kind, trial.uncertainty)

    def _judge(self, rope: RoPE, positions: Positions, *args: Any, **kwargs: Any) -> bool:
        """Try a rope; return whether it fits."""
        trial = judge(self.case, rope, positions, *args, **kwargs)
        if trial is None:
            return False
        again = partial(self._judge_all, trial.explanation.rope, positions, *args, **kwargs)
        self.trials.append(trial._replace(again=again))
        return trial.fits

    def _judge_all(self, *args: Any, **kwargs: Any) -> Trial | None:
        return judge(self.whole, *args, **{**kwargs, "chosen": True})

    def _verified(self, trials: list[Trial]) -> list[Trial]:
        """Judge explanations of a sample by all rows."""
        if self.whole is self.case:
            return trials
        found = [trial.again() for trial in trials if trial.again]
        return [trial for trial in found if trial]

    # Mistakes

    def _mistakes(self, intended: list[Positions]) -> None:
        for positions in intended:
            if not positions.coordinates:
                for tried in self._by_short_table(positions):
                    self._rotations(tried)
        if not self._fitting():
            for positions in intended:
                if not positions.coordinates:
                    self._no_rotation(positions)

    def _by_short_table(self, positions: Positions) -> Iterator[Positions]:
        """Yield positions of a table that is too short: past it no rotation, or its last row."""
        pos, code = positions.pos, "np.asarray(pos)" if self.case.on_host else "pos"
        end = self._first_unrotated(positions)
        if end is not None:
            text = f"positions from {end:g} on are not rotated, as after the end of a table"
            yield positions._replace(
                rows=np.where(positions.rows < end, positions.rows, 0.0), pos=np.where(pos < end, pos, 0),
                code=f"np.where({code} < {end:g}, {code}, 0)", mistake=text,
            )  # fmt: skip
        for pairs in pair_hypotheses(self.case, 0):
            last = self._last_row(pairs, positions)
            if last is not None:
                text = f"positions past {last:g} are rotated as {last:g}, as by the last row of a table"
                yield positions._replace(
                    rows=np.minimum(positions.rows, last), pos=np.minimum(pos, pos.dtype.type(last)),
                    code=f"np.minimum({code}, {last:g})", mistake=text,
                )  # fmt: skip
                return

    def _first_unrotated(self, positions: Positions) -> float | None:
        """Return the position from which on no row has changed."""
        case, at = self.whole, self._at(positions)
        moved = (abs(case.y - case.x) > case.tol / 4 * abs(case.x) + 1e-300).any(1)
        still = ~moved & (at != 0)
        end = float(at[still].min()) if still.any() else 0.0
        return end if still.any() and (still == (at >= end)).all() else None

    def _at(self, positions: Positions) -> Floats:
        """Return the positions of all rows."""
        at = self.whole.spread(positions.pos, positions.seq_axis)
        assert at is not None
        return at.astype(float)

    def _last_row(self, pairs: PairHypothesis, positions: Positions) -> float | None:
        """Return the first position of the tail that rotates alike; search between sampled positions too."""
        phases, rows = self._phases(pairs), positions.rows
        if not phases.plausible:
            return None
        ends = self._change(phases, rows)
        if self.whole is self.case or ends is None:
            return ends and ends[1]
        at, every = self._at(positions), np.arange(self.whole.before[..., 0].size)[self.whole.rows]
        for _ in range(4):  # each time at 64 of the positions between
            between = np.unique(at[(at >= ends[0]) & (at <= ends[1])])
            if len(between) == 2:
                return ends[1]
            looked_at = [*between[:: -(-len(between) // 64)], ends[1], at.max()]
            near = np.flatnonzero(np.isin(at, looked_at))
            ends = self._change(PhaseEstimates(self.whole.part(every[near]), pairs), at[near])
            if ends is None:
                break
        return None

    def _change(self, phases: PhaseEstimates, rows: Floats) -> tuple[float, float] | None:
        """Return the last position whose phases differ from the final phases, and the position after it."""
        (at, phasors, weight), _ = self._series(phases, rows)
        off = np.where(weight > 0, abs(phasors - phasors[-1]), 0.0).max(1) if len(at) > 2 else np.ones(1)
        differ = np.flatnonzero(off > 4 * self.case.tol)
        first = int(differ[-1]) + 1 if len(differ) else len(at)
        return (float(at[first - 1]), float(at[first])) if first < len(at) - 1 else None

    def _no_rotation(self, positions: Positions) -> None:
        for pairs in mistaken_hypotheses(self.case):
            phases = self._phases(pairs)
            series, size = self._series(phases, positions.rows)
            for found in self._fitter(pairs, series).find(False)[:8]:
                tables = partial(_tables, found.omegas)
                self._judge_tables(pairs, found.fields, size, positions, tables, found.kind)

    def _judge_tables(
        self, pairs: PairHypothesis, fields: dict[str, Any], size: Amplitude, positions: Positions,
        tables: Callable[[Floats], tuple[Floats, Floats]], kind: int = KNOWN,
    ) -> None:  # fmt: skip
        """Try the formula of a mistake, which no rope computes; `tables` returns cos and sin at positions."""
        head_dim = self.case.x.shape[1]
        rope = _with_amplitude(RoPE(head_dim, **fields, **pairs.fields(head_dim)), size)
        code = f"{pairs.formula}; φ of ra.RoPE({', '.join([str(head_dim), *fields_of(rope)])})"
        found = Explanation(rope, code, 0.0, pairs.mistake, self.case.seq_axis)

        def measured(case: Case) -> Trial:
            at = case.spread(positions.pos, positions.seq_axis)
            assert at is not None
            cos, sin = tables(at[:, None].astype(float))
            rows = pairs.forward(case.x, size.value * cos, size.value * sin)
            # Without a rotation the pair after may be small: errors are relative to the pair before.
            return measure(case, found, rows, positions, kind, least=size.value * pairs.sizes(case.x))

        self.trials.append(measured(self.case)._replace(again=lambda: measured(self.whole)))

    def _narrow_dtypes(self, intended: list[Positions]) -> None:
        """Try angles, positions and tables in 16 bits, whose errors grow with the position."""
        case = self.case
        some = np.unique(np.linspace(0, len(case.x) - 1, 64).round().astype(int))
        ranked: list[Any] = []
        for positions in intended:
            for pairs in pair_hypotheses(case, 0) if not positions.coordinates else ():
                if pairs.pairing != pairs.out_pairing or not self._phases(pairs).plausible:
                    continue
                for base, sign in product(self.bases, (1, -1)):
                    omegas = base ** -(2 * np.arange(pairs.num_pairs) / pairs.width)
                    for text, (cos, sin) in narrow_tables(positions.rows[some, None], omegas):
                        off = abs(pairs.forward(case.x[some], cos, sign * sin) - case.y[some])
                        ranked.append((float(off.mean()), len(ranked), text, pairs, base, sign, positions))
        for _, _, text, pairs, base, sign, positions in sorted(ranked, key=lambda r: r[:2])[:8]:
            omegas = base ** -(2 * np.arange(pairs.num_pairs) / pairs.width)
            tables = partial(_narrow_tables, text, sign, omegas)
            wrong = replace(pairs, mistake=text, formula=text)
            fields: dict[str, Any] = {"base": base} if sign > 0 else {"base": base, "scaling": Reversed()}
            self._judge_tables(wrong, fields, Amplitude(1.0), positions, tables)

    # The result

    def _factor(self) -> float:
        """Return the factor if after is a multiple of before; else NaN."""
        x, y, tol = self.whole.x, self.whole.y, self.case.tol
        size = float((x * y).sum() / max((x * x).sum(), 1e-300))
        near = shortest(abs(size), tol / 8)
        found = near if size >= 0 else -near
        return found if (abs(y - found * x) <= tol / 4 * abs(found * x)).all() else math.nan

    def _unrotated(self, times: float) -> Diagnosis:
        head_dim = self.case.x.shape[1]
        nothing = Explanation(RoPE(head_dim, rotary_dim=0), "x", 0.0, "nothing was rotated")
        notes = ("rotary_dim=0: a layer without position embedding",)
        if times != 1.0:
            x, y = self.whole.x, self.whole.y
            off = abs(y - times * x) / np.maximum(abs(times * x), 1e-300)
            text = f"not rotated, scaled by {times:g}"
            nothing = Explanation(None, f"{times!r} * x", float(off.max()), text)
            notes = ("only a factor: no feature rotates with the position",)
        if self.case.pos.any() and self.case.x.any():
            return Diagnosis((replace(nothing, notes=notes),))
        why = "all positions are 0, where no RoPE rotates" if self.case.x.any() else "all of x is 0"
        for positions in intended_positions(self.case):
            if not positions.coordinates and times > 0:
                for pairing in PAIRINGS if not head_dim % 2 else ():
                    self._judge(_with_amplitude(RoPE(head_dim, pairing=pairing), Amplitude(times)), positions)
        return Diagnosis(
            (nothing, *_distinct([t.explanation for t in self._fitting()])),
            reason=f"{why}: any base, slice and pairing explains the output; give random features at "
            "positions with a step of 1 that reach far",
        )

    def _chosen(self) -> list[Trial]:
        """Return the explanations to report: the best, if all of them are within the tolerance."""
        best = equally_good(self.trials, self.case)
        if self.whole is not self.case:
            first = sorted(best, key=lambda t: (t.kind, *_order(t)))[:_VERIFIED]
            best = equally_good(self._verified(first), self.whole)
        limit = self.case.tolerance
        best = [t for t in best if t.fits] or ([] if limit is None else best)
        if limit is not None and any(t.explanation.residual > limit for t in best):
            return []
        return _preferred(best)

    def _report(self) -> Diagnosis:
        chosen, good = self._chosen(), equally_good(self.trials, self.case)
        kept = _distinct([t.explanation for t in chosen])
        if len(kept) == 1 and not kept[0].mistake:
            self._rule_out(kept[0])
        elif not kept:
            self._judge_defaults()
        others = [
            t for t in sorted(self.trials, key=lambda t: t.mean) if not (kept and any(t is g for g in good))
        ]
        others = self._verified(_first_of_each(others)[: 4 if kept else 3])
        nearest = _distinct([t.explanation for t in others])
        reason = reason_of(chosen, kept, nearest, self.whole)
        return Diagnosis(tuple(kept), tuple(nearest), reason, tuple(notes_of(chosen, kept, self.whole)))

    def _judge_defaults(self) -> None:
        """Judge default ropes, for `nearest`."""
        head_dim = self.case.x.shape[1]
        for positions in intended_positions(self.case):
            for pairing in PAIRINGS if not head_dim % 2 else ():
                self._judge(RoPE(head_dim, pairing=pairing), positions)

    def _rule_out(self, found: Explanation) -> None:
        """Judge the explanation with one field changed at a time, for `nearest`."""
        rope = found.rope
        if rope is None:
            return
        self.trials.clear()
        intended = [p for p in intended_positions(self.case) if bool(p.coordinates) == bool(rope.axes)]
        other = PAIRINGS[rope.pairing == "interleaved"]
        for positions in intended[:1]:
            self._judge(replace(rope, pairing=other, out_pairing=None), positions, (), found._axes)
            self._judge(reversed_rope(rope), positions, (), found._axes)
            if rope.inv_freq is None and rope.base != 10000.0:
                self._judge(replace(rope, base=10000.0), positions, (), found._axes)


def _tables(omegas: Floats, at: Floats) -> tuple[Floats, Floats]:
    return np.cos(at * omegas), np.sin(at * omegas)


def _narrow_tables(text: str, sign: int, omegas: Floats, at: Floats) -> tuple[Floats, Floats]:
    cos, sin = dict(narrow_tables(at, omegas))[text]
    return cos, sign * sin


def _preferred(best: list[Trial]) -> list[Trial]:
    """Return the simplest of equally good explanations: candidates, ropes of models, fits, estimates."""
    least = min((t.kind for t in best), default=KNOWN)
    best = sorted((t for t in best if t.kind <= least), key=_order)
    return _narrowest(best) if least == ESTIMATE else best


def _order(trial: Trial) -> tuple[bool, bool, float]:
    found = trial.explanation
    return bool(found.mistake), bool(found.rope and found.rope.scaling), trial.mean


def _distinct(found: list[Explanation]) -> list[Explanation]:
    """Return the first explanation of each effect, with a note on other names of its rule."""
    groups: dict[Any, list[Explanation]] = {}
    for e in found:
        groups.setdefault(_identity(e), []).append(e)
    return [_with_names(first, rest) for first, *rest in groups.values()]


def _first_of_each(trials: list[Trial]) -> list[Trial]:
    found: dict[Any, Trial] = {}
    for t in trials:
        found.setdefault(_identity(t.explanation), t)
    return list(found.values())


def _identity(e: Explanation) -> Any:
    return _effect(e.rope), e.seq_axis, e.mistake, e.code if e.mistake else ""


def _with_names(found: Explanation, others: list[Explanation]) -> Explanation:
    rules = dict.fromkeys(e.rope.scaling for e in others if e.rope and found.rope)
    names = [rule_name(rule) for rule in rules if rule and found.rope and rule != found.rope.scaling]
    note = (f"other rules give the same frequencies: {', '.join(names)}",) if names else ()
    return replace(found, notes=found.notes + note)


def _narrowest(found: list[Trial]) -> list[Trial]:
    """Keep estimates of the narrowest slice: a wider slice only adds pairs of frequency 0."""
    widths = [t.explanation.rope.rotary_dim if t.explanation.rope else 0 for t in found]
    return [t for t, width in zip(found, widths, strict=True) if width == min(widths)]


def _effect(rope: RoPE | None) -> Any:
    """Return a key of the rope's rotation, whatever fields describe its frequencies."""
    if rope is None:
        return None
    layout = rope.head_dim, rope.rotary_dim, rope.rotary_start, rope.pairing, rope.out_pairing
    drivers = rope.axes and (rope.axes.coordinates, rope.axes.blocks)
    return (*layout, drivers, float(f"{rope.amplitude:.6g}"), tuple(f"{w:.8g}" for w in rope.frequencies))


def _other_names(rope: RoPE) -> tuple[str, ...]:
    """Return notes with other names of a base: exponents over the head's width, or NTK scaling."""
    if rope.inv_freq or rope.scaling or rope.base in BASES or rope.axes:
        return ()
    d, found = rope.rotary_dim, []
    for base in BASES[:4]:
        over = base ** (d / rope.head_dim)
        if d < rope.head_dim and math.isclose(over, rope.base, rel_tol=2e-3):
            found.append(f"base {rope.base:g} over {d} is base {base:g} with exponents over head_dim")
        for factor in (2.0, 4.0, 8.0, 16.0):
            if d > 2 and math.isclose(base * factor ** (d / (d - 2)), rope.base, rel_tol=2e-3):
                found.append(f"base {rope.base:g} is base {base:g} with NTKAware(factor={factor:g})")
    return tuple(found)


def _with_amplitude(rope: RoPE, size: Amplitude) -> RoPE:
    """Set attention_factor, unless the factor of the rule is as near."""
    near = math.isclose(rope.amplitude, size.value, rel_tol=max(1e-6, 2 * size.error))
    return rope if near else replace(rope, attention_factor=size.value)
