"""MLX: the array-api backend with MLX's own functions. They are lazy, and an array has no device."""

from typing import Any

import mlx.core as mx

from rope_array._spec.plan import Constants
from rope_array.backend_tools import ArrayOps, ArrayTypeError, Library, rotate_by_array_api

name = "mlx"
is_array_api = True
rotate = rotate_by_array_api


class MLXOps(ArrayOps):
    """MLX's operations."""

    def look_up(self, numbers: Constants, indices: Any, dtype: Any) -> Any:
        return mx.take(self.constants(numbers, dtype), mx.stop_gradient(indices))

    def cast(self, array: Any, dtype: Any) -> Any:
        return array.astype(dtype)


class MLX(Library):
    """MLX: arrays are in memory that all its devices share."""

    operations = MLXOps

    def is_array(self, value: Any) -> bool:
        return isinstance(value, mx.array)

    def check_supported(self, value: Any) -> None:
        if not hasattr(mx, "__array_namespace_info__"):
            raise ArrayTypeError("this MLX lacks functions of the Array API; install MLX 0.32 or newer.")

    def device(self, x: Any) -> Any:
        """Return None: an operation has a device, an array has none."""
        return None


LIBRARY = MLX("mlx", mx, implicit_device=True)


def library(x: Any) -> Library:
    """Return MLX."""
    return LIBRARY


def description() -> str:
    """Return a description of the backend."""
    return "MLX's own functions of the Array API"
