"""The rope of each class of vLLM's rotary embeddings, by the attributes of a layer. Plain numbers, no vLLM.

A new class of vLLM needs a line in ROPES, or in REFUSED with the reason. The names of attributes are vLLM's
and SGLang's, which has copies of most classes.
"""

from collections.abc import Callable, Mapping
from typing import Any

from rope_array._rope import RoPE
from rope_array._spec.axes import Axes
from rope_array._spec.scaling import Linear, Llama3, LongRoPE, NTKAware, Proportional, YaRN

__all__ = ["REFUSED", "ROPES", "ROPES_OF_TABLES", "long_rope_at", "patch_coordinates"]


def _plain_rope(layer: Any, **fields: Any) -> RoPE:
    """Return the rope of the fields that every class has, and of `fields`."""
    pairing = "half" if layer.is_neox_style else "interleaved"
    fields = {"base": float(layer.base), "rotary_dim": layer.rotary_dim, "pairing": pairing, **fields}
    return RoPE(layer.head_size, **fields)


def _linear_rope(layer: Any) -> RoPE:
    factors = layer.scaling_factors
    if not isinstance(factors, list) or len(factors) != 1:
        raise ValueError(
            f"scaling_factors is {factors!r}: one for each LoRA adapter, and one is needed for all"
        )
    return _plain_rope(layer, scaling=Linear(float(factors[0])))


def _llama3_rope(layer: Any) -> RoPE:
    factors = (layer.scaling_factor, layer.low_freq_factor, layer.high_freq_factor, layer.orig_max_position)
    return _plain_rope(layer, scaling=Llama3(*map(float, factors)))


def _yarn_rope(layer: Any, truncate: bool | None = None, **fields: Any) -> RoPE:
    """Return a rope by YaRN. vLLM's max_position_embeddings is the trained context here."""
    rule = YaRN(
        float(layer.scaling_factor),
        float(layer.max_position_embeddings),
        beta_fast=float(layer.beta_fast),
        beta_slow=float(layer.beta_slow),
        truncate=bool(layer.truncate if truncate is None else truncate),
        attention_factor=float(layer.mscale),
    )
    return _plain_rope(layer, scaling=rule, **fields)


def _deepseek_rope(layer: Any) -> RoPE:
    return _yarn_rope(layer, truncate=True)


def _ntk_rope(layer: Any) -> RoPE:
    factor, b = float(layer.scaling_factor), layer.mixed_b
    return _plain_rope(layer, scaling=NTKAware(factor, "fixed" if b is None else "mixed", b))


def _ntk_alpha_rope(layer: Any) -> RoPE:
    return _plain_rope(layer, scaling=NTKAware(float(layer.scaling_alpha)))


def _dynamic_ntk_rope(layer: Any) -> RoPE:
    """Return the rope of dynamic NTK at max_position_embeddings: vLLM has one table for all requests."""
    factor, width = float(layer.scaling_factor), layer.rotary_dim
    growth = factor * layer.max_position_embeddings / layer.max_trained_positions - (factor - 1)
    return _plain_rope(layer, base=float(layer.base * growth ** (width / (width - 2))))


def _proportional_rope(layer: Any) -> RoPE:
    return _plain_rope(layer, scaling=Proportional(2 * layer.rope_angles / layer.head_size))


def long_rope_at(layer: Any, length: int) -> RoPE:
    """Return the rope of LongRoPE for a length: by the short factors, or by the long ones."""
    original = layer.original_max_position_embeddings
    rule = LongRoPE(
        tuple(map(float, layer.short_factor)),
        tuple(map(float, layer.long_factor)),
        original,
        short_mscale=float(layer.short_mscale),
        long_mscale=float(layer.long_mscale),
    )
    fields = {"base": float(layer.base), "rotary_dim": layer.rotary_dim, "pairing": "half", "scaling": rule}
    return RoPE(layer.head_size, **fields).at_length(length)


