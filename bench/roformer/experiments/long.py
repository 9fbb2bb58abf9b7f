"""Comparison of long texts at several lengths, trained at one (RoFormer, section 4.5.4, table 5).

Of three excerpts A, B and C, the encoder says which of B and C is of A's document: the excerpt whose mean
hidden state is nearer by the cosine. Training brings A nearer to B than to the other documents of a batch.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch.nn.functional import cross_entropy, normalize

from roformer.data import batches, prepare
from roformer.data.lengths import LENGTHS, NUM_TRIPLES, bag_accuracy
from roformer.jobs import Context, Job
from roformer.model import Transformer
from roformer.training import seed_everything, train

from . import masked
from ._language import Sizes, load_body

NAME = "long"
BAG = "token counts"  # no encoder: the cosine of how often each token occurs
ARMS = ("sinusoidal", "learned", "t5", "alibi", "rope", BAG)


@dataclass(frozen=True)
class Settings(Sizes):
    """Sizes, and the training at one of the lengths."""

    length: int = 256  # of training
    lengths: tuple[int, ...] = LENGTHS
    batch: int = 16
    steps: int = 80
    warmup: int = 8
    rate: float = 1e-3
    temperature: float = 0.05
    triples: int = NUM_TRIPLES


FULL = Settings()
QUICK = Settings(length=16, lengths=(16, 32), batch=4, steps=2, warmup=1, triples=8)


def jobs(settings: Settings, seeds) -> list[Job]:
    return [
        Job(
            NAME,
            arm,
            seed,
            () if arm == BAG else (f"{masked.NAME}/{arm}/{seed}",),
            cost=1 if arm == BAG else 37,
        )
        for arm in ARMS
        for seed in seeds
    ]


def run(job: Job, context: Context) -> dict:
    data, settings = prepare(context.data), context.settings
    triples = data.triples["test"][: settings.triples]
    if job.arm == BAG:
        return {"accuracy": {str(length): bag_accuracy(triples, length) for length in settings.lengths}}
    seed_everything(job.seed)
    body = Transformer(settings.config(data.tokenizer.vocab_size, job.arm))
    load_body(body, context.weights(job.needs[0]))
    train(
        body,
        lambda step: _contrast(body, data.triples, job.seed, step, settings),
        settings.steps,
        learning_rate=settings.rate,
        warmup=settings.warmup,
        checkpoint=context.folder / "checkpoint.pt",
        report=context.report,
    )
    return {"accuracy": {str(length): _accuracy(body, triples, length) for length in settings.lengths}}


def _contrast(body: Transformer, triples: dict, seed: int, step: int, settings: Settings) -> torch.Tensor:
    """Return the loss of telling each A's B from the other rows of the batch."""
    pair = batches.contrastive(
        triples["train"], triples["documents"], seed, step, settings.batch, settings.length
    )
    a, b = (embed(body, torch.from_numpy(tokens)) for tokens in pair)
    return cross_entropy(a @ b.mT / settings.temperature, torch.arange(len(a)))


def embed(body: Transformer, tokens: torch.Tensor) -> torch.Tensor:
    """Return the mean hidden state of each row, of length 1."""
    return normalize(body(tokens).mean(1), dim=-1)


@torch.no_grad()
def _accuracy(body: Transformer, triples: np.ndarray, length: int) -> float | None:
    """Return the share of triples with B nearer to A; None where the encoding ends before the length."""
    rows, places = np.unique(triples.reshape(-1, triples.shape[-1]), axis=0, return_inverse=True)
    tokens = torch.from_numpy(rows[:, :length].astype(np.int64))
    try:
        embeddings = torch.cat([embed(body, rows) for rows in tokens.split(8)])
    except ValueError:  # learned positions end
        if length <= body.config.max_length:
            raise
        return None
    a, b, c = embeddings[torch.from_numpy(places.reshape(-1, 3))].unbind(1)
    return ((a * b).sum(-1) > (a * c).sum(-1)).double().mean().item()
