"""The language models of several experiments: sizes, training, batches, loss and accuracy."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from roformer.data import batches
from roformer.data.tokens import CLS, PAD
from roformer.jobs import Context
from roformer.model import Config, LanguageModel, Transformer
from roformer.training import train

# Seeds of the held-out batches, which all arms and seeds share.
VALIDATION, TEST = 1_000_001, 1_000_002


@dataclass(frozen=True)
class Sizes:
    """Sizes of a model and of its batches."""

    width: int = 64
    layers: int = 2
    heads: int = 4
    deviation: float = 0.06  # of the first weights: of 0.02 to 0.125, RoPE learned fastest with it
    max_length: int = 256  # of learned positions: training on long texts goes on with this length

    def config(self, vocab_size: int, encoding: str, **options: Any) -> Config:
        """Return the config of a model."""
        return Config(
            vocab_size,
            encoding,
            self.width,
            num_layers=self.layers,
            num_heads=self.heads,
            max_length=self.max_length,
            deviation=self.deviation,
            **options,
        )


@dataclass(frozen=True)
class Training(Sizes):
    """Sizes, and the training of a language model on text."""

    length: int = 64
    batch: int = 32
    steps: int = 600
    warmup: int = 60
    rate: float = 4e-3
    points: int = 12  # of a curve
    held_out: int = 4  # batches of a point, of four times the size
    test: int = 16  # batches of the final test


TINY = {"length": 32, "batch": 4, "steps": 4, "warmup": 1, "points": 2, "held_out": 1, "test": 1}


def fit(
    model: torch.nn.Module,
    loss_of_step: Callable[[int], torch.Tensor],
    context: Context,
    evaluate: Callable[[], float],
) -> list:
    """Train a model by the settings of a job that is a `Training`, and return its curve."""
    settings = context.settings
    return train(
        model,
        loss_of_step,
        settings.steps,
        learning_rate=settings.rate,
        warmup=settings.warmup,
        checkpoint=context.folder / "checkpoint.pt",
        report=context.report,
        evaluate=evaluate,
        every=settings.steps // settings.points,
    )


def windows(tokens: np.ndarray, seed: int, step: int, batch: int, length: int) -> np.ndarray:
    """Return [CLS] and length − 1 tokens of text in each of `batch` rows."""
    text = batches.batches(tokens, seed, step, batch, length - 1)
    return np.insert(text, 0, CLS, axis=1)


def masked(
    tokens: np.ndarray, vocab_size: int, seed: int, step: int, batch: int, length: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the masked tokens of a batch and its labels, both (batch, length)."""
    rows = windows(tokens, seed, step, batch, length)
    inputs, labels = batches.mask_tokens(rows, seed, step, vocab_size)
    return torch.from_numpy(inputs), torch.from_numpy(labels)


def loss_and_hits(model: LanguageModel, inputs: torch.Tensor, labels: torch.Tensor) -> tuple[Any, Any]:
    """Return the mean loss of the masked tokens, and whether each is the likeliest word."""
    chosen = labels != batches.IGNORED
    logits = model.head(model.body(inputs)[chosen])  # the head computes the masked tokens only
    return cross_entropy(logits, labels[chosen]), logits.argmax(-1) == labels[chosen]


@torch.no_grad()
def score(
    model: LanguageModel, tokens: np.ndarray, seed: int, count: int, batch: int, length: int
) -> dict[str, float]:
    """Return loss and accuracy of the masked tokens in `count` batches."""
    losses, hits = [], []
    for step in range(count):
        inputs, labels = masked(tokens, model.body.config.vocab_size, seed, step, batch, length)
        loss, hit = loss_and_hits(model, inputs, labels)
        losses.append(loss.item() * len(hit))
        hits.append(hit)
    every = torch.cat(hits)
    return {"loss": sum(losses) / len(every), "accuracy": every.double().mean().item()}


def pad(rows: list[list[int]]) -> torch.Tensor:
    """Return rows as one tensor (B, S), filled with [PAD]."""
    size = max(map(len, rows))
    return torch.tensor([row + [PAD] * (size - len(row)) for row in rows])


def count_parameters(model: torch.nn.Module) -> int:
    """Return the number of trained numbers; a module that layers share counts once."""
    return sum(parameter.numel() for parameter in model.parameters())


def load_body(body: Transformer, path: Any) -> None:
    """Read the weights of a language model's transformer into `body`, the transformer of another model."""
    weights = torch.load(path, weights_only=True)
    body.load_state_dict(
        {name.removeprefix("body."): tensor for name, tensor in weights.items() if name.startswith("body.")}
    )
