"""Gradients in special uses, compilation, and arrays that are computed later."""

from typing import Any

import numpy as np

from rope_array.testing._call import make, spec_of
from rope_array.testing._cover import single_fields
from rope_array.testing._gradients import check_adjoint, check_pullback, check_second_gradient
from rope_array.testing._judge import Input, Judge, check
from rope_array.testing._row import read_calls


@check("gradient")
def gradient_of_a_sum(j: Judge) -> None:
    """The gradient is right for a cotangent that is one number broadcast, as the gradient of a sum is."""
    made = make(j, next(read_calls(j, "")))
    (x,), ones = made.xs, j.array(np.ones((1, 1, 1, 1)))
    g = Input(j.lib.expanded(ones.array, x.values.shape), np.ones(x.values.shape), x.dtype)
    if not check_pullback(j, made, [g]):
        j.raise_refused("refuses to record a gradient")


@check("gradient", "tuple", "tuple[2]")
def gradient_of_a_tuple(j: Judge) -> None:
    """The gradient is right for each array of a tuple, if the others need none."""
    x, g, pos = [j.x(seed=0), j.x(seed=1)], j.x(seed=2), j.positions()
    if j.try_call(tuple(x), j.pos(pos)) is None:
        j.raise_refused("refuses a tuple")
    for i in (0, 1):
        arrays = [one.array for one in x]

        def rotated(array: Any, i: int = i, arrays: list[Any] = arrays) -> Any:
            arrays[i] = array
            return j.call(tuple(arrays), j.pos(pos))[i]

        with j.part(f"a tuple of which array {i} alone needs a gradient"):
            check_adjoint(j, j.lib.gradient(rotated, x[i].array, g.array), x[i], g, pos)


@check("gradient")
def gradient_twice(j: Judge) -> None:
    """A gradient asked for twice is the same, and so is the gradient of the next call."""
    x, pos = j.x(), j.positions()
    array_pos = j.pos(pos)
    for g in (j.x(seed=1), j.x(seed=2)):
        y, pull = j.lib.pullback(lambda array: j.call(array, array_pos), x.array)
        pulled: tuple[Any, ...]
        try:
            pulled = j.lib.pulled_twice(pull, g.array)
        except Exception:  # compiled code may free what it saved
            pulled = (pull(g.array),)
        for one in pulled:
            check_adjoint(j, one, x, g, pos)
        j.check(y, x, pos)


@check("gradient")
def gradient_of_a_gradient(j: Judge) -> None:
    """The gradient of a gradient is the forward rotation, as the gradient is linear in the cotangent."""
    names = {"pairing", "out_pairing", "inverse", "attention_factor", "rotary_dim", "seq_axis"}
    specs = [spec_of(j, call) for call in single_fields(j) if not call.in_tuple]
    served = 0
    for spec in [spec for spec in specs if spec.keys() <= names][: 1 if j.is_slow else None]:
        with j.part(
            "".join(f"{name}={value}: " for name, value in spec.items()) + "the gradient of a gradient"
        ):
            served += check_second_gradient(j, j.x(), j.x(seed=1), j.x(seed=2), j.positions(), **spec)
    if not served:
        j.raise_refused("the gradient of a gradient raises an error")


@check("jit")
def jit(j: Judge) -> None:
    """The library's compiler compiles the call with traced x and positions, and the result is as exact."""
    x = j.x()
    compiled = j.lib.traced(lambda array, pos: j.target.call(array, pos))
    for start in (3, 70) if j.claims("offset_positions") else (0,):
        pos = j.row(start, 5)
        j.check(compiled(x.array, j.pos(pos)), x, pos)


@check("lazy", values=False)
def lazy(j: Judge) -> None:
    """A call computes nothing: the result is lazy, whatever the fields."""
    x = j.x()
    for spec in ({}, {"rotary_dim": 8}) if j.claims("rotary_dim") else ({},):
        y = j.call(x._replace(array=j.lib.poisoned(x.array)), j.lib.poisoned(j.pos(j.positions())), **spec)
        j.check_kind(y, x)
        assert j.lib.is_lazy(y), "the result is computed already"
