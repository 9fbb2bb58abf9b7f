"""What is judged: a callable, the arrays it takes, and what it claims."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from functools import cached_property
from types import MappingProxyType
from typing import Any

import numpy as np

from ._claims import (
    CAPABILITIES,
    DEFAULTS,
    DTYPES,
    FIELDS,
    OF_A_CALL,
    SPREAD,
    WIDTH,
    declined,
    only_width,
    reach_of,
    stated_defaults,
)
from ._contract import ANGLES, ARITHMETIC, Accuracy
from ._definition import apply_definition
from ._layout import is_layout, laid_out
from ._libraries import LIBRARIES, Library


@dataclass(frozen=True)
class Target:
    """A rotary embedding to be judged.

    Parameters
    ----------
    rotate : callable
        ``rotate(x, pos, **spec)`` returns x rotated. The fields of spec are those of `rope_array.apply`:
        base, rotary_dim, rotary_start, pairing, out_pairing, inv_freq, attention_factor, inverse, seq_axis,
        and scaling and axes as plain mappings: those of `rotation_matrix`.
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
    head_dim : int, optional
        The only head_dim it takes, 16 or more, such as that of a module's tables; by default it takes any.
    layout : str
        Axes of the x it takes. "...sd" is any rank; of "b", "h", "s", "d" in the order it wants them, such as
        "bshd", the suite moves its own (b, h, s, d), and calls once for each of the axes that are not there.
    positions : {"any", "offset", "arange"}
        Which positions it serves: any; start, start + 1, ...; or 0, 1, 2, ... only.
    furthest : int
        The largest position it serves, 31 or more, such as the last row of its table.
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
        An argument is unknown, of a kind that has no meaning, or out of range.

    Notes
    -----
    Where nothing is declared, claims are read off: a field that the signature names is claimed. One that can
    only go to ``**spec`` is claimed unless the call refuses it, by NotImplementedError or an error that names
    it; beside named fields it has to change the result too, for else it was swallowed. Shapes, dtypes, and
    kinds and sizes of positions that a call refuses, by any exception, are not claimed. All that is not
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
    head_dim: int | None = None
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
        _check_kinds(self)
        _check_names(self)
        _check_sizes(self)
        if not self.name:
            object.__setattr__(self, "name", _name_of(self.rotate))
        _check_defaults(self)

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

    def claims(self) -> dict[str, Any]:
        """Return what was claimed in so many words: the arguments that are not the default.

        Returns
        -------
        dict
            Plain values by name.

        Examples
        --------
        >>> from rope_array.testing import Target
        >>> Target(lambda x, pos: x, fixed={"pairing": "half"}, furthest=2047).claims()
        {'fixed': {'pairing': 'half'}, 'furthest': 2047}
        """
        told = ("rotate", "name", "version", "library", "angles", "arithmetic", "wraps", "expected_failures")
        found = {}
        for each in fields(self):
            value = getattr(self, each.name)
            usual = each.default if each.default_factory is MISSING else each.default_factory()
            if each.name not in told and value != usual:
                found[each.name] = dict(value) if isinstance(value, Mapping) else value
                if isinstance(value, Collection) and not isinstance(value, Mapping | str):
                    found[each.name] = list(value)
        return found

    def width_of(self, width: int) -> int:
        """Return the head_dim that is handed in where one of `width` would be.

        Parameters
        ----------
        width : int
            What a check would ask for.

        Returns
        -------
        int
            The only one that is taken, or one into which the slice fits that is rotated.

        Examples
        --------
        >>> from rope_array.testing import Target
        >>> target = Target(lambda x, pos: x, fixed={"rotary_dim": 32})
        >>> target.width_of(16), target.width_of(64)
        (32, 64)
        """
        if self.only_width is not None:
            return self.only_width
        return self._least_width(width)

    @cached_property
    def only_width(self) -> int | None:
        """The one head_dim that it takes, as it claims or as was found by trying."""
        return self.head_dim if self.head_dim is not None else only_width(self)

    def _least_width(self, width: int) -> int:
        """Return a width into which the slice fits that is rotated whatever the call says."""
        start, rotated = int(self.defaults.get("rotary_start") or 0), self.defaults.get("rotary_dim")
        if rotated is not None:
            return max(width, start + int(rotated))
        if (given := self.defaults.get("inv_freq")) is not None:
            return start + 2 * len(given)
        if not start:
            return width
        width = max(width, start + WIDTH)  # so that every rotary_dim of the checks fits behind it
        return width + (width - start) % 2

    @cached_property
    def reach(self) -> int:
        """The furthest position that is tried: `furthest`, or the last before one that the call refuses."""
        return reach_of(self)

    @cached_property
    def call(self) -> Callable[..., Any]:
        """The callable, on x of any layout the suite makes."""
        rotate = self.wraps(self.rotate) if self.wraps else self.rotate
        if self.layout != "...sd":
            return laid_out(rotate, self.layout, self.arrays)
        stated = stated_defaults(self.rotate)
        # What the suite leaves out means -2 and False, whatever the signature says.
        usual = {name: DEFAULTS[name] for name in OF_A_CALL if stated.get(name) not in (None, DEFAULTS[name])}
        return functools.partial(rotate, **usual) if usual else rotate

    @cached_property
    def defaults(self) -> dict[str, Any]:
        """What a call without fields means."""
        return {**DEFAULTS, **stated_defaults(self.rotate), **self.fixed}

    @cached_property
    def declines(self) -> Mapping[str, str]:
        """Every capability that is not claimed, with the reason."""
        return MappingProxyType(declined(self))

    @property
    def claimed(self) -> frozenset[str]:
        """Every capability that is claimed."""
        return frozenset(CAPABILITIES) - set(self.declines)


