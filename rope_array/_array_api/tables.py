"""Tables of cos and sin for a source: made from positions, or given; cast, and aligned with the axes of x."""

from collections.abc import Sequence
from typing import Any

from rope_array._spec.plan import Plan
from rope_array._spec.shape_rule import placement, sequence_axis

from .angles import cos_sin, floats, positions_per_pair, product_cos_sin, split
from .library import Library, computes_in_float64, dtype_name
from .ops import ArrayOps
from .position_input import read_positions
from .source import Positions, Source, Tables

CosSin = tuple[Any, Any]


def make_tables(source: Positions, like: Any, lib: Library) -> CosSin:
    """Return cos and sin at checked positions, in the compute dtype of `like`, shape pos.shape + (pairs,)."""
    use_float64 = computes_in_float64(like)
    whole, fraction = read_positions(source.values, like, lib, use_float64)
    return tables_at(whole, fraction, source.plan, use_float64, lib.ops(like), source.inv_freq)


def tables_at(
    whole: Any, fraction: Any, plan: Plan, use_float64: bool, ops: ArrayOps, inv_freq: Any = None
) -> CosSin:
    """Return cos and sin at positions that are arrays of the library; see `read_positions`."""
    if inv_freq is not None:
        return _learned(whole, fraction, plan, use_float64, ops, inv_freq)
    if fraction is None and dtype_name(whole) in ("float32", "float64"):
        whole, fraction = split(whole, ops.xp, ops.has_int64)
    return cos_sin(whole, fraction, plan, use_float64, ops)


def tables_by_dtype(
    xs: Sequence[Any], whole: Any, fraction: Any, plan: Plan, ops: ArrayOps
) -> dict[bool, CosSin]:
    """Return the tables for each compute dtype of xs, by `computes_in_float64`."""
    return {
        use_float64: tables_at(whole, fraction, plan, use_float64, ops)
        for use_float64 in {*map(computes_in_float64, xs)}
    }


def aligned_tables(xs: Sequence[Any], source: Source, seq_axis: int, lib: Library) -> list[CosSin]:
    """Return for each of xs the tables in its compute dtype, with its axes: ready for elementwise products."""
    ops = lib.ops(xs[0])
    if isinstance(source, Tables):
        tables = [cast_tables(source, computes_in_float64(x), ops) for x in xs]
    else:
        use_float64 = any(map(computes_in_float64, xs))
        whole, fraction = read_positions(source.values, xs[0], lib, use_float64)
        by_dtype = tables_by_dtype(xs, whole, fraction, source.plan, ops)
        tables = [by_dtype[computes_in_float64(x)] for x in xs]
    return [align_tables_to(x, *table, seq_axis, ops) for x, table in zip(xs, tables, strict=True)]


def cast_tables(tables: Tables, use_float64: bool, ops: ArrayOps) -> CosSin:
    """Return cos and sin for float32 arithmetic, or as they are for float64, which the checks require."""
    if use_float64 or not computes_in_float64(tables.cos):
        return tables.cos, tables.sin
    return ops.cast(tables.cos, ops.xp.float32), ops.cast(tables.sin, ops.xp.float32)


def align_tables_to(x: Any, cos: Any, sin: Any, seq_axis: int, ops: ArrayOps) -> CosSin:
    """Give tables the axes of x, by the shape rule."""
    order, index = placement(x.ndim, cos.ndim - 1, sequence_axis(x.ndim, seq_axis))
    if order is not None:
        cos, sin = ops.xp.permute_dims(cos, order), ops.xp.permute_dims(sin, order)
    return cos[index], sin[index]


def inverse_tables(cos: Any, sin: Any) -> CosSin:
    """Return the tables of the inverse if the amplitude varies by position and pair."""
    # The magnitude is divided out first: squares would leave the range of floats at half the exponent.
    size = abs(cos) + abs(sin)
    c, s = cos / size, sin / size
    square = c * c + s * s
    return c / square / size, -s / square / size


def _learned(
    whole: Any, fraction: Any, plan: Plan, use_float64: bool, ops: ArrayOps, inv_freq: Any
) -> CosSin:
    xp = ops.xp
    dtype = xp.float64 if use_float64 else xp.float32
    pos = positions_per_pair(floats(whole, fraction, dtype, xp), plan, ops)
    frequencies = xp.astype(inv_freq, dtype)
    if plan.coordinates is not None and plan.coordinates.driven_mask is not None:
        frequencies = frequencies * ops.constants(plan.coordinates.driven_mask, dtype, ops.creation_kwargs)
    frequencies = frequencies[(None,) * (pos.ndim - 1) + (...,)]
    return product_cos_sin(pos, frequencies, plan, dtype, xp)
