"""The command line, but for `check`, `demo` and `plot`; the example backend of docs/write-a-backend.md."""

import contextlib
import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import child
import fake_package
import numpy as np
import oracle
import pytest
from conftest import NIGHTLY, sample
from refusals import TABLE

import rope_array as ra
from rope_array import _registry
from rope_array._backends import _native
from rope_array._command._config_report import report
from rope_array._command._rope_options import parse_rule
from rope_array._config._model_defaults import MODELS

EXPLAINED = tomllib.loads((oracle.GOLDEN / "explained.toml").read_text("utf-8"))
PAGE = Path(__file__).resolve().parent.parent / "docs" / "write-a-backend.md"


def in_one_line(text):
    return " ".join(text.split())


# ---- no command ----


def test_without_a_command_the_help_is_shown(command):
    status, out, _ = command("")
    assert (status, out) == (0, command("--help")[1])
    assert all(f"  {name}" in out for name in ("demo", "check", "backends", "explain", "fingerprint", "plot"))
    assert command("--version")[:2] == (0, f"rope_array {ra.__version__}\n")
    assert child.python("-P", "-m", "rope_array", "--version").stdout == f"rope_array {ra.__version__}\n"


@pytest.mark.parametrize(
    ("line", "status", "text"),
    [
        ("draw", 2, "invalid choice: 'draw'"),
        ("backends numpy", 2, "usage: python -m rope_array"),
        ("explain --shape", 2, "expected one argument"),
        ("backends --help", 0, "exit status: 0; 2"),
        ("explain --help", 0, "exit status: 0; 2"),
    ],
)
def test_arguments_that_end_the_command(line, status, text, command):
    done, *output = command(line)
    assert done == status
    assert text in "".join(output)


COMMANDS = {
    "help": "--help",
    "help of a command": "explain --help",
    "version": "--version",
    "demo": "demo",
    "backends": "backends",
    "explain": "explain --shape 1,2,3,4",
    "fingerprint": "fingerprint --head-dim 8",
    "check": "check numpy --only definition",
    "list of checks": "check --list",
    "plot": "plot rotation -o plot.svg",
}


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device of this system is always full")
@pytest.mark.parametrize("line", COMMANDS.values(), ids=COMMANDS)
def test_an_output_that_cannot_be_written_has_its_own_status(line, tmp_path):
    """The status of a failed check is 1, which is Python's of a traceback too."""
    command, options = [sys.executable, "-P", "-m", "rope_array", *line.split()], {"cwd": tmp_path}
    if "plot" in line:
        pytest.importorskip("matplotlib")
    with open("/dev/full", "wb") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, check=False, **options)
    assert done.returncode == 2
    assert b"rope_array: standard output cannot be written: No space left on device" in done.stderr
    assert b"Traceback" not in done.stderr
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options) as process:
        process.stdout.close()
        assert b"Traceback" not in process.stderr.read()
    assert process.returncode == 0


# ---- backends ----


def test_lists_without_importing(tmp_path):
    """A description of a config imports no library either."""
    (tmp_path / "config.json").write_text(json.dumps(LLAMA), "utf-8")
    for command in (["explain", str(tmp_path)], ["backends"]):
        done = child.python("-P", "-X", "importtime", "-m", "rope_array", *command)
        assert done.returncode == 0
        assert all(line.startswith("import time:") for line in done.stderr.splitlines())
        assert "rope_array._command" in done.stderr
        assert not re.search(r"\| +(numpy|torch|jax|dask|matplotlib)$", done.stderr, re.MULTILINE)
    rows = [f"{record.name} {', '.join(record.types)} ?" for record in _registry.RECORDS]
    rows.append("array-api any array with the Array API yes written against the Python Array API")
    table, _, after_table = in_one_line(done.stdout).partition(" --import ")
    assert table.endswith(" ".join(rows).replace("?", "? its library is not imported"))
    assert after_table


@pytest.mark.without("strict")  # array-api-strict has no backend of its own
def test_each_backend_describes_itself(lib, command):
    status, out, err = command("backends --import")
    assert (status, err) == (0, "")
    assert max(map(len, out.splitlines())) <= 100
    assert "--import" not in out
    backends = {backend.name: backend for backend in ra.backends() if backend.serves.startswith(lib.name)}
    for name, backend in backends.items():
        usable = {True: "yes", False: "no"}[backend.usable]
        assert f"{name} {backend.serves} {usable} {backend.description}" in in_one_line(out)
    if lib.name != "numpy":  # which has the kernel alone
        assert backends[lib.name].usable
        assert ("C++ kernel" in backends[lib.name].description) == (lib.name == "jax")
    if "native" in backends:
        word = "instructions" if backends["native"].usable else "the C++ kernel is "
        assert word in backends["native"].description


