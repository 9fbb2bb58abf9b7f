"""The documentation: its Python programs run, on the libraries that they import, and print the output shown.

Examples for NumPy with prompts (`>>>`) run in the session `docs`; programs that need transformers or Flax in
tests/test_hf_docs.py. The pages on the conformance suite name checks, options and fields that exist; their
tables are made from the code.
"""

import re
import tomllib

import child
import docs_blocks
import pytest

from rope_array.testing import plugin, run_checks
from rope_array.testing._capability_parts import PART_NAMES
from rope_array.testing._checks import checks
from rope_array.testing._claims import CAPABILITIES
from rope_array.testing._factors import FACTORS

OTHERS = {"flax", "transformers"}  # packages of the session `models`
PROGRAMS = [program for program in docs_blocks.programs() if not program.imports & OTHERS]
PYPROJECT = tomllib.loads((docs_blocks.DOCS.parent / "pyproject.toml").read_text("utf-8"))


def case(program):
    slow = [pytest.mark.slow] if any("torch.compile" in code for code, _ in program.blocks) else []
    return pytest.param(program, id=program.id, marks=[pytest.mark.library(*program.libraries), *slow])


@pytest.mark.parametrize("program", [*map(case, PROGRAMS)])
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
        (program,) = (p for p in docs_blocks.programs() if p.id == "distributed.md: JAX")
        program.run()
        """,
        XLA_FLAGS="--xla_force_host_platform_device_count=8",
        JAX_PLATFORMS="cpu",
    )


def test_the_page_on_installing_lists_every_extra():
    page = (docs_blocks.DOCS / "install.md").read_text("utf-8")
    listed = re.findall(r"^\| `python -m pip install \"\.\[(\w+)\]\"`", page, re.MULTILINE)
    assert listed == list(PYPROJECT["project"]["optional-dependencies"])


# ---- the pages on the conformance suite ----

PAGES = [*sorted(docs_blocks.DOCS.rglob("*.md")), docs_blocks.DOCS.parent / "README.md"]
# Pages on which a name with an underscore is one of the suite, or one of these.
SUITE_PAGES = ("conformance.md", "conformance-claims.md", "conformance-reference.md", "scoreboard.md")
OTHER_NAMES = {
    "aot_eager", "check_backend", "decline_reason", "freqs_cis", "half_of_it", "position_ids", "rope_array",
    "run_checks", "static_argnames",
}  # fmt: skip
REFERENCE = (docs_blocks.DOCS / "conformance-reference.md").read_text("utf-8")
CHECKS = {name for check in checks() for name in (check.name, check.name.partition("[")[0])}


def test_the_reference_has_every_option_of_the_plugin():
    """Those of the command are a table, made of its own help."""
    assert set(re.findall(r"`--rope-([\w-]+)", REFERENCE)) == {"backend", *plugin.OPTIONS}


def test_the_reference_has_every_field_of_the_json():
    report = run_checks("numpy", cases=["base=500.0"])
    named = " ".join(re.findall(r"^\| (.*?) \|", REFERENCE, re.MULTILINE))  # the first cells
    assert [field for field in report.as_dict() if f"`{field}`" not in named] == []
    of_a_result = re.search(r"^A result has .*?\n\n", REFERENCE, re.MULTILINE | re.DOTALL)[0]
    assert [field for field in vars(report.results[0]) if f"`{field}`" not in of_a_result] == []


# Options, and sentences, that name checks.
NAMING = (r"--(?:rope-)?only [\"']?([a-z][\w,\[\]]+)", r"--(?:rope-)?expect [\"']?([a-z][\w\[\]]+)=")
NAMING += (r"`(accuracy_\w+(?:\[\w+\])?)`", r"\bcheck `(\w+)`")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_name_of_a_check_exists(page):
    text = page.read_text("utf-8")
    named = {name for form in NAMING for names in re.findall(form, text) for name in names.split(",")}
    assert named - CHECKS == set()
    if page.name in SUITE_PAGES:
        known = {*CHECKS, *CAPABILITIES, *FACTORS, *PART_NAMES, *OTHER_NAMES}
        assert set(re.findall(r"`([a-z]\w*_\w+(?:\[\w+\])?)`", text)) - known == set()
