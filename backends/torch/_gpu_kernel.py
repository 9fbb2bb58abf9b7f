"""Whether the Triton kernel of GPUs can be used here, or is interpreted on the CPU."""

import os
import sys
from functools import cache
from importlib.util import find_spec
from typing import Any

import torch

from rope_array._errors import printable

_OLDEST_TRITON = (3, 3)  # since which a compiled kernel takes the constants among its arguments


def is_interpreted() -> bool:
    """Return whether Triton's interpreter runs the kernel, on the CPU."""
    kernel = sys.modules.get(f"{__package__}._launch")
    if kernel is None:
        asked = os.environ.get("TRITON_INTERPRET", "0") not in ("", "0")
        kernel = load_gpu_kernel() if asked and find_spec("triton") is not None else None
    return kernel is not None and bool(kernel.interpreted)


def load_gpu_kernel() -> Any:
    """Return the kernel; its first call imports Triton, which takes time and which the CPU does not need."""
    from . import _launch

    return _launch


def why_no_gpu_kernel() -> str:
    """Return why the kernel cannot be used; an empty string if it can."""
    if find_spec("triton") is None:
        return "Triton is not installed; PyTorch's builds for GPUs bring it"
    if not torch.cuda.is_available() and not is_interpreted():
        return "PyTorch sees no GPU: torch.cuda.is_available() is False"
    return "" if is_interpreted() else _why_triton_fails()


@cache
def _why_triton_fails() -> str:
    """Return why Triton cannot launch a kernel here, or an empty string: it needs a C compiler, for one."""
    try:
        import triton

        triton.runtime.driver.active.get_current_device()
    except Exception as error:  # of any kind: before any call, so calls are served without Triton
        return printable(f"Triton cannot be used: {type(error).__name__}: {error}")
    if tuple(map(int, triton.__version__.split(".")[:2])) < _OLDEST_TRITON:
        return f"Triton {triton.__version__} is older than {'.'.join(map(str, _OLDEST_TRITON))}"
    return ""


_loaded: Any = None  # once it was asked for; False if it cannot be used


def gpu_kernel() -> Any:
    """Return the kernel of GPUs, or None; it declines the tensors of other devices."""
    global _loaded
    if _loaded is None:
        _loaded = not why_no_gpu_kernel() and load_gpu_kernel()
    return _loaded or None
