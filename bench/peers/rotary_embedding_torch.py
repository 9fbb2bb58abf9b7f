"""rotary-embedding-torch."""

from rope_array.testing import Target

from ._note import FAR, WIDTH_2, WITH_16_BITS, Note, built, first, release
from ._timed import Timed

_POSITIONS = (
    "positions are made in the dtype of x; bfloat16 has every integer up to 256 only, float16 up to 2,048"
)
NOTES = {
    "rotary-embedding-torch": Note(
        "`RotaryEmbedding(dim, theta=base).rotate_queries_or_keys(x, offset=start)`, with one module for "
        "each dtype, as a model has",
        {**dict.fromkeys(WITH_16_BITS, _POSITIONS), **FAR, **WIDTH_2},
    )
}


def targets() -> list[Target]:
    from rotary_embedding_torch import RotaryEmbedding

    @built
    def embedding(width, base, dtype):
        return RotaryEmbedding(dim=width, theta=base)

    def rotate(x, pos, base=10000.0, rotary_dim=None):
        if rotary_dim == 0:
            return x.clone()  # a model without rotation has no module
        width = x.shape[-1] if rotary_dim is None else rotary_dim
        return embedding(width, base, x.dtype).rotate_queries_or_keys(x, offset=first(pos))

    return [
        Target(
            rotate,
            name="rotary-embedding-torch",
            version=release("rotary-embedding-torch"),
            library="torch",
            positions="offset",
            angles="float32",
        )
    ]


def timed(arrays):
    """The module keeps the angles of up to 8,192 positions from 0; each call computes cos and sin."""
    return {"rotary-embedding-torch": lambda: _timed(arrays)}


def _timed(arrays):
    from rotary_embedding_torch import RotaryEmbedding

    arrays.only("interleaved")
    x, start = arrays.torch(), arrays.one_start()
    rotate = RotaryEmbedding(dim=x.shape[-1]).rotate_queries_or_keys
    return Timed(lambda: rotate(x, offset=start))
