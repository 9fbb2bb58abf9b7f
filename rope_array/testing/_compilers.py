"""Compile any function of the suite's calls by its library's compiler: `jax:jit`, `torch:compile`.

Arrays are traced. Other fields, and positions that are Python values, are constants of the compiled code.
Every call that returns was compiled as a whole: code that the compiler cannot compile raises, it is never
called without the compiler.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from importlib import import_module
from types import MappingProxyType
from typing import Any

from ._claims import one_line
from ._libraries import LIBRARIES, ArrayLibrary, registered_library, registered_names, with_own_code

Rotate = Callable[..., Any]


class CannotCompile(RuntimeError):
    """A compiler cannot compile a call that the function itself takes."""


# The libraries with a compiler, by name, each with its arrays' library.
COMPILED = MappingProxyType(
    {f"{name}:{lib.compiler}": name for name, lib in LIBRARIES.items() if lib.compiler}
)


def library_names() -> list[str]:
    """Return the names of the libraries, each followed by itself with its compiler."""
    return [name for lib in LIBRARIES for name in (lib, *(c for c in COMPILED if COMPILED[c] == lib))]


def arrays_of(library: str) -> ArrayLibrary:
    """Return the array library of a name with or without a compiler."""
    name = COMPILED.get(library, library)
    return LIBRARIES[name] if name in LIBRARIES else _of_other_package(name)


def is_library(name: str) -> bool:
    """Return whether a name is of a library, of this or of another package; none is imported."""
    return name in LIBRARIES or name in COMPILED or name in registered_names()


@cache
def _of_other_package(name: str) -> ArrayLibrary:
    """Return the library of another package's backend; raise ValueError if a known library has its arrays."""
    library = registered_library(name)
    package = library.module.partition(".")[0]
    for known in LIBRARIES.values():
        if known.module.partition(".")[0] == package:
            raise ValueError(
                f"{name} is a backend for arrays of {known}: judge it by {known} --backend {name}"
            )
    return library


def compile_for(library: str, rotate: Rotate) -> Rotate:
    """Return a function compiled for a library's name; the same function if the name has no compiler.

    `rotate.prepare`, where it has one, converts a call's fields before the code is traced.
    """
    if library not in COMPILED:
        return rotate
    return (_jax_jitted if library.endswith(":jit") else _torch_compiled)(rotate)


def _fields_of(rotate: Rotate, spec: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the fields of a call that are constants, and the arrays among its fields."""
    prepared = getattr(rotate, "prepare", dict)(spec)
    arrays = {name: value for name, value in prepared.items() if hasattr(value, "dtype")}
    return {name: value for name, value in prepared.items() if name not in arrays}, arrays


def _jax_jitted(rotate: Rotate) -> Rotate:
    """Compile with jax.jit."""
    jax = import_module("jax")
    compiled: dict[Any, Rotate] = {}

    def call(x: Any, pos: Any, **spec: Any) -> Any:
        spec, arrays = _fields_of(rotate, spec)
        traced = (x, arrays, pos) if hasattr(pos, "dtype") else (x, arrays)
        key = repr(spec), repr(pos) if len(traced) == 2 else None
        if key not in compiled:
            compiled[key] = jax.jit(lambda x, arrays, array=pos: rotate(x, array, **spec, **arrays))
        try:
            return compiled[key](*traced)
        except Exception as error:
            raise _compile_error("jax.jit", error, rotate, x, pos, {**spec, **arrays}) from error

    return call


def _torch_compiled(rotate: Rotate) -> Rotate:
    """Compile with torch.compile, as one graph, without Inductor, which needs a C++ compiler."""
    torch = import_module("torch")
    rotate = getattr(rotate, "_torchdynamo_orig_callable", rotate)  # compiled already, with a limit
    graphs = _CountedGraphs()
    compiled: dict[Any, Rotate] = {}

    def call(x: Any, pos: Any, **spec: Any) -> Any:
        spec, arrays = _fields_of(rotate, spec)
        values = (*(x if isinstance(x, tuple) else (x,)), pos, *arrays.values())
        key = (*map(_key, values), repr(spec), _settings(torch))
        if key not in compiled:
            compiled[key] = torch.compile(
                with_own_code(partial(rotate, **spec)), fullgraph=True, backend=graphs.compile
            )
        try:
            return graphs.check_run(compiled[key], x, pos, arrays)
        except Exception as error:
            del compiled[key]  # Dynamo does not try again to compile a function that it could not
            spec = {**spec, **arrays}
            raise _compile_error("torch.compile(fullgraph=True)", error, rotate, x, pos, spec) from error

    return call


class _CountedGraphs:
    """Dynamo's backend `aot_eager`, with the number of graphs that were run."""

    def __init__(self) -> None:
        self.runs = 0

    def compile(self, graph: Any, examples: Any) -> Rotate:
        """Compile a graph of Dynamo's."""
        compiled = import_module("torch._dynamo").lookup_backend("aot_eager")(graph, examples)

        def run(*arguments: Any) -> Any:
            self.runs += 1
            return compiled(*arguments)

        return run

    def check_run(self, compiled: Rotate, x: Any, pos: Any, arrays: dict[str, Any]) -> Any:
        """Call compiled code; raise if no graph was run, unless it returns x itself."""
        before = self.runs
        y = compiled(x, pos, **arrays)
        if self.runs == before and y is not x:
            raise RuntimeError("no compiled graph was run; is torch.compile disabled by a setting?")
        return y


def _compile_error(
    compiler: str, error: Exception, rotate: Rotate, x: Any, pos: Any, spec: dict[str, Any]
) -> Exception:
    """Return the exception for a compiled call that failed; the function's own, if it refuses the call."""
    try:
        rotate(x, pos, **spec)
    except Exception as refusal:
        return refusal
    fields = f" with {', '.join(f'{name}={value!r}' for name, value in spec.items())}" if spec else ""
    return CannotCompile(
        f"{compiler} cannot compile the call{fields}, which runs uncompiled: {one_line(error, 400)}"
    )


def _key(value: Any) -> str:
    """Return the key that code is compiled for: a tensor's dtype, shape, strides and gradient, or a value."""
    if not hasattr(value, "dtype"):
        return repr(value)
    return f"{value.dtype}{tuple(value.shape)}{value.stride()}{value.requires_grad}"


def _settings(torch: Any) -> tuple[Any, ...]:
    """Return the settings of PyTorch that code is compiled for."""
    return (
        *(torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.is_autocast_enabled("cpu")),
        *(torch.get_default_dtype(), torch.get_default_device()),
        torch.are_deterministic_algorithms_enabled(),
    )
