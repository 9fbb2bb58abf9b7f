"""torchtune's RotaryPositionalEmbeddings."""

from functools import partial

from rope_array.testing import Target

from ._note import FAR, Note, built, release, without_init

NOTES = {
    "torchtune": Note(
        "`RotaryPositionalEmbeddings(dim, max_seq_len, base)(x, input_pos=pos)`, where max_seq_len is the "
        "power of two above the positions. Its module is imported without the package's `__init__`, which "
        "needs datasets and an old torchao",
        FAR,
    )
}


def targets() -> list[Target]:
    without_init("torchtune", "torchtune.modules")
    from torchtune.modules.position_embeddings import RotaryPositionalEmbeddings

    @partial(built, size=4)  # a table of 2^20 rows has 256 MiB
    def embedding(width, length, base):
        return RotaryPositionalEmbeddings(width, max_seq_len=length, base=base)

    def rotate(x, pos, base=10000.0):
        length = max(4096, 1 << int(pos.max()).bit_length()) if pos.numel() else 4096
        return embedding(x.shape[-1], length, base)(x, input_pos=pos)

    return [
        Target(
            rotate,
            name="torchtune",
            version=release("torchtune"),
            library="torch",
            layout="bshd",
            furthest=2**20,  # a table up to 2^24 would take 4 GB
            angles="float32",
            lacks={
                "float64": "computes in float32",
                "head_positions": "takes (B, S)",
                "negative_positions": "positions are rows of its table",
            },
        )
    ]
