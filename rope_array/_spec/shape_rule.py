"""The shape rule: how the axes of positions pair with the axes of x. Plain integers and tuples."""

from collections.abc import Sequence
from itertools import combinations
from math import prod
from numbers import Integral
from typing import Any

from rope_array._errors import ShapeError, describe, static_remedy

from .plan import Plan

_MOST_CLASS_TOKENS = 16  # with the registers; models have up to 8


def sequence_axis(ndim: int, seq_axis: int) -> int:
    """Return `seq_axis` counted from the front of an x of `ndim` axes; -1 if x is a single vector."""
    if seq_axis.__class__ is int and -ndim <= seq_axis < -1:
        return seq_axis + ndim
    return _checked_axis(ndim, seq_axis)


def _checked_axis(ndim: int, seq_axis: Any) -> int:
    is_integer = isinstance(seq_axis, Integral) and not isinstance(seq_axis, bool)
    if not is_integer:
        text = f"seq_axis is {describe(seq_axis)}; give an int: the axis of x along which positions run."
        raise ShapeError(text + (static_remedy("seq_axis=-3") if hasattr(seq_axis, "dtype") else ""))
    axis = seq_axis + ndim if seq_axis < 0 else seq_axis
    if 0 <= axis < ndim - 1:
        return int(axis)
    if ndim == 1 and seq_axis == -2:
        return -1
    if ndim == 1:
        raise ShapeError(
            f"seq_axis is {seq_axis}, and x is a single vector, with 1 axis; give x a sequence axis, or omit "
            "seq_axis."
        )
    raise ShapeError(
        f"seq_axis is {seq_axis}, for an x of {ndim} axes whose last holds the features; "
        f"give an axis from {-ndim} to -2, or from 0 to {ndim - 2}."
    )


def placement(ndim: int, pos_ndim: int, seq_axis: int) -> tuple[tuple[int, ...] | None, tuple[Any, ...]]:
    """Return how a table of shape pos.shape + (pairs,) is aligned with the axes of an x of `ndim` axes.

    Returns
    -------
    order
        The permutation of the table's axes to apply first; None if they are in order.
    index
        The index that then gives the table all of x's axes, of size 1 where positions have none.
    """
    if pos_ndim == 0:
        return None, (None,) * (ndim - 1) + (...,)
    if pos_ndim == 1 and seq_axis == -2:
        return None, (None,) * (ndim - 2) + (...,)
    axis = sequence_axis(ndim, seq_axis)
    paired = _paired_axes(ndim, pos_ndim, axis)
    index = (*(slice(None) if a in paired else None for a in range(ndim - 1)), ...)
    if paired == sorted(paired):
        return None, index
    order = sorted(range(pos_ndim), key=paired.__getitem__)
    return (*order, pos_ndim), index


def without_coordinates(shape: tuple[Any, ...], plan: Plan) -> tuple[Any, ...]:
    """Return the shape of positions without the axis of their coordinates; raise if their number is wrong."""
    if plan.coordinates is None:
        return shape
    count = plan.coordinates.number
    if shape and shape[-1] == count:
        return shape[:-1]
    text = (
        f"pos has the shape {_shape(shape)}; the rope's axes need {count} coordinates for each position, "
        f"along pos's last axis: give it the shape (..., {count})."
    )
    raise ShapeError(f"{text}{_coordinates_hint(shape, count)}")


def _coordinates_hint(shape: tuple[Any, ...], count: int) -> str:
    """Return how positions of a known form get their coordinates last; empty for other forms."""
    if len(shape) > 1 and shape[0] == count:
        return (
            f" Move pos's first axis, of size {count}, to the end: xp.moveaxis(pos, 0, -1), in PyTorch "
            "pos.movedim(0, -1)."
        )
    hint = ""
    if len(shape) in (2, 3) and shape[0] == count + 1:  # of transformers: text, then t, h and w
        batch = "batch, " if len(shape) == 3 else ""
        hint = (
            f" If pos[0] has the positions of text and pos[1:] the coordinates, as position_ids of shape "
            f"({count + 1}, {batch}tokens), give xp.moveaxis(pos[1:, ...], 0, -1)."
        )
    if len(shape) < 3:
        rows = " If pos has the shape (batch, tokens), and" if hint else " If"
        hint += f"{rows} all coordinates are equal, as in text, give ra.positions.text(pos, {count}, like=x)."
    return hint


