"""`diagnose` finds rotations that formulas written here, or the suite's definition, computed."""

import dataclasses
import math

import numpy as np
import pytest
from conftest import NIGHTLY, TIMES
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from refusals import refusals, refused

import rope_array as ra
from rope_array import ArrayTypeError, diagnose
from rope_array.testing import apply_definition

ROWS = 48
HALF = {"pairing": "half"}


def cast(array, dtype="bfloat16"):
    """Convert an array; NumPy has bfloat16 once ml_dtypes is imported."""
    if dtype == "bfloat16":
        pytest.importorskip("ml_dtypes")
    return array.astype(dtype)


def features(*shape, dtype="float32", seed=0):
    return cast(np.random.default_rng(seed).standard_normal(shape), dtype)


def run_code(explanation, x, pos):
    """Run the code of an explanation and return its result."""
    return eval(explanation.code, {"ra": ra, "np": np, "x": x.astype("float64"), "pos": pos})


def only(diagnosis, x, y, pos, bound=1e-6):
    """Return the only explanation; check that its code gives y."""
    assert len(diagnosis.explanations) == 1, diagnosis
    [explanation] = diagnosis.explanations
    expected = y.astype("float64")
    assert abs(run_code(explanation, x, pos) - expected).max() < bound * abs(expected).max()
    assert explanation.code in str(diagnosis)
    assert not diagnosis.reason
    return explanation


def tables(pos, width, base):
    angles = np.asarray(pos)[..., None] * float(base) ** (-np.arange(0, width, 2) / width)
    return np.cos(angles), np.sin(angles)


def half(x, cos, sin, signs=(-1, 1)):
    a, b = np.split(x, 2, -1)
    return np.concatenate([a * cos + signs[0] * b * sin, b * cos + signs[1] * a * sin], -1).astype(x.dtype)


def close_to(rope, expected):
    """Return whether frequencies agree to 0.1 %, and all else is equal."""
    layouts = {(r.pairing, r.out_pairing, r.rotary_dim, r.rotary_start) for r in (rope, expected)}
    numbers = [(*r.frequencies, r.amplitude) for r in (rope, expected)]
    return len(layouts) == 1 and np.allclose(*numbers, rtol=1e-3)


# ---- ropes ----


@pytest.mark.slow
@settings(max_examples=12 * TIMES)
@given(
    base=st.sampled_from([10000.0, 500000.0, 1000000.0, 100.0, 34567.0, 250000.5, 9999.0]),
    pairing=st.sampled_from(["interleaved", "half"]),
    out_pairing=st.sampled_from(["interleaved", "half"]),
    start=st.integers(0, 12),
    width=st.integers(2, 16),
    factor=st.sampled_from([1.0, 1.2, 0.7071, 1.138629]),
    inverse=st.booleans(),
    dtype=st.sampled_from(["float32", "float64"]),
    step=st.sampled_from([1, 2]),
    seed=st.integers(0, 99),
)
def test_random_ropes(base, pairing, out_pairing, start, width, factor, inverse, dtype, step, seed):
    width = min(2 * width, 32 - start - start % 2)
    assume(width >= 6)
    pairings = {"pairing": pairing, "out_pairing": out_pairing}
    fields = {"base": base, "rotary_start": start, "rotary_dim": width, "attention_factor": factor}
    pos = step * np.arange(ROWS)
    x = features(2, ROWS, 32, dtype=dtype, seed=seed)
    y = apply_definition(x, pos, inverse=inverse, **pairings, **fields).astype(dtype)
    explanation = only(diagnose(x, y, pos), x, y, pos)
    rope = explanation.rope
    assert (explanation.inverse, explanation.direction) == (inverse, -1 if inverse else 1)
    assert math.isclose(rope.base, base, rel_tol=1e-6)
    assert (rope.rotary_start, rope.rotary_dim) == (start, width)
    # The inverse reads the pairing that the rotation writes, and divides by its factor.
    read, written = (out_pairing, pairing) if inverse else (pairing, out_pairing)
    assert (rope.pairing, rope.out_pairing or rope.pairing) == (read, written)
    assert math.isclose(rope.amplitude, 1 / factor if inverse else factor, rel_tol=1e-6)


