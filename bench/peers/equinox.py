"""Equinox's RotaryPositionalEmbedding."""

from rope_array.testing import Target

from ._note import FAR, Note, release
from ._timed import NotServedError, jitted

_TABLE = (
    "the whole process keeps [one "
    "table](https://github.com/patrick-kidger/equinox/blob/main/equinox/nn/_embedding.py) for each (d, "
    "dtype), whatever theta is; so a second theta gets the angles of the first"
)
# Checks that call with several bases.
_WITH_BASES = (
    *("base", "*combinations", "*_and_fields", "one_field_*", "gradient_of_one_field"),
    *(
        "jit_of_fields",
        "jit_of_gradients",
        "gradient_of_shapes",
        "calls_that_differ_*",
        "fields_that_differ_*",
        "calls_after_a_compiled_one",
        *("default_dtype", "vmap", "jvp"),
    ),
)
NOTES = {
    "Equinox": Note(
        "`eqx.nn.RotaryPositionalEmbedding(d, theta=base, dtype=x.dtype)(x)` on (S, D), called for each "
        "batch and head; it takes no positions",
        {**FAR, **dict.fromkeys(_WITH_BASES, _TABLE)},
    )
}


def targets() -> list[Target]:
    from equinox.nn import RotaryPositionalEmbedding

    def rotate(x, pos, base=10000.0):
        return RotaryPositionalEmbedding(x.shape[-1], theta=base, dtype=x.dtype)(x)

    return [
        Target(
            rotate,
            name="Equinox",
            version=release("equinox"),
            library="jax",
            fixed={"pairing": "half"},
            layout="sd",
            positions="arange",
            angles="float32",
            arithmetic="own",
        )
    ]


def timed(arrays):
    """The table is a constant of the jitted function."""
    return {"Equinox, jax.jit": lambda: _timed(arrays)}


def _timed(arrays):
    import jax
    from equinox.nn import RotaryPositionalEmbedding

    arrays.only("half")
    if arrays.pos.ndim > 1 or arrays.start:
        raise NotServedError("takes no positions")
    x = arrays.jax()
    module = RotaryPositionalEmbedding(x.shape[-1], dtype=x.dtype)
    return jitted(jax.vmap(jax.vmap(module)), x)
