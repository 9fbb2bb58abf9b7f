"""The source of a rotation: positions with a plan, or tables with a layout. One value for either."""

from typing import Any, NamedTuple

from rope_array._spec.plan import Layout, Plan


class Positions(NamedTuple):
    """Positions, and the plan that gives their angles.

    Attributes
    ----------
    values
        An int, float, range, sequence or array: see `rope_array.apply`.
    plan
        The layout of the pairs, and their frequencies.
    inv_freq
        Learned frequencies that replace the plan's, an array of shape (pairs,), or None.
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