FAR = [10**8 + i for i in range(64)]
BEYOND_FLOAT64 = [2**60 + i for i in range(64)]
FLAT = np.stack(np.meshgrid(range(8), range(9), indexing="ij"), -1).reshape(-1, 2)
GRID = np.stack(np.meshgrid(range(3), range(5), range(7), indexing="ij"), -1).reshape(-1, 3)
MAPS = {
    "chunked": (GRID, ra.Axes.chunked(8, 12, 12)),
    "interleaved": (GRID, ra.Axes.interleaved(12, 10, 10)),
    "alternating": (GRID, ra.Axes.alternating(8, 12, 12)),
    "axial": (GRID, ra.Axes.axial(16, 24, 24)),
    "axial of two": (FLAT, ra.Axes.axial(32, 32)),
    "axial in another order": (FLAT, ra.Axes.axial(32, 32, order=(1, 0))),
    "blocks": (FLAT, ra.Axes.axial(32, 32, blocks=True)),
    "even and odd": (FLAT, ra.Axes.even_odd(64)),
    "no known map": (FLAT, ra.Axes(np.random.default_rng(1).integers(0, 2, 32).tolist(), count=2)),
}
LLAMA3, WIDE = (ra.RoPE(d, base=500000.0, pairing="half", scaling=ra.Llama3()) for d in (64, 128))
AXIAL = ra.RoPE(64, base=100.0, pairing="half", axes=ra.Axes.axial(32, 32), scaling=ra.Periods())
YARN, EVERY_THIRD = ra.YaRN(32.0, 4096, truncate=False), 3 * np.arange(256)
# A rope, positions, and the leading axes of x, in float32 unless another dtype is given.
FOUND = {
    "float16 interleaved": (ra.RoPE(32, base=500000.0), range(64), (2, 4), "float16"),
    "bfloat16 half": (ra.RoPE(32, base=500000.0, pairing="half"), range(64), (2, 4), "bfloat16"),
    "far rows": (ra.RoPE(32, base=500000.0, pairing="half"), [0, 1000, 3000, 5000, 70000], (3,)),
    "repeated": (ra.RoPE(32, base=500000.0, pairing="half"), [3, 3, 8, 100, 2], (3,)),
    "fractions": (ra.RoPE(32, base=500000.0, pairing="half"), np.linspace(0, 9, 40), (3,)),
    # Fast pairs make many turns between positions; their frequencies follow from the slow pairs.
    "wide steps": (ra.RoPE(64, base=1234567.0, pairing="half"), 3001 * np.arange(64), (2,), "float64"),
    "exact angles": (ra.RoPE(32, pairing="half"), 3001 * np.arange(64), (2,)),
    "float32 angles": (ra.RoPE(32, pairing="half", angles="float32"), 3001 * np.arange(64), (2,)),
    "10^8": (ra.RoPE(32), FAR, (2,)),
    "10^8, float32 angles": (ra.RoPE(32, base=500000.0, angles="float32"), FAR, (2,)),
    # Half pairs show the width by the distance of their members; interleaved pairs hide it and the base.
    "pairs below noise": (ra.RoPE(64, pairing="half", rotary_dim=32, base=1e11), range(8), (16,), "float16"),
    **{f"slice of {width}": (ra.RoPE(32, rotary_dim=width), range(ROWS), (2,)) for width in (6, 8, 12)},
    # Errors of float32 arithmetic are alike in all heads, so that their mean does not vanish.
    "many heads": (LLAMA3, range(128), (1, 32)),
    "linear": (ra.RoPE(64, pairing="half", scaling=ra.Linear(4.0)), EVERY_THIRD, (2,)),
    "proportional": (ra.RoPE(64, base=1e6, pairing="half", scaling=ra.Proportional(0.25)), EVERY_THIRD, (2,)),
    "llama3": (LLAMA3, EVERY_THIRD, (2,)),
    "llama3 by 32": (ra.RoPE(64, base=5e5, pairing="half", scaling=ra.Llama3(32.0)), EVERY_THIRD, (2,)),
    "yarn": (ra.RoPE(64, pairing="half", scaling=ra.YaRN(16.0, 4096)), EVERY_THIRD, (2,)),
    "yarn, not truncated": (ra.RoPE(64, base=1.5e5, pairing="half", scaling=YARN), EVERY_THIRD, (2,)),
    "periods": (AXIAL, (2 * FLAT + 1) / np.array([8, 9]) - 1, (2, 2)),
    **{
        name: (ra.RoPE(64, base=12345.0, pairing="half", axes=axes), pos, (2, 2), "float64")
        for name, (pos, axes) in MAPS.items()
    },
    "large": (WIDE, range(2048), (1, 2)),
    "large bfloat16": (WIDE, range(2048), (1, 2), "bfloat16"),
}  # fmt: skip


@pytest.mark.parametrize("name", FOUND)
def test_the_only_rope_is_found(name):
    rope, pos, lead, dtype = (*FOUND[name], "float32")[:4]
    x = features(*lead, len(pos), rope.head_dim, dtype=dtype)
    y = rope.apply(x, pos)
    x.flags.writeable = y.flags.writeable = False
    explanation = only(diagnose(x, y, pos), x, y, pos, {"float32": 2e-6, "float64": 1e-12}.get(dtype, 0.02))
    assert (explanation.rope, explanation.inverse) == (rope, False)
    assert rope.axes is None or f"ra.{rope.axes!r}" in explanation.code


def test_one_position_per_row_and_one_row():
    x = features(1, ROWS, 16)
    y = apply_definition(x, range(ROWS), pairing="half").astype("float32")
    assert diagnose(x[0], y[0], range(ROWS)).rope == ra.RoPE(16, pairing="half")
    assert diagnose(x[:, 7:8], y[:, 7:8], 7).rope == ra.RoPE(16, pairing="half")


def test_positions_of_each_sequence_and_another_axis():
    pos = np.arange(10) + np.array([[0], [40]])
    x = features(2, 10, 3, 16)
    y = apply_definition(x, pos, pairing="half", seq_axis=-3).astype("float32")
    diagnosis = diagnose(x, y, pos, seq_axis=-3)
    assert diagnosis.rope == ra.RoPE(16, pairing="half")
    assert only(diagnosis, x, y, pos).seq_axis == -3


