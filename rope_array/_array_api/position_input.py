"""Positions as the caller gave them, parsed once: a number, a range, nested lists, or an array.

Positions are read as (integers, fractions): two arrays; fractions are None for integer positions. Python's
floats and NumPy's are split on the host, in float64, exactly.
"""

from contextlib import suppress
from itertools import chain
from numbers import Integral, Real
from operator import countOf
from typing import Any, NamedTuple

from rope_array._errors import (
    ArrayTypeError,
    PositionError,
    ShapeError,
    describe,
    describe_other,
    library_name,
    short,
)

from .library import (
    POSITION_DTYPES,
    Library,
    dtype_name,
    flat,
    is_array_of_any_library,
    is_numpy,
    is_numpy_scalar,
    name_of_dtype,
    numpy_library,
)
from .ops import ArrayOps

# Limit of float positions on the host: their integer part must fit int32.
_FLOAT_LIMIT = 2.0**31
_LARGEST = 2**31 - 1  # of int32: round() of a float just below the limit gives the limit
_MOST_AXES = 64
_FEW = 16  # numbers, which Python reads faster than NumPy
_FLOATS = ("float32", "float64")
_NUMBERS, _SEQUENCES = {int, float}, {list, tuple}


class PositionInput(NamedTuple):
    """Positions, checked but for the range of their values.

    Attributes
    ----------
    form
        "range"; "numbers": a Python number, or a sequence of them; "symbol": a symbolic number of PyTorch;
        "numpy": the caller's array of NumPy for an x of another library; "array": an array of x's library.
    values
        The positions, without subclasses of Python's types; of a sequence all numbers in one list or tuple.
    shape
        Their shape, with the axis of coordinates if a position has several.
    dtype
        The name of an array's dtype; of numbers "float64" if one is a float; else empty.
    """

    form: str
    values: Any
    shape: tuple[Any, ...]
    dtype: str = ""

    def has_floats(self) -> bool:
        """Return whether a position may have a fraction."""
        return self.dtype in _FLOATS

    def largest(self) -> Any:
        """Return the largest number; None if there is none, or if they are on a device and never read."""
        numbers = self._host_numbers(None)
        return _largest_of(numbers) if len(numbers) else None

    def farthest_from(self, center: float, lib: Library | None = None) -> Any:
        """Return the number farthest from a center; None as for `largest`.

        With `lib`, the library of the positions, arrays that it may read are read too.
        """
        numbers = self._host_numbers(lib)
        if not len(numbers):
            return None
        return max(_largest_of(numbers), _smallest_of(numbers), key=lambda number: abs(number - center))

    def _host_numbers(self, lib: Library | None) -> Any:
        """Return the numbers without NaN, of a range its ends; none of positions that are not read."""
        if self.form == "range":
            return [self.values[0], self.values[-1]] if self.values else []
        if self.form == "numbers":
            return self.values if self.shape else [self.values]
        # Dynamo warns in is_numpy, so tensors never get there.
        if self.form != "symbol" and hasattr(self.values, "__array_interface__") and is_numpy(self.values):
            return self.values[self.values == self.values]  # NaN is no maximum
        return flat(lib.host_numbers(self.values)) if lib and self.form == "array" else []

    def read(self, lib: Library, ops: ArrayOps, use_float64: bool, split: bool = True) -> tuple[Any, Any]:
        """Return arrays of integers, and of fractions or None; raise PositionError for a value out of range.

        Without `split`, return (positions, None): floats stay floats, but where float32 would lose digits.
        """
        if self.form == "array":
            return _split(self.values, ops) if split and self.dtype in _FLOATS else (self.values, None)
        if lib.takes_numpy:
            ops = lib.host_ops(ops)
        if self.form == "range":
            return _read_range(self.values, lib, ops), None
        keeps_float64 = _keeps_float64(lib, ops)
        if self.form == "numpy":
            real = self.dtype if ops.has_int64 else "float32"
            return _read_numpy(self.values, real, ops, split or not keeps_float64)
        if self.form == "symbol":
            return _read_symbol(self.values, ops, split)
        real = "float64" if use_float64 or keeps_float64 else "float32"
        if self.shape and len(self.values) > _FEW and ops.reads_numpy:
            with suppress(PositionError, OverflowError):  # below, the error names the first wrong number
                numpy = numpy_library().xp
                array = numpy.fromiter(self.values, self.dtype or "int64", len(self.values))
                return _read_numpy(array.reshape(self.shape), real, ops, split or not keeps_float64)
        numbers = self.values if self.shape else [self.values]
        if not self.has_floats():
            return self._array([_checked_integer(p, ops) for p in numbers], _integer(ops), ops), None
        nearest, real = [_nearest(p, ops) for p in numbers], getattr(ops.xp, real)
        if not split and keeps_float64:
            return self._array([float(p) for p in numbers], real, ops), None
        fraction = [float(p) - n for p, n in zip(numbers, nearest, strict=True)]
        return self._array(nearest, _integer(ops), ops), self._array(fraction, real, ops)

    def _array(self, numbers: list[Any], dtype: Any, ops: ArrayOps) -> Any:
        """Make an array of numbers in the shape of the positions."""
        if not self.shape:
            return _from_number(numbers[0], dtype, ops)
        array = ops.from_values(numbers, dtype)
        return array if len(self.shape) == 1 else ops.reshape(array, self.shape)


