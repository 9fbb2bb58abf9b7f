"""Run the checks on a target and report the results."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from functools import cache
from typing import Any, NamedTuple

from ._capability_parts import PART_NAMES, parts_of
from ._checks import checks
from ._claims import CAPABILITIES, by_library, specific_needs
from ._examples import extra_checks
from ._find_target import resolve
from ._judge import Check, Judge
from ._library_target import calls_of
from ._outcome import FAILED, UNEXPECTED, Result, result_of, runner
from ._report import Report
from ._target import Target
from ._trial_log import ends_of


class ConformanceError(AssertionError):
    """A target fails a check, or passes a check that it was expected to fail."""


def iter_checks(
    target: str | Target | Callable[..., Any], *, thorough: bool = False, **claims: Any
) -> Iterator[tuple[Check, Callable[[], None]]]:
    """Return every check that applies to a target, with a function that runs it.

    Parameters
    ----------
    target : str, Target or callable
        A built-in target's name, "package.module:attribute", a `Target`, or a callable
        ``rotate(x, pos, **spec)``.
    thorough : bool
        Whether to run the checks that take long, too.
    **claims
        For a callable: fields of `Target`.

    Returns
    -------
    iterator of (Check, callable)
        The check has a name, a requirement and needs; the callable raises AssertionError if the
        requirement is not met, or the target's own exception; NotImplementedError if the claims
        leave none of the calls of the check, or a forced backend declines them.

    Raises
    ------
    ValueError, MissingLibrary
        As in `check_backend`.

    Examples
    --------
    >>> from rope_array.testing import iter_checks
    >>> names = [check.name for check, run in iter_checks("numpy")]
    >>> "definition" in names, "gradient" in names
    (True, False)
    """
    resolved = resolve(target, **claims)  # raise now, not in the first `next`
    judge = Judge(resolved, thorough)
    every = (*checks(), *required_checks(resolved))
    return ((check, runner(check, judge)) for check in every if check.inapplicable(judge) is None)


def run_checks(
    target: str | Target | Callable[..., Any],
    *,
    thorough: bool = False,
    examples: int = 0,
    seed: int = 0,
    cases: Iterable[str] = (),
    only: Iterable[str] = (),
    **claims: Any,
) -> Report:
    """Run every check on a target and report; a failure raises nothing.

    The target is called in this process: if it ends the process, nothing is reported. The command
    ``python -m rope_array check`` judges in a child process, for which a target needs a name.

    Parameters
    ----------
    target : str, Target or callable
        As in `iter_checks`.
    thorough : bool
        Whether to run the checks that take long, too.
    examples : int
        Number of random calls to judge in addition.
    seed : int
        Seed of the random calls.
    cases : iterable of str
        Calls to judge instead of the checks, each as the message of a failure shows it after ``--case``.
    only : iterable of str
        Names of the checks to run; a name without its dtype has every dtype. Random calls are judged in
        addition, requirements are not: they are judged by every check. By default, all checks.
    **claims
        For a callable: fields of `Target`, and ``expected_failures``.

    Returns
    -------
    Report
        A report with a result for every check, including the checks that do not apply.

    Raises
    ------
    ValueError, MissingLibrary
        As in `check_backend`.

    Examples
    --------
    >>> from rope_array.testing import run_checks
    >>> report = run_checks(lambda x, pos: x, dtypes=["float32"], only=["zero_size", "definition"])
    >>> report.ok, [result.outcome for result in report.results]
    (False, ['passed', 'failed'])
    """
    expected = claims.pop("expected_failures", None) or {}
    resolved, started = resolve(target, **claims), time.perf_counter()
    judge, every, expected = prepare(resolved, expected, thorough, examples, seed, cases, only)
    results = tuple(result_of(check, judge, expected) for check in every)
    seconds, calls = time.perf_counter() - started, calls_of(resolved)
    served, declined = (dict(Counter(log).most_common()) for log in (calls.served, calls.declined))
    return Report(resolved, results, dict(judge.worst), seconds, served, declined, judge.faults)


def check_backend(
    target: str | Target | Callable[..., Any],
    expected_failures: Mapping[str, str] | None = None,
    *,
    thorough: bool = False,
    examples: int = 0,
    seed: int = 0,
    cases: Iterable[str] = (),
    only: Iterable[str] = (),
    **claims: Any,
) -> Report:
    """Run every check on a target; raise unless exactly the expected failures fail.

    Parameters
    ----------
    target, thorough, examples, seed, cases, only, **claims
        As in `run_checks`.
    expected_failures : mapping of str to str, optional
        Names of checks known to fail, each with the reason and a link; added to the target's own.

    Returns
    -------
    Report
        A report with a result for every check.

    Raises
    ------
    ConformanceError
        A check fails unexpectedly, or an expected failure passes or does not apply.
    ValueError
        The target, a claim or the name of an expected failure is unknown, or a reason is empty.
    MissingLibrary
        The library or device that the target needs is missing.

    Examples
    --------
    >>> from rope_array.testing import check_backend
    >>> check_backend("numpy", only=["definition", "kind"]).ok
    True
    """
    report = run_checks(
        target, thorough=thorough, examples=examples, seed=seed, cases=cases, only=only,
        expected_failures=expected_failures, **claims,
    )  # fmt: skip
    if not report.ok:
        cause = [f"  {report.cause}"] if report.cause else []
        failures = map(_line, report.of(FAILED, UNEXPECTED))
        raise ConformanceError("\n".join([f"{report.target.name}:", *cause, *failures]))
    return report


def _line(result: Result) -> str:
    return f"  {result.name}: {result.outcome}: {result.detail}"


class Prepared(NamedTuple):
    """The judge of a target, the checks to run, and the expected failures with their reasons."""

    judge: Judge
    checks: tuple[Check, ...]
    expected: Mapping[str, str]


def prepare(
    target: Target,
    expected: Mapping[str, str],
    thorough: bool = False,
    examples: int = 0,
    seed: int = 0,
    cases: Iterable[str] = (),
    only: Iterable[str] = (),
) -> Prepared:
    """Return the checks of a target in order: all, the named ones, or the given calls alone."""
    if isinstance(only, str):
        raise ValueError(f"only is {only!r}; give a collection of names")
    cases, only = cases if isinstance(cases, str) else tuple(cases), tuple(only)
    if cases and only:
        raise ValueError("cases are judged alone; leave only out")
    extra = extra_checks(examples, seed, cases, target)
    every = (*_named(only), *extra) if only else (*checks(), *extra, *required_checks(target))
    every = extra if cases else every
    expected = {**target.expected_failures, **expected}
    _check_expected(expected, every)
    judge = Judge(target, thorough)
    if only and ends_of(target):  # other checks leave out the calls that ended the process, and pass
        every = tuple(dict.fromkeys((*every, *_named(["refusals_raise"]))))
    return Prepared(judge, every, expected)


def _named(names: Sequence[str]) -> tuple[Check, ...]:
    """Return the checks with these names; a name without brackets has the checks of every dtype."""
    bases = {check.name: check.name.partition("[")[0] for check in checks()}
    for name in names:
        _check_known("only", name, [*bases.values(), *bases])
    return tuple(check for check in checks() if not {check.name, bases[check.name]}.isdisjoint(names))


def _check_expected(expected: Mapping[str, str], every: Iterable[Check]) -> None:
    """Raise ValueError unless each name is the name of a check and has a reason."""
    names = [check.name for check in dict.fromkeys((*checks(), *every))]
    for name in expected:
        _check_known("expected_failures", name, names)
    if empty := sorted(name for name, reason in expected.items() if not str(reason or "").strip()):
        raise ValueError(f"expected_failures: give the reason, and a link, of {', '.join(empty)}")


def _check_known(option: str, name: object, names: Collection[str]) -> None:
    """Raise ValueError unless `name` is one of the `names` of checks; show those like it."""
    if name in names:
        return
    base = str(name).partition("[")[0]
    bases = dict.fromkeys(check.partition("[")[0] for check in names)
    near = [check for check in names if check.startswith(f"{base}[")] or get_close_matches(base, bases)
    hint = f"; similar: {', '.join(near)}" if near else ""
    raise ValueError(f"{option}: no check is named {name!r}{hint}")


# ---- required capabilities: each gets a check, which fails if the target declines the capability ----


def required_checks(target: Target) -> tuple[Check, ...]:
    """Return a check `requires[NAME]` for each required name; run them after all other checks."""
    return tuple(_check_of(name) for name in dict.fromkeys(target.requires))


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
