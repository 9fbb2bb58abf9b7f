"""Calls in the modes of their library: without gradients, mapped, compiled, with other defaults."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

import numpy as np

from rope_array.testing import _modes
from rope_array.testing._call import fits, make, plain_call
from rope_array.testing._checks._first import NewCall, error_of, far_row, new_call
from rope_array.testing._cover import Cover, field_specs, other_pairing, pairs_among, single_fields
from rope_array.testing._factors import FEW_FIELDS, Call
from rope_array.testing._gradients import check_adjoint
from rope_array.testing._judge import Input, Judge, check
from rope_array.testing._libraries import Jax
from rope_array.testing._own import Declined, OwnApply
from rope_array.testing._parts import MODEL_WIDTHS, RANKS
from rope_array.testing._refused import takes_gradient
from rope_array.testing._settings import changes
from rope_array.testing._verdict import Fault

_CROSSED_LEVELS = {
    "pairing": 1, "inverse": 1, "dtype": True, "width": [16, 128], "rows": [(2, 3, 5), (1, 40, 2), (2, 1, 130)],
    "positions": ["S", "BS"], "order": [None, "ascending", "descending"], "reach": [12345],
}  # fmt: skip
_CROSSED = Cover(_CROSSED_LEVELS, pairs_among(("dtype", "width", "rows", "positions", "pairing", "inverse")))


def _crossed(j: Judge) -> Iterator[NewCall]:
    """Yield calls at large positions: with each field, then with any two of dtypes, sizes and head_dims."""
    for i, spec in enumerate(field_specs(j)):
        yield j.x(seed=i), far_row(j, 5, i), spec
    for call in () if j.is_slow else _CROSSED.calls(j):
        made = make(j, call.replace(reach=min(call.reach, j.target.reach)))
        yield made.xs[-1], made.numbers, made.spec


def _takes_autocast(dtype: str, setting: str) -> bool:
    """Return whether PyTorch takes a dtype under autocast: it refuses some in torch.cat and others."""
    return dtype == "float32" or f".{dtype})" in setting


def _check_there_and_after(j: Judge, mode: str, check: Callable[..., None]) -> None:
    """Make a new call under each setting of a mode, then again without it; judge both results."""
    for name, setting in _modes.settings_of(j.lib, mode).items():
        for dtype in j.dtypes:
            if mode == "autocast" and not _takes_autocast(dtype, name):
                continue
            x, pos, spec = new_call(j, dtype)
            array_pos = j.pos(pos)
            with setting():
                before = j.lib.defaults()
                y = j.try_call(x, array_pos, **spec)
                changed = changes(before, j.lib.defaults())
            if y is not None:
                assert not changed, f"under {name}: the call changed {', '.join(changed)}"
                _named(f"under {name}", check, y, x, pos, **spec)
                _named(f"after a call under {name}", j.check_call, x, pos, **spec)
        for x, pos, spec in _crossed(j):
            if mode == "autocast" and not _takes_autocast(x.dtype, name):
                continue
            array_pos = j.pos(pos)
            with setting():
                y = j.try_call(x, array_pos, **spec)
            if y is not None:
                _named(f"under {name}{_words(spec)}", check, y, x, _shaped(pos), **spec)


def _shaped(pos: np.ndarray) -> np.ndarray:
    """Return positions in a shape that broadcasts to x without its features."""
    return pos if pos.ndim < 2 else pos[:, None]


def _words(spec: dict[str, Any]) -> str:
    return f" with {', '.join(f'{name}={value!r}' for name, value in spec.items())}" if spec else ""


def _named(where: str, check: Callable[..., Any], *arguments: Any, **spec: Any) -> None:
    """Run a check; an error begins with where it is found."""
    try:
        check(*arguments, **spec)
    except (NotImplementedError, SystemExit):
        raise
    except Exception as error:
        raise Fault.of(error, context=where) from error


def _check_without_gradients(j: Judge, mode: str) -> None:
    """Check that calls under a setting are right, write nothing, and return memory of their own."""
    ((name, setting),) = _modes.settings_of(j.lib, mode).items()
    cases: list[NewCall] = [(j.x(), j.positions(), {}), (j.x(1, 4, 1, 16), j.row(5, 1), {})]
    cases.append((j.x(1, 16, 520, 16), far_row(j, 520), {}))  # code chooses by size
    for x, pos, spec in (*cases, *_crossed(j)):
        if pos.shape[-1] <= j.target.reach + 1:
            for recorded in (False, True):
                with j.if_served():
                    where = f"under {name}{_words(spec)}"
                    _named(where, _check_apart, j, setting, x, pos, spec, recorded)


def _check_apart(j: Judge, setting: Any, x: Input, pos: np.ndarray, spec: Any, recorded: bool) -> None:
    """Check one call under a setting; `recorded` for an x that gradients are asked for."""
    array_pos = j.pos(pos)
    x = x._replace(array=j.lib.asarray(x.values, x.dtype))
    if recorded:
        x.array.requires_grad_()
    before = [j.lib.snapshot(one) for one in (x.array, array_pos)]
    with setting():
        y = j.call(x, array_pos, **spec)
        bits = j.lib.snapshot(y)
        again = j.call(x, array_pos, **spec)
        later, other = j.x(*x.values.shape, dtype=x.dtype, seed=9), _other(j, pos)
        last = j.call(later, j.pos(other), **spec)
    after = [j.lib.snapshot(one) for one in (x.array, array_pos)]
    assert after[0] == before[0], "the call wrote to x"
    assert after[1] == before[1], "the call wrote to its positions"
    assert not j.lib.shares_memory(y, x.array), "the result shares memory with x"
    assert not j.lib.shares_memory(y, again), "results of two calls share memory"
    assert j.lib.snapshot(y) == bits, "a later call wrote to an earlier result"
    j.check(y, x, _shaped(pos), **spec)
    if not recorded:
        _named("a later call at other positions", j.check, last, later, _shaped(other), **spec)


def _other(j: Judge, pos: np.ndarray) -> np.ndarray:
    """Return other positions of the same kind, where the target takes others."""
    if j.claims("offset_positions") and pos.min() > 0:
        return pos - 1
    return j.wrap(pos + 1) if j.claims("any_positions") else pos


@check("no_grad")
def no_grad(j: Judge) -> None:
    """Without gradients, under torch.no_grad(), a call is right, and writes neither x nor positions."""
    _check_without_gradients(j, "no_grad")


@check("inference_mode")
def inference_mode(j: Judge) -> None:
    """Under torch.inference_mode() a call is right, and writes neither x nor positions."""
    _check_without_gradients(j, "inference_mode")


@check("inference_mode", "gradient")
def training_after_inference(j: Judge) -> None:
    """After a call under torch.inference_mode() gradients are right: no tensor of that mode is kept."""
    ((name, setting),) = _modes.settings_of(j.lib, "inference_mode").items()
    calls = [new_call(j, dtype) for dtype in j.dtypes if takes_gradient(j, dtype)]
    calls += [_of_the_first_rows(new_call(j), some) for some in field_specs(j) if "inv_freq" not in some]
    for x, pos, spec in calls:
        with j.if_served():
            with setting():
                j.call(x, j.pos(pos), **spec)
            _named(f"after a call under {name}{_words(spec)}", _check_gradient, j, x, pos, spec)


def _of_the_first_rows(call: NewCall, spec: dict[str, Any]) -> NewCall:
    """Return a call with more fields at positions from 0 on, for which a table may give its own rows."""
    x, pos, base = call
    return x, np.arange(pos.shape[-1]), {**base, **spec}


def _check_gradient(
    j: Judge, x: Input, pos: np.ndarray, spec: dict[str, Any], call: Callable[..., Any] | None = None
) -> None:
    """Check the gradient of a call, by default of the target's own."""
    g = j.x(*x.values.shape, dtype=x.dtype, seed=1)
    pulled = _pulled(j, x, g, pos, _call_of(j, spec) if call is None else call)
    check_adjoint(j, pulled, g, g, pos, **spec)


