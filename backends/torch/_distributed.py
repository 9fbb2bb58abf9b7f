"""DTensor: positions are made into tables where they are, so that nothing is communicated.

A plain tensor of positions beside a DTensor could hold the positions of the local shard or of the whole, and
both readings are in use; it is refused unless torch's own `implicit_replication` says that it is the whole.
"""

import sys
from typing import Any

from rope_array import _core, _host
from rope_array._errors import ArrayTypeError, ShapeError, describe
from rope_array._namespace import Library
from rope_array._plan import Plan

_MODULE = "torch.distributed.tensor"


def is_placed(*values: Any) -> bool:
    """Tell whether there is a DTensor among values, without importing what defines it."""
    return any(type(value).__name__ == "DTensor" for value in values)


def apply(xs: Any, pos: Any, plan: Plan, seq_axis: int, lib: Library) -> Any:
    """Rotate DTensors, each shard by the positions of its own."""
    check(xs, pos)
    whole, fraction = _core.positions(xs, pos, plan, seq_axis, lib)
    pairs = {d: _tables(whole, fraction, xs[0], plan, d, lib) for d in {*map(_core.is_double, xs)}}
    return tuple(_core.turn_one(x, *pairs[_core.is_double(x)], plan.layout, seq_axis, lib.kit(x)) for x in xs)


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


def _tables(whole: Any, fraction: Any, like: Any, plan: Plan, double: bool, lib: Library) -> tuple[Any, Any]:
    module, mesh = sys.modules[_MODULE], like.device_mesh
    local = whole.to_local() if is_placed(whole) else whole
    made = _core.make_tables(local, fraction, plan, double, lib.kit(local))
    places = whole.placements if is_placed(whole) else [module.Replicate()] * mesh.ndim
    # The size of the whole is said, as from_local would guess equal shards.
    whole_table = lib.xp.empty((*whole.shape, plan.layout.lanes), device="meta")
    size = {"shape": whole_table.shape, "stride": whole_table.stride()}
    cos, sin = (module.DTensor.from_local(table, mesh, places, run_check=False, **size) for table in made)
    return cos, sin


def _implicit_replication() -> bool:
    dispatcher = getattr(sys.modules[_MODULE].DTensor, "_op_dispatcher", None)
    return bool(getattr(dispatcher, "_allow_implicit_replication", False))
