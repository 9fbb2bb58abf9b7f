"""The demo: its output on each library, its reading of files, and its failure for a wrong rotation."""

import functools
import hashlib
import io
import re
import subprocess
import sys

import child
import conftest
import numpy as np
import pytest

import rope_array as ra
from rope_array import _demo
from rope_array.__main__ import main
from rope_array._demo import _libraries, _measure, _text
from rope_array._explain import Backend
from rope_array.testing._libraries import NumPyLibrary

# The backends that may serve each library; "native" if the kernel is built.
BACKENDS = {"numpy": ("native", "array-api"), "torch": ("native", "torch"), "strict": ("array-api",)}
BACKENDS |= {"dask": ("dask",), "jax": ("jax",)}
TEXT = "The quick brown fox jumps over the lazy dog, and the dog sleeps on."
COMMAND = ["-P", "-m", "rope_array", "demo"]


class InFloat32(NumPyLibrary):
    dtypes = ("float32",)


@pytest.fixture
def demo(tmp_path, monkeypatch, capsys):
    """Return a function that runs the demo with NumPy on a file with this content: status, output, errors."""
    monkeypatch.setattr(_demo, "installed", lambda: ([InFloat32()], ["jax"], ["torch (OSError)"]))
    monkeypatch.setattr(_measure, "_SECONDS_PER_TIMING", 0.0)
    monkeypatch.chdir(tmp_path)  # with its folder, a file's name may be longer than a line

    def run(content=TEXT):
        if content is not None:
            encoded = content.encode("utf-8-sig") if isinstance(content, str) else content
            (tmp_path / "text.txt").write_bytes(encoded)
        status = main(["demo", "text.txt"])
        return status, *capsys.readouterr()

    return run


# ---- output ----


def rows(output, library):
    """Return the rows of one library: {dtype: (version, backend, error, allowed, verdict, time)}."""
    cells = (line.split() for line in output.splitlines() if line.startswith(f"   {library} "))
    return {dtype: (version, backend, *figures) for _, version, backend, dtype, *figures in cells}


@pytest.mark.slow
def test_the_demo_as_it_is_shipped(request):
    """One test, as two workers would each run the demo."""
    done = child.python(*COMMAND)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert len(lines) <= 60
    assert max(map(len, lines)) <= 100
    assert done.stdout.isascii()
    assert lines[-1] == "Every error is within the allowed error."
    for name in BACKENDS.keys() & request.config.chosen_libraries:
        check_rows(done.stdout, conftest.LIBS[name], BACKENDS[name])
    check_angles(done.stdout)


def check_rows(output, lib, backends):
    """Assert that a library has a row for each dtype, with an error that is allowed."""
    by_dtype = rows(output, _libraries.display_name(lib))
    assert set(by_dtype) == set(lib.dtypes) & set(_measure.DTYPES)
    for dtype, (version, backend, error, allowed, verdict, time) in by_dtype.items():
        assert version[0].isdigit()
        assert backend in backends
        assert verdict == "yes"
        assert 0 < float(error) <= float(allowed) == {"bfloat16": 0.5}.get(dtype, 3.0)
        assert float(time) >= 0  # may round to 0.0: backends rotate with several threads


def check_angles(output):
    """Assert that exact angles hold where float32 angles fail."""
    lines = re.findall(
        r"^ +(\d+) +(\d\.\de[+-]\d+) +(\d\.\de[+-]\d+)$", output.replace(",", ""), re.MULTILINE
    )
    assert [int(position) for position, _, _ in lines] == [*_demo.SHIFTS, *_demo.POSITIONS]
    for number, (position, exact, float32) in enumerate(lines):
        assert float(exact) < (2e-6 if number < len(_demo.SHIFTS) else 9.5e-8)
        assert float(float32) > 1e-2 or position != "1000000"


def test_a_file_is_read_and_unused_libraries_are_named(demo):
    status, out, _ = demo()
    assert status == 0
    assert "Text:   text.txt\nTokens: the quick brown fox jumps" in out
    assert f"{len(TEXT.split()) + 2} words and punctuation marks" in out
    assert rows(out, "numpy").keys() == {"float32"}
    assert "   Not installed: jax\n   Installed, but not usable here: torch (OSError)\n" in out


