"""The plots: the data of the lines that are drawn, figures, files, labels and errors."""

import importlib.util
import json
import re
import shlex
from pathlib import Path

import child
import numpy as np
import pytest
import ropes
import svg_files
from compare import words
from matplotlib import rcParams
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from refusals import TABLE, refusals, refused
from test_command import one_line

import rope_array as ra
from rope_array import plots
from rope_array.testing import cos_sin

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
    return [text.get_text() for text in ax.get_legend().get_texts()]


# ---- the error of angles ----


ROPES = {
    "plain": ROPE,
    "a rule": LLAMA,
    "frequencies": ra.RoPE(head_dim=8, inv_freq=[1.5, 0.3, -0.07, 0.001]),
    "axes": ra.RoPE(head_dim=16, axes=ra.Axes.chunked(2, 3, 3), scaling=ra.NTKAware(2.0)),
    "amplitude": ra.RoPE(head_dim=16, scaling=ra.YaRN(factor=4.0, original_max_position_embeddings=4096)),
}


@pytest.mark.parametrize("name", ROPES)
def test_errors_of_exact_angles(name):
    """The angle of the tables for float32 arrays, against the product of the position and the frequency."""
    rope = ROPES[name]
    pos, errors = data(plots.angle_error(rope, furthest=2**31 - 1).lines[0])
    assert (pos[0], len(pos) > 100, pos[-1] > 1.9e9) == (1, True, True)
    assert errors.max() < 9.5e-8 * 2**0.5
    # The frequencies of a base are real numbers, all others the floats of the rope.
    frequencies = {"base": rope.base} if rope is ROPE else {"inv_freq": rope.frequencies}
    for p, error in list(zip(pos, errors, strict=True))[::12]:
        table = rope.rotation(p if rope.axes is None else [p] * 3, like=np.empty(0, np.float32))
        cos, sin = cos_sin(p, rotary_dim=rope.rotary_dim, **frequencies)
        differences = np.arctan2(table.sin * cos - table.cos * sin, table.cos * cos + table.sin * sin)
        assert error == pytest.approx(np.abs(differences).max(), rel=1e-6)


def test_the_errors_grow_as_the_page_describes():
    """Float32 angles: 0.06 radians at a million tokens. Bfloat16: near π from 1,000 tokens on."""
    lines = plots.angle_error(ra.RoPE(128, base=500_000.0), furthest=2**20).lines
    pos, (exact, float32, bfloat16) = data(lines[0])[0], [data(line)[1] for line in lines[:3]]
    assert (pos % 2 == 1).all()
    assert 1 <= pos.min() <= pos.max() <= 2**20
    assert exact.max() < 1e-7
    assert 0.05 < float32.max() < 0.08
    assert (bfloat16[pos > 2000] > 2.4).all()
    assert bfloat16.max() <= np.pi


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


@pytest.mark.parametrize(
    "rule", [ra.Linear(4.0), ra.YaRN(4.0, 512), ra.Llama3(8.0, 1.0, 4.0, 1024)], ids=words
)
def test_the_effects_of_rules(rule):
    rope, plain = ra.RoPE(32, scaling=rule), ra.RoPE(32)
    ax = plots.scaling({"name": rope}, context=512)
    lengths, ratios = data(ax.lines[0])
    assert lengths == pytest.approx(2 * np.pi / np.array(plain.frequencies))
    assert ratios == pytest.approx(np.array(rope.frequencies) / plain.frequencies)
    assert set(ax.lines[1].get_xdata()) == {512}
    amplitude = f", cos and sin × {0.1 * np.log(4) + 1:.4g}" if type(rule) is ra.YaRN else ""
    assert texts(ax)[0] == f"name{amplitude}"


