"""The libraries under test, and the options, marks and fixtures that choose among them.

`pytest --libraries numpy,torch` tests these two; without the option, every library that is installed.
A test is left out (deselected, not skipped) unless all that it needs is chosen:

* the fixture `lib` runs a test once for each chosen library; `float_dtype`, beside it, once for each of that
  library's floating dtypes, by name;
* `@pytest.mark.library("jax", "torch")` needs both; with `lib` too, `lib` is each of these in turn;
* `@pytest.mark.without("dask")` keeps a library from `lib`;
* a test that has none of these runs where NumPy is chosen, so that it runs once in a series of sessions.

Tests that need two or more libraries get the mark `several`, by which the session `tests(all)` finds them.
"""

import importlib
import importlib.util
import os

import hypothesis
import numpy as np
import pytest

hypothesis.settings.register_profile("default", deadline=None)
hypothesis.settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True, database=None)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "default")


class Lib:
    """One array library: its namespace and the ways in and out.

    `name`, `xp`; `dtypes`, the names of its floating dtypes; `dtype(name)`; `asarray(array, dtype=None)` from
    NumPy; `to_numpy(array)`, bfloat16 as float32.
    """

    name: str
    module: str  # what has to be importable
    namespace: str

    @property
    def xp(self):
        return importlib.import_module(self.namespace)

    @property
    def dtypes(self):
        return ["float16", "float32", "float64"]

    def dtype(self, name):
        return getattr(self.xp, name)

    def asarray(self, array, dtype=None):
        return self.xp.asarray(array, dtype=None if dtype is None else self.dtype(dtype))

    def to_numpy(self, array):
        return _widened(np.asarray(array))

    def __repr__(self):
        return self.name


class NumPy(Lib):
    name = "numpy"
    module = "numpy"
    namespace = "array_api_compat.numpy"

    @property
    def dtypes(self):
        return [*super().dtypes, *(["bfloat16"] if importlib.util.find_spec("ml_dtypes") else [])]

    def dtype(self, name):
        return _numpy_dtype(name)


class Strict(Lib):
    name = "strict"
    module = namespace = "array_api_strict"

    @property
    def dtypes(self):
        return ["float32", "float64"]

    def to_numpy(self, array):
        return np.from_dlpack(array)


class Dask(Lib):
    name = "dask"
    module = "dask.array"
    namespace = "array_api_compat.dask.array"

    def asarray(self, array, dtype=None):
        array = np.asarray(array, dtype=None if dtype is None else _numpy_dtype(dtype))
        chunks = tuple(max(1, (n + 1) // 2) for n in array.shape[:-1]) + array.shape[-1:]
        return self.xp.asarray(importlib.import_module("dask.array").from_array(array, chunks=chunks))

    def dtype(self, name):
        return _numpy_dtype(name)

    def to_numpy(self, array):
        return _widened(np.asarray(array.compute()))


class Jax(Lib):
    name = "jax"
    module = "jax"
    namespace = "jax.numpy"

    @property
    def dtypes(self):
        x64 = importlib.import_module("jax").config.jax_enable_x64
        return ["float16", "bfloat16", "float32", *(["float64"] if x64 else [])]


class Torch(Lib):
    name = "torch"
    module = "torch"
    namespace = "array_api_compat.torch"

    @property
    def dtypes(self):
        return ["float16", "bfloat16", "float32", "float64"]

    def asarray(self, array, dtype=None):
        torch = importlib.import_module("torch")
        array = np.array(array, order="C")  # a copy: torch warns of read-only memory
        if array.dtype.name == "bfloat16":
            tensor = torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
        else:
            tensor = torch.from_numpy(array)
        return tensor if dtype is None else tensor.to(self.dtype(dtype))

    def to_numpy(self, array):
        array = array.detach().cpu().resolve_conj()
        return (array.float() if array.dtype == self.xp.bfloat16 else array).numpy()


LIBS = {lib.name: lib for lib in (NumPy(), Strict(), Dask(), Jax(), Torch())}


def _numpy_dtype(name):
    return importlib.import_module("ml_dtypes").bfloat16 if name == "bfloat16" else np.dtype(name)


def _widened(array):
    return array.astype(np.float32) if array.dtype.name == "bfloat16" else array


def _importable(name):
    try:
        importlib.import_module(LIBS[name].module)
    except ModuleNotFoundError:
        return False
    return True


def pytest_addoption(parser):
    group = parser.getgroup("rope_array")
    group.addoption("--libraries", metavar="NAMES", help=f"of {','.join(LIBS)}; default: those installed")
    group.addoption("--peers", action="store_true", help="compare with other implementations too")
    group.addoption("--wheel", metavar="PATH", help="the wheel for tests/test_wheel.py, left out without it")


def pytest_configure(config):
    given = config.getoption("--libraries")
    if given is None:
        config.chosen_libraries = [name for name in LIBS if _importable(name)]
        return
    config.chosen_libraries = names = [name.strip() for name in given.split(",")]
    unknown = [name for name in names if name not in LIBS]
    if unknown:
        raise pytest.UsageError(f"--libraries: unknown {', '.join(unknown)}; known: {', '.join(LIBS)}")
    missing = [name for name in names if not _importable(name)]
    if missing:
        raise pytest.UsageError(f"--libraries: {', '.join(missing)} cannot be imported in this environment")


def pytest_report_header(config):
    modules = [(name, LIBS[name].module.partition(".")[0]) for name in config.chosen_libraries]
    return "libraries: " + ", ".join(f"{n} {importlib.import_module(m).__version__}" for n, m in modules)


def pytest_ignore_collect(collection_path, config):
    if collection_path.name == "test_wheel.py" and not config.getoption("--wheel"):
        return True
    if collection_path.name == "test_peers.py" and not config.getoption("--peers"):
        return True
    return None


def _marked(node, mark):
    return {name for marker in node.iter_markers(mark) for name in marker.args}


def pytest_generate_tests(metafunc):
    if "lib" not in metafunc.fixturenames:
        return
    node = metafunc.definition
    names = [
        name
        for name in metafunc.config.chosen_libraries
        if name in (_marked(node, "library") or LIBS) and name not in _marked(node, "without")
    ]
    if "float_dtype" in metafunc.fixturenames:
        pairs = [(name, dtype) for name in names for dtype in LIBS[name].dtypes] or [(None, "none")]
        ids = [f"{name}-{dtype}" for name, dtype in pairs]
        metafunc.parametrize(("lib", "float_dtype"), pairs, ids=ids, indirect=["lib"])
    else:
        metafunc.parametrize("lib", names or [None], ids=names or ["none"], indirect=True)


@pytest.fixture(scope="session")  # so that Hypothesis tests may use it
def lib(request) -> Lib:
    """One of the chosen libraries."""
    return LIBS[request.param]


@pytest.hookimpl(tryfirst=True)  # before -m is applied
def pytest_collection_modifyitems(config, items):
    kept, left_out = [], []
    for item in items:
        needed = _marked(item, "library")
        assert needed <= LIBS.keys(), f"{item.nodeid}: unknown library in {needed}"
        params = getattr(item, "callspec", None)
        chosen_lib = params.params.get("lib", "numpy") if params else "numpy"
        if "lib" in item.fixturenames:
            needed |= {chosen_lib}
        if len(needed) > 1:
            item.add_marker("several")
        fits = (needed or {"numpy"}) <= set(config.chosen_libraries)
        (kept if fits else left_out).append(item)
    items[:] = kept
    if left_out:
        config.hook.pytest_deselected(items=left_out)
