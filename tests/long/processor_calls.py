"""Calls that reach every loop of the C++ kernel, and hashes of their results, for tests/long/processors.py.

    python tests/long/processor_calls.py HASHES.json [CALLS.bin]

writes a hash for each layout and dtype: of the results of the backend array-api, and of the kernel at each
level, by one thread, and by three that stream their results. With a second path it records the calls for
tests/long/replay.cpp.
"""

import hashlib
import itertools
import json
import os
import struct
import sys
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

import rope_array as ra
from rope_array._array_api.norm import ROUNDINGS
from rope_array._array_api.source import Positions, Tables
from rope_array._backends import _native

sys.path.append(str(Path(__file__).resolve().parents[1]))
from oracle import GOLDEN
from ropes import SEVERAL, SPECS

# In the order of DType in kernel.hpp, and of the integers after it in array_view.hpp.
DTYPES = [np.dtype(dtype) for dtype in ("float32", "float64", "float16", ml_dtypes.bfloat16)]
INTEGERS = [np.dtype(np.int32), np.dtype(np.int64)]
# The golden files have heads of a few pairs; these have more pairs than a register has, and axes.
ROPES = {"wide": ra.RoPE(134), "wide half": ra.RoPE(128, pairing="half"), **SPECS, **SEVERAL}


class Call(NamedTuple):
    x: Any
    source: Any  # as the kernel takes it
    out: Any = None  # None for x itself
    transposed: bool = False
    expected: Any = None  # by the backend array-api
    norm: Any = None  # the rope, the weight and the rounding of `attention_inputs`


def ropes():
    """Yield the name and the rope of each layout: of the golden files, and of ROPES."""
    for path in sorted(GOLDEN.glob("*.json")):
        for case in json.loads(path.read_text("utf-8"))["cases"]:
            fields = case["fields"]
            if "inv_freq" in fields:
                fields["inv_freq"] = tuple(fields["inv_freq"])
            yield f"{path.stem}, {case['name']}", ra.RoPE(**{"head_dim": 16, **fields})
    yield from ROPES.items()


def numbers(shape, dtype, seed):
    """Return normal numbers; in one row of five, the limits of the dtype, NaN and infinity."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(shape).astype(dtype)
    limits = ml_dtypes.finfo(dtype)
    special = [0.0, -0.0, np.nan, np.inf, -np.inf, limits.max, limits.tiny, -limits.smallest_subnormal]
    special += [limits.tiny / 2, -limits.tiny * 0.75, limits.max / 2]
    rows = x.reshape(-1, x.shape[-1])[::5]
    rows[...] = rng.choice(np.array(special, dtype), rows.shape)
    return x


def spread(x):
    """Return a copy of x whose features are two apart, at an address that no element is aligned to."""
    buffer = np.zeros(2 * x.nbytes + 1, np.uint8)
    strides = tuple(2 * step for step in np.empty(x.shape, x.dtype).strides)
    view = np.ndarray(x.shape, x.dtype, buffer, 1, strides)
    view[...] = x
    return view


def calls(rope, dtype):
    """Yield calls of one layout and dtype, each with the result of the backend array-api."""
    rng = np.random.default_rng(rope.head_dim)
    last = (rope.axes.count,) if rope.axes else ()
    far = rng.integers(-(2**31), 2**31, (2, 5, *last))
    uneven = np.cumsum(np.repeat(rng.integers(-(2**40), 2**40, (10, *last)), 11, 0), 0)
    steps = np.arange(101 * max(1, *last, 0), dtype=np.int32).reshape(101, *last) - 50
    ends = np.resize(np.array([2**63 - 1, -(2**63), 0, 5, 2**62, -1, 2**32 - 1]), (7, *last))
    heads, rows = numbers((2, 3, 5, rope.head_dim), dtype, 1), numbers((101, rope.head_dim), dtype, 2)
    cases = [
        (heads, far),
        (heads[:, :1], far),
        (heads[:, ::-1, ::-1], far[:1]),
        (spread(heads), far.astype(np.int32)),
        (rows, steps),
        (np.moveaxis(numbers((101, 2, rope.head_dim), dtype, 4), 0, 1), steps),
        (np.resize(rows, (110, rope.head_dim)), uneven),
        (numbers((2, 7, rope.head_dim), dtype, 3), ends),
        (heads, far / 8),
        (rows, (steps * 0.25).astype(np.float32)),
    ]
    if not last:
        cases += [(heads, range(2**63 - 6, 2**63 - 1)), (heads[0, 0, 0], -(2**63))]
    plan = rope._plan
    if rope.head_dim > 64:  # tiles for three threads
        x, pos = np.resize(rows, (2, 600, rope.head_dim)), np.resize(steps, (600, *last))
        yield called(x, Positions(pos, plan), rope.apply(x, pos, backend="array-api"), in_place=True)
    for x, pos in cases:
        yield called(x, Positions(pos, plan), rope.apply(x, pos, backend="array-api"))
        inverse = rope.apply(x, pos, inverse=True, backend="array-api")
        yield called(x, Positions(pos, plan.inverse), inverse, in_place=True)
        tables = rope.rotation(pos, like=x, backend="array-api")
        gradient = tables.adjoint()
        yield called(x, Positions(pos, plan), gradient.apply(x, backend="array-api"), transposed=True)
        for form in (tables, tables.inverse(), gradient):
            yield called(x, Tables(form.cos, form.sin, form.layout), form.apply(x, backend="array-api"))
    weight = numbers((2, rope.head_dim), dtype, 5)[1]
    for (x, pos), rounding in itertools.product((cases[0], cases[4], cases[8]), ROUNDINGS):
        normed = called(x, Positions(pos, plan), None)._replace(norm=(rope, weight, rounding))
        yield normed._replace(expected=with_norm(normed, "array-api"))


def with_norm(call, backend):
    """Return normed and rotated heads."""
    rope, weight, rounding = call.norm
    options = {"norm": (weight, None), "rounding": rounding, "backend": backend}
    return ra.attention_inputs(call.x, None, call.source.values, rope, **options)[0]


def called(x, source, expected, in_place=False, transposed=False):
    return Call(x, source, None if in_place else np.zeros_like(x), transposed, expected)


def bits(y):
    """Return the bytes of a result with one pattern for every NaN: processors choose its sign and payload."""
    y = np.array(y)
    y[y != y] = np.nan
    return y.tobytes()


def by_kernel(call):
    """Return the kernel's result, in new memory."""
    if call.norm is not None:
        return with_norm(call, "native")
    x = np.array(call.x) if call.out is None else call.x
    out = x if call.out is None else np.empty_like(call.out)
    if isinstance(call.source, Positions):
        _native.prepare(call.source.plan)
    y = _native.kernel.rotate(x, call.source, (-2,), out, True, call.transposed)
    assert y is out, f"the kernel declines {call}"
    return y


