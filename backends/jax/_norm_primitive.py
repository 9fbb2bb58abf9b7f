"""The norm of the heads of one array and its rotation, as a primitive of JAX.

The operands are x, a scale and a source, as for the rotation's primitive. The scale is the norm's weight plus
its offset, in the compute dtype; it has x's axes, each of x's size or 1. On the CPU the primitive is one call
of the C++ kernel; elsewhere it is array operations, which XLA fuses, as its derivatives are everywhere.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as xp
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from rope_array._array_api.norm import (
    Norm,
    as_compute,
    inverse_rms,
    normalise_by_scale,
    scale_of,
    sum_in_order,
)
from rope_array._array_api.ops import ArrayOps
from rope_array._array_api.source import CallOptions
from rope_array._spec.plan import Layout, Plan

from . import _custom_call
from ._library import LIBRARY
from ._primitive import (
    aligned,
    batched,
    positions_for,
    result_type,
    rotate_p,
    with_features_of,
    with_type_of_result,
)

norm_rotate_p = Primitive("rope_array_norm_rotate")


class HeadNorm:
    """The norm of one array: rotates normed heads as `_primitive` rotates x."""

    def __init__(self, weight: Any, norm: Norm):
        self.weight = weight
        self.norm = norm

    def rotate_by_tables(
        self, x: Any, cos: Any, sin: Any, layout: Layout, options: CallOptions, ops: ArrayOps
    ) -> Any:
        """Norm x, and rotate it by tables of its compute dtype."""
        return self._rotate(x, (aligned(cos, x, options), aligned(sin, x, options)), layout, None, options)

    def rotate_by_positions(self, x: Any, pos: Any, plan: Plan, options: CallOptions) -> Any:
        """Norm x, and rotate it by positions, at exact angles."""
        return self._rotate(x, (positions_for(x, pos, plan, options),), plan.layout, plan, options)

    def _rotate(
        self, x: Any, source: tuple[Any, ...], layout: Layout, plan: Plan | None, options: CallOptions
    ) -> Any:
        ops = LIBRARY.ops(x)
        if self.weight is None:
            scale = xp.ones((1,) * (x.ndim - 1) + x.shape[-1:], as_compute(x, ops).dtype)
        else:
            scale = scale_of(self.weight, self.norm.offset, x, options.seq_axis, ops)
        if not layout.num_pairs:
            return normalise_by_scale(x, scale, self.norm, ops).astype(x.dtype)
        operands = with_type_of_result(x, scale, *source)
        y = norm_rotate_p.bind(*operands, layout=layout, plan=plan, norm=self.norm)
        return with_features_of(y, x)


def _jvp(primals: Any, tangents: Any, *, layout: Layout, plan: Plan | None, norm: Norm) -> Any:
    """Return the derivative of the map without rounding, in the compute dtype, and round it once.

    n = x·r is orthogonal to its change, but for eps: dn = (dx - n · mean(n·dx)) · r.
    """
    (x, scale, *source), (dx, dscale, *dsource) = primals, tangents
    ops = LIBRARY.ops(x)
    values = as_compute(x, ops)
    r = inverse_rms(values, norm.eps, ops)
    n, change = values * r, xp.zeros_like(values)
    if type(dx) is not ad.Zero:
        change = project_p.bind(as_compute(dx, ops), n) * r * scale
    if type(dscale) is not ad.Zero:
        change = change + n * dscale
    params = {"layout": layout, "plan": plan, "transposed": False}
    active = [i for i, tangent in enumerate(dsource) if type(tangent) is not ad.Zero]
    if not active:
        dy = rotate_p.bind(change, *source, **params)
    else:

        def rotate(n: Any, *arrays: Any) -> Any:
            chosen = dict(zip(active, arrays, strict=True))
            return rotate_p.bind(n, *(chosen.get(i, array) for i, array in enumerate(source)), **params)

        point = n * scale, *(source[i] for i in active)
        dy = jax.jvp(rotate, point, (change, *(dsource[i] for i in active)))[1]
    y = norm_rotate_p.bind(*primals, layout=layout, plan=plan, norm=norm)
    return y, dy.astype(x.dtype)


# ---- dx - n · mean(n·dx), which is its own transpose ----

project_p = Primitive("rope_array_project")


def _project(dx: Any, n: Any) -> Any:
    """Compute the mean by sums of slices.

    XLA fuses a reduction with products of its result, in loops that took 15 times as long on the CPU.
    """
    return dx - n * _mean(dx, n)


def _mean(dx: Any, n: Any) -> Any:
    return sum_in_order(n * dx, LIBRARY.ops(dx)) * (1.0 / dx.shape[-1])


def _jvp_of_projection(primals: Any, tangents: Any) -> Any:
    (dx, n), (ddx, dn) = primals, tangents
    change = ad.instantiate_zeros(ddx) if type(ddx) is ad.Zero else project_p.bind(ddx, n)
    if type(dn) is not ad.Zero:
        change = change - dn * _mean(dx, n) - n * _mean(dx, dn)
    return project_p.bind(dx, n), change


def _transpose_projection(dy: Any, dx: Any, n: Any) -> Any:
    return dy if type(dy) is ad.Zero else project_p.bind(dy, n), None


def _batch_projection(arrays: Any, axes: Any) -> Any:
    return project_p.bind(*batched(arrays, axes)), 0


project_p.def_impl(_project)
project_p.def_abstract_eval(result_type)
ad.primitive_jvps[project_p] = _jvp_of_projection
ad.primitive_transposes[project_p] = _transpose_projection
batching.primitive_batchers[project_p] = _batch_projection
mlir.register_lowering(project_p, mlir.lower_fun(_project, multiple_results=False))


# ---- the rules ----


def _batch(arrays: Any, axes: Any, **params: Any) -> Any:
    """Norm and rotate a batch, whose axis becomes the first."""
    x, scale, *source = arrays
    x_axis, scale_axis, *source_axes = axes
    if scale_axis is None:
        x, *source = batched((x, *source), (x_axis, *source_axes))
        return norm_rotate_p.bind(x, scale[None], *source, **params), 0
    x, scale = batched((x, scale), (x_axis, scale_axis))
    if any(axis is not None for axis in source_axes):
        x, *source = batched((x, *source), (0, *source_axes))
    else:
        source = [array[None] for array in source]
    return norm_rotate_p.bind(x, scale, *source, **params), 0


def _by_operations(x: Any, scale: Any, *source: Any, norm: Norm, **params: Any) -> Any:
    n = normalise_by_scale(x, scale, norm, LIBRARY.ops(x))
    return rotate_p.bind(n, *source, transposed=False, **params).astype(x.dtype)


def _impl(*operands: Any, **params: Any) -> Any:
    """Run one program; under `jax.disable_jit` run the operations."""
    config: Any = jax.config  # its type lacks the flags
    if config.jax_disable_jit:
        return _by_operations(*operands, **params)
    return _in_program(*operands, **params)


@partial(jax.jit, static_argnames=("layout", "plan", "norm"))
def _in_program(*operands: Any, **params: Any) -> Any:
    return norm_rotate_p.bind(*operands, **params)


def _lower(ctx: Any, *operands: Any, **params: Any) -> Any:
    """Lower to the kernel on the CPU; elsewhere, and where it cannot serve, to array operations."""
    if _custom_call.serves_norm(ctx, params["plan"]):
        return _custom_call.lower_norm(ctx, *operands, **params)
    return mlir.lower_fun(partial(_by_operations, **params), multiple_results=False)(ctx, *operands)


norm_rotate_p.def_impl(_impl)
norm_rotate_p.def_abstract_eval(result_type)
ad.primitive_jvps[norm_rotate_p] = _jvp
batching.primitive_batchers[norm_rotate_p] = _batch
mlir.register_lowering(norm_rotate_p, _lower, cacheable=False)  # as the rotation's
