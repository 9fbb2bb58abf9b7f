"""The CUDA source, compiled for the CPU, in calls of the backend "cuda": bits of the array-api backend."""

import itertools
import pickle
import sys
from concurrent.futures import ThreadPoolExecutor

import cuda_cases
import cuda_source
import fake_cupy
import numpy as np
import pytest
from compare import assert_same
from cuda_mutants import MUTANTS
from native_cases import RoPE, normal, unaligned

import rope_array as ra
from rope_array._spec.spec import require_plan


@pytest.fixture
def kernel():
    with fake_cupy.installed(cuda_source.library()) as library, np.errstate(all="ignore"):
        yield library
    fake_cupy.guards.clear()


@pytest.mark.parametrize("name", cuda_cases.CASES)
def test_case(kernel, name):
    cuda_cases.CASES[name](kernel)


# ---- the backend ----


def decline_reason(x, pos=3):
    return ra.explain(x, pos).declined.get("cuda", "")


def test_the_kernel_serves_every_call_that_it_can(kernel, monkeypatch):
    class Subclass(fake_cupy.ndarray):
        pass

    x = normal((2, 5, 16))
    for pos in (3, range(5), fake_cupy.asarray(np.linspace(0, 1, 5))):
        assert decline_reason(fake_cupy.asarray(x), pos) == ""
        assert ra.explain(fake_cupy.asarray(x), pos).backend == "cuda"
    view = fake_cupy.ndarray(unaligned(x))
    assert "subclass" in decline_reason(Subclass(x))
    assert "not aligned" in decline_reason(view)
    assert_same(RoPE(16).apply(view, range(5)).host, RoPE(16).apply(x, range(5), backend="array-api"))
    monkeypatch.setattr(sys.modules["cupy"].cuda.runtime, "is_hip", True)
    assert "ROCm" in decline_reason(fake_cupy.asarray(x))
    (listed,) = (backend for backend in ra.backends() if backend.name == "cuda")
    assert "ROCm" in listed.description


def test_results_that_are_not_aligned_are_copied(kernel):
    x, out = normal((2, 5, 16)), unaligned(np.zeros((2, 5, 16), np.float32))
    RoPE(16).apply(fake_cupy.asarray(x), range(5), out=fake_cupy.ndarray(out))
    assert_same(np.array(out), RoPE(16).apply(x, range(5), backend="array-api"))


def test_launches_are_on_the_device_of_x(kernel):
    """And its constants, which are made once for each device, are there."""
    kernel.launches.clear()
    rope = RoPE(16, base=1234.5)
    plan, constants = require_plan(rope), []
    for number in (0, 1):
        with fake_cupy.Device(number):
            x = fake_cupy.asarray(normal((2, 5, 16)))
        for pos in (range(5), [3, 1, 4, 1, 5]):
            rope.apply(x, pos)
            constants.append([*plan.derived.on_devices.values()][number])
    assert [launch[-1] for launch in kernel.launches] == [0, 0, 1, 1]
    assert constants[0] is constants[1] is not constants[2] is constants[3]
    assert pickle.loads(pickle.dumps(plan)).derived.on_devices == {}
    assert pickle.loads(pickle.dumps(plan)) == plan


def test_equal_calls_are_prepared_once(kernel):
    prepare = sys.modules["rope_array._backends.cupy._launch"]._prepare
    rope, pos = RoPE(16), [fake_cupy.asarray(np.arange(5) + i) for i in range(3)]
    prepare.cache_clear()
    for row in pos:
        x = normal((2, 5, 16), seed=len(kernel.launches))
        expected = rope.apply(x, row.host, backend="array-api")
        assert_same(rope.apply(fake_cupy.asarray(x), row).host, expected)
    assert prepare.cache_info().misses == 1


def test_an_array_without_rows_launches_nothing(kernel):
    kernel.launches.clear()
    for shape in ((0, 5, 16), (2, 0, 16)):
        y = RoPE(16).apply(fake_cupy.asarray(np.ones(shape, np.float32)), range(shape[1]))
        assert y.shape == shape
    x = fake_cupy.asarray(normal((2, 5, 16)))
    RoPE(16, rotary_dim=0).apply(x, range(5), out=x)
    assert kernel.launches == []


def test_a_launch_has_a_thread_for_everything(kernel):
    configure = sys.modules["rope_array._backends.cupy._launch"].configure
    sizes = (1, 3, 64, 2**20), (1, 5, 40, 10**6), (1, 12, 129, 1000)
    for tokens, heads, groups in itertools.product(*sizes):
        (blocks_x, blocks_y), (x, y, z), heads_per_thread = configure(tokens, heads, groups)
        assert x * y * z <= 128
        assert x * y * z >= 64 or tokens * heads * groups < 128  # few threads of a block have no work
        assert blocks_x * y >= tokens
        assert blocks_y * z * heads_per_thread >= heads
        assert blocks_y < 2**16
        assert z <= 64


# ---- faults put into the source ----


@pytest.fixture(scope="module")
def failures(tmp_path_factory):
    """How the case of each fault fails; two compilers run at once."""

    def compiled(mutant):
        # Compile some of the kernels, to save time.
        source = "f" if "float_positions" in mutant.case else "t" if mutant.case == "tables" else "i"
        source = "n" if "inputs" in mutant.case else source
        defines = (f"-DONLY_SOURCE='{source}'",)
        place = folder / str(id(mutant))
        return str(cuda_source.compile_for_host(place, mutant.dtype, mutant.change, defines))

    folder, mutants = tmp_path_factory.mktemp("faulty"), MUTANTS.values()
    with ThreadPoolExecutor(2) as pool:
        paths = [*pool.map(compiled, mutants)]
    calls = [(mutant.case, mutant.dtype, path) for mutant, path in zip(mutants, paths, strict=True)]
    return dict(zip(MUTANTS, cuda_source.outcomes(calls), strict=True))


@pytest.mark.parametrize("name", MUTANTS)
def test_a_fault_fails_its_case(name, failures):
    assert failures[name].startswith(("AssertionError", "killed by signal")), failures[name] or "it passes"
    assert "no kernel" not in failures[name]
