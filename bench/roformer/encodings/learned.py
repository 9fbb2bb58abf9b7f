"""A learned vector of each position in the embeddings (Devlin et al., arXiv 1810.04805; RoFormer, eq. 3)."""

import torch
from torch import nn

from ._base import Encoding


class Learned(Encoding):
    """Embeddings x + p, with p a row of the table (max_length, H·D). Later positions raise ValueError."""

    shared = True  # only the first layer adds positions

    def __init__(self, head_dim, num_heads, max_length, causal=False):
        super().__init__(head_dim, num_heads, max_length, causal)
        self.table = nn.Embedding(max_length, num_heads * head_dim)  # a model draws it as its words

    def embed(self, x, start=0):
        return x + rows(self.table.weight, start + x.shape[-2])[start:]


def rows(table: torch.Tensor, length: int) -> torch.Tensor:
    """Return the first `length` rows of a table of positions; ValueError if it has fewer."""
    if length > len(table):
        raise ValueError(
            f"a sequence of {length} positions, but learned positions end at max_length={len(table)}; "
            f"train with max_length of {length} or more, or shorten the sequence"
        )
    return table[:length]
