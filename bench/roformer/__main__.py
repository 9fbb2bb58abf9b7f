"""The command of the study. In the folder bench: `python -m roformer all --quick`."""

import argparse
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from _record import ROOT, record

from .experiments import EXPERIMENTS
from .jobs import PACKAGES, Task, plan, result_file
from .runner import collect, is_done, of_other_origin, run_tasks, tasks_left

SEEDS, QUICK_SEEDS = 5, 2
RESULTS = "results.json"
REPORT = "report"  # the name that writes page and figures anew
NOTE = "RoFormer (arXiv 2104.09864) small: results by experiment, arm and seed"


def prepare_data(folder: Path) -> list[dict]:
    """Make the data that all jobs share, unless the folder has it; return its sources."""
    from .data import packages, prepare

    try:
        return [vars(source) for source in prepare(folder, print).sources]
    except packages.FetchError as error:
        raise SystemExit(str(error)) from None


def write_report(out: Path, quick: bool) -> None:
    """Write the page and its figures from the results in `out`, or else from the committed results."""
    from .report import newest, write

    path, command = out / RESULTS, "python -m roformer all" + " --quick" * quick
    if quick and not path.exists():
        raise SystemExit(f"no results of --quick: {path} is missing; run `{command}`")
    results = json.loads(path.read_text("utf-8")) if path.exists() else newest()
    if missing := EXPERIMENTS.keys() - results["numbers"].keys():
        raise SystemExit(f"no report without results of {', '.join(sorted(missing))}; run `{command}`")
    write(results, out, quick)


def main(
    arguments: Sequence[str] | None = None,
    modules: Mapping[str, str] = EXPERIMENTS,
    prepare: Callable[[Path], list[dict] | None] = prepare_data,
    report: Callable[[Path, bool], None] = write_report,
) -> int:
    """Run the command, and return its exit status."""
    options = parse(arguments, modules)
    out = options.out / ("quick" if options.quick else "full")
    num_seeds = options.seeds or (QUICK_SEEDS if options.quick else SEEDS)
    names = modules if "all" in options.names else [name for name in options.names if name != REPORT]
    every_task, tasks = (plan(keys, modules, range(num_seeds), options.quick) for keys in (modules, names))
    if options.list:
        return print_list(tasks, out)
    if tasks:
        data = options.out / "data"
        try:
            sources = prepare(data)
            failed = run(tasks, data, out, options.processes)
        except KeyboardInterrupt:
            num_done = sum(is_done(task, out) for task in tasks.values())
            print(
                f"stopped, {num_done} of {len(tasks)} jobs done; the same command continues", file=sys.stderr
            )
            return 130
        if failed:
            return 1
        write_results(every_task, out, data, sources)
    if {"all", REPORT} & {*options.names}:
        report(out, options.quick)
    return 0


def parse(arguments: Sequence[str] | None, modules: Mapping[str, str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m roformer", description=__doc__)
    names = ("all", *modules, REPORT)
    parser.add_argument("names", nargs="*", default=["all"], metavar="NAME", help=f"of {', '.join(names)}")
    parser.add_argument("--quick", action="store_true", help="small sizes: minutes, to see that all works")
    parser.add_argument("--seeds", type=int, metavar="N", help=f"{SEEDS}, or {QUICK_SEEDS} with --quick")
    parser.add_argument("--processes", type=int, default=os.cpu_count(), metavar="N", help="one a core")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "roformer", metavar="FOLDER")
    parser.add_argument("--list", action="store_true", help="print the jobs and their expected seconds, only")
    options = parser.parse_args(arguments)
    if unknown := [name for name in options.names if name not in names]:
        parser.error(f"unknown: {', '.join(unknown)}; known: {', '.join(names)}")
    return options


def print_list(tasks: dict[str, Task], out: Path) -> int:
    """Print the jobs and their expected seconds."""
    left = tasks_left(tasks, out)
    for key, task in tasks.items():
        print(f"{key:<50}{task.job.cost:8.0f} s{'' if key in left else '  done'}")
    print(f"{len(tasks)} jobs, {sum(task.job.cost for task in left.values()):.0f} s left on one core")
    return 0


def run(tasks: dict[str, Task], data: Path, out: Path, processes: int) -> bool:
    """Run the jobs that are not done, and return whether one failed."""
    left = tasks_left(tasks, out)
    if kept := [key for key in of_other_origin(tasks, out, data) if key not in left]:
        print(
            f"Finished jobs of other code, packages or data, which are kept: {len(kept)}. "
            f"To run one again, remove {result_file(out, kept[0])}",
            file=sys.stderr,
        )
    failed = run_tasks(tasks, data, out, processes)
    for key, reason in failed.items():
        print(f"{key}: {reason.splitlines()[-1]}", file=sys.stderr)
    return bool(failed)


def write_results(tasks: dict[str, Task], out: Path, data: Path, sources: list[dict] | None) -> None:
    """Write results.json: finished results with settings, sources, machine, versions and commit."""
    results = record("roformer", collect(tasks, out), NOTE, (*PACKAGES, "matplotlib"))
    results["seconds"] = collect(tasks, out, "seconds")
    results["of_other_origin"] = of_other_origin(tasks, out, data)
    results["sources"] = sources
    results["settings"] = {task.job.experiment: asdict(task.settings) for task in tasks.values()}
    out.mkdir(parents=True, exist_ok=True)
    (out / RESULTS).write_text(json.dumps(results, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    sys.exit(main())
