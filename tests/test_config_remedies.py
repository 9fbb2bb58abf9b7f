"""The notes on unknown models and on factors; tests/configs/remedies.json follows each remedy."""

import math
import re

import pytest
from config_cases import config_of, half, heads, model, refuse, rope

import rope_array as ra
from rope_array.config import read

KEYS = {**heads(1024, 8), "rope_theta": 1e4}
ZORK = model("zork", **KEYS)
LINEAR = {"rope_type": "linear", "factor": 2.0}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 2048}
V3 = model("deepseek_v3", rope_theta=1e4, max_position_embeddings=8192)


def llama(scaling=None, model_type="llama", **keys):
    config = model(model_type, **{**KEYS, "max_position_embeddings": 8192, **keys})
    return config if scaling is None else {**config, "rope_scaling": scaling}


PLAIN, OTHER_BASE = half(128), half(128, base=5e5)


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
    refuse(f"rotary_scaling is a {name}", config_of("engines: TensorRT-LLM", rotary_scaling=value))
    refuse(f"rotary is a {name}; its type", model("internlm", **KEYS, rotary=value))
    refuse(f"use_mla is a {name}, which may change", {**ZORK, "use_mla": value})


ATTN_FACTOR = 0.8782488562869419


@pytest.mark.parametrize("scales", [{}, {"mscale": 1.0, "mscale_all_dim": 0.5}, {"attention_factor": 2.0}])
def test_the_note_on_attn_factor(scales):
    """transformers does not read it; vLLM multiplies 0.1·log(factor) + 1 by it (DeepSeek-R1-0528-Qwen3)."""
    reading = read(llama({**YARN, **scales, "attn_factor": ATTN_FACTOR}))
    assert reading.rope == half(128, scaling=ra.YaRN(4.0, 2048, **scales))
    (note,) = [note for note in reading.notes if "attn_factor is not used" in note]
    assert f"factor on cos and sin is {reading.rope.amplitude:.6g}" in note
    amplitude = float(re.search(r"state attention_factor ([\d.]+)$", note)[1])
    assert amplitude == pytest.approx(ATTN_FACTOR * (0.1 * math.log(4) + 1), rel=1e-15)
    followed = read(llama({**YARN, **scales, "attention_factor": amplitude}))
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


def test_swapped_betas_rotate_as_in_transformers_with_a_note():
    rule = {"type": "yarn", "factor": 2.0, "original_max_position_embeddings": 8192, "beta_fast": 1.0}
    content = {"model_type": "llama", "head_dim": 16, "rope_scaling": {**rule, "beta_slow": 32.0}}
    reading = read(content | {"max_position_embeddings": 16384})
    assert any("probably swapped" in note for note in reading.notes)
    high, *_, low = reading.rope.frequencies
    assert (high, round(low * 10_000 ** (7 / 8), 6)) == (0.5, 1.0)