def parse(pos: Any, x: Any, lib: Library) -> PositionInput:
    """Check the type, dtype and device of positions for an x of a library; no value of an array is read.

    Positions are an array of x's library, Python values, or a NumPy array if the library accepts them.
    """
    parsed = parse_host(pos)
    if parsed is not None:
        return parsed
    if lib.is_array(pos):
        lib.check_supported(pos)
        if not lib.same_device(pos, x):
            raise ArrayTypeError(
                f"pos is on {lib.device(pos)} and x on {lib.device(x)}; move one of them: nothing moves "
                "silently."
            )
        form = "array"
    elif not _has_dtype(pos):
        raise ArrayTypeError(
            f"pos is {describe(pos)}; give a number, a range, a list or tuple, or an array of x's library."
            f"{_hint_for_times(pos)}"
        )
    elif is_numpy_scalar(pos) or (lib.takes_numpy and is_numpy(pos)):
        form = "numpy"
    else:
        raise ArrayTypeError(_other_library(pos, x, lib))
    dtype = name_of_dtype(pos.dtype)
    if dtype not in POSITION_DTYPES:
        raise _refused_dtype(pos, dtype)
    return PositionInput(form, pos, tuple(pos.shape), dtype)


def parse_host(pos: Any) -> PositionInput | None:
    """Parse a number (a NumPy scalar too), a range or a sequence; return None for other positions."""
    if isinstance(pos, range):
        try:
            return PositionInput("range", pos, (len(pos),))
        except OverflowError:  # 2**63 positions or more
            raise PositionError(f"pos is {pos}, longer than an axis can be; give fewer positions.") from None
    if isinstance(pos, (list, tuple)):
        numbers, shape, has_floats = _parse_sequence(pos)
        return PositionInput("numbers", numbers, shape, "float64" if has_floats else "")
    if type(pos).__name__ in ("SymInt", "SymFloat"):  # reading its value would add a guard
        return PositionInput("symbol", pos, ())
    if isinstance(pos, (int, float)) or (isinstance(pos, Real) and _has_dtype(pos)):
        number = _parse_number(pos)
        return PositionInput("numbers", number, (), "float64" if type(number) is float else "")
    return None


def _parse_sequence(pos: Any, depth: int = 0) -> tuple[Any, tuple[int, ...], bool]:
    """Return the numbers of a nested sequence as Python's, in one sequence; its shape; if it has floats."""
    if not isinstance(pos, (list, tuple)):
        number = _parse_number(pos)
        return [number], (), type(number) is float
    shape: list[int] = []
    first: Any = pos
    while isinstance(first, (list, tuple)):
        if depth + len(shape) == _MOST_AXES:
            nested = f"a sequence nested more than {_MOST_AXES} deep, or one that holds itself"
            raise ShapeError(f"pos is {nested}; give an array.")
        shape.append(len(first))
        first = next(iter(first), None)
    # A subclass may give another length than it has items.
    items = numbers = pos if type(pos) in _SEQUENCES else [*pos]
    # Plain lists, nested as the first: Python runs each step in C.
    for size in shape[1:]:
        if not {*map(type, numbers)} <= _SEQUENCES or {*map(len, numbers)} != {size}:
            break
        numbers = [*chain.from_iterable(numbers)]
    kind = type(next(iter(numbers), 0))
    types = {kind} if countOf(map(type, numbers), kind) == len(numbers) else {*map(type, numbers)}
    if types <= _NUMBERS:
        return numbers, (len(items), *shape[1:]), float in types
    parts = [_parse_sequence(item, depth + 1) for item in items]
    shapes = {shape for _, shape, _ in parts}
    if len(shapes) > 1:
        raise ShapeError(
            f"pos is a ragged sequence; its parts have the shapes {sorted(shapes)}. Make them equal."
        )
    has_floats = any([part_has_floats for *_, part_has_floats in parts])
    return [*chain.from_iterable([part for part, *_ in parts])], (len(items), *shapes.pop()), has_floats


