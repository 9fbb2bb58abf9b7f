"""What the arithmetic is handed of the library it runs on, so that it imports none."""

from typing import Any, NamedTuple


class Kit(NamedTuple):
    """What the arithmetic needs to know of the library it runs on.

    Attributes
    ----------
    xp
        The Array API namespace.
    wide
        Whether it has 64-bit integers (JAX without x64 has none).
    create
        Keyword arguments of creation functions: the device, where there is one to name.
    constants
        Makes an array of plain numbers: ``constants(numbers, dtype, create)``.
    cast
        Brings an array to a dtype: ``cast(array, dtype)``.
    reshape
        Gives an array another shape: ``reshape(array, shape)``.
    same_ranks
        Whether factors are given equally many axes, which JAX can be told to insist on.
    """

    xp: Any
    wide: bool
    create: dict[str, Any]
    constants: Any
    cast: Any
    reshape: Any
    same_ranks: bool = True
