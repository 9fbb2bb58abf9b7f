"""Planning the rotation of 100 GB with dask: the graph is built and optimised, and nothing is computed."""

import sys
import time

import dask
import dask.array as da
import numpy as np
from _record import main

import rope_array as ra

ROUNDS = 20
LAYERS, HEADS, LENGTH, WIDTH = 48, 32, 131_072, 128
ROPE = ra.RoPE(head_dim=WIDTH, base=500_000.0, pairing="half")


def seconds(x, pos):
    """Return the seconds of the first round and of the best, and the tasks of the optimised graph."""
    took = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        (planned,) = dask.optimize(ROPE.apply(x, pos))
        tasks = len(dict(planned.__dask_graph__()))
        took.append(time.perf_counter() - start)
    return took[0], min(took), tasks


def measure():
    numbers = {}
    for tokens in (8_192, 512):
        x = da.ones((LAYERS, HEADS, LENGTH, WIDTH), chunks=(1, HEADS, tokens, WIDTH), dtype="float32")
        positions = {
            "a range": range(LENGTH),
            "NumPy": np.arange(LENGTH),
            "dask": da.arange(LENGTH, chunks=tokens),
        }
        for name, pos in positions.items():
            first, best, tasks = seconds(x, pos)
            label = f"{x.nbytes / 1e9:.0f} GB in chunks of {x.nbytes / x.npartitions / 2**20:.0f} MiB, {name}"
            numbers |= {
                f"{label}: tasks": tasks,
                f"{label}: s": round(best, 4),
                f"{label}: first, s": round(first, 4),
            }
    return numbers


if __name__ == "__main__":
    packages = ("dask", "numpy", "array-api-compat", "rope-array")
    sys.exit(main("planning", measure, "103 GB rotated lazily, the graph optimised", packages))
