"""Required capabilities: each gets a check, which fails if the target declines the capability."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from functools import cache

from ._capability_parts import PART_NAMES, parts_of
from ._checks import checks
from ._claims import CAPABILITIES, by_library
from ._factors import DTYPES
from ._judge import Check, Judge
from ._target import Target


def required_checks(target: Target) -> tuple[Check, ...]:
    """Return a check `requires[NAME]` for each required name; run them after all other checks."""
    return tuple(_check_of(name) for name in dict.fromkeys(target.requires))


def specific_needs(capabilities: Collection[str]) -> set[str]:
    """Return the needs that a check is about. A refused call shows a lack of these needs only."""
    return {*capabilities} - {*DTYPES, "values", "any_positions", "offset_positions", "widths", "ranks[5]"}


@cache
def _check_of(name: str) -> Check:
    about = CAPABILITIES.get(name, "")
    requirement = f"The target {about}, as required." if about else f"{name} applies, as required."
    return Check(f"requires[{name}]", requirement, (), _require, (name,))


def _require(judge: Judge, name: str) -> None:
    reasons = list(dict.fromkeys(filter(None, _why_lacking(judge, name))))
    assert not reasons, f"{name} is required, and the target lacks it: {'; '.join(reasons)}"


def _why_lacking(judge: Judge, name: str) -> Iterator[str]:
    """Yield why a target lacks a capability, a part or the subject of a check."""
    if name in CAPABILITIES or name in PART_NAMES:
        declines, unavailable = judge.target.declines, by_library(judge.target)
        lacking = [part for part in parts_of(name) if part in declines and part not in unavailable]
        yield from [declines[name]] if name in declines else [f"{part}: {declines[part]}" for part in lacking]
        yield from (_refusal(judge, check) for check in checks() if name in specific_needs(check.needs))
    else:
        check = next(check for check in checks() if check.name == name)
        refusal = judge.left_out.get(name, "")
        yield check.inapplicable(judge) or _refusal(judge, check) or (f"{name} {refusal}" if refusal else "")


def _refusal(judge: Judge, check: Check) -> str:
    """Return why a target refused the calls of a check when it was run, or ""."""
    return f"{check.name}: {judge.refusals[check.name]}" if check.name in judge.refusals else ""
