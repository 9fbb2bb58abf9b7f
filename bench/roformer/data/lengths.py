"""Comparison of long texts, in the manner of CAIL2019-SCM (RoFormer, section 4.5.4, table 5).

There, of three case descriptions A, B and C, the model says which of B and C is nearer to A. Here A and B are
excerpts of one document and C is an excerpt of another. All lengths use prefixes of the same excerpts: only
the length differs.
"""

import itertools

import numpy as np

LENGTHS = (128, 256, 512, 1024)
NUM_TRIPLES = 600


def cut(tokens: np.ndarray, offsets: np.ndarray, length: int = LENGTHS[-1]) -> tuple[np.ndarray, np.ndarray]:
    """Return disjoint excerpts (E, length) and the number of each excerpt's document (E,).

    Documents with fewer than two excerpts are left out.
    """
    spans = enumerate(itertools.pairwise(offsets))
    starts = [(i, start) for i, (first, end) in spans for start in range(first, end - length + 1, length)]
    documents, places = np.array(starts).reshape(-1, 2).T
    kept = np.bincount(documents)[documents] >= 2
    return tokens[places[kept][:, None] + np.arange(length)], documents[kept]


def make_triples(excerpts: np.ndarray, documents: np.ndarray, count: int, seed: int = 0) -> np.ndarray:
    """Return triples (count, 3, L) of excerpts A, B and C, with B of A's document and C of another."""
    random = np.random.default_rng(seed)
    rows = []
    for a in random.choice(len(excerpts), count):
        mask = documents == documents[a]
        inside = np.flatnonzero(mask)
        rows.append((a, random.choice(inside[inside != a]), random.choice(np.flatnonzero(~mask))))
    return excerpts[np.array(rows)]


def bag_accuracy(triples: np.ndarray, length: int) -> float:
    """Return the accuracy of a model without positions: the cosine of the token counts of prefixes."""
    size = int(triples.max()) + 1
    a, b, c = (_counts(triples[:, i, :length], size) for i in range(3))
    return float(np.mean(_cosine(a, b) > _cosine(a, c)))


def _counts(tokens: np.ndarray, size: int) -> np.ndarray:
    """Return how often each token id occurs in each row: (N, L) to (N, size) float64."""
    return np.stack([np.bincount(row, minlength=size) for row in tokens]).astype(np.float64)


def _cosine(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    lengths = np.linalg.norm(a, axis=-1) * np.linalg.norm(b, axis=-1)
    return (a * b).sum(-1) / np.maximum(lengths, 1e-12)
