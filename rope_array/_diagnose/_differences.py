"""Compare an output with the expected rope: find the field that differs, by changing one at a time."""

import math
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import fields, replace
from itertools import permutations, product
from typing import Any

import numpy as np

from rope_array._errors import ShapeError, SpecError
from rope_array._rope import RoPE
from rope_array._spec.axes import Axes
from rope_array._spec.scaling import Linear, NTKAware

from ._frequency_fit import BASES, estimate_frequencies, fit_line, with_origin
from ._mistakes import QUANTITIES, ROUNDERS
from ._observation import Observation
from ._pair_hypotheses import PAIRINGS, PhaseEstimates, permuted, rotated_pairs, shortest, slices
from ._report import written
from ._search import Search
from ._tried_positions import TriedPositions, intended_positions, mistaken_by_name, mistaken_positions
from ._verdict import Proposal, equally_good, measure, positions_of_pairs

_SCALES = tuple(2.0**n for n in range(-6, 7))  # of the numbers of a rule
_ROWS = 192, 64  # that rank the changes: wrong rows, and right rows
_OFFSETS = 512  # of each of two steps
_ARITHMETIC = 2.0**-6  # the largest error of 16-bit arithmetic, relative to a pair
_PORTED = "weights of the other pairing"
# A kind of difference, its text, and the rotation that has it.
Change = tuple[str, str, Proposal]


def find_differences(observation: Observation, rope: RoPE, rotated: bool = False) -> list[tuple[str, str]]:
    """Return the kinds and texts of the differences from the rope's output; none if it explains each row.

    With `rotated`, the rope has rotated the rows before; they are rotated back.
    """
    rope = replace(rope, max_position=None)  # the rows may be beyond it
    if rotated:
        at = _positions_for(rope, observation).rows(observation)
        x = np.asarray(rope.apply(observation.x[:, None], at[:, None], inverse=True)[:, 0])
        observation = replace(observation, x=x)
    comparison = _Comparison(observation, rope)
    if comparison.trial.fits:
        return []
    trials = comparison.by_one_change, comparison.by_index, comparison.by_end, comparison.by_search
    return next(filter(None, (trial() for trial in trials)))


