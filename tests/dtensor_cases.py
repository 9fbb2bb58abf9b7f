"""Cases of DTensors for `test_torch.py`, run as one rank of a fake process group.

Each function `case_...` takes the mesh and asserts; `main` runs all cases and fails if a case fails.
"""

import functools
import itertools
import sys
import traceback
import warnings

import compare
import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor, init_device_mesh
from torch.distributed.tensor.debug import CommDebugMode
from torch.distributed.tensor.experimental import implicit_replication
from torch.testing._internal.distributed.fake_pg import FakeStore

import rope_array as ra
from rope_array.testing._contract import assert_contract

normal = functools.partial(compare.normal, "torch")
WORLD = 4
FIELDS = [
    {},
    {"pairing": "half", "base": 500_000.0},
    {"pairing": "half", "rotary_dim": 8, "rotary_start": 4, "attention_factor": 1.25},
    {"out_pairing": "half", "rotary_dim": 12},
    {"scaling": ra.YaRN(4.0, 64)},
]
ROPE = ra.RoPE(16, base=500_000.0, pairing="half")
INTERLEAVED = ra.RoPE(16, rotary_dim=12)
DIMS = {"replicated": None, "batch": 0, "heads": 1, "sequence": 2}


def shard(tensor, dim, mesh):
    """Return this rank's part of a tensor, or the whole tensor if dim is None; the last part may be short."""
    if dim is None:
        return tensor
    size = -(-tensor.shape[dim] // WORLD)
    start = min(mesh.get_local_rank() * size, tensor.shape[dim])
    return tensor.narrow(dim, start, min(size, tensor.shape[dim] - start))


def placed(tensor, dim, mesh):
    place = Replicate() if dim is None else Shard(dim)
    whole = {"shape": tensor.shape, "stride": tensor.stride()}
    return DTensor.from_local(shard(tensor, dim, mesh), mesh, [place], run_check=False, **whole)


def silently(function, *arguments, **options):
    """Call a function, and assert that it communicated nothing."""
    with CommDebugMode() as communications:
        result = function(*arguments, **options)
    assert communications.get_total_counts() == 0, dict(communications.get_comm_counts())
    return result


def check(y, x, truth, dim, mesh):
    """Assert that y has the placements of x, and that its local tensor is this rank's part of the truth."""
    assert y.placements == x.placements, (y.placements, x.placements)
    assert (y.shape, y.dtype) == (x.shape, x.dtype)
    assert torch.equal(y.to_local(), shard(truth, dim, mesh)), "values"


# Positions for an x of (batch, head, sequence, features), and the sharded axis of the positions.
POSITIONS = {
    "number": (7, None),
    "float": (0.5, None),
    "range": (range(12), None),
    "list": ([*range(6), *range(6)], None),
    "replicated": (torch.arange(12) * 1_000_003, None),
    "replicated floats": (torch.arange(12) * 0.25, None),
    "for each batch": (torch.arange(96).reshape(8, 12), None),
    "one for each batch": (torch.arange(8)[:, None], None),
    "batch sharded": (torch.arange(96).reshape(8, 12), 0),
    "sequence sharded": (torch.arange(12)[None].expand(8, 12), 1),
    "sequence sharded alone": (torch.arange(12) * 1_000_003, 0),
}
TOGETHER = {"batch sharded": 0, "sequence sharded": 2, "sequence sharded alone": 2}


def check_positions(dim, name, mesh):
    pos, pos_dim = POSITIONS[name]
    x = normal(8, 8, 12, 16)
    own = placed(pos, pos_dim, mesh) if isinstance(pos, torch.Tensor) else pos
    for fields in FIELDS:
        rope = ra.RoPE(16, **fields)
        truth, dx = rope.apply(x, pos), placed(x, dim, mesh)
        check(silently(rope.apply, dx, own), dx, truth, dim, mesh)
        rotation = silently(rope.rotation, own, like=dx)
        check(silently(rotation.apply, dx), dx, truth, dim, mesh)
        inverse = silently(rope.apply, dx, own, inverse=True)
        check(inverse, dx, rope.apply(x, pos, inverse=True), dim, mesh)
        if "scaling" not in fields:  # the definition takes rules as dicts
            numbers = pos.numpy() if isinstance(pos, torch.Tensor) else pos
            assert_contract(truth.numpy(), x.numpy(), numbers, **fields)


def check_sizes(sizes, dim, mesh):
    """Shards that are uneven or empty, and axes of size 1."""
    x = normal(*sizes, 16)
    pos = torch.arange(sizes[0] * sizes[2]).reshape(sizes[0], sizes[2]) * 1_000_003
    dx, own = placed(x, dim, mesh), placed(pos, {0: 0, 1: None, 2: 1}[dim], mesh)
    for rope in (ROPE, INTERLEAVED):
        truth = rope.apply(x, pos)
        check(silently(rope.apply, dx, own), dx, truth, dim, mesh)
        check(silently(rope.rotation(own, like=dx).apply, dx), dx, truth, dim, mesh)
        check(silently(rope.apply, dx, placed(pos, None, mesh)), dx, truth, dim, mesh)
        check(silently(rope.apply, dx, range(sizes[2])), dx, rope.apply(x, range(sizes[2])), dim, mesh)
        check(silently(rope.apply, dx, 5), dx, rope.apply(x, 5), dim, mesh)


def case_gradient(mesh):
    x, weight, pos = normal(8, 8, 12, 16), normal(8, 8, 12, 16, seed=1), torch.arange(12)
    truth = ROPE.rotation(pos, like=x).adjoint().apply(weight)
    for dim in DIMS.values():
        dx, own = placed(x, dim, mesh).requires_grad_(), placed(pos, 0 if dim == 2 else None, mesh)
        y = silently(ROPE.apply, dx, own)
        (gradient,) = silently(torch.autograd.grad, y, dx, placed(weight, dim, mesh))
        check(gradient, dx, truth, dim, mesh)


def case_tuple_and_seq_axis(mesh):
    q, k = normal(8, 12, 4, 16), normal(8, 12, 2, 16, dtype=torch.bfloat16)
    pos = torch.arange(96).reshape(8, 12)
    truth = ROPE.apply((q, k), pos, seq_axis=-3)
    for dim in (0, 1):
        xs, own = (placed(q, dim, mesh), placed(k, dim, mesh)), placed(pos, dim, mesh)
        for y, x, t in zip(silently(ROPE.apply, xs, own, seq_axis=-3), xs, truth, strict=True):
            check(y, x, t, dim, mesh)


def case_coordinates(mesh):
    """Coordinates of one token, a sequence and a batch: replicated, sharded like x, and on the host."""
    x, rope = normal(8, 8, 12, 16), ra.RoPE(16, axes=ra.Axes.chunked(4, 2, 2), pairing="half")
    pos = torch.arange(8 * 12 * 3).reshape(8, 12, 3) * 1_003
    for dim in DIMS.values():
        dx = placed(x, dim, mesh)
        cases = ((pos, None), (pos, 0), (pos, 1), (pos[0], None), (pos[0], 0), (pos[0, 0], None))
        for given, pos_dim in cases:
            truth = rope.apply(x, given)
            if pos_dim is None or {0: 2 if given.ndim == 2 else 0, 1: 2}[pos_dim] == dim:
                own = placed(given, pos_dim, mesh)
                check(silently(rope.apply, dx, own), dx, truth, dim, mesh)
                check(silently(rope.rotation(own, like=dx).apply, dx), dx, truth, dim, mesh)
        check(silently(rope.apply, dx, pos[0].tolist()), dx, rope.apply(x, pos[0]), dim, mesh)
        with pytest.raises(ra.ShapeError, match="coordinates split"):
            rope.rotation(placed(pos, 2, mesh), like=dx)


def case_dtypes(mesh):
    for dtype in (torch.float16, torch.bfloat16, torch.float64):
        x, pos = normal(8, 2, 12, 16, dtype=dtype), torch.arange(12) * 1_000_003
        dx, own = placed(x, 2, mesh), placed(pos, 0, mesh)
        check(silently(ROPE.apply, dx, own), dx, ROPE.apply(x, pos), 2, mesh)
    mixed = placed(x, 2, mesh), placed(x.float(), 2, mesh)
    for y, dx, truth in zip(
        silently(ROPE.apply, mixed, own), mixed, ROPE.apply((x, x.float()), pos), strict=True
    ):
        check(y, dx, truth, 2, mesh)


def case_identity(mesh):
    x = normal(8, 2, 12, 16)
    dx = placed(x, 0, mesh)
    y = silently(ra.apply, dx, 3, rotary_dim=0)
    check(y, dx, x, 0, mesh)
    assert y.to_local().data_ptr() != dx.to_local().data_ptr()


def case_plain_position(mesh):
    x, pos = normal(8, 2, 12, 16), torch.arange(12)
    truth, dx = ROPE.apply(x, pos), placed(x, 2, mesh)
    for refused in (pos, shard(pos, 0, mesh), shard(pos, 0, mesh).float()):
        for call in (ROPE.apply, lambda dx, pos: ROPE.rotation(pos, like=dx)):
            with pytest.raises(ra.ArrayTypeError) as caught:
                call(dx, refused)
            message = str(caught.value)
            assert "DTensor.from_local(pos, x.device_mesh, placements)" in message
            assert "distribute_tensor(pos, x.device_mesh, [Replicate()] * x.device_mesh.ndim)" in message
    of_shard = DTensor.from_local(shard(pos, 0, mesh), dx.device_mesh, [Shard(0)])
    check(ROPE.apply(dx, of_shard), dx, truth, 2, mesh)
    of_whole = distribute_tensor(pos, dx.device_mesh, [Replicate()] * dx.device_mesh.ndim, src_data_rank=None)
    check(ROPE.apply(dx, of_whole), dx, truth, 2, mesh)
    with implicit_replication():
        check(silently(ROPE.apply, dx, pos), dx, truth, 2, mesh)
    with pytest.raises(ra.ArrayTypeError):
        ROPE.apply(dx, pos)


def case_plain_tables(mesh):
    x = normal(8, 2, 12, 16)
    dx = placed(x, 2, mesh)
    plain = ROPE.rotation(range(12), like=x)
    with pytest.raises(ra.ArrayTypeError, match=r"the Rotation has plain tables; make it by rope\.rotation"):
        plain.apply(dx)
    with pytest.raises(ra.RoPEError):
        ROPE.rotation(range(12), like=dx).apply(x)


def case_refusals(mesh):
    x, pos = normal(8, 2, 12, 16), torch.arange(12)
    split, whole = placed(x, 3, mesh), placed(x, 0, mesh)
    one_shard = "members of a pair must be in one shard"
    with pytest.raises(ra.ShapeError, match=one_shard):
        ROPE.apply(split, 5)
    with pytest.raises(ra.ShapeError, match=one_shard):
        ROPE.rotation(range(12), like=whole).apply(split)
    with pytest.raises(ra.ShapeError, match="redistribute"):
        ROPE.apply(DTensor.from_local(x, mesh, [Partial()], run_check=False), 5)
    with pytest.raises(ra.ArrayTypeError, match="plain"):
        ROPE.apply((whole, x), 5)
    with pytest.raises(ra.ArrayTypeError, match="plain"):
        ROPE.apply(x, placed(pos, None, mesh))
    with pytest.raises(ra.ArrayTypeError, match="redistribute"):
        ROPE.apply(whole, DTensor.from_local(pos, mesh, [Partial()], run_check=False))
    with pytest.raises(ra.ShapeError, match="line up"):
        ROPE.apply(whole, placed(torch.arange(11), None, mesh))
    with pytest.raises(ra.ArrayTypeError, match="numpy"):
        ROPE.apply(whole, np.arange(12))


def case_mesh_of_two_axes(mesh):
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "context"))
    row, column = mesh.get_coordinate()
    batch, sequence = slice(2 * row, 2 * row + 2), slice(3 * column, 3 * column + 3)
    x, pos = normal(4, 2, 6, 16), torch.arange(24).reshape(4, 6)
    dx = DTensor.from_local(x[batch, :, sequence], mesh, [Shard(0), Shard(2)], run_check=False)
    own = DTensor.from_local(pos[batch, sequence], mesh, [Shard(0), Shard(1)], run_check=False)
    y = silently(ROPE.apply, dx, own)
    assert y.placements == dx.placements
    assert torch.equal(y.to_local(), ROPE.apply(x, pos)[batch, :, sequence])
    replicated = DTensor.from_local(pos, mesh, [Replicate(), Replicate()], run_check=False)
    y = silently(ROPE.apply, dx, replicated)
    assert y.placements == dx.placements
    assert torch.equal(y.to_local(), ROPE.apply(x, pos)[batch, :, sequence])


