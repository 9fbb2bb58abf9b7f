"""Eager calls by a kernel, of the CPU or of a GPU: which calls it may serve, rotation, gradients and tables.

PyTorch does not see a kernel. If something intercepts its operations (a compiler, a functorch transform,
forward-mode differentiation, a mode, a subclass), the kernel's result would be wrong or empty. So a kernel
declines the call, and the array-api backend serves it by PyTorch's operations. Of functorch's transforms the
kernels serve vmap: see _mapped.py.

A kernel is an object with the function ``rotate(x, source, options, out, checked=False, transposed=False)``.
It returns the result or `out`, or NotImplemented, with nothing written, for every call that it does not
serve. `checked`: the caller has checked the call. `transposed`: rotate by the adjoint; by tables only if the
kernel has a true `transposes_tables`. Calls pass them by position: a keyword costs the C++ kernel 10 ns.

The C++ kernel has a seventh parameter, ``gated=False``. True: the kernel itself declines calls that PyTorch
records or intercepts (see `register_gate`), and counts its writes to `out`.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch.autograd import forward_ad

from rope_array._array_api.checks import as_source
from rope_array._array_api.source import (
    Call,
    CallOptions,
    OptionFields,
    Positions,
    Source,
    SourceFields,
    Tables,
)
from rope_array._internals import FORWARD_LEVEL, INTERCEPTORS, internal

from ._gradient import (
    CHECKED,
    FORWARD,
    IN_PLACE,
    NEW,
    UNCHECKED,
    adjoint,
    rotate_by_operations,
    rotate_by_recorded_tables,
    rotate_recorded,
)
from ._library import (
    CAN_JUDGE_VIEWS,
    PLAIN_TYPES,
    TRANSFORMED,
    can_be_written,
    count_writes,
    is_recorded,
    no_autocast,
)
from ._mapped import inside_vmap

# ---- why a kernel declines a call ----

# Each returns a true value while something intercepts operations. If PyTorch lacks one, kernels decline every
# call: an interception would go unseen.
_INTERCEPTORS = _, _DISPATCH_MODES, _FUNCTION_MODES, _TRACING = tuple(map(internal, INTERCEPTORS))
CAN_DETECT_MODES = None not in _INTERCEPTORS and hasattr(forward_ad, FORWARD_LEVEL)


def register_gate(kernel: Any) -> None:
    """Give the C++ kernel these checks, which it makes faster, and without reasons."""
    interceptors = _INTERCEPTORS if CAN_DETECT_MODES else None
    modes = torch.is_grad_enabled, torch.is_inference_mode_enabled
    kernel.use_gate(interceptors, forward_ad, *modes, torch.Tensor.is_inference, count_writes)


def why_checked_call_declined(xs: Any, source: Source, why_tensor: Callable[[Any], str | None]) -> str | None:
    """Return why a call is declined, or None; a call under vmap by the tensors inside its wrappers."""
    inside = inside_vmap(xs, source)
    xs, source = inside or (xs, source)
    reason = why_call_declined(source, is_recorded(xs), inside is not None)
    return reason or first_tensor_reason(xs, source, why_tensor)


def why_call_declined(source: Any, recorded: bool, mapped: bool = False) -> str | None:
    """Return why a call is declined, or None; the memory of its tensors is not checked.

    `recorded`: a gradient of the arrays to rotate is recorded. `mapped`: the rule for vmap serves the call.
    """
    if torch.compiler.is_compiling():  # first: Dynamo evaluates it, and skips the rest
        return "the call is compiled"
    if (reason := _active_interceptor(mapped)) is not None:
        return reason
    for array in source[:2] if recorded else ():  # Positions.values, or Tables.cos and .sin
        if type(array) in PLAIN_TYPES and array.is_inference():
            return "positions or tables of inference mode cannot be kept for a backward"
    return None


def _active_interceptor(mapped: bool = False) -> str | None:
    """Return why PyTorch's operations are intercepted, or None."""
    if not CAN_DETECT_MODES:
        return "this version of PyTorch does not report whether its operations are transformed"
    if not mapped and TRANSFORMED():
        return "a functorch transform is active"
    if getattr(forward_ad, FORWARD_LEVEL) >= 0:
        return "forward-mode differentiation is active"
    if _DISPATCH_MODES() or (_FUNCTION_MODES() and not _sets_default_device_only()):
        return "a mode watches PyTorch's operations"
    if _TRACING():
        return "the call is traced by torch.jit"
    return None


def _sets_default_device_only() -> bool:
    """Return whether all modes of functions set the default device, which no kernel uses."""
    modes = internal("torch.overrides._get_current_function_mode_stack")
    device_mode = internal("torch.utils._device.DeviceContext")
    if modes is None or device_mode is None:
        return False
    return all(isinstance(mode, device_mode) for mode in modes())


def first_tensor_reason(xs: Any, source: Source, why_tensor: Callable[[Any], str | None]) -> str | None:
    """Return the reason of the first tensor of a call that has one, or None."""
    for x in (*xs, *source.arrays):
        if isinstance(x, torch.Tensor) and (reason := why_tensor(x)) is not None:
            return reason
    return None


