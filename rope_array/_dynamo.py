"""A memo that torch.compile can trace, and that cannot grow without end."""

from collections.abc import Callable
from itertools import count
from threading import Lock
from typing import Any

_LIMIT = 64  # values in one memo; the memo is emptied when it is full. A plan may hold 12 MB


_LONGEST = 2**15  # of tuples: no spec takes a longer one


class _Values:
    """The values of a memo, each an attribute: Dynamo guards the attribute that a call uses, not a table."""


def traced_constant(function: Callable[..., Any]) -> Callable[..., Any]:
    """Mark a function that Dynamo calls while it traces, taking the result as a constant.

    Dynamo traces neither the function's body nor the tables that it reads. Setting this attribute is all that
    `torch.compiler.assume_constant_result` does.
    """
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


def traced_memo(make: Callable[..., Any], check: Callable[..., Any] | None = None) -> Callable[..., Any]:
    """Return `make` with a memo over its arguments, which may be unhashable; `check` sees each call's first.

    Keys hold the types of the arguments too: True equals 1, and dtypes of two libraries must not be compared.
    """
    values, names, numbers, lock = _Values(), {}, count(), Lock()  # type: ignore[var-annotated]

    @traced_constant
    def name_of(*args: Any, **fields: Any) -> str:
        if check is not None:
            check(*args, **fields)
        key = (*args, *map(type, args), *map(_typed, fields.items())) if fields else (*args, *map(type, args))
        try:
            name = names.get(key)
        except TypeError:  # an unhashable argument: the value is its own key
            value = make(*args, **fields)
            return names.get(value) or add(value, value)
        return name or add(key, make(*args, **fields))

    def add(key: Any, value: Any) -> str:
        with lock:
            if key not in names:
                if len(names) >= _LIMIT:
                    names.clear()
                    vars(values).clear()
                name = f"value{next(numbers)}"
                setattr(values, name, value)
                names[key] = name
            return names[key]

    def look_up(*args: Any, **fields: Any) -> Any:
        value = getattr(values, name_of(*args, **fields), None)
        # None if another thread has just emptied the memo.
        return look_up(*args, **fields) if value is None else value

    return look_up


def _typed(field: tuple[str, Any]) -> tuple[Any, ...]:
    value = field[1]
    inner = map(type, value[:_LONGEST]) if type(value) is tuple else ()
    return (*field, type(value), *inner)
