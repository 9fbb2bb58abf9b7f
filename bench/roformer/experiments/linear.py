"""Causal language model with linear attention, without and with RoPE (RoFormer, 4.4, figure 3 right)."""

import torch
from torch.nn.functional import cross_entropy

from roformer.data import prepare
from roformer.jobs import Context, Job
from roformer.model import LanguageModel
from roformer.training import seed_everything

from ._language import TEST, TINY, VALIDATION, Training, fit, windows

NAME = "linear"
ARMS = ("linear", "linear-rope", "performer", "performer-rope")


FULL = Training(length=128, batch=16, steps=300, warmup=30, points=10)
QUICK = Training(**TINY)


def jobs(settings: Training, seeds) -> list[Job]:
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

    curve = fit(
        model,
        lambda step: loss(train_tokens, job.seed, step, settings.batch),
        context,
        lambda: mean_loss(held_out, VALIDATION, settings.held_out),
    )
    return {"curve": curve, "test": {"loss": mean_loss(test, TEST, settings.test)}}
