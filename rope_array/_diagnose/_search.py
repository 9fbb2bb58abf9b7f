"""The search: all that is tried on one case, in order."""

import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np

from rope_array._diagnose._case import Case, Floats, Indices
from rope_array._diagnose._frequencies import (
    BASES,
    NO_RULE,
    Fit,
    Found,
    Series,
    amplitude_of,
    fit_line,
    shortest,
)
from rope_array._diagnose._lane_maps import axes_guesses, filled_lanes, lane_map
from rope_array._diagnose._mixes import PAIRINGS, Mix, Sums, features_of_pairs, mistaken_mixes, mixes
from rope_array._diagnose._positions import Positions, given_positions, moved_positions, other_positions
from rope_array._diagnose._report import Diagnosis, Explanation, fields_of, notes_of, reason_of
from rope_array._diagnose._rounding import narrow_tables
from rope_array._diagnose._verdict import judge
from rope_array._errors import SpecError
from rope_array._rope import RoPE
from rope_array._spec.axes import Axes
from rope_array._spec.frequencies import Scaling
from rope_array._spec.scaling import Linear, Periods


class Search:
    """All that is tried on one case, in order; explanations are kept, and what does not fit too."""

    def __init__(self, case: Case, candidates: tuple[Any, ...]):
        self.case = case
        self.ropes = [c for c in candidates if isinstance(c, RoPE)]
        self.rules = [c for c in candidates if isinstance(c, Scaling)]
        self.bases = [*dict.fromkeys([*BASES, *(r.base for r in self.ropes)])]
        self.kept: list[Explanation] = []
        self.others: list[Explanation] = []
        self._kept_sums: dict[Any, Sums] = {}

    def run(self) -> Diagnosis:
        """Try everything and report."""
        if not self.case.touched.any():
            return self._unrotated(1.0)
        given = [*given_positions(self.case)]
        for positions in given:
            self._candidates(positions)
        times = self._times()
        if times > 0 and not self.kept:
            return self._unrotated(times)
        for positions in given:
            self._rotations(positions)
            if self.case.countless and not positions.coordinates:
                self._far(positions)
        for positions in other_positions(self.case):
            if any(_usual(e) for e in self.kept):
                self._again(positions)
            else:
                self._rotations(positions)
        if not self.kept:
            self._mistakes(given)
        if not self.kept and not math.isnan(times):
            return self._unrotated(times)
        return self._told()

    # tries

    def _candidates(self, positions: Positions) -> None:
        for rope in self.ropes:
            for inverse in (False, True):
                self._judge(rope, positions, inverse, candidate=True)

    def _rotations(self, positions: Positions) -> None:
        for mix in mixes(self.case, positions.coordinates):
            sums = self._sums(mix)
            if not sums.plausible or not (mix.lanes and sums.products.any()):
                continue
            if positions.coordinates:
                self._by_coordinates(mix, sums, positions)
            else:
                self._by_position(mix, sums, positions)

    def _far(self, positions: Positions) -> None:
        """Try ropes of models whole: in float64, as the sums are, such positions are not told apart."""
        head_dim = self.case.x.shape[1]
        for pairing in PAIRINGS if not head_dim % 2 else ():
            for base, rule in product(self.bases, (None, *self.rules)):
                try:
                    rope = RoPE(head_dim, base=base, pairing=pairing, scaling=rule)
                except SpecError:  # a rule with a table of another length
                    continue
                for inverse in (False, True):
                    self._judge(rope, positions, inverse)

    def _sums(self, mix: Mix) -> Sums:
        key = (mix.pairing, mix.out_pairing, mix.start, mix.width, mix.blocks, mix.mistake)
        if key not in self._kept_sums:
            self._kept_sums[key] = Sums(self.case, mix)
        return self._kept_sums[key]

    def _series(self, sums: Sums, rows: Floats) -> tuple[Series, float]:
        at, inverse = np.unique(rows, return_inverse=True)
        turns, weight = sums.at(inverse.ravel(), len(at))
        size = amplitude_of(turns, weight, self.case.tol)
        return Series(at, turns / size, weight), size

    def _by_position(self, mix: Mix, sums: Sums, positions: Positions) -> None:
        series, size = self._series(sums, positions.rows)
        fit = self._fit(mix, series)
        for found in fit.found(positions.free):
            self._keep(found, mix, size, positions)

    def _fit(self, mix: Mix, series: Series) -> Fit:
        tails = "half" in (mix.pairing, mix.out_pairing)
        return Fit(series, mix.width, self.case, self.bases, self.rules, tails)

    def _keep(self, found: Found, mix: Mix, size: float, positions: Positions) -> None:
        if found.estimate and self.case.countless:
            return  # several positions would turn as one
        given = {**found.fields, **mix.fields(self.case.x.shape[1])}
        rope = _with_amplitude(RoPE(self.case.x.shape[1], **given), size)
        notes = (*found.notes, *_names_of(rope))
        if found.offset:
            positions = moved_positions(positions, found.offset, self.case.on_host)
        if found.mistake:
            positions = positions._replace(mistake=found.mistake)
        self._judge(rope, positions, found.sign < 0, notes, estimate=found.estimate)

    def _by_coordinates(self, mix: Mix, sums: Sums, positions: Positions) -> None:
        every, inverse = np.unique(positions.rows, axis=0, return_inverse=True)
        size = amplitude_of(*sums.at(inverse.ravel(), len(every)), self.case.tol)
        lanes, omegas = lane_map(sums, positions.rows, size, self.case)
        kept = len(self.kept)
        for axes, text in axes_guesses(lanes, positions.coordinates, mix.blocks):
            drivers = np.array([-1 if a is None else a for a in axes.coordinates])
            if len(drivers) == len(lanes) and ((lanes < 0) | (lanes == drivers)).all():
                self._on_axes(axes, text, mix, size, omegas, lanes, positions)
        if len(self.kept) == kept and mix.blocks == 1:
            axes = Axes(tuple(filled_lanes(lanes)), count=positions.coordinates)
            self._on_axes(axes, f"ra.{axes!r}", mix, size, omegas, lanes, positions, last=True)

    def _on_axes(
        self, axes: Axes, text: str, mix: Mix, size: float, by_each: Floats, lanes: Indices,
        positions: Positions, last: bool = False,
    ) -> None:  # fmt: skip
        head_dim = self.case.x.shape[1]
        drivers = np.array([a or 0 for a in axes.coordinates])
        omegas = by_each[drivers, np.arange(len(lanes))]
        exponents = np.array([2 * s[1] / s[0] if s else 0.0 for s in axes.sources(mix.width)])
        seen = np.isfinite(omegas)
        omegas = np.where(seen, omegas, 0.0)
        sign = -1 if omegas[seen].sum() < 0 else 1
        slack = self.case.tol / max(abs(positions.rows).max(), 1e-9)
        given = {**mix.fields(head_dim), "axes": axes}
        for rule, unit in ((None, 1.0), (Periods(), 2 * np.pi)):
            for base in self._bases_near(sign * omegas / unit, exponents, seen):
                wanted = unit * base**-exponents
                if np.allclose(sign * omegas[seen], wanted[seen], rtol=0.02, atol=slack):
                    rope = RoPE(head_dim, base=base, scaling=rule, **given)
                    if self._judge(_with_amplitude(rope, size), positions, sign < 0, axes_text=text):
                        return
        if last and (lanes >= 0).any():
            rope = RoPE(head_dim, inv_freq=tuple(map(float, omegas)), **given)
            self._judge(_with_amplitude(rope, size), positions, False, (NO_RULE,), text, estimate=True)

    def _bases_near(self, omegas: Floats, exponents: Floats, seen: Any) -> list[float]:
        """Bases of models, then the estimate and its rounded forms."""
        fast = seen & (omegas > 0)
        if not fast.any():
            return self.bases
        own = fit_line(omegas[fast], exponents[fast], False)[0]
        rounded = [float(f"{own:.{n}g}") for n in (2, 3, 5, 9)] if 1e-30 < own < 1e30 else []
        return [*dict.fromkeys([*self.bases, *rounded])]

    def _again(self, positions: Positions) -> None:
        """Try what explains the output at other positions, which the data may not tell apart."""
        if positions.code == "0" or positions.free:
            return
        for found in [e for e in self.kept if _usual(e) and e.rope]:
            assert found.rope is not None
            if found.rope.axes is None:
                self._judge(found.rope, positions, found.inverse, found.notes, candidate=True)

    def _judge(
        self, rope: RoPE, positions: Positions, inverse: bool, notes: tuple[str, ...] = (),
        axes_text: str = "", **flags: bool,
    ) -> bool:  # fmt: skip
        """Keep the explanation where it fits, and where not too; return whether it fits."""
        verdict = judge(self.case, rope, positions, inverse, notes, axes_text, **flags)
        if verdict is None:
            return False
        explanation, fits = verdict
        (self.kept if fits else self.others).append(explanation)
        return fits

    # mistakes

    def _mistakes(self, given: list[Positions]) -> None:
        for positions in given:
            if not positions.coordinates:
                for tried in self._tables_too_short(positions):
                    self._rotations(tried)
        if self.kept:
            return
        for positions in given:
            if not positions.coordinates:
                self._no_rotations(positions)
                self._narrow(positions)

    def _tables_too_short(self, positions: Positions) -> Iterator[Positions]:
        """Positions past the end of a table: not rotated, or rotated as its last one."""
        case, pos = self.case, positions.pos
        code = "np.asarray(pos)" if case.on_host else "pos"
        moved = (abs(case.y - case.x) > case.tol / 4 * abs(case.x) + 1e-300).any(1)
        still = ~moved & (positions.rows != 0)
        if still.any():
            end = float(positions.rows[still].min())
            if (still == (positions.rows >= end)).all():
                text = f"positions from {end:g} on are not rotated, as past the end of a table"
                yield positions._replace(
                    rows=np.where(still, 0.0, positions.rows), pos=np.where(pos < end, pos, 0),
                    code=f"np.where({code} < {end:g}, {code}, 0)", mistake=text,
                )  # fmt: skip
        for mix in mixes(case, 0):
            last = self._end(mix, positions)
            if last is not None:
                text = f"positions past {last:g} are rotated as {last:g}, as by a table that ends there"
                yield positions._replace(
                    rows=np.minimum(positions.rows, last), pos=np.minimum(pos, pos.dtype.type(last)),
                    code=f"np.minimum({code}, {last:g})", mistake=text,
                )  # fmt: skip
                return

    def _end(self, mix: Mix, positions: Positions) -> float | None:
        sums = self._sums(mix)
        if not sums.plausible:
            return None
        (at, turns, weight), _ = self._series(sums, positions.rows)
        off = np.where(weight > 0, abs(turns - turns[-1]), 0.0).max(1) if len(at) > 2 else np.ones(1)
        differ = np.flatnonzero(off > 4 * self.case.tol)
        first = int(differ[-1]) + 1 if len(differ) else len(at)
        return float(at[first]) if first < len(at) - 1 else None

    def _no_rotations(self, positions: Positions) -> None:
        for mix in mistaken_mixes(self.case):
            sums = self._sums(mix)
            series, size = self._series(sums, positions.rows)
            for found in self._fit(mix, series).found(False)[:1]:
                angles = positions.rows[:, None] * found.omegas * found.sign
                self._tried_mix(mix, found, size, positions, np.cos(angles), np.sin(angles))

    def _tried_mix(
        self, mix: Mix, found: Found, size: float, positions: Positions, cos: Floats, sin: Floats
    ) -> None:
        rows = mix.forward(self.case.x, size * cos, size * sin)
        # Errors are relative to the pair before: what is no rotation may make a pair small.
        norm = size * np.hypot(
            *(self.case.x[:, f] for f in features_of_pairs(mix.pairing, mix.start, mix.width))
        )
        size_of = np.maximum(abs(self.case.x), 1e-150)
        for feature in features_of_pairs(mix.out_pairing, mix.start, mix.width):
            size_of[:, feature] = np.maximum(norm, 1e-150)
        angles = abs(positions.rows[:, None] * found.omegas).max(1, keepdims=True)
        allowed = self.case.allowed(angles)
        relative = abs(rows - self.case.y) / size_of
        head_dim = self.case.x.shape[1]
        rope = _with_amplitude(RoPE(head_dim, **found.fields, **mix.fields(head_dim)), size)
        made_of = f"ra.RoPE({', '.join([str(head_dim), *fields_of(rope)])})"
        made = Explanation(
            rope, f"{mix.formula}; φ of {made_of}", float(relative.max()), mix.mistake, found.sign < 0,
            self.case.seq_axis, found.notes, float(np.sqrt((relative**2).mean())),
        )  # fmt: skip
        (self.kept if (relative <= allowed).all() else self.others).append(made)

    def _narrow(self, positions: Positions) -> None:
        """Angles, positions or tables in 16 bits: errors that grow with the position."""
        if self.kept:
            return
        some = np.unique(np.linspace(0, len(self.case.x) - 1, 64).round().astype(int))
        for mix in mixes(self.case, 0):
            if mix.pairing != mix.out_pairing or not self._sums(mix).plausible:
                continue
            for base in self.bases:
                for sign in (1, -1):
                    self._narrow_base(mix, base, sign, positions, some)

    def _narrow_base(self, mix: Mix, base: float, sign: int, positions: Positions, some: Indices) -> None:
        case = self.case
        omegas = base ** -(2 * np.arange(mix.lanes) / mix.width)
        for text, (cos, sin) in narrow_tables(positions.rows[some, None], omegas):
            off = abs(mix.forward(case.x[some], cos, sign * sin) - case.y[some])
            if np.median(off) > 8 * case.tol * np.median(abs(case.y[some])):
                continue
            full = dict(narrow_tables(positions.rows[:, None], omegas))[text]
            wrong = replace(mix, mistake=text, formula=text)
            self._tried_mix(wrong, Found({"base": base}, 0 * omegas, sign), 1.0, positions, full[0],
                            sign * full[1])  # fmt: skip

    # the result

    def _times(self) -> float:
        """Return the number that after is before times; NaN where there is none."""
        x, y, tol = self.case.x, self.case.y, self.case.tol
        size = float((x * y).sum() / max((x * x).sum(), 1e-300))
        near = shortest(abs(size), tol / 8)
        found = near if size >= 0 else -near
        return found if (abs(y - found * x) <= tol / 4 * abs(found * x)).all() else math.nan

    def _unrotated(self, times: float) -> Diagnosis:
        head_dim = self.case.x.shape[1]
        nothing = Explanation(RoPE(head_dim, rotary_dim=0), "x", 0.0, "nothing was rotated")
        notes = ("rotary_dim=0: a layer without position embedding",)
        if times != 1.0:
            off = abs(self.case.y - times * self.case.x) / np.maximum(abs(times * self.case.x), 1e-300)
            text = f"not rotated, scaled by {times:g}"
            nothing = Explanation(None, f"{times!r} * x", float(off.max()), text)
            notes = ("only a factor: no feature turns with the position",)
        if self.case.pos.any() and self.case.x.any():
            return Diagnosis((replace(nothing, notes=notes),))
        why = "all positions are 0, where no RoPE turns anything" if self.case.x.any() else "all of x is 0"
        for positions in given_positions(self.case):
            if not positions.coordinates:
                for pairing in PAIRINGS:
                    if not head_dim % 2 and times > 0:
                        self._judge(_with_amplitude(RoPE(head_dim, pairing=pairing), times), positions, False)
        return Diagnosis(
            (nothing, *self.kept),
            reason=f"{why}: any base, slice and pairing explains the output; give random features at "
            "positions with a step of 1 that reach far",
        )

    def _told(self) -> Diagnosis:
        kept = _distinct(
            sorted(self.kept, key=lambda e: (bool(e.mistake), e._estimate, not e._given, e._rms))
        )
        if kept:
            # Estimates also fit what rounding made of the frequencies.
            least = min(e._rms for e in [e for e in kept if not e._estimate] or kept)
            kept = [e for e in kept if e._rms <= 2 * least + self.case.tol / 20]
        kept = [e for e in kept if not e._estimate] or _narrowest(kept)
        if not all(e.mistake for e in kept):  # two oddities at once explain nothing that one does not
            kept = [e for e in kept if not (e.mistake and e.rope and isinstance(e.rope.scaling, Linear))]
        self._rule_out(kept)
        if not kept:
            self._usual_ones()
        nearest = _distinct(sorted(self.others, key=lambda e: e._rms))[: 4 if kept else 3]
        reason, notes = reason_of(kept, self.case), tuple(notes_of(kept, self.case))
        return Diagnosis(tuple(kept), tuple(nearest), reason, notes)

    def _usual_ones(self) -> None:
        """Say how far off the usual ropes are, where nothing was near."""
        head_dim, kept = self.case.x.shape[1], list(self.kept)
        for positions in given_positions(self.case):
            for pairing in PAIRINGS if not head_dim % 2 else ():
                self._judge(RoPE(head_dim, pairing=pairing), positions, False)
        self.kept = kept

    def _rule_out(self, kept: list[Explanation]) -> None:
        """Change one field at a time of what explains the output, to say how far off that would be."""
        if len(kept) != 1 or kept[0].mistake or not kept[0].rope:
            return
        [found] = kept
        rope = found.rope
        assert rope is not None
        self.others.clear()
        given = [p for p in given_positions(self.case) if bool(p.coordinates) == bool(rope.axes)]
        other = PAIRINGS[rope.pairing == "interleaved"]
        kept_before = list(self.kept)
        more: dict[str, Any] = {"candidate": True, "axes_text": found._axes}
        for positions in given[:1]:
            self._judge(replace(rope, pairing=other, out_pairing=None), positions, found.inverse, **more)
            self._judge(rope, positions, not found.inverse, **more)
            if rope.inv_freq is None and rope.base != 10000.0:
                self._judge(replace(rope, base=10000.0), positions, found.inverse, **more)
        self.kept = kept_before


