"""The programs of the documentation that need transformers or Flax, collected only with `--models`."""

import docs_blocks
import pytest

PROGRAMS = [program for program in docs_blocks.programs() if program.imports & {"flax", "transformers"}]


@pytest.fixture(autouse=True)
def _functions_of_llama(monkeypatch):
    """Undo a program's replacement of a function of transformers."""
    from transformers.models.llama import modeling_llama

    monkeypatch.setattr(modeling_llama, "apply_rotary_pos_emb", modeling_llama.apply_rotary_pos_emb)


@pytest.mark.filterwarnings("default")  # allow the warnings of transformers and Flax
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.id)
def test_programs_run_and_print_the_output_shown(program):
    program.run()


def test_there_are_programs_of_both():
    assert {"flax", "transformers"} <= {name for program in PROGRAMS for name in program.imports}
