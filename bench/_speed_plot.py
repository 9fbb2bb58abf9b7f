"""Plots of a result of `bench/speed.py`, as SVG in docs/speed/."""

import matplotlib
from _record import ROOT
from _speed_table import BFLOAT16, FLOAT32, duration, labelled, names, row_of, shown
from _speed_turns import ALLOCATING, INTO

matplotlib.use("svg")
from matplotlib import pyplot, ticker

# Keep text as text, and make files reproducible.
STYLE = {"svg.fonttype": "none", "svg.hashsalt": "rope_array", "font.size": 9, "font.family": "sans-serif"}
OURS, PEERS, COPIES = "#c2410c", "#1d4ed8", "#404040"
# Colour, marker and dash of each line.
LINES = {
    INTO: (COPIES, "", ":"),
    ALLOCATING: (COPIES, "", "--"),
    "rope_array NumPy": (OURS, "o", "-"),
    "rope_array NumPy, out=": (OURS, "o", "--"),
    "rope_array PyTorch": ("#f59e0b", "s", "-"),
    "rope_array NumPy, core": ("#7c2d12", "^", "-"),
    "transformers Llama": (PEERS, "D", "-"),
    "ONNX Runtime, com.microsoft": ("#15803d", "v", "-"),
    "naive NumPy": ("#7e22ce", "x", "-"),
}


def write(result, root=ROOT):
    folder = root / "docs" / "speed"
    folder.mkdir(exist_ok=True)
    with matplotlib.rc_context(STYLE):
        save(prefill(result["numbers"]), folder / "prefill.svg")
        save(growth(result["numbers"]), folder / "growth.svg")


def save(figure, path):
    figure.savefig(path, metadata={"Date": None}, facecolor="white", bbox_inches="tight")
    pyplot.close(figure)


def prefill(cases):
    """Plot the median and the quartiles of each implementation in copies, for float32 and bfloat16."""
    kept = [name for name in names(cases) if name != INTO and row_of(cases, FLOAT32 + BFLOAT16, name)]
    size = (10, 1.3 + 0.24 * len(kept))
    figure, axes = pyplot.subplots(1, 2, figsize=size, sharex=True, sharey=True, layout="constrained")
    for axis, places, dtype in zip(axes, (FLOAT32, BFLOAT16), ("float32", "bfloat16"), strict=True):
        for place, name in enumerate(reversed(kept)):
            dot(axis, place, row_of(cases, places, name), colour(name))
        axis.axvline(1, color=COPIES, linestyle=":", linewidth=1)
        axis.set(
            title=f"{dtype}, 2,048 tokens × 32 heads × 128", xlabel="time in copies into existing memory"
        )
        in_copies(axis)
    labels = [shown(labelled(cases, FLOAT32 + BFLOAT16, name)) for name in reversed(kept)]
    axes[0].set_yticks(range(len(kept)), labels=labels)
    return figure


def dot(axis, place, row, color):
    if row is None or "copies" not in row:
        return
    lower, median, upper = row["copies"]
    axis.plot([lower, upper], [place, place], color=color, linewidth=2, alpha=0.5)
    axis.plot(median, place, "o", color=color, markersize=5)
    text = {"textcoords": "offset points", "xytext": (7, 0), "va": "center", "fontsize": 8}
    axis.annotate(f"{median:.3g}", (max(upper, median), place), color=color, **text)


def colour(name):
    return OURS if name.startswith("rope_array") else COPIES if name.startswith("copy") else PEERS


def in_copies(axis):
    axis.set_xscale("log")
    axis.xaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
    axis.xaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:g}"))
    axis.xaxis.set_minor_locator(ticker.NullLocator())
    axis.margins(x=0.15)
    bare(axis)


def bare(axis):
    axis.grid(alpha=0.25)
    axis.spines[["top", "right"]].set_visible(False)


def growth(cases):
    """Plot medians by the number of tokens, on logarithmic axes; (1, 1, S, 64) float32."""
    found = [case for case in cases.values() if case["group"] == "growth"]
    figure, axis = pyplot.subplots(figsize=(8, 5), layout="constrained")
    for name, (color, marker, dash) in LINES.items():
        rows = [(case["shape"][2], case["rows"].get(name, {})) for case in found]
        points = [(tokens, row["seconds"][1]) for tokens, row in rows if "seconds" in row]
        if points:
            style = {"color": color, "marker": marker, "linestyle": dash, "markersize": 4, "linewidth": 1.3}
            axis.plot(*zip(*points, strict=True), label=shown(name), **style)
    axis.set(yscale="log", xlabel="tokens", title="One head of 64, float32, one thread")
    axis.set_xscale("log", base=4)
    axis.xaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axis.yaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: duration(value)))
    axis.tick_params(axis="x", rotation=30)
    axis.legend(frameon=False, fontsize=8)
    bare(axis)
    return figure
