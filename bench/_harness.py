"""Time calls in blocks, which alternate in rounds; the options, tables and results of benchmarks.

A block has calls of one function only, as functions that alternate call by call get each other's freed
memory. A ratio is the median of the ratios within rounds, so that a slow round slows both of its parts. The
order of a round is random, and the garbage collector is off.

`clock` is `time.perf_counter`; on a machine with other load, `time.process_time` does not count the time in
which others run.
"""

import datetime
import gc
import math
import os
import random
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from itertools import repeat
from operator import truediv
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from _record import RESULTS, write_json
from _targets import target_rows

TARGETS = ("target", "limit", "worst", "verdict", "case")
CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}
clock = time.perf_counter
LONG = 0.1  # seconds of a call whose arrays exceed the caches and the heap's free lists: no warm-up call
OFFLINE = {"JAX_PLATFORMS": "cpu", "HF_HUB_OFFLINE": "1"}
# Libraries read these when they are loaded.
ONE = dict.fromkeys(("ROPE_ARRAY_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "PJRT_NPROC"), "1")


# ---- options and results ----


def parse(parser, name):
    """Return the options of the command line, with the common options of these benchmarks; set the clock."""
    global clock
    path = RESULTS / f"{datetime.date.today()}-{name}.json"
    add = parser.add_argument
    add("--only", nargs="+", default=(), metavar="WORD", help="the cases whose name has all these")
    add("--json", nargs="?", const=path, metavar="PATH", type=Path, help=f"write {path.name}, or PATH")
    add("--quick", action="store_true", help="few and short rounds, to try the harness")
    add("--clock", choices=CLOCKS, default="wall", help="cpu: on a machine with other load")
    options = parser.parse_args()
    clock = CLOCKS[options.clock]
    return options


def is_chosen(name, options):
    return all(word.lower() in name.lower() for word in options.only)


def finish(run, options):
    """Print which targets are met and where it was measured, and write a result to the path of --json."""
    print_targets(run)
    if options.json:
        write_json(run | {"clock": options.clock}, options.json)


def print_targets(run):
    """Print which targets are met, and where it was measured."""
    if run.get("targets"):
        print()
        print_table(TARGETS, target_rows(run, TARGETS))
    print(f"\non {run['machine']}\nwith {run['versions']}, commit {run['commit']}")


def print_table(head, rows):
    """Print rows of cells, the first column to the left; the others are numbers."""
    cells = [[str(cell) for cell in row] for row in (head, *rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for first, *row in cells:
        print(
            "  ".join([first.ljust(widths[0]), *(c.rjust(w) for c, w in zip(row, widths[1:], strict=True))])
        )


def one_line(error):
    return " ".join(f"{type(error).__name__}: {error}".split())[:200]


def settle(threads=None):
    """Limit this process to `threads`, or all, before it loads libraries; return the number of threads."""
    os.environ |= OFFLINE | (dict.fromkeys(ONE, str(threads)) if threads else {})
    if threads and hasattr(os, "sched_setaffinity"):
        # One processor for one thread: XLA's pool has as many threads as there are processors.
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[-threads:])
    return threads or (len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count())


# ---- blocks and rounds ----


class Fresh(NamedTuple):
    """A row whose call changes its own inputs: each block of at most `most` calls gets new ones by `make`."""

    make: Callable[[], Callable[[], Any]]
    most: int

    def __call__(self):
        return self.make()()


def total(row, count):
    """Return the seconds of some calls."""
    call = row.make() if isinstance(row, Fresh) else row
    start = clock()
    for _ in repeat(None, count):
        call()
    return clock() - start


def pace(row, seconds):
    """Return how many calls take `seconds` or more, and the seconds of one."""
    count, most = 1, row.most if isinstance(row, Fresh) else math.inf
    while (took := total(row, count)) < seconds and count < most:
        count = min(most, max(2 * count, math.ceil(0.5 * seconds * count / max(took, 1e-9))))
    return count, took / count


def block(row, count, warm=True):
    """Return the seconds of one of `count` calls, after an untimed one, which fills the caches."""
    if warm:
        row()
    return total(row, count) / count


def alternate(rows, rounds, seconds):
    """Return the seconds of a call of each row in each round, by blocks of `seconds` or more."""
    for row in rows.values():
        row()  # compiled functions are compiled
    paces = {name: pace(row, seconds) for name, row in rows.items()}
    timers = {name: partial(block, rows[name], n, took < LONG) for name, (n, took) in paces.items()}
    return in_rounds(timers, rounds)


def in_rounds(timers, rounds):
    """Return the values of each timer in each round."""
    names, times, order = list(timers), {name: [] for name in timers}, random.Random(0)
    gc.collect()
    gc.disable()
    try:
        for _ in range(rounds):
            order.shuffle(names)
            for name in names:
                times[name].append(timers[name]())
    finally:
        gc.enable()
    return times


def spread(values):
    """Return the lower quartile, the median and the upper quartile, to four digits."""
    return [float(f"{value:.4g}") for value in statistics.quantiles(values, method="inclusive")]


def compare(times, pairs):
    """Return the median milliseconds of each row, and the median ratios within rounds of pairs of rows."""
    present = [(a, b) for a, b in pairs if {a, b} <= times.keys()]
    medians = {(a, b): statistics.median(map(truediv, times[a], times[b])) for a, b in present}
    return {
        "ms": {name: float(f"{1e3 * statistics.median(seconds):.4g}") for name, seconds in times.items()},
        "ratios": {f"{a} / {b}": round(median, 3) for (a, b), median in medians.items()},
    }


def check(rows, expected, tolerance):
    """Stop if a result differs from the expected arrays by more than this part of the largest number."""
    for name, call in rows.items():
        y = call()
        for part, right in zip(y if isinstance(y, tuple) else (y,), map(as_float32, expected), strict=True):
            error = np.abs(as_float32(part) - right).max() / np.abs(right).max()
            if not error <= tolerance:
                sys.exit(f"the result of {name} is off by {error:.2g} of the largest |y|")


def as_float32(y):
    return np.asarray(y.detach().float() if hasattr(y, "detach") else y, np.float32)
