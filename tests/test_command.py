"""The command line, but for `check`, `demo` and `plot`; the example backend of docs/backends.md."""

import contextlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import child
import numpy as np
import pytest
from conftest import sample

import rope_array as ra
from rope_array import _explain, _registry
from rope_array.__main__ import main
from rope_array._backends import _native
from rope_array._command._config_report import report
from rope_array._command._rope_options import parse_rule
from rope_array._config._model_defaults import MODELS

PAGE = Path(__file__).resolve().parent.parent / "docs" / "backends.md"
LIBRARIES = ("numpy", "torch", "jax", "dask")


def command(*arguments, **environment):
    return subprocess.run(
        [sys.executable, "-P", "-m", "rope_array", *arguments],
        env={**os.environ, **environment}, capture_output=True, text=True, encoding="utf-8", timeout=120,
        check=False,
    )  # fmt: skip


def from_folder(folder):
    """Return the environment of a child process that imports from `folder` first."""
    return {"PYTHONPATH": os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])}


def rows(output):
    """Return the table's rows, {(name, serves): (usable, about)}, and the text below the table."""
    table, _, rest = output.partition("\n\n")
    head, *lines = table.splitlines()
    ends = [head.index(word) for word in ("serves", "usable", "about")]
    found = {}
    for line in lines:
        name, serves, usable, about = (
            line[a:b].strip() for a, b in zip([0, *ends], [*ends, None], strict=True)
        )
        if name:
            key = name, serves
            found[key] = usable, about
        else:  # a continuation of the row above
            found[key] = found[key][0], f"{found[key][1]} {about}"
    return found, rest


# ---- no command ----


def test_the_version():
    done = command("--version")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"rope_array {ra.__version__}\n", "")


def test_without_a_command_the_help_is_shown():
    done = command()
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == command("--help").stdout
    for name in ("demo", "check", "backends", "explain", "plot", "--version"):
        assert f"  {name}" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "status", "text"),
    [
        ("draw", 2, "invalid choice: 'draw'"), ("backends numpy", 2, "usage: python -m rope_array"),
        ("explain a b", 2, "usage: python -m rope_array"), ("explain --shape", 2, "expected one argument"),
        ("backends --help", 0, "exit status: 0; 2"), ("explain --help", 0, "exit status: 0; 2"),
    ],
)  # fmt: skip
def test_arguments_that_end_the_command(arguments, status, text, capsys):
    with pytest.raises(SystemExit) as exit_:
        main(arguments.split())
    assert exit_.value.code == status
    assert text in "".join(capsys.readouterr())


# ---- backends ----


def test_lists_without_importing():
    """Run in a new process, which has imported no library."""
    done = command("backends")
    assert (done.returncode, done.stderr) == (0, "")
    found, rest = rows(done.stdout)
    wanted = [(record.name, ", ".join(record.types)) for record in _registry.RECORDS]
    *given, core = found
    assert given == wanted
    assert {found[backend] for backend in given} == {("?", "its library is not imported")}
    assert core[0] == "array-api"
    assert found[core] == ("yes", "written against the Python Array API")
    assert "--import" in rest


def test_brings_in_no_library():
    script = """
        import sys
        from rope_array.__main__ import main
        assert main(["backends"]) == 0
        print(*sorted({name.partition(".")[0] for name in sys.modules} & set(sys.argv[1:])))
    """
    assert child.run(script, *LIBRARIES).splitlines()[-1] == ""


@pytest.mark.without("strict")  # array-api-strict has no backend of its own
def test_each_backend_describes_itself(lib):
    done = command("backends", "--import")
    assert (done.returncode, done.stderr) == (0, "")
    found, rest = rows(done.stdout)
    own = {name: row for (name, serves), row in found.items() if serves.startswith(lib.name)}
    usable, about = own[lib.name]
    assert usable == "yes"
    assert ("C++ kernel" in about) if lib.name == "jax" else not about
    assert not rest
    if "native" in own:
        usable, about = own["native"]
        assert (usable, "instructions" in about) in [("yes", True), ("no", False)]
        assert usable == "yes" or "the C++ kernel is " in about


