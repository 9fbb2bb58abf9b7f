"""The sources of a checkout, imported without an installation or in place of the installed package."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import array_api_compat
import numpy as np
import pytest

from rope_array.testing import apply_definition

ROOT = Path(__file__).parents[1]
VERSION = '[project]\nname = "{name}"\nversion = "9.8"\n'
# Hide every installed package but those that rope_array needs.
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


def python(folder, *arguments, **environment):
    """Run Python in a folder; return the finished process."""
    env = {name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"}
    command = [sys.executable, *map(str, arguments)]
    options = {"capture_output": True, "text": True, "check": False, "timeout": 300}
    return subprocess.run(command, cwd=folder, env={**env, **environment}, **options)


def output(*arguments, **environment):
    done = python(*arguments, **environment)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


def uninstalled(folder, script):
    """Return the output of a script in a folder, no rope_array being installed."""
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    return output(folder, "-c", NOT_INSTALLED + script, *paths)


def assert_rotated_by(folder, printed):
    where, *results = printed.splitlines()
    assert Path(where).resolve() == (folder / "rope_array/__init__.py").resolve()
    exact = apply_definition(np.arange(12.0).reshape(3, 4), np.array([0, 1, 2_000_000_000]))
    assert len(results) == 2
    for result in results:
        np.testing.assert_allclose(np.array(result.split(), float), exact.ravel(), rtol=0, atol=1e-14)


# ---- results ----


def test_rotates_without_an_installation(checkout):
    assert_rotated_by(checkout, uninstalled(checkout, ROTATE))


def test_without_dependencies_the_error_names_the_command(checkout):
    done = python(checkout, "-c", NO_DEPENDENCIES, PYTHONPATH="")
    assert done.returncode == 1
    assert "needs array-api-compat: run python -m pip install ." in done.stderr.splitlines()[-1]


def test_rotates_in_place_of_the_installed_package(checkout):
    assert_rotated_by(checkout, output(checkout, "-c", ROTATE))


def test_a_script_in_the_folder(checkout):
    (checkout / "script.py").write_text(ROTATE, "utf-8")
    assert_rotated_by(checkout, output(checkout.parent, "a checkout/script.py"))


def test_a_zip_file(checkout):
    archive = shutil.make_archive(str(checkout.parent / "archive"), "zip", checkout)
    paths = os.pathsep.join([archive, os.environ.get("PYTHONPATH", "")])
    assert_rotated_by(Path(archive), output(checkout.parent, "-P", "-c", ROTATE, PYTHONPATH=paths))


def test_the_option_p_imports_the_installed_package(checkout):
    where = output(checkout, "-P", "-c", ROTATE).splitlines()[0]
    assert checkout not in Path(where).parents


def test_imports_no_array_library(checkout):
    script = "import sys, rope_array; print('numpy' in sys.modules, 'rope_array._backends' in sys.modules)"
    assert output(checkout, "-c", script) == "False False\n"


@pytest.mark.parametrize("command", ["demo", "backends --import", "explain", "check --list"])
def test_a_command(checkout, command):
    done = python(checkout, "-m", "rope_array", *command.split())
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
@pytest.mark.nightly
def test_conforms(checkout):
    assert " 0 failed" in output(checkout, "-m", "rope_array", "check", "numpy")


# ---- the modules ----


def test_backends_are_imported_from_the_folder_next_to_the_package(checkout):
    script = "from rope_array._backends.numpy import native; print(native.__file__, native.__name__)"
    file, name = output(checkout, "-c", script).rsplit(None, 1)
    assert Path(file).resolve() == (checkout / "backends/numpy/native.py").resolve()
    assert name == "rope_array._backends.numpy.native"


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
    done = python(checkout, "-c", ROTATE)
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("ImportError: the backends of rope_array are missing: ")
    assert "python -m pip install" in last


# ---- what is said about the kernel and the version ----


def test_the_shadowed_kernel(checkout):
    printed = output(checkout, "-c", NATIVE)
    assert printed.startswith("False the C++ kernel is not built in ")
    assert str(checkout.resolve()) in printed
    assert "shadow the installed rope_array: run python -P, or from another folder" in printed


def test_the_kernel_of_a_checkout_that_is_not_installed(checkout):
    printed = uninstalled(checkout, NATIVE)
    wanted = f"False the C++ kernel is not built: run python -m pip install -e . in {checkout.resolve()}\n"
    assert printed == wanted


def test_a_kernel_that_does_not_load_gives_the_error(checkout):
    (checkout / "backends/_native/_kernel.py").write_text("raise ImportError('no symbol')", "utf-8")
    assert output(checkout, "-c", NATIVE) == "False the C++ kernel cannot be loaded (no symbol)\n"


@pytest.mark.parametrize(
    ("project", "version"), [("rope-array", "9.8+checkout"), ("another", "0+unknown"), (None, "0+unknown")]
)
def test_the_version(checkout, project, version):
    if project is not None:
        (checkout / "pyproject.toml").write_text(VERSION.format(name=project), "utf-8")
    assert uninstalled(checkout, "import rope_array; print(rope_array.__version__)") == f"{version}\n"


def test_another_projects_file_leaves_the_installed_version(checkout):
    script = "import rope_array; print(rope_array.__version__)"
    installed = output(checkout, "-P", "-c", script)
    (checkout / "pyproject.toml").write_text(VERSION.format(name="another"), "utf-8")
    assert output(checkout, "-c", script) == installed
