"""The rows of attention's inputs as both GPU kernels read them: q and k, their weights, v, and the caches.

All are arranged together, so that a program or thread finds a head of k, its weight and its row in the cache
by the same indices. A weight has no stride along tokens, and a cache none along the tokens of slots.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

from rope_array._array_api.attention import AttentionCall
from rope_array._array_api.cache import CacheWrite, Target
from rope_array._array_api.library import computes_in_float64
from rope_array._array_api.norm import heads_axis
from rope_array._array_api.source import Source, Tables

from . import Ints, Rows, SourceView, Strided, arrange_together

# If a slot appears twice, its last token is written. A decode step has few tokens: each program compares its
# slots with all of them, without another launch. From here on, a stable sort by array operations marks the
# others with -1 before the launch. That takes about ten launches, less time than so many tokens need; the
# comparisons would grow with the square of the tokens.
MOST_SEARCHED = 512


class InputRows(NamedTuple):
    """The rows of a call, for one launch.

    Attributes
    ----------
    xs
        Of q and k, with the strides of the source alone.
    weights
        Of their weights (`x`), and of the cache of k (`y`).
    v
        Of v, and of its cache (`y`), or None.
    slots
        The strides of the contiguous slots along `outer` and `seq`.
    """

    xs: list[Rows]
    weights: list[Rows]
    v: Rows | None
    slots: Ints


def serves_dtypes(x: Any, source: Source, write: CacheWrite | None) -> bool:
    """Return whether a kernel that computes in the compute dtype of x rounds each result once.

    It does not for tables of float64 and x of float32, nor for float64 in narrower caches.
    """
    if not computes_in_float64(x):
        return not (isinstance(source, Tables) and computes_in_float64(source.cos))
    return write is None or all(cache is None or computes_in_float64(cache) for cache in write.caches)


def arrange_inputs(
    inputs: AttentionCall, ys: Any, view: SourceView, strides: Callable[[Any], Ints]
) -> InputRows | None:
    """Return the rows of a call; None if its axes take several launches. ``strides`` counts elements."""
    (call, norm, write, targets, _), seq_axis = inputs, inputs.call.options.seq_axis
    weights = (None,) * len(call.xs) if norm is None else norm.weights
    if write is not None:
        view = _with_slots(view, tuple(write.slots.shape))
    arrays = [Strided(tuple(x.shape), strides(x), strides(y)) for x, y in zip(call.xs, ys, strict=True)]
    cache_strides = [_row_strides(target, strides) for target in targets]
    of_k = cache_strides[0] if targets else (0,) * call.xs[-1].ndim
    for x, weight in zip(call.xs, weights, strict=True):
        arrays.append(Strided(tuple(x.shape), _weight_strides(x, weight, seq_axis), of_k))
    if len(targets) > 1:
        v = targets[1].x
        arrays.append(Strided(tuple(v.shape), strides(v), cache_strides[1]))
    if len({len(array.shape) for array in arrays}) > 1 or any(0 in array.shape for array in arrays):
        return None
    launches = arrange_together(arrays, seq_axis, view)
    if launches is None or any(len(rows) != 1 for rows in launches):
        return None
    rows, count = [rows for (rows,) in launches], len(call.xs)
    of_source = len(view.strides) - (write is not None)
    xs = [
        r._replace(source=r.source[:of_source], source_offsets=r.source_offsets[:of_source])
        for r in rows[:count]
    ]
    slots = (0, 0) if write is None else rows[0].source[-1]
    return InputRows(xs, rows[count : 2 * count], rows[-1] if len(targets) > 1 else None, slots)


def contiguous_strides(shape: Ints) -> Ints:
    """Return the strides, in elements, of an array whose elements are adjacent and in order."""
    return tuple([math.prod(shape[axis + 1 :]) for axis in range(len(shape))])


def page_size(target: Target) -> int:
    """Return how many slots a page of a cache has; 0 without pages."""
    return int(target.cache.shape[target.slot_axis]) if target.pages else 0


def _with_slots(view: SourceView, shape: Ints) -> SourceView:
    """Return the view of a source and of contiguous slots, of this shape, by the shape rule."""
    ndim = max(len(view.shape), len(shape))

    def widened(numbers: Ints, fill: int) -> Ints:
        return (*numbers[:-1], *(fill,) * (ndim - len(numbers)), *numbers[-1:])

    shapes_and_strides = [(view.shape, steps) for steps in view.strides] + [
        (shape, contiguous_strides(shape))
    ]
    strides = [
        tuple([0 if n == 1 else step for n, step in zip(widened(sizes, 1), widened(steps, 0), strict=True)])
        for sizes, steps in shapes_and_strides
    ]
    return SourceView(view.kind, tuple(map(max, widened(view.shape, 1), widened(shape, 1))), tuple(strides))


def _row_strides(target: Target, strides: Callable[[Any], Ints]) -> Ints:
    """Return the strides of a cache along the axes of x: 0 along the axes of tokens."""
    of_rows, axes = [0] * target.x.ndim, iter(target.order[len(target.pages) + 1 :])
    for axis in (*target.free, target.x.ndim - 1):
        of_rows[axis] = strides(target.cache)[next(axes)]
    return tuple(of_rows)


def _weight_strides(x: Any, weight: Any, seq_axis: int) -> Ints:
    """Return the strides of a contiguous weight along the axes of x."""
    strides = [0] * x.ndim
    if weight is not None and weight.ndim == 2:
        strides[heads_axis(x, seq_axis)] = x.shape[-1]
    return tuple(strides)
