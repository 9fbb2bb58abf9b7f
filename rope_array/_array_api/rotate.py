"""The array-api backend: the rotation of checked arrays on any library with the Array API.

The backends of PyTorch, JAX and dask are made of these functions too.
"""

from typing import Any

from rope_array._spec.plan import Layout, Plan

from .library import Library, computes_in_float64
from .ops import ArrayOps
from .pairs import rotate_pairs
from .position_input import read_positions
from .source import Source, Tables
from .tables import align_tables_to, cast_tables, tables_by_dtype

Arrays = tuple[Any, ...]


def rotate(xs: Arrays, source: Source, seq_axis: int, lib: Library) -> Arrays:
    """Rotate each of xs by a source. The caller has checked both."""
    ops = lib.ops(xs[0])
    if isinstance(source, Tables):
        return rotate_by_tables(xs, source, seq_axis, ops)
    use_float64 = any(map(computes_in_float64, xs))
    whole, fraction = read_positions(source.values, xs[0], lib, use_float64)
    return rotate_at(xs, whole, fraction, source.plan, seq_axis, ops)


def rotate_at(xs: Arrays, whole: Any, fraction: Any, plan: Plan, seq_axis: int, ops: ArrayOps) -> Arrays:
    """Rotate each of xs by positions that are arrays of the library; tables are made once per compute dtype."""
    tables = tables_by_dtype(xs, whole, fraction, plan, ops)
    return tuple(rotate_one(x, *tables[computes_in_float64(x)], plan.layout, seq_axis, ops) for x in xs)


def rotate_by_tables(xs: Arrays, tables: Tables, seq_axis: int, ops: ArrayOps) -> Arrays:
    """Rotate each of xs by tables, which may be wider than an array's arithmetic."""
    cast = {wide: cast_tables(tables, wide, ops) for wide in {*map(computes_in_float64, xs)}}
    return tuple(rotate_one(x, *cast[computes_in_float64(x)], tables.layout, seq_axis, ops) for x in xs)


def rotate_one(x: Any, cos: Any, sin: Any, layout: Layout, seq_axis: int, ops: ArrayOps) -> Any:
    """Rotate one array by tables of its compute dtype."""
    return rotate_pairs(x, *align_tables_to(x, cos, sin, seq_axis, ops), layout, ops)
