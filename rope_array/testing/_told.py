"""Name faults in the words of the failed checks: the simplest failing call, or a finding that they share.

Nothing is tried here: this is the last word on failures that no claim and no place explains.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import NamedTuple

from ._claims import DTYPES, MODES, shorten
from ._parts import PARTS
from ._verdict import Fault
from ._where import PLACE

_MOST_CHARACTERS = 230
_NUMBERS = re.compile(r"[\d,]+ of [\d,]+ elements")
_ERROR = re.compile(r"\w*(Error|Exception|Interrupt|Exit)\b")
# The other failures are consequences of these checks'.
_FIRST = ("settings_unchanged",)
# Faults of these are named, and never advised to be claimed away.
_NEVER_WITHDRAWN = {
    *("gradient", "same_bits", "keeps_x", "lazy", "jit", "strides", *MODES),
    *(set(PARTS) - {"float_positions", "tuple", "scaling"}),  # a part is narrower
}


class Finding(NamedTuple):
    """The finding of one failed check.

    Attributes
    ----------
    name, check
        The check's name, and its name without a dtype.
    text
        The finding in a few words.
    factors
        The factors of the simplest failing call, such as "width=72".
    is_statement
        Whether the finding is about no elements: "the call wrote to x".
    """

    name: str
    check: str
    text: str
    factors: tuple[str, ...] = ()
    is_statement: bool = False


class Told(NamedTuple):
    """A fault in words, and the names of the checks that it is the fault of."""

    text: str
    names: tuple[str, ...]
    is_of_a_call: bool


def told_by(faults: Mapping[str, Fault], requirements: Mapping[str, str]) -> list[Told]:
    """Return the faults that findings name best, the first the best, each with its checks.

    A fault that a call shows is one of all checks whose simplest calls have its factors. What is left has
    another fault, if a call shows it.
    """
    findings = [_finding(name, fault, requirements[name]) for name, fault in faults.items()]
    told: list[Told] = []
    while findings:
        chosen = _chosen(findings)
        if told and not chosen.factors:
            break
        names = {factor.partition("=")[0] for factor in chosen.factors}
        alike = [one for one in findings if one.text == chosen.text or (names and names <= _names_of(one))]
        if told and len({one.check for one in alike}) < 2:
            break
        told.append(
            Told(shorten(chosen.text, _MOST_CHARACTERS), tuple(one.name for one in alike), bool(names))
        )
        findings = [one for one in findings if one not in alike]
    return told


def _names_of(finding: Finding) -> set[str]:
    return {factor.partition("=")[0] for factor in finding.factors}


def _chosen(findings: list[Finding]) -> Finding:
    """Return the finding that most share, of the simplest call, or the first."""
    bases = {finding.check for finding in findings}
    statement = _commonest(finding for finding in findings if finding.is_statement)
    if first := next((finding for finding in findings if finding.check in _FIRST), None):
        return first
    shared = len(_checks_with(statement, findings)) if statement else 0
    # An exception in one check of several may be a consequence of wrong results in another.
    if statement and 2 * shared >= len(bases) and (shared == len(bases) or not _ERROR.search(statement.text)):
        return statement
    calls = [finding for finding in findings if finding.factors]
    fewest = min((len(finding.factors) for finding in calls), default=0)
    chosen = _commonest(finding for finding in calls if len(finding.factors) == fewest)
    return chosen or _commonest(findings) or findings[0]


def _commonest(findings: Iterable[Finding]) -> Finding | None:
    """Return the finding that most checks have in common, the first of several."""
    some = list(findings)
    return max(some, key=lambda finding: len(_checks_with(finding, some)), default=None)


def _checks_with(finding: Finding, findings: Iterable[Finding]) -> set[str]:
    return {other.check for other in findings if other.text == finding.text}


def _finding(name: str, fault: Fault, requirement: str) -> Finding:
    check, _, dtype = name.partition("[")
    where = f" in {dtype[:-1]}" if dtype else ""
    context = ": ".join(fault.contexts)
    is_wrong = PLACE in fault.text
    factors = _factors_of(fault)
    if factors or (fault.call is not None and is_wrong):
        return Finding(name, check, _text_of_call(fault), factors)
    if not is_wrong:
        text = _statement(": ".join(filter(None, (context, fault.text))))
        return Finding(name, check, f"{check} raises {text}" if _ERROR.match(text) else text, is_statement=True)
    before = fault.text.rpartition(PLACE)[0].removesuffix(": ").strip()
    before = ": ".join(filter(None, (context, before)))
    if before.startswith("the gradient"):
        return Finding(name, check, f"the gradient is wrong{where}: {elements_of(fault.text)}")
    if before:
        return Finding(name, check, f"{before}, wrong results{where}: {elements_of(fault.text)}")
    text = f'not true of it: "{_sentence(requirement)}"{where}; wrong: {elements_of(fault.text)}'
    return Finding(name, check, text)


def _factors_of(fault: Fault) -> tuple[str, ...]:
    """Return the factors of a fault's call; recording a plain gradient is none."""
    return tuple(one for one in (fault.call or "").split() if one != "gradient=contiguous")