def _pulled(j: Judge, x: Input, g: Input, pos: np.ndarray, call: Callable[..., Any]) -> Any:
    """Return the gradient of a call for a cotangent."""
    return j.lib.gradient(_with(call, j.pos(pos)), x.array, g.array)


@check("autocast")
def autocast(j: Judge) -> None:
    """Under torch.autocast the angles keep their accuracy; x may be rounded, to autocast's dtype."""

    def check(y: Any, x: Input, pos: np.ndarray, **spec: Any) -> None:
        found = j.lib.dtype_of(y)
        j.check_kind(y, x._replace(dtype=found) if found in ("bfloat16", "float16") else x)
        # A product of matrices with x is computed in autocast's dtype by PyTorch's rule; the angles are not.
        accuracy = j.target.accuracy._replace(arithmetic="own")
        coarse = x._replace(dtype="bfloat16")
        j.check_values(j.numbers(y), coarse, pos, accuracy, **spec)

    _check_there_and_after(j, "autocast", check)


@check("autocast", "gradient")
def gradient_under_autocast(j: Judge) -> None:
    """Under torch.autocast the gradient is the adjoint rotation of the cotangent, in x's dtype."""
    specs: list[dict[str, Any]] = [{}, *([{"pairing": "half"}] if j.claims("pairing") else [])]
    for name, setting in _modes.settings_of(j.lib, "autocast").items():
        for spec in specs:
            x, g, pos = j.x(), j.x(seed=1), far_row(j, 5)
            if x.dtype == "float32" or x.dtype in name:
                with _taken(j), setting():
                    pulled = _pulled(j, x, g, pos, _call_of(j, spec))
                    check = partial(check_adjoint, like="bfloat16")
                    _named(f"under {name}{_words(spec)}", check, j, pulled, g, g, pos, **spec)


