"""Find a target by name: an array library in one of its modes, or a callable of another package."""

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


def _own_apply(backend: str | None) -> Callable[..., Any]:
    apply = import_module("rope_array").apply

    def rotate(x: Any, pos: Any, **spec: Any) -> Any:
        return apply(x, pos, backend=backend, **as_records(spec))

    return rotate


def as_records(spec: dict[str, Any]) -> dict[str, Any]:
    """Return a call's fields with `scaling` and `axes` mappings converted to rope_array's classes."""
    records = dict(spec)
    if isinstance(spec.get("axes"), Mapping):
        records["axes"] = import_module("rope_array").Axes(**spec["axes"])
    if isinstance(spec.get("scaling"), Mapping):
        rule = dict(spec["scaling"])
        records["scaling"] = getattr(import_module("rope_array"), _RULES[rule.pop("rope_type")])(**rule)
    return records


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
    """Compile with jax.jit: arrays are traced, other arguments are static."""
    jax = import_module("jax")
    compiled: dict[Any, Callable[..., Any]] = {}

    def call(x: Any, pos: Any, **spec: Any) -> Any:
        spec, traced = as_records(spec), (x, pos) if hasattr(pos, "dtype") else (x,)
        key = repr(spec), repr(pos) if len(traced) == 1 else None
        if key not in compiled:
            compiled[key] = jax.jit(lambda x, array=pos: rotate(x, array, **spec))
        return compiled[key](*traced)

    return call


def _compiled(rotate: Callable[..., Any]) -> Callable[..., Any]:
    """Compile with torch.compile, as one graph, without Inductor, which needs a C++ compiler."""
    compile_ = import_module("torch").compile
    compiled: dict[Any, Callable[..., Any]] = {}

    def call(x: Any, pos: Any, **spec: Any) -> Any:
        spec = as_records(spec)  # before tracing
        key = (*map(_kind, x if isinstance(x, tuple) else (x,)), _kind(pos), repr(spec))
        if key not in compiled:

            def rotated(x: Any, pos: Any) -> Any:
                return rotate(x, pos, **spec)

            # A new code object: Dynamo stops compiling a code object after a handful of compilations.
            rotated.__code__ = rotated.__code__.replace(co_name=f"rotated{len(compiled)}")
            compiled[key] = compile_(rotated, fullgraph=True, backend="aot_eager")
        return compiled[key](x, pos)

    return call


def _kind(value: Any) -> str:
    """Return the key that code is compiled for: a tensor's dtype, shape, strides and gradient, or a value."""
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
    """Return the `Target` for a name, a callable or a `Target`.

    Parameters
    ----------
    target : str, Target or callable
        A built-in target's name; "package.module:attribute", which imports the module; or the object itself.
    backend : str, optional
        For a built-in target: the backend to force, as in `rope_array.apply`.
    **claims
        For a callable: fields of `Target`.

    Raises
    ------
    ValueError
        The name or a claim is unknown, or the name is of neither a callable nor a `Target`.
    ImportError
        The named module cannot be imported.
    MissingLibrary
        The target's library or device is missing.
    RuntimeError
        Python runs with -O, which removes the checks' assertions.
    """
    if not __debug__:
        raise RuntimeError("python -O removes the assertions of the checks; run without -O")
    if isinstance(target, str) and target in names():
        if claims:
            raise ValueError(
                f"{target} has all claims of rope_array; {', '.join(claims)}: claim it for a callable only"
            )
        return _built_in(target, backend)
    if backend is not None:
        raise ValueError(
            f"backend={backend!r} forces a backend of rope_array; leave it out, as {target} is other code"
        )
    if isinstance(target, str):
        target, identity = _import_target(target)
        claims = {**identity, **claims} if not isinstance(target, Target) else claims
    if isinstance(target, Target):
        if claims:
            raise ValueError(f"{', '.join(sorted(claims))}: a Target has its claims already; change its own")
    else:
        target = _target_of(target, claims)
    target.arrays.check_present()
    return target


def _target_of(rotate: Callable[..., Any], claims: dict[str, Any]) -> Target:
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
    with lib.running():  # raises if the backend is unknown, not installed, or not for these arrays
        _own_apply(backend)(lib.asarray(np.zeros((1, 2), np.float32)), 0)
    return Target(
        _own_apply(backend),
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


def _import_target(name: str) -> tuple[Target | Callable[..., Any], dict[str, Any]]:
    """Import the object of a name; return it, and its name and version for reports."""
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
    kind = f"the class {found.__qualname__}" if isinstance(found, type) else f"a {type(found).__name__}"
    raise ValueError(
        f"{name} is {kind}; give a callable rotate(x, pos, **spec), or a rope_array.testing.Target"
    )


def _version_of(module: ModuleType) -> str:
    """Return the version of a module's package, from `__version__` or its distribution, else ""."""
    package = module.__name__.partition(".")[0]
    own = getattr(sys.modules[package], "__version__", None)
    try:
        return f"{package} {own or version(package)}"
    except PackageNotFoundError:
        return ""
