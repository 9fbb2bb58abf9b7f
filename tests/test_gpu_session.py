"""bench/gpu_session.py: what failed steps cost, resuming, and every step on the CPU."""

import json
import os
import re
import sys
from pathlib import Path

import _gpu_bits
import child
import gpu_session
import pytest
import torch

pytestmark = [
    pytest.mark.library("numpy", "torch"),
    pytest.mark.skipif(sys.platform == "win32", reason="the script forks a process for each step"),
]

ROOT = Path(gpu_session.__file__).parents[1]
PATHS = os.pathsep.join([str(ROOT / "bench"), *filter(None, [os.environ.get("PYTHONPATH")])])
# Steps whose calls leave a line in a file. All work once there is a file "mended".
STEPS = """
import os, sys, time
from pathlib import Path

import gpu_session, torch
from gpu_session import Step

def called(name):
    with Path("calls").open("a") as file:
        file.write(name + "\\n")
    reasons = {"first": "ModuleNotFoundError: liger_kernel", "last": "RuntimeError: of a row"}
    has_row = is_mended() or name == "before"
    return {"rows": {"copy": {"copies": [1, 1, 1]}, "peer": {} if has_row else {"failed": reasons[name]}}}

def is_mended():
    return Path("mended").exists()

def works(session):
    yield "first", lambda: called("first")
    yield "fails", lambda: {} if is_mended() else 1 / 0
    yield "last", lambda: called("last")

def hangs(session):
    yield "before", lambda: called("before")
    yield "hangs", lambda: {} if is_mended() else time.sleep(600)
    yield "after", lambda: called("after")

def crashes(session):
    yield "crash", lambda: {} if is_mended() else os._exit(7)

def needs(session):
    import a_package_that_is_missing

gpu_session.prepare = lambda dry: None  # these steps need no Triton
gpu_session.main([
    Step("works", works, 1, 60),
    Step("hangs", hangs, 1, 6 / gpu_session.SLOWER),
    Step("crashes", crashes, 1, 60, together=True),
    Step("needs", needs, 1, 60, together=True),
])
"""


def test_estimates_fit_into_ten_minutes():
    assert gpu_session.seconds_of(gpu_session.STEPS) <= 600
    assert all(step.estimate <= step.limit for step in gpu_session.STEPS)
    assert len({step.name for step in gpu_session.STEPS}) == len(gpu_session.STEPS)


@pytest.fixture
def run(tmp_path):
    """A function that runs the steps above; it returns the output, the calls, and the numbers of the file."""

    def run_steps(*options):
        (tmp_path / "steps.py").write_text(STEPS, "utf-8")
        path, calls = tmp_path / "result.json", tmp_path / "calls"
        done = child.python("steps.py", "--dry-run", "--out", path, *options, cwd=tmp_path, PYTHONPATH=PATHS)
        assert done.returncode == 0, done.stderr
        made = calls.read_text("utf-8").split() if calls.exists() else []
        calls.unlink(missing_ok=True)
        return done.stdout, made, json.loads(path.read_text("utf-8"))["numbers"]

    return run_steps


def test_a_failure_costs_its_case_and_a_crash_or_a_hang_its_step(run):
    output, calls, numbers = run()
    assert calls == ["first", "last", "before"]
    assert numbers["works"]["state"] == "done"
    assert numbers["works"]["cases"]["fails"] == {"failed": "ZeroDivisionError: division by zero"}
    assert numbers["hangs"]["state"] == "exceeded 6 s"
    assert [*numbers["hangs"]["cases"]] == ["before"]
    assert numbers["crashes"]["state"] == "ended by exit status 7"
    assert "No module named 'a_package" in numbers["needs"]["cases"]["all cases"]["missing"]
    *_, missing = output.partition("6 missing")
    steps = [line.split(":")[0].strip() for line in missing.splitlines()[1:]]
    assert steps == ["works"] * 3 + ["hangs", "crashes", "needs"]


def test_another_run_makes_the_calls_that_have_no_numbers(run, tmp_path):
    run()
    (tmp_path / "mended").touch()
    output, calls, numbers = run()
    assert calls == ["last", "after"]
    assert [*numbers["works"]["cases"]] == ["first", "fails", "last"]
    assert [step["state"] for step in numbers.values()] == ["done"] * 4
    assert "2 missing\n  works: peer ModuleNotFoundError: liger_kernel (first)\n  needs: Mod" in output


def test_steps_that_do_not_fit_into_the_time_are_not_begun(run):
    _, calls, numbers = run("--seconds", "1")
    assert (calls, {step["state"] for step in numbers.values()}) == ([], {"not begun"})


def test_other_bits_dtypes_and_shapes_are_no_equal_results():
    x = torch.randn(2, 3)
    _gpu_bits.assert_same([x], [x.clone()], "equal")
    for other in (x.nextafter(x + 1), x.double(), x[:1], -0.0 * x):
        with pytest.raises(AssertionError, match="a call, result 0"):
            _gpu_bits.assert_same([other], [x], "a call")


@pytest.mark.gpu_code
def test_every_step_runs_on_the_cpu(tmp_path):
    """Packages for GPUs are missing, or find no driver; all else has numbers."""
    path = tmp_path / "result.json"
    done = child.python(
        gpu_session.__file__, "--dry-run", "--cases", "1", "--out", path, timeout=1200, PYTHONPATH=PATHS
    )
    assert done.returncode == 0, done.stderr
    numbers = json.loads(path.read_text("utf-8"))["numbers"]
    assert [*numbers] == [step.name for step in gpu_session.STEPS]
    lines = [line for step in numbers.values() for line in gpu_session.missing_of(step)]
    assert [line for line in lines if not re.search("No module named|cudaError", line)] == []
    (training,) = numbers["models"]["cases"].values()
    errors = {name: row.get("error") for name, row in training["rows"].items()}
    assert errors["rope_array, Rotation"] == 0
    assert errors["copy"] > 0.01
    tiles = numbers["tiles"]["cases"].values()
    assert all("graph" in row for case in tiles for row in case["rows"].values())
