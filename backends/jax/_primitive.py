"""The rotation of one array as a primitive of JAX, with rules for its gradient and a form for each platform.

The rotation is linear in x: it also rotates x's tangent, and its transpose is the adjoint rotation. Without
these rules JAX turns the slices into pads, which XLA reads element by element on a GPU. Each platform needs a
form of its own for one loop without temporary arrays; tests/test_jax_offline.py checks XLA's programs.
"""

from typing import Any

import jax
import jax.numpy as xp
from jax import lax
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir
from jax.sharding import AxisType

from rope_array._array_api.ops import ArrayOps
from rope_array._array_api.pairs import align_tables_to, rotate_aligned
from rope_array._spec.plan import Layout

rotate_p = Primitive("rope_array_rotate")


def align_and_rotate(x: Any, cos: Any, sin: Any, layout: Layout, seq_axis: int, ops: ArrayOps) -> Any:
    """Rotate the last axis of x by tables of its compute dtype."""
    cos, sin = align_tables_to(x, cos, sin, seq_axis, ops)
    if layout.num_pairs and _has_type_of_result(x, cos, sin):
        return rotate_p.bind(x, cos, sin, layout=layout, transposed=False)
    return rotate_aligned(x, cos, sin, layout, ops)


def _has_type_of_result(x: Any, *tables: Any) -> bool:
    """Return whether the result has x's type, which is all that the primitive's rules know of it.

    With explicit mesh axes JAX derives the sharding of the result from all operands. In a `shard_map` the
    result varies along the mesh axes of the tables too.
    """
    axis_types = [kind for array in (x, *tables) for kind in jax.typeof(array).sharding.mesh.axis_types]
    if AxisType.Explicit in axis_types:
        return False
    if AxisType.Manual in axis_types:
        return all(_varying_axes(table) <= _varying_axes(x) for table in tables)
    return True


def _varying_axes(array: Any) -> Any:
    """Return the mesh axes of a `shard_map` along which an array varies."""
    kind = jax.typeof(array)
    return kind.vma if hasattr(kind, "vma") else kind.manual_axis_type.varying  # the name in JAX 0.10


# ---- the forms ----


def _rotate_parts(x: Any, cos: Any, sin: Any, *, layout: Layout, transposed: bool) -> Any:
    """Rotate as the array-api backend does: the members of the pairs as two arrays, then joined."""
    return rotate_aligned(x, cos, -sin if transposed else sin, layout, _OPS)


def _rotate_in_place(x: Any, cos: Any, sin: Any, *, layout: Layout, transposed: bool) -> Any:
    """Rotate each feature where it is: y = x·cos ± partner·sin, with tables of a number for each feature.

    The partner, the other member of the pair, is x shifted by the distance of the members.
    """
    feature = lax.broadcasted_iota(xp.int32, x.shape, x.ndim - 1)
    if layout.pairing == "interleaved":
        shift, is_first = 1, feature & 1 == layout.start & 1
    else:
        shift, is_first = layout.num_pairs, feature < layout.start + layout.num_pairs
    cos, sin = (_at_features(table, layout) for table in (cos, sin))
    after, before = _padded(x, -shift, shift), _padded(x, shift, -shift)
    partner = xp.where(is_first, after, -before) if transposed else xp.where(is_first, -after, before)
    y = x.astype(cos.dtype) * cos + partner.astype(cos.dtype) * sin
    return _select_slice(y.astype(x.dtype), x, feature, layout)


def _at_features(table: Any, layout: Layout) -> Any:
    """Return a table with a number for each feature of x; zeros at the features outside of the slice."""
    if layout.pairing == "interleaved":
        table = xp.repeat(table, 2, axis=-1)  # a broadcast, which XLA reads in the loop over x
    else:
        table = xp.concat([table, table], axis=-1)
    return _padded(table, layout.start, layout.head_dim - layout.stop)


def _join_halves(x: Any, cos: Any, sin: Any, *, layout: Layout, transposed: bool) -> Any:
    """Rotate the two halves of the slice, and join them with the features around it."""
    halves = _rotate_halves(x, cos, sin, layout, transposed)
    return xp.concat([x[..., : layout.start], *halves, x[..., layout.stop :]], axis=-1)


def _rotate_halves_on_cpu(x: Any, cos: Any, sin: Any, *, layout: Layout, transposed: bool) -> Any:
    """Rotate as the array-api backend does, but a gradient in the compute dtype in one loop.

    The loop computes angles from positions again for each head, so the forward rotation is not in this form.
    """
    if x.dtype != cos.dtype or not transposed:
        return _rotate_parts(x, cos, sin, layout=layout, transposed=transposed)
    first, second = _rotate_halves(x, cos, sin, layout, transposed)
    middle = layout.start + layout.num_pairs
    feature = lax.broadcasted_iota(xp.int32, x.shape, x.ndim - 1)
    first = _padded(first, layout.start, layout.head_dim - middle)
    second = _padded(second, middle, layout.head_dim - layout.stop)
    return _select_slice(xp.where(feature < middle, first, second), x, feature, layout)


