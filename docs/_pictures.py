"""Makes docs/pictures from the examples of docs/plots.md and axes.md: `python dev.py test -s pictures`.

A picture is the plot that the example above it left in `ax`, or is drawn here.
"""

import re
import sys
from doctest import DocTestParser
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

import rope_array as ra
from rope_array import plots

DOCS = Path(__file__).resolve().parent
EXAMPLE = re.compile(
    r"^```{doctest}\n(.*?)^```$|^!\[[^]]*\]\(pictures/([\w-]+\.svg)\)$", re.MULTILINE | re.DOTALL
)


def make(folder):
    """Run the examples of the pages, and write each picture into a folder; return the pictures' names."""
    made = []
    for page in PAGES:
        names = {"np": np, "ra": ra}
        for code, picture in EXAMPLE.findall((DOCS / page).read_text("utf-8")):
            for example in DocTestParser().get_examples(code):
                exec(example.source, names)
            if picture:
                plots.save(DRAWN[picture]() if picture in DRAWN else names["ax"], folder / picture)
                made.append(picture)
    return made


def draw_grid():
    """Draw a grid of 2 × 3 patches with a class token, and the array of their positions."""
    ids = np.concatenate([np.zeros((1, 2), int), ra.positions.grid(2, 3)])
    ax = Figure(figsize=(5.0, 3.3), layout="constrained").subplots()
    ax.set(xlim=(-0.9, 6.2), ylim=(4.05, -0.5), aspect="equal")
    ax.axis("off")
    for token, (h, w) in enumerate(ids):
        x, y = (w, 1.9 + h) if token else (0, 0)
        write_cell(ax, x, y, 1, f"{token}\n({h}, {w})", PATCH if token else CLASS)
        for column, text in enumerate((token, h, w)):
            write_cell(ax, 4 + 0.7 * column, 0.5 * token, 0.5, text, PATCH if token else CLASS, column > 0)
    ax.text(1.15, 0.5, "class token", va="center")
    for i in range(3):
        ax.text(i + 0.5, 1.75, f"w = {i}", ha="center")
    for i in range(2):
        ax.text(-0.12, 2.4 + i, f"h = {i}", ha="right", va="center")
    for column, text in enumerate(("token", "h", "w")):
        ax.text(4.35 + 0.7 * column, -0.15, text, ha="center")
    ax.text(5.05, 3.85, "positions, shape (7, 2)", ha="center")
    return ax


def write_cell(ax, x, y, height, text, colour, boxed=True):
    """Write a text into a cell with its upper left corner at (x, y)."""
    width = 1 if height == 1 else 0.7
    if boxed:
        ax.add_patch(Rectangle((x, y), width, height, facecolor=colour, edgecolor="black"))
    ax.text(x + width / 2, y + height / 2, text, ha="center", va="center", linespacing=1.5)


PATCH, CLASS = "#D9ECF7", "#FBE3D0"
PAGES = "plots.md", "axes.md"
DRAWN = {"grid.svg": draw_grid}

if __name__ == "__main__":
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else DOCS / "pictures"
    target.mkdir(parents=True, exist_ok=True)
    print(*make(target), sep="\n")
