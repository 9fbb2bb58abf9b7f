"""Name faults in the words of failed checks: the simplest failing call, or a finding that they share.

It is used for failures that no hypothesis explains.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, NamedTuple

from ._capability_parts import PARTS
from ._claims import MODES, shorten
from ._factors import DTYPES
from ._failure import GRADIENT, VALUE, Failure
from ._wrong_places import place_in_any_x

_MOST_CHARACTERS = 230
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
    observed
        A fault without wrong elements and without an exception, such as "x was written".
    context
        Where the call was made, such as "positions were written since the last call".
    """

    name: str
    check: str
    text: str
    factors: tuple[str, ...] = ()
    is_statement: bool = False
    observed: str = ""
    context: str = ""
    raised: str = ""

    @property
    def names(self) -> set[str]:
        """The names of the factors."""
        return {factor.partition("=")[0] for factor in self.factors}


class Shared(NamedTuple):
    """A finding, and the names of the checks that share it."""

    text: str
    names: tuple[str, ...]
    factors: tuple[str, ...] = ()


def shared_findings(faults: Mapping[str, Failure], requirements: Mapping[str, str]) -> Iterator[Shared]:
    """Yield the findings that name faults best, the best first, each with its checks.

    A finding with a call belongs to all checks whose simplest calls have the same factors. The remaining
    findings are yielded if two checks share them.
    """
    findings = [_finding(name, fault, requirements[name]) for name, fault in faults.items()]
    is_first = True
    while findings:
        chosen = _chosen(findings)
        alike = [
            finding for finding in findings if finding.text == chosen.text or _has_factors_of(finding, chosen)
        ]
        if not is_first and len({finding.check for finding in alike}) < 2:
            return
        yield Shared(shorten(chosen.text, _MOST_CHARACTERS), tuple(o.name for o in alike), chosen.factors)
        findings = [finding for finding in findings if finding not in alike]
        is_first = False


def _has_factors_of(finding: Finding, chosen: Finding) -> bool:
    """Return whether a finding's call has the factors of another's, and fails in the same way."""
    if not chosen.names or not chosen.names <= finding.names:
        return False
    return finding.observed == chosen.observed and chosen.context in ("", finding.context)


def _chosen(findings: list[Finding]) -> Finding:
    """Return the finding that most checks share, of the simplest call, or the first."""
    if first := next((finding for finding in findings if finding.check in _FIRST), None):
        return first
    counts = Counter(text for _, text in {(finding.check, finding.text) for finding in findings})
    checks = len({finding.check for finding in findings})

    def commonest(candidates: list[Finding]) -> Finding | None:
        return max(candidates, key=lambda finding: counts[finding.text], default=None)

    statement = commonest([finding for finding in findings if finding.is_statement])
    shared = counts[statement.text] if statement else 0
    # An exception in one check of several may be a consequence of wrong results in another.
    if statement and 2 * shared >= checks and (shared == checks or not statement.raised):
        return statement
    calls = [finding for finding in findings if finding.factors]
    fewest = min((len(finding.factors) for finding in calls), default=0)
    simplest = commonest([finding for finding in calls if len(finding.factors) == fewest])
    return simplest or commonest(findings) or findings[0]


def _finding(name: str, fault: Failure, requirement: str) -> Finding:
    check, _, dtype = name.partition("[")
    where, is_wrong = f" in {dtype[:-1]}" if dtype else "", bool(fault.place)
    factors, context = factors_of(fault), ": ".join(fault.contexts)
    if factors or (fault.call is not None and is_wrong):
        observed = "" if is_wrong or fault.raised else fault.text
        text = _text_of_call(fault)
        return Finding(name, check, text, factors, observed=observed, context=context)
    if not is_wrong:
        text = _statement(": ".join(filter(None, (context, fault.text))))
        return Finding(
            name,
            check,
            f"{check} raises {text}" if fault.raised and not context else text,
            is_statement=True,
            raised=fault.raised,
        )
    if fault.contexts[:1] == (GRADIENT,):
        return Finding(name, check, f"the gradient is wrong{where}: {elements_of(fault)}")
    if context:
        return Finding(name, check, f"{context}, wrong results{where}: {elements_of(fault)}")
    sentence = re.split(r"(?<=\w)\.(?: |$)|: ", requirement)[0]
    text = f'not true of it: "{sentence}"{where}; wrong: {elements_of(fault)}'
    return Finding(name, check, text)


def factors_of(fault: Failure) -> tuple[str, ...]:
    """Return the factors of a fault's call; recording a plain gradient is none."""
    return tuple(factor for factor in (fault.call or "").split() if factor != "gradient=contiguous")