def digest(results):
    return hashlib.sha256(b"".join(map(bits, results))).hexdigest()[:16]


def hashes(groups, result):
    """Return a hash of the results of each group."""
    return {name: digest(map(result, group)) for name, group in groups.items()}


def sizes(groups):
    """Return the dtype and the number of elements of each result."""
    return {name: [(call.x.dtype.name, call.x.size) for call in group] for name, group in groups.items()}


def replayed(path, names, groups):
    """Yield the name and the hashes of each run in the results of replay.cpp; `groups` is of `sizes`."""
    memory, at = np.memmap(path, np.uint8, "r"), 0

    def next_result(call):
        nonlocal at
        dtype = next(dtype for dtype in DTYPES if dtype.name == call[0])
        begin, at = at, at + call[1] * dtype.itemsize
        return memory[begin:at].view(dtype)

    for name in names:
        yield name, hashes(groups, next_result)
    assert at == memory.size, "the results are not of these calls"


def all_hashes(groups):
    """Return the hashes of the backend array-api, and of the kernel by level and by one thread or three."""
    done = {"array-api": hashes(groups, lambda call: call.expected)}
    kernel = _native.kernel
    for level, streams in itertools.product(kernel.level_names(), (False, True)):
        kernel.use_level(level)
        os.environ["ROPE_ARRAY_NUM_THREADS"] = "3" if streams else "1"
        kernel.stream_from(1 if streams else 2**62)
        kernel.share_out_from(1 if streams else 2**62)
        done[f"{level}{', streamed' if streams else ''}"] = hashes(groups, by_kernel)
    return done


# ---- the record for replay.cpp: 64-bit words, little-endian ----


def view_words(array):
    """Return a view: its dtype, itemsize, shape, strides, the offset of element 0, and its memory."""
    low, high = np.lib.array_utils.byte_bounds(array)
    address = array.__array_interface__["data"][0]
    start = low // 64 * 64  # keeps the alignment
    memory = bytearray(high - start)
    copy = np.ndarray(array.shape, array.dtype, memory, address - start, array.strides)
    copy[...] = array
    dtype = [*DTYPES, *INTEGERS].index(array.dtype)
    words = [dtype, array.itemsize, array.ndim, *array.shape, *array.strides, address - start, len(memory)]
    return struct.pack(f"<{len(words)}q", *words) + memory + bytes(-len(memory) % 8)


def call_words(call):
    """Return one call: the plan, the source, x and where to write."""
    source = call.source
    is_tables = isinstance(source, Tables)
    layout = source.layout.transposed(source.layout.amplitude) if call.transposed else source.layout
    plan = _native.plan_words(layout, None if is_tables else source.plan, call.transposed)
    values = None if is_tables else source.values
    spaced = []
    if type(values) is range:
        spaced = [values.start, values.step, len(values)]
    elif type(values) is int:
        spaced = [values, 0, -1]
    words = [len(plan), *plan, call.out is None, len(spaced), *spaced]
    views = [] if spaced else [source.cos, source.sin] if is_tables else [source.values]
    arrays = [*views, call.x, *([] if call.out is None else [call.out])]
    if call.norm is not None:
        _, weight, rounding = call.norm
        arrays.append(weight.astype(np.promote_types(weight.dtype, np.float32)))
        words += [1 + ROUNDINGS.index(rounding)]
    else:
        words += [0]
    return struct.pack(f"<{len(words) + 1}q", *words, len(views)) + b"".join(map(view_words, arrays))


def main():
    path, *record = map(Path, sys.argv[1:])
    groups = {f"{name}, {dtype}": [*calls(rope, dtype)] for name, rope in ropes() for dtype in DTYPES}
    path.write_text(json.dumps({"runs": all_hashes(groups), "sizes": sizes(groups)}), "utf-8")
    for out in record:
        every = [call for group in groups.values() for call in group]
        out.write_bytes(struct.pack("<q", len(every)) + b"".join(map(call_words, every)))


if __name__ == "__main__":
    with np.errstate(all="ignore"):
        main()
