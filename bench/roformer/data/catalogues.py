"""Pairs of English and German messages, from the compiled gettext catalogues (.mo) of Debian packages.

Packages make the splits, so that the test has programs that training never saw.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from babel.messages.mofile import read_mo

from .splits import normalise

PACKAGES = {
    "train": ("gcc-12-locales", "gimp-data", "git"),
    "validation": ("gettext",),
    "test": ("coreutils",),
}
ACCELERATED = {"gimp-data"}  # packages that mark a key by "_", as in "Re_draw"; none marks it by "&"


class Pair(NamedTuple):
    """A message and its translation."""

    english: str
    german: str


def read_package(folder: Path, accelerators: bool = False) -> list[Pair]:
    """Return the clean pairs of all German catalogues under a folder, each once, in a fixed order."""
    paths = sorted(folder.glob("usr/share/locale/de/LC_MESSAGES/*.mo"))
    messages = (_clean(message, accelerators) for path in paths for message in _read(path))
    return list(dict.fromkeys(pair for pair in messages if _is_translated(pair)))


def split_packages(pairs: dict[str, list[Pair]]) -> dict[str, list[Pair]]:
    """Return pairs by split. A text of the test is in no other split, a text of validation not in train."""
    seen_english, seen_german, splits = set(), set(), {}
    for split in ("test", "validation", "train"):
        mine = [pair for name in PACKAGES[split] for pair in pairs[name]]
        keys = [Pair(*map(normalise, pair)) for pair in mine]
        splits[split] = [
            pair
            for pair, key in zip(mine, keys, strict=True)
            if key.english not in seen_english and key.german not in seen_german
        ]
        seen_english.update(key.english for key in keys)
        seen_german.update(key.german for key in keys)
    return splits


def read_splits(folders: dict[str, Path]) -> dict[str, list[Pair]]:
    """Return the pairs of each split, from the unpacked packages."""
    names = [name for group in PACKAGES.values() for name in group]
    return split_packages({name: read_package(folders[name], name in ACCELERATED) for name in names})


def _read(path: Path) -> Iterable[Pair]:
    """Yield the messages of a catalogue without their contexts; of a plural, the singular."""
    with path.open("rb") as file:
        catalogue = read_mo(file)
    for message in catalogue:
        if message.id and not message.fuzzy:
            yield Pair(_singular(message.id), _singular(message.string))


def _singular(text: str | tuple[str, ...]) -> str:
    return text if isinstance(text, str) else text[0]


def _clean(pair: Pair, accelerators: bool) -> Pair:
    """Return the pair on one line, without marks of keys."""
    return Pair(*(_without_accelerator(text) if accelerators else " ".join(text.split()) for text in pair))


def _without_accelerator(text: str) -> str:
    """Remove the only "_" of a text; two or more are in identifiers."""
    return " ".join((text.replace("_", "") if text.count("_") == 1 else text).split())


def _is_translated(pair: Pair) -> bool:
    return all(map(normalise, pair)) and pair.english != pair.german
