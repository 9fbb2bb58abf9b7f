"""Run every check of the conformance suite on every mutant: which checks kill which mutants.

    python tests/long/kill_matrix.py [--libraries NAMES] [--only MUTANTS] [--workers N] [--json PATH]
    python tests/long/kill_matrix.py --read PATH ... [--against PATH ...]

A check kills a mutant of tests/mutants*.py if it fails for it. Each mutant has a process of its own. Correct
code is judged too, once for each target: a check that fails for it is no killer there. Mutants claim all
fields, some of which `torch.compile` cannot compile. `--read` reports recorded runs instead of a new one;
`--against` compares a run with recorded runs. Needs the dependency group `test`. Exit status 1: no check
kills a mutant, or a check that the mutant names does not; or a mutant ran out of time.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path

from kill_report import compare, report

import rope_array as ra
from rope_array.testing._checks import checks
from rope_array.testing._judge import Judge
from rope_array.testing._outcome import FAILED, PASSED, outcome_of

sys.path += [str(Path(__file__).parents[2] / folder) for folder in ("bench", "tests")]
from _record import PACKAGES, record

faults = import_module("faults")

MUTANTS = {mutant.name: mutant for mutant in faults.load_mutants()}
TARGETS = {"numpy": ["numpy"], "torch": ["torch", "torch:compile"], "jax": ["jax", "jax:x64", "jax:jit"]}


def judge(name, first):
    """Run the checks from number `first` on, on a mutant, or on correct code by the name of its target.

    Print the name of each check before it, and the name and the outcome after it.
    """
    Judge.explains = False
    target = MUTANTS[name].target() if name in MUTANTS else faults.target(ra.apply, name)
    judge = Judge(target, thorough=True)
    for check in checks()[first:]:
        base_name = check.name.partition("[")[0]  # without the dtype
        print(json.dumps([base_name]), flush=True)
        print(json.dumps([base_name, outcome_of(check, judge)[0]]), flush=True)


def run_process(name, first, seconds):
    """Run `judge` in a new process; return the lists that it printed, and whether it ended in time."""
    command = [sys.executable, __file__, "--judge", name, "--first", str(first)]
    env = {"OMP_NUM_THREADS": "1", **os.environ}  # there is a worker for each core
    # Files, not pipes, which a process that the mutant started could hold open.
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        in_time = True
        try:
            subprocess.run(command, stdout=out, stderr=err, env=env, timeout=seconds, check=False)
        except subprocess.TimeoutExpired:
            in_time = False
        out.seek(0)
        err.seek(0)
        lists = [json.loads(line) for line in out if line.startswith('["')]
        if not lists:
            print(f"{name}: no check was run\n{err.read()[-2000:]}")
    return lists, in_time


def outcomes_of(name, limit):
    """Return [check, outcome] of each check, and the check that was not judged in time, or "".

    A check that ends its process has failed; another process runs the checks after it.
    """
    outcomes, end = [], time.monotonic() + limit
    while len(outcomes) < len(checks()):
        lists, in_time = run_process(name, len(outcomes), max(end - time.monotonic(), 1))
        outcomes += [outcome for outcome in lists if len(outcome) == 2]
        if not lists or not in_time:
            return outcomes, lists[-1][0] if lists else "import"
        if len(lists[-1]) == 1:
            outcomes.append([*lists[-1], FAILED])
    return outcomes, ""


def run(options):
    """Return the numbers of a record, which is written after each mutant."""
    numbers = {"applied": {}, "correct": {}, "mutants": {}, "unfinished": {}}
    targets = [target for library in options.libraries for target in TARGETS[library]]
    names = [name for name, mutant in MUTANTS.items() if mutant.library in targets]
    names = targets + [name for name in names if not options.only or name in options.only]
    with ThreadPoolExecutor(options.workers) as pool:
        rows = pool.map(lambda name: timed_outcomes(name, options.limit), names)
        for name, (outcomes, unfinished, seconds) in zip(names, rows, strict=True):
            add(numbers, name, outcomes)
            numbers["unfinished"] |= {name: unfinished} if unfinished else {}
            failed = (numbers["mutants"] | numbers["correct"])[name]
            print(f"{name:<52}{len(failed):>4} failed{seconds:>6} s  {unfinished}", flush=True)
            if options.json:
                write(numbers, options.json)
    return numbers


def timed_outcomes(name, limit):
    began = time.monotonic()
    return *outcomes_of(name, limit), round(time.monotonic() - began)


def add(numbers, name, outcomes):
    """Add the names of the checks that failed; for correct code, also of the checks that applied."""
    failed = {check for check, outcome in outcomes if outcome == FAILED}
    if name in MUTANTS:
        numbers["mutants"][name] = sorted(failed.difference(numbers["correct"][MUTANTS[name].library]))
    else:
        applied = {check for check, outcome in outcomes if outcome in (PASSED, FAILED)}
        numbers["applied"][name], numbers["correct"][name] = sorted(applied), sorted(failed)


def write(numbers, path):
    """Write the record, each list on one line."""
    note = "the checks that fail for each mutant; for correct code, the checks that applied and that failed"
    run = record("kill-matrix", numbers, note, (*PACKAGES, "torch", "jax"))
    text = json.dumps(run, indent=1)
    text = re.sub(r"\[[^][{}]*\]", lambda match: json.dumps(json.loads(match[0])), text)
    path.write_text(text + "\n", "utf-8")


def read(paths):
    """Return the numbers of several records, joined."""
    joined = {}
    for path in paths:
        for key, rows in json.loads(path.read_text("utf-8"))["numbers"].items():
            joined.setdefault(key, {}).update(rows)
    return joined


def names_in(text):
    return text.split(",")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--libraries", type=names_in, default=list(TARGETS), help=f"of {','.join(TARGETS)}")
    parser.add_argument("--only", type=names_in, default=[], help="names of mutants")
    parser.add_argument("--workers", type=int, default=os.cpu_count(), help="processes at a time")
    parser.add_argument("--limit", type=float, default=1200, help="seconds for one mutant")
    parser.add_argument("--json", metavar="PATH", type=Path, help="write the result, with machine and commit")
    parser.add_argument("--read", metavar="PATH", type=Path, nargs="+", help="report these results only")
    parser.add_argument("--against", metavar="PATH", type=Path, nargs="+", help="compare with these results")
    parser.add_argument("--judge", help=argparse.SUPPRESS)  # these two: see `run_process`
    parser.add_argument("--first", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.judge:
        judge(options.judge, options.first)
        return
    if unknown := set(options.libraries) - set(TARGETS) | set(options.only) - set(MUTANTS):
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    numbers = read(options.read) if options.read else run(options)
    named = {name: mutant.failed_checks for name, mutant in MUTANTS.items() if name in numbers["mutants"]}
    is_good = report(numbers, named)
    if options.against:
        compare(read(options.against), numbers)
    sys.exit(not is_good)


if __name__ == "__main__":
    main()
