"""Compares pictures that two machines drew, as SVG files."""

import re

import pytest

IGNORED = r'(id="|url\(#|xlink:href=")[^")]*|Matplotlib v[\d.]+'  # ids, images, the version
NUMBER = r"-?\d+(?:\.\d+)?(?:e-?\d+)?"


def assert_same_drawing(new, committed):
    """Compare the text of two files, and their numbers within 0.75 points: machines round differently."""
    (numbers, text), (old_numbers, old_rest) = (_split(path.read_text("utf-8")) for path in (new, committed))
    assert text == old_rest, new.name
    assert numbers == pytest.approx(old_numbers, abs=0.75), new.name


def _split(svg):
    """Return the numbers of a file, and its text without them."""
    svg = re.sub(IGNORED, "", svg)
    return [float(number) for number in re.findall(NUMBER, svg)], re.sub(NUMBER, "", svg)
