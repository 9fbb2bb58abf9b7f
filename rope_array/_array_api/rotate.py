"""The array-api backend: the rotation of a checked call on any library with the Array API.

The backends of PyTorch and JAX call these functions too.
"""

from typing import Any

from rope_array._spec.plan import Plan

from .angles import cos_sin
from .library import computes_in_float64
from .ops import ArrayOps
from .pairs import align_and_rotate
from .position_input import read_positions
from .source import Call, Tables
from .tables import cast_tables

Arrays = tuple[Any, ...]


def rotate(call: Call) -> Arrays:
    """Rotate the arrays of a call."""
    source = call.source
    if isinstance(source, Tables):
        return rotate_by_tables(call.xs, source, call.seq_axis, call.ops)
    whole, fraction = read_positions(source.values, call.lib, call.ops, any(call.float64))
    return rotate_at(call.xs, call.float64, whole, fraction, source.plan, call.seq_axis, call.ops)


def rotate_at(
    xs: Arrays,
    float64: tuple[bool, ...],
    whole: Any,
    fraction: Any,
    plan: Plan,
    seq_axis: int,
    ops: ArrayOps,
    rotate_one: Any = align_and_rotate,
) -> Arrays:
    """Rotate each of xs by positions that `read_positions` returned, with tables once per compute dtype."""
    tables = {}
    for wide in float64:
        if wide not in tables:
            tables[wide] = cos_sin(whole, fraction, plan, wide, ops)
    ys = []
    for x, wide in zip(xs, float64, strict=True):
        ys.append(rotate_one(x, *tables[wide], plan.layout, seq_axis, ops))
    return tuple(ys)


def rotate_by_tables(
    xs: Arrays, tables: Tables, seq_axis: int, ops: ArrayOps, rotate_one: Any = align_and_rotate
) -> Arrays:
    """Rotate each of xs by tables, which may be wider than an array's arithmetic."""
    ys = []
    for x in xs:
        cos, sin = cast_tables(tables, computes_in_float64(x), ops)
        ys.append(rotate_one(x, cos, sin, tables.layout, seq_axis, ops))
    return tuple(ys)
