"""`Target`: a callable under test, its array library, and its claims."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from difflib import get_close_matches
from functools import cached_property
from importlib import import_module
from typing import Any

import numpy as np

from . import _adapt
from ._capability_parts import ALL_WIDTHS, PART_NAMES, PARTS, parts_of, whole_of
from ._claims import (
    CALL_FIELDS,
    CAPABILITIES,
    DEFAULTS,
    POSITION_KINDS,
    by_library,
    least_width,
    parameters_of,
    signature_defaults,
    takes_any,
)
from ._compilers import COMPILED, arrays_of, compile_for, is_library, library_names
from ._contract import ANGLES, ARITHMETIC, Accuracy
from ._definition import apply_definition
from ._factors import DTYPES, FIELDS, WIDTH
from ._libraries import ArrayLibrary
from ._named_values import arrays_in
from ._trial_log import TrialLog
from ._trials import find_declines, find_depth, find_position_dtype, find_reach, find_refused_widths

# The arguments of a target that are no claims.
_NO_CLAIMS = {"rotate", "name", "version", "library", "angles", "arithmetic", "wraps", "expected_failures",
              "attention_inputs", "requires"}  # fmt: skip


@dataclass(frozen=True)
class Target:
    """A rotary embedding to check.

    Parameters
    ----------
    rotate : callable
        ``rotate(x, pos, **spec)`` returns x rotated. The fields of spec are named as in `rope_array.apply`:
        base, rotary_dim, rotary_start, pairing, out_pairing, inv_freq, attention_factor, inverse, seq_axis,
        and scaling and axes as plain mappings, as in `rotation_matrix`.
    name, version : str
        Name and version in reports; by default the callable's own name.
    library : str
        The array library of x, a name from ``python -m rope_array check --list``. "jax:jit" and
        "torch:compile" compile each call as a whole: code that the compiler cannot compile fails.
    fields : collection of str, optional
        The fields it takes. By default the fields that its signature names; if the signature has ``**spec``,
        each other field is tried: see Notes.
    fixed : mapping
        Fields whose value is built in, such as ``{"pairing": "half"}``. A default in the signature is read
        from there.
    head_dim : int or collection of int, optional
        The head_dims it takes, 2 or more, such as the width of a module's tables; by default any.
    layout : str
        The axes of x. "...sd" is any rank; otherwise some of "b", "h", "s", "d" in order, such as "bshd",
        with "1" for an axis of size 1, as in "1hsd". The suite permutes its own (b, h, s, d), and calls once
        for each element of the missing axes.
    positions : {"any", "offset", "arange", "batch", "row"}
        The positions it takes: any; start, start + 1, ...; 0, 1, 2, ... only: then it may be a function of
        x alone; or any of shape (B, S), or (1, S), only.
    furthest : int
        The largest position it takes, such as the last row of its table.
    dtypes : sequence of str, optional
        Names of the floating dtypes it takes; by default the library's own.
    angles : {"float64", "exact", "float32"}
        How angles are computed, which bounds their error. "exact" is the contract of rope_array.
    arithmetic : {"float32", "own"}
        How 16-bit numbers are rotated: in float32 or wider and rounded once, or in their own dtype.
    lacks : mapping of str to str
        Capabilities it does not claim, or parts such as ``"ranks[1]"``, each with the reason; names from
        `check --list`.
    requires : collection of str
        Capabilities, parts and checks that it must not lack. Each is a result ``requires[NAME]``, which fails
        if the target declines it, for whatever reason.
    expected_failures : mapping of str to str
        Checks known to fail, each with the reason and a link.
    arguments : {"x,pos", "pos,x", "q,k,pos", "pos,q,k", "(q,k),pos"}
        The order of its arguments. With q and k it takes two arrays, and returns both rotated.
    in_place : bool
        Whether it writes its result into x. It may return x or None; the suite calls it with copies.
    wraps : callable, optional
        Called with `rotate` before use, inside the library's context, such as another compiler.
    declared : bool
        Whether the claims are complete: no trial calls are made, and a refused call is a failure.
    attention_inputs : callable, optional
        ``attention_inputs(q, k, pos, **options)`` makes attention's inputs, with the options and the results
        of `rope_array.attention_inputs`, and fields of spec in place of `rope`. A call gives only options
        that differ from the default.

    Raises
    ------
    ValueError
        An argument is unknown, of a wrong type, or out of range.

    Notes
    -----
    Without declarations, claims are found by trial. A field that the signature names is claimed. A field that
    only ``**spec`` can take is claimed unless the call refuses it, by NotImplementedError or an error that
    names it; if the signature names other fields, it has to change the result too. Shapes, dtypes, and kinds
    and sizes of positions that a call refuses, by any exception, are not claimed. Reports list every
    capability that is not claimed, with its reason.

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
    head_dim: int | Collection[int] | None = None
    layout: str = "...sd"
    positions: str = "any"
    furthest: int = 2**31 - 1
    dtypes: Sequence[str] | None = None
    angles: str = "float64"
    arithmetic: str = "float32"
    lacks: Mapping[str, str] = field(default_factory=dict)
    requires: Collection[str] = ()
    expected_failures: Mapping[str, str] = field(default_factory=dict)
    arguments: str = "x,pos"
    in_place: bool = False
    wraps: Callable[[Callable[..., Any]], Callable[..., Any]] | None = None
    declared: bool = False
    attention_inputs: Callable[..., Any] | None = None

    def __post_init__(self) -> None:
        if not callable(self.rotate):
            raise ValueError(f"rotate is {self.rotate!r}; give a callable rotate(x, pos, **spec)")
        _check_kinds(self)
        _check_names(self)
        _check_sizes(self)
        if not self.name:
            object.__setattr__(self, "name", _name_of(self.rotate))
        _check_calls(self)
        _check_defaults(self)

    @property
    def arrays(self) -> ArrayLibrary:
        """The array library of x."""
        return arrays_of(self.library)

    @property
    def compiled(self) -> bool:
        """Whether each new call is compiled, which takes time."""
        return self.library in COMPILED or self.wraps is not None

    @property
    def accuracy(self) -> Accuracy:
        """The accuracy class of its results."""
        return Accuracy(self.angles, self.arithmetic)

    @property
    def looped(self) -> str:
        """The axes of (b, h, s, d) missing in its layout: the suite calls once for each of their elements."""
        return "" if self.layout == "...sd" else "".join(a for a in "bh" if a not in self.layout)

    @property
    def takes_arrays(self) -> bool:
        """Whether it takes frequencies in an array: code for sequences of numbers need not."""
        return "array_frequencies" in self.requires

    def claims(self) -> dict[str, Any]:
        """Return the explicit claims, as plain values: the arguments that differ from the default."""
        claims = {}
        for claim in (claim for claim in fields(Target) if claim.name not in _NO_CLAIMS):
            value = getattr(self, claim.name)
            default = claim.default if claim.default_factory is MISSING else claim.default_factory()
            if value != default:
                claims[claim.name] = _plain(value)
        return claims

    def width_of(self, width: int) -> int:
        """Return `width`, or the next head_dim that it takes and that holds its slice, or its widest."""
        narrowest = least_width(self, width)
        if not self.taken_widths or (width % 2 and self.head_dim is None):  # `odd_width` is tried by itself
            return narrowest
        return next((taken for taken in self.taken_widths if taken >= narrowest), self.taken_widths[-1])

    @cached_property
    def taken_widths(self) -> tuple[int, ...]:
        """The head_dims that it takes, in rising order, as claimed or as found by trial; empty if any."""
        if self.head_dim is not None:
            return tuple(sorted(_head_dims(self.head_dim)))
        if not self.refused_widths:
            return ()
        widths = {least_width(self, width) for width in ALL_WIDTHS}
        return tuple(sorted(widths - self.refused_widths.keys()))

    # Found by trial calls, when they are first asked for.
    position_dtype = cached_property(find_position_dtype)
    refused_widths = cached_property(find_refused_widths)
    reach = cached_property(find_reach)
    depth = cached_property(find_depth)
    declines = cached_property(find_declines)

    @cached_property
    def call(self) -> Callable[..., Any]:
        """The callable, adapted to the suite's layout and defaults."""
        rotate = self.rotate
        if self.positions == "arange":
            rotate = _adapt.leave_out_positions(rotate, self.arguments)
        rotate = _adapt.adapt_arguments(rotate, self.arguments)
        rotate = self.wraps(rotate) if self.wraps else compile_for(self.library, rotate)
        if self.in_place or ("keeps_x" in self.lacks and type(self.arrays).copied is not ArrayLibrary.copied):
            rotate = _adapt.adapt_copies(rotate, self.arrays, self.in_place)
        has_axes = "axes" in self.fixed
        if self.layout == "...sd":
            rotate = self._with_defaults(rotate)
        else:
            rotate = _adapt.adapt_layout(rotate, self.layout, has_axes, self.arrays)
        if self.positions in ("batch", "row"):
            rotate = _adapt.adapt_positions(rotate, self.positions, has_axes, self.arrays)
        if not self.takes_arrays:
            return rotate
        return lambda x, pos, **spec: rotate(x, pos, **{**spec, **arrays_in(spec)})

    @cached_property
    def make_inputs(self) -> Callable[..., Any]:
        """`attention_inputs`, compiled if calls are, of arrays by name: see `_adapt.adapt_pairs`."""
        assert self.attention_inputs is not None
        make = _adapt.adapt_pairs(self.attention_inputs)
        return self.wraps(make) if self.wraps else compile_for(self.library, make)

    def _with_defaults(self, rotate: Callable[..., Any]) -> Callable[..., Any]:
        """Pass seq_axis=-2 and inverse=False, which the suite leaves out, if the signature's differ."""
        values = signature_defaults(self.rotate)
        passed = {
            name: DEFAULTS[name] for name in CALL_FIELDS if values.get(name) not in (None, DEFAULTS[name])
        }
        return functools.partial(rotate, **passed) if passed else rotate

    @cached_property
    def trials(self) -> TrialLog:
        """The trial calls of its claims."""
        return TrialLog()

    @cached_property
    def defaults(self) -> dict[str, Any]:
        """The fields' values in a call without fields."""
        return {**DEFAULTS, **signature_defaults(self.rotate), **self.fixed}

    @cached_property
    def claimed(self) -> frozenset[str]:
        """Every capability that is claimed, and every part."""
        return frozenset((*CAPABILITIES, *PART_NAMES)) - set(self.declines)

    def all_claimed(self) -> list[str]:
        """Return the claimed capabilities, or the claimed parts of each, to be copied as `requires`."""
        unavailable = by_library(self)
        names: list[str] = []
        for name in (name for name in CAPABILITIES if name in self.claimed):
            parts = [part for part in parts_of(name) if part not in unavailable]
            claimed = [part for part in parts if part in self.claimed]
            names += [name] if claimed == parts else claimed
        return names


