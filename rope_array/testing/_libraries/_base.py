"""The interface of an array library, with defaults in terms of the Array API standard."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from importlib import import_module
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rope_array.testing._settings import lasting_settings, process_settings

Array = Any
Function = Callable[..., Any]
Context = AbstractContextManager[Any]

# The method that gives a library each capability, and the reason to lack it if a class has no such method.
_BY_METHOD = {
    "gradient": ("pullback", "the library has no gradients"),
    "jit": ("traced", "the library has no compiler"),
    "lazy": ("poisoned", "arrays are computed at once"),
    "shards": ("in_shards", "jax:sharded has several devices"),
}
_DTYPES = ("float16", "bfloat16", "float32", "float64")
_OF_ML_DTYPES = ("bfloat16", "float8_e4m3fn")
# Settings around a call, and transforms of it.
SETTINGS = ("no_grad", "inference_mode", "autocast", "default_dtype", "default_device", "deterministic")
MODES = (*SETTINGS, "vmap", "vmap_positions", "jvp")
# Elements before an array in a longer memory: no multiple of a vector's width.
_OFFSETS = (1, 3)


class MissingLibrary(ImportError):
    """A library is not installed, or has no device of the needed kind."""


class ArrayLibrary:
    """One array library, in one configuration.

    A configuration has its own name, such as "torch:cuda", and attributes that differ from its class's.
    It lacks the capabilities whose methods here raise NotImplementedError.
    """

    name = ""
    # Its name in the documentation, and its package, a requirement in pyproject.toml.
    title = ""
    package = ""
    # The session of noxfile.py that tests it: "more" is `tests(more)`. "gpu": the session `gpu` alone.
    session = "more"
    module = ""
    # The module of the Array API namespace, from array-api-compat where it has one; else `module`.
    namespace = ""
    floats: tuple[str, ...] = ("float16", "float32", "float64")
    # The integer dtypes that positions may have; the first is the widest.
    integers: tuple[str, ...] = ("int64", "int32", "int16", "int8", "uint8", "uint16", "uint32")
    # Why it lacks a capability, where the reason is not plain.
    reasons: Mapping[str, str] = MappingProxyType({})
    # The modes that the suite knows of it.
    modes: tuple[str, ...] = ()
    has_values = True
    # The number of calls in `combinations`: few if each is compiled.
    calls = 1000
    # Whether the memory of one row can be all rows of an array.
    has_strides = False
    # Whether the suite hands it caches and out to write, and whether they are written in place.
    has_caches = writes_caches = False
    quantised: tuple[str, ...] = ("int8", "float8_e4m3fn")  # the dtypes of quantised caches
    # Whether slices may have negative steps.
    negative_steps = True
    # The backend of rope_array that the configuration is for.
    backend: str | None = None
    # The suffix of the name with which a target's calls are compiled; empty if they cannot be.
    compiler = ""
    # The configuration in words; empty for the default.
    configuration = ""

    def __init__(self, name: str = "", **attributes: Any) -> None:
        self.name = name or self.name
        for attribute, value in attributes.items():
            getattr(type(self), attribute)  # raises for a name that is misspelled
            setattr(self, attribute, value)

    def __repr__(self) -> str:
        return self.name

    @property
    def label(self) -> str:
        """The name in test ids."""
        return self.name

    @cached_property
    def native(self) -> Any:
        """The library itself."""
        try:
            return import_module(self.module)
        except ModuleNotFoundError as error:
            root = self.module.partition(".")[0]
            raise MissingLibrary(
                f"{self.name} needs the package {root}, which cannot be imported: {error}"
            ) from None

    @cached_property
    def xp(self) -> Any:
        """The Array API namespace."""
        return import_module(self.namespace or self.module)

    @property
    def version(self) -> str:
        """The library's version."""
        native = self.native  # raises MissingLibrary
        package = import_module(self.module.partition(".")[0])
        return str(getattr(package, "__version__", None) or getattr(native, "__version__", ""))

    def check_present(self) -> None:
        """Raise `MissingLibrary` if the library or its device is missing."""
        self.native  # noqa: B018

    @property
    def gaps(self) -> dict[str, str]:
        """The capabilities that it lacks, each with the reason; it is not imported."""
        return self._gaps_with(self.floats)

    @cached_property
    def lacks(self) -> dict[str, str]:
        """The missing capabilities with reasons: `gaps` with the dtypes that are available here."""
        return self._gaps_with(self.dtypes)

    def _gaps_with(self, floats: Collection[str]) -> dict[str, str]:
        """Return the missing capabilities with reasons, given the floating dtypes."""
        gaps = {} if self.has_values else {"values": f"{self.name} has no values"}
        gaps |= {name: f"{self.name} has no {name}" for name in _DTYPES if name not in floats}
        gaps |= {"mixed_dtypes": f"{self.name} has one floating dtype"} if len(self.floats) == 1 else {}
        gaps |= {} if self.has_caches else {"caches": "arrays of the library are not written into"}
        gaps |= {} if self.writes_caches else {"out": "arrays of the library are not written into"}
        if "int64" not in self.integers:
            gaps["wide_positions"] = f"{self.name} has no 64-bit integers"
        for name, (method, reason) in _BY_METHOD.items():
            if getattr(type(self), method) is getattr(ArrayLibrary, method):
                gaps[name] = reason
        gaps |= dict.fromkeys((mode for mode in MODES if mode not in self.modes),
                              "the library has no such mode, or none that the suite knows")  # fmt: skip
        return {name: self.reasons.get(name, reason) for name, reason in gaps.items()}

    @property
    def dtypes(self) -> list[str]:
        """Names of the floating dtypes."""
        return list(self.floats)

    def dtype(self, name: str) -> Any:
        """Return the library's own object for a dtype."""
        return getattr(self.xp, name)

    def asarray(self, array: Any, dtype: str | None = None) -> Array:
        """Convert a NumPy array, on the configured device."""
        return self.xp.asarray(array, dtype=None if dtype is None else self.dtype(dtype))

    def to_numpy(self, array: Array) -> NDArray[Any]:
        """Convert to NumPy, bfloat16 to float32."""
        return widened(np.asarray(array))

    def owns(self, value: Any) -> bool:
        """Return whether a value is an array of the library."""
        return isinstance(value, type(self.asarray(np.zeros(1, np.float32))))

    def dtype_of(self, array: Array) -> str:
        """Return the name of an array's dtype."""
        return getattr(array.dtype, "name", None) or str(array.dtype).rpartition(".")[2]

    def device_of(self, array: Array) -> str:
        """Return an array's device as a string."""
        return str(getattr(array, "device", "cpu"))

    def permute(self, array: Array, axes: tuple[int, ...]) -> Array:
        """Reorder axes."""
        return self.xp.permute_dims(array, axes)

    def stack(self, arrays: list[Array]) -> Array:
        """Stack arrays along a new first axis."""
        return self.xp.stack(arrays)

    def expanded(self, array: Array, shape: tuple[int, ...]) -> Array:
        """Broadcast an array to a shape, as a view if the library has views."""
        return self.xp.broadcast_to(array, shape)

    def part_of(self, array: Array, index: slice) -> Array | None:
        """Return a part of an array of one axis, or None if the library has no such part."""
        return array[index] if self.negative_steps or (index.step or 1) > 0 else None

    def copied(self, array: Array) -> Array:
        """Return a copy that can be written, with the same strides where they do not overlap."""
        raise NotImplementedError  # never called: `Target` looks whether a class has its own

    def poisoned(self, array: Array) -> Array:
        """Return an array of the same shape and dtype that raises when it is computed."""
        raise NotImplementedError

    def strided(self, array: Array) -> Iterator[tuple[str, Array]]:
        """Yield names and arrays of the same values with other strides or memory, for four axes."""
        backwards = tuple(range(array.ndim))[::-1]
        yield "transposed", self.permute(self._packed(self.permute(array, backwards)), backwards)
        two = self.stack([array, array])
        yield "a slice", two[1, ...]
        yield "every second", self._packed(self.permute(two, (1, 2, 3, 0, 4)))[:, :, :, 1, :]
        yield "every second feature", self._packed(self.permute(two, (1, 2, 3, 4, 0)))[..., 0]
        # x is k in one array of q, k and v, of shape (B, S, 3, H, D).
        three = self._packed(self.permute(self.stack([array] * 3), (1, 3, 0, 2, 4)))
        yield "a fused projection", self.permute(three[:, :, 1, ...], (0, 2, 1, 3))

    def _packed(self, array: Array) -> Array:
        # Reshaping to one axis makes C order; a copy keeps the strides' order.
        return self.xp.reshape(self.xp.reshape(array, (-1,)), array.shape)

    def exotic(self, array: Array) -> Iterator[tuple[str, Array]]:
        """Yield names and arrays of the same values in memory that few programs have."""
        yield from ()

    def inside(self, array: Array) -> Iterator[tuple[str, Array, Array]]:
        """Yield names, views of the same values in larger arrays, and the larger arrays.

        The first ones are not aligned: they start inside a longer memory.
        """
        for name, shape, index in _larger(tuple(array.shape)):
            if (larger_array := self.sevens(shape, array)) is not None:
                view = larger_array[index].reshape(array.shape)
                view[...] = array
                yield name, view, larger_array

    def sevens(self, shape: tuple[int, ...], like: Array) -> Array | None:
        """Return a new array of the number 7, in the dtype of another; None if arrays cannot be written."""
        return None

    def snapshot(self, array: Array) -> bytes:
        """Return an array's shape and bits, to detect writes."""
        return f"{tuple(array.shape)}".encode() + np.ascontiguousarray(self.to_numpy(array)).tobytes()

    def shares_memory(self, a: Array, b: Array) -> bool:
        """Return whether two arrays share memory."""
        return False

    def strides_of(self, array: Array) -> tuple[int, ...] | None:
        """Return an array's strides in one unit, or None if arrays have none."""
        return None

    def is_writable(self, array: Array) -> bool:
        """Return whether an array can be written, or no array of the library can."""
        return True

    def overwrite(self, array: Array, values: Any = 7) -> bool:
        """Write values, or a number, to an array in place; return False if arrays cannot be written."""
        return False

    def watch(self, array: Array) -> Callable[[], bool]:
        """Return a function that tells whether the array is still in memory; it does not keep it there."""
        try:
            reference = weakref.ref(array)
        except TypeError:  # arrays without weak references
            return lambda: False
        return lambda: reference() is not None

    def is_deleted(self, array: Array) -> bool:
        """Return whether an array was deleted: its memory was given away."""
        return False

    def is_lazy(self, array: Array) -> bool:
        """Return whether an array is not computed yet."""
        return False

    def running(self) -> Context:
        """Return the context manager for using the library, in each thread."""
        return nullcontext()

    def unusual(self) -> Context | None:
        """Return the context of other settings, for threads that set none themselves, or None."""
        return None

    def defaults(self) -> dict[str, Any]:
        """Return lasting settings, of the library and of the process, which a call should not change."""
        return lasting_settings()

    def state(self) -> dict[str, Any]:
        """Return `defaults` and other settings of the process."""
        return {**self.defaults(), **process_settings()}

    def pullback(self, f: Function, x: Any) -> tuple[Any, Function]:
        """Return f(x), recorded for gradients, and its vector-Jacobian product; x may be a tuple."""
        raise NotImplementedError

    def pulled_twice(self, pull: Function, cotangent: Any) -> tuple[Any, Any]:
        """Return two results of a `pullback`'s product."""
        return pull(cotangent), pull(cotangent)

    def gradient(self, f: Function, x: Array, cotangent: Array) -> Array:
        """Return the vector-Jacobian product of f at x with a cotangent."""
        return self.pullback(f, x)[1](cotangent)

    def second_gradient(self, f: Function, x: Array, g: Array, h: Array) -> Array | None:
        """Return the gradient, by g, of the inner product of h and f's gradient at x with cotangent g.

        None if the gradient does not depend on g, as far as the library knows.
        """
        raise NotImplementedError

    def traced(self, f: Function) -> Function:
        """Compile a function of arrays."""
        raise NotImplementedError

    def in_shards(self, f: Function, x: Array, pos: Array) -> Array:
        """Call f on each device's part of a sequence, the axis -2 of x and the last of pos."""
        raise NotImplementedError


