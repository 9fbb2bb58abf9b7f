"""The report: explanations, their code, and the reason if there is not exactly one."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

from rope_array._diagnose._case import EPS32, LOOSEST, Case, Floats
from rope_array._diagnose._tried_positions import Positions
from rope_array._rope import RoPE
from rope_array._spec.frequencies import Scaling
from rope_array._spec.scaling import Reversed

_SHOWN = 8
_SURE = 1e-3  # relative; a rope with less certain numbers is not given
# Kinds of explanation. Among equally good explanations the lowest kind is preferred.
CANDIDATE, KNOWN, ONE_NUMBER, TWO_NUMBERS, ESTIMATE = range(5)


@dataclass(frozen=True)
class Explanation:
    """One rotation that maps `before` to `after`.

    Attributes
    ----------
    rope : RoPE or None
        The rotary embedding; None if nothing was rotated. ``rope.apply(x, pos)`` reproduces the output, at
        the positions and the axis in `code`. If it rotates by -φ, its frequencies are negative.
    code : str
        The call that reproduces the output, with x for `before`; for a mistake, its formula.
    residual : float
        The largest difference from `after`, relative to the size of its pair.
    mistake : str
        The mistake; empty for a plain rotation by the intended positions.
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
    seq_axis: int = -2
    notes: tuple[str, ...] = ()
    _axes: str = ""

    @property
    def inverse(self) -> bool:
        """Whether it rotates by -φ: the inverse rotation, or a wrong sign of the sine."""
        return self.rope is not None and sum(self.rope.frequencies) < 0

    @property
    def direction(self) -> int:
        """The sign of the angles: 1 or -1."""
        return -1 if self.inverse else 1


class Trial(NamedTuple):
    """An explanation that was tried, and its errors."""

    explanation: Explanation
    errors: Floats  # (head_dim,): the mean square of each feature's error, relative to its pair
    angles: Floats  # (head_dim,): the mean square of the error that rounded angles may have
    worst: float  # the largest error, in units of the error of the dtypes
    kind: int = KNOWN
    uncertainty: float = 0.0  # relative, of the numbers that were read off the data
    again: Callable[[], Any] | None = None  # measures the explanation on all rows

    @property
    def mean(self) -> float:
        return float(self.errors.mean())

    @property
    def fits(self) -> bool:
        """Whether the rounding of the dtypes explains every error."""
        return self.worst <= 1.0


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
        """The rope for which ``rope.apply(before, pos, seq_axis=seq_axis)`` reproduces `after`.

        None if several explanations fit or none does, if the explanation is a mistake, or if the data leave
        its numbers open: see `reason`.
        """
        if len(self.explanations) == 1 and not self.explanations[0].mistake and not self.reason:
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


def reason_of(chosen: list[Trial], kept: list[Explanation], nearest: list[Explanation], case: Case) -> str:
    """Return the reason that there is no rope to rely on, and a remedy; empty if there is one."""
    if not kept:
        return _too_far(case) + _no_fit(nearest, case)
    if len(kept) > 1:
        return f"{_too_far(case)}{'; '.join(_causes(kept))}. {_remedy(case)}"
    unsure = chosen[0].uncertainty
    if unsure > _SURE and not kept[0].mistake:
        if unsure >= 1 and chosen[0].kind != ESTIMATE:
            text = "the pairs that would show the numbers of the rule, or the slice, rotate by less than the"
            return f"{text} noise. {_remedy(case)}"
        text = "the slowest frequencies are" if chosen[0].kind == ESTIMATE else "the numbers of the rule are"
        return f"{text} known to ±{min(unsure, 1):.1%} only, at these positions. {_remedy(case)}"
    return ""


def _no_fit(nearest: list[Explanation], case: Case) -> str:
    text = (
        "frequencies may follow a rule to be given in `candidates`, features may pair in another order, or "
        "`after` may contain more than a rotation, such as a norm"
    )
    least = min((e.residual for e in nearest), default=1.0)
    if least >= 0.1:
        return text
    limit = f"the tolerance {case.tolerance:g}" if case.tolerance else "the rounding of the dtypes"
    return (
        f"the nearest explanation has an error of {least:.1e}, above {limit}: if `after` was computed in a "
        f"narrower precision than its dtype, give tolerance={float(f'{1.5 * least:.1g}'):g}; else {text}"
    )


