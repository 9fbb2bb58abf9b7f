"""The installs of dev.py. Its environment has a Python that only records its arguments."""

import itertools
import runpy
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest

ROOT = Path(__file__).parents[1]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
EXTRAS, GROUPS = PYPROJECT["project"]["optional-dependencies"], PYPROJECT["dependency-groups"]
DEMO = "-P -m rope_array demo"
PACKAGE = "--no-build-isolation --no-deps"  # options of the call that installs the package alone

pytestmark = [
    pytest.mark.library("numpy"),
    pytest.mark.skipif(sys.platform == "win32", reason="the recording Python is a shell script"),
]


class Project:
    """A copy of dev.py with two files of sources, and an environment."""

    def __init__(self, folder):
        self.folder, self.calls = folder, folder / "calls"
        for name in ("dev.py", "pyproject.toml", "CMakeLists.txt"):
            shutil.copy(ROOT / name, folder)
        for name in ("rope_array", "backends"):
            (folder / name).mkdir()
            (folder / name / "__init__.py").touch()
        (folder / ".venv/bin").mkdir(parents=True)
        self.python_does("")

    def python_does(self, command):
        """Let the environment's Python run a shell command after it has recorded its arguments."""
        python = self.folder / ".venv/bin/python"
        python.write_text(f'#!/bin/sh\necho "$@" >> "{self.calls}"\n{command}\n', "utf-8")
        python.chmod(0o755)

    def dev(self, *arguments, code=0):
        """Run dev.py; return the calls of the environment's Python, and what was printed to stderr."""
        self.calls.write_text("", "utf-8")
        command = [sys.executable, self.folder / "dev.py", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
        assert done.returncode == code, done.stderr
        return self.calls.read_text("utf-8").splitlines(), done.stderr


@pytest.fixture
def project(tmp_path):
    return Project(tmp_path)


def installs(call):
    """Return the requirements of a call that installs packages."""
    head, _, specs = call.partition(" install -v ")
    assert head == "-m pip"
    return specs.split()


def test_the_demo_installs_what_is_needed_once_and_after_changes(project):
    packages, package, demo = project.dev("demo", "a file.txt")[0]
    assert {*EXTRAS["dask"], *GROUPS["strict"]} < {*installs(packages)}
    assert PACKAGE in package
    assert package.endswith(f" {project.folder}")
    assert demo == f"{DEMO} a file.txt"
    assert project.dev("demo")[0] == [DEMO]

    packages, demo = project.dev("demo", "--all")[0]
    assert installs(packages) == [*EXTRAS["jax"], *GROUPS["torch"]]
    assert project.dev("demo")[0] == project.dev("demo", "--all")[0] == [DEMO]

    for file in ("rope_array/__init__.py", "backends/new.hpp", "CMakeLists.txt"):
        with (project.folder / file).open("a", encoding="utf-8") as stream:
            stream.write("\n# changed\n")
        package, demo = project.dev("demo")[0]
        assert PACKAGE in package, file

    pyproject = project.folder / "pyproject.toml"
    pyproject.write_text(pyproject.read_text("utf-8").replace("array-api-strict>=2.3", "strict>=9"), "utf-8")
    packages, package, _ = project.dev("demo")[0]
    assert installs(packages) == ["strict>=9"]
    assert PACKAGE in package


def test_a_session_of_nox_installs_nox_once(project):
    packages, nox = project.dev("lint")[0]
    assert installs(packages) == GROUPS["dev"]
    assert nox == f"-P -m nox -f {project.folder}/noxfile.py -s lint"
    assert project.dev("lint")[0] == [nox]


def test_a_failed_installation_shows_why_and_is_tried_again(project):
    project.python_does("echo no such host; exit 3")
    calls, printed = project.dev("demo", code=1)
    assert len(calls) == 1
    assert "\nno such host\n" in printed
    assert str(project.folder / "build/dev.log") in printed
    project.python_does("")
    assert len(project.dev("demo")[0]) == 3


def test_without_a_compiler_the_demo_runs_and_the_next_tries_again(project):
    project.python_does('echo "rope_array: the C++ kernel was NOT built; see the messages"')
    calls, printed = project.dev("demo")
    assert calls[-1] == DEMO
    assert "kernel is missing" in printed
    assert PACKAGE in project.dev("demo")[0][0]


# ---- sessions of noxfile.py that run if their files have changed ----


@pytest.fixture
def nox_file(monkeypatch, tmp_path):
    """The functions of noxfile.py, on a record in a folder of its own; nox is not installed here."""
    monkeypatch.setitem(sys.modules, "nox", MagicMock())
    monkeypatch.setenv("PIP_NO_COMPILE", "0")  # restored afterwards, as noxfile.py sets it
    monkeypatch.delenv("ROPE_ARRAY_NIGHTLY", raising=False)
    functions = runpy.run_path(str(ROOT / "noxfile.py"))
    functions["passed_before"].__globals__["PASSED"] = tmp_path / "passed.json"
    return SimpleNamespace(**functions)


def test_a_session_runs_unless_it_has_passed_with_the_same_files(nox_file, monkeypatch):
    all_tests, a_part = SimpleNamespace(posargs=[]), SimpleNamespace(posargs=["-k", "one"])
    passed = nox_file.passed_before
    nox_file.record_pass(a_part, "study", "hash")
    assert passed(all_tests, "study", "hash") == ""
    nox_file.record_pass(all_tests, "study", "hash")
    nox_file.record_pass(all_tests, "proof", "another")
    assert "it has passed" in passed(all_tests, "study", "hash")
    assert passed(all_tests, "study", "another") == passed(a_part, "study", "hash") == ""
    monkeypatch.setenv("ROPE_ARRAY_NIGHTLY", "1")
    assert passed(all_tests, "study", "hash") == ""


def test_the_files_of_a_session_are_those_that_it_reads(nox_file, tmp_path):
    def hash_with(path, content):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_bytes(content)
        return nox_file.content_of("proof", tmp_path)

    before = hash_with("backends/_native/cos_sin.h", b"one\n")
    for path in ("rope_array/hf/_patch.py", "proof/__pycache__/a.pyc", "backends/_native/_kernel.so"):
        assert hash_with(path, b"one\n") == before, path
    assert hash_with("backends/_native/cos_sin.h", b"one\r\n") == before  # as on Windows
    assert hash_with("backends/_native/cos_sin.h", b"two\n") != before
    for pattern in itertools.chain(*nox_file.READ_BY.values()):
        assert any(ROOT.glob(pattern)), pattern


def test_a_change_reaches_the_tests_of_its_folder(nox_file):
    def reached(*paths):
        files, libraries = nox_file.reached_by(list(paths))
        return {Path(file).stem.removeprefix("test_") for file in files}, libraries

    assert reached("rope_array/convert.py", "LICENSE") == ({"convert"}, ["numpy", "torch"])
    assert reached("tests/test_spec.py", "tests/mutants_modes.py")[0] == {"spec", "mutants"}
    for start, (names, _) in nox_file.REACHED.items():
        assert any(ROOT.glob(f"{start}*")), start
        assert all(any(ROOT.glob(f"tests/test_{name}.py")) for name in names.split()), names
    for path in (path for folder in ("rope_array", "backends") for path in (ROOT / folder).rglob("*.py")):
        assert reached(path.relative_to(ROOT).as_posix())[0], path
