"""The latency of small calls: one decoding step, 32 heads of 128 float32 features, one thread.

PyTorch's calls have ratios to `x.clone()` too, measured in the same run. Each round times every call
in a block of its own; the minimum over all rounds counts, as other load can only add time. Python's calls
inside the array-api backend are counted, with the files they are in, as they cost most of its latency.
"""

import os
import sys
import time
from itertools import pairwise, repeat

os.environ["ROPE_ARRAY_NUM_THREADS"] = "1"

import numpy as np
from _record import main

import rope_array as ra

ROUNDS, CALLS = 200, 200
ROPE = ra.RoPE(head_dim=128, base=500_000.0, pairing="half")


def seconds(call):
    start = time.perf_counter()
    for _ in repeat(None, CALLS):
        call()
    return (time.perf_counter() - start) / CALLS


def best(subjects):
    """Return the microseconds of each call in its best round."""
    rounds = [[seconds(call) for call in subjects.values()] for _ in range(ROUNDS)]
    return {name: 1e6 * min(times) for name, times in zip(subjects, zip(*rounds, strict=True), strict=True)}


def numpy_calls():
    x = np.random.default_rng(0).normal(size=(1, 32, 1, 128)).astype(np.float32)
    q, k, pos, out = x, x[:, :8].copy(), np.array([123_456]), np.empty_like(x)
    rotation = ROPE.rotation(pos, like=x)
    return {
        "x.copy()": x.copy,
        "one array": lambda: ROPE.apply(x, pos),
        "q and k": lambda: ROPE.apply((q, k), pos),
        "Rotation, one array": lambda: rotation.apply(x),
        "Rotation, q and k": lambda: rotation.apply((q, k)),
        "out=": lambda: ROPE.apply(x, pos, out=out),
        "array-api backend": lambda: ROPE.apply(x, pos, backend="array-api"),
    }


def torch_calls():
    import torch

    torch.set_num_threads(1)
    x = torch.randn(1, 32, 1, 128)
    q, k, pos, out = x, torch.randn(1, 8, 1, 128), torch.tensor([123_456]), torch.empty_like(x)
    pos32, rotation = pos.int(), ROPE.rotation(pos, like=x)
    recorded = x.clone().requires_grad_()
    return {
        "x.clone()": x.clone,
        "one array": lambda: ROPE.apply(x, pos),
        "one array, int32 positions": lambda: ROPE.apply(x, pos32),
        "q and k": lambda: ROPE.apply((q, k), pos),
        "Rotation, one array": lambda: rotation.apply(x),
        "Rotation, q and k": lambda: rotation.apply((q, k)),
        "gradient recorded": lambda: ROPE.apply(recorded, pos),
        "out=": lambda: ROPE.apply(x, pos, out=out),
    }


def python_calls():
    """Count the Python calls of the array-api backend for a range, their files, and changes of file."""
    x, files = np.ones((1, 32, 4, 128), np.float32), []

    def count(frame, event, _):
        if event == "call" and "rope_array" in frame.f_code.co_filename:
            files.append(frame.f_code.co_filename)

    for _ in range(2):  # the first call imports and caches
        files.clear()
        sys.setprofile(count)
        try:
            ROPE.apply(x, range(4), backend="array-api")
        finally:
            sys.setprofile(None)
    changes = sum(a != b for a, b in pairwise(files))
    return {"Python calls": len(files), "files": len(set(files)), "changes of file": changes}


def measure():
    numbers = {f"array-api backend, a range: {name}": count for name, count in python_calls().items()}
    numbers |= {f"NumPy: {name}, µs": round(value, 2) for name, value in best(numpy_calls()).items()}
    took = best(torch_calls())
    clone = took["x.clone()"]
    for name, value in took.items():
        numbers[f"PyTorch: {name}, µs"] = round(value, 2)
        numbers[f"PyTorch: {name} / x.clone()"] = round(value / clone, 2)
    return numbers


if __name__ == "__main__":
    packages = ("numpy", "torch", "array-api-compat", "rope-array")
    sys.exit(main("latency", measure, "one decoding step, (1, 32, 1, 128) float32, k of 8 heads", packages))