def _parse_number(pos: Any) -> Any:
    """Return a number as Python's own: a subclass of int or float may convert to another number."""
    if type(pos) in (int, float):
        return pos
    if isinstance(pos, bool):
        raise ArrayTypeError(f"pos is {pos}, a bool; give integers or floats.")
    if isinstance(pos, float):
        return float.__pos__(pos)
    if isinstance(pos, int):
        return int.__pos__(pos)
    if not isinstance(pos, Real) or not _has_dtype(pos):
        text = f"pos is a sequence that holds {describe(pos)}; give numbers, or one array."
        raise ArrayTypeError(text + _hint_for_times(pos))
    if dtype_name(pos) not in POSITION_DTYPES:
        raise _refused_dtype(pos, dtype_name(pos))
    return int(pos) if isinstance(pos, Integral) else float(pos)


def _largest_of(numbers: Any) -> Any:
    return max(numbers) if isinstance(numbers, (list, tuple)) else numbers.max().item()


def _smallest_of(numbers: Any) -> Any:
    return min(numbers) if isinstance(numbers, (list, tuple)) else numbers.min().item()


def check_largest(pos: PositionInput, limit: int) -> None:
    """Raise PositionError for a position beyond a limit. Positions on a device are never read."""
    largest = pos.largest()
    if largest is not None and largest > limit:
        raise PositionError(
            f"position {short(largest)} is beyond max_position={limit}; give positions up to {limit}, or a "
            "rope with a larger max_position."
        )


def _keeps_float64(lib: Library, ops: ArrayOps) -> bool:
    """Return whether fractions of Python floats stay float64: see `angles._add_fractions`."""
    device = getattr(ops.creation_kwargs.get("device"), "type", "cpu")  # PyTorch's "mps" has no float64
    return ops.has_int64 and lib.keeps_float64 and device in ("cpu", "cuda")


def split_floats(pos: Any, ops: ArrayOps) -> tuple[Any, Any]:
    """Split an array of positions exactly into the nearest integers and the rest; integers are not split."""
    return _split(pos, ops) if dtype_name(pos) in _FLOATS else (pos, None)


def _split(pos: Any, ops: ArrayOps) -> tuple[Any, Any]:
    nearest = ops.xp.round(pos)
    return ops.xp.astype(nearest, _integer(ops)), pos - nearest  # the rest has the gradient


def _integer(ops: ArrayOps) -> Any:
    return ops.xp.int64 if ops.has_int64 else ops.xp.int32


def _has_dtype(pos: Any) -> bool:
    return hasattr(pos, "dtype") and hasattr(pos, "shape")


def _hint_for_times(pos: Any) -> str:
    """Return the remedy for time stamps and durations; empty for others."""
    name = f"{getattr(pos, 'dtype', '')} {type(pos).__name__}".lower()
    if "timedelta" in name:
        return " Of durations give seconds: numpy.asarray(pos, 'm8[ns]') / numpy.timedelta64(1, 's')."
    if any(word in name for word in ("datetime", "timestamp", "nattype", " date")):
        return (
            " Of time stamps give seconds since the first: t = numpy.asarray(pos, 'M8[ns]'), then "
            "(t - t[0]) / numpy.timedelta64(1, 's')."
        )
    return ""


def _refused_dtype(pos: Any, dtype: str) -> ArrayTypeError:
    text = (
        f"pos is {describe(pos)}; give integers of at most 64 bits with a sign, or unsigned ones of at most "
        "32, or float32 or float64."
    )
    if dtype in ("float16", "bfloat16"):
        text += " 16-bit floats skip integers above 2048 or 256, so positions must never pass through them."
    if dtype == "object":
        text += " If it holds numbers, give pos.astype('float64')."
    return ArrayTypeError(text + _hint_for_times(pos))


def _from_number(number: Any, dtype: Any, ops: ArrayOps) -> Any:
    # Not asarray: torch.compile would make the number a constant and recompile for each new one.
    return ops.xp.full((), number, dtype=dtype, **ops.creation_kwargs)


