"""Time cases on the CPU, in a process for one thread and one for all; a crash costs its case only."""

import multiprocessing
import os
import time
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import partial

import numpy as np
from _harness import LONG, OFFLINE, ONE, as_float32, block, pace, settle
from _speed_cases import ALLOCATING, CLONE, INTO
from _speed_rounds import Pace, Timing, run, some
from peers._timed import Arrays, Timed

import rope_array as ra

ENVIRONMENT = {**OFFLINE, "CUDA_VISIBLE_DEVICES": "", "KERAS_BACKEND": "jax", "PYTHONWARNINGS": "ignore"}
SHORTEST = 1e-3  # seconds of one timing; shorter calls are repeated


def results(chosen, options):
    """Yield the name and the numbers of each case; start another process after a crash."""
    inherited = {key: value for key, value in os.environ.items() if key not in ONE}
    for threads in (1, None):
        os.environ.clear()
        os.environ.update(inherited | ENVIRONMENT | (ONE if threads else {}))
        pool = None
        for case in (case for case in chosen if case.threads == threads):
            pool = pool or ProcessPoolExecutor(1, multiprocessing.get_context("spawn"))
            try:
                yield case.name, pool.submit(run_case, case, options.rows, options.quick).result()
            except BrokenProcessPool as error:
                pool = None
                yield case.name, case.facts() | {"failed": str(error), "rows": {}}
        if pool:
            pool.shutdown()


def run_case(case, patterns, quick):
    """Return the numbers of a case; its first call limits the threads of the process."""
    threads = settle(case.threads)
    import torch

    torch.set_num_threads(threads)
    torch.set_grad_enabled(False)
    return run(case, partial(CpuTrial, threads=threads), patterns, quick)


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
        return {"threads": self.threads}


def as_numpy(y, layout, tokens):
    """Return some tokens of a result of any library, as float32 (B, H, S, D)."""
    y = y[None] if y.ndim == 3 else y
    y = y.swapaxes(1, 2) if layout == "bshd" else y
    return as_float32(y[:, :, tokens])
