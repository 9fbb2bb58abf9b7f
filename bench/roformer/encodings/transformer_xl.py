"""Transformer-XL: sinusoids of the distance (Dai et al., arXiv 1901.02860, section 3.3; RoFormer, eq. 7)."""

import math

import torch
from torch import nn

from ._base import Encoding
from ._relative import all_distances, spread
from .sinusoidal import sinusoids


class TransformerXL(Encoding):
    """Scores (q·k + q·W R + u·k + v·W R)/√D, with R the sinusoids of m − n, which is negative for later keys.

    W (H·D, H·D) is the paper's W_kR; u and v (H, D) replace the queries of absolute positions.
    """

    def __init__(self, head_dim, num_heads, max_length, causal=False):
        super().__init__(head_dim, num_heads, max_length, causal)
        width = num_heads * head_dim
        self.w = nn.Parameter(0.02 * torch.randn(width, width))
        self.u, self.v = (nn.Parameter(0.02 * torch.randn(num_heads, head_dim)) for _ in range(2))

    def scores(self, q, k):
        r = sinusoids(all_distances(q, k), len(self.w)).to(self.w.dtype) @ self.w.mT
        r = r.unflatten(-1, (self.num_heads, self.head_dim)).transpose(0, 1)
        content = (q + self.u[:, None]) @ k.mT
        position = (q + self.v[:, None]) @ r.mT
        return (content + spread(position, q, k)) / math.sqrt(self.head_dim)
