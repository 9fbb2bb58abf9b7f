"""Cases of DTensors for `test_torch_distributed.py`: gradients, compilation, meshes of two axes, placements.

Run as one rank of a fake process group, which communicates nothing: a value that needed a sum would be wrong.
Each function `case_...` takes a mesh of 2 × 2 and asserts. The oracle is the call on whole tensors, cut by
PyTorch's `distribute_tensor`.
"""

import functools
import itertools

import compare
import dtensor_cases
import pytest
import torch
from functorch.compile import make_boxed_func
from torch._dynamo.backends.common import aot_autograd
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor, init_device_mesh
from torch.distributed.tensor.debug import CommDebugMode
from torch.distributed.tensor.placement_types import _StridedShard

import rope_array as ra

normal = functools.partial(compare.normal, "torch")
ROPE = ra.RoPE(16, base=500_000.0, pairing="half")
PARTIAL_WIDTH = ra.RoPE(16, rotary_dim=12, attention_factor=1.25)
AXES = {-2: {"batch": 0, "heads": 1, "sequence": 2}, -3: {"batch": 0, "sequence": 1, "heads": 2}}
NAMES = ["replicated", "batch", "heads", "sequence"]


def positions(length):
    return torch.arange(4 * length).reshape(4, length) * 1_000_003


def cut(tensor, mesh, places):
    return distribute_tensor(tensor, mesh, places, src_data_rank=None)


POS = positions(6)


def placements(names, axes):
    return [Shard(axes[name]) if name in axes else Replicate() for name in names]


def inputs(mesh, names, seq_axis, *, sharded_pos, length=6):
    """Return whole and sharded arrays: q of 4 heads, k of 2, weights of their gradients, and positions."""
    shapes = [(4, heads, length, 16) if seq_axis == -2 else (4, length, heads, 16) for heads in (4, 2)]
    whole = [normal(*shape, seed=seed) for seed in (0, 1) for shape in shapes]
    places = placements(names, AXES[seq_axis])
    parts = [cut(tensor, mesh, places) for tensor in whole]
    pos_axes = {"batch": 0, "sequence": 1} if sharded_pos else {}
    return whole, parts, cut(positions(length), mesh, placements(names, pos_axes))


def rotate_both(q, k, pos, rope, seq_axis):
    """Rotate by positions, and then by a Rotation."""
    q, k = rope.apply((q, k), pos, seq_axis=seq_axis)
    return rope.rotation(pos, like=q).apply((q, k), seq_axis=seq_axis)


def with_gradient(function, arrays, *arguments):
    """Return function's results for q and k, and their gradients by the weights."""
    q, k, *weights = arrays
    q, k = q.detach().requires_grad_(), k.detach().requires_grad_()
    ys = function(q, k, *arguments)
    return [*ys, *torch.autograd.grad(ys, (q, k), weights)]


def check(found, whole, parts, mesh):
    for y, truth, part in zip(found, whole, parts, strict=True):
        assert y.placements == part.placements, (y.placements, part.placements)
        assert y.shape == truth.shape
        assert torch.equal(y.to_local(), cut(truth.detach(), mesh, part.placements).to_local())


def check_gradient(names, mesh):
    for seq_axis, sharded_pos, rope in itertools.product((-2, -3), (False, True), (ROPE, PARTIAL_WIDTH)):
        whole, parts, pos = inputs(mesh, names, seq_axis, sharded_pos=sharded_pos)
        with CommDebugMode() as communications:
            found = with_gradient(rotate_both, parts, pos, rope, seq_axis)
        assert communications.get_total_counts() == 0, communications.get_comm_counts()
        check(found, with_gradient(rotate_both, whole, POS, rope, seq_axis), parts, mesh)


def check_compiled(names, seq_axis, lengths, mesh):
    """No graph has a collective; two compilations serve all lengths."""
    graphs = []

    def record(graph, example_inputs):
        graphs.append(graph)
        return make_boxed_func(graph.forward)

    torch._dynamo.reset()
    compiled = torch.compile(rotate_both, backend=aot_autograd(fw_compiler=record), fullgraph=True)
    for length in lengths:
        whole, parts, pos = inputs(mesh, names, seq_axis, sharded_pos=True, length=length)
        found = with_gradient(compiled, parts, pos, ROPE, seq_axis)
        check(found, with_gradient(rotate_both, whole, positions(length), ROPE, seq_axis), parts, mesh)
    assert len(graphs) == 2 * min(len(lengths), 2), "forward and backward"
    assert not [node for graph in graphs for node in graph.graph.nodes if "c10d" in str(node.target)]


