"""Large calls with new results, and with `out=`, as ratios to the library's own copies; one thread.

Each function runs in blocks of its own calls: functions that alternate would get each other's freed memory.
The minimum of each block counts, and the median over blocks.
"""

import os
import statistics
import sys
import time

os.environ["ROPE_ARRAY_NUM_THREADS"] = "1"

import ml_dtypes
import numpy as np
from _record import main

import rope_array as ra

BLOCKS, CALLS = 7, 12
ROPE = ra.RoPE(head_dim=128, pairing="half")
CASES = {
    "float32, 16 MiB": ("float32", 32, 1024),
    "float32, 32 MiB": ("float32", 32, 2048),
    "float32, 64 MiB": ("float32", 32, 4096),
    "bfloat16, 16 MiB": ("bfloat16", 32, 2048),
    "bfloat16, 16 MiB, one head": ("bfloat16", 1, 65536),
}


def block(call):
    """Return the seconds of the fastest call of a block, after two calls that warm up the allocator."""
    times = []
    for i in range(CALLS + 2):
        start = time.perf_counter()
        call()
        if i > 1:
            times.append(time.perf_counter() - start)
    return min(times)


def ratios(copy, rotate, copy_into, rotate_into):
    calls = (copy, rotate, copy_into, rotate_into)
    blocks = [[block(call) for call in calls] for _ in range(BLOCKS)]
    copied, rotated, copied_into, rotated_into = (statistics.median(b) for b in zip(*blocks, strict=True))
    return round(rotated / copied, 2), round(rotated_into / copied_into, 2)


def numpy_ratios(dtype, heads, length):
    x = np.ones((1, heads, length, 128), ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    out = np.empty_like(x)
    return ratios(
        x.copy, lambda: ROPE.apply(x, range(length)),
        lambda: np.copyto(out, x), lambda: ROPE.apply(x, range(length), out=out),
    )  # fmt: skip


def torch_ratios(dtype, heads, length):
    import torch

    torch.set_num_threads(1)
    x, pos = torch.ones(1, heads, length, 128, dtype=getattr(torch, dtype)), torch.arange(length)
    out = torch.empty_like(x)
    return ratios(
        x.clone, lambda: ROPE.apply(x, pos), lambda: out.copy_(x), lambda: ROPE.apply(x, pos, out=out)
    )


def measure():
    numbers = {}
    for library, function in {"NumPy": numpy_ratios, "PyTorch": torch_ratios}.items():
        for name, case in CASES.items():
            new, into = function(*case)
            numbers[f"{library}, {name}: new / allocating copy"] = new
            numbers[f"{library}, {name}: out= / copy into"] = into
    return numbers


if __name__ == "__main__":
    packages = ("numpy", "torch", "ml_dtypes", "array-api-compat", "rope-array")
    sys.exit(main("new-results", measure, "large calls, one thread, ratios to copies", packages))
