"""Sinusoids added to the embeddings (Vaswani et al., arXiv 1706.03762, section 3.5; RoFormer, eq. 4)."""

import torch

from ._base import Encoding


class Sinusoidal(Encoding):
    """Embeddings √W·x + p of W features, with p the `sinusoids` of the position.

    The factor √W is Vaswani's (section 3.4): sinusoids would drown embeddings that start near zero.
    """

    def embed(self, x, start=0):
        width = x.shape[-1]
        pos = torch.arange(start, start + x.shape[-2], device=x.device)
        return x * width**0.5 + sinusoids(pos, width).to(x.dtype)


def sinusoids(pos: torch.Tensor, width: int) -> torch.Tensor:
    """Return sin(p/10000^(2i/W)) in feature 2i and its cosine in 2i + 1: float64 (..., W), for even W."""
    exponent = torch.arange(0, width, 2, dtype=torch.float64, device=pos.device) / width
    angle = pos[..., None] / 10000.0**exponent
    return torch.stack([angle.sin(), angle.cos()], -1).flatten(-2)
