"""The kernel rotates arrays of any shape and strides, and writes nothing else: random calls show most."""

import sys

import numpy as np
import pytest
from compare import assert_same
from conftest import TIMES
from native_cases import (
    DTYPES,
    F16,
    LEVELS,
    SPECS,
    THREADS,
    RoPE,
    by_array_api,
    check,
    copied,
    empty,
    in_pairs_of,
    kernel,
    normal,
)

from rope_array._array_api.source import Positions
from rope_array._backends import _native

pytestmark = pytest.mark.usefixtures("kernel_settings")


# Two parts of an array of shape (tokens, heads, width): of x and y, or of x, then of y. The kernel takes
# neighbours of few heads as one.
QK = np.s_[:5, :4], np.s_[:5, 4:6]
NEIGHBOURS = {
    "q and k": QK,
    "one head of k": (np.s_[:5, :4], np.s_[:5, 4:5]),
    "one head of q": (np.s_[:5, :1], np.s_[:5, 1:4]),
    "one head each": (np.s_[:5, :1], np.s_[:5, 1:2]),
    "one head each, apart": (np.s_[:5, :1], np.s_[:5, 7:8]),
    "no head of q": (np.s_[:5, :0], np.s_[:5, 1:4]),
    "a gap": (np.s_[:5, :4], np.s_[:5, 5:7]),
    "every other head": (np.s_[:5, :8:2], np.s_[:5, 8:12:2]),
    "every other head of q": (np.s_[:5, :4:2], np.s_[:5, 4:6]),
    "from the last head": (np.s_[:5, 5:1:-1], np.s_[:5, 1::-1]),
    "many heads": (np.s_[:5, :12], np.s_[:5, 12:20]),
    "one token": (np.s_[:1, :4], np.s_[:1, 4:6]),
    "features of q from the last": (np.s_[:5, :4, ::-1], np.s_[:5, 4:6]),
    "other tokens of x": (QK[0], np.s_[::2, 4:6], *QK),
    "other tokens of y": (*QK, QK[0], np.s_[::2, 4:6]),
    "other heads of y": (*QK, QK[0], np.s_[:5, 4:8:2]),
    "a gap in y": (*QK, QK[0], np.s_[:5, 5:7]),
}


@in_pairs_of(name=NEIGHBOURS)
def test_neighbours(level, dtype, name):
    rope, indices = RoPE(22, rotary_dim=20, rotary_start=1, pairing="half"), NEIGHBOURS[name]
    joint, out = normal((9, 20, 22), dtype), np.zeros((9, 20, 22), dtype)
    xs, ys = tuple(joint[index] for index in indices[:2]), tuple(out[index] for index in indices[-2:])
    pos = range(3, 3 + len(xs[0]))
    expected = by_array_api(rope, xs, pos, seq_axis=0)

    def with_results(array, places):
        array = array.copy()
        for index, y in zip(places, expected, strict=True):
            array[index] = y
        return array

    joint_expected, out_expected = with_results(joint, indices[:2]), with_results(out, indices[-2:])
    assert_same(rope.apply(xs, pos, seq_axis=0), expected, "new")
    assert_same(rope.apply(xs, pos, seq_axis=0, out=tuple(map(empty, xs))), expected, "neighbours in x")
    rope.apply(xs if len(indices) > 2 else copied(xs), pos, seq_axis=0, out=ys)
    assert_same(out, out_expected, "neighbours in y")
    rope.rotation(pos, like=joint).apply(xs, seq_axis=0, out=xs)
    assert_same(joint, joint_expected, "in place, by tables")


def test_neighbours_of_two_dtypes():
    """They have one item size, and the loop of each dtype rotates its own."""
    joint, out = normal((5, 6, 22), F16), np.zeros((5, 6, 22), F16)
    xs, ys = ((array[:, :4], array[:, 4:].view(DTYPES[-1])) for array in (joint, out))
    RoPE(22).apply(xs, range(5), seq_axis=0, out=ys)
    assert_same(ys, by_array_api(RoPE(22), xs, range(5), seq_axis=0))


