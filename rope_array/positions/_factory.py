"""Create the arrays of `positions`, and check values on the host."""

import operator
from collections.abc import Iterator, Sequence
from numbers import Integral, Real
from typing import Any, NamedTuple

from rope_array._array_api import library as _library
from rope_array._array_api.ops import ArrayOps
from rope_array._errors import ArrayTypeError, PositionError, ShapeError, describe, short
from rope_array._registry import library_of as library_of

SIGNED = frozenset(name for name in _library.POSITION_DTYPES if "int" in name)
REAL = frozenset({"float32", "float64"})
LARGEST = {32: float.fromhex("0x1.fffffep127"), 64: float.fromhex("0x1.fffffffffffffp1023")}
_MOST_AXES = 64  # NumPy's limit; a list that holds itself reaches it too


class ArrayFactory(NamedTuple):
    """Creates arrays of one library and dtype, on the device of the array `like`."""

    lib: _library.Library
    like: Any
    ops: ArrayOps
    dtype: Any
    bits: int  # width of the dtype less 1

    @property
    def xp(self) -> Any:
        return self.lib.xp

    @property
    def has_fractions(self) -> bool:
        return self.dtype in (getattr(self.xp, name) for name in REAL if hasattr(self.xp, name))

    def arange(self, length: Any) -> Any:
        return self.xp.arange(length, dtype=self.dtype, **self.ops.creation_kwargs)

    def scalar(self, value: Any) -> Any:
        # asarray would make the number a constant, and torch.compile would compile for each value.
        return self.xp.full((), value, dtype=self.dtype, **self.ops.creation_kwargs)

    def from_values(self, values: Any) -> Any:
        return self.ops.from_values(values, self.dtype)

    def cumulative_sum(self, array: Any) -> Any:
        # array-api-compat's cumulative_sum looks up PyTorch by a cached function, and Dynamo warns of that.
        if hasattr(self.xp, "cumsum"):
            return self.xp.cumsum(array, -1, dtype=self.dtype)
        return self.xp.cumulative_sum(array, axis=-1, dtype=self.dtype)

    def cast(self, array: Any) -> Any:
        return self.ops.cast(array, self.dtype)

    def check(self, name: str, value: Any, dtypes: frozenset[str], accepted: str) -> None:
        """Check the dtype and device of an array of the library."""
        self.lib.check_supported(value)
        if _library.dtype_name(value) not in dtypes:
            raise ArrayTypeError(f"{name} is {describe(value)}; give {accepted}.")
        if not self.lib.same_device(value, self.like):
            raise ArrayTypeError(
                f"{name} is on {self.lib.device(value)}, and other arrays of the call on "
                f"{self.lib.device(self.like)}; move one of them: nothing moves silently."
            )

    def array(self, name: str, value: Any, *, boolean: bool = False) -> Any:
        """Return an integer array of a library array or of host values."""
        if self.lib.is_array(value):
            self.check(name, value, SIGNED | {"bool"} if boolean else SIGNED, need_of(boolean))
            return self.cast(value)
        if isinstance(value, int):
            return self.scalar(as_lists(value))
        shape = shape_of(name, value)
        return self.xp.reshape(self.from_values(as_lists(value)), shape)


def need_of(boolean: bool) -> str:
    return (
        "booleans, or integers 0 and 1"
        if boolean
        else "signed integers of at most 64 bits, or unsigned integers of at most 32"
    )


def integers(
    dtype: Any, like: Any, allowed: tuple[str, ...] = ("int32", "int64"), **values: Any
) -> ArrayFactory:
    """Return the factory of a call with an integer result, or with another that `dtype` may name."""
    lib, like = find_library(like, values)
    default = "int64" if lib.has_int64(like) else "int32"
    return _new_factory(lib, like, default if dtype is None else name_of_dtype(dtype), allowed)


