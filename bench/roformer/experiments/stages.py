"""Pre-training in stages of different lengths, with one RoFormer (section 4.5.2, table 4)."""

from dataclasses import dataclass

from roformer.data import prepare
from roformer.jobs import Context, Job
from roformer.model import LanguageModel
from roformer.training import seed_everything, train

from ._language import TEST, Sizes, loss_and_hits, masked, score

NAME = "stages"
ARMS = ("rope",)


@dataclass(frozen=True)
class Settings(Sizes):
    """Sizes, and the stages: the paper's lengths divided by 8, and its shares of the steps."""

    lengths: tuple[int, ...] = (64, 192, 32, 16, 192, 64)
    steps: tuple[int, ...] = (440, 28, 264, 176, 22, 66)
    batch_tokens: int = 2048
    warmup: float = 0.1  # the share of a stage's steps
    rate: float = 4e-3
    test_tokens: int = 2**16


FULL = Settings()
QUICK = Settings(lengths=(16, 32) * 3, steps=(2,) * 6, batch_tokens=64, test_tokens=128)


def jobs(settings: Settings, seeds) -> list[Job]:
    return [Job(NAME, arm, seed, cost=40) for arm in ARMS for seed in seeds]


def run(job: Job, context: Context) -> dict:
    data, settings = prepare(context.data), context.settings
    seed_everything(job.seed)
    tokens, test = data.text["train"][0], data.text["test"][0]
    vocab_size = data.tokenizer.vocab_size
    model, stages, done = LanguageModel(settings.config(vocab_size, job.arm)), [], 0
    for number, (length, steps) in enumerate(zip(settings.lengths, settings.steps, strict=True)):

        def loss_of_step(step, done=done, length=length):
            rows = settings.batch_tokens // length
            return loss_and_hits(model, *masked(tokens, vocab_size, job.seed, done + step, rows, length))[0]

        train(
            model,
            loss_of_step,
            steps,
            learning_rate=settings.rate,
            warmup=round(settings.warmup * steps),
            checkpoint=context.folder / f"checkpoint-{number}.pt",
            report=lambda share, done=done, steps=steps: context.report(
                (done + share * steps) / sum(settings.steps)
            ),
        )
        done += steps
        scores = score(model, test, TEST, 4, settings.test_tokens // 4 // length, length)
        stages.append({"length": length, "steps": steps, **scores})
    return {"stages": stages}
