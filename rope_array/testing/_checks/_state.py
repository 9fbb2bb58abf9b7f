"""No call changes a later call, an earlier result, or the settings of the process."""

import logging
import sys
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from rope_array.testing._call import make, plain_call, spec_of
from rope_array.testing._contexts import fresh_call
from rope_array.testing._cover import OF_ANOTHER_SHAPE, field_specs, single_fields
from rope_array.testing._judge import Floats, Input, Judge, check
from rope_array.testing._observe import call_unguarded
from rope_array.testing._row import read_calls
from rope_array.testing._settings import changes, unusual_settings

# Calls: x, positions and fields.
CallList = list[tuple[Input, Any, dict[str, Any]]]
# Rows with the same ends, the same number in the middle, and mostly the same sum, in other orders.
_ALIKE = (
    [2, 3, 4, 5, 6, 7, 8], [2, 4, 3, 5, 6, 7, 8], [2, 6, 4, 5, 3, 7, 8],
    [2, 3, 7, 5, 6, 4, 8], [2, 3, 4, 5, 7, 6, 8], [2, 3, 4, 5, 6, 9, 8],
)  # fmt: skip
# Of the calls of several threads: JAX compiles some code at each call.
_MOST_SECONDS = 10.0
_SPECS = {"rotary_dim": 8, "pairing": "half", "inverse": True}


@check("any_positions")
def calls_at_like_positions(j: Judge) -> None:
    """Positions are distinguished by all of their numbers, not by their ends, sum or repr."""
    for four in ([2, 5, 7, 9], [2, 7, 5, 9], [2, 6, 6, 9]):
        j.check_call(j.x(1, 2, 4, 16), j.wrap(four))
    for seven in _ALIKE[: None if j.lib.calls >= 1000 else 3]:
        j.check_call(j.x(1, 2, 7, 16), j.wrap(seven))
        if j.claims("batch_positions"):
            j.check_call(j.x(2, 1, 7, 16), j.wrap([seven, _ALIKE[0]]))
            j.check_call(j.x(3, 1, 7, 16), j.wrap([_ALIKE[0], seven, _ALIKE[0]]))
    long, ordered = j.wrap(np.arange(1100) % 600), j.wrap(np.arange(300))
    for pos in (long, _turned(long, 300, 800), _turned(ordered, 100, 200)):
        j.check_call(j.x(1, 1, len(pos), 16), pos)


def _turned(values: np.ndarray, start: int, stop: int) -> np.ndarray:
    """Return values with a part of them in reverse order."""
    return np.concatenate([values[:start], values[start:stop][::-1], values[stop:]])