def cases():
    """Yield the name and the function of every case."""
    for (where, dim), name in itertools.product(DIMS.items(), POSITIONS):
        if TOGETHER.get(name, dim) == dim:
            yield f"{where}, positions {name}", functools.partial(check_positions, dim, name)
    # In the last two, every axis has fewer elements than there are ranks.
    for sizes, (where, dim) in itertools.product(
        [(5, 6, 7), (6, 5, 9), (3, 2, 2), (1, 1, 1)], [*DIMS.items()][1:]
    ):
        yield f"sizes {sizes} by {where}", functools.partial(check_sizes, sizes, dim)
    for name, case in globals().items():
        if name.startswith("case_"):
            yield name, case


def main():
    run(cases(), (WORLD,))


def run(cases, sizes, names=None):
    """Run cases as the rank that the command line names, in a group without other processes."""
    warnings.simplefilter("error")
    dist.init_process_group("fake", store=FakeStore(), rank=int(sys.argv[1]), world_size=WORLD)
    mesh, failed = init_device_mesh("cpu", sizes, mesh_dim_names=names), []
    for name, case in cases:
        try:
            case(mesh)
        except (Exception, pytest.fail.Exception):
            failed.append(f"{name}: {traceback.format_exc()}")
    dist.destroy_process_group()
    if failed:
        raise SystemExit("\n".join([*failed, f"{len(failed)} cases failed"]))
