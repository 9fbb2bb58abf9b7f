"""Launch the Triton kernel for attention's inputs: norm, rotation, and the write of k and v into caches.

Launches are cached by the metadata of a call, as in _triton_launch.py.
"""

from typing import Any, NamedTuple

import torch
import triton

from rope_array._array_api.attention import AttentionCall
from rope_array._array_api.cache import CacheWrite, Target, last_of_each
from rope_array._array_api.norm import ROUNDINGS, Norm, heads_axis
from rope_array._array_api.source import Source, Tables
from rope_array._backends import _gpu
from rope_array._backends._gpu import Kind, Rows, SourceView, Strided

from . import _triton_launch
from ._library import LIBRARY
from ._triton_kernel import make_inputs
from ._triton_launch import TritonLaunch

_CACHES = (*_triton_launch.FLOATS, torch.int8, torch.float8_e4m3fn)
# If a slot appears twice, its last token is written. A decode step has few tokens: each program compares its
# slots with all of them, without another launch. From here on, a stable sort by PyTorch marks the others with
# -1 before the launch: about ten launches, little beside the bytes of so many tokens, where comparing each
# token with each other would grow with their square.
_MOST_SEARCHED = 512


class _InputsLaunch(NamedTuple):
    """The only launch of a call, and how its slots are made unique."""

    launch: TritonLaunch
    sorts: bool


_launches: dict[Any, _InputsLaunch | None] = {}


def attention_inputs(inputs: AttentionCall, source: Source) -> Any:
    """Make the inputs of a checked call, with its source as the kernel reads it.

    Return NotImplemented for tensors that the kernel does not serve.
    """
    xs, (norm, write) = inputs.call.xs, inputs[1:3]
    ys = [torch.empty_like(x) for x in xs] if inputs.outs is None else inputs.outs
    tensors = [*xs, *ys, *([] if norm is None else norm.weights)]
    caches = [] if write is None else [write.slots, write.values, *write.caches]
    key = _key(inputs, ys, tensors, caches, source)
    if key is None:
        return NotImplemented
    if key not in _launches:
        if len(_launches) >= _triton_launch.LIMIT:
            _launches.clear()
        _launches[key] = _prepare(inputs, ys, source)
    prepared = _launches[key]
    if prepared is None:
        return NotImplemented
    arrays = _arguments(xs, norm, write, prepared)
    _triton_launch.run([prepared.launch], xs, ys, source, make_inputs, arrays)
    return tuple(ys), None if write is None else write.caches


def _key(inputs: AttentionCall, ys: Any, tensors: list[Any], caches: list[Any], source: Source) -> Any:
    """Return the metadata of a call that the kernel serves, or None."""
    (call, norm, write, _, _), device = inputs, ys[0].device
    base = _triton_launch.key_of(call.xs, source, call.options, ys, True)
    floats = [_triton_launch.tensor_key(x, device, _triton_launch.FLOATS) for x in tensors if x is not None]
    others = [_triton_launch.tensor_key(x, device, (*_CACHES, *_INTEGERS)) for x in caches if x is not None]
    given = [x for x in (*tensors, *caches) if x is not None]
    addresses = _triton_launch.addresses_of((*given, *source[:2]))
    if base is None or addresses is None or None in floats or None in others:
        return None
    if any(0 in x.shape for x in given) or not _serves_dtypes(call.xs[0], call.source, write):
        return None
    memory = _triton_launch.memory_key(given, (), source, addresses)
    in_place = [x.data_ptr() == y.data_ptr() for x, y in zip(call.xs, ys, strict=True)]
    numbers = None if norm is None else (*norm[1:], *(w is None for w in norm.weights))
    return base, *floats, *others, numbers, write and write[4:], *in_place, memory


_INTEGERS = (torch.int32, torch.int64)


def _serves_dtypes(x: Any, source: Source, write: CacheWrite | None) -> bool:
    """Return whether the compute dtype of x is that of the call, and its results are rounded once."""
    if x.dtype != torch.float64:
        return not (isinstance(source, Tables) and source.cos.dtype == torch.float64)
    return write is None or all(cache is None or cache.dtype == x.dtype for cache in write.caches)


# ---- from a call to its launch ----


