"""Draw cases until the values of chosen groups of factors have occurred in every combination."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

Made = TypeVar("Made")
Ints = NDArray[np.intp]
# Draws for each case. The valid draw with the most new combinations becomes the case.
_TRIES = 12


def pairs_among(names: Iterable[str]) -> list[tuple[str, ...]]:
    """Return every two of these factors."""
    return list(itertools.combinations(names, 2))


def covering(
    levels: Mapping[str, Sequence[Any]],
    groups: Iterable[tuple[str, ...]],
    make: Callable[[dict[str, Any]], Made | None],
) -> Iterator[Made]:
    """Yield cases until each valid combination of each group's values occurs; the draw is fixed.

    Parameters
    ----------
    levels
        The values of each factor.
    groups
        Names of factors, two or three each, whose values are combined.
    make
        Makes a case of a value for each factor; None if it is not valid.
    """
    draw, names = np.random.default_rng(0), list(levels)
    counts = np.array([len(levels[name]) for name in names])
    chosen = _needed_groups([tuple(names.index(name) for name in group) for group in groups], counts)
    # A combination's number is the offset of its group, plus the index times the weight of each factor.
    sizes = [int(np.prod(counts[[*group]])) for group in chosen]
    offsets = np.cumsum([0, *sizes])
    weights = _weights(chosen, counts)
    missing = np.ones(offsets[-1], dtype=bool)
    for needed in draw.permutation(offsets[-1]).tolist():
        if not missing[needed]:
            continue
        missing[needed] = False
        of_group = int(np.searchsorted(offsets, needed, "right")) - 1
        group = [*chosen[of_group]]
        indices = (draw.random((_TRIES, len(names))) * counts).astype(np.intp)
        indices[:, group] = np.unravel_index(needed - offsets[of_group], counts[group])
        covered = indices @ weights + offsets[:-1]
        for i in np.argsort(-missing[covered].sum(axis=1), kind="stable").tolist():
            made = make({name: levels[name][at] for name, at in zip(names, indices[i], strict=True)})
            if made is not None:
                missing[covered[i]] = False
                yield made
                break


def _weights(groups: Sequence[tuple[int, ...]], counts: Ints) -> Ints:
    """Return the weight of each factor (row) in the number of a combination of each group (column)."""
    weights = np.zeros((len(counts), len(groups)), dtype=np.intp)
    for column, group in enumerate(groups):
        for place, factor in enumerate(group):
            weights[factor, column] = np.prod(counts[[*group[place + 1 :]]], dtype=np.intp)
    return weights


def _needed_groups(groups: Iterable[tuple[int, ...]], counts: Ints) -> list[tuple[int, ...]]:
    """Return the groups without factors of one value, each group once; one group at least."""
    varying = dict.fromkeys(tuple(f for f in group if counts[f] > 1) for group in groups)
    return [group for group in varying if group] or [(0,)]
