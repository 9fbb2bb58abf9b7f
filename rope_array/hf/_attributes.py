"""Set attributes on modules, and restore them."""

import copy
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MethodType
from typing import Any

from rope_array._errors import PatchError, describe

MARK = "_rope_array_patch"  # the attribute of a patched module that holds its `Change`


class _Missing:
    """Marks an attribute that the module lacked before the patch."""

    def __deepcopy__(self, memo: Any) -> "_Missing":
        return self


MISSING = _Missing()


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
class Module:
    """A module with its name in the model, for messages."""

    name: str
    module: Any

    def __str__(self) -> str:
        return f"{self.name or 'the model itself'} ({type(self.module).__name__})"


def is_patched(model: Any) -> bool:
    """Return whether a module of the model has been patched."""
    return any(MARK in vars(module) for module in model.modules())


def install(methods: Iterable[tuple[Module, Mapping[str, Callable[..., Any]]]]) -> None:
    """Set methods on modules, after a check of all of them."""
    changes = [(one.module, Change({k: v for k, v in _new_values(one, found)})) for one, found in methods]
    for module, change in changes:
        vars(module).update({name: new for name, (new, _) in change.values.items()}, **{MARK: change})


def _new_values(one: Module, methods: Mapping[str, Callable[..., Any]]) -> Iterable[tuple[str, Any]]:
    for name, method in methods.items():
        label, before = _place_of(one, name)
        yield label, (MethodType(method, one.module), before)


def _place_of(one: Module, name: str) -> tuple[str, Any]:
    """Return the attribute that a method is set as, and its value; raise if another library has set it.

    Hooks of accelerate replace `forward`, and call the method that they keep as `_old_forward`.
    """
    own, method = vars(one.module), getattr(type(one.module), name)
    labels = ("_old_forward", name) if name == "forward" and "_hf_hook" in own else (name,)
    for label in labels:
        if getattr(own.get(label), "__func__", None) is method:
            return label, own[label]
    if name not in own:
        return name, MISSING
    raise PatchError(
        f"{one}: another library already replaced its {name} by {describe(own[name])}; undo that, or call "
        "patch first."
    )


def restore(model: Any) -> bool:
    """Restore the attributes of every module, after a check of all of them. False if none is patched."""
    found = [Module(name, module) for name, module in model.named_modules() if MARK in vars(module)]
    for one, values in [(one, _values_before(one)) for one in found]:
        own = vars(one.module)
        del own[MARK]
        for name, value in values.items():
            if value is MISSING:
                own.pop(name, None)
            else:
                own[name] = value
    return bool(found)


def _values_before(one: Module) -> dict[str, Any]:
    own, values = vars(one.module), {}
    for name, (new, before) in own[MARK].values.items():
        present = own.get(name, MISSING)
        if present is new:
            values[name] = before
        elif name == "forward" and own.get("_old_forward") is new:  # a hook of accelerate, added later
            values["_old_forward"] = MethodType(type(one.module).forward, one.module)
        elif name == "_old_forward" and own.get("forward") is new:  # a hook that was removed later
            values["forward"] = before
        elif present is MISSING:  # deleted, so that no other code depends on it
            values[name] = before
        else:
            raise PatchError(
                f"{one}: its {name} was replaced by {describe(present)} after patch; undo that first."
            )
    return values
