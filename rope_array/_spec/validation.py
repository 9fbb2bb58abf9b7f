"""Checks of plain values: each returns the value as a plain Python one, or raises a SpecError."""

import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass, replace
from itertools import islice
from numbers import Integral, Real
from typing import Any, TypeAlias

from rope_array._dynamo import known
from rope_array._errors import SpecError, describe, short

Check: TypeAlias = Callable[[str, Any], Any]
MAX_WIDTH = 2**16  # of the rotated slice: far beyond every model, and below a second of work
MAX_PAIRS = MAX_WIDTH // 2  # and the most frequencies, divisors or coordinates of one spec


def plain_int(value: Any) -> int:
    """Return an integer as an int of Python. A symbol of Dynamo stays one; index would make it a constant."""
    return value if type(value) is int else operator.index(value)


def integer(name: str, value: Any, minimum: int, maximum: int = 2**63 - 1) -> int:
    """Return a Python int from `minimum` to `maximum`, by default of 64 bits."""
    try:
        if isinstance(value, bool) or not isinstance(value, Integral):
            raise TypeError
        number = plain_int(value)
    except TypeError:
        raise SpecError(f"{name} is {describe(value)}; give a Python int of at least {minimum}.") from None
    if number < minimum:
        raise SpecError(f"{name} is {short(number)}; give an int of at least {minimum}.")
    if number > maximum:
        raise SpecError(f"{name} is {short(number)}; give an int of at most {maximum}.")
    return number


def number(name: str, value: Any, remedy: str = "a finite number") -> float:
    """Return a finite float."""
    try:
        if isinstance(value, bool) or not isinstance(value, Real):
            raise TypeError
        finite = float(known(value))  # Dynamo's isfinite takes no symbol
    except (TypeError, OverflowError):
        raise SpecError(f"{name} is {describe(value)}; give {remedy}.") from None
    if not math.isfinite(finite):
        raise SpecError(f"{name} is {finite}; give {remedy}.")
    return finite


def positive(name: str, value: Any, remedy: str = "a finite number above 0") -> float:
    """Return a finite float above 0."""
    factor = number(name, value, remedy)
    if factor <= 0:
        raise SpecError(f"{name} is {factor}; give {remedy}.")
    return factor


def invertible(name: str, value: Any) -> float:
    """Return a factor on cos and sin: a finite float above 0 with a finite inverse."""
    # A negative factor would add half a turn, which no model means.
    factor = positive(name, value)
    if not math.isfinite(1 / factor):
        raise SpecError(f"{name} is {factor}, whose inverse is beyond floats; give one nearer to 1.")
    return factor


def truth(name: str, value: Any) -> bool:
    """Return a bool; 0 and 1 are refused."""
    if not isinstance(value, bool):
        raise SpecError(f"{name} is {describe(value)}; give True or False.")
    return value


def choice(name: str, value: Any, allowed: tuple[str, ...]) -> str:
    """Return the allowed string that the value is equal to."""
    if not isinstance(value, str) or value not in allowed:
        raise SpecError(f"{name} is {short(value)}; give one of {', '.join(map(repr, allowed))}.")
    return allowed[allowed.index(value)]


def record(name: str, value: Any, cls: type, remedy: str) -> Any:
    """Return a record, checked anew: pickle and `object.__new__` check nothing. None is allowed.

    A subclass of a record is refused: the methods that it adds would not be called. A base class of records
    that is no record itself, such as `Scaling`, may have subclasses.
    """
    if value is None:
        return None
    if not isinstance(value, cls):
        raise SpecError(f"{name} is {describe(value)}; give {remedy}, or None.")
    parents = [base for base in type(value).__mro__[1:] if issubclass(base, cls) and is_dataclass(base)]
    if parents:
        raise SpecError(
            f"{name} is of the class {type(value).__name__}, a subclass of {parents[0].__name__}, whose own "
            f"methods are never called; give {remedy}, or None."
        )
    complete(value)
    return replace(value) if is_dataclass(value) else value  # type: ignore[type-var]


def complete(value: Any) -> None:
    """Raise for a record without its fields, even if the class has defaults for them.

    Dynamo passes on a record made inside a compiled function before its fields are set (torch 2.13).
    """
    if not is_dataclass(value) or isinstance(value, type):
        return
    if any(field.name not in vars(value) for field in fields(value) if field.init):
        raise SpecError(
            f"the {type(value).__name__} is without its fields, as made inside a compiled function; make "
            "it outside, by its class, and use it inside."
        )


def sequence(name: str, value: Any, remedy: str, check: Check | None = None) -> tuple[Any, ...]:
    """Return the items of a sequence that is no string, each checked, at most `MAX_PAIRS`."""
    if not isinstance(value, Sequence) or isinstance(value, (str, bytes)):
        raise SpecError(f"{name} is {describe(value)}; give {remedy}.")
    # No len(): a range of 10**30 has none, and a class may return a wrong one.
    values = tuple(islice(value, MAX_PAIRS + 1))
    if len(values) > MAX_PAIRS:
        raise SpecError(f"{name} has more than {MAX_PAIRS} items; give at most {MAX_PAIRS}.")
    return values if check is None else tuple([check(f"{name}[{i}]", v) for i, v in enumerate(values)])
