"""Sequences longer than in training: the loss of the masked language models at each length.

A model trained with plain RoPE is also read with the frequencies of Linear, NTK-aware and YaRN scaling,
without any further training.
"""

from dataclasses import dataclass

from roformer.data import prepare
from roformer.encodings import ENCODINGS
from roformer.jobs import Context, Job
from roformer.model import LanguageModel
from roformer.training import load_weights, seed_everything

from . import masked
from ._language import TEST, Training, score

NAME = "lengths"
SCALED = {"rope-linear": "rope", "rope-ntk": "rope", "rope-yarn": "rope"}
ARMS = (*masked.SOFTMAX, *SCALED)


@dataclass(frozen=True)
class Settings(Training):
    """The trained model's settings, and the lengths that it reads."""

    multiples: tuple[int, ...] = (1, 2, 4, 8)  # of the length of training
    tokens: int = 2**15  # that are read at each length


FULL = Settings(**vars(masked.FULL))
QUICK = Settings(**vars(masked.QUICK), tokens=256)


def jobs(settings: Settings, seeds) -> list[Job]:
    return [
        Job(NAME, arm, seed, (f"{masked.NAME}/{SCALED.get(arm, arm)}/{seed}",), cost=3)
        for arm in ARMS
        for seed in seeds
    ]


def run(job: Job, context: Context) -> dict:
    data, settings = prepare(context.data), context.settings
    losses = {}
    for multiple in settings.multiples:
        length = multiple * settings.length
        model = _make_model(job, context, data.tokenizer.vocab_size, multiple)
        losses[str(length)] = _loss(model, data.text["test"][0], settings.tokens, length)
        context.report(sum(m <= multiple for m in settings.multiples) / len(settings.multiples))
    return {"loss": losses}


def _make_model(job: Job, context: Context, vocab_size: int, multiple: int) -> LanguageModel:
    """Return the trained model, with the encoding for `multiple` times its length."""
    seed_everything(job.seed)
    settings = context.settings
    model = LanguageModel(settings.config(vocab_size, SCALED.get(job.arm, job.arm)))
    load_weights(model, context.weights(job.needs[0]))
    if job.arm in SCALED and multiple > 1:
        head_dim, length = settings.width // settings.heads, multiple * settings.length
        for layer in model.body.layers:
            layer.attention.encoding = ENCODINGS[job.arm](
                head_dim, settings.heads, length, factor=float(multiple)
            )
    return model.eval()


def _loss(model: LanguageModel, tokens, count: int, length: int) -> float | None:
    """Return the loss at a length, or None where the encoding ends before it."""
    try:
        return score(model, tokens, TEST, 1, count // length, length)["loss"]
    except ValueError:  # learned positions end
        if length <= model.body.config.max_length:
            raise
        return None
