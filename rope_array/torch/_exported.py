"""Programs that other tools run: exact tables as their constants, and ONNX's operator for a rotation."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any
from weakref import WeakValueDictionary

import torch

from rope_array._array_api.checks import check_call
from rope_array._array_api.library import numpy_library
from rope_array._array_api.position_input import parse
from rope_array._backends.torch._library import LIBRARY, in_onnx_export
from rope_array._dynamo import traced_constant
from rope_array._errors import ArrayTypeError, PositionError, describe, short
from rope_array._rope import RoPE
from rope_array._rotation import Rotation, type_of_plan
from rope_array._spec.spec import require_plan


def check_rows(positions: Any, length: int, like: Any) -> None:
    """Raise unless positions are integers, and in the table where they are on the host."""
    parsed = parse(positions, like, LIBRARY)
    if parsed.has_floats() and len(parsed.shape) < like.ndim:  # others may be v, which `apply` refuses
        raise ArrayTypeError(
            f"positions is {describe(positions)}, and tables have a row for each integer; give integers, or "
            "make the module without tables."
        )
    on_host = parsed.form in ("range", "numbers")
    for position in (parsed.values if parsed.shape else [parsed.values]) if on_host else ():
        if not 0 <= position < length:
            raise PositionError(
                f"position {short(position)} is outside the tables, which have the positions 0 to "
                f"{length - 1}; make the module with longer tables, or without tables for any position."
            )


def rotation_by_tables(rope: RoPE, length: int, positions: Any, like: Any) -> Rotation:
    """Return the rotation at checked positions by rows of exact tables; NaN outside the tables."""
    plan, device = require_plan(rope), like.device
    tables = _tables(rope, length, like.dtype == torch.float64, device)
    integers, _ = parse(positions, like, LIBRARY).read(LIBRARY, LIBRARY.ops(like), False)
    if integers.dtype not in (torch.int32, torch.int64):
        integers = integers.to(torch.int64)
    # Not an index: tools differ in negative indices, and in indices beyond the end.
    rows = integers.clamp(-1, length) + 1
    if plan.coordinates is None:
        return type_of_plan(plan)(*[torch.nn.functional.embedding(rows, table) for table in tables])
    num_pairs = plan.layout.num_pairs
    of_pairs = torch.tensor(plan.coordinates.of_pairs.values, device=device)
    cells = rows.index_select(-1, of_pairs) * num_pairs + torch.arange(num_pairs, device=device)
    return type_of_plan(plan)(*[torch.nn.functional.embedding(cells, table)[..., 0] for table in tables])


# Tables in use, for the other layers of a program.
_TABLES: WeakValueDictionary[tuple[Any, ...], torch.Tensor] = WeakValueDictionary()


@traced_constant  # of tensors, which Dynamo keeps with the program
def _tables(*key: Any) -> list[Any]:
    """Return tables of cos and sin. The key: the rope, the length, whether in float64, and the device."""
    tables: list[Any] = [_TABLES.get((*key, name)) for name in ("cos", "sin")]
    if any([table is None for table in tables]):
        # In a thread of their own, where no trace records them, and no mode makes other tensors of them.
        with ThreadPoolExecutor(1) as thread:
            tables = thread.submit(_make_tables, *key).result()
        _TABLES.update({(*key, name): table for name, table in zip(("cos", "sin"), tables, strict=True)})
    return tables


def _make_tables(rope: RoPE, length: int, use_float64: bool, device: Any) -> list[Any]:
    """Make the rows of the positions -1 to length, the first and the last NaN; with axes, of each number."""
    xp = numpy_library().xp
    tables = rope.tables(length, like=xp.empty(0, dtype="float64" if use_float64 else "float32"))
    rows = [xp.concat([table[:1] * xp.nan, table, table[:1] * xp.nan]) for table in tables]
    return [torch.from_numpy(row.reshape(-1, 1) if rope.axes else row).to(device) for row in rows]


# ---- ONNX ----


def rotate_as_operator(rotation: Rotation, xs: tuple[Any, ...], seq_axis: int) -> tuple[Any, ...] | None:
    """Rotate by ONNX's operator RotaryEmbedding; None where a program has another rotation or format."""
    layout, axis = rotation.layout, seq_axis if seq_axis < 0 else seq_axis - 4
    is_plain = layout.start == 0 and layout.pairing == layout.out_pairing and layout.blocks == 1
    if not (is_plain and layout.stop and torch.compiler.is_compiling() and in_onnx_export()):
        return None
    if rotation.cos.ndim > 3 or axis not in (-2, -3):
        return None
    if any([x.ndim != 4 or x.dtype == torch.float64 for x in xs]):
        return None
    check_call(xs, (*rotation, layout), (seq_axis,), LIBRARY)
    return tuple([_operator(rotation, x, axis == -3) for x in xs])


def _operator(rotation: Rotation, x: Any, is_inside: bool) -> Any:
    """Rotate x in float32. `is_inside`: heads are after tokens; the operator has them before."""
    layout = rotation.layout
    y = (x.transpose(1, 2) if is_inside else x).float()
    shape = (y.shape[0], y.shape[2])
    cos, sin = (t if t.shape[:-1] == shape else t.expand(*shape, t.shape[-1]) for t in rotation)
    is_interleaved = layout.pairing == "interleaved"
    y = torch.onnx.ops.rotary_embedding(
        y, cos, sin, interleaved=is_interleaved, rotary_embedding_dim=layout.stop
    )
    return (y.transpose(1, 2) if is_inside else y).to(x.dtype)
