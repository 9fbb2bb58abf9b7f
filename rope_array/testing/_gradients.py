"""Gradients: the adjoint rotation of the cotangent."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from decimal import Context, Decimal
from typing import Any

import numpy as np

from ._call import make, with_layout
from ._contract import ADDED, Accuracy
from ._definition import pairs_of
from ._factors import Call
from ._judge import Input, Judge
from ._refused import refuses_gradient


def check_gradient(j: Judge, call: Call, seed: int = 0) -> bool:
    """Judge the value of a call while a gradient is recorded, and the gradient; return False if refused."""
    made = make(j, call, seed)
    plain = make(j, call.replace(layout=None), seed + 1)
    gs = [_cotangent(j, g, call.gradient) for g in plain.xs]
    if not j.target.declared and j.try_call(made.x, made.pos, **made.spec) is None:
        return False
    xs, cotangents = [x.array for x in made.xs], [g.array for g in gs]
    with _unwritten(j, x=xs, pos=[made.pos], **{"the cotangent": cotangents}):
        try:
            ys, pull = j.lib.pullback(
                lambda array: j.call(array, made.pos, **made.spec), tuple(xs) if made.in_tuple else xs[0]
            )
        except Exception as error:
            if not refuses_gradient(j, error):
                raise
            return False
        with j.part("the value while a gradient is recorded"):
            for y, x in zip(ys if made.in_tuple else [ys], made.xs, strict=True):
                j.check_kind(y, x)
                j.check_values_at(j.numbers(y), x, made.numbers, **made.spec)
        pulled = pull(tuple(cotangents) if made.in_tuple else cotangents[0])
        with j.part("the gradient"):
            for one, x, g in zip(pulled if made.in_tuple else [pulled], made.xs, gs, strict=True):
                check_adjoint(j, one, x, g, made.numbers, **made.spec)
    return True


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


def check_second_gradient(j: Judge, x: Input, g: Input, h: Input, numbers: Any, **spec: Any) -> bool:
    """Judge the gradient of a gradient by its cotangent g; return False if it is refused with an error."""
    pos = j.pos(numbers)
    if not j.target.declared and j.try_call(x, pos, **spec) is None:
        return False
    try:
        pulled = j.lib.second_gradient(lambda array: j.call(array, pos, **spec), x.array, g.array, h.array)
    except Exception:  # code that saves no second gradient may say so
        return False
    assert pulled is not None, "its part through the call is left out, without an error"
    j.check_kind(pulled, h)
    j.check_values(j.numbers(pulled), h, numbers, _of_gradients(j, "own"), **spec)
    return True


def _of_gradients(j: Judge, arithmetic: str) -> Accuracy:
    """Return the accuracy of gradients: the derivatives of other code add products in the dtype of x."""
    accuracy = j.target.accuracy
    if accuracy.angles == "exact" or accuracy.arithmetic == "own":
        return accuracy
    return accuracy._replace(arithmetic=arithmetic)
