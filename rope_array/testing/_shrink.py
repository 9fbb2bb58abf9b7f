"""Find the simplest call that fails like another."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import takewhile
from operator import ne
from typing import Any

from ._call import fits
from ._factors import FACTORS, CallFactors
from ._failure import REPEATED, Failure
from ._judge import Judge
from ._observe import check_call

# Calls tried for one failure; fewer if each is compiled.
_TRIES, _FEW_TRIES = 80, 15


class _Trials:
    """Simpler calls of a target, and how each of them failed."""

    def __init__(self, j: Judge, context: Callable[[Judge, CallFactors, int], bool]):
        self.judge, self.context, self.left = j, context, _FEW_TRIES if j.budget.is_slow else _TRIES
        self.faults: dict[CallFactors, Failure | None] = {}

    def fails(self, call: CallFactors) -> bool:
        """Return whether a call is valid and fails; False if no more calls are left."""
        if call not in self.faults:
            if not self.left or not fits(self.judge, call):
                return False
            self.left -= 1
            self.faults[call] = self._fault_of(call)
        return self.faults[call] is not None

    def _fault_of(self, call: CallFactors) -> Failure | None:
        budget = self.judge.budget
        # Only a fault that an observer saw is looked for with costly observers.
        with budget.watching(1 if budget.watched_every == 1 else 0, budget.judges_values):
            try:
                self.context(self.judge, call, 0)
            except Exception as error:
                return Failure.of(error)
        return None


def simplest(
    j: Judge,
    call: CallFactors,
    error: BaseException,
    context: Callable[[Judge, CallFactors, int], bool] = check_call,
) -> Failure:
    """Return the fault of the simplest call that fails like a call, and the nearest calls that are right."""
    plain = j.plain
    if not j.explains:
        return Failure.of(error, call=call.text(plain))
    trials = _Trials(j, context)
    if not trials.fails(call):
        return Failure.of(error, call=call.text(plain), nearest=REPEATED)
    simplest_call = simplified(call, plain, trials.fails)
    nearest = tuple(_right_neighbours(simplest_call, plain, trials))
    return Failure.of(trials.faults[simplest_call] or error, call=simplest_call.text(plain), nearest=nearest)


def _right_neighbours(call: CallFactors, plain: CallFactors, trials: _Trials) -> Iterator[str]:
    """Yield the factors' values nearest to the call's with which it passes."""
    right = [tried for tried, fault in trials.faults.items() if fault is None]
    for name in call.differing(plain):
        value = getattr(call, name)
        if near := [tried for tried in right if tried.differing(call) == [name]]:
            best = min(near, key=lambda tried: _distance(getattr(tried, name), value))
            yield f"without {name}" if getattr(best, name) is None else f"with {best.text(call)}"


def _distance(a: Any, b: Any) -> float:
    if isinstance(a, tuple) and isinstance(b, tuple) and len(a) == len(b):
        return float(sum(abs(x - y) for x, y in zip(a, b, strict=True)))
    if isinstance(a, int | float) and isinstance(b, int | float):
        return float(abs(a - b))
    return 0.0 if a is None else 1.0


def simplified(call: CallFactors, plain: CallFactors, fails: Callable[[CallFactors], bool]) -> CallFactors:
    """Return the simplest call that fails: factors are dropped, then made simpler, one at a time."""
    while True:
        before = call
        for name in reversed(call.differing(plain)):
            simpler = call.replace(**{name: getattr(plain, name)})
            call = simpler if fails(simpler) else call
        for name in call.differing(plain):
            value = getattr(call, name)
            simpler_values = takewhile(partial(ne, value), FACTORS[name].simpler(value))
            tried = (call.replace(**{name: simpler_value}) for simpler_value in simpler_values)
            call = next(filter(fails, tried), call)
        if call == before:
            return call
