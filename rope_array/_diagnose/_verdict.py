"""Judge a candidate: compare the output of `RoPE.apply` in float64 with `after`; and choose the best."""

from dataclasses import replace
from typing import Any

import numpy as np

from rope_array._diagnose._case import EPS32, Case, Floats
from rope_array._diagnose._pair_hypotheses import features_of_pairs
from rope_array._diagnose._report import KNOWN, Explanation, Trial, code_of
from rope_array._diagnose._tried_positions import Positions
from rope_array._errors import ShapeError, SpecError
from rope_array._rope import RoPE
from rope_array._spec.scaling import Reversed

_BLOCK = 2048  # rows; their arrays fit into a cache


def reversed_rope(rope: RoPE) -> RoPE:
    """Return the rope that rotates by -φ and undoes the amplitude: the inverse, written as a rotation."""
    plain = rope.amplitude == 1.0 and (rope.scaling is None or rope.scaling.amplitude == 1.0)
    factor = None if plain else 1 / rope.amplitude
    fields: dict[str, Any] = {"pairing": rope.out_pairing or rope.pairing, "out_pairing": rope.pairing}
    if rope.inv_freq is not None:
        omegas = tuple(-omega for omega in rope.inv_freq)
        return replace(rope, inv_freq=omegas, attention_factor=factor, **fields)
    rule = rope.scaling.rule if isinstance(rope.scaling, Reversed) else Reversed(rope.scaling)
    return replace(rope, scaling=rule, attention_factor=factor, **fields)


def judge(
    case: Case, rope: RoPE, positions: Positions, notes: tuple[str, ...] = (), axes_text: str = "",
    kind: int = KNOWN, uncertainty: float = 0.0, chosen: bool = False,
) -> Trial | None:  # fmt: skip
    """Rebuild the output by `rope.apply`; return the errors, or None if `apply` refuses the positions.

    Tries exact and float32 angles, unless they are `chosen`.
    """
    if bool(positions.coordinates) != bool(rope.axes):
        return None
    best: Trial | None = None
    for angles in (rope.angles,) if chosen else dict.fromkeys((rope.angles, "exact", "float32")):
        tried = replace(rope, angles=angles)
        try:
            rows = case.rotated(tried, positions.pos, positions.seq_axis, bool(positions.coordinates))
        except (ShapeError, SpecError):
            return best
        code = code_of(tried, positions, axes_text)
        found = Explanation(tried, code, 0.0, positions.mistake, positions.seq_axis, notes, axes_text)
        trial = measure(case, found, rows, positions, kind, uncertainty)
        if best is None or trial.mean < best.mean / 2:
            best = trial
        if angles == "exact" and min(trial.mean, trial.angles.max()) < (case.tol / 16) ** 2:
            break  # float32 angles would not fit better
    return best


def measure(
    case: Case, found: Explanation, rows: Floats, positions: Positions, kind: int, uncertainty: float = 0.0,
    least: Floats | None = None,
) -> Trial:  # fmt: skip
    """Compare the rows of an explanation with `after`: exact for the report, rounded for the choice."""
    at = case.spread(positions.pos, positions.seq_axis, bool(positions.coordinates))
    assert at is not None
    count = len(rows)
    sums = np.zeros((2, rows.shape[1]))
    worst = np.zeros(2)
    floor = 1e-150 + 1e-7 * abs(case.y).max()
    for n in range(0, count, _BLOCK):
        part = slice(n, n + _BLOCK)
        lower = floor if least is None else np.maximum(floor, least[part])
        squares, largest = _errors(case, found.rope, rows[part], case.y[part], at[part], lower)
        sums, worst = sums + squares, np.maximum(worst, largest)
    found = replace(found, residual=float(worst[0]))
    return Trial(found, sums[0] / count, 4 * sums[1] / count, float(worst[1]), kind, uncertainty)


def _errors(
    case: Case, rope: RoPE | None, rows: Floats, y: Floats, at: Any, floor: Floats | float
) -> tuple[Floats, Floats]:
    """Return the sums of squares of the errors and of errors of angles, and the two largest errors."""
    assert rope is not None
    layout, blocks = rope.out_pairing or rope.pairing, rope.axes.blocks if rope.axes else 1
    out = features_of_pairs(layout, rope.rotary_start, rope.rotary_dim, blocks)
    size = np.maximum(abs(rows), abs(y))
    norm = np.sqrt(np.maximum(*((z[:, out[0]] ** 2 + z[:, out[1]] ** 2) for z in (rows, y))))
    at = at[:, [a or 0 for a in rope.axes.coordinates]] if rope.axes else at[:, None]
    slack = case.angle_errors(at * np.array(rope.frequencies))
    allowed = np.zeros(rows.shape)
    for feature in out:
        size[:, feature], allowed[:, feature] = norm, slack
    size = np.maximum(size, floor)
    off = abs(rows - y) / size
    rounded = (_rounded(rows, case.after_eps) - y) / size
    squares = np.array([(rounded**2).sum(0), (allowed**2).sum(0)])
    return squares, np.array([off.max(), (off / (case.tol + allowed)).max()])


def _rounded(y: Floats, eps: float) -> Floats:
    """Round to the digits of a dtype: then a wrong rope differs more clearly from a rounded output."""
    mantissa, exponent = np.frexp(y)
    return np.ldexp(np.rint(mantissa * (2 / eps)) * (eps / 2), exponent)


def equally_good(trials: list[Trial], case: Case) -> list[Trial]:
    """Return the best trials: the data do not tell them apart, given the noise of the best.

    The noise is measured, not assumed: the errors of the best trials. A trial is out if all its features
    together, or any feature, have errors that the noise does not explain. No tolerance enters here.
    """
    if not trials:
        return []
    best = min(t.mean for t in trials)
    least = np.min([t.errors for t in trials if t.mean <= 4 * best], axis=0)
    count, (rows, width) = case.num_positions, case.x.shape
    pairs = max(width // 2, 1)
    spread = (pairs + 5 * np.sqrt(2 * pairs) + 10) / (2 * pairs * count)  # of a sum of squares, 5 deviations
    # A right rope has wrong last bits: few after float32 arithmetic of 16-bit arrays, else more.
    bits = case.after_eps**2 * (1 / rows + (2.0**-12 if case.after_eps > EPS32 else 2.0**-6))
    # Float64 arrays may hold float32 results.
    wider = (case.angle_tol(float(np.sqrt(best))) / case.angle_tol()) ** 2

    def together(t: Trial) -> bool:
        return bool(t.mean <= least.mean() * (1 + spread) + wider * t.angles.mean() + 3 * bits / width)

    def each(t: Trial) -> bool:
        return bool((t.errors <= least * (1 + 25 / count) + wider * t.angles + bits).all())

    kept = [t for t in trials if together(t) and each(t)]
    # Errors of features do not compare if two slices pair them with others.
    return kept or [t for t in trials if together(t)] or [t for t in trials if t.mean == best]
