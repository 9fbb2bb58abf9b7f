"""Hugging Face configs: published configs, inferred values, and refused configs."""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import sys
from collections.abc import Mapping
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import example, given, settings

import rope_array as ra
from rope_array import SpecError
from rope_array._config import _model_defaults as defaults
from rope_array._config._conventions_remote import REMOTE, REMOTE_DEFAULTS
from rope_array._config._document import CONVENTIONS
from rope_array.config import ConfigError, Reading, read, read_layers

LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LLAMA3["original_max_position_embeddings"] = 8192
LLAMA = {"model_type": "llama", "head_dim": 128, "rope_theta": 500000.0, "max_position_embeddings": 131072}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096}
QWEN2_VL = {
    "model_type": "qwen2_vl",
    "hidden_size": 1536,
    "num_attention_heads": 12,
    "rope_theta": 1000000.0,
    "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]},
    "vision_config": {"depth": 32, "embed_dim": 1280, "num_heads": 16},
}
GEMMA3 = {
    "model_type": "gemma3",
    "text_config": {
        "model_type": "gemma3_text",
        "hidden_size": 2560,
        "num_hidden_layers": 34,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
    },
    "vision_config": {"model_type": "siglip_vision_model", "hidden_size": 1152, "num_attention_heads": 16},
}
DEEPSEEK_V3 = {
    "model_type": "deepseek_v3",
    "qk_rope_head_dim": 64,
    "max_position_embeddings": 163840,
    "rope_theta": 10000,
    "rope_scaling": {
        "type": "yarn",
        "factor": 40,
        "beta_fast": 32,
        "beta_slow": 1,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "original_max_position_embeddings": 4096,
    },
}
DEEPSEEK_V4 = {
    "model_type": "deepseek_v4",
    "head_dim": 512,
    "qk_rope_head_dim": 64,
    "rope_scaling": {"type": "yarn", "factor": 16, "original_max_position_embeddings": 65536},
}


def rope(config: Any, **which: Any) -> ra.RoPE:
    return read(config, **which).rope


def refuse(text: str, config: Any, **which: Any) -> None:
    with pytest.raises(ConfigError, match=text):
        read(config, **which)


# ---- published configs, with the keys of their config.json ----

