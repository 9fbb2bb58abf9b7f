"""Run one environment of versions.toml, with the packages that are installed, and write its record.

The session `versions` installs each environment and calls this script by its Python. The record has the date,
the commit, the system, the versions, and the numbers of checks and tests by file. `results/versions.json` has
the newest record of each environment. docs/_versions.py makes tables of it, and tests/test_versions.py holds
the bounds of pyproject.toml to it.
"""

import argparse
import collections
import datetime
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
import sysconfig
import tempfile
import tomllib
import xml.etree.ElementTree as xml
from pathlib import Path

from _record import RESULTS, ROOT, commit

ENVIRONMENTS = tomllib.loads((ROOT / "bench" / "versions.toml").read_text("utf-8"))
PATH = RESULTS / "versions.json"
PACKAGES = (
    *("numpy", "array-api-compat", "array-api-strict", "torch", "jax", "dask", "cubed", "transformers"),
    *("matplotlib", "gguf", "ml_dtypes", "mlx", "tensorflow-cpu", "ndonnx", "marray"),
)


def run_environment(name, workers):
    """Return the record of an environment: its checks, its tests and its families."""
    environment = ENVIRONMENTS[name]
    record = about()
    record["checks"] = {target: run_check(target) for target in environment.get("checks", ())}
    if environment.get("tests"):
        record["tests"] = run_tests(environment["libraries"], environment["tests"], workers)
    if environment.get("families"):
        record["families"] = run_families()
    return record


def about():
    """Return the date, the commit, the system, and the versions of the installed packages."""
    free_threaded = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))
    versions = {package: version(package) for package in PACKAGES}
    return {
        "date": datetime.date.today().isoformat(),
        "commit": commit(),
        "system": " ".join([platform.system(), platform.machine(), *platform.libc_ver()]).strip(),
        "versions": {
            "python": platform.python_version() + (" free-threaded" if free_threaded else ""),
            **{package: number for package, number in versions.items() if number},
        },
    }


def version(package):
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def run(*command, **options):
    print("$", *command, flush=True)
    env = os.environ | {"PYTHONSAFEPATH": "1"}  # the checkout's rope_array must not shadow the wheel's
    return subprocess.run([sys.executable, *command], env=env, cwd=ROOT, text=True, check=False, **options)


def run_check(target):
    """Return how many checks of a target passed and failed."""
    process = run("-m", "rope_array", "check", target, "--json", stdout=subprocess.PIPE)
    try:
        report = json.loads(process.stdout)
    except json.JSONDecodeError:
        sys.exit(f"check {target} printed no report:\n{process.stdout}")
    counts = {outcome: report["counts"][outcome] for outcome in ("passed", "failed")}
    failed = [result["name"] for result in report["results"] if result["outcome"] == "failed"]
    print(f"check {target}: {counts}", *failed)
    return counts


def run_tests(libraries, arguments, workers):
    """Return the numbers of passed, failed and skipped tests of each file."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tests.xml"
        options = [f"--libraries={','.join(libraries)}", f"--junitxml={path}", "-q", f"-n={workers}"]
        run("-m", "pytest", *options, "-p", "no:cacheprovider", *arguments)
        return counts_by_file(xml.parse(path))


def counts_by_file(tree):
    counts = collections.defaultdict(lambda: {"passed": 0, "failed": 0, "skipped": 0})
    for case in tree.iter("testcase"):
        tags = {child.tag for child in case}
        outcome = "failed" if tags & {"failure", "error"} else "skipped" if "skipped" in tags else "passed"
        counts[case.get("classname").removeprefix("tests.")][outcome] += 1
    return dict(sorted(counts.items()))


def run_families():
    """Return the verdict of `ra.hf.patch` on each family of models."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "families.json"
        run(str(ROOT / "bench" / "hf_families.py"), "--json", str(path)).check_returncode()
        return json.loads(path.read_text("utf-8"))


def add_record(name, record):
    """Write the record of one environment into PATH, in place of an older one."""
    records = json.loads(PATH.read_text("utf-8")) if PATH.exists() else {}
    records = dict(sorted({**records, name: record}.items()))
    PATH.write_text(json.dumps(records, indent=1, ensure_ascii=False) + "\n", "utf-8")


def failures(record):
    """Return the number of failed checks and tests of a record."""
    runs = [*record.get("checks", {}).values(), *record.get("tests", {}).values()]
    return sum(counts["failed"] for counts in runs)


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("name", choices=ENVIRONMENTS, metavar="NAME", help=", ".join(ENVIRONMENTS))
    parser.add_argument("--workers", default="auto", help="processes of pytest; default: one for each core")
    arguments = parser.parse_args()
    record = run_environment(arguments.name, arguments.workers)
    add_record(arguments.name, record)
    print(json.dumps(record, indent=1, ensure_ascii=False))
    if failed := failures(record):
        sys.exit(f"{arguments.name}: {failed} checks and tests failed")


if __name__ == "__main__":
    main()
