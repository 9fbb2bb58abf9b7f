"""Calls that make attention's inputs: their arrays, and how results, caches and gradients are judged.

A call is text. The names in `_factors.FACTORS` describe q, k and positions, as in a call of the rotation; the
names in `InputsOptions` describe the norm and the caches.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from ._attention_definition import gradients_of_norm, normed, normed_in_order, write_rows
from ._call import CallInputs, make, with_layout
from ._contract import Floats, allowed, compute_dtype, eps, ulp
from ._factors import FACTORS, CallFactors
from ._failure import Failure, named
from ._judge import Input, Judge
from ._libraries import rounded
from ._row import read_calls
from ._where import describe

QUANTISED = {"int8": (-128.0, 127.0), "float8_e4m3fn": (-448.0, 448.0)}
# A part of a larger array: one of two arrays in each block; not the first and last blocks and features.
_IN_POOL = np.s_[1:-1, 0, ..., 1:-2]


class InputsOptions(NamedTuple):
    """The norm and the caches of a call."""

    weights: str = ""  # "ones", "shared", "heads", or "q" for a weight of q alone; "" for no norm
    weight_dtype: str = ""  # by default the dtype of q
    eps: float = 1e-6
    offset: float = 0.0
    rounding: str = "none"
    k: str = "given"  # or "none"
    out: str = ""  # "in_place", or "apart" for other arrays
    cache: str = ""  # "slots", or "pages" of 4 slots
    cache_axis: int = -3
    stored: str = ""  # the dtype of caches, by default the dtype of k
    pool: str = ""  # "yes" if caches are parts of larger arrays
    scale: float = 1.0  # of k; half of it is the scale of v
    v: str = "given"  # or "none", or "wide" for more features than k
    slots: str = "S"  # the axes of slots, S or BS
    slot_dtype: str = "int64"
    skips: str = ""  # "yes" if some slots are -1, and some are equal


class InputsCall(NamedTuple):
    """The arguments of a call: `inputs.xs` has q, and k if it is given."""

    inputs: CallInputs
    options: InputsOptions
    rows: tuple[int, ...]  # the sizes (B, H, S) of k, or (H, S)
    weights: list[Input | None]
    v: Input | None
    slots: Any

    @property
    def seq_axis(self) -> int:
        """The axis of q and k along which tokens run, from the end."""
        return int(self.inputs.spec.get("seq_axis", -2))

    def weight_of(self, i: int) -> Floats | None:
        """Return the numbers of a weight with the axes of its array; None for ones."""
        weight = self.weights[i]
        if weight is None:
            return None
        return weight.values[:, None] if weight.values.ndim == 2 and self.seq_axis == -2 else weight.values


class Cache(NamedTuple):
    """A cache of a call."""

    array: Any
    memory: Any  # the array, or the larger array of which it is a part
    before: Floats  # the numbers of the memory


def read_inputs_calls(j: Judge, text: str) -> Iterator[tuple[CallFactors, InputsOptions]]:
    """Yield the call of a text, unless the target or its library does not take it."""
    pairs, defaults = dict(word.split("=") for word in text.split()), InputsOptions()._asdict()
    options = InputsOptions(**{n: type(defaults[n])(pairs[n]) for n in pairs if n not in FACTORS})
    if {options.stored, options.weight_dtype} <= {"", *j.lib.dtypes, *j.lib.quantised}:
        factors = " ".join(f"{name}={pairs[name]}" for name in pairs if name in FACTORS)
        yield from ((call, options) for call in read_calls(j, factors))


def make_inputs_call(j: Judge, factors: CallFactors, options: InputsOptions, seed: int) -> InputsCall:
    """Make the arguments of a call; q has twice the heads of k."""
    inputs, rng = make(j, factors, seed), np.random.default_rng(seed + 7)
    k, seq_axis, rows = inputs.xs[0], inputs.spec.get("seq_axis", -2), factors.rows
    sizes = [[*k.values.shape], [*k.values.shape]]
    sizes[0][-5 - seq_axis] *= 2  # the axis of heads
    sizes[1][-1] += 3 * (options.v == "wide")
    arrays = [j.array(rng.standard_normal(shape), factors.dtype) for shape in sizes]
    q, v = (with_layout(j, array, factors.layout)[0] for array in arrays)
    xs = [q, k][: 1 if options.k == "none" else 2]
    weights = [_weight(j, x, options, seq_axis, i) for i, x in enumerate(xs)]
    shape = (rows[0], rows[-1]) if options.slots == "BS" else rows[-1:]
    slots = rng.permutation(2 * math.prod(shape))[: math.prod(shape)]
    if options.skips:
        slots[1::4], slots[3::4] = -1, slots[0]
    given_v = None if options.v == "none" else v
    return InputsCall(inputs._replace(xs=xs), options, rows, weights, given_v, slots.reshape(shape))


def _weight(j: Judge, x: Input, options: InputsOptions, seq_axis: int, i: int) -> Input | None:
    if options.weights in ("", "ones") or (options.weights == "q" and i == 1):
        return None
    heads = (x.values.shape[-5 - seq_axis],) * (options.weights == "heads")
    numbers = np.random.default_rng(i).uniform(-1, 2, (*heads, x.values.shape[-1]))
    return j.array(numbers, options.weight_dtype or x.dtype)


def _cache(j: Judge, call: InputsCall, x: Input) -> Cache:
    """Make the cache of k or v, of whole numbers: slots along `cache_axis`, and the axes without slots."""
    options, count, is_paged = call.options, 2 * call.slots.size, call.options.cache == "pages"
    sizes = [*call.rows[call.slots.ndim - 1 : -1], x.values.shape[-1]]
    sizes.insert(len(sizes) + 1 + options.cache_axis, 4 if is_paged else count)
    sizes[:0] = [-(-count // 4)] * is_paged
    shape = (sizes[0] + 2, 2, *sizes[1:-1], sizes[-1] + 3) if options.pool else sizes
    before = np.random.default_rng(5).integers(-8, 8, shape).astype(np.float64)
    memory = j.lib.asarray(before.astype(np.float32), options.stored or x.dtype)
    return Cache(memory[_IN_POOL] if options.pool else memory, memory, before)


# ---- calls ----


def arguments_of_target(
    j: Judge, call: InputsCall, caches: list[Cache], outs: list[Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the options of a call that are arrays, and the others: the ones that differ from the default."""
    options, values = call.options, dict(call.inputs.spec)
    defaults = InputsOptions._field_defaults
    for name in ("eps", "offset", "rounding") if options.weights else ():
        values |= {} if getattr(options, name) == defaults[name] else {name: getattr(options, name)}
    weights = [weight and weight.array for weight in call.weights if options.weights]
    groups = {"norm": weights, "out": outs, "cache": [cache.array for cache in caches]}
    arrays = {f"{name}_{i}": array for name, group in groups.items() for i, array in enumerate(group)}
    values["pairs"] = tuple(name for name, group in groups.items() if group)
    if caches:
        dtype = options.slot_dtype if options.slot_dtype in j.lib.integers else "int32"
        arrays |= {"slots": j.lib.asarray(call.slots.astype(dtype)), "v": call.v and call.v.array}
        values |= {"cache_seq_axis": options.cache_axis}
        values |= {"scales": (options.scale, options.scale / 2)} if options.scale != 1.0 else {}
    return {name: array for name, array in arrays.items() if array is not None}, values