HALF = {"pairing": "half"}
PUBLISHED = {
    "Llama 3.1": ({**LLAMA, "rope_scaling": LLAMA3}, ra.RoPE(128, base=5e5, scaling=ra.Llama3(), **HALF)),
    "Llama 2": (
        {"model_type": "llama", "hidden_size": 4096, "num_attention_heads": 32},
        ra.RoPE(128, **HALF),
    ),
    "GPT-NeoX": (
        {"model_type": "gpt_neox", "hidden_size": 6144, "num_attention_heads": 64, "rotary_emb_base": 10000},
        ra.RoPE(96, rotary_dim=24, **HALF),
    ),
    "GPT-J": (
        {"model_type": "gptj", "n_embd": 4096, "n_head": 16, "rotary_dim": 64},
        ra.RoPE(256, rotary_dim=64),
    ),
    "GLM-4": ({"model_type": "glm", "head_dim": 128}, ra.RoPE(128, rotary_dim=64)),
    "Phi-2": (
        {"model_type": "phi", "hidden_size": 2560, "num_attention_heads": 32, "partial_rotary_factor": 0.4},
        ra.RoPE(80, rotary_dim=32, **HALF),
    ),
    "Qwen2-VL": (QWEN2_VL, ra.RoPE(128, base=1e6, axes=ra.Axes.chunked(16, 24, 24), **HALF)),
    "Qwen2-VL, vision": (QWEN2_VL, ra.RoPE(80, axes=ra.Axes.axial(40, 40), **HALF), {"part": "vision"}),
    "Gemma 3, full": (
        GEMMA3,
        ra.RoPE(256, base=1e6, scaling=ra.Linear(8.0), **HALF),
        {"layer_type": "full_attention"},
    ),
    "Gemma 3, layer 4": (GEMMA3, ra.RoPE(256, **HALF), {"layer_type": 4}),
    "Gemma 3, layer 5": (
        GEMMA3,
        ra.RoPE(256, base=1e6, scaling=ra.Linear(8.0), **HALF),
        {"part": "text_config", "layer_type": 5},
    ),
    "DeepSeek V3": (
        DEEPSEEK_V3,
        ra.RoPE(64, out_pairing="half", scaling=ra.YaRN(40.0, 4096, mscale=1.0, mscale_all_dim=1.0)),
    ),
    "DeepSeek V4, main": (DEEPSEEK_V4, ra.RoPE(512, rotary_dim=64, rotary_start=448), {"layer_type": "main"}),
    "DeepSeek V4, compressed": (
        DEEPSEEK_V4,
        ra.RoPE(
            512,
            base=160000.0,
            rotary_dim=64,
            rotary_start=448,
            scaling=ra.YaRN(16.0, 65536, attention_factor=1.0),
        ),
        {"layer_type": "compressed_sparse_attention"},
    ),
    "gpt-oss": (
        {"model_type": "gpt_oss"},
        ra.RoPE(64, base=150000.0, scaling=ra.YaRN(32.0, 4096, truncate=False), **HALF),
        {"layer_type": 0},
    ),
    "Llama 4, a layer without rotation": (
        {"model_type": "llama4", "text_config": {"model_type": "llama4_text"}},
        ra.RoPE(128, rotary_dim=0),
        {"layer_type": 3},
    ),
    "Llama 4": (
        {"model_type": "llama4", "text_config": {"model_type": "llama4_text"}},
        ra.RoPE(128, base=5e5),
        {"layer_type": "chunked_attention"},
    ),
    "Llava": (
        {
            "model_type": "llava",
            "text_config": {"model_type": "llama"},
            "vision_config": {"model_type": "clip"},
        },
        ra.RoPE(128, **HALF),
    ),
    "Gemma 4, full": (
        {"model_type": "gemma4_text"},
        ra.RoPE(512, base=1e6, scaling=ra.Proportional(0.25), **HALF),
        {"layer_type": "full_attention"},
    ),
    "HunYuan": (
        {
            "model_type": "hunyuan_v1_dense",
            "head_dim": 128,
            "rope_theta": 10000.0,
            "rope_scaling": {"type": "dynamic", "alpha": 1000.0, "factor": 1.0, "mscale": 1.0},
        },
        ra.RoPE(128, scaling=ra.NTKAware(1000.0), **HALF),
    ),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published(name: str) -> None:
    config, expected, *which = PUBLISHED[name]
    for form in (config, json.loads(json.dumps(config))):
        assert rope(form, **dict(*which)) == expected


def test_phi_3() -> None:
    config = {
        "model_type": "phi3",
        "hidden_size": 3072,
        "num_attention_heads": 32,
        "max_position_embeddings": 131072,
        "original_max_position_embeddings": 4096,
        "rope_scaling": {"type": "su", "short_factor": [1.0] * 48, "long_factor": [2.0] * 48},
    }
    made = rope(config)
    assert made.at_length(4096).frequencies[0] == 1.0
    assert made.at_length(4097).frequencies[0] == 0.5
    assert made.at_length(1).amplitude == pytest.approx(1.19023807)


def test_nanochat_rotates_in_the_other_direction() -> None:
    made = rope({"model_type": "nanochat", "head_dim": 8})
    assert made.frequencies == pytest.approx([-w for w in ra.RoPE(8).frequencies])
    scaling = {"max_position_embeddings": 64, "rope_scaling": {"type": "dynamic", "factor": 2.0}}
    waiting = rope({"model_type": "nanochat", "head_dim": 8, **scaling})
    assert waiting.at_length(128).frequencies[1] < 0
    assert waiting.scaling == ra.Reversed(ra.DynamicNTK(2.0, 64))
    assert eval(repr(waiting), vars(ra)) == waiting


def test_nested_truncate_is_honoured() -> None:
    nested = {"full_attention": {**YARN, "truncate": False}, "sliding_attention": {"rope_type": "default"}}
    config = {"model_type": "olmo3", "head_dim": 64, "rope_parameters": nested}
    reading = read(config, layer_type="full_attention")
    assert reading.rope.scaling == ra.YaRN(4.0, 4096, truncate=False)
    assert any("truncate" in note for note in reading.notes)


@pytest.mark.parametrize("name", ["deepseek_yarn", "deepseek_llama_scaling", "telechat3-yarn"])
def test_other_names_of_yarn(name: str) -> None:
    scaling = {**YARN, "rope_type": name, "mscale": 0.707}
    made = rope({**LLAMA, "rope_scaling": scaling})
    assert made.amplitude == pytest.approx(0.1 * 0.707 * math.log(4) + 1)
    made = rope({**LLAMA, "rope_scaling": {**scaling, "mscale": 1.0, "mscale_all_dim": 0.707}})
    assert made.amplitude == pytest.approx((0.1 * math.log(4) + 1) / (0.0707 * math.log(4) + 1))


@pytest.mark.parametrize(
    ("scales", "here", "in_vllm"),
    [
        ({"mscale": 0.707}, 1.3688879, 1.2608038),
        ({"mscale": 0.707, "mscale_all_dim": 0}, 1.3688879, 1.2608038),
        ({"mscale_all_dim": 0.707}, 1.3688879, 1.0857264),
        ({"mscale": None, "mscale_all_dim": 0.707}, 1.3688879, 1.0857264),
        ({"mscale": 0, "mscale_all_dim": 0.707}, 1.3688879, 0.7931448),
        ({}, 1.3688879, None),
        ({"mscale": 1.0, "mscale_all_dim": 0}, 1.3688879, None),
        ({"mscale": 0.707, "mscale_all_dim": 0.707}, 1.0, None),
        ({"mscale": 0.707, "attention_factor": 1.5}, 1.5, None),
    ],
    ids=str,
)
def test_yarn_names_the_other_amplitude_of_vllm(
    scales: dict[str, Any], here: float, in_vllm: float | None
) -> None:
    """vLLM reads a missing mscale as 1 and a missing mscale_all_dim as 0; transformers needs both above 0."""
    scaling = {**YARN, "factor": 40.0, **scales}
    reading = read({**LLAMA, "rope_scaling": scaling})
    assert reading.rope.amplitude == pytest.approx(here, rel=1e-7)
    assert len(reading.notes) == (in_vllm is not None)
    if in_vllm is not None:
        assert f"is {here:.6g}; in vLLM's code" in reading.notes[0]
        assert f"it is {in_vllm:.6g}: for that state" in reading.notes[0]
        theirs = read({**LLAMA, "rope_scaling": {**scaling, "rope_type": "deepseek_yarn"}})
        assert theirs.rope.amplitude == pytest.approx(in_vllm, rel=1e-7)
        assert theirs.notes == ()


@pytest.mark.parametrize("scaling", [{"rope_type": "yarn", "factor": 4.0}, LLAMA3], ids=["yarn", "llama3"])
def test_a_missing_trained_context_has_a_note(scaling: dict[str, Any]) -> None:
    """transformers takes max_position_embeddings (RotaryEmbeddingConfigMixin.standardize_rope_params)."""
    stated = {key: value for key, value in scaling.items() if key != "original_max_position_embeddings"}
    config = {"model_type": "llama", "head_dim": 64, "max_position_embeddings": 6000}
    reading = read({**config, "rope_scaling": stated})
    assert reading.rope.scaling.original_max_position_embeddings == 6000
    assert reading.inferred["original_max_position_embeddings"] == "max_position_embeddings"
    (note,) = reading.notes
    assert note.startswith("original_max_position_embeddings is missing: max_position_embeddings, 6000, is")
    full = {**stated, "original_max_position_embeddings": 3000}
    assert read({**config, "rope_scaling": full}).notes == ()


def test_vllm_ntk() -> None:
    fixed = {"type": "ntk", "factor": 4.0}
    assert rope({**LLAMA, "rope_scaling": fixed}).scaling == ra.NTKAware(4.0, "fixed")
    assert rope({**LLAMA, "rope_scaling": {**fixed, "mixed_b": 0.75}}).scaling == ra.NTKAware(
        4.0, "mixed", 0.75
    )


# ---- keys of older configs, which transformers' classes convert ----

EXAONE = {
    "model_type": "exaone4_5",
    "text_config": {
        "model_type": "exaone4_5_text",
        "head_dim": 128,
        "num_hidden_layers": 8,
        "rope_theta": 1e6,
    },
}
OLD_V4 = {**DEEPSEEK_V4, "num_hidden_layers": 4, "compress_ratios": [0, 4, 128, 0]}
COMPRESSED = ra.RoPE(
    512, base=160000.0, rotary_dim=64, rotary_start=448, scaling=ra.YaRN(16.0, 65536, attention_factor=1.0)
)
TYPES = ["attention", "mamba", "deepseek_sparse_attention", "sliding_attention"]
DOTS3 = {"model_type": "dots3_note_text", "num_hidden_layers": 4}
ULTRABERT = {"model_type": "ultrabert", "head_dim": 64, "num_hidden_layers": 2, "attention_windows": [0, 64]}
OLDER: dict[str, tuple[Any, ra.RoPE, dict[str, Any]]] = {
    "EXAONE 4.5, full": (EXAONE, ra.RoPE(128, rotary_dim=0, **HALF), {"layer_type": 3}),
    "EXAONE 4.5, sliding": (EXAONE, ra.RoPE(128, base=1e6, **HALF), {"layer_type": 2}),
    "DeepSeek V4, ratio 0": (OLD_V4, ra.RoPE(512, rotary_dim=64, rotary_start=448), {"layer_type": 3}),
    "DeepSeek V4, ratio 4": (OLD_V4, COMPRESSED, {"layer_type": 1}),
    "DeepSeek V4, ratio 128": (OLD_V4, COMPRESSED, {"layer_type": 2}),
    "attention": (
        {"model_type": "exaone4", "head_dim": 64, "layer_types": TYPES},
        ra.RoPE(64, rotary_dim=0, **HALF),
        {"layer_type": 0},
    ),
    "attention, by name": (
        {"model_type": "exaone4", "head_dim": 64, "layer_types": TYPES},
        ra.RoPE(64, rotary_dim=0, **HALF),
        {"layer_type": "attention"},
    ),
    "a part of another model type": (
        {"model_type": "qwen2_vl", "text_config": {"model_type": "cohere", "rope_theta": 1e6}},
        ra.RoPE(128, base=1e6, axes=ra.Axes.chunked(16, 24, 24), **HALF),
        {},
    ),
    "Kimi K2 in Kimi K2.5": (
        {"model_type": "kimi_k25", "text_config": {"model_type": "kimi_k2", "rope_theta": 5e4}},
        ra.RoPE(64, base=5e4, out_pairing="half"),
        {},
    ),
    "the vision tower of another model": (
        {"model_type": "hyperclovax_vision_v2", "vision_config": {"model_type": "qwen2_5_vl"}},
        ra.RoPE(224, axes=ra.Axes.axial(112, 112), **HALF),
        {"part": "vision"},
    ),
    "language_config": (
        {"model_type": "unlimited_ocr", "language_config": {"hidden_size": 512, "num_attention_heads": 16}},
        ra.RoPE(32, **HALF),
        {},
    ),
    "text on the top level": (
        {"model_type": "fuyu", "rope_theta": 5e3},
        ra.RoPE(64, base=5e3, rotary_dim=32, **HALF),
        {},
    ),
    "values of the whole": (
        {"model_type": "voxtral", "text_config": {"model_type": "llama", "vocab_size": 9}},
        ra.RoPE(128, base=1e8, **HALF),
        {},
    ),
    "attention_head_dim": (
        {"model_type": "hunyuan_vl_text", "attention_head_dim": 32},
        ra.RoPE(32, **HALF),
        {},
    ),
    "n_embed": (
        {"model_type": "falcon", "n_embed": 1024, "num_attention_heads": 8},
        ra.RoPE(128, **HALF),
        {},
    ),
    "width and heads": (
        {"model_type": "step3p7", "vision_config": {"width": 512, "heads": 8}},
        ra.RoPE(64, axes=ra.Axes.axial(32, 32, order=(1, 0)), **HALF),
        {"part": "vision"},
    ),
    "embed_dim and num_heads": (
        {"model_type": "dots3_note", "vision_config": {"embed_dim": 512, "num_heads": 8}},
        ra.RoPE(64, axes=ra.Axes.axial(32, 32), **HALF),
        {"part": "vision"},
    ),
    "whisper_config": (
        {
            "model_type": "dots3_note_audio_encoder",
            "whisper_config": {"d_model": 640, "encoder_attention_heads": 10},
        },
        ra.RoPE(64, rotary_dim=32, **HALF),
        {},
    ),
    "attention_windows, full": (ULTRABERT, ra.RoPE(64, base=2.56e6, **HALF), {"layer_type": 0}),
    "a base for each layer": (
        {**ULTRABERT, "rope_theta": [1e5, 2e4]},
        ra.RoPE(64, base=2e4, **HALF),
        {"layer_type": 1},
    ),
    "swa_head_dim": (
        {**DOTS3, "swa_head_dim": 288, "swa_rope_theta": 2e4},
        ra.RoPE(96, base=2e4, out_pairing="half"),
        {"layer_type": 2},
    ),
    "use_sliding_window": (
        {**DOTS3, "use_sliding_window": False},
        ra.RoPE(64, base=8e7, out_pairing="half"),
        {"layer_type": 2},
    ),
    "rope_theta of SAM": (
        {"model_type": "sam2_video", "rope_theta": 5e3},
        ra.RoPE(256, base=5e3, axes=ra.Axes.axial(128, 128)),
        {},
    ),
    "empty parameters": (
        {"model_type": "gpt_oss", "rope_parameters": {}},
        ra.RoPE(64, base=1.5e5, **HALF),
        {},
    ),
    "the last layer of NeoMME": (
        {"model_type": "neomme", "num_hidden_layers": 2, "head_dim": 64},
        ra.RoPE(64, base=1e6, rotary_dim=16, axes=ra.Axes((0, 1) * 4, count=2), **HALF),
        {"layer_type": 1},
    ),
    "Muse, by index": (
        {"model_type": "muse_glimmer_text", "num_hidden_layers": 4, "layer_types": ["full_attention"] * 4},
        ra.RoPE(128, **HALF),
        {"layer_type": 0},
    ),
}


@pytest.mark.parametrize("name", OLDER)
def test_older_keys(name: str) -> None:
    config, expected, which = OLDER[name]
    assert rope(config, **which) == expected


def test_older_keys_of_no_layer_are_refused() -> None:
    refuse("compress_ratios.1. is 5", {**OLD_V4, "compress_ratios": [0, 5, 0, 0]}, layer_type=0)
    refuse("compress_ratios is ", {**OLD_V4, "compress_ratios": [0]}, layer_type=3)
    refuse("rope_theta is 5000.0; give a base for each layer", {**ULTRABERT, "rope_theta": 5e3}, layer_type=0)


# ---- models without rotation ----


@pytest.mark.parametrize("kind", ["inkling2_text", "jamba", "kimi_linear", "nemotron_h", "zamba"])
def test_models_that_rotate_nothing(kind: str) -> None:
    """A left-over base or rule has no effect: the models' code does not read it."""
    linear = {"linear_attn_config": {"full_attn_layers": [4, 8], "kda_layers": [1, 2, 3, 5, 6, 7]}}
    config = {"model_type": kind, "rope_theta": 1e4, "rope_scaling": YARN, "num_hidden_layers": 8, **linear}
    for which in ({}, {"layer_type": 3}, {"layer_type": 4}):
        reading = read({**config, "mla_use_nope": True}, **which)
        assert reading.rope.rotary_dim == 0
        assert any("rotates nothing: no rotation" in note for note in reading.notes)


# A config, the width of its rotating layers, and these layers: by the code of transformers 5.23.
SOME_LAYERS: dict[str, tuple[dict[str, Any], int, list[int]]] = {
    "Bamba": (
        {"model_type": "bamba", "num_hidden_layers": 32, "attn_layer_indices": [9, 18, 27]},
        64,
        [9, 18, 27],
    ),
    "Bamba without attention": ({"model_type": "bamba", "num_hidden_layers": 4}, 64, []),
    "RecurrentGemma": ({"model_type": "recurrent_gemma", "num_hidden_layers": 7}, 128, [2, 5]),
    "RecurrentGemma, attention first": (
        {
            "model_type": "recurrent_gemma",
            "num_hidden_layers": 5,
            "block_types": ["attention", "recurrent", "recurrent"],
        },
        128,
        [0, 3],
    ),
    "Mllama": (
        {"model_type": "mllama", "text_config": {"num_hidden_layers": 6, "cross_attention_layers": [3, 4]}},
        128,
        [0, 1, 2, 5],
    ),
    "Mllama by default": ({"model_type": "mllama_text_model", "num_hidden_layers": 5}, 128, [0, 1, 2, 4]),
}


@pytest.mark.parametrize("name", SOME_LAYERS)
def test_the_layers_that_rotate(name: str) -> None:
    config, width, rotating = SOME_LAYERS[name]
    widths = {i: reading.rope.rotary_dim for indices, reading in read_layers(config) for i in indices}
    assert widths == {i: width if i in rotating else 0 for i in range(len(widths))}
    assert rope(config).rotary_dim == width


@pytest.mark.parametrize(
    ("kind", "key", "value"),
    [
        ("bamba", "attn_layer_indices", 9),
        ("recurrent_gemma", "block_types", []),
        ("recurrent_gemma", "block_types", ["mamba"]),
        ("mllama_text_model", "cross_attention_layers", True),
    ],
)
def test_a_list_of_layers_that_cannot_be_read_is_refused(kind: str, key: str, value: Any) -> None:
    refuse(f"{kind}: {key}", {"model_type": kind, "num_hidden_layers": 4, key: value}, layer_type=0)


@pytest.mark.parametrize(("stated", "notes"), [(64, 0), (32, 1)])
def test_the_width_that_bamba_s_conversion_states(stated: int, notes: int) -> None:
    """transformers' conversion writes it, and the model's code has half of the head in its place."""
    config = {
        "model_type": "bamba",
        "num_hidden_layers": 4,
        "attn_layer_indices": [1],
        "attn_rotary_emb": stated,
    }
    reading = read(config, layer_type=1)
    assert reading.rope == ra.RoPE(128, rotary_dim=64, **HALF)
    assert sum("attn_rotary_emb is not used" in note for note in reading.notes) == notes
    assert read(config, layer_type=0).rope.rotary_dim == 0


def test_a_latent_attention_without_rotation_of_an_unknown_model_is_refused() -> None:
    latent = {"model_type": "kimi_k9", "rope_theta": 1e4, "head_dim": 64, "rope_interleave": True}
    for width in (64, 0):
        refuse("mla_use_nope is True", {**latent, "qk_rope_head_dim": width, "mla_use_nope": True})
    assert rope({**latent, "qk_rope_head_dim": 64, "mla_use_nope": False}).rotary_dim == 64


@pytest.mark.parametrize("kind", ["gpt2", "bert", "opt"])
def test_a_base_of_a_model_without_rotary_embedding_is_refused(kind: str) -> None:
    refuse(
        f"{kind} has no rotary embedding in transformers, and 'rope_theta' no", {**LLAMA, "model_type": kind}
    )


@pytest.mark.parametrize(
    "stated", [{"rope_parameters": {**YARN, "rope_theta": None}}, {"rope_theta": None}], ids=["rule", "top"]
)
def test_a_base_of_null_is_no_default(stated: dict[str, Any]) -> None:
    """transformers has a null base after `config.rope_scaling = {...}`, and cannot make the model."""
    refuse("rope_theta is null, which is no base; state the base", {**LLAMA, "rope_theta": None, **stated})
    olmo = {"model_type": "olmo_hybrid", "head_dim": 64, **stated}
    assert rope(olmo, layer_type=3) == ra.RoPE(64, rotary_dim=0, **HALF)  # its code takes null for no rope
    assert rope({**olmo, "rope_parameters": {**YARN, "rope_theta": 5e5}}, layer_type=3).base == 5e5


# A model type, the key of a base, the layer with this base, and further keys.
NULL_BASES: dict[str, tuple[str, str, int, dict[str, Any]]] = {
    "Gemma 3, global": ("gemma3_text", "rope_theta", 5, {}),
    "Gemma 3, local": ("gemma3_text", "rope_local_base_freq", 0, {}),
    "Gemma 3n, local": ("gemma3n_text", "rope_local_base_freq", 0, {}),
    "T5Gemma 2, local": ("t5gemma2_text", "rope_local_base_freq", 0, {}),
    "OLMo 3": ("olmo3", "rope_theta", 3, {"rope_scaling": {"rope_type": "linear", "factor": 2.0}}),
    "ModernBERT, global": ("modernbert", "global_rope_theta", 0, {}),
    "ModernBERT, local": ("modernbert", "local_rope_theta", 1, {"global_rope_theta": 5e5}),
    "ModernBERT decoder, local": ("modernbert-decoder", "local_rope_theta", 1, {}),
    "Step 3.5": ("step3p5", "rope_theta", 0, {}),
    "DeepSeek-V4, compressed": ("deepseek_v4", "compress_rope_theta", 0, {}),
    "DeepSeek-V4": ("deepseek_v4", "rope_theta", 0, {"layer_types": ["sliding_attention"] * 8}),
    "Dots 3": ("dots3_note_text", "rope_theta", 0, {}),
    "Dots 3, local": ("dots3_note_text", "swa_rope_theta", 2, {}),
    "Baichuan-M1": ("baichuan_m1", "rope_theta", 0, {"hidden_size": 1024, "num_attention_heads": 8}),
    "GPT-NeoX": ("gpt_neox", "rotary_emb_base", 0, {}),
    "SAM 3": ("sam3_tracker_video", "memory_attention_rope_theta", 0, {}),
}


@pytest.mark.parametrize("name", NULL_BASES)
def test_a_null_base_of_a_layer_type_is_no_default(name: str) -> None:
    """transformers 5.23 keeps the null, and cannot make the model."""
    kind, key, layer, more = NULL_BASES[name]
    config = {"model_type": kind, "num_hidden_layers": 8, **more, key: None}
    refuse(f"{key} is null, which is no base; state the base", config, layer_type=layer)
    assert rope({**config, key: 777.5}, layer_type=layer).base == 777.5


def test_null_bases_inside_of_objects() -> None:
    internlm = {"model_type": "internlm", "hidden_size": 1024, "num_attention_heads": 8}
    refuse("rotary.base is null, which is no base", {**internlm, "rotary": {"type": "origin", "base": None}})
    mpt = {
        "model_type": "mpt",
        "d_model": 1024,
        "n_heads": 8,
        "attn_config": {"rope": True, "rope_theta": None},
    }
    refuse("attn_config.rope_theta is null, which is no base", mpt)
    esm = {"model_type": "esmfold2"}
    for key in ("spatial_rope_base_frequency", "uid_rope_base_frequency"):
        refuse(f"{key} is null, which is no base", {**esm, "atom_encoder": {key: None}}, part="atom_encoder")
    # DBRX's class does not read this key.
    assert rope({"model_type": "dbrx", "attn_config": {"rope_theta": None}}).base == 1e4


def test_a_null_local_base_of_modernbert_names_its_meaning_in_older_code() -> None:
    config = {"model_type": "modernbert", "global_rope_theta": 5e5, "local_rope_theta": None}
    refuse(r"trained with \(transformers 4 took global_rope_theta for it\)", config)
    assert rope(config, layer_type="full_attention").base == 5e5


@pytest.mark.parametrize("kind", ["neomme", "ultrabert"])
def test_a_null_base_that_the_class_replaces(kind: str) -> None:
    local = read(
        {"model_type": kind, "num_hidden_layers": 8, "rope_theta": None}, layer_type="sliding_attention"
    )
    assert local.rope.base == 1e4


# ---- parts of attention ----

INDEXER = {"index_head_dim": 128, "qk_rope_head_dim": 64, "rope_theta": 1e4}


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("deepseek_v32", ra.RoPE(128, rotary_dim=64, **HALF)),
        ("axk2", ra.RoPE(128, rotary_dim=64, **HALF)),
        ("hy_v4", ra.RoPE(128, rotary_dim=64, rotary_start=64, **HALF)),
        ("glm_moe_dsa", ra.RoPE(128, rotary_dim=64, out_pairing="half")),
    ],
)
def test_the_indexer_has_a_rope_of_its_own(kind: str, expected: ra.RoPE) -> None:
    config = {"model_type": kind, **INDEXER, "indexer_rope_interleave": kind == "glm_moe_dsa"}
    reading = read(config, part="indexer")
    assert (reading.rope, reading.part) == (expected, "indexer")
    assert rope(config).head_dim == 64


