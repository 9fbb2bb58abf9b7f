"""Name the values of wrong elements: unchanged, zeros, another row's, rotated by other positions.

Every claim is compared with all wrong elements; the first that holds is named.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ._definition import apply_definition
from ._where import axis_names, box_of, rows_of_positions

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]

# Rows that are tried first, and the cosines that a comparison with all rows may take.
_SAMPLE = 6
_MOST_COSINES = 20_000


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

    @property
    def pos(self) -> Any:
        """The positions; None if they have several coordinates."""
        return None if self.fields.get("axes") else self.given_pos

    @cached_property
    def limit(self) -> Floats:
        """Twice the largest error allowed in each pair; in each row for the features outside the pairs."""
        limit = np.broadcast_to(self.bound.max(axis=-1, keepdims=True), self.bound.shape).copy()
        a, b = self.pairs
        limit[..., a] = limit[..., b] = np.maximum(self.bound[..., a], self.bound[..., b])
        return 2 * limit

    def near(self, values: Any, limit: Any) -> Mask:
        """Return where the result is `values`, within a limit."""
        with np.errstate(all="ignore"):
            return np.asarray(np.abs(self.y - values) <= limit)

    def is_all(self, values: Mask) -> bool:
        """Return whether a property holds for every wrong element."""
        return bool(values[self.mask].all())


def alike(wrong: Wrong) -> tuple[str, Mask | None]:
    """Return a phrase on the values of the wrong elements, and a mask of all elements like them."""
    for text, values in _values(wrong):
        if wrong.is_all(values):
            return text, values
    if not _is_telling(wrong):
        return "", None
    text, same = _elsewhere(wrong)
    return text, None if same is None else same & box_of(wrong.mask)


def _elsewhere(wrong: Wrong) -> tuple[str, Mask | None]:
    """Compare with multiples, with right values of other places, and with other rotations."""
    for text, values in (*_scaled(wrong), *_moved(wrong)):
        if wrong.is_all(values):
            return text, values
    return _rotated(wrong)


def _is_telling(wrong: Wrong) -> bool:
    """Return whether the errors are so many, and so large, that no other value is near by chance."""
    with np.errstate(all="ignore"):
        errors = (np.abs(wrong.y - wrong.exact) / wrong.bound)[wrong.mask]
    return bool((errors > 32).sum() >= 4)


def _values(wrong: Wrong) -> Iterator[tuple[str, Mask]]:
    yield "NaN", np.isnan(wrong.y)
    yield "infinite", np.isinf(wrong.y)
    yield "equal to x, unchanged", wrong.y == wrong.x
    yield "zeros", wrong.y == 0


def _scaled(wrong: Wrong) -> Iterator[tuple[str, Mask]]:
    """Yield a factor between the result and the right result."""
    with np.errstate(all="ignore"):
        ratios = wrong.y[wrong.mask] / wrong.exact[wrong.mask]
    factor = float(np.median(ratios))
    if np.isfinite(factor) and 1e-6 < abs(factor) < 1e6 and factor != 1:
        text = (
            "the right values negated" if abs(factor + 1) < 1e-6 else f"{factor:.6g} times the right values"
        )
        yield text, wrong.near(factor * wrong.exact, abs(factor) * wrong.limit)


def _moved(wrong: Wrong) -> Iterator[tuple[str, Mask]]:
    """Yield right values at another place: of the other member, another head or another row."""
    a, b = wrong.pairs
    swapped = wrong.exact.copy()
    swapped[..., a], swapped[..., b] = wrong.exact[..., b], wrong.exact[..., a]
    yield "the first and second members exchanged", wrong.near(swapped, wrong.limit)
    for axis, name in enumerate(axis_names(wrong.x.ndim)[:-1]):
        if wrong.x.shape[axis] > 1:
            for shift, which in ((1, "previous"), (-1, "next")):
                rolled = [np.roll(each, shift, axis) for each in (wrong.exact, wrong.limit)]
                yield f"the result of the {which} {name}", wrong.near(*rolled)
            first = [each.take([0], axis) for each in (wrong.exact, wrong.limit)]
            yield f"the result of {name} 0", wrong.near(*first)


# ---- other rotations ----


def _rotated(wrong: Wrong) -> tuple[str, Mask | None]:
    """Return the text of another rotation that gives every wrong element, and a mask of its elements."""
    rows = np.asarray(wrong.mask.any(axis=-1))
    pos = None if wrong.pos is None else rows_of_positions(wrong.pos, rows.shape)
    if pos is not None and pos.dtype.kind != "u":
        for text, other, fields, inverse in _rotations(wrong, pos):
            if (given := _given_by(wrong, rows, other, fields, inverse)) is not None:
                return text, given
    return "", None


def _rotations(
    wrong: Wrong, pos: NDArray[Any]
) -> Iterator[tuple[str, NDArray[Any], Mapping[str, Any], bool]]:
    """Yield a text, positions, fields and direction."""
    text = "rotated forward, not by the inverse" if wrong.inverse else "rotated by the inverse"
    yield text, pos, wrong.fields, not wrong.inverse
    for text, other in _positions(pos):
        if other.shape == pos.shape and not np.array_equal(other, pos):
            yield f"rotated by {text}", other, wrong.fields, wrong.inverse
    for name, value in wrong.fields.items():
        if name == "pairing":
            other_pairing = {"half": "interleaved", "interleaved": "half"}.get(value, value)
            yield (
                f"rotated with {other_pairing} pairing",
                pos,
                {**wrong.fields, name: other_pairing},
                wrong.inverse,
            )
        elif value is not None and not (name == "base" and value == 10000.0):
            fields = {key: one for key, one in wrong.fields.items() if key != name}
            yield f"rotated as without {name}", pos, fields, wrong.inverse


def _positions(pos: NDArray[Any]) -> Iterator[tuple[str, NDArray[Any]]]:
    """Yield other positions, with their texts."""
    yield "pos + 1", pos + 1
    yield "pos - 1", pos - 1
    if pos.ndim and pos.shape[-1] > 1:
        yield "the row's index", np.broadcast_to(np.arange(pos.shape[-1]), pos.shape)
        yield "the position of row 0", np.broadcast_to(pos[..., :1], pos.shape)
        yield "the position of row 0 plus the row's index", pos[..., :1] + np.arange(pos.shape[-1])
        yield "the position of the next row", np.roll(pos, -1, -1)
        yield "the position of the previous row", np.roll(pos, 1, -1)
        yield "sorted positions", np.sort(pos, -1)
    if pos.ndim > 1 and pos.shape[0] > 1:
        yield "the positions of batch 0", np.broadcast_to(pos[:1], pos.shape)
        yield "positions that run along the batch axis", np.swapaxes(pos, 0, -1)
    if pos.ndim == 3 and pos.shape[1] > 1:
        yield "the positions of head 0", np.broadcast_to(pos[:, :1], pos.shape)
        yield "positions that run along the head axis", np.swapaxes(pos, 1, -1)
    yield "|pos|", np.abs(pos)
    yield "-|pos|", -np.abs(pos)
    if pos.dtype.kind == "f":
        yield "pos without its fraction", np.trunc(pos)
    yield "pos modulo 2^24", pos % 2**24
    for kind in ("float32", "float16", "int32", "uint16", "int16", "uint8", "int8"):
        with np.errstate(all="ignore"):
            rounded = pos.astype(kind)
        if np.isfinite(rounded.astype(np.float64)).all():
            yield f"pos converted to {kind}", rounded.astype(pos.dtype)


def _given_by(
    wrong: Wrong, rows: Mask, pos: NDArray[Any], fields: Mapping[str, Any], inverse: bool
) -> Mask | None:
    """Return the elements that a rotation gives, if these are all wrong ones: of some rows, then of all."""
    chosen = np.flatnonzero(rows.ravel())
    some = chosen[:: max(1, len(chosen) // _SAMPLE)][:_SAMPLE]
    mask = wrong.mask.reshape(-1, wrong.x.shape[-1])
    given = _given_in_rows(wrong, some, pos, fields, inverse)
    if given is None or not given[mask[some]].all():
        return None
    if len(np.unique(pos)) * wrong.x.shape[-1] // 2 > _MOST_COSINES:
        return None
    given = _given_in_rows(wrong, np.arange(len(mask)), pos, fields, inverse)
    return given.reshape(wrong.mask.shape) if given is not None and given[mask].all() else None


def _given_in_rows(
    wrong: Wrong, rows: NDArray[np.intp], pos: NDArray[Any], fields: Mapping[str, Any], inverse: bool
) -> Mask | None:
    x, y, limit = (each.reshape(-1, wrong.x.shape[-1])[rows] for each in (wrong.x, wrong.y, wrong.limit))
    try:
        other = apply_definition(x, pos.ravel()[rows], inverse=inverse, **fields)
    except (ValueError, TypeError):
        return None
    with np.errstate(all="ignore"):
        return np.asarray(np.abs(y - other) <= limit)
