"""The study's mathematics of RoFormer's section 3, against loops of math.cos and math.sin."""

import cmath
import math
import re
import sys
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
import svg_files

sys.path.append(str(Path(__file__).parents[1] / "bench"))

from roformer import figures, mathematics

import rope_array as ra
from rope_array.testing import rotation_matrix

EPS = 2.0**-52
DIMS = (2, 4, 8, 64, 128)
POSITIONS = (-1000, -3, -1, 0, 1, 2, 7, 511, 123_456)
PAIRS = ((0, 0), (3, 1), (-5, 2), (7, -1000), (123_456, 123_000))
PICTURES = Path(__file__).parents[1] / "docs" / "pictures" / "roformer"


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


# ---- rotations ----


@pytest.mark.parametrize("d", DIMS)
@pytest.mark.parametrize(
    "rotate", [mathematics.rotate_by_matrix, mathematics.rotate_elementwise, mathematics.rotate_complex]
)
def test_each_form_rotates_pairs_by_their_angles(rotate, d):
    x = random(len(POSITIONS), d)
    for row, m, found in zip(x, POSITIONS, rotate(x, POSITIONS), strict=True):
        np.testing.assert_allclose(found, rotated(row, m), rtol=0, atol=tolerance(m, norm=abs(row).max()))


@pytest.mark.parametrize("d", DIMS)
def test_the_three_forms_are_equal(d):
    x = random(len(POSITIONS), d)
    one, two, three = (
        form(x, POSITIONS)
        for form in (mathematics.rotate_by_matrix, mathematics.rotate_elementwise, mathematics.rotate_complex)
    )
    np.testing.assert_allclose(one, two, rtol=0, atol=8 * EPS * abs(x).max())
    np.testing.assert_allclose(one, three, rtol=0, atol=8 * EPS * abs(x).max())


