"""Usage: python dev.py demo [--all] [FILE] | test [NOX ARGUMENTS] | lint | types."""

import os
import re
import shutil
import subprocess
import sys
import time
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parent
VENV, WINDOWS = ROOT / ".venv", os.name == "nt"
PYTHON = VENV / ("Scripts/python.exe" if WINDOWS else "bin/python")
BUILD, LOG = ROOT / "build/dev", ROOT / "build/dev.log"
PACKAGES, SOURCES = VENV / "packages.txt", VENV / "sources.txt"  # the installed ones


def step(text, *command):
    """Run a command, its output in LOG. Show the seconds, in place on a terminal, else every 4 s."""
    start, live, label = time.monotonic(), sys.stderr.isatty(), text
    width, end = shutil.get_terminal_size().columns - 1, "" if live else "\n"
    LOG.parent.mkdir(exist_ok=True)
    with LOG.open("wb") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
        while process.returncode is None:
            line = f"{time.monotonic() - start:4.0f} s  {label}"
            print(f"\r{line:.{width}}" if live else line, end=end, file=sys.stderr, flush=True)
            label = text if live else "..."
            with suppress(subprocess.TimeoutExpired):
                process.wait(1 if live else 4)
    print("" if live else f"{time.monotonic() - start:4.0f} s  done", file=sys.stderr, flush=True)
    if process.returncode:
        end = "\n".join(LOG.read_text("utf-8", "replace").splitlines()[-40:])
        sys.exit(f"{end}\n{text} has failed: {LOG} has its output")


def has_pip():
    """Return whether this Python's pip can install into .venv: to make .venv with its own takes seconds."""
    with suppress(PackageNotFoundError, ValueError):
        return int(version("pip").split(".")[0]) >= 23
    return False


def build_tools():
    """Return the packages cmake and ninja, each unless this machine's program is new enough."""
    lists, found = (ROOT / "CMakeLists.txt").read_text("utf-8"), ""
    with suppress(OSError):  # no cmake
        command = ("cmake", "--version")
        found = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    oldest = re.search(r"cmake_minimum_required\(VERSION [\d.]+?\.\.", lists)[0]
    cmake, needed = ([int(n) for n in re.findall(r"\d+", text)[:2]] for text in (found, oldest))
    return ["cmake"] * (cmake < needed) + ["ninja"] * (not shutil.which("ninja"))


command, args = "".join(sys.argv[1:2]), sys.argv[2:]
if command not in ("demo", "test", "lint", "types"):
    sys.exit(__doc__)
if sys.version_info < (3, 11) or not (find_spec("venv") and (has_pip() or find_spec("ensurepip"))):
    sys.exit("Needed: Python 3.11 or newer, with venv and pip (Debian, Ubuntu: apt install python3-venv).\n"
             "Or use your own environment: python -m pip install . nox && python -m nox")  # fmt: skip
import tomllib  # noqa: E402

config = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
project, groups = config["project"], config["dependency-groups"]
extras = project["optional-dependencies"]
pip = (sys.executable, "-m", "pip", "--python", PYTHON) if has_pip() else (PYTHON, "-m", "pip")
pip = (*pip, "install", "--no-compile")  # Python compiles the modules that it imports
wanted, run = (
    groups["dev"],
    ["nox", "-f", ROOT / "noxfile.py", *([] if command == "test" else ["-s", command])],
)
if command == "demo":
    wanted = [*config["build-system"]["requires"], *build_tools(), *project["dependencies"]]
    wanted, run = [*wanted, *groups["strict"]], ["rope_array", "demo"]
    if "--all" in args:
        args.remove("--all")
        torch = os.environ.get("ROPE_ARRAY_TORCH") or groups["torch"][0]
        wanted += [*extras["dask"], *extras["jax"], torch]
pips = (VENV / "Lib/site-packages/pip", *VENV.glob("lib/*/site-packages/pip"))
if not PYTHON.exists() or not (has_pip() or any(path.exists() for path in pips)):
    step("making .venv", sys.executable, "-m", "venv", "--clear", *["--without-pip"] * has_pip(), VENV)
installed = PACKAGES.read_text("utf-8").splitlines() if PACKAGES.exists() else []
if missing := [spec for spec in dict.fromkeys(wanted) if spec not in installed]:
    step(f"installing {', '.join(missing)}", *pip, *missing)
    PACKAGES.write_text("\n".join(installed + missing), "utf-8")
if command == "demo":
    folders = (ROOT / name for name in ("rope_array", "backends"))
    files = [
        *ROOT.glob("*.toml"),
        ROOT / "CMakeLists.txt",
        *(f for each in folders for f in each.rglob("*.*")),
    ]
    state = repr(sorted((str(f), f.stat().st_mtime_ns) for f in files if f.suffix != ".pyc"))
    if not SOURCES.exists() or SOURCES.read_text("utf-8") != state:  # install the package after a change only
        # Compile for this processor alone, in a folder that other builds do not use. -O1 compiles in three
        # quarters of the time of -O2, and rotates as fast.
        defines = ["ROPE_ARRAY_THIS_PROCESSOR=ON"]
        if not WINDOWS:
            defines += ["ROPE_ARRAY_LOOP_OPTIMISATION=-O1", "CMAKE_CXX_FLAGS_RELEASE=-O1 -DNDEBUG"]
        settings = [f"build-dir={BUILD}/{{wheel_tag}}", *(f"cmake.define.{each}" for each in defines)]
        build = (*(f"--config-settings={each}" for each in settings), "--no-build-isolation", "--no-deps")
        step("compiling the C++ kernel, installing rope_array", *pip, "-v", *build, ROOT)
        if b"kernel was NOT built" in LOG.read_bytes():  # start anew next time: there may be a compiler
            shutil.rmtree(BUILD, ignore_errors=True)
            print(f"The C++ kernel is missing: {LOG} has the compiler's messages.", file=sys.stderr)
        else:
            SOURCES.write_text(state, "utf-8")
sys.exit(subprocess.run([PYTHON, "-P", "-m", *run, *args]).returncode)
