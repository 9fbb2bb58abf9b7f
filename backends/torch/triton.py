"""PyTorch on a GPU by a Triton kernel, in eager calls and in compiled programs.

With TRITON_INTERPRET=1 set, Triton's interpreter runs the kernel on the CPU, slowly, for tests:
``backend="triton"`` then takes tensors of the CPU.
"""

import os
import sys
from functools import cache, partial
from importlib.util import find_spec
from typing import Any, NamedTuple

import torch

from rope_array import _dynamo
from rope_array._array_api.attention import AttentionCall
from rope_array._array_api.source import Call, OptionFields, Positions, Source, SourceFields
from rope_array._backends import _native
from rope_array._backends.torch import make_tables as _make_tables_by_array_api
from rope_array._errors import printable
from rope_array._internals import internal

from . import _attention, _compiled, _eager
from ._eager import why_checked_call_declined, why_tensor_not_plain
from ._gradient import make_recorded_tables
from ._library import LIBRARY, TRANSFORMED, is_lazy, no_autocast
from ._mapped import make_mapped_tables, rotate_mapped

name = "triton"
accepts_outs = True

_OLDEST_GPU = (8, 0)  # compute capability that Triton supports
_OLDEST_TRITON = (3, 3)  # since which a compiled kernel takes the constants among its arguments


# ---- whether the kernel can be used ----


def description() -> str:
    """Return Triton's version, and the GPU."""
    if reason := unavailable_reason():
        return reason
    import triton

    device = "the CPU, interpreted" if is_interpreted() else torch.cuda.get_device_name()
    return f"Triton {triton.__version__} on {device}"


def unavailable_reason() -> str:
    """Return why the kernel cannot be used; an empty string if it can."""
    if find_spec("triton") is None:
        return "Triton is not installed; PyTorch's builds for GPUs bring it"
    if not torch.cuda.is_available() and not is_interpreted():
        return "PyTorch sees no GPU: torch.cuda.is_available() is False"
    return "" if is_interpreted() else _why_triton_fails()


@cache
def _why_triton_fails() -> str:
    """Return why Triton cannot launch a kernel here, or an empty string: it needs a C compiler, for one."""
    try:
        import triton

        internal("triton.runtime.driver.driver.active.get_current_device")()
        load_kernel()
    except Exception as error:  # of any kind: before any call, so calls are served without Triton
        return printable(f"Triton cannot be used: {type(error).__name__}: {error}")
    if tuple(map(int, triton.__version__.split(".")[:2])) < _OLDEST_TRITON:
        return f"Triton {triton.__version__} is older than {'.'.join(map(str, _OLDEST_TRITON))}"
    return ""


def is_interpreted() -> bool:
    """Return whether Triton's interpreter runs the kernel, on the CPU."""
    kernel = sys.modules.get(f"{__package__}._triton_launch")
    if kernel is None:
        interpret = os.environ.get("TRITON_INTERPRET", "0") not in ("", "0")
        kernel = load_kernel() if interpret and find_spec("triton") is not None else None
    return kernel is not None and bool(kernel.interpreted)


def load_kernel() -> Any:
    """Return the kernel; its first call imports Triton, which takes time and which the CPU does not need."""
    from . import _triton_launch

    return _triton_launch


@cache
def usable_kernel() -> Any:
    """Return the kernel, or None if it cannot be used. The first call decides for all."""
    return None if unavailable_reason() else load_kernel()


# ---- calls ----


def try_fast(x: Any, fields: SourceFields, options: OptionFields, out: Any) -> Any:
    """Rotate plain tensors on a GPU; return NotImplemented for a call that is not like an earlier one.

    Serves calls whose shapes, strides, dtypes, device and layout have passed the checks before. The backend
    "native", which the registry asks first, hands the tensors of a GPU to this function.
    """
    if (kernel := usable_kernel()) is None:
        return NotImplemented
    return _eager.try_kernel(kernel, x, fields, options, out)


def decline_reason(xs: Any, source: Source) -> str | None:
    """Return why tensors are declined, or None."""
    device = xs[0].device
    if torch.compiler.is_compiling():
        return _why_not_compiled(device) or _compiled.why_call_unserved(xs, source)
    if device.type != "cuda" and not (device.type == "cpu" and is_interpreted()):
        return f"a tensor is on {device}; the kernel runs on GPUs"
    reason = unavailable_reason() or _why_gpu_too_old(device)
    return reason or why_checked_call_declined(xs, source, _why_tensor_unreadable)


