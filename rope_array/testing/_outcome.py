"""Run one check on a target, and return its outcome."""

from __future__ import annotations

import contextlib
import os
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from ._claims import one_line, shorten
from ._failure import Failure
from ._judge import Check, Judge, NoCalls
from ._library_target import Declined, calls_of
from ._refused import CheckCalls, Refused
from ._settings import current_folder

PASSED, FAILED = "passed", "failed"
INAPPLICABLE = "not applicable"
EXPECTED, UNEXPECTED = "expected failure", "unexpected pass"


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
    refused
        The first of the calls that the target refused, with its error; "" if it refused none.
    call
        The call that fails, as the values of factors that ``--case`` reads; "" if it is the plain call, if it
        is right when it is repeated, or if the check has none that a text describes.

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
    call: str = field(default="", repr=False)
    refused: str = field(default="", repr=False)


def result_of(check: Check, judge: Judge, expected: Mapping[str, str]) -> Result:
    """Run a check; return its result, in view of the failures that are expected."""
    started, judge.calls = time.perf_counter(), CheckCalls()
    outcome, detail = as_expected(*outcome_of(check, judge), expected.get(check.name))
    fault = judge.faults.get(check.name)
    seconds, call = time.perf_counter() - started, fault.case if fault else ""
    refused = next(iter(judge.calls.refused), "") if outcome in (PASSED, INAPPLICABLE) else ""
    return Result(
        check.name, outcome, detail, check.requirement, check.needs, seconds, call=call, refused=refused
    )


def as_expected(outcome: str, detail: str, reason: str | None) -> tuple[str, str]:
    """Return the outcome and detail of a check that is expected to fail for a reason; None: to pass."""
    if reason is None:
        return outcome, detail
    if outcome == FAILED:
        return EXPECTED, f"{reason} (found: {detail})"
    return UNEXPECTED, f"expected to fail ({reason}), and {outcome}"


def outcome_of(check: Check, judge: Judge) -> tuple[str, str]:
    """Run a check; return its outcome and detail."""
    if (reason := check.inapplicable(judge)) is not None:
        return INAPPLICABLE, reason
    try:
        outcome, detail = _outcome_and_detail(check, judge)
    except NoCalls as error:
        return INAPPLICABLE, str(error)
    if outcome == INAPPLICABLE:
        judge.refusals[check.name] = detail
    elif outcome == PASSED and detail:
        judge.left_out[check.name] = detail
    return outcome, detail


def _outcome_and_detail(check: Check, judge: Judge) -> tuple[str, str]:
    try:
        runner(check, judge)()
    except (KeyboardInterrupt, NoCalls):
        raise
    except AssertionError as error:
        return FAILED, shorten(_kept(judge, check, error) or _where(error))
    except Refused as error:
        return INAPPLICABLE, shorten(str(judge.calls) or f"refuses it: {error}")
    except Declined as error:
        return INAPPLICABLE, f"the backend declines it: {error}"
    except NotImplementedError as error:
        return (FAILED if judge.target.declared else INAPPLICABLE), one_line(error, 400)
    except BaseException as error:  # any exception of the target fails the check
        _kept(judge, check, error)
        return FAILED, f"{one_line(error, 400)} {_where(error)}"
    return PASSED, shorten(str(judge.calls))


def _kept(judge: Judge, check: Check, error: BaseException) -> str:
    """Return a fault as text, and keep it with a part of its wrong result."""
    fault = Failure.of(error)
    text = str(fault)
    if fault.wrong is not None:
        fault.wrong = fault.wrong.thinned()
    judge.faults[check.name] = fault
    return text


def _where(error: BaseException) -> str:
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"(in {frame.name}, {frame.filename.rpartition('/')[2]}:{frame.lineno})"


def runner(check: Check, judge: Judge) -> Callable[[], None]:
    """Return a function that runs a check on a target, and raises if the check fails or has no calls."""

    def run() -> None:
        calls, judge.calls = calls_of(judge.target), CheckCalls()
        served, declined = len(calls.served), len(calls.declined)
        # Floating-point warnings are ignored: the checks judge the values.
        with settings_kept(), judge.lib.running(), np.errstate(all="ignore"):
            check(judge)
        if len(calls.served) == served and (reasons := calls.declined[declined:]):
            raise Declined(Counter(reasons).most_common(1)[0][0])
        if judge.calls.refused and not judge.calls.served:
            raise Refused(judge.calls.refused[0])

    return run


@contextlib.contextmanager
def settings_kept() -> Iterator[None]:
    """Restore the settings of the process that the suite itself needs."""
    depth, folder = sys.getrecursionlimit(), current_folder()
    try:
        yield
    finally:
        sys.setrecursionlimit(depth)
        with contextlib.suppress(OSError):  # it is deleted
            os.chdir(folder)
