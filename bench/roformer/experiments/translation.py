"""English to German on message catalogues: sinusoidal positions and RoPE (RoFormer, 4.1, table 1)."""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import sacrebleu
import torch
from torch.nn.functional import cross_entropy

from roformer.data import prepare
from roformer.data.tokens import CLS, PAD, SEP
from roformer.generation import translate
from roformer.jobs import Context, Job
from roformer.model import Seq2Seq
from roformer.training import seed_everything, train

from ._language import Sizes, pad

NAME = "translation"
ARMS = ("sinusoidal", "rope")


@dataclass(frozen=True)
class Settings(Sizes):
    """Sizes, and the training: label smoothing, beams and penalty are the paper's."""

    max_tokens: int = 20  # of either side; longer pairs are left out
    batch_tokens: int = 1500  # of the longer side and its [SEP], with padding
    epochs: int = 5
    warmup: int = 100
    rate: float = 4e-3
    smoothing: float = 0.1
    beams: int = 4
    penalty: float = 0.6
    points: int = 8  # of a curve
    test: int | None = None  # sentences; None: all


FULL = Settings()
QUICK = Settings(max_tokens=6, batch_tokens=60000, epochs=1, warmup=1, points=1, beams=2, test=16)


def jobs(settings: Settings, seeds) -> list[Job]:
    return [Job(NAME, arm, seed, cost=90) for arm in ARMS for seed in seeds]


def run(job: Job, context: Context) -> dict:
    data, settings = prepare(context.data), context.settings
    seed_everything(job.seed)
    pairs = {split: data.short_pairs(split, settings.max_tokens) for split in ("train", "validation", "test")}
    model = Seq2Seq(settings.config(data.pair_tokenizer.vocab_size, job.arm))
    sizes = [max(len(source), len(target)) for source, target, *_ in pairs["train"]]

    @lru_cache(maxsize=1)
    def epoch(number):
        return epoch_batches(sizes, settings.batch_tokens, job.seed, number)

    per_epoch = len(epoch(0))
    steps = settings.epochs * per_epoch

    def loss_of_step(step):
        rows = epoch(step // per_epoch)[step % per_epoch]
        return loss(model, [pairs["train"][row] for row in rows], settings.smoothing)

    curve = train(
        model,
        loss_of_step,
        steps,
        learning_rate=settings.rate,
        warmup=settings.warmup,
        checkpoint=context.folder / "checkpoint.pt",
        report=context.report,
        evaluate=lambda: _mean_loss(model, pairs["validation"]),
        every=max(1, steps // settings.points),
    )
    test = pairs["test"][: settings.test]
    outputs = _translate_all(model, [source for source, *_ in test], data.pair_tokenizer, settings)
    references = [[german for *_, german in test]]
    examples = [[english, german, words] for (*_, english, german), words in zip(test, outputs, strict=True)]
    return {
        "curve": curve,
        "bleu": sacrebleu.corpus_bleu(outputs, references).score,
        "chrf": sacrebleu.corpus_chrf(outputs, references).score,
        "examples": examples[:: max(1, len(examples) // 12)],
    }


def epoch_batches(sizes: list[int], batch_tokens: int, seed: int, epoch: int) -> list[np.ndarray]:
    """Return the rows of each batch of an epoch: rows of like size together, in another order each epoch.

    A batch ends before its rows with [SEP], padded to the longest, have more than `batch_tokens`. The number
    of batches is the same in each epoch.
    """
    random = np.random.default_rng((seed, epoch))
    rows = random.permutation(len(sizes))
    rows = rows[np.argsort(np.asarray(sizes)[rows], kind="stable")]
    ends, first = [], 0
    for place, row in enumerate(rows):
        if place > first and (place - first + 1) * (sizes[row] + 1) > batch_tokens:
            ends.append(place)
            first = place
    batches = np.split(rows, ends)
    return [batches[i] for i in random.permutation(len(batches))]


def loss(model: Seq2Seq, pairs: list, smoothing: float = 0.0, reduction: str = "mean") -> torch.Tensor:
    """Return the loss of each next German word, given the English sentence and the German words before."""
    source, target = (pad([[CLS, *pair[side], SEP] for pair in pairs]) for side in (0, 1))
    logits = model(source, source != PAD, target[:, :-1])
    return cross_entropy(
        logits.flatten(0, 1),
        target[:, 1:].flatten(),
        ignore_index=PAD,
        label_smoothing=smoothing,
        reduction=reduction,
    )


def _mean_loss(model: Seq2Seq, pairs: list) -> float:
    batches = [pairs[first : first + 64] for first in range(0, len(pairs), 64)]
    words = sum(len(target) + 1 for _, target, *_ in pairs)
    return sum(loss(model, batch, reduction="sum").item() for batch in batches) / words


def _translate_all(model: Seq2Seq, sources: list, tokenizer, settings: Settings) -> list[str]:
    """Return the German text of each source, by beam search; like lengths are translated together."""
    order = sorted(range(len(sources)), key=lambda row: len(sources[row]))
    texts = [""] * len(sources)
    model.eval()
    for first in range(0, len(order), 64):
        rows = order[first : first + 64]
        source = pad([[CLS, *sources[row], SEP] for row in rows])
        translated = translate(
            model, source, source != PAD, CLS, SEP, 2 * settings.max_tokens, settings.beams, settings.penalty
        )
        for row, ids in zip(rows, translated.tolist(), strict=True):
            texts[row] = tokenizer.decode(ids[: ids.index(SEP)] if SEP in ids else ids)
    return texts
