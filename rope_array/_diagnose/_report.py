"""The report: explanations, their code, and the reason if there is not exactly one."""

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any

from rope_array._rope import RoPE
from rope_array._spec.axes import Axes
from rope_array._spec.frequencies import Scaling
from rope_array._spec.scaling import Reversed

_SHOWN = 8


@dataclass(frozen=True)
class RotationExplanation:
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
    >>> [explanation] = ra.diagnose(x, ra.apply(x, range(6), pairing="half"), range(6)).explanations
    >>> explanation.code
    "ra.apply(x, pos, pairing='half')"
    """

    rope: RoPE | None
    code: str
    residual: float
    mistake: str = ""
    seq_axis: int = -2
    notes: tuple[str, ...] = ()

    @property
    def inverse(self) -> bool:
        """Whether it rotates by -φ: the inverse rotation, or a wrong sign of the sine."""
        return self.rope is not None and sum(self.rope.frequencies) < 0

    @property
    def direction(self) -> int:
        """The sign of the angles: 1 or -1."""
        return -1 if self.inverse else 1

    def _lines(self) -> Iterator[str]:
        yield f"  {self.code}"
        if self.mistake:
            yield f"    {self.mistake}"
        if self.inverse:
            yield "    rotates by -φ: the inverse rotation, or a wrong sign of the sine"
        yield f"    largest error, relative to a pair: {self.residual:.1e}"
        for note in self.notes:
            yield f"    {note}"

    def _line(self) -> str:
        code = self.code if len(self.code) < 160 else f"{self.code[:157]}..."
        return f"  {self.residual:8.1e}  {code}{f'  ({self.mistake})' if self.mistake else ''}"


@dataclass(frozen=True)
class Diagnosis:
    """The explanations of an output; printed, a report.

    Attributes
    ----------
    explanations : tuple of RotationExplanation
        Explanations within the tolerance, plain rotations first, then by their residual.
    nearest : tuple of RotationExplanation
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

    explanations: tuple[RotationExplanation, ...]
    nearest: tuple[RotationExplanation, ...] = ()
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
        heads = {0: "no rotation that was tried explains the output.", 1: "one explanation:"}
        lines = [heads.get(count, f"{count} explanations, which these data do not distinguish:")]
        for explanation in self.explanations[:_SHOWN]:
            lines += explanation._lines()
        if count > _SHOWN:
            lines.append(f"  and {count - _SHOWN} more")
        lines += [f"why: {self.reason}"] if self.reason else []
        lines += [f"note: {note}" for note in self.notes]
        if self.nearest:
            lines.append("ruled out, with the largest error relative to a pair:")
        return "\n".join([*lines, *(explanation._line() for explanation in self.nearest)])


def arguments_of(record: Any) -> list[str]:
    """Write the fields of a rope or of a rule that differ from their defaults; not head_dim."""
    defaults = {field.name: field.default for field in fields(record)}
    if isinstance(record, RoPE):
        defaults |= {"head_dim": record.head_dim, "rotary_dim": record.head_dim - record.rotary_start}
    values = {name: getattr(record, name) for name in defaults}
    return [f"{name}={written(value)}" for name, value in values.items() if value != defaults[name]]


def written(value: Any) -> str:
    """Write the value of a field as code."""
    if isinstance(value, Reversed):
        return f"ra.Reversed({written(value.rule) if value.rule else ''})"
    if isinstance(value, Scaling):
        return f"ra.{type(value).__name__}({', '.join(arguments_of(value))})"
    return f"ra.{value!r}" if isinstance(value, Axes) else repr(value)
