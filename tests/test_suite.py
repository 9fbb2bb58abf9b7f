"""The suite's entry points: claims of a target, reports, the command line and the pytest plugin."""

import functools
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from conftest import sample

import rope_array as ra
from rope_array.__main__ import main
from rope_array.testing import (
    ConformanceError,
    MissingLibrary,
    Target,
    _isolated,
    check_backend,
    iter_checks,
    run_checks,
)
from rope_array.testing._checks import checks
from rope_array.testing._claims import CAPABILITIES
from rope_array.testing._command import lines_of
from rope_array.testing._factors import FIELDS
from rope_array.testing._isolated import Judgement
from rope_array.testing._libraries import LIBRARIES
from rope_array.testing._names import names, resolve
from rope_array.testing._options import Options
from rope_array.testing._parts import PART_NAMES

# A user's embedding: half pairing, float64 angles, its own defaults.
MYLIB = '''
"""A rotary embedding of somebody else."""
import numpy as np

def rotate(x, pos, base=10000.0, rotary_dim=None):
    """Half pairing; angles in float64."""
    width = x.shape[-1] if rotary_dim is None else rotary_dim
    omega = base ** (-np.arange(0, width, 2) / width) if width else np.zeros(0)
    angle = np.asarray(pos, dtype=np.float64)[..., None] * omega
    while 1 < angle.ndim < x.ndim:
        angle = angle[..., None, :, :]
    cos, sin = np.cos(angle), np.sin(angle)
    a, b = (x[..., i * width // 2 : (i + 1) * width // 2].astype(np.float64) for i in (0, 1))
    turned = np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)
    return np.concatenate([turned.astype(x.dtype), x[..., width:]], axis=-1)

def backwards(x, pos, base=10000.0):
    return rotate(x, -np.asarray(pos), base)
'''


@pytest.fixture
def elsewhere(tmp_path):
    """A folder outside of the repository, with a user's module."""
    (tmp_path / "mylib.py").write_text(MYLIB, encoding="utf-8")
    return tmp_path


