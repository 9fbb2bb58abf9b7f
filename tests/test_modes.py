"""Tests of the modes of libraries, and of the compilers of any function, on code of other styles."""

import pytest
from conftest import sample

from rope_array.testing import Target, check_backend
from rope_array.testing._checks import checks
from rope_array.testing._compilers import CannotCompile, library_names
from rope_array.testing._judge import Judge
from rope_array.testing._libraries import LIBRARIES
from rope_array.testing._names import names
from rope_array.testing._outcome import FAILED, INAPPLICABLE, PASSED, outcome_of

torch_only = pytest.mark.library("torch")
jax_only = pytest.mark.library("jax")


def outcome(target, name):
    """Return the outcome and the detail of one check."""
    (check,) = (each for each in checks() if each.name == name)
    return outcome_of(check, Judge(target))


def compiled(rotate, library):
    """Return a target that declares its fields, so that no trial call is compiled."""
    fields = ("base", "pairing", "scaling")
    return Target(rotate, library=library, fields=fields, dtypes=("float32",), declared=True)


def cast(array, dtype):
    return array.to(dtype) if hasattr(array, "to") else array.astype(dtype)


def rotate_by(xp, x, pos, base=10000.0, pairing="interleaved", scaling=None):
    """Plain code with strings, floats and a mapping as fields."""
    width = x.shape[-1]
    place = {"device": x.device} if xp.__name__ == "torch" else {}
    omega = base ** (-xp.arange(0, width, 2, dtype=xp.float64, **place) / width)
    if scaling is not None:
        if scaling["rope_type"] != "linear":
            raise NotImplementedError("scaling is linear only")
        omega = omega / scaling["factor"]
    angle = cast(pos, xp.float64)[..., None] * omega
    angle = angle[:, None] if angle.ndim == 3 and x.ndim == 4 else angle
    cos, sin, wide = xp.cos(angle), xp.sin(angle), cast(x, xp.float64)
    half = pairing == "half"
    a, b = (wide[..., : width // 2], wide[..., width // 2 :]) if half else (wide[..., ::2], wide[..., 1::2])
    y = [a * cos - b * sin, b * cos + a * sin]
    return cast(xp.concatenate(y, -1) if half else xp.stack(y, -1).reshape(x.shape), x.dtype)


def torch_rotate(x, pos, base=10000.0, pairing="interleaved", scaling=None):
    import torch

    return rotate_by(torch, x, pos, base, pairing, scaling)


def jax_rotate(x, pos, base=10000.0, pairing="interleaved", scaling=None):
    import jax.numpy

    return rotate_by(jax.numpy, x, pos, base, pairing, scaling)


# ---- compilers ----


def test_compilers_are_listed_as_libraries():
    assert {"jax:jit", "jax:x64:jit", "torch:compile", *LIBRARIES} <= set(library_names())
    assert names() == library_names()
    assert Target(torch_rotate, library="torch:compile").arrays is LIBRARIES["torch"]
    assert Target(jax_rotate, library="jax:jit").compiled
    assert not Target(jax_rotate, library="jax").compiled


@pytest.mark.parametrize("name", ["definition", "pairing", "scaling_linear", "positions_of_a_batch"])
@pytest.mark.parametrize(
    ("rotate", "library"),
    [
        pytest.param(torch_rotate, "torch:compile", marks=torch_only),
        pytest.param(jax_rotate, "jax:x64:jit", marks=jax_only),
    ],
)
def test_any_code_is_compiled(rotate, library, name):
    assert outcome(compiled(rotate, library), name)[0] == PASSED


@torch_only
def test_every_call_is_compiled_beyond_dynamo_s_limit():
    import torch

    def rotate(x, pos, base=10000.0):
        return x + base if torch.compiler.is_compiling() else x

    call = Target(rotate, library="torch:compile").call
    x, pos = torch.zeros(1, 2, 3, 8), torch.arange(3)
    for base in range(1, 2 * torch._dynamo.config.recompile_limit):
        assert call(x, pos, base=float(base)).mean() == base


@torch_only
def test_code_that_does_not_compile_fails_with_the_reason():
    import torch

    def broken(x, pos, pairing="interleaved", **spec):
        if pairing == "half":
            torch._dynamo.graph_break()
        return torch_rotate(x, pos, pairing=pairing, **spec)

    found, detail = outcome(compiled(broken, "torch:compile"), "pairing")
    assert found == FAILED
    assert "torch.compile(fullgraph=True) cannot compile the call with pairing='half'" in detail
    assert "graph_break" in detail


@torch_only
def test_torch_compile_that_is_disabled_is_no_compiler():
    import torch

    call = Target(torch_rotate, library="torch:compile").call
    with torch._dynamo.config.patch(disable=True), pytest.raises(CannotCompile, match="no compiled"):
        call(torch.ones(1, 2, 3, 8), torch.arange(3))


@torch_only
@pytest.mark.parametrize("library", ["torch", "torch:compile"])
def test_a_compiled_function_keeps_its_own_exception(library):
    import torch

    call = Target(torch_rotate, library=library).call
    with pytest.raises(NotImplementedError, match="linear only"):
        call(torch.ones(1, 2, 3, 8), torch.arange(3), scaling={"rope_type": "ntk", "factor": 2.0})


@jax_only
def test_code_that_jax_cannot_trace_fails_with_the_reason():
    import numpy as np

    def by_numpy(x, pos):
        return LIBRARIES["jax"].asarray(np.asarray(x))

    found, detail = outcome(Target(by_numpy, library="jax:jit", declared=True), "definition")
    assert found == FAILED
    assert "jax.jit cannot compile the call, which runs uncompiled: TracerArrayConversionError" in detail


# ---- modes ----


@torch_only
def test_plain_code_is_right_in_every_mode():
    names = ("no_grad", "autocast", "default_dtype", "vmap", "vmap_of_gradients", "jvp")
    report = check_backend(torch_rotate, library="torch", only=sample(*names))
    outcomes = {result.name: result for result in report.results}
    for name in names:
        assert outcomes[name].outcome == PASSED, outcomes[name]


@torch_only
def test_a_refused_mode_is_not_claimed():
    import torch

    def on_the_default_device(x, pos):
        return torch_rotate(x, pos) * torch.ones(1)

    target = Target(on_the_default_device, library="torch")
    assert "meta" in target.declines["default_device"]
    assert outcome(target, "default_device")[0] == INAPPLICABLE


@torch_only
def test_a_rotation_by_matrices_may_be_narrow_under_autocast():
    import torch

    def by_matrices(x, pos, base=10000.0):
        width = x.shape[-1]
        omega = base ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
        angle = pos.double()[..., None] * omega
        angle = angle[:, None] if angle.ndim == 3 and x.ndim == 4 else angle
        cos, sin = angle.cos(), angle.sin()
        matrix = torch.stack([torch.stack([cos, -sin], -1), torch.stack([sin, cos], -1)], -2)
        wide = x if x.dtype == torch.float64 else x.float()
        return (matrix.to(wide.dtype) @ wide.reshape(*x.shape[:-1], -1, 2, 1)).reshape(x.shape).to(x.dtype)

    assert outcome(Target(by_matrices, library="torch"), "autocast") == (PASSED, "")


@jax_only
@pytest.mark.parametrize("name", ["jax_enable_x64", "jax_default_matmul_precision"])
def test_a_setting_of_jax_that_is_changed_for_the_process_is_found(name):
    import jax

    before = getattr(jax.config, name)

    def setting(x, pos):
        jax.config.update(name, True if name == "jax_enable_x64" else "highest")
        return x

    try:
        found, detail = outcome(Target(setting, library="jax", declared=True), "settings_unchanged")
    finally:
        jax.config.update(name, before)
    assert found == FAILED
    assert name in detail
