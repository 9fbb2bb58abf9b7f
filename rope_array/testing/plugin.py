"""A pytest plugin: every check of the suite as a test of its own.

``pytest -p rope_array.testing.plugin --rope-backend mylib.rope:rotate`` needs no test file. A check that does
not apply is skipped with its reason; an expected failure is a strict xfail.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pytest

from ._causes import find_cause
from ._checks import checks
from ._command import reasons_of, target_of_options
from ._judge import Check, Judge
from ._outcome import FAILED, INAPPLICABLE, outcome_of
from ._run import check_expected
from ._target import Target


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options."""
    group = parser.getgroup("rope_array", "conformance of rotary embeddings (rope_array)")
    group.addoption(
        "--rope-backend",
        metavar="TARGET",
        action="append",
        default=[],
        help="run the conformance suite on TARGET, as `python -m rope_array check` does; repeatable",
    )
    group.addoption("--rope-library", metavar="NAME", help="the array library of a callable (default: numpy)")
    group.addoption(
        "--rope-claim",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        help="a claim of a callable, as in `python -m rope_array check --claim`; repeatable",
    )
    group.addoption(
        "--rope-expect",
        metavar="CHECK=REASON",
        action="append",
        default=[],
        help="a check known to fail, with the reason and a link; passing it is then a failure",
    )


# The failed checks of each target, by its name.
_FAILED = pytest.StashKey[dict[str, tuple[Target, list[str]]]]()


class CheckFailed(Exception):
    """A check failed; the message is its detail."""


class UnexpectedlyInapplicable(Exception):
    """A check that was expected to fail does not apply."""


class RopeCheck(pytest.Item):
    """One check of one target."""

    def __init__(self, *, check: Check, judge: Judge, reason: str | None, **more: Any):
        super().__init__(**more)
        self.check, self.judge, self.expected = check, judge, reason
        if reason is not None:
            self.add_marker(pytest.mark.xfail(reason=reason, strict=True, raises=CheckFailed))

    def runtest(self) -> None:
        """Run the check."""
        outcome, detail = outcome_of(self.check, self.judge)
        if outcome == INAPPLICABLE and self.expected is not None:
            raise UnexpectedlyInapplicable(
                f"expected to fail ({self.expected}), and not applicable: {detail}"
            )
        if outcome == INAPPLICABLE:
            pytest.skip(detail)
        if outcome == FAILED:
            if self.expected is None:
                failed = self.config.stash.setdefault(_FAILED, {})
                failed.setdefault(self.judge.target.name, (self.judge.target, []))[1].append(self.check.name)
            raise CheckFailed(detail)

    def repr_failure(self, excinfo: Any, style: Any = None) -> Any:
        """Return the requirement and the detail, without a traceback through the suite."""
        if isinstance(excinfo.value, CheckFailed):
            return f"required: {self.check.requirement}\nfound:    {excinfo.value}"
        if isinstance(excinfo.value, UnexpectedlyInapplicable):
            return str(excinfo.value)
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Any, int | None, str]:
        """Return the path and name of the test."""
        return self.path, None, f"{self.judge.target.name}: {self.check.name}"


class RopeTarget(pytest.Collector):
    """All checks of one target."""

    def __init__(self, *, target: str, **more: Any):
        super().__init__(**more)
        self.target = target

    def collect(self) -> Iterator[RopeCheck]:
        """Yield the checks."""
        option = self.config.getoption
        try:
            target = target_of_options(self.target, None, option("--rope-library"), option("--rope-claim"))
            expected = {**target.expected_failures, **reasons_of(option("--rope-expect"))}
            check_expected(expected)
        except (ValueError, ImportError, RuntimeError) as error:
            raise pytest.UsageError(f"--rope-backend {self.target}: {error}") from None
        judge = Judge(target)
        for check in checks():
            reason = expected.get(check.name)
            yield RopeCheck.from_parent(self, name=check.name, check=check, judge=judge, reason=reason)


def pytest_configure(config: pytest.Config) -> None:
    """Raise for options without effect; import targets from the current folder, as `python -m` does."""
    if not config.getoption("--rope-backend"):
        for option in ("--rope-library", "--rope-claim", "--rope-expect"):
            if config.getoption(option):
                raise pytest.UsageError(f"{option} needs a --rope-backend; give one, or leave it out")
    elif (here := str(config.invocation_params.dir)) not in sys.path:
        sys.path.insert(0, here)


@pytest.hookimpl(tryfirst=True)  # before -k and -m are applied
def pytest_collection_modifyitems(session: pytest.Session, config: pytest.Config, items: list[Any]) -> None:
    """Add the checks to the collected tests."""
    for name in config.getoption("--rope-backend"):
        items.extend(RopeTarget.from_parent(session, name=name, target=name, nodeid=name).collect())


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Show the likely cause of each target's failures."""
    for name, (target, failed) in config.stash.get(_FAILED, {}).items():
        if cause := find_cause(target, failed):
            terminalreporter.write_line(f"{name}: {cause}")
