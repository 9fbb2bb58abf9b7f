"""`examine` names the field in which a rotation, by formulas written here, differs from the expected rope."""

import dataclasses

import numpy as np
import pytest
from refusals import refusals, refused

import rope_array as ra
from rope_array import diagnose, examine

HALF = {"pairing": "half"}
YARN = ra.YaRN(4.0, original_max_position_embeddings=64)
ROPES = {
    "half": ra.RoPE(64, base=500_000.0, **HALF),
    "yarn": ra.RoPE(64, **HALF, scaling=YARN),
    "partial": ra.RoPE(64, rotary_dim=32, **HALF),
    "interleaved": ra.RoPE(64, scaling=ra.Linear(4.0)),
}
change = dataclasses.replace


def cast(array, dtype):
    if dtype == "bfloat16":
        pytest.importorskip("ml_dtypes")
    return array.astype(dtype)


def features(*shape, dtype="float32", seed=0):
    return cast(np.random.default_rng(seed).standard_normal(shape), dtype)


def rotate(x, pos, rope, omegas=None, *, size=None, pairing=None, table=np.float64, sign=1, real=np.float64):
    """Rotate pairs in float64, by angles and tables of a dtype."""
    angles = real(pos)[..., None] * real(rope.frequencies if omegas is None else omegas)
    n, pairing = angles.shape[-1], pairing or rope.pairing
    size = rope.amplitude if size is None else size
    cos, sin = (cast(size * f(angles), table).astype(float) for f in (np.cos, np.sin))
    first = np.arange(n) * (1 if pairing == "half" else 2)
    second = first + (n if pairing == "half" else 1)
    a, b, y = x[..., first].astype(float), x[..., second].astype(float), x.astype(float)
    y[..., first], y[..., second] = a * cos - sign * b * sin, b * cos + sign * a * sin
    return y


def other(pairing):
    return "half" if pairing == "interleaved" else "interleaved"


def moved(x, rope, source):
    """Move features of pairs in the order of `source` to the other order."""
    width = rope.rotary_dim
    shape = (-1, 2) if source == "interleaved" else (2, -1)
    order = np.arange(width).reshape(shape).T.ravel()
    return np.concatenate([x[..., :width][..., order], x[..., width:]], -1)


def series(base, width, n):
    return base ** (-2 * np.arange(n) / width)


# By the kind: the output of x at positions p < n, where r is the expected rope; and words of the finding.
FAULTS = {
    "pairing": ("rotate(x, p, r, pairing=other(r.pairing))", "pairs, expected"),
    "base": ("rotate(x, p, change(r, base=77.0))", "base 77, expected base"),
    "scaling": ("rotate(x, p, change(r, scaling=None if r.scaling else ra.Linear(8.0)))", "expected"),
    "frequencies": ("rotate(x, p, r, np.float16(r.frequencies))", "inv_freq in float16"),
    "factor": ("rotate(x, p, r, size=1.25)", "times 1.25, expected cos and sin times 1"),
    "positions": ("rotate(x, p + 3, r)", "rotated at pos +3"),
    "positions of a row": ("rotate(x, p + [[[0]], [[-2]]], r)", "index 1 of axis 0: rotated at pos -2"),
    "rotated part": ("rotate(x, p, r, series(r.base, 16, 8), size=1.0)", "features 0 to 15 rotate"),
    "direction": ("rotate(x, p, r, sign=-1)", "by -φ"),
    "rotated twice": ("rotate(rotate(x, p, r), p, r)", "doubled"),
    "not rotated": ("x", "as if all positions were 0, expected a rotation"),
    "16-bit tables": ("rotate(x, p, r, table=np.float16)", "16"),
    "16-bit tables of positions": ("rotate(x, cast(p, 'bfloat16'), r)", "positions in bfloat16"),
    "table too short": ("rotate(x, np.minimum(p, n - 2), r)", "the table's last row"),
    "table too short, zero": ("rotate(x, np.where(p < n - 2, p, 0), r)", "by no rotation"),
    "table too short, wrapped": ("rotate(x, p % (n - 2), r)", "the table's first rows again"),
    "table too short, empty": ("rotate(x, p, r) * (p < n - 2)[:, None]", "and none before"),
    "weights of the other pairing": ("rotate(moved(x, r, r.pairing), p, r)", "convert.weights(w"),
    "weights of the other pairing, twice": ("rotate(moved(x, r, other(r.pairing)), p, r)", "order again"),
}


