"""Judge the rows of a case, and time them in rounds, on the CPU or on a GPU.

A trial (`CpuTrial`, `GpuTrial`) has the arrays of a case, makes the contender of a row, and times its calls.
Each round has a random order, as the previous call determines the state of caches and heap. A ratio to a
copy is the median of the ratios within rounds, so that a slow round, or another clock of a GPU, changes both
parts of its ratio.
"""

import gc
import importlib
import sys
from functools import partial
from typing import NamedTuple

import numpy as np
from _harness import in_rounds, one_line, spread
from _speed_cases import OURS
from peers._timed import NotServedError

import rope_array as ra

# Of the length of x. Our rows have exact angles and round once; a wrong rotation is off by about 1, another's
# float32 angles and 16 bits by far less.
OURS_WRONG = {"float32": 2e-6, "bfloat16": 2.0**-8, "float16": 2.0**-11}
WRONG = 0.05


class Pace(NamedTuple):
    """The calls of one timing, its seconds with the warm-up, and about the host's seconds for a call."""

    loops: int
    seconds: float
    call: float


class Timing(NamedTuple):
    """Seconds of one call, and of the host on a GPU; `ahead`: the GPU never waited for the host."""

    seconds: float
    host: float | None = None
    ahead: bool = True


def run(case, trial_of, patterns, quick):
    """Return the numbers of a case: its facts, and its rows by name; `trial_of(case)` makes its arrays."""
    try:
        return case.facts() | timed(trial_of(case), patterns, quick)
    except (MemoryError, RuntimeError) as error:  # PyTorch's errors of memory and of CUDA are RuntimeErrors
        return case.facts() | {"failed": one_line(error), "rows": {}}
    finally:
        forget()


def timed(trial, patterns, quick):
    rows, contenders = {}, {}
    for name, make in makers(trial, rows).items():
        if trial.case.takes(name, patterns):
            prepare(name, make, trial, contenders, rows)
    times, paces = alternate(contenders, trial, quick)
    for name in times:
        rows[name] |= summary(name, times, paces[name], trial.copies)
    return trial.finish(rows, contenders, times) | {"rows": rows}


def makers(trial, rows):
    """Return a function for each row that prepares it; a module that fails is a failed row."""
    makes = trial.copy_rows()
    for name in trial.peers:
        try:
            makes |= getattr(importlib.import_module(f"peers.{name}"), trial.entry)(trial)
        except Exception as error:  # a peer that is not installed costs its own rows only
            rows[name] = {"failed": one_line(error)}
    return makes


def prepare(name, make, trial, contenders, rows):
    """Prepare a row and judge its results; a wrong row is not timed."""
    try:
        contender = trial.contender(name, make)
        error = 0.0 if name.startswith("copy") else distance(trial, contender)
    except Exception as error:  # any exception costs this row only
        served = not isinstance(error, NotServedError)
        rows[name] = {"failed": one_line(error)} if served else {"not served": str(error)}
        return
    if error <= (OURS_WRONG[trial.case.dtype] if name.startswith(OURS) else WRONG):
        rows[name], contenders[name] = {"error": float(f"{error:.3g}")}, contender
    else:
        rows[name] = {"wrong": f"off by {error:.2g} of the length of x"}


def distance(trial, contender):
    """Return the largest distance of a result to ours by the array-api backend, relative to the length of x.

    It is nan if a result has a nan.
    """
    errors = []
    for x, y, pos in trial.results(contender):
        right = ra.apply(x, pos, trial.rope, inverse=trial.inverse, backend="array-api")
        errors.append(np.linalg.norm(y - right) / np.linalg.norm(x))
    return float(np.max(errors))


def some(size):
    """Return at most 64 indices with the first and the last."""
    return np.unique(np.linspace(0, size - 1, min(size, 64)).astype(int))


def alternate(contenders, trial, quick):
    """Return the timings of each contender in each round, and its pace."""
    paces = {name: trial.pace(contender) for name, contender in contenders.items()}
    few, many = trial.rounds[quick]
    fit = int(trial.seconds[quick] / max(sum(pace.seconds for pace in paces.values()), 1e-9))
    timers = {name: partial(trial.time, contenders[name], pace) for name, pace in paces.items()}
    return in_rounds(timers, min(many, max(few, fit))), paces


def summary(name, times, pace, copies):
    seconds = [timing.seconds for timing in times[name]]
    numbers = {"seconds": spread(seconds), "min": float(f"{min(seconds):.4g}")}
    numbers |= {"rounds": len(seconds), "loops": pace.loops}
    return numbers | {key: ratios(times[name], times[copy]) for key, copy in copies if copy in times}


def ratios(times, over):
    return spread([a.seconds / b.seconds for a, b in zip(times, over, strict=True)])


def forget():
    """Free a case's compiled code and arrays."""
    if dynamo := sys.modules.get("torch._dynamo"):
        dynamo.reset()
    if jax := sys.modules.get("jax"):
        jax.clear_caches()
    gc.collect()
