"""A hypothesis on the cause of failures: claims, a change of the code, and excuses for wrong results.

An excuse judges a kept wrong result again and returns the elements that the hypothesis explains. The target
is called again to see which checks pass if the hypothesis holds.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from ._alike import Mask, Wrong
from ._contract import allowed
from ._definition import apply_definition
from ._judge import Check, Judge
from ._outcome import FAILED, outcome_of
from ._own import OwnApply
from ._target import Target
from ._verdict import Fault

Excuse = Callable[[Wrong], Mask]


class Hypothesis(NamedTuple):
    """Claims and changes of the code that may explain failures.

    Attributes
    ----------
    target
        The target with the claims, and with the change of its code, if that can be made around its calls.
    texts
        The causes in words.
    claims
        Fields of `Target` that differ from the given target's.
    excuses
        Causes that cannot be claimed: each returns the elements of a wrong result that it explains.
    """

    target: Target
    texts: tuple[str, ...] = ()
    claims: Mapping[str, Any] = MappingProxyType({})
    excuses: tuple[Excuse, ...] = ()

    def adding(self, text: str, **claims: Any) -> Hypothesis:
        """Return the hypothesis with one more cause; raise ValueError if the claims contradict each other."""
        merged = {**self.claims, **claims}
        for name in ("fixed", "lacks"):
            if name in claims:
                merged[name] = {**self.claims.get(name, {}), **claims[name]}
                claims[name] = {**getattr(self.target, name), **claims[name]}
        target = replace(self.target, **claims) if claims else self.target
        shown = {} if isinstance(target.rotate, OwnApply) else merged  # a library has all claims
        return self._replace(target=target, texts=(*self.texts, *filter(None, [text])), claims=shown)

    def excusing(self, text: str, excuse: Excuse) -> Hypothesis:
        """Return the hypothesis with a cause that explains elements of wrong results."""
        return self._replace(texts=(*self.texts, text), excuses=(*self.excuses, excuse))

    def around(self, text: str, changed: Callable[..., Any]) -> Hypothesis:
        """Return the hypothesis with `changed(rotate, x, pos, **spec)` in place of the target's calls."""
        rotate = self.target.rotate

        @functools.wraps(rotate)
        def call(*arguments: Any, **spec: Any) -> Any:
            return changed(rotate, *arguments, **spec)

        return self._replace(target=replace(self.target, rotate=call), texts=(*self.texts, text))

    def judge(self) -> Judge:
        """Return a judge of the target that knows the excuses."""
        judge = Judge(self.target, thorough=True)  # only checks that failed are run
        judge.excuses, judge.explains = [*self.excuses], not judge.is_slow
        return judge

    def faults(self, checks: Collection[Check]) -> dict[str, Fault]:
        """Run checks again; return the faults of those that fail still, by name."""
        try:
            judge = self.judge()
        except Exception as error:  # the target's own, in a trial call
            return {check.name: Fault.of(error) for check in checks}
        failed = [check for check in checks if outcome_of(check, judge)[0] == FAILED]
        return {check.name: judge.faults[check.name] for check in failed}


def rotated_by(wrong: Wrong, pos: Any = None, *, inverse: bool | None = None, **fields: Any) -> Mask:
    """Return the elements of a wrong result that are right for other positions, fields or another direction.

    Fields that the call gave are kept.
    """
    pos = wrong.given_pos if pos is None else pos
    inverse = wrong.inverse if inverse is None else inverse
    fields = {**wrong.fields, **{name: one for name, one in fields.items() if name not in wrong.given}}
    try:
        exact = apply_definition(wrong.x, pos, inverse=inverse, **fields)
    except (ValueError, TypeError, OverflowError):
        return np.zeros(wrong.mask.shape, bool)
    bound = allowed(
        wrong.x, wrong.dtype, fields, exact=exact, pos=pos, inverse=inverse, flushes=wrong.flushes,
        accuracy=wrong.accuracy,
    )  # fmt: skip
    with np.errstate(all="ignore"):
        return np.asarray(np.abs(wrong.y - exact) <= bound)


def copying_x(rotate: Callable[..., Any], *arguments: Any, **spec: Any) -> Any:
    """Call code that writes into its arrays with copies of x."""
    *xs, pos = arguments
    return rotate(*map(_copied, xs), pos, **spec)


def _copied(x: Any) -> Any:
    return tuple(map(_copied, x)) if isinstance(x, tuple) else x * 1


def casting(rotate: Callable[..., Any], *arguments: Any, **spec: Any) -> Any:
    """Call code that returns another dtype, and convert its result to the dtype of x."""
    x, y = arguments[0], rotate(*arguments, **spec)
    if isinstance(y, tuple):
        return tuple(_cast(one, like) for one, like in zip(y, x if isinstance(x, tuple) else arguments, strict=False))
    return _cast(y, x)


def _cast(y: Any, x: Any) -> Any:
    return y.to(x.dtype) if hasattr(y, "to") and not hasattr(y, "astype") else y.astype(x.dtype)
