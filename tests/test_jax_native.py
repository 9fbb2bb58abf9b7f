"""The C++ kernel in JAX's programs on the CPU: its bits, its calls and its refusals."""

import os
import shutil
import subprocess
from pathlib import Path

import child
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
TARGET = "rope_array_rotate"
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

FIELDS = {
    "Extension": ("XLA_FFI_Extension_Base", {"type": "type", "next": "next"}),
    "Version": ("XLA_FFI_Api_Version", {"major": "major_version", "minor": "minor_version"}),
    "Metadata": ("XLA_FFI_Metadata", {"version": "api_version"}),
    "MetadataExtension": ("XLA_FFI_Metadata_Extension", {"metadata": "metadata"}),
    "ErrorArgs": ("XLA_FFI_Error_Create_Args", {"message": "message", "code": "errc"}),
    "ErrorDestroyArgs": ("XLA_FFI_Error_Destroy_Args", {"error": "error"}),
    "NumThreadsArgs": (
        "XLA_FFI_ThreadPool_NumThreads_Args",
        {"context": "ctx", "num_threads": "num_threads"},
    ),
    "Api": (
        "XLA_FFI_Api",
        {
            "version": "api_version",
            "create_error": "XLA_FFI_Error_Create",
            "destroy_error": "XLA_FFI_Error_Destroy",
            "get_num_threads": "XLA_FFI_ThreadPool_NumThreads",
        },
    ),
    "Buffer": ("XLA_FFI_Buffer", {"dtype": "dtype", "data": "data", "rank": "rank", "shape": "dims"}),
    "Operands": ("XLA_FFI_Args", {"size": "size", "types": "types", "values": "args"}),
    "Operands ": ("XLA_FFI_Rets", {"size": "size", "types": "types", "values": "rets"}),
    "Array": ("XLA_FFI_Array", {"dtype": "dtype", "size": "size", "data": "data"}),
    "Attributes": ("XLA_FFI_Attrs", {"size": "size", "types": "types", "values": "attrs"}),
    "CallFrame": (
        "XLA_FFI_CallFrame",
        {
            "extensions": "extension_start",
            "api": "api",
            "context": "ctx",
            "arguments": "args",
            "results": "rets",
            "attributes": "attrs",
        },
    ),
}
CONSTANTS = {
    "METADATA": "Extension_Metadata",
    "INVALID_ARGUMENT": "Error_Code_INVALID_ARGUMENT",
    "INTERNAL": "Error_Code_INTERNAL",
    "BUFFER": "ArgType_BUFFER",
    "BUFFER ": "RetType_BUFFER",
    "ARRAY": "AttrType_ARRAY",
    **{name: f"DataType_{name}" for name in ("S32", "S64", "U32", "F16", "F32", "F64", "BF16")},
}