class _Comparison:
    """An output, and the expected rope, which does not explain it."""

    def __init__(self, observation: Observation, rope: RoPE, positions: TriedPositions | None = None):
        self.observation, self.rope = observation, rope
        self.positions = positions or _positions_for(rope, observation)
        self.pairs = rotated_pairs(
            rope.pairing, rope.out_pairing or rope.pairing, rope.rotary_start, rope.rotary_dim,
            rope.axes.blocks if rope.axes else 1,
        )  # fmt: skip
        self.trial = measure(Proposal(rope, self.positions), observation)
        if not self.trial.fits:  # far out, by the numbers of Hugging Face's code
            rounded = measure(Proposal(replace(rope, angles="float32"), self.positions), observation)
            self.trial = min(self.trial, rounded, key=lambda trial: float(trial.rows.max()))
        self.wrong = self.trial.rows > 1.0

    def by_one_change(self) -> list[tuple[str, str]]:
        """Return the likeliest change that explains every row, and others that the rows do not rule out."""
        rows = [
            mask[np.linspace(0, len(mask) - 1, min(len(mask), count)).astype(int)]
            for mask, count in zip(map(np.flatnonzero, (self.wrong, ~self.wrong)), _ROWS, strict=True)
        ]
        sample = self.observation.part(np.sort(np.concatenate(rows)))
        pairs = [(change, measure(change[2], sample)) for change in self.changes(sample)]
        good = {id(trial) for trial in equally_good([t for _, t in pairs if t.fits], sample)}
        texts: dict[str, str] = {}
        for kind, text, proposal in [change for change, trial in pairs if id(trial) in good][:16]:
            if kind not in texts and measure(proposal, self.observation).fits:
                texts[kind] = text
        first = next(iter(texts), "")
        if first in ("not rotated", "direction"):  # positions of 0 and of -pos are the same
            return [(first, texts[first])]
        return [(first, "; or, alike in these rows, ".join(texts.values()))] if texts else []

    def by_index(self) -> list[tuple[str, str]]:
        """Return the difference of each row of the batch, or of each head, if each has one."""
        shape = self.observation.shape
        for axis in {*range(len(shape) - 1)} - {self.observation.seq_axis % len(shape)}:
            place = np.unravel_index(self.observation.rows, shape[:-1])[axis]
            indices = np.unique(place[self.wrong])[:64]
            texts: dict[tuple[str, str], list[int]] = {}
            for index in indices.tolist() if shape[axis] > 1 else ():
                rows = self.observation.part(place == index)
                for change in _Comparison(rows, self.rope, self.positions).by_one_change():
                    texts.setdefault(change, []).append(index)
            if texts and sum(map(len, texts.values())) == len(indices):
                return [
                    (kind, f"index {', '.join(map(str, at))} of axis {axis}: {text}")
                    for (kind, text), at in texts.items()
                ]
        return []

    def by_end(self) -> list[tuple[str, str]]:
        """Return the end of a table, if rows are right up to a position, and far off from there on."""
        (end, last), error = self._end(), self.trial.rows[self.wrong].min() * self.observation.tol
        text = f"errors above {error:.1g} of a pair from position {end:g} on, and none before"
        return [("table too short", text)] if 0 < last < end and error > 0.25 else []

    def by_search(self) -> list[tuple[str, str]]:
        """Return the fields in which the explanation of `diagnose` differs."""
        diagnosis = Search(replace(self.observation, tolerance=None), [self.rope]).run()
        for found in diagnosis.explanations[:1]:
            if found.rope is None or found.mistake:
                kinds = (k for k in ("positions", "rotated twice", "not rotated") if k[:8] in found.mistake)
                return [(next(kinds, "unexplained"), f"{found.mistake}: {found.code}")]
            if not self.rope.rotary_dim:
                return [("rotated part", f"rotated by {found.rope!r}, expected no rotation")]
            has, wanted = _described(found.rope), _described(self.rope)
            if math.isclose(found.rope.amplitude, self.rope.amplitude, rel_tol=self.observation.tol):
                has["factor"] = wanted["factor"]
            implied = ("base", "scaling") if found.rope.inv_freq else ("frequencies",)
            kinds = (kind for kind in has if has[kind] != wanted[kind] and kind not in implied)
            return [(kind, f"{has[kind]}, expected {wanted[kind]}") for kind in kinds]
        text = f"errors up to {self.trial.explanation.residual:.1e} of a pair"
        if self.trial.explanation.residual < _ARITHMETIC:
            return [("16-bit tables", f"{text}, as by tables or arithmetic in 16 bits, expected float32")]
        return [("unexplained", f"{text}, and no rope that was tried explains the output")]

    def changes(self, sample: Observation) -> Iterator[Change]:
        """Yield all changes of one thing, the likeliest first."""
        rope, positions, wanted = self.rope, self.positions, _described(self.rope)
        unrotated = replace(rope, attention_factor=1.0, out_pairing=None)
        at_0 = positions._replace(pos=positions.pos * 0)
        text = "no feature rotates, as if all positions were 0, expected a rotation"
        yield "not rotated", text, Proposal(unrotated, at_0)
        for kind, text, changed in self._changed_fields(sample):
            try:
                proposal = Proposal(replace(rope, **changed), positions)
            except SpecError:  # no rope has these fields
                continue
            yield kind, text or f"{_described(proposal.rope)[kind]}, expected {wanted[kind]}", proposal
        ported = permuted(self.pairs)
        yield _PORTED, ported.mistake, Proposal(rope, positions, mistaken=ported)
        for kind, text, moved in self._other_positions(sample):
            yield kind, text, Proposal(rope, moved)
        for dtype_name, quantity in product(ROUNDERS, reversed(QUANTITIES)):
            rounded = Proposal(rope, positions, mistaken=self.pairs, rounding=(dtype_name, quantity))
            yield "16-bit tables", f"{quantity} in {dtype_name}, expected float32", rounded

    def _changed_fields(self, sample: Observation) -> Iterator[tuple[str, str, dict[str, Any]]]:
        """Yield the kind of a change, its text, unless `_described` has it, and the changed fields."""
        rope, head, width = self.rope, self.rope.head_dim, self.rope.rotary_dim
        omegas, out, size = np.array(rope.frequencies), rope.out_pairing or rope.pairing, rope.amplitude

        def series(numbers: Any, factor: float = size) -> dict[str, Any]:
            frequencies = {"inv_freq": tuple(map(float, numbers)), "attention_factor": factor}
            return {"base": 10000.0, "scaling": None, **frequencies}

        yield "direction", "", series(-omegas)
        yield "direction", "", series(-omegas, 1 / size) | {"pairing": out, "out_pairing": rope.pairing}
        if rope.scaling is not None:  # a factor of 2 that is lost looks like a second rotation
            yield "scaling", "", {"scaling": None}
        for factor in dict.fromkeys((size * size, size)):
            yield "rotated twice", "every angle is doubled, expected one rotation", series(2 * omegas, factor)
        for pairing, written_pairing in product(reversed(PAIRINGS), repeat=2):
            kind, text = "pairing", ""
            if pairing != rope.pairing and written_pairing == rope.pairing == out:
                kind, text = _PORTED, f"features in {out} order were moved to {out} order again"
            yield kind, text, {"pairing": pairing, "out_pairing": written_pairing}
        usual = ((0, head), (0, head // 2), (0, head // 4), (0, width), (head - width, width))
        for start, count in dict.fromkeys((*usual, *slices(sample))):
            yield "rotated part", "", {"rotary_start": start, "rotary_dim": count}
        yield from (("factor", "", {"attention_factor": factor}) for factor in self._factors(sample))
        if rope.inv_freq is None:
            yield from (("base", "", {"base": base}) for base in BASES)
            yield from (("scaling", "", changed) for changed in _other_rules(rope))
            yield from (("base", "", {"base": base}) for base in self._bases(sample))
        for dtype_name, rounded in ROUNDERS.items():
            yield "frequencies", f"inv_freq in {dtype_name}, expected float32", series(rounded(omegas))
        count = self.positions.coordinates
        for name, arguments, options in rope.axes._candidates() if rope.axes else ():
            with suppress(SpecError):  # these counts have no such map
                axes = getattr(Axes, name)(*arguments, **options)
                yield from [("coordinates", "", {"axes": axes})] * (axes.count == count)

    def _bases(self, sample: Observation) -> Iterator[float]:
        """Yield the base of the estimated frequencies, by the rule of the rope, in few and in more digits."""
        series = PhaseEstimates(sample, self.pairs).series(self.positions.rows(sample))
        if self.positions.coordinates or len(series.at) < 2:
            return
        omegas, exponents = estimate_frequencies(with_origin(series))[0], self.pairs.exponents
        base = self.rope.base
        for _ in range(8):  # the rule depends on the base
            rule = np.array(replace(self.rope, base=base).frequencies) / base**-exponents
            plain = omegas / np.maximum(rule, 1e-300)
            fast = (exponents > 0) & (rule > 0) & (plain > 0.01)
            base = fit_line(plain[fast], exponents[fast])[0] if fast.any() else 0.0
            if not 1 < base < 1e30:
                return
        yield from (float(f"{base:.{digits}g}") for digits in (2, 3, 4, 6, 9))

    def _factors(self, sample: Observation) -> Iterator[float]:
        """Yield a factor of 1, and the factor that the output has."""
        part = slice(self.rope.rotary_start, self.rope.rotary_start + self.rope.rotary_dim)
        x, y = Proposal(self.rope, self.positions).output(sample)[:, part], sample.y[:, part]
        size = float((x * y).sum() / max((x * x).sum(), 1e-300)) * self.rope.amplitude
        yield from (1.0, shortest(size, sample.tol / 4)) if size > 0 else ()

    def _other_positions(self, sample: Observation) -> Iterator[tuple[str, str, TriedPositions]]:
        """Yield positions of usual mistakes, in words."""
        positions, pos, count = self.positions, self.positions.pos, self.positions.coordinates
        offset, (end, last) = self._offset(sample), self._end()
        moved = positions._replace(pos=pos + offset)
        yield "positions", f"rotated at pos {offset:+d}, expected at pos", moved
        orders = [*permutations(range(count)), *product(range(count), repeat=count)] if 1 < count < 4 else []
        for order in orders:
            text = f"coordinates in the order {order}, expected {tuple(range(count))}"
            yield "coordinates", text, positions._replace(pos=pos[..., list(order)])
        for first in dict.fromkeys((end, last + 1)) if last < end and end > 0 else ():
            past = f"wrong from position {first:g} on: as by "
            for text, other in (
                ("the table's last row", np.minimum(pos, first - 1)),
                ("no rotation", np.where(pos < first, pos, 0)),
                ("the table's first rows again", pos % first),
            ):
                moved = positions._replace(pos=other.astype(pos.dtype))
                yield "table too short", f"{past}{text}", moved
        if not count:
            tried = (*mistaken_positions(sample), *mistaken_by_name(positions, sample.on_host))
            yield from (("positions", f"{m.mistake}, expected pos", m) for m in tried if not m.free)

    def _end(self) -> tuple[float, float]:
        """Return the first position of wrong rows and the last of right rows; infinity if there is none."""
        at = self.positions.rows(self.observation)
        at = at.max(1) if at.ndim > 1 else at
        return at[self.wrong].min(), at[~self.wrong].max(initial=-1) if not self.wrong.all() else np.inf

    def _offset(self, sample: Observation) -> int:
        """Return the constant that fits best if it is added to the positions."""
        omegas = np.array(self.rope.frequencies)
        phases = PhaseEstimates(sample, self.pairs).series(self.positions.rows(sample))
        angles = positions_of_pairs(self.rope, phases.at) * omegas
        sums = (phases.weight * phases.phasors * np.exp(-1j * angles)).sum(0)
        # e^(-iω(512a + b)) is a product, so that a matrix product tries all constants.
        near = np.arange(_OFFSETS)
        far = _OFFSETS * (near - _OFFSETS // 2)
        by_far, by_near = (np.exp(-1j * np.multiply.outer(n, omegas)) for n in (far, near))
        step, rest = divmod(int(((by_far * sums) @ by_near.T).real.argmax()), _OFFSETS)
        return int(far[step] + near[rest])


def _positions_for(rope: RoPE, observation: Observation) -> TriedPositions:
    """Return the intended positions; numbers serve all coordinates of a rope with axes."""
    count: int = (rope.axes.count or 0) if rope.axes else 0
    for positions in [*intended_positions(observation)][::-1]:
        if positions.coordinates == count:
            return positions
        if not positions.coordinates:
            return positions._replace(pos=np.stack([positions.pos] * count, -1), coordinates=count)
    raise ShapeError(
        f"pos has {observation.coordinates} coordinates, and the rope has {count or 'no axes'}; give a "
        "position for each token, or a coordinate for each axis."
    )


def _described(rope: RoPE) -> dict[str, str]:
    """Return the fields of a rope in words, by the kind of a difference in it."""
    out, stop = rope.out_pairing or rope.pairing, rope.rotary_start + rope.rotary_dim
    numbers = ", ".join(f"{w:.4g}" for w in rope.frequencies[1:5])
    return {
        "pairing": f"{rope.pairing} pairs" + (f" written in {out} order" if out != rope.pairing else ""),
        "direction": "rotation by -φ" if sum(rope.frequencies) < 0 else "rotation by φ",
        "base": "no base" if rope.inv_freq else f"base {rope.base:.10g}",
        "scaling": f"{written(rope.scaling):.200}" if rope.scaling else "no scaling rule",
        "frequencies": f"frequencies {numbers} from pair 1 on",
        "factor": f"cos and sin times {rope.amplitude:.7g}",
        "rotated part": f"features {rope.rotary_start} to {stop - 1} rotate"
        if rope.rotary_dim
        else "no rotation",
        "coordinates": repr(rope.axes),
    }


def _other_rules(rope: RoPE) -> Iterator[dict[str, Any]]:
    """Yield no rule, the rule with one other number, and simple rules with its factor."""
    rule = rope.scaling
    factors = (2.0, 4.0, 8.0, 16.0) if rule is None else (getattr(rule, "factor", None) or 1.0,)
    yield from ({"scaling": None, "attention_factor": factor} for factor in (None, rope.amplitude))
    for field in fields(rule) if rule is not None else ():  # type: ignore[arg-type]
        value = getattr(rule, field.name)
        for scale in _SCALES if isinstance(value, (int, float)) else ():
            other = not value if isinstance(value, bool) else type(value)(value * scale)
            with suppress(SpecError):  # the rule has no such number
                yield {"scaling": replace(rule, **{field.name: other})}  # type: ignore[type-var]
    yield from ({"scaling": cls(factor)} for factor, cls in product(factors, (Linear, NTKAware)))
