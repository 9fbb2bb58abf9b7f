"""`hf.examine` names each planted fault with its layers, and finds nothing in the models as they are."""

import contextlib
import types

import pytest
import torch
from hf._compare import FLOAT32, is_same, state
from hf._tiny import FAMILIES, Tiny
from hf._tiny_config import FAMILY, by_family
from transformers import DynamicCache, GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM
from transformers.models.glm import modeling_glm
from transformers.models.llama import modeling_llama

from rope_array import PatchError, hf

YARN = {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e4, "original_max_position_embeddings": 64}
REFUSED, IN_FULL = by_family(FAMILY["refused"]), [*FAMILY["in_full"].split(), "muse_spark", "smollm3"]
NO_BFLOAT16 = ("clvp", FAMILY["no_bfloat16"])
rotate, rotate_glm = modeling_llama.apply_rotary_pos_emb, modeling_glm.apply_rotary_pos_emb


def llama(**changes):
    sizes = {"hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 64, "vocab_size": 100}
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(**sizes, num_hidden_layers=3, max_position_embeddings=256, **changes))


def changed(path, value, **changes):
    model, (owner, _, name) = llama(**changes), path.rpartition(".")
    setattr(model.get_submodule(owner), name, value)
    return model


def with_tables(change):
    """Return a model whose rotary module has another forward: change(its forward, x, positions)."""
    own = (model := llama()).model.rotary_emb.forward
    model.model.rotary_emb.forward = lambda x, position_ids: change(own, x, position_ids)
    return model


def counted(own, x, pos):
    return own(x, torch.arange(pos.shape[-1])[None])


def with_layer(change, **changes):
    """Return a model whose layer 1 calls change(q, k, cos, sin) in place of a rotation."""

    def forward(self, hidden_states, position_embeddings, attention_mask=None, **others):
        shape, layers = (
            (*hidden_states.shape[:-1], -1, self.head_dim),
            (self.q_proj, self.k_proj, self.v_proj),
        )
        q, k, v = (layer(hidden_states).view(shape).transpose(1, 2) for layer in layers)
        attend = modeling_llama.ALL_ATTENTION_FUNCTIONS.get_interface(self.config._attn_implementation, None)
        out, _ = attend(self, *change(q, k, *position_embeddings), v, attention_mask, scaling=self.scaling)
        return self.o_proj(out.flatten(2)), None

    attention = (model := llama(**changes)).model.layers[1].self_attn
    attention.forward = types.MethodType(forward, attention)
    return model


def interleaved(q, k, cos, sin, *_, **options):
    cos, sin = (table[..., :8].repeat_interleave(2, -1).unsqueeze(1) for table in (cos, sin))
    return tuple(x * cos + torch.stack((-x[..., 1::2], x[..., ::2]), -1).flatten(-2) * sin for x in (q, k))


def of_row_0(q, k, cos, sin):
    """Rotate: a single token only in the first row of a batch."""
    pairs = zip((q, k), rotate(q, k, cos, sin), strict=True)
    return tuple(torch.cat((y[:1], x[1:])) if x.shape[2] == 1 else y for x, y in pairs)


def of_last_features(q, k, cos, sin):
    return tuple(y.roll(16, -1) for y in rotate_glm(q.roll(16, -1), k.roll(16, -1), cos, sin))


def smollm3(use_rope):
    for layer in (model := Tiny("smollm3").make()).model.layers:
        layer.self_attn.use_rope = use_rope
    return model


class OwnCode(torch.nn.Module):
    """A layer that calls no function of the module, and rotates by -φ."""

    def __init__(self, attention):
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj = attention.q_proj, attention.k_proj, attention.v_proj
        self.o_proj = attention.o_proj

    def forward(self, hidden_states, position_embeddings, **others):
        shape, layers = (*hidden_states.shape[:-1], -1, 16), (self.q_proj, self.k_proj, self.v_proj)
        q, k, v = (layer(hidden_states).view(shape).transpose(1, 2) for layer in layers)
        cos, sin = (table[:, None] for table in position_embeddings)
        q, k = (x * cos + torch.cat((x[..., 8:], -x[..., :8]), -1) * sin for x in (q, k))
        out = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o_proj(out.transpose(1, 2).flatten(2)), None


def with_own_code():
    model = llama()
    model.model.layers[1].self_attn = OwnCode(model.model.layers[1].self_attn)
    return model