@contextmanager
def _taken(j: Judge) -> Iterator[None]:
    """End at an exception of a target that declares nothing, so that a check can go on; keep failures."""
    try:
        yield
    except (AssertionError, SystemExit):
        raise
    except Exception as error:
        if j.target.declared and not isinstance(error, Declined):
            raise


@check("default_dtype")
def default_dtype(j: Judge) -> None:
    """Whatever the library's default dtype, the result has x's dtype and accuracy.

    In JAX, where jax.enable_x64 adds float64, no table keeps the precision of an earlier call either.
    """
    _check_there_and_after(j, "default_dtype", j.check)
    takes_float64 = "float64" in (j.target.dtypes or ["float64"]) or isinstance(j.target.rotate, OwnApply)
    if isinstance(j.lib, Jax) and not j.lib.x64 and takes_float64 and j.claims("float32"):
        _check_float64_after_float32(j)


def _check_float64_after_float32(j: Judge) -> None:
    """Check that under jax.enable_x64 a call in float32 makes no later call in float64 less exact."""
    ((name, setting),) = _modes.settings_of(j.lib, "default_dtype").items()
    for after_float32 in (False, True):
        x, pos, spec = new_call(j, "float32")
        if after_float32:
            j.check_call(x, pos, **spec)
        try:
            with setting():
                wide = j.array(x.values, "float64")
                y = j.call(wide.array, j.pos(pos), **spec)
        except Exception:  # it takes no float64
            return
        error = error_of(j, j.numbers(y), wide, pos, spec)
        if error and not after_float32:  # float32 tables in every call
            return
        assert not error, f"under {name}, after a call in float32: {error}"


@check("default_device")
def default_device(j: Judge) -> None:
    """Whatever the library's default device, the result is on x's device, and is right."""
    _check_there_and_after(j, "default_device", j.check)


@check("deterministic")
def deterministic(j: Judge) -> None:
    """With deterministic algorithms, which fill new memory with NaN, a call is right."""
    ((name, setting),) = _modes.settings_of(j.lib, "deterministic").items()
    for x, pos, spec in ((j.x(), j.positions(), {}), *_crossed(j)):
        with setting():
            _named(f"under {name}{_words(spec)}", _check_shaped, j, x, pos, spec)


