"""Byte-level BPE (Sennrich et al., arXiv 1508.07909), trained on training texts only."""

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
PAD, UNK, CLS, SEP, MASK = range(len(SPECIAL))


class Tokenizer:
    """Text to token ids and back. [CLS] begins a text and [SEP] ends it; `encode_all` adds neither."""

    def __init__(self, bpe: tokenizers.Tokenizer) -> None:
        self.bpe = bpe
        bpe.encode_special_tokens = True  # "[SEP]" in a text is five characters, not the token

    @property
    def vocab_size(self) -> int:
        """Return the number of token ids, special tokens included."""
        return self.bpe.get_vocab_size()

    def encode_all(self, texts: Iterable[str]) -> list[list[int]]:
        """Return the token ids of each text."""
        return [encoding.ids for encoding in self.bpe.encode_batch(list(texts), add_special_tokens=False)]

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of token ids, without special tokens."""
        return self.bpe.decode([int(token) for token in ids])

    def save(self, path: Path) -> None:
        """Write the vocabulary and the merges as JSON."""
        self.bpe.save(str(path))

    @classmethod
    def load(cls, path: Path) -> "Tokenizer":
        """Read a tokenizer that `save` wrote."""
        return cls(tokenizers.Tokenizer.from_file(str(path)))

    @classmethod
    def train(cls, texts: Iterable[str], vocab_size: int) -> "Tokenizer":
        """Learn merges from texts until the vocabulary has `vocab_size` tokens."""
        bpe = tokenizers.Tokenizer(models.BPE())
        bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        bpe.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=vocab_size,
            special_tokens=list(SPECIAL),
            initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),  # so that no text has unknown bytes
            show_progress=False,
        )
        bpe.train_from_iterator(texts, trainer)
        return cls(bpe)


def encode_documents(tokenizer: Tokenizer, documents: Iterable[str]) -> tuple[np.ndarray, np.ndarray]:
    """Return tokens (N,) int32 and offsets (D + 1,) int64: document i is tokens[offsets[i]:offsets[i + 1]].

    [SEP] ends each document.
    """
    encoded = [[*ids, SEP] for ids in tokenizer.encode_all(documents)]
    offsets = np.cumsum([0, *map(len, encoded)], dtype=np.int64)
    return np.concatenate([np.asarray(ids, np.int32) for ids in encoded]), offsets
