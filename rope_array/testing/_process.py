"""Judge a target in a child process: a crash of the target fails a check, and ends nothing else.

This process imports neither the target nor its array library.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import re
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import PureWindowsPath
from typing import Any

from ._cause import Findings
from ._child import PIPE_CLOSED, Worker
from ._claims import shorten
from ._options import Options
from ._outcome import FAILED, Result, as_expected
from ._report import plain_findings, plain_report

# Processes that trial calls, and that checks, may end; then the rest fails without a call.
_MOST_TRIALS_ENDED = 5
_MOST_CHECKS_ENDED = 20
# Seconds that an import, and a trial call, may take if a check may take fewer.
_IMPORT_LIMIT = 120.0
_TRIAL_LIMIT = 5.0
# Exit statuses, most of them of Windows.
_STATUSES = {
    PIPE_CLOSED: "it closed a pipe of the suite, which it had not opened",
    130: "interrupted",
    0xC0000005: "an access violation",
    0xC00000FD: "a stack overflow",
    0xC000001D: "an illegal instruction",
    0xC0000374: "a corrupted heap",
}
# The meaning of a signal by its number, where the system's description is too short.
_MEANINGS = {9: "killed, as the system does if memory is short"}


class CannotJudge(RuntimeError):
    """No check can be run: the target, a claim or another option is wrong, or the target ends at import."""


class Ended(Exception):
    """The child process ended, or was ended, before it answered."""


class Child:
    """A child process that answers requests."""

    def __init__(self) -> None:
        self.trials, self.call = 0, ""  # the number of trial calls, and the last call that was announced
        # Each line with the time it arrived; None after the last.
        self._lines: queue.SimpleQueue[tuple[float, str | None]] = queue.SimpleQueue()
        self._crash: list[str] = []  # lines of a traceback
        try:
            self._process = subprocess.Popen(
                [sys.executable, *_interpreter_flags(), "-c", _program()],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            )  # fmt: skip
        except OSError as error:
            raise CannotJudge(f"no process could start: {error}") from None
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                self._lines.put((time.monotonic(), line.decode("utf-8", "replace").rstrip()))
        self._lines.put((time.monotonic(), None))

    def ask(self, name: str, arguments: Mapping[str, Any], *limits: float | None) -> dict[str, Any]:
        """Return the answer to a request, which names a method of `Worker`, and its arguments.

        Raise `Ended`, which says how and where, if the process ended, or took more seconds than the first
        limit; if there is a second one, more than it for a trial call. None is no limit.
        """
        self.trials, self.call, self._crash = 0, "", []
        # Its answer begins with the request's number: no other line is one, whoever writes it.
        number = secrets.token_hex(8)
        self._send([number, name, arguments])
        limit, trial_limit = (*limits, None, None)[:2]
        end = None if limit is None else time.monotonic() + limit
        while (line := self._next(end)) is not None:
            kind, _, text = line.partition(" ")
            if kind == number:
                return dict(json.loads(text))
            if kind not in ("call", "trial"):
                self._crash.append(line)
                continue
            self.call, self.trials = text, self.trials + (kind == "trial")
            if trial_limit is not None and kind == "trial":
                end = time.monotonic() + trial_limit
        status = self._status()
        self.kill()
        raise Ended(f"the process ended with {status}{self._where()}")

    def _send(self, request: Any) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):  # it has ended: the next read fails
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()

    def _next(self, end: float | None) -> str | None:
        """Return the next line; None after the last, though a process that it started holds the pipe."""
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
        """Ask the process for a traceback, if the system can, and read its lines for half a second."""
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
        target_frames = [frame for frame in frames if not _is_of_python(frame[0])]
        places = [f"in {name}, {PureWindowsPath(file).name}:{line}" for file, line, name in target_frames[:1]]
        places += [f"at the call with {self.call}"] if self.call else []
        return f" {', '.join(places)}" if places else ""

    def close(self, wait: float = 2) -> None:
        """Let the process end; end it if it takes longer."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=wait)
        self._process.kill()
        self._process.wait()
        self._reader.join(timeout=1)

    def kill(self) -> None:
        """End the process."""
        self.close(wait=0)


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
    return f"import sys; sys.path[:] = {path!r}; from rope_array.testing._child import main; main()"


class Here(Worker):
    """Answers requests in this process, for a debugger: a target that ends the process ends this one."""

    trials = 0

    def ask(self, name: str, arguments: Mapping[str, Any], *_: float | None) -> dict[str, Any]:
        """Return the answer to a request."""
        process = os.getpid()
        answer = self.answer(name, arguments)
        if os.getpid() != process:  # a forked copy of this process, which returned here too
            os._exit(0)
        return answer

    def close(self) -> None:
        """Do nothing, as nothing was started."""

    kill = close


