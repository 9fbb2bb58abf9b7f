"""Linear attention, without and with RoPE (Katharopoulos et al., arXiv 2006.16236; RoFormer, eq. 18, 19)."""

import torch
from torch.nn.functional import elu

import rope_array as ra

from ._base import Encoding, positions


class LinearAttention(Encoding):
    """Σ_n (φ(q_m)·φ(k_n)) v_n / Σ_n φ(q_m)·φ(k_n), with φ = elu + 1: no position, and no scores.

    With `rotary` the numerator has R_m φ(q_m) and R_n φ(k_n). The denominator keeps φ alone and is positive;
    rotated products may be negative, and so the weights are no probabilities (RoFormer, section 3.3).
    """

    rotary = False

    def features(self, q, k):
        """Return the positive features φ(q) (B, H, S, F) and φ(k) (B, H, T, F)."""
        return elu(q) + 1, elu(k) + 1

    def attend(self, q, k, v, keep=None):
        q, k = self.features(q, k)
        if keep is not None:
            k = k * keep[:, None, :, None]
        sums = causal_sums if self.causal else all_sums
        total = sums(q, k, v.new_ones(v.shape[-2], 1).expand(*v.shape[:-1], 1))
        total = total.clamp(min=torch.finfo(total.dtype).tiny)  # a query that sees no key gets 0 and not 0/0
        if self.rotary:
            rope = ra.RoPE(q.shape[-1])
            q, k = (rope.apply(x, pos) for x, pos in zip((q, k), positions(q, k), strict=True))
        return sums(q, k, v) / total


class LinearRotary(LinearAttention):
    """Linear attention with rotated features in the numerator (RoFormer, eq. 19)."""

    rotary = True


def all_sums(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Return Σ_n (q_m·k_n) v_n (..., S, E) by an F × E matrix: no array has S × T elements."""
    return q @ (k.mT @ v)


def causal_sums(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, chunk: int = 64) -> torch.Tensor:
    """Return Σ_{n ≤ m} (q_m·k_n) v_n: plain products in chunks, and an F × E sum of all earlier chunks."""
    past = k.shape[-2] - q.shape[-2]
    state, sums = k[..., :past, :].mT @ v[..., :past, :], []
    chunks = (x.split(chunk, -2) for x in (q, k[..., past:, :], v[..., past:, :]))
    for q_c, k_c, v_c in zip(*chunks, strict=True):
        sums.append(q_c @ state + (q_c @ k_c.mT).tril() @ v_c)
        state = state + k_c.mT @ v_c
    return torch.cat(sums, -2)