def test_a_kernel_that_is_switched_off_is_not_usable():
    found, _ = rows(command("backends", "--import", ROPE_ARRAY_KERNEL_LEVEL="none").stdout)
    usable, about = found["native", "numpy:ndarray"]
    assert usable == "no"
    assert about.startswith("the C++ kernel ")


def test_fits_a_terminal(monkeypatch, capsys):
    """A backend's description is wrapped."""
    long = _explain.Backend("other", "mylib:" + "A" * 40, False, "it cannot be used " * 20)
    monkeypatch.setattr(ra, "backends", lambda: (long, *[long] * 2))
    assert main(["backends"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) > 10
    assert max(map(len, lines)) <= 100


def test_a_library_that_does_not_load_is_named_without_control_characters(tmp_path):
    (tmp_path / "dask").mkdir()
    (tmp_path / "dask" / "__init__.py").write_text(
        "raise OSError('\\x1b]0;title\\x07\\nlibdask.so')", "utf-8"
    )
    done = command("backends", "--import", **from_folder(tmp_path))
    assert done.returncode == 0
    expected = "dask.array cannot be imported: OSError: \\x1b]0;title\\x07\\nlibdask.so\n"
    assert f"rope_array backends: {expected}" in done.stderr
    assert done.stderr.replace("\n", "").isprintable()
    assert rows(done.stdout)[0]["dask", "dask.array:Array"][0] == "?"


# ---- explain ----


def test_explains_a_call_of_each_library(lib):
    done = command("explain", "--library", lib.name, "--dtype", lib.dtypes[0], "--shape", "2,3,8")
    assert (done.returncode, done.stderr) == (0, "")
    x = lib.asarray(np.zeros((2, 3, 8), np.float32), lib.dtypes[0])
    assert done.stdout == f"{ra.explain(x, range(3))}\n"


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ("--dtype float16 --shape 3,8", "rotated: float16 in float32"),
        ("--dtype float32 --shape 3,8", "rotated: float32 in float32"),
        ("--dtype float64 --shape 3,8", "rotated: float64 in float64"),
        ("--backend array-api --pairing half", "backend: array-api\n"),
        # A vector, an empty array, and terabytes: the size does not choose the backend.
        *((f"--shape {shape}", "backend: n") for shape in ("8", "0,8", "2,0,3,8", "1,100000,1000000,128")),
    ],
)
def test_explains_a_call(arguments, text, capsys):
    assert main(["explain", *arguments.split()]) == 0
    assert text in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--library", "nump"], "unknown library 'nump'; give one of numpy, "),
        (["--library", "cupy"], "cupy needs"),
        (["--dtype", "int32"], "the dtype is 'int32'; numpy has float16, float32, float64"),
        (["--dtype", "float"], "the dtype is 'float'; numpy has"),
        (["--shape", ""], "the shape is ''; give the size of each axis"),
        (["--shape", "3x8"], "the shape is '3x8'; give the size of each axis"),
        (["--shape", "3,"], "the shape is '3,'"),
        (["--shape=-3,8"], "the shape is '-3,8'"),
        (["--shape", "3,7"], "head_dim is 7, odd"),
        (["--pairing", "neox"], "pairing is 'neox', which here is named 'half'"),
        (["--backend", "gpu"], "backend is 'gpu'; give None or one of"),
        (["--backend", "torch"], "backend 'torch' does not serve float32[1, 32, 2048, 128] (numpy)"),
        (["--base", "0"], "base is 0.0; give a finite number above 0"),
        (["--rotary-dim", "256"], "rotary_dim is 256 from rotary_start 0, beyond head_dim 128"),
        (["--scaling", "DynamicNTK(2.0, 512)"], "depends on the length of the sequence; give --length"),
        (["--scaling", "Linear(2.0)", "--length", "0"], "length is 0"),
        (["--part", "text"], "without CONFIG, there is no use for --part"),
        (["--layer-type", "3"], "without CONFIG, there is no use for --layer-type"),
        (["absent"], "no file or folder here is named 'absent'"),
        ([".", "--base", "3"], "an explanation of CONFIG does not use --base"),
        ([".", "--library", "numpy", "--shape", "8"], "CONFIG does not use --library, --shape"),
    ],
)  # fmt: skip
def test_explain_refuses_unknown_calls(arguments, text, capsys):
    assert main(["explain", *arguments]) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith("rope_array explain: ")
    assert output.err.count("\n") == 1
    assert text in output.err


