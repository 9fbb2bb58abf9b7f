"""A wrong result, kept to be judged again, and the name of its values: unchanged, zeros, rotated by pos + 1.

Every name is compared with all wrong elements; the first that holds is given. A name that is a rotation can
be compared with other wrong results, too: it may be the cause of all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ._definition import apply_definition
from ._where import axis_names, box_of, rows_of_positions

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]

# Rows that are tried first, and the cosines that a comparison with all rows may take.
_SAMPLE = 6
_MOST_COSINES = 20_000
# Elements that are kept, and indices of an axis, of a larger result.
_MOST_KEPT = 2**13
_MOST_INDICES = 12
_OTHER_PAIRING = {"half": "interleaved", "interleaved": "half"}


class Likeness(NamedTuple):
    """Values that the wrong elements have.

    Attributes
    ----------
    text
        The values in words.
    elements
        Returns the elements of a wrong result that have them.
    facts
        Of a rotation by other positions or fields, or in another direction: which, as data.
    """

    text: str
    elements: Callable[[Wrong], Mask]
    facts: Mapping[str, Any] | None = None


@dataclass
class Wrong:
    """A wrong result, and the call that it is of: all that is needed to judge it again.

    The rows of all arrays are along the last axis but one.

    Attributes
    ----------
    y, x, exact, bound
        The result, the rotated array, the exact result and the largest allowed errors, in float64.
    mask
        The wrong elements.
    given_pos
        The positions of the call.
    pairs
        The features of each pair in the result.
    fields, inverse
        The fields of the definition, and whether x was rotated by the inverse.
    dtype, accuracy, flushes
        As in `assert_contract`.
    given
        The names of the fields that the call gave; the others are the target's.
    places
        The indices along each axis that were kept; None for all.
    """

    y: Floats
    x: Floats
    exact: Floats
    bound: Floats
    mask: Mask
    given_pos: Any
    pairs: tuple[Any, Any]
    fields: Mapping[str, Any]
    inverse: bool = False
    dtype: str = "float32"
    accuracy: Any = None
    flushes: bool = True
    given: frozenset[str] = frozenset()
    places: tuple[NDArray[np.intp], ...] | None = None

    @property
    def pos(self) -> Any:
        """The positions; None if they have several coordinates."""
        return None if self.fields.get("axes") else self.given_pos

    @cached_property
    def row_positions(self) -> NDArray[Any] | None:
        """The position of each row, signed; None if there is no one number for each."""
        pos = None if self.pos is None else rows_of_positions(self.pos, self.mask.shape[:-1])
        return pos.astype(np.int64) if pos is not None and pos.dtype.kind == "u" else pos

    @cached_property
    def limit(self) -> Floats:
        """Twice the largest error allowed in each pair; in each row for the features outside the pairs."""
        limit = np.broadcast_to(self.bound.max(axis=-1, keepdims=True), self.bound.shape).copy()
        a, b = self.pairs
        limit[..., a] = limit[..., b] = np.maximum(self.bound[..., a], self.bound[..., b])
        return 2 * limit

    @cached_property
    def likeness(self) -> Likeness | None:
        """The values of the wrong elements, if they have a name."""
        return next((one for one in _likenesses(self) if self.is_all(one.elements(self))), None)

    def take_away(self, mask: Mask) -> None:
        """Leave out wrong elements that have a known cause."""
        self.mask = self.mask & ~mask
        vars(self).pop("likeness", None)

    def near(self, values: Any, limit: Any) -> Mask:
        """Return where the result is `values`, within a limit."""
        with np.errstate(all="ignore"):
            return np.asarray(np.abs(self.y - values) <= limit)

    def is_all(self, values: Mask) -> bool:
        """Return whether a property holds for every wrong element."""
        return bool(values[self.mask].all())

    def places_along(self, axis: int) -> NDArray[np.intp]:
        """Return the indices along an axis that were kept."""
        return np.arange(self.mask.shape[axis]) if self.places is None else self.places[axis]

    def thinned(self) -> Wrong:
        """Return some of the rows, heads and batches of a large result, and what its values are like."""
        pos = self.row_positions
        if self.mask.size <= _MOST_KEPT or pos is None:
            return self
        lead = self.mask.any(axis=-1)
        kept = [_telling(lead, axis) for axis in range(lead.ndim)]
        chosen = np.ix_(*kept)
        arrays = {name: getattr(self, name)[chosen] for name in ("y", "x", "exact", "bound", "mask")}
        thin = replace(self, **arrays, given_pos=pos[chosen],
                       places=(*kept, np.arange(self.mask.shape[-1])))  # fmt: skip
        thin.likeness = self.likeness
        return thin


def _telling(lead: Mask, axis: int) -> NDArray[np.intp]:
    """Return indices of an axis: the first and last ones, the ends of runs of wrong ones, some between."""
    wrong = lead.any(axis=tuple(i for i in range(lead.ndim) if i != axis))
    ends = np.flatnonzero(np.diff(wrong))
    count = len(wrong)
    some = [0, count - 1, *ends[:2], *(ends[:2] + 1), *ends[-2:], *(ends[-2:] + 1)]
    return np.unique([*some, *np.linspace(0, count - 1, _MOST_INDICES - 4)]).astype(np.intp)


def alike(wrong: Wrong) -> tuple[str, Mask | None]:
    """Return a phrase on the values of the wrong elements, and a mask of all elements like them."""
    found = wrong.likeness
    if found is None:
        return "", None
    same = found.elements(wrong)
    return found.text, same if found in _SIMPLE else same & box_of(wrong.mask)


# ---- values ----

_SIMPLE = (
    Likeness("NaN", lambda wrong: np.isnan(wrong.y)),
    Likeness("infinite", lambda wrong: np.isinf(wrong.y)),
    Likeness("equal to x, unchanged", lambda wrong: wrong.y == wrong.x),
    Likeness("zeros", lambda wrong: wrong.y == 0),
)


def _likenesses(wrong: Wrong) -> Iterator[Likeness]:
    """Yield names of values: of any element; multiples; right values of other places; other rotations."""
    yield from _SIMPLE
    if _is_telling(wrong):
        yield from _scaled(wrong)
        yield from _moved(wrong)
        if wrong.row_positions is not None:
            yield from _rotations(wrong)


def _is_telling(wrong: Wrong) -> bool:
    """Return whether the errors are so many, and so large, that no other value is near by chance."""
    with np.errstate(all="ignore"):
        errors = (np.abs(wrong.y - wrong.exact) / wrong.bound)[wrong.mask]
    return bool((errors > 32).sum() >= 4)


def _scaled(wrong: Wrong) -> Iterator[Likeness]:
    """Yield a factor between the result and the right result."""
    with np.errstate(all="ignore"):
        ratios = wrong.y[wrong.mask] / wrong.exact[wrong.mask]
    factor = float(np.median(ratios))
    if np.isfinite(factor) and 1e-6 < abs(factor) < 1e6 and factor != 1:
        text = f"{factor:.4g} times the right values"
        text = "the right values negated" if abs(factor + 1) < 1e-6 else text
        yield Likeness(text, lambda one: one.near(factor * one.exact, abs(factor) * one.limit))


def _moved(wrong: Wrong) -> Iterator[Likeness]:
    """Yield right values at another place: of the other member, another head or another row."""
    a, b = wrong.pairs
    swapped = wrong.exact.copy()
    swapped[..., a], swapped[..., b] = wrong.exact[..., b], wrong.exact[..., a]
    yield _with_values("the first and second members exchanged", swapped, wrong.limit)
    for axis, name in enumerate(axis_names(wrong.x.ndim)[:-1]):
        if wrong.x.shape[axis] > 1:
            for shift, which in ((1, "previous"), (-1, "next")):
                rolled = [np.roll(each, shift, axis) for each in (wrong.exact, wrong.limit)]
                yield _with_values(f"the result of the {which} {name}", *rolled)
            first = [each.take([0], axis) for each in (wrong.exact, wrong.limit)]
            yield _with_values(f"the result of {name} 0", *first)


def _with_values(text: str, values: Floats, limit: Floats) -> Likeness:
    return Likeness(text, lambda one: one.near(values, limit))


# ---- other rotations ----


def _rotations(wrong: Wrong) -> Iterator[Likeness]:
    """Yield the rotations by other positions or fields, or in the other direction, that a call may be."""
    yield OTHER_DIRECTION._replace(
        text="rotated forward, not by the inverse" if wrong.inverse else "rotated by the inverse"
    )
    pos = wrong.row_positions
    for text, other in _POSITIONS.items():
        if pos is not None and (given := other(pos)) is not None and not np.array_equal(given, pos):
            yield by_positions(text)
    for name, value in wrong.fields.items():
        if name == "pairing":
            yield with_fields(f"with {_OTHER_PAIRING.get(value, value)} pairing", name)
        elif value is not None and not (name == "base" and value == 10000.0):
            yield with_fields(f"as without {name}", name)


def by_positions(text: str) -> Likeness:
    """Return the rotation by other positions, which a key of `_POSITIONS` names."""
    return Likeness(
        f"rotated by {text}",
        lambda wrong: rotated_by(wrong, pos=_POSITIONS[text]),
        {"positions": text},
    )


def with_fields(text: str, name: str) -> Likeness:
    """Return the rotation by the other pairing, or without another field."""

    def elements(wrong: Wrong) -> Mask:
        fields = {key: value for key, value in wrong.fields.items() if key != name}
        if name == "pairing":
            fields[name] = _OTHER_PAIRING.get(wrong.fields.get(name, ""), "half")
        elif wrong.fields.get(name) is None:
            return np.zeros(wrong.mask.shape, bool)
        return rotated_by(wrong, fields=fields)

    return Likeness(f"rotated {text}", elements, {"field": name})


def _rounded(kind: str) -> Callable[[NDArray[Any]], NDArray[Any] | None]:
    """Return a function that converts positions to another dtype, and back."""

    def convert(pos: NDArray[Any]) -> NDArray[Any] | None:
        with np.errstate(all="ignore"):
            rounded = pos.astype(kind)
        return rounded.astype(pos.dtype) if np.isfinite(rounded.astype(np.float64)).all() else None

    return convert


def _of_rows(other: Callable[[NDArray[Any]], Any]) -> Callable[[NDArray[Any]], NDArray[Any] | None]:
    """Return a function of positions of which a row has several; None for others."""
    return lambda pos: np.broadcast_to(other(pos), pos.shape) if pos.ndim and pos.shape[-1] > 1 else None


def _of_axis(axis: int, ndim: int, other: Callable[[NDArray[Any]], Any]) -> Callable[..., NDArray[Any] | None]:
    """Return a function of positions that have several batches or heads; None for others."""

    def moved(pos: NDArray[Any]) -> NDArray[Any] | None:
        if pos.ndim < ndim or pos.shape[axis] < 2 or (given := other(pos)).shape[-1] not in (1, pos.shape[-1]):
            return None
        return np.broadcast_to(given, pos.shape) if given.ndim == pos.ndim else None

    return moved


# Other positions that code may use, by their name.
_POSITIONS: dict[str, Callable[[NDArray[Any]], NDArray[Any] | None]] = {
    "pos + 1": lambda pos: pos + 1,
    "pos - 1": lambda pos: pos - 1,
    "the row's index": _of_rows(lambda pos: np.arange(pos.shape[-1])),
    "the position of row 0": _of_rows(lambda pos: pos[..., :1]),
    "the position of row 0 plus the row's index": _of_rows(lambda pos: pos[..., :1] + np.arange(pos.shape[-1])),
    "the position of the next row": _of_rows(lambda pos: np.roll(pos, -1, -1)),
    "the position of the previous row": _of_rows(lambda pos: np.roll(pos, 1, -1)),
    "sorted positions": _of_rows(lambda pos: np.sort(pos, -1)),
    "the positions of batch 0": _of_axis(0, 2, lambda pos: pos[:1]),
    "positions that run along the batch axis": _of_axis(0, 2, lambda pos: np.swapaxes(pos, 0, -1)),
    "the positions of head 0": _of_axis(1, 3, lambda pos: pos[:, :1]),
    "positions that run along the head axis": _of_axis(1, 3, lambda pos: np.swapaxes(pos, 1, -1)),
    "|pos|": np.abs,
    "-|pos|": lambda pos: -np.abs(pos),
    "pos without its fraction": lambda pos: np.trunc(pos) if pos.dtype.kind == "f" else None,
    "pos modulo 2^24": lambda pos: pos % 2**24,
    **{
        f"pos converted to {kind}": _rounded(kind)
        for kind in ("float32", "float16", "int32", "uint16", "int16", "uint8", "int8")
    },
}


def rotated_by(
    wrong: Wrong,
    pos: Callable[[NDArray[Any]], NDArray[Any] | None] | None = None,
    fields: Mapping[str, Any] | None = None,
    inverse: bool | None = None,
) -> Mask:
    """Return the elements that a rotation by other positions, fields or direction gives.

    None if no wrong row of a few has only such elements: a comparison with all rows takes long.
    """
    none = np.zeros(wrong.mask.shape, bool)
    given = wrong.row_positions
    other = given if pos is None or given is None else pos(given)
    if other is None or other.shape != none.shape[:-1]:
        return none
    width = none.shape[-1]
    arrays = [each.reshape(-1, width) for each in (wrong.x, wrong.y, wrong.limit, wrong.mask)]
    call = {"fields": wrong.fields if fields is None else fields,
            "inverse": wrong.inverse if inverse is None else inverse}  # fmt: skip
    chosen = np.flatnonzero(arrays[3].any(axis=-1))
    some = chosen[:: max(1, len(chosen) // _SAMPLE)][:_SAMPLE]
    found = _given_in_rows([each[some] for each in arrays], other.ravel()[some], **call)
    if not (found & arrays[3][some]).any() or len(np.unique(other)) * width // 2 > _MOST_COSINES:
        return none
    return _given_in_rows(arrays, other.ravel(), **call).reshape(none.shape)


OTHER_DIRECTION = Likeness(
    "rotated by the inverse", lambda wrong: rotated_by(wrong, inverse=not wrong.inverse), {"inverse": True}
)


def _given_in_rows(arrays: list[Any], pos: NDArray[Any], fields: Mapping[str, Any], inverse: bool) -> Mask:
    x, y, limit = arrays[:3]
    try:
        other = apply_definition(x, pos, inverse=inverse, **fields)
    except (ValueError, TypeError, OverflowError):
        return np.zeros(x.shape, bool)
    with np.errstate(all="ignore"):
        return np.asarray(np.abs(y - other) <= limit)