def _check_kinds(target: Target) -> None:
    """Raise for arguments of the wrong type."""
    for names, types, needed in (
        ("name version library layout positions angles arithmetic arguments", str, "a string"),
        ("furthest", int, "an integer"),
        ("head_dim", int | Collection | None, "an integer, or several"),
        ("fixed", Mapping, "a mapping of fields to values"),
        ("lacks", Mapping, "a mapping of capabilities to reasons"),
        ("expected_failures", Mapping, "a mapping of checks to reasons"),
        ("fields", Collection | None, "a collection of names"),
        ("requires", Collection, "a collection of names"),
        ("dtypes", Sequence | None, "a sequence of names"),
        ("wraps attention_inputs", Callable | None, "a callable"),
        ("in_place declared", bool, "True or False"),
    ):
        for name in names.split():
            _check_kind(name, getattr(target, name), types, needed)


def _check_kind(name: str, value: Any, types: Any, needed: str) -> None:
    as_name = isinstance(value, str) and types is not str
    as_number = isinstance(value, bool) and types is not bool
    if as_name or as_number or not isinstance(value, types):
        raise ValueError(f"{name} is {value!r}; give {needed}")


def _check_names(target: Target) -> None:
    """Raise for unknown names."""
    for argument, names, known_names in (
        ("library", [] if is_library(target.library) else [target.library], library_names()),
        ("fields", target.fields or (), FIELDS),
        ("fixed", target.fixed, [name for name in FIELDS if name not in CALL_FIELDS]),
        ("positions", [target.positions], POSITION_KINDS),
        ("arguments", [target.arguments], _adapt.ORDERS),
        ("angles", [target.angles], ANGLES),
        ("arithmetic", [target.arithmetic], ARITHMETIC),
        ("lacks", target.lacks, (*CAPABILITIES, *PART_NAMES)),
        ("requires", target.requires, (*CAPABILITIES, *PART_NAMES, *_check_names_known(target.requires))),
        ("dtypes", target.dtypes or (), DTYPES),
    ):
        for name in names:
            check_name(argument, name, known_names)
    if target.layout != "...sd" and not _adapt.is_layout(target.layout):
        raise ValueError(
            f"layout is {target.layout!r}; give '...sd', or some of b, h, s, d, with d last, and 1 "
            "for an axis of size 1, such as 1hsd"
        )
    if target.positions == "batch" and "b" in target.looped:
        raise ValueError(f"positions=batch needs x with an axis b; layout is {target.layout!r}")
    for name, reason in target.lacks.items():
        _check_reason(name, reason)
    if named_twice := sorted({*target.lacks} & {*target.requires}):
        raise ValueError(f"requires and lacks both name {', '.join(named_twice)}; give one of them")


