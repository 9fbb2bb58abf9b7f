"""The rotation of one array as a primitive of JAX: its transforms, and a lowering for each platform.

The operands are x and its source: positions with the plan as a parameter, or cos and sin. All have
x's axes, each of x's size or 1, and a last axis: features, coordinates (one for positions of one number), or
pairs.

The rotation is linear in x: it also rotates x's tangent, and its transpose is the adjoint rotation. On the
CPU the primitive is a call of the C++ kernel; on other platforms, and where the kernel cannot serve, it is
array operations, which XLA fuses.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as xp
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from rope_array._array_api.angles import cos_sin
from rope_array._array_api.library import computes_in_float64
from rope_array._array_api.ops import ArrayOps
from rope_array._array_api.position_input import split_floats
from rope_array._array_api.source import CallOptions
from rope_array._spec.plan import Layout, Plan
from rope_array._spec.shape_rule import placement

from . import _custom_call
from ._forms import FORMS, Form, rotate_members
from ._library import LIBRARY, FusedOps
from ._varying import varied_as

rotate_p = Primitive("rope_array_rotate")
# Narrower integers are cast, in an operation of the size of positions.
_POSITION_DTYPES = (xp.int32, xp.int64, xp.uint32, xp.float32, xp.float64)


def rotate_by_tables(x: Any, cos: Any, sin: Any, layout: Layout, options: CallOptions, ops: ArrayOps) -> Any:
    """Rotate the last axis of x by tables of its compute dtype."""
    return _rotate(x, (aligned(cos, x, options), aligned(sin, x, options)), layout, None)


def rotate_by_positions(x: Any, pos: Any, plan: Plan, options: CallOptions) -> Any:
    """Rotate the last axis of x by positions, at exact angles.

    Serves int32, int64, uint32 and floats, and casts narrower integers. The errors are those of
    docs/numerics.md.
    """
    return _rotate(x, (positions_for(x, pos, plan, options),), plan.layout, plan)


def positions_for(x: Any, pos: Any, plan: Plan, options: CallOptions) -> Any:
    """Return positions as an operand: of x's axes, with an axis of coordinates."""
    if pos.dtype not in _POSITION_DTYPES:
        pos = pos.astype(xp.int32)
    return aligned(pos if plan.coordinates else pos[..., None], x, options)


def tables_by_positions(pos: Any, plan: Plan, use_float64: bool) -> tuple[Any, Any]:
    """Return cos and sin at positions: (1, 0) rotated in each pair, with the bits of a rotation."""
    plan, dtype = plan.of_units(), xp.float64 if use_float64 else xp.float32
    # The largest coordinate and not the first: explicit mesh axes may split them.
    rows = pos.max(-1, keepdims=True) if plan.coordinates else pos[..., None]
    units = (xp.arange(plan.layout.head_dim) < plan.layout.num_pairs).astype(rows.dtype)
    # XLA removes the sum of zeros. It gives the units the sharding of the positions, which JAX may need.
    x = (units[(None,) * (rows.ndim - 1)] + rows * 0).astype(dtype)
    y = rotate_by_positions(x, pos, plan, CallOptions())
    return y[..., : plan.layout.num_pairs], y[..., plan.layout.num_pairs :]


def aligned(array: Any, x: Any, options: CallOptions) -> Any:
    """Give positions or a table the axes of x, by the shape rule."""
    order, index = placement(x.ndim, array.ndim - 1, options.seq_axis)
    return (array if order is None else xp.permute_dims(array, order))[index]


def _rotate(x: Any, source: tuple[Any, ...], layout: Layout, plan: Plan | None) -> Any:
    if not layout.num_pairs:
        return xp.copy(x)
    y = rotate_p.bind(*with_type_of_result(x, *source), layout=layout, plan=plan, transposed=False)
    return with_features_of(y, x)


def _tables(
    x: Any, source: tuple[Any, ...], plan: Plan | None, operations: type[ArrayOps]
) -> tuple[Any, ...]:
    """Return cos and sin of a source."""
    if plan is None:
        return source
    ops = operations(xp, LIBRARY.has_int64(x), {})
    pos, fraction = split_floats(source[0] if plan.coordinates else source[0][..., 0], ops)
    return cos_sin(pos, fraction, plan, computes_in_float64(x), ops)


# ---- types: with explicit mesh axes and in a shard_map, the result has x's type ----


def with_features_of(y: Any, x: Any) -> Any:
    """Split the features of y along explicit mesh axes as the features of x, which `_resharded` gathered."""
    splits_features = any(_explicit_spec(x)[x.ndim - 1 :])
    return jax.sharding.reshard(y, jax.typeof(x).sharding) if splits_features else y


def _has_explicit_axes(array: Any) -> bool:
    return AxisType.Explicit in jax.typeof(array).sharding.mesh.axis_types


def _explicit_spec(array: Any) -> tuple[Any, ...]:
    return tuple(jax.typeof(array).sharding.spec) if _has_explicit_axes(array) else ()


def with_type_of_result(x: Any, *source: Any) -> tuple[Any, ...]:
    """Return x and its source with the shardings that give the result x's type.

    Split the source along explicit mesh axes as x is. In a `shard_map`, let x vary along the mesh axes of the
    source too.
    """
    meshes = [jax.typeof(array).sharding.mesh for array in (x, *source) if _has_explicit_axes(array)]
    if meshes:
        source = tuple(_resharded(array, x, meshes[0]) for array in source)
        x = _resharded(x, x, meshes[0])
    return varied_as(x, *source), *source


