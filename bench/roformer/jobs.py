"""Jobs of the study: one arm of an experiment from one seed. `runner.py` runs each in a process of its own.

An experiment is a module with

    FULL, QUICK              its settings: instances of a frozen dataclass with all sizes that its numbers
                             depend on; finished jobs run again after a change of these
    jobs(settings, seeds)    the list of its Jobs
    run(job, context)        the job's result: a dict of numbers, strings and lists, as JSON has them
"""

import hashlib
import importlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from _record import ROOT, version

# Files and folders of this folder, and folders of the project, whose code gives the numbers; and packages.
SOURCES = ("generation.py", "model.py", "runner.py", "training.py", "data", "encodings", "experiments")
LIBRARY = ("rope_array", "backends")
CODE = (".py", ".cpp", ".hpp", ".h")
PACKAGES = ("torch", "numpy", "scipy", "tokenizers", "sacrebleu", "rope-array")


@dataclass(frozen=True)
class Job:
    """One arm of an experiment from one seed."""

    experiment: str
    arm: str
    seed: int
    needs: tuple[str, ...] = ()  # the keys of jobs whose weights this job uses
    cost: float = 1.0  # expected seconds on one core, for the order and the time left

    def __post_init__(self) -> None:
        if "/" in self.experiment + self.arm:
            raise ValueError(f"an experiment and an arm have no slash: {self.experiment!r}, {self.arm!r}")

    @property
    def key(self) -> str:
        """The name of the job: experiment/arm/seed."""
        return f"{self.experiment}/{self.arm}/{self.seed}"


@dataclass(frozen=True)
class Context:
    """The settings and folders of a job, and the weights of the jobs that it needs."""

    job: Job
    settings: Any  # FULL or QUICK of the experiment
    data: Path  # the prepared data, which all jobs share
    out: Path  # the results of all jobs
    report: Callable[[float], None]  # called with the finished fraction of the job, 0 to 1

    @property
    def folder(self) -> Path:
        """The folder of this job's weights.pt, and of checkpoint*.pt, which the runner removes at the end."""
        return folder_of(self.out, self.job.key)

    def weights(self, key: str) -> Path:
        """Return the path of the weights.pt that a needed job has written."""
        if key not in self.job.needs:
            raise ValueError(f"{self.job.key} reads {key}, which its needs {self.job.needs} do not have")
        return folder_of(self.out, key) / "weights.pt"


@dataclass(frozen=True)
class Task:
    """A job that the runner can start: with the name of its experiment's module, and settings."""

    job: Job
    module: str
    settings: Any
    fingerprint: str  # of the job's settings, and of all jobs that it needs


def folder_of(out: Path, key: str) -> Path:
    """Return the folder of a job's weights and checkpoints."""
    experiment, arm, seed = key.split("/")
    return out / experiment / f"{arm}-{seed}"


def result_file(out: Path, key: str) -> Path:
    """Return the path of a job's result."""
    folder = folder_of(out, key)
    return folder.with_name(folder.name + ".json")  # with_suffix would cut an arm such as "factor 1.5"


def plan(
    names: Iterable[str], modules: Mapping[str, str], seeds: Sequence[int], quick: bool = False
) -> dict[str, Task]:
    """Return the tasks of experiments by key, each after the tasks that it needs, from any experiment.

    `modules` has the module's name of every experiment.
    """
    experiments = {name: _read_experiment(name, modules[name], seeds, quick) for name in modules}
    tasks: dict[str, Task] = {}
    for name in names:
        for key in experiments[name].jobs:
            _add(key, experiments, tasks, ())
    return tasks


def hash_code(data: Path) -> str:
    """Return the hash of the code, the versions of packages, and the prepared data."""
    folders = [Path(__file__).parent / name for name in SOURCES] + [ROOT / name for name in LIBRARY]
    paths = [
        path for folder in folders for path in [folder, *sorted(folder.rglob("*"))] if path.suffix in CODE
    ]
    files = [
        hashlib.sha256(path.read_bytes()).hexdigest() for path in [*paths, *data.glob("prepared-*/digest")]
    ]
    return _hash(files, [version(name) for name in PACKAGES])


def hash_origin(code: str, needed: Sequence[str]) -> str:
    """Return the hash of all that gives a job's numbers: `hash_code`, and the origins of needed jobs."""
    return _hash(code, list(needed))


@dataclass(frozen=True)
class _Experiment:
    module: ModuleType
    settings: Any
    jobs: dict[str, Job]


def _read_experiment(name: str, path: str, seeds: Sequence[int], quick: bool) -> _Experiment:
    module = importlib.import_module(path)
    settings = module.QUICK if quick else module.FULL
    jobs = {job.key: job for job in module.jobs(settings, seeds)}
    if wrong := [key for key, job in jobs.items() if job.experiment != name]:
        raise ValueError(f"{path} is the experiment {name!r}, and has jobs of another: {wrong}")
    return _Experiment(module, settings, jobs)


def _add(key: str, experiments: dict[str, _Experiment], tasks: dict[str, Task], above: tuple) -> None:
    """Add the task of a key, after the tasks that it needs; `above` has the keys that need it."""
    if key in tasks:
        return
    if key in above:
        raise ValueError(f"jobs need each other: {' → '.join((*above, key))}")
    experiment = experiments.get(key.split("/")[0])
    if experiment is None or key not in experiment.jobs:
        raise ValueError(f"{above[-1]} needs {key}, which is no job of the study")
    job = experiment.jobs[key]
    for key_needed in job.needs:
        _add(key_needed, experiments, tasks, (*above, key))
    needed = [tasks[key_needed].fingerprint for key_needed in job.needs]
    fingerprint = _hash(key, asdict(experiment.settings), needed)
    tasks[key] = Task(job, experiment.module.__name__, experiment.settings, fingerprint)


def _hash(*values: Any) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:16]
