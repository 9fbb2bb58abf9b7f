"""The report: explanations, their code, and the reason if there is not exactly one."""

from collections.abc import Iterator
from dataclasses import dataclass, fields

import numpy as np

from rope_array._diagnose._case import EPS32, LOOSEST, Case
from rope_array._diagnose._tried_positions import Positions
from rope_array._rope import RoPE

_SHOWN = 8


@dataclass(frozen=True)
class Explanation:
    """One rotation that maps `before` to `after`.

    Attributes
    ----------
    rope : RoPE or None
        The rotary embedding; None if nothing was rotated.
    code : str
        The call that reproduces the output, with x for `before`; for a mistake, its formula.
    residual : float
        The largest difference from `after`, relative to the size of its pair.
    mistake : str
        The mistake; empty for a plain rotation by the intended positions.
    inverse : bool
        Whether it rotates by -φ.
    seq_axis : int
        The axis of the positions in x.
    notes : tuple of str
        Remarks, such as other names of the base.

    Examples
    --------
    >>> import numpy as np
    >>> import rope_array as ra
    >>> x = np.random.default_rng(0).standard_normal((6, 8))
    >>> [found] = ra.diagnose(x, ra.apply(x, range(6), pairing="half"), range(6)).explanations
    >>> found.code
    "ra.apply(x, pos, pairing='half')"
    """

    rope: RoPE | None
    code: str
    residual: float
    mistake: str = ""
    inverse: bool = False
    seq_axis: int = -2
    notes: tuple[str, ...] = ()
    _rms: float = 0.0
    _estimate: bool = False
    _candidate: bool = False
    _axes: str = ""

    @property
    def direction(self) -> int:
        """The sign of the angles: 1 or -1."""
        return -1 if self.inverse else 1


@dataclass(frozen=True)
class Diagnosis:
    """The explanations of an output; printed, a report.

    Attributes
    ----------
    explanations : tuple of Explanation
        Explanations within the tolerance, plain rotations first, then by their residual.
    nearest : tuple of Explanation
        Explanations that were tried and do not fit, the best first.
    reason : str
        If there is not exactly one explanation: the reason, and data that would give one.
    notes : tuple of str
        Remarks on the data, such as pairs that rotate by less than the rounding.

    Examples
    --------
    >>> import numpy as np
    >>> import rope_array as ra
    >>> x = np.random.default_rng(0).standard_normal((6, 2))
    >>> ra.diagnose(x, ra.apply(x, range(6)), range(6)).ambiguous
    True
    """

    explanations: tuple[Explanation, ...]
    nearest: tuple[Explanation, ...] = ()
    reason: str = ""
    notes: tuple[str, ...] = ()

    @property
    def ambiguous(self) -> bool:
        """Whether several explanations fit."""
        return len(self.explanations) > 1

    @property
    def rope(self) -> RoPE | None:
        """The rope if exactly one explanation fits and it is no mistake; None otherwise, see `reason`."""
        if len(self.explanations) == 1 and not self.explanations[0].mistake:
            return self.explanations[0].rope
        return None

    def __str__(self) -> str:
        count = len(self.explanations)
        head = {0: "no rotation that was tried explains the output", 1: "one explanation"}
        lines = [f"{head.get(count, f'{count} explanations, which these data do not distinguish')}:"]
        if not count:
            lines = [f"{head[0]}."]
        for found in self.explanations[:_SHOWN]:
            lines += _lines_of(found)
        if count > _SHOWN:
            lines.append(f"  and {count - _SHOWN} more")
        lines += [f"why: {self.reason}"] if self.reason else []
        lines += [f"note: {note}" for note in self.notes]
        if self.nearest:
            lines.append("ruled out, with the largest error relative to a pair:")
            lines += [f"  {near.residual:8.1e}  {_labelled(near)}" for near in self.nearest]
        return "\n".join(lines)


def reason_of(kept: list[Explanation], case: Case) -> str:
    """Return the reason that there is not exactly one explanation, and a remedy; empty if there is."""
    if not kept:
        return _too_far(case) + (
            "frequencies may follow a rule to be given in `candidates`, features may pair in another "
            "order, or `after` may contain more than a rotation, such as a norm; if it was computed in "
            "another precision than its dtype, give a `tolerance`"
        )
    if len(kept) == 1:
        return ""
    causes = "; ".join(_causes(kept))
    return (
        f"{_too_far(case)}{causes}. Give random features of several rows at positions with a step of 1 that "
        "reach far, different on every axis and in every coordinate"
    )


