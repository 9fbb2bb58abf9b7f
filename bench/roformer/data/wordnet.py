"""The synsets of WordNet 3.0, from its files data.noun, data.verb, data.adj and data.adv (see wndb(5WN))."""

import re
from pathlib import Path
from typing import NamedTuple

FILES = ("noun", "verb", "adj", "adv")


class Synset(NamedTuple):
    """A meaning: its part of speech, the number of its lexicographer file, its definition and examples."""

    part: str
    category: int  # of the 45 lexicographer files
    definition: str
    examples: tuple[str, ...]


def read_synsets(folder: Path) -> list[Synset]:
    """Return all synsets of the unpacked package, in the order of the files."""
    wordnet = folder / "usr" / "share" / "wordnet"
    texts = ((wordnet / f"data.{name}").read_text("utf-8") for name in FILES)
    lines = (line for text in texts for line in text.splitlines())
    return [parse(line) for line in lines if not line.startswith("  ")]  # the licence is indented


def parse(line: str) -> Synset:
    """Return the synset of a line: offset, file, part of speech, words and pointers, then | and the gloss."""
    head, _, gloss = line.partition(" | ")
    _, category, part_of_speech, *_ = head.split()
    return Synset(part_of_speech, int(category), *split_gloss(gloss))


def split_gloss(gloss: str) -> tuple[str, tuple[str, ...]]:
    """Return the definition and the quoted examples of a gloss."""
    definition = re.split(r';? *"', gloss, maxsplit=1)[0].strip(" ;\n")
    return definition, tuple(re.findall(r'"([^"]+)"', gloss))
