"""Time all rows of a case of `bench/gpu.py` in rounds, on a device.

Each round has a random order. A ratio is the median of the ratios within rounds, so that a change of the
GPU's clock changes both parts of its ratio.
"""

import gc
import math
import random
import sys
from functools import partial

import torch
from _gpu_cases import BACKWARD, COPY, FORWARD, OURS
from _gpu_device import QUEUE
from _gpu_inputs import Inputs
from _speed_turns import one_line, spread
from peers._timed import NotServedError, Rotate

import rope_array as ra

SHORTEST = 2e-3  # seconds on the device of one timing; shorter calls are repeated
LOOPS = 200  # calls of one timing, at most
LAUNCHES = 16  # of a call, if they could not be counted
WRONG = 0.05  # of the length of x; a wrong rotation is off by about 1
# Our rows have exact angles and round once, so they differ from the array-api backend by roundings alone.
OURS_WRONG = {"float32": 2e-6, "bfloat16": 2.0**-8}


class Contender:
    """The calls of one row, one for each set of inputs; calling it runs the next one.

    The last result of each set stays in memory, so that a call writes where no recent call has written. One
    set alone is larger than the L2: its result is dropped.
    """

    def __init__(self, name, calls, layout, graph=True):
        self.name, self.calls, self.layout, self.can_capture = name, calls, layout, graph
        self._next, self._kept = 0, [None] * len(calls)

    def __call__(self):
        number = self._next
        self._next = (number + 1) % len(self.calls)
        result = self.calls[number]()
        if len(self.calls) > 1:
            self._kept[number] = result
        return result

    def forget(self):
        self._kept = [None] * len(self.calls)


# ---- one case ----


def run(case, device, modules, budget, rounds=(7, 41), tell=lambda step: None):
    """Return the numbers of a case: its size, and its rows by name."""
    facts = {"group": case.group, "batch": case.batch, "tokens": case.tokens, "heads": list(case.heads)}
    facts |= {"head_dim": case.head_dim, "dtype": case.dtype, "pairing": case.pairing}
    facts |= {"layout": case.layout, "direction": case.direction, "bytes": case.bytes}
    if (needed := memory_of(case, device)) > 0.9 * device.memory_bytes:
        return facts | {"failed": f"needs about {needed / 1e9:.0f} GB of memory", "rows": {}}
    try:
        return facts | timed(Inputs(case, device), modules, budget, rounds, tell)
    except torch.OutOfMemoryError as error:
        return facts | {"failed": one_line(error), "rows": {}}
    finally:
        forget(device)


def forget(device):
    """Free a case's compiled code and tensors."""
    if dynamo := sys.modules.get("torch._dynamo"):
        dynamo.reset()
    gc.collect()
    device.forget()


def memory_of(case, device):
    """Return about how many bytes a case needs: inputs, and copies and results of the rows."""
    return (4 + 6 * (1 + (case.direction != FORWARD))) * max(case.bytes, 3 * device.l2_bytes)


def timed(inputs, modules, budget, rounds, tell):
    rows, contenders = {}, {}
    for name, make in makers(inputs, modules, rows).items():
        tell(name)
        prepare(name, make, inputs, contenders, rows)
    tell("timing")
    launched = {name: inputs.device.launches(contender) for name, contender in contenders.items()}
    times, loops = take_turns(contenders, launched, inputs.device, budget, rounds)
    for name in times:
        rows[name] |= summary(name, times, loops[name], launched[name], inputs.case)
    if inputs.case.group == "decode":
        add_graphs(contenders, rows, inputs.device, rounds[0])
    against(times, rows)
    return {"sets": inputs.count, "beyond_l2": inputs.beyond_l2, "backend": backend(inputs), "rows": rows}


def backend(inputs):
    """Return the name of the backend that serves our row."""
    xs = inputs.xs[0]
    if inputs.case.direction != FORWARD:
        xs = tuple(x.detach().requires_grad_() for x in xs)
    return ra.explain(xs, inputs.pos, inputs.rope, seq_axis=inputs.seq_axis).backend


def makers(inputs, modules, rows):
    """Return a function for each row that returns its `Rotate`; a module that fails is a failed row."""
    found = {COPY: lambda: Rotate(copy, inputs.case.layout)}
    for name, module in modules.items():
        try:
            found |= module.on_gpu(inputs)
        except Exception as error:  # a peer costs its own rows only
            rows[name] = {"failed": one_line(error)}
    return found


def copy(xs):
    return tuple(torch.empty_like(x).copy_(x) for x in xs)


# ---- contenders ----


def prepare(name, make, inputs, contenders, rows):
    """Make the calls of a row and judge their results; a wrong row is not timed."""
    try:
        rotate = make()
        calls = calls_of(copied(rotate) if name == COPY else rotate, inputs)
        contender = Contender(name, calls, rotate.layout, rotate.graph)
        error = 0.0 if name == COPY else judge(contender, inputs)
    except NotServedError as error:
        rows[name] = {"not served": str(error)}
        return
    except Exception as error:  # any exception costs this row only
        rows[name] = {"failed": one_line(error)}
        return
    limit = OURS_WRONG[inputs.case.dtype] if name.startswith(OURS) else WRONG
    if not error <= limit:
        rows[name] = {"wrong": f"off by {error:.2g} of the length of x"}
        return
    rows[name] = {"error": float(f"{error:.3g}")}
    contenders[name] = contender


