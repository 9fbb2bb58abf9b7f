"""Configs of models whose code is on the hub, against ropes and formulas written here from that code."""

import dataclasses
import math
import re

import docs_blocks
import numpy as np
import pytest
from config_cases import half, heads, model, refuse, rope

import rope_array as ra
from rope_array._config._conventions import REMOTE, convention_of
from rope_array.config import read, read_layers

HEADS = heads(4096, 32)  # of 128 features
GPT = {"n_embd": 2048, "n_head": 32}  # of 64 features
GLM = model(
    "chatglm", kv_channels=128, multi_query_attention=True, num_layers=40, original_rope=True, **HEADS
)
GLM |= {"padded_vocab_size": 151552, "seq_length": 131072}
GLM_32K = {**GLM, "num_layers": 28, "_name_or_path": "THUDM/chatglm2-6b-32k"}
QWEN = model("qwen", kv_channels=128, max_position_embeddings=32768, rotary_emb_base=10000, **HEADS)
QWEN |= {"rotary_pct": 1.0, "seq_length": 8192, "use_dynamic_ntk": True, "use_logn_attn": True}
TELECHAT = model("telechat", hidden_size=4096, n_head=32, n_layer=30, training_seqlen=8192)
STABLE_CODE = model("stablelm_epoch", **heads(2560, 32), num_heads=32, max_position_embeddings=16384)
STABLE_CODE |= {"rope_pct": 0.25, "rope_theta": 1000000, "rotary_scaling_factor": 1.0}
OPENELM = model("openelm", head_dim=64, model_dim=1280, max_context_length=2048, rope_max_length=4096)
CODESHELL = model("codeshell", n_embd=4096, n_head=32, n_positions=8192, position_embedding_type="rope")
# nomic-embed-text-v1.5: its modeling_hf_nomic_bert.py is in nomic-ai/contrastors too.
NOMIC = model("nomic_bert", n_embd=768, n_head=12, n_layer=12, n_positions=8192, max_trained_positions=2048)
NOMIC |= {"architectures": ["NomicBertModel"], "rotary_emb_base": 1000, "rotary_emb_fraction": 1.0}
NOMIC |= {"rotary_emb_interleaved": False, "rotary_emb_scale_base": None, "rotary_scaling_factor": None}
HUNYUAN = model("hunyuan", **heads(6400, 80), attention_head_dim=128, rope_theta=1e4)
LLADA = model("llada", d_model=4096, n_heads=32, rope=True, alibi=False, rope_theta=5e5)
GTE = model("new", **heads(768, 12), position_embedding_type="rope", rope_theta=20000)
MINIMAX = model("minimax_text_01", head_dim=128, rotary_dim=64, rope_theta=1e7, num_hidden_layers=8)
PHI3 = model("phi3small", max_position_embeddings=131072, rope_position_scale=1.0, **HEADS)
SU = {
    "type": "su",
    "short_factor": [1.0 + i / 64 for i in range(64)],
    "long_factor": [1.0 + i for i in range(64)],
    "short_mscale": 1.0,
    "long_mscale": 1.1902380714238083,
    "original_max_position_embeddings": 8192,
}


def hub(model_type, **keys):
    return model(model_type, **HEADS, **keys)


def mpt(**attention):
    keys = {"attn_config": attention} if attention else {}
    return model("mpt", d_model=4096, n_heads=32, max_seq_len=2048, n_layers=32, **keys)


def mpt_by_rule(**rule):
    return mpt(rope=True, rope_impl="hf", rope_hf_config=rule)


def dynamic(factor, trained):
    return {"scaling": ra.DynamicNTK(factor, trained)}


