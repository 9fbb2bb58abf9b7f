"""Judge a candidate: compare the output of `RoPE.apply` in float64 with `after`."""

from dataclasses import replace

import numpy as np

from rope_array._diagnose._case import EPS32, Case, Floats, Indices
from rope_array._diagnose._frequency_fit import shortest
from rope_array._diagnose._pair_hypotheses import features_of_pairs
from rope_array._diagnose._report import Explanation, code_of
from rope_array._diagnose._tried_positions import Positions
from rope_array._errors import ShapeError, SpecError
from rope_array._rope import RoPE
from rope_array._spec.axes import Axes

_ESTIMATED = 2.0  # tolerances: an estimate has the errors of the rounded output too


def judge(
    case: Case, rope: RoPE, positions: Positions, inverse: bool, notes: tuple[str, ...] = (),
    axes_text: str = "", candidate: bool = False, estimate: bool = False,
) -> tuple[Explanation, bool] | None:  # fmt: skip
    """Rebuild the output; return the explanation and whether it fits, or None if `apply` refuses it."""
    if bool(positions.coordinates) != bool(rope.axes):
        return None
    if inverse and rope.out_pairing and not candidate:
        inverted = replace(rope, pairing=rope.out_pairing, out_pairing=rope.pairing)
    else:
        inverted = rope
    if inverse and rope.amplitude != 1.0 and not candidate:
        inverted = replace(inverted, attention_factor=shortest(1 / rope.amplitude, case.tol / 8))
    best: tuple[Explanation, float] | None = None
    for angles in dict.fromkeys((rope.angles, "exact", "float32") if case.eps >= EPS32 else ("exact",)):
        tried = replace(inverted, angles=angles)
        try:
            y = tried.apply(case.before, positions.pos, seq_axis=positions.seq_axis, inverse=inverse)
        except (ShapeError, SpecError):
            return None
        found = _explain(case, tried, y, positions, inverse, notes, axes_text)
        if best is None or found[0]._rms < 0.7 * best[0]._rms:
            best = found
        if found[0]._rms < case.tol / 16 and angles == "exact":
            break
    assert best is not None
    fits = best[1] <= (_ESTIMATED if estimate else 1.0)
    return replace(best[0], _estimate=estimate, _candidate=candidate, _axes=axes_text), fits


def _explain(
    case: Case, rope: RoPE, y: Floats, positions: Positions, inverse: bool, notes: tuple[str, ...], text: str
) -> tuple[Explanation, float]:
    """Return the explanation, and its largest error in units of the tolerance."""
    rows = y.reshape(-1, y.shape[-1])[case.finite]
    blocks = rope.axes.blocks if rope.axes else 1
    # The inverse writes the pairing that the rotation reads.
    layout = rope.pairing if inverse else rope.out_pairing or rope.pairing
    out = features_of_pairs(layout, rope.rotary_start, rope.rotary_dim, blocks)
    residual, rms, worst = _errors(case, rows, out, positions, np.array(rope.frequencies), rope.axes)
    code = code_of(rope, positions, inverse, text)
    found = Explanation(rope, code, residual, positions.mistake, inverse, positions.seq_axis, notes, rms)
    return found, worst


def _errors(
    case: Case, rows: Floats, out: Indices, positions: Positions, omegas: Floats, axes: Axes | None
) -> tuple[float, float, float]:
    """Return the largest and the root-mean-square error, relative to pairs, and the largest in tolerances."""
    size, allowed = abs(rows), np.full(rows.shape, case.tol)
    norm = np.maximum(*(np.hypot(y[:, out[0]], y[:, out[1]]) for y in (rows, case.y)))
    at = positions.rows[:, None] if axes is None else positions.rows[:, [a or 0 for a in axes.coordinates]]
    loose = case.allowed(at * omegas)
    for feature in out:
        size[:, feature] = norm
        allowed[:, feature] = loose
    size = np.maximum(size, 1e-150 + 1e-7 * abs(case.y).max())
    relative = abs(rows - case.y) / size
    return float(relative.max()), float(np.sqrt((relative**2).mean())), float((relative / allowed).max())
