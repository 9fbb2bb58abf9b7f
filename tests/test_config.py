"""Hugging Face configs: layers, parts, and what readings infer; tests/configs has configs and their ropes."""

import math
import re
from dataclasses import fields

import pytest
from config_cases import config_of, half, heads, model, refuse, rope

import rope_array as ra
from rope_array._config import _model_defaults as defaults
from rope_array._config._conventions import CONVENTIONS, REMOTE, known_convention
from rope_array.config import can_shift, read, read_layers

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LLAMA3["original_max_position_embeddings"] = 8192


def llama(scaling=None, **keys):
    config = model("llama", head_dim=128, rope_theta=5e5, max_position_embeddings=131072, **keys)
    return config if scaling is None else {**config, "rope_scaling": scaling}


def small(model_type, **keys):
    """Return a config with heads of 64 features."""
    return model(model_type, head_dim=64, **keys)


GEMMA3 = config_of("published: Gemma 3, layer 5")


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


# ---- parts ----


@pytest.mark.parametrize(("model_type", "main"), [("qwen2_5_omni", "thinker"), ("colqwen2", "vlm")])
def test_parts_within_the_main_part_are_found(model_type, main):
    config = model(model_type)
    assert read(config, part="text").part == f"{main}.text"
    assert read(config, part="vision").part == f"{main}.vision"
    assert read(config, part=main).rope == read(config, part=f"{main}.text").rope
    assert read(model("axk2", index_head_dim=128), part="indexer").part == "indexer"


# ---- stated and inferred values ----


def test_stated_and_inferred():
    reading = read(model("llama", **heads(256, 4)))
    assert reading.stated == heads(256, 4)
    assert reading.inferred == {"rope_type": "default", "rope_theta": 10000.0, "pairing": "half"}
    assert (reading.model_type, reading.part, reading.layer_type) == ("llama", None, None)
    assert read(config_of("published: DBRX")).stated["attn_config.rope_theta"] == 5e5


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


# ---- the tables of defaults ----


def test_every_convention_is_of_a_model():
    names = {key for key in CONVENTIONS if ":" not in key} - set(REMOTE)
    assert names - set(defaults.MODELS) <= {"roformer"}, "models that transformers lacks belong in [remote]"
    assert not set(REMOTE) & set(defaults.ROTARY)  # transformers has classes of its own for them


@pytest.mark.parametrize("key", sorted(CONVENTIONS))
def test_a_row_has_a_list_where_its_field_has_several(key):
    convention = known_convention(key)
    several = (field.name for field in fields(convention) if "tuple" in str(field.type))
    assert not [name for name in several if isinstance(getattr(convention, name), str)]


# The defaults of some classes cannot rotate: sections do not fit, a width is odd or missing.
UNFIT = {"glm4v_moe_text", "glm4v_text", "glm_image_text", "qwen3_omni_moe_text", "blt"}


@pytest.mark.parametrize("model_type", sorted(defaults.ROTARY))
def test_every_default_is_read(model_type):
    which = {"layer_type": 0} if ":" not in model_type else {}
    if model_type in UNFIT:
        refuse("width|sums", model(model_type), **which)
    else:
        assert rope(model(model_type), **which).head_dim > 0


# Whether cached keys may move


def answer_of(function, model_type, part):
    """Return the result of a function of a config; None if it refuses the config."""
    try:
        return function(model(model_type), part=part)
    except ra.ConfigError:
        return None


@pytest.mark.parametrize("model_type", sorted({*defaults.MODELS, *CONVENTIONS, *defaults.WITHOUT}))
def test_every_model_that_is_read_has_an_answer(model_type):
    """Each layer is in one group, with its own rope; other models raise the reader's error or are known."""
    root, _, part = model_type.partition(":")
    moves, groups = (answer_of(function, root, part or None) for function in (can_shift, read_layers))
    if groups is None:
        assert moves is None or not any(group.rope for group in moves.groups)
        return
    ropes = {index: reading.rope for indices, reading in groups for index in indices}
    assert sorted(index for group in moves.groups for index in group.layers) == sorted(ropes)
    for group in moves.groups:
        assert group.rope is None or {ropes[index] for index in group.layers} <= {group.rope}


@pytest.mark.parametrize(
    ("content", "ok", "reason"),
    [
        (model("llama"), True, "rotate its keys"),
        (model("jamba"), True, "no rotation"),
        (model("qwen2_vl"), True, "a distance for each coordinate"),
        (model("deepseek_v32"), True, "in the rotated part of a key; its indexer's too"),
        (model("falcon", alibi=True), True, "ALiBi"),
        (model("t5"), True, "learned bias by distance"),
        (model("gpt2"), False, "added to the hidden state"),
        (model("blip-2", text_config={"model_type": "opt"}), False, "added to the hidden state"),
        (model("neobert", rope=False), False, "read the model's code"),
        (model("roformer", rotary_value=True), False, "values or hidden states are rotated too"),
        (model("llama", rope_scaling={"type": "dynamic", "factor": 2.0}), False, "rope.at_length(n)"),
        (model("qwen", kv_channels=64), False, "convert.rerotate"),
        (model("mine", head_dim=64, rope_theta=1e4), False, "a guess"),
        (model("mine", head_dim=64, rope_scaling={"rope_type": "fope"}), False, "no rotation of keys"),
        (model("llama4_text"), False, "grows in steps"),
        (model("mistral_large4_text"), False, "learned frequencies"),
        (model("hunyuan_v1_dense"), False, "multiplied by weights"),
        (model("deepseek_v4"), False, "sums over blocks"),
    ],
    ids=lambda value: value.get("model_type") if isinstance(value, dict) else "",
)
def test_keys_may_move(content, ok, reason):
    moves = can_shift(content)
    assert moves.ok is ok
    assert reason in repr(moves)
