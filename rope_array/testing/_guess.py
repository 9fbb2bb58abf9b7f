"""A guess at the cause of failures: claims, and changes of the code, that can be tried."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from ._contract import Accuracy
from ._judge import Check, Floats, Input, Judge
from ._limits import Limit
from ._outcome import FAILED, outcome_of
from ._own import OwnApply
from ._target import Target


class Change(NamedTuple):
    """A change of the code, which no claim can replace."""

    inverse: bool = False
    shift: int = 0
    cast: bool = False
    copied: bool = False
    limits: tuple[Limit, ...] = ()


class Guess(NamedTuple):
    """Claims and changes of the code that may explain failures."""

    target: Target
    texts: tuple[str, ...] = ()
    claims: Mapping[str, Any] = MappingProxyType({})
    change: Change = Change()
    seconds: dict[str, float] = {}  # noqa: RUF012 (the duration of each check, shared by all guesses)

    def adding(self, text: str, **claims: Any) -> Guess:
        """Return the guess with one more cause; raise ValueError if the claims contradict each other."""
        merged = {**self.claims, **claims}
        for name in ("fixed", "lacks"):
            if name in claims:
                merged[name] = {**self.claims.get(name, {}), **claims[name]}
                claims[name] = {**getattr(self.target, name), **claims[name]}
        target = replace(self.target, **claims)
        shown = {} if isinstance(target.rotate, OwnApply) else merged  # a library has all claims
        return self._replace(target=target, texts=(*self.texts, *filter(None, [text])), claims=shown)

    def with_limit(self, limit: Limit) -> Guess:
        """Return the guess that results are wrong beyond a limit."""
        change = self.change._replace(limits=(*self.change.limits, limit))
        return self._replace(texts=(*self.texts, limit.text), change=change)

    def without(self, name: str, original: Target) -> Guess:
        """Return the guess without one claim, which is as in the original target."""
        claims = {key: value for key, value in self.claims.items() if key != name}
        return self._replace(
            target=replace(self.target, **{name: getattr(original, name)}), claims=MappingProxyType(claims)
        )

    def failing(self, some: Sequence[Check], fewer_than: int | None = None) -> list[Check]:
        """Return the checks that fail still; stop if as many fail as `fewer_than`. Quick checks are first."""
        try:
            judge = ChangedJudge(self.target, self.change)
        except Exception:  # the target's own, in a trial call
            return list(some)
        failed: list[Check] = []
        for check in sorted(some, key=lambda check: self.seconds.get(check.name, 0.0)):
            started = time.perf_counter()
            if outcome_of(check, judge)[0] == FAILED:
                failed.append(check)
            self.seconds[check.name] = time.perf_counter() - started
            if len(failed) == fewer_than:
                break
        return [check for check in some if check in failed]


class ChangedJudge(Judge):
    """Judges results as if the code had a change: another direction, position or dtype, a copy of x."""

    explains = False

    def __init__(self, target: Target, change: Change):
        super().__init__(target, thorough=True)  # only checks that failed are run
        self.change = change

    def call(self, x: Any, pos: Any, **spec: Any) -> Any:
        if self.change.copied:
            x = self._copy(x) if isinstance(x, Input) else tuple(map(self._copy, x))
        if isinstance(x, Input) and any(limit.holds(x) for limit in self.change.limits):
            return self._right(x, pos, spec)
        return super().call(x, pos, **spec)

    def check_alive(self, arrays: Sequence[Any]) -> None:
        if not self.change.copied:
            super().check_alive(arrays)

    def _right(self, x: Input, pos: Any, spec: dict[str, Any]) -> Any:
        """Return the definition's result as an array of the library."""
        numbers = self.lib.to_numpy(pos) if self.lib.owns(pos) else pos
        if np.ndim(numbers) != 1 or "seq_axis" in spec:
            return self.array(self.exact(x.values, numbers, **spec), x.dtype).array
        # Each exact angle takes long, and `_last_rows` of the accuracy checks has a million rows of zeros.
        rows = np.flatnonzero(x.values.any((0, 1, 3)))
        y = np.zeros(x.values.shape)
        y[:, :, rows] = self.exact(x.values[:, :, rows], np.asarray(numbers)[rows], **spec)
        return self.array(y, x.dtype).array

    def _copy(self, x: Input) -> Input:
        return self.array(x.values, x.dtype)

    def check_kind(self, y: Any, x: Input) -> None:
        if self.change.cast and self.lib.owns(y):
            x = x._replace(dtype=self.lib.dtype_of(y))
        super().check_kind(y, x)

    def check_values(
        self, y: Floats, x: Input, pos: Any, accuracy: Accuracy | None = None, **spec: Any
    ) -> None:
        if self.change.inverse:
            spec["inverse"] = not spec.get("inverse", False)
        pos = self.within(pos)
        pos = np.asarray(pos) + self.change.shift if self.change.shift else pos
        self.check_values_at(y, x, pos, accuracy, **spec)


WRITES_X = "it writes into x; return a new array"
DONATES_X = "it deletes x, as jax.jit does with donate_argnums; do not donate x, or claim keeps_x=REASON"


def writes_x(target: Target) -> bool:
    """Return whether a plain call writes into x."""
    try:
        judge = Judge(target)
        with judge.lib.running(), np.errstate(all="ignore"):
            x = judge.x()
            before = judge.lib.snapshot(x.array)
            judge.numbers(judge.run(x, judge.positions()))
            return bool(judge.lib.snapshot(x.array) != before)
    except Exception:  # the target's own
        return False
