"""Positions as the caller gave them: checked where the host sees their values, then handed to the library.

They leave here as a whole part and a fraction: an array of integers and None, or, for floats, which the host
splits exactly, an array of integers and one of floats. An array of the library is not looked into: `_core`
splits its floats in the function that makes the tables, so that a tracer sees it.
"""

from numbers import Integral, Real
from typing import Any

from rope_array._errors import ArrayTypeError, PositionError, ShapeError, describe, short

from .library import POSITION_DTYPES, Library, dtype_name, is_numpy, is_numpy_scalar
from .ops import Kit

# Float positions are split into an integer of 32 bits and the rest, by the host and by the library alike.
_FLOAT_LIMIT = 2.0**31
_LARGEST = 2**31 - 1  # the nearest integer of a float just below the limit would be one more


def is_host(pos: Any) -> bool:
    """Tell whether positions are Python values: a number (a NumPy scalar too), a range or a sequence."""
    return isinstance(pos, (int, float, range, list, tuple)) or _is_numpy_scalar(pos)


def shape_of(pos: Any) -> tuple[Any, ...]:
    """Return the shape of positions of any kind."""
    if isinstance(pos, range):
        if max(abs(pos.start), abs(pos.stop)) > 2**63:  # more than Python itself counts
            raise _out_of_range(max(pos.start, pos.stop, key=abs), "2**63")
        return (len(pos),)
    if isinstance(pos, (list, tuple)):
        return _sequence_shape(pos)
    return () if is_host(pos) else tuple(pos.shape)


def check(pos: Any, x: Any, own: bool, lib: Library) -> None:
    """Check the kind of positions: the library's own array, or Python values, or NumPy where it is taken."""
    if own:
        lib.check_sound(pos)
    elif isinstance(pos, (int, float, range, list, tuple)):
        return
    elif not _has_dtype(pos):
        raise ArrayTypeError(
            f"pos is {describe(pos)}; give a number, a range, a sequence, or an array of x's library."
        )
    elif not is_numpy_scalar(pos) and not (lib.takes_numpy and is_numpy(pos)):
        raise ArrayTypeError(_foreign(pos, x, lib))
    if dtype_name(pos) not in POSITION_DTYPES:
        raise ArrayTypeError(_refused(pos))
    if own and not lib.together(pos, x):
        raise ArrayTypeError(
            f"pos is on {lib.device(pos)} and x on {lib.device(x)}; move one of them: nothing moves silently."
        )


def read(pos: Any, kit: Kit, double: bool) -> tuple[Any, Any]:
    """Make arrays of checked positions on the host: (integers, None), or (integers, fractions)."""
    if not is_host(pos):
        return _from_numpy(pos, kit)
    integer, real = _dtypes(kit, double)
    if isinstance(pos, range):
        return _from_range(pos, integer, kit), None
    values = pos if isinstance(pos, (list, tuple)) else [pos]
    if _all_integers(values):
        return _filled(_map(lambda p: _whole(p, kit), pos), integer, kit), None
    whole = _map(_nearest, pos)
    fraction = _map(lambda p: float(p) - _nearest(p), pos)
    return _filled(whole, integer, kit), _filled(fraction, real, kit)


def _is_numpy_scalar(pos: Any) -> bool:
    """Tell whether a position is a number of NumPy's: a value on the host that has a dtype."""
    return not isinstance(pos, (int, float)) and isinstance(pos, Real) and _has_dtype(pos)


def _has_dtype(pos: Any) -> bool:
    return hasattr(pos, "dtype") and hasattr(pos, "shape")


def _refused(pos: Any) -> str:
    text = (
        f"pos is {describe(pos)}; give integers of at most 64 bits with a sign, or unsigned ones of at most "
        "32, or float32 or float64."
    )
    if dtype_name(pos) in ("float16", "bfloat16"):
        text += " 16-bit floats skip integers above 2048 or 256, so positions must never pass through them."
    return text


def _dtypes(kit: Kit, double: bool) -> tuple[Any, Any]:
    return kit.xp.int64 if kit.wide else kit.xp.int32, kit.xp.float64 if double else kit.xp.float32


