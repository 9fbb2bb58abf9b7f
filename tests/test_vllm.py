"""The ropes of vLLM's rotary embeddings, read from stand-ins with the names of vLLM's attributes.

tests/serving compares the same table with vLLM's own classes.

The variables of the plugins of vLLM and SGLang.
"""

import tomllib
import types
from importlib import import_module
from importlib.metadata import EntryPoint

import child
import oracle
import pytest

import rope_array as ra
from rope_array import PatchError
from rope_array._engines.ropes import REFUSED, ROPES
from rope_array._spec import scaling

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


MODES = {"vllm": ("1", "tables"), "sglang": ("tables",)}


@pytest.mark.parametrize("value", ["yes", "2", " 1", "Tables"])
@pytest.mark.parametrize("engine", MODES)
def test_another_value_of_the_variable_is_an_error(engine, value, monkeypatch):
    variable = f"ROPE_ARRAY_{engine.upper()}"
    monkeypatch.setenv(variable, value)
    with pytest.raises(PatchError, match=f"{variable} is '{value}'. Set it to tables .* 0 "):
        import_module(f"rope_array.{engine}").register()


@pytest.mark.parametrize("engine", MODES)
def test_the_variable_imports_the_engine(engine):
    """Without it, nothing is imported."""
    script = f"""
        import os, sys
        from importlib import import_module
        engine, variable = "{engine}", "ROPE_ARRAY_{engine.upper()}"
        register = import_module("rope_array." + engine).register
        for value in ("", "0", None):
            os.environ.pop(variable, None)
            if value is not None:
                os.environ[variable] = value
            register()
        print(sorted({{name.partition(".")[0] for name in sys.modules}} & {{engine, "torch", "numpy"}}))
        sys.modules[engine] = None
        for os.environ[variable] in {MODES[engine]}:
            try:
                register()
            except ImportError as error:
                print(error.name.partition(".")[0])
    """
    assert child.run(script).split() == ["[]", *[engine] * len(MODES[engine])]


def test_sglangs_entry_point_is_its_plugin():
    """tests/serving loads it by SGLang, with the group of this name."""
    project = tomllib.loads((oracle.GOLDEN.parents[1] / "pyproject.toml").read_text("utf-8"))["project"]
    ((name, value),) = project["entry-points"]["sglang.srt.plugins"].items()
    assert EntryPoint(name, value, "sglang.srt.plugins").load() is ra.sglang.register
