"""Hugging Face transformers: Llama, whose code most of its models share, RoFormer, and V-JEPA 2."""

from functools import partial

from rope_array.testing import Target

from ._note import FAR, Note, built, release
from ._timed import Rotate, Timed, compiled, compiled_on_gpu

NOTES = {
    "transformers Llama": Note(
        "`LlamaRotaryEmbedding(config)(x, position_ids)`, then `apply_rotary_pos_emb(q, k, cos, sin)`; "
        "`config.rope_parameters` has the base",
        FAR,
    ),
    "transformers RoFormer": Note(
        "`RoFormerSinusoidalPositionalEmbedding` with as many rows as the positions need, in x's dtype as "
        "in its model, then `RoFormerSelfAttention.apply_rotary_position_embeddings`"
    ),
    "transformers V-JEPA 2": Note(
        "`rotate_queries_or_keys(x, pos)`, which the model calls for each of its three axes",
        {
            "*": "cos and sin are arranged for half pairs, and x is rotated in interleaved pairs; so the "
            "two features of a pair have different angles, which is no rotation ([vjepa2 "
            "#15](https://github.com/facebookresearch/vjepa2/pull/15)). 16-bit angles are computed in "
            "x's dtype"
        },
    ),
}


def targets() -> list[Target]:
    return [_llama(), _roformer(), _vjepa2()]


def _llama() -> Target:
    from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

    from ._llama import cos_sin

    def rotate(x, pos, base=10000.0):
        return apply_rotary_pos_emb(x, x, *cos_sin(x, pos, base))[0]

    return Target(
        rotate,
        name="transformers Llama",
        version=release("transformers"),
        library="torch",
        fixed={"pairing": "half"},
        layout="bhsd",
        angles="float32",
        arithmetic="own",
        lacks={"head_positions": "takes (B, S)"},
    )


def _roformer() -> Target:
    import torch
    from transformers.models.roformer import modeling_roformer as roformer

    @built
    def weight(length, width):
        return roformer.RoFormerSinusoidalPositionalEmbedding(length, width).create_weight()

    @built
    def table(length, width, dtype):
        embedding = roformer.RoFormerSinusoidalPositionalEmbedding(length, width)
        embedding.weight = torch.nn.Parameter(weight(length, width).to(dtype), requires_grad=False)
        return embedding

    def rotate(x, pos):
        # 1536 is the configuration's default; longer tables, made by NumPy scalars, take seconds.
        last = int(pos.max()) if pos.numel() else 0
        length = 1536 if last < 1536 else 1 + (1 << (last - 1).bit_length())
        rows = table(length, x.shape[-1], x.dtype)(x.shape[:1] + x.shape[2:3], position_ids=pos)
        sinusoidal = rows[:, None] if pos.ndim == 2 else rows[None, None]
        return roformer.RoFormerSelfAttention.apply_rotary_position_embeddings(sinusoidal, x, x)[0]

    return Target(
        rotate,
        name="transformers RoFormer",
        version=release("transformers"),
        library="torch",
        layout="bhsd",
        furthest=2**16,
        arithmetic="own",
        lacks={
            "float64": "its table is rounded to float32",
            "head_positions": "takes (S,) or (B, S)",
            "negative_positions": "positions are rows of its table",
        },
    )


def _vjepa2() -> Target:
    from transformers.models.vjepa2 import modeling_vjepa2 as vjepa2

    return Target(
        lambda x, pos: vjepa2.rotate_queries_or_keys(x, pos),
        name="transformers V-JEPA 2",
        version=release("transformers"),
        library="torch",
        layout="bhsd",
        angles="float32",
        arithmetic="own",
        lacks={
            "batch_positions": "takes (S,) or (B, H, S)",
            "broadcast_positions": "takes a position for each row",
        },
    )


def timed(arrays):
    """cos and sin are made before, as the model makes them once for all layers."""
    return {
        "transformers Llama": lambda: _timed(arrays),
        "transformers Llama, torch.compile": lambda: compiled(_one_of_two(), *_inputs(arrays)),
    }


def _timed(arrays):
    rotate, inputs = _one_of_two(), _inputs(arrays)
    return Timed(lambda: rotate(*inputs))


def _inputs(arrays):
    import torch

    from ._llama import cos_sin

    arrays.only("half")
    x = arrays.torch()
    return x, *cos_sin(x, torch.from_numpy(arrays.pos), 10000.0)


def _one_of_two():
    """The lines of `apply_rotary_pos_emb` for one of the two arrays that it takes."""
    from transformers.models.llama.modeling_llama import rotate_half

    def rotate(x, cos, sin):
        cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
        return (x * cos) + (rotate_half(x) * sin)

    return rotate


def on_gpu(inputs):
    """`apply_rotary_pos_emb(q, k, cos, sin)` of (B, H, S, D), eager and compiled.

    cos and sin are of x's dtype, made before the timing, as the model makes them once for all layers.
    """
    return {
        "transformers Llama": lambda: _on_gpu(inputs, lambda function: function),
        "transformers Llama, torch.compile": lambda: _on_gpu(inputs, compiled_on_gpu),
        "transformers Llama, torch.compile, reduce-overhead": lambda: _with_less_overhead(inputs),
    }


def _on_gpu(inputs, compile, **options):
    from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

    inputs.only("half")
    inputs.only_q_and_k()
    tables = inputs.token_tables()
    rotate = compile(apply_rotary_pos_emb)
    return Rotate(lambda xs: rotate(*xs, *tables), "bhsd", **options)


def _with_less_overhead(inputs):
    compile = partial(compiled_on_gpu, mode="reduce-overhead")
    return _on_gpu(inputs, compile, gradient=False, graph=False)
