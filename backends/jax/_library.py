"""The facts of JAX that the checks of a call need."""

from typing import Any

import jax
import jax.numpy as xp

from rope_array._array_api.angles import COS_64, SIN_64, polynomials32, polynomials64, rotate_quadrants
from rope_array._array_api.library import Library, NumPyOps, numpy_library
from rope_array._array_api.ops import ArrayOps

from ._cache_write import write


class FusedOps(ArrayOps):
    """JAX's operations on GPU and TPU, where XLA may contract a product and a sum."""

    def stored(self, array: Any) -> Any:
        # XLA combines two casts into an operation with other bits.
        array = jax.lax.optimization_barrier(array)
        return _chosen(array) if xp.issubdtype(array.dtype, xp.floating) else array

    def rounded(self, array: Any) -> Any:
        # Elsewhere the squares of a norm, in memory, would take more time than the rotation.
        return jax.lax.platform_dependent(array, cpu=self.stored, default=_chosen)


class JaxOps(FusedOps):
    """JAX's operations on the CPU, and where the platform is unknown."""

    def product(self, a: Any, b: Any) -> Any:
        # XLA would also multiply two constant factors with each other first.
        return _chosen(a * b)

    def cos_sin(self, quadrant: Any, u: Any) -> Any:
        if u.dtype == xp.float64:
            cos, sin = polynomials64(_Rounding(u), COS_64, SIN_64)
        else:
            cos, sin = polynomials32(_Rounding(u))
        return rotate_quadrants(quadrant, cos.value, sin.value, u.dtype, self)


class _Rounding:
    """An array whose products are rounded before they are added."""

    def __init__(self, value: Any):
        self.value = value

    def __mul__(self, other: Any) -> "_Rounding":
        factor = other.value if isinstance(other, _Rounding) else other
        return _Rounding(_chosen(self.value * factor))

    def __add__(self, number: float) -> "_Rounding":
        return _Rounding(self.value + number)


def _chosen(array: Any) -> Any:
    """Return floats by a choice: LLVM contracts no product and sum over it, and XLA no root and quotient."""
    return xp.where(array == array, array, xp.nan)


class Jax(Library):
    """JAX: 64-bit integers only with x64, and XLA chooses the device of new arrays."""

    operations = JaxOps
    converter = "jax.numpy.asarray(pos)"
    keeps_float64 = True
    has_caches = True

    def has_int64(self, x: Any) -> bool:
        config: Any = jax.config  # its type lacks the flags
        return bool(config.jax_enable_x64)

    def host_ops(self, ops: ArrayOps) -> ArrayOps:
        # Pass NumPy arrays to the program: making each array in JAX would run a program of its own.
        return NumPyOps(numpy_library().xp, ops.has_int64)

    def is_array(self, value: Any) -> bool:
        return isinstance(value, jax.Array)

    def device(self, x: Any) -> Any:
        """Return the devices of a committed array; None for tracers and uncommitted arrays."""
        bound = not isinstance(x, jax.core.Tracer) and x.committed
        return x.sharding.device_set if bound else None

    def same_device(self, a: Any, b: Any) -> bool:
        places = {frozenset(d) for d in map(self.device, (a, b)) if d is not None}
        return len(places) < 2

    def write_rows(self, cache: Any, order: Any, index: Any, keep: Any, rows: Any, ops: ArrayOps) -> Any:
        """Return a new cache with the rows; under jit, XLA writes into a donated cache."""
        axes = order[: len(index)]  # of slots
        slots = index[0] if len(axes) == 1 else index[0] * cache.shape[axes[1]] + index[1]
        return write(cache, rows, xp.where(keep, slots, -1), axes)


LIBRARY = Jax("jax", xp, takes_numpy=True, implicit_device=True)
