"""The capabilities that each array library lacks, with the reasons."""

from __future__ import annotations

from collections.abc import Iterable, Mapping


def _each(names: Iterable[str], reason: str) -> dict[str, str]:
    return dict.fromkeys(names, reason)


_SETTINGS_OF_TORCH = ("no_grad", "inference_mode", "autocast", "default_device", "deterministic")
_TRANSFORMS = ("default_dtype", "vmap", "vmap_positions", "jvp")

_NO_SHARDS = {"shards": "jax:sharded has several devices"}
_EAGER = {"lazy": "arrays are computed at once", **_NO_SHARDS}
_NO_MODE = "the library has no such mode"
_NO_SETTINGS = _each(_SETTINGS_OF_TORCH, _NO_MODE)
_NO_COMPILER = {"jit": "the library has no compiler"}
# A library that computes, and nothing else.
_PLAIN = {
    **_NO_SHARDS,
    "gradient": "the library has no gradients",
    **_NO_COMPILER,
    **_NO_SETTINGS,
    **_each(_TRANSFORMS, _NO_MODE),
}
# Gradients and a compiler, but no transforms that the suite knows.
_DIFFERENTIABLE = {**_NO_SETTINGS, **_each(_TRANSFORMS, "the suite has this mode for JAX and PyTorch only")}
_JAX = {
    "float64": "JAX without x64 has no float64",
    "wide_positions": "JAX without x64 has no 64-bit integers",
    **_EAGER,
    **_NO_SETTINGS,
}
_STRICT = {**_each(("float16", "bfloat16"), "the standard has none"), **_PLAIN, **_EAGER}

# By the library's name; a configuration that is not listed has the gaps of its library.
_GAPS: dict[str, Mapping[str, str]] = {
    "numpy": {"bfloat16": "NumPy has bfloat16 only through ml_dtypes", **_PLAIN, **_EAGER},
    "array_api_strict": _STRICT,
    "array_api_strict:no_x64": {
        **_STRICT,
        "float64": "the device has no float64",
        "mixed_dtypes": "the device has one floating dtype",
        "wide_positions": "the device has no 64-bit integers",
    },
    "dask": {"bfloat16": "dask is tested with NumPy's own dtypes", **_PLAIN},
    "cubed": {"bfloat16": "cubed is tested with NumPy's own dtypes", **_PLAIN},
    "jax": _JAX,
    "jax:x64": {**_EAGER, **_NO_SETTINGS},
    "jax:sharded": {name: reason for name, reason in _JAX.items() if name not in _NO_SHARDS},
    "torch": _EAGER,
    "torch:meta": {"values": "the meta device has no values", **_EAGER},
    "cupy": {"bfloat16": "CuPy holds bfloat16 only through ml_dtypes", **_PLAIN, **_EAGER},
    "mlx": {
        "float64": "MLX has float64 on the CPU only",
        "lazy": "an array does not show whether it is computed",
        **_NO_SHARDS,
        **_DIFFERENTIABLE,
    },
    "tensorflow": {**_EAGER, **_DIFFERENTIABLE},
    "ndonnx": {
        "bfloat16": "ndonnx has no bfloat16",
        **{name: reason for name, reason in _PLAIN.items() if name not in _NO_COMPILER},
        **_EAGER,
    },
    "marray": {**_each(("float16", "bfloat16"), "marray has the standard's dtypes"), **_PLAIN, **_EAGER},
}

# Compiling takes seconds: compile float32, and bfloat16 for all widened dtypes.
_COMPILED_ELSEWHERE = (
    *("float16", "float64", "narrow_heads", "widths", "wide_heads", "python_positions"),
    *("inference_mode", "autocast", "default_dtype", "default_device", "deterministic"),
    *("vmap", "vmap_positions", "jvp"),
)
NOT_COMPILED = {
    **_each(_COMPILED_ELSEWHERE, "not compiled here, to save time; the target without a compiler has it"),
    "threads": "compiled code is called by one thread here",
}


def gaps_of(name: str) -> Mapping[str, str]:
    """Return the gaps of a library in a configuration, such as "jax:gpu"."""
    return _GAPS.get(name) or _GAPS.get(name.partition(":")[0], {})
