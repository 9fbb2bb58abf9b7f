"""Patch and unpatch: find the modules, check all of them, then change their attributes."""

import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from os import PathLike
from typing import Any

import torch

from rope_array._config._model_defaults import TRANSFORMERS
from rope_array._errors import PatchError, RoPEError, describe
from rope_array.config import read_layers

from . import _rotary
from ._attributes import NamedModule, install, is_patched, restore
from ._code import Code, multiplies_inline, names_rotation, python_modules
from ._report import Entry, Left, Report
from ._rotary import ConfigMismatch, RotaryPlan, UnsupportedModule

TOWER = re.compile("vision|visual|image|video|audio|speech|tower|codec", re.IGNORECASE)
CLASSES = "transformers.AutoModelForCausalLM, or another Auto class that fits the model"


def patch(model: Any, angles: str) -> Report:
    """Patch a model; see `rope_array.hf.patch`."""
    check_module(model)
    if angles not in ("exact", "float32"):
        raise PatchError(f"angles is {angles!r}; give 'exact' or 'float32'.")
    if is_patched(model):
        raise PatchError("the model is patched already; call rope_array.hf.unpatch(model) first.")
    with torch.device("cpu"):  # for the probes, whatever the default device is
        patcher = _Patcher(model, angles == "exact")
        steps = [*patcher.rotary_steps(), *patcher.attention_steps()]
    install((step.module, step.methods) for step in steps)
    return Report(tuple(step.entry for step in steps), tuple(patcher.left), angles)


def unpatch(model: Any) -> bool:
    """Undo `patch`; see `rope_array.hf.unpatch`."""
    check_module(model)
    return restore(model)


def check_module(model: Any) -> None:
    if isinstance(model, torch.nn.Module):
        return
    # Not the repr: a config's has many lines.
    type_name = f"of the type {type(model).__name__}"
    description = describe(model) if isinstance(model, type | str) else type_name
    raise PatchError(f"the model is {description}; give a torch.nn.Module{_where_to_get_it(model)}.")


def _where_to_get_it(model: Any) -> str:
    """Return how a value that is no model leads to one; nothing for values without a known relation."""
    if isinstance(model, str | PathLike):
        return f": load it first, by from_pretrained of {CLASSES}, and pass the result"
    if isinstance(model, type) and issubclass(model, torch.nn.Module):
        return ", an instance of the class"
    if hasattr(model, "model_type"):
        return f": make it first, by from_config of {CLASSES}, and pass the result"
    return ": its attribute model" if isinstance(getattr(model, "model", None), torch.nn.Module) else ""


def _version_hint() -> str:
    """Return a sentence if transformers is another version than the tested one; else nothing."""
    version = getattr(sys.modules.get("transformers"), "__version__", TRANSFORMERS)
    tested = TRANSFORMERS.rpartition(".")[0]
    if version.rpartition(".")[0] == tested:
        return ""
    return f" Its code is of transformers {version}, and patch follows {tested}: try that version."


def _rotates_nothing(model: Any) -> bool:
    """Return whether a model has no rotation, by its config, or else by its code."""
    with suppress(RoPEError):  # of a config that is missing, or of no known model with a rotation
        return not any(reading.rope.rotary_dim for _, reading in read_layers(getattr(model, "config", None)))
    return not names_rotation(model)


@dataclass(frozen=True)
class _Step:
    """A module, its new methods by name, and its entry in the report."""

    module: NamedModule
    methods: Mapping[str, Callable[..., Any]]
    entry: Entry


