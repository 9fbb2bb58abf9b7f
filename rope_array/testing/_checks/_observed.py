"""The checks of the observers, which watch every call of every row, and some calls made for them."""

from collections.abc import Callable
from contextlib import suppress

from rope_array.testing._cover import Cover
from rope_array.testing._factors import FEW_FIELDS, CallFactors, read_call
from rope_array.testing._failure import Failure
from rope_array.testing._judge import Check, Judge
from rope_array.testing._observe import OBSERVED_CHECKS, OBSERVERS, check_call
from rope_array.testing._shrink import simplest

# Code chooses by dtype, field, memory and size: each alone, then some together.
_LEVELS = {
    **FEW_FIELDS, "rotary_dim": [None, 8, 0], "in_tuple": [None, True, "three", "twice"], "dtype": True,
    "layout": True, "width": [16, 64], "positions": ["S", "BS", "BHS", "", "B1"], "reach": [100, 0],
    "rows": [(2, 3, 5), (1, 1, 5), (2, 3, 1), (1, 2, 130), (1, 4, 131), (5,), (3, 5)],
    "kind": ["int64", "int32", "float"],
}  # fmt: skip
_COVERS = (
    Cover(_LEVELS, [(name,) for name in _LEVELS], alone=True),
    Cover(
        {name: _LEVELS[name] for name in
         ("dtype", "rotary_dim", "layout", "rows", "width", "pairing", "reach", "positions", "kind")},
        [("dtype", "rotary_dim"), ("dtype", "layout"), ("rows", "layout"), ("width", "layout"),
         ("rows", "dtype", "pairing"), ("reach", "rows", "positions"), ("kind", "rows"),
         ("layout", "rotary_dim"), ("reach", "dtype", "rotary_dim")],
    ),
)  # fmt: skip
# Calls where each is compiled.
_FEW = 12
# Costly observers watch the first calls, then one in so many.
_ALL_WATCHED, _THEN_ONE_IN = 80, 4


def observed_checks() -> list[Check]:
    """Return the check of each observer."""
    return [
        Check(observer.check, observer.requirement, observer.needs, _check, (observer.check,))
        for observer in OBSERVERS
    ]


def _check(j: Judge, name: str) -> None:
    if name not in j.observed and not j.is_observed:
        _observe(j)
    if name in j.observed:
        j.reported.add(name)
        fault = j.observed[name]
        call = read_call(fault.call or "", j.plain)
        raise simplest(j, call, fault, _watched_for(name))


def _watched_for(name: str) -> Callable[[Judge, CallFactors, int], bool]:
    """Return a context that makes a call for one observer, and raises the fault that it sees."""

    def watched(j: Judge, call: CallFactors, seed: int = 0) -> bool:
        observed_before = j.observed
        j.observed = {check: Failure("") for check in OBSERVED_CHECKS if check != name}
        try:
            with j.budget.watching(1, judges_values=False), suppress(Exception):
                check_call(j, call, seed)
            if name in j.observed:
                raise j.observed[name]
        finally:
            j.observed = observed_before
        return True

    return watched


def _observe(j: Judge) -> None:
    """Make calls that all observers watch; other checks judge their values."""
    j.is_observed = True
    calls = j.budget.few((call for cover in _COVERS for call in cover.calls(j)), _FEW)
    for seed, call in enumerate(calls):
        every = 1 if seed < _ALL_WATCHED else _THEN_ONE_IN
        every = j.budget.watched_every if j.budget.is_slow else every
        with j.budget.watching(every, judges_values=False), suppress(Exception):  # other checks report it
            check_call(j, call, seed)
    if not j.calls.served:
        j.raise_refused("refuses every call")
