"""The array-library operations handed to the arithmetic, so that it imports no library."""

from operator import rshift
from typing import Any, NamedTuple


class ArrayOps(NamedTuple):
    """The operations and facts of one array library that the arithmetic uses.

    Attributes
    ----------
    xp
        The Array API namespace.
    has_int64
        Whether it has 64-bit integers; JAX without x64 has none.
    creation_kwargs
        Keyword arguments of creation functions: the device, if it has to be named.
    constants
        Makes an array of plain numbers: ``constants(numbers, dtype, creation_kwargs)``.
    cast
        Casts an array to a dtype: ``cast(array, dtype)``.
    reshape
        Gives an array another shape: ``reshape(array, shape)``.
    needs_equal_ndim
        Whether factors need equally many axes, which JAX can be configured to enforce.
    right_shift
        Shifts integers right: ``right_shift(array, count)``. TensorFlow has no operator for it.
    with_shape_of
        Gives a result the shape of an x of unknown sizes: ``with_shape_of(y, x)``.
    is_exported
        Whether another tool will run the arithmetic, such as a runtime of ONNX: see `digits`.
    """

    xp: Any
    has_int64: bool
    creation_kwargs: dict[str, Any]
    constants: Any
    cast: Any
    reshape: Any
    needs_equal_ndim: bool = True
    right_shift: Any = rshift
    with_shape_of: Any = None
    is_exported: bool = False
