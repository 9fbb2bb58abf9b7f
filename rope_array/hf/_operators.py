"""Operators that torch.compile records without tracing this package's code.

Dynamo checks the code, the globals and the closures of every function that it traces, before each call of the
compiled program: some 450 guards, 0.15 ms. An operator is one node. AOTAutograd then replaces it by the
operations that its Python code calls, and its arguments are text, which PyTorch's caches can store.
"""

import functools
import hashlib
import json
import pickle
import time
from typing import Any

import torch

from rope_array import _dispatch
from rope_array._array_api.source import Tables
from rope_array._dynamo import traced_constant
from rope_array._rope import RoPE
from rope_array._spec.plan import Layout
from rope_array._version import version

# Private: without it, Dynamo traces the calls.
_TRANSFORMED: Any = getattr(torch._C, "_are_functorch_transforms_active", None)
_is_exporting: Any = getattr(torch.compiler, "is_exporting", torch.compiler.is_compiling)
_ropes: dict[str, RoPE] = {}


@functools.cache
def _cache_key() -> str:
    """Return a text that differs where an operator may become other operations, which PyTorch stores.

    They depend on the version and on the backends. The sources of a checkout may change between processes.
    """
    backends = _dispatch.backends_for((torch.empty(0),)).in_order
    states = [f"{backend.name} {getattr(backend, 'unavailable_reason', str)()}" for backend in backends]
    return json.dumps([version(), time.time_ns() if "+" in version() else 0, *states])


def serves(*tensors: Any) -> bool:
    """Return whether a compiled call may be an operator. Exported programs run without this package."""
    if _is_exporting() or _TRANSFORMED is None or _TRANSFORMED():
        return False
    return all(type(x) in (torch.Tensor, torch.nn.Parameter) for x in tensors)


def name_of(rope: RoPE) -> str:
    """Return a name for a rope, equal in all processes with this version of the package."""
    name = f"{_cache_key()} {hashlib.sha256(pickle.dumps(rope)).hexdigest()}"
    _ropes[name] = rope
    return name


def make_tables(x: Any, pos: Any, rope_name: str) -> Any:
    """Return cos and sin of a rope at positions, as `RoPE.rotation` makes them."""
    return torch.ops.rope_array_hf.make_tables.default(x, pos, rope_name)


def rotate(xs: tuple[Any, ...], tables: Tables, seq_axis: int) -> tuple[Any, ...]:
    """Rotate tensors by tables."""
    cos, sin, layout = tables
    return tuple(torch.ops.rope_array_hf.rotate.default(xs, cos, sin, _text_of(*layout), seq_axis))


@traced_constant
def _text_of(*layout: Any) -> str:
    return json.dumps([*layout, _cache_key()])


def _make_tables(x: Any, pos: Any, rope_name: str) -> list[Any]:
    return list(_ropes[rope_name].rotation(pos, like=x))


def _rotate(xs: Any, cos: Any, sin: Any, layout: str, seq_axis: int) -> list[Any]:
    # Operations, also where the kernel serves: the compiler joins them with their neighbours, in less time
    # than a call of the kernel.
    source = Tables(cos, sin, Layout(*json.loads(layout)[:-1]))
    return list(_dispatch.rotate(tuple(xs), source, seq_axis, None, "torch"))


_LIBRARY = torch.library.Library("rope_array_hf", "FRAGMENT")
_SCHEMAS = {
    "make_tables(Tensor x, Tensor pos, str rope_name) -> Tensor[]": _make_tables,
    "rotate(Tensor[] xs, Tensor cos, Tensor sin, str layout, int seq_axis) -> Tensor[]": _rotate,
}
for _schema, _function in _SCHEMAS.items():
    _name = _schema.partition("(")[0]
    if not hasattr(torch.ops.rope_array_hf, _name):  # else a copy of this package, imported before, has it
        _LIBRARY.define(_schema)
        _LIBRARY.impl(_name, _function, "CompositeImplicitAutograd")
