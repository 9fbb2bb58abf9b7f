"""Compare an output with the expected rope: find the field that differs, by changing one at a time."""

from collections.abc import Iterator
from dataclasses import fields, replace
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from rope_array._errors import ShapeError, SpecError
from rope_array._rope import RoPE
from rope_array._spec.axes import Axes
from rope_array._spec.scaling import Linear, NTKAware

from ._frequency_fit import BASES
from ._mistakes import FREQUENCIES, QUANTITIES, ROUNDERS
from ._observation import Observation
from ._pair_hypotheses import PAIRINGS, PhaseEstimates, permuted, rotated_pairs, shortest, slices
from ._report import written
from ._search import Search
from ._tried_positions import TriedPositions, intended_positions, mistaken_by_name, mistaken_positions
from ._verdict import Proposal, equally_good, judge, measure, positions_of_pairs

_FACTORS: tuple[float, ...] = (2.0, 4.0, 8.0, 16.0, 32.0, 40.0, 64.0)
_SCALES = tuple(2.0**n for n in range(-6, 7))  # of the numbers of a rule
_ROWS = 192, 64  # that rank the changes: wrong rows, and right rows
_OFFSETS = 512  # of each of two steps
_ARITHMETIC = 2.0**-6  # the largest error of 16-bit arithmetic, relative to a pair
_PORTED = "weights of the other pairing"


class Difference(NamedTuple):
    """A difference between an output and the output of the expected rope."""

    kind: str
    found: str
    expected: str


class _Change(NamedTuple):
    kind: str
    proposal: Proposal
    found: str = ""  # if it is not a field of the rope


def find_differences(observation: Observation, rope: RoPE) -> list[Difference]:
    """Return the differences of an output from the output of a rope: none if the rope explains each row."""
    rope, positions = replace(rope, max_position=None), _positions_for(rope, observation)
    trial = judge(Proposal(rope, positions), observation)
    assert trial is not None  # the positions have the rope's coordinates
    if trial.fits:
        return []
    wrong = trial.rows > 1.0
    return (
        _by_one_change(rope, positions, observation, wrong)
        or _by_index(rope, positions, observation, wrong)
        or _by_end(positions.rows(observation), wrong)
        or _by_search(rope, observation, trial.explanation.residual)
    )


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


def _by_one_change(
    rope: RoPE, positions: TriedPositions, observation: Observation, wrong: Any
) -> list[Difference]:
    """Return the likeliest change that explains every row, with the others that the rows do not rule out."""
    spread = [
        rows[np.linspace(0, len(rows) - 1, min(len(rows), count)).astype(int)]
        for rows, count in zip((np.flatnonzero(wrong), np.flatnonzero(~wrong)), _ROWS, strict=True)
    ]
    sample = observation.part(np.sort(np.concatenate(spread)))
    at = positions.rows(observation)
    changes = [*_changes(rope, positions, sample), *_short_tables(rope, positions, at, wrong)]
    pairs = [(change, measure(change.proposal, sample)) for change in changes]
    good = {id(trial) for trial in equally_good([t for _, t in pairs if t.fits], sample)}
    fitting: dict[str, _Change] = {}
    for change in [c for c, t in pairs if id(t) in good][:16]:
        if change.kind not in fitting and measure(change.proposal, observation).fits:
            fitting[change.kind] = change
    if not fitting:
        return []
    first, *others = (
        Difference(c.kind, c.found or _described(c.proposal.rope)[c.kind], _described(rope)[c.kind])
        for c in fitting.values()
    )
    alike = f"; these rows are alike by {', or '.join(o.found for o in others)}" if others else ""
    return [first._replace(expected=f"{first.expected}{alike}")]


