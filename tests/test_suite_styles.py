"""The suite passes correct code in other styles: plain code of each library, in its modes, compiled."""

import importlib

import faults
import numpy as np
import pytest
from conftest import sample

from rope_array.testing import Target, check_backend
from rope_array.testing._checks import checks
from rope_array.testing._compilers import CannotCompile, library_names
from rope_array.testing._judge import Judge
from rope_array.testing._libraries import LIBRARIES
from rope_array.testing._outcome import FAILED, INAPPLICABLE, PASSED, outcome_of

torch_only = pytest.mark.library("torch")
jax_only = pytest.mark.library("jax")


@pytest.fixture
def torch():
    return importlib.import_module("torch")


def outcome(target, name):
    """Return the outcome and the detail of one check, without a search for the simplest call that fails."""
    (check,) = (check for check in checks() if check.name == name)
    judge = Judge(target)
    judge.explains = False
    return outcome_of(check, judge)


def cast(array, dtype):
    return array.to(dtype) if hasattr(array, "to") else array.astype(dtype)


def angles(x, pos, base, xp=np):
    """Return angles in float64; positions of shape (B, S) apply to all heads."""
    place = {"device": x.device} if xp.__name__ == "torch" else {}
    exponents = -xp.arange(0, x.shape[-1], 2, dtype=xp.float64, **place) / x.shape[-1]
    numbers = pos if hasattr(pos, "dtype") else np.asarray(pos)
    angle = cast(numbers, xp.float64)[..., None] * base**exponents
    return angle[:, None] if angle.ndim == 3 and x.ndim == 4 else angle


# ---- NumPy ----


def by_rotate_half(x, pos, base=10000.0, pairing="half"):
    if pairing != "half":
        raise NotImplementedError("halves only")
    angle = np.concatenate([angles(x, pos, base)] * 2, axis=-1)
    a, b = np.split(x.astype(np.float64), 2, axis=-1)
    y = x.astype(np.float64) * np.cos(angle) + np.concatenate([-b, a], axis=-1) * np.sin(angle)
    return y.astype(x.dtype)


def by_view_as_complex(x, pos, base=10000.0):
    pairs = np.ascontiguousarray(x, np.float64).view(np.complex128) * np.exp(1j * angles(x, pos, base))
    return pairs.view(np.float64).astype(x.dtype)


def by_matrix(x, pos, *, base=10000.0):
    angle = angles(x, pos, base)
    first = np.arange(0, x.shape[-1], 2)
    matrix = np.zeros((*angle.shape[:-1], x.shape[-1], x.shape[-1]))
    matrix[..., first, first] = matrix[..., first + 1, first + 1] = np.cos(angle)
    matrix[..., first + 1, first] = np.sin(angle)
    matrix[..., first, first + 1] = -np.sin(angle)
    return np.einsum("...ij,...j->...i", matrix, x.astype(np.float64)).astype(x.dtype)


def in_float32(x, cos, sin):
    """Rotate with tables and products of float32, unless x is float64."""
    dtype = np.float64 if x.dtype == np.float64 else np.float32
    a, b, cos, sin = (array.astype(dtype) for array in (x[..., ::2], x[..., 1::2], cos, sin))
    return np.stack([a * cos - b * sin, a * sin + b * cos], axis=-1).reshape(x.shape).astype(x.dtype)


def by_float32_tables(x, pos, base=10000.0):
    angle = angles(x, pos, base)
    return in_float32(x, np.cos(angle), np.sin(angle))


def by_float32_remainders(x, pos, base=10000.0):
    """Reduce float64 angles to one turn; round the remainder to float32 unless x is float64."""
    dtype = np.float64 if x.dtype == np.float64 else np.float32
    angle = np.mod(angles(x, pos, base), 2 * np.pi).astype(dtype)
    return in_float32(x, np.cos(angle), np.sin(angle))


# The checks whose bounds depend on how code computes.
CHECKS = ("definition", "accuracy_small", "accuracy_int32", "accuracy_wide", "combinations", "memory",
          "positions_of_a_batch", "magnitudes", "nonfinite", "zero_size", "norm")  # fmt: skip
STYLES = [by_rotate_half, by_view_as_complex, by_matrix, by_float32_tables, by_float32_remainders]


