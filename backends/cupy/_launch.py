"""Launches of the CUDA kernel: which rows, how many threads, and the arguments. See rotate.cu."""

from collections.abc import Sequence
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import cupy
import numpy as np

from rope_array._array_api.library import dtype_name
from rope_array._array_api.source import CallOptions
from rope_array._backends._gpu import (
    Kind,
    Rows,
    SourceView,
    Strided,
    arrange,
    check_capture,
    common_alignment,
    plan_rows,
)
from rope_array._spec.plan import Layout, Plan

_DTYPES = {"float32": "Float32", "float64": "Float64", "float16": "Float16", "bfloat16": "BFloat16"}
_SPACED, _INT32, _INT64, _TABLES = range(4)  # rotate.cu's Source
_NUMBERS = {"float32": "float", "float64": "double"}  # rotate.cu's Number for float positions
ARRAY = ["x", "y", "heads", "x_outer", "x_seq", "x_head", "x_feature"]
ARRAY += ["y_outer", "y_seq", "y_head", "y_feature"]
# rotate.cu's Call.
CALL = [f"{array}_{member}" for array in "qk" for member in ARRAY]
CALL += ["outer", "seq", "heads_per_thread"]
CALL += ["head_dim", "start", "num_pairs", "pairs_per_block", "copies"]
CALL += ["source", "first", "outer_step", "seq_step", "positions", "pos_outer", "pos_seq", "pos_coordinate"]
CALL += ["cos", "sin", "cos_outer", "cos_seq", "sin_outer", "sin_seq"]
CALL += ["words", "has_coordinates", "scaled", "transposed"]
_CALL = np.dtype([(member, np.int64) for member in CALL])
# Heads of a thread. A pair of 16 bits takes 12 instructions in each head, and at most 160 once, for cos and
# sin and addresses (counted in the compiled code). With eight heads it takes 32 in each head; an H100 has
# time for 76 while it copies a pair. If eight heads leave fewer threads than _MANY_THREADS, about 500 for
# each multiprocessor of an H100, too few accesses are in flight, so each thread takes fewer heads.
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

    def facts(self) -> tuple[Any, ...]:
        """Return the plain values that launches depend on."""
        memory = tuple([(array.itemsize, array.data.ptr % 16) for array in self.arrays])
        if self.plan is None:
            return self.view, memory, None, False, None
        has_coordinates = self.plan.coordinates is not None
        coordinate = strides(self.arrays[0])[-1] if has_coordinates else None
        number = _NUMBERS.get(dtype_name(self.arrays[0])) if self.arrays else None
        return self.view, memory, coordinate, self.plan.layout.amplitude not in (None, 1.0), number


class _Piece(NamedTuple):
    """Rows of one array, for one launch."""

    array: int  # its index in the call
    rows: Rows
    features: tuple[int, int]  # the strides of the features in x and y
    is_wide: bool  # accesses of 16 bytes
    in_place: bool


class _Launch(NamedTuple):
    """A launch: its kernel, and the arguments without addresses and the first position."""

    name: str
    grid: tuple[int, int]
    block: tuple[int, int, int]
    call: Any
    pieces: list[_Piece]


def launch_rotations(
    arrays: Sequence[tuple[Any, Any]], angles: Angles, layout: Layout, options: CallOptions
) -> None:
    """Rotate each x of arrays (x, y) of one dtype into its y, on the current device and stream."""
    dtype, itemsize = dtype_name(arrays[0][0]), arrays[0][0].itemsize
    facts = tuple([facts_of(x, y) for x, y in arrays])
    for launch in _prepare(facts, angles.facts(), dtype, itemsize, layout, options):
        call = copied(launch.call)
        set_addresses(call, arrays, angles, launch.pieces)
        # CuPy passes a NumPy array by value if it has a single element, which may be a struct.
        kernel(launch.name)(launch.grid, launch.block, (call,))


