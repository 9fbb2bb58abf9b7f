"""The numbers that GPU kernels take: shared by the Triton kernel of PyTorch and the CUDA kernel of CuPy.

Both kernels read each array as `outer` × `seq` × `heads` rows of features. The axes `outer` and `seq` are the
tokens, which have a position each; `heads` are all rows that share the position of a token, so a kernel
computes cos and sin once for them. All strides are in elements. For contiguous arrays, with the strides of x
and of the positions:

                            outer               seq               heads
    x, positions            size, strides       size, strides     size, stride
    (B, S, H, D), (S,)      B     S·H·D, 0      S     H·D, 1      H     D
    (B, H, S, D), (S,)      1     0, 0          S     D, 1        B·H   S·D       B and H merge
    (B, H, S, D), (B, S)    B     H·S·D, S      S     D, 1        H     S·D

No array library is imported: shapes and strides are plain integers.
"""

from collections.abc import Sequence
from enum import IntEnum
from itertools import product
from typing import Any, NamedTuple

from rope_array._errors import BackendError
from rope_array._spec.plan import Plan, bits_of_floats
from rope_array._spec.shape_rule import paired_axes

Ints = tuple[int, ...]


class Kind(IntEnum):
    """How a kernel gets the angles of a token."""

    SPACED = 0  # positions: start + outer index · outer stride + seq index · seq stride, in 64 bits
    POSITIONS = 1  # positions: integers or floats in memory
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


def is_spaced(values: Any) -> bool:
    """Return whether positions are an int or a range whose numbers all fit into 64 bits."""
    if type(values) is int:
        return -(2**63) <= values < 2**63
    if type(values) is not range:
        return False
    length = (values.stop - values.start) // values.step  # len() raises for 2^63 positions and more
    ends = (length, values.start, values.step, *((values[0], values[-1]) if values else ()))
    return all([-(2**63) <= end < 2**63 for end in ends])


def view_spaced(values: int | range) -> SourceView:
    """Return an int or a range as a kernel reads it."""
    if isinstance(values, range):
        return SourceView(Kind.SPACED, (len(values),), ((values.step,),))
    return SourceView(Kind.SPACED, (), ((),))


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
        """The numbers that two arrays must share to be rotated in one launch."""
        return self.outer, self.seq, self.source, self.source_offsets


class Strided(NamedTuple):
    """An array and its result: the shape, and the strides of both along all axes."""

    shape: Ints
    x: Ints
    y: Ints


class _Axis(NamedTuple):
    """Rows at equal distances.

    Attributes
    ----------
    sizes
        Their number in each array.
    strides
        Their distance in each x and its y, in turn, then in each array of the source.
    """

    sizes: Ints
    strides: Ints


def arrange(arrays: Sequence[Strided], seq_axis: int, source: SourceView) -> list[list[Rows]]:
    """Return for each array of a checked call the launches that rotate it.

    An array has one launch, or several if its strides have more than three axes; none if it is empty. Arrays
    that differ in their heads alone get the same tokens.
    """
    full = [array for array in arrays if 0 not in array.shape]
    together = arrange_together(full, seq_axis, source) if full else []
    if together is None:
        together = [rows for array in full for rows in arrange_together([array], seq_axis, source) or ()]
    launches = iter(together)
    return [[] if 0 in array.shape else next(launches) for array in arrays]


def arrange_together(arrays: Sequence[Strided], seq_axis: int, source: SourceView) -> list[list[Rows]] | None:
    """Return the launches of arrays with the same tokens; None if several of their axes differ in size."""
    if len({len(array.shape) for array in arrays}) > 1:
        return None
    axes = _row_axes(arrays, seq_axis, source)
    first_of_source = 2 * len(arrays)
    tokens = _merged([axis for axis in axes if any(axis.strides[first_of_source:])], len(arrays))
    heads = _merged([axis for axis in axes if not any(axis.strides[first_of_source:])], len(arrays))
    unit = _Axis((1,) * len(arrays), (0,) * (first_of_source + len(source.strides)))
    different = [axis for axis in heads if any([size != axis.sizes[0] for size in axis.sizes])]
    if len(different) > 1:
        return None
    # The axis with the shortest stride is last: neighbours in memory are rotated together.
    seq, head = (tokens or [unit])[-1], (different or heads or [unit])[-1]
    loops = sorted([*tokens[:-1], *(axis for axis in heads if axis is not head)], key=lambda axis: axis.sizes)
    outer = loops.pop() if loops else unit
    return [_launches_of(k, arrays, outer, seq, head, loops) for k in range(len(arrays))]


