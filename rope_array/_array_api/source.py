"""A call: its arrays, their source (positions or tables), and the facts that its checks found."""

from typing import Any, NamedTuple

from rope_array._spec.plan import Layout, Plan

from .ops import ArrayOps


class Positions(NamedTuple):
    """Positions, and the plan that gives their angles.

    Attributes
    ----------
    values
        An int, float, range, sequence or array: see `rope_array.apply`.
    plan
        The layout of the pairs, and their frequencies.
    inv_freq
        An array of frequencies that are added to the plan's, or None: of shape (pairs,), (heads, pairs) or
        (heads, 1, pairs); for mixed frequencies (heads, coordinates, pairs). For tables alone.
    """

    values: Any
    plan: Plan
    inv_freq: Any = None

    @property
    def layout(self) -> Layout:
        """Which features form the pairs, and the amplitude."""
        return self.plan.layout

    @property
    def arrays(self) -> tuple[Any, ...]:
        """The values that a call reads in addition to x; they may be Python numbers or None."""
        return self.values, self.inv_freq


class Tables(NamedTuple):
    """Cos and sin of shape (positions..., pairs), amplitude included, and the layout of the pairs."""

    cos: Any
    sin: Any
    layout: Layout

    @property
    def arrays(self) -> tuple[Any, ...]:
        """The values that a call reads in addition to x."""
        return self.cos, self.sin


Source = Positions | Tables
# The fields of a source: (values, plan, inv_freq) of positions, or (cos, sin, layout) of tables. The front
# functions pass them on as a plain tuple, as a fast entry needs no more.
SourceFields = tuple[Any, Any, Any]


class CallOptions(NamedTuple):
    """How a call rotates its arrays: the arguments of `rope_array.apply` that backends must know.

    The front functions pass the fields on as a plain tuple too. The C++ kernel declines a call with more
    fields than it knows.

    Attributes
    ----------
    seq_axis
        The axis of each array along which positions run; negative from the end, as the caller gave it.
    """

    seq_axis: int = -2


OptionFields = tuple[int]  # of `CallOptions`


class Call(NamedTuple):
    """A checked call, and the facts that its checks found.

    Attributes
    ----------
    xs
        The arrays to rotate, of one library.
    source
        Positions or tables.
    options
        How the arrays are rotated.
    lib
        The `Library` of the arrays.
    ops
        The library's operations on the device of the arrays.
    float64
        For each array whether it is rotated in float64; else it is rotated in float32.
    pos
        The parsed positions, a `PositionInput`; None for tables.
    """

    xs: tuple[Any, ...]
    source: Source
    options: CallOptions
    lib: Any
    ops: ArrayOps
    float64: tuple[bool, ...]
    pos: Any = None