@pytest.mark.parametrize("tokens", [8, 100])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("kind", FAULTS)
def test_faults_are_named(kind, dtype, tokens):
    fault, words = FAULTS[kind]
    if "16" in kind:  # rounded tables are right in a 16-bit model; positions are exact up to 256
        dtype, tokens = "float32", 300
    for name, rope in ROPES.items():
        if (kind == "rotated part" and rope.scaling) or (kind == "frequencies" and dtype == "bfloat16"):
            continue
        x, pos = features(2, 4, tokens, 64, dtype=dtype), np.arange(tokens)
        names = {"x": x.astype(float), "p": pos, "r": rope, "n": tokens}
        y = cast(eval(fault, globals() | names), dtype)
        [finding] = examine(x, y, pos, rope).findings
        assert kind.startswith(finding.kind), (name, finding)
        assert words in finding.text
        assert finding.remedy
        if kind in ("direction", "not rotated"):
            assert "alike" not in finding.text  # by -pos, or by positions of 0


@pytest.mark.parametrize("seed", range(60))
def test_right_rotations_have_no_finding(seed):
    """By exact and float32 angles, and tables of float32 and of the arrays' dtype, at far positions too."""
    rng = np.random.default_rng(seed)
    rope = [*ROPES.values()][seed % 4]
    dtype = ["float32", "float16", "bfloat16", "float64"][rng.integers(4)]
    x = cast(features(2, 3, 9, 64, seed=seed) * 10.0 ** rng.integers(-3, 3), dtype)
    pos = rng.integers(0, [64, 4096, 1 << 20][rng.integers(3)], (2, 1, 9))
    table = rng.choice(["float32", dtype]) if dtype != "float64" else dtype
    for real in (np.float64, np.float64 if dtype == "float64" else np.float32):
        y = rotate(x, pos, rope, table=table, real=real)
        examination = examine(x, cast(y, dtype), pos[:, 0], rope)
        assert examination.ok, str(examination)
        # Files of NumPy hold bfloat16 numbers in float32.
        if dtype == "bfloat16":
            assert examine(x.astype("float32"), cast(y, dtype).astype("float32"), pos[:, 0], rope).ok


GEMMA = {"model_type": "gemma3_text", "num_hidden_layers": 12, "head_dim": 64}


@pytest.mark.library("torch")
@pytest.mark.parametrize("suffix", ["npz", "safetensors"])
def test_files_of_caches_are_compared_with_the_config_by_layer(suffix, tmp_path):
    """Keys of a reference are rotated already; layer 5 has the rope of the others, and 10 comes after 2."""
    torch = pytest.importorskip("torch")
    ropes = {i: reading.rope for layers, reading in ra.config.read_layers(GEMMA) for i in layers}
    keys = {f"layers.{i}.k": features(1, 2, 16, 64, seed=i) for i in (*range(10), 11, 10)}
    right = {f"layers.{i}.k": rotate(keys[f"layers.{i}.k"], range(16), ropes[i]) for i in ropes}
    wrong = right | {"layers.5.k": rotate(keys["layers.5.k"], range(16), ropes[0])}
    wrong["layers.10.k"] = rotate(keys["layers.10.k"], np.arange(1, 17), ropes[10])
    paths = [tmp_path / f"{name}.{suffix}" for name in ("right", "wrong")]
    for path, arrays in zip(paths, (right, wrong), strict=True):
        if suffix == "npz":
            np.savez(path, **{name: array.astype("float32") for name, array in arrays.items()})
        else:
            tensors = {name: torch.from_numpy(array).bfloat16() for name, array in arrays.items()}
            pytest.importorskip("safetensors.torch").save_file(tensors, path)
    assert examine(paths[0], paths[0], range(16), GEMMA, rotated=True).ok
    examination = examine(*map(str, paths), range(16), GEMMA, rotated=True)
    assert [(f.kind, f.layers) for f in examination.findings] == [("base", (5,)), ("positions", (10,))]
    assert "12 layers compared: 2 findings\n  layer 5: base: base 10000, expected" in str(examination)


