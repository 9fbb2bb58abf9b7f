"""The trial calls that find a target's claims: how they end, and the first ones with their results."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from ._claims import describe
from ._libraries import ArrayLibrary


class ProcessEnded(RuntimeError):
    """The same trial call ended an earlier process; the message says how."""


class Lost(str):
    """The reason to lack a capability whose trial call ended a process; other claims leave it as it is."""

    __slots__ = ()


class FirstCall(NamedTuple):
    """A call: x and the result in float64, the positions in NumPy, and the fields."""

    dtype: str
    x: np.ndarray
    pos: Any
    spec: dict[str, Any]
    y: np.ndarray


class TrialLog:
    """The trial calls of a target.

    Attributes
    ----------
    announce
        Writes a line before each trial call; None outside of a child process.
    ended
        How trial calls ended earlier processes, by their number as text; they are not made again. "others" is
        the reason to make no others.
    lost
        The capabilities and parts of these calls, with the reason.
    exits
        Exceptions of trial calls that would end the process, such as SystemExit.
    """

    def __init__(self) -> None:
        self.announce: Callable[[str], None] | None = None
        self.ended: Mapping[str, str] = {}
        self.lost: dict[str, str] = {}
        self.exits: list[str] = []
        self._number = 0
        self._first: dict[Any, FirstCall] = {}

    def call(self, lib: ArrayLibrary, rotate: Any, x: Any, pos: Any, spec: Mapping[str, Any]) -> Any:
        """Begin a trial call and make it; keep the first of its dtype, fields and range that succeeds."""
        self.begin(x, pos, spec)
        if isinstance(x, tuple) or "values" in lib.lacks:
            return rotate(x, pos, **spec)
        numbers = np.array(lib.to_numpy(pos)) if lib.owns(pos) else pos
        dtype = lib.dtype_of(x)
        key = (dtype, *sorted(spec), _num_bits(numbers))
        if key in self._first:
            return rotate(x, pos, **spec)
        values = _float64(lib, x)
        y = rotate(x, pos, **spec)
        if lib.owns(y) and tuple(y.shape) == values.shape:
            self._first[key] = FirstCall(dtype, values, numbers, dict(spec), _float64(lib, y))
        return y

    def begin(self, x: Any, pos: Any, spec: Mapping[str, Any]) -> None:
        """Announce a trial call; raise if it ended an earlier process."""
        self._number += 1
        if self.announce is not None:
            self.announce(f"trial {describe(x, pos, spec)}")
        if why := self.ended.get(str(self._number), self.ended.get("others")):
            raise ProcessEnded(why)

    def first_calls(self, claimed: Collection[str]) -> Iterator[FirstCall]:
        """Yield the first calls whose dtype and fields are claimed."""
        for call in self._first.values():
            if {call.dtype, *call.spec} <= set(claimed):
                yield call


def ends_of(target: Any) -> list[str]:
    """Return how trial calls of a target ended a process, or would have ended it."""
    ended = [why for number, why in target.trials.ended.items() if number != "others"]
    return [*ended, *target.trials.exits, *(why for why in target.lacks.values() if isinstance(why, Lost))]


def _num_bits(numbers: Any) -> int:
    """Return the number of bits of the largest position, 10 at least: tables may grow for it."""
    return max([10, *(int(abs(pos)).bit_length() for pos in np.asarray(numbers, dtype=object).flat)])


def _float64(lib: ArrayLibrary, array: Any) -> np.ndarray:
    return lib.to_numpy(array).astype(np.float64)
