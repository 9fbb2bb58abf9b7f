"""Launch the Triton kernel for attention's inputs: norm, rotation, and the write of k and v into caches.

Launches are cached by the metadata of a call, as in _triton_launch.py.
"""

from typing import Any, NamedTuple

import torch
import triton

from rope_array._array_api.attention import AttentionCall
from rope_array._array_api.cache import CacheWrite, Target, last_of_each
from rope_array._array_api.norm import ROUNDINGS, Norm
from rope_array._array_api.source import Source
from rope_array._backends import _gpu
from rope_array._backends._gpu import Rows
from rope_array._backends._gpu import inputs as _gpu_inputs

from . import _triton_launch
from ._library import LIBRARY
from ._triton_kernel import make_inputs
from ._triton_launch import TritonLaunch

# The dtypes of slots, of v and of caches.
_OTHERS = (*_triton_launch.FLOATS, torch.int8, torch.float8_e4m3fn, torch.int32, torch.int64)


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
        _launches[key] = prepare(inputs, ys, source)
    prepared = _launches[key]
    if prepared is None:
        return NotImplemented
    arrays = arguments_of(xs, norm, write, prepared)
    _triton_launch.run([prepared.launch], xs, ys, source, make_inputs, arrays)
    return tuple(ys), None if write is None else write.caches


def _key(inputs: AttentionCall, ys: Any, tensors: list[Any], caches: list[Any], source: Source) -> Any:
    """Return the metadata of a call that the kernel serves, or None."""
    (call, norm, write, _, _), device = inputs, ys[0].device
    floats, others = ([x for x in group if x is not None] for group in (tensors, caches))
    given, of_source = (*floats, *others), _triton_launch.tensors_of(source)
    base = _triton_launch.key_of(call.xs, (*call.xs, *of_source), source, call.options, ys, True)
    metadata = _triton_launch.metadata_of(given, device)
    addresses = None if metadata is None else _triton_launch.addresses_of((*given, *of_source))
    if base is None or metadata is None or addresses is None:
        return None
    if not all([x.dtype in _triton_launch.FLOATS for x in floats] + [x.dtype in _OTHERS for x in others]):
        return None
    if any(0 in x.shape for x in given) or not _gpu_inputs.serves_dtypes(call.xs[0], call.source, write):
        return None
    memory = _triton_launch.memory_key(given, (), source, addresses)
    in_place = [x.data_ptr() == y.data_ptr() for x, y in zip(call.xs, ys, strict=True)]
    numbers = None if norm is None else (*norm[1:], *(w is None for w in norm.weights))
    return base, *metadata, numbers, write and write[4:], *in_place, memory


# ---- from a call to its launch ----


def prepare(inputs: AttentionCall, ys: Any, source: Source) -> _InputsLaunch | None:
    """Return the launch of a call; None if its axes take several launches."""
    (call, norm, write, targets, _), view = inputs, _triton_launch.view_of(source)
    rows = _gpu_inputs.arrange_inputs(inputs, ys, view, torch.Tensor.stride)
    if rows is None:
        return None
    layout, v, of_k = call.source.layout, rows.v, rows.weights[-1]
    group = [(i, call.xs[i], ys[i], rows.xs[i]) for i in range(len(call.xs))]
    launch = _triton_launch.make_launch(group, source, view.kind, layout, False, splits=False)
    constants = dict(zip(_triton_launch.CONSTANTS, launch.constants, strict=True))
    del constants["CHUNKS"]  # of `rotate_rows` alone
    if norm is not None and 2 * layout.num_pairs < layout.head_dim:
        constants["COPIES"] = True
    unit = _cache_unit(targets, of_k, v)
    caches, features = _cache_numbers(targets, of_k, v, unit)
    constants["STRIDED"] = constants["STRIDED"] or any(feature != 1 for feature in features)
    count = 0 if write is None else write.slots.numel()
    tokens = 0 if write is None or write.unique_slots else count
    numbers = (v.heads if v else 0, count, *rows.slots, *rows.weights[0].x, *of_k.x, *caches)
    of_inputs = (
        *_norm_constants(norm),
        triton.next_power_of_2(-(-v.heads // launch.numbers[1])) if v else 0,
        targets[1].x.shape[-1] if v else 1,
        write is not None,
        unit,
        *(_gpu_inputs.page_size(targets[i]) if i < len(targets) else 0 for i in range(2)),
        1 < tokens <= _gpu_inputs.MOST_SEARCHED,
    )
    all_constants = (*constants.values(), *of_inputs)
    launch = launch._replace(numbers=(*launch.numbers, *numbers), constants=all_constants)
    return _InputsLaunch(launch, tokens > _gpu_inputs.MOST_SEARCHED)


def _norm_constants(norm: Norm | None) -> tuple[Any, ...]:
    """Return NORM, EPS, OFFSET, WEIGHT0 and WEIGHT1 of the kernel."""
    if norm is None:
        return 0, 0.0, 0.0, 0, 0
    axes = [0 if weight is None else weight.ndim for weight in norm.weights]
    return 1 + ROUNDINGS.index(norm.rounding), norm.eps, norm.offset, axes[0], axes[-1]


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


def arguments_of(xs: Any, norm: Norm | None, write: CacheWrite | None, prepared: _InputsLaunch) -> Any:
    """Return the arguments of the kernel in addition to a rotation's; of xs for a tensor that it ignores."""
    norm_weights = (None,) * len(xs) if norm is None else norm.weights
    pairs = zip(xs, norm_weights, strict=True)
    weights = [x if weight is None else weight.contiguous() for x, weight in pairs]
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
