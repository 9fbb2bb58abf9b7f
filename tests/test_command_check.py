"""`python -m rope_array check` and the pytest plugin: options, exit statuses, reports as text, JSON, XML."""

import importlib
import io
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import child
import pytest
from conftest import sample

import rope_array.testing as suite
from rope_array.testing import Result, _command, plugin, run_checks
from rope_array.testing._checks import checks
from rope_array.testing._compilers import library_names

# Users' embeddings.
MYLIB = '''
"""Rotary embeddings of somebody else."""
import os
import numpy as np
import rope_array as ra
print("imported")

def rotate(x, pos, base=10000.0, rotary_dim=None):
    """Half pairing; its own defaults."""
    return ra.apply(x, pos, base=base, rotary_dim=rotary_dim, pairing="half")

def backwards(x, pos, base=10000.0):
    return rotate(x, -np.asarray(pos), base)

def rare(x, pos):
    return rotate(x, pos) + (132 <= x.shape[-1] < 160)

def unprintable(x, pos):
    raise ValueError("\\udcff \\x1b[31m \\x00 \u03c0")

def nan(x, pos):
    return x * np.nan

def ends(x, pos, *, base=1e4):
    return os._exit(3) if base == 1e6 else ra.apply(x, pos, base=base)
'''
MODULES = {"mylib.py": MYLIB, "quits.py": "raise SystemExit(0)", "unsaid.py": "raise ValueError"}
PAGE = Path(__file__).parents[1] / "docs" / "conformance.md"
# Claims of a user's module. With one dtype, one layout and one head_dim, a third of the calls is left.
HALF = ("--claim", "pairing=half")
FEW_OF_ANY_WIDTH = (*HALF, "--claim", "dtypes=float32", "--claim", "layout=sd")
FEW = (*FEW_OF_ANY_WIDTH, "--claim", "head_dim=16")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder outside of the repository, with a user's modules."""
    folder = tmp_path_factory.mktemp("elsewhere")
    for name, text in MODULES.items():
        (folder / name).write_text(text, encoding="utf-8")
    return folder


@pytest.fixture
def in_folder(folder, monkeypatch):
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.chdir(folder)


@pytest.fixture
def check(command, in_folder):
    """Return a function that runs `check` in this process: the exit status, the output, the errors."""
    return lambda *arguments: command(["check", *arguments, "--in-process"])


# ---- reports ----


@pytest.fixture(scope="module")
def failing(folder):
    """The report in JSON of a faulty module, judged in a child process, and its JUnit file."""
    only = ("--only", "kind,direction,tuples,base,inv_freq,norm", "--expect", "base=known")
    files = ("--json", "--junit", "report.xml")
    done = child.python("-m", "rope_array", "check", "mylib:backwards", *FEW, *only, *files, cwd=folder)
    assert done.returncode == 1
    return json.loads(done.stdout), ElementTree.parse(folder / "report.xml").getroot()


def test_json_has_results_and_counts_of_outcomes(failing):
    report, _ = failing
    assert not report["ok"]
    for outcome, count in report["counts"].items():
        assert count == sum(check["outcome"] == outcome for check in report["results"])
    assert report["counts"]["failed"] > 0
    assert "inv_freq" in report["declines"]
    assert report["results"][0].keys() == {*Result.__dataclass_fields__}


def test_text_has_the_requirement_and_the_finding_of_a_failure(failing):
    lines = [*_command.lines_of(failing[0], ["check", "mylib:backwards"])]
    assert max(map(len, lines)) <= 110
    failed = "\n".join(lines).partition("Failed (")[2].partition("Passed (")[0]
    for text in ("\n  tuples\n", "    required: ", "    found:    ", " direction"):
        assert text in failed


def test_junit_has_a_test_case_for_each_check(failing):
    report, root = failing
    (suite,) = root.iter("testsuite")
    cases = {case.get("name"): case for case in suite.iter("testcase")}
    assert [*cases] == [check["name"] for check in report["results"]]
    assert int(suite.get("tests")) == int(root.get("tests")) == len(cases)
    for tag, count in (("failure", "failures"), ("skipped", "skipped")):
        assert len([*suite.iter(tag)]) == int(suite.get(count)) == int(root.get(count)) > 0
    (failure,) = cases["direction"].iter("failure")
    required, _, detail = failure.text.partition("\nfound:    ")
    assert required.startswith("required: A pair (1, 0) becomes")
    assert failure.get("message") == detail
    (skipped,) = cases["inv_freq"].iter("skipped")
    assert skipped.get("message").endswith(report["declines"]["inv_freq"])
    assert cases["base"].find("skipped").get("message").startswith("expected failure: known")
    seconds = [float(case.get("time")) for case in cases.values()]
    assert 0 < sum(seconds) <= float(suite.get("time"))


def test_a_report_that_cannot_be_written_is_printed(check, monkeypatch):
    monkeypatch.setattr(_command, "write_junit", lambda *_: Path("no/such/file").touch())
    status, out, err = check("numpy", "--case", "base=50.0", "--junit", "report.xml")
    assert (status, out[:14]) == (2, "PASSED: 1 of 1")
    assert "no/such/file" in err


