"""The C++ kernel in XLA's programs for the CPU: a custom call, which XLA can split among several devices.

The program contains the plan as an attribute, and positions are an operand. The result is written into x's
memory if the caller donated x to the program.
"""

from math import prod
from typing import Any

import jax
import numpy as np
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import sdy, stablehlo

from rope_array._array_api.norm import ROUNDINGS, Norm
from rope_array._backends import _native
from rope_array._spec.plan import Layout, Plan, bits_of_floats

# Compiled programs are kept on disk and name it: a change of the operands or words needs another name.
_TARGET, _NORM_TARGET, _WRITE_TARGET = "rope_array_rotate_2", "rope_array_norm_rotate_1", "rope_array_write_1"
MAX_SCALES = 256  # of one array: the kernel takes its parts one by one


def _register() -> str:
    """Register the kernel's handler; return why it cannot be used, or an empty string."""
    if _native.kernel is None:
        return _native.unavailable_reason()
    try:
        for target in (_TARGET, _NORM_TARGET, _WRITE_TARGET):
            handler = _native.kernel.xla_handler(target == _WRITE_TARGET)
            jax.ffi.register_ffi_target(target, handler, platform="cpu")
        jax.ffi.register_ffi_target_as_batch_partitionable(_TARGET)
    except Exception as error:  # XLA of a later version may refuse the interface's version
        return f"XLA does not take the C++ kernel ({error})"
    return ""


_reason = _register()


def description() -> str:
    """Return a description of the rotation on the CPU and on other platforms."""
    config: Any = jax.config  # its type lacks the flags
    if config.jax_disable_jit:
        return "operations, one after the other: jax.disable_jit is on"
    if _reason:
        return f"operations that XLA fuses: {_reason}"
    level = _native.kernel.level_name()
    return (
        f"on the CPU the C++ kernel, {level} instructions, XLA's threads; elsewhere operations that XLA fuses"
    )


def serves(ctx: Any, plan: Plan | None) -> bool:
    """Return whether a call of the C++ kernel can be part of a program.

    Serves programs for the CPU, with three exceptions. An exported program must run without this library. In
    a `shard_map` over some mesh axes only, JAX cannot split a custom call along the other axes. On several
    devices, XLA splits axes that all operands have: positions are repeated for them, but repeated tables
    would be as large as x.
    """
    module, x, kernel = ctx.module_context, ctx.avals_in[0], _native.kernel
    if _reason or kernel is None or x.ndim > _native.MAX_AXES:
        return False
    # Fields that JAX does not document.
    parameters, context = getattr(module, "lowering_parameters", None), getattr(module, "axis_context", None)
    if getattr(parameters, "for_export", True) or context is None or tuple(module.platforms) != ("cpu",):
        return False
    if hasattr(context, "manual_axes"):
        return set(context.manual_axes) == set(context.mesh.axis_names)
    return plan is not None or not _may_be_split(ctx)


def _may_be_split(ctx: Any) -> bool:
    return getattr(ctx.module_context.axis_context, "num_devices", 1) > 1


def lower(ctx: Any, x: Any, *source: Any, layout: Layout, plan: Plan | None, transposed: bool) -> Any:
    """Lower to a call of the kernel."""
    attributes = {}
    if _may_be_split(ctx):
        source = tuple(_repeated(array, x) for array in source)
        attributes = _splitting(x, source)
    if plan is None and transposed:  # the kernel takes the sign of the angles from sin
        source = source[0], stablehlo.negate(source[1])
    rule = _rule(_TARGET, x, extra_attributes=attributes)
    return rule(ctx, x, *source, plan=_words(layout, plan, transposed))


def serves_norm(ctx: Any, plan: Plan | None) -> bool:
    """Return whether a call of the C++ kernel can norm and rotate.

    Not if XLA may split it among devices, and not if a part of x has its own scale and its own positions.
    """
    x, scale, *source = (aval.shape[:-1] for aval in ctx.avals_in)
    parts = [axis for axis, size in enumerate(scale) if size != 1]
    has_few = prod(scale) <= MAX_SCALES and all(shape[axis] == 1 for shape in source for axis in parts)
    return has_few and bool(prod(x)) and serves(ctx, plan) and not _may_be_split(ctx)


