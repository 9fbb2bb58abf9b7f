"""The search: try all explanations of one observation, in order."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import product
from typing import Any

import numpy as np

from rope_array._errors import SpecError
from rope_array._rope import RoPE
from rope_array._spec.axes import Axes
from rope_array._spec.frequencies import Scaling
from rope_array._spec.scaling import Linear, Reversed, YaRN

from ._axis_maps import axis_fits, estimate_axes, filled_map, maps_of_models
from ._frequency_fit import BASES, FrequencyFit, FrequencyFitter, first_fits, signed
from ._mistakes import QUANTITIES, ROUNDERS, base_of_linspace
from ._observation import Floats, Observation
from ._pair_hypotheses import (
    PAIRINGS,
    Amplitude,
    PhaseEstimates,
    mistaken_hypotheses,
    pair_hypotheses,
    shortest,
)
from ._reasons import notes_of, reason_of
from ._report import Diagnosis, RotationExplanation, written
from ._tried_positions import TriedPositions, intended_positions, mistaken_by_name, mistaken_positions
from ._verdict import Proposal, Rank, Trial, equally_good, judge, measure

_SMALL = 2.0**-6  # of noise, relative to a pair: arithmetic in bfloat16 has less
_VERIFIED = 16  # explanations of a sample, by all rows
_JUDGED = 40  # hypotheses of the pairs and frequencies at some positions


class Search:
    """Tries all explanations of one observation. Only the report depends on the caller's tolerance."""

    def __init__(self, observation: Observation, candidates: Sequence[RoPE | Scaling]):
        self.observation, self.sample = observation, observation.sample()
        self.head_dim = observation.x.shape[1]
        self.ropes = [c for c in candidates if isinstance(c, RoPE)]
        self.rules = [c for c in candidates if isinstance(c, Scaling)]
        self.bases = tuple(dict.fromkeys([*BASES, *(rope.base for rope in self.ropes)]))
        self.beyond_float64 = observation.reach >= 2.0**53  # the search's dtype merges positions
        self.trials: list[Trial] = []

    def run(self) -> Diagnosis:
        """Run the search and return the report."""
        if not self.observation.changed().any():
            return self._unrotated(1.0)
        intended = [*intended_positions(self.sample)]
        plain = next((positions for positions in intended if not positions.coordinates), None)
        for positions, rope in product(intended, self.ropes):
            self._try_both_directions(rope, positions, Rank.CANDIDATE)
        factor = self._factor()
        if factor > 0 and not self._fitting():
            return self._unrotated(factor)
        for positions in intended:
            self._rotations(positions)
        if plain and self.beyond_float64:
            self._ropes_of_models(plain)
        for positions in mistaken_positions(self.sample):
            if any(self._is_plain(t) for t in self._explained()):
                self._retry(positions)
            else:
                self._rotations(positions)
        if plain and not self._explained():
            self._mistakes(plain)
        if not self._fitting() and not math.isnan(factor):
            return self._unrotated(factor)
        if plain and not self._fitting() and not self._chosen():
            self._narrow_dtypes(plain)
        return self._report()

    def _fitting(self) -> list[Trial]:
        return [t for t in self.trials if t.fits]

    def _explained(self) -> list[Trial]:
        """Return the best explanations, if their residual is small: no mistake would leave less."""
        best = equally_good(self.trials, self.sample)
        return [t for t in best if t.fits or (t.proposal.rank < Rank.ESTIMATE and t.mean < _SMALL**2)]

    def _is_plain(self, trial: Trial) -> bool:
        """Return whether an explanation has no mistake, and no number that replaces a mistake."""
        factor = isinstance(trial.proposal.rope.scaling, Linear) and self.sample.num_positions == 1
        return not (trial.explanation.mistake or trial.proposal.rank == Rank.ESTIMATE or factor)

    def _try(self, proposal: Proposal) -> bool:
        """Try a proposal; return whether it fits."""
        trial = judge(proposal, self.sample)
        self.trials += [trial] if trial else []
        return trial is not None and trial.fits

    def _verified(self, trials: list[Trial]) -> list[Trial]:
        """Measure explanations of a sample by all rows."""
        if self.observation is self.sample:
            return trials
        return [measure(trial.proposal, self.observation) for trial in trials]

    # Rotations

    @cached_property
    def _phases(self) -> list[PhaseEstimates]:
        """The phases of all pairs that may rotate."""
        estimates = (PhaseEstimates(self.sample, pairs) for pairs in pair_hypotheses(self.sample))
        return [phases for phases in estimates if phases.plausible]

    def _rotations(self, positions: TriedPositions) -> None:
        """Rank the fits of all pairings and slices, and try the best."""
        ranked: list[tuple[int, FrequencyFit]] = []
        for phases in self._phases:
            if positions.coordinates:
                self._by_coordinates(phases, positions)
            elif phases.pairs.blocks == 1:
                ranked += enumerate(self._fits(phases, positions))
        ranked.sort(key=lambda place: (place[1].misfit, place[0]))
        slack = self.sample.tol + self.sample.angle_errors(self.sample.reach, 1.0)
        for fit in first_fits([fit for _, fit in ranked], _JUDGED):
            if fit.misfit <= 3 * ranked[0][1].misfit + slack:
                self._try_fit(fit, positions)

    def _fits(self, phases: PhaseEstimates, positions: TriedPositions) -> list[FrequencyFit]:
        series, free = phases.series(positions.rows(self.sample)), positions.free
        return FrequencyFitter(series, phases.pairs, self.sample, self.bases, self.rules, free).find()

    def _try_fit(self, fit: FrequencyFit, positions: TriedPositions) -> bool:
        """Try the rope of a fit; return whether it fits."""
        if fit.rank == Rank.ESTIMATE and self.beyond_float64:
            return False
        try:
            rope = _with_amplitude(RoPE(self.head_dim, **fit.fields), fit.amplitude)
        except SpecError:  # a base beyond the range of floats
            return False
        rule, uncertainty, rank = rope.scaling, fit.uncertainty, fit.rank
        if isinstance(rule, YaRN) and rope.attention_factor not in (None, 1.0, rule.amplitude):
            uncertainty = 1.0  # another factor has this amplitude
        if fit.offset:
            positions = positions.moved(fit.offset, self.sample.on_host)
        elif positions.mistake and rank == Rank.ONE_NUMBER:
            rank = Rank.TWO_NUMBERS  # the mistake counts as one fitted number
        if fit.mistake:
            positions = positions._replace(mistake=fit.mistake)
        notes = (*fit.notes, *_other_names(rope))
        return self._try(Proposal(rope, positions, rank, uncertainty, notes))

    def _by_coordinates(self, phases: PhaseEstimates, positions: TriedPositions) -> None:
        """Try the maps of models that agree with the estimated map; if none fits, the estimated map."""
        estimate = estimate_axes(phases, positions.rows(self.sample).astype(float), self.sample)
        pairs, fitting = phases.pairs, False
        for axes in maps_of_models(estimate.coordinates, positions.coordinates, pairs.blocks):
            fits = axis_fits(axes, estimate, pairs, self.bases)
            fitting |= any(self._try_fit(fit, positions) for fit in fits if fit.rank < Rank.ESTIMATE)
        if not fitting and pairs.blocks == 1:
            axes = Axes(tuple(filled_map(estimate.coordinates)), count=positions.coordinates)
            for fit in axis_fits(axes, estimate, pairs, self.bases):
                if self._try_fit(fit, positions):
                    break

    def _default_ropes(self) -> list[RoPE]:
        """Return the rope of each pairing; none if the head has an odd width."""
        return [RoPE(self.head_dim, pairing=pairing) for pairing in PAIRINGS if self.head_dim % 2 == 0]

    def _ropes_of_models(self, positions: TriedPositions) -> None:
        """Try the ropes of models without estimates: float64 does not distinguish such far positions."""
        for default, base, rule in product(self._default_ropes(), self.bases, (None, *self.rules)):
            try:
                rope = replace(default, base=base, scaling=rule)
            except SpecError:  # the rule has a table of another length
                continue
            self._try_both_directions(rope, positions, Rank.KNOWN)

    def _try_both_directions(self, rope: RoPE, positions: TriedPositions, rank: Rank) -> None:
        for tried in (rope, reversed_rope(rope)):
            self._try(Proposal(tried, positions, rank))

    def _retry(self, positions: TriedPositions) -> None:
        """Try the fitting explanations at other positions, which the data may not distinguish."""
        if positions.free:
            return
        for trial in _preferred([t for t in self._explained() if self._is_plain(t)]):
            if trial.proposal.rope.axes is None:
                self._try(replace(trial.proposal, positions=positions))

    # Mistakes

    def _mistakes(self, positions: TriedPositions) -> None:
        """Try tables that are too short, and other positions; then the formulas that are no rotation."""
        for tried in (*self._by_short_table(positions), *mistaken_by_name(positions, self.sample.on_host)):
            self._rotations(tried)
        if self._fitting():
            return
        for pairs in mistaken_hypotheses(self.sample):
            for fit in self._fits(PhaseEstimates(self.sample, pairs), positions)[:8]:
                rope = _with_amplitude(RoPE(self.head_dim, **fit.fields), fit.amplitude)
                wrong = positions._replace(mistake=pairs.mistake)
                self._try(Proposal(rope, wrong, fit.rank, mistaken=pairs))

    def _by_short_table(self, positions: TriedPositions) -> Iterator[TriedPositions]:
        """Yield positions of a table that is too short: past it no rotation, or its last row."""
        ends = (self._tail(phases, positions) for phases in self._phases if phases.pairs.blocks == 1)
        end = next((end for end in ends if end is not None), None)
        if end is not None:
            pos, code = positions.pos, "np.asarray(pos)" if self.sample.on_host else "pos"
            text = f"positions from {end:g} on are not rotated, as after the end of a table"
            start_code = f"np.where({code} < {end:g}, {code}, 0)"
            yield positions._replace(pos=np.where(pos < end, pos, 0), code=start_code, mistake=text)
            text = f"positions past {end:g} are rotated as {end:g}, as by the last row of a table"
            pos, code = np.minimum(pos, pos.dtype.type(end)), f"np.minimum({code}, {end:g})"
            yield positions._replace(pos=pos, code=code, mistake=text)

    def _tail(self, phases: PhaseEstimates, positions: TriedPositions) -> float | None:
        """Return the first position from which all rows have the same phases."""
        bounds = self._tail_bounds(phases, positions.rows(self.sample))
        if bounds is not None and self.sample is not self.observation:  # look between the sampled positions
            at = positions.rows(self.observation).astype(float)
            near = ((at >= bounds[0]) & (at <= bounds[1])) | (at == at.max())
            bounds = self._tail_bounds(PhaseEstimates(self.observation.part(near), phases.pairs), at[near])
        return bounds and bounds[1]

    def _tail_bounds(self, phases: PhaseEstimates, rows: Floats) -> tuple[float, float] | None:
        """Return the last position whose phases differ from the final phases, and the position after it.

        A tail of one position counts if it is not rotated.
        """
        at, phasors, weight, _ = phases.series(rows)
        off = np.where(weight > 0, abs(phasors - phasors[-1]), 0.0).max(1)
        differ = np.flatnonzero(off > 4 * self.sample.tol)
        unrotated = (abs(phasors[-1] - 1) <= 4 * self.sample.tol)[weight[-1] > 0].all()
        first = int(differ[-1]) + 1 if len(differ) else len(at)
        return (float(at[first - 1]), float(at[first])) if first < len(at) - (not unrotated) else None

    def _narrow_dtypes(self, positions: TriedPositions) -> None:
        """Try angles, positions and tables in 16 bits, whose errors grow with the position."""
        rows = np.unique(np.linspace(0, len(self.sample.x) - 1, 64).round().astype(int))
        x, y = self.sample.x[rows], self.sample.y[rows]
        at = positions.rows(self.sample)[rows, None].astype(float)
        ranked: list[Any] = []
        for pairs in (phases.pairs for phases in self._phases):
            if pairs.pairing != pairs.out_pairing or pairs.blocks > 1:
                continue
            for base, sign, rounding in product(self.bases, (1, -1), product(ROUNDERS, QUANTITIES)):
                omegas = sign * base**-pairs.exponents
                off = abs(pairs.forward(x, at, omegas, 1.0, *rounding) - y).mean()
                ranked.append((off, len(ranked), pairs, base, sign, rounding))
        for _, _, pairs, base, sign, rounding in sorted(ranked)[:8]:
            rope = RoPE(self.head_dim, base=base, scaling=signed(None, sign), **pairs.fields)
            text = f"{rounding[1]} {'is' if rounding[1] in ('cos', 'sin') else 'are'} {rounding[0]}"
            mistaken, wrong = replace(pairs, formula=text), positions._replace(mistake=text)
            self._try(Proposal(rope, wrong, mistaken=mistaken, rounding=rounding))

    # The result

    def _factor(self) -> float:
        """Return the factor if after is a multiple of before; else NaN."""
        x, y, tol = self.observation.x, self.observation.y, self.sample.tol
        size = float((x * y).sum() / max((x * x).sum(), 1e-300))
        factor = shortest(abs(size), tol / 8) * (1 if size >= 0 else -1)
        return factor if (abs(y - factor * x) <= tol / 4 * abs(factor * x)).all() else math.nan

    def _unrotated(self, times: float) -> Diagnosis:
        """Return the report of an output that is x times a factor."""
        rope, x, y = RoPE(self.head_dim, rotary_dim=0), self.observation.x, self.observation.y
        unrotated = RotationExplanation(rope, "x", 0.0, "nothing was rotated")
        notes = ("rotary_dim=0: a layer without position embedding",)
        if times != 1.0:
            off = abs(y - times * x) / np.maximum(abs(times * x), 1e-300)
            mistake = f"not rotated, scaled by {times:g}"
            unrotated = RotationExplanation(None, f"{times!r} * x", float(off.max()), mistake)
            notes = ("only a factor: no feature rotates with the position",)
        if self.sample.pos.any() and self.sample.x.any():
            return Diagnosis((replace(unrotated, notes=notes),))
        why = "all positions are 0, where no RoPE rotates" if self.sample.x.any() else "all of x is 0"
        if times > 0:
            self._try_default_ropes(Amplitude(times))
        return Diagnosis(
            (unrotated, *_distinct(self._fitting())),
            reason=f"{why}: any base, slice and pairing explains the output; give random features at "
            "positions with a step of 1 that reach far",
        )

    def _chosen(self) -> list[Trial]:
        """Return the explanations to report: the best, if all of them are within the tolerance."""
        best = equally_good(self.trials, self.sample)
        if self.observation is not self.sample:
            first = sorted(best, key=lambda t: (t.proposal.rank, *_order(t)))[:_VERIFIED]
            best = equally_good(self._verified(first), self.observation)
        limit = self.sample.tolerance
        best = [t for t in best if t.fits] or ([] if limit is None else best)
        if limit is not None and any(t.explanation.residual > limit for t in best):
            return []
        return _preferred(best)

    def _report(self) -> Diagnosis:
        chosen, good = self._chosen(), equally_good(self.trials, self.sample)
        kept = _distinct(chosen)
        if len(kept) == 1 and not kept[0].mistake:
            self._rule_out(chosen[0].proposal)
        elif not kept:
            self._try_default_ropes(Amplitude(1.0))
        rejected = [t for t in self.trials if not (kept and any(t is g for g in good))]
        first = [group[0] for group in _by_effect(sorted(rejected, key=lambda t: t.mean))]
        nearest = [t.explanation for t in self._verified(first[: 4 if kept else 3])]
        reason = reason_of(chosen, kept, nearest, self.observation)
        return Diagnosis(tuple(kept), tuple(nearest), reason, tuple(notes_of(chosen, kept, self.observation)))

    def _try_default_ropes(self, amplitude: Amplitude) -> None:
        for positions, rope in product(intended_positions(self.sample), self._default_ropes()):
            self._try(Proposal(_with_amplitude(rope, amplitude), positions))

    def _rule_out(self, proposal: Proposal) -> None:
        """Try the explanation with one field changed at a time, for `nearest`."""
        self.trials.clear()
        rope, positions = proposal.rope, proposal.positions
        pairing = PAIRINGS[rope.pairing == "interleaved"]
        self._try(Proposal(replace(rope, pairing=pairing, out_pairing=None), positions))
        self._try(Proposal(reversed_rope(rope), positions))
        if rope.inv_freq is None and rope.base != 10000.0:
            self._try(Proposal(replace(rope, base=10000.0), positions))


