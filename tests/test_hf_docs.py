"""The programs of the documentation that need transformers or Flax, collected only with `--models`."""

import re
import shlex

import child
import docs_blocks
import pytest
from transformers.models.llama import modeling_llama

PROGRAMS = [program for program in docs_blocks.programs() if program.imports & {"flax", "transformers"}]


@pytest.mark.filterwarnings("default")  # allow the warnings of transformers and Flax
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.id)
def test_programs_run_and_print_the_output_shown(program, monkeypatch):
    # Undo a program's replacement of a function of transformers.
    monkeypatch.setattr(modeling_llama, "apply_rotary_pos_emb", modeling_llama.apply_rotary_pos_emb)
    program.run()


@pytest.mark.nightly
def test_the_wrapper_of_a_function_of_tables_has_the_claims_shown(tmp_path):
    page = (docs_blocks.DOCS / "conformance-claims.md").read_text("utf-8")
    (module,) = re.findall(r"^```python\n# llama\.py\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    (shown,) = re.findall(r"^python (.*?check llama:rotate(?:.*\\\n)*.*)$", page, re.MULTILINE)
    (tmp_path / "llama.py").write_text(module, "utf-8")
    arguments = shlex.split(shown.replace("\\\n", ""))
    # Two calls; the checks of all claims take long.
    cases = ["--case", "width=64", "--case", "in_tuple=True dtype=bfloat16 rows=1,2,3"]
    done = child.python(*arguments, *cases, cwd=tmp_path)
    assert done.stdout.startswith("PASSED: 1 of 1"), done.stdout + done.stderr


def test_there_are_programs_of_both():
    assert {"flax", "transformers"} <= {name for program in PROGRAMS for name in program.imports}
