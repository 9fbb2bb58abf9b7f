"""x-transformers."""

from rope_array.testing import Target

from ._note import FAR, WIDTH_2, Note, built, release

NOTES = {
    "x-transformers": Note(
        "`freqs, scale = RotaryEmbedding(dim, base=base)(pos)`, then `apply_rotary_pos_emb(x, freqs, scale)`",
        {**FAR, **WIDTH_2},
    )
}


def targets() -> list[Target]:
    from x_transformers.x_transformers import RotaryEmbedding, apply_rotary_pos_emb

    @built
    def embedding(width, base):
        return RotaryEmbedding(width, base=base)

    def rotate(x, pos, base=10000.0, rotary_dim=None):
        if rotary_dim == 0:
            return x.clone()  # a model without rotation has no module
        freqs, scale = embedding(x.shape[-1] if rotary_dim is None else rotary_dim, base)(pos)
        return apply_rotary_pos_emb(x, freqs, scale)

    return [
        Target(
            rotate,
            name="x-transformers",
            version=release("x-transformers"),
            library="torch",
            layout="bhsd",
            angles="float32",
        )
    ]
