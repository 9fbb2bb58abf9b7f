"""Sentence tasks for the pre-trained encoders, in the manner of GLUE (RoFormer, section 4.3, table 2)."""

from dataclasses import dataclass

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from roformer.data import prepare
from roformer.data.tokens import CLS, PAD, SEP
from roformer.jobs import Context, Job
from roformer.model import Classifier
from roformer.training import seed_everything, train

from . import masked
from ._language import Sizes, load_body, pad

NAME = "sentences"
TASKS = {"sentiment": 2, "order": 2, "category": 26}  # and the number of their labels
SCRATCH = "rope from scratch"  # RoPE without pre-training
ARMS = (*masked.SOFTMAX, SCRATCH)


@dataclass(frozen=True)
class Settings(Sizes):
    """Sizes, and the training on each task."""

    length: int = 64  # longer texts are cut
    batch: int = 32
    steps: int = 120
    warmup: int = 12
    rate: float = 2e-3
    test: int = 1000  # examples at most


FULL = Settings()
QUICK = Settings(length=32, batch=4, steps=2, warmup=1, test=16)


def jobs(settings: Settings, seeds) -> list[Job]:
    return [
        Job(NAME, arm, seed, () if arm == SCRATCH else (f"{masked.NAME}/{arm}/{seed}",), cost=13)
        for arm in ARMS
        for seed in seeds
    ]


def run(job: Job, context: Context) -> dict:
    data = prepare(context.data)
    return {
        task: _finetune(job, context, task, data.tasks[task], data.tokenizer.vocab_size) for task in TASKS
    }


def _finetune(job: Job, context: Context, task: str, splits: dict, vocab_size: int) -> dict[str, float]:
    """Train a classifier on a task, and return its accuracy."""
    settings = context.settings
    seed_everything(job.seed)
    encoding = "rope" if job.arm == SCRATCH else job.arm
    model = Classifier(settings.config(vocab_size, encoding), TASKS[task], mean=True)
    if job.needs:
        load_body(model.body, context.weights(job.needs[0]))
    examples = splits["train"]

    def loss_of_step(step):
        rows = np.random.default_rng((job.seed, step)).integers(len(examples), size=settings.batch)
        tokens, labels = make_batch([examples[row] for row in rows], settings.length)
        return cross_entropy(model(tokens, keep=tokens != PAD), labels)

    train(
        model,
        loss_of_step,
        settings.steps,
        learning_rate=settings.rate,
        warmup=settings.warmup,
        checkpoint=context.folder / f"checkpoint-{task}.pt",
        report=lambda share: context.report(([*TASKS].index(task) + share) / len(TASKS)),
    )
    return {"accuracy": _accuracy(model, splits["test"][: settings.test], settings)}


@torch.no_grad()
def _accuracy(model: Classifier, examples: list, settings: Settings) -> float:
    hits = []
    for first in range(0, len(examples), 128):
        tokens, labels = make_batch(examples[first : first + 128], settings.length)
        hits.append(model(tokens, keep=tokens != PAD).argmax(-1) == labels)
    return torch.cat(hits).double().mean().item()


def make_batch(examples: list, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return tokens (B, S) and labels (B,): [CLS], the text, [SEP], cut at `length`, filled with [PAD]."""
    rows = [[CLS, *ids, SEP][:length] for ids, _ in examples]
    return pad(rows), torch.tensor([label for _, label in examples])
