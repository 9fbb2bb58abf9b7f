"""Each remedy that a reading of a config names is followed here."""

import math
import re

import pytest
from config_cases import half, heads, model, refuse, rope

import rope_array as ra
from rope_array.config import read

KEYS = {**heads(1024, 8), "rope_theta": 1e4}
ZORK = model("zork", **KEYS)
LINEAR = {"rope_type": "linear", "factor": 2.0}
DYNAMIC = {"type": "dynamic", "factor": 2.0}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 2048}
MROPE = {"type": "mrope", "mrope_section": [16, 24, 24]}
CHUNKED = half(128, axes=ra.Axes.chunked(16, 24, 24))
V3 = model("deepseek_v3", rope_theta=1e4, max_position_embeddings=8192)


def llama(scaling=None, model_type="llama", **keys):
    config = model(model_type, **{**KEYS, "max_position_embeddings": 8192, **keys})
    return config if scaling is None else {**config, "rope_scaling": scaling}


def sections(**scaling):
    return llama({**MROPE, **scaling}, "qwen2_vl_text")


def hunyuan(**scaling):
    return model("hunyuan_vl_text", head_dim=128, rope_scaling=scaling)


PLAIN, BY_LINEAR = half(128), half(128, scaling=ra.Linear(2.0))
OTHER_BASE, QUARTER = half(128, base=5e5), half(128, rotary_dim=32)
UNSTATED = {"type": "yarn", "original_max_position_embeddings": 2048}
CONTEXT = "max_position_embeddings"


def dynamic(trained):
    return half(128, scaling=ra.DynamicNTK(2.0, trained))


GLM = llama(None, "glm4_moe", partial_rotary_factor=0.5, rope_parameters={"partial_rotary_factor": 0.25})
# A config; the words of the remedy; the keys that follow it (None: left out; a dot: of rope_scaling); the
# rope of the model's code, or the reason of the refusal that remains.
REMEDIES = [
    (llama(rope_thetta=5e5), "is 'rope_theta' meant", {"rope_thetta": None, "rope_theta": 5e5}, OTHER_BASE),
    (llama(rope_ratio=8), "leave it out", {"rope_ratio": None}, PLAIN),
    (heads(1024, 8), "state its model_type", {"model_type": "llama"}, PLAIN),
    (llama({**LINEAR, "rope_theta": 1e4}, rope_theta=1e6), "leave one out", {"rope_theta": None}, BY_LINEAR),
    (llama(YARN, rope_parameters=LINEAR), "leave one out", {"rope_scaling": None}, BY_LINEAR),
    (GLM, "leave one out", {"partial_rotary_factor": None}, QUARTER),
    (llama({**LINEAR, "interleaved": True}), "leave interleaved out", {".interleaved": None}, BY_LINEAR),
    (llama({"rope_dim": 64}), "leave rope_dim out", {".rope_dim": None}, PLAIN),
    ({**V3, "rope_interleave": 2}, "true or false", {"rope_interleave": False}, half(64)),
    (llama(UNSTATED), "null for the ratio", {".factor": None}, half(128, scaling=ra.YaRN(4.0, 2048))),
    (llama({**DYNAMIC, "alpha": 100.0}), "leave it out", {".alpha": None}, dynamic(8192)),
    # The context of the class differs too.
    (llama({**DYNAMIC, CONTEXT: 4096}), "leave one out", {CONTEXT: None}, "max_position_embeddings is 2048"),
    ({**ZORK, "rope_scaling": DYNAMIC}, f"{CONTEXT} is missing", {CONTEXT: 4096}, dynamic(4096)),
    (model("zork", rope_theta=1e4), "width of a head is missing", {"head_dim": 128}, PLAIN),
    ({**ZORK, "num_attention_heads": 7}, "state head_dim", {"head_dim": 128}, PLAIN),
    ({**ZORK, "head_dim": 33}, "give an even width", {"head_dim": 34}, half(34)),
    (sections(mrope_section=[1] * 3), "sum to the 64 pairs", {".mrope_section": [16, 24, 24]}, CHUNKED),
    (sections(mrope_interleaved=True), "leave mrope_interleaved out", {".mrope_interleaved": None}, CHUNKED),
    (hunyuan(xdrope_section=[16] * 4), "leave the sections out", {".xdrope_section": None}, PLAIN),
    (model("zork", rope_theta=5e5, text_config=llama()), "leave one out", {"rope_theta": None}, PLAIN),
    (model("xverse", **heads(1024, 8)), "state the one in the model's own", {"rope_theta": 5e5}, OTHER_BASE),
]


