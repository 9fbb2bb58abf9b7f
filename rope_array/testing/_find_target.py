"""Find a target by name: an array library in one of its modes, or a callable of another package."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Collection, Iterator
from dataclasses import fields, replace
from difflib import get_close_matches
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import ModuleType
from typing import Any

from ._claims import one_line
from ._compilers import is_library, library_names
from ._library_target import library_target
from ._target import Target, check_name


def resolve(
    target: str | Target | Callable[..., Any],
    backend: str | None = None,
    requires: Collection[str] = (),
    **claims: Any,
) -> Target:
    """Return the `Target` for the arguments of `run_checks`; `requires` is added to the target's own.

    Raise ValueError for a wrong name or claim, and for a backend that declines every call that is tried;
    ImportError for a missing module, library or device; BackendError for a backend of no or another library.
    """
    if not __debug__:
        raise RuntimeError("python -O removes the assertions of the checks; run without -O")
    resolved_target = _resolve(target, backend, claims)
    if not requires:
        return resolved_target
    if isinstance(requires, str) or not isinstance(requires, Collection):
        raise ValueError(f"requires is {requires!r}; give a collection of names")
    return replace(resolved_target, requires=tuple(dict.fromkeys((*resolved_target.requires, *requires))))


def _resolve(
    target: str | Target | Callable[..., Any], backend: str | None, claims: dict[str, Any]
) -> Target:
    if isinstance(target, str) and is_library(target):
        if claims:
            raise ValueError(
                f"{target} has all claims of rope_array; {', '.join(claims)}: claim it for a callable only"
            )
        return library_target(target, backend)
    if backend is not None:
        raise ValueError(
            f"backend={backend!r} forces a backend of rope_array; leave it out, as {target} is other code"
        )
    if isinstance(target, str):
        target, identity = _import_target(target)
        claims = {**identity, **claims} if not isinstance(target, Target) else claims
    if not isinstance(target, Target):
        for name in claims:
            check_name("claim", name, [field.name for field in fields(Target) if field.name != "rotate"])
        target = Target(target, **claims)
    elif claims:
        raise ValueError(f"{', '.join(sorted(claims))}: a Target has its claims already; change its own")
    target.arrays.check_present()
    return target


def _import_target(name: str) -> tuple[Target | Callable[..., Any], dict[str, Any]]:
    """Import the object of a name; return it, and its name and version for reports."""
    module, colon, attribute = name.partition(":")
    if not colon or not attribute or not all(identifier.isidentifier() for identifier in module.split(".")):
        near = [*_as_attribute(name), *get_close_matches(name, library_names(), 1)]
        suggestion = (
            f"Did you mean {near[0]}?" if near else f"The libraries are {', '.join(library_names())}."
        )
        raise ValueError(
            f"unknown target {name!r}; give a library, or package.module:attribute for a callable, the "
            f"module as `import` takes it. {suggestion}"
        )
    try:
        root = target = import_module(module)
    except (Exception, SystemExit) as error:
        raise ImportError(f"cannot import {module}: {one_line(error)}{_place_of(error)}") from error
    for attribute_name in attribute.split("."):
        try:
            target = getattr(target, attribute_name)
        except AttributeError:
            near = get_close_matches(attribute_name, dir(target), 1)
            hint = f"; did you mean {module}:{attribute.replace(attribute_name, near[0])}?" if near else ""
            raise ValueError(f"{module} has no attribute {attribute!r}{hint}") from None
    if isinstance(target, Target) or (callable(target) and not isinstance(target, type)):
        return target, {"name": name, "version": _version_of(root)}
    noun = f"the class {target.__qualname__}" if isinstance(target, type) else f"a {type(target).__name__}"
    raise ValueError(
        f"{name} is {noun}; give a callable rotate(x, pos, **spec), or a rope_array.testing.Target"
    )


def _place_of(error: BaseException) -> str:
    """Return the file and line of the user's code that an import ends at, as text; "" if it began no file."""
    frames = traceback.extract_tb(error.__traceback__)[1:]
    user_frames = [
        frame for frame in frames if not frame.filename.startswith("<") and "importlib" not in frame.filename
    ]
    return f" ({Path(user_frames[-1].filename).name}, line {user_frames[-1].lineno})" if user_frames else ""


def _as_attribute(name: str) -> Iterator[str]:
    """Yield the name "package.module:attribute" that a path, or a name with dots only, may mean."""
    path, _, attribute = name.partition(":")
    if path.endswith(".py") and attribute:
        yield f"{path.removesuffix('.py').strip('./').replace('/', '.')}:{attribute}"
    elif not attribute and all(identifier.isidentifier() for identifier in path.split(".")) and "." in path:
        yield ":".join(path.rsplit(".", 1))


def _version_of(module: ModuleType) -> str:
    """Return the version of a module's package, from `__version__` or its distribution, else ""."""
    package = module.__name__.partition(".")[0]
    declared_version = getattr(sys.modules[package], "__version__", None)
    try:
        return f"{package} {declared_version or version(package)}"
    except PackageNotFoundError:
        return ""