@pytest.mark.library("torch")
@pytest.mark.parametrize("heads", [4, 2])
def test_weights_of_the_other_pairing_have_a_line_that_converts_them(heads):
    """Projections of half pairs, in interleaved order by NumPy, in a model of transformers."""
    torch = pytest.importorskip("torch")
    llama = pytest.importorskip("transformers.models.llama.modeling_llama")
    w, hidden = features(heads * 64, 32), features(48, 32, seed=1)
    ported = w.reshape(heads, 2, 32, 32).swapaxes(1, 2).reshape(w.shape)
    angles = np.concatenate([np.outer(range(48), series(10_000.0, 64, 32))] * 2, -1)
    cos, sin = (torch.from_numpy(f(angles).astype("float32"))[None] for f in (np.cos, np.sin))

    def rotated(w):
        q = torch.from_numpy((hidden @ w.T).reshape(1, 48, heads, 64).swapaxes(1, 2))
        return q, llama.apply_rotary_pos_emb(q, q, cos, sin)[0]

    (before, right), after = rotated(w), rotated(ported)[1]
    rope = ra.RoPE(64, **HALF)
    assert examine(before, right, range(48), rope).ok
    [finding], [explanation] = (
        examine(before, after, range(48), rope).findings,
        diagnose(before, after, range(48)).explanations,
    )
    assert finding.kind == "weights of the other pairing"
    line = "convert.weights(w, RoPE(..., pairing='interleaved'), to='half', num_heads=...)"
    assert line in finding.text
    assert line in explanation.mistake
    converted = ra.convert.weights(ported, ra.RoPE(64, pairing="interleaved"), to="half", num_heads=heads)
    assert examine(before, rotated(converted)[1], range(48), rope).ok


def test_a_lost_factor_of_2_is_no_second_rotation():
    x, rope = features(2, 4, 64, 64), ra.RoPE(64, **HALF, scaling=ra.Linear(2.0))
    [finding] = examine(x, rotate(x, range(64), change(rope, scaling=None)), range(64), rope).findings
    assert finding.kind == "scaling"
    assert "or, alike in these rows, every angle is doubled" in finding.text


def test_layers_that_were_not_compared_are_not_ok():
    assert ra.Examination((0,), ()).ok
    assert not ra.Examination((0,), (), (("layers.1", "no call"),)).ok


def test_two_faults_and_no_rotation_at_all():
    x, rope = features(2, 4, 64, 64), ROPES["half"]
    y = rotate(x, range(64), ra.RoPE(64, base=1e6, pairing="interleaved"))
    assert [f.kind for f in examine(x, y, range(64), rope).findings] == ["pairing", "base"]
    assert [f.kind for f in examine(x, x[..., ::-1].copy(), range(64), rope).findings] == ["unexplained"]
    assert examine(x, x, range(64), ra.RoPE(64, rotary_dim=0)).ok
    assert [f.kind for f in examine(x, y, range(64), ra.RoPE(64, rotary_dim=0)).findings] == ["rotated part"]


def test_coordinates_are_compared():
    axes = ra.Axes.chunked(8, 12, 12)
    rope = ra.RoPE(64, **HALF, axes=axes)
    pos = np.random.default_rng(0).integers(0, 20, (40, 3))
    x = features(2, 40, 64)
    for order in ((0, 1, 2), (0, 2, 1), (0, 0, 0)):
        angles = pos[:, [order[a] for a in axes.coordinates]] * np.array(rope.frequencies)
        findings = examine(x, rotate(x, np.ones(40), rope, angles), pos, rope).findings
        words = [f"coordinates in the order {order}, expected (0, 1, 2)"]
        assert [f.text for f in findings] == (words if order != (0, 1, 2) else [])
    text = np.outer(range(40), rope.frequencies)
    assert examine(x, rotate(x, np.ones(40), rope, text), range(40), rope).ok


X = np.ones((4, 8), "float32")
HEADS = {0: X, 1: X}


@refusals("examine")
def test_errors(call, error, words):
    refused(error, words, lambda: eval(call))
