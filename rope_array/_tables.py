"""Tables in the formats of engines and exporters: the work of `RoPE.tables`."""

import operator
from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from math import prod
from typing import Any

from . import _dispatch
from ._array_api.library import Library, computes_in_float64, dtype_name, is_numpy, numpy_library
from ._array_api.position_input import parse_host
from ._array_api.tables import cast_table, one_per_feature
from ._errors import ArrayTypeError, PositionError, SpecError, describe
from ._rotation import Rotation
from ._spec.validation import choice

_CHUNK = 1 << 17  # numbers of float64 that are computed at a time: 1 MB for cos, and 1 MB for sin
_LONGEST = 2**31  # its last position is the largest of int32


def make_tables(rope: Any, positions: Any, format: Any, dtype: Any, like: Any) -> Any:
    """Return the tables of a rope; see `RoPE.tables`."""
    arrange = FORMATS[choice("format", format, tuple(FORMATS))]
    positions, rows_shape, shape = _checked_positions(positions, rope)
    if like is None:
        like = numpy_library().xp.empty(0, dtype="float32")
    lib = _dispatch.library_of_like(like)
    dtype, host_dtype = _dtypes(dtype, like, lib, format == "complex")
    rows = max(1, _CHUNK // max(1, rope.rotary_dim // 2 * prod(rows_shape[1:])))
    chunks = (
        _rounded(arrange(_rotation(rope, positions[start : start + rows])), host_dtype)
        for start in range(0, max(1, rows_shape[0]), rows)
    )
    tables = _collected(chunks, rows_shape[0], dtype, like, lib)
    if shape != rows_shape:
        tables = tuple(lib.xp.reshape(t, (*shape, *t.shape[len(rows_shape) :])) for t in tables)
    return tables[0] if len(tables) == 1 else tables


# ---- formats ----


def _full(rotation: Rotation) -> tuple[Any, ...]:
    layout, ops = rotation.layout, numpy_library().ops(rotation.cos)
    return tuple(one_per_feature(table, layout, ops) for table in rotation)


def _joined(rotation: Rotation) -> tuple[Any, ...]:
    return (numpy_library().xp.concat([rotation.cos, rotation.sin], axis=-1),)


def _stacked(rotation: Rotation) -> tuple[Any, ...]:
    return (numpy_library().xp.stack([rotation.cos, rotation.sin], axis=-1),)


def _complex(rotation: Rotation) -> tuple[Any, ...]:
    return (rotation.cos + 1j * rotation.sin,)


def _angles(rotation: Rotation) -> tuple[Any, ...]:
    layout = rotation.layout
    if layout.amplitude != 1.0:
        raise SpecError(
            f"format is 'angles', and the rope has an amplitude of {layout.amplitude}, which angles do not "
            "have; give a rope with attention_factor=1.0, and multiply q and k by the amplitude."
        )
    angles = numpy_library().xp.atan2(rotation.sin, rotation.cos)
    return (one_per_feature(angles, layout, numpy_library().ops(angles)),)


# By name: the arrays of a format, from NumPy's cos and sin of each pair.
FORMATS: Mapping[str, Callable[[Rotation], tuple[Any, ...]]] = {
    "split": tuple,
    "joined": _joined,
    "full": _full,
    "stacked": _stacked,
    "complex": _complex,
    "angles": _angles,
}


# ---- positions, and numbers of float64 ----


def _checked_positions(positions: Any, rope: Any) -> tuple[Any, tuple[int, ...], tuple[int, ...]]:
    """Return positions to slice, their shape without coordinates, and that shape as the caller gave it.

    The leading axes of an array become one, so that chunks are small for any shape.
    """
    try:
        length = None if isinstance(positions, bool) else operator.index(positions)
    except TypeError:
        length = None
    if length is not None:
        return _of_length(length, rope)
    parsed = parse_host(positions)
    if parsed is None and not is_numpy(positions):
        raise _no_positions(positions)
    full = (parsed or positions).shape
    if not full:  # a number that is no int
        raise _no_positions(positions)
    shape = full[:-1] if rope.axes else full
    if parsed:
        return (positions, shape, shape) if shape else ([[*positions]], (1,), shape)
    rows = prod(shape)
    return positions.reshape(rows, *full[len(shape) :]), (rows,), shape


def _of_length(length: int, rope: Any) -> tuple[Any, tuple[int, ...], tuple[int, ...]]:
    """Return the same for the positions of a length."""
    if not 1 <= length <= _LONGEST:
        raise PositionError(f"the length of a table is {length}; give 1 to 2**31, or positions: range(8).")
    positions: Any = range(length)
    if rope.axes:  # of text: all coordinates are equal
        xp = numpy_library().xp
        positions = xp.broadcast_to(xp.arange(length)[:, None], (length, rope._plan.coordinates.number))
    return positions, (length,), (length,)


def _no_positions(positions: Any) -> ArrayTypeError:
    return ArrayTypeError(
        f"positions is {describe(positions)}; give the length of the table, an int, or positions in host "
        "memory: a range, a sequence, or a NumPy array."
    )


def _rotation(rope: Any, positions: Any) -> Rotation:
    """Return cos and sin of float64, in NumPy."""
    rotation: Rotation = rope.rotation(positions, like=numpy_library().xp.empty(0))
    return rotation


# ---- rounding, and the library of the result ----


def _dtypes(dtype: Any, like: Any, lib: Library, is_complex: bool) -> tuple[Any, str]:
    """Return the dtype of the tables, and the name of a dtype to round to in NumPy."""
    xp, ops = lib.xp, lib.ops(like)
    if dtype is None:
        dtype = xp.float64 if computes_in_float64(like) else xp.float32
    empty = xp.asarray(numpy_library().xp.empty(0, dtype="float32"), **ops.creation_kwargs)
    empty = cast_table(empty, dtype, ops)
    name = dtype_name(empty)
    if not is_complex:
        return empty.dtype, name
    if name not in ("float32", "float64"):
        raise ArrayTypeError(f"dtype is {describe(dtype)}, and format 'complex' needs float32 or float64.")
    complex_name = "complex64" if name == "float32" else "complex128"
    if not hasattr(xp, complex_name):
        raise ArrayTypeError(f"format is 'complex', and {lib.name} has no {complex_name}; give another.")
    return getattr(xp, complex_name), complex_name


def _rounded(arrays: tuple[Any, ...], dtype: str) -> tuple[Any, ...]:
    """Round float64 once: to the dtype, or to numbers of bfloat16 in float32, as NumPy has no bfloat16."""
    if dtype != "bfloat16":
        return tuple(array.astype(dtype) for array in arrays)
    # Veltkamp's splitting: 8 of the 53 bits stay.
    scaled = ((array, array * (2.0**45 + 1)) for array in arrays)
    return tuple((c - (c - array)).astype("float32") for array, c in scaled)


def _collected(
    chunks: Iterator[tuple[Any, ...]], length: int, dtype: Any, like: Any, lib: Library
) -> tuple[Any, ...]:
    """Return tables of the library of `like`, from chunks of NumPy.

    Where arrays can be written, each chunk is written into the table, so that no second one is needed.
    """
    xp, ops = lib.xp, lib.ops(like)

    def converted(chunk: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(ops.cast(xp.asarray(array, **ops.creation_kwargs), dtype) for array in chunk)

    chunk = converted(next(chunks))
    if chunk[0].shape[0] == length:
        return chunk
    if type(lib).memory is Library.memory:  # no call: a fake tensor has no address
        return tuple(xp.concat(parts, axis=0) for parts in zip(chunk, *map(converted, chunks), strict=True))
    tables = tuple(xp.empty((length, *t.shape[1:]), dtype=dtype, **ops.creation_kwargs) for t in chunk)
    start = 0
    for arrays in chain([chunk], map(converted, chunks)):
        stop = start + arrays[0].shape[0]
        for table, array in zip(tables, arrays, strict=True):
            lib.copy_into(table[start:stop], array)
        start = stop
    return tables