def follow(config, remedy):
    config = {**config, "rope_scaling": config.get("rope_scaling")}
    for key, value in remedy.items():
        if key.startswith("."):
            config["rope_scaling"] = {**config["rope_scaling"], key[1:]: value}
        else:
            config[key] = value
    return config


@pytest.mark.parametrize("row", REMEDIES, ids=lambda row: "-".join(row[2]))
def test_a_remedy_that_is_followed_gives_the_model_s_rope(row):
    config, words, remedy, expected = row
    refuse(re.escape(words), config)
    followed = follow(config, remedy)
    if isinstance(expected, str):
        refuse(expected, followed)
    else:
        assert rope(followed) == expected


def test_a_layer_type_is_chosen():
    gemma = model("gemma3_text", head_dim=128, layer_types=["full_attention", "sliding_attention"])
    refuse("choose with layer_type=", gemma)
    assert rope(gemma, layer_type="full_attention") == half(128, base=1e6)


# Configs whose rotation only the model's code tells: the remedy is to write it.
BY_HAND = {
    "no rotary key": model("zork", **heads(1024, 8)),
    "latent attention": {**ZORK, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128},
    "gpt-oss, original": {"head_dim": 64, "rope_theta": 150000.0, "rope_scaling_factor": 32.0},
    "HunyuanVideo": {"attention_head_dim": 128, "rope_theta": 256.0, "rope_axes_dim": [16, 56, 56]},
    "two bases": {**ZORK, "rotary_base": 5e5},
    "two shares": {**ZORK, "rotary_pct": 0.25, "partial_rotary_factor": 0.5},
    "nested": {**ZORK, "attn_config": {"rope_theta": 5e5}},
}
# Keys of an unknown model type that may change the rotation: one of each form that is recognised.
BY_HAND |= {
    key: {**ZORK, key: value}
    for value, keys in (
        (2.0, "dynamic_ntk_alpha longrope_factor num_swa_attention_heads rope_dim rope_local_base_freq"),
        (2.0, "kv_lora_rank q_lora_rank qk_nope_head_dim local_theta theta n_rot rot_dim mscale beta_fast"),
        (2.0, "position_scale global_base rope_head_dim kv_compress_dim"),
        (True, "use_mla relative_attention use_rel_pos learned_pos_emb use_gptj"),
        (False, "use_position_embedding add_position_embedding"),
        ("alibi", "position_encoding_type pos_emb pe attention_bias_type"),
        ("mla", "attention_type attn_type"),
        ("mrope", "position_embedding_type rope_variant"),
        ({"type": "alibi"}, "position_encoding pos_embedding"),
        (2.0, "global_head_dim rope_scaling_factor seq_len_interpolation_factor swa_head_dim yarn_factor"),
        (True, "no_rope position_encoding_2d rope_reorder use_alibi use_dynamic_ntk use_nope use_xpos"),
        (False, "original_rope rope use_rope use_rotary_embedding use_rotary_pos_emb"),
        ([1, 2], "mrope_section nope_layers partial_rotary_factors rope_scaling_layers"),
        ("yarn", "pos_emb_type position_embedding position_embedding_type rope_type"),
        ({"base": 1e6}, "rope_params rotary rotary_embedding yarn"),
        (5e5, "position_embedding_base freq_base base max_wavelength max_timescale MaxWavelength"),
        (0.25, "freq_scale scaling_factor linear_scaling"),
        (64, "rotate_dim rotated_dim rotaryDim"),
        (True, "ALIBI useAlibi use-alibi no_position use_abs_pos learnable_pos_emb interleaved interleave"),
        ("alibi", "pe_type emb_type embedding_type encoding_type positions_by rotation_style"),
        ([1.0, 0.1], "inv_freq"),
    )
    for key in keys.split()
}


@pytest.mark.parametrize("name", BY_HAND)
def test_what_only_the_code_tells_is_refused(name):
    with pytest.raises(ra.ConfigError) as caught:
        read(BY_HAND[name])
    assert "write RoPE(head_dim, base=..., rotary_dim=..., pairing=...)" in str(caught.value)
    # No key to state, whose value would be followed by a guess.
    assert not re.search(r"or one of|\bleave|is '\w+' meant", str(caught.value))


