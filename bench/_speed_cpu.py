"""Time cases on the CPU, in child processes: one for one thread, one for all; a crash costs its case only."""

import json
import os
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np
from _harness import LONG, ONE, block, pace, settle
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
SHORTEST = 1e-3  # seconds of one timing; shorter calls are repeated


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
    threads = settle(threads)
    import torch

    torch.set_num_threads(threads)
    torch.set_grad_enabled(False)
    trial = partial(CpuTrial, threads=threads)
    for case in (case for case in cpu_cases(quick) if case.name in names):
        print(json.dumps([case.name, None]), file=lines)
        print(json.dumps([case.name, run(case, trial, patterns, quick)]), file=lines)


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
        loops, call = pace(contender.call, SHORTEST)
        return Pace(loops, (loops + (call < LONG)) * call, call)

    def time(self, contender, pace):
        if self.threads > 1:
            time.sleep(0.005)  # until the previous row's threads stop spinning
        return Timing(block(contender.call, pace.loops, warm=pace.call < LONG))

    def finish(self, rows, contenders, times):
        return {"threads": self.threads, "memory_peak_mb": peak()}


def as_numpy(y, layout, tokens):
    """Return some tokens of a result of any library, as float32 (B, H, S, D)."""
    y = y[None] if y.ndim == 3 else y
    y = y.swapaxes(1, 2) if layout == "bshd" else y
    y = y[:, :, tokens]
    return y.float().numpy() if hasattr(y, "numpy") else np.asarray(y).astype(np.float32)
