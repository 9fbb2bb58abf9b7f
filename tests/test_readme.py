"""README.md: its programs print the output shown, its numbers of checks hold, it names the two commands."""

import re

import docs_blocks
import pytest

from rope_array.testing._checks import checks
from rope_array.testing._judge import Judge
from rope_array.testing._names import resolve

README = docs_blocks.DOCS.parent / "README.md"
PROGRAM = docs_blocks.program_of(README)


def test_the_first_example():
    docs_blocks.Program("README.md", "first", PROGRAM.blocks[:1]).run()


@pytest.mark.library("numpy", "torch", "jax")
def test_the_blocks_run_in_order():
    assert PROGRAM.libraries == {"torch", "jax"}
    assert all(output for _, output in PROGRAM.blocks)
    PROGRAM.run()


def test_both_commands_are_named():
    text = README.read_text("utf-8")
    assert "python dev.py demo" in text
    assert "python dev.py test" in text


# Rows of the table of libraries.
NAMES = {"numpy": "NumPy, with ml_dtypes", "torch": "PyTorch, CPU", "jax": "JAX, CPU"}
NAMES |= {"dask": "dask", "array_api_strict": "array-api-strict"}


def test_the_numbers_of_checks(lib):
    """Those that apply to a target; tests/test_conformance.py shows that they pass."""
    text = README.read_text("utf-8")
    (every,) = re.findall(r"runs the (\d+) checks of the suite", text)
    assert int(every) == len(checks())
    if lib.name == "numpy":
        pytest.importorskip("ml_dtypes")
    (row,) = re.findall(rf"^\| {NAMES[lib.name]} \|.*$", text, re.MULTILINE)
    judge = Judge(resolve(lib.name))
    passed = int(row.split("|")[3])
    assert passed == sum(check.inapplicable(judge) is None for check in checks())
