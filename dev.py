"""Usage: python dev.py demo [--all] [FILE] | test [NOX ARGUMENTS] | lint | types."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent
PYTHON = ROOT / ".venv" / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
command, args = "".join(sys.argv[1:2]), sys.argv[2:]
if command not in ("demo", "test", "lint", "types"):
    sys.exit(__doc__)
try:
    import ensurepip  # noqa: F401
    import tomllib
    import venv
except ImportError as error:
    sys.exit(f"{error}. Needed: Python 3.11 or newer, with venv (Debian, Ubuntu: apt install python3-venv).\n"
             "Or use your own environment: python -m pip install . nox && python -m nox")  # fmt: skip
project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
extras, groups = project["project"]["optional-dependencies"], project["dependency-groups"]
files, wanted = [ROOT / "pyproject.toml"], groups["dev"]
run = ["nox", "-f", str(ROOT / "noxfile.py"), *([] if command == "test" else ["-s", command])]
if command == "demo":
    files += [ROOT / "CMakeLists.txt", *(ROOT / "rope_array").rglob("*.*"), *(ROOT / "backends").rglob("*.*")]
    wanted, run = [str(ROOT), *groups["strict"], *extras["dask"]], ["rope_array", "demo"]
    if "--all" in args:
        args.remove("--all")
        wanted += [*extras["jax"], os.environ.get("ROPE_ARRAY_TORCH") or groups["torch"][0]]
if not PYTHON.exists():
    venv.create(ROOT / ".venv", clear=True, with_pip=True)
stamp = ROOT / ".venv" / f"installed-for-{run[0]}"
state = repr([wanted, sorted((str(f), f.stat().st_mtime_ns) for f in files if f.suffix != ".pyc")])
if not stamp.exists() or stamp.read_text("utf-8") != state:  # run pip only after a change
    print("installing into .venv ...", file=sys.stderr, flush=True)
    if code := subprocess.run([PYTHON, "-m", "pip", "install", "-qq", *wanted]).returncode:
        sys.exit(code)
    stamp.write_text(state, "utf-8")
sys.exit(subprocess.run([PYTHON, "-P", "-m", *run, *args]).returncode)