@pytest.fixture
def numpy_alone(tmp_path):
    """Return the environment of a process in which no other library of a backend is installed."""
    for name in ("torch", "jax", "dask", "cubed"):
        (tmp_path / f"{name}.py").write_text(f"raise ModuleNotFoundError(name={name!r})", "utf-8")
    return {"PYTHONPATH": os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])}


def test_a_library_that_does_not_load_is_named_without_control_characters(numpy_alone, tmp_path):
    """A kernel that is switched off is not usable."""
    raising = "raise OSError('\\x1b]0;title\\x07\\nlibdask.so')"
    (tmp_path / "dask.py").write_text(raising, "utf-8")
    settings = {**numpy_alone, "ROPE_ARRAY_KERNEL_LEVEL": "none"}
    done = child.python("-P", "-m", "rope_array", "backends", "--import", **settings)
    assert done.returncode == 0
    expected = "dask.array cannot be imported: OSError: \\x1b]0;title\\x07\\nlibdask.so\n"
    assert done.stderr == f"rope_array backends: {expected}"
    assert "dask dask.array:Array ? " in in_one_line(done.stdout)
    assert "native numpy:ndarray no the C++ kernel " in in_one_line(done.stdout)


@pytest.mark.skipif(_native.kernel is None, reason="needs the C++ kernel")
def test_an_unknown_level_is_named(numpy_alone):
    settings = {**numpy_alone, "ROPE_ARRAY_KERNEL_LEVEL": "pentium"}
    done = child.python("-P", "-m", "rope_array", "backends", "--import", **settings)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "ROPE_ARRAY_KERNEL_LEVEL is 'pentium'" in done.stderr


# ---- explain ----


def test_explains_a_call_of_each_library(lib, command):
    done = command(f"explain --library {lib.name} --dtype {lib.dtypes[0]} --shape 2,3,8")
    x = lib.asarray(np.zeros((2, 3, 8), np.float32), lib.dtypes[0])
    assert done == (0, f"{ra.explain(x, range(3))}\n", "")


FOR_NUMPY = f"backend: {'native' if _native.kernel else 'array-api'}\n"


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("--dtype float64 --shape 3,8", "rotated: float64 in float64"),
        ("--backend array-api --pairing half", "backend: array-api\n"),
        # A vector, an empty array, and terabytes: the size does not choose the backend.
        *((f"--shape {shape}", FOR_NUMPY) for shape in ("8", "2,0,3,8", "1,100000,1000000,128")),
    ],
)
def test_explains_a_call(line, text, command):
    status, out, _ = command(f"explain {line}")
    assert status == 0
    assert text in out


def one_line(done, name):
    """Return the message of a command that fails: one line."""
    status, out, err = done
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(f"rope_array {name}: ")
    return err


@pytest.mark.parametrize(("line", "text"), TABLE["explain"].items())
def test_explain_refuses_unknown_calls(line, text, command):
    assert text in one_line(command(f"explain {line}"), "explain")


@pytest.mark.library("numpy", "strict")
def test_a_missing_dtype_is_named_with_the_reason(command):
    done = command("explain --library array_api_strict --dtype float16")
    assert "has float32, float64 here (the standard has none)" in one_line(done, "explain")


def test_takes_fields_of_a_rope(monkeypatch, command):
    calls = []
    monkeypatch.setattr(ra, "explain", lambda x, pos, rope, backend: calls.append((rope, backend)))
    fields = "--base 1e6 --rotary-dim 64 --pairing half --scaling DynamicNTK(2.0,512) --length 2048"
    assert command(f"explain {fields} --shape 3,96")[0] == 0
    scaling = ra.DynamicNTK(2.0, 512, length=2048)
    assert calls == [(ra.RoPE(96, base=1e6, rotary_dim=64, pairing="half", scaling=scaling), None)]


