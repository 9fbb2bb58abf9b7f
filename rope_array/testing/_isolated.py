"""Judge a target in a child process: a crash of the target fails a check, and ends nothing else.

This process imports neither the target nor its array library.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import PureWindowsPath
from typing import Any

from ._causes import Findings
from ._claims import shorten
from ._options import Options
from ._outcome import FAILED
from ._run import Result, Tally, as_expected, plain_findings, plain_report
from ._server import Server

# Processes that trial calls, and that checks, may end; then the rest fails without a call.
_MOST_TRIALS_ENDED = 5
_MOST_CHECKS_ENDED = 20
# Seconds that an import, and a trial call, may take if a check may take fewer.
_IMPORT_LIMIT = 120.0
_TRIAL_LIMIT = 5.0
# Exit statuses, most of them of Windows.
_STATUSES = {
    130: "interrupted",
    0xC0000005: "an access violation",
    0xC00000FD: "a stack overflow",
    0xC000001D: "an illegal instruction",
    0xC0000374: "a corrupted heap",
}
# What a signal means here, by its number, where the system's word says little.
_MEANINGS = {9: "killed, as the system does if memory is short"}


class CannotJudge(RuntimeError):
    """No check can be run: the target, a claim or another option is wrong, or the target ends at import."""


class Ended(Exception):
    """The child process ended, or was ended, before it answered."""


class Child:
    """A child process that answers requests."""

    def __init__(self) -> None:
        self.call = ""  # the last call that was announced
        # Each line with the time it arrived; None after the last.
        self._lines: queue.Queue[tuple[float, str | None]] = queue.Queue()
        self._crash: list[str] = []  # lines of a traceback
        self._process = subprocess.Popen(
            [sys.executable, *_interpreter_flags(), "-c", _program()],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                self._lines.put((time.monotonic(), line.decode("utf-8", "replace").rstrip()))
        self._lines.put((time.monotonic(), None))

    def ask(
        self, request: Mapping[str, Any], limit: float | None = None, trial_limit: float | None = None
    ) -> dict[str, Any]:
        """Return the answer to a request.

        Raises
        ------
        Ended
            The process ended, or did not answer within `limit` seconds; if `trial_limit` is given, within so
            many seconds of its last trial call. The message says how, and where.
        CannotJudge
            The request cannot be served.
        """
        self.call, self._crash = "", []
        self._send(request)
        end = None if limit is None else time.monotonic() + limit
        while (line := self._next(end)) is not None:
            if line.startswith("{"):
                return _usable(json.loads(line))
            if line.startswith(("call ", "trial ")):
                self.call = line
                if line.startswith("trial ") and trial_limit is not None:
                    end = time.monotonic() + trial_limit
            else:
                self._crash.append(line)
        status = self._status()
        self.kill()
        raise Ended(f"the process ended with {status}{self._where()}")

    def _send(self, request: Mapping[str, Any]) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):  # it has ended: the next read fails
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()

    def _next(self, end: float | None) -> str | None:
        """Return the next line; None after the last, though a process that it started holds the pipe.

        A line that arrives after `end` is too late, though the process is alive and calls the target.
        """
        while True:
            arrived = time.monotonic()
            with contextlib.suppress(queue.Empty):
                arrived, line = self._lines.get(timeout=0.2)
                if end is None or line is None or arrived <= end:
                    return line
            if self._process.poll() is not None and self._lines.empty():
                return None
            if end is not None and arrived > end:
                self._ask_where()
                self.kill()
                raise Ended(f"it did not end in time{self._where()}")

    def _ask_where(self) -> None:
        """Have the process write a traceback, where it can, and read what it writes for half a second."""
        if hasattr(signal, "SIGUSR1"):
            self._process.send_signal(signal.SIGUSR1)
            end = time.monotonic() + 0.5
            with contextlib.suppress(queue.Empty):
                while (left := end - time.monotonic()) > 0 and (line := self._lines.get(timeout=left)[1]):
                    self._crash.append(line)

    def _status(self) -> str:
        try:
            code = self._process.wait(timeout=2)
        except subprocess.TimeoutExpired:
            return "its pipe closed"
        if code < 0:
            meaning = str(signal.strsignal(-code)).lower()
            return f"{signal.Signals(-code).name} ({_MEANINGS.get(-code, meaning)})"
        return f"exit status {code}{f' ({_STATUSES[code]})' if code in _STATUSES else ''}"

    def _where(self) -> str:
        """Return the function in which it crashed, and the call."""
        frames = re.findall(r'^\s+File "(.*)", line (\d+) in (.+)$', "\n".join(self._crash), re.MULTILINE)
        own = [frame for frame in frames if not _is_of_python(frame[0])]
        place = [f"in {name}, {PureWindowsPath(file).name}:{line}" for file, line, name in own[:1]]
        call = re.sub(r"^(call|trial \d+) ", "", self.call)
        parts = [*place, *([f"at the call with {call}"] if call else [])]
        return f" {', '.join(parts)}" if parts else ""

    def close(self) -> None:
        """Let the process end, or end it if it takes long."""
        self._close_pipe()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=2)
        self.kill()

    def kill(self) -> None:
        """End the process."""
        self._close_pipe()
        self._process.kill()
        self._process.wait()
        self._reader.join(timeout=1)

    def _close_pipe(self) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()


def _usable(answer: dict[str, Any]) -> dict[str, Any]:
    if "error" in answer:
        raise CannotJudge(answer["error"])
    return answer


def _is_of_python(file: str) -> bool:
    """Return whether a file is of Python's own library."""
    return file.startswith(("<", os.path.dirname(os.__file__))) and "site-packages" not in file