def why_tensor_not_plain(x: Any) -> str | None:
    """Return why a tensor is served by PyTorch's own operations only, or None."""
    if type(x) in PLAIN_TYPES:
        return None
    return f"{type(x).__name__} is a subclass of torch.Tensor, which PyTorch's own operations serve"


# ---- calls that nothing has checked yet ----


def try_kernel(kernel: Any, x: Any, source: SourceFields, options: OptionFields, out: Any) -> Any:
    """Rotate plain tensors by a kernel that checks its arguments; return NotImplemented for every other call.

    Where a gradient is recorded, `out` must be None; else it may be memory that PyTorch allows to write.
    """
    if is_recorded((*(x if type(x) is tuple else (x,)), *source[:2])):
        return try_recorded(kernel, x, source, options) if out is None else NotImplemented
    if _active_interceptor() is not None:
        return NotImplemented
    if out is None:
        return kernel.rotate(x, source, options, None)
    outs = out if type(out) is tuple else (out,)
    for tensor in outs:
        if type(tensor) is not torch.Tensor or is_recorded((tensor,)) or not can_be_written(tensor):
            return NotImplemented
    return _counted(kernel.rotate(x, source, options, out), outs)


def try_recorded(kernel: Any, x: Any, fields: SourceFields, options: OptionFields) -> Any:
    """Rotate plain tensors whose gradient is recorded; return NotImplemented for a call that is declined."""
    source = as_source(fields)
    if is_recorded(source[:2]) or why_call_declined(source, True) is not None:
        return NotImplemented
    xs, options = x if type(x) is tuple else (x,), CallOptions(*options)
    call = kernel, _rotate_back_eagerly, source, options, UNCHECKED, FORWARD, NEW
    ys = rotate_recorded(call, *xs)
    return ys if type(x) is tuple or ys is NotImplemented else ys[0]


# ---- checked calls ----


def rotate_eagerly(
    kernel: Any, xs: Any, source: Source, options: CallOptions, outs: Any = None, transposed: bool = FORWARD
) -> Any:
    """Rotate checked tensors of one compute dtype by a kernel, recording a gradient if need be.

    The gradient of tables is recorded too, but not of positions: see `recorded_tables`. Return NotImplemented
    if the kernel declines: memory was freed meanwhile, say.
    """
    if isinstance(source, Tables) and source.layout.num_pairs and is_recorded(source.arrays):
        cos, sin, layout = adjoint(source) if transposed else source
        return rotate_by_recorded_tables((kernel, _rotate_back_eagerly, layout, options), cos, sin, *xs)
    if is_recorded(xs):
        if outs is None:
            call = kernel, _rotate_back_eagerly, source, options, CHECKED, transposed, NEW
            return rotate_recorded(call, *xs)
        return _rotate_in_place(kernel, xs, source, options, outs, transposed)
    ys = kernel.rotate(xs, source, options, outs, CHECKED, transposed)
    return ys if outs is None else _counted(ys, outs)


def recorded_tables(
    call: Call, make_tables: Callable[[Positions, Any], Any]
) -> Callable[[bool], Source] | None:
    """Return `source_for(use_float64)`, which makes tables, for positions whose gradient is recorded."""
    source = call.source
    if isinstance(source, Tables) or not source.layout.num_pairs or not is_recorded(source.arrays):
        return None
    like = {use_float64: x for x, use_float64 in zip(call.xs, call.float64, strict=True)}

    def source_for(use_float64: bool) -> Tables:
        cos, sin = make_tables(source, like[use_float64])
        return Tables(cos, sin, source.layout)

    return source_for


def _rotate_in_place(
    kernel: Any, xs: Any, source: Source, options: CallOptions, outs: Any, transposed: bool
) -> Any:
    """Rotate tensors, writing into x itself where a gradient is recorded.

    One by one: autograd accepts a view that is written in place only from a function of one result.
    """
    ys: list[Any] = []
    for x, out in zip(xs, outs, strict=True):
        if x.requires_grad and not CAN_JUDGE_VIEWS:
            y = rotate_eagerly(kernel, (x,), source, options, None, transposed)
            if y is not NotImplemented:
                y = (out.copy_(*y),)  # which raises, before it writes, at views that autograd does not take
        elif x.requires_grad:
            call = kernel, _rotate_back_eagerly, source, options, CHECKED, transposed, IN_PLACE
            y = rotate_recorded(call, x)
        else:
            y = rotate_eagerly(kernel, (x,), source, options, (out,), transposed)
        if y is NotImplemented:
            return y
        ys += y
    return tuple(ys)


def _counted(ys: Any, outs: Any) -> Any:
    """Return the results of a kernel, having counted that it wrote `outs`."""
    if ys is not NotImplemented:
        count_writes(outs)
    return ys


def _rotate_back_eagerly(
    kernel: Any, grads: Any, source: Source, options: CallOptions, transposed: bool
) -> Any:
    """Rotate gradients: by the kernel, or by PyTorch's operations if the kernel declines."""
    if why_call_declined(source, is_recorded(grads)) is None:
        if isinstance(source, Tables) and not getattr(kernel, "transposes_tables", False):
            source, transposed = adjoint(source), FORWARD
        rotated = rotate_eagerly(kernel, grads, source, options, None, transposed)
        if rotated is not NotImplemented:
            return rotated
    with no_autocast(grads[0]):
        return rotate_by_operations(grads, source, options, transposed)
