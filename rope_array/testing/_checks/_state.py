"""No call changes a later call, an earlier result, or the settings of the process."""

import sys
import threading
from typing import Any

import numpy as np

from rope_array.testing._judge import Input, Judge, check


@check("base", "pairing", "rotary_dim")
def calls_in_turn(j: Judge) -> None:
    """A call depends on its own spec, shape, dtype and positions only, not on earlier calls."""
    specs: list[dict[str, Any]] = [{"base": 500.0}, {"pairing": "half"}, {"rotary_dim": 8}]
    specs += [{"base": 500.0, "rotary_dim": 8}, {}]
    for _ in range(2):
        for i, spec in enumerate(specs):
            x = j.x(2, 3, 5 - i % 2, 16 + 8 * (i % 2), dtype=j.dtypes[i % len(j.dtypes)], seed=i)
            j.check_call(x, j.positions(5 - i % 2), **spec)


@check("offset_positions")
def calls_at_other_positions(j: Judge) -> None:
    """The same shape at other positions is another rotation: no cache leaves positions out of its key."""
    x: Input = j.x(1, 2, 4, 8)
    for start in (0, 7, 0, 100):
        j.check_call(x, j.row(start, 4))


@check("any_positions")
def calls_at_like_positions(j: Judge) -> None:
    """Positions are distinguished by all of their numbers, not by their ends, sum or repr."""
    for four in ([2, 5, 7, 9], [2, 7, 5, 9], [2, 6, 6, 9]):
        j.check_call(j.x(1, 2, 4, 16), np.array(four))
    long = j.wrap(np.arange(1100) % 600)
    for pos in (long, np.concatenate([long[:300], long[300:800][::-1], long[800:]])):
        j.check_call(j.x(1, 1, 1100, 16), pos)


@check("any_positions", "batch_positions")
def calls_at_reshaped_positions(j: Judge) -> None:
    """Positions are distinguished by their shape: the same numbers as (2, 3) and as (3, 2)."""
    numbers = np.array([4, 8, 15, 16, 23, 30])
    for batch in (2, 3, 2):
        j.check_call(j.x(batch, 2, 6 // batch, 16), numbers.reshape(batch, -1))


@check("any_positions")
def positions_written_in_place(j: Judge) -> None:
    """An array of positions that was written since the last call is read again."""
    x, pos = j.x(), j.pos(np.arange(5))
    j.check(j.call(x, pos), x, np.arange(5))
    if j.lib.advance(pos):
        j.check(j.call(x, pos), x, np.arange(5) + 1)


@check(each_dtype=True)
def results_are_kept(j: Judge, dtype: str) -> None:
    """No later call writes to a result."""
    for rows in (5, 400 if j.target.reach > 400 else 5):
        first = j.x(2, 3, rows, 16, dtype=dtype)
        with j.if_served():
            y = j.run(first, j.row(3, rows))
            before = j.lib.snapshot(y)
            again = j.run(first, j.row(3, rows))
            j.run(j.x(2, 3, rows, 16, dtype=dtype, seed=1), j.row(3, rows))
            assert y is not again, "two calls return one array"
            assert not j.lib.shares_memory(y, again), "results of two calls share memory"
            assert j.lib.snapshot(y) == before, "a later call wrote to an earlier result"


@check()
def settings_unchanged(j: Judge) -> None:
    """A call does not change settings of the process: error handling, random state, default dtype."""
    random_state = np.random.get_state()  # noqa: NPY002 (the process's state)
    try:
        np.random.seed(int(np.random.default_rng().integers(2**31)))  # noqa: NPY002 (so that a seed shows)
        with np.errstate(all="warn"):
            before = j.lib.state()
            j.target.call(j.x().array, j.pos(j.positions()))
            after = j.lib.state()
    finally:
        np.random.set_state(random_state)  # noqa: NPY002
    changed = [name for name in before if before[name] != after[name]]
    # `settings` predates the first call, which may have changed them for good.
    changed += [name for name in j.settings if j.settings[name] != after[name]]
    assert not changed, f"the call changed {', '.join(dict.fromkeys(changed))}"


@check("threads", "offset_positions")
def threads(j: Judge) -> None:
    """Calls from several threads at once do not affect each other."""
    x = [j.x(1, 2, 5, 16, seed=i) for i in range(4)]
    pos = [j.row(start, 5) for start in (0, 7, 60, 200)]
    for one, row in zip(x, pos, strict=True):  # compile before the threads start
        j.check_call(one, row)
    errors: list[BaseException] = []
    start = threading.Barrier(len(x))

    def calls(i: int) -> None:
        try:
            with j.lib.thread():
                start.wait()
                for _ in range(25):
                    j.check_call(x[i], pos[i])
        except BaseException as error:
            errors.append(error)

    at_once = [threading.Thread(target=calls, args=(i,)) for i in range(4)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for thread in at_once:
            thread.start()
        for thread in at_once:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    if errors:
        raise errors[0]
