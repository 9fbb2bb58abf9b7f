"""Makes docs/pictures from the examples of docs/plots.md: `python dev.py test -s pictures`.

A picture is the plot that the example above it left in `ax`.
"""

import re
import sys
from doctest import DocTestParser
from pathlib import Path

import numpy as np

import rope_array as ra
from rope_array import plots

DOCS = Path(__file__).resolve().parent
EXAMPLE = re.compile(
    r"^```{doctest}\n(.*?)^```$|^!\[[^]]*\]\(pictures/([\w-]+\.svg)\)$", re.MULTILINE | re.DOTALL
)


def make(folder):
    """Run the examples of the page, and write each picture into a folder; return the pictures' names."""
    names, made = {"np": np, "ra": ra}, []
    for code, picture in EXAMPLE.findall((DOCS / "plots.md").read_text("utf-8")):
        for example in DocTestParser().get_examples(code):
            exec(example.source, names)
        if picture:
            plots.save(names["ax"], folder / picture)
            made.append(picture)
    return made


if __name__ == "__main__":
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else DOCS / "pictures"
    target.mkdir(parents=True, exist_ok=True)
    print(*make(target), sep="\n")
