"""The CUDA source, compiled for the CPU, in calls of the backend "cuda": the bits of the array-api backend."""

from concurrent.futures import ThreadPoolExecutor

import cuda_cases
import cuda_source
import fake_cupy
import numpy as np
import pytest
from cuda_mutants import MUTANTS


@pytest.fixture
def kernel():
    with fake_cupy.installed(cuda_source.library()) as library, np.errstate(all="ignore"):
        yield library
    fake_cupy.guards.clear()


@pytest.mark.parametrize("name", cuda_cases.CASES)
def test_case(kernel, name):
    cuda_cases.CASES[name](kernel)


# ---- faults put into the source ----


@pytest.fixture(scope="module")
def faulty(tmp_path_factory):
    """The kernels with a fault, by the fault's name; two compilers run at once."""
    with ThreadPoolExecutor(2) as pool:
        futures = {
            name: pool.submit(
                cuda_source.compile_for_host, tmp_path_factory.mktemp("faulty"), mutant.change, mutant.dtype
            )
            for name, mutant in MUTANTS.items()
        }
        yield {name: future.result() for name, future in futures.items()}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_fault_fails_its_case(name, faulty):
    with fake_cupy.installed(faulty[name]) as library, np.errstate(all="ignore"):
        with pytest.raises(AssertionError) as raised:
            cuda_cases.CASES[MUTANTS[name].case](library)
    fake_cupy.guards.clear()
    assert "no kernel" not in str(raised.value)


def test_every_case_of_a_fault_passes_without_it(kernel):
    for name in {mutant.case for mutant in MUTANTS.values()}:
        cuda_cases.CASES[name](kernel)
