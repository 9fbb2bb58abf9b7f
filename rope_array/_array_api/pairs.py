"""Rotating the pairs of an array by aligned tables. Array API only.

For the members a and b of each pair, y_a = a·cos - b·sin and y_b = b·cos + a·sin (RoFormer, arXiv 2104.09864,
eq. 34). The arithmetic is in the dtype of the tables. Each half of the result is rounded to x's dtype once,
before the halves are joined, so that compilers can make one loop of it. Only the last axis is ever reshaped,
so an array that is sharded or chunked along another axis stays so.
"""

from typing import Any

from rope_array._spec.plan import Layout
from rope_array._spec.shape_rule import placement

from .ops import ArrayOps
from .source import CallOptions


def align_and_rotate(x: Any, cos: Any, sin: Any, layout: Layout, options: CallOptions, ops: ArrayOps) -> Any:
    """Rotate the last axis of x by tables of its compute dtype."""
    return rotate_aligned(x, *align_tables_to(x, cos, sin, options, ops), layout, ops)


def rotate_aligned(x: Any, cos: Any, sin: Any, layout: Layout, ops: ArrayOps) -> Any:
    """Rotate the last axis of x by tables of its compute dtype that have x's axes."""
    columns = _rotated_columns(x, cos, sin, layout, ops)
    y = columns[0] if len(columns) == 1 else join(columns, ops)
    if y is x:  # dask skips empty arrays, and returns a single array without joining
        return ops.xp.asarray(x, copy=True)
    if any([size is None for size in x.shape]):  # a list: a small call notices a generator
        # Along an axis of unknown size, x may have one element and the positions several.
        y = ops.with_shape_of(y, x)
    # NumPy's concat returns native byte order.
    return y if y.dtype == x.dtype else ops.cast(y, x.dtype)


def join(columns: list[Any], ops: ArrayOps) -> Any:
    """Concatenate along the last axis, by its number: cubed reads -1 wrong."""
    return ops.xp.concat(columns, axis=columns[0].ndim - 1)


def align_tables_to(x: Any, cos: Any, sin: Any, options: CallOptions, ops: ArrayOps) -> tuple[Any, Any]:
    """Give tables the axes of x, by the shape rule."""
    order, index = placement(x.ndim, cos.ndim - 1, options.seq_axis)
    if order is not None:
        cos, sin = ops.xp.permute_dims(cos, order), ops.xp.permute_dims(sin, order)
    return cos[index], sin[index]


def _rotated_columns(x: Any, cos: Any, sin: Any, layout: Layout, ops: ArrayOps) -> list[Any]:
    """Return the features before the slice, the columns of the slice rotated, and the features after it."""
    if layout.stop - layout.start == layout.head_dim:
        return _rotate_slice(x, cos, sin, layout, ops)
    if not layout.num_pairs:
        half = layout.head_dim // 2  # joining two columns copies x in every library
        return [x[..., :half], x[..., half:]]
    columns = _rotate_slice(x[..., layout.start : layout.stop], cos, sin, layout, ops)
    if layout.start:
        columns = [x[..., : layout.start], *columns]
    return columns if layout.stop == layout.head_dim else [*columns, x[..., layout.stop :]]


def _rotate_slice(x: Any, cos: Any, sin: Any, layout: Layout, ops: ArrayOps) -> list[Any]:
    """Return the columns of a rotated slice, for one concatenation with the features around it."""
    if layout.blocks == 1:
        return _rotate_block(x, cos, sin, layout, ops)
    x, cos, sin = (split_blocks(array, layout, ops) for array in (x, cos, sin))
    y = join(_rotate_block(x, cos, sin, layout, ops), ops)
    return [ops.reshape(y, (*y.shape[:-2], 2 * layout.num_pairs))]


def split_blocks(array: Any, layout: Layout, ops: ArrayOps) -> Any:
    """Split the last axis into (blocks, rest)."""
    return ops.reshape(array, (*array.shape[:-1], layout.blocks, array.shape[-1] // layout.blocks))


def _rotate_block(x: Any, cos: Any, sin: Any, layout: Layout, ops: ArrayOps) -> list[Any]:
    product = ops.product
    if layout.pairing == "half":
        half = layout.num_pairs // layout.blocks
        a, b = x[..., :half], x[..., half:]
    else:
        a, b = x[..., ::2], x[..., 1::2]
    if x.dtype != cos.dtype:
        a, b = ops.cast(a, cos.dtype), ops.cast(b, cos.dtype)
    first, second = product(a, cos) - product(b, sin), product(b, cos) + product(a, sin)
    if x.dtype != cos.dtype:
        first, second = ops.cast(first, x.dtype), ops.cast(second, x.dtype)
    if layout.out_pairing == "half":
        return [first, second]
    # As stack, which is slow in NumPy for small arrays; reshaping to x.shape merges the last two axes.
    return [ops.reshape(join([first[..., None], second[..., None]], ops), x.shape)]
