"""`rope_array.hf`: patched models of transformers, their reports, and unpatching.

tests/test_hf_families.py compares the outputs of every family. Here a few tiny models show the
mechanism: only modules of one instance change.
"""

import contextlib
import copy
import doctest
import functools
import importlib
import inspect
import pickle

import oracle
import pytest
import torch
import transformers
from hf._compare import is_same, off, state
from hf._tiny import DYNAMIC, LENGTHS, LONGROPE, TRAINED, Tiny, rotaries, tiny_of
from hf._tiny_inputs import tokens
from hf._walk import modeling
from refusals import raised, refusals

import rope_array as ra
from rope_array import _dispatch
from rope_array.hf import _attention, _attributes, _operators, _patch, _report
from rope_array.hf._layer_tables import LayerTables
from rope_array.hf._rebind import rebind

ANGLES = ("exact", "float32")
HALF_DTYPES = (torch.float16, torch.bfloat16)
TEXT = tokens(2, 20)


def build(name="llama", dtype=torch.float32, layers=None):
    model = tiny_of(name).make(dtype)
    model.generation_config.disable_compile = True
    if layers:
        model.model.layers = model.model.layers[:layers]
    return model


def logits(model, ids=TEXT, **inputs):
    with torch.no_grad():
        return model(ids, **inputs).logits


def is_close(xs, expected, bound=1e-5):
    """Return whether arrays differ by roundings of float32: both are arrays or tuples of arrays."""
    if isinstance(xs, torch.Tensor):
        xs, expected = (xs,), (expected,)
    return all(off(x, y) < bound for x, y in zip(xs, expected, strict=True))


CLOSE = 1e-4  # of the outputs of a model: some layers of roundings


def assert_rope(tables, rope, positions, bound=2e-7):
    """Assert that cos and sin are a rope's tables."""
    rotation = rope.rotation(positions, like=torch.zeros(1, dtype=torch.float64))
    for table, exact in zip(tables, rotation, strict=True):
        assert (table[..., : exact.shape[-1]] - exact).abs().max() < bound


# ---- tables ----


def test_half_precision_is_rotated_in_float32():
    """The error of q is one rounding to the 8 bits of bfloat16; the model's own code has several."""
    model = build("llama", torch.bfloat16)
    positions, attention = torch.arange(20)[None] + 400, model.model.layers[0].self_attn
    q = torch.randn(1, 2, 20, 32, generator=torch.Generator().manual_seed(1)).bfloat16()
    exact, errors = ra.RoPE.from_config(model.config).apply(q.double(), positions), []
    for patched in (contextlib.nullcontext(), ra.hf.patched(model)):
        with patched:
            rotate = inspect.unwrap(attention.forward).__globals__["apply_rotary_pos_emb"]
            rotated, _ = rotate(q, q, *model.model.rotary_emb(q, positions))
        assert rotated.dtype is torch.bfloat16
        errors.append(float(((rotated.double() - exact).abs() / exact.abs().clamp_min(0.1)).max()))
    assert errors[1] <= 2**-8 < errors[0] / 2


@pytest.mark.parametrize("name", ["llama", "gemma3", "qwen2_vl", "deepseek_v3", "gpt_oss"])
def test_tables_are_exact_at_far_positions(name):
    model, far = build(name, torch.bfloat16), torch.tensor([[1_000_003, 2_000_000_011]])
    with ra.hf.patched(model) as report:
        entry = next(
            e for e in report if e.rope is not None and not {"visual", "vision"} & {*e.name.split(".")}
        )
        ropes = entry.rope if isinstance(entry.rope, dict) else {None: entry.rope}
        for layer_type, rope in ropes.items():
            rotary, x = model.get_submodule(entry.name), torch.zeros(1, 2, 64).bfloat16()
            tables = rotary(x, far, **({"layer_type": layer_type} if layer_type else {}))
            assert_rope(tables, rope, far if rope.axes is None else far[..., None].expand(1, 2, 3))


@pytest.mark.parametrize("name", LENGTHS)
def test_a_rule_follows_the_length_of_the_call(name):
    model = build(name)
    rope, rotary, x = ra.RoPE.from_config(model.config), model.model.rotary_emb, torch.zeros(1, 1, 64)
    assert rope.at_length(TRAINED) != rope.at_length(TRAINED + 1)
    for length in (TRAINED - 1, TRAINED, TRAINED + 1, 3 * TRAINED, 7):
        pos = torch.arange(length)[None]
        own_tables = rotary(x, pos)
        with ra.hf.patched(model):
            assert_rope(rotary(x, pos), rope.at_length(length), pos, 3e-7)
        with ra.hf.patched(model, angles="float32"):
            assert all(map(torch.equal, rotary(x, pos), own_tables))


