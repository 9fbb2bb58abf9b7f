"""`attention_inputs` on PyTorch: its gradient, its operators for compiled programs, and PyTorch's operations.

A kernel is an object with the function ``attention_inputs(xs, source, options, norm, write, outs,
checked=False, gated=False)``, which returns the results and the caches, or NotImplemented with nothing
written. It may have ``attention_gradients(grads, xs, source, options, norm)``, which returns the gradients of
xs and of the weights, None for weights that are None; or NotImplemented. It takes the adjoint of tables.

Without a norm, the rotation's own functions record the gradient.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from rope_array._array_api.attention import AttentionCall, check_attention_call, make_by_parts
from rope_array._array_api.cache import CacheWrite
from rope_array._array_api.checks import check_call
from rope_array._array_api.norm import Norm, as_compute, heads_axis, inverse_rms, scale_of, sum_in_order
from rope_array._array_api.source import CallOptions, OptionFields, Source, Tables
from rope_array._backends import _native
from rope_array._dynamo import known

from ._compiled import (
    DEVICES,
    LAYOUT,
    NAMESPACE,
    OPTIONS,
    TAGS,
    arguments_of,
    empty_like,
    on_gpu,
    read_positions,
    read_source,
    read_tables,
    refuse_cpp_wrapper,
    refuse_gradients,
    refuse_tangents,
    show_on_gpu,
    words_of,
)
from ._eager import why_call_declined
from ._gradient import (
    ADJOINT,
    CHECKED,
    FORWARD,
    GATED,
    UNCHECKED,
    adjoint,
    operations_on,
    rotate_by_operations,
    save_source,
)
from ._library import LIBRARY, PLAIN_TYPES, count_writes, is_recorded, materialize, no_autocast

Pair = tuple[Any, Any]

# ---- by PyTorch's operations ----


def inputs_by_operations(
    xs: Any, source: Source, options: CallOptions, norm: Norm | None, write: Any, outs: Any, *stored: Any
) -> Pair:
    """Norm and rotate xs, and write caches; the call is checked again, now that addresses are known.

    `stored`: see `ArrayOps.stored`; for operations of an operator that a compiler traces.
    """
    return make_by_parts(
        lambda call: rotate_by_operations(call.xs, call.source, options, FORWARD, *stored),
        _checked(xs, source, options, norm, write, outs, *stored),
    )


def _checked(
    xs: Any,
    source: Source,
    options: CallOptions,
    norm: Norm | None,
    write: CacheWrite | None,
    outs: Any,
    *stored: Any,
) -> AttentionCall:
    call = check_call(tuple(xs), source, options, LIBRARY)._replace(ops=operations_on(xs[0], *stored))
    return check_attention_call(call, norm, write, outs)


def gradients_by_operations(
    grads: Any, xs: Any, source: Source, options: CallOptions, norm: Norm, *stored: Any
) -> Pair:
    """Return the gradients of xs and of the weights, which PyTorch differentiates in turn."""
    ops = operations_on(xs[0], *stored)
    grads = rotate_by_operations([as_compute(g, ops) for g in grads], source, options, ADJOINT, *stored)
    arrays = zip(grads, xs, norm.weights, strict=True)
    of_arrays = [_gradients_of_norm(g, x, weight, norm, options.seq_axis, ops) for g, x, weight in arrays]
    of_xs, of_weights = zip(*of_arrays, strict=True)
    return of_xs, of_weights


def _gradients_of_norm(grad: Any, x: Any, weight: Any, norm: Norm, seq_axis: int, ops: Any) -> Pair:
    """Return the gradients of x and of its weight, from the gradient of the normed head.

        n = x·r                    r = 1 / sqrt(mean of x² + eps)
        h = grad·(weight + offset)
        dx = r·(h - n·mean(h·n))   dweight = the sum of grad·n over all heads that share the weight

    The roundings of `Norm.rounding` have no gradient.
    """
    values = as_compute(x, ops)
    r = inverse_rms(values, norm.eps, ops)
    n = values * r
    h, of_weight = grad, None
    if weight is not None:
        h = grad * scale_of(weight, norm.offset, x, seq_axis, ops)
        heads = heads_axis(x, seq_axis) if weight.ndim == 2 else None
        shared = [axis for axis in range(x.ndim - 1) if axis != heads]
        of_weight = grad * n
        of_weight = (of_weight.sum(shared) if shared else of_weight).to(weight.dtype)
    mean = ops.stored(sum_in_order(ops.stored(h * n), ops) * (1.0 / x.shape[-1]))
    return (r * (h - ops.stored(n * mean))).to(x.dtype), of_weight


# ---- the gradient ----


class AttentionFunction(torch.autograd.Function):  # type: ignore[misc,unused-ignore]
    """Norm and rotation with the gradients of xs and of the weights; it saves xs, and no normed head.

    The first argument is a tuple: a kernel or None, ``gradients(kernel, grads, xs, source, options, norm)``,
    the source, the options, the norm, the caches or None, and the kernel's last arguments. The others are xs
    and the norm's weights. An unchecked call that the kernel declines is NotImplemented.
    """

    @staticmethod
    def forward(ctx: Any, call: tuple[Any, ...], *arrays: Any) -> Any:
        kernel, gradients, source, options, norm, write, checks = call
        count = len(norm.weights)
        xs, weights = arrays[:count], arrays[count:]
        norm = Norm(weights, *norm[1:])
        results: Any = NotImplemented
        if kernel is not None:
            results = kernel.attention_inputs(xs, source, options, norm, write, None, *checks)
        if results is NotImplemented:
            if checks != (CHECKED,):
                return results
            results = inputs_by_operations(xs, source, options, norm, write, None)
        elif checks == (CHECKED,):
            count_writes(_caches(write))
        ctx.source = save_source(ctx, source, *xs, *_given(weights))
        ctx.call = kernel, gradients, options, Norm(tuple([w is not None for w in weights]), *norm[1:])
        needed, ys = ctx.needs_input_grad[1:], tuple(results[0])
        constant = [y for i, y in enumerate(ys) if not (needed[i] or needed[count + i])]
        if constant:
            ctx.mark_non_differentiable(*constant)
        return ys

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        kernel, gradients, options, norm = ctx.call
        saved, (source_type, other_fields) = iter(ctx.saved_tensors), ctx.source
        xs = [next(saved) for _ in grads]
        weights = [next(saved) if given else None for given in norm.weights]
        source = source_type(*saved, *other_fields)
        present = [i for i, g in enumerate(grads) if g is not None]
        of_arrays: list[Any] = [None] * (2 * len(xs))
        if present:
            chosen, chosen_xs, norms = (tuple([a[i] for i in present]) for a in (grads, xs, weights))
            norm = norm._replace(weights=norms)
            results = gradients(kernel, chosen, chosen_xs, source, options, norm)
            for i, of_x, of_weight in zip(present, *results, strict=True):
                of_arrays[i], of_arrays[len(xs) + i] = of_x, of_weight
        return None, *of_arrays


_record: Any = AttentionFunction.apply


def _gradients_eagerly(
    kernel: Any, grads: Any, xs: Any, source: Source, options: CallOptions, norm: Norm
) -> Pair:
    """Return gradients by the kernel; by PyTorch's operations if it declines, or a gradient is recorded."""
    by_kernel = getattr(kernel, "attention_gradients", None)
    is_plain = not is_recorded((*grads, *xs, *norm.weights)) and why_call_declined(source, False) is None
    if by_kernel is not None and is_plain:
        tables = adjoint(source) if isinstance(source, Tables) else source
        results = by_kernel(grads, xs, tables, options, norm)
        if results is not NotImplemented:
            return tuple(results)
    with no_autocast(grads[0]):
        return gradients_by_operations(grads, xs, source, options, norm)


