"""Cases for `test_torch_distributed.py` that communicate: run by torchrun on processes of the backend gloo.

Each function `case_...` takes a mesh of all processes and asserts. The oracle is the same on whole arrays in
one process; sums are in another order than there. The arguments are examples of the documentation: in the
processes of the cases, they import PyTorch once.
"""

import functools
import runpy
import sys
import warnings

import compare
import pytest
import test_torch_modules as modules
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import Replicate, Shard, distribute_tensor, init_device_mesh
from torch.distributed.tensor.debug import CommDebugMode
from torch.utils.checkpoint import checkpoint

import rope_array as ra
from rope_array.torch import RotaryEmbedding

normal = functools.partial(compare.normal, "torch")
ROPE = ra.RoPE(16, pairing="half")
close = functools.partial(torch.testing.assert_close, rtol=1e-5, atol=1e-6)


# ---- gradients of positions and frequencies: each shard of x has a part of the sum ----


def summed_gradient(call, x, weight, wanted):
    """Return the gradient of `wanted`, a leaf of the function `call`, and the communication for it."""
    wanted = wanted.detach().requires_grad_()
    y = call(x, wanted)
    with CommDebugMode() as communications:
        (gradient,) = torch.autograd.grad(y, wanted, weight)
    return gradient, communications.get_total_counts()


def by_table(x, pos):
    return ROPE.rotation(pos, like=x).apply(x)


def by_frequencies(x, inv_freq):
    return ROPE.rotation(range(6), like=x, inv_freq=inv_freq).apply(x)


def case_gradients_of_shared_arrays(mesh):
    x, weight = normal(4, 2, 6, 16), normal(4, 2, 6, 16, seed=1)
    pos, inv_freq = torch.arange(6) * 0.75, torch.linspace(1, 0.1, 8)
    for call, wanted in ((ROPE.apply, pos), (by_table, pos), (by_frequencies, inv_freq)):
        truth, _ = summed_gradient(call, x, weight, wanted)
        for place in (Replicate(), Shard(0), Shard(1), Shard(2)):
            dx, dweight = (distribute_tensor(one, mesh, [place]) for one in (x, weight))
            shared = distribute_tensor(wanted, mesh, [Replicate()])
            gradient, number = summed_gradient(call, dx, dweight, shared)
            assert gradient.placements == (Replicate(),)
            close(gradient.to_local(), truth)
            assert bool(number) == place.is_shard(), "nothing is summed if x is whole everywhere"
    dx, dweight = (distribute_tensor(one, mesh, [Shard(2)]) for one in (x, weight))
    own = distribute_tensor(pos, mesh, [Shard(0)])
    gradient, number = summed_gradient(ROPE.apply, dx, dweight, own)
    close(gradient.full_tensor(), summed_gradient(ROPE.apply, x, weight, pos)[0])
    assert not number, "each rank has the whole gradient of its positions"


# ---- FSDP2 ----


class Layer(nn.Module):
    """Attention of one head; the rotary module is given, or a Rotation is passed in."""

    def __init__(self, rotary=None):
        super().__init__()
        self.qkv, self.rotary = nn.Linear(16, 48), rotary

    def forward(self, x, positions):
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        q, k = positions.apply((q, k)) if self.rotary is None else self.rotary(q, k, positions)
        return x + nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)


class Model(nn.Module):
    def __init__(self, *layers, checkpointed=False):
        super().__init__()
        self.layers, self.checkpointed = nn.ModuleList(layers), checkpointed

    def forward(self, x, positions):
        for layer in self.layers:
            x = (
                checkpoint(layer, x, positions, use_reentrant=False)
                if self.checkpointed
                else layer(x, positions)
            )
        return x.square().mean()


def losses(make, mesh=None, prepare=lambda layer: None, steps=4):
    """Train a model; with a mesh, FSDP2 shards it and each rank has a part of the batch."""
    torch.manual_seed(0)
    model, x, positions = make(), normal(4, 6, 16), torch.arange(6)
    if mesh is not None:
        for layer in model.layers:
            prepare(layer)
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
        x = x.chunk(mesh.size())[mesh.get_local_rank()]
    assert not [name for name in model.state_dict() if "rotary" in name and "log_scale" not in name]
    optimizer, found = torch.optim.SGD(model.parameters(), lr=0.1), []
    for _ in range(steps):
        loss = model(x, positions)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        found.append(loss.detach())
    total = torch.stack(found)
    if mesh is not None:
        dist.all_reduce(total)
        total /= mesh.size()
    return total


def case_fsdp_compiled_and_checkpointed(mesh):
    def make(checkpointed=False):
        return Model(*(Layer(RotaryEmbedding(ROPE)) for _ in range(2)), checkpointed=checkpointed)

    truth = losses(make)
    for checkpointed in (False, True):
        found = losses(
            functools.partial(make, checkpointed),
            mesh,
            lambda layer: layer.compile(backend="aot_eager", fullgraph=True),
        )
        close(found, truth)


