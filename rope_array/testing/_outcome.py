"""Run one check on a target, and tell its outcome."""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np

from ._claims import one_line, shorten
from ._judge import Check, Judge
from ._own import Declined, calls_of
from ._refused import Calls, Refused
from ._verdict import Fault

PASSED, FAILED = "passed", "failed"
INAPPLICABLE = "not applicable"
EXPECTED, UNEXPECTED = "expected failure", "unexpected pass"


def runner(check: Check, judge: Judge) -> Callable[[], None]:
    def run() -> None:
        calls, judge.calls = calls_of(judge.target), Calls()
        served, declined = len(calls.served), len(calls.declined)
        # Floating-point warnings are ignored: the checks judge the values.
        with judge.lib.running(), np.errstate(all="ignore"):
            check(judge)
        if len(calls.served) == served and (reasons := calls.declined[declined:]):
            raise Declined(_most_common(reasons))
        if judge.calls.refused and not judge.calls.served:
            raise Refused(judge.calls.refused[0])

    return run


def _most_common(reasons: Sequence[str]) -> str:
    return Counter(reasons).most_common(1)[0][0]


def outcome_of(check: Check, judge: Judge) -> tuple[str, str]:
    """Run a check; return its outcome and detail."""
    if (reason := check.inapplicable(judge)) is not None:
        return INAPPLICABLE, reason
    outcome, detail = _run(check, judge)
    if outcome == INAPPLICABLE:
        judge.refusals[check.name] = detail
    elif outcome == PASSED and detail:
        judge.left_out[check.name] = detail
    return outcome, detail


def _run(check: Check, judge: Judge) -> tuple[str, str]:
    try:
        runner(check, judge)()
    except AssertionError as error:
        judge.faults[check.name] = Fault.of(error)
        return FAILED, shorten(str(error) or _where(error))
    except Refused as error:
        return INAPPLICABLE, shorten(str(judge.calls) or f"refuses it: {error}")
    except Declined as error:
        return INAPPLICABLE, f"the backend declines it: {error}"
    except NotImplementedError as error:
        return (FAILED if judge.target.declared else INAPPLICABLE), one_line(error, 400)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # any exception of the target fails the check
        judge.faults[check.name] = Fault.of(error)
        return FAILED, f"{one_line(error, 400)} {_where(error)}"
    return PASSED, shorten(str(judge.calls))


def _where(error: BaseException) -> str:
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"(in {frame.name}, {frame.filename.rpartition('/')[2]}:{frame.lineno})"
