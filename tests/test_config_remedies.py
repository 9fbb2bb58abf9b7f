"""Each remedy that a reading of a config names is followed here: what it gives is right, or refused."""

import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import rope_array as ra
from rope_array.__main__ import main
from rope_array.config import ConfigError, read

ZORK = {"model_type": "zork", "hidden_size": 1024, "num_attention_heads": 8, "rope_theta": 1e4}
LLAMA = {**ZORK, "model_type": "llama", "max_position_embeddings": 8192}
HALF: dict[str, Any] = {"pairing": "half"}
PLAIN = ra.RoPE(128, **HALF)
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 2048}
V3 = {"model_type": "deepseek_v3", "rope_theta": 1e4, "max_position_embeddings": 8192}

Follow = Callable[[dict[str, Any]], Any]


def state(**keys: Any) -> Follow:
    """Return the remedy that states keys; a value of None leaves the key out."""
    return lambda config: {**config, **keys}


def parameters(**keys: Any) -> Follow:
    return lambda config: {**config, "rope_scaling": {**config["rope_scaling"], **keys}}


# A config; the words of the remedy; the remedy followed; the rope of the model's code, or the reason of the
# refusal that remains.
REMEDIES: dict[str, tuple[dict[str, Any], str, Follow, ra.RoPE | str]] = {
    "a misspelt key": (
        {**LLAMA, "rope_thetta": 5e5},
        "is 'rope_theta' meant",
        state(rope_thetta=None, rope_theta=5e5),
        ra.RoPE(128, base=5e5, **HALF),
    ),
    "a misspelt key of an unknown model": (
        {**ZORK, "rotary_percentage": 0.25},
        "is 'rotary_percent' meant",
        state(rotary_percentage=None, rotary_percent=0.25),
        ra.RoPE(128, rotary_dim=32, **HALF),
    ),
    "a key that Llama does not read": (
        {**LLAMA, "rope_ratio": 8},
        "leave it out",
        state(rope_ratio=None),
        PLAIN,
    ),
    "no model type": (
        {"hidden_size": 1024, "num_attention_heads": 8},
        "state its model_type",
        state(model_type="llama"),
        PLAIN,
    ),
    "two bases": (
        {**LLAMA, "rope_scaling": {"type": "linear", "factor": 2.0, "rope_theta": 5e5}},
        "leave one out",
        state(rope_theta=None),
        ra.RoPE(128, base=5e5, scaling=ra.Linear(2.0), **HALF),
    ),
    "two sets of parameters": (
        {**LLAMA, "rope_parameters": {"rope_type": "linear", "factor": 2.0}, "rope_scaling": YARN},
        "leave one out",
        state(rope_scaling=None),
        ra.RoPE(128, scaling=ra.Linear(2.0), **HALF),
    ),
    "two shares": (
        {
            **LLAMA,
            "model_type": "glm4_moe",
            "partial_rotary_factor": 0.5,
            "rope_parameters": {"partial_rotary_factor": 0.25},
        },
        "leave one out",
        state(partial_rotary_factor=None),
        ra.RoPE(128, rotary_dim=32, **HALF),
    ),
    "a pairing of another model": (
        {**LLAMA, "rope_scaling": {"type": "linear", "factor": 2.0, "interleaved": True}},
        "leave interleaved out",
        parameters(interleaved=None),
        ra.RoPE(128, scaling=ra.Linear(2.0), **HALF),
    ),
    "rope_dim of another model": (
        {**LLAMA, "rope_scaling": {"type": "default", "rope_dim": 64}},
        "leave rope_dim out",
        parameters(rope_dim=None),
        PLAIN,
    ),
    "a flag": (
        {**V3, "rope_interleave": "yes"},
        "must be true or false",
        state(rope_interleave=False),
        (ra.RoPE(64, **HALF)),
    ),
    "YaRN without a factor": (
        {**LLAMA, "rope_scaling": {"type": "yarn", "original_max_position_embeddings": 2048}},
        "null for the ratio of the contexts",
        parameters(factor=None),
        ra.RoPE(128, scaling=ra.YaRN(4.0, 2048), **HALF),
    ),
    "alpha": (
        {**LLAMA, "rope_scaling": {"type": "dynamic", "alpha": 100.0, "factor": 2.0}},
        "leave it out",
        parameters(alpha=None),
        ra.RoPE(128, scaling=ra.DynamicNTK(2.0, 8192), **HALF),
    ),
    "two contexts": (
        {**LLAMA, "rope_scaling": {"type": "dynamic", "factor": 2.0, "max_position_embeddings": 4096}},
        "leave one out",
        state(max_position_embeddings=None),
        "max_position_embeddings is 2048",  # of the class, which differs too
    ),
    "no context": (
        {**ZORK, "rope_scaling": {"type": "dynamic", "factor": 2.0}},
        "max_position_embeddings is missing; the config must state it",
        state(max_position_embeddings=4096),
        ra.RoPE(128, scaling=ra.DynamicNTK(2.0, 4096), **HALF),
    ),
    "no width": (
        {"model_type": "zork", "rope_theta": 1e4},
        "the width of a head is missing",
        state(head_dim=128),
        PLAIN,
    ),
    "a width with a remainder": (
        {**ZORK, "num_attention_heads": 7},
        "state head_dim",
        state(head_dim=128),
        PLAIN,
    ),
    "an odd width": ({**ZORK, "head_dim": 33}, "give an even width", state(head_dim=34), ra.RoPE(34, **HALF)),
    "sections that do not fit": (
        {
            **LLAMA,
            "model_type": "qwen2_vl_text",
            "rope_scaling": {"type": "mrope", "mrope_section": [1, 1, 1]},
        },
        "give sections that sum to the 64 pairs",
        parameters(mrope_section=[16, 24, 24]),
        ra.RoPE(128, axes=ra.Axes.chunked(16, 24, 24), **HALF),
    ),
    "a layout of other sections": (
        {
            **LLAMA,
            "model_type": "qwen2_vl_text",
            "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24], "mrope_interleaved": True},
        },
        "leave mrope_interleaved out",
        parameters(mrope_interleaved=None),
        ra.RoPE(128, axes=ra.Axes.chunked(16, 24, 24), **HALF),
    ),
    "sections over the full width": (
        {
            "model_type": "hunyuan_vl_text",
            "head_dim": 128,
            "rope_scaling": {"xdrope_section": [16, 16, 16, 16]},
        },
        "leave the sections out",
        parameters(xdrope_section=None),
        PLAIN,
    ),
    "an unknown layer type": (
        {"model_type": "gemma3_text", "head_dim": 128, "layer_types": ["full_attention"]},
        "choose with layer_type=",
        lambda config: read(config, layer_type="full_attention").rope,
        ra.RoPE(128, base=1e6, **HALF),
    ),
    "outside of the part": (
        {"model_type": "zork", "rope_theta": 5e5, "text_config": {**LLAMA}},
        "leave one out",
        state(rope_theta=None),
        PLAIN,
    ),
    "XVERSE": (
        {"model_type": "xverse", "hidden_size": 1024, "num_attention_heads": 8},
        "state the one in the model's own",
        state(rope_theta=5e5),
        ra.RoPE(128, base=5e5, **HALF),
    ),
}


