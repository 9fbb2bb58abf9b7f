"""TUPE: positions with projections of their own (Ke et al., arXiv 2006.15595, eq. 7, 8; RoFormer, eq. 9).

The paper's reset of the scores of [CLS] is left out: decoders have no such token.
"""

import math

import torch
from torch import nn

from ._base import Encoding
from .learned import rows
from .t5 import T5


class TUPEAbsolute(Encoding):
    """Scores (q·k + (U_Q p_m)·(U_K p_n))/√(2D), with p the rows of a learned table (max_length, H·D).

    All layers share p, U_Q and U_K. The table starts at deviation 1, as the layer norm in the authors' code
    makes it.
    """

    shared = True

    def __init__(self, head_dim, num_heads, max_length, causal=False):
        super().__init__(head_dim, num_heads, max_length, causal)
        width = num_heads * head_dim
        self.table = nn.Parameter(torch.randn(max_length, width))
        self.u_q, self.u_k = (nn.Parameter(0.02 * torch.randn(width, width)) for _ in range(2))

    def scores(self, q, k):
        p = rows(self.table, k.shape[-2])
        p_q, p_k = self._heads(p[-q.shape[-2] :] @ self.u_q.mT), self._heads(p @ self.u_k.mT)
        return (q @ k.mT + p_q @ p_k.mT) / math.sqrt(2 * self.head_dim)

    def _heads(self, x):
        return x.unflatten(-1, (self.num_heads, self.head_dim)).transpose(0, 1)


class TUPERelative(TUPEAbsolute):
    """The scores of `TUPEAbsolute` and a bias for each bucket of distances, as T5 has it."""

    def __init__(self, head_dim, num_heads, max_length, causal=False):
        super().__init__(head_dim, num_heads, max_length, causal)
        self.relative = T5(head_dim, num_heads, max_length, causal)

    def scores(self, q, k):
        return super().scores(q, k) + self.relative.bias(q, k)
