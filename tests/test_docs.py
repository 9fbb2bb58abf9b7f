"""The documentation: its Python programs run, on the libraries that they import, and print the output shown.

Examples for NumPy with prompts (`>>>`) run in the session `docs`; programs that need transformers or Flax in
tests/test_hf_docs.py. The pages on the conformance suite have every option, check and factor, and no other.
"""

import argparse
import re
import runpy
import tomllib

import child
import docs_blocks
import pytest

from rope_array._command._check import add_check
from rope_array.testing import plugin, run_checks
from rope_array.testing._checks import checks
from rope_array.testing._claims import CAPABILITIES
from rope_array.testing._factors import FACTORS
from rope_array.testing._parts import PART_NAMES

OTHERS = {"flax", "transformers"}  # packages of the session `models`
PROGRAMS = [program for program in docs_blocks.programs() if not program.imports & OTHERS]
PYPROJECT = tomllib.loads((docs_blocks.DOCS.parent / "pyproject.toml").read_text("utf-8"))


def case(program):
    slow = [pytest.mark.slow] if any("torch.compile" in code for code, _ in program.blocks) else []
    return pytest.param(program, id=program.id, marks=[pytest.mark.library(*program.libraries), *slow])


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")  # PyTorch's compiler uses it itself
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
        (program,) = (p for p in docs_blocks.programs() if p.id == "in-my-model/jax.md: Sharding")
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
CHECKS = {name for check in checks() for name in (check.name, check.name.partition("[")[0])}


@pytest.fixture(scope="module")
def reference():
    """The reference, with the rows of its tables in place of their directives."""
    tables = runpy.run_path(str(docs_blocks.DOCS / "_suite.py"))["TABLES"]

    def table(directive):
        return "\n".join(f"| {' | '.join(row)} |" for row in tables[directive[1]]())

    page = (docs_blocks.DOCS / "conformance-reference.md").read_text("utf-8")
    return re.sub(r"^```\{suite-table\} (\w+)\n```$", table, page, flags=re.MULTILINE)


def rows_of(page, cells):
    """Return the rows of a page's tables with this number of cells."""
    rows = (line[2:-2].split(" | ") for line in page.splitlines() if line.startswith("| "))
    return [[cell.replace("\\|", "|") for cell in row] for row in rows if len(row) == cells]


def test_the_reference_has_every_option_of_the_command_and_of_the_plugin(reference):
    commands = argparse.ArgumentParser().add_subparsers()
    add_check(commands)
    options = re.findall(r"^  (?:-h, )?(--[\w-]+)", commands.choices["check"].format_help(), re.MULTILINE)
    named = {name for row in rows_of(reference, 2) for name in re.findall(r"^`.*?(--[\w-]+)", row[0])}
    assert len(options) > 15
    assert set(options) - named == set()
    assert set(re.findall(r"`--rope-([\w-]+)", reference)) == {"backend", *plugin._OPTIONS}


def test_the_reference_has_every_field_of_the_json(reference):
    report = run_checks("numpy", cases=["base=500.0"])
    named = " ".join(row[0] for row in rows_of(reference, 2))
    assert [field for field in report.as_dict() if f"`{field}`" not in named] == []
    of_a_result = re.search(r"^A result has .*?\n\n", reference, re.MULTILINE | re.DOTALL)[0]
    assert [field for field in vars(report.results[0]) if f"`{field}`" not in of_a_result] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_name_of_a_check_exists(page):
    text = page.read_text("utf-8")
    assert [name for name in named_checks(text) if name not in CHECKS] == []
    if page.name in SUITE_PAGES:
        known = {*CHECKS, *CAPABILITIES, *FACTORS, *PART_NAMES, *OTHER_NAMES}
        assert [name for name in re.findall(r"`([a-z]\w*_\w+(?:\[\w+\])?)`", text) if name not in known] == []


def named_checks(text):
    """Return the names of checks in options, in text, in reports, and in the scoreboard's lists."""
    names = re.findall(r"--(?:rope-)?only [\"']?([a-z][\w,\[\]]+)", text)
    names += re.findall(r"--(?:rope-)?expect [\"']?([a-z][\w\[\]]+)=", text)
    names += re.findall(r"`(accuracy_\w+(?:\[\w+\])?)`", text)
    names += re.findall(r"\bcheck `(\w+)`", text)
    names += re.findall(r"^ +so too: +((?:[\w\[\]]+,\s+)*\w[\w\[\]]*)", text, re.MULTILINE)
    _, _, failed = text.partition("\n## Failed checks\n")
    for listed in re.findall(r"^\* (`\w+`.*?): ", failed, re.MULTILINE):
        names += re.findall(r"`(\w+)`", listed)
    return [name for some in names for name in re.split(r",\s*", some)]
