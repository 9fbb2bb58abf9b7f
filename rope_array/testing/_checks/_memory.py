"""Memory of x and of results: whose it is, and for how long."""

import gc
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np

from rope_array.testing._checks._alone import field_specs
from rope_array.testing._checks._together import is_compiled
from rope_array.testing._judge import Input, Judge, check

_MIB = 2**20


def _specs(j: Judge) -> list[dict[str, Any]]:
    """Return fields for which an implementation might return memory that is not the result's own."""
    return [{}, *([{"rotary_dim": 8}, {"rotary_dim": 0}] if j.claims("rotary_dim") else [])]


@check(each_dtype=True)
def results_may_be_written(j: Judge, dtype: str) -> None:
    """Writing into a result changes neither x, positions, an earlier result nor the next call.

    A result that shares memory with a cached table does.
    """
    for spec in _specs(j):
        x, pos = j.x(dtype=dtype), j.pos(j.positions())
        before = j.lib.snapshot(x.array), j.lib.snapshot(pos)
        with j.if_served():
            other, y = j.call(x, pos, **spec), j.call(x, pos, **spec)
            earlier = j.lib.snapshot(other)
            if not j.lib.overwrite(y):
                return
            changed = f"with fields {spec}, writing into a result changes"
            assert j.lib.snapshot(x.array) == before[0], f"{changed} x"
            assert j.lib.snapshot(pos) == before[1], f"{changed} positions"
            assert j.lib.snapshot(other) == earlier, f"{changed} an earlier result"
            for result in (y, other):  # the first result may be the cached one
                j.lib.overwrite(result)
                assert j.lib.snapshot(j.call(x, pos, **spec)) == earlier, f"{changed} the next call"


@check(each_dtype=True)
def results_are_writable(j: Judge, dtype: str) -> None:
    """A result of NumPy is not read-only, whatever x is."""
    for spec in _specs(j):
        for x in _views(j, dtype):
            y = j.try_call(x, j.pos(j.positions()), **spec)
            assert y is None or j.lib.is_writable(y), f"the result is read-only (fields {spec})"


@check(each_dtype=True)
def results_without_overlap(j: Judge, dtype: str) -> None:
    """Each element of a result has its own memory: a result is not broadcast, even if x or positions are."""
    one = j.claims("broadcast_positions[scalar]", "any_positions")
    for x in _views(j, dtype):
        for pos in (j.positions(), *([np.array(3)] if one else [])):
            if (y := j.try_call(x, j.pos(pos))) is not None:
                shape, strides = tuple(y.shape), j.lib.strides_of(y)
                assert strides is None or not _overlaps(shape, strides), (
                    f"elements of the result share memory: it has shape {shape} and strides {strides}"
                )


def _views(j: Judge, dtype: str) -> list[Input]:
    """Return an array and, where strides are claimed, an array broadcast to batches and heads."""
    x = j.x(dtype=dtype)
    if not j.claims("strides"):
        return [x]
    one = j.x(1, 1, *x.values.shape[2:], dtype=dtype)
    values = np.broadcast_to(one.values, x.values.shape)
    return [x, Input(j.lib.expanded(one.array, values.shape), values, one.dtype)]


def _overlaps(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Return whether two elements have the same address."""
    places = np.zeros((1,) * len(shape), np.int64)
    for stride, index in zip(strides, np.ogrid[tuple(map(slice, shape))], strict=True):
        places = places + index * stride
    return bool(np.unique(places).size < places.size)


# ---- results and x after the call ----


@check()
def many_results_are_kept(j: Judge) -> None:
    """No result is written by later calls of its shape, 260 or with a field 16: no ring of buffers ends."""
    x = [j.x(1, 2, 3, 16, seed=seed) for seed in range(2)]
    most = 9 if j.lib.is_lazy(x[0].array) else 262
    for spec in field_specs(j)[: 1 if is_compiled(j) else None]:
        with j.part(f"with {spec}" if spec else ""):
            _check_kept(j, x, j.positions(3), min(most, 18) if spec else most, j.lib.snapshot, spec)


@check()
def large_results_are_kept(j: Judge) -> None:
    """No result of 1 MiB or 16 MiB is written by later calls: large results share no buffer."""
    axes = [axis for axis in (1, 0) if "bh"[axis] not in j.target.looped]
    if not axes:  # too many calls: one for each batch and head
        return
    for size, count in ((_MIB, 9), (16 * _MIB, 3)):
        rows = min(16, j.target.reach + 1)
        lead = [1, 1, rows]
        lead[axes[0]] = size // (rows * 64 * (8 if j.dtype == "float64" else 4)) + 1
        some = np.random.default_rng(0).standard_normal(1009)  # repeated: drawing many takes long
        x = j.array(np.resize(some, (*lead, j.target.width_of(64))))
        _check_kept(j, [x, x._replace(array=-x.array)], j.positions(rows), count, lambda y: _ends(j, y), {})


def _ends(j: Judge, y: Any) -> bytes:
    """Return the bits of the first and last batch and head of a large result."""
    return j.lib.snapshot(y[:1, :1, ...]) + j.lib.snapshot(y[-1:, -1:, ...])


def _check_kept(
    j: Judge, x: list[Input], numbers: Any, count: int, bits: Callable[[Any], bytes], spec: dict[str, Any]
) -> None:
    pos, kept = j.pos(numbers), []
    with j.if_served():
        for i in range(count):
            y = j.call(x[i.bit_count() % 2], pos, **spec)  # no period: buffers of a ring get other numbers
            kept.append((y, bits(y)))
        for i, (y, before) in enumerate(kept):
            assert bits(y) == before, f"the result of call {i + 1} of {count} was written by a later call"


@check(each_dtype=True)
def x_is_released(j: Judge, dtype: str) -> None:
    """Neither x nor a result is kept in memory after the caller has dropped both."""
    for spec in _specs(j):
        alive = _called(j, dtype, spec)
        if any(is_alive() for is_alive, _ in alive):
            gc.collect()
        kept = [name for is_alive, name in alive if is_alive()]
        assert not kept, f"{' and '.join(dict.fromkeys(kept))} stays in memory after the call (fields {spec})"


def _called(j: Judge, dtype: str, spec: dict[str, Any]) -> list[tuple[Callable[[], bool], str]]:
    """Call twice; return functions that tell whether x and the results are alive, with their names."""
    alive = []
    for seed in range(2):
        x = j.x(dtype=dtype, seed=seed)
        with j.if_served():
            y = j.run(x, j.positions(), **spec)
            j.lib.snapshot(y)
            alive += [(j.lib.watch(x.array), "x"), (j.lib.watch(y), "a result")]
    return alive


@check("offset_positions", thorough=True)
def memory_does_not_grow(j: Judge) -> None:
    """Calls at new positions keep less memory than a result each: tables may be cached, nothing of x."""
    if not j.lib.name.startswith("numpy"):
        return  # NumPy reports its memory to Python; other libraries have allocators of their own
    x = j.x(4, 16, 32, 64)
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
        j.run(x._replace(array=x.array.copy()), j.row(32 * (i + 6), 32))
    gc.collect()
    return tracemalloc.get_traced_memory()[0] - before
