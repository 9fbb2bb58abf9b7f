"""JAX: the core under jax.jit: an eager call is one program, and a traced one becomes a part of another.

What the host can check (types, shapes, positions that are Python values or NumPy) is checked before the
program is entered. Positions are its run-time values, so that a new offset compiles nothing; the plan is
static.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as xp

from rope_array._array_api import rotate as _core
from rope_array._array_api.library import Library, numpy_library
from rope_array._array_api.ops import Kit
from rope_array._spec.plan import Layout, Plan

name = "jax"
is_core = False


class Jax(Library):
    """JAX: 64-bit integers only where x64 is on, and XLA places what is made beside an array."""

    def wide(self) -> bool:
        config: Any = jax.config  # whose flags its type does not know
        return bool(config.jax_enable_x64)

    def host_kit(self, x: Any) -> Kit:
        # NumPy arrays enter a program as they are; made by JAX they would each be a program of their own.
        return numpy_library().kit(x)._replace(wide=self.wide())

    def owns(self, value: Any) -> bool:
        return isinstance(value, jax.Array)

    def device(self, x: Any) -> Any:
        """Return the devices an array is bound to; None for a tracer, or one that goes where it is needed."""
        bound = not isinstance(x, jax.core.Tracer) and x.committed
        return x.sharding.device_set if bound else None

    def together(self, a: Any, b: Any) -> bool:
        places = {frozenset(d) for d in map(self.device, (a, b)) if d is not None}
        return len(places) < 2


LIBRARY = Jax("jax", xp, takes_numpy=True, placeless=True)


def library(x: Any) -> Library:
    """Return JAX."""
    return LIBRARY


def apply(xs: Any, pos: Any, plan: Plan, seq_axis: int, run: Any) -> Any:
    """Rotate each of xs by its positions, in one program."""
    whole, fraction = _core.positions(xs, pos, plan, seq_axis, LIBRARY)
    return _apply(xs, whole, fraction, plan, seq_axis)


def tables(pos: Any, like: Any, plan: Plan, inv_freq: Any, run: Any) -> Any:
    """Make cos and sin in one program."""
    whole, fraction = _core.table_positions(pos, like, plan, inv_freq, LIBRARY)
    places = LIBRARY.device(like)
    if places is not None and len(places) == 1:
        whole = jax.device_put(whole, *places)  # or the tables would be where JAX puts what it is not told
    return _tables(whole, fraction, inv_freq, plan, _core.is_double(like))


def rotate(xs: Any, cos: Any, sin: Any, layout: Layout, seq_axis: int, run: Any) -> Any:
    """Rotate each of xs by tables, in one program."""
    _core.check_rotation(xs, cos, sin, layout, seq_axis, LIBRARY)
    return _rotate(xs, cos, sin, layout, seq_axis)


@partial(jax.jit, static_argnames=("plan", "seq_axis"))
def _apply(xs: Any, whole: Any, fraction: Any, plan: Plan, seq_axis: int) -> Any:
    return _core.compute(xs, whole, fraction, plan, seq_axis, LIBRARY.kit(xs[0]))


@partial(jax.jit, static_argnames=("plan", "double"))
def _tables(whole: Any, fraction: Any, inv_freq: Any, plan: Plan, double: bool) -> Any:
    return _core.make_tables(whole, fraction, plan, double, LIBRARY.kit(whole), inv_freq)


@partial(jax.jit, static_argnames=("layout", "seq_axis"))
def _rotate(xs: Any, cos: Any, sin: Any, layout: Layout, seq_axis: int) -> Any:
    return _core.turn_all(xs, cos, sin, layout, seq_axis, LIBRARY.kit(xs[0]))
