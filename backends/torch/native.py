"""PyTorch on the CPU by the C++ kernel: eager calls on plain tensors, with or without a gradient.

Whatever sees or changes the operations that a call is made of (a compiler, a functorch transform,
forward-mode differentiation, a mode, a subclass) is left to the core, which is made of PyTorch's own
operations: by a kernel that PyTorch does not see it would get a wrong or an empty result. A reverse-mode
gradient is served, by a rule whose backward is the adjoint rotation.
"""

from typing import Any

import torch
from torch.autograd import forward_ad

from rope_array._array_api.library import computes_in_float64
from rope_array._array_api.position_input import read_positions
from rope_array._array_api.rotate import rotate_by_tables
from rope_array._array_api.source import Call, Source, Tables
from rope_array._array_api.tables import tables_at
from rope_array._backends import _native
from rope_array._backends.torch import LIBRARY, TRANSFORMED, is_freed, no_autocast
from rope_array._spec.plan import Layout, Plan
from rope_array._spec.shape_rule import check_line_up, without_coordinates

name = "native"
accepts_outs = True

_types: dict[Any, tuple[int, int]] = {}  # the kernel's number for a dtype, and its bytes
_MOST_AXES = 64  # as drive.hpp has it
_KINDS = (torch.Tensor, torch.nn.Parameter)  # a parameter is a tensor in all but what owns it
# Private names. Where PyTorch has another, the kernel declines: what they tell would go unseen.
_DISPATCH = getattr(torch._C, "_len_torch_dispatch_stack", None)
_FUNCTION = getattr(torch._C, "_len_torch_function_stack", None)
_TRACING = getattr(torch._C, "_get_tracing_state", None)
_KEYS: Any = getattr(torch._C, "_dispatch_keys", None)
# Whether the kernel looks at tensors by itself; in versions that do not offer it, it is told where they lie.
_SEEN = _native.kernel is not None and _native.kernel.use_tensors(torch.Tensor)
_KNOWN = None not in (TRANSFORMED, _DISPATCH, _FUNCTION, _TRACING, _KEYS) and hasattr(
    forward_ad, "_current_level"
)


unavailable_reason = _native.unavailable_reason


def description() -> str:
    """Say which instruction set runs, and by how many threads at most."""
    if _native.kernel is None:
        return unavailable_reason()
    threads = _native.kernel.threads_of(torch.get_num_threads())
    return f"{_native.kernel.level_name()} instructions, up to {threads} threads"


def library(x: Any) -> Any:
    """Return PyTorch."""
    return LIBRARY


def _kind(dtype: Any) -> tuple[int, int] | None:
    """Return the kernel's number for a dtype, and its bytes: by name, as a program may swap torch.float32."""
    kind = _types.get(dtype)
    if kind is None and (number := _native.TYPES.get(str(dtype).rpartition(".")[2])) is not None:
        kind = _types[dtype] = (number, dtype.itemsize)
    return kind


def decline_reason(xs: Any, source: Source) -> str | None:
    """Return why tensors are declined, or None."""
    return _decline_reason(xs, source.arrays)


def _decline_reason(xs: Any, beside: Any) -> str | None:
    if torch.compiler.is_compiling():  # first: Dynamo takes it as a constant, and sees nothing of the rest
        return "the call is compiled: the core is made of operations that the compiler joins into one loop"
    if _native.kernel is None:
        return unavailable_reason()
    if (watched := _watched()) is not None:
        return watched
    for x in xs:
        if not _is_plain(x):
            return _unlike_plain(x)
        if x.ndim > _MOST_AXES:
            return f"a tensor has {x.ndim} axes, and the kernel takes {_MOST_AXES}"
    recorded = torch.is_grad_enabled() and any(x.requires_grad for x in xs)
    tensors = [other for other in beside if isinstance(other, torch.Tensor)]
    for other in tensors:
        if other.requires_grad and torch.is_grad_enabled():
            return "a gradient of positions or tables is recorded"
        if recorded and other.is_inference():
            return "positions or tables of inference mode cannot be kept for a backward"
        if not _is_plain(other):
            return _unlike_plain(other)
    if any(map(is_freed, (*xs, *tensors))):
        return "the memory of a tensor has been freed"
    return None


def _watched() -> str | None:
    """Say what sees each operation of PyTorch's, if anything does."""
    if not _KNOWN:
        return "this version of PyTorch does not tell whether its operations are transformed"
    if TRANSFORMED():
        return "a functorch transform is active"
    if forward_ad._current_level >= 0:
        return "forward-mode differentiation is active"
    if _DISPATCH() or _FUNCTION():  # type: ignore[misc]
        return "a mode watches PyTorch's operations"
    if _TRACING() is not None:  # type: ignore[misc]
        return "the call is traced by torch.jit"
    return None