def test_many_axes():
    shape = (2, 1, 2, 1, 3, 1, 2, 1, 1, 2, 5, 6)
    x = normal(shape, F16)
    transposed = x.transpose(4, 0, 2, 1, 3, 6, 5, 8, 7, 9, 10, 11)
    for pos_shape in [(), (5,), shape[:-1], (1,) * 10 + (5,), (2, 1, 2) + (1,) * 8]:
        check(RoPE(6), x, np.random.default_rng(3).integers(-99, 99, pos_shape), pos_shape)
    for axis in (0, 4, 6, -3):
        check(RoPE(6), transposed, np.arange(transposed.shape[axis]), axis, seq_axis=axis)
    x = normal((1,) * 61 + (2, 3, 4))  # as many as NumPy has; the array-api backend would add an axis
    few = x.reshape(2, 3, 4)
    for pos in (range(3), np.arange(6).reshape((1,) * 61 + (2, 3))):
        y = RoPE(4).apply(x, pos)
        assert_same(y.reshape(few.shape), by_array_api(RoPE(4), few, np.reshape(pos, np.shape(pos)[-2:])))


@pytest.fixture(scope="module")
def far():
    """More than 2^32 bytes of memory; the system allocates only written pages."""
    if sys.maxsize < 2**33:
        pytest.skip("the address space is too small")
    try:
        return np.empty(2**31 + 2**20, F16)
    except MemoryError:
        pytest.skip("the system cannot reserve this much memory")


def test_distances_beyond_32_bits(level, far):
    """Of rows, heads, features and positions."""
    as_strided, rope = np.lib.stride_tricks.as_strided, RoPE(6, pairing="half", out_pairing="interleaved")
    rows = as_strided(far, (5, 2**19), (2**30, 2))  # the last row starts 2^32 bytes in
    heads, features = as_strided(rows, (5, 2, 6), (2**30, 12, 2)), as_strided(far, (2, 4), (2, 2**30))
    places = [(rope, view) for view in (rows[:, :6], rows[::-1, 100:106], rows[:, 301:313:2], heads)]
    places += [(rope, heads.transpose(1, 0, 2)), (RoPE(4), features)]
    for rope, view in places:
        view[...] = x = normal(view.shape, F16)
        pos = range(view.shape[-2])
        expected = by_array_api(rope, x, pos)
        assert_same(rope.apply(view, pos), expected)
        if view.ndim == 2 and view.shape[0] == 5:
            assert_same(rope.apply(view, pos, out=rows[:, 1000:1006]), expected, "to another place")
        assert_same(rope.apply(view, pos, out=view), expected, "in place")
    x, pos = normal((2, 5, 6), F16), as_strided(far.view(np.int64)[2000:], (5,), (2**30,))
    pos[...] = [4, 3, 2, 1, 0]
    assert_same(RoPE(6).apply(x, pos), by_array_api(RoPE(6), x, [4, 3, 2, 1, 0]), "positions far apart")


@pytest.mark.nightly
def test_more_than_2_to_the_31_elements(monkeypatch):
    """Strides of 0: all rows are read from one row and written to one row, which keeps the last result."""
    monkeypatch.setenv(THREADS, "1")
    heads, length, width = 2**12, 2**13 + 1, 64
    assert heads * length * width > 2**31
    x, y, plan = normal(width, F16), np.zeros(width, F16), RoPE(width)._plan
    _native.prepare(plan)
    repeated = (np.lib.stride_tricks.as_strided(a, (heads, length, width), (0, 0, 2)) for a in (x, y))
    source = Positions(range(5, 5 + 3 * length, 3), plan)
    assert kernel.rotate(next(repeated), source, (-2,), next(repeated), checked=True) is not NotImplemented
    assert_same(y, by_array_api(RoPE(width), x, 5 + 3 * (length - 1)))


ROPES = [*SPECS.values()]


def placed(rng, dtype, shape, *, shared):
    """Return random values at random strides: the buffer, a mask of bytes outside the view, the view."""
    size, strides, reach = dtype.itemsize, [0] * len(shape), dtype.itemsize
    last = len(shape) - 1
    axes = [last, *rng.permutation(last)] if rng.random() < 0.6 else rng.permutation(last + 1)
    for a in axes:
        if shared and rng.random() < 0.15:
            continue
        step = reach + size * int(rng.choice([0, 0, 0, 1, 5]))
        strides[a] = step if rng.random() < 0.8 else -step
        reach = step * max(shape[a] - 1, 0) + reach
    low = sum(min(0, (n - 1) * s) for n, s in zip(shape, strides, strict=True) if n)
    high = sum(max(0, (n - 1) * s) for n, s in zip(shape, strides, strict=True) if n) + size
    start = 64 + int(rng.random() < 0.15) - low
    buffer = rng.integers(0, 256, 128 + high - low + 8, dtype=np.uint8)
    theirs = np.zeros(len(buffer), bool)
    view = np.ndarray(shape, dtype, buffer, start, strides)
    np.ndarray((*shape, size), bool, theirs, start, (*strides, 1))[...] = True
    if rng.random() < 0.8:  # otherwise keep the random bits
        view[...] = rng.standard_normal(shape).astype(dtype)
    return buffer, ~theirs, view


