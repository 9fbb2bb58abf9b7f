"""`diagnose` finds rotations that formulas written here, or the suite's definition, computed."""

import dataclasses
import math

import numpy as np
import pytest
from conftest import TIMES
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import rope_array as ra
from rope_array import ArrayTypeError, PositionError, ShapeError, SpecError, diagnose
from rope_array.testing import apply_definition

ROWS = 48


def features(*shape, dtype="float32", seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def again(found, x, pos):
    """Run the code of an explanation and return its result."""
    return eval(found.code, {"ra": ra, "np": np, "x": x.astype("float64"), "pos": pos})


def only(diagnosis, x, y, pos, bound=1e-6):
    """Return the only explanation; check that its code gives y."""
    assert len(diagnosis.explanations) == 1, diagnosis
    [found] = diagnosis.explanations
    assert abs(again(found, x, pos) - y.astype("float64")).max() < bound * abs(y.astype("float64")).max()
    assert found.code in str(diagnosis)
    assert not diagnosis.reason
    return found


def tables(pos, width, base):
    angles = np.asarray(pos)[..., None] * float(base) ** (-np.arange(0, width, 2) / width)
    return np.cos(angles), np.sin(angles)


def half(x, cos, sin, signs=(-1, 1)):
    a, b = np.split(x, 2, -1)
    made = np.concatenate([a * cos + signs[0] * b * sin, b * cos + signs[1] * a * sin], -1)
    return made.astype(x.dtype)


# ---- plain rotations ----

BASES = [10000.0, 500000.0, 1000000.0, 100.0, 34567.0, 250000.5, 9999.0]


@pytest.mark.slow
@settings(max_examples=40 * TIMES)
@given(
    base=st.sampled_from(BASES),
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
    fields = {
        "base": base,
        "pairing": pairing,
        "out_pairing": out_pairing,
        "rotary_start": start,
        "rotary_dim": width,
        "attention_factor": factor,
    }
    pos = step * np.arange(ROWS)
    x = features(2, ROWS, 32, dtype=dtype, seed=seed)
    y = apply_definition(x, pos, inverse=inverse, **fields).astype(dtype)
    found = only(diagnose(x, y, pos), x, y, pos)
    rope = found.rope
    assert found.inverse == inverse
    assert found.direction == (-1 if inverse else 1)
    assert math.isclose(rope.base, base, rel_tol=1e-6)
    assert (rope.rotary_start, rope.rotary_dim) == (start, width)
    # The inverse reads the pairing that the rotation writes, and divides by its factor.
    read, written = (out_pairing, pairing) if inverse else (pairing, out_pairing)
    assert (rope.pairing, rope.out_pairing or rope.pairing) == (read, written)
    assert math.isclose(rope.amplitude, 1 / factor if inverse else factor, rel_tol=1e-6)


@pytest.mark.parametrize("pairing", ["interleaved", "half"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision(pairing, dtype):
    pytest.importorskip("ml_dtypes")
    x = features(2, 4, 64, 32).astype(dtype)
    y = apply_definition(x.astype("float64"), range(64), pairing=pairing, base=500000.0).astype(dtype)
    found = only(diagnose(x, y, range(64)), x, y, range(64), 0.01)
    assert (found.rope.pairing, found.rope.base) == (pairing, 500000.0)


@pytest.mark.parametrize("pos", [[0, 1000, 3000, 5000, 70000], [3, 3, 8, 100, 2], np.linspace(0, 9, 40)])
def test_positions_of_every_kind(pos):
    x = features(3, len(pos), 32)
    y = apply_definition(x, pos, base=500000.0, pairing="half").astype("float32")
    assert only(diagnose(x, y, pos), x, y, pos).rope == ra.RoPE(32, base=500000.0, pairing="half")


def test_an_unknown_base_with_wide_steps():
    """Fast pairs make many turns between positions; their frequencies follow from the slow pairs."""
    pos = 3001 * np.arange(64)
    x = features(2, 64, 64, dtype="float64")
    y = apply_definition(x, pos, base=1234567.0, pairing="half")
    assert diagnose(x, y, pos).rope == ra.RoPE(64, base=1234567.0, pairing="half")


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


def test_float32_angles_are_distinguished_from_exact_angles():
    pos = 3001 * np.arange(64)
    x = features(2, 64, 32)
    for angles in ("exact", "float32"):
        y = ra.apply(x, pos, pairing="half", angles=angles)
        assert diagnose(x, y, pos).rope == ra.RoPE(32, pairing="half", angles=angles)


def test_slices_whose_slow_pairs_are_below_rounding():
    """Half pairs show the width by the distance of their members; interleaved pairs hide it and the base."""
    x = features(16, 8, 64).astype("float16")
    y = ra.apply(x, range(8), pairing="half", rotary_dim=32, base=1e11)
    assert diagnose(x, y, range(8)).rope == ra.RoPE(64, pairing="half", rotary_dim=32, base=1e11)
    assert "less than the rounding" in str(diagnose(x, y, range(8)))


@pytest.mark.parametrize("width", [6, 8, 12])
def test_narrow_interleaved_slices_have_one_explanation(width):
    x = features(2, ROWS, 32)
    y = apply_definition(x, range(ROWS), rotary_dim=width).astype("float32")
    assert diagnose(x, y, range(ROWS)).rope == ra.RoPE(32, rotary_dim=width)


def test_rules_of_pairs_below_rounding_have_several_explanations():
    x = features(2, 5, 64).astype("float16")
    pos = 3 * np.arange(5)
    found = diagnose(x, ra.apply(x, pos, rotary_dim=32, base=500000.0), pos)
    assert ra.RoPE(64, rotary_dim=32, base=500000.0) in [e.rope for e in found.explanations]
    assert found.rope is None
    assert "too little to distinguish rules" in found.reason
    assert "more and later positions" in found.reason
    assert "candidates" in found.reason


def test_exponents_over_the_head_are_named():
    x = features(3, ROWS, 64)
    omegas = tuple((10000.0 ** (-np.arange(0, 16, 2) / 64)).tolist())
    y = ra.apply(x, range(ROWS), rotary_dim=16, inv_freq=omegas, pairing="half")
    found = only(diagnose(x, y, range(ROWS)), x, y, range(ROWS))
    assert math.isclose(found.rope.base, 10.0, rel_tol=1e-6)
    assert any("base 10000 with exponents over head_dim" in note for note in found.notes)


def test_ntk_is_named():
    x = features(3, ROWS, 64)
    y = ra.apply(x, range(ROWS), scaling=ra.NTKAware(4.0))
    found = only(diagnose(x, y, range(ROWS)), x, y, range(ROWS))
    assert any("NTKAware(factor=4)" in note for note in found.notes)


# ---- rules ----


@pytest.mark.parametrize(
    ("rule", "base"),
    [
        (ra.Linear(4.0), 10000.0),
        (ra.Proportional(0.25), 1000000.0),
        (ra.Llama3(factor=8.0), 500000.0),
        (ra.Llama3(factor=32.0), 500000.0),
        (ra.YaRN(16.0, 4096), 10000.0),
        (ra.YaRN(32.0, 4096, truncate=False), 150000.0),
    ],
)
def test_rules_that_are_found(rule, base):
    rope = ra.RoPE(64, base=base, scaling=rule, pairing="half")
    pos = 3 * np.arange(256)
    x = features(2, 256, 64)
    y = rope.apply(x, pos)
    assert only(diagnose(x, y, pos), x, y, pos).rope == rope


@pytest.mark.parametrize("base", [10000.0, 500000.0, 1000000.0])
@pytest.mark.parametrize("width", [8, 16])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_yarn_with_few_pairs(base, width, dtype):
    """YaRN may scale the frequencies of all pairs but the first."""
    rope = ra.RoPE(16, base=base, rotary_dim=width, scaling=ra.YaRN(4.0, 4096))
    x = features(2, 64, 16, dtype=dtype)
    diagnosis = diagnose(x, rope.apply(x, range(64)), range(64))
    [found] = diagnosis.explanations
    assert np.allclose(found.rope.frequencies, rope.frequencies, rtol=1e-12, atol=0.0)
    assert (found.rope.base, found.rope.scaling.factor) == (base, 4.0)
    contexts = f"{found.rope.scaling.original_max_position_embeddings:g} {found.notes}"
    assert "4096" in contexts


@pytest.mark.parametrize("seed", range(8))
def test_estimates_of_float64_outputs(seed):
    rng = np.random.default_rng(seed)
    omegas = tuple(np.sort(rng.uniform(0, 1, 8) ** 2)[::-1].tolist())
    rope = ra.RoPE(16, inv_freq=omegas, attention_factor=float(rng.uniform(0.5, 2)))
    x = features(2, 64, 16, dtype="float64", seed=seed)
    y = rope.apply(x, range(64))
    found = only(diagnose(x, y, range(64)), x, y, range(64), 1e-14)
    assert np.allclose(found.rope.frequencies, omegas, rtol=0.0, atol=1e-15)
    assert "no rule" in found.notes[0]


def test_other_frequencies_are_reported_or_recognized():
    omegas = tuple(np.linspace(0.01, 1, 16)[::-1].tolist())
    x = features(2, 64, 32)
    y = apply_definition(x, range(64), inv_freq=omegas).astype("float32")
    found = only(diagnose(x, y, range(64)), x, y, range(64))
    assert np.allclose(found.rope.frequencies, omegas, atol=1e-8)
    assert "no rule" in found.notes[0]
    rope = ra.RoPE(32, inv_freq=omegas)
    assert diagnose(x, y, range(64), candidates=[rope]).rope == rope


def test_candidates_are_tried():
    rule = ra.LongRoPE([1.5] * 16, [*np.linspace(1, 9, 16) ** 2], 4096, factor=8.0, length=5000)
    rope = ra.RoPE(32, scaling=rule, pairing="half")
    x = features(2, 64, 32)
    y = rope.apply(x, range(64))
    assert "no rule" in str(diagnose(x, y, range(64)))
    for candidate in (rule, rope):
        assert diagnose(x, y, range(64), candidates=[ra.RoPE(32), candidate]).rope == rope


def test_a_much_worse_fit_is_no_explanation():
    """All three ropes fit within the tolerance, but two have much larger errors."""
    x, tolerance = features(2, 64, 32, dtype="float64"), 1e-2
    y = apply_definition(x, range(64))
    right, close, loose = (ra.RoPE(32, base=base) for base in (10000.0, 10000.01, 10040.0))
    size = np.repeat(np.hypot(y[..., ::2], y[..., 1::2]), 2, -1)
    assert (abs(loose.apply(x, range(64)) - y) < tolerance * size).all()
    found = diagnose(x, y, range(64), candidates=[loose, close], tolerance=tolerance)
    assert found.rope == right


def test_two_names_of_the_same_frequencies_are_one_explanation():
    rule = ra.LongRoPE([1.5] * 16, [7.0] * 16, 4096, factor=8.0, length=5000)
    x = features(2, 64, 32)
    y = ra.apply(x, range(64), scaling=rule)
    assert diagnose(x, y, range(64)).rope.scaling == ra.Linear(7.0)
    for candidate in (rule, ra.RoPE(32, scaling=rule)):
        assert diagnose(x, y, range(64), candidates=[candidate]).rope.scaling == rule


def test_candidates_can_be_configs():
    config = {"model_type": "llama", "hidden_size": 64, "num_attention_heads": 2, "rope_theta": 77777.0}
    rope = ra.RoPE.from_config(config)
    x = features(1, 2, 32).astype("float16")
    y = rope.apply(x, range(2))
    assert diagnose(x, y, range(2)).rope is None
    for candidates in (config, [{**config, "rope_theta": 88888.0}, config]):
        assert diagnose(x, y, range(2), candidates=candidates).rope == rope


def test_a_candidate_that_fits_much_worse_is_not_returned():
    x = features(2, 64, 32)
    y = apply_definition(x, range(64)).astype("float32")
    close = ra.RoPE(32, base=10010.0)
    assert diagnose(x, y, range(64), candidates=[close], tolerance=0.1).rope == ra.RoPE(32)


# ---- a rope that is given reproduces the output ----


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
    rope = ra.RoPE(32, **fields)
    x = features(2, 4, 64, 32, dtype="float64")
    y = apply_definition(x, range(64), inverse=True, **definition_fields(rope))
    found = diagnose(x, y, range(64))
    assert abs(found.rope.apply(x, range(64)) - y).max() < 1e-11
    assert max(found.rope.frequencies) < 0
    assert "rotates by -φ" in str(found)


def definition_fields(rope):
    """Return fields of the suite's definition, which knows no rules."""
    layout = {"pairing": rope.pairing, "out_pairing": rope.out_pairing or rope.pairing}
    slices = {"rotary_dim": rope.rotary_dim, "rotary_start": rope.rotary_start}
    return {"inv_freq": rope.frequencies, "attention_factor": rope.amplitude, **layout, **slices}


ROPES = {
    "default": ra.RoPE(64),
    "base": ra.RoPE(64, base=34567.0, pairing="half"),
    "partial": ra.RoPE(64, base=500000.0, rotary_dim=32, pairing="half"),
    "slice": ra.RoPE(64, rotary_dim=32, rotary_start=16),
    "out pairing": ra.RoPE(64, base=500000.0, pairing="half", out_pairing="interleaved"),
    "linear": ra.RoPE(64, scaling=ra.Linear(4.0)),
    "ntk": ra.RoPE(64, scaling=ra.NTKAware(4.0)),
    "dynamic": ra.RoPE(64, pairing="half", scaling=ra.DynamicNTK(2.0, 4096, length=8192)),
    "llama3": ra.RoPE(64, base=500000.0, pairing="half", scaling=ra.Llama3()),
    "llama3 reversed": ra.RoPE(64, base=500000.0, pairing="half", scaling=ra.Reversed(ra.Llama3())),
    "yarn": ra.RoPE(64, base=1000000.0, pairing="half", scaling=ra.YaRN(4.0, 32768)),
    "proportional": ra.RoPE(64, base=1000000.0, pairing="half", scaling=ra.Proportional(0.25)),
    "amplitude": ra.RoPE(64, base=1000000.0, attention_factor=1.25),
}
_UNIT = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}


def close_to(found, rope):
    """Return whether frequencies agree to 0.1 %, and all else is equal."""
    same = [(r.pairing, r.out_pairing, r.rotary_dim, r.rotary_start) for r in (found, rope)]
    amplitudes = math.isclose(found.amplitude, rope.amplitude, rel_tol=1e-3)
    return same[0] == same[1] and amplitudes and np.allclose(found.frequencies, rope.frequencies, rtol=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("name", ROPES)
@pytest.mark.parametrize(
    "dtype",
    [
        *(pytest.param(name, marks=pytest.mark.nightly) for name in ("float64", "float16")),
        "float32",
        "bfloat16",
    ],
)
def test_what_is_found_at_a_tolerance_is_found_at_larger_tolerances(name, dtype):
    pytest.importorskip("ml_dtypes")
    rope, pos = ROPES[name], range(3, 67)
    x = features(2, 4, 64, 64, dtype="float64").astype(dtype)
    y = apply_definition(x.astype("float64"), pos, **definition_fields(rope)).astype(dtype)
    found = None
    for tolerance in (_UNIT[dtype] / 4, 2 * _UNIT[dtype], 64 * _UNIT[dtype], 0.25):
        diagnosis = diagnose(x, y, pos, tolerance=tolerance)
        assert all(e.residual <= tolerance for e in diagnosis.explanations)
        assert found is None or diagnosis.rope == found
        found = diagnosis.rope
    assert found is not None or (diagnosis.reason and dtype in ("float16", "bfloat16")), diagnosis
    assert found is None or close_to(found, rope), (found, rope)


@pytest.mark.parametrize("name", ["default", "llama3", "partial", "yarn", "amplitude", "llama3 reversed"])
def test_64_tokens_in_bfloat16_are_enough(name):
    pytest.importorskip("ml_dtypes")
    rope = ROPES[name]
    x = features(1, 8, 64, 64).astype("bfloat16")
    y = apply_definition(x.astype("float64"), range(64), **definition_fields(rope)).astype("bfloat16")
    found = diagnose(x, y, range(64)).rope
    assert close_to(found, rope)
    assert found.base == rope.base


def test_many_rows_do_not_make_rounding_visible():
    """Errors of float32 arithmetic are alike in all heads, so that their mean does not vanish."""
    x = features(1, 32, 128, 64)
    assert diagnose(x, ROPES["llama3"].apply(x, range(128)), range(128)).rope == ROPES["llama3"]


def test_an_inverse_undoes_an_amplitude_in_place_of_the_rules():
    rope = ra.RoPE(32, scaling=ra.YaRN(4.0, 8192), attention_factor=1.0)
    x = features(2, 4, 64, 32)
    y = rope.apply(x, range(64), inverse=True)
    found = diagnose(x, y, range(64), candidates=[rope]).rope
    assert found.amplitude == 1.0
    assert abs(found.apply(x, range(64)) - y).max() < 1e-5


def test_rounded_tables_in_bfloat16_are_noise():
    """Hugging Face's models in bfloat16 round cos, sin, both products and their sum."""
    ml_dtypes = pytest.importorskip("ml_dtypes")

    def cut(array):
        return array.astype(ml_dtypes.bfloat16).astype("float64")

    x = cut(features(1, 8, 64, 128, dtype="float64"))
    omegas = np.array(ra.RoPE(128, base=500000.0, scaling=ra.Llama3()).frequencies)
    angles = np.arange(64)[:, None] * omegas
    cos, sin = cut(np.cos(angles)), cut(np.sin(angles))
    a, b = np.split(x, 2, -1)
    y = np.concatenate([cut(a * cos) - cut(b * sin), cut(b * cos) + cut(a * sin)], -1)
    rope = ra.RoPE(128, base=500000.0, pairing="half", scaling=ra.Llama3())
    given = x.astype(ml_dtypes.bfloat16), y.astype(ml_dtypes.bfloat16)
    assert diagnose(*given, range(64)).rope == rope


@pytest.mark.parametrize("tolerance", [0.02, 0.1])
def test_an_output_of_a_narrower_precision_needs_a_tolerance(tolerance):
    pytest.importorskip("ml_dtypes")
    x = features(1, 8, 64, 64)
    rope = ROPES["llama3"]
    y = rope.apply(x, range(64)).astype("bfloat16").astype("float32")
    assert diagnose(x, y, range(64), tolerance=tolerance).rope == rope
    found = diagnose(x, y, range(64))
    assert not found.explanations
    assert "give tolerance=" in found.reason
    assert "Llama3" in found.nearest[0].code


@pytest.mark.parametrize("tokens", [2, pytest.param(4, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("name", ROPES)
def test_too_few_tokens_give_advice_or_the_right_rope(name, tokens):
    pytest.importorskip("ml_dtypes")
    rope = ROPES[name]
    x = features(1, 1, tokens, 64).astype("bfloat16")
    y = apply_definition(x.astype("float64"), range(tokens), **definition_fields(rope)).astype("bfloat16")
    found = diagnose(x, y, range(tokens))
    assert found.rope is None or close_to(found.rope, rope)
    assert found.rope is not None or "candidates" in found.reason
    assert diagnose(x, y, range(tokens), candidates=[rope]).rope == rope


def test_an_imprecise_base_is_not_given():
    pytest.importorskip("ml_dtypes")
    x = features(1, 1, 16, 8).astype("bfloat16")
    y = apply_definition(x.astype("float64"), range(16), base=12345.0).astype("bfloat16")
    found = diagnose(x, y, range(16))
    assert found.rope is None
    assert "float32" in found.reason


# ---- coordinates ----

GRID = np.stack(np.meshgrid(range(3), range(5), range(7), indexing="ij"), -1).reshape(-1, 3)
FLAT = np.stack(np.meshgrid(range(8), range(9), indexing="ij"), -1).reshape(-1, 2)
SOME = tuple(np.random.default_rng(1).integers(0, 2, 32).tolist())


def rotate_by_coordinate(x, pos, omegas, coordinates, blocks=1):
    """Rotate half pairs inside blocks by the formula, pair i by coordinate coordinates[i]."""
    y = x.astype("float64")
    width = x.shape[-1] // blocks
    for i, coordinate in enumerate(coordinates):
        block, index = divmod(i, width // 2)
        a = block * width + index
        b = a + width // 2
        angle = pos[:, coordinate] * omegas[i]
        u, v = y[..., a].copy(), y[..., b].copy()
        y[..., a], y[..., b] = u * np.cos(angle) - v * np.sin(angle), v * np.cos(angle) + u * np.sin(angle)
    return y.astype(x.dtype)


@pytest.mark.parametrize(
    ("pos", "axes"),
    [
        (GRID, ra.Axes.chunked(8, 12, 12)),
        (GRID, ra.Axes.interleaved(12, 10, 10)),
        (GRID, ra.Axes.alternating(8, 12, 12)),
        (GRID, ra.Axes.axial(16, 24, 24)),
        (FLAT, ra.Axes.axial(32, 32)),
        (FLAT, ra.Axes.axial(32, 32, order=(1, 0))),
        (FLAT, ra.Axes.axial(32, 32, blocks=True)),
        (FLAT, ra.Axes.even_odd(64)),
        (FLAT, ra.Axes(SOME, count=2)),
    ],
)
@pytest.mark.parametrize("base", [100.0, 12345.0])
def test_maps_of_pairs_to_coordinates(pos, axes, base):
    x = features(2, 2, len(pos), 64)
    omegas = [base ** (-2 * number / width) for width, number in axes.sources(64)]
    y = rotate_by_coordinate(x, pos, omegas, axes.coordinates, axes.blocks)
    found = only(diagnose(x, y, pos), x, y, pos)
    assert math.isclose(found.rope.base, base, rel_tol=1e-6)
    assert found.rope.axes.coordinates == axes.coordinates
    assert found.rope.axes.sources(64) == axes.sources(64)
    assert found.rope.axes.blocks == axes.blocks


def test_periods_of_normalized_coordinates():
    pos = (2 * FLAT + 1) / np.array([8, 9]) - 1
    rope = ra.RoPE(64, base=100.0, pairing="half", axes=ra.Axes.axial(32, 32), scaling=ra.Periods())
    x = features(2, 2, 72, 64)
    assert diagnose(x, rope.apply(x, pos), pos).rope == rope


def test_equal_coordinates_leave_the_map_open():
    pos = np.repeat(np.arange(40)[:, None], 3, 1)
    x = features(1, 2, 40, 64)
    y = ra.apply(x, pos, axes=ra.Axes.chunked(8, 12, 12), pairing="half")
    found = diagnose(x, y, pos)
    assert found.ambiguous
    assert found.rope is None
    maps = {e.rope.axes for e in found.explanations}
    assert {
        ra.Axes.chunked(8, 12, 12),
        ra.Axes.alternating(8, 12, 12),
        ra.Axes.interleaved(12, 10, 10),
    } <= maps
    assert "coordinates are equal" in found.reason


# ---- mistakes ----


def mistaken(x, y, pos, words, **fields):
    """Return the only explanation; check its mistake, its rope's fields and its code."""
    diagnosis = diagnose(x, y, pos)
    assert len(diagnosis.explanations) == 1, diagnosis
    [found] = diagnosis.explanations
    assert words in found.mistake
    assert diagnosis.rope is None
    assert words in str(diagnosis)
    for name, value in fields.items():
        assert getattr(found.rope, name) == value
    if found.code.startswith("ra.apply"):
        assert abs(again(found, x, pos) - y).max() < 1e-5
    return found


@pytest.mark.parametrize("shift", [1, -7, 100])
@pytest.mark.parametrize("kind", [range, np.arange])
def test_positions_off_by_a_constant(shift, kind):
    x = features(2, 64, 32)
    y = half(x, *tables(np.arange(64) + shift, 32, 500000.0))
    mistaken(x, y, kind(64), f"off by {shift}", base=500000.0, pairing="half")


def test_positions_off_by_a_constant_and_backwards():
    x = features(2, 64, 32)
    y = half(x, *tables(-(np.arange(64) + 3), 32, 500000.0))
    assert mistaken(x, y, range(64), "off by 3", base=500000.0).inverse


@pytest.mark.parametrize(("axis", "size"), [(-3, 4), (-4, 6)])
def test_positions_along_another_axis(axis, size):
    x = features(6, 4, 16, 32)
    pos = np.arange(size).reshape(-1, *(1,) * (-axis - 2))
    found = mistaken(x, half(x, *tables(pos, 32, 10000.0)), range(16), f"along axis {axis}")
    assert found.seq_axis == axis


def test_positions_are_ignored():
    pos = np.maximum(np.arange(64) - np.array([[0], [9]]), 0)  # left padding
    x = features(2, 4, 64, 32)
    y = half(x, *tables(range(64), 32, 10000.0))
    mistaken(x, y, pos, "counted from 0", pairing="half")


def test_all_tokens_are_rotated_by_one_position():
    x = features(2, 4, 64, 32)
    found = mistaken(x, half(x, *tables(17, 32, 10000.0)), range(64), "of position 17", pairing="half")
    assert found.code == "ra.apply(x, 17, pairing='half')"


def test_nothing_is_rotated():
    x = features(2, 8, 32)
    found = mistaken(x, x.copy(), range(8), "nothing was rotated", rotary_dim=0)
    assert found.code == "x"


@pytest.mark.parametrize("factor", [2.0, 0.3, -1.0, 0.0])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_only_a_factor(factor, dtype):
    x = features(2, 4, 64, 32, dtype=dtype)
    found = diagnose(x, (factor * x).astype(dtype), range(64))
    [explained] = found.explanations
    assert explained.mistake == f"not rotated, scaled by {factor:g}"
    assert explained.code == f"{factor!r} * x"
    assert found.rope is None


def test_only_a_factor_at_positions_0():
    x = features(2, 8, 32)
    found = diagnose(x, 2 * x, [0] * 8)
    assert {e.rope.amplitude for e in found.explanations if e.rope} == {2.0}
    assert "all positions are 0" in found.reason


@pytest.mark.parametrize("kind", [range, np.arange])
def test_a_table_that_ends(kind):
    x, pos = features(2, 4, 64, 32), np.arange(64)
    y = half(x, *tables(np.where(pos < 40, pos, 0), 32, 10000.0))
    mistaken(x, y, kind(64), "from 40 on are not rotated", pairing="half")
    y = half(x, *tables(np.minimum(pos, 40), 32, 10000.0))
    mistaken(x, y, kind(64), "past 40 are rotated as 40", pairing="half")


def test_rotated_twice():
    x = features(2, 4, 64, 32)
    cos, sin = tables(range(64), 32, 500000.0)
    mistaken(x, half(half(x, cos, sin), cos, sin), range(64), "twice", base=500000.0, scaling=ra.Linear(0.5))


@pytest.mark.parametrize("signs", [(1, 1), (-1, -1)])
def test_one_sign_in_both_members(signs):
    x = features(2, 4, 64, 32)
    y = half(x, *tables(range(64), 32, 500000.0), signs)
    found = mistaken(x, y, range(64), "same sign", base=500000.0, pairing="half")
    assert found.direction == signs[0]
    assert "base=500000.0" in found.code


def test_tables_laid_out_for_the_other_pairing():
    """V-JEPA 2 rotates interleaved pairs by cos and sin that are repeated for half pairs."""
    x = features(2, 4, 64, 32)
    cos, sin = (np.concatenate([t, t], -1) for t in tables(range(64), 32, 10000.0))
    turned = np.stack([-x[..., 1::2], x[..., ::2]], -1).reshape(x.shape)
    y = (x * cos + turned * sin).astype("float32")
    mistaken(x, y, range(64), "features pair interleaved", pairing="interleaved")
    cos, sin = (np.repeat(t, 2, -1) for t in tables(range(64), 32, 10000.0))
    a, b = np.split(x, 2, -1)
    y = (x * cos + np.concatenate([-b, a], -1) * sin).astype("float32")
    mistaken(x, y, range(64), "features pair half", pairing="half")


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("quantity", ["angles", "positions", "frequencies", "cos and sin"])
def test_numbers_of_16_bits(dtype, quantity):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    cut = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16}[dtype]
    pos, omegas = np.arange(4000, 4512)[:, None].astype(float), 10000.0 ** (-np.arange(0, 32, 2) / 32)

    def narrow(array, *of):
        return array.astype(cut).astype(float) if quantity in of else array

    angles = narrow(narrow(pos, "angles", "positions") * narrow(omegas, "angles", "frequencies"), "angles")
    x = features(1, 2, 512, 32)
    y = half(x, narrow(np.cos(angles), "cos and sin"), narrow(np.sin(angles), "cos and sin"))
    mistaken(x, y, np.arange(4000, 4512), f"{quantity} are {dtype}", pairing="half")


# ---- ambiguous data ----


def test_all_positions_0():
    x = features(2, 8, 32)
    found = diagnose(x, x.copy(), [0] * 8)
    assert found.ambiguous
    assert {e.rope.pairing for e in found.explanations if e.rope.rotary_dim} == {"interleaved", "half"}
    assert "all positions are 0" in found.reason
    assert "all of x is 0" in diagnose(0 * x, 0 * x, range(8)).reason


def test_a_head_of_one_pair():
    x = features(2, 8, 2)
    found = diagnose(x, ra.apply(x, range(8)), range(8))
    assert {e.rope.pairing for e in found.explanations} == {"interleaved", "half"}
    assert "2 features is one pair" in found.reason


def test_a_half_turn_has_no_direction():
    x = features(4, 1, 8, dtype="float64")
    rope = ra.RoPE(8, inv_freq=(math.pi,) * 4)
    found = diagnose(x, -x, [1], candidates=[rope, dataclasses.replace(rope, pairing="half")])
    assert len({(e.rope.pairing, e.inverse) for e in found.explanations}) == 4
    assert "+φ and -φ" in found.reason
    assert "pairings" in found.reason


def test_symmetric_features():
    """With equal features and frequencies, pairings differ only in the order of the results."""
    x = np.ones((3, 6, 4), "float64")
    rope = ra.RoPE(4, inv_freq=(0.0, 0.0), attention_factor=2.0)
    found = diagnose(
        x, rope.apply(x, range(6)), range(6), candidates=[rope, ra.RoPE(4, attention_factor=2.0)]
    )
    assert rope in [e.rope for e in found.explanations]
    assert found.ambiguous


def test_one_position_leaves_offset_or_factor_open():
    x = features(1, 4, 1, 64)
    found = diagnose(x, ra.apply(x, [4]), [5])
    assert found.ambiguous
    assert any("off by -1" in e.mistake for e in found.explanations)
    assert any(isinstance(e.rope.scaling, ra.Linear) for e in found.explanations)
    assert "positions" in found.reason


def test_few_pairs_above_rounding_leave_the_base_open():
    x = features(2, 2, 4).astype("float16")
    found = diagnose(x, ra.apply(x, range(2), base=1e9), range(2))
    assert {1e8, 1e9, 1e11} <= {e.rope.base for e in found.explanations}
    assert "do not distinguish bases" in found.reason


# ---- no explanation ----


def test_no_explanation():
    x = features(2, 4, 64, 32)
    for y in (x[..., ::-1].copy(), x + 1, features(2, 4, 64, 32, seed=5)):
        found = diagnose(x, y, range(64))
        assert not found.explanations
        assert found.rope is None
        assert not found.ambiguous
        assert found.nearest
        assert "candidates" in found.reason
        assert str(found).startswith("no rotation that was tried")


def test_one_wrong_element_is_found():
    x = features(2, 4, 64, 32)
    y = ra.apply(x, range(64), pairing="half")
    y[1, 2, 50, 3] += 1e-3
    assert not diagnose(x, y, range(64)).explanations
    assert diagnose(x, y, range(64), tolerance=0.1).rope == ra.RoPE(32, pairing="half")


def test_rejected_hypotheses_are_listed():
    x = features(2, 4, 64, 32)
    found = diagnose(x, ra.apply(x, range(64), pairing="half", base=500000.0), range(64))
    codes = {e.code for e in found.nearest}
    assert "ra.apply(x, pos, base=500000.0)" in codes
    assert "ra.apply(x, pos, pairing='half')" in codes
    assert "ra.apply(x, pos, base=500000.0, pairing='half', scaling=ra.Reversed())" in codes
    assert all(e.residual > 0.1 for e in found.nearest)


# ---- far positions ----

FAR = [10**8 + i for i in range(64)]


def test_rounded_angles_explain_no_other_rotation():
    """Float32 rounding can change the fast angles by any amount there, but not explain every residual."""
    x = features(2, 64, 32)
    y = ra.apply(x, [p + 1 for p in FAR])
    mistaken(x, y, FAR, "off by 1", base=10000.0, pairing="interleaved")
    assert diagnose(x, ra.apply(x, FAR), FAR).rope == ra.RoPE(32)


@pytest.mark.parametrize("base", [10000.0, 500000.0])
@pytest.mark.parametrize("inverse", [False, True])
def test_float32_angles_of_far_positions(base, inverse):
    x = features(2, 64, 32)
    rope = ra.RoPE(32, base=base, angles="float32")
    found = diagnose(x, rope.apply(x, FAR, inverse=inverse), FAR)
    assert found.rope == (dataclasses.replace(rope, scaling=ra.Reversed()) if inverse else rope)
    assert found.explanations[0].inverse == inverse


def rounded_otherwise(x, pos):
    """Rotate by float32 angles whose frequencies are rounded differently."""
    omegas = np.exp(np.arange(0, 32, 2, dtype="float32") * np.float32(-math.log(10000.0) / 32))
    angles = np.asarray(pos, "float32")[:, None] * omegas
    return half(x, np.cos(angles), np.sin(angles))


@pytest.mark.parametrize("pos", [FAR, [2**60 + i for i in range(64)]])
def test_undecided_far_positions_are_reported(pos):
    x = features(2, 64, 32)
    found = diagnose(x, rounded_otherwise(x, pos), pos)
    assert not found.explanations
    assert "float32" in found.reason
    assert "nearer positions" in found.reason
    near = range(64)
    rope = diagnose(x, rounded_otherwise(x, near), near).rope
    assert dataclasses.replace(rope, angles="exact") == ra.RoPE(32, pairing="half")


@pytest.mark.parametrize("start", [2**31 - 100, 2**60])
def test_far_rules_are_not_explained_by_a_misfit(start):
    pos = [start + i for i in range(64)]
    x = features(2, 64, 32)
    rule = ra.LongRoPE([1.5] * 16, [*np.linspace(1, 9, 16) ** 2], 4096, factor=8.0, length=5000)
    y = apply_definition(x.astype("float64"), pos, inv_freq=ra.RoPE(32, scaling=rule).frequencies)
    found = diagnose(x, y.astype("float32"), pos)
    assert all(e.residual < 2.0**-7 for e in found.explanations)


def test_positions_beyond_float64_integers():
    pos = [2**60 + i for i in range(64)]
    x = features(2, 64, 32)
    y = apply_definition(x.astype("float64"), pos, base=500000.0).astype("float32")
    assert diagnose(x, y, pos).rope == ra.RoPE(32, base=500000.0)
    rules = [ra.LongRoPE([1.5] * n, [2.0] * n, 4096, factor=8.0, length=9) for n in (8, 16)]
    y = apply_definition(x.astype("float64"), pos, inv_freq=ra.RoPE(32, scaling=rules[1]).frequencies)
    y = (y * ra.RoPE(32, scaling=rules[1]).amplitude).astype("float32")
    assert diagnose(x, y, pos, candidates=rules).rope == ra.RoPE(32, scaling=rules[1])


# ---- arrays and errors ----


def test_every_library(lib, float_dtype):
    with lib.running():
        x = lib.asarray(features(2, 4, 32, 32), float_dtype)
        pos = lib.asarray(np.arange(32, dtype=np.int32))
        y = ra.apply(x, pos, base=500000.0, pairing="half")
        for given in (pos, range(32), np.arange(32)):
            found = diagnose(x, y, given)
            assert found.rope == ra.RoPE(32, base=500000.0, pairing="half"), found


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
    y[0, 3] = np.nan
    x[1, 5, 2] = np.inf
    found = diagnose(x, y, range(64))
    assert found.rope == ra.RoPE(32)
    assert "2 rows" in str(found)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("size", [1e300, 1e-300])
def test_features_of_any_size(size):
    x = features(2, 64, 16, dtype="float64") * size
    assert diagnose(x, ra.apply(x, range(64)), range(64)).rope == ra.RoPE(16)
    smaller = ra.apply(x, range(64)) * (1e-100 if size > 1 else 1e100)
    assert diagnose(x, smaller, range(64)).rope.amplitude == (1e-100 if size > 1 else 1e100)
    other = diagnose(x, x[..., ::-1].copy(), range(64))
    assert not other.explanations


@pytest.mark.filterwarnings("error")
def test_zeros_on_one_side():
    x = features(2, 64, 16)
    assert not diagnose(0 * x, x, range(64)).explanations


X = np.ones((4, 8), "float32")


@pytest.mark.parametrize(
    ("args", "options", "error", "match"),
    [
        ((X, X[:2], range(4)), {}, ShapeError, "one shape"),
        ((X[0], X[0], 1), {}, ShapeError, "two axes"),
        ((X, X, range(5)), {}, ShapeError, "pos"),
        ((X, X, range(4)), {"seq_axis": -1}, ShapeError, "seq_axis"),
        ((X, X, range(4)), {"seq_axis": "2"}, ShapeError, "seq_axis"),
        (([1.0], X, range(4)), {}, ArrayTypeError, "before"),
        ((X, X.astype(int), range(4)), {}, ArrayTypeError, "after"),
        ((X, X, "abc"), {}, ArrayTypeError, "pos"),
        ((X, X, [True] * 4), {}, ArrayTypeError, "pos"),
        ((X, X, np.ones(4, "float16")), {}, ArrayTypeError, "float16"),
        ((X, X, [[1], [2, 3]]), {}, ShapeError, "ragged"),
        ((X, X, [math.nan] * 4), {}, PositionError, "finite"),
        ((X * math.nan, X, range(4)), {}, ShapeError, "finite"),
        ((X, X, range(4)), {"tolerance": -1.0}, SpecError, "tolerance"),
        ((X, X, range(4)), {"candidates": ["half"]}, ra.ConfigError, "no file"),
        ((X, X, range(4)), {"candidates": [8]}, SpecError, "a candidate is"),
        ((X[:, :0], X[:, :0], range(4)), {}, ShapeError, "holds no features"),
        ((X[:0], X[:0], []), {}, ShapeError, "holds no features"),
        ((X, X, range(4)), {"candidates": [ra.RoPE(4)]}, ShapeError, "head_dim=4"),
        ((X, X, range(4)), {"candidates": 7}, SpecError, "candidate"),
        ((X, X, range(4)), {"candidates": [ra.DynamicNTK(2.0, 64)]}, SpecError, "length"),
    ],
)
def test_errors(args, options, error, match):
    with pytest.raises(error, match=match):
        diagnose(*args, **options)


def test_arguments_are_not_written():
    x = features(2, 64, 32)
    y = ra.apply(x, range(64))
    pos = np.arange(64)
    kept = x.copy(), y.copy(), pos.copy()
    diagnose(x, y, pos)
    for array, before in zip((x, y, pos), kept, strict=True):
        assert (array == before).all()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_large_arrays(dtype):
    pytest.importorskip("ml_dtypes")
    x = features(1, 16, 2048, 128).astype(dtype)
    rope = ra.RoPE(128, base=500000.0, pairing="half", scaling=ra.Llama3())
    y = rope.apply(x, range(2048))
    assert diagnose(x, y, range(2048)).rope == rope


def test_every_row_of_a_large_array_is_checked():
    x = features(1, 8, 2048, 32)
    y = ra.apply(x, range(2048), pairing="half")
    for head, row in ((3, 1111), (5, 777), (7, 2046)):
        wrong = y.copy()
        wrong[0, head, row] = x[0, head, row]
        found = diagnose(x, wrong, range(2048))
        assert not found.explanations
        assert found.nearest[0].residual > 0.1


@pytest.mark.parametrize("end", [1000, 2040])
def test_the_end_of_a_table_is_found_in_a_large_array(end):
    x = features(1, 8, 2048, 32)
    [found] = diagnose(x, ra.apply(x, np.minimum(range(2048), end)), range(2048)).explanations
    assert f"positions past {end} are rotated as {end}" in found.mistake
    kept = np.where(np.arange(2048) < end, np.arange(2048), 0)
    [found] = diagnose(x, ra.apply(x, kept), range(2048)).explanations
    assert f"positions from {end} on are not rotated" in found.mistake


def test_an_interleaved_slice_with_hidden_pairs_is_not_certain():
    """The pairs that rotate by more than the noise fit a wider slice with a larger base too."""
    pytest.importorskip("ml_dtypes")
    for seed in range(4):
        x = features(1, 16, 32, seed=seed)
        y = ra.apply(x, range(100, 116), rotary_dim=24, base=500000.0).astype("bfloat16").astype("float32")
        rope = diagnose(x, y, range(100, 116), tolerance=0.03).rope
        assert rope is None or (rope.rotary_dim, rope.base) == (24, 500000.0)


def test_a_candidate_s_limit_of_positions_does_not_matter():
    x = features(1, 8, 64, 64)
    candidate = ra.RoPE(64, base=1234.5, pairing="half", max_position=10)
    found = diagnose(
        x, ra.apply(x, range(64), base=1234.5, pairing="half"), range(64), candidates=[candidate]
    )
    assert found.rope == ra.RoPE(64, base=1234.5, pairing="half")


def test_results_are_deterministic():
    x = features(1, 8, 128, 128)
    outputs = [ra.apply(x, range(128), base=500000.0, pairing="half"), x[..., ::-1].copy()]
    for y in outputs:
        first = diagnose(x, y, range(128))
        assert first == diagnose(x, y, range(128))
    assert not first.explanations
