"""RoPE: queries and keys rotated by their positions (RoFormer, section 3.2, eq. 13 to 16)."""

import rope_array as ra

from ._base import Encoding, positions


class Rotary(Encoding):
    """Scores (R_m q)·(R_n k)/√D, with R_m the rotation of pair i by m·base^(−2i/D)."""

    def __init__(self, head_dim, num_heads, max_length, causal=False, **fields):
        super().__init__(head_dim, num_heads, max_length, causal)
        self.rope = ra.RoPE(head_dim, **fields)

    def scores(self, q, k):
        m, n = positions(q, k)
        return super().scores(self.rope.apply(q, m), self.rope.apply(k, n))
