"""The built wheel, installed without extras: its files, its metadata, and calls that need nothing more."""

import re
import zipfile
from email.parser import Parser
from pathlib import Path

import child
import pytest

from rope_array.testing._libraries import DEFAULT_CONFIGURATIONS

ROOT = Path(__file__).resolve().parents[1]
OPTIONAL = [
    *(lib.module.partition(".")[0] for lib in DEFAULT_CONFIGURATIONS if lib.name != "numpy"),
    *("jaxlib", "ml_dtypes", "transformers", "triton", "matplotlib", "mpmath", "hypothesis", "pytest"),
]
CHECKOUT = ("_backends", "_backends.py")  # a developer's link, and the import of the folder `backends`
BLOCK = f"""
import sys
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {OPTIONAL!r}:
            raise ImportError(name + " is blocked")
sys.meta_path.insert(0, Block())
"""


@pytest.fixture(scope="module")
def wheel(request):
    return zipfile.ZipFile(request.config.getoption("--wheel"))


@pytest.fixture(scope="module")
def metadata(wheel):
    (name,) = [name for name in wheel.namelist() if name.endswith(".dist-info/METADATA")]
    return Parser().parsestr(wheel.read(name).decode())


def python(code):
    """Run `code` in a Python that sees site-packages only, with every optional library blocked."""
    done = child.python("-I", "-W", "error", "-c", BLOCK + code)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def sources(folder):
    """List the Python sources and their data, without C++ and without the parts for a checkout."""
    files = [path.relative_to(folder) for path in folder.rglob("*") if path.is_file()]
    files = [f for f in files if f.suffix not in {".cpp", ".hpp", ".so", ".pyd"}]
    return {f.as_posix() for f in files if "__pycache__" not in f.parts and f.parts[0] not in CHECKOUT}


@pytest.fixture(scope="module")
def for_any_machine(request):
    return Path(request.config.getoption("--wheel")).name.endswith("-py3-none-any.whl")


@pytest.fixture(scope="module")
def kernels(wheel):
    pattern = r"rope_array/_backends/_native/_kernel(\.[\w-]+)?\.(so|pyd)"
    return {name for name in wheel.namelist() if re.fullmatch(pattern, name)}


def test_holds_the_sources_the_licence_one_kernel_and_nothing_else(wheel, kernels, for_any_machine):
    names = wheel.namelist()
    expected = {f"rope_array/{name}" for name in sources(ROOT / "rope_array")}
    expected |= {f"rope_array/_backends/{name}" for name in sources(ROOT / "backends")}
    assert {"rope_array/py.typed", "rope_array/_backends/mlx/__init__.py"} <= expected
    assert {name for name in names if ".dist-info/" not in name and name[-1] != "/"} - kernels == expected
    bills = {name for name in names if "/sboms/" in name}  # of what is compiled into the kernel
    assert len(kernels) == len(bills) == (0 if for_any_machine else 1)
    (licence,) = [name for name in names if name.endswith(".dist-info/licenses/LICENSE")]
    assert wheel.read(licence).decode() == (ROOT / "LICENSE").read_text("utf-8")


def test_requires_numpy_and_array_api_compat_alone_and_pins_no_extra(metadata):
    requirements = metadata.get_all("Requires-Dist")
    required = {re.match(r"[\w-]+", line).group() for line in requirements if "extra ==" not in line}
    assert required == {"numpy", "array-api-compat"}
    assert not [line for line in requirements if "==" in line.partition(";")[0]]
    extras = {"torch", "jax", "cupy", "dask", "hf", "gguf", "plot", "all"}
    assert set(metadata.get_all("Provides-Extra")) == extras


def test_works_with_no_optional_library(metadata):
    """From site-packages, at the version of the metadata; `backends` is no top-level package."""
    code = """
import numpy as np, rope_array as ra
print(ra.apply(np.ones((4, 8)), range(4)).shape, ra.__version__, ra.__file__, sep="|")
"""
    shape, version, path = python(code).split("|")
    assert (shape, version) == ("(4, 8)", metadata["Version"])
    assert "site-packages" in Path(path).parts
    for name in ("backends", "ml_dtypes.something"):  # the latter is blocked
        with pytest.raises(AssertionError, match=r"No module named 'backends'|ml_dtypes is blocked"):
            python(f"import {name}")


def test_the_kernel_is_imported_where_there_is_one(kernels, for_any_machine):
    code = "import pathlib, rope_array._backends._native._kernel as k; print(pathlib.Path(k.__file__).name)"
    if for_any_machine:
        with pytest.raises(AssertionError, match=r"No module named .*_kernel"):
            python(code)
    else:
        assert {f"rope_array/_backends/_native/{python(code)}"} == kernels
