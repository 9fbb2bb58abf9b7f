"""The C++ kernel in XLA's programs for the CPU: a custom call, and its partitioning among several devices.

The program contains the plan as an attribute, and positions are an operand. The result is written into x's
memory if the caller donated x to the program.
"""

from typing import Any

import jax
import numpy as np
from jax.experimental.custom_partitioning import custom_partitioning
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo
from jax.sharding import NamedSharding

from rope_array._backends import _native
from rope_array._spec.plan import Layout, Plan

# Compiled programs are kept on disk and name it: a change of the operands or words needs another name.
_TARGET = "rope_array_rotate"


def _register() -> str:
    """Register the kernel's handler; return why it cannot be used, or an empty string."""
    if _native.kernel is None:
        return _native.unavailable_reason()
    try:
        jax.ffi.register_ffi_target(_TARGET, _native.kernel.xla_handler(), platform="cpu")
    except Exception as error:  # XLA of a later version may refuse the interface's version
        return f"XLA does not take the C++ kernel ({error})"
    return ""


_reason = _register()


def description() -> str:
    """Return what rotates on the CPU."""
    kernel = _reason or f"the C++ kernel, {_native.description()}"
    operations = "operations that XLA fuses"
    return f"on the CPU {operations}: {kernel}" if _reason else f"on the CPU {kernel}; elsewhere {operations}"


def require_devices(primitive: Any) -> None:
    """Tell JAX that the lowering needs the devices of a program, which custom partitioning asks for."""
    global _partitions
    try:
        from jax._src import dispatch  # has no public name

        dispatch.prim_requires_devices_during_lowering.add(primitive)
        _partitions = True
    except (ImportError, AttributeError):
        _partitions = False  # several devices rotate by array operations


_partitions = False


def how_to_serve(ctx: Any) -> str:
    """Return how the kernel serves a program: "on one device", "partitioned", or "" if it does not.

    An exported program must run without this library. Where a `shard_map` splits some mesh axes only, JAX
    cannot partition a custom call along the others.
    """
    module = ctx.module_context
    if _reason or module.lowering_parameters.for_export or tuple(module.platforms) != ("cpu",):
        return ""
    context = module.axis_context
    if hasattr(context, "manual_axes"):
        return "on one device" if set(context.manual_axes) == set(context.mesh.axis_names) else ""
    if getattr(context, "num_devices", 0) == 1:
        return "on one device"
    return "partitioned" if _partitions and getattr(context, "device_assignment", None) else ""


def lower(ctx: Any, x: Any, *source: Any, layout: Layout, plan: Plan | None, transposed: bool) -> Any:
    """Lower to a call of the kernel on whole arrays."""
    if plan is None and transposed:  # the sin of tables has the sign already
        source = source[0], stablehlo.negate(source[1])
    words = np.array(_native.plan_words(layout, plan, transposed), np.int64)
    aliases = {0: 0} if _is_donated(x) else None
    rule = jax.ffi.ffi_lowering(_TARGET, operand_output_aliases=aliases)
    return rule(ctx, x, *source, plan=words)


def _is_donated(x: Any) -> bool:
    """Return whether a value is an argument that the caller of the program gave away."""
    if not isinstance(x.owner, ir.Block):
        return False
    attributes = x.owner.owner.attributes
    if "arg_attrs" not in attributes:
        return False
    own = ir.ArrayAttr(attributes["arg_attrs"])[ir.BlockArgument(x).arg_number]
    return any(name in ir.DictAttr(own) for name in ("tf.aliasing_output", "jax.buffer_donor"))


def partitioned(bind: Any, avals: Any, spec_like: Any) -> Any:
    """Return a function that rotates the part of each device, split as x is: without communication."""

    @custom_partitioning
    def rotate(*arrays: Any) -> Any:
        return bind(*arrays)

    shapes = [aval.shape for aval in avals]

    def split_like(whole: Any) -> tuple[Any, ...]:
        spec = (*whole.sharding.spec[: len(shapes[0]) - 1], None)
        return tuple(NamedSharding(whole.sharding.mesh, spec_like(s, shapes[0], spec)) for s in shapes)

    def partition(mesh: Any, arguments: Any, result: Any) -> Any:
        shardings = split_like(result)
        return mesh, rotate.fun, shardings[0], shardings

    def result_sharding(mesh: Any, arguments: Any, result: Any) -> Any:
        return split_like(arguments[0])[0]

    rule, whole = _sharding_rule(shapes)
    rotate.def_partition(
        partition,
        infer_sharding_from_operands=result_sharding,
        sharding_rule=rule,
        need_replication_factors=whole,
    )
    return rotate


def _sharding_rule(shapes: list[tuple[int, ...]]) -> tuple[str, tuple[str, ...]]:
    """Return the rule of Shardy for operands of these shapes, and the axes that must be whole.

    Axes of x's size are split as x is; the features, and the last axes of the source, are whole.
    """
    x, *source = shapes
    axes = [f"x{i}" for i in range(len(x) - 1)]
    operands = [[*axes, "feature"]]
    for n, shape in enumerate(source):
        paired = [
            axis if size == shape[i] else f"one{n}_{i}"
            for i, (axis, size) in enumerate(zip(axes, x, strict=False))
        ]
        operands.append([*paired, f"last{n}"])
    text = ", ".join(" ".join(operand) for operand in operands)
    return f"{text} -> {' '.join(operands[0])}", ("feature", *(f"last{n}" for n in range(len(source))))
