"""Set attributes on modules, and restore them."""

import copy
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MethodType
from typing import Any

from rope_array._errors import PatchError, describe

MARK = "_rope_array_patch"  # the attribute of a patched module that holds its `Change`


class _MissingAttribute:
    """Marks an attribute that the module lacked before the patch."""

    def __deepcopy__(self, memo: Any) -> "_MissingAttribute":
        return self


MISSING = _MissingAttribute()


@dataclass(frozen=True, eq=False)
class Change:
    """The attributes that were set on a module: by name, the new value and the value before."""

    values: Mapping[str, tuple[Any, Any]]

    def __deepcopy__(self, memo: dict[int, Any]) -> "Change":
        return Change(copy.deepcopy(self.values, memo))

    def __reduce__(self) -> Any:
        raise PatchError(
            "a patched model cannot be pickled: its functions are made for this process. Call "
            "rope_array.hf.unpatch(model) first, or save model.state_dict(), which patch does not change."
        )


@dataclass(frozen=True)
class NamedModule:
    """A module with its name in the model, for messages."""

    name: str
    module: Any

    def __str__(self) -> str:
        return f"{self.name or 'the model itself'} ({type(self.module).__name__})"


def is_patched(model: Any) -> bool:
    """Return whether a module of the model has been patched."""
    return any(MARK in vars(module) for module in model.modules())


def install(targets: Iterable[tuple[NamedModule, Mapping[str, Callable[..., Any]]]]) -> None:
    """Set methods on modules, after a check of all of them."""
    changes = [(target.module, Change(dict(_new_values(target, methods)))) for target, methods in targets]
    for module, change in changes:
        vars(module).update({name: new for name, (new, _) in change.values.items()}, **{MARK: change})


def _new_values(target: NamedModule, methods: Mapping[str, Callable[..., Any]]) -> Iterable[tuple[str, Any]]:
    for name, method in methods.items():
        label, before = _place_of(target, name)
        yield label, (MethodType(method, target.module), before)


def _place_of(target: NamedModule, name: str) -> tuple[str, Any]:
    """Return the attribute that a method is set as, and its value; raise if another library has set it.

    Hooks of accelerate replace `forward`, and call the method that they keep as `_old_forward`.
    """
    attributes, method = vars(target.module), getattr(type(target.module), name)
    labels = ("_old_forward", name) if name == "forward" and "_hf_hook" in attributes else (name,)
    for label in labels:
        if getattr(attributes.get(label), "__func__", None) is method:
            return label, attributes[label]
    if name not in attributes:
        return name, MISSING
    raise PatchError(
        f"{target}: another library already replaced its {name} by {describe(attributes[name])}; undo that, "
        "or call patch first."
    )


def restore(model: Any) -> bool:
    """Restore the attributes of every module, after a check of all of them. False if none is patched."""
    patched = [NamedModule(name, module) for name, module in model.named_modules() if MARK in vars(module)]
    for target, values in [(target, _values_before(target)) for target in patched]:
        attributes = vars(target.module)
        del attributes[MARK]
        for name, value in values.items():
            if value is MISSING:
                attributes.pop(name, None)
            else:
                attributes[name] = value
    return bool(patched)


def _values_before(target: NamedModule) -> dict[str, Any]:
    attributes, values = vars(target.module), {}
    for name, (new, before) in attributes[MARK].values.items():
        present = attributes.get(name, MISSING)
        if present is new:
            values[name] = before
        elif name == "forward" and attributes.get("_old_forward") is new:  # a hook of accelerate, added later
            values["_old_forward"] = MethodType(type(target.module).forward, target.module)
        elif name == "_old_forward" and attributes.get("forward") is new:  # a hook that was removed later
            values["forward"] = before
        elif present is MISSING:  # deleted, so that no other code depends on it
            values[name] = before
        else:
            raise PatchError(
                f"{target}: its {name} was replaced by {describe(present)} after patch; undo that first."
            )
    return values
