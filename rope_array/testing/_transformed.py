"""Calls that the library transforms: compiled, mapped, with a derivative.

A transform makes a `Program` of a call. JAX compiles the programs of many calls as one, in less time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache, partial, wraps
from typing import Any, NamedTuple

import numpy as np

from ._call import CallInputs, make
from ._claims import one_line
from ._factors import CallFactors
from ._failure import GRADIENT, named
from ._gradients import check_adjoint
from ._judge import Judge
from ._libraries import JaxLibrary
from ._modes import jvp, vjp, vmap
from ._named_values import arrays_in
from ._observe import judge_results
from ._refused import Declined, EndingError, Refused


class Program(NamedTuple):
    """A transformed call: the function, its arguments, and a function that judges its results."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    judge: Callable[[Any], Any]


Transform = Callable[[Judge, CallFactors, int], Program]
# Makes and judges one call; returns False if the target refused it. The last argument is a seed.
Context = Callable[[Judge, CallFactors, int], bool]


def may_refuse(context: Context) -> Context:
    """Return a context in which an exception is a refusal, unless the target declares its claims."""

    @wraps(context)
    def checked(j: Judge, call: CallFactors, seed: int = 0) -> bool:
        try:
            return context(j, call, seed)
        except Exception as error:
            declared = j.target.declared and not isinstance(error, Declined)
            if declared or isinstance(error, AssertionError | EndingError):
                raise
            if not isinstance(error, Refused):  # `Judge.call` has noted it
                j.calls.refused.append(one_line(error))
            return False

    return checked


def is_one_program(j: Judge) -> bool:
    """Return whether the transformed calls of a check are compiled as one program."""
    return isinstance(j.lib, JaxLibrary) and j.claims("jit")


class Transformed:
    """The context of a transform."""

    def __init__(self, transform: Transform):
        self.transform = transform

    def __call__(self, j: Judge, call: CallFactors, seed: int = 0) -> bool:
        return self.of_calls(j, [call])(j, call, seed)

    def of_calls(self, j: Judge, calls: Sequence[CallFactors]) -> Context:
        """Return this context with the results of calls that are compiled as one program."""
        programs = {call: self.transform(j, call, seed) for seed, call in enumerate(calls)}
        run: dict[CallFactors, Callable[[], Any]]
        run = {call: partial(program.function, *program.arguments) for call, program in programs.items()}
        if is_one_program(j):
            run = _compiled_as_one(j, programs)

        def checked(j: Judge, call: CallFactors, seed: int) -> bool:
            if call not in programs:
                return self(j, call, seed)
            programs[call].judge(run[call]())
            return True

        return may_refuse(checked)


def _compiled_as_one(j: Judge, programs: dict[CallFactors, Program]) -> dict[CallFactors, Callable[[], Any]]:
    """Compile and run programs as one; return a function for each, which returns or raises its result."""
    errors: dict[CallFactors, Exception] = {}

    def run(arguments: list[tuple[Any, ...]]) -> list[Any]:
        outputs: list[Any] = []
        for (call, program), args in zip(programs.items(), arguments, strict=True):
            try:
                outputs.append(program.function(*args))
            except Exception as error:  # `result_of` raises it
                errors[call] = error
                outputs.append(None)
        return outputs

    try:
        outputs = j.lib.traced(run)([program.arguments for program in programs.values()])
    except Exception:  # compiled by itself, the program at fault raises it
        return {
            call: partial(j.lib.traced(program.function), *program.arguments)
            for call, program in programs.items()
        }
    by_call = dict(zip(programs, outputs, strict=True))

    def result_of(call: CallFactors) -> Any:
        if call in errors:
            raise errors[call]
        return by_call[call]

    return {call: partial(result_of, call) for call in programs}


def _call_of(j: Judge, inputs: CallInputs) -> Callable[..., Any]:
    return lambda x, pos: j.call(x, pos, **inputs.spec)


# ---- compiled ----


