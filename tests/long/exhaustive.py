"""Check every float32 remainder: cos and sin of all 2^30 angles within an eighth of a turn, on each library.

    python tests/long/exhaustive.py [--libraries numpy,torch] [--stride N] [--json PATH]

A plan of one pair whose frequency is one unit of the phase, 2^-32 of a turn, makes a position its own phase,
bit for bit. So the positions -2^29 to 2^29 - 1 are all remainders that the polynomials can get. The library's
own backend computes them, compiled if it compiles calls. The other quadrants only swap cos and sin and change
signs; a sample of them is checked too. Exit status 1: an error exceeds the contract.
"""

import argparse
import importlib.metadata
import math
import multiprocessing
import sys
import time
from pathlib import Path

import numpy as np

from rope_array import _dispatch
from rope_array._array_api.source import Positions
from rope_array._spec.plan import Layout, Plan, Words
from rope_array.testing._contract import AT_INTEGERS
from rope_array.testing._libraries import LIBRARIES

sys.path.append(str(Path(__file__).parents[2] / "bench"))
from _harness import print_targets
from _record import PACKAGES, record, write_json

NAMES = ("numpy", "array_api_strict", "dask", "jax", "torch")
CHUNK = 2**22
ENDS = -(2**29), 2**29
# One unit of the phase in each word; the float64 frequency is not used by exact angles.
WORDS = Words([2 * math.pi / 2**32], [2**32], [2**64])
PLAN = Plan(Layout(2, 0, 2, "interleaved", "interleaved", 1.0), WORDS)


def sweep(job):
    """Return the largest errors of cos and sin over some positions on one library, with their positions."""
    name, start, stop, stride = job
    lib = LIBRARIES[name]
    worst = {"cos": (0.0, 0), "sin": (0.0, 0)}
    began = time.perf_counter()
    with lib.running():
        for first in range(start, stop, CHUNK * stride):
            pos = np.arange(first, min(first + CHUNK * stride, stop), stride, dtype=np.int64)
            for table, approximate, exact in zip(("cos", "sin"), tables(lib, pos), truth(pos), strict=True):
                error = np.abs(approximate - exact)
                i = int(np.argmax(error))
                worst[table] = max(worst[table], (float(error[i]), int(pos[i])))
    return name, worst, time.perf_counter() - began


def tables(lib, pos):
    """Return the float32 cos and sin of the library's backend."""
    like = lib.asarray(np.zeros((1, 2), np.float32))
    rotation = _dispatch.make_tables(Positions(lib.asarray(pos.astype(np.int32)), PLAN), like)
    return [lib.to_numpy(table)[:, 0].astype(np.float64) for table in (rotation.cos, rotation.sin)]


def truth(pos):
    """Return cos and sin in float64, whose error of 2e-16 is negligible against the 6e-8 of float32."""
    angle = pos * (math.pi / 4 * 2.0**-29)
    return np.cos(angle), np.sin(angle)


def jobs(names, stride):
    """Yield parts of every library's sweep, and samples of the other quadrants, 2^20 phases each."""
    eighth = (ENDS[1] - ENDS[0]) // 8
    for name in names:
        yield from ((name, start, start + eighth, stride) for start in range(*ENDS, eighth))
        for quadrant in range(4):
            start = -(2**31) + quadrant * 2**30
            yield name, start, start + 2**30, 1021 * stride


def version_of(name):
    package = {"array_api_strict": "array-api-strict"}.get(name, name)
    return f"{name} {importlib.metadata.version(package)}"


def measure(names, stride):
    rows = {}
    with multiprocessing.get_context("spawn").Pool() as pool:
        for name, worst, seconds in pool.imap_unordered(sweep, list(jobs(names, stride))):
            row = rows.setdefault(version_of(name), {"cos": (0.0, 0), "sin": (0.0, 0), "seconds": 0.0})
            row.update({key: max(row[key], worst[key]) for key in worst}, seconds=row["seconds"] + seconds)
    order = sorted(rows, key=lambda label: names.index(label.split()[0]))
    return {label: shown(rows[label], stride) for label in order}


def shown(row, stride):
    return {
        "remainders": (ENDS[1] - ENDS[0]) // stride,
        **{f"max_error_{key}": float(f"{row[key][0]:.4g}") for key in ("cos", "sin")},
        **{f"at_{key}": row[key][1] for key in ("cos", "sin")},
        "seconds": round(row["seconds"]),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--libraries", default=",".join(NAMES), help=f"of {','.join(NAMES)}")
    parser.add_argument("--stride", type=int, default=1, help="take every Nth remainder, for a quick try")
    parser.add_argument("--json", metavar="PATH", type=Path, help="write the result, with machine and commit")
    options = parser.parse_args()
    numbers = measure(options.libraries.split(","), options.stride)
    limit = AT_INTEGERS["float32"]
    note = f"errors of float32 cos and sin; {limit:g} is allowed"
    print(*numbers.items(), sep="\n")
    print_targets(run := record("exhaustive", numbers, note, PACKAGES))
    if options.json:
        write_json(run, options.json)
    sys.exit(any(max(row["max_error_cos"], row["max_error_sin"]) > limit for row in numbers.values()))


if __name__ == "__main__":
    main()
