"""Results as JSON: the numbers with date, machine, versions and commit."""

import datetime
import importlib.metadata
import json
import os
import platform
import subprocess
from pathlib import Path

from _targets import judged

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "bench" / "results"
# The paths, for git, that a result depends on.
MEASURED = ("rope_array", "backends", "bench", ":!bench/results")
PACKAGES = ("numpy", "array-api-compat", "rope-array")


def record(name, numbers, note, packages=PACKAGES, gpu=None, **extra):
    """Return a result as a dictionary for JSON, with more fields; `gpu` has the facts of a measured GPU."""
    return {
        "bench": name,
        "date": datetime.date.today().isoformat(),
        "what": note,
        "numbers": numbers,
        "machine": machine() | ({"gpu": gpu} if gpu else {}),
        "versions": {"python": platform.python_version(), **{p: version(p) for p in packages}},
        "commit": commit(),
        **extra,
    } | judged(name, numbers)


def machine():
    load = getattr(os, "getloadavg", lambda: [None])()[0]
    return {
        "cpu": cpu(),
        "cores": os.cpu_count(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "load_average_1min": load,
    }


def cpu():
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        return platform.processor() or "unknown"
    return next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown"
    )


def version(package):
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "checkout" if package == "rope-array" else None


def commit():
    """Return the checkout's commit, with a + if the package or the benchmarks have uncommitted changes."""
    if not (head := git("rev-parse", "HEAD")):
        return None
    return head + ("+" if git("status", "--porcelain", "--", *MEASURED) else "")


def git(*arguments):
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip()


def write_json(run, path):
    path.write_text(json.dumps(run, indent=1) + "\n", "utf-8")


def fill(path, name, lines):
    """Write lines between the markers of a table, `<!-- NAME -->` and `<!-- /NAME -->`, of a page."""
    before, start, rest = path.read_text("utf-8").partition(f"<!-- {name} -->\n")
    _, end, after = rest.partition(f"\n<!-- /{name} -->")
    if not end:
        raise ValueError(f"{path} has no markers of a table {name!r}")
    path.write_text("\n".join([before + start, *lines, end + after]), "utf-8")


def table(head, lines, numbers):
    """Return the lines of a table of Markdown; the columns `numbers` are to the right."""
    marks = ("---:" if name in numbers else "---" for name in head)
    return [f"| {' | '.join(line)} |" for line in (head, marks, *lines)]
