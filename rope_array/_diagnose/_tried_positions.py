"""Positions to try: the intended positions, and positions that an implementation may use by mistake."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ._mistakes import mistaken
from ._observation import Observation


class TriedPositions(NamedTuple):
    """Positions as arguments of `apply`, and the code that writes them."""

    pos: NDArray[Any]
    code: str
    seq_axis: int
    coordinates: int = 0  # of each position; 0 for positions that are numbers
    mistake: str = ""
    free: bool = False  # whether the search may add a constant

    def rows(self, observation: Observation) -> NDArray[Any]:
        """Return the position of each row, (N,) or (N, coordinates)."""
        rows = observation.spread(self.pos, self.seq_axis, self.coordinates > 0)
        assert rows is not None
        return rows

    def moved(self, offset: int, on_host: bool) -> "TriedPositions":
        """Add a constant to the positions."""
        if self.code == "0":
            code, mistake = f"{offset}", f"{self.mistake}, the angles of position {offset}"
        else:
            code = (f"[p + {offset} for p in pos]" if on_host else f"pos + {offset}").replace("+ -", "- ")
            mistake = f"the positions are off by {offset}"
        return self._replace(pos=self.pos + offset, code=code, mistake=mistake)


def intended_positions(observation: Observation) -> Iterator[TriedPositions]:
    """Yield the intended positions: as numbers, as coordinates, or both if both line up."""
    pos, seq_axis = observation.pos, observation.seq_axis
    if observation.spread(pos, seq_axis) is not None:
        yield TriedPositions(pos, "pos", seq_axis)
    if observation.coordinates:
        yield TriedPositions(pos, "pos", seq_axis, observation.coordinates)


def mistaken_positions(observation: Observation) -> Iterator[TriedPositions]:
    """Yield positions that an implementation may use by mistake."""
    shape, ndim = observation.shape, len(observation.shape)
    intended_axis = observation.seq_axis % ndim - ndim
    intended = [p for p in intended_positions(observation) if not p.coordinates]
    for positions in intended:
        yield positions._replace(free=True, mistake="the positions are off by a constant")
    for axis in range(-ndim, -1):
        counted = TriedPositions(np.arange(shape[axis]), f"range({shape[axis]})", axis)
        if axis == intended_axis:
            text = "the intended positions are not used: tokens are counted from 0"
            tried = [counted]
        else:
            text = f"positions run along axis {axis} of x, not along axis {intended_axis}"
            tried = [TriedPositions(observation.pos, "pos", axis), counted]
        for positions in tried if observation.pos.ndim else [counted]:
            rows = observation.spread(positions.pos, axis)
            if rows is not None and not any(np.array_equal(rows, p.rows(observation)) for p in intended):
                yield positions._replace(mistake=text)
    text = "the intended positions are not used: all tokens rotate by the same angles"
    yield TriedPositions(np.array(0), "0", observation.seq_axis, mistake=text, free=True)


def mistaken_by_name(positions: TriedPositions, on_host: bool) -> Iterator[TriedPositions]:
    """Yield the positions that the table of mistakes makes of plain positions."""
    for mistake, other in mistaken(positions.pos):
        code = mistake.code.replace("pos", "np.asarray(pos)") if on_host else mistake.code
        yield positions._replace(pos=other, code=code, mistake=f"rotated by {mistake.text}")