def _prepare(inputs: AttentionCall, ys: Any, source: Source) -> _InputsLaunch | None:
    """Return the launch of a call; None if its axes take several launches."""
    (call, norm, write, targets, _), seq_axis = inputs, inputs.call.options.seq_axis
    weights = (None,) * len(call.xs) if norm is None else norm.weights
    view = _triton_launch.view_of(source)
    if write is not None:
        view = _with_slots(view, tuple(write.slots.shape))
    arrays = [Strided(x.shape, x.stride(), y.stride()) for x, y in zip(call.xs, ys, strict=True)]
    strides_of_k = _row_strides(targets[0]) if targets else (0,) * call.xs[-1].ndim
    for x, weight in zip(call.xs, weights, strict=True):
        arrays.append(Strided(x.shape, _weight_strides(x, weight, seq_axis), strides_of_k))
    if len(targets) > 1:
        v = targets[1].x
        arrays.append(Strided(v.shape, v.stride(), _row_strides(targets[1])))
    if len({len(array.shape) for array in arrays}) > 1:
        return None
    rows = _gpu.arrange_together(arrays, seq_axis, view)
    if rows is None or any(len(launches) != 1 for launches in rows):
        return None
    return _make_launch(inputs, ys, source, view.kind, [launches[0] for launches in rows])


def _with_slots(view: SourceView, shape: tuple[int, ...]) -> SourceView:
    """Return the view of a source and of contiguous slots, of this shape, by the shape rule."""
    ndim = max(len(view.shape), len(shape))

    def widened(numbers: tuple[int, ...], fill: int) -> tuple[int, ...]:
        return (*numbers[:-1], *(fill,) * (ndim - len(numbers)), *numbers[-1:])

    sizes = [widened(view.shape, 1), widened(shape, 1)]
    strides = [*(widened(of_source, 0) for of_source in view.strides)]
    strides.append(widened(torch.empty(shape, device="meta").stride(), 0))
    shapes = (*(sizes[0],) * len(view.strides), sizes[1])
    strides = [
        tuple([0 if size == 1 else stride for size, stride in zip(own, steps, strict=True)])
        for own, steps in zip(shapes, strides, strict=True)
    ]
    return SourceView(view.kind, tuple(map(max, *sizes)), tuple(strides))


def _row_strides(target: Target) -> tuple[int, ...]:
    """Return the strides of a cache along the axes of its rows, 0 along those of tokens."""
    strides, axes = [0] * target.x.ndim, iter(target.order[len(target.pages) + 1 :])
    for axis in (*target.free, target.x.ndim - 1):
        strides[axis] = target.cache.stride(next(axes))
    return tuple(strides)


def _weight_strides(x: Any, weight: Any, seq_axis: int) -> tuple[int, ...]:
    """Return the strides of a contiguous weight along the axes of x."""
    strides = [0] * x.ndim
    if weight is not None and weight.ndim == 2:
        strides[heads_axis(x, seq_axis)] = x.shape[-1]
    return tuple(strides)


