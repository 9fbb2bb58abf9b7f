"""PyTorch on the CPU by the C++ kernel, in eager calls and in compiled programs."""

from functools import partial
from typing import Any

import torch

from rope_array._array_api.attention import AttentionCall
from rope_array._array_api.checks import as_source
from rope_array._array_api.shift import KeyShift
from rope_array._array_api.source import Call, OptionFields, Positions, Source, SourceFields
from rope_array._backends import _native
from rope_array._backends.torch import make_tables as _make_tables_by_array_api
from rope_array._spec.plan import Plan

from . import _attention, _compiled, _eager, triton
from ._eager import first_tensor_reason, why_checked_call_declined, why_tensor_not_plain
from ._gradient import FORWARD, GATED, UNCHECKED, make_recorded_tables
from ._library import LIBRARY, PLAIN_TYPES, TRANSFORMED, count_writes, is_recorded, no_autocast
from ._mapped import make_mapped_tables, rotate_mapped

name = "native"
accepts_outs = True

if _native.kernel is not None:
    _native.kernel.use_tensors(*PLAIN_TYPES, torch.empty_like, torch.get_num_threads, True)
    _eager.register_gate(_native.kernel)

unavailable_reason, outdated = _native.unavailable_reason, _native.outdated


def description() -> str:
    """Return the instruction set that runs, and the largest number of threads."""
    return _native.description(torch.get_num_threads())


# ---- calls that nothing has checked yet ----


def try_fast(x: Any, fields: SourceFields, options: OptionFields, out: Any) -> Any:
    """Rotate plain tensors of one compute dtype; return NotImplemented for every other call.

    Serves tensors on the CPU, of which the kernel checks shapes and memory. Tensors of a GPU are handed to
    the backend "triton", as the registry asks the first backend of PyTorch's tensors only, which is this one.
    """
    if torch.compiler.is_dynamo_compiling():  # first: Dynamo evaluates it, and skips the rest
        return NotImplemented
    if not (x[0] if type(x) is tuple else x).is_cpu:
        return triton.try_fast(x, fields, options, out)
    if _native.kernel is None:
        return NotImplemented
    y = _native.kernel.rotate(x, fields, options, out, UNCHECKED, FORWARD, GATED)
    if y is not NotImplemented or out is not None or not is_recorded(x if type(x) is tuple else (x,)):
        return y
    return _eager.try_recorded(_native.kernel, x, fields, options)


def try_fast_inputs(
    xs: Any, fields: SourceFields, options: OptionFields, norm: Any, write: Any, out: Any
) -> Any:
    """Norm, rotate and write into caches; NotImplemented for every call that the kernel does not serve."""
    if torch.compiler.is_dynamo_compiling() or _native.kernel is None:
        return NotImplemented
    results = _native.kernel.attention_inputs(xs, fields, options, norm, write, out, UNCHECKED, GATED)
    if results is not NotImplemented or out is not None:
        return results
    return _attention.try_recorded_inputs(_native.kernel, xs, as_source(fields), options, norm, write)


def try_fast_shift(*fields: Any) -> Any:
    """Rotate rows of caches in place; NotImplemented for every call that the kernel does not serve."""
    if torch.compiler.is_dynamo_compiling() or _native.kernel is None:
        return NotImplemented
    return _native.kernel.shift_keys(*fields, UNCHECKED, GATED)


def try_fast_tables(source: Positions, like: Any) -> Any:
    """Return cos and sin at a tensor of positions, by exact angles; NotImplemented for other calls.

    Serves plain tensors on the CPU. The kernel checks the positions, and declines where something intercepts
    PyTorch's operations.
    """
    if torch.compiler.is_dynamo_compiling() or _native.kernel is None:
        return NotImplemented
    if TRANSFORMED is None or TRANSFORMED():  # has_memory takes 0.5 ms where PyTorch raises an error
        return NotImplemented
    pos, plan, inv_freq = source
    if not type(like) is type(pos) is torch.Tensor or not like.is_cpu or like.dtype not in _COMPUTE_DTYPES:
        return NotImplemented
    if inv_freq is not None or not plan.exact or plan.takes_angles or not _native.kernel.has_memory(like):
        return NotImplemented
    return _native.fill_tables(_empty_of(_COMPUTE_DTYPES[like.dtype]), pos, plan, gated=True)


