"""Plots of attention scores: their decay with the distance, and maps over the positions of q and k."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from rope_array._errors import SpecError, describe
from rope_array._rope import RoPE
from rope_array._spec.validation import sequence

from ._drawing import COLOURS, add_legend, count_ticks, panel, panels
from ._ropes import Floats, Ropes, for_coordinates, label_ropes, position_count, tables

_MOST_DISTANCES = 512
_MOST_POSITIONS = 2048
_BOUND, _EQUAL, _INDEPENDENT = "bound", "equal", "independent"
_NAMES = {
    _BOUND: "bound (RoFormer)",
    _EQUAL: "mean |score|, k = q",
    _INDEPENDENT: "mean |score|, q and k independent",
}
_SOME_LINES = f"some of {', '.join(map(repr, _NAMES))}"
_DASHES = {_BOUND: "-", _EQUAL: "--", _INDEPENDENT: ":"}


def decay(
    ropes: Ropes,
    *,
    furthest: int = 256,
    draws: int = 1000,
    lines: Sequence[str] = (_BOUND, _EQUAL, _INDEPENDENT),
    ax: Any = None,
) -> Any:
    """Draw the long-term decay of scores with the distance: RoFormer's bound, and random q and k.

    Parameters
    ----------
    ropes : RoPE, sequence of RoPE or dict of str to RoPE
        The rotary embeddings. With axes, a distance is the same in every coordinate.
    furthest : int
        The largest distance in positions, from 1 to 2^31 - 1.
    draws : int
        Number of random q and k, from 1 to 100,000.
    lines : sequence of {"bound", "equal", "independent"}
        The lines to draw for each rope; see the notes.
    ax : matplotlib.axes.Axes, optional
        The Axes to draw on; by default the Axes of a new figure.

    Returns
    -------
    matplotlib.axes.Axes
        For each rope its lines, each divided by its value at distance 0; above 512 positions running means.

    Raises
    ------
    SpecError
        `ropes` holds no rope or one that rotates nothing, a rule needs a length first (``rope.at_length``),
        a number is out of range, or a line is unknown.
    ImportError
        matplotlib is missing.

    Notes
    -----
    A score is q·k after q was rotated at position 0 and k at the distance. The lines are

    * "bound": the mean of ``|S_n|``, n = 1 .. d/2, where S_n sums exp(i·distance·ω_j) over the first n
      pairs. RoFormer, arXiv 2104.09864, section 3.4.3 and figure 2, bounds ``|q·k|`` by it, times a factor of
      q and k;
    * "equal": the mean of ``|q·k|`` for random normal q, and k = q before the rotations;
    * "independent": the mean of ``|q·k|`` for independent random normal q and k. It does not decay:
      rotations leave the distribution of such k as it is [1]_.

    A bound that falls does not make scores fall: they do where q and k resemble each other. The random
    numbers are the same at every call.

    Above 512 positions the axis is logarithmic, with 512 distances from 1 on. Scores vary from one distance
    to the next, which would hide the decay: each point is the mean over distances 1/√2 to √2 times as far.

    References
    ----------
    .. [1] Barbero et al., "Round and Round We Go! What makes Rotary Positional Encodings useful?",
       arXiv 2410.06205, section 3.

    Examples
    --------
    >>> import rope_array as ra
    >>> from rope_array import plots
    >>> ax = plots.decay(ra.RoPE(head_dim=128), furthest=100, lines=["bound"])
    >>> bound = ax.lines[0].get_ydata()
    >>> float(bound[0]), bool(bound[100] < 0.4)
    (1.0, True)
    """
    labelled = label_ropes(ropes)
    furthest, draws = position_count("furthest", furthest), position_count("draws", draws)
    if draws > 100_000:
        raise SpecError(f"draws is {draws:,}; give at most 100,000.")
    wanted = _known_lines(lines)
    far = furthest > _MOST_DISTANCES
    ax = panel(
        ax,
        "Long-term decay of scores",
        xlabel="distance of q and k (positions)",
        ylabel="relative to distance 0" + far * "\n(mean over neighbouring distances)",
        rows_below=len(labelled) * len(wanted) if len(labelled) > 1 else 0,
    )
    spaced = np.geomspace(1, furthest, _MOST_DISTANCES) if far else np.arange(1, furthest + 1)
    distances = np.unique(np.append(0, spaced.astype(np.int64)))
    for index, (label, rope) in enumerate(labelled.items()):
        for name, values in _decays(rope, distances, draws, wanted):
            text = f"{label}: {_NAMES[name]}" if label else _NAMES[name]
            colour = COLOURS[(index if len(labelled) > 1 else list(_NAMES).index(name)) % len(COLOURS)]
            x, y = _running_mean(distances[1:], values[1:]) if far else (distances, values)
            ax.plot(x, y, label=text, color=colour, linestyle=_DASHES[name], linewidth=1.8)
    ax.set(xscale="log" if far else "linear", ylim=(0, 1.45 if len(labelled) == 1 else 1.15))
    count_ticks(ax.xaxis)
    add_legend(ax, below=len(labelled) > 1, loc="upper right")
    return ax


def _known_lines(lines: Any) -> tuple[str, ...]:
    names = (lines,) if isinstance(lines, str) else sequence("lines", lines, _SOME_LINES)
    if not names or any(name not in _NAMES for name in names):
        raise SpecError(f"lines is {describe(lines)}; give {_SOME_LINES}.")
    return names


def _decays(rope: RoPE, distances: Any, draws: int, lines: Sequence[str]) -> Iterator[tuple[str, Floats]]:
    """Yield the name of each line and its values, relative to distance 0."""
    for name in lines:
        values = _bound(rope, distances) if name == _BOUND else _mean_scores(rope, distances, draws, name)
        yield name, values / values[0]


def _running_mean(distances: Any, values: Floats) -> tuple[Any, Floats]:
    """Return distances, and the mean of the values over the octave around each."""
    sums = np.append(0.0, np.cumsum(values))
    start = np.searchsorted(distances, distances / 2**0.5)
    stop = np.searchsorted(distances, distances * 2**0.5, side="right")
    return distances, (sums[stop] - sums[start]) / (stop - start)


def _bound(rope: RoPE, distances: Any) -> Floats:
    """Return the mean of the sizes of the partial sums S_n."""
    cos, sin = tables(rope, distances)
    return np.asarray(np.abs(np.cumsum(cos + 1j * sin, axis=-1)).mean(axis=-1))


def _mean_scores(rope: RoPE, distances: Any, draws: int, name: str) -> Floats:
    """Return the mean of |q·k| at each distance."""
    q, k = np.random.default_rng(0).standard_normal((2, draws, rope.head_dim))
    k = q if name == _EQUAL else k
    q = rope.apply(q, for_coordinates(rope, np.zeros(draws, np.int64)))
    pos, total = for_coordinates(rope, distances), np.zeros(len(distances))
    for row in range(draws):  # all at once would take gigabytes
        total += np.abs(rope.apply(np.tile(k[row], (len(distances), 1)), pos) @ q[row])
    return total / draws


def scores(ropes: Ropes, *, positions: int | range = 64, q: Any = None, k: Any = None, ax: Any = None) -> Any:
    """Draw a map of attention scores, q·k/√head_dim: q rotated at positions m, k at positions n.

    Parameters
    ----------
    ropes : RoPE, sequence of RoPE or dict of str to RoPE
        The rotary embeddings, one map each. With axes, a position is the same in every coordinate.
    positions : int or range
        The positions m and n; an int is ``range(positions)``. At most 2048.
    q, k : array of shape (head_dim,) or (len(positions), head_dim), optional
        The query and the key before the rotation, the same at all positions or one for each. By default all
        ones: then a score shows the distance alone.
    ax : matplotlib.axes.Axes or sequence of them, optional
        The Axes to draw on, one for each rope; by default the Axes of a new figure.

    Returns
    -------
    matplotlib.axes.Axes or list of them
        The Axes of a single rope, or a list of the Axes of several.

    Raises
    ------
    SpecError
        `ropes` holds no rope or one that rotates nothing, a rule needs a length first (``rope.at_length``),
        positions or the shapes of q and k do not fit, or there are not as many Axes as ropes.
    ImportError
        matplotlib is missing.

    Notes
    -----
    With one q and one k for all positions a score depends on n - m alone (RoFormer, arXiv 2104.09864,
    equation 16), so that every diagonal has one colour.

    Examples
    --------
    >>> import rope_array as ra
    >>> from rope_array import plots
    >>> ax = plots.scores(ra.RoPE(head_dim=4), positions=3)
    >>> ax.images[0].get_array().round(4).tolist()[0]
    [2.0, 1.5403, 0.5837]
    """
    labelled = label_ropes(ropes)
    pos = _checked_range(positions)
    maps = [_score_map(rope, pos, q, k) for rope in labelled.values()]
    titles = [f"Scores q·k/√head_dim\n{label}".rstrip() for label in labelled]
    axes = panels(ax, titles, xlabel="position n of the key", ylabel="position m of the query")
    limit = max(float(np.abs(values).max()) for values in maps) or 1.0
    for panel_axes, values in zip(axes, maps, strict=True):
        _draw_map(panel_axes, values, pos, limit)
    return axes[0] if len(axes) == 1 else axes


def _checked_range(positions: Any) -> range:
    pos = positions if isinstance(positions, range) else range(position_count("positions", positions))
    if not 2 <= len(pos) <= _MOST_POSITIONS or pos.step < 1:
        raise SpecError(f"positions is {positions}; give from 2 to {_MOST_POSITIONS} ascending positions.")
    position_count("the first of positions", pos[0], 0)
    position_count("the last of positions", pos[-1], 0)
    return pos


def _score_map(rope: RoPE, pos: range, q: Any, k: Any) -> Floats:
    rotated_q, rotated_k = (
        rope.apply(_feature_rows(name, x, len(pos), rope.head_dim), for_coordinates(rope, np.array(pos)))
        for name, x in (("q", q), ("k", k))
    )
    return np.asarray(rotated_q @ rotated_k.T / np.sqrt(rope.head_dim))


def _feature_rows(name: str, x: Any, count: int, width: int) -> Floats:
    """Return one float64 row for each position."""
    try:
        array = np.ones(width) if x is None else np.asarray(x)
    except ValueError:  # lists of unequal lengths
        array = np.empty(0)
    if array.dtype.kind not in "fiu" or array.shape not in ((width,), (count, width)):
        raise SpecError(
            f"{name} is {describe(x)}; give real numbers of shape ({width},) or ({count}, {width})."
        )
    return np.array(np.broadcast_to(array, (count, width)), np.float64)


def _draw_map(ax: Any, values: Floats, pos: range, limit: float) -> None:
    edges = (pos[0] - pos.step / 2, pos[-1] + pos.step / 2)
    image = ax.imshow(
        values,
        cmap="PuOr_r",
        vmin=-limit,
        vmax=limit,
        extent=(*edges, *reversed(edges)),
        interpolation="none",
    )
    ax.grid(visible=False)
    count_ticks(ax.xaxis)
    count_ticks(ax.yaxis)
    ax.figure.colorbar(image, ax=ax, label="score", shrink=0.85)
