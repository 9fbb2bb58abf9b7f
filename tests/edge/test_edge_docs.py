"""The programs of the documentation that need exporters and their runtimes, collected only with `--edge`."""

import docs_blocks
import pytest

PROGRAMS = docs_blocks.programs(edge=True)


@pytest.mark.library("torch")
@pytest.mark.filterwarnings("default")  # allow the warnings of exporters and of transformers
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.id)
def test_programs_run_and_print_the_output_shown(program):
    program.run()


def test_every_page_has_programs():
    assert {program.page for program in PROGRAMS} == docs_blocks.EDGE
