"""Run tasks in processes, each with one thread, and write a JSON file for each finished job.

Each job has a process of its own, so that its numbers depend neither on the number of processes nor on the
order of jobs. The fork server imports PyTorch once; a job then starts in milliseconds.
"""

import importlib
import json
import multiprocessing
import os
import shutil
import signal
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from .jobs import Context, Task, folder_of, hash_code, hash_origin, result_file
from .progress import Progress

REPORT_SECONDS = 0.5  # between the messages of a job
FINISHED = "finished"
PRELOADED = ("torch", "torch._dynamo")  # AdamW imports the latter, which takes seconds


def run_tasks(tasks: dict[str, Task], data: Path, out: Path, processes: int | None = None) -> dict[str, str]:
    """Run the tasks of a plan that are not done, and return the keys that have no result, with the reason.

    KeyboardInterrupt stops the running jobs. Finished jobs keep their results, the others their checkpoints.
    """
    left = tasks_left(tasks, out)
    if not left:
        return {}
    for key, task in left.items():
        if is_done(task, out):  # it runs again after a job that it needs, also if this run is interrupted
            result_file(out, key).unlink()
    runner = _Runner(left, data, out, processes or os.cpu_count() or 1)
    try:
        while runner.start_ready():
            runner.receive()
    finally:
        runner.stop()
    return runner.failed | {key: "not run: a job that it needs failed" for key in runner.waiting}


def is_done(task: Task, out: Path) -> bool:
    """Return whether a job has a result with the settings of the task, and its folder, for its weights."""
    saved, folder = _read(task, out), folder_of(out, task.job.key)
    return saved is not None and saved["fingerprint"] == task.fingerprint and folder.is_dir()


def tasks_left(tasks: dict[str, Task], out: Path) -> dict[str, Task]:
    """Return the tasks of a plan that are not done, and the tasks that need one of them."""
    left: dict[str, Task] = {}
    for key, task in tasks.items():  # each after the tasks that it needs
        if not is_done(task, out) or left.keys() & task.job.needs:
            left[key] = task
    return left


def of_other_origin(tasks: dict[str, Task], out: Path, data: Path) -> list[str]:
    """Return the keys of tasks that are done, but whose code, packages or data have changed since."""
    code, origins = hash_code(data), dict[str, str]()
    for key, task in tasks.items():  # each after the tasks that it needs
        origins[key] = hash_origin(code, [origins[key_needed] for key_needed in task.job.needs])
    done = {key for key, task in tasks.items() if is_done(task, out)}
    return [
        key
        for key, origin in origins.items()
        if key in done and _read(tasks[key], out).get("origin") != origin
    ]


def collect(tasks: dict[str, Task], out: Path, field: str = "result") -> dict[str, dict[str, dict[str, Any]]]:
    """Return the results, or the seconds, of all tasks that are done, by experiment, arm and seed."""
    results: dict[str, dict[str, dict[str, Any]]] = {}
    for task in tasks.values():
        if is_done(task, out):
            arms = results.setdefault(task.job.experiment, {})
            arms.setdefault(task.job.arm, {})[str(task.job.seed)] = _read(task, out)[field]
    return results


def run_job(task: Task, data: Path, out: Path, report: Callable[[float], None]) -> None:
    """Run a job in this process, and write its result."""
    from .training import seed_everything, write_atomically

    context = Context(task.job, task.settings, data, out, report)
    needed = [json.loads(result_file(out, key).read_text("utf-8")).get("origin") for key in task.job.needs]
    origin = hash_origin(hash_code(data), needed)
    result_file(out, task.job.key).unlink(missing_ok=True)
    _own_folder(context.folder, f"{task.fingerprint} {origin}")
    use_one_thread()
    seed_everything(task.job.seed)
    started = time.monotonic()
    numbers = importlib.import_module(task.module).run(task.job, context)
    seconds = round(time.monotonic() - started, 2)
    facts = {"key": task.job.key, "fingerprint": task.fingerprint, "origin": origin, "seconds": seconds}
    text = json.dumps(facts | {"result": numbers}, allow_nan=False)
    write_atomically(result_file(out, task.job.key), lambda file: file.write_text(text, "utf-8"))
    for path in context.folder.glob("checkpoint*"):
        path.unlink()


def use_one_thread() -> None:
    """Make PyTorch use one thread and deterministic algorithms."""
    import torch

    torch.set_num_threads(1)
    torch.set_flush_denormal(True)  # moments of words that no batch has decay to slow subnormal numbers
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # no result reads such memory


