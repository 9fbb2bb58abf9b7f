"""keras-hub's RotaryEmbedding, on the backend that the environment variable KERAS_BACKEND names."""

from functools import lru_cache

from rope_array.testing import Target

from ._note import FAR, Note, release
from ._timed import NotServedError, jitted

_CAST = (
    "Keras casts float positions to the dtype of the layer; bfloat16 has every integer up to 256 only, and "
    "float16 ends at 65,504"
)
_NOTE = Note(
    "`keras_hub.layers.RotaryEmbedding(max_wavelength=base, dtype=...)(x, positions=pos)`, with x of (B, S, "
    "H, D)",
    {
        **FAR,
        **dict.fromkeys(
            ("accuracy_float*", "combinations", "widths_and_positions", "calls_that_differ_*"), _CAST
        ),
    },
)
_NAMES = {"jax": "keras-hub on JAX", "torch": "keras-hub on PyTorch"}
NOTES = dict.fromkeys(_NAMES.values(), _NOTE)


def targets() -> list[Target]:
    import keras
    from keras_hub.layers import RotaryEmbedding

    @lru_cache
    def layer(base, dtype):
        return RotaryEmbedding(max_wavelength=base, dtype=dtype)

    def rotate(x, pos, base=10000.0):
        return layer(base, keras.backend.standardize_dtype(x.dtype))(x, positions=pos)

    library = keras.backend.backend()
    return [
        Target(
            rotate,
            name=_NAMES[library],
            version=release("keras-hub", "keras"),
            library=library,
            fixed={"pairing": "half"},
            layout="bshd",
            angles="float32",
            arithmetic="own",
        )
    ]


def timed(arrays):
    """Each call computes cos and sin, in a jitted layer, as Keras compiles a model."""
    return {"keras-hub, jax.jit": lambda: _timed(arrays)}


def _timed(arrays):
    import jax.numpy as jnp
    import keras
    from keras_hub.layers import RotaryEmbedding

    if keras.backend.backend() != "jax":
        raise NotServedError("set KERAS_BACKEND=jax")
    arrays.only("half")
    layer = RotaryEmbedding(dtype=arrays.dtype)
    x, pos = arrays.jax("bshd"), jnp.asarray(arrays.pos, "int32")
    return jitted(lambda x, pos: layer(x, positions=pos), x, pos, layout="bshd")