def _empty_of(dtype: Any) -> Any:
    return lambda shape: [torch.empty(shape, dtype=dtype, device="cpu") for _ in range(2)]


_COMPUTE_DTYPES = {
    **dict.fromkeys((torch.float16, torch.bfloat16, torch.float32), torch.float32),
    torch.float64: torch.float64,
}


# ---- checked calls ----


def decline_reason(xs: Any, source: Source) -> str | None:
    """Return why tensors are declined, or None."""
    if _native.kernel is None:
        return unavailable_reason()
    if torch.compiler.is_compiling():
        reason = _compiled.why_call_unserved(xs, source)
        return reason or first_tensor_reason(xs, source, _why_tensor_unserved)
    return why_checked_call_declined(xs, source, _why_tensor_declined)


def _why_tensor_declined(x: Any) -> str | None:
    """Return why the kernel does not serve a tensor or cannot read its memory, or None."""
    if (reason := why_tensor_not_plain(x) or _why_tensor_unserved(x)) is not None:
        return reason
    if not _native.kernel.has_memory(x):
        return (
            "a tensor's numbers are not in memory as they are: the memory has been freed, say, or it is a "
            "lazily negated view or a batch of vmap"
        )
    return None


def _why_tensor_unserved(x: Any) -> str | None:
    """Return why the kernel does not serve a tensor's device or number of axes, or None."""
    if not x.is_cpu:
        return f"a tensor is on {x.device}; the kernel runs on the CPU"
    if x.ndim > _native.MAX_AXES:
        return f"a tensor has {x.ndim} axes, and the kernel takes {_native.MAX_AXES}"
    return None


def rotate(call: Call, outs: Any = None) -> Any:
    """Rotate the arrays of a call."""
    with no_autocast(call.xs[0]):
        if torch.compiler.is_compiling():
            if outs is None:
                return _compiled.rotate_traced(call, by_kernel=True)
            return _compiled.rotate_traced_into(call, outs)
        if TRANSFORMED():
            return rotate_mapped(rotate, call)
        rotate_eagerly = partial(_eager.rotate_eagerly, _native.kernel)
        source_for = _eager.recorded_tables(call, make_tables) or _native.sources(call, _readable)
        return _native.rotate_checked(call, outs, rotate_eagerly, source_for)


def attention_inputs(inputs: AttentionCall) -> Any:
    """Norm, rotate and write in one pass; NotImplemented for a call that array operations serve."""
    with no_autocast(inputs.call.xs[0]):
        if torch.compiler.is_compiling():
            return _attention.attention_traced(inputs, by_kernel=True)
        source_for = partial(_native.sources, inputs.call, _readable)
        return _attention.attention_eagerly(_native.kernel, inputs, source_for)


def shift_keys(shift: KeyShift) -> Any:
    """Rotate rows of caches in place; NotImplemented for a shift that PyTorch's operations serve."""
    if _eager.why_call_declined(shift.source, False) is not None or is_recorded(shift.source.arrays):
        return NotImplemented
    with no_autocast(shift.caches[0]):
        shifted = _native.shift_keys(shift, LIBRARY, _readable)
    if shifted is not NotImplemented:
        count_writes(shift.caches)
    return shifted


def make_tables(source: Positions, like: Any) -> Any:
    """Make cos and sin, with the bits of the array-api backend."""
    return make_mapped_tables(partial(make_recorded_tables, _make_tables), source, like)


def _make_tables(source: Positions, like: Any) -> Any:
    if not torch.compiler.is_compiling() and _native.kernel is not None:
        tables = _native.make_tables(source, like, LIBRARY, _fill_tables, _native.plan_of_array, like.is_cpu)
        if tables is not NotImplemented:
            return tuple([table.contiguous() for table in tables])
    return _make_tables_by_array_api(source, like)


def _fill_tables(values: Any, plan: Plan, use_float64: bool) -> Any:
    dtype = torch.float64 if use_float64 else torch.float32
    return _native.fill_tables(_empty_of(dtype), _readable(values, values.dtype), plan)


def _readable(tensor: Any, dtype: Any) -> Any:
    """Return a tensor at an aligned address: positions with any strides, tables contiguous."""
    tensor = tensor.to(dtype)
    tensor = tensor.contiguous() if dtype.is_floating_point else tensor
    return tensor.clone() if tensor.data_ptr() % tensor.itemsize else tensor