def _read_symbol(pos: Any, ops: ArrayOps, split: bool) -> tuple[Any, Any]:
    if type(pos).__name__ == "SymInt":
        return _from_number(pos, _integer(ops), ops), None
    array = _from_number(pos, ops.xp.float64, ops)
    return _split(array, ops) if split else (array, None)


def _read_range(pos: range, lib: Library, ops: ArrayOps) -> Any:
    dtype = _integer(ops)
    if pos:
        limit = 2**63 if ops.has_int64 else 2**31
        if min(pos[0], pos[-1]) < -limit or max(pos[0], pos[-1]) >= limit:
            raise _integer_out_of_range(max(pos[0], pos[-1], key=abs), ops)
    if max(abs(pos.start), abs(pos.stop), abs(pos.step)) > 2**62:  # arange's own sums might overflow
        return PositionInput("numbers", [*pos], (len(pos),)).read(lib, ops, False)[0]
    return ops.xp.arange(pos.start, pos.stop, pos.step, dtype=dtype, **ops.creation_kwargs)


def _read_numpy(pos: Any, real: str, ops: ArrayOps, split: bool) -> tuple[Any, Any]:
    """Check NumPy positions before the library narrows them to its dtypes; split floats in float64.

    Each array is a copy: a lazy or asynchronous library reads it after the call. Fractions are `real`.
    """
    integer = "int64" if ops.has_int64 else "int32"
    if pos.dtype == "uint32" and not ops.has_int64:
        return _from_host(pos.copy(), ops), None  # all uint32 values are served as they are
    if pos.dtype.kind == "f":
        if pos.size and not abs(pos).max() < _FLOAT_LIMIT:
            raise _out_of_range(abs(pos).max(), "2**31 for float positions")
        if not split:
            return _from_host(pos.copy(), ops), None
        nearest = pos.round() if ops.has_int64 else pos.round().clip(max=_LARGEST)
        return _from_host(nearest.astype(integer), ops), _from_host((pos - nearest).astype(real), ops)
    if pos.size:
        for end in (pos.min(), pos.max()):
            _checked_integer(int(end), ops)
    return _from_host(pos.astype(integer), ops), None


def _from_host(array: Any, ops: ArrayOps) -> Any:
    """Make an array of a NumPy array."""
    return ops.xp.asarray(array, **ops.creation_kwargs)


def _checked_integer(pos: int, ops: ArrayOps) -> int:
    bits = 63 if ops.has_int64 else 31
    if not -(2**bits) <= pos < 2**bits:
        raise _integer_out_of_range(pos, ops)
    return pos


def _integer_out_of_range(pos: Any, ops: ArrayOps) -> PositionError:
    limit = "2**63" if ops.has_int64 else "2**31, as this device, or JAX without x64, has no wider integers"
    return _out_of_range(pos, limit)


def _nearest(pos: Any, ops: ArrayOps) -> int:
    if not abs(pos) < _FLOAT_LIMIT:
        raise _out_of_range(pos, "2**31 for float positions")
    return round(float(pos)) if ops.has_int64 else min(round(float(pos)), _LARGEST)


def _out_of_range(pos: Any, limit: str) -> PositionError:
    fault = "is not a number" if pos != pos else "is out of range"
    return PositionError(f"position {short(pos)} {fault}; give positions p with |p| below {limit}.")


def _other_library(pos: Any, x: Any, lib: Library) -> str:
    hint = lib.converter
    if not is_array_of_any_library(pos):
        held = "the array that it holds: pos[...] of Flax, or pos.data of xarray."
        return f"pos is {describe_other(pos)}; give {hint}, or {held}{_hint_for_times(pos)}"
    owners = "libraries"
    if library_name(pos) == library_name(x):  # marray makes a namespace for each import
        owners, hint = f"namespaces of {lib.name}", "both of one namespace"
    elif lib.name == "numpy" and library_name(pos) == "jax":
        hint += ", or in a traced function jax.numpy.asarray(x)"
    elif lib.name == "numpy" and (hasattr(pos, "todense") or not hasattr(pos, "__array__")):
        hint = "positions of NumPy"
    if is_numpy(pos):
        hint += ", or make it by ra.positions with like=x"
        if type(lib).__module__.partition(".")[0] != __name__.partition(".")[0]:  # another package's
            hint += f". If functions of {lib.name} take NumPy arrays, make its Library with takes_numpy=True"
    text = f"pos is {describe(pos)} and x {describe(x)}; arrays of two {owners} are not mixed. Give {hint}."
    return text + _hint_for_times(pos)