def _long_rope(layer: Any) -> RoPE:
    """Return the long or the short rope: vLLM chooses by max_model_len, once for all requests."""
    return long_rope_at(layer, layer.original_max_position_embeddings + layer.use_long_rope)


def _mrope(layer: Any) -> RoPE:
    """Return the rope of Qwen-VL's sections; without sections, of text alone."""
    sections = layer.mrope_section
    if sections and layer.mrope_interleaved and len(sections) != 3:
        raise ValueError(f"mrope_section is {sections!r}, and vLLM interleaves three sections")
    make = Axes.interleaved if layer.mrope_interleaved else Axes.chunked
    axes = make(*sections) if sections else None
    return _plain_rope(layer, axes=axes) if layer.scaling_factor is None else _yarn_rope(layer, axes=axes)


def _mrope_of_pangu(layer: Any) -> RoPE:
    pairs = layer.mrope_dim[: layer.rotary_dim // 2]
    return _plain_rope(layer, axes=Axes(tuple(pairs), count=len(layer.mrope_section)))


def _mrope_of_ernie(layer: Any) -> RoPE:
    h, w, t = layer.mrope_section
    return _plain_rope(layer, axes=Axes.alternating(t, h, w))


def _mrope_of_bailing(layer: Any) -> RoPE:
    return _plain_rope(layer, axes=Axes.alternating(*layer.mrope_section))


def _patch_rope(layer: Any) -> RoPE:
    """Return the rope of Llama 4's patches: x in the first half of the pairs, y in the second."""
    width = layer.rotary_dim
    return RoPE(2 * width, base=float(layer.base), axes=Axes.axial(width, width))


def patch_coordinates(layer: Any) -> list[tuple[int, int]]:
    """Return x and y of Llama 4's patches; the last token is the class token, which is not rotated."""
    count = layer.max_position_embeddings
    side = int(count**0.5)
    return [*((i % side + 1, i // side + 1) for i in range(count)), (0, 0)]


def _rope_of_deepseek_v4(layer: Any) -> RoPE:
    return _yarn_rope(layer, truncate=True, rotary_start=layer.head_size - layer.rotary_dim)


ROPES: Mapping[str, Callable[[Any], RoPE]] = {
    "RotaryEmbedding": _plain_rope,
    "LinearScalingRotaryEmbedding": _linear_rope,
    "Llama3RotaryEmbedding": _llama3_rope,
    "YaRNScalingRotaryEmbedding": _yarn_rope,
    "DeepseekScalingRotaryEmbedding": _deepseek_rope,
    "NTKScalingRotaryEmbedding": _ntk_rope,
    "DynamicNTKAlphaRotaryEmbedding": _ntk_alpha_rope,
    "DynamicNTKScalingRotaryEmbedding": _dynamic_ntk_rope,
    "Gemma4RotaryEmbedding": _proportional_rope,
    "Phi3LongRoPEScaledRotaryEmbedding": _long_rope,
    "MRotaryEmbedding": _mrope,
    "MRotaryEmbeddingInterleaved": _mrope_of_pangu,
    "Ernie4_5_VLRotaryEmbedding": _mrope_of_ernie,
    "BailingMRotaryEmbedding": _mrope_of_bailing,
    "Llama4VisionRotaryEmbedding": _patch_rope,
}

# The ropes of classes whose tables can be filled, and which have no replacement.
ROPES_OF_TABLES: Mapping[str, Callable[[Any], RoPE]] = {
    "DeepseekV4ScalingRotaryEmbedding": _rope_of_deepseek_v4,
    "DualChunkRotaryEmbedding": _plain_rope,
}

REFUSED: Mapping[str, str] = {
    "FourierRotaryEmbedding": "FoPE multiplies by learned sums of sines and cosines, which are no rotation",
    "DualChunkRotaryEmbedding": "dual chunk attention rotates each query to five positions",
    "DeepseekV4ScalingRotaryEmbedding": "the kernels of DeepSeek V4 read its table of cos and sin",
}