@pytest.mark.library("numpy", "strict")
def test_a_missing_dtype_is_named_with_the_reason(capsys):
    assert main(["explain", "--library", "array_api_strict", "--dtype", "float16"]) == 2
    assert "has float32, float64 here (the standard has none)" in capsys.readouterr().err


@pytest.mark.skipif(_native.kernel is None, reason="needs the C++ kernel")
@pytest.mark.parametrize("name", ["explain", "backends"])
def test_an_unknown_level_is_named(name):
    done = command(name, *(["--import"] if name == "backends" else []), ROPE_ARRAY_KERNEL_LEVEL="pentium")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"rope_array {name}: ")
    assert "ROPE_ARRAY_KERNEL_LEVEL is 'pentium'" in done.stderr
    assert done.stderr.count("\n") == 1


def called(monkeypatch, *arguments):
    """Return the rope and the backend of the call that the command explains."""
    calls = []
    monkeypatch.setattr(
        ra, "explain", lambda x, pos, rope, backend: calls.append((rope, backend)) or "explained"
    )
    assert main(["explain", *arguments]) == 0
    return calls[0]


def test_takes_fields_of_a_rope(monkeypatch):
    fields = ("--base", "1e6", "--rotary-dim", "64", "--pairing", "half", "--scaling", "Llama3(8.0)")
    rope, backend = called(monkeypatch, *fields, "--shape", "3,96")
    assert rope == ra.RoPE(96, base=1e6, rotary_dim=64, pairing="half", scaling=ra.Llama3(8.0))
    assert backend is None


def test_takes_a_length(monkeypatch):
    rope, _ = called(monkeypatch, "--scaling", "DynamicNTK(2.0, 512)", "--length", "2048")
    assert rope.scaling == ra.DynamicNTK(2.0, 512, length=2048)


LONG = ra.LongRoPE((1.0, 1.5), (2.0, 4.0), 512, 2.0)


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("Linear(2.0)", ra.Linear(2.0)),
        (" ra.Linear( factor = 2 ) ", ra.Linear(2.0)),
        ("rope_array.NTKAware(4.0, variant='fixed')", ra.NTKAware(4.0, variant="fixed")),
        ("YaRN(factor=4.0, original_max_position_embeddings=32768)", ra.YaRN(4.0, 32768)),
        ("YaRN(4.0, 512, truncate=False, mscale=None)", ra.YaRN(4.0, 512, truncate=False)),
        ("Reversed(Linear(2.0))", ra.Reversed(ra.Linear(2.0))),
        ("Reversed(rule=ra.Llama3(factor=8.0))", ra.Reversed(ra.Llama3(8.0))),
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
    with pytest.raises(
        ra.SpecError, match=r"^--scaling is .*; give the call of a rule with plain values, such as"
    ):
        parse_rule(text)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("Linear()", "--scaling: Linear missing 1 required positional argument: 'factor'; see help"),
        ("YaRN(4.0, 512, beta=3)", "--scaling: YaRN got an unexpected keyword argument 'beta'"),
        ("Linear(-2.0)", "factor is -2.0; give a finite number above 0"),
        ("Linear('2')", "factor is '2'"),
    ],
)
def test_names_the_value_that_is_no_rule_s(text, error):
    with pytest.raises(ra.SpecError, match=re.escape(error)):
        parse_rule(text)


# ---- explain CONFIG ----