def with_no_rotation():
    sizes = {"n_embd": 16, "n_head": 2, "n_layer": 1, "vocab_size": 100, "n_positions": 128}
    return GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=0, eos_token_id=0))


INV_FREQ, ALL = 5e5 ** -(torch.arange(0, 16, 2) / 16), (0, 1, 2)
FAULTS = {  # a model, the kind of the finding, and its layers
    "inv_freq": (lambda: changed("model.rotary_emb.inv_freq", INV_FREQ), "base", ALL),
    "config": (lambda: changed("config", llama(rope_parameters=YARN).config), "scaling", ALL),
    "yarn": (lambda: changed("model", llama().model, rope_parameters=YARN), "scaling", ALL),
    "factor": (lambda: changed("model.rotary_emb.attention_scaling", 1.3), "factor", ALL),
    "cast": (lambda: llama().bfloat16(), "frequencies", ALL),
    "row": (lambda: with_tables(lambda f, x, p: f(x, p + torch.tensor([[0], [3]]))), "positions", ALL),
    "ignored": (lambda: with_tables(counted), "positions", ALL),
    "clamped": (lambda: with_tables(lambda f, x, p: f(x, p.clamp(max=200))), "table too short", ALL),
    "ends": (
        lambda: with_tables(lambda f, x, p: [t[0][p] for t in f(x, torch.arange(128)[None])]),
        "table too short", ALL,
    ),
    "rounded": (lambda: with_tables(lambda f, *a: [t.half().float() for t in f(*a)]), "16-bit tables", ALL),
    "sine": (lambda: with_layer(lambda q, k, cos, sin: rotate(q, k, cos, -sin)), "direction", (1,)),
    "pairs": (lambda: with_layer(interleaved), "pairing", (1,)),
    "none": (lambda: with_layer(lambda q, k, *t: (q, k)), "not rotated", (1,)),
    "no_factor": (
        lambda: with_layer(
            lambda q, k, *tables: rotate(q, k, *(table / 1.1386294361119891 for table in tables)),
            rope_parameters=YARN,
        ),
        "factor", (1,),
    ),
    "no_keys": (lambda: with_layer(lambda q, k, *t: (rotate(q, k, *t)[0], k)), "not rotated", (1,)),
    "lost": (
        lambda: with_layer(lambda *a: modeling_llama.apply_rotary_pos_emb(*a) and a[:2]), "not rotated", (1,),
    ),
    "again": (
        lambda: with_layer(lambda *a: rotate(*modeling_llama.apply_rotary_pos_emb(*a), *a[2:])),
        "rotated twice", (1,),
    ),
    "own_code": (with_own_code, "direction", (1,)),
    "nan": (lambda: changed("model.rotary_emb.attention_scaling", float("nan")), "unexplained", ALL),
    "nope_ignored": (lambda: smollm3(True), "rotated part", (1,)),
    "rope_ignored": (lambda: smollm3(False), "not rotated", (0,)),
}  # fmt: skip
REPLACED = {  # functions in a file of transformers
    "pairs": (interleaved, llama, "pairing", ALL),
    "other_names": (lambda a, b, c, s, *options: interleaved(a, b, c, s), llama, "pairing", ALL),
    "twice": (lambda q, k, *t: rotate(*rotate(q, k, *t), *t), llama, "rotated twice", ALL),
    "row": (of_row_0, llama, "not rotated", ALL),
    "last_features": (of_last_features, Tiny("glm").make, "rotated part", (0, 1)),
}


def assert_finds(kind, layers, model, **inputs):
    before = state(model)
    examination = hf.examine(model, **inputs)
    assert [(f.kind, f.layers) for f in examination.findings] == [(kind, layers)]
    assert not examination.unseen
    assert is_same(before, state(model))


@pytest.mark.parametrize(("make", "kind", "layers"), FAULTS.values(), ids=FAULTS)
def test_a_fault_is_named_with_its_layers(make, kind, layers):
    assert_finds(kind, layers, make())


@pytest.mark.parametrize(("function", "make", "kind", "layers"), REPLACED.values(), ids=REPLACED)
def test_a_replaced_function_of_the_code_is_named(function, make, kind, layers, monkeypatch):
    module = modeling_llama if make is llama else modeling_glm
    monkeypatch.setattr(module, "apply_rotary_pos_emb", function)
    assert_finds(kind, layers, make())


