"""The rotation of one array by tables in operations of JAX, in a form for each platform.

Without these forms JAX turns the slices of a gradient into pads, which XLA reads element by element on a GPU.
Each platform needs a form of its own for one loop without temporary arrays; tests/test_jax_offline.py checks
XLA's programs.
"""

from typing import Any, NamedTuple

import jax.numpy as xp
from jax import lax

from rope_array._array_api.ops import ArrayOps
from rope_array._array_api.pairs import rotate_aligned
from rope_array._spec.plan import Layout

from ._library import FusedOps, JaxOps

# Their other fields are for making angles.
_FUSED, _ROUNDED = FusedOps(xp, False, {}), JaxOps(xp, False, {})


class Form(NamedTuple):
    """A function that rotates on one platform, and the operations that make its tables."""

    rotate: Any
    operations: type[ArrayOps]


def rotate_members(
    x: Any, cos: Any, sin: Any, *, layout: Layout, transposed: bool, ops: ArrayOps = _FUSED
) -> Any:
    """Rotate as the array-api backend does: split x into the two members of its pairs, rotate, and join."""
    return rotate_aligned(x, cos, -sin if transposed else sin, layout, ops)


def _rotate_members_on_cpu(x: Any, cos: Any, sin: Any, *, layout: Layout, transposed: bool) -> Any:
    return rotate_members(x, cos, sin, layout=layout, transposed=transposed, ops=_ROUNDED)


def _rotate_in_place(x: Any, cos: Any, sin: Any, *, layout: Layout, transposed: bool) -> Any:
    """Rotate each feature where it is: y = x·cos + partner·sin, with tables of a number for each feature.

    The partner, the other member of the pair, is x shifted by the distance of the members:

        interleaved    x   a0  b0  a1  b1    partner  -b0  a0 -b1  a1    cos  c0  c0  c1  c1
        half           x   a0  a1  b0  b1    partner  -b0 -b1  a0  a1    cos  c0  c1  c0  c1
    """
    feature = _features(x)
    if layout.pairing == "interleaved":
        shift, is_first = 1, feature & 1 == layout.start & 1
    else:
        shift, is_first = layout.num_pairs, feature < layout.start + layout.num_pairs
    cos, sin = (_at_features(table, layout) for table in (cos, sin))
    after, before = _padded(x, -shift, shift), _padded(x, shift, -shift)
    partner = xp.where(is_first, after, -before) if transposed else xp.where(is_first, -after, before)
    y = x.astype(cos.dtype) * cos + partner.astype(cos.dtype) * sin
    return _select_slice(y.astype(x.dtype), x, feature, layout)


def _rotate_pairs_in_place(x: Any, cos: Any, sin: Any, *, layout: Layout, transposed: bool) -> Any:
    """Rotate interleaved pairs as `_rotate_in_place`, but without a choice by the number of a feature.

    Its condition is an array: XLA for GPUs makes it in a kernel of its own if x is large, and the loop over x
    reads it. So the partner is a sum, of the partners of first and of second members, each with -0.0 at the
    other features, which changes no sum:

        x   a0  b0  a1  b1    partner   -b0 -0.0  -b1 -0.0
                                     + -0.0   a0 -0.0   a1

    Outside of the slice the partner is -0.0, cos is 1 and sin is 0.
    """
    before, after = layout.start, layout.head_dim - layout.stop
    a, b = (x[..., start : layout.stop : 2] for start in (before, before + 1))
    first, second = (b, -a) if transposed else (-b, a)
    first, second = _padded(first, before, after + 1, -0.0, 1), _padded(second, before + 1, after, -0.0, 1)
    cos, sin = _at_features(cos, layout, 1.0), _at_features(sin, layout)
    y = x.astype(cos.dtype) * cos + (first + second).astype(cos.dtype) * sin
    return y.astype(x.dtype)


def _at_features(table: Any, layout: Layout, outside: float = 0.0) -> Any:
    """Return a table with a number for each feature of x; `outside` at the features outside of the slice."""
    if layout.pairing == "interleaved":
        table = xp.repeat(table, 2, axis=-1)  # a broadcast, which XLA reads in the loop over x
    else:
        table = xp.concat([table, table], axis=-1)
    return _padded(table, layout.start, layout.head_dim - layout.stop, outside)


