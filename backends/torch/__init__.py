"""PyTorch's form of the array-api backend, which serves fake and distributed tensors and autocast too.

Dynamo traces this code: plain attribute and type tests only, neither caches nor imports.
"""

from contextlib import nullcontext
from typing import Any

import array_api_compat.torch as xp
import torch

from rope_array._array_api import rotate as _rotate
from rope_array._array_api import tables as _tables
from rope_array._array_api.library import Library, Memory
from rope_array._array_api.source import Call, Positions, Source
from rope_array._errors import ArrayTypeError, describe
from rope_array._spec.plan import Constants

from . import _distributed

name = "torch"
is_array_api = True
PLAIN_TYPES = (torch.Tensor, torch.nn.Parameter)  # a Parameter is a plain tensor that a module owns
# Returns whether a functorch transform is active. A private name: None if this PyTorch lacks it.
TRANSFORMED: Any = getattr(torch._C, "_are_functorch_transforms_active", None)


# Inductor writes arrays of up to 8 numbers into its C++ code. If positions come from torch.arange in the
# same graph, the C++ compiler then knows both factors of a fixed-point product. The product wraps, which
# C++ leaves undefined for signed integers: GCC assumed that it does not, and angles were wrong. Longer
# arrays stay in memory.
INLINED = 8


class Torch(Library):
    """PyTorch: types are tested directly, as Dynamo warns about array-api-compat's cache."""

    def has_int64(self) -> bool:
        return True

    def is_array(self, value: Any) -> bool:
        return isinstance(value, torch.Tensor)

    def device(self, x: Any) -> Any:
        return x.device

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
        if _distributed.is_placed(*xs, *source.arrays):
            _distributed.check(xs, source.arrays[0])

    def check_out(self, out: Any, read: Any) -> None:
        tensors = [one for one in (out, *read) if isinstance(one, torch.Tensor)]
        _check_recorded(tensors)
        for one in tensors:
            if (what := _why_unusable(one, one is out)) is not None:
                raise ArrayTypeError(
                    f"out is given, and {describe(one)} is {what}; omit out, and use the result."
                )

    def memory(self, array: Any) -> Memory | None:
        strides = tuple(stride * array.itemsize for stride in array.stride())
        return Memory(array.data_ptr(), tuple(array.shape), strides, array.itemsize, True)

    def copy_into(self, out: Any, y: Any) -> None:
        out.copy_(y)

    def constants(self, numbers: Constants, dtype: Any, creation_kwargs: dict[str, Any]) -> Any:
        values = numbers.values
        if len(values) <= INLINED and torch.compiler.is_compiling():
            padded = (*values, *(0,) * INLINED)
            return torch.tensor(padded, dtype=dtype, **creation_kwargs)[: len(values)]
        return torch.tensor(values, dtype=dtype, **creation_kwargs)


def _check_recorded(tensors: Any) -> None:
    """Raise if operations are compiled, transformed, or recorded for a gradient."""
    if torch.compiler.is_compiling():
        raise ArrayTypeError(
            "out is given inside a compiled function, where memory cannot be compared; omit it there: the "
            "compiler decides where results are stored."
        )
    if TRANSFORMED is None or TRANSFORMED():
        raise ArrayTypeError(
            "out is given inside a functorch transform, or PyTorch does not report them; transforms do not "
            "see writes into memory. Omit out."
        )
    for x in tensors:
        if x.requires_grad and torch.is_grad_enabled():
            raise ArrayTypeError(
                f"out is given, and {describe(x)} requires a gradient, which writing into arrays would lose; "
                "omit out, or work under torch.no_grad()."
            )


def _why_unusable(x: Any, written: bool) -> str | None:
    """Return why a call with out= cannot compare, read or write the memory of a tensor, or None."""
    if type(x) not in PLAIN_TYPES or x.device.type == "meta":
        return f"a {type(x).__name__} on {x.device}, whose memory cannot be compared"
    if not x.data_ptr() and x.numel():  # fully sharded training frees the memory of a tensor
        return "a tensor whose memory has been freed"
    if written and (x.is_neg() or x._is_zerotensor()):
        return "a lazily negated or zero tensor, whose memory differs from its values"
    if written and x.is_inference() and not torch.is_inference_mode_enabled():
        return "of torch.inference_mode(), and can be written only inside it"
    return None


LIBRARY = Torch("torch", xp)


def library(x: Any) -> Library:
    """Return PyTorch."""
    return LIBRARY


def rotate(call: Call) -> Any:
    """Rotate the arrays of a call."""
    with _fake_as(call.xs[0]), no_autocast(call.xs[0]):
        if _distributed.is_placed(*call.xs, *call.source.arrays):
            return _distributed.rotate(call)
        return _rotate.rotate(call)


def make_tables(source: Positions, like: Any) -> Any:
    """Make cos and sin."""
    with _fake_as(like), no_autocast(like):
        if _distributed.is_placed(like, *source.arrays):
            return _distributed.make_tables(source, like, LIBRARY)
        return _tables.make_tables(source, like, LIBRARY)


def _fake_as(x: Any) -> Any:
    """Return the mode of a fake tensor, in which new tensors are fake too."""
    return x.fake_mode if type(x).__name__ == "FakeTensor" else _NOTHING


def no_autocast(x: Any) -> Any:
    """Return a mode without autocast, which cannot join half-precision dtypes other than its own."""
    kind = x.device.type
    known = torch.amp.is_autocast_available(kind)  # not on meta, for one
    return torch.autocast(kind, enabled=False) if known and torch.is_autocast_enabled(kind) else _NOTHING


_NOTHING = nullcontext()
