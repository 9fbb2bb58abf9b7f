"""Random calls, and calls given as text: two checks that are run only if asked for."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ._call import every_width, fits, layouts_of
from ._cover import levels_of, resolved
from ._factors import FACTORS, FAR, NEAR, CallFactors, read_call
from ._failure import Failure
from ._judge import Check, Judge
from ._observe import check_call
from ._row import check_calls
from ._rules import RULES
from ._target import Target

# The most elements of x: a call takes milliseconds. One call in ten has more, as code chooses by size.
_MOST_ELEMENTS, _MANY_ELEMENTS = 2**15, 2**18
# The most elements of a call given by --case: larger arrays would fill the memory.
_MOST_GIVEN = 2**28
_SIZES = (1, 2, 3, 5, 8, 17, 33, 70, 130, 260, 520, 1030)
# Draws for one valid call.
_TRIES = 200


def extra_checks(
    examples: int = 0, seed: int = 0, cases: Iterable[str] = (), target: Target | None = None
) -> tuple[Check, ...]:
    """Return the checks ``examples`` and ``case``, each if it is asked for.

    The same seed draws the same calls on every machine, for the same claims. The library of a target has the
    layouts of x. Raise ValueError for a text that cannot be read, or a negative number.
    """
    texts = (cases,) if isinstance(cases, str) else tuple(cases)
    if examples < 0:
        raise ValueError(f"examples is {examples}; give the number of random calls, 0 or more")
    for text in texts:
        layout = read_call(text, CallFactors()).layout
        if target and layout and layout not in (layouts := layouts_of(target.arrays)):
            raise ValueError(f"case: unknown layout {layout!r}; give one of {', '.join(layouts)}")
    drawn = Check(
        "examples", "Calls drawn at random are correct.", ("values",), _check_examples, (examples, seed)
    )
    case_check = Check("case", "The calls of --case are correct.", ("values",), _check_given, (texts,))
    return (*([drawn] if examples else ()), *([case_check] if texts else ()))


def _check_examples(j: Judge, examples: int, seed: int) -> None:
    check_calls(j, draw_cases(j, examples, seed), None, _check_observed_call)


def _check_given(j: Judge, texts: Sequence[str]) -> None:
    layouts, cases = levels_of(j, {"layout": True})["layout"], []
    for text in texts:
        case = resolved(j, read_call(text, j.plain))
        claimed = fits(j, case) and case.layout in layouts
        assert claimed, f"case {text!r}: its values contradict each other, or the target's claims"
        count = math.prod(case.rows) * case.width
        assert count <= _MOST_GIVEN, f"case {text!r}: x has {count:,} elements; give {_MOST_GIVEN:,} at most"
        cases.append(case)
    with j.budget.watching(1):
        check_calls(j, cases, None, _check_observed_call)


def _check_observed_call(j: Judge, call: CallFactors, seed: int = 0) -> bool:
    """Make, watch and judge a call; raise an observer's fault, unless its own check reported it."""
    # Observers that saw a fault do not look again.
    j.observed = {check: fault for check, fault in j.observed.items() if check in j.reported}
    served = check_call(j, call, seed)
    for check, fault in j.observed.items():
        if check not in j.reported:
            j.budget.watched_every = 1  # a simpler call is watched, too
            raise Failure.of(fault, context=check)
    return served


def draw_cases(j: Judge, examples: int, seed: int) -> Iterable[CallFactors]:
    """Yield random calls of the claimed fields, dtypes, shapes and positions.

    Each call has its own generator, so that call 5 is the same for any number of examples.
    """
    drawn = (_draw_call(j, _Draw(f"{seed}: {number}")) for number in range(examples))
    return [case for case in drawn if case is not None]


