"""Calls that torch.compile traces: by our operators (torch.ops.rope_array), or by PyTorch's own operations.

On the CPU our operators call the C++ kernel, on a GPU the Triton kernel, whose launch the compiler may see:
_triton_traced.py. Elsewhere the compiler joins PyTorch's operations into one loop. If a gradient is recorded,
the operator `*_recorded` serves, on every device; its backward rotates by the adjoint and saves no x. Without
it the compiler would differentiate each operation, in several loops.

The arguments of operators are tensors, numbers and text, which PyTorch's caches can store: a program that
another process compiled carries its plan.
"""

import hashlib
import json
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch.autograd import forward_ad

from rope_array import _dynamo
from rope_array._array_api.angles import cos_sin
from rope_array._array_api.library import computes_in_float64
from rope_array._array_api.out import check_outs
from rope_array._array_api.position_input import parse, split_floats
from rope_array._array_api.source import Call, CallOptions, Positions, Source, Tables
from rope_array._array_api.tables import cast_tables
from rope_array._backends import _native
from rope_array._errors import ArrayTypeError, BackendError, describe
from rope_array._internals import FORWARD_LEVEL, internal
from rope_array._spec.plan import Constants, Coordinates, Layout, Plan, Words

from ._gradient import CHECKED, GATED, NEW, UNCHECKED, adjoint, rotate_by_operations, rotate_recorded
from ._library import LIBRARY, PLAIN_TYPES, TRANSFORMED, count_writes, is_exported, materialize, unit_pairs

# ---- a call that is traced ----


def why_call_unserved(xs: Any, source: Source) -> str | None:
    """Return why a compiled call has no operator and no rule for its gradient, or None."""
    if is_exported():
        return "the call is exported, as PyTorch's own operations: they run where rope_array is not installed"
    if TRANSFORMED is None or TRANSFORMED() or getattr(forward_ad, FORWARD_LEVEL, 0) >= 0:
        return "the compiled function transforms the call"
    for array in source.arrays:
        if isinstance(array, torch.Tensor) and array.requires_grad and torch.is_grad_enabled():
            return "a gradient of positions or tables is recorded"
    for x in (*xs, *source.arrays):
        if isinstance(x, torch.Tensor) and type(x) not in PLAIN_TYPES:
            return "a tensor is of a subclass of torch.Tensor, which PyTorch's own operations serve"
    return None


def rotate_traced(call: Call, by_kernel: bool) -> tuple[Any, ...]:
    """Rotate the arrays of a call, by the kernel or by PyTorch's operations.

    One operator rotates all arrays that have one compute dtype, and with or without a gradient.
    """
    grad = torch.is_grad_enabled()
    keys = [(float64, x.requires_grad and grad) for x, float64 in zip(call.xs, call.float64, strict=True)]
    ys: list[Any] = [None] * len(keys)
    for use_float64 in (False, True):
        if use_float64 not in call.float64:
            continue
        source = read_source(call, use_float64)
        kernel = _Traced(by_kernel, words_of(source) if by_kernel else None)
        for recorded in (False, True):
            members = [i for i, key in enumerate(keys) if key == (use_float64, recorded)]
            if members:
                xs = [call.xs[i] for i in members]
                rotate_group = _rotate_and_record if recorded else _rotate_unrecorded
                for i, y in zip(members, rotate_group(xs, source, call.options, kernel), strict=True):
                    ys[i] = y
    return tuple(ys)


def rotate_traced_into(call: Call, outs: tuple[Any, ...]) -> tuple[Any, ...]:
    """Rotate the arrays of a call by the kernel, into `outs`."""
    if _is_one_call_in_place(call, outs):
        source = read_source(call, call.float64[0])
        operators, arguments = _operators_for(source, False, words_of(source))
        operators.in_place(call.xs, *arguments, *call.options)
    else:  # all results exist before the first is written: an out may overlap another x
        for out, y in zip(outs, rotate_traced(call, by_kernel=True), strict=True):
            out.copy_(y)
    return outs


def _is_one_call_in_place(call: Call, outs: tuple[Any, ...]) -> bool:
    """Return whether one operator in place serves a call: of one compute dtype, and without a gradient."""
    grad = torch.is_grad_enabled()
    for x, out, use_float64 in zip(call.xs, outs, call.float64, strict=True):
        if out is not x or (x.requires_grad and grad) or use_float64 != call.float64[0]:
            return False
    return True


