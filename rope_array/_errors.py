"""The exceptions: each says what was given, what is needed and what to do."""

from typing import Any

__all__ = [
    "ArrayTypeError",
    "BackendError",
    "ConfigError",
    "PositionError",
    "RoPEError",
    "ShapeError",
    "SpecError",
]


class RoPEError(Exception):
    """Base of every exception this library raises on purpose."""


class SpecError(RoPEError, ValueError):
    """A field of `RoPE` has a value that names no rotary embedding."""


class ConfigError(SpecError):
    """A config that cannot be read, contradicts itself, or names what is no known rotary embedding."""


class ArrayTypeError(RoPEError, TypeError):
    """An array, or a position, of a type, dtype, library or device that cannot be served."""


class ShapeError(RoPEError, ValueError):
    """Shapes that do not fit: the width of x, or positions that do not line up with x."""


class PositionError(RoPEError, ValueError):
    """A position whose value, seen on the host, is out of range."""


class BackendError(RoPEError, ValueError):
    """A `backend=` that does not exist or does not serve the array given."""


def describe(value: Any) -> str:
    """Say what a value is, in the notation of shapes: ``float32[2, 8, 64] (numpy)``."""
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        dtype = getattr(value.dtype, "name", None) or str(value.dtype).rpartition(".")[2]
        return f"{dtype}[{', '.join(map(str, value.shape))}] ({library_name(value)})"
    if isinstance(value, (list, tuple)):
        return f"a {type(value).__name__} of length {len(value)}"
    return f"{short(value)} ({type(value).__name__})"


def short(value: Any) -> str:
    """Write a value so that it fits a message."""
    try:
        text = repr(value)
    except ValueError:  # Python writes no integer of thousands of digits, nor what holds one
        if isinstance(value, int):
            return f"a number of {value.bit_length()} bits"
        return f"a {type(value).__name__} that cannot be written out"
    return text if len(text) <= 80 else f"{text[:77]}..."


def printable(text: str) -> str:
    """Escape the control characters of a text from elsewhere: a terminal would obey them."""
    return "".join(c if c.isprintable() or c == "\n" else repr(c)[1:-1] for c in text)


def library_name(value: Any) -> str:
    """Name the library an array comes from, as a user would write it."""
    for cls in type(value).__mro__:
        root = cls.__module__.partition(".")[0]
        if root not in ("builtins", "__main__"):
            return "jax" if root == "jaxlib" else root
    return type(value).__name__
