"""Configs in formats that are not Hugging Face's, against formulas of their published code in float64.

The formulas are of mistralai/mistral-inference (rope.py), deepseek-ai/DeepSeek-V3 (inference/model.py),
meta-llama/llama-models (llama3 and llama4, model.py), pytorch/executorch (examples/models/llama, rope.py) and
openai/gpt-oss (gpt_oss/torch/model.py).
"""

from __future__ import annotations

import contextlib
import json
import math
import re

import numpy as np
import pytest

import rope_array as ra
from rope_array._command._config_report import report
from rope_array._config import _diffusers
from rope_array.config import ConfigError, read, read_layers

MISTRAL = {"dim": 64, "n_layers": 4, "head_dim": 32, "hidden_dim": 128, "n_heads": 2, "n_kv_heads": 1}
MISTRAL |= {"norm_eps": 1e-05, "vocab_size": 100, "rope_theta": 1000000.0}
YARN = {"factor": 16, "original_max_position_embeddings": 1024, "beta": 32, "alpha": 1}
LATENT = {
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 16,
    "qk_nope_head_dim": 16,
    "v_head_dim": 32,
}
DEEPSEEK = {"vocab_size": 100, "dim": 64, "inter_dim": 128, "moe_inter_dim": 32, "n_layers": 4, "n_heads": 2}
DEEPSEEK |= {"kv_lora_rank": 16, "qk_nope_head_dim": 16, "qk_rope_head_dim": 32, "dtype": "fp8"}
LLAMA2 = {"dim": 64, "multiple_of": 256, "n_heads": 2, "n_layers": 4, "norm_eps": 1e-05, "vocab_size": -1}
CODE_LLAMA = {"dim": 8192, "n_layers": 48, "n_heads": 64, "n_kv_heads": 8, "multiple_of": 256}
CODE_LLAMA |= {"ffn_dim_multiplier": 1.0, "norm_eps": 1e-5, "rope_theta": 1000000}
LLAMA3 = {**LLAMA2, "ffn_dim_multiplier": 1.3, "n_kv_heads": 1, "rope_theta": 500000.0}
LLAMA4 = {**LLAMA3, "nope_layer_interval": 2, "moe_args": {"num_experts": 16}, "use_qk_norm": True}
EXECUTORCH = {
    "dim": 64,
    "ffn_dim_multiplier": 1,
    "hidden_dim": 128,
    "n_heads": 2,
    "n_kv_heads": 1,
    "n_layers": 4,
}
EXECUTORCH |= {"norm_eps": 1e-05, "rope_theta": 1000000.0, "use_scaled_rope": False, "vocab_size": 100}
EXECUTORCH |= {"use_hf_rope": True, "attention_qkv_bias": False}
# mlx-examples adds a model_type of Hugging Face.
MLX_LLAMA = {"dim": 64, "n_heads": 2, "n_layers": 4, "n_kv_heads": 1, "vocab_size": 100, "norm_eps": 1e-05}
MLX_LLAMA |= {"hidden_dim": 128, "model_type": "llama"}
GPT_OSS = {"num_hidden_layers": 4, "num_experts": 4, "vocab_size": 100, "hidden_size": 64, "head_dim": 32}
GPT_OSS |= {"num_attention_heads": 2, "num_key_value_heads": 1, "sliding_window": 128, "rope_theta": 150000.0}
GPT_OSS |= {"initial_context_length": 4096, "rope_scaling_factor": 32.0, "rope_ntk_alpha": 1.0}
GPT_OSS["rope_ntk_beta"] = 32.0


def without_base(config, **more):
    return {key: value for key, value in config.items() if key != "rope_theta"} | more


def series(base, width):
    return base ** (-np.arange(0, width, 2) / width)