def _given(arrays: Any) -> tuple[Any, ...]:
    return tuple([array for array in arrays if array is not None])


def _caches(write: CacheWrite | None) -> tuple[Any, ...]:
    return () if write is None else _given(write.caches)


def _weights(norm: Norm | None) -> tuple[Any, ...]:
    return () if norm is None else norm.weights


# ---- eager calls ----


def try_recorded_inputs(
    kernel: Any, xs: Any, source: Source, options: OptionFields, norm: Any, write: Any
) -> Any:
    """Serve a call of plain tensors whose gradient is recorded, or return NotImplemented.

    `norm` and `write` are the fields of `_dispatch.attention_inputs`, which the kernel checks.
    """
    weights, caches = () if norm is None else norm[0], () if write is None else write[0]
    if not type(weights) is type(caches) is tuple or len(weights) != 2 or is_recorded((*source[:2], *caches)):
        return NotImplemented
    weights = weights[: len(xs)]
    if not is_recorded((*xs, *weights)) or why_call_declined(source, True) is not None:
        return NotImplemented
    norm, checks = Norm(weights, *norm[1:]), (UNCHECKED, GATED)
    ys = _record(
        (kernel, _gradients_eagerly, source, CallOptions(*options), norm, write, checks), *xs, *weights
    )
    return ys if ys is NotImplemented else (ys, caches or None)


