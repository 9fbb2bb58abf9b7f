"""The results of a run: numbers of each experiment and arm, by seed."""

from collections.abc import Sequence
from importlib import import_module
from typing import Any

import numpy as np

from .experiments import EXPERIMENTS
from .statistics import summarise


class Results:
    """A record of results, as `python -m roformer` writes it; arms in the order of each experiment."""

    def __init__(self, record: dict) -> None:
        self.record, self.numbers = record, record["numbers"]

    @property
    def num_seeds(self) -> int:
        return max(len(seeds) for arms in self.numbers.values() for seeds in arms.values())

    def settings(self, experiment: str) -> dict:
        """Return the settings of an experiment."""
        return self.record["settings"][experiment]

    def lengths(self) -> list[int]:
        """Return the lengths at which the masked language models are read."""
        settings = self.settings("lengths")
        return [multiple * settings["length"] for multiple in settings["multiples"]]

    def arms(self, experiment: str) -> list[str]:
        """Return the arms of an experiment that have results."""
        return [arm for arm in import_module(EXPERIMENTS[experiment]).ARMS if arm in self.numbers[experiment]]

    def values(self, experiment: str, arm: str, *path: str | int) -> list:
        """Return the entry at `path` of an arm's results, one for each seed."""
        seeds = self.numbers[experiment][arm]
        return [_entry(seeds[seed], path) for seed in sorted(seeds, key=int)]

    def by_arm(self, experiment: str, *path: str | int) -> dict[str, list]:
        """Return the values of each arm that has them: an encoding may end before a length."""
        values_by_arm = {arm: self.values(experiment, arm, *path) for arm in self.arms(experiment)}
        return {arm: values for arm, values in values_by_arm.items() if None not in values}

    def curve(self, experiment: str, arm: str) -> tuple:
        """Return steps, and mean, low and high of the value over seeds, each (N,)."""
        curves = np.array(self.values(experiment, arm, "curve"), dtype=float)
        return curves[0, :, 0], *band(curves[..., 1].T)


def band(rows: Sequence[Sequence[float]]) -> tuple:
    """Return mean, low and high of each row of values over seeds; low and high None with one seed."""
    summaries = [summarise(row) for row in rows]
    mean, low, high = np.array([(summary.mean, summary.low, summary.high) for summary in summaries]).T
    return (mean, None, None) if np.isnan(low).any() else (mean, low, high)


def _entry(entry: Any, path: Sequence[str | int]) -> Any:
    for key in path:
        entry = entry[key]
    return entry