def command(folder, *arguments, program=(sys.executable,), encoding="utf-8"):
    """Run `python *arguments` in a folder, and import from it; print in `encoding`."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"}
    environment["PYTHONIOENCODING"] = encoding
    return subprocess.run(
        [*program, *arguments], cwd=folder, env=environment, capture_output=True, text=True,
        encoding="utf-8", timeout=120, check=False,
    )  # fmt: skip


def check(folder, *arguments):
    return command(folder, "-m", "rope_array", "check", *arguments)


def check_some(folder, checks, *arguments):
    """Run the command with these checks alone, NAME,NAME; in the session `nightly` with every check."""
    return check(folder, *arguments, *(("--only", checks) if sample(checks) else ()))


# Claims of a user's module; those of one dtype, layout and head_dim have a third as many calls to judge.
HALF = ("--claim", "pairing=half")
HALF_OF_PLUGIN = ("--rope-claim", "pairing=half")
FEW_OF_ANY_WIDTH = ("--claim", "dtypes=float32", "--claim", "layout=sd")
FEW = (*FEW_OF_ANY_WIDTH, "--claim", "head_dim=16")
FEWER_OF_ANY_WIDTH = {"dtypes": ("float32",), "layout": "sd"}
FEWER = {**FEWER_OF_ANY_WIDTH, "head_dim": 16}


@pytest.fixture(scope="module")
def failing(tmp_path_factory):
    """One run of a faulty module with every check: its process, its report in JSON, and its JUnit file."""
    folder = tmp_path_factory.mktemp("failing")
    (folder / "mylib.py").write_text(MYLIB, encoding="utf-8")
    options = ["--expect", "base=known", "--json", "--junit", "report.xml"]
    done = check(folder, "mylib:backwards", *HALF, *FEW, *options)
    return done, json.loads(done.stdout), ElementTree.parse(folder / "report.xml").getroot()


def rotate(x, pos, base=10000.0, pairing="interleaved"):
    return ra.apply(x, pos, base=base, pairing=pairing)


# ---- the command line ----


def test_a_user_s_module_is_checked_from_its_folder(elsewhere):
    done = check(elsewhere, "mylib:rotate", "--claim", "pairing=half")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("PASSED: ")
    assert "Checked: mylib:rotate" in done.stdout


def test_a_fault_is_shown_with_its_requirement(failing):
    text = "\n".join(lines_of(failing[1]))
    assert "\n  tuples\n" in text
    assert "    required: " in text
    assert "    found:    " in text
    assert " direction, " in text.partition("Passed")[0]


def test_json_is_the_report(failing):
    done, report, _ = failing
    assert done.returncode == 1
    assert not report["ok"]
    assert report["counts"]["failed"] == sum(r["outcome"] == "failed" for r in report["results"])
    assert [result["name"] for result in report["results"]] == [each.name for each in checks()]
    assert report["declines"]["inv_freq"] == "its signature does not name it"


def test_the_example_of_the_documentation_prints_as_shown(tmp_path):
    page = (Path(__file__).parents[1] / "docs" / "conformance.md").read_text("utf-8")
    (module,) = re.findall(r"^```python\n# mine\.py\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    (shown,) = re.findall(r"^```text\n\$ python (.*? mine:rotate .*?)^```$", page, re.MULTILINE | re.DOTALL)
    (tmp_path / "mine.py").write_text(module, "utf-8")
    first, *lines = shown.splitlines()
    printed = command(tmp_path, *first.split()).stdout.splitlines()
    assert printed[:4] == lines[:4]
    for start in ("Failed (", "Passed (", "  Cause: "):
        shown = [line for line in lines if line.startswith(start)]
        assert [line for line in printed if line.startswith(start)] == shown
    (left_out,) = (line for line in printed if line.endswith("do not apply; --verbose lists them."))
    assert left_out in lines
    pasted = command(tmp_path, *printed[4].split()[1:])
    assert pasted.returncode == 0
    assert pasted.stdout.startswith("PASSED: ")


def test_the_test_of_the_documentation_passes(tmp_path):
    page = (Path(__file__).parents[1] / "docs" / "conformance.md").read_text("utf-8")
    for name, code in re.findall(r"^```python\n# (\w+\.py)\n(.*?)^```$", page, re.MULTILINE | re.DOTALL):
        (tmp_path / name).write_text(code, "utf-8")
    subprocess.run([sys.executable, "-c", "import test_mine; test_mine.test_rotate_conforms()"],
                   cwd=tmp_path, env={**os.environ, "PYTHONSAFEPATH": ""}, check=True)  # fmt: skip


def test_the_verdict_names_passes_that_were_expected_to_fail(elsewhere):
    done = check_some(elsewhere, "norm,definition", "mylib:rotate", *HALF, *FEW, "--expect", "norm=why")
    assert done.returncode == 1
    verdict = " ".join(done.stdout.splitlines()[:2])
    assert verdict.startswith("FAILED: 1 of ")
    assert "remove their --expect" in verdict


def test_the_wrong_pairing_is_named(elsewhere):
    done = check_some(elsewhere, "definition,direction,norm,base", "mylib:rotate", *FEW)
    assert done.returncode == 1
    assert "Likely cause: half pairing; try --claim pairing=half" in done.stdout.splitlines()[0]


def test_a_wrong_row_in_a_table_fits_a_terminal(failing):
    _, report, _ = failing
    assert max(map(len, lines_of(report, ["check", "mylib:backwards"]))) <= 110


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nump"], "unknown target 'nump'"),
        (["nolib:rotate"], "nolib"),
        (["mylib:rotat"], "no attribute 'rotat'"),
        (["mylib:np.pi"], "give a callable"),
        (["mylib:rotate", "--claim", "angels=exact"], "angels"),
        (["mylib:rotate", "--claim", "angles"], "NAME=VALUE"),
        (["mylib:rotate", "--claim", "angles=precise"], "known: exact"),
        (["mylib:rotate", "--library", "nump"], "unknown library 'nump'; did you mean numpy?"),
        (["mylib:rotate", "--expect", "definitions=why"], "no check is named 'definitions'"),
        (["mylib:rotate", "--expect", "definition"], "give NAME=VALUE"),
        (["mylib:rotate", "--expect", "definition="], "give the reason"),
        (["numpy", "--backend", "cuda"], "cuda"),
        (["cupy"], "cupy"),
        (["torch:cuda"], "torch"),
        (["jax:gpu"], "jax"),
        (["mylib"], "package.module:attribute"),
        (["mylib.py:rotate"], "cannot import mylib.py"),
        (["./mylib:rotate"], "the module as `import` takes it"),
        (["nunpy"], "Did you mean numpy?"),
        (["mylib:rotate", "--claim", "foo=1"], "unknown claim 'foo'; known: base"),
        (["mylib:rotate", "--claim", "rank=1 axis"], "unknown claim 'rank'; did you mean ranks"),
        (["mylib:rotate", "--claim", "ranks[9]=why"], "ranks has the parts 1, 2, 3, 4, 5, 6"),
        (["mylib:rotate", "--claim", "batch_positions=yes"], "--require batch_positions to insist on it"),
        (["mylib:rotate", "--claim", "batch_positions=False"], "give the reason why the target lacks it"),
        (["mylib:rotate", "--claim", "pairing=neox"], "pairing must be one of"),
        (["mylib:rotate", "--claim", "furthest=abc"], "give an integer"),
        (["mylib:rotate", "--claim", "layout=bshd", "--claim", "layout=sd"], "give it once"),
        (["mylib:rotate", "--backend", "array-api"], "leave it out"),
        (["numpy", "--claim", "pairing=half"], "claim it for a callable"),
        (["mylib:rotate", "--expect", "nrom=why"], "similar: norm"),
        (["mylib:rotate", "--expect", "accuracy_negative=why"], "accuracy_negative[float16]"),
        (["mylib:rotate", "--require", "rank"], "did you mean ranks"),
        (["mylib:rotate", "--require", ""], "unknown requires ''"),
        (["mylib:rotate", "--examples", "-1"], "give the number of random calls, 0 or more"),
        (["mylib:rotate", "--examples", "many"], "invalid int value"),
        (["mylib:rotate", "--seed", "1"], "give their number with --examples"),
        (["mylib:rotate", "--case", "widht=64"], "widht"),
        (["mylib:rotate", "--case", "width=64", "--examples", "3"], "leave --examples out"),
        (["mylib:rotate", "--only", "norm,definitio"], "no check is named 'definitio'; similar: definition"),
        (["mylib:rotate", "--only", "norm[float8]"], "no check is named 'norm[float8]'; similar: norm"),
        (["mylib:rotate", "--only", "kind[float8]"], "similar: kind[float16], kind[bfloat16], kind"),
        (["mylib:rotate", "--only", ""], "no check is named ''"),
        (["mylib:rotate", "--only", "norm", "--case", "width=64"], "leave --only out"),
        (["mylib:rotate", "--only", "norm", "--require", "base"], "leave --only out"),
        (["mylib:rotate", "--junit", "no/such/report.xml"], "give a file in a folder that exists"),
        (["mylib:rotate", "--junit", "."], "give a file in a folder that exists"),
        (["mylib:rotate", "--timeout", "0"], "give seconds above 0"),
        (["mylib:rotate", "--timeout", "9", "--in-process"], "give no timeout with in-process"),
    ],
)
def test_unusable_arguments_are_explained(elsewhere, arguments, message, monkeypatch, capsys):
    monkeypatch.chdir(elsewhere)
    monkeypatch.syspath_prepend(str(elsewhere))  # as `python -m` does
    try:
        status = main(["check", *arguments])
    except SystemExit as error:  # argparse's
        status = error.code
    output = capsys.readouterr()
    assert status == 2, output.out
    assert message in output.err
    assert "Traceback" not in output.err


def test_targets_and_checks_are_listed(elsewhere):
    done = check(elsewhere, "--list")
    assert done.returncode == 0
    for name in [*names(), *(each.name.partition("[")[0] for each in checks())]:
        assert f"  {name} " in done.stdout


# The process that prints is the judge itself, or its parent, which one call is enough to see.
@pytest.mark.parametrize(
    "options",
    [
        pytest.param(("--case", "base=50.0"), id="child"),
        pytest.param(("--in-process", "--only", "definition,threads"), id="in-process"),
        pytest.param(("--in-process",), id="every check", marks=pytest.mark.nightly),
    ],
)
def test_needs_neither_pytest_nor_another_library(elsewhere, options):
    script = (
        f"import sys; from rope_array.__main__ import main; status = main(['check', 'numpy', *{options}]); "
        "print(status, *sorted({n.partition('.')[0] for n in sys.modules} & "
        "{'pytest', 'torch', 'jax', 'dask', 'array_api_strict', 'hypothesis', 'mpmath'}))"
    )
    done = command(elsewhere, "-c", script)
    assert done.stdout.splitlines()[-1] == "0", done.stdout[-500:] + done.stderr


# ---- the child process ----

ENDING = """
import ctypes, os, signal, sys, threading, time
import numpy as np
from mylib import rotate as good

def ends(how):
    def rotate(x, pos, base=10000.0):
        if base != 10000.0:
            how()
        return good(x, pos, base)
    return rotate

