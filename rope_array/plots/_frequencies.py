"""Plots of frequencies: wavelengths against the context, and the effect of scaling rules."""

from dataclasses import replace
from typing import Any

import numpy as np

from rope_array._rope import RoPE

from ._drawing import GREY, add_legend, count_ticks, legend_rows, line_style, panel
from ._ropes import Floats, Ropes, label_ropes, position_count

_MARKERS = ("o", "s", "^", "D", "v", "x")


def wavelengths(ropes: Ropes, *, context: int | None = None, ax: Any = None) -> Any:
    """Draw the wavelength of each pair: the number of positions in which it rotates once, 2π/ω.

    Parameters
    ----------
    ropes : RoPE, sequence of RoPE or dict of str to RoPE
        The rotary embeddings.
    context : int, optional
        A number of positions to compare with, such as the trained context: pairs above it never rotate once.
    ax : matplotlib.axes.Axes, optional
        The Axes to draw on; by default the Axes of a new figure.

    Returns
    -------
    matplotlib.axes.Axes
        One line for each rope, of positions by pair, and a line at the context. Pairs that do not rotate
        have no point.

    Raises
    ------
    SpecError
        `ropes` holds no rope or one that rotates nothing, a rule needs a length first (``rope.at_length``),
        or `context` is out of range.
    ImportError
        matplotlib is missing.

    Notes
    -----
    RoFormer, arXiv 2104.09864, section 3.4.3, compares the wavelengths with sinusoidal ones: 2π·base^(2i/d).

    Examples
    --------
    >>> import rope_array as ra
    >>> from rope_array import plots
    >>> ax = plots.wavelengths(ra.RoPE(head_dim=8), context=2048)
    >>> [round(float(length), 1) for length in ax.lines[0].get_ydata()]
    [6.3, 62.8, 628.3, 6283.2]
    """
    labelled = label_ropes(ropes)
    size = None if context is None else position_count("context", context)
    rows = len(labelled) + 1 if len(labelled) > 3 else 0
    labels = {"xlabel": "pair", "ylabel": "wavelength 2π/ω (positions)"}
    ax = panel(ax, "Wavelength of each pair", rows_below=rows, **labels)
    for index, (label, rope) in enumerate(labelled.items()):
        marker = {"marker": _MARKERS[index % len(_MARKERS)], "markersize": 4, "linewidth": 1}
        lengths = wavelengths_of(rope)
        ax.plot(np.arange(len(lengths)), lengths, label=label or None, **line_style(index), **marker)
    ax.set_yscale("log")
    if size is not None:
        ax.axhline(size, **_context_style(size))
    count_ticks(ax.yaxis)
    add_legend(ax, below=rows > 0, loc="upper left")
    return ax


def wavelengths_of(rope: RoPE) -> Floats:
    """Return the wavelength of each pair in positions, NaN for pairs that do not rotate."""
    omegas = np.abs(np.array(rope.frequencies))
    return 2 * np.pi / np.where(omegas > 0, omegas, np.nan)


def _context_style(size: int) -> dict[str, Any]:
    style = {"color": GREY, "linewidth": 1.5, "linestyle": (0, (6, 2))}
    return {"label": f"context: {size:,} positions", **style}


def scaling(ropes: Ropes, *, context: int | None = None, ax: Any = None) -> Any:
    """Draw the effect of scaling rules: each frequency with the rule, divided by the frequency without it.

    Parameters
    ----------
    ropes : RoPE, sequence of RoPE or dict of str to RoPE
        Rotary embeddings with a rule, or with the frequencies of a rule as `inv_freq`, which are compared
        with the rope's `base`. The label names this base, and an amplitude other than 1.
    context : int, optional
        The trained context in positions, drawn as a vertical line.
    ax : matplotlib.axes.Axes, optional
        The Axes to draw on; by default the Axes of a new figure.

    Returns
    -------
    matplotlib.axes.Axes
        One line for each rope: ratios by the wavelength, in positions, without the rule.

    Raises
    ------
    SpecError
        `ropes` holds no rope or one that rotates nothing, a rule needs a length first (``rope.at_length``),
        or `context` is out of range.
    ImportError
        matplotlib is missing.

    Examples
    --------
    >>> import rope_array as ra
    >>> from rope_array import plots
    >>> ax = plots.scaling(ra.RoPE(head_dim=8, scaling=ra.Linear(factor=4.0)))
    >>> ax.lines[0].get_ydata().tolist()
    [0.25, 0.25, 0.25, 0.25]
    >>> ax = plots.scaling(ra.RoPE(head_dim=8, base=10_000.0, inv_freq=[0.5, 0.05, 0.005, 0.0005]))
    >>> ax.lines[0].get_ydata().tolist(), ax.lines[0].get_label()
    ([0.5, 0.5, 0.5, 0.5], 'against base 10,000')
    """
    labelled = label_ropes(ropes)
    size = None if context is None else position_count("context", context)
    texts = [_with_details(label, rope) for label, rope in labelled.items()]
    ax = panel(
        ax,
        "What scaling rules do",
        xlabel="wavelength without the rule (positions)",
        ylabel="frequency, with ÷ without the rule",
        rows_below=legend_rows(texts) + (size is not None),
    )
    for index, (text, rope) in enumerate(zip(texts, labelled.values(), strict=True)):
        before, ratios = _effect(rope)
        ax.plot(before, ratios, label=text or None, linewidth=2, **line_style(index))
    _scale_ratios(ax)
    if size is not None:
        ax.axvline(size, **_context_style(size))
    count_ticks(ax.xaxis)
    add_legend(ax, below=True)
    return ax


def _effect(rope: RoPE) -> tuple[Floats, Floats]:
    """Return wavelengths without the rule in ascending order, and the ratios of the frequencies."""
    plain = replace(rope, scaling=None, inv_freq=None)
    lengths, before = wavelengths_of(plain), np.array(plain.frequencies)
    ratios = np.array(rope.frequencies) / np.where(before != 0, before, np.nan)
    order = np.argsort(lengths, kind="stable")
    return lengths[order], ratios[order]


def _with_details(label: str, rope: RoPE) -> str:
    base = "" if rope.inv_freq is None else f"against base {rope.base:,.10g}"
    amplitude = "" if rope.amplitude == 1.0 else f"cos and sin × {rope.amplitude:.4g}"
    return ", ".join(filter(None, (label, base, amplitude)))


def _scale_ratios(ax: Any) -> None:
    """Use a logarithmic axis for ratios above 0, and show 1; zero and negative ratios need a linear axis."""
    ax.set_xscale("log")
    drawn = np.concatenate([line.get_ydata() for line in ax.lines])
    ratios = drawn[np.isfinite(drawn)]
    if (ratios > 0).all():
        ax.set_yscale("log", base=2)
        ax.yaxis.set_major_formatter(lambda value, _: f"{value:g}" if value >= 1 else f"1/{1 / value:g}")
        ax.set_ylim(min(0.45, 0.9 * ratios.min()), max(1.1, 1.1 * ratios.max()))
