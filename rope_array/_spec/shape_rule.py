"""The shape rule: how the axes of positions pair with the axes of x. Plain integers and tuples."""

from collections.abc import Sequence
from typing import Any

from rope_array._errors import ShapeError, short

from .plan import Plan


def sequence_axis(ndim: int, seq_axis: int) -> int:
    """Return `seq_axis` of an x of `ndim` axes counted from the front; -1 where x is a single vector."""
    if seq_axis.__class__ is int and -ndim <= seq_axis < -1:
        return seq_axis + ndim
    return _checked_axis(ndim, seq_axis)


def _checked_axis(ndim: int, seq_axis: Any) -> int:
    if not hasattr(seq_axis, "__index__"):
        raise ShapeError(
            f"seq_axis is {short(seq_axis)}; give an int: the axis of x along which positions run."
        )
    axis = seq_axis + ndim if seq_axis < 0 else seq_axis
    if 0 <= axis < ndim - 1:
        return int(axis)
    if ndim == 1 and seq_axis == -2:
        return -1
    if ndim == 1:
        raise ShapeError(
            f"seq_axis is {seq_axis}, and x has 1 axis, a single vector's; give x a sequence axis, or leave "
            "seq_axis out."
        )
    raise ShapeError(
        f"seq_axis is {seq_axis}, for an x of {ndim} axes whose last holds the features; "
        f"give an axis from {-ndim} to -2, or from 0 to {ndim - 2}."
    )


def placement(ndim: int, pos_ndim: int, axis: int) -> tuple[tuple[int, ...] | None, tuple[Any, ...]]:
    """Say how a table of positions, shape pos.shape + (lanes,), is laid along x's `ndim` axes.

    Returns
    -------
    order
        The permutation of the table's axes that comes first, None where there is none to do.
    index
        The index that then gives the table all of x's axes, those that positions do not cover of size 1.
    """
    if pos_ndim == 0:
        return None, (None,) * (ndim - 1) + (...,)
    if pos_ndim == 1 and axis == ndim - 2:
        return None, (None,) * axis + (...,)
    covered = _covered(ndim, pos_ndim, axis)
    index = (*(slice(None) if a in covered else None for a in range(ndim - 1)), ...)
    if covered == sorted(covered):
        return None, index
    order = sorted(range(pos_ndim), key=covered.__getitem__)
    return (*order, pos_ndim), index


def without_coordinates(shape: tuple[Any, ...], plan: Plan) -> tuple[Any, ...]:
    """Return the shape of positions without the axis of their coordinates, whose number is checked."""
    if plan.coordinates is None:
        return shape
    count = plan.coordinates.number
    if shape and shape[-1] == count:
        return shape[:-1]
    text = (
        f"pos has the shape {_shape(shape)}; the rope's axes take {count} coordinates for each position, "
        f"along pos's last axis: give it the shape (..., {count})."
    )
    if shape and shape[0] == count and len(shape) > 1:
        raise ShapeError(f"{text} Move pos's first axis, of size {count}, to the end.")
    raise ShapeError(
        f"{text} Where all coordinates are equal, as of text, repeat each position {count} times."
    )


def covered_axes(ndim: int, pos_ndim: int, seq_axis: int) -> tuple[int, ...]:
    """Return the axis of x that each axis of positions pairs with, by the shape rule."""
    return tuple(_covered(ndim, pos_ndim, sequence_axis(ndim, seq_axis))) if pos_ndim else ()


def _covered(ndim: int, pos_ndim: int, axis: int) -> list[int]:
    lead = [a for a in range(ndim - 1) if a != axis]
    return [*lead[: pos_ndim - 1], axis]


def check_line_up(shape: tuple[Any, ...], pos_shape: tuple[Any, ...], seq_axis: int) -> None:
    """Check the shape rule between x and positions.

    The rule: of x's axes without the last, `seq_axis` moved to the end, (lead..., S), the last pairs with
    the last axis of pos and the lead axes, in order, with its others; each size is equal or 1.
    """
    axis = sequence_axis(len(shape), seq_axis)
    if pos_shape and not _lines_up(shape, pos_shape, axis):
        raise ShapeError(_misfit(shape, pos_shape, seq_axis, axis))


def _lines_up(shape: tuple[Any, ...], pos_shape: tuple[Any, ...], axis: int) -> bool:
    if len(pos_shape) >= len(shape) or not _pairs(pos_shape[-1], shape[axis]):
        return False
    if len(pos_shape) == 1:
        return True
    lead = _covered(len(shape), len(pos_shape), axis)[:-1]
    return all(_pairs(have, shape[a]) for have, a in zip(pos_shape[:-1], lead, strict=True))


def _pairs(have: Any, want: Any) -> bool:
    # A size that is not known yet (nan in dask, None in the standard) is checked where it is: in the chunk.
    return have == want or have == 1 or unknown(have) or unknown(want)


def unknown(size: Any) -> bool:
    """Tell whether an axis's size is not known yet."""
    return size is None or size != size


def _misfit(shape: tuple[Any, ...], pos_shape: tuple[Any, ...], seq_axis: int, axis: int) -> str:
    ndim = len(shape)
    lead = [f"axis {a} ({shape[a]})" for a in range(ndim - 1) if a != axis]
    sequence = f"the sequence, axis {axis} ({shape[axis]})" if axis >= 0 else "no sequence axis"
    text = (
        f"pos of shape {_shape(pos_shape)} does not line up with x of shape {_shape(shape)} and "
        f"seq_axis={seq_axis}. pos's last axis pairs with {sequence}"
    )
    text += f", its others in order with {', '.join(lead)}; each size must be equal or 1." if lead else "."
    fits = [a - ndim for a in range(ndim - 1) if a != axis and _lines_up(shape, pos_shape, a)]
    if fits:
        return f"{text} It would fit with {' or '.join(f'seq_axis={a}' for a in fits)}."
    wanted = [shape[a] for a in range(ndim - 1) if a != axis] + ([shape[axis]] if axis >= 0 else [])
    forms = [_shape(wanted[i:]) for i in (len(wanted) - 1, 0) if wanted]
    accepted = " or ".join(dict.fromkeys([*reversed(forms)])) if len(wanted) > 1 else "".join(forms[:1])
    return f"{text} Give pos a scalar" + (
        f", or the shape {accepted}, or a size 1 in any place." if wanted else "."
    )


def _shape(shape: Sequence[Any]) -> str:
    return f"({', '.join(map(str, shape))}{',' if len(shape) == 1 else ''})"
