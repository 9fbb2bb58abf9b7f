"""The definition that judges all implementations, judged by mpmath, golden vectors and published values."""

import decimal
import doctest
import importlib.util
import math
import random
import sys
from decimal import Decimal

import mpmath
import numpy as np
import oracle
import pytest

from rope_array.testing import _definition, _rules, apply_definition, cos_sin, frequencies, rotation_matrix

EPS = 2.0**-52
INTEGER_EXTREMES = [0, 1, -1, 2**31 - 1, -(2**31), 2**53 + 1, 2**63 - 1, -(2**63), 2**64 - 1]
FLOAT_EXTREMES = [0.5, -1000000.75, 0.1, 1e-9, 5e-324, 1e-310, 2.0**63, 1e22, math.pi, 355.0, 710.0 / 226.0]


def random_positions(seed):
    rng = random.Random(seed)
    integers = [rng.randint(-(2**bits), 2**bits) for bits in (8, 16, 24, 31, 31, 31, 48, 63)]
    return integers + [rng.uniform(-(2.0**bits), 2.0**bits) for bits in (-8, 0, 16, 31, 63)]


def assert_rounded(tables, positions, omegas):
    """Assert that cos and sin, of shape (positions, frequencies), are the nearest float64."""
    truth = np.array([[oracle.cos_sin(pos, omega) for omega in omegas] for pos in positions])
    np.testing.assert_array_equal(np.stack(tables, -1), truth.reshape(*tables[0].shape, 2))


# ---- angles ----


def test_pi_is_pi():
    digits = str(_rules.PI)
    assert len(digits) > 150
    with mpmath.workdps(len(digits) + 20):
        assert abs(mpmath.mpf(digits) - mpmath.pi) < mpmath.mpf(10) ** (2 - len(digits))


@pytest.mark.parametrize("base", [10000.0, 500_000, 1e6, 12345.678, 1.5])
def test_frequencies_to_100_digits(base):
    for rotary_dim in (2, 6, 64, 128):
        truths = oracle.frequencies(rotary_dim, base)
        for value, truth in zip(frequencies(rotary_dim, base), truths, strict=True):
            assert abs(oracle.CONTEXT.mpf(str(value)) / truth - 1) < oracle.CONTEXT.mpf("1e-100")


@pytest.mark.parametrize("base", [10000.0, 500_000.0, 1e6])
def test_cos_sin_are_correctly_rounded(base):
    positions = INTEGER_EXTREMES + FLOAT_EXTREMES
    positions += [pos for seed in range(4) for pos in random_positions(seed)]
    assert_rounded(cos_sin(positions, rotary_dim=12, base=base), positions, oracle.frequencies(12, base))


@pytest.mark.parametrize("seed", range(8))
def test_cos_sin_take_frequencies_exactly(seed):
    rng, positions = random.Random(seed), random_positions(seed)
    omegas = [10.0 ** rng.uniform(-9, 6) * rng.choice((1, 1, -1)) for _ in range(8)]
    assert_rounded(cos_sin(positions, rotary_dim=16, inv_freq=omegas), positions, omegas)


def nearest_to_quarter_turns(omega):
    """Return positions p with p * omega nearest to k pi/2: numerators of the convergents of pi/2/omega."""
    ratio, denominators = oracle.CONTEXT.pi / 2 / oracle.real(omega), [0, 1]
    while denominators[-1] < 2**63:
        quotient = int(oracle.CONTEXT.floor(ratio))
        denominators.append(quotient * denominators[-1] + denominators[-2])
        ratio = 1 / (ratio - quotient)
    return denominators[2:-1]


@pytest.mark.parametrize("omega", [1.0, 0.1, 0.3162277660168379, 123456.789])
def test_cos_sin_where_reduction_cancels_most(omega):
    positions = nearest_to_quarter_turns(omega)
    tables = cos_sin(positions, rotary_dim=2, inv_freq=[omega])
    assert_rounded(tables, positions, [omega])
    assert abs(np.stack(tables)).min() < 1e-17


@pytest.mark.parametrize("case", oracle.golden("angles"), ids=lambda case: case["name"])
def test_golden_angles(case):
    cos, sin = cos_sin([row["pos"] for row in case["rows"]], **case["fields"])
    np.testing.assert_array_equal(cos, [row["cos"] for row in case["rows"]])
    np.testing.assert_array_equal(sin, [row["sin"] for row in case["rows"]])


