"""The ropes of vLLM's rotary embeddings, read from stand-ins with the names of vLLM's attributes.

tests/serving compares the same table with vLLM's own classes.
"""

import tomllib
import types

import child
import oracle
import pytest

import rope_array as ra
from rope_array import PatchError
from rope_array._engines.ropes import REFUSED, ROPES
from rope_array._spec import scaling
from rope_array.vllm import register

TABLE = tomllib.loads((oracle.GOLDEN / "vllm.toml").read_text("utf-8"))
CASES = [(name, *texts) for name, rows in TABLE.items() for texts in rows.items()]
COMMON = {"head_size": 16, "rotary_dim": 16, "base": 10000, "is_neox_style": True}
HALF = {"head_dim": 16, "pairing": "half"}


def long_rule(length):
    rule = ra.LongRoPE((1.0,) * 8, (2.0,) * 8, 1024, short_mscale=1.1, long_mscale=1.3)
    return ra.RoPE(**HALF, scaling=rule).at_length(length).scaling


# Names that the texts have.
NAMES = vars(scaling) | {"Axes": ra.Axes, "LONG": long_rule, "PLAIN": {"scaling_factor": None}}
NAMES["YARN"] = {"scaling_factor": 4.0, "max_position_embeddings": 1024, "beta_fast": 32, "beta_slow": 1}
NAMES["YARN"] |= {"mscale": 1.25}
NAMES["LONGROPE"] = {"short_factor": [1.0] * 8, "long_factor": [2.0] * 8, "short_mscale": 1.1}
NAMES["LONGROPE"] |= {"long_mscale": 1.3, "original_max_position_embeddings": 1024}


def layer(**attributes):
    return types.SimpleNamespace(**{**COMMON, **attributes})


@pytest.mark.parametrize(("name", "attributes", "fields"), CASES)
def test_the_rope_of_a_class_by_its_attributes(name, attributes, fields):
    attributes, fields = (eval(f"dict({text})", NAMES) for text in (attributes, fields))
    wanted = ra.RoPE(**{**HALF, **fields})
    rope = ROPES[name](layer(**attributes))
    assert rope == wanted
    assert rope.frequencies == wanted.frequencies
    assert rope.amplitude == wanted.amplitude


def test_every_class_has_a_case_and_needs_its_attributes():
    assert TABLE.keys() == ROPES.keys()
    assert not ROPES.keys() & REFUSED.keys()
    for rope_of in ROPES.values():
        with pytest.raises(AttributeError):
            rope_of(types.SimpleNamespace(head_size=16, base=10000))


FOUR = {"scaling_factor": None, "mrope_interleaved": True, "mrope_section": [4, 2, 1, 1]}


@pytest.mark.parametrize(
    ("name", "attributes", "reason"),
    [
        ("LinearScalingRotaryEmbedding", {"scaling_factors": [2.0, 4.0]}, "one for each LoRA adapter"),
        ("MRotaryEmbedding", FOUR, "interleaves three sections"),
    ],
)
def test_what_no_rope_has_is_an_error(name, attributes, reason):
    with pytest.raises(ValueError, match=reason):
        ROPES[name](layer(**attributes))


@pytest.mark.parametrize("value", ["yes", "2", " 1", "true"])
def test_another_value_of_the_variable_is_an_error(value, monkeypatch):
    monkeypatch.setenv("ROPE_ARRAY_VLLM", value)
    with pytest.raises(PatchError, match=f"ROPE_ARRAY_VLLM is '{value}'. .* tables .* 1 .* 0 "):
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