@pytest.mark.parametrize("rotate", STYLES)
def test_correct_code_in_another_style_passes(rotate):
    report = check_backend(rotate, only=sample(*CHECKS))
    passed = {result.name for result in report.of(PASSED)}
    assert {"definition", "accuracy_int32[float32]", "positions_of_a_batch"} <= passed


# ---- PyTorch and JAX ----


def compiled(rotate, library):
    """Return a target that declares its fields, so that no trial call is compiled."""
    fields = ("base", "pairing", "scaling")
    return Target(rotate, library=library, fields=fields, dtypes=("float32",), declared=True)


def plain(module):
    """Return plain code of PyTorch or JAX, with strings, floats and a mapping as fields."""
    xp = importlib.import_module(module)

    def rotate(x, pos, base=10000.0, pairing="interleaved", scaling=None):
        factor = 1.0 if scaling is None else scaling["factor"]
        if scaling is not None and scaling["rope_type"] != "linear":
            raise NotImplementedError("scaling is linear only")  # a refusal that the suite accepts
        angle, x64 = angles(x, pos, base, xp) / factor, cast(x, xp.float64)
        cos, sin, half, middle = xp.cos(angle), xp.sin(angle), pairing == "half", x.shape[-1] // 2
        a, b = (x64[..., :middle], x64[..., middle:]) if half else (x64[..., ::2], x64[..., 1::2])
        y = [a * cos - b * sin, b * cos + a * sin]
        return cast(xp.concatenate(y, -1) if half else xp.stack(y, -1).reshape(x.shape), x.dtype)

    return rotate


@torch_only
def test_torch_code_passes_in_every_mode():
    modes = ["no_grad", "autocast", "default_dtype", "vmap", "vmap_of_gradients", "jvp"]
    report = check_backend(plain("torch"), library="torch", only=sample(*modes, "gradient", "memory"))
    assert {*modes, "gradient[float32]"} <= {result.name for result in report.of(PASSED)}


def by_torch_promotion(x, pos, base=10000.0):
    """Multiply 16-bit numbers by tables of float32: each product is rounded for the gradient."""
    import torch

    angle = angles(x, pos, base, torch)
    cos, sin = (table if x.itemsize == 8 else table.float() for table in (angle.cos(), angle.sin()))
    a, b = x[..., ::2], x[..., 1::2]
    return torch.stack([a * cos - b * sin, b * cos + a * sin], -1).flatten(-2).to(x.dtype)


@faults.each
def by_torch_with_a_gradient_in_16_bits(x, pos, base=10000.0):
    def backward(gradient, pos):
        import torch

        angle = angles(gradient, pos, base, torch)
        cos, sin = angle.cos().to(gradient.dtype), angle.sin().to(gradient.dtype)
        a, b = gradient[..., ::2], gradient[..., 1::2]
        return torch.stack([a * cos + b * sin, b * cos - a * sin], -1).flatten(-2)

    return faults.torch_with_gradient(x, pos, {"base": base}, backward)


@torch_only
@pytest.mark.parametrize("dtype", ["bfloat16", pytest.param("float16", marks=pytest.mark.nightly)])
def test_gradients_of_16_bits_may_add_rounded_products_and_no_more(dtype):
    styles = by_torch_promotion, by_torch_with_a_gradient_in_16_bits
    targets = [Target(rotate, library="torch", dtypes=(dtype,), angles="float64") for rotate in styles]
    promoted, narrow = (outcome(target, "gradient_combinations") for target in targets)
    assert promoted[0] == PASSED, promoted
    assert narrow[0] == FAILED
    assert f"error of {dtype} arithmetic" in narrow[1]


# Each shape and dtype is compiled.
ONE_SIZE = pytest.param({"dtypes": ("float32",), "layout": "sd", "head_dim": 16, "fields": ()}, id="one size")


@pytest.mark.slow
@jax_only
@pytest.mark.parametrize("claims", [ONE_SIZE, pytest.param({}, id="every claim", marks=pytest.mark.nightly)])
def test_correct_jax_code_passes(claims):
    code = plain("jax.numpy")
    # Without jit, each operation would be compiled for each shape.
    rotate = importlib.import_module("jax").jit(lambda x, pos, base=10000.0: code(x, pos, base))
    names = ("definition", "gradient", "jit", "positions_of_a_batch")
    report = check_backend(rotate, library="jax:x64", only=sample(*names), **claims)
    assert {"gradient[float32]", "jit"} <= {result.name for result in report.of(PASSED)}


