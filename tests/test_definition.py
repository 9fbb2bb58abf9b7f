"""The definition that judges all implementations, judged by mpmath, golden vectors and published values."""

from __future__ import annotations

import decimal
import doctest
import importlib.util
import itertools
import math
import random
import sys
from decimal import Decimal
from typing import Any

import mpmath
import numpy as np
import oracle
import pytest

from rope_array.testing import _definition, _rules, apply_definition, cos_sin, frequencies, rotation_matrix

EPS = 2.0**-52

INTEGER_EXTREMES = [0, 1, -1, 2**31 - 1, -(2**31), 2**53 + 1, 2**63 - 1, -(2**63), 2**64 - 1]
FLOAT_EXTREMES = [0.5, -1000000.75, 0.1, 1e-9, 5e-324, 1e-310, 2.0**63, 1e22, math.pi, 355.0, 710.0 / 226.0]


def random_positions(seed: int) -> list[float]:
    rng = random.Random(seed)
    integers = [rng.randint(-(2**bits), 2**bits) for bits in (8, 16, 24, 31, 31, 31, 48, 63)]
    return integers + [rng.uniform(-(2.0**bits), 2.0**bits) for bits in (-8, 0, 16, 31, 63)]


def random_frequencies(seed: int) -> list[float]:
    rng = random.Random(seed)
    return [10.0 ** rng.uniform(-9, 6) * rng.choice((1, 1, -1)) for _ in range(8)]


# ---- angles ----


def test_pi_is_pi() -> None:
    digits = str(_rules.PI)
    assert len(digits) > 150
    with mpmath.workdps(len(digits) + 20):
        assert abs(mpmath.mpf(digits) - mpmath.pi) < mpmath.mpf(10) ** (2 - len(digits))


@pytest.mark.parametrize("base", [10000.0, 500_000, 1e6, 12345.678, 1.5])
@pytest.mark.parametrize("rotary_dim", [2, 6, 64, 128])
def test_frequencies_to_100_digits(rotary_dim: int, base: float) -> None:
    exact = oracle.frequencies(rotary_dim, base)
    got = frequencies(rotary_dim, base)
    assert len(got) == rotary_dim // 2
    for value, truth in zip(got, exact, strict=True):
        assert abs(oracle.CONTEXT.mpf(str(value)) / truth - 1) < oracle.CONTEXT.mpf("1e-100")


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("base", [10000.0, 500_000.0, 1e6])
def test_cos_sin_are_correctly_rounded(seed: int, base: float) -> None:
    positions = INTEGER_EXTREMES + FLOAT_EXTREMES + random_positions(seed)
    cos, sin = cos_sin(positions, rotary_dim=12, base=base)
    omegas = oracle.frequencies(12, base)
    truth = np.array([[oracle.cos_sin(pos, omega) for omega in omegas] for pos in positions])
    np.testing.assert_array_equal(cos, truth[..., 0])
    np.testing.assert_array_equal(sin, truth[..., 1])


@pytest.mark.parametrize("seed", range(8))
def test_cos_sin_take_frequencies_exactly(seed: int) -> None:
    positions, omegas = random_positions(seed), random_frequencies(seed)
    cos, sin = cos_sin(positions, rotary_dim=16, inv_freq=omegas)
    truth = np.array([[oracle.cos_sin(pos, omega) for omega in omegas] for pos in positions])
    np.testing.assert_array_equal(cos, truth[..., 0])
    np.testing.assert_array_equal(sin, truth[..., 1])


def nearest_to_quarter_turns(omega: float) -> list[int]:
    """Return positions p with p * omega nearest to k pi/2: numerators of the convergents of pi/2/omega."""
    ratio, found = oracle.CONTEXT.pi / 2 / oracle.real(omega), [0, 1]
    while found[-1] < 2**63:
        whole = int(oracle.CONTEXT.floor(ratio))
        found.append(whole * found[-1] + found[-2])
        ratio = 1 / (ratio - whole)
    return found[2:-1]


@pytest.mark.parametrize("omega", [1.0, 0.1, 0.3162277660168379, 123456.789])
def test_cos_sin_where_reduction_cancels_most(omega: float) -> None:
    positions = nearest_to_quarter_turns(omega)
    cos, sin = cos_sin(positions, rotary_dim=2, inv_freq=[omega])
    truth = [oracle.cos_sin(pos, omega) for pos in positions]
    assert list(zip(cos[:, 0], sin[:, 0], strict=True)) == truth
    assert min(np.minimum(abs(cos), abs(sin))) < 1e-17


