"""Tests of the checks: every mutant fails the checks named for it, and correct code passes."""

import time

import faults
import numpy as np
import pytest
from conftest import sample

import rope_array as ra
from rope_array.testing import Target, check_backend
from rope_array.testing._checks import _state, checks
from rope_array.testing._judge import Judge
from rope_array.testing._outcome import FAILED, PASSED, outcome_of


def base_name(check):
    return check.name.partition("[")[0]


def session_of(library):
    return library.partition(":")[0].replace("array_api_strict", "strict")


MUTANTS = faults.load_mutants()
BY_NAME = {mutant.name: mutant for mutant in MUTANTS}
CASES = [
    pytest.param(name, id=name, marks=pytest.mark.library(session_of(mutant.library)))
    for name, mutant in BY_NAME.items()
]


@pytest.mark.parametrize("name", CASES)
def test_a_mutant_fails_its_named_checks(name):
    judge, outcomes = Judge(BY_NAME[name].target(), thorough=True), {}
    judge.explains = False  # no search for the simplest call that fails
    for check in checks():
        if base_name(check) in BY_NAME[name].failed_checks:
            outcomes.setdefault(base_name(check), set()).add(outcome_of(check, judge)[0])
    assert set(outcomes) == set(BY_NAME[name].failed_checks)
    assert [check for check, results in outcomes.items() if FAILED not in results] == []


@pytest.mark.parametrize(
    "library",
    [
        pytest.param(library, id=library, marks=pytest.mark.library(session_of(library)))
        for library in ("array_api_strict:device1", "jax:x64")
    ],
)
def test_without_the_fault_the_same_checks_pass(library):
    """A check that always fails would fail for every mutant too; `test_conforms` has the other libraries."""
    named = {check for mutant in MUTANTS if mutant.library == library for check in mutant.failed_checks}
    judge = Judge(faults.target(ra.apply, library), thorough=True)
    results = {check.name: outcome_of(check, judge) for check in checks() if base_name(check) in named}
    assert {name: result for name, result in results.items() if result[0] == FAILED} == {}
    assert PASSED in {outcome for outcome, _ in results.values()}


def test_mutants_have_unique_names():
    assert len(BY_NAME) == len(MUTANTS) >= 20


def test_every_check_kills_a_mutant():
    named = {check for mutant in MUTANTS for check in mutant.failed_checks}
    # Its mutant ends the process: see test_suite.py. The other needs eight devices: see test_jax.py.
    in_a_child = {"refusals_raise", "positions_of_a_shard"}
    assert sorted({base_name(check) for check in checks()} ^ (named | in_a_child)) == []


# ---- correct code in other styles, passed without a Target ----


def angles(x, pos, base):
    """Return angles in float64; positions of shape (B, S) apply to all heads."""
    width = x.shape[-1]
    angle = np.asarray(pos, np.float64)[..., None] * base ** (-np.arange(0, width, 2) / width)
    return angle[:, None] if angle.ndim == 3 and x.ndim == 4 else angle


def by_rotate_half(x, pos, base=10000.0, pairing="half"):
    if pairing != "half":
        raise NotImplementedError("halves only")
    angle = np.concatenate([angles(x, pos, base)] * 2, axis=-1)
    a, b = np.split(x.astype(np.float64), 2, axis=-1)
    y = x.astype(np.float64) * np.cos(angle) + np.concatenate([-b, a], axis=-1) * np.sin(angle)
    return y.astype(x.dtype)


def by_complex_numbers(x, pos, base=10000.0):
    pairs = x[..., ::2] + 1j * x[..., 1::2].astype(np.float64)
    turned = pairs * np.exp(1j * angles(x, pos, base))
    return np.stack([turned.real, turned.imag], axis=-1).reshape(x.shape).astype(x.dtype)


def by_view_as_complex(x, pos, base=10000.0):
    turned = np.ascontiguousarray(x, np.float64).view(np.complex128) * np.exp(1j * angles(x, pos, base))
    return turned.view(np.float64).astype(x.dtype)


def by_matrix(x, pos, *, base=10000.0):
    angle = angles(x, pos, base)
    first = np.arange(0, x.shape[-1], 2)
    matrix = np.zeros((*angle.shape[:-1], x.shape[-1], x.shape[-1]))
    matrix[..., first, first] = matrix[..., first + 1, first + 1] = np.cos(angle)
    matrix[..., first + 1, first] = np.sin(angle)
    matrix[..., first, first + 1] = -np.sin(angle)
    return np.einsum("...ij,...j->...i", matrix, x.astype(np.float64)).astype(x.dtype)