@pytest.mark.parametrize("layout", ["own", "constrained", None])
@pytest.mark.parametrize("rule", ["Linear", "YaRN", "Llama3", "all"])
def test_legends_hide_no_line(rule, layout):
    """On figures with a layout, which makes room below, and without one, which would cut off the legend."""
    rules = {"Linear": ra.Linear(8.0), "YaRN": ra.YaRN(8.0, 8192), "Llama3": ra.Llama3(8.0)}
    name = "{} as a model with a long name has it"
    chosen = {name.format(k): ra.RoPE(128, scaling=r) for k, r in rules.items() if rule in (k, "all")}
    ax = plots.scaling(chosen, context=8192, ax=None if layout == "own" else Figure(layout=layout).subplots())
    FigureCanvasAgg(ax.figure).draw()
    box = ax.get_legend().get_window_extent()
    assert ax.figure.bbox.containsy(box.y0)
    for line in ax.lines[: len(chosen)]:
        path = line.get_transform().transform_path(line.get_path()).interpolated(50)
        assert not box.count_contains(path.vertices)


# ---- axes ----


def test_maps_of_axes():
    """Letters and bars are of the pairs that rotate; higher bars have higher frequencies."""
    coordinates = (4, None, 0, 4, None, None, 1, 2) * 2
    maps = {"THWTHWTHWTHWTHWT": ra.Axes.interleaved(6, 5, 5), "HHHHHHHHWWWWWWWW": ra.Axes.axial(16, 16),
            "4-04--124-04--12": ra.Axes(coordinates)}  # fmt: skip
    ax = plots.axes({"row " + letters: ra.RoPE(32, axes=axes) for letters, axes in maps.items()})
    for row, (letters, axes) in enumerate(maps.items()):
        texts = [text for text in ax.texts if text.get_position()[1] == -row - 0.03]
        bars = [bar for bar in ax.patches if bar.get_y() == -row]
        drawn = {text.get_position()[0]: text.get_text() for text in texts}
        assert "".join(drawn.get(pair, "-") for pair in range(16)) == letters
        assert [bar.get_x() + 0.44 for bar in bars] == pytest.approx([*drawn])
        omegas = [omega for omega in ra.RoPE(32, axes=axes).frequencies if omega]
        assert np.corrcoef(np.log(omegas), [bar.get_height() for bar in bars])[0, 1] > 1 - 1e-9
        colours = {*zip(drawn.values(), (bar.get_facecolor() for bar in bars), strict=True)}
        assert len(colours) == len({*drawn.values()}) == len({colour for _, colour in colours})


# ---- scores ----


def test_long_distances_have_means_over_an_octave():
    distances, means = data(plots.decay(ROPE, furthest=100_000, lines=["bound"]).lines[0])
    cos, sin = cos_sin(np.append(0, distances), rotary_dim=16, base=ROPE.base)
    sizes = np.abs(np.cumsum(cos + 1j * sin, axis=-1)).mean(axis=-1)
    near = np.abs(np.log2(distances[:, None] / distances)) <= 0.5
    assert means == pytest.approx((near * sizes[1:]).sum(-1) / near.sum(-1) / sizes[0])
    assert (distances[0], distances[-1], len(distances) > 300) == (1, 100_000, True)


@pytest.mark.parametrize("name", ["equal", "independent"])
def test_mean_scores_are_of_rotated_features(name):
    """Features that are not rotated take part too."""
    rope = ra.RoPE(head_dim=8, rotary_dim=4, rotary_start=2, pairing="half", attention_factor=1.5)
    _, mean = data(plots.decay(rope, furthest=20, draws=7, lines=[name]).lines[0])
    q, k = np.random.default_rng(0).standard_normal((2, 7, 8))
    k = q if name == "equal" else k
    rotated = rope.apply(q, 0)
    scores = [np.abs((rotated * rope.apply(k, distance)).sum(-1)).mean() for distance in range(21)]
    assert mean == pytest.approx(np.array(scores) / scores[0], rel=1e-9)


