"""The interface of every position encoding: an addition to embeddings, scores, attention."""

import math

import torch
from torch import nn


class Encoding(nn.Module):
    """No position: scaled dot products (RoFormer, eq. 2). Other encodings override one part or two.

    Shapes: B sequences, H heads of D features, S queries, T keys. The queries are the last S of the T
    positions, so that a decoder with a cache gives one query and all keys.
    """

    shared = False  # whether all layers use the same module, as T5 and TUPE do

    def __init__(self, head_dim: int, num_heads: int, max_length: int, causal: bool = False) -> None:
        super().__init__()
        self.head_dim, self.num_heads, self.max_length = head_dim, num_heads, max_length
        self.causal = causal  # whether no query sees later keys

    def embed(self, x: torch.Tensor, start: int = 0) -> torch.Tensor:
        """Add positions to embeddings (B, S, H·D), of which the first is at position `start`."""
        return x

    def scores(self, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        """Return the scores (B, H, S, T) of q (B, H, S, D) and k (B, H, T, D), before mask and softmax."""
        return (q / math.sqrt(self.head_dim)) @ k.mT  # q has fewer elements than the scores

    def mix(self, weights: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """Return the weighted sums (B, H, S, D) of v (B, H, T, D), by weights (B, H, S, T)."""
        return weights @ v

    def attend(self, q, k, v, keep=None):
        """Return softmax attention (B, H, S, D); `keep` (B, T) is False for padding."""
        scores = self.scores(q, k)
        lowest = torch.finfo(scores.dtype).min  # and not −∞: a query that sees no key would get NaN
        if keep is not None:
            scores = scores.masked_fill(~keep[:, None, None, :], lowest)
        if self.causal:
            future = distances(q, k) < 0
            scores = scores.masked_fill(future, lowest)
        return self.mix(scores.softmax(-1), v)


def positions(q: torch.Tensor, k: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the positions of queries (S,) and keys (T,)."""
    keys = torch.arange(k.shape[-2], device=k.device)
    return keys[k.shape[-2] - q.shape[-2] :], keys


def distances(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    """Return the distances m − n (S, T) from each key at n to each query at m: negative for later keys."""
    m, n = positions(q, k)
    return m[:, None] - n
