"""The embedding of transformers' Llama, whose cos and sin other kernels take."""

from transformers.models.llama.modeling_llama import LlamaConfig, LlamaRotaryEmbedding

from ._note import built


def cos_sin(x, pos, base):
    """Return cos and sin for x of shape (B, H, S, D) and positions of shape (S,) or (B, S)."""
    return _embedding(x.shape[-1], base)(x, pos if pos.ndim == 2 else pos[None])


@built
def _embedding(width, base):
    rope = {"rope_type": "default", "rope_theta": base}
    return LlamaRotaryEmbedding(
        LlamaConfig(hidden_size=width, num_attention_heads=1, head_dim=width, rope_parameters=rope)
    )
