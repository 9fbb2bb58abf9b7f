"""Performer: softmax estimated in linear time (Choromanski et al., arXiv 2009.14794; RoFormer, eq. 19)."""

import torch

from .linear import LinearAttention


class Performer(LinearAttention):
    """Linear attention with FAVOR+: φ(x) = exp(ω·x − |x|²/2) for F random ω, with x = q/D^¼ or k/D^¼.

    The mean over ω of φ(q)·φ(k) is F·exp(q·k/√D). The ω (F, D) are drawn once, from PyTorch's generator.
    Keys have φ + eps: a query far from all keys gets the mean of v instead of 0/0. The authors' code adds eps
    to queries too.
    Exponents are at most |ω|²/2, and so float32 does not overflow for D up to 64.
    """

    def __init__(self, head_dim, num_heads, max_length, causal=False, num_features=None, eps=1e-6):
        super().__init__(head_dim, num_heads, max_length, causal)
        self.register_buffer("omega", orthogonal_normals(num_features or 4 * head_dim, head_dim))
        self.eps = eps

    def features(self, q, k):
        q, k = self.exponents(q), self.exponents(k)
        # A factor for each query cancels in the quotient. A factor for keys would make early queries depend,
        # through eps, on later keys.
        return (q - q.detach().amax(-1, keepdim=True)).exp(), k.exp() + self.eps

    def exponents(self, x):
        """Return ω·x − |x|²/2 (..., F) for x/D^¼ (..., D)."""
        x = x / self.head_dim**0.25
        return x @ self.omega.mT - x.square().sum(-1, keepdim=True) / 2


class PerformerRotary(Performer):
    """Performer with rotated features in the numerator (RoFormer, eq. 19)."""

    rotary = True


def orthogonal_normals(count: int, size: int) -> torch.Tensor:
    """Return `count` standard normal vectors (count, size), orthogonal within each block of `size` rows.

    Directions are the rows of random orthogonal matrices; lengths are drawn as a normal vector's.
    """
    blocks = torch.cat([_random_orthogonal(size) for _ in range(-(-count // size))])
    return blocks[:count] * torch.randn(count, size).norm(dim=-1, keepdim=True)


def _random_orthogonal(size):
    q, r = torch.linalg.qr(torch.randn(size, size))
    return q.mT * r.diagonal().sign()[:, None]  # QR alone does not draw signs, and biases the mean of ω
