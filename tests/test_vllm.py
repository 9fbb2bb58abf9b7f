"""The ropes of vLLM's rotary embeddings, read from stand-ins with the names of vLLM's attributes.

tests/serving compares the same table with vLLM's own classes.
"""

import types

import child
import pytest

import rope_array as ra
from rope_array import PatchError
from rope_array.vllm import register
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
LONG, SHORT = (ra.RoPE(**HALF, scaling=LONG_RULE).at_length(n).scaling for n in (1025, 1024))

MIXED = {"mrope_section": [2, 3, 3], "mrope_dim": [1, 2, 0, 1, 2, 1, 2, 0] * 2}
LLAMA3 = {"scaling_factor": 8, "low_freq_factor": 1, "high_freq_factor": 4, "orig_max_position": 8192}
DYNAMIC = {"scaling_factor": 2.0, "max_position_embeddings": 4096, "max_trained_positions": 1024}
INTERLEAVED = {"pairing": "interleaved"}
CHUNKED = {"axes": ra.Axes.chunked(2, 3, 3)}
THREE = {**MROPE, "mrope_interleaved": True, "mrope_section": [4, 2, 2]}
# By class of vLLM, without "RotaryEmbedding": attributes in addition to COMMON, and fields of the rope.
CASES = [
    ("", {}, {}),
    ("", {"is_neox_style": False, "rotary_dim": 8}, {**INTERLEAVED, "rotary_dim": 8}),
    ("LinearScaling", {"scaling_factors": [4.0]}, {"scaling": ra.Linear(4.0)}),
    ("Llama3", LLAMA3, {"scaling": ra.Llama3(8.0, 1.0, 4.0, 8192.0)}),
    ("YaRNScaling", YARN, {"scaling": RULE}),
    ("DeepseekScaling", {**YARN, "truncate": None}, {"scaling": RULE}),
    ("NTKScaling", {"scaling_factor": 4, "mixed_b": None}, {"scaling": ra.NTKAware(4.0, "fixed")}),
    ("NTKScaling", {"scaling_factor": 4, "mixed_b": 0.6}, {"scaling": ra.NTKAware(4.0, "mixed", 0.6)}),
    ("DynamicNTKAlpha", {"scaling_alpha": 1000}, {"scaling": ra.NTKAware(1000.0)}),
    ("DynamicNTKScaling", DYNAMIC, {"base": 10000 * 7 ** (8 / 7)}),
    ("Gemma4", {"rope_angles": 2}, {"scaling": ra.Proportional(0.25)}),
    ("Phi3LongRoPEScaled", {**LONGROPE, "use_long_rope": True}, {"scaling": LONG}),
    ("Phi3LongRoPEScaled", {**LONGROPE, "use_long_rope": False}, {"scaling": SHORT}),
    ("M", MROPE, CHUNKED),
    ("M", THREE, {"axes": ra.Axes.interleaved(4, 2, 2)}),
    ("M", {**MROPE, "mrope_section": None}, {}),
    ("M", {**MROPE, **YARN}, {**CHUNKED, "scaling": RULE}),
    ("MInterleaved", MIXED, {"axes": ra.Axes((1, 2, 0, 1, 2, 1, 2, 0))}),
    ("Ernie4_5_VL", {"mrope_section": [3, 3, 2]}, {"axes": ra.Axes.alternating(2, 3, 3)}),
    ("BailingM", {"mrope_section": [2, 3, 3]}, {"axes": ra.Axes.alternating(2, 3, 3)}),
    ("Llama4Vision", {"rotary_dim": 8, "is_neox_style": False},
     {**INTERLEAVED, "axes": ra.Axes.axial(8, 8)}),
]  # fmt: skip


def class_of(name):
    return "MRotaryEmbeddingInterleaved" if name == "MInterleaved" else f"{name}RotaryEmbedding"


def layer(**attributes):
    return types.SimpleNamespace(**{**COMMON, **attributes})


@pytest.mark.parametrize(("name", "attributes", "fields"), CASES)
def test_the_rope_of_a_class_by_its_attributes(name, attributes, fields):
    wanted = ra.RoPE(**{**HALF, **fields})
    rope = ROPES[class_of(name)](layer(**attributes))
    assert rope == wanted
    assert rope.frequencies == wanted.frequencies
    assert rope.amplitude == wanted.amplitude


def test_every_class_has_a_case_and_needs_its_attributes():
    assert {class_of(name) for name, *_ in CASES} == ROPES.keys()
    assert not ROPES.keys() & REFUSED.keys()
    for rope_of in ROPES.values():
        with pytest.raises(AttributeError):
            rope_of(types.SimpleNamespace(head_size=16, base=10000))


@pytest.mark.parametrize(
    ("name", "attributes", "reason"),
    [
        ("LinearScaling", {"scaling_factors": [2.0, 4.0]}, "one for each LoRA adapter"),
        ("M", {**THREE, "mrope_section": [4, 2, 1, 1]}, "interleaves three sections"),
    ],
)
def test_what_no_rope_has_is_an_error(name, attributes, reason):
    with pytest.raises(ValueError, match=reason):
        ROPES[class_of(name)](layer(**attributes))


@pytest.mark.parametrize("value", ["yes", "2", " 1", "true"])
def test_another_value_of_the_variable_is_an_error(value, monkeypatch):
    monkeypatch.setenv("ROPE_ARRAY_VLLM", value)
    with pytest.raises(PatchError, match=f"ROPE_ARRAY_VLLM is '{value}'. Set it to 1 .* or to 0"):
        register()


def test_the_variable_imports_vllm():
    """Without it, nothing is imported."""
    script = """
        import os, sys
        from importlib import import_module
        register = import_module("rope_array.vllm").register
        for value in ("", "0", None):
            os.environ.pop("ROPE_ARRAY_VLLM", None)
            if value is not None:
                os.environ["ROPE_ARRAY_VLLM"] = value
            register()
        print(sorted({name.partition(".")[0] for name in sys.modules} & {"vllm", "torch", "numpy"}))
        os.environ["ROPE_ARRAY_VLLM"], sys.modules["vllm"] = "1", None
        try:
            register()
        except ImportError as error:
            print(error.name)
    """
    assert child.run(script).split() == ["[]", "vllm"]
