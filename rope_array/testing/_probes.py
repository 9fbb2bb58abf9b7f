"""Plain calls that show whether a weaker class of accuracy, or an end of positions, can be the cause."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from ._guess import ChangedJudge, Guess

_WIDTH = 64
_ROWS = 5
# The last positions of the calls.
_LASTS = (_ROWS, 4095, 60_000, 2**20, 2**24, 2**31 - 1)


def may_be(guess: Guess, claims: dict[str, Any]) -> bool:
    """Return whether plain calls have the faults that claims of accuracy, or of a last position, excuse."""
    try:
        return all(_shows(guess, name, claims) for name in claims)
    except Exception:  # the target's own, in a trial call
        return True


def _shows(guess: Guess, name: str, claims: dict[str, Any]) -> bool:
    if name == "furthest":
        return _ends_at(guess.adding("", **{key: claims[key] for key in claims if key != name}), claims[name])
    judge = ChangedJudge(guess.target, guess.change)
    if name == "arithmetic":
        narrow = [dtype for dtype in judge.dtypes if dtype in ("float16", "bfloat16")]
        return _is_wrong(judge, narrow, _LASTS[:2])
    return _is_wrong(judge, judge.dtypes[: None if guess.target.angles == "exact" else 1], _LASTS)


def _ends_at(guess: Guess, end: int) -> bool:
    """Return whether calls are right up to an end, and wrong from somewhere beyond it."""
    judge = ChangedJudge(guess.target, guess.change)
    beyond = [last for last in (end + _ROWS, *_LASTS) if last > end]
    if not judge.claims("offset_positions"):
        return True
    return _is_wrong(judge, judge.dtypes, beyond) and not _is_wrong(judge, judge.dtypes, [end])


def last_right(guess: Guess) -> int | None:
    """Return the last position up to which plain calls are right; None if no position is the last."""
    judge = ChangedJudge(guess.target, guess.change)
    if not judge.claims("offset_positions"):
        return None
    right = _ROWS
    for wrong in (2**n - 1 for n in range(3, 32)):
        if wrong > judge.target.reach or _is_wrong(judge, judge.dtypes[:1], [wrong]):
            break
        right = wrong
    else:
        return None
    wrong = min(wrong, judge.target.reach)
    if not _is_wrong(judge, judge.dtypes[:1], [wrong]) or _is_wrong(judge, judge.dtypes[:1], [right]):
        return None
    while wrong - right > 1:
        middle = (right + wrong) // 2
        right, wrong = (right, middle) if _is_wrong(judge, judge.dtypes[:1], [middle]) else (middle, wrong)
    return right


def _is_wrong(judge: ChangedJudge, dtypes: Iterable[str], lasts: Iterable[int]) -> bool:
    return any(_fails(judge, dtype, last) for dtype in dtypes for last in lasts)


def _fails(judge: ChangedJudge, dtype: str, last: int) -> bool:
    """Return whether a call fails at positions up to `last`, or up to the target's reach."""
    pos = judge.row(min(last, judge.target.reach) - _ROWS + 1, _ROWS)
    x = judge.x(1, 2, _ROWS, _WIDTH, dtype=dtype)
    try:
        with judge.lib.running(), np.errstate(all="ignore"):
            judge.check(judge.run(x, pos), x, pos)
    except AssertionError:
        return True
    return False