def _is_plain(x: Any) -> bool:
    """Tell whether a tensor's numbers are those in the host's memory, as its strides say.

    Asked where nothing watches. PyTorch's own word for it are the keys by which it finds the code for a
    tensor: a lazily negated view, a zero without memory, a batch of an older vmap, another device or layout
    have others.
    """
    return type(x) in _KINDS and _KEYS(x).raw_repr() in (_plain_keys or _learn_plain_keys())


_plain_keys: frozenset[int] = frozenset()


def _learn_plain_keys() -> frozenset[int]:
    """Return the keys of plain tensors, which are the same for all of them."""
    global _plain_keys
    made = []
    for inference in (False, True):  # tensors made in inference mode have fewer keys
        with torch.inference_mode(inference):
            made.append(torch.empty(0, device="cpu"))
    _plain_keys = frozenset(_KEYS(x).raw_repr() for x in made)
    return _plain_keys


def _unlike_plain(x: Any) -> str:
    if type(x) not in _KINDS:
        return f"{type(x).__name__} is a subclass of torch.Tensor, which PyTorch's own operations serve"
    if not x.is_cpu:
        return f"a tensor is on {x.device}; the kernel runs on the CPU"
    return "a tensor's numbers are not in memory as they are: a lazily negated view, say, or a batch of vmap"


def try_fast(x: Any, source: Source, seq_axis: Any, out: Any) -> Any:
    """Rotate plain tensors, or return NotImplemented."""
    if isinstance(source, Tables):
        return quick_rotate(x, source.cos, source.sin, source.layout, seq_axis, out)
    return quick(x, source.values, source.plan, seq_axis, out)


def quick(x: Any, pos: Any, plan: Plan, seq_axis: Any, out: Any) -> Any:
    """Rotate one plain tensor by integers; NotImplemented for every other call."""
    if torch.compiler.is_dynamo_compiling():  # first: see `supports`
        return NotImplemented
    # The first call goes the long way, on which plain keys are learnt.
    if type(x) is not torch.Tensor or _watched() is not None or _KEYS(x).raw_repr() not in _plain_keys:
        return NotImplemented
    if type(pos) is not int and (type(pos) is not torch.Tensor or _KEYS(pos).raw_repr() not in _plain_keys):
        return NotImplemented
    spec = plan.native or _native.spec_of(plan)
    if spec is None or type(seq_axis) is not int or not -_MOST_AXES <= seq_axis <= _MOST_AXES:
        return NotImplemented
    if x.requires_grad and torch.is_grad_enabled():
        return NotImplemented if out is not None else _quick_gradient(x, pos, plan, seq_axis)
    if out is not None and not _may_write(x, pos, out):
        return NotImplemented
    y = torch.empty_like(x) if out is None else out
    if _SEEN:
        done = _native.kernel.run_tensor(spec, x, y, pos, seq_axis, torch.get_num_threads, out is None)
    else:
        done = _quick_run(x, y, spec, _quick_positions(pos, plan), seq_axis, out is None)
    return _finished(y, done, out)


def _finished(y: Any, done: bool, out: Any) -> Any:
    """Return what a short way has written; NotImplemented where the kernel has declined."""
    if done and out is not None:
        torch.autograd.graph.increment_version(out)  # as operations in place do, for what was saved of it
    return y if done else NotImplemented


def _quick_run(x: Any, y: Any, spec: Any, given: Any, seq_axis: int, fresh: bool) -> bool:
    """Rotate one tensor without a gradient; false where it does not fit."""
    if given is None or _kind(x.dtype) is None:
        return False
    arrays = (_described(x, y),)
    done: bool = _native.kernel.run(spec, arrays, given, seq_axis, torch.get_num_threads, fresh)
    return done


def _quick_gradient(x: Any, pos: Any, plan: Plan, seq_axis: int) -> Any:
    """Rotate with a gradient recorded; positions that do not line up are refused elsewhere."""
    given = _quick_positions(pos, plan)
    plain = given is not None and 0 < x.ndim <= _MOST_AXES and _kind(x.dtype)
    if not plain or x.shape[-1] != plan.layout.head_dim or _decline_reason((x,), (pos,)) is not None:
        return NotImplemented
    shape = tuple(pos.shape) if type(pos) is torch.Tensor else ()
    check_line_up(x.shape, without_coordinates(shape, plan), seq_axis)
    positions = (1, pos) if type(pos) is torch.Tensor else (0, given)
    return _recorded(plan, False, seq_axis, *positions, x)[0]


