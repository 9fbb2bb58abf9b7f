"""Where the arrays of `positions` are made, and the checks of values that the host has."""

import operator
from collections.abc import Iterator, Sequence
from numbers import Integral, Real
from typing import Any, NamedTuple

from rope_array import _errors, _registry
from rope_array._array_api import library as _namespace

SIGNED = frozenset(name for name in _namespace.POSITION_DTYPES if "int" in name)
REAL = frozenset({"float32", "float64"})
LARGEST = {32: float.fromhex("0x1.fffffep127"), 64: float.fromhex("0x1.fffffffffffffp1023")}


class Make(NamedTuple):
    """A library, one of its arrays, beside which others are made, and the dtype of the result."""

    lib: _namespace.Library
    beside: Any
    create: dict[str, Any]
    dtype: Any
    bits: int

    @property
    def xp(self) -> Any:
        return self.lib.xp

    def arange(self, length: Any) -> Any:
        return self.xp.arange(length, dtype=self.dtype, **self.create)

    def number(self, value: Any) -> Any:
        # Not asarray, for which torch.compile makes a constant of the number and compiles for each anew.
        return self.xp.full((), value, dtype=self.dtype, **self.create)

    def filled(self, values: Any) -> Any:
        return self.xp.asarray(values, dtype=self.dtype, **self.create)

    def running_sum(self, array: Any) -> Any:
        # By its older name where there is one: array-api-compat's wrapper of PyTorch's looks the library up
        # by a cached function, of which Dynamo warns.
        if hasattr(self.xp, "cumsum"):
            return self.xp.cumsum(array, -1, dtype=self.dtype)
        return self.xp.cumulative_sum(array, axis=-1, dtype=self.dtype)

    def cast(self, array: Any) -> Any:
        return self.lib.cast(array, self.dtype)

    def check(self, name: str, value: Any, dtypes: frozenset[str], need: str) -> None:
        """Check an array of the library."""
        self.lib.check_supported(value)
        if _namespace.dtype_name(value) not in dtypes:
            raise _errors.ArrayTypeError(f"{name} is {_errors.describe(value)}; give {need}.")
        if not self.lib.same_device(value, self.beside):
            raise _errors.ArrayTypeError(
                f"{name} is on {self.lib.device(value)}, and other arrays of the call on "
                f"{self.lib.device(self.beside)}; move one of them: nothing moves silently."
            )

    def array(self, name: str, value: Any, *, boolean: bool = False) -> Any:
        """Make an integer array of checked values, which are the library's or on the host."""
        if self.lib.is_array(value):
            self.check(name, value, SIGNED | {"bool"} if boolean else SIGNED, need_of(boolean))
            return self.cast(value)
        if isinstance(value, int):
            return self.number(value)
        shape = shape_of(name, value)
        return self.xp.reshape(self.filled(as_lists(value)), shape)


def need_of(boolean: bool) -> str:
    return (
        "booleans, or integers 0 and 1"
        if boolean
        else "integers of at most 64 bits with a sign, or unsigned ones of at most 32"
    )


def integers(dtype: Any, like: Any, **values: Any) -> Make:
    """Find the library of a call, whose result has integers."""
    lib, beside = find_library(like, values)
    name = ("int64" if lib.has_int64() else "int32") if dtype is None else name_of_dtype(dtype)
    return _made(lib, beside, name, ("int32", "int64"))


def floats(dtype: Any, like: Any) -> Make:
    lib, beside = find_library(like, {})
    return _made(lib, beside, "float32" if dtype is None else name_of_dtype(dtype), ("float32", "float64"))


def _made(lib: _namespace.Library, beside: Any, name: str, served: tuple[str, ...]) -> Make:
    if name not in served:
        raise _errors.ArrayTypeError(f"dtype is {name!r}; give one of {', '.join(map(repr, served))}.")
    if name.endswith("64") and not lib.has_int64():
        raise _errors.ArrayTypeError(
            f"dtype is {name!r}, which {lib.name} has with its setting for 64 bits alone (JAX: "
            f"jax_enable_x64); give {name[:-2]}32, or turn it on."
        )
    bits = int(name[-2:]) - 1
    return Make(lib, beside, lib.ops(beside).creation_kwargs, getattr(lib.xp, name), bits)


def name_of_dtype(dtype: Any) -> str:
    # A class such as numpy.int32 is written "<class 'numpy.int32'>".
    return dtype if isinstance(dtype, str) else _namespace.name_of_dtype(dtype).strip("'>")


def find_library(like: Any, values: dict[str, Any]) -> tuple[_namespace.Library, Any]:
    """Return the library of a call and one of its arrays: `like`, or the first that is not on the host."""
    if like is not None and not is_array(like):
        raise _errors.ArrayTypeError(f"like is {_errors.describe(like)}; give an array, or leave it out.")
    arrays = {name: value for name, value in values.items() if is_array(value)}
    beside = like
    for name, value in arrays.items():
        lib = library_of(value)
        if lib.name == "numpy":
            continue
        if beside is None:
            beside = value
        elif not library_of(beside).is_array(value):
            raise _errors.ArrayTypeError(
                f"{name} is {_errors.describe(value)} beside {_errors.describe(beside)}; arrays of two "
                "libraries are not mixed. Bring one of them into the other's library."
            )
    if beside is None:
        beside = _namespace.numpy_library().xp.empty(0)
    return library_of(beside), beside


