"""Calls from several threads at once."""

from __future__ import annotations

import itertools
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from ._call import CallInputs, make
from ._factors import CallFactors
from ._failure import named
from ._judge import Floats, Judge, NoCalls
from ._observe import judge_results, rotated

# Of the calls of several threads: JAX compiles some code at each call.
_MOST_SECONDS = 10.0


@dataclass(frozen=True)
class AtOnce:
    """Makes calls at once, each in a thread of its own, and judges every result."""

    times: int = 25  # how often a thread makes its calls
    group: int | None = None  # the number of calls that are made at once; all by default
    # Whether every second call has a thread, which makes all calls, beginning with its own.
    in_turn: bool = False

    def __call__(self, j: Judge, calls: list[CallFactors]) -> None:
        if not calls:
            raise NoCalls("its claims leave none of these calls")
        size = self.group or len(calls)
        for start in range(0, len(calls), size):
            group = [make(j, call, seed) for seed, call in enumerate(calls[start : start + size])]
            series = [[inputs] for inputs in group]
            if self.in_turn:
                series = [[*group[i:], *group[:i]] for i in range(0, len(group), 2)]
            is_long = (self.group or self.in_turn) and j.lib.is_lazy(group[0].xs[0].array)
            times = 1 if is_long else self.times
            with named(f"with {calls[start].text(j.plain)}" if self.group else ""):
                _check_at_once(j, series, times)


def _check_at_once(j: Judge, all_series: list[list[CallInputs]], times: int) -> None:
    """Make each series of calls many times in its own thread, and judge every result."""
    alone: dict[int, list[Floats]] = {}
    for inputs in (inputs for series in all_series for inputs in series):  # compiled before the threads start
        if id(inputs) not in alone:
            with j.if_served():
                alone[id(inputs)] = rotated(j, inputs)
    served = [[inputs for inputs in series if id(inputs) in alone] for series in all_series]
    times = min(times, _times_in_a_while(j, [inputs for series in served for inputs in series]))

    def repeat(series: list[CallInputs]) -> None:
        for inputs in series * times:
            check_again(j, inputs, alone[id(inputs)])

    run_at_once(j, [partial(repeat, series) for series in served])


def check_again(j: Judge, inputs: CallInputs, alone: list[Floats]) -> None:
    """Make a call; judge its results if they differ from the results that it had alone."""
    y = j.call(inputs.x, inputs.pos, **inputs.spec)
    results = y if inputs.in_tuple else (y,)
    if not all(np.array_equal(j.numbers(a), b) for a, b in zip(results, alone, strict=True)):
        judge_results(j, inputs, y)


def _times_in_a_while(j: Judge, calls: list[CallInputs]) -> int:
    """Return how often all calls can be repeated in `_MOST_SECONDS`, estimated from one call; at least 1."""
    before = time.perf_counter()
    for inputs in calls[:1]:
        j.call(inputs.x, inputs.pos, **inputs.spec)
    seconds = (time.perf_counter() - before) * len(calls)
    return max(1, int(_MOST_SECONDS / max(seconds, 1e-9)))


def run_at_once(j: Judge, works: Sequence[Callable[[], None]]) -> None:
    """Run functions at once, each in its own thread; raise the first error."""
    errors: list[BaseException] = []
    start, interval = threading.Barrier(len(works)), sys.getswitchinterval()

    def run(work: Callable[[], None]) -> None:
        try:
            with j.lib.running():
                start.wait()
                work()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(work,)) for work in works]
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    if errors:
        raise errors[0]


def while_tables_grow(j: Judge, calls: list[CallFactors]) -> None:
    """Judge each call in three threads while another thread makes the next call, further away."""
    for near, far in itertools.pairwise(calls):
        if near.reach < far.reach:
            with j.if_served():
                _check_while(j, make(j, near), make(j, far))


def _check_while(j: Judge, near: CallInputs, far: CallInputs) -> None:
    alone, done = rotated(j, near), threading.Event()

    def grow() -> None:
        try:
            y = j.call(far.x, far.pos, **far.spec)
        finally:
            done.set()
        judge_results(j, far, y)

    def repeat() -> None:
        ended = False
        while not ended:
            ended = done.is_set()
            check_again(j, near, alone)

    run_at_once(j, [grow, repeat, repeat, repeat])
