"""Which features turn together: pairings, slices and mistakes, and what each lane shows of its turns."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from rope_array._diagnose._case import Case, Complex, Floats, Indices
from rope_array._spec.spec import Pairing

PAIRINGS: tuple[Pairing, Pairing] = ("interleaved", "half")


@dataclass(frozen=True)
class Mix:
    """Features of each lane: y[out] = x[first] cos φ + sign · x[second] sin φ, for two features of it."""

    pairing: str
    out_pairing: str
    start: int
    width: int
    first: Indices  # (2, lanes), as all that follow
    second: Indices
    sign: Floats
    out: Indices
    blocks: int = 1
    mistake: str = ""
    formula: str = ""

    @property
    def lanes(self) -> int:
        return self.width // 2

    def forward(self, x: Floats, cos: Floats, sin: Floats) -> Floats:
        """Rows x as this mix makes them; cos and sin are (N, lanes)."""
        y = x.copy()
        for f, s, sign, out in zip(self.first, self.second, self.sign, self.out, strict=True):
            y[:, out] = x[:, f] * cos + sign * x[:, s] * sin
        return y

    def fields(self, head_dim: int) -> dict[str, Any]:
        """Return the fields of a RoPE that say so."""
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
    """Return the features (2, lanes) of each pair."""
    block = width // blocks
    if pairing == "interleaved":
        return np.arange(start, start + width).reshape(-1, 2).T
    inside = np.arange(block).reshape(2, -1)
    return np.concatenate([start + n * block + inside for n in range(blocks)], 1)


def _rotation(pairing: str, out_pairing: str, start: int, width: int, blocks: int = 1) -> Mix:
    first = features_of_pairs(pairing, start, width, blocks)
    out = features_of_pairs(out_pairing, start, width, blocks)
    sign = np.array([[-1.0], [1.0]]) * np.ones(width // 2)
    return Mix(pairing, out_pairing, start, width, first, first[::-1], sign, out, blocks)


def _one_sign(pairing: str, start: int, width: int) -> Mix:
    mix = _rotation(pairing, pairing, start, width)
    return replace(
        mix,
        sign=np.ones_like(mix.sign),
        mistake="the sine has one sign in both members of a pair, so that this is no rotation",
        formula="y[a] = x[a] cos φ + x[b] sin φ, y[b] = x[b] cos φ + x[a] sin φ",
    )


def _crossed(pairing: str, start: int, width: int) -> Mix:
    """Features are paired one way, and the table of angles is laid out the other way (V-JEPA 2)."""
    other = PAIRINGS[pairing == "interleaved"]
    partner, sign = np.empty(start + width, np.intp), np.empty(start + width)
    a, b = features_of_pairs(pairing, start, width)
    partner[a], partner[b], sign[a], sign[b] = b, a, -1.0, 1.0
    first = features_of_pairs(other, start, width)
    return Mix(
        pairing, pairing, start, width, first, partner[first], sign[first], first,
        mistake=f"features pair {pairing}, and the table of angles is laid out for {other}, so that the two "
        "members of a pair turn by different angles and this is no rotation",
        formula=f"y = x * cos + rotate(x) * sin; rotate pairs {pairing}, cos and sin are {other}",
    )  # fmt: skip


def _slices(case: Case) -> list[tuple[int, int]]:
    """Slices that may be rotated, from the features that changed: (start, width)."""
    head_dim = case.x.shape[1]
    found = [(0, head_dim - head_dim % 2)]
    changed = np.flatnonzero(case.touched)
    if len(changed):
        low, high = int(changed[0]), int(changed[-1]) + 1
        gaps = np.flatnonzero(np.diff(changed) > 1)
        for start in (low, low - 1, low - low % 2):
            ends = [high, high + 1, head_dim]
            # Interleaved, the last lanes of a slice may turn too slowly to show: widths of models.
            ends += [end for n in (1, 2, 3) if (end := start + n * head_dim // 4) >= high]
            if len(gaps):  # lanes too slow to show: the second members begin behind the gap
                ends.append(start + 2 * (int(changed[gaps[0] + 1]) - start))
            found += [(start, end - start) for end in ends]
    good = [(s, w) for s, w in found if s >= 0 and w > 0 and w % 2 == 0 and s + w <= head_dim]
    return list(dict.fromkeys(good))


def mixes(case: Case, coordinates: int) -> Iterator[Mix]:
    """Yield the rotations that may have been made."""
    for start, width in _slices(case):
        for pairing in PAIRINGS:
            for out_pairing in PAIRINGS:
                if width > 2 or out_pairing == pairing:
                    yield _rotation(pairing, out_pairing, start, width)
        if coordinates > 1 and width % (2 * coordinates) == 0:
            yield _rotation("half", "half", start, width, coordinates)


def mistaken_mixes(case: Case) -> Iterator[Mix]:
    """Yield what is no rotation, and is computed by mistake for one."""
    for start, width in _slices(case):
        for pairing in PAIRINGS:
            yield _one_sign(pairing, start, width)
            if width > 4:
                yield _crossed(pairing, start, width)


class Sums:
    """Products of features, summed over both features of a lane: (N, lanes) each."""

    def __init__(self, case: Case, mix: Mix):
        x, r = case.x[:, mix.first], mix.sign * case.x[:, mix.second]
        y = case.y[:, mix.out]
        self.products = np.stack([(a * b).sum(1) for a, b in ((x, x), (r, r), (x, r), (x, y), (r, y))])
        xx, yy = self.products[0], (y * y).sum(1)
        good = xx > 0
        ratio = np.sqrt(yy[good] / xx[good])
        size = float(np.median(ratio)) if len(ratio) else 1.0
        one_size = len(ratio) > 0 and float(np.median(abs(ratio - size))) < 0.2 * size
        self.plausible = bool(mix.mistake) or one_size

    def at(self, inverse: Indices, count: int) -> tuple[Complex, Floats]:
        """Return cos + i sin for each of `count` positions and lane, and its weight: (count, lanes)."""
        order = np.argsort(inverse, kind="stable")
        starts = np.searchsorted(inverse[order], np.arange(count))
        xx, rr, xr, xy, ry = np.add.reduceat(self.products[:, order], starts, axis=1)
        det = xx * rr - xr * xr
        good = det > 1e-9 * xx * rr
        safe = np.where(good, det, 1.0)
        turned = ((rr * xy - xr * ry) + 1j * (xx * ry - xr * xy)) / safe
        whole = np.where(xx * rr > 0, xx * rr, 1.0)
        return np.where(good, turned, 0.0), np.where(good, (xx + rr) / 2 * det / whole, 0.0)
