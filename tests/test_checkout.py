"""The sources of a checkout, imported without an installation or in place of the installed package."""

import os
import shutil
from pathlib import Path

import array_api_compat
import child
import numpy as np
import pytest

from rope_array.testing import apply_definition

ROOT = Path(__file__).parents[1]
VERSION = '[project]\nname = "{name}"\nversion = "9.8"\n'
# Hide every installed package that rope_array does not need.
NOT_INSTALLED = f"""
import sys
from importlib.machinery import PathFinder
WHERE = {{"numpy": {str(Path(np.__file__).parents[1])!r},
         "array_api_compat": {str(Path(array_api_compat.__file__).parents[1])!r}}}
class Needed:
    @staticmethod
    def find_spec(name, path=None, target=None):
        return PathFinder.find_spec(name, [WHERE[name]]) if path is None and name in WHERE else None
sys.path[:] = [p for p in sys.path if "-packages" not in p and p not in sys.argv[1:]]
sys.path.insert(0, "")
sys.meta_path.append(Needed)
"""
ROTATE = """
import numpy as np, rope_array as ra
print(ra.__file__)
x = np.arange(12.0).reshape(3, 4)
for backend in (None, "array-api"):
    print(*ra.apply(x, [0, 1, 2_000_000_000], backend=backend).ravel())
"""
NO_DEPENDENCIES = """
import sys
sys.path[:] = [p for p in sys.path if "-packages" not in p]
sys.path.insert(0, "")
import rope_array
"""
NATIVE = """
import numpy, rope_array as ra
print(next(f"{b.usable} {b.description}" for b in ra.backends() if b.name == "native"))
"""


@pytest.fixture
def checkout(tmp_path):
    """Return a folder with the sources, but no compiled kernel."""
    for name in ("rope_array", "backends"):
        ignored = shutil.ignore_patterns("__pycache__", "_backends", "_kernel*")
        shutil.copytree(ROOT / name, tmp_path / "a checkout" / name, ignore=ignored)
    return tmp_path / "a checkout"


def output(folder, *arguments, **environment):
    done = child.python(*arguments, cwd=folder, **environment)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


def uninstalled(folder, script):
    """Return the output of a script in a folder, no rope_array being installed."""
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    return output(folder, "-c", NOT_INSTALLED + script, *paths)


# ---- results ----


def run_from_a_zip_file(checkout):
    archive = shutil.make_archive(str(checkout.parent / "archive"), "zip", checkout)
    paths = os.pathsep.join([archive, os.environ.get("PYTHONPATH", "")])
    return output(checkout.parent, "-P", "-c", ROTATE, PYTHONPATH=paths).replace(archive, str(checkout))


RUNS = {
    "without an installation": lambda checkout: uninstalled(checkout, ROTATE),
    "in place of the installed package": lambda checkout: output(checkout, "-c", ROTATE),
    "from a zip file": run_from_a_zip_file,
}


@pytest.mark.parametrize("how", RUNS)
def test_a_checkout_rotates(checkout, how):
    where, *rows = RUNS[how](checkout).splitlines()
    assert Path(where).resolve() == (checkout / "rope_array/__init__.py").resolve()
    exact = apply_definition(np.arange(12.0).reshape(3, 4), np.array([0, 1, 2_000_000_000]))
    assert len(rows) == 2
    for row in rows:
        np.testing.assert_allclose(np.array(row.split(), float), exact.ravel(), rtol=0, atol=1e-14)


def test_without_dependencies_the_error_names_the_command(checkout):
    done = child.python("-c", NO_DEPENDENCIES, cwd=checkout, PYTHONPATH="")
    assert done.returncode == 1
    assert "needs array-api-compat: run python -m pip install ." in done.stderr.splitlines()[-1]


LATER = [pytest.param(c, marks=pytest.mark.nightly) for c in ("demo", "backends --import", "check numpy")]


@pytest.mark.parametrize("command", ["explain", *LATER])
def test_a_command(checkout, command):
    assert "Traceback" not in output(checkout, "-m", "rope_array", *command.split())


# ---- the modules ----


def test_backends_are_imported_late_from_the_folder_next_to_the_package(checkout):
    script = """
import sys, rope_array
print("numpy" in sys.modules, "rope_array._backends" in sys.modules)
from rope_array._backends.numpy import native
print(native.__name__, native.__file__, sep="\\n")
"""
    loaded, name, file = output(checkout, "-c", script).splitlines()
    assert (loaded, name) == ("False False", "rope_array._backends.numpy.native")
    assert Path(file).resolve() == (checkout / "backends/numpy/native.py").resolve()


def test_a_folder_of_backends_in_the_package_comes_first(checkout):
    shutil.copytree(checkout / "backends", checkout / "rope_array/_backends")
    file = output(checkout, "-c", "import rope_array._backends as b; print(b.__file__)").strip()
    assert Path(file).resolve() == (checkout / "rope_array/_backends/__init__.py").resolve()


@pytest.mark.parametrize("text", [None, '"""Backends of a web framework."""\n'], ids=["missing", "another's"])
def test_only_the_backends_of_a_checkout_are_imported(checkout, text):
    shutil.rmtree(checkout / "backends")
    if text is not None:
        (checkout / "backends").mkdir()
        (checkout / "backends/__init__.py").write_text(text, "utf-8")
    done = child.python("-c", ROTATE, cwd=checkout)
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("ImportError: the backends of rope_array are missing: ")
    assert "python -m pip install" in last


# ---- messages about the kernel and the version ----


def test_why_the_kernel_is_missing(checkout):
    where = checkout.resolve()
    shadowed = output(checkout, "-c", NATIVE)
    assert f"not built in {where}" in shadowed
    assert "shadow the installed rope_array: run python -P" in shadowed
    assert f"run python -m pip install -e . in {where}\n" in uninstalled(checkout, NATIVE)
    (checkout / "backends/_native/_kernel.py").write_text("raise ImportError('no symbol')", "utf-8")
    assert output(checkout, "-c", NATIVE) == "False the C++ kernel cannot be loaded (no symbol)\n"


def test_the_version(checkout):
    script, project = "import rope_array; print(rope_array.__version__)", checkout / "pyproject.toml"
    installed = output(checkout, "-P", "-c", script)
    assert uninstalled(checkout, script) == "0+unknown\n"
    project.write_text(VERSION.format(name="another"), "utf-8")
    assert uninstalled(checkout, script) == "0+unknown\n"
    assert output(checkout, "-c", script) == installed
    project.write_text(VERSION.format(name="rope-array"), "utf-8")
    assert uninstalled(checkout, script) == "9.8+checkout\n"
