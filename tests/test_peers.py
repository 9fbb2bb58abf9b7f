"""Other implementations, each within its own accuracy at small positions: they agree on what is computed.

Collected with `--peers` alone (`nox -s peers`), as it needs their packages. A tolerance here is that of the
peer: float32 angles at positions below 64 are off by at most 64 · 2^-24 radians and a rounding or two.
"""

from importlib import import_module

import numpy as np
import pytest
import torch

import rope_array as ra

S, D = 64, 32
# An angle pos·ω of at most 63 in float32: half a unit of the product, a few of the frequency.
FLOAT32_ANGLES = 4 * 63 * 2.0**-24


@pytest.fixture
def q():
    return torch.randn(2, 4, S, D, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def k():
    return torch.randn(2, 2, S, D, generator=torch.Generator().manual_seed(1))


def assert_close(y, want, scale=1.0):
    # Both members of a pair take part; the largest here are below 5.
    assert (y - want).abs().max() <= FLOAT32_ANGLES * 5 * 2**0.5 * scale


def test_metas_complex_multiplication(q):
    """The form of Meta's Llama: e^{imθ} in complex64, interleaved pairs."""
    freqs = 1.0 / (10000.0 ** (torch.arange(0, D, 2).float() / D))
    turns = torch.polar(torch.ones(S, D // 2), torch.outer(torch.arange(S).float(), freqs))
    want = torch.view_as_real(torch.view_as_complex(q.reshape(2, 4, S, D // 2, 2)) * turns).flatten(3)
    assert_close(ra.apply(q, torch.arange(S)), want)


@pytest.mark.parametrize("base", [10_000.0, 500_000.0])
def test_hugging_face_llama(q, k, base):
    llama = import_module("transformers.models.llama.modeling_llama")
    config = llama.LlamaConfig(
        hidden_size=4 * D,
        num_attention_heads=4,
        rope_parameters={"rope_type": "default", "rope_theta": base},
    )
    pos = torch.arange(S)[None]
    cos, sin = llama.LlamaRotaryEmbedding(config)(q, pos)
    want = llama.apply_rotary_pos_emb(q, k, cos, sin)
    for angles in ("exact", "float32"):
        ys = ra.RoPE(D, base=base, pairing="half", angles=angles).apply((q, k), pos)
        for y, w in zip(ys, want, strict=True):
            assert_close(y, w)


def test_hugging_face_roformer(q, k):
    roformer = import_module("transformers.models.roformer.modeling_roformer")
    table = roformer.RoFormerSinusoidalPositionalEmbedding(S, D)
    table.weight = torch.nn.Parameter(torch.as_tensor(np.asarray(table.create_weight())), requires_grad=False)
    sinusoidal = table(torch.Size([2, S]))[None, None, :, :]
    key = torch.randn(2, 4, S, D, generator=torch.Generator().manual_seed(2))
    apply = roformer.RoFormerSelfAttention.apply_rotary_position_embeddings
    want = apply(sinusoidal, q, key)
    for y, w in zip(ra.apply((q, key), torch.arange(S)), want, strict=True):
        assert_close(y, w)


@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize("width", [0, 16])
def test_onnx_reference(q, interleaved, width):
    onnx = import_module("onnx")
    from onnx.reference import ReferenceEvaluator

    d = width or D
    angles = np.arange(S)[:, None] * 10000.0 ** (-np.arange(0, d, 2) / d)
    node = onnx.helper.make_node(
        "RotaryEmbedding",
        ["x", "cos", "sin", "ids"],
        ["y"],
        interleaved=interleaved,
        rotary_embedding_dim=width,
        num_heads=4,
    )
    ids = np.tile(np.arange(S), (2, 1))
    feeds = {"cos": np.cos(angles), "sin": np.sin(angles)}
    feeds = {"x": q.numpy(), "ids": ids} | {n: t.astype(np.float32) for n, t in feeds.items()}
    (want,) = ReferenceEvaluator(node).run(None, feeds)
    pairing = "interleaved" if interleaved else "half"
    y = ra.apply(q.numpy(), ids, pairing=pairing, rotary_dim=d)
    assert_close(torch.as_tensor(y), torch.as_tensor(want), scale=0.1)


def test_rotary_embedding_torch(q):
    lucidrains = import_module("rotary_embedding_torch")
    want = lucidrains.RotaryEmbedding(dim=D).rotate_queries_or_keys(q)
    assert_close(ra.apply(q, torch.arange(S)), want.detach())
    want = lucidrains.RotaryEmbedding(dim=D // 2).rotate_queries_or_keys(q, offset=3)
    assert_close(ra.apply(q, range(3, S + 3), rotary_dim=D // 2), want.detach(), scale=2.0)
