"""Positions as the caller gave them: their checks, and the arrays that are made of them.

Positions become (integers, fractions): two arrays; fractions are None for integer positions. The host splits
its floats in float64, exactly.
"""

from numbers import Integral, Real
from typing import Any

from rope_array._errors import (
    ArrayTypeError,
    PositionError,
    ShapeError,
    describe,
    describe_other,
    library_name,
    short,
)
from rope_array._spec.shape_rule import without_coordinates

from .library import POSITION_DTYPES, Library, dtype_name, is_array_of_any_library, is_numpy, is_numpy_scalar
from .ops import ArrayOps
from .source import Positions

# Limit of float positions on the host: their integer part must fit int32.
_FLOAT_LIMIT = 2.0**31
_LARGEST = 2**31 - 1  # the nearest integer of a float just below the limit would be one more
_MOST_AXES = 64
_WITH_FLOAT64 = ("array_api_strict", "cupy", "dask", "jax", "numpy", "tensorflow", "torch")
_PYTHON = (int, float, range, list, tuple)


def check_positions(source: Positions, x: Any, lib: Library) -> tuple[Any, ...]:
    """Check the kind, dtype and device of positions; return their shape without the axis of coordinates.

    Positions are an array of x's library, Python values, or a NumPy array if the library accepts them.
    """
    pos = source.values
    if isinstance(pos, _PYTHON) or _is_symbolic(pos):
        shape = python_shape(pos)
        return shape if source.plan.coordinates is None else without_coordinates(shape, source.plan)
    if lib.is_array(pos):
        lib.check_supported(pos)
        if not lib.same_device(pos, x):
            raise ArrayTypeError(
                f"pos is on {lib.device(pos)} and x on {lib.device(x)}; move one of them: nothing moves "
                "silently."
            )
    elif not _has_dtype(pos):
        raise ArrayTypeError(
            f"pos is {describe(pos)}; give a number, a range, a sequence, or an array of x's library."
        )
    elif not is_numpy_scalar(pos) and not (lib.takes_numpy and is_numpy(pos)):
        raise ArrayTypeError(_other_library(pos, x, lib))
    if dtype_name(pos) not in POSITION_DTYPES:
        raise ArrayTypeError(_refused_dtype(pos))
    return without_coordinates(tuple(pos.shape), source.plan)


def check_largest(pos: Any, limit: int) -> None:
    """Raise PositionError for a position beyond a limit. Positions on a device are never read.

    Called before the dispatch: the kernel's fast entry serves calls without the other checks.
    """
    largest = _largest(pos)
    if largest is not None and largest > limit:
        raise PositionError(
            f"position {short(largest)} is beyond max_position={limit}; give positions up to {limit}, or a "
            "rope with a larger max_position."
        )


def _largest(pos: Any) -> Any:
    """Return the largest number of positions on the host; None of other positions, and of no numbers."""
    if isinstance(pos, (list, tuple)):
        python_shape(pos)  # refuses a list that holds itself, say
        found = [p for p in map(_largest, pos) if p is not None]
        return max(found) if found else None
    if isinstance(pos, range):
        return max(pos[0], pos[-1]) if pos else None
    if _is_number(pos):
        return pos
    # Dynamo warns in is_numpy, so tensors never get there.
    if is_host(pos) or not hasattr(pos, "__array_interface__") or not is_numpy(pos):
        return None
    if dtype_name(pos) not in POSITION_DTYPES:
        return None
    known = pos[pos == pos]  # without NaN, which is no maximum
    return known.max().item() if known.size else None


def read_positions(
    pos: Any, lib: Library, ops: ArrayOps, use_float64: bool, split: bool = True
) -> tuple[Any, Any]:
    """Return arrays of checked positions: integers, and fractions or None.

    Without `split`, an array of the library is returned as it is, and None.
    """
    if not isinstance(pos, _PYTHON) and lib.is_array(pos):
        return split_floats(pos, ops) if split else (pos, None)
    if lib.takes_numpy:
        ops = lib.host_ops(ops)
    integer = ops.xp.int64 if ops.has_int64 else ops.xp.int32
    if isinstance(pos, range):
        return _from_range(pos, integer, ops), None
    if _is_symbolic(pos):
        if type(pos).__name__ == "SymInt":
            return _from_values(pos, integer, ops), None
        return split_floats(_from_values(pos, ops.xp.float64, ops), ops)
    if not isinstance(pos, (list, tuple)) and not _is_number(pos):
        return _from_numpy(pos, ops)
    if _all_integers(pos):
        return _from_values(_map(lambda p: _checked_integer(p, ops), pos), integer, ops), None
    real = ops.xp.float64 if use_float64 or _keeps_float64(lib, ops) else ops.xp.float32
    pos = plain_numbers(pos)
    nearest = _map(_nearest, pos)
    fraction = _difference(pos, nearest)
    return _from_values(nearest, integer, ops), _from_values(fraction, real, ops)