def _select_slice(y: Any, x: Any, feature: Any, layout: Layout) -> Any:
    """Return y at the features of the slice, and x at the others."""
    if 2 * layout.num_pairs == layout.head_dim:
        return y
    return xp.where((layout.start <= feature) & (feature < layout.stop), y, x)


def _rotate_halves(x: Any, cos: Any, sin: Any, layout: Layout, transposed: bool) -> list[Any]:
    """Return the two halves of the slice rotated.

    The transposed rotation has its own sums: with a negated sin, XLA reads half precision element by element.
    """
    a, b = (half.astype(cos.dtype) for half in xp.split(x[..., layout.start : layout.stop], 2, axis=-1))
    if transposed:
        first, second = a * cos + b * sin, b * cos - a * sin
    else:
        first, second = a * cos - b * sin, b * cos + a * sin
    return [first.astype(x.dtype), second.astype(x.dtype)]


def _padded(array: Any, before: int, after: int) -> Any:
    """Return an array with zeros before and after its last axis; negative numbers cut elements off."""
    return lax.pad(array, xp.zeros((), array.dtype), [(0, 0, 0)] * (array.ndim - 1) + [(before, after, 0)])


def _by_pairing(half: Any, interleaved: Any) -> Any:
    """Return the form of a platform, made of a form for each pairing; other layouts are rotated in parts."""

    def rotate(x: Any, cos: Any, sin: Any, *, layout: Layout, transposed: bool) -> Any:
        form = _rotate_parts
        if layout.pairing == layout.out_pairing == "interleaved":
            form = interleaved
        elif layout.pairing == layout.out_pairing and layout.blocks == 1:
            form = half
        return form(x, cos, sin, layout=layout, transposed=transposed)

    return rotate


def _cast(array: Any, dtype: Any) -> Any:
    return array.astype(dtype)


# Its other fields are for making angles.
_OPS = ArrayOps(xp, False, {}, None, _cast, xp.reshape)

# ---- the rules ----


def _result_type(x: Any, cos: Any, sin: Any, *, layout: Layout, transposed: bool) -> Any:
    return x.update(weak_type=False)


def _jvp(primals: Any, tangents: Any, *, layout: Layout, transposed: bool) -> Any:
    """Rotate the tangent of x. Tangents of the tables too: differentiate the operations."""
    _, cos, sin = primals
    dx, dcos, dsin = tangents
    if type(dcos) is ad.Zero and type(dsin) is ad.Zero:
        y = rotate_p.bind(*primals, layout=layout, transposed=transposed)
        return y, rotate_p.bind(dx, cos, sin, layout=layout, transposed=transposed)

    def rotate(*arrays: Any) -> Any:
        return _rotate_parts(*arrays, layout=layout, transposed=transposed)

    return jax.jvp(rotate, primals, tuple(map(ad.instantiate_zeros, tangents)))


def _transpose(dy: Any, x: Any, cos: Any, sin: Any, *, layout: Layout, transposed: bool) -> Any:
    if ad.is_undefined_primal(x):
        layout = layout.transposed(layout.amplitude)
        return rotate_p.bind(dy, cos, sin, layout=layout, transposed=not transposed), None, None

    def rotate(cos: Any, sin: Any) -> Any:
        return _rotate_parts(x, cos, sin, layout=layout, transposed=transposed)

    return None, *jax.linear_transpose(rotate, cos.aval, sin.aval)(dy)


def _batch(arrays: Any, axes: Any, *, layout: Layout, transposed: bool) -> Any:
    """Rotate all of a batch, whose axis becomes the first."""
    size = next(array.shape[axis] for array, axis in zip(arrays, axes, strict=True) if axis is not None)
    x, cos, sin = (
        array[None] if axis is None else xp.moveaxis(array, axis, 0)
        for array, axis in zip(arrays, axes, strict=True)
    )
    x = xp.broadcast_to(x, (size, *x.shape[1:]))
    return rotate_p.bind(x, cos, sin, layout=layout, transposed=transposed), 0


rotate_p.def_impl(_rotate_parts)  # under jax.disable_jit
rotate_p.def_abstract_eval(_result_type)
ad.primitive_jvps[rotate_p] = _jvp
ad.primitive_transposes[rotate_p] = _transpose
batching.primitive_batchers[rotate_p] = _batch
FORMS = {
    None: _by_pairing(half=_rotate_parts, interleaved=_rotate_parts),
    "cpu": _by_pairing(half=_rotate_halves_on_cpu, interleaved=_rotate_parts),
    "cuda": _by_pairing(half=_join_halves, interleaved=_rotate_in_place),
    "rocm": _by_pairing(half=_join_halves, interleaved=_rotate_in_place),
    "tpu": _by_pairing(half=_rotate_in_place, interleaved=_rotate_in_place),
}
for _platform, _form in FORMS.items():
    mlir.register_lowering(rotate_p, mlir.lower_fun(_form, multiple_results=False), _platform)