def _check_shaped(j: Judge, x: Input, pos: np.ndarray, spec: dict[str, Any]) -> None:
    with j.if_served():
        j.check(j.run(x, pos, **spec), x, _shaped(pos), **spec)


@check("vmap")
def vmap(j: Judge) -> None:
    """Mapped over x, along any axis but the last two, each x is rotated as by a call of its own."""
    x, pos = j.x(2, 3, 4, 5, 16), far_row(j, 5)
    for axis in range(3):
        with _taken(j):
            _check_mapped(j, x, pos, {}, axis)
    transform = partial(_modes.vmap, j.lib, in_axes=(1, None), out_axis=1)
    for spec, y in _with_each_field(j, transform, x.array, j.pos(pos)):
        _named(f"vmap over axis 1 of x{_words(spec)}", j.check, y, x, pos, **spec)


def _with_each_field(
    j: Judge, transform: Callable[[Callable[..., Any]], Callable[..., Any]], *arrays: Any
) -> list[tuple[dict[str, Any], Any]]:
    """Return no fields and each field, with the results of the transformed call, where it is taken.

    JAX compiles all as one program, which takes less time than many.
    """
    one_program = isinstance(j.lib, Jax) and j.claims("jit")
    specs = field_specs(j) if one_program or j.lib.calls > 100 else [{}]
    calls = [partial(_tried, j, transform(_call_of(j, spec))) for spec in specs]
    call = partial(_results_of, calls)
    results = (j.lib.traced(call) if one_program else call)([arrays] * len(calls))
    return [(spec, *result) for spec, result in zip(specs, results, strict=True) if result]


def _tried(j: Judge, call: Callable[..., Any], *arrays: Any) -> list[Any]:
    """Return the result of a call; [] if it is refused."""
    with _taken(j):
        return [call(*arrays)]
    return []


@check("vmap")
def vmap_of_each_rank(j: Judge) -> None:
    """Mapped over x once or twice, each x is rotated as by a call of its own, whatever its rank."""
    half: dict[str, Any] = {"pairing": "half"} if j.claims("pairing") else {}
    for label in j.parts("ranks"):
        lead = RANKS[int(label) - 1]
        pos = np.asarray(far_row(j, lead[-1]) if lead else far_row(j, 1)[0])
        times = (1, 2) if label == "2" else (1,)
        for count in times if int(label) < 5 else ():
            x = j.x(*(2, 4)[:count], *lead, 16)
            with _taken(j):
                _check_mapped(j, x, pos, half if label == "3" else {}, *(0,) * count)


def _check_mapped(j: Judge, x: Input, pos: np.ndarray, spec: dict[str, Any], *axes: int) -> None:
    """Check a call that is mapped over an axis of x, or over several by a transform each."""
    call = _call_of(j, spec)
    for axis in axes:
        call = _modes.vmap(j.lib, call, (axis, None), axis)
    where = f"vmap over axis {axes[0]} of x of {x.values.ndim} axes" + ", then again" * (len(axes) - 1)
    _named(f"{where}{_words(spec)}", j.check, call(x.array, j.pos(pos)), x, pos, **spec)


@contextmanager
def _refusals(j: Judge) -> Iterator[None]:
    """Raise NotImplementedError for an exception of a target that declares nothing: it refuses the mode."""
    try:
        yield
    except Exception as error:
        if j.target.declared or isinstance(error, NotImplementedError):
            raise
        raise NotImplementedError(f"refuses it: {type(error).__name__}: {error}") from error


def _call_of(j: Judge, spec: dict[str, Any]) -> Callable[..., Any]:
    return lambda array, pos: j.call(array, pos, **spec)


@check("vmap_positions", "offset_positions")
def vmap_of_positions(j: Judge) -> None:
    """Mapped over x and positions, or positions alone, each x is rotated by its own positions."""
    pos = np.stack([j.row(start, 5) for start in (3, 4001, 0, 12345)])
    x = j.x(4, 2, 3, 5, 16)
    for spec, both in _with_each_field(j, partial(_modes.vmap, j.lib, in_axes=(0, 0)), x.array, j.pos(pos)):
        _named(f"vmap over x and positions{_words(spec)}", j.check, both, x, pos[:, None, None], **spec)
    one = x._replace(array=x.array[0], values=x.values[0])
    with _refusals(j):
        alone = _modes.vmap(j.lib, _call_of(j, {}), (None, 0))(one.array, j.pos(pos))
    whole = x._replace(values=np.broadcast_to(one.values, x.values.shape))
    _named("vmap over positions", j.check, alone, whole, pos[:, None, None])