def attention_eagerly(kernel: Any, inputs: AttentionCall, source_for: Callable[[], Any]) -> Any:
    """Make the results of a checked call by a kernel, or return NotImplemented: array operations serve.

    ``source_for()(use_float64)`` returns the source in the kernel's form. Without a kernel only calls whose
    gradient is recorded are served.
    """
    call, norm, write, _, outs = inputs
    recorded = is_recorded((*call.xs, *_weights(norm)))
    if (norm if recorded else kernel) is None or is_recorded(call.source.arrays) or not _are_plain(inputs):
        return NotImplemented
    if why_call_declined(call.source, recorded) is not None:
        return NotImplemented
    source = source_for()(call.float64[0])
    if recorded and norm is not None:
        arguments = kernel, _gradients_eagerly, source, call.options, norm, write, (CHECKED,)
        ys = _record(arguments, *_kept(call.xs, outs), *norm.weights)
        return _copied(ys, outs), None if write is None else write.caches
    results = kernel.attention_inputs(call.xs, source, call.options, norm, write, outs, CHECKED)
    if results is not NotImplemented:
        count_writes((*(outs or ()), *_caches(write)))
    return results


def _are_plain(inputs: AttentionCall) -> bool:
    """Return whether all tensors of a call are plain: neither fake nor distributed, for two."""
    call, norm, write, _, outs = inputs
    arrays = (*call.xs, *_weights(norm), *(outs or ()))
    if write is not None:
        arrays = (*arrays, *write.caches, write.values, write.slots)
    return all([type(array) in PLAIN_TYPES for array in _given(arrays)])


def _kept(xs: tuple[Any, ...], outs: Any) -> tuple[Any, ...]:
    """Return arrays for the backward, which reads them after a write in place."""
    return xs if outs is None else tuple([x.clone() for x in xs])


def _copied(ys: tuple[Any, ...], outs: Any) -> tuple[Any, ...]:
    """Return results, copied into `outs` if these are given."""
    for out, y in zip(outs or (), ys, strict=outs is not None):
        out.copy_(y)
    return ys if outs is None else tuple(outs)


# ---- calls that torch.compile traces ----


def attention_traced(inputs: AttentionCall, by_kernel: bool) -> Any:
    """Make the results of a traced call by operators, or return NotImplemented: PyTorch's operations serve.

    Without the kernel only a gradient needs an operator: the compiler joins the other operations into loops.
    """
    call, norm, write, _, outs = inputs
    recorded = is_recorded((*call.xs, *_weights(norm)))
    is_rotation = norm is None and (recorded or (write is None and outs is None))
    if is_rotation or not _are_plain(inputs) or not (by_kernel or (recorded and write is None)):
        return NotImplemented
    source = read_source(call, call.float64[0])
    operators, source_arguments = _operators_for(source, words_of(source) if by_kernel else None)
    arguments = (*_norm_arguments(norm), *source_arguments, *call.options)
    caches = None if write is None else write.caches
    if recorded:
        ys = tuple(operators.recorded(_kept(call.xs, outs), *arguments, by_kernel))
        if write is not None:
            _write_traced(operators, inputs, arguments)
        return _copied(ys, outs), caches
    if outs is None and write is None:
        return tuple(operators.plain(call.xs, *arguments)), None
    is_in_place = outs is not None and all([out is x for out, x in zip(outs, call.xs, strict=True)])
    ys = tuple([torch.empty_like(x) for x in call.xs]) if outs is None else outs
    operators.in_place(ys, () if is_in_place else call.xs, *arguments, *_write_arguments(write))
    return ys, caches


def _write_traced(operators: Any, inputs: AttentionCall, arguments: tuple[Any, ...]) -> None:
    """Write the caches of a call whose results an operator with a gradient makes: norm and rotate k again."""
    k, (weights, *others) = inputs.call.xs[-1].detach(), arguments
    weight = None if weights[-1] is None else weights[-1].detach()
    operators.in_place([torch.empty_like(k)], [k], [weight], *others, *_write_arguments(inputs.write))


def _norm_arguments(norm: Norm | None) -> tuple[Any, ...]:
    if norm is None:
        return [], 0.0, 0.0, ""
    return [*norm.weights], known(norm.eps), known(norm.offset), norm.rounding