BY_HAND |= {
    "a child of GPT-J": model("zork", n_embd=1024, n_head=8, rotary_dim=64),
    "a class of GPT-J": {**ZORK, "architectures": ["GPTJForSomething"]},
    "a child of Cohere": model("my_cohere", **KEYS),
    "a child of ChatGLM": {**ZORK, "padded_vocab_size": 65024},
    "a child of Llama": {"dim": 2048, "n_layers": 24, "n_heads": 32, "rotary_dim": 32, "head_dim": 64},
    "a child of Cohere by its keys": model(
        "aya", architectures=["AyaForCausalLM"], use_qk_norm=True, logit_scale=0.06, **KEYS
    ),
    "a child of CodeGen by its module": {**ZORK, "auto_map": {"AutoModel": "a/b--modeling_codegen_x.Zork"}},
    "a child of ChatGLM by its module": {**ZORK, "auto_map": {"AutoModel": ["modeling_chatglm.Zork", None]}},
    "alibi in another object": {**ZORK, "ffn_config": {"alibi": True}},
    "another child of ChatGLM": {**ZORK, "multi_query_attention": True},
    "two widths": {**ZORK, "head_dim": 128, "kv_channels": 64},
    "an embedding in an object": {**ZORK, "attn_config": {"alibi": True}},
    "an embedding in an inner object": {**ZORK, "attention": {"position": {"type": "alibi"}}},
    "rotary keys in an object": {**ZORK, "model": {"rope_scale": 4.0}},
}

# Families whose code pairs neighbours, or has a flag for it: modeling files of transformers 5.24, and of the
# hub (moss, progen, chatglm, neobert).
NEIGHBOURS = """
    axk1 blt chatglm codegen cohere cohere2 command_r deepseek_v2 deepseek_v3 deepseek_v32 ernie4_5
    ernie4_5_moe glm glm4 glm4_moe_lite glm_moe_dsa gptj helium kimi_k25 llama4 longcat_flash mistral4
    moonshine moss neobert progen roformer sarvam_mla youtu
"""
# Of the same makers, with half pairs; and sizes that look like versions.
HALVES = """
    llama mistral qwen2 glm4_moe deepseek minicpm3 phi gpt_neox bailing_moe mistral-4b Llama4bit llama-4-bit
    stablelm gemma2 internlm2
"""


def class_of(name):
    return "".join(word.capitalize() for word in name.replace("-", "_").split("_"))


@pytest.mark.parametrize("family", NEIGHBOURS.split())
def test_the_pairs_of_a_child_of_an_interleaved_family_are_no_guess(family):
    for names in ({"model_type": f"my_{family}"}, {"architectures": [f"My{class_of(family)}ForCausalLM"]}):
        refuse("may be a child of .*, whose code pairs neighbours", {**ZORK, **names})
        assert rope({**ZORK, **names, "rope_interleave": False}) == PLAIN


@pytest.mark.parametrize("family", HALVES.split())
def test_the_pairs_of_a_child_of_another_family_are_halves(family):
    assert rope({**ZORK, "model_type": f"my_{family}"}) == PLAIN
    assert rope({**ZORK, "architectures": [f"My{class_of(family)}ForCausalLM"]}) == PLAIN


def test_phi_1_is_named_where_gpt_j_is_suspected():
    """Phi-1 (modeling_mixformer_sequential.py of the hub) rotates halves of 32 in a head of 64."""
    phi = {"n_embd": 2048, "n_head": 32, "rotary_dim": 32}
    refuse("child of GPT-J .*'phi-msft'", phi)
    assert rope({**phi, "model_type": "phi-msft"}) == half(64, rotary_dim=32)