def _keeps_float64(lib: Library, ops: ArrayOps) -> bool:
    """Return whether fractions of Python floats stay float64: see `angles._add_fraction`."""
    device = getattr(ops.creation_kwargs.get("device"), "type", "cpu")  # PyTorch's "mps" has no float64
    return ops.has_int64 and lib.name in _WITH_FLOAT64 and device in ("cpu", "cuda")


def split_floats(pos: Any, ops: ArrayOps) -> tuple[Any, Any]:
    """Split float positions exactly into the nearest integers and the rest, which has the gradient."""
    if dtype_name(pos) not in ("float32", "float64"):
        return pos, None
    nearest = ops.xp.round(pos)
    return ops.xp.astype(nearest, ops.xp.int64 if ops.has_int64 else ops.xp.int32), pos - nearest


def is_host(pos: Any) -> bool:
    """Return whether positions are Python values: a number (a NumPy scalar too), a range or a sequence."""
    return isinstance(pos, _PYTHON) or _is_number(pos) or _is_symbolic(pos)


def _is_symbolic(pos: Any) -> bool:
    """Return whether a position is a symbolic number of PyTorch; reading its value would add a guard."""
    return type(pos).__name__ in ("SymInt", "SymFloat")


def python_shape(pos: Any) -> tuple[int, ...]:
    if isinstance(pos, range):
        try:
            return (len(pos),)
        except OverflowError:  # 2**63 positions or more
            raise PositionError(f"pos is {pos}, longer than an axis can be; give fewer positions.") from None
    return _sequence_shape(pos) if isinstance(pos, (list, tuple)) else ()


def _is_number(pos: Any) -> bool:
    """Return whether a position is a number, of Python's or of NumPy's."""
    return isinstance(pos, (int, float)) or (isinstance(pos, Real) and _has_dtype(pos))


def _has_dtype(pos: Any) -> bool:
    return hasattr(pos, "dtype") and hasattr(pos, "shape")


def _refused_dtype(pos: Any) -> str:
    text = (
        f"pos is {describe(pos)}; give integers of at most 64 bits with a sign, or unsigned ones of at most "
        "32, or float32 or float64."
    )
    if dtype_name(pos) in ("float16", "bfloat16"):
        text += " 16-bit floats skip integers above 2048 or 256, so positions must never pass through them."
    return text


def _from_values(value: Any, dtype: Any, ops: ArrayOps) -> Any:
    """Make an array of a number or a nested list."""
    if isinstance(value, list):
        return ops.xp.asarray(value, dtype=dtype, **ops.creation_kwargs)
    # Not asarray: torch.compile would make the number a constant and recompile for each new one.
    return ops.xp.full((), value, dtype=dtype, **ops.creation_kwargs)


def _from_range(pos: range, dtype: Any, ops: ArrayOps) -> Any:
    if pos:
        limit = 2**63 if ops.has_int64 else 2**31
        if min(pos[0], pos[-1]) < -limit or max(pos[0], pos[-1]) >= limit:
            raise _integer_out_of_range(max(pos[0], pos[-1], key=abs), ops)
    if max(abs(pos.start), abs(pos.stop), abs(pos.step)) > 2**62:  # arange's own sums might overflow
        return ops.xp.asarray([*pos], dtype=dtype, **ops.creation_kwargs)
    return ops.xp.arange(pos.start, pos.stop, pos.step, dtype=dtype, **ops.creation_kwargs)


def _from_numpy(pos: Any, ops: ArrayOps) -> tuple[Any, Any]:
    """Check NumPy positions before the library narrows them to its dtypes; split floats in float64."""
    integer = "int64" if ops.has_int64 else "int32"
    if dtype_name(pos) == "uint32" and not ops.has_int64:
        return _from_host(pos, ops), None  # all uint32 values are served as they are
    if dtype_name(pos).startswith("float"):
        if pos.size and not abs(pos).max() < _FLOAT_LIMIT:
            raise _out_of_range(abs(pos).max(), "2**31 for float positions")
        nearest = pos.round().clip(max=_LARGEST)
        fraction = (pos - nearest).astype(dtype_name(pos) if ops.has_int64 else "float32")
        return _from_host(nearest.astype(integer), ops), _from_host(fraction, ops)
    if pos.size:
        for end in (pos.min(), pos.max()):
            _checked_integer(int(end), ops)
    return _from_host(pos.astype(integer), ops), None


def _from_host(array: Any, ops: ArrayOps) -> Any:
    """Make an array of a NumPy array."""
    return ops.xp.asarray(array, **ops.creation_kwargs)


