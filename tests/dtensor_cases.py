"""Cases of DTensors for `test_torch.py`: values, gradients, compiled programs, meshes, refusals.

Run as one rank of a fake process group, which communicates nothing: a value that needed a sum would be wrong.
Each function `case_...` takes a mesh of 2 x 2 and a mesh of 4, and asserts. The oracle is the call on whole
tensors, cut by PyTorch's `distribute_tensor`.
"""

import functools
import itertools
import sys
import warnings

import compare
import numpy as np
import pytest
import torch
import torch.distributed as dist
from functorch.compile import make_boxed_func
from torch._dynamo.backends.common import aot_autograd
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor, init_device_mesh
from torch.distributed.tensor.debug import CommDebugMode
from torch.distributed.tensor.experimental import implicit_replication
from torch.distributed.tensor.placement_types import _StridedShard
from torch.testing._internal.distributed.fake_pg import FakeStore

import rope_array as ra

normal = functools.partial(compare.normal, "torch")
ROPE = ra.RoPE(16, base=500_000.0, pairing="half")
PARTIAL_WIDTH = ra.RoPE(16, rotary_dim=8, rotary_start=4, attention_factor=1.25)
OTHERS = PARTIAL_WIDTH, ra.RoPE(16, out_pairing="half", scaling=ra.YaRN(4.0, 64))


def cut(tensor, mesh, *places):
    """Return a whole tensor as a DTensor; places are axes, None for replicated, or PyTorch's own."""
    names = {int: Shard, type(None): lambda _: Replicate()}
    places = [names.get(type(place), lambda place: place)(place) for place in places]
    return distribute_tensor(tensor, mesh, places, src_data_rank=None)


def check(ys, truths, xs):
    """Assert that each y has the placements of its x, and that its local tensor is the truth's part."""
    for y, truth, x in zip(ys, truths, xs, strict=True):
        assert (y.placements, y.shape, y.dtype) == (x.placements, truth.shape, truth.dtype)
        assert torch.equal(y.to_local(), cut(truth.detach(), x.device_mesh, *x.placements).to_local())


def silently(function, *arguments, **options):
    """Call a function, and assert that it communicated nothing."""
    with CommDebugMode() as communications:
        returned = function(*arguments, **options)
    assert communications.get_total_counts() == 0, dict(communications.get_comm_counts())
    return returned


def check_call(rope, dx, dpos, x, pos):
    """Check a call, its inverse, and a Rotation."""
    truth = rope.apply(x, pos)
    check([silently(rope.apply, dx, dpos)], [truth], [dx])
    check([silently(silently(rope.rotation, dpos, like=dx).apply, dx)], [truth], [dx])
    check([silently(rope.apply, dx, dpos, inverse=True)], [rope.apply(x, pos, inverse=True)], [dx])


# ---- positions, sizes ----

# Positions for an x of (batch, head, sequence, features), their sharded axis, and the axis of x with it.
HOST = [7, 0.5, range(12), [*range(6), *range(6)]]
REPLICATED = [torch.arange(12) * 1_000_003, torch.arange(12) * 0.25, torch.arange(8)[:, None]]
BATCH = torch.arange(96).reshape(8, 12)
SHARDED = [(BATCH, 0, 0), (torch.arange(12)[None].expand(8, 12), 1, 2), (torch.arange(12) * 1_000_003, 0, 2)]


def check_positions(rope, mesh, host, replicated, sharded):
    x = normal(8, 8, 12, 16)
    for dim in (None, 0, 1, 2):
        dx = cut(x, mesh, dim)
        for pos in host:
            check_call(rope, dx, pos, x, pos)
        for pos in replicated:
            check_call(rope, dx, cut(pos, mesh, None), x, pos)
        for pos, pos_dim, x_dim in sharded:
            if x_dim == dim:
                check_call(rope, dx, cut(pos, mesh, pos_dim), x, pos)


def case_positions(_, mesh):
    check_positions(ROPE, mesh, HOST, [*REPLICATED, BATCH], SHARDED)
    for rope in OTHERS:
        check_positions(rope, mesh, [], [BATCH], SHARDED)


