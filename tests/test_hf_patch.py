"""`rope_array.hf`: patched models of transformers, their reports, and unpatching.

Collected only with `--models`, as it needs transformers and PyTorch. tests/test_hf_families.py patches every
family. Here a few tiny models with random weights show the mechanism: the numbers against the model's own
code, and that nothing but the modules of one instance changes.
"""

import contextlib
import copy
import doctest
import functools
import importlib
import pathlib
import pickle
import types
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
import transformers
from hf._compare import is_same, off, state

import rope_array as ra
from rope_array.hf import _attention, _attributes, _operators, _patch
from rope_array.hf._layer_tables import LayerTables

transformers.logging.set_verbosity_error()
torch.set_num_threads(1)

SIZE = {"vocab_size": 256, "hidden_size": 64, "num_hidden_layers": 2, "initializer_range": 0.2}
DENSE = {**SIZE, "intermediate_size": 96, "num_attention_heads": 4, "max_position_embeddings": 512}
NONE = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": 0}
GROUPED = {**DENSE, **NONE, "num_key_value_heads": 2}
LATENT = {
    "q_lora_rank": 24,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 16,
    "qk_nope_head_dim": 8,
    "v_head_dim": 12,
}
EXPERTS = {"n_routed_experts": 4, "n_group": 2, "topk_group": 1, "num_experts_per_tok": 2}
EXPERTS |= {"moe_intermediate_size": 32, "first_k_dense_replace": 1}
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 8.0, "original_max_position_embeddings": 64}
LAYERS = {"sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"]}
TRAINED = 24  # positions of the models whose rule depends on the length
LISTS = {"short_factor": [1.0 + i / 8 for i in range(8)], "long_factor": [2.0 + i for i in range(8)]}
LONGROPE = {"rope_type": "longrope", "rope_theta": 10000.0, **LISTS}
DYNAMIC = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0}


@dataclass(frozen=True)
class Model:
    """A model: the names of its class and of its config's class, and the config's values."""

    cls: str
    config: str
    values: dict[str, Any] = field(default_factory=dict)

    def build(self, dtype=torch.float32):
        torch.manual_seed(0)
        config = getattr(transformers, self.config)(**copy.deepcopy(self.values))
        model = getattr(transformers, self.cls)(config).eval()
        ropes = {
            id(b) for module in model.modules() if "Rotary" in type(module).__name__ for b in module.buffers()
        }
        for value in (*model.parameters(), *model.buffers()):  # model.to would round the frequencies
            if value.is_floating_point() and id(value) not in ropes:
                value.data = value.data.to(dtype)
        return model


VISION = {"depth": 2, "embed_dim": 32, "hidden_size": 64, "num_heads": 2, "patch_size": 4}
MROPE = {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [2, 3, 3]}
MODELS = {
    "llama": Model("LlamaForCausalLM", "LlamaConfig", GROUPED),
    "gemma3": Model("Gemma3ForCausalLM", "Gemma3TextConfig", {**GROUPED, "head_dim": 16, **LAYERS}),
    "deepseek_v3": Model(
        "DeepseekV3ForCausalLM",
        "DeepseekV3Config",
        {**DENSE, **NONE, **LATENT, **EXPERTS, "num_key_value_heads": 4, "rope_parameters": YARN},
    ),
    "gpt_neox": Model("GPTNeoXForCausalLM", "GPTNeoXConfig", {**DENSE, **NONE}),
    "glm": Model("GlmForCausalLM", "GlmConfig", {**GROUPED, "head_dim": 16}),
    "gpt_oss": Model(
        "GptOssForCausalLM",
        "GptOssConfig",
        {**GROUPED, "head_dim": 16, "num_local_experts": 2, "num_experts_per_tok": 1},
    ),
    "qwen2_vl": Model(
        "Qwen2VLForConditionalGeneration",
        "Qwen2VLConfig",
        {
            "text_config": {**GROUPED, "vocab_size": 260, "rope_parameters": MROPE},
            "vision_config": VISION,
            "image_token_id": 256,
            "video_token_id": 257,
            "vision_start_token_id": 258,
        },
    ),
    "phi3": Model(
        "Phi3ForCausalLM",
        "Phi3Config",
        {**GROUPED, "rope_parameters": LONGROPE, "original_max_position_embeddings": TRAINED},
    ),
    "dynamic": Model(
        "LlamaForCausalLM",
        "LlamaConfig",
        {**GROUPED, "max_position_embeddings": TRAINED, "rope_parameters": DYNAMIC},
    ),
}
EVERY = pytest.mark.parametrize("name", MODELS)
MODES = pytest.mark.parametrize("angles", ["exact", "float32"])
TEXT = torch.randint(1, 256, (2, 20), generator=torch.Generator().manual_seed(3))


def logits(model, ids=TEXT, **inputs):
    with torch.no_grad():
        return model(ids, **inputs).logits


# ---- numbers ----


@EVERY
def test_float32_angles_keep_the_bits_of_the_model(name):
    for dtype in (torch.float32, torch.bfloat16):
        model = MODELS[name].build(dtype)
        want = logits(model)
        with ra.hf.patched(model, angles="float32"):
            assert torch.equal(logits(model), want)


@EVERY
def test_exact_angles_differ_from_the_model_by_float32_roundings(name):
    model = MODELS[name].build()
    want = logits(model)
    with ra.hf.patched(model):
        got = logits(model)
    assert not torch.equal(got, want)
    assert off(got, want) < 2e-5


def test_half_precision_is_rotated_in_float32():
    """With bfloat16 weights: the error against float64, of patched models and of the model's own code."""
    model = MODELS["llama"].build(torch.bfloat16)
    hidden = torch.randn(1, 20, 64, generator=torch.Generator().manual_seed(1)).bfloat16()
    attention, rope = model.model.layers[0].self_attn, ra.RoPE.from_config(model.config)
    positions = torch.arange(20)[None] + 400
    with torch.no_grad():
        q = attention.q_proj(hidden).view(1, 20, 4, 16).transpose(1, 2)
    want = rope.apply(q.double(), positions)
    kept = {}

    def keep(module, query, key, value, mask, **options):
        kept["q"] = query
        return query.transpose(1, 2), None

    transformers.AttentionInterface.register("keep", keep)
    model.config._attn_implementation = "keep"
    errors = []
    for patched in (contextlib.nullcontext(), ra.hf.patched(model)):
        with patched, torch.no_grad():
            tables = model.model.rotary_emb(hidden, positions)
            attention(hidden, position_embeddings=tables)
            assert kept["q"].dtype is torch.bfloat16
            errors.append(float(((kept["q"].double() - want).abs() / want.abs().clamp_min(0.1)).max()))
    assert errors[1] <= 2**-8  # one rounding to the 8 bits of bfloat16
    assert errors[0] > 2 * errors[1]


