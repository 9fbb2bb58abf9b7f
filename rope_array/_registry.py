"""Backends by array type: their records, and the order in which they are asked.

A backend's module is imported when the first array of its types appears; entry points of other packages are
loaded then too. The first backend that does not decline a call serves it; the last serves every call.
"""

import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any, NamedTuple, Protocol

from ._array_api.checks import as_source
from ._array_api.library import Library, library
from ._array_api.source import Call, CallOptions, Positions, Source
from ._array_api.tables import CosSin, make_tables, rotate_by_array_api
from ._array_api.trial import check_by_trial, check_library
from ._dynamo import traced_memo_of_one
from ._errors import BackendError, describe, printable, short

GROUP = "rope_array.backends"  # of entry points
_BACKENDS = "rope_array._backends"


class Record(NamedTuple):
    """A backend before its module is imported.

    Attributes
    ----------
    name
        The name that `backend=` takes.
    types
        Array types it serves, each "module:name"; subclasses are served too.
    module
        Module with the functions of `BackendModule`.
    """

    name: str
    types: tuple[str, ...]
    module: str


RECORDS = (
    Record("native", ("numpy:ndarray",), f"{_BACKENDS}.numpy.native"),
    Record("native", ("torch:Tensor",), f"{_BACKENDS}.torch.native"),
    Record("triton", ("torch:Tensor",), f"{_BACKENDS}.torch.triton"),
    Record("torch", ("torch:Tensor",), f"{_BACKENDS}.torch"),
    Record("jax", ("jax:Array", "jax.core:Tracer"), f"{_BACKENDS}.jax"),
    Record("cuda", ("cupy:ndarray",), f"{_BACKENDS}.cupy"),
    Record("dask", ("dask.array:Array",), f"{_BACKENDS}.dask"),
    Record("cubed", ("cubed:Array",), f"{_BACKENDS}.cubed"),
    Record("mlx", ("mlx.core:array",), f"{_BACKENDS}.mlx"),
    Record("ndonnx", ("ndonnx:Array",), f"{_BACKENDS}.ndonnx"),
    Record("tensorflow", ("tensorflow:Tensor", "tensorflow:Variable"), f"{_BACKENDS}.tensorflow"),
)


class BackendModule(Protocol):
    """The functions that a backend offers. The caller has checked their arguments.

    A backend may have more:

    * ``decline_reason(xs, source)`` returns why the backend declines a call, or None, by metadata alone.
    * ``make_tables(source, like)`` makes cos and sin; without it, the last backend of the type does.
    * ``library(x)`` returns the `Library` of x. A backend with a true `is_array_api` replaces the array-api
      backend: it is asked last, and ``backend="array-api"`` selects it.
    * `accepts_outs` is true if ``rotate`` takes `outs` as its last argument, and writes into these arrays
      unless it is None; they are checked.
    * ``try_fast(x, source, options, out)`` serves calls that it can check fast, before any other check, and
      returns NotImplemented for all others. Backends of this package take the fields of the source and of
      the options, as plain tuples.
    * ``try_fast_tables(source, like)`` makes tables as fast, or returns NotImplemented.
    * ``attention_inputs(inputs)`` makes the results of an `AttentionCall` in one pass, or returns
      NotImplemented; without it, the norm and the write into caches are array operations.
      ``try_fast_inputs(xs, source, options, norm, write, out)`` serves such calls before any check, as
      `try_fast` does. Both are for backends of this package, as is ``shift_keys(shift)``, which moves keys in
      the caches of a `KeyShift` and returns the caches, or NotImplemented, and before any check
      ``try_fast_shift(caches, slots, source, seq_axis)``.
    * ``description()`` returns a line for `rope_array.backends`, ``unavailable_reason()`` why the backend
      cannot be used here, or an empty string; ``outdated()`` that its compiled code is of other
      sources than its checkout has, or an empty string.
    """

    name: str

    def rotate(self, call: Call) -> tuple[Any, ...]:
        """Rotate the arrays of a call."""


class ArrayAPI:
    """The array-api backend; `library` returns the library of an array."""

    name = "array-api"
    is_array_api = True

    def __init__(self, library: Callable[[Any], Library]):
        self.library = library

    rotate = staticmethod(rotate_by_array_api)

    def make_tables(self, source: Positions, like: Any) -> CosSin:
        return make_tables(source, like, self.library(like))


ARRAY_API = ArrayAPI.name