def read_source(call: Call, use_float64: bool) -> Source:
    """Return a source of positions, int64 or floats, or of tables in the compute dtype."""
    source, ops = call.source, call.ops
    if isinstance(source, Tables):
        return Tables(*cast_tables(source, use_float64, ops), source.layout)
    values, _ = call.pos.read(call.lib, ops, any(call.float64), split=False)
    if (positions := _positions_of_kernel(values, source.plan, ops)) is not None:
        return positions
    tables = cos_sin(*split_floats(values, ops), source.plan, use_float64, ops)
    return Tables(*tables, source.layout)


def _positions_of_kernel(values: Any, plan: Plan, ops: Any) -> Positions | None:
    """Return positions as the kernels read them, int64 or floats; None if they need tables."""
    if not values.dtype.is_floating_point and plan.exact:
        return Positions(ops.cast(values, torch.int64), plan)
    return Positions(values, plan) if _takes_fractions(plan) else None


@_dynamo.traced_constant
def _takes_fractions(plan: Plan) -> bool:
    return plan.takes_fractions


# ---- the rotation of tensors of one compute dtype, by positions or by tables of that dtype ----


class _Traced(NamedTuple):
    """A kernel for `RotationFunction`, whose calls a compiler traces.

    Attributes
    ----------
    by_kernel
        Whether the kernel's operators rotate, or PyTorch's operations.
    words
        See `words_of`.
    """

    by_kernel: bool
    words: Any

    def rotate(
        self, xs: Any, source: Source, options: CallOptions, outs: None, checked: bool, transposed: bool
    ) -> tuple[Any, ...]:
        """Rotate tensors of a checked call into new tensors."""
        return tuple(_rotate_unrecorded(xs, source, options, self, transposed))


def _rotate_unrecorded(
    xs: Any, source: Source, options: CallOptions, kernel: _Traced, transposed: bool = False
) -> Any:
    """Rotate tensors by an operator that records no gradient, or by PyTorch's operations."""
    if kernel.by_kernel:
        operators, arguments = _operators_for(source, transposed, kernel.words)
        return operators.plain(xs, *arguments, *options)
    return rotate_by_operations(xs, source, options, transposed, materialize)


def _rotate_and_record(
    xs: Any, source: Source, options: CallOptions, kernel: _Traced, transposed: bool = False
) -> Any:
    """Rotate tensors by the operator that records their gradient."""
    operators, arguments = _operators_for(source, transposed, kernel.words)
    return operators.recorded(xs, *arguments, *options, kernel.by_kernel)


def _rotate_back_traced(
    kernel: _Traced, grads: Any, source: Source, options: CallOptions, transposed: bool
) -> Any:
    """Rotate gradients, and record the gradient of this rotation."""
    return _rotate_and_record(grads, source, options, kernel, transposed)


def make_tables_traced(source: Positions, like: Any) -> Any:
    """Return cos and sin by the kernel on a GPU: (1, 0) of each pair, rotated; NotImplemented for others."""
    is_rotation = source.inv_freq is None and not source.plan.takes_angles
    if not is_rotation or why_call_unserved((like,), source) is not None:
        return NotImplemented
    use_float64, ops = computes_in_float64(like), LIBRARY.ops(like)
    values, _ = parse(source.values, like, LIBRARY).read(LIBRARY, ops, use_float64, split=False)
    if (positions := _positions_of_kernel(values, source.plan, ops)) is None:
        return NotImplemented
    _make_units(source.plan)
    plan: Any = source.plan.derived.units
    positions = positions._replace(plan=plan)
    # As a symbol, the number of pairs would be a stride of the tables.
    units = unit_pairs(_dynamo.known(plan.layout.num_pairs), use_float64, like.device)
    shape = values.shape if plan.coordinates is None else values.shape[:-1]
    kernel = _Traced(True, words_of(positions))
    (y,) = _rotate_unrecorded([units.expand(*shape, -1)], positions, CallOptions(), kernel)
    return y.chunk(2, -1)


