"""Configs of models whose code is on the hub, each against formulas written here from that code."""

import math
import re
from typing import Any

import docs_blocks
import numpy as np
import pytest

import rope_array as ra
from rope_array._config._conventions_remote import REMOTE
from rope_array.config import ConfigError, read, read_layers

HEADS = {"hidden_size": 4096, "num_attention_heads": 32}  # of 128 features
GPT = {"n_embd": 2048, "n_head": 32}  # of 64 features
GLM = {
    **HEADS,
    "model_type": "chatglm",
    "kv_channels": 128,
    "multi_query_attention": True,
    "num_layers": 40,
    "original_rope": True,
    "padded_vocab_size": 151552,
    "seq_length": 131072,
}
QWEN = {
    **HEADS,
    "model_type": "qwen",
    "kv_channels": 128,
    "max_position_embeddings": 32768,
    "rotary_emb_base": 10000,
    "rotary_pct": 1.0,
    "seq_length": 8192,
    "use_dynamic_ntk": True,
    "use_logn_attn": True,
}
MPT = {"model_type": "mpt", "d_model": 4096, "n_heads": 32, "max_seq_len": 2048, "n_layers": 32}
PHI3 = {**HEADS, "model_type": "phi3small", "max_position_embeddings": 131072, "rope_position_scale": 1.0}
SU = {
    "type": "su",
    "short_factor": [1.0 + i / 64 for i in range(64)],
    "long_factor": [1.0 + i for i in range(64)],
    "short_mscale": 1.0,
    "long_mscale": 1.1902380714238083,
    "original_max_position_embeddings": 8192,
}
LLADA = {"d_model": 4096, "n_heads": 32, "rope": True, "alibi": False, "rope_full_precision": True}
MINIMAX = {"head_dim": 128, "rotary_dim": 64, "rope_theta": 1e7, "num_hidden_layers": 8}


