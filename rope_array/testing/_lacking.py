"""Capabilities that a target lacks as a whole, which it may claim to lack, if nobody makes these calls."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from typing import Any

from ._adapt import takes_two
from ._capability_parts import PARTS, whole_of
from ._checks import checks
from ._claims import CAPABILITIES, MODES, REACH
from ._factors import DTYPES, FIELDS, CallFactors, needs_of, read_call
from ._failure import Failure
from ._judge import Judge
from ._library_target import OwnApply
from ._target import Target

# Capabilities that most checks need.
_BASIC = ("values", "any_positions", "offset_positions")
# Failures of these are named, and never advised to be claimed away.
_NEVER_WITHDRAWN = {
    *("gradient", "same_bits", "keeps_x", "lazy", "jit", "strides", *MODES),
    *(set(PARTS) - {"float_positions", "tuple", "scaling"}),  # a part is narrower
}


def lacking(target: Target, failures: Mapping[str, Failure], names: Collection[str]) -> dict[str, Any]:
    """Return the claim to lack the capability that most of the named checks need, if all of it fails.

    `failures` has every failed check that has no cause yet.
    """
    if isinstance(target.rotate, OwnApply):
        return {}
    by_name = {check.name: check for check in checks()}
    counts, plain = Counter[str](), CallFactors()
    for name in names:
        call = read_call(failures[name].call or "", plain)
        counts.update({*by_name[name].needs, *needs_of(call, plain)} & {*CAPABILITIES} - {*REACH, *_BASIC})
    needing = _checks_needing(target)
    for capability, count in counts.most_common():
        is_of_two = whole_of(capability) == "tuple" and takes_two(target.arguments)
        affected = needing.get(capability, ())
        if 2 * count >= len(names) and not is_of_two and lacks_wholly(capability, failures, affected):
            # One fault may be in several dtypes.
            together = [name for name in DTYPES if lacks_wholly(name, failures, needing.get(name, ()))]
            return _without(target, together if capability in DTYPES else [capability])
    return {}


def _without(target: Target, capabilities: Collection[str]) -> dict[str, Any]:
    """Return the claim to lack dtypes, or one other capability."""
    for claim, names in (("dtypes", DTYPES), ("fields", FIELDS)):
        if not {*capabilities}.isdisjoint(names):
            left = tuple(name for name in names if name in target.claimed and name not in capabilities)
            return {claim: left} if left or claim == "fields" else {}
    return {"lacks": dict.fromkeys(capabilities, "wrong results")}


def _checks_needing(target: Target) -> dict[str, list[str]]:
    """Return the names of the checks that apply to a target, by the capabilities that they need."""
    judge = Judge(target)
    needing: dict[str, list[str]] = {}
    for check in (check for check in checks() if check.inapplicable(judge) is None):
        for name in set(check.needs):
            needing.setdefault(name, []).append(check.name)
    return needing


def lacks_wholly(capability: str, failures: Mapping[str, Failure], needing: Collection[str]) -> bool:
    """Return whether failures are of a whole capability, so that a claim to lack it hides no other fault.

    `needing` has the names of all checks that apply and need the capability.
    """
    failed_names = [name for name in needing if name in failures]
    all_raise = all(failures[name].raised for name in failed_names)
    if capability in _NEVER_WITHDRAWN and not (capability == "gradient" and all_raise):
        return False
    if capability in DTYPES:
        return f"accuracy_small[{capability}]" in failures
    failed, all_needing = ({name.partition("[")[0] for name in names} for names in (failed_names, needing))
    if 2 * len(failed) < len(all_needing) + (len(needing) > 1):
        return False
    factors = [failures[name].factors for name in failed_names if failures[name].call is not None]
    return not factors or min(map(len, factors)) <= 1
