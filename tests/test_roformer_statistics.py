"""The study's statistics against textbook values, and against the enumeration of all draws."""

import itertools
import math
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.append(str(Path(__file__).parents[1] / "bench"))

pytest.importorskip("scipy")
from roformer.statistics import holm, paired_t, sign_flips, summarise, verdict, verdicts

pytestmark = pytest.mark.library("torch")

# The extra hours of sleep of ten patients with two drugs (Student, The probable error of a mean, 1908).
FIRST = [0.7, -1.6, -0.2, -1.2, -0.1, 3.4, 3.7, 0.8, 0.0, 2.0]
SECOND = [1.9, 0.8, 1.1, 0.1, -0.1, 4.4, 5.5, 1.6, 4.6, 3.4]


def test_students_sleep_data():
    # R: t.test(extra ~ group, sleep, paired = TRUE) prints these.
    assert paired_t(FIRST, SECOND) == pytest.approx(0.002833, abs=5e-7)
    found = summarise(np.subtract(FIRST, SECOND))
    assert found.mean == pytest.approx(-1.58, abs=1e-12)
    assert (found.low, found.high) == pytest.approx((-2.4598858, -0.7001142), abs=5e-8)


def count_flips(a, b):
    differences = np.subtract(a, b).round(10)
    sums = [abs(round(np.dot(signs, differences), 9)) for signs in itertools.product((1, -1), repeat=len(a))]
    return sum(each >= abs(round(differences.sum(), 9)) for each in sums) / len(sums)


def test_sign_flips_are_all_counted():
    assert sign_flips(FIRST, SECOND) == count_flips(FIRST, SECOND)
    rng = np.random.default_rng(2)
    for n in (1, 2, 5, 6):
        a, b = rng.normal(size=(2, n)).round(1)  # rounded, so that sums are equal
        assert sign_flips(a, b) == count_flips(a, b)


def test_five_seeds_have_no_p_below_a_sixteenth():
    assert sign_flips([1, 2, 3, 4, 5.5], [0, 0, 0, 0, 0]) == 2 / 32


def test_equal_differences_have_the_p_of_the_flips():
    assert paired_t([2, 3, 4, 5, 6], [1, 2, 3, 4, 5]) == 2 / 32
    assert paired_t([1, 2], [1, 2]) == 1.0


def test_one_seed_tells_nothing_apart():
    found = verdict([1.0], [2.0], True, ("rope", "learned"))
    assert (found.p, found.better) == (1.0, None)
    assert "cannot be told apart" in found.text
    assert math.isnan(summarise([1.0]).low)


def test_holm_example():
    # Sorted .005, .01, .03, .04, times 4, 3, 2, 1; the last is raised to the one before it.
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02], rel=1e-15)
    assert holm([0.5, 0.9]) == [1.0, 1.0]


LOW, HIGH = [1.0, 1.1, 1.2, 1.0, 1.3], [2.0, 2.2, 2.1, 2.1, 2.3]


@pytest.mark.parametrize(
    ("a", "b", "smaller_is_better", "word", "better"),
    [
        (LOW, HIGH, True, "lower", True),
        (LOW, HIGH, False, "lower", False),
        (HIGH, LOW, True, "higher", False),
        (HIGH, LOW, False, "higher", True),
        (LOW, [1.2, 1.0, 1.2, 1.1, 1.1], True, "cannot be told apart", None),
    ],
)
def test_verdicts_of_two_arms(a, b, smaller_is_better, word, better):
    found = verdict(a, b, smaller_is_better, ("rope", "learned"))
    assert found.better is better
    assert word in found.text


def test_verdict_as_a_sentence():
    # The differences −1.0, −1.1, −0.9, −1.1, −1.0 have mean −1.02, deviation √0.007, and t(0.975, 4) = 2.776.
    found = verdict(LOW, HIGH, True, ("rope", "learned"), p=0.01, unit=" points")
    details = "better; 95 % interval of the difference 0.916 to 1.12; p = 0.01"
    assert found.text == f"rope is lower than learned by 1.02 points ({details})"
    found = verdict(HIGH, LOW, True, ("learned", "rope"), p=0.01)
    assert found.text == f"learned is higher than rope by 1.02 ({details.replace('better', 'worse')})"


def test_a_family_of_verdicts_is_corrected():
    # Student's data give p 0.0028 alone; among 20 comparisons Holm makes it 0.057.
    arms = {"rope": FIRST, "second": SECOND}
    assert verdicts(arms, "rope", True)["second"].better
    rng = np.random.default_rng(0)
    even = {f"noise {i}": list(np.add(FIRST, rng.permutation([-1, 1] * 5))) for i in range(19)}
    found = verdicts({**arms, **even}, "rope", True)
    assert found["second"].better is None
    assert found["second"].p == pytest.approx(20 * 0.002833, abs=1e-5)
    assert len(found) == 20
