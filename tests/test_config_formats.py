"""Configs in formats that are not Hugging Face's, against ropes written here from their published code.

The code is of mistralai/mistral-inference (rope.py), deepseek-ai/DeepSeek-V3 (inference/model.py),
meta-llama/llama-models (llama3 and llama4, model.py), pytorch/executorch (examples/models/llama, rope.py) and
openai/gpt-oss (gpt_oss/torch/model.py); of engines mlc-ai/mlc-llm (python/mlc_llm/model), NVIDIA/TensorRT-LLM
(tensorrt_llm/functional.py) and keras-team/keras-hub (layers/modeling/rotary_embedding.py).
"""

import contextlib
import json
import math
import re
from fractions import Fraction

import numpy as np
import oracle
import pytest
from config_cases import gguf_file, half, model, refuse, rope

import rope_array as ra
from rope_array import ConfigError
from rope_array._command._config_report import report
from rope_array._config import _diffusers
from rope_array.config import read, read_layers

SIZES = {"dim": 64, "n_heads": 2, "n_layers": 4, "norm_eps": 1e-05, "vocab_size": 100}
MISTRAL = {**SIZES, "head_dim": 32, "hidden_dim": 128, "n_kv_heads": 1, "rope_theta": 1000000.0}
NO_BASE = {key: value for key, value in MISTRAL.items() if key != "rope_theta"}
OLD_MISTRAL = {**NO_BASE, "sliding_window": 4096}
YARN = {"factor": 16, "original_max_position_embeddings": 1024, "beta": 32, "alpha": 1}
UNSCALED = {**YARN, "apply_scale": False, "beta": 8, "alpha": 4}  # without a factor on cos
NOPE = {"qk_rope_head_dim": 16, "qk_nope_head_dim": 16}
LATENT = {"q_lora_rank": 16, "kv_lora_rank": 16, **NOPE, "v_head_dim": 32}
DEEPSEEK = {"vocab_size": 100, "dim": 64, "inter_dim": 128, "moe_inter_dim": 32, "n_layers": 4, "n_heads": 2}
DEEPSEEK |= {"kv_lora_rank": 16, "qk_nope_head_dim": 16, "qk_rope_head_dim": 32, "dtype": "fp8"}
LLAMA2 = {**SIZES, "multiple_of": 256, "vocab_size": -1}
CODE_LLAMA = {"dim": 8192, "n_layers": 48, "n_heads": 64, "n_kv_heads": 8, "multiple_of": 256}
CODE_LLAMA |= {"ffn_dim_multiplier": 1.0, "norm_eps": 1e-5, "rope_theta": 1000000}
LLAMA3 = {**LLAMA2, "ffn_dim_multiplier": 1.3, "n_kv_heads": 1, "rope_theta": 500000.0}
OF_LLAMA4 = {"nope_layer_interval": 2, "moe_args": {"num_experts": 16}, "use_qk_norm": True}
LLAMA4 = {**LLAMA3, **OF_LLAMA4}
EXECUTORCH = {**SIZES, "ffn_dim_multiplier": 1, "hidden_dim": 128, "n_kv_heads": 1, "rope_theta": 1000000.0}
EXECUTORCH |= {"use_hf_rope": True, "use_scaled_rope": False, "attention_qkv_bias": False}
STOCK = {**EXECUTORCH, "use_hf_rope": False}
# mlx-examples adds a model_type of Hugging Face.
MLX_LLAMA = {**SIZES, "n_kv_heads": 1, "hidden_dim": 128, "model_type": "llama"}
GPT_OSS = {"num_hidden_layers": 4, "num_experts": 4, "vocab_size": 100, "hidden_size": 64, "head_dim": 32}
GPT_OSS |= {"num_attention_heads": 2, "num_key_value_heads": 1, "sliding_window": 128, "rope_theta": 150000.0}
GPT_OSS |= {"initial_context_length": 4096, "rope_scaling_factor": 32.0}
GPT_OSS |= {"rope_ntk_alpha": 1.0, "rope_ntk_beta": 32.0}
SCALED = {"use_scaled_rope": True}
STOCK_SCALED = {**STOCK, **SCALED}


def yarn(factor, trained, fast=32.0, slow=1.0, amplitude=1.0, truncate=True):
    fields = {"beta_fast": fast, "beta_slow": slow, "truncate": truncate, "attention_factor": amplitude}
    return {"scaling": ra.YaRN(factor, trained, **fields)}


def llama3(factor, high):
    return {"scaling": ra.Llama3(factor, 1.0, high, 8192)}