@check("any_positions", "batch_positions")
def calls_at_reshaped_positions(j: Judge) -> None:
    """Positions are distinguished by their shape: the same numbers as (2, 3) and as (3, 2)."""
    numbers = j.wrap([4, 8, 15, 16, 23, 30])
    for batch in (2, 3, 2):
        j.check_call(j.x(batch, 2, 6 // batch, 16), numbers.reshape(batch, -1))


@check("inv_freq")
def fields_written_in_place(j: Judge) -> None:
    """Frequencies in a list or array, or a scaling rule, written since the last call are read again."""
    x, pos = j.x(), j.positions()
    frequencies: Any = [0.5 + i for i in range(len(j.pairs()[0][0]))]
    if _takes(j, x, inv_freq=frequencies):
        frequencies[0] = 0.25
        with j.part("inv_freq was written since the last call"):
            j.check_call(x, pos, inv_freq=frequencies)
    for call in read_calls(j, "inv_freq=halving:float32"):
        inputs = make(j, call)
        with j.if_served():
            j.call(inputs.x, inputs.pos, **inputs.spec)
            if j.lib.overwrite(inputs.spec["inv_freq"].array, 0.75):
                y = j.call(inputs.x, inputs.pos, **inputs.spec)
                with j.part("an array of frequencies was written since the last call"):
                    j.check(y, inputs.x, inputs.numbers, inv_freq=[0.75] * len(inputs.spec["inv_freq"]))
    rule: dict[str, Any] = {"rope_type": "linear", "factor": 2.0}
    if j.claims("scaling") and _takes(j, x, scaling=rule):
        rule["factor"] = 5.0
        with j.part("scaling was written since the last call"):
            j.check_call(x, pos, scaling=rule)


def _takes(j: Judge, x: Input, **spec: Any) -> bool:
    """Call; return whether the call succeeds: a list may be refused, as jax.jit does."""
    try:
        j.run(x, j.positions(), **spec)
    except Exception:
        return False
    return True


@check("negative_positions", "any_positions")
def calls_far_and_near(j: Judge) -> None:
    """Tables that grow at both ends, for negative and positive positions in one call, are right each time."""
    far, depth = max(min(j.target.reach - 5, 5000), 1), min(j.target.depth, 5000)
    new = fresh_call(j, plain_call(j).replace(rows=(1, 2, 5)))
    x, spec = make(j, new).x, spec_of(j, new)
    for low, high in ((-(depth // 8), far // 8), (-1, 1), (-depth, far), (-depth // 2, 5)):
        with j.part("positions of both signs"):
            j.check_call(x, np.array([0, low, high, low + 1, high - 1]), **spec)


@check("narrow_positions", "any_positions")
def calls_at_positions_of_like_bits(j: Judge) -> None:
    """Positions are distinguished by their dtype: 253 of uint8 has the same bits as -3 of int8."""
    unsigned, signed, integers = np.array([3, 253, 2, 250]), np.array([3, -3, 2, -6]), np.array([3, 1, 2, 6])
    bits = integers.astype("float32").view("int32")  # beyond what float32 angles reach
    for values, dtype, capabilities in (
        (unsigned, "uint8", ["narrow_positions[uint8]"]),
        (signed, "int8", ["narrow_positions[int8]", "negative_positions"]),
        (integers.astype("float32"), "float32", ["float_positions[float32]"]),
        *([(bits, "int32", ["narrow_positions[int32]"])] if j.target.angles != "float32" else []),
    ):
        if j.claims(*capabilities) and values.max() <= j.target.reach and values.min() >= -j.target.depth:
            x = j.x(1, 2, 4, 16)
            with j.if_served():
                j.check(j.call(x, j.pos(values, dtype)), x, values)


def _refusals(j: Judge) -> list[tuple[Any, Any, dict[str, Any]]]:
    """Return calls that most code refuses: too many positions, or axes of them, an odd width, no pairing."""
    x, pos = j.x(), j.pos(j.positions())
    odd = Input(j.lib.asarray(x.values[..., 1:], j.dtype), x.values[..., 1:], j.dtype)
    return [
        (x, j.pos(j.row(3, 7)), {}),
        *([(x, pos, {"pairing": "none"})] if j.claims("pairing") else []),
        *([(odd, pos, {})] if j.width % 2 == 0 and not j.target.compiled else []),
        *([(x, pos, {"rotary_dim": 7})] if j.claims("rotary_dim") else []),
        (x, j.pos(np.zeros((5, 5, 5, 5, 5), int)), {}),
    ]


@check("offset_positions")
def calls_after_an_exception(j: Judge) -> None:
    """A call that raises leaves nothing behind: the next call is right, and settings are as before."""
    x, pos = j.x(), j.pos(j.positions())
    for refused in _refusals(j):
        before = j.lib.defaults()
        _raises(j, *refused)  # imports modules, which the next call does not
        lasting = {*changes(before, j.lib.defaults())}  # once changed, a second call may not change it again
        raised, changed = _watched(j, *refused)
        j.check(j.call(x, pos), x, j.positions())
        changed -= _watched(j, x, pos, {})[1]  # changed by every call
        changed -= {"environment variables"} if j.target.compiled else set()  # a compiler's own
        changed |= lasting
        assert not (raised and changed), f"a call that raises changed {', '.join(sorted(changed))}"
    for spec in () if j.is_slow else field_specs(j)[1:]:
        _raises(j, x, j.pos(j.row(3, 7)), spec)
        with j.part(f"after a call with {spec} that may raise"):
            j.check(j.call(x, pos), x, j.positions())


def _watched(j: Judge, x: Input, pos: Any, spec: dict[str, Any]) -> tuple[bool, set[str]]:
    """Call; return whether it raises, and the settings that it changes."""
    with unusual_settings():
        before = j.lib.state()
        raised = _raises(j, x, pos, spec)
        return raised, set(changes(before, j.lib.state()))


def _raises(j: Judge, x: Input, pos: Any, spec: dict[str, Any]) -> bool:
    level = logging.root.manager.disable
    logging.disable(logging.CRITICAL)  # compilers log errors
    try:
        call_unguarded(j, x, pos, spec)
    except Exception:
        return True
    finally:
        logging.disable(level)
    return False


@check("offset_positions")
def first_calls_under_other_settings(j: Judge) -> None:
    """The first call of a base or head_dim is right whatever the process's precision of decimals."""
    for spec in field_specs(j)[: 2 if j.is_slow else None]:
        new = (
            plain_call(j) if "inv_freq" in spec else fresh_call(j, plain_call(j))
        )  # as many as pairs of the usual head
        inputs = make(j, new)
        x, pos, array_pos, spec = inputs.x, inputs.numbers, inputs.pos, {**inputs.spec, **spec}
        with unusual_settings():
            y = j.try_call(x, array_pos, **spec)
        if y is not None:
            with j.part("under another precision of decimal, and other print options of NumPy"):
                j.check(y, x, pos, **spec)
            with j.part("after a call under another precision of decimal"):
                j.check_call(x, pos, **spec)


@check("threads", "offset_positions")
def threads(j: Judge) -> None:
    """Calls from several threads at once do not affect each other."""
    x = [j.x(1, 2, 5, 16, seed=i) for i in range(4)]
    pos = [j.row(start, 5) for start in (0, 7, 60, 200)]
    _check_at_once(j, [[(array, row, {})] for array, row in zip(x, pos, strict=True)], 25)


@check("threads", "offset_positions")
def threads_of_many_positions(j: Judge) -> None:
    """Calls at more positions than threads do not affect each other: no thread removes another's tables."""
    x = j.x(1, 2, 5, 16)
    calls: CallList = [(x, j.row(17 * i, 5), {}) for i in range(12)]
    times = 1 if j.lib.is_lazy(x.array) else 12
    _check_at_once(j, [[*calls[i:], *calls[:i]] for i in range(0, 12, 2)], times)


@check("threads", "offset_positions")
def threads_of_large_calls(j: Judge) -> None:
    """Large calls from several threads at once, which share no scratch memory, do not affect each other."""
    rows = min(120, j.target.reach + 1)
    for dtype in j.dtypes[: 1 if j.is_slow else None]:
        calls: CallList = [
            (j.x(1, 6, rows, 64, seed=i, dtype=dtype), j.row(start, rows), {})
            for i, start in enumerate((0, 33, 0, 20))
        ]
        _check_at_once(j, [[call] for call in calls], 8 if dtype == j.dtype else 4)


@check("threads", "offset_positions")
def threads_of_different_calls(j: Judge) -> None:
    """Calls of different shapes, dtypes and fields from several threads at once do not affect each other."""
    specs = [{name: value} for name, value in _SPECS.items() if j.claims(name)] or [{}]
    calls: CallList = []
    for i, start in enumerate((0, 7, 60, 200)):
        x = j.x(1, 2 + i % 2, 5 - i // 2, 16 + 16 * (i % 2), dtype=j.dtypes[i % len(j.dtypes)], seed=i)
        calls.append((x, j.row(start, 5 - i // 2), specs[i // 2 % len(specs)] if i % 2 else {}))
    _check_at_once(j, [[call] for call in calls], 25)


@check("threads", "offset_positions")
def threads_of_each_field(j: Judge) -> None:
    """Calls with each field, or positions of a batch, from two threads at once do not affect each other."""
    fields = [c for c in single_fields(j) if not any(getattr(c, name) for name in OF_ANOTHER_SHAPE)][1:]
    fields += [plain_call(j).replace(positions="BS")] if j.claims("batch_positions") else []
    for i, call in enumerate(fields[:1] if j.is_slow else fields):
        reach = j.target.reach
        large = call.replace(rows=(1, 2, min(1000, reach // 2 + 1)), dtype=j.dtypes[-(i % 2)])
        two_inputs = [
            make(j, large.replace(reach=min(far, reach)), seed) for seed, far in enumerate((90, 300))
        ]
        calls: CallList = [(inputs.x, inputs.numbers, inputs.spec) for inputs in two_inputs]
        times = 1 if j.lib.is_lazy(calls[0][0].array) else 20
        with j.part(f"with {call.text(plain_call(j))}"):
            _check_at_once(j, [[call] for call in calls], times)


@check("threads", "offset_positions")
def threads_while_tables_grow(j: Judge) -> None:
    """A call is right while another thread calls at positions far beyond it, for which tables may grow."""
    furthest = min(j.target.reach - 4, 59_000)
    for _ in range(1 if j.is_slow else 3):
        inputs = make(j, fresh_call(j, plain_call(j)))
        x, spec = inputs.x, inputs.spec
        near = 0
        for far in (furthest // 16, furthest // 4, furthest):
            if far > near:
                _check_while(j, x, near, far, spec)
                near = far


def _check_while(j: Judge, x: Input, near: int, far: int, spec: dict[str, Any]) -> None:
    """Judge calls of three threads at near positions while another thread calls at far ones."""
    rows = x.values.shape[-2]
    pos, beyond = j.row(near, rows), j.row(far, rows)
    with j.if_served():
        alone = j.rotated(x, pos, **spec)
        done = threading.Event()

        def grow() -> None:
            try:
                y = j.run(x, beyond, **spec)
            finally:
                done.set()
            j.check(y, x, beyond, **spec)

        def repeat() -> None:
            ended = False
            while not ended:
                ended = done.is_set()
                y = j.run(x, pos, **spec)
                if not np.array_equal(j.numbers(y), alone):
                    j.check(y, x, pos, **spec)

        _run_at_once(j, [grow, repeat, repeat, repeat])


def _check_at_once(j: Judge, calls: list[CallList], times: int) -> None:
    """Run each list of calls many times in its own thread, and judge every result."""
    alone: dict[int, Floats] = {}
    for x, pos, spec in (call for series in calls for call in series):  # compiled before the threads start
        with j.if_served():
            if id(pos) not in alone:
                alone[id(pos)] = j.rotated(x, pos, **spec)
    served = [[call for call in series if id(call[1]) in alone] for series in calls]
    times = min(times, _times_in_a_while(j, [call for series in served for call in series]))

    def repeat(series: CallList) -> None:
        for x, pos, spec in series * times:
            y = j.run(x, pos, **spec)
            if not np.array_equal(j.numbers(y), alone[id(pos)]):
                j.check(y, x, pos, **spec)

    _run_at_once(j, [partial(repeat, series) for series in served])


def _times_in_a_while(j: Judge, calls: CallList) -> int:
    """Return how often all calls can be repeated in `_MOST_SECONDS`, estimated from one call; at least 1."""
    before = time.perf_counter()
    for x, pos, spec in calls[:1]:
        j.run(x, pos, **spec)
    seconds = (time.perf_counter() - before) * len(calls)
    return max(1, int(_MOST_SECONDS / max(seconds, 1e-9)))


def _run_at_once(j: Judge, works: Sequence[Callable[[], None]]) -> None:
    """Run functions at once, each in its own thread; raise the first error."""
    errors: list[BaseException] = []
    start = threading.Barrier(len(works))

    def run(work: Callable[[], None]) -> None:
        try:
            with j.lib.running():
                start.wait()
                work()
        except BaseException as error:
            errors.append(error)

    threads, interval = (
        [threading.Thread(target=run, args=(work,)) for work in works],
        sys.getswitchinterval(),
    )
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    if errors:
        raise errors[0]
