"""T5: a number of each head and bucket of distances (Raffel et al., arXiv 1910.10683; RoFormer, eq. 8)."""

import math

import torch
from torch import nn

from ._base import Encoding
from ._relative import all_distances, spread_bias


class T5(Encoding):
    """Scores q·k/√D + b, with b of the bucket of m − n. All layers share the table (num_buckets, H).

    T5 has no 1/√D: its initial W_q is smaller by √D. Here all encodings draw W_q with one deviation, and so
    the scores keep the factor. With `causal` no bucket is spent on later keys.
    """

    shared = True

    def __init__(self, head_dim, num_heads, max_length, causal=False, num_buckets=32, max_distance=128):
        super().__init__(head_dim, num_heads, max_length, causal)
        self.max_distance = max_distance
        self.table = nn.Parameter(0.02 * torch.randn(num_buckets, num_heads))

    def scores(self, q, k):
        return super().scores(q, k) + self.bias(q, k)

    def bias(self, q, k):
        """Return the biases (H, S, T)."""
        index = buckets(all_distances(q, k), len(self.table), self.max_distance, self.causal)
        return spread_bias(self.table[index].mT, q, k)


def buckets(distance, num_buckets: int, max_distance: int, causal: bool):
    """Return the buckets of distances m − n: half for single distances, half in equal ratios to the maximum.

    Without `causal` the second half of all buckets is for later keys; with it they have bucket 0.
    """
    if not causal:
        num_buckets //= 2
        later = num_buckets * (distance < 0)
        return later + buckets(distance.abs(), num_buckets, max_distance, causal=True)
    distance, exact = distance.clamp(min=0), num_buckets // 2
    ratio = (distance.clamp(min=1).double() / exact).log() / math.log(max_distance / exact)
    far = exact + (ratio * (num_buckets - exact)).long()
    return torch.where(distance < exact, distance, far.clamp(max=num_buckets - 1))