def _statement(detail: str) -> str:
    """Return a finding without its fields, or the line of code."""
    return re.sub(r" \((fields \{.*|in .*:\d+\))$", "", detail)


def _text_of_call(fault: Failure) -> str:
    """Return the finding of a check with its simplest failing call, and the nearest right calls."""
    call = (fault.call or "").split()
    cotangent = next((factor.partition("=")[2] for factor in call if factor.startswith("gradient=")), "")
    shown = " ".join(factor for factor in call if not factor.startswith("gradient="))
    right = ", ".join(text for text in fault.nearest if text != "without gradient")
    of_cotangent = f" for a cotangent that is {cotangent}" if cotangent not in ("", "contiguous") else ""
    text = f"{_subject(fault, cotangent)}{f' with {shown}' if shown else ''}{of_cotangent}"
    return f"{text}{f', right {right}' if right else ''}: {elements_of(fault)}"


def _subject(fault: Failure, cotangent: str) -> str:
    if GRADIENT in fault.contexts:
        return "the gradient is wrong"
    context = next((context for context in fault.contexts if context != VALUE), "")
    wrong = "the result is wrong while a gradient is recorded" if cotangent else "wrong"
    return f"{context}: {wrong}" if context else wrong


def by_place(
    faults: Mapping[str, Failure], failed: Collection[str], claimed: Collection[str]
) -> dict[str, Any]:
    """Return the names of checks by the place in their detail, or by the detail.

    `failed` has the names of all failed checks, `claimed` the claimed dtypes.
    """
    groups: dict[str, tuple[str, ...]] = {}
    for name, fault in faults.items():
        place = place_in_any_x(fault.place) or shorten(str(fault))
        groups[place] = (*groups.get(place, ()), name)
    return {f"{place}{only_in(names, failed, claimed)}": names for place, names in groups.items()}


def only_in(names: Collection[str], failed: Collection[str], claimed: Collection[str]) -> str:
    """Return ", in float16 only" if checks of a dtype fail, and none of them in the other dtypes."""
    dtypes = {name.partition("[")[2][:-1] for name in names}
    other_dtypes = {dtype for dtype in DTYPES if dtype in claimed} - dtypes
    checks = {name.partition("[")[0] for name in names}
    if (
        "" in dtypes
        or not other_dtypes
        or any(f"{check}[{dtype}]" in failed for check in checks for dtype in other_dtypes)
    ):
        return ""
    return f", in {' and '.join(sorted(dtypes))} only"


# ---- capabilities that a target lacks as a whole ----


def lacks_wholly(capability: str, faults: Mapping[str, Failure], needing: Collection[str]) -> bool:
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
    failed_names = [name for name in needing if name in faults]
    raised = (faults[name].raised for name in failed_names)
    if capability in _NEVER_WITHDRAWN and not (capability == "gradient" and all(raised)):
        return False
    if capability in DTYPES:
        return f"accuracy_small[{capability}]" in faults
    failed, all_needing = ({name.partition("[")[0] for name in names} for names in (failed_names, needing))
    if 2 * len(failed) < len(all_needing) + (len(needing) > 1):
        return False
    factors = [factors_of(faults[name]) for name in failed_names if faults[name].call is not None]
    return not factors or min(map(len, factors)) <= 1


# ---- failures that depend on other calls ----


def depend_on_others(
    faults: Mapping[str, Failure], fails_now: Callable[[str], bool], is_compiled: bool
) -> str:
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
    names = [name for name in faults if not name.startswith(("threads", "first_call", "definition"))]
    if "definition" in faults or not names:
        return ""
    # A setting that is changed for good is as the call leaves it, when the check is run again.
    setting = next((_statement(faults[name].text) for name in _FIRST if name in faults), "")
    if fails_now("definition"):
        return setting or (
            f"right at first, and wrong for good after some call: the first check to fail is {names[0]}, and "
            "now the plain call is wrong too; a call leaves something behind"
        )
    count = 1 if is_compiled else 5
    sample = names[:: max(1, (len(names) - 1) // max(1, count - 1))][:count]
    right_now = [name for name in sample if not fails_now(name)]
    if 2 * len(right_now) <= len(sample):
        return ""
    fail = "fails" if len(right_now) == 1 else "fail"
    return setting or (
        f"results depend on earlier calls: {', '.join(right_now)} {fail} among the other checks, and not if "
        "run again"
    )


def elements_of(failure: Failure) -> str:
    """Return the place of the wrong elements, and their values if they are known; or the statement."""
    place, values, statement = failure.words
    vague = place in ("all elements", "most elements", "nearly all elements", "scattered elements")
    return values if values and vague else ", ".join(filter(None, (place, values))) or statement
