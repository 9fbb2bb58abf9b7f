"""A library that another package adapts is a target by its name, and holds arrays of other code."""

import re
import sys
from importlib import import_module

import fake_package
import numpy as np
import pytest

import rope_array as ra
from rope_array.testing import _compilers, run_checks

# A library of arrays that hold NumPy's, and a backend that adapts it.
TINY = """
import types
import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin
from rope_array.backend_tools import Library, rotate_by_array_api

def inner(value):
    many = isinstance(value, (list, tuple))
    return type(value)(map(inner, value)) if many else getattr(value, "held", value)

class Array(NDArrayOperatorsMixin):
    def __init__(self, values):
        self.held = np.asarray(values)
    dtype, shape, ndim = (property(lambda self, name=name: getattr(self.held, name))
                          for name in ("dtype", "shape", "ndim"))
    def __array_ufunc__(self, ufunc, method, *inputs, **options):
        return Array(getattr(ufunc, method)(*inner(inputs), **options))
    def __getitem__(self, index):
        return Array(self.held[inner(index)])
    def numpy(self):
        return self.held

def function(of_numpy):
    return lambda *arguments, **options: Array(of_numpy(*inner(arguments), **inner_options(options)))

def inner_options(options):
    return {name: inner(value) for name, value in options.items()}

DTYPES = "int32 int64 uint32 float32 float64".split()
NAMES = "arange asarray astype concat cos floor full log2 permute_dims reshape round sin take"
NAMES += " where zeros_like"
XP = types.SimpleNamespace(**{name: function(getattr(np, name)) for name in NAMES.split()},
                           **{name: getattr(np, name) for name in DTYPES})

class Tiny(Library):
    def is_array(self, value):
        return isinstance(value, Array)
    def has_int64(self, x):
        return True

LIBRARY = Tiny("tiny", XP, implicit_device=True)
name, is_array_api, rotate = "tiny", True, rotate_by_array_api
RECORD = ("tiny", ("tiny:Array",), "tiny")

def library(x):
    return LIBRARY

def backwards(x, pos):
    import rope_array as ra
    return ra.apply(x, -pos)
"""


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Return a function that installs the package, with a change of its text."""

    def install(before="", after=""):
        fake_package.install(tmp_path, "tiny", re.sub(before, after, TINY))
        monkeypatch.syspath_prepend(tmp_path)
        fake_package.forget_records(monkeypatch)
        _compilers._of_other_package.cache_clear()

    yield install
    sys.modules.pop("tiny", None)


CHECKS = ("definition", "kind", "combinations", "accuracy_int32", "pairing", "positions_of_python", "tuples")


def test_a_library_is_judged_by_its_name(install):
    install()
    report = run_checks("tiny", only=CHECKS)
    assert report.ok, report.of("failed")
    assert {"definition", "combinations", "accuracy_int32[float32]"} <= {r.name for r in report.of("passed")}
    assert report.served == {"tiny": report.served["tiny"]}
    assert "bfloat16" in report.target.declines


def test_a_backend_of_known_arrays_is_judged_with_their_library(install):
    install("tiny:Array", "numpy:ndarray")
    with pytest.raises(ValueError, match="judge it by numpy --backend tiny"):
        run_checks("tiny")


def test_other_code_takes_its_arrays(install):
    install()
    report = run_checks("tiny:backwards", library="tiny", only=["definition", "direction"])
    assert {result.name for result in report.of("failed")} == {"definition", "direction"}


def test_a_fault_of_the_library_is_found(install):
    swapped = "(lambda a, b, c: np.where(a, c, b)) if name == 'where' else getattr(np, name))"
    install(r"getattr\(np, name\)\)", swapped)
    assert not run_checks("tiny", only=["definition"]).ok


def test_an_incomplete_library_is_refused_with_all_that_is_missing(install):
    install("NAMES = .*\nNAMES .*", 'NAMES = "arange asarray astype concat cos full reshape sin zeros_like"')
    with pytest.raises(ra.ArrayTypeError, match="It lacks permute_dims, round, take, where: add them to xp"):
        ra.apply(import_module("tiny").Array(np.ones((2, 4), np.float32)), 0)


def test_the_override_for_positions_of_numpy_is_named(install):
    install()
    x = import_module("tiny").Array(np.ones((2, 4), np.float32))
    with pytest.raises(ra.ArrayTypeError, match="takes_numpy=True"):
        ra.apply(x, np.arange(2))
