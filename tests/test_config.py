"""Hugging Face configs: the ropes of published configs, the layers, and what readings infer and note."""

import math
import re

import pytest
from config_cases import half, heads, model, refuse, rope

import rope_array as ra
from rope_array import ConfigError
from rope_array._config import _model_defaults as defaults
from rope_array._config._conventions import CONVENTIONS, REMOTE
from rope_array.config import read, read_layers

LINEAR = {"rope_type": "linear", "factor": 2.0}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LLAMA3["original_max_position_embeddings"] = 8192
MROPE = {"type": "mrope", "mrope_section": [16, 24, 24]}
NTK = {"type": "ntk", "factor": 4.0}
ALPHA = {"type": "dynamic", "alpha": 1000.0, "factor": 1.0, "mscale": 1.0}


def llama(scaling=None, **keys):
    config = model("llama", head_dim=128, rope_theta=5e5, max_position_embeddings=131072, **keys)
    return config if scaling is None else {**config, "rope_scaling": scaling}


def llama_rope(**fields):
    return half(128, base=5e5, **fields)


def qwen2_vl(**scaling):
    keys = {"rope_theta": 1e6, "vision_config": {"depth": 32, "embed_dim": 1280, "num_heads": 16}}
    return model("qwen2_vl", **heads(1536, 12), **keys, rope_scaling={**MROPE, **scaling})


def small(model_type, **keys):
    """Return a config with heads of 64 features."""
    return model(model_type, head_dim=64, **keys)


GEMMA3 = {"text_config": model("gemma3_text", hidden_size=2560, num_hidden_layers=34)}
GEMMA3["text_config"]["rope_scaling"] = {"factor": 8.0, "rope_type": "linear"}
GEMMA3["vision_config"] = model("siglip_vision_model", **heads(1152, 16))
GEMMA3["model_type"] = "gemma3"
GEMMA3_FULL = half(256, base=1e6, scaling=ra.Linear(8.0))
DEEPSEEK_V3 = model("deepseek_v3", qk_rope_head_dim=64, max_position_embeddings=163840, rope_theta=10000)
DEEPSEEK_V3["rope_scaling"] = {"type": "yarn", "factor": 40, "beta_fast": 32, "beta_slow": 1}
DEEPSEEK_V3["rope_scaling"] |= {"mscale": 1.0, "mscale_all_dim": 1.0}
DEEPSEEK_V3["rope_scaling"]["original_max_position_embeddings"] = 4096
V3_YARN = ra.YaRN(40.0, 4096, mscale=1.0, mscale_all_dim=1.0)
V4_YARN = {"type": "yarn", "factor": 16, "original_max_position_embeddings": 65536}
DEEPSEEK_V4 = model("deepseek_v4", head_dim=512, qk_rope_head_dim=64, rope_scaling=V4_YARN)
OLD_V4 = {**DEEPSEEK_V4, "num_hidden_layers": 4, "compress_ratios": [0, 4, 128, 0]}
V4_MAIN = ra.RoPE(512, rotary_dim=64, rotary_start=448)
V4_COMPRESSED = ra.YaRN(16.0, 65536, attention_factor=1.0)
V4_COMPRESSED = ra.RoPE(512, base=160000.0, rotary_dim=64, rotary_start=448, scaling=V4_COMPRESSED)
QWEN_COHERE = model("qwen2_vl", text_config={"model_type": "cohere", "rope_theta": 1e6})
LLAMA4 = model("llama4", text_config={"model_type": "llama4_text"})
EXAONE = model("exaone4_5_text", head_dim=128, num_hidden_layers=8, rope_theta=1e6)
EXAONE = model("exaone4_5", text_config=EXAONE)
ULTRABERT = small("ultrabert", num_hidden_layers=2, attention_windows=[0, 64])
MUSE = model("muse_glimmer_text", num_hidden_layers=4, layer_types=["full_attention"] * 4)
ERNIE_VL = model("ernie4_5_moe_vl", **heads(2560, 20), rope_3d=True, rope_theta=5e5, vision_config={})
HUNYUAN = model("hunyuan_v1_dense", head_dim=128, rope_scaling=ALPHA)
MODERNBERT = model("modernbert", local_rope_theta=None)
NEOMME = small("neomme", num_hidden_layers=8, rope_theta=None)
LAST_OF_NEOMME = half(64, base=1e6, rotary_dim=16, axes=ra.Axes((0, 1) * 4, count=2))
OTHER_TOWER = model("hyperclovax_vision_v2", vision_config={"model_type": "qwen2_5_vl"})
OLDER_TYPES = ["attention", "mamba", "deepseek_sparse_attention", "sliding_attention"]
PHI3 = model("phi3", **heads(3072, 32), max_position_embeddings=131072, original_max_position_embeddings=4096)
PHI3["rope_scaling"] = {"type": "su", "short_factor": [1.0] * 48, "long_factor": [2.0] * 48}
PHI3_RULE = ra.LongRoPE((1.0,) * 48, (2.0,) * 48, 4096, factor=32.0)
DEEPSEEK_OCR = model("deepseek_v2", **heads(1280, 10))
OLMO3 = {"full_attention": {**YARN, "truncate": False}, "sliding_attention": {"rope_type": "default"}}
OLMO3 = small("olmo3", rope_parameters=OLMO3)
BASE_OF_NULL = {"rope_parameters": {**YARN, "rope_theta": None}}
OLMO_HYBRID = small("olmo_hybrid", **BASE_OF_NULL)
DBRX = model("dbrx", d_model=6144, n_heads=48, max_seq_len=32768)
ERNIE = model("ernie4_5", **heads(1024, 16))
QWEN3_VL = {"rope_type": "default", "mrope_interleaved": True, "mrope_section": [22, 21, 21]}
QWEN3_VL = {"head_dim": 128, "rope_theta": 5e6, "rope_scaling": QWEN3_VL}
QWEN3_AXES = ra.Axes.interleaved(22, 21, 21)
GLM4V = {**heads(4096, 32), "partial_rotary_factor": 0.5}
GLM4V["rope_scaling"] = {"type": "default", "mrope_section": [8, 10, 14]}
GLM4V_AXES = ra.Axes.chunked(8, 10, 14)
BY_2, SHARE = ra.Linear(2.0), {"partial_rotary_factor": 0.25}
HALF_BY_2 = {**LINEAR, "partial_rotary_factor": 0.5}
QUARTER = {"base": 1e6, "scaling": ra.Proportional(0.25)}
GEMMA4 = model("gemma4_text", head_dim=32, layer_types=["sliding_attention", "full_attention"])
NANOCHAT = model("nanochat", head_dim=8, max_position_embeddings=64)
NANOCHAT["rope_scaling"] = {"type": "dynamic", "factor": 2.0}
KIMI = model("kimi_k25", text_config={"model_type": "kimi_k2", "rope_theta": 5e4})
LATENT = small("kimi_k9", rope_theta=1e4, rope_interleave=True, mla_use_nope=True, qk_rope_head_dim=64)

