"""The C++ kernel's rotation as operators of PyTorch, for compiled programs on the CPU.

The arguments are tensors, numbers and text, which PyTorch's caches can store: a program that another process
compiled carries its plan. `_compiled` calls them, and gives the rotation its gradient.
"""

import json
from typing import Any

import torch

from rope_array._array_api.source import Positions, Source, Tables
from rope_array._backends import _native
from rope_array import _dynamo
from rope_array._errors import BackendError
from rope_array._spec.plan import Constants, Coordinates, Layout, Plan

from ._operations import adjoint, rotate_by_operations

_LIMIT = 256  # plans that are remembered


# ---- plans as text ----


@_dynamo.traced_constant
def write_text(plan: Plan) -> None:
    """Set `plan.text`. Dynamo reads the attribute afterwards, so it compiles anew for another plan."""
    if plan.text is None:
        coordinates = plan.coordinates and (plan.coordinates.number, plan.coordinates.of_pairs.values)
        turns96 = [high << 32 | low for high, low in zip(*(words.values for words in plan.turns_q96), strict=True)]
        plan.text = json.dumps([plan.layout, plan.frequencies.values, plan.turns_q64.values, turns96, coordinates])


def _read_plan(text: str) -> Plan:
    layout, frequencies, turns64, turns96, coordinates = json.loads(text)
    if coordinates is not None:
        coordinates = Coordinates(coordinates[0], Constants(coordinates[1]))
    plan = Plan(Layout(*layout), True, frequencies, turns64, turns96, None, coordinates)
    _native.prepare(plan)
    return plan


_plans: dict[str, Plan] = {}


def _plan_of(text: str) -> Plan:
    """Return the plan of a text, which is read once."""
    plan = _plans.get(text)
    if plan is None:
        plan = _read_plan(text)
        with _dynamo.lock:
            if len(_plans) >= _LIMIT:
                _plans.clear()
            _plans[text] = plan
    return plan


# ---- the operators ----


def rotate(xs: Any, source: Source, seq_axis: int, transposed: bool, recorded: bool = False) -> Any:
    """Rotate arrays of one compute dtype by int64 positions, or by tables of that dtype.

    `recorded`: the result may be differentiated, by the operator's own rule.
    """
    at, by = _RECORDED if recorded else _PLAIN
    if isinstance(source, Tables):
        cos, sin, (_, start, stop, pairing, out_pairing, _, blocks) = adjoint(source) if transposed else source
        return by(xs, cos, sin, start, stop, pairing, out_pairing, blocks, seq_axis)
    write_text(source.plan)
    return at(xs, source.values, source.plan.text, transposed, seq_axis)


def _read_at(xs: Any, pos: Any, plan: str, transposed: bool, seq_axis: int) -> tuple[Any, Source, int, bool]:
    return xs, Positions(pos, _plan_of(plan)), seq_axis, transposed


def _read_by(
    xs: Any, cos: Any, sin: Any, start: int, stop: int, pairing: str, out_pairing: str, blocks: int, seq_axis: int
) -> tuple[Any, Source, int, bool]:
    layout = Layout(xs[0].shape[-1], start, stop, pairing, out_pairing, None, blocks)
    return xs, Tables(cos, sin, layout), seq_axis, False


def _rotate_by_kernel(xs: Any, source: Source, seq_axis: int, transposed: bool) -> list[Any]:
    ys = _native.kernel.rotate(tuple(xs), source, seq_axis, None, True, transposed)
    if ys is NotImplemented:  # tables may be where the kernel cannot read them
        contiguous = [t.clone(memory_format=torch.contiguous_format) for t in source.arrays if t is not None]
        source = type(source)(*contiguous, *source[len(contiguous) :])
        ys = _native.kernel.rotate(tuple(xs), source, seq_axis, None, True, transposed)
    if ys is NotImplemented:
        raise BackendError(
            "the C++ kernel declines a call of a compiled program: the memory of an array was freed meanwhile, "
            "or another version of rope_array compiled the program. Compile it anew."
        )
    return list(ys)


def _define(name: str, source: str, read: Any) -> tuple[Any, Any]:
    """Define an operator, and one with a rule for gradients, which costs microseconds in every call."""
    for each in (name, f"{name}_recorded"):
        _LIBRARY.define(f"{each}(Tensor[] xs, {source}, int seq_axis) -> Tensor[]", tags=_TAGS)
        _LIBRARY.impl(each, lambda *args: _rotate_by_kernel(*read(*args)), "CPU")
        # The vmap of batched gradients; torch.func's vmap never gets here: Dynamo traces it.
        _LIBRARY.impl(each, lambda *args: list(rotate_by_operations(*read(*args))), "Batched")
        torch.library.register_fake(f"rope_array::{each}", _empty_like, lib=_LIBRARY)

    def keep(ctx: Any, inputs: Any, output: Any) -> None:
        tensors = [value for value in inputs[1:] if isinstance(value, torch.Tensor)]
        ctx.save_for_backward(*tensors)
        ctx.others = inputs[1 + len(tensors) :]

    def rotate_back(ctx: Any, grads: Any) -> Any:
        _, source, seq_axis, transposed = read(grads, *ctx.saved_tensors, *ctx.others)
        back = rotate(grads, source, seq_axis, not transposed, recorded=True)
        return back, *[None] * (len(ctx.saved_tensors) + len(ctx.others))

    torch.library.register_autograd(f"rope_array::{name}_recorded", rotate_back, setup_context=keep, lib=_LIBRARY)
    of_name = torch.ops.rope_array
    return getattr(of_name, name).default, getattr(of_name, f"{name}_recorded").default


def _empty_like(xs: Any, *others: Any) -> list[Any]:
    return [torch.empty_like(x) for x in xs]


_LIBRARY = torch.library.Library("rope_array", "DEF")
# Each array as it is in memory: the result has its strides.
_TAGS = (torch.Tag.pt2_compliant_tag, torch.Tag.needs_exact_strides)
_LAYOUT = "int start, int stop, str pairing, str out_pairing, int blocks"
_AT = _define("rotate_at", "Tensor pos, str plan, bool transposed", _read_at)
_BY = _define("rotate_by", f"Tensor cos, Tensor sin, {_LAYOUT}", _read_by)
_PLAIN, _RECORDED = zip(_AT, _BY, strict=True)
