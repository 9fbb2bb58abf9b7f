"""The rotation in code that torch.compile traces: by the kernel's operator, or by PyTorch's operations.

Either way the gradient has a rule of its own, the adjoint rotation by the same positions or tables. It keeps no
x for the backward, and the compiler need not differentiate operation by operation, which makes several loops.
"""

from typing import Any, NamedTuple

import torch
from torch.autograd import forward_ad

from rope_array._array_api.angles import cos_sin
from rope_array._array_api.position_input import read_positions
from rope_array._array_api.source import Call, Positions, Source, Tables
from rope_array._array_api.tables import cast_tables
from rope_array._spec.plan import Layout, Plan

from . import _operator
from ._library import PLAIN_TYPES, TRANSFORMED
from ._operations import rotate_by_operations


class _How(NamedTuple):
    """The constants of a call in the compiled program."""

    plan: Plan | None  # None: by tables
    layout: Layout
    seq_axis: int
    by_kernel: bool
    transposed: bool = False


def why_not_traced(xs: Any, source: Source) -> str | None:
    """Return why a call has no gradient rule and no operator in a compiled program, or None."""
    if torch.compiler.is_exporting():
        return "the call is exported, as PyTorch's own operations: they run where rope_array is not installed"
    if TRANSFORMED is None or TRANSFORMED() or getattr(forward_ad, "_current_level", 0) >= 0:
        return "the compiled function transforms the call"
    for read in source.arrays:
        if isinstance(read, torch.Tensor) and read.requires_grad and torch.is_grad_enabled():
            return "a gradient of positions or tables is recorded"
    for x in (*xs, *source.arrays):
        if isinstance(x, torch.Tensor) and type(x) not in PLAIN_TYPES:
            return "a tensor is of a subclass of torch.Tensor, which PyTorch's own operations serve"
    return None


def rotate(call: Call, by_kernel: bool) -> tuple[Any, ...]:
    """Rotate the arrays of a call."""
    ys: list[Any] = [None] * len(call.xs)
    for use_float64 in (False, True):
        chosen = [i for i, wide in enumerate(call.float64) if wide is use_float64]
        if not chosen:
            continue
        how, first, second = _read(call, use_float64, by_kernel)
        rotated = _rotate_recorded(how, first, second, tuple(call.xs[i] for i in chosen))
        for i, y in zip(chosen, rotated, strict=True):
            ys[i] = y
    return tuple(ys)


def _read(call: Call, use_float64: bool, by_kernel: bool) -> tuple[_How, Any, Any]:
    """Return the constants of a call, and integer positions and None, or cos and sin."""
    source, ops = call.source, call.ops
    if isinstance(source, Tables):
        cos, sin = cast_tables(source, use_float64, ops)
    else:
        plan = source.plan
        whole, fraction = read_positions(source.values, call.lib, ops, any(call.float64))
        if plan.exact and fraction is None:
            return _How(plan, plan.layout, call.seq_axis, by_kernel), ops.cast(whole, torch.int64), None
        cos, sin = cos_sin(whole, fraction, plan, use_float64, ops)
    return _How(None, source.layout, call.seq_axis, by_kernel), cos, sin


def _rotate_recorded(how: _How, first: Any, second: Any, xs: Any) -> Any:
    """Rotate arrays of one compute dtype, with the gradient rule for those that need it."""
    if not torch.is_grad_enabled():
        return _rotate(how, first, second, xs)
    recorded = [x for x in xs if x.requires_grad]
    others = [x for x in xs if not x.requires_grad]
    ys = iter(_RotateFn.apply(how, first, second, *recorded) if recorded else ())
    zs = iter(_rotate(how, first, second, others) if others else ())
    return [next(ys) if x.requires_grad else next(zs) for x in xs]


class _RotateFn(torch.autograd.Function):  # type: ignore[misc,unused-ignore]
    """The rotation with its gradient: the adjoint rotation, by the same positions or tables."""

    @staticmethod
    def forward(ctx: Any, how: _How, first: Any, second: Any, *xs: Any) -> Any:
        ctx.save_for_backward(first, second)
        ctx.how = how
        return tuple(_rotate(how, first, second, xs))

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        how, (first, second) = ctx.how._replace(transposed=not ctx.how.transposed), ctx.saved_tensors
        # Dynamo turns gradients off here; a backward that runs uncompiled may be differentiated again.
        with torch.enable_grad():
            return None, None, None, *_rotate(how, first, second, grads, recorded=True)


def _rotate(how: _How, first: Any, second: Any, xs: Any, recorded: bool = False) -> Any:
    """Rotate arrays of one compute dtype by positions, or by cos and sin."""
    source = Tables(first, second, how.layout) if how.plan is None else Positions(first, how.plan)
    if not how.by_kernel:
        return rotate_by_operations(xs, source, how.seq_axis, how.transposed, _in_own_memory)
    return _operator.rotate(xs, source, how.seq_axis, how.transposed, recorded)


def _in_own_memory(table: Any) -> Any:
    """Keep the compiler from computing angles in the loop over heads, again for each head.

    It stores an array before it takes a strided view of it.
    """
    return table.as_strided(table.shape, table.stride())