LLAMA = {
    "model_type": "llama", "hidden_size": 4096, "num_attention_heads": 32, "num_hidden_layers": 32,
    "max_position_embeddings": 131072, "rope_theta": 500000.0, "rope_scaling": {"rope_type": "llama3",
    "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192},
}  # fmt: skip


@pytest.fixture
def explained(tmp_path, capsys):
    """Explain a config; return the text with single spaces, and the lines."""

    def explain(config, *options):
        file = tmp_path / "config.json"
        file.write_text(json.dumps(config), "utf-8")
        assert main(["explain", str(file), *options]) == 0
        output = capsys.readouterr()
        assert output.err == ""
        assert max(map(len, output.out.replace(str(file), "").splitlines())) <= 100
        return " ".join(output.out.split()), output.out.splitlines()

    return explain


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
        "scaling Llama3(factor=8.0, low_freq_factor=1.0",
    ):
        assert sentence in text
    for row in (
        ["rotary_dim", "128"], ["base", "500,000"], ["context", "131,072"], ["amplitude", "1"],
        ["0", "6.283", "6.283", f"{131072 / 2 / np.pi:,.0f}"],
        ["63", f"{8 * wavelengths[-1]:,.0f}", f"{wavelengths[-1]:,.0f}",
         f"{131072 / 8 / wavelengths[-1]:.4g}"],
    ):  # fmt: skip
        assert row in rows


def test_stated_inferred_and_doubtful_values_are_apart(explained):
    _, lines = explained(LLAMA)
    stated, inferred, doubtful = (
        next(i for i, line in enumerate(lines) if line.startswith(word))
        for word in ("Stated", "Inferred", "Doubtful")
    )
    assert any(line.split() == ["rope_theta", "500000.0"] for line in lines[stated:inferred])
    assert any(line.split() == ["pairing", "'half'"] for line in lines[inferred:doubtful])
    assert lines[doubtful:] == ["Doubtful: nothing"]


MINE = {"model_type": "mine", "head_dim": 64, "rope_theta": 1e4, "max_position_embeddings": 4096}
GEMMA = {"model_type": "gemma3_text", "num_hidden_layers": 8}
GEMMA_4 = {"model_type": "gemma4_text", "num_hidden_layers": 1, "layer_types": ["full_attention"],
           "head_dim": 64, "global_head_dim": 64, "rope_parameters": {"full_attention":
           {"rope_type": "proportional", "partial_rotary_factor": 0.25}}}  # fmt: skip
QWEN = {"model_type": "qwen2_vl", "hidden_size": 1536, "num_attention_heads": 12, "num_hidden_layers": 2,
        "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]},
        "vision_config": {"depth": 2, "embed_dim": 1280, "num_heads": 16}}  # fmt: skip
DYNAMIC = {"model_type": "llama", "head_dim": 64, "max_position_embeddings": 2048,
           "rope_scaling": {"type": "dynamic", "factor": 2.0}}  # fmt: skip