class Judgement:
    """Judges a target check by check, in a child process; in a new one after each that ends.

    A check may take `timeout` seconds, None any number; a trial call as many, and at least five. `checks` has
    the name, requirement and needs of each check, `expected` the failures that are expected, and `results`
    the results so far.
    """

    def __init__(self, options: Options, *, timeout: float | None = None, in_process: bool = False):
        if in_process and timeout is not None:
            raise CannotJudge("a time limit ends the child process: give no timeout with in-process")
        self._options, self._timeout, self._in_process = options, timeout, in_process
        self._child: Child | Here | None = None
        self._tried: dict[str, Any] = {}  # the answers of trial calls in an earlier process
        self._trials_ended: dict[str, str] = {}
        self._checks_ended, self._gone = 0, ""  # and why no check can be run any more
        self._counted: dict[str, Any] = {"served": Counter(), "declined": Counter(), "worst": {}}
        self._started = time.perf_counter()
        self.results: list[Result] = []
        header = self._start()
        self._target, self._tried = header["target"], header["tried"]
        self.expected: dict[str, str] = header["expected"]
        self.checks: dict[str, dict[str, Any]] = {check["name"]: check for check in header["checks"]}

    def __enter__(self) -> Judgement:
        return self

    def __exit__(self, error_type: object, *_: object) -> None:
        if error_type is None:
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
        """Start a process, and another without the trial call in which it ended; return its first answer."""
        limits = [self._timeout and max(self._timeout, minimum) for minimum in (_IMPORT_LIMIT, _TRIAL_LIMIT)]
        found = {"options": self._options._asdict(), "tried": self._tried, "ended": self._trials_ended}
        while self._child is None:
            child = Here() if self._in_process or not sys.executable else Child()
            try:
                header = child.ask("start", found, *limits)
                if "error" in header:
                    raise CannotJudge(header["error"])
            except Ended as error:
                self._leave_out_trial(child.trials, error)
            except BaseException:
                child.kill()
                raise
            else:
                self._child = child
        return header

    def _leave_out_trial(self, number: int, error: Ended) -> None:
        """Leave the trial call in which a process ended out of the next one; after some, all of them."""
        ended = self._trials_ended
        if not number or str(number) in ended:  # it ended elsewhere
            raise CannotJudge(f"importing {self._options.target}: {error}") from None
        ended[str(number)] = str(error)
        if len(ended) >= _MOST_TRIALS_ENDED:
            ended["others"] = f"not tried, as {len(ended)} trial calls ended the process"

    def run(self, name: str) -> Result:
        """Run a check; a check in which the process ends is failed."""
        started = time.perf_counter()
        try:
            answer = self._ask("check", {"name": name}, self._timeout)
        except Ended as error:
            self._checks_ended += 1
            answer = {"error": str(error), "ended": True}
        if "error" in answer:  # in the child process only the target's own errors are results
            outcome, detail = as_expected(FAILED, shorten(answer["error"]), self.expected.get(name))
            failure = {"outcome": outcome, "detail": detail, "ended": "ended" in answer}
            answer["result"] = {**self.checks[name], **failure, "seconds": time.perf_counter() - started}
        else:
            for name in ("served", "declined"):
                self._counted[name].update(answer[name])
            worst = self._counted["worst"]
            worst.update({name: max(error, worst.get(name, 0.0)) for name, error in answer["worst"].items()})
        result = Result(**{**answer["result"], "needs": tuple(answer["result"]["needs"])})
        self.results.append(result)
        return result

    def _ask(self, name: str, arguments: Mapping[str, Any], limit: float | None) -> dict[str, Any]:
        """Ask the child process, a new one if the last ended."""
        if self._checks_ended >= _MOST_CHECKS_ENDED:
            self._gone = self._gone or f"the process ended in {self._checks_ended} checks"
        if self._child is None and not self._gone:
            try:
                self._start()
            except CannotJudge as error:
                self._gone = f"no new process could start: {error}"
        if self._child is None:
            raise Ended(f"not run, as {self._gone}")
        try:
            return self._child.ask(name, arguments, limit)
        except Ended:
            self._child = None
            raise

    def findings(self) -> dict[str, Any]:
        """Return the likely causes of the failures so far, as plain values."""
        failed = {r.name: r.detail for r in self.results if r.outcome == FAILED and not r.ended}
        answer: dict[str, Any] = {}
        if failed:
            with contextlib.suppress(Ended):
                limit = self._timeout and max(60.0, 10 * self._timeout)
                answer = self._ask("findings", {"failed": failed}, limit)
        return answer if answer and "error" not in answer else plain_findings(Findings())

    def report(self) -> dict[str, Any]:
        """Return the plain values of the report of the results so far, and look for causes of failures."""
        findings, seconds = self.findings(), time.perf_counter() - self._started
        return plain_report(self._target, self.results, findings, seconds, self._counted)
