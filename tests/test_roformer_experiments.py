"""The study's experiments on small invented data: splits, batches, losses and accuracies against loops."""

import itertools
import math
import sys
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.nn.functional import cosine_similarity, one_hot

sys.path.append(str(Path(__file__).parents[1] / "bench"))

from roformer.data import Data, batches
from roformer.data.splits import SPLITS
from roformer.data.tokens import CLS, PAD, SEP, SPECIAL
from roformer.experiments import EXPERIMENTS, _language, lengths, linear, long, sentences, translation
from roformer.jobs import Context
from roformer.model import Config, LanguageModel, Seq2Seq, Transformer

pytestmark = pytest.mark.library("torch")

torch.set_num_threads(1)

FIRST, WORDS = len(SPECIAL), 40  # the first word's id; the words of each split, none in two
VOCAB_SIZE = FIRST + len(SPLITS) * WORDS
SETTINGS = {"translation": {"batch_tokens": 200, "test": None}, "linear": {"test": 2, "deviation": 0.3}}
ROUNDING = 1e-12  # of float64


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
    data, seen, forward = make_data(tmp_path), [], Transformer.forward
    for path in EXPERIMENTS.values():
        monkeypatch.setattr(f"{path}.prepare", lambda folder: data)

    def spy(self, tokens, keep=None, *args, **options):
        if options.get("cache") is None:  # with a cache, the tokens are the model's own
            seen.append(SimpleNamespace(tokens=tokens, keep=keep, causal=self.config.causal))
            seen[-1].trains, seen[-1].words = torch.is_grad_enabled(), self.words.weight.detach().clone()
        return forward(self, tokens, keep, *args, **options)

    def run(name, arm="rope", seed=1):
        module = import_module(EXPERIMENTS[name])
        settings, arm = settings_of(module), "linear-rope" if name == "linear" else arm
        (job,) = (job for job in module.jobs(settings, [seed]) if job.arm == arm)
        for key in job.needs:
            run(*key.split("/")[:2], seed)
        seen.clear()
        return module.run(job, Context(job, settings, tmp_path, tmp_path, lambda part: None)), list(seen)

    monkeypatch.setattr(Transformer, "forward", spy)
    return run


TRAIN, VALIDATION, TEST = (True, "train"), (False, "validation"), (False, "test")
CURVES = {"translation": 1, "masked": 2, "linear": 2}  # and their points
ENDS = {"sentences": [TRAIN, TEST] * 3, "stages": [TRAIN, TEST] * 6, "long": [TRAIN, TEST]}


