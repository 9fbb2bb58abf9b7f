"""Time all rows of a case in rounds: the child process of `bench/speed.py`.

Each round has a random order, as the previous call determines the state of caches and heap. A ratio to
a copy is the median of the ratios within rounds, so that a slow round slows both parts of its ratio. `timeit`
does the timing, with the garbage collector off.
"""

import gc
import importlib
import math
import random
import statistics
import time
from timeit import Timer
from typing import NamedTuple

import numpy as np
from peers._timed import Arrays, NotServedError, Timed

PEERS = (
    "own",
    "huggingface",
    "meta",
    "rotary_embedding_torch",
    "equinox",
    "keras_hub",
    "onnx_runtime",
    "naive",
)
# The copies that times are compared with, and PyTorch's clone.
INTO, ALLOCATING, CLONE = "copy into existing memory", "copy, allocating", "copy, PyTorch clone"
SHORTEST = 1e-3  # seconds of one timing; shorter calls are repeated
LONG = 0.1  # seconds of a call whose arrays exceed the caches and the heap's free lists: no warm-up call
WRONG = 0.05  # of the length of x; a wrong rotation is off by about 1, float32 angles and 16 bits far less


def run(case, threads, budget, rows, tell):
    """Return the rows of a case by name: numbers, or the reason why there are none."""
    arrays = Arrays(case.shape, case.dtype, case.pairing, case.start, threads)
    found, calls = {}, {}
    makers = contenders(arrays, found)
    for name, make in makers.items():
        if case.takes(name, rows):
            tell(name)
            ready(name, make, arrays, calls, found)
    tell("timing")
    times, loops = take_turns(calls, budget, pause=threads > 1)
    found |= {name: summary(times, name, loops[name]) for name in times}
    forget()
    return {name: found[name] for name in dict.fromkeys([*makers, *found]) if name in found}


def contenders(arrays, found):
    """Return a function for each row that prepares it; an import error is a failed row of the module."""
    makers = dict(copies(arrays))
    for module in PEERS:
        try:
            makers |= importlib.import_module(f"peers.{module}").timed(arrays)
        except Exception as error:  # a peer that is not installed costs its own rows only
            found[module] = {"failed": one_line(error)}
    return makers


def copies(arrays):
    """Copy the same bytes as unsigned integers: NumPy copies some 16-bit floats element by element."""
    x = arrays.numpy()
    raw = x.view(f"u{x.dtype.itemsize}")
    out = arrays.out().view(raw.dtype)
    return {
        INTO: lambda: Timed(lambda: np.copyto(out, raw)),
        ALLOCATING: lambda: Timed(raw.copy),
        CLONE: lambda: Timed(arrays.torch().clone),
    }


def ready(name, make, arrays, calls, found):
    """Prepare a row and judge its result; a wrong row is not timed."""
    try:
        arrays.out().fill(0)  # clear the previous row's result
        timed = make()
        result = timed.call()
        error = 0.0 if name.startswith("copy") else distance(result, timed, arrays)
    except NotServedError as error:
        found[name] = {"not served": str(error)}
        return
    except Exception as error:  # any exception costs this row only
        found[name] = {"failed": one_line(error)}
        return
    if error <= WRONG:
        calls[name] = timed.call
    else:
        found[name] = {"wrong": f"off by {error:.2g} of the length of x"}


def distance(result, timed, arrays):
    """Return the distance of a result to ours relative to x's length, at up to 64 tokens with the last."""
    import rope_array as ra

    tokens = arrays.shape[2]
    some = np.unique(np.linspace(0, tokens - 1, min(tokens, 64)).astype(int))
    rope = ra.RoPE(head_dim=arrays.shape[-1], pairing=arrays.pairing)
    x = arrays.numpy()[:, :, some].astype(np.float32)
    pos = arrays.pos[..., some]
    expected = ra.apply(x, pos, rope, backend="array-api")
    got = as_numpy(result if timed.result is None else timed.result, timed.layout, some)
    return float(np.linalg.norm(got - expected) / np.linalg.norm(x))


def as_numpy(y, layout, tokens):
    """Return some tokens of a result of any library, as float32 (B, H, S, D)."""
    y = y[None] if y.ndim == 3 else y
    y = y.swapaxes(1, 2) if layout == "bshd" else y
    y = y[:, :, tokens]
    return y.float().numpy() if hasattr(y, "numpy") else np.asarray(y).astype(np.float32)


def take_turns(calls, budget, pause):
    """Return the seconds of each call in each round, and the repetitions in one timing."""
    timers = {name: Timer(call) for name, call in calls.items()}
    paces = {name: pace(timer) for name, timer in timers.items()}
    names, times = list(timers), {name: [] for name in timers}
    order = random.Random(0)
    for _ in range(rounds(paces, budget)):
        order.shuffle(names)
        for name in names:
            if pause:
                time.sleep(0.005)  # until the previous row's threads stop spinning
            times[name].append(time_one(timers[name], paces[name]))
    return times, {name: each.loops for name, each in paces.items()}


class Pace(NamedTuple):
    """The repetitions of a call in one timing, and their approximate seconds."""

    loops: int
    seconds: float


def time_one(timer, pace):
    """Return the seconds of one call."""
    if pace.seconds < LONG:
        timer.timeit(1)  # warm up: caches and the heap as after a call of the same row
    return timer.timeit(pace.loops) / pace.loops


def pace(timer):
    """Find the repetitions that take SHORTEST, as `timeit`'s autorange does for 0.2 s."""
    count = 1
    while (took := timer.timeit(count)) < SHORTEST:
        count = max(2 * count, math.ceil(0.5 * SHORTEST * count / took))
    return Pace(count, took)


def rounds(paces, budget):
    """Return how many rounds fit the budget, within limits."""
    one = sum(each.seconds * (1 + (each.seconds < LONG) / each.loops) for each in paces.values())
    few, many = (3, 5) if budget < 1 else (5, 61)
    return min(many, max(few, int(budget / one))) if paces else 0


def summary(times, name, loops):
    own = times[name]
    numbers = {"seconds": spread(own), "min": float(f"{min(own):.4g}"), "rounds": len(own), "loops": loops}
    for key, copy in (("copies", INTO), ("allocating copies", ALLOCATING)):
        if copy in times:
            numbers[key] = spread([a / b for a, b in zip(own, times[copy], strict=True)])
    return numbers


def spread(values):
    """Return the lower quartile, the median and the upper quartile, to four digits."""
    quartiles = statistics.quantiles(values, method="inclusive")
    return [float(f"{value:.4g}") for value in quartiles]


def forget():
    """Free a case's compiled code and arrays."""
    import sys

    if dynamo := sys.modules.get("torch._dynamo"):
        dynamo.reset()
    if jax := sys.modules.get("jax"):
        jax.clear_caches()
    gc.collect()


def one_line(error):
    return " ".join(f"{type(error).__name__}: {error}".split())[:200]
