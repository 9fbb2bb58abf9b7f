"""A library declares itself once, as a class of `testing/_libraries`; pages and requirements agree."""

import re
import tomllib
from pathlib import Path

import numpy as np
import pytest

from rope_array import _registry
from rope_array.testing import _libraries
from rope_array.testing._libraries import DEFAULT_CONFIGURATIONS, ArrayLibrary

ROOT = Path(__file__).parents[1]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
LIBRARIES = (ROOT / "docs" / "libraries.md").read_text("utf-8")
EACH_LIBRARY = pytest.mark.parametrize("library", DEFAULT_CONFIGURATIONS, ids=str)


@pytest.mark.library("numpy")
def test_the_library_of_each_backend_is_known():
    packages = {lib.module.partition(".")[0] for lib in DEFAULT_CONFIGURATIONS}
    assert {re.match(r"\w+", record.types[0])[0] for record in _registry.RECORDS} <= packages


def test_a_backend_of_the_library_serves_its_arrays(lib):
    package = lib.module.partition(".")[0]
    names = {record.name for record in _registry.RECORDS if re.match(r"\w+", record.types[0])[0] == package}
    backends = _registry.backends_of(type(lib.asarray(np.zeros(2), "float32"))).in_order
    assert not names or names & {backend.name for backend in backends}, "a record has another type of array"


def subclasses(cls):
    return {cls, *(below for each in cls.__subclasses__() for below in subclasses(each))}


@pytest.mark.library("numpy")
def test_each_class_of_a_library_is_listed():
    classes = {
        cls for cls in subclasses(ArrayLibrary) if cls.name and cls.__module__.startswith(_libraries.__name__)
    }
    assert classes == {type(lib) for lib in _libraries.LIBRARIES.values()}


@EACH_LIBRARY
@pytest.mark.library("numpy")
def test_the_package_is_installed_by_its_session(library):
    name = "chunks" if library.name == "cubed" else library.session
    specs = [
        *PYPROJECT["project"]["dependencies"],
        *PYPROJECT["project"]["optional-dependencies"].get(name, []),
        *PYPROJECT["dependency-groups"].get(name, []),
    ]
    assert library.package in {re.match(r"[\w.-]+", spec)[0] for spec in specs}


@EACH_LIBRARY
@pytest.mark.library("numpy")
def test_the_page_of_libraries_has_a_section_on_it(library):
    sections = re.findall(r"^## (.*)$", LIBRARIES, re.MULTILINE)
    assert any(library.title in re.split(r", | and ", section) for section in sections)
