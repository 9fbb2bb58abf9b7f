"""`python -m rope_array check` and the pytest plugin: options, reports as text, JSON and JUnit XML."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from conftest import sample

from rope_array.__main__ import main
from rope_array.testing import Result, run_checks
from rope_array.testing._checks import checks
from rope_array.testing._command import lines_of
from rope_array.testing._names import names

# Users' embeddings.
MYLIB = '''
"""Rotary embeddings of somebody else."""
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

def narrow(x, pos):
    assert np.ndim(pos) == 1
    return rotate(x, pos)

def unprintable(x, pos):
    raise ValueError("\\udcff \\x1b[31m \\x00 \u03c0")

def nan(x, pos):
    return x * np.nan
'''
MODULES = {
    "mylib.py": MYLIB,
    "quits.py": "raise SystemExit(0)",
    "broken.py": "1 / 0",
    "unsaid.py": "raise ValueError",
}
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


@pytest.fixture(autouse=True)
def in_folder(folder, monkeypatch):
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.chdir(folder)


@pytest.fixture
def check(capsys):
    """Return a function that runs the command; it returns the exit status, the output and the errors."""

    def run(*arguments):
        try:
            status = main(["check", *arguments])
        except SystemExit as error:  # argparse's
            status = error.code
        return status, *capsys.readouterr()

    return run


def python(*arguments, flags=(), cwd=None, **environment):
    """Run Python as a user does, who imports from the current folder; return the process."""
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"}
    return subprocess.run(
        [sys.executable, *flags, *arguments], capture_output=True, text=True, encoding="utf-8", cwd=cwd,
        env={**variables, "PYTHONIOENCODING": "utf-8", **environment}, timeout=120, check=False,
    )  # fmt: skip


# ---- reports ----


@pytest.fixture(scope="module")
def failing(folder):
    """The report in JSON of a faulty module, and its JUnit file."""
    only = ("--only", "kind,direction,tuples,base,inv_freq,norm")
    done = python(
        "-m", "rope_array", "check", "mylib:backwards", *FEW, *only, "--expect", "base=known", "--json",
        "--junit", "report.xml", cwd=folder,
    )  # fmt: skip
    assert done.returncode == 1
    return json.loads(done.stdout), ElementTree.parse(folder / "report.xml").getroot()


def test_json_counts_outcomes(failing):
    report, _ = failing
    assert not report["ok"]
    for outcome, count in report["counts"].items():
        assert count == sum(result["outcome"] == outcome for result in report["results"])
    assert report["counts"]["failed"] > 0
    assert "inv_freq" in report["declines"]


def test_text_has_the_requirement_and_the_finding_of_a_failure(failing):
    lines = [*lines_of(failing[0], ["check", "mylib:backwards"])]
    assert max(map(len, lines)) <= 110
    failed = "\n".join(lines).partition("Failed (")[2].partition("Passed (")[0]
    for text in ("\n  tuples\n", "    required: ", "    found:    ", " direction"):
        assert text in failed


def test_junit_has_a_test_case_for_each_check(failing):
    report, root = failing
    (suite,) = root.iter("testsuite")
    cases = {case.get("name"): case for case in suite.iter("testcase")}
    assert [*cases] == [result["name"] for result in report["results"]]
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


def test_a_report_that_cannot_be_written_is_printed():
    script = (
        "import sys; from rope_array.__main__ import main; from rope_array.testing import _command; "
        "_command.write_junit = lambda *_: open('no/such/file', 'w'); "
        "sys.exit(main(['check', 'numpy', '--case', 'base=50.0', '--junit', 'report.xml']))"
    )
    done = python("-c", script)
    assert done.returncode == 2
    assert done.stdout.startswith("PASSED: 1 of 1")
    assert "no/such/file" in done.stderr


def test_json_has_requirements_needs_and_times(check):
    status, out, _ = check("mylib:rotate", *HALF, "--case", "base=50.0", "--json")
    (result,) = json.loads(out)["results"]
    assert result.keys() == {*Result.__dataclass_fields__}
    assert (status, result["name"], result["outcome"], result["needs"]) == (0, "case", "passed", ["values"])
    assert result["seconds"] > 0
    assert json.loads(out).keys() == run_checks("numpy", cases=["base=50.0"]).as_dict().keys()


def test_json_has_no_infinity(check):
    _, out, _ = check("mylib:nan", "--json", *FEW, "--only", "definition,accuracy_small")
    assert json.loads(out, parse_constant=pytest.fail)["worst"]["small"] is None


def test_every_check_passes_in_a_module_of_the_current_folder():
    options = ("--require", "base", "--require", "rotary_dim,float32")
    done = python("-m", "rope_array", "check", "mylib:rotate", *FEW, *options, "--json")
    required = [f"requires[{name}]" for name in ("base", "rotary_dim", "float32")]
    assert done.returncode == 0, done.stdout + done.stderr
    names = [result["name"] for result in json.loads(done.stdout)["results"]]
    assert names == [*(each.name for each in checks()), *required]


@pytest.mark.parametrize(
    ("only", "options", "status", "texts"),
    [
        ("norm,definition", (*FEW, "--expect", "norm=why"), 1, ["FAILED: 1 of 2", "remove their --expect"]),
        ("definition,direction,base", FEW[2:], 1, ["Likely cause: half pairing; try --claim pairing=half"]),
        ("definition,inv_freq", FEW, 0, ["(1 do not apply", "1 do not apply; --verbose lists them."]),
        ("definition,inv_freq", (*FEW, "--verbose"), 0, ["Not applicable (1):", "inv_freq: its signature"]),
    ],
    ids=["unexpected pass", "cause", "not applicable", "verbose"],
)
def test_messages_of_a_report(only, options, status, texts, check):
    done, out, _ = check("mylib:rotate", *options, "--only", only)
    assert done == status
    for text in texts:
        assert text in " ".join(out.split())


def test_a_random_call_that_fails_is_printed_as_a_command(check):
    options = ["--examples", "60", "--seed", "1", "--only", "norm"]
    status, out, _ = check("mylib:rare", *FEW_OF_ANY_WIDTH, *options)
    assert status == 1
    (line,) = (line for line in out.splitlines() if "--case" in line and "python -m" in line)
    assert line == f"  python -m rope_array check mylib:rare {' '.join(FEW_OF_ANY_WIDTH)} --case width=132"
    status, out, _ = check(*line.split()[4:])
    assert (status, out[: len("FAILED: 1 of 1.")]) == (1, "FAILED: 1 of 1.")


def test_the_example_of_the_documentation_prints_as_shown(tmp_path, monkeypatch):
    page = PAGE.read_text("utf-8")
    monkeypatch.chdir(tmp_path)
    for name, code in re.findall(r"^```python\n# (\w+\.py)\n(.*?)^```$", page, re.MULTILINE | re.DOTALL):
        (tmp_path / name).write_text(code, "utf-8")
    (shown,) = re.findall(r"^```text\n\$ python (.*? mine:rotate .*?)^```$", page, re.MULTILINE | re.DOTALL)
    first, *lines = shown.splitlines()
    printed = python(*first.split()).stdout.splitlines()
    assert printed[:4] == lines[:4]
    assert next(line for line in printed if line.endswith("--verbose lists them.")) in lines
    for start in ("Failed (", "Passed (", "  Cause: "):
        shown = [line for line in lines if line.startswith(start)]
        assert [line for line in printed if line.startswith(start)] == shown
    names = sample("definition", "direction", "many_rows", "accuracy_2e16", "accuracy_2e20")
    only = ["--only", ",".join(names)] if names else []
    assert python(*printed[4].split()[1:], *only).stdout.startswith("PASSED: ")
    script = (
        "import functools, rope_array.testing as suite; "
        f"suite.check_backend = functools.partial(suite.check_backend, only={names}); "
        "import test_mine; test_mine.test_rotate_conforms()"
    )
    assert python("-c", script).returncode == 0


# ---- options ----


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nump"], "unknown target 'nump'"),
        (["nunpy"], "Did you mean numpy?"),
        (["mylib"], "package.module:attribute"),
        (["nolib:rotate"], "nolib"),
        (["mylib.py:rotate"], "cannot import mylib.py"),
        (["./mylib:rotate"], "the module as `import` takes it"),
        (["mylib:rotat"], "no attribute 'rotat'"),
        (["mylib:np.pi"], "give a callable"),
        (["quits:rotate"], "cannot import quits: SystemExit: 0 (quits.py, line 1)"),
        (["broken:rotate"], "(broken.py, line 1)"),
        (["unsaid:rotate"], "(unsaid.py, line 1)"),
        (["cupy"], "cupy"),
        (["torch:cuda"], "torch"),
        (["jax:gpu"], "jax"),
        (["numpy", "--backend", "cuda"], "cuda"),
        (["numpy", "--claim", "pairing=half"], "claim it for a callable"),
        (["mylib:rotate", "--backend", "array-api"], "leave it out"),
        (["mylib:rotate", "--library", "nump"], "unknown library 'nump'; did you mean numpy?"),
        (["mylib:rotate", "--claim", "angels=exact"], "angels"),
        (["mylib:rotate", "--claim", "angles"], "NAME=VALUE"),
        (["mylib:rotate", "--claim", "angles=precise"], "known: exact"),
        (["mylib:rotate", "--claim", "foo=1"], "unknown claim 'foo'; known: "),
        (["mylib:rotate", "--claim", "rank=1 axis"], "unknown claim 'rank'; did you mean ranks"),
        (["mylib:rotate", "--claim", "ranks[9]=why"], "ranks has the parts 1, 2, 3, 4, 5, 6"),
        (["mylib:rotate", "--claim", "batch_positions=yes"], "--require batch_positions to insist on it"),
        (["mylib:rotate", "--claim", "batch_positions=False"], "give the reason why the target lacks it"),
        (["mylib:rotate", "--claim", "pairing=neox"], "pairing must be one of"),
        (["mylib:rotate", "--claim", "furthest=abc"], "give an integer"),
        (["mylib:rotate", "--claim", "layout=bshd", "--claim", "layout=sd"], "give it once"),
        (["mylib:rotate", "--expect", "definition"], "give NAME=VALUE"),
        (["mylib:rotate", "--expect", "definition="], "give the reason"),
        (["mylib:rotate", "--expect", "definitions=why"], "no check is named 'definitions'"),
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
        (["mylib:rotate", "--timeout", "9"], "give no timeout with in-process"),
    ],
)
def test_unusable_arguments_are_explained(arguments, message, check):
    """In this process, where no other has to start."""
    status, out, err = check(*arguments, "--in-process")
    assert status == 2, out
    assert message in err
    assert "Traceback" not in err


def test_targets_and_checks_are_listed(check):
    status, out, _ = check("--list")
    assert status == 0
    for name in [*names(), *(each.name.partition("[")[0] for each in checks())]:
        assert f"  {name} " in out


def test_named_checks_are_run_alone(check):
    options = ["--only", "accuracy_small,definition", "--only", "kind[float16]", "--examples", "2", "--json"]
    _, out, _ = check("mylib:rotate", *HALF, *options, "--claim", "dtypes=float16,float32,float64")
    outcomes = {result["name"]: result["outcome"] for result in json.loads(out)["results"]}
    assert outcomes.pop("accuracy_small[bfloat16]") == "not applicable"
    kinds = {f"accuracy_small[{dtype}]" for dtype in ("float16", "float32", "float64")}
    assert outcomes == dict.fromkeys({*kinds, "definition", "kind[float16]", "examples"}, "passed")


# The process that prints is the judge itself, or its parent, which one call is enough to see.
@pytest.mark.parametrize(
    "options",
    [
        pytest.param(("--case", "base=50.0"), id="child"),
        pytest.param(("--in-process", "--only", "definition,threads"), id="in-process"),
        pytest.param(("--in-process",), id="every check", marks=pytest.mark.nightly),
    ],
)
def test_needs_neither_pytest_nor_another_library(options):
    script = (
        f"import sys; from rope_array.__main__ import main; status = main(['check', 'numpy', *{options}]); "
        "print(status, *sorted({n.partition('.')[0] for n in sys.modules} & "
        "{'pytest', 'torch', 'jax', 'dask', 'array_api_strict', 'hypothesis', 'mpmath'}))"
    )
    done = python("-c", script)
    assert done.stdout.splitlines()[-1] == "0", done.stdout[-500:] + done.stderr


@pytest.mark.parametrize("options", [["mylib:unprintable", "--only", "norm"], ["--list"]])
def test_output_in_any_encoding(options):
    done = python("-m", "rope_array", "check", *options, PYTHONIOENCODING="ascii")
    assert done.returncode == (0 if options == ["--list"] else 1)
    assert "Traceback" not in done.stderr
    assert "\x1b" not in done.stdout


@pytest.mark.skipif(os.name == "nt", reason="pipes of a POSIX shell")
def test_a_reader_that_stops_changes_no_verdict():
    judged = f"unset PYTHONSAFEPATH; {sys.executable} -m rope_array check mylib:nan --only definition --json"
    script = f"{judged} | head -1; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", script], capture_output=True, check=False)
    assert done.stdout.split()[-1] == b"1"


def test_without_assertions_nothing_is_judged():
    done = python("-m", "rope_array", "check", "numpy", "--in-process", flags=("-O",))
    assert done.returncode == 2
    assert "run without -O" in done.stderr


# ---- the plugin ----

PLUGIN = ("-q", "-p", "rope_array.testing.plugin", "-p", "no:cacheprovider")
HALF_OF_PLUGIN = ("--rope-claim", "pairing=half")


def plugin(target, *options):
    return python("-m", "pytest", *PLUGIN, *(["--rope-backend", target] if target else []), *options)


@pytest.mark.parametrize(
    ("target", "options", "status", "texts"),
    [
        ("rotate", (*HALF_OF_PLUGIN, "-k", "definition or inv_freq", "-rs"), 0,
         ["1 passed, ", " skipped", "inv_freq: its signature does not name it"]),
        ("backwards", ("-k", "direction or norm"), 1,
         ["mylib:backwards::direction", "mylib:backwards: Likely cause: ", "required: A pair", "found: "]),
        ("rotate", (*HALF_OF_PLUGIN, "--rope-only", "norm,inv_freq", "--rope-expect", "norm=?",
                    "--rope-expect", "inv_freq=known"), 1, ["2 failed", "XPASS(strict)", "not applicable"]),
        ("rotate", (*HALF_OF_PLUGIN, "--rope-require", "axes", "--rope-thorough", "--rope-examples", "3",
                    "--rope-seed", "2", "--rope-in-process", "-k", "examples or requires"), 1,
         ["1 failed, 1 passed", "axes is required, and the target lacks it: its signature"]),
        ("backwards", (*HALF_OF_PLUGIN, "--rope-only", "direction", "--rope-expect", "direction=known"), 0,
         ["1 xfailed"]),
        ("rotate", ("--rope-only", "nrom"), 4, ["no check is named 'nrom'; similar: norm"]),
        ("nolib", (), 4, ["--rope-backend"]),
        ("", ("--rope-only", "norm"), 4, ["--rope-only needs a --rope-backend"]),
    ],
    ids=["skipped", "cause", "unexpected", "options", "expected", "unknown check", "no target", "alone"],
)  # fmt: skip
def test_plugin(target, options, status, texts):
    done = plugin(target and f"mylib:{target}", *options)
    assert done.returncode == status, done.stdout + done.stderr
    for text in texts:
        assert text in done.stdout + done.stderr


@pytest.mark.nightly
def test_plugin_runs_every_check():
    assert plugin("mylib:rotate", *HALF_OF_PLUGIN).returncode == 0


def test_plugin_judges_in_a_child_process_what_it_imports_from_the_current_folder(folder):
    """`pytest`, unlike `python -m pytest`, does not import from the current folder by itself."""
    (folder / "ends.py").write_text(
        "import os\nimport rope_array as ra\n"
        "def rotate(x, pos, *, base=1e4):\n"
        "    return os._exit(3) if base == 1e6 else ra.apply(x, pos, base=base)\n"
    )
    script = "import sys, pytest; sys.path[:] = [p for p in sys.path if p not in ('', sys.argv[1])]; "
    script += (
        f"sys.exit(pytest.main([*{PLUGIN}, '--rope-backend', 'ends:rotate', '--rope-only', 'base,norm']))"
    )
    done = python("-c", script, str(folder))
    assert done.returncode == 1
    assert "found:    the process ended with exit status 3" in done.stdout
    assert "1 failed, 1 passed" in done.stdout
