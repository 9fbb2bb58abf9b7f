"""Contexts: calls under a setting of the library, in shards, and after other calls.

A context makes a call and judges it; it returns False if the target refuses the call.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from ._call import make
from ._capability_parts import MODEL_WIDTHS
from ._factors import CallFactors
from ._failure import named
from ._gradients import check_adjoint, check_gradient, takes_gradient
from ._judge import Input, Judge
from ._libraries import JaxLibrary
from ._library_target import OwnApply
from ._modes import fake, is_taken, settings_of
from ._named_values import differs_by_head, is_in_array
from ._observe import check_call, judge_results, watch_call
from ._transformed import Context, may_refuse

Setting = Callable[[], AbstractContextManager[Any]]
# Calls and judges the results under a setting; returns False if the target refuses the call.
Watch = Callable[[Judge, CallFactors, int, Setting], bool]

# Head_dims that no other check uses, so that no table cached by head_dim fits. They are narrow, as the exact
# angles of a new base take long.
_NEW_WIDTHS = [width for width in range(18, 80, 2) if width not in MODEL_WIDTHS]


def fresh_call(j: Judge, call: CallFactors) -> CallFactors:
    """Return a call with a base, a head_dim and a number of rows that no earlier call had."""
    j.fresh += 1
    changed: dict[str, Any] = {}
    if j.claims("base") and not (call.base or call.inv_freq or j.fields({}).get("inv_freq")):
        changed["base"] = 20000.0 + j.fresh
    if j.claims("widths") and call.width == j.plain.width and not call.axes:  # axes may need even pairs
        changed["width"] = j.target.width_of(_NEW_WIDTHS[j.fresh % len(_NEW_WIDTHS)])
    if call.rows == j.plain.rows:
        changed["rows"] = (*call.rows[:-1], 3 + j.fresh % 7)
    return call.replace(**changed)


# ---- under a setting ----


def under(mode: str, watch: Watch) -> Context:
    """Return the context of calls under each setting of a mode.

    A call with at most one field (none, if calls are slow) gets a new base and sizes, so that its tables are
    computed under the setting. Then it is repeated without the setting.
    """

    def checked(j: Judge, call: CallFactors, seed: int) -> bool:
        served, is_new = False, _num_fields(j, call) <= (0 if j.budget.is_slow else 1)
        for name, setting in settings_of(j.lib, mode).items():
            if not is_taken(call.dtype, mode, name):
                continue
            new_call = fresh_call(j, call) if is_new else call
            with named(f"under {name}"):
                served |= watch(j, new_call, seed, setting)
            if is_new:
                with named(f"after a call under {name}"):
                    check_call(j, new_call, seed)
        return served

    return checked


def _num_fields(j: Judge, call: CallFactors) -> int:
    """Return the number of factors that differ from the plain call's, without the reach and the dtype."""
    return len(set(call.differing(j.plain)) - {"reach", "dtype"})


def _watch(j: Judge, call: CallFactors, seed: int, setting: Setting, records: bool = False) -> bool:
    """Watch and judge a call, with `records` of an x whose gradient is asked for.

    Raise a fault that an observer reports first under this setting.
    """
    inputs = make(j, call, seed)
    for x in inputs.xs if records else ():
        x.array.requires_grad_()
    settings_before, observed_before = j.settings, {*j.observed}
    try:
        with setting():
            j.settings = j.lib.defaults()
            if j.budget.is_slow and _num_fields(j, call):
                served = may_refuse(check_alone)(j, call, seed)
            else:
                served = watch_call(j, call, seed, inputs) is not None
    finally:
        j.settings = settings_before
    for name in j.observed.keys() - observed_before:
        raise j.observed.pop(name)
    return served


def _watch_twice(j: Judge, call: CallFactors, seed: int, setting: Setting) -> bool:
    """Watch a call of x, and of an x whose gradient is asked for; a large one once, as it takes long."""
    if not _watch(j, call, seed, setting):
        return False
    return math.prod(call.rows) > 1000 or _watch(j, call, seed, setting, records=True)


