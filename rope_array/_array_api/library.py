"""Array libraries by the type of an array: namespace, device, and dtype names that the standard lacks.

array-api-compat finds a library by type and through sys.modules, and so does this module: it imports no
library before an array of it appears.
"""

from typing import Any, NamedTuple

try:
    import array_api_compat as compat
except ModuleNotFoundError:  # a checkout without an installation
    raise ModuleNotFoundError(
        "rope_array needs array-api-compat: run python -m pip install . in the folder of the clone",
        name="array_api_compat",
    ) from None

from rope_array import _dynamo
from rope_array._errors import ArrayTypeError, describe, describe_other, library_name
from rope_array._spec.plan import Constants

from .ops import ArrayOps
from .source import Source

X_DTYPES = ("float32", "bfloat16", "float16", "float64")
POSITION_DTYPES = frozenset(
    f"{family}{bits}"
    for family, sizes in (("int", (2, 4, 8, 16, 32, 64)), ("uint", (2, 4, 8, 16, 32)))
    for bits in sizes
) | {"float32", "float64"}
_LIMIT = 256  # types, and dtypes, that are remembered


class Memory(NamedTuple):
    """The memory of an array: the address of its first element, and strides in bytes."""

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    itemsize: int
    writable: bool


class Library:
    """One array library: its facts, which the checks of a call ask for, and how its arrays are written.

    Attributes
    ----------
    operations
        The class of its array operations.
    converter
        The code that makes an array of positions, for errors.
    keeps_float64
        Whether float positions of Python keep their digits: its CPU and CUDA devices have float64.
    has_caches
        Whether `write_rows` writes its arrays, or returns written ones.
    name
        The library's name, as users write it.
    xp
        Its Array API namespace.
    takes_numpy
        Whether its functions accept NumPy arrays.
    implicit_device
        Whether new arrays need no device: the library places them where they are used.
    """

    operations: type[ArrayOps] = ArrayOps
    converter = "asarray(pos) of x's own library"
    keeps_float64 = False
    has_caches = False

    def __init__(self, name: str, xp: Any, *, takes_numpy: bool = False, implicit_device: bool = False):
        self.name = name
        self.xp = xp
        self.takes_numpy = takes_numpy
        self.implicit_device = implicit_device

    def has_int64(self, x: Any) -> bool:
        """Return whether the device of x has 64-bit integers now; in JAX a setting decides."""
        where = {} if self.implicit_device else {"device": self.device(x)}
        return "int64" in self.xp.__array_namespace_info__().dtypes(kind="integral", **where)

    def is_array(self, value: Any) -> bool:
        """Return whether a value is an array of this library."""
        return _libraries.get(type(value)) is self or (
            compat.is_array_api_obj(value) and library(value) is self
        )

    def check_supported(self, value: Any) -> None:
        """Raise for arrays without plain elementwise arithmetic: masked, nested, sparse."""

    def check_mix(self, xs: tuple[Any, ...], source: Source) -> None:
        """Raise for arrays of one call that have no common meaning, such as local and distributed tensors."""

    def device(self, x: Any) -> Any:
        """Return the device of x."""
        return compat.device(x)

    def host_numbers(self, array: Any) -> Any:
        """Return the numbers of an array, in lists, if the host has them and reading them leaves no trace."""
        return None

    def describe(self, x: Any) -> str:
        """Describe a value for a message, with its device if that is known."""
        device = self.device(x) if self.is_array(x) and hasattr(x, "device") else None
        return describe(x) if device is None else f"{describe(x)} on {device}"

    def has_fixed_sizes(self, x: Any) -> bool:
        """Return whether a comparison of x's sizes leaves no trace in a program that is recorded."""
        return True

    def same_device(self, a: Any, b: Any) -> bool:
        """Return whether two arrays are on one device."""
        return self.implicit_device or bool(self.device(a) == self.device(b))

    def ops(self, x: Any) -> ArrayOps:
        """Return the operations for arithmetic on the device of x."""
        if self.xp is None:  # of a backend whose library has no Array API, and which needs no operations
            return None  # type: ignore[return-value]
        creation_kwargs = {} if self.implicit_device else {"device": self.device(x)}
        try:
            has_int64 = self.has_int64(x)
        except Exception as error:  # array-api-strict raises for standards older than this information
            fault = f"raised {type(error).__name__} in __array_namespace_info__: {error}"
            remedy = ". A Library without this function overrides has_int64"
            raise unsupported(x, self.name, f"{fault.rstrip('.')}{remedy}") from None
        return self.operations(self.xp, has_int64, creation_kwargs)

    def host_ops(self, ops: ArrayOps) -> ArrayOps:
        """Return the operations that make arrays of host positions, if the library accepts NumPy arrays."""
        return ops

    def check_out(self, out: Any, x: Any, source_arrays: tuple[Any, ...]) -> None:
        """Raise if out cannot be written while x and the source's arrays are read."""

    def check_cache(self, name: str, cache: Any) -> None:
        """Raise if a cache, whose name is for the message, cannot be written; see `has_caches`."""

    def checks_while_tracing(self, outs: Any, xs: Any, source_arrays: Any) -> bool:
        """Check `outs` if a compiler traces the call, so that no address is known; return whether it does."""
        return False

    def memory(self, array: Any) -> Memory | None:
        """Return the memory of an array; None if the library's arrays cannot be written."""
        return None

    def copy_into(self, out: Any, y: Any) -> None:
        """Copy y into out. The caller has checked out for overlap."""
        out[...] = y

    def write_rows(
        self, cache: Any, order: tuple[int, ...], index: tuple[Any, ...], keep: Any, rows: Any, ops: ArrayOps
    ) -> Any:
        """Write rows into a cache, its axes permuted to `order`, at `index` where `keep`; return the cache.

        For libraries with `has_caches`. This method serves libraries whose arrays can be written, and whose
        permuted arrays share memory.
        """
        ops.xp.permute_dims(cache, order)[tuple(i[keep] for i in index)] = rows[keep]
        return cache


