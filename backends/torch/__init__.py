"""PyTorch: the core, with the tensors that need a word of their own seen to first.

Code here runs under Dynamo too, which traces plain attribute and type tests but neither caches nor imports.
"""

from contextlib import nullcontext
from typing import Any

import array_api_compat.torch as xp
import torch

from rope_array._array_api import rotate as _core
from rope_array._array_api.library import Library, Memory
from rope_array._errors import ArrayTypeError, describe
from rope_array._spec.plan import Constants, Layout, Plan

from . import _distributed

name = "torch"
is_core = True


# Whether a functorch transform is active: a private name, and None where PyTorch has another.
TRANSFORMED: Any = getattr(torch._C, "_are_functorch_transforms_active", None)


class Torch(Library):
    """PyTorch: found by type, without array-api-compat's cached detection, of which Dynamo warns."""

    def wide(self) -> bool:
        return True

    def owns(self, value: Any) -> bool:
        return isinstance(value, torch.Tensor)

    def device(self, x: Any) -> Any:
        return x.device

    def check_sound(self, value: Any) -> None:
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
                "has no one meaning after it. Give its get_data(), and keep the mask beside it."
            )

    def check_written(self, out: Any, read: Any) -> None:
        tensors = [one for one in (out, *read) if isinstance(one, torch.Tensor)]
        _check_recorded(tensors)
        for one in tensors:
            if (what := _untold(one, one is out)) is not None:
                raise ArrayTypeError(
                    f"out is given, and {describe(one)} is {what}; leave out= out, and take the result."
                )

    def memory(self, array: Any) -> Memory | None:
        strides = tuple(stride * array.itemsize for stride in array.stride())
        return Memory(array.data_ptr(), tuple(array.shape), strides, array.itemsize, True)

    def write(self, out: Any, y: Any) -> None:
        out.copy_(y)

    def constants(self, numbers: Constants, dtype: Any, create: dict[str, Any]) -> Any:
        return torch.tensor(numbers.values, dtype=dtype, **create)


def _check_recorded(tensors: Any) -> None:
    """Refuse to write where operations are compiled, transformed, or recorded for a gradient."""
    if torch.compiler.is_compiling():
        raise ArrayTypeError(
            "out is given inside a compiled function, where memory cannot be compared; leave it out there: "
            "the compiler decides what memory results have."
        )
    if TRANSFORMED is None or TRANSFORMED():
        raise ArrayTypeError(
            "out is given inside a functorch transform, which sees no writing into memory; leave it out."
        )
    for x in tensors:
        if x.requires_grad and torch.is_grad_enabled():
            raise ArrayTypeError(
                f"out is given, and {describe(x)} requires a gradient, which writing into arrays would lose; "
                "leave out= out, or work under torch.no_grad()."
            )


def is_freed(x: Any) -> bool:
    """Tell whether a dense tensor has a shape and no memory any more: fully sharded training frees it so."""
    return not x.data_ptr() and x.numel() > 0


def _untold(x: Any, written: bool) -> str | None:
    """Say why the memory of a tensor cannot be told, or written as its strides say, if so."""
    if type(x) not in (torch.Tensor, torch.nn.Parameter) or x.device.type == "meta":
        return f"a {type(x).__name__} on {x.device}, whose memory cannot be compared"
    if is_freed(x):
        return "a tensor whose memory has been freed"
    if written and (x.is_neg() or x._is_zerotensor()):
        return "a view whose numbers are not in memory as they are"
    if written and x.is_inference() and not torch.is_inference_mode_enabled():
        return "of torch.inference_mode(), outside of which it cannot be written"
    return None


LIBRARY = Torch("torch", xp)


def library(x: Any) -> Library:
    """Return PyTorch."""
    return LIBRARY


def apply(xs: Any, pos: Any, plan: Plan, seq_axis: int, run: Any) -> Any:
    """Rotate each of xs by its positions."""
    with _fake_as(xs[0]), no_autocast(xs[0]):
        pos = settled(pos, xs[0])
        if _distributed.is_placed(*xs, pos):
            return _distributed.apply(xs, pos, plan, seq_axis, LIBRARY)
        return _core.apply(xs, pos, plan, seq_axis, LIBRARY)


def tables(pos: Any, like: Any, plan: Plan, inv_freq: Any, run: Any) -> Any:
    """Make cos and sin."""
    with _fake_as(like), no_autocast(like):
        pos = settled(pos, like)
        if _distributed.is_placed(like, pos):
            return _distributed.tables(pos, like, plan, inv_freq, LIBRARY)
        return _core.tables(pos, like, plan, inv_freq, LIBRARY)


def rotate(xs: Any, cos: Any, sin: Any, layout: Layout, seq_axis: int, run: Any) -> Any:
    """Rotate each of xs by tables."""
    with _fake_as(xs[0]), no_autocast(xs[0]):
        if _distributed.is_placed(*xs, cos):
            return _distributed.rotate(xs, cos, sin, layout, seq_axis, LIBRARY)
        return _core.rotate(xs, cos, sin, layout, seq_axis, LIBRARY)


def _fake_as(x: Any) -> Any:
    """Return the mode of a fake tensor, in which what is made beside it is fake too."""
    return x.fake_mode if type(x).__name__ == "FakeTensor" else _NOTHING


def no_autocast(x: Any) -> Any:
    """Return a mode without autocast, which lets no half-precision dtype but its own be joined."""
    kind = x.device.type
    known = torch.amp.is_autocast_available(kind)  # not on meta, for one
    return torch.autocast(kind, enabled=False) if known and torch.is_autocast_enabled(kind) else _NOTHING


_NOTHING = nullcontext()


def settled(pos: Any, x: Any) -> Any:
    """Make a tensor of a symbolic number, which make_fx and export give for a Python one."""
    kinds = {torch.SymInt: torch.int64, torch.SymFloat: torch.float64}
    if type(pos) in kinds:
        return torch.full((), pos, dtype=kinds[type(pos)], device=x.device)
    return pos