def _statement(detail: str) -> str:
    """Return a finding without its fields, or the line of code."""
    return re.sub(r" \((fields \{.*|in .*:\d+\))$", "", detail)


def _text_of_call(fault: Fault) -> str:
    """Return the finding of a check that shows the simplest failing call, and what is right."""
    call = (fault.call or "").split()
    cotangent = next((one.partition("=")[2] for one in call if one.startswith("gradient=")), "")
    right = [one for one in fault.nearest.split(", w") if one.removeprefix("w") != "ithout gradient"]
    right_text = ", w".join(filter(None, right))
    shown = " ".join(one for one in call if not one.startswith("gradient="))
    of_cotangent = f" for a cotangent that is {cotangent}" if cotangent not in ("", "contiguous") else ""
    text = f"{_subject(fault, cotangent)}{f' with {shown}' if shown else ''}{of_cotangent}"
    text += f", right {right_text}" if right_text else ""
    return f"{text}: {elements_of(fault.text)}"


def _subject(fault: Fault, cotangent: str) -> str:
    if "the gradient" in fault.contexts or fault.text.startswith("the gradient"):
        return "the gradient is wrong"
    context = next((one for one in fault.contexts if not one.startswith("the value")), "")
    wrong = "the result is wrong while a gradient is recorded" if cotangent else "wrong"
    return f"{context}: {wrong}" if context else wrong


def elements_of(detail: str) -> str:
    """Return the place of the wrong elements, and their values if they are known; or the detail's start."""
    _, is_place, rest = detail.rpartition(PLACE)
    parts = rest.split("; ")
    if not is_place or len(parts) == 1:
        return detail.partition("; ")[0]
    known = len(parts) > 1 and not _NUMBERS.match(parts[1])
    vague = parts[0] in ("all elements", "most elements", "nearly all elements", "scattered elements")
    return parts[1] if known and vague else f"{parts[0]}, {parts[1]}" if known else parts[0]


def _sentence(requirement: str) -> str:
    """Return the first sentence of a requirement, without its end."""
    return re.split(r"(?<=\w)\.(?: |$)|: ", requirement)[0]


# ---- capabilities that a target lacks as a whole ----


def lacks_wholly(capability: str, faults: Mapping[str, Fault], needing: Collection[str]) -> bool:
    """Return whether failures are of a whole capability, so that a claim to lack it hides no other fault.

    Parameters
    ----------
    capability
        The capability, a field or a dtype.
    faults
        The faults of all failed checks, by name.
    needing
        The names of all checks that apply and need the capability.
    """
    some = [name for name in needing if name in faults]
    if capability in _NEVER_WITHDRAWN:
        return capability == "gradient" and all(_raises(faults[name]) for name in some)
    if capability in DTYPES:
        return f"accuracy_small[{capability}]" in faults
    if 2 * len(set(map(_base, some))) < len(set(map(_base, needing))) + (len(needing) > 1):
        return False
    factors = [_factors_of(faults[name]) for name in some if faults[name].call]
    return not factors or min(map(len, factors)) <= 1


def _raises(fault: Fault) -> bool:
    """Return whether a fault is an exception of the code, and no wrong result."""
    return PLACE not in fault.text and re.search(r"\b[A-Z]\w*(Error|Exception)\b", fault.text) is not None


def _base(name: str) -> str:
    return name.partition("[")[0]


# ---- failures that depend on other calls ----

_THREADS = "threads"


def depend_on_others(faults: Mapping[str, Fault], fails_now: Callable[[str], bool], is_compiled: bool) -> str:
    """Return the fault of results that depend on earlier calls, found by running a few checks again; or "".

    Parameters
    ----------
    faults
        The faults of the failed checks, by name, in the order of the checks.
    fails_now
        Runs a check again, and returns whether it fails.
    is_compiled
        Whether each check takes long.
    """
    names = [name for name in faults if not name.startswith((_THREADS, "first_call", "definition"))]
    if "definition" in faults or not names:
        return ""
    # A setting that is changed for good is as the call leaves it, when the check is run again.
    setting = next((_statement(str(faults[name])) for name in _FIRST if name in faults), "")
    if fails_now("definition"):
        return setting or (
            f"right at first, and wrong for good after some call: the first check to fail is {names[0]}, and "
            "now the plain call is wrong too; a call leaves something behind"
        )
    some = list(_spread(names, 1 if is_compiled else 5))
    right_now = [name for name in some if not fails_now(name)]
    if 2 * len(right_now) <= len(some):
        return ""
    fail = "fails" if len(right_now) == 1 else "fail"
    return setting or (
        f"results depend on earlier calls: {', '.join(right_now)} {fail} among the other checks, and not if "
        "run again"
    )


def _spread(names: list[str], count: int) -> Iterator[str]:
    """Yield up to `count` of the names, from the first to the last."""
    step = max(1, (len(names) - 1) // max(1, count - 1)) if count > 1 else len(names)
    yield from names[::step][:count]
