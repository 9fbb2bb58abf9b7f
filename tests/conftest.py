"""The libraries under test, and the options, marks and fixtures that choose among them.

`pytest --libraries numpy,torch` tests these two; without the option, every library that is installed. The
name of a session, such as "tests(more)", is all its libraries.
A test is deselected, not skipped, unless every library that it needs is chosen:

* the fixture `lib` runs a test once for each chosen library; with `float_dtype` too, once for each of that
  library's floating dtypes, by name;
* `@pytest.mark.library("jax", "torch")` needs both; with `lib` too, `lib` is each of these in turn;
* `@pytest.mark.without("dask")` keeps a library from `lib`, which cubed is only where the mark names it;
* a test without these needs NumPy.

The libraries of the session `tests(more)` run the suite and the tests that name them: without the mark, `lib`
is none of them.

The session `tests(all)` runs all of them in one environment. In `nightly` the sessions `tests` run each
library in its own environment, and `tests(all)` the tests of two libraries or more: the mark `several`.

tests/test_plots.py needs matplotlib, and runs with NumPy: the group `numpy` of pyproject.toml has both.

The default run leaves these cases to the session `nightly`, which sets ROPE_ARRAY_NIGHTLY:

* tests and cases with the mark `nightly`;
* three of four cases of a test with the mark `neutral`, on a library that compiles each case or makes a graph
  of it: the test's subject is code that all libraries share;
* the checks that a test of the suite does not name: `sample` has the names.

Tests with the mark `slow` run first: started last, a slow test would run while other workers wait.
"""

import collections
import gc
import importlib.util
import os
import sys
import time
from functools import partial
from pathlib import Path

import hypothesis
import numpy as np
import pytest

from rope_array.__main__ import main
from rope_array._backends import _native
from rope_array._backends._native.checkout import outdated_in
from rope_array.testing._libraries import DEFAULT_CONFIGURATIONS, ArrayLibrary, MissingLibrary

# The factor on the usual number of random examples; the session `long` raises it.
TIMES = int(os.environ.get("ROPE_ARRAY_EXAMPLES", "1"))
NIGHTLY = bool(os.environ.get("ROPE_ARRAY_NIGHTLY"))
LONG_CASES = {"jax", "dask"}  # they compile each case, or make a graph of it
# Options without which files, and folders, whose names begin like this are left out.
OPTIONS = {
    "--peers": (("test_peers",), "compare with other implementations too"),
    "--models": (("test_hf",), "compare with the models of transformers too"),
    "--edge": (("edge",), "test against exporters, runtimes and foreign configs"),
    "--serving": (("serving",), "test inside a serving engine, vLLM"),
    "--gpu-code": (
        ("test_cuda", "test_inductor_offline", "test_jax_offline", "test_triton"),
        "check the GPU code without a GPU",
    ),
    "--bits": (("test_bits",), "compare the bits of all libraries and modes too"),
    "--study": (("test_roformer",), "test the study of the RoFormer paper too"),
    "--proof": (("test_proof",), "prove the contract; needs sollya and gappa"),
}
# These fail with an editable build: children import it in place of a copy, and it reads all files.
NOT_EDITABLE = (
    "test_checkout.py",
    "test_imports.py::test_imports_a_config_and_a_first_call_read_their_own_files_alone",
)
EDITABLE = "_editable_skbc_rope_array" in sys.modules  # scikit-build-core's finder
hypothesis.settings.register_profile("default", deadline=None, max_examples=100 * TIMES)
hypothesis.settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True, database=None)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") and TIMES == 1 else "default")


# Imports and collected tests stay to the end: a third of the time would go into looking for garbage in them.
gc.disable()

# By label: the library's name, except "strict" for array_api_strict.
LIBS: dict[str, ArrayLibrary] = {
    lib.label: lib for lib in DEFAULT_CONFIGURATIONS if lib.session not in ("more", "gpu")
}
MARKED_ONLY = {"cubed"}  # each call takes tens of milliseconds


class RefusedLibrary(ArrayLibrary):
    """A library whose arrays are refused."""

    def __init__(self, name):
        self.name = self.module = name


# The libraries of the session `tests(more)`.
MORE = {lib.label: lib for lib in DEFAULT_CONFIGURATIONS if lib.session == "more"}
MORE |= {name: RefusedLibrary(name) for name in ("sparse", "blosc2")}
ALL = {**LIBS, **MORE}
SESSIONS = {"tests(all)": [*LIBS]}
for each in ALL.values():
    SESSIONS.setdefault(f"tests({each.session})", []).append(each.label)
