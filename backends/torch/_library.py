"""PyTorch as a library: its devices, dtypes and constants, and which tensors can be read and written.

Dynamo traces this code: plain attribute and type tests only, neither caches nor imports.
"""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import array_api_compat.torch as xp
import torch

from rope_array import _dynamo
from rope_array._array_api.library import Library, Memory
from rope_array._array_api.ops import ArrayOps
from rope_array._array_api.source import Source
from rope_array._errors import ArrayTypeError, describe
from rope_array._internals import CREATION, internal
from rope_array._spec.plan import Constants

from . import _distributed

PLAIN_TYPES = (torch.Tensor, torch.nn.Parameter)  # a Parameter is a plain tensor that a module owns
# Returns whether a functorch transform is active; None if this PyTorch does not report it.
TRANSFORMED: Any = internal("torch._C._are_functorch_transforms_active")
_IS_ZEROTENSOR: Any = internal("torch.Tensor._is_zerotensor")
_CREATION, _DEFAULT, _IS_VIEW, _BASE = map(internal, CREATION)
_JIT: Any = torch.jit  # its type lacks is_tracing
CAN_JUDGE_VIEWS = None not in (_CREATION, _DEFAULT, _IS_VIEW, _BASE)


# is_dynamo_compiling is True only in code that Dynamo traces. is_compiling is True also in code that PyTorch
# runs with fake tensors: in torch.export with strict=False, and in newer versions during torch.compile.
# Ask is_compiling before a call may take a kernel or read memory. Ask is_dynamo_compiling for a limit that
# Dynamo alone has, and in fast entry points: it takes less time, and the kernel declines fake tensors itself.


def is_exported() -> bool:
    """Return whether torch.export or torch.jit.trace records PyTorch's operations, for another tool."""
    if torch.compiler.is_compiling():  # first: Dynamo evaluates it, and skips the rest
        return bool(_is_exporting())
    return bool(_JIT.is_tracing())


@_dynamo.traced_constant  # before 2.13, Dynamo evaluates is_exporting() as True
def _is_exporting() -> bool:
    """Return whether torch.export compiles."""
    return bool(torch.compiler.is_exporting())


# Inductor writes arrays of up to 8 numbers into its C++ code. If positions come from torch.arange in the
# same graph, the C++ compiler then knows both factors of a fixed-point product. The product wraps, which
# C++ leaves undefined for signed integers: GCC assumed that it does not, and angles were wrong. Longer
# arrays stay in memory.
INLINED = 8


def materialize(array: Any) -> Any:
    """Have the compiler store an array, as it does before it takes a strided view.

    Otherwise it computes an array again in each loop that reads it: the angles for each head, say.
    """
    is_rounded = array.itemsize == 2 and not array.requires_grad
    if is_rounded and TRANSFORMED is not None and not TRANSFORMED():
        # Inductor leaves out a rounding to 16 bits before a cast to float32; arithmetic on its bits keeps it.
        return array.view(torch.int16).bitwise_not().bitwise_not().view(array.dtype)
    return array.as_strided(array.shape, array.stride())


class TorchOps(ArrayOps):
    """PyTorch's operations, for eager and compiled calls, and for exporters."""

    def __init__(self, xp: Any, has_int64: bool, creation_kwargs: dict[str, Any]):
        super().__init__(xp, has_int64, creation_kwargs)
        self.is_exported = is_exported()
        self.reads_numpy = not (self.is_exported or torch.compiler.is_compiling())

    def constants(self, numbers: Constants, dtype: Any) -> Any:
        values = numbers.values
        if len(values) <= INLINED and torch.compiler.is_compiling():
            padded = (*values, *(0,) * INLINED)
            return torch.tensor(padded, dtype=dtype, **self.creation_kwargs)[: len(values)]
        return torch.tensor(values, dtype=dtype, **self.creation_kwargs)

    def stored(self, array: Any) -> Any:
        stores = torch.compiler.is_dynamo_compiling() and not self.is_exported
        return materialize(array) if stores else array

    def inverse_sqrt(self, array: Any) -> Any:
        # On the CPU, rsqrt is 1 / sqrt in two rounded steps; sqrt itself is not rounded correctly.
        return array.rsqrt() if array.is_cpu else 1.0 / array.sqrt()

    def from_values(self, values: list[Any], dtype: Any) -> Any:
        # In a compiled function asarray reduces integers modulo 2**32 (PyTorch 2.13); tensor does not.
        return torch.tensor(values, dtype=dtype, **self.creation_kwargs)

    def right_shift(self, array: Any, count: int) -> Any:
        # The TorchScript ONNX exporter rounds a shift toward zero, and OpenVINO miscomputes the newer
        # exporter's shift. Both exporters divide non-negative integers correctly. AOTInductor makes slow code
        # of a division. ExecuTorch has no kernel for the operator `>>`, __rshift__.
        if _is_for_other_tools():
            return array // 2**count
        return torch.bitwise_right_shift(array, count) if self.is_exported else array >> count