class _Draw(random.Random):
    """Random numbers that depend on a text only: `random` is the same in every version of Python."""

    def chance(self, probability: float) -> bool:
        """Return True with a probability."""
        return self.random() < probability

    def one(self, values: Sequence[Any]) -> Any:
        """Return one of some values."""
        return values[int(self.random() * len(values))]

    def whole(self, low: int, high: int) -> int:
        """Return an integer from `low` to `high`."""
        return low + int(self.random() * (high - low + 1))

    def magnitude(self, low: float, high: float) -> float:
        """Return a number, each order of magnitude as likely as another."""
        return float(f"{low * (high / low) ** self.random():.4g}")


def _draw_call(j: Judge, draw: _Draw) -> CallFactors | None:
    """Return a valid call, or None if none is found."""
    levels = levels_of(j, dict.fromkeys(FACTORS, True))
    for _ in range(_TRIES):
        values = {name: draw.one(levels[name]) for name in FACTORS if draw.chance(_CHANCES.get(name, 0.25))}
        values["width"] = j.width if draw.chance(0.4) else int(draw.one(every_width(j)))
        values["rows"] = _draw_rows(j, draw, values["width"])
        values["reach"] = _draw_reach(j, draw)
        for name in _NUMBERS:
            if name in values and j.claims(name):
                values[name] = _NUMBERS[name](draw, values["width"])
        call = resolved(j, j.plain.replace(**values))
        if fits(j, call):
            return call
    return None


# The probability that a factor is not plain, where it is not one in four.
_CHANCES = {
    "dtype": 0.7, "positions": 0.5, "kind": 0.5, "order": 0.5, "layout": 0.2, "pos_layout": 0.1,
    "numbers": 0.1, "in_tuple": 0.1,
}  # fmt: skip
# Numbers between the levels of a factor, for a head_dim.
_NUMBERS: dict[str, Callable[[_Draw, int], Any]] = {
    "seq_axis": lambda draw, width: draw.whole(-5, 3),
    "base": lambda draw, width: draw.magnitude(2, 1e8),
    "rotary_dim": lambda draw, width: 2 * draw.whole(1, width // 2),
    "rotary_start": lambda draw, width: draw.whole(0, width),
    "attention_factor": lambda draw, width: draw.magnitude(0.1, 10),
    "scaling": lambda draw, width: _draw_rule(draw),
}


def _draw_rows(j: Judge, draw: _Draw, width: int) -> tuple[int, ...]:
    """Return sizes: one large, or all small."""
    count = draw.one((1, 2, 3, 3, 3, 4, 5)) if j.claims("ranks[1]", "ranks[5]") else 3
    rows = [draw.one((1, 2, 3, 4, 5)) for _ in range(count)]
    if draw.chance(0.5):
        elements = _MANY_ELEMENTS if draw.chance(0.2) else _MOST_ELEMENTS
        limit = elements // (width * max(1, math.prod(rows)))
        rows[draw.whole(0, count - 1)] *= draw.one([size for size in _SIZES if size <= limit] or [1])
    return tuple(rows)


def _draw_reach(j: Judge, draw: _Draw) -> int:
    """Return the largest position of a call, or the smallest if it is negative."""
    if not (j.claims("any_positions") or j.claims("offset_positions")):
        return int(min(j.target.reach, NEAR))
    reach, depth = int(draw.magnitude(1, min(j.target.reach, FAR))), int(j.target.depth)
    negative = j.claims("any_positions", "negative_positions") and draw.chance(0.1)
    return -min(reach, depth) if negative else reach


def _draw_rule(draw: _Draw) -> str:
    """Return a rule with another factor, trained context and length, of those that it has."""
    name, trained = draw.one([*RULES]), draw.one((64, 2048, 4096, 8192))
    values = {
        "factor": draw.magnitude(1, 64),
        "original_max_position_embeddings": trained,
        "max_position_embeddings": trained,
        "length": draw.whole(1, 4 * trained),
    }
    return ":".join([name, *(f"{key}={values[key]}" for key in RULES[name].parameters if key in values)])