def _too_far(case: Case) -> str:
    """Return the reason that positions are too far for rounded angles; empty if they are not."""
    if case.reach <= case.decidable_reach:
        return ""
    dtype = "float32" if case.angle_tol >= EPS32 else "float64"
    return (
        f"positions reach {case.reach:.3g}, where angles rounded to {dtype} have errors above {LOOSEST:g}, "
        "so that the output does not determine the rope: give nearer positions, below "
        f"{case.decidable_reach:.3g}; else "
    )


def _causes(kept: list[Explanation]) -> list[str]:
    ropes = [e.rope for e in kept if e.rope]
    found = []
    if len({(r.pairing, r.out_pairing) for r in ropes}) > 1:
        small = min(r.rotary_dim for r in ropes) == 2
        found.append(
            "a slice of 2 features is one pair in either pairing"
            if small
            else "the features do not distinguish pairings (symmetric, or too few rotate)"
        )
    if len({e.direction for e in kept}) > 1:
        found.append("+φ and -φ give the same (multiples of a half turn, or too few positions)")
    if len({r.base for r in ropes}) > 1:
        found.append("the pairs that rotate by more than the rounding do not distinguish bases")
    if len({(r.rotary_dim, r.rotary_start) for r in ropes}) > 1:
        found.append("the last pairs rotate by less than the rounding, so that the slice does not show")
    if len({r.axes for r in ropes}) > 1:
        found.append("the coordinates are equal, or pairs are too slow to show, so several maps to axes fit")
    if len({(e.seq_axis, e.mistake) for e in kept}) > 1:
        found.append("the intended positions equal others (of another axis, or another count)")
    return found or ["several fit"]


def _unsure(rope: RoPE, reach: float, tol: float) -> float:
    """Return the smallest change of ln(base) that moves a pair by the tolerance."""
    exponents = 2 * np.arange(len(rope.frequencies)) / max(rope.rotary_dim, 1)
    return float(tol / max((abs(np.array(rope.frequencies)) * reach * exponents).max(), 1e-30))


def notes_of(kept: list[Explanation], case: Case) -> Iterator[str]:
    """Yield remarks on the data."""
    dropped = int((~case.finite).sum())
    if dropped:
        yield f"{dropped} rows hold NaN or infinities and were left out"
    if len(kept) == 1 and kept[0].rope and kept[0].rope.frequencies:
        rope = kept[0].rope
        hidden = sum(0 < abs(w) * case.reach < case.tol for w in rope.frequencies)
        unsure = _unsure(rope, case.reach, case.tol)
        if rope.inv_freq is None and len(rope.frequencies) > 1 and unsure > 0.01:
            yield f"the base shows to about ±{min(unsure, 1):.0%} only"
        if hidden:
            yield f"{hidden} of {len(rope.frequencies)} pairs rotate by less than the rounding here"


def code_of(rope: RoPE, positions: Positions, inverse: bool, axes_text: str) -> str:
    """Write the call that reproduces an output."""
    words = ["x", positions.code, *fields_of(rope, axes_text)]
    words += [f"seq_axis={positions.seq_axis}"] if positions.seq_axis != -2 else []
    words += ["inverse=True"] if inverse else []
    return f"ra.apply({', '.join(words)})"


def fields_of(rope: RoPE, axes_text: str = "") -> list[str]:
    """Write the fields that differ from the defaults."""
    words = []
    usual = RoPE(rope.head_dim)
    rest = rope.head_dim - rope.rotary_start
    for name in (f.name for f in fields(rope) if f.name != "head_dim"):
        value = getattr(rope, name)
        if value == (rest if name == "rotary_dim" else getattr(usual, name)):
            continue
        text = f"ra.{value!r}" if name in ("scaling", "axes") else repr(value)
        words.append(f"{name}={axes_text if name == 'axes' and axes_text else text}")
    return words


def _labelled(found: Explanation) -> str:
    code = found.code if len(found.code) < 160 else f"{found.code[:157]}..."
    return f"{code}  ({found.mistake})" if found.mistake else code


def _lines_of(found: Explanation) -> list[str]:
    lines = [f"  {found.code}", *([f"    {found.mistake}"] if found.mistake else [])]
    if found.inverse:
        lines.append("    rotates by -φ")
    lines.append(f"    largest error, relative to a pair: {found.residual:.1e}")
    return lines + [f"    {note}" for note in found.notes]
