"""Time functions in blocks of one function, which alternate in rounds.

A block has calls of one function only, as functions that alternate call by call get each other's freed
memory. The median of a block counts. A ratio is the median of the ratios within rounds, so that a slow round
slows both of its parts. The order of a round is random, and the garbage collector is off.

`clock` is `time.perf_counter`; on a machine with other load, `time.process_time` does not count the time in
which others run.
"""

import datetime
import gc
import random
import statistics
import time
from functools import partial
from pathlib import Path

from _record import RESULTS, write_json
from _targets import lines

WARM_UP = 1  # calls of a block that are not timed
CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}
clock = time.perf_counter


def parse(parser, name):
    """Return the options of the command line, with the common options of these benchmarks; set the clock."""
    global clock
    path = RESULTS / f"{datetime.date.today()}-{name}.json"
    parser.add_argument(
        "--json", nargs="?", const=path, metavar="PATH", type=Path, help=f"write {path.name}, or PATH"
    )
    parser.add_argument("--quick", action="store_true", help="few and short rounds, to try the harness")
    parser.add_argument("--clock", choices=CLOCKS, default="wall", help="cpu: on a machine with other load")
    options = parser.parse_args()
    clock = CLOCKS[options.clock]
    return options


def finish(run, options):
    """Print which targets are met and where it was measured, and write a result to the path of --json."""
    print_targets(run)
    if options.json:
        write_json(run | {"clock": options.clock}, options.json)


def print_targets(run):
    """Print which targets are met, and where it was measured."""
    print("", *lines(run), sep="\n")
    print(f"\non {run['machine']}\nwith {run['versions']}, commit {run['commit']}")


def take_turns(calls, rounds, seconds):
    """Return the median time of each function in each round; a block has 3 calls or more."""
    for call in calls.values():
        call()  # compiled functions are compiled
    counts = {name: max(3, round(seconds / time_one(call))) for name, call in calls.items()}
    return in_rounds({name: partial(block, call, counts[name]) for name, call in calls.items()}, rounds)


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


def block(call, count):
    """Return the median seconds of `count` calls of one function."""
    return statistics.median(times_of(call, count))


def times_of(call, count):
    """Return the seconds of each of `count` calls of one function."""
    return [time_one(call) for _ in range(WARM_UP + count)][WARM_UP:]


def time_one(call):
    start = clock()
    call()
    return clock() - start


def ratio(times, over):
    """Return the median of the ratios of two functions' times within rounds."""
    return round(statistics.median(a / b for a, b in zip(times, over, strict=True)), 3)


def spread(values):
    """Return the lower quartile, the median and the upper quartile, to four digits."""
    return [float(f"{value:.4g}") for value in statistics.quantiles(values, method="inclusive")]


def compare(times, ours):
    """Return the median milliseconds of each function, and the ratios of one's times to the others'."""
    return {
        "ms": {name: milliseconds(seconds) for name, seconds in times.items()},
        "ratios": {name: ratio(times[ours], seconds) for name, seconds in times.items() if name != ours},
    }


def milliseconds(times):
    return float(f"{1e3 * statistics.median(times):.4g}")


def print_table(head, rows):
    """Print rows of cells, the first column to the left; the others are numbers."""
    cells = [[str(cell) for cell in row] for row in (head, *rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for first, *row in cells:
        print(
            "  ".join([first.ljust(widths[0]), *(c.rjust(w) for c, w in zip(row, widths[1:], strict=True))])
        )