class Torch(Library):
    """PyTorch: types are tested directly, as Dynamo warns about array-api-compat's cache."""

    operations = TorchOps
    converter = "torch.as_tensor(pos, device=x.device)"
    keeps_float64 = True
    has_caches = True

    def has_int64(self, x: Any) -> bool:
        return True

    def is_array(self, value: Any) -> bool:
        return isinstance(value, torch.Tensor)

    def device(self, x: Any) -> Any:
        return x.device

    def host_numbers(self, array: Any) -> Any:
        if torch.compiler.is_compiling() or type(array) not in PLAIN_TYPES or not array.is_cpu:
            return None
        modes = internal("torch._C._len_torch_dispatch_stack")
        is_watched = TRANSFORMED is None or TRANSFORMED() or modes is None or modes() or _JIT.is_tracing()
        return None if is_watched else array.tolist()

    def has_fixed_sizes(self, x: Any) -> bool:
        return not (torch.compiler.is_compiling() or any([isinstance(n, torch.SymInt) for n in x.shape]))

    def check_supported(self, value: Any) -> None:
        if value.is_nested:
            raise ArrayTypeError(
                f"a nested tensor of {value.dtype} has no one shape; "
                "give its values(), and a position for each row."
            )
        if value.layout is not torch.strided:
            raise ArrayTypeError(
                f"{describe(value)} has the layout {value.layout}; give a dense tensor: its to_dense()."
            )
        if type(value).__name__ == "MaskedTensor":
            raise ArrayTypeError(
                f"{describe(value)} is a masked tensor; a rotation mixes the members of a pair, so a mask "
                "has no one meaning after it. Give its get_data(), and keep the mask separately."
            )

    def check_mix(self, xs: Any, source: Source) -> None:
        if isinstance(source.arrays[0], range) and torch.compiler.is_dynamo_compiling():
            _refuse_range()
        if any([x is earlier for i, x in enumerate(xs) for earlier in xs[:i]]):
            _refuse_repeated_in_export()
        if _distributed.has_dtensor(*xs, *source.arrays):
            _distributed.check(xs, source)

    def check_out(self, out: Any, x: Any, source_arrays: Any) -> None:
        _check_not_transformed()
        read = [array for array in source_arrays if isinstance(array, torch.Tensor)]
        _check_gradients(out, x, read)
        for tensor in (out, x, *read):
            if (reason := _why_tensor_unusable(tensor, tensor is out)) is not None:
                raise ArrayTypeError(
                    f"out is given, and {describe(tensor)} is {reason}; omit out, and use the result."
                )

    def check_cache(self, name: str, cache: Any) -> None:
        _check_not_transformed("cache")
        if (reason := _why_tensor_unusable(cache, True)) is not None:
            raise ArrayTypeError(f"{name} is {describe(cache)}, {reason}; give a plain tensor.")
        if cache.requires_grad and torch.is_grad_enabled():
            raise ArrayTypeError(
                f"{name} is {describe(cache)}, which requires a gradient, and caches have none; give its "
                "detach(), or work under torch.no_grad()."
            )

    def checks_while_tracing(self, outs: Any, xs: Any, source_arrays: Any) -> bool:
        if not torch.compiler.is_compiling():
            return False
        _check_not_transformed()
        read = [array for array in source_arrays if isinstance(array, torch.Tensor)]
        for out, x in zip(outs, xs, strict=True):
            _check_gradients(out, x, read)
        _check_traced_memory(outs)
        return True

    def memory(self, array: Any) -> Memory | None:
        strides = tuple(stride * array.itemsize for stride in array.stride())
        return Memory(array.data_ptr(), tuple(array.shape), strides, array.itemsize, True)

    def copy_into(self, out: Any, y: Any) -> None:
        out.copy_(y)

    def write_rows(
        self, cache: Any, order: tuple[int, ...], index: tuple[Any, ...], keep: Any, rows: Any, ops: ArrayOps
    ) -> Any:
        # No boolean index: a compiler would not know its size, and a GPU would wait for it. Instead of a row
        # that is not kept, write one that is once more; if there is none, a row of the cache as it is.
        if not rows.numel() or not cache.numel():
            return cache
        with torch.no_grad(), no_autocast(cache):  # a cache has no gradient; autocast joins no float8
            written, number = cache.permute(order), rows.shape[0]
            first = keep.to(torch.int8).argmax(0, keepdim=True)
            spare = tuple([i[first].clamp(min=0) for i in index])
            # Rows by their numbers: `where` has no rule for float8, and Inductor (2.13) miscomputes its bits.
            row = torch.where(keep, torch.arange(number, device=keep.device), first)
            row = torch.where(keep[first], row, number)
            at = tuple([torch.where(keep, i, s) for i, s in zip(index, spare, strict=True)])
            values = torch.cat([rows, written[spare]])[row]
            if in_onnx_export():  # the older exporter loses a write into a view
                return written.index_put(at, values).permute([order.index(a) for a in range(cache.ndim)])
            written[at] = values
        return cache


