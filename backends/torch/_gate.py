"""Reasons why a kernel declines a call: one gate for the kernels of the CPU and of GPUs.

PyTorch does not see a kernel. If something intercepts its operations (a compiler, a functorch transform,
forward-mode differentiation, a mode, a subclass), the kernel's result would be wrong or empty. So a kernel
declines the call, and the array-api backend serves it by PyTorch's operations.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch.autograd import forward_ad
from torch.utils._device import DeviceContext

from rope_array._array_api.source import Source

from ._library import PLAIN_TYPES, TRANSFORMED

# Private names. If PyTorch renames one, kernels decline every call: an interception would go unseen.
_DISPATCH_MODES: Any = getattr(torch._C, "_len_torch_dispatch_stack", None)
_FUNCTION_MODES: Any = getattr(torch._C, "_len_torch_function_stack", None)
_TRACING: Any = getattr(torch._C, "_get_tracing_state", None)
_FUNCTION_MODE_STACK: Any = getattr(torch.overrides, "_get_current_function_mode_stack", None)
# Each returns a true value while something intercepts operations.
_INTERCEPTORS = (TRANSFORMED, _DISPATCH_MODES, _FUNCTION_MODES, _TRACING)
CAN_DETECT_MODES = None not in _INTERCEPTORS and hasattr(forward_ad, "_current_level")


def give_to(kernel: Any) -> None:
    """Register the gate with the C++ kernel, which asks it faster, and without reasons."""
    interceptors = _INTERCEPTORS if CAN_DETECT_MODES else None
    modes = torch.is_grad_enabled, torch.is_inference_mode_enabled
    kernel.use_gate(interceptors, forward_ad, *modes, torch.Tensor.is_inference, count_writes)


def why_declined(source: Any, recorded: bool) -> str | None:
    """Return why a call is declined, or None; the memory of its tensors is not checked.

    `recorded`: a gradient of the arrays to rotate is recorded.
    """
    if torch.compiler.is_compiling():  # first: Dynamo evaluates it, and skips the rest
        return "the call is compiled"
    if (reason := _active_interceptor()) is not None:
        return reason
    for read in source[:2]:  # Positions.values, or Tables.cos and .sin
        if type(read) in PLAIN_TYPES:
            if read.requires_grad and torch.is_grad_enabled():
                return "a gradient of positions or tables is recorded"
            if recorded and read.is_inference():
                return "positions or tables of inference mode cannot be kept for a backward"
    return None


def _active_interceptor() -> str | None:
    """Return why PyTorch's operations are intercepted, or None."""
    if not CAN_DETECT_MODES:
        return "this version of PyTorch does not report whether its operations are transformed"
    if TRANSFORMED():
        return "a functorch transform is active"
    if forward_ad._current_level >= 0:
        return "forward-mode differentiation is active"
    if _DISPATCH_MODES() or (_FUNCTION_MODES() and not _sets_default_device_only()):
        return "a mode watches PyTorch's operations"
    if _TRACING() is not None:
        return "the call is traced by torch.jit"
    return None


def _sets_default_device_only() -> bool:
    """Return whether all modes of functions set the default device, which no kernel uses."""
    modes = _FUNCTION_MODE_STACK() if _FUNCTION_MODE_STACK else [None]
    return all(isinstance(mode, DeviceContext) for mode in modes)


def is_recorded(xs: Any) -> bool:
    """Return whether a gradient of xs is recorded."""
    if torch.is_grad_enabled():
        for x in xs:
            if getattr(x, "requires_grad", False):
                return True
    return False


def can_be_written(out: Any) -> bool:
    """Return whether PyTorch allows an operation to write a tensor of which no gradient is recorded."""
    return torch.is_inference_mode_enabled() or not out.is_inference()


def _count_one_by_one(outs: Any) -> None:
    for out in outs:
        torch.autograd.graph.increment_version(out)


def _load_count_writes() -> Any:
    try:
        torch._C._increment_version(())
    except (AttributeError, RuntimeError, TypeError, ValueError):  # of older versions, which take one tensor
        return _count_one_by_one
    return torch._C._increment_version


# Counts a write to each tensor of a tuple, as operations in place do, so that autograd sees saved tensors
# change. Tensors of inference mode have no count.
count_writes: Callable[[Any], None] = _load_count_writes()


def why_a_tensor_is_not_read(xs: Any, source: Source, why_not: Callable[[Any], str | None]) -> str | None:
    """Return the reason of the first tensor of a call that has one, or None."""
    for x in (*xs, *source.arrays):
        if isinstance(x, torch.Tensor) and (reason := why_not(x)) is not None:
            return reason
    return None


def why_not_plain(x: Any) -> str | None:
    """Return why a tensor is served by PyTorch's own operations only, or None."""
    if type(x) in PLAIN_TYPES:
        return None
    return f"{type(x).__name__} is a subclass of torch.Tensor, which PyTorch's own operations serve"
