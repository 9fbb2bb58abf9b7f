"""The study's experiments on small invented data: which split each model sees, and losses against loops."""

import itertools
import sys
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

sys.path.append(str(Path(__file__).parents[1] / "bench"))

from roformer.data import Data
from roformer.data.splits import SPLITS
from roformer.data.tokens import PAD, SPECIAL
from roformer.experiments import EXPERIMENTS, _language, linear, long, sentences
from roformer.jobs import Context
from roformer.model import LanguageModel, Transformer

pytestmark = pytest.mark.library("torch")

torch.set_num_threads(1)

FIRST, WORDS = len(SPECIAL), 40  # the first word's id; the words of each split, none in two
VOCAB_SIZE = FIRST + len(SPLITS) * WORDS
SETTINGS = {"translation": {"batch_tokens": 200, "test": None}, "linear": {"test": 2, "deviation": 0.3}}


def make_data(folder):
    random = np.random.default_rng(0)

    def draw(split, *shape):
        return random.integers(WORDS, size=shape, dtype=np.int32) + FIRST + WORDS * SPLITS.index(split)

    def text(split, shortest, longest):
        return draw(split, random.integers(shortest, longest + 1)).tolist()

    def pair(split):
        english, german = text(split, 3, 8), text(split, 3, 8)
        return english, german, decode(english), decode(german)

    def task(split, labels):
        return [(text(split, 1, 40), int(random.integers(labels))) for _ in range(20)]

    data = Data(folder)
    data.tokenizer = data.pair_tokenizer = SimpleNamespace(vocab_size=VOCAB_SIZE, decode=decode)
    data.text = {split: (draw(split, 2000), None) for split in SPLITS}
    data.pairs = {split: [pair(split) for _ in range(200)] for split in SPLITS}
    data.tasks = {name: {split: task(split, n) for split in SPLITS} for name, n in sentences.TASKS.items()}
    data.triples = {split: draw(split, 9, 3, 64) for split in ("validation", "test")}
    data.triples["test"][:, 1] = data.triples["test"][:, 0]  # B is A
    data.triples["validation"][:, 2] = data.triples["validation"][:, 0]
    data.triples |= {"train": draw("train", 12, 64), "documents": np.arange(12) // 2}
    return data


def decode(ids):
    return " ".join(map(str, ids))


def settings_of(module):
    return replace(module.QUICK, width=16, layers=1, heads=2, **SETTINGS.get(module.NAME, {}))


@pytest.fixture
def study(monkeypatch, tmp_path):
    """Return a function that runs a job, after the jobs that it needs: its result, and its passes."""
    data, passes, forward = make_data(tmp_path), [], Transformer.forward
    for path in EXPERIMENTS.values():
        monkeypatch.setattr(f"{path}.prepare", lambda folder: data)

    def spy(self, tokens, keep=None, *args, **options):
        if options.get("cache") is None:  # with a cache, the tokens are the model's own
            facts = {"trains": torch.is_grad_enabled(), "words": self.words.weight.detach().clone()}
            passes.append(SimpleNamespace(tokens=tokens, keep=keep, causal=self.config.causal, **facts))
        return forward(self, tokens, keep, *args, **options)

    def run(name, arm="rope", seed=1):
        module = import_module(EXPERIMENTS[name])
        settings, arm = settings_of(module), "linear-rope" if name == "linear" else arm
        (job,) = (job for job in module.jobs(settings, [seed]) if job.arm == arm)
        for key in job.needs:
            run(*key.split("/")[:2], seed)
        passes.clear()
        return module.run(job, Context(job, settings, tmp_path, tmp_path, lambda part: None)), list(passes)

    monkeypatch.setattr(Transformer, "forward", spy)
    return run


TRAIN, VALIDATION, TEST = (True, "train"), (False, "validation"), (False, "test")
CURVES = {"translation": 1, "masked": 2, "linear": 2}  # and their points
ENDS = {"sentences": [TRAIN, TEST] * 3, "stages": [TRAIN, TEST] * 6, "long": [TRAIN, TEST]}
NEEDED = {"sentences": 3, "long": 2, "lengths": 4}  # passes with the weights of the needed job


def split_of(row):
    """Return the split of most words of a row."""
    return SPLITS[int(row[row >= FIRST].median() - FIRST) // WORDS]


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_only_train_is_learned_curves_show_validation_and_results_are_of_test(study, name, tmp_path):
    """Needed weights are the first weights, and encoders do not see padding."""
    result, passes = study(name)
    rows = [(each.trains, split_of(row)) for each in passes for row in each.tokens]
    phases = [key for key, _ in itertools.groupby(rows)]
    assert phases == [TRAIN, VALIDATION] * CURVES.get(name, 0) + ENDS.get(name, [TEST])
    assert len(result.get("curve", [])) == CURVES.get(name, 0)
    if name in NEEDED:
        words = torch.load(tmp_path / "masked" / "rope-1" / "weights.pt")["body.words.weight"]
        assert sum(torch.equal(each.words, words) for each in passes) == NEEDED[name]
    if name in ("sentences", "translation"):
        encoded = [each for each in passes if not each.causal]
        assert any((each.tokens == PAD).any() for each in encoded)
        assert all(torch.equal(each.keep, each.tokens != PAD) for each in encoded)


@pytest.mark.parametrize("name", ["masked", "linear", "stages"])
def test_seeds_differ_in_training_and_share_the_held_out_batches(study, name):
    def tokens(passes, trains):
        return [each.tokens.tolist() for each in passes if each.trains == trains]

    one, other = (study(name, seed=seed)[1] for seed in (1, 2))
    assert tokens(one, False) == tokens(other, False)
    assert tokens(one, True) != tokens(other, True)


def test_token_counts_compare_the_triples_of_test(study):
    assert study("long", long.BAG) == ({"accuracy": {"16": 1.0, "32": 1.0}}, [])


def test_the_loss_of_the_causal_model_is_of_each_next_word(study, tmp_path):
    """Compute each word's logits from the words before it alone."""
    result, _ = study("linear")
    settings = settings_of(linear)
    model = LanguageModel(settings.config(VOCAB_SIZE, "linear-rope", causal=True)).requires_grad_(False)
    model.load_state_dict(torch.load(tmp_path / "linear" / "linear-rope-1" / "checkpoint.pt")["model"])
    losses, tokens = [], make_data(tmp_path).text["test"][0]
    for step, t in np.ndindex(2, settings.length - 1):
        rows = _language.windows(tokens, _language.TEST, step, 4 * settings.batch, settings.length)
        logits = model(torch.from_numpy(rows[:, : t + 1]))[:, -1].log_softmax(-1)
        losses += [-row[word].item() for row, word in zip(logits, rows[:, t + 1], strict=True)]
    assert result["test"]["loss"] == pytest.approx(np.mean(losses), rel=1e-5)
