"""Check every float32 remainder: cos and sin of all 2^30 angles within an eighth of a turn, on each library.

    python tests/long/exhaustive.py [--libraries numpy,torch] [--stride N] [--json PATH]

A plan of one pair whose frequency is one unit of the phase, 2^-32 of a turn, makes a position its own phase,
bit for bit. So the positions -2^29 to 2^29 - 1 are all remainders that the polynomials can get. The library's
own backend computes them, compiled if it compiles calls. The other quadrants only swap cos and sin and change
signs; a sample of them is checked too. Exit status 1: an error exceeds the contract.
"""

import argparse
import math
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
# One unit of the phase in each word; the float64 frequency is not used by exact angles.
WORDS = Words([2 * math.pi / 2**32], [2**32], [2**64])
PLAN = Plan(Layout(2, 0, 2, "interleaved", "interleaved", 1.0), WORDS)


def measure(lib, stride):
    """Return the largest errors of cos and sin on a library, with their positions."""
    worst, began = {"cos": (0.0, 0), "sin": (0.0, 0)}, time.perf_counter()
    with lib.running():
        for pos in positions(stride):
            for name, approximate, exact in zip(worst, tables(lib, pos), truth(pos), strict=True):
                error = np.abs(approximate - exact)
                i = int(np.argmax(error))
                worst[name] = max(worst[name], (float(error[i]), int(pos[i])))
    return {
        "remainders": 2**30 // stride,
        **{f"max_error_{name}": float(f"{error:.4g}") for name, (error, _) in worst.items()},
        **{f"at_{name}": pos for name, (_, pos) in worst.items()},
        "seconds": round(time.perf_counter() - began),
    }


def positions(stride):
    """Yield all remainders in chunks, and a sample of the phases of all quadrants."""
    for end, step in ((2**29, stride), (2**31, 1021 * stride)):
        for first in range(-end, end, CHUNK * step):
            yield np.arange(first, min(first + CHUNK * step, end), step, dtype=np.int64)


def tables(lib, pos):
    """Return the float32 cos and sin of the library's backend."""
    like = lib.asarray(np.zeros((1, 2), np.float32))
    rotation = _dispatch.make_tables(Positions(lib.asarray(pos.astype(np.int32)), PLAN), like)
    return [lib.to_numpy(table)[:, 0].astype(np.float64) for table in (rotation.cos, rotation.sin)]


def truth(pos):
    """Return cos and sin in float64, whose error of 2e-16 is negligible against the 6e-8 of float32."""
    angle = pos * (math.pi / 4 * 2.0**-29)
    return np.cos(angle), np.sin(angle)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--libraries", default=",".join(NAMES), help=f"of {','.join(NAMES)}")
    parser.add_argument("--stride", type=int, default=1, help="take every Nth remainder, for a quick try")
    parser.add_argument("--json", metavar="PATH", type=Path, help="write the result, with machine and commit")
    options = parser.parse_args()
    libraries = [LIBRARIES[name] for name in options.libraries.split(",")]
    numbers = {f"{lib.name} {lib.version}": measure(lib, options.stride) for lib in libraries}
    limit = AT_INTEGERS["float32"]
    run = record("exhaustive", numbers, f"errors of float32 cos and sin; {limit:g} is allowed", PACKAGES)
    print(*numbers.items(), sep="\n")
    print_targets(run)
    if options.json:
        write_json(run, options.json)
    sys.exit(any(max(row["max_error_cos"], row["max_error_sin"]) > limit for row in numbers.values()))


if __name__ == "__main__":
    main()
