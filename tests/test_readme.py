"""README.md: its example prints the output shown."""

import docs_blocks
import pytest

README = docs_blocks.DOCS.parent / "README.md"
TEXT = README.read_text("utf-8")
PROGRAM = docs_blocks.program_of("README.md", "page", TEXT)


@pytest.mark.library("numpy")
def test_the_example_prints_the_output_shown():
    ((_, output),) = PROGRAM.blocks
    assert output
    PROGRAM.run()
