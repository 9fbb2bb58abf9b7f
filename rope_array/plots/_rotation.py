"""The rotation of one pair, in the plane of its two features."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from rope_array._errors import SpecError
from rope_array._rope import RoPE
from rope_array._spec.validation import integer, sequence

from ._drawing import COLOURS, add_legend, panel
from ._ropes import Ropes, label_ropes, position_count, tables

_ARROWS = 6
_MOST = 1000
_LABELS = (1.18, 0.7, 0.5, 0.3)  # where the numbers of each rope are, in lengths of the arrow


def rotation(ropes: Ropes, *, pair: int = 0, positions: Sequence[int] | None = None, ax: Any = None) -> Any:
    """Draw a pair of features at several positions: an arrow that rotates by ω radians per position.

    Parameters
    ----------
    ropes : RoPE, sequence of RoPE or dict of str to RoPE
        The rotary embeddings, one colour each.
    pair : int
        The number of the pair, from 0.
    positions : sequence of int, optional
        The positions; by default six from 0 on, an eighth of the first rope's wavelength apart.
    ax : matplotlib.axes.Axes, optional
        The Axes to draw on; by default the Axes of a new figure.

    Returns
    -------
    matplotlib.axes.Axes
        Two lines for each rope and position: from the origin to the rotated pair, which was (1, 0), and a
        point at its end.

    Raises
    ------
    SpecError
        `ropes` holds no rope or one that rotates nothing, a rule needs a length first (``rope.at_length``),
        a rope has no such pair, or a position is no integer from 0 to 2^31 - 1.
    ImportError
        matplotlib is missing.

    Notes
    -----
    RoFormer, arXiv 2104.09864, equation 13. The length of an arrow is the rope's amplitude.

    Examples
    --------
    >>> import rope_array as ra
    >>> from rope_array import plots
    >>> ax = plots.rotation(ra.RoPE(head_dim=64), pair=0, positions=[0, 1, 2])
    >>> [round(float(end[1]), 4) for end in ax.lines[2].get_data()]      # cos 1, sin 1
    [0.5403, 0.8415]
    """
    labelled = label_ropes(ropes)
    for rope in labelled.values():
        integer("pair", pair, 0, len(rope.frequencies) - 1)
    pos = _spread(next(iter(labelled.values())), pair) if positions is None else _checked_positions(positions)
    ax = panel(
        ax,
        f"Pair {pair} is rotated by its position",
        xlabel="first feature of the pair",
        ylabel="second feature of the pair",
    )
    reach = max(rope.amplitude for rope in labelled.values())
    for index, (label, rope) in enumerate(labelled.items()):
        _draw_arrows(ax, rope, pair, pos, index, label)
    around = np.linspace(0, 2 * np.pi, 181)
    ax.plot(np.cos(around), np.sin(around), color="#808080", linewidth=0.8, zorder=1)
    ax.set(xlim=(-1.4 * reach, 1.4 * reach), ylim=(-1.4 * reach, 1.4 * reach), aspect="equal")
    add_legend(ax, loc="upper left")
    return ax


def _checked_positions(positions: Any) -> tuple[int, ...]:
    values = sequence("positions", positions, "a sequence of integers such as range(6)")
    if not 1 <= len(values) <= _MOST:
        raise SpecError(f"positions has {len(values)} items; give from 1 to {_MOST}.")
    return tuple(position_count(f"positions[{i}]", value, 0) for i, value in enumerate(values))


def _spread(rope: RoPE, pair: int) -> tuple[int, ...]:
    """Return positions an eighth of the wavelength apart, so that arrows and labels have room."""
    omega = abs(rope.frequencies[pair])
    step = max(1, round(2 * np.pi / omega / 8)) if omega > 1e-8 else 1
    return tuple(range(0, _ARROWS * step, step))


def _draw_arrows(ax: Any, rope: RoPE, pair: int, pos: tuple[int, ...], index: int, label: str) -> None:
    cos, sin = (table[:, pair] for table in tables(rope, pos))
    colour = COLOURS[index % len(COLOURS)]
    for m, x, y in zip(pos, cos, sin, strict=True):
        ax.plot([0, x], [0, y], color=colour, linewidth=1.6, label=label or None, zorder=2)
        label = ""  # one entry in the legend for all arrows of a rope
        ax.plot([x], [y], marker="o", markersize=6, color=colour, zorder=3)
        far = _LABELS[index % len(_LABELS)]
        box = {"boxstyle": "square,pad=0.1", "facecolor": "white", "edgecolor": "none"}
        ax.text(far * x, far * y, f"{m:,}", ha="center", va="center", color=colour, fontsize=10, bbox=box)