@pytest.mark.parametrize("name", ["llama", "gemma3", "qwen2_vl", "deepseek_v3", "gpt_oss"])
def test_tables_are_exact_at_far_positions(name):
    model = MODELS[name].build(torch.bfloat16)
    far = torch.tensor([[1_000_003, 2_000_000_011]])
    with ra.hf.patched(model) as report:
        entry = next(entry for entry in report if entry.rope is not None and "visual" not in entry.name)
        ropes = entry.rope if isinstance(entry.rope, dict) else {None: entry.rope}
        for kind, rope in ropes.items():
            rotary, x = model.get_submodule(entry.name), torch.zeros(1, 2, 64).bfloat16()
            cos, sin = rotary(x, far, **({"layer_type": kind} if kind else {}))
            pos = far if rope.axes is None else far[..., None].expand(1, 2, 3)
            want = rope.rotation(pos, like=torch.zeros(1, dtype=torch.float64))
            for got, exact in ((cos, want.cos), (sin, want.sin)):
                assert (got[..., : exact.shape[-1]] - exact).abs().max() < 2e-7


# ---- rules that depend on the length ----


@pytest.mark.parametrize("name", ["phi3", "dynamic"])
def test_exact_angles_follow_the_length_of_the_call(name):
    model = MODELS[name].build()
    rope = ra.RoPE.from_config(model.config)
    assert rope.at_length(TRAINED) != rope.at_length(TRAINED + 1)
    rotary, x = model.model.rotary_emb, torch.zeros(1, 1, 64)
    with ra.hf.patched(model):
        for length in (TRAINED - 1, TRAINED, TRAINED + 1, 3 * TRAINED, 7):
            pos = torch.arange(length)[None]
            cos, _ = rotary(x, pos)
            want = rope.at_length(length).rotation(pos, like=torch.zeros(1)).cos
            assert torch.allclose(cos[..., : want.shape[-1]], want, atol=3e-7, rtol=0)


@pytest.mark.parametrize("name", ["phi3", "dynamic"])
def test_generation_over_the_trained_length(name):
    """float32: the same tokens and the same buffers; exact: the same tokens here, where angles are small."""
    prompt = TEXT[:, : TRAINED - 4]
    want = MODELS[name].build().generate(prompt, max_new_tokens=10, do_sample=False)
    for angles in ("float32", "exact"):
        model = MODELS[name].build()
        with ra.hf.patched(model, angles=angles):
            assert torch.equal(model.generate(prompt, max_new_tokens=10, do_sample=False), want)


# ---- generation ----


OPTIONS = [{"cache_implementation": "static"}, {"num_beams": 3}, {"use_cache": False}]


@MODES
@pytest.mark.parametrize("name", ["llama", "gemma3", "deepseek_v3", "qwen2_vl"])
def test_generation_with_left_padding(name, angles):
    model = MODELS[name].build()
    mask = torch.ones_like(TEXT)
    mask[0, :7] = 0
    options = {"attention_mask": mask, "max_new_tokens": 8, "do_sample": False}
    want = model.generate(TEXT, **options)
    with ra.hf.patched(model, angles=angles):
        assert torch.equal(model.generate(TEXT, **options), want)


@MODES
@pytest.mark.parametrize("name", ["llama", "gemma3"])
@pytest.mark.parametrize(
    "options", [{"cache_implementation": "static"}, {"num_beams": 3}, {"use_cache": False}], ids=str
)
def test_generation_with_each_cache_and_with_beams(name, options, angles):
    model = MODELS[name].build()
    model.generation_config.disable_compile = True
    options = {**options, "max_new_tokens": 6, "do_sample": False}
    want = model.generate(TEXT, **options)
    with ra.hf.patched(model, angles=angles):
        assert torch.equal(model.generate(TEXT, **options), want)


# ---- training ----


@MODES
@pytest.mark.parametrize("reentrant", [None, False, True])
def test_gradients_with_and_without_checkpointing(reentrant, angles):
    model = MODELS["llama"].build().train()
    if reentrant is not None:
        model.activation_checkpointing_enable({"use_reentrant": reentrant})
        model.enable_input_require_grads()

    def gradients():
        model.zero_grad()
        model(TEXT, labels=TEXT, use_cache=False).loss.backward()
        return [p.grad.clone() for p in model.parameters()]

    want = gradients()
    with ra.hf.patched(model, angles=angles):
        got = gradients()
    assert all(off(g, w) < (2e-6 if angles == "float32" else 2e-4) for g, w in zip(got, want, strict=True))


# ---- compilation ----


@pytest.fixture
def _fresh_dynamo():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


class TwiceAsLarge:
    """Stand in for the rotation, where a test asks whether ours is called."""

    @staticmethod
    def rotate(arrays, source, seq_axis):
        return tuple(2 * x for x in arrays)

    @classmethod
    def install(cls, monkeypatch):
        monkeypatch.setattr(_attention, "_dispatch", cls)
        monkeypatch.setattr(_operators, "rotate", cls.rotate)  # of compiled calls


