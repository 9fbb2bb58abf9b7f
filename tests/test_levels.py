"""The conformance suite over the kernel at every level of instructions the processor has, and without it."""

import os
import subprocess
import sys

import pytest

from rope_array._backends import _native

LEVELS = [*(_native.kernel.level_names() if _native.kernel else ()), "none"]


def levels(*repeated):
    """Return the levels as parameters; the session `nightly` alone runs `repeated`, judged elsewhere too."""
    return [pytest.param(name, marks=pytest.mark.nightly if name in repeated else ()) for name in LEVELS]


BEST = LEVELS[:1]  # the kernel's own choice, which tests/test_conformance.py judges


def check(target, level, *arguments, **environment):
    """Run the suite as a user would, in a process of its own: the level is chosen at the first call."""
    done = subprocess.run(
        [sys.executable, "-m", "rope_array", "check", target, *arguments],
        env={**os.environ, "ROPE_ARRAY_KERNEL_LEVEL": level, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.mark.slow
@pytest.mark.library("numpy")
@pytest.mark.parametrize("level", levels(*BEST, "none"))  # "none" is the backend `numpy`, below
def test_numpy_conforms(level):
    assert check("numpy", level).startswith("PASSED: ")


@pytest.mark.slow
@pytest.mark.library("torch")
@pytest.mark.parametrize("level", levels(*BEST))
def test_torch_conforms(level):
    assert check("torch", level).startswith("PASSED: ")


@pytest.mark.slow
@pytest.mark.library("numpy")
@pytest.mark.parametrize("backend", ["native", "numpy", "array-api"])
def test_each_backend_conforms_by_name(backend):
    if backend == "native" and _native.kernel is None:
        pytest.skip(_native.unavailable_reason())
    printed = check("numpy", LEVELS[0], "--backend", backend)
    assert printed.startswith("PASSED: ")
    declined = "declined 3: its numbers are of the other byte order (3)"
    assert (declined in " ".join(printed.split())) == (backend != "array-api")
