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

_LIMIT = 256  # texts that are remembered


# ---- plans and layouts as text ----


@traced_constant
def write_text(plan: Plan) -> None:
    """Set `plan.text`. Dynamo reads the attribute afterwards, so it compiles anew for another plan."""
    if plan.text is None:
        coordinates = plan.coordinates and (plan.coordinates.number, plan.coordinates.of_pairs.values)
        turns96 = [high << 32 | low for high, low in zip(*(words.values for words in plan.turns_q96), strict=True)]
        plan.text = json.dumps([plan.layout, plan.frequencies.values, plan.turns_q64.values, turns96, coordinates])


@traced_constant
def text_of_layout(*layout: Any) -> str:
    """Return a layout, given field by field, as text."""
    return json.dumps(layout)


def _read_plan(text: str) -> Plan:
    layout, frequencies, turns64, turns96, coordinates = json.loads(text)
    if coordinates is not None:
        coordinates = Coordinates(coordinates[0], Constants(coordinates[1]))
    plan = Plan(Layout(*layout), True, frequencies, turns64, turns96, None, coordinates)
    _native.prepare(plan)
    return plan


def _read_layout(text: str) -> Layout:
    return Layout(*json.loads(text))


_known: dict[str, Any] = {}


def _from_text(text: str, read: Any) -> Any:
    """Return the plan or layout of a text, which is read once."""
    found = _known.get(text)
    if found is None:
        found = read(text)
        with lock:
            if len(_known) >= _LIMIT:
                _known.clear()
            _known[text] = found
    return found


# ---- the operators ----


def _rotate_at(xs: Any, pos: Any, plan: str, transposed: bool, seq_axis: int) -> list[Any]:
    """Rotate by integer positions and a plan of exact angles, or by the plan's transpose."""
    return _rotate(xs, Positions(pos, _from_text(plan, _read_plan)), seq_axis, transposed)


def _rotate_by(xs: Any, cos: Any, sin: Any, layout: str, seq_axis: int) -> list[Any]:
    """Rotate by tables of the compute dtype."""
    return _rotate(xs, Tables(cos, sin, _from_text(layout, _read_layout)), seq_axis, False)


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


_LIBRARY = torch.library.Library("rope_array", "DEF")
# Each array as it is in memory: the result has its strides.
_TAGS = (torch.Tag.pt2_compliant_tag, torch.Tag.needs_exact_strides)
for _name, _source, _function in (
    ("rotate_at", "Tensor pos, str plan, bool transposed", _rotate_at),
    ("rotate_by", "Tensor cos, Tensor sin, str layout", _rotate_by),
):
    _LIBRARY.define(f"{_name}(Tensor[] xs, {_source}, int seq_axis) -> Tensor[]", tags=_TAGS)
    _LIBRARY.impl(_name, _function, "CPU")
    torch.library.register_fake(f"rope_array::{_name}", _empty_like, lib=_LIBRARY)

rotate_at: Any = torch.ops.rope_array.rotate_at.default
rotate_by: Any = torch.ops.rope_array.rotate_by.default