def _larger(shape: tuple[int, ...]) -> Iterator[tuple[str, tuple[int, ...], Any]]:
    """Yield names, shapes of larger arrays, and the indices of an array in them."""
    size = int(np.prod(shape))
    for count in _OFFSETS:
        yield f"{count} elements into its memory", (size + count + 5,), slice(count, count + size)
    if len(shape) < 2:
        return
    *lead, s, d = shape
    for name, start in (("rows", 2), ("the first rows", 0), ("the last rows", 4)):
        yield f"{name} of a longer array", (*lead, s + 4, d), np.s_[..., start : s + start, :]
    yield "features of a wider array", (*lead, s, 3 * d), np.s_[..., d : 2 * d]
    if lead:
        larger = (lead[0] + 2, *lead[1:], s, d)
        yield "a part of a larger batch", larger, np.s_[1 : lead[0] + 1, ...]


def numpy_dtype(name: str) -> Any:
    """Return NumPy's dtype of a name; for bfloat16 and float8_e4m3fn, the dtype of ml_dtypes."""
    return getattr(import_module("ml_dtypes"), name) if name in _OF_ML_DTYPES else np.dtype(name)


def numpy_copy(array: Any, dtype: str | None) -> NDArray[Any]:
    """Copy an array to NumPy, in a dtype."""
    return np.array(array, dtype=None if dtype is None else numpy_dtype(dtype))


def widened(array: NDArray[Any]) -> NDArray[Any]:
    """Convert bfloat16 and float8_e4m3fn to float32; return other arrays as they are."""
    return array.astype(np.float32) if array.dtype.name in _OF_ML_DTYPES else array


def rounded(values: NDArray[Any], dtype: str) -> NDArray[np.float64]:
    """Round numbers to a dtype and return them in float64."""
    if dtype != "bfloat16":
        return values.astype(dtype).astype(np.float64)
    # NumPy has no bfloat16: round float32 to its upper half, ties to even.
    bits = values.astype(np.float32).view(np.uint32)
    bits = bits + 0x7FFF + (bits >> 16 & 1) & np.uint32(0xFFFF0000)
    return bits.view(np.float32).astype(np.float64)