def _traced_call(j: Judge, inputs: CallInputs, by_itself: bool = False) -> Callable[..., Any]:
    """Return the compiled function of a call; uncompiled if one program compiles all calls.

    Its arguments are x, the positions, and the arrays in the fields: all of them are traced.
    """
    # Not `j.call`: a compiler may refuse its other work.
    spec = j.fit(inputs.spec)
    names = [*arrays_in(spec)]

    def call(x: Any, pos: Any, *arrays: Any) -> Any:
        return j.target.call(x, pos, **{**spec, **dict(zip(names, arrays, strict=True))})

    return call if is_one_program(j) and not by_itself else j.lib.traced(call)


def _compiled(j: Judge, call: CallFactors, seed: int) -> Program:
    inputs = make(j, call, seed)
    arguments = inputs.x.array, inputs.pos, *arrays_in(inputs.spec).values()
    return Program(_traced_call(j, inputs), arguments, partial(judge_results, j, inputs))


def _compiled_gradient(j: Judge, call: CallFactors, seed: int) -> Program:
    inputs, (g,) = make(j, call, seed), make(j, call, seed + 1).xs
    # Without fields it is the gradient of a compiled call; with fields JAX compiles the gradient.
    traced = _traced_call(j, inputs, by_itself=not inputs.spec)

    def value_and_gradient(x: Any, pos: Any, cotangent: Any, *arrays: Any) -> tuple[Any, Any]:
        y, pull = j.lib.pullback(lambda array: traced(array, pos, *arrays), x)
        return y, pull(cotangent)

    def judge(outputs: tuple[Any, Any]) -> None:
        judge_results(j, inputs, outputs[0])
        with named(GRADIENT):
            check_adjoint(j, outputs[1], inputs.xs[0], g, inputs.numbers, **inputs.spec)

    arguments = inputs.x.array, inputs.pos, g.array, *arrays_in(inputs.spec).values()
    return Program(value_and_gradient, arguments, judge)


@lru_cache(maxsize=2)
def _function_of(j: Judge, names: tuple[str, ...]) -> Callable[..., Any]:
    return j.lib.traced(
        lambda x, pos, *arrays: j.target.call(x, pos, **dict(zip(names, arrays, strict=True)))
    )


@may_refuse
def check_compiled_in_turn(j: Judge, call: CallFactors, seed: int = 0) -> bool:
    """Judge a call, with no fields but arrays, of the compiled function that all calls of a check share."""
    inputs = make(j, call, seed)
    arrays = arrays_in(inputs.spec)
    judge_results(j, inputs, _function_of(j, (*arrays,))(inputs.x.array, inputs.pos, *arrays.values()))
    return True


# ---- mapped ----

# The largest position of each mapped call, if positions are mapped.
_REACHES = (300, 4001, 17, 12345)


def _mapped(
    j: Judge, call: CallFactors, seed: int, x_axes: Sequence[int | None] = (0,), with_positions: bool = False
) -> Program:
    """Return a call mapped over an axis of x and over positions, or over two axes of x by a map each.

    An axis of None is for one x at mapped positions.
    """
    reaches = [min(reach, j.target.reach) if with_positions else call.reach for reach in _REACHES]
    mapped_inputs = [make(j, call.replace(reach=reach), seed + i) for i, reach in enumerate(reaches)]
    if x_axes == (None,):
        mapped_inputs = [inputs._replace(xs=mapped_inputs[0].xs) for inputs in mapped_inputs]
    values = np.stack([inputs.xs[0].values for inputs in mapped_inputs])
    stacked = values.reshape(*([2] * len(x_axes) if len(x_axes) > 1 else [4]), *values.shape[1:])
    axis = x_axes[0] or 0
    x = j.array(np.moveaxis(stacked, 0, axis), call.dtype)
    numbers = np.stack([inputs.numbers for inputs in mapped_inputs])
    pos = j.pos(numbers, call.kind) if with_positions else mapped_inputs[0].pos
    function = _call_of(j, mapped_inputs[0])
    for x_axis in x_axes:
        function = vmap(j.lib, function, (x_axis, 0 if with_positions else None), axis)

    where = "vmap over positions" if x_axes == (None,) else f"vmap over axis {axis} of x"

    def judge(y: Any) -> None:
        with named(where + ", twice" * (len(x_axes) - 1)):
            j.check_kind(y, x)
            rotated = np.moveaxis(j.numbers(y), axis, 0).reshape(values.shape)
            for inputs, y_numbers in zip(mapped_inputs, rotated, strict=True):
                j.check_values(y_numbers, inputs.xs[0], inputs.numbers, **inputs.spec)

    return Program(function, (mapped_inputs[0].xs[0].array if x_axes == (None,) else x.array, pos), judge)