@pytest.mark.parametrize("case", oracle.golden("angles"), ids=lambda case: case["name"])
def test_golden_angles(case: dict[str, Any]) -> None:
    cos, sin = cos_sin([row["pos"] for row in case["rows"]], **case["fields"])
    np.testing.assert_array_equal(cos, [row["cos"] for row in case["rows"]])
    np.testing.assert_array_equal(sin, [row["sin"] for row in case["rows"]])


def test_published_angles() -> None:
    # K. C. Ng, "Argument reduction for huge arguments: good to the last bit": sin and cos of 10^22.
    cos, sin = cos_sin(10**22, rotary_dim=2)
    assert (cos[0], sin[0]) == (0.52321478539513894549759442588, -0.85220084976718880177270589376)
    # Muller, "Elementary Functions", gives 355 as an integer near 113 pi: sin(355) = -3.01443533594884e-05.
    assert cos_sin(355, rotary_dim=2)[1][0] == pytest.approx(-3.01443533594884e-05, rel=1e-14)


def test_published_frequencies() -> None:
    # Head width 16, base 10000, as Hugging Face, vLLM and llama.cpp print them.
    printed = "1 .3162278 .1 .03162278 .01 .003162278 .001 .0003162278"
    np.testing.assert_allclose(
        [float(w) for w in frequencies(16)], [float(w) for w in printed.split()], rtol=1e-6
    )
    assert frequencies(8) == tuple(Decimal(power) for power in ("1", "0.1", "0.01", "0.001"))


@pytest.mark.parametrize(
    "pos",
    [
        np.array([[3, -7], [0, 2**31 - 1]], np.int32),
        np.array([2**64 - 1, 5], np.uint64),
        np.array([0.1, 3.75], np.float32),
        np.array([0.5, 1.0], np.float16),
        np.array([1.0, 2.0, 3.0])[::-2],
        np.zeros((0, 3), np.int64),
    ],
    ids=lambda pos: f"{pos.dtype}{pos.shape}",
)
def test_positions_of_every_array(pos: np.ndarray[Any, Any]) -> None:
    cos, sin = cos_sin(pos, rotary_dim=4)
    assert cos.shape == sin.shape == (*pos.shape, 2)
    omegas = oracle.frequencies(4)
    for index in np.ndindex(pos.shape):
        assert cos[index].tolist() == [oracle.cos_sin(pos[index], omega)[0] for omega in omegas]
        assert sin[index].tolist() == [oracle.cos_sin(pos[index], omega)[1] for omega in omegas]


@pytest.mark.parametrize(
    "pos", [7, -0.5, range(5), [1, 2**53 + 1, 0.5], [[1], [2]], np.float32(0.1), np.int8(3), []]
)
def test_positions_of_plain_python(pos: Any) -> None:
    cos, _ = cos_sin(pos, rotary_dim=2)
    assert cos.shape == (*np.shape(pos), 1)
    flat = np.array(pos, dtype=object).ravel().tolist()
    assert cos.ravel().tolist() == [oracle.cos_sin(value, 1)[0] for value in flat]


def test_the_callers_decimal_context_changes_nothing() -> None:
    expected = cos_sin([3, 4097, 0.1], rotary_dim=8), rotation_matrix(5, head_dim=4, attention_factor=0.3)
    with decimal.localcontext(
        decimal.Context(prec=4, traps=[decimal.Inexact, decimal.FloatOperation])
    ) as context:
        got = cos_sin([3, 4097, 0.1], rotary_dim=8), rotation_matrix(5, head_dim=4, attention_factor=0.3)
        assert context.prec == 4
    np.testing.assert_array_equal(got[0], expected[0])
    np.testing.assert_array_equal(got[1], expected[1])


def test_the_default_decimal_context_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(decimal.DefaultContext.traps, decimal.Inexact, True)
    monkeypatch.setattr(decimal.DefaultContext, "Emax", 9)
    monkeypatch.delitem(sys.modules, "rope_array.testing._angles")  # which makes the contexts
    fresh = importlib.util.module_from_spec(importlib.util.find_spec(_definition.__name__))
    fresh.__spec__.loader.exec_module(fresh)
    assert fresh.cos_sin(10**22, rotary_dim=2)[0] == oracle.cos_sin(10**22, 1)[0]


