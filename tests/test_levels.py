"""The conformance suite over the kernel at every level of instructions the processor has, and without it."""

import os
import subprocess
import sys

import pytest

from rope_array._backends import _native

LEVELS = [*(_native.kernel.level_names() if _native.kernel else ()), "none"]


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
@pytest.mark.parametrize("level", LEVELS)
def test_numpy_conforms(level):
    assert " 0 failed" in check("numpy", level)


@pytest.mark.slow
@pytest.mark.library("torch")
@pytest.mark.parametrize("level", LEVELS)
def test_torch_conforms(level):
    assert " 0 failed" in check("torch", level)


OTHER_BYTE_ORDER = "numbers of the other byte order are the array-api backend's"


@pytest.mark.slow
@pytest.mark.library("numpy")
@pytest.mark.parametrize("backend", ["native", "numpy", "array-api"])
def test_each_backend_conforms_by_name(backend):
    if backend == "native" and _native.kernel is None:
        pytest.skip(_native.unavailable_reason())
    expected = [f"strides[{dtype}]={OTHER_BYTE_ORDER}" for dtype in ("float16", "float32", "float64")]
    expected = [] if backend == "array-api" else [part for one in expected for part in ("--expect", one)]
    assert " 0 failed" in check("numpy", LEVELS[0], "--backend", backend, *expected)