def reversed_rope(rope: RoPE) -> RoPE:
    """Return the rope that rotates by -φ and undoes the amplitude: the inverse, written as a rotation."""
    plain = rope.amplitude == 1.0 and (rope.scaling is None or rope.scaling.amplitude == 1.0)
    fields: dict[str, Any] = {
        "attention_factor": None if plain else 1 / rope.amplitude,
        "pairing": rope.out_pairing or rope.pairing,
        "out_pairing": rope.pairing,
    }
    if rope.inv_freq is not None:
        return replace(rope, inv_freq=tuple(-omega for omega in rope.inv_freq), **fields)
    rule = rope.scaling.rule if isinstance(rope.scaling, Reversed) else Reversed(rope.scaling)
    return replace(rope, scaling=rule, **fields)


def _preferred(best: list[Trial]) -> list[Trial]:
    """Return the simplest of equally good explanations: candidates, ropes of models, fits, estimates.

    Of estimates, return the narrowest slice: a wider slice only adds pairs of frequency 0.
    """
    rank = min((t.proposal.rank for t in best), default=Rank.KNOWN)
    simplest = sorted((t for t in best if t.proposal.rank == rank), key=_order)
    if rank < Rank.ESTIMATE:
        return simplest
    width = min(t.proposal.rope.rotary_dim for t in simplest)
    return [t for t in simplest if t.proposal.rope.rotary_dim == width]


