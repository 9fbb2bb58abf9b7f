"""Find the likely causes of failed checks.

Find the rotation of the plain call, and judge the failed checks once more with its claims. Group the failures
that are left by the explanation that most kept results share, else by the simplest failing call, else by
place.
"""

from __future__ import annotations

import inspect
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from ._adapt import needs_no_positions, parameters_of_order, takes_arguments
from ._candidates import candidates, with_end
from ._cause import Cause, Findings, merged
from ._checks import checks
from ._claims import shorten
from ._explanation import Explanation
from ._factors import DTYPES
from ._failure import GRADIENT, VAGUE, VALUE, Failure
from ._find_rotation import find_rotation, of_other_positions
from ._judge import DELETES_X, Judge
from ._lacking import lacking
from ._library_target import OwnApply
from ._observe import OBSERVED_CHECKS
from ._outcome import FAILED, outcome_of
from ._target import Target

_MOST_CAUSES, _MOST_CHARACTERS = 8, 230
WRITES_X = "it writes into x; return a new array"
DONATES_X = "it deletes x, as jax.jit does with donate_argnums; do not donate x, or claim keeps_x=REASON"
# Code that lacks it is called with copies of x.
_WRITES = {"lacks": {"keeps_x": "it writes into x"}}
# The other failures are consequences of this check's.
_SETTINGS = "settings_unchanged"


def find_causes(target: Target, faults: Mapping[str, Failure]) -> Findings:
    """Find the likely causes of the failures of a target, which are given by the name of their check."""
    failures = {check.name: faults[check.name] for check in checks() if check.name in faults}
    if not failures:
        return Findings()
    if fault := _signature_fault(target) or fault_of_state(target, failures):
        return _only(target, failures, fault)
    first = _first_cause(target, failures)
    if isinstance(first, str):
        if not any(each.covers(failures["definition"].wrong) for each in candidates(target, failures)):
            return _only(target, failures, first)
        first = None
    return _Search(target, failures).run(first)


def _first_cause(target: Target, failures: Mapping[str, Failure]) -> Explanation | str | None:
    """Return the cause of the plain call's failure, to be mended first; or its fault in words."""
    if any(DELETES_X in failure.words.statement for failure in failures.values()):
        return Explanation(DONATES_X, facts={"written": "x"}, claims=_WRITES)
    if "definition" in failures:
        rotation = find_rotation(target)
        if isinstance(rotation, Explanation) and not rotation.text and failures["definition"].wrong is None:
            # It raises for positions that are not consecutive.
            rotation = of_other_positions(target, ["offset"])
        return rotation if rotation is None or isinstance(rotation, str) or rotation.text else None
    written = failures.get("inputs_unchanged")
    if written is not None and written.words.statement == "x was written":
        return Explanation(WRITES_X, facts={"written": "x"}, claims=_WRITES)
    return None


def _signature_fault(target: Target) -> str:
    order = parameters_of_order(target.arguments)
    if takes_arguments(target.rotate, order) or (
        target.positions == "arange" and needs_no_positions(target.rotate, target.arguments)
    ):
        return ""
    signature = inspect.signature(target.rotate)
    names = [name for name, p in signature.parameters.items() if p.default is p.empty]
    fused = ", or claim arguments=q,k,pos if it takes q, k and positions" if len(names) == 3 else ""
    if needs_no_positions(target.rotate, target.arguments):
        fused = ", or claim positions=arange if its rows have the positions 0, 1, 2, ..."
    return (
        f"the suite calls rotate({', '.join(order)}), and its parameters are {signature}; wrap it in a "
        f"function of x and pos{fused}"
    )


def _only(target: Target, failures: Mapping[str, Failure], fault: str) -> Findings:
    """Return a cause that was not tried."""
    cause = Cause(fault, failed=len(failures))
    return Findings(cause, (cause,), _by_place(failures, failures, target.claimed))