def _write_arguments(write: CacheWrite | None) -> tuple[Any, ...]:
    if write is None:
        return [], None, None, [], 0, False
    scales = [known(scale) for scale in write.scales]
    return _caches(write), write.values, write.slots, scales, write.seq_axis, write.unique_slots


class _Traced(NamedTuple):
    """A kernel for `AttentionFunction`, whose calls a compiler traces; see `_compiled._Traced`."""

    by_kernel: bool
    words: Any

    def attention_inputs(
        self, xs: Any, source: Source, options: CallOptions, norm: Norm, *others: Any
    ) -> tuple[Any, None]:
        """Norm and rotate tensors of a checked call into new tensors."""
        if not self.by_kernel:
            return inputs_by_operations(xs, source, options, norm, None, None, materialize)
        operators, arguments = _operators_for(source, self.words)
        return operators.plain(xs, *_norm_arguments(norm), *arguments, *options), None

    def attention_gradients(
        self, grads: Any, xs: Any, source: Source, options: CallOptions, norm: Norm
    ) -> Pair:
        """Return the gradients of xs and of the weights."""
        is_served = self.by_kernel and not on_gpu(xs[0])  # no kernel of a GPU has the gradients
        if not is_served or is_recorded((*grads, *xs, *norm.weights)):
            return gradients_by_operations(grads, xs, source, options, norm, materialize)
        operators, arguments = _operators_for(source, None)
        results = operators.gradients(grads, xs, *_norm_arguments(norm), *arguments, *options)
        of_weights = iter(results[len(xs) :])
        return results[: len(xs)], [None if weight is None else next(of_weights) for weight in norm.weights]


# ---- the operators, as they run ----


def _run(call: tuple[Any, ...], write: CacheWrite | None, outs: Any) -> list[Any]:
    """Make results by a kernel, or by PyTorch's operations for a call that it declines."""
    xs, source, options, norm = call
    if xs[0].is_cpu:
        results = _native.kernel.attention_inputs(xs, source, options, norm, write, outs, UNCHECKED, GATED)
    else:
        results = _run_on_gpu(xs, source, options, norm, write, outs)
    if results is NotImplemented:
        read = (*xs, *source.arrays, *_weights(norm))
        refuse_tangents(read)
        if outs is None:
            outs = tuple([torch.empty_like(x) for x in xs])  # of the strides that the compiler expects
        else:
            refuse_gradients(read)
        results = inputs_by_operations(xs, source, options, norm, write, outs)
    return list(results[0])


def _run_on_gpu(
    xs: Any, source: Source, options: CallOptions, norm: Norm | None, write: CacheWrite | None, outs: Any
) -> Any:
    """Make results by the Triton kernel; the call is checked again, now that addresses are known."""
    from . import _triton_inputs  # which imports Triton

    refuse_tangents((*xs, *source.arrays, *_weights(norm)))
    results = _triton_inputs.attention_inputs(_checked(xs, source, options, norm, write, outs), source)
    if results is not NotImplemented:
        count_writes((*(outs or ()), *_caches(write)))
    return results


def _run_gradients(grads: Any, xs: Any, source: Source, options: CallOptions, norm: Norm) -> list[Any]:
    """Return gradients with the strides that the compiler expects."""
    of_xs, of_weights = _gradients_eagerly(_native.kernel, grads, xs, source, options, norm)
    results = zip(_given((*of_xs, *of_weights)), _given((*xs, *norm.weights)), strict=True)
    return [g if g.stride() == x.stride() else torch.empty_like(x).copy_(g) for g, x in results]


# ---- the operators ----


class _Operators(NamedTuple):
    """The operators for one kind of source: new results, written ones and caches, a gradient, gradients."""

    plain: Any
    in_place: Any
    recorded: Any
    gradients: Any


def _operators_for(source: Source, words: Any) -> tuple[_Operators, tuple[Any, ...]]:
    """Return the operators for a source, and the source as their arguments."""
    arguments = arguments_of(source, FORWARD, words)
    return (_BY_TABLES, arguments) if isinstance(source, Tables) else (_BY_POSITIONS, arguments[:-1])