def test_published_angles_and_frequencies():
    # K. C. Ng, "Argument reduction for huge arguments: good to the last bit": sin and cos of 10^22.
    cos, sin = cos_sin(10**22, rotary_dim=2)
    assert (cos[0], sin[0]) == (0.52321478539513894549759442588, -0.85220084976718880177270589376)
    # Muller, "Elementary Functions", gives 355 as an integer near 113 pi: sin(355) = -3.01443533594884e-05.
    assert cos_sin(355, rotary_dim=2)[1][0] == pytest.approx(-3.01443533594884e-05, rel=1e-14)
    # Head width 16, base 10000, as Hugging Face, vLLM and llama.cpp print them.
    printed = [1, 0.3162278, 0.1, 0.03162278, 0.01, 0.003162278, 0.001, 0.0003162278]
    np.testing.assert_allclose([float(omega) for omega in frequencies(16)], printed, rtol=1e-6)
    assert frequencies(8) == tuple(Decimal(power) for power in ("1", "0.1", "0.01", "0.001"))


def test_positions_of_every_array_and_of_python():
    arrays = [
        np.array([[3, -7], [0, 2**31 - 1]], np.int32),
        np.array([2**64 - 1, 5], np.uint64),
        np.array([0.1, 3.75], np.float32),
        np.array([0.5, 1.0], np.float16),
        np.array([0.5, 256.0], pytest.importorskip("ml_dtypes").bfloat16),
        np.array([1.0, 2.0, 3.0])[::-2],
        np.zeros((0, 3), np.int64),
    ]
    plain = [7, -0.5, range(5), [1, 2**53 + 1, 0.5], [[1], [2]], np.float32(0.1), np.int8(3), []]
    for pos in (*arrays, *plain):
        tables = cos_sin(pos, rotary_dim=4)
        assert tables[0].shape == tables[1].shape == (*np.shape(pos), 2)
        flat = list(pos.ravel()) if isinstance(pos, np.ndarray) else np.array(pos, object).ravel().tolist()
        assert_rounded(tables, flat, oracle.frequencies(4))


def test_the_callers_decimal_context_changes_nothing():
    def made():
        return [*cos_sin([3, 4097, 0.1], rotary_dim=8), rotation_matrix(5, head_dim=4, attention_factor=0.3)]

    expected, traps = made(), [decimal.Inexact, decimal.FloatOperation]
    with decimal.localcontext(decimal.Context(prec=4, traps=traps)) as context:
        assert all(map(np.array_equal, made(), expected))
        assert context.prec == 4


def test_the_default_decimal_context_changes_nothing(monkeypatch):
    monkeypatch.setitem(decimal.DefaultContext.traps, decimal.Inexact, True)
    monkeypatch.setattr(decimal.DefaultContext, "Emax", 9)
    monkeypatch.delitem(sys.modules, "rope_array.testing._angles")  # which makes the contexts
    fresh = importlib.util.module_from_spec(importlib.util.find_spec(_definition.__name__))
    fresh.__spec__.loader.exec_module(fresh)
    assert fresh.cos_sin(10**22, rotary_dim=2)[0] == oracle.cos_sin(10**22, 1)[0]


# ---- rotations ----

FILES = ("pairings", "slices", "bases", "frequencies", "amplitudes")
CASES = [pytest.param(case, id=f"{name}-{case['name']}") for name in FILES for case in oracle.golden(name)]
FIELDS = [
    {"pairing": pairing, "out_pairing": out, "rotary_dim": width, "rotary_start": start}
    for pairing, out in (
        ("interleaved", None),
        ("half", None),
        ("interleaved", "half"),
        ("half", "interleaved"),
    )
    for width, start in ((None, 0), (None, 2), (4, 3), (0, 0))
]


@pytest.mark.parametrize("case", CASES)
def test_golden_rotations(case):
    x, positions = np.array(case["x"]), [row["pos"] for row in case["rows"]]
    y = np.array([row["y"] for row in case["rows"]])
    rows = np.broadcast_to(x, y.shape)
    np.testing.assert_array_equal(apply_definition(rows, positions, **case["fields"]), y)
    matrix = rotation_matrix(positions, **case["fields"])
    assert (abs(matrix @ x - y) <= 1.5 * EPS * (abs(matrix) @ abs(x))).all()


def test_the_script_writes_the_golden_files():
    spec = importlib.util.spec_from_file_location("golden_make", oracle.GOLDEN / "make.py")
    make = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(make)
    assert make.files() == {path.name: path.read_text("utf-8") for path in oracle.GOLDEN.glob("*.json")}


