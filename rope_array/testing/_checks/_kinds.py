"""Library, shape, dtype and device of results, without their values."""

import itertools
from typing import Any

import numpy as np

from rope_array.testing._judge import Input, Judge, check
from rope_array.testing._parts import EMPTY, RANKS


@check(each_dtype=True, values=False)
def kind(j: Judge, dtype: str) -> None:
    """The result has x's library, shape, dtype and device."""
    x = j.x(dtype=dtype)
    j.check_kind(j.run(x, j.positions()), x)


@check("rotary_dim", each_dtype=True, values=False)
def kind_of_identity(j: Judge, dtype: str) -> None:
    """The result has x's library, shape, dtype and device for a partial rotation and for rotary_dim=0."""
    x = j.x(dtype=dtype)
    for width in (0, 4, 2 * len(j.pairs()[0][0])):
        with j.if_served():
            j.check_kind(j.run(x, j.positions(), rotary_dim=width), x)


@check("zero_size", values=False)
def zero_size(j: Judge) -> None:
    """An x without elements gives a result without elements, of its shape."""
    for shape in (EMPTY[label] for label in j.parts("zero_size")):
        if any(n == 0 and axis in j.target.looped for n, axis in zip(shape, "bhs", strict=True)):
            continue  # `adapt_layout` would make no call
        x = j.x(*shape, 16)
        with j.if_served():
            j.check_kind(j.run(x, j.row(0, shape[2])), x)


@check("ranks", values=False)
def ranks(j: Judge) -> None:
    """An x of one to six axes is rotated: a vector by one position, others along axis -2."""
    for lead in (RANKS[int(label) - 1] for label in j.parts("ranks")):
        x = j.x(*lead, j.width)
        pos = j.positions(lead[-1]) if lead else j.wrap(3)
        with j.if_served():
            y = j.run(x, pos)
            j.check_kind(y, x)
            if j.claims("values"):
                j.check(y, x, pos)


@check("tuple", "tuple[2]", values=False)
def tuples(j: Judge) -> None:
    """A tuple of arrays that differ in heads gives a tuple of results, for large arrays and (B, S) too."""
    _tuple(j, (j.x(2, 4, 5, 16), j.x(2, 1, 5, 16, seed=1)), j.positions())
    many = min(130, j.target.reach + 1)
    shapes = ("S", "BS") if j.claims("batch_positions", "offset_positions") else ("S",)
    calls = itertools.product(((1, 4, 5), (4, 2, 5), (32, 8, many)), shapes[::-1])
    for (first, second, rows), shape in itertools.islice(calls, None if j.lib.calls >= 1000 else 3):
        few = j.wrap(np.arange(rows) % 7 * 31)
        batch = np.stack([few, few[::-1]] if j.claims("any_positions") else [j.row(0, rows), j.row(7, rows)])
        pos = batch if shape == "BS" else batch[0]
        with j.if_served(), j.part(f"with positions of shape {pos.shape}"):
            _tuple(j, (j.x(2, first, rows, 16), j.x(2, second, rows, 16, seed=1)), pos)


@check("tuple", "tuple[2]", "mixed_dtypes", values=False)
def tuples_of_two_dtypes(j: Judge) -> None:
    """Each array of a tuple is rotated in its own dtype."""
    for one, other in zip(j.dtypes, (*j.dtypes[1:], j.dtype), strict=True):
        with j.if_served():
            _tuple(j, (j.x(2, 4, 5, 16, dtype=other), j.x(2, 1, 5, 16, dtype=one, seed=1)), j.positions())


@check("tuple", values=False)
def tuples_of_any_length(j: Judge) -> None:
    """A tuple of one array, of three, of two alike, or of one array twice gives a tuple of results."""
    q, k = j.x(2, 4, 5, 16), j.x(2, 4, 5, 16, seed=1)
    for xs in ((q,), (q, k), (q, q), (q, j.x(2, 2, 5, 16, seed=2), k)):
        if not j.claims(f"tuple[{min(len(xs), 3)}]"):
            continue
        with j.if_served():
            ys = _tuple(j, xs, j.positions())
            if len(xs) == 2:
                assert ys[0] is not ys[1], "two results are one array"
                assert not j.lib.shares_memory(ys[0], ys[1]), "two results share memory"


def _tuple(j: Judge, xs: tuple[Input, ...], pos: np.ndarray[Any, Any]) -> Any:
    ys = j.run(xs, pos)
    assert isinstance(ys, tuple), f"the result is a {type(ys).__name__}"
    assert len(ys) == len(xs), f"{len(ys)} results for {len(xs)} arrays"
    for i, (x, y) in enumerate(zip(xs, ys, strict=True), 1):
        with j.part(f"array {i} of {len(xs)}"):
            j.check_kind(y, x)
            if j.claims("values"):
                j.check(y, x, pos)
    return ys
