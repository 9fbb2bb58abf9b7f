"""Patch and unpatch: find the modules, check all of them, then change their attributes."""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from rope_array._errors import PatchError, RoPEError, describe

from . import _rotary
from ._attributes import Module, is_patched, put_in_place, take_back
from ._code import Code, files, uses_of_tables
from ._report import Entry, Left, Report
from ._rotary import Contradiction, RotaryPlan, Unknown

TOWER = re.compile("vision|visual|image|video|audio|speech|tower|codec", re.IGNORECASE)


def patch(model: Any, angles: str) -> Report:
    """Patch a model; see `rope_array.hf.patch`."""
    if not isinstance(model, torch.nn.Module):
        raise PatchError(f"the model is {describe(model)}; give a torch.nn.Module of transformers.")
    if angles not in ("exact", "float32"):
        raise PatchError(f"angles is {angles!r}; give 'exact' or 'float32'.")
    if is_patched(model):
        raise PatchError("the model is patched already; call rope_array.hf.unpatch(model) first.")
    work = _Work(model, angles == "exact")
    steps = [*work.rotary_steps(), *work.attention_steps()]
    put_in_place((step.module, step.methods) for step in steps)
    return Report(tuple(step.entry for step in steps), tuple(work.left), angles)


def unpatch(model: Any) -> None:
    """Undo `patch`; see `rope_array.hf.unpatch`."""
    if not isinstance(model, torch.nn.Module):
        raise PatchError(f"the model is {describe(model)}; give the torch.nn.Module that was patched.")
    take_back(model)


@dataclass(frozen=True)
class _Step:
    """A module, its new methods by name, and its entry in the report."""

    module: Module
    methods: Mapping[str, Callable[..., Any]]
    entry: Entry


class _Work:
    """One call of `patch`: the modules found, how each is replaced, and the modules left alone."""

    def __init__(self, model: Any, exact: bool):
        self.exact, self.code = exact, Code(exact)
        self.modules = dict(model.named_modules())
        self.left: list[Left] = []
        self.rotaries = list(self._plan_rotaries())
        if not self.rotaries:
            reasons = "".join(f" {left.name} ({left.cls}): {left.reason}." for left in self.left)
            raise PatchError(
                f"{type(model).__name__} has no rotary module that patch knows.{reasons} docs/models.md "
                "lists the models that are known; replace the rotary module of another model yourself."
            )
        self.users = list(self._find_users())

    def _plan_rotaries(self) -> Iterator[RotaryPlan]:
        """Plan each rotary module. Leave a tower alone if its rope is not known; refuse other models."""
        for name, module in self.modules.items():
            cls = type(module).__name__
            if not _rotary.NAMES.search(cls) or self.code.methods(type(module)):
                continue  # the latter: an attention
            try:
                yield _rotary.plan_rotary(name, module, self._model_of(name))
            except Contradiction as difference:
                raise PatchError(f"{name} ({cls}): {difference}. The model is not the config's.") from None
            except (Unknown, RoPEError) as reason:
                if _rotary.has_frequencies(module) and not TOWER.search(f"{name} {cls}"):
                    raise PatchError(f"{name} ({cls}): {reason}.") from None
                self.left.append(Left(name, cls, str(reason)))

    def _model_of(self, name: str) -> Any:
        """Return the outermost module around a module that has a config."""
        parts = name.split(".")
        paths = (".".join(parts[:count]) for count in range(len(parts) + 1))
        return next((self.modules[path] for path in paths if hasattr(self.modules[path], "config")), None)

    def _find_users(self) -> Iterator[tuple[Module, Mapping[str, Any]]]:
        """Yield the modules whose methods call a function of tables, but for those of towers left alone."""
        served = {type(plan.module).__module__ for plan in self.rotaries}
        left = tuple(f"{left.name.rpartition('.')[0]}." for left in self.left)
        for name, module in self.modules.items():
            methods = self.code.methods(type(module))
            if methods and files(methods) & served and not name.startswith(left):
                yield Module(name, module), methods

    # -- steps --

    def rotary_steps(self) -> Iterator[_Step]:
        """Yield the steps for rotary modules. With float32 angles they keep their methods, but are listed."""
        for plan in self.rotaries:
            methods, what, ropes = {}, "own tables", plan.ropes_in_float32
            if self.exact:
                use = self._use_of(type(plan.module).__module__)
                methods["forward"] = _rotary.replacement(plan, use == "narrow", use != "inline")
                what = "exact tables" + (", in the model's dtype" if use == "inline" else "")
                ropes = plan.ropes
            entry = Entry(plan.name, type(plan.module).__name__, ropes, what)
            yield _Step(Module(plan.name, plan.module), methods, entry)

    def attention_steps(self) -> Iterator[_Step]:
        """Yield the steps for modules whose methods call a function of tables."""
        for user, methods in self.users:
            narrow = self.exact and any(self._use_of(file) == "narrow" for file in files(methods))
            found = {name: self.code.rebound(method, narrow) for name, method in methods.items()}
            found = {name: method for name, method in found.items() if method is not None}
            if found:
                known = None not in self.code.layouts(methods)
                what = "rotation" if known else "rotation by the model's function, rounded once"
                yield _Step(user, found, Entry(user.name, type(user.module).__name__, None, what))

    def _use_of(self, file: str) -> str:
        """Return how the modules of a file use the tables, as `uses_of_tables` does.

        "narrow" needs functions of known layouts too, and the arrangement of tables that they take.
        """
        users = [methods for _, methods in self.users if file in files(methods)]
        if not users:
            return "inline"
        classes = {base.__name__ for module in self.modules.values() for base in type(module).__mro__}
        names = {name for methods in users for m in methods.values() for name in self.code.functions(m)}
        use = uses_of_tables(file, frozenset(classes), frozenset(names))
        layouts = [layout for methods in users for layout in self.code.layouts(methods)]
        taken = {layout and layout.arrangement for layout in layouts}
        made = {
            tables.arrangement
            for plan in self.rotaries
            if type(plan.module).__module__ == file
            for tables in plan.tables.values()
        }
        return "full" if use == "narrow" and not (taken == made and len(made) == 1) else use
