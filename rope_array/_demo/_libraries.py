"""The array libraries that are installed: how to make, copy, finish and read an array of each."""

from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray


class NumPy:
    """NumPy, and what most libraries do as it does.

    Attributes
    ----------
    name
        What a user calls and installs it.
    module
        What is imported.
    xp
        Its functions on arrays.
    dtypes
        Floating dtypes of the demo that it has, by name.
    """

    name = "numpy"
    module = "numpy"

    def __init__(self) -> None:
        self.xp: Any = import_module(self.module)
        self.version: str = import_module(self.module.partition(".")[0]).__version__
        self.dtypes = self._dtypes()

    def _dtypes(self) -> list[str]:
        try:
            import_module("ml_dtypes")
        except ImportError:
            return ["float32", "float64"]
        return ["float32", "bfloat16", "float64"]

    def dtype(self, name: str) -> Any:
        """Return the library's own object for a dtype."""
        return import_module("ml_dtypes").bfloat16 if name == "bfloat16" else getattr(self.xp, name)

    def asarray(self, values: NDArray[Any], dtype: str) -> Any:
        """Make an array of numbers that the dtype holds exactly."""
        return self.xp.asarray(values, dtype=self.dtype(dtype))

    def copy(self, x: Any) -> Any:
        """Copy an array, as the yardstick of time."""
        return x.copy()

    def finish(self, ys: tuple[Any, ...]) -> tuple[Any, ...]:
        """Wait until arrays are computed."""
        return ys

    def to_numpy(self, y: Any) -> NDArray[np.float64]:
        """Return a finished array's values, in float64."""
        return np.asarray(y).astype(np.float64)


class Strict(NumPy):
    """array-api-strict: what the Array API standard has, and no more."""

    name = "array-api-strict"
    module = "array_api_strict"

    def _dtypes(self) -> list[str]:
        return ["float32", "float64"]

    def copy(self, x: Any) -> Any:
        return self.xp.asarray(x, copy=True)

    def to_numpy(self, y: Any) -> NDArray[np.float64]:
        return np.from_dlpack(y).astype(np.float64)


class Dask(NumPy):
    """dask: arrays in chunks, here one for each half of the tokens of each copy of the text."""

    name = "dask"
    module = "dask.array"

    def _dtypes(self) -> list[str]:
        return ["float32", "float64"]

    def asarray(self, values: NDArray[Any], dtype: str) -> Any:
        chunks = (1, -1, -(-values.shape[-2] // 2), -1) if values.ndim == 4 else -1
        return self.xp.from_array(values.astype(dtype), chunks=chunks)

    def copy(self, x: Any) -> Any:
        return x.map_blocks(np.copy)  # x.copy() would copy the graph only

    def finish(self, ys: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(import_module("dask").compute(*ys))


class Jax(NumPy):
    """JAX, on its default device."""

    name = "jax"
    module = "jax.numpy"

    def _dtypes(self) -> list[str]:
        wide = import_module("jax").config.jax_enable_x64
        return ["float32", "bfloat16", *(["float64"] if wide else [])]

    def finish(self, ys: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(import_module("jax").block_until_ready(ys))


class Torch(NumPy):
    """PyTorch, eager, on the CPU."""

    name = "torch"
    module = "torch"

    def _dtypes(self) -> list[str]:
        return ["float32", "bfloat16", "float64"]

    def dtype(self, name: str) -> Any:
        return getattr(self.xp, name)

    def asarray(self, values: NDArray[Any], dtype: str) -> Any:
        return self.xp.tensor(values, dtype=self.dtype(dtype), device="cpu")

    def copy(self, x: Any) -> Any:
        return x.clone()

    def to_numpy(self, y: Any) -> NDArray[np.float64]:
        return np.asarray(y.double().numpy())


class CuPy(NumPy):
    """CuPy, on its current GPU."""

    name = "cupy"
    module = "cupy"

    def _dtypes(self) -> list[str]:
        self.xp.cuda.runtime.getDeviceCount()  # raises where there is no GPU
        return ["float32", "float64"]

    def finish(self, ys: tuple[Any, ...]) -> tuple[Any, ...]:
        self.xp.cuda.get_current_stream().synchronize()
        return ys

    def to_numpy(self, y: Any) -> NDArray[np.float64]:
        return np.asarray(y.get().astype(np.float64))


def installed() -> tuple[list[NumPy], list[str], list[str]]:
    """Return the libraries that work here, and the names of those that are absent or fail to load."""
    found, absent, broken = [], [], []
    for cls in (NumPy, Strict, Dask, Jax, Torch, CuPy):
        try:
            if find_spec(cls.module.partition(".")[0]) is None:
                absent.append(cls.name)
            else:
                found.append(cls())
        except Exception as error:  # a broken installation or a missing device raises anything
            broken.append(f"{cls.name} ({type(error).__name__})")
    return found, absent, broken
