"""DTensor: each shard is rotated by its own positions, and x is never communicated.

A plain tensor of positions could hold the positions of the local shard or of the whole, and both readings are
in use. It is refused with a DTensor unless torch's own `implicit_replication` declares it to be the whole.
"""

import sys
from typing import Any

from rope_array._array_api.angles import cos_sin
from rope_array._array_api.library import Library, computes_in_float64
from rope_array._array_api.position_input import is_host, read_positions, split_floats
from rope_array._array_api.rotate import rotate_at, rotate_by_tables
from rope_array._array_api.source import Call, Positions, Tables
from rope_array._errors import ArrayTypeError, ShapeError, describe
from rope_array._spec.plan import Plan
from rope_array._spec.shape_rule import paired_axes, without_coordinates

_MODULE = "torch.distributed.tensor"


def is_placed(*values: Any) -> bool:
    """Return whether there is a DTensor among values, without importing its module."""
    return any(type(value).__name__ == "DTensor" for value in values)


def rotate(call: Call) -> Any:
    """Rotate DTensors, each shard by its own positions or tables."""
    source, seq_axis, lib = call.source, call.seq_axis, call.lib
    if isinstance(source, Tables):
        return tuple(_rotate_by_tables(x, source, seq_axis, lib) for x in call.xs)
    whole, fraction = read_positions(source.values, lib, call.ops, any(call.float64), split=False)
    return tuple(_rotate_at(x, whole, fraction, source.plan, seq_axis, lib) for x in call.xs)


def make_tables(source: Positions, like: Any, lib: Library) -> Any:
    """Make cos and sin, placed as the positions are."""
    if source.inv_freq is not None:
        raise ArrayTypeError(
            "learned frequencies with a DTensor are not served; make the tables from local tensors."
        )
    use_float64 = computes_in_float64(like)
    whole, fraction = read_positions(source.values, lib, lib.ops(like), use_float64, split=False)
    return _tables(whole, fraction, like, source.plan, use_float64, lib)


def check(xs: Any, pos: Any) -> None:
    """Refuse heads that are split, plain tensors mixed with DTensors, and partial sums."""
    for x in xs:
        if not is_placed(x):
            raise ArrayTypeError(f"x is a plain {describe(x)} among DTensors; give all of them as DTensors.")
        if any(p.is_shard(x.ndim - 1) or p.is_partial() for p in x.placements):
            raise ShapeError(
                f"x is placed as {x.placements}; the members of a pair must be in one shard, and whole. "
                "Shard heads, sequence or batch, or redistribute x before the rotation."
            )
    if hasattr(pos, "placements"):
        if any(p.is_partial() for p in pos.placements):
            raise ArrayTypeError(
                f"pos is placed as {pos.placements}, a sum still to be made; redistribute it first."
            )
    elif not is_host(pos) and not _implicit_replication():
        raise ArrayTypeError(
            f"x is a DTensor and pos a plain {describe(pos)}, which may mean the positions of this shard or "
            "of the whole. If of this shard, give DTensor.from_local(pos, x.device_mesh, placements); if of "
            "the whole, give distribute_tensor(pos, x.device_mesh, [Replicate()] * x.device_mesh.ndim)."
        )


def _rotate_at(x: Any, whole: Any, fraction: Any, plan: Plan, seq_axis: int, lib: Library) -> Any:
    local = x.to_local()
    ops = lib.ops(local)
    more = 0 if plan.coordinates is None else 1
    whole = _local_part(whole, x, seq_axis, more)
    if fraction is None:
        whole, fraction = split_floats(whole, ops)
    else:
        fraction = _local_part(fraction, x, seq_axis, more)
    float64 = (computes_in_float64(local),)
    return _placed(rotate_at((local,), float64, whole, fraction, plan, seq_axis, ops)[0], x, x.placements)


def _rotate_by_tables(x: Any, tables: Tables, seq_axis: int, lib: Library) -> Any:
    local = x.to_local()
    cos, sin = (_local_part(table, x, seq_axis, 1) for table in tables.arrays)
    part = Tables(cos, sin, tables.layout)
    return _placed(rotate_by_tables((local,), part, seq_axis, lib.ops(local))[0], x, x.placements)


def _tables(whole: Any, fraction: Any, like: Any, plan: Plan, use_float64: bool, lib: Library) -> Any:
    lead = without_coordinates(tuple(whole.shape), plan)
    if is_placed(whole) and any(p.is_shard() and p.dim >= len(lead) for p in whole.placements):
        raise ShapeError(
            f"pos is placed as {whole.placements}, its coordinates split; redistribute it first."
        )
    local = whole.to_local() if is_placed(whole) else whole
    ops = lib.ops(local)
    if fraction is None:
        local, fraction = split_floats(local, ops)
    tables = cos_sin(local, fraction, plan, use_float64, ops)
    places = whole.placements if is_placed(whole) else _everywhere(like)
    shape = lib.xp.empty((*lead, plan.layout.num_pairs), device="meta")
    cos, sin = (_placed(table, shape, places, like.device_mesh) for table in tables)
    return cos, sin


def _local_part(table: Any, x: Any, seq_axis: int, more: int) -> Any:
    """Return the part of positions or tables that x's local shard needs; `more` axes follow the positions."""
    ndim = table.ndim - more
    if not is_placed(table):
        table = _placed(table, table, _everywhere(x), x.device_mesh)
    if not ndim:
        return table.to_local()
    # All lead axes of x and its sequence; axes without positions have size 1.
    axes = paired_axes(x.ndim, x.ndim - 1, seq_axis)
    table = table[(slice(None),) * (ndim - 1) + (None,) * (len(axes) - ndim) + (...,)]
    places = [_place(p, x, axes, table.shape) for p in x.placements]
    return table.redistribute(x.device_mesh, places).to_local()


def _place(place: Any, x: Any, axes: tuple[int, ...], shape: Any) -> Any:
    """Place positions on a mesh axis as x is placed; replicate them if one position serves many rows."""
    module = sys.modules[_MODULE]
    if place.is_shard() and shape[axes.index(place.dim)] == x.shape[place.dim]:
        return module.Shard(axes.index(place.dim))
    return module.Replicate()


def _everywhere(x: Any) -> Any:
    return [sys.modules[_MODULE].Replicate()] * x.device_mesh.ndim


def _placed(local: Any, whole: Any, places: Any, mesh: Any = None) -> Any:
    """Make a DTensor of a shard. State the size of the whole, which PyTorch would infer from equal shards."""
    make = sys.modules[_MODULE].DTensor.from_local
    size = {"shape": whole.shape, "stride": whole.stride()}
    return make(local, mesh or whole.device_mesh, places, run_check=False, **size)


def _implicit_replication() -> bool:
    dispatcher = getattr(sys.modules[_MODULE].DTensor, "_op_dispatcher", None)
    return bool(getattr(dispatcher, "_allow_implicit_replication", False))
