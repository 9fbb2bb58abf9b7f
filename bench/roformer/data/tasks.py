"""Small classification tasks in the manner of GLUE (Wang et al., arXiv 1804.07461), for fine-tuning.

Every task is a dict of splits, every example (first text, second text or None, label). Equal texts share a
split. `order` and `hypernym` are balanced; `majority` gives the share of the largest class.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from .splits import SPLITS, fraction, normalise, split_of
from .wordnet import Synset

Example = tuple[str, str | None, int]
Task = dict[str, list[Example]]

MIN_RATING = 0.5  # of −4 to 4; weaker ratings have no clear sign
MIN_WORDS = 5
PAIR_SHARE = 0.2  # a pair needs both texts in a split, so that 0.2² of the pairs are in the test
NUM_EXAMPLES = 24_000  # at most, of tasks that WordNet would make larger
FIRST_NOUN_CATEGORY = 3  # the lexicographer files of nouns are 3 to 28


def make_tasks(vader: Path, synsets: Sequence[Synset]) -> dict[str, Task]:
    """Return all tasks, from the unpacked sdist of vaderSentiment and WordNet's synsets."""
    return {
        "sentiment": sentiment(vader),
        "order": order(synsets),
        "hypernym": hypernym(synsets),
        "category": category(synsets),
    }


def sentiment(vader: Path) -> Task:
    """Return snippets of film reviews, label 1 where the mean of 20 raters is positive (as SST-2)."""
    (path,) = vader.rglob("movieReviewSnippets_GroundTruth.txt")
    rows = (line.split("\t") for line in path.read_text("utf-8", "replace").splitlines())
    rated = ((" ".join(text.split()), float(rating)) for _, rating, text in rows)
    clear = ((text, None, int(rating > 0)) for text, rating in rated if abs(rating) >= MIN_RATING)
    return _split(clear)


def order(synsets: Iterable[Synset]) -> Task:
    """Return WordNet's example sentences; label 1 if intact, 0 with shuffled words (as CoLA)."""
    sentences = (text for synset in synsets for text in synset.examples)
    task = _split((text, None, 1) for text in sentences if shuffle_words(text))
    for examples in task.values():
        examples[1::2] = [(shuffle_words(text), None, 0) for text, *_ in examples[1::2]]
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


def hypernym(synsets: Sequence[Synset]) -> Task:
    """Return pairs of definitions, label 1 if the second is of a direct hypernym of the first (as QNLI).

    With label 0 the second is the hypernym of another synset with the same part of speech. The second texts
    of both labels come from one distribution, so that the second text alone tells nothing.
    """
    by_key = {synset.key: synset for synset in synsets}
    task = {}
    for split, pairs in _hypernym_pairs(synsets, by_key).items():
        wrong = _exchange(pairs[: len(pairs) // 2], by_key)
        right = pairs[len(pairs) // 2 :][: len(wrong)]
        labelled = [(*pair, 0) for pair in wrong] + [(*pair, 1) for pair in right]
        examples = [(a.definition, b.definition, label) for a, b, label in labelled]
        task[split] = _first(examples, len(examples))
    return task


def category(synsets: Iterable[Synset]) -> Task:
    """Return definitions of nouns and their lexicographer file, of 26: animal, artifact, body and so on."""
    nouns = [
        (each.definition, None, each.category - FIRST_NOUN_CATEGORY) for each in synsets if each.key[0] == "n"
    ]
    return _split(_first(nouns, NUM_EXAMPLES))


def majority(examples: Sequence[Example]) -> float:
    """Return the share of the most frequent label: the accuracy of a constant answer."""
    return Counter(label for *_, label in examples).most_common(1)[0][1] / len(examples)


def _split(examples: Iterable[Example]) -> Task:
    """Return examples by split, each first text once, in an order by hash."""
    unique = {normalise(example[0]): example for example in examples}
    task: Task = {split: [] for split in SPLITS}
    for example in _first(list(unique.values()), len(unique)):
        task[split_of(example[0])].append(example)
    return task


def _first(rows: list, count: int) -> list:
    """Return the first `count` rows in the order of a hash of their first members."""
    return sorted(rows, key=lambda row: fraction("order " + str(row[0])))[:count]


def _hypernym_pairs(synsets: Iterable[Synset], by_key: dict) -> dict[str, list[tuple[Synset, Synset]]]:
    """Return (synset, hypernym) by split: pairs with both definitions in the same split, each synset once."""
    unique = {normalise(synset.definition): synset for synset in synsets if synset.hypernyms}
    pairs = [(synset, by_key[synset.hypernyms[0]]) for synset in unique.values()]
    splits: dict[str, list] = {split: [] for split in SPLITS}
    for a, b in _first(pairs, len(pairs)):
        split = split_of(a.definition, PAIR_SHARE)
        if split == split_of(b.definition, PAIR_SHARE) and len(splits[split]) < NUM_EXAMPLES:
            splits[split].append((a, b))
    return splits


def _exchange(pairs: list[tuple[Synset, Synset]], by_key: dict) -> list[tuple[Synset, Synset]]:
    """Return each first synset with the next pair's second, of the same part of speech and not above it."""
    exchanged = []
    for part in sorted({a.key[0] for a, _ in pairs}):
        firsts, seconds = zip(*(pair for pair in pairs if pair[0].key[0] == part), strict=True)
        exchanged += zip(firsts, seconds[1:] + seconds[:1], strict=True)
    honest = [(a, b) for a, b in exchanged if b.definition not in _with_ancestors(a, by_key)]
    return _first(honest, len(honest))


def _with_ancestors(synset: Synset, by_key: dict) -> set[str]:
    """Return the definitions of a synset and of its hypernyms, at any height."""
    found, open_keys = {synset.definition}, list(synset.hypernyms)
    while open_keys:
        above = by_key[open_keys.pop()]
        if above.definition not in found:
            found.add(above.definition)
            open_keys += above.hypernyms
    return found
