"""Run the conformance suite on other implementations, each judged by its own claims, and write the results.

Every row of bench/peers runs in a separate process with the environment of its group, so that a failed import
or a crash costs that row only. Writes docs/scoreboard.md, bench/results/<date>-scoreboard.json, and the table
between the markers in README.md. `--only NAME ...` runs these groups and prints; it writes none of them.
`--tables PATH` writes the page and README's table of an earlier result.

`--reports FOLDER` keeps the suite's report of each row. A row with a report of the same suite is not run
again, so an interrupted run continues. Delete a report to judge its row again, such as after a change of its
adapter; a change of its notes needs no new report.
"""

import argparse
import datetime
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

sys.path.insert(0, str(Path(__file__).parent))  # for python -m bench.scoreboard too

from _record import RESULTS, ROOT, record, replace_between
from peers import GROUPS

LIMIT = 3600  # seconds for a row
REPORTS = ROOT / ".nox" / "scoreboard"
MANY = 8  # with more failed checks for one reason, dtypes are left out
RANGES = ("small", "2^16", "2^20", "2^24", "int32")
MARKERS = ("<!-- scoreboard -->", "<!-- /scoreboard -->")
NOTE = "the conformance suite on rope_array and on other implementations, each judged by its own claims"

INTRODUCTION = """\
```text
python -m rope_array check torch            # a row of this library
python -m rope_array check mine:rotate      # your own code
```

The [conformance suite](conformance.md) judges this library and other implementations, each called as its
documentation says. An implementation is judged by its own [claims](glossary.md#claim): its
[angles](glossary.md#angle), arithmetic, [positions](glossary.md#position) and layout. A
[check](glossary.md#check) does not apply if it needs a [capability](glossary.md#capability) that the
implementation does not claim. So the counts of two implementations cannot be compared; read the failures
and their reasons."""
EDITIONS = """\
Three editions of the suite judged these releases. The first, of 181 checks, did so on 2026-11-21, the second,
of 294, on 2026-11-23. The third, of 214, makes the calls of the second and more combinations of fields, with
fewer checks for the same fault; so its counts are smaller. It fails the same implementations.

The second edition found faults that the first passed:

* Liger: a gradient of a gradient is not rotated (`gradient_of_a_gradient`), and for a single row the incoming
  gradient is overwritten (`gradient_combinations`);
* flash-attn: a gradient of a gradient is not rotated, and a gradient that is asked for twice with the same
  incoming gradient is wrong the second time, both without an error (`gradient_of_a_gradient`,
  `gradient_twice`);
* tutorial: table: training raises an error if the first call was made under `torch.inference_mode()`
  (`training_after_inference`)."""
LEGEND = """\
The column *angles* has the claim on the angles, which sets the tolerance. With *own arithmetic* 16-bit
numbers are rotated in their own dtype, otherwise in float32."""
ERRORS = """\
Each number is the largest error of float32 results, divided by the length of the rotated
[pair](glossary.md#pair). A column covers the positions from the heading before it to its own heading. A
field is empty if the implementation does not claim these positions. At 2 a pair points in the opposite
direction."""
README = """\
*Failed* counts checks; each implementation is judged by its own claims, so counts cannot be compared.
The last columns have the largest error up to their position, divided by the pair's length;
2 is the opposite direction."""
IN_README = (
    *("rope_array, PyTorch", "transformers Llama", "Llama, complex form", "flash-attn, Triton kernel"),
)
REASONS = """\
The [reference](conformance-reference.md#checks) lists the checks by name. Each reason is our reading of the
code of that version. A reason that begins with "found" is the suite's own message."""


# ---- one row, in its process ----


def judge(name, path):
    """Write the suite's report of a row; the causes of its failures, which take long, are not looked for."""
    from rope_array.testing import run_checks

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
        "fixed": {key: str(value) for key, value in target.fixed.items()},
        "positions": target.positions,
        "furthest": target.furthest,
        "counts": {outcome: outcomes[outcome] for outcome in ("passed", "failed", "not applicable")},
        # JSON has no infinity: null where a result is NaN or infinite.
        "worst": {key: float(f"{e:.3g}") if isfinite(e) else None for key, e in report.worst.items()},
        "declines": dict(target.declines),
        "cpu_seconds": round(seconds, 1),
        "results": [vars(result) for result in report.results],
    }
    partial_path = path.with_suffix(".part")
    partial_path.write_text(json.dumps(verdict, indent=1) + "\n", "utf-8")
    partial_path.replace(path)  # an interrupted run leaves no half of a report


def suite():
    """Return a digest of the installed package."""
    import rope_array

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
            return {"missing": last_line(done.stderr) or f"its process ended with {done.returncode}"}
    verdict = json.loads(path.read_text("utf-8"))
    return row_of(verdict, importlib.import_module(f"peers.{group.module}").NOTES[verdict["note"]])


def last_line(text):
    return " ".join(text.strip().rpartition("\n")[2].split())[:200]


def rows_of(groups, folder):
    folder.mkdir(parents=True, exist_ok=True)
    rows = {}
    for group in groups:
        for name in group.rows:
            rows[name] = run(group, name, folder)
            took = rows[name].get("missing") or f"{rows[name]['cpu_seconds']:.0f} s of CPU time"
            print(f"{name}: {took}", file=sys.stderr, flush=True)
    return rows


