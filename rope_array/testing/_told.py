"""Name a fault in the words of the failed checks: the simplest failing call, or a finding that they share.

Nothing is tried here: the text is the last word on failures that no claim and no limit of size explains.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import NamedTuple

from ._claims import MODES, shorten
from ._factors import DTYPES
from ._parts import PARTS
from ._where import PLACE

_MOST_CHARACTERS = 230
_CALL = re.compile(
    r"(?:wrong with (?P<case>.+?)|--case (?P<quoted>'[^']+'|\S+) is wrong)"
    r"(?P<once>, but not if the call is repeated)?(?:; right (?P<right>.+?))?: (?P<rest>.*)"
)
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
    check
        The check's name, without a dtype.
    text
        The finding in a few words.
    factors
        The factors of the simplest failing call, such as "width=72"; None if the check shows no call.
    is_statement
        Whether the finding is about no elements: "the call wrote to x".
    """

    check: str
    text: str
    factors: tuple[str, ...] | None = None
    is_statement: bool = False


def told_by(failed: Mapping[str, str], requirements: Mapping[str, str]) -> str:
    """Return the fault that findings name best: one that most share, the simplest call, or the first.

    Parameters
    ----------
    failed
        The details of failed checks, by name, in the order of the checks.
    requirements
        The requirement of each check.
    """
    findings = [_finding(name, detail, requirements[name]) for name, detail in failed.items() if detail]
    if not findings:
        return ""
    bases = {finding.check for finding in findings}
    statement = _commonest(finding for finding in findings if finding.is_statement)
    if first := next((finding for finding in findings if finding.check in _FIRST), None):
        return shorten(first.text, _MOST_CHARACTERS)
    shared = len(_checks_with(statement, findings)) if statement else 0
    # An exception in one check of several may be a consequence of wrong results in another.
    if statement and 2 * shared >= len(bases) and (shared == len(bases) or not _ERROR.search(statement.text)):
        return shorten(statement.text, _MOST_CHARACTERS)
    calls = [finding for finding in findings if finding.factors]
    fewest = min((len(finding.factors or ()) for finding in calls), default=0)
    chosen = _commonest(finding for finding in calls if len(finding.factors or ()) == fewest)
    return shorten((chosen or _commonest(findings) or findings[0]).text, _MOST_CHARACTERS)


def _commonest(findings: Iterable[Finding]) -> Finding | None:
    """Return the finding that most checks have in common, the first of several."""
    some = list(findings)
    return max(some, key=lambda finding: len(_checks_with(finding, some)), default=None)


def _checks_with(finding: Finding, findings: Iterable[Finding]) -> set[str]:
    return {other.check for other in findings if other.text == finding.text}


def _finding(name: str, detail: str, requirement: str) -> Finding:
    base, _, dtype = name.partition("[")
    if found := _CALL.match(detail):
        return _finding_of_call(base, found)
    detail = detail.removeprefix("the plain call is wrong: ")
    before, is_place, _ = detail.rpartition(PLACE)
    if not is_place:
        text = _statement(detail)
        return Finding(base, f"{base} raises {text}" if _ERROR.match(text) else text, is_statement=True)
    before = before.removesuffix(": ").strip()
    where = f" in {dtype[:-1]}" if dtype else ""
    if before.startswith("the gradient"):
        return Finding(base, f"the gradient is wrong{where}: {elements_of(detail)}")
    if before:
        return Finding(base, f"{before}, wrong results{where}: {elements_of(detail)}")
    return Finding(base, f'not true of it: "{_sentence(requirement)}"{where}; wrong: {elements_of(detail)}')


def _statement(detail: str) -> str:
    """Return a finding without its fields, or the line of code."""
    return re.sub(r" \((fields \{.*|in .*:\d+\))$", "", detail)


def _finding_of_call(base: str, found: re.Match[str]) -> Finding:
    """Return the finding of a check that shows the simplest failing call, and what is right."""
    factors = (found["case"] or found["quoted"].strip("'")).split(" ")
    cotangent = next((one.partition("=")[2] for one in factors if one.startswith("gradient=")), "")
    factors = [one for one in factors if one != "gradient=contiguous"]
    if not factors and PLACE not in found["rest"]:
        return Finding(base, _statement(found["rest"]), is_statement=True)
    right = [one for one in (found["right"] or "").split(", w") if one.removeprefix("w") != "ithout gradient"]
    right_text = ", w".join(filter(None, right))
    subject = _subject(found["rest"], cotangent)
    shown = " ".join(one for one in factors if not one.startswith("gradient="))
    kind = f" for a cotangent that is {cotangent}" if cotangent not in ("", "contiguous") else ""
    once = ", but not if the call is repeated" if found["once"] else ""
    text = f"{subject}{f' with {shown}' if shown else ''}{kind}{once}"
    text += f", right {right_text}" if right_text else ""
    return Finding(base, f"{text}: {elements_of(found['rest'])}", tuple(factors))


def _subject(rest: str, cotangent: str) -> str:
    if rest.startswith("the gradient"):
        return "the gradient is wrong"
    return "the result is wrong while a gradient is recorded" if cotangent else "wrong"


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


def lacks_wholly(capability: str, failed: Mapping[str, str], needing: Collection[str]) -> bool:
    """Return whether failures are of a whole capability, so that a claim to lack it hides no other fault.

    Parameters
    ----------
    capability
        The capability, a field or a dtype.
    failed
        The details of all failed checks, by name.
    needing
        The names of all checks that apply and need the capability.
    """
    some = [name for name in needing if name in failed]
    if capability in _NEVER_WITHDRAWN:
        return capability == "gradient" and all(map(_raises, (failed[name] for name in some)))
    if capability in DTYPES:
        return f"accuracy_small[{capability}]" in failed
    if 2 * len(set(map(_base, some))) < len(set(map(_base, needing))) + (len(needing) > 1):
        return False
    calls = [found for name in some if (found := _CALL.match(failed[name]))]
    factors = [_finding_of_call("", found).factors or () for found in calls]
    return not factors or min(map(len, factors)) <= 1


def _raises(detail: str) -> bool:
    """Return whether a finding is an exception of the code, and no wrong result."""
    return PLACE not in detail and re.search(r"\b[A-Z]\w*(Error|Exception)\b", detail) is not None


def _base(name: str) -> str:
    return name.partition("[")[0]


# ---- failures that depend on other calls ----

_THREADS = "threads"


def depend_on_others(failed: Mapping[str, str], fails_now: Callable[[str], bool], is_compiled: bool) -> str:
    """Return the fault of results that depend on earlier calls, found by running a few checks again; or "".

    Parameters
    ----------
    failed
        The details of the failed checks, by name, in the order of the checks.
    fails_now
        Runs a check again, and returns whether it fails.
    is_compiled
        Whether each check takes long.
    """
    names = [name for name in failed if not name.startswith((_THREADS, "first_call", "definition"))]
    if "definition" in failed or not names:
        return ""
    # A setting that is changed for good is as the call leaves it, when the check is run again.
    setting = next((_statement(failed[name]) for name in _FIRST if name in failed), "")
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
