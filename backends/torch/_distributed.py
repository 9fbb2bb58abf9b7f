"""DTensor: each shard is rotated on its own, by the positions that are its own; nothing is communicated.

A plain tensor of positions beside a DTensor could hold the positions of the local shard or of the whole, and
both readings are in use; it is refused unless torch's own `implicit_replication` says that it is the whole.
"""

import sys
from typing import Any

from rope_array._array_api import position_input as _host
from rope_array._array_api import rotate as _core
from rope_array._array_api.library import Library
from rope_array._errors import ArrayTypeError, ShapeError, describe
from rope_array._spec.plan import Layout, Plan
from rope_array._spec.shape_rule import covered_axes, without_coordinates

_MODULE = "torch.distributed.tensor"


def is_placed(*values: Any) -> bool:
    """Tell whether there is a DTensor among values, without importing what defines it."""
    return any(type(value).__name__ == "DTensor" for value in values)


def apply(xs: Any, pos: Any, plan: Plan, seq_axis: int, lib: Library) -> Any:
    """Rotate DTensors, each shard on its own by the positions that are its own."""
    check(xs, pos)
    whole, fraction = _core.positions(xs, pos, plan, seq_axis, lib)
    return tuple(_apply_one(x, whole, fraction, plan, seq_axis, lib) for x in xs)


def rotate(xs: Any, cos: Any, sin: Any, layout: Layout, seq_axis: int, lib: Library) -> Any:
    """Rotate DTensors, each shard on its own by the tables that are its own."""
    check(xs, cos)
    _core.check_rotation(xs, cos, sin, layout, seq_axis, lib)
    return tuple(_rotate_one(x, cos, sin, layout, seq_axis, lib) for x in xs)


def tables(pos: Any, like: Any, plan: Plan, inv_freq: Any, lib: Library) -> Any:
    """Make cos and sin, placed as the positions are."""
    check((like,), pos)
    if inv_freq is not None:
        raise ArrayTypeError(
            "learned frequencies beside a DTensor are not served; make the tables from local tensors."
        )
    whole, fraction = _core.table_positions(pos, like, plan, inv_freq, lib)
    return _tables(whole, fraction, like, plan, _core.is_double(like), lib)


def check(xs: Any, pos: Any) -> None:
    """Refuse heads that are split, DTensors beside plain tensors, and partial sums."""
    for x in xs:
        if not is_placed(x):
            raise ArrayTypeError(f"x is a plain {describe(x)} beside DTensors; give all of them as DTensors.")
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
    elif not _host.is_host(pos) and not _implicit_replication():
        raise ArrayTypeError(
            f"x is a DTensor and pos a plain {describe(pos)}, which may mean the positions of this shard or "
            "of the whole. If of this shard, give DTensor.from_local(pos, x.device_mesh, placements); if of "
            "the whole, give distribute_tensor(pos, x.device_mesh, [Replicate()] * x.device_mesh.ndim)."
        )


def _apply_one(x: Any, whole: Any, fraction: Any, plan: Plan, seq_axis: int, lib: Library) -> Any:
    local = x.to_local()
    more = 0 if plan.coordinates is None else 1
    whole = _beside(whole, x, seq_axis, more)
    fraction = fraction if fraction is None else _beside(fraction, x, seq_axis, more)
    return _placed(
        _core.compute((local,), whole, fraction, plan, seq_axis, lib.kit(local))[0], x, x.placements
    )


def _rotate_one(x: Any, cos: Any, sin: Any, layout: Layout, seq_axis: int, lib: Library) -> Any:
    local = x.to_local()
    cos, sin = _beside(cos, x, seq_axis, 1), _beside(sin, x, seq_axis, 1)
    return _placed(_core.turn_all((local,), cos, sin, layout, seq_axis, lib.kit(local))[0], x, x.placements)


def _tables(whole: Any, fraction: Any, like: Any, plan: Plan, double: bool, lib: Library) -> Any:
    lead = without_coordinates(tuple(whole.shape), plan)
    if is_placed(whole) and any(p.is_shard() and p.dim >= len(lead) for p in whole.placements):
        raise ShapeError(
            f"pos is placed as {whole.placements}, its coordinates split; redistribute it first."
        )
    local = whole.to_local() if is_placed(whole) else whole
    made = _core.make_tables(local, fraction, plan, double, lib.kit(local))
    places = whole.placements if is_placed(whole) else _everywhere(like)
    shape = lib.xp.empty((*lead, plan.layout.lanes), device="meta")
    cos, sin = (_placed(table, shape, places, like.device_mesh) for table in made)
    return cos, sin


def _beside(table: Any, x: Any, seq_axis: int, more: int) -> Any:
    """Return the part of positions, or of tables, with `more` axes behind, that stands beside x's shard."""
    ndim = table.ndim - more
    if not is_placed(table):
        table = _placed(table, table, _everywhere(x), x.device_mesh)
    if not ndim:
        return table.to_local()
    # All lead axes of x and its sequence; those that positions do not cover have the size 1.
    axes = covered_axes(x.ndim, x.ndim - 1, seq_axis)
    table = table[(slice(None),) * (ndim - 1) + (None,) * (len(axes) - ndim) + (...,)]
    places = [_place(p, x, axes, table.shape) for p in x.placements]
    return table.redistribute(x.device_mesh, places).to_local()


def _place(place: Any, x: Any, axes: tuple[int, ...], shape: Any) -> Any:
    """Place positions on one axis of the mesh: as x, but whole where one position serves many rows."""
    module = sys.modules[_MODULE]
    if place.is_shard() and shape[axes.index(place.dim)] == x.shape[place.dim]:
        return module.Shard(axes.index(place.dim))
    return module.Replicate()


def _everywhere(x: Any) -> Any:
    return [sys.modules[_MODULE].Replicate()] * x.device_mesh.ndim


def _placed(local: Any, whole: Any, places: Any, mesh: Any = None) -> Any:
    """Make a DTensor of a shard; the size of the whole is said, as it would be guessed from equal shards."""
    make = sys.modules[_MODULE].DTensor.from_local
    size = {"shape": whole.shape, "stride": whole.stride()}
    return make(local, mesh or whole.device_mesh, places, run_check=False, **size)


def _implicit_replication() -> bool:
    dispatcher = getattr(sys.modules[_MODULE].DTensor, "_op_dispatcher", None)
    return bool(getattr(dispatcher, "_allow_implicit_replication", False))
