"""Find the simplest case that fails like another, and describe it."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from ._case import RULES, Case, check_case, every_width, first_dtype, fits, plain_case
from ._judge import Judge

# Calls tried for one failure; fewer if each is compiled.
_TRIES, _FEW_TRIES = 80, 15
# More calls for Hypothesis.
_POLISHING = 60


class _Trials:
    """Calls of a target with simpler cases, and how each of them failed."""

    def __init__(self, j: Judge):
        self.judge, self.left = j, _FEW_TRIES if j.lib.calls < 1000 or j.target.compiled else _TRIES
        self.messages: dict[Case, str] = {}

    def fails(self, case: Case) -> bool:
        """Return whether a case is valid and fails; False if no more calls are left."""
        if case not in self.messages:
            if not self.left or not fits(self.judge, case):
                return False
            self.left -= 1
            self.messages[case] = failure_of(self.judge, case)
        return bool(self.messages[case])


def failure_of(j: Judge, case: Case) -> str:
    """Return the message with which a case fails, or ""."""
    try:
        check_case(j, case)
    except Exception as error:
        return _message_of(error)
    return ""


def _message_of(error: BaseException) -> str:
    kind = "" if isinstance(error, AssertionError) else f"{type(error).__name__}: "
    return f"{kind}{error}" or type(error).__name__


def explained(j: Judge, case: Case, error: BaseException) -> str:
    """Return the message of a failed case: the simplest case that fails, what is right, and the error."""
    text, rest = simplest(j, case, error)
    return f"wrong with {text}{rest}" if text else f"the plain call is wrong{rest}"


def simplest(j: Judge, case: Case, error: BaseException, polish: bool = False) -> tuple[str, str]:
    """Return the simplest case that fails like a case, as text; then what is right, and the error.

    With `polish`, Hypothesis looks for a simpler one still, if it is installed.
    """
    plain = plain_case(j)
    if not j.explains:
        return case.text(plain), f": {_message_of(error)}"
    trials = _Trials(j)
    if not trials.fails(case):
        return case.text(plain), f", but not if the call is repeated: {_message_of(error)}"
    least = simplified(case, plain, trials.fails, every_width(j), first_dtype(j, case))
    if polish and trials.left and find_spec("hypothesis") is not None:
        trials.left = min(trials.left, _FEW_TRIES) if j.lib.calls < 1000 else _POLISHING
        least = _polished(least, plain, trials.fails)
    right = [*_right_neighbours(least, plain, trials)]
    beside = f"; right {', '.join(right)}" if right else ""
    return least.text(plain), f"{beside}: {trials.messages[least]}"


def _right_neighbours(case: Case, plain: Case, trials: _Trials) -> Iterator[str]:
    """Yield the factors' values nearest to the case's with which it passes."""
    for name in case.differing(plain):
        value = getattr(case, name)
        near = [one for one in trials.messages if one.differing(case) == [name] and not trials.messages[one]]
        if near:
            best = min(near, key=lambda one: _distance(getattr(one, name), value))
            yield f"without {name}" if getattr(best, name) is None else f"with {best.text(case)}"


def _distance(a: Any, b: Any) -> float:
    if isinstance(a, tuple) and isinstance(b, tuple) and len(a) == len(b):
        return float(sum(abs(x - y) for x, y in zip(a, b, strict=True)))
    if isinstance(a, int | float) and isinstance(b, int | float):
        return float(abs(a - b))
    return 0.0 if a is None else 1.0


def simplified(
    case: Case, plain: Case, fails: Callable[[Case], bool], widths: list[int], dtype: str = ""
) -> Case:
    """Return the simplest case that fails: factors are dropped, then sizes made smaller, one at a time.

    `dtype` is the dtype of the first array of a tuple.
    """
    while True:
        before = case
        alone = case._replace(in_tuple=None, dtype=dtype)
        case = alone if dtype and case.in_tuple and fails(alone) else case
        for name in reversed(case.differing(plain)):
            simpler = case._replace(**{name: getattr(plain, name)})
            case = simpler if fails(simpler) else case
        for smaller in (
            _plainer_numbers,
            _least_rows,
            _least_start,
            _least_width,
            _least_slice,
            _least_reach,
        ):
            case = smaller(case, plain, fails, widths)
        if case == before:
            return case


_PLAINER: dict[str, tuple[Any, ...]] = {
    "base": (500.0,),
    "attention_factor": (2.0,),
    "scaling": tuple(RULES),
    "gradient": ("contiguous",),
    "seq_axis": (-3,),
    "in_tuple": (True,),
}


def _plainer_numbers(case: Case, plain: Case, fails: Callable[[Case], bool], widths: list[int]) -> Case:
    for name, values in _PLAINER.items():
        if name in case.differing(plain) and getattr(case, name) not in values:
            found = (case._replace(**{name: value}) for value in values)
            case = next(filter(fails, found), case)
    return case


def _least_rows(case: Case, plain: Case, fails: Callable[[Case], bool], widths: list[int]) -> Case:
    """Return the case with the fewest rows along each axis; of those as few as usual, the usual number."""
    if case.rows == plain.rows:
        return case
    for axis in range(len(case.rows)):

        def sized(size: int, case: Case = case, axis: int = axis) -> Case:
            return case._replace(rows=(*case.rows[:axis], size, *case.rows[axis + 1 :]))

        size = _least(1, case.rows[axis], lambda size: fails(sized(size)))
        case = sized(size)
    return case


def _least_width(case: Case, plain: Case, fails: Callable[[Case], bool], widths: list[int]) -> Case:
    if case.width not in widths or case.width <= plain.width:
        return case
    low, high = (widths.index(width) for width in (plain.width, case.width))
    index = _least(low, high, lambda index: fails(case._replace(width=widths[index])))
    return case._replace(width=widths[index])


def _least_start(case: Case, plain: Case, fails: Callable[[Case], bool], widths: list[int]) -> Case:
    if not case.rotary_start:
        return case
    step = 1 if case.rotary_dim is not None else 2  # the rest of the head is even
    low = 1 if step == 1 or case.rotary_start % 2 else 2
    steps = (case.rotary_start - low) // step
    index = _least(0, steps, lambda index: fails(case._replace(rotary_start=low + step * index)))
    return case._replace(rotary_start=low + step * index)


def _least_slice(case: Case, plain: Case, fails: Callable[[Case], bool], widths: list[int]) -> Case:
    if case.rotary_dim is None:
        return case
    half = _least(1, case.rotary_dim // 2, lambda half: fails(case._replace(rotary_dim=2 * half)))
    return case._replace(rotary_dim=2 * half)


def _least_reach(case: Case, plain: Case, fails: Callable[[Case], bool], widths: list[int]) -> Case:
    if 0 <= case.reach <= plain.reach:
        return case
    sign = -1 if case.reach < 0 else 1
    low = 1 if sign < 0 else plain.reach + 1
    reach = _least(low, abs(case.reach), lambda reach: fails(case._replace(reach=sign * reach)))
    return case._replace(reach=sign * reach)


def _least(low: int, high: int, fails: Callable[[int], bool]) -> int:
    """Return the least failing number, if all numbers from there to `high` fail."""
    if high > low and fails(low):
        return low
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if fails(middle) else (middle, high)
    return high


def _polished(case: Case, plain: Case, fails: Callable[[Case], bool]) -> Case:
    """Return the simplest failing case that Hypothesis finds among the simpler ones, or the case itself."""
    hypothesis, strategies = import_module("hypothesis"), import_module("hypothesis.strategies")
    drawn = {name: _simpler_values(strategies, case, plain, name) for name in case.differing(plain)}
    settings = hypothesis.settings(
        database=None, deadline=None, max_examples=_POLISHING, suppress_health_check=[*hypothesis.HealthCheck]
    )
    simpler = strategies.fixed_dictionaries(drawn).map(lambda values: case._replace(**values))
    try:
        found: Case = hypothesis.find(simpler, fails, settings=settings, random=random.Random(0))
    except hypothesis.errors.HypothesisException:  # none was found
        return case
    return min(case, found, key=lambda one: (len(one.differing(plain)), sum(one.rows), one.rotary_dim or 0))


def _simpler_values(strategies: Any, case: Case, plain: Case, name: str) -> Any:
    """Return Hypothesis' strategy for the values of a factor from a plain one to the case's."""
    value, usual = getattr(case, name), getattr(plain, name)
    if name == "rows":
        return strategies.tuples(*(strategies.integers(1, size) for size in value))
    if name == "rotary_dim":
        return strategies.integers(1, value // 2).map(lambda half: 2 * half)
    return strategies.sampled_from([usual, value])