def _filled(value: Any, dtype: Any, kit: Kit) -> Any:
    """Make an array of a number or a nested list."""
    if isinstance(value, list):
        return kit.xp.asarray(value, dtype=dtype, **kit.create)
    # Not asarray, for which torch.compile makes a constant of the number and compiles for each anew.
    return kit.xp.full((), value, dtype=dtype, **kit.create)


def _from_range(pos: range, dtype: Any, kit: Kit) -> Any:
    for end in (pos[0], pos[-1]) if len(pos) else ():
        _whole(end, kit)
    if max(abs(pos.start), abs(pos.stop), abs(pos.step)) > 2**62:  # where arange's own sums may overflow
        return kit.xp.asarray([*pos], dtype=dtype, **kit.create)
    return kit.xp.arange(pos.start, pos.stop, pos.step, dtype=dtype, **kit.create)


def _from_numpy(pos: Any, kit: Kit) -> tuple[Any, Any]:
    """Check NumPy positions before the library narrows them to what it has, floats split in float64."""
    integer = "int64" if kit.wide else "int32"
    if dtype_name(pos) == "uint32" and not kit.wide:
        return kit.xp.asarray(pos), None  # all of its values are served as they are
    if dtype_name(pos).startswith("float"):
        if pos.size and not abs(pos).max() < _FLOAT_LIMIT:
            raise _out_of_range(abs(pos).max(), "2**31 for float positions")
        nearest = pos.round().clip(max=_LARGEST)
        fraction = (pos - nearest).astype(dtype_name(pos) if kit.wide else "float32")
        return kit.xp.asarray(nearest.astype(integer)), kit.xp.asarray(fraction)
    if pos.size:
        for end in (pos.min(), pos.max()):
            _whole(int(end), kit)
    return kit.xp.asarray(pos.astype(integer)), None


def _all_integers(values: Any) -> bool:
    return all(_all_integers(v) if isinstance(v, (list, tuple)) else isinstance(v, Integral) for v in values)


def _map(function: Any, pos: Any) -> Any:
    return [_map(function, p) for p in pos] if isinstance(pos, (list, tuple)) else function(pos)


def _whole(pos: Any, kit: Kit) -> int:
    if isinstance(pos, bool):
        raise ArrayTypeError(f"pos is {pos}, a bool; give an integer or a float.")
    bits = 63 if kit.wide else 31
    if not -(2**bits) <= pos < 2**bits:
        raise _out_of_range(
            pos, f"2**{bits}" + ("" if kit.wide else ", as JAX has no wider integers without x64")
        )
    return int(pos)


def _nearest(pos: Any) -> int:
    if isinstance(pos, bool):
        raise ArrayTypeError(f"pos holds {pos}, a bool; give integers and floats.")
    if not abs(pos) < _FLOAT_LIMIT:
        raise _out_of_range(pos, "2**31 for float positions")
    return min(round(float(pos)), _LARGEST)


def _out_of_range(pos: Any, limit: str) -> PositionError:
    what = "is not a number" if pos != pos else "is out of range"
    return PositionError(f"position {short(pos)} {what}; give positions p with |p| below {limit}.")


def _sequence_shape(pos: Any) -> tuple[int, ...]:
    inner = {_sequence_shape(p) if isinstance(p, (list, tuple)) else () for p in pos}
    if len(inner) > 1:
        raise ShapeError(
            f"pos is a ragged sequence; its parts have the shapes {sorted(inner)}. Make them equal."
        )
    for p in pos:
        if _is_numpy_scalar(p) and dtype_name(p) not in POSITION_DTYPES:
            raise ArrayTypeError(_refused(p))
        if not isinstance(p, (int, float, list, tuple)) and not _is_numpy_scalar(p):
            raise ArrayTypeError(f"pos is a sequence that holds {describe(p)}; give numbers, or one array.")
    return (len(pos), *(inner.pop() if inner else ()))


def _foreign(pos: Any, x: Any, lib: Library) -> str:
    hint = {
        "torch": "torch.as_tensor(pos, device=x.device)",
        "numpy": "numpy.asarray(pos)",
        "jax": "jax.numpy.asarray(pos)",
        "cupy": "cupy.asarray(pos)",
        "dask": "dask.array.asarray(pos)",
    }.get(lib.name, "x's own library's asarray(pos)")
    return f"pos is {describe(pos)} and x {describe(x)}; arrays of two libraries are not mixed. Give {hint}."
