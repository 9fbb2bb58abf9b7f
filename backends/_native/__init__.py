"""The C++ kernel for arrays in host memory, shared by the backends of NumPy and PyTorch.

The compiled module is optional. Without it `kernel` is None, `unavailable_reason()` gives the reason, and the
backends decline every call.
"""

import os
from collections.abc import Callable
from functools import partial
from importlib import import_module
from importlib.metadata import PackageNotFoundError, distribution
from math import isfinite
from operator import add
from pathlib import Path
from typing import Any

from rope_array._array_api.angles import cos_sin, mixed_turns
from rope_array._array_api.attention import AttentionCall
from rope_array._array_api.library import Library, computes_in_float64, dtype_name
from rope_array._array_api.position_input import parse
from rope_array._array_api.shift import KeyShift
from rope_array._array_api.source import Call, CallOptions, Positions, Source, Tables
from rope_array._array_api.tables import with_axes_of
from rope_array._errors import BackendError
from rope_array._spec.frequencies import turns_of_floats
from rope_array._spec.plan import Layout, Plan, TurnsPlan, bits_of_floats

_LEVEL = "ROPE_ARRAY_KERNEL_LEVEL"


def _load() -> tuple[Any, str]:
    if os.environ.get(_LEVEL) == "none":
        return None, f"the C++ kernel is switched off: {_LEVEL} is 'none'"
    try:
        _kernel = import_module(f"{__name__}._kernel")
    except ImportError as error:
        return None, _why_missing(error)
    wanted = os.environ.get(_LEVEL)
    if wanted and wanted not in _kernel.level_names():
        raise BackendError(
            f"the environment variable {_LEVEL} is {wanted!r}; this processor has "
            f"{', '.join(map(repr, _kernel.level_names()))}, and 'none' switches the kernel off."
        )
    if wanted:
        _kernel.use_level(wanted)
    return _kernel, ""


def _why_missing(error: ImportError) -> str:
    """Return why the compiled module cannot be imported, and how to get it."""
    if error.name != f"{__name__}._kernel":
        return f"the C++ kernel cannot be loaded ({error})"
    module = Path(__file__).resolve()
    try:
        package = Path(str(distribution("rope-array").locate_file("rope_array"))).resolve()
    except PackageNotFoundError:
        return f"the C++ kernel is not built: run python -m pip install -e . in {module.parents[2]}"
    installed = package / "_backends/_native/__init__.py"
    if installed.is_file() and installed != module:
        return (
            f"the C++ kernel is not built in {module.parents[2]}, whose sources shadow the installed "
            "rope_array: run python -P, or from another folder"
        )
    return "the C++ kernel is not built: no C++17 compiler worked when rope_array was installed"


kernel, _reason = _load()
MAX_AXES = 64 if kernel is None else kernel.MAX_AXES  # of an array


def unavailable_reason() -> str:
    """Return why the kernel cannot be used; an empty string if it can."""
    return _reason


def description(library_threads: int = 0) -> str:
    """Return the instruction set level and the largest number of threads, or why there is no kernel."""
    if kernel is None:
        return _reason
    return f"{kernel.level_name()} instructions, up to {kernel.threads_of(library_threads)} threads"


def outdated() -> str:
    """Return that the kernel is of other sources than its checkout has; an empty string if it is not."""
    from .checkout import outdated  # imports urllib, which no call needs

    return outdated(kernel.SOURCES) if kernel else ""


def prepare(plan: Plan) -> None:
    """Create the kernel's handle for an exact-angle plan, and cache it on `plan.derived`."""
    if plan.derived.kernel is None:
        plan.check()
        plan.derived.kernel = kernel.make_plan(plan_words(plan.layout, plan))


def plan_of_array(source: Positions, use_float64: bool) -> TurnsPlan | None:
    """Return the plan of frequencies in an array, plus its plan's; None for NaN and infinities."""
    plan, omegas = source.plan, source.inv_freq.reshape(-1).tolist()
    heads = len(omegas) // max(1, plan.layout.num_pairs)
    if plan.coordinates is not None and plan.coordinates.driven_mask is not None:
        mask = plan.coordinates.driven_mask.values * heads
        omegas = [omega if m else 0.0 for omega, m in zip(omegas, mask, strict=True)]
    if not all(map(isfinite, omegas)):
        return None
    turns_plan, (_, own64, own96) = TurnsPlan(plan, heads), plan.words()
    turns64, turns96 = turns_of_floats(omegas, 64, 96)
    turns_plan.set_turns([*map(add, turns64, own64 * heads)], [*map(add, turns96, own96 * heads)])
    return turns_plan