def test_score_maps():
    """Several share their colours."""
    random = np.random.default_rng(5)
    q, k, rows = random.standard_normal(16), random.standard_normal((9, 16)), range(100, 145, 5)
    ropes = {"plain": ROPE, "rule": LLAMA}
    panels = plots.scores(ropes, positions=rows, q=q, k=k)
    assert panels[0].images[0].get_clim() == panels[1].images[0].get_clim()
    for ax, (name, rope) in zip(panels, ropes.items(), strict=True):
        rotated_q, rotated_k = (rope.apply(x, rows) for x in (np.tile(q, (9, 1)), k))
        assert np.asarray(ax.images[0].get_array()) == pytest.approx(rotated_q @ rotated_k.T / 4, abs=1e-12)
        assert ax.images[0].get_extent() == [97.5, 142.5, 142.5, 97.5]
        assert ax.get_title().endswith(name)


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


# ---- figures ----

LAYOUTS = "float32 angles", "slice to interleaved"


@pytest.mark.parametrize("function", DRAWN, ids=NAMES)
@pytest.mark.parametrize("rope", [*ROPES.values(), *map(ropes.rope, LAYOUTS)], ids=[*ROPES, *LAYOUTS])
def test_every_plot_takes_every_rope(function, rope):
    """On axes of its own or on axes given, with labels."""
    ax = function(rope, ax=Figure().subplots()) if rope is LLAMA else function(rope)
    points = [data(line) for line in ax.lines] or [(ax.images[0].get_array(), [])]
    assert all(np.isfinite(np.concatenate([np.ravel(x), np.ravel(y)])).all() for x, y in points)
    assert all(len(text) > 3 for text in (ax.get_title(), ax.get_xlabel(), ax.get_ylabel()))


def test_pyplot_stays_out_and_settings_stay_the_same(tmp_path):
    """Without matplotlib the error names the command that installs it."""
    before = dict(rcParams)
    plots.save(plots.wavelengths(ROPE), tmp_path / "a.svg")
    assert dict(rcParams) == before
    script = """
        import sys
        import rope_array as ra
        from rope_array import plots
        from rope_array.__main__ import main
        assert "matplotlib" not in sys.modules
        sys.modules["matplotlib"] = None
        for name in set(plots.__all__) - {"save"}:
            try:
                getattr(plots, name)(ra.RoPE(4, axes=ra.Axes((0, 1))))
            except ImportError as error:
                assert "python -m pip install matplotlib" in str(error)
            else:
                raise AssertionError(name)
        assert main(["plot", "decay"]) == 2
        del sys.modules["matplotlib"]
        plots.save(plots.rotation(ra.RoPE(4)), sys.argv[1])
        assert "matplotlib.pyplot" not in sys.modules
    """
    child.run(script, str(tmp_path / "b.png"))


# ---- files ----