@pytest.mark.parametrize(
    ("config", "options", "sentences", "absent"),
    [
        ({**MINE, "rope_scaling": {"rope_type": "yarn", "factor": 4}}, (),
         ["Doubtful: check against the model's code",
          "* model_type 'mine' is unknown: read as most models are, with half pairs",
          "* the trained context is not stated: max_position_embeddings is taken for it",
          f"cos and sin are multiplied by the amplitude {0.1 * np.log(4) + 1:.4g}."], "Doubtful: nothing"),
        ({**LLAMA, "rotary_pct": 0.5}, (), ["* rotary_pct is not used"], "Doubtful: nothing"),
        (GEMMA, (), ["The layers differ: the model has 2 rotary embeddings.", "Layers 0-4, 6-7 (7 of 8):",
                     "Layer 5 (1 of 8):", "The base is 10,000,", "The base is 1,000,000,"], "share one"),
        (GEMMA, ("--layer-type", "full_attention"), ["The base is 1,000,000,"], " 10,000,"),
        (GEMMA, ("--layer-type", "5"), ["Layer type 5:", "The base is 1,000,000,"], " 10,000,"),
        ({"model_type": "llama4_text", "num_hidden_layers": 8}, (),
         ["Layers 3, 7 (2 of 8): No rotation: heads of 128 features stay as they are",
          "(no_rope_layers, layer 3)", "Doubtful: nothing"], "check against"),
        (QWEN, (), [", part text", "A position has 3 coordinates: 16 pairs follow coordinate 0, 24 pairs "
                    "follow coordinate 1, 24 pairs follow coordinate 2.",
                    "* the part 'text' was read; --part chooses another"], "head_dim 80"),
        (QWEN, ("--part", "vision"), ["head_dim 80"], "3 coordinates"),
        (DYNAMIC, (), ["DynamicNTK depends on the length of the sequence: give --length."], "wavelength"),
        (DYNAMIC, ("--length", "8192"), ["divides the frequency of 1 pair by 7", "length=8192"], "give --"),
        ({"model_type": "glm", "head_dim": 128}, (),
         ["Of the 128 features of a head, 64 are rotated, 0 to 63,",
          "Pair i is features 2i and 2i + 1 (pairing 'interleaved')."], "All 128"),
        ({"model_type": "glm", "head_dim": 8}, (), ["positions every pair rotates more than once."], "never"),
        ({"model_type": "mine", "head_dim": 8, "rope_theta": 10.0}, (),
         ["The config states no context length"], "in the context"),
        (GEMMA_4, (), ["stops 24 pairs."], "divides"),
        ({"model_type": "nanochat", "num_hidden_layers": 1}, (), ["The pairs rotate in the other direction"],
         "differ"),
    ],
    ids=["unknown", "not used", "layers", "layer type", "layer", "no rotation", "text", "vision", "no length",
         "length", "partial", "short", "no context", "stopped", "reversed"],
)  # fmt: skip
def test_sentences_of_other_models(config, options, sentences, absent, explained):
    text, _ = explained(config, *options)
    for sentence in sentences:
        assert sentence in text
    assert absent not in text


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("", "is no JSON: it is empty; give a config.json."),
        ("# Llama", "is no JSON that can be read: "),
        ("[]", "holds a list of length 0; give a config.json"),
        ('{"model_type": "bert"}', "bert"),
    ],
)
def test_files_that_are_no_config(content, text, tmp_path, capsys):
    (tmp_path / "config.json").write_text(content, "utf-8")
    assert main(["explain", str(tmp_path)]) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith("rope_array explain: ")
    assert output.err.count("\n") == 1
    assert text in output.err


@pytest.mark.nightly
def test_every_known_model_is_described_or_refused():
    described = 0
    for kind in MODELS:
        with contextlib.suppress(ra.ConfigError):
            _, *lines = report({"model_type": kind}, None, None, None)
            assert max(map(len, lines)) <= 100
            described += 1
    assert described > 300


def test_explaining_a_config_brings_in_no_library(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(LLAMA), "utf-8")
    script = """
        import sys
        from rope_array.__main__ import main
        assert main(["explain", sys.argv[1]]) == 0
        print(*sorted({name.partition(".")[0] for name in sys.modules} & set(sys.argv[2:])))
    """
    assert child.run(script, str(tmp_path), *LIBRARIES, "matplotlib").splitlines()[-1] == ""


# ---- the example backend of docs/backends.md ----


