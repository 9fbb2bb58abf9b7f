"""Checks of plain values: each returns what it was given as a plain Python value, or says what is wrong."""

import math
import operator
from collections.abc import Sequence
from numbers import Integral, Real
from typing import Any

from rope_array._errors import SpecError, describe, short


def integer(name: str, value: Any, least: int) -> int:
    """Return a Python int of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise SpecError(f"{name} is {describe(value)}; give a Python int of at least {least}.")
    if (number := operator.index(value)) < least:
        raise SpecError(f"{name} is {short(number)}; give an int of at least {least}.")
    return number


def number(name: str, value: Any, need: str = "a finite number") -> float:
    """Return a finite float."""
    try:
        if isinstance(value, bool) or not isinstance(value, Real):
            raise TypeError
        made = float(value)
    except (TypeError, OverflowError):
        raise SpecError(f"{name} is {describe(value)}; give {need}.") from None
    if not math.isfinite(made):
        raise SpecError(f"{name} is {made}; give {need}.")
    return made


def positive(name: str, value: Any, need: str = "a finite number above 0") -> float:
    """Return a finite float above 0."""
    made = number(name, value, need)
    if made <= 0:
        raise SpecError(f"{name} is {made}; give {need}.")
    return made


def truth(name: str, value: Any) -> bool:
    """Return a bool, which nothing else stands for."""
    if not isinstance(value, bool):
        raise SpecError(f"{name} is {describe(value)}; give True or False.")
    return value


def choice(name: str, value: Any, allowed: tuple[str, ...]) -> str:
    """Return one of the strings allowed."""
    if not isinstance(value, str) or value not in allowed:
        raise SpecError(f"{name} is {short(value)}; give one of {', '.join(map(repr, allowed))}.")
    return str(value)


def instance(name: str, value: Any, kind: type, need: str) -> Any:
    """Return an instance of a class, or None."""
    if value is not None and not isinstance(value, kind):
        given = f"the class {value.__name__}" if isinstance(value, type) else describe(value)
        raise SpecError(f"{name} is {given}; give {need}, or None.")
    return value


def sequence(name: str, value: Any, need: str) -> Sequence[Any]:
    """Return a sequence that is no string, as it is."""
    if not isinstance(value, Sequence) or isinstance(value, (str, bytes)):
        raise SpecError(f"{name} is {describe(value)}; give {need}.")
    return value
