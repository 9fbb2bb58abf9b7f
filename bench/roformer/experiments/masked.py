"""Masked language model: loss against steps with each encoding (RoFormer, section 4.2, figure 3 left)."""

from dataclasses import dataclass

from roformer.data import prepare
from roformer.jobs import Context, Job
from roformer.model import LanguageModel
from roformer.training import save_weights, seed_everything, train

from ._language import TEST, VALIDATION, Sizes, count_parameters, loss_and_hits, masked, score

NAME = "masked"
SOFTMAX = (
    "none",
    "sinusoidal",
    "learned",
    "shaw",
    "transformer-xl",
    "t5",
    "tupe-absolute",
    "tupe-relative",
    "deberta",
    "alibi",
    "rope",
    "xpos",
)
ARMS = (*SOFTMAX, "linear-rope", "performer-rope")


@dataclass(frozen=True)
class Settings(Sizes):
    """Sizes, and the training of a masked language model."""

    length: int = 64
    batch: int = 32
    steps: int = 600
    warmup: int = 60
    rate: float = 4e-3
    points: int = 12  # of a curve
    held_out: int = 4  # batches of a point, of four times the size
    test: int = 16  # batches of the final test


FULL = Settings()
QUICK = Settings(length=32, batch=4, steps=4, warmup=1, points=2, held_out=1, test=1)


def jobs(settings: Settings, seeds) -> list[Job]:
    return [Job(NAME, arm, seed, cost=26) for arm in ARMS for seed in seeds]


def run(job: Job, context: Context) -> dict:
    data, settings = prepare(context.data), context.settings
    seed_everything(job.seed)
    vocab_size = data.tokenizer.vocab_size
    model = LanguageModel(settings.config(vocab_size, job.arm))
    train_tokens, held_out, test = (data.text[split][0] for split in ("train", "validation", "test"))

    def loss_of_step(step):
        batch = masked(train_tokens, vocab_size, job.seed, step, settings.batch, settings.length)
        return loss_and_hits(model, *batch)[0]

    def scored(tokens, seed, count):
        return score(model, tokens, seed, count, 4 * settings.batch, settings.length)

    curve = train(
        model,
        loss_of_step,
        settings.steps,
        learning_rate=settings.rate,
        warmup=settings.warmup,
        checkpoint=context.folder / "checkpoint.pt",
        report=context.report,
        evaluate=lambda: scored(held_out, VALIDATION, settings.held_out)["loss"],
        every=settings.steps // settings.points,
    )
    save_weights(model, context.folder / "weights.pt")
    return {"curve": curve, "test": scored(test, TEST, settings.test), "parameters": count_parameters(model)}
