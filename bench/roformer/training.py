"""The training loop of every experiment: AdamW, and checkpoints that continue to the same bits."""

import os
import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

SAVE_SECONDS = 20.0  # between checkpoints
MAX_NORM = 1.0  # of a step's gradients together


def train(
    model: nn.Module,
    loss_of_step: Callable[[int], torch.Tensor],
    steps: int,
    *,
    learning_rate: float,
    warmup: int = 0,
    betas: tuple[float, float] = (0.9, 0.98),
    weight_decay: float = 0.01,
    checkpoint: Path | None = None,
    report: Callable[[float], None] | None = None,
    evaluate: Callable[[], Any] | None = None,
    every: int | None = None,
) -> list[tuple[int, Any]]:
    """Train a model, and return its curve: (steps done, value) after each `every` steps and after the last.

    `loss_of_step(step)` returns the loss of a step's batch, a pure function of the seed and the step: 0 to
    steps − 1. A value is `evaluate()`, called without gradients and with the model in evaluation mode, or the
    mean loss of the steps since the last value. Every SAVE_SECONDS the state is written to `checkpoint`; if
    this file exists, training continues from it, to the same bits as without the interruption.
    """
    state = _State(model, make_optimizer(model, betas, weight_decay), checkpoint)
    model.train()
    while state.step < steps:
        rate = learning_rate * schedule(state.step, steps, warmup)
        state.losses.append(_update(model, state.optimizer, loss_of_step(state.step), rate))
        state.step += 1
        if state.step == steps or (every and state.step % every == 0):
            value = _evaluate(model, evaluate) if evaluate else statistics.fmean(state.losses)
            state.curve.append((state.step, value))
            state.losses.clear()
        state.save_sometimes(last=state.step == steps)
        if report:
            report(state.step / steps)
    return state.curve


def make_optimizer(model: nn.Module, betas=(0.9, 0.98), weight_decay=0.01) -> torch.optim.AdamW:
    """Return AdamW with decay of matrices only: biases and layer norms have none, as in BERT."""
    matrices, vectors = [], []
    for parameter in model.parameters():
        (matrices if parameter.ndim > 1 else vectors).append(parameter)
    groups = [{"params": matrices}, {"params": vectors, "weight_decay": 0.0}]
    # On a CPU the fused step of a small model takes a third of the time of the others.
    return torch.optim.AdamW(groups, betas=betas, weight_decay=weight_decay, fused=True)


def schedule(step: int, steps: int, warmup: int = 0) -> float:
    """Return the learning rate of a step, as a share of the highest: linear up, then linear down to 0."""
    if step < warmup:
        return (step + 1) / warmup
    return (steps - step) / (steps - warmup)


def seed_everything(seed: int) -> None:
    """Seed the generators of Python, NumPy and PyTorch."""
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002 - libraries may use the global generator
    torch.manual_seed(seed)


def save_weights(model: nn.Module, path: Path) -> None:
    """Write the weights of a model, for jobs that need them."""
    write_atomically(path, lambda file: torch.save(model.state_dict(), file))


def load_weights(model: nn.Module, path: Path) -> None:
    """Read the weights of a model; RuntimeError if the names or shapes differ."""
    model.load_state_dict(torch.load(path, weights_only=True))


def write_atomically(path: Path, write: Callable[[Path], Any]) -> None:
    """Write a file such that a reader, or a process killed meanwhile, never finds a part of it at `path`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    file = path.with_name(path.name + ".part")
    write(file)
    os.replace(file, path)


class _State:
    """The state of a training: weights, optimizer, generator, curve, losses since the last value."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, path: Path | None) -> None:
        self.model, self.optimizer, self.path = model, optimizer, path
        self.step, self.curve, self.losses = 0, [], []
        self.saved_at = time.monotonic()
        if path and path.exists():
            self._load(torch.load(path, weights_only=True))

    def save_sometimes(self, last: bool) -> None:
        if self.path and (last or time.monotonic() - self.saved_at >= SAVE_SECONDS):
            write_atomically(self.path, lambda file: torch.save(self._pack(), file))
            self.saved_at = time.monotonic()

    def _pack(self) -> dict[str, Any]:
        states = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
        counts = {"step": self.step, "curve": self.curve, "losses": self.losses}
        return states | counts | {"generator": torch.get_rng_state()}

    def _load(self, saved: dict[str, Any]) -> None:
        self.model.load_state_dict(saved["model"])
        self.optimizer.load_state_dict(saved["optimizer"])
        self.step, self.curve, self.losses = saved["step"], saved["curve"], saved["losses"]
        torch.set_rng_state(saved["generator"])


def _update(model: nn.Module, optimizer: torch.optim.Optimizer, loss: torch.Tensor, rate: float) -> float:
    """Do one step down the gradient, and return the loss before it."""
    for group in optimizer.param_groups:
        group["lr"] = rate
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM)
    optimizer.step()
    return loss.item()


def _evaluate(model: nn.Module, evaluate: Callable[[], Any]) -> Any:
    model.eval()
    with torch.no_grad():
        value = evaluate()
    model.train()
    return value
