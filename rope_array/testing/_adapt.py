"""Call code with another layout or order of arguments, with positions of one shape only, or without any."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from operator import itemgetter
from typing import Any

from ._libraries import ArrayLibrary

Rotate = Callable[..., Any]

AXES = "bhsd"
# The orders of arguments that `Target.arguments` can name. q and k are two arrays, and two are returned.
ORDERS = ("x,pos", "pos,x", "q,k,pos", "pos,q,k", "(q,k),pos")


def map_arrays(function: Callable[[Any], Any], x: Any) -> Any:
    """Return the result for an array, or a tuple or list of the results for each array in it."""
    return type(x)(map(function, x)) if isinstance(x, tuple | list) else function(x)


# ---- layout ----


def is_layout(layout: str) -> bool:
    """Return whether a layout has distinct axes of b, h, s, d, or 1, among them s, with d last."""
    named = layout.replace("1", "")
    return len(set(named)) == len(named) and set("sd") <= set(named) <= set(AXES) and layout[-1] == "d"


def adapt_layout(rotate: Rotate, layout: str, has_axes: bool, lib: ArrayLibrary) -> Rotate:
    """Adapt a callable with the axes of `layout` to (b, h, s, d); loop over the missing axes.

    `has_axes` says whether every call has coordinates, an axis more of positions.
    """
    rotate = _permuted(rotate, layout, lib)
    if "h" not in layout:
        rotate = _looped(rotate, int("b" in layout), has_axes, lib)
    return rotate if "b" in layout else _looped(rotate, 0, has_axes, lib)


def _permuted(rotate: Rotate, layout: str, lib: ArrayLibrary) -> Rotate:
    """Adapt a callable with the axes of `layout` to the order of (b, h, s, d)."""
    named, inner = layout.replace("1", ""), [a for a in AXES if a in layout]
    order, back = tuple(map(inner.index, named)), tuple(map(named.index, inner))
    # Axes of size 1 are added, and left out of the result.
    added = tuple(None if a == "1" else slice(None) for a in layout)
    left_out = tuple(0 if a == "1" else slice(None) for a in layout)

    def arranged(x: Any) -> Any:
        x = _permute(x, order, lib)
        return x[added] if "1" in layout else x

    def restored(y: Any) -> Any:
        return _permute(y[left_out] if "1" in layout else y, back, lib)

    return lambda x, pos, **spec: map_arrays(restored, rotate(map_arrays(arranged, x), pos, **spec))


def _permute(x: Any, order: tuple[int, ...], lib: ArrayLibrary) -> Any:
    # Unpermuted results are returned as they are: checks compare their identity and memory.
    return x if order == tuple(range(len(order))) else lib.permute(x, order)


def _looped(rotate: Rotate, axis: int, has_axes: bool, lib: ArrayLibrary) -> Rotate:
    """Adapt a callable for x without `axis`, 0 or 1: call it for each index of the axis, and stack."""

    def call(x: Any, pos: Any, **spec: Any) -> Any:
        sizes = {array.shape[axis] for array in (x if isinstance(x, tuple) else (x,))}
        if len(sizes) > 1:  # q and k differ in heads
            return tuple(call(array, pos, **spec) for array in x)
        lead = getattr(pos, "ndim", 0) - 1 - (has_axes or spec.get("axes") is not None)
        leading_axes = (slice(None),) * axis
        ys = []
        for i in range(*sizes):
            row = pos[(*leading_axes, i if pos.shape[axis] > 1 else 0)] if axis < lead else pos
            ys.append(rotate(map_arrays(itemgetter((*leading_axes, i)), x), row, **spec))
        if ys and isinstance(ys[0], tuple | list):
            return tuple(stacked(list(of_one)) for of_one in zip(*ys, strict=True))
        return stacked(ys)

    def stacked(slices: list[Any]) -> Any:
        y = lib.stack(slices)
        return lib.permute(y, (1, 0, 2, 3)) if axis else y

    return call


# ---- arguments ----


def takes_two(order: str) -> bool:
    """Return whether an order of arguments has q and k in place of x."""
    return "q" in order


def parameters_of_order(order: str) -> list[str]:
    """Return the names of the arguments of an order; a tuple (q, k) counts as one."""
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


def adapt_arguments(rotate: Rotate, order: str) -> Rotate:
    """Adapt a callable with arguments in `order` to (x, pos). A single x is q; k is -x, and dropped."""
    if order == "x,pos":
        return rotate
    if order == "pos,x":
        return lambda x, pos, **spec: rotate(pos, x, **spec)

    def call(x: Any, pos: Any, **spec: Any) -> Any:
        q, k = x if isinstance(x, tuple) else (x, -x)
        arguments = {"q,k,pos": (q, k, pos), "pos,q,k": (pos, q, k), "(q,k),pos": ((q, k), pos)}[order]
        ys = rotate(*arguments, **spec)
        if ys is None:
            return None
        if not isinstance(ys, tuple | list) or len(ys) != 2:
            type_name = type(ys).__name__
            raise TypeError(f"rotate({order}) returns a {type_name}; return two arrays, q and k rotated")
        return tuple(ys) if isinstance(x, tuple) else ys[0]

    return call


def adapt_copies(rotate: Rotate, lib: ArrayLibrary, in_place: bool) -> Rotate:
    """Give a callable that writes into x, or deletes it, a copy of x; in place, the copy is the result."""

    def call(x: Any, pos: Any, **spec: Any) -> Any:
        copies = map_arrays(lib.copied, x)
        y = rotate(copies, pos, **spec)
        return copies if in_place else y

    return call


# ---- positions ----


def needs_no_positions(rotate: Rotate, order: str) -> bool:
    """Return whether a signature takes the arguments of an order without positions."""
    return takes_arguments(rotate, [name for name in parameters_of_order(order) if name != "pos"])


def leave_out_positions(rotate: Rotate, order: str) -> Rotate:
    """Adapt a callable without positions to the arguments of an order; return others as they are."""
    place = parameters_of_order(order).index("pos")
    if not needs_no_positions(rotate, order):
        return rotate
    return lambda *arguments, **spec: rotate(*arguments[:place], *arguments[place + 1 :], **spec)


def adapt_positions(rotate: Rotate, claim: str, has_axes: bool, lib: ArrayLibrary) -> Rotate:
    """Adapt a callable for positions of shape (B, S), or (1, S), to (S,) and (B, S)."""

    def call(x: Any, pos: Any, **spec: Any) -> Any:
        if pos.ndim == 1 + (has_axes or spec.get("axes") is not None):
            batches = _batches_of(x[0] if isinstance(x, tuple) else x, spec) if claim == "batch" else 1
            pos = lib.stack([pos] * max(1, batches))[:batches]
        return rotate(x, pos, **spec)

    return call


def _batches_of(x: Any, spec: dict[str, Any]) -> int:
    """Return the size of the first axis of x, or of the second if rows are along the first."""
    return int(x.shape[int(spec.get("seq_axis", -2)) % x.ndim == 0])


# ---- attention's inputs ----


def adapt_pairs(make: Rotate) -> Rotate:
    """Adapt a function of q, k and pairs of arrays to (q, k) in a tuple, with the arrays of pairs by name.

    `pairs` names the pairs: of ``pairs=("norm",), norm_0=a`` is made ``norm=(a, None)``.
    """

    def call(x: Any, pos: Any, pairs: tuple[str, ...] = (), **options: Any) -> Any:
        for name in pairs:
            options[name] = (options.pop(f"{name}_0", None), options.pop(f"{name}_1", None))
        q, k = x if len(x) == 2 else (x[0], None)
        return make(q, k, pos, **options)

    return call
