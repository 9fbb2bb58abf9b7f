"""ALiBi: scores that fall linearly with the distance (Press et al., arXiv 2108.12409, section 3)."""

import math

import torch

from ._base import Encoding
from ._relative import all_distances, spread_bias


class ALiBi(Encoding):
    """Scores q·k/√D − slope·|m − n|. The paper has earlier keys alone, for which this is its formula."""

    def __init__(self, head_dim, num_heads, max_length, causal=False):
        super().__init__(head_dim, num_heads, max_length, causal)
        self.register_buffer("slopes", torch.tensor(slopes(num_heads), dtype=torch.float64), persistent=False)

    def scores(self, q, k):
        bias = self.slopes.to(q.dtype)[:, None] * -all_distances(q, k).abs()
        return super().scores(q, k) + spread_bias(bias, q, k)


def slopes(num_heads: int) -> list[float]:
    """Return 2^(−8h/H) for h = 1 … H if H is a power of two; else every second slope of 2H fills up.

    As the authors' code: H is then the next lower power of two, and 2H slopes give their 1st, 3rd, ….
    """
    power = 2 ** math.floor(math.log2(num_heads))
    series = lambda count: [2 ** (-8 * h / count) for h in range(1, count + 1)]  # noqa: E731
    return series(power) + series(2 * power)[::2][: num_heads - power]
