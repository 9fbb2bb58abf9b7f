"""Make a call, watch everything that it may change, and judge the result.

Each observer watches one thing at every call of every row. Its fault does not fail the row: it is kept and
fails the observer's own check, so that a report names each fault once.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, suppress
from typing import Any, NamedTuple

import numpy as np

from ._call import CallInputs, make, with_layout
from ._factors import CallFactors
from ._failure import Failure, difference
from ._gradients import check_gradient
from ._judge import Floats, Judge
from ._named_values import arrays_in, differs_by_head
from ._refused import Declined
from ._settings import changes, unusual_settings

# Results that are kept, to see whether a later call writes to them.
_MOST_KEPT = 8


class Watched(NamedTuple):
    """A call that was made: its arguments, its results, and a way to repeat it."""

    call: CallFactors
    seed: int
    inputs: CallInputs
    results: tuple[Any, ...]
    again: Callable[[], tuple[Any, ...]]


class Observer(NamedTuple):
    """One thing to watch."""

    check: str  # the check that reports it
    requirement: str
    before: Callable[[Judge, CallInputs], Any]  # returns the state to compare with after the call
    after: Callable[[Judge, Watched, Any], Iterator[str | Failure]]  # yields faults
    needs: tuple[str, ...] = ()  # the capabilities without which the observer does not apply


# ---- the observers ----


def _nothing(j: Judge, inputs: CallInputs) -> None:
    """Observe results only."""


def _bits_of_inputs(j: Judge, inputs: CallInputs) -> list[tuple[str, Any, bytes]]:
    count = len(inputs.xs)
    names = [f"array {i} of {count}" for i in range(count)] if count > 1 else ["x"]
    arrays = {"pos": inputs.pos, **arrays_in(inputs.spec)}
    named = [*zip(names, (x.array for x in inputs.xs), strict=True), *arrays.items()]
    return [(name, array, j.lib.snapshot(array)) for name, array in named if j.lib.owns(array)]


def _written_inputs(j: Judge, watched: Watched, before: list[tuple[str, Any, bytes]]) -> Iterator[str]:
    yield from (f"{name} was written" for name, array, bits in before if j.lib.snapshot(array) != bits)


def _bits_around_x(j: Judge, inputs: CallInputs) -> list[tuple[Any, bytes]]:
    return [(larger_array, j.lib.snapshot(larger_array)) for larger_array in inputs.larger_arrays]


def _written_around_x(j: Judge, watched: Watched, before: list[tuple[Any, bytes]]) -> Iterator[str]:
    if any(j.lib.snapshot(larger_array) != bits for larger_array, bits in before):
        yield "memory around x was written"


def _shared(j: Judge, watched: Watched, before: None) -> Iterator[str]:
    xs, ys = [x.array for x in watched.inputs.xs], watched.results
    for i, y in enumerate(ys):
        for name, arrays in (("result", ys[:i]), ("x", xs)):
            if any(y is array for array in arrays):
                yield f"a result is {'another result' if name == 'result' else 'x itself'}"
            elif any(j.lib.shares_memory(y, array) for array in arrays):
                yield f"a result shares memory with {'another result' if name == 'result' else 'x'}"


def _read_only(j: Judge, watched: Watched, before: None) -> Iterator[str]:
    if not all(map(j.lib.is_writable, watched.results)):
        yield "the result is read-only"


def _overlapping(j: Judge, watched: Watched, before: None) -> Iterator[str]:
    for y in watched.results:
        shape, strides = tuple(y.shape), j.lib.strides_of(y)
        if strides is not None and 0 not in shape and _overlaps(shape, strides):
            yield f"elements of the result share memory: it has shape {shape} and strides {strides}"


def _overlaps(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Return whether two elements have the same address."""
    in_c_order = np.cumprod([1, *shape[:0:-1]])[::-1] * (strides or (1,))[-1]
    if tuple(in_c_order) == strides and strides[-1:] != (0,):
        return False  # as most results are
    places = np.zeros((1,) * len(shape), np.int64)
    for stride, index in zip(strides, np.ogrid[tuple(map(slice, shape))], strict=True):
        places = places + index * stride
    return bool(np.unique(places).size < places.size)