def test_the_pictures_of_the_docs_are_current(tmp_path):
    """If this fails: python dev.py test -s pictures, and look at the pictures."""
    spec = importlib.util.spec_from_file_location("_pictures", DOCS / "_pictures.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert sorted(module.make(tmp_path)) == PICTURES
    for name in PICTURES:
        svg_files.assert_same_drawing(tmp_path / name, DOCS / "pictures" / name)
        text = (DOCS / "pictures" / name).read_text("utf-8")
        assert len(text) < 100_000
        width, *sizes = map(float, re.findall(r"(?:viewBox=\"0 0|font-size:) ([\d.]+)", text))
        assert min(sizes) * 358 / width > 8  # pixels of text on a phone 390 pixels wide


# ---- errors ----


@pytest.mark.parametrize("function", [*DRAWN, plots.axes], ids=[*NAMES, "axes"])
@pytest.mark.parametrize(
    ("ropes", "text"),
    [
        (None, "None"), ("llama", "llama"), ([], "items"), ({}, "items"), ({"a": 3}, "has 3"),
        ([ROPE, 3], "has 3"), ({1: ROPE}, "label"), (ra.RoPE(8, rotary_dim=0), "rotary_dim"),
        (ra.RoPE(8, scaling=ra.DynamicNTK(2.0, 512)), "rope.at_length"),
    ],
    ids=["None", "text", "empty", "empty dict", "number", "number in a list", "label", "identity", "length"],
)  # fmt: skip
def test_ropes_are_checked(function, ropes, text):
    with pytest.raises(ra.SpecError, match=text):
        function(ropes)


@refusals("plots")
def test_options_are_checked(call, error, words):
    refused(error, words, lambda: eval(call))


def test_frequencies_of_one_s_own_are_compared_with_the_base():
    rule = ra.RoPE(16, base=500.0, scaling=ra.Llama3(4.0, original_max_position_embeddings=64))
    listed = ra.RoPE(16, base=500.0, inv_freq=rule.frequencies, attention_factor=1.25)
    ax = plots.scaling({"rule": rule, "own": listed})
    for of_rule, of_list in zip(data(ax.lines[0]), data(ax.lines[1]), strict=True):
        np.testing.assert_allclose(of_rule, of_list)
    assert ax.lines[1].get_label() == "own, against base 500, cos and sin × 1.25"
    halved = plots.scaling(ra.RoPE(4, base=100.0, inv_freq=[0.5, 0.05], axes=ra.Axes((0, 1))))
    np.testing.assert_allclose(halved.lines[0].get_ydata(), [0.5, 0.5])


def test_only_plots_are_saved(tmp_path):
    for value in (None, 3, [], [3]):
        with pytest.raises(ra.SpecError, match="Axes"):
            plots.save(value, tmp_path / "a.svg")


# ---- the command ----


CONFIGS = {
    "qwen": {"model_type": "qwen2_vl", "head_dim": 32, "rope_scaling": {"mrope_section": [4, 6, 6]}},
    "llama": {"model_type": "llama", "head_dim": 64, "num_hidden_layers": 2, "max_position_embeddings": 4096,
              "rope_scaling": {"rope_type": "linear", "factor": 2.0}},
    "gemma": {"model_type": "gemma3_text", "num_hidden_layers": 6},
    "dynamic": {"model_type": "llama", "head_dim": 64, "rope_scaling": {"type": "dynamic", "factor": 2.0}},
}  # fmt: skip


@pytest.fixture
def configs(tmp_path, monkeypatch):
    """Change to a folder with a folder for each config."""
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


@pytest.mark.parametrize("plot", [name.replace("_", "-") for name in NAMES])
def test_the_command_writes_each_kind(plot, configs, command):
    done = command(f"plot {plot} --scaling Linear(4.0) --head-dim 16")
    assert done == (0, f"wrote {plot}.svg\n", "")
    assert (configs / f"{plot}.svg").read_text("utf-8").startswith("<?xml")


def test_the_command_chooses_layers_and_lengths(configs, drawn, command):
    for options in (
        "llama gemma/config.json",
        "gemma --layer-type full_attention",
        "gemma --layer-type 5 --context 100",
        "dynamic --length 8192",
    ):
        assert command(f"plot wavelengths {options}")[0] == 0
    two_configs, full, fifth, dynamic = (ax for ax, _ in drawn)
    assert texts(two_configs) == ["llama", "gemma, layer 0", "gemma, layer 5", "context: 4,096 positions"]
    for ax in (full, fifth):
        assert data(ax.lines[0])[1][-1] == pytest.approx(2 * np.pi * 1e6 ** (254 / 256))
    assert set(fifth.lines[1].get_ydata()) == {100}
    rope = ra.RoPE.from_config(CONFIGS["dynamic"]).at_length(8192)
    assert data(dynamic.lines[0])[1][-1] == pytest.approx(2 * np.pi / rope.frequencies[-1])


def test_the_commands_of_the_page_run(configs, drawn, command):
    (configs / "llama").rename(configs / "Llama-3.1-8B")
    page = (DOCS / "plots.md").read_text("utf-8")
    lines = re.findall("^python -m rope_array (plot .*)$", page, re.MULTILINE)
    assert [command(shlex.split(line))[0] for line in [*lines, "plot axes qwen"]] == [0, 0, 0]
    assert [path for _, path in drawn] == ["wavelengths.svg", "scaling.svg", "axes.svg"]


@pytest.mark.parametrize(("line", "text"), TABLE["plot"].items())
def test_the_command_refuses(line, text, configs, command):
    assert text in one_line(command(f"plot {line}"), "plot")