def library_of(array: Any) -> _namespace.Library:
    return _registry.library_of(array)


def is_array(value: Any) -> bool:
    """Tell arrays from what has no dtype, and from NumPy's numbers."""
    if value is None or isinstance(value, (int, float, range, list, tuple)):
        return False
    return hasattr(value, "dtype") and hasattr(value, "shape") and not isinstance(value, Real)


# ---- values on the host ----


def is_host(value: Any) -> bool:
    """Tell whether values can be looked at without waiting: Python's and NumPy's."""
    return not is_array(value) or library_of(value).name == "numpy"


def shape_of(name: str, value: Any, kind: type = Integral) -> tuple[Any, ...]:
    """Return the shape of an array, a number, or a sequence of equal ones."""
    if is_array(value):
        return tuple(value.shape)
    if isinstance(value, range):
        return (len(value),)
    if not isinstance(value, (list, tuple)):
        if isinstance(value, kind) or type(value).__name__ == "SymInt":
            return ()
        need = "integers" if kind is Integral else "numbers"
        raise _errors.ArrayTypeError(
            f"{name} is {_errors.describe(value)}; give {need}, or an array of them."
        )
    inner = {shape_of(name, part, kind) for part in value}
    if len(inner) > 1:
        raise _errors.ShapeError(
            f"{name} is a ragged sequence; its parts have the shapes {sorted(inner)}. Make them equal."
        )
    return (len(value), *(inner.pop() if inner else ()))


def as_lists(value: Any) -> Any:
    """Make plain Python integers, nested as they are, of values on the host."""
    if isinstance(value, (list, tuple, range)):
        return [as_lists(part) for part in value]
    if is_array(value):
        return value.tolist()
    return value if isinstance(value, bool) else operator.index(value)


def flattened(values: Any) -> Iterator[Any]:
    if isinstance(values, list):
        for part in values:
            yield from flattened(part)
    else:
        yield values


def check_range(name: str, value: Any, make: Make, length: Any = None) -> None:
    """Check that values, and `length` positions from each, fit the dtype, where the host can see them."""
    shape_of(name, value)
    if not is_host(value):
        return
    # A tracer may hold a length as a symbol. Of 64 bits a quarter is left for it, so that nothing is asked
    # of the symbol, which would narrow what the traced program serves.
    top = 2**make.bits if length is None else 2**62 if make.bits == 63 else 2**make.bits - max(length, 1) + 1
    for end in _ends(name, value):
        if isinstance(end, bool):
            raise _errors.ArrayTypeError(f"{name} holds {end}, a bool; give integers.")
        if not -(2**make.bits) <= end < top:
            behind = "" if length is None else f", and {length} positions from there,"
            bits = f"{make.bits + 1} bits" + (", of which lengths have a quarter" if top == 2**62 else "")
            raise _errors.PositionError(
                f"{name} holds {_errors.short(end)}; it{behind} must fit a signed integer of {bits}. Give "
                "smaller ones."
            )


def _ends(name: str, value: Any) -> list[Any]:
    """Return values on the host, of an array the extremes."""
    if isinstance(value, int):
        return [value]
    if not is_array(value):
        return [*flattened(as_lists(value))]
    check_numpy(name, value, boolean=False)
    return [int(value.min()), int(value.max())] if value.size else []


def check_numpy(name: str, value: Any, *, boolean: bool) -> None:
    """Check the dtype of an array of NumPy's."""
    lib = _namespace.numpy_library()
    Make(lib, value, {}, None, 0).check(
        name, value, SIGNED | {"bool"} if boolean else SIGNED, need_of(boolean)
    )


def size_of(name: str, value: Any, least: int = 0) -> Any:
    """Return a size as a Python int, or as the symbol that a tracer has for one."""
    symbol = type(value).__name__ == "SymInt"
    if isinstance(value, bool) or not (isinstance(value, Integral) or symbol):
        raise _errors.ArrayTypeError(
            f"{name} is {_errors.describe(value)}; give a Python int of at least {least}."
        )
    if value < least:
        raise _errors.ShapeError(f"{name} is {_errors.short(value)}; give an int of at least {least}.")
    return value if isinstance(value, int) or symbol else operator.index(value)


def sizes_of(sizes: Sequence[Any]) -> list[Any]:
    if not sizes:
        raise _errors.ShapeError("the grid has no axis; give the number of points along each: grid(h, w).")
    return [size_of(f"sizes[{i}]", size) for i, size in enumerate(sizes)]


def check_mask(mask: Any) -> None:
    """Check the numbers of a mask that the host can see."""
    if not is_host(mask):
        return
    if is_array(mask):
        check_numpy("mask", mask, boolean=True)
        good = bool(((mask == 0) | (mask == 1)).all())
    else:
        good = all(value in (0, 1) for value in flattened(as_lists(mask)))
    if not good:
        raise _errors.PositionError(
            "mask holds another number than 0 and 1; give 1 for tokens and 0 for padding. Packed sequences "
            "are of positions.packed."
        )