def _order(trial: Trial) -> tuple[bool, bool, float]:
    return bool(trial.explanation.mistake), trial.proposal.rope.scaling is not None, trial.mean


def _by_effect(trials: list[Trial]) -> list[list[Trial]]:
    """Group trials whose explanations have one effect, whatever fields describe their frequencies."""
    groups: dict[Any, list[Trial]] = {}
    for trial in trials:
        rope, explanation = trial.proposal.rope, trial.explanation
        layout = rope.head_dim, rope.rotary_dim, rope.rotary_start, rope.pairing, rope.out_pairing
        drivers = rope.axes and (rope.axes.coordinates, rope.axes.blocks)
        numbers = float(f"{rope.amplitude:.6g}"), tuple(f"{w:.8g}" for w in rope.frequencies)
        mistake = explanation.mistake and (explanation.mistake, explanation.code)
        groups.setdefault((layout, drivers, numbers, explanation.seq_axis, mistake), []).append(trial)
    return [*groups.values()]


def _distinct(trials: list[Trial]) -> list[RotationExplanation]:
    """Return the first explanation of each effect, with a note on other names of its rule."""
    explanations = []
    for first, *equivalents in _by_effect(trials):
        rules = dict.fromkeys(t.proposal.rope.scaling for t in equivalents)
        names = [written(rule) for rule in rules if rule and rule != first.proposal.rope.scaling]
        note = (f"other rules give the same frequencies: {', '.join(names)}",) if names else ()
        explanations.append(replace(first.explanation, notes=first.explanation.notes + note))
    return explanations


