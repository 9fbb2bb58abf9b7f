"""Hypotheses of the pairs that rotate: pairings, slices and mistakes; their formulas, and their phases."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from rope_array._spec.spec import Pairing

from ._mistakes import ROUNDERS
from ._observation import Complex, Floats, Indices, Observation

PAIRINGS: tuple[Pairing, Pairing] = ("interleaved", "half")


@dataclass(frozen=True)
class PairHypothesis:
    """Features of each pair: y[out] = x[first] cos φ + sign · x[second] sin φ, for both features."""

    pairing: str
    out_pairing: str
    start: int
    width: int
    first: Indices  # (2, pairs), as second, sign and out
    second: Indices
    sign: Floats
    out: Indices
    blocks: int = 1
    mistake: str = ""
    formula: str = ""

    @property
    def exponents(self) -> Floats:
        """The exponents of one series of frequencies, base^(-exponent)."""
        return 2 * np.arange(self.width // 2) / self.width

    @property
    def fields(self) -> dict[str, Any]:
        """The fields of a RoPE with these pairs."""
        pairings = {"pairing": self.pairing, "out_pairing": self.out_pairing}
        return {"rotary_dim": self.width, "rotary_start": self.start, **pairings}

    def forward(
        self, x: Floats, at: Floats, omegas: Floats, amplitude: float, dtype_name: str, quantity: str
    ) -> Floats:
        """Return the output of rows x at positions, (N, 1 or pairs), with a quantity rounded to 16 bits."""

        def rounded(array: Floats, *quantities: str) -> Floats:
            return ROUNDERS[dtype_name](array) if quantity in quantities else array

        at, omegas = rounded(at, "angles", "positions"), rounded(omegas, "angles")
        angles = rounded(at * omegas, "angles")
        cos = rounded(amplitude * np.cos(angles), "cos and sin", "cos")
        sin = rounded(amplitude * np.sin(angles), "cos and sin", "sin")
        y = x.copy()
        for f, s, sign, out in zip(self.first, self.second, self.sign, self.out, strict=True):
            y[:, out] = x[:, f] * cos + sign * x[:, s] * sin
        return y


def features_of_pairs(pairing: str, start: int, width: int, blocks: int = 1) -> Indices:
    """Return the features (2, pairs) of each pair."""
    features = np.arange(start, start + width)
    if pairing == "interleaved":
        return features.reshape(-1, 2).T
    return np.concatenate([*features.reshape(blocks, 2, -1)], 1)


def rotated_pairs(pairing: str, out_pairing: str, start: int, width: int, blocks: int = 1) -> PairHypothesis:
    """Return the pairs of a rotation."""
    first = features_of_pairs(pairing, start, width, blocks)
    out = features_of_pairs(out_pairing, start, width, blocks)
    sign = np.array([[-1.0], [1.0]]) * np.ones(width // 2)
    return PairHypothesis(pairing, out_pairing, start, width, first, first[::-1], sign, out, blocks)


def _one_sign(rotation: PairHypothesis) -> PairHypothesis:
    return replace(
        rotation,
        sign=np.ones_like(rotation.sign),
        mistake="the sine has the same sign in both members of a pair, which is no rotation",
        formula="y[a] = x[a] cos φ + x[b] sin φ, y[b] = x[b] cos φ + x[a] sin φ",
    )


def _crossed(rotation: PairHypothesis) -> PairHypothesis:
    """Return the mistake of V-JEPA 2: the table of angles has the order of the other pairing."""
    pairing, start, width = rotation.pairing, rotation.start, rotation.width
    table_order = PAIRINGS[pairing == "interleaved"]
    partner, sign = np.empty(start + width, np.intp), np.empty(start + width)
    partner[rotation.first], sign[rotation.first] = rotation.second, rotation.sign
    columns = features_of_pairs(table_order, start, width)
    return replace(
        rotation, first=columns, second=partner[columns], sign=sign[columns], out=columns,
        mistake=f"features pair {pairing}, and the table of angles is in the order of {table_order}: the two "
        "members of a pair rotate by different angles, which is no rotation",
        formula=f"y = x * cos + rotate(x) * sin; rotate pairs {pairing}, cos and sin are {table_order}",
    )  # fmt: skip


def permuted(rotation: PairHypothesis) -> PairHypothesis:
    """Return the mistake of porters: `convert.weights` to the other pairing, then a rotation of this."""
    pairing, start, width = rotation.pairing, rotation.start, rotation.width
    other, order = PAIRINGS[pairing == "interleaved"], np.arange(start + width)
    order[features_of_pairs(other, start, width, rotation.blocks)] = features_of_pairs(
        pairing, start, width, rotation.blocks
    )
    return replace(
        rotation, first=order[rotation.first], second=order[rotation.second],
        mistake=f"features in {other} order are rotated in {pairing} pairs: convert.weights(w, "
        f"RoPE(..., pairing={other!r}), to={pairing!r}, num_heads=...) moves them",
        formula=f"y = R(P x); P moves features from {pairing} to {other} order, R rotates {pairing} pairs",
    )  # fmt: skip


def slices(observation: Observation) -> list[tuple[int, int]]:
    """Return possible slices, (start, width), from the features that changed."""
    head_dim = observation.x.shape[1]
    slices = [(0, head_dim - head_dim % 2)]
    # Rounding to a narrower dtype changes features that do not rotate: look past it too.
    for mask in (observation.changed(), observation.changed(2.0**-7)):
        changed = np.flatnonzero(mask.any(0))
        if not len(changed):
            continue
        low, high = int(changed[0]), int(changed[-1]) + 1
        gaps = np.flatnonzero(np.diff(changed) > 1)
        for start in (low, low - 1, low - low % 2):
            ends = [high, high + 1, head_dim]
            # The last interleaved pairs may rotate by less than the rounding: try usual widths.
            ends += [end for n in (1, 2, 3) if (end := start + n * head_dim // 4) >= high]
            if len(gaps):  # the gap ends at a second member: slow pairs change it first
                ends.append(start + 2 * (int(changed[gaps[0] + 1]) - start))
            slices += [(start, end - start) for end in ends]
    inside = [(s, w) for s, w in slices if s >= 0 and w > 0 and w % 2 == 0 and s + w <= head_dim]
    return list(dict.fromkeys(inside))


def pair_hypotheses(observation: Observation) -> Iterator[PairHypothesis]:
    """Yield possible rotations; pairs in blocks, one for each coordinate, need coordinates."""
    for start, width in slices(observation):
        for pairing, out_pairing in product(PAIRINGS, repeat=2):
            if width > 2 or out_pairing == pairing:
                yield rotated_pairs(pairing, out_pairing, start, width)
        blocks = observation.coordinates
        if blocks > 1 and width % (2 * blocks) == 0:
            yield rotated_pairs("half", "half", start, width, blocks)


def mistaken_hypotheses(observation: Observation) -> Iterator[PairHypothesis]:
    """Yield mistakes that are no rotation."""
    for start, width in slices(observation):
        for pairing in PAIRINGS:
            rotation = rotated_pairs(pairing, pairing, start, width)
            yield _one_sign(rotation)
            if width > 4:
                yield _crossed(rotation)
                yield permuted(rotation)


class Amplitude(NamedTuple):
    """The factor on cos and sin, and its relative error."""

    value: float
    error: float = 0.0


class Series(NamedTuple):
    """The phases of all pairs, and their amplitude."""

    at: Floats  # (K,), ascending; or (K, coordinates)
    phasors: Complex  # (K, pairs): cos + i sin, without the amplitude
    weight: Floats
    amplitude: Amplitude


class PhaseEstimates:
    """Least-squares estimates of cos and sin, from the products of features summed over each pair."""

    def __init__(self, observation: Observation, pairs: PairHypothesis):
        self.pairs = pairs
        x, y = observation.x[:, pairs.first], observation.y[:, pairs.out]
        r = pairs.sign * observation.x[:, pairs.second]
        self._products = np.stack([(a * b).sum(1) for a, b in ((x, x), (r, r), (x, r), (x, y), (r, y))])
        xx, yy = self._products[0], (y * y).sum(1)
        ratios = np.sqrt(yy[xx > 0] / xx[xx > 0])
        size = np.median(ratios) if len(ratios) else 0.0
        # A rotation has about one amplitude in all rows and pairs.
        self.plausible = len(ratios) > 0 and bool(np.median(abs(ratios - size)) < 0.2 * size)

    def series(self, positions: Floats) -> Series:
        """Return the phases of the rows with one position, (N,) or (N, coordinates), and their weights."""
        axis = 0 if positions.ndim > 1 else None
        at, inverse = np.unique(positions.astype(float), axis=axis, return_inverse=True)
        order = np.argsort(inverse.ravel(), kind="stable")
        starts = np.searchsorted(inverse.ravel()[order], np.arange(len(at)))
        xx, rr, xr, xy, ry = np.add.reduceat(self._products[:, order], starts, axis=1)
        det = xx * rr - xr * xr
        good = det > 1e-9 * xx * rr
        phasors = ((rr * xy - xr * ry) + 1j * (xx * ry - xr * xy)) / np.where(good, det, 1.0)
        weight = (xx + rr) / 2 * det / np.where(xx * rr > 0, xx * rr, 1.0)
        phasors, weight = phasors * good, weight * good
        amplitude = _amplitude_of(abs(phasors[weight > 0]))
        return Series(at, phasors / amplitude.value, weight, amplitude)


def _amplitude_of(sizes: Floats) -> Amplitude:
    """Return the factor with the fewest digits within the noise of the phasors' sizes."""
    middle = float(np.median(sizes)) if len(sizes) else 0.0
    if not middle:
        return Amplitude(1.0)
    near = sizes[abs(sizes - middle) <= 0.2 * middle]  # not empty, or the median is between two groups
    size = float(near.mean()) if len(near) else middle
    error = float(4 * near.std() / size / math.sqrt(len(near))) if len(near) else 0.1
    return Amplitude(shortest(size, error), error)


def shortest(size: float, close: float) -> float:
    """Return the number with the fewest digits that is close to `size`."""
    tried = (float(f"{size:.{n}g}") for n in range(1, 17))
    return next((v for v in tried if abs(v - size) <= (close + 2**-52) * abs(size)), size)