def test_published_rotations():
    """x = 1 .. 8 at position 3, base 10000: the pairings of Llama, of RoFormer, and DeepSeek's mixture."""
    half = [-1.695593, 0.1375517, 2.788682, 3.975982, -4.808842, 6.323059, 7.086837, 8.011964]
    interleaved = [-1.272233, -1.838865, 1.683929, 4.707907, 4.817777, 6.147278, 6.975969, 8.020964]
    mixed = [*interleaved[::2], *interleaved[1::2]]
    x, pairings = np.arange(1.0, 9.0), [("half", None), ("interleaved", None), ("interleaved", "half")]
    for (pairing, out), y in zip(pairings, (half, interleaved, mixed), strict=True):
        fields = {"pairing": pairing, "out_pairing": out}
        np.testing.assert_allclose(apply_definition(x, 3, **fields), y, atol=5.1e-7)
        np.testing.assert_allclose(rotation_matrix(3, head_dim=8, **fields) @ x, y, atol=5.1e-7)


@pytest.mark.parametrize("inverse", [False, True])
@pytest.mark.parametrize("amplitude", [None, -1.1386294361119891, 1e-300])
@pytest.mark.parametrize("fields", FIELDS, ids=str)
def test_apply_is_rounded_once(fields, amplitude, inverse):
    rng = np.random.default_rng(2)
    scale = 2.0 ** rng.integers(-60, 60, size=(4, 10))
    x, positions = rng.normal(size=(4, 10)) * scale, [3, -(2**31), 2**62 + 1, 0.1]
    fields = {**fields, "attention_factor": amplitude, "inverse": inverse}
    rotated = apply_definition(x, positions, **fields)
    for row, pos, y in zip(x, positions, rotated, strict=True):
        for value, truth in zip(y, oracle.exact_rotate(row, pos, **fields), strict=True):
            error = abs(oracle.fraction(truth) - oracle.fraction(oracle.real(value)))
            assert error <= 0.5000001 * math.ulp(value)


@pytest.mark.parametrize("magnitude", [1e-320, 1e-308, 1e-200, 1e200, 8e307])
def test_apply_at_the_ends_of_the_range(magnitude):
    x = np.array([0.5, -2.0, 1e-3, 1.0]) * magnitude
    y, truth = apply_definition(x, 12345), np.array(oracle.rotate(x, 12345))
    np.testing.assert_allclose(y, truth, rtol=EPS / 2, atol=5e-324)


def test_inputs_are_neither_written_nor_returned():
    x = np.ones((3, 4))
    assert not np.shares_memory(x, apply_definition(x, 0, rotary_dim=0))
    x.flags.writeable = False
    apply_definition(x, [1, 2, 3])


@pytest.mark.parametrize(("pairing", "partner"), [("interleaved", 3), ("half", 6)])
def test_nan_and_inf_stay_in_their_pair(pairing, partner):
    clean = apply_definition(np.arange(1.0, 9.0), 3, pairing=pairing)
    for bad in (np.nan, np.inf, -np.inf):
        x = np.arange(1.0, 9.0)
        x[2] = bad
        dirty = apply_definition(x, 3, pairing=pairing)
        finite = np.isfinite(dirty)
        assert set(np.flatnonzero(~finite)) == {2, partner}
        np.testing.assert_array_equal(dirty[finite], clean[finite])


def test_infinity_is_multiplied_as_float64_is():
    inf, nan = np.inf, np.nan
    y = apply_definition(np.array([[inf, 1.0], [1.0, inf], [inf, inf]]), 1)
    np.testing.assert_array_equal(y, [[inf, inf], [-inf, inf], [nan, inf]])


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float32", "int32", ">f8"])
def test_x_of_every_dtype_is_taken_exactly(name):
    # Every library's session imports this file, but not every session has ml_dtypes installed.
    dtype = pytest.importorskip("ml_dtypes").bfloat16 if name == "bfloat16" else np.dtype(name)
    x = np.array([[100 / 3, -2, 700 / 9, 5]]).astype(dtype)
    y = apply_definition(x, 9)
    assert y.dtype == np.float64
    assert y[0].tolist() == oracle.rotate(x[0], 9)


