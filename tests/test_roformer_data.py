"""The study's data: no text of validation or test in training, right labels, BERT's masks, fixed draws."""

import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

sys.path.append(str(Path(__file__).parents[1] / "bench"))

from roformer.data import batches, catalogues, lengths, splits, tasks, text, tokens, wordnet
from roformer.data.catalogues import Pair

pytestmark = pytest.mark.library("torch")


def test_no_message_of_validation_or_test_is_in_another_split():
    pairs = {name: [] for group in catalogues.PACKAGES.values() for name in group}
    test = [Pair("No such file.", "Datei fehlt"), Pair("Write error", "Schreibfehler")]
    validation, kept = Pair("Fuzzy", "Unscharf"), Pair("commit", "einreichen")
    pairs |= {"coreutils": test, "gettext": [Pair("Write  ERROR!", "Fehler"), validation]}
    of_test = [Pair("no such FILE", "Keine Datei"), Pair("file is missing", "datei fehlt!")]
    pairs["git"] = [*of_test, Pair("blurred", "unscharf"), kept]
    made = catalogues.split_packages(pairs)
    assert made == {"train": [kept], "validation": [validation], "test": test}


def test_documents_share_no_paragraph_and_splits_no_document(tmp_path):
    shared = "Send reports of bugs to René. " * 3
    for i in range(40):
        own = "\n\n".join(f"Document {i} has the line number {j}." for j in range(20 + i))
        (tmp_path / f"doc{i:02}.pod").write_text(f"=head1 Name {i}\n\n{shared}\n\n{own}\n")
    documents = text.read_documents(tmp_path)
    assert len(documents) == 40
    assert max(Counter(each for parts in documents.values() for each in parts).values()) == 1
    made = text.split_documents(documents)
    assert sorted(name for each in made.values() for name in each) == sorted(documents)
    sizes = {name: sum(map(len, parts)) for name, parts in documents.items()}
    for split in ("validation", "test"):
        size = sum(sizes[name] for name in made[split])
        assert abs(size - 0.1 * sum(sizes.values())) <= max(sizes.values())


SYNSETS = [
    wordnet.Synset(part, 3 + i % 26, f"{part} definition {i}",
                   (f"the {part} of word number x{'abcdefghij'[i % 10]} goes {i} home today",))
    for part in "nv"
    for i in range(3000)
]  # fmt: skip


@pytest.mark.parametrize("make", [tasks.order, tasks.category])
def test_tasks_are_deterministic_and_share_no_text_between_splits(make):
    task = make(SYNSETS)
    assert task == make(SYNSETS)
    texts = {split: {splits.normalise(each) for each, _ in task[split]} for split in splits.SPLITS}
    assert all(texts.values())
    assert not texts["train"] & texts["validation"] | texts["test"] & (texts["train"] | texts["validation"])


def test_order_labels_are_right_and_balanced():
    intact = {each for synset in SYNSETS for each in synset.examples}
    sorted_words = Counter(tuple(sorted(each.split())) for each in intact)
    for examples in tasks.order(SYNSETS).values():
        assert all((text in intact) == bool(label) for text, label in examples)
        used = Counter(tuple(sorted(text.split())) for text, _ in examples)
        assert not used - sorted_words  # the words of one sentence, and no sentence twice
        assert abs(sum(2 * label - 1 for _, label in examples)) <= 1


def test_triples_have_two_excerpts_of_a_document_and_one_of_another():
    sizes = [25, 9, 40, 30]  # token t of document i is 10000·i + t
    documents = [10_000 * i + np.arange(size, dtype=np.int32) for i, size in enumerate(sizes)]
    excerpts, numbers = lengths.cut(np.concatenate(documents), np.cumsum([0, *sizes]), length=10)
    np.testing.assert_array_equal(excerpts, excerpts[:, :1] + np.arange(10))
    assert numbers.tolist() == (excerpts[:, 0] // 10_000).tolist() == [0, 0, 2, 2, 2, 2, 3, 3, 3]
    triples = lengths.make_triples(excerpts, numbers, 200)
    a, b, c = (triples // 10_000)[:, :, 0].T
    assert (a == b).all()
    assert (a != c).all()
    assert (triples[:, 0, 0] != triples[:, 1, 0]).all()


def test_masks_have_the_shares_of_bert():
    vocab_size, size = 1000, 200_000
    original = np.random.default_rng(0).integers(0, vocab_size, (4, size // 4))
    masked, labels = batches.mask_tokens(original, 1, 2, vocab_size)
    chosen = labels != batches.IGNORED
    np.testing.assert_array_equal(labels[chosen], original[chosen])
    np.testing.assert_array_equal(masked[~chosen], original[~chosen])
    assert not chosen[original < 5].any()
    assert chosen[original >= 5].mean() == pytest.approx(0.15, abs=0.005)
    before, after = original[chosen], masked[chosen]
    assert (after == tokens.MASK).mean() == pytest.approx(0.8, abs=0.015)
    assert (after == before).mean() == pytest.approx(0.1, abs=0.015)
    assert after[after != tokens.MASK].min() >= 5
