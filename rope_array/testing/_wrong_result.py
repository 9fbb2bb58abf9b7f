"""A wrong result with its call, to judge it again by other hypotheses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ._definition import apply_definition
from ._where import rows_of_positions

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]

# Rows that are tried first, and the cosines that a comparison with all rows may take.
_SAMPLE = 6
_MOST_COSINES = 20_000
# The most elements kept of a wrong result, and the most indices of each axis of a larger result.
_MOST_KEPT = 2**13
_MOST_INDICES = 12


@dataclass
class WrongResult:
    """A wrong result with its call, to judge it again.

    The rows of all arrays are along the last axis but one.
    """

    # The result, the rotated array, the exact result and the largest allowed errors, in float64.
    y: Floats
    x: Floats
    exact: Floats
    bound: Floats
    mask: Mask  # the wrong elements
    given_pos: Any  # the positions of the call
    pairs: tuple[Any, Any]  # the features of each pair in the result
    # The fields of the definition, and whether x was rotated by the inverse.
    fields: Mapping[str, Any]
    inverse: bool = False
    # As in `assert_contract`.
    dtype: str = "float32"
    accuracy: Any = None
    flushes: bool = True
    allowed: Any = None  # returns the bound of a class of accuracy: see `_contract.allowed`
    # The indices along each axis that were kept; None for all.
    places: tuple[NDArray[np.intp], ...] | None = None
    # The explanation of the values, before rows were left out: see `_explanation.named`.
    named: Any = field(default=False, repr=False)

    @property
    def pos(self) -> Any:
        """The positions; None if they have several coordinates."""
        return None if self.fields.get("axes") else self.given_pos

    @property
    def no_elements(self) -> Mask:
        """A mask of no elements."""
        return np.zeros(self.mask.shape, bool)

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
    def _within(self) -> dict[Any, Mask]:
        return {}

    def within(self, accuracy: Any, dtype: str | None = None) -> Mask:
        """Return which elements are within the bound of another class of accuracy, or of another dtype."""
        key = accuracy, dtype
        if key not in self._within:  # many ends of positions are tried with each class
            self._within[key] = self.near(self.exact, self.bound_of(accuracy, dtype))
        return self._within[key]

    def bound_of(self, accuracy: Any, dtype: str | None = None) -> Floats:
        """Return the largest allowed errors in another class of accuracy, or in another dtype."""
        bound: Floats = self.allowed(
            self.x, dtype or self.dtype, self.fields, exact=self.exact, pos=self.given_pos,
            inverse=self.inverse, flushes=self.flushes, accuracy=accuracy,
        )  # fmt: skip
        return bound

    def near(self, values: Any, limit: Any) -> Mask:
        """Return where the result is `values`, within a limit."""
        with np.errstate(all="ignore"):
            return np.asarray(np.abs(self.y - values) <= limit)

    def is_all(self, values: Mask) -> bool:
        """Return whether a property holds for every wrong element."""
        return bool(values[self.mask].all())

    def of_pairs(self, chosen: Any) -> Mask:
        """Return a mask of both members of pairs: by a mask of pairs, or by one of rows and pairs."""
        mask = self.no_elements
        for member in self.pairs:
            mask[..., member] = chosen
        return mask

    def places_along(self, axis: int) -> NDArray[np.intp]:
        """Return the indices along an axis that were kept."""
        return np.arange(self.mask.shape[axis]) if self.places is None else self.places[axis]

    def thinned(self) -> WrongResult:
        """Return the wrong result with some rows, heads and batches of a large one only."""
        pos = self.row_positions
        if self.mask.size <= _MOST_KEPT or pos is None:
            return self
        lead = np.asarray(self.mask.any(axis=-1))
        kept = [_kept_indices(lead, axis) for axis in range(lead.ndim)]
        chosen = np.ix_(*kept)
        arrays = {name: getattr(self, name)[chosen] for name in ("y", "x", "exact", "bound", "mask")}
        places = (*kept, np.arange(self.mask.shape[-1]))
        return replace(self, **arrays, given_pos=pos[chosen], places=places)

    def without(self, explained: Mask) -> WrongResult:
        """Return the wrong result without elements of a known cause; itself if none or all are left."""
        mask = self.mask & ~explained
        return replace(self, mask=mask, named=False) if mask.any() and (mask != self.mask).any() else self

    # ---- other rotations ----

    def rotated_by(
        self,
        pos: NDArray[Any] | None = None,
        inverse: bool | None = None,
        limit: Floats | None = None,
        **changed: Any,
    ) -> Mask:
        """Return the elements that a rotation by other positions, another direction or other fields gives.

        A field that is None is left out. No elements if a few wrong rows have none: a comparison with all
        rows takes long.
        """
        pos = self.row_positions if pos is None else pos
        if pos is None or pos.shape != self.mask.shape[:-1]:
            return self.no_elements
        fields = {name: value for name, value in {**self.fields, **changed}.items() if value is not None}
        call = {"inverse": self.inverse if inverse is None else inverse, **fields}
        width: int = self.x.shape[-1]
        limits = self.limit if limit is None else limit
        x, y, limit = (array.reshape(-1, width) for array in (self.x, self.y, limits))
        limit = limit.max(axis=-1, keepdims=True)  # other rotations may have other pairs
        mask, rows = self.mask.reshape(-1, width), pos.ravel()
        chosen = np.flatnonzero(mask.any(axis=-1))
        few = chosen[:: max(1, len(chosen) // _SAMPLE)][:_SAMPLE]
        hits = _given(x[few], y[few], limit[few], rows[few], call)
        if not (hits & mask[few]).any() or len(np.unique(pos)) * width // 2 > _MOST_COSINES:
            return self.no_elements
        return _given(x, y, limit, rows, call).reshape(self.mask.shape)


def _given(x: Floats, y: Floats, limit: Floats, pos: NDArray[Any], call: Mapping[str, Any]) -> Mask:
    """Return the elements of y that a rotation of x gives."""
    try:
        rotated = apply_definition(x, pos, **call)
    except (ValueError, TypeError, OverflowError):
        return np.zeros(x.shape, bool)
    with np.errstate(all="ignore"):
        return np.asarray(np.abs(y - rotated) <= limit)


def _kept_indices(lead: Mask, axis: int) -> NDArray[np.intp]:
    """Return indices of an axis: the first and last, the ends of wrong runs, and some between."""
    wrong = np.asarray(lead.any(axis=tuple(i for i in range(lead.ndim) if i != axis)))
    ends = np.flatnonzero(np.diff(wrong))
    count = len(wrong)
    indices = [0, count - 1, *ends[:2], *(ends[:2] + 1), *ends[-2:], *(ends[-2:] + 1)]
    return np.unique([*indices, *np.linspace(0, count - 1, _MOST_INDICES - 4)]).astype(np.intp)
