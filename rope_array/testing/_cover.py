"""Covers: sets of calls in which the values of chosen groups of factors occur in every combination."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from ._call import is_valid, plain_x, spec_of, views_of
from ._factors import FACTORS, FEW_FIELDS, WIDTH, CallFactors
from ._judge import Judge
from ._named_values import BROADCAST_AXES

T = TypeVar("T")
Ints = NDArray[np.intp]
Levels = Mapping[str, Sequence[Any]]
# Calls that are tried until one with a combination is valid.
_TRIES = 12


class Cover(NamedTuple):
    """A set of calls."""

    # The values of some factors; True for all of a factor's levels, a number for the first ones. The other
    # factors have their plain value.
    levels: Mapping[str, Any]
    groups: Sequence[tuple[str, ...]] = ()  # names of factors, one to three each, whose values are combined
    # Number of calls; each differs from the previous call in one factor. Replaces `groups`.
    walk: int = 0
    # Whether the factors outside the group have their first value: a fast path may be for them.
    alone: bool = False

    def calls(self, j: Judge) -> Iterator[CallFactors]:
        """Yield the calls that a target takes."""
        levels = levels_of(j, self.levels)
        if self.walk:
            return _walk(j, levels, self.walk)
        if self.alone:
            return _alone(j, levels, self.groups)
        return covering(levels, self.groups, lambda values: valid_call(j, values))


def pairs_among(names: Iterable[str]) -> list[tuple[str, ...]]:
    """Return every two of these factors."""
    return list(itertools.combinations(names, 2))


def pairs_of(first: str, *partners: str) -> list[tuple[str, ...]]:
    """Return a factor with each of the others."""
    return [(first, partner) for partner in partners]


def valid_call(j: Judge, values: Mapping[str, Any]) -> CallFactors | None:
    """Return the call of these values, which are claimed; None if they do not go together."""
    call = resolved(j, j.plain.replace(**values))
    return call if is_valid(j, call) else None


def resolved(j: Judge, call: CallFactors) -> CallFactors:
    """Return a call with numbers and names in place of "other", "most", "half_of_it" and "all"."""
    changed: dict[str, Any] = {}
    pairing = call.pairing
    if pairing == "other":
        pairing = changed["pairing"] = other_pairing(j.target.defaults["pairing"])
    if call.out_pairing == "other":
        changed["out_pairing"] = other_pairing(pairing or j.target.defaults["pairing"])
    widths = {"most": call.width - 2, "all": call.width // 2 * 2, "half_of_it": call.width // 4 * 2}
    if call.rotary_dim in widths:
        changed["rotary_dim"] = widths[call.rotary_dim]
    call = call.replace(**changed) if changed else call
    if j.width >= WIDTH:
        return call
    slice_of_16 = {name: getattr(call, name) for name in ("rotary_start", "rotary_dim")}
    fitted = j.fit({name: value for name, value in slice_of_16.items() if value is not None})
    return call.replace(**fitted) if any(fitted.values()) else call


def other_pairing(pairing: str) -> str:
    """Return the pairing that is not this one."""
    return "half" if pairing == "interleaved" else "interleaved"


def levels_of(j: Judge, levels: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Return the values of each factor that a target may take, the plain one first."""
    plain, drawn = j.plain, {}
    for name, chosen in levels.items():
        values = _known_levels(j, name) if isinstance(chosen, bool | int) else chosen
        if not isinstance(chosen, bool) and isinstance(chosen, int):
            values = [value for value in values if _is_claimed(j, name, value)][:chosen]
        default = getattr(plain, name)
        keeps_plain = isinstance(chosen, int) or None in chosen
        values = [*([default] if keeps_plain else []), *(value for value in values if value is not None)]
        if name == "reach":
            reach, depth = j.target.reach, j.target.depth
            values = [
                min(value, reach) if value >= 0 else max(value, -depth)
                for value in values
                if value >= 0 or depth
            ]
        drawn[name] = [value for value in dict.fromkeys(values) if _is_claimed(j, name, value)] or [default]
    return drawn


def _known_levels(j: Judge, name: str) -> Sequence[Any]:
    if name == "layout":  # each library has its own
        views = [layout for layout, _, _ in views_of(j, plain_x(j))] if j.claims("strides") else []
        return [*views, *(BROADCAST_AXES if j.lib.has_strides else ())]
    return FACTORS[name].levels


def _is_claimed(j: Judge, name: str, value: Any) -> bool:
    if value is None or value == getattr(j.plain, name):
        return True
    return j.claims(*FACTORS[name].needs(value))


def _walk(j: Judge, levels: Levels, count: int) -> Iterator[CallFactors]:
    """Yield calls in random order; each differs from the previous call in one factor."""
    draw, call = random.Random(0), j.plain
    names = [name for name, values in levels.items() if len(values) > 1]
    yield call
    for step in range(count if names else 0):
        name = names[step % len(names)]
        value = levels[name][int(draw.random() * len(levels[name]))]
        changed_call = valid_call(j, {**call.values(), name: value})
        if changed_call is not None and changed_call != call:
            yield changed_call
            call = changed_call


