"""Cos, sin and x to y, for every library: Array API only.

For the members a and b of each pair, y_a = a·cos - b·sin and y_b = b·cos + a·sin (RoFormer, arXiv 2104.09864,
eq. 34). The arithmetic is in the dtype of the tables; each half of the result is rounded to x's dtype once,
before the halves are joined, which lets compilers make one loop of it. Only the last axis is ever reshaped,
so an array split along any other axis stays as it is.
"""

from typing import Any

from ._plan import Layout


def rotate(x: Any, cos: Any, sin: Any, layout: Layout, xp: Any) -> Any:
    """Rotate the last axis of x by tables that have x's axes and one column per lane."""
    parts = [_turn(x[..., layout.start : layout.stop], cos, sin, layout, xp)] if layout.lanes else []
    if layout.start or not parts:
        parts.insert(0, x[..., : layout.start])
    if layout.stop < layout.head_dim:
        parts.append(x[..., layout.stop :])
    y = xp.concat(parts, axis=-1) if len(parts) > 1 or not layout.lanes else parts[0]
    # NumPy joins arrays of the other byte order in its own.
    return y if y.dtype == x.dtype else xp.astype(y, x.dtype)


def _turn(x: Any, cos: Any, sin: Any, layout: Layout, xp: Any) -> Any:
    a, b = _members(x, layout)
    if x.dtype == cos.dtype:
        first, second = a * cos - b * sin, b * cos + a * sin
    else:
        a, b = xp.astype(a, cos.dtype), xp.astype(b, cos.dtype)
        first, second = xp.astype(a * cos - b * sin, x.dtype), xp.astype(b * cos + a * sin, x.dtype)
    if layout.out_pairing == "half":
        return xp.concat([first, second], axis=-1)
    # The stack's shape is known but for the axes in front, so the last two are merged by x's own shape.
    return xp.reshape(xp.stack([first, second], axis=-1), x.shape)


def _members(x: Any, layout: Layout) -> tuple[Any, Any]:
    """Return the first and the second members of all pairs."""
    if layout.pairing == "half":
        return x[..., : layout.lanes], x[..., layout.lanes :]
    return x[..., ::2], x[..., 1::2]
