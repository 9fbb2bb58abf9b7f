"""The figures of the experiments, drawn from their results."""

from pathlib import Path


def draw(record: dict, folder: Path) -> None:
    """Write the figures of all experiments into a folder."""