def series(base: float, width: int) -> list[float]:
    return [base ** (-2 * i / width) for i in range(width // 2)]


def dynamic(base: float, width: int, factor: float, length: int, trained: int) -> list[float]:
    """LlamaDynamicNTKScalingRotaryEmbedding, which the hub's models copy."""
    grown = base * (factor * length / trained - (factor - 1)) ** (width / (width - 2))
    return series(grown, width)


# The config as published; head_dim, rotary_dim, pairing; the frequencies; the length that they are for.
ROWS: dict[str, tuple[dict[str, Any], tuple[int, int, str], list[float], int | None]] = {
    "ChatGLM2-6B": ({**GLM, "num_layers": 28}, (128, 64, "interleaved"), series(1e4, 64), None),
    "ChatGLM3-6B-32K": (
        {**GLM, "num_layers": 28, "rope_ratio": 50, "_name_or_path": "THUDM/chatglm3-6b-32k"},
        (128, 64, "interleaved"),
        series(5e5, 64),
        None,
    ),
    "ChatGLM2-6B-32K": (
        {**GLM, "num_layers": 28, "rope_ratio": 16, "_name_or_path": "THUDM/chatglm2-6b-32k"},
        (128, 64, "interleaved"),
        [omega / 16 for omega in series(1e4, 64)],
        None,
    ),
    "GLM-4-9B-Chat": ({**GLM, "rope_ratio": 500}, (128, 64, "interleaved"), series(5e6, 64), None),
    "GLM-4V-9B": (
        {**GLM, "rope_ratio": 1, "vision_config": {"hidden_size": 1792, "num_heads": 16}},
        (128, 64, "interleaved"),
        series(1e4, 64),
        None,
    ),
    "CogAgent-9B": ({**GLM, "original_rope": False}, (128, 64, "half"), series(1e4, 64), None),
    "ChatGLM-6B, one coordinate": (
        {**HEADS, "model_type": "chatglm", "position_encoding_2d": False, "max_sequence_length": 2048},
        (128, 128, "half"),
        series(1e4, 128),
        None,
    ),
    "InternLM-7B, older": (
        {**HEADS, "model_type": "internlm", "bias": True, "max_position_embeddings": 2048},
        (128, 128, "half"),
        series(1e4, 128),
        None,
    ),
    "InternLM-7B": (
        {
            **HEADS,
            "model_type": "internlm",
            "max_position_embeddings": 2048,
            "rotary": {"base": 10000, "type": "dynamic"},
        },
        (128, 128, "half"),
        dynamic(1e4, 128, 1.0, 8192, 2048),
        8192,
    ),
    "InternLM2-7B": (
        {
            **HEADS,
            "model_type": "internlm2",
            "max_position_embeddings": 32768,
            "rope_theta": 1000000,
            "rope_scaling": {"type": "dynamic", "factor": 2.0},
        },
        (128, 128, "half"),
        dynamic(1e6, 128, 2.0, 65536, 32768),
        65536,
    ),
    "Baichuan2-7B": (
        {**HEADS, "model_type": "baichuan", "max_position_embeddings": 4096, "model_max_length": 4096},
        (128, 128, "half"),
        series(1e4, 128),
        None,
    ),
    "Qwen-7B": (QWEN, (128, 128, "half"), series(1e4, 128), None),
    "Qwen, a quarter": ({**QWEN, "rotary_pct": 0.25}, (128, 32, "half"), series(1e4, 32), None),
    "Stable-Code-3B": (
        {
            "model_type": "stablelm_epoch",
            "hidden_size": 2560,
            "num_attention_heads": 32,
            "num_heads": 32,
            "max_position_embeddings": 16384,
            "rope_pct": 0.25,
            "rope_theta": 1000000,
            "rotary_scaling_factor": 1.0,
        },
        (80, 20, "half"),
        series(1e6, 20),
        None,
    ),
    "StableLM-epoch, half": (
        {**HEADS, "model_type": "stablelm_epoch", "rope_pct": 0.5},
        (128, 64, "half"),
        series(1e4, 64),
        None,
    ),
    "OpenELM, another base": (
        {"model_type": "openelm", "head_dim": 64, "rope_freq_constant": 500000},
        (64, 64, "half"),
        series(5e5, 64),
        None,
    ),
    "StableLM-epoch, by its class's share": (
        {**HEADS, "model_type": "stablelm_epoch"},
        (128, 32, "half"),
        series(1e4, 32),
        None,
    ),
    "Phi-3-small-8k": ({**PHI3, "rope_embedding_base": 1000000}, (128, 128, "half"), series(1e6, 128), None),
    "Phi-3-small-128k": (
        {**PHI3, "rope_scaling": SU},
        (128, 128, "half"),
        [w / f for w, f in zip(series(1e6, 128), SU["long_factor"], strict=True)],  # type: ignore[arg-type]
        100_000,
    ),
    "OpenELM-270M": (
        {
            "model_type": "openelm",
            "head_dim": 64,
            "model_dim": 1280,
            "max_context_length": 2048,
            "rope_freq_constant": 10000,
            "rope_max_length": 4096,
        },
        (64, 64, "half"),
        series(1e4, 64),
        None,
    ),
    "Grok-1": (
        {"model_type": "grok-1", "hidden_size": 6144, "num_attention_heads": 48},
        (128, 128, "half"),
        series(1e4, 128),
        None,
    ),
    "MPT with rope": (
        {**MPT, "attn_config": {"rope": True, "rope_theta": 500000, "alibi": False}},
        (128, 128, "half"),
        series(5e5, 128),
        None,
    ),
    "MPT, linear": (
        {
            **MPT,
            "attn_config": {
                "rope": True,
                "rope_impl": "hf",
                "rope_hf_config": {"type": "linear", "factor": 4.0},
            },
        },
        (128, 128, "half"),
        [omega / 4 for omega in series(1e4, 128)],
        None,
    ),
    "MPT, dynamic": (
        {
            **MPT,
            "attn_config": {
                "rope": True,
                "rope_impl": "hf",
                "rope_hf_config": {"type": "dynamic", "factor": 2.0},
            },
        },
        (128, 128, "half"),
        dynamic(1e4, 128, 2.0, 8192, 2048),
        8192,
    ),
    "DeepSeek-MoE-16B": (
        {"model_type": "deepseek", "hidden_size": 2048, "num_attention_heads": 16, "rope_theta": 10000.0},
        (128, 128, "half"),
        series(1e4, 128),
        None,
    ),
    "Yi-34B": (
        {"model_type": "Yi", "hidden_size": 7168, "num_attention_heads": 56, "rope_theta": 5000000.0},
        (128, 128, "half"),
        series(5e6, 128),
        None,
    ),
    "Aquila2": ({**HEADS, "model_type": "aquila"}, (128, 128, "half"), series(1e4, 128), None),
    "Orion-14B": (
        {"model_type": "orion", "hidden_size": 5120, "num_attention_heads": 40, "rope_theta": 10000.0},
        (128, 128, "half"),
        series(1e4, 128),
        None,
    ),
    "XVERSE-13B-256K": (
        {**HEADS, "model_type": "xverse", "rope_theta": 500000},
        (128, 128, "half"),
        series(5e5, 128),
        None,
    ),
    "MiniCPM-2B": (
        {"model_type": "minicpm", "hidden_size": 2304, "num_attention_heads": 36, "rope_theta": 10000.0},
        (64, 64, "half"),
        series(1e4, 64),
        None,
    ),
    "CodeShell-7B": (
        {
            "model_type": "codeshell",
            "n_embd": 4096,
            "n_head": 32,
            "n_positions": 8192,
            "position_embedding_type": "rope",
            "rope_scaling": {"type": "dynamic", "factor": 2.0},
        },
        (128, 128, "half"),
        dynamic(1e4, 128, 2.0, 16384, 8192),
        16384,
    ),
    "Falcon-7B, older": (
        {"model_type": "RefinedWebModel", "hidden_size": 4544, "n_head": 71, "alibi": False},
        (64, 64, "half"),
        series(1e4, 64),
        None,
    ),
    "Phi-1.5, older": (
        {"model_type": "mixformer-sequential", **GPT, "rotary_dim": 32},
        (64, 32, "half"),
        series(1e4, 32),
        None,
    ),
    "MOSS": ({"model_type": "moss", **GPT, "rotary_dim": 64}, (64, 64, "interleaved"), series(1e4, 64), None),
    "TeleChat-7B": (
        {"model_type": "telechat", "hidden_size": 4096, "n_head": 32, "n_layer": 30, "training_seqlen": 8192},
        (128, 128, "half"),
        series(1e4, 128),
        None,
    ),
    "Llama-Nemotron-51B": (
        {
            "model_type": "nemotron-nas",
            "hidden_size": 8192,
            "num_attention_heads": 64,
            "rope_theta": 500000.0,
        },
        (128, 128, "half"),
        series(5e5, 128),
        None,
    ),
    "Ling-lite": (
        {
            "model_type": "bailing_moe",
            "hidden_size": 2048,
            "num_attention_heads": 16,
            "head_dim": 128,
            "rope_theta": 600000,
        },
        (128, 128, "half"),
        series(6e5, 128),
        None,
    ),
    "Ling-2": (
        {
            "model_type": "bailing_moe_v2",
            "head_dim": 128,
            "partial_rotary_factor": 0.5,
            "rotary_dim": 64,
            "rope_theta": 600000,
        },
        (128, 64, "half"),
        series(6e5, 64),
        None,
    ),
    "PLaMo 2": (
        {"model_type": "plamo2", "hidden_size": 4096, "num_attention_heads": 32, "hidden_size_per_head": 128},
        (128, 128, "half"),
        series(1e4, 128),
        None,
    ),
    "MiniMax-Text-01": (
        {"model_type": "minimax_text_01", **MINIMAX},
        (128, 64, "half"),
        series(1e7, 64),
        None,
    ),
    "Hunyuan-Large": (
        {
            "model_type": "hunyuan",
            "hidden_size": 6400,
            "num_attention_heads": 80,
            "attention_head_dim": 128,
            "max_position_embeddings": 131072,
            "rope_theta": 10000.0,
            "rope_scaling": {"alpha": 1000.0, "factor": 1.0, "type": "dynamic"},
        },
        (128, 128, "half"),
        series(1e4 * 1000 ** (128 / 126), 128),
        None,
    ),
    "LLaDA-8B": (
        {"model_type": "llada", **LLADA, "rope_theta": 500000.0},
        (128, 128, "half"),
        series(5e5, 128),
        None,
    ),
    "GTE-multilingual": (
        {
            "model_type": "new",
            "hidden_size": 768,
            "num_attention_heads": 12,
            "position_embedding_type": "rope",
            "rope_theta": 20000,
            "rope_scaling": {"factor": 8.0, "type": "ntk"},
        },
        (64, 64, "half"),
        [omega / 8 ** (2 / 64) for omega in series(160000, 64)],
        None,
    ),
    "EXAONE 3": (
        {**HEADS, "model_type": "exaone", "rope_theta": 500000},
        (128, 128, "half"),
        series(5e5, 128),
        None,
    ),
}


@pytest.mark.parametrize("name", ROWS)
def test_the_rope_is_of_the_model_s_code(name: str) -> None:
    config, shape, frequencies, length = ROWS[name]
    reading = read({**config, "auto_map": {"AutoConfig": "configuration.Config"}})
    rope = reading.rope if length is None else reading.rope.at_length(length)
    assert (rope.head_dim, rope.rotary_dim, rope.pairing) == shape
    assert (rope.rotary_start, rope.axes, rope.out_pairing) == (0, None, None)
    np.testing.assert_allclose(rope.frequencies, frequencies, rtol=1e-12)
    assert "convention" not in reading.inferred
    assert not [note for note in reading.notes if "is not used" in note]


def test_amplitudes() -> None:
    rope = read(ROWS["Phi-3-small-128k"][0]).rope
    assert rope.at_length(100_000).amplitude == SU["long_mscale"]
    assert rope.at_length(8192).amplitude == 1.0


def rotated_in_halves(x: np.ndarray, position: float) -> np.ndarray:
    """rotate_half of ChatGLM-6B's modeling_chatglm.py, for one vector."""
    width = len(x)
    angles = np.tile(position * np.array(series(1e4, width)), 2)
    turned = np.concatenate([-x[width // 2 :], x[: width // 2]])
    return x * np.cos(angles) + turned * np.sin(angles)


def test_chatglm_1_rotates_each_half_by_a_position_of_its_own() -> None:
    config = {**HEADS, "model_type": "chatglm", "position_encoding_2d": True, "max_sequence_length": 2048}
    reading = read(config)
    x = np.random.default_rng(0).normal(size=(1, 128))
    expected = np.concatenate([rotated_in_halves(x[0, :64], 17), rotated_in_halves(x[0, 64:], 5)])
    np.testing.assert_allclose(reading.rope.apply(x, np.array([[17, 5]]))[0], expected, atol=1e-12)
    assert any("position in the answer" in note for note in reading.notes)


@pytest.mark.parametrize("pairing", ["interleaved", "half"])
def test_chatglm_2_rotates_neighbours_in_the_first_half(pairing: str) -> None:
    rope = read({**GLM, "original_rope": pairing == "interleaved"}).rope
    x = np.random.default_rng(0).normal(size=(1, 128))
    even, odd = (slice(0, 64, 2), slice(1, 64, 2)) if pairing == "interleaved" else (slice(32), slice(32, 64))
    angles, expected = 9 * np.array(series(1e4, 64)), x[0].copy()
    expected[even] = x[0, even] * np.cos(angles) - x[0, odd] * np.sin(angles)
    expected[odd] = x[0, odd] * np.cos(angles) + x[0, even] * np.sin(angles)
    np.testing.assert_allclose(rope.apply(x, np.array([9]))[0], expected, atol=1e-12)


def test_rope_ratio_is_told_where_two_models_differ() -> None:
    (note,) = read({**GLM, "num_layers": 28, "rope_ratio": 50}).notes
    assert "divides the positions" in note
    assert "_name_or_path" in note
    followed = read(
        {**GLM, "num_layers": 28, "rope_ratio": 50, "_name_or_path": "THUDM/chatglm2-6b-32k"}
    ).rope
    np.testing.assert_allclose(followed.frequencies, [omega / 50 for omega in series(1e4, 64)])
    assert read({**GLM, "rope_ratio": 50}).notes == ()  # GLM-4 has 40 layers


@pytest.mark.parametrize("name", ["Qwen-7B", "TeleChat-7B"])
def test_the_rule_beyond_the_trained_context_is_told(name: str) -> None:
    config, _, _, _ = ROWS[name]
    (note,) = read(config).notes
    assert "beyond 8192 positions" in note
    assert "NTKAware(2**ceil(log2(n/8192) + 1) - 1)" in note
    # get_ntk_alpha of the models' code, at twice and at nearly four times the trained context
    for n in (16384, 30000):
        alpha = max(2 ** math.ceil(math.log2(n / 8192) + 1) - 1, 1)
        followed = ra.RoPE(
            128, pairing="half", scaling=ra.NTKAware(2 ** math.ceil(math.log2(n / 8192) + 1) - 1)
        )
        np.testing.assert_allclose(followed.frequencies, series(1e4 * alpha ** (128 / 126), 128), rtol=1e-12)
    assert read({**QWEN, "use_dynamic_ntk": False}).notes == ()


def test_layers() -> None:
    kinds = [0, 0, 0, 1, 0, 0, 0, 1]
    groups = read_layers({"model_type": "minimax_text_01", **MINIMAX, "attn_type_list": kinds})
    assert [(layers, reading.rope.rotary_dim) for layers, reading in groups] == [
        ((0, 1, 2, 4, 5, 6), 0),
        ((3, 7), 64),
    ]
    plamo = {"model_type": "plamo3", "head_dim": 128, "rope_theta": 1e6, "rope_local_theta": 1e4}
    types = ["sliding_attention", "sliding_attention", "full_attention"]
    groups = read_layers({**plamo, "layer_types": types, "num_hidden_layers": 3})
    assert [(layers, reading.rope.base) for layers, reading in groups] == [((0, 1), 1e4), ((2,), 1e6)]
    m1 = {
        "model_type": "baichuan_m1",
        "hidden_size": 5120,
        "num_attention_heads": 40,
        "num_swa_attention_heads": 20,
        "num_hidden_layers": 4,
        "rope_theta": 1000000,
        "sliding_window_layers": [1, 3],
    }
    assert [(layers, reading.rope.head_dim) for layers, reading in read_layers(m1)] == [
        ((0, 2), 128),
        ((1, 3), 256),
    ]


REFUSED = {
    "Baichuan2-13B": (
        {"model_type": "baichuan", "hidden_size": 5120, "num_attention_heads": 40, "model_max_length": 4096},
        "Baichuan of 13B.*ALiBi",
    ),
    "Baichuan of neither key": ({**HEADS, "model_type": "baichuan"}, "7B rotates and of 13B does not"),
    "Jais": ({"model_type": "jais", **GPT, "position_embedding_type": "alibi"}, "ALiBi"),
    "BTLM": ({"model_type": "btlm", **GPT}, "ALiBi"),
    "Phi-4-mini-flash": ({**HEADS, "model_type": "phi4flash", "rope_theta": 1e4}, "rotates nothing"),
    "MPT-7B": ({**MPT, "attn_config": {"alibi": True}}, "without attn_config.rope"),
    "MPT without attn_config": (MPT, "without attn_config.rope"),
    "MPT, xPos": (
        {**MPT, "attn_config": {"rope": True, "rope_dail_config": {"type": "xpos"}}},
        "'xpos'.*rotation_xpos",
    ),
    "Phi-3-small, stretched": ({**PHI3, "rope_position_scale": 2.0}, "vLLM divides positions by it"),
    "XVERSE without a base": ({**HEADS, "model_type": "xverse"}, "10000 or 500000"),
    "InternLM, another rule": (
        {**HEADS, "model_type": "internlm", "rotary": {"base": 10000, "type": "spiral"}},
        "must be 'dynamic' or 'origin'",
    ),
    "MPT, another code": (
        {**MPT, "attn_config": {"rope": True, "rope_impl": "own"}},
        "must be 'dail' or 'hf'",
    ),
    "MPT, blocks that differ": (
        {**MPT, "attn_config": {"rope": True}, "block_overrides": {"order": []}},
        "block_overrides",
    ),
    "CogVLM": ({**HEADS, "vision_config": {"hidden_size": 1792}}, "of no known model"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_with_a_reason(name: str) -> None:
    config, reason = REFUSED[name]
    with pytest.raises(ConfigError, match=reason):
        read(config)


def test_the_text_part_of_other_models() -> None:
    intern = {**HEADS, "model_type": "internlm2", "rope_theta": 1000000}
    chat = read({"model_type": "internvl_chat", "llm_config": intern, "vision_config": {"hidden_size": 3200}})
    assert (chat.part, chat.rope) == ("llm", ra.RoPE(128, base=1e6, pairing="half"))
    moonlight = {"model_type": "deepseek_v3", "qk_rope_head_dim": 64, "rope_theta": 50000.0}
    kimi = read({"model_type": "kimi_vl", "text_config": moonlight, "vision_config": {"num_heads": 16}})
    assert kimi.rope == ra.RoPE(64, base=5e4, out_pairing="half")


def test_other_names_of_layers_and_context() -> None:
    ((layers, reading),) = read_layers(GLM)
    assert (layers, reading.context) == (tuple(range(40)), 131072)
    assert read(ROWS["OpenELM-270M"][0]).context == 2048


def test_the_page_lists_every_family() -> None:
    page = (docs_blocks.DOCS / "configs.md").read_text("utf-8")
    section = page.partition("## Models whose code is on the hub")[2].partition("```")[0]
    assert {*re.findall(r"`([\w-]+)`", section)} >= {*REMOTE} - {"RefinedWebModel"}


def test_falcon_with_alibi_rotates_nothing() -> None:
    config = {"model_type": "RefinedWebModel", "hidden_size": 2048, "n_head": 32, "alibi": True}
    assert read(config).rope.rotary_dim == 0


def test_every_row_is_tested() -> None:
    tested = {config.get("model_type") for config, *_ in (*ROWS.values(), *REFUSED.values())}
    alike = {
        "arctic",
        "bailing_moe_linear",
        "gpt_refact",
        "hf_olmo",
        "minimax_m1",
        "ouro",
        "phi-msft",
        "plamo",
    }
    alike |= {"RefinedWeb", "baichuan_m1", "plamo3", "step1", "telechat3"}
    assert set(REMOTE) - tested == alike
