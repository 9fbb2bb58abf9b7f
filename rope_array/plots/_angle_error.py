"""The error of angles against the position, for three ways to compute them."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rope_array._rope import RoPE
from rope_array._spec.spec import exact_frequencies
from rope_array.testing import cos_sin

from ._drawing import COLOURS, DASHES, GREY, add_legend, count_ticks, panel
from ._ropes import Floats, Ropes, label_ropes, position_count, tables

_COUNT = 160  # positions on a line; each costs the definition some milliseconds


def angle_error(ropes: Ropes, *, furthest: int = 2**20, ax: Any = None) -> Any:
    """Draw the error of angles against the position: exact, float32 and bfloat16.

    Parameters
    ----------
    ropes : RoPE, sequence of RoPE or dict of str to RoPE
        The rotary embeddings. With axes, a position is the same in every coordinate.
    furthest : int
        The last position, from 1 to 2^31 - 1.
    ax : matplotlib.axes.Axes, optional
        The Axes to draw on; by default the Axes of a new figure.

    Returns
    -------
    matplotlib.axes.Axes
        Three lines for each rope, of radians by position.

    Raises
    ------
    SpecError
        `ropes` holds no rope or one that rotates nothing, a rule needs a length first (``rope.at_length``),
        or `furthest` is out of range.
    ImportError
        matplotlib is missing.

    Notes
    -----
    The error at a position is the largest of all pairs, modulo 2π, so at most π. The truth is
    `rope_array.testing.cos_sin`, in decimals. The lines are

    * exact: the angle of the cos and sin that this library computes for float32 arrays. It includes the
      rounding of cos and sin to float32;
    * float32: the position in float32 times the frequency in float32, rounded to float32, as common code
      computes it. The frequencies come from ``angles="float32"``. The rounding of cos and sin is left out;
    * bfloat16: the position and the float32 frequency, each cast to bfloat16, and their product rounded to
      bfloat16, as in a model that is cast as a whole, ``inv_freq`` included. The rounding of cos and sin is
      left out.

    The positions are odd, so that no position is a power of 2, at which a product is not rounded. An error of
    0 is not drawn.

    Examples
    --------
    >>> import rope_array as ra
    >>> from rope_array import plots
    >>> ax = plots.angle_error(ra.RoPE(head_dim=8), furthest=1000)
    >>> [line.get_label() for line in ax.lines[:3]]
    ['exact (rope_array)', 'float32 position × frequency', 'bfloat16 position × frequency']
    """
    labelled, pos = label_ropes(ropes), _spaced(position_count("furthest", furthest))
    ax = panel(
        ax,
        "Error of the angle, worst pair",
        xlabel="position (tokens)",
        ylabel="error of the angle (radians)",
        rows_below=3 * len(labelled),
    )
    for label, rope in labelled.items():
        marker = {"marker": _MARKERS[list(labelled).index(label) % len(_MARKERS)], "markersize": 3}
        for (name, error), style in zip(_errors(rope, pos), _STYLES, strict=True):
            text = f"{label}: {name}" if label else name
            shown = np.where(error > 0, error, np.nan)
            ax.plot(pos, shown, label=text, linewidth=1.8, **style, **marker)
    _finish(ax)
    return ax


# The three ways differ in colour and dashes, several ropes in their markers.
_STYLES = tuple({"color": COLOURS[i], "linestyle": DASHES[i]} for i in range(3))
_MARKERS = ("", "o", "s", "^", "D", "v")


def _finish(ax: Any) -> None:
    """Set the scales, mark the largest error that an angle can have, and add the legend."""
    ax.set(xscale="log", yscale="log")
    ax.set_ylim(top=max(ax.get_ylim()[1], 30.0))
    ax.axhline(np.pi, color=GREY, linewidth=1, linestyle=":")
    place = {"xytext": (0.02, np.pi * 1.2), "textcoords": ("axes fraction", "data"), "fontsize": 9}
    ax.annotate("π: the opposite direction", (1, np.pi), color=GREY, **place)
    count_ticks(ax.xaxis)
    ax.yaxis.set_major_formatter(lambda value, _: f"{value:g}".replace("e-0", "e-"))
    add_legend(ax, below=True)


def _spaced(furthest: int) -> NDArray[np.int64]:
    """Return odd positions up to the furthest, evenly spaced on a logarithmic axis."""
    spaced = np.geomspace(1, furthest, _COUNT).astype(np.int64)
    odd = np.unique((spaced - 1) | 1)
    return odd[odd <= furthest]


def _errors(rope: RoPE, pos: NDArray[np.int64]) -> Iterator[tuple[str, Floats]]:
    """Yield the name of each way and its errors, the largest of all pairs at each position."""
    exact, narrow = replace(rope, angles="exact"), replace(rope, angles="float32")
    omegas = exact_frequencies(exact)
    truth = cos_sin(pos, rotary_dim=2 * len(omegas), inv_freq=omegas)
    yield "exact (rope_array)", _worst(tables(exact, pos, "float32"), truth)
    freq = np.array(narrow.frequencies, np.float32)
    product = pos.astype(np.float32)[:, None] * freq
    yield "float32 position × frequency", _worst(_cos_sin_of(product), truth)
    coarse = _bfloat16(_bfloat16(pos.astype(np.float32))[:, None] * _bfloat16(freq))
    yield "bfloat16 position × frequency", _worst(_cos_sin_of(coarse), truth)


def _worst(table: tuple[Floats, Floats], truth: tuple[Floats, Floats]) -> Floats:
    """Return the largest angle between two directions, over the pairs of each position."""
    (cos, sin), (true_cos, true_sin) = table, truth
    between = np.arctan2(sin * true_cos - cos * true_sin, cos * true_cos + sin * true_sin)
    return np.asarray(np.abs(between).max(axis=-1))


def _cos_sin_of(angles: NDArray[np.float32]) -> tuple[Floats, Floats]:
    """Return cos and sin of float32 angles in float64, which adds no visible error."""
    return np.cos(angles, dtype=np.float64), np.sin(angles, dtype=np.float64)


def _bfloat16(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """Round float32 numbers to bfloat16, the upper half of their bits, to nearest and ties to even."""
    bits = np.ascontiguousarray(values).view(np.uint32)
    rounded = (bits + (0x7FFF + ((bits >> np.uint32(16)) & np.uint32(1)))) & np.uint32(0xFFFF0000)
    return rounded.astype(np.uint32).view(np.float32)
