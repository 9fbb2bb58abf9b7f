"""Numbers that the GPU kernels take: shared by the Triton kernel of PyTorch and the CUDA kernel of CuPy.

Both kernels see each array as `outer` × `seq` × `heads` rows of features. The axes `outer` and `seq` are the
tokens, which have a position each; `heads` are all rows that share the position of a token, so a kernel
computes cos and sin once for them. All strides are in elements.

No array library is imported: shapes and strides are plain integers.
"""

import struct
from collections.abc import Sequence
from enum import IntEnum
from itertools import product
from typing import NamedTuple

from rope_array._spec.plan import Plan
from rope_array._spec.shape_rule import paired_axes

Ints = tuple[int, ...]


class Kind(IntEnum):
    """How a kernel gets the angles of a token."""

    SPACED = 0  # positions: start + outer index · outer stride + seq index · seq stride, in 64 bits
    POSITIONS = 1  # positions: integers in memory
    TABLES = 2  # cos and sin in memory, in the compute dtype, the pairs contiguous


class SourceView(NamedTuple):
    """Positions or tables as a kernel reads them.

    Attributes
    ----------
    kind
        How a kernel gets the angles.
    shape
        The shape of the positions, without coordinates or pairs.
    strides
        The strides of each array along `shape`: one for positions, two for cos and sin. For spaced
        positions, the steps from a position to the next.
    """

    kind: Kind
    shape: Ints
    strides: tuple[Ints, ...]


class Rows(NamedTuple):
    """The rows of one array, for one launch.

    Attributes
    ----------
    outer, seq, heads
        Number of rows along each axis; `outer` and `seq` are the tokens.
    x, y
        The strides of x and of the result along these three axes.
    source
        The strides of each array of the source along `outer` and `seq`.
    x_offset, y_offset, source_offsets
        Where the launch begins in each array.
    """

    outer: int
    seq: int
    heads: int
    x: Ints
    y: Ints
    source: tuple[Ints, ...]
    x_offset: int
    y_offset: int
    source_offsets: Ints

    @property
    def tokens(self) -> tuple[object, ...]:
        """The facts that two arrays must share to be rotated in one launch."""
        return self.outer, self.seq, self.source, self.source_offsets


class _Axis(NamedTuple):
    """Rows at equal distances: their number, and strides in x, in y and in each array of the source."""

    size: int
    strides: Ints


def arrange(shape: Ints, x_strides: Ints, y_strides: Ints, seq_axis: int, source: SourceView) -> list[Rows]:
    """Return the launches for an array of a checked call: one, unless its strides have more than three axes.

    `shape` and strides are those of all axes; the last, the features, is left out of the rows.
    """
    if 0 in shape:
        return []
    axes = _row_axes(shape, x_strides, y_strides, seq_axis, source)
    tokens = _merged([axis for axis in axes if any(axis.strides[2:])])
    heads = _merged([axis for axis in axes if not any(axis.strides[2:])])
    one = _Axis(1, (0,) * (2 + len(source.strides)))
    # The axis with the shortest stride is last: neighbours in memory are rotated together.
    seq, head = (tokens or [one])[-1], (heads or [one])[-1]
    rest = sorted([*tokens[:-1], *heads[:-1]], key=lambda axis: axis.size)
    outer = rest.pop() if rest else one
    launches = []
    for index in product(*(range(axis.size) for axis in rest)):
        offsets = [
            sum(i * axis.strides[k] for i, axis in zip(index, rest, strict=True))
            for k in range(2 + len(source.strides))
        ]
        x, y = (tuple(axis.strides[k] for axis in (outer, seq, head)) for k in (0, 1))
        others = tuple((outer.strides[k], seq.strides[k]) for k in range(2, 2 + len(source.strides)))
        launches.append(
            Rows(outer.size, seq.size, head.size, x, y, others, offsets[0], offsets[1], tuple(offsets[2:]))
        )
    return launches


def _row_axes(
    shape: Ints, x_strides: Ints, y_strides: Ints, seq_axis: int, source: SourceView
) -> list[_Axis]:
    """Return the axes of the rows that have more than one row."""
    paired = paired_axes(len(shape), len(source.shape), seq_axis)
    along = {axis: j for j, axis in enumerate(paired) if source.shape[j] != 1}
    axes = []
    for a, size in enumerate(shape[:-1]):
        if size != 1:
            of_source = [strides[along[a]] if a in along else 0 for strides in source.strides]
            axes.append(_Axis(size, (x_strides[a], y_strides[a], *of_source)))
    return axes


def _merged(axes: list[_Axis]) -> list[_Axis]:
    """Sort axes by their strides in x, and merge neighbours that are one axis in every array."""
    found: list[_Axis] = []
    for axis in sorted(axes, key=lambda axis: -abs(axis.strides[0])):
        last = found[-1] if found else None
        if last and last.strides == tuple([stride * axis.size for stride in axis.strides]):
            found[-1] = _Axis(last.size * axis.size, axis.strides)
        else:
            found.append(axis)
    return found


def common_alignment(numbers: Sequence[int], itemsize: int) -> int:
    """Return the largest power of two, up to 16 bytes, of elements that divides all of `numbers`."""
    largest = 16 // itemsize
    for number in numbers:
        while number % largest:
            largest //= 2
    return largest


def plan_words(plan: Plan) -> list[list[int]]:
    """Return the constants of a plan as rows of 64-bit integers, one number for each pair.

    The rows: ω/2π in units of 2^-64; the upper 64 and the lower 32 bits of ω/2π in units of 2^-96; the
    coordinate that drives the pair; the bits of the amplitude as float64.
    """
    count = plan.layout.num_pairs
    upper, lower = plan.turns_q96
    coordinates = plan.coordinates.of_pairs.values if plan.coordinates else (0,) * count
    amplitude = 1.0 if plan.layout.amplitude is None else plan.layout.amplitude
    (bits,) = struct.unpack("<q", struct.pack("<d", amplitude))
    rows = (plan.turns_q64.values, upper.values, lower.values, coordinates, (bits,) * count)
    return [[*row] for row in rows]