def _make_launch(
    inputs: AttentionCall, ys: Any, source: Source, source_kind: Kind, rows: list[Rows]
) -> _InputsLaunch:
    """Return the launch for the rows of q, of k, of their weights (and the cache of k), and of v."""
    (call, norm, write, targets, _), count = inputs, len(inputs.call.xs)
    for_slots = -1 if write is not None else None
    group = [
        (i, call.xs[i], ys[i], rows[i]._replace(source=rows[i].source[:for_slots])) for i in range(count)
    ]
    launch = _triton_launch.make_launch(group, source, source_kind, call.source.layout, False)
    constants = dict(zip(_triton_launch.CONSTANTS, launch.constants, strict=True))
    if norm is not None and 2 * call.source.layout.num_pairs < call.source.layout.head_dim:
        constants["COPIES"] = True
    of_weights, v = rows[count : 2 * count], rows[-1] if len(targets) > 1 else None
    unit = _cache_unit(targets, of_weights[-1], v)
    caches, features = _cache_numbers(targets, of_weights[-1], v, unit)
    constants["STRIDED"] = constants["STRIDED"] or any(feature != 1 for feature in features)
    chunks = launch.numbers[1]
    numbers: tuple[Any, ...] = (
        *(v.heads if v else 0, 0 if write is None else write.slots.numel()),
        *(rows[0].source[-1] if write is not None else (0, 0)),
        *of_weights[0].x,
        *of_weights[-1].x,
        *caches,
    )
    tokens = 0 if write is None or write.unique_slots else write.slots.numel()
    return _InputsLaunch(
        launch._replace(
            numbers=(*launch.numbers, *numbers),
            constants=(
                *constants.values(),
                *_norm_constants(norm),
                triton.next_power_of_2(-(-v.heads // chunks)) if v else 0,
                targets[1].x.shape[-1] if v else 1,
                write is not None,
                unit,
                *(_page(targets[i]) if i < len(targets) else 0 for i in range(2)),
                1 < tokens <= _MOST_SEARCHED,
            ),
        ),
        tokens > _MOST_SEARCHED,
    )


def _norm_constants(norm: Norm | None) -> tuple[Any, ...]:
    """Return NORM, EPS, OFFSET, WEIGHT0 and WEIGHT1 of the kernel."""
    if norm is None:
        return 0, 0.0, 0.0, 0, 0
    axes = [0 if weight is None else weight.ndim for weight in norm.weights]
    return 1 + ROUNDINGS.index(norm.rounding), norm.eps, norm.offset, axes[0], axes[-1]


def _page(target: Target) -> int:
    return target.cache.shape[target.slot_axis] if target.pages else 0


def _cache_unit(targets: list[Target], k: Rows, v: Rows | None) -> int:
    """Return the elements that all strides of v and of the caches are multiples of, for wide accesses."""
    units = [16]
    for target, rows in _with_rows(targets, k, v):
        strides = [target.cache.stride(axis) for axis in (*target.pages, target.slot_axis)]
        units.append(_gpu.common_alignment([*rows.y, *strides], target.cache.itemsize))
    if v is not None:
        units.append(_gpu.common_alignment(v.x, targets[1].x.itemsize))
    return min(units)


def _with_rows(targets: list[Target], k: Rows, v: Rows | None) -> list[tuple[Target, Rows]]:
    return [(target, rows) for target, rows in zip(targets, (k, v), strict=False) if rows is not None]


def _cache_numbers(targets: list[Target], k: Rows, v: Rows | None, unit: int) -> tuple[list[int], list[int]]:
    """Return the numbers of v and of the caches in the order of the kernel, and the strides of features."""
    numbers, features = [0] * 18, [1]
    if v is not None:
        numbers[:4] = [*(stride // unit for stride in v.x), targets[1].x.stride(-1)]
        features.append(targets[1].x.stride(-1) if targets[1].x.shape[-1] > 1 else 1)
    for begin, (target, rows) in zip((4, 11), _with_rows(targets, k, v), strict=False):
        slot_stride = target.cache.stride(target.slot_axis)
        page_stride = target.cache.stride(0) if target.pages else 0
        strides = [stride // unit for stride in (*rows.y, page_stride, slot_stride)]
        feature = target.cache.stride(-1)
        numbers[begin : begin + 7] = [*strides[:3], feature, *strides[3:], target.num_slots]
        features.append(feature if target.cache.shape[-1] > 1 else 1)
    return numbers, features


# ---- running ----


def _arguments(xs: Any, norm: Norm | None, write: CacheWrite | None, prepared: _InputsLaunch) -> Any:
    """Return the tensors that the kernel takes after those of a rotation; x for a tensor that it ignores."""
    given = (None,) * len(xs) if norm is None else norm.weights
    weights = [x if weight is None else weight.contiguous() for x, weight in zip(xs, given, strict=True)]
    if write is None:
        return weights[0], weights[-1], *xs[:1] * 4, 1.0, 1.0
    slots = write.slots.contiguous()
    if prepared.sorts:
        slots = last_of_each(slots.reshape(-1).to(torch.int64), LIBRARY.ops(slots))
    caches = [xs[0] if cache is None else _as_integers(cache) for cache in write.caches]
    return (
        weights[0],
        weights[-1],
        xs[0] if write.values is None else write.values,
        *caches,
        slots,
        *write.scales,
    )


def _as_integers(cache: Any) -> Any:
    """Return a cache of 8-bit floats as integers: Triton has no such type for every GPU."""
    return cache.view(torch.uint8) if cache.dtype == torch.float8_e4m3fn else cache
