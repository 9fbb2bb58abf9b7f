"""The gradient of the rotation, which is the adjoint rotation, and the rotation by PyTorch's operations.

Eager calls and compiled programs share the gradient's rule. PyTorch's operations rotate where no kernel can:
every transform of PyTorch has a rule for them.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch.autograd import forward_ad

from rope_array._array_api.angles import cos_sin
from rope_array._array_api.library import computes_in_float64
from rope_array._array_api.pairs import align_tables_to
from rope_array._array_api.position_input import parse
from rope_array._array_api.source import CallOptions, Positions, Source, Tables
from rope_array._array_api.tables import angle_of, rotate_by_tables
from rope_array._internals import FORWARD_LEVEL
from rope_array._spec.plan import Layout
from rope_array._spec.shape_rule import placement

from ._library import LIBRARY, TRANSFORMED, is_exported, is_recorded

# Arguments of a kernel's `rotate`, and of `RotationFunction`: see _eager.py.
UNCHECKED, CHECKED = False, True
FORWARD, ADJOINT = False, True
NEW, IN_PLACE = False, True
GATED = True


class RotationFunction(torch.autograd.Function):  # type: ignore[misc,unused-ignore]
    """The rotation with its gradient: the adjoint rotation, by the same positions or tables.

    The first argument is a tuple, as each argument takes time: a kernel (see _eager.py), `rotate_back`, the
    source, the options, and three bools of the names above: checked, transposed, in place.
    ``rotate_back(kernel, grads, source, options, transposed)`` rotates gradients, and records the gradient
    of this rotation if need be.
    """

    @staticmethod
    def forward(ctx: Any, call: tuple[Any, ...], *xs: Any) -> Any:
        kernel, rotate_back, source, options, checked, transposed, in_place = call
        ys = kernel.rotate(xs, source, options, xs if in_place else None, checked, transposed)
        if ys is NotImplemented:
            return ys  # `apply` returns an object that is no tensor unchanged
        if in_place:
            ctx.mark_dirty(*xs)
        ctx.source_type, ctx.other_fields = save_source(ctx, source)
        ctx.call = kernel, rotate_back, options, not transposed
        constant = [y for x, y in zip(xs, ys, strict=True) if not x.requires_grad]
        if constant:
            ctx.mark_non_differentiable(*constant)
        return ys

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        kernel, rotate_back, options, transposed = ctx.call
        source = ctx.source_type(*ctx.saved_tensors, *ctx.other_fields)
        present = tuple(g for g in grads if g is not None)
        rotated = iter(rotate_back(kernel, present, source, options, transposed) if present else ())
        return None, *(None if g is None else next(rotated) for g in grads)


rotate_recorded: Any = RotationFunction.apply


class TableRotationFunction(torch.autograd.Function):  # type: ignore[misc,unused-ignore]
    """The rotation by tables whose gradient is recorded, which keeps x; see `RotationFunction`."""

    @staticmethod
    def forward(ctx: Any, call: tuple[Any, ...], cos: Any, sin: Any, *xs: Any) -> Any:
        kernel, _, layout, options = call
        ys = kernel.rotate(xs, Tables(cos, sin, layout), options, None, CHECKED, FORWARD)
        if ys is not NotImplemented:
            ctx.save_for_backward(cos, sin, *xs)
            ctx.set_materialize_grads(False)
            ctx.call = call
        return ys

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        kernel, rotate_back, layout, options = ctx.call
        cos, sin, *xs = ctx.saved_tensors
        pairs = [(x, g) for x, g in zip(xs, grads, strict=True) if g is not None]
        of_xs: list[Any] = [None] * len(xs)
        if not pairs:
            return None, None, None, *of_xs
        of_tables = [_gradient_of_tables(x, g, cos, layout, options) for x, g in pairs]
        wanted = [i for i, g in enumerate(grads) if g is not None and ctx.needs_input_grad[3 + i]]
        if wanted:
            present = tuple(grads[i] for i in wanted)
            rotated = rotate_back(kernel, present, Tables(cos, sin, layout), options, ADJOINT)
            for i, gradient in zip(wanted, rotated, strict=True):
                of_xs[i] = gradient
        return None, *(sum(gradients) for gradients in zip(*of_tables, strict=True)), *of_xs


rotate_by_recorded_tables: Any = TableRotationFunction.apply


def _gradient_of_tables(x: Any, grad: Any, cos: Any, layout: Layout, options: CallOptions) -> tuple[Any, ...]:
    """Return the gradients of cos and sin, which rotate to (a·cos - b·sin, b·cos + a·sin) in all rows."""
    a, b = _members(x.to(cos.dtype), layout.pairing, layout)
    grad_a, grad_b = _members(grad.to(cos.dtype), layout.out_pairing, layout)
    order, index = placement(x.ndim, cos.ndim - 1, options.seq_axis)
    permuted = cos if order is None else cos.permute(order)
    back = [*range(cos.ndim)] if order is None else sorted(range(cos.ndim), key=order.__getitem__)
    gradients = (grad_a * a + grad_b * b, grad_b * a - grad_a * b)
    summed = (gradient.sum_to_size(permuted[index].shape) for gradient in gradients)
    return tuple(gradient.reshape(permuted.shape).permute(back) for gradient in summed)


# By operations for which the vmap of batched gradients has a rule: see `_XPWithTorchCat`.
def _members(x: Any, pairing: str, layout: Layout) -> tuple[Any, Any]:
    """Return the first and the second features of all pairs."""
    if 2 * layout.num_pairs < layout.head_dim:
        x = x[..., layout.start : layout.stop]
    half, shape = layout.num_pairs // layout.blocks, (*x.shape[:-1], layout.num_pairs)
    x = x.reshape(*x.shape[:-1], layout.blocks, 2 * half)
    first, second = (
        (slice(half), slice(half, None)) if pairing == "half" else (slice(0, None, 2), slice(1, None, 2))
    )
    return x[..., first].reshape(shape), x[..., second].reshape(shape)


class AngleFunction(torch.autograd.Function):  # type: ignore[misc,unused-ignore]
    """Tables as functions of their angle, which gives them its gradient and no value."""

    @staticmethod
    def forward(ctx: Any, angle: Any, tables: tuple[Any, Any]) -> Any:
        ctx.save_for_backward(*tables)
        return tables

    @staticmethod
    def backward(ctx: Any, grad_cos: Any, grad_sin: Any) -> Any:
        cos, sin = ctx.saved_tensors
        return grad_sin * cos - grad_cos * sin, None


_with_angle: Any = AngleFunction.apply


def make_recorded_tables(make: Callable[[Positions, Any], Any], source: Positions, like: Any) -> Any:
    """Make tables by `make`, with the gradient of frequencies in an array, of angles and of positions.

    Without this, autograd would keep an array of the tables' size for each operation of the angles.
    """
    is_served = source.plan.exact or source.plan.takes_angles
    # A compiler differentiates the operations: Dynamo warns where it traces a function of autograd.
    if not is_served or torch.compiler.is_compiling() or is_exported() or not is_recorded(source.arrays):
        return make(source, like)
    if TRANSFORMED is None or TRANSFORMED() or getattr(forward_ad, FORWARD_LEVEL, 0) >= 0:
        return make(source, like)
    with torch.no_grad():
        tables = make(source, like)
    return _with_angle(angle_of(source, like, LIBRARY), tables)


def save_source(ctx: Any, source: Source, *others: Any) -> tuple[type[Source], tuple[Any, ...]]:
    """Save other tensors and a source for the backward; return the source's type, and its last fields.

    Its first fields are saved as tensors, so that autograd sees them change.
    """
    tensors = [value for value in source if isinstance(value, torch.Tensor)]
    if len(tensors) == 1 and tensors[0].dtype is not torch.int64:
        # A copy, as the array-api backend makes: the caller may then change the positions.
        is_float = tensors[0].dtype.is_floating_point
        tensors = [tensors[0].clone() if is_float else tensors[0].to(torch.int64)]
    ctx.save_for_backward(*others, *tensors)
    ctx.set_materialize_grads(False)
    return type(source), source[len(tensors) :]


def adjoint(tables: Tables) -> Tables:
    """Return the tables of the transposed rotation."""
    return Tables(tables.cos, -tables.sin, tables.layout.transposed(tables.layout.amplitude))


def rotate_by_operations(
    xs: Any,
    source: Source,
    options: CallOptions,
    transposed: bool,
    stored: Callable[[Any], Any] = lambda table: table,
) -> tuple[Any, ...]:
    """Rotate arrays of one compute dtype by positions, or by tables of that dtype.

    `transposed`: rotate by the adjoint. Tables that are made here pass through `stored`.
    """
    ops = operations_on(xs[0])
    if not isinstance(source, Tables):
        use_float64 = computes_in_float64(xs[0])
        pos, fraction = parse(source.values, xs[0], LIBRARY).read(LIBRARY, ops, use_float64)
        cos, sin = cos_sin(pos, fraction, source.plan, use_float64, ops)
        source = Tables(stored(cos), stored(sin), source.layout)
    return rotate_by_tables(xs, adjoint(source) if transposed else source, options, ops)


class FewOperations:
    """A kernel by tables of the compute dtype: see _eager.py. Its operations are few, their results large."""

    @staticmethod
    def rotate(xs: Any, source: Tables, options: CallOptions, *_: Any) -> tuple[Any, ...]:
        # Views, as their making raises for memory that was freed: torch.cat alone would read it.
        cos, sin = (table[..., None, :] for table in source.arrays)
        matrix = torch.cat([cos, -sin, sin, cos], -2).flatten(-2)
        matrices = [align_tables_to(x, matrix, matrix, options, LIBRARY.ops(x))[0] for x in xs]
        return tuple([_multiply(*factors, source.layout) for factors in zip(matrices, xs, strict=True)])


def _multiply(matrix: Any, x: Any, layout: Layout) -> Any:
    """Multiply pairs by 2 × 2 matrices, by operations for which the vmap of batched gradients has a rule."""
    start, stop, pairs, lead = layout.start, layout.stop, layout.num_pairs, x.shape[:-1]
    is_whole, is_half = stop - start == layout.head_dim, layout.pairing == "half"
    columns = x if is_whole else x[..., start:stop]
    members = columns.reshape(*lead, 1, 2, pairs) if is_half else columns.reshape(*lead, 1, pairs, 2).mT
    # In the dtype of the matrix, which is first, so that the pairs of the products are adjacent.
    first, second = (matrix.unflatten(-1, (2, 2, pairs)) * members).unbind(-2)
    y = first + second if layout.out_pairing == "half" else (first + second).mT
    y = y.to(x.dtype, memory_format=torch.contiguous_format).reshape(*lead, 2 * pairs)
    return y if is_whole else torch.cat([x[..., :start], y, x[..., stop:]], -1)


def operations_on(x: Any, *stored: Any) -> Any:
    """Return the operations on the device of x, for which the vmap of batched gradients has rules.

    `stored`: the method `ArrayOps.stored`, if not the library's.
    """
    ops: Any = LIBRARY.ops(x)
    ops.xp = _XPWithTorchCat()
    for function in stored:
        ops.stored = function
    return ops


class _XPWithTorchCat:
    """PyTorch's namespace, but `concat` is torch.cat, for which the vmap of batched gradients has a rule."""

    concat = staticmethod(torch.cat)

    def __getattr__(self, name: str) -> Any:
        return getattr(LIBRARY.xp, name)