def _usual(found: Explanation) -> bool:
    """Whether it is a rotation as models have it, beside which an odd position needs no looking for."""
    return not (found.mistake or found._estimate or (found.rope and isinstance(found.rope.scaling, Linear)))


def _distinct(found: list[Explanation]) -> list[Explanation]:
    """Leave out what says the same: the first of each rope and way to apply it."""
    seen, made = set(), []
    for e in found:
        key = (_sense(e.rope), e.inverse, e.seq_axis, e.mistake, e.code if e.mistake else "")
        if key not in seen:
            seen.add(key)
            made.append(e)
    return made


def _narrowest(found: list[Explanation]) -> list[Explanation]:
    """Keep estimates of the narrowest slice: a wider one has lanes at 0 beside the same ones."""
    least = min((e.rope.rotary_dim for e in found if e.rope), default=0)
    return [e for e in found if e.rope is None or e.rope.rotary_dim == least]


def _sense(rope: RoPE | None) -> Any:
    """Say what a rope does, however its frequencies are written."""
    if rope is None:
        return None
    layout = rope.head_dim, rope.rotary_dim, rope.rotary_start, rope.pairing, rope.out_pairing
    drivers = rope.axes and (rope.axes.coordinates, rope.axes.blocks)
    return (*layout, drivers, float(f"{rope.amplitude:.6g}"), tuple(f"{w:.8g}" for w in rope.frequencies))


def _names_of(rope: RoPE) -> tuple[str, ...]:
    """Say what else a base is called: an exponent over the head's width, a base that NTK scaling made."""
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


def _with_amplitude(rope: RoPE, size: float) -> RoPE:
    return rope if math.isclose(rope.amplitude, size, rel_tol=1e-6) else replace(rope, attention_factor=size)