def _check_names_known(requires: Collection[str]) -> tuple[str, ...]:
    """Return the names of all checks; import them only if any name is required."""
    return tuple(check.name for check in import_module(f"{__package__}._checks").checks()) if requires else ()


def check_name(argument: str, name: Any, known_names: Collection[str]) -> None:
    """Raise ValueError for an unknown name, with similar names, or with the parts of a capability."""
    if isinstance(name, str) and name in known_names:
        return
    if labels := PARTS.get(whole_of(str(name))):
        hint = f"{whole_of(str(name))} has the parts {', '.join(labels)}"
    else:
        names = list(dict.fromkeys(known_name for known_name in known_names if "[" not in known_name))
        near = get_close_matches(str(name), names, 2)
        hint = f"did you mean {' or '.join(near)}? " if near else ""
        hint += "see check --list" if near and len(names) > 16 else f"known: {', '.join(names)}"
    raise ValueError(f"unknown {argument} {name!r}; {hint}")


# Words that are no reason: somebody means to switch a capability on or off.
_NO_REASONS = frozenset({"yes", "y", "true", "t", "on", "1", "no", "n", "false", "f", "off", "0", "none"})


def _check_reason(name: str, reason: Any) -> None:
    """Raise ValueError for a reason that is no reason."""
    if isinstance(reason, str) and reason.strip() and reason.strip().lower() not in _NO_REASONS:
        return
    raise ValueError(
        f"{name}={reason}: give the reason why the target lacks it, or --require {name} to insist on it "
        f"(in Python lacks={{{name!r}: reason}}, requires=[{name!r}])"
    )