CHATGLM_1 = hub("chatglm", position_encoding_2d=True, max_sequence_length=2048)
TWICE = {"type": "dynamic", "factor": 2.0}
SU_LISTS = ra.LongRoPE(SU["short_factor"], SU["long_factor"], 8192, 16.0, None, 1.0, SU["long_mscale"])
# The config as published, and the rope of the model's code.
ROWS = {
    "ChatGLM2-6B": ({**GLM, "num_layers": 28}, ra.RoPE(128, rotary_dim=64)),
    "ChatGLM2-6B-32K": ({**GLM_32K, "rope_ratio": 16}, ra.RoPE(128, rotary_dim=64, scaling=ra.Linear(16.0))),
    "ChatGLM3-6B-32K": (
        {**GLM_32K, "rope_ratio": 50, "_name_or_path": "THUDM/chatglm3-6b-32k"},
        ra.RoPE(128, rotary_dim=64, base=5e5),
    ),
    "GLM-4-9B-Chat": ({**GLM, "rope_ratio": 500}, ra.RoPE(128, rotary_dim=64, base=5e6)),
    "GLM-4V-9B": ({**GLM, "rope_ratio": 1, "vision_config": {"hidden_size": 9}}, ra.RoPE(128, rotary_dim=64)),
    "CogAgent-9B": ({**GLM, "original_rope": False}, half(128, rotary_dim=64)),
    "ChatGLM-6B": (CHATGLM_1, half(128, axes=ra.Axes.axial(64, 64, blocks=True))),
    "ChatGLM-6B, one coordinate": (hub("chatglm", position_encoding_2d=False), half(128)),
    "InternLM-7B, older": (hub("internlm", bias=True, max_position_embeddings=2048), half(128)),
    "InternLM-7B": (
        hub("internlm", max_position_embeddings=2048, rotary={"base": 10000, "type": "dynamic"}),
        half(128, **dynamic(1.0, 2048)),
    ),
    "InternLM2-7B": (
        hub("internlm2", max_position_embeddings=32768, rope_theta=1000000, rope_scaling=TWICE),
        half(128, base=1e6, **dynamic(2.0, 32768)),
    ),
    "Baichuan2-7B": (hub("baichuan", max_position_embeddings=4096, model_max_length=4096), half(128)),
    "Qwen-7B": (QWEN, half(128)),
    "Qwen, a quarter": ({**QWEN, "rotary_pct": 0.25}, half(128, rotary_dim=32)),
    "Stable-Code-3B": (STABLE_CODE, half(80, rotary_dim=20, base=1e6)),
    "StableLM-epoch": (hub("stablelm_epoch"), half(128, rotary_dim=32)),
    "OpenELM, another base": (model("openelm", head_dim=64, rope_freq_constant=5e5), half(64, base=5e5)),
    "Phi-3-small-8k": ({**PHI3, "rope_embedding_base": 1000000}, half(128, base=1e6)),
    "Phi-3-small-128k": ({**PHI3, "rope_scaling": SU}, half(128, base=1e6, scaling=SU_LISTS)),
    "Grok-1": (model("grok-1", **heads(6144, 48)), half(128)),
    "MPT with rope": (mpt(rope=True, rope_theta=500000, alibi=False), half(128, base=5e5)),
    "MPT, linear": (mpt_by_rule(type="linear", factor=4.0), half(128, scaling=ra.Linear(4.0))),
    "MPT, dynamic": (mpt_by_rule(**TWICE), half(128, **dynamic(2.0, 2048))),
    "XVERSE-13B-256K": (hub("xverse", rope_theta=500000), half(128, base=5e5)),
    "CodeShell-7B": ({**CODESHELL, "rope_scaling": TWICE}, half(128, **dynamic(2.0, 8192))),
    "Falcon-7B, older": (model("RefinedWebModel", hidden_size=4544, n_head=71, alibi=False), half(64)),
    "Falcon with ALiBi": (hub("RefinedWebModel", alibi=True), half(128, rotary_dim=0)),
    "Phi-1.5, older": (model("mixformer-sequential", **GPT, rotary_dim=32), half(64, rotary_dim=32)),
    "MOSS": (model("moss", **GPT, rotary_dim=64), ra.RoPE(64)),
    "ProGen2": (model("progen", n_embd=1024, n_head=16, rotary_dim=32), ra.RoPE(64, rotary_dim=32)),
    "NeoBERT": (model("neobert", **heads(768, 12), rope=True), ra.RoPE(64)),
    "CodeT5+, decoder": (model("codet5p_module", **GPT, rotary_dim=32), ra.RoPE(64, rotary_dim=32)),
    "Ling 3": (model("bailing_moe_v3", num_hidden_layers=5), ra.RoPE(64, base=6e5, out_pairing="half")),
    "TeleChat-7B": (TELECHAT, half(128)),
    "Llama-Nemotron-51B": (model("nemotron-nas", **heads(8192, 64), rope_theta=5e5), half(128, base=5e5)),
    "Ling-lite": (model("bailing_moe", **heads(2048, 16), head_dim=128, rope_theta=6e5), half(128, base=6e5)),
    "Ling-2": (
        model("bailing_moe_v2", head_dim=128, partial_rotary_factor=0.5, rotary_dim=64, rope_theta=600000),
        half(128, rotary_dim=64, base=6e5),
    ),
    "PLaMo 2": (model("plamo2", **HEADS, hidden_size_per_head=128), half(128)),
    "Hunyuan-Large": (
        {**HUNYUAN, "rope_scaling": {"alpha": 1000.0, "factor": 1.0, "type": "dynamic"}},
        half(128, scaling=ra.NTKAware(1000.0)),
    ),
    "LLaDA-8B": (LLADA, half(128, base=5e5)),
    "GTE-multilingual": (
        {**GTE, "rope_scaling": {"factor": 8.0, "type": "ntk"}},
        half(64, base=2e4, scaling=ra.NTKAware(8.0, "fixed")),
    ),
}