def case_flattened_axes(mesh):
    """Flattening two sharded axes gives a placement that is no Shard."""
    x = normal(4, 6, 2, 16)
    dx = cut(x, mesh, [Shard(0), Shard(1)])
    truth = cut(ROPE.apply(x, POS, seq_axis=-3), mesh, [Shard(0), Shard(1)]).to_local().flatten(0, 1)
    own = cut(POS, mesh, [Shard(0), Shard(1)]).flatten()
    for pos in (own, cut(POS.flatten(), mesh, [Replicate(), Replicate()])):
        y = ROPE.apply(dx.flatten(0, 1), pos, seq_axis=0)
        assert isinstance(y.placements[1], _StridedShard)
        assert torch.equal(y.to_local(), truth)
    with pytest.raises(ra.ShapeError, match="members of a pair"):
        ROPE.apply(cut(x, mesh, [_StridedShard(3, split_factor=2), Shard(3)]), 5)


def case_strides(mesh):
    """The DTensor states the strides of its shard: else a view of it fails."""
    x = normal(4, 6, 2, 16)
    for places in ([Shard(0), Shard(2)], [Shard(1), Replicate()]):
        permuted = cut(x, mesh, places).transpose(1, 2)  # (batch, heads, sequence, features)
        rows = cut(x.transpose(1, 2), mesh, permuted.placements)
        for dx in (permuted, rows):
            for y in (ROPE.apply(dx, POS.tolist()), ROPE.rotation(range(6), like=dx).apply(dx)):
                assert y.is_contiguous() == y.to_local().is_contiguous()
                assert y.transpose(1, 2).flatten(2).shape == (4, 6, 32)


def case_other_mesh(mesh):
    other, x = init_device_mesh("cpu", (4,)), normal(4, 2, 6, 16)
    dx = cut(x, mesh, [Shard(0), Replicate()])
    pos = cut(torch.arange(6), other, [Replicate()])
    rotation = ROPE.rotation(pos, like=cut(x, other, [Replicate()]))
    for call in (
        lambda: ROPE.apply(dx, pos),
        lambda: rotation.apply(dx),
        lambda: ROPE.rotation(pos, like=dx),
    ):
        with pytest.raises(ra.ArrayTypeError, match="make them on x's mesh"):
            call()


def case_tuples_of_other_placements(mesh):
    """Arrays of one call may be placed in different ways; float64 too."""
    q, k = normal(4, 4, 6, 16), normal(4, 2, 6, 16, dtype=torch.float64)
    xs = cut(q, mesh, [Shard(0), Shard(1)]), cut(k, mesh, [Shard(2), Replicate()])
    pos = cut(POS, mesh, [Replicate(), Replicate()])
    check(ROPE.apply(xs, pos), ROPE.apply((q, k), POS), xs, mesh)


def case_partial_gradient(mesh):
    """A gradient that is still to be summed is summed once, to the placements of x."""
    x = cut(normal(4, 4, 6, 16), mesh, [Shard(0), Replicate()]).requires_grad_()
    y = ROPE.apply(x, range(6))
    weight = DTensor.from_local(normal(2, 4, 6, 16), mesh, [Shard(0), Partial()])
    with CommDebugMode() as communications:
        (gradient,) = torch.autograd.grad(y, x, weight)
    assert gradient.placements == x.placements
    assert communications.get_total_counts() == 1


def case_second_gradient(mesh):
    def second(x, pos):
        x = x.detach().requires_grad_()
        (first,) = torch.autograd.grad(ROPE.apply(x * x, pos).sum(), x, create_graph=True)
        return torch.autograd.grad(first.sum(), x)[0]

    x = normal(4, 4, 6, 16)
    dx = cut(x, mesh, [Shard(0), Shard(1)])
    pos = cut(POS, mesh, [Replicate(), Replicate()])
    check([second(dx, pos)], [second(x, POS)], [dx], mesh)


def cases():
    """Yield the name and the function of every case."""
    for names in itertools.product(NAMES, repeat=2):
        yield f"gradient, {' and '.join(names)}", functools.partial(check_gradient, names)
    for names, seq_axis, lengths in (
        (("batch", "heads"), -2, [6]),
        (("sequence", "replicated"), -3, [6]),
        (("heads", "sequence"), -2, [6, 8, 10, 12]),
        (("sequence", "sequence"), -3, [7]),
    ):
        yield f"compiled, {' and '.join(names)}", functools.partial(check_compiled, names, seq_axis, lengths)
    for name, case in [*globals().items()]:  # Dynamo adds names
        if name.startswith("case_"):
            yield name, case


def main():
    dtensor_cases.run(cases(), (2, 2), ("data", "model"))
