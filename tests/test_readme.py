"""The README's Python blocks run, one after the other, on every library; the first prints what it says."""

import re
from pathlib import Path

import numpy as np

from rope_array.testing import check_backend

README = Path(__file__).resolve().parent.parent / "README.md"


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```$", README.read_text("utf-8"), re.MULTILINE | re.DOTALL)


def test_first_example_prints_what_the_readme_says(capsys):
    exec(blocks("python")[0], {})
    assert capsys.readouterr().out.strip() == blocks("text")[0].strip()


def test_examples_run_on_every_library(lib):
    """Pasted in order into one session; the array of the second block is the library's own."""
    names = {"own": lib.asarray(np.ones((1, 2, 3, 64), np.float32))}
    first, second, third, _ = blocks("python")
    written = "np.ones((1, 2, 3, 64), np.float32)"
    assert written in second
    for block in (first, second.replace(written, "own"), third):
        exec(block, names)
    assert type(names["x"]) is type(names["z"]) is type(names["q"]) is type(names["own"])


def test_examples_run_as_they_are():
    names = {}
    for block in blocks("python"):
        exec(block, names)


def test_the_embedding_of_a_stranger_conforms():
    names = {}
    exec(blocks("python")[-1], names)
    report = check_backend(names["rotate"])
    assert len(report.of("passed")) > 60


def test_readme_names_both_commands():
    assert "python dev.py demo" in README.read_text("utf-8")
    assert "python dev.py test" in README.read_text("utf-8")
