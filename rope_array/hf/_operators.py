"""Operators that torch.compile records without tracing this package's code.

Dynamo checks the code, the globals and the closures of every function that it traces, before each call of the
compiled program: some 450 guards and 0.15 ms for a Llama of four layers. An operator is one node, without
guards. AOTAutograd then replaces it by the operations that its Python code calls. A rope and a layout are
arguments of text, which PyTorch's caches can store.
"""

import functools
import hashlib
import json
import pickle
import sys
from pathlib import Path
from typing import Any

import torch

from rope_array import _dispatch
from rope_array._array_api.source import Tables
from rope_array._dynamo import traced_constant
from rope_array._errors import PatchError
from rope_array._internals import internal
from rope_array._rope import RoPE
from rope_array._spec.plan import Layout

# If this PyTorch lacks it, Dynamo traces the calls.
_TRANSFORMED: Any = internal("torch._C._are_functorch_transforms_active")
_is_exporting: Any = getattr(torch.compiler, "is_exporting", torch.compiler.is_compiling)


@functools.cache
def _cache_key() -> str:
    """Return a text that differs between two installations whose operators become other operations.

    PyTorch stores these operations on disk, and finds them by the arguments of an operator.
    """
    backends = _dispatch.backends_for((torch.empty(0),)).in_order
    folders = (Path(__file__).parents[1], *map(Path, sys.modules["rope_array._backends"].__path__))
    sources = hashlib.sha256()
    for path in sorted(path for folder in folders for path in folder.rglob("*.py")):
        sources.update(path.read_bytes())
    states = [f"{backend.name} {getattr(backend, 'unavailable_reason', str)()}" for backend in backends]
    return json.dumps([sources.hexdigest(), *states])


def serves(*tensors: Any) -> bool:
    """Return whether a compiled call may be an operator: not in exported programs, which run without us."""
    if _is_exporting() or _TRANSFORMED is None or _TRANSFORMED():
        return False
    return all(type(x) in (torch.Tensor, torch.nn.Parameter) for x in tensors)


# Ropes of this process by their text, kept with the operators, which copies of this package share. A program
# from a file may contain any text: unpickling it could run code.
_ROPES: dict[str, RoPE] = vars(torch.ops.rope_array_hf).setdefault("_ropes", {})


def text_of(rope: RoPE) -> str:
    """Return a rope as an argument of `make_tables_by_operator`."""
    text = json.dumps([pickle.dumps(rope).hex(), _cache_key()])
    _ROPES[text] = rope
    return text


def make_tables_by_operator(x: Any, pos: Any, rope: str) -> Any:
    """Return cos and sin of a rope at positions, as `RoPE.rotation` makes them."""
    return torch.ops.rope_array_hf.make_tables.default(x, pos, rope)


def rotate_by_operator(
    xs: tuple[Any, ...], tables: Tables, seq_axis: int, follows_norm: bool = False
) -> tuple[Any, ...]:
    """Rotate tensors by tables: on a GPU by one launch of a kernel, unless it follows a norm.

    The compiler fuses PyTorch's operations with a norm. On the CPU they take less time than the kernel.
    """
    cos, sin, layout = tables
    has_float64 = torch.float64 in [cos.dtype, *[x.dtype for x in xs]]
    by_kernel = not (has_float64 or follows_norm) and _has_kernel(xs[0].device)
    text = _layout_text(*layout)
    return tuple(torch.ops.rope_array_hf.rotate.default(xs, cos, sin, text, seq_axis, by_kernel))


@traced_constant
def _has_kernel(device: torch.device) -> bool:
    return device.type == "cuda" and has_one_pass(device)


@functools.cache
def has_one_pass(device: torch.device) -> bool:
    """Return whether a kernel norms and rotates in one pass on a device. By parts the modules are faster."""
    x = torch.zeros((1, 2), dtype=torch.float32, device=device)
    source = Tables(x[:, :1], x[:, :1], Layout(2, 0, 2, "half", "half", None))
    backends: tuple[Any, ...] = _dispatch.backends_for((x,)).in_order
    # A backend that declines nothing computes by array operations.
    kernels = [b for b in backends if hasattr(b, "attention_inputs") and hasattr(b, "decline_reason")]
    return any(kernel.decline_reason((x,), source) is None for kernel in kernels)


@traced_constant
def _layout_text(*layout: Any) -> str:
    return json.dumps([*layout, _cache_key()])


def _make_tables_in_graph(x: Any, pos: Any, rope: str) -> list[Any]:
    if rope not in _ROPES:
        raise PatchError(
            "The compiled program was made in another process: patch and compile the model here."
        )
    return list(_ROPES[rope].rotation(pos, like=x))


def _rotate_in_graph(xs: Any, cos: Any, sin: Any, layout: str, seq_axis: int, by_kernel: bool) -> list[Any]:
    table_layout = Layout(*json.loads(layout)[:-1])
    if not by_kernel:
        source = Tables(cos, sin, table_layout)
        return list(_dispatch.rotate(tuple(xs), source, (seq_axis,), None, "torch"))
    _, *numbers, blocks = table_layout
    arguments = (xs, cos, sin, *numbers[:-1], blocks, seq_axis)
    if torch.is_grad_enabled() and any(x.requires_grad for x in xs):
        return list(torch.ops.rope_array.rotate_by_recorded.default(*arguments, True))
    return list(torch.ops.rope_array.rotate_by.default(*arguments))


_LIBRARY = torch.library.Library("rope_array_hf", "FRAGMENT")
_SCHEMAS = {
    "make_tables(Tensor x, Tensor pos, str rope) -> Tensor[]": _make_tables_in_graph,
    "rotate(Tensor[] xs, Tensor cos, Tensor sin, str layout, int seq_axis, bool by_kernel)"
    " -> Tensor[]": _rotate_in_graph,
}
for _schema, _function in _SCHEMAS.items():
    _name = _schema.partition("(")[0]
    if not hasattr(torch.ops.rope_array_hf, _name):  # else a copy of this package, imported before, has it
        _LIBRARY.define(_schema)
        _LIBRARY.impl(_name, _function, "CompositeImplicitAutograd")
