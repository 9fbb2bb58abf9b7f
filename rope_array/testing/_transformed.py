"""Calls that the library transforms: compiled, mapped, with a derivative.

A transform makes a `Program` of a call. JAX compiles the programs of many calls as one, in less time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache, partial, wraps
from typing import Any, NamedTuple

import numpy as np

from ._call import Made, make, plain_call
from ._claims import one_line
from ._factors import Call
from ._gradients import check_adjoint
from ._judge import Judge
from ._libraries import Jax
from ._modes import jvp, vjp, vmap
from ._observe import results_of
from ._own import Declined
from ._verdict import Fault


class Program(NamedTuple):
    """A transformed call: the function, its arguments, and a function that judges its results."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    judge: Callable[[Any], None]


Transform = Callable[[Judge, Call, int], Program]
# Makes and judges one call; returns False if the target refused it. The last argument is a seed.
Context = Callable[[Judge, Call, int], bool]


@contextmanager
def named(where: str) -> Iterator[None]:
    """Name where a call is made in the message of its fault."""
    try:
        yield
    except NotImplementedError:  # a refusal
        raise
    except Exception as error:
        raise Fault.of(error, context=where) from error


def may_refuse(context: Context) -> Context:
    """Return a context in which an exception is a refusal, unless the target declares its claims."""

    @wraps(context)
    def checked(j: Judge, call: Call, seed: int = 0) -> bool:
        try:
            return context(j, call, seed)
        except Exception as error:
            declared = j.target.declared and not isinstance(error, Declined)
            if declared or isinstance(error, AssertionError):
                raise
            j.calls.refused.append(one_line(error))
            return False

    return checked


def is_one_program(j: Judge) -> bool:
    """Return whether the transformed calls of a check are compiled as one program."""
    return isinstance(j.lib, Jax) and j.claims("jit")


class Transformed:
    """The context of a transform."""

    def __init__(self, transform: Transform):
        self.transform = transform

    def __call__(self, j: Judge, call: Call, seed: int = 0) -> bool:
        return self.of_calls(j, [call])(j, call, seed)

    def of_calls(self, j: Judge, calls: Sequence[Call]) -> Context:
        """Return this context with the results of calls that are compiled as one program."""
        programs = {call: self.transform(j, call, seed) for seed, call in enumerate(calls)}
        run: dict[Call, Callable[[], Any]]
        run = {call: partial(program.function, *program.arguments) for call, program in programs.items()}
        if is_one_program(j):
            run = _compiled_as_one(j, programs)

        def checked(j: Judge, call: Call, seed: int) -> bool:
            if call not in programs:
                return self(j, call, seed)
            programs[call].judge(run[call]())
            return True

        return may_refuse(checked)


def _compiled_as_one(j: Judge, programs: dict[Call, Program]) -> dict[Call, Callable[[], Any]]:
    """Compile and run programs as one; return a function for each, which returns or raises its result."""
    errors: dict[Call, Exception] = {}

    def run(arguments: list[tuple[Any, ...]]) -> list[Any]:
        results: list[Any] = []
        for (call, program), given in zip(programs.items(), arguments, strict=True):
            try:
                results.append(program.function(*given))
            except Exception as error:  # `result_of` raises it
                errors[call] = error
                results.append(None)
        return results

    try:
        results = j.lib.traced(run)([program.arguments for program in programs.values()])
    except Exception:  # compiled by itself, the program at fault raises it
        return {
            call: partial(j.lib.traced(program.function), *program.arguments)
            for call, program in programs.items()
        }
    by_call = dict(zip(programs, results, strict=True))

    def result_of(call: Call) -> Any:
        if call in errors:
            raise errors[call]
        return by_call[call]

    return {call: partial(result_of, call) for call in programs}


def judge_results(j: Judge, made: Made, y: Any) -> None:
    """Judge the result of a made call: its kind, and its values."""
    for each, x in zip(results_of(j, made, y), made.xs, strict=True):
        j.check_values_at(j.numbers(each), x, made.numbers, **made.spec)


def _call_of(j: Judge, made: Made) -> Callable[..., Any]:
    return lambda x, pos: j.call(x, pos, **made.spec)


# ---- compiled ----


def _traced_call(j: Judge, made: Made, by_itself: bool = False) -> Callable[..., Any]:
    """Return the compiled function of a call; not compiled by itself if it becomes a part of one program."""
    # Not `j.call`: a compiler may refuse its other work.
    spec = j.fit(made.spec)

    def call(x: Any, pos: Any) -> Any:
        return j.target.call(x, pos, **spec)

    return call if is_one_program(j) and not by_itself else j.lib.traced(call)


def _compiled(j: Judge, call: Call, seed: int) -> Program:
    made = make(j, call, seed)
    return Program(_traced_call(j, made), (made.x.array, made.pos), partial(judge_results, j, made))


def _compiled_gradient(j: Judge, call: Call, seed: int) -> Program:
    made, (g,) = make(j, call, seed), make(j, call, seed + 1).xs
    # Without fields it is the gradient of a compiled call; with fields JAX compiles the gradient.
    traced = _traced_call(j, made, by_itself=not made.spec)

    def value_and_gradient(x: Any, pos: Any, cotangent: Any) -> tuple[Any, Any]:
        y, pull = j.lib.pullback(lambda array: traced(array, pos), x)
        return y, pull(cotangent)

    def judge(results: tuple[Any, Any]) -> None:
        judge_results(j, made, results[0])
        with named("the gradient"):
            check_adjoint(j, results[1], made.xs[0], g, made.numbers, **made.spec)

    return Program(value_and_gradient, (made.x.array, made.pos, g.array), judge)


