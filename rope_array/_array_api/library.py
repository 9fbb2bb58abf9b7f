"""The one door to array-api-compat: namespace, device, and the dtype names that the standard lacks.

array-api-compat finds a library by type and through sys.modules, and so does this module: nothing is imported
before its arrays are seen.
"""

from threading import Lock
from typing import Any, NamedTuple

import array_api_compat as compat

from rope_array._errors import ArrayTypeError, describe, library_name
from rope_array._spec.plan import Constants

from .ops import Kit

X_DTYPES = ("float32", "bfloat16", "float16", "float64")
POSITION_DTYPES = frozenset(
    f"{kind}{bits}"
    for kind, sizes in (("int", (2, 4, 8, 16, 32, 64)), ("uint", (2, 4, 8, 16, 32)))
    for bits in sizes
) | {"float32", "float64"}


class Memory(NamedTuple):
    """Where the elements of an array lie: the address of the first one, and strides in bytes."""

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    itemsize: int
    writable: bool


class Library:
    """One array library, as the core sees it.

    Attributes
    ----------
    name
        What a user calls it.
    xp
        Its Array API namespace.
    takes_numpy
        Whether its functions take NumPy arrays as their own.
    placeless
        Whether arrays are made beside its arrays without a device being named.
    """

    def __init__(self, name: str, xp: Any, *, takes_numpy: bool = False, placeless: bool = False):
        self.name = name
        self.xp = xp
        self.takes_numpy = takes_numpy
        self.placeless = placeless

    def wide(self) -> bool:
        """Tell whether there are 64-bit integers, now: in JAX a setting that may change decides."""
        return "int64" in self.xp.__array_namespace_info__().dtypes(kind="integral")

    def owns(self, value: Any) -> bool:
        """Tell whether a value is an array of this library."""
        return _libraries.get(type(value)) is self or (
            compat.is_array_api_obj(value) and library(value) is self
        )

    def check_sound(self, value: Any) -> None:
        """Refuse an array of the library's on whose elements plain arithmetic does not act one by one."""

    def device(self, x: Any) -> Any:
        """Return where x is."""
        return compat.device(x)

    def place(self, x: Any) -> str:
        """Say what an array is, and where if that is known."""
        device = self.device(x) if self.owns(x) else None
        return describe(x) if device is None else f"{describe(x)} on {device}"

    def together(self, a: Any, b: Any) -> bool:
        """Tell whether two arrays are in one place."""
        return self.placeless or bool(self.device(a) == self.device(b))

    def kit(self, x: Any) -> Kit:
        """Return what the arithmetic beside x needs."""
        create = {} if self.placeless else {"device": self.device(x)}
        return Kit(self.xp, self.wide(), create, self.constants, self.cast, self.reshape)

    def check_written(self, out: Any, read: tuple[Any, ...]) -> None:
        """Refuse an array that cannot be written beside what is read."""

    def memory(self, array: Any) -> "Memory | None":
        """Say where an array's elements lie; None where the library does not let one write into arrays."""
        interface = getattr(array, "__cuda_array_interface__", None)  # CuPy's
        if interface is None or self.name != "cupy":
            return None
        address, read_only = interface["data"]
        return Memory(address, tuple(array.shape), tuple(array.strides), array.itemsize, not read_only)

    def write(self, out: Any, y: Any) -> None:
        """Write a result into an array that memory is checked of."""
        out[...] = y

    def host_kit(self, x: Any) -> Kit:
        """Return what positions that are still on the host are made into arrays with."""
        return self.kit(x)

    def constants(self, numbers: Constants, dtype: Any, create: dict[str, Any]) -> Any:
        """Make an array of plain numbers."""
        return self.xp.asarray(numbers.values, dtype=dtype, **create)

    def cast(self, array: Any, dtype: Any) -> Any:
        """Bring an array to a dtype."""
        return self.xp.astype(array, dtype, copy=False)

    def reshape(self, array: Any, shape: tuple[int, ...]) -> Any:
        """Give an array another shape."""
        return self.xp.reshape(array, shape)


