"""Cases for `test_torch_distributed.py` that communicate: run by torchrun on processes of the backend gloo.

Each function `case_...` takes a mesh of all processes and asserts. The oracle is the same on whole arrays in
one process; sums are in another order than there. The arguments are examples of the documentation: in the
processes of the cases, they import PyTorch once.
"""

import copy
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
            dx, dweight = (distribute_tensor(tensor, mesh, [place]) for tensor in (x, weight))
            shared = distribute_tensor(wanted, mesh, [Replicate()])
            gradient, number = summed_gradient(call, dx, dweight, shared)
            assert gradient.placements == (Replicate(),)
            close(gradient.to_local(), truth)
            assert bool(number) == place.is_shard(), "nothing is summed if x is whole everywhere"
    dx, dweight = (distribute_tensor(tensor, mesh, [Shard(2)]) for tensor in (x, weight))
    dpos = distribute_tensor(pos, mesh, [Shard(0)])
    gradient, number = summed_gradient(ROPE.apply, dx, dweight, dpos)
    close(gradient.full_tensor(), summed_gradient(ROPE.apply, x, weight, pos)[0])
    assert not number, "each rank has the whole gradient of its positions"


# ---- training: each rank has the whole batch, so that a mean of its gradients is that of one process ----

HALF_PRECISION = MixedPrecisionPolicy(param_dtype=torch.bfloat16)


def step(model, x, pos):
    """Return the result, and the whole gradients of the parameters."""
    y = model(x, pos)
    y.float().square().sum().backward()
    return [y.detach(), *(getattr(p.grad, "full_tensor", lambda p=p: p.grad)() for p in model.parameters())]


def case_modules(mesh):
    for name, make in modules.MODULES.items():
        torch.manual_seed(0)  # on each rank
        model = modules.Attention(modules.changed(make()))
        x, pos = normal(2, 5, 32), modules.positions_for(model.rotary, 5)
        state = {key: value.clone() for key, value in model.state_dict().items()}
        assert not [key for key in state if "rotary" in key and "log_scale" not in key and name != "mixed"]
        truth = step(model, x, pos)
        with torch.no_grad():
            narrow = copy.deepcopy(model).to(torch.bfloat16)(x.bfloat16(), pos)

        def fresh(first=False, prepare=lambda model: None, make=make, state=state, **options):
            model = modules.Attention(make())
            model.load_state_dict(state)
            if first:  # the rotary module is a group of its own
                fully_shard(model.rotary, mesh=mesh)
            prepare(model)
            return fully_shard(model, mesh=mesh, **options)

        close(step(fresh(), x, pos), truth)
        close(step(fresh(first=True), x, pos), truth)
        for prepare in (checkpoint_layer, *([compile_layer] if name == "learned" else [])):
            close(step(fresh(prepare=prepare), x, pos), truth)
        replicated = modules.Attention(make())
        replicated.load_state_dict(state)
        close(step(nn.parallel.DistributedDataParallel(replicated), x, pos), truth)

        # In bfloat16 the parameters of the rotary module need a group of their own.
        assert torch.equal(step(fresh(first=True, mp_policy=HALF_PRECISION), x, pos)[0], narrow)
        # `rotation` is no forward: fully_shard gathers for it only if it is registered.
        sharded = fully_shard(make(), mesh=mesh)
        if name != "fixed":
            with pytest.raises(ra.ArrayTypeError, match="shard this module first"):
                step(fresh(mp_policy=HALF_PRECISION), x, pos)
            with pytest.raises(
                ra.ArrayTypeError, match=r'register_fsdp_forward_method\(module, "rotation"\)'
            ):
                sharded.rotation(pos, like=x)
        register_fsdp_forward_method(sharded, "rotation")
        sharded.rotation(pos, like=x)


def compile_layer(model):
    model.compile(backend="aot_eager", fullgraph=True)


def checkpoint_layer(model):
    model.forward = functools.partial(checkpoint, model.forward, use_reentrant=False)


def case_modules_without_memory_at_first(mesh):
    """They are sharded, allocated, and then initialised."""
    for name, make in modules.MODULES.items():
        with torch.device("meta"):
            module = make()
        fully_shard(module, mesh=mesh).to_empty(device="cpu")
        if name != "fixed":
            module.reset_parameters()
        for parameter in module.parameters():
            value = parameter.full_tensor().detach()
            if name == "mixed":  # directions are random
                value = torch.linalg.vector_norm(value, dim=1) / torch.tensor(modules.HALF.frequencies) - 1
            close(value, torch.zeros_like(value))


class Rotated(nn.Linear):
    def forward(self, x, rotation):
        return rotation.apply(super().forward(x))


def case_a_rotation_in_mixed_precision(mesh):
    """FSDP2 casts floating inputs of a module: a Rotation among them is refused, unless it casts none."""
    x = normal(2, 6, 16, dtype=torch.bfloat16)
    rotation = ROPE.rotation(torch.arange(6) * 1_000_003, like=x)

    def layer():
        torch.manual_seed(0)
        return Rotated(16, 16)

    def result(casts):
        policy = MixedPrecisionPolicy(torch.bfloat16, cast_forward_inputs=casts)
        return fully_shard(layer(), mesh=mesh, mp_policy=policy)(x, rotation)

    with pytest.raises(
        ra.ArrayTypeError, match=r"FSDP casts .* Pass the positions on .* cast_forward_inputs=F"
    ):
        result(casts=True)
    assert torch.equal(result(casts=False), layer().to(torch.bfloat16)(x, rotation))


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