@pytest.mark.parametrize("d", DIMS)
def test_the_matrix_is_block_diagonal_with_cos_and_sin(d):
    for m in POSITIONS:
        matrix = ra.RoPE(d).matrix(m)
        expected = np.zeros((d, d))
        for i in range(d // 2):
            cos, sin = math.cos(m * frequency(i, d)), math.sin(m * frequency(i, d))
            expected[2 * i : 2 * i + 2, 2 * i : 2 * i + 2] = [[cos, -sin], [sin, cos]]
        np.testing.assert_allclose(matrix, expected, rtol=0, atol=tolerance(m))
        np.testing.assert_allclose(matrix, rotation_matrix(m, head_dim=d), rtol=0, atol=4 * EPS)


@pytest.mark.parametrize("d", DIMS)
def test_matrices_are_orthogonal_and_their_products_relative(d):
    matrices = {m: ra.RoPE(d).matrix(m) for m in {*sum(PAIRS, ()), *(n - m for m, n in PAIRS)}}
    for m, n in PAIRS:
        np.testing.assert_allclose(matrices[m].T @ matrices[m], np.eye(d), rtol=0, atol=8 * EPS)
        np.testing.assert_allclose(matrices[m].T @ matrices[n], matrices[n - m], rtol=0, atol=tolerance(m, n))


@pytest.mark.parametrize("d", DIMS)
def test_rotations_keep_norms(d):
    x = random(len(POSITIONS), d)
    y = ra.apply(x, POSITIONS)
    np.testing.assert_allclose(np.linalg.norm(y, axis=1), np.linalg.norm(x, axis=1), rtol=8 * EPS)


# ---- scores ----


@pytest.mark.parametrize("d", DIMS)
def test_scores_depend_on_the_difference_of_positions(d):
    q, k = random(2, d)
    for m, n in PAIRS:
        atol = tolerance(m, n, norm=np.linalg.norm(q) * np.linalg.norm(k))
        expected = float(rotated(q, m) @ rotated(k, n))
        assert mathematics.score(q, k, m, n) == pytest.approx(expected, rel=0, abs=atol)
        assert mathematics.relative_score(q, k, n - m) == pytest.approx(expected, rel=0, abs=atol)


def partial_sums(d, distance):
    total, sums = 0, []
    for i in range(d // 2):
        total += cmath.exp(1j * distance * frequency(i, d))
        sums.append(abs(total))
    return sums


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
    first = sum(partial_sums(d, 0))
    expected = [sum(partial_sums(d, n)) / first for n in range(251)]
    np.testing.assert_allclose(lines["bound"], expected, rtol=0, atol=1e-12)
    assert max(lines["bound"][200:]) < 0.4
    assert max(lines["equal"][200:]) < 0.45
    # The mean of 1,000 |score| has a deviation of 2.4 %; the quotient of two means, of 3.4 %.
    assert np.abs(lines["independent"] - 1).max() < 4 * 0.034


# ---- the base ----


def mean_cos(n, d, base):
    return sum(math.cos(n * frequency(i, d, base)) for i in range(d // 2)) / (d / 2)


@pytest.mark.parametrize("base", mathematics.BASES)
def test_wavelengths_and_scores_are_of_the_base(base):
    for d in DIMS:
        expected = [2 * math.pi * base ** (2 * i / d) for i in range(d // 2)]
        np.testing.assert_allclose(mathematics.wavelengths(d, base), expected, rtol=16 * EPS)
        distances = (0, 1, 46, 585, 1766)
        means = [mean_cos(n, d, base) for n in distances]
        found = mathematics.equal_scores(d, base, distances)
        np.testing.assert_allclose(found, means, rtol=0, atol=tolerance(max(distances)))


# ---- tutorials ----


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("d", DIMS)
def test_tutorials_rotate_backwards_by_stretched_angles(d, first):
    x = random(6, d)
    found = mathematics.rotate_rows(x, mathematics.get_rotary_matrix(6, d, first))
    stretch = 10_000 ** (2 / d)
    assert mathematics.tutorial_stretch(d) == stretch
    for index, row in enumerate(x):
        expected = rotated(row, -(first + index), stretch)
        atol = tolerance(6 * stretch, norm=abs(row).max())
        np.testing.assert_allclose(found[index], expected, rtol=0, atol=atol)


@pytest.mark.parametrize("d", DIMS)
def test_tutorials_matrices_are_the_ropes_with_their_frequencies(d):
    rope = ra.RoPE(d, inv_freq=[10_000.0 ** (-2 * (i - 1) / d) for i in range(d // 2)])
    atol = tolerance(6 * 10_000 ** (2 / d))
    matrices = mathematics.get_rotary_matrix(6, d)
    np.testing.assert_allclose(matrices, rope.matrix(range(1, 7)), rtol=0, atol=atol)
    assert abs(matrices - ra.RoPE(d).matrix(range(6))).max() > 0.1  # neither these positions nor frequencies


@pytest.mark.parametrize("d", DIMS)
def test_scores_of_rows_equal_the_scores_of_reflected_vectors(d):
    q, k = random(2, 6, d)
    matrices = ra.RoPE(d).matrix(range(1, 7))
    found = mathematics.rotate_rows(q, matrices) @ mathematics.rotate_rows(k, matrices).T
    for m in range(6):
        for n in range(6):
            atol = tolerance(12, norm=np.linalg.norm(q[m]) * np.linalg.norm(k[n]))
            mirrored = q[m] @ rotated(k[n], m - n)
            reflected = rotated(mathematics.reflect(q[m]), m) @ rotated(mathematics.reflect(k[n]), n)
            assert found[m, n] == pytest.approx(mirrored, rel=0, abs=atol)
            assert found[m, n] == pytest.approx(reflected, rel=0, abs=atol)
    assert abs(found[1, 0] - q[1] @ rotated(k[0], -1)) > 0.01  # not RoPE's score of the same q and k


def test_scores_of_rows_with_equal_q_and_k_equal_the_scores_of_rope():
    q = random(16)
    matrices = ra.RoPE(16).matrix(range(1, 7))
    rows = mathematics.rotate_rows(np.tile(q, (6, 1)), matrices)
    expected = [[q @ rotated(q, n - m) for n in range(6)] for m in range(6)]
    np.testing.assert_allclose(rows @ rows.T, expected, rtol=0, atol=tolerance(12, norm=q @ q))


# ---- numbers and figures ----


def test_facts_are_of_the_formulas():
    facts = mathematics.facts()
    decay = sum(partial_sums(128, 100)) / sum(partial_sums(128, 0))
    assert facts["decay_bound_100"] == pytest.approx(decay)
    assert facts["wavelength_longest_100"] == pytest.approx(2 * math.pi * 100 ** (126 / 128))
    assert facts["wavelength_longest_narrow_10000"] == pytest.approx(2 * math.pi * 10_000 ** (14 / 16))
    for base in mathematics.BASES:
        zero, repeat = facts[f"zero_{base:.0f}"], facts[f"repeat_above_0.8_{base:.0f}"]
        assert [mean_cos(n, 128, base) <= 0 for n in range(zero + 1)].index(True) == zero
        assert [mean_cos(n, 16, base) > 0.8 for n in range(100, repeat + 1)].index(True) == repeat - 100


def test_figures_are_drawn_as_committed(tmp_path):
    drawn = figures.draw_mathematics(tmp_path)
    for path in drawn:
        svg_files.assert_same_drawing(path, PICTURES / path.name)
        assert path.stat().st_size < 60_000


def test_entries_of_matrices_are_drawn_by_sign_and_size():
    found = figures.draw_matrix()
    for ax, m in zip(found.axes, (1, 10, 100), strict=False):
        drawn, matrix = ax.images[0].get_array(), ra.RoPE(8).matrix(m)
        np.testing.assert_allclose(drawn[..., 3], abs(matrix))
        red_is_most = drawn[..., 0] > drawn[..., 2]
        np.testing.assert_array_equal(red_is_most, matrix < 0)


def test_every_colour_of_text_and_lines_has_contrast_on_both_pages():
    """Graphics need a contrast of 3 with their background (WCAG 2.2, criterion 1.4.11)."""
    backgrounds = figures.BACKGROUND, figures.DARK[figures.BACKGROUND]
    colours = (figures.TEXT, figures.GREY, figures.BLUE, figures.ORANGE, figures.GREEN)
    for light in colours:
        for colour, background in zip((light, figures.DARK.get(light, light)), backgrounds, strict=True):
            assert contrast(colour, background) > 3, (colour, background)


def contrast(one, other):
    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def luminance(colour):
    channels = (int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5))
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.fixture
def helpers_drawn(tmp_path):
    """Return the SVG of a figure that uses each helper for experiments."""

    def draw():
        found = figures.figure(6, 3)
        left, right = found.subplots(1, 2)
        x = np.arange(3)
        figures.curves(left, {"rope": (x, x, x - 1, x + 1), "none": (x, -x, None, None)})
        figures.points(right, {"rope": ([1.0, 2.0, 4.0], 2.0, 1.5, 3.0), "none": ([0.5], 0.5, 0.4, 0.6)})
        return found

    return figures.save("helpers", draw, tmp_path)


def test_saved_figures_have_rules_for_dark_pages(helpers_drawn):
    svg = helpers_drawn.read_text("utf-8")
    ElementTree.fromstring(svg)
    css = svg[svg.index("@media (prefers-color-scheme: dark)") : svg.index("</style>")]
    body = svg[svg.index("</style>") :]
    for light, dark in figures.DARK.items():
        assert f'[style*="stroke: {light.lower()}"] {{stroke: {dark} !important}}' in css
        assert light.lower() in body, light  # the rule has an element to match
    assert ">rope</text>" in body
    drawn = set(re.findall(r"(?:fill|stroke): (#[0-9a-f]{6})", body))
    assert drawn <= {colour.lower() for colour in (*figures.DARK, figures.ORANGE)}


def test_points_have_one_row_for_each_label_from_the_top():
    ax = figures.figure(4, 3).subplots()
    figures.points(ax, {"rope": ([1.0, 2.0], 1.5, 1.2, 1.9), "none": ([3.0], 3.0, 2.5, 3.5)})
    assert [label.get_text() for label in ax.get_yticklabels()] == ["rope", "none"]
    assert ax.yaxis_inverted()
    rows = [(line.get_xdata().tolist(), set(np.ravel(line.get_ydata()).tolist())) for line in ax.lines]
    assert rows[:3] == [([1.0, 2.0], {0.0}), ([1.2, 1.9], {0.0}), ([1.5], {0.0})]
    assert rows[3:] == [([3.0], {1.0}), ([2.5, 3.5], {1.0}), ([3.0], {1.0})]


def test_curves_have_a_band_from_low_to_high():
    ax = figures.figure(4, 3).subplots()
    figures.curves(ax, {"rope": ([0, 1], [1, 2], [0, 1], [2, 4]), "none": ([0, 1], [3, 3], None, None)})
    assert [line.get_label() for line in ax.lines] == ["rope", "none"]
    (band,) = ax.collections
    assert {tuple(point) for point in band.get_paths()[0].vertices} == {(0, 0), (1, 1), (1, 4), (0, 2)}
    assert ax.lines[0].get_linestyle() != ax.lines[1].get_linestyle()
