"""The whole study at its smallest size: `python -m roformer all --quick`, as a user starts it."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "bench"))

from roformer.experiments import EXPERIMENTS

ROOT = Path(__file__).parents[1]
pytestmark = [
    pytest.mark.library("torch"),
    pytest.mark.slow,
    pytest.mark.skipif(
        not (shutil.which("apt-get") or os.environ.get("ROPE_ARRAY_STUDY_DATA")),
        reason="needs Debian's apt-get, or ROPE_ARRAY_STUDY_DATA with unpacked packages",
    ),
]


def run(out, *arguments):
    """Run the command, and return what it printed."""
    command = [sys.executable, "-m", "roformer", *arguments, "--quick", f"--out={out}"]
    env = {**os.environ, "PYTHONPATH": str(ROOT / "bench")}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    """The folder of a quick run of everything."""
    folder = tmp_path_factory.mktemp("study")
    run(folder, "all")
    return folder


def results(out):
    return json.loads((out / "quick" / "results.json").read_text("utf-8"))


def test_every_experiment_has_results_and_a_page(out):
    record = results(out)
    assert set(record["numbers"]) == set(EXPERIMENTS)
    assert record["commit"]
    assert {source["package"] for source in record["sources"]} >= {"coreutils", "perl-doc", "wordnet-base"}
    page = (out / "quick" / "roformer.md").read_text("utf-8")
    assert "| sinusoidal |" in page
    assert len([*(out / "quick" / "pictures").glob("*.svg")]) >= 13


def test_a_second_start_runs_nothing(out):
    before = {path: path.stat().st_mtime_ns for path in (out / "quick").rglob("*-0.json")}
    assert before
    run(out, "all")
    assert before == {path: path.stat().st_mtime_ns for path in (out / "quick").rglob("*-0.json")}


def test_the_same_seed_gives_the_same_numbers(out):
    """Run one arm of each experiment again, in one process."""
    first = results(out)["numbers"]
    for path in (out / "quick").rglob("*-0.json"):
        path.unlink()
    run(out, "all", "--processes", "1")
    assert results(out)["numbers"] == first
