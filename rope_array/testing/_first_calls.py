"""Keep the first call of a target in each dtype and with each set of fields, for the check `first_call`."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from ._libraries import Library


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

    def call(self, lib: Library, rotate: Any, x: Any, pos: Any, spec: Mapping[str, Any]) -> Any:
        """Call; keep the numbers if it is the first call of its dtype and fields, and succeeds."""
        key = None if isinstance(x, tuple) else (lib.dtype_of(x), *sorted(spec))
        if key is None or key in self._calls or "values" in lib.lacks:
            return rotate(x, pos, **spec)
        values = _numbers(lib, x)
        numbers = np.array(lib.to_numpy(pos)) if lib.owns(pos) else pos
        y = rotate(x, pos, **spec)
        if lib.owns(y) and tuple(y.shape) == values.shape:
            self._calls[key] = FirstCall(key[0], values, numbers, dict(spec), _numbers(lib, y))
        return y

    def of(self, claimed: Collection[str]) -> Iterator[FirstCall]:
        """Yield the calls whose dtype and fields are claimed."""
        for call in self._calls.values():
            if {call.dtype, *call.spec} <= set(claimed):
                yield call


def _numbers(lib: Library, array: Any) -> np.ndarray:
    return lib.to_numpy(array).astype(np.float64)