class Backends(NamedTuple):
    """The backends of an array type.

    Attributes
    ----------
    in_order
        The order in which they are asked; the last is the array-api backend, or the library's own variant.
    try_fast
        The first backend's `try_fast`, or a function that declines every call.
    try_fast_tables, try_fast_inputs
        Likewise its `try_fast_tables` and `try_fast_inputs`.
    table_makers
        The function that makes cos and sin for each backend, by its name: its own, or the last backend's.
    library
        Returns the library of an array.
    """

    in_order: tuple[BackendModule, ...]
    try_fast: Callable[..., Any]
    try_fast_tables: Callable[..., Any]
    try_fast_inputs: Callable[..., Any]
    table_makers: dict[str, Callable[[Positions, Any], CosSin]]
    library: Callable[[Any], Library]


def _decline(*call: Any) -> Any:
    return NotImplemented


def _load_backends(cls: type) -> Backends:
    modules = [imported(record) for record in records() if _serves(record, cls)]
    backends = [backend for backend in modules if backend is not None]
    of_library = _library_function(backends)
    last = next((i for i, backend in enumerate(backends) if getattr(backend, "is_array_api", False)), None)
    array_api = ArrayAPI(of_library)
    backends = [*backends, array_api] if last is None else backends[: last + 1]
    default = getattr(backends[-1], "make_tables", array_api.make_tables)
    return Backends(
        tuple(backends),
        _fast_entry(backends[0]),
        getattr(backends[0], "try_fast_tables", _decline),
        getattr(backends[0], "try_fast_inputs", _decline),
        {backend.name: getattr(backend, "make_tables", default) for backend in backends},
        of_library,
    )


def _library_function(backends: list[Any]) -> Callable[[Any], Library]:
    """Return the function that returns the library of an array of one type.

    A library whose operations of the Array API rotate, and which this package does not know, is checked once:
    before the first call on the type.
    """
    for backend in backends:
        if hasattr(backend, "library"):
            is_known = backend.name in _BUILTIN or not getattr(backend, "is_array_api", False)
            of_library: Callable[[Any], Library] = backend.library
            return of_library if is_known else _after(check_by_trial, of_library)
    is_known = any(backend.name in _BUILTIN for backend in backends)
    return library if is_known else _after(check_library, library)


def _after(
    check: Callable[[Any, Library], None], of_library: Callable[[Any], Library]
) -> Callable[[Any], Library]:
    """Return a function that returns the library of an array, after a check of the first array."""
    checked: list[Library] = []

    def checked_library(x: Any) -> Library:
        if not checked:
            lib = of_library(x)
            check(x, lib)
            checked.append(lib)
        return checked[0]

    return checked_library


def _fast_entry(backend: Any) -> Callable[..., Any]:
    """Return a backend's `try_fast`, as a function of the fields of a source and of options."""
    if backend.name in _BUILTIN:
        entry: Callable[..., Any] = getattr(backend, "try_fast", _decline)
        return entry
    if not hasattr(backend, "try_fast"):
        return _decline
    return lambda x, source, options, out: backend.try_fast(x, as_source(source), CallOptions(*options), out)


# The backends of an array type: backends_of(type(x)).
backends_of = traced_memo_of_one(_load_backends)


def library_of(x: Any) -> Library:
    """Return the library of an array, as its backends know it."""
    lib: Library = backends_of(type(x)).library(x)
    return lib


def choose(backends: Backends, xs: tuple[Any, ...], source: Source, name: str | None) -> Any:
    """Return the first backend that does not decline, or the one asked for by name."""
    last = backends.in_order[-1]
    if name == ARRAY_API:
        return last
    if name is not None:
        return _by_name(backends, xs, source, name)
    for backend in backends.in_order[:-1]:
        if decline_reason(backend, xs, source) is None:
            return backend
    return last


def decline_reason(backend: Any, xs: tuple[Any, ...], source: Source) -> str | None:
    """Return why a backend declines a call, or None."""
    function = getattr(backend, "decline_reason", None)
    if function is None:
        return None
    if backend.name in _BUILTIN:
        reason: str | None = function(xs, source)
        return reason
    try:
        reason = function(xs, source)
    except (Exception, SystemExit) as error:  # another package's: it declines, and explain gives the reason
        return printable(f"its decline_reason() raised {type(error).__name__}: {error}")
    if reason is None or isinstance(reason, str):
        return reason
    return printable(f"its decline_reason() returned {short(reason)}; None serves the call, text declines it")


