"""Compute cos and sin with a kernel, by rotating (1, 0) in each pair."""

from collections.abc import Callable
from typing import Any

import torch

from rope_array._array_api.library import computes_in_float64
from rope_array._array_api.position_input import read_positions
from rope_array._array_api.source import Positions
from rope_array._backends import _native
from rope_array._spec.plan import Plan

from ._library import LIBRARY


def tables_by_kernel(
    kernel: Any, source: Positions, like: Any, prepare: Callable[[Plan], None] = lambda plan: None
) -> Any:
    """Return cos and sin at integer positions; NotImplemented for other positions and other angles.

    `prepare` readies a plan for the kernel.
    """
    pos, plan, inv_freq = source
    if inv_freq is not None or not plan.exact:
        return NotImplemented
    use_float64 = computes_in_float64(like)
    whole, fraction = read_positions(pos, LIBRARY, LIBRARY.ops(like), use_float64)
    if fraction is not None:
        return NotImplemented
    of_units = plan.of_units()
    prepare(of_units)
    units = _units(of_units.layout.stop, torch.float64 if use_float64 else torch.float32, like.device)
    positions = Positions(whole.to(torch.int64), of_units)
    y = kernel.rotate(_expand(units, whole, plan), positions, -2, None, True)
    return y if y is NotImplemented else _split(y)


def try_fast_tables(source: Positions, like: Any) -> Any:
    """Return cos and sin of plain tensors on the CPU, at integer positions; NotImplemented for other calls.

    The kernel checks the positions, and declines where something intercepts PyTorch's operations.
    """
    if torch.compiler.is_dynamo_compiling() or _native.kernel is None:
        return NotImplemented
    pos, plan, inv_freq = source
    if not type(like) is type(pos) is torch.Tensor or not like.is_cpu or like.dtype not in _COMPUTE_DTYPES:
        return NotImplemented
    if inv_freq is not None or not plan.exact or not _native.kernel.has_memory(like):
        return NotImplemented
    of_units = plan.of_units()
    _native.prepare(of_units)
    key = of_units.layout.stop, _COMPUTE_DTYPES[like.dtype]
    units = _known_units.get(key)
    if units is None:
        units = _units(*key, "cpu")
    fields = pos, of_units, None
    y = _native.kernel.rotate(_expand(units, pos, plan), fields, -2, None, False, False, True)
    if y is NotImplemented:
        return y
    _known_units[key] = units  # only here: in a mode they may be fake, and the kernel declines
    return _split(y)


def _units(width: int, dtype: Any, device: Any) -> Any:
    """Return (1, 0) for each pair, as half pairs."""
    # Not by a write: selective checkpointing refuses to save a tensor that is then written.
    ones, zeros = (make(width // 2, dtype=dtype, device=device) for make in (torch.ones, torch.zeros))
    return torch.cat((ones, zeros))


def _expand(units: Any, pos: Any, plan: Plan) -> Any:
    """Return a view of units with a row for each position."""
    shape = pos.shape if plan.coordinates is None else pos.shape[:-1]
    return units.expand(*shape, -1)


def _split(y: Any) -> tuple[Any, ...]:
    """Return cos and sin, contiguous as the array-api backend's: other strides would compile code anew."""
    return tuple(table.contiguous() for table in y.chunk(2, -1))


_known_units: dict[tuple[int, Any], Any] = {}  # by width and dtype
_COMPUTE_DTYPES = {
    **dict.fromkeys((torch.float16, torch.bfloat16, torch.float32), torch.float32),
    torch.float64: torch.float64,
}
