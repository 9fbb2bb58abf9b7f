"""Layers of each class of vLLM's rotary embeddings, by rope_array, against vLLM's formulas in float64."""

import copy
from unittest import mock

import pytest
import torch
from hf._compare import FLOAT64, precision
from serving.vllm_layers import (
    COMMON,
    LAYERS,
    all_classes,
    class_of,
    coordinates_of,
    engine_config,
    exact_rotation,
    make,
    stock_rotation,
)
from vllm import envs
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.model_executor import custom_op
from vllm.model_executor.layers import rotary_embedding

import rope_array
from rope_array import PatchError
from rope_array._engines.ropes import REFUSED
from rope_array._engines.ropes import ROPES as ROPES_BY_CLASS
from rope_array.vllm import report
from rope_array.vllm._register import register

pytestmark = pytest.mark.library("torch")
ROPES = [name for name in LAYERS if name != "patches"]
TOLERANCE = {torch.float32: 1e-6, torch.float64: 1e-9, torch.bfloat16: 1.5e-2, torch.float16: 2e-3}


@pytest.fixture(scope="module", autouse=True)
def replaced():
    register("1")


def positions_of(name, largest, tokens=7):
    """Return random positions up to `largest`, (T,) or (coordinates, T), 0 and `largest` among them."""
    count = coordinates_of(name)
    generator = torch.Generator().manual_seed(largest)
    positions = torch.randint(0, largest, (max(count, 1), tokens), generator=generator)
    positions[:, 0], positions[:, -1] = 0, largest
    return positions if count else positions[0]


def packed(dtype, tokens=7, width=32):
    """Return q, (T, 4 * width), and k, (T, 2 * width), as views of one tensor with v."""
    generator = torch.Generator().manual_seed(tokens)
    qkv = torch.rand(tokens, 8 * width, generator=generator).sub(0.5).mul(4).to(dtype)
    q, k, _ = qkv.split([4 * width, 2 * width, 2 * width], dim=-1)
    return qkv, q, k


def check(name, positions, dtype, expected_of):
    """Rotate views of one tensor in place, and compare with the expected rotation of their values."""
    qkv, q, k = packed(dtype)
    before = qkv.clone()
    expected = [expected_of(name, positions, x.clone().view(7, -1, 32)) for x in (q, k)]
    layer = make(name, dtype=dtype)
    rotated = layer(positions, q, k)
    for y, x, z in zip(rotated, (q, k), expected, strict=True):
        assert y.data_ptr() == x.data_ptr()
        error = (y.double().view(7, -1, 32) - z).abs().max()
        assert error <= TOLERANCE[dtype] * layer.rope.amplitude
    assert torch.equal(qkv[:, 6 * 32 :], before[:, 6 * 32 :])


@pytest.mark.parametrize("name", ROPES)
def test_near_positions_are_as_vllm_rotates_in_float64(name):
    check(name, positions_of(name, 1023), torch.float64, stock_rotation)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", ROPES)
def test_far_positions_are_exact(name, dtype):
    for largest in (1023, 131_071, 1_048_575):
        check(name, positions_of(name, largest), dtype, exact_rotation)


def test_patches_are_as_vllm_rotates_in_float64():
    shape = (2, 37, 3, 32)
    q, k = torch.randn(2, *shape, dtype=torch.float64)
    with precision(FLOAT64):
        expected = make("patches", stock=True, dtype=torch.complex128).forward_native(q.clone(), k.clone())
    layer = make("patches")
    for y, z in zip(layer(q, k), expected, strict=True):
        torch.testing.assert_close(y, z, rtol=0, atol=1e-12)


@pytest.mark.parametrize("operator", [False, True], ids=["native", "operator"])
@pytest.mark.parametrize("name", ROPES)
def test_a_compiled_layer_has_the_bits_of_eager_mode(name, operator):
    layer, positions = make(name), positions_of(name, 1_048_575)
    layer._is_operator = operator
    (_, *eager), (_, *compiled) = packed(torch.float32), packed(torch.float32)
    torch._dynamo.reset()
    function = torch.compile(layer.forward, fullgraph=True, backend="aot_eager")
    for y, z, x in zip(layer(positions, *eager), function(positions, *compiled), compiled, strict=True):
        assert torch.equal(y, z)
        assert torch.equal(x, z) == operator  # in place, or left as it was


def test_a_layer_is_an_operator_if_the_engine_enables_it():
    for custom_ops, enabled in (["none"], False), (["none", "+rotary_embedding"], True), (["all"], True):
        config = VllmConfig(compilation_config={"custom_ops": custom_ops})
        with set_current_vllm_config(config):
            assert class_of("RotaryEmbedding")(**COMMON)._is_operator == enabled


@pytest.mark.parametrize(
    "method", ["forward", "forward_native", "forward_cpu", "forward_cuda", "forward_oot"]
)
def test_each_method_of_vllm_rotates_heads_key_or_not(method):
    _, q, k = packed(torch.float32)
    positions = torch.arange(7)
    layer = make("default")
    expected = exact_rotation("default", positions + 3, q.clone().view(7, -1, 32))
    y, nothing = getattr(layer, method)(positions + 3, q.clone().view(7, -1, 32))
    assert nothing is None
    torch.testing.assert_close(y.double(), expected, rtol=0, atol=1e-6)
    y, _ = getattr(layer, method)(positions, q, k, torch.tensor(3))
    torch.testing.assert_close(y.double().view(7, -1, 32), expected, rtol=0, atol=1e-6)


