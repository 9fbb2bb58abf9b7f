"""Find the likely cause of failed checks: a claim, or a change of the code, with which they fail no more.

Nothing is guessed from messages: each cause is tried, and counts the failures that go away.
"""

from __future__ import annotations

import inspect
import itertools
import json
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

from ._adapt import needs_no_positions, parameters_of_order, takes_arguments, takes_two
from ._checks import checks
from ._claims import CAPABILITIES, REACH
from ._factors import DTYPES, FIELDS
from ._guess import DONATES_X, WRITES_X, Change, Guess, writes_x
from ._judge import DELETES_X, Check, Judge
from ._likeness import find_rotation
from ._limits import find_limits
from ._own import OwnApply
from ._parts import whole_of
from ._probes import last_right, may_be
from ._target import Target
from ._told import depend_on_others, lacks_wholly, told_by
from ._where import place_in_any_x, place_of


@dataclass(frozen=True)
class Cause:
    """The likely cause of failures.

    Attributes
    ----------
    text
        The cause, in a few words.
    claims
        Fields of `Target` with which the failures go away; empty if the code has to change.
    explained, failed
        The number of failures that go away, of all.
    checks
        The names of the checks that fail no more; found by trying.

    Examples
    --------
    >>> import rope_array as ra
    >>> from rope_array.testing import run_checks
    >>> def rotate(x, pos):
    ...     return ra.apply(x, pos, pairing="half")
    >>> run_checks(rotate, dtypes=["float32"], layout="sd").cause.options
    '--claim pairing=half'
    """

    text: str
    claims: Mapping[str, Any] = field(default_factory=dict)
    explained: int = 0
    failed: int = 0
    checks: tuple[str, ...] = ()

    @property
    def options(self) -> str:
        """The claims as options of the command ``python -m rope_array check``."""
        return _joined(self.claims)

    @property
    def withdrawn(self) -> Mapping[str, Any]:
        """The claims by which the code lacks what the failed checks need: true only if nobody calls it so."""
        return {name: value for name, value in self.claims.items() if name in _WITHDRAWN}

    @property
    def stated(self) -> Mapping[str, Any]:
        """The other claims, which describe a convention or an accuracy."""
        return {name: value for name, value in self.claims.items() if name not in _WITHDRAWN}

    def __str__(self) -> str:
        advice = f"; try {_joined(self.stated)}" if self.stated else ""
        if self.withdrawn:
            advice += f"; only if nobody calls it so, claim that it lacks this: {_joined(self.withdrawn)}"
        return f"Likely cause{self.share}: {self.text}{advice}"

    @property
    def share(self) -> str:
        """The share of the failures that go away, if not all do: " of 3 of 17"."""
        return f" of {self.explained} of {self.failed}" if 0 < self.explained < self.failed else ""


# Claims that only leave out checks.
_WITHDRAWN = ("lacks", "fields", "dtypes")


def _joined(claims: Mapping[str, Any]) -> str:
    return " ".join(shlex.join(option) for option in options_of(claims))


