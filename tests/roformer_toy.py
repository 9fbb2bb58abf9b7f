"""A toy experiment for the tests of the study's runner: trains small models, and logs its steps."""

import sys
import time
from dataclasses import dataclass

import torch
from roformer import training
from roformer.jobs import Job
from torch import nn


@dataclass(frozen=True)
class Settings:
    """The sizes, and events that a test wants."""

    steps: int = 8
    hold: int | None = None  # the step at which arm d waits for the file `go`
    fault: str = ""  # of arm a: raise, exit or nan


FULL, QUICK = Settings(), Settings(steps=2)
FAULTS = {"": str, "raise": lambda: 1 // 0, "exit": lambda: sys.exit(7), "nan": lambda: float("nan")}


def jobs(settings, seeds):
    """Return arms with a chain of needs, a → b → c, and d, the longest job."""
    return [job for seed in seeds for job in _jobs(seed)]


def _jobs(seed):
    yield Job("toy", "c", seed, needs=(f"toy/b/{seed}",), cost=1)
    yield Job("toy", "d", seed, cost=5)
    yield Job("toy", "a", seed, cost=3)
    yield Job("toy", "b", seed, needs=(f"toy/a/{seed}",), cost=2)
    yield Job("toy", "e", seed, cost=0.5)


def run(job, context):
    """Train with dropout, from the weights of a needed job; return numbers that depend on every draw."""
    log(context, f"start {job.key}")
    training.SAVE_SECONDS = 0.0
    model = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5), nn.Linear(4, 1))
    for key in job.needs:
        training.load_weights(model, context.weights(key))
    first = total(model)
    curve = training.train(
        model,
        lambda step: loss(model, job, context, step),
        context.settings.steps,
        learning_rate=0.01,
        checkpoint=context.folder / "checkpoint.pt",
        report=context.report,
        every=3,
    )
    training.save_weights(model, context.folder / "weights.pt")
    fault = FAULTS[context.settings.fault]() if job.arm == "a" else ""
    log(context, f"end {job.key}")
    threads = torch.get_num_threads()
    return {"curve": curve, "first": first, "last": total(model), "threads": threads, "fault": fault}


def total(model):
    return sum(each.sum().item() for each in model.parameters())


def loss(model, job, context, step):
    log(context, f"step {step} of {job.key}")
    while job.arm == "d" and step == context.settings.hold and not (context.out / "go").exists():
        time.sleep(0.01)
    batch = torch.randn(5, 3, generator=torch.Generator().manual_seed(1000 * job.seed + step))
    return (model(batch) - batch.sum(1, keepdim=True)).square().mean()


def log(context, line):
    with (context.out / "log.txt").open("a") as file:
        file.write(line + "\n")