def plan_words(layout: Layout, plan: Plan | None = None, transposed: bool = False) -> list[int]:
    """Return a layout, and the frequencies of a plan, as set_plan() of operands.cpp reads them.

    If `transposed`, negate the angles; `layout` must already be transposed. As 64-bit words, for n pairs:

    0 .. 8       the sizes, the pairings, `transposed`, the number of coordinates, the bits of the amplitude
    then n       ω/2π in units of 2^-64
    then n, n    the upper 64 and the lower 32 bits of ω/2π in units of 2^-96
    then n       the bits of ω·4/π as float64; of NaN for a `TurnsPlan`
    then n       the coordinate that drives each pair, if a position has several
    """
    amplitude = 1.0 if layout.amplitude is None else layout.amplitude
    (bits,) = bits_of_floats([amplitude])
    halves = [pairing == "half" for pairing in (layout.pairing, layout.out_pairing)]
    coordinates = plan.coordinates.number if plan and plan.coordinates else 0
    sizes = (layout.head_dim, layout.start, layout.num_pairs, layout.blocks)
    words = [*sizes, *map(int, halves), int(transposed), coordinates, bits]
    if plan is None:
        return words
    turns = (constants.values for constants in (plan.turns_q64, *plan.turns_q96))
    drivers = [plan.coordinates.of_pairs.values] if plan.coordinates else []
    rows = (*turns, bits_of_floats(plan.eighth_turns.values), *drivers)
    return [*words, *(word for row in rows for word in row)]


def rotate_checked(call: Call, outs: Any, rotate: Any, source_for: Callable[[bool], Source]) -> Any:
    """Rotate the arrays of a checked call, of any dtypes and by any source, by the C++ or the Triton kernel.

    ``rotate(xs, source, options, outs)`` rotates arrays of one compute dtype; ``source_for(use_float64)``
    returns the source as the kernel reads it.
    """
    ys: list[Any] = [None] * len(call.xs)
    for use_float64 in {*call.float64}:
        chosen = [i for i, is_float64 in enumerate(call.float64) if is_float64 == use_float64]
        into = None if outs is None else tuple(outs[i] for i in chosen)
        xs = tuple([call.xs[i] for i in chosen])  # a list: a small call notices a generator
        rotated = rotate(xs, source_for(use_float64), call.options, into)
        if rotated is NotImplemented:  # the checks have passed
            raise BackendError(
                "the kernel declines the call: the rope's plan was changed after its first use, or the "
                "memory of an array was freed meanwhile. Make the rope and the arrays anew."
            )
        for i, y in zip(chosen, rotated, strict=True):
            ys[i] = y
    return tuple(ys)


def attention_inputs(inputs: AttentionCall, source_for: Callable[[bool], Source]) -> Any:
    """Make the results of a checked call in one pass; NotImplemented for calls that are not served."""
    call = inputs.call
    source = source_for(call.float64[0])
    return kernel.attention_inputs(
        tuple(call.xs), source, call.options, inputs.norm, inputs.write, inputs.outs, checked=True
    )


def shift_keys(shift: KeyShift, lib: Library, contiguous: Any) -> Any:
    """Rotate rows of checked caches in place; NotImplemented for caches that are not served.

    `contiguous`: see `sources`.
    """
    if kernel is None:
        return NotImplemented
    caches, slots, source, seq_axis, _ = shift
    like, use_float64 = caches[0], computes_in_float64(caches[0])
    pos = parse(source.values, like, lib) if isinstance(source, Positions) else None
    call = Call(caches, source, CallOptions(), lib, lib.ops(like), (use_float64,), pos)
    source = sources(call, contiguous)(use_float64)
    return kernel.shift_keys(caches, slots, source, seq_axis, checked=True)


