"""The study's command on a toy: equal numbers in every order, continuation, failures, interruption."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import child
import pytest

sys.path.append(str(Path(__file__).parents[1] / "bench"))

import roformer_toy as toy
from roformer.__main__ import main

pytestmark = pytest.mark.library("torch")
BENCH = sys.path[-1]
MODULES = {"toy": "roformer_toy"}


@pytest.fixture(autouse=True)
def _restore(monkeypatch):
    """Undo the runner's environment variables, which concern processes that a later test starts."""
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "ROPE_ARRAY_NUM_THREADS"):
        monkeypatch.setenv(name, "7")


@pytest.fixture
def run(tmp_path, monkeypatch, capfd):
    """Run the command on the toy with changed settings; return its status, numbers, errors and new log."""

    def run(folder="out", seeds=1, processes=1, **changes):
        monkeypatch.setattr(toy, "FULL", toy.Settings(**changes))
        out = tmp_path / folder / "full"
        out.mkdir(parents=True, exist_ok=True)
        (out / "log.txt").unlink(missing_ok=True)
        capfd.readouterr()
        arguments = ["toy", f"--seeds={seeds}", f"--processes={processes}", f"--out={out.parent}"]
        status = main(arguments, MODULES, print)
        path = out / "results.json"
        record = json.loads(path.read_text("utf-8")) if path.exists() else {"numbers": None}
        return SimpleNamespace(
            status=status,
            numbers=record["numbers"],
            other=record.get("of_other_origin"),
            error=capfd.readouterr().err,
            log=read(out),
        )

    return run


def read(out):
    path = out / "log.txt"
    return path.read_text().splitlines() if path.exists() else []


def started(log):
    return [line.removeprefix("start ") for line in log if line.startswith("start")]


def test_numbers_do_not_depend_on_processes(run):
    one, many = run("one", seeds=2), run("many", seeds=2, processes=10)
    assert one.numbers == many.numbers
    arms = one.numbers["toy"]
    assert arms["b"]["1"]["first"] == arms["a"]["1"]["last"]
    assert arms["a"]["0"] != arms["a"]["1"]
    assert arms["a"]["0"]["threads"] == 1
    # Chains: a, b, c 3 + 2 + 1; d 5; b, c 2 + 1; c 1; e 0.5.
    assert started(one.log)[::2] == [f"toy/{arm}/0" for arm in "adbce"]
    for seed in range(2):
        for first, then in ("ab", "bc"):
            assert many.log.index(f"end toy/{first}/{seed}") < many.log.index(f"start toy/{then}/{seed}")


@pytest.mark.parametrize(
    ("fault", "message"),
    [("raise", "ZeroDivisionError"), ("exit", "exit code 7"), ("nan", "not JSON compliant")],
)
def test_other_jobs_finish_after_a_failure(run, fault, message):
    done = run(fault=fault)
    assert done.status == 1
    assert message in done.error
    assert done.error.endswith("toy/c/0: not run: a job that it needs failed\n")
    assert {line for line in done.log if line.startswith("end")} >= {"end toy/d/0", "end toy/e/0"}
    again = run(fault=fault)
    assert started(again.log) == ["toy/a/0"]
    assert not any(line.startswith("step") for line in again.log)  # the checkpoint is of the last
    fixed = run(steps=9)  # which leaves the checkpoint of other settings aside
    assert fixed.status == 0
    assert [step for step, _ in fixed.numbers["toy"]["a"]["0"]["curve"]] == [3, 6, 9]


def test_results_of_another_origin_are_kept_and_named(run, tmp_path):
    run()
    result = tmp_path / "out" / "full" / "toy" / "b-0.json"
    result.write_text(json.dumps(json.loads(result.read_text()) | {"origin": "of other code"}))
    again = run()
    assert f"To run one again, remove {result}" in again.error
    assert again.other == ["toy/b/0"]
    assert again.log == []
    result.unlink()
    assert started(run().log) == ["toy/b/0", "toy/c/0"]  # with the new weights


SCRIPT = f"""
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored, where the tests run in the background
sys.path += [{BENCH!r}, {child.TESTS!r}]
import roformer_toy as toy
from roformer.__main__ import main
toy.FULL = toy.Settings(hold=5)
sys.exit(main(sys.argv[1:], {MODULES}, print))
"""


@pytest.mark.slow
def test_an_interrupted_run_continues_to_the_same_numbers(run, tmp_path):
    out = tmp_path / "out" / "full"
    arguments = ["toy", "--seeds", "1", "--processes", "2", "--out", str(out.parent)]
    command = [sys.executable, "-c", SCRIPT, *arguments]
    # A group of its own, as a terminal gives it: Ctrl-C reaches the runner and its workers.
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)
    results = [out / "toy" / f"{arm}-0.json" for arm in "abce"]
    _wait_for(process, *(path.exists for path in results), lambda: "step 5 of toy/d/0" in read(out))
    os.killpg(process.pid, signal.SIGINT)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 130
    assert error.splitlines()[-1] == "stopped, 4 of 5 jobs done; the same command continues"
    assert "Traceback" not in error
    (out / "go").touch()
    continued = run(hold=5)
    steps = [f"step {step} of toy/d/0" for step in range(5, 8)]
    assert continued.log == ["start toy/d/0", *steps, "end toy/d/0"]
    assert continued.numbers == run("plain").numbers


def _wait_for(process, *conditions):
    end = time.monotonic() + 120
    while not all(condition() for condition in conditions):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end
        time.sleep(0.01)