BAMBA = model("bamba", num_hidden_layers=4, attn_layer_indices=[1])
MOE = model("cohere2_moe", rope_scaling={"rope_type": "linear", "factor": 4.0})
BOTH_DICTS = llama({"type": "linear", "factor": 2.0}, rope_parameters={**LINEAR, "rope_theta": 5e5})
DEFAULT_RULE = llama({**LINEAR, "rope_type": "default", "type": "linear"})


def layer(model_type):
    return {"layer_type": model_type}


def indexed(model_type, **keys):
    return model(model_type, index_head_dim=128, qk_rope_head_dim=64, rope_theta=1e4, **keys)


FULL, SLIDING = layer("full_attention"), layer("sliding_attention")
VISION, INDEXER = {"part": "vision"}, {"part": "indexer"}
GLM5_INDEXER = ra.RoPE(128, rotary_dim=64, out_pairing="half")
# A config, the rope by the model's code, and the layer or part.
PUBLISHED = {
    # Published configs, with the keys of their config.json.
    "Llama 3.1": (llama(LLAMA3), llama_rope(scaling=ra.Llama3())),
    "GPT-NeoX": (model("gpt_neox", **heads(6144, 64), rotary_emb_base=10000), half(96, rotary_dim=24)),
    "GPT-J": (model("gptj", n_embd=4096, n_head=16, rotary_dim=64), ra.RoPE(256, rotary_dim=64)),
    "Phi-2": (model("phi", **heads(2560, 32), partial_rotary_factor=0.4), half(80, rotary_dim=32)),
    "Qwen2-VL": (qwen2_vl(), half(128, base=1e6, axes=ra.Axes.chunked(16, 24, 24))),
    "Qwen2-VL, vision": (qwen2_vl(), half(80, axes=ra.Axes.axial(40, 40)), VISION),
    "Qwen3-VL": (model("qwen3_vl", text_config=QWEN3_VL), half(128, base=5e6, axes=QWEN3_AXES)),
    "GLM-4V": (model("glm4v", text_config=GLM4V), ra.RoPE(128, rotary_dim=64, axes=GLM4V_AXES)),
    "Gemma 3, layer 5": (GEMMA3, GEMMA3_FULL, {"part": "text_config", "layer_type": 5}),
    "DeepSeek V3": (DEEPSEEK_V3, ra.RoPE(64, out_pairing="half", scaling=V3_YARN)),
    "DeepSeek V4, main": (DEEPSEEK_V4, V4_MAIN, layer("main")),
    "DeepSeek V4, compressed": (DEEPSEEK_V4, V4_COMPRESSED, layer("compressed_sparse_attention")),
    "DeepSeek OCR": (model("deepseek_vl_v2", language_config={**DEEPSEEK_OCR, "use_mla": False}), half(128)),
    "DeepSeek without latents": ({**DEEPSEEK_OCR, "qk_rope_head_dim": 0}, half(128)),
    "DeepSeek with latents": (DEEPSEEK_OCR, ra.RoPE(64)),
    "Llama 4": (LLAMA4, ra.RoPE(128, base=5e5), layer("chunked_attention")),
    "Llava": (model("llava", text_config=model("llama"), vision_config=model("clip")), half(128)),
    "HunYuan": (HUNYUAN, half(128, scaling=ra.NTKAware(1000.0))),
    "DBRX": ({**DBRX, "attn_config": {"clip_qkv": 8, "rope_theta": 500000}}, llama_rope()),
    "DBRX, by its class": (DBRX, half(128)),
    "DBRX, a null base": ({**DBRX, "attn_config": {"rope_theta": None}}, half(128)),
    "ERNIE 4.5 VL": (ERNIE_VL, ra.RoPE(128, base=5e5, axes=ra.Axes.alternating(20, 22, 22))),
    "Phi-3": (PHI3, half(96, scaling=PHI3_RULE)),
    "DeepSeek V3.2, indexer": (indexed("deepseek_v32"), half(128, rotary_dim=64), INDEXER),
    "DeepSeek V3.2, attention": (indexed("deepseek_v32"), ra.RoPE(64, out_pairing="half")),
    "A.X K2, indexer": (indexed("axk2"), half(128, rotary_dim=64), INDEXER),
    "HY V4, indexer": (indexed("hy_v4"), half(128, rotary_dim=64, rotary_start=64), INDEXER),
    "GLM-5, indexer": (indexed("glm_moe_dsa", indexer_rope_interleave=True), GLM5_INDEXER, INDEXER),
    "vLLM's ntk": (llama(NTK), llama_rope(scaling=ra.NTKAware(4.0, "fixed"))),
    "vLLM's mixed": (llama({**NTK, "mixed_b": 0.75}), llama_rope(scaling=ra.NTKAware(4.0, "mixed", 0.75))),
    "nanochat, dynamic": (NANOCHAT, half(8, scaling=ra.Reversed(ra.DynamicNTK(2.0, 64)))),
    # A rule scales the frequencies of the part that rotates, and the layers that the model scales.
    "GPT-NeoX, a rule": (small("gpt_neox", rope_parameters=HALF_BY_2), half(64, rotary_dim=32, scaling=BY_2)),
    "StableLM": (model("stablelm", **heads(2560, 32), rope_parameters=SHARE), half(80, rotary_dim=20)),
    "Phi-4": (model("phi3", head_dim=128, partial_rotary_factor=0.75), half(128, rotary_dim=96)),
    "Qwen3-Next": (model("qwen3_next", partial_rotary_factor=0.125), half(256, rotary_dim=32)),
    "MiniMax-M2": (small("minimax_m2", rotary_dim=32, rope_theta=2e4), half(64, base=2e4, rotary_dim=32)),
    "Gemma 3, a window": (small("gemma3_text", rope_scaling=LINEAR), half(64), SLIDING),
    "Gemma 3n, a window": (small("gemma3n_text", rope_scaling=LINEAR), half(64), SLIDING),
    "Gemma 3n, full": (small("gemma3n_text", rope_scaling=LINEAR), half(64, base=1e6, scaling=BY_2), FULL),
    "ModernBERT, a window": (small("modernbert", rope_scaling=LINEAR), half(64, scaling=BY_2), SLIDING),
    "OLMo 3, a window": (OLMO3, half(64, base=5e5), SLIDING),
    # Keys of older configs, which transformers' classes convert.
    "EXAONE 4.5, full": (EXAONE, half(128, rotary_dim=0), layer(3)),
    "DeepSeek V4, ratio 0": (OLD_V4, V4_MAIN, layer(3)),
    "attention": (small("exaone4", layer_types=OLDER_TYPES), half(64, rotary_dim=0), layer(0)),
    "a part of another model type": (QWEN_COHERE, half(128, base=1e6, axes=ra.Axes.chunked(16, 24, 24))),
    "Kimi K2 in Kimi K2.5": (KIMI, ra.RoPE(64, base=5e4, out_pairing="half")),
    "the vision tower of another model": (OTHER_TOWER, half(224, axes=ra.Axes.axial(112, 112)), VISION),
    "language_config": (model("unlimited_ocr", language_config=heads(512, 16)), half(32)),
    "text on the top level": (model("fuyu", rope_theta=5e3), half(64, base=5e3, rotary_dim=32)),
    "values of the whole": (model("voxtral", text_config=model("llama")), half(128, base=1e8)),
    "the last layer of NeoMME": (small("neomme", num_hidden_layers=2), LAST_OF_NEOMME, layer(1)),
    "Muse, by index": (MUSE, half(128), layer(0)),
    "a width of null": ({**ERNIE, "head_dim": None}, ra.RoPE(64, base=5e5)),
    "a width by the class": (ERNIE, ra.RoPE(128, base=5e5)),
    # transformers saves an empty per_layer_config if all layers have one width.
    "no width of a layer": ({**GEMMA4, "per_layer_config": {}}, half(32, **QUARTER), FULL),
    "a layer's width": ({**GEMMA4, "per_layer_config": {"1": {"head_dim": 64}}}, half(64, **QUARTER), FULL),
    # Null bases that the models' code replaces, or takes for no rotation.
    "OLMo-Hybrid's null": (OLMO_HYBRID, half(64, rotary_dim=0), layer(3)),
    "ModernBERT's local null": ({**MODERNBERT, "global_rope_theta": 5e5}, half(64, base=5e5), FULL),
    "Ultrabert's null": ({**ULTRABERT, "rope_theta": None}, half(64), SLIDING),
    "NeoMME's null": (NEOMME, half(64, axes=ra.Axes.interleaved(16, 16)), SLIDING),
    "OLMo 3's truncate": (OLMO3, half(64, base=5e5, scaling=ra.YaRN(4.0, 4096, truncate=False)), FULL),
    # Rules that the models' code does not read.
    "Cohere 2 MoE": (MOE, ra.RoPE(128), layer(0)),
    "a rule of the type default": (DEFAULT_RULE, llama_rope()),
    "Bamba": ({**BAMBA, "attn_rotary_emb": 32}, half(128, rotary_dim=64)),
    # Contradictions that are none.
    "a flag as a number": ({**DEEPSEEK_V3, "rope_interleave": 0}, half(64, scaling=V3_YARN)),
    "mrope_interleaved of False": (qwen2_vl(mrope_interleaved=False), rope(qwen2_vl())),
    "interleaved of False": (llama(rope_parameters={"interleaved": False}), llama_rope()),
    "both dicts of parameters": (BOTH_DICTS, llama_rope(scaling=ra.Linear(2.0))),
    "34.6 features": (model("gpt_neox", **heads(1024, 8), rotary_pct=0.2703), half(128, rotary_dim=34)),
    "latents without the flag": ({**LATENT, "mla_use_nope": False}, ra.RoPE(64, out_pairing="half")),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published(name):
    config, expected, *which = PUBLISHED[name]
    assert rope(config, **dict(*which)) == expected


@pytest.mark.parametrize("name", ["deepseek_yarn", "deepseek_llama_scaling", "telechat3-yarn"])
def test_other_names_of_yarn(name):
    scaling = {**YARN, "rope_type": name, "mscale": 0.707}
    assert rope(llama(scaling)).amplitude == pytest.approx(0.1 * 0.707 * math.log(4) + 1)
    both_scales = rope(llama({**scaling, "mscale": 1.0, "mscale_all_dim": 0.707}))
    assert both_scales.amplitude == pytest.approx((0.1 * math.log(4) + 1) / (0.0707 * math.log(4) + 1))


@pytest.mark.parametrize(
    ("scales", "amplitude", "in_vllm"),
    [
        ({"mscale": 0.707}, 1.3688879, 1.2608038),
        ({"mscale_all_dim": 0.707}, 1.3688879, 1.0857264),
        ({"mscale": 0, "mscale_all_dim": 0.707}, 1.3688879, 0.7931448),
        ({}, 1.3688879, None),
        ({"mscale": 1.0, "mscale_all_dim": 0}, 1.3688879, None),
        ({"mscale": 0.707, "mscale_all_dim": 0.707}, 1.0, None),
        ({"mscale": 0.707, "attention_factor": 1.5}, 1.5, None),
    ],
    ids=str,
)
def test_yarn_names_the_other_amplitude_of_vllm(scales, amplitude, in_vllm):
    """vLLM reads a missing mscale as 1 and a missing mscale_all_dim as 0; transformers needs both above 0."""
    scaling = {**YARN, "factor": 40.0, **scales}
    reading = read(llama(scaling))
    assert reading.rope.amplitude == pytest.approx(amplitude, rel=1e-7)
    assert len(reading.notes) == (in_vllm is not None)
    if in_vllm is not None:
        assert f"{amplitude:.6g}" in reading.notes[0]
        assert f"{in_vllm:.6g}" in reading.notes[0]
        theirs = read(llama({**scaling, "rope_type": "deepseek_yarn"}))
        assert theirs.rope.amplitude == pytest.approx(in_vllm, rel=1e-7)
        assert theirs.notes == ()
        assert "state rope_type 'deepseek_yarn', or attention_factor" in reading.notes[0]


@pytest.mark.parametrize("scaling", [YARN, LLAMA3], ids=["yarn", "llama3"])
def test_a_trained_context_that_is_missing_or_stated_twice_has_a_note(scaling):
    """transformers takes max_position_embeddings (RotaryEmbeddingConfigMixin.standardize_rope_params)."""
    config = small("llama", max_position_embeddings=6000)
    reading = read({**config, "rope_scaling": {**scaling, "original_max_position_embeddings": None}})
    assert reading.rope.scaling.original_max_position_embeddings == 6000
    assert reading.inferred["original_max_position_embeddings"] == "max_position_embeddings"
    (note,) = reading.notes
    assert re.match("original_max_position_embeddings is missing: .*6000", note)
    outside = {**config, "rope_scaling": scaling}
    assert read(outside).notes == ()
    reading = read({**outside, "original_max_position_embeddings": 2048})
    assert reading.rope.scaling.original_max_position_embeddings == 2048
    assert "2048 outside of the rotary parameters" in reading.notes[0]


# ---- layers ----


def layers_of(config):
    """Return the rope of each layer by its index."""
    return {i: reading.rope for indices, reading in read_layers(config) for i in indices}


@pytest.mark.parametrize("model_type", ["jamba", "kimi_linear"])
def test_models_that_rotate_nothing(model_type):
    """A left-over base or rule has no effect: the models' code does not read it."""
    linear = {"full_attn_layers": [4, 8], "kda_layers": [1, 2, 3, 5, 6, 7]}
    config = model(
        model_type, rope_theta=1e4, rope_scaling=YARN, num_hidden_layers=8, linear_attn_config=linear
    )
    reading = read({**config, "mla_use_nope": True})
    assert reading.rope.rotary_dim == 0
    assert any("rotates nothing: no rotation" in note for note in reading.notes)


MLLAMA = {"num_hidden_layers": 6, "cross_attention_layers": [3, 4]}
GRIFFIN = model("recurrent_gemma", num_hidden_layers=5)
DENSE_FIRST = {"sliding_window_pattern": 3, "first_k_dense_replace": 1}
WINDOWS = {"layer_types": ["sliding_attention"] * 3}
BAILING = ra.RoPE(64, base=6e6, out_pairing="half")
# A config of 12 layers or as it states; the rope of some, by the code of transformers 5.24; their indices.
SOME_LAYERS = {
    "Bamba": ({**BAMBA, "attn_layer_indices": [0, 2]}, half(128, rotary_dim=64), {0, 2}),
    "RecurrentGemma": ({**GRIFFIN, "num_hidden_layers": 7}, half(256, rotary_dim=128), {2, 5}),
    "Mllama": (model("mllama", text_config=MLLAMA), half(128, base=5e5), {0, 1, 2, 5}),
    "Mllama by default": (model("mllama_text_model", num_hidden_layers=5), half(128, base=5e5), {0, 1, 2, 4}),
    "ModernBERT": (model("modernbert"), half(64, base=160_000.0), {0, 3, 6, 9}),
    "Gemma 3": (model("gemma3_text", sliding_window_pattern=3), half(256, base=1e6), {2, 5, 8, 11}),
    # Layer 0 is dense: it rotates though it has full attention.
    "Cohere 2 MoE": (model("cohere2_moe", **DENSE_FIRST), ra.RoPE(128, rotary_dim=0), {3, 6, 9}),
    "Gemma 4": (model("gemma4_text", num_hidden_layers=3, **WINDOWS), half(512, **QUARTER), {2}),
    "Muse": (model("muse_glimmer_text", num_hidden_layers=6), half(128, rotary_dim=0), {1, 5}),
    "Bailing": (model("bailing_hybrid", layer_group_size=4), BAILING, {3, 7, 11}),
}


@pytest.mark.parametrize("name", SOME_LAYERS)
def test_some_layers_have_the_rope_and_all_others_another(name):
    config, expected, indices = SOME_LAYERS[name]
    ropes = layers_of({"num_hidden_layers": 12, **config})
    assert {i for i, layer_rope in ropes.items() if layer_rope == expected} == indices
    assert len(set(ropes.values())) == 2


@pytest.mark.parametrize("model_type", ["llama4_text", "smollm3", "mistral_large4_text"])
def test_layers_that_do_not_rotate_are_noted(model_type):
    reading = read(model(model_type, num_hidden_layers=8))
    assert reading.rope.rotary_dim
    assert any(re.match(r"layers 3, 7 \(2 of 8\).*layer_type=", note) for note in reading.notes)
    assert not any("choose with" in note for note in read(model(model_type), layer_type=0).notes)
    assert rope(model(model_type), layer_type=3).rotary_dim == 0


def test_layers_with_one_rope_are_read_together():
    """Gemma 3: five layers with a sliding window, then one with the full context."""
    gemma = model("gemma3_text", num_hidden_layers=12, rope_theta=2e6)
    (sliding, near), (full, far) = read_layers(gemma)
    assert (sliding, full) == ((0, 1, 2, 3, 4, 6, 7, 8, 9, 10), (5, 11))
    assert near.rope == rope(gemma, layer_type="sliding_attention") == half(256)
    assert far.rope == rope(gemma, layer_type=11) == half(256, base=2e6)
    gemma = model("gemma3", text_config={"num_hidden_layers": 6})
    assert [indices for indices, _ in read_layers(gemma, part="text")] == [(0, 1, 2, 3, 4), (5,)]
    unknown = model("mine", head_dim=8, rope_theta=100.0)
    assert read_layers(unknown) == (((), read(unknown)),)


# A model type, the key of a base, the layer with this base, and further keys; more in tests/edge.
NULL_BASES = {
    "Gemma 3, global": ("gemma3_text", "rope_theta", 5, {}),
    "DeepSeek-V4, compressed": ("deepseek_v4", "compress_rope_theta", 0, {}),
    "DeepSeek-V4": ("deepseek_v4", "rope_theta", 0, {"layer_types": ["sliding_attention"] * 8}),
    "Baichuan-M1": ("baichuan_m1", "rope_theta", 0, heads(1024, 8)),
}


@pytest.mark.parametrize("name", NULL_BASES)
def test_a_null_base_of_a_layer_type_is_no_default(name):
    """transformers 5.24 keeps the null, and cannot make the model."""
    model_type, key, index, keys = NULL_BASES[name]
    config = model(model_type, num_hidden_layers=8, **keys)
    refuse(f"{key} is null, which is no base; state the base", {**config, key: None}, layer_type=index)
    assert rope({**config, key: 777.5}, layer_type=index).base == 777.5


def test_layers_of_one_type_do_not_differ():
    """A model whose layers are all of one type has one rope, even if its class has bases for more."""
    for label, base in (("sliding_attention", 1e4), ("full_attention", 1e6)):
        config = model("gemma3_text", head_dim=64, num_hidden_layers=4, layer_types=[label] * 4)
        assert rope(config) == half(64, base=base)
    v4 = {**DEEPSEEK_V4, "num_hidden_layers": 2, "layer_types": ["sliding_attention"] * 2}
    assert rope(v4) == V4_MAIN


# DeepSeek-V4 uses it for layers without a compressor, and Ultrabert refuses one base.
BY_TYPE = sorted(
    key
    for key, entry in defaults.MODELS.items()
    if key not in ("deepseek_v4", "ultrabert")
    and any(isinstance(rule, dict) for rule in entry.get("rope_parameters", {}).values())
)


@pytest.mark.parametrize("model_type", [*BY_TYPE, "modernbert"])
def test_a_flat_base_is_used_or_noted(model_type):
    """Classes with parameters by layer type drop a rope_theta outside of them, or use it for one type."""
    groups = read_layers(model(model_type, num_hidden_layers=6, rope_theta=777.5))
    is_used = any(reading.rope.base == 777.5 for _, reading in groups)
    assert is_used or any("rope_theta is not used" in note for _, reading in groups for note in reading.notes)


@pytest.mark.parametrize("model_type", ["laguna", "lfm3", "mimo_v2_flash", "neomme", "zaya"])
def test_a_flat_share_is_noted(model_type):
    groups = read_layers(model(model_type, num_hidden_layers=6, partial_rotary_factor=0.75))
    notes = [note for _, reading in groups for note in reading.notes]
    assert any(note.startswith("partial_rotary_factor") and "is not used" in note for note in notes)


@pytest.mark.parametrize(
    "scaling", [{**LINEAR, "factor": 0.25}, {**YARN, "factor": 0.25}, {**LLAMA3, "factor": 0.25}]
)
def test_a_factor_below_1_is_noted(scaling):
    """The rule is followed: an inverted factor is the usual cause."""
    (note,) = read(llama(scaling)).notes
    assert "the factor 0.25 is below 1: the rule raises frequencies" in note
    assert "state 4" in note
    assert read(llama({**scaling, "factor": 4.0})).notes == ()


@pytest.mark.parametrize("key", ["rope_scaling", "rope_parameters"])
def test_false_parameters_are_none(key):
    assert read(llama(**{key: False})).rope == llama_rope()


def test_the_mode_of_minimax_m3_vision():
    vision = model("minimax_m3_vl_vision", **heads(1280, 16), rope_mode="3d")
    config = model("minimax_m3_vl", vision_config=vision)
    assert rope(config, part="vision") == half(80, rotary_dim=78, axes=ra.Axes.axial(26, 26, 26))
    refuse("only '3d' is known", {**config, "vision_config": {**vision, "rope_mode": "2d"}}, part="vision")


def test_an_unknown_indexer_names_the_known_ones():
    refuse("no part 'indexer': the indexers of 'axk2', .*write RoPE", DEEPSEEK_V3, part="indexer")


# ---- parts ----


@pytest.mark.parametrize(("model_type", "main"), [("qwen2_5_omni", "thinker"), ("colqwen2", "vlm")])
def test_parts_within_the_main_part_are_found(model_type, main):
    config = model(model_type)
    assert read(config, part="text").part == f"{main}.text"
    assert read(config, part="vision").part == f"{main}.vision"
    assert read(config, part=main).rope == read(config, part=f"{main}.text").rope
    assert read(indexed("axk2"), part="indexer").part == "indexer"


# ---- stated and inferred values ----


def test_stated_and_inferred():
    reading = read(model("llama", **heads(256, 4)))
    assert reading.stated == heads(256, 4)
    assert reading.inferred == {"rope_type": "default", "rope_theta": 10000.0, "pairing": "half"}
    assert (reading.model_type, reading.part, reading.layer_type) == ("llama", None, None)
    assert read({**DBRX, "attn_config": {"rope_theta": 5e5}}).stated["attn_config.rope_theta"] == 5e5


def test_the_part_that_is_chosen_is_inferred():
    reading = read(GEMMA3, layer_type="sliding_attention")
    assert reading.part == reading.inferred["part"] == "text"
    assert "rope_parameters.sliding_attention.rope_theta" in reading.inferred
    assert "part" not in read(GEMMA3, part="text", layer_type=0).inferred


@pytest.mark.parametrize(("model_type", "text"), [({}, "is missing"), ({"model_type": "zork"}, "is unknown")])
def test_an_unknown_model_is_read_like_most_models(model_type, text):
    config = {**model_type, "head_dim": 64, "rope_theta": 2e4, "partial_rotary_factor": 0.5}
    reading = read(config)
    assert reading.rope == half(64, base=2e4, rotary_dim=32)
    assert text in reading.inferred["convention"]
    assert any("is a guess: compare pairing" in note for note in reading.notes)
    with pytest.warns(UserWarning, match=f"model_type .*{text}.*check the pairing"):
        ra.RoPE.from_config(config)


def test_the_context_is_stated_or_the_default_of_the_class():
    assert read(model("llama", max_position_embeddings=8192)).context == 8192
    assert read(model("llama")).context == 2048
    assert "max_position_embeddings" not in read(model("llama")).inferred
    mine = model("mine", head_dim=8, rope_theta=100.0)
    for value in (None, 0, "long", [4096], 2.5, True):  # no number of positions
        assert read({**mine, "max_position_embeddings": value}).context is None


# ---- notes ----

PLAIN_RULE = {"rope_type": "default", "rope_theta": 1e4}


def written_by(version, **changes):
    """Return a config with a YaRN of other numbers in some versions of transformers."""
    yarn = {**YARN, "mscale": 0.7, "mscale_all_dim": 1.0, "truncate": False, **changes}
    return small("llama", max_position_embeddings=8192, transformers_version=version, rope_scaling=yarn)


# A config; the beginning or a word of one of its notes.
NOTES = [
    (llama(rope_parameters={**LINEAR, "beta_fast": 3}), "does not use 'beta_"),
    (small("openelm", rope_scaling=LINEAR), "rope_scaling is not used: the model's code does not read it$"),
    ({**BAMBA, "attn_rotary_emb": 32}, "attn_rotary_emb is not used"),
    (DEFAULT_RULE, "type 'linear' is not used: rope_type is 'default'"),
    (OLMO3, "truncate", FULL),
    ({**DBRX, "attn_config": {"rope_theta": 5e5}}, "transformers 5.24 does not read it"),
    ({**GEMMA3, "rope_local_base_freq": 5.0}, "rope_local_base_freq outside", layer(0)),
    (written_by("4.45.2"), "in 4.45, .* is max_position_embeddings and mscale .* and truncate is not read$"),
    (written_by("4.51.3"), "in 4.51, .* the factor is 2, the ratio .* and truncate is not read$"),
    (written_by("4.55.0"), "in 4.55, .* the ratio of the contexts$"),
    (MOE, "rope_scaling is not used", layer(0)),
    ({**MOE, "rope_parameters": PLAIN_RULE}, "rope_scaling is not used", layer(0)),
    (model("deepseek_v4", rope_theta=5e5), "rope_theta is not used: no layer is of the type 'main'"),
    (llama(position_embedding_base=1e6), "position_embedding_base is not used"),
    (llama(alibi=True), "alibi is not used"),
    (llama(use_ALiBi=True), "use_ALiBi is not used"),
]
# Around the part of a known class: rotary keys, sizes and other embeddings that transformers drops.
DROPPED = [
    *(
        (model_type, {key: value})
        for key, value in (
            ("rope_theta", 777.0),
            ("rope_scaling", {"type": "linear", "factor": 4.0}),
            ("partial_rotary_factor", 0.5),
        )
        for model_type in (
            "llava",
            "aria",
            "mistral3",
            "mllama",
            "internvl",
            "qwen3_vl",
            "llama4",
            "paligemma",
            "dia",
        )
    ),
    ("t5gemma", {"hidden_size": 2048, "num_attention_heads": 16, "head_dim": 128}),
    ("llava", {"theta": 777.0}),
    ("qwen2_5_omni", {"rope_theta": 777.0}),
    ("colqwen2", {"rope_theta": 777.0}),
    ("mine", {"position_encoding_type": "alibi", "text_config": model("llama", rope_theta=777.0)}),
    ("mine", {"alibi": True, "text_config": model("llama")}),
]


@pytest.mark.parametrize(("model_type", "keys"), DROPPED)
def test_keys_around_a_part_are_noted(model_type, keys):
    bare = read(model(model_type, **{key: value for key, value in keys.items() if key == "text_config"}))
    for vision in ({}, {"vision_config": {"hidden_size": 1024, "num_attention_heads": 16}}):
        reading = read(model(model_type, **keys, **vision))
        assert reading.rope == bare.rope
        for key in keys.keys() - {"text_config"}:
            assert any(note.startswith(f"{key} outside of the part") for note in reading.notes)


def test_a_guess_is_refused_by_keys_around_the_part():
    text = {"hidden_size": 1024, "num_attention_heads": 8, "rope_theta": 777.0}
    for key, value in (("alibi", True), ("kv_lora_rank", 512), ("position_encoding_type", "alibi")):
        for name in ("text_config", "llm_config"):
            refuse(f"is unknown, and {key} is", {key: value, name: text})


@pytest.mark.parametrize("model_type", ["llava", "aria", "idefics3", "mistral3", "emu3"])
def test_keys_of_a_text_on_the_top_level_are_read_with_a_note(model_type):
    reading = read(model(model_type, hidden_size=1024, num_attention_heads=8, rope_theta=777.0, head_dim=128))
    assert reading.rope == half(128, base=777.0)
    assert any("transformers 5.24 does not read them there" in note for note in reading.notes)


@pytest.mark.parametrize("row", NOTES, ids=lambda row: row[1])
def test_noted(row):
    config, text, *which = row
    assert any(re.search(text, note) for note in read(config, **dict(*which)).notes)


def test_not_noted():
    for config, text, *which in (
        ({**BAMBA, "attn_rotary_emb": 64}, "attn_rotary_emb is", layer(1)),
        (model("deepseek_v4", rope_theta=1e4), "no layer is"),
        (model("qwen2_vl", hidden_size=1024, num_attention_heads=8), "top level"),
        (model("paligemma", hidden_size=64, text_config=model("gemma", hidden_size=64)), "outside"),
        (DBRX, ""),
        *((written_by(version), "this is YaRN") for version in ("4.44.2", "4.56.0", "5.24.0", None)),
        (written_by("4.55.4", factor=2.0), "this is YaRN"),
        (llama(properties=1, europe=2), ""),
        (model("llama4", text_config=model("llama4_text", rope_theta=5e5), rope_theta=5e5), "outside"),
    ):
        assert not any(text in note for note in read(config, **dict(*which)).notes)


@pytest.mark.parametrize(
    ("key", "value", "agreeing"),
    [
        ("partial_rotary_factor", 0.5, 1.0),
        ("rotary_dim", 64, 128),
        ("rotary_emb_base", 1e6, 5e5),
        ("rope_interleaved", True, False),
        ("qk_rope_head_dim", 32, 128),
        ("rope_type", "yarn", "default"),
        ("rotary_scaling_factor", 2.0, 1.0),
        ("use_rotary_pos_emb", "yes", True),
        ("rope_is_neox_style", False, True),
        ("neox_style", False, True),
        ("position_embedding_type", "alibi", "absolute"),
        ("position_embedding_type", "rope_gptj", "rope_gpt_neox"),
        ("rope_traditional", True, False),
    ],
)
def test_rotary_keys_of_other_models_are_noted(key, value, agreeing):
    reading = read(llama(**{key: value}))
    assert reading.rope == llama_rope()
    assert reading.notes == (f"{key} is not used: the model's code in transformers does not read it",)
    for neutral in (agreeing, None):
        assert read(llama(**{key: neutral})).notes == ()


@pytest.mark.parametrize("model_type", ["modernbert", "olmo3", "gemma3_text"])
def test_keys_that_a_layer_type_drops_are_noted(model_type):
    config, linear = small(model_type, **heads(768, 12)), {"rope_type": "linear", "factor": 8.0}
    for keys, text in (
        ({"rope_scaling": {"type": "linear", "factor": 8.0}}, "^type is used here"),
        ({"rope_parameters": linear}, "without layer types are used"),
        ({"rope_scaling": linear}, "^$"),
    ):
        reading = read({**config, **keys}, **FULL)
        assert reading.rope.scaling == ra.Linear(8.0)
        assert re.search(text, "\n".join(reading.notes), re.MULTILINE)


GPTJ = model("gptj", n_embd=64, n_head=4, rotary_dim=8)
CONSTANT = [GPTJ, {**GPTJ, "model_type": "codegen"}, model("roformer", **heads(64, 4)), model("clvp_encoder")]


@pytest.mark.parametrize("config", CONSTANT, ids=lambda config: config["model_type"])
def test_a_constant_of_the_code_is_followed(config):
    for key, value in (("rope_theta", 5e5), ("rope_scaling", LINEAR), ("rope_parameters", LINEAR)):
        reading = read({**config, key: value})
        assert reading.rope == rope(config)
        assert any(f"{key} is not used" in note for note in reading.notes)
    assert read({**config, "rope_theta": 1e4, "rope_parameters": PLAIN_RULE}).notes == read(config).notes


def test_two_bases_of_dbrx():
    """A config object of transformers has the class's 10000 beside the published base."""
    config = {**DBRX, "attn_config": {"rope_theta": 5e5}}
    for base in (1e4, 5e5):
        assert rope({**config, "rope_theta": base}) == llama_rope()
        assert rope({**config, "rope_parameters": {**PLAIN_RULE, "rope_theta": base}}) == llama_rope()
    refuse("attn_config.rope_theta is 500000.0, and rope_theta 1000000.0", {**config, "rope_theta": 1e6})


# ---- refusals ----

LISTS = {"rope_type": "longrope", "short_factor": [1.0] * 64, "long_factor": [1.0] * 64}
SMOLLM = model("smollm3", num_hidden_layers=8)
MPT = model("mpt", d_model=1024, n_heads=8, attn_config={"rope": True, "rope_theta": None})
HUNYUAN_VL = {"head_dim": 128, "rope_scaling": {"mrope_section": [16] * 4}}
WRONG_FULL = {"full_attention": {"xx": 1}, "sliding_attention": {}}
REFUSED = [
    (llama({"type": 3}), "type is 3; it must be a name"),
    (llama(rope_parameters={"zork": 1}), "'zork'; the known ones are alpha"),
    (llama({**YARN, "type": "linear"}), "differ"),
    (llama({**LINEAR, "rope_theta": 5e5}, rope_parameters=LINEAR), "both stated, and differ in 'rope_theta'"),
    (small("zork", partial_rotary_factor=0.5, rotary_dim=16), "of 64 is 32, and .* stated as 16"),
    (llama({**YARN, "partial_rotary_factor": 1.5}), "from 0 to 1"),
    (qwen2_vl(mrope_section=[32, 32]), "three"),
    (model("qwen3_vl_text", rope_scaling={**MROPE, "mrope_interleaved": False}), "interleaved is False"),
    (llama({**LISTS, "long_factor": [1.0] * 63}), "long_factor has 63 numbers.*64 pairs"),
    (llama({**LISTS, "short_factor": [1.0] * 65}), "short_factor has 65 numbers.*64 pairs"),
    (llama({**LISTS, "long_factor": None}), "long_factor is a NoneType|None"),
    (llama({"type": "linear"}), "factor is missing"),
    (llama({"type": "linear", "factor": "8"}), "factor is '8'"),
    (model("zork", n_heads=4, attn_config={"rope_theta": 1e4}), "zork, part 'attn': the width of a head is"),
    ({**llama(), "head_dim": 10**9}, "head_dim is 1000000000"),
    (GEMMA3, "layer_type is 'zork'", layer("zork")),
    (GEMMA3, "from 0 to 33", layer(34)),
    (GEMMA3, "layer_type is 1.5", layer(1.5)),
    (llama(), "layers of one type", FULL),
    (GEMMA3, "no part 'audio'; give one of: 'text', 'vision'", {"part": "audio"}),
    (GEMMA3, "part is ''", {"part": ""}),
    (GEMMA3, "no known model", VISION),
    (model("gemma3", text_config=3), "text_config is .*; it must be an object"),
    (model("bert", **heads(768, 12)), "bert is of no known model"),
    (model("gpt2", rope_theta=1e4), "gpt2 has no rotary embedding in transformers"),
    (llama({"type": "xdrope", "xdrope_section": [1]}), "no rotation"),
    (model("hunyuan_vl_text", **HUNYUAN_VL), "no rotation"),
    (model("hunyuan_vl", text_config=HUNYUAN_VL), "no rotation", {"part": "text"}),
    (model("vjepa2"), "V-JEPA2.*no rotation"),
    (model("pixtral", rope_parameters=YARN), "takes 'axial'"),
    (model("qwen2_5_vl_vision", hidden_size=1120, num_heads=16), "multiple of 4"),
    ({**OLD_V4, "compress_ratios": [0, 5, 0, 0]}, "compress_ratios.1. is 5", layer(0)),
    ({**OLD_V4, "compress_ratios": [0]}, "compress_ratios is ", layer(3)),
    ({**ULTRABERT, "rope_theta": 5e3}, "is 5000.0; give a base for each layer", layer(0)),
    ({**BAMBA, "attn_layer_indices": 9}, "bamba: attn_layer_indices", layer(0)),
    ({**GRIFFIN, "block_types": []}, "recurrent_gemma: block_types", layer(0)),
    ({**GRIFFIN, "block_types": ["mamba"]}, "recurrent_gemma: block_types", layer(0)),
    (model("mllama_text_model", cross_attention_layers=True), "cross_attention_layers is", layer(0)),
    ({**SMOLLM, "no_rope_layers": [1, 0]}, "has 2 values, none for layer 5", layer(5)),
    ({**SMOLLM, "no_rope_layers": [1, 2]}, r"no_rope_layers\[1\] is", layer(1)),
    (SMOLLM, "some have no rotation; give the layer.s index", FULL),
    (LATENT, "mla_use_nope is True"),
    ({**llama(), "rope_theta": None, **BASE_OF_NULL}, "rope_theta is null, which"),
    (model("internlm", **heads(1024, 8), rotary={"type": "origin", "base": None}), "rotary.base is null"),
    (MPT, "attn_config.rope_theta is null, which is no base"),
    (MODERNBERT, "transformers 4 took global_rope_theta for it"),
    # The parameters of a layer type that is not read
    (small("gemma3_text", rope_parameters=WRONG_FULL), "unknown rotary parameters: 'xx'", SLIDING),
]
REFUSED += [
    (model("esmfold2", atom_encoder={key: None}), f"{key} is null", {"part": "atom_encoder"})
    for key in ("spatial_rope_base_frequency", "uid_rope_base_frequency")
]


@pytest.mark.parametrize("row", REFUSED, ids=lambda row: row[1])
def test_refused(row):
    config, text, *which = row
    refuse(text, config, **dict(*which))
    assert issubclass(ConfigError, ra.SpecError)


@pytest.mark.parametrize("model_type", ["llama", "gpt_neox", "stablelm_epoch", None])
@pytest.mark.parametrize("key", ["rope_thetta", "rope_params", "rope_ratio", "rope_3d", "use_dynamic_ntk"])
def test_rotary_keys_of_no_model_are_refused(key, model_type):
    config = small(model_type, **heads(64, 1), rope_theta=1e4)
    remedy = "leave it out" if model_type else "read the model's code, and"
    refuse(f"the key '{key}' is unknown: .*{remedy}", {**config, key: True})
    assert rope({**config, key: None}).head_dim == 64


# ---- the tables of defaults ----


def test_every_convention_is_of_a_model():
    names = {key for key in CONVENTIONS if ":" not in key} - set(REMOTE)
    assert names - set(defaults.MODELS) <= {"roformer"}  # no class with rope_parameters in transformers
    assert not set(REMOTE) & set(defaults.ROTARY)  # transformers has classes of its own for them


# The defaults of some classes cannot rotate: sections do not fit, a width is odd or missing.
UNFIT = {"glm4v_moe_text", "glm4v_text", "glm_image_text", "qwen3_omni_moe_text", "blt"}


@pytest.mark.parametrize("model_type", sorted(defaults.ROTARY))
def test_every_default_is_read(model_type):
    which = {"layer_type": 0} if ":" not in model_type else {}
    if model_type in UNFIT:
        refuse("width|sums", model(model_type), **which)
    else:
        assert rope(model(model_type), **which).head_dim > 0
