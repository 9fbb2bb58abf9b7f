"""The rotation in plain NumPy, block by block: what serves where no compiled kernel was built.

A block is as many rows as keep its scratch in the cache, so x is read once and y written once. NumPy starts
an inner loop for each run of memory that its operands share, and starting one costs as much as computing 64
elements: so what can be is laid out for one loop over a whole block.

From "interleaved" to "interleaved" pairs are complex numbers (see `_Complex`). Every other rotation is done
by the products and sums of `rope_array._array_api.pairs`, whose bits it has (see `_Halves`).
"""

from collections.abc import Iterator
from itertools import product
from math import prod
from typing import Any

import numpy as np
from numpy.lib.array_utils import byte_bounds

from rope_array._spec.plan import Layout

# Bytes of x, in the dtype of the tables, that are turned at once; scratch is at most five times as much. For
# 32 heads of 2048 positions and 128 features, float32, halves take 7.5 ms by 64 KiB, 6.7 by 128, 6.3 by 192
# and by 256, as 1.8 to 2.0 ms take a copy (NumPy 2.4.6, one core of an AMD EPYC, 2026-11-21).
_BLOCK = 192 * 1024
# In complex numbers, a multiple of what any vector loop of NumPy's takes at a time.
_STEP = 64

Index = tuple[slice, ...]
Shape = tuple[int, ...]