@_dynamo.traced_constant
def _why_not_compiled(device: Any) -> str | None:
    """Return why a compiled program cannot call the kernel on a device, or None."""
    if device.type != "cuda":
        return f"a tensor is on {device}; the kernel runs on GPUs"
    if internal("torch._inductor.config.cpp_wrapper"):
        return "Inductor's option cpp_wrapper calls no operator of another package"
    return unavailable_reason() or _why_gpu_too_old(device)


def _why_gpu_too_old(device: Any) -> str | None:
    """Return why Triton has no code for a GPU, or None."""
    if device.type == "cpu" or torch.version.hip or torch.cuda.get_device_capability(device) >= _OLDEST_GPU:
        return None
    return (
        f"{device} is older than compute capability {'.'.join(map(str, _OLDEST_GPU))}, the first for Triton"
    )


def _why_tensor_unreadable(x: Any) -> str | None:
    """Return why the kernel cannot read the memory of a tensor, or None."""
    if (reason := why_tensor_not_plain(x)) is not None:
        return reason
    if is_lazy(x) or (x.numel() and not x.data_ptr()):
        return (
            "a tensor's numbers are not in memory as they are: the memory has been freed, or it is a lazily "
            "negated view"
        )
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
        kernel = load_kernel()
        rotate_eagerly = partial(_eager.rotate_eagerly, kernel)
        source_for = _eager.recorded_tables(call, make_tables) or _sources(call, kernel)
        return _native.rotate_checked(call, outs, rotate_eagerly, source_for)


def attention_inputs(inputs: AttentionCall) -> Any:
    """Make attention's inputs in one launch; NotImplemented for a call that array operations serve."""
    with no_autocast(inputs.call.xs[0]):
        if torch.compiler.is_compiling():
            return _attention.attention_traced(inputs, by_kernel=True)
        if TRANSFORMED():
            return NotImplemented
        source_for = partial(_sources, inputs.call, load_kernel())
        return _attention.attention_eagerly(_InputsKernel(inputs), inputs, source_for)


class _InputsKernel(NamedTuple):
    """The kernel for `attention_eagerly`, which may replace the arrays of a call."""

    inputs: AttentionCall

    def attention_inputs(
        self, xs: Any, source: Source, options: Any, norm: Any, write: Any, outs: Any, checked: bool
    ) -> Any:
        """Make the results of a checked call."""
        from . import _triton_inputs

        call = self.inputs.call._replace(xs=xs)
        return _triton_inputs.attention_inputs(self.inputs._replace(call=call, norm=norm, outs=outs), source)


def _sources(call: Call, kernel: Any) -> Any:
    """Return `source_for(use_float64)`: the source in the kernel's form."""
    source = call.source
    # Nothing is copied to the GPU for an int or a range, and positions of 32 bits are read as they are.
    if isinstance(source, Positions) and kernel.reads(source, call.xs[0].device):
        return lambda use_float64: source
    return _native.sources(call, _with_adjacent_pairs, lambda plan: None)


def _with_adjacent_pairs(tensor: Any, dtype: Any) -> Any:
    """Return positions or tables of a dtype, the numbers along the last axis adjacent."""
    tensor = tensor.to(dtype)
    return tensor if tensor.ndim == 0 or tensor.stride(-1) == 1 else tensor.contiguous()


def make_tables(source: Positions, like: Any) -> Any:
    """Make cos and sin, with the bits of the array-api backend."""
    return make_mapped_tables(partial(make_recorded_tables, _make_tables), source, like)


def _make_tables(source: Positions, like: Any) -> Any:
    if decline_reason((like,), source) is None:
        if torch.compiler.is_compiling():
            tables = _compiled.make_tables_traced(source, like)
            return _make_tables_by_array_api(source, like) if tables is NotImplemented else tables
        kernel = load_kernel()
        run = partial(kernel.make_tables, like.device)
        tables = _native.make_tables(source, like, LIBRARY, run, kernel.plan_of_array, like.is_cpu)
        if tables is not NotImplemented:
            return tuple([table.contiguous() for table in tables])
    return _make_tables_by_array_api(source, like)
