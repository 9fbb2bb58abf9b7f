"""NumPy, and libraries of arrays in NumPy's memory: array-api-strict, dask and cubed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.util import find_spec
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ._base import Array, ArrayLibrary, Context, numpy_copy, numpy_dtype, widened


class NumPyLibrary(ArrayLibrary):
    """NumPy, with bfloat16 where ml_dtypes is installed."""

    name = module = package = session = "numpy"
    title = "NumPy"
    namespace = "array_api_compat.numpy"
    reasons = MappingProxyType({"bfloat16": "NumPy has bfloat16 only through ml_dtypes"})

    @property
    def dtypes(self) -> list[str]:
        return [*self.floats, *(["bfloat16"] if find_spec("ml_dtypes") else [])]

    def dtype(self, name: str) -> Any:
        return numpy_dtype(name)

    def asarray(self, array: Any, dtype: str | None = None) -> Array:
        return numpy_copy(array, dtype)

    def owns(self, value: Any) -> bool:
        return type(value) is np.ndarray  # a subclass may redefine multiplication

    def dtype_of(self, array: Array) -> str:
        return str(array.dtype.name if array.dtype.isnative else array.dtype.str)

    def copied(self, array: Array) -> Array:
        steps = [(n - 1) * step for n, step in zip(array.shape, array.strides, strict=True)]
        overlaps = any(n > 1 and not step for n, step in zip(array.shape, array.strides, strict=True))
        if not array.size or overlaps:
            return np.array(array)
        start = -sum(step for step in steps if step < 0)
        memory = np.zeros(start + sum(step for step in steps if step > 0) + array.itemsize, np.uint8)
        copy: Array = np.ndarray(array.shape, array.dtype, memory, start, array.strides)
        copy[...] = array
        return copy

    def strided(self, array: Array) -> Iterator[tuple[str, Array]]:
        yield from super().strided(array)
        yield "reversed", array[..., ::-1, ::-1].copy()[..., ::-1, ::-1]
        yield "Fortran order", np.asfortranarray(array)
        fixed = array.copy()
        fixed.flags.writeable = False
        yield "read-only", fixed

    def exotic(self, array: Array) -> Iterator[tuple[str, Array]]:
        if array.dtype.kind in "fiu":  # not ml_dtypes' bfloat16
            yield "the other byte order", array.astype(array.dtype.newbyteorder())
        shifted = np.frombuffer(b"\0" + array.tobytes(), np.uint8)[1:]
        yield "unaligned", shifted.view(array.dtype).reshape(array.shape)

    def sevens(self, shape: tuple[int, ...], like: Array) -> Array | None:
        return np.full(shape, 7, like.dtype)

    def shares_memory(self, a: Array, b: Array) -> bool:
        return np.shares_memory(a, b)

    def strides_of(self, array: Array) -> tuple[int, ...] | None:
        return tuple(array.strides)

    def is_writable(self, array: Array) -> bool:
        root = array
        while isinstance(root.base, np.ndarray):
            root = root.base
        # Memory of another library, such as JAX, may be read-only.
        return bool(array.flags.writeable) or root.base is not None

    def overwrite(self, array: Array, values: Any = 7) -> bool:
        if array.flags.writeable:
            array[...] = values
        return bool(array.flags.writeable)


class ReadOnlyNumPyLibrary(NumPyLibrary):
    """NumPy with read-only arrays."""

    name = "numpy:readonly"
    configuration = "read-only arrays"
    copied = ArrayLibrary.copied  # a target finds in the class whether arrays can be copied

    def asarray(self, array: Any, dtype: str | None = None) -> Array:
        copy = super().asarray(array, dtype)
        copy.flags.writeable = False
        return copy


class StrictLibrary(ArrayLibrary):
    """array-api-strict with its strictest flags: the standard's functions only."""

    name = module = namespace = "array_api_strict"
    title = package = "array-api-strict"
    session = "strict"
    floats = ("float32", "float64")
    reasons = MappingProxyType(dict.fromkeys(("float16", "bfloat16"), "the standard has none"))
    device = ""  # of arrays; empty for the default

    @property
    def label(self) -> str:
        return "strict"

    def asarray(self, array: Any, dtype: str | None = None) -> Array:
        array = super().asarray(array, dtype)
        return self._moved(array, self.device) if self.device else array

    def to_numpy(self, array: Array) -> NDArray[Any]:
        array = self._moved(array, "CPU_DEVICE") if self.device else array
        try:
            return np.from_dlpack(array)
        except BufferError:  # NumPy 2.0 exports no read-only array
            return np.from_dlpack(self.xp.asarray(array, copy=True))

    def _moved(self, array: Array, device: str) -> Array:
        return self.xp.asarray(array, device=self.native.Device(device))

    def running(self) -> Context:
        flags: Context = self.native.ArrayAPIStrictFlags(
            boolean_indexing=False, data_dependent_shapes=False, enabled_extensions=()
        )
        return flags

    def settings(self) -> str:
        flags = "no boolean indexing, data-dependent shapes or extensions"
        return f"{flags}; arrays on {self.device}" if self.device else flags