def _by_index(
    rope: RoPE, positions: TriedPositions, observation: Observation, wrong: Any
) -> list[Difference]:
    """Return the difference of each row of the batch, or of each head, if each has its own."""
    ndim = len(observation.shape)
    places = np.unravel_index(observation.rows, observation.shape[:-1])
    for axis in range(ndim - 1):
        differences: dict[Difference, list[int]] = {}
        indices = np.unique(places[axis][wrong])[:64]
        if axis == observation.seq_axis % ndim or observation.shape[axis] == 1:
            continue
        for index in indices.tolist():
            part = places[axis] == index
            for found in _by_one_change(rope, positions, observation.part(part), wrong[part]):
                differences.setdefault(found, []).append(index)
        if differences and sum(map(len, differences.values())) == len(indices):
            return [
                d._replace(found=f"rows {', '.join(map(str, rows))} of axis {axis}: {d.found}")
                for d, rows in differences.items()
            ]
    return []


def _by_end(at: Any, wrong: Any) -> list[Difference]:
    """Return a table that ends, if rows are right up to a position, and wrong from there on."""
    at = at if at.ndim == 1 else at.max(1)
    end = at[wrong].min()
    if wrong.all() or at[~wrong].max() >= end:
        return []
    return [Difference("table too short", f"right below position {end:g}, and wrong from there on", "no end")]


def _by_search(rope: RoPE, observation: Observation, residual: float) -> list[Difference]:
    """Return the fields in which the explanation of `diagnose` differs."""
    diagnosis = Search(replace(observation, tolerance=None), [rope]).run()
    expected = _described(rope)
    if not diagnosis.explanations and residual < _ARITHMETIC:
        text = f"errors up to {residual:.1e} of a pair, as by tables or arithmetic in 16 bits"
        return [Difference("16-bit tables", text, expected["16-bit tables"])]
    if not diagnosis.explanations:
        return [Difference("unexplained", f"errors up to {residual:.1e} of a pair", diagnosis.reason)]
    explanation = diagnosis.explanations[0]
    if explanation.rope is None or explanation.mistake:
        kinds = (k for k in ("positions", "rotated twice", "not rotated") if k[:8] in explanation.mistake)
        return [
            Difference(next(kinds, "unexplained"), f"{explanation.mistake}: {explanation.code}", repr(rope))
        ]
    found = _described(explanation.rope)
    return [Difference(k, found[k], expected[k]) for k in _FIELDS if found[k] != expected[k]]


_FIELDS = ("pairing", "direction", "base", "scaling", "frequencies", "factor", "rotated part", "coordinates")


def _described(rope: RoPE) -> dict[str, str]:
    """Return the fields of a rope in words, by the kind of a difference in it."""
    out, stop = rope.out_pairing or rope.pairing, rope.rotary_start + rope.rotary_dim
    numbers = ", ".join(f"{w:.4g}" for w in rope.frequencies[1:5])
    return {
        "pairing": f"{rope.pairing} pairs" + (f" written in {out} order" if out != rope.pairing else ""),
        "direction": "rotation by -φ" if sum(rope.frequencies) < 0 else "rotation by φ",
        "base": "inv_freq" if rope.inv_freq else f"base {rope.base:.10g}",
        "scaling": written(rope.scaling) if rope.scaling else "no scaling rule",
        "frequencies": f"frequencies {numbers} from pair 1 on",
        "factor": f"cos and sin times {rope.amplitude:.7g}",
        "rotated part": f"features {rope.rotary_start} to {stop - 1} rotate"
        if rope.rotary_dim
        else "no rotation",
        "coordinates": repr(rope.axes),
        "positions": "pos",
        "not rotated": "a rotation",
        "rotated twice": "one rotation",
        "table too short": "no end",
        "16-bit tables": "the rounding of the arrays' dtype",
        _PORTED: f"features in {rope.pairing} order",
    }


