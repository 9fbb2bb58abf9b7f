"""PyTorch: the array-api backend with PyTorch's functions, for fake and distributed tensors and autocast too.

Dynamo traces this code: plain attribute and type tests only, neither caches nor imports.
"""

from contextlib import nullcontext, suppress
from functools import partial
from typing import Any

import torch

from rope_array._array_api import tables as _tables
from rope_array._array_api.attention import AttentionCall, make_by_parts
from rope_array._array_api.library import Library
from rope_array._array_api.source import Call, Positions, Tables
from rope_array._backends import _native
from rope_array._dynamo import mark_as_constant
from rope_array._internals import internal
from rope_array._rotation import load_rotation, name_types
from rope_array._spec.plan import Layout, Plan

from . import _attention, _compiled, _distributed, _eager
from ._gradient import FewOperations, make_recorded_tables
from ._library import LIBRARY, is_recorded, no_autocast
from ._stacked import StackedOps

name = "torch"
is_array_api = True


def library(x: Any) -> Library:
    """Return PyTorch."""
    return LIBRARY


def rotate(call: Call) -> Any:
    """Rotate the arrays of a call."""
    with _fake_as(call.xs[0]), no_autocast(call.xs[0]):
        if _distributed.has_dtensor(*call.xs, *call.source.arrays):
            return _distributed.rotate_shards(call)
        if torch.compiler.is_dynamo_compiling() and _compiled.why_call_unserved(call.xs, call.source) is None:
            return _compiled.rotate_traced(call, by_kernel=False)
        if (tables := _tables_on_device(call)) is not None:
            return _eager.rotate_eagerly(FewOperations, call.xs, tables, call.options)
        return _tables.rotate_by_array_api(call)


_HOSTS = ("cpu",)  # devices on which large results cost more time than many operations


def _tables_on_device(call: Call) -> Tables | None:
    """Return the tables of an eager call for `FewOperations`, or None for a call that it does not serve."""
    xs, source = call.xs, call.source
    if not _is_eager_on_device(xs, source) or source.layout.blocks > 1 or len({*call.float64}) > 1:
        return None
    cos, sin = source.arrays if isinstance(source, Tables) else make_tables(source, xs[0])
    tables = Tables(cos, sin, source.layout)
    return Tables(*_tables.cast_tables(tables, call.float64[0], call.ops), source.layout)


def _is_eager_on_device(xs: Any, source: Any) -> bool:
    """Return whether a call is eager, of plain tensors that nothing intercepts, and not on a host."""
    if torch.compiler.is_compiling() or xs[0].device.type in _HOSTS:
        return False
    reason = _eager.first_tensor_reason(xs, source, _eager.why_tensor_not_plain)
    return not (reason or _eager.why_call_declined(source, is_recorded(xs)))


def attention_inputs(inputs: AttentionCall) -> Any:
    """Make the results of a call; of one whose gradient is recorded, by the gradient's own rule."""
    call, results = inputs.call, NotImplemented
    with no_autocast(call.xs[0]):
        if not torch.compiler.is_dynamo_compiling():
            source_for = partial(_native.sources, call, torch.Tensor.to, lambda plan: None)
            results = _attention.attention_eagerly(None, inputs, source_for)
        elif _compiled.why_call_unserved(call.xs, call.source) is None:
            results = _attention.attention_traced(inputs, by_kernel=False)
        return make_by_parts(rotate, inputs) if results is NotImplemented else results


def make_tables(source: Positions, like: Any) -> Any:
    """Make cos and sin."""
    with _fake_as(like), no_autocast(like):
        if _distributed.has_dtensor(like, *source.arrays):
            return _distributed.make_sharded_tables(source, like, LIBRARY)
        return make_recorded_tables(_make_tables, source, like)


def _make_tables(source: Positions, like: Any) -> Any:
    is_stacked = not is_recorded(source.arrays) and _is_eager_on_device((like,), source)
    ops = StackedOps(LIBRARY.xp, True, {"device": like.device}) if is_stacked else None
    return _tables.make_tables(source, like, LIBRARY, ops)


def _fake_as(x: Any) -> Any:
    """Return the mode of a fake tensor, in which new tensors are fake too."""
    return x.fake_mode if type(x).__name__ == "FakeTensor" else _NOTHING


_NOTHING = nullcontext()


def _register_type(cls: Any) -> None:
    """Name a type of Rotation for torch.export.save; a program loads only after this type is registered."""
    if cls not in (internal(f"{_TREES}.SUPPORTED_NODES") or ()):
        with suppress(Exception):  # of a changed function: torch.export.save then refuses the type itself
            _register_namedtuple(cls, serialized_type_name=_name(cls))


def _unregister_type(cls: Any) -> None:
    """Remove a type from the registries of `_register_namedtuple`: PyTorch has no function for it."""
    keys = {"SUPPORTED_NODES": cls, "SUPPORTED_SERIALIZED_TYPES": cls}
    for registry, key in {**keys, "SERIALIZED_TYPE_TO_PYTHON_TYPE": _name(cls)}.items():
        (internal(f"{_TREES}.{registry}") or {}).pop(key, None)


def _name(cls: Any) -> str:
    return f"rope_array.Rotation{list(cls.layout)}"


_TREES = "torch.utils._pytree"
_register_namedtuple: Any = internal(f"{_TREES}._register_namedtuple")
if _register_namedtuple is not None:
    name_types(_register_type, _unregister_type)
    # A saved program contains its example inputs: torch.export.load unpickles them only if these are allowed.
    torch.serialization.add_safe_globals([load_rotation, Layout])

mark_as_constant(Plan)  # for plans that were made before PyTorch was imported
