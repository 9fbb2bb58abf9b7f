"""Libraries of chunks in NumPy's memory: dask and cubed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib import import_module
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ._base import Array, ArrayLibrary, Context, numpy_copy, numpy_dtype, widened


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
    has_strides = True

    def asarray(self, array: Any, dtype: str | None = None) -> Array:
        return self.xp.asarray(super().asarray(array, dtype))

    def poisoned(self, array: Array) -> Array:
        return array.map_blocks(_computed, dtype=array.dtype, meta=np.empty((0,) * array.ndim, array.dtype))

    def state(self) -> dict[str, Any]:
        # dask.utils.disable_gc, around its optimization, ends with the setting at its import.
        return {name: value for name, value in super().state().items() if "garbage" not in name}

    def running(self) -> Context:
        # One thread: the arrays are small, and dask would start a thread pool for each.
        return import_module("dask").config.set(scheduler="synchronous")


class CubedLibrary(ChunkedLibrary):
    """cubed's arrays."""

    name = title = package = module = "cubed"
    session = "dask"
    namespace = "cubed.array_api"
    calls = 40  # each takes tens of milliseconds
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


LIBRARIES = (DaskLibrary(), CubedLibrary())
