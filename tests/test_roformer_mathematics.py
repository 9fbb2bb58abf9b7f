"""The study's mathematics of RoFormer's section 3, against loops of math.cos and math.sin."""

import cmath
import math

import numpy as np
import pytest
from roformer import mathematics

EPS = 2.0**-52
DIMS = (2, 8, 128)
POSITIONS = (-1000, -3, -1, 0, 1, 2, 7, 511, 123_456)
PAIRS = ((0, 0), (3, 1), (-5, 2), (7, -1000), (123_456, 123_000))


def random(*shape):
    return np.random.default_rng(shape[-1]).standard_normal(shape)


def frequency(i, d, base=10_000.0):
    return base ** (-2 * i / d)


def rotated(x, m, factor=1.0):
    """Rotate a vector pair by pair; `factor` multiplies the frequencies."""
    y = []
    for i in range(len(x) // 2):
        angle = m * factor * frequency(i, len(x))
        (a, b), (cos, sin) = x[2 * i : 2 * i + 2], (math.cos(angle), math.sin(angle))
        y += [a * cos - b * sin, a * sin + b * cos]
    return np.array(y)


def tolerance(*positions, norm=1.0):
    """Return the rounding of angles m θ with θ ≤ 1, and of short sums, for vectors of a norm."""
    return 16 * EPS * (1 + sum(map(abs, positions))) * norm


def partial_sums(d, distance):
    total, sums = 0, []
    for i in range(d // 2):
        total += cmath.exp(1j * distance * frequency(i, d))
        sums.append(abs(total))
    return sums


def mean_cos(n, d, base):
    return sum(math.cos(n * frequency(i, d, base)) for i in range(d // 2)) / (d / 2)


@pytest.mark.parametrize("d", DIMS)
@pytest.mark.parametrize(
    "rotate", [mathematics.rotate_by_matrix, mathematics.rotate_elementwise, mathematics.rotate_complex]
)
def test_each_form_rotates_pairs_by_their_angles(rotate, d):
    x = random(len(POSITIONS), d)
    for row, m, y in zip(x, POSITIONS, rotate(x, POSITIONS), strict=True):
        np.testing.assert_allclose(y, rotated(row, m), rtol=0, atol=tolerance(m, norm=abs(row).max()))


@pytest.mark.parametrize("d", DIMS)
def test_scores_depend_on_the_difference_of_positions(d):
    q, k = random(2, d)
    for m, n in PAIRS:
        atol = tolerance(m, n, norm=np.linalg.norm(q) * np.linalg.norm(k))
        expected = pytest.approx(float(rotated(q, m) @ rotated(k, n)), rel=0, abs=atol)
        assert mathematics.score(q, k, m, n) == expected
        assert mathematics.relative_score(q, k, n - m) == expected


@pytest.mark.parametrize("d", DIMS)
def test_the_bound_is_of_partial_sums_and_holds(d):
    q, k = random(2, d)
    h = [complex(*q[i : i + 2]) * complex(*k[i : i + 2]).conjugate() for i in range(0, d, 2)] + [0]
    steepest = max(abs(h[i + 1] - h[i]) for i in range(d // 2))
    for offset in (0, 1, -7, 60, 1000):
        bound = mathematics.score_bound(q, k, offset)
        assert bound == pytest.approx(steepest * sum(partial_sums(d, offset)), rel=1e-11)
        assert abs(q @ rotated(k, offset)) <= bound


def test_the_bound_decays_as_figure_2_and_independent_scores_do_not():
    lines, d = mathematics.decay_lines(mathematics.WIDE, 250), mathematics.WIDE
    expected = [sum(partial_sums(d, n)) / sum(partial_sums(d, 0)) for n in range(251)]
    np.testing.assert_allclose(lines["bound"], expected, rtol=0, atol=1e-12)
    assert max(lines["bound"][200:]) < 0.4
    assert max(lines["equal"][200:]) < 0.45
    # The mean of 1,000 |score| has a deviation of 2.4 %; the quotient of two means, of 3.4 %.
    assert np.abs(lines["independent"] - 1).max() < 4 * 0.034


@pytest.mark.parametrize("base", mathematics.BASES)
def test_wavelengths_and_scores_are_of_the_base(base):
    distances = (0, 1, 46, 585, 1766)
    for d in DIMS:
        expected = [2 * math.pi * base ** (2 * i / d) for i in range(d // 2)]
        np.testing.assert_allclose(mathematics.wavelengths(d, base), expected, rtol=16 * EPS)
        scores, means = (
            mathematics.equal_scores(d, base, distances),
            [mean_cos(n, d, base) for n in distances],
        )
        np.testing.assert_allclose(scores, means, rtol=0, atol=tolerance(max(distances)))


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("d", DIMS)
def test_tutorials_rotate_backwards_by_stretched_angles(d, first):
    x, stretch = random(6, d), 10_000 ** (2 / d)
    rows = mathematics.rotate_rows(x, mathematics.get_rotary_matrix(6, d, first))
    for index, row in enumerate(x):
        expected = rotated(row, -(first + index), stretch)
        atol = tolerance(6 * stretch, norm=abs(row).max())
        np.testing.assert_allclose(rows[index], expected, rtol=0, atol=atol)


@pytest.mark.parametrize("d", DIMS)
def test_scores_of_tutorials_are_those_of_reflected_vectors(d):
    q, k = random(2, 6, d)
    matrices = [np.stack([rotated(e, m) for e in np.eye(d)], axis=1) for m in range(1, 7)]
    scores = mathematics.rotate_rows(q, matrices) @ mathematics.rotate_rows(k, matrices).T
    for m, n in np.ndindex(6, 6):
        atol = tolerance(12, norm=np.linalg.norm(q[m]) * np.linalg.norm(k[n]))
        reflected = rotated(mathematics.reflect(q[m]), m) @ rotated(mathematics.reflect(k[n]), n)
        assert scores[m, n] == pytest.approx(q[m] @ rotated(k[n], m - n), rel=0, abs=atol)
        assert scores[m, n] == pytest.approx(reflected, rel=0, abs=atol)