@_dynamo.traced_constant
def _make_units(plan: Plan) -> None:
    """Set `plan.derived.units`, which the caller reads as an attribute."""
    plan.of_units()


# ---- plans as text ----

_DIGEST = 32  # characters before the plan


@_dynamo.traced_constant
def write_text(plan: Plan) -> None:
    """Set `plan.derived.text`.

    The caller then reads the attribute, which Dynamo guards: another plan recompiles. The text leaves
    out `driven_mask`, so a plan read from it may be unequal to the original. No operator uses the mask: only
    tables of learned frequencies do.
    """
    if plan.derived.text is None:
        coordinates = plan.coordinates and (plan.coordinates.number, plan.coordinates.of_pairs.values)
        text = json.dumps([plan.layout, *plan.words(), coordinates])
        plan.derived.text = hashlib.sha256(text.encode()).hexdigest()[:_DIGEST] + text


def _read_text(text: str) -> Plan:
    layout, *words, coordinates = json.loads(text[_DIGEST:])
    if coordinates is not None:
        coordinates = Coordinates(coordinates[0], Constants(coordinates[1]))
    plan = Plan(Layout(*layout), Words(*words), coordinates=coordinates)
    if _native.kernel is not None:
        _native.prepare(plan)
    return plan


# PyTorch passes a new str in each call: hash its digest alone, not thousands of characters.
_plan_of = _dynamo.traced_memo(_read_text, lambda text: text[:_DIGEST])


# ---- the kernel, as operators call it ----


def _rotate_by_kernel(
    xs: Any, source: Source, options: CallOptions, transposed: bool, outs: Any = None
) -> list[Any]:
    refuse_tangents((*xs, *source.arrays))
    kernel = _kernel_for(xs[0])
    ys = kernel.rotate(tuple(xs), source, options, outs, CHECKED, transposed)
    if ys is NotImplemented:  # tables may be where the kernel cannot read them
        contiguous = [t.clone(memory_format=torch.contiguous_format) for t in source.arrays if t is not None]
        source = type(source)(*contiguous, *source[len(contiguous) :])
        ys = kernel.rotate(tuple(xs), source, options, outs, CHECKED, transposed)
    if ys is NotImplemented:
        raise BackendError(
            "the kernel declines a call of a compiled program: the memory of an array was freed "
            "meanwhile, or another version of rope_array compiled the program. Compile it anew."
        )
    return list(ys)


def _kernel_for(x: Any) -> Any:
    if x.is_cpu:
        return _native.kernel
    from . import _triton_launch  # which imports Triton

    return _triton_launch


def _rotate_in_place_by_kernel(xs: Any, source: Source, options: CallOptions, transposed: bool) -> None:
    """Rotate tensors in place. Only here are their addresses known, so here overlaps are refused."""
    xs, ys = tuple(xs), NotImplemented
    if xs[0].is_cpu:
        ys = _native.kernel.rotate(xs, source, options, xs, UNCHECKED, transposed, GATED)
    if ys is NotImplemented:
        refuse_gradients((*xs, *source.arrays))
        check_outs(xs, xs, xs, source.arrays, LIBRARY)
        _rotate_by_kernel(xs, source, options, transposed, xs)
        count_writes(xs)


def refuse_gradients(values: Any) -> None:
    """Raise for tensors whose gradient is recorded, which the operator in place would lose."""
    for value in values if torch.is_grad_enabled() else ():
        if isinstance(value, torch.Tensor) and value.requires_grad:
            raise ArrayTypeError(
                f"{describe(value)} requires a gradient, and the operator in place records none; work under "
                "torch.no_grad(), or call rope.apply(x, pos, out=x), which records it."
            )


def refuse_tangents(values: Any) -> None:
    """Raise for dual numbers of forward-mode differentiation, whose tangents the operator would lose."""
    if getattr(forward_ad, FORWARD_LEVEL, -1) < 0:
        return
    for value in values:
        if isinstance(value, torch.Tensor) and forward_ad.unpack_dual(value).tangent is not None:
            raise ArrayTypeError(
                f"{describe(value)} is a dual number of forward-mode differentiation, and the function was "
                "compiled without; enter dual_level() inside the compiled function, or call it uncompiled."
            )


# ---- the operators ----


