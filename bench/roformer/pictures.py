"""The figures of the experiments, drawn from their results, with the helpers of `figures.py`."""

from functools import partial
from pathlib import Path

from matplotlib.figure import Figure

from .figures import count_ticks, curves, figure, points, save
from .results import Results, band
from .statistics import summarise

SHOWN = ("none", "learned", "t5", "alibi", "deberta", "rope")  # of the masked language models
SCALED = ("rope", "rope-linear", "rope-ntk", "rope-yarn")
UNSCALED = ("sinusoidal", "t5", "alibi", "xpos")


def draw(results: Results, folder: Path) -> list[Path]:
    """Write the figures of all experiments into a folder; return the files."""
    drawn = {
        "translation": partial(draw_curves, "translation", ("sinusoidal", "rope")),
        "masked": partial(draw_curves, "masked", SHOWN),
        "masked-losses": draw_losses,
        "linear": partial(draw_curves, "linear", ("linear", "linear-rope", "performer", "performer-rope")),
        "long": draw_long,
        "lengths": draw_lengths,
    }
    return [save(name, partial(draw_one, results=results), folder) for name, draw_one in drawn.items()]


def draw_curves(experiment: str, arms: tuple[str, ...], results: Results) -> Figure:
    """Draw the loss on held-out text against the steps of training."""
    drawing = figure(7.4, 3.6)
    ax = drawing.subplots()
    curves(ax, {arm: results.curve(experiment, arm) for arm in arms})
    ax.set(xlabel="steps of training", ylabel="loss on held-out text")
    ax.legend(loc="lower left")
    return drawing


def draw_losses(results: Results) -> Figure:
    """Draw the loss on the test text of every masked language model, with each seed."""
    losses = results.by_arm("masked", "test", "loss")
    rows = {arm: (losses[arm], *_interval(losses[arm])) for arm in losses}
    drawing = figure(7.4, 4.2)
    ax = drawing.subplots()
    points(ax, rows)
    ax.set(xlabel="loss on the test text: mean, 95 % interval, and each seed")
    return drawing


def draw_long(results: Results) -> Figure:
    """Draw the accuracy of the comparison of texts against their length."""
    settings = results.settings("long")
    lines = {
        arm: _line(results, "long", "accuracy", arm, settings["lengths"]) for arm in results.arms("long")
    }
    drawing = figure(7.4, 3.6)
    ax = drawing.subplots()
    curves(ax, lines)
    ax.axvline(settings["length"], linestyle=":", color="#6e7781")
    ax.set(xlabel="tokens of each text (dotted: trained at)", ylabel="accuracy", xscale="log")
    count_ticks(ax.xaxis, settings["lengths"])
    ax.legend(loc="center left", bbox_to_anchor=(1, 0.5))
    return drawing


def draw_lengths(results: Results) -> Figure:
    """Draw the loss against the length: RoPE with and without scaling, and other encodings."""
    drawing, at = figure(7.4, 3.6), results.lengths()
    left, right = drawing.subplots(1, 2)
    for ax, arms in ((left, SCALED), (right, ("rope", *UNSCALED))):
        curves(ax, {arm: _line(results, "lengths", "loss", arm, at) for arm in arms})
        ax.set(xlabel="tokens", ylabel="loss", xscale="log")
        count_ticks(ax.xaxis, at)
    left.set_title("RoPE and scaling rules")
    left.legend(loc="upper left")
    right.set_title("RoPE and others")
    right.legend(loc=(0.02, 0.18))
    return drawing


def _line(results: Results, experiment: str, measure: str, arm: str, at: list[int]) -> tuple:
    """Return the lengths that an arm serves, and mean, low and high of its values."""
    rows = {length: results.values(experiment, arm, measure, str(length)) for length in at}
    served = {length: row for length, row in rows.items() if None not in row}
    return [*served], *band([*served.values()])


def _interval(values: list[float]) -> tuple[float, float, float]:
    summary = summarise(values)
    return summary.mean, summary.low, summary.high
