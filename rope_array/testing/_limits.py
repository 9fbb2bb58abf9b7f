"""Find sizes from which on results are wrong: of batches, heads, rows or features, in some dtypes.

Plain calls are tried with rising sizes; the last size that is right and the first that is wrong are both
tried. A limit explains the checks that pass if larger calls are answered with the definition's results.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import NamedTuple

import numpy as np

from ._judge import Input, Judge
from ._own import Declined
from ._parts import MODEL_WIDTHS, WIDE_WIDTHS
from ._target import Target
from ._where import place_of

AXES = ("batches", "heads", "rows", "features")
_LARGEST = (260, 260, 5000)
_WIDTHS = (*MODEL_WIDTHS, *WIDE_WIDTHS[:3])


class Limit(NamedTuple):
    """Sizes of an axis with which results are wrong, in some dtypes."""

    axis: int
    dtypes: tuple[str, ...]
    text: str
    wrong: Callable[[int], bool]

    def holds(self, x: Input) -> bool:
        """Return whether the results of x are wrong."""
        return x.values.ndim == 4 and x.dtype in self.dtypes and self.wrong(x.values.shape[self.axis])


def find_limits(target: Target) -> Iterator[Limit]:
    """Yield the limits of plain calls."""
    try:
        judge = Judge(target)
    except Exception:  # the target's own
        return
    dtypes = judge.dtypes[: 1 if target.compiled else None]  # each call is compiled
    if not dtypes or any(_fault(judge, 0, 2, dtype) for dtype in dtypes):
        return
    for axis in range(4):
        by_text: dict[str, tuple[list[str], Callable[[int], bool]]] = {}
        for dtype in dtypes:
            if found := _limit(judge, axis, dtype):
                by_text.setdefault(found[0], ([], found[1]))[0].append(dtype)
        for text, (found_in, wrong) in by_text.items():
            where = "" if len(found_in) == len(dtypes) else f" in {' and '.join(found_in)}"
            yield Limit(axis, tuple(found_in), f"wrong results {text}{where}", wrong)


def _limit(judge: Judge, axis: int, dtype: str) -> tuple[str, Callable[[int], bool]] | None:
    """Return the text of a limit, and whether a size is beyond it; None if all sizes are right."""

    def fault(size: int) -> str:
        return _fault(judge, axis, size, dtype)

    if axis == 3:
        return _limit_of_widths(judge, fault)
    largest = _LARGEST[axis]
    if axis == 2 and not judge.claims("any_positions"):
        largest = min(1200, judge.target.reach)  # the definition computes each position
    if not (last := fault(largest)):
        return None
    right, wrong = (2, 3, 5)[axis], largest
    if fault(right):
        return None
    while wrong - right > 1:
        middle = (right + wrong) // 2
        right, wrong = (right, middle) if fault(middle) else (middle, wrong)
    if not all(map(fault, _beyond(wrong, largest))):
        return None  # some larger sizes are right
    place = place_of(last)
    exact = AXES[axis] in place and not re.search("some of|nearly all|mostly", place)
    text = f"in {place}" if exact else f"with more than {right:,} {AXES[axis]}"
    return text, lambda size: size > right


def _beyond(wrong: int, largest: int) -> Iterator[int]:
    """Yield a few sizes beyond the first wrong one, among them multiples of powers of two."""
    power = 1 << (wrong - 1).bit_length()
    yield from (size for size in (power, 2 * power, 3 * power) if size < largest)


def _limit_of_widths(judge: Judge, fault: Callable[[int], str]) -> tuple[str, Callable[[int], bool]] | None:
    faults = {width: fault(width) for width in _WIDTHS if _claims_width(judge, width)}
    wrong, right = ([w for w in faults if bool(faults[w]) == is_wrong] for is_wrong in (True, False))
    if not wrong or not right:
        return None
    if min(wrong) > max(right):
        last, place = max(right), place_of(faults[max(wrong)])
        kept = place.startswith("features from")
        return (f"in {place}" if kept else f"with a head_dim above {last}"), lambda size: size > last
    if all(w & (w - 1) for w in wrong) and not any(w & (w - 1) for w in right):
        return "with a head_dim that is no power of two", lambda size: bool(size & (size - 1))
    others = cache(lambda size: bool(fault(size)))
    return f"with a head_dim of {_listed(wrong)}", lambda size: bool(
        faults[size] if size in faults else others(size)
    )


def _listed(numbers: Sequence[int]) -> str:
    return f"{', '.join(map(str, numbers[:-1]))} or {numbers[-1]}" if len(numbers) > 1 else str(numbers[0])


def _claims_width(judge: Judge, width: int) -> bool:
    name = "wide_heads" if width in WIDE_WIDTHS else "widths"
    return judge.claims(f"{name}[{width}]") and judge.target.width_of(width) == width


def _fault(judge: Judge, axis: int, size: int, dtype: str) -> str:
    """Return the message of a plain call with one size; "" if it is right."""
    shape = [1, 2, 5, judge.width]
    shape[axis] = size
    rows = shape[2]
    pos = judge.wrap(1 + np.arange(rows) % 29) if judge.claims("any_positions") else judge.row(1, rows)
    x = judge.x(*shape, dtype=dtype)
    try:
        with judge.lib.running(), np.errstate(all="ignore"):
            judge.check(judge.run(x, pos), x, pos)
    except AssertionError as error:
        return str(error)
    except Declined:  # refused: no wrong result
        return ""
    except Exception as error:  # the target's own
        return f"{type(error).__name__}"
    return ""