class NumPyOps(ArrayOps):
    """NumPy's operations: constants are made once and cached."""

    needs_equal_ndim = False
    reads_numpy = True

    def __init__(self, xp: Any, has_int64: bool = True):
        from numpy import ndarray

        super().__init__(xp, has_int64, {})
        # ndarray's methods: NumPy's functions wrap them in Python, which a small call notices.
        self.cast = ndarray.astype  # type: ignore[method-assign, assignment]
        self.reshape = ndarray.reshape  # type: ignore[method-assign, assignment]

    def constants(self, numbers: Constants, dtype: Any) -> Any:
        # Safe to cache: host memory holds neither a tracer nor a device's buffer.
        array = numbers.arrays.get(dtype)
        if array is None:
            array = numbers.arrays[dtype] = self.xp.asarray(numbers.values, dtype=dtype)
            array.flags.writeable = False
        return array


class NumPy(Library):
    """NumPy: one device, and memory that can be written."""

    converter = "numpy.asarray(pos)"
    keeps_float64 = True
    has_caches = True

    def __init__(self) -> None:
        # Imported after an array of NumPy's has appeared: the package itself imports no array library.
        import array_api_compat.numpy as xp
        from numpy import ndarray

        super().__init__("numpy", xp, implicit_device=True)
        self._ops = NumPyOps(xp)
        self._array = ndarray

    def is_array(self, value: Any) -> bool:
        if type(value) is self._array:
            return True
        return isinstance(value, self._array) and library(value) is self  # which refuses some subclasses

    def ops(self, x: Any) -> ArrayOps:
        return self._ops

    def memory(self, array: Any) -> Memory | None:
        address: int = array.__array_interface__["data"][0]
        return Memory(address, array.shape, array.strides, array.itemsize, array.flags.writeable)


class CuPy(Library):
    """CuPy: memory that can be written."""

    converter = "cupy.asarray(pos)"
    keeps_float64 = True
    has_caches = True

    def memory(self, array: Any) -> Memory | None:
        interface = getattr(array, "__cuda_array_interface__", None)
        if interface is None:
            return None
        address, read_only = interface["data"]
        return Memory(address, tuple(array.shape), tuple(array.strides), array.itemsize, not read_only)


class Strict(Library):
    """array-api-strict."""

    keeps_float64 = True


_CLASSES = {"cupy": CuPy, "array_api_strict": Strict}  # without a backend that has the Library

# By the type of an array. Read without the lock: a type always has the same Library, also after a clear().
_libraries: dict[type, Library] = {}


def library(x: Any) -> Library:
    """Return the library of an array, by its type."""
    lib = _libraries.get(type(x))
    return lib if lib is not None else _register_type(x)


def is_array_of_any_library(value: Any) -> bool:
    """Return whether a value is an array, and not an object that holds one, such as a Variable of Flax NNX.

    Such objects have all names of an array, but JAX's functions reject them in a traced function.
    """
    holds_array = hasattr(value, "__jax_array__") and not compat.is_jax_array(value)
    return bool(compat.is_array_api_obj(value)) and not holds_array


