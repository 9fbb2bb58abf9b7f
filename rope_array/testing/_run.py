"""Run the checks on a target and report the results."""

from __future__ import annotations

import platform
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cached_property
from importlib.metadata import PackageNotFoundError, version
from math import isfinite
from typing import Any

import numpy as np

from ._causes import Cause, find_cause
from ._checks import checks
from ._judge import Check, Judge
from ._names import resolve
from ._outcome import EXPECTED, FAILED, INAPPLICABLE, PASSED, UNEXPECTED, outcome_of, runner
from ._own import calls_of
from ._requires import required_checks
from ._target import Target


class ConformanceError(AssertionError):
    """A target fails a check, or passes a check that it was expected to fail."""


@dataclass(frozen=True)
class Result:
    """The result of one check.

    Attributes
    ----------
    name
        The check's name.
    outcome
        "passed", "failed", "not applicable", "expected failure" or "unexpected pass".
    detail
        The fault, or why the check does not apply; empty if it passed.

    Examples
    --------
    >>> from rope_array.testing import run_checks
    >>> results = run_checks("numpy").results
    >>> [result for result in results if result.name == "rotations_add"]
    [Result(name='rotations_add', outcome='passed', detail='')]
    """

    name: str
    outcome: str
    detail: str = ""


@dataclass(frozen=True)
class Report:
    """The results of all checks of a target.

    Attributes
    ----------
    target
        The target.
    results
        One `Result` for each check.
    worst
        Largest error of a result, in lengths of its pair, by range of positions.
    seconds
        Duration of the run.
    served
        For a library: the number of calls that each backend served, by its name.
    declined
        For a forced backend: the number of calls that it declined, by the reason.

    Examples
    --------
    >>> from rope_array.testing import run_checks
    >>> report = run_checks("numpy")
    >>> report.ok, report.target.angles, len(report.of("failed"))
    (True, 'exact', 0)
    >>> list(run_checks("numpy", backend="array-api").served)
    ['array-api']
    """

    target: Target
    results: tuple[Result, ...]
    worst: Mapping[str, float]
    seconds: float
    served: Mapping[str, int] = field(default_factory=dict)
    declined: Mapping[str, int] = field(default_factory=dict)

    def of(self, *outcomes: str) -> tuple[Result, ...]:
        """Return the results with these outcomes.

        Parameters
        ----------
        *outcomes : str
            As in `Result`.

        Returns
        -------
        tuple of Result
            In the order in which the checks were run.

        Examples
        --------
        >>> from rope_array.testing import run_checks
        >>> report = run_checks(lambda x, pos, base=10000.0: x)
        >>> "definition" in [result.name for result in report.of("failed")]
        True
        """
        return tuple(result for result in self.results if result.outcome in outcomes)

    @property
    def ok(self) -> bool:
        """Whether no check failed, and no expected failure passed."""
        return not self.of(FAILED, UNEXPECTED)

    @cached_property
    def cause(self) -> Cause | None:
        """The likely cause of the failures: a claim, or a change of the code, with which they go away.

        None if no check failed, or no cause is found. It is looked for once, by calling the target again.
        """
        return find_cause(self.target, [result.name for result in self.of(FAILED)])

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, as ``python -m rope_array check --json`` prints them.

        Returns
        -------
        dict
            The target and its claims, the machine, and the name, outcome and detail of every check.

        Examples
        --------
        >>> from rope_array.testing import run_checks
        >>> run_checks("numpy").as_dict()["class"]
        {'angles': 'exact', 'arithmetic': 'float32'}
        """
        target = self.target
        return {
            "target": target.name,
            "version": target.version,
            "library": f"{target.library} {target.arrays.version}",
            "class": {"angles": target.angles, "arithmetic": target.arithmetic},
            "claims": target.claims(),
            "rope_array": own_version(),
            "machine": machine(),
            "seconds": round(self.seconds, 2),
            "ok": self.ok,
            "cause": None if self.cause is None else str(self.cause),
            "counts": {o: len(self.of(o)) for o in (PASSED, FAILED, INAPPLICABLE, EXPECTED, UNEXPECTED)},
            # JSON has no infinity: null where a result is NaN or infinite.
            "worst": {n: float(f"{e:.3g}") if isfinite(e) else None for n, e in self.worst.items()},
            "claimed": target.all_claimed(),
            "declines": dict(target.declines),
            "served": dict(self.served),
            "declined": dict(self.declined),
            "results": [vars(result) for result in self.results],
        }


def own_version() -> str:
    """Return the version of rope_array."""
    try:
        return version("rope-array")
    except PackageNotFoundError:  # run from a checkout
        return "(not installed)"


def machine() -> dict[str, str]:
    """Return the versions of Python and NumPy, and the machine's type."""
    return {
        "python": platform.python_version(),
        "numpy": np.__version__,
        "machine": f"{platform.system()} {platform.machine()}",
    }


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
        requirement is not met, or the target's own exception; NotImplementedError if a forced backend
        declines the calls of the check.

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


