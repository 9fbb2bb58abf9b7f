"""Patch and unpatch: find the modules, check all of them, then change their instance attributes."""

import ast
import functools
import inspect
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import FunctionType, MethodType
from typing import Any

import torch

from rope_array._errors import PatchError, describe

from . import _attention, _rotary
from ._attention import Multiplication
from ._rebind import rebind, undecorated, used_names
from ._report import Entry, Left, Report
from ._rotary import Contradiction, RotaryPlan, Unknown

MARK = "_rope_array_patch"  # the attribute of a patched module that holds its `Change`
TOWER = re.compile("vision|visual|image|video|audio|speech|sam|tower|codec", re.IGNORECASE)


@dataclass(frozen=True, eq=False)
class Change:
    """The attributes that were set on a module: by name, the new value and the value before.

    The value before is MISSING if the attribute was the class's.
    """

    values: dict[str, tuple[Any, Any]]

    def __reduce__(self) -> Any:
        raise PatchError(
            "a patched model cannot be pickled: its functions are made for this process. Call "
            "rope_array.hf.unpatch(model) first, or save model.state_dict(), which patch does not change."
        )

    def __deepcopy__(self, memo: dict[int, Any]) -> "Change":
        from copy import deepcopy

        return Change(
            {name: tuple(_copied(v, memo, deepcopy) for v in pair) for name, pair in self.values.items()}
        )


class _Missing:
    """The value of an attribute that a module does not have itself."""


MISSING = _Missing()


def _copied(value: Any, memo: dict[int, Any], deepcopy: Callable[..., Any]) -> Any:
    return value if value is MISSING else deepcopy(value, memo)


# ---- patch ----


def patch(model: Any, angles: str) -> Report:
    """Patch a model; see `rope_array.hf.patch`."""
    if not isinstance(model, torch.nn.Module):
        raise PatchError(f"the model is {describe(model)}; give a torch.nn.Module of transformers.")
    if angles not in ("exact", "float32"):
        raise PatchError(f"angles is {angles!r}; give 'exact' or 'float32'.")
    if any(MARK in vars(module) for module in model.modules()):
        raise PatchError("the model is patched already; call rope_array.hf.unpatch(model) first.")
    work = Work(model, angles == "exact")
    changes = [*work.rotary_changes(), *work.method_changes()]
    if not work.rotaries:
        raise PatchError(work.nothing_found())
    settled = [(change, _slots(change)) for change in changes]  # refuses before anything is changed
    for change, slots in settled:
        _set(change.module, slots)
    return Report(tuple(change.entry for change in changes), tuple(work.left), angles)


@dataclass(frozen=True)
class Replacement:
    """New methods of a module, by name, and the entry of the report."""

    module: Any
    methods: dict[str, Callable[..., Any]]
    entry: Entry


