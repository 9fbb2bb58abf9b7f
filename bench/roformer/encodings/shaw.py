"""Relative positions in keys and values (Shaw et al., arXiv 1803.02155, eq. 3 and 4; RoFormer, eq. 5)."""

import math

import torch
from torch import nn

from ._base import Encoding, distances
from ._relative import pick


class Shaw(Encoding):
    """Scores q·(k + a_K)/√D and sums of v + a_V, with a the row of m − n clipped to ±max_distance.

    The tables (2·max_distance + 1, D) are shared by the heads of a layer.
    """

    def __init__(self, head_dim, num_heads, max_length, causal=False, max_distance=16):
        super().__init__(head_dim, num_heads, max_length, causal)
        self.max_distance = max_distance
        self.keys, self.values = (
            nn.Parameter(0.02 * torch.randn(2 * max_distance + 1, head_dim)) for _ in range(2)
        )

    def scores(self, q, k):
        return (q @ k.mT + pick(q @ self.keys.mT, self._rows(q, k))) / math.sqrt(self.head_dim)

    def mix(self, weights, v):
        # Weights have a row for each query. Their sum for each row of the table comes first: it is small.
        index = self._rows(weights, v).expand_as(weights)
        sums = weights.new_zeros(*weights.shape[:-1], len(self.values)).scatter_add(-1, index, weights)
        return weights @ v + sums @ self.values

    def _rows(self, q, k):
        """Return the row (S, T) of the tables for each query and key."""
        return distances(q, k).clamp(-self.max_distance, self.max_distance) + self.max_distance