def path_costs(tasks: dict[str, Task]) -> dict[str, float]:
    """Return the cost of the longest chain of jobs that begins with each task. A plan's order is assumed."""
    after = dict.fromkeys(tasks, 0.0)
    for key, task in reversed(tasks.items()):
        for key_needed in after.keys() & task.job.needs:
            after[key_needed] = max(after[key_needed], task.job.cost + after[key])
    return {key: tasks[key].job.cost + after[key] for key in tasks}


class _Runner:
    """The waiting tasks, the running processes by their pipes, and the failed keys with their errors."""

    def __init__(self, tasks: dict[str, Task], data: Path, out: Path, processes: int) -> None:
        self.waiting, self.failed = dict(tasks), {}
        self.data, self.out, self.processes = data, out, processes
        self.running: dict[Connection, tuple[str, multiprocessing.Process]] = {}
        self.priorities = path_costs(tasks)
        self.progress = Progress({key: task.job.cost for key, task in tasks.items()})
        self.start_process = _prepare_processes()

    def start_ready(self) -> bool:
        """Start jobs while there are free processes, and return whether any job runs."""
        while len(self.running) < self.processes and (ready := self._ready()):
            key = max(ready, key=self.priorities.__getitem__)  # so that no long job is left to the end alone
            pipe, other_end = multiprocessing.Pipe(duplex=False)
            arguments = self.waiting.pop(key), self.data, self.out, other_end
            self.running[pipe] = key, self.start_process(arguments)
            other_end.close()  # so that the pipe ends with the process
        return bool(self.running)

    def _ready(self) -> list[str]:
        blocked = {*self.waiting, *self.failed, *(key for key, _ in self.running.values())}
        return [key for key, task in self.waiting.items() if blocked.isdisjoint(task.job.needs)]

    def receive(self) -> None:
        """Wait a second for messages of jobs, and show the progress."""
        for pipe in wait(list(self.running), timeout=1.0):
            self._take(pipe)
        self.progress.show()

    def _take(self, pipe: Connection) -> None:
        key, process = self.running[pipe]
        try:
            message = pipe.recv()
        except EOFError:
            process.join()
            message = f"the process ended with exit code {process.exitcode}"
        if isinstance(message, float):
            self.progress.update(key, message)
            return
        del self.running[pipe]
        pipe.close()
        process.join()
        self.progress.end(key)
        if message != FINISHED:
            self.failed[key] = message
            self.progress.write(f"{key} failed:\n{message}")

    def stop(self) -> None:
        """End the processes that still run, and the progress bar."""
        for _, process in self.running.values():
            process.terminate()
        for pipe, (_, process) in self.running.items():
            process.join()
            pipe.close()
        self.progress.close()


def _prepare_processes() -> Callable[[tuple[Any, ...]], multiprocessing.Process]:
    """Return a function that starts a process of a job, on a fork server with one thread."""
    os.environ |= {name: "1" for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "ROPE_ARRAY_NUM_THREADS")}
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(PRELOADED))

    def start(arguments: tuple[Any, ...]) -> multiprocessing.Process:
        process = context.Process(target=_work, args=arguments, daemon=True)
        process.start()
        return process

    return start


def _work(task: Task, data: Path, out: Path, pipe: Connection) -> None:
    """Run a job, and send fractions, then FINISHED or the traceback."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes; the runner ends this one
    try:
        run_job(task, data, out, _Reporter(pipe))
    except Exception:
        pipe.send(traceback.format_exc())
    else:
        pipe.send(FINISHED)


class _Reporter:
    """Sends fractions to the runner, at most one every REPORT_SECONDS."""

    def __init__(self, pipe: Connection) -> None:
        self.pipe, self.sent = pipe, time.monotonic()

    def __call__(self, fraction: float) -> None:
        now = time.monotonic()
        if now - self.sent >= REPORT_SECONDS:
            self.sent = now
            self.pipe.send(float(fraction))


def _own_folder(folder: Path, fingerprint: str) -> None:
    """Create the folder of a job, without files that it has from other settings or another origin."""
    mark = folder / "fingerprint"
    if not mark.exists() or mark.read_text("utf-8") != fingerprint:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        mark.write_text(fingerprint, "utf-8")


def _read(task: Task, out: Path) -> dict[str, Any] | None:
    path = result_file(out, task.job.key)
    return json.loads(path.read_text("utf-8")) if path.exists() else None