class Unusual(BaseException):
    pass

def unusual():
    raise Unusual("of its own")

def interrupts():
    raise KeyboardInterrupt

def in_thread():
    thread = threading.Thread(target=lambda: ctypes.string_at(0))
    thread.start()
    thread.join()

def forever():
    while True:
        pass

def forks():
    if os.fork() == 0:
        signal.alarm(20)
        signal.pause()
    os.kill(os.getpid(), signal.SIGSEGV)

segv = ends(lambda: os.kill(os.getpid(), signal.SIGSEGV))
null = ends(lambda: ctypes.string_at(0))
thread = ends(in_thread)
exits = ends(lambda: os._exit(0))
aborts = ends(os.abort)
killed = ends(lambda: os.kill(os.getpid(), getattr(signal, "SIGKILL", 9)))
interrupted = ends(interrupts)
raises = ends(unusual)
hangs = ends(forever)
slow = ends(lambda: time.sleep(0.18))
leaves = ends(forks)

def scalar(x, pos):
    if np.ndim(pos) == 0:
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
POSIX = pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")


@pytest.fixture
def ending(elsewhere, monkeypatch):
    """A folder with functions that end the process for a base of their own, on the path of imports."""
    (elsewhere / "ending.py").write_text(ENDING, encoding="utf-8")
    (elsewhere / "exits.py").write_text("import os; os._exit(0)", encoding="utf-8")
    (elsewhere / "crashes.py").write_text("import ctypes; ctypes.string_at(0)", encoding="utf-8")
    monkeypatch.syspath_prepend(str(elsewhere))
    return elsewhere


def judged(name, *checks, **more):
    """Run some checks in a child process; return their results, and the trial calls' reasons to decline."""
    with Judgement(Options(name, claims=["pairing=half"]), **more) as judgement:
        results = [judgement.run(check) for check in checks]
        return results, judgement.report()


@pytest.mark.parametrize(
    ("name", "found"),
    [
        pytest.param("segv", "the process ended with SIGSEGV (segmentation fault)", marks=POSIX),
        pytest.param("null", "SIGSEGV (segmentation fault) in <lambda>, ending.py:", marks=POSIX),
        pytest.param("thread", "SIGSEGV (segmentation fault) in <lambda>, ending.py:", marks=POSIX),
        pytest.param("aborts", "the process ended with SIGABRT", marks=POSIX),
        pytest.param("killed", "SIGKILL (killed, as the system does if memory is short)", marks=POSIX),
        pytest.param("leaves", "the process ended with SIGSEGV", marks=POSIX),
        ("exits", "the process ended with exit status 0 at the call with x float32[2, 3, 5, 16]"),
        ("interrupted", "the process ended with exit status 130 (interrupted)"),
    ],
)
def test_a_target_that_ends_the_process_fails_the_check(ending, name, found):
    (before, failed, after), report = judged(f"ending:{name}", "definition", "base", "direction")
    assert (before.outcome, failed.outcome, after.outcome) == ("passed", "failed", "passed")
    assert found in failed.detail
    assert "base=" in failed.detail
    assert failed.ended
    assert not report["ok"]
    assert report["cause"] is None
    first = next(lines_of(report))
    assert first == "FAILED: 1 of 3. The process ended in base."


def test_an_exception_of_another_base_class_fails_the_check(ending):
    (failed, after), _ = judged("ending:raises", "base", "direction")
    assert (failed.outcome, after.outcome) == ("failed", "passed")
    assert failed.detail.startswith("Unusual: of its own")
    assert not failed.ended


def test_an_end_of_the_process_may_be_expected(ending):
    options = Options("ending:exits", claims=["pairing=half"], expected=["base=known, a link"])
    with Judgement(options) as judgement:
        assert judgement.run("base").outcome == "expected failure"
        assert judgement.report()["ok"]


@POSIX
def test_a_check_that_hangs_fails_after_the_time_that_is_given(ending):
    (failed, after), _ = judged("ending:hangs", "base", "direction", timeout=1.5)
    assert failed.detail.startswith("it did not end in time in forever, ending.py:")
    assert after.outcome == "passed"


@POSIX
def test_a_check_of_many_short_calls_fails_after_the_time_that_is_given(ending):
    (failed, after), _ = judged("ending:slow", "base", "direction", timeout=0.5)
    assert failed.detail.startswith("it did not end in time in ")
    assert after.outcome == "passed"


@POSIX
def test_a_trial_call_that_hangs_ends_after_the_time_that_is_given(ending, monkeypatch):
    monkeypatch.setattr(_isolated, "_MOST_TRIALS_ENDED", 1)
    monkeypatch.setattr(_isolated, "_MOST_CHECKS_ENDED", 1)
    started = time.monotonic()
    (failed, _), _ = judged("ending:stuck", "definition", "direction", timeout=1.5)
    assert failed.detail.startswith("it did not end in time in forever, ending.py:")
    assert time.monotonic() - started < _isolated._IMPORT_LIMIT


def test_a_trial_call_that_ends_the_process_fails_a_check_of_its_own(ending):
    (failed, after), report = judged("ending:scalar", "refusals_raise", "definition")
    assert failed.outcome == "failed"
    assert "a trial call: the process ended with" in failed.detail
    assert after.outcome == "passed"
    assert "ProcessEnded" in report["declines"]["broadcast_positions[scalar]"]


def test_a_process_that_ends_in_every_call_is_started_a_few_times_only(ending, monkeypatch):
    monkeypatch.setattr(_isolated, "_MOST_TRIALS_ENDED", 1)
    monkeypatch.setattr(_isolated, "_MOST_CHECKS_ENDED", 1)
    (first, second), report = judged("ending:always", "definition", "direction")
    assert first.detail.startswith("the process ended with")
    assert second.detail == "not run, as the process ended in 1 checks"
    assert not report["ok"]


@pytest.mark.parametrize("name", ["exits", pytest.param("crashes", marks=POSIX)])
def test_an_import_that_ends_the_process_is_no_verdict(ending, name):
    done = check(ending, f"{name}:rotate", "--junit", "report.xml")
    how = {"exits": "exit status 0", "crashes": "SIGSEGV (segmentation fault) in <module>, crashes.py:1"}
    assert done.returncode == 2
    assert f"importing {name}:rotate: the process ended with {how[name]}" in done.stderr
    (error,) = ElementTree.parse(ending / "report.xml").iter("error")
    assert how[name] in error.get("message")


