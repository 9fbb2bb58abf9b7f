"""Check and time everything that has a kernel for a GPU, in ten minutes of one.

    python bench/gpu_session.py [--list] [--out PATH] [--only WORD ...] [--seconds N] [--dry-run]

It needs NumPy, array-api-compat, and a CUDA build of PyTorch with Triton. Other packages are optional: CuPy,
JAX, transformers, liger-kernel, flash-attn, flashinfer and vllm; what needs a missing package is listed by
name. Nothing is fetched from a network.

Each step runs in a process of its own and yields cases. So a case that raises, and a step that crashes or
exceeds its limit, cost themselves only. Steps that are not timed run at once. The file PATH is replaced after
every case; a run with the same file skips the cases that it has. At the end, and after each failure, the
command prints what is missing.

`--dry-run` runs every step on the CPU with tiny arrays: Triton's interpreter runs the kernels, torch.compile
generates no code, and no time has a meaning.
"""

import argparse
import datetime
import importlib
import json
import math
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable
from functools import partial
from itertools import groupby, islice
from pathlib import Path
from typing import Any, NamedTuple

from _harness import is_chosen, one_line
from _record import RESULTS, record
from speed import PACKAGES

NOTE = (
    "bits of all kernels against the array-api backend on the CPU; seconds of calls on a GPU and ratios to "
    "copies of the same bytes, in rounds, as by bench/speed.py --gpu; checks of the conformance suite"
)
SLOWER = 20  # limits of a dry run, in limits
SECONDS = 585  # of all steps: less than ten minutes, so that the summary is printed
LEAST = 3  # seconds, with fewer left no step begins
PARTS = range(1, 5)  # of the checks of torch:cuda:compile
DONE = "done"


class Step(NamedTuple):
    """`cases(session)` yields names and functions without arguments, which return numbers for JSON.

    The estimate and the limit are in seconds. Neighbours that are `together` run at once. `before`: the name
    of a step with the same cases, which are timed there, and here compiled only.
    """

    name: str
    cases: Callable[[Any], Any]
    estimate: int
    limit: int
    together: bool = False
    before: str = ""


def lazily(module, function, *arguments):
    """Return a function of a module, which the step's process imports."""
    return lambda session: getattr(importlib.import_module(module), function)(session, *arguments)


def at_once(group, estimate, limit, **cases):
    """Return steps of a group that runs at once, with names such as "bits, few_tokens"."""
    names = (f"{group}, {name}" for name in cases)
    return [Step(*row, estimate, limit, together=True) for row in zip(names, cases.values(), strict=True)]


_bits, _times, _others = (partial(lazily, f"_gpu_{name}") for name in ("bits", "times", "others"))
COMPILE = {"estimate": 100, "limit": 150, "together": True}
# The first judges the gradients of a norm, whose sums have no order on a GPU, by the contract.
CHECKS = (
    *("gradients_of_inputs", "axes", "decoding_steps"),
    *("gradient_combinations", "positions_written_in_place"),
)
TIMED = (
    Step("prefill", _times("prefill"), 35, 90),
    Step("decode", _times("decode"), 80, 150),
    Step("decode, warm L2", _times("decode_warm"), 12, 40),
    Step("other heads", _times("other_heads"), 25, 60),
    Step("backward", _times("backward"), 22, 60),
    Step("models", _times("models"), 50, 110),
    Step("attention inputs", _times("inputs"), 40, 80),
    Step("tiles", _times("tiles"), 25, 90),
)
STEPS = (
    Step("device", _others("device"), 10, 60),
    *at_once(
        "bits", 100, 150,
        eager_bfloat16=_bits("eager", "bfloat16", "float16"),
        eager_float32=_bits("eager", "float32", "float64"),
        few_tokens=_bits("few_tokens"),
        gradients=_bits("gradients"),
        compiled=_bits("compiled"),
        gradients_compiled=_bits("gradients_compiled"),
        inputs=_bits("inputs"),
        inputs_compiled=_bits("inputs_compiled"),
        CuPy=_bits("cupy"),
    ),
    # Compile what the timed steps call: the compilers' caches on disk then serve them.
    *(step._replace(name=f"compile, {step.name}", before=step.name, **COMPILE) for step in TIMED),
    *TIMED,
    Step("JAX", _others("jax_programs"), 25, 60),
    Step("CuPy, host", _others("cupy_host"), 10, 40),
    *at_once("check", 120, 300, **{name: _others("check", name) for name in CHECKS}),
    *at_once("check", 120, 300, vLLM=_others("vllm_layers")),
    *at_once("check", 120, 300, **{f"compiled_{n}": _others("check_compiled", n, len(PARTS)) for n in PARTS}),
)  # fmt: skip


