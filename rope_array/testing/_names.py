"""Targets by name: the libraries that rope_array serves, in their modes, and callables of other packages."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np

from ._claims import FIELDS
from ._libraries import LIBRARIES, Jax, Torch
from ._target import Target


def _own(backend: str | None) -> Callable[..., Any]:
    apply = import_module("rope_array").apply

    def rotate(x: Any, pos: Any, **spec: Any) -> Any:
        return apply(x, pos, backend=backend, **spec)

    return rotate


def _jitted(rotate: Callable[..., Any]) -> Callable[..., Any]:
    """Compile by jax.jit: arrays are traced, all else is static."""
    jax = import_module("jax")

    def call(x: Any, pos: Any, **spec: Any) -> Any:
        if hasattr(pos, "dtype"):
            return jax.jit(lambda x, pos: rotate(x, pos, **spec))(x, pos)
        return jax.jit(lambda x: rotate(x, pos, **spec))(x)

    return call


def _compiled(rotate: Callable[..., Any]) -> Callable[..., Any]:
    """Compile by torch.compile, as one graph, without the code generation that needs a C++ compiler."""
    compile_ = import_module("torch").compile
    made: dict[Any, Callable[..., Any]] = {}

    def call(x: Any, pos: Any, **spec: Any) -> Any:
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
        The name is not known, or what it names is neither a callable nor a `Target`.
    MissingLibrary
        The library or device asked for is not there.
    """
    if isinstance(target, str):
        target = _built_in(target, backend) if target in names() else _imported(target)
    if isinstance(target, Target):
        if given := sorted(claims):
            raise ValueError(f"{', '.join(given)}: a Target has its claims already; change those")
    else:
        target = Target(target, **claims)
    target.arrays.check_present()
    return target


def _built_in(name: str, backend: str | None) -> Target:
    library, _, mode = name.rpartition(":")
    if mode not in ("jit", "compile"):
        library, mode = name, ""
    lib = LIBRARIES[library]
    lib.check_present()
    if backend is not None:
        with lib.running():  # raises where there is no such path, or none for these arrays
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
    )


def _imported(name: str) -> Target | Callable[..., Any]:
    module, colon, attribute = name.partition(":")
    if not colon:
        raise ValueError(
            f"unknown target {name!r}; give one of {', '.join(names())}, "
            "or package.module:attribute for a callable"
        )
    found = import_module(module)
    for part in attribute.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            raise ValueError(f"{module} has no attribute {attribute!r}") from None
    if isinstance(found, Target) or callable(found):
        return found
    raise ValueError(f"{name} is a {type(found).__name__}; give a callable, or a rope_array.testing.Target")