class NumPy(Library):
    """NumPy: one device, 64-bit integers, and constants that are made once and kept."""

    def __init__(self) -> None:
        # Imported where an array of NumPy's has been seen: the core imports no array library.
        import array_api_compat.numpy as xp
        from numpy import ndarray

        super().__init__("numpy", xp, placeless=True)
        # The array's own methods: NumPy's functions, and Python around them, cost a small call more.
        self._kit = Kit(xp, True, {}, self.constants, ndarray.astype, ndarray.reshape, False)
        self._array = ndarray

    def owns(self, value: Any) -> bool:
        if type(value) is self._array:
            return True
        return isinstance(value, self._array) and library(value) is self  # which refuses some subclasses

    def kit(self, x: Any) -> Kit:
        return self._kit

    def memory(self, array: Any) -> Memory | None:
        address: int = array.__array_interface__["data"][0]
        return Memory(address, array.shape, array.strides, array.itemsize, array.flags.writeable)

    def constants(self, numbers: Constants, dtype: Any, create: dict[str, Any]) -> Any:
        # Host memory, no tracer's and no device's, so it may be kept, on what it was made of.
        kept = numbers.kept.get(dtype)
        if kept is None:
            kept = numbers.kept[dtype] = self.xp.asarray(numbers.values, dtype=dtype)
            kept.flags.writeable = False
        return kept


# From an array's type to its library. Read without the lock: an entry never changes, and the table is
# replaced whole, so that a thread sees one state or the other.
_libraries: dict[type, Library] = {}
_lock = Lock()


def library(x: Any) -> Library:
    """Return the library of an array, by its type."""
    found = _libraries.get(type(x))
    return found if found is not None else _learn(x)


def is_numpy(value: Any) -> bool:
    """Tell whether a value is an array of NumPy's; a masked array or a matrix is refused."""
    return bool(compat.is_numpy_array(value)) and library(value) is not None


def is_numpy_scalar(value: Any) -> bool:
    """Tell whether a value is a number of NumPy's, which unlike an array of no axes cannot be written."""
    return bool(compat.is_numpy_array(value)) and not hasattr(value, "__setitem__")


def numpy_library() -> Library:
    """Return NumPy, for results that have no array to follow."""
    import numpy as np  # where a NumPy result is asked for

    return library(np.empty(0))


def _learn(x: Any) -> Library:
    global _libraries
    found = _detect(x)
    with _lock:
        found = next((known for known in _libraries.values() if known.xp is found.xp), found)
        _libraries = {**_libraries, type(x): found}
    return found


def _detect(x: Any) -> Library:
    if compat.is_numpy_array(x):
        _refuse_unsound(x)
        return NumPy()
    try:
        xp = compat.array_namespace(x)
    except (TypeError, AttributeError):  # the latter where something else stands in for a library
        raise ArrayTypeError(
            f"x is {describe(x)}; give an array of NumPy, PyTorch, JAX, CuPy, dask or any library with the "
            "Array API, or several in one plain tuple: (q, k). A list of numbers becomes an array by "
            "numpy.asarray."
        ) from None
    jax, dask = compat.is_jax_array(x), compat.is_dask_array(x)
    return Library(library_name(x), xp, takes_numpy=jax or dask, placeless=jax or dask)


def _refuse_unsound(x: Any) -> None:
    """Refuse the NumPy subclasses on which plain arithmetic means something else."""
    names = {cls.__name__ for cls in type(x).__mro__}
    if "MaskedArray" in names:
        raise ArrayTypeError(
            f"{describe(x)} is a masked array; a rotation mixes the members of a pair, so a mask has no one "
            "meaning after it. Give its filled(0), or its data, and keep the mask beside it."
        )
    if "matrix" in names:
        raise ArrayTypeError(
            f"{describe(x)} is a numpy.matrix, whose * multiplies matrices; give numpy.asarray of it."
        )


def dtype_name(x: Any) -> str:
    """Name an array's dtype as the standard does; bfloat16 and float16, which it lacks, by the same rule."""
    return _name_of(x.dtype)


_dtype_names: dict[tuple[type, Any], str] = {}


def _name_of(dtype: Any) -> str:
    # The type too is in the key, so that dtypes of two libraries are never compared.
    key = type(dtype), dtype
    name = _dtype_names.get(key)
    if name is None:
        name = _dtype_names[key] = getattr(dtype, "name", None) or str(dtype).rpartition(".")[2]
    return name


# Called by Dynamo while it traces, its result a constant: see _registry._name_of.
_name_of._dynamo_marked_constant = True  # type: ignore[attr-defined]
