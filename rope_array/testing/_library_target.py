"""Targets of rope_array itself: a library, served by any backend or by one that is forced.

A backend may decline calls. A forced backend is judged by the calls that it serves; `OwnApply` counts them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np

from ._claims import CALL_FIELDS, one_line, shorten
from ._compilers import COMPILED, arrays_of
from ._factors import FIELDS, SIZES, WIDTH
from ._libraries import NOT_COMPILED, ArrayLibrary, JaxLibrary, TorchLibrary
from ._refused import Declined
from ._target import Target


class OwnApply:
    """`rope_array.apply` with a forced backend, or any: counts its calls by the backend that serves them.

    `fields` are added to every call. `by_tables` is for a backend that declines positions.
    """

    def __init__(self, backend: str | None, fields: Mapping[str, Any] | None = None, by_tables: bool = False):
        self.backend, self.fields, self.by_tables = backend, dict(fields or {}), by_tables
        self.calls = BackendCalls([], [])  # several threads append to these

    def __call__(self, x: Any, pos: Any, **spec: Any) -> Any:
        spec = as_records({**self.fields, **spec})
        if not self.by_tables and not _has_array(spec):
            self.ask(x, pos, spec)
            return import_module("rope_array").apply(x, pos, backend=self.backend, **spec)
        with self._declining():
            y = _rotate_by_tables(x, pos, self.backend, **spec)
        if self.backend is not None:  # else `explain` knows positions only
            self.calls.served.append(self.backend)
        return y

    def attention_inputs(self, q: Any, k: Any, pos: Any, **options: Any) -> Any:
        """Make attention's inputs; the fields of the rope are among the options."""
        options = as_records({**self.fields, **options})
        self.ask(q, pos, {name: value for name, value in options.items() if name in FIELDS})
        with self._declining():
            return make_inputs(q, k, pos, self.backend, self.by_tables, **options)

    def ask(self, x: Any, pos: Any, spec: Mapping[str, Any]) -> None:
        """Count the backend that serves a call; raise `Declined` if the forced one declines it."""
        fields = {name: value for name, value in spec.items() if name != "inverse"}
        with self._declining():
            explanation = import_module("rope_array").explain(x, pos, backend=self.backend, **fields)
            self.calls.served.append(explanation.backend)

    @contextmanager
    def _declining(self) -> Iterator[None]:
        try:
            yield
        except import_module("rope_array").BackendError as error:
            reason = shorten(error.reason, 160)
            self.calls.declined.append(reason)
            raise Declined(reason) from None


class BackendCalls(NamedTuple):
    """The backend that served each call, and the reason for which each other call was declined."""

    served: list[str]
    declined: list[str]


def calls_of(target: Target) -> BackendCalls:
    """Return the calls that were counted for a target; none for code that is not rope_array's."""
    return target.rotate.calls if isinstance(target.rotate, OwnApply) else BackendCalls([], [])


def _rotate_by_tables(
    x: Any, pos: Any, backend: str | None, seq_axis: int = -2, inverse: bool = False, **spec: Any
) -> Any:
    """Rotate by a `Rotation`, of frequencies in an array too; each x of a tuple by tables of its dtype."""
    if isinstance(x, tuple):
        return tuple(_rotate_by_tables(array, pos, backend, seq_axis, inverse, **spec) for array in x)
    import rope_array  # Dynamo traces the statement, but no call of `import_module`

    in_array = {"inv_freq": spec.pop("inv_freq"), "backend": backend} if _has_array(spec) else {}
    rotation = rope_array.RoPE(x.shape[-1], **spec).rotation(pos, like=x, **in_array)
    return (rotation.inverse() if inverse else rotation).apply(x, seq_axis=seq_axis, backend=backend)


def _has_array(spec: Mapping[str, Any]) -> bool:
    return hasattr(spec.get("inv_freq"), "dtype")


def apply_any(x: Any, pos: Any, backend: str | None = None, **spec: Any) -> Any:
    """Call `rope_array.apply`, or rotate by a `Rotation` if the frequencies are an array."""
    import rope_array

    if _has_array(spec):
        return _rotate_by_tables(x, pos, backend, **spec)
    return rope_array.apply(x, pos, backend=backend, **spec)