def joined_programs(*programs: Program) -> Program:
    """Return several programs as one."""

    def function(*arguments: tuple[Any, ...]) -> list[Any]:
        return [program.function(*args) for program, args in zip(programs, arguments, strict=True)]

    def judge(outputs: list[Any]) -> None:
        for program, output in zip(programs, outputs, strict=True):
            program.judge(output)

    return Program(function, tuple(program.arguments for program in programs), judge)


def _has_fields(j: Judge, call: CallFactors) -> bool:
    """Return whether a call differs from the plain one, except in its largest position."""
    return bool(call.differing(j.plain.replace(reach=call.reach)))


def _mapped_over_x(j: Judge, call: CallFactors, seed: int) -> Program:
    """Return a call mapped over axis 1 of x; a call without fields over other axes, and over two, too."""
    over = partial(_mapped, j, call, seed)
    if _has_fields(j, call):
        return over((1,))
    return joined_programs(*(over(axes) for axes in ((0,), (1,), (2,), (0, 0))))


def _mapped_over_positions(j: Judge, call: CallFactors, seed: int) -> Program:
    """Return a call mapped over x and positions; a call without fields over positions alone, too."""
    over = partial(_mapped, j, call, seed, with_positions=True)
    return over() if _has_fields(j, call) else joined_programs(over(), over((None,)))


# ---- derivatives ----


def _mapped_gradient(j: Judge, call: CallFactors, seed: int) -> Program:
    mapped_inputs = [make(j, call, seed + i) for i in range(8)]
    x, g = (
        j.array(np.stack([inputs.xs[0].values for inputs in four]), call.dtype)
        for four in (mapped_inputs[:4], mapped_inputs[4:])
    )
    rotate = _call_of(j, mapped_inputs[0])

    def pull(array: Any, cotangent: Any) -> Any:
        return vjp(j.lib, lambda element: rotate(element, mapped_inputs[0].pos), array, cotangent)

    def judge(pulled: Any) -> None:
        j.check_kind(pulled, x)
        for i, inputs in enumerate(mapped_inputs[4:]):
            cotangent = inputs.xs[0]
            check_adjoint(j, pulled[i], cotangent, cotangent, inputs.numbers, **inputs.spec)

    return Program(vmap(j.lib, pull, (0, 0)), (x.array, g.array), judge)


def _with_derivative(j: Judge, call: CallFactors, seed: int) -> Program:
    inputs, along = make(j, call, seed), make(j, call, seed + 1)
    rotate = _call_of(j, inputs)

    def function(x: Any, tangent: Any, pos: Any) -> tuple[Any, Any]:
        return jvp(j.lib, lambda array: rotate(array, pos), x, tangent)

    def judge(outputs: tuple[Any, Any]) -> None:
        judge_results(j, inputs, outputs[0])
        assert outputs[1] is not None, "the result has no derivative"
        with named("the derivative"):
            judge_results(j, along, outputs[1])

    return Program(function, (inputs.x.array, along.x.array, inputs.pos), judge)


COMPILED = Transformed(_compiled)
COMPILED_GRADIENT = Transformed(_compiled_gradient)
MAPPED = Transformed(_mapped_over_x)
MAPPED_WITH_POSITIONS = Transformed(_mapped_over_positions)
MAPPED_GRADIENT = Transformed(_mapped_gradient)
DERIVATIVE = Transformed(_with_derivative)
