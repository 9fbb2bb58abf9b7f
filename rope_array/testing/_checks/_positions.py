"""Positions: shapes, types, dtypes, and the row of each."""

from typing import Any

import numpy as np

from rope_array.testing._judge import Input, Judge, check
from rope_array.testing._parts import broadcast_shape


@check("any_positions")
def positions_of_their_own(j: Judge) -> None:
    """Each row is rotated by its own position: unordered, repeated, or restarting in packed sequences."""
    for pos in ([0, 1, 2, 0, 1], [9, 3, 3, 7, 0], [4, 3, 2, 1, 0], [5000, 40_003, 1, 70_000, 2]):
        j.check_call(j.x(), j.wrap(pos))


@check("offset_positions")
def positions_offset(j: Judge) -> None:
    """One row, a decoding step, is rotated by its own position."""
    for start in (1, 17, 300):
        j.check_call(j.x(2, 3, 1, 16), j.row(start, 1))


@check("batch_positions", "offset_positions")
def positions_of_a_batch(j: Judge) -> None:
    """Positions of shape (B, S) rotate each batch by its own; B is x's first axis."""
    for shape in ((2, 3, 5, 16), (5, 3, 5, 16), (3, 3, 5, 16)):  # also B equal to S, and to H
        rows = [j.row(start, 5) for start in (3, 100, 0, 31, 17)[: shape[0]]]
        j.check_call(j.x(*shape), np.stack(rows))
    if j.claims("any_positions"):
        j.check_call(j.x(), j.wrap([[0, 1, 2, 3, 4], [7, 3, 100, 0, 5]]))
        j.check_call(j.x(), j.wrap([[0, 1, 2, 3, 4], [3, 40_003, 5000, 70_000, 2]]))


@check("batch_positions", "offset_positions")
def positions_of_a_batch_decoding(j: Judge) -> None:
    """Positions of shape (B, 1), a decoding step, rotate each batch by its own."""
    j.check_call(j.x(3, 2, 1, 16), np.stack([j.row(start, 1) for start in (40, 7, 29)]))


@check("batch_positions", "offset_positions", "ranks[3]")
def batch_positions_of_three_axes(j: Judge) -> None:
    """Positions of shape (B, S), (1, S) and (B, 1) match an x of three axes, or six: B is its first axis."""
    pos = np.stack([j.row(start, 5) for start in (40, 7, 29, 3)])
    if not j.target.declared and not _keeps_shape(j, j.x(4, 5, 16), pos):
        j.raise_refused("does not match positions of shape (B, S) to an x of three axes")
    cases: list[tuple[str, tuple[int, ...], np.ndarray[Any, Any], dict[str, Any]]] = [
        ("x of shape (4, 5, 16)", (4, 5), pos, {}),
        ("x of shape (4, 4, 16)", (4, 4), pos[:, :4], {}),
        *([("(B, 1)", (4, 5), pos[:, :1], {})] if j.claims("broadcast_positions[B1]") else []),
        *([("(1, S)", (4, 5), pos[:1], {})] if j.claims("broadcast_positions[1S]") else []),
        *([("seq_axis=0", (5, 4), pos, {"seq_axis": 0})] if j.claims("seq_axis") else []),
    ]
    if j.claims("ranks[6]") and j.target.angles == "exact":  # other code may broadcast it to the last axes
        cases.append(("x of six axes", (2, 1, 2, 3, 5), pos[:2], {}))
    for name, rows, some, spec in cases:
        x = j.x(*rows, 16)
        with j.part(name), j.if_served():
            if (y := j.try_call(x, j.pos(some), **spec)) is not None:
                j.check(y, x, some, **spec)


def _keeps_shape(j: Judge, x: Input, pos: np.ndarray[Any, Any]) -> bool:
    """Return whether a call is taken, and gives a result of x's shape: positions may broadcast x."""
    y = j.try_call(x, j.pos(pos))
    return y is not None and tuple(y.shape) == x.values.shape


@check("head_positions", "any_positions")
def positions_of_heads(j: Judge) -> None:
    """Positions of shape (B, H, S) rotate each head by its own."""
    many = np.random.default_rng(3).integers(0, 50, (2, 5, 5))
    j.check_call(j.x(), j.wrap(many[:, :3]))
    j.check_call(j.x(2, 5, 5, 16), j.wrap(many))


@check("broadcast_positions", "any_positions")
def positions_broadcast(j: Judge) -> None:
    """A scalar is broadcast to all rows, a size of 1 to its axis: (1,), (1, S), (B, 1), (B, 1, S), ..."""
    for axes in j.parts("broadcast_positions"):
        shape = broadcast_shape(axes, (2, 3, 5))
        j.check_call(j.x(), j.wrap(np.random.default_rng(len(shape)).integers(1, 50, shape)))