def make_inputs(j: Judge, call: InputsCall, caches: list[Cache], outs: list[Any]) -> Any:
    """Call the target; assert that it writes no array but the caches and outs that it may write."""
    arrays, values = arguments_of_target(j, call, caches, outs)
    xs, written = call.inputs.xs, [*outs, *(c.array for c in caches if j.lib.writes_caches)]
    read = {**{name: x.array for name, x in zip("qk", xs, strict=False)}, **arrays}
    read = {n: array for n, array in read.items() if not any(array is other for other in written)}
    bits = {name: j.lib.snapshot(array) for name, array in read.items()}
    result = j.make_inputs(tuple(xs), call.inputs.pos, **values, **arrays)
    changed = [name for name, array in read.items() if j.lib.snapshot(array) != bits[name]]
    assert not changed, f"{', '.join(changed)} was written"
    assert len(xs) == 2 or result[1] is None, "k is None, and its result is not"
    return result


def check_inputs(j: Judge, call: InputsCall) -> None:
    """Make a call, and judge its results and caches by the definition."""
    xs, options = call.inputs.xs, call.options
    caches = [_cache(j, call, x) for x in (xs[-1], call.v) if options.cache and x]
    outs = [x.array if options.out == "in_place" else j.lib.copied(x.array) for x in xs if options.out]
    result = make_inputs(j, call, caches, outs)
    for i, x in enumerate(xs):
        with named("qk"[i]):
            j.check_kind(result[i], x)
            assert not outs or j.lib.shares_memory(result[i], outs[i]), "the result is not in out"
            _check_within(j.numbers(result[i]), *exact_heads(j, call, i, x.dtype))
    for name, cache, written in zip("kv", caches, result[2] if caches else (), strict=False):
        with named(f"the cache of {name}"):
            y = j.numbers(result[1]) if name == "k" and j.claims("same_bits") else None
            _check_cache(j, call, cache, written, *_stored_rows(j, call, name, y))


