"""dev.py installs missing packages only. Its environment has a Python that records its arguments."""

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
EXTRAS, GROUPS = PYPROJECT["project"]["optional-dependencies"], PYPROJECT["dependency-groups"]
DEMO = "-P -m rope_array demo"
PACKAGES, PACKAGE = "install --no-compile", "--no-build-isolation --no-deps"  # in calls that install them

pytestmark = [
    pytest.mark.library("numpy"),
    pytest.mark.skipif(sys.platform == "win32", reason="the recording Python is a shell script"),
]


@pytest.fixture
def dev(tmp_path):
    """A function that runs a copy of dev.py; it returns the calls of its Python, and what was printed."""
    calls, python = tmp_path / "calls", tmp_path / ".venv/bin/python"
    for name in ("dev.py", "pyproject.toml", "CMakeLists.txt"):
        shutil.copy(ROOT / name, tmp_path)
    for file in (tmp_path / "rope_array/a.py", tmp_path / "backends/a.hpp", python):
        file.parent.mkdir(parents=True)
        file.touch()

    def dev(*arguments, python_does="", code=0):
        python.write_text(f'#!/bin/sh\necho "$@" >> "{calls}"\n{python_does}\n', "utf-8")
        python.chmod(0o755)
        calls.write_text("", "utf-8")
        command = [sys.executable, tmp_path / "dev.py", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
        assert done.returncode == code, done.stderr
        # The pip of this Python runs its own file by the Python of .venv.
        runner = re.compile(r"^.*__pip-runner__.py --python \S+ ", re.MULTILINE)
        return runner.sub("", calls.read_text("utf-8")).splitlines(), done.stderr

    dev.folder = tmp_path
    return dev


def test_the_demo_installs_what_is_needed_once(dev):
    (packages, package, demo), _ = dev("demo", "a file.txt")
    assert packages.startswith(PACKAGES)
    assert {*GROUPS["strict"]} < {*packages.split()}
    assert PACKAGE in package
    assert package.endswith(f" {dev.folder}")
    assert demo == f"{DEMO} a file.txt"
    assert dev("demo")[0] == [DEMO]
    others = " ".join([*EXTRAS["dask"], *EXTRAS["jax"], *GROUPS["torch"]])
    assert dev("demo", "--all")[0] == [f"{PACKAGES} {others}", DEMO]
    assert dev("demo")[0] == [DEMO]


@pytest.mark.parametrize("file", ["rope_array/a.py", "backends/a.hpp", "CMakeLists.txt", "pyproject.toml"])
def test_the_demo_installs_the_package_after_a_change(dev, file):
    dev("demo")
    path = dev.folder / file
    path.write_text(f"{path.read_text('utf-8')}\n# changed\n", "utf-8")
    (package, _), _ = dev("demo")
    assert PACKAGE in package


def test_a_session_of_nox_installs_nox_once(dev):
    nox = f"-P -m nox -f {dev.folder}/noxfile.py -s lint"
    assert dev("lint")[0] == [f"{PACKAGES} {' '.join(GROUPS['dev'])}", nox]
    assert dev("lint")[0] == [nox]


def test_with_an_old_pip_the_environment_has_its_own(dev, monkeypatch):
    old = dev.folder / "old/pip-22.3.dist-info"
    for folder in (old, dev.folder / ".venv/lib/python3/site-packages/pip"):
        folder.mkdir(parents=True)
    (old / "METADATA").write_text("Metadata-Version: 2.1\nName: pip\nVersion: 22.3\n", "utf-8")
    monkeypatch.setenv("PYTHONPATH", str(old.parent))
    assert dev("lint")[0][0] == f"-m pip {PACKAGES} {' '.join(GROUPS['dev'])}"


def test_a_failed_installation_shows_why_and_is_tried_again(dev):
    calls, printed = dev("demo", python_does="echo no such host; exit 3", code=1)
    assert len(calls) == 1
    assert "\nno such host\n" in printed
    assert str(dev.folder / "build/dev.log") in printed
    assert len(dev("demo")[0]) == 3


def test_without_a_compiler_the_demo_runs_and_the_next_tries_again(dev):
    calls, printed = dev("demo", python_does='echo "rope_array: the C++ kernel was NOT built"')
    assert calls[-1] == DEMO
    assert "kernel is missing" in printed
    assert PACKAGE in dev("demo")[0][0]
