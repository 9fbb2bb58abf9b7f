"""Measure a rotation: the heads that it is given, and the numbers and bits that its results show."""

import hashlib
import math
import re
from dataclasses import dataclass, field
from itertools import groupby

import numpy as np

from rope_array._diagnose._frequency_fit import BASES
from rope_array._diagnose._mistakes import ROUNDERS
from rope_array._diagnose._observation import Complex, Floats
from rope_array._diagnose._pair_hypotheses import shortest
from rope_array._errors import ArrayTypeError, FingerprintError, describe, ranges
from rope_array._spec.validation import integer

LONGEST = 2**31
BANDS = (4096, 131_072, LONGEST)  # of positions, by their ends: each has its hashes
_BITS = {"bfloat16": 8, "float16": 11, "float32": 24, "float64": 53}  # of a significand
_RANDOM_HEADS = 4
_PHASE = 2.0**-29  # radians: more than the error of a 32-bit phase
SERIES = re.compile(r"(\S+)\^\(-i/(\d+)\) / \((.*)\)")

Pair = tuple[int, int, int, int]  # its two input features, and the output features that they go to


@dataclass(frozen=True)
class Probe:
    """Heads to rotate: the unit vectors, and four of random numbers that are exact in the dtype."""

    x: Floats  # (head_dim + 4, S, head_dim)
    positions: list[int]  # S, ascending
    length: int
    dtype: str