def yarn(base, width, factor, trained, fast=32, slow=1, whole=True):
    """Return the frequencies of YaRN: stretched by the factor below `slow` turns, kept above `fast`."""

    def number(turns):
        return width * math.log(trained / (turns * 2 * math.pi)) / (2 * math.log(base))

    low, high = number(fast), number(slow)
    if whole:
        low, high = max(math.floor(low), 0), min(math.ceil(high), width - 1)
    kept = 1 - np.clip((np.arange(width // 2) - low) / (high - low), 0, 1)
    omegas = series(base, width)
    return omegas / factor * (1 - kept) + omegas * kept


def scaled(omegas, factor, high, low=1, trained=8192):
    """Return the frequencies after Meta's apply_scaling."""
    result = []
    for omega in omegas:
        length = 2 * math.pi / omega
        if length < trained / high:
            result.append(omega)
        elif length > trained / low:
            result.append(omega / factor)
        else:
            smooth = (trained / length - low) / (high - low)
            result.append((1 - smooth) * omega / factor + smooth * omega)
    return np.array(result)


def gain(factor):
    return 0.1 * math.log(factor) + 1


# The config, the frequencies, and what is not interleaved, without amplitude, over the whole head.
CASES = {
    "Mistral": (MISTRAL, series(1e6, 32), {}),
    "Mistral, not Hugging Face's model_type": ({**MISTRAL, "model_type": "transformer"}, series(1e6, 32), {}),
    "Mistral's yarn": ({**MISTRAL, "yarn": YARN}, yarn(1e6, 32, 16, 1024), {"amplitude": gain(16)}),
    "Mistral's yarn without a factor on cos": (
        {**MISTRAL, "yarn": {**YARN, "apply_scale": False, "beta": 8, "alpha": 4}},
        yarn(1e6, 32, 16, 1024, 8, 4),
        {},
    ),
    "Mistral's latent attention": (
        {**MISTRAL, **LATENT, "yarn": YARN},
        yarn(1e6, 16, 16, 1024),
        {"head": 16},
    ),
    "Mistral without a base": (without_base(MISTRAL), series(1e6, 32), {}),
    "Mistral with a null base": ({**MISTRAL, "rope_theta": None}, series(1e6, 32), {}),
    "Mistral 7B v0.1": (without_base(MISTRAL, sliding_window=4096), series(1e4, 32), {}),
    "DeepSeek": (DEEPSEEK, yarn(1e4, 32, 40, 4096), {}),
    "DeepSeek, short": ({**DEEPSEEK, "max_seq_len": 4096}, series(1e4, 32), {}),
    "DeepSeek, stated": (
        {
            **DEEPSEEK,
            "original_seq_len": 2048,
            "rope_factor": 8,
            "beta_fast": 16,
            "beta_slow": 2,
            "mscale": 0.7,
        },
        yarn(1e4, 32, 8, 2048, 16, 2),
        {},
    ),
    "DeepSeek V3.2": ({**DEEPSEEK, "index_head_dim": 128, "index_topk": 64}, yarn(1e4, 32, 40, 4096), {}),
    "Llama 2": (LLAMA2, series(1e4, 32), {}),
    "Llama, Code": (CODE_LLAMA, series(1e6, 128), {"head": 128}),
    "Llama 3": (LLAMA3, series(5e5, 32), {}),
    "Llama 3.1": ({**LLAMA3, "use_scaled_rope": True}, scaled(series(5e5, 32), 8, 4), {}),
    "Llama 4": (LLAMA4, series(5e5, 32), {}),
    "Llama 4 without a base": (without_base(LLAMA4), series(5e5, 32), {}),
    "Llama 4 Scout": ({**LLAMA4, "use_scaled_rope": True}, scaled(series(5e5, 32), 16, 1.0000001), {}),
    "Llama 4, stated": (
        {**LLAMA4, "use_scaled_rope": True, "rope_scaling_factor": 8, "rope_high_freq_factor": 4},
        scaled(series(5e5, 32), 8, 4),
        {},
    ),
    "mlx-examples, Mistral": ({**MISTRAL, "model_type": "mistral"}, series(1e6, 32), {}),
    "mlx-examples, Mistral without a base": (
        without_base(MISTRAL, model_type="mistral"),
        series(1e4, 32),
        {},
    ),
    "mlx-examples, Mixtral": (
        without_base(MISTRAL, model_type="mixtral", moe={"num_experts": 8}),
        series(1e6, 32),
        {},
    ),
    "Mistral, a newer model_type": ({**MISTRAL, "model_type": "mistral3"}, series(1e6, 32), {}),
    "mlx-examples, Llama": (MLX_LLAMA, series(1e4, 32), {}),
    "mlx-examples, Llama, stated": (
        {**MLX_LLAMA, "head_dim": 16, "rope_theta": 5e5, "rope_traditional": True},
        series(5e5, 16),
        {"head": 16},
    ),
    "mlx-examples, Llama from Hugging Face": (
        {**MLX_LLAMA, "rope_traditional": False},
        series(1e4, 32),
        {"pairing": "half"},
    ),
    "mlx-examples, Llama 3": (
        {**LLAMA3, "model_type": "llama", "use_scaled_rope": True},
        scaled(series(5e5, 32), 8, 4),
        {},
    ),
    "DeepSeek, a model_type": ({**DEEPSEEK, "model_type": "deepseek_v3"}, yarn(1e4, 32, 40, 4096), {}),
    "ExecuTorch": (EXECUTORCH, series(1e6, 32), {"pairing": "half"}),
    "ExecuTorch, a part": (
        {**EXECUTORCH, "partial_rotary_factor": 0.5},
        series(1e6, 16),
        {"pairing": "half"},
    ),
    "ExecuTorch, a stated head": (
        {**EXECUTORCH, "head_dim": 48},
        series(1e6, 48),
        {"pairing": "half", "head": 48},
    ),
    "ExecuTorch, stock": ({**EXECUTORCH, "use_hf_rope": False}, series(1e6, 32), {}),
    "ExecuTorch, stock and scaled": (
        {**EXECUTORCH, "use_hf_rope": False, "use_scaled_rope": True, "rope_scale_factor": 32},
        scaled(series(1e6, 32), 32, 4),
        {},
    ),
    "ExecuTorch, an older base": (
        without_base(EXECUTORCH, use_hf_rope=False, rope_freq_base=20000.0),
        series(2e4, 32),
        {},
    ),
    "ExecuTorch, a null base": (
        {**EXECUTORCH, "rope_theta": None, "rope_freq_base": 20000.0},
        series(2e4, 32),
        {"pairing": "half"},
    ),
    "ExecuTorch, no base": ({**EXECUTORCH, "rope_theta": None}, series(1e4, 32), {"pairing": "half"}),
    "gpt-oss": (GPT_OSS, yarn(150000, 32, 32, 4096, whole=False), {"pairing": "half", "amplitude": gain(32)}),
    "gpt-oss, no factor": ({**GPT_OSS, "rope_scaling_factor": 1.0}, series(150000, 32), {"pairing": "half"}),
    "gpt-oss, other turns": (
        {**GPT_OSS, "rope_ntk_alpha": 2.0, "rope_ntk_beta": 16.0, "initial_context_length": 2048},
        yarn(150000, 32, 32, 2048, 16, 2, whole=False),
        {"pairing": "half", "amplitude": gain(32)},
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_config_has_the_frequencies_of_its_code(case):
    config, frequencies, more = CASES[case]
    more = {"pairing": "interleaved", "amplitude": 1.0, "head": 32, **more}
    reading = read(config)
    rope = reading.rope
    np.testing.assert_allclose(rope.frequencies, frequencies, rtol=1e-7)
    assert (rope.head_dim, rope.rotary_start, rope.out_pairing) == (more["head"], 0, None)
    assert rope.pairing == more["pairing"]
    assert rope.amplitude == pytest.approx(more["amplitude"], rel=1e-12)
    assert "rope_type" not in reading.inferred
    name = case.replace("'", " ").replace(",", " ").split()[0]
    assert reading.inferred["format"].startswith("Meta" if name == "Llama" else name)


@pytest.mark.parametrize("config", [LLAMA4, {**EXECUTORCH, "no_rope_layer_interval": 2}])
def test_layers_without_rotation(config):
    rotates = {layers: bool(reading.rope.rotary_dim) for layers, reading in read_layers(config)}
    assert rotates == {(0, 2): True, (1, 3): False}


UNKNOWN = {"model_type": "mine", "num_hidden_layers": 4, "head_dim": 64, "no_rope_layers": [1, 0, 1, 0]}
RULE = {"rope_type": "linear", "factor": 2.0}
# Configs with keys that only the layers with rotation read, and the rope of these layers.
UNREAD_WITHOUT_ROTATION = {
    "Meta": (
        {**LLAMA4, "use_scaled_rope": True, "rope_scaling_factor": 8},
        ra.RoPE(32, base=5e5, scaling=ra.Llama3(8.0, 1.0, 1.0, 8192)),
    ),
    "ExecuTorch": (
        {**EXECUTORCH, "no_rope_layer_interval": 2, "use_hf_rope": False, "use_scaled_rope": True},
        ra.RoPE(32, base=1e6, scaling=ra.Llama3(8.0, 1.0, 4.0, 8192)),
    ),
    "ExecuTorch's halves": (
        {**EXECUTORCH, "no_rope_layer_interval": 2, "partial_rotary_factor": 0.5},
        ra.RoPE(32, base=1e6, rotary_dim=16, pairing="half"),
    ),
    "SmolLM3": (
        {"model_type": "smollm3", "no_rope_layer_interval": 2, "rope_scaling": RULE, "rope_theta": 5e5}
        | {"num_hidden_layers": 4, "hidden_size": 64, "num_attention_heads": 2},
        ra.RoPE(32, base=5e5, pairing="half", scaling=ra.Linear(2.0)),
    ),
    "a share of an unknown model": (
        {**UNKNOWN, "rotary_pct": 0.5},
        ra.RoPE(64, rotary_dim=32, pairing="half"),
    ),
    "a width of an unknown model": (
        {**UNKNOWN, "rotary_dim": 32, "rotary_base": 500.0},
        ra.RoPE(64, base=500.0, rotary_dim=32, pairing="half"),
    ),
}


@pytest.mark.parametrize("case", UNREAD_WITHOUT_ROTATION)
def test_a_layer_without_rotation_has_keys_that_only_others_read(case):
    config, rope = UNREAD_WITHOUT_ROTATION[case]
    (first, rotated), (second, identity) = read_layers(config)
    assert (first, second, identity.rope.rotary_dim) == ((0, 2), (1, 3), 0)
    assert rotated.rope == rope
    with pytest.raises(ConfigError, match="'rope_thetta' is unknown"):
        read({**config, "rope_thetta": 1e4}, layer_type=1)


@pytest.mark.parametrize("key", ["vision_encoder", "multimodal"])
def test_the_vision_encoder_of_mistral(key):
    """The height has the even frequencies of one series, and the width the odd ones."""
    vision = {"hidden_size": 64, "num_attention_heads": 2, "rope_theta": 10000.0, "image_size": 64}
    content = {"vision_encoder": vision, "multimodal": {"vision_encoder_args": vision}}[key]
    rope = read({**MISTRAL, key: content}, part="vision").rope
    omegas = series(1e4, 32)
    assert (rope.axes, rope.pairing) == (ra.Axes.even_odd(32), "interleaved")
    np.testing.assert_allclose(rope.frequencies, [*omegas[::2], *omegas[1::2]])
    assert read({**MISTRAL, key: content}, part="text").rope == read(MISTRAL).rope


@pytest.mark.parametrize("short", [True, False])
def test_the_indexer_of_deepseek_pairs_halves(short):
    config = {**DEEPSEEK, "index_head_dim": 128} | ({"max_seq_len": 4096} if short else {})
    indexer, main = read(config, part="indexer").rope, read(config, part="text").rope
    np.testing.assert_allclose(indexer.frequencies, series(1e4, 32) if short else yarn(1e4, 32, 40, 4096))
    assert (indexer.head_dim, indexer.rotary_start, indexer.rotary_dim) == (128, 0, 32)
    assert (indexer.pairing, indexer.out_pairing, indexer.amplitude) == ("half", None, 1.0)
    assert (main.pairing, main.frequencies) == ("interleaved", indexer.frequencies)
    with pytest.raises(ConfigError, match="has no part 'indexer'"):
        read(DEEPSEEK, part="indexer")


NOTES = {
    "mscale is of the softmax": (DEEPSEEK, "scale of the softmax"),
    "the indexer": ({**DEEPSEEK, "index_head_dim": 128}, "indexer rotates .* in half pairs"),
    "llama_4_scaling": ({**MISTRAL, "llama_4_scaling": {"beta": 0.1}}, "scales the queries"),
    "no base of Mistral": (without_base(MISTRAL), "1000000 is mistral-inference's default"),
    "an older base of Mistral": (
        without_base(MISTRAL, sliding_window=4096),
        "base is 10000, as in Mistral 7B v0.1",
    ),
    "a null base of Mistral": ({**MISTRAL, "rope_theta": None}, "1000000 is mistral-inference's default"),
    "a model_type": ({**MISTRAL, "model_type": "mistral"}, "but the keys are of mlx-examples' config.json"),
    "no base of Meta": (LLAMA2, "10000 is the constant of the code of Llama 1 and 2"),
    "a factor that is not stated": ({**LLAMA3, "use_scaled_rope": True}, r"Llama 3.2 \(1B and 3B\) state 32"),
    "an unread share": (
        {**EXECUTORCH, "use_hf_rope": False, "partial_rotary_factor": 0.5},
        "partial_rotary_factor is not used",
    ),
    "an unread rule": ({**EXECUTORCH, "use_scaled_rope": True}, "use_scaled_rope is not used"),
    "an unread base": ({**EXECUTORCH, "local_rope_theta": 10000.0}, "local_rope_theta is not used"),
}


@pytest.mark.parametrize("case", NOTES)
def test_notes(case):
    config, text = NOTES[case]
    assert any(re.search(text, note) for note in read(config).notes)


REFUSED = {
    "a part": ({**MISTRAL}, {"part": "vision"}, "params.json has no part 'vision'; give one of: 'text'"),
    "Mistral's keys in part": (
        {"model_type": "mistral", "dim": 64, "n_layers": 4, "n_heads": 2},
        {},
        "model_type is 'mistral', but the sizes have the names of another format .* give the config.json",
    ),
    "Meta's keys in a config of transformers": (
        {**LLAMA3, "model_type": "llama", "architectures": ["LlamaForCausalLM"]},
        {},
        "model_type is 'llama', but the sizes have the names of another format",
    ),
    "an unknown key of yarn": ({**MISTRAL, "yarn": {**YARN, "gamma": 2}}, {}, "unknown keys gamma"),
    "yarn that is no object": ({**MISTRAL, "yarn": 16}, {}, "yarn is no object"),
    "yarn without a factor": (
        {**MISTRAL, "yarn": {"original_max_position_embeddings": 1024}},
        {},
        "yarn.factor is missing",
    ),
    "a switch that is no bool": ({**EXECUTORCH, "use_hf_rope": "yes"}, {}, "use_hf_rope is 'yes'"),
    "a null base": ({**LLAMA3, "rope_theta": None}, {}, "which is no base; state .* was trained with.$"),
    "a misspelt key": ({**LLAMA3, "rope_thetta": 1e6}, {}, "'rope_thetta' is unknown"),
    "a layer": (LLAMA4, {"layer_type": 4}, "from 0 to 3"),
    "Mamba": ({**MISTRAL, "model_type": "mamba", "n_groups": 8}, {}, "Mamba model, which has no rotation"),
    "DeepSeek-V4": (
        {"dim": 64, "n_layers": 4, "rope_head_dim": 64, "compress_ratios": [0, 4]},
        {},
        "DeepSeek-V4, which is not read: give the config.json",
    ),
    "a pipeline": (
        {"_class_name": "FluxPipeline", "transformer": ["diffusers", "FluxTransformer2DModel"]},
        {},
        "folder 'transformer'",
    ),
    "a pipeline of another name": (
        {"_class_name": "AnyFlow", "vae": ["diffusers", "AutoencoderKL"], "scheduler": [None, None]},
        {},
        "folder 'transformer'",
    ),
    "an unknown class": ({"_class_name": "AutoencoderKL"}, {}, "is no transformer of diffusers"),
    "an unknown class with pairs": (
        {"_class_name": "AutoencoderKLFlux2", "patch_size": [2, 2], "down_block_types": ["A", "B"]},
        {},
        "is no transformer of diffusers",
    ),
    "Mochi": ({"_class_name": "MochiTransformer3DModel"}, {}, "learned weights .* RoPE cannot state it"),
    "widths of another head": (
        {"_class_name": "FluxTransformer2DModel", "attention_head_dim": 64},
        {},
        "axes_dims_rope sums to 128, and a head has 64",
    ),
    "widths that are no list": (
        {"_class_name": "FluxTransformer2DModel", "axes_dims_rope": 128},
        {},
        "axes_dims_rope is 128; give a list",
    ),
    "a part of diffusers": (
        {"_class_name": "Kandinsky5Transformer3DModel"},
        {"part": "audio"},
        "Kandinsky5Transformer3DModel has no part 'audio'; give one of: 'text'",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_read_is_refused(case):
    config, options, message = REFUSED[case]
    with pytest.raises(ConfigError, match=message):
        read(config, **options)


GPT_OSS_KEYS = ("rope_scaling_factor", "rope_ntk_alpha", "rope_ntk_beta")
HUGGING_FACE = ("model_type", "architectures", "transformers_version", "auto_map")


@pytest.mark.parametrize("config", [MISTRAL, DEEPSEEK, LLAMA3, EXECUTORCH, GPT_OSS], ids=lambda c: len(c))
@pytest.mark.parametrize("key", HUGGING_FACE)
def test_a_config_of_hugging_face_is_never_another_format(config, key):
    value = "qwen2" if key == "model_type" else ["LlamaForCausalLM"]
    stated = {k: v for k, v in config.items() if k not in ("use_hf_rope", *GPT_OSS_KEYS)}
    stated |= {"head_dim": 32, "rope_theta": 10000.0, "rope_interleave": True}  # the latter: latent attention
    assert "format" not in read({**stated, key: value}).inferred
    with contextlib.suppress(ConfigError):  # a key that is rotary in no model of Hugging Face
        assert "format" not in read({**config, key: value}).inferred


@pytest.mark.parametrize("config", [MISTRAL, DEEPSEEK, LLAMA2, EXECUTORCH, GPT_OSS], ids=lambda c: len(c))
def test_a_format_needs_its_keys(config):
    """Without one of a format's keys, a config of no known model is refused or noted, as before."""
    required = {
        "dim",
        "n_layers",
        "n_heads",
        "norm_eps",
        "inter_dim",
        "kv_lora_rank",
        "initial_context_length",
    }
    for key in required & config.keys():
        without = {k: v for k, v in config.items() if k != key}
        try:
            reading = read(without)
        except ConfigError:
            continue
        assert "format" not in reading.inferred
        assert "convention" in reading.inferred


FILES = {
    "model.safetensors": "a file of weights",
    "pytorch_model.bin": "a file of weights",
    "consolidated.00.pth": "a file of weights",
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


FOLDERS = ("params.json", "transformer/config.json", "original/config.json", "model.gguf")


@pytest.mark.parametrize("name", FOLDERS)
def test_a_folder_names_the_config_that_it_has(name, tmp_path):
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text("{}", encoding="utf-8")
    with pytest.raises(ConfigError, match=f"no config.json; give the path of its {name}"):
        read(tmp_path)


def test_a_params_json_is_read(tmp_path):
    (tmp_path / "params.json").write_text(json.dumps(MISTRAL), encoding="utf-8")
    assert read(tmp_path / "params.json").rope == ra.RoPE(32, base=1e6)


def test_the_command_explain_names_the_format(tmp_path):
    (tmp_path / "params.json").write_text(json.dumps({**MISTRAL, "yarn": YARN}), encoding="utf-8")
    lines = [*report(str(tmp_path / "params.json"), None, None, None)]
    assert lines[0].endswith("params.json: Mistral's params.json")
    assert any("Pair i is features 2i and 2i + 1" in line for line in lines)


def explained(config, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return "\n".join(report(str(tmp_path), None, None, None))


def test_the_command_explain_puts_facts_and_doubts_apart(tmp_path):
    text = explained({**DEEPSEEK, "index_head_dim": 128}, tmp_path)
    facts = text[text.index("\nNotes\n") :]
    assert "* mscale is not used" in facts
    assert "* the sparse attention's indexer" in facts
    assert text.endswith("\nDoubtful: nothing")
    text = explained(without_base(MISTRAL, llama_4_scaling={"beta": 0.1}), tmp_path)
    facts, doubts = text[text.index("\nNotes\n") :].split("\nDoubtful: check against the model's code\n")
    assert "* llama_4_scaling" in facts
    assert doubts.startswith("  * rope_theta is not stated")


@pytest.mark.parametrize("name", sorted(_diffusers._ROWS))
def test_no_class_of_diffusers_leaves_a_doubt(name, tmp_path):
    sizes = dict.fromkeys(("hidden_size", "embed_dim", "dit_dim", "dim"), 256)
    sizes |= dict.fromkeys(("num_attention_heads", "num_heads", "dit_heads", "n_heads"), 2)
    own = {
        "HiDreamImageTransformer2DModel": {"axes_dims_rope": [16, 56, 56]},
        "Lumina2Transformer2DModel": {"axes_dim_rope": [32, 48, 48]},
        "OmniGenTransformer2DModel": {
            "rope_scaling": {"short_factor": [1.0] * 64, "long_factor": [1.0] * 64}
        },
        "PRXTransformer2DModel": {"axes_dim": [64, 64]},
        "SanaWMTransformer3DModel": {"linear_head_dim": 112},
    }
    text = explained({"_class_name": name, **sizes, **own.get(name, {})}, tmp_path)
    assert "\nNotes\n" in text
    assert text.endswith("\nDoubtful: nothing")


def test_listed_frequencies_are_described(tmp_path):
    text = explained({"_class_name": "LTXVideoTransformer3DModel", "num_attention_heads": 2}, tmp_path)
    sentence = "The frequencies are listed one by one: a base and a rule, if stated, are in them already."
    assert sentence in " ".join(text.split())


DIFFUSERS = {
    "FluxTransformer2DModel": ra.RoPE(128, axes=ra.Axes.axial(16, 56, 56)),
    "WanTransformer3DModel": ra.RoPE(128, axes=ra.Axes.axial(44, 42, 42)),
    "HunyuanVideoTransformer3DModel": ra.RoPE(128, base=256, axes=ra.Axes.axial(16, 56, 56)),
    "CogView4Transformer2DModel": ra.RoPE(40, pairing="half", axes=ra.Axes.axial(20, 20)),
    "AllegroTransformer3DModel": ra.RoPE(96, pairing="half", axes=ra.Axes.axial(32, 32, 32, blocks=True)),
    "CogVideoXTransformer3DModel": ra.RoPE(64, rotary_dim=0),
    "SD3Transformer2DModel": ra.RoPE(64, rotary_dim=0),
}


@pytest.mark.parametrize("name", DIFFUSERS)
def test_diffusers(name):
    """A few classes; the session `edge` compares every class with the library's own."""
    sizes = {"attention_head_dim": 64} if name.startswith("SD3") else {}
    own = {"_class_name": name, "_diffusers_version": "0.42.1", "_name_or_path": "a/transformer"}
    reading = read({**own, **sizes})
    assert reading.rope == DIFFUSERS[name]
    assert (reading.model_type, reading.inferred["format"]) == (name, "diffusers")
    assert any(note.startswith("coordinates are") or note.endswith("no rotation") for note in reading.notes)


def test_a_model_of_diffusers_has_its_config_in_an_attribute():
    class FluxTransformer2DModel:
        config_name = "config.json"

        def __init__(self):
            self.config = {"attention_head_dim": 16, "axes_dims_rope": [4, 6, 6]}

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
    "DeepSeek": {
        **DEEPSEEK,
        "max_seq_len": 9999,
        "original_seq_len": 4096,
        "rope_factor": 40,
        "beta_fast": 32,
    },
    "Llama 3": {**LLAMA3, "use_scaled_rope": True},
    "Llama 4": {**LLAMA4, "use_scaled_rope": True, "rope_scaling_factor": 8, "rope_high_freq_factor": 4},
    "ExecuTorch": {**EXECUTORCH, "partial_rotary_factor": 0.5, "no_rope_layer_interval": 2},
    "gpt-oss": GPT_OSS,
}


@pytest.mark.parametrize("name", [*WHOLE, *_diffusers._ROWS])
def test_any_value_is_read_or_refused(name):
    config = WHOLE.get(name) or {"_class_name": name, **_diffusers.read({"_class_name": name})["defaults"]}
    config |= {key: 64 for key in ("hidden_size", "embed_dim", "dit_dim", "dim") if key not in config}
    config |= {
        key: 2 for key in ("num_attention_heads", "num_heads", "dit_heads", "n_heads") if key not in config
    }
    if name in WHOLE:
        assert read(config, layer_type=0).rope.rotary_dim
    for key in config:
        for value in HOSTILE:
            with contextlib.suppress(ConfigError):
                read({**config, key: value}, layer_type=0)