@check("shards")
def positions_of_a_shard(j: Judge) -> None:
    """Under jax.shard_map over the sequence, each part is rotated by its positions in the whole sequence."""
    x = j.x(2, 3, 16, 16)
    for pos in (np.arange(16), far_row(j, 16)) if j.claims("offset_positions") else (np.arange(16),):
        with _refusals(j):
            y = j.lib.in_shards(_call_of(j, {}), x.array, j.pos(pos))
        try:
            j.check(y, x, pos)
        except AssertionError as error:
            if _is_rotated_by(j, y, x, np.tile(np.arange(2), 8)):
                raise AssertionError(
                    "each part is rotated by the positions 0, 1, ... of an arange over its own length. "
                    "Take positions as an argument, and split them as x is"
                ) from error
            raise


def _is_rotated_by(j: Judge, y: Any, x: Input, pos: np.ndarray) -> bool:
    try:
        j.check(y, x, pos)
    except AssertionError:
        return False
    return True


@check("vmap", "batch_positions", "offset_positions")
def vmap_of_batches(j: Judge) -> None:
    """Mapped over x, or over x and positions, each x is rotated by its positions of shape (B, S)."""
    x = j.x(3, 2, 4, 5, 16)
    pos = np.stack([np.stack([far_row(j, 5, i), far_row(j, 5, i + 1)]) for i in range(3)])
    for where, numbers, axes in (("x", pos[0], (0, None)), ("x and positions", pos, (0, 0))):
        with _taken(j):
            y = _modes.vmap(j.lib, _call_of(j, {}), axes)(x.array, j.pos(numbers))
            _named(f"vmap over {where}", j.check, y, x, numbers if numbers is pos else numbers[None])


@check("vmap", "gradient")
def vmap_of_gradients(j: Judge) -> None:
    """The gradient of each x, mapped over x and cotangents, is the adjoint rotation of its cotangent."""
    x, g, pos = j.x(4, 2, 3, 5, 16), j.x(4, 2, 3, 5, 16, seed=1), far_row(j, 5)
    array_pos = j.pos(pos)

    def pull(array: Any, cotangent: Any) -> Any:
        return _modes.vjp(j.lib, lambda one: j.call(one, array_pos), array, cotangent)

    with _refusals(j):
        pulled = _modes.vmap(j.lib, pull, (0, 0))(x.array, g.array)
    _named("vmap over x", check_adjoint, j, pulled, g, g, pos)


@check("jvp", "gradient")
def jvp(j: Judge) -> None:
    """The derivative along a tangent, in forward mode, is the tangent rotated."""
    x, t, pos = j.x(), j.x(seed=1), far_row(j, 5)

    def transform(call: Callable[..., Any]) -> Callable[..., Any]:
        return lambda array, tangent, pos: _modes.jvp(j.lib, _with(call, pos), array, tangent)

    for spec, (value, derivative) in _with_each_field(j, transform, x.array, t.array, j.pos(pos)):
        _named(f"the value{_words(spec)}", j.check, value, x, pos, **spec)
        assert derivative is not None, f"the result{_words(spec)} has no derivative"
        _named(f"the derivative{_words(spec)}", j.check, derivative, t, pos, **spec)


def _with(call: Callable[..., Any], pos: Any) -> Callable[[Any], Any]:
    return lambda array: call(array, pos)


