"""The array libraries that the suite knows: conversions, capabilities and gaps of each.

The tests' marks and sessions, the command line, and the tables of the documentation and of README.md are made
from this table. A library is imported on first use.
"""

from . import _chunked, _jax, _numpy, _others, _torch
from ._base import MODES, SETTINGS, Array, ArrayLibrary, MissingLibrary, numpy_dtype, rounded, widened
from ._jax import JaxLibrary
from ._numpy import NumPyLibrary
from ._registered import registered_library, registered_names
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
    "registered_names",
    "rounded",
    "widened",
    "with_own_code",
]

# In the order of README.md's table.
LIBRARIES: dict[str, ArrayLibrary] = {
    lib.name: lib for module in (_numpy, _torch, _jax, _chunked, _others) for lib in module.LIBRARIES
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