class Session(NamedTuple):
    """A device as `_speed_gpu.Cuda` has it; whether this is a dry run, or calls are not timed (`once`)."""

    device: Any
    dry: bool = False
    once: bool = False


# ---- a step's process ----


def work(step, finished, options, pipe):
    """Run the cases of a step that are not finished, and send their numbers."""
    os.setsid()  # its children are killed with it
    try:
        device = importlib.import_module("_gpu_others").open_device(options.dry_run)
        session = Session(device, options.dry_run, bool(step.before))
        for name, case in islice(step.cases(session), options.cases):
            if name not in finished:
                numbers = attempt(case)
                pipe.send((name, {} if step.before and is_finished(numbers) else numbers))
    except Exception as error:  # of the device, or of making the cases
        pipe.send(("all cases", failure(error)))


def attempt(case):
    try:
        return case()
    except Exception as error:  # any exception costs this case only
        return failure(error)
    finally:
        importlib.import_module("_speed_rounds").forget()


def failure(error):
    """Return the numbers of a case that raised: it needs a package that is missing, or it failed."""
    return {"missing" if isinstance(error, ModuleNotFoundError) else "failed": one_line(error)}


def is_finished(numbers):
    """Return whether a case has its numbers; rows of packages that are missing may lack theirs."""
    rows = numbers.get("rows", {}).values()
    reasons = [row[key] for row in rows for key in ("failed", "wrong") if key in row]
    has_rows = all(reason.startswith(ModuleNotFoundError.__name__) for reason in reasons)
    return has_rows and not numbers.keys() & {"missing", "failed"}


# ---- running steps ----


class Running:
    """A step in a process, which writes into `result` until it is over or `limit` seconds have passed."""

    def __init__(self, step, result, limit, options):
        self.name, self.result, self.limit, self.begun = step.name, result, limit, time.monotonic()
        known = {} if step.before else result["cases"]  # another machine has no compiled code
        finished = result["cases"] = {name: case for name, case in known.items() if is_finished(case)}
        fork = multiprocessing.get_context("fork")  # PyTorch is imported once; CUDA begins in the children
        self.pipe, sender = fork.Pipe(duplex=False)
        self.process = fork.Process(target=work, args=(step, finished, options, sender), daemon=True)
        self.process.start()
        sender.close()

    def poll(self):
        """Take the cases that have ended; return whether there were any, and whether the step is over."""
        is_alive, count = self.process.is_alive(), 0
        is_late = time.monotonic() > self.begun + self.limit
        try:
            while self.pipe.poll():
                name, numbers = self.pipe.recv()
                self.result["cases"][name], count = numbers, count + 1
        except (EOFError, OSError):  # the process has ended
            pass
        if is_alive and not is_late:
            return count, False
        self.end(is_late and is_alive)
        return count, True

    def end(self, is_late):
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            self.process.kill()  # it has no group yet, or has ended without children
        self.process.join()
        code = self.process.exitcode
        state = DONE if code == 0 else f"ended by exit status {code}"
        self.result["state"] = f"exceeded {self.limit:.0f} s" if is_late else state
        self.result["seconds"] = round(time.monotonic() - self.begun, 1)


def run_together(steps, numbers, options, save):
    """Run steps at once, as many as there are processors; save after every case."""
    waiting, running = list(steps), []
    while waiting or running:
        while waiting and len(running) < (os.cpu_count() or 1):
            step = waiting.pop(0)
            left = options.end - time.monotonic()
            limit = step.limit * (SLOWER if options.dry_run else 1)
            if left < LEAST:
                numbers[step.name]["state"] = "not begun"
            else:
                running.append(Running(step, numbers[step.name], min(limit, left), options))
        time.sleep(0.02)
        for process in [*running]:
            count, is_over = process.poll()
            if is_over:
                running.remove(process)
                tell(process.name, process.result)
            if count or is_over:
                save()


def tell(name, result):
    """Print the state of a step, and a line for each timed case and for each missing package or result."""
    print(f"{result.get('seconds', 0):6.1f} s  {name}: {result['state']}, {len(result['cases'])} cases")
    for case, numbers in result["cases"].items():
        if times := [f"{row} {ratio}" for row, ratio in ratios_of(numbers)]:
            print(f"          {case}: {', '.join(times)}")
    print("".join(f"          MISSING {line}\n" for line in missing_of(result)), end="", flush=True)


