"""The rotation in code that torch.compile traces: by an operator, or by PyTorch's operations.

On the CPU the kernel is an operator. Elsewhere the compiler joins PyTorch's operations into one loop. A
recorded gradient has a rule of its own: the adjoint rotation by the same positions or tables, without any x.
Without the rule the compiler would differentiate each operation, in several loops.
"""

from typing import Any

import torch
from torch.autograd import forward_ad

from rope_array._array_api.angles import cos_sin
from rope_array._array_api.position_input import read_positions
from rope_array._array_api.source import Call, Positions, Source, Tables
from rope_array._array_api.tables import cast_tables

from . import _operator
from ._library import PLAIN_TYPES, TRANSFORMED, is_exported


def why_not_served(xs: Any, source: Source) -> str | None:
    """Return why a compiled call has no operator and no rule for its gradient, or None."""
    if is_exported():
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
    """Rotate the arrays of a call, by the kernel or by PyTorch's operations."""
    grad = torch.is_grad_enabled()
    kinds = [(wide, x.requires_grad and grad) for x, wide in zip(call.xs, call.float64, strict=True)]
    ys: list[Any] = [None] * len(kinds)
    for use_float64 in (False, True):
        if use_float64 not in call.float64:
            continue
        source = _read(call, use_float64)
        for recorded in (False, True):
            chosen = [i for i, kind in enumerate(kinds) if kind == (use_float64, recorded)]
            if chosen:
                xs = [call.xs[i] for i in chosen]
                rotate_group = _operator.rotate_recorded if recorded else _operator.rotate
                for i, y in zip(chosen, rotate_group(xs, source, call.seq_axis, by_kernel), strict=True):
                    ys[i] = y
    return tuple(ys)


def rotate_into(call: Call, outs: tuple[Any, ...]) -> tuple[Any, ...]:
    """Rotate the arrays of a call by the kernel, into `outs`."""
    if _is_one_call_in_place(call, outs):
        _operator.rotate_in_place(call.xs, _read(call, call.float64[0]), call.seq_axis)
    else:  # all results exist before the first is written: an out may overlap another x
        for out, y in zip(outs, rotate(call, by_kernel=True), strict=True):
            out.copy_(y)
    return outs


def _is_one_call_in_place(call: Call, outs: tuple[Any, ...]) -> bool:
    """Return whether one operator in place serves a call: of one compute dtype, and without a gradient."""
    grad = torch.is_grad_enabled()
    for x, out, use_float64 in zip(call.xs, outs, call.float64, strict=True):
        if out is not x or (x.requires_grad and grad) or use_float64 != call.float64[0]:
            return False
    return True


def _read(call: Call, use_float64: bool) -> Source:
    """Return a source of int64 positions or of tables in the compute dtype."""
    source, ops = call.source, call.ops
    if isinstance(source, Tables):
        return Tables(*cast_tables(source, use_float64, ops), source.layout)
    whole, fraction = read_positions(source.values, call.lib, ops, any(call.float64))
    if source.plan.exact and fraction is None:
        return Positions(ops.cast(whole, torch.int64), source.plan)
    return Tables(*cos_sin(whole, fraction, source.plan, use_float64, ops), source.layout)
