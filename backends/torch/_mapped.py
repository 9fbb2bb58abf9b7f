"""Calls under vmap: a kernel cannot read the tensors that vmap wraps, and serves the tensors inside.

The mapped axis, of size B, becomes the first axis, where the shape rule pairs it. The call is then made
outside of all transforms, where autograd records it as usual, and its results are wrapped again.

    x         mapped or not        positions      mapped            not mapped
    (H, S, d) (B, H, S, d)         (H, S)         (B, H, S)         (1, H, S)
    (d,)      (B, 1, d)            (S,)           (B, S)            (S,)
                                   ()             (B, 1)            ()
"""

from collections.abc import Callable
from typing import Any

import torch

from rope_array._array_api.position_input import parse
from rope_array._array_api.source import Call, Positions, Source, Tables
from rope_array._backends import _native
from rope_array._internals import VMAP, internal
from rope_array._spec.shape_rule import without_coordinates

from ._library import LIBRARY, TRANSFORMED

_LAYERS, _VMAP, _UNWRAP, _WRAP, _OUTSIDE = tuple(map(internal, VMAP))
_CAN_UNWRAP = None not in (TRANSFORMED, _LAYERS, _VMAP, _UNWRAP, _WRAP, _OUTSIDE)


def inside_vmap(xs: Any, source: Source) -> tuple[Any, Any] | None:
    """Return xs and the source as they are inside the wrappers of vmap.

    Return None unless vmap is active, and no other transform. Also return None for more axes than a kernel
    takes, and for frequencies in an array: PyTorch's operations serve these calls.
    """
    if not _CAN_UNWRAP or not TRANSFORMED() or any(layer.key() != _VMAP for layer in _LAYERS()):
        return None
    if isinstance(source, Positions) and source.inv_freq is not None:
        return None
    levels = _levels()
    if any(x.ndim + len(levels) > _native.MAX_AXES for x in xs):
        return None

    def unwrap(value: Any) -> Any:
        for level in levels:
            value, _ = _unwrap(value, level)
        return value

    return tuple(map(unwrap, xs)), type(source)(*map(unwrap, source))


def _levels() -> list[int]:
    """Return the levels of the active transforms, the innermost first."""
    return [layer.level() for layer in reversed(_LAYERS())]


def _unwrap(value: Any, level: int) -> tuple[Any, int | None]:
    """Return the tensor that a level of vmap wraps, and the mapped axis; None for values not mapped there."""
    return _UNWRAP(value, level) if isinstance(value, torch.Tensor) else (value, None)


def _wrap(tensors: Any, levels: list[int]) -> tuple[Any, ...]:
    """Wrap tensors whose first axes are mapped at these levels, of which the innermost is first."""
    for level in reversed(levels):
        tensors = [_WRAP(tensor, 0, level) for tensor in tensors]
    return tuple(tensors)


def rotate_mapped(rotate: Callable[[Call], Any], call: Call) -> tuple[Any, ...]:
    """Rotate the arrays of a checked call by `rotate`, called outside of vmap."""
    xs = [x if x.ndim > 1 else x.unsqueeze(0) for x in call.xs]
    (values, axes), mapped_levels = _paired(call), []
    for level in _levels():
        of_xs, of_source = ([_unwrap(array, level) for array in arrays] for arrays in (xs, values))
        sizes = [array.shape[dim] for array, dim in (*of_xs, *of_source) if dim is not None]
        if sizes:
            xs = [_with_batch(x, dim, sizes[0]) for x, dim in of_xs]
            values, axes = _pair_with_batch(of_source, sizes[0], axes)
            mapped_levels.append(level)
    source = type(call.source)(*values, *call.source[len(values) :])
    pos = None if call.pos is None else parse(values[0], xs[0], LIBRARY)
    seq_axis = call.options.seq_axis
    if seq_axis >= 0:
        seq_axis += len(mapped_levels)
    options = call.options._replace(seq_axis=seq_axis)
    with _OUTSIDE():
        ys = rotate(call._replace(xs=tuple(xs), source=source, options=options, pos=pos))
    ys = [y if x.ndim > 1 else y.squeeze(-2) for x, y in zip(call.xs, ys, strict=True)]
    return _wrap(ys, mapped_levels)


def _paired(call: Call) -> tuple[tuple[Any, ...], int]:
    """Return cos and sin, or positions, and the number of their axes that pair with axes of x."""
    if isinstance(call.source, Tables):
        return call.source.arrays, call.source.cos.ndim - 1
    return (call.source.values,), len(without_coordinates(call.pos.shape, call.source.plan))


def _with_batch(tensor: Any, dim: int | None, size: int) -> Any:
    """Return a tensor with the mapped axis first; without one, a view with its numbers repeated."""
    return tensor.expand(size, *tensor.shape) if dim is None else tensor.movedim(dim, 0)


def _pair_with_batch(unwrapped: list[Any], size: int, axes: int) -> tuple[tuple[Any, ...], int]:
    """Return positions or tables that pair with a new first axis of x, and the number of axes that pair."""
    if any(dim is not None for _, dim in unwrapped):
        tensors = [_with_batch(tensor, dim, size) for tensor, dim in unwrapped]
        return tuple(t if axes else t.unsqueeze(1) for t in tensors), max(2, axes + 1)
    if axes < 2:
        return tuple(value for value, _ in unwrapped), axes
    return tuple(v[None] if isinstance(v, torch.Tensor) else [v] for v, _ in unwrapped), axes + 1


def make_mapped_tables(make: Callable[..., Any], source: Positions, like: Any) -> Any:
    """Make tables by `make`, called outside of vmap."""
    if torch.compiler.is_compiling() or (inside := inside_vmap((like,), source)) is None:
        return make(source, like)
    pos, mapped_levels = source.values, []
    for level in _levels():
        pos, dim = _unwrap(pos, level)
        if dim is not None:
            pos = pos.movedim(dim, 0)
            mapped_levels.append(level)
    with _OUTSIDE():
        tables = make(source._replace(values=pos), *inside[0])
    return _wrap(tables, mapped_levels)
