"""Measure a rotation: the heads that it is given, and the numbers and bits that are read from its results."""

import hashlib
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rope_array._diagnose._mistakes import ROUNDERS
from rope_array._diagnose._observation import Complex, Floats
from rope_array._errors import ArrayTypeError, FingerprintError, describe
from rope_array._spec.validation import integer

from ._series import Series, fit_series

LONGEST = 2**31
_BITS = {"bfloat16": 8, "float16": 11, "float32": 24, "float64": 53}  # of a significand
_BANDS = (4096, 131_072, LONGEST)
_RANDOM_HEADS = 4
_LEAST_SIN = 0.1  # of pairs whose results show the rounding of tables
_FEW = 0.01  # of the results may be rounded twice

Pair = tuple[int, int, int, int]  # its two input features, and the output features that these go to


@dataclass(frozen=True)
class Probe:
    """Heads to rotate, and their positions.

    Attributes
    ----------
    x
        (head_dim + 4, S, head_dim), exact in the dtype: the unit vectors, and heads of random numbers.
    positions
        S positions, ascending: 0, and in each octave the power of two, the number before it, and another.
    """

    x: Floats
    positions: list[int]
    length: int
    dtype: str


def probe(head_dim: int, length: int, dtype: str) -> Probe:
    """Return the probe of a width, the length of a context, and the name of a dtype."""
    if dtype not in _BITS:
        raise ArrayTypeError(f"the dtype is {dtype}; a rotation is measured in {', '.join(_BITS)}.")
    length = integer("length", length, 2, LONGEST)
    powers = [2**n for n in range(32)]
    near = {0, length - 1, *(p for n in powers for p in (n - 1, n, n * 1618 // 1000))}
    positions = sorted(p for p in near if p < length)
    x = np.zeros((head_dim + _RANDOM_HEADS, len(positions), head_dim))
    x[:head_dim] = np.eye(head_dim)[:, None]
    x[head_dim:] = _random_numbers(x[head_dim:].shape, _BITS[dtype])
    return Probe(x, positions, length, dtype)


def _random_numbers(shape: tuple[int, ...], bits: int) -> Floats:
    """Return numbers of a significand of some bits, 1/2 to 2 in size: SplitMix64 of their indices."""
    n = np.arange(1, math.prod(shape) + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        n = (n ^ n >> np.uint64(shift)) * np.uint64(factor)
    n ^= n >> np.uint64(31)
    significand = np.float64(2.0 ** (bits - 1)) + (n >> np.uint64(65 - bits))
    signs = 1.0 - 2.0 * (n & np.uint64(1))
    exponents = (n >> np.uint64(1) & np.uint64(1)).astype(int) - bits
    return np.asarray(signs * np.ldexp(significand, exponents)).reshape(shape)


@dataclass(frozen=True)
class MeasuredRotation:
    """A rotation as a probe shows it. Equal if the layout and the hashes of bits are.

    Attributes
    ----------
    layout : str
        The pairing, the features that change, and the pairs: (0, 64)->(0, 1) are the inputs and the outputs.
    axes : str
        Of coordinates, the digit that drives each pair; "" if a position is one number.
    series : tuple of Series
        The frequencies, as far as the positions determine them.
    amplitude : float
        The factor on cos and sin.
    rounding : str
        "wider", or the dtype of 16 bits to which cos and sin are rounded.
    tables, results : tuple of (int, str)
        Hashes of cos and sin, and of rotated random numbers, for the positions below each bound.
    """

    layout: str
    axes: str
    series: tuple[Series, ...] = field(compare=False)
    amplitude: float = field(compare=False)
    rounding: str = field(compare=False)
    tables: tuple[tuple[int, str], ...]
    results: tuple[tuple[int, str], ...]

    @property
    def frequencies(self) -> tuple[float, ...]:
        """The frequency of each pair in radians per position, modulo a turn: -π to π."""
        return tuple(omega for series in self.series for omega in series.frequencies)

    @property
    def divisors(self) -> tuple[float, ...]:
        """The divisor of each pair, in its series."""
        return tuple(divisor for series in self.series for divisor in series.divisors)


def measure(probe: Probe, y: Floats, *alone: Floats) -> MeasuredRotation:
    """Return the rotation that maps ``probe.x`` to y, both float64 in NumPy.

    With coordinates, y is of equal ones, and `alone` has the results for each of them, the others 0.
    """
    head_dim = probe.x.shape[-1]
    y, matrix = y + 0.0, y[:head_dim].transpose(1, 2, 0)  # (S, outputs, inputs)
    if y.shape != probe.x.shape or not np.isfinite(y).all():
        raise FingerprintError(
            f"{describe(probe.x)} becomes {describe(y)}, finite: {np.isfinite(y).all()}; give code that "
            "returns finite numbers of the shape that it gets."
        )
    pairs, single = _read_layout(matrix)
    phasors = _phasors(matrix, pairs)
    rounding = _rounding_of_tables(probe, y, pairs, phasors)
    eps = eps_of(rounding, probe.dtype)
    omegas = _unwrapped(phasors, probe.positions)
    scale = np.abs(phasors[0]) if pairs else matrix[0].diagonal()
    return MeasuredRotation(
        _layout_text(pairs, single, head_dim),
        _axes_text([_phasors(z[:head_dim].transpose(1, 2, 0), pairs) for z in alone]),
        fit_series(omegas, tolerances(omegas, probe.length, eps), _width(pairs)),
        float(f"{np.median(scale):.6g}"),
        rounding,
        _hashes(np.stack([phasors.real, phasors.imag], -1), probe.positions),
        _hashes(y[head_dim:].swapaxes(0, 1), probe.positions),
    )


def eps_of(rounding: str, dtype: str) -> float:
    """Return the spacing of the tables' numbers next to 1."""
    return 2.0 ** (1 - _BITS.get(rounding, _BITS[dtype]))


def tolerances(omegas: Floats, length: int, eps: float) -> Floats:
    """Return the relative error of measured frequencies: float32's steps, or the tables' rounding."""
    reach = 2.0 ** ((length - 1).bit_length() - 1)
    return np.asarray(np.maximum(1e-6, 2 * eps / np.maximum(1.0, abs(omegas) * reach)))


# ---- layout ----


def _read_layout(matrix: Floats) -> tuple[list[Pair], list[tuple[int, int]]]:
    """Return the pairs of a rotation's matrices, and the inputs and outputs of other changed features."""
    inputs_of: dict[tuple[int, ...], list[int]] = {}
    for i, column in enumerate((matrix != 0).any(0).T):
        inputs_of.setdefault(tuple(np.flatnonzero(column).tolist()), []).append(i)
    pairs, others = [], []
    for outputs, inputs in inputs_of.items():
        pair = _as_pair(matrix, inputs, outputs)
        if pair:
            pairs.append(pair)
        elif len(outputs) != 1 or inputs != [*outputs] or (matrix[:, inputs[0], inputs[0]] != 1).any():
            others += [(i, o) for i in inputs for o in outputs]
    return sorted(pairs), sorted(others)


def _as_pair(matrix: Floats, inputs: list[int], outputs: tuple[int, ...]) -> Pair | None:
    """Return the features of a rotation in a plane; None for another map."""
    if len(inputs) != 2 or len(outputs) != 2:
        return None
    a, b = inputs
    for c, d in (outputs, outputs[::-1]):  # the sines have opposite signs
        cos, sin = (matrix[:, c, a], matrix[:, d, b]), (matrix[:, d, a], -matrix[:, c, b])
        if max(abs(cos[0] - cos[1]).max(), abs(sin[0] - sin[1]).max()) <= 2**-7 * abs(matrix[0]).max():
            return a, b, c, d
    return None


def _phasors(matrix: Floats, pairs: list[Pair]) -> Complex:
    """Return cos + i·sin of each position and pair, of shape (S, pairs)."""
    a, _, c, d = np.array(pairs, int).reshape(-1, 4).T
    return np.asarray(matrix[:, c, a] + 1j * matrix[:, d, a])


def _layout_text(pairs: list[Pair], others: list[tuple[int, int]], head_dim: int) -> str:
    changed = sorted({i for features in (*pairs, *others) for i in features})
    texts = [_pairing(pairs), f"features {ranges(changed)} of {head_dim}"]
    texts += [f"{n} pair{'s' * (n > 1)} {_ends(first, last)}" for n, first, last in _runs(pairs)]
    texts += [f"scaled, moved or mixed {a[0]}->{a[1]} to {b[0]}->{b[1]}" for _, a, b in _runs(others)]
    return "; ".join(texts)


def _ends(first: Pair, last: Pair) -> str:
    shown = [f"({a}, {b})" + (f"->({c}, {d})" if (a, b) != (c, d) else "") for a, b, c, d in (first, last)]
    return " to ".join(dict.fromkeys(shown))


def _pairing(pairs: list[Pair]) -> str:
    """Return the pairing by the distances within pairs, and the pairing of the results, if another."""
    names = []
    for distances in ({b - a for a, b, _, _ in pairs}, {d - c for _, _, c, d in pairs}):
        names.append("half" if len(distances) == 1 else "other pairing" if distances else "no pairs")
        names[-1] = "interleaved" if distances == {1} else names[-1]
    return " to ".join(dict.fromkeys(names))


def _width(pairs: list[Pair]) -> int:
    """Return the number of pairs of the whole series: rotated pairs may be the first of them."""
    distances = {b - a for a, b, _, _ in pairs}
    return max(len(pairs), *distances) if len(distances) == 1 else len(pairs)


def _runs(tuples: list[Any]) -> Iterator[tuple[int, Any, Any]]:
    """Yield the runs of tuples with constant steps: the count, the first and the last tuple."""
    start = 0
    while start < len(tuples):
        stop, run = start + 1, np.array(tuples[start:])
        steps = np.diff(run, axis=0)
        if len(steps):
            same = (steps == steps[0]).all(1)
            stop = start + 1 + (len(same) if same.all() else int(same.argmin()))
        yield stop - start, tuples[start], tuples[stop - 1]
        start = stop


def ranges(numbers: list[int]) -> str:
    """Return ascending numbers as text: 0-3, 7."""
    starts = [n for n in numbers if n - 1 not in numbers]
    ends = [n for n in numbers if n + 1 not in numbers]
    texts = [str(a) if a == b else f"{a}-{b}" for a, b in zip(starts, ends, strict=True)]
    return ", ".join(texts) or "none"


def _axes_text(alone: list[Complex]) -> str:
    """Return the coordinate that drives each pair."""
    driven = [(z != z[:1]).any(0) for z in alone]
    return "".join("?" if sum(pair) != 1 else f"{pair.index(True):x}" for pair in zip(*driven, strict=True))


# ---- frequencies, rounding, bits ----


def _unwrapped(phasors: Complex, positions: list[int]) -> Floats:
    """Return the frequencies, from position 1 and then from positions twice as far."""
    turned = phasors * phasors[0].conj()
    omegas = np.zeros(phasors.shape[1])
    for row, position in zip(turned, positions, strict=True):
        if position.bit_count() == 1:
            omegas = omegas + np.angle(row * np.exp(-1j * position * omegas)) / position
    return omegas


def _rounding_of_tables(probe: Probe, y: Floats, pairs: list[Pair], phasors: Complex) -> str:
    """Return the dtype of 16 bits that explains the tables, or in 16 bits the results; else "wider"."""
    cos, sin = phasors.real, phasors.imag
    if probe.dtype not in ROUNDERS:
        fits = (n for n, r in ROUNDERS.items() if (r(cos) == cos).all() and (r(sin) == sin).all())
        return next(fits, "wider") if pairs else "wider"
    a, b, c, _ = np.array(pairs, int).reshape(-1, 4).T
    rounded, heads = ROUNDERS[probe.dtype], len(y) - _RANDOM_HEADS
    p, q = probe.x[heads:][..., a] * cos, probe.x[heads:][..., b] * sin
    shows = np.broadcast_to(abs(sin) > _LEAST_SIN * abs(phasors), p.shape)
    for u, v in ((p, q), (rounded(p), rounded(q)), (p, rounded(q)), (rounded(p), q)):
        if shows.any() and (rounded(u - v) != y[heads:][..., c])[shows].mean() < _FEW:
            return probe.dtype
    return "wider"


def _hashes(numbers: Floats, positions: list[int]) -> tuple[tuple[int, str], ...]:
    """Return a hash of the rows of the positions below each bound, and not below the one before."""
    hashes, start = [], 0
    for bound in _BANDS:
        rows = [i for i, position in enumerate(positions) if start <= position < bound]
        if rows:
            hashes.append((bound, short_hash(np.ascontiguousarray(numbers[rows] + 0.0, "<f8").tobytes())))
        start = bound
    return tuple(hashes)


def short_hash(content: bytes) -> str:
    """Return the first 64 bits of SHA-256."""
    return hashlib.sha256(content).hexdigest()[:16]
