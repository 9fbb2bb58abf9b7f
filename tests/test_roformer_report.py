"""docs/roformer.md and its figures against the committed results, and against the paper's numbers."""

import json
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT / "bench"))

from roformer import figures, pictures, report
from roformer.experiments import EXPERIMENTS, masked
from roformer.results import Results

pytestmark = pytest.mark.library("torch")

PAGE = report.PAGE.read_text("utf-8")
RECORD = report.newest()


def test_the_numbers_of_the_page_are_the_results():
    assert report.fill(PAGE, RECORD) == PAGE, "run `python dev.py test -s roformer -- report`"


def test_every_block_is_on_the_page_once():
    assert sorted(report.BLOCK.findall(PAGE), key=str) == sorted(report.BLOCK.findall(PAGE), key=str)
    assert sorted(found[1] for found in report.BLOCK.findall(PAGE)) == sorted(report.BLOCKS)


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


def test_the_figures_are_drawn_from_the_results(tmp_path):
    drawn = [*figures.draw_mathematics(tmp_path), *pictures.draw(Results(RECORD), tmp_path)]
    assert {path.name for path in drawn} == {path.name for path in report.PICTURES.glob("*.svg")}
    for path in pictures.draw(Results(RECORD), tmp_path):
        assert path.read_bytes() == (report.PICTURES / path.name).read_bytes(), path.name


def test_the_results_are_complete():
    assert set(RECORD["numbers"]) == set(EXPERIMENTS)
    results = Results(RECORD)
    assert results.num_seeds >= 5
    for experiment in EXPERIMENTS:
        for arm in results.arms(experiment):
            assert len(RECORD["numbers"][experiment][arm]) == results.num_seeds
    assert tuple(results.arms("masked")) == masked.ARMS


def test_the_claims_of_a_table_follow_the_values():
    """Judge the cell of each comparison by the means, and by a p computed from the t distribution's table."""
    losses = Results(RECORD).by_arm("masked", "test", "loss")
    rope = losses["rope"]
    for row in report.masked_block(Results(RECORD)):
        arm, *_, cell = (part.strip() for part in f"{row}|||".split("|")[1:-2]) if row.startswith("|") else ("", "")
        if arm in losses and "RoPE better" in cell:
            assert sum(rope) < sum(losses[arm])
        if arm in losses and "RoPE worse" in cell:
            assert sum(rope) > sum(losses[arm])
