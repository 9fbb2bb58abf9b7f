"""Targets by name: the libraries that rope_array serves, in their modes, and callables of other packages."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import fields
from difflib import get_close_matches
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from types import ModuleType
from typing import Any

import numpy as np

from ._claims import FIELDS, one_line
from ._libraries import LIBRARIES, NOT_COMPILED, Jax, Torch
from ._target import Target


def _own(backend: str | None) -> Callable[..., Any]:
    apply = import_module("rope_array").apply

    def rotate(x: Any, pos: Any, **spec: Any) -> Any:
        return apply(x, pos, backend=backend, **spelled(spec))

    return rotate


def spelled(spec: dict[str, Any]) -> dict[str, Any]:
    """Return a call's fields with rules and maps as rope_array takes them: as its own records."""
    made = dict(spec)
    if isinstance(spec.get("axes"), Mapping):
        made["axes"] = import_module("rope_array").Axes(**spec["axes"])
    if isinstance(spec.get("scaling"), Mapping):
        rule = dict(spec["scaling"])
        made["scaling"] = getattr(import_module("rope_array"), _RULES[rule.pop("rope_type")])(**rule)
    return made


_RULES = {
    "linear": "Linear",
    "ntk": "NTKAware",
    "dynamic": "DynamicNTK",
    "yarn": "YaRN",
    "llama3": "Llama3",
    "longrope": "LongRoPE",
    "proportional": "Proportional",
    "periods": "Periods",
}


def _jitted(rotate: Callable[..., Any]) -> Callable[..., Any]:
    """Compile by jax.jit: arrays are traced, all else is static."""
    jax = import_module("jax")
    made: dict[Any, Callable[..., Any]] = {}

    def call(x: Any, pos: Any, **spec: Any) -> Any:
        spec, traced = spelled(spec), (x, pos) if hasattr(pos, "dtype") else (x,)
        key = repr(spec), repr(pos) if len(traced) == 1 else None
        if key not in made:
            made[key] = jax.jit(lambda x, array=pos: rotate(x, array, **spec))
        return made[key](*traced)

    return call


def _compiled(rotate: Callable[..., Any]) -> Callable[..., Any]:
    """Compile by torch.compile, as one graph, without the code generation that needs a C++ compiler."""
    compile_ = import_module("torch").compile
    made: dict[Any, Callable[..., Any]] = {}

    def call(x: Any, pos: Any, **spec: Any) -> Any:
        spec = spelled(spec)  # before it is traced
        key = (*map(_kind, x if isinstance(x, tuple) else (x,)), _kind(pos), repr(spec))
        if key not in made:

            def rotated(x: Any, pos: Any) -> Any:
                return rotate(x, pos, **spec)

            # A code object of its own: Dynamo gives one up after a handful of compilations.
            rotated.__code__ = rotated.__code__.replace(co_name=f"rotated{len(made)}")
            made[key] = compile_(rotated, fullgraph=True, backend="aot_eager")
        return made[key](x, pos)

    return call


def _kind(value: Any) -> str:
    """Return what compiled code is made for: a tensor's dtype, shape and strides, or a number as it is."""
    if not hasattr(value, "dtype"):
        return repr(value)
    return f"{value.dtype}{tuple(value.shape)}{value.stride()}{value.requires_grad}"


_MODES = {"jit": _jitted, "compile": _compiled}


def names() -> list[str]:
    """Return the names of the built-in targets."""
    modes = {name: "jit" for name, lib in LIBRARIES.items() if isinstance(lib, Jax)}
    modes |= {
        name: "compile" for name, lib in LIBRARIES.items() if isinstance(lib, Torch) and lib.device != "meta"
    }
    return [
        each
        for name in LIBRARIES
        for each in (name, f"{name}:{modes[name]}" if name in modes else "")
        if each
    ]