class ChunkedLibrary(ArrayLibrary):
    """A lazy library: arrays in chunks of NumPy's, two along each axis but the last."""

    reasons = MappingProxyType({"bfloat16": "the suite has it with NumPy's own dtypes"})

    def dtype(self, name: str) -> Any:
        return numpy_dtype(name)

    def asarray(self, array: Any, dtype: str | None = None) -> Array:
        array = numpy_copy(array, dtype)
        chunks = tuple(max(1, (n + 1) // 2) for n in array.shape[:-1]) + array.shape[-1:]
        return self.native.from_array(array, chunks=chunks)

    def to_numpy(self, array: Array) -> NDArray[Any]:
        return widened(np.asarray(array.compute()))

    def is_lazy(self, array: Array) -> bool:
        return self.owns(array)


class DaskLibrary(ChunkedLibrary):
    """dask's arrays, computed by one thread."""

    name = title = package = session = "dask"
    module = "dask.array"
    namespace = "array_api_compat.dask.array"

    def asarray(self, array: Any, dtype: str | None = None) -> Array:
        return self.xp.asarray(super().asarray(array, dtype))

    def poisoned(self, array: Array) -> Array:
        return array.map_blocks(_computed, dtype=array.dtype, meta=np.empty((0,) * array.ndim, array.dtype))

    def state(self) -> dict[str, Any]:
        # dask.utils.disable_gc, around its optimization, ends with the setting at its import.
        return {name: value for name, value in super().state().items() if "garbage" not in name}

    def running(self) -> Context:
        # One thread: the arrays are small, and dask would start a thread pool for each.
        context: Context = import_module("dask").config.set(scheduler="synchronous")
        return context


class CubedLibrary(ChunkedLibrary):
    """cubed's arrays."""

    name = title = package = module = "cubed"
    session = "dask"
    namespace = "cubed.array_api"
    calls = 40  # each takes tens of milliseconds
    has_strides = False
    negative_steps = False

    def poisoned(self, array: Array) -> Array:
        return self.native.map_blocks(_computed, array, dtype=array.dtype)

    def strided(self, array: Array) -> Iterator[tuple[str, Array]]:
        yield "transposed", self.permute(self.asarray(self.to_numpy(array).T), (*range(array.ndim),)[::-1])

    def defaults(self) -> dict[str, Any]:
        # cubed's executor sets these variables to 1 when it is made.
        return {name: value for name, value in super().defaults().items() if "of threads" not in name}

    def watch(self, array: Array) -> Callable[[], bool]:
        return lambda: False  # each operation reads the callers' frames, which keeps their variables


def _computed(block: Any) -> Any:
    raise AssertionError("an array was computed before its values were asked for")