LONG = ra.LongRoPE((1.0, 1.5), (2.0, 4.0), 512, 2.0)


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        (" ra.Linear( factor = 2 ) ", ra.Linear(2.0)),
        ("rope_array.NTKAware(4.0, variant='fixed')", ra.NTKAware(4.0, variant="fixed")),
        ("YaRN(factor=4.0, original_max_position_embeddings=32768)", ra.YaRN(4.0, 32768)),
        ("YaRN(4.0, 512, truncate=False, mscale=None)", ra.YaRN(4.0, 512, truncate=False)),
        ("Reversed(Linear(2.0))", ra.Reversed(ra.Linear(2.0))),
        ("Reversed()", ra.Reversed()),
        ("Periods", ra.Periods()),
        (repr(LONG), LONG),
    ],
)
def test_parses_rules(text, rule):
    assert parse_rule(text) == rule


@pytest.mark.parametrize(
    "text",
    [
        "", "Linear(", "linear(2.0)", "RoPE(8)", "Linear(2.0).factor", "__import__('os').getcwd()",
        "Linear(__import__('os').getpid())", "Linear(*[2.0])", "Linear(**{'factor': 2.0})", "Linear(1 + 1)",
        "Linear(factor)", "Linear(2.0), Linear(2.0)", "lambda: Linear(2.0)", "Linear(2.0)\0",
        "Reversed(" * 900 + ")" * 900, "Linear(2.0" + " " * 10_000 + ")",
    ],
    ids=lambda text: text[:24] or "empty",
)  # fmt: skip
def test_refuses_what_is_no_rule(text):
    with pytest.raises(ra.SpecError, match=r"^--scaling is .*; give the call of a rule with plain"):
        parse_rule(text)


# ---- explain CONFIG ----

