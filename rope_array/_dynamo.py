"""A memo that torch.compile can trace, and that cannot grow without end."""

import os
import sys
from collections.abc import Callable
from itertools import count
from threading import RLock
from typing import Any

from ._internals import CONSTANT_MARK, internal

_LIMIT = 256  # values in one memo; the oldest goes when it is full

# Held while a memo or the table of libraries changes. Reentrant: finalizers that run then may rotate arrays.
lock = RLock()


def _renew_lock() -> None:
    global lock
    lock = RLock()


if hasattr(os, "register_at_fork"):  # another thread of the parent may hold the lock
    os.register_at_fork(after_in_child=_renew_lock)


class _Values:
    """The values of a memo, each an attribute: Dynamo guards the attribute that a call uses, not a dict."""


def traced_constant(function: Callable[..., Any]) -> Callable[..., Any]:
    """Mark a function that Dynamo calls while it traces, taking the result as a constant.

    Dynamo traces neither the function's body nor the dicts that it reads.
    """
    setattr(function, CONSTANT_MARK, True)
    return function


def known(value: Any) -> Any:
    """Return a value for a traced constant, whose numbers Dynamo has to know.

    Dynamo holds a number that differs between calls as a symbol. As an item of a set it becomes a constant
    (`HashableTracker` in torch/_dynamo/variables), and another number compiles the function anew.
    """
    if type(value) is float or type(value) is int:
        (value,) = {value}
    elif type(value) is tuple or type(value) is list:
        items = [known(item) for item in value]
        value = items if type(value) is list else tuple(items)
    return value


_marked: set[type] = set()


def mark_as_constant(cls: type) -> None:
    """Have Dynamo pass objects of a class to functions that it calls while it traces.

    From PyTorch 2.12 on it passes any object. Older ones have to know the class before they see an object.
    Until PyTorch is imported, this does nothing.
    """
    torch: Any = sys.modules.get("torch")
    version = getattr(torch, "__version__", None)
    if cls in _marked or not isinstance(version, str):
        return
    has_to_know = version < "2.12"  # PyTorch's own type of text, which compares 2.9 as less
    register_constant = internal("torch.utils._pytree.register_constant")  # None while a thread imports it
    if has_to_know and register_constant is None:
        return
    with lock:
        if cls not in _marked and has_to_know:
            register_constant(cls)
        _marked.add(cls)


def traced_memo(make: Callable[..., Any], key: Callable[..., Any] | None = None) -> Callable[..., Any]:
    """Return `make` with a memo over its arguments, or over the keys that `key` makes of them."""
    values, names = _Values(), {}  # type: ignore[var-annotated]

    @traced_constant
    def name_of(*args: Any, **fields: Any) -> str:
        memo_key = args if key is None else key(*args, **fields)
        try:
            name = names.get(memo_key)
        except TypeError:  # unhashable arguments: make the value, and use it as the key
            value = make(*args, **fields)
            return names.get(value) or _add(values, names, value, value)
        return name or _add(values, names, memo_key, make(*args, **fields))

    def look_up(*args: Any, **fields: Any) -> Any:
        value = getattr(values, name_of(*args, **fields), None)
        # None if another thread has just removed it.
        return look_up(*args, **fields) if value is None else value

    return look_up


def traced_memo_of_one(make: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return `make` with a memo over its one argument, which is hashable; faster than `traced_memo`."""
    values = _Values()
    names: dict[Any, str] = {}

    @traced_constant
    def name_of(argument: Any) -> str:
        try:
            return names[argument]
        except KeyError:
            return _add(values, names, argument, make(argument))

    def look_up(argument: Any) -> Any:
        value = getattr(values, name_of(argument), None)
        return look_up(argument) if value is None else value

    return look_up


_numbers = count()  # of the values of all memos


def _add(values: _Values, names: dict[Any, str], key: Any, value: Any) -> str:
    """Add a value to a memo, and return its name."""
    with lock:
        if key not in names:
            if len(names) >= _LIMIT:
                delattr(values, names.pop(next(iter(names))))
            name = f"value{next(_numbers)}"
            setattr(values, name, value)
            names[key] = name
        return names[key]
