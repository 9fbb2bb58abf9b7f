"""The variable of SGLang's plugin; tests/serving has SGLang's classes."""

import tomllib
from importlib.metadata import EntryPoint

import child
import docs_blocks
import pytest

from rope_array import PatchError
from rope_array.sglang import register


@pytest.mark.parametrize("value", ["yes", "1", " tables", "TABLES"])
def test_another_value_of_the_variable_is_an_error(value, monkeypatch):
    monkeypatch.setenv("ROPE_ARRAY_SGLANG", value)
    with pytest.raises(PatchError, match=f"ROPE_ARRAY_SGLANG is '{value}'. Set it to tables .* or to 0"):
        register()


def test_the_entry_point_is_the_plugin():
    project = tomllib.loads((docs_blocks.DOCS.parent / "pyproject.toml").read_text("utf-8"))["project"]
    ((name, value),) = project["entry-points"]["sglang.srt.plugins"].items()
    assert EntryPoint(name, value, "sglang.srt.plugins").load() is register


def test_the_variable_imports_sglang():
    """Without it, nothing is imported."""
    script = """
        import os, sys
        from importlib import import_module
        register = import_module("rope_array.sglang").register
        for value in ("", "0", None):
            os.environ.pop("ROPE_ARRAY_SGLANG", None)
            if value is not None:
                os.environ["ROPE_ARRAY_SGLANG"] = value
            register()
        print(sorted({name.partition(".")[0] for name in sys.modules} & {"sglang", "torch", "numpy"}))
        os.environ["ROPE_ARRAY_SGLANG"], sys.modules["sglang"] = "tables", None
        try:
            register()
        except ImportError as error:
            print(error.name)
    """
    assert child.run(script).split() == ["[]", "sglang.srt"]
