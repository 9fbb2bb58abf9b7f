"""The conformance suite over the kernel at every level of instructions the processor has, and without it."""

import os
import re
import subprocess
import sys

import pytest
from conftest import sample

from rope_array._backends import _native

LEVELS = [*(_native.kernel.level_names() if _native.kernel else ()), "none"]


def levels():
    """Return the levels as parameters; all but the lowest of the kernel's are left to `nightly`.

    tests/test_conformance.py judges the highest, tests/test_native_bits.py compares the bits of all, and
    without the kernel the backends below serve.
    """
    return [pytest.param(name, marks=() if name in LEVELS[-2:-1] else pytest.mark.nightly) for name in LEVELS]


# Checks that can go another way through the code of a level or a backend; `nightly` runs every check.
COVER = ("kind", "combinations", "widths_and_positions", "sizes_and_fields", "memory", "many_elements")


def check(target, level, *arguments, names=COVER):
    """Run the suite as a user would, in a process of its own: the level is chosen at the first call."""
    only = [option for name in sample(*names) for option in ("--only", name)]
    done = subprocess.run(
        [sys.executable, "-m", "rope_array", "check", target, *arguments, *only],
        env={**os.environ, "ROPE_ARRAY_KERNEL_LEVEL": level},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("level", levels())
@pytest.mark.parametrize(
    "library", [pytest.param(n, marks=pytest.mark.library(n)) for n in ("numpy", "torch")]
)
def test_each_level_conforms(library, level):
    gradients = ("gradient_combinations",) * (library == "torch")
    assert check(library, level, names=(*COVER, *gradients)).startswith("PASSED: ")


@pytest.mark.slow
@pytest.mark.library("numpy")
@pytest.mark.parametrize("backend", [pytest.param("native", marks=pytest.mark.nightly), "numpy", "array-api"])
def test_each_backend_conforms_by_name(backend):
    if backend == "native" and _native.kernel is None:
        pytest.skip(_native.unavailable_reason())
    printed = check("numpy", LEVELS[0], "--backend", backend)
    assert printed.startswith("PASSED: ")
    declined = r"declined (\d+): its numbers are of the other byte order \(\1\)"
    assert bool(re.search(declined, " ".join(printed.split()))) == (backend != "array-api")
