"""DTensor: rotate each local shard by its own positions, without communicating x.

A shard is a plain tensor, so the backends of plain tensors rotate it: on the CPU the C++ kernel.

A plain tensor of positions could hold the positions of the local shard or of the full tensor, and both
readings are in use. It is refused with a DTensor unless PyTorch's `implicit_replication` declares it full.
"""

import sys
from typing import Any

from rope_array._array_api.library import Library
from rope_array._array_api.position_input import parse_host
from rope_array._errors import ArrayTypeError, ShapeError, describe
from rope_array._internals import internal
from rope_array._spec.shape_rule import paired_axes, without_coordinates
from rope_array.backend_tools import Call, Positions, Source, Tables, make_tables_for, rotate_by

_MODULE = "torch.distributed.tensor"


def has_dtensor(*values: Any) -> bool:
    """Return whether there is a DTensor among values, without importing its module."""
    return any(type(value).__name__ == "DTensor" for value in values)


def rotate_shards(call: Call) -> Any:
    """Rotate the local shards of DTensors, each by its own positions or tables."""
    xs, options = call.xs, call.options
    source = _arrays_only(call.source, call.lib, call.ops)
    if _is_row_of_coordinates(source) and all([x.ndim > 1 for x in xs]):
        # One position of all tokens: a shard may have as many tokens as coordinates.
        source = source._replace(values=source.values.unsqueeze(0))
    placed = [(x.placements, _source_placements(source, x, options.seq_axis)) for x in xs]
    if all([placements == placed[0] for placements in placed]):
        local = _local_source(source, xs[0], placed[0][1])
        ys = rotate_by(tuple([x.to_local() for x in xs]), local, options)  # angles once for all
    else:
        ys = [
            rotate_by(x.to_local(), _local_source(source, x, placements), options)
            for x, (_, placements) in zip(xs, placed, strict=True)
        ]
    return tuple(
        [_make_dtensor(y, x.shape, x.device_mesh, x.placements) for x, y in zip(xs, ys, strict=True)]
    )


def make_sharded_tables(source: Positions, like: Any, lib: Library) -> Any:
    """Make cos and sin, placed as the positions are."""
    source, mesh = _arrays_only(source, lib, lib.ops(like)), like.device_mesh
    pos, plan = source.values, source.plan
    lead = without_coordinates(tuple(getattr(pos, "shape", ())), plan)
    placements = pos.placements if has_dtensor(pos) else _replicated(mesh)
    if any(_dim(p) is not None and _dim(p) >= len(lead) for p in placements):
        raise ShapeError(f"pos is placed as {placements}, its coordinates split; redistribute it first.")
    inv_freq = source.inv_freq
    shape, out = (*lead, plan.layout.num_pairs), placements
    if inv_freq is not None and inv_freq.ndim > 1:  # heads are before the sequence
        missing = max(0, like.ndim - 2 - len(lead))
        *batch, seq = [1] * missing + list(lead)
        shape, at = (*batch, inv_freq.shape[0], seq, plan.layout.num_pairs), len(batch)
        placements = tuple([_shifted(p, 0, missing) for p in placements])
        out = tuple([_shifted(p, at, 1) for p in placements])
        for _ in range(missing if hasattr(pos, "shape") else 0):
            pos = pos.unsqueeze(0)
    local = _to_local(pos, mesh, placements, placements)
    inv_freq = _to_local(inv_freq, mesh, _replicated(mesh), placements)
    tables = make_tables_for(Positions(local, plan, inv_freq), like.to_local())
    return tuple([_make_dtensor(table, shape, mesh, out) for table in tables.arrays])


def _shifted(placement: Any, first: int, by: int) -> Any:
    """Return a placement after axes were added: shards along axis `first` and later ones move."""
    dim = _dim(placement)
    if dim is None or dim < first or not by:
        return placement
    if placement.is_shard():
        return sys.modules[_MODULE].Shard(dim + by)
    return type(placement)(dim + by, split_factor=placement.split_factor)


def check(xs: Any, source: Source) -> None:
    """Refuse heads that are split, plain tensors mixed with DTensors, other meshes, and partial sums."""
    pos = source.arrays[0]
    for x in xs:
        if not has_dtensor(x):
            raise ArrayTypeError(f"x is a plain {describe(x)} among DTensors; give all of them as DTensors.")
        if any(_dim(p) == x.ndim - 1 or p.is_partial() for p in x.placements):
            raise ShapeError(
                f"x is placed as {x.placements}; the members of a pair must be in one shard, and whole. "
                "Shard heads, sequence or batch, or redistribute x before the rotation."
            )
    if hasattr(pos, "placements"):
        _check_mesh(xs, pos)
        if any(p.is_partial() for p in pos.placements):
            raise ArrayTypeError(
                f"pos is placed as {pos.placements}, a sum still to be made; redistribute it first."
            )
    elif parse_host(pos) is None and not _implicit_replication():
        if isinstance(source, Tables):
            raise ArrayTypeError(
                "x is a DTensor and the Rotation has plain tables; make it by rope.rotation(pos, like=x), "
                "where pos is a DTensor or a range."
            )
        raise ArrayTypeError(
            f"x is a DTensor and pos a plain {describe(pos)}, which may mean the positions of this shard or "
            "of the whole. If of this shard, give DTensor.from_local(pos, x.device_mesh, placements); if of "
            "the whole, give distribute_tensor(pos, x.device_mesh, [Replicate()] * x.device_mesh.ndim)."
        )


