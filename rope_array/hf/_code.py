"""Find the functions that take cos and sin in a model's code, and how the code uses the tables."""

import ast
import functools
import inspect
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from types import FunctionType
from typing import Any, TypeVar

from . import _attention
from ._attention import RotaryFunction, parameters
from ._norm import HeadNorm, find_norm
from ._norm_code import NormCode, rewrite
from ._rebind import rebind, undecorated, used_names
from ._rotary import NAMES

_Value = TypeVar("_Value")
TABLE = re.compile("^(cos|sin)(_|$)")  # variables of tables
# Words of code that rotates: of transformers' models, and of other code, whose names are not known.
_WORDS = re.compile(r"[Rr]otary|[Rr]otat|RoPE|Rope|\brope|_rope")
_WORDS_ELSEWHERE = re.compile(rf"{_WORDS.pattern}|\b(cos|sin)\b")


class Code:
    """Caches the layout and the replacement of each function that takes cos and sin.

    Attributes
    ----------
    exact
        Whether the angles are exact.
    rounded
        The names of the Python modules with a rotary module that may return tables of 16 bits.
    """

    def __init__(self, exact: bool):
        self.exact = exact
        self.rounded: set[str] = set()
        self._alive: list[Any] = []  # keeps the objects alive whose ids are keys
        self._memo: dict[Any, Any] = {}
        self._norms: dict[Any, Any] = {}  # the arithmetic of norm modules that were called

    def methods(self, cls: type) -> Mapping[str, Any]:
        """Return the methods of a class that call a function that takes cos and sin, by name."""
        return self._cached("methods", cls, lambda: dict(self._find_methods(cls)))

    def _find_methods(self, cls: type) -> Iterator[tuple[str, Any]]:
        for base in cls.__mro__:
            for name, value in vars(base).items():
                if getattr(cls, name, None) is value and self.functions(value):
                    yield name, value

    def functions(self, method: Any) -> Mapping[str, Any]:
        """Return the global functions that a method uses and that take cos and sin, by name."""
        if type(method) is not FunctionType:
            return {}
        return self._cached("functions", method, lambda: dict(_find_functions(method)))

    def layout(self, function: Any) -> RotaryFunction | None:
        """Return the layout of a function that takes cos and sin; None if it is not known."""
        return self._cached("layout", function, lambda: _attention.recognise(function))

    def layouts(self, methods: Mapping[str, Any]) -> list[RotaryFunction | None]:
        """Return the layouts of all functions that methods use."""
        return [self.layout(f) for method in methods.values() for f in self.functions(method).values()]

    def norm(self, module: Any, method: Any) -> tuple[HeadNorm | None, str]:
        """Return the norm that can run with the rotation in a method of a module, or the reason why not."""
        if not self.exact:
            return None, ""  # the sum of our norm has another order than the model's
        names = [name for name in self.norm_code(method).norms if getattr(module, name, None) is not None]
        if names:
            norm = find_norm(module, names, self._norms)
            return (None, norm) if isinstance(norm, str) else (norm, "")
        kept = self.norm_code(method).kept.items()
        return None, "; ".join(
            f"{name}: {why}" for name, why in kept if getattr(module, name, None) is not None
        )

    def norm_code(self, method: Any) -> NormCode:
        """Return a method whose rotations get the norms of their arrays."""
        layouts = {name: self.layout(f) for name, f in self.functions(method).items()}
        rotary = {name: 1 if layout.is_single else 2 for name, layout in layouts.items() if layout}
        return self._cached("norm code", method, lambda: rewrite(undecorated(method)[-1], rotary))

    def rebound(self, method: Any, norm: HeadNorm | None = None) -> Any:
        """Return a copy of a method that calls the replacements; None if none is replaced.

        `norm`: the norm that runs with the rotation.
        """
        return self._cached(f"rebound {norm}", method, lambda: self._rebind(method, norm))

    def _rebind(self, method: Any, norm: HeadNorm | None) -> Any:
        rounded = bool(python_modules({"": method}) & self.rounded)
        functions = {name: self._replacement(f, rounded, norm) for name, f in self.functions(method).items()}
        code = None if norm is None else self.norm_code(method).code
        copied = rebind(method, {name: f for name, f in functions.items() if f is not None}, code)
        takes_tables = "position_embeddings" in parameters(method)
        casts = takes_tables and any("float" in used_names(f.__code__) for f in undecorated(method))
        check = self.exact and not rounded and casts and copied is not None
        return _attention.check_tables_given(copied) if check else copied

    def _replacement(self, function: Any, rounded: bool, norm: HeadNorm | None) -> Any:
        function_layout = self.layout(function)
        if function_layout is not None:
            return _attention.make_rotate_function(
                function_layout, self.exact, rounded_tables=rounded, norm=norm
            )
        if not self.exact:
            return None
        # It may rotate a part of the features at a time, by a function whose layout is known.
        return self.rebound(function) or _attention.keep_input_dtype(function, rounded)

    def _cached(self, purpose: str, key: Any, make: Callable[[], _Value]) -> _Value:
        if (purpose, id(key)) not in self._memo:
            self._alive.append(key)
            self._memo[purpose, id(key)] = make()
        value: _Value = self._memo[purpose, id(key)]
        return value


def _find_functions(method: FunctionType) -> Iterator[tuple[str, Any]]:
    for function in undecorated(method):
        for name in used_names(function.__code__) & set(function.__globals__):
            value = function.__globals__[name]
            if value is not method and _attention.rotates(value):
                yield name, value


def python_modules(methods: Mapping[str, Any]) -> set[str]:
    """Return the names of the Python modules that define the methods."""
    return {f.__globals__.get("__name__", "") for method in methods.values() for f in undecorated(method)}


def names_rotation(model: Any) -> bool:
    """Return whether the code of a model's classes names a rotation, or cannot be read."""
    classes = {cls for module in model.modules() for cls in type(module).__mro__}
    for cls in classes:
        root, _, rest = cls.__module__.partition(".")
        if root in ("builtins", "torch") or (root == "transformers" and not rest.startswith("models.")):
            continue
        try:
            source = inspect.getsource(cls)
        except (OSError, TypeError):
            return True
        if (_WORDS if root == "transformers" else _WORDS_ELSEWHERE).search(source):
            return True
    return False


# ---- how the tables are used ----


@functools.lru_cache(maxsize=64)
def multiplies_inline(module_name: str, classes: frozenset[str]) -> bool:
    """Return whether classes of a Python module multiply by variables named cos and sin themselves."""
    try:
        tree = ast.parse(inspect.getsource(sys.modules[module_name]))
    except (OSError, TypeError, KeyError, SyntaxError):
        return False
    definitions = (
        node
        for node in tree.body
        if isinstance(node, ast.ClassDef) and node.name in classes and not NAMES.search(node.name)
    )
    return any(_is_factor(child, parent) for node in definitions for parent, child in _edges(node))


def _edges(tree: ast.AST) -> Iterator[tuple[ast.AST, ast.AST]]:
    for parent in ast.walk(tree):
        for child in ast.iter_child_nodes(parent):
            yield parent, child


def _is_factor(node: ast.AST, parent: ast.AST) -> bool:
    is_table = isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and TABLE.match(node.id)
    return bool(is_table) and isinstance(parent, ast.BinOp)