# Outputs in whose last bits an estimate of each pair, or one of many rules, fits a part of the noise.
FITS_NOISE = {
    "float32": (61, (1, 1, 8, 256), "float32", 1e4),
    "float16": (3, (1, 1, 8, 256), "float16", 1e4),
    "bfloat16, more rows": (7, (2, 32, 256), "bfloat16", 1e4),
    "bfloat16, many rules": (1, (2, 5, 128), "bfloat16", 5e5),
}


@pytest.mark.parametrize(("seed", "shape", "dtype", "base"), FITS_NOISE.values(), ids=FITS_NOISE)
def test_a_base_is_preferred_to_numbers_that_fit_the_noise(seed, shape, dtype, base):
    x, pos = features(*shape, dtype=dtype, seed=seed), range(shape[-2])
    y = half(x, *(cast(table, dtype) for table in tables(pos, shape[-1], base)))
    ropes = [explanation.rope for explanation in diagnose(x, y, pos).explanations]
    assert ra.RoPE(shape[-1], base=base, **HALF) in ropes
    assert not any(rope.inv_freq for rope in ropes)


def test_a_base_is_preferred_to_an_estimate_of_its_own_output():
    x, rope = features(1, 1, 8, 256, seed=96), ra.RoPE(256)
    assert diagnose(x, rope.apply(x, range(8)), range(8)).rope == rope


SERIES = 10000.0 ** (-np.arange(32) / 32)
# Fields of a rope, and a note that names them otherwise.
NOTED = {
    "exponents over head_dim": (
        {"rotary_dim": 16, "inv_freq": tuple((10000.0 ** (-np.arange(0, 16, 2) / 64)).tolist())},
        "base 10000 with exponents over head_dim",
    ),
    "ntk": ({"scaling": ra.NTKAware(4.0)}, "NTKAware(factor=4)"),
    "linspace": ({"inv_freq": tuple((10000.0 ** -np.linspace(0, 1, 32)).tolist())}, "linspace(0, 1, 32)"),
    "one pair": (
        {"inv_freq": tuple(np.where(np.arange(32) == 5, 0.2, SERIES).tolist())},
        "pair 5 of 32 has 0.2, base 10000 gives 0.23714",
    ),
    "other frequencies": ({"inv_freq": tuple(np.linspace(0.01, 1, 32)[::-1].tolist())}, "no rule"),
}


@pytest.mark.parametrize("name", NOTED)
def test_frequencies_have_a_note(name):
    fields, note = NOTED[name]
    rope, x = ra.RoPE(64, pairing="half", **fields), features(3, ROWS, 64)
    y = rope.apply(x, range(ROWS))
    explanation = only(diagnose(x, y, range(ROWS)), x, y, range(ROWS))
    assert np.allclose(explanation.rope.frequencies, rope.frequencies, atol=1e-8)
    assert any(note in text for text in explanation.notes)
    assert diagnose(x, y, range(ROWS), candidates=[rope]).rope == rope


@pytest.mark.parametrize("width", [8, 16])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_yarn_with_few_pairs(width, dtype):
    """YaRN may scale the frequencies of all pairs but the first."""
    for base in (10000.0, 500000.0, 1000000.0)[: None if NIGHTLY else 1]:
        rope = ra.RoPE(16, base=base, rotary_dim=width, scaling=ra.YaRN(4.0, 4096))
        x = features(2, 64, 16, dtype=dtype)
        [explanation] = diagnose(x, rope.apply(x, range(64)), range(64)).explanations
        assert np.allclose(explanation.rope.frequencies, rope.frequencies, rtol=1e-12, atol=0.0)
        assert (explanation.rope.base, explanation.rope.scaling.factor) == (base, 4.0)
        assert "4096" in f"{explanation.rope.scaling.original_max_position_embeddings:g} {explanation.notes}"


@pytest.mark.parametrize("seed", range(8 if NIGHTLY else 1))
def test_estimates_of_float64_outputs(seed):
    rng = np.random.default_rng(seed)
    omegas = tuple(np.sort(rng.uniform(0, 1, 8) ** 2)[::-1].tolist())
    rope = ra.RoPE(16, inv_freq=omegas, attention_factor=float(rng.uniform(0.5, 2)))
    x = features(2, 64, 16, dtype="float64", seed=seed)
    y = rope.apply(x, range(64))
    explanation = only(diagnose(x, y, range(64)), x, y, range(64), 1e-14)
    assert np.allclose(explanation.rope.frequencies, omegas, rtol=0.0, atol=1e-15)


@pytest.mark.parametrize(
    "fields",
    [
        {"base": 500000.0},
        {"scaling": ra.Llama3()},
        {"scaling": ra.YaRN(4.0, 8192), "pairing": "half"},
        {"pairing": "half", "out_pairing": "interleaved", "attention_factor": 1.25},
        {"inv_freq": tuple(np.linspace(1, 0.01, 16).tolist())},
    ],
)
def test_the_rope_of_an_inverse_rotation_rotates_backwards(fields):
    """-φ: features (a, b) become (a cos φ + b sin φ, b cos φ - a sin φ)."""
    x = features(2, 4, 64, 32, dtype="float64")
    y = ra.RoPE(32, **fields).apply(x, range(64), inverse=True)
    diagnosis = diagnose(x, y, range(64))
    assert abs(diagnosis.rope.apply(x, range(64)) - y).max() < 1e-11
    assert max(diagnosis.rope.frequencies) < 0
    assert "rotates by -φ" in str(diagnosis)