@POSIX
def test_the_output_of_a_target_is_kept_out_of_the_report(ending):
    done = check(ending, "ending:noisy", "--json", "--claim", "pairing=half", "--case", "base=50.0")
    assert json.loads(done.stdout)["ok"]
    for text in ("from Python", "from a descriptor", "from C"):
        assert text in done.stderr


def test_the_parent_process_does_not_import_the_target(elsewhere):
    script = (
        "import sys; from rope_array.__main__ import main; "
        "status = main(['check', 'mylib:rotate', '--claim', 'pairing=half', '--case', 'base=50.0']); "
        "print(status, 'mylib' in sys.modules)"
    )
    assert command(elsewhere, "-c", script).stdout.splitlines()[-1] == "0 False"


@POSIX
@pytest.mark.parametrize(("name", "status"), [("SIGINT", 130), ("SIGTERM", 143)])
def test_a_signal_ends_both_processes(ending, name, status):
    (ending / "waits.py").write_text(
        "import os, time, pathlib\npathlib.Path('child').write_text(str(os.getpid()))\ntime.sleep(60)"
    )
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONSAFEPATH"}
    parent = subprocess.Popen(
        [sys.executable, "-m", "rope_array", "check", "waits:rotate"], cwd=ending, env=environment,
        stderr=subprocess.PIPE, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    started = ending / "child"
    while not (started.exists() and started.read_text()):
        assert parent.poll() is None
        time.sleep(0.05)
    parent.send_signal(getattr(signal, name))
    assert parent.wait(timeout=20) == status
    assert b"Traceback" not in parent.communicate()[1]
    with pytest.raises(ProcessLookupError):
        os.kill(int(started.read_text()), 0)


# ---- files of a report, and options ----


def test_junit_has_a_test_case_for_each_check(failing):
    done, _, root = failing
    assert done.returncode == 1
    (suite,) = root.iter("testsuite")
    cases = {case.get("name"): case for case in suite.iter("testcase")}
    assert [*cases] == [each.name for each in checks()]
    assert int(suite.get("tests")) == len(cases)
    for tag, count in (("failure", "failures"), ("skipped", "skipped")):
        assert len([*suite.iter(tag)]) == int(suite.get(count)) == int(root.get(count)) > 0
    (failure,) = cases["direction"].iter("failure")
    assert failure.text.startswith("required: A pair (1, 0) becomes")
    assert failure.get("message") in failure.text.partition("found:")[2]
    (skipped,) = cases["inv_freq"].iter("skipped")
    assert skipped.get("message") == "inv_freq: its signature does not name it"
    assert "required: " in cases["base"].find("system-out").text
    seconds = [float(case.get("time")) for case in cases.values()]
    assert 0 < sum(seconds) <= float(suite.get("time"))


def test_json_has_requirements_needs_and_times(elsewhere):
    done = check(elsewhere, "mylib:rotate", "--claim", "pairing=half", "--case", "base=50.0", "--json")
    report = json.loads(done.stdout)
    (result,) = report["results"]
    assert result.keys() == {"name", "outcome", "detail", "requirement", "needs", "seconds", "ended"}
    assert (result["name"], result["outcome"], result["needs"]) == ("case", "passed", ["values"])
    assert result["seconds"] > 0
    assert report.keys() == run_checks("numpy", cases=["base=50.0"]).as_dict().keys()


def test_a_random_call_that_fails_is_printed_as_a_command(elsewhere):
    module = MYLIB + "\n\ndef rare(x, pos):\n    return rotate(x, pos) + (x.shape[-1] == 132)\n"
    (elsewhere / "mylib.py").write_text(module, encoding="utf-8")
    claims = HALF + FEW_OF_ANY_WIDTH
    done = check_some(elsewhere, "widths", "mylib:rare", *claims, "--examples", "300", "--seed", "1")
    assert done.returncode == 1
    (line,) = (line for line in done.stdout.splitlines() if "--case" in line and "python -m" in line)
    assert line == f"  python -m rope_array check mylib:rare {' '.join(claims)} --case width=132"
    again = command(elsewhere, *line.split()[1:])
    assert again.returncode == 1
    assert again.stdout.startswith("FAILED: 1 of 1.")


def test_a_required_capability_that_is_refused_fails(elsewhere):
    module = MYLIB + "\n\ndef narrow(x, pos):\n    assert np.ndim(pos) == 1\n    return rotate(x, pos)\n"
    (elsewhere / "mylib.py").write_text(module, encoding="utf-8")
    required = ["--require", "batch_positions", "--require", "tuple,base"]
    done = check(elsewhere, "mylib:narrow", *HALF, "--claim", "dtypes=float32", *required)
    assert done.returncode == 1
    assert "batch_positions is required, and the target lacks it" in " ".join(done.stdout.split())
    assert "requires[batch_positions, tuple, base]" in done.stdout


def test_named_checks_are_run_alone(elsewhere):
    names = ["definition", "kind[float16]", "accuracy_small[float32]", "accuracy_small[float64]"]
    options = ["--only", "accuracy_small,definition", "--only", "kind[float16]", "--examples", "2", "--json"]
    done = check(elsewhere, "mylib:rotate", *HALF, *options, "--claim", "dtypes=float16,float32,float64")
    report = json.loads(done.stdout)
    ran = {result["name"]: result["outcome"] for result in report["results"]}
    assert {*names, "accuracy_small[float16]", "examples"} == {
        name for name, outcome in ran.items() if outcome == "passed"
    }
    assert ran.pop("accuracy_small[bfloat16]") == "not applicable"
    assert len(ran) == 6


def test_named_checks_find_their_faults_alone():
    def off(x, pos, base=10000.0):
        return ra.apply(x, pos, base=base) if base == 10000.0 else ra.apply(x, pos, base=base + 1)

    assert [result.name for result in check_backend(off, only=["norm", "kind"], **FEWER).of("passed")] == [
        "kind[float32]", "norm",
    ]  # fmt: skip
    with pytest.raises(ConformanceError, match="base: failed"):
        check_backend(off, only=["base"], **FEWER)
    (result,) = run_checks(Target(off, requires=["inv_freq"], **FEWER), only=("base",)).results
    assert (result.name, result.outcome) == ("base", "failed")


def test_names_of_checks_are_known_ones():
    with pytest.raises(ValueError, match="only: no check is named 'bases'; similar: base"):
        run_checks(rotate, only=["bases"])
    with pytest.raises(ValueError, match="only is 'norm'; give a collection of names"):
        check_backend(rotate, only="norm")
    with pytest.raises(ValueError, match="cases are judged alone; leave only out"):
        run_checks(rotate, only=["norm"], cases=["width=64"])


def test_what_does_not_apply_is_one_line_unless_asked_for(elsewhere):
    options = ["mylib:rotate", *HALF, *FEW]
    checks = "definition,norm,inv_freq,rotary_start"
    short = check_some(elsewhere, checks, *options).stdout
    (count,) = re.findall(r"^(\d+) do not apply; --verbose lists them\.$", short, re.MULTILINE)
    assert f"({count} do not apply" in short.splitlines()[0]
    assert "its signature does not name it" not in short
    verbose = check_some(elsewhere, checks, *options, "--verbose").stdout
    assert f"Not applicable ({count}):" in verbose
    assert "its signature does not name it" in " ".join(verbose.split())


# ---- the plugin ----


def plugin(folder, *arguments):
    return command(
        folder, "-m", "pytest", "-q", "-p", "rope_array.testing.plugin", "-p", "no:cacheprovider", *arguments
    )


def test_plugin_runs_every_check(elsewhere):
    claims = [option.replace("--claim", "--rope-claim") for option in HALF + FEW]
    done = plugin(elsewhere, "--rope-backend", "mylib:rotate", *claims, "-rs")
    assert done.returncode == 0, done.stdout
    assert "inv_freq: its signature does not name it" in done.stdout


def test_plugin_reports_failures_by_name(elsewhere):
    done = plugin(elsewhere, "--rope-backend", "mylib:backwards", "-k", "direction or kind")
    assert done.returncode == 1
    assert "mylib:backwards::direction" in done.stdout
    assert "required: A pair (1, 0)" in done.stdout


def test_plugin_names_the_likely_cause(elsewhere):
    done = plugin(elsewhere, "--rope-backend", "mylib:rotate", "-k", "definition or norm")
    assert done.returncode == 1
    assert "mylib:rotate: Likely cause: half pairing; try --claim pairing=half" in done.stdout


def test_plugin_runs_named_checks_alone(elsewhere):
    done = plugin(
        elsewhere, "--rope-backend", "mylib:rotate", *HALF_OF_PLUGIN, "--rope-only", "norm,definition"
    )
    assert done.returncode == 0, done.stdout
    assert "2 passed" in done.stdout
    unknown = plugin(elsewhere, "--rope-backend", "mylib:rotate", "--rope-only", "nrom")
    assert unknown.returncode == 4
    assert "no check is named 'nrom'; similar: norm" in unknown.stderr


def test_plugin_judges_in_a_child_process(ending):
    done = plugin(
        ending, "--rope-backend", "ending:exits", "--rope-claim", "pairing=half", "-k", "base or direction"
    )
    assert done.returncode == 1
    assert "found:    the process ended with exit status 0" in done.stdout
    assert "ending:exits::direction" not in done.stdout  # it passed
    assert "base_of_any_size" in done.stdout


def test_plugin_takes_the_options_of_the_command(elsewhere):
    options = ["--rope-claim", "pairing=half", "--rope-require", "axes", "--rope-thorough"]
    options += ["--rope-examples", "3", "--rope-seed", "2", "--rope-in-process"]
    done = plugin(elsewhere, "--rope-backend", "mylib:rotate", *options, "-k", "examples or requires")
    assert done.returncode == 1
    assert "1 failed, 1 passed" in done.stdout
    assert "axes is required, and the target lacks it: its signature does not name it" in done.stdout


def test_plugin_is_strict_about_expected_failures(elsewhere):
    options = ["--rope-backend", "mylib:backwards", "--rope-claim", "pairing=half", "-k", "direction or kind"]
    expected = plugin(elsewhere, *options, "--rope-expect", "direction=known, a link")
    assert expected.returncode == 0, expected.stdout
    unexpected = plugin(
        elsewhere, *options, "--rope-expect", "direction=known", "--rope-expect", "kind[float32]=?"
    )
    assert unexpected.returncode == 1
    assert "XPASS(strict)" in unexpected.stdout


def test_plugin_names_a_missing_library(elsewhere):
    done = plugin(elsewhere, "--rope-backend", "nolib:rotate")
    assert done.returncode == 4
    assert "nolib" in done.stderr


# ---- claims ----


def test_a_signature_is_a_claim():
    target = Target(rotate)
    assert {"base", "pairing"} <= target.claimed
    assert target.declines["rotary_dim"] == "its signature does not name it"


def test_a_default_of_the_signature_is_claimed():
    def by_half(x, pos, pairing="half", base=500.0):
        return ra.apply(x, pos, pairing=pairing, base=base)

    assert check_backend(by_half, only=sample("definition", "pairing", "base"), **FEWER).ok


def test_a_field_that_is_ignored_is_not_claimed():
    target = Target(lambda x, pos, base=10000.0, **more: ra.apply(x, pos, base=base))
    assert "changes nothing" in target.declines["rotary_dim"]
    assert "base" in target.claimed


def test_a_field_passed_in_spec_is_claimed():
    """`**spec` alone claims all fields; a field that changes nothing fails its check."""
    target = Target(lambda x, pos, **spec: ra.apply(x, pos), dtypes=("float32",))
    assert set(FIELDS) <= target.claimed
    names = {"base", "pairing", "inverse"}
    assert names <= {result.name for result in run_checks(target, only=sample(*names)).of("failed")}


def test_a_refused_field_is_not_claimed():
    def refusing(x, pos, **spec):
        if "inv_freq" in spec:
            raise NotImplementedError("no frequencies")
        return ra.apply(x, pos, **spec)

    report = check_backend(refusing, angles="exact", only=sample("inv_freq", "combinations"), **FEWER)
    assert report.target.declines["inv_freq"] == "refuses it: NotImplementedError: no frequencies"


def test_a_fault_in_a_field_is_no_refusal():
    def broken(x, pos, **spec):
        if "base" in spec:
            raise ZeroDivisionError
        return ra.apply(x, pos, **spec)

    assert "base" in {
        result.name for result in run_checks(broken, only=sample("base", "pairing"), **FEWER).of("failed")
    }


def test_refused_calls_are_listed():
    def only_rows(x, pos, base=10000.0):
        if np.ndim(pos) != 1:
            raise ValueError("positions of one axis only")
        return ra.apply(x, pos, base=base)

    declines = Target(only_rows).declines
    assert "positions of one axis only" in declines["batch_positions"]


def test_a_declared_target_is_not_tried():
    target = Target(rotate, fields=("base",), declared=True)
    assert {"tuple", "float_positions"} <= target.claimed


@pytest.mark.parametrize("layout", ["bhsd", "bshd", "sbhd", "bsd", "hsd", "shd", "sd"])
def test_axes_of_its_own(layout):
    def served(x, pos, base=10000.0):
        assert x.ndim == len(layout)
        moved = np.moveaxis(x, layout.index("s"), -2)
        if np.ndim(pos) == 2:  # one row of positions for each batch
            pos = np.reshape(pos, (len(pos),) + (1,) * (moved.ndim - 3) + np.shape(pos)[1:])
            moved = np.moveaxis(moved, layout.replace("s", "").index("b"), 0)
            y = ra.apply(moved, pos if moved.ndim > 3 else pos.reshape(len(pos), -1), base=base)
            y = np.moveaxis(y, 0, layout.replace("s", "").index("b"))
        else:
            y = ra.apply(moved, pos, base=base)
        return np.moveaxis(y, -2, layout.index("s"))

    names = ("definition", "ranks", "positions_of_a_batch", "combinations", "strides", "many_batches")
    report = check_backend(served, layout=layout, dtypes=("float32",), only=sample(*names))
    assert "definition" in {result.name for result in report.of("passed")}


@pytest.mark.parametrize("layout", ["bhsd", "bshd", "sd"])
def test_axes_that_are_mixed_up_fail(layout):
    def wrong(x, pos, base=10000.0):
        return ra.apply(x, pos[::-1].copy() if np.ndim(pos) else pos, base=base, seq_axis=-2)

    assert not run_checks(wrong, layout=layout, dtypes=("float32",), only=sample("definition")).ok


@pytest.mark.parametrize(
    "name", ["numpy", pytest.param("torch", marks=pytest.mark.library("torch"))], ids=["numpy", "torch"]
)
def test_strided_arrays_have_other_strides(name):
    lib = LIBRARIES[name]
    array = lib.asarray(np.arange(240.0).reshape(2, 3, 5, 8), "float32")
    made = dict(lib.strided(array))
    assert {"transposed", "a slice", "every second"} <= made.keys()
    for how, other in made.items():
        assert np.array_equal(lib.to_numpy(other), lib.to_numpy(array))
        assert lib.dtype_of(other) == "float32"
        strides = other.strides if name == "numpy" else other.stride()
        packed = strides == (array.strides if name == "numpy" else array.stride())
        assert packed == (how in ("a slice", "read-only")), how  # "a slice" starts inside of a buffer


@pytest.mark.parametrize("positions", ["any", "offset", "arange"])
def test_only_claimed_positions_are_tried(positions):
    seen = []

    def recording(x, pos, base=10000.0):
        seen.append(np.asarray(pos))
        return ra.apply(x, pos, base=base)

    lacks = {"tuple": "takes one array"}
    report = check_backend(
        recording, positions=positions, furthest=2**16, lacks=lacks, dtypes=("float32",),
        only=sample("definition", "accuracy_2e16", "positions_offset", "combinations", "many_rows"),
    )  # fmt: skip
    asked = [pos for pos in seen if pos.ndim == 1]
    contiguous = all((np.diff(pos) == 1).all() for pos in asked)
    from_zero = all(pos[:1].tolist() in ([], [0]) for pos in asked)
    assert contiguous == (positions != "any")
    assert from_zero == (positions == "arange")
    assert report.target.claimed.isdisjoint({"any_positions"} if positions != "any" else ())


def test_positions_beyond_a_table_are_not_tried():
    seen = []

    def recording(x, pos, base=10000.0):
        seen.append(np.max(np.abs(np.asarray(pos, dtype=float)), initial=0))
        return ra.apply(x, pos, base=base)

    names = ("accuracy_small", "accuracy_2e16", "combinations", "long_sequences_from_an_offset")
    report = check_backend(recording, furthest=2047, dtypes=("float32",), only=sample(*names))
    assert max(seen) <= 2047
    assert report.target.declines["reaches_2e16"] == "takes positions up to 2,047"


@pytest.mark.parametrize(
    "claims",
    [
        {"library": "nump"}, {"fields": ("bases",)}, {"fixed": {"pairings": "half"}}, {"positions": "all"},
        {"angles": "double"}, {"arithmetic": "bfloat16"}, {"lacks": {"speed": "slow"}}, {"dtypes": ("int8",)},
        {"layout": "hbds"},
    ],
)  # fmt: skip
def test_unknown_claims_are_refused(claims):
    with pytest.raises(ValueError, match=r"unknown|layout"):
        Target(rotate, **claims)


def test_an_object_that_is_not_callable_is_refused():
    with pytest.raises(ValueError, match="give a callable"):
        Target(np.ones(2))


def test_a_target_is_not_claimed_for_twice():
    with pytest.raises(ValueError, match="has its claims already"):
        check_backend(Target(rotate), angles="exact")


# ---- reports ----


def test_checks_have_stable_names_and_reasons():
    """Users list expected failures by name: the changelog has removed and changed names."""
    assert len({each.name for each in checks()}) == len(checks())
    for each in checks():
        assert len(each.requirement) > 20
        assert each.requirement.endswith(".")
        assert set(each.needs) <= {*CAPABILITIES, *PART_NAMES}


def test_iter_checks_runs_applicable_checks():
    ran = [each.name for each, run in iter_checks(rotate, **FEWER) if run() is None]
    assert ran == [result.name for result in run_checks(rotate, **FEWER).of("passed")]


def test_expected_failures_are_strict_both_ways():
    def off(x, pos, base=10000.0):
        return ra.apply(x, pos, base=base) if base == 10000.0 else ra.apply(x, pos, base=base + 1)

    judged = {**FEWER, "only": sample("base", "definition", "inv_freq", "combinations")}
    failing = {result.name: "known, a link" for result in run_checks(off, **judged).of("failed")}
    assert "base" in failing
    assert check_backend(off, expected_failures=failing, **judged).ok
    with pytest.raises(ConformanceError, match="base"):
        check_backend(off, **judged)
    with pytest.raises(ConformanceError, match="definition: unexpected pass"):
        check_backend(off, expected_failures={**failing, "definition": "why"}, **judged)
    with pytest.raises(ConformanceError, match=r"inv_freq: unexpected pass: .* not applicable"):
        check_backend(off, expected_failures={**failing, "inv_freq": "why"}, **judged)


def test_expected_failures_need_a_reason():
    with pytest.raises(ValueError, match="give the reason"):
        check_backend(rotate, expected_failures={"base": " "})
    with pytest.raises(ValueError, match="no check is named 'bases'"):
        check_backend(rotate, expected_failures={"bases": "why"})


def test_a_missing_library_is_an_error(monkeypatch):
    monkeypatch.setattr(type(LIBRARIES["cupy"]), "module", "no_such_library")
    vars(LIBRARIES["cupy"]).pop("native", None)
    with pytest.raises(MissingLibrary, match="needs the package no_such_library"):
        resolve("cupy")


def test_worst_errors_are_measured():
    """A float32 angle at 2^20 is off by hundredths, an exact angle by a rounding."""

    def float32_angles(x, pos, base=10000.0):
        omega = np.float32(base) ** (
            -np.arange(0, x.shape[-1], 2, dtype=np.float32) / np.float32(x.shape[-1])
        )
        angle = np.asarray(pos).astype(np.float32)[..., None] * omega
        cos, sin = np.cos(angle), np.sin(angle)
        if angle.ndim == 3:
            cos, sin = cos[:, None], sin[:, None]
        a, b = x[..., ::2].astype(np.float32), x[..., 1::2].astype(np.float32)
        y = np.stack([a * cos - b * sin, b * cos + a * sin], -1).reshape(x.shape)
        return y.astype(x.dtype)

    far = ("accuracy_2e16", "accuracy_2e20", "accuracy_2e24", "accuracy_int32")
    report = run_checks(
        float32_angles, angles="float32", arithmetic="float32", dtypes=("float32",),
        only=sample("definition", "accuracy_small", *far),
    )  # fmt: skip
    failed = {result.name.partition("[")[0] for result in report.of("failed")}
    assert {"accuracy_2e20", "accuracy_2e24", "accuracy_int32"} <= failed
    assert failed.isdisjoint({"accuracy_small", "accuracy_2e16", "definition"})
    assert 1e-2 < report.worst["2^20"] < 1
    assert run_checks(rotate, only=sample(*far), **FEWER).worst["2^20"] < 3e-7


# ---- kinds of targets, and their faults ----


class Tables:
    """A module with tables for one head_dim and positions below `rows`."""

    def __init__(self, head_dim=64, rows=300, base=10000.0):
        angle = np.arange(rows)[:, None] * base ** (-np.arange(0, head_dim, 2) / head_dim)
        self.cos, self.sin = np.cos(angle), np.sin(angle)

    def __call__(self, x, pos):
        if np.any(np.asarray(pos) < 0):
            raise IndexError("rows count from 0")
        cos, sin = self.cos[pos], self.sin[pos]
        if cos.ndim == 3:
            cos, sin = cos[:, None], sin[:, None]
        a, b = np.split(x.astype(np.float64), 2, axis=-1)
        return np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1).astype(x.dtype)


