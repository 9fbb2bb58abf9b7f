"""Gradients: the adjoint rotation of the cotangent."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from decimal import Context, Decimal
from typing import Any

import numpy as np

from ._call import CallInputs, arguments_of, make, with_layout
from ._claims import one_line
from ._compilers import CannotCompile
from ._contract import ADDED, Accuracy
from ._definition import pairs_of
from ._factors import CallFactors
from ._failure import GRADIENT, VALUE, named
from ._judge import Input, Judge
from ._refused import Declined, EndingError


def check_gradient(j: Judge, call: CallFactors, seed: int = 0) -> bool:
    """Judge the value of a call while a gradient is recorded, and the gradient; return False if refused."""
    inputs = make(j, call, seed)
    gs = [_cotangent(j, g, call.gradient) for g in make(j, call.replace(layout=None), seed + 1).xs]
    if not j.target.declared and j.try_call(inputs.x, inputs.pos, **inputs.spec) is None:
        return False
    if call.gradient == "second":
        return _check_second_gradient(j, inputs, gs[0], make(j, call, seed + 2).xs[0])
    if call.gradient == "parameter":
        xs = [x._replace(array=j.lib.native.nn.Parameter(x.array)) for x in inputs.xs]
        inputs = inputs._replace(xs=xs)
    if call.gradient != "alone":
        return _check_pulled(j, call, inputs, gs, lambda x: j.call(x, inputs.pos, **inputs.spec))
    return all(_check_pulled(j, call, *_with_others(j, inputs, gs, i)) for i in range(len(gs)))


def _with_others(
    j: Judge, inputs: CallInputs, gs: list[Input], i: int
) -> tuple[CallInputs, list[Input], Callable[[Any], Any]]:
    """Return the arguments and the function of one array of a tuple; the others need no gradient."""

    def rotate(array: Any) -> Any:
        arrays = [array if k == i else x.array for k, x in enumerate(inputs.xs)]
        return j.call(tuple(arrays), inputs.pos, **inputs.spec)[i]

    return inputs._replace(xs=[inputs.xs[i]], in_tuple=False), [gs[i]], rotate


def _check_pulled(
    j: Judge, call: CallFactors, inputs: CallInputs, gs: list[Input], rotate: Callable[[Any], Any]
) -> bool:
    """Judge the value and the gradient of a function of x, one array or a tuple."""
    xs, cotangents = [x.array for x in inputs.xs], [g.array for g in gs]
    x, g = (tuple(xs), tuple(cotangents)) if inputs.in_tuple else (xs[0], cotangents[0])
    with _unwritten(j, x=xs, pos=[inputs.pos], **{"the cotangent": cotangents}):
        try:
            y, pull = j.lib.pullback(rotate, x)
            if call.gradient == "later":
                later = make(j, call.replace(reach=min(4001, j.target.reach)))
                j.lib.pullback(lambda array: j.call(array, later.pos, **later.spec), later.xs[0].array)
        except Exception as error:
            if not _refuses_gradient(j, error):
                raise
            return False
        pulled = _pulled(j, pull, g, twice=call.gradient == "twice")
        with named(VALUE):
            for array, original in zip(y if inputs.in_tuple else [y], inputs.xs, strict=True):
                j.check_kind(array, original)
                j.check_values(j.numbers(array), original, inputs.numbers, **inputs.spec)
        for gradient in pulled:
            with named(GRADIENT):
                for i, array in enumerate(gradient if inputs.in_tuple else [gradient]):
                    check_adjoint(j, array, inputs.xs[i], gs[i], inputs.numbers, **inputs.spec)
    return True


def _pulled(j: Judge, pull: Callable[[Any], Any], cotangent: Any, twice: bool) -> Sequence[Any]:
    """Return the gradient asked for once; or twice, unless the target frees its saved arrays after one."""
    if twice:
        with suppress(Exception):  # compiled code may free its saved arrays
            return list(j.lib.pulled_twice(pull, cotangent))
    return [pull(cotangent)]


def _cotangent(j: Judge, g: Input, layout: str) -> Input:
    """Return a cotangent in memory of a layout; for "sum", one number broadcast."""
    if layout != "sum":
        return with_layout(j, g, layout)[0]
    unit = j.array(np.ones((1,) * g.values.ndim), g.dtype)
    return Input(j.lib.expanded(unit.array, g.values.shape), np.ones(g.values.shape), g.dtype)


@contextmanager
def _unwritten(j: Judge, **named: Sequence[Any]) -> Iterator[None]:
    """Assert that the code inside writes none of these arrays, nor changes their shapes."""
    arrays = [(name, array) for name, group in named.items() for array in group if j.lib.owns(array)]
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


def _check_second_gradient(j: Judge, inputs: CallInputs, g: Input, h: Input) -> bool:
    """Judge the gradient of a gradient by its cotangent g; return False if it is refused with an error."""
    x, pos = inputs.xs[0].array, inputs.pos
    try:
        pulled = j.lib.second_gradient(lambda array: j.call(array, pos, **inputs.spec), x, g.array, h.array)
    except Exception:  # code that saves no second gradient may say so
        return False
    assert pulled is not None, "its part through the call is left out, without an error"
    j.check_kind(pulled, h)
    j.check_values(j.numbers(pulled), h, inputs.numbers, _of_gradients(j, "own"), **inputs.spec)
    return True


def _of_gradients(j: Judge, arithmetic: str) -> Accuracy:
    """Return the accuracy of gradients: derivatives of other code add products in the dtype of x."""
    accuracy: Accuracy = j.target.accuracy
    if accuracy.angles == "exact" or accuracy.arithmetic == "own":
        return accuracy
    return accuracy._replace(arithmetic=arithmetic)


# ---- refused gradients ----


def _refuses_gradient(j: Judge, error: Exception) -> bool:
    """Return whether a call whose gradient is recorded is refused: the plain call is not."""
    if j.target.declared or isinstance(error, AssertionError | EndingError | Declined | CannotCompile):
        return False
    if takes_gradient(j, j.dtype):
        j.calls.refused.append(f"{one_line(error)}; while a gradient is recorded")
        return True
    return False


def takes_gradient(j: Judge, dtype: str) -> bool:
    """Return whether the plain call in a dtype is served while its gradient is recorded."""
    x, pos, spec = arguments_of(j, f"dtype={dtype}")
    try:
        j.lib.pullback(lambda array: j.bare_call(array, pos, dict(spec)), x)
    except Exception:  # the target's own
        return False
    return True
