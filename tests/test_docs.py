"""The documentation: its Python programs run, on the libraries that they import, and print the output shown.

Examples for NumPy with prompts (`>>>`) run in the session `docs`; programs that need transformers or Flax in
tests/test_hf_docs.py.
"""

import re
import tomllib

import child
import docs_blocks
import pytest

OTHERS = {"flax", "transformers"}  # packages of the session `models`
PROGRAMS = [program for program in docs_blocks.programs() if not program.imports & OTHERS]
PYPROJECT = tomllib.loads((docs_blocks.DOCS.parent / "pyproject.toml").read_text("utf-8"))


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


@pytest.mark.library("jax")
def test_a_sharded_rotation_needs_no_communication_on_eight_devices():
    child.run(
        """
        import docs_blocks
        import jax

        assert jax.device_count() == 8
        (program,) = (p for p in docs_blocks.programs() if p.id == "in-my-model/jax.md: Sharding")
        program.run()
        """,
        XLA_FLAGS="--xla_force_host_platform_device_count=8",
        JAX_PLATFORMS="cpu",
    )


def test_a_block_with_another_output_fails():
    program = docs_blocks.Program("page", "section", (("print(1)\n", "2\n"),))
    with pytest.raises(AssertionError):
        program.run()


def test_the_page_on_installing_lists_every_extra():
    page = (docs_blocks.DOCS / "install.md").read_text("utf-8")
    listed = re.findall(r"^\| `python -m pip install \"\.\[(\w+)\]\"`", page, re.MULTILINE)
    assert listed == list(PYPROJECT["project"]["optional-dependencies"])
