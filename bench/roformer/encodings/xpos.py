"""xPos: RoPE with scores that decay with the distance (Sun et al., arXiv 2212.10554, section 3)."""

import rope_array as ra

from ._base import Encoding, positions


class XPos(Encoding):
    """Scores (R_m ζ^m q)·(R_n ζ^−n k)/√D: pair i has the factor ζ_i^((m − n)/scale_base), ζ_i < 1.

    The paper is about decoders. In an encoder later keys have a factor above 1, which grows with n − m.
    """

    def __init__(self, head_dim, num_heads, max_length, causal=False, scale_base=512.0):
        super().__init__(head_dim, num_heads, max_length, causal)
        self.rope, self.scale_base = ra.RoPE(head_dim), scale_base

    def scores(self, q, k):
        m, n = positions(q, k)
        # One centre for queries and keys cancels in the scores. The middle keeps the powers near 1.
        options = {"scale_base": self.scale_base, "center": self.max_length / 2}
        of_queries, _ = self.rope.rotation_xpos(m, like=q, **options)
        _, of_keys = self.rope.rotation_xpos(n, like=k, **options)
        return super().scores(of_queries.apply(q), of_keys.apply(k))
