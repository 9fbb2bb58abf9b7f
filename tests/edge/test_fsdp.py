"""Patched models of transformers under tools that cast, move or shard the inputs of a layer.

The truth is the queries' own float64 rotation. test_torch_distributed.py has several processes.
"""

import functools

import pytest
import torch
import torch.distributed as dist
import transformers
from hf._tiny import FAMILIES, Tiny, answer
from hf._tiny_config import FAMILY, HEAD
from torch.distributed.fsdp import (
    FullyShardedDataParallel,
    MixedPrecision,
    MixedPrecisionPolicy,
    ShardingStrategy,
    fully_shard,
)
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.distributed.tensor import init_device_mesh
from torch.utils._pytree import tree_map

import rope_array as ra
from rope_array.testing import apply_definition

pytestmark = [
    pytest.mark.library("torch"),
    pytest.mark.skipif(not dist.is_available(), reason="this build of torch has no torch.distributed"),
    pytest.mark.filterwarnings("ignore:The .grad attribute"),  # of Dynamo, where FSDP2 hooks an input
]
HALF = torch.bfloat16
IDS = torch.tensor([[1, 2, 3, 4], [5, 6, 7, 8]])
POSITIONS = torch.tensor([[0, 7, 500_000, 2**20]])
LLAMA = Tiny("llama")


def patched(dtype=torch.float32):
    """Return a patched model and its queries."""
    model = LLAMA.make().train().to(dtype)
    queries = Queries(model)
    ra.hf.patch(model)
    return model, queries


class Queries:
    """The queries of each layer, before and after the rotation; see `error`."""

    def __init__(self, model):
        self.before, self.after = {}, {}
        transformers.AttentionInterface.register("recorded", self.attend)
        model.config._attn_implementation = "recorded"
        for index, layer in enumerate(model.model.layers):
            layer.self_attn.q_proj.register_forward_hook(functools.partial(self.keep, index))

    def keep(self, index, module, inputs, output):
        self.before[index] = output.detach().unflatten(-1, (-1, HEAD)).transpose(1, 2)

    def attend(self, module, query, *arguments, **options):
        self.after[module.layer_idx] = query.detach()
        return transformers.AttentionInterface()["sdpa"](module, query, *arguments, **options)

    def error(self, dtype=HALF):
        """Return the largest error, 1 for half a unit in the last place of a dtype."""
        assert self.before.keys() == self.after.keys() == {0, 1}
        assert {query.dtype for query in self.after.values()} == {dtype}
        return max(rotation_error(self.before[i], self.after[i]) for i in self.before)


def rotation_error(before, after):
    exact = apply_definition(before.double().numpy(), POSITIONS[0].numpy(), pairing="half")
    expected = torch.from_numpy(exact)
    allowed = torch.finfo(after.dtype).eps / 2 * expected.abs() + 1e-6 * before.abs().max()
    return float(((after.double() - expected).abs() / allowed).max())


def train(model):
    """Return the loss and the gradients of one step."""
    loss = model(IDS, position_ids=POSITIONS, labels=IDS, use_cache=False).loss
    loss.backward()
    gradients = [parameter.grad for parameter in model.parameters()]
    return [loss.detach().float(), *(g.full_tensor() if hasattr(g, "full_tensor") else g for g in gradients)]


@functools.cache
def truth():
    """Return the loss and the gradients of a patched bfloat16 model in one process."""
    model, queries = patched(HALF)
    weights = train(model)
    assert queries.error() <= 1
    return weights


def check(model, queries, rtol=0.02):
    weights = train(model)
    assert queries.error() <= 1
    for weight, expected in zip(weights, truth(), strict=True):
        assert (weight.float() - expected.float()).norm() <= rtol * expected.float().norm()


# ---- FSDP ----


@pytest.fixture(scope="module")
def mesh():
    """A mesh of this process alone."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


def shard(model, mesh, cast=True, root=True):
    """Shard by FSDP2."""
    policy = MixedPrecisionPolicy(param_dtype=HALF, cast_forward_inputs=cast)
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh, mp_policy=policy)
    if root:
        fully_shard(model, mesh=mesh, mp_policy=MixedPrecisionPolicy(param_dtype=HALF))
    return model


def wrap(model, mesh, cast=True):
    """Shard by FSDP1, on one device."""
    return FullyShardedDataParallel(
        model,
        auto_wrap_policy=ModuleWrapPolicy([type(model.model.layers[0])]),
        sharding_strategy=ShardingStrategy.NO_SHARD,
        mixed_precision=MixedPrecision(param_dtype=HALF, cast_forward_inputs=cast),
        device_id=torch.device("cpu"),
        use_orig_params=True,
    )


@pytest.mark.parametrize("order", ["patch first", "shard first"])
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("reentrant", [None, False, True], ids=["kept", "checkpointed", "reentrant"])
def test_fsdp2_leaves_the_tables_float32(mesh, order, compiled, reentrant):
    model = LLAMA.make().train()
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
    model = LLAMA.make().train()
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
    model, queries = patched()
    check(wrap(model, mesh, cast), queries)


# ---- other casts and moves ----


def cast_inputs(module, arguments, options):
    """Cast as engines for half precision do, in a hook of each layer."""
    return tree_map(
        lambda x: x.to(HALF) if torch.is_tensor(x) and x.is_floating_point() else x, (arguments, options)
    )


def send_inputs(module, arguments, options):
    """Move as a device map does: accelerate calls `to` of each object that has it."""
    move = lambda x: x.to("cpu", non_blocking=True) if hasattr(x, "to") else x  # noqa: E731
    return tuple(map(move, arguments)), {name: move(x) for name, x in options.items()}


@pytest.mark.parametrize("hook", [cast_inputs, send_inputs])
def test_hooks_of_the_layers(hook):
    model, queries = patched(HALF)
    for layer in model.model.layers:
        layer.register_forward_pre_hook(hook, with_kwargs=True)
    check(model, queries, rtol=0)


def test_autocast():
    model, queries = patched()
    with torch.autocast("cpu", dtype=HALF):
        train(model)
    assert queries.error() <= 1


@pytest.mark.parametrize("dtype", [HALF, torch.float16])
def test_a_model_cast_after_the_patch(dtype):
    model, queries = patched()
    train(model.to(dtype))
    assert queries.error(dtype) <= 1


def outcome(family):
    """Return whether a cast of the layers' inputs changes the output of a patched bfloat16 model."""
    model = family.make(HALF)
    try:
        ra.hf.patch(model)
    except ra.PatchError:
        return "not patched"
    inputs = {n: x.to(HALF) if x.is_floating_point() else x for n, x in family.inputs(model).items()}
    with torch.no_grad():
        expected = answer(model(**inputs))
        for layers in filter(lambda module: isinstance(module, torch.nn.ModuleList), model.modules()):
            for layer in layers:
                layer.register_forward_pre_hook(cast_inputs, with_kwargs=True)
        try:
            y = answer(model(**inputs))
        except ra.PatchError as error:
            assert "cast_forward_inputs=False" in str(error)  # noqa: PT017
            return "refused"
    return "same" if torch.equal(y, expected) else "changed"


def test_casts_of_layers_inputs_change_no_family_or_are_refused():
    left_out = FAMILY["no_casts"].split()
    outcomes = {f.model_type: outcome(f) for f in FAMILIES if f.model_type not in left_out}
    names = {value: {name for name in outcomes if outcomes[name] == value} for value in outcomes.values()}
    assert names.get("changed", set()) == set()
    assert names["refused"] == {*FAMILY["repacked"].split()}
    assert len(names["same"]) > 170
