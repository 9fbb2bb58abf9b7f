"""Spec and shapes to static integers and index tuples: what the array code needs, and no arrays.

Everything here is hashable plain Python, so that a tracer (jax.jit, torch.compile) takes it as a constant.
"""

from collections.abc import Sequence
from math import pi
from typing import Any, NamedTuple

from ._errors import ShapeError, short


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


def sequence_axis(ndim: int, seq_axis: int) -> int:
    """Return `seq_axis` of an x of `ndim` axes counted from the front; -1 where x is a single vector."""
    if seq_axis.__class__ is int and -ndim <= seq_axis < -1:
        return seq_axis + ndim
    return _checked_axis(ndim, seq_axis)


def _checked_axis(ndim: int, seq_axis: Any) -> int:
    if not hasattr(seq_axis, "__index__"):
        raise ShapeError(
            f"seq_axis is {short(seq_axis)}; give an int: the axis of x along which positions run."
        )
    axis = seq_axis + ndim if seq_axis < 0 else seq_axis
    if 0 <= axis < ndim - 1:
        return int(axis)
    if ndim == 1 and seq_axis == -2:
        return -1
    if ndim == 1:
        raise ShapeError(
            f"seq_axis is {seq_axis}, and x has 1 axis, a single vector's; give x a sequence axis, or leave "
            "seq_axis out."
        )
    raise ShapeError(
        f"seq_axis is {seq_axis}, for an x of {ndim} axes whose last holds the features; "
        f"give an axis from {-ndim} to -2, or from 0 to {ndim - 2}."
    )


def placement(ndim: int, pos_ndim: int, axis: int) -> tuple[tuple[int, ...] | None, tuple[Any, ...]]:
    """Say how a table of positions, shape pos.shape + (lanes,), is laid along x's `ndim` axes.

    Returns
    -------
    order
        The permutation of the table's axes that comes first, None where there is none to do.
    index
        The index that then gives the table all of x's axes, those that positions do not cover of size 1.
    """
    if pos_ndim == 0:
        return None, (None,) * (ndim - 1) + (...,)
    if pos_ndim == 1 and axis == ndim - 2:
        return None, (None,) * axis + (...,)
    covered = _covered(ndim, pos_ndim, axis)
    index = (*(slice(None) if a in covered else None for a in range(ndim - 1)), ...)
    if covered == sorted(covered):
        return None, index
    order = sorted(range(pos_ndim), key=covered.__getitem__)
    return (*order, pos_ndim), index


def without_coordinates(shape: tuple[Any, ...], plan: Plan) -> tuple[Any, ...]:
    """Return the shape of positions without the axis of their coordinates, whose number is checked."""
    if plan.coordinates is None:
        return shape
    count = plan.coordinates.number
    if shape and shape[-1] == count:
        return shape[:-1]
    text = (
        f"pos has the shape {_shape(shape)}; the rope's axes take {count} coordinates for each position, "
        f"along pos's last axis: give it the shape (..., {count})."
    )
    if shape and shape[0] == count and len(shape) > 1:
        raise ShapeError(f"{text} Move pos's first axis, of size {count}, to the end.")
    raise ShapeError(
        f"{text} Where all coordinates are equal, as of text, repeat each position {count} times."
    )


def covered_axes(ndim: int, pos_ndim: int, seq_axis: int) -> tuple[int, ...]:
    """Return the axis of x that each axis of positions pairs with, by the shape rule."""
    return tuple(_covered(ndim, pos_ndim, sequence_axis(ndim, seq_axis))) if pos_ndim else ()


def _covered(ndim: int, pos_ndim: int, axis: int) -> list[int]:
    lead = [a for a in range(ndim - 1) if a != axis]
    return [*lead[: pos_ndim - 1], axis]


def check_line_up(shape: tuple[Any, ...], pos_shape: tuple[Any, ...], seq_axis: int) -> None:
    """Check the shape rule between x and positions.

    The rule: of x's axes without the last, `seq_axis` moved to the end, (lead..., S), the last pairs with
    the last axis of pos and the lead axes, in order, with its others; each size is equal or 1.
    """
    axis = sequence_axis(len(shape), seq_axis)
    if pos_shape and not _lines_up(shape, pos_shape, axis):
        raise ShapeError(_misfit(shape, pos_shape, seq_axis, axis))


def _lines_up(shape: tuple[Any, ...], pos_shape: tuple[Any, ...], axis: int) -> bool:
    if len(pos_shape) >= len(shape) or not _pairs(pos_shape[-1], shape[axis]):
        return False
    if len(pos_shape) == 1:
        return True
    lead = _covered(len(shape), len(pos_shape), axis)[:-1]
    return all(_pairs(have, shape[a]) for have, a in zip(pos_shape[:-1], lead, strict=True))


def _pairs(have: Any, want: Any) -> bool:
    # A size that is not known yet (nan in dask, None in the standard) is checked where it is: in the chunk.
    return have == want or have == 1 or unknown(have) or unknown(want)


def unknown(size: Any) -> bool:
    """Tell whether an axis's size is not known yet."""
    return size is None or size != size


def _misfit(shape: tuple[Any, ...], pos_shape: tuple[Any, ...], seq_axis: int, axis: int) -> str:
    ndim = len(shape)
    lead = [f"axis {a} ({shape[a]})" for a in range(ndim - 1) if a != axis]
    sequence = f"the sequence, axis {axis} ({shape[axis]})" if axis >= 0 else "no sequence axis"
    text = (
        f"pos of shape {_shape(pos_shape)} does not line up with x of shape {_shape(shape)} and "
        f"seq_axis={seq_axis}. pos's last axis pairs with {sequence}"
    )
    text += f", its others in order with {', '.join(lead)}; each size must be equal or 1." if lead else "."
    fits = [a - ndim for a in range(ndim - 1) if a != axis and _lines_up(shape, pos_shape, a)]
    if fits:
        return f"{text} It would fit with {' or '.join(f'seq_axis={a}' for a in fits)}."
    wanted = [shape[a] for a in range(ndim - 1) if a != axis] + ([shape[axis]] if axis >= 0 else [])
    forms = [_shape(wanted[i:]) for i in (len(wanted) - 1, 0) if wanted]
    accepted = " or ".join(dict.fromkeys([*reversed(forms)])) if len(wanted) > 1 else "".join(forms[:1])
    return f"{text} Give pos a scalar" + (
        f", or the shape {accepted}, or a size 1 in any place." if wanted else "."
    )


def _shape(shape: Sequence[Any]) -> str:
    return f"({', '.join(map(str, shape))}{',' if len(shape) == 1 else ''})"
