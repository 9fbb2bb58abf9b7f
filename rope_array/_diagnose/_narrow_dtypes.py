"""Frequencies, angles and tables rounded to 16 bits."""

import numpy as np

from ._observation import Floats


def _float16(x: Floats) -> Floats:
    with np.errstate(over="ignore"):
        return np.clip(x, -65504.0, 65504.0).astype(np.float16).astype(np.float64)


def _bfloat16(x: Floats) -> Floats:
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) & np.uint32(0xFFFF0000)
    return rounded.view(np.float32).astype(np.float64)


ROUNDERS = {"bfloat16": _bfloat16, "float16": _float16}
QUANTITIES = ("angles", "positions", "cos and sin")


def tables(at: Floats, omegas: Floats, dtype_name: str = "", quantity: str = "") -> tuple[Floats, Floats]:
    """Return cos and sin, (N, pairs), of positions (N, 1), with a quantity rounded to a 16-bit dtype."""
    rounded = ROUNDERS.get(dtype_name, np.asarray)
    if quantity in ("angles", "positions"):
        at = rounded(at)
    if quantity == "angles":
        omegas = rounded(omegas)
    angles = rounded(at * omegas) if quantity == "angles" else at * omegas
    cos, sin = np.cos(angles), np.sin(angles)
    return (rounded(cos), rounded(sin)) if quantity == "cos and sin" else (cos, sin)
