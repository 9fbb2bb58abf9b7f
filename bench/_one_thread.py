"""Limit JAX to one thread. Import this before jax.

By default the process runs on one processor, and XLA's pool has one thread. With `--xla-flags` on the command
line the process may use all processors: XLA computes in one thread, but not in the thread that calls it.
"""

import os
import sys

BY_FLAGS = "--xla-flags" in sys.argv
HOW = "XLA's flags" if BY_FLAGS else "one processor"

os.environ |= {"ROPE_ARRAY_NUM_THREADS": "1", "JAX_PLATFORMS": "cpu", "PJRT_NPROC": "1"}
if BY_FLAGS:
    os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
elif hasattr(os, "sched_setaffinity"):
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[-1:])


def add_option(parser):
    parser.add_argument(
        "--xla-flags", action="store_true", help="one thread by XLA's flags, on any processor"
    )
