"""The C++ kernel's rotation as operators of PyTorch, for compiled programs on the CPU.

The arguments are tensors, numbers and text, which PyTorch's caches can store: a program that another process
compiled carries its plan. The operators have no rule for gradients: `_compiled` gives the rotation one.
"""

import json
from typing import Any

import torch

from rope_array._array_api.source import Positions, Source, Tables
from rope_array._backends import _native
from rope_array._dynamo import lock, traced_constant
from rope_array._errors import BackendError
from rope_array._spec.plan import Constants, Coordinates, Layout, Plan

_LIMIT = 256  # plans that are remembered


# ---- plans as text ----


@traced_constant
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
        with lock:
            if len(_plans) >= _LIMIT:
                _plans.clear()
            _plans[text] = plan
    return plan


# ---- the operators ----


def _rotate_at(xs: Any, pos: Any, plan: str, transposed: bool, seq_axis: int) -> list[Any]:
    """Rotate by integer positions and a plan of exact angles, or by the plan's transpose."""
    return _rotate(xs, Positions(pos, _plan_of(plan)), seq_axis, transposed)


def _rotate_by(
    xs: Any, cos: Any, sin: Any, start: int, stop: int, pairing: str, out_pairing: str, blocks: int, seq_axis: int
) -> list[Any]:
    """Rotate by tables of the compute dtype."""
    layout = Layout(xs[0].shape[-1], start, stop, pairing, out_pairing, None, blocks)
    return _rotate(xs, Tables(cos, sin, layout), seq_axis, False)


def _rotate(xs: Any, source: Source, seq_axis: int, transposed: bool) -> list[Any]:
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


def _empty_like(xs: Any, *others: Any) -> list[Any]:
    return [torch.empty_like(x) for x in xs]


_LAYOUT = "int start, int stop, str pairing, str out_pairing, int blocks"
_LIBRARY = torch.library.Library("rope_array", "DEF")
# Each array as it is in memory: the result has its strides.
_TAGS = (torch.Tag.pt2_compliant_tag, torch.Tag.needs_exact_strides)
for _name, _source, _function in (
    ("rotate_at", "Tensor pos, str plan, bool transposed", _rotate_at),
    ("rotate_by", f"Tensor cos, Tensor sin, {_LAYOUT}", _rotate_by),
):
    _LIBRARY.define(f"{_name}(Tensor[] xs, {_source}, int seq_axis) -> Tensor[]", tags=_TAGS)
    _LIBRARY.impl(_name, _function, "CPU")
    torch.library.register_fake(f"rope_array::{_name}", _empty_like, lib=_LIBRARY)

rotate_at: Any = torch.ops.rope_array.rotate_at.default
rotate_by: Any = torch.ops.rope_array.rotate_by.default
