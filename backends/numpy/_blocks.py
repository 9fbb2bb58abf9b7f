"""The rotation in plain NumPy, block by block, for machines without the compiled kernel.

A block has as many rows as keep its scratch in the cache, so x is read once and y written once. NumPy starts
an inner loop for each contiguous run that its operands share, and starting a loop costs as much as computing
64 elements. So scratch holds the operands of a whole block, each as one run:

    a slice of each row     | a a . . | a a . . | a a . . |     three loops of two elements
    scratch                 | a a b b | a a b b | a a b b |     one loop of twelve

Interleaved pairs that stay interleaved are complex numbers (see `_Complex`). Every other rotation uses the
products and sums of `rope_array._array_api.pairs`, and has their bits (see `_Halves`).
"""

from collections.abc import Iterator
from itertools import product
from math import prod
from typing import Any

import numpy as np
from numpy.lib.array_utils import byte_bounds

from rope_array._spec.plan import Layout

# Bytes of x, in the dtype of the tables, in one block; scratch has up to five times as many. For 32 heads of
# 2048 positions and 128 features in float32, halves take 7.5 ms with 64 KiB, 6.7 with 128, 6.3 with 192 and
# 256; a copy takes 1.8 to 2.0 ms (NumPy 2.4.6, one core of an AMD EPYC, 2026-11-21).
_BLOCK = 192 * 1024
# Complex numbers: a multiple of the vector length of each of NumPy's loops.
_STEP = 64

Index = tuple[slice, ...]
Shape = tuple[int, ...]


