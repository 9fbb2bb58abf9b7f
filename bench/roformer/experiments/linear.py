"""Causal language model with linear attention, without and with RoPE (RoFormer, 4.4, figure 3 right)."""

from dataclasses import dataclass

import torch
from torch.nn.functional import cross_entropy

from roformer.data import prepare
from roformer.jobs import Context, Job
from roformer.model import LanguageModel
from roformer.training import seed_everything, train

from ._language import TEST, VALIDATION, Sizes, windows

NAME = "linear"
ARMS = ("linear", "linear-rope", "performer", "performer-rope")


@dataclass(frozen=True)
class Settings(Sizes):
    """Sizes, and the training of a language model from left to right."""

    length: int = 128
    batch: int = 16
    steps: int = 300
    warmup: int = 30
    rate: float = 4e-3
    points: int = 10
    held_out: int = 4  # batches of a point, of four times the size
    test: int = 16  # batches of the final test


FULL = Settings()
QUICK = Settings(length=32, batch=4, steps=4, warmup=1, points=2, held_out=1, test=1)


def jobs(settings: Settings, seeds) -> list[Job]:
    return [Job(NAME, arm, seed, cost=25) for arm in ARMS for seed in seeds]


def run(job: Job, context: Context) -> dict:
    data, settings = prepare(context.data), context.settings
    seed_everything(job.seed)
    model = LanguageModel(settings.config(data.tokenizer.vocab_size, job.arm, causal=True))
    train_tokens, held_out, test = (data.text[split][0] for split in ("train", "validation", "test"))

    def loss(tokens, seed, step, batch):
        rows = torch.from_numpy(windows(tokens, seed, step, batch, settings.length))
        return cross_entropy(model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())

    @torch.no_grad()
    def mean_loss(tokens, seed, count):
        return sum(loss(tokens, seed, step, 4 * settings.batch).item() for step in range(count)) / count

    curve = train(
        model,
        lambda step: loss(train_tokens, job.seed, step, settings.batch),
        settings.steps,
        learning_rate=settings.rate,
        warmup=settings.warmup,
        checkpoint=context.folder / "checkpoint.pt",
        report=context.report,
        evaluate=lambda: mean_loss(held_out, VALIDATION, settings.held_out),
        every=settings.steps // settings.points,
    )
    return {"curve": curve, "test": {"loss": mean_loss(test, TEST, settings.test)}}
