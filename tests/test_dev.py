"""dev.py: what it installs, and when. Its environment has a Python that only records how it is called."""

import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
GROUPS = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["dependency-groups"]
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


def test_installs_what_is_needed_then_the_package(project):
    packages, package, demo = project.dev("demo", "a file.txt")[0]
    assert {*EXTRAS["dask"], *GROUPS["strict"]} < {*installs(packages)}
    assert PACKAGE in package
    assert package.endswith(f" {project.folder}")
    assert demo == f"{DEMO} a file.txt"


def test_installs_nothing_twice(project):
    project.dev("demo")
    assert project.dev("demo")[0] == [DEMO]


def test_all_adds_two_libraries_and_its_absence_installs_nothing(project):
    project.dev("demo")
    packages, demo = project.dev("demo", "--all")[0]
    assert installs(packages) == [*EXTRAS["jax"], *GROUPS["torch"]]
    assert demo == DEMO
    assert project.dev("demo")[0] == [DEMO]
    assert project.dev("demo", "--all")[0] == [DEMO]


@pytest.mark.parametrize("file", ["rope_array/__init__.py", "backends/new.hpp", "CMakeLists.txt"])
def test_a_change_of_the_code_installs_the_package_alone(project, file):
    project.dev("demo")
    with (project.folder / file).open("a", encoding="utf-8") as stream:
        stream.write("\n# changed\n")
    package, demo = project.dev("demo")[0]
    assert PACKAGE in package
    assert demo == DEMO
    assert project.dev("demo")[0] == [DEMO]


def test_a_new_requirement_is_installed(project):
    project.dev("demo")
    pyproject = project.folder / "pyproject.toml"
    pyproject.write_text(pyproject.read_text("utf-8").replace("array-api-strict>=2.3", "strict>=9"), "utf-8")
    packages, package, _ = project.dev("demo")[0]
    assert installs(packages) == ["strict>=9"]
    assert PACKAGE in package


@pytest.mark.parametrize("command", ["lint", "types"])
def test_a_session_of_nox(project, command):
    packages, nox = project.dev(command)[0]
    assert installs(packages) == GROUPS["dev"]
    assert nox == f"-P -m nox -f {project.folder}/noxfile.py -s {command}"
    assert len(project.dev(command)[0]) == 1


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
    (line,) = [line for line in printed.splitlines() if "kernel is missing" in line]
    assert str(project.folder / "build/dev.log") in line
    package, _ = project.dev("demo")[0]
    assert PACKAGE in package


@pytest.mark.slow
def test_prints_at_least_every_five_seconds(project):
    project.python_does('case "$*" in *dask*) sleep 4.5;; esac')
    first, second, last, *_ = project.dev("demo")[1].split("\n")
    assert first.startswith("   0 s  installing ")
    assert "dask" in first
    assert second in ("   4 s  ...", "   5 s  ...")
    assert last in [f"   {seconds} s  done" for seconds in (4, 5, 6)]