def rotate_in_blocks(x: Any, cos: Any, sin: Any, layout: Layout, out: Any) -> None:
    """Write x, rotated by tables that have x's axes and a column for each pair, into `out`.

    Serves any strides; `out` is x itself or disjoint from it. With cos and sin of exact angles, the largest
    error is n · eps · amplitude · the length of the pair, plus half an ulp of the result. n is 1.6 (float32,
    float64) or 2.1 (16 bits), and 2.5 or 3 with an amplitude other than 1.
    """
    if not layout.num_pairs or not x.size:
        np.copyto(out, x)
        return
    x, cos, sin, out = _in_memory_order(x, cos, sin, out)
    row = 2 * layout.num_pairs * cos.itemsize
    slices = _block_slices(x.shape[:-1], max(1, _BLOCK // row))
    max_shape = tuple(axis[0].stop for axis in slices)
    rotator_type = _Complex if layout.pairing == layout.out_pairing == "interleaved" else _Halves
    rotator = rotator_type(x, out, layout, cos.dtype, max_shape)
    for tables, blocks in _blocks_by_tables(slices, cos.shape):
        c = cos[tables]
        shape = tuple(n if n > 1 else size for n, size in zip(c.shape, max_shape, strict=False))
        rotator.load_tables(c, sin[tables], shape)
        for block in blocks:
            if row < layout.head_dim * cos.itemsize:
                _copy_unrotated(x[block], layout, out[block])
            rotator.rotate_block(block)


def _in_memory_order(x: Any, *arrays: Any) -> tuple[Any, ...]:
    """Order the axes of all arrays by x's strides, so that blocks are contiguous if x is."""
    order = sorted(range(x.ndim - 1), key=lambda axis: -abs(x.strides[axis]))
    return tuple(array.transpose(*order, -1) for array in (x, *arrays))


def _block_slices(shape: tuple[int, ...], rows: int) -> list[list[slice]]:
    """Return the slices of each axis that cut blocks of at most `rows` rows.

    Inner axes stay whole, one axis is cut evenly, outer axes into single indices. Shape (2, 5, 4), 8 rows:

        axis 0    0:1  1:2
        axis 1    0:2  2:4  4:5        two rows of axis 2, which are eight rows of x
        axis 2    0:4
    """
    slices: list[list[slice]] = []
    for size in reversed(shape):
        step = -(-size // -(-size // max(1, rows)))
        slices.insert(0, [slice(at, min(at + step, size)) for at in range(0, size, step)])
        rows = rows // size if step == size else 1
    return slices


def _blocks_by_tables(
    slices: list[list[slice]], shape: tuple[int, ...]
) -> Iterator[tuple[Index, Iterator[Index]]]:
    """Yield each block of tables of a shape, with all blocks of x that it rotates."""
    varies = [size > 1 for size in shape[:-1]]
    full_axis = [slice(None)]
    inner = [full_axis if vary else axis for axis, vary in zip(slices, varies, strict=True)]
    for outer in product(*(axis if vary else full_axis for axis, vary in zip(slices, varies, strict=True))):
        blocks = (
            tuple(o if vary else i for o, i, vary in zip(outer, block, varies, strict=True))
            for block in product(*inner)
        )
        yield outer, blocks


def _copy_unrotated(x: Any, layout: Layout, out: Any) -> None:
    """Copy the features outside the rotated slice. In place, NumPy does nothing."""
    if layout.start:
        np.copyto(out[..., : layout.start], x[..., : layout.start])
    if layout.stop < layout.head_dim:
        np.copyto(out[..., layout.stop :], x[..., layout.stop :])


class _Halves:
    """Products and sums of reals, on rows that hold pairs in halves: y = x·c + u·s.

        x, h      a0  a1 b0 b1 | a0 a1 b0 b1 | ...    rows of a block; h: x gathered or cast in scratch
        c         c0  c1 c0 c1 | ...                  doubled tables: one contiguous run, as x is
        u         b0  b1 a0 a1 | ...                  x with its halves exchanged
        s        -s0 -s1 s0 s1 | ...
        t                                             x·c; also the sum, if y is scattered or cast

    A half is copied as one element of dtype void. So 384 rows of 64 float32 take 5.0 µs, as slices 7.7. A
    product of 384 rows with doubled tables takes 4.9 µs, with tables of one half 11.9 (2026-11-21).
    """

    def __init__(self, x: Any, out: Any, layout: Layout, dtype: Any, max_shape: Shape):
        pairs = layout.num_pairs // layout.blocks
        self.width, self.halves = 2 * layout.num_pairs, (layout.blocks, 2, pairs)
        self.half, self.row = (np.dtype((np.void, n * dtype.itemsize)) for n in (pairs, self.width))
        self.gather, self.scatter = layout.pairing != "half", layout.out_pairing != "half"
        self.output_via_scratch = self.scatter or x.dtype != dtype
        self.input_via_scratch = self.gather or x.dtype != dtype or x.strides[-1] != dtype.itemsize
        self.scratch = np.empty((4 + self.input_via_scratch, prod(max_shape) * self.width), dtype)
        self.shape: Shape | None = None
        x, self.out = (array[..., layout.start : layout.stop] for array in (x, out))
        self.swapped = None if self.input_via_scratch else self._swapped(x)
        self.x = self._by_pairs(x) if self.gather else x
        if self.scatter:
            self.out = self._by_pairs(self.out)

    def _by_pairs(self, array: Any) -> Any:
        """View interleaved pairs with the axes of halves: the layout's blocks, members, pairs."""
        blocks, members, pairs = self.halves
        return array.reshape(*array.shape[:-1], blocks, pairs, members).swapaxes(-1, -2)

    def _by_half(self, array: Any) -> Any:
        """View each half as one element, with the axes blocks, members."""
        return array.view(self.half).reshape(*array.shape[:-1], -1, 2)

    def _swapped(self, array: Any) -> Any:
        """View each half as one element, the second half first."""
        return self._by_half(array)[..., ::-1]

    def _view_scratch(self, shape: Shape) -> None:
        """View scratch in the shape of a block of x. In a smaller block, the tables keep their place."""
        if shape == self.shape:
            return
        self.shape = shape
        views = self.scratch[:, : prod(shape) * self.width].reshape(-1, *shape, self.width)
        self.c, self.s, self.t, self.u = views[:4]
        self.u_halves = self._by_half(self.u)
        self.t_members = self.t.reshape(*shape, *self.halves) if self.scatter else self.t
        if self.input_via_scratch:
            self.h = views[4]
            self.h_swapped = self._swapped(self.h)
            self.h_members = self.h.reshape(*shape, *self.halves) if self.gather else self.h

    def load_tables(self, cos: Any, sin: Any, shape: Shape) -> None:
        """Write (cos, cos) and (-sin, sin) for each row of a block of x."""
        self._view_scratch(shape)
        if cos.shape[:-1] == shape:
            self._double(cos, sin, self.c, self.s)
            return
        # Rows share tables, which have at most half of the block's rows: double them in u and t, then repeat.
        #     u  | cos, cos |     .     |
        #     t  | -sin |  .  | -sin, sin |
        size, doubled = 2 * cos.size, (*cos.shape[:-1], self.width)
        c, s = self.scratch[3, :size].reshape(doubled), self.scratch[2, -size:].reshape(doubled)
        self._double(cos, sin, c, s)
        np.copyto(self.c.view(self.row), c.view(self.row))
        np.copyto(self.s.view(self.row), s.view(self.row))

    def _double(self, cos: Any, sin: Any, c: Any, s: Any) -> None:
        """Write (cos, cos) and (-sin, sin)."""
        minus = np.negative(sin, out=self.scratch[2, : sin.size].reshape(sin.shape))
        cos, sin, minus = (self._as_halves(table) for table in (cos, sin, minus))
        np.copyto(self._by_half(c), cos[..., None])
        s = self._by_half(s)
        np.copyto(s[..., 0], minus)
        np.copyto(s[..., 1], sin)

    def _as_halves(self, table: Any) -> Any:
        """View each half as one element; the tables have one half for each of the layout's blocks."""
        return (table if table.strides[-1] == table.itemsize else table.copy()).view(self.half)

    def rotate_block(self, block: Index) -> None:
        """Rotate one block of x by the tables that were loaded last."""
        x, out = self.x[block], self.out[block]
        self._view_scratch(x.shape[: len(block)])
        if self.swapped is None:
            _copy_rounded(x, self.h_members, self.gather)
            x, swapped = self.h, self.h_swapped
        else:
            swapped = self.swapped[block]
        np.multiply(x, self.c, out=self.t)
        np.copyto(self.u_halves, swapped)
        np.multiply(self.u, self.s, out=self.u)
        np.add(self.t, self.u, out=self.t if self.output_via_scratch else out)
        if self.output_via_scratch:
            _copy_rounded(self.t_members, out, self.scatter)


def _copy_rounded(source: Any, target: Any, by_member: bool) -> None:
    """Copy, rounding to the target's dtype.

    Interleaved members take two copies: in one copy, NumPy's inner loop would have two elements.
    """
    indices = [(..., 0, slice(None)), (..., 1, slice(None))] if by_member else [...]
    for index in indices:
        np.copyto(target[index], source[index], casting="unsafe")


class _Complex:
    """Products of complex numbers, on interleaved pairs: (a + ib)·(c + is).

        x        a0 b0 a1 b1 | a0 b0 a1 b1 | ... |            real and imaginary parts in turn
        table    c0 s0 c1 s1 | c0 s0 c1 s1 | ... |
        scratch  x, if it is no such run         | 0 0 ...    up to a multiple of _STEP numbers

    NumPy's vector loops may fuse a product with the sum; its loops for strided operands, or for one number,
    may not. So the bits differ from the array-api backend's. They do not depend on the block: operands are
    contiguous and their sizes are multiples of each vector length, so one loop of NumPy's computes all.
    """

    def __init__(self, x: Any, out: Any, layout: Layout, dtype: Any, max_shape: Shape):
        self.x, self.out = (array[..., layout.start : layout.stop] for array in (x, out))
        self.dtype = np.result_type(dtype, np.complex64)
        self.num_pairs = layout.num_pairs
        size = -(-prod(max_shape) * self.num_pairs // _STEP) * _STEP
        # A gap before each, as `out` may end where the buffers begin: NumPy 2.0 takes adjacent memory for
        # overlapping memory, and then uses another loop.
        #     | gap | table | gap | scratch |
        buffers = np.zeros((2, _STEP + size), self.dtype)
        self.table, self.scratch = buffers[:, _STEP:]
        ends = ((array.strides[-1], array.flags.aligned) for array in (self.x, self.out))
        runs = x.dtype == dtype and all(end == (dtype.itemsize, True) for end in ends)
        self.direct = runs and _same_or_apart(x, out)

    def load_tables(self, cos: Any, sin: Any, shape: Shape) -> None:
        """Write cos + i·sin for each row of a block of x."""
        table = self.table[: prod(shape) * self.num_pairs].reshape(*shape, self.num_pairs)
        first = table if cos.shape == table.shape else self.scratch[: cos.size].reshape(cos.shape)
        first.real = cos
        first.imag = sin
        if first is not table:
            np.copyto(table, first)

    def rotate_block(self, block: Index) -> None:
        """Rotate one block of x by the tables that were loaded last."""
        x, out = self.x[block], self.out[block]
        size = x.size // 2
        if self.direct and not size % _STEP and x.flags.c_contiguous and out.flags.c_contiguous:
            x, out = (array.reshape(-1).view(self.dtype) for array in (x, out))
            np.multiply(x, self.table[:size], out=out)
            return
        full = -(-size // _STEP) * _STEP
        z = self.scratch[:full]
        z[size:] = 0
        pairs = z[:size].view(self.table.real.dtype).reshape(x.shape)
        np.copyto(pairs, x)
        np.multiply(z, self.table[:full], out=z)
        np.copyto(out, pairs, casting="unsafe")


def _same_or_apart(x: Any, out: Any) -> bool:
    """Return whether two arrays have the same memory, or memory with a gap between."""
    (x_low, x_high), (out_low, out_high) = byte_bounds(x), byte_bounds(out)
    return (x_low, x_high) == (out_low, out_high) or x_high < out_low or out_high < x_low
