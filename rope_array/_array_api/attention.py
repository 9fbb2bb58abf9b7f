"""Attention's inputs by parts: the norm, a backend's rotation of its result, and the write into caches.

A backend may make them in one pass; this serves all others, with the same bits: the rotation of a normed head
in its compute dtype rounds nothing between.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from rope_array._errors import ArrayTypeError, ShapeError, describe

from .cache import CacheWrite, Target, check_cache, check_same_device, write_caches
from .library import X_DTYPES, Library, dtype_name
from .norm import Norm, as_compute, heads_axis, normalise
from .out import check_apart, check_outs
from .source import Call


class AttentionCall(NamedTuple):
    """A checked call of `rope_array.attention_inputs`.

    Attributes
    ----------
    call
        The rotation: q, and k if it is given.
    norm
        The norm of the heads, or None.
    write
        The caches, or None.
    targets
        The caches of k and of v, with their axes; empty without caches.
    outs
        Arrays for the results, or None.
    """

    call: Call
    norm: Norm | None
    write: CacheWrite | None
    targets: list[Target]
    outs: tuple[Any, ...] | None


def check_attention_call(
    call: Call, norm: Norm | None, write: CacheWrite | None, out: tuple[Any, ...] | None
) -> AttentionCall:
    """Check weights, v, caches and results; `call` is checked as a rotation."""
    xs, lib, seq_axis = call.xs, call.lib, call.options.seq_axis
    weights = () if norm is None else tuple(weight for weight in norm.weights if weight is not None)
    arrays = xs if write is None or write.values is None else (*xs, write.values)
    if len({dtype_name(x) if lib.is_array(x) else None for x in arrays}) > 1:
        raise ArrayTypeError(
            f"q, k and v are {', '.join(map(describe, arrays))}; give arrays of one dtype and library."
        )
    if write is not None and write.values is not None:
        check_same_device("v", write.values, "k", xs[-1], lib)
    if norm is not None:
        for name, x, weight in zip("qk", xs, norm.weights, strict=False):
            _check_weight(name, x, weight, seq_axis, lib)
    targets = [] if write is None else check_cache(write, xs[-1], seq_axis, lib)
    caches = [(target.name, target.cache) for target in targets]
    slots = () if write is None or not lib.is_array(write.slots) else (write.slots,)
    lib.check_mix((*arrays, *weights, *slots, *(cache for _, cache in caches)), call.source)
    read = (*call.source.arrays, *weights, *arrays[len(xs) :], *slots)
    outs = None if out is None else check_outs(out, xs, xs, read, lib, "another array of the call")
    check_apart(caches, (*xs, *(outs or ()), *read), lib)
    return AttentionCall(call, norm, write, targets, outs)


def _check_weight(name: str, x: Any, weight: Any, seq_axis: int, lib: Library) -> None:
    if weight is None:
        return
    if not lib.is_array(weight) or dtype_name(weight) not in X_DTYPES:
        raise ArrayTypeError(
            f"the norm's weight of {name} is {describe(weight)}; give a floating array of {name}'s library"
            f"{', such as its .weight' if hasattr(weight, 'weight') else ''}."
        )
    check_same_device(f"the norm's weight of {name}", weight, name, x, lib)
    axis = heads_axis(x, seq_axis)
    shapes = [(x.shape[-1],), *([(x.shape[axis], x.shape[-1])] if axis >= 0 else [])]
    # Not by `in`, which Dynamo answers with no for sizes that are symbols (PyTorch 2.13).
    if not any([tuple(weight.shape) == shape for shape in shapes]):
        served = " or ".join([f"{shape}" for shape in shapes])
        raise ShapeError(
            f"the norm's weight of {name} has the shape {tuple(weight.shape)}, and {name} {tuple(x.shape)}; "
            f"give it the shape {served}. Apply a norm over all heads at once before "
            "this call."
        )


def make_by_parts(rotate: Callable[[Call], tuple[Any, ...]], inputs: AttentionCall) -> tuple[Any, Any]:
    """Return the rotated arrays, and the written caches or None, by a backend's rotation."""
    call, norm, write, targets, outs = inputs
    ops, seq_axis = call.ops, call.options.seq_axis
    xs = list(call.xs)
    if norm is not None:
        xs = [normalise(x, w, norm, seq_axis, ops) for x, w in zip(xs, norm.weights, strict=True)]
    elif targets and targets[0].cache.dtype != xs[-1].dtype:
        xs[-1] = as_compute(xs[-1], ops)  # the cache takes k before it is rounded to x's dtype
    rotated = rotate(call._replace(xs=tuple(xs)))
    caches = None if write is None else write_caches(write, targets, rotated[-1], call.lib, ops)
    ys = tuple(
        [y if y.dtype == x.dtype else ops.cast(y, x.dtype) for x, y in zip(call.xs, rotated, strict=True)]
    )
    if outs is None:
        return ys, caches
    for out, y in zip(outs, ys, strict=True):
        call.lib.copy_into(out, y)
    return outs, caches
