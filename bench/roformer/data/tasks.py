"""Small classification tasks in the manner of GLUE (Wang et al., arXiv 1804.07461), for fine-tuning.

Every task is a dict of splits, every example (text, label). Equal texts share a split. `order` is
balanced.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path

from .splits import SPLITS, fraction, normalise, split_of
from .wordnet import Synset

Example = tuple[str, int]
Task = dict[str, list[Example]]

MIN_RATING = 0.5  # of −4 to 4; weaker ratings have no clear sign
MIN_WORDS = 5
NUM_EXAMPLES = 24_000  # at most, of tasks that WordNet would make larger
FIRST_NOUN_CATEGORY = 3  # the lexicographer files of nouns are 3 to 28


def make_tasks(vader: Path, synsets: Sequence[Synset]) -> dict[str, Task]:
    """Return all tasks, from the unpacked sdist of vaderSentiment and WordNet's synsets."""
    return {"sentiment": sentiment(vader), "order": order(synsets), "category": category(synsets)}


def sentiment(vader: Path) -> Task:
    """Return snippets of film reviews, label 1 where the mean of 20 raters is positive (as SST-2)."""
    (path,) = vader.rglob("movieReviewSnippets_GroundTruth.txt")
    rows = (line.split("\t") for line in path.read_text("utf-8", "replace").splitlines())
    rated = ((" ".join(text.split()), float(rating)) for _, rating, text in rows)
    clear = ((text, int(rating > 0)) for text, rating in rated if abs(rating) >= MIN_RATING)
    return _split(clear)


def order(synsets: Iterable[Synset]) -> Task:
    """Return WordNet's example sentences; label 1 if intact, 0 with shuffled words (as CoLA)."""
    sentences = (text for synset in synsets for text in synset.examples)
    task = _split((text, 1) for text in sentences if shuffle_words(text))
    for examples in task.values():
        examples[1::2] = [(shuffle_words(text), 0) for text, _ in examples[1::2]]
    return task


def shuffle_words(text: str) -> str | None:
    """Return text with its words in an order that the text's hash draws; None if the text is short.

    Words with a capital or a comma keep their places: elsewhere they would show the label without grammar.
    """
    words = text.split()
    places = [i for i, word in enumerate(words) if word.isalpha() and word.islower()]
    drawn = sorted(places, key=lambda i: fraction(f"shuffle {i} {text}"))
    moved = dict(zip(places, (words[i] for i in drawn), strict=True))
    shuffled = " ".join(moved.get(i, word) for i, word in enumerate(words))
    return None if len(words) < MIN_WORDS or shuffled == " ".join(words) else shuffled


def category(synsets: Iterable[Synset]) -> Task:
    """Return definitions of nouns and their lexicographer file, of 26: animal, artifact, body and so on."""
    nouns = [(noun.definition, noun.category - FIRST_NOUN_CATEGORY) for noun in synsets if noun.part == "n"]
    return _split(_first(nouns, NUM_EXAMPLES))


def _split(examples: Iterable[Example]) -> Task:
    """Return examples by split, each text once, in an order by hash."""
    unique = {normalise(example[0]): example for example in examples}
    task: Task = {split: [] for split in SPLITS}
    for example in _first(list(unique.values()), len(unique)):
        task[split_of(example[0])].append(example)
    return task


def _first(rows: list, count: int) -> list:
    """Return the first `count` rows in the order of a hash of their first members."""
    return sorted(rows, key=lambda row: fraction("order " + str(row[0])))[:count]
