"""The array libraries that the suite knows: conversions, capabilities and gaps of each.

The tests' marks, the command line and the documentation's table are made from this table. A library is
imported on first use.
"""

from ._base import MODES, SETTINGS, Array, Library, MissingLibrary, numpy_dtype, rounded, widened
from ._jax import Jax, JaxSharded
from ._numpy import Cubed, Dask, NumPy, ReadOnlyNumPy, Strict
from ._others import MLX, CuPy, MArray, NDonnx, TensorFlow
from ._torch import Torch, with_own_code

__all__ = [
    "LIBRARIES",
    "MODES",
    "NOT_COMPILED",
    "SETTINGS",
    "Array",
    "Jax",
    "Library",
    "MissingLibrary",
    "NumPy",
    "Torch",
    "numpy_dtype",
    "rounded",
    "widened",
    "with_own_code",
]

_TORCH_INTERPRETED = Torch(
    "torch:triton-interpret",
    backend="triton",
    compiles=False,
    calls=40,  # each takes milliseconds
    configuration="the Triton kernel, interpreted",
)

LIBRARIES: dict[str, Library] = {
    lib.name: lib
    for lib in (
        NumPy(),
        ReadOnlyNumPy(),
        Strict(),
        Strict("array_api_strict:device1", device="device1"),
        Strict("array_api_strict:no_x64", device="no_x64", floats=("float32",), integers=Jax.integers),
        Dask(),
        Cubed(),
        Jax(),
        Jax(
            "jax:x64",
            x64=True,
            floats=(*Jax.floats, "float64"),
            integers=Library.integers,
            configuration="x64",
        ),
        Jax("jax:gpu", platform="gpu"),
        JaxSharded(),
        Torch(),
        Torch(
            "torch:meta",
            device="meta",
            has_values=False,
            compiles=False,
            configuration="shapes and dtypes only",
        ),
        Torch("torch:cuda", device="cuda"),
        _TORCH_INTERPRETED,
        CuPy(),
        MLX(),
        TensorFlow(),
        NDonnx(),
        MArray(),
    )
}

# Compiling takes seconds: compile float32, and bfloat16 for all widened dtypes.
NOT_COMPILED = dict.fromkeys(
    (
        *("float16", "float64", "narrow_heads", "widths", "wide_heads", "python_positions"),
        *(mode for mode in MODES if mode != "no_grad"),
    ),
    "not compiled here, to save time; the target without a compiler has it",
) | {"threads": "compiled code is called by one thread here"}