def _is_for_other_tools() -> bool:
    """Return whether torch.jit.trace or an ONNX exporter records operations, not torch.export alone."""
    if torch.compiler.is_compiling():
        return bool(in_onnx_export())
    return bool(_JIT.is_tracing())


# A constant: Dynamo, which exports with strict=True, evaluates is_in_onnx_export() as False. Older versions
# report the TorchScript exporter only.
@_dynamo.traced_constant
def in_onnx_export() -> bool:
    return bool(torch.onnx.is_in_onnx_export())


# A constant: Dynamo would catch an error that it traces, and run the function without compiling it.
@_dynamo.traced_constant
def _refuse_range() -> None:
    raise ArrayTypeError(
        "pos is a range inside a compiled function, which torch.compile would compile anew for each length, "
        "up to its limit of recompilations; give torch.arange(start, stop, device=x.device)."
    )


# A constant, as _refuse_range. torch.jit.trace, and so the older ONNX exporter, keeps two inputs apart.
@_dynamo.traced_constant
def _refuse_repeated_in_export() -> None:
    """Raise for a tensor given twice to a call that torch.export records.

    torch.export makes one input of an example tensor that is given twice, the last, and ignores the others.
    """
    if torch.compiler.is_compiling() and _is_exporting():
        raise ArrayTypeError(
            "two tensors of one call, such as q and k, are the same tensor, and torch.export makes one input "
            "of them: the program would return rotated keys as queries. Give each input of the example a "
            "tensor of its own, such as q.clone(). If the model means one tensor, rotate it once: "
            "rope.apply(q, positions), or module.rotation(positions, like=q).apply(q)."
        )


def _check_not_transformed(argument: str = "out") -> None:
    """Raise if operations are transformed. Where PyTorch does not report it, no kernel writes."""
    if TRANSFORMED is not None and TRANSFORMED():
        raise ArrayTypeError(
            f"{argument} is given inside a functorch transform; transforms do not see writes into memory. "
            f"Omit {argument}."
        )


def _check_traced_memory(outs: Any) -> None:
    """Raise if outs share memory as far as is known without addresses."""
    for i, out in enumerate(outs):
        if any(out is earlier for earlier in outs[:i]):
            raise ArrayTypeError(
                f"out[{i}] is {describe(out)}, given twice in out; give memory for each result."
            )
        if any(stride == 0 and size != 1 for size, stride in zip(out.shape, out.stride(), strict=True)):
            raise ArrayTypeError(
                f"out is {describe(out)} with the strides {tuple(out.stride())}, whose elements share "
                "memory, as in a broadcast view; give a tensor with memory for each element."
            )