def random_positions(rng, shape, seq_axis):
    """Positions that line up with an x of this shape."""
    lead = [n for a, n in enumerate(shape[:-1]) if a != seq_axis]
    pos_shape = [*lead[: rng.integers(0, len(lead) + 1)], shape[seq_axis]] if rng.random() < 0.8 else []
    pos_shape = tuple(n if rng.random() < 0.8 else 1 for n in pos_shape)
    pos_kind = rng.choice(
        ["int", "range", "int8", "int16", "int32", "int64", "int64", "uint32", "float32", "float64"]
    )
    if pos_kind == "int":
        return int(rng.integers(-(2**62), 2**62))
    if pos_kind == "range":
        start, step = int(rng.integers(-(2**40), 2**40)), int(rng.choice([1, 1, 2, -1, -7, 2**33]))
        return range(start, start + step * shape[seq_axis], step)
    pos = np.zeros((), pos_kind)
    if pos_shape:
        _, _, pos = placed(rng, np.dtype(pos_kind), pos_shape, shared=True)
    if pos.dtype.kind == "f":
        pos[...] = rng.uniform(-1000, 1000, pos_shape)
    elif rng.random() < 0.5:
        pos[...] = rng.integers(0, 100, pos_shape)
    return pos


def run_random_call(rng):
    """Compare a call on one to three arrays with the array-api backend, and all memory around the result."""
    rope, ndim = ROPES[rng.integers(len(ROPES))], int(rng.integers(2, 6))
    shape = (*map(int, rng.choice([0, 1, 1, 2, 3, 4, 9], ndim - 1, p=[0.03, *[0.97 / 6] * 6])), rope.head_dim)
    seq_axis = int(rng.integers(0, ndim - 1))
    pos = random_positions(rng, shape, seq_axis)
    shapes = [shape] * int(rng.choice([1, 1, 1, 2, 3]))
    free = [a for a in range(ndim - 1) if a != seq_axis and np.ndim(pos) < 2]
    if len(shapes) > 1 and free:
        a = int(rng.choice(free))
        shapes[1] = (*shape[:a], 2, *shape[a + 1 :])
    dtypes = [DTYPES[i] for i in rng.integers(len(DTYPES), size=len(shapes))]
    mode = str(rng.choice(["none", "out", "in place"]))
    xs = [placed(rng, d, s, shared=mode != "in place") for s, d in zip(shapes, dtypes, strict=True)]
    outs = [placed(rng, d, s, shared=False) for s, d in zip(shapes, dtypes, strict=True) if mode == "out"]
    written = xs if mode == "in place" else outs
    before = [np.copy(buffer) for buffer, _, _ in (*xs, *outs)]
    arguments = tuple(x for _, _, x in xs)
    inverse = bool(rng.random() < 0.3)
    call_text = f"{rope!r}, {shapes}, {dtypes}, {pos!r}, {seq_axis=}, {mode}, {inverse=}"
    expected = by_array_api(rope, arguments, pos, seq_axis=seq_axis, inverse=inverse)
    into = tuple(y for _, _, y in written) or None
    if len(arguments) == 1 and rng.random() < 0.7:
        arguments, expected, into = arguments[0], expected[0], into and into[0]
    y = rope.apply(arguments, pos, seq_axis=seq_axis, inverse=inverse, out=into)
    assert into is None or y is into, call_text
    assert_same(y, expected, call_text)
    for old, (buffer, kept, view) in zip(before, (*xs, *outs), strict=True):
        kept = kept if any(view is w for _, _, w in written) else slice(None)
        assert (buffer[kept] == old[kept]).all(), f"written outside of the result: {call_text}"


@pytest.mark.parametrize("seed", range(8 * TIMES), ids="seed {}".format)
@pytest.mark.usefixtures("streamed")
def test_random_calls(seed):
    rng = np.random.default_rng(seed)
    for i in range(60):
        kernel.use_level(LEVELS[i % len(LEVELS)])
        run_random_call(rng)
