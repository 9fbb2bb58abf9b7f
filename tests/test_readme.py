"""README.md: its example prints the output shown, and its numbers of checks hold."""

import re

import docs_blocks
import pytest

from rope_array.testing._checks import checks
from rope_array.testing._find_target import resolve
from rope_array.testing._judge import Judge
from rope_array.testing._libraries import DEFAULT_CONFIGURATIONS

README = docs_blocks.DOCS.parent / "README.md"
TEXT = README.read_text("utf-8")
PROGRAM = docs_blocks.program_of("README.md", "page", TEXT)


@pytest.mark.library("numpy")
def test_the_example_prints_the_output_shown():
    ((_, output),) = PROGRAM.blocks
    assert output
    PROGRAM.run()


# Rows of the table of libraries, by the names of their targets.
ROWS = {lib.name: lib for lib in DEFAULT_CONFIGURATIONS if f"\n| {lib.title} |" in TEXT}


def case(lib):
    return pytest.param(lib.name, marks=pytest.mark.library(lib.label))


@pytest.mark.parametrize("name", [*map(case, ROWS.values())])
def test_the_numbers_of_checks(name):
    """The page counts the checks that apply to a target; tests/test_conformance.py shows that they pass."""
    (every,) = re.findall(r"runs the (\d+) checks of the suite", TEXT)
    assert int(every) == len(checks())
    if name == "numpy":
        pytest.importorskip("ml_dtypes")
    (row,) = re.findall(rf"^\| {ROWS[name].title} \|.*$", TEXT, re.MULTILINE)
    judge = Judge(resolve(name))
    passed = int(row.split("|")[3])
    assert passed == sum(check.inapplicable(judge) is None for check in checks())
