"""A text as queries and keys: real words, and numbers with the same bits on every machine.

A token's embedding is 512 signs, the bits of a hash of its letters. A query is the embedding times a fixed
matrix of 8-bit integers, the bytes of a hash, and a key the same with another matrix: random features, as in
an untrained first layer. Sums of these integers are exact in any order, and one division scales them to unit
variance, so results do not depend on a random generator or a matrix product.

text.txt is the opening of "Alice's Adventures in Wonderland" by Lewis Carroll, 1865, in the public domain
(Project Gutenberg eBook 11).
"""

import hashlib
import math
import re
from importlib.resources import files

import numpy as np
from numpy.typing import NDArray

TITLE = "the opening of Alice's Adventures in Wonderland (Lewis Carroll, 1865)"
HEADS, HEAD_DIM = 8, 64
MOST_TOKENS = 256  # limits the time of the slow definition to a second
_SIGNS = 512
_MOST_CHARACTERS = 100_000  # of a file, to read


def tokens(file: str | None) -> list[str]:
    """Split a file, or the text of this package, into words and punctuation marks: the first 256.

    Raises
    ------
    OSError
        The file cannot be read.
    ValueError
        The file is empty, or not UTF-8 text.
    """
    text = files(__package__).joinpath("text.txt").read_text("utf-8") if file is None else _read_text(file)
    words = re.findall(r"\w+|[^\w\s]", text.lower())
    if not words:
        raise ValueError("it has no words")
    return words[:MOST_TOKENS]


def _read_text(file: str) -> str:
    try:
        with open(file, encoding="utf-8-sig") as stream:
            text = stream.read(_MOST_CHARACTERS)
    except UnicodeDecodeError:
        raise ValueError("it is not text in UTF-8") from None
    if "\0" in text:
        raise ValueError("it is a binary file, not text")
    return text


def queries_and_keys(words: list[str]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the queries and keys of tokens, each of shape (HEADS, len(words), HEAD_DIM)."""
    signs = np.stack([_signs(word) for word in words])
    return _project(signs, "query"), _project(signs, "key")


def _signs(word: str) -> NDArray[np.float64]:
    digest = hashlib.blake2b(word.encode(), digest_size=_SIGNS // 8).digest()
    return 1.0 - 2.0 * np.unpackbits(np.frombuffer(digest, np.uint8)).astype(np.float64)


def _project(signs: NDArray[np.float64], role: str) -> NDArray[np.float64]:
    width = HEADS * HEAD_DIM
    digest = hashlib.shake_256(role.encode()).digest(_SIGNS * width)
    matrix = np.frombuffer(digest, np.int8).reshape(_SIGNS, width)
    # Each term has the variance (256² - 1)/12 + 1/4 of a uniform signed byte about 0: 5461.5.
    features = signs @ matrix.astype(np.float64) / math.sqrt(5461.5 * _SIGNS)
    return np.moveaxis(features.reshape(len(signs), HEADS, HEAD_DIM), 0, 1)