@check("gradient", "offset_positions")
def gradient_after_other_calls(j: Judge) -> None:
    """A gradient belongs to its own call, also if other calls are made before it is asked for."""
    rows = np.stack([j.row(start, 5) for start in (3, 4001)])
    calls: list[tuple[np.ndarray, dict[str, Any]]]
    calls = [(rows, spec) for spec in field_specs(j)[: None if j.lib.calls > 100 else 1]]
    if j.claims("batch_positions"):
        calls.append((np.stack([rows, rows + 7]), {}))
    for pos, spec in calls:
        with _taken(j) if spec or pos.ndim > 2 else nullcontext():
            _named(f"positions of shape {pos[0].shape}{_words(spec)}", _check_two_gradients, j, pos, spec)


def _check_two_gradients(j: Judge, pos: np.ndarray, spec: dict[str, Any]) -> None:
    """Check the gradients of two calls, asked for together."""
    x, g = j.x(2, 2, 3, 5, 16), j.x(2, 2, 3, 5, 16, seed=1)
    arrays = [j.pos(some) for some in pos]

    def two(array: Any) -> Any:
        return j.lib.stack([j.call(array[i], arrays[i], **spec) for i in range(2)])

    pulled = j.lib.gradient(two, x.array, g.array)
    check_adjoint(j, pulled, g, g, pos[:, None, None] if pos.ndim < 3 else pos[:, :, None], **spec)


@check("gradient", "no_grad")
def gradient_of_a_parameter(j: Judge) -> None:
    """The gradient of a torch.nn.Parameter is right: no result is cut off the graph."""
    x, g, pos = j.x(), j.x(seed=1), far_row(j, 5)
    parameter = j.lib.native.nn.Parameter(j.lib.asarray(x.values, x.dtype))
    y = j.run(parameter, pos)
    assert y.requires_grad, "the result of a torch.nn.Parameter has no gradient"
    (pulled,) = j.lib.native.autograd.grad(y, [parameter], g.array)
    check_adjoint(j, pulled, g, g, pos)


# ---- compiled by the library ----


def _traced(j: Judge, **spec: Any) -> Callable[..., Any]:
    """Return the compiled call with these fields; a refusal of its compiler is a refusal of the call."""
    # Not `j.call`: a compiler may refuse what it does besides.
    compiled = j.lib.traced(lambda array, pos: j.target.call(array, pos, **spec))

    def call(array: Any, pos: Any) -> Any:
        if isinstance(j.lib, Jax):
            return compiled(array, pos)
        with _refusals(j):
            return compiled(array, pos)

    return call


@check("jit")
def jit_of_each_dtype(j: Judge) -> None:
    """One compiled function is right for every dtype of x, in turn."""
    compiled, pos = _traced(j), far_row(j, 5)
    for dtype in (*j.dtypes, j.dtypes[0]):
        x = j.x(dtype=dtype)
        _named(f"compiled for {dtype}", j.check, compiled(x.array, j.pos(pos)), x, pos)


@check("jit", "batch_positions", "offset_positions")
def jit_of_a_batch(j: Judge) -> None:
    """One compiled function is right for positions of shape (S,) and (B, S), in turn, of several sizes."""
    compiled = _traced(j)
    for batch, rows in ((0, 5), (2, 5), (3, 5), (2, 1), (0, 1)):
        pos = np.stack([far_row(j, rows, i) for i in range(batch)]) if batch else far_row(j, rows)
        x = j.x(batch or 2, 3, rows, 16)
        where = f"compiled for positions of shape {pos.shape}"
        _named(where, j.check, compiled(x.array, j.pos(pos)), x, pos[:, None] if batch else pos)


@check("jit")
def jit_of_fields(j: Judge) -> None:
    """Compiled with any claimed field, with x and positions traced, a call is right; so is one after it.

    With JAX, which compiles many calls as one program: at a wide head in each dtype too.
    """
    width = new_call(j)[0].values.shape[-1]  # tables have to be made for it
    changed = {"reach": min(4001, j.target.reach), "width": width}
    calls = [call.replace(**changed) for call in single_fields(j) if not call.in_tuple]
    if isinstance(j.lib, Jax):
        plain = plain_call(j).replace(reach=changed["reach"])
        calls += [plain.replace(width=wide, dtype=dtype) for wide in _wide(j) for dtype in j.dtypes]
    calls = [call for call in calls if fits(j, call)]
    for call in _check_programs(j, calls):
        made = make(j, call, 1)
        words = _words(made.spec)
        _named(f"after a compiled call of the same sizes{words}", _check_free, j, made.xs[-1], made.numbers,
               **made.spec)  # fmt: skip


