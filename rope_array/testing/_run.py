"""Run the checks on a target and report the results."""

from __future__ import annotations

import platform
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cached_property
from importlib.metadata import PackageNotFoundError, version
from math import isfinite
from typing import Any, NamedTuple

import numpy as np

from ._causes import Cause, Findings, find_causes
from ._checks import checks
from ._examples import extra_checks
from ._judge import Check, Judge
from ._names import resolve
from ._outcome import EXPECTED, FAILED, INAPPLICABLE, PASSED, UNEXPECTED, outcome_of, runner
from ._own import BackendTarget, calls_of
from ._requires import required_checks, specific_needs
from ._target import Target
from ._verdict import Fault


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
        The fault, or why the check does not apply; if it passed, the calls that were refused, or "".
    requirement
        The check's requirement.
    needs
        The capabilities without which the check does not apply.
    seconds
        Duration of the check.
    ended
        Whether the process ended in it: ``python -m rope_array check`` judges in a child process.

    Examples
    --------
    >>> from rope_array.testing import run_checks
    >>> run_checks("numpy", cases=["base=500.0"]).results
    (Result(name='case', outcome='passed', detail=''),)
    """

    name: str
    outcome: str
    detail: str = ""
    requirement: str = field(default="", repr=False)
    needs: tuple[str, ...] = field(default=(), repr=False)
    seconds: float = field(default=0.0, repr=False, compare=False)
    ended: bool = field(default=False, repr=False)


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
    faults
        The fault of each failed check, by the check's name, from which causes are found.

    Examples
    --------
    >>> from rope_array.testing import run_checks
    >>> report = run_checks("numpy", cases=["base=500.0"])
    >>> report.ok, report.target.angles, len(report.of("failed"))
    (True, 'exact', 0)
    >>> list(run_checks("numpy", backend="array-api", cases=["base=500.0"]).served)
    ['array-api']
    """

    target: Target
    results: tuple[Result, ...]
    worst: Mapping[str, float]
    seconds: float
    served: Mapping[str, int] = field(default_factory=dict)
    declined: Mapping[str, int] = field(default_factory=dict)
    faults: Mapping[str, Fault] = field(default_factory=dict, repr=False, compare=False)

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
        >>> report = run_checks(lambda x, pos, base=10000.0: x, cases=["base=500.0", "rows=1"])
        >>> [result.name for result in report.of("failed")]
        ['case']
        """
        return tuple(result for result in self.results if result.outcome in outcomes)

    @property
    def ok(self) -> bool:
        """Whether no check failed, and no expected failure passed."""
        return not self.of(FAILED, UNEXPECTED)

    @cached_property
    def _findings(self) -> Findings:
        return find_causes(self.target, {result.name: result.detail for result in self.of(FAILED)})

    @property
    def cause(self) -> Cause | None:
        """The likely cause of the failures: claims, or changes of the code, with which they go away.

        None if no check failed, or no cause is found. It is looked for once, by calling the target again.
        """
        return self._findings.cause

    @property
    def causes(self) -> tuple[Cause, ...]:
        """The parts of the cause, each with the checks that it explains, in the order to mend them in."""
        return self._findings.causes

    @property
    def unexplained(self) -> Mapping[str, tuple[str, ...]]:
        """The failed checks that no cause explains, by the place of their wrong elements or their fault."""
        return self._findings.unexplained

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, as ``python -m rope_array check --json`` prints them.

        Returns
        -------
        dict
            The target and its claims, the machine, the causes of failures, and of every check the name,
            outcome, detail, requirement, needs and seconds.

        Examples
        --------
        >>> from rope_array.testing import run_checks
        >>> run_checks("numpy", cases=["base=500.0"]).as_dict()["class"]
        {'angles': 'exact', 'arithmetic': 'float32'}
        """
        tally = Tally(Counter(self.served), Counter(self.declined), dict(self.worst))
        findings = plain_findings(self._findings)
        return plain_report(plain_target(self.target), self.results, findings, tally, self.seconds)


