"""Make hypotheses from the wrong results that were kept: by their values, their place and their accuracy.

`_find_causes` accepts the hypothesis that explains most checks, and runs the checks again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product
from typing import Any

import numpy as np

from ._contract import Accuracy
from ._failure import Failure
from ._hypothesis import SHARE, Hypothesis, of_likeness
from ._pair_frequencies import by_pairs
from ._wrong_places import axis_names
from ._wrong_result import Mask, WrongResult
from ._wrong_values import likeness_of

# Weaker classes of angles, and the last positions that a claim may leave, the furthest first.
_WEAKER = {"exact": ("float64", "float32"), "float64": ("float32",), "float32": ()}
_ENDS = (2**24, 2**20, 65535, 32767, 4095)
# The definition is judged up to here.
_LEAST_END = 600


def of_kept_results(faults: Mapping[str, Failure]) -> Iterator[Hypothesis]:
    """Yield the hypotheses that wrong results suggest, the most telling first; each once."""
    hypotheses: dict[str, Hypothesis] = {}
    for make in (_by_values, by_pairs, _by_place):
        for wrong in (fault.wrong for fault in faults.values() if fault.wrong is not None):
            for hypothesis in make(wrong):
                hypotheses.setdefault(hypothesis.text, hypothesis)
    yield from hypotheses.values()


# ---- values ----


def _by_values(wrong: WrongResult) -> Iterator[Hypothesis]:
    """Yield another rotation: by converted positions, without a field, in the other direction."""
    if (like := likeness_of(wrong)) is not None and like.facts is not None:
        yield of_likeness(like)


# ---- places ----


def _by_place(wrong: WrongResult) -> Iterator[Hypothesis]:
    """Yield the place of wrong elements: from an index of an axis on; some features."""
    names = axis_names(wrong.mask.ndim)
    for axis, name in enumerate(names[:-1] if len(names) <= 4 else ()):
        at = np.flatnonzero(_along(wrong.mask, axis))
        first = int(wrong.places_along(axis)[at[0]])
        yield from _exact(wrong, _from(name, first, names[-1]), first)
    features = np.flatnonzero(_along(wrong.mask, -1))
    width, first, last = wrong.mask.shape[-1], int(features[0]), int(features[-1])
    if last == width - 1 and first:
        yield from _exact(wrong, _last_features(width - first), first)
        yield from _exact(wrong, _from("feature", first, names[-1]), first)


def _exact(wrong: WrongResult, place: Hypothesis, first: int) -> Iterator[Hypothesis]:
    """Yield a place if it begins after the first index, and nearly all elements there are wrong."""
    if first and place.explains(Failure(wrong=wrong)):
        like = likeness_of(wrong)
        values = like.text if like is not None and like.facts is None else ""
        yield place._replace(text=f"wrong results in {place.text}{f': {values}' if values else ''}")


def _from(name: str, first: int, feature: str) -> Hypothesis:
    def elements(wrong: WrongResult) -> Mask:
        mask, names = np.zeros(wrong.mask.shape, bool), axis_names(wrong.mask.ndim)
        if name in names:
            axis = names.index(name)
            np.moveaxis(mask, axis, 0)[wrong.places_along(axis) >= first] = True
        return mask

    plural = "batches" if name == "batch" else f"{name}s"
    text = f"{plural} after the first" if first == 1 else f"{plural} from {first:,} on"
    return Hypothesis(text, {"axis": name, "first": first}, elements)


def _last_features(count: int) -> Hypothesis:
    def elements(wrong: WrongResult) -> Mask:
        mask = np.zeros(wrong.mask.shape, bool)
        mask[..., -count:] = True
        return mask

    return Hypothesis(f"the last {count} features", {"axis": "feature", "last": count}, elements)


def _along(mask: Mask, axis: int) -> Mask:
    other_axes = tuple(i for i in range(mask.ndim) if i != axis % mask.ndim)
    return np.asarray(mask.any(axis=other_axes))


# ---- accuracy ----


def of_accuracy(target: Any, faults: Mapping[str, Failure]) -> Iterator[Hypothesis]:
    """Yield weaker classes of accuracy, alone, together, and with fewer positions."""
    angles = [{"angles": name} for name in _WEAKER[target.angles]]
    arithmetics = [{"arithmetic": "own"}] if target.arithmetic != "own" else []
    classes: list[dict[str, Any]] = [*angles, *arithmetics, *(a | b for a, b in product(angles, arithmetics))]
    # A class that explains no result of the usual dtype alone is no cause: float64 may be narrowed.
    narrow = "float64" if {"float32", "float16"} & target.claimed else ""
    judged = [fault for fault in faults.values() if fault.wrong is not None and fault.wrong.dtype != narrow]
    classes = [claims for claims in classes if any(map(_class(target, claims).explains, judged))]
    yield from (_class(target, claims) for claims in classes)
    if "definition" in faults:
        return
    last = min((_last_right(fault) for fault in faults.values()), default=0)
    # The position where the error of float32 angles is too large depends on x: try round ends only.
    ends = {*_ENDS, *([] if target.angles == "float32" else [last])} - {*range(_LEAST_END)}
    for end in sorted(ends, reverse=True):
        for hypothesis in (_class(target, {**claims, "furthest": end}) for claims in (*classes, {})):
            if end < target.reach and any(map(hypothesis.explains, judged)):
                yield hypothesis


def _last_right(fault: Failure) -> int:
    """Return the position before the first wrong one; the furthest if that is not known."""
    wrong = fault.wrong
    if wrong is None or wrong.row_positions is None:
        return _ENDS[0]
    return int(np.abs(wrong.row_positions[wrong.mask.any(axis=-1)]).min()) - 1


def with_end(hypothesis: Hypothesis, faults: Mapping[str, Failure]) -> Hypothesis:
    """Return rotation by other positions with the claim to end before, if smaller positions are right."""
    if "positions" not in hypothesis.facts:
        return hypothesis
    covered = [fault for fault in faults.values() if hypothesis.covers(fault)]
    last = min(map(_last_right, covered), default=0)
    right = [_right_positions(hypothesis, fault.wrong) for fault in covered if fault.wrong is not None]
    if (
        last < _LEAST_END
        or not any(positions.size for positions in right)
        or any((positions > last).any() for positions in right)
    ):
        return hypothesis
    return hypothesis._replace(text=f"{hypothesis.text} beyond position {last:,}", claims={"furthest": last})


def _right_positions(hypothesis: Hypothesis, wrong: WrongResult) -> Any:
    """Return the positions of right rows that other positions would rotate otherwise."""
    if hypothesis.elements is None or wrong.row_positions is None:
        return np.zeros(0)
    rows = ~wrong.mask.any(axis=-1) & ~hypothesis.elements(wrong).all(axis=-1)
    return np.abs(wrong.row_positions[rows])


def _class(target: Any, claims: Mapping[str, Any]) -> Hypothesis:
    def elements(wrong: WrongResult) -> Mask:
        accuracy = wrong.accuracy or Accuracy()
        names = [name for name in ("angles", "arithmetic") if name in claims]
        weaker = accuracy._replace(**{name: claims[name] for name in names})
        mask = np.zeros(wrong.mask.shape, bool) if weaker == accuracy else wrong.within(weaker)
        return mask | _beyond(wrong, claims["furthest"]) if "furthest" in claims else mask

    return Hypothesis(", ".join(class_texts(claims)), dict(claims), elements, claims)


def _beyond(wrong: WrongResult, end: int) -> Mask:
    """Return the rows beyond a position, if nearly all of them have wrong elements, or by float32 angles."""
    rows = np.zeros(wrong.mask.shape[:-1], bool)
    if wrong.row_positions is not None:
        beyond = np.abs(wrong.row_positions) > end
        share = 0.0 if wrong.accuracy and wrong.accuracy.angles == "float32" else SHARE
        off = np.asarray(wrong.mask.any(axis=-1))
        rows = beyond if beyond.any() and off[beyond].mean() >= share else rows
    return np.broadcast_to(rows[..., None], wrong.mask.shape)


def class_texts(claims: Mapping[str, Any]) -> list[str]:
    """Return the texts of a class of accuracy; float32 angles imply a last position."""
    texts = {
        "angles": "{} angles",
        "arithmetic": "16-bit numbers rotated in their own dtype",
        "furthest": "wrong results beyond position {:,}",
    }
    return [
        text.format(claims[name])
        for name, text in texts.items()
        if name in claims and not (name == "furthest" and "angles" in claims)
    ]