def copied(rotate):
    """Return the copy without a gradient: it copies the gradient where others rotate it."""
    return rotate._replace(gradient=False)


def calls_of(rotate, inputs):
    """Return a call without arguments for each set, in the case's direction."""
    direction = inputs.case.direction
    if rotate.function is copy:
        calls = [partial(copy, xs) for xs in (inputs.xs if direction == FORWARD else inputs.gs)]
        return calls if direction in (FORWARD, BACKWARD) else [partial(twice, call) for call in calls]
    if direction == FORWARD:
        return [partial(rotate.function, own(xs, rotate, inputs)) for xs in inputs.xs]
    if not rotate.gradient:
        raise NotServedError("has no backward")
    make = backward if direction == BACKWARD else both
    return [
        make(rotate.function, own(xs, rotate, inputs), own(gs, rotate, inputs))
        for xs, gs in zip(inputs.xs, inputs.gs, strict=True)
    ]


def twice(call):
    call()
    return call()


def own(xs, rotate, inputs):
    """Return tensors in the layout of a row; copies of them if it writes into its arguments."""
    return tuple(inputs.view(x.clone() if rotate.in_place else x, rotate.layout) for x in xs)


def backward(function, xs, gs):
    """Return a call of the backward alone: its forward is done here."""
    leaves = tuple(x.detach().requires_grad_() for x in xs)
    ys = function(leaves)
    return partial(torch.autograd.grad, ys, leaves, gs, retain_graph=True)


def both(function, xs, gs):
    leaves = tuple(x.detach().requires_grad_() for x in xs)
    return lambda: torch.autograd.grad(function(leaves), leaves, gs)


def judge(contender, inputs):
    """Return the largest distance of the first and the last set's results to the right ones.

    A distance is relative to the length of x. Each of these sets is called once, before the timing: a row
    that rotates in place has rotated its copies once.
    """
    found = []
    for number in {0, inputs.count - 1}:
        xs, expected = inputs.expected(number)
        results = contender.calls[number]()
        for x, y, right in zip(xs, results, expected, strict=True):
            difference = inputs.some(inputs.back(y, contender.layout)).double() - right.double()
            found.append((difference.norm() / x.double().norm()).item())
    return max(found, key=lambda error: math.inf if math.isnan(error) else error)


# ---- rounds ----


def take_turns(contenders, launched, device, budget, limits):
    """Return the `Timing`s of each contender in each round, and the calls of one timing."""
    paces = {name: pace(each, launched[name], device) for name, each in contenders.items()}
    loops = {name: count for name, (count, _) in paces.items()}
    host = {name: timing.host for name, (_, timing) in paces.items()}
    one = sum(count * (timing.device + 2 * timing.host) for count, timing in paces.values())
    few, many = limits
    order, names, times = random.Random(0), list(contenders), {name: [] for name in contenders}
    gc.disable()
    try:
        for _ in range(min(many, max(few, int(budget / max(one, 1e-9))))):
            order.shuffle(names)
            for name in names:
                times[name].append(device.time(contenders[name], loops[name], host[name]))
    finally:
        gc.enable()
    return times, loops


def pace(contender, launched, device):
    """Return how many calls one timing has, and a first timing. The calls before it warm up."""
    for _ in range(3):
        contender()
    device.synchronize()
    first = device.time(contender, 5, 1e-3)
    fit = QUEUE // (len(launched) if launched else LAUNCHES)
    wanted = math.ceil(SHORTEST / max(first.device, 1e-9))
    return max(1, min(LOOPS, fit, wanted)), first


def add_graphs(contenders, rows, device, rounds):
    """Add the time of a call in a replayed CUDA graph to each row."""
    replays = {}
    for name, contender in contenders.items():
        if contender.can_capture:
            try:
                replays[name] = device.graph(contender, min(LOOPS, len(contender.calls)))
            except Exception as error:  # a call that a graph cannot capture has no such time
                rows[name]["graph failed"] = one_line(error)
    times = {name: [] for name in replays}
    for _ in range(rounds):
        for name, replay in replays.items():
            times[name].append(replay())
    for name, own_times in times.items():
        rows[name]["graph"] = spread(own_times)
        contenders[name].forget()


# ---- numbers ----


def summary(name, times, loops, launched, case):
    own_times = times[name]
    seconds = spread([each.device for each in own_times])
    moved = case.moved * (1 + (case.direction not in (FORWARD, BACKWARD)))
    found = {
        "seconds": seconds,
        "TB/s": float(f"{moved / seconds[1] / 1e12:.4g}"),
        "host": spread([each.host for each in own_times]),
        "ahead": all(each.ahead for each in own_times),
        "rounds": len(own_times),
        "loops": loops,
        "launches": len(launched) if launched else None,
        "kernels": [kernel[:80] for kernel in launched or ()][:4],
    }
    return found | ({"copies": ratios(own_times, times[COPY])} if COPY in times else {})


def against(times, rows):
    """Add to our row its time divided by the time of every other row, in the same rounds."""
    if OURS in times:
        others = (name for name in times if name not in (OURS, COPY))
        rows[OURS]["against"] = {name: ratios(times[OURS], times[name]) for name in others}


def ratios(times, over):
    return spread([a.device / b.device for a, b in zip(times, over, strict=True)])
