"""How many calls a check makes, and how many of them the costly observers watch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import TypeVar

T = TypeVar("T")
# Libraries that make fewer calls in this time are slow.
_FAST = 1000


class Budget:
    """Limits on the number of calls of a target, and of watched calls."""

    def __init__(self, calls: int, compiled: bool):
        # Whether calls of new shapes take long, so that a check makes a few only.
        self.is_slow = calls < _FAST or compiled
        self.watched_every = 48  # costly observers watch one call in this number; none if it is 0
        self.judges_values = True  # not while calls are made for observers

    def few(self, calls: Iterable[T], count: int | None) -> list[T]:
        """Return the calls; the first `count` if calls take long."""
        return [*islice(calls, count if self.is_slow else None)]

    def watches(self, number: int, turn: int, at_most_one_in: int = 1) -> bool:
        """Return whether a costly observer watches a call; fewer of the calls whose values are not judged."""
        every = self.watched_every if self.judges_values else max(self.watched_every, at_most_one_in)
        return self.watched_every > 0 and number % every == turn % every

    @contextmanager
    def watching(self, every: int, judges_values: bool = True) -> Iterator[None]:
        """Let costly observers watch one call in `every` of the calls inside."""
        before = self.watched_every, self.judges_values
        self.watched_every, self.judges_values = every, judges_values
        try:
            yield
        finally:
            self.watched_every, self.judges_values = before
