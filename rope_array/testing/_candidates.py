"""Explanations that kept results suggest: another rotation, other frequencies, weaker accuracy, an end."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product
from typing import Any

import numpy as np

from ._contract import Accuracy
from ._explanation import Explanation, named
from ._failure import Failure
from ._where import axis_names
from ._wrong_result import Mask, WrongResult

# Rows up to this position show the frequency of a pair; angles in radians that count as none.
_FURTHEST, _TOLERANCE = 4096, 5e-3
# Weaker classes of angles, and the last positions that a claim may leave, the furthest first.
_WEAKER = {"exact": ("float64", "float32"), "float64": ("float32",), "float32": ()}
_ENDS = (2**24, 2**20, 65535, 32767, 4095)
# The definition is judged up to here.
_LEAST_END = 600
# The share of the elements at a place, and of the rows beyond an end, that have to be wrong.
_SHARE = 0.9


def candidates(target: Any, failures: Mapping[str, Failure]) -> Iterator[Explanation]:
    """Yield the explanations that kept results suggest, the most telling first."""
    wrong_results = [failure.wrong for failure in failures.values() if failure.wrong is not None]
    # An accuracy or an end that explains no result of the usual dtype is no cause: float64 may be narrowed.
    narrow = "float64" if {"float32", "float16"} & target.claimed else ""
    judged = [wrong for wrong in wrong_results if wrong.dtype != narrow]
    classes = [each for each in _classes(target) if any(map(each.covers, judged))]
    yield from classes
    for wrong in wrong_results:
        if (name := named(wrong)) is not None and name.facts:
            yield name
    for wrong in wrong_results:
        yield from _by_pairs(wrong)
        yield from _by_axis(wrong, wrong_results)
    if "definition" not in failures:
        yield from (each for each in _ends(target, judged, classes) if any(map(each.covers, judged)))


# ---- places ----


def _by_axis(wrong: WrongResult, wrong_results: list[WrongResult]) -> Iterator[Explanation]:
    """Yield the rows, heads and batches from an index on, if nearly all elements there are wrong.

    An end that moves with the size of x, such as the last tile, has no index: its simplest call names it.
    """
    for axis, name in enumerate(axis_names(wrong.mask.ndim)[:-1]):
        first = _first_along(wrong, axis)
        explanation = _from(name, first, named(wrong))
        covered = [other for other in wrong_results if explanation.covers(other)]
        if (
            first
            and all(_is_full(explanation, other) for other in covered)
            and not any(_moves(name, first, other) for other in wrong_results)
        ):
            yield explanation


def _first_along(wrong: WrongResult, axis: int) -> int:
    """Return the first index along an axis that has wrong elements."""
    places = wrong.places_along(axis)
    chosen = np.moveaxis(wrong.mask, axis, 0).reshape(len(places), -1).any(axis=-1)
    return int(places[chosen.argmax()])


def _moves(name: str, first: int, wrong: WrongResult) -> bool:
    """Return whether another result is wrong from another index on, and has right values as far as that."""
    names = axis_names(wrong.mask.ndim)
    if name not in names:
        return False
    other = _first_along(wrong, names.index(name))
    return other not in (0, first) and _is_full(_from(name, other, named(wrong)), wrong)


def _from(name: str, first: int, value: Explanation | None) -> Explanation:
    def elements(wrong: WrongResult) -> Mask:
        mask, names = wrong.no_elements, axis_names(wrong.mask.ndim)
        if name in names:
            axis = names.index(name)
            np.moveaxis(mask, axis, 0)[wrong.places_along(axis) >= first] = True
        return mask

    plural = "batches" if name == "batch" else f"{name}s"
    place = f"{plural} after the first" if first == 1 else f"{plural} from {first:,} on"
    values = f": {value.text}" if value is not None and not value.facts else ""
    text = f"wrong results in {place}{values}"
    return Explanation(text, elements, {"axis": name, "first": first})


def _is_full(explanation: Explanation, wrong: WrongResult) -> bool:
    """Return whether nearly all elements at a place are wrong, or like the wrong ones."""
    place, value = explanation.elements(wrong), named(wrong)
    alike = wrong.mask if value is None or value.facts else wrong.mask | value.elements(wrong)
    return bool(np.asarray(alike[place]).mean() >= _SHARE)


# ---- pairs of another frequency ----


def _by_pairs(wrong: WrongResult) -> Iterator[Explanation]:
    """Yield the pairs that rotate by another frequency, counted from the first pair, and from the last."""
    a, b = wrong.pairs
    off = wrong.mask[..., a] | wrong.mask[..., b]
    pairs = np.flatnonzero(off.any(axis=tuple(range(off.ndim - 1)))).tolist()
    count = len(a)
    # Pairs that have other known values are no rotation by another angle.
    if named(wrong) is not None or not 0 < 3 * len(pairs) <= count or not wrong.is_all(_of_length(wrong)):
        return
    shifts = [_shift_of(wrong, pair) for pair in pairs]
    if None in shifts:
        return
    yield _frequencies(pairs, count, _pairs_text(wrong, pairs, shifts))
    yield _frequencies([pair - count for pair in pairs], count, _pairs_text(wrong, pairs, shifts))


def _of_length(wrong: WrongResult) -> Mask:
    """Return the members of pairs that have their right length."""
    a, b = wrong.pairs
    with np.errstate(all="ignore"):
        off = np.hypot(wrong.y[..., a], wrong.y[..., b]) - np.hypot(wrong.exact[..., a], wrong.exact[..., b])
        return wrong.of_pairs(np.abs(off) <= wrong.limit[..., a])


def _shift_of(wrong: WrongResult, pair: int) -> float | None:
    """Return a pair's frequency minus the right one: the error of the angle is this times pos."""
    a, b = (member[pair] for member in wrong.pairs)
    y, exact = (array[..., a] + 1j * array[..., b] for array in (wrong.y, wrong.exact))
    if wrong.row_positions is None:
        return None
    near = (np.abs(wrong.row_positions) <= _FURTHEST) & (wrong.row_positions != 0)
    pos, off = wrong.row_positions[near].astype(float), (y * exact.conj())[near]
    if len(np.unique(pos)) < 2 or np.abs(np.angle(off)).max() < _TOLERANCE:
        return None
    first = int(np.argmin(np.abs(pos)))
    turns = np.arange(-int(np.abs(pos[first])) // 2 - 1, int(np.abs(pos[first])) // 2 + 2)
    tried = (np.angle(off[first]) + 2 * np.pi * turns) / pos[first]
    left = np.angle(off * np.exp(-1j * pos * tried[:, None]))
    fits = np.flatnonzero(np.abs(left).max(axis=-1) < _TOLERANCE)
    if not len(fits):
        return None
    best = fits[np.abs(tried[fits]).argmin()]
    return float(tried[best] + (pos * left[best]).sum() / (pos**2).sum())


def _pairs_text(wrong: WrongResult, pairs: list[int], shifts: list[Any]) -> str:
    """Name the pairs with their frequencies, as a base gives the others."""
    count, base = len(wrong.pairs[0]), wrong.fields.get("base") or 10000.0
    if len(pairs) > 2 or any(wrong.fields.get(name) for name in ("inv_freq", "scaling", "axes")):
        noun, verb = (
            ("pair", "has another frequency") if len(pairs) == 1 else ("pairs", "have other frequencies")
        )
        return f"{noun} {', '.join(map(str, pairs))} of {count} {verb}"
    right = [base ** (-pair / count) for pair in pairs]
    sign = -1 if wrong.inverse else 1
    return "; ".join(
        f"pair {pair} of {count} has {omega + sign * shift:.5g}, base {base:g} gives {omega:.5g}"
        for pair, omega, shift in zip(pairs, right, shifts, strict=True)
    )


def _frequencies(pairs: list[int], count: int, text: str) -> Explanation:
    """Return the explanation by pairs of other frequencies; negative pairs count from the last."""

    def elements(wrong: WrongResult) -> Mask:
        number = len(wrong.pairs[0])
        chosen = np.isin(np.arange(number) - (number if pairs[0] < 0 else 0), pairs)
        return wrong.of_pairs(chosen) & _of_length(wrong)

    return Explanation(text, elements, {"pairs": tuple(pairs), "num_pairs": count})


# ---- accuracy, and ends of positions ----


def _classes(target: Any) -> Iterator[Explanation]:
    """Yield weaker classes of accuracy, alone and together."""
    angles = [{"angles": name} for name in _WEAKER[target.angles]]
    arithmetics = [{"arithmetic": "own"}] if target.arithmetic != "own" else []
    together = (a | b for a, b in product(angles, arithmetics))
    yield from (_class(target, claims) for claims in (*angles, *arithmetics, *together))


def _ends(target: Any, wrong_results: list[WrongResult], classes: list[Explanation]) -> Iterator[Explanation]:
    """Yield ends of the positions that are right, with each class and without one.

    The position where the error of float32 angles is too large depends on x: it has round ends only.
    """
    last = min(map(_last_right, wrong_results), default=0)
    is_float32 = target.angles == "float32" or any("angles" in each.claims for each in classes)
    ends = {*_ENDS, *([] if is_float32 else [last])}
    for end in sorted((end for end in ends if _LEAST_END <= end < target.reach), reverse=True):
        yield from (
            _class(target, {**claims, "furthest": end}) for claims in (*(c.claims for c in classes), {})
        )


def _last_right(wrong: WrongResult) -> int:
    """Return the position before the first wrong one; the furthest if that is not known."""
    if wrong.row_positions is None:
        return _ENDS[0]
    return int(np.abs(wrong.row_positions[wrong.mask.any(axis=-1)]).min()) - 1


def with_end(explanation: Explanation, wrong_results: list[WrongResult]) -> Explanation:
    """Return rotation by other positions with the claim to end before, if only positions before are right."""
    last = min(map(_last_right, wrong_results), default=0)
    right = [_right_positions(explanation, wrong) for wrong in wrong_results]
    if "positions" not in explanation.facts or last < _LEAST_END or not any(pos.size for pos in right):
        return explanation
    if any((pos > last).any() for pos in right):
        return explanation
    text = f"{explanation.text} beyond position {last:,}"
    return explanation._replace(text=text, claims={"furthest": last})


def _right_positions(explanation: Explanation, wrong: WrongResult) -> Any:
    """Return the positions of right rows that other positions would rotate otherwise."""
    if wrong.row_positions is None:
        return np.zeros(0)
    rows = ~wrong.mask.any(axis=-1) & ~explanation.elements(wrong).all(axis=-1)
    return np.abs(wrong.row_positions[rows])


def _class(target: Any, claims: Mapping[str, Any]) -> Explanation:
    """Return the explanation by a class of accuracy, by an end of positions, or by both."""
    weaker_fields = {"angles": target.angles, **claims}
    weaker_fields.pop("furthest", None)

    def elements(wrong: WrongResult) -> Mask:
        accuracy = wrong.accuracy or Accuracy()
        weaker = accuracy._replace(**weaker_fields)
        mask = wrong.no_elements if weaker == accuracy else wrong.within(weaker)
        return mask | _beyond(wrong, claims["furthest"], weaker) if "furthest" in claims else mask

    return Explanation(", ".join(_class_texts(claims)), elements, dict(claims), claims)


def _beyond(wrong: WrongResult, end: int, accuracy: Accuracy) -> Mask:
    """Return the rows beyond a position, if nearly all of them have wrong elements, or by float32 angles."""
    rows = np.zeros(wrong.mask.shape[:-1], bool)
    if wrong.row_positions is not None:
        beyond = np.abs(wrong.row_positions) > end
        share = 0.0 if accuracy.angles == "float32" else _SHARE
        if beyond.any() and np.asarray(wrong.mask.any(axis=-1))[beyond].mean() >= share:
            rows = beyond
    return np.broadcast_to(rows[..., None], wrong.mask.shape)


def _class_texts(claims: Mapping[str, Any]) -> Iterator[str]:
    if "angles" in claims:
        yield f"{claims['angles']} angles"
    if "arithmetic" in claims:
        yield "16-bit numbers rotated in their own dtype"
    if "furthest" in claims:
        yield f"wrong results beyond position {claims['furthest']:,}"