def options_of(claims: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the command-line options of claims, as (option, value)."""
    for name, value in claims.items():
        if name == "library":
            yield "--library", value
        elif name in ("fixed", "lacks"):
            yield from (("--claim", f"{key}={_text_of(one)}") for key, one in value.items())
        else:
            yield "--claim", f"{name}={_text_of(value)}"


def _text_of(value: Any) -> str:
    """Return a claim's value as the command reads it, with double quotes, which a shell's quotes can hold."""
    if isinstance(value, tuple | list):
        return ",".join(map(str, value))
    return json.dumps(value) if isinstance(value, Mapping) else str(value)


class Findings(NamedTuple):
    """The cause of all failures together, each cause by itself, and the checks that no cause explains.

    Attributes
    ----------
    cause
        The likely cause; None if no cause explains several checks.
    causes
        The causes, each with the checks that it explains, in the order in which they have to be mended.
    unexplained
        The other failed checks, by the place of their wrong elements, or by their fault.
    """

    cause: Cause | None = None
    causes: tuple[Cause, ...] = ()
    unexplained: Mapping[str, tuple[str, ...]] = MappingProxyType({})


def find_causes(target: Target, failed: Mapping[str, str]) -> Findings:
    """Find the likely causes of failures, by trying claims and changes of the code.

    Parameters
    ----------
    target
        The target that failed.
    failed
        The details of the failed checks, by name.
    """
    failures = [check for check in checks() if check.name in failed]
    if not failures:
        return Findings()
    if fault := _signature_fault(target):
        return _only(Cause(fault, failed=len(failures)), target, failed)
    guess = Guess(target, seconds={})
    if fault := _fault_of_state(guess, failures, failed):
        return Findings(Cause(fault, failed=len(failures)), (), _by_place(target, failed, list(failed)))
    if any(DELETES_X in detail for detail in failed.values()):
        guess = guess._replace(texts=(DONATES_X,), change=Change(copied=True))
    elif "definition" in failed:
        found = find_rotation(target)
        if isinstance(found, str):
            return _only(Cause(found, failed=len(failures)), target, failed)
        guess = guess if found is None else found._replace(seconds=guess.seconds)
    elif any(check.name.startswith("inputs_unchanged") for check in failures) and writes_x(target):
        guess = guess._replace(texts=(WRITES_X,), change=Change(copied=True))
    return _refined(target, guess, failures, failed)


def _fault_of_state(guess: Guess, failures: Sequence[Check], failed: Mapping[str, str]) -> str:
    """Return the fault of results that depend on earlier calls, or ""."""
    by_name = {check.name: check for check in checks()}
    details = {check.name: failed[check.name] for check in failures}
    compiled = bool(guess.target.compiled) or guess.target.arrays.calls < 1000
    return depend_on_others(details, lambda name: bool(guess.failing([by_name[name]])), compiled)


def _only(cause: Cause, target: Target, failed: Mapping[str, str]) -> Findings:
    """Return a cause that was not tried."""
    return Findings(cause, (cause,), _by_place(target, failed, list(failed)))


def _by_place(target: Target, failed: Mapping[str, str], left: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Return the names of checks by the place in their detail, or by the detail."""
    groups: dict[str, tuple[str, ...]] = {}
    for name in left:
        place = place_in_any_x(place_of(failed[name])) or failed[name]
        groups[place] = (*groups.get(place, ()), name)
    return {f"{place}{_only_in(target, names, failed)}": names for place, names in groups.items()}


def _common_place(groups: Mapping[str, Sequence[str]], count: int) -> Cause | None:
    """Return the place that nearly all failures have in common, as a cause; None if there is none."""
    place, names = max(groups.items(), key=lambda item: len(item[1]))
    named = re.match(_PLACES, place) and not re.search("some of|nearly all|mostly", place)
    if not named or len(names) < max(2, 0.8 * count):
        return None
    return Cause(f"wrong results in {place}, in {len(names)} of {count} failed checks", failed=count)


# The first word of a place that is a part of x.
_PLACES = "(the last|features?|pairs?|rows?|heads?|batch|batches|every|positions?|negative)\\b"


def _only_in(target: Target, names: Sequence[str], failed: Mapping[str, str]) -> str:
    """Return " in float16 only" if the checks pass in all other dtypes."""
    kinds = {name.partition("[")[2][:-1] for name in names}
    others = {dtype for dtype in DTYPES if dtype in target.claimed} - kinds
    bases = {name.partition("[")[0] for name in names}
    if "" in kinds or not others or any(f"{base}[{other}]" in failed for base in bases for other in others):
        return ""
    return f", in {' and '.join(sorted(kinds))} only"


def find_cause(target: Target, failed: Sequence[str]) -> Cause | None:
    """Return the likely cause of the failure of these checks, or None if none is found."""
    return find_causes(target, dict.fromkeys(failed, "")).cause


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


class Step(NamedTuple):
    """A guess of the search, and the checks that fail still."""

    guess: Guess
    left: Sequence[Check]


def _refined(target: Target, guess: Guess, failures: Sequence[Check], failed: Mapping[str, str]) -> Findings:
    """Add claims to a guess as long as more failures go away."""
    steps = [Step(Guess(target), failures)]
    if guess.texts:
        steps.append(Step(guess, guess.failing(failures)))
    limited = False
    for _ in range(_MOST_STEPS):
        if not limited and "definition" not in {check.name for check in steps[-1].left}:
            steps += _limits(steps[-1])
            limited = True
        better = _best(*steps[-1], _classes)
        if better is None and (lacking := _best(*steps[-1], partial(_withdrawals, failed))):
            better = _as_last_resort(*lacking, steps[-1], failed)
        if better is None:
            break
        steps.append(Step(*better))
    guess, left = steps[-1]
    if len(steps) > 2 or set(_CLASS_TEXTS) & set(guess.claims):  # not every claim was tried on every check
        left = guess.failing(failures)
    guess = _pruned(target, guess, failures, len(left))
    unexplained = _by_place(target, failed, [check.name for check in left])
    texts = [*guess.texts, *_class_texts(guess.claims)]
    fault = _told(failed, left)
    if not texts:
        place = _common_place(unexplained, len(left))
        if fault and ("definition" not in failed or (place is None and fault.startswith("wrong with"))):
            place = Cause(fault, failed=len(left))
        return Findings(place, unexplained=unexplained)
    if fault and not guess.change.limits and ("definition" not in failed or fault.startswith("wrong with")):
        texts.append(f"the others: {fault}")
    counts = {"explained": len(failures) - len(left), "failed": len(failures)}
    gone = tuple(check.name for check in failures if check not in left)
    cause = Cause(", ".join(texts), guess.claims, **counts, checks=gone)
    steps[-1] = Step(steps[-1].guess, left)
    return Findings(cause, tuple(_one_by_one(steps, guess)), unexplained)


def _as_last_resort(
    guess: Guess, left: list[Check], before: Step, failed: Mapping[str, str]
) -> tuple[Guess, list[Check]] | None:
    """Return a guess that withdraws a claim, in words of the simplest call if no other cause is known.

    None if it explains fewer than half of the failures: then their own findings tell more.
    """
    if 2 * len(left) > len(before.left):
        return None
    fault = _told(failed, [check for check in before.left if check not in left])
    if fault.startswith("wrong with") and not before.guess.claims and not before.guess.texts:
        guess = guess._replace(texts=(*guess.texts[:-1], fault))
    return guess, left


def _told(failed: Mapping[str, str], some: Sequence[Check]) -> str:
    """Return the fault that the findings of some failed checks name best."""
    return told_by(
        {check.name: failed[check.name] for check in some}, {check.name: check.requirement for check in some}
    )


def _limits(step: Step) -> Iterator[Step]:
    """Yield steps that add sizes beyond which results are wrong, if that explains failures."""
    for limit in find_limits(step.guess.target) if step.left else ():
        guess = step.guess.with_limit(limit)
        left = guess.failing(step.left)
        if len(left) < len(step.left):
            step = Step(guess, left)
            yield step


def _one_by_one(steps: Sequence[Step], final: Guess) -> Iterator[Cause]:
    """Yield the cause that each step adds; a step that mends nothing alone is joined with the next."""
    texts: list[str] = []
    claims: dict[str, Any] = {}
    count = len(steps[0].left)
    for before, after in itertools.pairwise(steps):
        added = _added(before.guess.claims, after.guess.claims)
        added = {name: value for name, value in added.items() if name in final.claims}
        texts += [*after.guess.texts[len(before.guess.texts) :], *_class_texts(added)]
        claims |= added
        gone = tuple(check.name for check in before.left if check not in after.left)
        if gone and texts:
            yield Cause(", ".join(texts), claims, len(gone), count, gone)
            texts, claims = [], {}


def _added(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """Return the claims that a step adds; of `fixed` and `lacks`, the new names."""
    added = {}
    for name, value in after.items():
        if name in ("fixed", "lacks"):
            value = {key: one for key, one in value.items() if key not in before.get(name, {})}
        if value != before.get(name) and value != {}:
            added[name] = value
    return added


def _pruned(target: Target, guess: Guess, failures: Sequence[Check], left: int) -> Guess:
    """Return the guess without the classes of accuracy that a later claim made needless."""
    for name in _CLASS_TEXTS:
        if name in guess.claims and (guess.texts or len(guess.claims) > 1):
            other = guess.without(name, target)
            guess = other if len(other.failing(failures, left + 1)) <= left else guess
    return guess


def _class_texts(claims: Mapping[str, Any]) -> list[str]:
    """Return the texts of a class of accuracy; float32 angles are known to have an end."""
    return [
        text.format(claims[name])
        for name, text in _CLASS_TEXTS.items()
        if name in claims and not (name == "furthest" and "angles" in claims)
    ]


# Yields functions that add a claim to a guess, the likely ones first.
Claims = Callable[[Guess, Sequence[Check]], Iterator[Callable[[], Guess]]]


def _best(guess: Guess, left: Sequence[Check], more_claims: Claims) -> tuple[Guess, list[Check]] | None:
    """Return the guess with one more claim that leaves the fewest failures; None if none leaves fewer."""
    # A claim has to mend the definition first, if it fails. Some failures show whether a claim mends any.
    some = [check for check in left if check.name == "definition"] or left[:: max(1, len(left) // 8)]
    best: tuple[Guess, list[Check]] | None = None
    for make in more_claims(guess, left) if left else ():
        try:
            tried = make()
        except ValueError:  # contradictory claims
            continue
        if len(tried.failing(some)) == len(some):
            continue
        before = left if best is None else best[1]
        weaker = best is not None and best[0].claims and tried.claims.items() >= best[0].claims.items()
        rest = tried.failing(before if weaker else left, len(before))
        if not rest:
            return tried, rest
        if len(rest) < len(before):
            best = tried, rest
    return best


def _classes(guess: Guess, left: Sequence[Check]) -> Iterator[Callable[[], Guess]]:
    """Yield weaker classes of accuracy, alone, together, and with fewer positions."""
    target = guess.target
    if isinstance(target.rotate, OwnApply):
        return
    angles: list[dict[str, Any]] = [{"angles": name} for name in _WEAKER[target.angles]]
    own: list[dict[str, Any]] = [{"arithmetic": "own"}] if target.arithmetic != "own" else []
    classes = [*angles, *own, *({**one, **other} for one in angles for other in own)]
    plain = "definition" not in {check.name for check in left}
    with_ends: Iterator[dict[str, Any]] = iter(())
    if any(check.name.startswith("accuracy_") for check in left):
        with_ends = (
            {**each, "furthest": end} for each in (*classes, {}) for end in _ends(guess, each, plain)
        )
    for claims in itertools.chain(classes, with_ends):
        if not plain or may_be(guess, claims):
            yield partial(guess.adding, "", **claims)


def _ends(guess: Guess, claims: Mapping[str, Any], plain: bool) -> Sequence[int]:
    """Return last positions to try with a class of accuracy: the last that is right, or usual ends."""
    usual = [end for end in _ENDS if end < guess.target.reach]
    guess = guess.adding("", **claims)
    found = last_right(guess) if plain else None
    if found is None:
        return usual
    # The error of float32 angles grows: a round end, as the position where it is too large depends on x.
    return [end for end in usual if 65535 <= end <= found and guess.target.angles == "float32"] or [found]


# Claims that are added one after the other.
_MOST_STEPS = 5
_WEAKER = {"exact": ("float64", "float32"), "float64": ("float32",), "float32": ()}
# The last positions that a claim may leave, the furthest first.
_ENDS = (2**24, 2**20, 65535, 32767, 4095)
_CLASS_TEXTS = {
    "angles": "{} angles",
    "arithmetic": "16-bit numbers rotated in their own dtype",
    "furthest": "wrong results beyond position {:,}",
}


def _withdrawals(
    failed: Mapping[str, str], guess: Guess, left: Sequence[Check]
) -> Iterator[Callable[[], Guess]]:
    """Yield claims to withdraw: dtypes, fields and capabilities that fail as a whole."""
    if guess.change._replace(limits=()) != Change() or "definition" in {check.name for check in left}:
        return
    names = {name for check in left for name in check.needs}
    failing = guess.target.claimed & names - {"values", "any_positions", "offset_positions", *REACH}
    if takes_two(guess.target.arguments):  # every call is one of a tuple
        failing -= {name for name in failing if whole_of(name) == "tuple"}
    needing = _checks_needing(guess.target)
    claimed = {name for name in failing if lacks_wholly(name, failed, needing.get(name, ()))}
    right = tuple(name for name in DTYPES if name in guess.target.claimed - claimed)
    if right and claimed & set(DTYPES):
        wrong = " and ".join(name for name in DTYPES if name in claimed)
        yield partial(guess.adding, f"wrong results in {wrong}", dtypes=right)
    for name in (each for each in CAPABILITIES if each in claimed and each not in DTYPES):
        text = _fault_of(name)
        if name in FIELDS:
            fields = tuple(each for each in FIELDS if each in guess.target.claimed and each != name)
            yield partial(guess.adding, text, fields=fields)
        else:
            yield partial(guess.adding, text, lacks={name: "wrong results"})


def _checks_needing(target: Target) -> dict[str, list[str]]:
    """Return the names of the checks that apply to a target, by the capabilities that they need."""
    judge = Judge(target)
    needing: dict[str, list[str]] = {}
    for check in (check for check in checks() if check.inapplicable(judge) is None):
        for name in set(check.needs):
            needing.setdefault(name, []).append(check.name)
    return needing


def _fault_of(capability: str) -> str:
    meaning = CAPABILITIES[capability]
    verb, _, rest = meaning.partition(" ")
    return f"wrong results with {rest}" if verb == "takes" else f'not true of it: "{meaning}"'