@pytest.mark.slow
@pytest.mark.parametrize(("head_dim", "rows"), [(16, 3000), (64, 32), (128, 300)])
def test_the_limits_of_a_module_are_found(head_dim, rows):
    """The module declares neither limit: the suite finds both by trying, and reports them."""
    names = ("definition", "accuracy_small", "positions_of_a_batch", "widths", "many_rows", "combinations")
    report = check_backend(Tables(head_dim, rows), fixed={"pairing": "half"}, only=sample(*names))
    passed = {result.name for result in report.of("passed")}
    assert {"definition", "accuracy_small[float16]", "positions_of_a_batch"} <= passed
    assert report.target.declines["wide_heads"] == f"takes a head_dim of {head_dim} only"
    assert report.target.taken_widths == (head_dim,)
    assert "rows count from 0" in report.target.declines["negative_positions"]
    assert report.target.reach == rows - 1


def test_limits_of_a_module_may_be_claimed():
    claims = {"fixed": {"pairing": "half"}, "head_dim": 64, "furthest": 599, "dtypes": ("float32",)}
    names = ("definition", "widths", "accuracy_small", "many_rows")
    report = check_backend(Tables(64, 600), only=sample(*names), **claims)
    assert report.as_dict()["claims"] == {**claims, "dtypes": ["float32"]}
    assert report.target.reach == 599


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("rotary_dim", 8), ("rotary_dim", 32), ("rotary_start", 3), ("inv_freq", (1.0, 0.5, 0.2) * 3),
        ("attention_factor", 1.2), ("out_pairing", "half"), ("base", 500.0),
    ],
)  # fmt: skip
def test_fixed_fields_apply_to_every_call(field, value):
    names = ("definition", "kind", "combinations", "widths", "accuracy_2e20", "strides", "norm")
    claims = {"fixed": {field: value}, **FEWER_OF_ANY_WIDTH, "only": sample(*names)}
    assert check_backend(lambda x, pos: ra.apply(x, pos, **{field: value}), **claims).ok