@pytest.mark.usefixtures("_fresh_dynamo")
@pytest.mark.parametrize("angles", ["exact", pytest.param("float32", marks=pytest.mark.nightly)])
def test_compiled_models_call_the_replacements(angles, monkeypatch):
    """Dynamo finds globals by the name of a function's module: it must not find the originals."""
    model, other = MODELS["llama"].build(), MODELS["llama"].build()
    model.model.layers, other.model.layers = model.model.layers[:1], other.model.layers[:1]
    want = logits(other)
    ra.hf.patch(model, angles=angles)
    TwiceAsLarge.install(monkeypatch)
    doubled = logits(model)
    assert off(doubled, want) > 0.1
    compiled, unpatched = (torch.compile(m, backend="eager", fullgraph=True) for m in (model, other))
    assert off(logits(compiled), doubled) < 1e-5
    assert off(logits(unpatched), want) < 1e-5  # the same code, of another instance
    monkeypatch.undo()
    ra.hf.unpatch(model)
    assert off(logits(compiled), want) < 1e-5
    ra.hf.patch(other, angles=angles)
    TwiceAsLarge.install(monkeypatch)
    assert off(logits(unpatched), doubled) < 1e-5


@pytest.mark.usefixtures("_fresh_dynamo")
def test_methods_compiled_before_and_after(monkeypatch):
    """Dynamo keeps compiled code with the code object, and reads globals as at the first compilation."""
    model = MODELS["llama"].build().model
    hidden = torch.randn(1, 6, 64, generator=torch.Generator().manual_seed(1))
    attention, tables = model.layers[0].self_attn, model.rotary_emb(hidden, torch.arange(6)[None])

    def compiled():
        with torch.no_grad():
            return torch.compile(attention.forward, backend="eager")(hidden, position_embeddings=tables)[0]

    with ra.hf.patched(model, angles="float32"):
        TwiceAsLarge.install(monkeypatch)
        doubled = compiled()
    with torch.no_grad():
        want = attention(hidden, position_embeddings=tables)[0]
    assert off(doubled, want) > 0.01
    assert off(compiled(), want) < 1e-6


@pytest.mark.usefixtures("_fresh_dynamo")
@pytest.mark.parametrize("name", ["llama", pytest.param("phi3", marks=pytest.mark.nightly)])
def test_compiled_models_have_no_more_graphs_than_before(name):
    """One for the first length, and one for all others."""
    model = MODELS[name].build()
    model.model.layers = model.model.layers[:1]  # tracing takes seconds
    counter = importlib.import_module("torch._dynamo.testing").CompileCounter()
    with ra.hf.patched(model):
        compiled = torch.compile(model, backend=counter, fullgraph=True)
        for length in (12, 13, 14, 9, 27):
            ids = TEXT.repeat(1, 2)[:, :length]
            got = logits(compiled, ids, use_cache=False)
            assert off(got, logits(model, ids, use_cache=False)) < 1e-5
    assert counter.frame_count == 2


# ---- calls of the layers of a forward pass, of the same shapes ----


def rotary_function(folder):
    """Return the function of a folder of transformers that rotates q and k."""
    module = importlib.import_module(f"transformers.models.{folder}.modeling_{folder}")
    return module.apply_rotary_pos_emb


def replaced(function):
    return _attention.make_rotate_function(_attention.recognise(function), exact=True)


def random_call(shape=(2, 3, 5, 8), arrangement="cat"):
    """Return q, k and tables of two sequences of five positions."""
    random = torch.Generator().manual_seed(0)
    q, k = (torch.randn(shape, generator=random) for _ in range(2))
    angles = _attention.ARRANGED[arrangement](torch.rand(2, 5, 4, generator=random))
    return q, k, angles.cos(), angles.sin()


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
@pytest.mark.parametrize(
    ("folder", "arrangement"), [("llama", "cat"), ("cohere", "repeat"), ("nanochat", "cat")]
)
def test_a_write_to_the_tables_between_layers_is_seen(folder, arrangement, mode):
    own = rotary_function(folder)
    ours = replaced(own)
    with mode():
        q, k, cos, sin = random_call(arrangement=arrangement)
        for factor in (1.0, 2.0, -3.0):
            cos.mul_(factor), sin.mul_(factor)
            for got, want in zip(ours(q, k, cos, sin), own(q, k, cos, sin), strict=True):
                assert off(got, want) < 1e-5


@torch.no_grad()
def test_calls_of_other_shapes_or_axes_are_decided_anew():
    own = rotary_function("llama")
    ours = replaced(own)
    q, k, cos, sin = random_call((2, 5, 5, 8))
    wide = torch.cat((q, q), -1)
    calls = [(q, k, 1), (q, k, 2), (q[:, :2], k, 1), (q[:1], k[:1], 1), (q.double(), k, 1)]
    calls += [(q.half(), k.half(), 1), (q, k, 1), (wide[..., ::2], wide[..., 8:], 1)]
    for first, second, axis in calls:
        wanted = own(first.float(), second.float(), cos, sin, unsqueeze_dim=axis)
        for got, want in zip(ours(first, second, cos, sin, unsqueeze_dim=axis), wanted, strict=True):
            assert got.dtype == (torch.float16 if first.dtype == torch.float16 else got.dtype)
            assert (
                off(got.float(), want) < 3e-3 if got.dtype == torch.float16 else off(got.float(), want) < 1e-5
            )


@torch.no_grad()
def test_tables_with_other_memory_are_read_anew():
    own = rotary_function("llama")
    ours = replaced(own)
    q, k, cos, sin = random_call()
    ours(q, k, cos, sin)
    cos.data, sin.data = cos.cos(), sin.cos()
    for got, want in zip(ours(q, k, cos, sin), own(q, k, cos, sin), strict=True):
        assert off(got, want) < 1e-5


@torch.no_grad()
@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")
def test_transforms_see_the_tables():
    """The derivative along the tables, a batch of tables, and sizes that are symbols."""
    own = rotary_function("llama")
    ours = replaced(own)
    q, k, cos, sin = random_call()
    ours(q, k, cos, sin)
    tangents = [torch.func.jvp(lambda c, of=of: of(q, k, c, sin), (cos,), (sin,))[1][0] for of in (own, ours)]
    assert off(tangents[1], tangents[0]) < 1e-5 < tangents[0].abs().max()
    batches = [torch.vmap(lambda c, of=of: of(q, k, c, sin))(torch.stack([cos, sin])) for of in (own, ours)]
    assert off(batches[1][0], batches[0][0]) < 1e-5
    make_fx = torch.fx.experimental.proxy_tensor.make_fx
    graph = make_fx(lambda *call: ours(*call), tracing_mode="symbolic")(q, k, cos, sin)
    assert off(graph(q, k, cos, sin)[0], own(q, k, cos, sin)[0]) < 1e-5


