"""The contract's bounds are proved by Sollya and Gappa; arithmetic that breaks the bounds fails.

Collected only with `--proof` (`nox -s proof`), as it needs these programs. The library's functions are
replaced by mutants; a mutant breaks its bound or has a form that the proof refuses.
"""

import contextlib
import functools
import json
import os
import sys
from fractions import Fraction
from math import pi
from pathlib import Path

import numpy as np
import pytest

from rope_array._array_api import angles, pairs
from rope_array.testing._contract import AT_INTEGERS, ROTATED

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT))  # at the end: the folder's rope_array must not shadow the installed one

from proof import approximation, kernel, recorded, report, theorems, tools  # noqa: E402
from proof.expressions import ProofError  # noqa: E402

MISSING = [] if os.environ.get("ROPE_ARRAY_REQUIRE_PROOF") else tools.missing()
REASON = f"not installed: {', '.join(MISSING)} (Debian, Ubuntu: apt install sollya gappa)"
pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(MISSING), reason=REASON)]
DTYPES = ("float32", "float64")
# Errors are largest near an eighth of a turn, so mutants are tried there.
LAST = Fraction(15, 16)
bounds = functools.cache(theorems.prove)


def last_cells(dtype):
    """Return whether the contract is proved for integer positions, no amplitude and the largest angles."""
    theorems.check_kernel(dtype)
    _, cells = theorems.bound_cells(dtype, above=LAST)
    tables = max(max(cell.error.values()) for cell in cells)
    rotated = max(theorems._largest(dtype, cell.error, cell.value) for cell in cells)
    last = theorems.unit(dtype)
    return (
        tables <= Fraction(AT_INTEGERS[dtype])
        and rotated <= 2 * last * Fraction(ROTATED[dtype][0])
        and rotated + last * (1 + rotated) <= 2 * last * Fraction(ROTATED["bfloat16"][0])
    )


def test_proved_bounds_are_within_the_contract_and_in_the_docs(capsys):
    rows = [row for dtype in DTYPES for row in report.rows_of(dtype, bounds(dtype))]
    with capsys.disabled():
        print(f"\n{report.table(rows)}")
    assert [row for row in rows if not row.holds] == []
    assert report.table(rows) in (ROOT / "docs" / "numerics.md").read_text("utf-8")


def test_proved_bound_is_just_above_the_largest_error_of_all_remainders():
    """tests/long/exhaustive.py computed every remainder; a bound far above its maxima would be poor."""
    record = max((ROOT / "bench" / "results").glob("*-exhaustive.json"))
    libraries = json.loads(record.read_text("utf-8"))["numbers"].values()
    for name in ("cos", "sin"):
        worst = max(row[f"max_error_{name}"] for row in libraries)
        assert worst < getattr(bounds("float32"), name) < 1.1 * worst


@pytest.mark.parametrize("dtype", DTYPES)
def test_unfused_operations_have_no_larger_bound_and_constants_are_as_good_as_sollyas(dtype):
    _, cells = theorems.bound_cells(dtype, fused=False, above=LAST)
    for name in ("cos", "sin"):
        # Gappa rounds intervals outward, in other places.
        assert max(cell.error[name] for cell in cells) <= getattr(bounds(dtype), name) * Fraction(101, 100)
    fits = approximation.fits(dtype)
    assert all(bounds(dtype).approximation[name] <= fits[name] for name in fits)


def test_stated_approximation_errors_are_proved():
    """angles.py and the docs state the errors of sin and cos, in float32 and in float64."""
    proved = {"float32": ("5.1e-9", "4.1e-10"), "float64": ("2.2e-18", "3.1e-19")}
    files = [ROOT / "rope_array" / "_array_api" / "angles.py", ROOT / "docs" / "numerics.md"]
    texts = [" ".join(path.read_text("utf-8").replace("\n#", " ").split()) for path in files]
    for dtype, (sin, cos) in proved.items():
        assert bounds(dtype).approximation["sin"] <= Fraction(sin)
        assert bounds(dtype).approximation["cos"] <= Fraction(cos)
        assert all(f"{sin} and {cos}" in text for text in texts)


def test_recorded_expressions_compute_what_the_functions_compute():
    """The recorded nodes, evaluated in NumPy, have the bits of the function."""
    u = np.linspace(-1, 1, 1001, dtype=np.float32)
    for expression, expected in zip(recorded.tables("float32"), angles.polynomials32(u), strict=True):
        np.testing.assert_array_equal(evaluated(expression, {"u": u}), expected)


def evaluated(node, leaves):
    if node.op == "leaf":
        return leaves[node.operands[0]]
    if node.op == "constant":
        return np.float32(node.operands[0])
    x, y = (evaluated(operand, leaves) for operand in node.operands)
    return {"add": np.add, "sub": np.subtract, "mul": np.multiply}[node.op](x, y)


# ---- mutants ----


@pytest.mark.parametrize("dtype", DTYPES)
def test_unchanged_code_is_proved_near_an_eighth_of_a_turn(dtype):
    assert last_cells(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["SIN", "COS"])
@pytest.mark.parametrize("place", [0, pytest.param(1, marks=pytest.mark.nightly), -1])
def test_a_changed_constant_fails(monkeypatch, dtype, name, place):
    """One unit in the last place of the first constants, a part in a hundred of the last."""
    monkeypatch.setattr(kernel, "source", changed_kernel(monkeypatch, dtype, f"{name}_{dtype[-2:]}", place))
    assert not last_cells(dtype)