START = time.monotonic()


def sample(*names):
    """Return names of checks to run, for `only=` and `--only`; none, which is every check, in `nightly`."""
    return () if NIGHTLY else names


def _importable(name):
    try:
        return bool(ALL[name].native)
    except MissingLibrary:
        return False


def pytest_addoption(parser):
    group = parser.getgroup("rope_array")
    group.addoption("--libraries", metavar="NAMES", help=f"of {','.join(ALL)}; default: those installed")
    for option, (_, text) in OPTIONS.items():
        group.addoption(option, action="store_true", help=text)
    group.addoption(
        "--seconds", type=float, metavar="N", help="skip the tests that have not begun after N seconds"
    )
    group.addoption("--wheel", metavar="PATH", help="the wheel for tests/test_wheel.py, left out without it")


def pytest_configure(config):
    option = config.getoption("--libraries")
    if option is None:
        config.chosen_libraries = [name for name in ALL if _importable(name)]
        return
    names = [each for name in option.split(",") for each in SESSIONS.get(name.strip(), [name.strip()])]
    config.chosen_libraries = names
    unknown = [name for name in names if name not in ALL]
    if unknown:
        raise pytest.UsageError(f"--libraries: unknown {', '.join(unknown)}; known: {', '.join(ALL)}")
    missing = [name for name in names if not _importable(name)]
    if missing:
        raise pytest.UsageError(f"--libraries: {', '.join(missing)} cannot be imported in this environment")


@pytest.hookimpl(tryfirst=True)
def pytest_sessionstart(session):
    """Say first, with -q too, that the installed kernel is not compiled from the sources of these tests."""
    terminal = session.config.pluginmanager.get_plugin("terminalreporter")
    compiled = _native.kernel.SOURCES if _native.kernel else ""
    if terminal and (text := outdated_in(Path(__file__).parents[1], compiled)):
        terminal.write_line(f"OLD KERNEL: {text}")


def pytest_report_header(config):
    return "libraries: " + ", ".join(f"{name} {ALL[name].version}" for name in config.chosen_libraries)


def pytest_ignore_collect(collection_path, config):
    name = collection_path.name
    if name == "test_wheel.py":
        return None if config.getoption("--wheel") else True
    if name in ("test_plots.py", "test_bench_gpu.py"):
        imported = name == "test_plots.py" or "torch" in config.chosen_libraries
        return None if imported and _has_plots(config) else True
    options = [option for option, (starts, _) in OPTIONS.items() if name.startswith(starts)]
    return None if all(map(config.getoption, options)) else True


def pytest_collection_finish():
    # Hypothesis registers its generator, and warns on Python 3.14 if the object that holds it is frozen.
    hypothesis.find(hypothesis.strategies.none(), lambda none: True)
    gc.freeze()
    gc.enable()


def _has_plots(config):
    """Return whether plots are tested: with NumPy if it is asked for, else if matplotlib is installed."""
    if config.getoption("--libraries") is None:
        return importlib.util.find_spec("matplotlib") is not None
    return "numpy" in config.chosen_libraries


def _marked(node, mark):
    return {name for marker in node.iter_markers(mark) for name in marker.args}


def pytest_generate_tests(metafunc):
    if "lib" not in metafunc.fixturenames:
        return
    node = metafunc.definition
    wanted = (_marked(node, "library") or LIBS.keys() - MARKED_ONLY) - _marked(node, "without")
    names = [name for name in metafunc.config.chosen_libraries if name in wanted]
    if "float_dtype" in metafunc.fixturenames:
        pairs = [(name, dtype) for name in names for dtype in ALL[name].dtypes] or [(None, "none")]
        ids = [f"{name}-{dtype}" for name, dtype in pairs]
        metafunc.parametrize(("lib", "float_dtype"), pairs, ids=ids, indirect=["lib"])
    else:
        metafunc.parametrize("lib", names or [None], ids=names or ["none"], indirect=True)


@pytest.fixture(scope="session")  # so that Hypothesis tests may use it
def lib(request) -> ArrayLibrary:
    """One of the chosen libraries."""
    return ALL[request.param]


def _libraries_of(item):
    """Return the names of the libraries that a test needs."""
    needed = _marked(item, "library")
    assert needed <= ALL.keys(), f"{item.nodeid}: unknown library in {needed}"
    if "lib" in item.fixturenames:
        params = getattr(item, "callspec", None)
        needed |= {params.params.get("lib", "numpy") if params else "numpy"}
    return needed or {"numpy"}


