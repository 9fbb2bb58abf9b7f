"""Liger's Triton kernel, interpreted: the environment variable TRITON_INTERPRET has to be 1."""

from rope_array.testing import Target

from ._note import FAR, Note, release
from ._timed import Rotate

_IN_PLACE = (
    "the kernel rotates the transposed incoming gradient in place where it is contiguous, as with one row; "
    "so it overwrites this gradient"
)
NOTES = {
    "Liger, Triton kernel": Note(
        "`LigerRopeFunction.apply(q, k, cos, sin)`, in Triton's interpreter on the CPU, with cos and sin of "
        "transformers' `LlamaRotaryEmbedding`, as in the models that Liger patches. q is a copy, as the "
        "function rotates in place; it has the strides of (B, S, H, D), as in these models (a contiguous "
        "(B, H, 1, D) is misread)",
        {
            **FAR,
            "gradient_of_shapes": "the kernel steps from row to row by the stride of the sequence axis; "
            "with one row this stride is arbitrary, so an incoming gradient that is "
            "contiguous as (B, H, 1, D) is misread",
            "gradient_of_a_gradient": "the backward is a kernel, which autograd does not record; so the "
            "gradient of a gradient is not rotated",
            **dict.fromkeys(("gradient*", "calls_after_a_gradient"), _IN_PLACE),
        },
    )
}


def targets() -> list[Target]:
    import torch
    from liger_kernel.ops.rope import LigerRopeFunction

    from ._llama import cos_sin

    def rotate(x, pos, base=10000.0):
        # The kernel writes to query and key. The key has one head.
        copies = (heads.clone(memory_format=torch.contiguous_format) for heads in (x, x[:, :, :1]))
        query, key = (copy.transpose(1, 2) for copy in copies)
        return LigerRopeFunction.apply(query, key, *cos_sin(query, pos, base))[0].transpose(1, 2)

    return [
        Target(
            rotate,
            name="Liger, Triton kernel",
            version=release("liger-kernel", "triton"),
            library="torch",
            fixed={"pairing": "half"},
            layout="bshd",
            angles="float32",
            arithmetic="own",
            lacks={
                "broadcast_positions": "takes a row of cos and sin for each row of x",
                "head_positions": "takes (B, S)",
                "bfloat16": "Triton's interpreter truncates bfloat16 where a GPU rounds it",
                "threads": "Triton's interpreter keeps its state for one thread",
            },
        )
    ]


def on_gpu(inputs):
    """`LigerRopeFunction.apply(q, k, cos, sin)` in place.

    cos and sin are of x's dtype, made before the timing. q and k are (B, H, S, D). If they have another order
    of memory than (B, S, H, D), the function copies them.
    """
    return {"Liger, Triton kernel": lambda: _on_gpu(inputs)}


def _on_gpu(inputs):
    from liger_kernel.ops.rope import LigerRopeFunction

    inputs.only("half")
    inputs.only_q_and_k()
    tables = inputs.token_tables()
    # Newer versions return cos and sin too.
    return Rotate(lambda xs: LigerRopeFunction.apply(*xs, *tables)[:2], "bhsd", in_place=True)
