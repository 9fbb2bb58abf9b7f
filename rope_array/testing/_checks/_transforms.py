"""Gradients, compilation, and arrays that are computed later."""

from typing import Any

import numpy as np

from rope_array.testing._judge import Input, Judge, check


def _check_gradient(j: Judge, x: Input, g: Input, pos: Any, **spec: Any) -> None:
    before = j.lib.snapshot(g.array)
    array_pos = j.pos(pos)
    pulled = j.lib.gradient(lambda array: j.call(array, array_pos, **spec), x.array, g.array)
    j.check_kind(pulled, x)
    amplitude = j.fields(spec).get("attention_factor") or 1.0
    # The adjoint is the inverse times the squared amplitude.
    accuracy = j.target.accuracy
    if accuracy.angles != "exact":  # other code adds the gradients of products in the dtype of x
        accuracy = accuracy._replace(arithmetic="own")
    j.check_values(j.numbers(pulled) / amplitude**2, g, pos, accuracy, **spec, inverse=True)
    assert j.lib.snapshot(g.array) == before, "the cotangent was written"


@check("gradient", each_dtype=True)
def gradient(j: Judge, dtype: str) -> None:
    """The gradient with respect to x is the adjoint rotation of the cotangent."""
    _check_gradient(j, j.x(dtype=dtype), j.x(dtype=dtype, seed=1), j.positions())


@check("gradient", "offset_positions")
def gradient_of_a_step(j: Judge) -> None:
    """The gradient of a decoding step, one row, is the adjoint rotation of the cotangent."""
    _check_gradient(j, j.x(2, 3, 1, 16), j.x(2, 3, 1, 16, seed=1), j.row(17, 1))


@check("gradient", "batch_positions", "offset_positions")
def gradient_of_a_batch(j: Judge) -> None:
    """The gradient at positions of shape (B, S) is the adjoint rotation of the cotangent."""
    _check_gradient(j, j.x(), j.x(seed=1), np.stack([j.row(3, 5), j.row(40, 5)]))


@check("gradient")
def gradient_of_a_sum(j: Judge) -> None:
    """The gradient is right for a cotangent that is one number broadcast, as the gradient of a sum is."""
    x = j.x()
    ones = j.array(np.ones((1, 1, 1, 1)))
    g = Input(j.lib.expanded(ones.array, x.values.shape), np.ones(x.values.shape), x.dtype)
    _check_gradient(j, x, g, j.positions())


@check("gradient", "attention_factor")
def gradient_keeps_the_amplitude(j: Judge) -> None:
    """The gradient multiplies by the attention factor; the inverse divides by it."""
    _check_gradient(j, j.x(), j.x(seed=1), j.positions(), attention_factor=2.0)


@check("gradient", "rotary_dim")
def gradient_of_a_part(j: Judge) -> None:
    """The gradient of features that are not rotated is their cotangent."""
    _check_gradient(j, j.x(), j.x(seed=1), j.positions(), rotary_dim=8)


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