@pytest.fixture
def installed(tmp_path):
    """Install the example package into a folder, as pip does; return the environment that imports it."""
    page = PAGE.read_text("utf-8")
    for text, name in re.findall(r"^```python\n(# (\S+)\n.*?)^```$", page, re.MULTILINE | re.DOTALL):
        file = tmp_path / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(text, "utf-8")
    (toml,) = re.findall(r"^```toml\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    about = tmp_path / "mylib-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: mylib\nVersion: 1.0\n", "utf-8")
    section = re.sub(r'\[project\.entry-points\."(.*)"\]', r"[\1]", toml).replace('"', "")
    (about / "entry_points.txt").write_text(section, "utf-8")
    return from_folder(tmp_path)


def test_the_example_backend_is_found_first(installed):
    found, _ = rows(command("backends", "--import", **installed).stdout)
    assert next(iter(found.items())) == (
        ("mylib", "numpy:ndarray"),
        ("yes", "float32, whole heads of pairs in halves"),
    )
    assert command("explain", "--pairing", "half", **installed).stdout.startswith("backend: mylib\n")
    assert "declined: mylib: it serves pairs in halves" in command("explain", **installed).stdout
    assert (
        "backend: mylib"
        not in command("explain", "--pairing", "half", "--dtype", "float64", **installed).stdout
    )
    forced = command("explain", "--backend", "mylib", **installed)
    assert forced.returncode == 2
    assert "does not serve float32[1, 32, 2048, 128] (numpy): it serves pairs in halves" in forced.stderr


def test_the_example_backend_conforms(installed):
    done = check("numpy", "pairing,definition,combinations,accuracy_small,many_heads", **installed)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"Calls by backend: mylib \d+, .*array-api \d+; --backend NAME", done.stdout, re.DOTALL)


def check(target, checks, *options, **environment):
    """Run these checks alone, NAME,NAME; in the session `nightly` every check."""
    alone = ("--only", checks) if sample(checks) else ()
    return command("check", target, *alone, *options, **environment)


def edited(tmp_path, before, after):
    """Change a line of the example backend."""
    path = tmp_path / "mylib" / "backend.py"
    text = path.read_text("utf-8")
    assert before in text
    path.write_text(text.replace(before, after), "utf-8")


LAST_DECLINE = "    return None if 2 * layout.num_pairs"
# Further calls that the example declines.
DECLINES = {
    "nothing more": "",
    "all but two widths": "    if layout.head_dim not in (64, 128): return 'a head_dim of 64 or 128'\n",
    "small arrays": "    if any(x.size < 65536 for x in xs): return '65,536 elements or more'\n",
    "strided arrays": "    if not all(x.flags.c_contiguous for x in xs): return 'contiguous arrays'\n",
    "positions": "    if hasattr(source, 'values'): return 'tables of cos and sin'\n",
}
# An error of 1e-4 in the sine.
ERROR = ("a, b = np.split(x, 2, axis=-1)", "sin = sin + np.float32(1e-4)\n    a, b = np.split(x, 2, axis=-1)")


def declining(name):
    """A case of DECLINES; the default run has the two that restrict most."""
    marks = () if name in ("nothing more", "all but two widths") else pytest.mark.nightly
    return pytest.param(name, marks=marks)


@pytest.mark.slow
@pytest.mark.parametrize("declines", [*map(declining, DECLINES)])
def test_a_backend_is_judged_by_the_calls_that_it_serves(installed, tmp_path, declines):
    """It serves float32 and pairs in halves only; the suite's own calls are interleaved."""
    edited(tmp_path, LAST_DECLINE, DECLINES[declines] + LAST_DECLINE)
    accuracy = "accuracy_small,accuracy_2e16,accuracy_int32"
    checks = f"{accuracy},rotations_add,scaling_yarn,size_one_axes,kind,pairing,combinations,widths"
    done = check("numpy", checks, "--backend", "mylib", "--json", **installed)
    report = json.loads(done.stdout)
    assert done.returncode == 0, done.stdout[:1000] + done.stderr
    outcomes = {result["name"]: result["outcome"] for result in report["results"]}
    assert {outcomes[f"accuracy_{far}[float32]"] for far in ("small", "2e16", "int32")} == {"passed"}
    assert outcomes["accuracy_small[float64]"] == "not applicable"
    if declines != "small arrays":  # of one or two rows, a few heads, and a head_dim of 16
        assert {outcomes[name] for name in ("rotations_add", "scaling_yarn", "size_one_axes")} == {"passed"}
    assert report["served"]["mylib"] >= 10
    assert report["served"].keys() == {"mylib"}
    assert report["declined"]["it serves pairs in halves"] > 10

    edited(tmp_path, *ERROR)
    done = check("numpy", accuracy, "--backend", "mylib", "--json", **installed)
    failed = {r["name"] for r in json.loads(done.stdout)["results"] if r["outcome"] == "failed"}
    assert done.returncode == 1
    assert {f"accuracy_{far}[float32]" for far in ("small", "2e16", "int32")} <= failed