def _alone(j: Judge, levels: Levels, groups: Iterable[tuple[str, ...]]) -> Iterator[CallFactors]:
    """Yield every combination of each group's values, with the first value of the other factors."""
    first = {name: values[0] for name, values in levels.items()}
    yielded: set[CallFactors] = set()
    for group in groups:
        for values in itertools.product(*(levels[name] for name in group)):
            call = valid_call(j, {**first, **dict(zip(group, values, strict=True))})
            if call is not None and call not in yielded:
                yielded.add(call)
                yield call


def covering(
    levels: Levels, groups: Iterable[tuple[str, ...]], make: Callable[[dict[str, Any]], T | None]
) -> Iterator[T]:
    """Yield calls until each valid combination of each group's values occurs; the draw is fixed.

    Each call begins with a combination that no call has yet. Every other factor, in random order, gets the
    value that completes the most such combinations (Cohen et al., "The AETG system", IEEE Transactions on
    Software Engineering 23(7), 1997).
    `make` makes a call of a value for each factor; it returns None if the call is not valid.
    """
    names = list(levels)

    def call_of(indices: Ints) -> T | None:
        return make({name: levels[name][at] for name, at in zip(names, indices.tolist(), strict=True)})

    indices_of_groups = [tuple(map(names.index, group)) for group in groups]
    missing = _MissingCombinations(indices_of_groups, [*map(len, levels.values())])
    for group, values in missing.in_random_order():
        if (start := missing.valid_with(group, values, call_of)) is not None:
            indices = missing.improved(start, group, call_of)
            missing.remove(indices)
            new_call = call_of(indices)
            assert new_call is not None
            yield new_call


class _MissingCombinations:
    """The combinations of each group's values that no call has yet.

    A combination's number is the offset of its group, plus the index times the weight of each factor. Calls
    are arrays with the index of each factor's value.
    """

    def __init__(self, groups: Iterable[tuple[int, ...]], counts: Sequence[int]):
        self.counts, self.draw = np.array(counts), np.random.default_rng(0)
        self.groups = _needed_groups(groups, self.counts)
        sizes = [int(np.prod(self.counts[[*group]])) for group in self.groups]
        self.offsets = np.cumsum([0, *sizes])
        self.missing = np.ones(self.offsets[-1], dtype=bool)
        self.weights = _weights(self.groups, self.counts)
        self.groups_with = [np.flatnonzero(row) for row in self.weights]

    def in_random_order(self) -> Iterator[tuple[list[int], Any]]:
        """Yield the group and the indices of each combination that no earlier call has."""
        for needed in self.draw.permutation(len(self.missing)).tolist():
            if self.missing[needed]:
                of_group = int(np.searchsorted(self.offsets, needed, "right")) - 1
                group = [*self.groups[of_group]]
                yield group, np.unravel_index(needed - self.offsets[of_group], self.counts[group])

    def valid_with(self, group: list[int], values: Any, call_of: Callable[[Ints], Any]) -> Ints | None:
        """Return a valid call with a combination: other factors have their first value, or random ones."""
        for tried in range(_TRIES):
            indices: Ints = (self.draw.random(len(self.counts)) * self.counts * (tried > 0)).astype(np.intp)
            indices[group] = values
            if call_of(indices) is not None:
                return indices
        return None

    def improved(self, start: Ints, fixed: list[int], call_of: Callable[[Ints], Any]) -> Ints:
        """Return a valid call in which each factor has the value that completes the most combinations."""
        indices, numbers = start.copy(), self.offsets[:-1].copy()
        unset = (self.weights > 0).sum(axis=0)  # factors of each group that have no value yet

        def give(factor: int) -> None:
            with_it = self.groups_with[factor]
            numbers[with_it] += indices[factor] * self.weights[factor, with_it]
            unset[with_it] -= 1

        for factor in fixed:
            give(factor)
        for factor in self.draw.permutation(len(self.counts)).tolist():
            if factor in fixed:
                continue
            last = self.groups_with[factor][unset[self.groups_with[factor]] == 1]
            options = np.arange(self.counts[factor])[:, None]
            completed = self.missing[numbers[last] + options * self.weights[factor, last]].sum(axis=1)
            for option in np.argsort(-completed - self.draw.random(len(options)) / 2).tolist():
                indices[factor], before = option, indices[factor]
                if option == before or call_of(indices) is not None:
                    break
                indices[factor] = before
            give(factor)
        return indices

    def remove(self, indices: Ints) -> None:
        """Remove the combinations of a call."""
        self.missing[indices @ self.weights + self.offsets[:-1]] = False


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


# ---- every field alone ----


def single_fields(j: Judge, of_any_shape: bool = True) -> list[CallFactors]:
    """Return the plain call and every claimed field alone, of any shape or for one x at positions (S,)."""
    calls = Cover(FEW_FIELDS, [(name,) for name in FEW_FIELDS], alone=True).calls(j)
    return [call for call in calls if of_any_shape or not (call.axes or call.in_tuple or call.seq_axis)]


def field_specs(j: Judge) -> list[dict[str, Any]]:
    """Return no fields, and every claimed field alone at positions of shape (S,), at the usual width."""
    return [spec_of(j, call) for call in single_fields(j, of_any_shape=False)]
