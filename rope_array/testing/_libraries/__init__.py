"""The array libraries that the suite knows: conversions, capabilities and gaps of each.

The tests' marks and sessions, the command line, and the tables of the documentation and of README.md are made
from this table. A library is imported on first use.
"""

from ._base import MODES, SETTINGS, Array, ArrayLibrary, MissingLibrary, numpy_dtype, rounded, widened
from ._jax import JaxLibrary, ShardedJaxLibrary
from ._numpy import CubedLibrary, DaskLibrary, NumPyLibrary, ReadOnlyNumPyLibrary, StrictLibrary
from ._others import CuPyLibrary, MArrayLibrary, MLXLibrary, NDonnxLibrary, TensorFlowLibrary
from ._registered import registered_library
from ._torch import TorchLibrary, with_own_code

__all__ = [
    "DEFAULT_CONFIGURATIONS",
    "LIBRARIES",
    "MODES",
    "NOT_COMPILED",
    "SETTINGS",
    "Array",
    "ArrayLibrary",
    "JaxLibrary",
    "MissingLibrary",
    "NumPyLibrary",
    "TorchLibrary",
    "numpy_dtype",
    "registered_library",
    "rounded",
    "widened",
    "with_own_code",
]

_TORCH_INTERPRETED = TorchLibrary(
    "torch:triton-interpret",
    backend="triton",
    compiles=False,
    calls=40,  # each takes milliseconds
    configuration="the Triton kernel, interpreted",
)

LIBRARIES: dict[str, ArrayLibrary] = {
    lib.name: lib
    for lib in (
        NumPyLibrary(),
        ReadOnlyNumPyLibrary(),
        TorchLibrary(),
        TorchLibrary(
            "torch:meta",
            device="meta",
            has_values=False,
            compiles=False,
            configuration="shapes and dtypes only",
        ),
        TorchLibrary("torch:cuda", device="cuda"),
        _TORCH_INTERPRETED,
        JaxLibrary(),
        JaxLibrary(
            "jax:x64",
            x64=True,
            floats=(*JaxLibrary.floats, "float64"),
            integers=ArrayLibrary.integers,
            configuration="x64",
        ),
        JaxLibrary("jax:gpu", platform="gpu"),
        ShardedJaxLibrary(),
        CuPyLibrary(),
        DaskLibrary(),
        CubedLibrary(),
        StrictLibrary(),
        StrictLibrary("array_api_strict:device1", device="device1"),
        StrictLibrary(
            "array_api_strict:no_x64", device="no_x64", floats=("float32",), integers=JaxLibrary.integers
        ),
        MLXLibrary(),
        TensorFlowLibrary(),
        NDonnxLibrary(),
        MArrayLibrary(),
    )
}
# Each library once.
DEFAULT_CONFIGURATIONS = [lib for name, lib in LIBRARIES.items() if ":" not in name]

# Compiling takes seconds: compile float32, and bfloat16 for all widened dtypes.
NOT_COMPILED = dict.fromkeys(
    (
        *("float16", "float64", "narrow_heads", "widths", "wide_heads", "python_positions"),
        *(mode for mode in MODES if mode != "no_grad"),
    ),
    "not compiled here, to save time; the target without a compiler has it",
) | {"threads": "compiled code is called by one thread here"}
