"""Describe where a result is wrong: which features, rows, heads, batches and positions, in one phrase.

A phrase names sets of indices on the axes of x, or a set of positions. A phrase without "some of" or "nearly
all of" is exact: it covers every wrong element and no right element.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Mask = NDArray[np.bool_]
Pairs = tuple[NDArray[np.intp], NDArray[np.intp]]

# Indices and positions are listed up to this number.
_LISTED = 4


class Place(NamedTuple):
    """The place of wrong elements in words, and in words that hold for x of other sizes."""

    text: str
    in_any_x: str


def axis_names(ndim: int) -> tuple[str, ...]:
    """Return the names of the axes (lead..., S, d): "axis 0", "axis 1", ... if x has more than four."""
    lead = ["batch", "head"][: ndim - 2] if ndim <= 4 else [f"axis {i}" for i in range(ndim - 2)]
    return (*lead, "row", "feature")[-ndim:]


def element_text(index: Sequence[Any]) -> str:
    """Name an element: "batch 0, head 1, row 2, feature 3"; by its index if x has more than four axes."""
    names, numbers = axis_names(len(index)), [int(i) for i in index]
    if len(index) > 4:
        return f"index {tuple(numbers)}"
    return ", ".join(f"{name} {i:,}" for name, i in zip(names, numbers, strict=True))


def describe(wrong: Mask, pos: Any = None, *, pairs: Pairs | None = None, alike: Mask | None = None) -> Place:
    """Describe the wrong elements of a result, one at least; `pairs` has the features of each pair.

    Positions line up with x as in `apply_definition`. Elements that are `alike` have the symptom of the wrong
    ones, such as equality to x; the phrase may cover them.
    """
    if wrong.ndim == 1:
        wrong, alike = wrong[None], None if alike is None else alike[None]
    if alike is not None:
        wrong = wrong | (alike & _box(_grown(wrong, wrong | alike)))
    rows, features = np.asarray(wrong.any(axis=-1)), _along(wrong, wrong.ndim - 1)
    row_phrases, covered = _rows_phrases(rows, None if pos is None else rows_of_positions(pos, rows.shape))
    exact = np.array_equal(covered[..., None] & features, wrong)
    features = features if exact else _between(features)
    place = _joined(_features_text(features, pairs), row_phrases, rows.shape)
    return place if exact else _of_a_part(wrong, covered[..., None] & features, place)


def _of_a_part(wrong: Mask, covered: Mask, place: Place) -> Place:
    """Return the share of wrong elements at a place."""
    count, size = int(wrong.sum()), int(covered.sum())
    if covered.all():
        share = "nearly all" if count >= 0.9 * size else "most" if 2 * count > size else "scattered"
        return Place(f"{share} elements", f"{share} elements")
    share = "nearly all" if count >= 0.9 * size else "some"
    return Place(f"{share} of {place.text} ({count:,} of {size:,} there)", f"{share} of {place.in_any_x}")


def _joined(features: tuple[str, str], rows: list[tuple[str, str]], shape: tuple[int, ...]) -> Place:
    """Join phrases: "features 14, 15 of every row", "rows 512 to 599 of every head"."""
    phrases = [phrase for phrase in (features, *rows) if phrase[0]]
    if not phrases:
        return Place("all elements", "all elements")
    text, in_any_x = (_in_order([phrase[i] for phrase in phrases]) for i in range(2))
    is_alone = len(phrases) == 1 and np.prod(shape) > 1
    everywhere = _everywhere(bool(features[0]), bool(rows and rows[0][0]), shape) if is_alone else ""
    return Place(f"{text}{everywhere}", in_any_x)


def _in_order(phrases: list[str]) -> str:
    first, *others = phrases
    at = "at" if others and "position" in others[0][:12] else "of"
    return f"{first} {at} {', '.join(others)}" if others else first


def _everywhere(is_of_features: bool, is_of_rows: bool, shape: tuple[int, ...]) -> str:
    """Return the axis on which one phrase holds everywhere: " of every row"."""
    if is_of_features:
        return " of every row"
    names = axis_names(len(shape) + 1)[:-2]
    repeated = [name for name, size in zip(names, shape[:-1], strict=True) if size > 1]
    return f" of every {repeated[-1]}" if is_of_rows and repeated and len(shape) <= 3 else ""


# ---- sets of indices ----


def _along(mask: Mask, axis: int) -> Mask:
    """Return the indices of an axis at which any element is wrong."""
    return np.asarray(mask.any(axis=tuple(i for i in range(mask.ndim) if i != axis)))


def box_of(wrong: Mask) -> Mask:
    """Return the product of the wrong rows and of all features from the first wrong one to the last."""
    rows = wrong.any(axis=-1, keepdims=True)
    return _box(np.asarray(rows)) & _between(_along(wrong, wrong.ndim - 1))


def _box(mask: Mask) -> Mask:
    """Return the smallest product of index sets that covers a mask."""
    box = np.ones(mask.shape, bool)
    for axis in range(mask.ndim):
        other_axes = tuple(i for i in range(mask.ndim) if i != axis)
        box &= mask.any(axis=other_axes, keepdims=True)
    return box


def _grown(wrong: Mask, alike: Mask) -> Mask:
    """Grow a mask along each axis to all indices, or to those between wrong ones, where all are `alike`."""
    for axis in reversed(range(wrong.ndim)):
        box, chosen = _box(wrong), _along(wrong, axis)
        for extent in (np.ones(len(chosen), bool), _between(chosen)):
            grown = np.expand_dims(extent, [i for i in range(wrong.ndim) if i != axis]) & np.asarray(
                box.any(axis=axis, keepdims=True)
            )
            if alike[grown].all():
                wrong = wrong | grown
                break
    return wrong


def _between(chosen: Mask) -> Mask:
    """Return all indices from the first to the last."""
    first, last = np.flatnonzero(chosen)[[0, -1]]
    index = np.arange(len(chosen))
    return np.asarray((first <= index) & (index <= last))


def indices_text(name: str, chosen: Mask) -> str:
    """Return the phrase of a set of indices: "" for all, their number if they have no simple form."""
    if chosen.all():
        return ""
    noun, many = (name, f"{name}{'es' if name.endswith('ch') else 's'}")
    if name.startswith("axis"):
        return f"{_set_text('index', 'indices', chosen)} of {name}"
    return _set_text(noun, many, chosen)


def _set_text(noun: str, many: str, chosen: Mask) -> str:
    indices, size = np.flatnonzero(chosen), len(chosen)
    runs = np.split(indices, np.flatnonzero(np.diff(indices) > 1) + 1)
    first, count = int(indices[0]), len(indices)
    if count == 1:
        return f"{noun} {first:,}"
    if len(runs) == 1 and indices[-1] == size - 1 and count > 2 - (first == 1):
        return f"{many} after the first" if first == 1 else f"{many} from {first:,} on"
    if count == size - 1 > 2 and len(runs) == 2:
        return f"every {noun} but {int(np.flatnonzero(~chosen)[0]):,}"
    for parity, word in enumerate(("even", "odd")):
        if count > 2 and np.array_equal(chosen, np.arange(size) % 2 == parity):
            return f"every {word} {noun}"
    if count <= _LISTED and len(runs) > 1:
        return f"{many} {', '.join(f'{i:,}' for i in indices.tolist())}"
    if len(runs) <= 3:
        return f"{many} {' and '.join(map(_run_text, runs))}"
    return f"{count:,} of {size:,} {many}"


def _run_text(run: NDArray[np.intp]) -> str:
    first, last = int(run[0]), int(run[-1])
    return f"{first:,} to {last:,}" if len(run) > 2 else ", ".join(f"{i:,}" for i in run.tolist())


# ---- rows ----


def rows_of_positions(pos: Any, rows: tuple[int, ...]) -> NDArray[Any] | None:
    """Return the position of each row; None if positions are no plain numbers or do not line up."""
    try:
        array = np.asarray(pos)
        array = array if array.dtype.kind in "iuf" else array.astype(np.float64)
        if array.ndim:
            gap = len(rows) - array.ndim
            array = array.reshape(*array.shape[:-1], *(1,) * gap, array.shape[-1])
        return np.broadcast_to(array, rows)
    except (ValueError, TypeError, OverflowError):
        return None


def _rows_phrases(rows: Mask, positions: NDArray[Any] | None) -> tuple[list[tuple[str, str]], Mask]:
    """Return phrases of the wrong rows, from rows to batches, and the rows that the phrases cover."""
    names, box = axis_names(rows.ndim + 1)[:-1], _box(rows)
    *sets, last = [_along(rows, axis) for axis in range(rows.ndim)]
    lead = [indices_text(name, chosen) for name, chosen in zip(names[:-1], sets, strict=True)]
    lead_phrases = [(text, text) for text in reversed(lead)]
    within = np.ix_(*sets, np.ones(len(last), bool))
    at = "" if positions is None else _positions_text(positions[within], rows[within])
    if at and not np.array_equal(box, rows):
        return [("", ""), (at, at), *lead_phrases], rows
    text = indices_text("row", last)
    # The last row alone is missed by the tail of a loop. Without positions, x may be a part.
    is_last = positions is not None and last.sum() == 1 and last[-1] and len(last) > 2
    notes = ["the last"] if is_last else []
    notes += [at] if at and np.array_equal(box, rows) else []
    return [(f"{text} ({', '.join(notes)})" if text and notes else text, text), *lead_phrases], box


def _positions_text(positions: NDArray[Any], wrong: Mask) -> str:
    """Return the phrase of the positions of wrong rows; "" if a right row has one, or no phrase fits."""
    bad, good = np.unique(positions[wrong]), np.unique(positions[~wrong])
    if not bad.size or not good.size or np.isin(bad, good).any() or np.isnan(positions).any():
        return ""
    if good.tolist() == [0]:
        return "every position but 0"
    if bad.max() < 0 <= good.min():
        return "negative positions"
    integers = [bool((array == np.round(array)).all()) for array in (bad, good)]
    if integers[1] and not (bad == np.round(bad)).any():
        return "positions with a fraction"
    if bad.size > 1 and bad.min() > good.max():
        near = all(integers) and bad.min() - 1 == good.max()
        return (
            f"positions from {_number(bad.min())} on{'' if near else f', right up to {_number(good.max())}'}"
        )
    if bad.size > _LISTED and not ((good > bad.min()) & (good < bad.max())).any():
        return f"positions {_number(bad.min())} to {_number(bad.max())}"
    for parity, word in enumerate(("even", "odd")):
        if (
            all(integers)
            and min(bad.size, good.size) > 1
            and (bad % 2 == parity).all()
            and (good % 2 != parity).all()
        ):
            return f"{word} positions"
    listed = ", ".join(map(_number, bad))
    return f"position{'s' * (bad.size > 1)} {listed}" if bad.size <= _LISTED else ""


def _number(value: Any) -> str:
    return f"{int(value):,}" if value == round(float(value)) else f"{float(value):g}"


# ---- features ----


def _features_text(chosen: Mask, pairs: Pairs | None) -> tuple[str, str]:
    """Describe features, by their pairs if that is simpler; and in words that hold for other widths."""
    text, count = indices_text("feature", chosen), int(chosen.sum())
    if count <= 2 < len(chosen) and chosen[-count:].all():
        last = f"the last{f' {count}' if count > 1 else ''}"
        return f"{text} ({last})", f"{last} feature{'s' * (count > 1)}"
    if pairs is not None and not chosen.all():
        first, second = (chosen[member] for member in pairs)
        unrotated = np.setdiff1d(np.arange(len(chosen)), np.concatenate(pairs))
        if unrotated.size and np.array_equal(np.flatnonzero(chosen), unrotated):
            text = "all features outside the rotated slice"
        elif (
            np.array_equal(first, second)
            and not chosen[unrotated].any()
            and (" and " in text or " of " in text)
        ):
            text = indices_text("pair", first) or "all pairs"
    return text, text
