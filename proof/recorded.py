"""The arithmetic of rope_array/_array_api/angles.py and pairs.py, recorded by running the functions."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, NamedTuple

from rope_array._array_api import angles, pairs
from rope_array._array_api.ops import ArrayOps

from .expressions import Integer, ProofError, Real, leaf

# Of a compute dtype: the bits of a phase, and of the fixed-point frequency.
PHASE_BITS = {"float32": 32, "float64": 64}
WORD_BITS = {"float32": 64, "float64": 96}


class Remainder(NamedTuple):
    """The rest of a phase in eighths of a turn: an integer times `unit`, cast to floating point.

    Attributes
    ----------
    lowest, highest
        The ends of the integer.
    unit
        A power of two.
    """

    lowest: int
    highest: int
    unit: float


class Tables(NamedTuple):
    """cos and sin of u eighths of a turn."""

    cos: Real
    sin: Real


def cast(array: Any, dtype: str) -> Any:
    if isinstance(array, float):
        return array
    if isinstance(array, Integer) and dtype.startswith("int"):
        return array
    return Real("cast", dtype, array)


def _where(condition: bool, one: Any, other: Any) -> Any:
    return one if condition else other


XP = SimpleNamespace(
    float32="float32",
    float64="float64",
    int32="int32",
    int64="int64",
    astype=cast,
    where=_where,
    round=lambda u: Real("round", u.dtype, u),
)


class _Ops(ArrayOps):
    """The operations that are recorded; those that the arithmetic starts to use are inherited."""

    needs_equal_ndim = False
    cast = staticmethod(cast)

    def constants(self, numbers: Any, dtype: Any) -> Any:
        return cast(leaf(numbers, "float64"), dtype)


OPS = _Ops(XP, True, {})


def remainder(dtype: str) -> Remainder:
    """Return the rest of a phase that `_quadrant` splits, checked to be an angle from the nearest axis."""
    bits = PHASE_BITS[dtype]
    quadrant, u = angles._quadrant(Integer({"phase": 1}), dtype == "float64", dtype, OPS)
    (quarter,) = quadrant.factors
    cast_rest, unit = _scaled(u)
    rest = cast_rest.operands[0]
    # u = phase·2^-(bits - 3) - 2·quadrant: a turn has eight eighths and four quadrants.
    if rest.constant or rest.factors != {"phase": 1, quarter: -round(2 / unit)} or unit != 2.0 ** (3 - bits):
        raise ProofError(f"the rest of a phase is no angle from an axis: {rest.factors}, unit {unit}")
    if quadrant.constant or quadrant.factors != {quarter: 1}:
        raise ProofError(f"the quadrant is {quadrant.factors}")
    return Remainder(rest.ends[0], rest.ends[1], unit)


def _scaled(u: Real) -> tuple[Real, float]:
    """Return the factors of u: the cast integer, and a power of two."""
    if u.op != "mul" or u.operands[0].op != "cast" or u.operands[1].op != "constant":
        raise ProofError("the rest of a phase is not cast and multiplied by its unit")
    return u.operands[0], u.operands[1].operands[0]


def tables(dtype: str) -> Tables:
    """Return cos and sin of u, checked to be rotated by quadrants."""
    u = leaf("u", dtype)
    if dtype == "float64":
        cos, sin = angles.polynomials64(u, angles.COS_64, angles.SIN_64)
    else:
        cos, sin = angles.polynomials32(u)
    c, s = leaf("cos", dtype), leaf("sin", dtype)
    for quadrant in range(-8, 8):
        rotated = [_sign(table) for table in angles.rotate_quadrants(quadrant, c, s, dtype, OPS)]
        exact = [[(c, 1), (s, 1)], [(s, -1), (c, 1)], [(c, -1), (s, -1)], [(s, 1), (c, -1)]][quadrant % 4]
        if rotated != exact:
            raise ProofError(f"cos and sin of quadrant {quadrant} are wrong")
    return Tables(cos, sin)


def _sign(table: Real) -> tuple[Real, float]:
    value, sign = table.operands
    return value, sign.operands[0]


_NONE = SimpleNamespace(values=())  # the frequencies of a plan to which an array's are added


class _Quadrant:
    """A quadrant that records each number added to it."""

    dtype = "int64"

    def __add__(self, other: Any) -> Any:
        self.added = other


def sum_with_fraction(dtype: str, of_array: bool) -> Real:
    """Return u plus the angle of a fraction of a position, checked to be reduced to the nearest axis.

    The frequencies are a plan's, or `of_array` those of an array of `dtype`.
    """
    quadrant = _Quadrant()
    plan: Any = SimpleNamespace(eighth_turns="eighth_turns", frequencies=_NONE)
    array = leaf("inv_freq", dtype) if of_array else None
    term: Any = angles.Term(None, leaf("fraction", "float64"), None, plan, array)
    u = leaf("u", dtype)
    rest: Real
    _, rest = angles._add_fractions(quadrant, u, [term], dtype, OPS)
    total: Real = rest.operands[0]
    # rest = total - 2·q and quadrant + q, for q = round(total / 2). The products by powers of two and the
    # difference are exact: |rest| <= 1, and rest is a multiple of total's last bit.
    q = Real("round", dtype, total * 0.5)
    if rest.key() != (total - 2.0 * q).key() or quadrant.added.key() != Real("cast", "int64", q).key():
        raise ProofError("the sum with a fraction is not reduced to the nearest axis")
    return total


def amplified(dtype: str) -> Tables:
    """Return tables times an amplitude, a float64 of the host."""
    amplitude = cast(leaf("amplitude", "float64"), dtype) if dtype != "float64" else leaf("amplitude", dtype)
    return Tables(*angles._amplified(leaf("cos", dtype), leaf("sin", dtype), amplitude, dtype, OPS))


class _Features:
    """The last axis of x: a slice is one member of each pair."""

    def __init__(self, dtype: str):
        self.dtype = dtype
        self.members = {
            index: leaf(name, dtype)
            for name, indices in {
                "a": (slice(None, 1), slice(None, None, 2)),
                "b": (slice(1, None), slice(1, None, 2)),
            }.items()
            for index in map(repr, indices)
        }

    def __getitem__(self, index: Any) -> Real:
        return self.members[repr(index[-1])]


def rotated(dtype: str, out: str, pairing: str) -> list[Real]:
    """Return both members of a rotated pair of dtype `out`, computed in `dtype`."""
    layout: Any = SimpleNamespace(pairing=pairing, out_pairing="half", num_pairs=1, blocks=1)
    return pairs._rotate_block(_Features(out), leaf("cos", dtype), leaf("sin", dtype), layout, OPS)