def lower_norm(ctx: Any, x: Any, *operands: Any, layout: Layout, plan: Plan | None, norm: Norm) -> Any:
    """Lower the norm and the rotation to a call of the kernel."""
    (eps,) = bits_of_floats([norm.eps])
    options = np.array([eps, ROUNDINGS.index(norm.rounding)], np.int64)
    return _rule(_NORM_TARGET, x)(ctx, x, *operands, norm=options, plan=_words(layout, plan, False))


def lower_write(ctx: Any, cache: Any, *operands: Any, axes: tuple[int, ...]) -> Any:
    """Lower the write into a cache to a call of the kernel; XLA copies a cache that is not donated."""
    rule = jax.ffi.ffi_lowering(_WRITE_TARGET, operand_output_aliases={0: 0})
    return rule(ctx, cache, *operands, axes=np.array([len(axes) - 1, axes[-1]], np.int64))


def _words(layout: Layout, plan: Plan | None, transposed: bool) -> Any:
    return np.array(_native.plan_words(layout, plan, transposed), np.int64)


def _rule(target: str, x: Any, **options: Any) -> Any:
    aliases = {0: 0} if _is_donated(x) else None
    return jax.ffi.ffi_lowering(target, operand_output_aliases=aliases, **options)


def _is_donated(x: Any) -> bool:
    """Return whether a value is an argument of the program that its caller donated."""
    if not isinstance(x.owner, ir.Block):
        return False
    attributes = x.owner.owner.attributes
    if "arg_attrs" not in attributes:
        return False
    argument = ir.ArrayAttr(attributes["arg_attrs"])[ir.BlockArgument(x).arg_number]
    return any(name in ir.DictAttr(argument) for name in ("tf.aliasing_output", "jax.buffer_donor"))


# ---- several devices ----


def _repeated(positions: Any, x: Any) -> Any:
    """Repeat positions along the axes of x; the kernel finds axes along which they are equal."""
    pos_type, x_type = ir.RankedTensorType(positions.type), ir.RankedTensorType(x.type)
    repeated = ir.RankedTensorType.get([*x_type.shape[:-1], pos_type.shape[-1]], pos_type.element_type)
    return stablehlo.broadcast_in_dim(repeated, positions, [*range(pos_type.rank)])


def _splitting(x: Any, source: tuple[Any, ...]) -> dict[str, Any]:
    """Return attributes of the call by which XLA splits all axes but the last, as x is split."""
    shapes = [ir.RankedTensorType(operand.type).shape for operand in (x, *source)]
    count = len(shapes[0]) - 1
    number = ir.StringAttr.get(str(count))
    attributes = {"mhlo.frontend_attributes": ir.DictAttr.get({"num_batch_dims": number})}
    config: Any = jax.config  # its type lacks the flags
    if config.jax_use_shardy_partitioner:
        attributes["sdy.sharding_rule"] = _sharding_rule(shapes, count)
    return attributes


def _sharding_rule(shapes: list[list[int]], count: int) -> Any:
    """Return Shardy's rule: operands share their first axes, and the last axis of each is not split."""

    def mapping(last: int) -> Any:
        axes = [sdy.DimMappingAttr.get(factor_indices=[axis]) for axis in (*range(count), last)]
        return sdy.TensorMappingAttr.get(dim_mappings=axes)

    lasts = [*range(count, count + len(shapes))]
    return sdy.OpShardingRuleAttr.get(
        factor_sizes=[*shapes[0][:-1], *(shape[-1] for shape in shapes)],
        operand_mappings=[mapping(last) for last in lasts],
        result_mappings=[mapping(count)],
        is_custom=True,
        reduction_factors=[],
        need_replication_factors=lasts,
        permutation_factors=[],
    )