def test_no_tokens():
    q, k = layer_arguments = torch.zeros(0, 4 * 32), torch.zeros(0, 2, 32)
    y, z = make("default")(torch.arange(0), *layer_arguments)
    assert (y.shape, z.shape) == (q.shape, k.shape)


def test_heads_of_another_width_are_refused():
    with pytest.raises(PatchError, match="heads of 64 features"):
        make("default")(torch.arange(7), torch.zeros(7, 2, 64))


@pytest.mark.parametrize("name", ["default", "interleaved", "yarn"])
def test_vision_encoders_get_cos_and_sin(name):
    cos, sin = make(name).get_cos_sin(50)
    with precision(FLOAT64):
        expected = make(name, stock=True, dtype=FLOAT64).get_cos_sin(50)
    for table, stock_table in zip((cos, sin), expected, strict=True):
        assert table.dtype == torch.float32
        torch.testing.assert_close(table.double(), stock_table, rtol=0, atol=2e-7)


@pytest.mark.parametrize("name", LAYERS)
def test_there_is_no_table_and_reading_it_is_an_error(name):
    layer = make(name)
    assert sum(buffer.numel() for buffer in layer.buffers()) <= 74  # the patches of an image
    for table in ("cos_sin_cache", "long_short_cos_sin_cache"):
        with pytest.raises(PatchError, match=f"vLLM reads .*{table}"):
            getattr(layer, table, None)
    layer.register_buffer("other", torch.zeros(3))
    assert layer.other.shape == (3,)


UNKNOWN = "unknown to rope_array"
WITHOUT_A_ROPE = {
    "FourierRotaryEmbedding": "sums of sines",
    "DualChunkRotaryEmbedding": "dual chunk",
    "DeepseekV4ScalingRotaryEmbedding": "kernels of DeepSeek V4",
    "NewRotaryEmbedding": UNKNOWN,
    "RotaryEmbedding": UNKNOWN,
}


@pytest.mark.parametrize("name", WITHOUT_A_ROPE)
def test_a_class_without_a_rope_is_refused(name):
    """So is a class of a model, even with the name of a class that is replaced."""
    reason, cls = WITHOUT_A_ROPE[name], class_of("RotaryEmbedding")
    cls = type(name, (cls,), {"__module__": "a_model"}) if reason == UNKNOWN else class_of(name)
    with engine_config(), pytest.raises(PatchError, match=f"{name}: .*{reason}"):
        cls(**COMMON)


def test_every_class_of_vllm_is_replaced_or_refused():
    assert not all_classes() - ROPES_BY_CLASS.keys() - REFUSED.keys()
    assert all_classes() == ROPES_BY_CLASS.keys() | REFUSED.keys()
    assert {cls for cls, _ in LAYERS.values()} == ROPES_BY_CLASS.keys()


def test_a_table_by_another_name_is_refused():
    def init(self, *args, **kwargs):
        torch.nn.Module.__init__(self)
        self.register_buffer("cosines", self._compute_cos_sin_cache())

    with (
        mock.patch.object(class_of("RotaryEmbedding"), "__init__", init),
        pytest.raises(PatchError, match="RotaryEmbedding has the buffer cosines"),
    ):
        make("default")


def test_a_class_that_another_plugin_replaced_is_refused():
    plugin_class = type("Other", (class_of("RotaryEmbedding"),), {})
    with (
        engine_config(),
        mock.patch.dict(custom_op.op_registry_oot, RotaryEmbedding=plugin_class),
        pytest.raises(PatchError, match="Another plugin replaces vLLM's RotaryEmbedding by Other"),
    ):
        class_of("RotaryEmbedding")(**COMMON)


def test_a_field_that_is_missing_is_an_error():
    with pytest.raises(PatchError, match="cannot read the rope of vLLM's LinearScaling"):
        make("linear", scaling_factors=[2.0, 4.0])


def test_get_rope_makes_a_replacement_that_can_be_copied():
    with engine_config():
        layer = rotary_embedding.get_rope(32, 4096, rope_parameters={"rope_type": "linear", "factor": 2.0})
    assert copy.deepcopy(layer).rope == layer.rope == make("linear", scaling_factors=2.0).rope
    assert type(layer).__name__ == "LinearScalingRotaryEmbedding"


def test_a_report_counts_layers_and_names_modules_left_alone():
    class VisionRotaryEmbedding(torch.nn.Module):
        pass

    shared, model = make("linear"), torch.nn.Module()
    model.layers = torch.nn.ModuleList(torch.nn.Module() for _ in range(3))
    for layer in model.layers:
        layer.rotary_emb = shared
    model.vision = VisionRotaryEmbedding()
    engine_report = report(model)
    assert engine_report.entries[0].rope == shared.rope
    assert engine_report.entries[0].names == tuple(f"layers.{i}.rotary_emb" for i in range(3))
    assert engine_report.left[0].names == ("vision",)
    assert "3 x LinearScalingRotaryEmbedding: RoPE(head_dim=32, pairing='half', scaling=Linear(" in repr(
        engine_report
    )
    assert "not by rope_array: 1 x VisionRotaryEmbedding, vision" in repr(engine_report)


def test_the_key_of_compiled_graphs_changes():
    assert envs.compile_factors()["ROPE_ARRAY_VLLM"] == f"1, {rope_array.__version__}"