def _changes(rope: RoPE, positions: TriedPositions, observation: Observation) -> Iterator[_Change]:
    """Yield all changes of one thing, the likeliest first."""
    unrotated = replace(rope, attention_factor=1.0, out_pairing=None)
    at_0 = positions._replace(pos=positions.pos * 0)
    yield _Change("not rotated", Proposal(unrotated, at_0), "no rotation")
    for kind, found, changed in _changed_fields(rope, positions, observation):
        try:
            yield _Change(kind, Proposal(replace(rope, **changed), positions), found)
        except SpecError:  # no rope has these fields
            continue
    pairs = _pairs_of(rope)
    other = PAIRINGS[rope.pairing == PAIRINGS[0]]
    ported = Proposal(rope, positions, mistaken=permuted(pairs))
    yield _Change(_PORTED, ported, f"features in {other} order, rotated in {rope.pairing} pairs")
    for text, moved in _other_positions(rope, positions, observation):
        kind = "coordinates" if text.startswith("coord") else "positions"
        yield _Change(kind, Proposal(rope, moved), text)
    for dtype_name, quantity in product(ROUNDERS, reversed(QUANTITIES)):
        rounded = Proposal(rope, positions, mistaken=pairs, rounding=(dtype_name, quantity))
        yield _Change("16-bit tables", rounded, f"{quantity} rounded to {dtype_name}")


def _pairs_of(rope: RoPE) -> Any:
    layout = rope.pairing, rope.out_pairing or rope.pairing, rope.rotary_start, rope.rotary_dim
    return rotated_pairs(*layout, rope.axes.blocks if rope.axes else 1)


