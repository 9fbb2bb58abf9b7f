"""The suite's child process: what a target does to it fails a check at most; signals end `check`."""

import json
import os
import signal
import subprocess
import sys
import time

import child
import pytest

from rope_array.__main__ import main
from rope_array.testing import _process
from rope_array.testing._options import Options
from rope_array.testing._process import Judgement

# Functions that do something to the process where a check gives a field alone: `acting` has the checks' acts.
TARGETS = """
import ctypes, locale, os, signal, subprocess, sys, tempfile, threading, time
import numpy as np
from rope_array.testing import Target

def good(x, pos, base=10000.0):
    import rope_array as ra
    return ra.apply(x, pos, base=base)

def acting(**acts):
    # Return a target that does each act where a rule, or a field, of its name is given alone; `each` always.
    def rotate(x, pos, base=10000.0, pairing="interleaved", inverse=False, scaling=None):
        import rope_array as ra
        from rope_array.testing._library_target import as_records
        fields = {"base": base != 10000.0, "pairing": pairing == "half", "inverse": inverse}
        names = [scaling["rope_type"]] if scaling else [name for name in fields if fields[name]]
        acts.get("each", int)()
        acts.get(*names, int)() if len(names) == 1 else None
        spec = as_records({"base": base, "scaling": scaling} if scaling else {"base": base})
        return ra.apply(x, pos, pairing=pairing, inverse=inverse, **spec)
    fields = ("base", "pairing", "inverse", "scaling")
    return Target(rotate, fields=fields, dtypes=("float32",), layout="sd", head_dim=16, declared=True)

def raising(error):
    def act():
        raise error
    return act

def in_thread(act):
    thread = threading.Thread(target=act)
    thread.start()
    thread.join()

def forever():
    while True:
        time.sleep(0.01)

def leaves_a_process():
    if os.fork() == 0:
        signal.alarm(200)
        signal.pause()

forked = []

def forks_twice():
    if len(forked) < 2:  # a copy that goes on forks once more at most
        forked.append(os.fork())

def leaves_its_folder():
    folder = tempfile.mkdtemp()
    os.chdir(folder)
    os.rmdir(folder)

def opens_another_file():
    os.closerange(3, 100)
    for _ in range(20):
        os.open(os.devnull, os.O_RDWR)

def writes_answers():
    text = '\\n{"error": "forged"}\\n1 {"error": "forged"}\\ncall forged\\nunfinished'
    print(text)
    for descriptor in range(3, 30):
        try:
            os.write(descriptor, text.encode())
        except OSError:
            pass

def changes_settings():
    locale.setlocale(locale.LC_ALL, "")
    os.environ.clear()
    sys.path.clear()
    sys.excepthook = threading.excepthook = None
    sys.setrecursionlimit(400)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for stream in filter(None, (sys.stdin, sys.stdout, sys.stderr)):
        stream.close()
    sys.stdout = sys.stderr = None

def lowers_the_limit():
    depth, frame = 1, sys._getframe()
    while frame := frame.f_back:
        depth += 1
    sys.setrecursionlimit(depth + 3)

ends = acting(
    base=lambda: os._exit(0),
    pairing=lambda: in_thread(lambda: ctypes.string_at(0)),
    linear=raising(KeyboardInterrupt()),
    ntk=lambda: os.kill(os.getpid(), getattr(signal, "SIGKILL", 9)),
    dynamic=opens_another_file,
    longrope=lambda: os.closerange(0, 100),
    yarn=lambda: (leaves_a_process(), os.kill(os.getpid(), signal.SIGSEGV)),
)
harmless = acting(
    base=forks_twice, linear=leaves_its_folder, ntk=writes_answers, dynamic=leaves_a_process,
    yarn=changes_settings,
)
hangs = acting(base=forever)
slow = acting(base=lambda: time.sleep(0.9))

def wrong_folder(x, pos, base=10000.0):
    leaves_its_folder()
    return good(x, -np.asarray(pos), base)

def shallow(x, pos, base=10000.0):
    depth, frame = 0, sys._getframe()
    while frame := frame.f_back:
        depth += 1
    sys.setrecursionlimit(depth + 20)
    return x

reads = acting(each=lambda: open("acts.py").close(), base=leaves_its_folder, linear=lowers_the_limit)

def forks_and_signs(x, pos, base=10000.0):
    if base != 10000.0:
        forks_twice()
    elif forked:
        with open("pids", "a") as pids:
            pids.write(f"{os.getpid()} ")
    return good(x, pos, base)

def scalar(x, pos):
    if np.ndim(pos) == 0:
        os.abort()
    return good(x, pos)

def mapped(x, pos):
    import torch
    if torch._C._functorch.is_batchedtensor(x):
        os.abort()
    return good(x, pos)

def always(x, pos):
    os.abort()

def stuck(x, pos):
    forever()

def noisy(x, pos, base=10000.0):
    print("from Python")
    os.write(1, b"from a descriptor\\n")
    ctypes.CDLL(None).puts(b"from C")
    return good(x, pos, base)
"""
MODULES = {
    "acts.py": TARGETS,
    "exits.py": "import os; os._exit(0)",
    "crashes.py": "import ctypes; ctypes.string_at(0)",
    "waits.py": "import os, time\nprint(os.getpid(), file=open('child', 'w'), flush=True)\ntime.sleep(60)",
}
POSIX = pytest.mark.skipif(os.name == "nt", reason="signals and forks of POSIX")


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """The current folder, from which modules are imported."""
    for name, text in MODULES.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