def _join_halves(x: Any, cos: Any, sin: Any, *, layout: Layout, transposed: bool) -> Any:
    """Rotate the two halves of the slice, and join them with the features around it."""
    halves = _rotate_halves(x, cos, sin, layout, transposed)
    return xp.concat([x[..., : layout.start], *halves, x[..., layout.stop :]], axis=-1)


def _rotate_halves_on_cpu(x: Any, cos: Any, sin: Any, *, layout: Layout, transposed: bool) -> Any:
    """Rotate as the array-api backend does, but a gradient in the compute dtype in one loop.

    The loop computes angles from positions again for each head, so the forward rotation is not in this form.
    """
    if x.dtype != cos.dtype or not transposed:
        return _rotate_members_on_cpu(x, cos, sin, layout=layout, transposed=transposed)
    first, second = _rotate_halves(x, cos, sin, layout, transposed, _ROUNDED)
    middle = layout.start + layout.num_pairs
    feature = _features(x)
    first = _padded(first, layout.start, layout.head_dim - middle)
    second = _padded(second, middle, layout.head_dim - layout.stop)
    return _select_slice(xp.where(feature < middle, first, second), x, feature, layout)


def _features(x: Any) -> Any:
    """Return the number of each feature. Its other axes have size 1: with x's sizes it needs x's sharding."""
    return lax.broadcasted_iota(xp.int32, (1,) * (x.ndim - 1) + x.shape[-1:], x.ndim - 1)


def _select_slice(y: Any, x: Any, feature: Any, layout: Layout) -> Any:
    """Return y at the features of the slice, and x at the others."""
    if 2 * layout.num_pairs == layout.head_dim:
        return y
    return xp.where((layout.start <= feature) & (feature < layout.stop), y, x)


def _rotate_halves(
    x: Any, cos: Any, sin: Any, layout: Layout, transposed: bool, ops: ArrayOps = _FUSED
) -> list[Any]:
    """Return the two halves of the slice rotated.

    The transposed rotation has its own sums: with a negated sin, XLA reads half precision element by element.
    """
    a, b = (half.astype(cos.dtype) for half in xp.split(x[..., layout.start : layout.stop], 2, axis=-1))
    product = ops.product
    if transposed:
        first, second = product(a, cos) + product(b, sin), product(b, cos) - product(a, sin)
    else:
        first, second = product(a, cos) - product(b, sin), product(b, cos) + product(a, sin)
    return [first.astype(x.dtype), second.astype(x.dtype)]


def _padded(array: Any, before: int, after: int, value: float = 0.0, between: int = 0) -> Any:
    """Return an array with a value before, after and between the elements of its last axis.

    Negative numbers before and after cut elements off.
    """
    widths = [(0, 0, 0)] * (array.ndim - 1) + [(before, after, between)]
    return lax.pad(array, xp.asarray(value, array.dtype), widths)


def _by_pairing(
    half: Any, interleaved: Any, mixed: Any = rotate_members, operations: type[ArrayOps] = FusedOps
) -> Form:
    """Return a platform's form: one for each pairing, and one for mixed pairings and blocks."""

    def rotate(x: Any, cos: Any, sin: Any, *, layout: Layout, transposed: bool) -> Any:
        form = mixed
        if layout.pairing == layout.out_pairing == "interleaved":
            form = interleaved
        elif layout.pairing == layout.out_pairing and layout.blocks == 1:
            form = half
        return form(x, cos, sin, layout=layout, transposed=transposed)

    return Form(rotate, operations)


FORMS = {
    None: _by_pairing(half=rotate_members, interleaved=rotate_members),
    "cpu": _by_pairing(_rotate_halves_on_cpu, _rotate_members_on_cpu, _rotate_members_on_cpu, JaxOps),
    "cuda": _by_pairing(half=_join_halves, interleaved=_rotate_pairs_in_place),
    "rocm": _by_pairing(half=_join_halves, interleaved=_rotate_pairs_in_place),
    "tpu": _by_pairing(half=_rotate_in_place, interleaved=_rotate_in_place),
}
