"""A pytest plugin: every check of the suite as a test of its own.

``pytest -p rope_array.testing.plugin --rope-backend mylib.rope:rotate`` needs no test file. A check that does
not apply is skipped with its reason; an expected failure is a strict xfail.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pytest

from rope_array._command._check import OPTIONS

from ._options import Options
from ._outcome import EXPECTED, FAILED, INAPPLICABLE, UNEXPECTED, Result
from ._process import CannotJudge, Judgement

_JUDGEMENTS = pytest.StashKey[list[Judgement]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options."""
    group = parser.getgroup("rope_array", "conformance of rotary embeddings (rope_array)")
    about = "run the conformance suite on TARGET, as `python -m rope_array check` does; repeatable"
    group.addoption("--rope-backend", metavar="TARGET", help=about, action="append", default=[])
    for name, option in OPTIONS.items():
        group.addoption(f"--rope-{name}", **{**option, "dest": f"rope_{_field(name)}"})


class CheckFailed(Exception):
    """A check failed; the message is its detail."""


class UnexpectedPass(Exception):
    """A check that was expected to fail passes, or does not apply."""


class RopeCheck(pytest.Item):
    """One check of one target."""

    def __init__(self, *, judgement: Judgement, target: str, **node_arguments: Any):
        super().__init__(**node_arguments)
        self.judgement, self.target = judgement, target
        if (reason := judgement.expected.get(self.name)) is not None:
            self.add_marker(pytest.mark.xfail(reason=reason, strict=True, raises=CheckFailed))

    def runtest(self) -> None:
        """Run the check."""
        result: Result = self.judgement.run(self.name)
        if result.outcome == UNEXPECTED:
            raise UnexpectedPass(result.detail)
        if result.outcome == INAPPLICABLE:
            pytest.skip(result.detail)
        if result.outcome in (FAILED, EXPECTED):
            raise CheckFailed(result.detail)

    def repr_failure(self, excinfo: Any, style: Any = None) -> Any:
        """Return the requirement and the detail, without a traceback through the suite."""
        if isinstance(excinfo.value, CheckFailed):
            required = self.judgement.checks[self.name]["requirement"]
            return f"required: {required}\nfound:    {excinfo.value}"
        if isinstance(excinfo.value, UnexpectedPass):
            return str(excinfo.value)
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Any, int | None, str]:
        """Return the path and name of the test."""
        return self.path, None, f"{self.target}: {self.name}"


class RopeTarget(pytest.Collector):
    """All checks of one target."""

    def __init__(self, *, target: str, **node_arguments: Any):
        super().__init__(**node_arguments)
        self.target = target

    def collect(self) -> Iterator[RopeCheck]:
        """Yield the checks."""
        try:
            judgement = _judgement_of(self.config, self.target)
        except CannotJudge as error:
            raise pytest.UsageError(f"--rope-backend {self.target}: {error}") from None
        self.config.stash.setdefault(_JUDGEMENTS, []).append(judgement)
        for name in judgement.checks:
            yield RopeCheck.from_parent(self, name=name, judgement=judgement, target=self.target)


def _field(option: str) -> str:
    """Return the field of `Options`, or the argument of `Judgement`, that an option sets."""
    return str(OPTIONS[option].get("dest", option.replace("-", "_")))


def _judgement_of(config: pytest.Config, target: str) -> Judgement:
    values = {_field(name): config.getoption(f"--rope-{name}") for name in OPTIONS}
    timeout, in_process = values.pop("timeout"), values.pop("in_process")
    return Judgement(Options(target, **values), timeout=timeout, in_process=in_process)


def pytest_configure(config: pytest.Config) -> None:
    """Raise for options without effect; import targets from the current folder, as `python -m` does."""
    if not config.getoption("--rope-backend"):
        for option in (f"--rope-{name}" for name in OPTIONS):
            if config.getoption(option):
                raise pytest.UsageError(f"{option} needs a --rope-backend; give one, or leave it out")
    elif (folder := str(config.invocation_params.dir)) not in sys.path:
        sys.path.insert(0, folder)


@pytest.hookimpl(tryfirst=True)  # before -k and -m are applied
def pytest_collection_modifyitems(session: pytest.Session, config: pytest.Config, items: list[Any]) -> None:
    """Add the checks to the collected tests."""
    for name in config.getoption("--rope-backend"):
        items.extend(RopeTarget.from_parent(session, name=name, target=name, nodeid=name).collect())


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Show the likely cause of each target's failures."""
    for judgement in config.stash.get(_JUDGEMENTS, []):
        if cause := judgement.findings()["cause"]:
            terminalreporter.write_line(f"{judgement.target}: {cause}")


def pytest_unconfigure(config: pytest.Config) -> None:
    """End the child processes."""
    for judgement in config.stash.get(_JUDGEMENTS, []):
        judgement.close()