LLAMA = {
    "model_type": "llama", "hidden_size": 4096, "num_attention_heads": 32, "num_hidden_layers": 32,
    "max_position_embeddings": 131072, "rope_theta": 500000.0, "rope_scaling": {"rope_type": "llama3",
    "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192},
}  # fmt: skip


@pytest.fixture
def explained(tmp_path, command):
    """Explain a config; return the text with single spaces, and the lines."""

    def explain(config, *options):
        file = tmp_path / "config.json"
        file.write_text(json.dumps(config), "utf-8")
        status, out, err = command(["explain", str(file), *options])
        assert (status, err) == (0, "")
        assert max(map(len, out.replace(str(file), "").splitlines())) <= 100
        return in_one_line(out), out.splitlines()

    return explain


def test_config_is_another_name(explained, command, tmp_path):
    _, lines = explained(LLAMA, "--length", "8192")
    file = str(tmp_path / "config.json")
    assert command(["config", file, "--length", "8192"]) == (0, "\n".join(lines) + "\n", "")
    status, out, err = command("config missing.json")
    assert (status, out) == (2, "")
    assert err.startswith("rope_array config: no file")


def test_a_config_is_described_in_words_and_tables(explained):
    text, lines = explained(LLAMA)
    rows = [line.split() for line in lines]
    assert lines[0].endswith("config.json: llama")
    wavelengths = 2 * np.pi * 5e5 ** (np.arange(64) / 64)
    # Below 8192/4 a wavelength is kept; above 8192 the frequency is divided by 8.
    kept, divided = (wavelengths < 2048).sum(), (wavelengths > 8192).sum()
    longer = (8 * wavelengths > 131072).sum()
    for sentence in (
        "All 32 layers share one rotary embedding.",
        "All 128 features of a head are rotated, in 64 pairs.",
        "Pair i is features i and i + 64 (pairing 'half').",
        f"The base is 500,000. Llama3 keeps the frequency of {kept} pairs, divides the frequency of "
        f"{divided} pairs by 8, changes the frequency of {64 - kept - divided} pairs by other factors.",
        f"The wavelengths are 6.283 to {8 * wavelengths[-1]:,.0f} positions.",
        f"{longer} pairs never rotate once in a context of 131,072 positions.",
        "pair wavelength without the rule rotations in the context",
        "RoPE(head_dim=128, base=500000.0, pairing='half', scaling=Llama3(factor=8.0, low_freq_factor=1.0,",
    ):
        assert sentence in text
    for row in (
        ["0", "6.283", "6.283", f"{131072 / 2 / np.pi:,.0f}"],
        ["63", f"{8 * wavelengths[-1]:,.0f}", f"{wavelengths[-1]:,.0f}",
         f"{131072 / 8 / wavelengths[-1]:.4g}"],
    ):  # fmt: skip
        assert row in rows
    words = [re.match(r"\w*", line)[0] for line in lines]
    first, inferred, doubtful = map(words.index, ("Stated", "Inferred", "Doubtful"))
    assert ["rope_theta", "500000.0"] in rows[first:inferred]
    assert ["pairing", "'half'"] in rows[inferred:doubtful]
    assert lines[doubtful:] == ["Doubtful: nothing"]


@pytest.mark.parametrize("name", EXPLAINED)
def test_sentences_of_other_models(name, explained):
    case = EXPLAINED[name]
    text, _ = explained(case["config"], *case.get("options", ()))
    for sentence in case["sentences"]:
        assert sentence in text
    assert case["absent"] not in text


@pytest.mark.nightly
def test_every_known_model_is_described_or_refused():
    described = 0
    for model_type in MODELS:
        with contextlib.suppress(ra.ConfigError):
            _, *lines = report({"model_type": model_type}, None, None, None)
            assert max(map(len, lines)) <= 100
            described += 1
    assert described > 300


# ---- the example backend of docs/write-a-backend.md ----


@pytest.fixture
def installed(tmp_path, monkeypatch, command):
    """Install the example package, as pip does; return a function that runs a command with it."""
    page = PAGE.read_text("utf-8")
    for text, name in re.findall(r"^```python\n(# (\S+)\n.*?)^```$", page, re.MULTILINE | re.DOTALL):
        file = tmp_path / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(text, "utf-8")
    (toml,) = re.findall(r"^```toml\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    section = re.sub(r'\[project\.entry-points\."(.*)"\]', r"[\1]", toml).replace('"', "")
    fake_package.write_metadata(tmp_path, "mylib", section)
    monkeypatch.syspath_prepend(tmp_path)

    def forget():
        for name in [name for name in sys.modules if name.partition(".")[0] == "mylib"]:
            del sys.modules[name]

    def run(line="--version"):
        """Run a command with the package as it is now in the folder."""
        forget()
        fake_package.forget_records(monkeypatch)
        return command(line)

    yield run
    forget()


def only(checks, options=""):
    """Return the command that runs these checks alone, NAME,NAME; in the session `nightly` every check."""
    alone = f"--only {checks}" if sample(checks) else ""
    return f"check numpy --in-process {alone} {options}"


def edited(tmp_path, before, after):
    """Change a line of the example backend."""
    path = tmp_path / "mylib" / "backend.py"
    text = path.read_text("utf-8")
    assert before in text
    path.write_text(text.replace(before, after), "utf-8")


CASES = "--case base=500.0 --case pairing=interleaved"


def test_the_example_backend_is_found_first_and_conforms(installed):
    _, listed, _ = installed("backends --import")
    assert " about mylib numpy:ndarray yes float32, whole heads of pairs in halves " in in_one_line(listed)
    assert installed("explain --pairing half")[1].startswith("backend: mylib\n")
    assert "declined: mylib: it serves pairs in halves" in installed("explain")[1]
    assert "backend: mylib" not in installed("explain --pairing half --dtype float64")[1]
    forced = one_line(installed("explain --backend mylib"), "explain")
    assert "does not serve float32[1, 32, 2048, 128] (numpy)" in forced
    status, out, _ = installed(only("pairing,definition,combinations,accuracy_small,many_heads"))
    assert status == 0, out
    assert re.search(r"Calls by backend: mylib \d+, .*array-api \d+; --backend NAME", in_one_line(out))
    _, out, _ = installed(f"check numpy --in-process --backend mylib {CASES}")
    assert re.search(r"Calls: mylib served [\d,]+, and declined [\d,]+: it serves pairs in halves \(", out)
    assert "every call that names no pairing has pairing=half" in out


LAST_DECLINE = "    return None if 2 * layout.num_pairs"
# Further calls that the example declines; the default run has the one that restricts most.
DECLINES = {
    "all but two widths": "    if layout.head_dim not in (64, 128): return 'a head_dim of 64 or 128'\n",
    "nothing more": "",
    "small arrays": "    if any(x.size < 65536 for x in xs): return '65,536 elements or more'\n",
    "strided arrays": "    if not all(x.flags.c_contiguous for x in xs): return 'contiguous arrays'\n",
    "positions": "    if hasattr(source, 'values'): return 'tables of cos and sin'\n",
}
# An error of 1e-4 in the sine.
ERROR = ("a, b = np.split(x, 2, axis=-1)", "sin = sin + np.float32(1e-4)\n    a, b = np.split(x, 2, axis=-1)")
FLOAT32 = {f"accuracy_{far}[float32]" for far in ("small", "2e16", "int32")}


@pytest.mark.slow
@pytest.mark.parametrize("declines", DECLINES if NIGHTLY else [*DECLINES][:1])
def test_a_backend_is_judged_by_the_calls_that_it_serves(installed, tmp_path, declines):
    """It serves float32 and pairs in halves only; the suite's own calls are interleaved."""
    edited(tmp_path, LAST_DECLINE, DECLINES[declines] + LAST_DECLINE)
    accuracy = "accuracy_small,accuracy_2e16,accuracy_int32"
    small = "rotations_add,scaling_yarn,size_one_axes"
    checks = f"{accuracy},{small},kind,pairing,combinations,widths"
    status, out, err = installed(only(checks, "--backend mylib --json"))
    assert status == 0, out[:1000] + err
    report = json.loads(out)
    outcomes = {check["name"]: check["outcome"] for check in report["results"]}
    assert {outcomes[name] for name in FLOAT32} == {"passed"}
    assert outcomes["accuracy_small[float64]"] == "not applicable"
    if declines != "small arrays":  # of one or two rows, a few heads, and a head_dim of 16
        assert {outcomes[name] for name in small.split(",")} == {"passed"}
    assert report["served"]["mylib"] >= 10
    assert report["served"].keys() == {"mylib"}
    assert report["declined"]["it serves pairs in halves"] > 10

    edited(tmp_path, *ERROR)
    status, out, _ = installed(only(accuracy, "--backend mylib --json"))
    failed = {r["name"] for r in json.loads(out)["results"] if r["outcome"] == "failed"}
    assert status == 1
    assert failed >= FLOAT32


def test_a_backend_that_serves_no_call_is_refused(installed, tmp_path):
    edited(tmp_path, LAST_DECLINE, "    return 'it is asleep'\n" + LAST_DECLINE)
    error = one_line(installed(only("norm", "--backend mylib")), "check")
    assert re.search("backend 'mylib' serves no call.*it is asleep", error)
    assert " mylib 0, " in installed(f"check numpy --in-process {CASES}")[1]


TWO_WIDTHS = (LAST_DECLINE, DECLINES["all but two widths"] + LAST_DECLINE)
AT_128 = (ERROR[0], "sin = sin + np.float32(1e-4) * (x.shape[-1] == 128)\n    " + ERROR[0])
# Faults of the example backend: lines before and after, checks that see the fault, and text of the report.
FAULTS = {
    "at one width of two": ([TWO_WIDTHS, AT_128], "widths,definition", "--backend mylib", "\n  widths\n"),
    # A backend declines by decline_reason alone. Its rotate fails if it raises NotImplementedError, which
    # counts as a refusal in a plain function.
    "an exception": ([(ERROR[0], "raise NotImplementedError('later')")], "definition,norm,widths",
                     "--backend mylib", "NotImplementedError: later"),
    # The suite would pass too if it never called the backend.
    "a sign": ([("b * cos + a * sin", "b * cos - a * sin")], "pairing,definition", "", "\n  pairing\n"),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_the_suite_finds_a_fault_in_the_example_backend(installed, tmp_path, name):
    edits, checks, options, text = FAULTS[name]
    for edit in edits:
        edited(tmp_path, *edit)
    status, out, _ = installed(f"check numpy --in-process --only {checks} {options}")
    assert (status, out[:8]) == (1, "FAILED: ")
    assert text in out


@pytest.mark.library("torch")
@pytest.mark.skipif(_native.kernel is None, reason="the kernel is needed")
@pytest.mark.usefixtures("fresh_dynamo")
def test_a_backend_without_compiled_calls_is_refused(monkeypatch, command):
    import torch

    from rope_array._backends.torch import native

    def decline_reason(*call, served=native.decline_reason):
        return "the call is compiled" if torch.compiler.is_compiling() else served(*call)

    monkeypatch.setattr(native, "decline_reason", decline_reason)
    error = one_line(command("check torch:compile --backend native --in-process"), "check")
    assert "serves no compiled call" in error
