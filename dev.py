"""Usage: python dev.py demo [--all] [FILE] | test [NOX ARGUMENTS] | lint | types."""

import os
import shutil
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

ROOT = Path(__file__).resolve().parent
PYTHON = ROOT / ".venv" / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
BUILD, LOG = ROOT / "build/dev", ROOT / "build/dev.log"
PACKAGES, SOURCES = ROOT / ".venv/packages.txt", ROOT / ".venv/sources.txt"  # the installed ones


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


command, args = "".join(sys.argv[1:2]), sys.argv[2:]
if command not in ("demo", "test", "lint", "types"):
    sys.exit(__doc__)
try:
    import ensurepip  # noqa: F401
    import tomllib
    import venv  # noqa: F401
except ImportError as error:
    sys.exit(f"{error}. Needed: Python 3.11 or newer, with venv (Debian, Ubuntu: apt install python3-venv).\n"
             "Or use your own environment: python -m pip install . nox && python -m nox")  # fmt: skip
config = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
project, groups = config["project"], config["dependency-groups"]
extras, pip = project["optional-dependencies"], (PYTHON, "-m", "pip", "install", "-v")
wanted, run = (
    groups["dev"],
    ["nox", "-f", ROOT / "noxfile.py", *([] if command == "test" else ["-s", command])],
)
if command == "demo":
    wanted = [*config["build-system"]["requires"], "cmake", "ninja", *project["dependencies"]]
    wanted, run = [*wanted, *groups["strict"], *extras["dask"]], ["rope_array", "demo"]
    if "--all" in args:
        args.remove("--all")
        wanted += [*extras["jax"], os.environ.get("ROPE_ARRAY_TORCH") or groups["torch"][0]]
if not PYTHON.exists():
    step("making .venv", sys.executable, "-m", "venv", "--clear", ROOT / ".venv")
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
        # Compile for this processor alone, in a folder that other builds do not use.
        settings = (f"build-dir={BUILD}/{{wheel_tag}}", "cmake.define.ROPE_ARRAY_THIS_PROCESSOR=ON")
        build = (
            *(f"--config-settings={each}" for each in settings),
            "--no-build-isolation",
            "--no-deps",
            ROOT,
        )
        step("compiling the C++ kernel, installing rope_array", *pip, *build)
        if b"kernel was NOT built" in LOG.read_bytes():  # start anew next time: there may be a compiler
            shutil.rmtree(BUILD, ignore_errors=True)
            print(f"The C++ kernel is missing: {LOG} has the compiler's messages.", file=sys.stderr)
        else:
            SOURCES.write_text(state, "utf-8")
sys.exit(subprocess.run([PYTHON, "-P", "-m", *run, *args]).returncode)