def paired_axes(ndim: int, pos_ndim: int, seq_axis: int) -> tuple[int, ...]:
    """Return the axis of x that each axis of positions pairs with, by the shape rule."""
    return tuple(_paired_axes(ndim, pos_ndim, sequence_axis(ndim, seq_axis))) if pos_ndim else ()


def _paired_axes(ndim: int, pos_ndim: int, axis: int) -> list[int]:
    lead = [a for a in range(ndim - 1) if a != axis]
    return [*lead[: pos_ndim - 1], axis]


def check_line_up(
    shape: tuple[Any, ...],
    pos_shape: tuple[Any, ...],
    seq_axis: int,
    coordinates: int = 0,
    others: Sequence[tuple[Any, ...]] = (),
    of_tables: bool = False,
) -> None:
    """Check the shape rule between x and positions.

    The rule: take x's axes without the last and move `seq_axis` to the end, (lead..., S). The last axis of
    pos pairs with S, its other axes with the first lead axes in order. Each size is equal or 1.

    `pos_shape` is without the axis of coordinates. Their number, if pos has this axis, and the shapes of all
    arrays of the call are for the message, and whether the shape is that of a Rotation's tables.
    """
    axis = sequence_axis(len(shape), seq_axis)
    if len(pos_shape) == 1 and pos_shape[0] == shape[axis] and axis >= 0:
        return
    if pos_shape and not _lines_up(shape, pos_shape, axis):
        tables = (
            f"the rotation's tables have the shape {_shape((*pos_shape, '(pairs)'))}, and need a row for "
            "each position of x, cos[positions] of a longer table: "
        ) * of_tables
        raise ShapeError(tables + _line_up_error(shape, pos_shape, seq_axis, axis, coordinates, others))


def check_row_of_coordinates(
    shape: tuple[Any, ...], seq_axis: int, coordinates: int, name: str = "pos", tokens: str = "tokens"
) -> None:
    """Refuse positions of shape (coordinates,) for as many tokens: it could be a position of each token.

    `name` and `tokens` are their names in the message.
    """
    axis = sequence_axis(len(shape), seq_axis)
    if coordinates > 1 and axis >= 0 and shape[axis] == coordinates:
        raise ShapeError(
            f"{name} has {coordinates} numbers, the rope {coordinates} coordinates for each position, and "
            f"there are {coordinates} {tokens}. Give the shape (1, {coordinates}) for one of all {tokens}, "
            f"and ({coordinates}, {coordinates}) for one of each."
        )


def _lines_up(shape: tuple[Any, ...], pos_shape: tuple[Any, ...], axis: int) -> bool:
    if len(pos_shape) >= len(shape):
        return False
    paired = [axis] if len(pos_shape) == 1 else _paired_axes(len(shape), len(pos_shape), axis)
    return all([_sizes_match(size, shape[a]) for size, a in zip(pos_shape, paired, strict=True)])


def _sizes_match(pos_size: Any, x_size: Any) -> bool:
    # The chunk that has the data checks a size that is unknown here (nan in dask, None in the standard).
    return pos_size == x_size or pos_size == 1 or is_unknown_size(pos_size) or is_unknown_size(x_size)


def is_unknown_size(size: Any) -> bool:
    """Return whether the size of an axis is not known yet."""
    return size is None or size != size