def floats(dtype: Any, like: Any) -> ArrayFactory:
    """Return the factory of a call with a floating-point result."""
    lib, like = find_library(like, {})
    return _new_factory(
        lib, like, "float32" if dtype is None else name_of_dtype(dtype), ("float32", "float64")
    )


def _new_factory(lib: _library.Library, like: Any, name: str, allowed: tuple[str, ...]) -> ArrayFactory:
    if name not in allowed:
        raise ArrayTypeError(f"dtype is {name!r}; give one of {', '.join(map(repr, allowed))}.")
    if name.endswith("64") and not lib.has_int64(like):
        raise ArrayTypeError(
            f"dtype is {name!r}, and {lib.name} has no 64-bit dtypes on this device, or a setting (JAX: "
            f"jax_enable_x64) disables them; give {name[:-2]}32, or enable them."
        )
    return ArrayFactory(lib, like, lib.ops(like), getattr(lib.xp, name), int(name[-2:]) - 1)


def name_of_dtype(dtype: Any) -> str:
    # str(numpy.int32) is "<class 'numpy.int32'>".
    return dtype if isinstance(dtype, str) else _library.name_of_dtype(dtype).strip("'>")


def find_library(like: Any, values: dict[str, Any]) -> tuple[_library.Library, Any]:
    """Return the library of a call and one of its arrays: `like`, or the first array not of NumPy."""
    if like is not None and not is_array(like):
        raise ArrayTypeError(f"like is {describe(like)}; give an array, or leave it out.")
    for name, value in values.items():
        if not is_array(value) or library_of(value).name == "numpy":
            continue
        if like is None:
            like = value
        elif not library_of(like).is_array(value):
            raise ArrayTypeError(
                f"{name} is {describe(value)}, and another array of the call {describe(like)}; give arrays "
                "of one library."
            )
    if like is None:
        like = _library.numpy_library().xp.empty(0)
    return library_of(like), like


def is_array(value: Any) -> bool:
    """Return whether a value is an array; a NumPy scalar is a number."""
    if value is None or isinstance(value, (int, float, range, list, tuple)):
        return False
    return hasattr(value, "dtype") and hasattr(value, "shape") and not isinstance(value, Real)


# ---- values on the host ----


def is_host(value: Any) -> bool:
    """Return whether values can be read without waiting for a device: values of Python and NumPy."""
    return not is_array(value) or library_of(value).name == "numpy"


def numbers_of(value: Any) -> Any:
    """Return values as lists if reading them waits for no device and leaves no trace; else None."""
    if is_host(value):
        return as_lists(value)
    return library_of(value).host_numbers(value) if "int" in _library.dtype_name(value) else None


def shape_of(name: str, value: Any, number_type: type = Integral, depth: int = 0) -> tuple[Any, ...]:
    """Return the shape of an array, a number, or a nested sequence of numbers."""
    if is_array(value):
        return tuple(value.shape)
    if isinstance(value, range):
        return (len(value),)
    if not isinstance(value, (list, tuple)):
        if isinstance(value, number_type) or type(value).__name__ == "SymInt":
            return ()
        numbers = "integers" if number_type is Integral else "numbers"
        raise ArrayTypeError(f"{name} is {describe(value)}; give {numbers}, or an array of them.")
    if depth == _MOST_AXES:
        raise ShapeError(f"{name} holds itself, or has more than {_MOST_AXES} axes; give fewer axes.")
    if type(value) not in (list, tuple):
        value = [*value]  # a subclass may give another length than it has items
    inner = {shape_of(name, element, number_type, depth + 1) for element in value}
    if len(inner) > 1:
        raise ShapeError(
            f"{name} is a ragged sequence; its parts have the shapes {sorted(inner)}. Make them equal."
        )
    return (len(value), *(inner.pop() if inner else ()))


def as_lists(value: Any) -> Any:
    """Return host values as a Python integer or nested lists of them; `shape_of` has checked them."""
    if isinstance(value, (list, tuple, range)):
        return [as_lists(element) for element in value]
    if is_array(value):
        return value.tolist()
    if type(value) in (int, bool):
        return value
    return int.__pos__(value) if isinstance(value, int) else operator.index(value)  # a subclass may convert


