"""What RoPE made an output: find the pairing, direction, frequencies, slice and positions from two arrays.

A host tool: arrays of every library are brought to NumPy's float64 first. The way of a call:

1. `_mixes`: which features might have turned together, and how; the features that did not change say where.
2. `_Sums`: of each mix and lane, the cos and sin that make `after` of `before` (least squares), so that every
   lane gives one complex number for each position.
3. `_fit`: the frequencies behind these numbers, first by the bases that models use, then by estimate.
4. `_judge`: each candidate is rebuilt by `RoPE.apply` in float64 and held against `after`.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from . import _host
from ._apply import RoPE
from ._axes import Axes
from ._errors import ArrayTypeError, PositionError, ShapeError, SpecError, describe
from ._namespace import POSITION_DTYPES, X_DTYPES, dtype_name, library
from ._plan import check_line_up
from ._scaling import Linear, Llama3, Periods, Proportional, Scaling, YaRN
from ._spec import Pairing
from ._values import positive, sequence

__all__ = ["Diagnosis", "Explanation", "diagnose"]

Floats: TypeAlias = NDArray[np.float64]
Complex: TypeAlias = NDArray[np.complex128]
Indices: TypeAlias = NDArray[np.intp]

PAIRINGS: tuple[Pairing, Pairing] = ("interleaved", "half")
# Bases of published models, the commonest first.
BASES = (1e4, 5e5, 1e6, 1e5, 1.5e5, 1.6e5, 100.0, 1e3, 2.5e4, 5e4, 2e6, 5e6, 8e6, 1e7, 1e8, 1e9, 1e11)
CONTEXTS = (2048, 4096, 8192, 16384, 32768, 65536, 131072)
_EPS = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}
_EPS32 = 2.0**-23
_NO_RULE = "the frequencies follow no rule that was tried: `rope.frequencies` has the estimates"
_SHOWN = 8
_COORDINATES = 8  # more than any model has
_ROUNDINGS = 4  # that a model may have made in the narrower dtype: of cos, of two products, of their sum


@dataclass(frozen=True)
class Explanation:
    """One way to make `after` of `before`.

    Attributes
    ----------
    rope : RoPE or None
        The rotary embedding; None where nothing was rotated.
    code : str
        The call that reproduces the output, where x is `before`; for a mistake, what it computes.
    residual : float
        The largest difference from `after`, relative to the size of its pair.
    mistake : str
        What is wrong with it; empty where it is a plain rotation by the positions given.
    inverse : bool
        Whether it turns by -φ.
    seq_axis : int
        The axis of x along which the positions run.
    notes : tuple of str
        What else is to be known.

    Examples
    --------
    >>> import numpy as np
    >>> import rope_array as ra
    >>> from rope_array._diagnose import diagnose
    >>> x = np.random.default_rng(0).standard_normal((6, 8))
    >>> [found] = diagnose(x, ra.apply(x, range(6), pairing="half"), range(6)).explanations
    >>> found.code
    "ra.apply(x, pos, pairing='half')"
    """

    rope: RoPE | None
    code: str
    residual: float
    mistake: str = ""
    inverse: bool = False
    seq_axis: int = -2
    notes: tuple[str, ...] = ()
    _rms: float = 0.0
    _estimate: bool = False
    _given: bool = False
    _axes: str = ""

    @property
    def direction(self) -> int:
        """The sign of the angles: 1 or -1."""
        return -1 if self.inverse else 1


@dataclass(frozen=True)
class Diagnosis:
    """What explains an output; printed, a report.

    Attributes
    ----------
    explanations : tuple of Explanation
        Those that fit as well as the rounding allows, plain rotations first, then by their residual.
    nearest : tuple of Explanation
        What was tried and does not fit, the best first.
    reason : str
        Why there is not exactly one explanation, and what data would tell; empty where there is.
    notes : tuple of str
        What the data did not show.

    Examples
    --------
    >>> import numpy as np
    >>> import rope_array as ra
    >>> from rope_array._diagnose import diagnose
    >>> x = np.random.default_rng(0).standard_normal((6, 2))
    >>> diagnose(x, ra.apply(x, range(6)), range(6)).ambiguous
    True
    """

    explanations: tuple[Explanation, ...]
    nearest: tuple[Explanation, ...] = ()
    reason: str = ""
    notes: tuple[str, ...] = ()

    @property
    def ambiguous(self) -> bool:
        """Whether several explanations fit."""
        return len(self.explanations) > 1

    @property
    def rope(self) -> RoPE | None:
        """The rope where exactly one explanation fits and it is no mistake; None otherwise, see `reason`."""
        if len(self.explanations) == 1 and not self.explanations[0].mistake:
            return self.explanations[0].rope
        return None

    def __str__(self) -> str:
        count = len(self.explanations)
        head = {0: "nothing that was tried explains the output", 1: "one explanation"}
        lines = [f"{head.get(count, f'{count} explanations, which these data do not tell apart')}:"]
        if not count:
            lines = [f"{head[0]}."]
        for found in self.explanations[:_SHOWN]:
            lines += _told(found)
        if count > _SHOWN:
            lines.append(f"  and {count - _SHOWN} more")
        lines += [f"why: {self.reason}"] if self.reason else []
        lines += [f"note: {note}" for note in self.notes]
        if self.nearest:
            lines.append("ruled out, with the largest error relative to a pair:")
            lines += [f"  {near.residual:8.1e}  {_labelled(near)}" for near in self.nearest]
        return "\n".join(lines)


def diagnose(
    before: Any,
    after: Any,
    pos: Any,
    *,
    candidates: Sequence[Any] | None = None,
    seq_axis: int = -2,
    tolerance: float | None = None,
) -> Diagnosis:
    """Find which rotary embedding makes `after` of `before`: that of a kernel, or of a checkpoint's code.

    Parameters
    ----------
    before : array of shape (..., S, head_dim)
        A query or key before its rotation, of any library. Brought to the host.
    after : array of the same shape
        The same after it.
    pos : int, float, range, sequence of numbers, or array
        The positions that it should have been rotated by, as of `rope_array.apply`. With one more, last, axis
        they may be coordinates.
    candidates : sequence of RoPE or of scaling rules, optional
        Ropes, or rules such as ``Llama3(factor=8.0)``, to try beside those that are tried anyway. A rule is
        tried with the bases that models use.
    seq_axis : int
        The axis of x along which positions should run.
    tolerance : float, optional
        The largest error, relative to the size of a pair, that counts as explained. By default four units of
        the narrower dtype of the two, and what angles in float32 cost at these positions.

    Returns
    -------
    Diagnosis
        With `explanations`, `rope` (where exactly one fits), `ambiguous` and `reason`; printed, a report.

    Raises
    ------
    ArrayTypeError
        An array or positions of a kind or dtype that is not served, or that hold no values yet.
    ShapeError
        The shapes differ, or positions do not line up with them.
    SpecError
        A candidate that is neither a RoPE nor a rule, or one that waits for a length.

    Notes
    -----
    Frequencies show modulo 2π over the step of the positions, and lanes that turn by less than the rounding
    do not show at all: give positions with a step of 1 that reach far, and random features.

    Examples
    --------
    >>> import numpy as np
    >>> import rope_array as ra
    >>> from rope_array._diagnose import diagnose
    >>> x = np.random.default_rng(0).standard_normal((2, 64, 32)).astype("float32")
    >>> y = ra.apply(x, range(64), base=500_000.0, pairing="half", rotary_dim=16)
    >>> found = diagnose(x, y, range(64))
    >>> found.rope.base, found.rope.pairing, found.rope.rotary_dim
    (500000.0, 'half', 16)
    """
    case = _case(before, after, pos, seq_axis, tolerance)
    return _Search(case, _checked(candidates)).run()


# ---- what was given ----


class _Positions(NamedTuple):
    """Positions to try: their value for each row, and how to write them."""

    rows: Floats  # (N,) or (N, coordinates)
    pos: Any  # as apply takes them
    code: str
    seq_axis: int
    mistake: str = ""
    free: bool = False  # whether a constant may be added

    @property
    def coordinates(self) -> int:
        return self.rows.shape[1] if self.rows.ndim == 2 else 0


@dataclass(frozen=True)
class _Case:
    """The arrays on the host, and their rows."""

    before: Floats
    after: Floats
    pos: NDArray[Any]
    on_host: bool  # whether pos is a Python value, which has no arithmetic
    seq_axis: int
    eps: float
    tolerance: float | None

    @property
    def tol(self) -> float:
        return self.tolerance or _ROUNDINGS * self.eps

    @property
    def angle_tol(self) -> float:
        """What a rounded angle may be off, per radian: of float32, unless all was float64 or it is said."""
        double = self.tolerance is not None or self.eps < _EPS32
        return 8 * _EPS["float64"] if double else 2 * _EPS32

    @cached_property
    def finite(self) -> NDArray[np.bool_]:
        width = self.before.shape[-1]
        both = np.isfinite(self.before) & np.isfinite(self.after)
        return np.asarray(both.reshape(-1, width).all(-1))

    @cached_property
    def x(self) -> Floats:
        return np.asarray(self.before.reshape(-1, self.before.shape[-1])[self.finite])

    @cached_property
    def y(self) -> Floats:
        return np.asarray(self.after.reshape(-1, self.after.shape[-1])[self.finite])

    @cached_property
    def touched(self) -> NDArray[np.bool_]:
        """Which features changed in any row."""
        return np.asarray((abs(self.y - self.x) > self.tol / 4 * abs(self.x) + 1e-300).any(0))

    def spread(self, pos: NDArray[Any], seq_axis: int, coordinates: bool = False) -> Floats | None:
        """Return the position of each row, or None where they do not line up."""
        shape = pos.shape[:-1] if coordinates else pos.shape
        try:
            check_line_up(self.before.shape, shape, seq_axis)
        except ShapeError:
            return None
        axis = seq_axis % self.before.ndim
        sizes = (*np.delete(self.before.shape[:-1], axis), self.before.shape[axis])
        rest = pos.shape[len(shape) :]
        if shape:
            pos = pos.reshape(*shape[:-1], *(1,) * (len(sizes) - len(shape)), shape[-1], *rest)
        full = np.moveaxis(np.broadcast_to(pos, (*sizes, *rest)), len(sizes) - 1, axis)
        return np.asarray(full.reshape(-1, *rest)[self.finite], np.float64)


def _case(before: Any, after: Any, pos: Any, seq_axis: int, tolerance: float | None) -> _Case:
    x, y = _numpy(before, "before"), _numpy(after, "after")
    if x.shape != y.shape:
        raise ShapeError(
            f"before is {describe(before)} and after {describe(after)}; give one array before and after its "
            "rotation, of one shape."
        )
    if x.ndim < 2:
        raise ShapeError(f"before is {describe(before)}; give (..., S, head_dim), of two axes at least.")
    if isinstance(seq_axis, bool) or not isinstance(seq_axis, int):
        raise ShapeError(f"seq_axis is {describe(seq_axis)}; give the number of an axis of before.")
    places, on_host = _positions(pos)
    if tolerance is not None:
        tolerance = positive("tolerance", tolerance)
    eps = max(_EPS[dtype_name(before)], _EPS[dtype_name(after)])
    case = _Case(x, y, places, on_host, seq_axis, eps, tolerance)
    if not case.x.size:
        raise ShapeError(
            f"before is {describe(before)} with no row that is finite before and after; give such."
        )
    coordinates = places.ndim > 1 and case.spread(places, seq_axis, True) is not None
    if not coordinates or places.shape[-1] > _COORDINATES:
        check_line_up(x.shape, places.shape, seq_axis)
    return case


def _numpy(array: Any, name: str) -> Floats:
    """Bring an array of any library to the host, in float64."""
    if not hasattr(array, "dtype") or not hasattr(array, "shape"):
        raise ArrayTypeError(f"{name} is {describe(array)}; give an array.")
    library(array).check_sound(array)
    if dtype_name(array) not in X_DTYPES:
        raise ArrayTypeError(
            f"{name} is {describe(array)}; a rotation has real floating point: {', '.join(X_DTYPES)}."
        )
    return np.array(_on_host(array, name), np.float64)


def _on_host(array: Any, name: str) -> Any:
    """Return what NumPy makes an array of."""
    try:
        if hasattr(array, "detach"):  # PyTorch; NumPy knows no bfloat16 of its
            array = array.detach().cpu()
            return (array.double() if array.is_floating_point() else array).numpy()
        if type(array).__module__.partition(".")[0] == "cupy":
            return array.get()
        return np.asarray(array)
    except (TypeError, ValueError, RuntimeError, NotImplementedError) as error:
        raise ArrayTypeError(
            f"{name} is {describe(array)}, whose values cannot be read here ({type(error).__name__}); "
            "diagnose works on the host: call it outside of jit and compile, on arrays that hold values."
        ) from error


def _positions(pos: Any) -> tuple[NDArray[Any], bool]:
    """Return positions as NumPy's, and whether they are Python values."""
    if _host.is_host(pos):
        _host.shape_of(pos)  # refuses ragged ones and such
        made = np.asarray([*pos] if isinstance(pos, range) else pos)
        if made.dtype.kind not in "if":
            raise ArrayTypeError(f"pos is {describe(pos)}; give integers of at most 64 bits, or floats.")
        return _in_range(made), True
    if not hasattr(pos, "dtype") or not hasattr(pos, "shape"):
        raise ArrayTypeError(f"pos is {describe(pos)}; give a number, a range, a sequence, or an array.")
    if dtype_name(pos) not in POSITION_DTYPES:
        raise ArrayTypeError(f"pos is {describe(pos)}; give integers, or float32 or float64.")
    return _in_range(np.asarray(_on_host(pos, "pos"))), False


