"""The plot of a result of `bench/gpu.py`: docs/speed/gpu.svg."""

import matplotlib
from _gpu_cases import BACKWARD, COPY, DTYPES, FORWARD, OURS, ROTATION
from _gpu_table import facts
from _record import ROOT
from _speed_plot import COPIES, STYLE, bare, save
from _speed_plot import OURS as OUR_COLOUR
from matplotlib import pyplot, ticker

# Colour, marker and dash of each line.
LINES = {
    COPY: (COPIES, "", ":"),
    OURS: (OUR_COLOUR, "o", "-"),
    ROTATION: ("#f59e0b", "s", "-"),
    "flash-attn, Triton kernel": ("#1d4ed8", "D", "-"),
    "Liger, Triton kernel": ("#15803d", "v", "-"),
    "FlashInfer": ("#0e7490", "P", "-"),
    "vLLM": ("#7e22ce", "x", "-"),
    "transformers Llama": ("#be185d", "^", "-"),
}


def write(result, root=ROOT):
    with matplotlib.rc_context(STYLE):
        save(prefill(result), root / "docs" / "speed" / "gpu.svg")


def prefill(result):
    """Plot medians and quartiles in copies by the number of tokens: a panel for each direction and dtype."""
    figure, axes = pyplot.subplots(2, 2, figsize=(10, 7), sharex=True, sharey=True, layout="constrained")
    for row, direction in zip(axes, (FORWARD, BACKWARD), strict=True):
        for axis, dtype in zip(row, DTYPES, strict=True):
            panel(axis, chosen(result["numbers"], direction, dtype))
            axis.set(title=f"{direction}, {dtype}")
    for axis in axes[-1]:
        axis.set(xlabel="tokens")
    for axis in axes[:, 0]:
        axis.set(ylabel="time in copies")
    handles = axes[0][0].get_legend_handles_labels()
    figure.legend(*handles, loc="outside lower center", ncols=4, frameon=False, fontsize=8)
    figure.suptitle(f"{facts(result)['name']}: heads 32+8, width 128, half pairs")
    return figure


def chosen(numbers, direction, dtype):
    wanted = {"group": "prefill", "direction": direction, "dtype": dtype, "pairing": "half"}
    return [case for case in numbers.values() if wanted.items() <= case.items()]


def panel(axis, cases):
    for name, (color, marker, dash) in LINES.items():
        rows = [(case["tokens"], case["rows"].get(name, {})) for case in cases]
        points = sorted((tokens, *row["copies"]) for tokens, row in rows if "copies" in row)
        if points:
            style = {"color": color, "marker": marker, "linestyle": dash, "markersize": 4, "linewidth": 1.3}
            tokens, lower, median, upper = zip(*points, strict=True)
            axis.plot(tokens, median, label=name, **style)
            axis.fill_between(tokens, lower, upper, color=color, alpha=0.15, linewidth=0)
    axis.set_xscale("log", base=2)
    axis.set_yscale("log")
    axis.xaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axis.yaxis.set_major_locator(ticker.LogLocator(subs=(1, 1.5, 2, 3, 5)))
    axis.yaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:g}"))
    axis.yaxis.set_minor_locator(ticker.NullLocator())
    axis.tick_params(axis="x", rotation=30)
    bare(axis)
