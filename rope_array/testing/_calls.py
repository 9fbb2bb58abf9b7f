"""Call code that takes other arguments: in another order, q and k, positions of one shape or none."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from ._libraries import Library

Rotate = Callable[..., Any]

# The orders of arguments that `Target.arguments` can name. q and k are two arrays, and two are returned.
ORDERS = ("x,pos", "pos,x", "q,k,pos", "pos,q,k", "(q,k),pos")


def takes_two(order: str) -> bool:
    """Return whether an order of arguments has q and k in place of x."""
    return "q" in order


def parameters_of_order(order: str) -> list[str]:
    """Return the names of the arguments of an order: a tuple (q, k) is one."""
    return order.replace("(q,k)", "x").split(",")


def takes_arguments(rotate: Rotate, names: list[str]) -> bool:
    """Return whether a signature takes as many positional arguments; True if there is no signature."""
    try:
        inspect.signature(rotate).bind(*names)
    except TypeError:
        return False
    except ValueError:  # a builtin
        pass
    return True


def needs_no_positions(rotate: Rotate, order: str) -> bool:
    """Return whether a signature takes the arguments of an order without positions."""
    return takes_arguments(rotate, [name for name in parameters_of_order(order) if name != "pos"])


def leave_out_positions(rotate: Rotate, order: str) -> Rotate:
    """Make a callable without positions take the arguments of an order; any other one is the same."""
    place = parameters_of_order(order).index("pos")
    if not needs_no_positions(rotate, order):
        return rotate
    return lambda *given, **spec: rotate(*given[:place], *given[place + 1 :], **spec)


def adapt_positions(rotate: Rotate, kind: str, has_axes: bool, lib: Library) -> Rotate:
    """Make a callable that takes positions of shape (B, S), or (1, S), take (S,) and (B, S).

    `has_axes` says whether every call has coordinates, an axis more of positions.
    """

    def call(x: Any, pos: Any, **spec: Any) -> Any:
        if pos.ndim == 1 + (has_axes or spec.get("axes") is not None):
            batches = _batches_of(x[0] if isinstance(x, tuple) else x, spec) if kind == "batch" else 1
            pos = lib.stack([pos] * max(1, batches))[:batches]
        return rotate(x, pos, **spec)

    return call


def _batches_of(x: Any, spec: dict[str, Any]) -> int:
    """Return the size of the first axis of x, or of the second if rows are along the first."""
    return int(x.shape[int(spec.get("seq_axis", -2)) % x.ndim == 0])


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
        copies = _copies(lib, x)
        rotate(copies, pos, **spec)
        return copies

    return call


def adapt_copies(rotate: Rotate, lib: Library) -> Rotate:
    """Give a callable that writes into x, or deletes it, a copy of x."""
    return lambda x, pos, **spec: rotate(_copies(lib, x), pos, **spec)


def _copies(lib: Library, x: Any) -> Any:
    return tuple(map(lib.copied, x)) if isinstance(x, tuple) else lib.copied(x)