class Work:
    """One call of `patch`: the modules found, and how each is replaced."""

    def __init__(self, model: Any, exact: bool):
        self.model, self.exact = model, exact
        self.left: list[Left] = []
        self.modules = dict(model.named_modules())
        self.rotaries = list(self._plan_rotaries())
        self.functions = _Functions()
        self.users = list(self._find_users())

    # -- rotary modules --

    def _plan_rotaries(self) -> Iterator[RotaryPlan]:
        for name, module in self.modules.items():
            cls = type(module).__name__
            if not _rotary.NAMES.search(cls) or not _has_frequencies(module):
                continue
            try:
                yield _rotary.plan_rotary(name, module, self._owner(name))
            except Contradiction as difference:
                raise PatchError(f"{name} ({cls}): {difference}. The model is not the config's.") from None
            except Unknown as reason:
                if not TOWER.search(f"{name} {cls}"):
                    raise PatchError(f"{name} ({cls}): {reason}.") from None
                self.left.append(Left(name, cls, str(reason)))

    def _owner(self, name: str) -> Any:
        """Return the outermost module on the way to `name` that has a config."""
        parts = name.split(".")
        paths = (".".join(parts[:count]) for count in range(len(parts) + 1))
        return next((self.modules[path] for path in paths if hasattr(self.modules[path], "config")), None)

    def rotary_changes(self) -> Iterator[Replacement]:
        for plan in self.rotaries:
            cls = type(plan.module).__name__
            if not self.exact:
                yield Replacement(plan.module, {}, Entry(plan.name, cls, plan.ropes_in_float32, "own tables"))
                continue
            file = type(plan.module).__module__
            use = self._use_of(file)
            method = _rotary.replacement(plan, use == "narrow", use != "inline")
            what = "exact tables" + ("" if use != "inline" else ", in the model's dtype")
            entry = Entry(plan.name, cls, plan.ropes, what)
            yield Replacement(plan.module, {"forward": method}, entry)

    # -- the modules that call a function of tables --

    def _find_users(self) -> Iterator[tuple[str, Any, dict[str, Any]]]:
        """Yield (name, module, methods) of each module whose methods call such a function."""
        served = {type(plan.module).__module__ for plan in self.rotaries}
        for name, module in self.modules.items():
            methods = _methods_that_rotate(type(module))
            if methods and any(file in served for file in _files(methods)):
                yield name, module, methods

    def method_changes(self) -> Iterator[Replacement]:
        for name, module, methods in self.users:
            replaced = {label: self._replace(method) for label, method in methods.items()}
            replaced = {label: method for label, method in replaced.items() if method is not None}
            if replaced:
                known = self._all_known(methods)
                what = "rotation" if known else "rotation by the model's function, rounded once"
                yield Replacement(module, replaced, Entry(name, type(module).__name__, None, what))

    def _replace(self, method: Any) -> Any:
        narrow = self.exact and any(self._use_of(file) == "narrow" for file in _files({"": method}))
        return self.functions.rebound(method, self.exact, narrow)

    def _all_known(self, methods: dict[str, Any]) -> bool:
        found = [f for method in methods.values() for f in functions_of(method).values()]
        return all(self.functions.recognise(function) is not None for function in found)

    @functools.cache  # noqa: B019 - the work ends with the call of patch
    def _use_of(self, file: str) -> str:
        """Return how the modules of a file use the tables: "narrow", "full" or "inline".

        "narrow": each use is an argument of a function whose layout is known, so that one number per pair is
        enough. "inline": the modules multiply by the tables themselves.
        """
        users = [methods for _, _, methods in self.users if file in _files(methods)]
        if not users:
            return "inline"
        names = {type(module).__name__ for module in self.modules.values() if type(module).__module__ == file}
        names |= {base.__name__ for module in self.modules.values() for base in type(module).__mro__}
        functions = {label for methods in users for m in methods.values() for label in functions_of(m)}
        use = uses_of_tables(file, frozenset(names), frozenset(functions))
        known = all(self._all_known(methods) for methods in users)
        arranged = all(
            (tables.arrangement in ("cat", "repeat", "pairs") and tables.rope.axes is None)
            or tables.arrangement == "cat"
            for plan in self.rotaries
            if type(plan.module).__module__ == file
            for tables in plan.tables.values()
        )
        return "full" if use == "narrow" and not (known and arranged) else use

    def nothing_found(self) -> str:
        reasons = "; ".join(f"{left.name} ({left.cls}): {left.reason}" for left in self.left)
        return (
            f"{type(self.model).__name__} has no rotary module that patch knows"
            f"{f' ({reasons})' if reasons else ''}. See rope_array.RoPE.from_config and docs/models.md."
        )


def _has_frequencies(module: Any) -> bool:
    return any(name.endswith("inv_freq") for name in vars(module)["_buffers"])


