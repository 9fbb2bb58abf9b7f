"""Name the values of a wrong result: unchanged, zeros, another row's, rotated by pos + 1.

Every name is compared with all wrong elements; the first that holds is given. A name that is a rotation can
be compared with other wrong results, too: it may be the cause of all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ._wrong_places import axis_names, box_of
from ._wrong_result import Floats, Mask, WrongResult, rotated_by

_OTHER_PAIRING = {"half": "interleaved", "interleaved": "half"}


class Likeness(NamedTuple):
    """Values that the wrong elements have.

    Attributes
    ----------
    text
        The values in words.
    elements
        Returns the elements of a wrong result that have them.
    facts
        The positions, field or direction of another rotation, as data; None for other values.
    """

    text: str
    elements: Callable[[WrongResult], Mask]
    facts: Mapping[str, Any] | None = None


def likeness_of(wrong: WrongResult) -> Likeness | None:
    """Return the values of the wrong elements, if they have a name."""
    if "likeness" not in wrong.cache:
        names = (likeness for likeness in _likenesses(wrong) if wrong.is_all(likeness.elements(wrong)))
        first = next(names, None)
        if first is not None and first.facts is not None and not first.elements(wrong).all():
            # Another rotation may hold for the right elements, too: |pos|, not the inverse.
            first = next(
                (likeness for likeness in names if likeness.facts and likeness.elements(wrong).all()), first
            )
        wrong.cache["likeness"] = first
    likeness: Likeness | None = wrong.cache["likeness"]
    return likeness


def describe_values(wrong: WrongResult) -> tuple[str, Mask | None]:
    """Return a phrase on the values of the wrong elements, and a mask of all elements like them."""
    likeness = likeness_of(wrong)
    if likeness is None:
        return "", None
    like_wrong = likeness.elements(wrong)
    return likeness.text, like_wrong if likeness in SIMPLE else like_wrong & box_of(wrong.mask)


# ---- values ----

SIMPLE = (
    Likeness("NaN", lambda wrong: np.isnan(wrong.y)),
    Likeness("infinite", lambda wrong: np.isinf(wrong.y)),
    Likeness("equal to x, unchanged", lambda wrong: wrong.y == wrong.x),
    Likeness("zeros", lambda wrong: wrong.y == 0),
)


def _likenesses(wrong: WrongResult) -> Iterator[Likeness]:
    """Yield names of values: of any element; multiples; right values of other places; other rotations."""
    yield from SIMPLE
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


def _scaled(wrong: WrongResult) -> Iterator[Likeness]:
    """Yield a factor between the result and the right result."""
    with np.errstate(all="ignore"):
        ratios = wrong.y[wrong.mask] / wrong.exact[wrong.mask]
    factor = float(np.median(ratios))
    if np.isfinite(factor) and 1e-6 < abs(factor) < 1e6 and factor != 1:
        text = f"{factor:.4g} times the right values"
        text = "the right values negated" if abs(factor + 1) < 1e-6 else text
        yield Likeness(text, lambda wrong: wrong.near(factor * wrong.exact, abs(factor) * wrong.limit))


def _moved(wrong: WrongResult) -> Iterator[Likeness]:
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


def _with_values(text: str, values: Floats, limit: Floats) -> Likeness:
    return Likeness(text, lambda wrong: wrong.near(values, limit))


# ---- other rotations ----


def _rotations(wrong: WrongResult) -> Iterator[Likeness]:
    """Yield the rotations by other positions or fields, or in the other direction, that a call may be."""
    yield OTHER_DIRECTION._replace(
        text="rotated forward, not by the inverse" if wrong.inverse else "rotated by the inverse"
    )
    pos = wrong.row_positions
    for text, convert in _POSITIONS.items():
        if pos is not None and (converted := convert(pos)) is not None and not np.array_equal(converted, pos):
            yield by_positions(text)
    for name, value in wrong.fields.items():
        if name == "pairing":
            yield with_fields(f"with {_OTHER_PAIRING.get(value, value)} pairing", name)
        elif value is not None and not (name == "base" and value == 10000.0):
            yield with_fields(f"as without {name}", name)


def by_positions(text: str) -> Likeness:
    """Return the rotation by other positions, which a key of `_POSITIONS` names."""
    return Likeness(
        f"rotated by {text}", lambda wrong: rotated_by(wrong, pos=_POSITIONS[text]), {"positions": text}
    )


def with_fields(text: str, name: str) -> Likeness:
    """Return the rotation by the other pairing, or without another field."""

    def elements(wrong: WrongResult) -> Mask:
        fields = {key: value for key, value in wrong.fields.items() if key != name}
        if name == "pairing":
            fields[name] = _OTHER_PAIRING.get(wrong.fields.get(name, ""), "half")
        elif wrong.fields.get(name) is None:
            return np.zeros(wrong.mask.shape, bool)
        return rotated_by(wrong, fields=fields)

    return Likeness(f"rotated {text}", elements, {"field": name})


def _converted_to(dtype: str) -> Callable[[NDArray[Any]], NDArray[Any] | None]:
    """Return a function that converts positions to another dtype, and back."""

    def convert(pos: NDArray[Any]) -> NDArray[Any] | None:
        with np.errstate(all="ignore"):
            rounded = pos.astype(dtype)
        return rounded.astype(pos.dtype) if np.isfinite(rounded.astype(np.float64)).all() else None

    return convert


def _of_rows(convert: Callable[[NDArray[Any]], Any]) -> Callable[[NDArray[Any]], NDArray[Any] | None]:
    """Return a function of positions; its result is None if all rows have one position."""
    return lambda pos: np.broadcast_to(convert(pos), pos.shape) if pos.ndim and pos.shape[-1] > 1 else None


def _of_axis(
    axis: int, ndim: int, convert: Callable[[NDArray[Any]], Any]
) -> Callable[..., NDArray[Any] | None]:
    """Return a function of positions; its result is None without several batches or heads."""

    def moved(pos: NDArray[Any]) -> NDArray[Any] | None:
        if (
            pos.ndim < ndim
            or pos.shape[axis] < 2
            or (converted := convert(pos)).shape[-1] not in (1, pos.shape[-1])
        ):
            return None
        return np.broadcast_to(converted, pos.shape) if converted.ndim == pos.ndim else None

    return moved


# Other positions that code may use, by their name.
_POSITIONS: dict[str, Callable[[NDArray[Any]], NDArray[Any] | None]] = {
    "pos + 1": lambda pos: pos + 1,
    "pos - 1": lambda pos: pos - 1,
    "the row's index": _of_rows(lambda pos: np.arange(pos.shape[-1])),
    "the position of row 0": _of_rows(lambda pos: pos[..., :1]),
    "the position of row 0 plus the row's index": _of_rows(
        lambda pos: pos[..., :1] + np.arange(pos.shape[-1])
    ),
    "the position of the next row": _of_rows(lambda pos: np.roll(pos, -1, -1)),
    "the position of the previous row": _of_rows(lambda pos: np.roll(pos, 1, -1)),
    "sorted positions": _of_rows(lambda pos: np.sort(pos, -1)),
    "the positions of batch 0": _of_axis(0, 2, lambda pos: pos[:1]),
    "positions that run along the batch axis": _of_axis(0, 2, lambda pos: np.swapaxes(pos, 0, -1)),
    "the positions of head 0": _of_axis(1, 3, lambda pos: pos[:, :1]),
    "positions that run along the head axis": _of_axis(1, 3, lambda pos: np.swapaxes(pos, 1, -1)),
    "|pos|": np.abs,
    "-|pos|": lambda pos: -np.abs(pos),
    "pos without its fraction": lambda pos: np.trunc(pos) if pos.dtype.kind == "f" else None,
    "pos modulo 2^24": lambda pos: pos % 2**24,
    **{
        f"pos converted to {dtype}": _converted_to(dtype)
        for dtype in ("float32", "float16", "int32", "uint16", "int16", "uint8", "int8")
    },
}


OTHER_DIRECTION = Likeness(
    "rotated by the inverse", lambda wrong: rotated_by(wrong, inverse=not wrong.inverse), {"inverse": True}
)