def _define(name: str, source: str, read: Any) -> _Operators:
    """Define the operators for a kind of source, as `_define` of _compiled.py does.

    operator      arguments
    *             xs, *_NORM, *source, *OPTIONS
    *_            outs, xs, the same, *_CACHES: outs and caches are written; without xs, outs are read
    *_recorded    the same as * and by_kernel
    *_gradients   grads, and the same as *
    """

    def parse(xs: Any, weights: Any, *others: Any) -> Any:
        (eps, offset, rounding), others = others[:3], others[3:]
        norm = Norm(tuple(weights), eps, offset, rounding) if rounding else None
        source, options, _, words = read(xs, *others)
        return (tuple(xs), source, options, norm), words

    def run_in_place(outs: Any, xs: Any, *arguments: Any) -> None:
        caches, values, slots, scales, seq_axis, unique_slots = arguments[-6:]
        write = CacheWrite((*caches, None)[:2], values, slots, tuple(scales), seq_axis, unique_slots)
        _run(parse(xs or outs, *arguments[:-6])[0], write if caches else None, tuple(outs))

    def with_gradient(*arguments: Any) -> list[Any]:
        (xs, source, options, norm), words = parse(*arguments[:-1])
        kernel = _Traced(arguments[-1], words)
        call = kernel, _Traced.attention_gradients, source, options, norm, None, (CHECKED,)
        return list(_record(call, *xs, *norm.weights))

    def without_gradient(*arguments: Any) -> list[Any]:
        call, words = parse(*arguments[:-1])
        return list(_Traced(arguments[-1], words).attention_inputs(*call)[0])

    def show(*arguments: Any) -> Any:
        from . import _triton_traced

        call, words = parse(*arguments)
        return _triton_traced.launch_inputs(_checked(*call, None, None), words)

    # Rules for the vmap of batched gradients.
    def run_operations(*arguments: Any) -> list[Any]:
        return list(inputs_by_operations(*parse(*arguments)[0], None, None)[0])

    def run_gradient_operations(grads: Any, *arguments: Any) -> list[Any]:
        of_xs, of_weights = gradients_by_operations(grads, *parse(*arguments)[0])
        return [*of_xs, *_given(of_weights)]

    given = f"{_NORM}, {source}, {OPTIONS}"
    schemas = {
        name: f"(Tensor[] xs, {given}) -> Tensor[]",
        f"{name}_": f"(Tensor(a!)[] outs, Tensor[] xs, {given}, {_CACHES}) -> ()",
        f"{name}_recorded": f"(Tensor[] xs, {given}, bool by_kernel) -> Tensor[]",
        f"{name}_gradients": f"(Tensor[] grads, Tensor[] xs, {given}) -> Tensor[]",
    }
    plain, in_place, recorded, gradients = schemas
    rules = [
        *((plain, device, lambda *arguments: _run(parse(*arguments)[0], None, None)) for device in DEVICES),
        (plain, "Batched", run_operations),
        *((in_place, device, run_in_place) for device in DEVICES),
        (recorded, "CompositeExplicitAutograd", without_gradient),
        (recorded, "Autograd", with_gradient),
        (recorded, "Batched", lambda *arguments: run_operations(*arguments[:-1])),
        (gradients, "CPU", lambda grads, *arguments: _run_gradients(tuple(grads), *parse(*arguments)[0])),
        (gradients, "Batched", run_gradient_operations),
    ]
    if not hasattr(torch.ops.rope_array, name):  # a copy of this package, imported before, may have them
        for operator, schema in schemas.items():
            NAMESPACE.define(operator + schema, tags=TAGS)
        for operator, key, rule in rules:
            NAMESPACE.impl(operator, rule, key)
        show_on_gpu(plain, show)
        fakes: tuple[Any, ...] = (empty_like, refuse_cpp_wrapper, empty_like, _empty_gradients)
        for operator, fake in zip(schemas, fakes, strict=True):
            torch.library.register_fake(f"rope_array::{operator}", fake, lib=NAMESPACE)
    return _Operators(*(getattr(torch.ops.rope_array, operator).default for operator in schemas))


def _empty_gradients(grads: Any, xs: Any, weights: Any, *arguments: Any) -> list[Any]:
    """Return gradients without values, for the compiler."""
    return empty_like([*xs, *_given(weights)])


def _read_forward_positions(xs: Any, pos: Any, words: Any, plan: str, *options: Any) -> tuple[Any, ...]:
    return read_positions(xs, pos, words, plan, FORWARD, *options)


_NORM = "Tensor?[] weights, float eps, float offset, str rounding"  # without a norm, rounding is empty
_CACHES = (
    "Tensor(b!)[] caches, Tensor? values, Tensor? slots, float[] scales, int cache_seq_axis, "
    "bool unique_slots"
)
_BY_POSITIONS = _define("attention_at", "Tensor pos, Tensor? words, str plan", _read_forward_positions)
_BY_TABLES = _define("attention_by", f"Tensor cos, Tensor sin, {LAYOUT}", read_tables)
