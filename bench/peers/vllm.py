"""vLLM's CUDA kernel, with a table of cos and sin."""

from ._timed import NotServedError, Rotate


def on_gpu(inputs):
    """`_custom_ops.rotary_embedding(positions, q, k, width, cos_sin_cache, is_neox)`, in place.

    q and k are (tokens, heads × width), the table is (positions, width), cos before sin, in x's dtype: as in
    vLLM's `RotaryEmbedding`. The table is made before the timing.
    """
    return {"vLLM": lambda: _rotate(inputs)}


def _rotate(inputs):
    import torch
    from vllm._custom_ops import rotary_embedding

    inputs.only_q_and_k()
    if inputs.case.layout != "bshd":
        raise NotServedError("takes the heads of a token in one axis")
    case, pos, cache = inputs.case, inputs.flat_pos, torch.cat(inputs.half_tables(), dim=-1)

    def rotate(xs):
        flat = (x.flatten(1) for x in xs)
        rotary_embedding(pos, *flat, case.head_dim, cache, case.pairing == "half")
        return xs

    return Rotate(rotate, "tokens", in_place=True, gradient=False)
