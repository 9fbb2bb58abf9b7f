"""The study's statistics against textbook values, and against the enumeration of all draws."""

import itertools

import numpy as np
import pytest

pytest.importorskip("scipy")
from roformer.statistics import holm, paired_t, sign_flips, summarise, verdict, verdicts

pytestmark = pytest.mark.library("torch")

# The extra hours of sleep of ten patients with two drugs (Student, The probable error of a mean, 1908).
FIRST = [0.7, -1.6, -0.2, -1.2, -0.1, 3.4, 3.7, 0.8, 0.0, 2.0]
SECOND = [1.9, 0.8, 1.1, 0.1, -0.1, 4.4, 5.5, 1.6, 4.6, 3.4]


def test_students_sleep_data():
    # R: t.test(extra ~ group, sleep, paired = TRUE) prints these.
    assert paired_t(FIRST, SECOND) == pytest.approx(0.002833, abs=5e-7)
    summary = summarise(np.subtract(FIRST, SECOND))
    assert summary.mean == pytest.approx(-1.58, abs=1e-12)
    assert (summary.low, summary.high) == pytest.approx((-2.4598858, -0.7001142), abs=5e-8)


def count_flips(a, b):
    differences = np.subtract(a, b).round(10)
    sums = [abs(round(np.dot(signs, differences), 9)) for signs in itertools.product((1, -1), repeat=len(a))]
    return sum(total >= abs(round(differences.sum(), 9)) for total in sums) / len(sums)


def test_sign_flips_are_all_counted():
    assert sign_flips(FIRST, SECOND) == count_flips(FIRST, SECOND)
    for n in (1, 2, 5, 6):
        a, b = np.random.default_rng(n).normal(size=(2, n)).round(1)  # rounded, so that sums are equal
        assert sign_flips(a, b) == count_flips(a, b)
    assert paired_t([2, 3, 4, 5, 6], [1, 2, 3, 4, 5]) == 2 / 32  # equal differences have no t
    assert paired_t([1, 2], [1, 2]) == 1.0


def test_holm_example():
    # Sorted .005, .01, .03, .04, times 4, 3, 2, 1; the last is raised to the one before it.
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02], rel=1e-15)
    assert holm([0.5, 0.9]) == [1.0, 1.0]


def test_verdicts_of_two_arms():
    low, high = [1.0, 1.1, 1.2, 1.0, 1.3], [2.0, 2.2, 2.1, 2.1, 2.3]
    for a, b, smaller_is_better, word, better in (
        (low, high, True, "lower", True),
        (high, low, True, "higher", False),
        (high, low, False, "higher", True),
        (low, [1.2, 1.0, 1.2, 1.1, 1.1], True, "cannot be told apart", None),
        ([1.0], [2.0], True, "cannot be told apart", None),
    ):
        judged = verdict(a, b, smaller_is_better, ("rope", "learned"))
        assert judged.better is better
        assert word in judged.text


def test_a_family_of_verdicts_is_corrected():
    # Student's data give p 0.0028 alone; among 20 comparisons Holm makes it 0.057.
    arms = {"rope": FIRST, "second": SECOND}
    assert verdicts(arms, "rope", True)["second"].better
    rng = np.random.default_rng(0)
    even = {f"noise {i}": list(np.add(FIRST, rng.permutation([-1, 1] * 5))) for i in range(19)}
    judged = verdicts({**arms, **even}, "rope", True)["second"]
    assert judged.better is None
    assert judged.p == pytest.approx(20 * 0.002833, abs=1e-5)
