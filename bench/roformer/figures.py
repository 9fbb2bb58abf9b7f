"""Figures of the study as SVG files for light and dark pages, and the figures of the mathematics.

A file holds the colours of a light page, and CSS that replaces them where the page is dark. It paints its own
background, so that it is readable too where a reader's browser and page disagree. In Markdown, one line shows
it on GitHub and in Furo: `![the text for readers without the picture](pictures/roformer/decay.svg)`.
"""

from collections.abc import Callable, Iterable, Mapping
from io import StringIO
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Circle
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

import rope_array as ra
from rope_array.plots._drawing import COLOURS as SAFE
from rope_array.plots._drawing import line_style

from . import mathematics

BACKGROUND, TEXT, GREY, GRID = "#ffffff", "#1f2328", "#6e7781", "#d0d7de"
BLUE, ORANGE, GREEN = SAFE[:3]
DARK = {BACKGROUND: "#0d1117", TEXT: "#e6edf3", GREY: "#9198a1", GRID: "#3d444d", BLUE: "#56B4E9"}
STYLE = {
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "roformer",  # ids, and so bytes, are the same in every run
    "path.simplify": False,  # keep every point: rounding could drop others on another machine
    "font.size": 10,
    "axes.titlesize": 10,
    "legend.fontsize": 9,
    "legend.frameon": False,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "text.color": TEXT,
    **dict.fromkeys(("axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color"), TEXT),
    **dict.fromkeys(("figure.facecolor", "axes.facecolor"), BACKGROUND),
}


# ---- helpers for every figure of the study ----


def figure(width: float, height: float) -> Figure:
    """Return an empty figure, in inches; up to 7.5 wide, a page shows it at its own size."""
    return Figure(figsize=(width, height), layout="constrained")


def curves(ax, lines: Mapping[str, tuple]) -> None:
    """Draw x, mean, low and high (each (N,), low and high None without a band) of each label as a line."""
    for index, (label, (x, mean, low, high)) in enumerate(lines.items()):
        style = _line_style(index)
        ax.plot(x, mean, label=label, linewidth=1.8, **style)
        if low is not None:
            ax.fill_between(x, low, high, color=style["color"], alpha=0.18, linewidth=0)
    ax.grid(visible=True)


def points(ax, rows: Mapping[str, tuple]) -> None:
    """Draw one row for each label, the first at the top: seeds (N,), and mean, low, high as an interval."""
    for y, (seeds, mean, low, high) in enumerate(rows.values()):
        ax.plot(seeds, np.full(len(seeds), y), "o", color=GREY, markersize=3.5, markeredgewidth=0, alpha=0.7)
        ax.plot([low, high], [y, y], color=BLUE, linewidth=2)
        ax.plot([mean], [y], "D", color=BLUE, markersize=6, markeredgewidth=0)
    ax.set_yticks(range(len(rows)), labels=rows)
    ax.set_ylim(len(rows) - 0.5, -0.5)
    ax.grid(visible=True, axis="x")


def save(name: str, draw: Callable[[], Figure], folder: Path) -> Path:
    """Draw a figure and write it to `folder`/`name`.svg; the same figure gives the same bytes."""
    text = StringIO()
    with matplotlib.rc_context(STYLE):
        draw().savefig(text, format="svg", metadata={"Date": None})
    path = Path(folder) / f"{name}.svg"
    path.write_text(_for_dark_pages(text.getvalue()), "utf-8", newline="\n")
    return path


def _for_dark_pages(svg: str) -> str:
    """Add the rules that replace the colours, which matplotlib writes into the style of each element."""
    rules = (
        f'[style*="{attribute}: {light.lower()}"] {{{attribute}: {dark} !important}}'
        for light, dark in DARK.items()
        for attribute in ("fill", "stroke")
    )
    css = "\n@media (prefers-color-scheme: dark) {\n" + "\n".join(rules) + "\n}\n"
    return svg.replace("</style>", css + "</style>", 1)


def _line_style(index: int) -> dict:
    style = line_style(index)
    return style | {"color": TEXT} if style["color"] == "#000000" else style  # black cannot become light


