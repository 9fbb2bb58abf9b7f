"""Find the likely causes of failed checks, by judging the kept wrong results again.

Accept the hypothesis that explains the results of most checks, run these checks again without the wrong
elements that it explains, and look for the next hypothesis. So each of several faults gets a name.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ._adapt import needs_no_positions, parameters_of_order, takes_arguments, takes_two
from ._capability_parts import whole_of
from ._cause import Cause, Findings
from ._checks import checks
from ._claims import CAPABILITIES, REACH
from ._factors import DTYPES, FIELDS, CallFactors, needs_of, read_call
from ._failure import GRADIENT, Failure
from ._find_rotation import find_rotation, of_other_positions
from ._hypotheses import of_accuracy, of_kept_results, with_end
from ._hypothesis import Hypothesis, merged, together
from ._judge import DELETES_X, Judge
from ._library_target import OwnApply
from ._observe import OBSERVED_CHECKS
from ._outcome import FAILED, outcome_of
from ._shared_findings import by_place, depend_on_others, factors_of, lacks_wholly, only_in, shared_findings
from ._target import Target
from ._wrong_result import Mask, WrongResult

_MOST_CAUSES, _MOST_REJECTED = 8, 8
# Capabilities that most checks need.
_BASIC = ("values", "any_positions", "offset_positions")
WRITES_X = "it writes into x; return a new array"
DONATES_X = "it deletes x, as jax.jit does with donate_argnums; do not donate x, or claim keeps_x=REASON"
# Code that lacks it is called with copies of x.
_WRITES = {"lacks": {"keeps_x": "it writes into x"}}


def find_causes(target: Target, faults: Mapping[str, Failure]) -> Findings:
    """Find the likely causes of failures, by judging the kept wrong results again.

    Parameters
    ----------
    target
        The target that failed.
    faults
        The faults of the failed checks, by name.
    """
    search = _Search(target, {check.name: faults[check.name] for check in checks() if check.name in faults})
    if not search.left:
        return Findings()
    if fault := _signature_fault(target) or search.fault_of_state():
        return search.only(fault)
    if any(DELETES_X in fault.text for fault in faults.values()):
        search.accept(Hypothesis(DONATES_X, {"written": "x"}, claims=_WRITES))
    elif "definition" in faults:
        rotation = find_rotation(target)
        if isinstance(rotation, Hypothesis) and not rotation.text and faults["definition"].wrong is None:
            # It raises for positions that are not consecutive.
            rotation = of_other_positions(target, ["offset"])
        if isinstance(rotation, str):
            return search.only(rotation)
        if rotation is not None and rotation.text:
            search.accept(rotation, is_known=True)
    elif "inputs_unchanged" in faults and "x was written" in faults["inputs_unchanged"].text:
        search.accept(Hypothesis(WRITES_X, {"written": "x"}, claims=_WRITES))
    while len(search.causes) < _MOST_CAUSES and search.left and (best := search.best()):
        if not search.accept(best):
            break
    search.explain_rest()
    return search.findings()


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


class _Search:
    """Accepted causes, and the faults that are left.

    A check belongs to the first cause that explains its kept result, once it passes with all of them.
    """

    def __init__(self, target: Target, faults: Mapping[str, Failure]):
        self.original, self.faults = target, faults
        self.target, self.left = target, dict(faults)
        self.checks = {check.name: check for check in checks()}
        self.causes: list[Cause] = []
        self.excuses: list[Callable[[WrongResult], Mask]] = []
        self.owner: dict[str, int] = {}  # of each check, the first cause that explains its result
        self.rejected: set[str] = set()
        self.faults_then: dict[str, Failure] = {}  # of each check, when that cause was accepted
        self.pending: list[Hypothesis] = []  # accepted, but no check passes with them alone

    # ---- hypotheses ----

    def best(self) -> Hypothesis | None:
        """Return the hypothesis that explains the results of most checks; None if none explains any.

        An end of positions counts half: it says less than other positions do.
        """
        best, highest_score = None, 0.0
        is_own = isinstance(self.original.rotate, OwnApply)
        accuracy = [] if is_own else [*of_accuracy(self.target, self.left)]
        has_end = self.target.angles == "float32"  # float32 angles are known to have one
        last = [] if has_end else [hypothesis for hypothesis in accuracy if "furthest" in hypothesis.claims]
        first = [hypothesis for hypothesis in accuracy if hypothesis not in last]
        for hypothesis in (*first, *of_kept_results(self.left), *last):
            explained = [] if hypothesis.text in self.rejected else self.explained(hypothesis)
            score = len({name.partition("[")[0] for name in explained}) / (2 if hypothesis in last else 1)
            # A place in one result of many may be a part of another fault.
            lowest_score = 2 if "axis" in hypothesis.facts and len(self.left) > 1 else 0
            if (
                score > highest_score
                and score >= lowest_score
                and ("definition" not in self.left or "definition" in explained)
            ):
                best, highest_score = hypothesis, score
        return best

    def explained(self, hypothesis: Hypothesis) -> list[str]:
        """Return the checks whose results a hypothesis explains; none if a result contradicts it."""
        if any(
            hypothesis.covers(fault) and hypothesis.is_contradicted(fault) for fault in self.left.values()
        ):
            return []
        return [name for name, fault in self.left.items() if hypothesis.explains(fault)]

    def accept(self, hypothesis: Hypothesis, is_known: bool = False) -> bool:
        """Run checks again as if a hypothesis holds; return whether to search on.

        A known hypothesis with which no check passes becomes a part of the next cause.
        """
        hypothesis = with_end(hypothesis, self.left)
        explained = [name for name, fault in self.left.items() if hypothesis.covers(fault)]
        try:
            target = self._mended(hypothesis)
        except ValueError:  # the claims contradict each other
            return self._reject(hypothesis)
        is_excused = hypothesis.elements is not None and not hypothesis.is_claimed
        excuses = [*self.excuses, *([hypothesis.elements] if hypothesis.elements and is_excused else [])]
        again = explained if target is self.target else [*self.left]
        faults = self.faults_now(again, target, excuses)
        gone = [name for name in again if name not in faults]
        if not gone and not (explained and is_excused and not hypothesis.claims):
            if not is_known:
                return self._reject(hypothesis)
            self.pending, self.target, self.left = [hypothesis], target, {**self.left, **faults}
            return True
        hypothesis, self.pending = together([*self.pending, hypothesis]) if self.pending else hypothesis, []
        cause = self._cause_of(hypothesis, explained, gone)
        if is_excused:
            self._take_away(hypothesis, again)
        self._add(cause, [*explained, *gone])
        self.target, self.excuses = target, excuses
        self.left = {name: faults.get(name, fault) for name, fault in self.left.items() if name not in gone}
        return True

    def _mended(self, hypothesis: Hypothesis) -> Target:
        """Return the target with the claims of a hypothesis, and called as if it were mended."""
        changed: dict[str, Any] = {}
        for name, value in hypothesis.claims.items():
            changed[name] = {**getattr(self.target, name), **value} if name in ("fixed", "lacks") else value
        if hypothesis.around is not None:
            changed["rotate"] = hypothesis.around(self.target.rotate)
        return replace(self.target, **changed) if changed else self.target

    def _cause_of(self, hypothesis: Hypothesis, explained: Sequence[str], gone: Sequence[str]) -> Cause:
        """Return the cause of an accepted hypothesis; a wrong field is named by the simplest failing call."""
        words = self._words_of(explained) if hypothesis.facts.keys() & {"field", "inverse"} else ""
        dtypes = {wrong.dtype for name in explained if (wrong := self.left[name].wrong)}
        several = len(self.original.claimed & {*DTYPES}) > 1
        # float32 is the usual dtype of calls: it says nothing.
        where = f" in {min(dtypes)}" if several and len(dtypes) == 1 and "float32" not in dtypes else ""
        claims = hypothesis.shown_claims(self.original) or self._lacking([*explained, *gone])
        of_gradients = explained and all(GRADIENT in self.left[name].contexts for name in explained)
        prefix = "the gradient is wrong: " if of_gradients else ""
        return Cause(words or f"{prefix}{hypothesis.text}{where}", claims, facts=hypothesis.facts)

    def _take_away(self, hypothesis: Hypothesis, again: Sequence[str]) -> None:
        """Leave out the explained elements in the results of the checks that are not run again."""
        for wrong in (self.left[name].wrong for name in self.left.keys() - {*again}):
            if wrong is not None and hypothesis.elements is not None:
                wrong.take_away(hypothesis.elements(wrong))

    def _reject(self, hypothesis: Hypothesis) -> bool:
        self.rejected.add(hypothesis.text)
        return len(self.rejected) < _MOST_REJECTED

    def _add(self, cause: Cause, names: Sequence[str]) -> None:
        for name in names:
            if self.owner.setdefault(name, len(self.causes)) == len(self.causes):
                self.faults_then[name] = self.left[name]
        self.causes.append(cause)

    def faults_now(self, names: Sequence[str], target: Target, excuses: Sequence[Any]) -> dict[str, Failure]:
        """Run checks again; return the faults of the checks that still fail."""
        try:
            judge = Judge(target, thorough=True)  # only checks that failed are run
        except Exception:  # the target's own, in a trial call
            return {name: self.left.get(name, Failure("")) for name in names}
        judge.excuses, judge.explains = [*excuses], not judge.is_slow
        kept_faults = [self.left.get(name, Failure("")) for name in names]
        if all(fault.wrong is not None for fault in kept_faults):  # no observer has to watch
            judge.observed = {name: Failure("") for name in OBSERVED_CHECKS if name not in names}
        failed = [name for name in names if outcome_of(self.checks[name], judge)[0] == FAILED]
        return {name: judge.faults[name] for name in failed}

    def fault_of_state(self) -> str:
        """Return the fault of results that depend on earlier calls, or ""."""
        compiled = bool(self.original.compiled) or self.original.arrays.calls < 1000
        return depend_on_others(
            self.left, lambda name: bool(self.faults_now([name], self.original, ())), compiled
        )

    # ---- failures that no hypothesis explains ----

    def explain_rest(self) -> None:
        """Add causes for the failures left: lacking capabilities, then findings that several checks share."""
        if "definition" not in self.left:
            for withdrawal in self._withdrawals():
                self.accept(withdrawal)
        self.owner = {name: number for name, number in self.owner.items() if name not in self.left}
        requirements = {name: self.checks[name].requirement for name in self.left}
        for shared in shared_findings(self.left, requirements) if self.left else ():
            if "definition" in self.left and not shared.factors:
                break
            facts = dict(factor.split("=", 1) for factor in shared.factors)
            self._add(Cause(shared.text, facts=facts), shared.names)
            self.left = {name: fault for name, fault in self.left.items() if name not in shared.names}

    def _withdrawals(self) -> Iterator[Hypothesis]:
        """Yield claims to withdraw: dtypes, fields and capabilities that fail as a whole."""
        names = {capability for name in self.left for capability in self.checks[name].needs}
        failing = self.target.claimed & names - {*_BASIC, *REACH}
        if takes_two(self.target.arguments):  # every call is one of a tuple
            failing -= {name for name in failing if whole_of(name) == "tuple"}
        needing = self._checks_needing()
        claimed = {name for name in failing if lacks_wholly(name, self.left, needing.get(name, ()))}
        right = tuple(name for name in DTYPES if name in self.target.claimed - claimed)
        if right and claimed & {*DTYPES}:
            wrong = [name for name in DTYPES if name in claimed]
            text = self._words_needing(wrong) or f"wrong results in {' and '.join(wrong)}"
            yield Hypothesis(text, {"lacks": wrong}, claims={"dtypes": right})
        for name in CAPABILITIES:
            if name in claimed and name not in DTYPES:
                text = self._words_needing([name]) or _lack_text(name)
                yield Hypothesis(text, {"lacks": [name]}, claims=self._without(name))

    def _lacking(self, names: Sequence[str]) -> dict[str, Any]:
        """Return the claim to lack the capability that most of these checks need, if all of it fails."""
        if "definition" in self.faults or isinstance(self.original.rotate, OwnApply):
            return {}
        plain, need_counts = CallFactors(), Counter[str]()
        for name in names:
            call = read_call(self.faults[name].call or "", plain)
            need_counts.update(
                {*self.checks[name].needs, *needs_of(call, plain)} & {*CAPABILITIES} - {*DTYPES, *REACH}
            )
        needing = self._checks_needing()
        for name, count in need_counts.most_common():
            affected = needing.get(name, ())
            if name not in _BASIC and 2 * count >= len(names) and lacks_wholly(name, self.faults, affected):
                return self._without(name)
        return {}

    def _without(self, name: str) -> dict[str, Any]:
        """Return the claim to lack a capability."""
        if name not in FIELDS:
            return {"lacks": {name: "wrong results"}}
        return {"fields": tuple(field for field in FIELDS if field in self.target.claimed and field != name)}

    def _words_of(self, names: Sequence[str]) -> str:
        """Return the words of the simplest failing call, if most of these checks show one; else ""."""
        faults_with_calls = {name: self.left[name] for name in names if factors_of(self.left[name])}
        if not faults_with_calls or 2 * len(faults_with_calls) < len(names):
            return ""
        requirements = {name: self.checks[name].requirement for name in faults_with_calls}
        text = next(shared_findings(faults_with_calls, requirements)).text
        return text if text.startswith(("wrong with", "the gradient")) else ""

    def _words_needing(self, capabilities: Sequence[str]) -> str:
        """Return the words of the simplest failing call of the checks that need capabilities, or ""."""
        names = [name for name in self.left if {*capabilities} & {*self.checks[name].needs}]
        return "" if self.causes else self._words_of(names)

    def _checks_needing(self) -> dict[str, list[str]]:
        """Return the names of the checks that apply to the target, by the capabilities that they need."""
        judge = Judge(self.target)
        needing: dict[str, list[str]] = {}
        for check in (check for check in self.checks.values() if check.inapplicable(judge) is None):
            for name in set(check.needs):
                needing.setdefault(name, []).append(check.name)
        return needing

    # ---- the findings ----

    def only(self, fault: str) -> Findings:
        """Return a cause that was not tried."""
        cause = Cause(fault, failed=len(self.faults))
        return Findings(cause, (cause,), by_place(self.faults, self.faults, self.original.claimed))

    def findings(self) -> Findings:
        """Return the causes with the checks that they explain."""
        count = len(self.faults)
        causes: list[Cause] = []
        for number, cause in enumerate(self.causes):
            names = tuple(name for name in self.faults
                          if self.owner.get(name) == number and name not in self.left)  # fmt: skip
            if names:
                text = f"{cause.text}{only_in(names, self.faults, self.original.claimed)}"
                finding = str(self.faults_then[names[0]]) if causes else ""
                causes.append(
                    replace(cause, text=text, explained=len(names), failed=count, checks=names, found=finding)
                )
        unexplained = by_place(self.left, self.faults, self.original.claimed)
        if not causes:
            return Findings(unexplained=unexplained)
        claims: dict[str, Any] = {}
        for cause in causes:
            claims = merged(claims, cause.claims)
        explained = tuple(name for name in self.faults if name not in self.left)
        facts = {name: value for cause in causes for name, value in cause.facts.items()}
        text = ", ".join(cause.text for cause in causes)
        return Findings(
            Cause(text, claims, len(explained), count, explained, facts), tuple(causes), unexplained
        )


def _lack_text(capability: str) -> str:
    meaning = CAPABILITIES[capability]
    verb, _, taken = meaning.partition(" ")
    return f"wrong results with {taken}" if verb == "takes" else f'not true of it: "{meaning}"'