@pytest.mark.usefixtures("_fresh_dynamo")
def test_compiled_layers_call_operators():
    """Dynamo writes one operator for the tables and one for each layer, and does not trace our functions."""
    model, names = MODELS["llama"].build(), []
    ra.hf.patch(model)
    want = logits(model, TEXT, use_cache=False)

    def backend(graph, inputs):
        names.extend(str(node.target) for node in graph.graph.nodes)
        return torch._dynamo.lookup_backend("aot_eager")(graph, inputs)

    got = logits(torch.compile(model, backend=backend, fullgraph=True), TEXT, use_cache=False)
    assert off(got, want) < 1e-5
    assert names.count("rope_array_hf.make_tables.default") == 1
    assert names.count("rope_array_hf.rotate.default") == len(model.model.layers)


@pytest.mark.usefixtures("_fresh_dynamo")
def test_compiled_gradients_are_those_of_the_eager_model():
    model = MODELS["llama"].build()
    model.model.layers = model.model.layers[:1]
    ra.hf.patch(model)
    weight = model.model.layers[0].self_attn.q_proj.weight
    found = []
    for run in (model, torch.compile(model, backend="aot_eager", fullgraph=True)):
        run(TEXT, use_cache=False).logits.square().mean().backward()
        found.append(weight.grad)
        weight.grad = None
    assert found[0].any()
    assert off(*found) < 1e-6


# ---- other libraries ----


class Adapter(torch.nn.Module):
    """A linear layer with a low-rank part, in place of a layer of the model, as PEFT's."""

    def __init__(self, base):
        super().__init__()
        self.base = base
        self.a = torch.nn.Parameter(torch.ones(2, base.in_features) * 0.01)
        self.b = torch.nn.Parameter(torch.ones(base.out_features, 2) * 0.01)

    def forward(self, x):
        return self.base(x) + x @ self.a.T @ self.b.T


class Quantised(torch.nn.Linear):
    """A linear layer with 8-bit weights."""

    def forward(self, x):
        scale = self.weight.abs().amax() / 127
        return torch.nn.functional.linear(x, (self.weight / scale).round().to(torch.int8) * scale, self.bias)


def adapt(model):
    for layer in model.model.layers:
        layer.self_attn.q_proj = Adapter(layer.self_attn.q_proj)


def quantise(model):
    for module in model.modules():
        if type(module) is torch.nn.Linear:
            module.__class__ = Quantised


@MODES
@pytest.mark.parametrize("change", [adapt, quantise])
@pytest.mark.parametrize("patch_first", [True, False])
def test_changed_linear_layers(change, patch_first, angles):
    changed = MODELS["llama"].build()
    change(changed)
    want = logits(changed)
    model = MODELS["llama"].build()
    for step in (lambda: ra.hf.patch(model, angles=angles), lambda: change(model))[
        :: 1 if patch_first else -1
    ]:
        step()
    got = logits(model)
    assert torch.equal(got, want) if angles == "float32" else 0 < off(got, want) < 2e-5
    ra.hf.unpatch(model)
    assert torch.equal(logits(model), want)


class Wrapper(torch.nn.Module):
    """A model around a model, without a config."""

    def __init__(self, model):
        super().__init__()
        self.inner = model

    def forward(self, *args, **options):
        return self.inner(*args, **options)


def test_a_module_around_the_model():
    model = MODELS["gemma3"].build()
    want = logits(model)
    report = ra.hf.patch(Wrapper(model), angles="float32")
    assert report[0].name == "inner.model.rotary_emb"
    assert torch.equal(logits(model), want)
    ra.hf.unpatch(model)  # the part that was patched


def hook(module):
    """Replace a module's forward as accelerate's `add_hook_to_module` does."""
    old = module._old_forward = module.forward
    module._hf_hook = calls = []

    def new(module, *args, **options):
        calls.append(1)
        return module._old_forward(*args, **options)

    module.forward = functools.update_wrapper(functools.partial(new, module), old)
    return calls


def unhook(module):
    module.forward = module._old_forward
    del module._old_forward, module._hf_hook


@pytest.mark.parametrize("patch_first", [True, False])
def test_hooks_of_accelerate(patch_first):
    model = MODELS["llama"].build()
    touched = [model.model.rotary_emb, model.model.layers[0].self_attn]
    if patch_first:
        ra.hf.patch(model)
    calls = [hook(module) for module in touched]
    hooked = state(model)
    if not patch_first:
        ra.hf.patch(model)
    with ra.hf.patched(MODELS["llama"].build()) as _:
        pass
    want = MODELS["llama"].build()
    ra.hf.patch(want)
    assert torch.equal(logits(model), logits(want))
    assert all(calls)
    ra.hf.unpatch(model)
    assert patch_first or is_same(hooked, state(model))
    assert torch.equal(logits(model), logits(MODELS["llama"].build()))
    for module in touched:
        unhook(module)
    assert torch.equal(logits(model), logits(MODELS["llama"].build()))


def test_wrappers_of_others_are_refused():
    model = MODELS["llama"].build()
    attention = model.model.layers[1].self_attn
    attention.forward = functools.partial(type(attention).forward, attention)
    before = state(model)
    with pytest.raises(ra.PatchError, match=r"layers\.1\.self_attn .*already replaced its forward"):
        ra.hf.patch(model)
    assert is_same(before, state(model))
    del attention.forward
    ra.hf.patch(model)
    ours = attention.forward
    attention.forward = lambda *args, **options: ours(*args, **options)
    before = state(model)
    with pytest.raises(ra.PatchError, match=r"layers\.1\.self_attn .*was replaced by"):
        ra.hf.unpatch(model)
    assert is_same(before, state(model))
    attention.forward = ours
    ra.hf.unpatch(model)


def test_hooks_that_are_removed_before_unpatching():
    model = MODELS["llama"].build()
    attention = model.model.layers[0].self_attn
    hook(attention)
    ra.hf.patch(model)
    unhook(attention)
    ra.hf.unpatch(model)
    assert attention.forward.__func__ is type(attention).forward
    assert "_old_forward" not in vars(attention)


# ---- reversal ----