def _judge_coarsely(j: Judge, call: CallFactors, seed: int, setting: Setting) -> bool:
    """Judge a call whose result may have autocast's dtype, and is rounded to bfloat16.

    A product of matrices with x is computed in that dtype, by PyTorch's rule; angles are not.
    """
    inputs = make(j, call, seed)
    with setting():
        y = j.try_call(inputs.x, inputs.pos, **inputs.spec)
    if y is None:
        return False
    x, dtype = inputs.xs[0], j.lib.dtype_of(y)
    j.check_kind(y, x._replace(dtype=dtype) if dtype in ("bfloat16", "float16") else x)
    accuracy = j.target.accuracy._replace(arithmetic="own")
    j.check_values(j.numbers(y), x._replace(dtype="bfloat16"), inputs.numbers, accuracy, **inputs.spec)
    return True


def _judge_gradient_coarsely(j: Judge, call: CallFactors, seed: int, setting: Setting) -> bool:
    """Judge the gradient under autocast, in x's dtype, rounded to bfloat16."""
    inputs, (g,) = make(j, call, seed), make(j, call, seed + 1).xs
    (x,) = inputs.xs
    with setting():
        pulled = j.lib.gradient(lambda array: j.call(array, inputs.pos, **inputs.spec), x.array, g.array)
    check_adjoint(j, pulled, x, g, inputs.numbers, like="bfloat16", **inputs.spec)
    return True


no_grad = under("no_grad", _watch_twice)
inference_mode = under("inference_mode", _watch_twice)
autocast = under("autocast", _judge_coarsely)
gradient_under_autocast = may_refuse(under("autocast", _judge_gradient_coarsely))
default_device = under("default_device", _watch)
deterministic = under("deterministic", _watch)


def default_dtype(j: Judge, call: CallFactors, seed: int = 0) -> bool:
    """Judge a call under other default dtypes; with JAX, in float64 after a call in float32 too."""
    served = under("default_dtype", _watch)(j, call, seed)
    is_plain = _num_fields(j, call) == 0 and call.dtype == "float32"
    takes_float64 = "float64" in (j.target.dtypes or ["float64"]) or isinstance(j.target.rotate, OwnApply)
    if isinstance(j.lib, JaxLibrary) and not j.lib.x64 and takes_float64 and is_plain:
        _check_float64_after_float32(j, call)
    return served


def _check_float64_after_float32(j: Judge, call: CallFactors) -> None:
    """Assert that under jax.enable_x64 a call in float32 makes no later call in float64 less exact."""
    ((name, setting),) = settings_of(j.lib, "default_dtype").items()
    try:
        with setting():
            check_alone(j, fresh_call(j, call).replace(dtype="float64"))
    except Exception:  # it takes no float64, or has float32 tables in every call
        return
    new = fresh_call(j, call)
    check_alone(j, new)
    with named(f"under {name}, after a call in float32"), setting():
        check_alone(j, new.replace(dtype="float64"))


# ---- frequencies in an array ----


def with_frequencies(j: Judge, call: CallFactors, seed: int = 0) -> bool:
    """Judge a call; at integer positions, frequencies in an array give the bits of the same numbers.

    Compilers fuse products with sums, in other places of the two programs.
    """
    if not check_call(j, call, seed):
        return False
    fuses = j.target.compiled or isinstance(j.lib, JaxLibrary)
    same_bits = is_in_array(call.inv_freq) and not differs_by_head(call.inv_freq) and "float" not in call.kind
    if fuses or not same_bits:
        return True
    inputs = make(j, call, seed)
    numbers = {**inputs.spec, "inv_freq": tuple(inputs.spec["inv_freq"])}
    with j.if_served():
        y, expected = (j.numbers(j.call(inputs.x, inputs.pos, **spec)) for spec in (inputs.spec, numbers))
        j.check_equal(y, expected, "have other bits with the frequencies in an array than as numbers")
    return True


