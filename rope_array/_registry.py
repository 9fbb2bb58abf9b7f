"""Paths by the type of the array: a path is a named offer to do what the core does, its own library's way.

Paths are known here as strings, and a path's module is imported when the first array of its types is seen.
Those of other packages are found then too, through entry points. For a type the paths stand in a chain: the
first that does not decline serves, and the last declines nothing. The table from type to chain is replaced
whole, so that a thread sees one state or the other.
"""

import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from threading import Lock
from typing import Any, NamedTuple, Protocol

from ._array_api import rotate as _core
from ._array_api.library import Library, library
from ._errors import ArrayTypeError, BackendError, describe, short
from ._spec.plan import Layout, Plan

GROUP = "rope_array.backends"  # of entry points


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
    Record("native", ("numpy:ndarray",), "rope_array._backends.numpy.native"),
    Record("numpy", ("numpy:ndarray",), "rope_array._backends.numpy"),
    Record("native", ("torch:Tensor",), "rope_array._backends.torch.native"),
    Record("torch", ("torch:Tensor",), "rope_array._backends.torch"),
    Record("jax", ("jax:Array", "jax.core:Tracer"), "rope_array._backends.jax"),
    Record("dask", ("dask.array:Array",), "rope_array._backends.dask"),
)


class Path(Protocol):
    """What a path offers. Each function checks all but the kinds of the arrays, before any work.

    A path may have more:

    * ``supports(xs, beside, layout)`` says why it declines, or None, by metadata alone; `beside` is what else
      the call brings: positions, or cos and sin.
    * ``library(x)`` is x's library as the core sees it; `is_core` is true where it does what the core does.
    * `writes` is true where ``apply`` and ``rotate`` take `outs` as their last argument, and write results
      there if it is not None: memory that is checked.
    * ``quick(x, pos, plan, seq_axis, out)`` and ``quick_rotate(x, cos, sin, layout, seq_axis, out)`` do calls
      that they can check fast, and return NotImplemented for all others.
    * ``about()`` is a line on it for `rope_array.backends`, ``missing()`` what keeps it from being used.

    `run(name, x, *args)` calls the function of that name on the path of x: a path whose arrays hold arrays of
    another library (dask's chunks) hands these on through it.
    """

    name: str

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


class Chain(NamedTuple):
    """The paths of a type, in the order they are asked.

    Attributes
    ----------
    paths
        The last one is the core, or does what it does.
    quick, quick_rotate
        The first path's short ways, or ones that decline every call.
    library
        From an array to its library as the core sees it.
    """

    paths: tuple[Any, ...]
    quick: Callable[..., Any]
    quick_rotate: Callable[..., Any]
    library: Callable[[Any], Library]


def _never(*call: Any) -> Any:
    return NotImplemented


class _Loaded:
    """The chains in use, each an attribute: what a tracer guards is then one name, not a table that grows."""


_loaded = _Loaded()
_names: dict[type, str] = {}
_broken: dict[str, str] = {}  # of another package's path: what is wrong with it
_records: tuple[Record, ...] | None = None
_lock = Lock()


def chain(xs: tuple[Any, ...]) -> Chain:
    """Return the chain for arrays: that of the first one's type."""
    if not xs:
        raise ArrayTypeError("x is an empty tuple; give an array, or a tuple of arrays.")
    found: Chain = getattr(_loaded, _name_of(type(xs[0])))
    return found


def library_of(x: Any) -> Library:
    """Return the library of an array as its paths see it."""
    return chain((x,)).library(x)


def choose(found: Chain, xs: tuple[Any, ...], beside: Any, layout: Layout, backend: str | None) -> Any:
    """Return the first path of a chain that does not decline, or the one asked for by name."""
    if backend is not None:
        return _forced(found, xs, beside, layout, backend)
    for path in found.paths:
        if reason(path, xs, beside, layout) is None:
            return path
    return found.paths[-1]


def reason(path: Any, xs: tuple[Any, ...], beside: Any, layout: Layout) -> str | None:
    """Say why a path declines a call, or None."""
    supports = getattr(path, "supports", None)
    if supports is None:
        return None
    if path.name in _BUILTIN:
        said: str | None = supports(xs, beside, layout)
        return said
    try:
        said = supports(xs, beside, layout)
    except Exception as error:  # another package's: it declines, and explain says why
        return f"its supports() raised {type(error).__name__}: {error}"
    return said


def _name_of(cls: type) -> str:
    return _names.get(cls) or _learn(cls)


# Dynamo calls a function so marked while it traces, and takes the result as a constant: it sees neither the
# table nor the import. This is all that torch.compiler.assume_constant_result does to a function.
_name_of._dynamo_marked_constant = True  # type: ignore[attr-defined]


def run(name: str, x: Any, *args: Any) -> Any:
    """Call one function of the path that x's type has."""
    beside, layout = _BESIDE[name](*args)
    path = choose(chain((x,)), (x,), beside, layout, None)
    return getattr(path, name)(*args, run)