# ---- tables ----


def class_of(row):
    arithmetic = ", own arithmetic" if row["class"]["arithmetic"] == "own" else ""
    return f"{row['class']['angles']}{arithmetic}"


def error(row, name):
    if name not in row["worst"]:
        return ""
    worst = row["worst"][name]  # None if a result was NaN or infinite
    return "no number" if worst is None else f"{worst:.0e}".replace("e-0", "e-").replace("e+00", "")


def cells(line):
    return f"| {' | '.join(line)} |"


def table(head, lines, numbers=("passed", "failed", "not applicable", *RANGES)):
    return [cells(head), cells("---:" if name in numbers else "---" for name in head), *map(cells, lines)]


def counts_table(rows):
    head = ("implementation", "angles", "passed", "failed", "not applicable")
    return table(head, [(name, *counts(row, len(head) - 2)) for name, row in rows.items()])


def counts(row, empty):
    if "missing" in row:
        return f"not run: {row['missing']}", *[""] * empty
    return class_of(row), *(str(count) for count in row["counts"].values())


def errors_table(rows):
    present = {name: row for name, row in rows.items() if "missing" not in row}
    lines = [(name, *(error(row, r) for r in RANGES)) for name, row in present.items()]
    return table(("implementation", "4,096", *RANGES[1:]), lines, ("4,096", *RANGES))


def short_table(rows):
    head = ("implementation", "angles", "failed", "2^16", "2^20", "int32")
    lines = []
    for name in IN_README:
        row = rows.get(name, {"missing": True})
        if "missing" in row:
            lines.append((name, "not run", *[""] * (len(head) - 2)))
            continue
        errors = (error(row, r) for r in ("2^16", "2^20", "int32"))
        lines.append((name, row["class"]["angles"], str(row["counts"]["failed"]), *errors))
    return [*table(head, lines), "", README]


def grouped_names(names):
    """Join the names of checks, each once, with its failed dtypes: a, b (float16, bfloat16)."""
    dtypes = {}
    for name in names:
        check, _, dtype = name.rstrip("]").partition("[")
        dtypes.setdefault(check, []).append(dtype)
    brief = len(dtypes) > MANY
    return ", ".join(
        f"`{check}`" + (f" ({', '.join(dtype_names)})" if all(dtype_names) and not brief else "")
        for check, dtype_names in dtypes.items()
    )


def failures(rows):
    for name, row in rows.items():
        if not row.get("reasons"):
            continue
        yield f"\n### {name}\n"
        for reason_of_checks in row["reasons"]:
            reason = reason_of_checks["reason"].replace("|", "\\|")
            yield f"* {grouped_names(reason_of_checks['checks'])}: {reason}."


def calls(rows):
    for name, row in rows.items():
        if "how" in row:
            version = f" ({row['version']})" if "version" in row else ""
            yield f"* **{name}**{version}: {row['how']}."


def page(rows, run):
    machine, versions = run["machine"], run["versions"]
    origin = (
        f"Made by `python bench/scoreboard.py` on {run['date']}, commit {run['commit'][:10]}, "
        f"Python {versions['python']}, NumPy {versions['numpy']}, {machine['cpu']} with {machine['cores']} "
        f"cores, {machine['system'].split()[0]}."
    )
    sections = (
        ("# Scoreboard", "", INTRODUCTION, "", origin, ""),
        ("## Checks", "", *counts_table(rows), "", LEGEND, ""),
        ("## Editions of the suite", "", EDITIONS, ""),
        ("## Largest errors", "", *errors_table(rows), "", ERRORS, ""),
        ("## Failed checks", "", REASONS, *failures(rows), ""),
        ("## Versions and calls", "", *calls(rows), ""),
    )
    return "\n".join(line for section in sections for line in section)


def write(rows):
    run = record("scoreboard", rows, NOTE)
    path = RESULTS / f"{datetime.date.today()}-scoreboard.json"
    path.write_text(json.dumps(run, indent=1) + "\n", "utf-8")
    write_tables(run)


def write_tables(run):
    rows = run["numbers"]
    (ROOT / "docs" / "scoreboard.md").write_text(page(rows, run), "utf-8")
    replace_between(MARKERS, short_table(rows), ROOT / "README.md")


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", nargs="+", metavar="GROUP", help="run only these, print, write nothing")
    parser.add_argument("--tables", metavar="PATH", type=Path, help="write the tables of an earlier result")
    parser.add_argument(
        "--reports", metavar="FOLDER", type=Path, default=REPORTS, help="keep and use the rows' reports here"
    )
    parser.add_argument("--judge", nargs=2, metavar=("ROW", "PATH"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.judge:
        judge(options.judge[0], Path(options.judge[1]))
        return
    if options.tables:
        write_tables(json.loads(options.tables.read_text("utf-8")))
        return
    groups = [group for group in GROUPS if not options.only or group.module in options.only]
    rows = rows_of(groups, options.reports)
    print("\n".join([*counts_table(rows), "", *errors_table(rows), *failures(rows)]))
    if not options.only:
        write(rows)


if __name__ == "__main__":
    main()
