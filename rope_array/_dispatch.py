"""Check a call once, choose its backend, and run it: for `apply`, `Rotation` and dask's chunks."""

from collections.abc import Callable
from typing import Any, TypeVar

from . import _registry
from ._array_api.attention import check_attention_call, make_by_parts
from ._array_api.cache import checked_write
from ._array_api.checks import check_arrays, check_call, check_table_call
from ._array_api.library import Library
from ._array_api.norm import checked_norm
from ._array_api.out import rotate_into, wrong_number
from ._array_api.position_input import check_largest, parse, parse_host
from ._array_api.shift import Layer, check_shifts, shift_by_parts
from ._array_api.source import OptionFields, Positions, SourceFields, Tables
from ._errors import ArrayTypeError, describe

ArrayOrTuple = TypeVar("ArrayOrTuple")  # for the front functions: the result has the type of x
Function = TypeVar("Function", bound=Callable[..., Any])


def without_autograph(function: Function) -> Function:
    """Mark a function that TensorFlow's AutoGraph calls as it is, without translating its code.

    `tf.autograph.experimental.do_not_convert` sets this attribute too.
    """
    function.autograph_info__ = {}  # type: ignore[attr-defined]
    return function


def rotate(
    x: Any, source: SourceFields, options: OptionFields, out: Any = None, backend: str | None = None
) -> Any:
    """Rotate x, an array or a tuple of arrays, by the fields of a source; see `rope_array.apply`."""
    backends = _registry.backends_of(type(x[0] if type(x) is tuple and x else x))
    if backend is None:
        y = backends.try_fast(x, source, options, out)
        if y is not NotImplemented:
            return y
    xs = x if type(x) is tuple else (x,)
    if not xs:
        raise _empty()
    call = check_call(xs, source, options, backends.library(xs[0]))
    chosen = _registry.choose(backends, xs, call.source, backend)
    if out is not None:
        return rotate_into(chosen, call, x, out)
    ys = chosen.rotate(call)
    if len(ys) != len(xs):
        raise wrong_number(chosen, ys, xs)
    return ys if type(x) is tuple else ys[0]


def attention_inputs(
    xs: tuple[Any, ...],
    source: SourceFields,
    options: OptionFields,
    norm: tuple[Any, ...] | None,
    write: tuple[Any, ...] | None,
    out: Any = None,
    backend: str | None = None,
) -> Any:
    """Norm and rotate xs, q and k or q alone, and write caches; see `rope_array.attention_inputs`.

    `norm` and `write` are the fields of a `Norm`, with the weights of q and of k, and of a `CacheWrite`,
    before their checks.

    Returns
    -------
    (tuple of array, caches)
        The results, and the caches, None if there are none.
    """
    backends = _registry.backends_of(type(xs[0]))
    if backend is None:
        results = backends.try_fast_inputs(xs, source, options, norm, write, out)
        if results is not NotImplemented:
            return results
    checked = None if norm is None else checked_norm(norm, len(xs))
    caches = None if write is None else checked_write(write, xs[1] if len(xs) > 1 else None)
    call = check_call(xs, source, options, backends.library(xs[0]))
    chosen = _registry.choose(backends, xs, call.source, backend)
    inputs = check_attention_call(call, checked, caches, out)
    one_pass = getattr(chosen, "attention_inputs", None)
    results = NotImplemented if one_pass is None else one_pass(inputs)
    return make_by_parts(chosen.rotate, inputs) if results is NotImplemented else results


def shift_rows(layers: list[Layer], delta: Any, seq_axis: Any, slots: Any, pages: Any) -> tuple[Any, ...]:
    """Rotate rows of caches in place; the arguments are explained at `check_shifts`."""
    written, plans = [keys for keys, _ in layers], {plan for _, plan in layers}
    backends = backends_for(tuple(written))
    try_fast = getattr(backends.in_order[0], "try_fast_shift", None)
    if try_fast and len(plans) == 1 and None not in plans:
        rows = (slots, seq_axis) if pages is None else (pages, _axis_of_pages(written, seq_axis))
        if try_fast(tuple(written), rows[0], (delta, *plans, None), rows[1]) is not NotImplemented:
            return tuple(written)
    lib = backends.library(written[0])
    for members, shift in check_shifts(lib, layers, delta, seq_axis, slots, pages):
        chosen = _registry.choose(backends, shift.caches, shift.source, None)
        in_place = getattr(chosen, "shift_keys", None)
        caches = NotImplemented if in_place is None else in_place(shift)
        if caches is NotImplemented:
            caches = shift_by_parts(shift, make_tables, rotate, lib)
        for i, cache in zip(members, caches, strict=True):
            written[i] = cache
    return tuple(written)


def _axis_of_pages(keys: list[Any], seq_axis: Any) -> int:
    """Return the axis of pages from the end: a page moves like a slot of more heads. 0 for other shapes."""
    ndim = {getattr(k, "ndim", 0) for k in keys}
    shapes = [n for n, axis in ((4, -3), (4, -2), (3, -2)) if axis == seq_axis and type(seq_axis) is int]
    return -max(ndim) if len(ndim) == 1 and max(ndim) in shapes else 0


def check_max_position(x: Any, pos: Any, limit: int) -> None:
    """Raise PositionError for a position on the host beyond a rope's `max_position`.

    Called before the dispatch, as a fast entry serves calls without the other checks.
    """
    parsed = parse_host(pos)
    if parsed is None and hasattr(pos, "__array_interface__"):  # of NumPy's; a device is never read
        xs = x if type(x) is tuple else (x,)
        backends = backends_for(xs)
        parsed = parse(pos, xs[0], backends.library(xs[0]))
    if parsed is not None:
        check_largest(parsed, limit)


def refuse_extra_arguments(extra: tuple[Any, ...], remedy: str) -> None:
    """Raise for extra positional arguments: several arrays, given one by one."""
    raise ArrayTypeError(
        f"{len(extra)} of the arguments are too many, the first {describe(extra[0])}. Give several arrays as "
        f"one tuple, and options by name: {remedy}."
    )


def make_tables(source: Positions, like: Any, backend: str | None = None) -> Tables:
    """Make cos and sin in the compute dtype of `like`; see `RoPE.rotation`."""
    backends = backends_for((like,))
    cos_sin = NotImplemented if backend is not None else backends.try_fast_tables(source, like)
    if cos_sin is NotImplemented:
        check_table_call(source, like, library_of_like(like))
        chosen = _registry.choose(backends, (like,), source, backend)
        cos_sin = backends.table_makers[chosen.name](source, like)
    cos, sin = cos_sin
    return Tables(cos, sin, source.layout)


def library_of_like(like: Any, name: str = "like") -> Library:
    """Return the library of an array that tables are made for, its kind and dtype checked."""
    if not hasattr(like, "dtype") or isinstance(like, type):
        use = ", as it will be rotated" if name == "like" else " of a library, not a sequence or a number"
        raise ArrayTypeError(f"{name} is {describe(like)}; give one array{use}.")
    lib = _registry.library_of(like)
    check_arrays((like,), lib, name)
    return lib


def backends_for(xs: tuple[Any, ...]) -> _registry.Backends:
    """Return the backends for the arrays of a call, by the type of the first array."""
    if not xs:
        raise _empty()
    backends: _registry.Backends = _registry.backends_of(type(xs[0]))
    return backends


def _empty() -> ArrayTypeError:
    return ArrayTypeError("x is an empty tuple; give an array, or a tuple of arrays.")