@lru_cache(maxsize=1)
def _function_of(j: Judge) -> Callable[..., Any]:
    return j.lib.traced(lambda x, pos: j.target.call(x, pos))


@may_refuse
def check_compiled_in_turn(j: Judge, call: Call, seed: int = 0) -> bool:
    """Judge a call, without fields, of the compiled function that all calls of a check share."""
    made = make(j, call, seed)
    judge_results(j, made, _function_of(j)(made.x.array, made.pos))
    return True


# ---- mapped ----

# The largest position of each mapped call, if positions are mapped.
_REACHES = (300, 4001, 17, 12345)


def _mapped(
    j: Judge, call: Call, seed: int, x_axes: Sequence[int | None] = (0,), with_positions: bool = False
) -> Program:
    """Return a call mapped over an axis of x and over positions, or over two axes of x by a map each.

    An axis of None is for one x at mapped positions.
    """
    reaches = [min(reach, j.target.reach) if with_positions else call.reach for reach in _REACHES]
    made = [make(j, call.replace(reach=reach), seed + i) for i, reach in enumerate(reaches)]
    if x_axes == (None,):
        made = [each._replace(xs=made[0].xs) for each in made]
    values = np.stack([each.xs[0].values for each in made])
    whole = values.reshape(*([2] * len(x_axes) if len(x_axes) > 1 else [4]), *values.shape[1:])
    axis = x_axes[0] or 0
    x = j.array(np.moveaxis(whole, 0, axis), call.dtype)
    numbers = np.stack([each.numbers for each in made])
    pos = j.pos(numbers, call.kind) if with_positions else made[0].pos
    function = _call_of(j, made[0])
    for each in x_axes:
        function = vmap(j.lib, function, (each, 0 if with_positions else None), axis)

    where = "vmap over positions" if x_axes == (None,) else f"vmap over axis {axis} of x"

    def judge(y: Any) -> None:
        with named(where + ", twice" * (len(x_axes) - 1)):
            j.check_kind(y, x)
            results = np.moveaxis(j.numbers(y), axis, 0).reshape(values.shape)
            for one, result in zip(made, results, strict=True):
                j.check_values_at(result, one.xs[0], one.numbers, **one.spec)

    return Program(function, (made[0].xs[0].array if x_axes == (None,) else x.array, pos), judge)


def joined(*programs: Program) -> Program:
    """Return several programs as one."""

    def function(*arguments: tuple[Any, ...]) -> list[Any]:
        return [each.function(*given) for each, given in zip(programs, arguments, strict=True)]

    def judge(results: list[Any]) -> None:
        for each, result in zip(programs, results, strict=True):
            each.judge(result)

    return Program(function, tuple(each.arguments for each in programs), judge)


def _has_fields(j: Judge, call: Call) -> bool:
    """Return whether a call differs from the plain one, except in its largest position."""
    return bool(call.differing(plain_call(j).replace(reach=call.reach)))


def _mapped_over_x(j: Judge, call: Call, seed: int) -> Program:
    """Return a call mapped over axis 1 of x; a call without fields over other axes, and over two, too."""
    over = partial(_mapped, j, call, seed)
    if _has_fields(j, call):
        return over((1,))
    return joined(*(over(axes) for axes in ((0,), (1,), (2,), (0, 0))))


def _mapped_over_positions(j: Judge, call: Call, seed: int) -> Program:
    """Return a call mapped over x and positions; a call without fields over positions alone, too."""
    over = partial(_mapped, j, call, seed, with_positions=True)
    return over() if _has_fields(j, call) else joined(over(), over((None,)))


# ---- derivatives ----


def _mapped_gradient(j: Judge, call: Call, seed: int) -> Program:
    made = [make(j, call, seed + i) for i in range(8)]
    x, g = (
        j.array(np.stack([each.xs[0].values for each in some]), call.dtype) for some in (made[:4], made[4:])
    )
    rotate = _call_of(j, made[0])

    def pull(array: Any, cotangent: Any) -> Any:
        return vjp(j.lib, lambda one: rotate(one, made[0].pos), array, cotangent)

    def judge(pulled: Any) -> None:
        j.check_kind(pulled, x)
        for i, each in enumerate(made[4:]):
            one = each.xs[0]
            check_adjoint(j, pulled[i], one, one, each.numbers, **each.spec)

    return Program(vmap(j.lib, pull, (0, 0)), (x.array, g.array), judge)


def _with_derivative(j: Judge, call: Call, seed: int) -> Program:
    made, along = make(j, call, seed), make(j, call, seed + 1)
    rotate = _call_of(j, made)

    def function(x: Any, tangent: Any, pos: Any) -> tuple[Any, Any]:
        return jvp(j.lib, lambda array: rotate(array, pos), x, tangent)

    def judge(results: tuple[Any, Any]) -> None:
        judge_results(j, made, results[0])
        assert results[1] is not None, "the result has no derivative"
        with named("the derivative"):
            judge_results(j, along, results[1])

    return Program(function, (made.x.array, along.x.array, made.pos), judge)


COMPILED = Transformed(_compiled)
COMPILED_GRADIENT = Transformed(_compiled_gradient)
MAPPED = Transformed(_mapped_over_x)
MAPPED_WITH_POSITIONS = Transformed(_mapped_over_positions)
MAPPED_GRADIENT = Transformed(_mapped_gradient)
DERIVATIVE = Transformed(_with_derivative)
