"""The exceptions. Each message names the value given, the value needed, and the remedy."""

from collections.abc import Sequence
from typing import Any

__all__ = [
    "ArrayTypeError",
    "BackendError",
    "ConfigError",
    "FingerprintError",
    "PatchError",
    "PositionError",
    "RoPEError",
    "ShapeError",
    "SpecError",
]


class RoPEError(Exception):
    """Base of every exception that this library raises on purpose."""


class SpecError(RoPEError, ValueError):
    """A field of `RoPE` has a value that names no rotary embedding."""


class ConfigError(SpecError):
    """A config is unreadable, contradicts itself, or names no known rotary embedding."""


class ArrayTypeError(RoPEError, TypeError):
    """An array or a position has a type, dtype, library or device that is not supported."""


class ShapeError(RoPEError, ValueError):
    """Shapes do not fit: the width of x, or positions that do not line up with x."""


class PositionError(RoPEError, ValueError):
    """A position that is on the host has a value out of range."""


class PatchError(RoPEError, ValueError):
    """A model cannot be patched or unpatched, and is unchanged; so vLLM's rotation, and an ONNX file."""


class FingerprintError(RoPEError, ValueError):
    """Two fingerprints differ or do not compare, a text holds none, or code returns no rotation."""


class BackendError(RoPEError, ValueError):
    """The `backend=` does not exist, or does not support the array.

    Attributes
    ----------
    backend
        The name of the backend, where one was asked for; else None.
    reason
        Why it does not serve the call; the whole message, if the backend gave no reason.
    """

    def __init__(self, message: str, *, backend: Any = None, reason: str = ""):
        super().__init__(message)
        self.backend = backend
        self.reason = reason or message


for _name in __all__:
    globals()[_name].__module__ = "rope_array"  # the public name, in tracebacks and in pickles


def describe(value: Any) -> str:
    """Describe a value for a message, an array in the notation of shapes: ``float32[2, 8, 64] (numpy)``."""
    if isinstance(value, type):
        return f"the class {value.__name__}"
    shape = getattr(value, "shape", None)
    if hasattr(value, "dtype") and shape is not None and hasattr(shape, "__iter__"):
        dtype = getattr(value.dtype, "name", None) or str(value.dtype).rpartition(".")[2]
        # JAX's: their values are not known.
        traced = ", traced" if type(value).__name__.endswith("Tracer") else ""
        return f"{dtype}[{_sizes(shape)}] ({library_name(value)}{traced})"
    if isinstance(value, (list, tuple)):
        return f"a {type(value).__name__} of length {len(value)}"
    return f"{short(value)} ({type(value).__name__})"


def _sizes(shape: Any) -> str:
    try:
        return ", ".join(map(str, shape))
    except ValueError:  # TensorFlow's, of an unknown number of axes
        return "..."


def describe_other(value: Any) -> str:
    """Describe a value that is no array, though it may have a shape and a dtype, or hold an array."""
    if not hasattr(value, "dtype") or isinstance(value, type):
        return describe(value)
    holds = ", which holds an array" if hasattr(value, "__jax_array__") else ", not an array"
    return f"{describe(value)}, of the type {type(value).__name__}{holds}"


def of_a_model(value: Any, of_model: str = "") -> str:
    """Describe a config or a model in the place of a rope, with the remedy; empty for others."""
    name = type(value).__name__
    if hasattr(value, "model_type") or (isinstance(value, dict) and "model_type" in value):
        return f"a config ({name}); give ra.RoPE.from_config(config)"
    if not hasattr(value, "named_modules") or not hasattr(value, "config"):
        return ""
    remedies = " or ".join(filter(None, (of_model, "ra.RoPE.from_config(model.config)")))
    return f"a model ({name}); give {remedies}"


def static_remedy(argument: str) -> str:
    """Return the remedy for an array in the place of a plain value: jax.jit makes one of each argument."""
    return f" For jax.jit, set it before: jax.jit(functools.partial(rope.apply, {argument}))."


def short(value: Any) -> str:
    """Return the repr of a value, cut to fit a message."""
    try:
        text = repr(value)
    except Exception:  # integers of thousands of digits, a deep nesting, a class with a broken repr
        if isinstance(value, int):
            return f"a number of {value.bit_length()} bits"
        return f"a {type(value).__name__} that cannot be written out"
    return text if len(text) <= 80 else f"{text[:77]}..."


def printable(text: str) -> str:
    """Escape the control characters of a text from elsewhere: a terminal would obey them."""
    return "".join(c if c.isprintable() or c == "\n" else repr(c)[1:-1] for c in text)


def ranges(indices: Sequence[int]) -> str:
    """Write ascending indices with ranges: 0-4, 6, 8."""
    index_set = set(indices)
    starts = [i for i in indices if i - 1 not in index_set]
    ends = [i for i in indices if i + 1 not in index_set]
    return ", ".join(f"{a}" if a == b else f"{a}-{b}" for a, b in zip(starts, ends, strict=True))


def library_name(value: Any) -> str:
    """Return the name of an array's library, as in its import statement."""
    for cls in type(value).__mro__:
        root = cls.__module__.partition(".")[0]
        if root not in ("builtins", "__main__"):
            return "jax" if root == "jaxlib" else root
    return type(value).__name__