def test_a_deleted_forward_is_already_restored():
    model = MODELS["llama"].build()
    first, second = (layer.self_attn for layer in model.model.layers)
    second.forward = second.forward  # as removed hooks of accelerate leave it
    before = state(model)
    ra.hf.patch(model)
    del first.forward, second.forward
    ra.hf.unpatch(model)
    assert is_same(before, state(model))


@MODES
@EVERY
def test_unpatching_restores_every_attribute(name, angles):
    model = MODELS[name].build()
    rotary = next(module for module in model.modules() if "Rotary" in type(module).__name__)
    rotary.register_forward_hook(lambda *args: None)
    before = state(model)
    ra.hf.patch(model, angles=angles)
    assert not is_same(before, state(model))
    ra.hf.unpatch(model)
    assert is_same(before, state(model))


def test_an_exception_inside_with_unpatches():
    model = MODELS["llama"].build()
    before = state(model)
    with contextlib.suppress(KeyError), ra.hf.patched(model):
        assert not is_same(before, state(model))
        raise KeyError
    assert is_same(before, state(model))


def globals_of(model):
    """Return the attributes of the module and of the classes that a model's code is in."""
    classes = {type(module) for module in model.modules()}
    names = {cls.__module__ for cls in classes}
    import sys

    return [(owner, dict(vars(owner))) for owner in (*classes, *(sys.modules[name] for name in names))]


@MODES
def test_one_instance_changes_and_nothing_global(angles):
    model, other = MODELS["llama"].build(), MODELS["llama"].build()
    want, before = logits(other), globals_of(model)
    with ra.hf.patched(model, angles=angles):
        logits(model)
        for owner, attributes in before:
            now = dict(vars(owner))
            assert all(now[name] is value for name, value in attributes.items())
            assert set(now) == set(attributes)
        assert torch.equal(logits(other), want)
        assert not any(_attributes.MARK in vars(module) for module in other.modules())


def test_a_model_is_patched_once_and_unpatched_as_often_as_you_like():
    model = MODELS["llama"].build()
    assert ra.hf.unpatch(model) is False
    ra.hf.patch(model)
    with pytest.raises(ra.PatchError, match="patched already"):
        ra.hf.patch(model, angles="float32")
    assert [ra.hf.unpatch(model), ra.hf.unpatch(model)] == [True, False]


@pytest.mark.parametrize("name", ["glm", "gpt_neox", "llama"])
def test_an_attention_that_is_not_replaced_gets_the_model_s_arrangement(name):
    """A subclass of another file is not seen; it reads the tables of the patched rotary module."""
    model = MODELS[name].build()
    attention = next(m for m in model.modules() if type(m).__name__.endswith("Attention"))

    def forward(self, *args, **options):
        return super(subclass, self).forward(*args, **options)

    subclass = type("Own", (type(attention),), {"forward": forward})
    want = logits(model)
    attention.__class__ = subclass
    with ra.hf.patched(model):
        assert off(logits(model), want) < 1e-5


def test_patched_rotary_modules_return_the_shapes_of_the_model():
    model, pos = MODELS["llama"].build(), torch.arange(5)[None]
    want = model.model.rotary_emb(torch.zeros(1), pos)
    with ra.hf.patched(model):
        got = model.model.rotary_emb(torch.zeros(1), pos)
    assert [t.shape for t in got] == [t.shape for t in want]
    assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(got, want, strict=True))


@pytest.mark.filterwarnings("ignore:.*torch.jit.trace:DeprecationWarning", "ignore::torch.jit.TracerWarning")
def test_tables_to_hand_on_to_a_layer():
    model, pos = MODELS["llama"].build(), torch.arange(5)[None]
    ra.hf.patch(model)
    x = torch.randn(1, 5, 64)
    tables = model.model.rotary_emb(x, pos)
    assert repr(tables) == "LayerTables(cos=float32[1, 5, 16] (torch), sin=float32[1, 5, 16] (torch))"
    layer, given = model.model.layers[0], {"hidden_states": x, "position_embeddings": tuple(tables)}
    with torch.no_grad():
        want = layer(x, position_embeddings=tables)
        traced = torch.jit.trace(layer, example_kwarg_inputs=given)
        program = torch.export.export(layer, (), given).module()
        assert all(torch.equal(call(**given), want) for call in (layer, traced, program))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_tables_that_a_caller_casts_are_refused(dtype):
    model, pos = MODELS["llama"].build(dtype), torch.arange(5)[None]
    ra.hf.patch(model)
    x, layer = torch.randn(1, 5, 64).to(dtype), model.model.layers[0]
    tables = tuple(model.model.rotary_emb(x, pos))
    remedies = rf"leave out that cast.*MixedPrecisionPolicy\(param_dtype={dtype}, .*FSDP1 with MixedPrecision"
    with torch.no_grad():
        with pytest.raises(ra.PatchError, match=remedies):
            layer(x, position_embeddings=tuple(table.to(dtype) for table in tables))
        layer(x, position_embeddings=tables)


@pytest.mark.parametrize(
    ("args", "options", "device", "dtype"),
    [
        (("meta",), {"non_blocking": True}, "meta", torch.float32),
        ((torch.float64,), {}, "cpu", torch.float64),
        ((), {"device": "meta", "dtype": torch.float64}, "meta", torch.float64),
        ((torch.ones(1, dtype=torch.float64),), {}, "cpu", torch.float64),
    ],
    ids=["device", "dtype", "both", "like"],
)
def test_tables_take_the_arguments_of_tensor_to(args, options, device, dtype):
    tables = LayerTables(torch.ones(2), torch.zeros(2)).to(*args, **options)
    assert [(table.device.type, table.dtype) for table in tables] == [(device, dtype)] * 2
    assert isinstance(tables, LayerTables)


