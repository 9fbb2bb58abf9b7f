"""The plots: the data of the lines that are drawn, figures, files, labels and errors."""

import importlib.util
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import child
import ml_dtypes
import mpmath
import numpy as np
import pytest
import svg_files
from matplotlib import colors, rcParams
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

import rope_array as ra
from rope_array import plots
from rope_array.__main__ import main
from rope_array._command._plot import _KINDS
from rope_array.plots import _angle_error
from rope_array.testing import apply_definition, cos_sin
from rope_array.testing._definition import pairs_of

DOCS = Path(__file__).resolve().parent.parent / "docs"
PICTURES = sorted(path.name for path in (DOCS / "pictures").glob("*.svg"))
ROPE = ra.RoPE(head_dim=16, base=500_000.0)
LLAMA = ra.RoPE(head_dim=16, base=500_000.0, pairing="half", scaling=ra.Llama3(factor=8.0))
DRAWN = [plots.angle_error, plots.wavelengths, plots.scaling, plots.decay, plots.rotation, plots.scores]
NAMES = [function.__name__ for function in DRAWN]


def data(line):
    """Return the points of a line."""
    return np.asarray(line.get_xdata()), np.asarray(line.get_ydata())


def texts(ax):
    legend = ax.get_legend()
    return [text.get_text() for text in legend.get_texts()] if legend else []


# ---- the error of angles ----