def _by_name(backends: Backends, xs: tuple[Any, ...], source: Source, name: str) -> Any:
    backend = next((backend for backend in backends.in_order if backend.name == name), None)
    if backend is None:
        raise _no_such_backend(backends, xs[0], name)
    reason = decline_reason(backend, xs, source)
    if reason is not None:
        raise BackendError(
            f"backend {name!r} does not serve {describe(xs[0])}: {reason}. Give backend=None, or "
            f"backend={ARRAY_API!r}, which serves every call.",
            backend=name,
            reason=reason,
        )
    return backend


def _no_such_backend(backends: Backends, x: Any, name: Any) -> BackendError:
    names = list(dict.fromkeys([ARRAY_API, *(record.name for record in records())]))
    if isinstance(name, str) and name in _broken:
        message = f"backend {name!r} cannot be used: {_broken[name]}."
        return BackendError(message, backend=name, reason=_broken[name])
    if name not in names:
        message = f"backend is {name!r}; give None or one of {', '.join(map(repr, names))}."
        return BackendError(message, backend=name)
    return BackendError(
        f"backend {name!r} does not serve {describe(x)}; its backends are "
        f"{', '.join(repr(backend.name) for backend in backends.in_order)}. "
        f"Give backend=None, or backend={ARRAY_API!r}, which serves every call.",
        backend=name,
    )


# ---- records and their modules ----

_records: tuple[Record, ...] | None = None
_broken: dict[str, str] = {}  # the fault of another package's backend, by its name


def records() -> tuple[Record, ...]:
    """Return third-party records, then ours."""
    global _records
    if _records is None:
        _records = (*_from_entry_points(), *RECORDS)
    return _records


def imported(record: Record) -> Any:
    """Import a backend's module; return None if another package's cannot be used."""
    if record in RECORDS:
        return import_module(record.module)
    try:
        backend = import_module(record.module)
        missing = [name for name in ("name", "rotate") if not hasattr(backend, name)]
        if missing or backend.name != record.name:
            raise AttributeError(f"it lacks {', '.join(missing) or f'the name {record.name!r}'}")
    except (Exception, SystemExit) as error:  # serve calls without it
        _broken[record.name] = _fault(f"its module {record.module!r} cannot be used", error)
        return None
    return backend


def broken() -> dict[str, str]:
    """Return the backends of other packages that cannot be used, each with its fault."""
    records()
    return dict(_broken)


def _from_entry_points() -> list[Record]:
    from importlib.metadata import entry_points  # slow to import, and needed at the first array only

    third_party: list[Record] = []
    for point in entry_points(group=GROUP):
        try:
            record = _checked_record(point.load(), [*third_party, *RECORDS])
        except (Exception, SystemExit) as error:  # one package's fault must not be another's
            _broken[point.name] = _fault(f"its entry point {point.value!r} is broken", error)
        else:
            third_party.append(record)
    return third_party


def _fault(problem: str, error: BaseException) -> str:
    return printable(f"{problem}: {type(error).__name__}: {error}")


def _checked_record(values: Any, earlier: list[Record]) -> Record:
    form = "(name, types, module): a str, a tuple of 'module:name', a str"
    if not isinstance(values, tuple) or len(values) != 3 or not isinstance(values[1], (tuple, list)):
        raise TypeError(f"{short(values)} is no {form}")
    record = Record(*values)
    texts = (record.name, record.module, *record.types)
    if not all(isinstance(text, str) and text for text in texts):
        raise TypeError(f"{short(values)} is no {form}")
    for name in record.types:
        if name.count(":") != 1:
            raise ValueError(f"the type {name!r} needs one colon, as 'numpy:ndarray' has")
    if record.name in {ARRAY_API, *(taken.name for taken in earlier)}:
        raise ValueError(f"the name {record.name!r} is taken")
    return record


_BUILTIN = {ARRAY_API, *(record.name for record in RECORDS)}


def _serves(record: Record, cls: type) -> bool:
    """Return whether a record serves a type. Only imported libraries are looked up."""
    bases = map(_loaded_type, record.types)
    return any(isinstance(base, type) and issubclass(cls, base) for base in bases)


def is_loaded(name: str) -> bool:
    """Return whether the library of a type, "module:name", is imported."""
    return _loaded_type(name) is not None


def _loaded_type(name: str) -> Any:
    module, _, attribute = name.partition(":")
    return getattr(sys.modules.get(module), attribute, None)