@dataclass
class Tally:
    """What checks count: the calls that backends served and declined, and the worst errors by range."""

    served: Counter[str] = field(default_factory=Counter)
    declined: Counter[str] = field(default_factory=Counter)
    worst: dict[str, float] = field(default_factory=dict)

    def add(self, served: Mapping[str, int], declined: Mapping[str, int], worst: Mapping[str, float]) -> None:
        """Add the counts of one check; keep the larger errors."""
        self.served.update(served)
        self.declined.update(declined)
        self.worst.update({name: max(error, self.worst.get(name, 0.0)) for name, error in worst.items()})


def plain_target(target: Target) -> dict[str, Any]:
    """Return a target and its claims as plain values; it is called to find them."""
    own = None
    if isinstance(target, BackendTarget):
        own = {
            "backend": target.backend,
            "backends": dict(target.backends),
            "by_tables": bool(getattr(target.rotate, "by_tables", False)),
            "fixed": dict(target.fixed),
            "compiled": target.compiled,
        }
    return {
        "target": target.name,
        "version": target.version,
        "library": f"{target.library} {target.arrays.version}",
        "settings": target.arrays.settings(),
        "class": {"angles": target.angles, "arithmetic": target.arithmetic},
        "claims": target.claims(),
        "claimed": target.all_claimed(),
        "declines": dict(target.declines),
        "own": own,
    }


def plain_findings(found: Findings) -> dict[str, Any]:
    """Return the causes of failures, and the failures without one, as plain values."""
    cause = found.cause
    stated = {} if cause is None else dict(cause.stated)
    return {
        "cause": None if cause is None else str(cause),
        "causes": [
            {"text": each.text, "options": each.options, "checks": list(each.checks)} for each in found.causes
        ],
        "unexplained": {place: list(names) for place, names in found.unexplained.items()},
        "advice": None
        if cause is None or not stated
        else {"claims": stated, "explained": _explained_by_statements(found), "failed": cause.failed},
    }


def _explained_by_statements(found: Findings) -> int:
    """Return the number of failures that go away with claims of conventions and accuracy alone."""
    if found.cause is None or not found.cause.withdrawn:
        return found.cause.explained if found.cause else 0
    return sum(cause.explained for cause in found.causes if not cause.withdrawn)


