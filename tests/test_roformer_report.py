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
from roformer.experiments import EXPERIMENTS, masked
from roformer.results import Results

pytestmark = pytest.mark.library("torch")

PAGE = report.PAGE.read_text("utf-8")
RECORD = report.newest()


def test_the_numbers_of_the_page_are_the_results():
    assert report.fill(PAGE, RECORD) == PAGE, "run `python dev.py test -s roformer -- report`"


def test_every_block_is_on_the_page_once():
    assert sorted(found[1] for found in report.BLOCK.findall(PAGE)) == sorted(report.BLOCKS)


def rows_of(block):
    """Return the cells of a table on the page, by the first cell of each row."""
    (text,) = [
        found[0] for found in re.findall(rf"(<!-- roformer: {block} -->.*?<!-- /)(roformer)", PAGE, re.DOTALL)
    ]
    cells = (
        [cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line[:1] == "|"
    )
    return {first: others for first, *others in cells}


def means(experiment, *path):
    """Return the mean over seeds of each arm, straight from the JSON."""
    found = {}
    for arm, seeds in RECORD["numbers"][experiment].items():
        values = [functools.reduce(lambda part, key: part[key], path, result) for result in seeds.values()]
        found[arm] = None if None in values else statistics.fmean(values)
    return found


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
        cell = rows[arm][column]
        digits = len(cell.split(" ")[0].partition(".")[2])
        assert cell.split(" ")[0] == ("–" if mean is None else f"{scale * mean:.{digits}f}")


def test_each_comparison_has_the_direction_of_the_means():
    losses, rows = means("masked", "test", "loss"), rows_of("masked")
    for arm, loss in losses.items():
        word = rows[arm][-1].split(",")[0]
        assert word != "RoPE better" or losses["rope"] < loss
        assert word != "RoPE worse" or losses["rope"] > loss
    assert {rows[arm][-1].split(",")[0] for arm in losses} & {"RoPE better", "RoPE worse"}


def test_the_text_has_no_other_numbers_than_the_papers():
    text = report.BLOCK.sub("", PAGE)
    text = re.sub(r"```.*?```|`[^`]*`|\]\([^)]*\)", "", text, flags=re.DOTALL)
    paper = {float(each) for each in re.findall(r"\d+(?:\.\d+)?", json.dumps(report.PAPER))}
    arxiv = re.compile(r"\d{4}\.\d{5}")
    example = {4.04, 0.02, 0.05}  # of the notation, and the level of significance
    numbers = {float(each) for each in re.findall(r"(?<![\w.])\d+\.\d+", arxiv.sub("", text))}
    assert numbers
    assert numbers <= paper | example


def test_a_changed_result_changes_the_page():
    changed = json.loads(json.dumps(RECORD))
    for seeds in changed["numbers"]["masked"].values():
        for result in seeds.values():
            result["test"]["loss"] += 1.0
    assert report.fill(PAGE, changed) != PAGE


def test_the_page_tells_changes_of_the_code():
    assert "of all jobs" not in PAGE
    changed = RECORD | {"commit": "0123456789abcdef+", "of_other_origin": ["masked/rope/0", "long/rope/0"]}
    page = report.fill(PAGE, changed)
    assert "commit 0123456789+." in page
    assert "2 of all jobs ran with other code, packages or data than this commit's." in page


def test_the_figures_are_drawn_from_the_results(tmp_path):
    drawn = [*figures.draw_mathematics(tmp_path), *pictures.draw(Results(RECORD), tmp_path)]
    assert {path.name for path in drawn} == {path.name for path in report.PICTURES.glob("*.svg")}
    for path in drawn:
        svg_files.assert_same_drawing(path, report.PICTURES / path.name)


def test_the_results_are_complete():
    assert set(RECORD["numbers"]) == set(EXPERIMENTS)
    results = Results(RECORD)
    assert results.num_seeds >= 5
    for experiment in EXPERIMENTS:
        for arm in results.arms(experiment):
            assert len(RECORD["numbers"][experiment][arm]) == results.num_seeds
    assert tuple(results.arms("masked")) == masked.ARMS