def count_ticks(axis, counts: Iterable[int]) -> None:
    """Mark counts on a logarithmic axis, written as 1, 100, 10,000."""
    axis.set_major_locator(FixedLocator(list(counts)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axis.set_minor_locator(NullLocator())


# ---- the figures of the mathematics ----


def draw_mathematics(folder: Path) -> list[Path]:
    """Write every figure of the paper's section 3 into a folder; return the files."""
    drawn = {
        "two-dimensions": draw_two_dimensions,
        "implementation": draw_implementation,
        "matrix": draw_matrix,
        "decay": draw_decay,
        "base": draw_base,
        "tutorial-matrix": draw_tutorial_matrix,
        "tutorial-scores": draw_tutorial_scores,
    }
    return [save(name, draw, folder) for name, draw in drawn.items()]


def draw_two_dimensions() -> Figure:
    """Draw two-dimensional q and k at three pairs of positions with equal n − m (eq. 11 to 13)."""
    drawing = figure(7.4, 2.9)
    for ax, m in zip(drawing.subplots(1, 3), (1, 2, 4), strict=True):
        _draw_rotated_pair(ax, m, m + 1)
        ax.set_title(f"m = {m}, n = {m + 1}: n − m = 1")
    return drawing


def _draw_rotated_pair(ax, m, n) -> None:
    q, k = np.array([0.94, 0.34]), np.array([1.0, 0.0])  # angles of 20° and 0°
    ends = []
    for vector, position, colour, name in ((q, m, BLUE, "q"), (k, n, ORANGE, "k")):
        _arrow(ax, vector, GREY, 1.0)
        ax.text(*(1.15 * vector), name, color=GREY, ha="center", va="center")
        ends.append(ra.apply(vector, position))
        _arrow(ax, ends[-1], colour, 2.2)
        ax.text(*(1.22 * ends[-1]), f"{name}, {position}θ", color=colour, ha="center", va="center")
    _draw_angle(ax, *(np.angle(complex(*end)) for end in ends))
    ax.set(xlim=(-1.4, 1.4), ylim=(-1.4, 1.4), aspect="equal")
    ax.axis("off")


def _draw_angle(ax, first, last) -> None:
    size = (last - first) % (2 * np.pi)
    around, middle = first + np.linspace(0, size, 31), first + size / 2
    ax.plot(0.45 * np.cos(around), 0.45 * np.sin(around), color=TEXT, linewidth=1.2)
    ax.text(
        0.72 * np.cos(middle), 0.72 * np.sin(middle), f"{np.degrees(size):.0f}°", ha="center", va="center"
    )


def _arrow(ax, end, colour, width, start=(0, 0)) -> None:
    style = {"arrowstyle": "-|>", "color": colour, "linewidth": width, "shrinkA": 0, "shrinkB": 0}
    ax.annotate("", xy=end, xytext=start, arrowprops=style)


def draw_implementation() -> Figure:
    """Draw the pairs of six tokens before and after the rotation, as the paper's figure 1."""
    tokens = ("Enhanced", "Transformer", "with", "Rotary", "Position", "Embedding")
    frequencies = ra.RoPE(8).frequencies
    x = np.tile((0.4, 0.0), (len(tokens), len(frequencies)))
    rotated = ra.apply(x, range(1, len(tokens) + 1))
    drawing = figure(5.6, 5.4)
    ax = drawing.subplots()
    for row, pair in np.ndindex(len(tokens), len(frequencies)):
        _draw_clock(ax, (pair, row), x[row, 2 * pair :][:2], rotated[row, 2 * pair :][:2])
    labels = [f"pair {i}\nθ = {frequency:g}" for i, frequency in enumerate(frequencies)]
    ax.set_xticks(range(len(frequencies)), labels=labels)
    ax.set_yticks(range(len(tokens)), labels=[f"{word}, m = {m}" for m, word in enumerate(tokens, 1)])
    ax.set(xlim=(-0.5, len(frequencies) - 0.5), ylim=(len(tokens) - 0.5, -0.5), aspect="equal")
    ax.spines[:].set_visible(False)
    ax.tick_params(length=0)
    return drawing


def _draw_clock(ax, centre, before, after) -> None:
    ax.add_patch(Circle(centre, 0.4, edgecolor=GRID, facecolor="none"))
    for (x, y), colour, width in ((before, GREY, 1.0), (after, BLUE, 2.2)):
        _arrow(ax, (centre[0] + x, centre[1] - y), colour, width, centre)  # the axis of tokens points down


def draw_matrix() -> Figure:
    """Draw the entries of R(Θ, m) for D = 8 at three positions (eq. 15)."""
    return _matrices({f"m = {m}": ra.RoPE(8).matrix(m) for m in (1, 10, 100)})


def _matrices(shown: Mapping[str, np.ndarray]) -> Figure:
    """Draw matrices (8, 8) and the scale of their colours."""
    drawing = figure(7.4, 2.9)
    axes = drawing.subplots(1, len(shown) + 1, width_ratios=[1] * len(shown) + [0.06])
    for ax, (title, matrix) in zip(axes, shown.items(), strict=False):
        _draw_entries(ax, matrix)
        ax.set(title=title, xticks=range(0, 8, 2), yticks=range(0, 8, 2))
    _draw_scale(axes[-1])
    return drawing


def _draw_entries(ax, values, **options) -> None:
    """Draw values from −1 to 1: the sign as colour, the size as opacity, so that 0 shows any background."""
    rgb = np.where(values[..., None] < 0, _rgb(ORANGE), _rgb("#3a8fc9"))
    ax.imshow(np.concatenate([rgb, np.abs(values)[..., None]], -1), interpolation="none", **options)
    ax.spines[:].set_visible(True)


def _rgb(colour) -> tuple[float, ...]:
    return matplotlib.colors.to_rgb(colour)


def _draw_scale(ax) -> None:
    _draw_entries(ax, np.linspace(1, -1, 41)[:, None], extent=(0, 1, -1, 1), aspect="auto")
    ax.set(xticks=[], yticks=(-1, 0, 1))
    ax.yaxis.tick_right()


def draw_decay() -> Figure:
    """Draw the bound of section 3.4.3 against the distance, as figure 2 does, and the mean |score|."""
    labels = {
        "bound": "bound of eq. 37: mean |S_i|",
        "equal": "mean |score|, k = q",
        "independent": "mean |score|, q and k independent",
    }
    lines = mathematics.decay_lines(mathematics.WIDE, 250)
    drawing = figure(7.4, 3.6)
    ax = drawing.subplots()
    curves(ax, {labels[name]: (np.arange(251), values, None, None) for name, values in lines.items()})
    ax.set(xlabel="distance of q and k (positions)", ylabel="relative to distance 0", ylim=(0, 1.3))
    ax.legend(loc="upper right", ncols=3, columnspacing=1.2, handlelength=2.2)
    return drawing


def draw_base() -> Figure:
    """Draw two bases: wavelengths, the score of q = k against the distance, and its repetitions."""
    drawing = figure(7.4, 3.2)
    axes = drawing.subplots(1, 3)
    for draw, ax in zip((_draw_wavelengths, _draw_fall, _draw_repetitions), axes, strict=True):
        draw(ax)
    axes[0].legend(loc="upper left")
    return drawing


def _by_base(values) -> dict:
    return {f"base {base:,.0f}": (*values(base), None, None) for base in mathematics.BASES}


def _draw_wavelengths(ax) -> None:
    pairs = np.arange(mathematics.WIDE // 2)
    curves(ax, _by_base(lambda base: (pairs, mathematics.wavelengths(mathematics.WIDE, base))))
    ax.set(title="wavelengths, D = 128", xlabel="pair", ylabel="positions", yscale="log", ylim=(4, 1e6))
    count_ticks(ax.yaxis, (10, 100, 1000, 10_000, 100_000))


def _draw_fall(ax) -> None:
    distances = np.arange(201)
    scores = lambda base: mathematics.equal_scores(mathematics.WIDE, base, distances)  # noqa: E731
    curves(ax, _by_base(lambda base: (distances, scores(base))))
    ax.set(title="score of q = k, D = 128", xlabel="distance")


def _draw_repetitions(ax) -> None:
    curves(ax, _by_base(_records))
    title = f"highest score from\ndistance {mathematics.FAR[0]} on, D = 16"
    ax.set(title=title, xlabel="up to distance", xscale="log", ylim=(0, 1))
    count_ticks(ax.xaxis, (100, 1000, 10_000))


def _records(base):
    """Return the distances at which the highest score grows, as the corners of a line of steps."""
    distances = mathematics.FAR
    highest = np.maximum.accumulate(mathematics.equal_scores(mathematics.NARROW, base, distances))
    grows = np.flatnonzero(np.diff(highest, prepend=-1))
    x = np.append(np.repeat(grows + distances[0], 2)[1:], distances[-1])
    return x, np.repeat(highest[grows], 2)


def draw_tutorial_matrix() -> Figure:
    """Draw `rope.matrix`, the first matrix of `get_rotary_matrix`, and its transpose: x @ R is Rᵀ x."""
    (first,) = mathematics.get_rotary_matrix(1, 8)
    titles = "rope.matrix(1)", "get_rotary_matrix: R[0]", "R[0] transposed: x @ R[0]"
    return _matrices(dict(zip(titles, (ra.RoPE(8).matrix(1), first, first.T), strict=True)))


def draw_tutorial_scores() -> Figure:
    """Draw scores against n − m: RoPE, x @ R with the paper's frequencies, and tutorials' matrices."""
    q, k = np.random.default_rng(4).standard_normal((2, mathematics.NARROW))
    offsets = np.arange(-16, 17)
    drawing = figure(7.4, 3.4)
    ax = drawing.subplots()
    lines = _tutorial_lines(q, k, offsets)
    curves(ax, {name: (offsets, values, None, None) for name, values in lines.items()})
    ax.set(xlabel="n − m (positions)", ylabel="score")
    ax.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3, columnspacing=1.2)
    return drawing


def _tutorial_lines(q, k, offsets) -> dict[str, np.ndarray]:
    rope, count = ra.RoPE(len(q)), len(offsets)
    n, m = np.arange(count), count // 2  # n − m are the offsets
    rows_q, rows_k = (np.tile(vector, (count, 1)) for vector in (q, k))
    ours = rope.matrix(n)
    tutorials = mathematics.get_rotary_matrix(count, len(q))
    return {
        "R x, as rope_array": rope.apply(rows_k, n) @ rope.apply(q, m),
        "x @ R, same θ": _scores_of_rows(rows_q, rows_k, ours, m),
        "x @ R, θ of get_rotary_matrix": _scores_of_rows(rows_q, rows_k, tutorials, m),
    }


def _scores_of_rows(q, k, matrices, m) -> np.ndarray:
    return mathematics.rotate_rows(k, matrices) @ mathematics.rotate_rows(q, matrices)[m]
