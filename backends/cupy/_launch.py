"""Launches of the CUDA kernel: which rows, how many threads, and the arguments. See rotate.cu."""

from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import cupy
import numpy as np

from rope_array._backends._gpu import Kind, Rows, SourceView, arrange, common_alignment, plan_words
from rope_array._spec.plan import Layout, Plan

_DTYPES = {"float32": "Float32", "float64": "Float64", "float16": "Float16", "bfloat16": "BFloat16"}
_SPACED, _INT32, _INT64, _TABLES = range(4)  # rotate.cu's Source
_NO_ARRAY = (0,) * 11
# Heads of a thread. A pair of 16 bits takes 12 instructions in each head, and at most 160 once, for cos and
# sin and addresses (counted in the compiled code): with eight heads 32, of the 76 that an H100 has time for
# while it copies. If that gives fewer threads than _MANY_THREADS, about 500 for each multiprocessor of an
# H100, too few accesses are on their way, so each thread takes fewer heads.
_HEADS_PER_THREAD = (8, 4, 2, 1)
_MANY_THREADS = 2**16
_MAX_THREADS = 128  # of a block; rotate.cu has it too
_MAX_BLOCKS_Y, _MAX_THREADS_Z = 2**16 - 1, 64  # limits of CUDA


class Angles(NamedTuple):
    """A source as the kernel reads it.

    Attributes
    ----------
    view
        Its shape, and strides in elements.
    arrays
        The arrays that the kernel reads: the positions, or cos and sin.
    first
        The first of spaced positions.
    plan
        The plan, for positions.
    """

    view: SourceView
    arrays: tuple[Any, ...] = ()
    first: int = 0
    plan: Plan | None = None


class _Piece(NamedTuple):
    """Rows of one array, for one launch."""

    rows: Rows
    arguments: tuple[int, ...]  # rotate.cu's Array
    wide: bool
    in_place: bool


