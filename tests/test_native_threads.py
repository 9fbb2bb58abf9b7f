"""The kernel has the same bits with any number of threads, with streamed results, and after a fork."""

import functools
import itertools
import os
import sys
import threading
import time

import child
import numpy as np
import pytest
from compare import assert_same
from native_cases import (
    F16,
    F32,
    F64,
    LEVEL,
    MIB,
    OF_OPENMP,
    THREADS,
    Axes,
    B,
    RoPE,
    by_array_api,
    case,
    each_level_and_thread_count,
    kernel,
    made,
    normal,
    uneven,
)
from threads import in_threads

pytestmark = pytest.mark.usefixtures("kernel_settings")

LARGE = {
    "one head": case((1, 1, 4099, 72)),
    "one head of coordinates": case((4099, 72), pos=uneven((4099, 3)), axes=Axes.chunked(12, 12, 12)),
    "one head of a cache line": case((10_073, 64), B, pairing="half"),
    "one head of gaps": case((2, 2201, 130), B, change=lambda x: x[:, :, 1:-1], head_dim=128),
    "odd head": case((9001, 67), B, rotary_dim=64, rotary_start=1, out_pairing="half"),
    "heads": case((2, 3, 301, 160), pairing="half"),
    "heads inside": case((2, 211, 11, 130), B, seq_axis=-3, pairing="half", out_pairing="interleaved"),
    "one position": case((1, 4099, 1, 144), F16, 7),
    "one position and one row": case((1, 700_000), F16, 7, head_dim=700_000, rotary_dim=64),
    "one token, one head": case((2801, 1, 1, 104), pos=np.arange(2801)[:, None] * 1000),
    "reversed features": case((3, 301, 320), change=lambda x: x[..., ::-1], out_pairing="half"),
    "transposed": case((602, 3, 320), F16, range(602), lambda x: x.transpose(1, 0, 2)),
    "Fortran order": case((2, 3, 301, 160), change=np.asfortranarray, pairing="half"),
    "Fortran order of many heads": case((9, 17, 67, 66), B, change=np.asfortranarray),
    "Fortran order of long heads": case((67, 4100), F64, change=np.asfortranarray, rotary_dim=4098),
    "some heads in Fortran order": case((5, 7, 701, 52), F16, change=lambda x: np.asfortranarray(x)[:3, :6]),
    "heads of two": case((131, 2100, 2), seq_axis=0),
    "broadcast": case((64, 33, 160), change=lambda x: np.broadcast_to(x[:1], x.shape)),
    "three heads of a few": case((3, 2, 200_000), rotary_dim=128),
    "many rows of positions": case((331, 2, 9, 52), pos=np.arange(331 * 9).reshape(331, 9)),
    "no pairs": case((4001, 77), rotary_dim=0),
}