def case_coordinates(_, mesh):
    """Coordinates of one token, a sequence and a batch."""
    rope = ra.RoPE(16, axes=ra.Axes.chunked(4, 2, 2), pairing="half")
    pos = torch.arange(8 * 12 * 3).reshape(8, 12, 3) * 1_003
    sharded = [(pos, 0, 0), (pos, 1, 2), (pos[0], 0, 2)]
    check_positions(rope, mesh, [pos[0].tolist()], [pos, pos[0], pos[0, 0]], sharded)
    with pytest.raises(ra.ShapeError, match="coordinates split"):
        rope.rotation(cut(pos, mesh, 2), like=cut(normal(8, 8, 12, 16), mesh, 0))


def case_frequencies_in_arrays(_, mesh):
    """Of each pair, of each head, and mixed; with heads, batch or sequence sharded."""
    x, rope = normal(8, 8, 12, 16), ra.RoPE(16)
    of_pairs, mixed = torch.linspace(0.1, 2, 8), torch.linspace(-2, 2, 8 * 2 * 8).reshape(8, 2, 8)
    pos = torch.arange(12) * 1_000_003
    grid = torch.stack([pos, pos.flip(0)], -1)
    for dim in (None, 0, 1, 2):
        dx = cut(x, mesh, dim)
        along = 0 if dim == 2 else None  # the positions are sharded as the sequence is
        for omegas in (of_pairs, mixed[:, 0], mixed[:, :1]):
            truth = rope.rotation(pos, like=x, inv_freq=omegas).apply(x)
            for given in (cut(pos, mesh, along), range(0, 12 * 1_000_003, 1_000_003)):
                rotation = silently(rope.rotation, given, like=dx, inv_freq=cut(omegas, mesh, None))
                check([silently(rotation.apply, dx)], [truth], [dx])
        truth = rope.rotation_mixed(grid, like=x, inv_freq=mixed).apply(x)
        rotation = silently(
            rope.rotation_mixed, cut(grid, mesh, along), like=dx, inv_freq=cut(mixed, mesh, None)
        )
        check([silently(rotation.apply, dx)], [truth], [dx])
    angles = normal(8, 8, 12, 8)
    truth = rope.rotation_of_angles(angles, like=x).apply(x)
    dx = cut(x, mesh, 1)
    rotation = silently(rope.rotation_of_angles, cut(angles, mesh, 1), like=dx)
    check([silently(rotation.apply, dx)], [truth], [dx])


def case_sizes(_, mesh):
    """Shards that are uneven or empty, and axes of size 1."""
    for sizes, dim in itertools.product([(5, 6, 7), (6, 5, 9), (3, 2, 2), (1, 1, 1)], range(3)):
        x, pos = normal(*sizes, 16), torch.arange(sizes[0] * sizes[2]).reshape(sizes[0], sizes[2])
        for pos_dim in {None, {0: 0, 1: None, 2: 1}[dim]}:
            check_call(ROPE, cut(x, mesh, dim), cut(pos, mesh, pos_dim), x, pos)
        check_call(ROPE, cut(x, mesh, dim), range(sizes[2]), x, range(sizes[2]))


# ---- gradients, compiled programs ----

AXES = {-2: {"batch": 0, "heads": 1, "sequence": 2}, -3: {"batch": 0, "sequence": 1, "heads": 2}}


def positions(length):
    return torch.arange(4 * length).reshape(4, length) * 1_000_003


def inputs(mesh, names, seq_axis, *, sharded_pos, length=6):
    """Return whole and sharded arrays: q of 4 heads, k of 2, weights of their gradients, and positions."""
    shapes = [(4, heads, length, 16) if seq_axis == -2 else (4, length, heads, 16) for heads in (4, 2)]
    full = [normal(*shape, seed=seed) for seed in (0, 1) for shape in shapes]
    sharded = [cut(tensor, mesh, *map(AXES[seq_axis].get, names)) for tensor in full]
    pos_axes = {"batch": 0, "sequence": 1} if sharded_pos else {}
    return full, sharded, cut(positions(length), mesh, *map(pos_axes.get, names))


def rotate_both(q, k, pos, rope, seq_axis):
    """Rotate by positions, and then by a Rotation."""
    q, k = rope.apply((q, k), pos, seq_axis=seq_axis)
    return rope.rotation(pos, like=q).apply((q, k), seq_axis=seq_axis)


def with_gradient(function, arrays, *arguments):
    """Return function's results for q and k, and their gradients by the weights."""
    q, k, *weights = (array.detach() for array in arrays)
    xs = q.requires_grad_(), k.requires_grad_()
    ys = function(*xs, *arguments)
    return [*ys, *torch.autograd.grad(ys, xs, weights)]