def _all_integers(pos: Any) -> bool:
    return all(map(_all_integers, pos)) if isinstance(pos, (list, tuple)) else isinstance(pos, Integral)


def _map(function: Any, pos: Any) -> Any:
    return [_map(function, p) for p in pos] if isinstance(pos, (list, tuple)) else function(pos)


def _difference(pos: Any, nearest: Any) -> Any:
    """Return numbers, or nested lists of them, minus others."""
    if isinstance(pos, list):
        return list(map(_difference, pos, nearest))
    return float(pos) - nearest


def plain_numbers(pos: Any) -> Any:
    """Return Python numbers, and nested lists of them, without subclasses; other positions as they are."""
    return _map(_plain_number, pos)


def _plain_number(pos: Any) -> Any:
    """Return a number of a subclass of int or float as Python's own; a subclass may convert to another."""
    if isinstance(pos, float):
        return pos if type(pos) is float else float.__pos__(pos)
    return int.__pos__(pos) if isinstance(pos, int) and type(pos) not in (int, bool) else pos


def _checked_integer(pos: Any, ops: ArrayOps) -> int:
    if type(pos) is not int:
        if isinstance(pos, bool):
            raise ArrayTypeError(f"pos is {pos}, a bool; give an integer or a float.")
        pos = _plain_number(pos)
    bits = 63 if ops.has_int64 else 31
    if not -(2**bits) <= pos < 2**bits:
        raise _integer_out_of_range(pos, ops)
    return int(pos)


def _integer_out_of_range(pos: Any, ops: ArrayOps) -> PositionError:
    limit = "2**63" if ops.has_int64 else "2**31, as this device, or JAX without x64, has no wider integers"
    return _out_of_range(pos, limit)


def _nearest(pos: Any) -> int:
    if isinstance(pos, bool):
        raise ArrayTypeError(f"pos holds {pos}, a bool; give integers and floats.")
    if not abs(pos) < _FLOAT_LIMIT:
        raise _out_of_range(pos, "2**31 for float positions")
    return min(round(float(pos)), _LARGEST)


def _out_of_range(pos: Any, limit: str) -> PositionError:
    fault = "is not a number" if pos != pos else "is out of range"
    return PositionError(f"position {short(pos)} {fault}; give positions p with |p| below {limit}.")


def _sequence_shape(pos: Any, depth: int = 1) -> tuple[int, ...]:
    if depth > _MOST_AXES:
        raise ShapeError(
            f"pos is a sequence nested more than {_MOST_AXES} deep, or one that holds itself; give an array."
        )
    if type(pos) not in (list, tuple):
        pos = [*pos]  # a subclass may give another length than it has items
    inner = {_sequence_shape(p, depth + 1) if isinstance(p, (list, tuple)) else () for p in pos}
    if len(inner) > 1:
        raise ShapeError(
            f"pos is a ragged sequence; its parts have the shapes {sorted(inner)}. Make them equal."
        )
    for p in pos:
        if isinstance(p, (int, float, list, tuple)):
            continue
        if not _is_number(p):
            raise ArrayTypeError(f"pos is a sequence that holds {describe(p)}; give numbers, or one array.")
        if dtype_name(p) not in POSITION_DTYPES:
            raise ArrayTypeError(_refused_dtype(p))
    return (len(pos), *(inner.pop() if inner else ()))


def _other_library(pos: Any, x: Any, lib: Library) -> str:
    hint = {
        "torch": "torch.as_tensor(pos, device=x.device)",
        "numpy": "numpy.asarray(pos)",
        "jax": "jax.numpy.asarray(pos)",
        "cupy": "cupy.asarray(pos)",
        "tensorflow": "tensorflow.convert_to_tensor(pos)",
        "dask": "dask.array.asarray(pos)",
        "cubed": "cubed.from_array(pos, spec=x.spec)",
    }.get(lib.name, "asarray(pos) of x's own library")
    if not is_array_of_any_library(pos):
        held = "the array that it holds: pos[...] of Flax, or pos.data of xarray."
        return f"pos is {describe_other(pos)}; give {hint}, or {held}"
    what = "libraries"
    if library_name(pos) == library_name(x):  # marray makes a namespace for each import
        what, hint = f"namespaces of {lib.name}", "both of one namespace"
    elif lib.name == "numpy" and library_name(pos) == "jax":
        hint += ", or in a traced function jax.numpy.asarray(x)"
    elif lib.name == "numpy" and (hasattr(pos, "todense") or not hasattr(pos, "__array__")):
        hint = "positions of NumPy"
    if is_numpy(pos):
        hint += ", or make it by ra.positions with like=x"
    return f"pos is {describe(pos)} and x {describe(x)}; arrays of two {what} are not mixed. Give {hint}."