def test_json_has_no_infinity(check):
    _, out, _ = check("mylib:nan", "--json", *FEW, "--only", "accuracy_small")
    assert json.loads(out, parse_constant=pytest.fail)["worst"]["small"] is None


@pytest.mark.parametrize(
    ("option", "text"), [("", "--verbose lists them"), ("--verbose", "Not applicable (1)")]
)
def test_verbose_tells_why_a_check_does_not_apply(option, text, check):
    status, out, _ = check("mylib:rotate", *FEW, "--only", "definition,inv_freq", *option.split())
    assert (status, text in out) == (0, True)


def test_a_random_call_that_fails_is_printed_as_a_command(check):
    options = ["--examples", "60", "--seed", "1", "--only", "norm"]
    status, out, _ = check("mylib:rare", *FEW_OF_ANY_WIDTH, *options)
    assert status == 1
    (line,) = (line for line in out.splitlines() if "--case" in line and "python -m" in line)
    assert line == f"  python -m rope_array check mylib:rare {' '.join(FEW_OF_ANY_WIDTH)} --case width=132"
    status, out, _ = check(*line.split()[4:])
    assert (status, out[:15]) == (1, "FAILED: 1 of 1.")


def test_the_example_of_the_documentation_prints_as_shown(tmp_path, monkeypatch, command):
    """The session `nightly` runs every check, and compares all causes; counts change with the suite."""
    page = PAGE.read_text("utf-8")
    for name, code in re.findall(r"^```python\n# (\w+\.py)\n(.*?)^```$", page, re.MULTILINE | re.DOTALL):
        (tmp_path / name).write_text(code, "utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    (shown,) = re.findall(r"^```text\n\$ python (.*? mine:rotate .*?)^```$", page, re.MULTILINE | re.DOTALL)
    first, *lines = shown.splitlines()
    names = sample("definition", "direction", "many_rows", "accuracy_2e16", "accuracy_2e20")
    only = ["--only", ",".join(names)] if names else []

    def printed_by(line):
        arguments = line.partition(" rope_array ")[2].split()
        return command([*arguments, *only, "--in-process"])[1].splitlines()

    printed = printed_by(first)
    assert printed[0].partition(". ")[2] == lines[0].partition(". ")[2] != ""
    assert printed[1:4] == lines[1:4]
    starts = ("  Cause: ",) if names else ("FAILED: ", "Failed (", "Passed (", "  Cause: ")
    of_printed, of_page = (
        [re.sub(r"(FAILED: |\()\d+( of \d+)?", r"\1N", line) for line in text if line.startswith(starts)]
        for text in (printed, lines)
    )
    assert of_printed == of_page
    assert printed_by(printed[4])[0].startswith("PASSED: ")
    with monkeypatch.context() as patch:
        patch.setattr(suite, "check_backend", lambda *a, **k: run_checks(*a, only=names, **k).ok or 1 / 0)
        importlib.import_module("test_mine").test_rotate_conforms()


# ---- options ----

UNUSABLE = [
    ("nump", "unknown target 'nump'"),
    ("mylib.py:rotate", "cannot import mylib.py"),
    ("quits:rotate", "cannot import quits: SystemExit: 0 (quits.py, line 1)"),
    ("unsaid:rotate", "(unsaid.py, line 1)"),
    ("torch:cuda", "torch"),
    ("numpy --backend cuda", "cuda"),
    ("numpy --claim pairing=half", "claim it for a callable"),
    ("mylib:rotate --backend array-api", "leave it out"),
    ("mylib:rotate --claim angles", "NAME=VALUE"),
    ("mylib:rotate --claim layout=bshd --claim layout=sd", "give it once"),
    ("mylib:rotate --expect definition", "give NAME=VALUE"),
    ("mylib:rotate --expect accuracy_negative=why", "accuracy_negative[float16]"),
    ("mylib:rotate --examples -1", "give the number of random calls, 0 or more"),
    ("mylib:rotate --examples many", "invalid int value"),
    ("mylib:rotate --seed 1", "give their number with --examples"),
    ("mylib:rotate --case width=64 --examples 3", "leave --examples out"),
    ("mylib:rotate --only norm[float8]", "no check is named 'norm[float8]'; similar: norm"),
    ("mylib:rotate --only norm --case width=64", "leave only out"),
    ("mylib:rotate --only norm --require base", "leave --only out"),
    ("mylib:rotate --junit no/such/report.xml", "give a file in a folder that exists"),
    ("mylib:rotate --timeout 0", "give seconds above 0"),
    ("mylib:rotate --timeout 9", "give no timeout with in-process"),
]


@pytest.mark.parametrize(("arguments", "message"), UNUSABLE)
def test_unusable_arguments_are_explained(arguments, message, check):
    status, out, err = check(*arguments.split())
    assert status == 2, out
    assert message in err
    assert "Traceback" not in err


def test_targets_and_checks_are_listed(check):
    status, out, _ = check("--list")
    assert status == 0
    for name in [*library_names(), *(check.name.partition("[")[0] for check in checks())]:
        assert f"  {name} " in out


def test_named_checks_are_run_alone(check):
    options = ["--only", "accuracy_small,definition", "--only", "kind[float16]", "--examples", "2", "--json"]
    _, out, _ = check("mylib:rotate", *HALF, *options, "--claim", "dtypes=float16,float32,float64")
    outcomes = {check["name"]: check["outcome"] for check in json.loads(out)["results"]}
    assert outcomes.pop("accuracy_small[bfloat16]") == "not applicable"
    of_dtypes = {f"accuracy_small[{dtype}]" for dtype in ("float16", "float32", "float64")}
    assert outcomes == dict.fromkeys({*of_dtypes, "definition", "kind[float16]", "examples"}, "passed")


# ---- the process ----


def test_judging_imports_neither_pytest_nor_another_library(folder):
    only = [name for names in sample("definition,threads") for name in ("--only", names)]
    script = f"""if True:
        import sys
        from rope_array.__main__ import main
        print(main(["check", "numpy", "--in-process", *{only}]))
        modules = {{name.partition(".")[0] for name in sys.modules}}
        print(*modules & {{"pytest", "torch", "jax", "dask", "array_api_strict", "hypothesis", "mpmath"}})
    """
    done = child.python("-c", script, cwd=folder)
    assert done.stdout.splitlines()[-2:] == ["0", ""], done.stdout[-500:] + done.stderr


def test_output_in_any_encoding(check, monkeypatch):
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), "ascii"))
    status, *_ = check("mylib:unprintable", "--only", "norm")
    printed = sys.stdout.buffer.getvalue().decode("ascii")
    assert status == 1
    assert "\\udcff" in printed
    assert "\x1b" not in printed