def quick_rotate(x: Any, cos: Any, sin: Any, layout: Layout, seq_axis: Any, out: Any) -> Any:
    """Rotate one plain tensor by tables of its precision without a gradient, as `quick` does by positions."""
    if torch.compiler.is_dynamo_compiling():
        return NotImplemented
    if type(x) is not torch.Tensor or _watched() is not None or not _is_plain(x):
        return NotImplemented
    if type(seq_axis) is not int or not -_MOST_AXES <= seq_axis <= _MOST_AXES or _native.kernel is None:
        return NotImplemented
    wanted = torch.float64 if x.dtype is torch.float64 else torch.float32
    if not (_is_table(cos, wanted) and _is_table(sin, wanted)) or cos.shape != sin.shape:
        return NotImplemented
    if (x.requires_grad or cos.requires_grad or sin.requires_grad) and torch.is_grad_enabled():
        return NotImplemented
    if out is not None and not (_may_write(x, cos, out) and _are_apart(sin, out)):
        return NotImplemented
    y, spec = torch.empty_like(x) if out is None else out, _native.spec_of_tables(layout)
    done = _quick_run(x, y, spec, _as_tables(cos, sin), seq_axis, out is None)
    return _finished(y, done, out)


def _is_table(table: Any, dtype: Any) -> bool:
    """Tell whether a table is one as the kernel reads it, lanes side by side."""
    plain = type(table) is torch.Tensor and table.dtype is dtype and _is_plain(table)
    return plain and table.ndim > 0 and table.stride(-1) == 1


def _may_write(x: Any, pos: Any, out: Any) -> bool:
    """Tell whether a result is plainly memory of its own, or x's: what is not plain is judged at leisure."""
    if (
        type(out) is not torch.Tensor
        or not _is_plain(out)
        or out.dtype is not x.dtype
        or out.shape != x.shape
    ):
        return False
    if out.requires_grad or not out.is_contiguous() or out.is_inference():
        return False
    return (out is x or _are_apart(x, out)) and (type(pos) is int or _are_apart(pos, out))


def _are_apart(read: Any, out: Any) -> bool:
    """Tell whether two tensors without gaps share no memory."""
    distance = out.data_ptr() - read.data_ptr()
    return bool(read.is_contiguous() and (distance >= read.nbytes or -distance >= out.nbytes))


def _quick_positions(pos: Any, plan: Plan) -> Any:
    """Return a plain tensor or an int as the kernel takes them; None where they are not for the short way."""
    number = None if plan.coordinates is None else plan.coordinates.number
    if type(pos) is torch.Tensor:
        fits = pos.dtype is torch.int64 and (number is None or (pos.ndim and pos.shape[-1] == number))
        return _positions(pos)[0] if fits else None
    return (_native.SPACED, pos, 0, ()) if number is None and -(2**63) <= pos < 2**63 else None


def rotate(call: Call, outs: Any = None) -> Any:
    """Rotate the arrays of a call."""
    xs, source, seq_axis = call.xs, call.source, int(call.seq_axis)
    if isinstance(source, Tables):
        return _turn(xs, outs, source.layout, (source.cos, source.sin), seq_axis)
    plan = source.plan
    whole, fraction = read_positions(source.values, LIBRARY, call.ops, any(call.float64))
    if plan.exact and fraction is None:
        return _turn(xs, outs, plan, (whole.to(torch.int64),), seq_axis)
    with no_autocast(xs[0]):
        made = {wide: tables_at(whole, fraction, plan, wide, call.ops) for wide in {*call.float64}}
    ys = []
    for i, (x, wide) in enumerate(zip(xs, call.float64, strict=True)):
        into = None if outs is None else (outs[i],)
        ys += _turn((x,), into, plan.layout, made[wide], seq_axis)
    return tuple(ys)


def _turn(xs: Any, outs: Any, how: Plan | Layout, given: Any, seq_axis: int, back: bool = False) -> Any:
    """Rotate by integer positions and a plan, or by tables and a layout, recording a gradient if need be."""
    if torch.is_grad_enabled() and any(x.requires_grad for x in xs):
        count = sum(isinstance(one, torch.Tensor) for one in given)
        return _recorded(how, back, seq_axis, count, *given, *xs)
    return _run(xs, outs, how, given, seq_axis, back)


def _run(xs: Any, outs: Any, how: Plan | Layout, given: Any, seq_axis: int, back: bool = False) -> Any:
    """Rotate, or (`back`) by a plan's transposed rotation."""
    ys = tuple(map(torch.empty_like, xs)) if outs is None else outs
    if isinstance(how, Plan):
        spec = _native.transposed_spec_of(how) if back else _native.spec_of(how)
    else:
        spec = _native.spec_of_tables(how)
    for double in {*map(computes_in_float64, xs)}:
        pairs = [(x, y) for x, y in zip(xs, ys, strict=True) if computes_in_float64(x) == double]
        # What is second is memory that must stay until the kernel has read it.
        where, _memory = _tables(given[0], given[1], double) if len(given) == 2 else _positions(given[0])
        arrays = tuple(_described(x, y) for x, y in pairs)
        done = _native.kernel.run(spec, arrays, where, seq_axis, torch.get_num_threads, outs is None)
        assert done, "shapes were checked before"
    for out in outs or ():
        torch.autograd.graph.increment_version(out)  # as operations in place do, for what was saved of it
    return ys