def changed_kernel(monkeypatch, dtype, name, place):
    """Change a constant of angles.py; return the kernel's source with the same change."""
    constants = list(getattr(angles, name))
    real, old = np.dtype(dtype).type, constants[place]
    steps = 1 if place == 0 else 4
    new = float(real(old) + steps * np.spacing(real(old))) if place >= 0 else float(real(old * 1.01))
    constants[place] = new
    monkeypatch.setattr(angles, name, tuple(constants))
    text = {name: kernel.source(name) for name in ("angles", "rotate")}
    assert repr(old) in text["angles"]
    text["angles"] = text["angles"].replace(repr(old), repr(new))
    return lambda name="angles": text[name]


def one_is_added_first(u):
    z = u * u
    s0, s1, s2, s3 = angles.SIN_32
    c1, c2, c3, c4 = angles.COS_32
    cos = (((z * c1 + 1.0) + z * z * c2) + z * z * z * c3) + z * z * z * z * c4
    return cos, u * (((z * s3 + s2) * z + s1) * z + s0)


def one_term_less(u):
    z = u * u
    s0, s1, s2, _ = angles.SIN_32
    c1, c2, c3, _ = angles.COS_32
    return ((z * c3 + c2) * z + c1) * z + 1.0, u * ((z * s2 + s1) * z + s0)


def another_sign_of_a_quadrant(quadrant, *tables, rotate=angles.rotate_quadrants):
    return rotate(quadrant + 2 * (quadrant % 4 == 3), *tables)


def products_rounded_to_the_dtype_of_x(x, cos, sin, layout, ops):
    a, b = (ops.cast(x[..., index], cos.dtype) for index in (np.s_[:1], np.s_[1:]))
    a_cos, a_sin = (ops.cast(ops.cast(a * table, x.dtype), cos.dtype) for table in (cos, sin))
    return [ops.cast(a_cos - b * sin, x.dtype), ops.cast(b * cos + a_sin, x.dtype)]


@pytest.mark.parametrize(
    ("module", "name", "mutant"),
    [
        (angles, "polynomials32", one_is_added_first),
        (angles, "polynomials32", one_term_less),
        (angles, "rotate_quadrants", another_sign_of_a_quadrant),
        (pairs, "_rotate_block", products_rounded_to_the_dtype_of_x),
        # The number of an eighth's bits, an eighth, its mask, the unit.
        (angles, "_SPLIT32", (30, 2**28, 2**30 - 1, 2.0**-29)),
        (angles, "_SPLIT32", (30, 2**29, 2**29 - 1, 2.0**-29)),
        (angles, "_SPLIT32", (29, 2**29, 2**30 - 1, 2.0**-29)),
        (angles, "_SPLIT32", (30, 2**29, 2**30 - 1, 2.0**-30)),
    ],
)
def test_other_arithmetic_fails(monkeypatch, module, name, mutant):
    """If the C++ kernel had the same mutant too."""
    monkeypatch.setattr(theorems, "check_kernel", lambda dtype: None)
    monkeypatch.setattr(module, name, mutant)
    with contextlib.suppress(ProofError):
        assert not last_cells("float32")


def test_an_amplitude_that_multiplies_twice_fails(monkeypatch):
    monkeypatch.setattr(angles, "_amplified", lambda cos, sin, amplitude, *_: (cos * amplitude * 1.0, sin))
    with pytest.raises(ProofError, match="amplitude"):
        theorems.check_amplified("float32")


def test_frequencies_of_an_array_that_are_rounded_twice_fail(monkeypatch):
    """4/π is one factor, whose error the proof has."""
    factors = {"two": lambda radians, *_: radians * 4.0 * (1 / pi), "rounded": lambda r, *_: r * 1.2732}
    for in_eighths in factors.values():
        monkeypatch.setattr(angles, "_in_eighths", in_eighths)
        with pytest.raises(ProofError, match=r"4|1\.27"):
            theorems._sum_error("float32", of_array=True)


KERNELS = {
    "Horner": ("c[k] = (c[k] + COS) * z[k]", "c[k] = z[k] * COS + c[k] * z[k]"),
    "end": ("(c[k] + Table::cos(0)) * z[k] + Real{1}", "c[k] * z[k] + (Table::cos(0) * z[k] + Real{1})"),
    "unknown": ("s[k] = u[k] * (s[k] + Table::sin(0))", "s[k] = fma(u[k], s[k], u[k] * Table::sin(0))"),
    "order": ("SIN = Table::sin(TOP - 1 - i)", "SIN = Table::sin(i)"),
    "vectors": ("return rope::select(mask, a, b);", "return rope::select(mask, b, a);"),
    "unit": ("0x1p-31", "0x1p-30"),
    "quadrant": ("select(odd, -signed_s, signed_c)", "select(odd, signed_s, signed_c)"),
    "fraction": ("u = u - (sum - ROUNDER);", "u = u - (sum + ROUNDER);"),
    "quarters": ("0x1.8p24 : 0x1.8p53", "0x1.8p23 : 0x1.8p53"),
    "eighth": ("Word{1} << (BITS - 3)", "Word{1} << (BITS - 4)"),
    "constant": ("-0.3084251284599304f", "-0.3084251f"),
    "amplitude": ("sin[k] = sin[k] * sin_amplitude_;", "sin[k] = sin[k] * cos_amplitude_;"),
    "rotation": ("a * cos - b * sin", "a * cos + b * sin"),
}


@pytest.mark.parametrize("mutant", KERNELS)
def test_another_kernel_fails(monkeypatch, mutant):
    old, new = KERNELS[mutant]
    text = {name: kernel.source(name) for name in ("angles", "rotate")}
    assert old in "".join(text.values())
    monkeypatch.setattr(kernel, "source", lambda name="angles": text[name].replace(old, new))
    with pytest.raises(ProofError):
        theorems.check_kernel("float32")