class _Operators(NamedTuple):
    """The operators for one kind of source: new results, in place, and new results with a gradient."""

    plain: Any
    in_place: Any
    recorded: Any


def _operators_for(source: Source, transposed: bool, words: Any) -> tuple[_Operators, tuple[Any, ...]]:
    """Return the operators for a source, and the source as their arguments."""
    arguments = arguments_of(source, transposed, words)
    return _BY_TABLES if isinstance(source, Tables) else _BY_POSITIONS, arguments


def arguments_of(source: Source, transposed: bool, words: Any) -> tuple[Any, ...]:
    """Return a source as the arguments of operators."""
    if isinstance(source, Tables):
        cos, sin, layout = adjoint(source) if transposed else source
        _, start, stop, pairing, out_pairing, _, blocks = layout
        return cos, sin, start, stop, pairing, out_pairing, blocks
    write_text(source.plan)
    return source.values, words, source.plan.derived.text, transposed


def on_gpu(tensor: Any) -> bool:
    """Return whether the Triton kernel serves the device of a tensor."""
    return bool(tensor.device.type == "cuda")


def words_of(source: Source) -> Any:
    """Return the constants of a plan on a GPU, or None: an input of the program.

    As a constant of the program they would be copied to the GPU in each call.
    """
    if isinstance(source, Tables) or not on_gpu(source.values):
        return None
    _copy_words(source.plan, source.values.device)
    return source.plan.derived.on_devices[source.values.device][0]


@_dynamo.traced_constant
def _copy_words(plan: Plan, device: Any) -> None:
    """Copy the constants of a plan to a GPU, unless they are there, and have CUDA graphs read them there."""
    from . import _triton_launch

    torch._dynamo.mark_static_address(_triton_launch.words_on(plan, device, _triton_launch.stream_of(device)))


# `read` of `_define`: the source, the options, whether it is transposed, and words.
_Read = tuple[Source, CallOptions, bool, Any]


def read_positions(xs: Any, pos: Any, words: Any, plan: str, transposed: bool, *options: Any) -> _Read:
    return Positions(pos, _plan_of(plan)), CallOptions(*options), transposed, words


def read_tables(xs: Any, cos: Any, sin: Any, *numbers: Any) -> _Read:
    start, stop, pairing, out_pairing, blocks, *options = numbers
    layout = Layout(xs[0].shape[-1], start, stop, pairing, out_pairing, None, blocks)
    return Tables(cos, sin, layout), CallOptions(*options), False, None