def test_the_rope_of_an_inverse_rotation_by_float32_angles():
    x = features(2, 64, 32)
    diagnosis = diagnose(x, ra.RoPE(32, angles="float32").apply(x, FAR, inverse=True), FAR)
    assert diagnosis.rope == ra.RoPE(32, angles="float32", scaling=ra.Reversed())
    assert diagnosis.explanations[0].inverse


# ---- candidates ----

LONG_RULE = ra.LongRoPE([1.5] * 16, [*np.linspace(1, 9, 16) ** 2], 4096, factor=8.0, length=5000)
LONG = ra.RoPE(32, scaling=LONG_RULE, pairing="half")
SEVENS = ra.LongRoPE([1.5] * 16, [7.0] * 16, 4096, factor=8.0, length=5000)  # the frequencies of Linear(7)
LLAMA = {"model_type": "llama", "hidden_size": 64, "num_attention_heads": 2, "rope_theta": 77777.0}
ROWS_64, ROWS_2, OF_LLAMA = features(2, 64, 32), features(2, 32, dtype="float16"), ra.RoPE.from_config(LLAMA)
# A rope, x, candidates.
CANDIDATES = {
    "a rule": (LONG, ROWS_64, [ra.RoPE(32), LONG_RULE]),
    "a rope": (LONG, ROWS_64, [ra.RoPE(32), LONG]),
    "another name of a rule": (ra.RoPE(32, scaling=SEVENS), ROWS_64, [SEVENS]),
    "a config": (OF_LLAMA, ROWS_2, LLAMA),
    "configs": (OF_LLAMA, ROWS_2, [{**LLAMA, "rope_theta": 88888.0}, LLAMA]),
    "a limit of positions": (LONG, ROWS_64, [dataclasses.replace(LONG, max_position=10)]),
}


@pytest.mark.parametrize("name", CANDIDATES)
def test_candidates_are_tried(name):
    rope, x, candidates = CANDIDATES[name]
    pos = range(x.shape[-2])
    y = rope.apply(x, pos)
    assert diagnose(x, y, pos).rope != rope
    assert diagnose(x, y, pos, candidates=candidates).rope == rope


def test_candidates_of_other_positions_are_left_out():
    x, three = features(2, 64, 32), ra.RoPE(32, axes=ra.Axes.chunked(4, 6, 6))
    for rope, pos in ((ra.RoPE(32), FLAT[:64, 0]), (ra.RoPE(32, axes=ra.Axes.axial(16, 16)), FLAT[:64])):
        assert diagnose(x, rope.apply(x, pos), pos, candidates=[three]).rope == rope


def test_a_much_worse_fit_is_no_explanation():
    """All three ropes fit within the tolerance, but two have much larger errors."""
    x, tolerance = features(2, 64, 32, dtype="float64"), 1e-2
    y = apply_definition(x, range(64))
    right, close, loose = (ra.RoPE(32, base=base) for base in (10000.0, 10000.01, 10040.0))
    size = np.repeat(np.hypot(y[..., ::2], y[..., 1::2]), 2, -1)
    assert (abs(loose.apply(x, range(64)) - y) < tolerance * size).all()
    assert diagnose(x, y, range(64), candidates=[loose, close], tolerance=tolerance).rope == right


def test_an_inverse_undoes_an_amplitude_in_place_of_the_rules():
    rope = ra.RoPE(32, scaling=ra.YaRN(4.0, 8192), attention_factor=1.0)
    x = features(2, 4, 64, 32)
    y = rope.apply(x, range(64), inverse=True)
    reversed_rope = diagnose(x, y, range(64), candidates=[rope]).rope
    assert reversed_rope.amplitude == 1.0
    assert abs(reversed_rope.apply(x, range(64)) - y).max() < 1e-5


def test_positions_beyond_float64_integers():
    rules = [ra.LongRoPE([1.5] * n, [2.0] * n, 4096, factor=8.0, length=9) for n in (8, 16)]
    x = features(2, 64, 32)
    for rope in (ra.RoPE(32, scaling=rules[1]), ra.RoPE(32, base=500000.0)):
        y = rope.apply(x.astype("float64"), BEYOND_FLOAT64).astype("float32")
        assert diagnose(x, y, BEYOND_FLOAT64, candidates=rules).rope == rope


# ---- tolerances and few tokens ----