def _is_for_nightly(item, needed, cases_seen):
    """Return whether the default run leaves a case out; `cases_seen` counts a function's neutral cases."""
    if item.get_closest_marker("nightly"):
        return True
    if not item.get_closest_marker("neutral") or not needed & LONG_CASES:
        return False
    cases_seen[item.function] += 1
    return cases_seen[item.function] % 4 != 1


def _not_editable(item):
    """Return the entry of NOT_EDITABLE that has a test, if the build is editable; else None."""
    name = item.nodeid.rpartition("/")[2]
    return next((entry for entry in NOT_EDITABLE if name.startswith(entry)), None) if EDITABLE else None


@pytest.hookimpl(tryfirst=True)  # before -m is applied
def pytest_collection_modifyitems(config, items):
    kept, left_out, cases_seen = [], [], collections.Counter()
    for item in items:
        needed = _libraries_of(item)
        if len(needed) > 1:
            item.add_marker("several")
        chosen = needed <= set(config.chosen_libraries)
        if item.get_closest_marker("gpu_code"):
            chosen = chosen and config.getoption("--gpu-code")
        chosen = chosen and (NIGHTLY or not _is_for_nightly(item, needed, cases_seen))
        if entry := _not_editable(item):  # one test of a file is left to say so
            chosen = chosen and entry not in map(_not_editable, kept)
        (kept if chosen else left_out).append(item)
    items[:] = sorted(kept, key=lambda item: item.get_closest_marker("slow") is None)
    if left_out:
        config.hook.pytest_deselected(items=left_out)


def pytest_runtest_setup(item):
    if entry := _not_editable(item):
        command = f'python dev.py test -s "tests(numpy)" -- tests/{entry}'
        pytest.fail(f"{entry} cannot pass with an editable build: {command}", pytrace=False)
    seconds = item.config.getoption("--seconds")
    if seconds is not None and time.monotonic() - START > seconds:
        pytest.skip(f"not begun after {seconds:g} seconds")


@pytest.fixture
def command(capsys):
    """Return a function that runs `rope_array` in this process: the exit status, the output, the errors."""

    def run(line):
        try:
            status = main(line.split() if isinstance(line, str) else line)
        except SystemExit as error:  # argparse's
            status = error.code
        return status, *capsys.readouterr()

    return run


LEVELS = _native.kernel.level_names() if _native.kernel else []


@pytest.fixture
def kernel_settings(monkeypatch):
    """Restore the kernel's settings after a test, and unset ROPE_ARRAY_NUM_THREADS during it.

    Threads share arrays of 1 MiB and more, a quarter of the default size, to save time.
    """
    level, size = _native.kernel.level_name(), _native.kernel.share_out_from(2**20)
    monkeypatch.delenv("ROPE_ARRAY_NUM_THREADS", raising=False)
    with np.errstate(all="ignore"):
        yield
    _native.kernel.use_level(level)
    _native.kernel.share_out_from(size)


@pytest.fixture(params=LEVELS)
def level(request, kernel_settings):
    """Each level of instructions that this processor has."""
    _native.kernel.use_level(request.param)
    return request.param


@pytest.fixture(params=[False, True], ids=["cached", "streamed"])
def streamed(request):
    """Results written through the caches, then by non-temporal stores."""
    before = _native.kernel.stream_from(0) if request.param else None
    yield
    if before is not None:
        _native.kernel.stream_from(before)


@pytest.fixture
def runs(monkeypatch):
    """The kernel's calls that rotated or made tables; empty without a kernel."""
    runs = []

    def counting(run, *args, **kwargs):
        done = run(*args, **kwargs)
        runs.append(args[0]) if done is not NotImplemented else None
        return done

    for name in ("rotate", "make_tables") if _native.kernel else ():
        monkeypatch.setattr(_native.kernel, name, partial(counting, getattr(_native.kernel, name)))
    return runs


@pytest.fixture(params=["table", "attributes"])
def tensors(request):
    """The kernel reads tensors by DLPack's exchange table if PyTorch has one, or by their attributes."""
    import torch

    def use(table):
        types = torch.Tensor, torch.nn.Parameter
        return _native.kernel.use_tensors(*types, torch.empty_like, torch.get_num_threads, table)

    if use(request.param == "table") != (request.param == "table"):
        pytest.skip("this version of PyTorch has no exchange table")
    yield
    use(True)


@pytest.fixture
def fresh_dynamo():
    """Dynamo without the functions that earlier tests compiled."""
    from torch import _dynamo

    _dynamo.reset()
    yield
    _dynamo.reset()
