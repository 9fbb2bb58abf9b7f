"""The code of a model: the functions of tables that its methods call, and how it uses the tables."""

import ast
import functools
import inspect
import re
import sys
from collections.abc import Iterator, Mapping
from types import FunctionType
from typing import Any

from . import _attention
from ._attention import Multiplication
from ._rebind import rebind, undecorated, used_names
from ._rotary import NAMES

TABLE = re.compile("^(cos|sin)(_|$)")  # variables of tables
PAIR = re.compile("pos|rot|rope|freq")  # variables of pairs of tables


class Code:
    """The functions of tables in the code of a model: what each does, and its replacement, each found once.

    Attributes
    ----------
    exact
        Whether the angles are exact.
    """

    def __init__(self, exact: bool):
        self.exact = exact
        self._kept: list[Any] = []  # keeps the objects alive whose ids are keys
        self._memo: dict[Any, Any] = {}

    def methods(self, cls: type) -> Mapping[str, Any]:
        """Return the methods of a class that call a function of tables, by name."""
        found: dict[str, Any] = self._once("methods", cls, lambda: dict(self._find_methods(cls)))
        return found

    def _find_methods(self, cls: type) -> Iterator[tuple[str, Any]]:
        for base in cls.__mro__:
            for name, value in vars(base).items():
                if getattr(cls, name, None) is value and self.functions(value):
                    yield name, value

    def functions(self, method: Any) -> Mapping[str, Any]:
        """Return the global functions of tables that a method uses, by name."""
        if type(method) is not FunctionType:
            return {}
        found: dict[str, Any] = self._once("functions", method, lambda: dict(_find_functions(method)))
        return found

    def layout(self, function: Any) -> Multiplication | None:
        """Return the layout of a function of tables, None if it is not known."""
        found: Multiplication | None = self._once("layout", function, lambda: _attention.recognise(function))
        return found

    def layouts(self, methods: Mapping[str, Any]) -> list[Multiplication | None]:
        """Return the layouts of all functions that methods use."""
        return [self.layout(f) for method in methods.values() for f in self.functions(method).values()]

    def rebound(self, method: Any, narrow: bool) -> Any:
        """Return a copy of a method that calls the replacements; None if none is replaced."""
        return self._once(f"rebound {narrow}", method, lambda: self._rebind(method, narrow))

    def _rebind(self, method: Any, narrow: bool) -> Any:
        found = {name: self._replacement(f, narrow) for name, f in self.functions(method).items()}
        return rebind(method, {name: f for name, f in found.items() if f is not None})

    def _replacement(self, function: Any, narrow: bool) -> Any:
        how = self.layout(function)
        if how is not None:
            return _attention.replacement(how, self.exact, narrow)
        if not self.exact:
            return None
        # It may rotate a part of the features at a time, by a function whose layout is known.
        return self.rebound(function, narrow) or _attention.unchanged_result_dtype(function)

    def _once(self, what: str, key: Any, make: Any) -> Any:
        if (what, id(key)) not in self._memo:
            self._kept.append(key)
            self._memo[what, id(key)] = make()
        return self._memo[what, id(key)]


def _find_functions(method: FunctionType) -> Iterator[tuple[str, Any]]:
    for function in undecorated(method):
        for name in used_names(function.__code__) & set(function.__globals__):
            value = function.__globals__[name]
            if value is not method and _attention.rotates(value):
                yield name, value


def files(methods: Mapping[str, Any]) -> set[str]:
    """Return the names of the Python modules that methods are written in."""
    return {f.__globals__.get("__name__", "") for method in methods.values() for f in undecorated(method)}


# ---- how the tables are used ----


@functools.lru_cache(maxsize=64)
def uses_of_tables(file: str, classes: frozenset[str], functions: frozenset[str]) -> str:
    """Return how the classes of a file use variables named cos and sin: "narrow", "full" or "inline".

    "narrow": only as arguments of `functions`, so that one number for each pair is enough. "inline": an
    operator multiplies by them. "full": in another way, or in no way that is seen.
    """
    try:
        tree = ast.parse(inspect.getsource(sys.modules[file]))
    except (OSError, TypeError, KeyError, SyntaxError):
        return "full"
    found: set[str] = set()
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and node.name in classes and not NAMES.search(node.name):
            found.update(_uses(node, functions))
    if "inline" in found:
        return "inline"
    return "narrow" if found == {"narrow"} else "full"


def _uses(tree: ast.AST, functions: frozenset[str]) -> Iterator[str]:
    for node in ast.walk(tree):
        for child in ast.iter_child_nodes(node):
            value = child.value if isinstance(child, ast.keyword) else child
            if isinstance(value, ast.Name) and isinstance(value.ctx, ast.Load) and TABLE.match(value.id):
                yield _use(node, functions)
        # One table of a pair, as position_embeddings[0]. A layer type, as in Gemma 3, is no constant.
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
            yield from ("full",) if PAIR.search(ast.unparse(node.value)) else ()


def _use(parent: ast.AST, functions: frozenset[str]) -> str:
    if isinstance(parent, ast.Call) and isinstance(parent.func, ast.Name) and parent.func.id in functions:
        return "narrow"
    if isinstance(parent, ast.keyword):  # `_uses` sees its call too
        return "narrow"
    return "inline" if isinstance(parent, ast.BinOp) else "full"
