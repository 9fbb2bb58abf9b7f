"""The data of the study: real text, downloaded on demand, and everything derived from it.

| package | part used | size | use | licence |
|---|---|---:|---|---|
| perl-doc | the 206 files *.pod | 8.8 MB | text, triples | GPL-1+ or Artistic |
| gcc-12-locales | German catalogues | 2.1 MB | pairs, train | GPL-3+ |
| git | German catalogue | 0.7 MB | pairs, train | GPL-2 |
| gimp-data | German catalogues | 0.8 MB | pairs, train | GPL-3+ |
| gettext | German catalogue | 0.1 MB | pairs, validation | GPL-3+ |
| coreutils | German catalogue | 0.4 MB | pairs, test | GPL-3+ |
| wordnet-base | data.noun, .verb, .adj, .adv | 21.7 MB | tasks | WordNet 3.0 |
| vaderSentiment | movieReviewSnippets_GroundTruth.txt | 1.4 MB | task sentiment | MIT |

Evidence: usr/share/doc/PACKAGE/copyright in each Debian package (gcc-12-locales links to the file of
gcc-12-base); LICENSE.txt in the sdist. This repository has no part of the texts.
"""

import hashlib
import json
import os
import tempfile
from collections.abc import Callable
from functools import cached_property
from pathlib import Path

import numpy as np

from . import catalogues, lengths, packages, tasks, text, wordnet
from .packages import Source
from .splits import SPLITS
from .tokens import Tokenizer, encode_documents

VERSION = 4  # of the prepared files: raise it when their content changes
VOCAB_SIZE = 512
PAIR_VOCAB_SIZE = 2048
Report = Callable[[str], None]
Tokens = tuple[np.ndarray, np.ndarray]
Ids = list[int]


class Data:
    """The prepared data in a folder. Every part is read when it is first used; token arrays are mapped."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of text, tasks and triples."""
        return Tokenizer.load(self.folder / "tokenizer.json")

    @cached_property
    def pair_tokenizer(self) -> Tokenizer:
        """The tokenizer of both languages of the pairs."""
        return Tokenizer.load(self.folder / "pair_tokenizer.json")

    @cached_property
    def text(self) -> dict[str, Tokens]:
        """By split, tokens (N,) int32 and offsets (D + 1,) int64 of the documents; [SEP] ends a document."""
        return {split: (self._map(f"text_{split}"), self._map(f"offsets_{split}")) for split in SPLITS}

    @cached_property
    def pairs(self) -> dict[str, list[tuple[Ids, Ids, str, str]]]:
        """By split, (English ids, German ids, English text, German text), without [CLS] and [SEP]."""
        return {split: [tuple(row) for row in rows] for split, rows in self._read("pairs").items()}

    @cached_property
    def tasks(self) -> dict[str, dict[str, list[tuple[Ids, int]]]]:
        """By task and split, (ids of the text, label), without [CLS] and [SEP]."""
        return {
            name: {split: [tuple(row) for row in rows] for split, rows in task.items()}
            for name, task in self._read("tasks").items()
        }

    @cached_property
    def triples(self) -> dict[str, np.ndarray]:
        """The triples (600, 3, 1024) int32 of "validation" and "test", and the excerpts to train on.

        "train" has excerpts (E, 1024) int32, and "documents" the number of each excerpt's document (E,).
        """
        return {name: self._map(f"triples_{name}") for name in ("train", "documents", "validation", "test")}

    @cached_property
    def sources(self) -> list[Source]:
        """Package, version and SHA-256 of each download."""
        return [Source(**fields) for fields in self._read("sources")]

    def short_pairs(self, split: str, max_tokens: int) -> list[tuple[Ids, Ids, str, str]]:
        """Return the pairs with at most `max_tokens` tokens in each language."""
        return [pair for pair in self.pairs[split] if max(len(pair[0]), len(pair[1])) <= max_tokens]

    def _map(self, name: str) -> np.ndarray:
        return np.load(self.folder / f"{name}.npy", mmap_mode="r")

    def _read(self, name: str) -> dict | list:
        return json.loads((self.folder / f"{name}.json").read_text(encoding="utf-8"))


