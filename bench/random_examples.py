"""Run the tests of random examples with many more examples than on every change.

    python bench/random_examples.py [--libraries numpy,torch] [--times N] [--json PATH]

Runs the files below under pytest with ROPE_ARRAY_EXAMPLES set, library by library, and counts the valid and
passing examples of Hypothesis. Needs the dependency group `test`. Exit status 1: a test failed, or none ran.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as xml
from pathlib import Path

from _record import ROOT, finish

from rope_array.testing._libraries import LIBRARIES

FILES = ("tests/test_invariants.py", "tests/test_phase.py")
# About five minutes each on two cores. JAX compiles every shape.
TIMES = {"numpy": 400, "array_api_strict": 400, "dask": 100, "jax": 10, "torch": 400}


def run_tests(name, times):
    """Run the tests on one library; return the figures and pytest's output."""
    lib = LIBRARIES[name]
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "junit.xml"
        options = (f"--libraries={lib.label}", f"--junitxml={report}", "-q", "--hypothesis-show-statistics")
        # -P: import the installed package, not the checkout's sources, which have no kernel.
        done = subprocess.run(
            [sys.executable, "-P", "-m", "pytest", "-p", "no:cacheprovider", *options, *FILES],
            cwd=ROOT,
            env={**os.environ, "ROPE_ARRAY_EXAMPLES": str(times)},
            capture_output=True,
            text=True,
            check=False,
        )
        counts = totals(report) if report.exists() else {"tests": 0, "failed": 1}
    return {
        "times": times,
        **counts,
        "examples": sum(map(int, re.findall(r"(\d+) passing\b", done.stdout))),
        "seconds": round(time.perf_counter() - began),
    }, done.stdout + done.stderr


def totals(report):
    suites = list(xml.parse(report).iter("testsuite"))
    failed = sum(int(suite.get(key, 0)) for suite in suites for key in ("failures", "errors"))
    return {"tests": sum(int(suite.get("tests", 0)) for suite in suites), "failed": failed}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--libraries", default=",".join(TIMES), help=f"of {','.join(TIMES)}")
    parser.add_argument(
        "--times", type=int, help="factor on the number of examples; by default about five minutes"
    )
    parser.add_argument("--json", metavar="PATH", type=Path, help="write the result, with machine and commit")
    options = parser.parse_args()
    numbers = {}
    for name in options.libraries.split(","):
        row, printed = run_tests(name, options.times or TIMES[name])
        numbers[f"{name} {LIBRARIES[name].version}"] = row
        if row["failed"]:
            print(printed)
    finish("random-examples", numbers, "random examples of the invariants and of the phase", options.json)
    sys.exit(any(row["failed"] or not row["examples"] for row in numbers.values()))


if __name__ == "__main__":
    main()