def _changed_fields(
    rope: RoPE, positions: TriedPositions, observation: Observation
) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield the kind of a change, its text, unless `_described` has it, and the changed fields."""
    omegas, out, size = np.array(rope.frequencies), rope.out_pairing or rope.pairing, rope.amplitude

    def series(numbers: Any, factor: float = size) -> dict[str, Any]:
        fields = {"base": 10000.0, "scaling": None, "attention_factor": factor}
        return {**fields, "inv_freq": tuple(map(float, numbers))}

    yield "direction", "", series(-omegas)
    yield "direction", "", series(-omegas, 1 / size) | {"pairing": out, "out_pairing": rope.pairing}
    for factor in dict.fromkeys((size * size, size)):
        yield "rotated twice", "every angle is doubled", series(2 * omegas, factor)
    for pairing, written_pairing in product(reversed(PAIRINGS), repeat=2):
        layout = {"pairing": pairing, "out_pairing": written_pairing}
        if pairing != rope.pairing and written_pairing == rope.pairing == out:
            text = f"features in {out} order, moved to {out} order again, as from {pairing}"
            yield _PORTED, text, layout
        yield "pairing", "", layout
    head, width = rope.head_dim, rope.rotary_dim
    usual = ((0, head), (0, head // 2), (0, head // 4), (0, width), (head - width, width))
    for start, count in dict.fromkeys((*usual, *slices(observation))):
        yield "rotated part", "", {"rotary_start": start, "rotary_dim": count}
    for factor in _factors(rope, positions, observation):
        yield "factor", "", {"attention_factor": factor}
    if rope.inv_freq is None:
        yield from (("base", "", {"base": base}) for base in BASES)
        yield from (("scaling", "", changed) for changed in _other_rules(rope))
    for dtype_name, rounded in ROUNDERS.items():
        yield (
            "frequencies",
            f"frequencies rounded to {dtype_name}, as inv_freq is by a cast",
            series(rounded(omegas)),
        )
    if rope.scaling is None and rope.axes is None and width > 2:
        for name, frequencies_of in FREQUENCIES.items():
            yield "frequencies", name, series(frequencies_of(rope.base, width // 2))
        over_head = rope.base ** (-2 * np.arange(width // 2) / head)
        yield "frequencies", f"exponents 2i/{head}, over the whole head", series(over_head)
    for name, arguments, options in rope.axes._candidates() if rope.axes else ():
        try:
            yield "coordinates", "", {"axes": getattr(Axes, name)(*arguments, **options)}
        except SpecError:  # these counts have no such map
            continue


def _factors(rope: RoPE, positions: TriedPositions, observation: Observation) -> Iterator[float]:
    """Yield a factor of 1, and the factor that the output has."""
    part = slice(rope.rotary_start, rope.rotary_start + rope.rotary_dim)
    x, y = Proposal(rope, positions).output(observation)[:, part], observation.y[:, part]
    size = float((x * y).sum() / max((x * x).sum(), 1e-300)) * rope.amplitude
    yield 1.0
    if size > 0:
        yield shortest(size, observation.tol / 4)


def _other_rules(rope: RoPE) -> Iterator[dict[str, Any]]:
    """Yield no rule, a rule with one other number, and other rules with its factor."""
    rule, factors = rope.scaling, _FACTORS
    if rule is not None:
        yield from ({"scaling": None, "attention_factor": factor} for factor in (None, rope.amplitude))
        factors = (getattr(rule, "factor", None) or 1.0,)
        for field in fields(rule):  # type: ignore[arg-type]
            value = getattr(rule, field.name)
            for scale in _SCALES if isinstance(value, (int, float)) else ():
                other = not value if isinstance(value, bool) else type(value)(value * scale)
                try:
                    yield {"scaling": replace(rule, **{field.name: other})}  # type: ignore[type-var]
                except SpecError:
                    continue
    for factor, cls in product(factors, (Linear, NTKAware)):
        yield {"scaling": cls(factor)}


def _other_positions(
    rope: RoPE, positions: TriedPositions, observation: Observation
) -> Iterator[tuple[str, TriedPositions]]:
    """Yield positions of usual mistakes, in words."""
    offset, count, pos = _offset(rope, positions, observation), positions.coordinates, positions.pos
    yield f"pos {'+' if offset > 0 else '-'} {abs(offset)}", positions._replace(pos=pos + offset)
    for order in product(range(count), repeat=count) if 1 < count < 4 else ():
        yield f"coordinates in the order {order}", positions._replace(pos=pos[..., list(order)])
    if not count:
        tried = (*mistaken_positions(observation), *mistaken_by_name(positions, observation.on_host))
        yield from ((moved.mistake, moved) for moved in tried if not moved.free)


def _offset(rope: RoPE, positions: TriedPositions, observation: Observation) -> int:
    """Return the constant that fits best if it is added to the positions."""
    omegas = np.array(rope.frequencies)
    phases = PhaseEstimates(observation, _pairs_of(rope)).series(positions.rows(observation))
    angles = positions_of_pairs(rope, phases.at) * omegas
    sums = (phases.weight * phases.phasors * np.exp(-1j * angles)).sum(0)
    # e^(-iω(512a + b)) is a product, so that a matrix product tries all constants.
    near = np.arange(_OFFSETS)
    far = _OFFSETS * (near - _OFFSETS // 2)
    by_far, by_near = (np.exp(-1j * np.multiply.outer(n, omegas)) for n in (far, near))
    step, rest = np.unravel_index(((by_far * sums) @ by_near.T).real.argmax(), (_OFFSETS, _OFFSETS))
    return int(far[step] + near[rest])


def _short_tables(rope: RoPE, positions: TriedPositions, at: Any, wrong: Any) -> Iterator[_Change]:
    """Yield tables that end at the first wrong row: then their last row, no rotation, or their start."""
    if wrong.all() or positions.coordinates:
        return
    pos, first, last = positions.pos, at[wrong].min(), at[~wrong].max()
    ends = {first, last + 1, *(2**n for n in range(4, 24) if last < 2**n < first)}
    for end in sorted(ends) if last < first and first > 0 else ():
        for text, other in (
            (f"positions from {end:g} on use the table's last row", np.minimum(pos, end - 1)),
            (f"positions from {end:g} on are not rotated", np.where(pos < end, pos, 0)),
            (f"positions from {end:g} on start again at 0", pos % end),
        ):
            moved = positions._replace(pos=other.astype(pos.dtype))
            yield _Change("table too short", Proposal(rope, moved), text)