def _check_gradients(out: Any, x: Any, read: list[Any]) -> None:
    """Raise if writing would lose a gradient.

    out=x is allowed while a gradient of x is recorded, out=other is not.
    """
    recorded = [tensor for tensor in (x, out, *read) if tensor.requires_grad and torch.is_grad_enabled()]
    if not recorded:
        return
    others = [tensor for tensor in recorded if tensor is not x]
    if out is x and others:
        raise ArrayTypeError(
            f"out is x, and {describe(others[0])} requires a gradient, which a write in place records for x "
            "alone; omit out, or work under torch.no_grad()."
        )
    if out is not x:
        raise ArrayTypeError(
            f"out is given, and {describe(recorded[0])} requires a gradient, which writing into another "
            "array would lose; omit out, rotate in place (out=x), or work under torch.no_grad()."
        )
    if (reason := _why_out_refused(x)) is not None:
        raise ArrayTypeError(
            f"out is x, {describe(x)}, which requires a gradient and is {reason}, which PyTorch does not "
            "write in place; omit out, take views by indexing, or work under torch.no_grad()."
        )


def _why_out_refused(x: Any) -> str | None:
    """Return why autograd refuses to write into x, or None. It would raise after the kernel has written."""
    if x.is_leaf:
        return "a leaf"
    # Compiled calls write by copy_, which raises at views that autograd does not take. So do calls where
    # CAN_JUDGE_VIEWS is false.
    if CAN_JUDGE_VIEWS and not torch.compiler.is_compiling() and _IS_VIEW(x):
        base = _BASE.__get__(x)
        if base.is_leaf and base.requires_grad:
            return "a view of a leaf"
        if _CREATION(x) != _DEFAULT:
            return "a view made under no_grad, or by a function that returns several, such as unbind or split"
    return None


def _why_tensor_unusable(x: Any, written: bool) -> str | None:
    """Return why a call with out= cannot compare, read or write the memory of a tensor, or None."""
    if type(x) not in PLAIN_TYPES or x.device.type == "meta":
        return f"a {type(x).__name__} on {x.device}, whose memory cannot be compared"
    if not x.data_ptr() and x.numel():  # fully sharded training frees the memory of a tensor
        return "a tensor whose memory has been freed"
    if written and is_lazy(x):
        return "a lazily negated or zero tensor, whose memory differs from its values"
    if written and x.is_inference() and not torch.is_inference_mode_enabled():
        return "of torch.inference_mode(), and can be written only inside it"
    return None


def unit_pairs(num_pairs: int, use_float64: bool, device: Any) -> Any:
    """Return (1, 0) of each pair, the ones first: rotated, it is cos and sin."""
    units = torch.arange(2 * num_pairs, device=device) < num_pairs
    return units.to(torch.float64 if use_float64 else torch.float32)


def is_recorded(xs: Any) -> bool:
    """Return whether a gradient of xs is recorded."""
    if torch.is_grad_enabled():
        for x in xs:
            if getattr(x, "requires_grad", False):
                return True
    return False


# ---- autocast ----


def no_autocast(x: Any) -> Any:
    """Return a mode without autocast, which cannot join half-precision dtypes other than its own."""
    device = x.device.type
    active = _has_autocast(device) and torch.is_autocast_enabled(device)
    return torch.autocast(device, enabled=False) if active else _NOTHING


@_dynamo.traced_constant  # before 2.13, Dynamo cannot trace is_autocast_available
def _has_autocast(device: str) -> bool:
    """Return whether a type of device has autocast; meta has none, for one."""
    return bool(torch.amp.is_autocast_available(device))


_NOTHING = nullcontext()

# ---- writes that PyTorch does not see ----


def can_be_written(out: Any) -> bool:
    """Return whether PyTorch allows an operation to write a tensor of which no gradient is recorded."""
    return torch.is_inference_mode_enabled() or not out.is_inference()


def is_lazy(x: Any) -> bool:
    """Return whether a tensor is lazily negated, or a zero tensor: its memory differs from its values.

    A zero tensor has no address, by which it is found too.
    """
    return x.is_neg() or bool(_IS_ZEROTENSOR is not None and _IS_ZEROTENSOR(x))


def _load_count_writes() -> Any:
    increment_version: Any = internal("torch._C._increment_version")
    try:
        increment_version(())
    except (RuntimeError, TypeError, ValueError):  # of older versions, which take one tensor; or None
        return lambda outs: [out[:0].zero_() for out in outs]  # nothing is written, and each write is counted
    return increment_version


# Counts a write to each tensor of a tuple, as operations in place do, so that autograd sees saved tensors
# change. Tensors of inference mode have no count.
count_writes: Callable[[Any], None] = _load_count_writes()


LIBRARY = Torch("torch", xp)