@pytest.mark.parametrize(
    ("shape", "seq_axis", "pos_shapes"),
    [
        ((2, 3, 5, 4), -2, [(5,), (2, 5), (1, 5), (2, 1), (1,), (2, 3, 5), (1, 3, 1), ()]),
        ((2, 5, 3, 4), -3, [(2, 5), (2, 3, 5)]),
        ((2, 5, 3, 4), 1, [(5,)]),
        ((5, 2, 3, 4), 0, [(2, 5)]),
        ((5, 4), 0, [(5,)]),
        ((0, 5, 4), -2, [(5,)]),
        ((2, 0, 4), -2, [(0,)]),
        ((4,), -2, [()]),
    ],
    ids=str,
)
def test_shape_rule(shape, seq_axis, pos_shapes):
    rng = np.random.default_rng(4)
    sequence = seq_axis % len(shape) if len(shape) > 1 else None
    for pos_shape in pos_shapes:
        x, pos = rng.normal(size=shape), rng.integers(-1000, 1000, size=pos_shape)
        y = apply_definition(x, pos, seq_axis=seq_axis)
        assert y.shape == shape
        for index in np.ndindex(shape[:-1]):
            lead = [i for axis, i in enumerate(index) if axis != sequence]
            place = (*lead[: pos.ndim - 1], index[sequence]) if pos.ndim and sequence is not None else ()
            row_pos = pos[tuple(0 if size == 1 else i for i, size in zip(place, pos_shape, strict=True))]
            np.testing.assert_array_equal(y[index], apply_definition(x[index], row_pos))


# ---- refusals ----

NAN, INF, ZEROS = float("nan"), float("inf"), np.zeros((1, 4))
# By a word of the error: fields of `rotation_matrix`, shapes of x and positions, and fields of a call.
BAD_FIELDS = {
    "even": [{"rotary_dim": 3}, {"rotary_start": 3}, {"rotary_dim": -2}, {"head_dim": 7}],
    "within head_dim": [{"rotary_dim": 10}, *({"rotary_dim": 6, "rotary_start": n} for n in (4, -2))],
    "head_dim": [{"head_dim": 0}],
    "pairing": [{"pairing": "neox"}, {"out_pairing": "neox"}],
    "base": [{"base": 0.0}, {"base": -10000.0}],
    "inv_freq": [{"inv_freq": [1.0, 0.1]}],
    "finite": [{"base": NAN}, {"head_dim": 4, "inv_freq": [1.0, INF]}, {"attention_factor": INF}],
}
BAD_SHAPES = {
    "line up": [((5, 4), (3,)), ((2, 5, 4), (5, 2)), ((1, 4), (5,)), ((5, 4), (2, 5)), ((4,), (1,))],
    "even": [((5, 3), (5,))],
    "scalar": [((), ())],
}
BAD_CALLS = {
    "no inverse": [{"attention_factor": 0.0, "inverse": True}],
    "beyond float64": [{"attention_factor": 1e-310, "inverse": True}],
    "head_dim": [{"head_dim": 6}],
    "seq_axis": [{"seq_axis": axis} for axis in (-1, 1, -3, 2)],
}


def cases_of(table):
    return [(word, case) for word, cases in table.items() for case in cases]


def test_bad_fields_shapes_and_calls():
    for word, fields in cases_of(BAD_FIELDS):
        with pytest.raises(ValueError, match=word):
            rotation_matrix(3, **{"head_dim": 8, **fields})
    for word, (x, pos) in cases_of(BAD_SHAPES):
        with pytest.raises(ValueError, match=word):
            apply_definition(np.zeros(x), np.zeros(pos, int))
    for word, fields in cases_of(BAD_CALLS):
        with pytest.raises(ValueError, match=word):
            apply_definition(ZEROS, 0, **fields)
    with pytest.raises(ValueError, match="complex128"):
        apply_definition(ZEROS.astype(complex), 0)
    with pytest.raises(TypeError, match="theta"):
        apply_definition(ZEROS, 0, theta=10000.0)


def test_bad_positions():
    longdouble = np.longdouble(1) / 3 if np.finfo(np.longdouble).nmant > 52 else NAN
    for pos in (NAN, [0, INF], 10**41, longdouble):
        with pytest.raises(ValueError, match=r"finite|too large|exactly"):
            cos_sin(pos, rotary_dim=4)
    for pos in (True, np.array([True]), None, 1j, "x"):
        with pytest.raises((TypeError, ValueError)):
            cos_sin(pos, rotary_dim=4)


def test_docstring_examples():
    failed, tried = doctest.testmod(_definition)
    assert failed == 0
    assert tried >= 5
