"""Batches as pure functions of (seed, step): an interrupted training continues with the same batches."""

import numpy as np

from .tokens import MASK, SPECIAL

IGNORED = -100  # the label that torch's cross_entropy leaves out
MASKED_SHARE = 0.15


def batches(tokens: np.ndarray, seed: int, step: int, batch: int, length: int) -> np.ndarray:
    """Return windows (batch, length) int64 of tokens (N,), at places drawn by seed and step."""
    starts = _generator(seed, step, 0).integers(0, len(tokens) - length + 1, batch)
    return tokens[starts[:, None] + np.arange(length)].astype(np.int64)


def mask_tokens(tokens: np.ndarray, seed: int, step: int, vocab_size: int) -> tuple[np.ndarray, np.ndarray]:
    """Return masked tokens and labels, IGNORED where no token is predicted (BERT, arXiv 1810.04805, 3.1).

    15 % of the tokens are predicted: 80 % of these become [MASK], 10 % a random token, 10 % stay. Special
    tokens are not predicted.
    """
    random = _generator(seed, step, 1)
    chosen = (random.random(tokens.shape) < MASKED_SHARE) & (tokens >= len(SPECIAL))
    draws = random.random(tokens.shape)
    noise = random.integers(len(SPECIAL), vocab_size, tokens.shape)
    masked = np.where(chosen & (draws < 0.8), MASK, tokens)
    masked = np.where(chosen & (draws >= 0.9), noise, masked)
    return masked, np.where(chosen, tokens, IGNORED)


def contrastive(
    excerpts: np.ndarray, documents: np.ndarray, seed: int, step: int, batch: int, length: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return A and B (batch, length) int64: two excerpts of each of `batch` different documents.

    Row i of B belongs to row i of A; the other rows are in-batch negatives. `documents` (E,) has the number
    of the document of each excerpt (E, L); every document has two excerpts or more.
    """
    random = _generator(seed, step, 2)
    chosen = random.choice(np.unique(documents), batch, replace=False)
    rows = np.stack([random.choice(np.flatnonzero(documents == text), 2, replace=False) for text in chosen])
    a, b = excerpts[rows.T, :length].astype(np.int64)
    return a, b


def _generator(seed: int, step: int, purpose: int) -> np.random.Generator:
    """Return a generator of its own for each purpose: the masks of a batch do not depend on its places."""
    return np.random.default_rng((seed, step, purpose))