def sources(
    call: Call, contiguous: Any, prepare: Callable[[Plan], None] = prepare
) -> Callable[[bool], Source]:
    """Return `source_for(use_float64)`: the source of a call as a kernel reads it.

    ``contiguous(array, dtype)`` returns positions or tables as the kernel reads them; ``prepare(plan)``
    caches the kernel's form of a plan.
    """
    source, ops = call.source, call.ops

    def tables(cos: Any, sin: Any, use_float64: bool) -> Tables:
        dtype = ops.xp.float64 if use_float64 else ops.xp.float32
        return Tables(contiguous(cos, dtype), contiguous(sin, dtype), source.layout)

    if isinstance(source, Tables):
        return partial(tables, source.cos, source.sin)
    use_float64, has_floats = any(call.float64), call.pos.has_floats()
    if source.plan.takes_fractions if has_floats else source.plan.exact:
        values, fraction = call.pos.read(call.lib, ops, use_float64, split=False)
        if fraction is None:
            prepare(source.plan)
            dtype = getattr(ops.xp, dtype_name(values) if has_floats else "int64")  # in native byte order
            positions = Positions(contiguous(values, dtype), source.plan)
            return lambda use_float64: positions
    integers, fraction = call.pos.read(call.lib, ops, use_float64)
    return lambda use_float64: tables(
        *cos_sin(integers, fraction, source.plan, use_float64, ops), use_float64
    )


# ---- tables ----


def make_tables(
    source: Positions, like: Any, lib: Library, run: Any, plan_of_array: Any, on_host: bool
) -> Any:
    """Return cos and sin at checked positions by the C++ or the Triton kernel, with any strides.

    Return NotImplemented for positions and angles that kernels do not serve.

    ``run(values, plan, use_float64)`` makes tables, of shape (positions..., pairs), at floats or integers in
    int64. ``plan_of_array(source, use_float64)`` returns the `TurnsPlan` of frequencies in an array, or None.
    `on_host`: the values of arrays can be read.
    """
    values, plan, inv_freq = source
    use_float64, ops, parsed = computes_in_float64(like), lib.ops(like), parse(values, like, lib)
    has_floats = parsed.has_floats()
    if (
        not plan.exact
        or plan.takes_angles
        or (has_floats and not (inv_freq is None and plan.takes_fractions))
    ):
        return NotImplemented
    values, fraction = parsed.read(lib, ops, use_float64, split=False)
    if fraction is not None:
        return NotImplemented
    values = with_axes_of(like, values if has_floats else ops.cast(values, ops.xp.int64), source)
    if inv_freq is None:
        return run(values, plan, use_float64)
    if inv_freq.ndim < 3 or inv_freq.shape[1] == 1:
        turns_plan = plan_of_array(source, use_float64)
    elif on_host and bool(ops.xp.all(ops.xp.isfinite(inv_freq))):  # mixed
        turns_plan = TurnsPlan.for_positions_in_turns(plan)
        return run(mixed_turns(values, plan, inv_freq, use_float64, ops), turns_plan, use_float64)
    else:
        turns_plan = None
    tables = NotImplemented if turns_plan is None else run(values, turns_plan, use_float64)
    if tables is NotImplemented or inv_freq.ndim == 1:
        return tables
    heads = inv_freq.shape[0]  # whose pairs are in one row
    by_head = (ops.reshape(t, (*t.shape[:-1], heads, plan.layout.num_pairs)) for t in tables)
    return tuple(ops.xp.moveaxis(table, -2, -3) for table in by_head)


def fill_tables(empty: Callable[[tuple[int, ...]], Any], values: Any, plan: Plan, gated: bool = False) -> Any:
    """Return cos and sin at an array of positions by the C++ kernel, or NotImplemented.

    ``empty(shape)`` makes two arrays of the tables' dtype. `gated`: see `rotate_arrays` in bindings.cpp.
    """
    prepare(plan)
    shape = values.shape if plan.coordinates is None else values.shape[:-1]
    cos, sin = empty((*shape, plan.layout.num_pairs))
    filled = kernel.make_tables(cos, sin, (values, plan, None), gated)
    return filled if filled is NotImplemented else (cos, sin)
