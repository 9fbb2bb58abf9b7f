"""ONNX's reference evaluator: RotaryEmbedding of opset 23."""

from functools import lru_cache

from rope_array.testing import Target

from ._note import Note, release
from ._onnx import caches

NOTES = {
    "ONNX reference evaluator": Note(
        "`ReferenceEvaluator(node).run(None, feeds)`. cos and sin are inputs of the node; they are computed "
        "in float64 and rounded to x's dtype, which the node's type constraint requires"
    )
}


def targets() -> list[Target]:
    from onnx.helper import make_node
    from onnx.reference import ReferenceEvaluator

    @lru_cache
    def evaluator(interleaved, width):
        node = make_node(
            "RotaryEmbedding",
            ["x", "cos", "sin", "ids"],
            ["y"],
            interleaved=interleaved,
            rotary_embedding_dim=width,
        )
        return ReferenceEvaluator(node)

    def rotate(x, pos, pairing="interleaved", rotary_dim=None):
        if rotary_dim == 0:
            return x.copy()  # the node reads 0 as the whole head
        cos, sin, ids = caches(x, pos, rotary_dim)
        run = evaluator(int(pairing == "interleaved"), rotary_dim or 0).run
        return run(None, {"x": x, "cos": cos, "sin": sin, "ids": ids})[0]

    return [
        Target(
            rotate,
            name="ONNX reference evaluator",
            version=release("onnx"),
            library="numpy",
            layout="bhsd",
            dtypes=("float16", "bfloat16", "float32"),
            arithmetic="own",
            lacks={"base": "cos and sin are its inputs"},
        )
    ]
