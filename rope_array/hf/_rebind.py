"""Copies of functions that call other functions by some global names, without a change of the originals."""

from collections.abc import Mapping
from types import CellType, CodeType, FunctionType
from typing import Any


def rebind(function: Any, replacements: Mapping[str, Any], code: CodeType | None = None) -> Any:
    """Return a copy of a function, or of a decorated function, whose global names are `replacements`.

    The copy reads its globals from a dict of its own. Returns None if nothing that the function calls by a
    name of its own module is replaced. `code`: a rewritten code for the copy.
    """
    if type(function) is not FunctionType:
        return None
    if used_names(function.__code__) & set(replacements):
        return _copy(function, _globals_of(function, replacements), function.__closure__, code)
    inner, cells = getattr(function, "__wrapped__", None), function.__closure__ or ()
    if (
        not any(_content(cell) is inner for cell in cells)
        or (copied := rebind(inner, replacements, code)) is None
    ):
        return None
    closure = tuple(CellType(copied) if _content(cell) is inner else cell for cell in cells)
    wrapper = _copy(function, function.__globals__, closure)
    wrapper.__wrapped__ = copied  # type: ignore[attr-defined]
    return wrapper


def used_names(code: CodeType) -> set[str]:
    """Return the global names and the attributes that a function's code uses, inner functions included."""
    inner = (const for const in code.co_consts if isinstance(const, CodeType))
    return set(code.co_names).union(*map(used_names, inner))


def undecorated(function: Any) -> list[FunctionType]:
    """Return a function and the functions that its decorators have wrapped, outermost first."""
    functions: list[FunctionType] = []
    while type(function) is FunctionType and function not in functions:
        functions.append(function)
        function = getattr(function, "__wrapped__", None)
    return functions


def _globals_of(function: FunctionType, replacements: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of a function's globals with other values.

    It has no `__name__`: Dynamo would look names up in the module of that name, and find the originals.
    """
    copied = {**function.__globals__, **replacements}
    copied.pop("__name__", None)
    return copied


def _copy(
    function: FunctionType, namespace: dict[str, Any], closure: Any, code: CodeType | None = None
) -> FunctionType:
    # A code object of its own: Dynamo keeps compiled code with the code object, and its guards on globals
    # refer to the namespace of the function that was compiled first.
    code = (code or function.__code__).replace(co_name=function.__code__.co_name)
    copied = FunctionType(code, namespace, function.__name__, function.__defaults__, closure)
    copied.__kwdefaults__ = function.__kwdefaults__
    copied.__qualname__, copied.__doc__ = function.__qualname__, function.__doc__
    copied.__module__ = function.__module__
    copied.__annotations__ = function.__annotations__
    copied.__dict__.update(function.__dict__)
    return copied


def _content(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # an empty cell
        return None