def _line_up_error(
    shape: tuple[Any, ...],
    pos_shape: tuple[Any, ...],
    seq_axis: int,
    axis: int,
    coordinates: int,
    others: Sequence[tuple[Any, ...]],
) -> str:
    ndim, last = len(shape), (coordinates,) if coordinates else ()
    if len(pos_shape) == ndim and pos_shape[-1] == shape[-1]:
        return (
            f"pos has the shape {_shape(pos_shape)} and x {_shape(shape)}, as if both were queries or keys. "
            "Give positions, and several arrays as one tuple: apply((q, k), pos)."
        )
    lead = [f"axis {a} ({shape[a]})" for a in range(ndim - 1) if a != axis]
    sequence = f"the sequence, axis {axis} ({shape[axis]})" if axis >= 0 else "no sequence axis"
    before = " before the coordinates" if last else ""
    text = (
        f"pos of shape {_shape(pos_shape + last)} does not line up with x of shape {_shape(shape)} and "
        f"seq_axis={seq_axis}. pos's last axis{before} pairs with {sequence}"
    )
    text += f", its others in order with {', '.join(lead)}; each size must be equal or 1." if lead else "."
    hint = (
        _hint_for_several(shape, pos_shape, seq_axis, others)
        or _hint_for_decoding(shape, pos_shape, axis, coordinates)
        or _hint_for_other_axis(shape, pos_shape, axis, coordinates)
        or _hint_for_grid(shape, pos_shape, axis, coordinates)
        or _hint_for_more_tokens(shape, pos_shape, axis, coordinates)
    )
    return f"{text} {hint or _accepted_shapes(shape, axis, last)}"


def _hint_for_several(
    shape: tuple[Any, ...], pos_shape: tuple[Any, ...], seq_axis: int, others: Sequence[tuple[Any, ...]]
) -> str:
    """Return the remedy if positions line up with another array of the call."""
    for other in others:
        if -len(other) <= seq_axis < len(other) - 1 and _lines_up(
            other, pos_shape, sequence_axis(len(other), seq_axis)
        ):
            return (
                f"They line up with the array of shape {_shape(other)}: call once for each array, with its "
                "own positions, as for queries and keys of cross-attention."
            )
    return ""


def _hint_for_decoding(
    shape: tuple[Any, ...], pos_shape: tuple[Any, ...], axis: int, coordinates: int
) -> str:
    """Return the remedies for one token in each sequence, with positions of the shape (batch,)."""
    batch = 1 if axis == 0 else 0
    if axis < 0 or shape[axis] != 1 or len(pos_shape) != 1 or pos_shape[0] != shape[batch]:
        return ""
    form = _shape((*pos_shape, 1, coordinates) if coordinates else (*pos_shape, 1))
    builder = "" if coordinates else ", as of ra.positions.offset(1, lengths)"
    return (
        f"If axis {batch} is the batch, give pos the shape {form}, one position for each sequence{builder}. "
        f"If axis {batch} holds the tokens, give seq_axis={batch - len(shape)}."
    )


def _hint_for_other_axis(
    shape: tuple[Any, ...], pos_shape: tuple[Any, ...], axis: int, coordinates: int
) -> str:
    """Return the remedy if positions run along another axis of x, or have a last axis of 1 too many."""
    column = pos_shape[-1] == 1
    tokens_shape = pos_shape[:-1] if column else pos_shape
    # An axis of size 1 lines up with every axis: equal sizes alone tell which one is meant.
    axes = [
        a
        for a in range(len(shape) - 1)
        if tokens_shape and tokens_shape[-1] == shape[a] and _lines_up(shape, tokens_shape, a)
    ]
    choices = ", or ".join(f"seq_axis={a - len(shape)}, if axis {a} holds the tokens" for a in axes)
    if not axes or not column:
        return f"It would fit with {choices}." if axes else ""
    form = _shape((*tokens_shape, coordinates) if coordinates else tokens_shape)
    also = "" if axis in axes else f" It would then fit with {choices}."
    return f"Give pos the shape {form}, without its axis of size 1.{also}"


