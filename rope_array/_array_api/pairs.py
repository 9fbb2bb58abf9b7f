"""Cos, sin and x to y, for every library: Array API only.

For the members a and b of each pair, y_a = a·cos - b·sin and y_b = b·cos + a·sin (RoFormer, arXiv 2104.09864,
eq. 34). The arithmetic is in the dtype of the tables; each half of the result is rounded to x's dtype once,
before the halves are joined, which lets compilers make one loop of it. Only the last axis is ever reshaped,
so an array split along any other axis stays as it is.
"""

from typing import Any

from rope_array._spec.plan import Layout

from .ops import Kit


def rotate(x: Any, cos: Any, sin: Any, layout: Layout, kit: Kit) -> Any:
    """Rotate the last axis of x by tables that have x's axes and one column per lane."""
    if 2 * layout.lanes == layout.head_dim:
        y = _turn(x, cos, sin, layout, kit)
    else:
        y = kit.xp.concat(_parts(x, cos, sin, layout, kit), axis=-1)
    if y is x:  # dask leaves empty arrays out, and of one it makes no join
        return kit.xp.asarray(x, copy=True)
    # NumPy joins arrays of the other byte order in its own.
    return y if y.dtype == x.dtype else kit.cast(y, x.dtype)


def _parts(x: Any, cos: Any, sin: Any, layout: Layout, kit: Kit) -> list[Any]:
    """Return what stands before the rotated slice, the slice if there is one, and what stands behind."""
    middle = [_turn(x[..., layout.start : layout.stop], cos, sin, layout, kit)] if layout.lanes else []
    return [x[..., : layout.start], *middle, x[..., layout.stop :]]


def _turn(x: Any, cos: Any, sin: Any, layout: Layout, kit: Kit) -> Any:
    if layout.blocks == 1:
        return _turn_block(x, cos, sin, layout, kit)
    x, cos, sin = (_in_blocks(array, layout, kit) for array in (x, cos, sin))
    y = _turn_block(x, cos, sin, layout, kit)
    return kit.reshape(y, (*y.shape[:-2], 2 * layout.lanes))


def _in_blocks(array: Any, layout: Layout, kit: Kit) -> Any:
    return kit.reshape(array, (*array.shape[:-1], layout.blocks, array.shape[-1] // layout.blocks))


def _turn_block(x: Any, cos: Any, sin: Any, layout: Layout, kit: Kit) -> Any:
    a, b = _members(x, layout)
    if x.dtype == cos.dtype:
        first, second = a * cos - b * sin, b * cos + a * sin
    else:
        a, b = kit.cast(a, cos.dtype), kit.cast(b, cos.dtype)
        first, second = kit.cast(a * cos - b * sin, x.dtype), kit.cast(b * cos + a * sin, x.dtype)
    if layout.out_pairing == "half":
        return kit.xp.concat([first, second], axis=-1)
    # What stack does, which is slow to start in NumPy; the last two axes are then merged by x's own shape.
    return kit.reshape(kit.xp.concat([first[..., None], second[..., None]], axis=-1), x.shape)


def _members(x: Any, layout: Layout) -> tuple[Any, Any]:
    """Return the first and the second members of all pairs."""
    if layout.pairing == "half":
        half = layout.lanes // layout.blocks
        return x[..., :half], x[..., half:]
    return x[..., ::2], x[..., 1::2]