@pytest.mark.parametrize("name", REMEDIES)
def test_a_remedy_that_is_followed_gives_the_model_s_rope(name: str) -> None:
    config, words, follow, expected = REMEDIES[name]
    with pytest.raises(ConfigError, match=re.escape(words)):
        read(config)
    followed = follow(config)
    if isinstance(expected, str):
        with pytest.raises(ConfigError, match=expected):
            read(followed)
    else:
        assert (followed if isinstance(followed, ra.RoPE) else read(followed).rope) == expected


# Configs whose rotation only the model's code tells: the remedy is to write it.
BY_HAND: dict[str, dict[str, Any]] = {
    "no rotary key": {"model_type": "zork", "hidden_size": 1024, "num_attention_heads": 8},
    "latent attention": {**ZORK, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128},
    "gpt-oss, original": {"head_dim": 64, "rope_theta": 150000.0, "rope_scaling_factor": 32.0},
    "HunyuanVideo": {"attention_head_dim": 128, "rope_theta": 256.0, "rope_axes_dim": [16, 56, 56]},
    "two bases": {**ZORK, "rotary_base": 5e5},
    "two shares": {**ZORK, "rotary_pct": 0.25, "partial_rotary_factor": 0.5},
    "nested": {**ZORK, "attn_config": {"rope_theta": 5e5}},
}
# Keys of an unknown model type that may change the rotation.
CHANGES: dict[str, Any] = {
    "alibi": True,
    "dynamic_ntk_alpha": 2.0,
    "global_head_dim": 512,
    "global_rope_theta": 1e6,
    "local_rope_theta": 1e6,
    "longrope_factor": 2.0,
    "mrope_section": [16, 24, 24],
    "no_rope": True,
    "nope_layer_interval": 4,
    "nope_layers": [1, 2],
    "ntk_factor": 2.0,
    "num_swa_attention_heads": 4,
    "original_rope": False,
    "partial_rotary_factors": [0.5],
    "pos_emb_type": "sinusoidal",
    "position_embedding": "none",
    "position_embedding_type": "learned",
    "position_encoding_2d": True,
    "rope": False,
    "rope_cache_scale": 2.0,
    "rope_dim": 32,
    "rope_dims": 32,
    "rope_fraction": 0.25,
    "rope_freq_scale": 0.5,
    "rope_head_dim": 64,
    "rope_local_base_freq": 5e3,
    "rope_local_theta": 5e3,
    "rope_params": {"theta": 1e6},
    "rope_position_scale": 2.0,
    "rope_ratio": 500,
    "rope_reorder": True,
    "rope_scale": 2.0,
    "rope_scaling_factor": 8.0,
    "rope_scaling_layers": [1],
    "rope_theta_local": 5e3,
    "rope_type": "yarn",
    "rotary": {"base": 1e6},
    "rotary_emb_dim": 32,
    "rotary_emb_scale_base": 512,
    "rotary_embedding": {"base": 1e6},
    "rotary_interpolation_factor": 2.0,
    "rotary_ndims": 32,
    "rotary_scaling_factor": 2.0,
    "rotary_value": True,
    "seq_len_interpolation_factor": 4.0,
    "swa_head_dim": 64,
    "swa_rope_theta": 1e6,
    "use_alibi": True,
    "use_dynamic_ntk": True,
    "use_nope": True,
    "use_rope": False,
    "use_rotary_embedding": False,
    "use_rotary_pos_emb": False,
    "use_scaled_rope": True,
    "use_xpos": True,
    "xrope_section": [1, 2],
    "yarn": {"factor": 4.0},
    "yarn_factor": 4.0,
}
BY_HAND |= {key: {**ZORK, key: value} for key, value in CHANGES.items()}