@pytest.mark.parametrize("stated", [{"use_mla": False}, {"qk_rope_head_dim": 0}, {}], ids=str)
def test_deepseek_without_latents_has_half_pairs(stated: dict[str, Any]) -> None:
    """DeepSeek-OCR: the attention is Llama's."""
    text = {"model_type": "deepseek_v2", "hidden_size": 1280, "num_attention_heads": 10, **stated}
    config = {"model_type": "deepseek_vl_v2", "language_config": text}
    assert rope(config) == (ra.RoPE(128, **HALF) if stated else ra.RoPE(64))


# ---- stated and inferred values ----


def test_stated_and_inferred() -> None:
    reading = read({"model_type": "llama", "hidden_size": 256, "num_attention_heads": 4})
    assert isinstance(reading, Reading)
    assert reading.stated == {"hidden_size": 256, "num_attention_heads": 4}
    assert reading.inferred == {"rope_type": "default", "rope_theta": 10000.0, "pairing": "half"}
    assert (reading.model_type, reading.part, reading.layer_type) == ("llama", None, None)


def test_the_part_that_is_chosen_is_inferred() -> None:
    reading = read(GEMMA3, layer_type="sliding_attention")
    assert reading.part == reading.inferred["part"] == "text"
    assert "rope_parameters.sliding_attention.rope_theta" in reading.inferred
    assert "part" not in read(GEMMA3, part="text", layer_type=0).inferred


