"""Time cases on the CPU, in child processes: one for one thread, one for all; a crash costs its case only."""

import json
import math
import os
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from timeit import Timer

import numpy as np
from _speed_cases import ALLOCATING, CLONE, INTO, cpu_cases
from _speed_rounds import Pace, Timing, run, some
from peers._timed import Arrays, Timed

ENVIRONMENT = {
    "CUDA_VISIBLE_DEVICES": "",
    "JAX_PLATFORMS": "cpu",
    "KERAS_BACKEND": "jax",
    "HF_HUB_OFFLINE": "1",
    "PYTHONWARNINGS": "ignore",
}
# Libraries read these when they are loaded; `settle` sets the affinity for all of them.
ONE = dict.fromkeys(("ROPE_ARRAY_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "PJRT_NPROC"), "1")
SHORTEST = 1e-3  # seconds of one timing; shorter calls are repeated
LONG = 0.1  # seconds of a call whose arrays exceed the caches and the heap's free lists: no warm-up call


# ---- the parent ----


def results(chosen, options):
    """Yield the name and the numbers of each case; start children until every case has numbers."""
    for threads in (1, None):
        todo = {case.name: case for case in chosen if case.threads == threads}
        while todo:
            for name, numbers in one_child([*todo], threads, options):
                yield name, todo.pop(name).facts() | numbers


def one_child(names, threads, options):
    """Run cases in a child process; if it crashes, its current case has failed."""
    job = json.dumps([names, threads, options.rows, options.quick])
    command = [sys.executable, Path(__file__).with_name("speed.py"), "--child", job]
    inherited = {key: value for key, value in os.environ.items() if key not in ONE}
    environment = inherited | ENVIRONMENT | (ONE if threads == 1 else {})
    child = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
    current = names[0]
    for line in child.stdout:
        current, numbers = json.loads(line)
        if numbers:
            yield current, numbers
            current = None
    if child.wait() and current:
        yield current, {"failed": f"the process ended with {child.returncode}", "rows": {}}


# ---- the child ----


def child(names, threads, patterns, quick):
    """Time cases; write a line of JSON when a case begins, and when it ends."""
    lines = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # keep prints of libraries out of the JSON lines
    trial = partial(CpuTrial, threads=settle(threads))
    for case in (case for case in cpu_cases(quick) if case.name in names):
        print(json.dumps([case.name, None]), file=lines)
        print(json.dumps([case.name, run(case, trial, patterns, quick)]), file=lines)


def settle(threads):
    """Limit this process to `threads`, or to all processors; return the number of threads."""
    if threads and hasattr(os, "sched_setaffinity"):
        # One processor for one thread: XLA's pool has as many threads as there are processors.
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[-threads:])
    count = threads or (len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count())
    import torch

    torch.set_num_threads(count)
    torch.set_grad_enabled(False)
    return count


def peak():
    """Return the peak memory of this process in MiB."""
    try:
        import resource
    except ImportError:  # Windows
        return None
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


class CpuTrial(Arrays):
    """The arrays of a case, and the clock: `timeit`, with the garbage collector off."""

    entry = "timed"  # of a module of bench/peers: the function that returns its rows
    peers = (
        *("own", "huggingface", "meta", "rotary_embedding_torch"),
        *("equinox", "keras_hub", "onnx_runtime", "naive"),
    )
    copies = (("copies", INTO), ("allocating copies", ALLOCATING))
    seconds, rounds = (8.0, 0.3), ((5, 61), (3, 5))  # of timing for a case: whole, quick

    def __init__(self, case, threads):
        import rope_array as ra

        super().__init__(case.shape, case.dtype, case.pairing, case.start, threads)
        self.case, self.rope, self.inverse = case, ra.RoPE(case.shape[-1], pairing=case.pairing), False

    def copy_rows(self):
        """Copy the same bytes as unsigned integers: NumPy copies some 16-bit floats element by element."""
        x = self.numpy()
        raw = x.view(f"u{x.dtype.itemsize}")
        out = self.out().view(raw.dtype)
        return {
            INTO: lambda: Timed(lambda: np.copyto(out, raw)),
            ALLOCATING: lambda: Timed(raw.copy),
            CLONE: lambda: Timed(self.torch().clone),
        }

    def contender(self, name, make):
        self.out().fill(0)  # clear the previous row's result
        return make()

    def results(self, contender):
        """Return x, the result and positions of some tokens, as float32 (B, H, S, D)."""
        returned, tokens = contender.call(), some(self.shape[2])
        y = as_numpy(returned if contender.result is None else contender.result, contender.layout, tokens)
        return [(self.numpy()[:, :, tokens].astype(np.float32), y, self.pos[..., tokens])]

    def pace(self, contender):
        """Find the repetitions that take SHORTEST, as `timeit`'s autorange does for 0.2 s."""
        loops, timer = 1, Timer(contender.call)
        while (took := timer.timeit(loops)) < SHORTEST:
            loops = max(2 * loops, math.ceil(0.5 * SHORTEST * loops / took))
        call = took / loops
        return Pace(loops, took + call * (call < LONG), call)

    def time(self, contender, pace):
        timer = Timer(contender.call)
        if self.threads > 1:
            time.sleep(0.005)  # until the previous row's threads stop spinning
        if pace.call < LONG:
            timer.timeit(1)  # warm up: caches and the heap as after a call of the same row
        return Timing(timer.timeit(pace.loops) / pace.loops)

    def finish(self, rows, contenders, times):
        return {"threads": self.threads, "memory_peak_mb": peak()}


def as_numpy(y, layout, tokens):
    """Return some tokens of a result of any library, as float32 (B, H, S, D)."""
    y = y[None] if y.ndim == 3 else y
    y = y.swapaxes(1, 2) if layout == "bshd" else y
    y = y[:, :, tokens]
    return y.float().numpy() if hasattr(y, "numpy") else np.asarray(y).astype(np.float32)