def test_calls_are_counted_by_backend(installed):
    cases = ("--case", "base=500.0", "--case", "pairing=interleaved")
    forced = command("check", "numpy", "--backend", "mylib", *cases, **installed).stdout
    assert re.search(r"Calls: mylib served [\d,]+, and declined [\d,]+: it serves pairs in halves \(", forced)
    assert "every call that names no pairing has pairing=half" in forced


def test_a_backend_that_serves_no_call_is_refused(installed, tmp_path):
    edited(tmp_path, LAST_DECLINE, "    return 'it is asleep'\n" + LAST_DECLINE)
    done = command("check", "numpy", "--backend", "mylib", **installed)
    assert (done.returncode, done.stdout) == (2, "")
    assert "backend 'mylib' serves no call" in done.stderr
    assert "it is asleep" in done.stderr
    assert " mylib 0, " in command("check", "numpy", "--case", "base=500.0", **installed).stdout


# Faults of the example backend: lines before and after, checks that see the fault, and text of the report.
FAULTS = {
    "at one width of two": (
        [(LAST_DECLINE, DECLINES["all but two widths"] + LAST_DECLINE),
         (ERROR[0], "sin = sin + np.float32(1e-4) * (x.shape[-1] == 128)\n    " + ERROR[0])],
        ("widths,definition", "--backend", "mylib"), "\n  widths\n"),
    # Only its decline_reason declines: an error of rotate is a failure.
    "an exception": ([(ERROR[0], "raise NotImplementedError('later')")],
                     ("definition,norm,widths", "--backend", "mylib"), "NotImplementedError: later"),
    # The suite would pass too if it never called the backend.
    "a sign": ([("b * cos + a * sin", "b * cos - a * sin")], ("pairing,definition",), "\n  pairing\n"),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_the_suite_finds_a_fault_in_the_example_backend(installed, tmp_path, name):
    edits, options, text = FAULTS[name]
    for edit in edits:
        edited(tmp_path, *edit)
    done = check("numpy", *options, **installed)
    assert (done.returncode, done.stdout[:8]) == (1, "FAILED: ")
    assert text in done.stdout


EAGER_ONLY = """
    import contextlib, io, runpy, sys
    import torch
    import rope_array._backends.torch.native as native

    served = native.decline_reason
    native.decline_reason = lambda xs, source: (
        "the call is compiled" if torch.compiler.is_compiling() else served(xs, source)
    )
    sys.argv = ["rope_array", "check", "torch:compile", "--backend", "native", "--in-process"]
    errors = io.StringIO()
    with contextlib.redirect_stderr(errors), contextlib.suppress(SystemExit):
        runpy.run_module("rope_array", run_name="__main__")
    assert "serves no compiled call" in errors.getvalue(), errors.getvalue()
    """


@pytest.mark.library("torch")
@pytest.mark.skipif(_native.kernel is None, reason="the kernel is needed")
def test_a_backend_without_compiled_calls_is_refused():
    child.run(EAGER_ONLY)


def test_the_example_backend_writes_into_results(installed):
    script = """
        import numpy as np
        import rope_array as ra
        x = np.random.default_rng(0).standard_normal((2, 3, 8), np.float32)
        rope = ra.RoPE(8, pairing="half")
        y = np.empty_like(x)
        assert ra.explain(x, range(3), rope).backend == "mylib"
        assert rope.apply(x, range(3), out=y) is y
        assert (y == rope.apply(x, range(3), backend="array-api")).all()
        assert (rope.rotation(range(3), like=x).apply(x, backend="mylib", out=x) == y).all()
        assert (x == y).all()
    """
    child.run(script, **installed)