@pytest.mark.parametrize("kind", [{}, {"model_type": "zork"}])
def test_an_unknown_model_is_read_like_most_models(kind: dict[str, str]) -> None:
    reading = read({**kind, "head_dim": 64, "rope_theta": 2e4, "partial_rotary_factor": 0.5})
    assert reading.rope == ra.RoPE(64, base=2e4, rotary_dim=32, pairing="half")
    assert re.search("is unknown|is missing", reading.inferred["convention"])


@pytest.mark.parametrize(
    ("kind", "text"),
    [({}, "model_type is missing"), ({"model_type": "zork"}, "model_type 'zork' is unknown")],
)
def test_a_guessed_convention_is_told(kind: dict[str, str], text: str) -> None:
    config = {**kind, "head_dim": 64, "rope_theta": 2e4}
    assert any("is a guess: compare pairing" in note for note in read(config).notes)
    with pytest.warns(
        UserWarning, match=f"{text}: read as most models are, with half pairs; check the pairing"
    ):
        ra.RoPE.from_config(config)


def test_unread_keys_of_a_model_that_transformers_lacks_name_no_library() -> None:
    notes = read(
        {"model_type": "openelm", "head_dim": 64, "rope_scaling": {"type": "linear", "factor": 2}}
    ).notes
    assert notes == ("rope_scaling is not used: the model's code does not read it",)


def test_an_unknown_model_without_rotary_keys_is_refused() -> None:
    refuse("bert is of no known model", {"model_type": "bert", "hidden_size": 768, "num_attention_heads": 12})
    refuse("no known model", GEMMA3, part="vision")
    refuse("no known model", {})


def test_keys_that_are_not_used_are_noted() -> None:
    parameters = {"rope_type": "linear", "factor": 2.0, "beta_fast": 32}
    assert read({**LLAMA, "rope_parameters": parameters}).notes == (
        "rope_type 'linear' does not use 'beta_fast'",
    )


# ---- entry points ----


class Config:
    """A config object that belongs to no library."""

    def __init__(self, content: Any) -> None:
        self.content = content

    def to_dict(self) -> Any:
        return self.content


def test_all_entry_points_read_the_same_config(tmp_path: Any) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps(LLAMA), encoding="utf-8")
    expected = ra.RoPE(128, base=5e5, pairing="half")
    for source in (LLAMA, Config(LLAMA), file, str(file), tmp_path, str(tmp_path)):
        assert rope(source) == ra.RoPE.from_config(source) == expected


def test_a_subclass_gets_its_own_reading() -> None:
    class Own(ra.RoPE):
        pass

    assert type(Own.from_config(LLAMA)) is Own


# One error each from the reader, a scaling rule and RoPE.
@pytest.mark.parametrize(
    ("scaling", "text"),
    [
        ({"type": "zork"}, "is 'zork', and the known rules are"),
        ({"type": "linear", "factor": 0.0}, "llama: factor is 0.0"),
        ({"type": "linear", "factor": 5e-324}, "llama: .* beyond the range of floats"),
    ],
)
def test_both_entry_points_refuse_alike(scaling: dict[str, Any], text: str) -> None:
    config = {**LLAMA, "rope_scaling": scaling}
    refuse(text, config)
    with pytest.raises(ConfigError, match=text):
        ra.RoPE.from_config(config)


@pytest.mark.parametrize("thing", [None, 3, 2.5, [LLAMA], b"config.json", Config, Config([1]), object()])
def test_other_values_are_not_configs(thing: Any) -> None:
    refuse("config is|no dict", thing)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"", "no JSON"),
        (b"\xff\xfe\x00\x01", "no JSON"),
        (b"{'model_type': 1}", "no JSON"),
        (b"[1, 2]", "holds"),
        (b"null", "holds"),
        (b'{"head_dim": 8, "head_dim": 16}', "twice"),
        (b"[" * 200_000, "too deeply|no JSON"),
        (b'{"a":' * 200_000, "too deeply|no JSON"),
        (b'{"rope_theta": ' + b"9" * 10_000 + b"}", "no JSON"),
        (b'{"model_type": "llama", "rope_theta": NaN}', "rope_theta is nan"),
        (b'{"model_type": "llama", "rope_theta": 1e999}', "rope_theta is inf"),
    ],
    ids=["empty", "binary", "python", "list", "null", "twins", "brackets", "depth", "digits", "nan", "inf"],
)
def test_bad_files(tmp_path: Any, content: bytes, text: str) -> None:
    file = tmp_path / "config.json"
    file.write_bytes(content)
    refuse(text, file)


def test_paths_that_are_not_files(tmp_path: Any) -> None:
    refuse("the folder .* has no config.json; give the path of one", tmp_path)
    refuse("no file or folder here is named", tmp_path / "absent")
    refuse("cannot be read|no file or folder", "a\0b")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    refuse("no file or folder|cannot be read", tmp_path / "loop")
    if hasattr(os, "mkfifo"):
        os.mkfifo(tmp_path / "pipe")
        refuse("is no regular file", tmp_path / "pipe")
    (tmp_path / "config.json").mkdir()
    refuse("is no regular file", tmp_path)


@pytest.mark.parametrize("name", ["model.gguf", "blob"])
def test_a_gguf_file_without_the_package(name: str, tmp_path: Any, monkeypatch: Any) -> None:
    """Files with the package are in tests/edge/test_gguf_configs.py."""
    (tmp_path / name).write_bytes(b"GGUF\x03\x00\x00\x00" + bytes(64))
    monkeypatch.setitem(sys.modules, "gguf", None)
    refuse(r"is a GGUF file, .* python -m pip install gguf, or give the config.json", tmp_path / name)