BASE_6, BASE_5, GPT = ra.RoPE(32, base=1e6), ra.RoPE(32, base=5e5), {"base": 150000.0}
DEEPSEEK_ROPE, LLAMA3_ROPE = ra.RoPE(32, **yarn(40, 4096)), ra.RoPE(32, base=5e5, **llama3(8, 4))
STATED_BY_DEEPSEEK = {"original_seq_len": 2048, "rope_factor": 8, "beta_fast": 16, "beta_slow": 2}
STATED_BY_DEEPSEEK["mscale"] = 0.7
STATED_BY_MLX = {"head_dim": 16, "rope_theta": 5e5, "rope_traditional": True}
STATED_BY_LLAMA4 = {**SCALED, "rope_scaling_factor": 8, "rope_high_freq_factor": 4}
STATED_BY_GPT_OSS = {"rope_ntk_alpha": 2.0, "rope_ntk_beta": 16.0, "initial_context_length": 2048}
CASES = {
    "Mistral": (MISTRAL, BASE_6),
    "Mistral, not Hugging Face's model_type": ({**MISTRAL, "model_type": "transformer"}, BASE_6),
    "Mistral's yarn": ({**MISTRAL, "yarn": YARN}, ra.RoPE(32, base=1e6, **yarn(16, 1024, amplitude=None))),
    "Mistral, yarn unscaled": ({**MISTRAL, "yarn": UNSCALED}, ra.RoPE(32, base=1e6, **yarn(16, 1024, 8, 4))),
    "Mistral's latents": ({**MISTRAL, **LATENT, "yarn": YARN}, ra.RoPE(16, base=1e6, **yarn(16, 1024))),
    "Mistral without a base": (NO_BASE, BASE_6),
    "Mistral 7B v0.1": (OLD_MISTRAL, ra.RoPE(32)),
    "Mistral, a newer model_type": ({**MISTRAL, "model_type": "mistral3"}, BASE_6),
    "DeepSeek": (DEEPSEEK, DEEPSEEK_ROPE),
    "DeepSeek, stated": ({**DEEPSEEK, **STATED_BY_DEEPSEEK}, ra.RoPE(32, **yarn(8, 2048, 16, 2))),
    "DeepSeek, a model_type": ({**DEEPSEEK, "model_type": "deepseek_v3"}, DEEPSEEK_ROPE),
    "Llama 2": (LLAMA2, ra.RoPE(32)),
    "Llama, Code": (CODE_LLAMA, ra.RoPE(128, base=1e6)),
    "Llama 3.1": ({**LLAMA3, **SCALED}, LLAMA3_ROPE),
    "Llama 4 without a base": ({**LLAMA2, **OF_LLAMA4}, BASE_5),
    "Llama 4 Scout": ({**LLAMA4, **SCALED}, ra.RoPE(32, base=5e5, **llama3(16, 1))),
    "Llama 4, stated": ({**LLAMA4, **STATED_BY_LLAMA4}, LLAMA3_ROPE),
    "mlx-examples, Mistral": ({**MISTRAL, "model_type": "mistral"}, BASE_6),
    "mlx-examples, Mistral without a base": ({**NO_BASE, "model_type": "mistral"}, ra.RoPE(32)),
    "mlx-examples, Mixtral": ({**NO_BASE, "model_type": "mixtral", "moe": {"num_experts": 8}}, BASE_6),
    "mlx-examples, Llama": (MLX_LLAMA, ra.RoPE(32)),
    "mlx-examples, Llama, stated": ({**MLX_LLAMA, **STATED_BY_MLX}, ra.RoPE(16, base=5e5)),
    "mlx-examples, Llama from Hugging Face": ({**MLX_LLAMA, "rope_traditional": False}, half(32)),
    "mlx-examples, Llama 3": ({**LLAMA3, **SCALED, "model_type": "llama"}, LLAMA3_ROPE),
    "ExecuTorch, a stated head": ({**EXECUTORCH, "head_dim": 48}, half(48, base=1e6)),
    "ExecuTorch, scaled": ({**STOCK_SCALED, "rope_scale_factor": 32}, ra.RoPE(32, base=1e6, **llama3(32, 4))),
    "ExecuTorch, older": ({**STOCK, "rope_theta": None, "rope_freq_base": 20000.0}, ra.RoPE(32, base=2e4)),
    "ExecuTorch, no base": ({**EXECUTORCH, "rope_theta": None}, half(32)),
    "gpt-oss": (GPT_OSS, half(32, **GPT, **yarn(32, 4096, amplitude=None, truncate=False))),
    "gpt-oss, no factor": ({**GPT_OSS, "rope_scaling_factor": 1.0}, half(32, **GPT)),
    "gpt-oss, other turns": (
        {**GPT_OSS, **STATED_BY_GPT_OSS},
        half(32, **GPT, **yarn(32, 2048, 16, 2, amplitude=None, truncate=False)),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_config_has_the_rope_of_its_code(case):
    config, expected = CASES[case]
    reading = read(config)
    assert reading.rope == expected
    assert "rope_type" not in reading.inferred
    name = re.match(r"[\w-]+", case)[0]
    assert reading.inferred["format"].startswith("Meta" if name == "Llama" else name)


LLAMA3_RULE = {"factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "rope_type": "llama3"}
LLAMA3_RULE["original_max_position_embeddings"] = 8192
LONG_LLAMA3 = half(64, base=5e5, scaling=ra.Llama3(32.0, 1.0, 4.0, 8192))


def mlc(model_type="llama", **keys):
    sizes = {"hidden_size": 2048, "num_attention_heads": 32, "position_embedding_base": 500000.0}
    inner = {**sizes, "num_hidden_layers": 16, "context_window_size": 131072, **keys}
    return {"model_type": model_type, "model_config": inner, "context_window_size": 131072, "vocab_size": 9}


def keras_hub(name, **keys):
    sizes = {"hidden_dim": 2048, "num_query_heads": 32, "num_layers": 16, "name": name, "trainable": True}
    place = {"module": "keras_hub.src.models.x_backbone", "registered_name": f"keras_hub>{name}"}
    return {**place, "class_name": name, "config": {**sizes, **keys}}


def tensorrt(**keys):
    sizes = {"hidden_size": 2048, "num_attention_heads": 32, "head_size": 64, "num_hidden_layers": 16}
    base = {"position_embedding_type": "rope_gpt_neox", "rotary_base": 500000.0, "rotary_scaling": None}
    return {"architecture": "LlamaForCausalLM", "mapping": {"world_size": 1}, **sizes, **base, **keys}


KERAS_LLAMA3 = {"rope_frequency_adjustment_factor": 32.0, "rope_low_freq_factor": 1.0}
KERAS_LLAMA3 |= {"rope_high_freq_factor": 4.0, "rope_pretraining_sequence_length": 8192}
KERAS_BASE = {"rope_max_wavelength": 500000.0}
GPTJ = {"position_embedding_type": "rope_gptj", "rotary_dim": 32}
SHORT, LONG = tuple(1 + i / 64 for i in range(32)), tuple(1 + i / 8 for i in range(32))
MLC_SU = {"type": "su", "short_factor": list(SHORT), "long_factor": list(LONG)}
KERAS_SU = {"rope_scaling_type": "su", "rope_max_wavelength": 10000, "max_sequence_length": 131072}
KERAS_SU |= {"rope_scaling_short_factor": list(SHORT), "rope_scaling_long_factor": list(LONG)}
KERAS_SU |= {"pretraining_sequence_length": 4096}
# Configs of engines and other libraries, without and with a model_type of Hugging Face.
ENGINES = {
    "MLC": (mlc(rope_scaling=LLAMA3_RULE), LONG_LLAMA3),
    "MLC, GPT-NeoX": (
        mlc("gpt_neox", rotary_pct=0.25, position_embedding_base=10000),
        half(64, rotary_dim=16),
    ),
    "MLC, Phi-1": (mlc("phi-msft", n_embd=2560, n_head=32, rotary_dim=32), half(80, base=5e5, rotary_dim=32)),
    "MLC, another key of the base": (
        mlc("qwen2", position_embedding_base=None, rope_theta=1e6),
        half(64, base=1e6),
    ),
    "keras-hub": (keras_hub("MistralBackbone", **KERAS_BASE), half(64, base=5e5)),
    "keras-hub, Llama 3": (keras_hub("Llama3Backbone", **KERAS_BASE, **KERAS_LLAMA3), LONG_LLAMA3),
    "keras-hub, linear": (
        keras_hub("Qwen3Backbone", **KERAS_BASE, head_dim=128, rope_scaling_factor=4.0),
        half(128, base=5e5, scaling=ra.Linear(4.0)),
    ),
    "keras-hub, Gemma": (keras_hub("GemmaBackbone", head_dim=256), half(256, out_pairing="interleaved")),
    "keras-hub, GPT-NeoX": (
        keras_hub("GPTNeoXBackbone", num_heads=32, num_query_heads=None, rotary_percentage=0.25),
        half(64, rotary_dim=16),
    ),
    "keras-hub, Phi-3": (keras_hub("Phi3Backbone", **KERAS_BASE, rope_scaling_type=None), half(64, base=5e5)),
    "keras-hub, Phi-3 with factors": (
        keras_hub("Phi3Backbone", **KERAS_SU),
        half(64, scaling=ra.LongRoPE(SHORT, LONG, 4096, factor=32.0)),
    ),
    "MLC, zeros": (
        mlc("mistral", position_embedding_base=0, head_dim=0, num_key_value_heads=0, rope_theta=1e6),
        half(64, base=1e6),
    ),
    "MLC, all zeros": (mlc("qwen3", position_embedding_base=0, head_dim=0), half(64)),
    "MLC, Phi-3 with factors": (
        mlc(
            "phi3", rope_scaling=MLC_SU, max_position_embeddings=131072, original_max_position_embeddings=4096
        ),
        half(64, base=5e5, scaling=ra.LongRoPE(SHORT, LONG, 4096, factor=32.0)),
    ),
    "TensorRT-LLM": (tensorrt(rotary_scaling=LLAMA3_RULE), LONG_LLAMA3),
    "TensorRT-LLM, GPT-J": (tensorrt(**GPTJ, rotary_base=10000.0), ra.RoPE(64, rotary_dim=32)),
    "TensorRT-LLM, linear": (
        tensorrt(rotary_pct=0.5, rotary_scaling={"type": "linear", "factor": 2.0}),
        half(64, base=5e5, rotary_dim=32, scaling=ra.Linear(2.0)),
    ),
    "TensorRT-LLM, an engine": (
        {"pretrained_config": tensorrt(), "build_config": {}, "version": "1.0"},
        half(64, base=5e5),
    ),
}


@pytest.mark.parametrize("case", ENGINES)
def test_a_config_of_an_engine_is_no_default(case):
    config, expected = ENGINES[case]
    for typed in (config, {"model_type": "llama", **config}):
        reading = read(typed)
        assert reading.rope == expected
        assert reading.inferred["format"].startswith(case.partition(",")[0])
        assert reading.notes == ()


GENAI = {"model": {"type": "llama", "context_length": 131072, "decoder": {"head_size": 64}}, "search": {}}
REFUSED_ENGINES = {
    "genai_config.json": GENAI,
    "mlc-chat-config.json of the model type 'cohere'": mlc("cohere"),
    "keras-hub's class 'Gemma4Backbone', which is not read; give the config.json of the model's": keras_hub(
        "Gemma4Backbone"
    ),
    "rope_low_freq_factor is missing: keras-hub needs all or none of": keras_hub(
        "Llama3Backbone", **{k: v for k, v in KERAS_LLAMA3.items() if k != "rope_low_freq_factor"}
    ),
    "must be 'su', or null": keras_hub("Phi3Backbone", **{**KERAS_SU, "rope_scaling_type": "yarn"}),
    "'rope_max_wavelength' is unknown: it may change the rotation; read": keras_hub(
        "GemmaBackbone", head_dim=256, rope_max_wavelength=5e5
    ),
    "an engine of an older TensorRT-LLM": {"builder_config": {"num_heads": 32}, "plugin_config": {}},
    "rope_local_base_freq is missing": tensorrt(architecture="Gemma3ForCausalLM"),
    "keras-hub's class 'LlamaCausalLM'": keras_hub("LlamaCausalLM"),
    "takes 'default', 'llama3'": mlc("llama", rope_scaling={"rope_type": "longrope"}),
    "takes 'default', 'longrope'": mlc("phi3", rope_scaling={"type": "linear", "factor": 2.0}),
    "position_embedding_type 'alibi'": tensorrt(position_embedding_type="alibi"),
    "with latent attention": tensorrt(kv_lora_rank=512),
    "rope_low_freq_factor and a factor": keras_hub("LlamaBackbone", rope_scaling_factor=2.0, **KERAS_LLAMA3),
    "older versions of keras-hub divide": keras_hub("LlamaBackbone", rope_position_scaling_factor=4.0),
    "config is 'x'; it must be an object": {**keras_hub("LlamaBackbone"), "config": "x"},
    "rotary_scaling is 4": tensorrt(rotary_scaling=4),
    "rotary_scaling is a bytes": tensorrt(rotary_scaling=b"1"),
    "timm's config.json": {"architecture": "vit", "pretrained_cfg": {"input_size": [3, 224, 224]}},
    "LitGPT's config": {"hf_config": {"name": "x"}, "n_embd": 64, "n_head": 4, "rope_base": 10000},
    "Qualcomm's genie_config.json": {"dialog": {"engine": {"model": {}}}},
    "CTranslate2's config.json": {"layer_norm_epsilon": 1e-5, "unk_token": "<unk>"},
    "config of OpenCLIP": {"model_cfg": {"vision_cfg": {}, "text_cfg": {}}},
}


@pytest.mark.parametrize("text", REFUSED_ENGINES)
def test_an_engine_that_states_no_rope_is_refused_by_name(text):
    for typed in (REFUSED_ENGINES[text], {"model_type": "llama", **REFUSED_ENGINES[text]}):
        refuse(re.escape(text), typed)


LINEAR = {"type": "linear", "factor": 8.0}
BY_EIGHT = ra.Linear(8.0)
# Gemma 3, whose every sixth layer has full attention: gemma3_backbone.py of keras-hub; models/gemma/model.py
# and layers/attention.py of TensorRT-LLM, which scales both. The ropes of a full and a sliding layer.
GEMMA3_SIZES = {"architecture": "Gemma3ForCausalLM", "head_size": 256, "rotary_base": 1e6}
GEMMA3_SIZES |= {"rope_local_base_freq": 1e4, "_sliding_window_pattern": 6}
KERAS_GEMMA3 = {"head_dim": 256, "use_sliding_window_attention": True}
GEMMA3 = {
    "TensorRT-LLM": (tensorrt(**GEMMA3_SIZES), half(256, base=1e6), half(256)),
    "TensorRT-LLM, scaled": (
        tensorrt(**GEMMA3_SIZES, rotary_scaling=LINEAR),
        half(256, base=1e6, scaling=BY_EIGHT),
        half(256, scaling=BY_EIGHT),
    ),
    "keras-hub": (
        keras_hub("Gemma3Backbone", **KERAS_GEMMA3, global_rope_scaling_factor=8.0),
        half(256, base=1e6, scaling=BY_EIGHT),
        half(256),
    ),
    "keras-hub, without windows": (
        keras_hub("Gemma3Backbone", head_dim=256, use_sliding_window_attention=False),
        half(256, base=1e6),
        half(256, base=1e6),
    ),
}


@pytest.mark.parametrize("case", GEMMA3)
def test_the_layers_of_gemma_3_in_an_engine(case):
    config, full, sliding = GEMMA3[case]
    for typed in (config, {"model_type": "gemma3", **config}):
        for index in range(16):
            reading = read(typed, layer_type=index)
            assert reading.rope == (sliding if (index + 1) % 6 else full)
            assert reading.notes == ()


def test_rules_that_mlc_does_not_read_are_noted():
    """llama_model.py needs a rope_type, phi3_model.py a type, and mistral_model.py has no rope_scaling."""
    for name, rule in (("llama", LINEAR), ("phi3", {"rope_type": "longrope"}), ("mistral", LLAMA3_RULE)):
        reading = read(mlc(name, rope_scaling=rule))
        assert reading.rope == half(64, base=5e5)
        assert any(note.startswith("rope_scaling is not used") for note in reading.notes)


# Objects and other names that state sizes or a base, which the class of a known model type does not read.
UNREAD = [
    {"params": {"hidden_size": 2048, "num_attention_heads": 32}},
    {"hidden_size": 2048, "num_attention_heads": 32, "attention": {"rope_theta": 5e5}},
    {"net": {"blocks": {"attention": {"head_dim": 64}}}},
    {"model_config": {"hidden_size": 2048}},
    {"n_embd": 2048, "n_head": 32},
    {"hidden_dim": 2048, "num_query_heads": 32},
    # Names in other spellings, numbers in texts, objects in lists, and objects after many others.
    {"params": {"hidden-size": 2048}},
    {"params": {"hiddenSize": "2048"}},
    {"params": {"model.rope-theta": "5e5"}},
    {"hidden_size": 2048, "num_attention_heads": 32, "layers": [{"attention": [{"rope_theta": 5e5}]}]},
    {"model_moe": {"num_heads": 32}},
    {"linear_attn_config": {"head_dim": 64}},
    {"compressed_model": {"head_dim": 64}},
    {"net": {**{f"object_{index}": {"a": 1} for index in range(200)}, "params": {"head_dim": 64}}},
    {f"object_{index}": {"a": 1} for index in range(200)} | {"params": {"head_dim": 64}},
    # Keys of GGUF files.
    {"llama.rope.freq_base": 5e5},
    {"llama.embedding_length": 2048, "llama.attention.head_count": 32},
    {"llama": {"rope": {"freq_base": 5e5}}},
    # The base has other names next to the sizes.
    {"hidden_size": 2048, "num_attention_heads": 32, "position_embedding_base": 5e5},
    {"hidden_size": 2048, "num_attention_heads": 32, "theta": 5e5},
    # A share, and a rule.
    {"params": {"rotary-pct": 0.25}},
    {"rope_theta": 5e5, "params": {"rope_scaling": {"type": "linear", "factor": 4.0}}},
]
# Types with a text part, and names of objects that no class reads as this part.
COMPOSITES = (
    "llava",
    "llava_next",
    "paligemma",
    "mllama",
    "qwen2_vl",
    "idefics3",
    "mistral3",
    "internvl",
    "janus",
)
OTHER_TEXTS = ("lm", "llm", "decoder", "base_model", "gpt", "hf", "thinker", "talker", "model")
# Objects of published configs, which are of other parts of the model.
OTHER_OBJECTS = {"quantization_config": {"bits": 4, "dim": 1}, "generation_config": {"head_dim": 3}}
OTHER_OBJECTS |= {"vision_config": {"hidden_size": 9}, "task_specific_params": {"a": {"num_heads": 3}}}
OTHER_OBJECTS |= {"mtp_config": {"hidden_size": 9}, "speech_config": {"hidden_size": 9, "rope_theta": 3}}
OTHER_OBJECTS |= {
    "net": {"image_tower": {"hidden_size": 9}},
    "sizes": {"hidden_size": None, "theta": "small"},
}
OTHER_OBJECTS |= {"label2id": {"theta": 3}, "rows": [1, "a", [2]], "mm_projector": {"hidden-size": 9}}


def test_defaults_never_take_the_place_of_stated_values():
    for keys in UNREAD:
        refuse("which the model's class does not read: its defaults", model("llama", **keys))
    for model_type in COMPOSITES:
        for name in OTHER_TEXTS:
            texts = {
                "vision_config": {"hidden_size": 64},
                f"{name}_config": {"hidden_size": 64, "rope_theta": 5e5},
            }
            refuse(f"its object '{name}_config' states", model(model_type, **texts))
    for keys in (OTHER_OBJECTS, {}):
        assert read(model("llama", **keys)).rope == half(128)
        assert read(model("llava", text_config=model("llama"), **keys)).rope == half(128)


def test_a_base_of_another_name_that_is_the_default_is_read():
    assert rope(
        model("llama", hidden_size=2048, num_attention_heads=32, position_embedding_base=1e4)
    ) == half(64)


def test_keys_of_a_gguf_file_in_a_dict_are_refused_by_name():
    keys = {"general.architecture": "llama", "llama.rope.freq_base": 5e5, "llama.embedding_length": 2048}
    for config in (keys, model("llama", **keys), model("llama", model_info=keys), {"model_info": keys}):
        refuse("give the path of the GGUF file, or the config.json", config)


STATED_WIDTH = {"rotary_dim": 32, "rotary_base": 500.0}
UNKNOWN = model("mine", num_hidden_layers=4, head_dim=64, no_rope_layers=[1, 0, 1, 0])
SMOLLM = model("smollm3", num_hidden_layers=4, hidden_size=64, num_attention_heads=2, rope_theta=5e5)
SMOLLM |= {"no_rope_layer_interval": 2, "rope_scaling": {"rope_type": "linear", "factor": 2.0}}
# Configs whose layers 1 and 3 do not rotate, with keys that only the others read; the rope of the others.
EVERY_SECOND = {
    "Meta": ({**LLAMA4, **SCALED, "rope_scaling_factor": 8}, ra.RoPE(32, base=5e5, **llama3(8, 1))),
    "ExecuTorch": ({**STOCK_SCALED, "no_rope_layer_interval": 2}, ra.RoPE(32, base=1e6, **llama3(8, 4))),
    "ExecuTorch's halves": (
        {**EXECUTORCH, "no_rope_layer_interval": 2, "partial_rotary_factor": 0.5},
        half(32, base=1e6, rotary_dim=16),
    ),
    "SmolLM3": (SMOLLM, half(32, base=5e5, scaling=ra.Linear(2.0))),
    "an unknown model's share": ({**UNKNOWN, "rotary_pct": 0.5}, half(64, rotary_dim=32)),
    "an unknown model's width": ({**UNKNOWN, **STATED_WIDTH}, half(64, base=500.0, rotary_dim=32)),
}


@pytest.mark.parametrize("case", EVERY_SECOND)
def test_a_layer_without_rotation_has_keys_that_only_others_read(case):
    config, expected = EVERY_SECOND[case]
    (first, rotated), (second, identity) = read_layers(config)
    assert (first, second, identity.rope.rotary_dim) == ((0, 2), (1, 3), 0)
    assert rotated.rope == expected
    refuse("'rope_thetta' is unknown", {**config, "rope_thetta": 1e4}, layer_type=1)


VISION = {"hidden_size": 64, "num_attention_heads": 2, "rope_theta": 10000.0, "image_size": 64}


def test_the_vision_encoder_of_mistral():
    """The height has the even frequencies of one series, and the width the odd ones."""
    for encoder in ({"vision_encoder": VISION}, {"multimodal": {"vision_encoder_args": VISION}}):
        assert rope({**MISTRAL, **encoder}, part="vision") == ra.RoPE(32, axes=ra.Axes.even_odd(32))
        assert rope({**MISTRAL, **encoder}, part="text") == rope(MISTRAL)


def test_the_indexer_of_deepseek_pairs_halves():
    indexed = {**DEEPSEEK, "index_head_dim": 128}
    for config, rule in ((indexed, yarn(40, 4096)), ({**indexed, "max_seq_len": 4096}, {})):
        assert rope(config, part="indexer") == half(128, rotary_dim=32, **rule)
        assert rope(config, part="text") == ra.RoPE(32, **rule)
    refuse("has no part 'indexer'", DEEPSEEK, part="indexer")


# test_the_command_explain_puts_facts_and_doubts_apart has others.
NOTES = [
    (OLD_MISTRAL, "base is 10000, as in Mistral 7B v0.1"),
    ({**MISTRAL, "rope_theta": None}, "1000000 is mistral-inference's default"),
    ({**MISTRAL, "model_type": "mistral"}, "the keys are of mlx-examples' config.json"),
    (LLAMA2, "10000 is the constant of the code of Llama 1 and 2"),
    ({**LLAMA3, **SCALED}, r"Llama 3.2 \(1B and 3B\) state 32"),
    ({**STOCK, "partial_rotary_factor": 0.5}, "partial_rotary_factor is not used"),
    ({**EXECUTORCH, **SCALED}, "use_scaled_rope is not used"),
    ({**EXECUTORCH, "local_rope_theta": 10000.0}, "local_rope_theta is not used"),
]


@pytest.mark.parametrize(("config", "text"), NOTES, ids=lambda text: text if type(text) is str else "")
def test_noted(config, text):
    assert any(re.search(text, note) for note in read(config).notes)


def diffusers(name, **keys):
    return {"_class_name": name, **keys}


OTHER_NAMES = "the sizes have the names of another format"
HF_LLAMA3 = {**LLAMA3, "model_type": "llama", "architectures": ["LlamaForCausalLM"]}
FLUX, KANDINSKY = "FluxTransformer2DModel", "Kandinsky5Transformer3DModel"
REFUSED = [
    (MISTRAL, "params.json has no part 'vision'; give one of: 'text'", {"part": "vision"}),
    (model("mistral", dim=64, n_layers=4, n_heads=2), f"is 'mistral', but {OTHER_NAMES} .* give the config"),
    (HF_LLAMA3, f"model_type is 'llama', but {OTHER_NAMES}"),
    ({**MISTRAL, "yarn": {**YARN, "gamma": 2}}, "unknown keys gamma"),
    ({**MISTRAL, "yarn": 16}, "yarn is no object"),
    ({**MISTRAL, "yarn": {"beta": 32}}, "yarn.factor is missing"),
    ({**EXECUTORCH, "use_hf_rope": "yes"}, "use_hf_rope is 'yes'"),
    ({**LLAMA3, "rope_theta": None}, "which is no base; state .* was trained with.$"),
    ({**MISTRAL, "model_type": "mamba", "n_groups": 8}, "Mamba model, which has no rotation"),
    ({"dim": 64, "n_layers": 4, "rope_head_dim": 64, "compress_ratios": [0, 4]}, "DeepSeek-V4, which is not"),
    (diffusers("FluxPipeline", transformer=["diffusers", "FluxTransformer2DModel"]), "folder 'transformer'"),
    (diffusers("AnyFlow", vae=["diffusers", "VAE"], scheduler=[None, None]), "folder 'transformer'"),
    (diffusers("AutoencoderKLFlux2", down_block_types=["A", "B"]), "is no transformer of diffusers"),
    (diffusers("MochiTransformer3DModel"), "learned weights .* RoPE has no field for it"),
    (diffusers(FLUX, attention_head_dim=64), "axes_dims_rope sums to 128, and a head has 64"),
    (diffusers(FLUX, axes_dims_rope=128), "axes_dims_rope is 128; give a list"),
    (diffusers(KANDINSKY), f"{KANDINSKY} has no part 'audio'; give one of: 'text'", {"part": "audio"}),
]


@pytest.mark.parametrize("row", REFUSED, ids=lambda row: row[1])
def test_refused(row):
    config, message, *which = row
    refuse(message, config, **dict(*which))


FORMATS = [MISTRAL, DEEPSEEK, LLAMA3, EXECUTORCH, GPT_OSS]
OWN = {"use_hf_rope", "rope_scaling_factor", "rope_ntk_alpha", "rope_ntk_beta"}


@pytest.mark.parametrize("config", FORMATS, ids=len)
@pytest.mark.parametrize("key", ["model_type", "architectures", "transformers_version", "auto_map"])
def test_a_config_of_hugging_face_is_never_another_format(config, key):
    value = "qwen2" if key == "model_type" else ["LlamaForCausalLM"]
    shared = {k: v for k, v in config.items() if k not in OWN}
    shared |= {"head_dim": 32, "rope_theta": 10000.0, "rope_interleave": True}  # the latter: latent attention
    assert "format" not in read({**shared, key: value}).inferred
    with contextlib.suppress(ConfigError):  # a key that is rotary in no model of Hugging Face
        assert "format" not in read({**config, key: value}).inferred


REQUIRED = {"dim", "n_layers", "n_heads", "norm_eps", "inter_dim", "kv_lora_rank", "initial_context_length"}


@pytest.mark.parametrize("config", FORMATS, ids=len)
def test_a_format_needs_its_keys(config):
    """Without one of a format's keys, a config of no known model is refused or noted."""
    for key in REQUIRED & config.keys():
        with contextlib.suppress(ConfigError):
            inferred = read({k: v for k, v in config.items() if k != key}).inferred
            assert "format" not in inferred
            assert "convention" in inferred


FILES = {
    "model.safetensors": "a file of weights",
    "pytorch_model.bin": "a file of weights",
    "model.safetensors.index.json": "a file of weights",
    "tokenizer.json": "a tokenizer; give the config.json",
    "generation_config.json": "settings of text generation; give the config.json",
    "adapter_config.json": "a LoRA adapter; give the config.json of its base model",
    "model_index.json": "a pipeline of diffusers; give the config.json of its folder 'transformer'",
    "preprocessor_config.json": "an image processor; give the config.json",
}


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_is_no_config_is_named(name, tmp_path):
    (tmp_path / name).write_text(json.dumps({"rope_theta": 10000.0, "head_dim": 64}), encoding="utf-8")
    with pytest.raises(ConfigError, match=FILES[name]):
        read(tmp_path / name)


@pytest.mark.parametrize(
    "name", ["params.json", "transformer/config.json", "original/config.json", "model.gguf"]
)
def test_a_folder_names_the_config_that_it_has(name, tmp_path):
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text("{}", encoding="utf-8")
    refuse(f"no config.json; give the path of its {name}", tmp_path)


def explained(config, folder, name="params.json"):
    """Return the words of the command explain."""
    (folder / name).write_text(json.dumps(config), encoding="utf-8")
    return " ".join("\n".join(report(str(folder / name), None, None, None)).split())


def test_the_command_explain_puts_facts_and_doubts_apart(tmp_path):
    text = explained(diffusers("LTXVideoTransformer3DModel", num_attention_heads=2), tmp_path)
    assert "The frequencies are listed one by one" in text
    text = explained({**DEEPSEEK, "index_head_dim": 128}, tmp_path)
    assert re.search("Notes .*mscale is not used.*the sparse attention's indexer.* Doubtful: nothing$", text)
    text = explained({**NO_BASE, "llama_4_scaling": {"beta": 0.1}}, tmp_path)
    assert re.search("Notes .*llama_4_scaling.* Doubtful: check .*rope_theta is not stated", text)
    assert "params.json: Mistral's params.json" in text
    assert "Pair i is features 2i and 2i + 1" in text


def test_fractions_of_ltx_in_float64_are_exact():
    """The angles are those of diffusers' LTXVideoRotaryPosEmbed, by mpmath: of up to 5000π radians."""
    rope_of_ltx = ra.RoPE.from_config({"_class_name": "LTXVideoTransformer3DModel"})
    units = [Fraction(8, 25 * 20), Fraction(32, 2048), Fraction(32, 2048)]
    places = [
        [2 * n * unit - 1 for n, unit in zip(row, units, strict=True)] for row in [(1, 5, 7), (14, 0, 21)]
    ]
    tables = rope_of_ltx.rotation(np.array(places, dtype=float), like=np.zeros((2, 2048), np.float32))
    real = oracle.CONTEXT.mpf
    omegas = [oracle.CONTEXT.power(10_000, real(step) / 340) * oracle.CONTEXT.pi / 2 for step in range(341)]
    for row, place in enumerate(places):
        exact = [oracle.cos_sin(real(g.numerator) / g.denominator, omega) for omega in omegas for g in place]
        ours = np.stack([tables.cos[row], tables.sin[row]], axis=-1)
        assert np.abs(ours - [(1, 0), *exact]).max() < 2.2e-7


SIZES_OF_DIFFUSERS = dict.fromkeys(("hidden_size", "embed_dim", "dit_dim", "dim"), 256)
SIZES_OF_DIFFUSERS |= dict.fromkeys(("num_attention_heads", "num_heads", "dit_heads", "n_heads"), 2)
# Keys that these classes need.
NEEDED = {
    "HiDreamImageTransformer2DModel": {"axes_dims_rope": [16, 56, 56]},
    "Lumina2Transformer2DModel": {"axes_dim_rope": [32, 48, 48]},
    "OmniGenTransformer2DModel": {"rope_scaling": {"short_factor": [1.0] * 64, "long_factor": [1.0] * 64}},
    "PRXTransformer2DModel": {"axes_dim": [64, 64]},
    "SanaWMTransformer3DModel": {"linear_head_dim": 112},
}


@pytest.mark.parametrize("name", sorted(_diffusers.table()["classes"]))
def test_no_class_of_diffusers_leaves_a_doubt(name, tmp_path):
    text = explained(diffusers(name, **SIZES_OF_DIFFUSERS, **NEEDED.get(name, {})), tmp_path, "config.json")
    assert re.search(" Notes .* Doubtful: nothing$", text)


def test_the_divisors_of_a_gguf_file_are_of_layers_without_a_window(tmp_path):
    """More files are in tests/edge/test_gguf_configs.py."""
    keys = {"general.architecture": "gemma3", "gemma3.block_count": 6, "gemma3.rope.freq_base": 1e6}
    keys |= {"gemma3.attention.sliding_window": 512, "gemma3.attention.key_length": 4}
    path = gguf_file(tmp_path / "m.gguf", keys, {"other": [7.0] * 9, "rope_freqs.weight": [1.0, 4.0]})
    assert rope(path, layer_type=0) == half(4)
    assert rope(path, layer_type=5).frequencies == (1.0, 1e-3 / 4)


DIFFUSERS = {
    "FluxTransformer2DModel": ra.RoPE(128, axes=ra.Axes.axial(16, 56, 56)),
    "WanTransformer3DModel": ra.RoPE(128, axes=ra.Axes.axial(44, 42, 42)),
    "HunyuanVideoTransformer3DModel": ra.RoPE(128, base=256, axes=ra.Axes.axial(16, 56, 56)),
    "CogView4Transformer2DModel": half(40, axes=ra.Axes.axial(20, 20)),
    "AllegroTransformer3DModel": half(96, axes=ra.Axes.axial(32, 32, 32, blocks=True)),
    "CogVideoXTransformer3DModel": ra.RoPE(64, rotary_dim=0),
    "SD3Transformer2DModel": ra.RoPE(64, rotary_dim=0),
}


@pytest.mark.parametrize("name", DIFFUSERS)
def test_diffusers(name):
    """A few classes; the session `edge` compares every class with the library's own."""
    sizes = {"attention_head_dim": 64} if name.startswith("SD3") else {}
    added = {"_class_name": name, "_diffusers_version": "0.42.1", "_name_or_path": "a/transformer"}
    reading = read({**added, **sizes})
    assert reading.rope == DIFFUSERS[name]
    assert (reading.model_type, reading.inferred["format"]) == (name, "diffusers")
    assert any(note.startswith("coordinates are") or note.endswith("no rotation") for note in reading.notes)


def test_a_model_of_diffusers_has_its_config_in_an_attribute():
    class FluxTransformer2DModel:
        config_name, config = "config.json", {"attention_head_dim": 16, "axes_dims_rope": [4, 6, 6]}

    assert read(FluxTransformer2DModel()).rope == ra.RoPE(16, axes=ra.Axes.axial(4, 6, 6))


def test_the_config_attribute_of_a_model_of_diffusers_is_refused():
    class FrozenDict(dict):
        __module__ = "diffusers.configuration_utils"

    for config in (FrozenDict(head_dim=128, rope_theta=1e6), {"head_dim": 64, "_use_default_values": []}):
        with pytest.raises(ConfigError, match="give the model itself, or its config"):
            read(config)
    named = FrozenDict(_class_name="FluxTransformer2DModel", _use_default_values=[])
    assert read(named).rope == DIFFUSERS["FluxTransformer2DModel"]


HOSTILE = (None, "x", [], {}, -1, 0, 0.5, math.inf, math.nan, True, [1, "a"], [[1]], 10**30, {"a": []})
WHOLE = {
    "Mistral": {**MISTRAL, **LATENT, "yarn": YARN, "vision_encoder": {"hidden_size": 64}},
    "DeepSeek": {**DEEPSEEK, "max_seq_len": 9999, **STATED_BY_DEEPSEEK},
    "Llama 3": {**LLAMA3, **SCALED},
    "Llama 4": {**LLAMA4, **STATED_BY_LLAMA4},
    "ExecuTorch": {**EXECUTORCH, "partial_rotary_factor": 0.5, "no_rope_layer_interval": 2},
    "gpt-oss": GPT_OSS,
}


@pytest.mark.parametrize("name", [*WHOLE, *_diffusers.table()["classes"]])
def test_any_value_is_read_or_refused(name):
    if name in WHOLE:
        config = WHOLE[name]
        assert rope(config, layer_type=0).rotary_dim
    else:
        config = diffusers(
            name, **{**SIZES_OF_DIFFUSERS, **_diffusers.read_diffusers(diffusers(name)).defaults}
        )
    for key in config:
        for value in HOSTILE:
            with contextlib.suppress(ConfigError):
                read({**config, key: value}, layer_type=0)


@pytest.mark.parametrize("case", [*ENGINES, *GEMMA3])
def test_any_value_of_an_engine_is_read_or_refused(case):
    config = (ENGINES | GEMMA3)[case][0]
    for place in {"config", "model_config", "pretrained_config"} & config.keys() | {""}:
        inner = config[place] if place else config
        for key in inner:
            for value in (*HOSTILE, b"1", {"type": 1}, ["x"] * 32):
                changed = {**inner, key: value}
                with contextlib.suppress(ConfigError):
                    read({**config, place: changed} if place else changed, layer_type=0)