@pytest.mark.parametrize("name", ROWS)
def test_the_rope_is_of_the_model_s_code(name):
    config, expected = ROWS[name]
    reading = read({**config, "auto_map": {"AutoConfig": "configuration.Config"}})
    assert reading.rope == expected
    assert "convention" not in reading.inferred
    assert not [note for note in reading.notes if "is not used" in note]


def test_rope_ratio_is_noted_where_two_models_differ():
    unnamed = {**GLM, "num_layers": 28, "rope_ratio": 50}
    (note,) = read(unnamed).notes
    assert re.search("divides the positions.*_name_or_path", note)
    assert rope({**GLM_32K, "rope_ratio": 50}).scaling == ra.Linear(50.0)
    assert read({**GLM, "rope_ratio": 50}).notes == ()  # GLM-4 has 40 layers
    assert any("position in the answer" in note for note in read(CHATGLM_1).notes)


@pytest.mark.parametrize("config", [QWEN, TELECHAT], ids=["Qwen", "TeleChat"])
def test_the_rule_beyond_the_trained_context_is_noted(config):
    (note,) = read(config).notes
    assert re.search(r"beyond 8192 positions.*NTKAware\((.*)\)", note)
    for n in (16384, 30000):  # get_ntk_alpha of the models' code
        namespace = {"NTKAware": ra.NTKAware, "ceil": math.ceil, "log2": math.log2, "n": n}
        scaling = eval(re.search(r"NTKAware\(.*1\)", note)[0], namespace)
        alpha = max(2 ** math.ceil(math.log2(n / 8192) + 1) - 1, 1)
        base = 1e4 * alpha ** (128 / 126)
        np.testing.assert_allclose(half(128, scaling=scaling).frequencies, half(128, base=base).frequencies)
    assert read({**QWEN, "use_dynamic_ntk": False}).notes == ()