@pytest.mark.skipif(os.name == "nt", reason="pipes of a POSIX shell")
def test_a_reader_that_stops_changes_no_verdict(folder):
    judged = f"unset PYTHONSAFEPATH; {sys.executable} -m rope_array check mylib:nan --only definition --json"
    script = f"{judged} --in-process | head -1; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", script], cwd=folder, capture_output=True, check=False)
    assert done.stdout.split()[-1] == b"1"


def test_without_assertions_nothing_is_judged(folder):
    done = child.python("-O", "-m", "rope_array", "check", "numpy", "--in-process", cwd=folder)
    assert done.returncode == 2
    assert "run without -O" in done.stderr


# ---- the plugin ----

PLUGIN = ("-q", "-p", plugin.__name__, "-p", "no:cacheprovider")
MINE = "--rope-claim pairing=half --rope-in-process --rope-backend mylib:"
BOTH = "--rope-only norm,inv_freq --rope-expect norm=? --rope-expect inv_freq=known"
THOROUGH = "--rope-require axes --rope-thorough --rope-examples 3 --rope-seed 2 -k 'examples or requires'"
# The options, the exit status, and texts that are printed.
RUNS = {
    "skipped": (f"{MINE}rotate -k 'norm or inv_freq' -rs", 0, ["1 passed, ", "inv_freq: its signature"]),
    "cause": (f"{MINE}backwards -k direction", 1, ["::direction", "cause: ", "required: ", "found: "]),
    "unexpected": (f"{MINE}rotate {BOTH}", 1, ["2 failed", "and passed", "and not applicable"]),
    "required": (f"{MINE}rotate {THOROUGH}", 1, ["1 failed, 1 passed", "axes is required"]),
    "expected": (f"{MINE}backwards --rope-only direction --rope-expect direction=known", 0, ["1 xfailed"]),
    "unknown check": (f"{MINE}rotate --rope-only nrom", 4, ["no check is named 'nrom'; similar: norm"]),
    "no target": ("--rope-only norm", 4, ["--rope-only needs a --rope-backend"]),
    "every check": pytest.param(f"{MINE}rotate", 0, [" passed"], marks=pytest.mark.nightly),
}


@pytest.mark.usefixtures("in_folder")
@pytest.mark.parametrize(("options", "status", "texts"), RUNS.values(), ids=RUNS)
def test_plugin(options, status, texts, monkeypatch, capsys):
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)
    # Without the settings of this repository, in which the folder may be.
    arguments = ("-c", os.devnull, "-p", "no:faulthandler", *shlex.split(options))
    assert pytest.main([*PLUGIN, *arguments]) == status
    printed = "".join(capsys.readouterr())
    for text in texts:
        assert text in printed


def test_plugin_judges_in_a_child_process_what_it_imports_from_the_current_folder(folder, monkeypatch):
    """`pytest`, unlike `python -m pytest`, does not import from the current folder by itself."""
    script = f"""if True:
        import sys, pytest
        sys.path[:] = [path for path in sys.path if path not in ("", sys.argv[1])]
        target = ("--rope-backend", "mylib:ends", "--rope-only", "base,norm")
        sys.exit(pytest.main([*{PLUGIN}, *target]))
    """
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # they take seconds to import
    done = child.python("-c", script, folder, cwd=folder)
    assert done.returncode == 1
    assert "found:    the process ended with exit status 3" in done.stdout
    assert "1 failed, 1 passed" in done.stdout
