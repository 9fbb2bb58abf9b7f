"""NumPy."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from types import MappingProxyType
from typing import Any

import numpy as np

from ._base import Array, ArrayLibrary, numpy_copy, numpy_dtype


class NumPyLibrary(ArrayLibrary):
    """NumPy, with bfloat16 where ml_dtypes is installed."""

    name = module = package = session = "numpy"
    title = "NumPy"
    namespace = "array_api_compat.numpy"
    has_strides = has_caches = writes_caches = True
    quantised = ArrayLibrary.quantised if find_spec("ml_dtypes") else ("int8",)
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
    has_caches = writes_caches = False
    copied = ArrayLibrary.copied  # a target finds in the class whether arrays can be copied

    def asarray(self, array: Any, dtype: str | None = None) -> Array:
        copy = super().asarray(array, dtype)
        copy.flags.writeable = False
        return copy


LIBRARIES = (NumPyLibrary(), ReadOnlyNumPyLibrary())