def flattened(values: Any) -> Iterator[Any]:
    if isinstance(values, list):
        for element in values:
            yield from flattened(element)
    else:
        yield values


def check_range(name: str, value: Any, factory: ArrayFactory, length: Any = None) -> None:
    """Check that host values, and `length` positions from each, fit the dtype."""
    shape_of(name, value)
    if not is_host(value):
        value = numbers_of(value)
        if value is None:
            return
    # A traced length may be a symbol, and a comparison with it would specialise the traced program. In 64
    # bits reserve a quarter of the range for any length instead.
    end = 2**factory.bits
    top = end if length is None else 2**62 if factory.bits == 63 else end - max(length, 1) + 1
    for number in _extremes(name, value):
        if isinstance(number, bool):
            raise ArrayTypeError(f"{name} holds {number}, a bool; give integers.")
        if not -end <= number < top:
            behind = "" if length is None else f", and {length} positions from there,"
            bits = f"{factory.bits + 1} bits" + (", of which lengths have a quarter" if top == 2**62 else "")
            raise PositionError(
                f"{name} holds {short(number)}; it{behind} must fit a signed integer of {bits}. Give smaller "
                "integers."
            )


def _extremes(name: str, value: Any) -> list[Any]:
    """Return the extremes of a NumPy array, or all values of Python."""
    if isinstance(value, int):
        return [value]
    if not is_array(value):
        return [*flattened(as_lists(value))]
    check_numpy(name, value, boolean=False)
    return [int(value.min()), int(value.max())] if value.size else []


def check_numpy(name: str, value: Any, *, boolean: bool) -> None:
    """Check the dtype of a NumPy array."""
    dtypes = SIGNED | {"bool"} if boolean else SIGNED
    lib = _library.numpy_library()
    ArrayFactory(lib, value, lib.ops(value), None, 0).check(name, value, dtypes, need_of(boolean))


def size_of(name: str, value: Any, minimum: int = 0) -> Any:
    """Return a size as a Python int, or as the symbol of a tracer."""
    symbol = type(value).__name__ == "SymInt"
    if isinstance(value, bool) or not (isinstance(value, Integral) or symbol):
        text = f"{name} is {describe(value)}; give a Python int of at least {minimum}."
        if value is None or is_array(value):
            text += (
                " In a trace or a graph, whose sizes are arrays or unknown, count positions by the library: "
                "start + torch.arange(x.shape[-2], device=x.device), or start + tf.range(tf.shape(x)[-2])."
            )
        raise ArrayTypeError(text)
    if value < minimum:
        raise ShapeError(f"{name} is {short(value)}; give an int of at least {minimum}.")
    return value if isinstance(value, int) or symbol else operator.index(value)


def sizes_of(sizes: Sequence[Any]) -> list[Any]:
    if not sizes:
        raise ShapeError("the grid has no axis; give the number of points along each: grid(h, w).")
    return [size_of(f"sizes[{i}]", size) for i, size in enumerate(sizes)]


def pad_of(pad: Any, factory: ArrayFactory) -> int:
    """Return the position of padding as a Python int."""
    if not isinstance(pad, Integral):
        raise ArrayTypeError(f"pad is {describe(pad)}; give a Python int.")
    check_range("pad", pad, factory)
    return pad if isinstance(pad, int) else operator.index(pad)


def check_mask(mask: Any) -> None:
    """Check that a mask on the host holds 0 and 1 only."""
    if not is_host(mask):
        return
    if is_array(mask):
        check_numpy("mask", mask, boolean=True)
        good = bool(((mask == 0) | (mask == 1)).all())
    else:
        good = all(value in (0, 1) for value in flattened(as_lists(mask)))
    if not good:
        raise PositionError(
            "mask holds another number than 0 and 1; give 1 for tokens and 0 for padding. For packed "
            "sequences use positions.packed."
        )
