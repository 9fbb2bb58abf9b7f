"""Gradients: the adjoint rotation of the cotangent."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from decimal import Context, Decimal
from typing import Any

import numpy as np

from ._call import Made, make, with_layout
from ._contract import ADDED, Accuracy
from ._definition import pairs_of
from ._factors import Call
from ._judge import Input, Judge
from ._refused import refuses_gradient


def check_gradient(j: Judge, call: Call, seed: int = 0) -> bool:
    """Judge the value of a call while a gradient is recorded, and the gradient; return False if refused."""
    made = make(j, call, seed)
    gs = [_cotangent(j, g, call.gradient) for g in make(j, call.replace(layout=None), seed + 1).xs]
    if not j.target.declared and j.try_call(made.x, made.pos, **made.spec) is None:
        return False
    if call.gradient == "second":
        return _check_second_gradient(j, made, gs[0], make(j, call, seed + 2).xs[0])
    if call.gradient == "parameter":
        parameters = [j.lib.native.nn.Parameter(x.array) for x in made.xs]
        made = made._replace(xs=[x._replace(array=one) for x, one in zip(made.xs, parameters, strict=True)])
    if call.gradient != "alone":
        return _check_pulled(j, call, made, gs, lambda x: j.call(x, made.pos, **made.spec))
    return all(_check_pulled(j, call, *_with_others(j, made, gs, i)) for i in range(len(gs)))


def _with_others(
    j: Judge, made: Made, gs: list[Input], i: int
) -> tuple[Made, list[Input], Callable[[Any], Any]]:
    """Return the arguments and the function of one array of a tuple; the others need no gradient."""

    def rotate(array: Any) -> Any:
        arrays = [array if k == i else each.array for k, each in enumerate(made.xs)]
        return j.call(tuple(arrays), made.pos, **made.spec)[i]

    return made._replace(xs=[made.xs[i]], in_tuple=False), [gs[i]], rotate


def _check_pulled(j: Judge, call: Call, made: Made, gs: list[Input], rotate: Callable[[Any], Any]) -> bool:
    """Judge the value and the gradient of a function of x, a tuple of arrays or one."""
    xs, cotangents = [x.array for x in made.xs], [g.array for g in gs]
    x, g = (tuple(xs), tuple(cotangents)) if made.in_tuple else (xs[0], cotangents[0])
    with _unwritten(j, x=xs, pos=[made.pos], **{"the cotangent": cotangents}):
        try:
            y, pull = j.lib.pullback(rotate, x)
            if call.gradient == "later":
                other = make(j, call.replace(reach=min(4001, j.target.reach)))
                j.lib.pullback(lambda array: j.call(array, other.pos, **other.spec), other.xs[0].array)
        except Exception as error:
            if not refuses_gradient(j, error):
                raise
            return False
        pulled = _pulled(j, pull, g, twice=call.gradient == "twice")
        with j.part("the value while a gradient is recorded"):
            for one, each in zip(y if made.in_tuple else [y], made.xs, strict=True):
                j.check_kind(one, each)
                j.check_values_at(j.numbers(one), each, made.numbers, **made.spec)
        for gradient in pulled:
            with j.part("the gradient"):
                for i, one in enumerate(gradient if made.in_tuple else [gradient]):
                    check_adjoint(j, one, made.xs[i], gs[i], made.numbers, **made.spec)
    return True


def _pulled(j: Judge, pull: Callable[[Any], Any], cotangent: Any, twice: bool) -> Sequence[Any]:
    """Return the gradient asked for once; or twice, unless the target frees its saved arrays after one."""
    if twice:
        with suppress(Exception):  # compiled code may free its saved arrays
            return list(j.lib.pulled_twice(pull, cotangent))
    return [pull(cotangent)]


def _cotangent(j: Judge, g: Input, layout: str) -> Input:
    """Return a cotangent in memory of a layout; of a sum, one number broadcast."""
    if layout != "sum":
        return with_layout(j, g, layout)[0]
    one = j.array(np.ones((1,) * g.values.ndim), g.dtype)
    return Input(j.lib.expanded(one.array, g.values.shape), np.ones(g.values.shape), g.dtype)


@contextmanager
def _unwritten(j: Judge, **named: Sequence[Any]) -> Iterator[None]:
    """Assert that the code inside writes none of these arrays, nor changes their shapes."""
    arrays = [(name, array) for name, some in named.items() for array in some if j.lib.owns(array)]
    before = [j.lib.snapshot(array) for _, array in arrays]
    yield
    for (name, array), bits in zip(arrays, before, strict=True):
        assert j.lib.snapshot(array) == bits, f"{name} was written"


def check_adjoint(
    j: Judge, pulled: Any, x: Input, g: Input, numbers: Any, like: str = "", **spec: Any
) -> None:
    """Assert that a gradient is the cotangent rotated back, times the amplitude.

    It has to be as accurate as in x's dtype, or as in the dtype `like`, rotated in that dtype.
    """
    j.check_kind(pulled, x)
    plan = pairs_of(x.values.shape[-1], {n: v for n, v in j.fields(spec).items() if v is not None})
    reciprocal = Context(prec=60).divide(Decimal(1), plan.amplitude)
    adjoint = {**spec, "inverse": not spec.get("inverse", False), "attention_factor": reciprocal}
    accuracy = j.target.accuracy._replace(arithmetic="own") if like else _of_gradients(j, ADDED)
    j.check_values(j.numbers(pulled), g._replace(dtype=like or g.dtype), numbers, accuracy, **adjoint)


def _check_second_gradient(j: Judge, made: Made, g: Input, h: Input) -> bool:
    """Judge the gradient of a gradient by its cotangent g; return False if it is refused with an error."""
    x, pos = made.xs[0].array, made.pos
    try:
        pulled = j.lib.second_gradient(lambda one: j.call(one, pos, **made.spec), x, g.array, h.array)
    except Exception:  # code that saves no second gradient may say so
        return False
    assert pulled is not None, "its part through the call is left out, without an error"
    j.check_kind(pulled, h)
    j.check_values(j.numbers(pulled), h, made.numbers, _of_gradients(j, "own"), **made.spec)
    return True


def _of_gradients(j: Judge, arithmetic: str) -> Accuracy:
    """Return the accuracy of gradients: the derivatives of other code add products in the dtype of x."""
    accuracy = j.target.accuracy
    if accuracy.angles == "exact" or accuracy.arithmetic == "own":
        return accuracy
    return accuracy._replace(arithmetic=arithmetic)
