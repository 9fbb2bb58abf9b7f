"""The README's Python blocks run in order on every library; the first prints the README's output."""

import re
from pathlib import Path

import numpy as np

from rope_array.testing import check_backend

README = Path(__file__).resolve().parent.parent / "README.md"


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```$", README.read_text("utf-8"), re.MULTILINE | re.DOTALL)


def test_the_first_example_prints_the_output_in_the_readme(capsys):
    exec(blocks("python")[0], {})
    assert capsys.readouterr().out.strip() == blocks("text")[0].strip()


def test_examples_run_on_every_library(lib):
    """Run all blocks but the last in one namespace; blocks after the first use the library's arrays."""
    names = {"own": lambda shape: lib.asarray(np.ones(shape, np.float32))}
    first, *others, _ = blocks("python")
    exec(first, names)
    for block in others:
        exec(re.sub(r"np\.ones\((\([^)]*\)), np\.float32\)", r"own(\1)", block), names)
    assert type(names["x"]) is type(names["z"]) is type(names["q"]) is type(names["y"])
    assert type(names["q"]) is type(names["own"]((1,)))


def test_examples_run_unchanged():
    names = {}
    for block in blocks("python"):
        exec(block, names)


def test_the_readme_s_own_embedding_conforms():
    names = {}
    exec(blocks("python")[-1], names)
    report = check_backend(names["rotate"])
    assert len(report.of("passed")) > 60


def test_readme_names_both_commands():
    assert "python dev.py demo" in README.read_text("utf-8")
    assert "python dev.py test" in README.read_text("utf-8")
