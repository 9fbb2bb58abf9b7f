"""Run the conformance suite on other implementations, each judged by its own claims, and write the results.

Every row of bench/peers runs in a separate process with the environment of its group, so that a failed import
or a crash costs that row only. Writes bench/results/<date>-scoreboard.json, and the tables of
docs/scoreboard.md and README.md. `--only NAME ...` runs these groups and prints; it writes none of them.

`--reports FOLDER` keeps the suite's report of each row. A row with a report of the same suite is not run
again, so an interrupted run continues. Delete a report to judge its row again, such as after a change of its
adapter; a change of its notes needs no new report.
"""

import argparse
import hashlib
import importlib
import json
import os
import re
import subprocess
import sys
import time
from collections import Counter
from fnmatch import fnmatchcase
from math import isfinite
from pathlib import Path

import _pages
from _record import RESULTS, ROOT, record, write_json
from _scoreboard_tables import counts_table, errors_table, failures
from peers import GROUPS

import rope_array
from rope_array.testing import run_checks

LIMIT = 3600  # seconds for a row
REPORTS = ROOT / ".nox" / "scoreboard"
NOTE = "the conformance suite on rope_array and on other implementations, each judged by its own claims"


# ---- one row, in its process ----


def judge(name, path):
    """Write the suite's report of a row; the causes of its failures, which take long, are not looked for."""
    group = next(group for group in GROUPS if name in group.rows)
    targets = importlib.import_module(f"peers.{group.module}").targets()
    judged = dict(zip(group.rows, targets, strict=True))[name]
    started = time.process_time()
    report = run_checks(judged)
    seconds = time.process_time() - started
    target, outcomes = report.target, Counter(result.outcome for result in report.results)
    verdict = {
        "suite": suite(),
        "note": judged if isinstance(judged, str) else target.name,
        "version": target.version,
        "class": {"angles": target.angles, "arithmetic": target.arithmetic},
        "counts": {outcome: outcomes[outcome] for outcome in ("passed", "failed", "not applicable")},
        # JSON has no infinity: null where a result is NaN or infinite.
        "worst": {key: float(f"{e:.3g}") if isfinite(e) else None for key, e in report.worst.items()},
        "cpu_seconds": round(seconds, 1),
        "results": [vars(result) for result in report.results],
    }
    partial_path = path.with_suffix(".part")
    partial_path.write_text(json.dumps(verdict, indent=1) + "\n", "utf-8")
    partial_path.replace(path)  # an interrupted run leaves no half of a report


def suite():
    """Return a digest of the installed package."""
    files = sorted(Path(rope_array.__file__).parent.rglob("*.*"))
    files = [path for path in files if path.suffix != ".pyc" and path.is_file()]
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()


# ---- the rows ----


def row_of(verdict, note):
    """Return the entries of a report that the tables show, with the reasons of the failures."""
    failed = [(row["name"], row["detail"]) for row in verdict["results"] if row["outcome"] == "failed"]
    kept = {key: value for key, value in verdict.items() if key not in ("suite", "note", "results")}
    return {**kept, "failed": dict(failed), "reasons": reasons(failed, note.why), "how": note.how}


def reasons(failed, why):
    """Group failed checks by their known reason, or else by the suite's message."""
    grouped = {}
    for name, detail in failed:
        plain = name.replace("[", " ").rstrip("]")
        explanation = (reason for pattern, reason in why.items() if fnmatchcase(plain, pattern))
        grouped.setdefault(next(explanation, f"found: {detail}"), []).append(name)
    return [{"checks": names, "reason": reason} for reason, names in grouped.items()]


def run(group, name, folder):
    """Return a row, of an earlier report of the same suite or of a new one; or why it did not run."""
    path = folder / f"{re.sub('[^a-z0-9]+', '-', name.lower())}.json"
    if not path.exists() or json.loads(path.read_text("utf-8"))["suite"] != suite():
        command = [sys.executable, __file__, "--judge", name, str(path)]
        environment = {**os.environ, **group.environment, "PYTHONWARNINGS": "ignore"}
        try:
            done = subprocess.run(
                command, env=environment, capture_output=True, text=True, timeout=LIMIT, check=False
            )
        except subprocess.TimeoutExpired:
            return {"missing": f"took more than {LIMIT} s"}
        if done.returncode:
            last_line = done.stderr.strip().rpartition("\n")[2][:200]
            return {"missing": last_line or f"its process ended with {done.returncode}"}
    verdict = json.loads(path.read_text("utf-8"))
    return row_of(verdict, importlib.import_module(f"peers.{group.module}").NOTES[verdict["note"]])


def rows_of(groups, folder):
    folder.mkdir(parents=True, exist_ok=True)
    rows = {}
    for group in groups:
        for name in group.rows:
            rows[name] = run(group, name, folder)
            took = rows[name].get("missing") or f"{rows[name]['cpu_seconds']:.0f} s of CPU time"
            print(f"{name}: {took}", file=sys.stderr, flush=True)
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", nargs="+", metavar="GROUP", help="run only these, print, write nothing")
    parser.add_argument(
        "--reports", metavar="FOLDER", type=Path, default=REPORTS, help="keep and use the rows' reports here"
    )
    parser.add_argument("--judge", nargs=2, metavar=("ROW", "PATH"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.judge:
        judge(options.judge[0], Path(options.judge[1]))
        return
    groups = [group for group in GROUPS if not options.only or group.module in options.only]
    run_of_rows = record("scoreboard", rows_of(groups, options.reports), NOTE)
    print("\n".join([*counts_table(run_of_rows), "", *errors_table(run_of_rows), *failures(run_of_rows)]))
    if not options.only:
        write_json(run_of_rows, RESULTS / f"{run_of_rows['date']}-scoreboard.json")
        _pages.write("scoreboard")


if __name__ == "__main__":
    main()
