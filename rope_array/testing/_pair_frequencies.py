"""Find pairs that rotate by another frequency: the hypothesis of some pairs, from one wrong result."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ._hypothesis import Hypothesis
from ._wrong_places import describe
from ._wrong_result import Mask, WrongResult
from ._wrong_values import likeness_of

# Rows up to this position show the frequency of a pair; angles in radians that count as none.
_FURTHEST, _TOLERANCE = 4096, 5e-3


def by_pairs(wrong: WrongResult) -> Iterator[Hypothesis]:
    """Yield the pairs of other frequencies: at this number of pairs, or at any."""
    a, b = wrong.pairs
    off = wrong.mask[..., a] | wrong.mask[..., b]
    pairs = np.flatnonzero(off.any(axis=tuple(range(off.ndim - 1)))).tolist()
    count = len(a)
    # Pairs that have other known values are no rotation by another angle.
    if likeness_of(wrong) is not None or not 0 < len(pairs) < count or not wrong.is_all(_of_length(wrong)):
        return
    if not all(_has_frequency(wrong, pair) for pair in pairs):
        return
    yield _frequencies(tuple(pairs), count)
    if pairs == [*range(pairs[0], count)]:
        yield _frequencies((pairs[0], None), None)
        yield _frequencies((pairs[0] - count, None), None)


def _of_length(wrong: WrongResult) -> Mask:
    """Return the members of pairs that have their right length."""
    a, b = wrong.pairs
    with np.errstate(all="ignore"):
        off = np.hypot(wrong.y[..., a], wrong.y[..., b]) - np.hypot(wrong.exact[..., a], wrong.exact[..., b])
        kept = np.abs(off) <= wrong.limit[..., a]
    mask = np.zeros(wrong.mask.shape, bool)
    mask[..., a] = mask[..., b] = kept
    return mask


def _has_frequency(wrong: WrongResult, pair: int) -> bool:
    """Return whether a pair is rotated by one other frequency: the angles are off by multiples of pos."""
    a, b = (member[pair] for member in wrong.pairs)
    y, exact = (array[..., a] + 1j * array[..., b] for array in (wrong.y, wrong.exact))
    if wrong.row_positions is None:
        return False
    near = wrong.mask[..., a] & (np.abs(wrong.row_positions) <= _FURTHEST) & (wrong.row_positions != 0)
    pos, off = wrong.row_positions[near].astype(float), (y * exact.conj())[near]
    if len(np.unique(pos)) < 2 or np.abs(np.angle(off)).max() < _TOLERANCE:
        return False
    first = int(np.argmin(np.abs(pos)))
    turns = np.arange(-int(np.abs(pos[first])) // 2 - 1, int(np.abs(pos[first])) // 2 + 2)
    tried = (np.angle(off[first]) + 2 * np.pi * turns) / pos[first]
    left = np.abs(np.angle(off * np.exp(-1j * pos * tried[:, None]))).max(axis=-1)
    return bool(left.min() < _TOLERANCE)


def _frequencies(pairs: tuple[Any, ...], count: int | None) -> Hypothesis:
    """Return the hypothesis that pairs have other frequencies, if there are `count` pairs, or any number.

    Negative numbers count from the last pair; (first, None) is every pair from `first` on.
    """
    first = pairs[0] or 0

    def elements(wrong: WrongResult) -> Mask:
        a, b = (np.asarray(member) for member in wrong.pairs)
        mask, index = np.zeros(wrong.mask.shape, bool), np.arange(len(a))
        if count in (None, len(a)):
            start = first + len(a) if first < 0 else first
            chosen = index >= start if count is None else np.isin(index, pairs)
            mask[..., a[chosen]] = mask[..., b[chosen]] = True
        return mask & _of_length(wrong)

    return Hypothesis(_pairs_text(pairs, count), {"pairs": pairs, "num_pairs": count}, elements)


def _pairs_text(pairs: tuple[Any, ...], count: int | None) -> str:
    if count is not None:
        text = describe(np.isin(np.arange(count), pairs)[None]).replace("feature", "pair") + f" of {count}"
        return f"{text} {'has another frequency' if len(pairs) == 1 else 'have other frequencies'}"
    text = f"pairs from {pairs[0]} on" if pairs[0] >= 0 else f"the last {-pairs[0]} pairs"
    return "the last pair has another frequency" if pairs[0] == -1 else f"{text} have other frequencies"
