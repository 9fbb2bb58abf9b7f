"""Comparisons of two arms over seeds, which pair the arms' runs.

With 5 seeds the exact sign-flip test has no p below 2/2⁵ = 0.0625, so the paired t-test decides.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

LEVEL = 0.05  # of significance; intervals have 1 − LEVEL


@dataclass(frozen=True)
class Summary:
    """The mean of an arm over seeds, and the 95 % interval of the mean; nan with one seed."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True)
class Verdict:
    """Whether the first arm is better than the second, and the p that decided it."""

    p: float
    better: bool | None  # None: cannot be told apart
    text: str


def summarise(values: Sequence[float]) -> Summary:
    """Return the mean and its 95 % interval by Student's t."""
    mean, n = float(np.mean(values)), len(values)
    if n < 2:
        return Summary(mean, math.nan, math.nan)
    deviation = float(np.std(values, ddof=1))
    half = float(stats.t.ppf(1 - LEVEL / 2, n - 1)) * deviation / math.sqrt(n)
    return Summary(mean, mean - half, mean + half)


def paired_t(a: Sequence[float], b: Sequence[float]) -> float:
    """Return the two-sided p of the paired t-test; of the sign flips where all differences are equal."""
    differences = np.subtract(a, b)
    if np.ptp(differences) == 0:
        return sign_flips(a, b)  # the t statistic is 0/0 or infinite
    return float(stats.ttest_rel(a, b).pvalue)


def sign_flips(a: Sequence[float], b: Sequence[float]) -> float:
    """Return the exact two-sided p of the mean difference under all 2ⁿ flips of the differences' signs."""
    differences = (np.subtract(a, b),)
    if len(a) < 2:
        return 1.0  # both flips of one difference are as large
    options = {"permutation_type": "samples", "n_resamples": np.inf}  # all flips of one sample's signs
    return float(stats.permutation_test(differences, np.mean, **options).pvalue)


def holm(p_values: Sequence[float]) -> list[float]:
    """Return Holm's adjusted p of each comparison in a family (Holm 1979)."""
    adjusted, largest = [0.0] * len(p_values), 0.0
    for rank, index in enumerate(np.argsort(p_values, kind="stable")):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = largest
    return adjusted


def verdict(
    a: Sequence[float],
    b: Sequence[float],
    smaller_is_better: bool,
    names: tuple[str, str],
    p: float | None = None,
    unit: str = "",
) -> Verdict:
    """Judge arm a against arm b, by seed; `p` replaces the paired t-test's, as after Holm's correction."""
    p = paired_t(a, b) if p is None else p
    difference = summarise(np.subtract(a, b))
    if p >= LEVEL:
        return Verdict(p, None, f"{names[0]} and {names[1]} cannot be told apart (p = {p:.2g})")
    lower = difference.mean < 0
    better = lower == smaller_is_better
    size = f"{'lower' if lower else 'higher'} than {names[1]} by {abs(difference.mean):.3g}{unit}"
    low, high = sorted(math.copysign(1, difference.mean) * end for end in (difference.low, difference.high))
    interval = f"95 % interval of the difference {low:.3g} to {high:.3g}"
    text = f"{names[0]} is {size} ({'better' if better else 'worse'}; {interval}; p = {p:.2g})"
    return Verdict(p, better, text)


def verdicts(
    arms: Mapping[str, Sequence[float]], reference: str, smaller_is_better: bool
) -> dict[str, Verdict]:
    """Judge the reference arm against every other: one family, corrected by Holm."""
    compared = [name for name in arms if name != reference]
    adjusted = holm([paired_t(arms[reference], arms[name]) for name in compared])
    return {
        name: verdict(arms[reference], arms[name], smaller_is_better, (reference, name), p)
        for name, p in zip(compared, adjusted, strict=True)
    }