def run_checks(target: str | Target | Callable[..., Any], *, thorough: bool = False, **claims: Any) -> Report:
    """Run every check on a target and report; a failure raises nothing.

    Parameters
    ----------
    target, thorough, **claims
        As in `iter_checks`.

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
    >>> report = run_checks(lambda x, pos, base=10000.0: x)
    >>> report.ok, [result.outcome for result in report.results if result.name == "definition"]
    (False, ['failed'])
    """
    expected = claims.pop("expected_failures", None)
    return _run(resolve(target, **claims), expected, thorough)


def check_backend(
    target: str | Target | Callable[..., Any],
    expected_failures: Mapping[str, str] | None = None,
    *,
    thorough: bool = False,
    **claims: Any,
) -> Report:
    """Run every check on a target; raise unless exactly the expected failures fail.

    Parameters
    ----------
    target : str, Target or callable
        As in `iter_checks`.
    expected_failures : mapping of str to str, optional
        Names of checks known to fail, each with the reason and a link; added to the target's own.
    thorough : bool
        Whether to run the checks that take long, too.
    **claims
        For a callable: fields of `Target`.

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
    >>> check_backend("numpy").ok
    True
    """
    resolved = resolve(target, **claims)
    report = _run(resolved, expected_failures, thorough)
    if not report.ok:
        cause = [f"  {report.cause}"] if report.cause else []
        failures = map(_line, report.of(FAILED, UNEXPECTED))
        raise ConformanceError("\n".join([f"{resolved.name}:", *cause, *failures]))
    return report


def _line(result: Result) -> str:
    return f"  {result.name}: {result.outcome}: {result.detail}"


def _run(target: Target, expected: Mapping[str, str] | None, thorough: bool) -> Report:
    expected = {**target.expected_failures, **(expected or {})}
    check_expected(expected, target.requires)
    started = time.perf_counter()
    judge = Judge(target, thorough)
    every = (*checks(), *required_checks(target))
    results = tuple(_result(check, judge, expected) for check in every)
    seconds, calls = time.perf_counter() - started, calls_of(target)
    served, declined = (dict(Counter(log).most_common()) for log in (calls.served, calls.declined))
    return Report(target, results, dict(judge.worst), seconds, served, declined)


def check_expected(expected: Mapping[str, str], requires: Collection[str] = ()) -> None:
    """Raise ValueError unless each name is the name of a check and has a reason."""
    known = [*(check.name for check in checks()), *(f"requires[{name}]" for name in requires)]
    for name in expected:
        if name not in known:
            near = [k for k in known if k.startswith(f"{name}[")] or get_close_matches(str(name), known)
            hint = f"; similar: {', '.join(near)}" if near else ""
            raise ValueError(f"expected_failures: no check is named {name!r}{hint}")
    if empty := sorted(name for name, reason in expected.items() if not str(reason or "").strip()):
        raise ValueError(f"expected_failures: give the reason, and a link, of {', '.join(empty)}")


def _result(check: Check, judge: Judge, expected: Mapping[str, str]) -> Result:
    reason = expected.get(check.name)
    outcome, detail = outcome_of(check, judge)
    if reason is not None and outcome == FAILED:
        return Result(check.name, EXPECTED, f"{reason} (found: {detail})")
    if reason is not None:
        return Result(check.name, UNEXPECTED, f"expected to fail ({reason}), and {outcome}")
    return Result(check.name, outcome, detail)
