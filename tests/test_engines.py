"""The formats of `RoPE.tables` against the tables of engines: shape, dtype, and values at small positions.

Each line of ENGINES is the formula of an engine, with its source and commit. Where packages can be installed,
tests/test_peers.py, tests/edge and tests/serving compare with their code.
"""

import docs_blocks
import numpy as np
import pytest
import torch

from rope_array import RoPE

pytestmark = pytest.mark.library("torch")
WIDTH, LENGTH, BASE = 64, 2048, 10_000.0
FREQUENCIES = 1.0 / (BASE ** (torch.arange(0, WIDTH, 2, dtype=torch.float) / WIDTH))
ANGLES = torch.outer(torch.arange(LENGTH, dtype=torch.float), FREQUENCIES)
COS, SIN = ANGLES.cos(), ANGLES.sin()


def twice(table, pairing="half"):
    return torch.cat([table] * 2, -1) if pairing == "half" else table.repeat_interleave(2, -1)


# By name: pairing, format, the engine's table, and the one step from our table to its shape.
ENGINES = {
    # sgl-project/sglang 0.5.23 srt/layers/rotary_embedding/base.py, vllm 0.32.0 the same; `cos_sin_cache`
    "vLLM and SGLang": ("half", "joined", torch.cat((COS, SIN), -1), None),
    # flashinfer-ai/flashinfer@0151f64 flashinfer/rope.py: the argument `cos_sin_cache`, float32
    "FlashInfer": ("half", "joined", torch.cat((COS, SIN), -1), None),
    # Dao-AILab/flash-attention@09d422b flash_attn/layers/rotary.py: _cos_cached, _sin_cached
    "flash-attention": ("half", "split", (COS, SIN), None),
    # huggingface/transformers 5.24.0 models/llama/modeling_llama.py: cos, sin of a batch
    "transformers": ("half", "full", (twice(COS)[None], twice(SIN)[None]), lambda t: t[None]),
    # huggingface/diffusers@168e5b7 models/embeddings.py: get_1d_rotary_pos_embed, use_real
    "diffusers": ("interleaved", "full", (twice(COS, "interleaved"), twice(SIN, "interleaved")), None),
    "diffusers, not repeat_interleave_real": ("half", "full", (twice(COS), twice(SIN)), None),
    # meta-llama/llama3@0a3d717 llama/model.py, pytorch/torchtitan@01f60ba models/common/rope.py ComplexRoPE
    "Meta and torchtitan": ("interleaved", "complex", torch.polar(torch.ones_like(ANGLES), ANGLES), None),
    # the same file of torchtitan: CosSinRoPE, which concatenates full tables
    "torchtitan, cos and sin": ("half", "full", torch.cat([twice(COS), twice(SIN)], -1), "concatenate"),
    # pytorch/torchtune@01306df torchtune/modules/position_embeddings.py: cache
    "torchtune": ("interleaved", "stacked", torch.stack([COS, SIN], -1), None),
    # NVIDIA/TensorRT-LLM@0071496 functional.py: create_sinusoidal_positions_for_attention_plugin
    "TensorRT-LLM": (
        "half",
        "stacked",
        torch.stack([COS, SIN], -1).reshape(1, -1),
        lambda t: t.reshape(1, -1),
    ),
    # NVIDIA/TransformerEngine@0dc141c attention/rope.py, NVIDIA/Megatron-LM@00caa53 rotary_pos_embedding.py
    "Transformer Engine": ("half", "angles", twice(ANGLES)[:, None, None], lambda t: t[:, None, None]),
    "Megatron, interleaved": (
        "interleaved",
        "angles",
        torch.stack((ANGLES.view(-1, 1), ANGLES.view(-1, 1)), -1).view(LENGTH, 1, 1, -1),
        lambda t: t[:, None, None],
    ),
}


@pytest.mark.parametrize("name", ENGINES)
def test_a_table_has_the_form_of_the_engine(name):
    """An engine's frequency has a relative error of some 2^-22, by pow, reciprocal and product in float32."""
    pairing, format, theirs, step = ENGINES[name]
    rope = RoPE(WIDTH, base=BASE, pairing=pairing)
    ours = rope.tables(LENGTH, format, like=FREQUENCIES)
    ours = torch.cat(ours, -1) if step == "concatenate" else ours
    pairs = [(ours, theirs)] if torch.is_tensor(theirs) else zip(ours, theirs, strict=True)
    for table, expected in pairs:
        table = step(table) if callable(step) else table
        assert (table.shape, table.dtype) == (expected.shape, expected.dtype)
        difference = table.to(expected.dtype) - expected
        if format == "angles":  # ours are reduced
            difference = torch.remainder(difference.double() + np.pi, 2 * np.pi) - np.pi
        error = difference.abs().reshape(LENGTH, -1).amax(1)
        assert (error <= 2.0**-22 * torch.arange(LENGTH) + 2.0**-22).all()


def test_llama_cpp_divides_angles_by_the_factors_of_the_page():
    """ggml: theta_i / factor_i, with theta_i = position · base^(-2i/d); ggml/src/ggml-cpu/ops.cpp."""
    (program,) = (p for p in docs_blocks.programs() if p.id == "in-my-model/engines.md: llama.cpp")
    names = program.run()
    rope, factors = names["rope"], names["factors"]
    plain = np.array(RoPE(rope.head_dim, base=rope.base).frequencies)
    assert factors.dtype == np.float32
    np.testing.assert_allclose(plain / factors, rope.frequencies, rtol=2.0**-24)


def test_errors_of_llama_cpp_are_as_the_page_has_them():
    """ggml multiplies the angle of a pair by base^(-2/d), in float32, to get the angle of the next pair."""
    positions, rope = [4_095, 100_000, 1_000_000], RoPE(128, base=BASE)
    scale, angles = np.float32(BASE) ** np.float32(-2 / 128), [np.array(positions, np.float32)]
    for _ in range(63):
        angles.append(angles[-1] * scale)
    table = np.exp(1j * np.stack(angles, -1)).astype(np.complex64)
    difference = table - rope.tables(positions, "complex", dtype="float64")
    errors = np.maximum(np.abs(difference.real), np.abs(difference.imag)).max(-1)
    page = (docs_blocks.DOCS / "in-my-model" / "engines.md").read_text("utf-8")
    words = "The errors of the products stay: {:.0e}, {:.0e} and {:.0e} at the positions above."
    assert words.format(*errors).replace("e-0", "e-") in page
