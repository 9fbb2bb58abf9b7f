"""Tables of xPos, and of given arrays. Array API only."""

import math
from typing import Any

from rope_array._errors import ArrayTypeError, PositionError, ShapeError, SpecError, describe, short
from rope_array._spec.plan import Constants, Layout

from .angles import floats
from .checks import check_arrays
from .library import Library, computes_in_float64
from .position_input import parse
from .source import Positions, Tables
from .tables import CosSin, arranged, one_per_pair


def xpos(
    source: Positions, like: Any, tables: Any, scale_base: float, center: float, lib: Library
) -> tuple[Tables, Tables]:
    """Return the tables times ζ_i^((p - center)/scale_base) for queries, and divided by it for keys.

    ζ_i = (2i + 0.4·d)/(1.4·d) for pair i of d/2; the source is in `RoPE.rotation_xpos`.
    """
    plan = source.plan
    if plan.coordinates is not None:
        raise SpecError(
            "the rope has axes, one coordinate for each pair, and xPos scales by one position; give a rope "
            "without axes."
        )
    cos, sin = tables
    ops = lib.ops(like)
    use_float64 = computes_in_float64(like)
    parsed = parse(source.values, like, lib)
    _check_reach(parsed.farthest_from(center, lib), center, scale_base, use_float64)
    integers, fraction = parsed.read(lib, ops, use_float64, split=parsed.form != "array")
    pos = floats(integers, fraction, cos.dtype, lib.xp)
    width = 2 * plan.layout.num_pairs
    logs = [math.log((2 * i + 0.4 * width) / (1.4 * width)) for i in range(plan.layout.num_pairs)]
    row = ops.constants(Constants(logs), cos.dtype)[(None,) * (cos.ndim - 1) + (...,)]
    power = ((pos - center) / scale_base)[..., None] * row
    up, down = lib.xp.exp(power), lib.xp.exp(-power)
    layout = plan.layout._replace(amplitude=None)
    return Tables(cos * up, sin * up, layout), Tables(cos * down, sin * down, layout)


def _check_reach(farthest: Any, center: float, scale_base: float, use_float64: bool) -> None:
    """Raise PositionError for a position on the host where a power of ζ_0 = 1/3.5 is below normal numbers."""
    exponent = 1022 if use_float64 else 126  # of the smallest normal number, 2^-exponent
    reach = scale_base * exponent * math.log(2) / math.log(3.5)
    if farthest is not None and abs(farthest - center) > reach:
        raise PositionError(
            f"position {short(farthest)} is beyond the range of xPos's powers, {reach:.0f} from the center "
            f"{short(center)}; give queries and keys one center nearer to their positions, or float64."
        )


def given(cos: Any, sin: Any, layout: Layout, lib: Library, pairing: Any = None) -> CosSin:
    """Return tables of given arrays: with one number for each pair, float32 or float64."""
    layout = arranged(layout, pairing)
    check_arrays((sin,), lib, "sin")
    if not lib.same_device(cos, sin):
        raise ArrayTypeError(f"cos is {lib.describe(cos)} and sin {lib.describe(sin)}; move one of them.")
    shape, count = tuple(cos.shape), layout.num_pairs
    if shape != tuple(sin.shape) or shape[-1] not in (count, 2 * count):
        raise ShapeError(
            f"cos is {describe(cos)} and sin {describe(sin)}; both need one shape, whose last axis has "
            f"{count} pairs (rotary_dim/2) or {2 * count} features (rotary_dim)."
        )
    ops = lib.ops(cos)
    dtype = ops.xp.float64 if computes_in_float64(cos) or computes_in_float64(sin) else ops.xp.float32
    cos, sin = (ops.cast(one_per_pair(table, layout, ops), dtype) for table in (cos, sin))
    return cos, sin
