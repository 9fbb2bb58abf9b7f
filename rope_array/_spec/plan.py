"""Spec and shapes to static integers and index tuples: what the array code needs, and no arrays.

Everything here is hashable plain Python, so that a tracer (jax.jit, torch.compile) takes it as a constant.
"""

from collections.abc import Sequence
from math import pi
from typing import Any, NamedTuple


class Layout(NamedTuple):
    """Where the pairs stand: which slice is rotated, how pairs are laid in it, and the amplitude.

    Pair i of "interleaved" is (2i, 2i+1), of "half" (i, i + d/2), both counted from `start`; the pair is
    read by `pairing` and written by `out_pairing`. Where there are several blocks, the slice is cut into so
    many equal ones, d is the width of one, and lanes go on from block to block. The amplitude is a part of
    cos and sin already; it is kept here because the inverse divides by it twice (once to undo, once because
    it is in the tables). None: it is another at each position and lane.
    """

    head_dim: int
    start: int
    stop: int
    pairing: str
    out_pairing: str
    amplitude: float | None
    blocks: int = 1

    @property
    def lanes(self) -> int:
        return (self.stop - self.start) // 2

    def transposed(self, amplitude: float | None) -> "Layout":
        """Lay out the way back: what was written is read."""
        return self._replace(pairing=self.out_pairing, out_pairing=self.pairing, amplitude=amplitude)


class Coordinates(NamedTuple):
    """Which of a position's coordinates drives each lane.

    Attributes
    ----------
    number
        How many coordinates a position has, along the last axis of positions.
    lanes
        The coordinate of each lane.
    moves
        1.0 for each lane that a coordinate drives and 0.0 for the others; None where all are driven.
    """

    number: int
    lanes: "Constants"
    moves: "Constants | None" = None


class Plan:
    """A spec ready for arrays: its layout, and its frequencies in the forms that the angles take.

    Attributes
    ----------
    layout
        Where the pairs stand.
    coordinates
        Which coordinate drives each lane; None where a position is one number.
    exact
        Whether angles are exact or follow the float32 product.
    frequencies
        ω of each lane, radians per position, as float64.
    words64
        round(ω/2π · 2^64) of each lane, modulo 2^64, as signed 64-bit integers.
    words96
        round(ω/2π · 2^96) modulo 2^96: the upper 64 bits signed, and the lower 32 bits unsigned.
    inverse
        The plan of the inverse rotation.
    native
        What the C++ kernel made of it; None until it is asked for.
    eighths
        ω in eighths of a turn per position, as float64, for the fraction of a float position.
    """

    __slots__ = (
        "_hash",
        "_key",
        "coordinates",
        "eighths",
        "exact",
        "frequencies",
        "inverse",
        "layout",
        "native",
        "words64",
        "words96",
    )

    def __init__(
        self,
        layout: Layout,
        exact: bool,
        frequencies: Sequence[float],
        turns64: Sequence[int],
        turns96: Sequence[int],
        inverse: "Plan | None" = None,
        coordinates: Coordinates | None = None,
    ):
        self.native: Any = None
        self.layout = layout
        self.coordinates = coordinates
        self.exact = exact
        self.frequencies = Constants(frequencies)
        self.eighths = Constants([omega * 4 / pi for omega in frequencies])
        self.words64 = Constants([_signed64(f) for f in turns64])
        self.words96 = (
            Constants([_signed64(f >> 32) for f in turns96]),
            Constants([f & 0xFFFFFFFF for f in turns96]),
        )
        drivers = coordinates and (
            coordinates.number, coordinates.lanes.values, coordinates.moves and coordinates.moves.values
        )  # fmt: skip
        words = (words.values for words in self.words96)
        self._key = (layout, drivers, exact, self.frequencies.values, *words)
        self._hash = hash(self._key)
        self.inverse = inverse or self._way_back(turns64, turns96)

    def _way_back(self, turns64: Sequence[int], turns96: Sequence[int]) -> "Plan":
        """Plan the inverse, a rotation too: by the negative frequencies, from the layout that was written."""
        assert self.layout.amplitude is not None
        layout = self.layout.transposed(1.0 / self.layout.amplitude)
        back = [[-n for n in numbers] for numbers in (self.frequencies.values, turns64, turns96)]
        return Plan(layout, self.exact, back[0], back[1], back[2], self, self.coordinates)

    def __reduce__(self) -> tuple[Any, ...]:
        # Made anew where it is loaded: the hash of a string is another in each process.
        upper, lower = (words.values for words in self.words96)
        turns96 = [u << 32 | w for u, w in zip(upper, lower, strict=True)]
        words = self.words64.values, turns96
        return Plan, (self.layout, self.exact, self.frequencies.values, *words, None, self.coordinates)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Plan) and self._key == other._key


class Constants:
    """Plain numbers, one per lane.

    Attributes
    ----------
    values
        The numbers.
    kept
        What a library whose arrays are host memory made of them, by dtype.
    """

    __slots__ = ("kept", "values")

    def __init__(self, values: Sequence[Any]):
        self.values = tuple(values)
        self.kept: dict[Any, Any] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return Constants, (self.values,)


def _signed64(number: int) -> int:
    """Reduce modulo 2^64 into the range of a signed 64-bit integer."""
    return (number + 2**63) % 2**64 - 2**63
