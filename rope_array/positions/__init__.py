"""Build positions, the `pos` of `apply` and `rotation`, on every array library.

The shape of an array does not show the positions of its tokens: a cache, padding, packing and sharding each
need a builder. The builders take plain numbers and arrays. Python numbers, sequences and NumPy arrays are on
the host: the builders check their values, and move them to the device of the call's other arrays, or of
`like`. Only `mrope` reads the values of other arrays. No shape depends on values, so all builders except
`mrope` work in a tracer.

Integers are int64, or int32 where the library has no 64-bit integers. Fractional coordinates are float32, or
float64 by `dtype`; never 16-bit floats, which skip integers.
"""

from ._grids import grid, normalized_grid, video_grid
from ._mrope import mrope
from ._sequences import context_parallel, documents, from_mask, offset, packed, text

__all__ = [
    "context_parallel",
    "documents",
    "from_mask",
    "grid",
    "mrope",
    "normalized_grid",
    "offset",
    "packed",
    "text",
    "video_grid",
]


def __dir__() -> list[str]:
    return __all__