@pytest.mark.parametrize("name", BY_HAND)
def test_what_only_the_code_tells_is_refused(name: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(BY_HAND[name])
    assert "the model's code, and write RoPE(head_dim, base=..., rotary_dim=..., pairing=...) by it" in str(
        caught.value
    )
    # No key to state, whose value would be followed by a guess.
    assert not re.search(r"or one of|leave|is '\w+' meant", str(caught.value))


READ: dict[str, tuple[dict[str, Any], ra.RoPE]] = {
    "alibi off": ({"alibi": False, "use_alibi": None}, PLAIN),
    "attention_head_size": ({"attention_head_size": 64}, ra.RoPE(64, **HALF)),
    "attention_projection_size": ({"attention_projection_size": 512}, ra.RoPE(64, **HALF)),
    "interleaved": ({"rope_interleaved": True}, ra.RoPE(128)),
    "is_neox_style": ({"is_neox_style": False}, ra.RoPE(128)),
    "kv_channels": ({"kv_channels": 64}, ra.RoPE(64, **HALF)),
    "latent attention not used": ({"qk_rope_head_dim": 0, "use_mla": False}, PLAIN),
    "latent, halves": ({"qk_rope_head_dim": 64, "rope_interleave": False}, ra.RoPE(64, **HALF)),
    "latent, neighbours": (
        {"qk_rope_head_dim": 64, "rope_interleave": True},
        ra.RoPE(64, out_pairing="half"),
    ),
    "neutral factor": ({"rotary_scaling_factor": 1.0, "seq_len_interpolation_factor": 1}, PLAIN),
    "position_embedding_type": ({"position_embedding_type": "rope"}, PLAIN),
    "rope_is_neox_style": ({"rope_is_neox_style": True}, PLAIN),
    "rope_pct": ({"rope_pct": 0.25}, ra.RoPE(128, rotary_dim=32, **HALF)),
    "rope_percent": ({"rope_percent": 0.25}, ra.RoPE(128, rotary_dim=32, **HALF)),
    "rotary_base": ({"rope_theta": None, "rotary_base": 5e5}, ra.RoPE(128, base=5e5, **HALF)),
    "rotary_dim": ({"rotary_dim": 32}, ra.RoPE(128, rotary_dim=32, **HALF)),
    "rotary_emb_base": ({"rope_theta": None, "rotary_emb_base": 5e5}, ra.RoPE(128, base=5e5, **HALF)),
    "rotary_emb_fraction": ({"rotary_emb_fraction": 0.5}, ra.RoPE(128, rotary_dim=64, **HALF)),
    "rotary_pct": ({"rotary_pct": 0.25}, ra.RoPE(128, rotary_dim=32, **HALF)),
    "scaled off": ({"use_scaled_rope": False, "rope_scaling": None}, PLAIN),
    "the same base twice": ({"rotary_emb_base": 1e4}, PLAIN),
    "use_rope": ({"use_rope": True, "use_rotary_embedding": True}, PLAIN),
}


@pytest.mark.parametrize("name", READ)
def test_keys_of_an_unknown_model_that_are_read(name: str) -> None:
    keys, rope = READ[name]
    reading = read({**ZORK, **keys})
    assert reading.rope == rope
    assert f"with {rope.pairing} pairs" in reading.inferred["convention"]
    assert [note for note in reading.notes if "is a guess" in note and "'half' or 'interleaved'" in note]


@pytest.mark.parametrize("value", ["yes", 1])
def test_a_pairing_that_is_no_flag_is_refused(value: Any) -> None:
    with pytest.raises(ConfigError, match="must be true or false"):
        read({**ZORK, "rope_interleaved": value})
    with pytest.raises(ConfigError, match="contradict each other"):
        read({**ZORK, "rope_interleaved": True, "is_neox_style": True})


def test_diagnose_tells_the_pairing_of_an_unknown_model() -> None:
    """The note on a guess names `diagnose`: follow it for a model with neighbouring pairs."""
    assert any("rope_array.diagnose" in note for note in read(ZORK).notes)
    x = np.random.default_rng(0).normal(size=(64, 16))
    found = ra.diagnose(x, ra.RoPE(16).apply(x, range(64)), range(64)).rope
    assert found == ra.RoPE(16)


def test_an_unknown_rule_is_written_by_its_frequencies() -> None:
    for scaling in (
        {"rope_type": "spiral"},
        {**YARN, "extrapolation_factor": 0.5},
        {**YARN, "my_factor": 2.0},
    ):
        with pytest.raises(ConfigError, match=re.escape("RoPE(head_dim, inv_freq=...)")):
            read({**LLAMA, "rope_scaling": scaling})
    omegas = [0.5**i for i in range(64)]
    assert ra.RoPE(128, inv_freq=omegas, **HALF).frequencies == tuple(omegas)


@pytest.mark.parametrize(
    ("rule", "rope"),
    [("openpangu", None), ("bailing_mrope", ra.RoPE(128, axes=ra.Axes.alternating(16, 24, 24)))],
)
def test_a_map_that_is_not_read_is_written(rule: str, rope: ra.RoPE | None) -> None:
    with pytest.raises(ConfigError, match=r"RoPE\(axes="):
        read({**LLAMA, "rope_scaling": {"type": rule, "mrope_section": [16, 24, 24]}})
    assert rope is None or rope.pairing == "interleaved"


COMMANDS: dict[str, tuple[list[str], str, list[str]]] = {
    "a length": (
        ["--shape", "2,8", "--scaling", "DynamicNTK(2.0, 512)"],
        "give --length",
        ["--shape", "2,8", "--scaling", "DynamicNTK(2.0, 512)", "--length", "1024"],
    ),
    "a rule": (
        ["--shape", "2,8", "--scaling", "yarn"],
        "such as YaRN(factor=4.0, original_max_position_embeddings=32768)",
        ["--shape", "2,8", "--scaling", "YaRN(factor=4.0, original_max_position_embeddings=32768)"],
    ),
    "a shape": (["--shape", "2x8"], "such as 1,32,2048,128", ["--shape", "1,32,2048,128"]),
    "a library": (["--library", "nump"], "give one of numpy", ["--library", "numpy"]),
    "an option without use": (["--part", "text"], "there is no use for --part; leave it out", []),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_the_remedies_of_a_command_work(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments, words, followed = COMMANDS[name]
    assert main(["explain", *arguments]) == 2
    assert words in capsys.readouterr().err
    assert main(["explain", *followed]) == 0


@pytest.mark.parametrize("stated", [{}, {"mscale": 1.0, "mscale_all_dim": 0.5}, {"attention_factor": 2.0}])
def test_the_note_on_attn_factor(stated: dict[str, Any]) -> None:
    """transformers does not read it; vLLM multiplies 0.1·log(factor) + 1 by it (DeepSeek-R1-0528-Qwen3)."""
    config = {**LLAMA, "rope_scaling": {**YARN, **stated, "attn_factor": 0.8782488562869419}}
    reading = read(config)
    assert reading.rope == ra.RoPE(128, scaling=ra.YaRN(4.0, 2048, **stated), **HALF)
    (note,) = [note for note in reading.notes if "attn_factor is not used" in note]
    assert f"factor on cos and sin is {reading.rope.amplitude:.6g}" in note
    amplitude = float(re.search(r"state attention_factor ([\d.]+)$", note)[1])  # type: ignore[index]
    assert amplitude == pytest.approx(0.8782488562869419 * (0.1 * math.log(4) + 1), rel=1e-15)
    followed = read(parameters(attn_factor=None, attention_factor=amplitude)(config))
    assert followed.rope.amplitude == amplitude
    assert not [note for note in followed.notes if "attn_factor is" in note]


@pytest.mark.parametrize("rule", [{"rope_type": "linear", "factor": 4.0}, {"rope_type": "default"}])
def test_attn_factor_has_no_effect_on_other_rules(rule: dict[str, Any]) -> None:
    reading = read({**LLAMA, "rope_scaling": {**rule, "attn_factor": 1.25}})
    assert reading.rope.amplitude == 1.0
    assert "attn_factor is not used: transformers does not read it" in reading.notes


def test_attn_factor_in_vllm_s_rule_multiplies() -> None:
    rule = {**YARN, "rope_type": "deepseek_yarn", "mscale": 1.0, "mscale_all_dim": 0.5, "attn_factor": 0.5}
    yarn = {**V3, "rope_scaling": {**rule, "rope_type": "yarn", "mscale": 0.5, "mscale_all_dim": 0.0}}
    amplitude = 0.5 * (0.05 * math.log(4) + 1)
    assert any(f"it is {amplitude:.6g}: for that state" in note for note in read(yarn).notes)
    expected = 0.5 * (0.1 * math.log(4) + 1) / (0.05 * math.log(4) + 1)
    assert read({**V3, "rope_scaling": rule}).rope.amplitude == pytest.approx(expected, rel=1e-15)


def test_notes_that_name_a_remedy() -> None:
    deepseek = {**V3, "rope_scaling": {**YARN, "mscale": 0.707}}
    (note,) = read(deepseek).notes
    assert "state rope_type 'deepseek_yarn', or attention_factor" in note
    amplitude = float(re.search(r"models it is ([\d.]+):", note)[1])  # type: ignore[index]
    for keys in ({"rope_type": "deepseek_yarn"}, {"attention_factor": amplitude}):
        followed = read({**deepseek, "rope_scaling": {**deepseek["rope_scaling"], **keys}})
        assert followed.rope.amplitude == pytest.approx(amplitude, rel=1e-5)
    missing = {**LLAMA, "rope_scaling": {"type": "yarn", "factor": 4.0}}
    assert any("state it if the model was trained on fewer" in note for note in read(missing).notes)
    assert read({**LLAMA, "rope_scaling": YARN}).rope == ra.RoPE(128, scaling=ra.YaRN(4.0, 2048), **HALF)
    smollm = {"model_type": "smollm3", "num_hidden_layers": 4}
    assert any("choose with layer_type=" in note for note in read(smollm).notes)
    assert read(smollm, layer_type=3).rope.rotary_dim == 0