def ratios_of(numbers):
    """Yield the rows of a case, and their times in copies."""
    for name, row in numbers.get("rows", {}).items():
        if "copies" in row:
            yield name, f"{row['copies'][1]:.3g}"


def missing_of(result):
    """Yield a line for the state of a step, and for each reason why cases or rows have no numbers."""
    if result["state"] != DONE:
        yield result["state"]
    reasons = {}
    for case, numbers in result["cases"].items():
        for row, fields in {"": numbers, **numbers.get("rows", {})}.items():
            for key in fields.keys() & {"missing", "failed", "wrong"}:
                reasons.setdefault(f"{row} {fields[key]}".strip(), []).append(case)
    for reason, cases in reasons.items():
        yield f"{reason} ({cases[0]}" + (f", and {len(cases) - 1} more)" if cases[1:] else ")")


def main(steps=STEPS):
    options = arguments()
    if options.list:
        return show(steps)
    prepare(options.dry_run)
    steps = [step for step in steps if is_chosen(step.name, options)]
    options.end = time.monotonic() + (options.seconds or (math.inf if options.dry_run else SECONDS))
    known = json.loads(options.out.read_text("utf-8"))["numbers"] if options.out.exists() else {}
    numbers = known | {
        step.name: {"state": "not begun", "cases": {}, **known.get(step.name, {})} for step in steps
    }
    run = record("gpu-session", numbers, NOTE, PACKAGES, dry_run=options.dry_run)
    for _, neighbours in groups_of(steps):
        chosen = [step for step in neighbours if is_left(numbers[step.before or step.name])]
        save = partial(replace, options.out, run)
        run_together(chosen, numbers, options, save)
        save()  # steps that have not begun, too
    lines = [f"{name}: {line}" for name in numbers for line in missing_of(numbers[name])]
    print(f"\n{options.out}: {len(lines)} missing", *lines, sep="\n  ")


def is_left(result):
    """Return whether a step is not done, or has cases without numbers: a package may be there now."""
    return result["state"] != DONE or not all(map(is_finished, result["cases"].values()))


def prepare(dry):
    """Set the environment of the steps, and import PyTorch, which they all need."""
    # Inductor compiles in the step's process: a graph has few kernels, and steps compile at once.
    os.environ |= {"TORCHINDUCTOR_COMPILE_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"  # of the memory that PyTorch needs
    if dry:
        from rope_array.testing._triton_interpreter import use_interpreter

        os.environ |= {"CUDA_VISIBLE_DEVICES": "", "JAX_PLATFORMS": "cpu"}
        if reason := use_interpreter():
            sys.exit(f"bench/gpu_session.py --dry-run needs Triton: {reason}")
    import torch  # noqa: F401


def replace(path, run):
    """Write a result in one step: a run that is killed leaves the file before or after it."""
    new = path.with_suffix(".new")
    new.write_text(json.dumps(run, indent=1) + "\n", "utf-8")
    new.replace(path)


def seconds_of(steps):
    """Return the estimated seconds of steps, of which those that run at once take the longest one's."""
    return sum(max(step.estimate for step in group) for _, group in groups_of(steps))


def groups_of(steps):
    return groupby(steps, key=lambda step: "at once" if step.together else step.name)


def show(steps):
    """Print the steps with their estimates and limits, and the sum."""
    for step in steps:
        order = ", at once with its neighbours" * step.together
        print(f"{step.name:36}{step.estimate:5} s, at most {step.limit} s{order}")
    print(f"{'all':36}{seconds_of(steps):5} s")


def arguments():
    folder = Path(os.environ["OUT"]) if os.environ.get("OUT") else None
    path = folder / "gpu-session.json" if folder else RESULTS / f"{datetime.date.today()}-gpu-session.json"
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    add = parser.add_argument
    add("--list", action="store_true", help="print the steps with their estimates")
    add("--out", type=Path, default=path, metavar="PATH", help="the result; default: in $OUT, or %(default)s")
    add("--only", nargs="+", default=(), metavar="WORD", help="the steps whose name has all these")
    add(
        "--seconds",
        type=float,
        metavar="N",
        help=f"of all steps (default: {SECONDS}; a dry run has no limit)",
    )
    add("--cases", type=int, metavar="N", help="the first N cases of each step")
    add("--dry-run", action="store_true", help="on the CPU, with tiny arrays, to try the script")
    return parser.parse_args()


if __name__ == "__main__":
    main()
