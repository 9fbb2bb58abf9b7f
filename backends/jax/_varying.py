"""Arrays that vary along mesh axes of a `shard_map`."""

from typing import Any

import jax
from jax import lax
from jax.sharding import AxisType


def varying_axes(array: Any) -> frozenset[Any]:
    """Return the mesh axes of a `shard_map` along which an array varies."""
    aval = jax.typeof(array)
    if AxisType.Manual not in aval.sharding.mesh.axis_types:
        return frozenset()
    # JAX 0.10 has the second name.
    return frozenset(aval.vma if hasattr(aval, "vma") else aval.manual_axis_type.varying)


def varied_as(x: Any, *others: Any) -> Any:
    """Let x vary along the mesh axes of a `shard_map` along which other arrays vary."""
    missing = frozenset().union(*map(varying_axes, others)) - varying_axes(x)
    return _vary(x, tuple(missing)) if missing else x


def _vary(x: Any, axes: tuple[Any, ...]) -> Any:
    """Return x as an array that varies along mesh axes of a `shard_map`."""
    functions: Any = lax  # its type has the names of one version
    if hasattr(lax, "pcast"):
        return functions.pcast(x, axes, to="varying")
    return functions.pvary(x, axes)  # JAX 0.8