def exact_heads(j: Judge, call: InputsCall, i: int, dtype: str) -> tuple[Floats, Floats]:
    """Return q or k as the definition has it, and the allowed error of a result of a dtype."""
    x, options, spec, accuracy = call.inputs.xs[i], call.options, call.inputs.spec, j.target.accuracy
    heads, error, pos = x.values, np.zeros(x.values.shape), call.inputs.numbers
    if options.weights:
        heads = normed(heads, call.weight_of(i), options.eps, options.offset)
        # Half an eps for each term of the sum, in any order, which the root halves; and for other steps.
        error = (heads.shape[-1] / 4 + 4) * eps(compute_dtype(x.dtype, accuracy)) * np.abs(heads)
    exact, fields = j.exact(heads, pos, **spec), j.fields(spec)
    (a, b), (c, d) = j.pairs(spec, heads.shape[-1])
    of_pair = np.hypot(error[..., a], error[..., b]) * (fields.get("attention_factor") or 1.0)
    error[..., c] = error[..., d] = of_pair
    error += allowed(heads, dtype, fields, exact=exact, pos=pos, flushes=True, accuracy=accuracy)
    is_rounded = bool(options.weights) or dtype != x.dtype  # also where it is not rotated
    return exact, error + 0.51 * ulp(np.abs(exact) + error, dtype) * is_rounded


def _stored_rows(j: Judge, call: InputsCall, name: str, y: Floats | None) -> tuple[Floats, Floats]:
    """Return the rows that a cache of k or v has to hold, and their allowed error.

    `y` is the result of k, of which a cache of its dtype has the bits.
    """
    x, scale = call.inputs.xs[-1], call.options.scale
    dtype = call.options.stored or x.dtype
    if name == "k" and y is not None and dtype == x.dtype:
        return y, np.zeros(y.shape)
    if name == "k":
        rows, bound = exact_heads(j, call, 1, compute_dtype(x.dtype) if dtype in QUANTISED else dtype)
    else:
        assert call.v is not None
        rows, scale = call.v.values, scale / 2
        bound = np.zeros(rows.shape) if dtype in (x.dtype, *QUANTISED) else 0.51 * ulp(rows, dtype)
    if dtype not in QUANTISED:
        return rows, bound
    step = 1.0 if dtype == "int8" else ulp(rows / scale, dtype)
    return np.clip(rows / scale, *QUANTISED[dtype]), bound / scale + 0.51 * step


def _check_cache(j: Judge, call: InputsCall, cache: Cache, written: Any, rows: Floats, bound: Floats) -> None:
    """Assert that the memory of a cache holds rows in their slots, and else the numbers of before."""
    in_place, exact, bounds = j.lib.writes_caches, cache.before.copy(), np.zeros(cache.before.shape)
    for memory, values in ((exact, rows), (bounds, bound)):
        part = memory[_IN_POOL] if call.options.pool else memory
        write_rows(part, values, call.slots, call.seq_axis, call.options.cache_axis)
    assert not in_place or j.lib.shares_memory(written, cache.array), "another cache is returned"
    _check_within(j.numbers(cache.memory if in_place else written), exact, bounds)


