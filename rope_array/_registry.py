"""Paths by the type of the array: a path is a named offer to do what the core does, its own library's way.

Paths are known here as strings, and a path's module is imported when the first array of its types is seen.
The table from type to path is replaced whole, so that a thread sees one state or the other.
"""

import sys
from collections.abc import Callable
from importlib import import_module
from threading import Lock
from typing import Any, NamedTuple, Protocol

from . import _core
from ._errors import ArrayTypeError, BackendError, describe
from ._namespace import Library, library
from ._plan import Layout, Plan


class Record(NamedTuple):
    """A path before its module is imported.

    Attributes
    ----------
    name
        What `backend=` calls it.
    types
        Array types it serves, each "module:name"; subclasses are served too.
    module
        Module with the functions of `Path`.
    """

    name: str
    types: tuple[str, ...]
    module: str


RECORDS = (
    Record("torch", ("torch:Tensor",), "rope_array.backends.torch"),
    Record("jax", ("jax:Array", "jax.core:Tracer"), "rope_array.backends.jax"),
    Record("dask", ("dask.array:Array",), "rope_array.backends.dask"),
)


class Path(Protocol):
    """What a path offers. Each function checks all but the kinds of the arrays, before any work.

    `run(name, x, *args)` calls the function of that name on the path of x: a path whose arrays hold arrays of
    another library (dask's chunks) hands these on through it.
    """

    name: str
    is_core: bool

    def library(self, x: Any) -> Library:
        """Return the library of x, as the core sees it."""

    def apply(self, xs: Any, pos: Any, plan: Plan, seq_axis: int, run: Any) -> Any:
        """Rotate each of xs by its positions."""

    def tables(self, pos: Any, like: Any, plan: Plan, inv_freq: Any, run: Any) -> Any:
        """Make cos and sin beside `like`."""

    def rotate(self, xs: Any, cos: Any, sin: Any, layout: Layout, seq_axis: int, run: Any) -> Any:
        """Rotate each of xs by tables."""


class ArrayAPI:
    """The path that every library has: the core."""

    name = "array-api"
    is_core = True

    def __init__(self, library: Callable[[Any], Library]):
        self.library = library

    def apply(self, xs: Any, pos: Any, plan: Plan, seq_axis: int, run: Any) -> Any:
        return _core.apply(xs, pos, plan, seq_axis, self.library(xs[0]))

    def tables(self, pos: Any, like: Any, plan: Plan, inv_freq: Any, run: Any) -> Any:
        return _core.tables(pos, like, plan, inv_freq, self.library(like))

    def rotate(self, xs: Any, cos: Any, sin: Any, layout: Layout, seq_axis: int, run: Any) -> Any:
        return _core.rotate(xs, cos, sin, layout, seq_axis, self.library(xs[0]))


ARRAY_API = ArrayAPI(library)


class _Loaded:
    """The paths in use, each an attribute: what a tracer guards is then one name, not a table that grows."""

    def __init__(self) -> None:
        setattr(self, ARRAY_API.name, ARRAY_API)


_loaded = _Loaded()
_names: dict[type, str] = {}
_lock = Lock()


def choose(xs: tuple[Any, ...], backend: str | None) -> Path:
    """Return the path for arrays: that of the first one's type, or the one asked for by name."""
    if not xs:
        raise ArrayTypeError("x is an empty tuple; give an array, or a tuple of arrays.")
    path: Path = getattr(_loaded, _name_of(type(xs[0])))
    return path if backend is None or backend == path.name else _forced(xs[0], path, backend)


def _name_of(cls: type) -> str:
    return _names.get(cls) or _learn(cls)


# Dynamo calls a function so marked while it traces, and takes the result as a constant: it sees neither the
# table nor the import. This is all that torch.compiler.assume_constant_result does to a function.
_name_of._dynamo_marked_constant = True  # type: ignore[attr-defined]


def run(name: str, x: Any, *args: Any) -> Any:
    """Call one function of the path that x's type has."""
    return getattr(choose((x,), None), name)(*args, run)


def _learn(cls: type) -> str:
    global _names
    record = next((r for r in RECORDS if _serves(r, cls)), None)
    name = record.name if record else ARRAY_API.name
    if record:
        setattr(_loaded, name, import_module(record.module))
    with _lock:
        _names = {**_names, cls: name}
    return name


def _serves(record: Record, cls: type) -> bool:
    """Tell whether a type is of a record's, without importing their library: it is loaded if so."""
    for name in record.types:
        module, _, attribute = name.partition(":")
        base = getattr(sys.modules.get(module), attribute, None)
        if base is not None and issubclass(cls, base):
            return True
    return False


def _forced(x: Any, path: Path, backend: str) -> Path:
    if backend == ARRAY_API.name:
        # PyTorch's path is the core, with tensors of other kinds seen to, and stands for it.
        return path if path.is_core else ArrayAPI(path.library)
    names = [ARRAY_API.name, *(r.name for r in RECORDS)]
    if backend not in names:
        raise BackendError(f"backend is {backend!r}; give None or one of {', '.join(map(repr, names))}.")
    raise BackendError(
        f"backend {backend!r} does not serve {describe(x)}; its path is {path.name!r}. "
        f"Give backend=None, or backend={ARRAY_API.name!r} for the core."
    )
