"""Maps of axes: the coordinate and the frequency of each pair."""

from typing import Any

import numpy as np

from rope_array._errors import SpecError, short
from rope_array._rope import RoPE

from ._drawing import COLOURS, panel
from ._frequencies import wavelengths_of
from ._ropes import Ropes, label_ropes


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
        A rope has no `axes` or rotates nothing, there is none, or a rule needs a length first
        (``rope.at_length``).
    ImportError
        matplotlib is missing.

    Notes
    -----
    The letters of two coordinates are H and W, of three T, H and W, of four T, H, W and E, as in ggml. Other
    coordinates have their numbers. Heights are logarithmic, from the rope's lowest frequency to its highest.

    Examples
    --------
    >>> import rope_array as ra
    >>> from rope_array import plots
    >>> ax = plots.axes(ra.RoPE(head_dim=8, axes=ra.Axes((0, None, 1, 1))))
    >>> [(int(text.get_position()[0]), text.get_text()) for text in ax.texts[1:]]
    [(0, 'H'), (2, 'W'), (3, 'W')]
    """
    labelled = label_ropes(ropes)
    for rope in labelled.values():
        if rope.axes is None:
            raise SpecError(
                f"the rope {short(rope)} has no axes; give one of a config of images or video, or with "
                "axes=, such as Axes.axial."
            )
    pairs, new = max(len(rope.frequencies) for rope in labelled.values()), ax is None
    title, rows = "Coordinate and frequency of each pair", 4 * len(labelled) - 13
    ax = panel(ax, title, xlabel="pair", ylabel="log frequency", rows_below=rows)
    if new:
        ax.figure.set_figwidth(min(12.0, max(ax.figure.get_figwidth(), 0.16 * pairs)))
    ax.set(xlim=(-0.7, pairs - 0.3), ylim=(0.7 - len(labelled), 0.8), yticks=[])
    ax.xaxis.get_major_locator().set_params(integer=True)
    ax.grid(visible=False)
    size = min(9.0, 0.9 * 72 * ax.bbox.width / ax.figure.dpi / pairs)  # of letters, in points
    for row, (label, rope) in enumerate(labelled.items()):
        ax.text(-0.5, 0.57 - row, label.removeprefix("axes ") or short(rope.axes), fontsize=10)
        _draw_pairs(ax, -row, rope, size)
    return ax


def _draw_pairs(ax: Any, y: float, rope: RoPE, size: float) -> None:
    """Draw the bars of a rope upwards from y, and the letters below them."""
    assert rope.axes is not None
    count, lengths = rope.axes.count or 1, np.log(wavelengths_of(rope))
    letters = {2: "HW", 3: "THW", 4: "THWE"}.get(count) or [*map(str, range(count))]
    shortest, longest = np.fmin.reduce(lengths), np.fmax.reduce(lengths)
    heights = 0.52 - 0.48 * (lengths - shortest) / ((longest - shortest) or 1.0)
    for pair, coordinate in enumerate(rope.axes.coordinates):
        if coordinate is not None and heights[pair] > 0:  # neither unmapped nor of frequency 0, which is NaN
            name = letters[coordinate]
            colour = "HWTE".index(name) if name.isalpha() else coordinate % len(COLOURS)
            ax.bar(pair, heights[pair], 0.88, y, color=COLOURS[colour])
            ax.text(pair, y - 0.03, name, fontsize=size, ha="center", va="top")
