"""Find the simplest case that fails like another, and describe it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from ._case import RULES, Case, check_case, claimed_widths, fits, plain_case
from ._judge import Judge

# Calls tried for one failure; fewer if each is compiled.
_TRIES, _FEW_TRIES = 80, 20


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


def simplest(j: Judge, case: Case, error: BaseException) -> tuple[str, str]:
    """Return the simplest case that fails like a case, as text; then what is right, and the error."""
    plain = plain_case(j)
    if not j.explains:
        return case.text(plain), f": {_message_of(error)}"
    trials = _Trials(j)
    if not trials.fails(case):
        return case.text(plain), f", but not if the call is repeated: {_message_of(error)}"
    least = simplified(case, plain, trials.fails, claimed_widths(j), j.dtypes[-1])
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
        for smaller in (_plainer_numbers, _least_rows, _least_width, _least_slice, _least_reach):
            case = smaller(case, plain, fails, widths)
        if case == before:
            return case


_PLAINER: dict[str, tuple[Any, ...]] = {
    "base": (500.0,),
    "attention_factor": (2.0,),
    "scaling": tuple(RULES),
    "gradient": ("contiguous",),
    "seq_axis": (-3,),
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
    for width in sorted(widths):
        if plain.width < width < case.width and fails(case._replace(width=width)):
            return case._replace(width=width)
    return case


def _least_slice(case: Case, plain: Case, fails: Callable[[Case], bool], widths: list[int]) -> Case:
    if case.rotary_dim is None:
        return case
    half = _least(1, case.rotary_dim // 2, lambda half: fails(case._replace(rotary_dim=2 * half)))
    return case._replace(rotary_dim=2 * half)


def _least_reach(case: Case, plain: Case, fails: Callable[[Case], bool], widths: list[int]) -> Case:
    if abs(case.reach) <= plain.reach:
        return case
    sign = -1 if case.reach < 0 else 1
    reach = _least(plain.reach + 1, abs(case.reach), lambda reach: fails(case._replace(reach=sign * reach)))
    return case._replace(reach=sign * reach)


def _least(low: int, high: int, fails: Callable[[int], bool]) -> int:
    """Return the least failing number, if all numbers from there to `high` fail."""
    if high > low and fails(low):
        return low
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if fails(middle) else (middle, high)
    return high
