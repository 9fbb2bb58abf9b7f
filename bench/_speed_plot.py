"""The plots of a result of `bench/speed.py`, as SVG in docs/speed/."""

from itertools import product

import matplotlib
from _pages import BFLOAT16, FLOAT32, duration, labelled, names, row_of, shown
from _record import ROOT
from _speed_cases import ALLOCATING, BACKWARD, COPY, DTYPES, FORWARD, INTO, OURS, ROTATION

matplotlib.use("svg")
from matplotlib import pyplot, ticker

# Keep text as text, and make files reproducible.
STYLE = {"svg.fonttype": "none", "svg.hashsalt": "rope_array", "font.size": 9, "font.family": "sans-serif"}
RED, BLUE, GREY = "#c2410c", "#1d4ed8", "#404040"
# Colour, marker and dash of each line.
LINES = {
    INTO: (GREY, "", ":"),
    ALLOCATING: (GREY, "", "--"),
    "rope_array NumPy": (RED, "o", "-"),
    "rope_array NumPy, out=": (RED, "o", "--"),
    "rope_array PyTorch": ("#f59e0b", "s", "-"),
    "rope_array NumPy, core": ("#7c2d12", "^", "-"),
    "transformers Llama": (BLUE, "D", "-"),
    "ONNX Runtime, com.microsoft": ("#15803d", "v", "-"),
    "naive NumPy": ("#7e22ce", "x", "-"),
    COPY: (GREY, "", ":"),
    OURS: (RED, "o", "-"),
    ROTATION: ("#f59e0b", "s", "-"),
    "flash-attn, Triton kernel": ("#be185d", "^", "-"),
    "Liger, Triton kernel": ("#15803d", "v", "-"),
    "FlashInfer": ("#0e7490", "P", "-"),
    "vLLM": ("#7e22ce", "x", "-"),
}


def write(bench, run, root=ROOT):
    folder, numbers = root / "docs" / "speed", run["numbers"]
    with matplotlib.rc_context(STYLE):
        if bench == "gpu":
            save(on_gpu(run), folder / "gpu.svg")
        else:
            save(prefill(numbers), folder / "prefill.svg")
            save(growth(numbers), folder / "growth.svg")


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
        axis.axvline(1, color=GREY, linestyle=":", linewidth=1)
        axis.set_title(f"{dtype}, 2,048 tokens × 32 heads × 128")
        axis.set_xlabel("time in copies into existing memory")
        axis.set_xscale("log")
        in_copies(axis.xaxis, (1, 2, 5))
        axis.margins(x=0.15)
        bare(axis)
    labels = [shown(labelled(cases, FLOAT32 + BFLOAT16, name)) for name in reversed(kept)]
    axes[0].set_yticks(range(len(kept)), labels=labels)
    return figure


def dot(axis, place, row, color):
    if "copies" not in row:
        return
    lower, median, upper = row["copies"]
    axis.plot([lower, upper], [place, place], color=color, linewidth=2, alpha=0.5)
    axis.plot(median, place, "o", color=color, markersize=5)
    text = {"textcoords": "offset points", "xytext": (7, 0), "va": "center", "fontsize": 8}
    axis.annotate(f"{median:.3g}", (max(upper, median), place), color=color, **text)


def colour(name):
    return RED if name.startswith("rope_array") else GREY if name.startswith("copy") else BLUE


def in_copies(axis, subs):
    """Number a logarithmic axis of times in copies."""
    axis.set_major_locator(ticker.LogLocator(subs=subs))
    axis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_locator(ticker.NullLocator())


def bare(axis):
    axis.grid(alpha=0.25)
    axis.spines[["top", "right"]].set_visible(False)


def growth(cases):
    """Plot medians by the number of tokens, on logarithmic axes; (1, 1, S, 64) float32."""
    figure, axis = pyplot.subplots(figsize=(8, 5), layout="constrained")
    growing = [(case["shape"][2], case["rows"]) for case in cases.values() if case["group"] == "growth"]
    draw(axis, growing, "seconds")
    axis.set(yscale="log", xlabel="tokens", title="One head of 64, float32, one thread")
    by_tokens(axis, base=4)
    axis.yaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: duration(value)))
    axis.legend(frameon=False, fontsize=8)
    return figure


def draw(axis, cases, key, quartiles=False):
    """Draw the medians of each implementation by the number of tokens, of pairs of tokens and rows."""
    for name, (color, marker, dash) in LINES.items():
        points = [(tokens, *rows[name][key]) for tokens, rows in cases if key in rows.get(name, {})]
        if points:
            tokens, lower, median, upper = zip(*sorted(points), strict=True)
            style = {"color": color, "marker": marker, "linestyle": dash, "markersize": 4, "linewidth": 1.3}
            axis.plot(tokens, median, label=shown(name), **style)
            if quartiles:
                axis.fill_between(tokens, lower, upper, color=color, alpha=0.15, linewidth=0)


def by_tokens(axis, base):
    axis.set_xscale("log", base=base)
    axis.xaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axis.tick_params(axis="x", rotation=30)
    bare(axis)


def on_gpu(run):
    """Plot medians and quartiles in copies by the number of tokens: a panel for each direction and dtype."""
    figure, axes = pyplot.subplots(2, 2, figsize=(10, 7), sharex=True, sharey=True, layout="constrained")
    for axis, (direction, dtype) in zip(axes.flat, product((FORWARD, BACKWARD), DTYPES), strict=True):
        wanted = {"group": "prefill", "direction": direction, "dtype": dtype, "pairing": "half"}
        prefills = [case for case in run["numbers"].values() if wanted.items() <= case.items()]
        draw(axis, [(case["tokens"], case["rows"]) for case in prefills], "copies", quartiles=True)
        axis.set(yscale="log", title=f"{direction}, {dtype}", xlabel="tokens", ylabel="time in copies")
        axis.label_outer()
        by_tokens(axis, base=2)
        in_copies(axis.yaxis, (1, 1.5, 2, 3, 5))
    handles = axes[0][0].get_legend_handles_labels()
    figure.legend(*handles, loc="outside lower center", ncols=4, frameon=False, fontsize=8)
    figure.suptitle(f"{run['machine']['gpu']['name']}: heads 32+8, width 128, half pairs")
    return figure