def plain_report(
    target: Mapping[str, Any], results: Sequence[Result], findings: Mapping[str, Any], tally: Tally,
    seconds: float,
) -> dict[str, Any]:  # fmt: skip
    """Return the plain values of a report, from those of its target and findings."""
    counts = Counter(result.outcome for result in results)
    refused = [r for r in results if r.outcome == INAPPLICABLE and r.detail.startswith("refuses ")]
    lacking = {need for result in refused for need in specific_needs(result.needs)}
    return {
        **target,
        "claimed": [name for name in target["claimed"] if name not in lacking],
        "rope_array": own_version(),
        "machine": machine(),
        "seconds": round(seconds, 2),
        "ok": not counts[FAILED] + counts[UNEXPECTED],
        **findings,
        "counts": {o: counts[o] for o in (PASSED, FAILED, INAPPLICABLE, EXPECTED, UNEXPECTED)},
        # JSON has no infinity: null where a result is NaN or infinite.
        "worst": {n: float(f"{e:.3g}") if isfinite(e) else None for n, e in tally.worst.items()},
        "served": dict(tally.served.most_common()),
        "declined": dict(tally.declined.most_common()),
        "results": [{**vars(result), "seconds": round(result.seconds, 4)} for result in results],
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
    >>> report = run_checks(lambda x, pos, base=10000.0: x, dtypes=["float32"], layout="sd")
    >>> report.ok, [result.outcome for result in report.results if result.name == "definition"]
    (False, ['failed'])
    """
    expected = claims.pop("expected_failures", None)
    extent = _extent(thorough, examples, seed, cases, only)
    return _run(resolve(target, **claims), expected, extent)


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
    target : str, Target or callable
        As in `iter_checks`.
    expected_failures : mapping of str to str, optional
        Names of checks known to fail, each with the reason and a link; added to the target's own.
    thorough, examples, seed, cases, only
        As in `run_checks`.
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
    report = _run(resolved, expected_failures, _extent(thorough, examples, seed, cases, only))
    if not report.ok:
        cause = [f"  {report.cause}"] if report.cause else []
        failures = map(_line, report.of(FAILED, UNEXPECTED))
        raise ConformanceError("\n".join([f"{resolved.name}:", *cause, *failures]))
    return report


def _line(result: Result) -> str:
    return f"  {result.name}: {result.outcome}: {result.detail}"


class Extent(NamedTuple):
    """Which checks to run: the thorough ones too, random calls too, calls given as text, or named checks."""

    thorough: bool = False
    examples: int = 0
    seed: int = 0
    cases: Sequence[str] = ()
    only: Sequence[str] = ()

    def checks_for(self, target: Target) -> tuple[Check, ...]:
        """Return the checks to run on a target, in order."""
        extra = extra_checks(self.examples, self.seed, self.cases)
        if self.cases:
            return extra
        if self.only:
            return (*_named(self.only), *extra)
        return (*checks(), *extra, *required_checks(target))


def _extent(thorough: bool, examples: int, seed: int, cases: Iterable[str], only: Iterable[str]) -> Extent:
    """Return the extent that keywords ask for."""
    if isinstance(only, str):
        raise ValueError(f"only is {only!r}; give a collection of names")
    cases, only = tuple(cases), tuple(only)
    if cases and only:
        raise ValueError("cases are judged alone; leave only out")
    return Extent(thorough, examples, seed, cases, only)


def _named(names: Sequence[str]) -> tuple[Check, ...]:
    """Return the checks with these names; a name without brackets has the checks of every dtype."""
    bases = {check.name: check.name.partition("[")[0] for check in checks()}
    for name in names:
        _check_known("only", name, [*bases.values(), *bases])
    return tuple(check for check in checks() if not {check.name, bases[check.name]}.isdisjoint(names))


def _run(target: Target, expected: Mapping[str, str] | None, extent: Extent) -> Report:
    expected = {**target.expected_failures, **(expected or {})}
    every = extent.checks_for(target)
    check_expected(expected, every)
    started = time.perf_counter()
    judge = Judge(target, extent.thorough)
    results = tuple(result_of(check, judge, expected) for check in every)
    seconds, calls = time.perf_counter() - started, calls_of(target)
    served, declined = (dict(Counter(log).most_common()) for log in (calls.served, calls.declined))
    return Report(target, results, dict(judge.worst), seconds, served, declined, judge.faults)


def check_expected(expected: Mapping[str, str], every: Iterable[Check]) -> None:
    """Raise ValueError unless each name is the name of a check and has a reason."""
    known = [*dict.fromkeys(check.name for check in (*checks(), *every))]
    for name in expected:
        _check_known("expected_failures", name, known)
    if empty := sorted(name for name, reason in expected.items() if not str(reason or "").strip()):
        raise ValueError(f"expected_failures: give the reason, and a link, of {', '.join(empty)}")


def _check_known(option: str, name: object, known: Collection[str]) -> None:
    """Raise ValueError unless `name` is one of `known` names of checks; show those like it."""
    if name in known:
        return
    base = str(name).partition("[")[0]
    bases = dict.fromkeys(each.partition("[")[0] for each in known)
    near = [each for each in known if each.startswith(f"{base}[")] or get_close_matches(base, bases)
    hint = f"; similar: {', '.join(near)}" if near else ""
    raise ValueError(f"{option}: no check is named {name!r}{hint}")


def result_of(check: Check, judge: Judge, expected: Mapping[str, str]) -> Result:
    """Run a check; return its result, in view of the failures that are expected."""
    started = time.perf_counter()
    outcome, detail = outcome_of(check, judge)
    outcome, detail = as_expected(outcome, detail, expected.get(check.name))
    return Result(check.name, outcome, detail, check.requirement, check.needs, time.perf_counter() - started)


def as_expected(outcome: str, detail: str, reason: str | None) -> tuple[str, str]:
    """Return the outcome and detail of a check that is expected to fail for a reason; None: to pass."""
    if reason is None:
        return outcome, detail
    if outcome == FAILED:
        return EXPECTED, f"{reason} (found: {detail})"
    return UNEXPECTED, f"expected to fail ({reason}), and {outcome}"