@check("jit", "gradient")
def jit_of_gradients(j: Judge) -> None:
    """The gradient of a compiled call is the adjoint rotation of the cotangent, in each dtype.

    With JAX, which compiles many calls as one program: with any two claimed fields too; with each field at a
    wide head, for many rows, and at positions of shape (B, S); and at positions of each dtype.
    """
    _named("compiled", _check_gradient, j, j.x(), far_row(j, 5), {}, _traced(j))
    if isinstance(j.lib, Jax):
        calls = [call for cover in _PROGRAMS for call in cover.calls(j)]
        wide = [plain_call(j).replace(width=width, rows=(1, 2, 3)) for width in _wide(j)]
        fields = [call for call in single_fields(j) if not call.in_tuple]
        calls += [call.replace(width=one.width, rows=one.rows) for one in wide for call in fields]
        _check_programs(j, [call for call in dict.fromkeys(calls) if fits(j, call)], gradients=True)


_SIMPLE = (
    "seq_axis", "base", "rotary_dim", "rotary_start", "pairing", "out_pairing", "attention_factor", "inverse",
)  # fmt: skip
# Any two simple fields; each field for many rows and at positions of shape (B, S); kinds and far positions.
_PROGRAMS = (
    Cover(
        {**dict.fromkeys(_SIMPLE, 1), "dtype": True, "rows": [(2, 3, 3)]},
        [("dtype", *some) for some in pairs_among(_SIMPLE)],
    ),
    Cover({**FEW_FIELDS, "in_tuple": 0, "rows": [(1, 1, 1100)]}, [(name,) for name in FEW_FIELDS], alone=True),
    Cover({**FEW_FIELDS, "in_tuple": 0, "positions": ["BS"]}, [(name,) for name in FEW_FIELDS], alone=True),
    Cover(
        {"kind": ["int64", "int32", "int16", "int8", "uint8", "uint16", "uint32", "float"],
         "reach": [2**15 + 10, 2**17, 2**31 - 1]},
        [("kind",), ("reach",)], alone=True,
    ),
)  # fmt: skip


def _wide(j: Judge) -> list[int]:
    """Return the widest head_dim of models, if it is claimed and beyond 64."""
    widths = [width for width in MODEL_WIDTHS if fits(j, plain_call(j).replace(width=width))]
    return [width for width in widths if width > 64][-1:]


def _check_programs(j: Judge, calls: Sequence[Call], gradients: bool = False) -> list[Call]:
    """Call and judge compiled cases; return those that are served.

    JAX compiles all as one program, which takes less time than many.
    """
    made = [make(j, call) for call in calls]
    arrays = [(each.xs[-1].array, each.pos) for each in made]
    programs = [partial(_compiled_call, j, j.fit(each.spec), gradients) for each in made]
    if isinstance(j.lib, Jax):
        results = j.lib.traced(partial(_results_of, programs))(arrays)
    else:
        results = _results_of(programs, arrays)
    for each, result in zip(made, results, strict=True):
        x, numbers, spec = each.xs[-1], each.numbers, each.spec
        words = f"{_words(spec)} in {x.dtype}"
        if result:
            _named(f"compiled{words}", j.check, result[0], x, numbers, **spec)
        if result and gradients:
            _named(f"the gradient, compiled{words}", check_adjoint, j, result[1], x, x, numbers, **spec)
    if not any(results):
        j.raise_refused("refuses every call")
    return [call for call, result in zip(calls, results, strict=True) if result]


def _results_of(calls: Sequence[Callable[..., Any]], arrays: Sequence[Any]) -> list[Any]:
    return [call(*each) for call, each in zip(calls, arrays, strict=True)]