# ---- rotations ----

FILES = ("pairings", "slices", "bases", "frequencies", "amplitudes")
CASES = [pytest.param(case, id=f"{name}-{case['name']}") for name in FILES for case in oracle.golden(name)]

FIELDS: list[dict[str, Any]] = [
    {"pairing": pairing, "out_pairing": out, "rotary_dim": width, "rotary_start": start}
    for pairing, out in itertools.product(("interleaved", "half"), (None, "interleaved", "half"))
    for width, start in ((None, 0), (None, 2), (6, 0), (4, 3), (0, 0))
]


def pairs(fields: dict[str, Any], head_dim: int, which: str = "pairing") -> list[tuple[int, int]]:
    """Index pairs written out from their definition, for the tests that build the paper's forms by hand."""
    start = fields["rotary_start"]
    width = head_dim - start if fields["rotary_dim"] is None else fields["rotary_dim"]
    if (fields[which] or fields["pairing"]) == "half":
        return [(start + i, start + i + width // 2) for i in range(width // 2)]
    return [(start + i, start + i + 1) for i in range(0, width, 2)]


def close(got: Any, expected: Any, size: Any, eps: float = 4.0) -> bool:
    return bool(np.all(abs(np.asarray(got) - np.asarray(expected)) <= eps * EPS * size))


@pytest.mark.parametrize("case", CASES)
def test_golden_rotations(case: dict[str, Any]) -> None:
    x, positions = np.array(case["x"]), [row["pos"] for row in case["rows"]]
    y = np.array([row["y"] for row in case["rows"]])
    rows = np.broadcast_to(x, y.shape)
    np.testing.assert_array_equal(apply_definition(rows, positions, **case["fields"]), y)
    matrix = rotation_matrix(positions, **case["fields"])
    assert close(matrix @ x, y, abs(matrix) @ abs(x), eps=1.5)


def test_the_script_writes_the_golden_files() -> None:
    spec = importlib.util.spec_from_file_location("golden_make", oracle.GOLDEN / "make.py")
    assert spec is not None
    assert spec.loader is not None
    make = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(make)
    texts = make.files()
    assert set(texts) == {path.name for path in oracle.GOLDEN.glob("*.json")}
    for name, content in texts.items():
        assert (oracle.GOLDEN / name).read_text(encoding="utf-8") == content


@pytest.mark.parametrize(
    ("fields", "printed"),
    [
        ({"pairing": "half"}, "-1.695593 0.1375517 2.788682 3.975982 -4.808842 6.323059 7.086837 8.011964"),
        (
            {"pairing": "interleaved"},
            "-1.272233 -1.838865 1.683929 4.707907 4.817777 6.147278 6.975969 8.020964",
        ),
        (
            {"out_pairing": "half"},
            "-1.272233 1.683929 4.817777 6.975969 -1.838865 4.707907 6.147278 8.020964",
        ),
    ],
    ids=["half", "interleaved", "interleaved-to-half"],
)
def test_published_rotations(fields: dict[str, Any], printed: str) -> None:
    # x = 1 .. 8 at position 3, base 10000: the pairings of Llama, of RoFormer, and DeepSeek's mixture.
    expected = [float(number) for number in printed.split()]
    x = np.arange(1.0, 9.0)
    np.testing.assert_allclose(apply_definition(x, 3, **fields), expected, atol=5.1e-7)
    np.testing.assert_allclose(rotation_matrix(3, head_dim=8, **fields) @ x, expected, atol=5.1e-7)


@pytest.mark.parametrize("pos", [0, 1, -3, 4097, 0.5, -(2**31)])
@pytest.mark.parametrize("fields", FIELDS, ids=str)
def test_paper_block_matrix(fields: dict[str, Any], pos: float) -> None:
    """RoFormer equation 15: 2 x 2 blocks on the diagonal, between permutations that join pairs."""
    head_dim = 10
    members, results = pairs(fields, head_dim), pairs(fields, head_dim, "out_pairing")
    width = 2 * len(members)
    cos, sin = cos_sin(pos, rotary_dim=width)
    blocks = np.zeros((width, width))
    for i in range(len(members)):
        blocks[2 * i : 2 * i + 2, 2 * i : 2 * i + 2] = [[cos[i], -sin[i]], [sin[i], cos[i]]]
    gather, scatter = (
        np.eye(head_dim)[np.ravel(members).astype(int)],
        np.eye(head_dim)[np.ravel(results).astype(int)],
    )
    untouched = np.eye(head_dim) - gather.T @ gather
    expected = scatter.T @ blocks @ gather + untouched
    np.testing.assert_array_equal(rotation_matrix(pos, head_dim=head_dim, **fields), expected)


@pytest.mark.parametrize("pos", [0, 1, -3, 4097, 0.5, -(2**31)])
@pytest.mark.parametrize("fields", FIELDS, ids=str)
def test_paper_complex_product(fields: dict[str, Any], pos: float) -> None:
    """RoFormer equation 12: a pair as a complex number, times e^{i m theta}."""
    x = np.random.default_rng(0).normal(size=10)
    members, results = pairs(fields, 10), pairs(fields, 10, "out_pairing")
    expected = x.copy()
    for (a, b), (out_a, out_b), omega in zip(
        members, results, oracle.frequencies(2 * len(members)), strict=True
    ):
        turned = oracle.CONTEXT.mpc(x[a], x[b]) * oracle.CONTEXT.expj(oracle.real(pos) * omega)
        expected[out_a], expected[out_b] = float(turned.real), float(turned.imag)
    np.testing.assert_array_max_ulp(apply_definition(x, pos, **fields), expected, maxulp=1)
    matrix = rotation_matrix(pos, head_dim=10, **fields)
    assert close(matrix @ x, expected, abs(matrix) @ abs(x))


@pytest.mark.parametrize("pos", [0, 1, -3, 4097, 0.5, -(2**31)])
@pytest.mark.parametrize("fields", FIELDS, ids=str)
def test_paper_elementwise_product(fields: dict[str, Any], pos: float) -> None:
    """RoFormer equation 34: x * cos + rotate(x) * sin, cos and sin written twice; then the out pairing."""
    x = np.random.default_rng(1).normal(size=10)
    members, results = pairs(fields, 10), pairs(fields, 10, "out_pairing")
    cos, sin = cos_sin(pos, rotary_dim=2 * len(members))
    first, second = (np.array([pair[side] for pair in members], int) for side in (0, 1))
    wide_cos, wide_sin, rotated = np.ones(10), np.zeros(10), np.zeros(10)
    wide_cos[first], wide_cos[second], wide_sin[first], wide_sin[second] = cos, cos, sin, sin
    rotated[first], rotated[second] = -x[second], x[first]
    product = x * wide_cos + rotated * wide_sin
    expected = product.copy()
    expected[np.ravel(results).astype(int)] = product[np.ravel(members).astype(int)]
    matrix = rotation_matrix(pos, head_dim=10, **fields)
    assert close(matrix @ x, expected, abs(matrix) @ abs(x))
    assert close(apply_definition(x, pos, **fields), expected, abs(matrix) @ abs(x))


@pytest.mark.parametrize("inverse", [False, True])
@pytest.mark.parametrize("amplitude", [None, 0.3, -1.1386294361119891, 1e-300])
@pytest.mark.parametrize("fields", FIELDS[::3], ids=str)
def test_apply_is_rounded_once(fields: dict[str, Any], amplitude: float | None, inverse: bool) -> None:
    rng = np.random.default_rng(2)
    scale = 2.0 ** rng.integers(-60, 60, size=(4, 10))
    x, positions = rng.normal(size=(4, 10)) * scale, [3, -(2**31), 2**62 + 1, 0.1]
    fields = {**fields, "attention_factor": amplitude, "inverse": inverse}
    got = apply_definition(x, positions, **fields)
    for row, pos, y in zip(x, positions, got, strict=True):
        for value, truth in zip(y, oracle.exact_rotate(row, pos, **fields), strict=True):
            error = abs(oracle.fraction(truth) - oracle.fraction(oracle.real(value)))
            assert error <= 0.5000001 * math.ulp(value)


@pytest.mark.parametrize("magnitude", [1e-320, 1e-308, 1e-200, 1e200, 8e307])
def test_apply_at_the_ends_of_the_range(magnitude: float) -> None:
    x = np.array([0.5, -2.0, 1e-3, 1.0]) * magnitude
    got, truth = apply_definition(x, 12345), np.array(oracle.rotate(x, 12345))
    np.testing.assert_allclose(got, truth, rtol=EPS / 2, atol=5e-324)


def test_inputs_are_neither_written_nor_returned() -> None:
    x = np.ones((3, 4))
    y = apply_definition(x, 0, rotary_dim=0)
    assert not np.shares_memory(x, y)
    x.flags.writeable = False
    apply_definition(x, [1, 2, 3])
    np.testing.assert_array_equal(x, 1.0)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("pairing", ["interleaved", "half"])
def test_nan_and_inf_stay_in_their_pair(pairing: str, bad: float) -> None:
    x = np.arange(1.0, 9.0)
    clean = apply_definition(x, 3, pairing=pairing)
    x[2] = bad
    dirty = apply_definition(x, 3, pairing=pairing)
    partner = {"interleaved": 3, "half": 6}[pairing]
    assert set(np.flatnonzero(~np.isfinite(dirty))) == {2, partner}
    keep = np.isfinite(dirty)
    np.testing.assert_array_equal(dirty[keep], clean[keep])


def test_infinity_is_multiplied_as_float64_is() -> None:
    x = np.array([[np.inf, 1.0], [1.0, np.inf], [np.inf, np.inf]])
    np.testing.assert_array_equal(
        apply_definition(x, 1), [[np.inf, np.inf], [-np.inf, np.inf], [np.nan, np.inf]]
    )


@pytest.mark.parametrize("fields", FIELDS, ids=str)
def test_inverse_undoes_and_divides_by_the_amplitude(fields: dict[str, Any]) -> None:
    x = np.random.default_rng(3).normal(size=(5, 10))
    fields = {**fields, "attention_factor": 1.25}
    positions = [0, 5, -4097, 2**31 - 1, 0.25]
    there = apply_definition(x, positions, **fields)
    back = apply_definition(there, positions, inverse=True, **fields)
    assert close(back, x, abs(x).max())
    matrix = rotation_matrix(positions, head_dim=10, **fields)
    assert close(
        np.linalg.inv(matrix) @ x[..., None],
        apply_definition(x, positions, inverse=True, **fields)[..., None],
        abs(x).max(),
        eps=50,
    )


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float32", "int32", ">f8"])
def test_x_of_every_dtype_is_taken_exactly(name: str) -> None:
    # Every library's session imports this file, but not every session has ml_dtypes installed.
    dtype = pytest.importorskip("ml_dtypes").bfloat16 if name == "bfloat16" else np.dtype(name)
    x = np.array([[100 / 3, -2, 700 / 9, 5]]).astype(dtype)
    got = apply_definition(x, 9)
    assert got.dtype == np.float64
    assert got[0].tolist() == oracle.rotate(x[0], 9)


def test_positions_in_bfloat16() -> None:
    pos = np.array([0.5, 256.0], pytest.importorskip("ml_dtypes").bfloat16)
    assert cos_sin(pos, rotary_dim=2)[0].ravel().tolist() == [oracle.cos_sin(p, 1)[0] for p in (0.5, 256)]


@pytest.mark.parametrize(
    ("shape", "seq_axis", "pos_shape"),
    [
        ((2, 3, 5, 4), -2, (5,)),
        ((2, 3, 5, 4), -2, (2, 5)),
        ((2, 3, 5, 4), -2, (1, 5)),
        ((2, 3, 5, 4), -2, (2, 1)),
        ((2, 3, 5, 4), -2, (1,)),
        ((2, 3, 5, 4), -2, (2, 3, 5)),
        ((2, 3, 5, 4), -2, (1, 3, 1)),
        ((2, 3, 5, 4), -2, ()),
        ((2, 5, 3, 4), -3, (2, 5)),
        ((2, 5, 3, 4), -3, (2, 3, 5)),
        ((2, 5, 3, 4), 1, (5,)),
        ((5, 2, 3, 4), 0, (2, 5)),
        ((5, 4), 0, (5,)),
        ((0, 5, 4), -2, (5,)),
        ((2, 0, 4), -2, (0,)),
        ((4,), -2, ()),
    ],
    ids=str,
)
def test_shape_rule(shape: tuple[int, ...], seq_axis: int, pos_shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(4)
    x, pos = rng.normal(size=shape), rng.integers(-1000, 1000, size=pos_shape)
    got = apply_definition(x, pos, seq_axis=seq_axis)
    assert got.shape == shape
    sequence = seq_axis % len(shape) if len(shape) > 1 else None
    for index in np.ndindex(shape[:-1]):
        lead = [i for axis, i in enumerate(index) if axis != sequence]
        place = (*lead[: pos.ndim - 1], index[sequence]) if pos.ndim and sequence is not None else ()
        own = pos[tuple(0 if size == 1 else i for i, size in zip(place, pos_shape, strict=True))]
        np.testing.assert_array_equal(got[index], apply_definition(x[index], own))


# ---- refusals ----

NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"head_dim": 7}, "even"),
        ({"head_dim": 8, "rotary_dim": 3}, "even"),
        ({"head_dim": 8, "rotary_start": 3}, "even"),
        ({"head_dim": 8, "rotary_dim": -2}, "even"),
        ({"head_dim": 0}, "head_dim"),
        ({"head_dim": 8, "rotary_dim": 10}, "within head_dim"),
        ({"head_dim": 8, "rotary_dim": 6, "rotary_start": 4}, "within head_dim"),
        ({"head_dim": 8, "rotary_dim": 4, "rotary_start": -2}, "within head_dim"),
        ({"head_dim": 8, "pairing": "neox"}, "pairing"),
        ({"head_dim": 8, "out_pairing": "neox"}, "pairing"),
        ({"head_dim": 8, "base": 0.0}, "base"),
        ({"head_dim": 8, "base": -10000.0}, "base"),
        ({"head_dim": 8, "base": NAN}, "finite"),
        ({"head_dim": 8, "inv_freq": [1.0, 0.1]}, "inv_freq"),
        ({"head_dim": 4, "inv_freq": [1.0, INF]}, "finite"),
        ({"head_dim": 4, "attention_factor": INF}, "finite"),
    ],
    ids=str,
)
def test_bad_fields(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        rotation_matrix(3, **fields)


@pytest.mark.parametrize(
    "pos", [NAN, [0, INF], 10**41, np.longdouble(1) / 3 if np.finfo(np.longdouble).nmant > 52 else NAN]
)
def test_bad_positions(pos: Any) -> None:
    with pytest.raises(ValueError, match=r"finite|too large|exactly"):
        cos_sin(pos, rotary_dim=4)


@pytest.mark.parametrize("pos", [True, np.array([True]), None, 1j, "x"])
def test_positions_that_are_not_numbers(pos: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        cos_sin(pos, rotary_dim=4)


@pytest.mark.parametrize(
    ("shape", "pos_shape", "keywords", "message"),
    [
        ((5, 4), (3,), {}, "line up"),
        ((2, 5, 4), (5, 2), {}, "line up"),
        ((1, 4), (5,), {}, "line up"),
        ((5, 4), (2, 5), {}, "line up"),
        ((4,), (1,), {}, "line up"),
        ((5, 4), (5,), {"seq_axis": -1}, "seq_axis"),
        ((5, 4), (5,), {"seq_axis": 1}, "seq_axis"),
        ((5, 4), (5,), {"seq_axis": -3}, "seq_axis"),
        ((5, 4), (5,), {"seq_axis": -4}, "seq_axis"),
        ((5, 4), (5,), {"seq_axis": 2}, "seq_axis"),
        ((5, 4), (5,), {"head_dim": 6}, "head_dim"),
        ((5, 3), (5,), {}, "even"),
        ((), (), {}, "scalar"),
    ],
    ids=str,
)
def test_x_and_pos_that_do_not_fit(shape: Any, pos_shape: Any, keywords: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        apply_definition(np.zeros(shape), np.zeros(pos_shape, int), **keywords)


def test_complex_x_unknown_fields_and_no_inverse() -> None:
    with pytest.raises(ValueError, match="complex128"):
        apply_definition(np.zeros((1, 4), complex), 0)
    with pytest.raises(TypeError, match="theta"):
        apply_definition(np.zeros((1, 4)), 0, theta=10000.0)
    with pytest.raises(ValueError, match="no inverse"):
        apply_definition(np.zeros((1, 4)), 0, attention_factor=0.0, inverse=True)
    with pytest.raises(ValueError, match="beyond float64"):
        apply_definition(np.zeros((1, 4)), 0, attention_factor=1e-310, inverse=True)


def test_docstring_examples() -> None:
    failed, tried = doctest.testmod(_definition)
    assert failed == 0
    assert tried >= 5