M1 = model("baichuan_m1", **heads(5120, 40), num_swa_attention_heads=20, num_hidden_layers=4, rope_theta=1e6)
PLAMO = model("plamo3", head_dim=128, rope_theta=1e6, rope_local_theta=1e4, num_hidden_layers=3)
YARN_OF_PLAMO = {"rope_scaling_factor": 16, "initial_context_length": 4096, "sliding_window_pattern": 3}
LONG_PLAMO = ra.YaRN(16.0, 4096, truncate=False)
SLIDING_TWICE = ["sliding_attention", "sliding_attention", "full_attention"]
# A config, and the ropes of groups of layers.
LAYERS = {
    "MiniMax": (
        {**MINIMAX, "attn_type_list": [0, 0, 0, 1] * 2},
        {(0, 1, 2, 4, 5, 6): half(128, rotary_dim=0), (3, 7): half(128, rotary_dim=64, base=1e7)},
    ),
    "PLaMo 3": ({**PLAMO, "layer_types": SLIDING_TWICE}, {(0, 1): half(128), (2,): half(128, base=1e6)}),
    "PLaMo 3, YaRN": (
        {**PLAMO, **YARN_OF_PLAMO},
        {(0, 1): half(128), (2,): half(128, base=1e6, scaling=LONG_PLAMO)},
    ),
    "PLaMo 3, eight layers": (
        {"model_type": "plamo3", "head_dim": 128, "rope_global_theta": 5e5, "num_hidden_layers": 9},
        {(0, 1, 2, 3, 4, 5, 6, 8): half(128), (7,): half(128, base=5e5)},
    ),
    "Baichuan-M1": (
        {**M1, "sliding_window_layers": [1, 3]},
        {(0, 2): half(128, base=1e6), (1, 3): half(256, base=1e6)},
    ),
    "GLM-4": (GLM, {tuple(range(40)): ra.RoPE(128, rotary_dim=64)}),
}


@pytest.mark.parametrize("name", LAYERS)
def test_the_ropes_of_layers(name):
    config, expected = LAYERS[name]
    assert {layers: reading.rope for layers, reading in read_layers(config)} == expected


TEXT = model("bailing_hybrid", qk_rope_head_dim=64, rope_theta=6e6, num_hidden_layers=6, layer_group_size=3)
LING_VL = model("bailing_moe_v3_vl", text_config=TEXT, vision_config={"hidden_size": 1152, "num_heads": 16})


def test_the_sections_of_ling_3_vl_are_beside_its_text():
    """vLLM, bailing_moe_v3_vl.py: MRotaryEmbedding over the rotated features of the latent head."""
    for sections in (None, [16, 8, 8]):
        reading = read({**LING_VL, "mrope_section": sections})
        axes = ra.Axes.chunked(*(sections or (12, 10, 10)))
        assert reading.rope == ra.RoPE(64, base=6e6, out_pairing="half", axes=axes)
        assert reading.part == "text"
    inner = {**TEXT, "rope_scaling": {"type": "default", "mrope_section": [16, 8, 8]}}
    refuse(
        "mrope_section is .* in the part", {**LING_VL, "text_config": inner, "mrope_section": [12, 10, 10]}
    )
    beside = model("zork_vl", text_config=model("llama"), mrope_section=[16, 24, 24])
    assert any("mrope_section outside of the part" in note for note in read(beside).notes)


ZAYA = model(
    "zaya", cca=True, apply_rope_fusion=True, num_hidden_layers=4, rope_scaling=False, rope_theta=1e6
)
ZAYA |= {"partial_rotary_factor": 0.5, "swa_layers": [4096, 0, 0, 0], "swa_rotary_base": 2e4}


def test_zaya_before_transformers_had_it():
    """vLLM's plugin of Zyphra, zaya.py; transformers' conversion of the weights makes the same bases."""
    expected = {(0,): half(128, rotary_dim=64, base=2e4), (1, 2, 3): half(128, rotary_dim=64, base=1e6)}
    assert {layers: reading.rope for layers, reading in read_layers(ZAYA)} == expected
    assert rope({**ZAYA, "swa_layers": None}) == half(128, rotary_dim=64, base=1e6)
    # In transformers the class drops a base outside of the parameters.
    reading = read(model("zaya", rope_theta=1e6))
    assert (reading.rope.base, len(reading.notes)) == (5e6, 1)