def true_frequencies(rope):
    """Return base^(-2i/d) as real numbers for a rope without a rule, the floats of the rope otherwise."""
    if rope.scaling is None and rope.inv_freq is None and rope.axes is None:
        exponents = (-mpmath.mpf(2 * i) / rope.rotary_dim for i in range(rope.rotary_dim // 2))
        return [mpmath.mpf(rope.base) ** exponent for exponent in exponents]
    return [mpmath.mpf(omega) for omega in rope.frequencies]


def worst(angles, pos, omegas):
    """Return the largest difference of angles and pos·ω, modulo 2π."""
    differences = (mpmath.mpf(angle) - int(pos) * omega for angle, omega in zip(angles, omegas, strict=True))
    return float(max(abs(each - 2 * mpmath.pi * mpmath.nint(each / (2 * mpmath.pi))) for each in differences))


def float32_frequencies(base, width):
    """Return the frequencies with each step rounded to float32, as common code computes them."""
    exponents = [np.float32(2 * i / width) for i in range(width // 2)]
    powers = [np.float32(mpmath.mpf(base) ** mpmath.mpf(float(e))) for e in exponents]
    return np.array([np.float32(1) / power for power in powers], np.float32)


@pytest.fixture
def precise():
    with mpmath.workdps(60):
        yield


ROPES = {
    "plain": ROPE,
    "a rule": LLAMA,
    "frequencies": ra.RoPE(head_dim=8, inv_freq=[1.5, 0.3, -0.07, 0.001]),
    "axes": ra.RoPE(head_dim=16, axes=ra.Axes.chunked(2, 3, 3), scaling=ra.NTKAware(2.0)),
    "amplitude": ra.RoPE(head_dim=16, scaling=ra.YaRN(factor=4.0, original_max_position_embeddings=4096)),
}


@pytest.mark.parametrize("name", ROPES)
def test_errors_of_exact_angles(name, precise):
    """The angle of the tables for float32 arrays, against the product of the position and the frequency."""
    rope = ROPES[name]
    pos, errors = data(plots.angle_error(rope, furthest=2**31 - 1).lines[0])
    assert (pos[0], len(pos) > 100, pos[-1] > 1.9e9) == (1, True, True)
    assert errors.max() < 9.5e-8 * 2**0.5
    omegas = true_frequencies(rope)
    for p, error in list(zip(pos, errors, strict=True))[::12]:
        at = p if rope.axes is None else [p] * 3
        table = rope.rotation(at, like=np.empty(0, np.float32))
        angles = map(mpmath.atan2, map(float, table.sin), map(float, table.cos))
        assert error == pytest.approx(worst(angles, p, omegas), rel=1e-6)


@pytest.mark.parametrize("furthest", [40, 2**20])
def test_errors_of_float32_and_bfloat16_angles(furthest, precise):
    pos, *lines = plots_of_errors(ROPE, furthest)
    omegas, freq = true_frequencies(ROPE), float32_frequencies(500_000.0, 16)
    bfloat16 = ml_dtypes.bfloat16
    for i in range(0, len(pos), 8):
        float32 = np.float32(pos[i]) * freq
        coarse = (np.float32(pos[i]).astype(bfloat16) * freq.astype(bfloat16)).astype(bfloat16)
        assert lines[1][i] == pytest.approx(worst(map(float, float32), pos[i], omegas), rel=1e-6)
        assert lines[2][i] == pytest.approx(worst(map(float, coarse), pos[i], omegas), rel=1e-6)


def test_bfloat16_is_rounded_to_nearest_and_ties_to_even():
    near = np.arange(0x3F7F_7FFE, 0x3F82_8003, dtype=np.uint32)[:, None] ^ np.array(
        [0, 0x8000_0000], np.uint32
    )
    values = np.append(near.view(np.float32), np.float32([0, 1e-40, 3e38, -257, 16_777_215]))
    rounded = _angle_error._bfloat16(values)
    assert (rounded == values.astype(ml_dtypes.bfloat16).astype(np.float32)).all()


def plots_of_errors(rope, furthest):
    """Return the positions of the plot, and the errors of the three lines."""
    ax = plots.angle_error(rope, furthest=furthest)
    return data(ax.lines[0])[0], *(data(line)[1] for line in ax.lines[:3])


def test_the_errors_grow_as_the_page_describes():
    """Float32 angles: 0.06 radians at a million tokens. Bfloat16: near π from 1,000 tokens on."""
    pos, exact, float32, bfloat16 = plots_of_errors(ra.RoPE(128, base=500_000.0), 2**20)
    assert exact.max() < 1e-7
    assert 0.05 < float32.max() < 0.08
    assert (bfloat16[pos > 2000] > 2.4).all()
    assert bfloat16.max() <= np.pi


def test_an_error_of_zero_is_not_drawn():
    """Every float32 product with the frequency 1 is exact."""
    _, _, float32, _ = plots_of_errors(ra.RoPE(head_dim=2), 1000)
    assert np.isnan(float32).all()


def test_positions_are_odd_and_within_the_range():
    for furthest in (1, 2, 3, 1000, 2**31 - 1):
        pos, _ = data(plots.angle_error(ra.RoPE(4), furthest=furthest).lines[0])
        assert (pos % 2 == 1).all()
        assert 1 <= pos.min() <= pos.max() <= furthest


# ---- frequencies ----


def test_wavelengths():
    ax = plots.wavelengths({"a": ROPE, "b": LLAMA}, context=8192)
    for line, rope in zip(ax.lines, (ROPE, LLAMA), strict=False):
        pairs, lengths = data(line)
        assert pairs.tolist() == list(range(8))
        assert lengths == pytest.approx([2 * np.pi / omega for omega in rope.frequencies])
    assert data(ax.lines[0])[1] == pytest.approx([2 * np.pi * 5e5 ** (2 * i / 16) for i in range(8)])
    assert set(ax.lines[2].get_ydata()) == {8192}
    assert texts(ax) == ["a", "b", "context: 8,192 positions"]


def test_pairs_that_do_not_rotate_have_no_point():
    rope = ra.RoPE(8, scaling=ra.Reversed(ra.Proportional(0.5)))
    assert data(plots.wavelengths(rope).lines[0])[1] == pytest.approx(
        [2 * np.pi, 20 * np.pi, np.nan, np.nan], nan_ok=True
    )


RULES = {
    "linear": (ra.Linear(4.0), {"rope_type": "linear", "factor": 4.0}),
    "yarn": (
        ra.YaRN(4.0, original_max_position_embeddings=512),
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512},
    ),
    "llama3": (
        ra.Llama3(8.0, 1.0, 4.0, 1024),
        {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
         "original_max_position_embeddings": 1024},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", RULES)
def test_effects_of_rules_follow_the_definition(name):
    rule, fields = RULES[name]
    ax = plots.scaling(ra.RoPE(32, scaling=rule), context=512)
    plain = np.array(pairs_of(32, {}).omegas, float)
    scaled = np.array(pairs_of(32, {"scaling": fields}).omegas, float)
    lengths, ratios = data(ax.lines[0])
    assert lengths == pytest.approx(2 * np.pi / plain)
    assert ratios == pytest.approx(scaled / plain)
    assert set(ax.lines[1].get_xdata()) == {512}
    assert ax.get_yscale() == "log"


def test_effects_of_zero_or_less_have_a_linear_axis():
    for rule, ratios in ((ra.Reversed(), [-1, -1]), (ra.Proportional(0.5), [1, 0])):
        ax = plots.scaling(ra.RoPE(4, scaling=rule))
        assert data(ax.lines[0])[1].tolist() == ratios
        assert ax.get_yscale() == "linear"


def test_the_amplitude_of_a_rule_is_in_its_label():
    rules = {"yarn": RULES["yarn"][0], "linear": ra.Linear(2.0)}
    ax = plots.scaling({name: ra.RoPE(32, scaling=rule) for name, rule in rules.items()})
    assert texts(ax) == [f"yarn, cos and sin × {0.1 * np.log(4) + 1:.4g}", "linear"]


# ---- scores ----


def test_the_bound_is_the_mean_of_partial_sums(precise):
    distances, bound = data(plots.decay(LLAMA, furthest=40, lines="bound").lines[0])
    assert distances.tolist() == list(range(41))
    omegas = [mpmath.mpf(omega) for omega in LLAMA.frequencies]
    for distance in (0, 1, 17, 40):
        terms = [mpmath.expj(distance * omega) for omega in omegas]
        sums = [abs(mpmath.fsum(terms[: n + 1])) for n in range(len(terms))]
        assert bound[distance] == pytest.approx(float(mpmath.fsum(sums) / 36), rel=1e-12)  # 36 = 1 + ... + 8


def test_equal_vectors_of_one_pair_follow_the_cosine():
    """Q·R(m)q = |q|²·cos(m·ω), whatever q is."""
    rope = ra.RoPE(head_dim=2, inv_freq=[0.3], attention_factor=1.5)
    distances, mean = data(plots.decay(rope, furthest=30, draws=5, lines=["equal"]).lines[0])
    assert mean == pytest.approx(np.abs(np.cos(0.3 * distances)), abs=1e-12)


@pytest.mark.parametrize("name", ["equal", "independent"])
def test_mean_scores_follow_the_definition(name):
    """Features that are not rotated take part too."""
    rope = ra.RoPE(head_dim=8, rotary_dim=4, rotary_start=2, pairing="half", attention_factor=1.5)
    fields = {"rotary_dim": 4, "rotary_start": 2, "pairing": "half", "attention_factor": 1.5}
    _, mean = data(plots.decay(rope, furthest=20, draws=7, lines=[name]).lines[0])
    q, k = np.random.default_rng(0).standard_normal((2, 7, 8))
    k = q if name == "equal" else k
    rotated = apply_definition(q, 0, **fields)
    scores = [
        np.abs((rotated * apply_definition(k, distance, **fields)).sum(-1)).mean() for distance in range(21)
    ]
    assert mean == pytest.approx(np.array(scores) / scores[0], rel=1e-9)


def test_scores_of_independent_vectors_do_not_decay():
    ax = plots.decay(ra.RoPE(64), furthest=300, draws=4000)
    bound, equal, independent = (data(line)[1] for line in ax.lines)
    assert bound[200:].max() < 0.4
    assert equal[200:].max() < 0.6
    assert abs(independent - 1).max() < 0.1


def test_many_distances_are_thinned_out():
    distances, _ = data(plots.decay(ROPE, furthest=100_000, lines=["bound"]).lines[0])
    assert (distances[0], distances[-1], len(distances)) == (0, 100_000, 513)


def scores_of(ax):
    return np.asarray(ax.images[0].get_array())


@pytest.mark.parametrize("rope", [ROPE, LLAMA], ids=["plain", "a rule"])
def test_score_maps(rope):
    random = np.random.default_rng(5)
    q, k = random.standard_normal(16), random.standard_normal((9, 16))
    ax = plots.scores(rope, positions=range(100, 145, 5), q=q, k=k)
    fields = {"pairing": rope.pairing, "inv_freq": rope.frequencies}
    rows = range(100, 145, 5)
    rotated_q, rotated_k = (apply_definition(x, rows, **fields) for x in (np.tile(q, (9, 1)), k))
    assert scores_of(ax) == pytest.approx(rotated_q @ rotated_k.T / 4, abs=1e-12)
    assert ax.images[0].get_extent() == [97.5, 142.5, 142.5, 97.5]
    vmin, vmax = ax.images[0].get_clim()
    assert vmax == -vmin == pytest.approx(abs(scores_of(ax)).max())


def test_a_score_of_one_query_depends_on_the_distance():
    values = scores_of(plots.scores(ROPE, positions=12))
    assert values[:-1, :-1] == pytest.approx(values[1:, 1:])
    assert values.argmax(axis=1).tolist() == list(range(12))


def test_several_score_maps_share_their_colours():
    left, right = plots.scores({"a": ROPE, "b": ra.RoPE(16, attention_factor=2.0)}, positions=5)
    assert left.images[0].get_clim() == right.images[0].get_clim()
    assert (left.get_title(), right.get_title()) == ("Scores q·k/√head_dim\na", "Scores q·k/√head_dim\nb")
    assert scores_of(right).max() == pytest.approx(4 * 4)  # amplitude 2 in q and k; √16


# ---- the rotation of a pair ----


def test_arrows_end_at_the_rotated_pair():
    rope = ra.RoPE(8, attention_factor=1.5)
    ax = plots.rotation(rope, pair=1, positions=[0, 7, 1_000_001])
    cos, sin = cos_sin([0, 7, 1_000_001], rotary_dim=8)
    arrows = [data(line) for line in ax.lines[:6:2]]
    assert [x[0] for x, _ in arrows] == [y[0] for _, y in arrows] == [0, 0, 0]
    assert [x[1] for x, _ in arrows] == pytest.approx(1.5 * cos[:, 1], abs=1e-14)
    assert [y[1] for _, y in arrows] == pytest.approx(1.5 * sin[:, 1], abs=1e-14)
    assert [text.get_text() for text in ax.texts] == ["0", "7", "1,000,001"]
    assert ax.get_aspect() == 1


def test_arrows_have_room_by_default():
    """Positions an eighth of a wavelength apart, at least one."""
    for rope, pair in ((ROPE, 0), (ROPE, 5), (ra.RoPE(4, inv_freq=[3.0, 0.0]), 1)):
        shown = [int(text.get_text().replace(",", "")) for text in plots.rotation(rope, pair=pair).texts]
        assert len(shown) == 6
        step = max(1, round(2 * np.pi / 8 / rope.frequencies[pair])) if rope.frequencies[pair] else 1
        assert shown == list(range(0, 6 * step, step))


# ---- figures ----


@pytest.mark.parametrize("function", DRAWN, ids=NAMES)
def test_axes_are_labelled_and_figures_new(function):
    one, two = function(LLAMA), function(LLAMA)
    assert one.figure is not two.figure
    assert len(one.get_title()) > 5
    assert len(one.get_xlabel()) > 3
    assert len(one.get_ylabel()) > 3
    assert colors.to_hex(one.figure.get_facecolor()) == "#ffffff"


@pytest.mark.parametrize("function", DRAWN, ids=NAMES)
@pytest.mark.parametrize("name", [*ROPES, "float32", "part"])
def test_every_plot_takes_every_rope(function, name):
    float32 = ra.RoPE(16, scaling=ra.Linear(2.0), angles="float32")
    part = ra.RoPE(16, rotary_dim=8, rotary_start=4, pairing="half", out_pairing="interleaved")
    rope = {**ROPES, "float32": float32, "part": part}[name]
    ax = function(rope)
    points = [data(line) for line in ax.lines] or [(scores_of(ax), [])]
    assert all(np.isfinite(np.concatenate([np.ravel(x), np.ravel(y)])).all() for x, y in points)


@pytest.mark.parametrize("function", DRAWN, ids=NAMES)
def test_given_axes_are_drawn_on(function):
    ax = Figure().subplots()
    assert function(LLAMA, ax=ax) is ax
    assert ax.has_data()


@pytest.mark.parametrize("function", [f for f in DRAWN if f is not plots.scores], ids=lambda f: f.__name__)
def test_several_ropes_are_labelled(function):
    ropes = {"first": LLAMA, "second": ra.RoPE(16, base=100.0, scaling=ra.Linear(2.0))}
    ax = function(ropes)
    shown = texts(ax)
    assert all(any(text.startswith(label) for text in shown) for label in ropes)
    pens = {
        (line.get_color(), line.get_linestyle(), line.get_marker())
        for line in ax.lines
        if line.get_label()[0] != "_"
    }
    assert len(pens) == len(shown)


def test_ropes_of_a_sequence_are_labelled_by_their_fields():
    assert texts(plots.wavelengths([ROPE, ra.RoPE(16)])) == ["base 500000.0", "base 10000.0"]
    assert texts(plots.wavelengths([ROPE, ROPE])) == ["1: ", "2: "]
    assert texts(plots.wavelengths([ROPE])) == []


def test_legends_hide_no_text():
    """Every text is inside of the figure, and none overlaps another or the legend."""
    ropes = {"base 500,000": ROPE, "Llama 3.1": LLAMA}
    for function in DRAWN:
        for ax in (function(LLAMA), function(ropes)):
            panels = ax if isinstance(ax, list) else [ax]
            figure = panels[0].figure
            FigureCanvasAgg(figure).draw()
            boxes = [box for each in panels for box in boxes_of(each)]
            inside = figure.bbox.padded(3)
            assert all(inside.contains(*corner) for box in boxes for corner in box.corners()), function
            for i, box in enumerate(boxes):
                assert not any(box.padded(-1).overlaps(other.padded(-1)) for other in boxes[:i]), function


def boxes_of(ax) -> Iterable:
    """Yield the extents of the title, the labels, the ticks' numbers and a legend below the axes."""
    legend = ax.get_legend()
    artists = [ax.title, ax.xaxis.label, ax.yaxis.label, *([legend] if legend else [])]
    for axis in (ax.xaxis, ax.yaxis):
        low, high = sorted(axis.get_view_interval())
        artists += [tick.label1 for tick in axis.get_major_ticks() if low <= tick.get_loc() <= high]
    for artist in artists:
        yield artist.get_window_extent()


def test_pyplot_stays_out_and_settings_stay_the_same(tmp_path):
    before = dict(rcParams)
    plots.save(plots.wavelengths(ROPE), tmp_path / "a.svg")
    assert dict(rcParams) == before
    script = """
        import sys
        import rope_array as ra
        from rope_array import plots
        assert "matplotlib" not in sys.modules
        plots.save(plots.rotation(ra.RoPE(4)), sys.argv[1])
        assert "matplotlib.pyplot" not in sys.modules
    """
    child.run(script, str(tmp_path / "b.png"))


# ---- files ----


def test_files_are_reproducible(tmp_path):
    for name in ("a.svg", "b.svg"):
        plots.save(plots.wavelengths(LLAMA, context=100), tmp_path / name)
    text = (tmp_path / "a.svg").read_text("utf-8")
    assert text == (tmp_path / "b.svg").read_text("utf-8")
    assert "dc:date" not in text
    assert ">wavelength 2π/ω (positions)</text>" in text


@pytest.mark.parametrize("kind", ["png", "pdf", "svg"])
def test_files_of_several_formats(kind, tmp_path):
    file = tmp_path / f"scores.{kind}"
    plots.save(plots.scores([ROPE, LLAMA], positions=4), file)
    assert file.read_bytes()[:4] in (b"\x89PNG", b"%PDF", b"<?xm")


def test_the_pictures_of_the_docs_are_current(tmp_path):
    """If this fails: python dev.py test -s pictures, and look at the pictures."""
    spec = importlib.util.spec_from_file_location("_pictures", DOCS / "_pictures.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert sorted(module.make(tmp_path)) == PICTURES
    for name in PICTURES:
        svg_files.assert_same_drawing(tmp_path / name, DOCS / "pictures" / name)
        assert (DOCS / "pictures" / name).stat().st_size < 100_000


# ---- errors ----


@pytest.mark.parametrize("function", DRAWN, ids=NAMES)
@pytest.mark.parametrize(
    ("ropes", "text"),
    [
        (None, "ropes is None"),
        ("llama", "ropes is 'llama'"),
        ([], "ropes has 0 items; give from 1 to 100"),
        ({}, "ropes has 0 items"),
        ({"a": 3}, "ropes has 3"),
        ([ROPE, 3], "ropes has 3"),
        ({1: ROPE}, "a label of ropes is 1"),
        (ra.RoPE(8, rotary_dim=0), "rotates nothing: rotary_dim is 0"),
        (ra.RoPE(8, scaling=ra.DynamicNTK(2.0, 512)), "DynamicNTK depends on the length .* rope.at_length"),
    ],
    ids=["None", "text", "empty", "empty dict", "number", "number in a list", "label", "identity", "length"],
)
def test_ropes_are_checked(function, ropes, text):
    with pytest.raises(ra.SpecError, match=text):
        function(ropes)


@pytest.mark.parametrize(
    ("function", "options", "text"),
    [
        (plots.angle_error, {"furthest": 0}, "furthest is 0; give an int of at least 1"),
        (plots.angle_error, {"furthest": 2**31}, "furthest is 2147483648; give an int of at most 2147483647"),
        (plots.angle_error, {"furthest": 1e3}, "furthest is 1000.0"),
        (plots.wavelengths, {"context": -1}, "context is -1"),
        (plots.wavelengths, {"ax": 3}, "ax is 3 .*; give matplotlib Axes, or None"),
        (plots.scaling, {"context": 0}, "context is 0"),
        (plots.decay, {"draws": 0}, "draws is 0"),
        (plots.decay, {"draws": 10**6}, "draws is 1,000,000; give at most 100,000"),
        (plots.decay, {"lines": ["upper"]}, "lines is .*; give some of 'bound', 'equal', 'independent'"),
        (plots.decay, {"lines": []}, "give some of"),
        (plots.decay, {"lines": 3}, "give some of"),
        (plots.rotation, {"pair": 8}, "pair is 8; give an int of at most 7"),
        (plots.rotation, {"positions": [0, -1]}, r"positions\[1\] is -1"),
        (plots.rotation, {"positions": 5}, "positions is 5 .*; give a sequence of integers"),
        (plots.rotation, {"positions": []}, "positions has 0 items; give from 1 to 1000"),
        (plots.scores, {"positions": 1}, "give from 2 to 2048 ascending positions"),
        (plots.scores, {"positions": range(9, 0, -1)}, "give from 2 to 2048 ascending positions"),
        (plots.scores, {"positions": range(-5, 5)}, "the first of positions is -5"),
        (plots.scores, {"positions": 5000}, "give from 2 to 2048"),
        (plots.scores, {"q": np.ones(3)}, r"q is float64\[3\] .*; give real numbers of shape \(16,\) or"),
        (plots.scores, {"k": np.ones((64, 16), complex)}, "k is complex128"),
        (plots.scores, {"q": "ones"}, "q is 'ones'"),
        (plots.scores, {"q": [[1.0], [1.0, 2.0]]}, "q is a list"),
    ],
)  # fmt: skip
def test_options_are_checked(function, options, text):
    with pytest.raises(ra.SpecError, match=text):
        function(ROPE, **options)


def test_frequencies_of_one_s_own_are_compared_with_the_base():
    rule = ra.RoPE(16, base=500.0, scaling=ra.Llama3(4.0, original_max_position_embeddings=64))
    own = ra.RoPE(16, base=500.0, inv_freq=rule.frequencies, attention_factor=1.25)
    both = plots.scaling({"rule": rule, "own": own})
    for one, other in zip(data(both.lines[0]), data(both.lines[1]), strict=True):
        np.testing.assert_allclose(one, other)
    assert both.lines[1].get_label() == "own, against base 500, cos and sin × 1.25"
    halved = plots.scaling(ra.RoPE(4, base=100.0, inv_freq=[0.5, 0.05], axes=ra.Axes((0, 1))))
    np.testing.assert_allclose(halved.lines[0].get_ydata(), [0.5, 0.5])


def test_as_many_axes_as_maps():
    with pytest.raises(ra.SpecError, match="give a sequence of 2 matplotlib Axes"):
        plots.scores([ROPE, LLAMA], ax=Figure().subplots())
    axes = Figure().subplots(1, 2)
    assert plots.scores([ROPE, LLAMA], ax=axes) == list(axes)


@pytest.mark.parametrize("thing", [None, 3, [], [3]], ids=str)
def test_only_plots_are_saved(thing, tmp_path):
    with pytest.raises(ra.SpecError, match="give the Axes that a function of"):
        plots.save(thing, tmp_path / "a.svg")


WITHOUT = """
    import sys
    class Block:
        def find_spec(self, name, path=None, target=None):
            if name.partition(".")[0] == "matplotlib":
                raise ModuleNotFoundError("No module named 'matplotlib'", name="matplotlib")
    sys.meta_path.insert(0, Block())
"""


def test_without_matplotlib_the_error_names_the_extra():
    script = f"""{WITHOUT}
    import rope_array as ra
    from rope_array import plots
    from rope_array.__main__ import main
    for name in plots.__all__:
        try:
            getattr(plots, name)(*([None, "a.svg"] if name == "save" else [ra.RoPE(4)]))
        except ImportError as error:
            assert "pip install 'rope-array[plot]'" in str(error)
        except ra.SpecError:
            assert name == "save"
        else:
            raise AssertionError(name)
    assert main(["plot", "decay"]) == 2
    """
    child.run(script)


# ---- the command ----


def run(*arguments):
    return main(["plot", *map(str, arguments)])


CONFIGS = {
    "llama": {"model_type": "llama", "head_dim": 64, "num_hidden_layers": 2, "max_position_embeddings": 4096,
              "rope_scaling": {"rope_type": "linear", "factor": 2.0}},
    "gemma": {"model_type": "gemma3_text", "num_hidden_layers": 6},
    "dynamic": {"model_type": "llama", "head_dim": 64, "rope_scaling": {"type": "dynamic", "factor": 2.0}},
    "llama4": {"model_type": "llama4_text", "num_hidden_layers": 4},
}  # fmt: skip


@pytest.fixture
def configs(tmp_path, monkeypatch):
    """Change to a folder with a folder for each config."""
    import json

    for name, content in CONFIGS.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps(content), "utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def drawn(monkeypatch):
    """The arguments of each call of `plots.save`, instead of a file."""
    calls = []
    monkeypatch.setattr(plots, "save", lambda ax, path: calls.append((ax, path)))
    return calls


@pytest.mark.parametrize("kind", ["angle-error", "wavelengths", "scaling", "decay", "rotation", "scores"])
def test_the_command_writes_each_kind(kind, configs, capsys):
    assert run(kind, "--scaling", "Linear(4.0)", "--head-dim", 16) == 0
    assert capsys.readouterr().out == f"wrote {kind}.svg\n"
    assert (configs / f"{kind}.svg").read_text("utf-8").startswith("<?xml")


def test_the_command_reads_fields(drawn):
    rule = "YaRN(factor=4.0, original_max_position_embeddings=512)"
    arguments = ("--head-dim", 32, "--rotary-dim", 16, "--base", 1e6, "--pairing", "half", "--scaling", rule)
    assert run("wavelengths", *arguments, "-o", "x.png") == 0
    ((ax, path),) = drawn
    assert path == "x.png"
    rope = ra.RoPE(32, rotary_dim=16, base=1e6, scaling=ra.YaRN(4.0, 512))
    assert data(ax.lines[0])[1] == pytest.approx(2 * np.pi / np.array(rope.frequencies))
    assert set(ax.lines[1].get_ydata()) == {512}


def test_the_command_reads_configs(configs, drawn):
    assert run("wavelengths", "llama", "gemma/config.json") == 0
    ax, _ = drawn[0]
    assert texts(ax) == ["llama", "gemma, layer 0", "gemma, layer 5", "context: 4,096 positions"]
    assert data(ax.lines[0])[1][0] == pytest.approx(4 * np.pi)
    assert len(data(ax.lines[1])[1]) == 128


def test_the_command_chooses_layers_and_lengths(configs, drawn):
    assert run("wavelengths", "gemma", "--layer-type", "full_attention") == 0
    assert run("wavelengths", "gemma", "--layer-type", "5", "--context", 100) == 0
    assert run("wavelengths", "dynamic", "--length", 8192) == 0
    assert run("wavelengths", "llama4") == 0
    full, fifth, dynamic, _ = (data(ax.lines[0])[1] for ax, _ in drawn)
    assert full[-1] == fifth[-1] == pytest.approx(2 * np.pi * 1e6 ** (254 / 256))
    assert set(drawn[1][0].lines[1].get_ydata()) == {100}
    rope = ra.RoPE.from_config(CONFIGS["dynamic"]).at_length(8192)
    assert dynamic[-1] == pytest.approx(2 * np.pi / rope.frequencies[-1])
    assert len(drawn[3][0].lines) == 2  # of the layers that rotate; the context


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["scaling"], "a plot of scaling needs a rule; give a CONFIG, or --scaling"),
        (["decay", "--context", 5], "the plot decay has no use for --context"),
        (["decay", "--part", "text"], "without a CONFIG, there is no use for --part"),
        (["decay", "llama", "--base", "3"], "a plot of a CONFIG does not use --base"),
        (["decay", "absent"], "no file or folder here is named 'absent'"),
        (["decay", "dynamic"], "DynamicNTK depends on the length of the sequence; give --length"),
        (["decay", "--scaling", "exit()"], "--scaling is 'exit()'; give the call of a rule"),
        (["decay", "--head-dim", 7], "head_dim is 7, odd"),
        (["decay", "-o", "picture"], "'picture' has no suffix, which names the format; give picture.svg"),
        (["decay", "-o", "picture.xyz"], "xyz"),
        (["decay", "-o", "absent/picture.svg"], "No such file"),
        (["rotation", "--pair", 99], "pair is 99"),
    ],
)  # fmt: skip
def test_the_command_refuses(arguments, text, configs, capsys):
    assert run(*arguments) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith("rope_array plot: ")
    assert output.err.count("\n") == 1
    assert text in output.err


def test_the_command_has_every_plot():
    assert {name.replace("_", "-") for name in plots.__all__} == {*_KINDS, "save"}


def test_the_help_lists_the_plots_and_the_extra(capsys):
    with pytest.raises(SystemExit) as exit_:
        main(["plot", "--help"])
    assert exit_.value.code == 0
    text = capsys.readouterr().out
    assert "pip install 'rope-array[plot]'" in text
    assert all(f"\n  {kind} " in text for kind in _KINDS)


def test_the_commands_of_the_page_run(configs, drawn):
    (configs / "llama").rename(configs / "Llama-3.1-8B")
    lines = re.findall(
        "^python -m rope_array (plot .*)$", (DOCS / "plots.md").read_text("utf-8"), re.MULTILINE
    )
    assert [main(shlex.split(line)) for line in lines] == [0, 0]
    assert [path for _, path in drawn] == ["wavelengths.svg", "scaling.svg"]


def test_the_command_runs_in_a_process_of_its_own(tmp_path):
    command = [sys.executable, "-P", "-m", "rope_array", "plot", "rotation", "-o", tmp_path / "a.svg"]
    done = subprocess.run(command, env=os.environ, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "a.svg").stat().st_size > 1000