def test_the_other_field_of_a_built_in_slice_is_claimed():
    def by_start(x, pos, rotary_dim=None):
        return ra.apply(x, pos, rotary_start=8, rotary_dim=rotary_dim)

    def by_width(x, pos, rotary_dim=16, rotary_start=0):
        return ra.apply(x, pos, rotary_dim=rotary_dim, rotary_start=rotary_start)

    some = {**FEWER, "only": sample("rotary_dim", "rotary_start", "combinations")}
    assert "rotary_dim" in check_backend(by_start, fixed={"rotary_start": 8}, **some).target.claimed
    assert "rotary_start" in check_backend(by_width, **some).target.claimed


def test_defaults_of_the_call_in_a_signature():
    def rotate(x, pos, seq_axis=-3, inverse=True):
        return ra.apply(x, pos, seq_axis=seq_axis, inverse=inverse)

    names = ("seq_axis", "inverse", "combinations")
    assert {"seq_axis", "inverse"} <= check_backend(rotate, only=sample(*names)).target.claimed


def test_positions_of_heads_in_a_layout_without_batch():
    """(B, H, S) positions become (H, S) for each batch."""
    names = ("positions_of_heads", "definition")
    report = check_backend(lambda x, pos: ra.apply(x, pos), layout="hsd", only=sample(*names))
    assert "positions_of_heads" in {result.name for result in report.of("passed")}


