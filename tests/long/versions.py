"""Run one environment of versions.toml, with the packages that are installed, and write its record.

The session `versions` installs each environment and calls this script by its Python. The record has the date,
the commit, the system, the versions, and the numbers of checks and tests by file. `results/versions.json` has
the newest record of each environment. The table of libraries in README.md is made of it here, other tables in
docs/_suite.py, and tests/test_figures.py holds the bounds of pyproject.toml to it.
"""

import argparse
import collections
import datetime
import importlib.metadata
import itertools
import json
import os
import platform
import re
import subprocess
import sys
import sysconfig
import tempfile
import tomllib
import xml.etree.ElementTree as xml
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "bench"))
from _record import RESULTS, ROOT, commit, fill

from rope_array.testing._libraries import DEFAULT_CONFIGURATIONS

ENVIRONMENTS = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))
FILES = ENVIRONMENTS.pop("files")
PATH = RESULTS / "versions.json"
PACKAGES = (
    *(lib.package for lib in DEFAULT_CONFIGURATIONS),
    *("array-api-compat", "ml_dtypes", "transformers", "matplotlib", "gguf"),
)


def run_environment(name, workers):
    """Return the record of an environment: its checks, its tests and its families."""
    environment = ENVIRONMENTS[name]
    record = about()
    if checks := environment.get("checks"):
        record["checks"] = {target: run_check(target) for target in targets_of(checks)}
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


def targets_of(checks):
    """Return the targets of an environment; "more" is every library of the session `tests(more)`."""
    more = [lib.name for lib in DEFAULT_CONFIGURATIONS if lib.session == "more"]
    return [target for name in checks for target in (more if name == "more" else [name])]


def run_check(target):
    """Return how many checks of a target passed and failed."""
    process = run("-m", "rope_array", "check", target, "--json", stdout=subprocess.PIPE)
    try:
        report = json.loads(process.stdout)
    except json.JSONDecodeError:
        sys.exit(f"check {target} printed no report:\n{process.stdout}")
    passed = report["counts"]["passed"]
    failed = [
        result["name"] for result in report["results"] if result["outcome"] in ("failed", "unexpected pass")
    ]
    print(f"check {target}: {passed} passed, {len(failed)} failed", *failed)
    return {"passed": passed, "failed": len(failed)}


def run_tests(libraries, arguments, workers):
    """Return the numbers of passed, failed and skipped tests of each file."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tests.xml"
        options = [f"--libraries={','.join(libraries)}", f"--junitxml={path}", "-q", f"-n={workers}"]
        files = itertools.chain(*(FILES.get(argument, [argument]) for argument in arguments))
        done = run("-m", "pytest", *options, "-p", "no:cacheprovider", *files)
        if done.returncode not in (0, 1):  # such as 5: no test ran
            sys.exit(f"pytest ended with the status {done.returncode}, so no record is written")
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
        run(str(Path(__file__).with_name("hf_families.py")), "--json", str(path)).check_returncode()
        return json.loads(path.read_text("utf-8"))


def add_record(name, record):
    """Write the record of one environment into PATH, in place of an older one."""
    records = json.loads(PATH.read_text("utf-8")) if PATH.exists() else {}
    records = dict(sorted({**records, name: record}.items()))
    text = json.dumps(records, indent=1, ensure_ascii=False) + "\n"
    one_line = re.sub(r'\{\s+"passed"[^}]*\}', lambda counts: " ".join(counts[0].split()), text)
    PATH.write_text(one_line, "utf-8")


def write_readme():
    """Write README.md's table of libraries."""
    records = [record for record in json.loads(PATH.read_text("utf-8")).values() if not failures(record)]
    head = ["| library | versions run |", "| --- | --- |"]
    rows = [library_row(lib.title, lib.package, lib.name, records) for lib in DEFAULT_CONFIGURATIONS]
    fill(ROOT / "README.md", "versions", [*head, *filter(None, rows)])


def library_row(label, package, target, records):
    """Return a row of README.md: the oldest and the newest version that ran the checks."""
    runs = {
        record["versions"][package].partition("+")[0]
        for record in records
        if target in record.get("checks", {}) and package in record["versions"]
    }
    if not runs:
        return None
    versions = sorted(runs, key=lambda text: [int(number) for number in re.findall(r"\d+", text)])
    ends = dict.fromkeys((versions[0], versions[-1]))
    return f"| {label} | {' and '.join(ends)} |"


def failures(record):
    """Return the number of failed checks and tests of a record, and of runs in which nothing passed."""
    runs = [*record.get("checks", {}).values(), *record.get("tests", {}).values()]
    if verdicts := record.get("families", {}).values():
        runs.append({"passed": list(verdicts).count("patched"), "failed": 0})
    return sum(counts["failed"] or not counts["passed"] for counts in runs)


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("name", choices=ENVIRONMENTS, metavar="NAME", help=", ".join(ENVIRONMENTS))
    parser.add_argument("--workers", default="auto", help="processes of pytest; default: one for each core")
    arguments = parser.parse_args()
    if not ENVIRONMENTS[arguments.name].keys() & {"checks", "tests", "families"}:
        sys.exit(f"{arguments.name} has nothing to run: give it checks, tests or families")
    record = run_environment(arguments.name, arguments.workers)
    add_record(arguments.name, record)
    write_readme()
    print(json.dumps(record, indent=1, ensure_ascii=False))
    if failed := failures(record):
        sys.exit(
            f"{arguments.name}: {failed} checks and tests failed, or files and targets had none that passed"
        )


if __name__ == "__main__":
    main()
