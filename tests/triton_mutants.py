"""Mutants of the Triton kernel and of its launches, of gpu_mutants.toml, and how they are installed."""

import contextlib
import importlib.util
import inspect
from typing import NamedTuple

from cuda_mutants import TABLE

import rope_array._backends.torch as backend_package
from rope_array._backends import _gpu
from rope_array._backends.torch import _triton_inputs, _triton_kernel, _triton_launch, _triton_traced, triton


class TritonMutant(NamedTuple):
    """A fault: text of a module replaced; a test of test_triton*.py or a call of triton_cases.py finds it."""

    module: object
    test: str
    old: str
    new: str

    @property
    def name(self):
        return f"{self.test}: {self.old}"


def _mutants(module, section):
    return [TritonMutant(module, test, *texts) for test, rows in TABLE[section].items() for texts in rows]


MUTANTS = [
    mutant
    for module in (_triton_kernel, _triton_launch, _gpu)
    for mutant in _mutants(module, module.__name__.rpartition(".")[2])
]
INPUT_MUTANTS = [
    *_mutants(_triton_kernel, "_triton_kernel.make_inputs"),
    *_mutants(_triton_inputs, "_triton_inputs"),
]
TRACED_MUTANTS = _mutants(_triton_traced, "_triton_traced")


@contextlib.contextmanager
def installed(mutant, monkeypatch, folder):
    """Use the sources with a fault."""
    text = inspect.getsource(mutant.module)
    assert text.count(mutant.old) >= 1, f"the source no longer has {mutant.old!r}"
    path = folder / "mutant.py"
    path.write_text(text.replace(mutant.old, mutant.new), "utf-8")
    spec = importlib.util.spec_from_file_location(mutant.module.__name__, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    with monkeypatch.context() as patch:
        if mutant.module is _triton_launch:
            patch.setattr(triton, "load_kernel", lambda: module)
        elif mutant.module is _triton_inputs:
            patch.setattr(backend_package, "_triton_inputs", module)
        elif mutant.module is _triton_traced:
            patch.setattr(backend_package, "_triton_traced", module)
        elif mutant.module is _gpu:
            patch.setattr(_triton_launch, "_gpu", module)
        else:
            patch.setattr(_triton_launch, "rotate_rows", module.rotate_rows)
            patch.setattr(_triton_inputs, "make_inputs", module.make_inputs)
        for launches in (_triton_launch._launches, _triton_inputs._launches):
            launches.clear()
        yield
    for launches in (_triton_launch._launches, _triton_inputs._launches):
        launches.clear()
