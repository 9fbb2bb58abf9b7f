"""PyTorch on the CPU by the C++ kernel: eager calls on plain tensors, with or without a gradient.

PyTorch does not see the kernel. If something intercepts its operations (a compiler, a functorch transform,
forward-mode differentiation, a mode, a subclass), the kernel's result would be wrong or empty. So it declines
the call, and the array-api backend serves it by PyTorch's operations. Reverse-mode gradients are recorded:
the backward is the adjoint rotation.
"""

from typing import Any

import torch
from torch.autograd import forward_ad

from rope_array._array_api.source import Call, Positions, Source, Tables
from rope_array._backends import _native
from rope_array._backends.torch import make_tables as _make_tables_by_array_api
from rope_array._backends.torch import no_autocast

from . import _compiled
from ._cos_sin import tables_by_kernel
from ._library import PLAIN_TYPES, TRANSFORMED
from ._operations import adjoint, load_source, rotate_by_operations, rotate_present, save_source

name = "native"
accepts_outs = True

# Private names. If PyTorch renames one, the kernel declines every call: an interception would go unseen.
_DISPATCH_MODES: Any = getattr(torch._C, "_len_torch_dispatch_stack", None)
_FUNCTION_MODES: Any = getattr(torch._C, "_len_torch_function_stack", None)
_TRACING: Any = getattr(torch._C, "_get_tracing_state", None)
_CAN_DETECT_MODES = None not in (TRANSFORMED, _DISPATCH_MODES, _FUNCTION_MODES, _TRACING) and hasattr(
    forward_ad, "_current_level"
)
_MAX_AXES = 0 if _native.kernel is None else _native.kernel.MAX_AXES
if _native.kernel is not None:
    _native.kernel.use_tensors(*PLAIN_TYPES, torch.empty_like, torch.get_num_threads, True)

unavailable_reason = _native.unavailable_reason


def description() -> str:
    """Return the instruction set that runs, and the largest number of threads."""
    return _native.description(torch.get_num_threads())


# ---- reasons to decline ----


def _why_declined(source: Any, recorded: bool) -> str | None:
    """Return why a call is declined, or None; the memory of its tensors is not checked.

    `recorded`: a gradient of the arrays to rotate is recorded.
    """
    if torch.compiler.is_compiling():  # first: Dynamo evaluates it, and skips the rest
        return "the call is compiled"
    if _native.kernel is None:
        return unavailable_reason()
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
    if not _CAN_DETECT_MODES:
        return "this version of PyTorch does not report whether its operations are transformed"
    if TRANSFORMED():
        return "a functorch transform is active"
    if forward_ad._current_level >= 0:
        return "forward-mode differentiation is active"
    if _DISPATCH_MODES() or _FUNCTION_MODES():
        return "a mode watches PyTorch's operations"
    if _TRACING() is not None:
        return "the call is traced by torch.jit"
    return None


def _is_recorded(xs: Any) -> bool:
    """Return whether a gradient of xs is recorded."""
    if torch.is_grad_enabled():
        for x in xs:
            if getattr(x, "requires_grad", False):
                return True
    return False


def decline_reason(xs: Any, source: Source) -> str | None:
    """Return why tensors are declined, or None."""
    if torch.compiler.is_compiling():
        return _why_not_compiled(xs, source)
    if (reason := _why_declined(source, _is_recorded(xs))) is not None:
        return reason
    for x in (*xs, *source.arrays):
        if isinstance(x, torch.Tensor) and (reason := _why_unreadable(x)) is not None:
            return reason
    return None


def _why_not_compiled(xs: Any, source: Source) -> str | None:
    """Return why a compiled program does not call the kernel, or None."""
    if _native.kernel is None:
        return unavailable_reason()
    if (reason := _compiled.why_not_served(xs, source)) is not None:
        return reason
    for x in (*xs, *source.arrays):
        if isinstance(x, torch.Tensor) and (reason := _why_not_served(x)) is not None:
            return reason
    return None


def _why_unreadable(x: Any) -> str | None:
    """Return why the kernel cannot read the memory of a tensor, or None."""
    if type(x) not in PLAIN_TYPES:
        return f"{type(x).__name__} is a subclass of torch.Tensor, which PyTorch's own operations serve"
    if (reason := _why_not_served(x)) is not None:
        return reason
    if not _native.kernel.has_memory(x):
        return (
            "a tensor's numbers are not in memory as they are: the memory has been freed, say, or it is a "
            "lazily negated view or a batch of vmap"
        )
    return None


def _why_not_served(x: Any) -> str | None:
    """Return why the kernel does not serve a tensor's device or number of axes, or None."""
    if not x.is_cpu:
        return f"a tensor is on {x.device}; the kernel runs on the CPU"
    if x.ndim > _MAX_AXES:
        return f"a tensor has {x.ndim} axes, and the kernel takes {_MAX_AXES}"
    return None


# ---- tables ----