def resolve(target: str | Target | Callable[..., Any], backend: str | None = None, **claims: Any) -> Target:
    """Return the target that a name, a callable or a target stands for.

    Parameters
    ----------
    target : str, Target or callable
        A built-in target's name; "package.module:attribute" for a callable or a `Target`; or one of these.
    backend : str, optional
        For a built-in target: the path to force, as of `rope_array.apply`.
    **claims
        For a callable: fields of `Target`.

    Raises
    ------
    ValueError
        The name or a claim is not known, or what is named is neither a callable nor a `Target`.
    ImportError
        The module that is named cannot be imported.
    MissingLibrary
        The library or device asked for is not there.
    RuntimeError
        Python runs with -O, which takes out the checks' assertions.
    """
    if not __debug__:
        raise RuntimeError("python -O takes out the assertions that the checks are made of; run without -O")
    if isinstance(target, str) and target in names():
        if claims:
            raise ValueError(
                f"{target} claims all that rope_array does; {', '.join(claims)}: say it of a callable"
            )
        return _built_in(target, backend)
    if backend is not None:
        raise ValueError(
            f"backend={backend!r} forces a path of rope_array's; {target} is none of its targets"
        )
    if isinstance(target, str):
        target, about = _imported(target)
        claims = {**about, **claims} if not isinstance(target, Target) else claims
    if isinstance(target, Target):
        if claims:
            raise ValueError(f"{', '.join(sorted(claims))}: a Target has its claims already; change those")
    else:
        target = _claimed(target, claims)
    target.arrays.check_present()
    return target


def _claimed(rotate: Callable[..., Any], claims: dict[str, Any]) -> Target:
    known = [each.name for each in fields(Target) if each.name != "rotate"]
    if unknown := sorted(set(claims) - set(known)):
        raise ValueError(f"unknown claim {', '.join(map(repr, unknown))}; known: {', '.join(known)}")
    return Target(rotate, **claims)


def _built_in(name: str, backend: str | None) -> Target:
    library, _, mode = name.rpartition(":")
    if mode not in ("jit", "compile"):
        library, mode = name, ""
    lib = LIBRARIES[library]
    lib.check_present()
    with lib.running():  # raises where there is no such path, none for these arrays, or it is not installed
        _own(backend)(lib.asarray(np.zeros((1, 2), np.float32)), 0)
    return Target(
        _own(backend),
        name=name if backend is None else f"{name} [{backend}]",
        version=f"{lib.module.partition('.')[0]} {lib.version}",
        library=library,
        fields=tuple(FIELDS),
        dtypes=lib.floats if isinstance(lib, Jax) else lib.dtypes,
        angles="exact",
        wraps=_MODES[mode] if mode else None,
        declared=True,
        furthest=2**62,
        lacks=NOT_COMPILED if mode else {},
    )


def _imported(name: str) -> tuple[Target | Callable[..., Any], dict[str, Any]]:
    """Return what a name stands for, and what reports call it."""
    module, colon, attribute = name.partition(":")
    if not colon or not attribute or not all(part.isidentifier() for part in module.split(".")):
        near = get_close_matches(name, names(), 1)
        raise ValueError(
            f"unknown target {name!r}; give one of {', '.join(names())}, or package.module:attribute for a "
            f"callable, the module as `import` takes it{f'. Did you mean {near[0]}?' if near else ''}"
        )
    try:
        root = found = import_module(module)
    except (Exception, SystemExit) as error:
        raise ImportError(f"cannot import {module}: {one_line(error)}") from error
    for part in attribute.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            raise ValueError(f"{module} has no attribute {attribute!r}") from None
    if isinstance(found, Target) or (callable(found) and not isinstance(found, type)):
        return found, {"name": name, "version": _version_of(root)}
    what = f"the class {found.__qualname__}" if isinstance(found, type) else f"a {type(found).__name__}"
    raise ValueError(
        f"{name} is {what}; give a callable rotate(x, pos, **spec), or a rope_array.testing.Target"
    )


def _version_of(module: ModuleType) -> str:
    """Return the version of a module's package, as it or its distribution says; nothing where none does."""
    package = module.__name__.partition(".")[0]
    said = getattr(sys.modules[package], "__version__", None)
    try:
        return f"{package} {said or version(package)}"
    except PackageNotFoundError:
        return ""