@pytest.mark.parametrize("usable", [True, False, None])
def test_a_missing_kernel_is_named_once(usable, demo, monkeypatch):
    about = "the C++ kernel is not built: reasons" + " and more" * 20
    native = Backend("native", "numpy:ndarray", usable, about)
    monkeypatch.setattr(ra, "backends", lambda: (native, native))
    _, out, _ = demo()
    assert out.count("Slower here: the C++ kernel is not built: reasons") == (usable is False)
    assert max(map(len, out.splitlines())) <= 100


def test_a_library_that_does_not_load_is_named(monkeypatch):
    class Broken(NumPyLibrary):
        name = "jax"

        def asarray(self, array, dtype=None):
            raise OSError("libcuda.so is missing")

    missing = type("Missing", (NumPyLibrary,), {"name": "torch", "module": "no_such_module.array"})
    monkeypatch.setitem(_libraries.LIBRARIES, "jax", Broken())
    monkeypatch.setitem(_libraries.LIBRARIES, "torch", missing())
    libraries, absent, broken = _libraries.installed()
    assert libraries[0].name == "numpy"
    assert "torch" in absent
    assert broken[0] == "jax (OSError)"


# ---- files ----


UNUSABLE = {
    "blank": (b" \r\n\t\n", "it has no words"),
    "latin-1": ("déjà vu".encode("latin-1"), "it is not text in UTF-8"),
    "nul": (b"GIF89a\0\0", "it is a binary file, not text"),
    "missing": (None, "No such file or directory"),
}


@pytest.mark.parametrize("kind", UNUSABLE)
def test_an_unusable_file(kind, demo):
    content, reason = UNUSABLE[kind]
    assert demo(content) == (2, "", f"rope_array demo: cannot use 'text.txt': {reason}\n")


@pytest.mark.parametrize("text", ["word", "a " * 1000, "\x1b[31mred\x1b[0m \u202e right"])
def test_texts_of_all_kinds(text, demo):
    status, out, _ = demo(text)
    assert status == 0
    assert all(c.isprintable() for c in out.replace("\n", ""))
    assert len(out.splitlines()) <= 60


def test_a_terminal_without_the_characters(demo, monkeypatch):
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), "ascii"))
    assert demo("日本語")[0] == 0
    assert b"Tokens: ???" in sys.stdout.buffer.getvalue()


# ---- the command line ----


@pytest.mark.skipif(sys.platform == "win32", reason="Windows reports a closed pipe differently")
def test_a_reader_that_leaves_early():
    pipes = dict.fromkeys(("stdout", "stderr"), subprocess.PIPE)
    with subprocess.Popen([sys.executable, *COMMAND], **pipes) as process:
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 0


def test_queries_and_keys_have_the_same_bits_everywhere():
    q, k = _text.queries_and_keys(TEXT.lower().split())
    digest = hashlib.sha256(np.stack([q, k]).astype("<f8").tobytes()).hexdigest()
    assert digest == "7f199acffc0805b2cfa57c53579661d639436d80862d099fc03cc2808230ff4b"


# ---- wrong rotations ----


def one_wrong_in_a_million(y):
    y[-1, -1, -1, -1] *= np.float32(1 + 2**-18)
    return y


def fails(apply, x, pos):
    raise RuntimeError("no kernel\nfor this device" + " at all" * 20)


WRONG = {
    "float32 angles": lambda apply, x, pos: apply(x, pos, angles="float32"),
    "not rotated": lambda apply, x, pos: x,
    "one wrong": lambda apply, x, pos: tuple(map(one_wrong_in_a_million, apply(x, pos))),
    "nan": lambda apply, x, pos: tuple(y * np.float32(np.nan) for y in apply(x, pos)),
    "one head": lambda apply, x, pos: tuple(y[:1, :1] for y in apply(x, pos)),
    "fails": fails,
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_rotation_fails(name, demo, monkeypatch):
    monkeypatch.setattr(ra, "apply", functools.partial(WRONG[name], ra.apply))
    status, out, _ = demo()
    assert status == 1
    assert out.endswith("\nFAILED: numpy float32\n")
    assert max(map(len, out.splitlines())) <= 100
    (row,) = rows(out, "numpy").values()
    assert "NO" in row or "RuntimeError:" in row


def test_a_pair_of_zeros_must_stay_zero():
    zeros = np.zeros((1, 2))
    assert _measure._worst_error(zeros, zeros, "float32") == 0.0
    assert _measure._worst_error(zeros + 1e-30, zeros, "float32") == np.inf