# ---- compilers ----


def test_compilers_are_listed_as_libraries():
    assert {"jax:jit", "jax:x64:jit", "torch:compile", *LIBRARIES} <= set(library_names())
    assert Target(by_matrix, library="torch:compile").arrays is LIBRARIES["torch"]
    assert Target(by_matrix, library="jax:jit").compiled
    assert not Target(by_matrix, library="jax").compiled


BY_TORCH = pytest.param("torch", "torch:compile", marks=torch_only)
BY_JAX = pytest.param("jax.numpy", "jax:x64:jit", marks=jax_only)


@pytest.mark.parametrize("name", ["pairing", "scaling_linear", "positions_of_a_batch"])
@pytest.mark.parametrize(("module", "library"), [BY_TORCH, BY_JAX])
def test_any_code_is_compiled(module, library, name):
    assert outcome(compiled(plain(module), library), name)[0] == PASSED


@torch_only
def test_every_call_is_compiled_beyond_dynamo_s_limit(torch):
    def rotate(x, pos, base=10000.0):
        return x + base if torch.compiler.is_compiling() else x

    call = Target(rotate, library="torch:compile").call
    x, pos = torch.zeros(1, 2, 3, 8), torch.arange(3)
    with torch._dynamo.config.patch(recompile_limit=2):
        for base in range(1, 5):
            assert call(x, pos, base=float(base)).mean() == base


@torch_only
def test_code_that_does_not_compile_fails_with_the_reason(torch):
    rotate = plain("torch")

    def broken(x, pos, pairing="interleaved", **spec):
        if pairing == "half":
            torch._dynamo.graph_break()
        return rotate(x, pos, pairing=pairing, **spec)

    verdict, detail = outcome(compiled(broken, "torch:compile"), "pairing")
    assert verdict == FAILED
    assert "torch.compile(fullgraph=True) cannot compile the call with pairing='half'" in detail
    assert "graph_break" in detail


@torch_only
def test_torch_compile_that_is_disabled_is_no_compiler(torch):
    call = Target(plain("torch"), library="torch:compile").call
    with torch._dynamo.config.patch(disable=True), pytest.raises(CannotCompile, match="no compiled"):
        call(torch.ones(1, 2, 3, 8), torch.arange(3))


@torch_only
@pytest.mark.parametrize("library", ["torch", "torch:compile"])
def test_a_compiled_function_keeps_its_own_exception(library, torch):
    call = Target(plain("torch"), library=library).call
    with pytest.raises(NotImplementedError, match="linear only"):
        call(torch.ones(1, 2, 3, 8), torch.arange(3), scaling={"rope_type": "ntk", "factor": 2.0})


@jax_only
def test_code_that_jax_cannot_trace_fails_with_the_reason():
    def by_numpy(x, pos):
        return LIBRARIES["jax"].asarray(np.asarray(x))

    verdict, detail = outcome(Target(by_numpy, library="jax:jit", declared=True), "definition")
    assert verdict == FAILED
    assert "jax.jit cannot compile the call, which runs uncompiled: TracerArrayConversionError" in detail


# ---- modes ----


@torch_only
def test_a_refused_mode_is_not_claimed(torch):
    rotate = plain("torch")

    def on_the_default_device(x, pos):
        return rotate(x, pos) * torch.ones(1)

    target = Target(on_the_default_device, library="torch")
    assert "meta" in target.declines["default_device"]
    assert outcome(target, "default_device")[0] == INAPPLICABLE


@torch_only
def test_a_rotation_by_matrices_may_be_narrow_under_autocast(torch):
    def by_matrices(x, pos, base=10000.0):
        angle = angles(x, pos, base, torch)
        cos, sin = angle.cos(), angle.sin()
        matrix = torch.stack([torch.stack([cos, -sin], -1), torch.stack([sin, cos], -1)], -2)
        x32 = x if x.dtype == torch.float64 else x.float()
        return (matrix.to(x32.dtype) @ x32.reshape(*x.shape[:-1], -1, 2, 1)).reshape(x.shape).to(x.dtype)

    assert outcome(Target(by_matrices, library="torch"), "autocast") == (PASSED, "")
