"""Judge a target by request: in this process, or in a child process, whose main program is `main`."""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from . import _watch
from ._causes import find_causes
from ._claims import one_line
from ._judge import Check, Judge
from ._options import Options, expected_of
from ._own import calls_of
from ._run import check_expected, plain_findings, plain_target, result_of
from ._target import Target


class Server:
    """Answers requests, which are plain values, about one target."""

    judge: Judge
    checks: Mapping[str, Check]
    expected: Mapping[str, str]

    def answer(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Answer one request by the method that it names."""
        answers: dict[str, Callable[..., dict[str, Any]]] = {
            "start": self.start,
            "check": self.check,
            "findings": self.findings,
        }
        (name, arguments), *_ = request.items()
        return answers[name](**arguments)

    def start(self, options: Mapping[str, Any], found: Mapping[str, Any]) -> dict[str, Any]:
        """Import the target and find its claims, but for what was found before; return its plain values."""
        given = Options(**options)
        try:
            extent = given.extent()
            target = given.resolve()
            every = extent.checks_for(target)
            self.expected = expected_of(target, given.expected)
            check_expected(self.expected, every)
            _preset(target, found)
            self.judge = Judge(target, given.thorough)
        except (ValueError, ImportError, RuntimeError) as error:
            return {"error": str(error)}
        self.checks = {each.name: each for each in every}
        self._served, self._declined = (Counter[str]() for _ in range(2))
        return {
            "target": plain_target(target),
            "expected": dict(self.expected),
            "checks": [{"name": c.name, "requirement": c.requirement, "needs": c.needs} for c in every],
            "found": _found_of(target),
        }

    def check(self, name: str) -> dict[str, Any]:
        """Run a check; return its result, and what it counted."""
        self.judge.worst.clear()
        result = result_of(self.checks[name], self.judge, self.expected)
        served, declined = map(Counter, calls_of(self.judge.target))
        new = {"served": served - self._served, "declined": declined - self._declined}
        self._served, self._declined = served, declined
        return {"result": vars(result), "worst": dict(self.judge.worst), **new}

    def findings(self, failed: dict[str, str]) -> dict[str, Any]:
        """Return the likely causes of the failure of these checks, whose details are given by name."""
        target = self.judge.target
        # A trial call that ended a process is not made again with other claims.
        lost = {name: why for name, why in target.declines.items() if _watch.ProcessEnded.__name__ in why}
        target = replace(target, lacks={**target.lacks, **lost}) if lost else target
        return plain_findings(find_causes(target, failed))


def _found_of(target: Target) -> dict[str, Any]:
    """Return what trial calls found of a target, as plain values."""
    # JSON has no integers as keys.
    widths = [[width, why] for width, why in target.refused_widths.items()]
    found = {"reach": target.reach, "position_dtype": target.position_dtype}
    return {**found, "refused_widths": widths, "declines": dict(target.declines)}


def _preset(target: Target, found: Mapping[str, Any]) -> None:
    """Set the properties of a target that an earlier process found, so that no trial call is made again."""
    if found:
        widths = MappingProxyType({int(width): str(why) for width, why in found["refused_widths"]})
        declines = MappingProxyType(found["declines"])
        found = {**found, "refused_widths": widths, "declines": declines}
        vars(target).update(found)


# ---- the child process ----


def main() -> None:
    """Answer the requests of the parent process: a line of JSON each, until its end of the pipe closes.

    The parent reads standard output: answers, calls that begin, and the traceback of a crash. The target gets
    an empty standard input, and standard error as its standard output.
    """
    requests, channel = os.fdopen(os.dup(0), encoding="utf-8"), os.dup(1)
    _redirect()
    faulthandler.enable(channel, all_threads=False)
    if hasattr(faulthandler, "register"):  # asked where the target hangs
        faulthandler.register(signal.SIGUSR1, channel, all_threads=False)
    server = Server()
    _watch.announce = lambda text: _write(channel, text)
    try:
        for line in requests:
            request = json.loads(line)
            _prepare(request)
            _write(channel, json.dumps(_answer(server, request), default=str))
    except KeyboardInterrupt:  # the parent, which got it too, ends
        os._exit(130)


def _answer(server: Server, request: Mapping[str, Any]) -> dict[str, Any]:
    try:
        return server.answer(request)
    except Exception as error:  # not of a check: those are results
        traceback.print_exc()
        return {"error": one_line(error, 400)}


def _redirect() -> None:
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    os.dup2(2, 1)
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(line_buffering=True, errors="backslashreplace")


def _prepare(request: dict[str, Any]) -> None:
    """Take from a request what earlier processes of the same target ended by."""
    ended = request.pop("ended", {})
    _watch.ended.update({int(number): how for number, how in ended.items()})
    _watch.trials_over = request.pop("trials_over", False)


def _write(channel: int, text: str) -> None:
    try:
        os.write(channel, f"{text}\n".encode("ascii", "backslashreplace"))
    except OSError:  # the parent has ended
        os._exit(1)
