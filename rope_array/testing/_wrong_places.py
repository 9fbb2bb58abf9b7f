"""Describe where a result is wrong: which features, rows, heads, batches and positions, in one phrase.

A phrase names sets of indices on the axes of x, or a set of positions. A phrase without "some of", "nearly
all of" or "mostly" is exact: it covers every wrong element and no right element.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ._index_words import LISTED, IndexPhrase, indices_text

Mask = NDArray[np.bool_]
Pairs = tuple[NDArray[np.intp], NDArray[np.intp]]


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


def place_in_any_x(place: str) -> str:
    """Return a place in words that hold for x of other sizes: "the last 2 features"."""
    place = re.sub(r"features? [\d, ]+ \(the last( \d)?\)", r"the last\1 features", place)
    return re.sub(r" of every (row|head|batch)$", "", place).replace("last features", "last feature")


def describe(wrong: Mask, pos: Any = None, *, pairs: Pairs | None = None, alike: Mask | None = None) -> str:
    """Describe the wrong elements of a result.

    Parameters
    ----------
    wrong
        The wrong elements, of shape (lead..., S, d), at least one.
    pos
        The positions, lined up with x as in `apply_definition`; None if they have several coordinates.
    pairs
        The features of each pair in the result.
    alike
        Elements with the same symptom as the wrong ones, such as equality to x. The phrase may cover them.
    """
    if wrong.ndim == 1:
        wrong, alike = wrong[None], None if alike is None else alike[None]
    if alike is not None:
        wrong = wrong | (alike & _box(_grown(wrong, wrong | alike)))
    rows, features = np.asarray(wrong.any(axis=-1)), _along(wrong, wrong.ndim - 1)
    positions = None if pos is None else rows_of_positions(pos, rows.shape)
    row_phrases, covered = _rows_text(rows, positions)
    if np.array_equal(covered[..., None] & features, wrong):
        return _joined_phrases(_features_text(features, pairs), row_phrases, rows.shape)
    features = _hull(features)
    place_mask = covered[..., None] & features
    phrase = _joined_phrases(_features_text(features, pairs), row_phrases, rows.shape)
    return _mostly(wrong, positions, pairs) if place_mask.all() else _of_a_part(wrong, place_mask, phrase)


def _hull(chosen: Mask) -> Mask:
    """Return all indices from the first to the last, if the set would take many words."""
    text = indices_text("", chosen)
    if text.simple and " and " not in text.text:
        return chosen
    return _between(chosen)


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


def _of_a_part(wrong: Mask, place_mask: Mask, phrase: str) -> str:
    count, size = int(wrong.sum()), int(place_mask.sum())
    share = "nearly all" if count >= 0.9 * size else "some"
    return f"{share} of {phrase} ({count:,} of {size:,} there)"


def _mostly(wrong: Mask, positions: NDArray[Any] | None, pairs: Pairs | None) -> str:
    """Describe wrong elements on all axes: the indices where most elements are wrong, if these are most."""
    core = np.ones(wrong.shape, bool)
    for axis in range(wrong.ndim):
        other_axes = tuple(i for i in range(wrong.ndim) if i != axis)
        share = wrong.mean(axis=other_axes, keepdims=True)
        core &= share > 0.5 * share.max()
    covered = int((wrong & core).sum())
    count = int(wrong.sum())
    if core.all() or covered < 0.8 * count or covered < 0.5 * core.sum():
        share = count / wrong.size
        return f"{'nearly all' if share >= 0.9 else 'most' if share > 0.5 else 'scattered'} elements"
    phrase = describe(core, positions, pairs=pairs)
    return f"mostly {phrase} ({covered:,} of {count:,} wrong elements)"


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


def _rows_text(rows: Mask, positions: NDArray[Any] | None) -> tuple[list[str], Mask]:
    """Return phrases of the wrong rows, from rows to batches, and the rows that the phrases cover."""
    names = axis_names(rows.ndim + 1)[:-1]
    sets = [_along(rows, axis) for axis in range(rows.ndim)]
    box = _box(rows)
    lead = [indices_text(name, chosen).text for name, chosen in zip(names[:-1], sets[:-1], strict=True)]
    exact = np.array_equal(box, rows)
    within = np.ix_(*sets[:-1], np.ones(len(sets[-1]), bool))
    at = None if positions is None else _positions_text(positions[within], rows[within])
    rows_phrase = indices_text("row", sets[-1])
    if not exact and at is not None:
        return [at, *filter(None, reversed(lead))], rows
    if exact and rows_phrase.text and at is not None:
        if not rows_phrase.simple:
            rows_phrase = IndexPhrase(at)
        elif "right" not in at or ", " in rows_phrase.text:  # a gap between positions may be a coincidence
            rows_phrase = IndexPhrase(f"{rows_phrase.text} ({at.removesuffix(' only')})")
    return [*filter(None, [rows_phrase.text, *reversed(lead)])], box


def _positions_text(positions: NDArray[Any], wrong: Mask) -> str | None:
    """Return the phrase of the positions of wrong rows; None if a right row has one, or no phrase fits."""
    bad, good = np.unique(positions[wrong]), np.unique(positions[~wrong])
    if not bad.size or not good.size or np.isin(bad, good).any() or np.isnan(positions).any():
        return None
    if good.tolist() == [0]:
        return "every position but 0"
    if bad.size == 1:
        return f"position {_number_text(bad[0])} only"
    if bad.max() < 0 <= good.min():
        return "negative positions"
    return _ends_text(bad, good) or _kinds_text(bad, good)


def _ends_text(bad: NDArray[Any], good: NDArray[Any]) -> str | None:
    """Describe positions beyond a number, or between two."""
    if bad.min() > good.max():
        near = bad.dtype.kind in "iu" and bad.min() - 1 == good.max()
        right_text = "" if near else f", right up to {_number_text(good.max())}"
        return f"positions from {_number_text(bad.min())} on{right_text}"
    if bad.max() < good.min():
        near = bad.dtype.kind in "iu" and bad.max() + 1 == good.min()
        right_text = "" if near else f", right from {_number_text(good.min())} on"
        return f"positions up to {_number_text(bad.max())}{right_text}"
    between = (good > bad.min()) & (good < bad.max())
    if bad.size > LISTED and not between.any():
        return f"positions {_number_text(bad.min())} to {_number_text(bad.max())}"
    if np.abs(bad).min() > np.abs(good).max():
        return f"positions {_number_text(np.abs(bad).min())} or more from 0"
    return None


def _kinds_text(bad: NDArray[Any], good: NDArray[Any]) -> str | None:
    """Describe odd positions, positions with a fraction, or a few positions."""
    is_integer = bad == np.round(bad), good == np.round(good)
    if not is_integer[0].any() and is_integer[1].all():
        return "positions with a fraction"
    if all(flags.all() for flags in is_integer) and bad.size > 1 and good.size > 1:
        for parity, word in ((1, "odd"), (0, "even")):
            if (bad % 2 == parity).all() and (good % 2 != parity).all():
                return f"{word} positions"
    if bad.size <= LISTED:
        return f"positions {', '.join(map(_number_text, bad))}"
    return None


def _number_text(value: Any) -> str:
    return f"{int(value):,}" if value == round(float(value)) else f"{float(value):g}"


# ---- features ----


def _features_text(chosen: Mask, pairs: Pairs | None) -> str:
    """Describe features, by their pairs if that is simpler."""
    features_phrase = indices_text("feature", chosen)
    count = int(chosen.sum())
    if count <= 2 < len(chosen) and chosen[-count:].all():
        return f"{features_phrase.text} (the last{f' {count}' if count > 1 else ''})"
    by_pairs = None if pairs is None or chosen.all() else _pairs_text(chosen, pairs)
    if by_pairs is None or not features_phrase.text:
        return features_phrase.text
    if " and " in features_phrase.text or not features_phrase.simple:
        return f"{by_pairs} ({features_phrase.text})" if features_phrase.simple else by_pairs
    return features_phrase.text


def _pairs_text(chosen: Mask, pairs: Pairs) -> str | None:
    """Describe features as members of pairs; None if that takes more words."""
    first, second = (chosen[member] for member in pairs)
    unrotated = np.setdiff1d(np.arange(len(chosen)), np.concatenate(pairs))
    if chosen[unrotated].any():
        outside = chosen[unrotated].all() and not first.any() and not second.any()
        return "all features outside the rotated slice" if outside else None
    if np.array_equal(first, second):
        phrase = indices_text("pair", first)
        return phrase.text or "all pairs" if phrase.simple else None
    for members, other_members, word in ((first, second, "first"), (second, first, "second")):
        if not other_members.any() and (phrase := indices_text("pair", members)).simple:
            return f"the {word} member{' of ' + phrase.text if phrase.text else 's of all pairs'}"
    return None


def _joined_phrases(features: str, rows: list[str], shape: tuple[int, ...]) -> str:
    """Join phrases: "features 14, 15 of every row", "rows 512 to 599 of every head"."""
    phrases = [*([features] if features else []), *rows]
    if not phrases:
        return "all elements"
    if len(phrases) == 1:
        return phrases[0] + _everywhere(phrases[0], features, shape)
    return (
        f"{phrases[0]} of {', '.join(phrases[1:])}"
        if "position" not in phrases[1][:12]
        else (f"{phrases[0]} at {', '.join(phrases[1:])}")
    )


def _everywhere(phrase: str, features: str, shape: tuple[int, ...]) -> str:
    """Return the axis on which one phrase holds everywhere: " of every row"."""
    if features:
        return " of every row" if np.prod(shape) > 1 else ""
    if phrase.startswith(("row", "every row", "every odd row", "every even row")) and 2 <= len(shape) <= 3:
        names = axis_names(len(shape) + 1)[:-2]
        repeated = [name for name, size in zip(names, shape[:-1], strict=True) if size > 1]
        return f" of every {repeated[-1]}" if repeated else ""
    return ""