class _Patcher:
    """One call of `patch`: the modules found, how each is replaced, and the modules left alone."""

    def __init__(self, model: Any, exact: bool):
        self.exact, self.code = exact, Code(exact)
        self.modules = dict(model.named_modules())
        self.left: list[Left] = []
        self.rotaries = list(self._plan_rotaries())
        if not self.rotaries and not self.left and _rotates_nothing(model):
            raise PatchError(
                f"{type(model).__name__} has no rotation, so there is nothing to patch; use it as it is."
            )
        if not self.rotaries:
            reasons = "".join(f" {left.name} ({left.cls}): {left.reason}." for left in self.left)
            raise PatchError(
                f"{type(model).__name__} has no rotary module that patch supports.{reasons}{_version_hint()} "
                "Replace the rotation yourself; see 'Refused models' in docs/in-my-model/huggingface.md."
            )
        self.users = list(self._find_users())

    def _plan_rotaries(self) -> Iterator[RotaryPlan]:
        """Plan each rotary module. Skip a tower whose rope is not known; refuse other models."""
        for name, module in self.modules.items():
            cls = type(module).__name__
            if not _rotary.NAMES.search(cls) or self.code.methods(type(module)):
                continue  # a class that calls a rotary function itself is an attention layer
            try:
                yield _rotary.plan_rotary(name, module, self._model_of(name), self.exact)
            except ConfigMismatch as difference:
                cause = f"{_version_hint()} Or the" if _version_hint() else " The"
                raise PatchError(
                    f"{NamedModule(name, module)}: {difference}.{cause} model does not match its config: "
                    "reload it, or correct the config."
                ) from None
            except (UnsupportedModule, RoPEError) as error:
                reason = str(error).removesuffix(".")
                if _rotary.has_frequencies(module) and not TOWER.search(f"{name} {cls}"):
                    raise PatchError(f"{NamedModule(name, module)}: {reason}.{_version_hint()}") from None
                self.left.append(Left(name, cls, reason))
                self.code.rounded.add(type(module).__module__)  # its own tables may have 16 bits

    def _model_of(self, name: str) -> Any:
        """Return the outermost module around a module that has a config."""
        names = name.split(".")
        paths = (".".join(names[:count]) for count in range(len(names) + 1))
        return next((self.modules[path] for path in paths if hasattr(self.modules[path], "config")), None)

    def _find_users(self) -> Iterator[tuple[NamedModule, Mapping[str, Any]]]:
        """Yield the modules whose methods call a rotary function. Skip modules of skipped towers."""
        supported = {type(plan.module).__module__ for plan in self.rotaries}
        left = tuple(f"{left.name.rpartition('.')[0]}." for left in self.left)
        for name, module in self.modules.items():
            methods = self.code.methods(type(module))
            if methods and python_modules(methods) & supported and not name.startswith(left):
                yield NamedModule(name, module), methods

    # -- steps --

    def rotary_steps(self) -> Iterator[_Step]:
        """Yield the steps for rotary modules. With float32 angles they keep their methods, but are listed."""
        for plan in self.rotaries:
            methods, ropes = {}, plan.ropes_in_float32
            learned = f" of the frequencies times exp({plan.log_scale})" if plan.log_scale else ""
            replaced = f"own tables{learned}"
            if self.exact:
                inline = self._is_inline(type(plan.module).__module__)
                methods["forward"] = _rotary.make_forward(plan, in_float32=not inline)
                rounded = inline and plan.keeps_dtype
                if rounded:
                    self.code.rounded.add(type(plan.module).__module__)
                replaced = f"exact tables{learned}{self._notes(plan, rounded)}"
                ropes = plan.ropes
            entry = Entry(plan.name, type(plan.module).__name__, ropes, replaced)
            yield _Step(NamedModule(plan.name, plan.module), methods, entry)

    @staticmethod
    def _notes(plan: RotaryPlan, rounded: bool) -> str:
        rounded_by = f", rounded to {plan.stored_as} by the checkpoint or by a cast"
        stored = f" of the model's frequencies{rounded_by}" if plan.stored_as else ""
        return stored + (", in the model's dtype" if rounded else "")

    def attention_steps(self) -> Iterator[_Step]:
        """Yield the steps for modules whose methods call a rotary function."""
        for user, methods in self.users:
            norms = {name: self.code.norm(user.module, method) for name, method in methods.items()}
            copies = {name: self.code.rebound(method, norms[name][0]) for name, method in methods.items()}
            copies = {name: method for name, method in copies.items() if method is not None}
            if copies:
                has_norm = any(norm is not None for norm, _ in norms.values())
                replaced = f"{'norm and ' if has_norm else ''}{self._describe_replaced(methods)}"
                kept = "; ".join(reason for _, reason in norms.values() if reason)
                entry = Entry(user.name, type(user.module).__name__, None, replaced, kept)
                yield _Step(user, copies, entry)

    def _describe_replaced(self, methods: Mapping[str, Any]) -> str:
        if not self.exact:
            return "rotation (float32 tensors only)"
        is_ours = None not in self.code.layouts(methods)
        return "rotation" if is_ours else "rotation by the model's function, rounded once"

    def _is_inline(self, module_name: str) -> bool:
        """Return whether a class of a Python module multiplies by tables itself, or calls no function."""
        if not any(module_name in python_modules(methods) for _, methods in self.users):
            return True
        classes = {base.__name__ for module in self.modules.values() for base in type(module).__mro__}
        return multiplies_inline(module_name, frozenset(classes))