# Keys of an unknown model that are read, and its rope.
READ = [
    ({"neox_style": False}, ra.RoPE(128)),
    ({"rope_traditional": True, "rotary_interleave": True}, ra.RoPE(128)),
    ({"position_embedding_type": "rope_gptj"}, ra.RoPE(128)),
    ({"position_embedding_type": "rope_gpt_neox", "is_neox": True}, PLAIN),
    ({"rope_scaling": False, "kv_lora_rank": 0, "max_position_embeddings": 8192}, PLAIN),
    ({"architectures": ["GPTJModel"], "rope_interleave": True}, ra.RoPE(128)),
    ({"apply_rope_fusion": True, "use_fused_rope": True, "rope_in_fp32": True}, PLAIN),
    ({"attn_implementation": "flash_mla", "attention_backend": "trtllm_mla"}, PLAIN),
    ({"dim_per_head": 64, "post_norm_type": "rms", "position_ids_dtype": None}, half(64)),
    ({"alibi": False, "use_alibi": None}, PLAIN),
    ({"attention_head_size": 64}, half(64)),
    ({"attention_projection_size": 512}, half(64)),
    ({"rope_interleaved": True}, ra.RoPE(128)),
    ({"is_neox_style": False}, ra.RoPE(128)),
    ({"kv_channels": 64}, half(64)),
    ({"qk_rope_head_dim": 0, "use_mla": False}, PLAIN),
    ({"qk_rope_head_dim": 64, "rope_interleave": False}, half(64)),
    ({"qk_rope_head_dim": 64, "rope_interleave": True}, ra.RoPE(64, out_pairing="half")),
    ({"rotary_scaling_factor": 1.0, "seq_len_interpolation_factor": 1}, PLAIN),
    ({"position_embedding_type": "rope"}, PLAIN),
    ({"rope_is_neox_style": True}, PLAIN),
    *(({key: 0.25}, QUARTER) for key in ("rope_pct", "rope_percent", "rotary_pct")),
    ({"rotary_dim": 32}, QUARTER),
    ({"rotary_emb_fraction": 0.5}, half(128, rotary_dim=64)),
    *(({"rope_theta": None, key: 5e5}, OTHER_BASE) for key in ("rotary_base", "rotary_emb_base")),
    ({"use_scaled_rope": False, "rope_scaling": None}, PLAIN),
    ({"rotary_emb_base": 1e4}, PLAIN),
    ({"base": 1e4, "position_embedding_base": 10000, "max_wavelength": None, "freq_scale": 1.0}, PLAIN),
    ({"rope_theta": None, "rope_parameters": {"rope_theta": 5e5}, "freq_base": 5e5}, OTHER_BASE),
    ({"rotate_half": False}, ra.RoPE(128)),
    ({"pairing": "rotate_half", "interleaved": False, "scaling_factor": 1}, PLAIN),
    ({"vision_config": {"alibi": True}, "embedding_type": "torch", "model_name": "alibi"}, PLAIN),
    ({"use_rope": True, "use_rotary_embedding": True}, PLAIN),
]


@pytest.mark.parametrize(
    ("keys", "expected"), READ, ids=lambda keys: "-".join(keys) if type(keys) is dict else ""
)
def test_keys_of_an_unknown_model_that_are_read(keys, expected):
    reading = read({**ZORK, **keys})
    assert reading.rope == expected
    assert f"with {expected.pairing} pairs" in reading.inferred["convention"]
    (note,) = [note for note in reading.notes if "is a guess" in note]
    assert re.search("rope_array.diagnose .*'half' or 'interleaved'", note)


def test_a_pairing_that_is_no_flag_is_refused():
    for value in ("yes", 1):
        refuse("must be true or false", {**ZORK, "rope_interleaved": value})
    refuse("contradict each other", {**ZORK, "rope_interleaved": True, "is_neox_style": True})


@pytest.mark.parametrize(
    ("scaling", "remedy"),
    [
        ({"rope_type": "spiral"}, "RoPE(head_dim, inv_freq=...)"),
        ({**YARN, "extrapolation_factor": 0.5}, "RoPE(head_dim, inv_freq=...)"),
        ({**MROPE, "type": "openpangu"}, "RoPE(axes="),
        ({**MROPE, "type": "bailing_mrope"}, "RoPE(axes="),
        ({**MROPE, "type": "video_rope"}, "RoPE(axes="),
        ({**MROPE, "type": "ernie_3d"}, "RoPE(axes="),
        ({**MROPE, "type": "time_rope"}, "RoPE(axes="),
    ],
)
def test_a_rule_that_is_not_read_is_written(scaling, remedy):
    refuse(re.escape(remedy), llama(scaling))


def test_the_axes_of_ernie_are_named():
    """ERNIE 4.5 VL's sections are (h, w, t), in interleaved pairs."""
    ernie = model("ernie4_5_moe_vl", text_config={**heads(2560, 20), "rope_theta": 5e5})
    for rule, expected in (("default", ra.Axes.alternating(20, 22, 22)), ("ernie_3d", None)):
        scaling = {"type": rule, "mrope_section": [22, 22, 20]}
        config = {**ernie, "text_config": {**ernie["text_config"], "rope_scaling": scaling}}
        if expected is None:
            axes = "[h, w, t], state RoPE(axes=Axes.alternating(t, h, w), pairing='interleaved')"
            refuse(re.escape(axes), config)
        else:
            assert rope(config) == ra.RoPE(128, base=5e5, axes=expected)


