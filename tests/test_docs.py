"""The documentation: its Python programs run, on the libraries that they import, and print the output shown.

Examples for NumPy with prompts (`>>>`) run in the session `docs`; programs that need transformers or Flax in
tests/test_hf_docs.py.
"""

import re
import tomllib
from urllib.parse import unquote

import docs_blocks
import pytest

OTHERS = {"flax", "transformers"}  # packages of the session `models`
PROGRAMS = [program for program in docs_blocks.programs() if not program.imports & OTHERS]
PAGES = sorted(docs_blocks.DOCS.rglob("*.md"))
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


def case(program):
    marks = [pytest.mark.library(*program.libraries)]
    if any("torch.compile" in code for code, _ in program.blocks):
        marks.append(pytest.mark.slow)
    return pytest.param(program, id=program.id, marks=marks)


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")  # PyTorch's compiler uses it itself
@pytest.mark.parametrize("program", [case(program) for program in PROGRAMS])
def test_programs_run_and_print_the_output_shown(program):
    program.run()


def test_each_library_has_a_program():
    found = {library for program in PROGRAMS for library in program.libraries}
    assert found == docs_blocks.LIBRARIES


def test_a_block_with_another_output_fails():
    program = docs_blocks.Program("page", "section", (("print(1)\n", "2\n"),))
    with pytest.raises(AssertionError):
        program.run()
