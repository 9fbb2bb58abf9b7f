"""A hypothesis on the cause of failures: claims, or a change of the code, that explain wrong results."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from ._failure import Failure
from ._library_target import OwnApply
from ._wrong_result import Mask, WrongResult
from ._wrong_values import SIMPLE, Likeness, likeness_of

_NOTHING: Mapping[str, Any] = MappingProxyType({})
# The share of the elements at a place that have to be wrong.
SHARE = 0.9


class Hypothesis(NamedTuple):
    """A possible cause.

    Attributes
    ----------
    text
        The cause in a few words.
    facts
        The same as data: see `Cause.facts`.
    elements
        Returns the elements of a wrong result that it explains; None if it explains no values.
    claims
        Fields of `Target` with which the failures go away.
    around
        Makes a function that calls the code as if it were mended; None if that cannot be done.
    """

    text: str
    facts: Mapping[str, Any] = _NOTHING
    elements: Callable[[WrongResult], Mask] | None = None
    claims: Mapping[str, Any] = _NOTHING
    around: Callable[[Callable[..., Any]], Callable[..., Any]] | None = None

    @property
    def is_claimed(self) -> bool:
        """Whether its claims are a class of accuracy, which excuses the elements by itself."""
        return bool({"angles", "arithmetic", "furthest"} & {*self.claims})

    def shown_claims(self, target: Any) -> Mapping[str, Any]:
        """Return the claims that a user may make: none for a library, which has all, and none to write x."""
        hidden = isinstance(target.rotate, OwnApply) or "written" in self.facts
        return {} if hidden else self.claims

    def covers(self, fault: Failure) -> bool:
        """Return whether all wrong elements of a fault are among the elements."""
        wrong = fault.wrong
        if wrong is None or self.elements is None:
            return False
        return wrong.is_all(self.elements(wrong)) or _has(wrong, self.text)

    def explains(self, fault: Failure) -> bool:
        """Return whether it covers a fault, and right elements do not contradict it."""
        return self.covers(fault) and not self.is_contradicted(fault)

    def is_contradicted(self, fault: Failure) -> bool:
        """Return whether many elements at its place are right, or some are not rotated backwards."""
        if fault.wrong is None or self.elements is None:
            return False
        if "inverse" in self.facts:
            return bool((~fault.wrong.mask & ~self.elements(fault.wrong)).any())
        if "axis" not in self.facts:
            return False
        place, like = self.elements(fault.wrong), likeness_of(fault.wrong)
        alike = fault.wrong.mask | like.elements(fault.wrong) if like in SIMPLE else fault.wrong.mask
        return bool(fault.wrong.mask[place].any() and alike[place].mean() < SHARE)


def _has(wrong: WrongResult, text: str) -> bool:
    """Return whether all values of a result that was thinned have the name `text`."""
    return wrong.places is not None and (like := likeness_of(wrong)) is not None and like.text == text


def together(hypotheses: Sequence[Hypothesis]) -> Hypothesis:
    """Return several causes that are known together as one."""
    claims: dict[str, Any] = {}
    for hypothesis in hypotheses:
        claims = merged(claims, hypothesis.claims)
    facts = {name: value for hypothesis in hypotheses for name, value in hypothesis.facts.items()}
    around = [hypothesis.around for hypothesis in hypotheses if hypothesis.around]
    elements = [hypothesis.elements for hypothesis in hypotheses if hypothesis.elements]
    text = ", ".join(hypothesis.text for hypothesis in hypotheses)
    return Hypothesis(text, facts, elements[-1] if elements else None, claims, around[-1] if around else None)


def merged(claims: Mapping[str, Any], added: Mapping[str, Any]) -> dict[str, Any]:
    """Return claims with more claims; the mappings `fixed` and `lacks` are joined."""
    joined = {name: {**claims.get(name, {}), **added[name]} for name in ("fixed", "lacks") if name in added}
    return {**claims, **added, **joined}


def of_likeness(like: Likeness) -> Hypothesis:
    """Return the hypothesis that results are another rotation."""
    return Hypothesis(like.text, like.facts or _NOTHING, like.elements)


# ---- changes of calls ----


def casting(rotate: Callable[..., Any]) -> Callable[..., Any]:
    """Return code whose result is converted to the dtype of x."""

    @functools.wraps(rotate)
    def call(x: Any, *arguments: Any, **spec: Any) -> Any:
        y = rotate(x, *arguments, **spec)
        return tuple(map(_cast, y, x)) if isinstance(y, tuple) and isinstance(x, tuple) else _cast(y, x)

    return call


def _cast(y: Any, x: Any) -> Any:
    return y.astype(x.dtype) if hasattr(y, "astype") else y.to(x.dtype)
