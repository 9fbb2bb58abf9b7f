"""The report of a target's results, as an object and as plain values."""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import isfinite
from typing import Any

import numpy as np

from rope_array._version import version

from ._cause import Cause, Findings
from ._claims import specific_needs
from ._failure import Failure
from ._find_causes import find_causes
from ._library_target import BackendTarget, outdated_backends
from ._outcome import EXPECTED, FAILED, INAPPLICABLE, PASSED, UNEXPECTED, Result
from ._target import Target


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
    faults: Mapping[str, Failure] = field(default_factory=dict, repr=False, compare=False)

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
        names = [result.name for result in self.of(FAILED)]
        return find_causes(self.target, {name: self.faults[name] for name in names})

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
        findings = plain_findings(self._findings)
        return plain_report(plain_target(self.target), self.results, findings, self.seconds, vars(self))


def plain_target(target: Target) -> dict[str, Any]:
    """Return a target and its claims as plain values; it is called to find them."""
    return {
        "target": target.name,
        "version": target.version,
        "library": f"{target.library} {target.arrays.version}",
        "settings": target.arrays.configuration,
        "class": {"angles": target.angles, "arithmetic": target.arithmetic},
        "claims": target.claims(),
        "claimed": target.all_claimed(),
        "declines": dict(target.declines),
        "own": _of_backends(target) if isinstance(target, BackendTarget) else None,
    }


def _of_backends(target: BackendTarget) -> dict[str, Any]:
    return {
        "backend": target.backend,
        "backends": dict(target.backends),
        "by_tables": bool(getattr(target.rotate, "by_tables", False)),
        "fixed": dict(target.fixed),
        "compiled": target.compiled,
        "outdated": outdated_backends(),
    }


# ---- the causes of failures, from `_find_causes` ----


def plain_findings(findings: Findings) -> dict[str, Any]:
    """Return the plain values of the causes of failures."""
    cause, advised_claims = findings.cause, findings.cause.stated if findings.cause else {}
    causes = [
        {"text": cause.text, "options": cause.options, "checks": list(cause.checks), "found": cause.found}
        for cause in findings.causes
    ]
    advice = None
    if cause is not None and advised_claims:
        # The failures that go away with claims of conventions and accuracy alone.
        explained = sum(cause.explained for cause in findings.causes if cause.stated)
        advice = {"claims": dict(advised_claims), "explained": explained, "failed": cause.failed}
    return {
        "cause": None if cause is None else str(cause),
        "causes": causes,
        "unexplained": {place: list(names) for place, names in findings.unexplained.items()},
        "advice": advice,
    }


# ---- plain values ----


def plain_report(
    target: Mapping[str, Any], results: Sequence[Result], findings: Mapping[str, Any],
    seconds: float, counted: Mapping[str, Any],
) -> dict[str, Any]:  # fmt: skip
    """Return the plain values of a report, given the plain values of its target and of its findings.

    `counted` has the calls that backends "served" and "declined", and the "worst" errors by range.
    """
    counts = Counter(result.outcome for result in results)
    refused = [result for result in results if result.outcome == INAPPLICABLE and result.refused]
    lacking = {capability for result in refused for capability in specific_needs(result.needs)}
    return {
        **target,
        "claimed": [name for name in target["claimed"] if name not in lacking],
        "rope_array": version(),
        "machine": {
            "python": platform.python_version(),
            "numpy": np.__version__,
            "machine": f"{platform.system()} {platform.machine()}",
        },
        "seconds": round(seconds, 2),
        "ok": not counts[FAILED] + counts[UNEXPECTED],
        **findings,
        "counts": {o: counts[o] for o in (PASSED, FAILED, INAPPLICABLE, EXPECTED, UNEXPECTED)},
        # JSON has no infinity: null where a result is NaN or infinite.
        "worst": {n: float(f"{e:.3g}") if isfinite(e) else None for n, e in counted["worst"].items()},
        **{name: dict(Counter(counted[name]).most_common()) for name in ("served", "declined")},
        "results": [{**vars(result), "seconds": round(result.seconds, 4)} for result in results],
    }
