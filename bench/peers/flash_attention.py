"""flash-attention's Triton kernel, interpreted: the environment variable TRITON_INTERPRET has to be 1."""

from contextlib import nullcontext

from rope_array.testing import Target

from ._note import FAR, Note, built, first, release, without_init
from ._timed import Rotate

_IN_PLACE = (
    "the module's backward rotates the incoming gradient in place; so it overwrites this gradient, and "
    "misreads the gradient of a sum, whose elements share one address"
)
NOTES = {
    "flash-attn, Triton kernel": Note(
        "`flash_attn.layers.rotary.RotaryEmbedding(dim, base, interleaved)(q, kv, seqlen_offset=start)`, in "
        "Triton's interpreter on the CPU. q is a copy, as the module rotates in place. The module is "
        "imported without the package's `__init__`, which needs its CUDA code",
        {
            **FAR,
            "gradient_of_a_gradient": "the module's backward rotates the incoming gradient in place, which "
            "autograd does not record; so the gradient of a gradient is not rotated",
            **dict.fromkeys(("gradient*", "calls_after_a_gradient", "training_after_inference"), _IN_PLACE),
        },
    )
}


def targets() -> list[Target]:
    import torch

    without_init("flash_attn")
    # Both are for a GPU only: the device to launch on, and the kernel's wrapper for torch.compile.
    torch.cuda.device = lambda index: nullcontext()
    torch.library.wrap_triton = lambda kernel: kernel
    from flash_attn.layers.rotary import RotaryEmbedding

    @built
    def embedding(width, base, interleaved, dtype):
        return RotaryEmbedding(width, base=base, interleaved=interleaved)

    def rotate(x, pos, base=10000.0, rotary_dim=None, pairing="half"):
        if rotary_dim == 0:
            return x.clone()  # a model without rotation has no module
        width = x.shape[-1] if rotary_dim is None else rotary_dim
        b, s, _, d = x.shape
        module = embedding(width, base, pairing == "interleaved", x.dtype)
        return module(x.clone(), kv=x.new_zeros(b, s, 2, 1, d), seqlen_offset=first(pos))[0]

    return [
        Target(
            rotate,
            name="flash-attn, Triton kernel",
            version=release("flash-attn", "triton"),
            library="torch",
            layout="bshd",
            positions="offset",
            furthest=2**20,  # a table up to 2^24 would take 4 GB
            angles="float32",
            arithmetic="own",
            lacks={
                "negative_positions": "would be read from before its table",
                "bfloat16": "Triton's interpreter truncates bfloat16 where a GPU rounds it",
                "threads": "Triton's interpreter keeps its state for one thread",
                "float64": "computes in float32",
            },
        )
    ]


def on_gpu(inputs):
    """`apply_rotary(x, cos, sin)` for q and then for k, of (B, S, H, D).

    The table is made before the timing. Gradients are those of `flash_attn.layers.rotary.apply_rotary_emb`,
    which calls the same kernel.
    """
    return {"flash-attn, Triton kernel": lambda: _on_gpu(inputs)}


def _on_gpu(inputs):
    import torch
    from flash_attn.layers.rotary import apply_rotary_emb
    from flash_attn.ops.triton.rotary import apply_rotary

    rotate = apply_rotary if inputs.case.direction == "forward" else apply_rotary_emb
    cos, sin = inputs.half_tables()
    # A start for each sequence in decoding; prefill starts at 0.
    starts = inputs.flat_pos.to(torch.int32) if inputs.case.tokens == 1 else 0
    options = {"interleaved": inputs.case.pairing == "interleaved", "seqlen_offsets": starts}
    return Rotate(lambda xs: tuple(rotate(x, cos, sin, **options) for x in xs))