def test_a_wrong_layout_is_named():
    def rotate(x, pos):
        assert x.shape[1] == len(pos), "positions are those of axis 1"
        return ra.apply(x, pos, seq_axis=-3)

    cause = run_checks(rotate, only=sample("definition", "direction", "accuracy_small")).cause
    assert cause.text == "the layout of x is (b, s, h, d)"
    assert cause.options == "--claim layout=bshd"


@pytest.mark.parametrize(
    "error", [NotImplementedError, SystemExit, KeyError, "a message that cannot be read"]
)
def test_a_function_that_refuses_every_call_fails(error):
    class Unreadable(Exception):
        def __str__(self):
            raise RuntimeError

    def rotate(x, pos):
        raise Unreadable if isinstance(error, str) else error(0)

    report = run_checks(rotate, only=sample("definition", "norm", "base", "combinations"))
    assert not report.ok
    assert "definition" in {result.name for result in report.of("failed")}


def test_a_target_that_changes_settings_fails_one_check():
    def rotate(x, pos, base=10000.0):
        y = ra.apply(x, pos, base=base)
        np.seterr(all="raise")
        return y

    names = ("definition", "settings_unchanged", "nonfinite", "norm")
    report = run_checks(rotate, only=sample(*names))
    assert [result.name for result in report.of("failed")] == ["settings_unchanged"]


