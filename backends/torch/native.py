"""PyTorch on the CPU by the C++ kernel: eager calls on plain tensors, with or without a gradient."""

from functools import partial
from typing import Any

import torch

from rope_array._array_api.source import Call, Positions, Source
from rope_array._backends import _native
from rope_array._backends.torch import make_tables as _make_tables_by_array_api
from rope_array._backends.torch import no_autocast

from . import _compiled, _eager
from ._cos_sin import tables_by_kernel
from ._cos_sin import try_fast_tables as try_fast_tables
from ._gate import give_to as give_gate_to
from ._gate import is_recorded, why_a_tensor_is_not_read, why_declined, why_not_plain
from ._library import PLAIN_TYPES

name = "native"
accepts_outs = True

_MAX_AXES = 0 if _native.kernel is None else _native.kernel.MAX_AXES
if _native.kernel is not None:
    _native.kernel.use_tensors(*PLAIN_TYPES, torch.empty_like, torch.get_num_threads, True)
    give_gate_to(_native.kernel)

unavailable_reason = _native.unavailable_reason
try_fast = _eager.try_fast  # for GPUs too: the registry asks the first backend of a type only


def description() -> str:
    """Return the instruction set that runs, and the largest number of threads."""
    return _native.description(torch.get_num_threads())


def decline_reason(xs: Any, source: Source) -> str | None:
    """Return why tensors are declined, or None."""
    if _native.kernel is None:
        return unavailable_reason()
    compiled = torch.compiler.is_compiling()
    why_not = _compiled.why_not_served(xs, source) if compiled else why_declined(source, is_recorded(xs))
    if why_not is not None:
        return why_not
    return why_a_tensor_is_not_read(xs, source, _why_not_served if compiled else _why_unreadable)


def _why_unreadable(x: Any) -> str | None:
    """Return why the kernel cannot read the memory of a tensor, or None."""
    if (reason := why_not_plain(x) or _why_not_served(x)) is not None:
        return reason
    if not _native.kernel.has_memory(x):
        return (
            "a tensor's numbers are not in memory as they are: the memory has been freed, say, or it is a "
            "lazily negated view or a batch of vmap"
        )
    return None


def _why_not_served(x: Any) -> str | None:
    """Return why the kernel does not serve a tensor's device or number of axes, or None."""
    if not x.is_cpu:
        return f"a tensor is on {x.device}; the kernel runs on the CPU"
    if x.ndim > _MAX_AXES:
        return f"a tensor has {x.ndim} axes, and the kernel takes {_MAX_AXES}"
    return None


def make_tables(source: Positions, like: Any) -> Any:
    """Make cos and sin, with the bits of the array-api backend."""
    if not torch.compiler.is_compiling() and _native.kernel is not None:
        made = tables_by_kernel(_native.kernel, source, like, _native.prepare)
        if made is not NotImplemented:
            return made
    return _make_tables_by_array_api(source, like)


def rotate(call: Call, outs: Any = None) -> Any:
    """Rotate the arrays of a call."""
    with no_autocast(call.xs[0]):
        if torch.compiler.is_compiling():
            if outs is None:
                return _compiled.rotate(call, by_kernel=True)
            return _compiled.rotate_into(call, outs)
        rotate_eagerly = partial(_eager.rotate, _native.kernel)
        return _native.rotate_checked(call, outs, rotate_eagerly, _native.sources(call, _readable))


def _readable(tensor: Any, dtype: Any) -> Any:
    """Return a tensor at an aligned address: positions with any strides, tables contiguous."""
    tensor = tensor.to(dtype)
    tensor = tensor.contiguous() if dtype.is_floating_point else tensor
    return tensor.clone() if tensor.data_ptr() % tensor.itemsize else tensor
