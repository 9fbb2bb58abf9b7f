"""What is judged: a callable, the arrays it takes, and what it claims."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib import import_module
from types import MappingProxyType
from typing import Any

import numpy as np

from ._contract import ANGLES, ARITHMETIC, Accuracy
from ._libraries import LIBRARIES, Jax, Library, Torch, rounded

# A valid value of each field of a call, for an x of four features, that changes the result.
FIELDS: dict[str, Any] = {
    "base": 50.0,
    "rotary_dim": 2,
    "rotary_start": 2,
    "pairing": "half",
    "out_pairing": "half",
    "inv_freq": (0.5, 0.25),
    "attention_factor": 2.0,
    "inverse": True,
    "seq_axis": -3,
}
_DEFAULTS: dict[str, Any] = {"base": 10000.0, "pairing": "interleaved", "inverse": False, "seq_axis": -2}

CAPABILITIES = {
    **{name: f"takes {name}" for name in FIELDS},
    "values": "gives values, not only shapes",
    "any_positions": "serves positions in any order",
    "offset_positions": "serves positions that start anywhere",
    "batch_positions": "takes positions of shape (B, S)",
    "head_positions": "takes positions of shape (B, H, S)",
    "broadcast_positions": "takes one position for all, and sizes of 1",
    "python_positions": "takes an int, a range or a list as positions",
    "negative_positions": "serves negative positions",
    "float_positions": "takes float positions",
    "narrow_positions": "takes positions of every integer dtype",
    "wide_positions": "serves positions beyond 32 bits",
    "reaches_2e16": "serves positions up to 2^16",
    "reaches_2e20": "serves positions up to 2^20",
    "reaches_2e24": "serves positions up to 2^24",
    "reaches_int32": "serves positions up to 2^31 - 1",
    "ranks": "takes x of any number of axes",
    "odd_width": "takes an odd head_dim, of which an even part is rotated",
    "zero_size": "takes arrays without elements",
    "strides": "takes arrays of any strides",
    "tuple": "takes several arrays in a tuple",
    "nonfinite": "keeps NaN and infinities in their pair",
    "same_bits": "gives a row the same bits whatever stands beside it",
    "gradient": "is differentiable",
    "float16": "takes float16",
    "bfloat16": "takes bfloat16",
    "float32": "takes float32",
    "float64": "takes float64",
    "lazy": "has arrays that are computed later",
    "jit": "is compiled by its library",
}
_REACH = {"reaches_2e16": 2**16, "reaches_2e20": 2**20, "reaches_2e24": 2**24, "reaches_int32": 2**31 - 1}
_SPREAD = {"any": (), "offset": ("any_positions",), "arange": ("any_positions", "offset_positions")}
# What a callable that declares nothing may refuse, loudly: it is tried, and named as not applicable.
_OPTIONAL: dict[str, Callable[[_Trial], Any]] = {
    "batch_positions": lambda t: t(t.x(2, 1, 2, 4), np.array([[0, 1], [2, 3]])),
    "head_positions": lambda t: t(t.x(1, 2, 1, 4), np.array([[[0], [1]]])),
    "broadcast_positions": lambda t: (
        t(t.x(2, 1, 2, 4), np.array(1)),
        t(t.x(2, 1, 2, 4), np.array([1])),
        t(t.x(2, 1, 2, 4), np.array([[1], [2]])),
    ),
    "python_positions": lambda t: [t.raw(t.x(1, 1, 2, 4), pos) for pos in (1, range(2), [1, 2])],
    "float_positions": lambda t: t(t.x(1, 1, 2, 4), np.array([0.5, 1.5])),
    "ranks": lambda t: [t(t.x(*shape), pos) for shape, pos in (((4,), np.array(1)), ((2, 4), np.arange(2)))],
    "odd_width": lambda t: t(t.x(1, 1, 2, 5), np.arange(2), rotary_dim=4),
    "tuple": lambda t: t((t.x(1, 1, 2, 4), t.x(1, 2, 2, 4)), np.arange(2)),
    "narrow_positions": lambda t: [t.raw(t.x(1, 1, 2, 4), t.pos([1, 2], kind)) for kind in t.lib.integers],
    "float16": lambda t: t(t.x(1, 1, 2, 4, dtype="float16"), np.arange(2)),
    "bfloat16": lambda t: t(t.x(1, 1, 2, 4, dtype="bfloat16"), np.arange(2)),
    "float64": lambda t: t(t.x(1, 1, 2, 4, dtype="float64"), np.arange(2)),
}
# What belongs to the contract, and code that forms its angles as products does not claim unless it says so.
_OF_THE_CONTRACT = ("same_bits", "nonfinite")


@dataclass(frozen=True)
class Target:
    """A rotary embedding to be judged.

    Parameters
    ----------
    rotate : callable
        ``rotate(x, pos, **spec)`` returns x rotated. The fields of spec are those of `rope_array.apply`:
        base, rotary_dim, rotary_start, pairing, out_pairing, inv_freq, attention_factor, inverse, seq_axis.
    name, version : str
        What reports call it; by default the callable's own name.
    library : str
        Whose arrays it takes, as of ``python -m rope_array check --list``.
    fields : collection of str, optional
        The fields it takes. By default those that its signature names; where it takes ``**spec`` too, or
        alone, each field is tried: see Notes.
    fixed : mapping
        Fields whose value is built in, such as ``{"pairing": "half"}``. A default in the signature counts so
        by itself.
    layout : str
        Axes of the x it takes. "...sd" is any rank; of "b", "h", "s", "d" in the order it wants them, such as
        "bshd", the suite moves its own (b, h, s, d), and calls once for each of the axes that are not there.
    positions : {"any", "offset", "arange"}
        Which positions it serves: any; start, start + 1, ...; or 0, 1, 2, ... only.
    furthest : int
        The largest position it serves, such as the last row of its table.
    dtypes : sequence of str, optional
        Names of the floating dtypes it takes; by default the library's own.
    angles : {"float64", "exact", "float32"}
        How angles are formed, so how far off they may be. "exact" is the contract of rope_array.
    arithmetic : {"float32", "own"}
        What 16-bit numbers are rotated in: float32 or wider and rounded once, or their own dtype.
    lacks : mapping of str to str
        Capabilities it does not claim, each with the reason. `CAPABILITIES` names all.
    expected_failures : mapping of str to str
        Checks known to fail, each with the reason and a link.
    wraps : callable, optional
        Called with `rotate` before use, inside the library's context: jax.jit, torch.compile.
    declared : bool
        Whether the claims are complete: nothing is then tried out, and a refusal is a failure.

    Raises
    ------
    ValueError
        A name among the arguments is unknown.

    Notes
    -----
    Where nothing is declared, claims are read off: a field that the signature names is claimed. One that can
    only go to ``**spec`` is claimed unless the call refuses it, by a TypeError that names it or by
    NotImplementedError; beside named fields it has to change the result too, for else it was swallowed.
    Shapes and kinds of positions that a call refuses, by any exception, are not claimed. All that is not
    claimed is listed with its reason.

    Examples
    --------
    >>> from rope_array.testing import Target
    >>> def rotate(x, pos, base=10000.0):
    ...     return x
    >>> sorted(Target(rotate).claimed & {"base", "pairing", "seq_axis"})
    ['base']
    """

    rotate: Callable[..., Any]
    name: str = ""
    version: str = ""
    library: str = "numpy"
    fields: Collection[str] | None = None
    fixed: Mapping[str, Any] = field(default_factory=dict)
    layout: str = "...sd"
    positions: str = "any"
    furthest: int = 2**31 - 1
    dtypes: Sequence[str] | None = None
    angles: str = "float64"
    arithmetic: str = "float32"
    lacks: Mapping[str, str] = field(default_factory=dict)
    expected_failures: Mapping[str, str] = field(default_factory=dict)
    wraps: Callable[[Callable[..., Any]], Callable[..., Any]] | None = None
    declared: bool = False

    def __post_init__(self) -> None:
        if not callable(self.rotate):
            raise ValueError(f"rotate is {self.rotate!r}; give a callable rotate(x, pos, **spec)")
        for what, given, known in (
            ("library", [self.library], LIBRARIES),
            ("fields", self.fields or (), FIELDS),
            ("fixed", self.fixed, FIELDS),
            ("positions", [self.positions], _SPREAD),
            ("angles", [self.angles], ANGLES),
            ("arithmetic", [self.arithmetic], ARITHMETIC),
            ("lacks", self.lacks, CAPABILITIES),
            ("dtypes", self.dtypes or (), ("float16", "bfloat16", "float32", "float64")),
        ):
            if unknown := sorted(set(given) - set(known)):
                raise ValueError(
                    f"{what}: unknown {', '.join(map(repr, unknown))}; known: {', '.join(known)}"
                )
        if self.layout != "...sd" and not _is_layout(self.layout):
            raise ValueError(
                f"layout is {self.layout!r}; give '...sd', or some of b, h, s, d with s before d last"
            )
        if not self.name:
            object.__setattr__(self, "name", _name_of(self.rotate))

    @property
    def arrays(self) -> Library:
        """The array library it takes."""
        return LIBRARIES[self.library]

    @property
    def accuracy(self) -> Accuracy:
        """The class that its results are held to."""
        return Accuracy(self.angles, self.arithmetic)

    @property
    def looped(self) -> str:
        """The axes of (b, h, s, d) that its layout lacks: the suite calls once for each of their elements."""
        return "" if self.layout == "...sd" else "".join(a for a in "bh" if a not in self.layout)

    @cached_property
    def call(self) -> Callable[..., Any]:
        """The callable, on x of any layout the suite makes."""
        rotate = self.wraps(self.rotate) if self.wraps else self.rotate
        return rotate if self.layout == "...sd" else _laid_out(rotate, self.layout, self.arrays)

    @cached_property
    def defaults(self) -> dict[str, Any]:
        """What a call without fields means."""
        return {**_DEFAULTS, **_stated_defaults(self.rotate), **self.fixed}

    @cached_property
    def declines(self) -> Mapping[str, str]:
        """Every capability that is not claimed, with the reason."""
        found = dict(self.arrays.lacks)
        if self.dtypes is not None:
            found.update(
                {
                    d: "not among its dtypes"
                    for d in ("float16", "bfloat16", "float32", "float64")
                    if d not in self.dtypes
                }
            )
        elif self.arrays.name.startswith("numpy"):
            found["bfloat16"] = "not a dtype of NumPy's own; name it in dtypes"
        found.update({name: f"serves positions {self.positions} only" for name in _SPREAD[self.positions]})
        found.update(
            {
                k: f"serves positions up to {self.furthest:,}"
                for k, far in _REACH.items()
                if self.furthest < far
            }
        )
        if self.positions == "arange":
            found.update(
                dict.fromkeys(
                    _REACH, "serves positions from 0 on only, which the suite would need a table of"
                )
            )
            for name in (
                "negative_positions",
                "narrow_positions",
                "broadcast_positions",
                "float_positions",
                "wide_positions",
                "batch_positions",
                "head_positions",
                "python_positions",
            ):
                found.setdefault(name, "takes no positions")
        if self.layout != "...sd":
            found["ranks"] = f"takes x as ({', '.join(self.layout)})"
            found["seq_axis"] = f"takes x as ({', '.join(self.layout)})"
        if self.furthest < 2**32:
            found.setdefault("wide_positions", f"serves positions up to {self.furthest:,}")
        if self.angles != "exact":
            found.update(dict.fromkeys(_OF_THE_CONTRACT, "promised by the class of exact angles only"))
        found.update({k: v for k, v in _fields_declined(self, found).items() if k not in found})
        found.update(self.lacks)
        if not self.declared:
            found.update(_refused(self, found))
        if "rotary_dim" in found and "odd_width" not in found:
            found["odd_width"] = f"rotary_dim: {found['rotary_dim']}"
        return MappingProxyType(found)

    @property
    def claimed(self) -> frozenset[str]:
        """Every capability that is claimed."""
        return frozenset(CAPABILITIES) - set(self.declines)


def _is_layout(layout: str) -> bool:
    return len(set(layout)) == len(layout) and set("sd") <= set(layout) <= set("bhsd") and layout[-1] == "d"


def _name_of(rotate: Callable[..., Any]) -> str:
    module, name = getattr(rotate, "__module__", None), getattr(rotate, "__qualname__", None)
    return f"{module}:{name}" if name else repr(rotate)


# ---- axes ----


def _laid_out(rotate: Callable[..., Any], layout: str, lib: Library) -> Callable[..., Any]:
    """Serve x as (b, h, s, d) by a callable that takes other axes."""
    axes = tuple("bhsd".index(a) for a in layout)
    missing = tuple(i for i in (0, 1) if i not in axes)
    inner = tuple(sorted(axes))
    order = tuple(inner.index(a) for a in axes)
    back = tuple(order.index(i) for i in range(len(order)))

    def call(x: Any, pos: Any, **spec: Any) -> Any:
        if isinstance(x, tuple):
            return tuple(call(one, pos, **spec) for one in x)
        sizes = [x.shape[i] for i in missing]
        parts = []
        for place in itertools.product(*map(range, sizes)):
            index = [slice(None)] * 4
            for axis, i in zip(missing, place, strict=True):
                index[axis] = i  # type: ignore[call-overload]
            row = pos
            if 0 in missing and getattr(pos, "ndim", 0) == 2:
                row = pos[place[0] if pos.shape[0] > 1 else 0]
            part = x[tuple(index)]
            turned = part if order == tuple(range(len(order))) else lib.permute(part, order)
            y = rotate(turned, row, **spec)
            parts.append(y if order == tuple(range(len(order))) else lib.permute(y, back))
        if not missing:
            return parts[0]
        if len(missing) == 2:
            parts = [lib.stack(parts[i : i + sizes[1]]) for i in range(0, len(parts), sizes[1])]
            return lib.stack(parts)
        stacked = lib.stack(parts)
        return stacked if missing == (0,) else lib.permute(stacked, (1, 0, 2, 3))

    return call


# ---- what a signature and a trial say ----


def _parameters(rotate: Callable[..., Any]) -> tuple[dict[str, inspect.Parameter], bool]:
    try:
        parameters = inspect.signature(rotate).parameters
    except (TypeError, ValueError):  # a builtin without a signature
        return {}, True
    named = {
        name: p
        for name, p in parameters.items()
        if name in FIELDS and p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)
    }
    return named, any(p.kind is p.VAR_KEYWORD for p in parameters.values())


def _stated_defaults(rotate: Callable[..., Any]) -> dict[str, Any]:
    named, _ = _parameters(rotate)
    return {
        name: p.default
        for name, p in named.items()
        if p.default is not p.empty and p.default is not None and name not in ("inverse", "seq_axis")
    }


def _fields_declined(target: Target, found: Mapping[str, str]) -> dict[str, str]:
    if target.fields is not None:
        return {name: "not among its fields" for name in FIELDS if name not in target.fields}
    named, catches = _parameters(target.rotate)
    if not catches:
        return {name: "its signature does not name it" for name in FIELDS if name not in named}
    if target.declared or "values" in found:
        return {}
    reasons = {name: _trial_of_field(target, name, bool(named)) for name in FIELDS if name not in named}
    return {name: reason for name, reason in reasons.items() if reason}


def _trial_of_field(target: Target, name: str, others_are_named: bool) -> str:
    trial = _Trial(target)
    x, pos = trial.x(1, 2, 2, 4), np.array([1, 2])
    try:
        with target.arrays.running():
            y = trial(x, pos, **{name: FIELDS[name]})
            if others_are_named and np.array_equal(trial.numbers(y), trial.numbers(trial(x, pos))):
                return "goes to its ** parameter and changes nothing"
    except NotImplementedError as error:
        return f"refuses it: {str(error) or 'NotImplementedError'}"
    except TypeError as error:
        return f"refuses it: {error}" if name in str(error) else ""
    except Exception:
        return ""  # a fault, which its check will show
    return ""


def _refused(target: Target, found: Mapping[str, str]) -> dict[str, str]:
    """Try what a callable may refuse; return what it does."""
    reasons = {}
    trial = _Trial(target)
    for name, attempt in _OPTIONAL.items():
        if name in found or "values" in found:
            continue
        if name == "odd_width" and "rotary_dim" in found:
            continue
        try:
            with target.arrays.running():
                attempt(trial)
        except Exception as error:  # whatever a refusal is made of
            reasons[name] = f"refuses it: {type(error).__name__}: {' '.join(str(error).split())[:160]}"
    return reasons


class _Trial:
    """Calls of a target, to see what it takes."""

    target: Target
    lib: Library

    def __init__(self, target: Target):
        self.target, self.lib = target, target.arrays

    def x(self, *shape: int, dtype: str = "") -> Any:
        dtype = dtype or (self.target.dtypes or ["float32"])[0]
        return self.lib.asarray(rounded(np.random.default_rng(0).standard_normal(shape), dtype), dtype)

    def pos(self, values: Any, kind: str) -> Any:
        return self.lib.asarray(np.asarray(values, kind))

    def raw(self, x: Any, pos: Any, **spec: Any) -> Any:
        return self.target.call(x, pos, **spec)

    def __call__(self, x: Any, pos: Any, **spec: Any) -> Any:
        kind = "float32" if pos.dtype.kind == "f" else self.lib.integers[0]
        y = self.raw(x, self.lib.asarray(pos.astype(kind)), **spec)
        if isinstance(x, tuple) and not isinstance(y, tuple | list):
            raise TypeError("one array came back for a tuple")
        return y

    def numbers(self, y: Any) -> Any:
        return self.lib.to_numpy(y)


# ---- targets by name ----


def _own(backend: str | None, **more: Any) -> Callable[..., Any]:
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
    """Return what compiled code is made for: an array's shape and dtype, or a number as it is."""
    return f"{value.dtype}{tuple(value.shape)}" if hasattr(value, "dtype") else repr(value)


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
