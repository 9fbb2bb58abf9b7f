"""The inputs of ONNX's RotaryEmbedding, which the caller makes."""

import numpy as np


def caches(x, pos, rotary_dim=None, base=10000.0):
    """Return cos and sin with one row for each position, and the rows of a batch."""
    if pos.ndim > 2:
        raise TypeError(f"takes rows of shape (B, S), not {pos.shape}")
    width = x.shape[-1] if rotary_dim is None else rotary_dim
    places, rows = np.unique(pos, return_inverse=True)
    # ONNX Runtime needs a table with as many rows as x; it never reads rows beyond the positions.
    places = np.concatenate([places, np.zeros(max(0, x.shape[2] - len(places)), places.dtype)])
    angles = places[:, None] * base ** (-np.arange(0, width, 2) / width)
    ids = np.broadcast_to(rows.reshape(pos.shape).astype(np.int64), (x.shape[0], x.shape[2]))
    return np.cos(angles).astype(x.dtype), np.sin(angles).astype(x.dtype), np.ascontiguousarray(ids)