class _Functions:
    """The functions of tables in a model: what each does, and its replacement, each found once."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Any, Multiplication | None]] = {}
        self._made: dict[Any, Any] = {}

    def recognise(self, function: Any) -> Multiplication | None:
        if id(function) not in self._known:
            self._known[id(function)] = function, _attention.recognise(function)
        return self._known[id(function)][1]

    def rebound(self, method: Any, exact: bool, narrow: bool) -> Any:
        """Return a copy of a method that calls the replacements; None if there is none."""
        key = id(method), exact, narrow
        if key not in self._made:
            functions = {
                name: self._replacement(f, exact, narrow) for name, f in functions_of(method).items()
            }
            functions = {name: f for name, f in functions.items() if f is not None}
            self._made[key] = method, rebind(method, functions) if functions else None
        return self._made[key][1]

    def _replacement(self, function: Any, exact: bool, narrow: bool) -> Any:
        how = self.recognise(function)
        if how is not None:
            return _attention.replacement(how, exact, narrow)
        if not exact:
            return None
        inner = self.rebound(function, exact, narrow) if type(function) is FunctionType else None
        return inner or _attention.unchanged_result_dtype(function)


# ---- the code of a model ----


def _methods_that_rotate(cls: type) -> dict[str, Any]:
    """Return the methods of a class that call a function of tables, by name."""
    found = {}
    for base in cls.__mro__:
        for name, value in vars(base).items():
            if name not in found and getattr(cls, name, None) is value and functions_of(value):
                found[name] = value
    return found


def functions_of(method: Any) -> dict[str, Any]:
    """Return the global functions of tables that a method uses, by name."""
    found = {}
    for function in undecorated(method):
        for name in used_names(function.__code__) & set(function.__globals__):
            value = function.__globals__[name]
            if value is not method and _attention.rotates(value):
                found[name] = value
    return found


def _files(methods: dict[str, Any]) -> set[str]:
    return {f.__globals__.get("__name__", "") for method in methods.values() for f in undecorated(method)}


TABLE = re.compile("^(cos|sin)(_|$)")


@functools.lru_cache(maxsize=64)
def uses_of_tables(file: str, classes: frozenset[str], functions: frozenset[str]) -> str:
    """Return how the classes of a file use variables named cos and sin; see `Work._use_of`."""
    try:
        tree = ast.parse(inspect.getsource(sys.modules[file]))
    except (OSError, TypeError, KeyError, SyntaxError):
        return "full"
    found = set()
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and node.name in classes and not _rotary.NAMES.search(node.name):
            found |= set(_uses(node, functions))
    if "inline" in found:
        return "inline"
    return "narrow" if found == {"narrow"} else "full"


def _uses(tree: ast.AST, functions: frozenset[str]) -> Iterator[str]:
    for node in ast.walk(tree):
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.keyword):
                child = child.value
            if isinstance(child, ast.Name) and isinstance(child.ctx, ast.Load) and TABLE.match(child.id):
                yield _use(node, functions)
        # One table of a pair, as position_embeddings[0]. A layer type is no constant.
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
            if re.search("pos|rot|rope|freq", ast.unparse(node.value)):
                yield "full"


def _use(parent: ast.AST, functions: frozenset[str]) -> str:
    if isinstance(parent, ast.Call) and isinstance(parent.func, ast.Name) and parent.func.id in functions:
        return "narrow"
    if isinstance(parent, ast.keyword):  # its call is seen too
        return "narrow"
    return "inline" if isinstance(parent, ast.BinOp) else "full"


# ---- attributes ----


def _slots(change: Replacement) -> dict[str, tuple[Any, Any]]:
    """Return the attributes to set: by name, the new value and the value before; refuse the unknown."""
    slots = {}
    for name, function in change.methods.items():
        label, before = _slot(change.module, name, change.entry)
        slots[label] = MethodType(function, change.module), before
    return slots


def _slot(module: Any, name: str, entry: Entry) -> tuple[str, Any]:
    """Return the attribute that holds a method: below a hook of accelerate, `_old_forward`."""
    own = vars(module)
    if name not in own:
        return name, MISSING
    old = own.get("_old_forward")
    if name == "forward" and "_hf_hook" in own and getattr(old, "__func__", None) is type(module).forward:
        return "_old_forward", old
    if getattr(own[name], "__func__", None) is getattr(type(module), name, None):
        return name, own[name]
    raise PatchError(
        f"{entry.name} ({entry.cls}): its {name} is replaced by {describe(own[name])} already; call patch before "
        "the library that has replaced it."
    )


def _set(module: Any, slots: dict[str, tuple[Any, Any]]) -> None:
    own = vars(module)
    own[MARK] = Change(slots)
    for name, (new, _) in slots.items():
        own[name] = new


def unpatch(model: Any) -> None:
    """Undo `patch`; see `rope_array.hf.unpatch`."""
    if not isinstance(model, torch.nn.Module):
        raise PatchError(f"the model is {describe(model)}; give the torch.nn.Module that was patched.")
    marked = [(name, module) for name, module in model.named_modules() if MARK in vars(module)]
    if not marked:
        raise PatchError("the model is not patched.")
    undone = [(module, _undone(name, module)) for name, module in marked]  # refuses before a change
    for module, values in undone:
        own = vars(module)
        del own[MARK]
        for label, value in values.items():
            if value is MISSING:
                del own[label]
            else:
                own[label] = value


def _undone(name: str, module: Any) -> dict[str, Any]:
    """Return the values that the attributes of a patched module get back."""
    own, values = vars(module), {}
    for label, (new, before) in own[MARK].values.items():
        if own.get(label) is new:
            values[label] = before
        elif label == "forward" and own.get("_old_forward") is new:  # a hook of accelerate, added later
            values["_old_forward"] = MethodType(type(module).forward, module)
        else:
            raise PatchError(
                f"{name} ({type(module).__name__}): its {label} was replaced by {describe(own.get(label))} after "
                "patch; undo that first."
            )
    return values