def _hint_for_grid(shape: tuple[Any, ...], pos_shape: tuple[Any, ...], axis: int, coordinates: int) -> str:
    """Return the remedy if adjacent axes of x hold the tokens together, as of an image that is not flat.

    Positions of one coordinate may have such a size by chance: then `axis` has to be one of these axes.
    """
    for first, last in combinations(range(len(shape) - 1), 2):
        sizes = shape[first : last + 1]
        if any(map(is_unknown_size, sizes)) or not (coordinates or first <= axis <= last):
            continue
        count, lead = prod(sizes), pos_shape[: -len(sizes)]
        flat = (*shape[:first], count, *shape[last + 1 :])
        has_axes_of_grid = pos_shape == (*lead, *sizes)
        tokens = (*lead, count) if has_axes_of_grid else pos_shape
        if count > 1 and tokens[-1] == count and _lines_up(flat, tokens, first):
            form = _shape((*tokens, coordinates) if coordinates else tokens)
            also = f", pos the shape {form}," if has_axes_of_grid else ""
            axes = f"axes {first} {'to' if last - first > 1 else 'and'} {last}"
            return (
                f"If {axes} of x hold the {count} tokens, as of a grid, flatten them: give "
                f"x.reshape{_shape(flat)}{also} and seq_axis={first - len(flat)}, and reshape the result to "
                "x's shape."
            )
    return ""


def _hint_for_more_tokens(
    shape: tuple[Any, ...], pos_shape: tuple[Any, ...], axis: int, coordinates: int
) -> str:
    """Return the remedy if x has a few tokens that no coordinates belong to, such as class tokens."""
    surplus = _few_more_tokens(shape, pos_shape) if coordinates and axis >= 0 else {}
    if not surplus:
        return ""
    count = min(surplus.values())
    other_axes = [a for a, number in surplus.items() if number == count and a != axis]
    choices = ", or ".join(f"seq_axis={a - len(shape)}, if axis {a} holds the tokens" for a in other_axes)
    first_remedy = f"Give {choices}. " if other_axes else ""
    condition = "they are class tokens" if count > 1 else "it is a class token"
    zeros = _shape((*pos_shape[:-1], count, coordinates))
    then = "" if surplus.get(axis) == count else "then "
    return (
        f"{first_remedy}x {then}has {count} more {'tokens' if count > 1 else 'token'} than "
        f"pos. Only if {condition}, without a place and not rotated, give coordinates of 0, by zeros of "
        f"shape {zeros} joined with pos. Every other token needs coordinates of its own."
    )


def _few_more_tokens(shape: tuple[Any, ...], pos_shape: tuple[Any, ...]) -> dict[int, int]:
    """Return the axes of x on which a few tokens are missing from positions, with their numbers."""
    count = pos_shape[-1]
    if is_unknown_size(count):
        return {}
    limit = min(count - 1, _MOST_CLASS_TOKENS)
    return {
        a: size - count
        for a, size in enumerate(shape[:-1])
        if not is_unknown_size(size)
        and 0 < size - count <= limit
        and _lines_up(shape, (*pos_shape[:-1], size), a)
    }


def _accepted_shapes(shape: tuple[Any, ...], axis: int, last: tuple[int, ...]) -> str:
    """Name the shapes of positions that an x takes."""
    single = f"the shape {_shape(last)}" if last else "a scalar"
    lead = tuple(shape[a] for a in range(len(shape) - 1) if a != axis)
    if axis < 0:
        return f"Give pos {single}."
    forms = dict.fromkeys(_shape((*lead[:n], shape[axis], *last)) for n in (0, 1, len(lead)))
    place = "any place but the last" if last else "any place"
    return f"Give pos the shape {' or '.join(forms)}, or a size 1 in {place}, or {single} for all tokens."


def _shape(shape: Sequence[Any]) -> str:
    return f"({', '.join(map(str, shape))}{',' if len(shape) == 1 else ''})"
