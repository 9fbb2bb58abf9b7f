"""The Triton kernel in compiled programs, where the compiler sees its launch.

While AOTAutograd traces a program, our operator on a GPU becomes the launch itself. So Inductor writes the
launch into its program, which then calls no Python of ours and plans the memory of the results. It does not
fuse the launch with its neighbours.

The tensors have no values and no memory yet, and their sizes and strides may be symbols. Each function
returns NotImplemented for a call whose operator has to run instead.
"""

from typing import Any

import torch

from rope_array._array_api.attention import AttentionCall
from rope_array._array_api.source import CallOptions, Source, Tables
from rope_array._backends._gpu import inputs as _gpu_inputs

from . import _triton_inputs, _triton_launch
from ._triton_kernel import make_inputs, rotate_rows

_WRAP: Any = getattr(torch.library, "wrap_triton", None)  # since PyTorch 2.6


def launch(xs: Any, source: Source, options: CallOptions, transposed: bool, words: Any) -> Any:
    """Rotate tensors of one compute dtype."""
    if not _is_visible(xs, source):
        return NotImplemented
    ys = [torch.empty_like(x) for x in xs]
    launches = _triton_launch.prepare(xs, ys, source, options, transposed)
    return _run(rotate_rows, launches, xs, ys, source, words)


def launch_inputs(inputs: AttentionCall, words: Any) -> Any:
    """Norm and rotate heads, without caches."""
    (xs, source, *_), norm = inputs.call, inputs.norm
    weights = () if norm is None else norm.weights
    if not _is_visible((*xs, *weights), source) or not _gpu_inputs.serves_dtypes(xs[0], source, None):
        return NotImplemented
    ys = [torch.empty_like(x) for x in xs]
    prepared = _triton_inputs.prepare(inputs, ys, source)
    if prepared is None:
        return NotImplemented
    more = _triton_inputs.arguments_of(ys, norm, None, prepared)
    return _run(make_inputs, [prepared.launch], xs, ys, source, words, more)


def _is_visible(tensors: Any, source: Source) -> bool:
    """Return whether a launch may be shown to the compiler."""
    # For AMD the compiler must not fuse products and sums, which the compiler of PyTorch's programs does.
    if _WRAP is None or torch.version.hip:
        return False
    for tensor in (*tensors, *source.arrays):
        if tensor is None:
            continue
        if any(map(_is_unknown, (*tensor.shape, *tensor.stride()))) or 0 in tensor.shape:
            return False
    return not isinstance(source, Tables) or source.cos.stride(-1) == source.sin.stride(-1) == 1


def _is_unknown(size: Any) -> bool:
    """Return whether a size depends on values, so that nothing may be compared with it."""
    return type(size) is not int and not size.node.has_hint()


def _run(
    kernel: Any, launches: Any, xs: Any, ys: Any, source: Source, words: Any, more: tuple[Any, ...] = ()
) -> Any:
    """Record the launches of a call.

    A result is passed for each argument that the kernel ignores: of two arguments that are one tensor that
    is computed before, positions for one, Inductor would compute both.
    """
    if any([launch.offsets is not None for launch in launches]):  # of a part of an array
        return NotImplemented
    fused = _triton_launch.CONSTANTS.index("FUSED")
    for launch in launches:
        i, j = launch.index0, launch.index1
        x1 = ys[i] if i == j else xs[j]
        read = (*source.arrays, ys[i]) if isinstance(source, Tables) else (source.values, ys[i], words)
        constants = (*launch.constants[:fused], True, *launch.constants[fused + 1 :])
        arguments = (xs[i], ys[i], x1, ys[j], *read, *more, 0, *launch.numbers, *constants)
        _WRAP(kernel)[(launch.programs,)](*arguments, num_warps=launch.num_warps)
    return ys