@pytest.mark.parametrize("name", ["glm", "gpt_neox", "llama"])
def test_an_attention_that_is_not_replaced_gets_the_model_s_arrangement(name):
    """A subclass of another file is not seen; it reads the tables of the patched rotary module."""
    model = build(name)
    attention = next(m for m in model.modules() if type(m).__name__.endswith("Attention"))

    def forward(self, *args, **options):
        return super(subclass, self).forward(*args, **options)

    subclass = type("Own", (type(attention),), {"forward": forward})
    expected = logits(model)
    attention.__class__ = subclass
    with ra.hf.patched(model):
        assert is_close(logits(model), expected, CLOSE)


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
def test_tables_to_hand_on_to_a_layer():
    model, x = build(), torch.randn(1, 5, 64)
    ra.hf.patch(model)
    tables, layer = model.model.rotary_emb(x, torch.arange(5)[None]), model.model.layers[0]
    assert repr(tables) == "LayerTables(cos=float32[1, 5, 32] (torch), sin=float32[1, 5, 32] (torch))"
    inputs = {"hidden_states": x, "position_embeddings": tuple(tables)}
    with torch.no_grad():
        expected = layer(x, position_embeddings=tables)
        traced = torch.jit.trace(layer, example_kwarg_inputs=inputs)
        program = torch.export.export(layer, (), inputs).module()
        assert all(torch.equal(call(**inputs), expected) for call in (layer, traced, program))


@pytest.mark.parametrize("dtype", HALF_DTYPES, ids=str)
def test_tables_that_a_caller_casts_are_refused(dtype):
    model, x = build("llama", dtype), torch.randn(1, 5, 64).to(dtype)
    ra.hf.patch(model)
    tables = model.model.rotary_emb(x, torch.arange(5)[None])
    remedies = rf"leave out that cast.*MixedPrecisionPolicy\(param_dtype={dtype}, .*FSDP1 with MixedPrecision"
    with pytest.raises(ra.PatchError, match=remedies):
        model.model.layers[0](x, position_embeddings=tuple(table.to(dtype) for table in tables))


def test_tables_take_the_arguments_of_tensor_to():
    double = torch.float64
    tables = LayerTables(torch.ones(2), torch.zeros(2)).to("meta", dtype=double, non_blocking=True)
    assert isinstance(tables, LayerTables)
    assert [(table.device.type, table.dtype) for table in tables] == [("meta", double)] * 2


# ---- learned frequencies ----

LAST = 1_048_575  # of the positions of Mistral Large 4


def learned_model(dtype=torch.float32, **changes):
    """Return a small Mistral Large 4, and the rotary module of its texts, whose alpha is not 0."""
    model = Tiny("mistral_large4", changes).make(dtype)
    return model, next(m for m in model.modules() if hasattr(m, "alpha"))


