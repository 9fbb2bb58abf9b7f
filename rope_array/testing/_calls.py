"""Call code that takes its arguments in another order, that takes q and k, or that writes in place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ._libraries import Library

Rotate = Callable[..., Any]

# The orders of arguments that `Target.arguments` can name. q and k are two arrays, and two are returned.
ORDERS = ("x,pos", "pos,x", "q,k,pos", "pos,q,k", "(q,k),pos")


def takes_two(order: str) -> bool:
    """Return whether an order of arguments has q and k in place of x."""
    return "q" in order


def adapt_arguments(rotate: Rotate, order: str) -> Rotate:
    """Make a callable with arguments in `order` take (x, pos): with one array, k is -x and is left out."""
    if order == "x,pos":
        return rotate
    if order == "pos,x":
        return lambda x, pos, **spec: rotate(pos, x, **spec)

    def call(x: Any, pos: Any, **spec: Any) -> Any:
        q, k = x if isinstance(x, tuple) else (x, -x)
        ys = _call_two(rotate, order, q, k, pos, spec)
        return ys if isinstance(x, tuple) or ys is None else ys[0]

    return call


def _call_two(rotate: Rotate, order: str, q: Any, k: Any, pos: Any, spec: dict[str, Any]) -> Any:
    arguments = {"q,k,pos": (q, k, pos), "pos,q,k": (pos, q, k), "(q,k),pos": ((q, k), pos)}[order]
    ys = rotate(*arguments, **spec)
    if ys is None:
        return None
    if not isinstance(ys, tuple | list) or len(ys) != 2:
        raise TypeError(f"rotate({order}) returns a {type(ys).__name__}; return two arrays, q and k rotated")
    return tuple(ys)


def adapt_in_place(rotate: Rotate, lib: Library) -> Rotate:
    """Make a callable that writes its result into x return it, and leave x as it is."""

    def call(x: Any, pos: Any, **spec: Any) -> Any:
        copies = tuple(map(lib.copied, x)) if isinstance(x, tuple) else lib.copied(x)
        rotate(copies, pos, **spec)
        return copies

    return call
