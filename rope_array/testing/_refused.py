"""Calls that a target refuses or declines, and calls that would end the process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field


class Declined(NotImplementedError):
    """A forced backend declines a call; the message is its reason."""


class Refused(Declined):
    """A target refuses a call; the message is its exception's."""


class EndingError(Exception):
    """A call raised an exception that is no `Exception`, such as SystemExit: a fault, no refusal."""


def caught(error: BaseException) -> EndingError:
    """Return an exception that would end the process as one that `except Exception` catches.

    It has the name, the message and the traceback of the original.
    """
    cls: type[EndingError] = type(type(error).__name__, (EndingError,), {})
    return cls(*error.args).with_traceback(error.__traceback__)


@dataclass
class CheckCalls:
    """The calls of one check: the number of those that a target served, and the others with their errors."""

    # Of (judge, x, pos, spec, error): the refused call with its error, as text; "" if the error is a fault.
    refusal: Callable[..., str] = lambda *_: ""
    served: int = 0
    refused: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        """Return the calls that were refused, as text; "" if there are none."""
        if not self.refused:
            return ""
        number = len(self.refused)
        share = f"{number} of {self.served + number} calls" if self.served else "every call"
        return f"refuses {share}: {self.refused[0]}"
