"""The C++ kernel in JAX's programs on the CPU: its bits, its calls and its refusals."""

import functools
import os
import shutil
import subprocess
from pathlib import Path

import native_cases
import numpy as np
import pytest
from native_cases import BF16, SEVERAL, SPECS, assert_same, by_array_api, kernel, normal

import rope_array as ra

jax = pytest.importorskip("jax")
_custom_call = pytest.importorskip("rope_array._backends.jax._custom_call")  # registers the handler
pytestmark = pytest.mark.library("jax")

HALF = {"pairing": "half", "base": 500_000.0}
ROPE = ra.RoPE(16, **HALF)
X, POS = normal((2, 3, 5, 16)), np.arange(5, dtype=np.int32) * 1_000_003
TARGET = "rope_array_rotate_2"
NATIVE = Path(__file__).parents[1] / "backends" / "_native"


def program(function, *arguments, **options):
    """Return the text of a compiled program from its entry on."""
    text = jax.jit(function, **options).lower(*arguments).compile().as_text()
    return text[text.index("ENTRY") :]


def calls(function, *arguments):
    """Return how often a compiled program calls the kernel."""
    return program(function, *arguments).count(f'custom_call_target="{TARGET}"')


def gradient(x, pos):
    return jax.vjp(lambda x: ROPE.apply(x, pos), x)[1](x)[0]


def by_tables(x, pos):
    return ROPE.rotation(pos, like=x).apply(x)


# ---- the interface of XLA ----

STRUCTS = Path(__file__).with_name("xla_structs.txt").read_text("utf-8").splitlines()[1:]
COMPILER = os.environ.get("CXX", "g++")


