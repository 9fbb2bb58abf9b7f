"""Masked language model: loss against steps with each encoding (RoFormer, section 4.2, figure 3 left)."""

from roformer.data import prepare
from roformer.jobs import Context, Job
from roformer.model import LanguageModel
from roformer.training import save_weights, seed_everything

from ._language import TEST, TINY, VALIDATION, Training, count_parameters, fit, loss_and_hits, masked, score

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


FULL = Training()
QUICK = Training(**TINY)


def jobs(settings: Training, seeds) -> list[Job]:
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

    curve = fit(model, loss_of_step, context, lambda: scored(held_out, VALIDATION, settings.held_out)["loss"])
    save_weights(model, context.folder / "weights.pt")
    return {"curve": curve, "test": scored(test, TEST, settings.test), "parameters": count_parameters(model)}
