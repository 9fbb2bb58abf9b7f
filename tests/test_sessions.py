"""The sessions of noxfile.py, and which tests and sessions a change reaches."""

import importlib
import re
import runpy
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import conftest
import pytest

from rope_array._backends import _native
from rope_array._backends._native.checkout import hash_of_sources
from rope_array.testing._libraries import DEFAULT_CONFIGURATIONS

ROOT = Path(__file__).parents[1]

pytestmark = pytest.mark.library("numpy")


@pytest.fixture
def noxfile(monkeypatch):
    """The names in noxfile.py, which is loaded without nox, and its `sessions`: their options by name."""
    sessions = {}

    def session(run, *, name, **options):
        sessions[name] = options | {"text": run.__doc__.partition("\n")[0]}

    project = SimpleNamespace(load_toml=lambda path: tomllib.loads((ROOT / path).read_text("utf-8")))
    nox = SimpleNamespace(project=project, session=session, options=SimpleNamespace(), Session=object)
    monkeypatch.setitem(sys.modules, "nox", nox)
    monkeypatch.setenv("PIP_NO_COMPILE", "0")  # restored afterwards, as noxfile.py sets it
    monkeypatch.syspath_prepend(ROOT)  # likewise
    return SimpleNamespace(**runpy.run_path(str(ROOT / "noxfile.py")), sessions=sessions)


@pytest.fixture
def reach(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / ".ci")
    return importlib.import_module("reach")


def test_each_library_has_a_session(noxfile):
    named = {
        lib.session if lib.session == "gpu" else f"tests({lib.session})" for lib in DEFAULT_CONFIGURATIONS
    }
    assert named == {name for name in noxfile.sessions if name.startswith("tests(")} - {"tests(all)"} | {
        "gpu"
    }


def test_sessions_install_groups_that_exist_and_run_files_that_exist(noxfile):
    keys = {"text", "when", "groups", "alone", "libraries", "files", "options", "night", "script"}
    for name, row in noxfile.ROWS.items():
        assert row.keys() <= keys, name
        groups = {*row.get("groups", "").split(), row.get("alone", "test")}
        assert groups <= noxfile.GROUPS.keys() | noxfile.EXTRAS.keys(), name
        assert all(noxfile.files(file) for file in row.get("files", ())), name
        assert (ROOT / row.get("script", "")).exists(), name


def test_each_session_of_a_push_has_a_job_of_its_own(noxfile):
    workflow = (ROOT / ".github" / "workflows" / "ci.yml").read_text("utf-8")
    jobs = {job for jobs in re.findall(r"session: \[(.*)\]", workflow) for job in jobs.split(", ")}
    of_a_push = {name for name, options in noxfile.sessions.items() if options["default"]}
    assert of_a_push | {*noxfile.NOT_REACHED} <= jobs
    assert {*noxfile.NIGHT} <= noxfile.sessions.keys()


# ---- what a change reaches ----


def test_a_test_reads_helpers_data_and_folders_of_the_package(reach):
    read = reach.read_by("tests/test_cuda_source.py")
    helpers = {"tests/fake_cupy.py", "tests/cuda_on_host.cpp", "tests/native_cases.py"}
    assert {*helpers, "pyproject.toml", "backends/cupy/", "rope_array/_spec/"} <= read
    assert "docs/index.md" not in read


def test_a_session_is_reached_by_what_its_tests_read_and_if_nothing_is_known(reach):
    tests = ("--gpu-code", "tests/test_cuda_source.py")
    assert reach.is_reached(tests, None)
    for path in ("tests/fake_cupy.py", "backends/_native/cos_sin.h", "noxfile.py"):
        assert reach.is_reached(tests, {"docs/index.md", path})
    assert not reach.is_reached(tests, {"docs/index.md"})
    assert not reach.is_reached(tests, set())


REACHED = {
    "rope_array/_spec/scaling.py": ["scaling", "spec", "conformance"],
    "rope_array/convert.py": ["convert", "conformance"],
    "tests/test_phase.py": ["phase"],
    "tests/faults.py": ["mutants"],
    "tests/golden/angles.json": ["phase"],
}


@pytest.mark.parametrize("path", REACHED)
def test_the_nearest_tests_of_a_change_come_first(reach, path):
    tests = [test.removeprefix("tests/test_").removesuffix(".py") for test in reach.tests_of([path])]
    assert [test for test in tests if test in REACHED[path]] == REACHED[path]
    assert tests[0] == REACHED[path][0] or path.startswith("tests/")


# ---- options and lines of pytest ----


def test_a_kernel_of_other_sources_is_named_first(monkeypatch):
    terminal = mock.Mock()
    session = mock.Mock(**{"config.pluginmanager.get_plugin.return_value": terminal})
    for sources, lines in ((hash_of_sources(ROOT), 0), ("", 0), ("of other sources", 1)):
        monkeypatch.setattr(_native, "kernel", SimpleNamespace(SOURCES=sources))
        conftest.pytest_sessionstart(session)
        assert terminal.write_line.call_count == lines


def test_after_some_seconds_no_test_begins():
    for seconds in (None, 1e9):
        conftest.pytest_runtest_setup(mock.Mock(nodeid="", **{"config.getoption.return_value": seconds}))
    with pytest.raises(pytest.skip.Exception, match="not begun after 0 seconds"):
        conftest.pytest_runtest_setup(mock.Mock(nodeid="", **{"config.getoption.return_value": 0.0}))


def test_a_test_that_an_editable_build_fails_names_its_session(monkeypatch):
    item = mock.Mock(
        nodeid="tests/test_checkout.py::test_the_version", **{"config.getoption.return_value": None}
    )
    monkeypatch.setattr(conftest, "EDITABLE", False)
    conftest.pytest_runtest_setup(item)
    monkeypatch.setattr(conftest, "EDITABLE", True)
    with pytest.raises(
        pytest.fail.Exception, match=r'editable build: .* "tests\(numpy\)" -- tests/test_checkout.py$'
    ):
        conftest.pytest_runtest_setup(item)