def _remedy(case: Case) -> str:
    """Return data that would decide."""
    wider = ", in float32" if case.eps > EPS32 else ""
    return (
        f"Give random features of several rows at more and later positions with a step of 1{wider}, "
        "different on every axis and in every coordinate; or give possible ropes or configs as `candidates`"
    )


def _too_far(case: Case) -> str:
    """Return the reason that positions are too far for rounded angles; empty if they are not."""
    if case.reach <= case.decidable_reach:
        return ""
    dtype = "float32" if case.angle_tol() >= EPS32 else "float64"
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
    if len({r.scaling for r in ropes if r.base == ropes[0].base}) > 1:
        found.append("the slow pairs rotate too little to distinguish rules")
    if len({(r.rotary_dim, r.rotary_start) for r in ropes}) > 1:
        found.append("the last pairs rotate by less than the rounding, so that the slice does not show")
    if len({r.axes for r in ropes}) > 1:
        found.append("the coordinates are equal, or pairs are too slow to show, so several maps to axes fit")
    if len({(e.seq_axis, e.mistake) for e in kept}) > 1:
        found.append("the intended positions equal others (of another axis, or another count)")
    return found or ["several fit"]


def notes_of(chosen: list[Trial], kept: list[Explanation], case: Case) -> Iterator[str]:
    """Yield remarks on the data."""
    dropped = math.prod(case.before.shape[:-1]) - len(case.x)
    if dropped:
        yield f"{dropped} rows hold NaN or infinities and were left out"
    if len(kept) == 1 and kept[0].rope and kept[0].rope.frequencies:
        rope = kept[0].rope
        # A mean over many elements shows less than one unit of the dtype.
        shown = max(case.eps, chosen[0].mean ** 0.5) / len(case.x) ** 0.5
        hidden = sum(0 < abs(w) * case.reach < shown for w in rope.frequencies)
        if hidden:
            yield f"{hidden} of {len(rope.frequencies)} pairs rotate by less than the rounding here"


def code_of(rope: RoPE, positions: Positions, axes_text: str) -> str:
    """Write the call that reproduces an output."""
    words = ["x", positions.code, *fields_of(rope, axes_text)]
    words += [f"seq_axis={positions.seq_axis}"] if positions.seq_axis != -2 else []
    return f"ra.apply({', '.join(words)})"


def fields_of(rope: RoPE, axes_text: str = "") -> list[str]:
    """Write the fields that differ from the defaults."""
    words = []
    rest = rope.head_dim - rope.rotary_start
    for field in fields(rope)[1:]:
        name, value = field.name, getattr(rope, field.name)
        if value == (rest if name == "rotary_dim" else field.default):
            continue
        text = f"ra.{value!r}" if name == "axes" else repr(value)
        if isinstance(value, Scaling):
            text = rule_name(value)
        words.append(f"{name}={axes_text if name == 'axes' and axes_text else text}")
    return words


def rule_name(rule: Any) -> str:
    """Write a rule with the fields that differ from its defaults."""
    if isinstance(rule, Reversed):
        return f"ra.Reversed({rule_name(rule.rule) if rule.rule else ''})"
    words = [
        f"{f.name}={getattr(rule, f.name)!r}" for f in fields(rule) if getattr(rule, f.name) != f.default
    ]
    return f"ra.{type(rule).__name__}({', '.join(words)})"


def _labelled(found: Explanation) -> str:
    code = found.code if len(found.code) < 160 else f"{found.code[:157]}..."
    return f"{code}  ({found.mistake})" if found.mistake else code


def _lines_of(found: Explanation) -> list[str]:
    lines = [f"  {found.code}", *([f"    {found.mistake}"] if found.mistake else [])]
    if found.inverse:
        lines.append("    rotates by -φ: the inverse rotation, or a wrong sign of the sine")
    lines.append(f"    largest error, relative to a pair: {found.residual:.1e}")
    return lines + [f"    {note}" for note in found.notes]