def by_matrix_product(x, pos, *, base=10000.0):
    angle = angles(x, pos, base)
    cos, sin = np.cos(angle), np.sin(angle)
    matrix = np.stack([np.stack([cos, -sin], -1), np.stack([sin, cos], -1)], -2)
    pairs = x.astype(np.float64).reshape(*x.shape[:-1], -1 if x.size else x.shape[-1] // 2, 2, 1)
    return (matrix @ pairs).reshape(x.shape).astype(x.dtype)


def by_loop(x, pos, base=10000.0, pairing="interleaved", rotary_dim=None):
    width = x.shape[-1] if rotary_dim is None else rotary_dim
    y, numbers = x.copy(), np.asarray(pos, np.float64)
    numbers = np.broadcast_to(numbers[:, None] if numbers.ndim == 2 else numbers, x.shape[:-1])
    for i in range(width // 2):
        one, other = (2 * i, 2 * i + 1) if pairing == "interleaved" else (i, i + width // 2)
        angle = numbers * base ** (-2 * i / width)
        a, b = x[..., one].astype(np.float64), x[..., other].astype(np.float64)
        y[..., one] = a * np.cos(angle) - b * np.sin(angle)
        y[..., other] = b * np.cos(angle) + a * np.sin(angle)
    return y


def by_float32_tables(x, pos, base=10000.0):
    """Compute angles in float64, cos and sin in float32 unless x is float64."""
    dtype = np.float64 if x.dtype == np.float64 else np.float32
    cos, sin = (f(angles(x, pos, base)).astype(dtype) for f in (np.cos, np.sin))
    wide, y = x.astype(dtype), np.empty(x.shape, dtype)
    y[..., ::2] = wide[..., ::2] * cos - wide[..., 1::2] * sin
    y[..., 1::2] = wide[..., ::2] * sin + wide[..., 1::2] * cos
    return y.astype(x.dtype)


def by_float32_remainders(x, pos, base=10000.0):
    """Reduce float64 angles to one turn; round the remainder to float32 unless x is float64."""
    dtype = np.float64 if x.dtype == np.float64 else np.float32
    angle = np.mod(angles(x, pos, base), 2 * np.pi).astype(dtype)
    a, b = x[..., ::2].astype(dtype), x[..., 1::2].astype(dtype)
    y = [a * np.cos(angle) - b * np.sin(angle), a * np.sin(angle) + b * np.cos(angle)]
    return np.stack(y, axis=-1).reshape(x.shape).astype(x.dtype)


def by_ours(x, pos, **spec):
    return ra.apply(x, pos, **spec)


STYLES = [
    by_rotate_half, by_complex_numbers, by_view_as_complex, by_matrix, by_matrix_product, by_loop,
    by_float32_tables, by_float32_remainders, by_ours,
]  # fmt: skip


@pytest.mark.parametrize("rotate", STYLES)
def test_correct_code_in_another_style_passes(rotate):
    # The checks whose bounds depend on how code computes; two styles are judged by all.
    names = ("definition", "accuracy_small", "accuracy_int32", "accuracy_wide", "combinations", "memory",
             "positions_of_a_batch", "magnitudes", "nonfinite", "zero_size", "norm")  # fmt: skip
    report = check_backend(rotate, only=() if rotate in (by_ours, by_rotate_half) else sample(*names))
    assert {"definition", "accuracy_int32[float32]", "positions_of_a_batch"} <= {
        result.name for result in report.of(PASSED)
    }


def torch_angles(x, pos, base):
    torch = pytest.importorskip("torch")
    width = x.shape[-1]
    angle = pos.double()[..., None] * base ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
    return angle[:, None] if angle.ndim == 3 and x.ndim == 4 else angle


def by_torch_stack(x, pos, base=10000.0):
    angle = torch_angles(x, pos, base)
    a, b = x[..., ::2].double(), x[..., 1::2].double()
    y = [a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()]
    return pytest.importorskip("torch").stack(y, -1).flatten(-2).to(x.dtype)


def by_torch_complex(x, pos, base=10000.0):
    torch = pytest.importorskip("torch")
    angle = torch_angles(x, pos, base)
    pairs = torch.view_as_complex(x.double().reshape(*x.shape[:-1], -1, 2).contiguous())
    return torch.view_as_real(pairs * torch.polar(torch.ones_like(angle), angle)).flatten(-2).to(x.dtype)


@pytest.mark.library("torch")
@pytest.mark.parametrize("rotate", [by_torch_stack, by_torch_complex])
def test_correct_torch_code_passes(rotate):
    # The library's own code for PyTorch passes every check in each run.
    names = ("gradient", "gradient_combinations", "combinations", "autocast", "vmap", "memory", "many_rows")
    report = check_backend(rotate, library="torch", only=sample(*names))
    assert "gradient[float32]" in {result.name for result in report.of(PASSED)}


def by_torch_promotion(x, pos, base=10000.0):
    """Multiply 16-bit numbers by tables of float32: each product is rounded for the gradient."""
    angle = torch_angles(x, pos, base)
    cos, sin = angle.cos(), angle.sin()
    if x.itemsize < 8:
        cos, sin = cos.float(), sin.float()
    a, b = x[..., ::2], x[..., 1::2]
    return (
        pytest.importorskip("torch").stack([a * cos - b * sin, b * cos + a * sin], -1).flatten(-2).to(x.dtype)
    )


def by_torch_with_a_gradient_in_16_bits(x, pos, base=10000.0):
    torch = pytest.importorskip("torch")
    angle = torch_angles(x, pos, base)
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)

    class Rotated(torch.autograd.Function):
        @staticmethod
        def forward(context, x):
            return by_torch_promotion(x, pos, base)

        @staticmethod
        def backward(context, gradient):
            a, b = gradient[..., ::2], gradient[..., 1::2]
            return torch.stack([a * cos + b * sin, b * cos - a * sin], -1).flatten(-2)

    return Rotated.apply(x)


@pytest.mark.library("torch")
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_gradients_of_16_bits_may_add_rounded_products_and_no_more(dtype):
    found = []
    for rotate in (by_torch_promotion, by_torch_with_a_gradient_in_16_bits):
        judge = Judge(Target(rotate, library="torch", dtypes=(dtype,), angles="float64"))
        judge.explains = False
        (named,) = (check for check in checks() if check.name == "gradient_combinations")
        found.append(outcome_of(named, judge))
    assert found[0][0] == PASSED, found[0]
    assert found[1][0] == FAILED
    assert f"within the error of {dtype} arithmetic" in found[1][1]


@pytest.mark.slow
@pytest.mark.library("jax")
@pytest.mark.parametrize(
    "claims",
    [  # each shape and dtype is compiled
        pytest.param({"dtypes": ("float32",), "layout": "sd", "head_dim": 16, "fields": ()}, id="one size"),
        pytest.param({}, id="every claim", marks=pytest.mark.nightly),
    ],
)
def test_correct_jax_code_passes(claims):
    jax, jnp = pytest.importorskip("jax"), pytest.importorskip("jax.numpy")

    @jax.jit  # without jit, each operation would be compiled for each shape
    def rotate(x, pos, base=10000.0):
        width = x.shape[-1]
        angle = pos[..., None].astype(jnp.float64) * base ** (-jnp.arange(0, width, 2) / width)
        angle = angle[:, None] if angle.ndim == 3 and x.ndim == 4 else angle
        a, b = x[..., ::2].astype(jnp.float64), x[..., 1::2].astype(jnp.float64)
        y = [a * jnp.cos(angle) - b * jnp.sin(angle), b * jnp.cos(angle) + a * jnp.sin(angle)]
        return jnp.stack(y, -1).reshape(x.shape).astype(x.dtype)

    names = ("definition", "gradient", "jit", "positions_of_a_batch", "combinations", "memory", "many_rows")
    report = check_backend(rotate, library="jax:x64", only=sample(*names), **claims)
    assert {"gradient[float32]", "jit"} <= {result.name for result in report.of(PASSED)}


@pytest.mark.library("numpy")
def test_slow_code_is_called_less_often_from_threads(monkeypatch):
    """Code of JAX that compiles at each call takes 0.1 s for it; the check would not end in time."""
    calls = []

    def rotate(x, pos):
        calls.append(time.sleep(0.002))
        return ra.apply(x, pos)

    monkeypatch.setattr(_state, "_MOST_SECONDS", 0.1)
    (named,) = (check for check in checks() if check.name == "threads_of_many_positions")
    assert outcome_of(named, Judge(Target(rotate)))[0] == PASSED
    assert 72 < len(calls) < 400  # 864 otherwise, and those that find what is claimed