def make_inputs(
    q: Any, k: Any, pos: Any, backend: str | None = None, by_tables: bool = False, **options: Any
) -> Any:
    """Call `rope_array.attention_inputs`; the fields of the rope are among the options."""
    import rope_array

    fields = {name: options.pop(name) for name in FIELDS if name in options and name not in CALL_FIELDS}
    rope: Any = rope_array.RoPE(q.shape[-1], **fields)
    if by_tables:
        pos, rope = rope.rotation(pos, like=q, backend=backend), None
    return rope_array.attention_inputs(q, k, pos, rope, backend=backend, **options)


def as_records(spec: dict[str, Any]) -> dict[str, Any]:
    """Return a call's fields with `scaling` and `axes` mappings converted to rope_array's classes."""
    records = dict(spec)
    if isinstance(spec.get("axes"), Mapping):
        records["axes"] = import_module("rope_array").Axes(**spec["axes"])
    if isinstance(spec.get("scaling"), Mapping):
        rule = dict(spec["scaling"])
        records["scaling"] = _classes()[rule.pop("rope_type")](**rule)
    return records


def rope_type_of(rule: type) -> str:
    """Return the suite's name of a class of rules: its rope_type in configs, else the class's own name."""
    return str(getattr(rule, "_rope_type", "")) or rule.__name__.lower()


def _classes() -> dict[str, type]:
    """Return the classes of rope_array's rules by the suite's names."""
    rules: tuple[type, ...] = import_module("rope_array._spec.scaling").RULES
    return {rope_type_of(rule): rule for rule in rules}


# ---- targets ----


@dataclass(frozen=True)
class BackendTarget(Target):
    """A library, served by any backend of rope_array, or by a forced one."""

    backend: str | None = None
    # In the order in which they are asked, each with the reason why it cannot be used, or "".
    backends: Mapping[str, str] = field(default_factory=dict)

    @property
    def takes_arrays(self) -> bool:
        return True


def library_target(library: str, backend: str | None) -> Target:
    """Return the target of a library, served by the best backend of each call, or by a forced backend."""
    lib = arrays_of(library)
    lib.check_present()
    backend = backend or lib.backend
    with lib.running():
        rotate, served = (OwnApply(None), {}) if backend is None else _find_served(lib, backend)
        backends = _backends_of(lib)
    by_dynamo = library.endswith(":compile")
    target = BackendTarget(
        _uncounted(backend, rotate.fields) if by_dynamo else rotate,
        name=library if backend is None else f"{library} [{backend}]",
        version=f"{lib.module.partition('.')[0]} {lib.version}",
        library=library,
        fields=tuple(FIELDS),
        fixed=rotate.fields,
        dtypes=_dtypes(lib),
        angles="exact",
        declared=True,
        furthest=2**62,
        lacks={**_left_to_others(library), **served.get("lacks", {})},
        attention_inputs=(
            partial(make_inputs, backend=backend, **rotate.fields) if by_dynamo else rotate.attention_inputs
        ),
        backend=backend,
        backends=backends,
        head_dim=served.get("head_dim"),
    )
    if backend is not None and library in COMPILED:
        _check_compiled(target, backend)
    return target


def _left_to_others(library: str) -> dict[str, str]:
    """Return the capabilities that another target of the same library has."""
    if library in COMPILED:
        return dict(NOT_COMPILED)
    is_torch = isinstance(arrays_of(library), TorchLibrary)
    return {"jit": "torch.compile is a target of its own: torch:compile"} if is_torch else {}


def _dtypes(lib: ArrayLibrary) -> Sequence[str]:
    return lib.floats if isinstance(lib, JaxLibrary) else lib.dtypes


def _uncounted(backend: str | None, fields: Mapping[str, Any]) -> Callable[..., Any]:
    """Return `apply` with a backend, for Dynamo, which cannot trace the counting of calls."""

    def rotate(x: Any, pos: Any, **spec: Any) -> Any:
        return apply_any(x, pos, backend, **{**fields, **spec})

    rotate.prepare = as_records  # type: ignore[attr-defined]
    return rotate


def _check_compiled(target: Target, backend: str) -> None:
    """Raise if a forced backend declines compiled calls."""
    x = np.zeros((*SIZES, target.width_of(WIDTH)), np.float32)
    dtype = next(d for d in target.dtypes or () if d not in target.lacks)
    try:
        with target.arrays.running():
            target.call(target.arrays.asarray(x, dtype), target.arrays.asarray(np.arange(5, dtype=np.int32)))
    except Exception as error:
        reason = getattr(error, "reason", None) or one_line(error)
        raise ValueError(f"backend {backend!r} serves no compiled call: {reason}") from None