def _described(x: Any, y: Any) -> Any:
    """Return a tensor and its result as the kernel takes them."""
    number, size = _kind(x.dtype)  # type: ignore[misc]
    return number, x.shape, x.data_ptr(), x.stride(), y.data_ptr(), y.stride(), size


def _positions(pos: Any) -> Any:
    """Return positions as the kernel takes them, and what holds their memory."""
    if type(pos) is tuple:  # one position
        return pos, None
    return (_native.INT64, pos.data_ptr(), pos.stride(), pos.shape, 8), pos


def _tables(cos: Any, sin: Any, double: bool) -> Any:
    """Return tables of a precision as the kernel reads them, lanes together, and what holds their memory."""
    dtype = torch.float64 if double else torch.float32
    cos, sin = (t if t.stride(-1) == 1 else t.contiguous() for t in (cos.to(dtype), sin.to(dtype)))
    return _as_tables(cos, sin), (cos, sin)


def _as_tables(cos: Any, sin: Any) -> Any:
    return _native.TABLES, cos.data_ptr(), cos.stride(), cos.shape, cos.itemsize, sin.data_ptr(), sin.stride()


class _Turn(torch.autograd.Function):  # type: ignore[misc,unused-ignore]
    """The rotation with its gradient: the adjoint rotation, by the same positions or tables.

    Tensors are `count` of positions or tables, then the xs; without any, one position is given as the kernel
    takes it.
    """

    @staticmethod
    def forward(ctx: Any, how: Any, back: bool, seq_axis: int, count: int, *tensors: Any) -> Any:
        given, xs = tensors[: max(count, 1)], tensors[max(count, 1) :]
        # Positions and tables are kept, x is not. Saved, so that one written in place since then is seen.
        ctx.save_for_backward(*given[:count])
        ctx.how, ctx.back, ctx.seq_axis, ctx.spaced = how, back, seq_axis, None if count else given
        ctx.set_materialize_grads(False)
        ys = _run(xs, None, how, given, seq_axis, back)
        ctx.mark_non_differentiable(*(y for x, y in zip(xs, ys, strict=True) if not x.requires_grad))
        return ys

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        there = tuple(g for g in grads if g is not None)
        given = ctx.spaced or ctx.saved_tensors
        back = iter(_adjoint(there, ctx.how, ctx.back, given, ctx.seq_axis) if there else ())
        none = [None] * (4 + len(given))
        return (*none, *(None if g is None else next(back) for g in grads))


_recorded: Any = _Turn.apply


def _adjoint(grads: Any, how: Any, back: bool, given: Any, seq_axis: int) -> Any:
    """Rotate gradients back: by the kernel, or by the core where something watches the backward too."""
    by_positions = isinstance(how, Plan)
    layout = how.layout if by_positions else how
    layout = layout.transposed(layout.amplitude)
    tensors = tuple(t for t in given if isinstance(t, torch.Tensor))
    if _decline_reason(grads, tensors) is None:
        if by_positions:
            return _turn(grads, None, how, given, seq_axis, not back)
        return _turn(grads, None, layout, (given[0], -given[1]), seq_axis)
    with no_autocast(grads[0]):
        return _adjoint_by_core(grads, how, back, given, seq_axis, layout)


class _Joined:
    """PyTorch's namespace, but for a join for which an older vmap, that of batched gradients, has a rule."""

    concat = staticmethod(torch.cat)

    def __getattr__(self, name: str) -> Any:
        return getattr(LIBRARY.xp, name)


def _adjoint_by_core(grads: Any, how: Any, back: bool, given: Any, seq_axis: int, layout: Layout) -> Any:
    ops = LIBRARY.ops(grads[0])._replace(xp=_Joined())
    if not isinstance(how, Plan):
        return rotate_by_tables(grads, Tables(given[0], -given[1], layout), seq_axis, ops)
    pos = torch.full((), given[0][1], dtype=torch.int64) if type(given[0]) is tuple else given[0]
    tables = {wide: tables_at(pos, None, how, wide, ops) for wide in {*map(computes_in_float64, grads)}}
    sign, layout = (1, how.layout) if back else (-1, layout)
    ys: list[Any] = []
    for g in grads:
        cos, sin = tables[computes_in_float64(g)]
        ys += rotate_by_tables((g,), Tables(cos, sign * sin, layout), seq_axis, ops)
    return tuple(ys)
