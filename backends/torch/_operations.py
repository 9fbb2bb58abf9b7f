"""The rotation and its adjoint by PyTorch's operations, which every transform of PyTorch has a rule for."""

from collections.abc import Callable
from typing import Any

import torch

from rope_array._array_api.angles import cos_sin
from rope_array._array_api.library import computes_in_float64
from rope_array._array_api.position_input import read_positions
from rope_array._array_api.source import Source, Tables
from rope_array._array_api.tables import rotate_by_tables

from ._library import LIBRARY


def rotate_by_operations(
    xs: Any,
    source: Source,
    seq_axis: int,
    transposed: bool,
    stored: Callable[[Any], Any] = lambda table: table,
) -> tuple[Any, ...]:
    """Rotate arrays of one compute dtype by integer positions, or by tables of that dtype.

    `transposed`: rotate by the adjoint. Tables that are made here pass through `stored`.
    """
    ops = LIBRARY.ops(xs[0])
    ops.xp = _XPWithTorchCat()
    if not isinstance(source, Tables):
        use_float64 = computes_in_float64(xs[0])
        pos, _ = read_positions(source.values, LIBRARY, ops, use_float64)
        cos, sin = cos_sin(pos, None, source.plan, use_float64, ops)
        source = Tables(stored(cos), stored(sin), source.layout)
    return rotate_by_tables(xs, adjoint(source) if transposed else source, seq_axis, ops)


def adjoint(tables: Tables) -> Tables:
    """Return the tables of the transposed rotation."""
    return Tables(tables.cos, -tables.sin, tables.layout.transposed(tables.layout.amplitude))


def save_source(ctx: Any, source: Source) -> None:
    """Save a source for the backward: its tensors, its first fields, so that autograd sees them change."""
    tensors = [value for value in source if isinstance(value, torch.Tensor)]
    if tensors and tensors[0].dtype is torch.int32:
        # A copy, as the array-api backend makes: the caller may then change the positions.
        tensors = [tensors[0].to(torch.int64)]
    ctx.save_for_backward(*tensors)
    ctx.source, ctx.fields = type(source), source[len(tensors) :]
    ctx.set_materialize_grads(False)


def load_source(ctx: Any) -> Source:
    """Return the source that `save_source` saved."""
    source: Source = ctx.source(*ctx.saved_tensors, *ctx.fields)
    return source


def rotate_present(grads: Any, rotate: Callable[[Any], Any]) -> tuple[Any, ...]:
    """Rotate the gradients that are not None, and return None for the others."""
    present = tuple(g for g in grads if g is not None)
    rotated = iter(rotate(present) if present else ())
    return tuple(None if g is None else next(rotated) for g in grads)


class _XPWithTorchCat:
    """PyTorch's namespace, but `concat` is torch.cat, for which the vmap of batched gradients has a rule."""

    concat = staticmethod(torch.cat)

    def __getattr__(self, name: str) -> Any:
        return getattr(LIBRARY.xp, name)