# ---- the search ----


class _Group(NamedTuple):
    """Failures with one cause."""

    text: str
    names: tuple[str, ...]
    facts: Mapping[str, Any]
    claims: Mapping[str, Any]


class _Search:
    """The causes that are found, the target with their claims, and the failures that are left."""

    def __init__(self, target: Target, failures: Mapping[str, Failure]):
        self.original, self.failures = target, failures
        self.target, self.left = target, dict(failures)
        self.causes: list[Cause] = []

    def run(self, first: Explanation | None) -> Findings:
        """Mend the first cause, and group the failures that are left."""
        if first is not None:
            self.target = mended(self.target, first)
            now = _judged_again(self.target, self.left)
            gone = tuple(name for name in self.left if name not in now)
            self.left = now
            self._add(_Group(first.text, gone, first.facts, _shown_claims(self.original, first)))
        while self.left and len(self.causes) < _MOST_CAUSES and (group := self._by_explanation()):
            self._take(group)
        while self.left and len(self.causes) < _MOST_CAUSES and (group := self._by_call()):
            self._take(group)
        return self._findings()

    def _take(self, group: _Group) -> None:
        self._add(group)
        self.left = {name: failure for name, failure in self.left.items() if name not in group.names}

    def _add(self, group: _Group) -> None:
        """Add a cause; a cause with which no check passes becomes a part of the next."""
        first_failure = str(self.left.get(group.names[0], "")) if self.causes and group.names else ""
        text = group.text
        if self.causes and not self.causes[-1].checks:
            last = self.causes.pop()
            text, facts = f"{last.text}, {text}", {**last.facts, **group.facts}
            group, first_failure = group._replace(facts=facts, claims=merged(last.claims, group.claims)), ""
        text += only_in(group.names, self.failures, self.original.claimed)
        counts = len(group.names), len(self.failures)
        self.causes.append(Cause(text, group.claims, *counts, group.names, group.facts, first_failure))

    # ---- groups ----

    def _by_explanation(self) -> _Group | None:
        """Return the failures of the explanation that most checks share."""
        by_words = {(each.text, *each.facts.values()): each for each in candidates(self.target, self.left)}
        scores = ((self._score(each), each) for each in by_words.values())
        score, best = max(scores, key=lambda pair: pair[0], default=((0.0, 0), None))
        if best is None or not score[0]:
            return None
        names = self._covered(best)
        best = with_end(best, [wrong for name in names if (wrong := self.left[name].wrong)])
        text, claims = self._text_of(best, names), _shown_claims(self.original, best)
        if best.claims:
            self.target = mended(self.target, best)
            now = _judged_again(self.target, self.left)
            names = tuple(name for name in self.left if name in names or name not in now)
        if not claims:
            claims, names = self._lacking(names)
        self.left = {name: _without(failure, best) for name, failure in self.left.items()}
        return _Group(text, names, best.facts, claims)

    def _covered(self, explanation: Explanation) -> tuple[str, ...]:
        return tuple(name for name, failure in self.left.items() if explanation.covers(failure.wrong))

    def _score(self, explanation: Explanation) -> tuple[float, int]:
        """Return the number of checks that an explanation covers, and in how many right elements agree.

        An end of positions counts half: it says less than other positions do. A class of accuracy, an end or
        a place that covers a single check says less than its simplest failing call.
        """
        names = self._covered(explanation)
        number = len(_check_names(names))
        if not names or ("definition" in self.left and "definition" not in names):
            return 0.0, 0
        is_narrow = explanation.claims or "axis" in explanation.facts
        if is_narrow and number == 1 and any(self.left[name].factors for name in names):
            return 0.0, 0
        agree = sum(_agrees(explanation, self.left[name]) for name in names)
        return number / (2 if "furthest" in explanation.claims else 1), agree

    def _text_of(self, explanation: Explanation, names: Collection[str]) -> str:
        """Return the text of an explanation; where it holds in part, with the place or the call."""
        failures = [self.left[name] for name in names]
        simplest = min(failures, key=lambda failure: len(failure.factors) or 99)
        of_gradients = all(GRADIENT in failure.contexts for failure in failures)
        prefix = "the gradient is wrong: " if of_gradients else ""
        is_rotation = not explanation.claims and not {"pairs", "axis"} & {*explanation.facts}
        says_little = {"field", "inverse"} & {*explanation.facts} or len(_check_names(names)) == 1
        if (
            not explanation.claims
            and says_little
            and 2 * sum(bool(f.factors) for f in failures) >= len(names)
        ):
            pairs = f"; {explanation.text}" if "pairs" in explanation.facts else ""
            return f"{_text_of_call(simplest)}{pairs}"
        if is_rotation and not any(_agrees(explanation, failure) for failure in failures):
            return f"{prefix}wrong: {_elements_text(failures[0])}"
        return f"{prefix}{explanation.text}"

    def _by_call(self) -> _Group | None:
        """Return the failures of the simplest failing call; of later ones, only if two checks share it."""
        name = min(self.left, key=self._rank)
        failure = self.left[name]
        names = tuple(other for other in self.left if _is_alike(self.left[other], failure))
        is_plain = "definition" in self.left and not failure.factors
        claims, names = self._lacking(names)
        if (self.causes or is_plain) and len(_check_names(names)) < 2 and not claims:
            return None
        if is_plain and not claims and failure.is_vague and not failure.contexts:
            return None  # it would say that results are wrong, and no more
        facts = dict(factor.split("=", 1) for factor in failure.factors)
        return _Group(shorten(_text(names, failure), _MOST_CHARACTERS), names, facts, claims)

    def _lacking(self, names: tuple[str, ...]) -> tuple[Mapping[str, Any], tuple[str, ...]]:
        """Return the claim to lack a capability, and all failures that go away with it.

        The claim is empty, and the failures the named ones, if these do not go away.
        """
        claims = {} if "definition" in self.left else lacking(self.original, self.left, names)
        if claims:
            now = _judged_again(mended(self.target, Explanation("", claims=claims)), self.left)
            if not now.keys() & {*names}:
                return claims, tuple(name for name in self.left if name not in now)
        return {}, names

    def _rank(self, name: str) -> tuple[bool, bool, bool, int, int]:
        """Return a key that is smallest for the failure whose words say most."""
        failure = self.left[name]
        alike = _check_names(n for n, other in self.left.items() if _words(other) == _words(failure))
        every = len(_check_names(self.left))
        # An exception in one check of several may be a consequence of wrong results in another.
        is_common = 2 * len(alike) >= every and (len(alike) == every or not failure.raised)
        is_statement = not failure.place and not failure.factors
        return (
            name != _SETTINGS,
            name != "definition",
            not (is_statement and is_common),
            len(failure.factors) or 99,
            -len(alike),
        )

    def _findings(self) -> Findings:
        causes = tuple(cause for cause in self.causes if cause.checks)
        unexplained = _by_place(self.left, self.failures, self.original.claimed)
        if not causes:
            return Findings(unexplained=unexplained)
        claims: dict[str, Any] = {}
        for cause in causes:
            claims = merged(claims, cause.claims)
        explained = tuple(name for name in self.failures if name not in self.left)
        facts = {name: value for cause in causes for name, value in cause.facts.items()}
        # Numbered, unless a comma tells them apart.
        is_plain = len(causes) < 2 or not any(", " in cause.text for cause in causes)
        numbers = ["" if is_plain else f"({number}) " for number in range(1, len(causes) + 1)]
        text = ", ".join(f"{number}{cause.text}" for number, cause in zip(numbers, causes, strict=True))
        whole = Cause(text, claims, len(explained), len(self.failures), explained, facts)
        return Findings(whole, causes, unexplained)


