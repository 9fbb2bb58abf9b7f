"""Maps of axes: the coordinate and the frequency of each pair."""

from typing import Any

import numpy as np

from rope_array._errors import SpecError, short
from rope_array._rope import RoPE

from ._drawing import COLOURS, panel
from ._ropes import Floats, Ropes, label_ropes

_LETTERS = {2: "HW", 3: "THW", 4: "THWE"}  # by the number of coordinates
_COLOUR_OF = {letter: COLOURS[i] for i, letter in enumerate("HWTE")}
_LOWEST, _HEIGHT = 0.06, 0.52  # of a bar, of a row's height 1; the letters are below, the label above


def axes(ropes: Ropes, *, ax: Any = None) -> Any:
    """Draw maps of axes: a bar for each pair, with the letter of its coordinate, as high as its frequency.

    Parameters
    ----------
    ropes : RoPE, sequence of RoPE or dict of str to RoPE
        Rotary embeddings with `axes`, one row each.
    ax : matplotlib.axes.Axes, optional
        The Axes to draw on; by default the Axes of a new figure.

    Returns
    -------
    matplotlib.axes.Axes
        Bars and letters. A pair that is not rotated has none.

    Raises
    ------
    SpecError
        `ropes` holds no rope, or one without `axes` or without pairs that rotate, or a rule needs a length
        first (``rope.at_length``).
    ImportError
        matplotlib is missing.

    Notes
    -----
    Two coordinates are named H and W, three T, H and W, four T, H, W and E, as the coordinates of ggml; any
    other number of coordinates has numbers from 0. Heights are logarithmic, from the lowest frequency of the
    rope to the highest. So each series of frequencies is a staircase that goes down.

    Examples
    --------
    >>> import rope_array as ra
    >>> from rope_array import plots
    >>> ax = plots.axes(ra.RoPE(head_dim=8, axes=ra.Axes((0, None, 1, 1))))
    >>> [(int(text.get_position()[0]), text.get_text()) for text in ax.texts[:-1]]
    [(0, 'H'), (2, 'W'), (3, 'W')]
    """
    labelled = label_ropes(ropes)
    for rope in labelled.values():
        if rope.axes is None:
            raise SpecError(
                f"the rope {short(rope)} has no axes; give one with axes, such as Axes.axial(32, 32)."
            )
    pairs, new = max(len(rope.frequencies) for rope in labelled.values()), ax is None
    title = "Coordinate and frequency of each pair"
    ax = panel(ax, title, xlabel="pair", ylabel="log frequency", rows_below=4 * len(labelled) - 15)
    if new:
        ax.figure.set_figwidth(min(12.0, max(ax.figure.get_figwidth(), 0.16 * pairs)))
    ax.set(xlim=(-0.7, pairs - 0.3), ylim=(0.7 - len(labelled), 0.8), yticks=[])
    ax.xaxis.get_major_locator().set_params(integer=True)
    ax.grid(visible=False)
    size = min(9.0, 0.9 * 72 * ax.bbox.width / ax.figure.dpi / pairs)
    for row, (label, rope) in enumerate(labelled.items()):
        _draw_row(ax, -row, label.removeprefix("axes ") or short(rope.axes), rope, size)
    return ax


def _draw_row(ax: Any, y: float, label: str, rope: RoPE, size: float) -> None:
    """Draw a row upwards from y: bars, letters in points of a size below them, and the label above."""
    names, heights = _names(rope), _heights(rope)
    pairs = np.flatnonzero(heights)
    colours = [_COLOUR_OF.get(names[i]) or COLOURS[int(names[i]) % len(COLOURS)] for i in pairs]
    ax.bar(pairs, heights[pairs], 0.88, y, color=colours)
    for pair in pairs:
        ax.text(pair, y - 0.03, names[pair], fontsize=size, ha="center", va="top")
    ax.text(-0.5, y + _HEIGHT + 0.04, label, fontsize=10, va="bottom")


def _names(rope: RoPE) -> list[str]:
    """Return the letter of each pair's coordinate, or its number; empty if the pair has none."""
    assert rope.axes is not None
    letters = _LETTERS.get(rope.axes.count or 0)
    return ["" if a is None else letters[a] if letters else str(a) for a in rope.axes.coordinates]


def _heights(rope: RoPE) -> Floats:
    """Return the height of each pair's bar, 0 for pairs that do not rotate."""
    omegas = np.abs(rope.frequencies)
    logs = np.log(omegas, where=omegas > 0, out=np.full(len(omegas), np.nan))
    low, high = np.nanmin(logs), np.nanmax(logs)
    relative = (logs - low) / (high - low) if high > low else np.where(np.isnan(logs), logs, 1.0)
    return np.nan_to_num(_HEIGHT * (_LOWEST + (1 - _LOWEST) * relative))