ROPES = {
    "default": ra.RoPE(64),
    "partial": ra.RoPE(64, base=500000.0, rotary_dim=32, pairing="half"),
    "llama3 reversed": ra.RoPE(64, base=500000.0, pairing="half", scaling=ra.Reversed(ra.Llama3())),
    "yarn": ra.RoPE(64, base=1000000.0, pairing="half", scaling=ra.YaRN(4.0, 32768)),
    "amplitude": ra.RoPE(64, base=1000000.0, attention_factor=1.25),
    "llama3": LLAMA3,
    "base": ra.RoPE(64, base=34567.0, pairing="half"),
    "slice": ra.RoPE(64, rotary_dim=32, rotary_start=16),
    "out pairing": ra.RoPE(64, base=500000.0, pairing="half", out_pairing="interleaved"),
    "linear": ra.RoPE(64, scaling=ra.Linear(4.0)),
    "ntk": ra.RoPE(64, scaling=ra.NTKAware(4.0)),
    "dynamic": ra.RoPE(64, pairing="half", scaling=ra.DynamicNTK(2.0, 4096, length=8192)),
    "proportional": ra.RoPE(64, base=1000000.0, pairing="half", scaling=ra.Proportional(0.25)),
}
_UNIT = {"bfloat16": 2.0**-7, "float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10}


@pytest.mark.slow
@pytest.mark.parametrize("name", [*ROPES] if NIGHTLY else [*ROPES][1::2])
@pytest.mark.parametrize("dtype", [*_UNIT] if NIGHTLY else ["bfloat16"])
def test_what_is_found_at_a_tolerance_is_found_at_larger_tolerances(name, dtype):
    rope, pos, unit = ROPES[name], range(3, 67), _UNIT[dtype]
    x = cast(features(1, 4, 64, 64, dtype="float64"), dtype)
    y = rope.apply(x, pos)
    previous = None
    for tolerance in (unit / 4, 2 * unit, 64 * unit, 0.25) if NIGHTLY else (2 * unit, 0.25):
        diagnosis = diagnose(x, y, pos, tolerance=tolerance)
        assert all(e.residual <= tolerance for e in diagnosis.explanations)
        assert previous is None or diagnosis.rope == previous
        previous = diagnosis.rope
    assert previous is not None or (diagnosis.reason and dtype in ("float16", "bfloat16")), diagnosis
    assert previous is None or close_to(previous, rope), (previous, rope)


@pytest.mark.parametrize("name", [*ROPES][:6])
def test_64_tokens_in_bfloat16_are_enough(name):
    x = features(1, 8, 64, 64, dtype="bfloat16")
    rope = diagnose(x, ROPES[name].apply(x, range(64)), range(64)).rope
    assert close_to(rope, ROPES[name])
    assert rope.base == ROPES[name].base


def test_rounded_tables_in_bfloat16_are_noise():
    """Hugging Face's models in bfloat16 round cos, sin, both products and their sum."""

    def cut(array):
        return cast(array).astype("float64")

    x = cut(features(1, 8, 64, 128, dtype="float64"))
    angles = np.arange(64)[:, None] * np.array(WIDE.frequencies)
    cos, sin = cut(np.cos(angles)), cut(np.sin(angles))
    a, b = np.split(x, 2, -1)
    y = np.concatenate([cut(a * cos) - cut(b * sin), cut(b * cos) + cut(a * sin)], -1)
    assert diagnose(cast(x), cast(y), range(64)).rope == WIDE


def test_an_output_of_a_narrower_precision_needs_a_tolerance():
    x = features(1, 8, 64, 64)
    y = cast(LLAMA3.apply(x, range(64))).astype("float32")
    for tolerance in (0.02, 0.1):
        assert diagnose(x, y, range(64), tolerance=tolerance).rope == LLAMA3
    diagnosis = diagnose(x, y, range(64))
    assert not diagnosis.explanations
    assert "give tolerance=" in diagnosis.reason
    assert "Llama3" in diagnosis.nearest[0].code


@pytest.mark.parametrize("tokens", [2, pytest.param(4, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("name", [*ROPES] if NIGHTLY else [*ROPES][::2])
def test_too_few_tokens_give_advice_or_the_right_rope(name, tokens):
    rope, x = ROPES[name], features(1, 1, tokens, 64, dtype="bfloat16")
    y = rope.apply(x, range(tokens))
    diagnosis = diagnose(x, y, range(tokens))
    assert close_to(diagnosis.rope, rope) if diagnosis.rope else "candidates" in diagnosis.reason
    assert diagnose(x, y, range(tokens), candidates=[rope]).rope == rope


def test_an_imprecise_base_is_not_given():
    x = features(1, 1, 16, 8, dtype="bfloat16")
    y = cast(apply_definition(x.astype("float64"), range(16), base=12345.0))
    diagnosis = diagnose(x, y, range(16))
    assert diagnosis.rope is None
    assert "float32" in diagnosis.reason


def test_an_interleaved_slice_with_hidden_pairs_is_not_certain():
    """The pairs that rotate by more than the noise fit a wider slice with a larger base too."""
    for seed in range(4):
        x = features(1, 16, 32, seed=seed)
        y = cast(ra.apply(x, range(100, 116), rotary_dim=24, base=500000.0)).astype("float32")
        rope = diagnose(x, y, range(100, 116), tolerance=0.03).rope
        assert rope is None or (rope.rotary_dim, rope.base) == (24, 500000.0)


# ---- mistakes ----


def mistaken(x, y, pos, words, **fields):
    """Return the only explanation; check its mistake, its code, and fields of it or of its rope."""
    diagnosis = diagnose(x, y, pos)
    assert len(diagnosis.explanations) == 1, diagnosis
    [explanation] = diagnosis.explanations
    assert words in explanation.mistake
    assert diagnosis.rope is None
    assert words in str(diagnosis)
    for name, value in fields.items():
        assert getattr(explanation if hasattr(explanation, name) else explanation.rope, name) == value
    if explanation.code.startswith("ra.apply"):
        assert abs(run_code(explanation, x, pos) - y).max() < 1e-5


def by(pos):
    """Return a rotation of half pairs by positions that `diagnose` is not given."""
    return lambda x: half(x, *tables(pos, 32, 10000.0))


def by_columns(columns, swapped):
    """Return a rotation by tables in the order of one pairing, of features paired by the other."""
    cos, sin = (columns(t) for t in tables(N, 32, 10000.0))
    return lambda x: (x * cos + swapped(x) * sin).astype("float32")


def one_sign_of_a_slice(x):
    cos, sin = tables(N, 16, 10000.0)
    return np.concatenate([half(x[..., :16], 1.5 * cos, 1.5 * sin, (1, 1)), x[..., 16:]], -1)


N, MANY = np.arange(64), np.arange(2048)
COS, SIN = tables(N, 32, 10000.0)
PADDED = np.maximum(N - np.array([[0], [9]]), 0)  # on the left
# V-JEPA 2 rotates interleaved pairs by cos and sin that are repeated for half pairs.
VJEPA2 = by_columns(
    lambda t: np.concatenate([t, t], -1),
    lambda x: np.stack([-x[..., 1::2], x[..., ::2]], -1).reshape(x.shape),
)
REPEATED = by_columns(
    lambda t: np.repeat(t, 2, -1), lambda x: np.concatenate([-x[..., 16:], x[..., :16]], -1)
)
# A rotation of x, words of the mistake, fields, and positions and shapes other than of 64 rows.
MISTAKES = [
    (by(N + 1), "off by 1", {"base": 10000.0, **HALF}),
    # Rounding to float32 can change the fast angles by any amount there, but not explain every residual.
    (lambda x: ra.apply(x, [p + 1 for p in FAR]), "off by 1", {"rope": ra.RoPE(32)}, FAR, (2, 64, 32)),
    (by(N - 7), "off by -7", HALF),
    (by(-(N + 3)), "off by 3", {"inverse": True}),
    (by(np.arange(4)[:, None]), "along axis -3", {"seq_axis": -3}, range(16), (6, 4, 16, 32)),
    (by(np.arange(6)[:, None, None]), "along axis -4", {"seq_axis": -4}, range(16), (6, 4, 16, 32)),
    (by(N), "counted from 0", HALF, PADDED),
    (by(17), "of position 17", {"code": "ra.apply(x, 17, pairing='half')"}),
    (by(np.where(N < 40, N, 0)), "from 40 on are not rotated", HALF),
    (by(np.where(N < 63, N, 0)), "from 63 on are not rotated", HALF),
    (lambda x: ra.apply(x, np.where(N < 40, N, 0), attention_factor=1.25), "from 40 on are not rotated", {}),
    (by(np.minimum(N, 40)), "past 40 are rotated as 40", HALF),
    (by(np.where(MANY < 2040, MANY, 0)), "from 2040 on are not rotated", HALF, MANY, (1, 1, 2048, 32)),
    (by(np.minimum(MANY, 2040)), "past 2040 are rotated as 2040", HALF, MANY, (1, 1, 2048, 32)),
    (lambda x: half(half(x, COS, SIN), COS, SIN), "twice", {"scaling": ra.Linear(0.5)}),
    (lambda x: half(x, COS, SIN, (1, 1)), "same sign", {"direction": 1, **HALF}),
    (lambda x: half(x, COS, SIN, (-1, -1)), "same sign", {"direction": -1, **HALF}),
    (one_sign_of_a_slice, "same sign", {"rotary_dim": 16, "attention_factor": 1.5, **HALF}),
    (by(np.r_[5:69]), "the row before plus 1 after a restart", HALF, np.r_[5:45, :24]),
    (np.copy, "nothing was rotated", {"rotary_dim": 0, "code": "x"}),
    (VJEPA2, "features pair interleaved", {"pairing": "interleaved"}),
    (REPEATED, "features pair half", HALF),
]


@pytest.mark.parametrize("case", MISTAKES, ids=lambda case: case[1])
def test_mistakes_are_named(case):
    rotate, words, fields, pos, shape = (*case, *(N, (2, 2, 64, 32))[len(case) - 3 :])
    x = features(*shape)
    mistaken(x, rotate(x), pos, words, **fields)


@pytest.mark.parametrize(
    ("factor", "dtype"), [(2.0, "float32"), (0.3, "float16"), (-1.0, "float64"), (0.0, "float32")]
)
def test_only_a_factor(factor, dtype):
    x = features(2, 4, 64, 32, dtype=dtype)
    mistaken(x, (factor * x).astype(dtype), N, f"not rotated, scaled by {factor:g}", code=f"{factor!r} * x")


@pytest.mark.parametrize("dtype", ["bfloat16", pytest.param("float16", marks=pytest.mark.nightly)])
@pytest.mark.parametrize("quantity", ["angles", "positions", "frequencies", "cos and sin", "cos", "sin"])
def test_numbers_of_16_bits(dtype, quantity):
    pos, omegas = np.arange(4000, 4256)[:, None].astype(float), 10000.0 ** (-np.arange(0, 32, 2) / 32)

    def narrow(array, *of):
        return cast(array, dtype).astype(float) if quantity in of else array

    angles = narrow(narrow(pos, "angles", "positions") * narrow(omegas, "angles", "frequencies"), "angles")
    x = features(1, 2, 256, 32)
    cos, sin = narrow(np.cos(angles), "cos", "cos and sin"), narrow(np.sin(angles), "sin", "cos and sin")
    verb = "is" if quantity in ("cos", "sin") else "are"
    mistaken(x, half(x, cos, sin), np.arange(4000, 4256), f"{quantity} {verb} {dtype}", pairing="half")


# ---- ambiguous data ----

ZEROS, PAIR, TURN = features(2, 8, 32), features(2, 8, 2), features(4, 1, 8, dtype="float64")
FEW, ONE = features(2, 2, 4).astype("float16"), features(1, 4, 1, 32)
EQUAL, SHORT = features(1, 2, 40, 64), features(2, 5, 64).astype("float16")
EQUAL_POS = np.repeat(np.arange(40)[:, None], 3, 1)
CHUNKED = ra.Axes.chunked(8, 12, 12)
ONES, STILL = np.ones((3, 6, 4), "float64"), ra.RoPE(4, inv_freq=(0.0, 0.0), attention_factor=2.0)
PI = ra.RoPE(8, inv_freq=(math.pi,) * 4)
PIS = [PI, dataclasses.replace(PI, pairing="half")]
SLICE = {"rotary_dim": 32, "base": 500000.0}


def values(diagnosis, name):
    """Return the values of a field of all explanations that have a rope."""
    return {getattr(e.rope, name) for e in diagnosis.explanations if e.rope}


# x, y, positions, candidates; a property of the diagnosis; words of the reason.
AMBIGUOUS = {
    "positions 0 and a factor": ((ZEROS, 2 * ZEROS, [0] * 8), lambda d: values(d, "amplitude") == {2.0},
                                 ["all positions are 0"]),
    "x is 0": ((0 * ZEROS, 0 * ZEROS, range(8)), lambda d: True, ["all of x is 0"]),
    "one pair": ((PAIR, ra.apply(PAIR, range(8)), range(8)), lambda d: len(values(d, "pairing")) == 2,
                 ["2 features is one pair"]),
    "half a turn": ((TURN, -TURN, [1], PIS),
                    lambda d: len({(e.rope.pairing, e.inverse) for e in d.explanations}) == 4,
                    ["+φ and -φ", "pairings"]),
    "one position": ((ONE, ra.apply(ONE, [4]), [5]),
                     lambda d: any("off by -1" in e.mistake for e in d.explanations)
                     and any(isinstance(rule, ra.Linear) for rule in values(d, "scaling")), ["positions"]),
    "few pairs": ((FEW, ra.apply(FEW, range(2), base=1e9), range(2)),
                  lambda d: {1e8, 1e9, 1e11} <= values(d, "base"), ["do not distinguish bases"]),
    "coordinates": ((EQUAL, ra.apply(EQUAL, EQUAL_POS, axes=CHUNKED, pairing="half"), EQUAL_POS),
                    lambda d: {CHUNKED, ra.Axes.alternating(8, 12, 12), ra.Axes.interleaved(12, 10, 10)}
                    <= values(d, "axes"), ["coordinates are equal"]),
    # With equal features and frequencies, pairings differ only in the order of the results.
    "symmetric": ((ONES, STILL.apply(ONES, N[:6]), N[:6], [STILL, ra.RoPE(4, attention_factor=2.0)]),
                  lambda d: STILL in [e.rope for e in d.explanations], []),
    "rules": ((SHORT, ra.apply(SHORT, 3 * np.arange(5), **SLICE), 3 * np.arange(5)),
              lambda d: ra.RoPE(64, **SLICE) in [e.rope for e in d.explanations],
              ["too little to distinguish rules", "more and later positions", "candidates"]),
}  # fmt: skip


@pytest.mark.parametrize("name", AMBIGUOUS)
def test_several_explanations_have_a_reason(name):
    (x, y, pos, *candidates), holds, words = AMBIGUOUS[name]
    diagnosis = diagnose(x, y, pos, candidates=candidates[0] if candidates else ())
    assert diagnosis.ambiguous
    assert diagnosis.rope is None
    assert holds(diagnosis)
    assert all(word in diagnosis.reason for word in words)


# ---- no explanation ----


def test_no_explanation():
    x = features(2, 4, 64, 32)
    for y in (x[..., ::-1].copy(), x + 1, features(2, 4, 64, 32, seed=5)):
        diagnosis = diagnose(x, y, range(64))
        assert (diagnosis.explanations, diagnosis.rope, diagnosis.ambiguous) == ((), None, False)
        assert diagnosis.nearest
        assert "candidates" in diagnosis.reason
        assert str(diagnosis).startswith("no rotation that was tried")
    assert diagnosis == diagnose(x, y, range(64))


def test_wide_and_irregular_positions_are_named():
    """Their smallest gap is no step."""
    steps = {"positions have a step of 2.5": np.arange(24) * 2.5}
    steps["positions are 2"] = np.arange(24) * 3 + np.sin(np.arange(24))
    rope, x = ra.RoPE(8, inv_freq=(0.61, 0.27, 0.13, 0.021)), features(24, 8)
    for words, pos in steps.items():
        (note,) = [n for n in diagnose(x, rope.apply(x, pos), pos).explanations[0].notes if "π" in n]
        assert note.startswith(words)
    x, y = features(24, 32), features(24, 32, seed=5)
    assert "positions are 20 apart or more" in diagnose(x, y, range(0, 480, 20)).reason


def test_one_wrong_element_is_found():
    x = features(2, 4, 64, 32)
    y = ra.apply(x, range(64), pairing="half")
    y[1, 2, 50, 3] += 1e-3
    assert not diagnose(x, y, range(64)).explanations
    assert diagnose(x, y, range(64), tolerance=0.1).rope == ra.RoPE(32, pairing="half")


def test_rejected_hypotheses_are_listed():
    x = features(2, 4, 64, 32)
    diagnosis = diagnose(x, ra.apply(x, range(64), pairing="half", base=500000.0), range(64))
    assert {e.code for e in diagnosis.nearest} >= {
        "ra.apply(x, pos, base=500000.0)",
        "ra.apply(x, pos, pairing='half')",
        "ra.apply(x, pos, base=500000.0, pairing='half', scaling=ra.Reversed())",
    }
    assert all(e.residual > 0.1 for e in diagnosis.nearest)


@pytest.mark.parametrize("pos", [FAR, BEYOND_FLOAT64])
def test_undecided_far_positions_are_reported(pos):
    """Frequencies that are rounded otherwise give other float32 angles."""

    def rounded_otherwise(x, pos):
        omegas = np.exp(np.arange(0, 32, 2, dtype="float32") * np.float32(-math.log(10000.0) / 32))
        angles = np.asarray(pos, "float32")[:, None] * omegas
        return half(x, np.cos(angles), np.sin(angles))

    x = features(2, 64, 32)
    diagnosis = diagnose(x, rounded_otherwise(x, pos), pos)
    assert not diagnosis.explanations
    assert "float32" in diagnosis.reason
    assert "nearer positions" in diagnosis.reason
    rope = diagnose(x, rounded_otherwise(x, N), N).rope
    assert dataclasses.replace(rope, angles="exact") == ra.RoPE(32, pairing="half")


@pytest.mark.parametrize("start", [2**31 - 100, 2**60])
def test_far_rules_are_not_explained_by_a_misfit(start):
    pos, x = [start + i for i in range(64)], features(2, 64, 32)
    inv_freq = ra.RoPE(32, scaling=LONG_RULE).frequencies
    diagnosis = diagnose(x, ra.apply(x, pos, inv_freq=inv_freq), pos)
    assert all(e.residual < 2.0**-7 for e in diagnosis.explanations)


# ---- large arrays ----


def test_every_row_of_a_large_array_is_checked():
    x = features(1, 2, 2048, 32)
    y = ra.apply(x, range(2048), pairing="half")
    for head, row in ((0, 1111), (1, 2046)):
        wrong = y.copy()
        wrong[0, head, row] = x[0, head, row]
        diagnosis = diagnose(x, wrong, range(2048))
        assert not diagnosis.explanations
        assert diagnosis.nearest[0].residual > 0.1


# ---- arrays and errors ----


def test_every_library(lib, float_dtype):
    with lib.running():
        x = lib.asarray(features(2, 4, 32, 32), float_dtype)
        pos = lib.asarray(np.arange(32, dtype=np.int32))
        y = ra.apply(x, pos, base=500000.0, pairing="half")
        for positions in (pos, range(32)):
            assert diagnose(x, y, positions).rope == ra.RoPE(32, base=500000.0, pairing="half")


@pytest.mark.library("torch")
def test_tensors_that_need_gradients():
    import torch

    x = torch.randn(2, 32, 16, requires_grad=True)
    y = ra.apply(x, range(32))
    assert diagnose(x, y, torch.arange(32)).rope == ra.RoPE(16)


@pytest.mark.library("jax")
def test_jit_is_refused():
    import jax

    with pytest.raises(ArrayTypeError, match="outside of jit"):
        jax.jit(lambda x: diagnose(x, x, range(4)) and x)(np.ones((4, 8), "float32"))


def test_rows_that_are_not_finite_are_left_out():
    x = features(2, 64, 32)
    y = ra.apply(x, range(64))
    y[0, 3], x[1, 5, 2] = np.nan, np.inf
    diagnosis = diagnose(x, y, range(64))
    assert diagnosis.rope == ra.RoPE(32)
    assert "2 rows" in str(diagnosis)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("size", [1e300, 1e-300])
def test_features_of_any_size(size):
    x = features(2, 64, 16, dtype="float64") * size
    y, factor = ra.apply(x, range(64)), 1e-100 if size > 1 else 1e100
    assert diagnose(x, y, range(64)).rope == ra.RoPE(16)
    assert diagnose(x, y * factor, range(64)).rope.amplitude == factor
    assert not diagnose(x, x[..., ::-1].copy(), range(64)).explanations
    assert not diagnose(0 * x, x, range(64)).explanations


X = np.ones((4, 8), "float32")


@refusals("diagnose")
def test_errors(call, error, words):
    refused(error, words, lambda: eval(call))