def test_float16_frequencies_below_the_normal_numbers_are_those_of_the_config():
    values = {**GROUPED, "head_dim": 128, "rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}
    model = Model("LlamaForCausalLM", "LlamaConfig", values).build().half()
    assert model.model.rotary_emb.inv_freq.min() < torch.finfo(torch.float16).tiny
    ra.hf.patch(model)


@pytest.mark.parametrize("default", ["dtype", "device"])
def test_defaults_of_new_tensors_change_no_patch(default):
    model = MODELS["llama"].build()
    want = logits(model)
    try:
        torch.set_default_dtype(torch.bfloat16) if default == "dtype" else torch.set_default_device("meta")
        ra.hf.patch(model)
    finally:
        torch.set_default_dtype(torch.float32)
        torch.set_default_device(None)
    assert off(logits(model), want) < 1e-5


def test_a_block_may_unpatch_the_model_itself():
    model = MODELS["llama"].build()
    with ra.hf.patched(model):
        ra.hf.unpatch(model)
    error = exception_of_a_block(model, lambda: ra.hf.unpatch(model))
    assert not hasattr(error, "__notes__")


def test_the_exception_of_the_block_is_raised_if_unpatching_fails():
    model = MODELS["llama"].build()
    error = exception_of_a_block(model, lambda: setattr(model.model.rotary_emb, "forward", len))
    assert "still patched. model.rotary_emb" in error.__notes__[0]


def exception_of_a_block(model, body):
    def run():
        with ra.hf.patched(model):
            body()
            raise KeyError("mine")

    with pytest.raises(KeyError) as error:
        run()
    return error.value


def test_a_compiled_model_whose_rule_depends_on_the_length():
    """The graph breaks at the length, as in the model's own code."""
    model = MODELS["dynamic"].build()
    torch._dynamo.reset()
    with torch.no_grad(), ra.hf.patched(model):
        compiled = torch.compile(model, backend="aot_eager")
        for length in (TRAINED - 4, 2 * TRAINED):
            tokens = torch.arange(length)[None]
            assert off(compiled(tokens).logits, model(tokens).logits) < 1e-6
    torch._dynamo.reset()


def test_bfloat16_frequency_buffers_are_patched():
    """`model.to` has rounded the buffers; the exact angles come from the config."""
    model = MODELS["llama"].build().to(torch.bfloat16)
    want, rounded = ra.RoPE.from_config(model.config), logits(model)
    assert model.model.rotary_emb.inv_freq.dtype is torch.bfloat16
    with ra.hf.patched(model) as report:
        assert report[0].rope == want
        assert not torch.equal(logits(model), rounded)
    with ra.hf.patched(model, angles="float32"):
        assert torch.equal(logits(model), rounded)


def test_state_dicts_and_dtypes_are_those_of_the_model():
    model = MODELS["llama"].build()
    names = list(model.state_dict())
    ra.hf.patch(model)
    assert list(model.state_dict()) == names
    model.to(torch.bfloat16)  # rounds the frequencies of the model's own rotary module, which is not used
    x, pos = torch.zeros(1, 3, 64).bfloat16(), torch.tensor([[0, 7, 300]])
    cos, _ = model.model.rotary_emb(x, pos)
    want = ra.RoPE.from_config(model.config).rotation(pos, like=torch.zeros(1)).cos
    assert torch.allclose(cos[..., :8], want, atol=3e-7, rtol=0)


# ---- copies ----


def test_a_deep_copy_is_patched_and_can_be_unpatched():
    model = MODELS["llama"].build()
    want = logits(model)
    ra.hf.patch(model)
    patched = logits(model)
    copied = copy.deepcopy(model)
    with torch.no_grad():
        model.model.layers[0].self_attn.q_proj.weight.zero_()
    assert torch.equal(logits(copied), patched)  # by its own weights
    ra.hf.unpatch(copied)
    assert torch.equal(logits(copied), want)
    assert any(_attributes.MARK in vars(module) for module in model.modules())


def test_a_patched_model_is_not_pickled():
    model = MODELS["llama"].build()
    ra.hf.patch(model)
    with pytest.raises(ra.PatchError, match="unpatch"):
        pickle.dumps(model)
    ra.hf.unpatch(model)
    assert torch.equal(logits(pickle.loads(pickle.dumps(model))), logits(model))


# ---- refusals ----


def refused(model, text):
    before = state(model)
    with pytest.raises(ra.PatchError, match=text):
        ra.hf.patch(model)
    assert is_same(before, state(model))


@pytest.mark.parametrize("scale", [1.0001, 0.5], ids=["slightly", "much"])
@pytest.mark.parametrize("name", ["llama", "qwen2_vl", "phi3"])
def test_edited_frequencies_are_refused(name, scale):
    model = MODELS[name].build()
    rotary = next(m for n, m in model.named_modules() if n.endswith("rotary_emb"))
    rotary._buffers["original_inv_freq" if name == "phi3" else "inv_freq"][3] *= scale
    refused(model, "does not match its config")


def test_edited_amplitudes_are_refused():
    model = MODELS["deepseek_v3"].build()
    model.model.rotary_emb.attention_scaling *= 1.01
    refused(model, "cos is .* where the rope of its config has")


def test_unloaded_frequencies_are_refused():
    with torch.device("meta"):
        config = transformers.LlamaConfig(**GROUPED)
        model = transformers.LlamaForCausalLM(config)
    model.model.rotary_emb.inv_freq = torch.zeros(8, device="meta")
    refused(model, "meta")


@pytest.mark.parametrize(
    ("value", "given", "remedy"),
    [
        (None, "of the type NoneType", ""),
        ("gpt2", "'gpt2' (str)", ": load it first, by from_pretrained of {}, and pass the result"),
        (
            pathlib.Path("gpt2"),
            f"of the type {type(pathlib.Path()).__name__}",
            ": load it first, by from_pretrained of {}, and pass the result",
        ),
        (
            transformers.LlamaConfig(),
            "of the type LlamaConfig",
            ": make it first, by from_config of {}, and pass the result",
        ),
        (transformers.LlamaForCausalLM, "the class LlamaForCausalLM", ", an instance of the class"),
        (
            types.SimpleNamespace(model=torch.nn.Linear(2, 2)),
            "of the type SimpleNamespace",
            ": its attribute model",
        ),
    ],
    ids=["None", "name", "path", "config", "class", "pipeline"],
)
def test_non_modules_are_refused(value, given, remedy):
    text = f"the model is {given}; give a torch.nn.Module{remedy.format(_patch.CLASSES)}."
    for call in (ra.hf.patch, ra.hf.unpatch):
        with pytest.raises(ra.PatchError) as error:
            call(value)
        assert str(error.value) == text


def test_other_angles_are_refused():
    with pytest.raises(ra.PatchError, match="'exact' or 'float32'"):
        ra.hf.patch(MODELS["llama"].build(), angles="float16")


def test_models_without_a_rotary_module_are_refused():
    small = {"n_embd": 8, "n_layer": 1, "n_head": 1, "vocab_size": 16, "n_positions": 8}
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**small, bos_token_id=0, eos_token_id=0))
    refused(
        model, "GPT2LMHeadModel has no rotary module .* 'Refused models' in docs/in-my-model/huggingface.md"
    )


