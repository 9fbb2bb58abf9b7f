"""Find the functions that take cos and sin in a model's code, and how the code uses the tables."""

import ast
import functools
import inspect
import re
import sys
from collections.abc import Iterator, Mapping
from types import FunctionType
from typing import Any

from . import _attention
from ._attention import RotaryFunction
from ._rebind import rebind, undecorated, used_names
from ._rotary import NAMES

TABLE = re.compile("^(cos|sin)(_|$)")  # variables of tables
PAIR = re.compile("pos|rot|rope|freq")  # variables of pairs of tables


class Code:
    """Caches the layout and the replacement of each function that takes cos and sin.

    Attributes
    ----------
    exact
        Whether the angles are exact.
    """

    def __init__(self, exact: bool):
        self.exact = exact
        self._alive: list[Any] = []  # keeps the objects alive whose ids are keys
        self._memo: dict[Any, Any] = {}

    def methods(self, cls: type) -> Mapping[str, Any]:
        """Return the methods of a class that call a function that takes cos and sin, by name."""
        found: dict[str, Any] = self._cached("methods", cls, lambda: dict(self._find_methods(cls)))
        return found

    def _find_methods(self, cls: type) -> Iterator[tuple[str, Any]]:
        for base in cls.__mro__:
            for name, value in vars(base).items():
                if getattr(cls, name, None) is value and self.functions(value):
                    yield name, value

    def functions(self, method: Any) -> Mapping[str, Any]:
        """Return the global functions that a method uses and that take cos and sin, by name."""
        if type(method) is not FunctionType:
            return {}
        found: dict[str, Any] = self._cached("functions", method, lambda: dict(_find_functions(method)))
        return found

    def layout(self, function: Any) -> RotaryFunction | None:
        """Return the layout of a function that takes cos and sin; None if it is not known."""
        found: RotaryFunction | None = self._cached(
            "layout", function, lambda: _attention.recognise(function)
        )
        return found

    def layouts(self, methods: Mapping[str, Any]) -> list[RotaryFunction | None]:
        """Return the layouts of all functions that methods use."""
        return [self.layout(f) for method in methods.values() for f in self.functions(method).values()]

    def rebound(self, method: Any, per_pair: bool) -> Any:
        """Return a copy of a method that calls the replacements; None if none is replaced."""
        return self._cached(f"rebound {per_pair}", method, lambda: self._rebind(method, per_pair))

    def _rebind(self, method: Any, per_pair: bool) -> Any:
        found = {name: self._replacement(f, per_pair) for name, f in self.functions(method).items()}
        return rebind(method, {name: f for name, f in found.items() if f is not None})

    def _replacement(self, function: Any, per_pair: bool) -> Any:
        function_layout = self.layout(function)
        if function_layout is not None:
            return _attention.make_rotate_function(function_layout, self.exact, per_pair)
        if not self.exact:
            return None
        # It may rotate a part of the features at a time, by a function whose layout is known.
        return self.rebound(function, per_pair) or _attention.keep_input_dtype(function)

    def _cached(self, what: str, key: Any, make: Any) -> Any:
        if (what, id(key)) not in self._memo:
            self._alive.append(key)
            self._memo[what, id(key)] = make()
        return self._memo[what, id(key)]


def _find_functions(method: FunctionType) -> Iterator[tuple[str, Any]]:
    for function in undecorated(method):
        for name in used_names(function.__code__) & set(function.__globals__):
            value = function.__globals__[name]
            if value is not method and _attention.rotates(value):
                yield name, value


def python_modules(methods: Mapping[str, Any]) -> set[str]:
    """Return the names of the Python modules that define the methods."""
    return {f.__globals__.get("__name__", "") for method in methods.values() for f in undecorated(method)}


# ---- how the tables are used ----


@functools.lru_cache(maxsize=64)
def uses_of_tables(module_name: str, classes: frozenset[str], functions: frozenset[str]) -> str:
    """Return how classes of a Python module use variables cos and sin: "per pair", "full" or "inline".

    "per pair": only as arguments of `functions`, so that one number for each pair is enough. "inline": an
    operator multiplies by them. "full": in another way, or in no way that is seen.
    """
    try:
        tree = ast.parse(inspect.getsource(sys.modules[module_name]))
    except (OSError, TypeError, KeyError, SyntaxError):
        return "full"
    found: set[str] = set()
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and node.name in classes and not NAMES.search(node.name):
            found.update(_uses(node, functions))
    if "inline" in found:
        return "inline"
    return "per pair" if found == {"per pair"} else "full"


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
        return "per pair"
    if isinstance(parent, ast.keyword):  # `_uses` sees its call too
        return "per pair"
    return "inline" if isinstance(parent, ast.BinOp) else "full"