def make_tables(source: Positions, like: Any) -> Any:
    """Make cos and sin, with the bits of the array-api backend."""
    if not torch.compiler.is_compiling() and (made := tables_by_kernel(source, like)) is not NotImplemented:
        return made
    return _make_tables_by_array_api(source, like)


# ---- rotation ----


def try_fast(x: Any, source: Source, seq_axis: Any, out: Any) -> Any:
    """Rotate plain tensors of one compute dtype; return NotImplemented for every other call."""
    xs = x if type(x) is tuple else (x,)
    recorded = _is_recorded(xs)
    if _why_declined(source, recorded) is not None:
        return NotImplemented
    if recorded:
        if out is not None:
            return NotImplemented
        ys = _rotate_with_grad(source, seq_axis, False, False, *xs)
        return ys if type(x) is tuple or ys is NotImplemented else ys[0]
    if out is None:
        return _native.kernel.rotate(x, source, seq_axis, None)
    outs = out if type(out) is tuple else (out,)
    for o in outs:
        if type(o) is not torch.Tensor or o.requires_grad or o.is_inference():
            return NotImplemented
    return _written(_native.kernel.rotate(x, source, seq_axis, out), outs)


def rotate(call: Call, outs: Any = None) -> Any:
    """Rotate the arrays of a call."""
    with no_autocast(call.xs[0]):
        if torch.compiler.is_compiling():
            ys = _compiled.rotate(call, by_kernel=True)
            # Results are given after a break in the graph only: Dynamo compiles this function by itself.
            return ys if outs is None else tuple(out.copy_(y) for out, y in zip(outs, ys, strict=True))
        return _native.rotate_checked(call, outs, _rotate, _contiguous)


def _contiguous(tensor: Any, dtype: Any) -> Any:
    """Return a contiguous tensor at an aligned address."""
    tensor = tensor.to(dtype).contiguous()
    return tensor.clone() if tensor.data_ptr() % tensor.itemsize else tensor


def _rotate(xs: Any, source: Source, seq_axis: int, outs: Any = None, transposed: bool = False) -> Any:
    """Rotate tensors of one compute dtype, recording a gradient if need be."""
    if _is_recorded(xs):
        if outs is None:
            return _rotate_with_grad(source, seq_axis, transposed, False, *xs)
        return _rotate_in_place(xs, source, seq_axis, outs, transposed)
    ys = _native.kernel.rotate(xs, source, seq_axis, outs, True, transposed)
    return ys if outs is None else _written(ys, outs)


def _rotate_in_place(xs: Any, source: Source, seq_axis: int, outs: Any, transposed: bool) -> Any:
    """Rotate tensors, writing into x itself where a gradient is recorded.

    One by one: autograd takes a view that is written in place only as the single result of a function.
    """
    ys: list[Any] = []
    for x, out in zip(xs, outs, strict=True):
        if x.requires_grad:
            y = _rotate_with_grad(source, seq_axis, transposed, True, x)
        else:
            y = _rotate((x,), source, seq_axis, (out,), transposed)
        if y is NotImplemented:
            return y
        ys += y
    return tuple(ys)


def _written(ys: Any, outs: Any) -> Any:
    """Count a write to each of outs, as operations in place do: autograd then sees saved tensors change."""
    for out in outs if ys is not NotImplemented else ():
        torch.autograd.graph.increment_version(out)
    return ys


class _RotateFn(torch.autograd.Function):  # type: ignore[misc,unused-ignore]
    """The rotation with its gradient: the adjoint rotation, by the same positions or tables."""

    @staticmethod
    def forward(ctx: Any, source: Source, seq_axis: int, transposed: bool, in_place: bool, *xs: Any) -> Any:
        outs = xs if in_place else None
        ys = _native.kernel.rotate(xs, source, seq_axis, outs, in_place, transposed)
        if ys is NotImplemented:
            return ys
        if in_place:
            ctx.mark_dirty(*xs)
        save_source(ctx, source)
        ctx.seq_axis, ctx.transposed = seq_axis, transposed
        constant = [y for x, y in zip(xs, ys, strict=True) if not x.requires_grad]
        if constant:
            ctx.mark_non_differentiable(*constant)
        return ys

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        source = load_source(ctx)

        def rotate_back(given: Any) -> Any:
            return _rotate_back(given, source, ctx.seq_axis, not ctx.transposed)

        return None, None, None, None, *rotate_present(grads, rotate_back)


_rotate_with_grad: Any = _RotateFn.apply


def _rotate_back(grads: Any, source: Source, seq_axis: int, transposed: bool) -> Any:
    """Rotate gradients by the adjoint: by the kernel, or by the array-api backend if the kernel declines."""
    if _why_declined(source, _is_recorded(grads)) is None:
        if isinstance(source, Tables):
            back = _rotate(grads, adjoint(source), seq_axis)
        else:
            back = _rotate(grads, source, seq_axis, None, transposed)
        if back is not NotImplemented:
            return back
    with no_autocast(grads[0]):
        return rotate_by_operations(grads, source, seq_axis, transposed)
