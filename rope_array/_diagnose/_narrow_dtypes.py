"""Frequencies, angles and tables rounded to 16 bits."""

from collections.abc import Iterator

import numpy as np

from rope_array._diagnose._case import Floats


def _float16(x: Floats) -> Floats:
    with np.errstate(over="ignore"):
        return np.clip(x, -65504.0, 65504.0).astype(np.float16).astype(np.float64)


def _bfloat16(x: Floats) -> Floats:
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) & np.uint32(0xFFFF0000)
    return rounded.view(np.float32).astype(np.float64)


ROUNDERS = (("bfloat16", _bfloat16), ("float16", _float16))


def narrow_tables(at: Floats, omegas: Floats) -> Iterator[tuple[str, tuple[Floats, Floats]]]:
    """Yield cos and sin, (N, pairs), with angles, positions or tables rounded to each 16-bit dtype."""
    for name, rounded in ROUNDERS:
        angles = rounded(rounded(at) * rounded(omegas))
        yield f"angles are {name}", (np.cos(angles), np.sin(angles))
        angles = rounded(at) * omegas
        yield f"positions are {name}", (np.cos(angles), np.sin(angles))
        yield f"cos and sin are {name}", (rounded(np.cos(at * omegas)), rounded(np.sin(at * omegas)))