def offset(shape, dtype, by):
    """Return a buffer of sevens, an index `by` elements after a cache line, and the view from there."""
    size = int(np.prod(shape))
    buffer = np.full(size + 256, 7, dtype)
    first = -(buffer.ctypes.data // dtype.itemsize) % (64 // dtype.itemsize) + by
    return buffer, first, buffer[first : first + size].reshape(shape)


@pytest.mark.parametrize("name", LARGE)
@pytest.mark.usefixtures("streamed")
def test_large_arrays(name, monkeypatch):
    """Streamed and not: into new memory, after an offset from a cache line, and in place."""
    rope, shape, dtype, pos, change, seq_axis = LARGE[name]
    x = made(shape, dtype, change)
    assert x.nbytes > MIB
    expected = by_array_api(rope, x, pos, seq_axis=seq_axis)
    for by, setting in enumerate(each_level_and_thread_count(monkeypatch)):
        assert_same(rope.apply(x, pos, seq_axis=seq_axis), expected, setting)
        buffer, first, out = offset(x.shape, dtype, by)
        assert_same(rope.apply(x, pos, seq_axis=seq_axis, out=out), expected, f"{setting}, {by} elements on")
        assert (buffer[:first] == 7).all()
        assert (buffer[first + out.size :] == 7).all()
        out[...] = x
        assert_same(rope.apply(out, pos, seq_axis=seq_axis, out=out), expected, f"{setting}, in place")
        y, out = np.copy(x, order="F"), np.empty(x.shape, dtype, order="F")
        assert_same(rope.apply(x, pos, seq_axis=seq_axis, out=out), expected, f"{setting}, to Fortran order")
        assert_same(rope.apply(y, pos, seq_axis=seq_axis, out=y), expected, f"{setting}, in place there")


@pytest.mark.usefixtures("streamed")
def test_large_tuples_and_tables(monkeypatch):
    xs = tuple(normal((2, h, 257, 96), d) for h, d in ((6, F32), (1, F64), (2, F16), (5, B), (3, F32)))
    xs = (*xs, normal((2, 1, 257, 192))[..., ::2])
    rope = RoPE(96, pairing="half", out_pairing="interleaved")
    rotation = rope.rotation(range(257), like=xs[1])
    expected, by_tables = by_array_api(rope, xs, range(257)), rotation.apply(xs, backend="array-api")
    for setting in each_level_and_thread_count(monkeypatch):
        assert_same(rope.apply(xs, range(257)), expected, setting)
        assert_same(rope.apply(xs[::2], range(257)), expected[::2], setting)
        assert_same(rotation.apply(xs), by_tables, setting)


def test_results_of_the_usual_sizes_are_streamed():
    """New arrays of 16 MiB, and of 64 MiB with runs of rows, whose pages are new too."""
    for shape, dtype in (((2, 8, 4099, 130), F16), ((1, 4, 32_801, 130), F32)):
        x = made(shape, dtype, None)
        y = RoPE(130, pairing="half").apply(x, range(shape[2]))
        for index in np.s_[:, :, :50], np.s_[:, :, -50:]:
            pos = range(shape[2])[index[2]]
            assert_same(y[index], RoPE(130, pairing="half").apply(x[index], pos, backend="array-api"))


def test_calls_from_eight_threads(monkeypatch):
    monkeypatch.setenv(THREADS, "3")
    rope = RoPE(64, pairing="half")
    xs = [normal(shape, d) for shape in ((2, 3, 64), (4, 300, 64), (8, 1100, 64)) for d in (F32, F16)]
    cases = [(x, range(x.shape[-2]), rope.apply(x, range(x.shape[-2]))) for x in xs]
    until = time.monotonic() + 0.3

    def hammer(first):
        for i in itertools.count(first):
            x, pos, expected = cases[i % len(cases)]
            assert_same(RoPE(64, pairing="half").apply(x, pos), expected)
            if time.monotonic() > until:
                return

    in_threads(hammer)


def runs_while_called(call, tries):
    """Return whether another thread runs during one of some calls, because the call releases the GIL."""
    for _ in range(tries):  # on a busy machine the thread seldom gets a processor during a call
        gate, ran = threading.Lock(), []
        gate.acquire()
        thread = threading.Thread(target=lambda gate=gate, ran=ran: ran.append(gate.acquire()))
        thread.start()
        time.sleep(0.01)  # until the thread waits for the lock
        gate.release()
        call()
        done = bool(ran)
        thread.join()
        if done:
            return True
    return False


def test_other_python_threads_run_during_a_large_call(monkeypatch, request):
    request.addfinalizer(functools.partial(sys.setswitchinterval, sys.getswitchinterval()))
    sys.setswitchinterval(1000.0)  # another thread runs only if the running thread releases the GIL
    monkeypatch.setenv(THREADS, "1")
    x, rope = np.zeros((4 * MIB // 64, 64), F32), RoPE(64)
    assert runs_while_called(lambda: rope.apply(x, range(len(x)), out=x), 500)
    if getattr(sys, "_is_gil_enabled", lambda: True)():
        assert not runs_while_called(lambda: None, 50)


FORKED = """
    import multiprocessing, os, signal, sys, threading
    import numpy as np, rope_array as ra
    from rope_array._backends import _native

    rope = ra.RoPE(64)
    x = np.resize(np.random.default_rng(0).standard_normal(10_007, np.float32), (9001, 64))
    _native.kernel.share_out_from(2**20)
    want = rope.apply(x, range(9001))  # starts threads
    assert (want == rope.apply(x, range(9001), backend="array-api")).all()

    def same():
        return all((rope.apply(x, range(9001)) == want).all() for _ in range(3))

    running, stop = threading.Event(), threading.Event()

    def hammer():
        while not stop.is_set():
            rope.apply(x, range(9001))
            running.set()

    thread = threading.Thread(target=hammer)
    thread.start()
    running.wait()
    children = []
    for _ in range(8):  # while another thread uses the kernel's threads
        child = os.fork()
        if not child:
            signal.alarm(30)
            grandchild = os.fork()
            good = same()
            if not grandchild:
                os._exit(0 if good else 1)
            os._exit(0 if good and os.waitpid(grandchild, 0)[1] == 0 else 1)
        children.append(child)
    codes = [os.waitpid(child, 0)[1] for child in children]
    stop.set()
    thread.join()
    assert codes == [0] * 8, codes
    for method in ("fork", "spawn"):
        with multiprocessing.get_context(method).Pool(2) as pool:
            ys = pool.starmap(rope.apply, [(x, range(9001))] * 4)
        assert all((y == want).all() for y in ys), method
    assert same()
    print("good")
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
def test_children_rotate_after_threads_were_started():
    assert child.run(FORKED, **{THREADS: "4"}).strip() == "good"


FLUSHED = """
    import numpy as np, torch
    import rope_array as ra

    x, pos = np.full((64, 4096, 16), 1e-309), np.arange(4096)  # subnormal numbers, for several threads
    assert torch.set_flush_denormal(True)
    flushed = ra.apply(x, pos)  # starts the threads
    assert (flushed == ra.apply(x[:1], pos)).all()
    torch.set_flush_denormal(False)
    assert (ra.apply(x, pos) == ra.apply(x[:1], pos)).all()
    assert ra.apply(x, pos).all() and not flushed.all()
    print("good")
"""


@pytest.mark.library("torch")
def test_threads_flush_subnormal_numbers_if_the_caller_does():
    assert child.run(FLUSHED, **{THREADS: "3"}).strip() == "good"


def test_odd_numbers_of_threads(monkeypatch):
    monkeypatch.delenv(OF_OPENMP, raising=False)
    processors = kernel.threads_of(0)
    good = {"100000": 1024, "99999999999999999999": 1024, " 5": 5, "2.7": 2, "1": 1}
    for text, count in {**good, **dict.fromkeys(("0", "-3", "abc", ""))}.items():
        monkeypatch.setenv(OF_OPENMP, text)
        assert kernel.threads_of(0) == (count or processors), text
        monkeypatch.setenv(OF_OPENMP, "6")
        monkeypatch.setenv(THREADS, text)
        assert kernel.threads_of(0) == (count or 6), text
        monkeypatch.delenv(THREADS)


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="the system has no affinity")
def test_as_many_threads_as_processors_that_may_be_used(monkeypatch):
    monkeypatch.delenv(OF_OPENMP, raising=False)
    processors = os.sched_getaffinity(0)
    assert kernel.threads_of(0) == len(processors)
    os.sched_setaffinity(0, {min(processors)})
    try:
        assert kernel.threads_of(0) == 1
    finally:
        os.sched_setaffinity(0, processors)


FIRST_CALLS = """
    import sys
    import numpy as np
    from threads import in_threads

    sys.setswitchinterval(1e-6)
    is_gil_enabled = getattr(sys, "_is_gil_enabled", bool)
    x, ropes, before = np.ones((20_000, 3, 8), np.float32), {}, is_gil_enabled()

    def rotate(i):
        import rope_array as ra

        rope = ropes.setdefault(base, ra.RoPE(8, base=base))
        y, rotation = rope.apply(x, [0, 1, 2]), rope.rotation([0, 1, 2], like=x)
        return y.tobytes(), rotation.apply(x[:9]).tobytes(), type(rotation)

    for base in range(1000, 1050):
        assert {*in_threads(rotate)} == {rotate(0)}, base
    assert is_gil_enabled() == before
"""


@pytest.mark.parametrize("level", ["", "none"], ids=["C++ kernel", "array-api"])
def test_first_calls_from_eight_threads(level):
    """A call keeps a plan's handle if another thread replaces it; a free-threaded Python stays so."""
    child.run(FIRST_CALLS, **{LEVEL: level}, MALLOC_PERTURB_="165")  # fills freed memory with 0xA5


# ---- daemon threads at exit ----

DAEMONS = """
    import threading, time
    import numpy as np, rope_array as ra

    rope, x = ra.RoPE(64), np.ones(({heads}, 64, 64), np.float32)
    rope.apply(x, range(64))  # imports the kernel

    def rotate_for_ever():
        while True:
            rope.apply(x, range(64))

    for _ in range(4):
        threading.Thread(target=rotate_for_ever, daemon=True).start()
    time.sleep(0.05)
    print("good")
"""


# Python flushes sys.stderr twice before it begins to end daemon threads, and again afterwards.
PYTHON_CODE_AT_EXIT = """
    import sys, threading, time
    import numpy as np, rope_array as ra
    from rope_array._backends._native import kernel

    x, entered = np.ones((2, 8), np.float32), threading.Event()
    ra.RoPE(8).apply(x, [0, 1])

    class SlowPlan:
        @property
        def derived(self):
            entered.set()
            time.sleep(1)

    class SlowStream:
        def flush(self, sleep=time.sleep):
            sleep(0.4)

    source = (1, SlowPlan(), None)
    threading.Thread(target=kernel.rotate, args=(x, source, (-2,), None), daemon=True).start()
    entered.wait()
    print("good", flush=True)
    sys.stderr = SlowStream()
"""


AT_EXIT = {
    "32 KiB": DAEMONS.format(heads=2),
    "256 KiB": DAEMONS.format(heads=16),
    "4 MiB": DAEMONS.format(heads=256),
    "Python code that the kernel calls": PYTHON_CODE_AT_EXIT,
}


@pytest.mark.parametrize("script", AT_EXIT.values(), ids=AT_EXIT)
def test_the_interpreter_exits_while_daemon_threads_rotate(script):
    """A daemon thread that waits for the GIL at exit neither kills nor blocks the process."""
    assert child.run(script, **{THREADS: "2"}).strip() == "good"
