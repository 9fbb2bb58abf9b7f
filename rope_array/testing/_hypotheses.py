"""Hypotheses on the cause of failures, made from the wrong results that were kept.

A hypothesis explains elements of wrong results: by the values that they have, by their place, or by a weaker
class of accuracy. `_causes` accepts the one that explains most checks, and judges what remains again.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from ._contract import Accuracy, is_within
from ._own import OwnApply
from ._verdict import Fault
from ._where import axis_names, describe
from ._wrong import Likeness, Mask, Wrong

_NOTHING: Mapping[str, Any] = MappingProxyType({})
# Weaker classes of angles, and the last positions that a claim may leave, the furthest first.
_WEAKER = {"exact": ("float64", "float32"), "float64": ("float32",), "float32": ()}
_ENDS = (2**24, 2**20, 65535, 32767, 4095)
# The definition is judged up to here.
_LEAST_END = 600
# Rows up to this position show the frequency of a pair; angles in radians that count as none.
_FURTHEST, _TOLERANCE = 4096, 5e-3
# The share of the elements at a place that have to be wrong.
_SHARE = 0.9


class Hypothesis(NamedTuple):
    """A possible cause.

    Attributes
    ----------
    text
        The cause in a few words.
    facts
        The same as data: see `Cause.facts`.
    elements
        Returns the elements of a wrong result that it explains; None if it explains no values.
    claims
        Fields of `Target` with which the failures go away.
    around
        Makes a function that calls the code as if it were mended; None if that cannot be done.
    """

    text: str
    facts: Mapping[str, Any] = _NOTHING
    elements: Callable[[Wrong], Mask] | None = None
    claims: Mapping[str, Any] = _NOTHING
    around: Callable[[Callable[..., Any]], Callable[..., Any]] | None = None

    @property
    def is_claimed(self) -> bool:
        """Whether claims replace what it explains: a class of accuracy."""
        return bool({"angles", "arithmetic", "furthest"} & {*self.claims})

    def shown_claims(self, target: Any) -> Mapping[str, Any]:
        """Return the claims that a user may make: none for a library, which has all, and none to write x."""
        hidden = isinstance(target.rotate, OwnApply) or "written" in self.facts
        return {} if hidden else self.claims

    def explains(self, fault: Fault) -> bool:
        """Return whether it explains all wrong elements of a fault."""
        wrong = fault.wrong
        if wrong is None or self.elements is None:
            return False
        place = self.elements(wrong)
        if "axis" in self.facts and not (place.any() and wrong.mask[place].mean() >= _SHARE):
            return False
        return wrong.is_all(place) or _has(wrong, self.text)


def _has(wrong: Wrong, text: str) -> bool:
    """Return whether a name was found for all values of a result, of which some are kept only."""
    return wrong.places is not None and wrong.likeness is not None and wrong.likeness.text == text


def together(some: Sequence[Hypothesis]) -> Hypothesis:
    """Return several causes that are known together as one."""
    claims: dict[str, Any] = {}
    for one in some:
        claims = merged(claims, one.claims)
    facts = {name: value for one in some for name, value in one.facts.items()}
    around = [one.around for one in some if one.around]
    elements = [one.elements for one in some if one.elements]
    return Hypothesis(
        ", ".join(one.text for one in some), facts, elements[-1] if elements else None, claims,
        around[-1] if around else None,
    )  # fmt: skip


def merged(claims: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """Return claims with more claims; the mappings `fixed` and `lacks` are joined."""
    joined = {name: {**claims.get(name, {}), **more[name]} for name in ("fixed", "lacks") if name in more}
    return {**claims, **more, **joined}


def of_kept_results(faults: Mapping[str, Fault]) -> Iterator[Hypothesis]:
    """Yield the hypotheses that wrong results suggest, the most telling first; each once."""
    found: dict[str, Hypothesis] = {}
    for make in (_by_values, _by_pairs, _by_place):
        for wrong in (fault.wrong for fault in faults.values() if fault.wrong is not None):
            for one in make(wrong):
                found.setdefault(one.text, one)
    yield from found.values()


# ---- values ----


def _by_values(wrong: Wrong) -> Iterator[Hypothesis]:
    """Yield another rotation: by converted positions, without a field, in the other direction."""
    if (like := wrong.likeness) is not None and like.facts is not None:
        yield of_likeness(like)


def of_likeness(like: Likeness) -> Hypothesis:
    """Return the hypothesis that results are another rotation."""
    return Hypothesis(like.text, like.facts or _NOTHING, like.elements)


# ---- places ----


def _by_place(wrong: Wrong) -> Iterator[Hypothesis]:
    """Yield the place of wrong elements: from an index of an axis on; some features."""
    names = axis_names(wrong.mask.ndim)
    for axis, name in enumerate(names[:-1] if len(names) <= 4 else ()):
        at = np.flatnonzero(_along(wrong.mask, axis))
        first = int(wrong.places_along(axis)[at[0]])
        yield from _exact(wrong, _from(name, first, names[-1]), first)
    features = np.flatnonzero(_along(wrong.mask, -1))
    width, first, last = wrong.mask.shape[-1], int(features[0]), int(features[-1])
    if last == width - 1 and first:
        yield from _exact(wrong, _last_features(width - first), first)
        yield from _exact(wrong, _from("feature", first, names[-1]), first)


def _exact(wrong: Wrong, one: Hypothesis, first: int) -> Iterator[Hypothesis]:
    """Yield a place if it begins after the first index, and nearly all elements there are wrong."""
    if first and one.explains(Fault("", wrong)):
        like = wrong.likeness
        values = like.text if like is not None and like.facts is None else ""
        yield one._replace(text=f"wrong results in {one.text}{f': {values}' if values else ''}")


def _from(name: str, first: int, feature: str) -> Hypothesis:
    def elements(wrong: Wrong) -> Mask:
        mask, names = np.zeros(wrong.mask.shape, bool), axis_names(wrong.mask.ndim)
        if name in names:
            axis = names.index(name)
            np.moveaxis(mask, axis, 0)[wrong.places_along(axis) >= first] = True
        return mask

    plural = "batches" if name == "batch" else f"{name}s"
    text = f"{plural} after the first" if first == 1 else f"{plural} from {first:,} on"
    return Hypothesis(text, {"axis": name, "first": first}, elements)


def _last_features(count: int) -> Hypothesis:
    def elements(wrong: Wrong) -> Mask:
        mask = np.zeros(wrong.mask.shape, bool)
        mask[..., -count:] = True
        return mask

    return Hypothesis(f"the last {count} features", {"axis": "feature", "last": count}, elements)


def _along(mask: Mask, axis: int) -> Mask:
    others = tuple(i for i in range(mask.ndim) if i != axis % mask.ndim)
    return np.asarray(mask.any(axis=others))


# ---- frequencies of some pairs ----


def _by_pairs(wrong: Wrong) -> Iterator[Hypothesis]:
    """Yield the pairs of other frequencies: at this number of pairs, or at any."""
    a, b = wrong.pairs
    pairs = np.flatnonzero(_along(wrong.mask[..., a] | wrong.mask[..., b], -1)).tolist()
    count = len(a)
    if not 0 < len(pairs) < count or not wrong.is_all(_of_length(wrong)):
        return
    if not all(_has_frequency(wrong, pair) for pair in pairs):
        return
    yield _frequencies(tuple(pairs), count)
    if pairs == [*range(pairs[0], count)]:
        yield _frequencies((pairs[0], None), None)
        yield _frequencies((pairs[0] - count, None), None)


def _of_length(wrong: Wrong) -> Mask:
    """Return the members of pairs that have their right length."""
    a, b = wrong.pairs
    with np.errstate(all="ignore"):
        off = np.hypot(wrong.y[..., a], wrong.y[..., b]) - np.hypot(wrong.exact[..., a], wrong.exact[..., b])
        kept = np.abs(off) <= wrong.limit[..., a]
    mask = np.zeros(wrong.mask.shape, bool)
    mask[..., a] = mask[..., b] = kept
    return mask


def _has_frequency(wrong: Wrong, pair: int) -> bool:
    """Return whether a pair is rotated by one other frequency: the angles are off by multiples of pos."""
    a, b = (member[pair] for member in wrong.pairs)
    y, exact = (one[..., a] + 1j * one[..., b] for one in (wrong.y, wrong.exact))
    if wrong.row_positions is None:
        return False
    near = wrong.mask[..., a] & (np.abs(wrong.row_positions) <= _FURTHEST) & (wrong.row_positions != 0)
    pos, off = wrong.row_positions[near].astype(float), (y * exact.conj())[near]
    if len(np.unique(pos)) < 2 or np.abs(np.angle(off)).max() < _TOLERANCE:
        return False
    first = int(np.argmin(np.abs(pos)))
    turns = np.arange(-int(np.abs(pos[first])) // 2 - 1, int(np.abs(pos[first])) // 2 + 2)
    tried = (np.angle(off[first]) + 2 * np.pi * turns) / pos[first]
    left = np.abs(np.angle(off * np.exp(-1j * pos * tried[:, None]))).max(axis=-1)
    return bool(left.min() < _TOLERANCE)


def _frequencies(pairs: tuple[int | None, ...], count: int | None) -> Hypothesis:
    """Return the hypothesis that pairs have other frequencies, if there are `count` pairs, or any number.

    Negative numbers count from the last pair; None is all from the one before on.
    """
    first = pairs[0] or 0

    def elements(wrong: Wrong) -> Mask:
        a, b = (np.asarray(member) for member in wrong.pairs)
        mask, index = np.zeros(wrong.mask.shape, bool), np.arange(len(a))
        if count in (None, len(a)):
            start = first + len(a) if first < 0 else first
            chosen = index >= start if count is None else np.isin(index, pairs)
            mask[..., a[chosen]] = mask[..., b[chosen]] = True
        return mask & _of_length(wrong)

    return Hypothesis(_pairs_text(pairs, count), {"pairs": pairs, "num_pairs": count}, elements)


def _pairs_text(pairs: tuple[Any, ...], count: int | None) -> str:
    if count is not None:
        text = describe(np.isin(np.arange(count), pairs)[None]).replace("feature", "pair") + f" of {count}"
        return f"{text} {'has another frequency' if len(pairs) == 1 else 'have other frequencies'}"
    text = f"pairs from {pairs[0]} on" if pairs[0] >= 0 else f"the last {-pairs[0]} pairs"
    return "the last pair has another frequency" if pairs[0] == -1 else f"{text} have other frequencies"


# ---- accuracy ----


def of_accuracy(target: Any, faults: Mapping[str, Fault]) -> Iterator[Hypothesis]:
    """Yield weaker classes of accuracy, alone, together, and with fewer positions."""
    angles = [{"angles": name} for name in _WEAKER[target.angles]]
    own = [{"arithmetic": "own"}] if target.arithmetic != "own" else []
    classes: list[dict[str, Any]] = [*angles, *own, *({**one, **other} for one in angles for other in own)]
    # A class that explains no result of the usual dtype alone is no cause: float64 may be narrowed.
    usual = [fault for fault in faults.values() if fault.wrong is not None
             and (fault.wrong.dtype != "float64" or target.claimed.isdisjoint(("float32", "float16")))]  # fmt: skip
    classes = [one for one in classes if any(map(_class(target, one).explains, usual))]
    yield from (_class(target, one) for one in classes)
    if "definition" in faults:
        return
    last = min((_last_right(fault) for fault in faults.values()), default=0)
    # The error of float32 angles grows: a round end, as the position where it is too large depends on x.
    ends = {*_ENDS, *([] if target.angles == "float32" else [last])} - {*range(_LEAST_END)}
    for end in sorted(ends, reverse=True):
        for one in (_class(target, {**claims, "furthest": end}) for claims in (*classes, {})):
            if end < target.reach and any(map(one.explains, usual)):
                yield one


def _last_right(fault: Fault) -> int:
    """Return the position before the first wrong one; the furthest if that is not known."""
    wrong = fault.wrong
    if wrong is None or wrong.row_positions is None:
        return _ENDS[0]
    return int(np.abs(wrong.row_positions[wrong.mask.any(axis=-1)]).min()) - 1


def _class(target: Any, claims: Mapping[str, Any]) -> Hypothesis:
    def elements(wrong: Wrong) -> Mask:
        given = wrong.accuracy or Accuracy()
        names = [name for name in ("angles", "arithmetic") if name in claims]
        weaker = given._replace(**{name: claims[name] for name in names})
        mask = np.zeros(wrong.mask.shape, bool) if weaker == given else _is_within(wrong, weaker)
        return mask | _beyond(wrong, claims["furthest"]) if "furthest" in claims else mask

    return Hypothesis(", ".join(class_texts(claims)), dict(claims), elements, claims)


def _is_within(wrong: Wrong, accuracy: Accuracy) -> Mask:
    """Return the elements within a class of accuracy; once for each class, as many ends are tried."""
    known: dict[Accuracy, Mask] = vars(wrong).setdefault("_within", {})
    if accuracy not in known:
        known[accuracy] = is_within(wrong, accuracy)
    return known[accuracy]


def _beyond(wrong: Wrong, end: int) -> Mask:
    """Return the rows beyond a position, if nearly all of them have wrong elements, or by float32 angles."""
    rows = np.zeros(wrong.mask.shape[:-1], bool)
    if wrong.row_positions is not None:
        beyond = np.abs(wrong.row_positions) > end
        share = 0.0 if wrong.accuracy and wrong.accuracy.angles == "float32" else _SHARE
        rows = beyond if beyond.any() and wrong.mask.any(axis=-1)[beyond].mean() >= share else rows
    return np.broadcast_to(rows[..., None], wrong.mask.shape)


def class_texts(claims: Mapping[str, Any]) -> list[str]:
    """Return the texts of a class of accuracy; float32 angles are known to have an end."""
    texts = {
        "angles": "{} angles",
        "arithmetic": "16-bit numbers rotated in their own dtype",
        "furthest": "wrong results beyond position {:,}",
    }
    return [
        text.format(claims[name])
        for name, text in texts.items()
        if name in claims and not (name == "furthest" and "angles" in claims)
    ]


# ---- changes of calls ----


def casting(rotate: Callable[..., Any]) -> Callable[..., Any]:
    """Return code whose result is converted to the dtype of x."""

    @functools.wraps(rotate)
    def call(x: Any, *arguments: Any, **spec: Any) -> Any:
        y = rotate(x, *arguments, **spec)
        return tuple(map(_cast, y, x)) if isinstance(y, tuple) and isinstance(x, tuple) else _cast(y, x)

    return call


def _cast(y: Any, x: Any) -> Any:
    return y.astype(x.dtype) if hasattr(y, "astype") else y.to(x.dtype)
