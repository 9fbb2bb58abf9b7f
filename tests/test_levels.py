"""The conformance suite over the kernel at every level of instructions the processor has, and without it."""

import re

import child
import pytest
from conftest import sample

from rope_array._backends import _native

LEVELS = [*(_native.kernel.level_names() if _native.kernel else ()), "none"]
# tests/test_conformance.py judges the highest level, tests/test_native_bits.py compares the bits of all, and
# without the kernel the backends below serve: the others are left to `nightly`.
LOWEST = LEVELS[-2:-1]


def for_nightly(name, *, unless):
    return pytest.param(name, marks=() if unless else pytest.mark.nightly)


# Checks that can go another way through the code of a level or a backend; `nightly` runs every check.
COVER = ("kind", "memory", "many_elements", "combinations")


def check(target, level, *arguments, names=COVER):
    """Run the suite as a user would, in a process of its own: the level is chosen at the first call."""
    only = [option for name in sample(*names) for option in ("--only", name)]
    command = ("-m", "rope_array", "check", target, *arguments, *only)
    done = child.python(*command, timeout=3600, ROPE_ARRAY_KERNEL_LEVEL=level)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert done.stdout.startswith("PASSED: ")
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("level", [for_nightly(name, unless=name in LOWEST) for name in LEVELS])
@pytest.mark.parametrize(
    "library", [pytest.param(n, marks=pytest.mark.library(n)) for n in ("numpy", "torch")]
)
def test_each_level_conforms(library, level):
    check(library, level, names=COVER if library == "numpy" else ("kind", "gradient_of_fields"))


@pytest.mark.library("numpy")
@pytest.mark.parametrize("backend", [for_nightly("native", unless=False), "array-api"])
def test_each_backend_conforms_by_name(backend):
    """The sessions `pure` and `tests(all)` judge these by more checks."""
    if backend == "native" and _native.kernel is None:
        pytest.skip(_native.unavailable_reason())
    printed = check("numpy", LEVELS[0], "--backend", backend, names=("kind", "memory"))
    declined = r"declined (\d+): its numbers are of the other byte order \(\1\)"
    assert bool(re.search(declined, " ".join(printed.split()))) == (backend != "array-api")
