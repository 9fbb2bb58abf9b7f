"""What a library does to functions: gradients, compilation, arrays that are computed later."""

from typing import Any

import numpy as np

from rope_array.testing._judge import Judge, check


def _adjoint(j: Judge, g: Any, pos: Any, **spec: Any) -> Any:
    """Return the definition's adjoint of g: the inverse, the amplitude kept instead of divided out."""
    amplitude = j.fields(spec).get("attention_factor") or 1.0
    return amplitude**2 * j.exact(g, pos, inverse=True, **spec)


def _check_gradient(j: Judge, **spec: Any) -> None:
    x, g = j.x(), j.x(seed=1)
    pos = j.pos(j.places())
    pulled = j.lib.gradient(lambda array: j.call(array, pos, **spec), x.array, g.array)
    j.check_kind(pulled, x)
    amplitude = j.fields(spec).get("attention_factor") or 1.0
    inverse = {"inverse": True, "exact": _adjoint(j, g.values, j.places(), **spec) / amplitude**2}
    # Held to the class as the inverse rotation of g is, scaled.
    j.check_values(j.numbers(pulled) / amplitude**2, g, j.places(), **spec, inverse=inverse["inverse"])


@check("gradient")
def gradient(j: Judge) -> None:
    """The gradient with respect to x is the adjoint rotation of the cotangent."""
    _check_gradient(j)


@check("gradient", "attention_factor")
def gradient_keeps_the_amplitude(j: Judge) -> None:
    """The adjoint keeps the attention factor, by which the inverse divides."""
    _check_gradient(j, attention_factor=2.0)


@check("gradient", "rotary_dim")
def gradient_of_a_part(j: Judge) -> None:
    """The cotangent of features that are not rotated is passed on."""
    _check_gradient(j, rotary_dim=8)


@check("jit")
def jit(j: Judge) -> None:
    """The library's compiler takes the call, x and positions being traced, and the result is as exact."""
    x = j.x()
    compiled = j.lib.traced(lambda array, pos: j.target.call(array, pos))
    for start in (3, 70) if j.claims("offset_positions") else (0,):
        pos = np.arange(start, start + 5)
        j.check(compiled(x.array, j.pos(pos)), x, pos)


@check("lazy", values=False)
def lazy(j: Judge) -> None:
    """Nothing is computed until values are asked for, whatever the fields."""
    x = j.x()
    for spec in ({}, {"rotary_dim": 8}) if j.claims("rotary_dim") else ({},):
        y = j.call(x._replace(array=j.lib.poisoned(x.array)), j.lib.poisoned(j.pos(j.places())), **spec)
        j.check_kind(y, x)
        assert j.lib.is_lazy(y), "the result is computed already"
