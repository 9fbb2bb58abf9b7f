"""The harness of training.py and training_jax.py: the model's sizes, batches, models that take turns, tables.

Models take turns in blocks of steps; the median of the blocks counts, and ratios are medians of the ratios
within rounds.
"""

import random
import statistics
import sys
import time

import numpy as np
from _blocks import print_table, time_one
from _record import ROOT

LAYERS, WIDTH, HEADS, LENGTH, BATCH = 4, 256, 4, 512, 2
HEAD_DIM, BASE = WIDTH // HEADS, 10_000.0
WARM_UP, ROUNDS, BLOCK = 2, 10, 3  # steps before the timing, rounds, steps of a block
NONE, OURS = "no rotation", "rope_array"
SHARE, PEAK = "rotation, % of the step", "peak memory of a step, MiB"
DIFFERENCE = f"largest difference of a loss to {OURS}'s"


class Run:
    """A model in training, its losses so far. Subclasses do a step, and measure a step's memory."""

    def __init__(self, batches):
        self.batches, self.losses = batches, []

    def step(self):
        """Do one step with the next batch, and append its loss."""
        raise NotImplementedError  # abstract: each library's Run has its own

    def peak(self):
        """Return the peak of the memory allocated within one step, in bytes."""
        raise NotImplementedError  # abstract: each library's Run has its own

    def block(self, steps):
        """Return the median seconds of some steps. No step is left out: the losses are a curve."""
        return statistics.median(time_one(self.step) for _ in range(steps))


def text_batches(rounds):
    """Return batches of random sequences of the documentation's bytes, of LENGTH inputs and one more."""
    text = b"".join(path.read_bytes() for path in sorted((ROOT / "docs").glob("*.md")))
    tokens, count = np.frombuffer(text, np.uint8).astype(np.int32), WARM_UP + rounds * BLOCK + 1
    starts = np.random.default_rng(0).integers(len(tokens) - LENGTH, size=(count, BATCH))
    return tokens[starts[..., None] + np.arange(LENGTH + 1)]


def train(runs, rounds, peers):
    """Train every model, in turns, and return the numbers of each; `peers` are compared with each."""
    begun = time.perf_counter()
    for run in runs.values():
        run.block(WARM_UP)
    ready, order, names = time.perf_counter() - begun, random.Random(0), list(runs)
    times = {name: [] for name in names}
    for _ in range(rounds):
        order.shuffle(names)
        for name in names:
            times[name].append(runs[name].block(BLOCK))
    print(f"  first steps {ready:.0f} s, all {time.perf_counter() - begun:.0f} s", file=sys.stderr)
    peaks = {name: run.peak() for name, run in runs.items()}
    return {name: _numbers(name, runs, times, peaks[name], peers) for name in runs}


def _numbers(name, runs, times, peak, peers):
    seconds, losses, reference = times[name], runs[name].losses, runs[OURS].losses
    against = lambda peer: statistics.median(a / b for a, b in zip(seconds, times[peer], strict=True))  # noqa: E731
    return {
        "tokens per second": round(BATCH * LENGTH / statistics.median(seconds)),
        "step, ms": float(f"{1e3 * statistics.median(seconds):.4g}"),
        **{f"time ÷ {peer}": round(against(peer), 3) for peer in peers},
        SHARE: round(100 * (1 - 1 / against(NONE)), 1),
        PEAK: round(peak / 2**20, 1),
        DIFFERENCE: max(abs(a - b) for a, b in zip(losses, reference, strict=True)),
        "losses": [round(loss, 6) for loss in losses],
    }


def show(run, peers):
    """Print a table for each setting."""
    ratios = [f"÷ {peer}" for peer in peers]
    head = ("", "tokens/s", *ratios, "rotation, % of step", "peak, MiB", "last loss", "largest difference")
    for name, models in run["numbers"].items():
        print(f"\n{name}")
        print_table(head, [_row(*row, peers) for row in models.items()])


def _row(name, numbers, peers):
    different = "" if name == NONE else f"{numbers[DIFFERENCE]:.1e}"
    return (
        name,
        numbers["tokens per second"],
        *(numbers[f"time ÷ {peer}"] for peer in peers),
        "" if name == NONE else numbers[SHARE],
        numbers[PEAK],
        f"{numbers['losses'][-1]:.4f}",
        different,
    )
