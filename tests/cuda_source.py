"""Compile backends/cupy/rotate.cu for the CPU, as it is or with a fault put in."""

import functools
import os
import subprocess
import tempfile
from pathlib import Path

import fake_cupy

ROOT = Path(__file__).resolve().parents[1]
FILES = ("_native/cos_sin.h", "cupy/rotate.cu")
OPTIONS = ("-std=c++17", "-O1", "-ffp-contract=off", "-shared", "-fPIC", "-w")


def compile_for_host(folder, change=lambda file, text: text, only=None):
    """Compile the source, changed by `change(file, text)`; `only` is the one dtype wanted, see the harness."""
    for file in FILES:
        path = Path(folder) / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(change(file, (ROOT / "backends" / file).read_text("utf-8")), "utf-8")
    path = Path(folder) / "rotate.so"
    define = () if only is None else (f"-DONLY={only}",)
    source = ROOT / "tests" / "cuda_on_host.cpp"
    command = (
        os.environ.get("CXX", "g++"),
        *OPTIONS,
        *define,
        f"-I{folder}/cupy",
        str(source),
        "-o",
        str(path),
    )
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return fake_cupy.Library(path)


_folder = tempfile.TemporaryDirectory()


@functools.cache
def library():
    """Return the unchanged source, compiled once."""
    return compile_for_host(_folder.name)
