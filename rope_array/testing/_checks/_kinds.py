"""Library, shape, dtype and device of results, without their values."""

from typing import Any

import numpy as np

from rope_array.testing._claims import RANKS
from rope_array.testing._judge import Input, Judge, check


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
    for shape, count in (((0, 3, 5, 16), 5), ((2, 0, 5, 16), 5), ((2, 3, 0, 16), 0)):
        if any(n == 0 and axis in j.target.looped for n, axis in zip(shape, "bhsd", strict=True)):
            continue  # `adapt_layout` would make no call
        x = j.x(*shape)
        with j.if_served():
            j.check_kind(j.run(x, j.row(0, count)), x)


@check("ranks", values=False)
def ranks(j: Judge) -> None:
    """An x of one to six axes is rotated: a vector by one position, others along axis -2."""
    for lead in RANKS:
        x = j.x(*lead, j.width)
        pos = j.positions(lead[-1]) if lead else np.asarray(3)
        with j.if_served():
            y = j.run(x, pos)
            j.check_kind(y, x)
            if j.claims("values"):
                j.check(y, x, pos)


@check("tuple", values=False)
def tuples(j: Judge) -> None:
    """A tuple of arrays that differ in heads, and in dtype if two are claimed, gives a tuple of results."""
    _tuple(j, (j.x(2, 4, 5, 16, dtype=j.dtypes[-1]), j.x(2, 1, 5, 16, seed=1)))


@check("tuple", values=False)
def tuples_of_any_length(j: Judge) -> None:
    """A tuple of one array, of three, of two alike, or of one array twice gives a tuple of results."""
    q, k = j.x(2, 4, 5, 16), j.x(2, 4, 5, 16, seed=1)
    for xs in ((q,), (q, k), (q, q), (q, j.x(2, 2, 5, 16, seed=2), k)):
        with j.if_served():
            ys = _tuple(j, xs)
            if len(xs) == 2:
                assert ys[0] is not ys[1], "two results are one array"
                assert not j.lib.shares_memory(ys[0], ys[1]), "two results share memory"


def _tuple(j: Judge, xs: tuple[Input, ...]) -> Any:
    ys = j.run(xs, j.positions())
    assert isinstance(ys, tuple), f"the result is a {type(ys).__name__}"
    assert len(ys) == len(xs), f"{len(ys)} results for {len(xs)} arrays"
    for x, y in zip(xs, ys, strict=True):
        j.check_kind(y, x)
        if j.claims("values"):
            j.check(y, x, j.positions())
    return ys