def _compiled_call(j: Judge, spec: dict[str, Any], gradients: bool, array: Any, pos: Any) -> list[Any]:
    """Return a call's result, and its gradient for x itself as the cotangent; [] if it is refused."""
    # JAX compiles the whole list of calls.
    call = partial(j.target.call, **spec) if isinstance(j.lib, Jax) else _traced(j, **spec)
    with _taken(j):
        if not gradients:
            return [call(array, pos)]
        y, pull = j.lib.pullback(_with(call, pos), array)
        return [y, pull(array)]
    return []


# ---- calls after others ----


def _check_after(
    j: Judge, name: str, check: Callable[..., None], shapes: Sequence[str] = ("S", "BS"), twice: bool = True
) -> None:
    """Check calls of new sizes: first in a mode, by `check`, then plainly, then in the mode again.

    A traced or mapped array that is kept by the first call is no array in the others.
    """
    shapes, served = shapes if j.claims("batch_positions", "offset_positions") else ("S",), False
    fields: list[dict[str, Any]] = [{}] * len(shapes)
    if j.claims("pairing"):
        shapes, fields = (*shapes, "S"), [*fields, {"pairing": other_pairing(j.target.defaults["pairing"])}]
    for shape, some, dtype in zip(shapes, fields, itertools.cycle(j.dtypes), strict=False):
        x, pos, spec = new_call(j, dtype, shape)
        spec = {**spec, **some}
        with _taken(j):  # the first call only: later ones do not refuse what it takes
            with j.part(name):
                check(x, pos, **spec)
            served = True
            _named(f"after {name} of the same sizes", _check_free, j, x, pos, **spec)
            if twice:
                _named(f"{name} a second time", check, x, pos, **spec)
    if not served:
        j.raise_refused("refuses every call")


def _check_free(j: Judge, x: Input, pos: np.ndarray, **spec: Any) -> None:
    """Check a call that was served in a mode; its result does not belong to the graph of an earlier call."""
    with j.if_served():
        y = j.bare_call(x, j.pos(pos), j.fit(spec))  # its exception is no refusal
        j.check(y, x, pos, **spec)
        assert not getattr(y, "requires_grad", False), "the result has a gradient, and x has none"


@check("jit")
def calls_after_a_compiled_one(j: Judge) -> None:
    """A call after one that was compiled is right: no traced array is kept."""

    def check(x: Input, pos: np.ndarray, **spec: Any) -> None:
        j.check(_traced(j, **spec)(x.array, j.pos(pos)), x, pos, **spec)

    _check_after(j, "a compiled call", check, ("S", "BS", "B1"))


@check("vmap")
def calls_after_a_mapped_one(j: Judge) -> None:
    """A call after one that was mapped is right: no mapped array is kept."""

    def check(x: Input, pos: np.ndarray, **spec: Any) -> None:
        two = j.array(np.stack([x.values, x.values]), x.dtype)
        both = j.claims("vmap_positions")
        array = j.pos(np.stack([pos, pos]) if both else pos)
        y = _modes.vmap(j.lib, _call_of(j, spec), (0, 0 if both else None))(two.array, array)
        j.check(y, two, np.broadcast_to(_shaped(pos), two.values.shape[:-1]), **spec)

    _check_after(j, "a call under vmap", check)


@check("gradient")
def calls_after_a_gradient(j: Judge) -> None:
    """A call after one whose gradient was asked for is right, and so is its gradient."""

    def check(x: Input, pos: np.ndarray, **spec: Any) -> None:
        _check_gradient(j, x, pos, spec)

    _check_after(j, "a call for a gradient", check)


@check("no_grad", thorough=True)
def calls_after_a_fake_one(j: Judge) -> None:
    """A call after one with fake tensors, which have no values, is right: none of them is kept.

    A table that a function keeps is such a tensor; few programs make both calls, so this is for `--thorough`.
    """

    def check(x: Input, pos: np.ndarray, **spec: Any) -> None:
        mode, arrays = _modes.fake(x.array, j.pos(pos))
        with mode:
            y = j.call(*arrays, **spec)
        assert tuple(y.shape) == x.values.shape, f"the result has shape {tuple(y.shape)}"

    # Not twice: PyTorch refuses tables of real tensors, which a function may keep, with fake ones.
    _check_after(j, "a call with fake tensors", check, twice=False)
