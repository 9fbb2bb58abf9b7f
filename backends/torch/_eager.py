"""Eager calls on plain tensors by a kernel: of the CPU, or of a GPU. Reverse-mode gradients are recorded.

A kernel is an object with the function ``rotate(x, source, seq_axis, out, checked=False, transposed=False)``.
It returns the result or `out`, or NotImplemented, with nothing written, for every call that it does not
serve. `checked`: the caller has checked the call. `transposed`: rotate by the adjoint; by tables only if the
kernel has a true `transposes_tables`.

The backward of a rotation is its adjoint, by the same positions or tables.
"""

from typing import Any

import torch

from rope_array._array_api.source import Source, Tables, as_source
from rope_array._backends import _native
from rope_array._backends.torch import no_autocast

from ._gate import can_be_written, count_writes, is_recorded, why_declined
from ._gpu_kernel import gpu_kernel
from ._operations import adjoint, load_source, rotate_by_operations, rotate_present, save_source


def try_fast(x: Any, fields: tuple[Any, ...], seq_axis: Any, out: Any, kernel: Any = None) -> Any:
    """Rotate plain tensors of one compute dtype; return NotImplemented for every other call."""
    if torch.compiler.is_dynamo_compiling():  # first: Dynamo evaluates it, and skips the rest
        return NotImplemented
    if kernel is None and _native.kernel is not None:
        y = _native.kernel.rotate(x, fields, seq_axis, out, False, False, True)
        if y is not NotImplemented:
            return y
    source = as_source(fields)
    xs = x if type(x) is tuple else (x,)
    recorded = is_recorded(xs)
    if why_declined(source, recorded) is not None:
        return NotImplemented
    if kernel is None:
        kernel = _native.kernel if xs[0].is_cpu else gpu_kernel()
        if kernel is None:
            return NotImplemented
    if kernel is _native.kernel and not recorded:
        return NotImplemented  # it has declined the call above
    if recorded:
        if out is not None:
            return NotImplemented
        ys = _rotate_with_grad((kernel, source, seq_axis, False, False, False), *xs)
        return ys if type(x) is tuple or ys is NotImplemented else ys[0]
    if out is None:
        return kernel.rotate(x, source, seq_axis, None)
    outs = out if type(out) is tuple else (out,)
    for o in outs:
        recorded = o.requires_grad and torch.is_grad_enabled()
        if type(o) is not torch.Tensor or recorded or not can_be_written(o):
            return NotImplemented
    return _written(kernel.rotate(x, source, seq_axis, out), outs)


def rotate(
    kernel: Any, xs: Any, source: Source, seq_axis: int, outs: Any = None, transposed: bool = False
) -> Any:
    """Rotate checked tensors of one compute dtype, recording a gradient if need be."""
    if is_recorded(xs):
        if outs is None:
            return _rotate_with_grad((kernel, source, seq_axis, transposed, True, False), *xs)
        return _rotate_in_place(kernel, xs, source, seq_axis, outs, transposed)
    ys = kernel.rotate(xs, source, seq_axis, outs, True, transposed)
    return ys if outs is None else _written(ys, outs)


def _rotate_in_place(kernel: Any, xs: Any, source: Source, seq_axis: int, outs: Any, transposed: bool) -> Any:
    """Rotate tensors, writing into x itself where a gradient is recorded.

    One by one: autograd accepts a view that is written in place only from a function of one result.
    """
    ys: list[Any] = []
    for x, out in zip(xs, outs, strict=True):
        if x.requires_grad:
            y = _rotate_with_grad((kernel, source, seq_axis, transposed, True, True), x)
        else:
            y = rotate(kernel, (x,), source, seq_axis, (out,), transposed)
        if y is NotImplemented:
            return y
        ys += y
    return tuple(ys)


def _written(ys: Any, outs: Any) -> Any:
    if ys is not NotImplemented:
        count_writes(outs)
    return ys


class _RotateFn(torch.autograd.Function):  # type: ignore[misc,unused-ignore]
    """The rotation with its gradient: the adjoint rotation, by the same positions or tables."""

    @staticmethod
    def forward(ctx: Any, call: tuple[Any, ...], *xs: Any) -> Any:
        kernel, source, seq_axis, transposed, checked, in_place = call  # one argument: each takes time
        ys = kernel.rotate(xs, source, seq_axis, xs if in_place else None, checked, transposed)
        if ys is NotImplemented:
            return ys
        if in_place:
            ctx.mark_dirty(*xs)
        save_source(ctx, source)
        ctx.call = kernel, seq_axis, not transposed
        constant = [y for x, y in zip(xs, ys, strict=True) if not x.requires_grad]
        if constant:
            ctx.mark_non_differentiable(*constant)
        return ys

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        kernel, seq_axis, transposed = ctx.call
        source = load_source(ctx)

        def rotate_back(given: Any) -> Any:
            return _rotate_back(kernel, given, source, seq_axis, transposed)

        return None, *rotate_present(grads, rotate_back)


_rotate_with_grad: Any = _RotateFn.apply


def _rotate_back(kernel: Any, grads: Any, source: Source, seq_axis: int, transposed: bool) -> Any:
    """Rotate gradients by the adjoint: by the kernel, or by the array-api backend if the kernel declines."""
    if why_declined(source, is_recorded(grads)) is None:
        if isinstance(source, Tables) and not getattr(kernel, "transposes_tables", False):
            back = rotate(kernel, grads, adjoint(source), seq_axis)
        else:
            back = rotate(kernel, grads, source, seq_axis, None, transposed)
        if back is not NotImplemented:
            return back
    with no_autocast(grads[0]):
        return rotate_by_operations(grads, source, seq_axis, transposed)