def flat(numbers: Any) -> list[Any]:
    """Return the result of `Library.host_numbers` in one list; none for None."""
    rows = numbers if isinstance(numbers, list) else [] if numbers is None else [numbers]
    while rows and isinstance(rows[0], list):
        rows = [number for row in rows for number in row]
    return rows


def is_numpy(value: Any) -> bool:
    """Return whether a value is a NumPy array; raise for masked arrays and matrices."""
    if not compat.is_numpy_array(value):
        return False
    library(value)
    return True


def is_numpy_scalar(value: Any) -> bool:
    """Return whether a value is a NumPy scalar, which is read-only, unlike a 0-d array."""
    return bool(compat.is_numpy_array(value)) and not hasattr(value, "__setitem__")


def numpy_library() -> Library:
    """Return NumPy's library, for results without an input array."""
    import numpy as np  # only if a NumPy result is asked for

    return library(np.empty(0))


_by_namespace: dict[Any, Library] = {}


def _register_type(x: Any) -> Library:
    detected = _detect(x)
    with _dynamo.lock:
        lib = _by_namespace.setdefault(detected.xp, detected)
        if len(_libraries) >= _LIMIT:
            _libraries.clear()
        _libraries[type(x)] = lib
    return lib


def _detect(x: Any) -> Library:
    if compat.is_numpy_array(x):
        _refuse_numpy_subclasses(x)
        return NumPy()
    try:
        xp = compat.array_namespace(x) if is_array_of_any_library(x) else None
    except (TypeError, AttributeError):  # AttributeError if a fake module replaces a library
        xp = None
    if xp is None:
        raise ArrayTypeError(
            f"got {describe_other(x)}; give an array of NumPy, PyTorch, JAX, TensorFlow, MLX, CuPy, dask or "
            "any library with the Array API, or several in one plain tuple: (q, k). A list becomes an "
            "array by numpy.asarray. Of an object that holds an array, give that: variable[...] of Flax, "
            "or data of xarray."
        )
    lazy, is_cupy = compat.is_jax_array(x) or compat.is_dask_array(x), compat.is_cupy_array(x)
    name = "cupy" if is_cupy else library_name(x)  # a subclass may be another package's
    return _CLASSES.get(name, Library)(name, xp, takes_numpy=lazy, implicit_device=lazy)


def unsupported(x: Any, name: str, reason: str) -> ArrayTypeError:
    """Return the error for an array whose library cannot rotate."""
    dense = "its todense(), or " if hasattr(x, "todense") else ""
    return ArrayTypeError(
        f"{describe(x)} cannot be used: {name} {reason.rstrip('.')}. A rotation needs the Python Array API "
        f"2023.12 or newer. Give {dense}an array of another library, such as NumPy, or add a backend with a "
        f"Library for {name} (docs/write-a-backend.md)."
    )


def _refuse_numpy_subclasses(x: Any) -> None:
    """Refuse the NumPy subclasses whose operators are not plain elementwise arithmetic."""
    names = {cls.__name__ for cls in type(x).__mro__}
    if "MaskedArray" in names:
        raise ArrayTypeError(
            f"{describe(x)} is a masked array, and a rotation reads no mask; give its filled(0), or its "
            "data, and keep the mask separately."
        )
    if "Quantity" in names:  # astropy's
        raise ArrayTypeError(f"{describe(x)} has a unit, and a rotation needs plain numbers; give its value.")
    if "matrix" in names:
        raise ArrayTypeError(
            f"{describe(x)} is a numpy.matrix, whose * multiplies matrices; give numpy.asarray of it."
        )


def dtype_name(x: Any) -> str:
    """Return the name of an array's dtype: the standard's, and "bfloat16" and "float16", which it lacks."""
    name: str = name_of_dtype(x.dtype)
    return name


_dtype_names: dict[tuple[type, Any], str] = {}


@_dynamo.traced_constant
def name_of_dtype(dtype: Any) -> str:
    """Return the name of a dtype."""
    key = type(dtype), dtype  # the type too: dtypes of two libraries must not be compared
    name = _dtype_names.get(key)
    if name is None:
        if len(_dtype_names) >= _LIMIT:
            _dtype_names.clear()
        name = _dtype_names[key] = getattr(dtype, "name", None) or str(dtype).rpartition(".")[2]
    return name


def computes_in_float64(x: Any) -> bool:
    """Return whether x is rotated in float64; all other dtypes are rotated in float32."""
    return dtype_name(x) == "float64"