def test_a_factor_of_longrope_below_1_is_noted():
    factors = {
        "short_factor": [1.0] * 64,
        "long_factor": [2.0] * 64,
        "original_max_position_embeddings": 4096,
    }
    for factor, count in ((0.5, 1), (2.0, 0)):
        reading = read(llama({"rope_type": "longrope", "factor": factor, **factors}))
        assert sum("is below 1" in note and "state 2" in note for note in reading.notes) == count
        amplitude = (
            math.sqrt(1 + math.log(factor) / math.log(4096)) if factor > 1 else 1
        )  # transformers' rule
        assert reading.rope.at_length(64).amplitude == pytest.approx(amplitude)
    assert not any("below 1" in note for note in read(llama({"rope_type": "longrope", **factors})).notes)


OBJECTS = "language_model backbone decoder transformer model llm_cfg"


@pytest.mark.parametrize("name", OBJECTS.split())
def test_an_object_that_names_its_model_is_a_part(name):
    config = model("mine", **{name: llama(None, "qwen2", rope_theta=5e5), "vision_tower": model("clip")})
    assert rope(config) == OTHER_BASE
    assert read(config).inferred["part"] == name
    assert rope(config, part=name) == OTHER_BASE
    assert rope(llama(**{name: {"model_type": "qwen2", "bits": 4}})) == PLAIN  # no part of a known class
    assert rope({**ZORK, name: {"model_type": "qwen2"}}, part="text") == PLAIN  # nor of a config with a rope
    assert rope(model("mine", lm_config=config[name], head=model("clip"))) == OTHER_BASE
    unnamed = {key: value for key, value in config[name].items() if key != "model_type"}
    refuse("give that object as the config, with its model_type", model("mine", **{name: unnamed}))
    assert rope({**unnamed, "model_type": "qwen2"}) == OTHER_BASE


@pytest.mark.parametrize("value", [b"1", bytearray(b"1"), 1j, range(3)])
def test_a_value_outside_of_json_is_named(value):
    name = type(value).__name__
    refuse(f"rope_scaling is a {name}; it must be an object", llama(value))
    refuse(f"rope_theta is a {name}; it must be a number", llama(rope_theta=value))
    refuse(f"rotary is a {name}; its type", model("internlm", **KEYS, rotary=value))
    refuse(f"use_mla is a {name}, which may change", {**ZORK, "use_mla": value})


ATTN_FACTOR = 0.8782488562869419


@pytest.mark.parametrize("scales", [{}, {"mscale": 1.0, "mscale_all_dim": 0.5}, {"attention_factor": 2.0}])
def test_the_note_on_attn_factor(scales):
    """transformers does not read it; vLLM multiplies 0.1·log(factor) + 1 by it (DeepSeek-R1-0528-Qwen3)."""
    config = llama({**YARN, **scales, "attn_factor": ATTN_FACTOR})
    reading = read(config)
    assert reading.rope == half(128, scaling=ra.YaRN(4.0, 2048, **scales))
    (note,) = [note for note in reading.notes if "attn_factor is not used" in note]
    assert f"factor on cos and sin is {reading.rope.amplitude:.6g}" in note
    amplitude = float(re.search(r"state attention_factor ([\d.]+)$", note)[1])
    assert amplitude == pytest.approx(ATTN_FACTOR * (0.1 * math.log(4) + 1), rel=1e-15)
    followed = read(follow(config, {".attn_factor": None, ".attention_factor": amplitude}))
    assert followed.rope.amplitude == amplitude
    assert not [note for note in followed.notes if "attn_factor is" in note]


@pytest.mark.parametrize("rule", [LINEAR, {"rope_type": "default"}])
def test_attn_factor_has_no_effect_on_other_rules(rule):
    reading = read(llama({**rule, "attn_factor": 1.25}))
    assert reading.rope.amplitude == 1.0
    assert "attn_factor is not used: transformers does not read it" in reading.notes


def test_attn_factor_in_vllm_s_rule_multiplies():
    rule = {**YARN, "rope_type": "deepseek_yarn", "mscale": 1.0, "mscale_all_dim": 0.5, "attn_factor": 0.5}
    yarn = {**V3, "rope_scaling": {**rule, "rope_type": "yarn", "mscale": 0.5, "mscale_all_dim": 0.0}}
    amplitude = 0.5 * (0.05 * math.log(4) + 1)
    assert any(f"it is {amplitude:.6g}: for that state" in note for note in read(yarn).notes)
    expected = 0.5 * (0.1 * math.log(4) + 1) / (0.05 * math.log(4) + 1)
    assert rope({**V3, "rope_scaling": rule}).amplitude == pytest.approx(expected, rel=1e-15)