# ---- the calls that a forced backend serves ----

_PAIRINGS: tuple[dict[str, str], ...] = (
    {},
    {"pairing": "half"},
    {"pairing": "interleaved", "out_pairing": "half"},
    {"pairing": "half", "out_pairing": "interleaved"},
)
_HEAD_DIMS = (16, 64, 128, 256, 80, 96, 192, 32, 512)
# Sizes of x without the features: of most checks, of the checks of accuracy, and of these with many heads.
_LEADS = (SIZES, (1, 2, 150), (1, 512, 150))
_WIDE = (512, 576, 2048)


class _SampleCall(NamedTuple):
    """A call of usual sizes; it only asks for the reason to decline, if positions are served."""

    lib: ArrayLibrary
    lead: tuple[int, ...]
    width: int
    dtype: str
    rotate: OwnApply

    def decline_reason(self) -> str:
        x = self.lib.asarray(np.zeros((*self.lead, self.width), np.float32), self.dtype)
        pos = self.lib.asarray(np.arange(self.lead[-1], dtype=self.lib.integers[0]))
        try:
            if self.rotate.by_tables:
                self.rotate(x, pos)
            else:
                self.rotate.ask(x, pos, self.rotate.fields)
        except Declined as error:
            return str(error)
        return ""


def _sample_calls(lib: ArrayLibrary, backend: str) -> Iterator[_SampleCall]:
    """Yield calls to try, the usual first: two checks' sizes, and many heads for one head_dim."""
    floats = sorted(_dtypes(lib), key=lambda name: name != "float32")
    for by_tables, lead in itertools.product((False, True), _LEADS):
        widths = _HEAD_DIMS if lead == SIZES else (64, 128)
        for width, dtype, fields in itertools.product(widths, floats, _PAIRINGS):
            yield _SampleCall(lib, lead, width, dtype, OwnApply(backend, fields, by_tables))


def _find_served(lib: ArrayLibrary, backend: str) -> tuple[OwnApply, dict[str, Any]]:
    """Find a call that a backend serves; return how to make it, and claims of its dtypes and head_dims."""
    _check_known(lib, backend)
    declined = dict[str, None]()
    for call in _sample_calls(lib, backend):
        if not (reason := call.decline_reason()):
            return OwnApply(backend, call.rotate.fields, call.rotate.by_tables), _claims_of(call)
        declined[reason] = None
    raise ValueError(
        f"backend {backend!r} serves no call: it declined every pairing, dtype, head_dim and size tried: "
        f"{'; '.join([*declined][:4])}"
    )


def _claims_of(call: _SampleCall) -> dict[str, Any]:
    reasons = {name: call._replace(dtype=name).decline_reason() for name in _dtypes(call.lib)}
    claims: dict[str, Any] = {
        "lacks": {name: f"the backend declines it: {why}" for name, why in reasons.items() if why}
    }
    if call.width != WIDTH and call.lead == SIZES:  # else a backend for large arrays, or for all widths
        widths = sorted({*_HEAD_DIMS, *_WIDE})
        claims["head_dim"] = [w for w in widths if not call._replace(width=w).decline_reason()]
    return claims


def _check_known(lib: ArrayLibrary, backend: str) -> None:
    """Raise BackendError if the backend is unknown, cannot be used, or is not of this library."""
    if {"array-api": "", **_backends_of(lib)}.get(backend, "unknown"):
        import_module("rope_array").explain(_small(lib), 0, backend=backend)


def _backends_of(lib: ArrayLibrary) -> dict[str, str]:
    """Return the backends of a library's arrays, each with the reason why it cannot be used, or ""."""
    rope_array = import_module("rope_array")
    explained = rope_array.explain(_small(lib), 0, backend="array-api")
    unusable = {record.name: record.description for record in rope_array.backends() if record.usable is False}
    return {name: unusable.get(name, "") for name in (*explained.declined, explained.backend)}


def outdated_backends() -> list[str]:
    """Return why the compiled code of backends is older than its sources, which this run does not judge."""
    return sorted({record.outdated for record in import_module("rope_array").backends()} - {""})


def _small(lib: ArrayLibrary) -> Any:
    return lib.asarray(np.zeros((1, 2), np.float32))