def rotate(both: Sequence[tuple[Any, Any]], angles: Angles, layout: Layout, seq_axis: int) -> None:
    """Rotate arrays of one dtype, each into its result, on the current device and stream."""
    dtype, itemsize = both[0][0].dtype.name, both[0][0].itemsize
    wide = _is_wide_layout(layout, 16 // itemsize)
    launches: dict[Any, list[_Piece]] = {}
    for x, y in both:
        for piece in _pieces(x, y, angles, seq_axis, wide):
            launches.setdefault((piece.wide, piece.rows.tokens), []).append(piece)
    for pieces in launches.values():
        for i in range(0, len(pieces), 2):
            _launch(pieces[i : i + 2], dtype, itemsize, angles, layout)


def strides(x: Any) -> tuple[int, ...]:
    """Return the strides of an array in elements."""
    return tuple([stride // x.itemsize for stride in x.strides])


def is_aligned(x: Any) -> bool:
    """Return whether every element is at a multiple of its size."""
    return not any(number % x.itemsize for number in (x.data.ptr, *x.strides))


def _is_wide_layout(layout: Layout, unit: int) -> bool:
    """Return whether rotated slices, and what is around them, consist of units of 16 bytes."""
    numbers = [layout.start, layout.stop, layout.head_dim]
    if layout.num_pairs and "half" in (layout.pairing, layout.out_pairing):
        numbers.append(layout.num_pairs // layout.blocks)
    return not any(number % unit for number in numbers)


def _pieces(x: Any, y: Any, angles: Angles, seq_axis: int, wide_layout: bool) -> Iterator[_Piece]:
    x_strides, y_strides, itemsize = strides(x), strides(y), x.itemsize
    x_feature, y_feature = (s[-1] if x.shape[-1] > 1 else 1 for s in (x_strides, y_strides))
    for rows in arrange(x.shape, x_strides, y_strides, seq_axis, angles.view):
        addresses = (x.data.ptr + rows.x_offset * itemsize, y.data.ptr + rows.y_offset * itemsize)
        numbers = [address // itemsize for address in addresses] + [*rows.x, *rows.y]
        wide = wide_layout and x_feature == y_feature == 1
        wide = wide and common_alignment(numbers, itemsize) == 16 // itemsize
        wide = wide and _has_wide_tables(angles, rows)
        arguments = (*addresses, rows.heads, *rows.x, x_feature, *rows.y, y_feature)
        yield _Piece(rows, arguments, wide, addresses[0] == addresses[1])


def _has_wide_tables(angles: Angles, rows: Rows) -> bool:
    if angles.view.kind != Kind.TABLES:
        return True
    for table, steps, offset in zip(angles.arrays, rows.source, rows.source_offsets, strict=True):
        numbers = [table.data.ptr // table.itemsize + offset, *steps]
        if common_alignment(numbers, table.itemsize) != 16 // table.itemsize:
            return False
    return True


def _launch(pieces: list[_Piece], dtype: str, itemsize: int, angles: Angles, layout: Layout) -> None:
    """Launch the kernel for one or two arrays that share their tokens and the width of accesses."""
    rows = pieces[0].rows
    reads_half, writes_half = (p == "half" for p in (layout.pairing, layout.out_pairing))
    wide = pieces[0].wide
    flags = (wide, reads_half, writes_half, angles.view.kind == Kind.TABLES)
    unit = 16 // itemsize if wide else 1
    pairs_of_thread = unit // 2 if wide and not (reads_half or writes_half) else unit
    unrotated = layout.head_dim - 2 * layout.num_pairs
    copies = unrotated > 0 and not all(piece.in_place for piece in pieces)
    groups = layout.num_pairs // pairs_of_thread + (unrotated // unit if copies else 0)
    if not groups:
        return
    heads = sum(piece.rows.heads for piece in pieces)
    grid, block, heads_per_thread = configure(rows.outer * rows.seq, heads, groups)
    arguments = (
        *pieces[0].arguments,
        *(pieces[1].arguments if len(pieces) > 1 else _NO_ARRAY),
        *(rows.outer, rows.seq, heads_per_thread),
        *(layout.head_dim, layout.start, layout.num_pairs, layout.num_pairs // layout.blocks, copies),
        *_source_arguments(angles, rows),
        0,  # CuPy records no gradients, so nothing asks for the transposed rotation
    )
    members = np.array(arguments, dtype=np.int64)
    # CuPy passes a NumPy array by value if it has a single element.
    call = members.view(f"V{members.nbytes}")
    _kernel(kernel_name(dtype, flags))(grid, block, (call,))


def configure(tokens: int, heads: int, groups: int) -> tuple[tuple[int, int], tuple[int, int, int], int]:
    """Return the grid, the block, and the heads of a thread.

    `groups` is the number of threads for all features of a row.
    """
    most = next((h for h in _HEADS_PER_THREAD if tokens * groups * -(-heads // h) >= _MANY_THREADS), 1)
    chunks = min(-(-heads // most), _MAX_BLOCKS_Y)
    heads_per_thread = -(-heads // chunks)
    chunks = -(-heads // heads_per_thread)
    x = -(-groups // -(-groups // _MAX_THREADS))
    y = min(tokens, _MAX_THREADS // x)
    z = min(chunks, _MAX_THREADS // (x * y), _MAX_THREADS_Z)
    return (-(-tokens // y), -(-chunks // z)), (x, y, z), heads_per_thread


def _source_arguments(angles: Angles, rows: Rows) -> tuple[int, ...]:
    """Return the members of rotate.cu's Call from `source` to `scaled`."""
    kind, plan = angles.view.kind, angles.plan
    if plan is None:
        cos, sin = (
            table.data.ptr + offset * table.itemsize
            for table, offset in zip(angles.arrays, rows.source_offsets, strict=True)
        )
        return (_TABLES, *(0,) * 7, cos, sin, *rows.source[0], *rows.source[1], 0, 0, 0)
    scaled = plan.layout.amplitude not in (None, 1.0)
    ends = (*(0,) * 6, _words(plan).data.ptr, plan.coordinates is not None, scaled)
    (steps,), (offset,) = rows.source, rows.source_offsets
    if kind == Kind.SPACED:
        return (_SPACED, *map(_signed64, (angles.first + offset, *steps)), *(0,) * 4, *ends)
    (pos,) = angles.arrays
    coordinate = strides(pos)[-1] if plan.coordinates is not None else 0
    source = _INT32 if pos.itemsize == 4 else _INT64
    return (source, 0, 0, 0, pos.data.ptr + offset * pos.itemsize, *steps, coordinate, *ends)


def _words(plan: Plan) -> Any:
    """Return a plan's constants on the current device."""
    key = "cupy", cupy.cuda.Device().id
    words = plan.on_devices.get(key)
    if words is None:
        plan.check()
        words = cupy.asarray(np.array(plan_words(plan), dtype=np.int64))
        cupy.cuda.get_current_stream().synchronize()  # calls on other streams will read the constants
        plan.on_devices[key] = words
    return words


def _signed64(number: int) -> int:
    return (number + 2**63) % 2**64 - 2**63


# ---- the kernel ----


def kernel_name(dtype: str, flags: tuple[bool, bool, bool, bool]) -> str:
    """Return the C++ name of an instance: wide accesses, half pairing in and out, angles from tables."""
    return f"rope::rotate<rope::{_DTYPES[dtype]}, {', '.join(str(flag).lower() for flag in flags)}>"


OPTIONS = ("--std=c++17", "--fmad=false")


def code() -> str:
    """Return the CUDA source with its header in it: CuPy's cache of compiled code does not know headers."""
    header, source = "_native/cos_sin.h", Path(__file__).with_name("rotate.cu").read_text("utf-8")
    text = Path(__file__).parents[1].joinpath(header).read_text("utf-8")
    return source.replace(f'#include "../{header}"\n', text)


@cache
def _kernel(name: str) -> Any:
    """Compile an instance; CuPy caches it for each device, and on disk."""
    return cupy.RawModule(code=code(), options=OPTIONS, name_expressions=(name,)).get_function(name)
