"""What is judged: a callable, the arrays it takes, and what it claims."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import Any

from ._claims import CAPABILITIES, DEFAULTS, DTYPES, FIELDS, SPREAD, declined, stated_defaults
from ._contract import ANGLES, ARITHMETIC, Accuracy
from ._layout import is_layout, laid_out
from ._libraries import LIBRARIES, Library


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
            ("positions", [self.positions], SPREAD),
            ("angles", [self.angles], ANGLES),
            ("arithmetic", [self.arithmetic], ARITHMETIC),
            ("lacks", self.lacks, CAPABILITIES),
            ("dtypes", self.dtypes or (), DTYPES),
        ):
            if unknown := sorted(set(given) - set(known)):
                raise ValueError(
                    f"{what}: unknown {', '.join(map(repr, unknown))}; known: {', '.join(known)}"
                )
        if self.layout != "...sd" and not is_layout(self.layout):
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
        return rotate if self.layout == "...sd" else laid_out(rotate, self.layout, self.arrays)

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


def _name_of(rotate: Callable[..., Any]) -> str:
    module, name = getattr(rotate, "__module__", None), getattr(rotate, "__qualname__", None)
    return f"{module}:{name}" if name else repr(rotate)