def _check_kinds(target: Target) -> None:
    """Refuse arguments of another kind than is asked for."""
    for name, kinds, wanted in (
        ("name", str, "a string"),
        ("version", str, "a string"),
        ("library", str, "a string"),
        ("layout", str, "a string"),
        ("positions", str, "a string"),
        ("angles", str, "a string"),
        ("arithmetic", str, "a string"),
        ("furthest", int, "an integer"),
        ("head_dim", int | None, "an integer"),
        ("fixed", Mapping, "a mapping of fields to values"),
        ("lacks", Mapping, "a mapping of capabilities to reasons"),
        ("expected_failures", Mapping, "a mapping of checks to reasons"),
        ("fields", Collection | None, "a collection of names"),
        ("dtypes", Sequence | None, "a sequence of names"),
        ("wraps", Callable | None, "a callable"),
        ("declared", bool, "True or False"),
    ):
        given = getattr(target, name)
        as_name = isinstance(given, str) and kinds is not str
        as_number = isinstance(given, bool) and kinds is not bool
        if as_name or as_number or not isinstance(given, kinds):  # type: ignore[arg-type]
            raise ValueError(f"{name} is {given!r}; give {wanted}")


def _check_names(target: Target) -> None:
    """Refuse unknown names."""
    for what, given, known in (
        ("library", [target.library], LIBRARIES),
        ("fields", target.fields or (), FIELDS),
        ("fixed", target.fixed, [name for name in FIELDS if name not in OF_A_CALL]),
        ("positions", [target.positions], SPREAD),
        ("angles", [target.angles], ANGLES),
        ("arithmetic", [target.arithmetic], ARITHMETIC),
        ("lacks", target.lacks, CAPABILITIES),
        ("dtypes", target.dtypes or (), DTYPES),
    ):
        if unknown := sorted(set(map(str, given)) - set(known)):
            raise ValueError(f"{what}: unknown {', '.join(map(repr, unknown))}; known: {', '.join(known)}")
    if target.layout != "...sd" and not is_layout(target.layout):
        raise ValueError(
            f"layout is {target.layout!r}; give '...sd', or some of b, h, s, d with s before d last"
        )
    if empty := sorted(name for name, reason in target.lacks.items() if not str(reason or "").strip()):
        raise ValueError(f"lacks: give the reason of {', '.join(empty)}")


def _check_sizes(target: Target) -> None:
    """Refuse what the suite cannot work with."""
    if target.furthest < 31:
        raise ValueError(f"furthest is {target.furthest}; the suite needs positions up to 31 at least")
    if target.head_dim is not None and target.head_dim < 16:
        raise ValueError(f"head_dim is {target.head_dim}; the suite needs 16 at least")
    if target.dtypes is not None and not target.dtypes:
        raise ValueError(f"dtypes is empty; give some of {', '.join(DTYPES)}")


def _check_defaults(target: Target) -> None:
    """Refuse what a call without fields cannot mean: a value that is fixed, or a default, has no meaning."""
    fields = {name: value for name, value in target.defaults.items() if name not in OF_A_CALL}
    try:
        apply_definition(np.zeros(target.head_dim or target._least_width(WIDTH)), 0, **fields)
    except (ValueError, TypeError) as error:
        given = {name: value for name, value in fields.items() if DEFAULTS.get(name) != value}
        raise ValueError(f"built in, or defaults of the signature, are {given}: {error}") from None


def _name_of(rotate: Callable[..., Any]) -> str:
    """Name a callable without its address, so that reports are alike."""
    while isinstance(rotate, functools.partial):
        rotate = rotate.func
    named = rotate if getattr(rotate, "__qualname__", None) else type(rotate)
    return f"{getattr(named, '__module__', None)}:{named.__qualname__}"