# ---- one call after another ----


def after(name: str, first: Context, *others: Context) -> Context:
    """Return the context that makes one new call in a first context, then in others: alone and as at first.

    A traced or mapped array that the first context leaves in a cache is invalid in the others.
    """

    def checked(j: Judge, call: CallFactors, seed: int) -> bool:
        call = fresh_call(j, call)
        if not first(j, call, seed):
            return False
        for context in others or (check_alone, first):
            with named(f"after {name} of the same sizes"):
                assert context(j, call, seed), f"the call is refused: {j.calls.refused[-1:]}"
        return True

    return checked


def check_alone(j: Judge, call: CallFactors, seed: int = 0) -> bool:
    """Judge a call that was served before; the result does not belong to the graph of an earlier call."""
    inputs = make(j, call, seed)
    with j.if_served():
        y = j.bare_call(inputs.x, inputs.pos, j.fit(inputs.spec))  # an exception is no refusal
        judge_results(j, inputs, y)
        assert not getattr(y, "requires_grad", False), "the result has a gradient, and x has none"
    return True


@may_refuse
def fake_call(j: Judge, call: CallFactors, seed: int = 0) -> bool:
    """Make a call with fake tensors, which have no values."""
    inputs = make(j, call, seed)
    mode, arrays = fake(inputs.x.array, inputs.pos)
    with mode:
        y = j.call(*arrays, **inputs.spec)
    assert tuple(y.shape) == inputs.x.values.shape, f"the result has shape {tuple(y.shape)}"
    return True


def gradient_if_taken(j: Judge, call: CallFactors, seed: int = 0) -> bool:
    """Judge the gradient of a call, in a dtype whose gradient is taken."""
    return check_gradient(j, call.replace(gradient="contiguous"), seed)


def training_after_inference(j: Judge, call: CallFactors, seed: int = 0) -> bool:
    """Judge the gradient of a new call that was made under torch.inference_mode() before."""
    if not takes_gradient(j, call.dtype):
        return False
    inference = under("inference_mode", _watch)
    return after("a call under torch.inference_mode()", inference, gradient_if_taken)(j, call, seed)


# ---- arrays without values, and on several devices ----


def lazy_call(j: Judge, call: CallFactors, seed: int = 0) -> bool:
    """Make a call of arrays that raise when they are computed; the result is to be computed later."""
    inputs = make(j, call, seed)
    y = j.call(j.lib.poisoned(inputs.x.array), j.lib.poisoned(inputs.pos), **inputs.spec)
    j.check_kind(y, inputs.x)
    assert j.lib.is_lazy(y), "the result is computed already"
    return True


@may_refuse
def in_shards(j: Judge, call: CallFactors, seed: int = 0) -> bool:
    """Judge a call at consecutive positions under jax.shard_map over the sequence."""
    inputs = make(j, call.replace(order="ascending" if j.claims("any_positions") else None), seed)
    x, rows = inputs.x, call.rows[-1]
    if rows % 8:
        return False
    y = j.lib.in_shards(lambda shard, pos: j.call(shard, pos, **inputs.spec), x.array, inputs.pos)
    j.check_kind(y, x)
    try:
        j.check_values(j.numbers(y), x, inputs.numbers, **inputs.spec)
    except AssertionError as error:
        if not _is_rotated_by(j, y, x, np.tile(np.arange(rows // 8), 8)):
            raise
        raise AssertionError(
            "each part is rotated by the positions 0, 1, ... of an arange over its own length. "
            "Take positions as an argument, and split them as x is"
        ) from error
    return True


def _is_rotated_by(j: Judge, y: Any, x: Input, pos: np.ndarray) -> bool:
    try:
        j.check_values(j.numbers(y), x, pos)
    except AssertionError:
        return False
    return True