@pytest.mark.skipif(not shutil.which(COMPILER), reason="needs a C++ compiler")
def test_structs_are_those_of_jaxlibs_header(tmp_path):
    lines = ['#include "xla_call.hpp"', '#include "xla/ffi/api/c_api.h"', "namespace own = rope::xla;"]
    for row in STRUCTS:
        ours, theirs, *members = row.split()
        for member in members:
            mine, _, their_member = member.partition("=")
            text = f"offsetof(own::{ours}, {mine}) == offsetof({theirs}, {their_member or mine})"
            lines.append(f'static_assert({text}, "{theirs}.{their_member or mine}");')
    source = tmp_path / "structs.cpp"
    source.write_text("\n".join(lines))
    options = ["-std=c++17", "-fsyntax-only", "-Wno-invalid-offsetof"]
    includes = [f"-I{folder}" for folder in (NATIVE, jax.ffi.include_dir())]
    command = [COMPILER, *options, *includes, str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr


GOOD = {"plan": np.array([16, 0, 8, 1, 1, 1, 0, 0, 4607182418800017408, *range(24)], np.int64)}
PLAN, AT = GOOD["plan"], POS.reshape(1, 1, 5, 1)
WRONG = {
    "no plan": ((X, AT), {}),
    "a number as plan": ((X, AT), {"plan": np.int64(3)}),
    "an int32 plan": ((X, AT), {"plan": np.zeros(33, np.int32)}),
    "a plan too short": ((X, AT), {"plan": PLAN[:8]}),
    "frequencies missing": ((X, AT), {"plan": PLAN[:9]}),
    "more pairs than features": ((X, AT), {"plan": np.array([16, 0, 9, *PLAN[3:9]])}),
    "two attributes": ((X, AT), {**GOOD, "more": np.int64(1)}),
    "x alone": ((X,), GOOD),
    "four operands": ((X, AT, AT, AT), GOOD),
    "int8 positions": ((X, AT.astype("int8")), GOOD),
    "other positions": ((X, AT[:, :, :4]), GOOD),
    "positions of fewer axes": ((X, AT[0, 0]), GOOD),
    "positions of width 0": ((X, AT[..., :0]), GOOD),
    "positions of width 7": ((X, np.tile(AT, 7)), GOOD),
    "another width of x": ((X[..., :8], AT), GOOD),
    "an integer x": ((X.astype("int32"), AT), GOOD),
    "tables of another width": ((X, *[np.ones((1, 1, 5, 4), np.float32)] * 2), GOOD),
    "half-precision tables": ((X, *[np.ones((1, 1, 5, 8), np.float16)] * 2), GOOD),
    "two results": ((X, AT), GOOD),
}


@pytest.mark.parametrize("name", WRONG)
def test_operands_that_are_refused(name):
    """A program that this library did not make raises an error; nothing is read out of bounds."""
    operands, attributes = WRONG[name]
    struct = jax.ShapeDtypeStruct(operands[0].shape, operands[0].dtype)
    call = jax.ffi.ffi_call(TARGET, (struct, struct) if name == "two results" else struct)
    with pytest.raises(jax.errors.JaxRuntimeError, match="does not serve these operands"):
        jax.block_until_ready(call(*map(jax.numpy.asarray, operands), **attributes))


def test_a_refused_registration_is_told(monkeypatch):
    """`explain` has the reason, and the same calls are array operations."""

    def refuse(*args, **kwargs):
        raise ValueError("incompatible version")

    assert "the C++ kernel, " in _custom_call.description()
    monkeypatch.setattr(jax.ffi, "register_ffi_target", refuse)
    reason = _custom_call._register()
    assert reason == "XLA does not take the C++ kernel (incompatible version)"
    monkeypatch.setattr(_custom_call, "_reason", reason)
    assert reason in str(ra.explain(jax.numpy.asarray(X), 3))
    assert "custom-call" not in program(functools.partial(ra.apply, base=77.0), X, POS)


# ---- where it is called ----


CALLS = [(ROPE.apply, "float32"), (gradient, "bfloat16"), (gradient, "float16"), (by_tables, "bfloat16")]


@pytest.mark.parametrize(("function", "dtype"), CALLS, ids=["apply", "gradient", "of float16", "tables"])
def test_a_program_is_one_call_of_the_kernel(function, dtype):
    x = jax.numpy.asarray(X, dtype)
    assert calls(function, x, POS) == (2 if function is by_tables else 1)  # one makes the tables
    if function is not by_tables:  # XLA splits them
        text = program(function, x, POS)
        assert "copy(" not in text
        assert "fusion(" not in text


def test_transforms_call_the_kernel_once():
    """A batch is one call."""
    x = np.stack([X, X])
    assert calls(jax.vmap(lambda x: ROPE.apply(x, POS)), x) == 1
    assert calls(jax.vmap(gradient, in_axes=(0, None)), x, POS) == 1
    assert calls(lambda q, k: ROPE.apply((q, k), POS), X, X[:, :1]) == 2


def test_programs_differ_by_their_ropes():
    """JAX keeps compiled programs on disk, and finds them by their text."""
    assert len({program(functools.partial(ra.apply, base=base), X, POS) for base in (77.0, 78.0)}) == 2


def test_the_kernel_reads_float_positions():
    text = program(ROPE.apply, X, jax.numpy.asarray(POS) + 0.5)
    assert text.count(f'custom_call_target="{TARGET}"') == 1
    assert "f32[1,1,5,8]" not in text  # tables


def test_a_donated_array_is_rotated_in_place():
    x = jax.numpy.asarray(X)
    address, expected = x.unsafe_buffer_pointer(), ROPE.apply(X, POS)
    donating = jax.jit(lambda x: ROPE.apply(x, POS), donate_argnums=0)
    y = donating(x)
    assert x.is_deleted()
    assert y.unsafe_buffer_pointer() == address
    assert_same(np.asarray(y), expected)
    text = program(lambda x: ROPE.apply(x, POS), X, donate_argnums=0)
    assert "copy(" not in text
    assert "output_to_operand_aliasing" in text


def test_other_arrays_are_kept():
    """XLA copies a donated array that is read again; an array that is not donated keeps its values."""
    f = jax.jit(lambda x: (ROPE.apply(x, POS), x + 1), donate_argnums=0)
    y, plus_one = f(jax.numpy.asarray(X))
    assert_same(np.asarray(y), ROPE.apply(X, POS))
    assert_same(np.asarray(plus_one), X + 1)
    x = jax.numpy.asarray(X)
    jax.block_until_ready(jax.jit(ROPE.apply)(x, POS))
    assert_same(np.asarray(x), X)


def test_an_export_has_no_call_of_the_kernel():
    """An exported program has array operations for each of its platforms: it runs without this library."""
    from jax import export

    forward_and_gradient = jax.jit(lambda x, pos: (ROPE.apply(x, pos), gradient(x, pos)))
    for platforms in (("cpu", "cuda", "tpu"), ("cpu",)):
        exported = export.export(forward_and_gradient, platforms=platforms)(X, POS)
        assert f"@{TARGET}" not in exported.mlir_module()
        for y, inverse in zip(exported.call(X, POS), (False, True), strict=True):
            np.testing.assert_allclose(y, ROPE.apply(X, POS, inverse=inverse), atol=2e-6)


# ---- bits ----


@native_cases.by_dtype
def test_bits_equal_numpys_array_api(dtype):
    """One program has the calls of every layout: forward, inverted and batched."""
    ropes = {**SPECS, **SEVERAL}
    xs = {name: normal((2, 3, 5, rope.head_dim), dtype) for name, rope in ropes.items()}
    rng = np.random.default_rng(1)
    at = {
        name: rng.integers(-(2**31), 2**31, (5, *([rope.axes.count] if rope.axes else [])))
        for name, rope in ropes.items()
    }

    @jax.jit
    def run(xs):
        ys = {}
        for name, rope in ropes.items():
            inverse = functools.partial(rope.apply, pos=at[name], inverse=True)
            ys[name] = rope.apply(xs[name], at[name]), inverse(xs[name]), jax.vmap(inverse)(xs[name])
        return ys

    with jax.enable_x64(dtype == np.float64):
        ys = run({name: jax.numpy.asarray(x) for name, x in xs.items()})
    for name, (forward, *inverted) in ys.items():
        assert_same(np.asarray(forward), by_array_api(ropes[name], xs[name], at[name]), name)
        expected = by_array_api(ropes[name], xs[name], at[name], inverse=True)
        for y in inverted:
            assert_same(np.asarray(y), expected, f"{name}, inverted")


@pytest.mark.parametrize("threads", [1, 3])
def test_threads_keep_the_bits(threads, monkeypatch, kernel_settings):
    monkeypatch.setenv(native_cases.THREADS, str(threads))
    x, pos, rope = normal((2, 8, 300, 64), BF16), np.arange(600).reshape(2, 300), ra.RoPE(64)
    kernel.share_out_from(0)
    assert_same(np.asarray(rope.apply(jax.numpy.asarray(x), pos)), by_array_api(rope, x, pos))


def test_positions_that_repeat():
    """The kernel shares the angles of axes along which positions are equal, and of no other axes."""
    x, rng = normal((3, 4, 5, 16)), np.random.default_rng(2)
    equal_but_for_the_last = np.zeros((3, 4, 5), int)
    equal_but_for_the_last[2, 3, 4] = 9
    shapes = (3, 4, 5), (3, 1, 5), (1, 4, 1), (1, 1, 1), (1, 4, 5)
    for distinct in (equal_but_for_the_last, *(rng.integers(0, 2**20, shape) for shape in shapes)):
        pos = np.broadcast_to(distinct, (3, 4, 5))
        assert_same(np.asarray(ROPE.apply(jax.numpy.asarray(x), pos)), by_array_api(ROPE, x, pos))


def test_many_axes():
    """Beyond the kernel's limit, operations rotate."""
    x = normal((2,) * 12 + (4,))
    assert_same(np.asarray(ra.apply(jax.numpy.asarray(x), [5, 9])), by_array_api(ra.RoPE(4), x, [5, 9]))
    x = jax.numpy.ones((1,) * 64 + (16,))
    np.testing.assert_allclose(ROPE.apply(x, 3).ravel(), ROPE.apply(np.ones(16, np.float32), 3), atol=1e-6)