def split_of(row):
    """Return the split of most words of a row."""
    return SPLITS[int(row[row >= FIRST].median() - FIRST) // WORDS]


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_only_train_is_learned_curves_show_validation_and_results_are_of_test(study, name):
    result, seen = study(name)
    rows = [(each.trains, split_of(row)) for each in seen for row in each.tokens]
    phases = [key for key, _ in itertools.groupby(rows)]
    assert phases == [TRAIN, VALIDATION] * CURVES.get(name, 0) + ENDS.get(name, [TEST])
    assert len(result.get("curve", [])) == CURVES.get(name, 0)


def test_token_counts_compare_the_triples_of_test(study):
    assert study("long", long.BAG) == ({"accuracy": {"16": 1.0, "32": 1.0}}, [])


@pytest.mark.parametrize("name", ["masked", "linear", "stages"])
def test_seeds_differ_in_training_and_share_the_held_out_batches(study, name):
    def tokens(seen, trains):
        return [each.tokens.tolist() for each in seen if each.trains == trains]

    one, other = (study(name, seed=seed)[1] for seed in (1, 2))
    assert tokens(one, False) == tokens(other, False)
    assert tokens(one, True) != tokens(other, True)


@pytest.mark.parametrize(("name", "count"), [("sentences", 3), ("long", 2), ("lengths", 4)])
def test_needed_weights_are_the_first_weights(study, tmp_path, name, count):
    """Three tasks begin with them, the first A and B are read with them, and all four lengths."""
    _, seen = study(name)
    words = torch.load(tmp_path / "masked" / "rope-1" / "weights.pt")["body.words.weight"]
    assert sum(torch.equal(each.words, words) for each in seen) == count


@pytest.mark.parametrize("name", ["sentences", "translation"])
def test_encoders_do_not_see_padding(study, name):
    passes = [each for each in study(name)[1] if not each.causal]
    assert any((each.tokens == PAD).any() for each in passes)
    assert all(torch.equal(each.keep, each.tokens != PAD) for each in passes)


def test_translations_have_the_score_of_their_own_references(study, monkeypatch, tmp_path):
    targets = {tuple(pair[0]): pair[1] for pair in make_data(tmp_path).pairs["test"]}

    def translate(model, source, keep, begin, end, *_):
        rows = [targets[tuple(row[row >= FIRST].tolist())] for row in source]
        return torch.tensor([row + [end] * (max(map(len, rows)) - len(row)) for row in rows])

    monkeypatch.setattr(translation, "translate", translate)
    result, _ = study("translation")
    assert (result["bleu"], result["chrf"]) == pytest.approx((100, 100))
    assert all(words == german for _, german, words in result["examples"])


SIZES = np.random.default_rng(0).integers(1, 21, 300).tolist()


def make_epochs():
    return [translation.epoch_batches(SIZES, 100, seed, epoch) for seed, epoch in ((1, 0), (1, 1), (2, 0))]


def test_an_epoch_has_each_row_once_in_full_batches_of_like_sizes():
    epochs = make_epochs()
    for parts in epochs:
        assert sorted(np.concatenate(parts)) == list(range(300))
        ordered = [sorted(SIZES[row] + 1 for row in part) for part in parts]  # with [SEP]
        ordered.sort(key=lambda part: (part[0], part[-1], -len(part)))
        assert all(len(part) * part[-1] <= 100 for part in ordered)
        for part, following in itertools.pairwise(ordered):
            assert part[-1] <= following[0]
            assert (len(part) + 1) * following[0] > 100
    assert len(set(map(len, epochs))) == 1


def test_epochs_differ_in_batches_and_their_order_and_repeat_with_the_seed():
    epochs, again = make_epochs(), make_epochs()
    assert all(map(np.array_equal, epochs[0], again[0]))
    for one, other in itertools.combinations(epochs, 2):
        assert [SIZES[part[0]] for part in one] != [SIZES[part[0]] for part in other]
        assert {frozenset(part) for part in one} != {frozenset(part) for part in other}


def make_model(kind, encoding="rope", vocab_size=VOCAB_SIZE, max_length=32):
    torch.manual_seed(0)
    config = Config(vocab_size, encoding, 16, None, 1, 2, max_length=max_length, deviation=0.3)
    return kind(config).double().requires_grad_(False)


def loss_of(logits, word):
    return -logits.log_softmax(-1)[word].item()


def test_the_curve_of_translation_has_the_mean_loss_of_all_words(tmp_path):
    model, losses = make_model(Seq2Seq), []
    pairs = make_data(tmp_path).pairs["test"][:67]
    for english, german, *_ in pairs:
        logits = model(torch.tensor([[CLS, *english, SEP]]), None, torch.tensor([[CLS, *german]]))[0]
        losses += map(loss_of, logits, [*german, SEP])
    assert translation._mean_loss(model, pairs) == pytest.approx(np.mean(losses), rel=ROUNDING)


def test_a_score_is_the_mean_over_all_masked_tokens():
    model = make_model(LanguageModel, vocab_size=FIRST + 3)
    model.head.bias[:FIRST] = -100  # guess among three words
    tokens = np.random.default_rng(0).integers(FIRST, FIRST + 3, 500)
    losses, hits, counts = [], [], [0]
    for step in range(3):
        inputs, labels = _language.masked(tokens, FIRST + 3, 7, step, 4, 20)
        for logits, label in zip(model(inputs).flatten(0, 1), labels.flatten().tolist(), strict=True):
            if label != batches.IGNORED:
                losses.append(loss_of(logits, label))
                hits.append(logits.argmax().item() == label)
        counts.append(len(hits))
    score = _language.score(model, tokens, 7, 3, 4, 20)
    assert score == pytest.approx({"loss": np.mean(losses), "accuracy": np.mean(hits)}, rel=ROUNDING)
    assert 0 < score["accuracy"] < 1
    assert len(set(np.diff(counts))) > 1


def test_a_batch_of_sentences_is_cut_and_padded():
    tokens, labels = sentences.make_batch([([7, 8], 1), ([9], 0), ([10, 11, 12, 13, 14], 3)], 5)
    assert tokens.tolist() == [[CLS, 7, 8, SEP, PAD], [CLS, 9, SEP, PAD, PAD], [CLS, 10, 11, 12, 13]]
    assert labels.tolist() == [1, 0, 3]


def test_the_accuracy_of_sentences_counts_each_example_once():
    """The model adds the tokens that it may see; the last batch has one example."""
    random = np.random.default_rng(0)
    texts = [random.integers(5, 40, size).tolist() for size in random.integers(1, 7, 129)]
    sums = [sum(token + 1 for token in (CLS, *ids, SEP)) for ids in texts]
    labels = [*random.integers(3, size=128).tolist(), sums[-1] % 3]
    model = lambda tokens, keep: one_hot(((tokens + 1) * keep).sum(1) % 3, 3)  # noqa: E731
    hits = [each % 3 == label for each, label in zip(sums, labels, strict=True)]
    found = sentences._accuracy(model, list(zip(texts, labels, strict=True)), SimpleNamespace(length=8))
    assert found == np.mean(hits) < 1


def cosine(body, *rows):
    a, b = (body(torch.tensor(row[None], dtype=torch.int64))[0].mean(0) for row in rows)
    return cosine_similarity(a, b, dim=0).item()


def test_the_accuracy_of_long_texts_compares_the_prefixes_of_each_triple():
    body, random = make_model(Transformer), np.random.default_rng(0)
    triples = random.integers(FIRST, VOCAB_SIZE, (10, 24))[random.integers(10, size=(25, 3))]
    for length in (4, 24):
        hits = [cosine(body, a, b) > cosine(body, a, c) for a, b, c in triples[..., :length]]
        assert 0 < long._accuracy(body, triples, length) == np.mean(hits) < 1


def test_long_texts_are_told_from_the_other_rows_of_a_batch(tmp_path):
    body, triples = make_model(Transformer), make_data(tmp_path).triples
    rows, others = batches.contrastive(triples["train"], triples["documents"], 3, 5, 4, 24)
    scores = [[cosine(body, a, b) / 0.05 for b in others] for a in rows]
    losses = [math.log(sum(map(math.exp, row))) - row[i] for i, row in enumerate(scores)]
    settings = SimpleNamespace(batch=4, length=24, temperature=0.05)
    assert long._contrast(body, triples, 3, 5, settings).item() == pytest.approx(np.mean(losses), rel=1e-9)


def test_a_length_after_the_last_learned_position_has_no_result(tmp_path):
    data, sizes = make_data(tmp_path), (16, 32)
    model = make_model(LanguageModel, "learned", max_length=16)
    assert [lengths._loss(model, data.text["test"][0], 128, n) is None for n in sizes] == [False, True]
    assert [long._accuracy(model.body, data.triples["test"], n) is None for n in sizes] == [False, True]


def test_the_loss_of_the_causal_model_is_of_each_next_word(study, tmp_path):
    """Compute each word's logits from the words before it alone."""
    result, _ = study("linear")
    settings = settings_of(linear)
    model = LanguageModel(settings.config(VOCAB_SIZE, "linear-rope", causal=True)).requires_grad_(False)
    model.load_state_dict(torch.load(tmp_path / "linear" / "linear-rope-1" / "checkpoint.pt")["model"])

    def mean_loss(split, seed, count):
        losses, tokens = [], make_data(tmp_path).text[split][0]
        for step, t in np.ndindex(count, settings.length - 1):
            rows = _language.windows(tokens, seed, step, 4 * settings.batch, settings.length)
            losses += map(loss_of, model(torch.from_numpy(rows[:, : t + 1]))[:, -1], rows[:, t + 1])
        return pytest.approx(np.mean(losses), rel=1e-5)

    assert result["curve"][-1][1] == mean_loss("validation", _language.VALIDATION, 1)
    assert result["test"]["loss"] == mean_loss("test", _language.TEST, 2)
