"""Terms of the distance m − n: computed once for each distance, then copied to all queries and keys at it."""

import torch

from ._base import distances


def all_distances(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    """Return the distances m − n (S + T − 1,) of S queries and T keys: 1 − S up to T − 1."""
    return torch.arange(1 - q.shape[-2], k.shape[-2], device=k.device)


def spread(x: torch.Tensor, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    """Return y (..., S, T) with y[m, n] = x[m, m − n], for x (..., S, S + T − 1) of `all_distances`."""
    return pick(x, distances(q, k) + q.shape[-2] - 1)


def spread_bias(x: torch.Tensor, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    """Return the bias (H, S, T) of x (H, S + T − 1), a number for each head and each of `all_distances`."""
    return spread(x[:, None].expand(-1, q.shape[-2], -1), q, k)


def pick(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """Return y (..., S, T) with y[m, n] = x[m, index[m, n]], for x (..., S, any) and index (S, T)."""
    return x.gather(-1, index.expand(*x.shape[:-2], *index.shape))