# ---- reports ----


def test_report_of_a_rotary_module_alone():
    report = ra.hf.patch(MODELS["llama"].build().model.rotary_emb)
    assert [entry.name for entry in report] == [""]
    first, second, *_ = str(report).splitlines()
    assert first == "1 module patched, angles='exact'"
    assert second.startswith("  (the model itself)  LlamaRotaryEmbedding: ")


def test_report_states_that_half_precision_keeps_the_function():
    report = ra.hf.patch(MODELS["llama"].build(torch.bfloat16), angles="float32")
    assert [entry.replaced for entry in report] == ["own tables", *["rotation (float32 tensors only)"] * 2]


# ---- functions of the attention ----


def a_function(body):
    """Return a function of (q, k, cos, sin, unsqueeze_dim) by its multiplication."""

    def apply_rotary_pos_emb(q, k, cos, sin, unsqueeze_dim=1):
        cos, sin = cos.unsqueeze(unsqueeze_dim), sin.unsqueeze(unsqueeze_dim)
        return body(q, cos, sin), body(k, cos, sin)

    return apply_rotary_pos_emb


def half(x):
    first, second = x.chunk(2, -1)
    return torch.cat((-second, first), -1)


def pairs(x):
    return torch.stack((-x[..., 1::2], x[..., ::2]), -1).flatten(-2)


def test_layout_of_each_function_is_recognised():
    found = _attention.recognise(a_function(lambda x, cos, sin: x * cos + half(x) * sin))
    assert (found.arrangement, found.pairing, found.out_pairing, found.sign) == ("cat", "half", "half", 1)
    found = _attention.recognise(a_function(lambda x, cos, sin: x * cos + pairs(x) * sin))
    assert (found.arrangement, found.pairing, found.sign) == ("repeat", "interleaved", 1)
    found = _attention.recognise(a_function(lambda x, cos, sin: x * cos - half(x) * sin))
    assert (found.arrangement, found.sign) == ("cat", -1)


WRONG = {
    "another sign in a part": lambda x, cos, sin: x * cos + half(x).abs() * sin,
    "a factor": lambda x, cos, sin: 1.001 * (x * cos + half(x) * sin),
    "no sine": lambda x, cos, sin: x * cos,
    "another pairing than the tables": lambda x, cos, sin: x * cos + pairs(x) * sin.roll(1, -1),
}


def partial(x, cos, sin):
    width = cos.shape[-1]
    return torch.cat((x[..., :width] * cos + half(x[..., :width]) * sin, x[..., width:]), -1)


def promoted(x, cos, sin):
    return x * cos + half(x) * sin


@pytest.mark.parametrize(
    ("body", "dtype", "layout"),
    [(partial, torch.float32, (0, 1, 3, 2)), (promoted, torch.bfloat16, (0, 1, 2, 3))],
    ids=["strides", "tables of another dtype"],
)
def test_float32_angles_keep_the_function_where_bits_or_strides_would_differ(body, dtype, layout):
    function = a_function(body)
    ours = _attention.make_rotate_function(_attention.recognise(function), exact=False)
    q = torch.randn(2, 4, 6, 16).permute(layout).contiguous().permute(layout).to(dtype)
    width = 8 if body is partial else 16
    tables = torch.rand(2, 6, width // 2).repeat(1, 1, 2)
    for got, want in zip(ours(q, q, tables, tables), function(q, q, tables, tables), strict=True):
        assert torch.equal(got, want)
        assert (got.stride(), got.dtype) == (want.stride(), want.dtype)


@pytest.mark.parametrize("body", WRONG.values(), ids=WRONG)
def test_functions_of_no_layout_are_not_replaced(body):
    assert _attention.recognise(a_function(body)) is None


def test_an_unknown_function_is_called_with_exact_tables(monkeypatch):
    """A model whose function was replaced for all models before: ours gives it tables, and rounds once."""
    from transformers.models.llama import modeling_llama

    factor = a_function(lambda x, cos, sin: 1.001 * (x * cos + half(x) * sin))
    monkeypatch.setattr(modeling_llama, "apply_rotary_pos_emb", factor)
    for dtype in (torch.float32, torch.bfloat16):
        model = MODELS["llama"].build(dtype)
        want = logits(model)
        with ra.hf.patched(model) as report:
            assert report[1].replaced == "rotation by the model's function, rounded once"
            assert off(logits(model).float(), want.float()) < (2e-5 if dtype is torch.float32 else 0.1)
        with ra.hf.patched(model, angles="float32"):
            assert torch.equal(logits(model), want)


def test_decorated_methods_are_rebound():
    """A decorator's function is copied with its own copy of the method; the original stays."""
    namespace = {"torch": torch, "rotate": lambda x: x + 1}
    exec("@torch.no_grad()\ndef method(self, x):\n    return rotate(x)", namespace)
    from rope_array.hf._rebind import rebind

    copied = rebind(namespace["method"], {"rotate": lambda x: x + 10})
    x = torch.zeros(1, requires_grad=True)
    assert (float(copied(None, x)), float(namespace["method"](None, x))) == (10.0, 1.0)
    assert not copied(None, x).requires_grad
    assert rebind(namespace["method"], {"other": None}) is None
    assert isinstance(copied, types.FunctionType)


# ---- reports and examples ----


@pytest.mark.parametrize("value", [ra.hf.patch, ra.hf.unpatch, ra.hf.patched, ra.hf.Report])
def test_examples_of_docstrings(value):
    (found,) = doctest.DocTestFinder(recurse=False).find(value, globs={})
    assert found.examples
    result = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE).run(found)
    assert result.failed == 0


