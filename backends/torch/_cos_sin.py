"""Compute cos and sin with a kernel, by rotating (1, 0) in each pair."""

from collections.abc import Callable
from typing import Any

import torch

from rope_array import _dynamo
from rope_array._array_api.library import computes_in_float64
from rope_array._array_api.position_input import read_positions
from rope_array._array_api.source import Positions
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
    of_units = _unit_plan(plan)
    prepare(of_units)
    width = of_units.layout.stop
    dtype = torch.float64 if use_float64 else torch.float32
    units = torch.zeros(width, dtype=dtype, device=like.device)
    units[: width // 2] = 1.0
    shape = whole.shape if plan.coordinates is None else whole.shape[:-1]
    positions = Positions(whole.to(torch.int64), of_units)
    y = kernel.rotate(units.expand(*shape, width), positions, -2, None, True)
    # Contiguous, as the array-api backend's: compiled code is compiled anew for other strides.
    return y if y is NotImplemented else tuple(table.contiguous() for table in y.chunk(2, -1))


_unit_plan = _dynamo.traced_memo(Plan.of_units)
