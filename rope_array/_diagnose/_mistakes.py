"""The mistakes that implementations of RoPE make, by name: in positions, in exponents, in roundings.

`diagnose` tries them on an output, and the suite names wrong results by them. No verdict depends on them.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Positions = NDArray[Any]
Convert = Callable[[Positions], Positions | None]


class PositionMistake(NamedTuple):
    """Other positions than the given ones.

    Attributes
    ----------
    text
        The positions in words.
    code
        The code that makes them from a NumPy array `pos`.
    convert
        The same as a function; None if it does not apply. The last axis has the rows; x has the others too.
    """

    text: str
    code: str
    convert: Convert


def _of_rows(convert: Callable[[Positions], Any]) -> Convert:
    """Return a function of positions; its result is None if all rows have one position."""
    return lambda pos: np.broadcast_to(convert(pos), pos.shape) if pos.ndim and pos.shape[-1] > 1 else None


def _of_axis(axis: int, ndim: int, convert: Callable[[Positions], Any]) -> Convert:
    """Return a function of positions; its result is None without several batches or heads."""

    def moved(pos: Positions) -> Positions | None:
        if pos.ndim < ndim or pos.shape[axis] < 2:
            return None
        other = convert(pos)
        fits = other.ndim == pos.ndim and other.shape[-1] in (1, pos.shape[-1])
        return np.broadcast_to(other, pos.shape) if fits else None

    return moved


def _converted_to(dtype: str) -> Convert:
    """Return a function that converts positions to another dtype, and back."""

    def convert(pos: Positions) -> Positions | None:
        with np.errstate(all="ignore"):
            rounded = pos.astype(dtype)
        return rounded.astype(pos.dtype) if np.isfinite(rounded.astype(np.float64)).all() else None

    return convert


# Packed sequences: positions 0 1 2 3 0 1 2 used as 0 1 2 3 4 5 6, or as 0 1 2 3 4 1 2.
def _steps(pos: Positions) -> Positions:
    return np.diff(pos, axis=-1, prepend=0)


def _counting_on(pos: Positions) -> Positions:
    return np.asarray(np.cumsum(np.where(_steps(pos) < 0, 1, _steps(pos)), -1))


def _never_back(pos: Positions) -> Positions:
    later = np.frompyfunc(lambda before, now: before + 1 if now < before else now, 2, 1)
    return np.asarray(later.accumulate(pos, axis=-1).astype(pos.dtype))


def _next_at_restarts(pos: Positions) -> Positions:
    return np.where(_steps(pos) < 0, np.roll(pos, 1, -1) + 1, pos)


AFTER_A_RESTART = "the position of the row before plus 1 after a restart"
POSITIONS = (
    PositionMistake("pos + 1", "pos + 1", lambda pos: pos + 1),
    PositionMistake("pos - 1", "pos - 1", lambda pos: pos - 1),
    PositionMistake("the row's index", "np.arange(pos.shape[-1])",
                    _of_rows(lambda pos: np.arange(pos.shape[-1]))),
    PositionMistake("the position of row 0", "pos[..., :1]", _of_rows(lambda pos: pos[..., :1])),
    PositionMistake(AFTER_A_RESTART,
                    "np.cumsum(np.where(np.diff(pos, prepend=0) < 0, 1, np.diff(pos, prepend=0)), -1)",
                    _of_rows(_counting_on)),
    PositionMistake(AFTER_A_RESTART,
                    "np.frompyfunc(lambda p, q: p + 1 if q < p else q, 2, 1).accumulate(pos, -1).astype(int)",
                    _of_rows(_never_back)),
    PositionMistake("the position of row 0 plus the row's index", "pos[..., :1] + np.arange(pos.shape[-1])",
                    _of_rows(lambda pos: pos[..., :1] + np.arange(pos.shape[-1]))),
    PositionMistake("the position of the row before plus 1 at a restart",
                    "np.where(np.diff(pos, prepend=0) < 0, np.roll(pos, 1, -1) + 1, pos)",
                    _of_rows(_next_at_restarts)),
    PositionMistake("the position of the next row", "np.roll(pos, -1, -1)",
                    _of_rows(lambda pos: np.roll(pos, -1, -1))),
    PositionMistake("the position of the previous row", "np.roll(pos, 1, -1)",
                    _of_rows(lambda pos: np.roll(pos, 1, -1))),
    PositionMistake("sorted positions", "np.sort(pos)", _of_rows(np.sort)),
    PositionMistake("the positions of batch 0", "pos[:1]", _of_axis(0, 2, lambda pos: pos[:1])),
    PositionMistake("positions that run along the batch axis", "np.swapaxes(pos, 0, -1)",
                    _of_axis(0, 2, lambda pos: np.swapaxes(pos, 0, -1))),
    PositionMistake("the positions of head 0", "pos[:, :1]", _of_axis(1, 3, lambda pos: pos[:, :1])),
    PositionMistake("positions that run along the head axis", "np.swapaxes(pos, 1, -1)",
                    _of_axis(1, 3, lambda pos: np.swapaxes(pos, 1, -1))),
    PositionMistake("|pos|", "np.abs(pos)", np.abs),
    PositionMistake("-|pos|", "-np.abs(pos)", lambda pos: -np.abs(pos)),
    PositionMistake("pos without its fraction", "np.trunc(pos)",
                    lambda pos: np.trunc(pos) if pos.dtype.kind == "f" else None),
    PositionMistake("pos modulo 2^24", "pos % 2**24", lambda pos: pos % 2**24),
    *(PositionMistake(f"pos converted to {dtype}", f"pos.astype({dtype!r})", _converted_to(dtype))
      for dtype in ("float32", "float16", "int32", "uint16", "int16", "uint8", "int8")),
)  # fmt: skip


def mistaken(pos: Positions) -> Iterator[tuple[PositionMistake, Positions]]:
    """Yield the mistakes that change these positions, with the positions that they make, each once."""
    seen = [pos]
    for mistake in POSITIONS:
        other = mistake.convert(pos)
        if other is not None and not any(np.array_equal(other, before) for before in seen):
            seen.append(other)
            yield mistake, other


# ---- roundings ----

# The numbers of the formula that are rounded to 16 bits by mistake.
TABLES = ("cos and sin", "cos", "sin")
QUANTITIES = ("angles", "positions", *TABLES)


def _float16(x: Floats) -> Floats:
    with np.errstate(over="ignore"):
        return np.clip(x, -65504.0, 65504.0).astype(np.float16).astype(np.float64)


def _bfloat16(x: Floats) -> Floats:
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) & np.uint32(0xFFFF0000)
    return rounded.view(np.float32).astype(np.float64)


ROUNDERS = {"bfloat16": _bfloat16, "float16": _float16}


# ---- frequencies ----

# The frequencies of n pairs that code makes of a base instead of base^(-2i/d), by their name.
FREQUENCIES: dict[str, Callable[[float, int], Floats]] = {
    "exponents linspace(0, 1, d/2)": lambda base, n: base ** -np.linspace(0.0, 1.0, n),
    "frequencies rounded to float16": lambda base, n: _float16(base ** (-np.arange(n) / n)),
    "frequencies rounded to bfloat16": lambda base, n: _bfloat16(base ** (-np.arange(n) / n)),
}


def base_of_linspace(base: float, num_pairs: int, bases: Iterable[float], close: float) -> float | None:
    """Return the base whose series with exponents linspace(0, 1, d/2) is the series of `base`."""
    power = num_pairs / (num_pairs - 1) if num_pairs > 1 else 1.0
    others = (known for known in bases if power > 1 and math.isclose(known**power, base, rel_tol=close))
    return next(others, None)


def odd_pairs(omegas: Floats, bases: Iterable[float], close: float) -> tuple[float, list[int]] | None:
    """Return the base that two of three frequencies have, and the other pairs; None if no base has so many.

    `close` is the largest error of a frequency.
    """
    exponents = np.arange(len(omegas)) / len(omegas)
    for base in bases:
        off = np.abs(np.abs(omegas) - base**-exponents) > close
        if 0 < 3 * off.sum() <= len(omegas):
            return base, np.flatnonzero(off).tolist()
    return None