def _check_mesh(xs: Any, pos: Any) -> None:
    """Refuse positions or tables on another mesh, to which PyTorch does not redistribute."""
    for x in xs:
        if x.device_mesh != pos.device_mesh:
            raise ArrayTypeError(
                f"x is on {x.device_mesh} and its positions or tables on {pos.device_mesh}; make them on "
                "x's mesh: distribute_tensor(pos, x.device_mesh, [Replicate()] * x.device_mesh.ndim)."
            )


# ---- the source of a shard ----


def _arrays_only(source: Source, lib: Library, ops: Any) -> Any:
    """Return a source of arrays or of one number: a range or a list becomes an array, to be sharded."""
    if isinstance(source, Tables):
        return source
    pos = parse_host(source.values)
    if pos is None or not pos.shape:
        return source
    integers, fraction = pos.read(lib, ops, True)
    # The sum is exact: it is the float that the caller gave.
    return source._replace(values=integers if fraction is None else integers + fraction)


def _is_row_of_coordinates(source: Source) -> bool:
    if isinstance(source, Tables) or source.plan.coordinates is None:
        return False
    return bool(source.values.ndim == 1)


def _source_placements(source: Source, x: Any, seq_axis: int) -> Any:
    """Return the placements of positions or tables for x; None for a number, which serves every shard."""
    shape = getattr(source[0], "shape", None)
    if shape is None:
        return None
    lead = tuple(shape)[:-1] if isinstance(source, Tables) else without_coordinates(tuple(shape), source.plan)
    axes = paired_axes(x.ndim, len(lead), seq_axis)
    return tuple([_place(p, x, axes, lead) for p in x.placements])


def _place(placement: Any, x: Any, axes: tuple[int, ...], lead: tuple[Any, ...]) -> Any:
    """Place positions on a mesh axis as x is placed; replicate them if one position serves many rows."""
    dim = _dim(placement)
    if dim not in axes or lead[axes.index(dim)] != x.shape[dim]:
        return sys.modules[_MODULE].Replicate()
    if placement.is_shard():
        return sys.modules[_MODULE].Shard(axes.index(dim))
    # `_StridedShard`: one axis split over two mesh axes.
    return type(placement)(axes.index(dim), split_factor=placement.split_factor)


def _dim(placement: Any) -> Any:
    """Return the axis that a placement shards, or None. `is_shard()` is False for a `_StridedShard`."""
    return getattr(placement, "dim", None)


def _local_source(source: Source, x: Any, placements: Any) -> Source:
    """Return the positions or tables of x's local shard."""
    if placements is None:
        return source
    mesh = x.device_mesh
    if isinstance(source, Tables):
        cos, sin = (_to_local(table, mesh, placements, x.placements) for table in source.arrays)
        return Tables(cos, sin, source.layout)
    return Positions(_to_local(source.values, mesh, placements, x.placements), source.plan)


def _to_local(array: Any, mesh: Any, placements: Any, result_placements: Any) -> Any:
    """Return this rank's shard of an array with the placements.

    Where the array is replicated and the result sharded, the gradients of all shards are summed.
    """
    if not hasattr(array, "shape"):
        return array
    module = sys.modules[_MODULE]
    if not has_dtensor(array):
        array = _make_dtensor(array, array.shape, mesh, _replicated(mesh))
    if array.requires_grad or array.placements != tuple(placements):
        array = array.redistribute(mesh, placements)
    grad_placements = [
        module.Partial() if placement.is_replicate() and not of_result.is_replicate() else placement
        for placement, of_result in zip(placements, result_placements, strict=True)
    ]
    return array.to_local(grad_placements=grad_placements)


def _replicated(mesh: Any) -> Any:
    return (sys.modules[_MODULE].Replicate(),) * mesh.ndim


def _make_dtensor(local: Any, shape: Any, mesh: Any, placements: Any) -> Any:
    """Make a DTensor of a shard. Give the full shape, which PyTorch would infer from shards of equal size."""
    from_local = sys.modules[_MODULE].DTensor.from_local
    return from_local(local, mesh, placements, run_check=False, shape=shape, stride=_strides(local, shape))


def _strides(local: Any, shape: Any) -> tuple[Any, ...]:
    """Return the strides of the full tensor, with its axes in the memory order of the shard."""
    steps, strides = local.stride(), []
    for axis in range(len(shape)):
        stride = 1  # the size of all axes inside this axis; Dynamo does not sort by sizes that vary
        for inner in range(len(shape)):
            if steps[inner] < steps[axis] or (steps[inner] == steps[axis] and inner > axis):
                stride = stride * shape[inner]
        strides.append(stride)
    return tuple(strides)


def _implicit_replication() -> bool:
    return bool(internal(f"{_MODULE}.DTensor._op_dispatcher._allow_implicit_replication"))
