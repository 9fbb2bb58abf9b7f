"""Libraries that other packages adapt: each is a target by the name of its backend's entry point."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ._base import Array, ArrayLibrary, MissingLibrary, widened

_DTYPES = (*ArrayLibrary.floats, *ArrayLibrary.integers)


class RegisteredLibrary(ArrayLibrary):
    """A library of which the suite knows how to make arrays, and how to read them."""

    def __init__(self, name: str, array_type: str, backend: str):
        super().__init__(name)
        self.module, _, self._type_name = array_type.partition(":")
        self._backend = backend
        self.floats = tuple(name for name in ArrayLibrary.floats if self._has(name))
        self.integers = tuple(name for name in ArrayLibrary.integers if self._has(name))

    def _has(self, dtype: str) -> bool:
        try:
            return self.dtype_of(self.asarray(np.zeros(1), dtype)) == dtype
        except Exception:  # the library's own
            return False

    @cached_property
    def xp(self) -> Any:
        library = getattr(import_module(self._backend), "library", None)
        x = self._made(np.zeros(1, np.float32))
        return x.__array_namespace__() if library is None else library(x).xp

    def _made(self, array: NDArray[Any]) -> Array:
        """Return an array, made by the first of the module's functions that makes one."""
        array_type = getattr(self.native, self._type_name)
        for name in ("asarray", "array", self._type_name):
            try:
                made = getattr(self.native, name)(array)
            except Exception:  # it is no such function, or takes no NumPy array
                continue
            if isinstance(made, array_type):
                return made
        raise MissingLibrary(
            f"no array of {self.name} could be made of NumPy's: {self.module} needs an asarray"
        )

    def asarray(self, array: Any, dtype: str | None = None) -> Array:
        return self.xp.asarray(np.array(array), dtype=self.dtype(dtype or np.asarray(array).dtype.name))

    def to_numpy(self, array: Array) -> NDArray[Any]:
        for convert in self._conversions():
            try:
                numbers = np.asarray(convert(array))
            except Exception:  # it is no such function
                continue
            if numbers.dtype != object:
                return widened(numbers)
        raise MissingLibrary(
            f"an array of {self.name} has no conversion to NumPy: an __array__, or __dlpack__"
        )

    def _conversions(self) -> Iterator[Callable[[Any], Any]]:
        yield from (np.asarray, np.from_dlpack, lambda array: array.numpy())
        yield lambda array: self.native.to_numpy(array)

    # Each of these copies: code that reads memory otherwise is not known to be right with such arrays.

    def permute(self, array: Array, axes: tuple[int, ...]) -> Array:
        return self.asarray(self.to_numpy(array).transpose(axes), self.dtype_of(array))

    def stack(self, arrays: list[Array]) -> Array:
        return self.asarray(np.stack([*map(self.to_numpy, arrays)]), self.dtype_of(arrays[0]))

    def expanded(self, array: Array, shape: tuple[int, ...]) -> Array:
        return self.asarray(np.broadcast_to(self.to_numpy(array), shape), self.dtype_of(array))

    def strided(self, array: Array) -> Iterator[tuple[str, Array]]:
        yield from ()


def registered_names() -> list[str]:
    """Return the names of the backends of other packages; no package is imported."""
    return sorted({point.name for point in entry_points(group="rope_array.backends")})


def registered_library(name: str) -> RegisteredLibrary:
    """Return the library of another package's backend; raise ImportError if it cannot be imported."""
    (point, *_) = entry_points(group="rope_array.backends", name=name)
    _, types, module = point.load()
    return RegisteredLibrary(name, types[0], module)
