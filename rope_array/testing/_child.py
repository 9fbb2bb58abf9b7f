"""Judge a target by request: in this process, or in a child process, whose program is `main`."""

from __future__ import annotations

import contextlib
import errno
import faulthandler
import io
import json
import os
import signal
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from ._claims import one_line
from ._failure import Failure
from ._find_causes import find_causes
from ._judge import Check, Judge
from ._library_target import calls_of
from ._options import Options
from ._outcome import FAILED, outcome_of, result_of, settings_kept
from ._report import plain_findings, plain_target
from ._target import Target
from ._trial_log import Lost

# The exit status of a process whose pipes the target closed; os.EX_IOERR of POSIX.
PIPE_CLOSED = 74
# Found by trial calls, in this order.
_TRIED = ("position_dtype", "refused_widths", "reach", "declines", "depth")


class Worker:
    """Judges one target: answers requests, whose arguments and answers are plain values.

    `announce` writes a line before each call of the target.
    """

    judge: Judge
    checks: Mapping[str, Check]
    expected: Mapping[str, str]

    def __init__(self, announce: Callable[[str], None] | None = None):
        self.announce = announce

    def answer(self, name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Answer a request: "start", then "check" or "findings". Errors are answered, too."""
        method: Callable[..., dict[str, Any]] = getattr(self, name)
        with settings_kept():
            try:
                return method(**arguments)
            except Exception as error:  # not of a check: those are results
                with contextlib.suppress(Exception):  # standard error may be closed
                    traceback.print_exc()
                return {"error": one_line(error, 400)}

    def start(
        self, options: Mapping[str, Any], tried: Mapping[str, Any], ended: Mapping[str, str]
    ) -> dict[str, Any]:
        """Import the target of `Options` and find its claims, except those `tried` by an earlier process.

        `ended` says how trial calls ended earlier processes, as in `TrialLog`.
        """
        parsed_options = Options(**options)
        try:
            target = parsed_options.resolve()
            target.trials.announce, target.trials.ended = self.announce, ended
            _keep(target, tried)
            self.judge, every, self.expected = parsed_options.prepare(target)
            self.judge.announce = self.announce
        except (ValueError, ImportError, RuntimeError) as error:
            return {"error": str(error)}
        self.checks = {check.name: check for check in every}
        return {
            "target": plain_target(target),
            "expected": dict(self.expected),
            "checks": [{"name": c.name, "requirement": c.requirement, "needs": c.needs} for c in every],
            "tried": {name: _plain(getattr(target, name)) for name in _TRIED} | {"lost": target.trials.lost},
        }

    def check(self, name: str) -> dict[str, Any]:
        """Run a check; return its result, its worst errors, and its calls by backend."""
        calls = calls_of(self.judge.target)
        for log in (self.judge.worst, *calls):
            log.clear()
        result = result_of(self.checks[name], self.judge, self.expected)
        served, declined = map(Counter, calls)
        worst = dict(self.judge.worst)
        return {"result": vars(result), "worst": worst, "served": served, "declined": declined}

    def findings(self, failed: Mapping[str, str]) -> dict[str, Any]:
        """Return the likely causes of the failure of these checks, whose details are given by name.

        A check that an earlier process ran is run again, for its wrong result.
        """
        for name in failed.keys() - self.judge.faults.keys():
            if outcome_of(self.checks[name], self.judge)[0] != FAILED:
                self.judge.faults[name] = Failure(failed[name])
        target = self.judge.target
        # A trial call that ended a process is not made again with other claims.
        lost = {name: Lost(why) for name, why in target.trials.lost.items()}
        target = replace(target, lacks={**target.lacks, **lost}) if lost else target
        return plain_findings(find_causes(target, {name: self.judge.faults[name] for name in failed}))


def _plain(value: Any) -> Any:
    return dict(value) if isinstance(value, Mapping) else value


def _keep(target: Target, tried: Mapping[str, Any]) -> None:
    """Keep the claims that an earlier process found: no trial call is made for them."""
    if tried:
        widths = {int(width): why for width, why in tried["refused_widths"].items()}  # JSON has texts as keys
        vars(target).update({**{name: tried[name] for name in _TRIED}, "refused_widths": widths})
        target.trials.lost.update(tried["lost"])


# ---- the child process ----


class _Pipes:
    """Requests of the parent, from standard input, and the lines that it reads, on standard output.

    The lines are answers, calls that begin, and the traceback of a crash. The target gets an empty standard
    input, and standard error as its standard output.
    """

    def __init__(self) -> None:
        self.requests, self.channel = os.fdopen(os.dup(0), encoding="utf-8"), os.dup(1)
        self._process, self._opened = os.getpid(), self._identities()
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.close(null)
        os.dup2(2, 1)

    def _identities(self) -> list[tuple[int, int]]:
        ends = map(os.fstat, (self.requests.fileno(), self.channel))
        return [(end.st_dev, end.st_ino) for end in ends]

    def write(self, text: str) -> None:
        """Write a line; end this process if it is a copy, which the target forked, or if a pipe is lost."""
        if os.getpid() != self._process:
            os._exit(0)
        try:
            if self._identities() != self._opened:  # the descriptor is of another file
                os._exit(PIPE_CLOSED)
            # An answer begins a line, whatever the target has written before.
            line = f"\n{text}\n".encode("ascii", "backslashreplace")
            while line:
                line = line[os.write(self.channel, line) :]
        except OSError as error:
            os._exit(PIPE_CLOSED if error.errno == errno.EBADF else 1)  # 1: the parent has ended


def main() -> None:
    """Answer the requests of the parent process, a line of JSON each, until its end of the pipe closes."""
    pipes = _Pipes()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(line_buffering=True, errors="backslashreplace")
    faulthandler.enable(pipes.channel, all_threads=False)
    if hasattr(faulthandler, "register"):  # asked where the target hangs
        faulthandler.register(signal.SIGUSR1, pipes.channel, all_threads=False)
    worker = Worker(pipes.write)
    try:
        for line in pipes.requests:
            number, name, arguments = json.loads(line)
            pipes.write(f"{number} {json.dumps(worker.answer(name, arguments), default=str)}")
    except KeyboardInterrupt:  # the parent, which got it too, ends
        os._exit(130)
