"""Cos and sin by the C++ kernel: it rotates (1, 0) in each pair, whose image is (cos, sin)."""

from typing import Any

import torch

from rope_array import _dynamo
from rope_array._array_api.library import computes_in_float64
from rope_array._array_api.position_input import read_positions
from rope_array._array_api.source import Positions
from rope_array._backends import _native
from rope_array._spec.plan import Layout, Plan

from ._library import LIBRARY

_LIMIT = 256  # plans that are remembered


def tables_by_kernel(source: Positions, like: Any) -> Any:
    """Return cos and sin at integer positions; NotImplemented for other positions and other angles."""
    pos, plan, inv_freq = source
    if inv_freq is not None or not plan.exact:
        return NotImplemented
    use_float64 = computes_in_float64(like)
    whole, fraction = read_positions(pos, LIBRARY, LIBRARY.ops(like), use_float64)
    if fraction is not None:
        return NotImplemented
    of_units = _plans.get(plan) or _plan_of_units(plan)
    width = of_units.layout.stop
    units = torch.zeros(width, dtype=torch.float64 if use_float64 else torch.float32)
    units[: width // 2] = 1.0
    shape = whole.shape if plan.coordinates is None else whole.shape[:-1]
    positions = Positions(whole.to(torch.int64), of_units)
    y = _native.kernel.rotate(units.expand(*shape, width), positions, -2, None, True)
    # Contiguous, as the array-api backend's: compiled code is compiled anew for other strides.
    return y if y is NotImplemented else tuple(table.contiguous() for table in y.chunk(2, -1))


_plans: dict[Plan, Plan] = {}


def _plan_of_units(plan: Plan) -> Plan:
    """Return the plan that rotates a feature of ones and a feature of zeros for each pair."""
    width = 2 * len(plan.frequencies.values)
    layout = Layout(width, 0, width, "half", "half", plan.layout.amplitude)
    turns96 = [high << 32 | low for high, low in zip(*(w.values for w in plan.turns_q96), strict=True)]
    made = Plan(layout, True, plan.frequencies.values, plan.turns_q64.values, turns96, None, plan.coordinates)
    _native.prepare(made)
    with _dynamo.lock:
        if len(_plans) >= _LIMIT:
            _plans.clear()
        _plans[plan] = made
    return made
