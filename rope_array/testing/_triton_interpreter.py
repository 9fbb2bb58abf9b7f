"""Triton's interpreter, which runs the Triton kernel on the CPU, without a GPU and without a compiler."""

from __future__ import annotations

import os
from importlib import import_module
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray


def use_interpreter() -> str:
    """Have Triton interpret the kernel from now on; return why that is impossible, or ""."""
    os.environ["TRITON_INTERPRET"] = "1"
    try:
        interpreter = import_module("triton.runtime.interpreter")
    except ImportError as error:
        return f"Triton cannot be imported: {error}"
    # A function of Triton's own that the kernel calls: compiled or interpreted since Triton's import.
    if not hasattr(interpreter.tl.cdiv, "rewrite"):
        return "Triton is already imported, to compile for a GPU; start another process"
    if interpreter.GridExecutor.__call__.__module__ != __name__:
        _round_to_nearest(interpreter)
        _run_one_by_one(interpreter)
    return ""


def _round_to_nearest(interpreter: Any) -> None:
    """Round float32 to bfloat16 as GPUs do: the interpreter cuts the lower bits off."""
    convert, language = interpreter._convert_float, interpreter.tl

    def _convert_float(values: NDArray[Any], from_: Any, to: Any, mode: Any) -> NDArray[Any]:
        if (from_, to) == (language.float32, language.bfloat16):
            return _to_bfloat16(values.view(np.uint32)).reshape(values.shape)
        converted: NDArray[Any] = convert(values, from_, to, mode)
        return converted

    interpreter._convert_float = _convert_float


def _run_one_by_one(interpreter: Any) -> None:
    """Let threads wait for each other: the interpreter changes Triton's modules while it runs."""
    run, lock = interpreter.GridExecutor.__call__, Lock()

    def __call__(self: Any, *arguments: Any, **options: Any) -> Any:
        with lock:
            return run(self, *arguments, **options)

    interpreter.GridExecutor.__call__ = __call__


def _to_bfloat16(bits: NDArray[np.uint32]) -> NDArray[np.uint16]:
    """Return the upper halves of float32 numbers, rounded to nearest, ties to even; NaN stays NaN."""
    is_nan = (bits & 0x7FFFFFFF) > 0x7F800000
    rounded = (bits.astype(np.uint64) + 0x7FFF + (bits >> 16 & 1)) >> 16
    return np.where(is_nan, bits >> 16 | 0x40, rounded).astype(np.uint16)
