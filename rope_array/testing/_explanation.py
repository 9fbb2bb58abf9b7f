"""Explain the values of a wrong result: unchanged, zeros, another row's, rotated by pos + 1.

Every explanation is compared with all wrong elements; the first that holds names them. An explanation that is
a rotation is compared with other wrong results, too: it may be the cause of all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from rope_array._diagnose._mistakes import FREQUENCIES, POSITIONS, ROUNDERS, TABLES, PositionMistake

from ._where import axis_names, box_of
from ._wrong_result import Floats, Mask, WrongResult

_OTHER_PAIRING = {"half": "interleaved", "interleaved": "half"}
_NOTHING: Mapping[str, Any] = MappingProxyType({})
# The share of the wrong elements that tables in 16 bits give exactly: cos and sin may be rounded before.
_NEARLY_ALL = 0.9
# The distance of numbers of 16 bits near 1.
_UNITS = {"bfloat16": 2.0**-7, "float16": 2.0**-10}


class Explanation(NamedTuple):
    """A possible explanation of wrong results."""

    text: str  # the values, the rotation or the cause in a few words
    # Returns the elements of a wrong result that it explains.
    elements: Callable[[WrongResult], Mask] = lambda wrong: wrong.no_elements
    # A rotation or a cause as data: see `Cause.facts`; empty for other values.
    facts: Mapping[str, Any] = _NOTHING
    claims: Mapping[str, Any] = _NOTHING  # fields of `Target` with which the failures go away
    # Makes a function that calls the code as if it were mended; None if that cannot be done.
    around: Callable[[Callable[..., Any]], Callable[..., Any]] | None = None

    def covers(self, wrong: WrongResult | None) -> bool:
        """Return whether it explains all wrong elements of a result."""
        if wrong is None:
            return False
        name = named(wrong)
        return (name is not None and name.text == self.text) or wrong.is_all(self.elements(wrong))


def named(wrong: WrongResult) -> Explanation | None:
    """Return the explanation of the values of the wrong elements, if they have a name."""
    if wrong.named is False:
        explanations = (each for each in _explanations(wrong) if wrong.is_all(each.elements(wrong)))
        first = next(explanations, None)
        if first is not None and first.facts and not first.elements(wrong).all():
            # Another rotation may hold for the right elements, too: |pos|, not the inverse.
            whole = (each for each in explanations if each.facts and each.elements(wrong).all())
            first = next(whole, first)
        wrong.named = first
    explanation: Explanation | None = wrong.named
    return explanation


def describe_values(wrong: WrongResult) -> tuple[str, Mask | None]:
    """Return a phrase on the values of the wrong elements, and a mask of all elements like them."""
    if (explanation := named(wrong)) is None:
        return "", None
    alike = explanation.elements(wrong)
    return explanation.text, alike if explanation in _SIMPLE else alike & box_of(wrong.mask)


# ---- values ----

_SIMPLE = (
    Explanation("NaN", lambda wrong: np.isnan(wrong.y)),
    Explanation("infinite", lambda wrong: np.isinf(wrong.y)),
    Explanation("equal to x, unchanged", lambda wrong: wrong.y == wrong.x),
    Explanation("zeros", lambda wrong: wrong.y == 0),
)


def _explanations(wrong: WrongResult) -> Iterator[Explanation]:
    """Yield names of values: of any element; multiples; right values of other places; other rotations."""
    yield from _SIMPLE
    if _is_telling(wrong):
        yield from _scaled(wrong)
        yield from _moved(wrong)
        if wrong.row_positions is not None:
            yield from _rotations(wrong)


def _is_telling(wrong: WrongResult) -> bool:
    """Return whether the errors are so many, and so large, that no other value is near by chance."""
    with np.errstate(all="ignore"):
        errors = (np.abs(wrong.y - wrong.exact) / wrong.bound)[wrong.mask]
    return bool((errors > 32).sum() >= 4)


def _scaled(wrong: WrongResult) -> Iterator[Explanation]:
    """Yield a factor between the result and the right result."""
    with np.errstate(all="ignore"):
        factor = float(np.median(wrong.y[wrong.mask] / wrong.exact[wrong.mask]))
    if np.isfinite(factor) and 1e-6 < abs(factor) < 1e6 and factor != 1:
        text = f"{factor:.4g} times the right values"
        text = "the right values negated" if abs(factor + 1) < 1e-6 else text
        yield _with_values(text, factor * wrong.exact, abs(factor) * wrong.limit)


def _moved(wrong: WrongResult) -> Iterator[Explanation]:
    """Yield right values at another place: of the other member, another head or another row."""
    a, b = wrong.pairs
    swapped = wrong.exact.copy()
    swapped[..., a], swapped[..., b] = wrong.exact[..., b], wrong.exact[..., a]
    yield _with_values("the first and second members exchanged", swapped, wrong.limit)
    for axis, name in enumerate(axis_names(wrong.x.ndim)[:-1]):
        if wrong.x.shape[axis] > 1:
            for shift, which in ((1, "previous"), (-1, "next")):
                rolled = [np.roll(array, shift, axis) for array in (wrong.exact, wrong.limit)]
                yield _with_values(f"the result of the {which} {name}", *rolled)
            first = [array.take([0], axis) for array in (wrong.exact, wrong.limit)]
            yield _with_values(f"the result of {name} 0", *first)


def _with_values(text: str, values: Floats, limit: Floats) -> Explanation:
    return Explanation(text, lambda wrong: wrong.near(values, limit))


# ---- other rotations ----


def _rotations(wrong: WrongResult) -> Iterator[Explanation]:
    """Yield the rotations that a call may be: another direction, other positions, frequencies or fields."""
    inverse = "rotated forward, not by the inverse" if wrong.inverse else "rotated by the inverse"
    yield Explanation(inverse, lambda wrong: wrong.rotated_by(inverse=not wrong.inverse), {"inverse": True})
    yield from map(by_positions, POSITIONS)
    yield from map(_by_frequencies, FREQUENCIES)
    for name, value in wrong.fields.items():
        if name == "pairing":
            yield _by_field(f"with {_OTHER_PAIRING.get(value, value)} pairing", name)
        elif value is not None and not (name == "base" and value == 10000.0):
            yield _by_field(f"as without {name}", name)
    yield Explanation("rotated by cos and sin exchanged", _by_exchanged_tables, {"exchanged": "cos and sin"})
    yield from (_by_tables(dtype, quantity) for dtype in ROUNDERS for quantity in TABLES)


def by_positions(mistake: PositionMistake) -> Explanation:
    """Return the rotation by other positions."""

    def elements(wrong: WrongResult) -> Mask:
        pos = wrong.row_positions
        other = None if pos is None else mistake.convert(pos)
        if pos is None or other is None or np.array_equal(other, pos):
            return wrong.no_elements
        return wrong.rotated_by(other)

    return Explanation(f"rotated by {mistake.text}", elements, {"positions": mistake.text})


def _by_frequencies(name: str) -> Explanation:
    """Return the rotation by a series of other frequencies."""

    def elements(wrong: WrongResult) -> Mask:
        float32 = wrong.accuracy._replace(angles="float32")
        others = ("inv_freq", "scaling", "axes")
        if any(wrong.fields.get(field) is not None for field in others) or wrong.is_all(
            wrong.within(float32)
        ):
            return wrong.no_elements
        base, n = wrong.fields.get("base") or 10000.0, len(wrong.pairs[0])
        omegas = FREQUENCIES[name](base, n)
        if np.allclose(omegas, base ** (-np.arange(n) / n), rtol=1e-6):  # a single pair, whose frequency is 1
            return wrong.no_elements
        # The frequencies may be float32 numbers: allow the error of float32 angles.
        return wrong.rotated_by(limit=2 * wrong.bound_of(float32), base=None, inv_freq=tuple(omegas.tolist()))

    return Explanation(f"rotated with {name}", elements, {"frequencies": name})


def _by_field(text: str, name: str) -> Explanation:
    """Return the rotation by the other pairing, or without another field."""

    def elements(wrong: WrongResult) -> Mask:
        if name == "pairing":
            return wrong.rotated_by(pairing=_OTHER_PAIRING.get(wrong.fields.get(name, ""), "half"))
        stated = wrong.fields.get(name) is not None
        return wrong.rotated_by(**{name: None}) if stated else wrong.no_elements

    return Explanation(f"rotated {text}", elements, {"field": name})


def _tables_of(wrong: WrongResult) -> dict[str, Floats]:
    """Return the right cos and sin, as x and the right result have them; not finite where x is 0."""
    a, b = wrong.pairs
    (xa, xb), (ya, yb) = ((array[..., a], array[..., b]) for array in (wrong.x, wrong.exact))
    with np.errstate(all="ignore"):
        squares = xa**2 + xb**2
        return {"cos": (xa * ya + xb * yb) / squares, "sin": (xa * yb - xb * ya) / squares}


def _rotated(wrong: WrongResult, cos: Floats, sin: Floats) -> Floats:
    a, b = wrong.pairs
    rotated, xa, xb = wrong.exact.copy(), wrong.x[..., a], wrong.x[..., b]
    rotated[..., a], rotated[..., b] = cos * xa - sin * xb, cos * xb + sin * xa
    return rotated


def _by_exchanged_tables(wrong: WrongResult) -> Mask:
    tables = _tables_of(wrong)
    # The tables are known to a few units of float64.
    return wrong.near(_rotated(wrong, tables["sin"], tables["cos"]), 4 * wrong.limit)


def _by_tables(dtype: str, quantity: str) -> Explanation:
    """Return the rotation by cos, sin or both in 16 bits, and by products in a wider dtype."""

    def elements(wrong: WrongResult) -> Mask:
        a, b = wrong.pairs
        tables = _tables_of(wrong)
        if (
            wrong.fields.get("out_pairing")
            or wrong.dtype == dtype
            or not np.isfinite([*tables.values()]).all()
        ):
            return wrong.no_elements
        cos, sin = (ROUNDERS[dtype](t) if name in quantity else t for name, t in tables.items())
        rotated, unit = _rotated(wrong, cos, sin), wrong.limit.copy()
        if wrong.near(rotated, wrong.limit)[wrong.mask].mean() < _NEARLY_ALL:
            return wrong.no_elements
        # A table that is rounded twice may hold the next number of 16 bits.
        unit[..., a] = unit[..., b] = wrong.limit[..., a] + _UNITS[dtype] * np.hypot(
            wrong.x[..., a], wrong.x[..., b]
        )
        return wrong.near(rotated, unit)

    return Explanation(
        f"rotated by {quantity} rounded to {dtype}", elements, {"rounded": quantity, "to": dtype}
    )