def test_a_rotation_in_the_attention_function_is_named(monkeypatch):
    model, table = llama(), modeling_llama.ALL_ATTENTION_FUNCTIONS
    own = table["sdpa"]

    def attend(module, q, k, *args, **options):
        tables = model.model.rotary_emb(q, torch.arange(q.shape[2])[None])
        return own(module, *rotate(q, k, *tables), *args, **options)

    monkeypatch.setitem(table, "sdpa", attend)
    assert_finds("rotated twice", ALL, model)


def test_positions_are_given_or_counted_with_or_without_padding():
    mask = torch.ones(2, 16, dtype=torch.int64)
    mask[1, :4] = 0
    text = {"input_ids": torch.arange(32).view(2, 16), "attention_mask": mask}
    pos = (mask.cumsum(-1) - 1).clamp(min=0)
    assert hf.examine(llama(), **text).ok
    assert hf.examine(llama(), **text, position_ids=pos).ok
    assert hf.examine(with_tables(lambda own, x, _: own(x, pos)), **text).ok
    assert_finds("positions", ALL, with_tables(counted), **text, position_ids=pos)


def test_positions_go_on_after_a_cache():
    for model, finds in ((llama(), ()), (with_tables(counted), [("positions", ALL)])):
        cache, ids = DynamicCache(config=model.config), torch.arange(60).view(2, 30)
        with torch.no_grad():
            model(ids[:, :20], cache=cache)
        findings = hf.examine(model, input_ids=ids[:, 20:], cache=cache).findings
        assert [(f.kind, f.layers) for f in findings] == [*finds]


def test_float64_models_have_float32_tables():
    assert hf.examine(llama().double()).ok


def test_an_error_that_is_not_of_a_table_is_no_finding():
    model = llama()

    def fail_far(module, args, options):
        if options["position_ids"].max() > 64:
            raise IndexError("mine")

    model.model.layers[0].register_forward_pre_hook(fail_far, with_kwargs=True)
    examination = hf.examine(model)
    assert not examination.findings
    assert not examination.ok
    assert "mine" in str(examination)


def test_frequencies_that_a_pass_changes_are_restored():
    factors = {"short_factor": [1.0] * 8, "long_factor": [2.0] * 8, "factor": 4.0}
    model = llama(rope_parameters={**YARN, "rope_type": "longrope", **factors})
    before = model.model.rotary_emb.inv_freq.clone()
    assert hf.examine(model).ok
    assert torch.equal(model.model.rotary_emb.inv_freq, before)


def test_a_model_without_a_trace_of_a_rotation_is_not_ok():
    assert not hf.examine(with_no_rotation()).ok


def test_a_draft_without_the_rule_of_its_target_is_named():
    assert_finds("draft", ALL, llama(), target=llama(rope_parameters=YARN))
    assert hf.examine(llama(), target=llama()).ok


def test_a_model_is_as_before_after_an_exception(monkeypatch):
    monkeypatch.setattr(modeling_llama, "apply_rotary_pos_emb", lambda q, k, cos, sin: 1 / 0)
    before = state(model := llama().train())
    with pytest.raises(PatchError, match=r"ZeroDivisionError.* for random tokens; give examine the inputs"):
        hf.examine(model)
    assert is_same(before, state(model))


@pytest.mark.parametrize("dtype", [FLOAT32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize(
    "tiny",
    [pytest.param(t, marks=[] if t.model_type in IN_FULL else pytest.mark.nightly) for t in FAMILIES],
    ids=lambda tiny: tiny.model_type,
)
def test_a_family_has_no_finding(tiny, dtype):
    if dtype is torch.bfloat16 and tiny.model_type in NO_BFLOAT16:
        pytest.skip("its own code fails in bfloat16")
    model = tiny.make(dtype)
    inputs = {n: x.to(dtype) if x.is_floating_point() else x for n, x in tiny.inputs(model).items()}
    inputs |= {"use_cache": False} if tiny.model_type == FAMILY["no_cache"] else {}
    before = state(model)
    for angles in (None,) if tiny.model_type in REFUSED else (None, "exact", "float32"):
        with hf.patched(model, angles=angles) if angles else contextlib.nullcontext():
            examination = hf.examine(model, **inputs)
        assert not examination.findings
        assert examination.layers or examination.unseen
    assert is_same(before, state(model))