def probe(head_dim: int, length: int, dtype: str) -> Probe:
    """Return the heads for positions below a length: powers of two, the numbers before them, and others."""
    if dtype not in _BITS:
        raise ArrayTypeError(f"the dtype is {dtype}; a rotation is measured in {', '.join(_BITS)}.")
    length = integer("length", length, 2, LONGEST)
    near = {length - 1, *(p for n in range(31) for p in (2**n - 1, 2**n, 2**n * 1618 // 1000))}
    positions = sorted(p for p in near if p < length)
    x = np.zeros((head_dim + _RANDOM_HEADS, len(positions), head_dim))
    x[:head_dim] = np.eye(head_dim)[:, None]
    x[head_dim:] = _random_numbers(x[head_dim:].shape, _BITS[dtype])
    return Probe(x, positions, length, dtype)


def _random_numbers(shape: tuple[int, ...], bits: int) -> Floats:
    """Return numbers of a significand of some bits, 1/2 to 2 in size, equal in every version of NumPy."""
    n = np.random.PCG64(57).random_raw(math.prod(shape)).reshape(shape)
    significands = 2.0 ** (bits - 1) + (n >> np.uint64(65 - bits)).astype(float)
    signs, exponents = 1.0 - 2.0 * (n & np.uint64(1)), (n >> np.uint64(1) & np.uint64(1)) - float(bits)
    return np.asarray(signs * significands * 2.0**exponents)


@dataclass(frozen=True)
class MeasuredRotation:
    """A rotation as a probe shows it, in the texts of a report; equal if the layout and the bits are."""

    layout: str  # the pairing, the distance of the features of a pair, and the features that change
    axes: str  # of coordinates, the digit that drives each pair
    frequencies: str = field(compare=False)  # base^(-i/width) / divisors, as 500000^(-i/64) / (1 x29, 8 x35)
    cos_and_sin: str = field(compare=False)  # the amplitude, the rounding to 16 bits, and the error of angles
    tables: str  # hashes of cos and sin, for each band of positions
    results: str  # the same of rotated random numbers

    @property
    def numbers(self) -> tuple[float, Floats, Floats]:
        """The base; the divisors; and the frequencies in radians per position, modulo 2π: -π to π."""
        base, width, runs = SERIES.findall(self.frequencies)[0]
        counts = [run.partition(" x")[::2] for run in runs.split(", ") if run]
        if sum(int(n or 1) for _, n in counts) > 2**20:
            raise ValueError("more pairs than a head has: a report that was edited")
        divisors = np.array([float(number) for number, n in counts for _ in range(int(n or 1))])
        return float(base), divisors, float(base) ** (-np.arange(len(divisors)) / float(width)) / divisors


def measure(probe: Probe, y: Floats, *alone: Floats) -> MeasuredRotation:
    """Return the rotation that maps ``probe.x`` to y, both of float64.

    With coordinates, y is of equal ones, and `alone` has the results for each of them, the others 0.
    """
    if y.shape != probe.x.shape or not np.isfinite(y).all():
        raise FingerprintError(
            f"{describe(probe.x)} becomes {describe(y)}, finite: {np.isfinite(y).all()}; give code that "
            "returns finite numbers of the shape that it gets."
        )
    head_dim = y.shape[-1]
    pairs, others = _read_pairs(y[:head_dim])
    phasors = _phasors(y, pairs)
    rounding = _rounding(probe, y, pairs, phasors)
    eps = eps_of(rounding, probe.dtype)
    omegas = _unwrapped(phasors, probe.positions)
    # The distance of half pairs is the width of a series of which only the first pairs rotate.
    width = max([len(pairs), *(b - a for a, b, _, _ in pairs)])
    size = float(np.median(abs(phasors[0]) if pairs else y[:head_dim, 0].diagonal()))
    angles = _angles(phasors, probe.positions, omegas, max(1e-6, 8 * eps))
    return MeasuredRotation(
        _layout(pairs, others, head_dim),
        _axes([_phasors(z, pairs) for z in alone]),
        _series(omegas.tolist(), errors_of(omegas, probe.length, eps).tolist(), width),
        f"amplitude {size:.6g}, {rounding or 'more than 16 bits'}, angles {angles}",
        _hashes(phasors.view(float), probe.positions),
        _hashes(y[head_dim:].swapaxes(0, 1), probe.positions),
    )


# ---- layout ----


def _read_pairs(units: Floats) -> tuple[list[Pair], list[int]]:
    """Return the pairs of the rotated unit vectors, and the features that change otherwise."""
    inputs_of: dict[tuple[int, ...], list[int]] = {}
    for i, row in enumerate((units != 0).any(1)):
        inputs_of.setdefault(tuple(np.flatnonzero(row).tolist()), []).append(i)
    pairs, others = [], []
    for outputs, inputs in inputs_of.items():
        if pair := _as_pair(units, inputs, outputs):
            pairs.append(pair)
        elif inputs != [*outputs] or len(inputs) > 1 or (units[inputs[0], :, inputs[0]] != 1).any():
            others += inputs
    return sorted(pairs), sorted(others)


def _as_pair(units: Floats, inputs: list[int], outputs: tuple[int, ...]) -> Pair | None:
    """Return the features of a rotation in a plane; None for another map."""
    if len(inputs) != 2 or len(outputs) != 2:
        return None
    a, b = inputs
    for c, d in (outputs, outputs[::-1]):  # the cosines are equal, the sines opposite
        off = abs(units[a, :, c] - units[b, :, d]) + abs(units[a, :, d] + units[b, :, c])
        if off.max() <= 2**-7 * abs(units[[a, b]]).max():
            return a, b, c, d
    return None


def _phasors(y: Floats, pairs: list[Pair]) -> Complex:
    """Return cos + i·sin of each position and pair."""
    a, _, c, d = np.array(pairs, int).reshape(-1, 4).T
    return np.ascontiguousarray((y[a, :, c] + 1j * y[a, :, d]).T)


def _layout(pairs: list[Pair], others: list[int], head_dim: int) -> str:
    sides = dict.fromkeys(_pairing([pair[i : i + 2] for pair in pairs]) for i in (0, 2))
    changed = ranges(sorted({*others, *(i for pair in pairs for i in pair)})) or "none"
    mixed = f"; not by pairs {ranges(others)}" if others else ""
    return f"{' to '.join(sides)}; features {changed} of {head_dim}{mixed}"


def _pairing(pairs: list[tuple[int, ...]]) -> str:
    distances = {b - a for a, b in pairs}
    if len(distances) > 1:
        return f"other pairs {short_hash(repr(pairs).encode())}"
    names = (f"half (i, i + {n})" if n > 1 else f"half (i + {-n}, i)" for n in distances - {1})
    return next(names, "interleaved" if distances else "no pairs")


def _axes(alone: list[Complex]) -> str:
    """Return the coordinate that drives each pair."""
    driven = zip(*((z != z[:1]).any(0).tolist() for z in alone), strict=True)
    return "".join(str(pair.index(True)) if sum(pair) == 1 else "?" for pair in driven)


# ---- frequencies, rounding, bits ----


def _unwrapped(phasors: Complex, positions: list[int]) -> Floats:
    """Return the frequencies, from position 1 and then from positions twice as far, while these agree.

    At powers of two the angles of float32 are exact: the product of a float and a power of two is.
    """
    omegas, turned = np.zeros(phasors.shape[1]), phasors * phasors[0].conj()
    for row, position in zip(turned, positions, strict=True):
        if position.bit_count() == 1:
            errors = np.angle(row * np.exp(-1j * position * omegas))
            if position > 1 and abs(errors).max(initial=0.0) > 0.25:
                break  # the end of a table
            omegas = omegas + errors / position
    return omegas


def _angles(phasors: Complex, positions: list[int], omegas: Floats, limit: float) -> str:
    """Return whether angles are exact, or rounded to float32; or from which position on they are others."""
    angles = np.multiply.outer(positions, omegas)
    off = abs(np.angle(phasors * np.exp(-1j * angles)))
    largest = float(off.max(initial=0.0))
    if largest <= limit:
        return "exact"
    if (off <= limit + 2.0**-23 * abs(angles)).all():
        return f"in float32, off by {largest:.1g}"
    return f"off by {largest:.1g} from position {positions[int((off.max(1) > largest / 8).argmax())]} on"


def errors_of(omegas: Floats, length: int, eps: float) -> Floats:
    """Return relative errors of frequencies: float32's steps, or the rounding at the last power of two."""
    angles = abs(omegas) * 2.0 ** ((length - 1).bit_length() - 1)
    of_phases = _PHASE / np.maximum(angles, 1e-300)
    return np.asarray(np.maximum(1e-6, 2 * eps / np.maximum(1.0, angles) + of_phases))


def eps_of(rounding: str, dtype: str) -> float:
    """Return the distance of numbers next to 1, in cos and sin of heads of a dtype."""
    return 2.0 ** (1 - _BITS.get(rounding, _BITS[dtype]))


def _series(omegas: list[float], errors: list[float], width: int) -> str:
    """Return frequencies as a base and divisors, with the fewest different ones."""
    bases = [*BASES]
    for k, omega in enumerate(omegas):
        if omega and omegas[0] and (k.bit_count() == 1 or k == len(omegas) - 1 > 0):
            logarithm = math.log(abs(omegas[0] / omega)) * width / k
            bases.append(shortest(math.exp(max(-600.0, min(logarithm, 600.0))), 2 * errors[k] * width / k))
    tried = [(base, _divisors(omegas, errors, base, width)) for base in bases]
    base, divisors = min(tried, key=lambda fit: len(set(fit[1])))
    runs = [(_written(divisor), len([*run])) for divisor, run in groupby(divisors)]
    text = ", ".join(f"{number} x{count}" if count > 1 else number for number, count in runs)
    return f"{_written(base)}^(-i/{width}) / ({text})"


def _written(number: float) -> str:
    return repr(number).removesuffix(".0")


def _divisors(omegas: list[float], errors: list[float], base: float, width: int) -> list[float]:
    """Return divisors of few digits, the same as the one before where it fits."""
    divisors = [1.0]
    for i, (omega, error) in enumerate(zip(omegas, errors, strict=True)):
        exact = base ** (-i / width) / omega if omega else math.inf
        same = abs(exact / divisors[-1] - 1) <= 2 * error
        divisors.append(divisors[-1] if same else shortest(exact, error))
    return divisors[1:]


def _rounding(probe: Probe, y: Floats, pairs: list[Pair], phasors: Complex) -> str:
    """Return the dtype of 16 bits that explains the tables; of heads of 16 bits, the results."""
    if probe.dtype not in ROUNDERS:
        numbers = phasors.view(float)
        return next((n for n, r in ROUNDERS.items() if numbers.size and (r(numbers) == numbers).all()), "")
    (a, b, c, _), rounded = np.array(pairs, int).reshape(-1, 4).T, ROUNDERS[probe.dtype]
    x, y = probe.x[-_RANDOM_HEADS:], y[-_RANDOM_HEADS:][..., c]
    p, q = x[..., a] * phasors.real, x[..., b] * phasors.imag
    shows = np.broadcast_to(abs(phasors.imag) > 0.1 * abs(phasors), y.shape)  # the rounding of a table
    forms = (p - q, rounded(p) - rounded(q), p - rounded(q), rounded(p) - q)
    enough = shows.sum() > 64  # where a coincidence is out of the question
    return probe.dtype if enough and any((rounded(z) == y)[shows].mean() > 0.99 for z in forms) else ""


def _hashes(numbers: Floats, positions: list[int]) -> str:
    """Return a hash of the rows of each band of positions."""
    rows = np.digitize(positions, BANDS)
    bands = (np.ascontiguousarray(numbers[rows == i], "<f8") for i in range(rows.max() + 1))
    return " ".join(short_hash(band.tobytes()) for band in bands)


def short_hash(content: bytes) -> str:
    """Return the first 64 bits of SHA-256."""
    return hashlib.sha256(content).hexdigest()[:16]
