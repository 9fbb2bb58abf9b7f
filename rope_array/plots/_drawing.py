"""Figures, lines and files: everything that the plots share of matplotlib, which is imported late."""

import os
from collections.abc import Sequence
from importlib import import_module
from textwrap import fill, wrap
from typing import Any

from rope_array._errors import SpecError, describe

# Okabe and Ito's colours, which colour-blind readers can tell apart; yellow and light blue are left out, as
# they fade on white. https://jfly.uni-koeln.de/color
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#000000", "#CC79A7", "#E69F00")
DASHES = ("-", "--", ":", "-.", (0, (5, 1, 1, 1, 1, 1)))
GREY = "#595959"

_SIZE = (5.0, 3.7)  # inches: small, so that text is large on a phone
_DPI = 100
_LABEL = 60  # characters in a row of a legend
# Keep text as text and every point of a line, and make files reproducible.
_FILE = {"svg.fonttype": "none", "svg.hashsalt": "rope_array", "path.simplify": False}
_UNDATED = {"svg": {"Date": None}, "pdf": {"CreationDate": None}, "ps": {"CreationDate": None}}


def matplotlib(module: str = "") -> Any:
    """Import matplotlib, or a module of it."""
    try:
        return import_module(f"matplotlib.{module}".rstrip("."))
    except ImportError as error:
        raise ImportError(
            f"rope_array.plots needs matplotlib, which cannot be imported ({error}): "
            "python -m pip install matplotlib"
        ) from error


def panel(ax: Any, title: str, *, rows_below: int = 0, **labels: str) -> Any:
    """Return the Axes to draw on, of a new figure by default, with its title and labels.

    A new figure has room below for so many rows of a legend.
    """
    return panels(ax, (title,), rows_below=rows_below, **labels)[0]


def panels(ax: Any, titles: Sequence[str], *, rows_below: int = 0, **labels: str) -> list[Any]:
    """Return Axes side by side, one for each title: of a new figure, or checked if they are given."""
    count = len(titles)
    if ax is None:
        size = (_SIZE[0] * count**0.7, _SIZE[1] + 0.19 * rows_below)
        figure = matplotlib("figure").Figure(size, _DPI, facecolor="white", layout="constrained")
        ax = figure.subplots(1, count, squeeze=False)[0]
    axes = _given_axes(ax, count)
    for ax, title in zip(axes, titles, strict=True):
        ax.set(title=title, **labels)
        ax.grid(alpha=0.3)
        ax.set_axisbelow(True)
    return axes


def _given_axes(ax: Any, count: int) -> list[Any]:
    axes = list(ax) if hasattr(ax, "__iter__") else [ax]
    if len(axes) != count or not all(hasattr(a, "plot") for a in axes):
        accepted = "matplotlib Axes" if count == 1 else f"a sequence of {count} matplotlib Axes"
        raise SpecError(f"ax is {describe(ax)}; give {accepted}, or None for a new figure.")
    return axes


def line_style(index: int) -> dict[str, Any]:
    """Return the colour and the dashes of a line; both differ, for readers who see no colours."""
    return {"color": COLOURS[index % len(COLOURS)], "linestyle": DASHES[index % len(DASHES)]}


def add_legend(ax: Any, *, below: bool = False, **options: Any) -> None:
    """Add a legend of the labelled lines, if there is any; below the axes if it would hide lines."""
    handles, labels = ax.get_legend_handles_labels()
    if not labels:
        return
    if below and ax.figure.get_layout_engine() is None:  # which would cut off a legend below
        _add_headroom(ax, legend_rows(labels))
        options = {"loc": "upper right"}
    elif below:
        # The pad, in sizes of the font, leaves room for the numbers and the label of the axis.
        options = {"loc": "upper center", "bbox_to_anchor": (0.5, 0.0), "borderaxespad": 4.5}
    ax.legend(handles, [fill(label, _LABEL) for label in labels], framealpha=0.9, fontsize=9, **options)


def legend_rows(labels: Sequence[str]) -> int:
    """Return the number of rows of a legend with these labels; empty ones have none."""
    return sum(len(wrap(label, _LABEL)) for label in labels)


def _add_headroom(ax: Any, rows: int) -> None:
    """Extend the y axis upwards, so that so many rows of a legend hide no line."""
    share = min(0.7, (0.19 * rows + 0.15) * ax.figure.dpi / ax.bbox.height)
    scale = ax.yaxis.get_transform()
    low, high = scale.transform(ax.get_ylim())
    ax.set_ylim(top=scale.inverted().transform(low + (high - low) / (1 - share)))


def count_ticks(axis: Any) -> None:
    """Write the numbers of an axis without powers of ten: 2,048, 100k, 1M."""
    axis.set_major_formatter(matplotlib("ticker").FuncFormatter(lambda value, _: _short_count(value)))


def _short_count(value: float) -> str:
    for unit, size, minimum in (("M", 10**6, 10**6), ("k", 1000, 10**4)):
        if value >= minimum and value % size == 0:
            return f"{value / size:,.10g}{unit}"
    return f"{value:,.10g}"


def save(ax: Any, path: "str | os.PathLike[str]") -> None:
    """Write the figure of a plot to a file; the same plot gives the same bytes.

    Parameters
    ----------
    ax : matplotlib.axes.Axes or sequence of them
        The result of a function of this module.
    path : str or PathLike
        The file; its suffix names the format, such as ``.svg``, ``.png`` or ``.pdf``.

    Raises
    ------
    SpecError
        `ax` has no figure.
    ValueError
        matplotlib does not know the format.
    OSError
        The file cannot be written.

    Notes
    -----
    The background is white, for pages with a dark theme too. While the file is written, matplotlib's settings
    for SVG files are changed: text stays text, and ids do not vary.

    Examples
    --------
    >>> import os, tempfile
    >>> import rope_array as ra
    >>> from rope_array import plots
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = os.path.join(folder, "wavelengths.svg")
    ...     plots.save(plots.wavelengths(ra.RoPE(head_dim=64)), file)
    ...     os.path.getsize(file) > 1000
    True
    """
    first = next(iter(ax), None) if hasattr(ax, "__iter__") else ax
    figure = getattr(first, "figure", None)
    if figure is None:
        raise SpecError(f"ax is {describe(ax)}; give the Axes that a function of rope_array.plots returned.")
    name = os.fsdecode(path)
    suffix = os.path.splitext(name)[1][1:].lower()
    with matplotlib().rc_context(_FILE):
        figure.savefig(name, metadata=_UNDATED.get(suffix), facecolor="white")
