"""FlashInfer's CUDA kernel, which computes its angles; it is compiled on first use, by nvcc."""

from ._timed import Rotate


def on_gpu(inputs):
    """`apply_rope_pos_ids_inplace(q, k, pos_ids)` with q and k of (tokens, heads, width), in place."""
    return {"FlashInfer": lambda: _rotate(inputs)}


def _rotate(inputs):
    import torch
    from flashinfer import apply_rope_pos_ids_inplace

    inputs.only_q_and_k()
    pos = inputs.flat_pos.to(torch.int32)
    options = {"interleave": inputs.case.pairing == "interleaved", "rope_theta": inputs.rope.base}

    def rotate(xs):
        apply_rope_pos_ids_inplace(*xs, pos, **options)
        return xs

    return Rotate(rotate, "tokens", in_place=True, gradient=False)
