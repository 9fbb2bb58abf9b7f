"""JAX: the C++ kernel on the CPU, and array operations that XLA fuses on other devices.

An eager call is one program; a traced call is part of the caller's program. Positions are run-time
values of the program, so a new offset compiles nothing. The plan is static.
"""

from contextlib import suppress
from functools import partial
from typing import Any

import jax
from jax import export

from rope_array._array_api import tables as _tables
from rope_array._array_api.angles import cos_sin, rounded_angle
from rope_array._array_api.attention import AttentionCall, make_by_parts
from rope_array._array_api.library import Library, computes_in_float64
from rope_array._array_api.norm import normalise
from rope_array._array_api.position_input import parse, split_floats
from rope_array._array_api.source import Call, CallOptions, Positions, Tables
from rope_array._internals import internal
from rope_array._rotation import name_types
from rope_array._spec.plan import Layout, Plan

from . import _primitive
from ._custom_call import description
from ._library import LIBRARY
from ._norm_primitive import HeadNorm
from ._primitive import tables_by_positions

__all__ = ["attention_inputs", "description", "library", "make_tables", "name", "rotate"]

name = "jax"


def library(x: Any) -> Library:
    """Return JAX."""
    return LIBRARY


def rotate(call: Call) -> Any:
    """Rotate the arrays of a call, in one program."""
    source = call.source
    if isinstance(source, Tables):
        return _rotate_by_tables(call.xs, source.cos, source.sin, source.layout, call.options)
    pos, fraction = call.pos.read(LIBRARY, call.ops, any(call.float64), split=False)
    return _rotate_at(call.xs, pos, fraction, source.plan, call.options)


def make_tables(source: Positions, like: Any) -> Any:
    """Make cos and sin in one program."""
    use_float64, parsed = computes_in_float64(like), parse(source.values, like, LIBRARY)
    pos, fraction = parsed.read(LIBRARY, LIBRARY.ops(like), use_float64, split=False)
    devices = LIBRARY.device(like)
    if devices is not None and len(devices) == 1:
        pos = jax.device_put(pos, *devices)  # JAX would put the tables on its default device
    pos, fraction = (_tables.with_axes_of(like, p, source) for p in (pos, fraction))
    return _make_tables(pos, fraction, source.inv_freq, source.plan, use_float64)


# Inlined into the caller's program, which shows the arguments that its caller donated. By True, JAX 0.12
# inlines only after it lowered the function alone.
_program = partial(jax.jit, inline=jax.Inline.JAX_EARLY if hasattr(jax, "Inline") else True)


def attention_inputs(inputs: AttentionCall) -> Any:
    """Norm and rotate the arrays of a call, and write its caches, in one program."""
    call, norm, write, targets, _ = inputs
    source, weights, memory = call.source, None, None
    plan: Any
    if isinstance(source, Tables):
        plan, read = source.layout, (source.cos, source.sin)
    else:
        plan, read = source.plan, call.pos.read(LIBRARY, call.ops, any(call.float64), split=False)
    if norm is not None:
        weights, norm = norm.weights, norm._replace(weights=())
    if write is not None:
        slots = write.slots if LIBRARY.is_array(write.slots) else write.slots.clip(-1)  # to fit 32 bits
        memory, write = (write.caches, write.values, slots), write._replace(**_NO_ARRAYS)
    places = tuple(target._replace(x=None, cache=None) for target in targets)
    statics = {"plan": plan, "options": call.options, "norm": norm, "write": write, "places": places}
    return _attention_inputs(call.xs, read, weights, memory, **statics)


_NO_ARRAYS: dict[str, Any] = {"caches": (), "values": None, "slots": None}


@partial(_program, static_argnames=("plan", "options", "norm", "write", "places"))
def _attention_inputs(
    xs: Any, read: Any, weights: Any, memory: Any, plan: Any, options: Any, norm: Any, write: Any, places: Any
) -> Any:
    """See `attention_inputs`; `read` is positions and fractions of a plan, or tables of a layout."""
    ops = LIBRARY.ops(xs[0])
    rotate: Any = _by_positions if isinstance(plan, Plan) else _by_tables

    def rotate_normed(call: Call) -> Any:
        """Norm and rotate. If x has been cast for its cache or tables, it is normed as it was given."""
        if norm is None:
            return rotate(call.xs, *read, plan, options, _primitive)
        ys = []
        for x, given, weight in zip(call.xs, xs, weights, strict=True):
            rotations: Any = HeadNorm(weight, norm)
            if x.dtype != given.dtype and (norm.rounding != "none" or computes_in_float64(x)):
                rotations = _primitive
                x = normalise(given, weight, norm, options.seq_axis, ops).astype(x.dtype)
            ys += rotate((x,), *read, plan, options, rotations)
        return tuple(ys)

    source: Any = Positions(None, plan) if isinstance(plan, Plan) else Tables(read[0], read[1], plan)
    call, targets = Call(xs, source, options, LIBRARY, ops, ()), []
    if write is not None:
        caches, values, slots = memory
        write = write._replace(caches=caches, values=values, slots=slots)
        arrays = zip(places, (xs[-1], values), caches, strict=False)
        targets = [place._replace(x=x, cache=cache) for place, x, cache in arrays]
    return make_by_parts(rotate_normed, AttentionCall(call, None, write, targets, None))