def _kept_results(j: Judge, inputs: CallInputs) -> list[tuple[Any, bytes]]:
    return j.kept


def _written_results(j: Judge, watched: Watched, kept: list[tuple[Any, bytes]]) -> Iterator[str]:
    if any(j.lib.snapshot(y) != bits for y, bits in kept):
        kept.clear()
        yield "a later call wrote to an earlier result"
    # A lazy result has no memory yet.
    kept.extend((y, j.lib.snapshot(y)) for y in watched.results if not j.lib.is_lazy(y))
    # Drop from the first half, so that both old and new results are kept.
    while len(kept) > _MOST_KEPT:
        del kept[watched.seed % (_MOST_KEPT // 2)]


def _shared_with_tables(j: Judge, watched: Watched, before: None) -> Iterator[str]:
    """Write into results, and look at x, positions, an earlier result and the next call."""
    if not j.budget.watches(watched.seed, 1):
        return
    inputs, first = _bits_of_inputs(j, watched.inputs), watched.results
    bits, second = [j.lib.snapshot(y) for y in first], watched.again()
    text = "writing into a result changes"
    if any(a is b or j.lib.shares_memory(a, b) for a, b in zip(first, second, strict=True)):
        yield "results of two calls share memory"
    elif all([j.lib.overwrite(y) for y in second]):
        for name, array, before_call in inputs:
            if j.lib.snapshot(array) != before_call:
                yield f"{text} {name}"
        if [j.lib.snapshot(y) for y in first] != bits:
            yield f"{text} an earlier result"
    for ys in (second, first):  # the first result may be the cached one
        written = all([j.lib.overwrite(y) for y in ys])
        if written and [j.lib.snapshot(y) for y in watched.again()] != bits:
            yield f"{text} the next call"


def _other_bits(j: Judge, watched: Watched, before: None) -> Iterator[Failure]:
    """Compare with a second call, and with calls of some rows, heads or batches."""
    call, inputs = watched.call, watched.inputs
    if not j.budget.watches(watched.seed, 2) or not j.claims("values"):
        return
    full_numbers = [j.numbers(y) for y in watched.results]
    again = [j.numbers(y) for y in watched.again()]
    yield from _differing(again, full_numbers, "have other bits in a second call")
    if not j.claims("same_bits"):
        return
    for text, index, pos in _parts_of_call(j, call, inputs):
        for x, expected in zip(inputs.xs, full_numbers, strict=True):  # alone, if the call has a tuple
            x_part = j.array(x.values[index], x.dtype)
            if j.lib.dtype_of(x.array) != x.dtype:  # other code may serve the other byte order
                x_part, _ = with_layout(j, x_part, "the_other_byte_order")
            y = j.try_call(x_part, pos, **inputs.spec)
            if y is not None:
                yield from _differing([j.numbers(y)], [expected[index]], f"have other bits {text}")


def _differing(actual: list[Any], expected: list[Any], text: str) -> Iterator[Failure]:
    for array, expected_array in zip(actual, expected, strict=True):
        if failure := difference(np.nan_to_num(array), np.nan_to_num(expected_array), text):
            yield failure


def _parts_of_call(j: Judge, call: CallFactors, inputs: CallInputs) -> Iterator[tuple[str, Any, Any]]:
    """Yield a phrase, an index into x, and the positions of the indexed rows."""
    if len(call.rows) != 3 or call.seq_axis is not None or 0 in call.rows or j.budget.is_slow:
        return
    batches, heads, rows = call.rows
    yield "if x is contiguous and alone", np.s_[:], inputs.pos
    if call.positions == "S" and not call.axes and call.kind in j.lib.integers:
        half = slice(rows // 2, rows)
        yield "in a slice of the rows", np.s_[:, :, half], j.pos(inputs.numbers[half], call.kind)
        if not differs_by_head(call.inv_freq):
            yield "with heads dropped", np.s_[:, heads // 2 :], inputs.pos
        yield "in a part of the batch", np.s_[batches // 2 :], inputs.pos
        if j.claims("batch_positions"):
            rows_of_each = np.broadcast_to(inputs.numbers, (batches, rows))
            yield "at positions of shape (B, S)", np.s_[:], j.pos(rows_of_each, call.kind)


def _read_again(j: Judge, watched: Watched, before: None) -> Iterator[Failure]:
    """Write to the positions, and judge the next call by them."""
    inputs = watched.inputs
    if not j.budget.watches(watched.seed, 3):
        return
    # Other dtypes may have no sum, or end at these positions.
    if watched.call.kind not in ("int64", "int32") or not j.lib.owns(inputs.pos):
        return
    last = min(j.target.reach, np.iinfo(watched.call.kind).max)
    if np.max(inputs.numbers, initial=0) >= last or not j.lib.overwrite(inputs.pos, inputs.pos + 1):
        return
    for y, x in zip(watched.again(), inputs.xs, strict=True):
        try:
            j.check_values(j.numbers(y), x, inputs.numbers + 1, **inputs.spec)
        except AssertionError as error:
            yield Failure.of(error, context="positions were written since the last call")


def _changed_settings(j: Judge, watched: Watched, before: None) -> Iterator[str]:
    """Call again under unusual settings, as a call may set one to its usual value."""
    if not j.budget.watches(watched.seed, 0, at_most_one_in=3):
        return
    # `settings` predates the first call, which may have changed them for good.
    changed = changes(j.settings, j.lib.defaults())
    for second_values in (False, True):
        with unusual_settings(second_values):
            state = j.lib.state()
            call_unguarded(j, watched.inputs.x, watched.inputs.pos, watched.inputs.spec)
            changed |= changes(state, j.lib.state())
    if watched.seed == 0 and (settings := j.lib.unusual()) is not None:
        with ThreadPoolExecutor(1) as pool:  # a thread that has no settings of its own yet
            changed |= pool.submit(_changed_under, j, watched.inputs, settings).result()
    if changed:
        yield f"the call changed {', '.join(changed)}"


def _changed_under(j: Judge, inputs: CallInputs, settings: AbstractContextManager[Any]) -> dict[str, None]:
    """Call under other settings of the library; return the settings that the call changes."""
    with settings:
        before = j.lib.defaults()
        with suppress(Exception):  # it need not take x there
            call_unguarded(j, inputs.x, inputs.pos, inputs.spec)
        return changes(before, j.lib.defaults())


OBSERVERS = (
    Observer(
        "inputs_unchanged",
        "Neither x nor pos is written: in any dtype, of any size, with any field, in a tuple.",
        _bits_of_inputs, _written_inputs, ("keeps_x",),
    ),
    Observer(
        "neighbours_unchanged",
        "The memory around x is not written if x, of any number of axes, is a view of a larger array.",
        _bits_around_x, _written_around_x, ("strides", "keeps_x"),
    ),
    Observer(
        "no_aliasing",
        "A result shares no memory with x or with another result, even if nothing is rotated.",
        _nothing, _shared, ("keeps_x",),
    ),
    Observer(
        "results_are_writable", "A result of NumPy is not read-only, whatever x is.", _nothing, _read_only
    ),
    Observer(
        "results_without_overlap",
        "Each element of a result has its own memory: no result is broadcast, even if x or positions are.",
        _nothing, _overlapping,
    ),
    Observer(
        "same_bits",
        "A row has the same bits in a second call, in every slice, batch and tuple, with any strides, and "
        "for any shape of positions.",
        _nothing, _other_bits,
    ),
    Observer(
        "settings_unchanged",
        "A call does not change settings of the process or library: error handling, random state, threads.",
        _nothing, _changed_settings,
    ),
    Observer(
        "results_may_be_written",
        "Writing into a result changes neither x, positions, an earlier result nor the next call: no result "
        "shares memory with a cached table.",
        _nothing, _shared_with_tables, ("keeps_x",),
    ),
    Observer("results_are_kept", "No later call writes to a result.", _kept_results, _written_results),
    Observer(
        "positions_written_in_place",  # the last one, as it writes them
        "An array of positions that was written since the last call is read again.",
        _nothing, _read_again, ("any_positions", "values"),
    ),
)  # fmt: skip
OBSERVED_CHECKS = tuple(observer.check for observer in OBSERVERS)


# ---- the call ----


def check_call(j: Judge, call: CallFactors, seed: int = 0) -> bool:
    """Make a call, watch it and judge it; return False if the target refused it."""
    if call.gradient:
        return check_gradient(j, call, seed)
    alive = watch_call(j, call, seed, make(j, call, seed))
    if alive is None:
        return False
    if j.releases and any(is_alive() for is_alive in alive):
        gc.collect()
        if any(is_alive() for is_alive in alive):
            keep_fault(j, "x_is_released", "x stays in memory after the call", call)
        j.releases = False
    return True


def watch_call(j: Judge, call: CallFactors, seed: int, inputs: CallInputs) -> list[Callable[[], bool]] | None:
    """Call, watch and judge; return functions that tell whether each x is in memory, None if refused."""
    observers = [
        observer for observer in OBSERVERS if j.claims(*observer.needs) and observer.check not in j.observed
    ]
    before = [observer.before(j, inputs) for observer in observers]
    try:
        y = j.call(inputs.x, inputs.pos, **inputs.spec)
    except Declined:
        return None
    results = results_of(j, inputs, y)
    numbers = [j.numbers(y) for y in results] if j.claims("values") and j.budget.judges_values else []

    def again() -> tuple[Any, ...]:
        return results_of(j, inputs, j.call(inputs.x, inputs.pos, **inputs.spec))

    watched = Watched(call, seed, inputs, results, again)
    for observer, state in zip(observers, before, strict=True):
        for fault in observer.after(j, watched, state):
            keep_fault(j, observer.check, fault, call)
    for values, x in zip(numbers, inputs.xs, strict=False):
        j.check_values(values, x, inputs.numbers, **inputs.spec)
        if call.numbers in ("nan", "infinity"):
            j.check_nonfinite(values, x.values, inputs.spec)
    return [j.lib.watch(x.array) for x in inputs.xs]


def results_of(j: Judge, inputs: CallInputs, y: Any) -> tuple[Any, ...]:
    """Return the results of a call, one for each array; assert their type, shape, dtype and device."""
    if inputs.in_tuple:
        assert isinstance(y, tuple | list), f"a tuple gives a {type(y).__name__}"
        assert len(y) == len(inputs.xs), f"a tuple of {len(inputs.xs)} arrays gives {len(y)}"
    results = tuple(y) if inputs.in_tuple else (y,)
    for array, x in zip(results, inputs.xs, strict=True):
        in_other_bytes = j.lib.dtype_of(array) == j.lib.dtype_of(x.array)  # the byte order of x is right, too
        j.check_kind(array, x._replace(dtype=j.lib.dtype_of(array)) if in_other_bytes else x)
    return results


def judge_results(j: Judge, inputs: CallInputs, y: Any) -> list[Floats]:
    """Judge the results of a made call, their kind and values; return their numbers."""
    results = [j.numbers(array) for array in results_of(j, inputs, y)]
    for numbers, x in zip(results, inputs.xs, strict=True):
        j.check_values(numbers, x, inputs.numbers, **inputs.spec)
    return results


def rotated(j: Judge, inputs: CallInputs) -> list[Floats]:
    """Make a call and judge it; return the numbers of its results."""
    return judge_results(j, inputs, j.call(inputs.x, inputs.pos, **inputs.spec))


def check_kind_of(j: Judge, call: CallFactors, seed: int = 0) -> bool:
    """Make a call, and judge the kind of its results only; return False if the target refused it."""
    inputs = make(j, call, seed)
    try:
        results_of(j, inputs, j.call(inputs.x, inputs.pos, **inputs.spec))
    except Declined:
        return False
    return True


def call_unguarded(j: Judge, x: Any, pos: Any, spec: dict[str, Any]) -> None:
    """Call as `Judge.call` does, and leave NumPy's error handling as the call leaves it."""
    spec = j.fit(spec)
    j.target.call(j.begin_call(x, pos, spec), pos, **spec)


def keep_fault(j: Judge, check: str, fault: str | Failure, call: CallFactors) -> None:
    """Keep the first fault that an observer sees, for its check to report."""
    fault = Failure(fault) if isinstance(fault, str) else fault
    j.observed.setdefault(check, Failure.of(fault, call=call.text(j.plain)))
