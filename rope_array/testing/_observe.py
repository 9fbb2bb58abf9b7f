"""Make a call, watch all that it may change, and judge the result.

Each observer watches one thing at every call of every row. A fault that it sees does not fail the row: it is
kept, and fails the observer's own check, so that a report names each fault once.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, suppress
from typing import Any, NamedTuple

import numpy as np

from . import _watch
from ._call import Made, make, plain_call, with_layout
from ._factors import Call
from ._gradients import check_gradient
from ._judge import Judge
from ._own import Declined
from ._settings import changes, unusual_settings
from ._verdict import Fault
from ._where import difference

# Results that are kept, to see whether a later call writes to them.
_MOST_KEPT = 8


class Watched(NamedTuple):
    """A call that was made: its arguments, its results, and a way to repeat it."""

    call: Call
    seed: int
    made: Made
    results: tuple[Any, ...]
    again: Callable[[], tuple[Any, ...]]


class Observer(NamedTuple):
    """One thing to watch.

    Attributes
    ----------
    check
        The check that reports it.
    requirement
        The requirement, in a sentence.
    before
        Returns what to compare with after the call.
    after
        Yields faults.
    needs
        The capabilities without which the observer does not apply.
    """

    check: str
    requirement: str
    before: Callable[[Judge, Made], Any]
    after: Callable[[Judge, Watched, Any], Iterator[str | Fault]]
    needs: tuple[str, ...] = ()


# ---- the observers ----


def _is_chosen(j: Judge, watched: Watched, turn: int, least: int = 1) -> bool:
    """Return whether a costly observer watches a call; of the calls for observers, at most one in `least`."""
    if not j.watched_every:
        return False
    every = j.watched_every if j.judges_values else max(j.watched_every, least)
    return watched.seed % every == turn % every


def _nothing(j: Judge, made: Made) -> None:
    """Observe results only."""


def _bits_of_inputs(j: Judge, made: Made) -> list[tuple[str, Any, bytes]]:
    names = [f"array {i} of {len(made.xs)}" for i in range(len(made.xs))] if len(made.xs) > 1 else ["x"]
    named = [*zip(names, (x.array for x in made.xs), strict=True), ("pos", made.pos)]
    return [(name, array, j.lib.snapshot(array)) for name, array in named if j.lib.owns(array)]


def _written_inputs(j: Judge, watched: Watched, before: list[tuple[str, Any, bytes]]) -> Iterator[str]:
    yield from (f"{name} was written" for name, array, bits in before if j.lib.snapshot(array) != bits)


def _bits_of_wholes(j: Judge, made: Made) -> list[tuple[Any, bytes]]:
    return [(whole, j.lib.snapshot(whole)) for whole in made.wholes]


def _written_wholes(j: Judge, watched: Watched, before: list[tuple[Any, bytes]]) -> Iterator[str]:
    if any(j.lib.snapshot(whole) != bits for whole, bits in before):
        yield "memory around x was written"


def _shared(j: Judge, watched: Watched, before: None) -> Iterator[str]:
    xs, ys = [x.array for x in watched.made.xs], watched.results
    for i, y in enumerate(ys):
        for name, others in (("result", ys[:i]), ("x", xs)):
            if any(y is other for other in others):
                yield f"a result is {'another result' if name == 'result' else 'x itself'}"
            elif any(j.lib.shares_memory(y, other) for other in others):
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


def _kept_results(j: Judge, made: Made) -> list[tuple[Any, bytes]]:
    return j.kept


def _written_results(j: Judge, watched: Watched, kept: list[tuple[Any, bytes]]) -> Iterator[str]:
    if any(j.lib.snapshot(y) != bits for y, bits in kept):
        kept.clear()
        yield "a later call wrote to an earlier result"
    # A lazy result has no memory yet.
    kept.extend((y, j.lib.snapshot(y)) for y in watched.results if not j.lib.is_lazy(y))
    # Drop some of the first half, so that old results stay beside new ones.
    while len(kept) > _MOST_KEPT:
        del kept[watched.seed % (_MOST_KEPT // 2)]


def _shared_with_tables(j: Judge, watched: Watched, before: None) -> Iterator[str]:
    """Write into results, and look at x, positions, an earlier result and the next call."""
    if not _is_chosen(j, watched, 1):
        return
    inputs, first = _bits_of_inputs(j, watched.made), watched.results
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
    for results in (second, first):  # the first result may be the cached one
        written = all([j.lib.overwrite(y) for y in results])
        if written and [j.lib.snapshot(y) for y in watched.again()] != bits:
            yield f"{text} the next call"


def _other_bits(j: Judge, watched: Watched, before: None) -> Iterator[str]:
    """Compare with a second call, and with calls of a part of the rows, heads or batches."""
    call, made = watched.call, watched.made
    if not _is_chosen(j, watched, 2) or not j.claims("values"):
        return
    whole = [j.numbers(y) for y in watched.results]
    again = [j.numbers(y) for y in watched.again()]
    yield from _differing(again, whole, "have other bits in a second call")
    if not j.claims("same_bits"):
        return
    for text, index, pos in _parts_of_call(j, call, made):
        for x, expected in zip(made.xs, whole, strict=True):  # alone, if the call has a tuple
            part = j.array(x.values[index], x.dtype)
            if j.lib.dtype_of(x.array) != x.dtype:  # other code may serve the other byte order
                part, _ = with_layout(j, part, "the_other_byte_order")
            y = j.try_call(part, pos, **made.spec)
            if y is not None:
                yield from _differing([j.numbers(y)], [expected[index]], f"have other bits {text}")


def _differing(got: list[Any], expected: list[Any], text: str) -> Iterator[str]:
    for one, other in zip(got, expected, strict=True):
        if found := difference(np.nan_to_num(one), np.nan_to_num(other), text):
            yield found


def _parts_of_call(j: Judge, call: Call, made: Made) -> Iterator[tuple[str, Any, Any]]:
    """Yield a phrase, the index of a part of x, and positions for the part."""
    if len(call.rows) != 3 or call.seq_axis is not None or 0 in call.rows or j.is_slow:
        return
    batches, heads, rows = call.rows
    yield "if x is contiguous and alone", np.s_[:], made.pos
    if call.positions == "S" and not call.axes and call.kind in j.lib.integers:
        some = slice(rows // 2, rows)
        yield "in a slice of the rows", np.s_[:, :, some], j.pos(made.numbers[some], call.kind)
        yield "with heads dropped", np.s_[:, heads // 2 :], made.pos
        yield "in a part of the batch", np.s_[batches // 2 :], made.pos
        if j.claims("batch_positions"):
            rows_of_each = np.broadcast_to(made.numbers, (batches, rows))
            yield "at positions of shape (B, S)", np.s_[:], j.pos(rows_of_each, call.kind)


def _read_again(j: Judge, watched: Watched, before: None) -> Iterator[Fault]:
    """Write to the positions, and judge the next call by them."""
    made = watched.made
    if not _is_chosen(j, watched, 3):
        return
    # Other dtypes may have no sum, or end at these positions.
    if watched.call.kind not in ("int64", "int32") or not j.lib.owns(made.pos):
        return
    last = min(j.target.reach, np.iinfo(watched.call.kind).max)
    if np.max(made.numbers, initial=0) >= last or not j.lib.overwrite(made.pos, made.pos + 1):
        return
    for y, x in zip(watched.again(), made.xs, strict=True):
        try:
            j.check_values_at(j.numbers(y), x, made.numbers + 1, **made.spec)
        except AssertionError as error:
            yield Fault.of(error, context="positions were written since the last call")


def _changed_settings(j: Judge, watched: Watched, before: None) -> Iterator[str]:
    """Call again under unusual settings, as a call may set one to its usual value."""
    if not _is_chosen(j, watched, 0, least=3):
        return
    # `settings` predates the first call, which may have changed them for good.
    changed = changes(j.settings, j.lib.defaults())
    for other in (False, True):
        with unusual_settings(other):
            state = j.lib.state()
            call_unguarded(j, watched.made.x, watched.made.pos, watched.made.spec)
            changed |= changes(state, j.lib.state())
    if watched.seed == 0 and (settings := j.lib.unusual()) is not None:
        with ThreadPoolExecutor(1) as pool:  # a thread that has no settings of its own yet
            changed |= pool.submit(_changed_under, j, watched.made, settings).result()
    if changed:
        yield f"the call changed {', '.join(changed)}"


def _changed_under(j: Judge, made: Made, settings: AbstractContextManager[Any]) -> dict[str, None]:
    """Call under other settings of the library; return the settings that the call changes."""
    with settings:
        before = j.lib.defaults()
        with suppress(Exception):  # it need not take x there
            call_unguarded(j, made.x, made.pos, made.spec)
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
        _bits_of_wholes, _written_wholes, ("strides", "keeps_x"),
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


# ---- the call ----


def check_call(j: Judge, call: Call, seed: int = 0) -> bool:
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


def watch_call(j: Judge, call: Call, seed: int, made: Made) -> list[Callable[[], bool]] | None:
    """Call, watch and judge; return functions that tell whether each x is in memory, None if refused."""
    observers = [each for each in OBSERVERS if j.claims(*each.needs) and each.check not in j.observed]
    before = [each.before(j, made) for each in observers]
    try:
        y = j.call(made.x, made.pos, **made.spec)
    except Declined:
        return None
    results = results_of(j, made, y)
    numbers = [j.numbers(each) for each in results] if j.claims("values") and j.judges_values else []

    def again() -> tuple[Any, ...]:
        return results_of(j, made, j.call(made.x, made.pos, **made.spec))

    watched = Watched(call, seed, made, results, again)
    for observer, state in zip(observers, before, strict=True):
        for fault in observer.after(j, watched, state):
            keep_fault(j, observer.check, fault, call)
    for values, x in zip(numbers, made.xs, strict=False):
        j.check_values_at(values, x, made.numbers, **made.spec)
        if call.numbers in ("nan", "infinity"):
            j.check_nonfinite(values, x.values, made.spec)
    return [j.lib.watch(x.array) for x in made.xs]


def results_of(j: Judge, made: Made, y: Any) -> tuple[Any, ...]:
    """Return the results of a call, one for each array, of the kind of each array."""
    if made.in_tuple:
        assert isinstance(y, tuple | list), f"a tuple gives a {type(y).__name__}"
        assert len(y) == len(made.xs), f"a tuple of {len(made.xs)} arrays gives {len(y)}"
    results = tuple(y) if made.in_tuple else (y,)
    for each, x in zip(results, made.xs, strict=True):
        in_other_bytes = j.lib.dtype_of(each) == j.lib.dtype_of(x.array)  # the byte order of x is right, too
        j.check_kind(each, x._replace(dtype=j.lib.dtype_of(each)) if in_other_bytes else x)
    return results


def check_kind_of(j: Judge, call: Call, seed: int = 0) -> bool:
    """Make a call, and judge the kind of its results only; return False if the target refused it."""
    made = make(j, call, seed)
    try:
        results_of(j, made, j.call(made.x, made.pos, **made.spec))
    except Declined:
        return False
    return True


def call_unguarded(j: Judge, x: Any, pos: Any, spec: dict[str, Any]) -> None:
    """Call as `Judge.call` does, and leave NumPy's error handling as the call leaves it."""
    spec, arrays = j.fit(spec), tuple(each.array for each in x) if type(x) is tuple else x.array
    _watch.calling(arrays, pos, spec)
    j.target.call(arrays, pos, **spec)


def keep_fault(j: Judge, check: str, fault: str | Fault, call: Call) -> None:
    """Keep the first fault that an observer sees, for its check to report."""
    fault = Fault(fault) if isinstance(fault, str) else fault
    j.observed.setdefault(check, Fault.of(fault, call=call.text(plain_call(j))))
