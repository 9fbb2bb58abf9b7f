"""Find sizes from which on results are wrong: of batches, heads, rows or features, in some dtypes.

Plain calls are tried with rising sizes; the last size that is right and the first that is wrong are both
tried.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import NamedTuple

import numpy as np

from ._alike import Mask, Wrong
from ._judge import Judge
from ._own import Declined
from ._parts import MODEL_WIDTHS, WIDE_WIDTHS
from ._verdict import Fault
from ._where import place_in_any_x, place_of

AXES = ("batches", "heads", "rows", "features")
_LARGEST = (260, 260, 5000)
_WIDTHS = (*MODEL_WIDTHS, *WIDE_WIDTHS[:3])


class Limit(NamedTuple):
    """Sizes of an axis with which results are wrong, in some dtypes.

    Attributes
    ----------
    axis, dtypes
        The axis of x of shape (B, H, S, D), and the dtypes.
    text
        The cause in words.
    is_wrong
        Whether results of a size are wrong.
    first
        The first index at which they are; 0 if it is not always the same.
    last_features
        The number of features at the end that are wrong, if no others are; 0 if others are, too.
    """

    axis: int
    dtypes: tuple[str, ...]
    text: str
    is_wrong: Callable[[int], bool]
    first: int = 0
    last_features: int = 0

    def explains(self, wrong: Wrong) -> Mask:
        """Return the elements at the place of the limit, of a result whose size is beyond it."""
        mask, axis = np.zeros(wrong.mask.shape, bool), self.axis - 4
        # The axes before the rows are batches and heads if x has four.
        known = mask.ndim == 4 or (mask.ndim > 1 and self.axis >= 2)
        if known and wrong.dtype in self.dtypes and self.is_wrong(mask.shape[axis]):
            np.moveaxis(mask, axis, 0)[self.first :] = True
            mask[..., : -self.last_features or 0] = False
        return mask


def find_limits(judge: Judge) -> Iterator[Limit]:
    """Yield the limits of plain calls of a judge's target."""
    dtypes = judge.dtypes[: 1 if judge.target.compiled else None]  # each call is compiled
    if not dtypes or any(_fault(judge, 0, 2, dtype) for dtype in dtypes):
        return
    for axis in range(4):
        by_text: dict[str, list[Limit]] = {}
        for dtype in dtypes:
            if limit := _limit(judge, axis, dtype):
                by_text.setdefault(limit.text, []).append(limit)
        for text, limits in by_text.items():
            wrong_in = tuple(limit.dtypes[0] for limit in limits)
            where = "" if len(limits) == len(dtypes) else f" in {' and '.join(wrong_in)}"
            yield limits[0]._replace(dtypes=wrong_in, text=f"wrong results {text}{where}")


def _limit(judge: Judge, axis: int, dtype: str) -> Limit | None:
    """Return the limit of an axis; None if all sizes are right."""

    def fault(size: int) -> Fault | None:
        return _fault(judge, axis, size, dtype)

    if axis == 3:
        return _limit_of_widths(judge, dtype, fault)
    largest = _LARGEST[axis]
    if axis == 2 and not judge.claims("any_positions"):
        largest = min(1200, judge.target.reach)  # the definition computes each position
    right, wrong = (2, 3, 5)[axis], largest
    if not (last := fault(largest)) or fault(right):
        return None
    while wrong - right > 1:
        middle = (right + wrong) // 2
        right, wrong = (right, middle) if fault(middle) else (middle, wrong)
    if not all(map(fault, _beyond(wrong, largest))):
        return None  # some larger sizes are right
    place = place_of(str(last))
    exact = AXES[axis] in place and not re.search("some of|nearly all|mostly", place)
    text = f"in {place}" if exact else f"with more than {right:,} {AXES[axis]}"
    return Limit(axis, (dtype,), text, lambda size: size > right, _first_wrong(last, axis) if exact else 0)


def _first_wrong(fault: Fault, axis: int) -> int:
    """Return the first index along an axis at which a result is wrong."""
    if fault.wrong is None:
        return 0
    return int(np.argwhere(fault.wrong.mask)[:, axis].min())


def _beyond(wrong: int, largest: int) -> Iterator[int]:
    """Yield a few sizes beyond the first wrong one, among them multiples of powers of two."""
    power = 1 << (wrong - 1).bit_length()
    yield from (size for size in (power, 2 * power, 3 * power) if size < largest)


def _limit_of_widths(judge: Judge, dtype: str, fault: Callable[[int], Fault | None]) -> Limit | None:
    faults = {width: fault(width) for width in _WIDTHS if _claims_width(judge, width)}
    wrong, right = ([w for w in faults if bool(faults[w]) == is_wrong] for is_wrong in (True, False))
    if not wrong or not right:
        return None
    places = {width: place_of(str(faults[width])) for width in wrong}
    common = {place_in_any_x(place) for place in places.values()}
    in_place = f"in {min(common)} " if len(common) == 1 and min(common).startswith("the last") else ""
    last = int(min(common).split()[2]) if re.match(r"the last \d", min(common)) and in_place else bool(in_place)
    if min(wrong) > max(right):
        text, above = f"{in_place}with a head_dim above {max(right)}", max(right)
        if places[max(wrong)].startswith("features from"):
            return Limit(3, (dtype,), f"in {places[max(wrong)]}", lambda size: size > above, above)
        return Limit(3, (dtype,), text, lambda size: size > above, last_features=last)
    if all(w & (w - 1) for w in wrong) and not any(w & (w - 1) for w in right):
        text = f"{in_place}with a head_dim that is no power of two"
        return Limit(3, (dtype,), text, lambda size: bool(size & (size - 1)), last_features=last)
    others = cache(lambda size: bool(fault(size)))
    is_wrong = lambda size: bool(faults[size]) if size in faults else others(size)  # noqa: E731
    return Limit(3, (dtype,), f"{in_place}with a head_dim of {_listed(wrong)}", is_wrong, last_features=last)


def _listed(numbers: Sequence[int]) -> str:
    return f"{', '.join(map(str, numbers[:-1]))} or {numbers[-1]}" if len(numbers) > 1 else str(numbers[0])


def _claims_width(judge: Judge, width: int) -> bool:
    name = "wide_heads" if width in WIDE_WIDTHS else "widths"
    return judge.claims(f"{name}[{width}]") and judge.target.width_of(width) == width


def _fault(judge: Judge, axis: int, size: int, dtype: str) -> Fault | None:
    """Return the fault of a plain call with one size; None if it is right."""
    shape = [1, 2, 5, judge.width]
    shape[axis] = size
    rows = shape[2]
    pos = judge.wrap(1 + np.arange(rows) % 29) if judge.claims("any_positions") else judge.row(1, rows)
    x = judge.x(*shape, dtype=dtype)
    try:
        with judge.lib.running(), np.errstate(all="ignore"):
            judge.check(judge.run(x, pos), x, pos)
    except Declined:  # refused: no wrong result
        return None
    except Exception as error:  # the target's own
        return Fault.of(error)
    return None
