"""The whole study at its smallest size, as a user starts it; the page and the figures of its results."""

import json
import os
import shutil
import sys
from collections import Counter
from pathlib import Path

import child
import pytest
import svg_files
from roformer import figures, pictures, report
from roformer.data import prepare
from roformer.data.splits import normalise
from roformer.experiments import EXPERIMENTS, sentences, translation
from roformer.results import Results

ROOT = Path(__file__).parents[1]
pytestmark = [
    pytest.mark.library("torch"),
    pytest.mark.skipif(sys.platform == "win32", reason="jobs start from a fork server, which Windows lacks"),
]


def run(out, *arguments):
    """Run the command, and return its output."""
    command = ("-m", "roformer", *arguments, "--quick", "--seeds=1", f"--out={out}")
    done = child.python(*command, timeout=900, PYTHONPATH=str(ROOT / "bench"))
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def results(out):
    return json.loads((out / "quick" / "results.json").read_text("utf-8"))


def check_splits(dataset):
    """Assert that no text of validation or test is in another split."""
    texts = []
    for task in dataset.tasks.values():
        texts.append({split: {tuple(ids) for ids, _ in rows} for split, rows in task.items()})
    for side in (2, 3):
        texts.append({split: {normalise(row[side]) for row in rows} for split, rows in dataset.pairs.items()})
    for of in texts:
        assert all(of.values())
        assert not of["train"] & of["validation"] | of["test"] & (of["train"] | of["validation"])


def check_counts(dataset):
    """Hold the counts in the text of docs/roformer.md to the data."""
    page = report.BLOCK.sub("", report.PAGE.read_text("utf-8")).replace("\n", " ")
    for split, word in (("train", "training"), ("validation", "validation"), ("test", "the test")):
        kept = dataset.short_pairs(split, translation.FULL.max_tokens)
        assert f"{len(kept):,} of {len(dataset.pairs[split]):,} for {word}" in page
    shares = []
    for task in sentences.TASKS:
        labels = Counter(label for _, label in dataset.tasks[task]["test"][:1000])
        shares.append(f"{100 * labels.most_common(1)[0][1] / labels.total():.0f} %")
    assert "{} (sentiment), {} (word order) and {} (category)".format(*shares) in page
    cut = [len(ids) + 2 > sentences.FULL.length for ids, _ in dataset.tasks["sentiment"]["test"][:1000]]
    assert f"{10 * sum(cut) / len(cut):.0f} of 10 reviews are" in page


def times(out):
    return {path: path.stat().st_mtime_ns for path in (out / "quick").rglob("*-0.json")}


@pytest.mark.slow
@pytest.mark.skipif(
    not (shutil.which("apt-get") or os.environ.get("ROPE_ARRAY_STUDY_DATA")),
    reason="needs Debian's apt-get, or ROPE_ARRAY_STUDY_DATA with unpacked packages",
)
def test_the_whole_study_runs_continues_and_repeats(tmp_path):
    """Run everything, then nothing, then an arm of each experiment, and what needs it, in one process.

    One test, as two workers would each make the data and run the study.
    """
    run(tmp_path, "all")
    record, before = results(tmp_path), times(tmp_path)
    assert set(record["numbers"]) == set(EXPERIMENTS)
    assert "| sinusoidal |" in (tmp_path / "quick" / "roformer.md").read_text("utf-8")
    assert len([*(tmp_path / "quick" / "pictures").glob("*.svg")]) >= 13

    run(tmp_path, *EXPERIMENTS)
    assert times(tmp_path) == before

    again = [path for path in before if path.name in ("rope-0.json", "linear-rope-0.json")]
    for path in again:
        path.unlink()
    run(tmp_path, *EXPERIMENTS, "--processes", "1")
    assert results(tmp_path)["numbers"] == record["numbers"]

    dataset = prepare(tmp_path / "data")
    check_splits(dataset)
    if record["sources"] != report.newest()["sources"]:
        pytest.skip("passed, but for the counts on the page: there are newer packages than its")
    check_counts(dataset)


def test_the_page_and_its_figures_show_the_committed_results(tmp_path):
    page, record = report.PAGE.read_text("utf-8"), report.newest()
    assert report.fill(page, record) == page, "run `python dev.py test -s roformer -- report`"
    drawn = [*figures.draw_mathematics(tmp_path), *pictures.draw(Results(record), tmp_path)]
    assert {path.name for path in drawn} == {path.name for path in report.PICTURES.glob("*.svg")}
    for path in drawn:
        svg_files.assert_same_drawing(path, report.PICTURES / path.name)
