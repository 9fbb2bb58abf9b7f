"""docs/roformer.md and its figures against the committed results, and against the paper's numbers."""

import functools
import json
import re
import statistics
import sys
from pathlib import Path

import pytest
import svg_files

sys.path.append(str(Path(__file__).parents[1] / "bench"))

from roformer import figures, pictures, report
from roformer.results import Results

pytestmark = pytest.mark.library("torch")

PAGE = report.PAGE.read_text("utf-8")
RECORD = report.newest()


def test_the_numbers_of_the_page_are_the_results():
    assert report.fill(PAGE, RECORD) == PAGE, "run `python dev.py test -s roformer -- report`"
    assert sorted(block[1] for block in report.BLOCK.findall(PAGE)) == sorted(report.BLOCKS)


def rows_of(block):
    """Return the cells of a table on the page, by the first cell of each row."""
    text = PAGE.partition(f"<!-- roformer: {block} -->")[2].partition("<!-- /roformer")[0]
    lines = [line for line in text.splitlines() if line[:1] == "|"]
    cells = ([cell.strip() for cell in line.split("|")[1:-1]] for line in lines)
    return {first: others for first, *others in cells}


def means(experiment, *path):
    """Return the mean over seeds of each arm, straight from the JSON."""
    result = {}
    for arm, seeds in RECORD["numbers"][experiment].items():
        values = [functools.reduce(lambda part, key: part[key], path, numbers) for numbers in seeds.values()]
        result[arm] = None if None in values else statistics.fmean(values)
    return result


@pytest.mark.parametrize(
    ("block", "column", "experiment", "path", "scale"),
    [
        ("translation", 0, "translation", ("bleu",), 1),
        ("masked", 0, "masked", ("test", "loss"), 1),
        ("masked", 1, "masked", ("test", "accuracy"), 100),
        ("sentences", 1, "sentences", ("order", "accuracy"), 100),
        ("linear", 0, "linear", ("test", "loss"), 1),
        ("long", 3, "long", ("accuracy", "1024"), 100),
        ("lengths", 3, "lengths", ("loss", "512"), 1),
    ],
)
def test_a_table_shows_the_means_of_the_json(block, column, experiment, path, scale):
    rows = rows_of(block)
    for arm, mean in means(experiment, *path).items():
        cell = rows[arm][column].split(" ")[0]
        digits = len(cell.partition(".")[2])
        assert cell == ("–" if mean is None else f"{scale * mean:.{digits}f}")


def test_the_text_has_no_other_numbers_than_the_papers():
    text = report.BLOCK.sub("", PAGE)
    text = re.sub(r"```.*?```|`[^`]*`|\]\([^)]*\)", "", text, flags=re.DOTALL)
    paper = {float(each) for each in re.findall(r"\d+(?:\.\d+)?", json.dumps(report.PAPER))}
    example = {4.04, 0.02, 0.05}  # of the notation, and the level of significance
    text = re.sub(r"\d{4}\.\d{5}", "", text)  # arXiv
    numbers = {float(each) for each in re.findall(r"(?<![\w.])\d+\.\d+", text)}
    assert numbers
    assert numbers <= paper | example


def test_the_page_names_changes_of_the_code():
    assert "of all jobs" not in PAGE
    changed = RECORD | {"commit": "0123456789abcdef+", "of_other_origin": ["masked/rope/0", "long/rope/0"]}
    text = report.fill("<!-- roformer: origin -->\n<!-- /roformer -->", changed)
    assert "commit 0123456789+." in text
    assert "2 of all jobs" in text


def test_the_figures_are_drawn_from_the_results(tmp_path):
    drawn = [*figures.draw_mathematics(tmp_path), *pictures.draw(Results(RECORD), tmp_path)]
    assert {path.name for path in drawn} == {path.name for path in report.PICTURES.glob("*.svg")}
    for path in drawn:
        svg_files.assert_same_drawing(path, report.PICTURES / path.name)
