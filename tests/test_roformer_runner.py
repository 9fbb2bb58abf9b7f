"""The study's runner: the order of jobs, needs, continuation, failures, interruption, and equal numbers."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from io import StringIO
from pathlib import Path
from types import SimpleNamespace

import child
import pytest

sys.path.append(str(Path(__file__).parents[1] / "bench"))

import roformer_toy as toy
from roformer import jobs, progress, runner
from roformer.__main__ import main, write_report
from roformer.jobs import Context, Job, plan
from roformer.runner import collect, of_other_origin, run_tasks

pytestmark = pytest.mark.library("torch")
BENCH = sys.path[-1]
MODULES = {"toy": "roformer_toy"}


@pytest.fixture(autouse=True)
def _restore(monkeypatch):
    """Undo the runner's environment variables, which concern processes that a later test starts."""
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "ROPE_ARRAY_NUM_THREADS"):
        monkeypatch.setenv(name, "7")


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Run the toy with changed settings in a folder; return the failed keys, the results and the new log."""

    def run(folder="out", seeds=1, processes=1, **changes):
        monkeypatch.setattr(toy, "FULL", toy.Settings(**changes))
        out = tmp_path / folder
        out.mkdir(exist_ok=True)
        (out / "log.txt").unlink(missing_ok=True)
        tasks = plan(["toy"], MODULES, range(seeds))
        failed = run_tasks(tasks, tmp_path, out, processes)
        return SimpleNamespace(failed=failed, results=collect(tasks, out), log=read(out))

    return run


def read(out):
    path = out / "log.txt"
    return path.read_text().splitlines() if path.exists() else []


def started(log):
    return [line.removeprefix("start ") for line in log if line.startswith("start")]


def fake(monkeypatch, **needs):
    """Create experiments of one job each, experiment/x/0, with needs by experiment; return the modules."""
    for name, keys in needs.items():
        job = Job(name, "x", 0, needs=tuple(keys))
        module = SimpleNamespace(
            FULL=toy.FULL, QUICK=toy.QUICK, jobs=lambda settings, seeds, job=job: [job], __name__=name
        )
        monkeypatch.setitem(sys.modules, f"fake_{name}", module)
    return {name: f"fake_{name}" for name in needs}


def test_plan_adds_the_needed_jobs_of_other_experiments_first(monkeypatch):
    modules = fake(monkeypatch, last=["middle/x/0"], middle=["first/x/0"], first=[], other=[])
    assert list(plan(["last"], modules, range(1))) == ["first/x/0", "middle/x/0", "last/x/0"]


def test_plan_refuses_unknown_needs_and_circles(monkeypatch):
    modules = fake(monkeypatch, one=["two/x/0"], two=["one/x/0"], three=["one/x/9"], four=["five/x/0"])
    with pytest.raises(ValueError, match=re.escape("one/x/0 → two/x/0 → one/x/0")):
        plan(["one"], modules, range(1))
    with pytest.raises(ValueError, match="three/x/0 needs one/x/9"):
        plan(["three"], modules, range(1))
    with pytest.raises(ValueError, match="four/x/0 needs five/x/0"):
        plan(["four"], modules, range(1))


def test_fingerprints_follow_settings_of_the_job_and_of_its_needs(monkeypatch):
    modules = fake(monkeypatch, first=[], last=["first/x/0"], other=[])
    before = plan(modules, modules, range(1))
    monkeypatch.setattr(sys.modules["fake_first"], "FULL", replace(toy.FULL, steps=99))
    after = plan(modules, modules, range(1))
    changed = [key for key in before if before[key].fingerprint != after[key].fingerprint]
    assert changed == ["first/x/0", "last/x/0"]


def test_names_have_no_slash():
    with pytest.raises(ValueError, match="slash"):
        Job("toy", "a/b", 0)


def test_a_job_reads_no_weights_that_it_does_not_need(tmp_path):
    context = Context(Job("toy", "a", 0, needs=("toy/b/0",)), toy.FULL, tmp_path, tmp_path, print)
    with pytest.raises(ValueError, match="reads toy/c/0"):
        context.weights("toy/c/0")


def test_the_longest_chain_of_jobs_starts_first(run):
    # Chains: a, b, c 3 + 2 + 1; d 5; b, c 2 + 1; c 1; e 0.5.
    keys = [f"toy/{arm}/0" for arm in "adbce"]
    done = run(processes=1)
    assert started(done.log) == keys
    assert not done.failed


def test_jobs_end_before_those_that_need_them_start(run):
    log = run(processes=10, seeds=2).log  # enough to start all jobs at once
    for seed in range(2):
        for first, then in ("ab", "bc"):
            assert log.index(f"end toy/{first}/{seed}") < log.index(f"start toy/{then}/{seed}")


def test_each_process_has_one_thread_and_leaves_interrupts_to_the_runner(run):
    facts = {"threads": 1, "deterministic": True, "environment": "1", "ignores Ctrl-C": True}
    assert run().results["toy"]["a"]["0"]["process"] == facts


def test_numbers_depend_neither_on_processes_nor_on_order(run, monkeypatch):
    one = run("one", seeds=2, processes=1)
    two = run("two", seeds=2, processes=2)
    monkeypatch.setattr(
        toy,
        "jobs",
        lambda settings, seeds, jobs=toy.jobs: [replace(j, cost=9 - j.cost) for j in jobs(settings, seeds)],
    )
    three = run("three", seeds=2, processes=1)
    assert started(one.log) != started(three.log)
    assert one.results == two.results == three.results
    arms = one.results["toy"]
    assert len({arms[arm][seed]["draw"] for arm in arms for seed in "01"}) >= 2
    assert arms["b"]["1"]["weights"][0] == arms["a"]["1"]["weights"][1]


def test_finished_jobs_are_skipped_until_the_settings_change(run):
    first = run()
    assert len(started(first.log)) == 5
    again = run()
    assert not again.log
    assert again.results == first.results
    assert started(run(seeds=2).log) == [f"toy/{arm}/1" for arm in "adbce"]
    assert len(started(run(steps=9).log)) == 5


def test_checkpoints_of_other_settings_are_not_continued(run, tmp_path):
    run(fault="raise")
    folder = tmp_path / "out" / "toy" / "a-0"
    assert (folder / "checkpoint.pt").exists()
    (folder / "checkpoint-of-more.pt").write_text("no checkpoint")
    assert not run(steps=9).failed
    assert sorted(path.name for path in folder.iterdir()) == ["fingerprint", "weights.pt"]


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("raise", "ArithmeticError: meant to fail"),
        ("exit", "the process ended with exit code 7"),
        ("nan", "not JSON compliant"),
    ],
)
def test_other_jobs_finish_after_a_failure(run, capfd, fault, message):
    done = run(fault=fault)
    assert list(done.failed) == ["toy/a/0", "toy/b/0", "toy/c/0"]
    assert message in done.failed["toy/a/0"]
    assert done.failed["toy/b/0"] == done.failed["toy/c/0"] == "not run: a job that it needs failed"
    assert list(done.results["toy"]) == ["d", "e"]
    error = capfd.readouterr().err
    assert "toy/a/0 failed" in error
    assert message in error


def test_a_needed_job_that_failed_runs_again_with_the_same_command(run):
    run(fault="raise")
    assert started(run(fault="raise").log) == ["toy/a/0"]


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
def test_an_interrupted_run_continues_to_the_same_numbers(run, tmp_path, monkeypatch):
    out = tmp_path / "full"
    arguments = ["toy", "--seeds", "1", "--processes", "2", "--out", str(tmp_path)]
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
    (out / "log.txt").unlink()
    (out / "go").touch()
    monkeypatch.setattr(toy, "FULL", toy.Settings(hold=5))
    assert main(arguments, MODULES, print) == 0
    steps = [f"step {step} of toy/d/0" for step in range(5, 8)]
    assert read(out) == ["start toy/d/0", *steps, "end toy/d/0"]
    assert json.loads((out / "results.json").read_text())["numbers"] == run("plain").results


def _wait_for(process, *conditions):
    end = time.monotonic() + 120
    while not all(condition() for condition in conditions):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end
        time.sleep(0.01)


def test_the_command_runs_writes_results_and_gives_the_status(tmp_path, monkeypatch, capfd):
    prepared = []
    command = ["toy", "--quick", "--seeds", "1", "--processes", "1", "--out", str(tmp_path)]
    (tmp_path / "quick").mkdir()
    assert main(command, MODULES, prepared.append) == 0
    assert prepared == [tmp_path / "data"]
    results = json.loads((tmp_path / "quick" / "results.json").read_text("utf-8"))
    assert {arm: list(seeds) for arm, seeds in results["numbers"]["toy"].items()} == {
        arm: ["0"] for arm in "abcde"
    }
    assert [step for step, _ in results["numbers"]["toy"]["a"]["0"]["curve"]] == [toy.QUICK.steps]
    assert results["versions"]["torch"]
    monkeypatch.setattr(toy, "QUICK", toy.Settings(fault="raise"))
    capfd.readouterr()
    assert main(command, MODULES, prepared.append) == 1
    assert capfd.readouterr().err.endswith("toy/c/0: not run: a job that it needs failed\n")


def change_origin(path):
    path.write_text(json.dumps(json.loads(path.read_text()) | {"origin": "of other code"}))


def test_results_of_another_origin_are_told_and_their_checkpoints_left(tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(toy, "QUICK", toy.Settings(fault="raise"))  # d and e end; a leaves a checkpoint
    command, out = ["toy", "--quick", "--seeds", "1", "--out", str(tmp_path)], tmp_path / "quick"
    out.mkdir()
    main(command, MODULES, print)
    (out / "log.txt").unlink()
    main(command, MODULES, print)
    assert "are kept" not in capfd.readouterr().err
    assert read(out) == ["start toy/a/0"]  # and no step: the checkpoint is of the last

    (out / "log.txt").unlink()
    mark, result = out / "toy" / "a-0" / "fingerprint", out / "toy" / "d-0.json"
    mark.write_text(mark.read_text().split()[0] + " 0123456789abcdef")
    change_origin(result)
    main(command, MODULES, print)
    told = (
        f"Finished jobs of other code, packages or data, which are kept: 1. To run one again, remove {result}"
    )
    assert told in capfd.readouterr().err.splitlines()
    assert read(out)[:2] == ["start toy/a/0", "step 0 of toy/a/0"]
    assert "start toy/d/0" not in read(out)


def test_an_origin_that_changed_concerns_the_jobs_that_need_it(run, tmp_path):
    run()
    tasks, out = plan(["toy"], MODULES, range(1)), tmp_path / "out"
    path = out / "toy" / "b-0.json"
    assert of_other_origin(tasks, out, tmp_path) == []
    change_origin(path)
    assert of_other_origin(tasks, out, tmp_path) == ["toy/b/0"]
    path.unlink()
    assert started(run().log) == ["toy/b/0", "toy/c/0"]  # again, with the new weights
    shutil.rmtree(path.with_suffix(""))
    assert started(run().log) == ["toy/b/0", "toy/c/0"]
    change_origin(out / "toy" / "a-0.json")
    (out / "toy" / "b-0.json").unlink()
    run()
    assert set(of_other_origin(tasks, out, tmp_path)) == {"toy/a/0", "toy/b/0", "toy/c/0"}


def test_a_needed_job_that_runs_alone_leaves_others_of_another_origin(run, tmp_path):
    """b runs again by other code, without c, which used its weights."""
    run()
    tasks, out = plan(["toy"], MODULES, range(1)), tmp_path / "out"
    (out / "toy" / "b-0.json").unlink()
    change_origin(out / "toy" / "a-0.json")
    run_tasks({key: tasks[key] for key in ("toy/a/0", "toy/b/0")}, tmp_path, out, 1)
    assert set(of_other_origin(tasks, out, tmp_path)) == {"toy/a/0", "toy/b/0"}
    (out / "toy" / "a-0.json").unlink()
    run_tasks({key: tasks[key] for key in ("toy/a/0", "toy/b/0")}, tmp_path, out, 1)
    assert of_other_origin(tasks, out, tmp_path) == []


def test_a_change_that_is_undone_before_a_job_begins_loses_no_result(run, monkeypatch):
    def interrupted(self):
        raise KeyboardInterrupt  # as Ctrl-C does, which jobs in the background ignore

    before = run().results
    with monkeypatch.context() as patch:
        patch.setattr(runner._Runner, "start_ready", interrupted)
        with pytest.raises(KeyboardInterrupt):
            run(steps=9)
    again = run()
    assert not again.log
    assert again.results == before


def test_the_record_has_all_experiments_and_the_jobs_of_another_origin(tmp_path, monkeypatch):
    command, path = ["toy", "--seeds", "1", "--out", str(tmp_path)], tmp_path / "full" / "results.json"
    (tmp_path / "full").mkdir()
    modules = MODULES | fake(monkeypatch, other=[])
    main(command, modules, print)
    assert json.loads(path.read_text())["of_other_origin"] == []
    assert [*json.loads(path.read_text())["settings"]] == ["toy", "other"]
    (tmp_path / "data" / "prepared-1").mkdir(parents=True)
    (tmp_path / "data" / "prepared-1" / "digest").write_text("other data")
    main(command, modules, print)
    assert set(json.loads(path.read_text())["of_other_origin"]) == {f"toy/{arm}/0" for arm in "abcde"}


def test_the_report_alone_prepares_and_runs_nothing(tmp_path):
    reported = []
    command = ["report", "--out", str(tmp_path)]
    assert main(command, MODULES, pytest.fail, lambda *arguments: reported.append(arguments)) == 0
    assert reported == [(tmp_path / "full", False)]
    assert main(["toy", "--list", *command[1:]], MODULES, pytest.fail, pytest.fail) == 0


def test_a_report_needs_results_of_all_experiments(tmp_path):
    with pytest.raises(SystemExit, match=r"results.json is missing; run `python -m roformer all --quick`"):
        write_report(tmp_path, True)
    (tmp_path / "results.json").write_text('{"numbers": {"masked": {}, "long": {}}}')
    with pytest.raises(
        SystemExit, match="no report without results of lengths, linear, sentences, stages, tr"
    ):
        write_report(tmp_path, False)


def test_the_origin_has_every_file_that_the_experiments_import(tmp_path, monkeypatch):
    script = "import sys; sys.path[:0] = sys.argv[1:]\nfrom importlib import import_module as load\n"
    script += "from roformer.experiments import EXPERIMENTS\nfor path in EXPERIMENTS.values(): load(path)\n"
    script += "print(*(m.__file__ for name, m in sys.modules.items() if name.startswith('roformer.')))"
    folder = tmp_path / "roformer"
    shutil.copytree(Path(jobs.__file__).parent, folder)
    done = subprocess.run(
        [sys.executable, "-c", script, tmp_path, BENCH], capture_output=True, text=True, check=True
    )
    imported = {Path(path) for path in done.stdout.split()} - {folder / "jobs.py"}
    assert len(imported) > 30

    monkeypatch.setattr(jobs, "__file__", str(folder / "jobs.py"))
    hashes = {jobs.hash_code(tmp_path)}
    (folder / "report.py").write_text("")
    assert {jobs.hash_code(tmp_path)} == hashes
    for path in [*imported, folder / "runner.py"]:
        path.write_text("# changed")
        hashes.add(jobs.hash_code(tmp_path))
    monkeypatch.setattr(jobs, "version", str.upper)
    hashes.add(jobs.hash_code(tmp_path))
    monkeypatch.setattr(jobs, "ROOT", tmp_path)  # has no rope_array
    hashes.add(jobs.hash_code(tmp_path))
    assert len(hashes) == 1 + len(imported) + 3


def test_the_command_lists_jobs(tmp_path, capsys):
    assert main(["--list", "--seeds", "1", "--out", str(tmp_path)], MODULES, print) == 0
    *lines, total = capsys.readouterr().out.splitlines()
    assert {line.split()[0]: line.split()[1] for line in lines}["toy/a/0"] == "3"
    assert len(lines) == 5
    assert total == "5 jobs, 12 s left on one core"  # 1 + 5 + 3 + 2 + 0.5, to even


def test_the_command_refuses_unknown_names(capsys):
    with pytest.raises(SystemExit):
        main(["toi"], MODULES, print)
    assert "unknown: toi; known: all, toy, report" in capsys.readouterr().err


def test_progress_in_lines(monkeypatch, capsys):
    monkeypatch.setattr(progress, "LINE_SECONDS", 0.0)
    shown = progress.Progress({"long": 30.0, "short": 10.0})
    shown.started -= 60  # as if begun a minute ago
    shown.update("long", 0.5)
    shown.end("short")
    shown.show()
    shown.close()
    # 15 + 10 of 40 are done in 60 s, so the rest takes 36 s.
    assert capsys.readouterr().err == "1 of 2 jobs, 62%, left 00:36\n"


class Terminal(StringIO):
    def isatty(self):
        return True


def test_progress_as_a_bar(monkeypatch):
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    shown = progress.Progress({"long": 30.0, "short": 10.0})
    shown.update("long", 0.5)
    shown.end("short")
    shown.show()
    shown.close()
    assert re.search(r"1 of 2 jobs  62%\|", terminal.getvalue())