def _in_range(pos: NDArray[Any]) -> NDArray[Any]:
    """Refuse float positions that `apply` would refuse or make nothing of."""
    if pos.dtype.kind == "f" and not (abs(pos) < 2.0**31).all():
        raise PositionError(
            "pos holds a float that is not finite, or not below 2**31 in size; give finite ones."
        )
    return pos


def _checked(candidates: Any) -> tuple[Any, ...]:
    if candidates is None:
        return ()
    if isinstance(candidates, (RoPE, Scaling)):
        candidates = (candidates,)
    for value in sequence("candidates", candidates, "a sequence of RoPEs or rules"):
        if not isinstance(value, (RoPE, Scaling)):
            raise SpecError(f"a candidate is {describe(value)}; give RoPEs, or rules such as Linear(4.0).")
        rule = value.scaling if isinstance(value, RoPE) else value
        if rule is not None and not rule.resolved:
            raise SpecError(f"a candidate has {rule!r}, which waits for a length; say it: at_length(n).")
    return tuple(candidates)


# ---- which features turn together ----


@dataclass(frozen=True)
class _Mix:
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


def _pairs(pairing: str, start: int, width: int, blocks: int = 1) -> Indices:
    """Return the features (2, lanes) of each pair."""
    block = width // blocks
    if pairing == "interleaved":
        return np.arange(start, start + width).reshape(-1, 2).T
    inside = np.arange(block).reshape(2, -1)
    return np.concatenate([start + n * block + inside for n in range(blocks)], 1)