@pytest.mark.parametrize("name", ["meta-llama/Llama-3.1-8B", "gpt2", ".", "model/config.json"])
def test_names_on_a_hub_are_not_fetched(name: str, tmp_path: Any, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    text = f"{re.escape(repr(name))}.*download its config.json first: nothing is fetched"
    refuse(text, name)
    with pytest.raises(ConfigError, match=text):
        ra.RoPE.from_config(name)


def test_a_file_too_large(tmp_path: Any) -> None:
    with (tmp_path / "config.json").open("wb") as file:
        file.truncate(2**21 + 1)  # sparse: it uses no disk space
    refuse("has more than 2097152 bytes", tmp_path)


# ---- contradictions and unknown values ----

LISTS = {"rope_type": "longrope", "short_factor": [1.0] * 64, "long_factor": [1.0] * 64}
REFUSED: dict[str, tuple[Any, ...]] = {
    "type": ({**LLAMA, "rope_scaling": {"type": "zork"}}, "is 'zork', and the known rules are .*yarn"),
    "type that is not a name": ({**LLAMA, "rope_scaling": {"type": 3}}, "type is 3; it must be a name"),
    "key": ({**LLAMA, "rope_parameters": {"zork": 1}}, "'zork'; the known ones are alpha"),
    "two types": ({**LLAMA, "rope_scaling": {**YARN, "type": "linear"}}, "differ"),
    "two bases": ({**LLAMA, "rope_parameters": {"rope_theta": 1e4}}, "rope_theta is 500000.0, and"),
    "two dicts": (
        {**LLAMA, "rope_parameters": YARN, "rope_scaling": {**YARN, "factor": 2.0}},
        "differ in 'factor': 4.0 and 2.0",
    ),
    "two shares": (
        {**LLAMA, "partial_rotary_factor": 0.5, "rope_scaling": {**YARN, "partial_rotary_factor": 0.25}},
        "partial_rotary_factor in the rotary parameters is 0.25, and partial_rotary_factor 0.5",
    ),
    "share and width": (
        {"head_dim": 64, "rope_theta": 1e4, "partial_rotary_factor": 0.5, "rotary_dim": 16},
        "partial_rotary_factor 0.5 of a head of 64 is 32, and .* stated as 16",
    ),
    "share": ({**LLAMA, "rope_scaling": {**YARN, "partial_rotary_factor": 1.5}}, "from 0 to 1"),
    "sections": (
        {**QWEN2_VL, "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 25]}},
        "sums to 65 pairs; give sections that sum to the 64",
    ),
    "two sections": ({**QWEN2_VL, "rope_scaling": {"type": "mrope", "mrope_section": [32, 32]}}, "three"),
    "lists": ({**LLAMA, "rope_scaling": {**LISTS, "long_factor": [1.0]}}, "long_factor has 1 numbers"),
    "no list": ({**LLAMA, "rope_scaling": {**LISTS, "long_factor": None}}, "long_factor is a NoneType|None"),
    "no factor": ({**LLAMA, "rope_scaling": {"type": "linear"}}, "factor is missing"),
    "no yarn factor": ({**LLAMA, "rope_scaling": {"type": "yarn"}}, "factor is missing"),
    "factor": ({**LLAMA, "rope_scaling": {"type": "linear", "factor": "8"}}, "factor is '8'"),
    "remainder": ({"hidden_size": 100, "num_attention_heads": 3, "rope_theta": 1e4}, "state head_dim"),
    "missing width": ({"rope_theta": 1e4}, "width of a head is missing"),
    "too wide": ({**LLAMA, "head_dim": 10**9}, "head_dim is 1000000000"),
    "odd width": ({**LLAMA, "head_dim": 127}, "the rotated width is 127 of a head of 127"),
    "width of zero": ({**LLAMA, "head_dim": 0}, "head_dim is 0"),
    "attn_factor": (
        {**LLAMA, "rope_scaling": {**YARN, "attn_factor": "2"}},
        "attn_factor is '2'; it must be a",
    ),
    "layers differ": (GEMMA3, "layers differ"),
    "layer type": (GEMMA3, "layer_type is 'zork'", {"layer_type": "zork"}),
    "layer": (GEMMA3, "from 0 to 33", {"layer_type": 34}),
    "negative layer": (GEMMA3, "layer_type is -1", {"layer_type": -1}),
    "no layer": (GEMMA3, "layer_type is 1.5", {"layer_type": 1.5}),
    "layer of one kind": (LLAMA, "layers of one type", {"layer_type": "full_attention"}),
    "part": (GEMMA3, "no part 'audio'; give one of: 'text', 'vision'", {"part": "audio"}),
    "no part": (GEMMA3, "part is ''", {"part": ""}),
    "model type": ({"model_type": ["llama"]}, "model_type is a list"),
    "parameters": ({**LLAMA, "rope_parameters": [1]}, "rope_parameters is a list of length 1"),
    "object for a number": ({**LLAMA, "rope_parameters": {"factor": {}}}, "factor .* an object of 0 keys"),
    "xdrope": ({**LLAMA, "rope_scaling": {"type": "xdrope", "xdrope_section": [1]}}, "no rotation"),
    "HunYuan-VL": (
        {"model_type": "hunyuan_vl_text", "rope_scaling": {"type": "default", "mrope_section": [16] * 4}},
        "no rotation",
    ),
    "V-JEPA 2": ({"model_type": "vjepa2"}, "V-JEPA2.*no rotation"),
    "FoPE": ({**LLAMA, "rope_scaling": {"type": "fope"}}, "no rotation"),
    "axial only": ({"model_type": "pixtral", "rope_parameters": YARN}, "takes 'axial'"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    config, text, *which = REFUSED[name]
    refuse(text, config, **dict(*which))
    assert issubclass(ConfigError, SpecError)


def test_a_config_that_holds_itself() -> None:
    config: dict[str, Any] = {"model_type": "zork"}
    config["text_config"] = config["rope_parameters"] = config
    refuse("it holds itself", config)
    refuse("it holds itself", config, part="text.text.text")
    deep: Any = 1
    for _ in range(5000):
        deep = [deep]
    refuse("nested too deeply", {**LLAMA, "zork": deep})
    # A shared value is not a cycle, however often it occurs.
    shared: Any = {}
    for _ in range(60):
        shared = [shared, shared]
    assert rope({**LLAMA, "zork": shared}) == rope(LLAMA)


def raising(*args: Any) -> Any:
    raise RuntimeError("no")


def made(base: type, **methods: Any) -> Any:
    return type("Odd", (base,), methods)


class Endless(Mapping):  # type: ignore[type-arg]
    def __getitem__(self, key: Any) -> Any:
        return 1

    def __iter__(self) -> Any:
        return iter(range(10**9))

    def __len__(self) -> int:
        return 10**9


FOREIGN: dict[str, Any] = {
    "getitem": made(dict, __getitem__=raising)(LLAMA),
    "iter": made(dict, __iter__=raising)(LLAMA),
    "nested": {**LLAMA, "rope_parameters": made(dict, __iter__=raising)()},
    "list": {**LLAMA, "zork": made(list, __iter__=raising)()},
    "division": made(dict, __iter__=lambda self: iter([1 // 0]))(),
    "to_dict": made(object, to_dict=raising)(),
    "property": made(object, to_dict=property(raising))(),
    "arguments": made(object, to_dict=lambda self, needed: {})(),
    "class": made(object, __class__=property(raising))(),
    "path": made(os.PathLike, __fspath__=raising)(),
    "path that is not a string": made(os.PathLike, __fspath__=lambda self: 3)(),
    "endless": Endless(),
}


@pytest.mark.parametrize("name", FOREIGN)
def test_errors_of_foreign_code_are_config_errors(name: str) -> None:
    refuse("cannot be read|more than 2097152 values", FOREIGN[name])
    with pytest.raises(ConfigError):
        ra.RoPE.from_config(FOREIGN[name])


def test_subclasses_are_read_by_their_own_class() -> None:
    text = made(str, __eq__=raising, __hash__=str.__hash__)
    assert rope({"model_type": text("llama"), "head_dim": made(int, __eq__=raising)(8)}) == rope(
        {"model_type": "llama", "head_dim": 8}
    )


def test_values_that_deny_their_class() -> None:
    """isinstance asks the value itself: it may raise, or name a class that the value is not of."""
    odd = made(list, __class__=property(raising))([16, 24, 24])
    scaling = {**QWEN2_VL["rope_scaling"], "mrope_section": odd}
    assert rope({**QWEN2_VL, "rope_scaling": scaling}) == rope(QWEN2_VL)
    number = made(float, __class__=property(raising), __float__=raising, is_integer=raising)(1e6)
    assert rope({**QWEN2_VL, "rope_theta": number}) == rope(QWEN2_VL)
    for kind in (float, list, dict):
        thing = made(object, __class__=property(lambda self, kind=kind: kind))()
        refuse("rope_theta is a Odd; it must be a number", {**LLAMA, "rope_theta": thing})
        refuse("rope_scaling is a Odd; it must be an object", {**LLAMA, "rope_scaling": thing})


@pytest.mark.parametrize("key", ["model_type", "head_dim", "rope_theta", "rope_scaling", "layer_types"])
def test_arrays_are_refused(key: str) -> None:
    np = pytest.importorskip("numpy")
    refuse(r"is a ndarray|type is .*ndarray", {**LLAMA, key: np.array([1, 2])}, layer_type=0)


def test_messages_hold_no_raw_bytes_and_no_long_names() -> None:
    for config in ({"model_type": "\x1b[31mred\n"}, {"model_type": "\x1b[31mred\n", "rope_theta": "x"}):
        with pytest.raises(ConfigError) as caught:
            read(config)
        assert str(caught.value).isprintable()
    for name in ("x" * 5000, "x/" * 5000):
        with pytest.raises(ConfigError) as caught:
            read(name)
        assert len(str(caught.value)) < 300


MISSPELT = {
    "rope_thetta": "llama None",
    "rope_params": "llama gpt_neox stablelm_epoch None",
    "rope_ratio": "llama gpt_neox stablelm_epoch None",
    "rope_3d": "llama gpt_neox stablelm_epoch None",
    "use_dynamic_ntk": "llama gpt_neox stablelm_epoch None",
}


@pytest.mark.parametrize("key", MISSPELT)
def test_rotary_keys_of_no_model_are_refused(key: str) -> None:
    for kind in (None if kind == "None" else kind for kind in MISSPELT[key].split()):
        config = {"model_type": kind, "head_dim": 64, "hidden_size": 64, "num_attention_heads": 1}
        config["rope_theta"] = 1e4
        meant = "is 'rope_theta' meant" if key == "rope_thetta" else "it may change the rotation"
        remedy = "the model's code does not read it, leave it out" if kind else "read the model's code, and"
        refuse(f"the key '{key}' is unknown: {meant}.*{remedy}", {**config, key: True})
        assert rope({**config, key: None}).head_dim == 64


@pytest.mark.parametrize(
    ("key", "value", "same"),
    [
        ("partial_rotary_factor", 0.5, 1.0),
        ("rotary_pct", 0.25, 1.0),
        ("rotary_dim", 64, 128),
        ("rotary_emb_base", 1e6, 5e5),
        ("rope_interleaved", True, False),
        ("qk_rope_head_dim", 32, 128),
        ("rope_type", "yarn", "default"),
        ("rotary_scaling_factor", 2.0, 1.0),
        ("use_rotary_pos_emb", "yes", True),
        ("rotary", "yes", True),
        ("rope_is_neox_style", False, True),
    ],
)
def test_rotary_keys_of_other_models_are_noted(key: str, value: Any, same: Any) -> None:
    reading = read({**LLAMA, key: value})
    assert reading.rope == rope(LLAMA)
    assert reading.notes == (f"{key} is not used: the model's code in transformers does not read it",)
    for neutral in (same, None):
        assert read({**LLAMA, key: neutral}).notes == ()


def test_words_that_contain_rope_are_not_rotary_keys() -> None:
    assert read({**LLAMA, "properties": 1, "europe": 2}).notes == ()


def test_other_keys_of_unknown_models() -> None:
    config = {"model_type": "hunyuan", "hidden_size": 6400, "num_attention_heads": 80, "rope_theta": 1e4}
    assert rope({**config, "attention_head_dim": 128}).head_dim == 128
    ernie = {"hidden_size": 2560, "num_attention_heads": 20, "rope_3d": True, "rope_theta": 5e5}
    made = rope({"model_type": "ernie4_5_moe_vl", **ernie, "vision_config": {}})
    assert made == ra.RoPE(128, base=5e5, axes=ra.Axes.alternating(20, 22, 22))


def test_rotary_keys_outside_of_the_part() -> None:
    text = {"model_type": "llama4_text", "rope_theta": 5e5}
    config = {"model_type": "llama4", "text_config": text}
    refuse("rope_theta is 500000.0 in the part 'text', and 1000000.0 outside", {**config, "rope_theta": 1e6})
    assert not any("outside" in note for note in read({**config, "rope_theta": 5e5}).notes)
    gemma = {**GEMMA3, "rope_local_base_freq": 5.0}
    assert any("rope_local_base_freq outside" in n for n in read(gemma, layer_type=0).notes)


# A config that sets a pattern of layers, and its layers of full attention.
PATTERNS: list[tuple[dict[str, Any], set[int]]] = [
    ({"model_type": "gemma3_text", "sliding_window_pattern": 3}, {2, 5, 8, 11}),
    ({"model_type": "embedding_gemma2_text", "sliding_window_pattern": 5}, {4, 9, 11}),
    ({"model_type": "cohere2", "sliding_window_pattern": 2}, {1, 3, 5, 7, 9, 11}),
    # Layer 0 is dense: it rotates though it has full attention.
    ({"model_type": "cohere2_moe", "sliding_window_pattern": 3, "first_k_dense_replace": 1}, {3, 6, 9}),
    ({"model_type": "exaone4", "sliding_window_pattern": 3}, {2, 5, 8, 11}),
    ({"model_type": "afmoe", "global_attn_every_n_layers": 3}, {2, 5, 8, 11}),
    ({"model_type": "modernbert", "global_attn_every_n_layers": 4}, {0, 4, 8}),
    ({"model_type": "modernbert-decoder", "global_attn_every_n_layers": 4}, {0, 4, 8}),
    ({"model_type": "qwen3_next", "full_attention_interval": 3}, {2, 5, 8, 11}),
    ({"model_type": "qwen3_5_text", "full_attention_interval": 3}, {2, 5, 8, 11}),
    ({"model_type": "lfm2", "full_attn_idxs": [1, 4]}, {1, 4}),
    ({"model_type": "gemma4_text", "num_hidden_layers": 9}, {5, 8}),
    ({"model_type": "gemma4_text", "num_hidden_layers": 3, "layer_types": ["sliding_attention"] * 3}, {2}),
    ({"model_type": "flint"}, {0, 1, 5, 9, 11}),
    ({"model_type": "muse_glimmer_text", "num_hidden_layers": 6}, {1, 5}),
    ({"model_type": "bailing_hybrid", "layer_group_size": 4}, {3, 7, 11}),
]


@pytest.mark.parametrize(("config", "full"), PATTERNS, ids=lambda x: str(x)[:60])
def test_the_pattern_sets_the_layer_types(config: dict[str, Any], full: set[int]) -> None:
    config = {"num_hidden_layers": 12, **config}
    kinds = [read(config, layer_type=i) for i in range(config["num_hidden_layers"])]
    wanted = rope(config, layer_type=min(full))
    ours = {i for i, reading in enumerate(kinds) if reading.rope == wanted}
    assert ours == full


WITHOUT = ["llama4_text", "smollm3", "exaone4", "cohere2", "cohere2_moe", "afmoe", "mistral_large4_text"]


@pytest.mark.parametrize("kind", WITHOUT)
def test_layers_that_do_not_rotate_are_noted(kind: str) -> None:
    reading = read({"model_type": kind, "num_hidden_layers": 8})
    assert reading.rope.rotary_dim
    assert "layers 3, 7 (2 of 8) have no rotation: choose with layer_type=" in reading.notes
    assert not any("choose with" in n for n in read({"model_type": kind}, layer_type=0).notes)
    assert rope({"model_type": kind}, layer_type=3).rotary_dim == 0


def test_no_rope_layers_are_checked() -> None:
    config = {"model_type": "smollm3", "num_hidden_layers": 8, "no_rope_layers": [1, 0]}
    for which in ({"layer_type": 5}, {}):  # without a layer_type, all layers are read for a note
        refuse(r"no_rope_layers has 2 values, none for layer \d", config, **which)
    for junk in ("a", None, 2, -1, [1]):
        refuse(
            r"no_rope_layers\[1\] is", {"model_type": "smollm3", "no_rope_layers": [1, junk]}, layer_type=1
        )
    refuse(
        "some have no rotation; give the layer.s index",
        {"model_type": "smollm3"},
        layer_type="full_attention",
    )


# ---- differences from transformers, and contradictions ----

GPTJ = {"model_type": "gptj", "n_embd": 64, "n_head": 4, "rotary_dim": 8}
CONSTANT: list[dict[str, Any]] = [
    GPTJ,
    {**GPTJ, "model_type": "codegen"},
    {"model_type": "roformer", "hidden_size": 64, "num_attention_heads": 4},
    {"model_type": "clvp_encoder"},
]


@pytest.mark.parametrize("config", CONSTANT, ids=lambda c: c["model_type"])
def test_a_constant_of_the_code_is_followed(config: dict[str, Any]) -> None:
    linear = {"type": "linear", "factor": 4.0}
    for key, value in (("rope_theta", 5e5), ("rope_scaling", linear), ("rope_parameters", linear)):
        reading = read({**config, key: value})
        assert reading.rope == rope(config)
        assert any(f"{key} is not used" in note for note in reading.notes)
    usual = {**config, "rope_theta": 1e4, "rope_parameters": {"rope_type": "default", "rope_theta": 1e4}}
    assert read(usual).notes == read(config).notes


def test_cohere2_moe_drops_rope_scaling() -> None:
    config = {"model_type": "cohere2_moe", "rope_scaling": {"rope_type": "linear", "factor": 4.0}}
    full = {**config, "rope_parameters": {"rope_type": "default", "rope_theta": 1e4}}
    for given_ in (config, full):
        reading = read(given_, layer_type=0)
        assert reading.rope.scaling is None
        assert any("rope_scaling is not used" in note for note in reading.notes)


def test_dbrx() -> None:
    config = {"model_type": "dbrx", "d_model": 6144, "n_heads": 48, "max_seq_len": 32768}
    reading = read({**config, "attn_config": {"clip_qkv": 8, "kv_n_heads": 8, "rope_theta": 500000}})
    assert reading.rope == ra.RoPE(128, base=5e5, pairing="half")
    assert reading.stated["attn_config.rope_theta"] == 500000
    assert any("transformers 5.23 does not read it" in note for note in reading.notes)
    assert read(config).rope.base == 1e4
    assert read(config).notes == ()


@pytest.mark.parametrize("base", [1e4, 5e5, 1e6], ids=["of the class", "the same", "another"])
@pytest.mark.parametrize("inside", [True, False], ids=["in the parameters", "outside"])
def test_two_bases_of_dbrx(base: float, inside: bool) -> None:
    """A config object of transformers has the class's 10000 beside the published base."""
    own = (
        {"rope_parameters": {"rope_type": "default", "rope_theta": base}} if inside else {"rope_theta": base}
    )
    config = {"model_type": "dbrx", "attn_config": {"rope_theta": 5e5}, **own}
    if base == 1e6:
        refuse("attn_config.rope_theta is 500000.0, and rope_theta 1000000.0; leave one out", config)
        assert rope({**config, "attn_config": {}}).base == 1e6
    else:
        assert rope(config) == ra.RoPE(128, base=5e5, **HALF)


def test_both_dicts_of_parameters_must_agree() -> None:
    linear = {"type": "linear", "factor": 2.0}
    newer = {"rope_type": "linear", "factor": 2.0, "rope_theta": 5e5}
    assert rope({**LLAMA, "rope_scaling": linear, "rope_parameters": newer}).scaling == ra.Linear(2.0)
    refuse(
        "both stated, and differ", {**LLAMA, "rope_scaling": linear, "rope_parameters": {"rope_theta": 5e5}}
    )
    refuse(
        "both stated, and differ in 'rope_theta'", {**LLAMA, "rope_scaling": newer, "rope_parameters": linear}
    )


def test_alpha_is_for_hunyuan() -> None:
    scaling = {"type": "dynamic", "factor": 2.0, "alpha": 1000.0}
    refuse("alpha is a parameter of HunYuan's models", {**LLAMA, "rope_scaling": scaling})
    for kind in ("hunyuan_v1_moe", "hunyuan"):
        made = rope({**LLAMA, "model_type": kind, "rope_scaling": scaling})
        assert made.scaling == ra.NTKAware(1000.0)


@pytest.mark.parametrize("kind", ["modernbert", "olmo3", "gemma3_text"])
def test_keys_that_a_layer_type_drops_are_noted(kind: str) -> None:
    config = {"model_type": kind, "head_dim": 64, "hidden_size": 768, "num_attention_heads": 12}
    linear = {"rope_type": "linear", "factor": 8.0}
    old = read({**config, "rope_scaling": {"type": "linear", "factor": 8.0}}, layer_type="full_attention")
    assert old.rope.scaling == ra.Linear(8.0)
    assert any(note.startswith("type is used here") for note in old.notes)
    flat = read({**config, "rope_parameters": linear}, layer_type="full_attention")
    assert flat.rope.scaling == ra.Linear(8.0)
    assert any("without layer types are used" in note for note in flat.notes)
    assert read({**config, "rope_scaling": linear}, layer_type="full_attention").notes == ()


def test_a_default_wins_over_an_older_type() -> None:
    reading = read({**LLAMA, "rope_scaling": {"rope_type": "default", "type": "linear", "factor": 8.0}})
    assert reading.rope.scaling is None
    assert "type 'linear' is not used: rope_type is 'default'" in reading.notes


def test_a_head_dim_of_null() -> None:
    ernie = {"model_type": "ernie4_5", "hidden_size": 1024, "num_attention_heads": 16}
    assert rope({**ernie, "head_dim": None}).head_dim == 64
    assert rope(ernie).head_dim == 128


def test_contradictions_with_the_model_code_are_refused() -> None:
    sections = {"type": "mrope", "mrope_section": [16, 24, 24], "mrope_interleaved": True}
    refuse("mrope_interleaved is True", {**QWEN2_VL, "rope_scaling": sections})
    assert rope({**QWEN2_VL, "rope_scaling": {**sections, "mrope_interleaved": False}}) == rope(QWEN2_VL)
    qwen3 = {"rope_type": "default", "mrope_section": [24, 20, 20], "mrope_interleaved": False}
    refuse("mrope_interleaved is False", {"model_type": "qwen3_vl_text", "rope_scaling": qwen3})
    refuse("interleaved in the rotary", {**LLAMA, "rope_parameters": {"interleaved": True}})
    assert rope({**LLAMA, "rope_parameters": {"interleaved": False}}) == rope(LLAMA)
    refuse("rope_dim in the rotary parameters is 32", {**LLAMA, "rope_parameters": {"rope_dim": 32}})
    dynamic = {"type": "dynamic", "factor": 2.0, "max_position_embeddings": 64}
    text = "max_position_embeddings is 131072, and in the rotary parameters 64"
    refuse(text, {**LLAMA, "rope_scaling": dynamic})


@pytest.mark.parametrize("value", ["x", [1], 3])
def test_a_part_must_be_an_object(value: Any) -> None:
    for kind in ("gemma3", "llava"):
        refuse("text_config is .*; it must be an object", {"model_type": kind, "text_config": value})


def test_all_layer_types_are_checked() -> None:
    for own, text in (
        ({"xx": 1}, "unknown rotary parameters: 'xx'"),
        ({"rope_type": "spiral"}, "is 'spiral', and the known rules are"),
    ):
        nested = {"full_attention": own, "sliding_attention": {"rope_type": "default"}}
        config = {"model_type": "gemma3_text", "rope_parameters": nested}
        refuse(text, config, layer_type="sliding_attention")


def test_voxtral_gives_a_stated_part_its_base() -> None:
    assert rope({"model_type": "voxtral", "text_config": {"model_type": "llama"}}).base == 1e8


def test_parts_within_the_main_part_are_found() -> None:
    for kind, main in (("qwen2_5_omni", "thinker"), ("colqwen2", "vlm")):
        config = {"model_type": kind}
        assert read(config, part="text").part == f"{main}.text"
        assert read(config, part="vision").part == f"{main}.vision"
        assert read(config, part=main).rope == read(config, part=f"{main}.text").rope


@pytest.mark.parametrize("value", ["no", 2, [0]])
def test_a_flag_is_true_or_false(value: Any) -> None:
    refuse("rope_interleave is .*; it must be true or false", {**DEEPSEEK_V3, "rope_interleave": value})
    assert rope({**DEEPSEEK_V3, "rope_interleave": 0}) == rope({**DEEPSEEK_V3, "rope_interleave": False})


def test_errors_name_the_key_and_the_part() -> None:
    sections = {"rope_type": "default", "xdrope_section": [2, 2, 2, 2]}
    refuse(r"xdrope_section is \[2", {"model_type": "hunyuan_vl_text", "rope_scaling": sections})
    mpt = {"model_type": "zork", "d_model": 64, "n_heads": 4, "attn_config": {"rope_theta": 10000}}
    refuse("zork, part 'attn': the width of a head is missing", mpt)


def test_nanochat_is_a_value() -> None:
    config = {"model_type": "nanochat"}
    assert rope(config) == rope(config)
    assert hash(rope(config)) == hash(rope(config))
    assert " at 0x" not in repr(rope(config))


# ---- arbitrary configs ----

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.sampled_from([10**400, -(10**400), 2**63]),
    st.floats(),
    st.text(max_size=8),
    st.sampled_from(["default", "yarn", "longrope", "full_attention", "sliding_attention"]),
)
JSON = st.recursive(
    SCALARS, lambda x: st.lists(x, max_size=4) | st.dictionaries(st.text(max_size=4), x, max_size=4)
)
PLAUSIBLE = st.one_of(
    JSON, st.sampled_from([1, 2, 8, 64, 128, 0.5, 1.0, 2.0, 4096, [16, 24, 24], [1.0] * 32])
)
PARAMETERS = st.dictionaries(
    st.sampled_from(
        [
            "rope_type",
            "type",
            "rope_theta",
            "partial_rotary_factor",
            "factor",
            "alpha",
            "original_max_position_embeddings",
            "beta_fast",
            "attention_factor",
            "beta_slow",
            "mscale",
            "mscale_all_dim",
            "truncate",
            "low_freq_factor",
            "high_freq_factor",
            "short_factor",
            "long_factor",
            "mrope_section",
            "mrope_interleaved",
            "full_attention",
            "sliding_attention",
            "main",
            "rope_dim",
            "zork",
        ]
    ),
    PLAUSIBLE,
    max_size=6,
)
TOP = [
    "head_dim",
    "hidden_size",
    "num_attention_heads",
    "num_hidden_layers",
    "max_position_embeddings",
    "rope_theta",
    "rotary_dim",
    "partial_rotary_factor",
    "original_max_position_embeddings",
    "rotary_pct",
    "qk_rope_head_dim",
    "layer_types",
    "no_rope_layers",
    "no_rope_layer_interval",
    "layer_rope_theta",
    "per_layer_config",
    "alibi",
    "sliding_window",
    "text_config",
    "vision_config",
    "attn_config",
    "position_encoding_2d",
    "rope_interleaved",
    "rope_ratio",
    "rotary",
    "use_dynamic_ntk",
]
CONFIGS = st.builds(
    lambda kind, top, parameters: {"model_type": kind, **top, **parameters},
    st.one_of(st.sampled_from(sorted({*defaults.MODELS, *REMOTE})), JSON),
    st.dictionaries(st.sampled_from(TOP), PLAUSIBLE, max_size=6),
    st.dictionaries(
        st.sampled_from(["rope_parameters", "rope_scaling"]),
        st.one_of(PARAMETERS, st.dictionaries(st.sampled_from(["full_attention", "main"]), PARAMETERS), JSON),
        max_size=2,
    ),
)


@settings(max_examples=400)
@given(
    CONFIGS,
    st.sampled_from([None, None, "text", "vision", "text.text", "", 3]),
    st.sampled_from([None, None, 0, 3, -1, 10**400, "full_attention", "main", True, 1.5]),
)
@example({"model_type": "neomme", "rope_parameters": {"full_attention": [1]}}, None, None)
def test_any_config_is_read_or_refused(config: Any, part: Any, layer_type: Any) -> None:
    with contextlib.suppress(ConfigError):
        reading = read(config, part=part, layer_type=layer_type)
        assert len(repr(reading)) < 100_000
        assert hash(reading.rope) == hash(read(config, part=part, layer_type=layer_type).rope)


@given(st.one_of(st.binary(max_size=64), CONFIGS.map(lambda c: json.dumps(c).encode("utf-8", "replace"))))
def test_any_file_is_read_or_refused(tmp_path_factory: Any, content: bytes) -> None:
    file = tmp_path_factory.mktemp("configs") / "config.json"
    file.write_bytes(content)
    with contextlib.suppress(ConfigError):
        read(file)


# Python raises when it formats an integer with so many digits, so error messages must not contain it.
@pytest.mark.parametrize(
    "value", [10**5000, {"a": 10**5000}, [10**5000], {10**5000}], ids=["int", "dict", "list", "set"]
)
@pytest.mark.parametrize(
    "key", ["rope_theta", "head_dim", "rope_parameters", "num_hidden_layers", "model_type"]
)
def test_numbers_of_too_many_digits(key: str, value: Any) -> None:
    refuse(".", {**LLAMA, key: value}, layer_type=0)
    refuse(".", {**LLAMA, "rope_parameters": {"rope_theta": value}})
    refuse(".", {**LLAMA, "rope_parameters": {"rope_type": "linear", "factor": value}})


def test_a_huge_config_takes_no_time() -> None:
    huge = {"model_type": "smollm3", "num_hidden_layers": 2**60, "layer_types": ["full_attention"] * 10**6}
    assert rope(huge, layer_type=3).rotary_dim == 0
    refuse("layer_types has 1000000 values", huge, layer_type=2**50)
    refuse("keys", {**LLAMA, "rope_scaling": {f"k{i}": 1 for i in range(10**5)}})
    refuse("it must be a list of names", {**LLAMA, "layer_types": list(range(10**5))}, layer_type=3)


# ---- the tables of defaults ----


def test_the_defaults_are_plain_and_sorted() -> None:
    keys = list(defaults.MODELS)
    assert keys == sorted(keys)
    assert re.search(r"transformers \d+\.\d+\.\d+", defaults.__doc__ or "")
    json.dumps(defaults.MODELS)
    assert set(defaults.SHARED.values()) <= set(keys)
    assert set(keys) >= defaults.ROTARY
    for entry in defaults.MODELS.values():
        assert set(entry.get("of_parts", {})) <= set(entry.get("parts", {}))


def test_every_convention_is_of_a_model() -> None:
    others = {"roformer"}  # no class with rope_parameters in transformers
    names = {key for key in CONVENTIONS if ":" not in key} - set(REMOTE)
    assert names - set(defaults.MODELS) <= others
    assert not set(REMOTE) & set(defaults.ROTARY)  # transformers has classes of its own for them
    assert set(REMOTE_DEFAULTS) <= set(REMOTE)


UNFIT = ("glm4v_moe_text", "glm4v_text", "glm_image_text", "qwen3_omni_moe_text", "blt")


@pytest.mark.parametrize("kind", sorted(defaults.ROTARY))
def test_every_default_is_read(kind: str) -> None:
    which = {"layer_type": 0} if ":" not in kind else {}
    # The defaults of some classes cannot rotate: sections do not fit, a width is odd or missing.
    if kind in UNFIT:
        refuse("width|sums", {"model_type": kind}, **which)
    else:
        assert rope({"model_type": kind}, **which).head_dim > 0


def test_reading_needs_no_array_library() -> None:
    import subprocess

    code = (
        "import sys, rope_array.config as c; before = set(sys.modules)\n"
        "c.read({'model_type': 'llama'})\n"
        "print(*{n.partition('.')[0] for n in set(sys.modules) - before} - set(sys.stdlib_module_names))"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert set(done.stdout.split()) <= {"rope_array"}


# ---- the layers ----


def test_layers_with_one_rope_are_read_together() -> None:
    """Gemma 3: five layers with a sliding window, then one with the full context."""
    gemma = {"model_type": "gemma3_text", "num_hidden_layers": 12, "rope_theta": 2e6}
    (sliding, near), (full, far) = read_layers(gemma)
    assert (sliding, full) == ((0, 1, 2, 3, 4, 6, 7, 8, 9, 10), (5, 11))
    assert (near.rope.base, far.rope.base) == (10000.0, 2e6)
    assert near.rope == ra.RoPE.from_config(gemma, layer_type="sliding_attention")
    assert far.rope == ra.RoPE.from_config(gemma, layer_type=11)


def test_layers_without_rotation_are_a_group() -> None:
    llama4 = {"model_type": "llama4_text", "num_hidden_layers": 8}
    assert [(indices, reading.rope.rotary_dim) for indices, reading in read_layers(llama4)] == [
        ((0, 1, 2, 4, 5, 6), 128),
        ((3, 7), 0),
    ]


def test_layers_of_an_unknown_number_are_one_reading() -> None:
    unknown = {"model_type": "mine", "head_dim": 8, "rope_theta": 100.0}
    assert read_layers(unknown) == (((), read(unknown)),)


def test_layers_of_a_part() -> None:
    whole = {"model_type": "gemma3", "text_config": {"num_hidden_layers": 6}}
    assert [indices for indices, _ in read_layers(whole, part="text")] == [(0, 1, 2, 3, 4), (5,)]


@pytest.mark.parametrize("value", [None, -1, 0, "long", [4096], 2.5, True, {}])
def test_a_context_that_is_no_number_of_positions_is_unknown(value: Any) -> None:
    given = {"model_type": "mine", "head_dim": 8, "rope_theta": 100.0, "max_position_embeddings": value}
    assert read(given).context is None


def test_the_context_is_stated_or_the_default_of_the_class() -> None:
    assert read({"model_type": "llama", "max_position_embeddings": 8192}).context == 8192
    assert read({"model_type": "llama"}).context == 2048
    assert "max_position_embeddings" not in read({"model_type": "llama"}).inferred


def test_a_layer_that_states_no_width_has_the_config_s():
    """transformers saves an empty `per_layer_config` if all layers of Gemma-4 have one width."""
    config = {
        "model_type": "gemma4_text",
        "head_dim": 32,
        "layer_types": ["sliding_attention", "full_attention"],
    }
    for layers, width in (({}, 32), ({"1": {"head_dim": 64}}, 64), (None, 512)):
        stated = config if layers is None else {**config, "per_layer_config": layers}
        assert ra.RoPE.from_config(stated, layer_type="full_attention").head_dim == width
