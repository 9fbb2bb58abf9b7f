"""Configs in formats that are not Hugging Face's: formats.json and engines.json in tests/configs have more.

Their ropes are by the code of mistralai/mistral-inference (rope.py), deepseek-ai/DeepSeek-V3
(inference/model.py), meta-llama/llama-models (llama3 and llama4, model.py), pytorch/executorch
(examples/models/llama, rope.py), openai/gpt-oss (gpt_oss/torch/model.py); and of engines mlc-ai/mlc-llm
(python/mlc_llm/model), NVIDIA/TensorRT-LLM (tensorrt_llm/functional.py) and keras-team/keras-hub
(layers/modeling/rotary_embedding.py).
"""

import contextlib
import json
import math
import re
from fractions import Fraction

import numpy as np
import oracle
import pytest
from config_cases import CASES, config_of, gguf_file, half, model, refuse, rope

import rope_array as ra
from rope_array import ConfigError
from rope_array._command._config_report import report
from rope_array._config import _diffusers
from rope_array.config import read

MISTRAL, DEEPSEEK = config_of("formats: Mistral"), config_of("formats: DeepSeek")
LLAMA3, EXECUTORCH = config_of("formats: Llama 3.1"), config_of("formats: ExecuTorch, a stated head")
GPT_OSS = config_of("formats: gpt-oss")
NO_BASE = config_of("formats: Mistral without a base")


# Objects after many others, which the class of a known model type does not read.
MANY = {f"object_{index}": {"a": 1} for index in range(200)}
UNREAD = [{"net": {**MANY, "params": {"head_dim": 64}}}, {**MANY, "params": {"head_dim": 64}}]
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


def diffusers(name, **keys):
    return {"_class_name": name, **keys}


FORMATS = [MISTRAL, DEEPSEEK, LLAMA3, EXECUTORCH, GPT_OSS]
OWN = {"use_hf_rope", "use_scaled_rope", "rope_scaling_factor", "rope_ntk_alpha", "rope_ntk_beta"}


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
    note = "rope.freq_base is not used: layers of the type 'sliding_attention' have the base 10000"
    assert note in read(path, layer_type=0).notes
    assert rope(path, layer_type=5).frequencies == (1.0, 1e-3 / 4)


LLAMA = {"general.architecture": "llama", "llama.attention.key_length": 4}


def test_the_files_of_a_split_gguf_model_are_read_together(tmp_path):
    """The factors may be in a later file than the keys."""
    first, second = (tmp_path / f"m-0000{i}-of-00002.gguf" for i in (1, 2))
    gguf_file(first, {**LLAMA, "split.no": 0, "split.count": 2})
    refuse(f"frequencies; put {second.name} into its folder", first)
    gguf_file(second, {"split.no": 1, "split.count": 2}, {"rope_freqs.weight": [1.0, 4.0]})
    assert rope(first).frequencies == (1.0, 1e-2 / 4)
    refuse(f"is not the first of 2 files; give {first.name}", second)
    gguf_file(second, {"split.no": 1, "split.count": 3})
    refuse(f"{second.name} states that it is another part", first)
    gguf_file(second, {"split.no": 1, "split.count": 2}, {"rope_freqs.weight": [1.0, 4.0]})
    gguf_file(first, {**LLAMA, "split.no": 0, "split.count": 2}, {"rope_freqs.weight": [1.0, 2.0]})
    refuse(f"{second.name} and a file before it have rope_freqs.weight", first)
    refuse("found by its name; name it other-00001-of-00002.gguf", first.rename(tmp_path / "other.gguf"))


@pytest.mark.parametrize(
    ("architecture", "key", "value", "message"),
    [
        ("phi3", "scaling.type", "longrope", "has not both tensors rope_factors_short"),
        ("gptj", "dimension_count", 64, "'gptj' of a GGUF file is not known here"),
    ],
)
def test_gguf_files_that_llama_cpp_rotates_without_their_own_rule(
    architecture, key, value, message, tmp_path
):
    keys = {"general.architecture": architecture, f"{architecture}.attention.key_length": 4}
    refuse(message, gguf_file(tmp_path / "m.gguf", {**keys, f"{architecture}.rope.{key}": value}))


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


def test_axes_by_the_key_of_another_class_are_refused():
    refuse(
        "'axes_dim' is unknown: is 'axes_dims_rope'",
        diffusers("FluxTransformer2DModel", axes_dim=[8, 56, 64]),
    )
    widths = {"axes_dims": [8, 4, 4], "axes_dims_a": [8, 8, 8]}
    kandinsky = [
        rope(diffusers("Kandinsky6Transformer3DModel", attention_head_dim=16, **widths), part=part)
        for part in (None, "text", "audio")
    ]
    assert [rope.head_dim for rope in kandinsky] == [16, 16, 24]


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
    "Mistral": config_of("formats: Mistral's latents", vision_encoder={"hidden_size": 64}),
    "DeepSeek": config_of("formats: DeepSeek, stated", max_seq_len=9999),
    "Llama 3": LLAMA3,
    "Llama 4": config_of("formats: Llama 4, stated"),
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


OF_ENGINES = [name for name in CASES if name.startswith("engines") and "refused" not in CASES[name]]


@pytest.mark.parametrize("name", [name for name in OF_ENGINES if not name.endswith("a model_type")])
def test_any_value_of_an_engine_is_read_or_refused(name):
    config = config_of(name)
    for place in {"config", "model_config", "pretrained_config"} & config.keys() | {""}:
        inner = config[place] if place else config
        for key in inner:
            for value in (*HOSTILE, b"1", {"type": 1}, ["x"] * 32):
                changed = {**inner, key: value}
                with contextlib.suppress(ConfigError):
                    read({**config, place: changed} if place else changed, layer_type=0)
