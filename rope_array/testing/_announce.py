"""Announce each call of a target: a process that ends in a call has said which.

The child process of `_process` sets `announce`; in any other process it is None, and nothing is announced.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ._claims import shorten

# Writes one line; None outside of a child process.
announce: Callable[[str], None] | None = None
# How the trial calls ended earlier processes, by their number; and whether to make no further trial calls.
ended: dict[int, str] = {}
trials_over = False
_trials = 0


class ProcessEnded(RuntimeError):
    """The same trial call ended an earlier process; the message says how."""


def calling(x: Any, pos: Any, spec: Mapping[str, Any]) -> None:
    """Announce a call of a check."""
    if announce is not None:
        announce(f"call {describe(x, pos, spec)}")


def trying(x: Any, pos: Any, spec: Mapping[str, Any]) -> None:
    """Announce a trial call; raise instead of making a call that ended an earlier process."""
    global _trials
    if announce is None:
        return
    _trials += 1
    if _trials in ended:
        raise ProcessEnded(ended[_trials])
    if trials_over:
        raise ProcessEnded(f"not tried, as {len(ended)} trial calls ended the process")
    announce(f"trial {_trials} {describe(x, pos, spec)}")


def describe(x: Any, pos: Any, spec: Mapping[str, Any]) -> str:
    """Describe a call in a few words."""
    try:
        fields = "".join(f", {name}={shorten(repr(value), 60)}" for name, value in spec.items())
        return f"x {_array_text(x)}, positions {_array_text(pos)}{fields}"
    except Exception:  # an object that cannot be described
        return "arguments that cannot be described"


def _array_text(value: Any) -> str:
    """Return "float32[2, 3, 5, 16]" for an array."""
    if isinstance(value, tuple | list) and any(hasattr(member, "dtype") for member in value):
        return f"({', '.join(map(_array_text, value))})"
    if not hasattr(value, "dtype"):
        return shorten(repr(value), 60)
    return f"{str(value.dtype).rpartition('.')[2]}{list(value.shape)}"