def _rotation(pairing: str, out_pairing: str, start: int, width: int, blocks: int = 1) -> _Mix:
    first = _pairs(pairing, start, width, blocks)
    out = _pairs(out_pairing, start, width, blocks)
    sign = np.array([[-1.0], [1.0]]) * np.ones(width // 2)
    return _Mix(pairing, out_pairing, start, width, first, first[::-1], sign, out, blocks)


def _one_sign(pairing: str, start: int, width: int) -> _Mix:
    mix = _rotation(pairing, pairing, start, width)
    return replace(
        mix,
        sign=np.ones_like(mix.sign),
        mistake="the sine has one sign in both members of a pair, so that this is no rotation",
        formula="y[a] = x[a] cos φ + x[b] sin φ, y[b] = x[b] cos φ + x[a] sin φ",
    )


def _crossed(pairing: str, start: int, width: int) -> _Mix:
    """Features are paired one way, and the table of angles is laid out the other way (V-JEPA 2)."""
    other = PAIRINGS[pairing == "interleaved"]
    partner, sign = np.empty(start + width, np.intp), np.empty(start + width)
    a, b = _pairs(pairing, start, width)
    partner[a], partner[b], sign[a], sign[b] = b, a, -1.0, 1.0
    first = _pairs(other, start, width)
    return _Mix(
        pairing, pairing, start, width, first, partner[first], sign[first], first,
        mistake=f"features pair {pairing}, and the table of angles is laid out for {other}, so that the two "
        "members of a pair turn by different angles and this is no rotation",
        formula=f"y = x * cos + rotate(x) * sin; rotate pairs {pairing}, cos and sin are {other}",
    )  # fmt: skip


def _slices(case: _Case) -> list[tuple[int, int]]:
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


def _mixes(case: _Case, coordinates: int) -> Iterator[_Mix]:
    for start, width in _slices(case):
        for pairing in PAIRINGS:
            for out_pairing in PAIRINGS:
                if width > 2 or out_pairing == pairing:
                    yield _rotation(pairing, out_pairing, start, width)
        if coordinates > 1 and width % (2 * coordinates) == 0:
            yield _rotation("half", "half", start, width, coordinates)


def _mistaken(case: _Case) -> Iterator[_Mix]:
    for start, width in _slices(case):
        for pairing in PAIRINGS:
            yield _one_sign(pairing, start, width)
            if width > 4:
                yield _crossed(pairing, start, width)


class _Sums:
    """Products of features, summed over both features of a lane: (N, lanes) each."""

    def __init__(self, case: _Case, mix: _Mix):
        x, r = case.x[:, mix.first], mix.sign * case.x[:, mix.second]
        y = case.y[:, mix.out]
        self.products = np.stack([(a * b).sum(1) for a, b in ((x, x), (r, r), (x, r), (x, y), (r, y))])
        xx, yy = self.products[0], (y * y).sum(1)
        good = xx > 0
        ratio = np.sqrt(yy[good] / xx[good])
        size = float(np.median(ratio)) if len(ratio) else 1.0
        self.plausible = bool(mix.mistake) or float(np.median(abs(ratio - size))) < 0.2 * size

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


# ---- 16 bits ----


def _float16(x: Floats) -> Floats:
    with np.errstate(over="ignore"):
        return np.clip(x, -65504.0, 65504.0).astype(np.float16).astype(np.float64)


def _bfloat16(x: Floats) -> Floats:
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) & np.uint32(0xFFFF0000)
    return rounded.view(np.float32).astype(np.float64)


_CUTS = (("bfloat16", _bfloat16), ("float16", _float16))


# ---- frequencies ----


class _Series(NamedTuple):
    """What a lane's turns are made of: one complex number for each position, of size 1."""

    at: Floats  # (K,), ascending
    turns: Complex  # (K, lanes)
    weight: Floats


class _Found(NamedTuple):
    """Fields of a RoPE that may explain a series."""

    fields: dict[str, Any]
    omegas: Floats
    sign: int = 1
    offset: float = 0.0
    mistake: str = ""
    notes: tuple[str, ...] = ()
    estimate: bool = False  # frequencies are numbers, of which no rule is known


def _misfit(series: _Series, omegas: Floats, case: _Case, offset: float = 0.0) -> float:
    """How far lanes are from turning by these frequencies, in units of the tolerance (1 is its edge)."""
    chosen = np.unique(np.linspace(0, len(series.at) - 1, 96).round().astype(int))
    at, turns, weight = series.at[chosen] + offset, series.turns[chosen], series.weight[chosen]
    total = weight.sum()
    if not total:
        return 0.0
    angles = np.multiply.outer(at, omegas)
    off = abs(turns - np.exp(1j * angles)) / (case.tol + case.angle_tol * abs(angles))
    return float(np.sqrt((weight * off**2).sum() / total))


def _amplitude(turns: Complex, weight: Floats, tol: float) -> float:
    """Return the factor on cos and sin, in as few digits as rounding leaves."""
    sizes = abs(turns[weight > 0])
    if not len(sizes):
        return 1.0
    size = float(np.median(sizes))
    return _short(size, tol / 8) if size > 0 else 1.0


def _short(size: float, close: float) -> float:
    tried = (float(f"{size:.{n}g}") for n in range(1, 17))
    return next((v for v in tried if abs(v - size) <= (close + 1e-15) * size), size)


def _anchored(series: _Series) -> _Series:
    """Add the position 0, where nothing turns."""
    if (series.at == 0).any():
        return series
    place = int(np.searchsorted(series.at, 0.0))
    ones = np.ones(series.turns.shape[1])
    return _Series(
        np.insert(series.at, place, 0.0),
        np.insert(series.turns, place, ones, axis=0),
        np.insert(series.weight, place, ones * series.weight.max(initial=1.0), axis=0),
    )


