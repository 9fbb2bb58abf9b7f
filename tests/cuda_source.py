"""Compile backends/cupy/rotate.cu for the CPU, as it is or with a fault put in, and run cases on it."""

import functools
import json
import os
import subprocess
import sys
import tempfile
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import fake_cupy

ROOT = Path(__file__).resolve().parents[1]
FILES = ("_native/cos_sin.h", "cupy/rotate.cu")
HARNESS = ROOT / "tests" / "cuda_on_host.cpp"
OPTIONS = ("-std=c++17", "-O1", "-ffp-contract=off", "-shared", "-fPIC", "-w")


def compile_for_host(folder, dtype, change=lambda file, text: text, defines=()):
    """Compile the source for a dtype, changed by `change(file, text)`; return the library's path."""
    for file in FILES:
        path = Path(folder) / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(change(file, (ROOT / "backends" / file).read_text("utf-8")), "utf-8")
    path = Path(folder) / "rotate.so"
    options = (*OPTIONS, f"-DONLY={dtype}", *defines, f"-I{folder}/cupy")
    run(os.environ.get("CXX", "g++"), *options, str(HARNESS), "-o", str(path))
    return path


def run(*command):
    """Run a program; return its output."""
    env = {**os.environ, "PYTHONPATH": str(ROOT / "tests")}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=env)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


_folder = tempfile.TemporaryDirectory()


@functools.cache
def library():
    """Return the unchanged source, compiled once."""
    dtypes = fake_cupy.DTYPES.values()
    with ThreadPoolExecutor(2) as pool:
        paths = pool.map(lambda dtype: compile_for_host(f"{_folder.name}/{dtype}", dtype), dtypes)
        return fake_cupy.KernelLibrary(dict(zip(dtypes, paths, strict=True)))


def outcomes(calls):
    """Return how each (case, dtype, library) fails, or an empty string; each in its own process."""
    return json.loads(run(sys.executable, "-P", __file__, json.dumps(calls)))


def _outcome(name, dtype, path):
    """Run a case in a process of its own, as a fault may crash it."""
    import cuda_cases

    read, write = os.pipe()
    child = os.fork()
    if not child:
        try:
            with fake_cupy.installed(fake_cupy.KernelLibrary({dtype: path})) as kernel:
                cuda_cases.CASES[name](kernel)
        except BaseException as error:
            os.write(write, f"{type(error).__name__}: {error}"[:4000].encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as printed:
        text = printed.read()
    _, status = os.waitpid(child, 0)
    return f"killed by signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else text


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    print(json.dumps([_outcome(*call) for call in json.loads(sys.argv[1])]))
