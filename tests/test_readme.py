"""The README's Python blocks run, one after the other, on every library; the first prints what it says."""

import re
from pathlib import Path

import numpy as np
import pytest

README = Path(__file__).resolve().parent.parent / "README.md"


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```$", README.read_text("utf-8"), re.MULTILINE | re.DOTALL)


def test_first_example_prints_what_the_readme_says(capsys):
    exec(blocks("python")[0], {})
    assert capsys.readouterr().out.strip() == blocks("text")[0].strip()


@pytest.mark.parametrize("block", range(1, 3))
def test_examples_run_on_every_library(lib, block):
    import rope_array as ra

    x = lib.asarray(np.random.default_rng(0).standard_normal((2, 6, 6, 128)).astype(np.float32))
    names = {"ra": ra, "x": x, "q": x, "k": x[:, :6, :, :], "pos": range(6)}
    exec(blocks("python")[block], names)
    assert type(names["x"]) is type(names["q"]) is type(names["y"]) is type(x)


def test_readme_names_both_commands():
    assert "python dev.py demo" in README.read_text("utf-8")
    assert "python dev.py test" in README.read_text("utf-8")
