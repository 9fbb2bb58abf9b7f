"""The commands `backends` and `explain`, and the example package of docs/backends.md with a backend."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import child
import numpy as np
import pytest

import rope_array as ra
from rope_array import _explain, _registry
from rope_array.__main__ import main
from rope_array._backends import _native

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
    assert own[lib.name] == ("yes", "")
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


def test_a_library_that_does_not_load_is_named(tmp_path):
    (tmp_path / "dask").mkdir()
    (tmp_path / "dask" / "__init__.py").write_text("raise OSError('libdask.so is missing')", "utf-8")
    done = command("backends", "--import", **from_folder(tmp_path))
    assert done.returncode == 0
    expected = "rope_array backends: dask.array cannot be imported: OSError: libdask.so is missing\n"
    assert expected in done.stderr
    assert rows(done.stdout)[0]["dask", "dask.array:Array"][0] == "?"


def test_control_characters_of_a_message_are_escaped(tmp_path):
    (tmp_path / "dask").mkdir()
    (tmp_path / "dask" / "__init__.py").write_text("raise OSError('\\x1b]0;title\\x07\\nnext')", "utf-8")
    done = command("backends", "--import", **from_folder(tmp_path))
    assert "OSError: \\x1b]0;title\\x07\\nnext\n" in done.stderr
    assert done.stderr.replace("\n", "").isprintable()


# ---- explain ----


def test_explains_a_call_of_each_library(lib):
    done = command("explain", "--library", lib.name, "--dtype", lib.dtypes[0], "--shape", "2,3,8")
    assert (done.returncode, done.stderr) == (0, "")
    x = lib.asarray(np.zeros((2, 3, 8), np.float32), lib.dtypes[0])
    assert done.stdout == f"{ra.explain(x, range(3))}\n"


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_explains_a_call_of_each_dtype(dtype, capsys):
    assert main(["explain", "--dtype", dtype, "--shape", "3,8"]) == 0
    assert f"rotated: {dtype} in float{64 if dtype == 'float64' else 32}" in capsys.readouterr().out


def test_takes_a_backend_and_a_pairing(capsys):
    assert main(["explain", "--backend", "array-api", "--pairing", "half"]) == 0
    assert capsys.readouterr().out.startswith("backend: array-api\n")


@pytest.mark.parametrize("shape", ["8", "0,8", "2,0,3,8", "1,100000,1000000,128"])
def test_takes_every_shape(shape, capsys):
    """A vector, an empty array, and terabytes: the size does not choose the backend."""
    assert main(["explain", "--shape", shape]) == 0
    assert capsys.readouterr().out.startswith("backend: n")


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
        (["--pairing", "neox"], "pairing is 'neox'; give one of"),
        (["--backend", "cuda"], "backend is 'cuda'; give None or one of"),
        (["--backend", "torch"], "backend 'torch' does not serve float32[1, 32, 2048, 128] (numpy)"),
    ],
)
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


@pytest.mark.parametrize("arguments", [["backends", "numpy"], ["explain", "numpy"], ["explain", "--shape"]])
def test_an_invalid_command_line(arguments, capsys):
    with pytest.raises(SystemExit) as exit_:
        main(arguments)
    assert exit_.value.code == 2
    assert "usage: python -m rope_array" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["backends", "explain"])
def test_help(name, capsys):
    with pytest.raises(SystemExit) as exit_:
        main([name, "--help"])
    assert exit_.value.code == 0
    assert "exit status: 0; 2" in capsys.readouterr().out


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
    done = command("check", "numpy", **installed)
    assert done.returncode == 0, done.stdout + done.stderr


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


@pytest.mark.slow
@pytest.mark.parametrize("declines", DECLINES)
def test_a_backend_is_judged_by_the_calls_that_it_serves(installed, tmp_path, declines):
    """It serves float32 and pairs in halves only; the suite's own calls are interleaved."""
    edited(tmp_path, LAST_DECLINE, DECLINES[declines] + LAST_DECLINE)
    done = command("check", "numpy", "--backend", "mylib", "--json", **installed)
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
    done = command("check", "numpy", "--backend", "mylib", "--json", **installed)
    failed = {r["name"] for r in json.loads(done.stdout)["results"] if r["outcome"] == "failed"}
    assert done.returncode == 1
    assert {f"accuracy_{far}[float32]" for far in ("small", "2e16", "int32")} <= failed


def test_a_fault_at_one_width_of_two_is_found(installed, tmp_path):
    edited(tmp_path, LAST_DECLINE, DECLINES["all but two widths"] + LAST_DECLINE)
    edited(tmp_path, ERROR[0], "sin = sin + np.float32(1e-4) * (x.shape[-1] == 128)\n    " + ERROR[0])
    done = command("check", "numpy", "--backend", "mylib", **installed)
    assert done.returncode == 1
    assert "\n  widths\n" in done.stdout


def test_calls_are_counted_by_backend(installed):
    forced = command("check", "numpy", "--backend", "mylib", **installed).stdout
    assert re.search(r"Calls: mylib served \d{3}, and declined \d{3}: it serves pairs in halves \(", forced)
    assert "every call that names no pairing has pairing=half" in forced
    every = command("check", "numpy", **installed).stdout
    assert re.search(r"Calls by backend: mylib \d+, .*array-api \d+; --backend NAME", every, re.DOTALL)


def test_a_backend_that_serves_no_call_is_refused(installed, tmp_path):
    edited(tmp_path, LAST_DECLINE, "    return 'it is asleep'\n" + LAST_DECLINE)
    done = command("check", "numpy", "--backend", "mylib", **installed)
    assert (done.returncode, done.stdout) == (2, "")
    assert "backend 'mylib' serves no call" in done.stderr
    assert "it is asleep" in done.stderr
    assert " mylib 0, " in command("check", "numpy", **installed).stdout


def test_a_backend_that_raises_fails(installed, tmp_path):
    """Only its decline_reason declines: an error of rotate is a failure."""
    edited(tmp_path, ERROR[0], "raise NotImplementedError('later')")
    done = command("check", "numpy", "--backend", "mylib", **installed)
    assert done.returncode == 1
    assert done.stdout.startswith("FAILED: ")
    assert "NotImplementedError: later" in done.stdout


@pytest.mark.library("torch")
def test_a_backend_without_compiled_calls_is_refused():
    done = command("check", "torch:compile", "--backend", "native")
    assert done.returncode == 2
    assert "serves no compiled call" in done.stderr or "is not built" in done.stderr


def test_the_suite_finds_a_fault_in_the_example_backend(installed, tmp_path):
    """The suite would pass too if it never called the backend."""
    edited(tmp_path, "b * cos + a * sin", "b * cos - a * sin")
    done = command("check", "numpy", **installed)
    assert done.returncode == 1
    assert "\n  pairing\n" in done.stdout


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
