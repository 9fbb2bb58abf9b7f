"""What kind of array comes back: library, shape, dtype and device, before any value."""

import numpy as np

from rope_array.testing._judge import SHAPE, Judge, check


@check(each_dtype=True, values=False)
def kind(j: Judge, dtype: str) -> None:
    """The result has x's library, shape, dtype and device."""
    x = j.x(dtype=dtype)
    j.check_kind(j.run(x, j.places()), x)


@check("rotary_dim", each_dtype=True, values=False)
def kind_of_identity(j: Judge, dtype: str) -> None:
    """The result is so too where only a part is rotated, or nothing (rotary_dim=0)."""
    x = j.x(dtype=dtype)
    for width in (0, 4, SHAPE[3]):
        j.check_kind(j.run(x, j.places(), rotary_dim=width), x)


@check("zero_size", values=False)
def zero_size(j: Judge) -> None:
    """An x without elements gives a result without elements, of its shape."""
    for shape, count in (((0, 3, 5, 16), 5), ((2, 0, 5, 16), 5), ((2, 3, 0, 16), 0)):
        if any(n == 0 and axis in j.target.looped for n, axis in zip(shape, "bhsd", strict=True)):
            continue  # the suite would make no call
        x = j.x(*shape)
        j.check_kind(j.run(x, np.arange(count)), x)


@check("ranks", values=False)
def ranks(j: Judge) -> None:
    """Arrays x of one to five axes are served: a vector by one position, others along axis -2."""
    for shape in ((16,), (5, 16), (3, 5, 16), (2, 3, 5, 16), (2, 2, 3, 5, 16)):
        x = j.x(*shape)
        pos = j.places() if len(shape) > 1 else np.asarray(3)
        y = j.run(x, pos)
        j.check_kind(y, x)
        if j.claims("values"):
            j.check(y, x, pos)


@check("tuple", values=False)
def tuples(j: Judge) -> None:
    """A tuple of arrays that differ in heads, and in dtype where there are two, gives a tuple of results."""
    xs = (j.x(2, 4, 5, 16, dtype=j.dtypes[-1]), j.x(2, 1, 5, 16, seed=1))
    ys = j.run(xs, j.places())
    assert isinstance(ys, tuple), f"the result is a {type(ys).__name__}"
    assert len(ys) == 2, f"{len(ys)} results for 2 arrays"
    for x, y in zip(xs, ys, strict=True):
        j.check_kind(y, x)
        if j.claims("values"):
            j.check(y, x, j.places())