def copied(struct: Any) -> Any:
    """Return a copy of a struct by its bytes; NumPy would copy member by member, which takes longer."""
    return struct.view(np.uint8).copy().view(struct.dtype)


def set_addresses(
    call: Any, arrays: Sequence[tuple[Any, Any]], angles: Angles, pieces: Sequence[_Piece] = ()
) -> None:
    """Set the addresses of arrays and of a source; without pieces, of whole arrays."""
    for i, name in enumerate("qk"[: len(pieces or arrays)]):
        x, y = arrays[pieces[i].array if pieces else i]
        offsets = (pieces[i].rows.x_offset, pieces[i].rows.y_offset) if pieces else (0, 0)
        for member, array, offset in zip("xy", (x, y), offsets, strict=True):
            call[f"{name}_{member}"] = array.data.ptr + offset * array.itemsize
    source_offsets = pieces[0].rows.source_offsets if pieces else (0, 0)
    for name, array, offset in zip(_pointers(angles), angles.arrays, source_offsets, strict=False):
        call[name] = array.data.ptr + offset * array.itemsize
    if angles.plan is not None:
        call["words"] = _words(angles.plan).data.ptr
        call["first"] = _signed64(angles.first + source_offsets[0])


def facts_of(x: Any, y: Any) -> tuple[Any, ...]:
    """Return the plain values of an array and its result that launches depend on."""
    return (x.shape, *_facts(x), *_facts(y), x.data.ptr == y.data.ptr)


