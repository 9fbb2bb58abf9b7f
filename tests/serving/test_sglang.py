"""Tables of SGLang's rotary embeddings, filled by the plugin, against SGLang's formulas in float64."""

import types
from importlib.metadata import EntryPoint
from unittest import mock

import pytest
import torch
from hf._compare import FLOAT64, precision
from serving import sglang_layers
from serving.sglang_layers import LAYERS, classes, make

from rope_array import PatchError
from rope_array.sglang import report

pytestmark = pytest.mark.library("torch")
CONTEXT = 131_072
COPIED = "short_cos_sin_cache", "long_cos_sin_cache"  # into the table that is read


@pytest.fixture(scope="module", autouse=True)
def plugin():
    """Let SGLang load the plugin by its entry point, and apply the hooks."""
    sglang_layers.load()
    from sglang.srt import plugins

    group = plugins.GENERAL_PLUGINS_GROUP
    points = [EntryPoint("rope_array", "rope_array.sglang:register", group)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ROPE_ARRAY_SGLANG", "tables")
        patch.setattr(plugins, "entry_points", lambda group: points)
        plugins.load_plugins()


def load(*layers, context=CONTEXT):
    """Let SGLang reserve tables for the layers of a model that it has loaded."""
    from sglang.srt.utils import common

    model = torch.nn.Module()
    model.layers = torch.nn.ModuleList(torch.nn.Module() for _ in layers)
    for block, layer in zip(model.layers, layers, strict=True):
        block.rotary_emb = layer
    common.reserve_rope_cache_for_long_sequences(model, types.SimpleNamespace(context_len=context))
    return model


def tables_of(layer):
    """Return the tables that kernels read, by name."""
    return {k: v for k, v in layer.named_buffers() if "cos_sin" in k and k not in COPIED}


@pytest.mark.parametrize("name", LAYERS)
def test_tables_are_exact_up_to_the_context(name):
    layer = make(name)
    load(layer)
    with precision(FLOAT64):
        stock = tables_of(make(name, dtype=FLOAT64))
    tables = tables_of(layer)
    assert tables.keys() == stock.keys()
    for table, expected in zip(tables.values(), stock.values(), strict=True):
        assert table.dtype == torch.float32
        assert (table[: len(expected)] - expected).abs().max() <= 2.0**-23
    if name == "dual chunk":  # its positions are below the size of a chunk
        return
    start = 1024 if name == "longrope" else -getattr(layer, "position_start", 0)  # the row of position 0
    assert len(table) >= start + CONTEXT
    cos, sin = expected[start + 1].chunk(2)
    angles = torch.atan2(sin, cos) * torch.arange(CONTEXT - 99, CONTEXT, dtype=FLOAT64)[:, None]
    far = torch.cat([angles.cos(), angles.sin()], -1) * torch.hypot(cos, sin).repeat(2)
    assert (table[start + CONTEXT - 99 : start + CONTEXT] - far).abs().max() <= 2.0**-23


def test_rows_that_sglang_adds_later_are_exact():
    layer = make("linear")
    load(layer)
    layer._ensure_cos_sin_cache_length(150_000)
    angles = (
        torch.tensor(150_000.0, dtype=FLOAT64) / 4 * 10_000.0 ** (-torch.arange(0, 32, 2, dtype=FLOAT64) / 32)
    )
    assert (layer.cos_sin_cache[150_000, :16] - angles.cos()).abs().max() <= 2.0**-23


def test_tables_of_mrope_stay_float32_on_gpus():
    """SGLang's own tables become bfloat16 in the first call."""
    query = types.SimpleNamespace(is_cuda=True, device=torch.device("cpu"), dtype=torch.bfloat16)
    layer, own = make("mrope"), make("mrope")
    load(layer)
    for each, dtype in ((layer, torch.float32), (own, torch.bfloat16)):
        each._match_cos_sin_cache_dtype(query)
        assert each.cos_sin_cache.dtype == dtype


def test_every_class_of_sglang_is_filled_or_left():
    from rope_array.sglang._runs import RUNS

    # SGLang's model of Llama 4 has a class of its own for patches.
    assert classes().keys() == RUNS.keys() | {"FourierRotaryEmbedding", "Llama4VisionRotaryEmbedding"}
    assert {f"{cls}RotaryEmbedding" for cls, _ in LAYERS.values()} == RUNS.keys()


def test_report_and_unknown_classes():
    """A class of a model may have the name of SGLang's, and a shorter table of other positions."""
    layer = make("yarn", dtype=torch.bfloat16)
    new = type("RotaryEmbedding", (torch.nn.Module,), {"__module__": "a_model"})()
    new.register_buffer("cos_sin_cache", torch.zeros(16, 32))
    engine_report = report(load(layer, layer, new))
    (entry,), (left,) = engine_report.entries, engine_report.left
    assert (entry.cls, len(entry.names)) == ("YaRNScalingRotaryEmbedding", 2)
    assert entry.rope.scaling.factor == 8.0
    assert [(t.name, t.dtype) for t in entry.tables] == [("cos_sin_cache", "bfloat16")]
    assert (left.cls, left.names) == ("RotaryEmbedding", ("layers.2.rotary_emb",))
    assert "unknown" in left.reason
    assert not new.cos_sin_cache.any()


def test_a_table_that_stays_too_short_is_refused():
    layer = make("yarn", extrapolation_factor=0.5)  # which `YaRN` does not have
    with (
        mock.patch.object(type(layer), "_ensure_cos_sin_cache_length"),
        pytest.raises(PatchError, match=r"YaRN.* ends at position 32768, .*extrapolation_factor is 0\.5"),
    ):
        load(layer)