FEW = ("dtypes=float32", "layout=sd", "head_dim=16")
UNDECLARED = {"wrong_folder", "shallow", "forks_and_signs", "scalar", "always", "stuck"}


def judged(name, *checks, report=False, expected=(), **judgement_options):
    """Run some checks; return their results, and the report, which looks for causes, if it is asked for."""
    options = Options(f"acts:{name}", claims=FEW * (name in UNDECLARED), expected=expected, only=checks)
    with Judgement(options, **judgement_options) as judgement:
        return [judgement.run(check) for check in checks], judgement.report() if report else None


# The checks that do each act, and some of the words for the end of the process.
ENDS = {
    "base": "exit status 0", "pairing": "acts.py:", "scaling_linear": "interrupted", "scaling_ntk": "SIGKILL",
    "scaling_dynamic": "closed a pipe", "scaling_longrope": "closed a pipe", "scaling_yarn": "SIGSEGV",
}  # fmt: skip
RULES = ["base", "scaling_linear", "scaling_ntk", "scaling_dynamic", "scaling_yarn"]


@POSIX
def test_an_end_of_the_process_fails_the_check():
    (*failed, after), report = judged("ends", *ENDS, "norm", expected=["pairing=known, a link"], report=True)
    for result, how in zip(failed, ENDS.values(), strict=True):
        assert result.outcome == ("expected failure" if result.name == "pairing" else "failed"), result
        assert result.ended
        assert how in result.detail
        assert result.name.partition("_")[0] in result.detail  # the call
    assert after.outcome == "passed"
    assert (report["ok"], report["counts"]["failed"], report["cause"]) == (False, len(ENDS) - 1, None)


# Acts of a target in its process: the target, the checks with their outcomes, and the options.
ACTS = {
    "acts that change no result": ("harmless", dict.fromkeys([*RULES, "direction", "norm"], "passed"), {}),
    # Each check has the folder and the recursion limit of the first.
    "a lost folder and a low limit": (
        "reads", {"base": "failed", "scaling_linear": "failed", "norm": "passed"}, {}),
    "a forked copy": ("forks_and_signs", {"base": "passed", "norm": "passed"}, {}),
    "a call that hangs": ("hangs", {"base": "ended", "direction": "passed"}, {"timeout": 1.5}),
    "many short calls": ("slow", {"base": "ended", "direction": "passed"}, {"timeout": 1.5}),
    "a trial call that ends": ("scalar", {"refusals_raise": "failed", "definition": "passed"}, {}),
}  # fmt: skip


@POSIX
@pytest.mark.parametrize("what", ACTS)
def test_what_happens_in_the_process(what, folder):
    name, outcomes, options = ACTS[what]
    started = time.monotonic()
    results, report = judged(name, *outcomes, report=True, **options)
    assert {r.name: "ended" if r.ended else r.outcome for r in results} == outcomes, results
    assert time.monotonic() - started < 150  # a process that is left is not waited for
    assert report["ok"] == (set(outcomes.values()) == {"passed"})
    if name == "hangs":
        assert "in forever, acts.py:" in results[0].detail
    if name == "scalar":  # the call that ended the process is not claimed, and is made once
        for text in (report["declines"]["broadcast_positions[scalar]"], report["cause"]):
            assert "the process ended with" in text
    if name == "forks_and_signs":  # a copy makes no further call
        assert len(set((folder / "pids").read_text().split())) == 1


@POSIX
@pytest.mark.parametrize(("name", "has_cause"), [("wrong_folder", True), ("shallow", False)])
def test_no_target_ends_the_search_for_causes(name, has_cause):
    results, report = judged(name, "direction", "definition", report=True)
    assert [result.outcome for result in results] == ["failed"] * 2
    assert report["counts"]["failed"] == 2
    assert bool(report["cause"]) == has_cause


