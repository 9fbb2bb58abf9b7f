"""Draw cases until the values of chosen groups of factors have occurred in every combination."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any, TypeVar

Made = TypeVar("Made")
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
    draw, names = random.Random(0), list(levels)
    counts = [len(levels[name]) for name in names]
    chosen = _needed_groups([tuple(names.index(name) for name in group) for group in groups], counts)
    read = [itemgetter(*group, group[0]) for group in chosen]  # a tuple of one factor's value too
    missing = {
        (g, (*values, values[0]))
        for g, group in enumerate(chosen)
        for values in itertools.product(*(range(counts[factor]) for factor in group))
    }
    order = sorted(missing)
    draw.shuffle(order)
    for needed in order:
        if needed not in missing:
            continue
        best: tuple[int, Made | None, set[Any]] = (0, None, set())
        for _ in range(_TRIES):
            indices = [int(draw.random() * count) for count in counts]
            for factor, index in zip(chosen[needed[0]], needed[1], strict=False):
                indices[factor] = index
            new = missing.intersection([(g, values(indices)) for g, values in enumerate(read)])
            if len(new) > best[0]:
                made = make({name: levels[name][i] for name, i in zip(names, indices, strict=True)})
                best = best if made is None else (len(new), made, new)
        missing -= best[2] | {needed}
        if best[1] is not None:
            yield best[1]


def _needed_groups(groups: Iterable[tuple[int, ...]], counts: Sequence[int]) -> list[tuple[int, ...]]:
    """Return the groups without factors of one value, each group once; one group at least."""
    varying = dict.fromkeys(tuple(f for f in group if counts[f] > 1) for group in groups)
    return [group for group in varying if group] or [(0,)]