class Rotating(Model):
    """A model that makes one Rotation for all layers."""

    def forward(self, x, positions):
        return super().forward(x, ROPE.rotation(positions, like=x))


def case_fsdp_in_mixed_precision(mesh):
    """FSDP2 casts floating inputs of a module: a Rotation among them is refused, and both remedies work."""
    x, positions, half = normal(2, 6, 16), torch.arange(6) * 1_000_003, torch.bfloat16

    def loss(model, layer_casts):
        for layer in model.layers:
            policy = MixedPrecisionPolicy(param_dtype=half, cast_forward_inputs=layer_casts)
            fully_shard(layer, mesh=mesh, mp_policy=policy)
        return fully_shard(model, mesh=mesh, mp_policy=MixedPrecisionPolicy(param_dtype=half))(x, positions)

    def made(cls, *arguments):
        torch.manual_seed(0)
        return cls(*(Layer(*arguments) for _ in range(2)))

    with pytest.raises(
        ra.ArrayTypeError, match=r"FSDP casts .* Pass the positions on .* cast_forward_inputs=F"
    ):
        loss(made(Rotating), True)
    with torch.no_grad():
        truth = made(Rotating).to(half)(x.to(half), positions)
    assert torch.equal(loss(made(Model, RotaryEmbedding(ROPE)), True), truth)
    assert torch.equal(loss(made(Rotating), False), truth)


# ---- the modules ----


def step(model, x, pos):
    """Return the result, and the whole gradients of the parameters."""
    y = model(x, pos)
    y.float().square().sum().backward()
    return [y.detach(), *(getattr(p.grad, "full_tensor", lambda p=p: p.grad)() for p in model.parameters())]


def case_modules(mesh):
    """Each rank has the whole batch: a mean of its gradients is the gradient of one process."""
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16)
    for name, make in modules.MODULES.items():
        model = modules.Attention(modules.changed(make()))
        x, pos = normal(2, 5, 32), modules.positions_for(model.rotary, 5)
        state = {key: value.clone() for key, value in model.state_dict().items()}
        truth = step(model, x, pos)

        def fresh(first=False, make=make, state=state, **options):
            model = modules.Attention(make())
            model.load_state_dict(state)
            if first:  # the rotary module is a group of its own
                fully_shard(model.rotary, mesh=mesh)
            return fully_shard(model, mesh=mesh, **options) if options else model

        for model in (
            nn.parallel.DistributedDataParallel(fresh()),
            fresh(reshard_after_forward=True),
            fresh(first=True, reshard_after_forward=True),
        ):
            close(step(model, x, pos), truth)

        # In bfloat16 the parameters of the rotary module need a group of their own.
        step(fresh(first=True, mp_policy=policy), x, pos)
        # `rotation` is no forward: fully_shard gathers for it only if it is registered.
        sharded = fully_shard(fresh().rotary, mesh=mesh)
        if name != "fixed":
            with pytest.raises(ra.ArrayTypeError, match="shard this module first"):
                step(fresh(mp_policy=policy), x, pos)
            with pytest.raises(
                ra.ArrayTypeError, match=r'register_fsdp_forward_method\(module, "rotation"\)'
            ):
                sharded.rotation(pos, like=x[..., :16])
        register_fsdp_forward_method(sharded, "rotation")
        sharded.rotation(pos, like=x[..., :16])

        # Without memory at first, then sharded, allocated and initialised.
        with torch.device("meta"):
            model = modules.Attention(make())
        fully_shard(model, mesh=mesh).to_empty(device="cpu")
        model.qkv.reset_parameters()
        if name != "fixed":
            model.rotary.reset_parameters()
        for parameter in model.rotary.parameters():
            value = parameter.full_tensor().detach()
            if name == "mixed":  # directions are random
                value = torch.linalg.vector_norm(value, dim=1) / torch.tensor(modules.HALF.frequencies) - 1
            close(value, torch.zeros_like(value))
        assert torch.isfinite(model(x, pos)).all()


def main():
    warnings.filterwarnings("error", module="rope_array")  # PyTorch warns while it compiles FSDP2
    dist.init_process_group("gloo")
    with pytest.MonkeyPatch.context() as patch:
        for name in ("init_process_group", "destroy_process_group"):  # examples use the group that exists
            patch.setattr(dist, name, lambda *backend: None)
        for path in sys.argv[1:]:
            runpy.run_path(path, run_name="__main__")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for name, case in [*globals().items()]:  # Dynamo adds names
        if name.startswith("case_"):
            case(mesh)
    dist.barrier()  # or a thread of gloo's might still free a tensor when Python exits
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
