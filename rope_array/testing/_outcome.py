"""Run one check on a target, and return its outcome."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ._call import arguments_of
from ._claims import TRIALS, describe, one_line, shorten
from ._compilers import CannotCompile
from ._failure import Failure
from ._judge import Check, Judge, NoCalls
from ._library_target import calls_of
from ._refused import CheckCalls, Declined, EndingError, Refused
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
    started, judge.calls = time.perf_counter(), CheckCalls(_refusal)
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
        calls, judge.calls = calls_of(judge.target), CheckCalls(_refusal)
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


# ---- refused calls ----


def _refusal(j: Judge, x: Any, pos: Any, spec: Mapping[str, Any], error: Exception) -> str:
    """Return a call of a target that raised, with its error, as text; "" if it is a fault."""
    inputs = x if isinstance(x, tuple) and not hasattr(x, "array") else (x,)
    if j.target.declared or isinstance(error, Declined | CannotCompile | EndingError):
        return ""
    # With other threads a call may raise only sometimes; traced arrays have no values.
    traced = any(getattr(x, "array", None) is None for x in inputs)
    if traced or threading.current_thread() is not threading.main_thread():
        return ""
    try:
        # A call that is compiled was repeated without the compiler.
        again = j.target.compiled or _raises(j, x, pos, spec) is type(error)
        if not again or not _is_served_else(j, inputs[0].dtype, spec):
            return ""
        if not all(np.array_equal(j.numbers(x.array), x.values, equal_nan=True) for x in inputs):
            return ""
    except Exception:  # the target's own
        return ""
    arrays = tuple(x.array for x in inputs) if len(inputs) > 1 else inputs[0].array
    return f"{one_line(error)}; {describe(arrays, pos, spec)}"


def _raises(j: Judge, x: Any, pos: Any, spec: Mapping[str, Any]) -> type[Exception] | None:
    """Make a call once more; return the type of its exception."""
    try:
        j.bare_call(x, pos, dict(spec))
    except Exception as error:
        return type(error)
    return None


def _is_served_else(j: Judge, dtype: str, spec: Mapping[str, Any]) -> bool:
    """Return whether the plain call is served, and every field of a call alone."""
    texts = [f"dtype={dtype}", *(_alone(name, value) for name, value in spec.items())]
    return not any(_raises(j, *arguments_of(j, text)) for text in texts)


def _alone(name: str, value: Any) -> str:
    """Return the call of a field alone as text: with a plain value, or a rule of the same kind."""
    return f"scaling={value['rope_type']}" if name == "scaling" else TRIALS[name]