def _define(name: str, source: str, read: Any) -> _Operators:
    """Define the operators of the kernel, and the one with a gradient, for all devices.

    AOTAutograd replaces `*_recorded`, forward and backward, by the kernel's operators or by PyTorch's
    operations. The kernel's operators have no autograd rule: it would cost microseconds in every call.
    PyTorch derives the rule of the operator in place for functionalization from its schema.

        operator     arguments after xs
        rotate_at    pos, words, plan, transposed, *OPTIONS
        rotate_by    cos, sin, *LAYOUT, *OPTIONS
        *_           the same; in place
        *_recorded   the same and by_kernel, which `read` does not take
    """

    def run_kernel(xs: Any, *arguments: Any) -> list[Any]:
        return _rotate_by_kernel(xs, *read(xs, *arguments)[:3])

    def run_kernel_in_place(xs: Any, *arguments: Any) -> None:
        _rotate_in_place_by_kernel(xs, *read(xs, *arguments)[:3])

    def run_operations(xs: Any, *arguments: Any) -> list[Any]:
        return list(rotate_by_operations(xs, *read(xs, *arguments)[:3]))

    def show(xs: Any, *arguments: Any) -> Any:
        from . import _triton_traced

        return _triton_traced.launch(xs, *read(xs, *arguments))

    def with_gradient(xs: Any, *arguments: Any) -> list[Any]:
        *source_arguments, by_kernel = arguments
        source, options, transposed, words = read(xs, *source_arguments)
        call = _Traced(by_kernel, words), _rotate_back_traced, source, options, CHECKED, transposed, NEW
        return list(rotate_recorded(call, *xs))

    def without_gradient(xs: Any, *arguments: Any) -> list[Any]:
        *source_arguments, by_kernel = arguments
        source, options, transposed, words = read(xs, *source_arguments)
        return list(_rotate_unrecorded(xs, source, options, _Traced(by_kernel, words), transposed))

    in_place, recorded = f"{name}_", f"{name}_recorded"
    if not hasattr(torch.ops.rope_array, name):  # a copy of this package, imported before, may have them
        NAMESPACE.define(f"{name}(Tensor[] xs, {source}, {OPTIONS}) -> Tensor[]", tags=TAGS)
        NAMESPACE.define(f"{in_place}(Tensor(a!)[] xs, {source}, {OPTIONS}) -> ()", tags=TAGS)
        schema = f"{recorded}(Tensor[] xs, {source}, {OPTIONS}, bool by_kernel) -> Tensor[]"
        NAMESPACE.define(schema, tags=TAGS)
        for device in DEVICES:
            NAMESPACE.impl(name, run_kernel, device)
            NAMESPACE.impl(in_place, run_kernel_in_place, device)
        NAMESPACE.impl(recorded, without_gradient, "CompositeExplicitAutograd")
        NAMESPACE.impl(recorded, with_gradient, "Autograd")
        # The vmap of batched gradients; torch.func's vmap never gets here: Dynamo traces it.
        NAMESPACE.impl(name, run_operations, "Batched")
        NAMESPACE.impl(recorded, lambda xs, *arguments: run_operations(xs, *arguments[:-1]), "Batched")
        show_on_gpu(name, show)
        for operator in (name, recorded):
            torch.library.register_fake(f"rope_array::{operator}", empty_like, lib=NAMESPACE)
        torch.library.register_fake(f"rope_array::{in_place}", refuse_cpp_wrapper, lib=NAMESPACE)
    operators = (name, in_place, recorded)
    return _Operators(*(getattr(torch.ops.rope_array, operator).default for operator in operators))


def show_on_gpu(name: str, launch: Callable[..., Any]) -> None:
    """Replace an operator on a GPU by `launch`, which may return NotImplemented, while AOTAutograd traces."""

    def dispatch(mode: Any, operator: Any, types: Any, arguments: Any, keywords: Any) -> Any:
        if on_gpu(arguments[0][0]):
            with mode:
                ys = launch(*arguments)
            if ys is not NotImplemented:
                return ys
        return mode.__torch_dispatch__(operator, types, arguments, keywords)

    register = getattr(torch.library, "register_torch_dispatch", None)  # since PyTorch 2.5
    if register is not None and _FUNCTIONAL_MODE is not None:
        register(f"rope_array::{name}", _FUNCTIONAL_MODE, dispatch, lib=NAMESPACE)


def empty_like(xs: Any, *arguments: Any) -> list[Any]:
    """Return results without values, for the compiler."""
    refuse_cpp_wrapper()
    return [torch.empty_like(x) for x in xs]


def refuse_cpp_wrapper(*arguments: Any) -> None:
    """Raise if Inductor writes a program in C++."""
    if internal("torch._inductor.config.cpp_wrapper"):
        # In PyTorch 2.13 the C++ code crashes at operators of other packages that take lists of tensors.
        raise BackendError(
            "Inductor's option cpp_wrapper calls no operator of another package; leave the option out, or "
            'give backend="torch", whose operations the compiler joins into a loop.'
        )


_FUNCTIONAL_MODE = internal("torch._subclasses.functional_tensor.FunctionalTensorMode")
DEVICES = "CPU", "CUDA"
NAMESPACE = torch.library.Library("rope_array", "FRAGMENT")
# The results have the strides of the arrays, so the compiler must not change these. Older versions lack tags.
_NAMES = ("pt2_compliant_tag", "needs_exact_strides")
TAGS = tuple(getattr(torch.Tag, name) for name in _NAMES if hasattr(torch.Tag, name))
OPTIONS = "int seq_axis"  # the fields of `CallOptions`
LAYOUT = "int start, int stop, str pairing, str out_pairing, int blocks"
_BY_POSITIONS = _define("rotate_at", "Tensor pos, Tensor? words, str plan, bool transposed", read_positions)
_BY_TABLES = _define("rotate_by", f"Tensor cos, Tensor sin, {LAYOUT}", read_tables)