REFUSED = {
    "Baichuan2-13B": (model("baichuan", **heads(5120, 40), model_max_length=4096), "of 13B.*ALiBi"),
    "Baichuan of neither key": (hub("baichuan"), "7B rotates and of 13B does not"),
    "Jais": (model("jais", **GPT, position_embedding_type="alibi"), "ALiBi"),
    "Phi-4-mini-flash": (hub("phi4flash", rope_theta=1e4), "rotates nothing"),
    "MPT-7B": (mpt(alibi=True), "without attn_config.rope"),
    "MPT without attn_config": (mpt(), "without attn_config.rope"),
    "MPT, xPos": (mpt(rope=True, rope_dail_config={"type": "xpos"}), "'xpos'.*rotation_xpos"),
    "MPT, another code": (mpt(rope=True, rope_impl="own"), "must be 'dail' or 'hf'"),
    "MPT, blocks that differ": ({**mpt(rope=True), "block_overrides": {"order": []}}, "block_overrides"),
    "Phi-3-small, stretched": ({**PHI3, "rope_position_scale": 2.0}, "vLLM divides positions by it"),
    "XVERSE without a base": (hub("xverse"), "10000 or 500000"),
    "InternLM, another rule": (hub("internlm", rotary={"base": 1e4, "type": "spiral"}), "'dynamic' or"),
    "CogVLM": ({**HEADS, "vision_config": {"hidden_size": 1792}}, "of no known model"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_with_a_reason(name):
    config, reason = REFUSED[name]
    refuse(reason, config)


def test_the_text_part_of_other_models():
    intern = hub("internlm2", rope_theta=1000000)
    chat = read(model("internvl_chat", llm_config=intern, vision_config={"hidden_size": 3200}))
    assert (chat.part, chat.rope) == ("llm", half(128, base=1e6))
    moonlight = model("deepseek_v3", qk_rope_head_dim=64, rope_theta=50000.0)
    kimi = model("kimi_vl", text_config=moonlight, vision_config={"num_heads": 16})
    assert rope(kimi) == ra.RoPE(64, base=5e4, out_pairing="half")


def test_other_names_of_the_context():
    assert read(GLM).context == 131072
    assert read(OPENELM).context == 2048


def test_the_page_lists_every_family():
    page = (docs_blocks.DOCS / "configs.md").read_text("utf-8")
    section = page.partition("## Models whose code is on the hub")[2].partition("```")[0]
    assert {*re.findall(r"`([\w-]+)`", section)} >= {*REMOTE} - {"RefinedWebModel", "bailing_moe_v3_vl:text"}


# Families with the convention of another family, which is tested, but for the types of layers.
ALIKE = {
    "bailing_moe": "bailing_moe_linear minimax_m1 minimax_text_01",
    "internlm2": "aquila arctic deepseek minicpm orion ouro plamo telechat3 Yi",
    "jais": "btlm gpt_refact step1",
    "llada": "hf_olmo",
    "mixformer-sequential": "phi-msft",
    "RefinedWebModel": "RefinedWeb",
}


def test_every_family_is_tested_or_alike():
    alike = {name: tested for tested, names in ALIKE.items() for name in names.split()}
    cases = (*ROWS.values(), *REFUSED.values(), *LAYERS.values())
    tested = {config.get("model_type") for config, _ in cases}
    assert {*REMOTE} - tested - {"bailing_moe_v3_vl:text"} == alike.keys() - tested
    for names in alike.items():
        assert names[1] in tested
        conventions = [dataclasses.replace(convention_of(name), layer_types=None) for name in names]
        assert repr(conventions[0]) == repr(conventions[1])  # functions with options are never equal


def test_nomic_bert_before_transformers_had_it():
    reading = read(NOMIC)
    assert (reading.rope, reading.notes) == (half(64, base=1000), ())
    assert rope({**NOMIC, "rotary_emb_interleaved": True}) == ra.RoPE(64, base=1000)
    assert rope({**NOMIC, "n_embd": 1536, "rotary_emb_fraction": 0.5}) == half(128, base=1000, rotary_dim=64)
    assert rope({**NOMIC, "rotary_scaling_factor": 2.0}) == half(64, base=1000, **dynamic(2.0, 2048))
    refuse("rotary_head_dim", {**NOMIC, "rotary_head_dim": True})
    # The same model, as transformers states it.
    assert rope(model("nomic_bert", **heads(768, 12), rope_theta=1000)) == half(64, base=1000)
