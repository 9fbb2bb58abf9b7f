"""The definition of rotary position embedding (RoPE), against which implementations are checked.

Pair `i` of a vector is rotated by the angle pos * omega_i: multiplied by the matrix

    [ cos  -sin ]
    [ sin   cos ]

(Su et al. 2021, "RoFormer", https://arxiv.org/abs/2104.09864, equations 13 to 15.) A float64 product
pos * omega is too coarse to judge with, so the angles here are decimals, reduced modulo 2 pi before they are
rounded. The module needs NumPy and the standard library only. It shares no code and no method for angles with
the rest of the package, so that both cannot make the same mistake.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal, localcontext
from functools import cached_property, lru_cache
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from . import _rules
from ._angles import REDUCTION, Floats, exact, rotate_pairs, series, table_of

Indices: TypeAlias = NDArray[np.intp]
Frequencies: TypeAlias = Sequence[float | Decimal]

PAIRINGS = ("interleaved", "half")


@dataclass(frozen=True)
class ExactPlan:
    """A RoPE without positions: pairs to read and write as indices, frequencies, amplitude, coordinates."""

    head_dim: int
    omegas: tuple[Decimal, ...]
    amplitude: Decimal
    source: tuple[Indices, Indices]
    target: tuple[Indices, Indices]
    coordinates: tuple[int, ...] | None = None
    count: int = 1
    backwards: bool = False

    @cached_property
    def sizes(self) -> Floats:
        """The sizes of the frequencies, rounded."""
        return np.array([abs(float(omega)) for omega in self.omegas])

    @cached_property
    def inverse(self) -> ExactPlan:
        """The inverse: opposite angles, reciprocal amplitude, pairs read and written exchanged."""
        if not self.amplitude:
            raise ValueError(
                "attention_factor is 0, so the rotation has no inverse; give a factor other than 0"
            )
        with localcontext(REDUCTION):
            amplitude = 1 / self.amplitude
        return replace(
            self, amplitude=amplitude, source=self.target, target=self.source, backwards=not self.backwards
        )


def frequencies(rotary_dim: int, base: float = 10000.0) -> tuple[Decimal, ...]:
    """Frequencies base^(-2i/d) as real numbers, i = 0 .. d/2 - 1, d = `rotary_dim`.

    Parameters
    ----------
    rotary_dim : int
        Number of rotated elements: even, 0 or more.
    base : float
        Positive; its exact value is used.

    Returns
    -------
    tuple of Decimal, length rotary_dim // 2
        Radians per position, to 110 significant digits.

    Raises
    ------
    ValueError
        If `rotary_dim` is odd or negative, or `base` is not a positive number.

    Notes
    -----
    RoFormer (https://arxiv.org/abs/2104.09864), equation 15, where i counts from 1.

    Examples
    --------
    >>> [str(omega) for omega in frequencies(4)]
    ['1', '0.01']
    """
    number = exact(base)
    if number <= 0:
        raise ValueError(f"base must be a positive number, got {base!r}")
    return series(_width(rotary_dim), number)


def cos_sin(
    pos: ArrayLike, *, rotary_dim: int, base: float = 10000.0, inv_freq: Frequencies | None = None
) -> tuple[Floats, Floats]:
    """Cosine and sine of pos * omega_i, each correctly rounded to float64.

    Parameters
    ----------
    pos : int, float, sequence or array of them, shape (...)
        Positions; the exact value of each is used. Angles must be below 1e40 radians.
    rotary_dim : int
        Number of rotated elements: even, 0 or more.
    base : float
        The frequencies are `frequencies(rotary_dim, base)`.
    inv_freq : sequence of rotary_dim // 2 floats, optional
        Frequencies in radians per position to use instead, each exactly.

    Returns
    -------
    cos, sin : ndarray of float64, shape (..., rotary_dim // 2)

    Raises
    ------
    ValueError
        If a width, base, frequency or position is out of its range.
    TypeError
        If a position or frequency is not a real number.

    Notes
    -----
    RoFormer (https://arxiv.org/abs/2104.09864), equation 15.

    Examples
    --------
    >>> cos, sin = cos_sin([0, 10**22], rotary_dim=2)
    >>> cos[:, 0].tolist(), sin[:, 0].tolist()
    ([1.0, 0.523214785395139], [0.0, -0.8522008497671888])
    """
    table = table_of(pos, _omegas(_width(rotary_dim), base, inv_freq), Decimal(1))
    return table[..., 0], table[..., 1]


def rotation_matrix(
    pos: ArrayLike,
    *,
    head_dim: int,
    base: float = 10000.0,
    rotary_dim: int | None = None,
    rotary_start: int = 0,
    pairing: str = "interleaved",
    out_pairing: str | None = None,
    inv_freq: Frequencies | None = None,
    attention_factor: float | None = None,
    scaling: Mapping[str, Any] | None = None,
    axes: Mapping[str, Any] | None = None,
) -> Floats:
    """Matrix M of the rotation at each position: y = M @ x.

    Parameters
    ----------
    pos : int, float, sequence or array of them, shape (...)
        Positions; the exact value of each is used.
    head_dim : int
        Number of elements of x.
    base, inv_freq
        As in `cos_sin`.
    rotary_dim : int, optional
        Number of rotated elements: even; 0 gives the identity. By default all from `rotary_start` on.
    rotary_start : int
        First rotated element. Elements outside the rotated slice do not change.
    pairing : {"interleaved", "half"}
        Pair i is elements (2i, 2i + 1), or (i, i + rotary_dim // 2), of the rotated slice.
    out_pairing : {"interleaved", "half"}, optional
        The pairing of the results; `pairing` by default.
    attention_factor : float, optional
        Multiplies cos and sin, but not elements outside the rotated slice; by default the rule's, or 1.
    scaling : mapping, optional
        A rule for longer contexts, with the keys of a Hugging Face config's ``rope_parameters`` such as
        ``{"rope_type": "linear", "factor": 4.0}``, and ``length`` if the rule depends on it.
    axes : mapping, optional
        Which coordinate drives which pair; positions then have the shape (..., count). "coordinates" holds
        the coordinate of each pair, or None for a pair that is not rotated. "indices" holds the index of each
        pair's frequency: by default the pair's own index; if "widths" gives each coordinate a series of that
        width, the number of earlier pairs with the same coordinate. "blocks" is the number of equal parts of
        the slice, each paired on its own; "count" is the number of coordinates of a position.

    Returns
    -------
    ndarray of float64, shape (..., head_dim, head_dim)
        Each entry is the correctly rounded factor * cos, factor * sin, 0 or 1.

    Raises
    ------
    ValueError
        If a field is out of its range, or the slice does not fit in head_dim.
    TypeError
        If a position, frequency or factor is not a real number.

    Notes
    -----
    RoFormer (https://arxiv.org/abs/2104.09864), equation 15, with its (2i, 2i + 1) pairs as the default.

    Examples
    --------
    >>> rotation_matrix(0, head_dim=4, pairing="interleaved", out_pairing="half")
    array([[1., 0., 0., 0.],
           [0., 0., 1., 0.],
           [0., 1., 0., 0.],
           [0., 0., 0., 1.]])
    """
    plan = _plan(
        head_dim,
        base=base,
        rotary_dim=rotary_dim,
        rotary_start=rotary_start,
        pairing=pairing,
        out_pairing=out_pairing,
        inv_freq=inv_freq,
        attention_factor=attention_factor,
        scaling=scaling,
        axes=axes,
    )
    table = _table(pos, plan)
    (a, b), (out_a, out_b) = plan.source, plan.target
    matrix = np.zeros((*table.shape[:-2], plan.head_dim, plan.head_dim))
    unrotated = np.setdiff1d(np.arange(plan.head_dim), np.concatenate(plan.source))
    matrix[..., unrotated, unrotated] = 1.0
    matrix[..., out_a, a] = matrix[..., out_b, b] = table[..., 0]
    matrix[..., out_b, a] = table[..., 1]
    matrix[..., out_a, b] = 0.0 - table[..., 1]
    return matrix


def apply_definition(
    x: ArrayLike, pos: ArrayLike, *, seq_axis: int = -2, inverse: bool = False, **fields: Any
) -> Floats:
    """Rotate x by the matrix of each position, rounding once.

    Parameters
    ----------
    x : array of float64, or convertible to it exactly, shape (..., head_dim)
    pos : int, float, sequence or array of them
        Positions. Take x's axes without the last, with `seq_axis` moved to the end: (lead..., S). The last
        axis of `pos` matches S, its other axes match the first lead axes in order; each size is equal or 1.
        A scalar is the position of every row; an x of one axis takes only a scalar.
    seq_axis : int
        The axis of x that positions run along.
    inverse : bool
        Multiply by the inverse matrix, which divides by the attention factor.
    **fields
        Fields of `rotation_matrix`; head_dim is read from x.

    Returns
    -------
    ndarray of float64, shape of x
        Within 0.5000001 ulp of the exact result plus 2^-100 of factor times the length of the element's pair.
        Results below the smallest normal number are within one subnormal step. An `attention_factor` so small
        that entries of the matrix are subnormal (below 1e-290, say) loses digits of these entries.

    Raises
    ------
    ValueError
        If x does not convert exactly, `pos` does not line up with it, or a field is out of its range.
    TypeError
        If a position, frequency or factor is not a real number, or a field is unknown.

    Notes
    -----
    The matrix's entries are sums of two float64, and the products are added in twice the precision (Dekker
    1971, https://doi.org/10.1007/BF01397083): entries and products rounded to float64 would cost up to
    1.5 eps, too much of the 2.5 eps allowed for a float64 implementation. A pair with a NaN or an infinity is
    rotated in plain float64 arithmetic.

    Examples
    --------
    >>> apply_definition([[1.0, 0.0], [1.0, 0.0]], [0, 1])
    array([[1.        , 0.        ],
           [0.54030231, 0.84147098]])
    """
    values = _float64(x)
    plan = pairs_of(values.shape[-1], fields, inverse)
    if plan.head_dim != values.shape[-1]:
        raise ValueError(
            f"head_dim is {plan.head_dim}, but the last axis of x has {values.shape[-1]} elements"
        )
    # `rows` is a view of `values`, the copy of x that is returned.
    rows = values if values.ndim == 1 else np.moveaxis(values, _sequence_axis(seq_axis, values.ndim), -2)
    table = _table(pos, plan)
    table = _line_up(table, table.shape[:-2], rows.shape[:-1])
    first, second = rows[..., plan.source[0]], rows[..., plan.source[1]]
    rows[..., plan.target[0]], rows[..., plan.target[1]] = rotate_pairs(first, second, table)
    return values


def pairs_of(width: int, fields: Mapping[str, Any], inverse: bool = False) -> ExactPlan:
    """Return the plan of a head of `width` elements, with fields of `rotation_matrix`, or its inverse.

    Examples
    --------
    >>> pairs_of(4, {"base": 100.0}).omegas
    (Decimal('1'), Decimal('0.1'))
    """
    plan = _plan(**{"head_dim": width, **fields})
    return plan.inverse if inverse else plan


# ---- fields ----


def _plan(head_dim: int, **fields: Any) -> ExactPlan:
    """Return the plan of a head_dim and fields; plans of the latest fields are cached."""
    key = _hashable({"head_dim": head_dim, **fields})
    try:
        hash(key)
    except TypeError:  # an array of frequencies
        return _make_plan(head_dim, **fields)
    return _cached_plan(key)


def _hashable(value: Any) -> Any:
    """Return a mapping, list or tuple as tuples that differ if any value or type differs."""
    if isinstance(value, Mapping):
        return Mapping, tuple((name, _hashable(entry)) for name, entry in value.items())
    if type(value) in (list, tuple):
        return type(value), tuple(map(_hashable, value))
    return type(value), value


def _restored(key: Any) -> Any:
    key_type, value = key
    if key_type is Mapping:
        return {name: _restored(entry) for name, entry in value}
    return key_type(map(_restored, value)) if key_type in (list, tuple) else value


@lru_cache(maxsize=2**10)
def _cached_plan(key: Any) -> ExactPlan:
    return _make_plan(**_restored(key))


def _make_plan(
    head_dim: int,
    *,
    base: float = 10000.0,
    rotary_dim: int | None = None,
    rotary_start: int = 0,
    pairing: str = "interleaved",
    out_pairing: str | None = None,
    inv_freq: Frequencies | None = None,
    attention_factor: float | None = None,
    scaling: Mapping[str, Any] | None = None,
    axes: Mapping[str, Any] | None = None,
) -> ExactPlan:
    size, start = operator.index(head_dim), operator.index(rotary_start)
    if rotary_dim is None:
        rotary_dim = size - start if axes is None else 2 * len(axes["coordinates"])
    width = _width(rotary_dim)
    if size < 1 or start < 0 or start + width > size:
        raise ValueError(
            f"the rotated slice [{start}, {start + width}) must be within head_dim, which is {size}"
        )
    blocks = 1 if axes is None else axes.get("blocks", 1)
    source = _pairs(pairing, width, start, blocks)
    target = source if out_pairing is None else _pairs(out_pairing, width, start, blocks)
    amplitude = _amplitude(attention_factor, scaling)
    if axes is None:
        return ExactPlan(size, _omegas(width, base, inv_freq, scaling), amplitude, source, target)
    coordinates = tuple(axes["coordinates"])
    num_pairs = len(coordinates)
    if 2 * num_pairs != width or num_pairs % blocks:
        raise ValueError(f"axes has {num_pairs} pairs and {blocks} blocks for a rotated width of {width}")
    omegas = _omegas_of_axes(width, base, inv_freq, scaling, axes)
    count = axes.get("count") or max((a + 1 for a in coordinates if a is not None), default=1)
    return ExactPlan(size, omegas, amplitude, source, target, tuple(a or 0 for a in coordinates), count)


def _amplitude(attention_factor: float | None, scaling: Mapping[str, Any] | None) -> Decimal:
    if attention_factor is not None:
        return exact(attention_factor)
    with localcontext(REDUCTION):
        return Decimal(1) if scaling is None else _rules.amplitude(scaling)


def _width(rotary_dim: int) -> int:
    width = operator.index(rotary_dim)
    if width < 0 or width % 2:
        raise ValueError(f"the rotated width must be even and 0 or more, got {width}: pairs are rotated")
    return width


def _omegas(
    rotary_dim: int, base: float, inv_freq: Frequencies | None, scaling: Mapping[str, Any] | None = None
) -> tuple[Decimal, ...]:
    if inv_freq is None:
        if scaling is None:
            return frequencies(rotary_dim, base)
        with localcontext(REDUCTION):
            number = _rules.scaled_base(scaling, exact(base), rotary_dim)
            omegas = frequencies(rotary_dim, number)  # type: ignore[arg-type]
            return tuple(_rules.scaled_series(scaling, omegas, number, rotary_dim))
    omegas = tuple(exact(omega) for omega in inv_freq)
    if len(omegas) != rotary_dim // 2:
        raise ValueError(
            f"inv_freq has {len(omegas)} elements; a rotated width of {rotary_dim} needs {rotary_dim // 2}"
        )
    return omegas


def _omegas_of_axes(
    width: int,
    base: float,
    inv_freq: Frequencies | None,
    scaling: Mapping[str, Any] | None,
    axes: Mapping[str, Any],
) -> tuple[Decimal, ...]:
    """Return the frequency of each pair, from the series of its coordinate."""
    coordinates, widths, indices = axes["coordinates"], axes.get("widths"), axes.get("indices")
    if inv_freq is not None:
        omegas = _omegas(width, base, inv_freq)
        return tuple(Decimal(0) if a is None else omega for a, omega in zip(coordinates, omegas, strict=True))

    def omega(i: int, a: int) -> Decimal:
        series = _omegas(width if widths is None else widths[a], base, None, scaling)
        earlier = sum(coordinate == a for coordinate in coordinates[:i])
        return series[indices[i] if indices is not None else i if widths is None else earlier]

    return tuple(Decimal(0) if a is None else omega(i, a) for i, a in enumerate(coordinates))


def _pairs(pairing: str, rotary_dim: int, start: int, blocks: int = 1) -> tuple[Indices, Indices]:
    """Return the indices of the first and of the second element of every pair."""
    if blocks > 1:
        size = rotary_dim // blocks
        block_pairs = [_pairs(pairing, size, start + size * block) for block in range(blocks)]
        first, second = (np.concatenate(members) for members in zip(*block_pairs, strict=True))
        return first, second
    i = np.arange(rotary_dim // 2)
    if pairing == "interleaved":
        return start + 2 * i, start + 2 * i + 1
    if pairing == "half":
        return start + i, start + i + rotary_dim // 2
    raise ValueError(f"pairing must be one of {PAIRINGS}, got {pairing!r}")


# ---- angles ----


def _table(pos: ArrayLike, plan: ExactPlan) -> Floats:
    """Return the table of `table_of`, with each pair's own coordinate if positions have several."""
    table = _table_forwards(pos, plan)
    if plan.backwards:
        table[..., 1::2] *= -1.0  # sin, and its rounding error
    return table


def _table_forwards(pos: ArrayLike, plan: ExactPlan) -> Floats:
    if plan.coordinates is None:
        return table_of(pos, plan.omegas, plan.amplitude)
    array = np.asarray(pos) if hasattr(pos, "__array__") else np.array(pos, dtype=object)
    if array.shape[-1:] != (plan.count,):
        raise ValueError(f"pos of shape {array.shape} needs a last axis of {plan.count} coordinates")
    table = np.zeros((*array.shape[:-1], len(plan.omegas), 4))
    for a in set(plan.coordinates):
        driven = [i for i, coordinate in enumerate(plan.coordinates) if coordinate == a]
        omegas = tuple(plan.omegas[i] for i in driven)
        table[..., driven, :] = table_of(array[..., a], omegas, plan.amplitude)
    return table


# ---- the product ----


def _float64(x: ArrayLike) -> Floats:
    """Return a copy of x in float64, converted exactly."""
    array = np.asarray(x)
    if array.ndim == 0:
        raise ValueError("x must have at least one axis, the elements of a head; got a scalar")
    if not np.can_cast(array.dtype, np.float64, "safe"):
        raise ValueError(f"x must hold real numbers that float64 holds exactly, got {array.dtype}")
    return array.astype(np.float64, order="C")


def _sequence_axis(seq_axis: int, ndim: int) -> int:
    axis = operator.index(seq_axis)
    if not -ndim <= axis < ndim or axis % ndim == ndim - 1:
        raise ValueError(f"seq_axis must name one of x's {ndim} axes but the last, got {axis}")
    return axis


def _line_up(table: Floats, positions: tuple[int, ...], rows: tuple[int, ...]) -> Floats:
    """Return a view of `table`, shape positions + (pairs, 4), that broadcasts with rows + (pairs,)."""
    if not positions:
        return table
    gap = len(rows) - len(positions)
    spread = positions[:-1] + (1,) * gap + positions[-1:]
    if gap < 0 or any(size not in (1, row) for size, row in zip(spread, rows, strict=True)):
        raise ValueError(f"pos of shape {positions} does not line up with x's rows (lead..., S) = {rows}")
    return table.reshape(*spread, *table.shape[-2:])
