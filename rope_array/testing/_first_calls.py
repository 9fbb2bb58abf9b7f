"""Keep a target's first calls for the check `first_call`: in each dtype, with each set of fields, far on."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from ._libraries import ArrayLibrary


class FirstCall(NamedTuple):
    """A call: x and the result in float64, the positions in NumPy, and the fields."""

    dtype: str
    x: np.ndarray
    pos: Any
    spec: dict[str, Any]
    y: np.ndarray


class FirstCalls:
    """The first calls that were made to find a target's claims."""

    def __init__(self) -> None:
        self._calls: dict[Any, FirstCall] = {}

    def call(self, lib: ArrayLibrary, rotate: Any, x: Any, pos: Any, spec: Mapping[str, Any]) -> Any:
        """Call; keep the numbers if it is the first call of its dtype, fields and range, and succeeds."""
        if isinstance(x, tuple) or "values" in lib.lacks:
            return rotate(x, pos, **spec)
        numbers = np.array(lib.to_numpy(pos)) if lib.owns(pos) else pos
        dtype = lib.dtype_of(x)
        key = (dtype, *sorted(spec), _num_bits(numbers))
        if key in self._calls:
            return rotate(x, pos, **spec)
        values = _float64(lib, x)
        y = rotate(x, pos, **spec)
        if lib.owns(y) and tuple(y.shape) == values.shape:
            self._calls[key] = FirstCall(dtype, values, numbers, dict(spec), _float64(lib, y))
        return y

    def of(self, claimed: Collection[str]) -> Iterator[FirstCall]:
        """Yield the calls whose dtype and fields are claimed."""
        for call in self._calls.values():
            if {call.dtype, *call.spec} <= set(claimed):
                yield call


def _num_bits(numbers: Any) -> int:
    """Return the number of bits of the largest position, 10 at least: tables may grow for it."""
    return max([10, *(int(abs(pos)).bit_length() for pos in np.asarray(numbers, dtype=object).flat)])


def _float64(lib: ArrayLibrary, array: Any) -> np.ndarray:
    return lib.to_numpy(array).astype(np.float64)