@POSIX
def test_in_this_process_a_report_is_printed_once(folder):
    only = ("--only", "base,scaling_linear,norm")
    arguments = ["acts:harmless", *only, "--junit", "report.xml", "--in-process"]
    paths = os.pathsep.join(filter(None, sys.path))
    done = child.python("-P", "-m", "rope_array", "check", *arguments, PYTHONPATH=paths)
    assert (done.returncode, done.stdout.count("PASSED: 3 of 3")) == (0, 1), done.stderr
    assert (folder / "report.xml").exists()


def test_an_error_of_the_suite_fails_one_check(monkeypatch):
    """The check, and the search for causes, are not answered: the report has all results."""
    with Judgement(Options("numpy", only=["base", "norm"])) as judgement:
        process, answer = judgement._child, {"error": "not answered"}
        ask = process.ask
        monkeypatch.setattr(process, "ask", lambda *a: ask(*a) if a[1] == {"name": "norm"} else answer)
        assert [judgement.run(name).outcome for name in ("base", "norm")] == ["failed", "passed"]
        report = judgement.report()
    assert [result["detail"] for result in report["results"]] == ["not answered", ""]


@POSIX
def test_a_trial_call_that_hangs_ends_after_the_time_that_is_given(monkeypatch):
    for name, limit in {"_MOST_TRIALS_ENDED": 1, "_MOST_CHECKS_ENDED": 1, "_TRIAL_LIMIT": 0.5}.items():
        monkeypatch.setattr(_process, name, limit)
    (failed, _), _ = judged("stuck", "definition", "direction", timeout=0.5)
    assert failed.detail.startswith("it did not end in time in forever, acts.py:")


@POSIX
@pytest.mark.library("torch")
def test_a_mapped_trial_call_that_ends_the_process_is_named():
    options = Options("acts:mapped", library="torch", claims=FEW, only=["definition"])
    with Judgement(options) as judgement:
        assert [*judgement.checks] == ["definition", "refusals_raise"]
        assert "x float32[4, 2, 3, 5, 16]" in judgement.run("refusals_raise").detail


def test_a_process_that_ends_in_every_call_is_started_a_few_times_only(monkeypatch):
    monkeypatch.setattr(_process, "_MOST_TRIALS_ENDED", 1)
    monkeypatch.setattr(_process, "_MOST_CHECKS_ENDED", 1)
    (first, second), report = judged("always", "definition", "direction", report=True)
    assert first.detail.startswith("the process ended with")
    assert second.detail.startswith("not run, as ")
    assert not report["ok"]


def test_a_process_that_cannot_start_again_costs_no_report(folder):
    with Judgement(Options("acts:ends", only=["base", "norm"])) as judgement:
        (folder / "acts.py").write_text("1 / 0")
        details = [judgement.run(name).detail for name in ("base", "norm")]
        assert details[1].startswith("not run, as no new process could start")
        assert judgement.report()["counts"]["failed"] == 2


@pytest.mark.parametrize("name", ["exits", pytest.param("crashes", marks=POSIX)])
def test_an_import_that_ends_the_process_is_no_verdict(folder, name, capsys):
    how = {"exits": "exit status 0", "crashes": "SIGSEGV (segmentation fault) in <module>, crashes.py:1"}
    assert main(["check", f"{name}:rotate", "--junit", "report.xml"]) == 2
    assert f"importing {name}:rotate: the process ended with {how[name]}" in capsys.readouterr().err
    assert "<error" in (folder / "report.xml").read_text("utf-8")


@POSIX
def test_the_output_of_a_target_is_kept_out_of_the_report(capfd):
    assert main(["check", "acts:noisy", "--json", "--case", "base=50.0"]) == 0
    output = capfd.readouterr()
    assert json.loads(output.out)["ok"]
    for text in ("from Python", "from a descriptor", "from C"):
        assert text in output.err
    assert "acts" not in sys.modules  # the parent process does not import the target


@POSIX
@pytest.mark.filterwarnings("ignore:os.fork")  # of JAX, if other tests have imported it
@pytest.mark.parametrize(("name", "status"), [("SIGINT", 130), ("SIGTERM", 143)])
def test_a_signal_ends_both_processes(folder, name, status):
    parent = subprocess.Popen(
        [sys.executable, "-P", "-m", "rope_array", "check", "waits:rotate"], stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    started = folder / "child"
    while not (started.exists() and started.read_text()):
        assert parent.poll() is None
        time.sleep(0.05)
    parent.send_signal(getattr(signal, name))
    assert parent.wait(timeout=20) == status
    assert b"Traceback" not in parent.communicate()[1]
    with pytest.raises(ProcessLookupError):
        os.kill(int(started.read_text()), 0)