def _estimate(series: _Series) -> tuple[Floats, float]:
    """Estimate each lane's frequency from the turns between positions, and the step they show it modulo.

    Short differences give it roughly and without doubt, long ones sharpen it.
    """
    at, turns, weight = series
    count = len(at)
    lags = [2**n for n in range(count.bit_length()) if 2**n < count]
    ends = np.array([(j, j + lag) for lag in lags for j in range(count - lag)]).reshape(-1, 2)
    if not len(ends):
        return np.zeros(turns.shape[1]), 0.0
    gaps = at[ends[:, 1]] - at[ends[:, 0]]
    order = np.argsort(gaps, kind="stable")
    ends, gaps = ends[order], gaps[order]
    least, step = float(gaps[0]), _step(at, float(gaps[0]))
    between = turns[ends[:, 1]] * turns[ends[:, 0]].conj()
    weights = np.minimum(weight[ends[:, 1]], weight[ends[:, 0]])
    near = gaps <= least * (1 + 1e-9)
    rough = np.angle((weights[near] * between[near]).sum(0)) / least
    best, score = rough, np.full(len(rough), -1.0)
    ways = min(64, max(1, round(least / step)))
    for way in range(ways):
        start = rough + 2 * np.pi / least * (way - ways // 2)
        tried = _sharpened(start, gaps, between, weights)
        coherence = abs((weight * turns * np.exp(-1j * np.multiply.outer(at, tried))).sum(0))
        better = coherence > score * (1 + 1e-9)
        best, score = np.where(better, tried, best), np.where(better, coherence, score)
    return best, step


def _sharpened(omegas: Floats, gaps: Floats, between: Complex, weights: Floats) -> Floats:
    reach = float(gaps[0])
    while True:
        reach = max(4 * reach, float(gaps[gaps > reach][0])) if (gaps > reach).any() else reach
        near = gaps <= reach
        g = gaps[near, None]
        left = np.angle(between[near] * np.exp(-1j * g * omegas))
        w = weights[near] * g
        omegas = omegas + (w * left).sum(0) / np.maximum((w * g).sum(0), 1e-300)
        if near.all():
            return omegas


def _step(at: Floats, least: float) -> float:
    """Return the greatest common step of positions."""
    if (at == at.round()).all() and abs(at).max() < 2**53:
        return float(math.gcd(*(int(d) for d in np.diff(at))) or 1)
    return least


def _line(omegas: Floats, exponents: Floats, free: bool) -> tuple[float, float]:
    """Fit ω = s · base^(-exponent), s being 1 unless it is free; fast lanes are known best."""
    logs, weight = np.log(omegas), omegas**2
    if free and len(omegas) > 1:
        slope, log_s = np.polyfit(exponents, logs, 1, w=np.sqrt(weight))
        return float(np.exp(np.clip(-slope, -700, 700))), float(np.exp(log_s))
    scale = (weight * exponents**2).sum()
    slope = (weight * exponents * logs).sum() / scale if scale > 0 else 0.0
    return float(np.exp(np.clip(-slope, -700, 700))), 1.0


def _simplest(value: float, fits: Any) -> float | None:
    """Return the number of fewest digits near a value that fits."""
    for digits in range(1, 17):
        near = float(f"{value:.{digits}g}")
        if abs(near - value) < 0.1 * value and fits(near):
            return near
    return None


def _unfolded(omegas: Floats, step: float) -> Floats:
    """Resolve frequencies that are known modulo 2π over the step: slow lanes first, each from the last."""
    made, turn = omegas.copy(), 2 * np.pi / step
    for i in range(len(made) - 3, -1, -1):
        if made[i + 1] > 0 and made[i + 2] > 0:
            wanted = made[i + 1] ** 2 / made[i + 2]
            made[i] += turn * np.round((wanted - made[i]) / turn)
    return made


class _Fit:
    """The frequencies of one series over a width: bases of models, then what the estimate says."""

    def __init__(
        self, series: _Series, width: int, case: _Case, bases: Iterable[float], rules: Any, tails: bool
    ):
        self.series, self.width, self.case = series, width, case
        self.bases, self.rules = tuple(bases), tuple(rules)
        self.exponents = 2 * np.arange(width // 2) / width
        self.tails = tails

    def found(self, free: bool) -> list[_Found]:
        """Return what fits; `free` where the positions may be off by a constant."""
        if free:
            return [*self._shifted()]
        known = [*self._known()]
        if not known:
            return [*self._ruled(), *self._rounded()] or [*self._estimated()][:3]
        near = min(_misfit(self.series, f.sign * f.omegas, self.case) for f in known)
        # A base of nobody's may be near one that fits loosely.
        closer = self._estimated() if near > 0.05 else ()
        better = [f for f in closer if _misfit(self.series, f.sign * f.omegas, self.case) < 0.8 * near]
        return known + [f for f in better if not f.estimate]

    def fits(self, omegas: Floats, offset: float = 0.0) -> bool:
        return _misfit(self.series, omegas, self.case, offset) <= 1.0

    def _known(self) -> Iterator[_Found]:
        for base in self.bases if self.width > 2 else self.bases[:1]:  # one pair turns by 1 in any base
            omegas = base**-self.exponents
            for sign in (1, -1):
                if self.fits(sign * omegas):
                    yield _Found({"base": base}, omegas, sign)

    def _ruled(self) -> Iterator[_Found]:
        for rule in self.rules:
            for base in self.bases:
                yield from self._by_rule(base, rule)

    def _rounded(self) -> Iterator[_Found]:
        """Frequencies of 16 bits, as of a module cast with its buffers."""
        for base in self.bases:
            for name, cut in _CUTS:
                omegas = cut(base**-self.exponents)
                for sign in (1, -1):
                    if self.fits(sign * omegas):
                        given = {"inv_freq": tuple(map(float, omegas))}
                        text = f"frequencies are {name}: those of base {base:g}, rounded"
                        yield _Found(given, omegas, sign, mistake=text)

    def _by_rule(self, base: float, rule: Scaling) -> Iterator[_Found]:
        try:
            omegas = np.array(RoPE(self.width, base=base, scaling=rule).frequencies)
        except SpecError:
            return
        for sign in (1, -1):
            if self.fits(sign * omegas):
                yield _Found({"base": base, "scaling": rule}, omegas, sign)

    def _shifted(self) -> Iterator[_Found]:
        """Positions with a constant added: the phases at 0 are the frequencies times it."""
        for base in self._bases_seen():
            omegas = base**-self.exponents
            for sign in (1, -1) if len(self.series.at) > 1 else (1,):
                offset = self._offset(sign * omegas)
                if offset and self.fits(sign * omegas, offset):
                    yield _Found({"base": base}, omegas, sign, offset)

    def _bases_seen(self) -> Iterator[float]:
        yield from self.bases
        omegas, _ = _estimate(self.series)
        seen = abs(omegas) > 1e-6
        if seen.sum() > 1 and np.ptp(self.series.at) > 0:
            yield float(f"{_line(abs(omegas[seen]), self.exponents[seen], False)[0]:.5g}")

    def _offset(self, omegas: Floats) -> float:
        at, turns, weight = self.series
        phases = (weight * turns * np.exp(-1j * np.multiply.outer(at, omegas))).sum(0)
        if abs(phases).sum() < 0.9 * weight.sum():
            return 0.0  # turns are not by these frequencies, wherever they begin
        tried = np.arange(-1024, 2049.0)
        match = (np.exp(-1j * np.multiply.outer(tried, omegas)) * phases).sum(1).real
        return float(tried[int(np.argmax(match))])

    def _estimated(self) -> Iterator[_Found]:
        omegas, step = _estimate(_anchored(self.series))
        if not step or not self.fits(omegas):
            return
        span = max(abs(self.series.at).max(), np.ptp(self.series.at))
        seen = abs(omegas) * span > self.case.tol
        for sign in self._signs(omegas, seen, step):
            turned = _unfolded(sign * omegas, step) if step > 2 else sign * omegas
            yield from self._named(turned, seen & (turned > 0), sign)
        notes: tuple[str, ...] = (_NO_RULE,)
        if step > 1:
            notes += (f"positions have a step of {step:g}, so that frequencies show modulo 2π/{step:g}",)
        yield _Found({"inv_freq": tuple(map(float, omegas))}, omegas, notes=notes, estimate=True)

    def _signs(self, omegas: Floats, seen: Any, step: float) -> list[int]:
        if step > 2:  # a fast lane may seem to turn backwards
            return [1, -1]
        return [1 if omegas[seen].sum() >= 0 else -1]

    def _named(self, omegas: Floats, seen: Any, sign: int) -> Iterator[_Found]:
        """Name the rule that frequencies follow: the usual one, a zero tail, a factor, a known rule."""
        if not seen.any():
            return
        last = int(np.flatnonzero(seen)[-1]) + 1
        for zero in (False, True):
            for free in (False, True):
                # A zero tail of interleaved lanes is a narrower slice, which is tried too.
                if zero and (last == len(omegas) or not self.tails):
                    continue
                made = self._geometric(omegas, seen, sign, free, last if zero else None)
                if made:
                    yield made
                    return
        yield from self._stretched(omegas, seen, sign)

    def _geometric(self, omegas: Floats, seen: Any, sign: int, free: bool, last: int | None) -> Any:
        if seen.sum() < 1 + free:
            return None
        base, factor = _line(omegas[seen], self.exponents[seen], free)

        def series(base: float, factor: float) -> Floats:
            made = factor * base**-self.exponents
            return made if last is None else np.where(np.arange(len(made)) < last, made, 0.0)

        def good(base: float, factor: float) -> bool:
            limit = 0.01 + 1.2 * _misfit(self.series, sign * series(*raw), self.case)
            return bool(_misfit(self.series, sign * series(base, factor), self.case) <= min(limit, 1.0))

        raw = base, factor
        if not (1e-300 < base < 1e300) or _misfit(self.series, sign * series(*raw), self.case) > 1.0:
            return None
        if free:
            factor = 1 / (_simplest(1 / factor, lambda f: good(base, 1 / f)) or 1 / factor)
        base = _simplest(base, lambda b: good(b, factor)) or base
        return self._written(base, factor, series(base, factor), sign, last)

    def _written(self, base: float, factor: float, omegas: Floats, sign: int, last: int | None) -> Any:
        made: dict[str, Any] = {"base": base}
        notes: tuple[str, ...] = ()
        mistake = ""
        if last is not None:
            made["scaling"] = Proportional(2 * last / self.width, factor=1 / factor)
        elif factor == 2.0:
            made["scaling"] = Linear(0.5)
            mistake = "rotated twice: every angle is the double"
        elif factor != 1.0:
            made["scaling"] = Linear(1 / factor)
            notes = (f"every frequency, or every position, is divided by {1 / factor:g}",)
        return _Found(made, omegas, sign, 0.0, mistake, notes)

    def _stretched(self, omegas: Floats, seen: Any, sign: int) -> Iterator[_Found]:
        """Llama 3's rule and YaRN, of factors as the slow lanes show them and the usual contexts."""
        fast = np.flatnonzero(seen)[:3]
        for base in self.bases:
            usual = base**-self.exponents
            if not np.allclose(omegas[fast], usual[fast], rtol=2e-2):
                continue
            ratio = float(np.median((usual / np.where(seen, omegas, 1.0))[seen][-3:]))
            for factor in sorted({float(round(ratio)), round(2 * ratio) / 2, 8.0, 32.0}):
                for rule in _usual_rules(factor) if factor > 1 else ():
                    yield from (f for f in self._by_rule(base, rule) if f.sign == sign)


def _usual_rules(factor: float) -> Iterator[Scaling]:
    for context in CONTEXTS:
        yield Llama3(factor=factor, original_max_position_embeddings=context)
        yield YaRN(factor, context)
        yield YaRN(factor, context, truncate=False)


# ---- several coordinates ----


def _lane_map(sums: _Sums, rows: Floats, amplitude: float, case: _Case) -> tuple[Indices, Floats]:
    """Find which coordinate drives each lane (-1: it does not show), and how fast it would turn by each."""
    series, coherence = [], []
    for a in range(rows.shape[1]):
        at, inverse = np.unique(rows[:, a], return_inverse=True)
        turns, weight = sums.at(inverse.ravel(), len(at))
        series.append(_Series(at, turns / amplitude, weight))
        coherence.append((weight * abs(turns / amplitude)).sum(0) / np.maximum(weight.sum(0), 1e-300))
    scores = np.array(coherence)  # 1 where turns are the same wherever this coordinate is
    best = scores.argmax(0)
    ordered = np.sort(scores, axis=0)
    margin = max(case.tol**2, 1e-9)
    lanes = np.where(ordered[-1] - ordered[-2] > margin, best, -1) if len(scores) > 1 else best
    unknown = np.full(scores.shape[1], np.nan)
    omegas = [_estimate(_anchored(s))[0] if len(s.at) > 1 else unknown for s in series]
    return lanes, np.array(omegas)


def _filled(lanes: Indices) -> list[int]:
    """Give lanes that do not show the coordinate of the lane before."""
    made, last = [], next((int(a) for a in lanes if a >= 0), 0)
    for a in lanes:
        last = int(a) if a >= 0 else last
        made.append(last)
    return made


# Shares that models give their coordinates: Qwen2-VL's and Qwen3-VL's, and equal ones.
_PARTS: dict[int, list[tuple[float, ...]]] = {
    2: [(1.0, 1.0)],
    3: [(2.0, 3.0, 3.0), (6.0, 5.0, 5.0), (1.0, 1.0, 1.0)],
}


def _axes_guesses(lanes: Indices, count: int, blocks: int) -> Iterator[tuple[Axes, str]]:
    """Yield maps of models with the sections that the lanes show, or usual ones."""
    n, filled = len(lanes), _filled(lanes)
    seen = tuple(filled.count(a) for a in range(count))
    if blocks > 1:
        if n % blocks == 0 and count == blocks:
            yield _made("axial", (2 * n // count,) * count, blocks=True)
        return
    shown = [int((lanes == a).sum()) for a in range(count)]
    first = (n - sum(shown[1:]), *shown[1:])
    usual = [seen, first]
    parts: Sequence[tuple[float, ...]] = _PARTS.get(count, [(1.0,) * count])
    for part in parts:
        sizes = [n * p / sum(part) for p in part]
        if all(size == int(size) for size in sizes):
            usual.append(tuple(int(size) for size in sizes))
    if count == 1:
        return
    for sections in dict.fromkeys(usual):
        order = tuple(dict.fromkeys([*filled, *range(count)]))
        yield from _tried("chunked", sections)
        yield from _tried("interleaved", sections)
        if count == 3:
            yield from _tried("alternating", sections)
        widths = tuple(2 * s for s in sections)
        yield from _tried("axial", widths, **({} if order == tuple(range(count)) else {"order": order}))
    if count == 2 and n % 2 == 0:
        yield from _tried("even_odd", (2 * n,))


def _tried(name: str, args: tuple[int, ...], **kwargs: Any) -> Iterator[tuple[Axes, str]]:
    try:
        yield _made(name, args, **kwargs)
    except SpecError:
        return


def _made(name: str, args: tuple[int, ...], **kwargs: Any) -> tuple[Axes, str]:
    words = [*map(repr, args), *(f"{k}={v!r}" for k, v in kwargs.items())]
    return getattr(Axes, name)(*args, **kwargs), f"ra.Axes.{name}({', '.join(words)})"


# ---- the search ----


class _Search:
    """All that is tried on one case, in order; explanations are kept, and what does not fit too."""

    def __init__(self, case: _Case, candidates: tuple[Any, ...]):
        self.case = case
        self.ropes = [c for c in candidates if isinstance(c, RoPE)]
        self.rules = [c for c in candidates if isinstance(c, Scaling)]
        self.bases = [*dict.fromkeys([*BASES, *(r.base for r in self.ropes)])]
        self.kept: list[Explanation] = []
        self.others: list[Explanation] = []

    def run(self) -> Diagnosis:
        if not self.case.touched.any():
            return self._unrotated()
        given = [*self._given()]
        for positions in given:
            self._candidates(positions)
            self._rotations(positions)
        for positions in self._elsewhere():
            if any(_usual(e) for e in self.kept):
                self._again(positions)
            else:
                self._rotations(positions)
        if not self.kept:
            self._mistakes(given)
        return self._told()

    # positions

    def _given(self) -> Iterator[_Positions]:
        case = self.case
        plain = case.spread(case.pos, case.seq_axis)
        if plain is not None:
            yield _Positions(plain, case.pos, "pos", case.seq_axis)
        if case.pos.ndim > 1:
            several = case.spread(case.pos, case.seq_axis, True)
            if several is not None and 0 < several.shape[1] <= _COORDINATES:
                yield _Positions(several, case.pos, "pos", case.seq_axis)

    def _elsewhere(self) -> Iterator[_Positions]:
        """Positions that an implementation may have used by mistake."""
        case = self.case
        given = [p for p in self._given() if not p.coordinates]
        if not given and not [*self._given()]:
            return
        lead = case.before.ndim - 1
        for positions in given:
            yield positions._replace(free=True, mistake="the positions are off by a constant")
        for axis in range(lead):
            size, name = case.before.shape[axis], axis - lead - 1
            own = axis == case.seq_axis % case.before.ndim
            where = "" if own else f"positions run along axis {name} of x, not along axis {self._axis}"
            counted = np.arange(size)
            rows = case.spread(case.pos, name) if case.pos.ndim and not own else None
            if rows is not None and not any(np.array_equal(rows, p.rows) for p in given):
                yield _Positions(rows, case.pos, "pos", name, where)
            rows = case.spread(counted, name)
            assert rows is not None
            text = where or "the positions given are not used: tokens are counted from 0"
            if not any(np.array_equal(rows, p.rows) for p in given):
                yield _Positions(rows, counted, f"range({size})", name, text)
        constant = np.zeros(len(case.x))
        text = "the positions given are not used: all tokens turn by the same angles"
        yield _Positions(constant, np.array(0), "0", case.seq_axis, text, free=True)

    @property
    def _axis(self) -> int:
        return self.case.seq_axis if self.case.seq_axis < 0 else self.case.seq_axis - self.case.before.ndim

    # tries

    def _candidates(self, positions: _Positions) -> None:
        for rope in self.ropes:
            for inverse in (False, True):
                if rope.head_dim == self.case.x.shape[1]:
                    self._judge(rope, positions, inverse, candidate=True)

    def _rotations(self, positions: _Positions) -> None:
        for mix in _mixes(self.case, positions.coordinates):
            sums = self._sums(mix)
            if not sums.plausible or not (mix.lanes and sums.products.any()):
                continue
            if positions.coordinates:
                self._by_coordinates(mix, sums, positions)
            else:
                self._by_position(mix, sums, positions)

    def _sums(self, mix: _Mix) -> _Sums:
        key = (mix.pairing, mix.out_pairing, mix.start, mix.width, mix.blocks, mix.mistake)
        kept = self.__dict__.setdefault("_kept_sums", {})
        if key not in kept:
            kept[key] = _Sums(self.case, mix)
        return kept[key]  # type: ignore[no-any-return]

    def _series(self, sums: _Sums, rows: Floats) -> tuple[_Series, float]:
        at, inverse = np.unique(rows, return_inverse=True)
        turns, weight = sums.at(inverse.ravel(), len(at))
        size = _amplitude(turns, weight, self.case.tol)
        return _Series(at, turns / size, weight), size

    def _by_position(self, mix: _Mix, sums: _Sums, positions: _Positions) -> None:
        series, size = self._series(sums, positions.rows)
        fit = self._fit(mix, series)
        for found in fit.found(positions.free):
            self._keep(found, mix, size, positions)

    def _fit(self, mix: _Mix, series: _Series) -> _Fit:
        tails = "half" in (mix.pairing, mix.out_pairing)
        return _Fit(series, mix.width, self.case, self.bases, self.rules, tails)

    def _keep(self, found: _Found, mix: _Mix, size: float, positions: _Positions) -> None:
        given = {**found.fields, **mix.fields(self.case.x.shape[1])}
        rope = _with_amplitude(RoPE(self.case.x.shape[1], **given), size)
        notes = (*found.notes, *_names_of(rope))
        if found.offset:
            positions = self._moved(positions, found.offset)
        if found.mistake:
            positions = positions._replace(mistake=found.mistake)
        self._judge(rope, positions, found.sign < 0, notes, estimate=found.estimate)

    def _moved(self, positions: _Positions, offset: float) -> _Positions:
        whole = int(offset)
        if positions.code == "0":
            text = f"{positions.mistake}, those of position {whole}"
            return positions._replace(rows=positions.rows + offset, pos=whole, code=f"{whole}", mistake=text)
        code = f"[p + {whole} for p in pos]" if self.case.on_host else f"pos + {whole}"
        return positions._replace(
            rows=positions.rows + offset,
            pos=positions.pos + whole,
            code=code.replace("+ -", "- "),
            mistake=f"the positions are off by {whole}",
        )

    def _by_coordinates(self, mix: _Mix, sums: _Sums, positions: _Positions) -> None:
        every, inverse = np.unique(positions.rows, axis=0, return_inverse=True)
        size = _amplitude(*sums.at(inverse.ravel(), len(every)), self.case.tol)
        lanes, omegas = _lane_map(sums, positions.rows, size, self.case)
        kept = len(self.kept)
        for axes, text in _axes_guesses(lanes, positions.coordinates, mix.blocks):
            drivers = np.array([-1 if a is None else a for a in axes.lanes])
            if len(drivers) == len(lanes) and ((lanes < 0) | (lanes == drivers)).all():
                self._on_axes(axes, text, mix, size, omegas, lanes, positions)
        if len(self.kept) == kept and mix.blocks == 1:
            axes = Axes(tuple(_filled(lanes)), count=positions.coordinates)
            self._on_axes(axes, f"ra.{axes!r}", mix, size, omegas, lanes, positions, last=True)

    def _on_axes(
        self, axes: Axes, text: str, mix: _Mix, size: float, by_each: Floats, lanes: Indices,
        positions: _Positions, last: bool = False,
    ) -> None:  # fmt: skip
        head_dim = self.case.x.shape[1]
        drivers = np.array([a or 0 for a in axes.lanes])
        omegas = by_each[drivers, np.arange(len(lanes))]
        exponents = np.array([2 * s[1] / s[0] if s else 0.0 for s in axes.sources(mix.width)])
        seen = np.isfinite(omegas)
        omegas = np.where(seen, omegas, 0.0)
        sign = -1 if omegas[seen].sum() < 0 else 1
        slack = self.case.tol / max(abs(positions.rows).max(), 1e-9)
        given = {**mix.fields(head_dim), "axes": axes}
        for rule, unit in ((None, 1.0), (Periods(), 2 * np.pi)):
            for base in self._bases_near(sign * omegas / unit, exponents, seen):
                wanted = unit * base**-exponents
                if np.allclose(sign * omegas[seen], wanted[seen], rtol=0.02, atol=slack):
                    rope = RoPE(head_dim, base=base, scaling=rule, **given)
                    if self._judge(_with_amplitude(rope, size), positions, sign < 0, axes_text=text):
                        return
        if last and (lanes >= 0).any():
            rope = RoPE(head_dim, inv_freq=tuple(map(float, omegas)), **given)
            self._judge(_with_amplitude(rope, size), positions, False, (_NO_RULE,), text, estimate=True)

    def _bases_near(self, omegas: Floats, exponents: Floats, seen: Any) -> list[float]:
        """Bases of models, then the estimate and its rounded forms."""
        fast = seen & (omegas > 0)
        if not fast.any():
            return self.bases
        own = _line(omegas[fast], exponents[fast], False)[0]
        rounded = [float(f"{own:.{n}g}") for n in (2, 3, 5, 9)] if 1e-30 < own < 1e30 else []
        return [*dict.fromkeys([*self.bases, *rounded])]

    def _again(self, positions: _Positions) -> None:
        """Try what explains the output at other positions, which the data may not tell apart."""
        if positions.code == "0" or positions.free:
            return
        for found in [e for e in self.kept if _usual(e) and e.rope]:
            assert found.rope is not None
            if found.rope.axes is None:
                self._judge(found.rope, positions, found.inverse, found.notes, candidate=True)

    # verdicts

    def _judge(
        self, rope: RoPE, positions: _Positions, inverse: bool, notes: tuple[str, ...] = (),
        axes_text: str = "", candidate: bool = False, estimate: bool = False,
    ) -> bool:  # fmt: skip
        """Rebuild the output and keep the explanation where it fits."""
        case = self.case
        if bool(positions.coordinates) != bool(rope.axes):
            return False
        if inverse and rope.out_pairing and not candidate:
            turned = replace(rope, pairing=rope.out_pairing, out_pairing=rope.pairing)
        else:
            turned = rope
        if inverse and rope.amplitude != 1.0 and not candidate:
            turned = replace(turned, attention_factor=_short(1 / rope.amplitude, case.tol / 8))
        best: tuple[Explanation, bool] | None = None
        for angles in dict.fromkeys((rope.angles, "exact", "float32") if case.eps >= _EPS32 else ("exact",)):
            tried = replace(turned, angles=angles)
            try:
                y = tried.apply(case.before, positions.pos, seq_axis=positions.seq_axis, inverse=inverse)
            except (ShapeError, SpecError):
                return False
            made = self._explained(tried, y, positions, inverse, notes, axes_text)
            if best is None or made[0]._rms < 0.7 * best[0]._rms:
                best = made
            if made[0]._rms < case.tol / 16 and angles == "exact":
                break
        assert best is not None
        explanation, fits = replace(best[0], _estimate=estimate, _given=candidate, _axes=axes_text), best[1]
        (self.kept if fits else self.others).append(explanation)
        return fits

    def _explained(
        self, rope: RoPE, y: Floats, positions: _Positions, inverse: bool, notes: tuple[str, ...], text: str
    ) -> tuple[Explanation, bool]:
        case = self.case
        rows = y.reshape(-1, y.shape[-1])[case.finite]
        blocks = rope.axes.blocks if rope.axes else 1
        # The inverse reads what was written.
        layout = rope.pairing if inverse else rope.out_pairing or rope.pairing
        out = _pairs(layout, rope.rotary_start, rope.rotary_dim, blocks)
        residual, rms, worst = self._errors(rows, out, positions, np.array(rope.frequencies), rope.axes)
        code = _code(rope, positions, inverse, text)
        found = Explanation(rope, code, residual, positions.mistake, inverse, positions.seq_axis, notes, rms)
        return found, worst <= 1.0

    def _errors(
        self, rows: Floats, out: Indices, positions: _Positions, omegas: Floats, axes: Axes | None = None
    ) -> tuple[float, float, float]:
        """Largest error and its mean square, relative to pairs, and the largest in units of the tolerance."""
        case = self.case
        size, allowed = abs(rows), np.full(rows.shape, case.tol)
        norm = np.maximum(*(np.hypot(y[:, out[0]], y[:, out[1]]) for y in (rows, case.y)))
        at = positions.rows[:, None] if axes is None else positions.rows[:, [a or 0 for a in axes.lanes]]
        angles = case.angle_tol * abs(at * omegas)
        for feature in out:
            size[:, feature] = norm
            allowed[:, feature] += angles
        size = np.maximum(size, 1e-30 + 1e-7 * abs(case.y).max())
        relative = abs(rows - case.y) / size
        return float(relative.max()), float(np.sqrt((relative**2).mean())), float((relative / allowed).max())

    # mistakes

    def _mistakes(self, given: list[_Positions]) -> None:
        for positions in given:
            if not positions.coordinates:
                for tried in self._tables_too_short(positions):
                    self._rotations(tried)
        if self.kept:
            return
        for positions in given:
            if not positions.coordinates:
                self._no_rotations(positions)
                self._narrow(positions)

    def _tables_too_short(self, positions: _Positions) -> Iterator[_Positions]:
        """Positions past the end of a table: not rotated, or rotated as its last one."""
        case, pos = self.case, positions.pos
        code = "np.asarray(pos)" if case.on_host else "pos"
        moved = (abs(case.y - case.x) > case.tol / 4 * abs(case.x) + 1e-300).any(1)
        still = ~moved & (positions.rows != 0)
        if still.any():
            end = float(positions.rows[still].min())
            if (still == (positions.rows >= end)).all():
                text = f"positions from {end:g} on are not rotated, as past the end of a table"
                yield positions._replace(
                    rows=np.where(still, 0.0, positions.rows), pos=np.where(pos < end, pos, 0),
                    code=f"np.where({code} < {end:g}, {code}, 0)", mistake=text,
                )  # fmt: skip
        for mix in _mixes(case, 0):
            last = self._end(mix, positions)
            if last is not None:
                text = f"positions past {last:g} are rotated as {last:g}, as by a table that ends there"
                yield positions._replace(
                    rows=np.minimum(positions.rows, last), pos=np.minimum(pos, pos.dtype.type(last)),
                    code=f"np.minimum({code}, {last:g})", mistake=text,
                )  # fmt: skip
                return

    def _end(self, mix: _Mix, positions: _Positions) -> float | None:
        sums = self._sums(mix)
        if not sums.plausible:
            return None
        (at, turns, weight), _ = self._series(sums, positions.rows)
        off = np.where(weight > 0, abs(turns - turns[-1]), 0.0).max(1) if len(at) > 2 else np.ones(1)
        differ = np.flatnonzero(off > 4 * self.case.tol)
        first = int(differ[-1]) + 1 if len(differ) else len(at)
        return float(at[first]) if first < len(at) - 1 else None

    def _no_rotations(self, positions: _Positions) -> None:
        for mix in _mistaken(self.case):
            sums = self._sums(mix)
            series, size = self._series(sums, positions.rows)
            for found in self._fit(mix, series).found(False)[:1]:
                angles = positions.rows[:, None] * found.omegas * found.sign
                self._tried_mix(mix, found, size, positions, np.cos(angles), np.sin(angles))

    def _tried_mix(
        self, mix: _Mix, found: _Found, size: float, positions: _Positions, cos: Floats, sin: Floats
    ) -> None:
        rows = mix.forward(self.case.x, size * cos, size * sin)
        # Errors are relative to the pair before: what is no rotation may make a pair small.
        norm = size * np.hypot(*(self.case.x[:, f] for f in _pairs(mix.pairing, mix.start, mix.width)))
        size_of = np.maximum(abs(self.case.x), 1e-30)
        for feature in _pairs(mix.out_pairing, mix.start, mix.width):
            size_of[:, feature] = np.maximum(norm, 1e-30)
        allowed = self.case.tol + self.case.angle_tol * abs(positions.rows[:, None] * found.omegas).max(
            1, keepdims=True
        )
        relative = abs(rows - self.case.y) / size_of
        head_dim = self.case.x.shape[1]
        rope = _with_amplitude(RoPE(head_dim, **found.fields, **mix.fields(head_dim)), size)
        made_of = f"ra.RoPE({', '.join([str(head_dim), *_fields(rope)])})"
        made = Explanation(
            rope, f"{mix.formula}; φ of {made_of}", float(relative.max()), mix.mistake, found.sign < 0,
            self.case.seq_axis, found.notes, float(np.sqrt((relative**2).mean())),
        )  # fmt: skip
        (self.kept if (relative <= allowed).all() else self.others).append(made)

    def _narrow(self, positions: _Positions) -> None:
        """Angles, positions or tables in 16 bits: errors that grow with the position."""
        if self.kept:
            return
        some = np.unique(np.linspace(0, len(self.case.x) - 1, 64).round().astype(int))
        for mix in _mixes(self.case, 0):
            if mix.pairing != mix.out_pairing or not self._sums(mix).plausible:
                continue
            for base in self.bases:
                for sign in (1, -1):
                    self._narrow_base(mix, base, sign, positions, some)

    def _narrow_base(self, mix: _Mix, base: float, sign: int, positions: _Positions, some: Indices) -> None:
        case = self.case
        omegas = base ** -(2 * np.arange(mix.lanes) / mix.width)
        for text, (cos, sin) in _narrow_tables(positions.rows[some, None], omegas):
            off = abs(mix.forward(case.x[some], cos, sign * sin) - case.y[some])
            if np.median(off) > 8 * case.tol * np.median(abs(case.y[some])):
                continue
            full = dict(_narrow_tables(positions.rows[:, None], omegas))[text]
            wrong = replace(mix, mistake=text, formula=text)
            self._tried_mix(wrong, _Found({"base": base}, 0 * omegas, sign), 1.0, positions, full[0],
                            sign * full[1])  # fmt: skip

    # the result

    def _unrotated(self) -> Diagnosis:
        nothing = Explanation(RoPE(self.case.x.shape[1], rotary_dim=0), "x", 0.0, "nothing was rotated")
        if self.case.pos.any() and self.case.x.any():
            return Diagnosis((replace(nothing, notes=("rotary_dim=0: a layer without position embedding",)),))
        why = "all positions are 0, where no RoPE turns anything" if self.case.x.any() else "all of x is 0"
        for positions in self._given():
            if not positions.coordinates:
                for pairing in PAIRINGS:
                    if not self.case.x.shape[1] % 2:
                        self._judge(RoPE(self.case.x.shape[1], pairing=pairing), positions, False)
        return Diagnosis(
            (nothing, *self.kept),
            reason=f"{why}: any base, slice and pairing explains the output; give random features at "
            "positions with a step of 1 that reach far",
        )

    def _told(self) -> Diagnosis:
        kept = _distinct(
            sorted(self.kept, key=lambda e: (bool(e.mistake), e._estimate, not e._given, e._rms))
        )
        if kept:
            # Estimates also fit what rounding made of the frequencies.
            least = min(e._rms for e in [e for e in kept if not e._estimate] or kept)
            kept = [e for e in kept if e._rms <= 2 * least + self.case.tol / 20]
        kept = [e for e in kept if not e._estimate] or _narrowest(kept)
        if not all(e.mistake for e in kept):  # two oddities at once explain nothing that one does not
            kept = [e for e in kept if not (e.mistake and e.rope and isinstance(e.rope.scaling, Linear))]
        self._rule_out(kept)
        if not kept:
            self._usual_ones()
        nearest = _distinct(sorted(self.others, key=lambda e: e._rms))[: 4 if kept else 3]
        return Diagnosis(tuple(kept), tuple(nearest), self._reason(kept), tuple(self._notes(kept)))

    def _usual_ones(self) -> None:
        """Say how far off the usual ropes are, where nothing was near."""
        head_dim, kept = self.case.x.shape[1], list(self.kept)
        for positions in self._given():
            for pairing in PAIRINGS if not head_dim % 2 else ():
                self._judge(RoPE(head_dim, pairing=pairing), positions, False)
        self.kept = kept

    def _rule_out(self, kept: list[Explanation]) -> None:
        """Change one field at a time of what explains the output, to say how far off that would be."""
        if len(kept) != 1 or kept[0].mistake or not kept[0].rope:
            return
        [found] = kept
        rope = found.rope
        assert rope is not None
        self.others.clear()
        given = [p for p in self._given() if bool(p.coordinates) == bool(rope.axes)]
        other = PAIRINGS[rope.pairing == "interleaved"]
        kept_before = list(self.kept)
        more: dict[str, Any] = {"candidate": True, "axes_text": found._axes}
        for positions in given[:1]:
            self._judge(replace(rope, pairing=other, out_pairing=None), positions, found.inverse, **more)
            self._judge(rope, positions, not found.inverse, **more)
            if rope.inv_freq is None and rope.base != 10000.0:
                self._judge(replace(rope, base=10000.0), positions, found.inverse, **more)
        self.kept = kept_before

    def _reason(self, kept: list[Explanation]) -> str:
        if not kept:
            return (
                "frequencies may follow a rule to be given in `candidates`, features may turn in another "
                "order, or `after` may hold more than a rotation, such as a norm; if it was computed in "
                "another precision than its dtype, give a `tolerance`"
            )
        if len(kept) == 1:
            return ""
        return "; ".join(self._causes(kept)) + (
            ". Give random features of several rows at positions with a step of 1 that reach far, unlike on "
            "every axis and in every coordinate"
        )

    def _causes(self, kept: list[Explanation]) -> list[str]:
        ropes = [e.rope for e in kept if e.rope]
        found = []
        if len({(r.pairing, r.out_pairing) for r in ropes}) > 1:
            small = min(r.rotary_dim for r in ropes) == 2
            found.append(
                "a slice of 2 features is one pair in either pairing"
                if small
                else "the features do not tell pairings apart (symmetric, or too few turn)"
            )
        if len({e.direction for e in kept}) > 1:
            found.append("+φ and -φ give the same (multiples of a half turn, or too few positions)")
        if len({r.base for r in ropes}) > 1:
            found.append("the lanes that show do not tell bases apart")
        if len({(r.rotary_dim, r.rotary_start) for r in ropes}) > 1:
            found.append("the last lanes turn by less than the rounding, so that the slice does not show")
        if len({r.axes for r in ropes}) > 1:
            found.append("the coordinates are equal, or lanes too slow to show, so that lane maps agree")
        if len({(e.seq_axis, e.mistake) for e in kept}) > 1:
            found.append("the positions given are the same as others (of another axis, or another count)")
        return found or ["several fit"]

    def _unsure(self, rope: RoPE, reach: float) -> float:
        """How far the logarithm of the base may be off before some lane is off by the tolerance."""
        exponents = 2 * np.arange(len(rope.frequencies)) / max(rope.rotary_dim, 1)
        return float(self.case.tol / max((abs(np.array(rope.frequencies)) * reach * exponents).max(), 1e-30))

    def _notes(self, kept: list[Explanation]) -> Iterator[str]:
        dropped = int((~self.case.finite).sum())
        if dropped:
            yield f"{dropped} rows hold NaN or infinities and were left out"
        if len(kept) == 1 and kept[0].rope and kept[0].rope.frequencies:
            rope = kept[0].rope
            reach = abs(np.asarray(self.case.pos, np.float64)).max()
            hidden = sum(0 < abs(w) * reach < self.case.tol for w in rope.frequencies)
            unsure = self._unsure(rope, reach)
            if rope.inv_freq is None and len(rope.frequencies) > 1 and unsure > 0.01:
                yield f"the base shows to about ±{min(unsure, 1):.0%} only"
            if hidden:
                yield f"{hidden} of {len(rope.frequencies)} lanes turn by less than the rounding here"


def _usual(found: Explanation) -> bool:
    """Whether it is a rotation as models have it, beside which an odd position needs no looking for."""
    return not (found.mistake or found._estimate or (found.rope and isinstance(found.rope.scaling, Linear)))


def _distinct(found: list[Explanation]) -> list[Explanation]:
    """Leave out what says the same: the first of each rope and way to apply it."""
    seen, made = set(), []
    for e in found:
        key = (_sense(e.rope), e.inverse, e.seq_axis, e.mistake, e.code if e.mistake else "")
        if key not in seen:
            seen.add(key)
            made.append(e)
    return made


def _narrowest(found: list[Explanation]) -> list[Explanation]:
    """Keep estimates of the narrowest slice: a wider one has lanes at 0 beside the same ones."""
    least = min((e.rope.rotary_dim for e in found if e.rope), default=0)
    return [e for e in found if e.rope is None or e.rope.rotary_dim == least]


def _sense(rope: RoPE | None) -> Any:
    """Say what a rope does, however its frequencies are written."""
    if rope is None:
        return None
    layout = rope.head_dim, rope.rotary_dim, rope.rotary_start, rope.pairing, rope.out_pairing
    drivers = rope.axes and (rope.axes.lanes, rope.axes.blocks)
    return (*layout, drivers, float(f"{rope.amplitude:.6g}"), tuple(f"{w:.8g}" for w in rope.frequencies))


def _with_amplitude(rope: RoPE, size: float) -> RoPE:
    return rope if math.isclose(rope.amplitude, size, rel_tol=1e-6) else replace(rope, attention_factor=size)


def _names_of(rope: RoPE) -> tuple[str, ...]:
    """Say what else a base is called: an exponent over the head's width, a base that NTK scaling made."""
    if rope.inv_freq or rope.scaling or rope.base in BASES or rope.axes:
        return ()
    d, found = rope.rotary_dim, []
    for base in BASES[:4]:
        over = base ** (d / rope.head_dim)
        if d < rope.head_dim and math.isclose(over, rope.base, rel_tol=2e-3):
            found.append(f"base {rope.base:g} over {d} is base {base:g} with exponents over head_dim")
        for factor in (2.0, 4.0, 8.0, 16.0):
            if d > 2 and math.isclose(base * factor ** (d / (d - 2)), rope.base, rel_tol=2e-3):
                found.append(f"base {rope.base:g} is base {base:g} with NTKAware(factor={factor:g})")
    return tuple(found)


def _narrow_tables(at: Floats, omegas: Floats) -> Iterator[tuple[str, tuple[Floats, Floats]]]:
    """Cos and sin as made of numbers of 16 bits, (N, lanes)."""
    for name, cut in _CUTS:
        angles = cut(cut(at) * cut(omegas))
        yield f"angles are {name}", (np.cos(angles), np.sin(angles))
        angles = cut(at) * omegas
        yield f"positions are {name}", (np.cos(angles), np.sin(angles))
        yield f"cos and sin are {name}", (cut(np.cos(at * omegas)), cut(np.sin(at * omegas)))


# ---- text ----


def _code(rope: RoPE, positions: _Positions, inverse: bool, axes_text: str) -> str:
    """Write the call that reproduces an output."""
    words = ["x", positions.code, *_fields(rope, axes_text)]
    words += [f"seq_axis={positions.seq_axis}"] if positions.seq_axis != -2 else []
    words += ["inverse=True"] if inverse else []
    return f"ra.apply({', '.join(words)})"


def _fields(rope: RoPE, axes_text: str = "") -> list[str]:
    """Write the fields that differ from the defaults."""
    words = []
    usual = RoPE(rope.head_dim)
    rest = rope.head_dim - rope.rotary_start
    for name in (f.name for f in fields(rope) if f.name != "head_dim"):
        value = getattr(rope, name)
        if value == (rest if name == "rotary_dim" else getattr(usual, name)):
            continue
        text = f"ra.{value!r}" if name in ("scaling", "axes") else repr(value)
        words.append(f"{name}={axes_text if name == 'axes' and axes_text else text}")
    return words


def _labelled(found: Explanation) -> str:
    code = found.code if len(found.code) < 160 else f"{found.code[:157]}..."
    return f"{code}  ({found.mistake})" if found.mistake else code


def _told(found: Explanation) -> list[str]:
    lines = [f"  {found.code}", *([f"    {found.mistake}"] if found.mistake else [])]
    if found.inverse:
        lines.append("    turns by -φ")
    lines.append(f"    largest error, relative to a pair: {found.residual:.1e}")
    return lines + [f"    {note}" for note in found.notes]
