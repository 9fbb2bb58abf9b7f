"""PyTorch on a GPU by a Triton kernel: eager calls on plain tensors, with or without a gradient.

With TRITON_INTERPRET=1 set, Triton's interpreter runs the kernel on the CPU, slowly, for tests:
``backend="triton"`` then takes tensors of the CPU.
"""

from functools import partial
from typing import Any

import torch

from rope_array._array_api.source import Call, Positions, Source
from rope_array._backends import _native
from rope_array._backends.torch import make_tables as _make_tables_by_array_api
from rope_array._backends.torch import no_autocast

from . import _eager, _gpu_kernel
from ._cos_sin import tables_by_kernel
from ._gate import is_recorded, why_a_tensor_is_not_read, why_declined, why_not_plain

name = "triton"
accepts_outs = True
unavailable_reason = _gpu_kernel.why_no_gpu_kernel


_OLDEST_GPU = (8, 0)  # compute capability that Triton supports


def description() -> str:
    """Return Triton's version, and the GPU."""
    if reason := unavailable_reason():
        return reason
    import triton

    device = "the CPU, interpreted" if _gpu_kernel.is_interpreted() else torch.cuda.get_device_name()
    return f"Triton {triton.__version__} on {device}"


def decline_reason(xs: Any, source: Source) -> str | None:
    """Return why tensors are declined, or None."""
    if torch.compiler.is_compiling():
        return "the call is compiled: the compiler makes one kernel of PyTorch's own operations"
    device = xs[0].device
    if device.type != "cuda" and not (device.type == "cpu" and _gpu_kernel.is_interpreted()):
        return f"a tensor is on {device}; the kernel runs on GPUs"
    if reason := unavailable_reason() or _why_too_old(device) or why_declined(source, is_recorded(xs)):
        return reason
    return why_a_tensor_is_not_read(xs, source, _why_unreadable)


def _why_too_old(device: Any) -> str | None:
    """Return why Triton has no code for a GPU, or None."""
    if device.type == "cpu" or torch.version.hip or torch.cuda.get_device_capability(device) >= _OLDEST_GPU:
        return None
    return (
        f"{device} is older than compute capability {'.'.join(map(str, _OLDEST_GPU))}, the first for Triton"
    )


def _why_unreadable(x: Any) -> str | None:
    """Return why the kernel cannot read the memory of a tensor, or None."""
    if (reason := why_not_plain(x)) is not None:
        return reason
    if x.is_neg() or x._is_zerotensor() or (x.numel() and not x.data_ptr()):
        return (
            "a tensor's numbers are not in memory as they are: the memory has been freed, or it is a lazily "
            "negated view"
        )
    return None


def make_tables(source: Positions, like: Any) -> Any:
    """Make cos and sin, with the bits of the array-api backend."""
    if decline_reason((like,), source) is None:
        made = tables_by_kernel(_gpu_kernel.load_gpu_kernel(), source, like)
        if made is not NotImplemented:
            return made
    return _make_tables_by_array_api(source, like)


def rotate(call: Call, outs: Any = None) -> Any:
    """Rotate the arrays of a call."""
    with no_autocast(call.xs[0]):
        kernel = _gpu_kernel.load_gpu_kernel()
        return _native.rotate_checked(call, outs, partial(_eager.rotate, kernel), _sources(call, kernel))


def _sources(call: Call, kernel: Any) -> Any:
    """Return a function from whether the kernel computes in float64 to the source as it reads it."""
    source = call.source
    # Nothing is copied to the GPU for an int or a range, and positions of 32 bits are read as they are.
    if isinstance(source, Positions) and kernel.reads(source, call.xs[0].device):
        return lambda use_float64: source
    return _native.sources(call, _with_adjacent_pairs, lambda plan: None)


def _with_adjacent_pairs(tensor: Any, dtype: Any) -> Any:
    """Return positions or tables of a dtype, the numbers along the last axis adjacent."""
    tensor = tensor.to(dtype)
    return tensor if tensor.ndim == 0 or tensor.stride(-1) == 1 else tensor.contiguous()
