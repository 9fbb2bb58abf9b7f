"""The definition of attention's inputs around the rotation: norm of each head, and write into a cache.

The norm is RMSNorm (Zhang and Sennrich 2019, "Root Mean Square Layer Normalization",
https://arxiv.org/abs/1910.07467, equation 4). The module needs NumPy only, and shares no code with the core.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_COLUMNS = 64


def normed(x: Floats, weight: Any, eps: float, offset: float) -> Floats:
    """Return each head of x over its root mean square, times weight + offset; a weight of None is ones.

    x and the weight are in float64; the weight has the shape of x, or axes of size 1.
    """
    heads = x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps)
    return np.asarray(heads if weight is None else heads * (weight + offset))


def gradients_of_norm(
    x: Floats, of_heads: Floats, weight: Any, eps: float, offset: float
) -> Iterator[tuple[Floats, Floats]]:
    """Yield the gradients of x and of its weight, each with a bound of the terms that are added for it."""
    root = np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps)
    unit, of_unit = x / root, of_heads * (1.0 if weight is None else weight + offset)
    mean = np.mean(of_unit * unit, axis=-1, keepdims=True)
    largest = [np.abs(array).max(axis=-1, keepdims=True) for array in (of_unit, unit, of_heads)]
    size = largest[0] * (1 + largest[1] ** 2) / root
    yield (of_unit - unit * mean) / root, np.broadcast_to(size, x.shape)
    if weight is not None:
        sizes = (1,) * (x.ndim - weight.ndim) + weight.shape
        shared = tuple(axis for axis, size in enumerate(sizes) if size == 1)
        yield (of_heads * unit).sum(shared), (largest[2] * np.abs(unit)).sum(shared)


def normed_in_order(
    x: Floats, weight: Any, eps: float, offset: float, compute: str, rounded: Callable[[Any], Any]
) -> Floats:
    """Return the bits that the contract of rope_array has for the norm, in a compute dtype.

    Squares are added in 64 columns, from the first feature to the last; then the second half of the columns
    is added to the first half, until one column is left. `rounded` is called before the weight.
    """
    number, values = np.dtype(compute).type, x.astype(compute)
    columns = np.zeros((*x.shape[:-1], -(-x.shape[-1] // _COLUMNS) * _COLUMNS), compute)
    columns[..., : x.shape[-1]] = values * values
    total = columns[..., :_COLUMNS]
    for start in range(_COLUMNS, columns.shape[-1], _COLUMNS):
        total = total + columns[..., start : start + _COLUMNS]
    while total.shape[-1] > 1:
        first, second = np.split(total, 2, axis=-1)
        total = first + second
    heads = values * (number(1) / np.sqrt(total * number(1 / x.shape[-1]) + number(eps)))
    heads = rounded(heads).astype(compute)
    if weight is not None:
        heads = heads * (weight.astype(compute) + number(offset))
    return np.asarray(heads, np.float64)


def write_rows(cache: Any, x: Any, slots: Any, seq_axis: int, cache_axis: int) -> None:
    """Write each token's rows of x into its slot of a cache, in order; none into a slot below 0.

    Slots match the first axes of x and then its sequence, axis `seq_axis`. They run along `cache_axis` of the
    cache, an axis from the end; if the cache has one axis more than that, also from page to page, the first.
    """
    rows = np.moveaxis(x, seq_axis, slots.ndim - 1)
    rows = rows.reshape(-1, *rows.shape[slots.ndim :])
    num_pages = cache.ndim - rows.ndim
    cells = np.moveaxis(cache, cache_axis, num_pages)
    size = cells.shape[num_pages]
    for slot, row in zip(slots.ravel().tolist(), rows, strict=True):
        if slot >= 0:
            cells[divmod(slot, size) if num_pages else slot] = row
