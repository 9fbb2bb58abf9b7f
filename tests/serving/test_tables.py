"""Layers of each class of vLLM, whose own tables rope_array fills, against vLLM's formulas in float64."""

import types
from unittest import mock

import pytest
import torch
from serving.test_layers import ROPES, packed, positions_of
from serving.vllm_layers import (
    COMMON,
    LAYERS,
    PACKAGE,
    all_classes,
    class_of,
    engine_config,
    exact_rotation,
    make,
)

from rope_array import PatchError
from rope_array._engines.fill import RUNS
from rope_array._engines.ropes import REFUSED
from rope_array.vllm import _tables, report

pytestmark = pytest.mark.library("torch")
FAR = 1 << 20
# Layers of classes without a replacement, by their names.
TABLES_ALONE = {
    "DeepseekV4ScalingRotaryEmbedding": {"scaling_factor": 8.0, "rotary_dim": 16, "is_neox_style": False},
    "DualChunkRotaryEmbedding": {"chunk_size": 48, "local_size": 8},
    "FourierRotaryEmbedding": {"init_cache": False, "num_key_value_heads": 1, "num_inv_freq": 16}
    | {"fope_sep_head": True, "fope_init_factor": 1.0},
}


def stock(name, **changes):
    """Make a layer of LAYERS or of TABLES_ALONE; dual chunk's, which asks for a GPU, on the CPU."""
    if name in LAYERS:
        return make(name, stock=True, **changes)
    changes = {"device": lambda _: torch.device("cpu"), "accelerator": mock.Mock()}
    on_cpu = types.SimpleNamespace(**{**vars(torch), **changes})
    layer = torch.nn.Module.__new__(class_of(name))
    with engine_config(), mock.patch(f"{PACKAGE}.dual_chunk_rope.torch", on_cpu):
        layer.__init__(**COMMON | TABLES_ALONE[name])
    return layer


def filled(name, length=FAR, **changes):
    layer = stock(name, **changes)
    with mock.patch.object(_tables, "_max_model_len", return_value=length):
        _tables._fill(layer)
    return layer


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", ROPES)
def test_vllm_rotates_by_exact_tables(name, dtype):
    length = 1024 if name == "longrope short" else FAR  # as `make` sets max_model_len
    layer, positions = filled(name, length, dtype=dtype), positions_of(name, length - 1)
    method = "forward" if "Interleaved" in type(layer).__name__ else "forward_native"
    _, q, k = packed(dtype)
    xs = [x.view(7, -1, 32) if name == "deepseek" else x for x in (q, k)]
    # bfloat16 rounds cos, sin, two products and their sum, of numbers up to 2.
    tolerance = {torch.float32: 1e-6, torch.bfloat16: 4 * 2**-7}[dtype]
    for x, y in zip(xs, getattr(layer, method, layer.forward)(positions, *xs), strict=True):
        expected = exact_rotation(name, positions, x.view(7, -1, 32))
        amplitude = expected.norm() / x.double().norm()
        assert (y.double().view(7, -1, 32) - expected).abs().max() <= tolerance * max(amplitude, 1)


@pytest.mark.parametrize("name", [*LAYERS, "DeepseekV4ScalingRotaryEmbedding", "DualChunkRotaryEmbedding"])
def test_tables_keep_their_form_and_their_first_rows(name):
    """vLLM's angles have errors of some 2^-23 of the angle, and of the frequency."""
    ours, theirs = (dict(layer.named_buffers()) for layer in (filled(name, length=0), stock(name)))
    assert ours.keys() == theirs.keys()
    for table, expected in zip(ours.values(), theirs.values(), strict=True):
        assert (table.shape, table.dtype) == (expected.shape, expected.dtype)
        torch.testing.assert_close(table[:96], expected[:96], rtol=0, atol=96 * 2**-21)
        assert not torch.equal(table, expected)


def test_every_class_of_vllm_is_filled_or_listed():
    assert all_classes() == RUNS.keys() | REFUSED.keys()
    assert REFUSED.keys() - RUNS.keys() == {"FourierRotaryEmbedding"}
    assert RUNS.keys() <= {cls for cls, _ in LAYERS.values()} | TABLES_ALONE.keys()


def other_module(name):
    """Make a layer of a class of a model, even with a name that is known."""
    cls = type(name, (class_of("RotaryEmbedding"),), {"__module__": "a_model"})
    layer = torch.nn.Module.__new__(cls)
    with engine_config():
        layer.__init__(**COMMON)
    return layer


def test_a_report_names_tables_and_the_layers_without():
    model = torch.nn.Module()
    model.llama = model.again = filled("llama3", dtype=torch.bfloat16)
    model.phi = filled("longrope long")
    model.fope = filled("FourierRotaryEmbedding", length=4096)
    model.lora = filled("linear", length=0, scaling_factors=[2.0, 4.0])
    model.other, model.overwritten = other_module("RotaryEmbedding"), filled("default")
    _tables._fill(model.other)
    model.overwritten.cos_sin_cache[FAR - 1, 0] += 1e-4
    engine_report = report(model)
    llama, phi = engine_report.entries
    assert llama.names == ("llama", "again")
    assert llama.tables == (("cos_sin_cache", FAR, "bfloat16", 2**-9),)
    assert phi.tables == (("long_short_cos_sin_cache", 1024 + FAR, "float32", 2**-24),)
    assert "\n    cos_sin_cache: 1,048,576 rows, rounded to bfloat16 (2^-9)\n" in repr(engine_report)
    reasons = {entry.names[0]: entry.reason for entry in engine_report.left}
    expected = {"fope": "sums of sines", "lora": "one is needed", "other": "unknown to rope_array"}
    expected["overwritten"] = "other values into cos_sin_cache"
    assert reasons.keys() == expected.keys()
    assert all(expected[name] in reason for name, reason in reasons.items())


def test_a_table_that_stays_vllms_and_is_too_short_is_refused():
    with pytest.raises(PatchError, match=r"ends at position 4096, max_model_len is 4097.* at most 4096\."):
        filled("FourierRotaryEmbedding", length=4097)