def test_reports_list_each_module_with_its_rope():
    model = MODELS["gemma3"].build()
    with ra.hf.patched(model) as report:
        names = [entry.name for entry in report]
        assert names == ["model.rotary_emb", "model.layers.0.self_attn", "model.layers.1.self_attn"]
        for kind, rope in report[0].rope.items():
            assert rope == ra.RoPE.from_config(model.config, layer_type=kind)
        assert report.left == ()
        text = str(report)
    assert "3 modules patched" in text
    assert "model.layers.*.self_attn (2)" in text
    assert "base=1000000.0" in text
    with ra.hf.patched(model, angles="float32") as report:
        assert all(rope.angles == "float32" for rope in report[0].rope.values())


def test_reports_of_models_with_a_vision_tower():
    model = MODELS["qwen2_vl"].build()
    with ra.hf.patched(model) as report:
        ropes = {entry.name: entry.rope for entry in report if entry.rope is not None}
    assert set(ropes) == {"model.visual.rotary_pos_emb", "model.language_model.rotary_emb"}
    for part, rope in zip(("vision", "text"), ropes.values(), strict=True):
        assert rope == ra.RoPE.from_config(model.config, part=part)


def test_towers_that_are_not_known_are_left_alone(monkeypatch):
    model = MODELS["qwen2_vl"].build()
    rotary = type(model.model.visual.rotary_pos_emb)
    monkeypatch.setattr(rotary, "forward", lambda self, x, ids, more: None)
    with ra.hf.patched(model) as report:
        assert [left.name for left in report.left] == ["model.visual.rotary_pos_emb"]
        assert "forward takes (x, ids, more)" in report.left[0].reason
        assert "left alone: model.visual.rotary_pos_emb" in str(report)
        assert not any("visual" in entry.name for entry in report)
    monkeypatch.setattr(
        type(model.model.language_model.rotary_emb), "forward", lambda self, x, ids, more: None
    )
    refused(model, "language_model.rotary_emb")


# ---- checkpoints ----


def test_saved_weights_do_not_contain_the_patch(tmp_path):
    model = MODELS["llama"].build()
    want = logits(model)
    ra.hf.patch(model)
    patched = logits(model)
    model.save_pretrained(tmp_path)
    torch.save(model.state_dict(), tmp_path / "state")
    loaded, second = type(model).from_pretrained(tmp_path).eval(), MODELS["llama"].build()
    second.load_state_dict(torch.load(tmp_path / "state"))
    for other in (loaded, second):
        assert torch.equal(logits(other), want)
        ra.hf.patch(other)
        assert torch.equal(logits(other), patched)


def protein_model(change=None):
    """A small ESM-2, whose frequencies are a part of the checkpoint."""
    torch.manual_seed(0)
    values = {"vocab_size": 33, "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1}
    values |= {"num_attention_heads": 4, "mask_token_id": 32, "pad_token_id": 1, "token_dropout": False}
    config = transformers.EsmConfig(**values, position_embedding_type="rotary")
    model = transformers.EsmModel(config, add_pooling_layer=False).eval()
    if change is not None:
        buffer = model.rotary_embeddings.inv_freq
        buffer.copy_(change(buffer))
    return model


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_frequencies_that_a_checkpoint_rounded_are_the_model_s(dtype, tmp_path):
    protein_model(lambda buffer: buffer.to(dtype)).save_pretrained(tmp_path)
    for load_as in (None, torch.float16):
        model = transformers.EsmModel.from_pretrained(tmp_path, dtype=load_as, add_pooling_layer=False)
        report = ra.hf.patch(model)
        notes = f"of the model's frequencies, rounded to {str(dtype)[6:]} by the checkpoint or by a cast"
        assert notes in report[0].replaced
        frequencies = (10_000.0 ** (-torch.arange(8) / 8)).to(dtype).double()
        assert report[0].rope.frequencies == tuple(frequencies.tolist())
        pos = torch.tensor([[0, 1, 1_000, 1_000_003]])
        cos, sin = model.rotary_embeddings(torch.zeros(1), pos)
        angles = pos.double()[..., None] * frequencies
        assert torch.allclose(cos[..., :8].double(), angles.cos(), atol=2e-7, rtol=0)
        assert torch.allclose(sin[..., 8:].double(), angles.sin(), atol=2e-7, rtol=0)


def test_checkpoints_in_full_precision_have_the_frequencies_of_the_config():
    report = ra.hf.patch(protein_model())
    assert (report[0].replaced, report[0].rope.inv_freq) == ("exact tables", None)


@pytest.mark.parametrize(
    "change",
    [lambda b: (b * 1.004).half(), lambda b: b.half().float() * 1.0001, lambda b: b.half().flip(0)],
    ids=["other base", "not rounded", "other order"],
)
def test_other_frequencies_of_a_checkpoint_are_refused(change):
    refused(protein_model(change), "does not match its config")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_a_cast_that_rounds_the_frequencies_of_a_checkpoint_comes_after_the_patch(dtype):
    model = protein_model()
    ra.hf.patch(model)
    pos = torch.tensor([[1_000_003]])
    cos, _ = model.to(dtype).rotary_embeddings(torch.zeros(1, dtype=dtype), pos)
    assert torch.equal(cos, ra.RoPE.from_config(model.config).rotation(pos, like=cos).full_width()[0])
    refused(protein_model().to(dtype), "load the model again, patch it, then cast it")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_float32_angles_keep_the_tables_of_a_cast_model(dtype):
    pos, x = torch.tensor([[0, 3, 1_000_003]]), torch.zeros(1, dtype=dtype)
    for model in (protein_model().to(dtype), protein_model().to(dtype).float()):
        with torch.no_grad():
            want = model(TEXT[:, :9] % 30).last_hidden_state
            tables = model.rotary_embeddings(x, pos)
            report = ra.hf.patch(model, angles="float32")
            assert torch.equal(model(TEXT[:, :9] % 30).last_hidden_state, want)
            assert all(map(torch.equal, model.rotary_embeddings(x, pos), tables))
        assert report[0].replaced == "own tables"
        assert report[0].rope.inv_freq == tuple(model.rotary_embeddings.inv_freq.double().tolist())
