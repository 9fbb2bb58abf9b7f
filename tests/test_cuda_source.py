"""The CUDA source, compiled for the CPU, in calls of the backend "cuda": bits of the array-api backend."""

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
def failures(tmp_path_factory):
    """How the case of each fault fails; two compilers run at once."""

    def compiled(mutant):
        half = (f"-DONLY_TABLES={int(mutant.case == 'tables')}",)  # compile half of the kernels, to save time
        place = folder / str(id(mutant))
        return str(cuda_source.compile_for_host(place, mutant.dtype, mutant.change, half))

    folder, mutants = tmp_path_factory.mktemp("faulty"), MUTANTS.values()
    with ThreadPoolExecutor(2) as pool:
        paths = [*pool.map(compiled, mutants)]
    calls = [(mutant.case, mutant.dtype, path) for mutant, path in zip(mutants, paths, strict=True)]
    return dict(zip(MUTANTS, cuda_source.outcomes(calls), strict=True))


@pytest.mark.parametrize("name", MUTANTS)
def test_a_fault_fails_its_case(name, failures):
    assert failures[name].startswith(("AssertionError", "killed by signal")), failures[name] or "it passes"
    assert "no kernel" not in failures[name]