def prepare(
    folder: Path | str,
    progress: Report | None = None,
    vocab_size: int = VOCAB_SIZE,
    pair_vocab_size: int = PAIR_VOCAB_SIZE,
) -> Data:
    """Return the data in `folder`. On the first call download the packages and build everything."""
    folder = Path(folder).resolve()
    ready = folder / f"prepared-{VERSION}-{vocab_size}-{pair_vocab_size}"
    if not ready.is_dir():
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder, prefix=".part-") as scratch:
            built = Path(scratch) / "built"
            built.mkdir()
            _build(folder / "packages", built, progress or _silent, vocab_size, pair_vocab_size)
            _publish(built, ready)
    return Data(ready)


def _silent(message: str) -> None:
    """Report nothing."""


def _publish(built: Path, ready: Path) -> None:
    """Rename, so that a folder with the final name is complete. A second process may have been first."""
    try:
        os.rename(built, ready)
    except OSError:
        if not ready.is_dir():
            raise


def _build(downloads: Path, out: Path, report: Report, vocab_size: int, pair_vocab_size: int) -> None:
    report("packages")
    folders = packages.fetch(packages.NAMES, downloads)
    _write(out, "sources", [vars(source) for source in packages.sources(downloads)])
    report("text")
    tokenizer = _build_text(folders, out, vocab_size)
    report("triples")
    _build_triples(Data(out), out)
    report("pairs")
    _build_pairs(folders, out, pair_vocab_size)
    report("tasks")
    _build_tasks(folders, out, tokenizer)
    digests = [hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(out.iterdir())]
    (out / "digest").write_text("\n".join(digests), encoding="utf-8")  # of all files: results record it


def _build_text(folders: dict[str, Path], out: Path, vocab_size: int) -> Tokenizer:
    documents = text.split_documents(text.read_documents(folders["perl-doc"]))
    texts = {split: ["\n".join(texts) for texts in docs.values()] for split, docs in documents.items()}
    tokenizer = Tokenizer.train(texts["train"], vocab_size)
    tokenizer.save(out / "tokenizer.json")
    for split in SPLITS:
        tokens, offsets = encode_documents(tokenizer, texts[split])
        np.save(out / f"text_{split}.npy", tokens)
        np.save(out / f"offsets_{split}.npy", offsets)
    return tokenizer


def _build_triples(data: Data, out: Path) -> None:
    for split in SPLITS:
        excerpts, documents = lengths.cut(*data.text[split])
        if split == "train":
            np.save(out / "triples_train.npy", excerpts)
            np.save(out / "triples_documents.npy", documents)
        else:
            triples = lengths.make_triples(excerpts, documents, lengths.NUM_TRIPLES)
            np.save(out / f"triples_{split}.npy", triples)


def _build_pairs(folders: dict[str, Path], out: Path, vocab_size: int) -> None:
    splits = catalogues.read_splits(folders)
    tokenizer = Tokenizer.train((side for pair in splits["train"] for side in pair), vocab_size)
    tokenizer.save(out / "pair_tokenizer.json")
    encoded = {}
    for split, pairs in splits.items():
        english, german = zip(*pairs, strict=True)
        ids = tokenizer.encode_all(english), tokenizer.encode_all(german)
        encoded[split] = list(zip(*ids, english, german, strict=True))
    _write(out, "pairs", encoded)


def _build_tasks(folders: dict[str, Path], out: Path, tokenizer: Tokenizer) -> None:
    by_name = tasks.make_tasks(folders[packages.VADER], wordnet.read_synsets(folders["wordnet-base"]))
    encoded = {
        name: {split: _encode_examples(tokenizer, examples) for split, examples in task.items()}
        for name, task in by_name.items()
    }
    _write(out, "tasks", encoded)


def _encode_examples(tokenizer: Tokenizer, examples: list[tasks.Example]) -> list[tuple[Ids, int]]:
    texts, labels = zip(*examples, strict=True)
    return list(zip(tokenizer.encode_all(texts), labels, strict=True))


def _write(out: Path, name: str, content: dict | list) -> None:
    (out / f"{name}.json").write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")