def _check_calls(target: Target) -> None:
    """Raise for fields that its signature does not take, and for arrays that cannot be written in place."""
    named, takes_any = parameters_of(target.rotate)
    if target.fields and not takes_any and (missing := [n for n in target.fields if n not in named]):
        raise ValueError(f"fields names {', '.join(missing)}, and the signature of {target.name} does not")
    library = type(target.arrays)
    if target.in_place and (
        library.copied is ArrayLibrary.copied or library.overwrite is ArrayLibrary.overwrite
    ):
        raise ValueError(f"in_place is claimed, and arrays of {target.library} cannot be written")


def _check_sizes(target: Target) -> None:
    """Raise for sizes that are too small for the checks."""
    if target.furthest < 0:
        raise ValueError(f"furthest is {target.furthest}; give the largest position, 0 or more")
    if not takes_any(target) and target.furthest < 4:
        raise ValueError(f"furthest is {target.furthest}; consecutive positions of 5 rows need 4 or more")
    for head_dim in _head_dims(target.head_dim):
        if isinstance(head_dim, bool) or not isinstance(head_dim, int) or head_dim < 2:
            raise ValueError(f"head_dim has {head_dim!r}; give integers, 2 or more")
    if target.dtypes is not None and not target.dtypes:
        raise ValueError(f"dtypes is empty; give some of {', '.join(DTYPES)}")


def _check_defaults(target: Target) -> None:
    """Raise if the definition refuses the built-in fields and the signature's defaults."""
    fields = {name: value for name, value in target.defaults.items() if name not in CALL_FIELDS}
    try:
        for width in _head_dims(target.head_dim) or (least_width(target, WIDTH),):
            apply_definition(np.zeros(width), 0, **fields)
    except Exception as error:  # also the errors of decimal, and a missing key of scaling
        built_in = {name: value for name, value in fields.items() if DEFAULTS.get(name) != value}
        raise ValueError(f"the built-in fields and signature defaults are {built_in}: {error}") from None


def _plain(value: Any) -> Any:
    """Return a claim as a dict, a list, or a value of another kind."""
    if isinstance(value, Mapping):
        return dict(value)
    return list(value) if isinstance(value, Collection) and not isinstance(value, str) else value


def _head_dims(head_dim: int | Collection[int] | None) -> tuple[int, ...]:
    """Return the claimed head_dims: none, one or several."""
    if head_dim is None:
        return ()
    return tuple(head_dim) if isinstance(head_dim, Collection) else (head_dim,)


def _name_of(rotate: Callable[..., Any]) -> str:
    """Return a callable's name without its address, so that reports do not differ between runs."""
    while isinstance(rotate, functools.partial):
        rotate = rotate.func
    named = rotate if getattr(rotate, "__qualname__", None) else type(rotate)
    return f"{getattr(named, '__module__', None)}:{named.__qualname__}"
