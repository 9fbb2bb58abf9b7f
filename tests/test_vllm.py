"""The ropes of vLLM's rotary embeddings, read from stand-ins with the names of vLLM's attributes.

tests/serving compares the same table with vLLM's own classes.
"""

import math
import types

import child
import pytest

import rope_array as ra
from rope_array.vllm import PatchError, register
from rope_array.vllm._ropes import REFUSED, ROPES

COMMON = {"head_size": 16, "rotary_dim": 16, "base": 10000, "is_neox_style": True}
YARN = {"scaling_factor": 4.0, "max_position_embeddings": 1024, "beta_fast": 32, "beta_slow": 1}
YARN |= {"truncate": True, "mscale": 1.25}
RULE = ra.YaRN(4.0, 1024, attention_factor=1.25)
LONGROPE = {"short_factor": [1.0] * 8, "long_factor": [2.0] * 8, "original_max_position_embeddings": 1024}
LONGROPE |= {"short_mscale": 1.1, "long_mscale": 1.3}
MROPE = {"mrope_section": [2, 3, 3], "mrope_interleaved": False, "scaling_factor": None}
HALF = {"head_dim": 16, "pairing": "half"}
LONG_RULE = ra.LongRoPE((1.0,) * 8, (2.0,) * 8, 1024, short_mscale=1.1, long_mscale=1.3)

# By class of vLLM: attributes in addition to COMMON, and fields of the rope.
CASES = [
    ("RotaryEmbedding", {}, {}),
    (
        "RotaryEmbedding",
        {"is_neox_style": False, "rotary_dim": 8},
        {"pairing": "interleaved", "rotary_dim": 8},
    ),
    ("LinearScalingRotaryEmbedding", {"scaling_factors": [4.0]}, {"scaling": ra.Linear(4.0)}),
    (
        "Llama3RotaryEmbedding",
        {"scaling_factor": 8, "low_freq_factor": 1, "high_freq_factor": 4, "orig_max_position": 8192},
        {"scaling": ra.Llama3(8.0, 1.0, 4.0, 8192.0)},
    ),
    ("YaRNScalingRotaryEmbedding", YARN, {"scaling": RULE}),
    ("DeepseekScalingRotaryEmbedding", {**YARN, "truncate": None}, {"scaling": RULE}),
    (
        "NTKScalingRotaryEmbedding",
        {"scaling_factor": 4, "mixed_b": None},
        {"scaling": ra.NTKAware(4.0, "fixed")},
    ),
    (
        "NTKScalingRotaryEmbedding",
        {"scaling_factor": 4, "mixed_b": 0.6},
        {"scaling": ra.NTKAware(4.0, "mixed", 0.6)},
    ),
    ("DynamicNTKAlphaRotaryEmbedding", {"scaling_alpha": 1000}, {"scaling": ra.NTKAware(1000.0)}),
    (
        "DynamicNTKScalingRotaryEmbedding",
        {"scaling_factor": 2.0, "max_position_embeddings": 4096, "max_trained_positions": 1024},
        {"base": 10000 * 7 ** (8 / 7)},
    ),
    ("Gemma4RotaryEmbedding", {"rope_angles": 2}, {"scaling": ra.Proportional(0.25)}),
    ("Phi3LongRoPEScaledRotaryEmbedding", {**LONGROPE, "use_long_rope": True}, {"scaling": "long"}),
    ("Phi3LongRoPEScaledRotaryEmbedding", {**LONGROPE, "use_long_rope": False}, {"scaling": "short"}),
    ("MRotaryEmbedding", MROPE, {"axes": ra.Axes.chunked(2, 3, 3)}),
    (
        "MRotaryEmbedding",
        {**MROPE, "mrope_interleaved": True, "mrope_section": [4, 2, 2]},
        {"axes": ra.Axes.interleaved(4, 2, 2)},
    ),
    ("MRotaryEmbedding", {**MROPE, "mrope_section": None}, {}),
    ("MRotaryEmbedding", {**MROPE, **YARN}, {"axes": ra.Axes.chunked(2, 3, 3), "scaling": RULE}),
    (
        "MRotaryEmbeddingInterleaved",
        {"mrope_section": [2, 3, 3], "mrope_dim": [1, 2, 0, 1, 2, 1, 2, 0] * 2},
        {"axes": ra.Axes((1, 2, 0, 1, 2, 1, 2, 0))},
    ),
    ("Ernie4_5_VLRotaryEmbedding", {"mrope_section": [3, 3, 2]}, {"axes": ra.Axes.alternating(2, 3, 3)}),
    ("BailingMRotaryEmbedding", {"mrope_section": [2, 3, 3]}, {"axes": ra.Axes.alternating(2, 3, 3)}),
    (
        "Llama4VisionRotaryEmbedding",
        {"rotary_dim": 8, "is_neox_style": False},
        {"pairing": "interleaved", "axes": ra.Axes.axial(8, 8)},
    ),
]


