"""Memory of x and of results: whose it is, and for how long."""

import gc
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np

from rope_array.testing._call import make, make_at
from rope_array.testing._cover import field_specs
from rope_array.testing._factors import CallFactors
from rope_array.testing._failure import named
from rope_array.testing._judge import Input, Judge, check
from rope_array.testing._row import read_calls

_MIB = 2**20


# ---- results and x after the call ----


@check("memory")
def many_results_are_kept(j: Judge) -> None:
    """No result is written by later calls of its shape, 260 or with a field 16: no ring of buffers ends."""
    inputs = [make(j, j.plain.replace(rows=(1, 2, 3)), seed) for seed in range(2)]
    x, pos = [one.xs[0] for one in inputs], inputs[0].pos
    num_calls = 9 if j.lib.is_lazy(x[0].array) else 262
    for spec in j.budget.few(field_specs(j), 1):
        with named(f"with {spec}" if spec else ""):
            _check_kept(j, x, pos, min(num_calls, 18) if spec else num_calls, j.lib.snapshot, spec)


@check("memory")
def large_results_are_kept(j: Judge) -> None:
    """No result of 1 MiB or 16 MiB is written by later calls: large results share no buffer."""
    axes = [axis for axis in (1, 0) if "bh"[axis] not in j.target.looped]
    if not axes:  # too many calls: one for each batch and head
        return
    for size, count in ((_MIB, 9), (16 * _MIB, 3)):
        rows = min(16, j.target.reach + 1)
        lead = [1, 1, rows]
        lead[axes[0]] = size // (rows * 64 * (8 if j.dtype == "float64" else 4)) + 1
        numbers = np.random.default_rng(0).standard_normal(1009)  # repeated: drawing many takes long
        x = j.array(np.resize(numbers, (*lead, j.target.width_of(64))))
        pos = make(j, j.plain.replace(rows=(1, 1, rows))).pos
        _check_kept(j, [x, x._replace(array=-x.array)], pos, count, lambda y: _ends(j, y), {})


def _ends(j: Judge, y: Any) -> bytes:
    """Return the bits of the first and last batch and head of a large result."""
    return j.lib.snapshot(y[:1, :1, ...]) + j.lib.snapshot(y[-1:, -1:, ...])


def _check_kept(
    j: Judge, x: list[Input], pos: Any, count: int, bits: Callable[[Any], bytes], spec: dict[str, Any]
) -> None:
    kept = []
    with j.if_served():
        for i in range(count):
            y = j.call(x[i.bit_count() % 2], pos, **spec)  # no period: buffers of a ring get other numbers
            kept.append((y, bits(y)))
        for i, (y, before) in enumerate(kept):
            assert bits(y) == before, f"the result of call {i + 1} of {count} was written by a later call"


@check("memory", each_dtype=True)
def x_is_released(j: Judge, dtype: str) -> None:
    """Neither x nor a result is kept in memory after the caller has dropped both."""
    if fault := j.observed.get("x_is_released"):
        j.reported.add("x_is_released")
        raise fault
    for call in read_calls(j, "", "rotary_dim=8", "positions=BS", dtype=dtype):
        alive = [watched for seed in range(2) for watched in _called(j, call, seed)]
        if any(is_alive() for is_alive, _ in alive):
            gc.collect()
        kept = [name for is_alive, name in alive if is_alive()]
        with_it = call.text(j.plain)
        assert not kept, f"{' and '.join(dict.fromkeys(kept))} stays in memory after the call ({with_it})"


def _called(j: Judge, call: CallFactors, seed: int) -> list[tuple[Callable[[], bool], str]]:
    """Make a call; return functions that tell whether x and the result are in memory, with their names."""
    inputs = make(j, call, seed)
    with j.if_served():
        y = j.call(inputs.x, inputs.pos, **inputs.spec)
        j.lib.snapshot(y)
        return [(j.lib.watch(inputs.x.array), "x"), (j.lib.watch(y), "a result")]
    return []


@check("memory", "offset_positions", thorough=True)
def memory_does_not_grow(j: Judge) -> None:
    """Calls at new positions keep less memory than a result each: tables may be cached, nothing of x."""
    if not j.lib.name.startswith("numpy"):
        return  # NumPy reports its memory to Python; other libraries have allocators of their own
    (x,) = make_at(j, j.row(0, 32), rows=(4, 16, 32), width=64).xs
    tracemalloc.start()
    try:
        grown, calls = _grown(j, x, 40), 40
    finally:
        tracemalloc.stop()
    limit = calls * x.array.nbytes // 2
    assert grown < limit, f"{calls} calls keep {grown:,} bytes of memory; results have {x.array.nbytes:,}"


def _grown(j: Judge, x: Input, calls: int) -> int:
    """Return the growth of memory by calls at new positions, each with a new x."""
    before = 0
    for i in range(-5, calls):
        if i == 0:
            gc.collect()
            before = tracemalloc.get_traced_memory()[0]
        j.call(x.array.copy(), j.pos(j.row(32 * (i + 6), 32)))
    gc.collect()
    return tracemalloc.get_traced_memory()[0] - before