def _agrees(explanation: Explanation, failure: Failure) -> bool:
    """Return whether right elements are as the explanation gives them, too."""
    return failure.wrong is not None and bool(explanation.elements(failure.wrong).all())


def _without(failure: Failure, explanation: Explanation) -> Failure:
    """Return a failure without the wrong elements that are explained, if others are left."""
    if failure.wrong is None or explanation.claims:
        return failure
    wrong = failure.wrong.without(explanation.elements(failure.wrong))
    if wrong is failure.wrong:
        return failure
    # A part of a large result has lost its rows: keep the words on all of it.
    return Failure.of(failure, wrong=wrong, _words=None if wrong.places is None else failure.words)


def _shown_claims(target: Target, explanation: Explanation) -> Mapping[str, Any]:
    """Return the claims that a user may make: none for a library, which has all, and none to write x."""
    hidden = isinstance(target.rotate, OwnApply) or "written" in explanation.facts
    return {} if hidden else explanation.claims


def mended(target: Target, explanation: Explanation) -> Target:
    """Return the target with the claims of an explanation, and called as if it were mended."""
    changed: dict[str, Any] = {
        name: {**getattr(target, name), **value} if name in ("fixed", "lacks") else value
        for name, value in explanation.claims.items()
    }
    if explanation.around is not None:
        changed["rotate"] = explanation.around(target.rotate)
    try:
        return replace(target, **changed) if changed else target
    except ValueError:  # the claims contradict each other
        return target