def rotate(x: Any, cos: Any, sin: Any, layout: Layout, out: Any) -> None:
    """Write x, rotated by tables that have x's axes and one column per lane, into `out`."""
    if not layout.num_pairs or not x.size:
        np.copyto(out, x)
        return
    x, cos, sin, out = _by_memory(x, cos, sin, out)
    row = 2 * layout.num_pairs * cos.itemsize
    pieces = _pieces(x.shape[:-1], max(1, _BLOCK // row))
    most = tuple(axis[0].stop for axis in pieces)
    form = _Complex if layout.pairing == layout.out_pairing == "interleaved" else _Halves
    work = form(x, out, layout, cos.dtype, most)
    for tables, places in _boxes(pieces, cos.shape):
        c = cos[tables]
        work.load(c, sin[tables], tuple(n if n > 1 else m for n, m in zip(c.shape, most, strict=False)))
        for place in places:
            if row < layout.head_dim * cos.itemsize:
                _copy_rest(x[place], layout, out[place])
            work.turn(place)


def _by_memory(x: Any, *others: Any) -> tuple[Any, ...]:
    """Put the axes in the order in which x lies in memory, so that blocks are runs of it."""
    order = sorted(range(x.ndim - 1), key=lambda axis: -abs(x.strides[axis]))
    return tuple(array.transpose(*order, -1) for array in (x, *others))


def _pieces(shape: tuple[int, ...], rows: int) -> list[list[slice]]:
    """Cut each axis: the last ones not at all while `rows` last, the next evenly, the others into ones."""
    pieces: list[list[slice]] = []
    for size in reversed(shape):
        step = -(-size // -(-size // max(1, rows)))
        pieces.insert(0, [slice(at, min(at + step, size)) for at in range(0, size, step)])
        rows = rows // size if step == size else 1
    return pieces


def _boxes(pieces: list[list[slice]], shape: tuple[int, ...]) -> Iterator[tuple[Index, Iterator[Index]]]:
    """Yield each box of the tables, of this shape, with all boxes of x that it turns."""
    keyed = [size > 1 for size in shape[:-1]]
    whole = [slice(None)]
    inner = [whole if key else axis for axis, key in zip(pieces, keyed, strict=True)]
    for outer in product(*(axis if key else whole for axis, key in zip(pieces, keyed, strict=True))):
        places = (
            tuple(o if key else i for o, i, key in zip(outer, place, keyed, strict=True))
            for place in product(*inner)
        )
        yield outer, places


def _copy_rest(x: Any, layout: Layout, out: Any) -> None:
    """Copy the features outside of the rotated slice; in place NumPy sees that there is nothing to do."""
    if layout.start:
        np.copyto(out[..., : layout.start], x[..., : layout.start])
    if layout.stop < layout.head_dim:
        np.copyto(out[..., layout.stop :], x[..., layout.stop :])


class _Halves:
    """Products and sums of reals, on rows that hold pairs in halves: (a, b)·(c, c) + (b, a)·(-s, s).

    Doubled tables make of a block one run, and halves are moved as single elements of dtype void: 384 rows
    of 64 float32 are doubled in 5.0 µs so, in 7.7 µs as slices, and a product of 384 rows with the doubled
    table takes 4.9 µs, with the other 11.9 µs. Members brought apart, for tables as they are, took 8.3 and
    11.1 ms where this took 7.4 and 7.8 (32 heads of 2048 positions, 128 features; 2026-11-21).
    """

    def __init__(self, x: Any, out: Any, layout: Layout, dtype: Any, most: Shape):
        lanes = layout.num_pairs // layout.blocks
        self.width, self.halves = 2 * layout.num_pairs, (layout.blocks, 2, lanes)
        self.half, self.row = (np.dtype((np.void, n * dtype.itemsize)) for n in (lanes, self.width))
        self.gather, self.scatter = layout.pairing != "half", layout.out_pairing != "half"
        # Read and written where it lies, or by way of a scratch array.
        self.send = self.scatter or x.dtype != dtype
        self.bring = self.gather or x.dtype != dtype or x.strides[-1] != dtype.itemsize
        self.scratch = np.empty((4 + self.bring, prod(most) * self.width), dtype)
        self.shape: Shape | None = None
        x, self.out = (array[..., layout.start : layout.stop] for array in (x, out))
        self.swapped = None if self.bring else self._swapped(x)
        self.x = self._by_pairs(x) if self.gather else x
        if self.scatter:
            self.out = self._by_pairs(self.out)

    def _by_pairs(self, array: Any) -> Any:
        """View interleaved pairs with the axes of halves: blocks, members, lanes."""
        blocks, members, lanes = self.halves
        return array.reshape(*array.shape[:-1], blocks, lanes, members).swapaxes(-1, -2)

    def _by_half(self, array: Any) -> Any:
        """View halves as single elements: blocks, members."""
        return array.view(self.half).reshape(*array.shape[:-1], -1, 2)

    def _swapped(self, array: Any) -> Any:
        """View halves as single elements, exchanged."""
        return self._by_half(array)[..., ::-1]

    def _fit(self, shape: Shape) -> None:
        """Lay the scratch arrays out for a box of x; a smaller one finds the tables of its rows in place."""
        if shape == self.shape:
            return
        self.shape = shape
        fitted = self.scratch[:, : prod(shape) * self.width].reshape(-1, *shape, self.width)
        self.c, self.s, self.t, self.u = fitted[:4]
        self.u_halves = self._by_half(self.u)
        self.sent = self.t.reshape(*shape, *self.halves) if self.scatter else self.t
        if self.bring:
            self.h = fitted[4]
            self.h_swapped = self._swapped(self.h)
            self.brought = self.h.reshape(*shape, *self.halves) if self.gather else self.h

    def load(self, cos: Any, sin: Any, shape: Shape) -> None:
        """Make (c, c) and (-s, s) for each row of a box of x."""
        self._fit(shape)
        if cos.shape[:-1] == shape:
            self._double(cos, sin, self.c, self.s)
            return
        # Fewer rows, half of the box's at most: t holds theirs and what doubling needs.
        size, doubled = 2 * cos.size, (*cos.shape[:-1], self.width)
        c, s = self.scratch[3, :size].reshape(doubled), self.scratch[2, -size:].reshape(doubled)
        self._double(cos, sin, c, s)
        np.copyto(self.c.view(self.row), c.view(self.row))
        np.copyto(self.s.view(self.row), s.view(self.row))

    def _double(self, cos: Any, sin: Any, c: Any, s: Any) -> None:
        """Write (cos, cos) and (-sin, sin) to tables of as many rows."""
        minus = np.negative(sin, out=self.scratch[2, : sin.size].reshape(sin.shape))
        cos, sin, minus = (self._by_lanes(table) for table in (cos, sin, minus))
        np.copyto(self._by_half(c), cos[..., None])
        s = self._by_half(s)
        np.copyto(s[..., 0], minus)
        np.copyto(s[..., 1], sin)

    def _by_lanes(self, table: Any) -> Any:
        """View the lanes of each block as one element."""
        return (table if table.strides[-1] == table.itemsize else table.copy()).view(self.half)

    def turn(self, place: Index) -> None:
        """Turn one box of x by the tables that were loaded last."""
        x, out = self.x[place], self.out[place]
        self._fit(x.shape[: len(place)])
        if self.swapped is None:
            _move(x, self.brought, self.gather)
            x, swapped = self.h, self.h_swapped
        else:
            swapped = self.swapped[place]
        np.multiply(x, self.c, out=self.t)
        np.copyto(self.u_halves, swapped)
        np.multiply(self.u, self.s, out=self.u)
        np.add(self.t, self.u, out=self.t if self.send else out)
        if self.send:
            _move(self.sent, out, self.scatter)


def _move(source: Any, target: Any, by_member: bool) -> None:
    """Copy, rounding to the target's dtype; NumPy would run along the two members, not along the lanes."""
    parts = [(..., 0, slice(None)), (..., 1, slice(None))] if by_member else [...]
    for part in parts:
        np.copyto(target[part], source[part], casting="unsafe")


class _Complex:
    """Products of complex numbers, on interleaved pairs: (a + ib)·(c + is).

    NumPy's vector loops may fuse a product with the sum, and its loops for numbers with gaps, or for one
    number, may not. So the bits are not those of the array-api backend, and for them to be a row's own, one
    loop does all the work: factors and product lie without gaps, in multiples of any vector's length.
    """

    def __init__(self, x: Any, out: Any, layout: Layout, dtype: Any, most: Shape):
        self.x, self.out = (array[..., layout.start : layout.stop] for array in (x, out))
        self.dtype = np.result_type(dtype, np.complex64)
        self.lanes = layout.num_pairs
        size = -(-prod(most) * self.lanes // _STEP) * _STEP
        # With gaps, for `out` too may lie next to the table: NumPy 2.0 takes what touches for what overlaps,
        # and then another loop.
        both = np.zeros((2, _STEP + size), self.dtype)
        self.table, self.scratch = both[:, _STEP:]
        ends = ((array.strides[-1], array.flags.aligned) for array in (self.x, self.out))
        runs = x.dtype == dtype and all(end == (dtype.itemsize, True) for end in ends)
        self.direct = runs and _same_or_apart(x, out)

    def load(self, cos: Any, sin: Any, shape: Shape) -> None:
        """Make c + is for each row of a box of x."""
        table = self.table[: prod(shape) * self.lanes].reshape(*shape, self.lanes)
        first = table if cos.shape == table.shape else self.scratch[: cos.size].reshape(cos.shape)
        first.real = cos
        first.imag = sin
        if first is not table:
            np.copyto(table, first)

    def turn(self, place: Index) -> None:
        """Turn one box of x by the tables that were loaded last."""
        x, out = self.x[place], self.out[place]
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
    """Tell whether two arrays lie in the same memory, or with a gap between them."""
    (x_low, x_high), (out_low, out_high) = byte_bounds(x), byte_bounds(out)
    return (x_low, x_high) == (out_low, out_high) or x_high < out_low or out_high < x_low