# From the arguments of a path's function to what it is chosen by.
_BESIDE: dict[str, Callable[..., tuple[Any, Layout]]] = {
    "apply": lambda xs, pos, plan, seq_axis: ((pos,), plan.layout),
    "tables": lambda pos, like, plan, inv_freq: ((pos, inv_freq), plan.layout),
    "rotate": lambda xs, cos, sin, layout, seq_axis: ((cos, sin), layout),
}


def _learn(cls: type) -> str:
    global _names
    paths = [path for path in map(imported, _of_type(cls)) if path is not None]
    # An attribute's name, in which Dynamo takes no dot.
    name = "+".join(path.__name__.replace(".", "_") for path in paths) or ARRAY_API.name
    ends = next((i for i, path in enumerate(paths) if getattr(path, "is_core", False)), None)
    paths = [*paths, ARRAY_API] if ends is None else paths[: ends + 1]
    of_library = next(path.library for path in paths if hasattr(path, "library"))
    quick, quick_rotate = (getattr(paths[0], way, _never) for way in ("quick", "quick_rotate"))
    setattr(_loaded, name, Chain(tuple(paths), quick, quick_rotate, of_library))
    with _lock:
        _names = {**_names, cls: name}
    return name


def _of_type(cls: type) -> Iterator[Record]:
    return (record for record in records() if _serves(record, cls))


def imported(record: Record) -> Any:
    """Import a path's module; None where that of another package fails."""
    if record in RECORDS:
        return import_module(record.module)
    try:
        path = import_module(record.module)
        missing = [need for need in ("name", "apply", "tables", "rotate") if not hasattr(path, need)]
        if missing or path.name != record.name:
            raise AttributeError(f"it lacks {', '.join(missing) or f'the name {record.name!r}'}")
    except Exception as error:  # whatever it is, calls without this path go on
        _broken[record.name] = f"its module {record.module!r} cannot be used: {type(error).__name__}: {error}"
        return None
    return path


def records() -> tuple[Record, ...]:
    """Return all paths: those of other packages, which are installed to be used, then our own."""
    global _records
    if _records is None:
        _records = (*_from_entry_points(), *RECORDS)
    return _records


def broken() -> dict[str, str]:
    """Return paths of other packages that cannot be used, each with what is wrong with it."""
    records()
    return dict(_broken)


def _from_entry_points() -> list[Record]:
    from importlib.metadata import entry_points  # takes longer to import than the rest: at the first array

    found: list[Record] = []
    for point in entry_points(group=GROUP):
        try:
            record = Record(*point.load())
            _check_record(record, [*found, *RECORDS])
        except Exception as error:  # one package's fault must not be another's
            fault = f"{type(error).__name__}: {error}"
            _broken[point.name] = f"its entry point {point.value!r} is broken: {fault}"
        else:
            found.append(record)
    return found


def _check_record(record: Record, others: list[Record]) -> None:
    texts = (record.name, record.module, *record.types)
    if isinstance(record.types, str) or not all(isinstance(text, str) and text for text in texts):
        raise TypeError(f"{short(tuple(record))} is no (name, types, module): a str, a tuple of str, a str")
    if record.name in {ARRAY_API.name, *(other.name for other in others)}:
        raise ValueError(f"the name {record.name!r} is taken")


_BUILTIN = {ARRAY_API.name, *(record.name for record in RECORDS)}


def _serves(record: Record, cls: type) -> bool:
    """Tell whether a type is of a record's, without importing their library: it is loaded if so."""
    bases = map(_loaded_type, record.types)
    return any(isinstance(base, type) and issubclass(cls, base) for base in bases)


def is_loaded(name: str) -> bool:
    """Tell whether the library of a type, "module:name", is imported."""
    return _loaded_type(name) is not None


def _loaded_type(name: str) -> Any:
    module, _, attribute = name.partition(":")
    return getattr(sys.modules.get(module), attribute, None)


def _forced(found: Chain, xs: Any, beside: Any, layout: Layout, backend: str) -> Any:
    if backend == ARRAY_API.name:
        # PyTorch's path is the core, with tensors of other kinds seen to, and stands for it.
        last = found.paths[-1]
        return last if getattr(last, "is_core", False) and last is not ARRAY_API else ArrayAPI(found.library)
    path = next((path for path in found.paths if path.name == backend), None)
    if path is None:
        raise _no_such_path(found, xs[0], backend)
    said = reason(path, xs, beside, layout)
    if said is not None:
        raise BackendError(
            f"backend {backend!r} does not serve {describe(xs[0])}: {said}. Give backend=None, or "
            f"backend={ARRAY_API.name!r} for the core."
        )
    return path


def _no_such_path(found: Chain, x: Any, backend: Any) -> BackendError:
    names = list(dict.fromkeys([ARRAY_API.name, *(record.name for record in records())]))
    if backend in _broken:
        return BackendError(f"backend {backend!r} cannot be used: {_broken[backend]}.")
    if backend not in names:
        return BackendError(f"backend is {backend!r}; give None or one of {', '.join(map(repr, names))}.")
    return BackendError(
        f"backend {backend!r} does not serve {describe(x)}; its paths are "
        f"{', '.join(repr(path.name) for path in found.paths)}. "
        f"Give backend=None, or backend={ARRAY_API.name!r} for the core."
    )
