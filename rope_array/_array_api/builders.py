"""Tables for what is not one frequency per lane, made of a library's own operations: so for all libraries.

Each function returns the parts of a Rotation: cos, sin, and where the pairs stand.
"""

import math
from typing import Any

from rope_array._errors import ShapeError, SpecError
from rope_array._spec.plan import Constants, Layout, Plan

from . import rotate as _core
from .angles import floats, product_cos_sin
from .library import Library

Tables = tuple[Any, Any, dict[Layout, tuple[()]]]


def mixed(pos: Any, like: Any, plan: Plan, inv_freq: Any, lib: Library) -> Tables:
    """Cos and sin of sums over coordinates, each with frequencies of its own in every head."""
    _refuse_axes(plan, "inv_freq has frequencies for each coordinate")
    _core.check_frequency_kind(inv_freq, like, lib)
    shape, given = tuple(inv_freq.shape), _core.positions_shape(pos, lib.owns(pos))
    if len(shape) != 3 or shape[-1] != plan.layout.lanes or not shape[1]:
        raise ShapeError(
            f"inv_freq has the shape {shape}; mixed frequencies have the shape (heads, coordinates, lanes), "
            f"with {plan.layout.lanes} lanes for a rotary_dim of {2 * plan.layout.lanes}."
        )
    if len(given) < 2 or given[-1] != shape[1]:
        raise ShapeError(
            f"pos has the shape {given}, and inv_freq {shape} frequencies for {shape[1]} coordinates; "
            f"give pos the shape (..., S, {shape[1]})."
        )
    whole, fraction = _core.table_positions(pos, like, plan, None, lib)
    dtype = lib.xp.float64 if _core.is_double(like) else lib.xp.float32
    numbers = floats(whole, fraction, dtype, lib.xp)
    numbers = numbers[None, ...] if len(given) == 2 and like.ndim > 3 else numbers
    omegas = lib.xp.astype(inv_freq, dtype)[:, None, :, :]
    # (..., 1, S, 1) · (heads, 1, lanes) for each coordinate: sums of products, and no matrix product, which
    # hardware may round to fewer digits.
    angle = sum(numbers[..., None, :, a, None] * omegas[..., a, :] for a in range(shape[1]))
    return (*product_cos_sin(angle, 1.0, plan, dtype, lib.xp), {plan.layout: ()})


def xpos(
    pos: Any, like: Any, plan: Plan, tables: Any, scale_base: float, center: float, lib: Library
) -> tuple[Tables, Tables]:
    """Tables times ζ^((p - center)/scale_base) for queries, and divided by it for keys."""
    _refuse_axes(plan, "xPos scales by one position")
    cos, sin = tables
    whole, fraction = _core.table_positions(pos, like, plan, None, lib)
    kit = lib.kit(like)
    distance = (floats(whole, fraction, cos.dtype, lib.xp) - center) / scale_base
    width = 2 * plan.layout.lanes
    logs = [math.log((2 * i + 0.4 * width) / (1.4 * width)) for i in range(plan.layout.lanes)]
    row = kit.constants(Constants(logs), cos.dtype, kit.create)[(None,) * (cos.ndim - 1) + (...,)]
    power = distance[..., None] * row
    up, down = lib.xp.exp(power), lib.xp.exp(-power)
    static = {plan.layout._replace(amplitude=None): ()}
    return (cos * up, sin * up, static), (cos * down, sin * down, static)


def _refuse_axes(plan: Plan, why: str) -> None:
    if plan.coordinates is not None:
        raise SpecError(f"the rope has axes, each lane one coordinate, and {why}; give a rope without axes.")
