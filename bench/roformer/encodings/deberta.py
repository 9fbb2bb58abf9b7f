"""DeBERTa: content apart from distance (He et al., arXiv 2006.03654, eq. 2 to 4; RoFormer, eq. 10)."""

import math

import torch
from torch import nn

from ._base import Encoding, distances
from ._relative import pick


class DeBERTa(Encoding):
    """Scores (q·k + q·W_k p[δ(m, n)] + k·W_q p[δ(n, m)])/√(3D), with δ(m, n) = m − n + K in 0 … 2K − 1.

    K is max_distance. The table p (2K, H·D) is each layer's own; DeBERTa shares it, with W of each layer.
    """

    def __init__(self, head_dim, num_heads, max_length, causal=False, max_distance=32):
        super().__init__(head_dim, num_heads, max_length, causal)
        width = num_heads * head_dim
        self.table = nn.Parameter(0.02 * torch.randn(2 * max_distance, width))
        self.w_q, self.w_k = (nn.Parameter(0.02 * torch.randn(width, width)) for _ in range(2))

    def scores(self, q, k):
        distance = distances(q, k)
        content_to_position = pick(q @ self._project(self.w_k).mT, self._rows(distance))
        position_to_content = pick(k @ self._project(self.w_q).mT, self._rows(-distance.mT)).mT
        return (q @ k.mT + content_to_position + position_to_content) / math.sqrt(3 * self.head_dim)

    def _project(self, w):
        """Return the table of each head (H, 2K, D)."""
        return (self.table @ w.mT).unflatten(-1, (self.num_heads, self.head_dim)).transpose(0, 1)

    def _rows(self, distance):
        return (distance + len(self.table) // 2).clamp(0, len(self.table) - 1)
