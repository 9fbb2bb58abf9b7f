"""Time this library's backends, other implementations and copies, alternating on the same arrays.

    python bench/speed.py [--quick] [--only WORD ...] [--rows PATTERN ...] [--json PATH]
    python bench/speed.py --tables PATH

One process times all cases of one thread, another process the cases of all threads; a crash costs the current
case only. A whole run writes bench/results/<date>-speed.json, docs/speed.md, docs/speed/, and the table
between the markers in README.md. A run with `--quick` (arrays of few tokens, few rounds), `--only` (cases
whose name or group has every word) or `--rows` prints, and writes only the file of `--json`. `--tables`
writes tables and plots of an earlier result. `nox -s bench` installs the packages.
"""

import argparse
import datetime
import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))  # for python -m bench.speed too

from _record import RESULTS, record
from _speed_cases import ALL, cases

NOTE = (
    "seconds of one rotation, and its ratio to copies of the same bytes, alternating on the same arrays; "
    "work that a model does once for a forward pass (a peer's tables and sessions, compiling) is done before "
    "the timing; our rows compute exact angles from positions in every call, Rotation rows before the timing"
)
PACKAGES = (
    "numpy",
    "array-api-compat",
    "rope-array",
    "torch",
    "transformers",
    "rotary-embedding-torch",
    "jax",
    "equinox",
    "keras",
    "keras-hub",
    "onnx",
    "onnxruntime",
    "ml_dtypes",
)
BUDGET, QUICK = 8.0, 0.3  # seconds of timing for a case
ENVIRONMENT = {
    "CUDA_VISIBLE_DEVICES": "",
    "JAX_PLATFORMS": "cpu",
    "KERAS_BACKEND": "jax",
    "HF_HUB_OFFLINE": "1",
    "PYTHONWARNINGS": "ignore",
}
# Libraries read these when they are loaded; `settle` sets the affinity for all of them.
ONE = dict.fromkeys(("ROPE_ARRAY_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "PJRT_NPROC"), "1")


# ---- the child: times cases, and writes a line of JSON for each event ----


def child(names, threads, budget, rows, quick):
    lines = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # keep prints of libraries out of the JSON lines
    count = settle(threads)
    import _speed_turns

    for case in (case for case in cases(quick) if case.name in names):
        print(json.dumps({"begun": case.name}), file=lines)
        found = _speed_turns.run(
            case, count, budget, rows, lambda step: print(json.dumps({"doing": step}), file=lines)
        )
        print(json.dumps({"threads": count, "memory_peak_mb": peak(), "rows": found}), file=lines)


def settle(threads):
    """Limit this process to `threads`, or to all processors; return the number of threads."""
    if threads and hasattr(os, "sched_setaffinity"):
        # One processor for one thread: XLA's pool has as many threads as there are processors.
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[-threads:])
    count = threads or (len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count())
    import torch

    torch.set_num_threads(count)
    torch.set_grad_enabled(False)
    return count


def peak():
    """Return the peak memory of this process in MiB."""
    try:
        import resource
    except ImportError:  # Windows
        return None
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


# ---- the parent: children, progress, results ----


def measure(chosen, options, show):
    """Return the results of cases by name; start children until every case has a result."""
    found = {}
    for threads in (1, None):
        todo = [case.name for case in chosen if case.threads == threads]
        while todo:
            done = one_child(todo, threads, options, show)
            found |= done
            todo = [name for name in todo if name not in done]
    return {case.name: found[case.name] for case in chosen}


def one_child(names, threads, options, show):
    """Run cases in a child process; if it crashes, its current case has failed."""
    job = json.dumps([names, threads, QUICK if options.quick else BUDGET, options.rows, options.quick])
    child = subprocess.Popen(
        [sys.executable, __file__, "--child", job],
        env=environment(threads),
        stdout=subprocess.PIPE,
        text=True,
    )
    found, current = {}, names[0]
    for line in child.stdout:
        event = json.loads(line)
        current = event.get("begun", current)
        if "rows" in event:
            found[current] = event
        show(event, current)
    if child.wait() and current not in found:
        found[current] = {"failed": f"the process ended with {child.returncode}", "rows": {}}
    return found


def environment(threads):
    inherited = {key: value for key, value in os.environ.items() if key not in ONE}
    return inherited | ENVIRONMENT | (ONE if threads == 1 else {})


def progress(chosen):
    """Return a progress bar, and a function that updates it with an event of a child."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    bar = Progress(*columns, TextColumn("{task.fields[doing]}"), transient=True)
    task = bar.add_task("speed", total=len(chosen), doing="")

    def show(event, case):
        bar.update(task, description=case, advance=int("rows" in event), doing=event.get("doing", ""))

    return bar, show


def picked(options):
    """Return the cases whose name or group has every word of --only."""
    words = [word.lower() for word in options.only or ()]
    return [c for c in cases(options.quick) if all(word in f"{c.name} {c.group}".lower() for word in words)]


def ready():
    """Return the docstring of `timed` in each module of bench/peers: the work done before the timing."""
    from _speed_turns import PEERS

    texts = {name: importlib.import_module(f"peers.{name}").timed.__doc__ for name in PEERS}
    return {name: text for name, text in texts.items() if text}


def described(case, result):
    fields = {"group": case.group, "shape": case.shape, "dtype": case.dtype, "pairing": case.pairing}
    return {**fields, "start": case.start, **result}


def main():
    options = arguments()
    if options.child:
        child(*json.loads(options.child))
    elif options.tables:
        write(json.loads(options.tables.read_text("utf-8")))
    else:
        whole(options)


def whole(options):
    chosen = picked(options)
    if not chosen:
        sys.exit(f"no case has the words {options.only}")
    bar, show = progress(chosen)
    with bar:
        found = measure(chosen, options, show)
    numbers = {case.name: described(case, found[case.name]) for case in chosen}
    result = record("speed", numbers, NOTE, PACKAGES) | {"ready": ready()}
    all_of_it = not (options.quick or options.only or options.rows != list(ALL))
    path = options.json or (RESULTS / f"{datetime.date.today()}-speed.json" if all_of_it else None)
    if path:
        path.write_text(json.dumps(result, indent=1) + "\n", "utf-8")
    if all_of_it:
        write(result)
    show_tables(result)


def show_tables(result):
    from _speed_table import HEAD, lines
    from rich.console import Console
    from rich.table import Table

    console = Console(width=None if sys.stdout.isatty() else 150)
    for name, case in result["numbers"].items():
        table = Table(title=name, title_justify="left")
        for each in HEAD:
            table.add_column(each, justify="left" if each == HEAD[0] else "right")
        for line in lines(case):
            table.add_row(*line)
        console.print(table, case.get("failed", ""))


def write(result):
    import _speed_plot
    import _speed_table

    _speed_plot.write(result)
    _speed_table.write(result)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--quick", action="store_true", help="small arrays and few rounds, to try the harness"
    )
    parser.add_argument("--json", metavar="PATH", type=Path, help="write the result here")
    parser.add_argument(
        "--only", nargs="+", metavar="WORD", help="the cases whose name or group has all these"
    )
    parser.add_argument("--rows", nargs="+", metavar="PATTERN", default=list(ALL), help="only these rows")
    parser.add_argument("--tables", metavar="PATH", type=Path, help="write tables and plots of a result")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
