"""Array operations that the arithmetic calls, so that it imports no library."""

from operator import mul, rshift
from typing import Any

from rope_array._spec.plan import Constants


class ArrayOps:
    """The operations of one array library on one device. A library that lacks one replaces the method.

    Attributes
    ----------
    xp
        The Array API namespace.
    has_int64
        Whether the device has 64-bit integers; JAX without x64 has none.
    creation_kwargs
        Keyword arguments of creation functions: the device, if it has to be named.
    needs_equal_ndim
        Whether factors need equally many axes, which JAX can be configured to enforce.
    is_exported
        Whether the arithmetic is recorded for another tool, such as a runtime of ONNX: see `digits`. Every
        torch.export counts, as its program may be converted later.
    reads_numpy
        Whether lists are read by NumPy: in C, but no compiler may trace the call.
    """

    needs_equal_ndim = True
    is_exported = False
    reads_numpy = False
    cos_sin: Any = None
    """For a library of costly calls, ``cos_sin(quadrant, u)`` for u eighths of a turn; with the same bits."""
    right_shift: Any = staticmethod(rshift)
    """Shift signed integers right by a number of bits, rounding down: ``right_shift(array, count)``."""
    product: Any = staticmethod(mul)
    """Multiply floats and round, though a compiler adds or multiplies the product next: ``product(a, b)``."""

    def __init__(self, xp: Any, has_int64: bool, creation_kwargs: dict[str, Any]):
        self.xp = xp
        self.has_int64 = has_int64
        self.creation_kwargs = creation_kwargs

    def constants(self, numbers: Constants, dtype: Any) -> Any:
        """Make an array of plain numbers."""
        return self.xp.asarray(numbers.values, dtype=dtype, **self.creation_kwargs)

    def stored(self, array: Any) -> Any:
        """Return an array that a compiler computes once, not again in each loop that reads it."""
        return array

    def rounded(self, array: Any) -> Any:
        """Return floats that a compiler rounds before it computes with them."""
        return array

    def inverse_sqrt(self, array: Any) -> Any:
        """Return 1 / sqrt(array): the root rounded, then the quotient."""
        return 1.0 / self.rounded(self.xp.sqrt(array))  # rounded: XLA would compute both in one step

    def look_up(self, numbers: Constants, indices: Any, dtype: Any) -> Any:
        """Return an array of the numbers at these indices."""
        row = self.constants(numbers, dtype)
        flat = self.reshape(indices, (-1,))  # the standard takes one axis of indices
        return self.reshape(self.xp.take(row, flat, axis=0), indices.shape)

    def from_values(self, values: list[Any], dtype: Any) -> Any:
        """Make an array of nested lists of Python numbers."""
        return self.xp.asarray(values, dtype=dtype, **self.creation_kwargs)

    def cast(self, array: Any, dtype: Any) -> Any:
        """Cast an array to a dtype."""
        return self.xp.astype(array, dtype, copy=False)

    def reshape(self, array: Any, shape: tuple[int, ...]) -> Any:
        """Give an array another shape."""
        return self.xp.reshape(array, shape)

    def with_shape_of(self, y: Any, x: Any) -> Any:
        """Give y, a rotated x of unknown sizes, the shape of x; fail in the run if the sizes differ."""
        return y