@pytest.mark.parametrize(
    "claims",
    [
        {"fixed": {"pairing": "neox"}}, {"fixed": {"rotary_dim": 7}}, {"fixed": {"base": "abc"}},
        {"fixed": {"inverse": True}}, {"fixed": ["pairing"]}, {"dtypes": ()}, {"dtypes": "float32"},
        {"furthest": "abc"}, {"furthest": True}, {"furthest": -1}, {"head_dim": 1},
        {"head_dim": (64, "80")}, {"layout": 3},
        {"angles": ["exact"]}, {"lacks": ["gradient"]}, {"lacks": {"gradient": " "}}, {"wraps": "jit"},
        {"declared": "no"}, {"expected_failures": ["norm"]},
    ],
)  # fmt: skip
def test_claims_without_a_meaning_are_refused(claims):
    with pytest.raises(ValueError, match=r"give|unknown|built-in|needs|empty"):
        Target(rotate, **claims)


def test_claims_are_checked_when_they_are_made():
    with pytest.raises(ValueError, match="unknown target"):
        iter_checks("numppy")
    with pytest.raises(ValueError, match=r"unknown claim 'angels'; did you mean angles\?"):
        run_checks(rotate, angels="exact")


def test_names_of_targets_have_no_address():
    assert Target(Tables()).name.endswith("test_suite:Tables")
    assert Target(functools.partial(rotate, base=500.0)).name.endswith("test_suite:rotate")


FAULTY = """
import numpy as np
from mylib import rotate as good
print("imported")

def prints(x, pos):
    print("called")
    return good(x, pos)

def exits(x, pos):
    raise SystemExit(0)

def unprintable(x, pos):
    raise ValueError("\\udcff \\x1b[31m \\x00 \u03c0")

def nan(x, pos):
    return x * np.nan

def wide(x, pos):
    return good(x, pos).astype(np.float64)
"""


@pytest.fixture
def faulty(elsewhere):
    (elsewhere / "faulty.py").write_text(FAULTY, encoding="utf-8")
    for name, text in (("quits", "raise SystemExit(0)"), ("broken", "1 / 0"), ("unsaid", "raise ValueError")):
        (elsewhere / f"{name}.py").write_text(text, encoding="utf-8")
    return elsewhere


def test_standard_output_has_json_alone(faulty):
    done = check_some(faulty, "definition,norm", "faulty:prints", "--json", *HALF, *FEW)
    assert json.loads(done.stdout)["ok"]
    assert "imported" in done.stderr
    nan = check_some(faulty, "definition,accuracy_small", "faulty:nan", "--json").stdout
    strict = json.loads(nan, parse_constant=pytest.fail)
    assert strict["worst"]["small"] is None
    assert strict["claims"] == {}


def test_exits_are_failures(faulty):
    assert check_some(faulty, "definition,norm", "faulty:exits", *FEW).returncode == 1


@pytest.mark.parametrize("exception", [SystemExit(0), GeneratorExit()])
def test_an_exit_in_a_trial_call_is_no_refusal(exception):
    def rotate(x, pos, base=10000.0):
        if x.shape[-1] == 8:
            raise exception
        return ra.apply(x, pos, base=base)

    names = ("refusals_raise", "definition", "narrow_heads", "combinations")
    report = run_checks(rotate, only=sample(*names), **FEWER_OF_ANY_WIDTH)
    assert [result.name for result in report.of("failed")] == ["refusals_raise"]
    assert type(exception).__name__ in report.of("failed")[0].detail


def test_output_in_any_encoding(faulty):
    for options in (["faulty:unprintable", *FEW, "--only", "definition,norm"], ["--list"]):
        done = command(faulty, "-m", "rope_array", "check", *options, encoding="ascii")
        assert done.returncode == (0 if options == ["--list"] else 1)
        assert "Traceback" not in done.stderr
        assert "\x1b" not in done.stdout


@pytest.mark.parametrize("module", ["quits", "broken", "unsaid"])
def test_modules_that_cannot_be_imported_are_named(faulty, module):
    done = check(faulty, f"{module}:rotate")
    assert done.returncode == 2
    assert f"cannot import {module}: " in done.stderr
    assert f"({module}.py, line 1)" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.skipif(os.name == "nt", reason="pipes of a POSIX shell")
def test_a_reader_that_stops_changes_no_verdict(faulty):
    options = " ".join((*FEW, "--only", "kind,definition"))
    judged = f"{sys.executable} -m rope_array check faulty:wide {options} --json"
    script = f"{judged} | head -1; echo ${{PIPESTATUS[0]}}"
    done = command(faulty, "-c", script, program=("bash",))
    assert done.stdout.split()[-1] == "1"


def test_without_assertions_nothing_is_judged(faulty):
    done = command(faulty, "-O", "-m", "rope_array", "check", "faulty:wide")
    assert done.returncode == 2
    assert "run without -O" in done.stderr


def test_plugin_imports_from_the_current_folder(elsewhere):
    """`pytest`, unlike `python -m pytest`, does not import from the current folder by itself."""
    script = "import sys, pytest; sys.path[:] = [p for p in sys.path if p not in ('', sys.argv[1])]; "
    script += (
        "sys.exit(pytest.main(['-q', '-p', 'rope_array.testing.plugin', '--rope-backend', 'mylib:rotate', "
    )
    script += "'--rope-claim', 'pairing=half', '-k', 'definition', '-p', 'no:cacheprovider']))"
    done = command(elsewhere, "-c", script, str(elsewhere))
    assert done.returncode == 0, done.stdout + done.stderr


def test_plugin_reports_an_expected_failure_that_does_not_apply(elsewhere):
    done = plugin(
        elsewhere, "--rope-backend", "mylib:rotate", "--rope-claim", "pairing=half", "-k", "inv_freq",
        "--rope-expect", "inv_freq=known",
    )  # fmt: skip
    assert done.returncode == 1
    assert "not applicable" in done.stdout


@pytest.mark.parametrize("option", [HALF_OF_PLUGIN, ("--rope-only", "norm")], ids=["claim", "only"])
def test_plugin_options_need_a_target(elsewhere, option):
    done = plugin(elsewhere, *option)
    assert done.returncode == 4
    assert f"{option[0]} needs a --rope-backend" in done.stderr
