"""Check that a library has all that a rotation needs of the Array API, by names and by a trial rotation.

Libraries with a backend of their own are not checked. Any other library is checked once for each type of its
arrays, before the first call on this type. The values of x are not read.
"""

from typing import Any

from rope_array._errors import ArrayTypeError, describe, printable
from rope_array._spec.plan import Layout, Plan

from .angles import cos_sin
from .ops import ArrayOps
from .pairs import align_and_rotate

# Used by every rotation, or by the reading of its positions. `positions` and learned tables use more.
FUNCTIONS = (
    *("__array_namespace_info__", "arange", "asarray", "astype", "concat", "cos", "full", "permute_dims"),
    *("reshape", "round", "sin", "take", "where", "zeros_like", "int32", "float32"),
)
_ATTRIBUTES = ("device", "dtype", "ndim", "shape")
_PLAN = Plan(Layout(2, 0, 2, "interleaved", "interleaved", 1.0), True, [1.0], [1], [1])


def check_names(x: Any, xp: Any, name: str) -> None:
    """Raise for an array whose namespace, or type, lacks names of the Array API that a rotation needs."""
    names = [each for each in FUNCTIONS if not hasattr(xp, each)]
    names += [f"the array's {each}" for each in _ATTRIBUTES if not hasattr(x, each)]
    if names:
        raise unsupported(x, name, f"lacks {', '.join(names)} of the Python Array API")


def check_by_trial(x: Any, ops: ArrayOps, name: str) -> None:
    """Rotate two pairs on the device of x, and raise if an operation fails or returns another dtype."""
    try:
        y = _rotate_two_pairs(ops)
        fault = None if _fits(y, ops) else f"returned {describe(y)}, not float32[2, 2]"
    except Exception as error:  # of the library: it has half of the standard
        fault = f"raised {type(error).__name__}: {error}"
    if fault is not None:
        raise unsupported(x, name, printable(f"{fault} in a trial rotation of two pairs"))


def unsupported(x: Any, name: str, reason: str) -> ArrayTypeError:
    """Return the error for an array whose library cannot rotate."""
    dense = "its todense(), or " if hasattr(x, "todense") else ""
    return ArrayTypeError(
        f"{describe(x)} cannot be used: {name} {reason.rstrip('.')}. A rotation needs the Python Array API "
        f"2023.12 or newer. Give {dense}an array of another library, such as NumPy, or add a backend with a "
        f"Library for {name} (docs/write-a-backend.md)."
    )


def _rotate_two_pairs(ops: ArrayOps) -> Any:
    xp = ops.xp
    whole = xp.arange(0, 2, 1, dtype=xp.int64 if ops.has_int64 else xp.int32, **ops.creation_kwargs)
    tables = cos_sin(whole, None, _PLAN, False, ops)
    x = xp.asarray([[1.0, 2.0], [3.0, 4.0]], dtype=xp.float32, **ops.creation_kwargs)
    return align_and_rotate(x, *tables, _PLAN.layout, -2, ops)


def _fits(y: Any, ops: ArrayOps) -> bool:
    return bool(y.dtype == ops.xp.float32) and tuple(y.shape) == (2, 2)