def _interpreter_flags() -> list[str]:
    """Return the options of this interpreter, such as -P or -W."""
    flags: Any = getattr(subprocess, "_args_from_interpreter_flags", list)
    return list(flags())


def _program() -> str:
    """Return the child's program, which imports from the same folders."""
    path = [entry for entry in sys.path if isinstance(entry, str)]
    return f"import sys; sys.path[:] = {path!r}; from rope_array.testing._server import main; main()"


class Here:
    """Answers requests in this process, for a debugger: a target that ends the process ends this one."""

    call = ""

    def __init__(self) -> None:
        self._server = Server()

    def ask(
        self, request: Mapping[str, Any], limit: float | None = None, trial_limit: float | None = None
    ) -> dict[str, Any]:
        """Return the answer to a request."""
        given = {name: value for name, value in request.items() if name not in ("ended", "trials_over")}
        return _usable(self._server.answer(given))

    def close(self) -> None:
        """Do nothing."""

    kill = close


class Judgement:
    """Judges a target check by check, in a child process; in a new one after each that ends.

    Parameters
    ----------
    options
        The target and the claims.
    timeout
        Seconds that a check may take; None: any number. A trial call may take as many, and at least five.
    in_process
        Whether to judge in this process instead.

    Attributes
    ----------
    checks
        The checks, each with its name, requirement and needs.
    expected
        The failures that are expected.
    results
        The results so far.
    """

    def __init__(self, options: Options, *, timeout: float | None = None, in_process: bool = False):
        if in_process and timeout is not None:
            raise CannotJudge("a time limit ends the child process: give no timeout with in-process")
        self._options, self._timeout, self._in_process = options, timeout, in_process
        self._child: Child | Here | None = None
        self._found: dict[str, Any] = {}
        self._trials_ended: dict[str, str] = {}
        self._checks_ended = 0
        self._tally, self._started = Tally(), time.perf_counter()
        self.results: list[Result] = []
        header = self._start()
        self._target, self._found = header["target"], header["found"]
        self.expected: dict[str, str] = header["expected"]
        self.checks: dict[str, dict[str, Any]] = {check["name"]: check for check in header["checks"]}

    def __enter__(self) -> Judgement:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self.close()
        elif self._child is not None:
            self._child.kill()

    def close(self) -> None:
        """Let the child process end."""
        if self._child is not None:
            self._child.close()

    @property
    def target(self) -> str:
        """The target's name."""
        return str(self._target["target"])

    def _start(self) -> dict[str, Any]:
        """Start a process, and another without the trial call in which it ended; return what it found."""
        while True:
            self._child = Here() if self._in_process or not sys.executable else Child()
            try:
                return self._first_answer(self._child)
            except Ended as error:
                trial = re.match(r"trial (\d+) ", self._child.call)
                if trial is None:
                    self._child = None
                    raise CannotJudge(f"importing {self._options.target}: {error}") from None
                self._trials_ended[trial[1]] = str(error)
            except BaseException:
                self._child.kill()
                raise

    def _first_answer(self, child: Child | Here) -> dict[str, Any]:
        limit, trial_limit = (
            None if self._timeout is None else max(self._timeout, least)
            for least in (_IMPORT_LIMIT, _TRIAL_LIMIT)
        )
        return child.ask(
            {
                "start": {"options": self._options._asdict(), "found": self._found},
                "ended": self._trials_ended,
                "trials_over": len(self._trials_ended) >= _MOST_TRIALS_ENDED,
            },
            limit,
            trial_limit,
        )

    def run(self, name: str) -> Result:
        """Run a check; a check in which the process ends is failed."""
        started = time.perf_counter()
        try:
            result = self._result(name)
        except Ended as error:
            result = self._failed(name, str(error), time.perf_counter() - started)
        self.results.append(result)
        return result

    def _result(self, name: str) -> Result:
        child = self._running()
        try:
            answer = child.ask({"check": {"name": name}}, self._timeout)
        except Ended:
            self._child, self._checks_ended = None, self._checks_ended + 1
            raise
        self._tally.add(answer["served"], answer["declined"], answer["worst"])
        return Result(**{**answer["result"], "needs": tuple(answer["result"]["needs"])})

    def _running(self) -> Child | Here:
        """Return the child process, a new one if the last ended."""
        if self._child is None and self._checks_ended >= _MOST_CHECKS_ENDED:
            raise Ended(f"not run, as the process ended in {self._checks_ended} checks")
        if self._child is None:
            try:
                self._start()
            except CannotJudge as error:
                raise Ended(f"not run, as no new process could start: {error}") from None
        assert self._child is not None
        return self._child

    def _failed(self, name: str, detail: str, seconds: float) -> Result:
        check = self.checks[name]
        outcome, detail = as_expected(FAILED, shorten(detail), self.expected.get(name))
        return Result(name, outcome, detail, check["requirement"], tuple(check["needs"]), seconds, ended=True)

    def findings(self) -> dict[str, Any]:
        """Return the likely causes of the failures so far, as plain values."""
        failed = {one.name: one.detail for one in self.results if one.outcome == FAILED and not one.ended}
        if not failed:
            return plain_findings(Findings())
        limit = None if self._timeout is None else max(60.0, 10 * self._timeout)
        try:
            return self._running().ask({"findings": {"failed": failed}}, limit)
        except Ended:
            self._child = None
            return plain_findings(Findings())

    def report(self) -> dict[str, Any]:
        """Return the plain values of the report of the results so far, and look for causes of failures."""
        seconds = time.perf_counter() - self._started
        return plain_report(self._target, self.results, self.findings(), self._tally, seconds)