def _check_within(y: Floats, exact: Floats, bound: Floats) -> None:
    """Raise if an element is further from the exact one than its bound."""
    wrong = ~(np.abs(y - exact) <= bound)
    if wrong.any():
        worst = np.unravel_index(np.argmax(np.where(wrong, np.abs(y - exact), -1.0)), y.shape)
        got = f"worst: got {float(y[worst])!r}, exact {float(exact[worst])!r}, {bound[worst]:.3g} is allowed"
        raise Failure(f"{wrong.sum():,} of {wrong.size:,} elements; {got}", place=describe(wrong))


# ---- bits and gradients ----


def check_in_order(j: Judge, call: InputsCall) -> None:
    """Judge results by the bits of the norm: equal at position 0, elsewhere a rotation of these heads."""
    result, options = make_inputs(j, call, [], []), call.options
    for i, x in enumerate(call.inputs.xs):
        rounding = partial(rounded, dtype=x.dtype) if options.rounding != "none" else np.asarray
        before = rounding if options.rounding == "steps" else np.asarray
        norm = call.weight_of(i), options.eps, options.offset, compute_dtype(x.dtype), before
        heads, y = rounding(normed_in_order(x.values, *norm)), j.numbers(result[i])
        with named("qk"[i]):
            if np.any(call.inputs.numbers):
                j.check_values(y, x._replace(values=heads), call.inputs.numbers, **call.inputs.spec)
            else:
                j.check_equal(y, rounded(heads, x.dtype), "differ from the norm in the order of its sum")


def check_parts(j: Judge, call: InputsCall) -> None:
    """Assert that calls of a part of the batch, and of q alone, have the bits of the whole call."""
    whole = make_inputs(j, call, [], [])
    for text, index, count in (("in a part of the batch", np.s_[1:], 2), ("if q is alone", np.s_[:], 1)):
        xs = [j.array(x.values[index], x.dtype) for x in call.inputs.xs[:count]]
        part = call._replace(inputs=call.inputs._replace(xs=xs), weights=call.weights[:count])
        for y, expected in zip(make_inputs(j, part, [], [])[:count], whole, strict=False):
            j.check_equal(j.numbers(y), j.numbers(expected)[index], f"have other bits {text}")


def check_gradients(j: Judge, call: InputsCall) -> None:
    """Judge the gradients of q, of k and of their weights."""
    xs, spec, pos = call.inputs.xs, call.inputs.spec, call.inputs.pos
    arrays, values = arguments_of_target(j, call, [], [])
    gs = [j.array(x.values[..., ::-1], x.dtype) for x in xs]

    def make(leaves: tuple[Any, ...]) -> tuple[Any, ...]:
        weights = dict(zip(arrays, leaves[2:], strict=True))
        return tuple(j.target.make_inputs(leaves[:2], pos, **values, **weights)[:2])

    _, pull = j.lib.pullback(make, (*(x.array for x in xs), *arrays.values()))
    pulled = pull(tuple(g.array for g in gs))
    j.calls.served += 1
    for i, (x, g) in enumerate(zip(xs, gs, strict=True)):
        of_heads, weight = j.exact(g.values, call.inputs.numbers, **spec, inverse=True), call.weights[i]
        norm = call.weight_of(i), call.options.eps, call.options.offset
        gradients = gradients_of_norm(x.values, of_heads, *norm)
        for y, like, (exact, size) in zip(pulled[i::2], (x, weight), gradients, strict=True):
            with named(f"the gradient of {'qk'[i] if like is x else 'a weight'}"):
                assert like is not None
                j.check_kind(y, like)
                # The contract's 30 for rotation, root and products; an eps for each term of a sum.
                steps = 30 + x.values.shape[-1]
                bound = steps * eps(compute_dtype(x.dtype)) * size + ulp(np.abs(exact), like.dtype)
                _check_within(j.numbers(y), *(a.reshape(like.values.shape) for a in (exact, bound)))
