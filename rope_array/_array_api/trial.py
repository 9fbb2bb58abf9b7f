"""Check that a library has all that a rotation needs of the Array API, by names and by a trial rotation.

The values of x are not read.
"""

from typing import Any

from rope_array._errors import describe, printable
from rope_array._spec.plan import Layout, Plan, Words

from .angles import cos_sin
from .library import Library, unsupported
from .ops import ArrayOps
from .pairs import align_and_rotate
from .source import CallOptions

# Used by every rotation, or to read its positions. `positions` and learned tables use more.
FUNCTIONS = (
    *("__array_namespace_info__", "arange", "asarray", "astype", "concat", "cos", "full", "permute_dims"),
    *("reshape", "round", "sin", "take", "where", "zeros_like", "int32", "float32"),
)
_ATTRIBUTES = ("device", "dtype", "ndim", "shape")
_PLAN = Plan(Layout(2, 0, 2, "interleaved", "interleaved", 1.0), Words([1.0], [1], [1]))


def check_library(x: Any, lib: Library) -> None:
    """Raise if the library of x lacks names of the Array API, or fails in a trial rotation."""
    if missing := _missing(x, lib):
        raise unsupported(x, lib.name, f"lacks {', '.join(missing)} of the Python Array API")
    check_by_trial(x, lib)


def _missing(x: Any, lib: Library) -> list[str]:
    """Return the names that a library and its array lack, without those that the `Library` replaces."""
    replaced = {"__array_namespace_info__"} if type(lib).has_int64 is not Library.has_int64 else set()
    replaced |= {"device"} if lib.implicit_device else set()
    missing = [name for name in FUNCTIONS if name not in replaced and not hasattr(lib.xp, name)]
    attributes = (name for name in _ATTRIBUTES if name not in replaced and not hasattr(x, name))
    return missing + [f"the array's {name}" for name in attributes]


def check_by_trial(x: Any, lib: Library) -> None:
    """Rotate two pairs on the device of x; raise if an operation fails or returns another dtype.

    The error has all names that are missing: a Library may do without some, by overrides.
    """
    ops = lib.ops(x)
    try:
        y = _rotate_two_pairs(ops)
        fault = None if _fits(y, ops) else f"returned {describe(y)}, not float32[2, 2]"
    except Exception as error:  # of the library: it has half of the standard
        fault = f"raised {type(error).__name__}: {error}"
    if fault is not None:
        fault = f"{fault} in a trial rotation of two pairs"
        if missing := _missing(x, lib):
            fault += (
                f". It lacks {', '.join(missing)}: add them to xp, or override the methods that call them"
            )
        raise unsupported(x, lib.name, printable(fault))


def _rotate_two_pairs(ops: ArrayOps) -> Any:
    xp = ops.xp
    integers = xp.arange(0, 2, 1, dtype=xp.int64 if ops.has_int64 else xp.int32, **ops.creation_kwargs)
    tables = cos_sin(integers, None, _PLAN, False, ops)
    x = xp.asarray([[1.0, 2.0], [3.0, 4.0]], dtype=xp.float32, **ops.creation_kwargs)
    return align_and_rotate(x, *tables, _PLAN.layout, CallOptions(), ops)


def _fits(y: Any, ops: ArrayOps) -> bool:
    return bool(y.dtype == ops.xp.float32) and tuple(y.shape) == (2, 2)