def layer(**attributes):
    return types.SimpleNamespace(**{**COMMON, **attributes})


@pytest.mark.parametrize(("cls", "attributes", "fields"), CASES)
def test_the_rope_of_a_class_by_its_attributes(cls, attributes, fields):
    if fields.get("scaling") in ("long", "short"):
        lengths = {"long": 1025, "short": 1024}
        wanted = ra.RoPE(**HALF, scaling=LONG_RULE).at_length(lengths[fields["scaling"]])
    else:
        wanted = ra.RoPE(**{**HALF, **fields})
    rope = ROPES[cls](layer(**attributes))
    assert rope == wanted
    assert rope.frequencies == wanted.frequencies
    assert rope.amplitude == wanted.amplitude


def test_every_class_has_a_case():
    assert {cls for cls, _, _ in CASES} == ROPES.keys()
    assert not ROPES.keys() & REFUSED.keys()


@pytest.mark.parametrize("cls", ROPES)
def test_a_missing_attribute_is_an_error(cls):
    with pytest.raises(AttributeError):
        ROPES[cls](types.SimpleNamespace(head_size=16, base=10000))


@pytest.mark.parametrize(
    ("cls", "attributes", "reason"),
    [
        ("LinearScalingRotaryEmbedding", {"scaling_factors": [2.0, 4.0]}, "one for each LoRA adapter"),
        (
            "MRotaryEmbedding",
            {**MROPE, "mrope_interleaved": True, "mrope_section": [4, 2, 1, 1]},
            "interleaves three sections",
        ),
    ],
    ids=["several factors", "four sections"],
)
def test_what_no_rope_has_is_an_error(cls, attributes, reason):
    with pytest.raises(ValueError, match=reason):
        ROPES[cls](layer(**attributes))


def test_longrope_scales_by_the_table_in_use():
    long, short = (
        ROPES["Phi3LongRoPEScaledRotaryEmbedding"](layer(**LONGROPE, use_long_rope=use))
        for use in (True, False)
    )
    assert (long.amplitude, short.amplitude) == (1.3, 1.1)
    assert math.isclose(long.frequencies[0], short.frequencies[0] / 2)


@pytest.mark.parametrize("value", ["yes", "2", " 1", "true"])
def test_another_value_of_the_variable_is_an_error(value, monkeypatch):
    monkeypatch.setenv("ROPE_ARRAY_VLLM", value)
    with pytest.raises(PatchError, match=f"ROPE_ARRAY_VLLM is '{value}'. Set it to 1 .* or to 0"):
        register()


@pytest.mark.parametrize("value", ["", "0", None])
def test_without_the_variable_nothing_is_imported(value):
    environment = {} if value is None else {"ROPE_ARRAY_VLLM": value}
    script = """
        import sys
        from importlib import import_module
        import_module("rope_array.vllm").register()
        print(*{name.partition(".")[0] for name in sys.modules} & {"vllm", "torch", "numpy"})
    """
    assert child.run(script, **environment).split() == []


def test_the_variable_imports_vllm():
    script = """
        import sys, types
        sys.modules["vllm"] = None
        import rope_array.vllm
        try:
            rope_array.vllm.register()
        except ImportError as error:
            print(error.name)
    """
    assert child.run(script, ROPE_ARRAY_VLLM="1").split() == ["vllm"]