def _launches_of(
    k: int, arrays: Sequence[Strided], outer: _Axis, seq: _Axis, head: _Axis, loops: list[_Axis]
) -> list[Rows]:
    """Return the launches of array k: one for each index of the axes `loops`, which no launch contains."""
    of_source = range(2 * len(arrays), len(outer.strides))
    x, y = (tuple(axis.strides[2 * k + i] for axis in (outer, seq, head)) for i in (0, 1))
    source = tuple((outer.strides[i], seq.strides[i]) for i in of_source)
    launches = []
    for index in product(*(range(axis.sizes[k]) for axis in loops)):

        def begin(i: int, index: Ints = index) -> int:
            return sum(n * axis.strides[i] for n, axis in zip(index, loops, strict=True))

        begins = (begin(2 * k), begin(2 * k + 1), tuple(map(begin, of_source)))
        launches.append(Rows(outer.sizes[k], seq.sizes[k], head.sizes[k], x, y, source, *begins))
    return launches


def _row_axes(arrays: Sequence[Strided], seq_axis: int, source: SourceView) -> list[_Axis]:
    """Return the axes along which an array has several rows."""
    ndim = len(arrays[0].shape)
    paired = paired_axes(ndim, len(source.shape), seq_axis)
    along = {axis: j for j, axis in enumerate(paired) if source.shape[j] != 1}
    axes = []
    for a in range(ndim - 1):
        sizes = tuple([array.shape[a] for array in arrays])
        if any(size != 1 for size in sizes):
            of_arrays = [strides[a] for array in arrays for strides in (array.x, array.y)]
            of_source = [strides[along[a]] if a in along else 0 for strides in source.strides]
            axes.append(_Axis(sizes, (*of_arrays, *of_source)))
    return axes


def _merged(axes: list[_Axis], count: int) -> list[_Axis]:
    """Sort axes by their strides in the first of `count` arrays; merge neighbours that one stride describes.

    Axes of 2 and of 3 rows with strides 12 and 4 merge, as 3 · 4 = 12: 6 rows with stride 4.
    """
    merged: list[_Axis] = []
    for axis in sorted(axes, key=lambda axis: -abs(axis.strides[0])):
        last = merged[-1] if merged else None
        # Two sizes for each array, of x and y, then the size of the source, which all arrays share.
        lengths = [size for size in axis.sizes for _ in "xy"] + [axis.sizes[0]] * len(
            axis.strides[2 * count :]
        )
        spans = tuple(n * stride for n, stride in zip(lengths, axis.strides, strict=True))
        if last and last.strides == spans:
            sizes = tuple(n * size for n, size in zip(last.sizes, axis.sizes, strict=True))
            merged[-1] = _Axis(sizes, axis.strides)
        else:
            merged.append(axis)
    return merged


def common_alignment(numbers: Sequence[int], itemsize: int) -> int:
    """Return the largest power of two, up to 16 bytes, of elements that divides all of `numbers`."""
    largest = 16 // itemsize
    for number in numbers:
        while number % largest:
            largest //= 2
    return largest


_CAPTURED: list[Any] = []  # constants that CUDA graphs read: a graph does not keep them


def check_capture(words: Any) -> None:
    """Keep a plan's constants, which a CUDA graph that is being captured reads; raise if there are none."""
    if words is None:
        raise BackendError(
            "a CUDA graph is being captured, and the rope's frequencies are not on the GPU yet: copying them "
            "cannot be captured. Make the same call once before the capture."
        )
    if not any(words is kept for kept in _CAPTURED):
        _CAPTURED.append(words)


def plan_rows(plan: Plan) -> list[list[int]]:
    """Return the constants of a plan as rows of 64-bit integers, one number for each pair.

    row 0       ω/2π in units of 2^-64
    rows 1, 2   the upper 64 and the lower 32 bits of ω/2π in units of 2^-96
    row 3       the coordinate that drives the pair
    row 4       the bits of the amplitude as float64
    row 5       the bits of ω in eighths of a turn as float64, for fractions of positions
    """
    count = plan.layout.num_pairs
    upper, lower = plan.turns_q96
    coordinates = plan.coordinates.of_pairs.values if plan.coordinates else (0,) * count
    amplitudes, eighths = (bits_of_amplitude(plan),) * count, bits_of_floats(plan.eighth_turns.values)
    rows = (plan.turns_q64.values, upper.values, lower.values, coordinates, amplitudes, eighths)
    return [[*row] for row in rows]


def bits_of_amplitude(plan: Plan) -> int:
    """Return the bits of a plan's amplitude as float64."""
    (bits,) = bits_of_floats([1.0 if plan.layout.amplitude is None else plan.layout.amplitude])
    return bits