def off_from_definition(tables, rope, alpha, pos):
    """Return the largest error of tables of frequencies times exp(alpha), by mpmath."""
    scales = [oracle.CONTEXT.exp(oracle.real(value)) for value in alpha.tolist()]
    omegas = [oracle.real(omega) * scale for omega, scale in zip(rope.frequencies, scales, strict=True)]
    exact = torch.tensor([oracle.cos_sin(pos, omega) for omega in omegas], dtype=torch.float64).T
    return max(float((t[0, 0, :8].double() - e).abs().max()) for t, e in zip(tables, exact, strict=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@torch.no_grad()
def test_learned_frequencies_are_exact_at_the_last_position(dtype):
    """Alpha is read in each call."""
    model, rotary = learned_model()
    rope = ra.RoPE.from_config(model.config, part="text")
    x = torch.zeros(1, 1, dtype=dtype)
    with ra.hf.patched(model) as report:
        (entry,) = (entry for entry in report if "Text" in entry.cls and entry.rope is not None)
        assert (entry.rope, entry.replaced) == (rope, "exact tables of the frequencies times exp(alpha)")
        for value in (0.0, 0.3, -0.7):
            rotary.alpha += value
            tables = rotary(x, torch.tensor([[LAST]]))
            bound = 1e-9 if dtype is torch.float64 else 9.5e-8
            assert off_from_definition(tables, rope, rotary.alpha, LAST) < bound
    assert off_from_definition(rotary(x, torch.tensor([[LAST]])), rope, rotary.alpha, LAST) > 1e-3


@pytest.mark.parametrize("rule", [DYNAMIC, {**LONGROPE, "short_factor": [1.5] * 8, "long_factor": [3.0] * 8}])
@torch.no_grad()
def test_learned_frequencies_of_a_rule_by_length(rule):
    changes = {"max_position_embeddings": TRAINED, "original_max_position_embeddings": TRAINED}
    model, rotary = learned_model(text_config={"rope_parameters": rule | changes, **changes})
    rope, x = ra.RoPE.from_config(model.config, part="text"), torch.zeros(1, 1)
    for length in (TRAINED, 3 * TRAINED):
        pos = torch.arange(length)[None]
        own_tables = rotary(x, pos)
        with ra.hf.patched(model):
            tables = rotary(x, pos)
        assert is_close(tuple(tables), own_tables)
        last = [table[:, -1:] / rope.at_length(length).amplitude for table in tables]
        assert off_from_definition(last, rope.at_length(length), rotary.alpha, length - 1) < 2e-7


@pytest.mark.usefixtures("fresh_dynamo")
def test_learned_frequencies_train_in_compiled_code():
    model, rotary = learned_model()
    x, results = torch.zeros(1, 1), []

    def loss(pos):
        cos, sin = rotary(x, pos)
        return (cos * torch.arange(16) + sin * sin).sum()

    def run(call):
        values = [call(torch.arange(length)[None]) for length in (12, 13, 17)]
        (gradient,) = torch.autograd.grad(sum(values), rotary.alpha)
        results.append((torch.stack(values).detach(), gradient))

    run(loss)
    ra.hf.patch(model)
    run(loss)
    counter = importlib.import_module("torch._dynamo.testing").CompileCounterWithBackend("aot_eager")
    run(torch.compile(loss, backend=counter, fullgraph=True))
    assert counter.frame_count <= 2
    for result in results[1:]:
        assert is_close(result, results[0], 1e-4)


@torch.no_grad()
def test_a_copy_has_learned_factors_of_its_own():
    model, rotary = learned_model()
    ra.hf.patch(model)
    x, pos, copied = torch.zeros(1, 1), torch.arange(5)[None], copy.deepcopy(rotary)
    tables = rotary(x, pos)
    copied.alpha.zero_()
    assert_rope(copied(x, pos), ra.RoPE.from_config(model.config, part="text"), pos)
    assert all(map(torch.equal, rotary(x, pos), tables))


@pytest.mark.usefixtures("fresh_dynamo")
def test_a_compiled_model_of_learned_frequencies():
    model, _ = learned_model()
    model.set_experts_implementation("batched_mm")  # the default breaks the graph
    expected = logits(model)
    ra.hf.patch(model)
    model.model.language_model.compile(backend="aot_eager", fullgraph=True)
    assert is_close(logits(model), expected, CLOSE)


@torch.no_grad()
@pytest.mark.parametrize("dtype", HALF_DTYPES, ids=str)
def test_a_cast_of_learned_factors_is_refused(dtype, tmp_path):
    model, rotary = learned_model()
    model.save_pretrained(tmp_path)
    x, pos, alpha = torch.zeros(1, 1, dtype=dtype), torch.tensor([[LAST]]), rotary.alpha.detach().clone()
    ra.hf.patch(model)
    model.to(dtype)
    with pytest.raises(ra.PatchError, match=f"TextRotaryEmbedding: a cast to {str(dtype)[6:]} has rounded"):
        rotary(x, pos)
    ra.hf.unpatch(model)
    refused(model, "rounded its parameter alpha | from_pretrained | angles='float32'")
    own_tables = rotary(x, pos)
    with ra.hf.patched(model, angles="float32"):
        assert all(map(torch.equal, rotary(x, pos), own_tables))
    loaded = type(model).from_pretrained(tmp_path, dtype=dtype)
    ra.hf.patch(loaded)
    rotary = loaded.model.language_model.rotary_emb
    assert loaded.dtype is dtype
    assert torch.equal(rotary.alpha, alpha)
    rope = ra.RoPE.from_config(model.config, part="text")
    assert off_from_definition(rotary(x, pos), rope, alpha, LAST) < 9.5e-8


def changed(change):
    """Return a model whose rotary module learns its frequencies in another way, by a change of the module."""
    model, rotary = learned_model()
    change(rotary)
    return model


def learned_by(factor):
    """Return a model whose frequencies are multiplied by a function of alpha."""

    def forward(self, x, position_ids):
        angles = position_ids[..., None].float() * self.inv_freq * factor(self.alpha)
        return angles.tile(2).cos(), angles.tile(2).sin()

    return changed(lambda r: setattr(r, "__class__", type("OtherRotary", (type(r),), {"forward": forward})))


@refusals("hf learned frequencies")
@pytest.mark.parametrize("angles", ANGLES)
def test_other_learned_frequencies_are_refused(call, error, words, angles):
    refused(eval(call), words, functools.partial(ra.hf.patch, angles=angles))


# ---- generation and training ----


@pytest.mark.parametrize("name", ["deepseek_v2", "gemma3", "qwen2_vl", *LENGTHS])  # over the trained length
def test_generated_tokens_of_texts_with_left_padding_are_the_same(name):
    mask = torch.arange(20) >= torch.tensor([[7], [0]])
    model, options = build(name), {"attention_mask": mask.long(), "max_new_tokens": 8, "do_sample": False}
    tokens = model.generate(TEXT, **options)
    for angles in ANGLES:
        with ra.hf.patched(model, angles=angles):
            assert torch.equal(model.generate(TEXT, **options), tokens), angles


@pytest.mark.parametrize("reentrant", [False, True])
def test_gradients_with_checkpointing(reentrant):
    model = build().train()
    model.activation_checkpointing_enable({"use_reentrant": reentrant})
    model.enable_input_require_grads()

    def gradients():
        model.zero_grad()
        model(TEXT, labels=TEXT, use_cache=False).loss.backward()
        return tuple(p.grad.clone() for p in model.parameters())

    expected = gradients()
    for angles, bound in (("float32", 2e-6), ("exact", 5e-4)):
        with ra.hf.patched(model, angles=angles):
            assert is_close(gradients(), expected, bound)


# ---- compilation ----


@pytest.mark.usefixtures("fresh_dynamo")
@pytest.mark.parametrize("compiles_method", [True, False], ids=["attention", "layer"])
def test_code_compiled_before_and_after(compiles_method, monkeypatch):
    """Dynamo keeps compiled code with the code object, and reads globals as at the first compilation.

    It finds the globals of inner calls by the name of a function's module: not the originals.
    """
    model = build().model
    hidden = torch.randn(1, 6, 64, generator=torch.Generator().manual_seed(1))
    layer, tables = model.layers[0], model.rotary_emb(hidden, torch.arange(6)[None])

    def run(compiler):
        method = layer.self_attn.forward if compiles_method else layer.forward
        with torch.no_grad():
            out = compiler(method)(hidden, position_embeddings=tables)
        return out[0] if compiles_method else out

    compiled = functools.partial(run, functools.partial(torch.compile, backend="eager"))
    with ra.hf.patched(model, angles="float32"):
        for module, name in ((_dispatch, "rotate"), (_operators, "rotate_by_operator")):
            double = lambda arrays, *others, **options: tuple(2 * x for x in arrays)  # noqa: E731
            monkeypatch.setattr(module, name, double)
        doubled = compiled()
    expected = run(lambda method: method)
    assert off(doubled, expected) > 0.01
    assert is_close(compiled(), expected)


@pytest.mark.usefixtures("fresh_dynamo")
@pytest.mark.parametrize("name", ["llama", *(pytest.param(n, marks=pytest.mark.nightly) for n in LENGTHS)])
def test_compiled_models_have_no_more_graphs_than_before(name):
    """One for the first length, and one for all others."""
    model, breaks = build(name, layers=1), name == "dynamic"  # at the length, as in the model's own code
    counter = importlib.import_module("torch._dynamo.testing").CompileCounter()
    with ra.hf.patched(model):
        compiled = torch.compile(model, backend=counter, fullgraph=not breaks)
        for length in (12, 13, 14, 9, 27):
            ids = TEXT.repeat(1, 2)[:, :length]
            expected = logits(model, ids, use_cache=False)
            assert is_close(logits(compiled, ids, use_cache=False), expected, CLOSE)
    assert breaks or counter.frame_count == 2


@pytest.mark.nightly
@pytest.mark.usefixtures("fresh_dynamo")
def test_the_text_of_a_rope_in_a_program_is_a_key_and_is_not_unpickled():
    text = f'["{pickle.dumps(ra.RoPE(4)).hex()}", ""]'
    with pytest.raises(ra.PatchError, match="of another process"):
        torch.ops.rope_array_hf.make_tables(torch.ones(1, 4), torch.arange(1), text)


def test_compiled_layers_call_operators_with_the_gradients_of_the_eager_model():
    """Dynamo writes one operator for the tables and one for each layer, and does not trace our functions."""
    model, names = build(), []
    ra.hf.patch(model)

    def backend(graph, inputs):
        names.extend(str(node.target) for node in graph.graph.nodes)
        return torch._dynamo.lookup_backend("aot_eager")(graph, inputs)

    weight, logits_and_gradients = model.model.layers[0].self_attn.q_proj.weight, []
    for run in (model, torch.compile(model, backend=backend, fullgraph=True)):
        out = run(TEXT, use_cache=False).logits
        out.square().mean().backward()
        logits_and_gradients.append((out.detach(), weight.grad))
        weight.grad = None
    assert is_close(*logits_and_gradients, CLOSE)
    assert names.count("rope_array_hf.make_tables.default") == 1
    assert names.count("rope_array_hf.rotate.default") == len(model.model.layers)


def function_and_replacement(folder="llama", exact=True):
    """Return the function of a folder of transformers that rotates q and k, and its replacement."""
    function = modeling(folder).apply_rotary_pos_emb
    return function, _attention.make_rotate_function(_attention.recognise(function), exact)


def random_call(heads):
    """Return q, k and tables of two sequences of five positions."""
    random = torch.Generator().manual_seed(0)
    q, k = (torch.randn((2, heads, 5, 8), generator=random) for _ in range(2))
    angles = torch.rand(2, 5, 4, generator=random).tile(2)
    return q, k, angles.cos(), angles.sin()


@torch.no_grad()
def test_a_call_of_other_shapes_axes_or_memory_is_decided_anew():
    theirs, ours = function_and_replacement()
    q, k, cos, sin = random_call(heads=5)
    doubled = torch.cat((q, q), -1)
    calls = [(q, k, 1), (q, k, 2), (q[:, :2], k, 1), (q[:1], k[:1], 1), (q.double(), k, 1)]
    calls += [(q.half(), k.half(), 1), (q, k, 1), (doubled[..., ::2], doubled[..., 8:], 1)]
    for first, second, axis in calls:
        expected = theirs(first.float(), second.float(), cos, sin, unsqueeze_dim=axis)
        rotated = ours(first, second, cos, sin, unsqueeze_dim=axis)
        is_half = first.dtype == torch.float16
        assert not is_half or {y.dtype for y in rotated} == {torch.float16}
        assert is_close(tuple(y.float() for y in rotated), expected, 3e-3 if is_half else 1e-5)
    cos.data, sin.data = cos.cos(), sin.cos()
    assert is_close(ours(q, k, cos, sin), theirs(q, k, cos, sin))


@torch.no_grad()
def test_transforms_see_the_tables():
    """The derivative along the tables, a batch of tables, and sizes that are symbols."""
    theirs, ours = function_and_replacement()
    q, k, cos, sin = random_call(heads=3)
    ours(q, k, cos, sin)
    tangents = [
        torch.func.jvp(lambda c, of=of: of(q, k, c, sin), (cos,), (sin,))[1][0] for of in (theirs, ours)
    ]
    assert off(tangents[1], tangents[0]) < 1e-5 < tangents[0].abs().max()
    batches = [
        torch.vmap(lambda c, of=of: of(q, k, c, sin))(torch.stack([cos, sin])) for of in (theirs, ours)
    ]
    assert is_close(batches[1], batches[0])
    make_fx = torch.fx.experimental.proxy_tensor.make_fx
    graph = make_fx(lambda *call: ours(*call), tracing_mode="symbolic")(q, k, cos, sin)
    assert is_close(graph(q, k, cos, sin), theirs(q, k, cos, sin))


# ---- other libraries ----


def test_a_module_around_the_model():
    model = build("gemma3")
    expected, around = logits(model), torch.nn.ModuleDict({"inner": model})  # without a config
    report = ra.hf.patch(around, angles="float32")
    assert report[0].name.startswith("inner.model.")
    assert torch.equal(logits(model), expected)
    assert ra.hf.unpatch(model)  # the part that was patched


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


@pytest.mark.parametrize(
    "order", ["patch hook unpatch unhook", "hook patch unpatch unhook", "hook patch unhook unpatch"]
)
def test_hooks_of_accelerate(order):
    model, patched = build(), build()
    touched, calls = [model.model.rotary_emb, model.model.layers[0].self_attn], []
    steps = {
        "patch": lambda: ra.hf.patch(model),
        "unpatch": lambda: ra.hf.unpatch(model),
        "hook": lambda: calls.extend(map(hook, touched)),
        "unhook": lambda: [*map(unhook, touched)],
    }
    unpatched = expected = logits(model)
    ra.hf.patch(patched)
    for step in order.split():
        steps[step]()
        expected = {"patch": logits(patched), "unpatch": unpatched}.get(step, expected)
        assert torch.equal(logits(model), expected), step
    assert all(calls)
    for module in touched:
        assert module.forward.__func__ is type(module).forward
        assert "_old_forward" not in vars(module)


def test_wrappers_of_others_are_refused():
    model = build()
    attention = model.model.layers[1].self_attn
    attention.forward = functools.partial(type(attention).forward, attention)
    refused(model, "layers.1.self_attn | already replaced its forward")
    del attention.forward
    ra.hf.patch(model)
    ours = attention.forward
    attention.forward = lambda *args, **options: ours(*args, **options)
    refused(model, "layers.1.self_attn | was replaced by", ra.hf.unpatch)
    attention.forward = ours
    assert ra.hf.unpatch(model)


# ---- reversal ----


def test_unpatching_restores_attributes_that_other_code_set_or_deleted():
    model = build()
    first, second = (layer.self_attn for layer in model.model.layers)
    first.register_forward_hook(lambda *args: None)
    second.forward = second.forward  # as removed hooks of accelerate leave it
    before = state(model)
    for angles in ANGLES:
        ra.hf.patch(model, angles=angles)
        if angles == "exact":
            del first.forward, second.forward
        assert ra.hf.unpatch(model) is True
        assert is_same(before, state(model))
    assert ra.hf.unpatch(model) is False


def test_a_block_unpatches_and_raises_its_own_exception():
    model, notes = build(), []
    before = state(model)
    for exception, change in (
        (KeyboardInterrupt, lambda: None),
        (KeyError, lambda: ra.hf.unpatch(model)),
        (KeyError, lambda: setattr(model.model.rotary_emb, "forward", len)),
    ):
        assert is_same(before, state(model))
        with pytest.raises(exception) as error, ra.hf.patched(model):  # noqa: PT012
            change()
            raise exception("mine")
        notes.append(getattr(error.value, "__notes__", None))
    assert notes[:2] == [None, None]
    assert "still patched. model.rotary_emb" in notes[2][0]


@pytest.mark.parametrize("angles", ANGLES)
def test_one_instance_changes_and_nothing_global(angles):
    model, second_model = build(), build()
    classes = {type(module) for module in model.modules()}
    expected, before = logits(second_model), (state(second_model), [dict(vars(cls)) for cls in classes])
    with ra.hf.patched(model, angles=angles):
        logits(model)
        assert is_same(before[0], state(second_model))
        assert before[1] == [dict(vars(cls)) for cls in classes]
        assert torch.equal(logits(second_model), expected)
        with pytest.raises(ra.PatchError, match="patched already"):
            ra.hf.patch(model, angles="float32")


@pytest.mark.parametrize("default", ["dtype", "device"])
def test_defaults_of_new_tensors_change_no_patch(default):
    model = build()
    expected = logits(model)
    try:
        torch.set_default_dtype(torch.bfloat16) if default == "dtype" else torch.set_default_device("meta")
        ra.hf.patch(model)
    finally:
        torch.set_default_dtype(torch.float32)
        torch.set_default_device(None)
    assert is_close(logits(model), expected, CLOSE)


# ---- casts, copies and checkpoints ----


@pytest.mark.parametrize("dtype", HALF_DTYPES, ids=str)
def test_frequencies_that_a_cast_rounded_are_those_of_the_config(dtype):
    """The smallest frequencies are below the normal numbers of float16."""
    rule = {"rope_type": "default", "rope_theta": 5e5}
    model = Tiny("llama", {"head_dim": 128, "rope_parameters": rule}).make().to(dtype)
    rounded, frequencies = logits(model), model.model.rotary_emb.inv_freq
    assert frequencies.dtype is dtype
    assert frequencies.min() < torch.finfo(torch.float16).tiny
    with ra.hf.patched(model) as report:
        assert report[0].rope == ra.RoPE.from_config(model.config)
        assert not torch.equal(logits(model), rounded)
    with ra.hf.patched(model, angles="float32"):
        assert torch.equal(logits(model), rounded)


def test_a_deep_copy_is_patched_and_can_be_unpatched():
    model = build()
    expected = logits(model)
    ra.hf.patch(model)
    patched, copied = logits(model), copy.deepcopy(model)
    with torch.no_grad():
        model.model.layers[0].self_attn.q_proj.weight.zero_()
    assert torch.equal(logits(copied), patched)  # by its own weights
    ra.hf.unpatch(copied)
    assert torch.equal(logits(copied), expected)
    assert any(_attributes.MARK in vars(module) for module in model.modules())


def test_a_patched_model_is_not_pickled():
    model = build()
    ra.hf.patch(model)
    refused(model, "unpatch", pickle.dumps)


def test_saved_weights_do_not_contain_the_patch(tmp_path):
    model = build()
    expected = logits(model)
    ra.hf.patch(model)
    model.save_pretrained(tmp_path)
    assert torch.equal(logits(type(model).from_pretrained(tmp_path).eval()), expected)


def protein_model(change=lambda frequencies: frequencies):
    """Return a small ESM-2, whose frequencies are a part of the checkpoint."""
    model = Tiny("esm", {"num_attention_heads": 4, "num_hidden_layers": 1}).make().esm
    frequencies = model.rotary_embeddings.inv_freq
    frequencies.copy_(change(frequencies))
    return model


@pytest.mark.parametrize("dtype", HALF_DTYPES, ids=str)
def test_frequencies_that_a_checkpoint_rounded_are_the_model_s(dtype, tmp_path):
    protein_model(lambda buffer: buffer.to(dtype)).save_pretrained(tmp_path)
    frequencies = (10_000.0 ** (-torch.arange(8) / 8)).to(dtype).double()
    pos = torch.tensor([[0, 1, 1_000, 1_000_003]])
    for load_as in (None, torch.float16):
        model = transformers.EsmModel.from_pretrained(tmp_path, dtype=load_as, add_pooling_layer=False)
        report = ra.hf.patch(model)
        notes = f"of the model's frequencies, rounded to {str(dtype)[6:]} by the checkpoint or by a cast"
        assert notes in report[0].replaced
        assert report[0].rope.frequencies == tuple(frequencies.tolist())
        assert_rope(model.rotary_embeddings(torch.zeros(1), pos), report[0].rope, pos)


@pytest.mark.parametrize("dtype", HALF_DTYPES, ids=str)
def test_a_cast_that_rounds_the_frequencies_of_a_checkpoint_comes_after_the_patch(dtype):
    model, pos = protein_model(), torch.tensor([[1_000_003]])
    report = ra.hf.patch(model)
    assert (report[0].replaced, report[0].rope.inv_freq) == ("exact tables", None)
    cos, _ = model.to(dtype).rotary_embeddings(torch.zeros(1, dtype=dtype), pos)
    assert torch.equal(cos, ra.RoPE.from_config(model.config).rotation(pos, like=cos).full_width()[0])
    refused(protein_model().to(dtype), "load the model again, patch it, then cast it")


@pytest.mark.parametrize("dtype", HALF_DTYPES, ids=str)
def test_float32_angles_keep_the_tables_of_a_cast_model(dtype):
    pos, x, ids = torch.tensor([[0, 3, 1_000_003]]), torch.zeros(1, dtype=dtype), TEXT[:, :9]
    for model in (protein_model().to(dtype), protein_model().to(dtype).float()):
        with torch.no_grad():
            hidden_state, tables = model(ids).last_hidden_state, model.rotary_embeddings(x, pos)
            report = ra.hf.patch(model, angles="float32")
            assert torch.equal(model(ids).last_hidden_state, hidden_state)
            assert all(map(torch.equal, model.rotary_embeddings(x, pos), tables))
        assert report[0].replaced == "own tables"
        assert report[0].rope.inv_freq == tuple(model.rotary_embeddings.inv_freq.double().tolist())


# ---- refusals ----


def refused(model, words, call=ra.hf.patch):
    """Check that a call refuses a model, and that it changes nothing."""
    before = state(model)
    raised(ra.PatchError, words, lambda: call(model))
    assert is_same(before, state(model))


def scaled(name, attribute):
    model = build(name)
    rotary = rotaries(model)[-1]
    setattr(rotary, attribute, 1.0001 * getattr(rotary, attribute))
    return model


class RotatesByHand(torch.nn.Module):
    def forward(self, x, angle):
        return x * torch.cos(angle) + x.flip(-1) * torch.sin(angle)


def of_type(model_type):
    """A model of a type with its default config, but without memory for its weights."""
    with torch.device("meta"):
        return transformers.AutoModel.from_config(transformers.AutoConfig.for_model(model_type))


@refusals("hf patch")
def test_models_other_than_their_config_are_refused(call, error, words):
    refused(eval(call), words)


def test_a_refusal_names_another_version_of_transformers(monkeypatch):
    version = transformers.__version__
    monkeypatch.setattr(_patch, "TRANSFORMERS", "5.99.1")
    hint = f"transformers {version}, and patch follows 5.99: try that version. Or the model does not match"
    refused(scaled("llama", "inv_freq"), hint)
    monkeypatch.setattr(_patch, "TRANSFORMERS", f"{version.rpartition('.')[0]}.99")
    refused(scaled("llama", "inv_freq"), "config | . The model does not match its config | !try that version")


@refusals("hf models")
def test_non_modules_are_refused(call, error, words):
    for function in (ra.hf.patch, ra.hf.unpatch):
        raised(error, words, lambda function=function: function(eval(call)))


def test_other_angles_are_refused():
    refused(build(), "'exact' or 'float32'", functools.partial(ra.hf.patch, angles="float16"))


def test_float32_angles_keep_the_function_where_strides_would_differ():
    theirs, ours = function_and_replacement("gpt_neox", exact=False)  # it rotates a part of the features
    q, tables = torch.randn(2, 4, 16, 6).transpose(2, 3), torch.rand(2, 6, 4).repeat(1, 1, 2)
    for y, their_y in zip(ours(q, q, tables, tables), theirs(q, q, tables, tables), strict=True):
        assert torch.equal(y, their_y)
        assert y.stride() == their_y.stride()


def test_an_unknown_function_is_called_with_exact_tables(monkeypatch):
    """A model whose function was replaced for all models before: ours gives it tables, and rounds once."""
    function = modeling("llama").apply_rotary_pos_emb

    def factor(q, k, cos, sin, unsqueeze_dim=1):
        return tuple(1.001 * y for y in function(q, k, cos, sin, unsqueeze_dim=unsqueeze_dim))

    monkeypatch.setattr(modeling("llama"), "apply_rotary_pos_emb", factor)
    for dtype, bound in ((torch.float32, CLOSE), (torch.bfloat16, 0.1)):
        model = build("llama", dtype)
        expected = logits(model)
        with ra.hf.patched(model) as report:
            assert report[1].replaced == "rotation by the model's function, rounded once"
            assert off(logits(model).float(), expected.float()) < bound
        with ra.hf.patched(model, angles="float32"):
            assert torch.equal(logits(model), expected)


def test_decorated_methods_are_rebound():
    """A decorator's function is copied with its own copy of the method; the original stays."""
    namespace = {"torch": torch, "rotate": lambda x: x + 1}
    exec("@torch.no_grad()\ndef method(self, x):\n    return rotate(x)", namespace)
    method, x = namespace["method"], torch.zeros(1, requires_grad=True)
    copied = rebind(method, {"rotate": lambda x: x + 10})
    assert (float(copied(None, x)), float(method(None, x))) == (10.0, 1.0)
    assert not copied(None, x).requires_grad
    assert rebind(method, {"other": None}) is None


# ---- reports and examples ----


@pytest.mark.parametrize("module", [ra.hf, _report], ids=lambda module: module.__name__)
def test_examples_of_docstrings(module):
    failed, tried = doctest.testmod(module, optionflags=doctest.NORMALIZE_WHITESPACE)
    assert tried
    assert failed == 0


def test_reports_list_each_module_with_its_rope():
    config = build("gemma3").config.text_config
    model = transformers.Gemma3ForCausalLM(config).bfloat16()
    report = ra.hf.patch(model)
    names = ["model.rotary_emb", "model.layers.0.self_attn", "model.layers.1.self_attn"]
    assert [entry.name for entry in report] == names
    for layer_type, rope in report[0].rope.items():
        assert rope == ra.RoPE.from_config(config, layer_type=layer_type)
    assert report.left == ()
    for words in ("3 modules patched", "model.layers.*.self_attn (2)", "base=1000000.0"):
        assert words in str(report)
    ra.hf.unpatch(model)
    report = ra.hf.patch(model, angles="float32")
    assert all(rope.angles == "float32" for rope in report[0].rope.values())
    assert [entry.replaced for entry in report] == ["own tables", *["rotation (float32 tensors only)"] * 2]


def test_report_of_a_rotary_module_alone():
    first, second, *_ = str(ra.hf.patch(build().model.rotary_emb)).splitlines()
    assert first == "1 module patched, angles='exact'"
    assert second.startswith("  (the model itself)  LlamaRotaryEmbedding: ")


def test_towers_that_are_not_known_are_left_alone(monkeypatch):
    model = build("qwen2_vl")
    monkeypatch.setattr(type(model.model.visual.rotary_pos_emb), "forward", lambda self, x, ids, scale: None)
    with ra.hf.patched(model) as report:
        assert [left.name for left in report.left] == ["model.visual.rotary_pos_emb"]
        assert "forward takes (x, ids, scale)" in report.left[0].reason
        assert "left alone: model.visual.rotary_pos_emb" in str(report)
        assert not any("visual" in entry.name for entry in report)
    rotary = type(model.model.language_model.rotary_emb)
    monkeypatch.setattr(rotary, "forward", lambda self, x, ids, scale: None)
    refused(model, "language_model.rotary_emb")