def case_gradients(mesh, _):
    for names in itertools.product(("replicated", *AXES[-2]), repeat=2):
        for seq_axis, sharded_pos, rope in ((-2, True, PARTIAL_WIDTH), (-3, False, ROPE)):
            full, sharded, pos = inputs(mesh, names, seq_axis, sharded_pos=sharded_pos)
            rotated = silently(with_gradient, rotate_both, sharded, pos, rope, seq_axis)
            check(rotated, with_gradient(rotate_both, full, positions(6), rope, seq_axis), sharded)


def case_compiled(mesh, _):
    """No graph has a collective; two compilations serve all lengths."""
    for names, seq_axis, lengths in (
        (("batch", "heads"), -2, [6]),
        (("heads", "sequence"), -2, [6, 8, 10]),
        (("sequence", "sequence"), -3, [7]),
    ):
        graphs = []

        def record(graph, example_inputs, graphs=graphs):
            graphs.append(graph)
            return make_boxed_func(graph.forward)

        torch._dynamo.reset()
        compiled = torch.compile(rotate_both, backend=aot_autograd(fw_compiler=record), fullgraph=True)
        for length in lengths:
            full, sharded, pos = inputs(mesh, names, seq_axis, sharded_pos=True, length=length)
            rotated = with_gradient(compiled, sharded, pos, ROPE, seq_axis)
            check(rotated, with_gradient(rotate_both, full, positions(length), ROPE, seq_axis), sharded)
        assert len(graphs) == 2 * min(len(lengths), 2), "forward and backward"
        assert not [node for graph in graphs for node in graph.graph.nodes if "c10d" in str(node.target)]


def case_partial_gradient(mesh, _):
    """A gradient that is still to be summed is summed once, to the placements of x."""
    x = cut(normal(4, 4, 6, 16), mesh, 0, None).requires_grad_()
    y = ROPE.apply(x, range(6))
    weight = DTensor.from_local(normal(2, 4, 6, 16), mesh, [Shard(0), Partial()])
    with CommDebugMode() as communications:
        (gradient,) = torch.autograd.grad(y, x, weight)
    assert gradient.placements == x.placements
    assert communications.get_total_counts() == 1


def case_second_gradient(mesh, _):
    def second(x, pos):
        x = x.detach().requires_grad_()
        (first,) = torch.autograd.grad(ROPE.apply(x * x, pos).sum(), x, create_graph=True)
        return torch.autograd.grad(first.sum(), x)[0]

    x, pos = normal(4, 4, 6, 16), positions(6)
    dx = cut(x, mesh, 0, 1)
    check([second(dx, cut(pos, mesh, None, None))], [second(x, pos)], [dx])


# ---- placements, memory ----


def case_tuples_of_other_placements(mesh, _):
    """Arrays of one call may be placed in different ways, and have other dtypes."""
    dtypes, places = (torch.float32, torch.float64, torch.bfloat16), ((0, 1), (2, None), (None, 2))
    xs = [normal(4, 2 * i + 2, 6, 16, dtype=dtype) for i, dtype in enumerate(dtypes)]
    dxs = [cut(x, mesh, *place) for x, place in zip(xs, places, strict=True)]
    pos = positions(6)
    check(ROPE.apply(tuple(dxs), cut(pos, mesh, None, None)), ROPE.apply(tuple(xs), pos), dxs)


def case_identity(_, mesh):
    dx = cut(normal(8, 2, 12, 16), mesh, 0)
    y = silently(ra.apply, dx, 3, rotary_dim=0)
    check([y], [normal(8, 2, 12, 16)], [dx])
    assert y.to_local().data_ptr() != dx.to_local().data_ptr()


def case_flattened_axes(mesh, _):
    """Flattening two sharded axes gives a placement that is no Shard."""
    if torch.__version__ < "2.12":
        return  # PyTorch refuses to flatten them
    x, pos = normal(4, 6, 2, 16), positions(6)
    dx = cut(x, mesh, 0, 1)
    truth = cut(ROPE.apply(x, pos, seq_axis=-3), mesh, 0, 1).to_local().flatten(0, 1)
    for dpos in (cut(pos, mesh, 0, 1).flatten(), cut(pos.flatten(), mesh, None, None)):
        y = ROPE.apply(dx.flatten(0, 1), dpos, seq_axis=0)
        assert isinstance(y.placements[1], _StridedShard)
        assert torch.equal(y.to_local(), truth)
    with pytest.raises(ra.ShapeError, match="members of a pair"):
        ROPE.apply(cut(x, mesh, _StridedShard(3, split_factor=2), 3), 5)