def _resharded(array: Any, x: Any, mesh: Any) -> Any:
    """Split an array with x's axes along a mesh as x is, but for axes of size 1 and the last axis."""
    spec = _explicit_spec(x) or (None,) * x.ndim
    sizes = zip(array.shape[:-1], x.shape, spec, strict=False)
    array_spec = PartitionSpec(*(axis if size == x_size else None for size, x_size, axis in sizes), None)
    if _has_explicit_axes(array) and tuple(array_spec) == _explicit_spec(array):
        return array
    return jax.sharding.reshard(array, NamedSharding(mesh, array_spec))


# ---- the rules ----


def result_type(x: Any, *source: Any, **params: Any) -> Any:
    return x.update(weak_type=False)


def _jvp(primals: Any, tangents: Any, **params: Any) -> Any:
    """Rotate the tangent of x. For tangents of the tables, differentiate the operations."""
    x, *source = primals
    dx, *dsource = tangents
    dy = dx if type(dx) is ad.Zero else rotate_p.bind(dx, *source, **params)
    if not all(type(tangent) is ad.Zero for tangent in dsource):
        rotate = partial(_rotate_by, Form(rotate_members, FusedOps), x, **params)
        by_source = jax.jvp(rotate, source, [*map(ad.instantiate_zeros, dsource)])[1]
        dy = by_source if type(dy) is ad.Zero else dy + by_source
    return rotate_p.bind(*primals, **params), dy


def _transpose(dy: Any, x: Any, *source: Any, layout: Layout, transposed: bool, **params: Any) -> Any:
    if type(dy) is ad.Zero:  # a later rule needs no gradient of the result
        return tuple(ad.Zero(a.aval) if ad.is_undefined_primal(a) else None for a in (x, *source))
    if ad.is_undefined_primal(x):
        layout = layout.transposed(layout.amplitude)
        dx = rotate_p.bind(dy, *source, layout=layout, transposed=not transposed, **params)
        return dx, *(None for _ in source)
    tables = [table.aval for table in source]
    rotate = partial(rotate_members, x, layout=layout, transposed=transposed)
    return None, *jax.linear_transpose(rotate, *tables)(dy)


def _batch(arrays: Any, axes: Any, **params: Any) -> Any:
    """Rotate a batch, whose axis becomes the first. Repeat x along it, and both tables if one is batched."""
    x, *source = batched(arrays, axes)
    return rotate_p.bind(x, *source, **params), 0


def batched(arrays: Any, axes: Any) -> list[Any]:
    """Return x and its source with the batch as the first axis; see `_batch`."""
    moved = [
        array[None] if axis is None else xp.moveaxis(array, axis, 0)
        for array, axis in zip(arrays, axes, strict=True)
    ]
    like = next(array for array, axis in zip(moved, axes, strict=True) if axis is not None)
    x, *source = moved
    if axes[0] is None:
        x = _repeated(x, like)
    count = like.shape[0]  # may be symbolic, in an export
    if any(array.shape[0] != source[0].shape[0] for array in source):
        source = [array if array.shape[0] == count else _repeated(array, like) for array in source]
    return [x, *source]


def _repeated(array: Any, like: Any) -> Any:
    """Repeat an array along its first axis to the size of `like` there, split as `like` is."""
    shape, spec = (like.shape[0], *array.shape[1:]), _explicit_spec(like)[:1]
    if not any(spec):
        return xp.broadcast_to(array, shape)
    full_spec = PartitionSpec(*spec, *(_explicit_spec(array)[1:] or (None,) * (array.ndim - 1)))
    mesh = jax.typeof(like).sharding.mesh
    return xp.broadcast_to(array, shape, out_sharding=NamedSharding(mesh, full_spec))


def _rotate_by(form: Form, x: Any, *source: Any, layout: Layout, plan: Plan | None, transposed: bool) -> Any:
    """Rotate by array operations, in a platform's form."""
    tables = _tables(x, source, plan, form.operations)
    return form.rotate(x, *tables, layout=layout, transposed=transposed)


def _impl(*operands: Any, **params: Any) -> Any:
    """Run one program, for an eager gradient or checkpoint; under `jax.disable_jit` run the operations."""
    config: Any = jax.config  # its type lacks the flags
    if config.jax_disable_jit:
        return _rotate_by(Form(rotate_members, FusedOps), *operands, **params)
    return _rotate_in_program(*operands, **params)


@partial(jax.jit, static_argnames=("layout", "plan", "transposed"))
def _rotate_in_program(*operands: Any, **params: Any) -> Any:
    return rotate_p.bind(*operands, **params)


def _lower(ctx: Any, *operands: Any, **params: Any) -> Any:
    """Lower to the kernel on the CPU; elsewhere, and where it cannot serve, to array operations."""
    if _custom_call.serves(ctx, params["plan"]):
        return _custom_call.lower(ctx, *operands, **params)
    rotate = partial(_operations_p.bind, **params)
    return mlir.lower_fun(rotate, multiple_results=False)(ctx, *operands)


rotate_p.def_impl(_impl)
rotate_p.def_abstract_eval(result_type)
ad.primitive_jvps[rotate_p] = _jvp
ad.primitive_transposes[rotate_p] = _transpose
batching.primitive_batchers[rotate_p] = _batch
# Not cacheable: a cached lowering is a separate function, to which the caller's donations do not apply.
mlir.register_lowering(rotate_p, _lower, cacheable=False)

# Only lowered. Cacheable: JAX 0.10 fails if another primitive has rules for several platforms of an export.
_operations_p = Primitive("rope_array_rotate_by_operations")
_operations_p.def_abstract_eval(result_type)
for _platform, _form in FORMS.items():
    _rule = mlir.lower_fun(partial(_rotate_by, _form), multiple_results=False)
    mlir.register_lowering(_operations_p, _rule, _platform)
