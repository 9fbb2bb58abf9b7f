"""Patched models of transformers under tools that cast, move or shard the inputs of a layer.

The truth is the queries' own float64 rotation. Run as a file by torchrun, it checks several processes.
"""

import functools

import pytest
import torch
import torch.distributed as dist
import transformers
from torch.distributed.fsdp import (
    FullyShardedDataParallel,
    MixedPrecision,
    MixedPrecisionPolicy,
    ShardingStrategy,
    fully_shard,
)
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.distributed.tensor import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel.distributed import DistributedDataParallel, _MixedPrecision
from torch.utils._pytree import tree_map
from transformers.models.llama.modeling_llama import LlamaDecoderLayer

import rope_array as ra
from rope_array.hf._layer_tables import LayerTables

pytestmark = [
    pytest.mark.library("torch"),
    pytest.mark.skipif(not dist.is_available(), reason="this build of torch has no torch.distributed"),
    pytest.mark.filterwarnings("ignore:The .grad attribute"),  # of Dynamo, where FSDP2 hooks an input
]
HALF = torch.bfloat16
IDS = torch.tensor([[1, 2, 3, 4], [5, 6, 7, 8]])
POSITIONS = torch.tensor([[0, 7, 500_000, 2**20]])
HEADS, WIDTH = 4, 16


def build():
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=64,
        hidden_size=HEADS * WIDTH,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=HEADS,
        num_key_value_heads=2,
        initializer_range=0.2,
    )
    return transformers.LlamaForCausalLM(config)


class Queries:
    """The queries of each layer, before and after the rotation; see `error`."""

    def __init__(self, model):
        self.before, self.after = {}, {}
        transformers.AttentionInterface.register("recorded", self.attend)
        model.config._attn_implementation = "recorded"
        for index, layer in enumerate(model.model.layers):
            layer.self_attn.q_proj.register_forward_hook(functools.partial(self.keep, index))

    def keep(self, index, module, inputs, output):
        self.before[index] = output.detach().unflatten(-1, (-1, WIDTH)).transpose(1, 2)

    def attend(self, module, query, *arguments, **options):
        self.after[module.layer_idx] = query.detach()
        return transformers.AttentionInterface()["sdpa"](module, query, *arguments, **options)

    def error(self, dtype=HALF):
        """Return the largest error, 1 for half a unit in the last place of a dtype."""
        assert self.before.keys() == self.after.keys() == {0, 1}
        assert {query.dtype for query in self.after.values()} == {dtype}
        return max(rotation_error(self.before[i], self.after[i]) for i in self.before)


def rotation_error(before, after):
    frequencies = 10_000.0 ** (-torch.arange(WIDTH // 2, dtype=torch.float64) / (WIDTH // 2))
    angles = POSITIONS.double()[..., None] * frequencies
    first, second = before.double().chunk(2, -1)
    cos, sin = angles.cos(), angles.sin()
    want = torch.cat((first * cos - second * sin, second * cos + first * sin), -1)
    allowed = torch.finfo(after.dtype).eps / 2 * want.abs() + 1e-6 * before.abs().max()
    return float(((after.double() - want).abs() / allowed).max())


def train(model):
    """Return the loss and the gradients of one step."""
    loss = model(IDS, position_ids=POSITIONS, labels=IDS, use_cache=False).loss
    loss.backward()
    gradients = [p.grad.full_tensor() if hasattr(p.grad, "full_tensor") else p.grad for p in model.parameters()]
    return [loss.detach().float(), *gradients]


@functools.cache
def truth():
    """Return the loss and the gradients of a patched bfloat16 model in one process."""
    model = build().to(HALF)
    queries = Queries(model)
    ra.hf.patch(model)
    results = train(model)
    assert queries.error() <= 1
    return results


def check(model, queries, rtol=0.02):
    results = train(model)
    assert queries.error() <= 1
    for got, want in zip(results, truth(), strict=True):
        assert (got.float() - want.float()).norm() <= rtol * want.float().norm()


# ---- FSDP ----


@pytest.fixture(scope="module")
def mesh():
    """A mesh of this process alone."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


def shard(model, mesh, *, root=True, layers_cast=True):
    for layer in model.model.layers:
        policy = MixedPrecisionPolicy(param_dtype=HALF, cast_forward_inputs=layers_cast)
        fully_shard(layer, mesh=mesh, mp_policy=policy)
    if root:
        fully_shard(model, mesh=mesh, mp_policy=MixedPrecisionPolicy(param_dtype=HALF))


@pytest.mark.parametrize("order", ["patch first", "shard first"])
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("reentrant", [None, False, True], ids=["kept", "checkpointed", "reentrant"])
def test_fsdp2_leaves_the_tables_float32(mesh, order, compiled, reentrant):
    model = build()
    queries = Queries(model)
    if reentrant is not None:
        model.train().activation_checkpointing_enable({"use_reentrant": reentrant})
        model.enable_input_require_grads()
    if order == "patch first":
        ra.hf.patch(model)
    torch._dynamo.reset()
    for layer in model.model.layers if compiled else ():
        layer.compile(backend="aot_eager")
    shard(model, mesh)
    if order == "shard first":
        ra.hf.patch(model)
    check(model, queries)


def test_fsdp2_of_layers_alone(mesh):
    model = build()
    queries = Queries(model)
    shard(model, mesh, root=False)
    ra.hf.patch(model)
    train(model)
    assert queries.error() <= 1
    ra.hf.unpatch(model)
    train(model)
    assert queries.error() > 10, "the model's own tables are cast"


@pytest.mark.parametrize("cast", [False, True])
def test_fsdp1_leaves_the_tables_float32(mesh, cast):
    model = build()
    queries = Queries(model)
    ra.hf.patch(model)
    sharded = FullyShardedDataParallel(
        model,
        auto_wrap_policy=ModuleWrapPolicy([LlamaDecoderLayer]),
        sharding_strategy=ShardingStrategy.NO_SHARD,
        mixed_precision=MixedPrecision(param_dtype=HALF, cast_forward_inputs=cast),
        device_id=torch.device("cpu"),
        use_orig_params=True,
    )
    check(sharded, queries)


def main():
    """Check FSDP2 and tensor parallelism on the processes of torchrun."""
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model = build()
    queries = Queries(model)
    ra.hf.patch(model)
    shard(model, mesh)
    check(model, queries)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