@check()
def size_one_axes(j: Judge) -> None:
    """Axes of size 1 in x are rotated as any other: one batch, one head, one row."""
    for shape in ((1, 1, 1, 16), (2, 1, 5, 16), (1, 3, 5, 16), (2, 3, 1, 16), (1, 1, 5, 16)):
        j.check_call(j.x(*shape), j.positions(shape[2]))


@check("python_positions", "any_positions")
def positions_of_python(j: Judge) -> None:
    """Positions may be an int, a range, a list or a tuple of ints, negative and in steps, and of floats."""
    for kind in j.parts("python_positions"):
        for pos in _python_positions(j, kind):
            j.check_call(j.x(), pos)
        for dtype in j.dtypes[1:] if j.target.reach >= 4 else ():
            j.check_call(j.x(dtype=dtype), _far_positions(j, kind))
    if j.claims("float_positions") and j.target.reach >= 9:
        values = {"int": 2.5, "list": [4.5, 0.0, 2.25, 8.75, 1.0], "tuple": (0.5, 1.0, 1.5, 2.0, 2.5)}
        for kind in values.keys() & {*j.parts("python_positions")}:
            with j.if_served():
                if (y := j.try_call(j.x(), values[kind])) is not None:
                    j.check(y, j.x(), np.array(values[kind]))


def _far_positions(j: Judge, kind: str) -> Any:
    """Return positions of Python that 16-bit floats round."""
    last = min(4005, j.target.reach)
    row = range(last - 4, last + 1)
    return {"int": last, "range": row, "list": list(row), "tuple": tuple(row)}[kind]


def _python_positions(j: Judge, kind: str) -> list[Any]:
    """Return positions of a kind: of ints, or of ranges, lists or tuples of five ints."""
    negative, wide = j.claims("negative_positions"), j.claims("wide_positions")
    if kind == "int":
        pos: list[Any] = [3, *([-3] if negative else []), *([2**33 + 5] if wide else [])]
    elif kind == "range":
        pos = [range(2, 7), range(0, 15, 3), *([range(-4, 1), range(9, -1, -2)] if negative else [])]
    else:
        pos = [[4, 0, 2, 9, 1], *([[4, -2, 0, -9, 1]] if negative else [])]
        pos += [[2**40, 0, 1, 2**31, 2**32 + 7]] if wide else []
    pos = [one for one in pos if np.max(one) <= j.target.reach and np.min(one) >= -j.target.depth]
    if not pos and kind != "range":
        pos = [0 if kind == "int" else j.wrap(range(5)).tolist()]
    return [tuple(one) for one in pos] if kind == "tuple" else pos


@check("narrow_positions", "offset_positions")
def positions_of_narrow_dtypes(j: Judge) -> None:
    """Positions of int8, uint8, int16, ... are correct up to the ends of their dtype, without wrapping."""
    batched = j.claims("batch_positions", "any_positions")
    for kind in j.parts("narrow_positions"):
        near = _near_the_ends(j, kind)
        some = near // 4 * 3  # their differences are too large for the dtype too
        for values in (near, *([np.stack([some, some[::-1]])] if batched else [])):
            _check_narrow(j, values, kind)


def _check_narrow(j: Judge, values: np.ndarray[Any, Any], kind: str) -> None:
    x = j.x(2, 2, 5, 16)
    beyond = max(int(values.max()) - j.target.reach, 0)
    with j.if_served():
        # As `j.pos`, which wraps positions beyond the reach.
        y = j.try_call(x, j.lib.asarray(values.astype(kind))) if beyond else None
        if y is None:
            values = values - beyond
            y = j.call(x, j.pos(values, kind))
        j.check_kind(y, x)
        j.check_values_at(j.numbers(y), x, values)


def _near_the_ends(j: Judge, kind: str) -> np.ndarray[Any, Any]:
    """Return positions near the ends of a dtype: of uint32, beyond int32's end, where most targets end."""
    ends, int32 = np.iinfo(kind), 2**31 - 1
    last = min(j.target.reach, 2**62 if j.claims("wide_positions") else int32)
    last = 2**32 - 1 if kind == "uint32" and last == int32 else last
    top = min(int(ends.max), last)
    signed = ends.min < 0 and j.claims("negative_positions", "any_positions")
    bottom = -(2**31) if signed and j.target.depth >= 2**31 - 1 else -j.target.depth
    low = max(int(ends.min), bottom) if signed else top - 4
    values = np.array([low, low + 1 if signed else top - 3, top - 2, top - 1, top]).clip(-top - 1, top)
    return values if signed else values.clip(0)


@check("any_positions")
def positions_of_length_of_batch(j: Judge) -> None:
    """Positions of shape (S,) match the rows, even if there are as many heads, batches or features."""
    j.check_call(j.x(4, 4, 4, 16), j.wrap([5, 0, 9, 2]))
    if j.width <= 128:
        j.check_call(j.x(2, 3, j.width, 16), j.wrap(np.arange(j.width) * 5 % 31))
