"""README.md: its programs print the output shown, and it names the two commands of a clone."""

import docs_blocks
import pytest

README = docs_blocks.DOCS.parent / "README.md"
PROGRAM = docs_blocks.program_of(README)


def test_the_first_example():
    first = docs_blocks.Program("README.md", "first", PROGRAM.blocks[:1])
    assert first.blocks[0][1]
    first.run()


@pytest.mark.library("numpy", "torch", "jax")
def test_the_blocks_run_in_order():
    assert PROGRAM.libraries == {"torch", "jax"}
    assert all(output for _, output in PROGRAM.blocks)
    PROGRAM.run()


def test_both_commands_are_named():
    text = README.read_text("utf-8")
    assert "python dev.py demo" in text
    assert "python dev.py test" in text
