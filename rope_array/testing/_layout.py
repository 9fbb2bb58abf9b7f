"""Call code that takes x in another layout with the suite's (b, h, s, d)."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from operator import itemgetter
from typing import Any

from ._libraries import Library

AXES = "bhsd"


def is_layout(layout: str) -> bool:
    """Return whether a layout has distinct axes of b, h, s, d, or 1, among them s, with d last."""
    named = layout.replace("1", "")
    return len(set(named)) == len(named) and set("sd") <= set(named) <= set(AXES) and layout[-1] == "d"


def adapt_layout(rotate: Callable[..., Any], layout: str, lib: Library) -> Callable[..., Any]:
    """Make a callable that takes the axes of `layout` take (b, h, s, d); loop over the missing axes."""
    looped = [axis for axis in (0, 1) if AXES[axis] not in layout]
    named, inner = layout.replace("1", ""), [a for a in AXES if a in layout]
    order = tuple(inner.index(a) for a in named)
    back = tuple(named.index(a) for a in inner)
    # Axes of size 1 are added, and left out of the result.
    added = tuple(None if a == "1" else slice(None) for a in layout)
    left_out = tuple(0 if a == "1" else slice(None) for a in layout)

    def arranged(x: Any) -> Any:
        x = _permute(x, order, lib)
        return x[added] if "1" in layout else x

    def restored(y: Any) -> Any:
        return _permute(y[left_out] if "1" in layout else y, back, lib)

    def permuted(x: Any, pos: Any, **spec: Any) -> Any:
        return _each(restored, rotate(_each(arranged, x), pos, **spec))

    def call(x: Any, pos: Any, **spec: Any) -> Any:
        if not looped:
            return permuted(x, pos, **spec)
        xs = x if isinstance(x, tuple) else (x,)
        if len({tuple(one.shape[axis] for axis in looped) for one in xs}) > 1:  # q and k differ in heads
            return tuple(call(one, pos, **spec) for one in xs)
        parts = [permuted(part, row, **spec) for part, row in _parts(x, pos, looped)]
        if parts and isinstance(parts[0], tuple | list):
            return tuple(stacked(list(of_one), xs[0]) for of_one in zip(*parts, strict=True))
        return stacked(parts, xs[0])

    def stacked(parts: list[Any], x: Any) -> Any:
        if len(looped) == 2:
            heads = x.shape[1]
            parts = [lib.stack(parts[i : i + heads]) for i in range(0, len(parts), heads)]
        y = lib.stack(parts)
        return lib.permute(y, (1, 0, 2, 3)) if looped == [1] else y

    return call


def _each(function: Callable[[Any], Any], x: Any) -> Any:
    """Return the result for an array, or a tuple or list of the results for each array in it."""
    return type(x)(map(function, x)) if isinstance(x, tuple | list) else function(x)


def _permute(x: Any, order: tuple[int, ...], lib: Library) -> Any:
    # Unpermuted results are returned as they are: checks compare their identity and memory.
    return x if order == tuple(range(len(order))) else lib.permute(x, order)


def _parts(x: Any, pos: Any, looped: list[int]) -> Iterator[tuple[Any, Any]]:
    """Yield the parts of x along the looped axes, each with its positions."""
    shape = (x[0] if isinstance(x, tuple) else x).shape
    for place in itertools.product(*(range(shape[axis]) for axis in looped)):
        index: list[Any] = [slice(None)] * 4
        for axis, i in zip(looped, place, strict=True):
            index[axis] = i
        yield _each(itemgetter(tuple(index)), x), _positions_at(pos, looped, place)


def _positions_at(pos: Any, looped: list[int], place: tuple[int, ...]) -> Any:
    """Return the positions for one batch or head of x."""
    index: list[Any] = [slice(None)] * getattr(pos, "ndim", 0)
    for axis, i in zip(looped, place, strict=True):
        if axis < len(index) - 1:
            index[axis] = i if pos.shape[axis] > 1 else 0
    return pos[tuple(index)] if index else pos