@pytest.mark.skipif(not shutil.which(os.environ.get("CXX", "g++")), reason="needs a C++ compiler")
def test_structs_are_those_of_jaxlibs_header(tmp_path):
    lines = ['#include "xla_call.hpp"', '#include "xla/ffi/api/c_api.h"', "namespace own = rope::xla;"]
    for own, (theirs, fields) in FIELDS.items():
        for mine, other in fields.items():
            text = f"offsetof(own::{own.strip()}, {mine}) == offsetof({theirs}, {other})"
            lines.append(f'static_assert({text}, "{theirs}.{other}");')
    lines += [f"static_assert(own::{own.strip()} == int(XLA_FFI_{name}));" for own, name in CONSTANTS.items()]
    source = tmp_path / "structs.cpp"
    source.write_text("\n".join(lines))
    includes = [f"-I{folder}" for folder in (NATIVE, jax.ffi.include_dir())]
    command = [
        os.environ.get("CXX", "g++"),
        "-std=c++17",
        "-fsyntax-only",
        "-Wno-invalid-offsetof",
        *includes,
    ]
    done = subprocess.run([*command, str(source)], capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr


GOOD = {"plan": np.array([16, 0, 8, 1, 1, 1, 0, 0, 4607182418800017408, *range(24)], np.int64)}
WRONG = {
    "no plan": ((X, POS.reshape(1, 1, 5, 1)), {}),
    "a number as plan": ((X, POS.reshape(1, 1, 5, 1)), {"plan": np.int64(3)}),
    "an int32 plan": ((X, POS.reshape(1, 1, 5, 1)), {"plan": np.zeros(33, np.int32)}),
    "a plan too short": ((X, POS.reshape(1, 1, 5, 1)), {"plan": GOOD["plan"][:8]}),
    "rows too short": ((X, POS.reshape(1, 1, 5, 1)), {"plan": GOOD["plan"][:-1]}),
    "more pairs than features": (
        (X, POS.reshape(1, 1, 5, 1)),
        {"plan": np.array([16, 0, 9, *GOOD["plan"][3:9]])},
    ),
    "two attributes": ((X, POS.reshape(1, 1, 5, 1)), {**GOOD, "more": np.int64(1)}),
    "x alone": ((X,), GOOD),
    "four operands": ((X, *[POS.reshape(1, 1, 5, 1)] * 3), GOOD),
    "int8 positions": ((X, POS.reshape(1, 1, 5, 1).astype("int8")), GOOD),
    "other positions": ((X, POS[:4].reshape(1, 1, 4, 1)), GOOD),
    "positions of fewer axes": ((X, POS.reshape(5, 1)), GOOD),
    "another width": ((X[..., :8], POS.reshape(1, 1, 5, 1)), GOOD),
    "an integer x": ((X.astype("int32"), POS.reshape(1, 1, 5, 1)), GOOD),
    "tables of another width": ((X, *[np.ones((1, 1, 5, 4), np.float32)] * 2), GOOD),
    "half-precision tables": ((X, *[np.ones((1, 1, 5, 8), np.float16)] * 2), GOOD),
    "positions of width 0": ((X, np.zeros((1, 1, 5, 0), np.int32)), GOOD),
    "positions of width 7": ((X, np.zeros((1, 1, 5, 7), np.int32)), GOOD),
    "frequencies missing": ((X, POS.reshape(1, 1, 5, 1)), {"plan": GOOD["plan"][:9]}),
}


@pytest.mark.parametrize("name", WRONG)
def test_operands_that_are_refused(name):
    """A program that this library did not make raises an error; nothing is read out of bounds."""
    operands, attributes = WRONG[name]
    call = jax.ffi.ffi_call(TARGET, jax.ShapeDtypeStruct(operands[0].shape, operands[0].dtype))
    with pytest.raises(jax.errors.JaxRuntimeError, match="does not serve these operands"):
        jax.block_until_ready(call(*map(jax.numpy.asarray, operands), **attributes))


def test_two_results_are_refused():
    shape = jax.ShapeDtypeStruct(X.shape, X.dtype)
    call = jax.ffi.ffi_call(TARGET, (shape, shape))
    with pytest.raises(jax.errors.JaxRuntimeError, match="does not serve these operands"):
        jax.block_until_ready(call(X, POS.reshape(1, 1, 5, 1), **GOOD))


def test_a_refused_registration_is_told(monkeypatch):
    def refuse(*args, **kwargs):
        raise ValueError("incompatible version")

    assert "the C++ kernel, " in _custom_call.description()
    monkeypatch.setattr(jax.ffi, "register_ffi_target", refuse)
    reason = _custom_call._register()
    assert reason == "XLA does not take the C++ kernel (incompatible version)"
    monkeypatch.setattr(_custom_call, "_reason", reason)
    assert reason in _custom_call.description()


# ---- where it is called ----


@pytest.mark.parametrize("function", [ROPE.apply, gradient, by_tables], ids=["apply", "gradient", "tables"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
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


def test_float_positions_rotate_by_tables():
    text = program(ROPE.apply, X, POS + 0.5)
    assert text.count(f'custom_call_target="{TARGET}"') == 1
    assert "f32[1,1,5,8]" in text


def test_a_donated_array_is_rotated_in_place():
    x = jax.numpy.asarray(X)
    address, want = x.unsafe_buffer_pointer(), ROPE.apply(X, POS)
    donating = jax.jit(lambda x: ROPE.apply(x, POS), donate_argnums=0)
    y = donating(x)
    assert x.is_deleted()
    assert y.unsafe_buffer_pointer() == address
    assert_same(np.asarray(y), want)
    text = program(lambda x: ROPE.apply(x, POS), X, donate_argnums=0)
    assert "copy(" not in text
    assert "output_to_operand_aliasing" in text


def test_a_donated_array_that_is_read_again():
    """XLA copies it, and the result is right."""
    f = jax.jit(lambda x: (ROPE.apply(x, POS), x + 1), donate_argnums=0)
    y, more = f(jax.numpy.asarray(X))
    assert_same(np.asarray(y), ROPE.apply(X, POS))
    assert_same(np.asarray(more), X + 1)


def test_arrays_that_are_not_donated_are_kept():
    x = jax.numpy.asarray(X)
    jax.block_until_ready(jax.jit(ROPE.apply)(x, POS))
    assert_same(np.asarray(x), X)


@pytest.mark.parametrize("platforms", [("cpu",), ("cpu", "cuda", "tpu")], ids=["cpu", "all"])
def test_an_export_runs_without_this_library(platforms, tmp_path):
    """An exported program has array operations for each of its platforms, and no call of the kernel."""
    from jax import export

    shapes = [jax.ShapeDtypeStruct(array.shape, array.dtype) for array in (X, POS)]
    exported = export.export(
        jax.jit(lambda x, pos: (ROPE.apply(x, pos), gradient(x, pos))), platforms=platforms
    )(*shapes)
    assert f"@{TARGET}" not in exported.mlir_module()
    path = tmp_path / "program"
    path.write_bytes(exported.serialize())
    np.savez(tmp_path / "arrays.npz", x=X, pos=POS, y=ROPE.apply(X, POS), g=ROPE.apply(X, POS, inverse=True))
    child.run(
        """
        import sys
        sys.modules["rope_array"] = None    # importing it fails
        from pathlib import Path
        import numpy as np
        from jax import export

        folder = Path(sys.argv[1])
        exported = export.deserialize(bytearray((folder / "program").read_bytes()))
        arrays = np.load(folder / "arrays.npz")
        y, g = exported.call(arrays["x"], arrays["pos"])
        np.testing.assert_allclose(y, arrays["y"], atol=2e-6)
        np.testing.assert_allclose(g, arrays["g"], atol=2e-6)
        """,
        str(tmp_path),
    )


# ---- bits ----


@native_cases.by_dtype
@pytest.mark.parametrize("name", [*SPECS, *SEVERAL])
def test_bits_equal_numpys_array_api(name, dtype):
    """Eager, inverted, compiled and batched calls have the bits of the array-api backend on NumPy."""
    rope = {**SPECS, **SEVERAL}[name]
    x = normal((2, 3, 5, rope.head_dim), dtype)
    shape = (5,) if rope.axes is None else (5, rope.axes.count)
    pos = np.random.default_rng(1).integers(-(2**31), 2**31, shape)
    with jax.enable_x64(dtype == np.float64):
        for inverse in (False, True):
            want = by_array_api(rope, x, pos, inverse=inverse)
            y = rope.apply(jax.numpy.asarray(x), pos, inverse=inverse)
            assert_same(np.asarray(y), want, "eager")
            batched = jax.vmap(lambda x, inverse=inverse: rope.apply(x, pos, inverse=inverse))
            assert_same(np.asarray(batched(jax.numpy.asarray(x))), want, "vmap")


@pytest.mark.parametrize("seq_axis", [-2, -3, 0, 1])
def test_bits_along_each_axis(seq_axis):
    x = normal((3, 4, 5, 16))
    pos = np.arange(x.shape[:-1][seq_axis + 1 if seq_axis < 0 else seq_axis]) * 12345
    assert_same(np.asarray(ROPE.apply(jax.numpy.asarray(x), pos, seq_axis=seq_axis)),
                by_array_api(ROPE, x, pos, seq_axis=seq_axis))  # fmt: skip


@pytest.mark.parametrize("threads", [1, 3])
def test_threads_keep_the_bits(threads, monkeypatch):
    monkeypatch.setenv(native_cases.THREADS, str(threads))
    x, pos = normal((2, 8, 300, 64), BF16), np.arange(600).reshape(2, 300)
    usual = kernel.share_out_from(0)
    try:
        y = jax.block_until_ready(ra.RoPE(64).apply(jax.numpy.asarray(x), pos))
    finally:
        kernel.share_out_from(usual)
    assert_same(np.asarray(y), by_array_api(ra.RoPE(64), x, pos))


def test_positions_that_repeat():
    """The kernel shares the angles of axes along which positions are equal, and of no other axes."""
    rng = np.random.default_rng(2)
    x = normal((3, 4, 5, 16))
    for shape in ((3, 4, 5), (3, 1, 5), (1, 4, 1), (1, 1, 1), (1, 4, 5)):
        pos = np.broadcast_to(rng.integers(0, 2**20, shape), (3, 4, 5))
        for each in (pos, pos.copy()):
            each = np.asarray(each)
            assert_same(np.asarray(ROPE.apply(jax.numpy.asarray(x), each)), by_array_api(ROPE, x, each))
    pos = np.zeros((3, 4, 5), int)
    pos[2, 3, 4] = 9  # equal but for the last
    assert_same(np.asarray(ROPE.apply(jax.numpy.asarray(x), pos)), by_array_api(ROPE, x, pos))


def test_more_axes_than_the_kernel_takes():
    x = jax.numpy.ones((1,) * 64 + (16,))
    np.testing.assert_allclose(ROPE.apply(x, 3).ravel(), ROPE.apply(np.ones(16, np.float32), 3), atol=1e-6)


def test_many_axes():
    x = normal((2,) * 12 + (4,))
    assert_same(np.asarray(ra.apply(jax.numpy.asarray(x), [5, 9])), by_array_api(ra.RoPE(4), x, [5, 9]))


def test_calls_from_many_threads():
    from concurrent.futures import ThreadPoolExecutor

    x = normal((4, 64, 64))
    wants = [by_array_api(ra.RoPE(64), x, n) for n in range(16)]
    with ThreadPoolExecutor(8) as pool:
        for y, want in zip(
            pool.map(lambda n: ra.apply(jax.numpy.asarray(x), n), range(16)), wants, strict=True
        ):
            assert_same(np.asarray(y), want)


def test_without_the_kernel():
    """The same calls are array operations, and `explain` says why."""
    child.run(
        """
        import numpy as np
        import jax
        import rope_array as ra

        x = np.ones((2, 5, 16), np.float32)
        text = jax.jit(ra.apply).lower(x, np.arange(5)).compile().as_text()
        assert "custom-call" not in text
        assert "ROPE_ARRAY_KERNEL_LEVEL is 'none'" in str(ra.explain(jax.numpy.asarray(x), 3))
        np.testing.assert_allclose(ra.apply(jax.numpy.asarray(x), 3), ra.apply(x, 3), atol=1e-6)
        """,
        ROPE_ARRAY_KERNEL_LEVEL="none",
    )