@partial(_program, static_argnames=("plan", "options"))
def _rotate_at(xs: Any, pos: Any, fraction: Any, plan: Plan, options: CallOptions) -> Any:
    return _by_positions(xs, pos, fraction, plan, options, _primitive)


def _by_positions(xs: Any, pos: Any, fraction: Any, plan: Plan, options: CallOptions, rotations: Any) -> Any:
    """Rotate by functions of `_primitive`, or by methods of a `HeadNorm`."""
    if _are_operand(pos, fraction, plan):
        return tuple(rotations.rotate_by_positions(x, pos, plan, options) for x in xs)
    ops = LIBRARY.ops(xs[0])
    if fraction is None:
        pos, fraction = split_floats(pos, ops)
    float64 = tuple(map(computes_in_float64, xs))
    return _tables.rotate_by_positions(
        xs, float64, pos, fraction, plan, options, ops, rotations.rotate_by_tables
    )


def _are_operand(pos: Any, fraction: Any, plan: Plan) -> bool:
    """Return whether positions are an operand of the rotation's primitive: integers or floats, one array."""
    is_integer = jax.numpy.issubdtype(pos.dtype, jax.numpy.integer)
    return fraction is None and (plan.exact if is_integer else plan.takes_fractions)


@partial(_program, static_argnames=("plan", "use_float64"))
def _make_tables(pos: Any, fraction: Any, inv_freq: Any, plan: Plan, use_float64: bool) -> Any:
    ops = LIBRARY.ops(pos)
    if plan.takes_angles:
        constant = jax.lax.stop_gradient(pos)
        return _with_angle(pos, *cos_sin(constant, None, plan, use_float64, ops))
    if inv_freq is None and _are_operand(pos, fraction, plan):
        return tables_by_positions(pos, plan, use_float64)
    if fraction is None:
        pos, fraction = split_floats(pos, ops)
    if inv_freq is not None and plan.exact:
        angle = rounded_angle(pos, fraction, plan, use_float64, ops, inv_freq)
        fraction, inv_freq = (x if x is None else jax.lax.stop_gradient(x) for x in (fraction, inv_freq))
        return _with_angle(angle, *cos_sin(pos, fraction, plan, use_float64, ops, inv_freq))
    return cos_sin(pos, fraction, plan, use_float64, ops, inv_freq)


def _tables_of(angle: Any, cos: Any, sin: Any) -> Any:
    """Return tables as functions of their angle, which gives them its gradient and no value."""
    return cos, sin


_with_angle: Any = jax.custom_jvp(_tables_of)


def _jvp(primals: Any, tangents: Any) -> Any:
    cos, sin = _with_angle(*primals)
    change = tangents[0].astype(cos.dtype)  # angles may be wider than the tables
    return (cos, sin), (-sin * change, cos * change)


_with_angle.defjvp(_jvp)


@partial(_program, static_argnames=("layout", "options"))
def _rotate_by_tables(xs: Any, cos: Any, sin: Any, layout: Layout, options: CallOptions) -> Any:
    return _by_tables(xs, cos, sin, layout, options, _primitive)


def _by_tables(xs: Any, cos: Any, sin: Any, layout: Layout, options: CallOptions, rotations: Any) -> Any:
    ops = LIBRARY.ops(xs[0])
    return _tables.rotate_by_tables(xs, Tables(cos, sin, layout), options, ops, rotations.rotate_by_tables)


def _register_type(cls: Any) -> None:
    """Name a type of Rotation for jax.export; a program is deserialized where this type exists."""
    # A copy of this package, imported before, has given the name; or the function has changed.
    with suppress(Exception):
        export.register_namedtuple_serialization(cls, serialized_name=_name(cls))


def _unregister_type(cls: Any) -> None:
    """Remove a type from the tables of `register_namedtuple_serialization`: JAX has no function for it."""
    for registry, key in {"serialization_registry": cls, "deserialization_registry": _name(cls)}.items():
        (internal(f"jax._src.export._export.{registry}") or {}).pop(key, None)


def _name(cls: Any) -> str:
    return f"rope_array.Rotation{tuple(cls.layout)}"


name_types(_register_type, _unregister_type)