def _other_names(rope: RoPE) -> Iterator[str]:
    """Yield notes with other names of a base: exponents over the head's width, or NTK scaling."""
    if rope.inv_freq or rope.scaling or rope.base in BASES or rope.axes:
        return
    d = rope.rotary_dim
    if base := base_of_linspace(rope.base, d // 2, BASES, 1e-4):
        yield f"base {rope.base:g} is base {base:g} with exponents linspace(0, 1, {d // 2}) instead of 2i/{d}"
    for base in BASES[:4]:
        over = base ** (d / rope.head_dim)
        if d < rope.head_dim and math.isclose(over, rope.base, rel_tol=2e-3):
            yield f"base {rope.base:g} over {d} is base {base:g} with exponents over head_dim"
        for factor in (2.0, 4.0, 8.0, 16.0):
            if d > 2 and math.isclose(base * factor ** (d / (d - 2)), rope.base, rel_tol=2e-3):
                yield f"base {rope.base:g} is base {base:g} with NTKAware(factor={factor:g})"


def _with_amplitude(rope: RoPE, size: Amplitude) -> RoPE:
    """Set attention_factor, unless the factor of the rule is as near."""
    near = math.isclose(rope.amplitude, size.value, rel_tol=max(1e-6, 2 * size.error))
    return rope if near else replace(rope, attention_factor=size.value)
