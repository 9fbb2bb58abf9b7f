"""Hypotheses of the pairs that rotate: pairings, slices and mistakes; and the phases of each pair."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from rope_array._diagnose._case import Case, Complex, Floats, Indices
from rope_array._spec.spec import Pairing

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
    def num_pairs(self) -> int:
        return self.width // 2

    def forward(self, x: Floats, cos: Floats, sin: Floats) -> Floats:
        """Return the output of rows x under this hypothesis; cos and sin are (N, pairs)."""
        y = x.copy()
        for f, s, sign, out in zip(self.first, self.second, self.sign, self.out, strict=True):
            y[:, out] = x[:, f] * cos + sign * x[:, s] * sin
        return y

    def sizes(self, x: Floats) -> Floats:
        """Return the size of each feature's pair in rows x."""
        sizes = abs(x)
        norm = np.hypot(*(x[:, f] for f in features_of_pairs(self.pairing, self.start, self.width)))
        for feature in features_of_pairs(self.out_pairing, self.start, self.width):
            sizes[:, feature] = norm
        return sizes

    def fields(self, head_dim: int) -> dict[str, Any]:
        """Return the fields of a RoPE with these pairs."""
        found: dict[str, Any] = {}
        if self.start + self.width != head_dim:
            found["rotary_dim"] = self.width
        if self.start:
            found["rotary_start"] = self.start
        if self.pairing != "interleaved":
            found["pairing"] = self.pairing
        if self.out_pairing != self.pairing:
            found["out_pairing"] = self.out_pairing
        return found


def features_of_pairs(pairing: str, start: int, width: int, blocks: int = 1) -> Indices:
    """Return the features (2, pairs) of each pair."""
    block = width // blocks
    if pairing == "interleaved":
        return np.arange(start, start + width).reshape(-1, 2).T
    inside = np.arange(block).reshape(2, -1)
    return np.concatenate([start + n * block + inside for n in range(blocks)], 1)


def _rotation(pairing: str, out_pairing: str, start: int, width: int, blocks: int = 1) -> PairHypothesis:
    first = features_of_pairs(pairing, start, width, blocks)
    out = features_of_pairs(out_pairing, start, width, blocks)
    sign = np.array([[-1.0], [1.0]]) * np.ones(width // 2)
    return PairHypothesis(pairing, out_pairing, start, width, first, first[::-1], sign, out, blocks)


def _one_sign(pairing: str, start: int, width: int) -> PairHypothesis:
    hypothesis = _rotation(pairing, pairing, start, width)
    return replace(
        hypothesis,
        sign=np.ones_like(hypothesis.sign),
        mistake="the sine has the same sign in both members of a pair, which is no rotation",
        formula="y[a] = x[a] cos φ + x[b] sin φ, y[b] = x[b] cos φ + x[a] sin φ",
    )


def _crossed(pairing: str, start: int, width: int) -> PairHypothesis:
    """Return the mistake of V-JEPA 2: the table of angles has the order of the other pairing."""
    other = PAIRINGS[pairing == "interleaved"]
    partner, sign = np.empty(start + width, np.intp), np.empty(start + width)
    a, b = features_of_pairs(pairing, start, width)
    partner[a], partner[b], sign[a], sign[b] = b, a, -1.0, 1.0
    first = features_of_pairs(other, start, width)
    return PairHypothesis(
        pairing, pairing, start, width, first, partner[first], sign[first], first,
        mistake=f"features pair {pairing}, and the table of angles is in the order of {other}: the two "
        "members of a pair rotate by different angles, which is no rotation",
        formula=f"y = x * cos + rotate(x) * sin; rotate pairs {pairing}, cos and sin are {other}",
    )  # fmt: skip


def _slices(case: Case) -> list[tuple[int, int]]:
    """Return possible slices, (start, width), from the features that changed."""
    head_dim = case.x.shape[1]
    found = [(0, head_dim - head_dim % 2)]
    # Rounding to a narrower dtype changes features that do not rotate: look past it too.
    for mask in (case.touched, case.changed(2.0**-7)):
        changed = np.flatnonzero(mask)
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
            found += [(start, end - start) for end in ends]
    good = [(s, w) for s, w in found if s >= 0 and w > 0 and w % 2 == 0 and s + w <= head_dim]
    return list(dict.fromkeys(good))


def pair_hypotheses(case: Case, coordinates: int) -> Iterator[PairHypothesis]:
    """Yield possible rotations."""
    for start, width in _slices(case):
        for pairing in PAIRINGS:
            for out_pairing in PAIRINGS:
                if width > 2 or out_pairing == pairing:
                    yield _rotation(pairing, out_pairing, start, width)
        if coordinates > 1 and width % (2 * coordinates) == 0:
            yield _rotation("half", "half", start, width, coordinates)


def mistaken_hypotheses(case: Case) -> Iterator[PairHypothesis]:
    """Yield mistakes that are no rotation."""
    for start, width in _slices(case):
        for pairing in PAIRINGS:
            yield _one_sign(pairing, start, width)
            if width > 4:
                yield _crossed(pairing, start, width)


class PhaseEstimates:
    """Least-squares estimates of cos and sin, from the products of features summed over each pair."""

    def __init__(self, case: Case, hypothesis: PairHypothesis):
        x, r = case.x[:, hypothesis.first], hypothesis.sign * case.x[:, hypothesis.second]
        y = case.y[:, hypothesis.out]
        self.products = np.stack([(a * b).sum(1) for a, b in ((x, x), (r, r), (x, r), (x, y), (r, y))])
        xx, yy = self.products[0], (y * y).sum(1)
        good = xx > 0
        ratio = np.sqrt(yy[good] / xx[good])
        size = float(np.median(ratio)) if len(ratio) else 1.0
        one_size = len(ratio) > 0 and float(np.median(abs(ratio - size))) < 0.2 * size
        self.plausible = bool(hypothesis.mistake) or one_size

    def at(self, inverse: Indices, count: int) -> tuple[Complex, Floats]:
        """Return cos + i sin for each of `count` positions and each pair, and weights: (count, pairs)."""
        order = np.argsort(inverse, kind="stable")
        starts = np.searchsorted(inverse[order], np.arange(count))
        xx, rr, xr, xy, ry = np.add.reduceat(self.products[:, order], starts, axis=1)
        det = xx * rr - xr * xr
        good = det > 1e-9 * xx * rr
        safe = np.where(good, det, 1.0)
        phasors = ((rr * xy - xr * ry) + 1j * (xx * ry - xr * xy)) / safe
        whole = np.where(xx * rr > 0, xx * rr, 1.0)
        return np.where(good, phasors, 0.0), np.where(good, (xx + rr) / 2 * det / whole, 0.0)