def strides(x: Any) -> tuple[int, ...]:
    """Return the strides of an array in elements."""
    return tuple([stride // x.itemsize for stride in x.strides])


def is_aligned(x: Any) -> bool:
    """Return whether every element is at a multiple of its size."""
    return not any(number % x.itemsize for number in (x.data.ptr, *x.strides))


def _facts(x: Any) -> tuple[tuple[int, ...], int]:
    return strides(x), x.data.ptr % 16


def _pointers(angles: Angles) -> tuple[str, ...]:
    return ("cos", "sin") if angles.plan is None else ("positions",)


@lru_cache(256)
def _prepare(
    arrays: tuple[Any, ...],
    source: tuple[Any, ...],
    dtype: str,
    itemsize: int,
    layout: Layout,
    options: CallOptions,
) -> list[_Launch]:
    """Return the launches for arrays and a source of these facts."""
    is_wide = _is_wide_layout(layout, 16 // itemsize)
    together: dict[Any, list[_Piece]] = {}
    strided = [Strided(shape, x, y) for shape, x, _, y, _, _ in arrays]
    for i, launches in enumerate(arrange(strided, options.seq_axis, source[0])):
        for rows in launches:
            piece = _make_piece(i, arrays[i], rows, source, itemsize, is_wide)
            together.setdefault((piece.is_wide, piece.rows.tokens), []).append(piece)
    prepared = [
        _make_launch(pieces[i : i + 2], source, dtype, itemsize, layout)
        for pieces in together.values()
        for i in range(0, len(pieces), 2)
    ]
    return [launch for launch in prepared if launch is not None]


def _is_wide_layout(layout: Layout, unit: int) -> bool:
    """Return whether the slice, its halves and the features around it consist of units of 16 bytes."""
    numbers = [layout.start, layout.stop, layout.head_dim]
    if layout.num_pairs and "half" in (layout.pairing, layout.out_pairing):
        numbers.append(layout.num_pairs // layout.blocks)
    return not any(number % unit for number in numbers)


def _make_piece(
    i: int, array: tuple[Any, ...], rows: Rows, source: tuple[Any, ...], itemsize: int, is_wide_layout: bool
) -> _Piece:
    shape, x_strides, x_address, y_strides, y_address, in_place = array
    features = (x_strides[-1], y_strides[-1]) if shape[-1] > 1 else (1, 1)
    sizes = (rows.outer, rows.seq, rows.heads)
    steps = [step for steps in (rows.x, rows.y) for step, n in zip(steps, sizes, strict=True) if n > 1]
    starts = [x_address // itemsize + rows.x_offset, y_address // itemsize + rows.y_offset]
    is_wide = is_wide_layout and features == (1, 1)
    is_wide = is_wide and common_alignment([*starts, *steps], itemsize) == 16 // itemsize
    return _Piece(i, rows, features, is_wide and _has_wide_tables(source, rows), in_place)


def _has_wide_tables(source: tuple[Any, ...], rows: Rows) -> bool:
    view, memory, *_ = source
    if view.kind != Kind.TABLES:
        return True
    for (itemsize, address), steps, offset in zip(memory, rows.source, rows.source_offsets, strict=True):
        if common_alignment([address // itemsize + offset, *steps], itemsize) != 16 // itemsize:
            return False
    return True


def _make_launch(
    pieces: list[_Piece],
    source: tuple[Any, ...],
    dtype: str,
    itemsize: int,
    layout: Layout,
    v_heads: int | None = None,
    is_normed: bool = False,
) -> _Launch | None:
    """Return the launch for one or two arrays that share their tokens and the width of accesses.

    `v_heads`: of v, if the launch makes attention's inputs. A thread then norms whole heads, if any.
    """
    rows, is_wide = pieces[0].rows, pieces[0].is_wide
    reads_half, writes_half = (p == "half" for p in (layout.pairing, layout.out_pairing))
    unit = 16 // itemsize if is_wide else 1
    pairs_of_thread = unit // 2 if is_wide and not (reads_half or writes_half) else unit
    unrotated = layout.head_dim - 2 * layout.num_pairs
    copies = unrotated > 0 and (v_heads is not None or not all(piece.in_place for piece in pieces))
    groups = layout.num_pairs // pairs_of_thread + (unrotated // unit if copies else 0)
    if not groups:
        return None
    heads = sum(piece.rows.heads for piece in pieces) + (v_heads or 0)
    grid, block, heads_per_thread = configure(rows.outer * rows.seq, heads, 1 if is_normed else groups)
    members: dict[str, int] = {
        "outer": rows.outer,
        "seq": rows.seq,
        "heads_per_thread": heads_per_thread,
        "copies": copies,
        "head_dim": layout.head_dim,
        "start": layout.start,
        "num_pairs": layout.num_pairs,
        "pairs_per_block": layout.num_pairs // layout.blocks,
        **_source_members(source, rows),
    }
    for name, piece in zip("qk", pieces, strict=False):
        x_feature, y_feature = piece.features
        numbers = (piece.rows.heads, *piece.rows.x, x_feature, *piece.rows.y, y_feature)
        members |= {f"{name}_{member}": n for member, n in zip(ARRAY[2:], numbers, strict=True)}
    call = np.zeros(1, _CALL)  # `transposed` is for gradients, which CuPy does not record
    for member, number in members.items():
        call[member] = number
    flags = (is_wide, reads_half, writes_half, source[0].kind == Kind.TABLES)
    name = kernel_name(dtype, flags, source[-1]) if v_heads is None else inputs_name(dtype, flags)
    return _Launch(name, grid, block, call, pieces)


def prepare_inputs(
    arrays: list[Any],
    rows: list[Rows],
    source: tuple[Any, ...],
    x: Any,
    layout: Layout,
    v_heads: int,
    is_normed: bool,
) -> _Launch:
    """Return the launch that makes attention's inputs: of q and k by their facts, like x."""
    is_wide = _is_wide_layout(layout, 16 // x.itemsize)
    pieces = [_make_piece(i, arrays[i], rows[i], source, x.itemsize, is_wide) for i in range(len(rows))]
    is_wide = all(piece.is_wide for piece in pieces)
    pieces = [piece._replace(is_wide=is_wide) for piece in pieces]
    launch = _make_launch(pieces, source, x.dtype.name, x.itemsize, layout, v_heads, is_normed)
    assert launch is not None, "a head has features"
    return launch


def _source_members(source: tuple[Any, ...], rows: Rows) -> dict[str, int]:
    view, memory, coordinate, scaled, _ = source
    if view.kind == Kind.TABLES:
        (cos_outer, cos_seq), (sin_outer, sin_seq) = rows.source
        members = {"cos_outer": cos_outer, "cos_seq": cos_seq, "sin_outer": sin_outer, "sin_seq": sin_seq}
        return {"source": _TABLES, **members}
    ((outer, seq),) = rows.source
    if view.kind == Kind.SPACED:
        steps = {"outer_step": _signed64(outer), "seq_step": _signed64(seq)}
        return {"source": _SPACED, "scaled": scaled, **steps}
    return {
        "source": _INT32 if memory[0][0] == 4 else _INT64,
        "scaled": scaled,
        "pos_outer": outer,
        "pos_seq": seq,
        "has_coordinates": coordinate is not None,
        "pos_coordinate": coordinate or 0,
    }


def configure(tokens: int, heads: int, groups: int) -> tuple[tuple[int, int], tuple[int, int, int], int]:
    """Return the grid, the block, and the heads of a thread.

    `groups` is the number of threads for all features of a row.
    """
    max_heads = next((h for h in _HEADS_PER_THREAD if tokens * groups * -(-heads // h) >= _MANY_THREADS), 1)
    chunks = min(-(-heads // max_heads), _MAX_BLOCKS_Y)
    heads_per_thread = -(-heads // chunks)
    chunks = -(-heads // heads_per_thread)
    x = -(-groups // -(-groups // _MAX_THREADS))
    y = min(tokens, _MAX_THREADS // x)
    z = min(chunks, _MAX_THREADS // (x * y), _MAX_THREADS_Z)
    return (-(-tokens // y), -(-chunks // z)), (x, y, z), heads_per_thread


def _words(plan: Plan) -> Any:
    """Return a plan's constants on the current device."""
    key = "cupy", cupy.cuda.Device().id
    words, stream = plan.derived.on_devices.get(key), cupy.cuda.get_current_stream()
    if stream.is_capturing():
        check_capture(words)
    if words is None:
        plan.check()
        words = cupy.asarray(np.array(plan_rows(plan), dtype=np.int64))
        stream.synchronize()  # calls on other streams will read the constants
        plan.derived.on_devices[key] = words
    return words


def _signed64(number: int) -> int:
    return (number + 2**63) % 2**64 - 2**63


# ---- the kernel ----


def kernel_name(dtype: str, flags: tuple[bool, bool, bool, bool], number: str | None = None) -> str:
    """Return the C++ name of an instance: wide accesses, half pairing in and out, angles from tables.

    `number` is the type of float positions in C++.
    """
    arguments = [f"rope::{_DTYPES[dtype]}", *map(_of_flag, flags), number or "rope::Int"]
    return f"rope::rotate<{', '.join(arguments)}>"


def inputs_name(dtype: str, flags: tuple[bool, bool, bool, bool]) -> str:
    """Return the C++ name of an instance of `make_inputs`."""
    return f"rope::make_inputs<{', '.join([f'rope::{_DTYPES[dtype]}', *map(_of_flag, flags)])}>"


def _of_flag(flag: bool) -> str:
    return str(flag).lower()


# CUDA 12.1 takes lambdas in device functions for code of the host without the last of these.
OPTIONS = ("--std=c++17", "--fmad=false", "--device-as-default-execution-space")


def code() -> str:
    """Return the CUDA source with its header in it: CuPy's cache of compiled code does not know headers."""
    header, source = "_native/cos_sin.h", Path(__file__).with_name("rotate.cu").read_text("utf-8")
    text = Path(__file__).parents[1].joinpath(header).read_text("utf-8")
    return source.replace(f'#include "../{header}"\n', text)


@cache
def kernel(name: str) -> Any:
    """Compile an instance; CuPy caches it for each device, and on disk."""
    return cupy.RawModule(code=code(), options=OPTIONS, name_expressions=(name,)).get_function(name)