def case_strides(mesh, _):
    """The DTensor states the strides of its shard: else a view of it fails."""
    x = normal(4, 6, 2, 16)
    for places in ((0, 2), (1, None)):
        permuted = cut(x, mesh, *places).transpose(1, 2)  # (batch, heads, sequence, features)
        rows = cut(x.transpose(1, 2), mesh, *permuted.placements)
        for dx in (permuted, rows):
            for y in (ROPE.apply(dx, positions(6).tolist()), ROPE.rotation(range(6), like=dx).apply(dx)):
                assert y.is_contiguous() == y.to_local().is_contiguous()
                assert y.transpose(1, 2).flatten(2).shape == (4, 6, 32)


# ---- refusals ----


def case_plain_positions(_, mesh):
    """They could be of the shard or of the whole: the message has a call for each, and both are right."""
    x, pos = normal(8, 2, 12, 16), torch.arange(12)
    truth, dx = ROPE.apply(x, pos), cut(x, mesh, 2)
    of_shard = cut(pos, mesh, 0).to_local()
    names = {"DTensor": DTensor, "distribute_tensor": distribute_tensor, "Replicate": Replicate, "x": dx}
    for refused in (pos, of_shard):
        with pytest.raises(ra.ArrayTypeError, match="of this shard, give") as caught:
            ROPE.apply(dx, refused)
        with pytest.raises(ra.ArrayTypeError):
            ROPE.rotation(refused, like=dx)
    advice = str(caught.value).partition("of the whole, give ")[2].rstrip(".")
    check([ROPE.apply(dx, eval(advice, names | {"pos": pos}))], [truth], [dx])
    dpos = DTensor.from_local(of_shard, dx.device_mesh, [Shard(0)])
    check([ROPE.apply(dx, dpos)], [truth], [dx])
    with implicit_replication():
        check([silently(ROPE.apply, dx, pos)], [truth], [dx])


def case_refusals(other_mesh, mesh):
    x, pos = normal(8, 2, 12, 16), torch.arange(12)
    split, dx = cut(x, mesh, 3), cut(x, mesh, 0)
    partial = functools.partial(DTensor.from_local, device_mesh=mesh, placements=[Partial()], run_check=False)
    on_other = cut(pos, other_mesh, None, None)
    rotation = ROPE.rotation(on_other, like=cut(x, other_mesh, None, None))
    for error, match, call in (
        (ra.ShapeError, "one shard", lambda: ROPE.apply(split, 5)),
        (ra.ShapeError, "one shard", lambda: ROPE.rotation(range(12), like=dx).apply(split)),
        (ra.ShapeError, "redistribute", lambda: ROPE.apply(partial(x), 5)),
        (ra.ArrayTypeError, "redistribute", lambda: ROPE.apply(dx, partial(pos))),
        (ra.ArrayTypeError, "plain", lambda: ROPE.apply((dx, x), 5)),
        (ra.ArrayTypeError, "plain", lambda: ROPE.apply(x, cut(pos, mesh, None))),
        (ra.ArrayTypeError, "plain tables", lambda: ROPE.rotation(range(12), like=x).apply(dx)),
        (ra.RoPEError, "DTensor", lambda: ROPE.rotation(range(12), like=dx).apply(x)),
        (ra.ShapeError, "line up", lambda: ROPE.apply(dx, cut(torch.arange(11), mesh, None))),
        (ra.ArrayTypeError, "numpy", lambda: ROPE.apply(dx, np.arange(12))),
        (ra.ArrayTypeError, "x's mesh", lambda: ROPE.apply(dx, on_other)),
        (ra.ArrayTypeError, "x's mesh", lambda: ROPE.rotation(on_other, like=dx)),
        (ra.ArrayTypeError, "x's mesh", lambda: rotation.apply(dx)),
    ):
        with pytest.raises(error, match=match):
            call()


def main():
    """Run all cases as the rank that the command line names, in a group without other processes."""
    warnings.simplefilter("error")
    dist.init_process_group("fake", store=FakeStore(), rank=int(sys.argv[1]), world_size=4)
    meshes = init_device_mesh("cpu", (2, 2)), init_device_mesh("cpu", (4,))
    for name, case in [*globals().items()]:  # Dynamo adds names
        if name.startswith("case_"):
            case(*meshes)
    dist.destroy_process_group()