def _judged_again(target: Target, failures: Mapping[str, Failure]) -> dict[str, Failure]:
    """Run checks again; return the failures of the checks that still fail."""
    try:
        judge = Judge(target, thorough=True)  # only checks that failed are run
    except Exception:  # the target's own, in a trial call
        return dict(failures)
    judge.explains = not judge.budget.is_slow
    if all(failure.wrong is not None for failure in failures.values()):  # no observer has to watch
        judge.observed = {name: Failure() for name in OBSERVED_CHECKS if name not in failures}
    failed = [check.name for check in checks()
              if check.name in failures and outcome_of(check, judge)[0] == FAILED]  # fmt: skip
    return {name: judge.faults[name] for name in failed}


# ---- failures that depend on other calls ----


def fault_of_state(target: Target, failures: Mapping[str, Failure]) -> str:
    """Return the fault of results that depend on earlier calls, by running a few checks again; or ""."""
    names = [name for name in failures if not name.startswith(("threads", "first_call", "definition"))]
    if "definition" in failures or not names:
        return ""
    # A setting that is changed for good is as the call leaves it, when the check is run again.
    setting = failures[_SETTINGS].words.statement if _SETTINGS in failures else ""
    if _judged_again(target, {"definition": Failure()}):
        return setting or (
            f"right at first, and wrong for good after some call: the first check to fail is {names[0]}, and "
            "now the plain call is wrong too; a call leaves something behind"
        )
    count = 1 if target.compiled or target.arrays.calls < 1000 else 5
    sample = names[:: max(1, (len(names) - 1) // max(1, count - 1))][:count]
    right_now = [name for name in sample if not _judged_again(target, {name: failures[name]})]
    if 2 * len(right_now) <= len(sample):
        return ""
    fail = "fails" if len(right_now) == 1 else "fail"
    return setting or (
        f"results depend on earlier calls: {', '.join(right_now)} {fail} among the other checks, and not if "
        "run again"
    )


# ---- failures in words ----


def _check_names(names: Any) -> set[str]:
    """Return names without their dtypes."""
    return {name.partition("[")[0] for name in names}


def _words(failure: Failure) -> tuple[str, ...]:
    """Return the words that alike failures have in common."""
    if failure.place:
        return (*failure.contexts, failure.place_in_any_x, failure.words.values)
    return (*failure.contexts, failure.words.statement)


def _is_alike(failure: Failure, chosen: Failure) -> bool:
    """Return whether a failure's call has the factors of another's, and fails in the same way."""
    if _words(failure) == _words(chosen) and not (failure.factors and not chosen.factors):
        return True
    names, chosen_names = ({factor.partition("=")[0] for factor in f.factors} for f in (failure, chosen))
    if not chosen_names or not chosen_names <= names or chosen.contexts not in ((), failure.contexts):
        return False
    return _observed(failure) == _observed(chosen)


def _observed(failure: Failure) -> str:
    """Return a fault without wrong elements and without an exception, such as "x was written"."""
    return "" if failure.place or failure.raised else failure.words.statement


def _text(names: Collection[str], failure: Failure) -> str:
    """Return a failure of checks in a few words."""
    context, several = ": ".join(failure.contexts), len(_check_names(names)) > 1
    check = "" if context or several else min(_check_names(names))
    if failure.factors or (failure.call is not None and failure.place):
        return _text_of_call(failure)
    if not failure.place:
        raises = f"{check} raises " if failure.raised and check else ""
        return f"{raises}{': '.join(filter(None, (context, failure.words.statement)))}"
    if failure.contexts[:1] == (GRADIENT,):
        return f"the gradient is wrong: {_elements_text(failure)}"
    where = f"{context}, wrong results" if context else f"wrong results{f' in {check}' if check else ''}"
    return f"{where}: {_elements_text(failure)}"


def _text_of_call(failure: Failure) -> str:
    """Return the simplest failing call, the nearest right calls, and the elements."""
    call = dict(factor.split("=", 1) for factor in (failure.call or "").split())
    cotangent = call.pop("gradient", "")
    shown = " ".join(f"{name}={value}" for name, value in call.items())
    right = ", ".join(text for text in failure.nearest if text != "without gradient")
    of_cotangent = f" for a cotangent that is {cotangent}" if cotangent not in ("", "contiguous") else ""
    text = f"{_subject(failure, cotangent)}{f' with {shown}' if shown else ''}{of_cotangent}"
    return f"{text}{f', right {right}' if right else ''}: {_elements_text(failure)}"


def _subject(failure: Failure, cotangent: str) -> str:
    if GRADIENT in failure.contexts:
        return "the gradient is wrong"
    context = next((context for context in failure.contexts if context != VALUE), "")
    wrong = "the result is wrong while a gradient is recorded" if cotangent else "wrong"
    return f"{context}: {wrong}" if context else wrong


def _elements_text(failure: Failure) -> str:
    """Return the place of the wrong elements, and their values if they are known; or the statement."""
    _, values, statement = failure.words
    place = failure.place if failure.factors else failure.place_in_any_x
    return values if values and place in VAGUE else ", ".join(filter(None, (place, values))) or statement


def _by_place(
    failures: Mapping[str, Failure], failed: Collection[str], claimed: Collection[str]
) -> dict[str, Any]:
    """Return the names of checks by the place of their wrong elements, or by their failure."""
    groups: dict[str, tuple[str, ...]] = {}
    for name, failure in failures.items():
        place = failure.place_in_any_x or shorten(str(failure))
        groups[place] = (*groups.get(place, ()), name)
    return {f"{place}{only_in(names, failed, claimed)}": names for place, names in groups.items()}


def only_in(names: Collection[str], failed: Collection[str], claimed: Collection[str]) -> str:
    """Return ", in float16 only" if checks of a dtype fail, and none of them in the other dtypes."""
    dtypes = {name.partition("[")[2][:-1] for name in names}
    other_dtypes = {dtype for dtype in DTYPES if dtype in claimed} - dtypes
    others = (f"{check}[{dtype}]" for check in _check_names(names) for dtype in other_dtypes)
    if "" in dtypes or not dtypes or not other_dtypes or any(name in failed for name in others):
        return ""
    return f", in {' and '.join(sorted(dtypes))} only"
